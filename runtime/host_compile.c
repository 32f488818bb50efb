// Kernel texts to functions: cache, else the C compiler of the machine, one shared object a kernel, in
// parallel.
//
// One object a kernel, because kernels are shared by models and layers and the cache is by content. The same
// text gives the same bits with gcc and clang and at every -O level (contraction off, own exp), so without a
// compiler an entry of any compiler serves.
#define _GNU_SOURCE
#include "runtime/cache.h"
#include "runtime/host.h"
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char kernel_flags[] =
    "-std=gnu17 -O2 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math "
    "-fPIC -shared -w";
enum { MAX_WORDS = 64, ABI_VERSION = 1 };

struct KernelSet {
    int32_t n;
    struct LoadedKernel {
        void *handle;
        KernelFn *fn;
    } * kernels;
};

// ---- Running a program: its words are separated by blanks, then come arguments that are taken whole. What
// it prints goes to a file. Returns the exit status, -1 if it did not run.
static int run_program(const char *command, const char *const *args, int n_args, const char *output) {
    char words[sizeof((Compiler *)0)->command + sizeof kernel_flags + 16];
    char *argv[MAX_WORDS];
    int n = 0;
    snprintf(words, sizeof words, "%s", command);
    for (char *save = NULL, *w = strtok_r(words, " \t", &save); w; w = strtok_r(NULL, " \t", &save))
        if (n + n_args + 1 < MAX_WORDS)
            argv[n++] = w;
    for (int i = 0; i < n_args; i++)
        argv[n++] = (char *)(uintptr_t)args[i];
    argv[n] = NULL;
    posix_spawn_file_actions_t files;
    if (n == n_args || fault_hit(FAULT_DRIVER) || posix_spawn_file_actions_init(&files))
        return -1;
    pid_t pid;
    int status = -1;
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    int failed = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed)
        return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256;
}

static size_t read_text(const char *path, char *out, size_t bytes) {
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(out, 1, bytes - 1, f) : 0;
    out[n] = 0;
    if (f)
        fclose(f);
    return n;
}

// ---- Finding the compiler.
// True when the first word of a command is a program: a path, or a name in PATH.
static bool program_exists(const char *command) {
    char word[1024], path[4096];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(command, " \t"), command);
    if (strchr(word, '/'))
        return access(word, X_OK) == 0;
    const char *dirs = getenv("PATH");
    for (const char *p = dirs; p && *p; p += strspn(p, ":")) {
        int n = (int)strcspn(p, ":");
        snprintf(path, sizeof path, "%.*s/%s", n, p, word);
        if (access(path, X_OK) == 0)
            return true;
        p += n;
    }
    return false;
}

// Asks --version; fills version and key. False when the program does not answer.
static bool compiler_version(Compiler *c) {
    char text[4096], path[1024];
    const char *base = getenv("TMPDIR"), *const args[] = {"--version"};
    snprintf(path, sizeof path, "%s/depthbench-version-XXXXXX", base && *base ? base : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0)
        return false;
    close(fd);
    int rc = run_program(c->command, args, 1, path);
    size_t n = read_text(path, text, sizeof text);
    unlink(path);
    if (rc != 0 || n == 0)
        return false;
    // Words of CC behind the program are flags: they belong to what made an entry.
    snprintf(text + n, sizeof text - n, "%s", c->command + strcspn(c->command, " \t"));
    hash_hex(text, strlen(text), c->key);
    snprintf(c->version, sizeof c->version, "%.*s", (int)MIN_OF(strcspn(text, "\n"), sizeof c->version - 1),
             text);
    return true;
}

void compiler_find(Compiler *out) {
    static const char *const names[] = {"cc", "gcc", "clang"};
    *out = (Compiler){0};
    const char *cc = getenv("CC");
    bool set = cc && cc[strspn(cc, " \t")];
    snprintf(out->looked, sizeof out->looked, "$CC (%.200s), cc, gcc, clang in PATH", set ? cc : "not set");
    for (size_t i = set ? 0 : 1; i <= COUNT_OF(names); i++) {
        const char *command = i == 0 ? cc : names[i - 1];
        if (!program_exists(command))
            continue;
        snprintf(out->command, sizeof out->command, "%s", command);
        if (compiler_version(out))
            return;
    }
    out->command[0] = 0;
}

