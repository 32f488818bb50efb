// Random programs through the graph passes: text is kept byte for byte, simplify, autodiff, expand and fuse
// keep values, gradients agree with finite differences. DEPTHBENCH_SEED=N starts elsewhere; a failing seed is
// printed.
#include "passes/fusion.h"
#include "tests/random_program.h"
#include "tests/support.h"
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEEDS = 60 };

static uint64_t first_seed(void) {
    const char *text = getenv("DEPTHBENCH_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

static RandomOptions program(uint64_t seed) {
    return (RandomOptions){.seed = seed,
                           .n_ops = 2 + (int)(seed % 23),
                           .n_outputs = (int)(seed % 4),
                           .wild = seed % 2,
                           .whole_gradient = seed % 2};
}

typedef void Check(Arena *arena, uint64_t seed);

// Runs a check on every seed, each in an arena of its own; prints the seed first, so that a failure shows it.
static void each_seed(Check *check) {
    for (uint64_t i = 0; i < SEEDS; i++) {
        Arena arena;
        jmp_buf out_of_memory;
        arena_init(&arena, 0);
        arena.fail = &out_of_memory;
        assert_int_equal(setjmp(out_of_memory), 0);
        check(&arena, first_seed() + i);
        arena_free(&arena);
    }
}

static char *text_of(Arena *arena, const Module *m) {
    Text t = {.arena = arena};
    ir_print(&t, m);
    return t.at;
}

static void check_text(Arena *arena, uint64_t seed) {
    Module *m = random_module(arena, program(seed)), *again;
    PassOptions o = test_pass_options();
    for (int stage = 0; stage < 2; stage++) {
        ir_verify(m, "random");
        const char *text = text_of(arena, m);
        Status s = ir_parse(arena, text, "random.ir", &again);
        if (s.code)
            fail_msg("seed %llu: %s", (unsigned long long)seed, s.text);
        if (strcmp(text, text_of(arena, again)))
            fail_msg("seed %llu: the text changed", (unsigned long long)seed);
        ir_verify(again, "parse");
        if (stage)
            break;
        pass_simplify(m, &o);
        pass_autodiff(m, &o);
        pass_expand(m, &o);
    }
}

// Largest difference of the outputs that both functions have, against their size.
static void same_outputs(const Module *m, const Func *f, const Tensor *have, const Func *g,
                         const Tensor *want, double tolerance, const char *what, uint64_t seed) {
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        uint32_t k = 0;
        while (k < f->outputs.n && strcmp(f->outputs.at[k].name, g->outputs.at[i].name))
            k++;
        if (k == f->outputs.n)
            fail_msg("seed %llu: %s lost %s", (unsigned long long)seed, what, g->outputs.at[i].name);
        if (!type_same(&have[k].type, &want[i].type))
            fail_msg("seed %llu: %s changed the type of %s", (unsigned long long)seed, what,
                     g->outputs.at[i].name);
        double error = test_error(m, &have[k], &want[i], 1e-6);
        if (!(error <= tolerance))
            fail_msg("seed %llu: %s changed %s by %g", (unsigned long long)seed, what, g->outputs.at[i].name,
                     error);
    }
}

static void check_values(Arena *arena, uint64_t seed) {
    Module *m = random_module(arena, program(seed));
    PassOptions o = test_pass_options();
    const Func *loss = module_find_func(m, "loss");
    TestEnv e;
    test_env(&e, arena, m, loss, RANDOM_VOCAB, seed);
    const Tensor *want = test_eval(arena, m, loss, &e);
    pass_simplify(m, &o);
    ir_verify(m, "simplify");
    const Func *f = module_find_func(m, "loss");
    same_outputs(m, f, test_eval(arena, m, f, &e), loss, want, 1e-11, "simplify", seed);
    pass_autodiff(m, &o);
    ir_verify(m, "autodiff");
    f = module_find_func(m, "eval");
    same_outputs(m, f, test_eval(arena, m, f, &e), loss, want, 1e-11, "autodiff (eval)", seed);
    f = module_find_func(m, "micro");
    const Tensor *grads = test_eval(arena, m, f, &e);
    same_outputs(m, f, grads, loss, want, 1e-11, "autodiff (micro)", seed);
    pass_expand(m, &o);
    ir_verify(m, "expand");
    pass_simplify2(m, &o);
    ir_verify(m, "simplify2");
    const Func *again = module_find_func(m, "micro");
    same_outputs(m, again, test_eval(arena, m, again, &e), f, grads, 1e-9, "expand, simplify2", seed);
}

static double loss_at(Arena *arena, const Module *m, const Func *eval, TestEnv *e, int32_t k, double h) {
    int64_t n = type_count(m, &m->params.at[k].type);
    double *x = e->param[k], *moved = arena_alloc(arena, (size_t)n * sizeof *moved);
    for (int64_t j = 0; j < n; j++)
        moved[j] = x[j] + h * test_uniform(99, (uint64_t)j);
    e->param[k] = moved;
    double loss = test_eval(arena, m, eval, e)[0].at[0];
    e->param[k] = x;
    return loss;
}

// A kink (max, select, ..) within a step spoils one difference, hardly those of all widths.
static void check_gradient(Arena *arena, uint64_t seed) {
    RandomOptions options = program(seed);
    options.whole_gradient = true;
    Module *m = random_module(arena, options);
    PassOptions o = test_pass_options();
    TestEnv e;
    pass_simplify(m, &o);
    pass_autodiff(m, &o);
    const Func *f = module_find_func(m, "micro"), *eval = module_find_func(m, "eval");
    test_env(&e, arena, m, f, RANDOM_VOCAB, seed);
    const Tensor *g = test_eval(arena, m, f, &e);
    for (uint32_t i = 0; i < f->outputs.n; i++) {
        if (strncmp(f->outputs.at[i].name, "grad.", 5))
            continue;
        int32_t k = module_param(m, f->outputs.at[i].name + 5);
        double slope = 0, numeric = 0;
        bool good = false;
        for (int64_t j = 0, n = type_count(m, &g[i].type); j < n; j++)
            slope += g[i].at[j] * test_uniform(99, (uint64_t)j);
        static const double widths[] = {1e-5, 1e-6, 1e-4, 1e-7};
        for (size_t w = 0; w < COUNT_OF(widths) && !good; w++) {
            double h = widths[w];
            numeric = (loss_at(arena, m, eval, &e, k, h) - loss_at(arena, m, eval, &e, k, -h)) / (2 * h);
            good = fabs(numeric - slope) <= 1e-5 * fmax(fabs(slope), 1e-2);
        }
        if (good)
            continue;
        double at = loss_at(arena, m, eval, &e, k, 0),
               h = 1e-6; // both sides differ where there is a kink right here
        double right = (loss_at(arena, m, eval, &e, k, h) - at) / h;
        double left = (at - loss_at(arena, m, eval, &e, k, -h)) / h;
        if (fabs(right - left) < 1e-4 * fmax(fabs(slope), 1e-2))
            fail_msg("seed %llu: %s: gradient %.9g, finite differences %.9g", (unsigned long long)seed,
                     f->outputs.at[i].name, slope, numeric);
    }
}

static void run_passes(Module *m, const PassOptions *o, bool fuse) {
    pass_simplify(m, o);
    pass_autodiff(m, o);
    pass_expand(m, o);
    pass_simplify2(m, o);
    if (fuse)
        pass_fuse(m, o);
    ir_verify(m, fuse ? "fuse" : "simplify2");
}

// Fusion moves nodes and changes none: values are the same bits as in the form that it starts from.
static void check_fused(Arena *arena, uint64_t seed) {
    RandomOptions options = program(seed);
    Module *plain = random_module(arena, options), *fused = random_module(arena, options);
    PassOptions o = test_pass_options();
    o.fuse = seed % 3 > 0;
    run_passes(plain, &o, false);
    run_passes(fused, &o, true);
    static const char *const names[] = {"micro", "eval"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const Func *a = module_find_func(plain, names[i]), *b = module_find_func(fused, names[i]);
        const Func *normal = fusion_normal_form(plain, a);
        TestEnv ea, eb;
        test_env(&ea, arena, plain, a, RANDOM_VOCAB, seed);
        test_env(&eb, arena, fused, a, RANDOM_VOCAB, seed);
        const Tensor *want = test_eval(arena, plain, normal, &ea);
        same_outputs(plain, normal, want, a, test_eval(arena, plain, a, &ea), 1e-12, "normal form", seed);
        same_outputs(fused, b, test_eval(arena, fused, b, &eb), normal, want, 0, "fuse", seed);
    }
}

static void text_is_kept(void **state) {
    (void)state;
    each_seed(check_text);
}

static void values_are_kept(void **state) {
    (void)state;
    each_seed(check_values);
}

static void gradients_are_right(void **state) {
    (void)state;
    each_seed(check_gradient);
}

static void fusion_keeps_bits(void **state) {
    (void)state;
    each_seed(check_fused);
}

int main(void) {
    print_message("DEPTHBENCH_SEED=%llu, %d seeds\n", (unsigned long long)first_seed(), SEEDS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_kept),
        cmocka_unit_test(values_are_kept),
        cmocka_unit_test(gradients_are_right),
        cmocka_unit_test(fusion_keeps_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
