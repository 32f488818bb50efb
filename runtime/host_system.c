// Facts about the machine: threads that may be used, memory, CPU. Reads /proc and /sys; everything has a
// fallback.
#define _GNU_SOURCE
#include "runtime/host.h"
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_first_line(const char *path, char *out, int bytes) {
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    bool ok = fgets(out, bytes, f) != NULL;
    fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = 0;
    return ok;
}

// The path of a controller in a file like /proc/self/cgroup; "" names the unified (v2) tree.
static bool cgroup_path(const char *self_cgroup, const char *controller, char *out, size_t bytes) {
    FILE *f = fopen(self_cgroup, "r");
    if (!f)
        return false;
    char line[1024];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':');
        char *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        names++;
        for (char *save = NULL, *name = *names ? strtok_r(names, ",", &save) : names; name && !found;
             name = *name ? strtok_r(NULL, ",", &save) : NULL)
            found = strcmp(name, controller) == 0;
        if (found)
            snprintf(out, bytes, "%s", path);
    }
    fclose(f);
    return found;
}

// Calls look for the cgroup and each of its ancestors: dir is root/tree/path, then shorter paths. Keeps the
// smallest value.
static double cgroup_smallest(const char *tree, char *path, double (*look)(const char *dir)) {
    double best = 0;
    for (;;) {
        char dir[2048];
        snprintf(dir, sizeof dir, "%s%s", tree, strcmp(path, "/") ? path : "");
        double x = look(dir);
        if (x > 0 && (best <= 0 || x < best))
            best = x;
        char *slash = strrchr(path, '/');
        if (!slash)
            return best;
        *slash = 0;
    }
}

static double quota_v2(const char *dir) {
    char file[2100], line[128];
    double quota, period;
    snprintf(file, sizeof file, "%s/cpu.max", dir);
    if (!read_first_line(file, line, sizeof line))
        return 0;
    char *end;
    long long q = strtoll(line, &end, 10), p = strtoll(end, NULL, 10);
    quota = (double)q;
    period = (double)p;
    return end != line && q > 0 && p > 0 ? quota / period : 0;
}

static double quota_v1(const char *dir) {
    char file[2100], line[128];
    long long value[2];
    const char *name[2] = {"cpu.cfs_quota_us", "cpu.cfs_period_us"};
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s", dir, name[i]);
        if (!read_first_line(file, line, sizeof line))
            return 0;
        value[i] = strtoll(line, NULL, 10);
    }
    return value[0] > 0 && value[1] > 0 ? (double)value[0] / (double)value[1] : 0;
}

static double limit_file(const char *dir, const char *name) {
    char file[2100], line[128];
    snprintf(file, sizeof file, "%s/%s", dir, name);
    if (!read_first_line(file, line, sizeof line))
        return 0;
    double x = (double)strtoull(line, NULL, 10);
    return x < 1e18 ? x : 0;
}

static double memory_v2(const char *dir) {
    double limit = limit_file(dir, "memory.max");
    return limit > 0 ? MAX_OF(limit - limit_file(dir, "memory.current"), 1) : 0;
}

static double memory_v1(const char *dir) {
    double limit = limit_file(dir, "memory.limit_in_bytes");
    return limit > 0 ? MAX_OF(limit - limit_file(dir, "memory.usage_in_bytes"), 1) : 0;
}

// Smallest value over both kinds of tree that cgroups come in.
static double cgroup_both(const char *self_cgroup, const char *root, const char *controller,
                          double (*v1)(const char *), double (*v2)(const char *)) {
    char path[1024], tree[1100];
    double a = 0, b = 0;
    if (cgroup_path(self_cgroup, "", path, sizeof path))
        a = cgroup_smallest(root, path, v2);
    snprintf(tree, sizeof tree, "%s/%s", root, controller);
    if (cgroup_path(self_cgroup, controller, path, sizeof path))
        b = cgroup_smallest(tree, path, v1);
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

int system_quota(const char *self_cgroup, const char *root) {
    double q = cgroup_both(self_cgroup, root, "cpu", quota_v1, quota_v2);
    if (q <= 0 || q > 1e6)
        return 0;
    int whole = (int)q;
    return MAX_OF(whole + (q > whole), 1);
}

int system_threads(char from[64]) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int n = online > 0 ? (int)online : 1;
    const char *who = "cores";
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < n) {
        n = CPU_COUNT(&set);
        who = "affinity mask";
    }
    int quota = system_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota > 0 && quota < n) {
        n = quota;
        who = "cgroup quota";
    }
    snprintf(from, 64, "%s", who);
    return MAX_OF(n, 1);
}

void system_memory(size_t *total, size_t *available) {
    *total = *available = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    char line[256];
    unsigned long long kb;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemTotal: %llu", &kb) == 1)
            *total = (size_t)kb << 10;
        else if (sscanf(line, "MemAvailable: %llu", &kb) == 1)
            *available = (size_t)kb << 10;
    }
    if (f)
        fclose(f);
    double limit = cgroup_both("/proc/self/cgroup", "/sys/fs/cgroup", "memory", memory_v1, memory_v2);
    if (limit > 0 && (*available == 0 || limit < (double)*available))
        *available = (size_t)limit;
}

// The value of the first line "key ... : value" of /proc/cpuinfo; false when absent.
static bool cpuinfo(const char *key, char *out, size_t bytes) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    char *line = NULL;
    size_t cap = 0, n = strlen(key);
    bool found = false;
    while (f && !found && getline(&line, &cap, f) > 0) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, n) || !colon)
            continue;
        colon += strspn(colon, ": \t");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out, bytes, "%s", colon);
        found = true;
    }
    free(line);
    if (f)
        fclose(f);
    return found;
}

void system_cpu_name(char *out, size_t bytes) {
    if (!cpuinfo("model name", out, bytes))
        snprintf(out, bytes, "CPU");
}

void system_cpu_flags(char *out, size_t bytes) {
    static const char *const keys[] = {"vendor_id", "cpu family", "model", "flags", "Features"};
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < COUNT_OF(keys) && n + 2 < bytes; i++)
        if (cpuinfo(keys[i], out + n, bytes - n - 1)) {
            n += strlen(out + n);
            out[n++] = ';';
            out[n] = 0;
        }
}

const char *system_vector_name(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return "AVX-512";
    if (__builtin_cpu_supports("avx2"))
        return "AVX2";
    return "SSE2";
#elif defined __ARM_NEON
    return "NEON";
#else
    return "scalar";
#endif
}