static Status compiler_missing(const Compiler *c) {
    return status_make(
        EXIT_TARGET,
        "host: no C compiler; looked for %s; install one (Debian, Ubuntu: apt-get install gcc; Fedora: dnf "
        "install gcc; Alpine: apk add gcc musl-dev) or set CC",
        c->looked);
}

// ---- One kernel.
void kernel_symbol(const char *name, char *out, size_t bytes) {
    size_t n = 0;
    for (; name[n] && n + 1 < bytes; n++)
        out[n] = isalnum((unsigned char)name[n]) ? name[n] : '_';
    out[n] = 0;
}

typedef struct Job {
    char key[CACHE_KEY], path[CACHE_PATH];
    bool cached, need;
    Status status;
} Job;

typedef struct Build {
    const Plan *plan;
    Cache *cache;
    Compiler *compiler;
    Job *jobs;
} Build;

static void job_key(Job *job, const PlanKernel *k, const char *cpu) {
    char all[4][33] = {0};
    char version[64];
    snprintf(version, sizeof version, "host abi %d args %zu", ABI_VERSION, sizeof(KernelArgs));
    hash_hex(k->source, strlen(k->source), all[0]);
    hash_hex(kernel_flags, sizeof kernel_flags, all[1]);
    hash_hex(cpu, strlen(cpu), all[2]);
    hash_hex(version, strlen(version), all[3]);
    hash_hex(all, sizeof all, job->key);
}

static Status write_text(const char *path, const char *text) {
    FILE *f = fault_hit(FAULT_FILE) ? NULL : fopen(path, "w");
    bool ok = f && fwrite(text, 1, strlen(text), f) == strlen(text);
    if ((f && fclose(f)) || !ok)
        return status_make(EXIT_WORK, "cannot write %.300s: %s", path, strerror(errno));
    return STATUS_OK;
}

// The compiler refused a text of ours: says which kernel, where it came from, and the compiler's first error.
static Status compile_refused(const Build *b, const PlanKernel *k, int rc, const char *log) {
    char text[4096], *line = text;
    read_text(log, text, sizeof text);
    char *error = strstr(text, "error");
    while (error && error > text && error[-1] != '\n')
        error--;
    line = error ? error : text;
    line[strcspn(line, "\n")] = 0;
    return status_make(EXIT_WORK, "kernel %s (%.80s): %.60s ended with %d: %.200s", k->name,
                       k->origin ? k->origin : "", b->compiler->command, rc, line);
}

static Status build_one(const Build *b, Job *job, const PlanKernel *k) {
    char text[CACHE_PATH], image[CACHE_PATH], log[CACHE_PATH];
    char command[sizeof b->compiler->command + sizeof kernel_flags + 1];
    const char *const args[] = {"-o", image, text};
    cache_aside(b->cache, ".c", text);
    cache_aside(b->cache, ".so", image);
    cache_aside(b->cache, ".log", log);
    Status s = write_text(text, k->source);
    if (!s.code) {
        snprintf(command, sizeof command, "%s %s", b->compiler->command, kernel_flags);
        int rc = run_program(command, args, 3, log);
        if (rc)
            s = compile_refused(b, k, rc, log);
    }
    unlink(text);
    unlink(log);
    if (s.code) {
        unlink(image);
        return s;
    }
    return cache_put(b->cache, job->key, b->compiler->key, image, job->path);
}

static void build_task(void *ctx, int64_t i, int worker) {
    Build *b = ctx;
    (void)worker;
    if (b->jobs[i].need)
        b->jobs[i].status = build_one(b, &b->jobs[i], &b->plan->kernels.at[i]);
}

