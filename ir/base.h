// What every file rests on: Status, arenas, growable arrays, checked sizes, the allocator with a fault
// counter.
//
// Two kinds of memory. Compiler data (IR, passes, texts) lives in an Arena: arena_alloc never returns NULL;
// when memory runs out it jumps to the arena's `fail` point, which the caller of the stage set (ARENA_CATCH),
// and the whole stage is dropped. Nothing inside a stage may hold memory outside its arena. Runtime data uses
// mem_alloc, which returns NULL.
#ifndef DEPTHBENCH_IR_BASE_H
#define DEPTHBENCH_IR_BASE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define MUST_USE          __attribute__((warn_unused_result))
#define COUNT_OF(a)       (sizeof(a) / sizeof((a)[0]))
#define MIN_OF(a, b)      ((a) < (b) ? (a) : (b))
#define MAX_OF(a, b)      ((a) > (b) ? (a) : (b))

// ---- Status: what a function that can fail returns. code is the process exit code (0 done, 1 the work
// failed, 2 the request was wrong, 3 the target is missing); text is one line that says what, where and what
// to do.
enum { EXIT_DONE = 0, EXIT_WORK = 1, EXIT_REQUEST = 2, EXIT_TARGET = 3 };
typedef struct Status {
    int code;
    char text[508];
} Status;
#define STATUS_OK ((Status){.code = 0})
Status status_make(int code, const char *format, ...) PRINTF_LIKE(2, 3) MUST_USE;
Status status_memory(const char *what, size_t bytes) MUST_USE; // out of memory, code 1
#define TRY(expr)                                                                                            \
    do {                                                                                                     \
        Status try_status = (expr);                                                                          \
        if (try_status.code)                                                                                 \
            return try_status;                                                                               \
    } while (0)

// ---- Internal errors: ours, never the person's. Prints file, line and the message to stderr, then aborts.
_Noreturn void check_failed(const char *file, int line, const char *format, ...) PRINTF_LIKE(3, 4);
#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            check_failed(__FILE__, __LINE__, __VA_ARGS__);                                                   \
    } while (0)

// ---- Faults: tests make the n-th event of a kind fail (and all later ones if `sticky`). Off by default.
typedef enum { FAULT_ALLOC, FAULT_FILE, FAULT_DRIVER, N_FAULTS } FaultKind;
void fault_set(FaultKind kind, long nth, bool sticky); // nth 0: off; resets the counter
long fault_count(FaultKind kind);                      // events seen since fault_set
bool fault_hit(FaultKind kind);                        // counts one event; true when it must fail

// ---- Heap with the fault counter; NULL on failure. mem_alloc gives zeroed memory. mem_free(NULL) is fine.
void *mem_alloc(size_t bytes) MUST_USE;
void *mem_realloc(void *p, size_t bytes) MUST_USE;
void *mem_aligned(size_t align, size_t bytes) MUST_USE; // not zeroed; freed by mem_free
void mem_free(void *p);

// ---- Checked sizes: false (and *out untouched) on overflow.
bool size_mul(size_t a, size_t b, size_t *out) MUST_USE;
bool size_add(size_t a, size_t b, size_t *out) MUST_USE;

// ---- Arena.
typedef struct ArenaBlock ArenaBlock;
typedef struct Arena {
    ArenaBlock *head;
    size_t used, limit; // bytes; limit 0: none
    jmp_buf *fail;      // where to go when memory is out; must be set before the first allocation
} Arena;
void arena_init(Arena *a, size_t limit);
void arena_free(Arena *a);
void *arena_alloc(Arena *a, size_t bytes); // zeroed, 16-byte aligned; never NULL
char *arena_string(Arena *a, const char *text);
char *arena_format(Arena *a, const char *format, ...) PRINTF_LIKE(2, 3);
// Runs `stmt` once; if memory runs out inside, `on_fail` runs instead. Restores the previous fail point.
// `stmt` must not return or jump out. Locals that `stmt` changes and `on_fail` reads must be volatile.
#define ARENA_CATCH(arena, stmt, on_fail) ARENA_TRY(arena, on_fail, stmt)
// The same with the statement last, so that it may hold commas.
#define ARENA_TRY(arena, on_fail, ...)                                                                       \
    do {                                                                                                     \
        jmp_buf catch_buf;                                                                                   \
        jmp_buf *volatile catch_old = (arena)->fail;                                                         \
        if (setjmp(catch_buf) == 0) {                                                                        \
            (arena)->fail = &catch_buf;                                                                      \
            __VA_ARGS__;                                                                                     \
            (arena)->fail = catch_old;                                                                       \
        } else {                                                                                             \
            (arena)->fail = catch_old;                                                                       \
            on_fail;                                                                                         \
        }                                                                                                    \
    } while (0)

// ---- Growable arrays in an arena: VEC(int) v = {0}; vec_push(arena, &v, 3); v.at[0]; v.n
#define VEC(T)                                                                                               \
    struct {                                                                                                 \
        T *at;                                                                                               \
        uint32_t n, cap;                                                                                     \
    }
void *vec_grow(Arena *a, void *at, uint32_t n, uint32_t *cap, size_t item);
#define vec_push(arena, v, item)                                                                             \
    do {                                                                                                     \
        if ((v)->n == (v)->cap)                                                                              \
            (v)->at = vec_grow((arena), (v)->at, (v)->n, &(v)->cap, sizeof *(v)->at);                        \
        (v)->at[(v)->n++] = (item);                                                                          \
    } while (0)

// ---- Text under construction, in an arena.
typedef struct Text {
    Arena *arena;
    char *at; // always NUL-terminated once something was written
    size_t n, cap;
} Text;
void text_add(Text *t, const char *format, ...) PRINTF_LIKE(2, 3);
void text_addn(Text *t, const char *bytes, size_t n);

// The known word that `word` was probably meant to be; NULL when none is near.
const char *nearest_word(const char *word, const char *const *known, int n);

double now_ms(void); // of a clock that never jumps

// ---- Hashing of kernel texts, names, files (XXH3-128, as 32 hex digits and NUL).
void hash_hex(const void *data, size_t bytes, char out[33]);
#endif
