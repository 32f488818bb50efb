// Text of the IR: any bytes are refused with a line, or are a module that prints, parses, simplifies, and
// whose functions evaluate, unless they are large.
#include "passes/passes.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

static const double *zeros(void) {
    enum { MOST = 4096 };
    static const double at[MOST];
    return at;
}

static const double *zero_param(void *ctx, int32_t param) {
    (void)ctx, (void)param;
    return zeros();
}

static const double *zero_input(void *ctx, const char *name) {
    (void)ctx, (void)name;
    return zeros();
}

// The cost of products and attention is the cube of the largest value: only small functions are evaluated.
static bool small(const Module *m, const Func *f) {
    for (uint32_t i = 1; i < f->nodes.n; i++)
        if (type_count(m, &f->nodes.at[i].type) > 512 || f->nodes.at[i].op == OP_call)
            return false;
    return f->nodes.n < 100;
}

static void evaluate(Arena *arena, const Module *m) {
    Env env = {NULL, zero_param, zero_input};
    for (uint32_t i = 0; i < m->funcs.n; i++) {
        const Func *f = m->funcs.at[i];
        Tensor *out = arena_alloc(arena, (f->outputs.n + f->marks.n + 1) * sizeof *out);
        Status s = small(m, f) ? interp_run(arena, m, f, &env, true, out) : STATUS_OK;
        CHECK(!s.code || s.code == EXIT_REQUEST, "%s", s.text);
    }
}

static void run(Arena *arena, const char *text) {
    Module *m, *again;
    Status s = ir_parse(arena, text, "fuzz.ir", &m);
    if (s.code) {
        CHECK(s.code == EXIT_REQUEST && s.text[0], "refused without a word");
        return;
    }
    Text first = {.arena = arena}, second = {.arena = arena};
    ir_print(&first, m);
    s = ir_parse(arena, first.at, "again.ir", &again);
    CHECK(!s.code, "%s", s.text);
    ir_print(&second, again);
    CHECK(!strcmp(first.at, second.at), "the text changed");
    evaluate(arena, m);
    PassOptions o = {.train = true};
    pass_simplify(m, &o);
    ir_verify(m, "simplify");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena arena;
    arena_init(&arena, (size_t)256 << 20);
    ARENA_TRY(&arena, (void)0, {
        char *text = arena_alloc(&arena, n + 1);
        memcpy(text, data, n);
        run(&arena, text);
    });
    arena_free(&arena);
    return 0;
}