// ---- All kernels of a plan.
static Status load_kernel(KernelSet *set, int32_t i, const PlanKernel *k, const char *path) {
    struct LoadedKernel *l = &set->kernels[i];
    char symbol[256];
    kernel_symbol(k->name, symbol, sizeof symbol);
    l->handle = fault_hit(FAULT_DRIVER) ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l->handle) {
        const char *why = dlerror();
        return status_make(EXIT_WORK, "cannot load kernel %s: %.300s", k->name, why ? why : "refused");
    }
    void *at = dlsym(l->handle, symbol);
    if (!at)
        return status_make(EXIT_WORK, "kernel %s: its text defines no function %s", k->name, symbol);
    memcpy(&l->fn, &at, sizeof at);
    return STATUS_OK;
}

// Looks every kernel up; the compiler is asked for at most once. n_need: how many must be compiled.
static Status find_cached(Build *b, int32_t *n_need) {
    char *cpu = mem_alloc(16384);
    if (!cpu)
        return status_memory("kernel keys", 16384);
    system_cpu_flags(cpu, 16384);
    compiler_find(b->compiler);
    bool have = b->compiler->command[0] != 0;
    *n_need = 0;
    for (uint32_t i = 0; i < b->plan->kernels.n; i++) {
        Job *job = &b->jobs[i];
        job_key(job, &b->plan->kernels.at[i], cpu);
        job->cached = cache_get(b->cache, job->key, have ? b->compiler->key : NULL, job->path);
        job->need = !job->cached;
        *n_need += job->need;
    }
    mem_free(cpu);
    return *n_need && !have ? compiler_missing(b->compiler) : STATUS_OK;
}

static Status build_all(Build *b, Pool *pool, KernelSet *set, CompileStats *stats) {
    int32_t n_need = 0;
    TRY(find_cached(b, &n_need));
    if (n_need)
        pool_run(pool, set->n, build_task, b);
    for (int32_t i = 0; i < set->n; i++) {
        Job *job = &b->jobs[i];
        const PlanKernel *k = &b->plan->kernels.at[i];
        TRY(job->status);
        Status s = load_kernel(set, i, k, job->path);
        if (s.code && job->cached &&
            b->compiler->command[0]) { // gone meanwhile, or unusable in spite of its hash
            if (!access(job->path, F_OK))
                cache_drop(b->cache, job->path, "cannot be loaded");
            job->cached = false;
            TRY(build_one(b, job, k));
            s = load_kernel(set, i, k, job->path);
        }
        TRY(s);
        stats->compiled += !job->cached;
        stats->cached += job->cached;
    }
    return STATUS_OK;
}

Status kernels_open(const Plan *plan, const DriverOptions *options, Pool *pool, KernelSet **out,
                    CompileStats *stats) {
    double start = now_ms();
    Compiler compiler;
    *out = NULL;
    *stats = (CompileStats){0};
    KernelSet *set = mem_alloc(sizeof *set);
    if (!set)
        return status_memory("kernels", sizeof *set);
    set->n = (int32_t)plan->kernels.n;
    set->kernels = mem_alloc((size_t)set->n * sizeof *set->kernels);
    Build b = {.plan = plan, .compiler = &compiler, .jobs = mem_alloc((size_t)set->n * sizeof *b.jobs)};
    Status s = set->kernels && b.jobs ? cache_open(options->cache_dir, &b.cache)
                                      : status_memory("kernels", (size_t)set->n * sizeof *b.jobs);
    if (!s.code) {
        s = build_all(&b, pool, set, stats);
        cache_close(b.cache); // mapped files outlive their names
    }
    mem_free(b.jobs);
    if (s.code) {
        kernels_close(set);
        return s;
    }
    stats->ms = now_ms() - start;
    *out = set;
    return STATUS_OK;
}

KernelFn *kernels_get(const KernelSet *k, int32_t i) {
    return k->kernels[i].fn;
}

void kernels_close(KernelSet *k) {
    if (!k)
        return;
    for (int32_t i = 0; k->kernels && i < k->n; i++)
        if (k->kernels[i].handle)
            dlclose(k->kernels[i].handle);
    mem_free(k->kernels);
    mem_free(k);
}
