// Status, faults, heap, arena, text, hashing: see base.h.
#include "ir/base.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

Status status_make(int code, const char *format, ...) {
    Status s = {.code = code};
    va_list args;
    va_start(args, format);
    vsnprintf(s.text, sizeof s.text, format, args);
    va_end(args);
    return s;
}

Status status_memory(const char *what, size_t bytes) {
    return status_make(EXIT_WORK, "out of memory: %s needs %.1f MB", what, (double)bytes / 1e6);
}

_Noreturn void check_failed(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "depthbench: internal error at %s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

static struct {
    atomic_long seen;
    long nth;
    bool sticky;
} faults[N_FAULTS];

void fault_set(FaultKind kind, long nth, bool sticky) {
    faults[kind].nth = nth;
    faults[kind].sticky = sticky;
    atomic_store(&faults[kind].seen, 0);
}

long fault_count(FaultKind kind) {
    return atomic_load(&faults[kind].seen);
}

bool fault_hit(FaultKind kind) {
    long seen = atomic_fetch_add_explicit(&faults[kind].seen, 1, memory_order_relaxed) + 1;
    long nth = faults[kind].nth;
    return nth > 0 && (seen == nth || (faults[kind].sticky && seen > nth));
}

void *mem_alloc(size_t bytes) {
    return fault_hit(FAULT_ALLOC) ? NULL : calloc(1, bytes ? bytes : 1);
}

void *mem_realloc(void *p, size_t bytes) {
    return fault_hit(FAULT_ALLOC) ? NULL : realloc(p, bytes ? bytes : 1);
}

void *mem_aligned(size_t align, size_t bytes) {
    size_t rounded;
    if (fault_hit(FAULT_ALLOC) || !size_add(bytes ? bytes : 1, align - 1, &rounded))
        return NULL;
    return aligned_alloc(align, rounded / align * align);
}

void mem_free(void *p) {
    free(p);
}

bool size_mul(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool size_add(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

struct ArenaBlock {
    ArenaBlock *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

void arena_init(Arena *a, size_t limit) {
    *a = (Arena){.limit = limit};
}

void arena_free(Arena *a) {
    for (ArenaBlock *b = a->head, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    *a = (Arena){.limit = a->limit};
}

static _Noreturn void arena_fail(Arena *a) {
    CHECK(a->fail, "arena is out of memory and nobody catches it");
    longjmp(*a->fail, 1);
}

void *arena_alloc(Arena *a, size_t bytes) {
    size_t need;
    if (!size_add(bytes, 15, &need))
        arena_fail(a);
    need &= ~(size_t)15;
    ArenaBlock *b = a->head;
    if (!b || b->size - b->used < need) {
        size_t size = b ? MIN_OF(b->size * 2, (size_t)8 << 20) : (size_t)64 << 10;
        size_t total;
        size = MAX_OF(size, need);
        if ((a->limit && a->used + need > a->limit) || !size_add(size, sizeof *b, &total) ||
            !(b = mem_alloc(total)))
            arena_fail(a);
        b->size = size;
        b->next = a->head;
        a->head = b;
    }
    void *p = b->bytes + b->used;
    b->used += need;
    a->used += need;
    return p;
}

char *arena_string(Arena *a, const char *text) {
    size_t n = strlen(text) + 1;
    return memcpy(arena_alloc(a, n), text, n);
}

char *arena_format(Arena *a, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *p = arena_alloc(a, (size_t)n + 1);
    vsnprintf(p, (size_t)n + 1, format, again);
    va_end(again);
    return p;
}

void *vec_grow(Arena *a, void *at, uint32_t n, uint32_t *cap, size_t item) {
    uint32_t new_cap = *cap ? *cap * 2 : 8;
    size_t bytes;
    if (new_cap < *cap || !size_mul(new_cap, item, &bytes))
        arena_fail(a);
    void *p = arena_alloc(a, bytes);
    if (n)
        memcpy(p, at, n * item);
    *cap = new_cap;
    return p;
}

static void text_reserve(Text *t, size_t more) {
    if (t->cap - t->n > more)
        return;
    size_t cap = MAX_OF(t->cap * 2, t->n + more + 1);
    cap = MAX_OF(cap, 256);
    char *p = arena_alloc(t->arena, cap);
    if (t->n)
        memcpy(p, t->at, t->n);
    t->at = p;
    t->cap = cap;
}

void text_addn(Text *t, const char *bytes, size_t n) {
    text_reserve(t, n);
    memcpy(t->at + t->n, bytes, n);
    t->n += n;
    t->at[t->n] = 0;
}

void text_add(Text *t, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    text_reserve(t, (size_t)n);
    vsnprintf(t->at + t->n, (size_t)n + 1, format, again);
    va_end(again);
    t->n += (size_t)n;
}

static int edit_distance(const char *a, const char *b) {
    enum { MAX = 48 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > MAX || nb > MAX)
        return MAX;
    int row[MAX + 1];
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = MIN_OF(best, MIN_OF(row[j], row[j - 1]) + 1);
            row[j] = best;
        }
    }
    return row[nb];
}

const char *nearest_word(const char *word, const char *const *known, int n) {
    const char *best = NULL;
    int best_distance = (int)MAX_OF(strlen(word) / 2, (size_t)3);
    for (int i = 0; i < n; i++) {
        int d = edit_distance(word, known[i]);
        if (d < best_distance) {
            best_distance = d;
            best = known[i];
        }
    }
    return best;
}

void hash_hex(const void *data, size_t bytes, char out[33]) {
    XXH128_hash_t h = XXH3_128bits(data, bytes);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}
