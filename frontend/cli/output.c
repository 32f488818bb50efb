// Text for people, JSON for programs, numbers and times.
#include "frontend/cli/cli.h"
#include <stdlib.h>
#include <string.h>

void human(const Options *o, const char *format, ...) {
    if (o->quiet)
        return;
    va_list args;
    va_start(args, format);
    vfprintf(o->json ? stderr : stdout, format, args);
    va_end(args);
}

void emit_json(json_t *object) {
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (text)
        printf("%s\n", text);
    else
        fprintf(stderr, "depthbench: error: out of memory while writing JSON\n");
    fflush(stdout);
    free(text);
    json_decref(object);
}

const char *json_text(const char *text) {
    static char out[4096];
    size_t n = 0;
    while (*text && n + 5 < sizeof out) {
        int len = *text & 0x80 ? 4 : 1;
        json_t *good = NULL; // the longest character that is one
        while (len > 0 && !(good = json_stringn(text, strnlen(text, (size_t)len))))
            len--;
        json_decref(good);
        if (len <= 0) {
            out[n++] = '?';
            text++;
            continue;
        }
        while (len-- > 0 && *text)
            out[n++] = *text++;
    }
    out[n] = 0;
    return out;
}

static const char *scaled(double x, const char *const *units, int n, char out[32]) {
    int i = 0;
    while (i + 1 < n && (x >= 999.5 || x <= -999.5)) {
        x /= 1000;
        i++;
    }
    snprintf(out, 32, i || x != (double)(long long)x ? "%.3g %s" : "%.0f %s", x, units[i]);
    return out;
}

const char *bytes_text(double bytes, char out[32]) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    return scaled(bytes, units, (int)COUNT_OF(units), out);
}

const char *count_text(double n, char out[32]) {
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    scaled(n, units, (int)COUNT_OF(units), out);
    size_t len = strlen(out);
    if (len && out[len - 1] == ' ')
        out[len - 1] = 0;
    return out;
}

Status bytes_parse(const char *text, size_t *out) {
    char *end;
    double v = strtod(text, &end);
    static const struct {
        const char *unit;
        double scale;
    } units[] = {{"", 1},      {"B", 1},      {"kB", 1e3},      {"MB", 1e6},           {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824.0}, {"k", 1e3},
                 {"M", 1e6},   {"G", 1e9}};
    for (size_t i = 0; end != text && v > 0 && v < 1e15 && i < COUNT_OF(units); i++)
        if (!strcmp(end, units[i].unit)) {
            *out = (size_t)(v * units[i].scale);
            return STATUS_OK;
        }
    return status_make(EXIT_REQUEST, "'%s' is not a size; write for example 8GB or 512MB", text);
}

// Peak resident memory of the process, from the kernel's own counter.
size_t peak_resident(void) {
    FILE *f = fopen("/proc/self/status", "r");
    char text[256];
    size_t kb = 0;
    while (f && fgets(text, sizeof text, f))
        if (sscanf(text, "VmHWM: %zu", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb * 1024;
}
