// The graph passes: gradients against finite differences for ops and models, simplification keeps values and
// makes equal algebra equal.
#include "tests/support.h"
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const Shape micro_shape = {
    .d_model = 8, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .head_dim = 6, .ff = 16, .vocab = 11};

static void gradients_of_models(void **state) {
    (void)state;
    test_gradients("pre_ln", micro_shape, NULL);
    test_gradients("hc", micro_shape, NULL);
    test_gradients("hc", micro_shape, "hc.mixing=none");
    test_gradients("hc", micro_shape, "hc.dynamic=false");
    test_gradients("hc", micro_shape, "hc.readout=norm_collapse");
    test_gradients("hc", micro_shape, "hc.streams=2");
}

// ---- Every MAP and REDUCE row of the table

typedef struct Domain {
    double low, high;
    bool integer;
} Domain;

// clang-format off
#define R(low, high) {low, high, false}
#define I(n) {0, n, true}
#define T(name) {0, 0, false}
#define TEST(...) {__VA_ARGS__}
static const struct { Op op; const char *name; OpClass cls; int n_in; Domain domain[3]; } rows[] = {
#define OP(name, cls, arity, math, grad, cost, test, doc) {OP_##name, #name, CLASS_##cls, arity, test},
#include "ir/ops.def"
};
// clang-format on

static double draw(const Domain *d, uint64_t seed, uint64_t i) {
    double u = (test_uniform(seed, i) + 1) / 2;
    return d->integer ? floor(u * d->high) : d->low + u * (d->high - d->low);
}

// loss = sum(w * op(params)); the gradient of each operand against central differences.
static void check_op(Arena *arena, size_t row) {
    Module *m = module_new(arena, "op");
    AxisId axes[] = {module_axis(m, "n", AXIS_SMALL, 3), module_axis(m, "d", AXIS_WIDE, 5)};
    Func *f = module_func(m, "loss");
    Builder b = {.m = m, .f = f, .layer = -1};
    Ref in[3];
    for (int i = 0; i < rows[row].n_in; i++) {
        Param p = {
            .name = arena_format(arena, "p%d", i), .decay = true, .trained = true, .owner = -1, .role = ""};
        p.file = p.type =
            type_make(m, DT_F32, i == 1 ? 1 : 2, i == 1 ? axes + 1 : axes); // the second broadcasts
        vec_push(arena, &m->params, p);
        in[i] = ir_param(&b, i);
    }
    Ref y = rows[row].cls == CLASS_MAP ? ir_map(&b, rows[row].op, in)
                                       : ir_reduce(&b, rows[row].op, in[0], 1, axes + 1);
    Ref w = ir_add(&b, ir_const(&b, 1), ir_mul(&b, ir_iota(&b, axes[0]), ir_const(&b, 0.37)));
    Ref loss = ir_mul(&b, y, w);
    for (int i = 0; i < 2; i++)
        if (type_has(&node_at(f, loss)->type, axes[i]))
            loss = ir_reduce(&b, OP_sum, loss, 1, axes + i);
    vec_push(arena, &f->outputs, ((NamedRef){"loss", loss}));
    PassOptions o = test_pass_options();
    pass_autodiff(m, &o);
    ir_verify(m, rows[row].name);
    TestEnv e;
    Func *micro = module_find_func(m, "micro"), *eval = module_find_func(m, "eval");
    test_env(&e, arena, m, micro, 2, 1);
    for (int i = 0; i < rows[row].n_in; i++)
        for (int64_t k = 0, n = type_count(m, &m->params.at[i].type); k < n; k++)
            e.param[i][k] = draw(&rows[row].domain[i], 7 + (uint64_t)i, (uint64_t)k);
    Tensor *g = test_eval(arena, m, micro, &e);
    for (int i = 0; i < rows[row].n_in; i++) {
        if (rows[row].domain[i].integer) // a step: its derivative is 0 wherever it has one
            continue;
        for (int64_t k = 0, n = type_count(m, &m->params.at[i].type); k < n; k++) {
            double h = 1e-6, x = e.param[i][k], side[2];
            for (int s = 0; s < 2; s++) {
                e.param[i][k] = x + (s ? -h : h);
                side[s] = test_eval(arena, m, eval, &e)[0].at[0];
            }
            e.param[i][k] = x;
            double numeric = (side[0] - side[1]) / (2 * h), got = g[1 + i].at[k];
            if (!(fabs(numeric - got) <= 1e-6 * fmax(1, fabs(got))))
                fail_msg("%s, operand %d, element %lld: gradient %.9g, finite differences %.9g",
                         rows[row].name, i, (long long)k, got, numeric);
        }
    }
}

static void gradients_of_ops(void **state) {
    (void)state;
    for (size_t row = 0; row < COUNT_OF(rows); row++) {
        if (rows[row].cls != CLASS_MAP && rows[row].cls != CLASS_REDUCE)
            continue;
        bool has_domain = rows[row].domain[0].high > rows[row].domain[0].low || rows[row].domain[0].integer;
        if (!has_domain)
            fail_msg("op %s has no test domain", rows[row].name);
        Arena arena;
        arena_init(&arena, 0);
        jmp_buf out_of_memory;
        arena.fail = &out_of_memory;
        assert_int_equal(setjmp(out_of_memory), 0);
        check_op(&arena, row);
        arena_free(&arena);
    }
}

// ---- Equal algebra becomes the same node

static void equal_algebra(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena, 0);
    jmp_buf out_of_memory;
    arena.fail = &out_of_memory;
    assert_int_equal(setjmp(out_of_memory), 0);
    Module *m = module_new(&arena, "algebra");
    AxisId s = module_axis(m, "s", AXIS_ROW, 4), d = module_axis(m, "d", AXIS_WIDE, 8);
    Func *f = module_func(m, "loss");
    Builder b = {.m = m, .f = f, .layer = -1};
    AxisId both[] = {s, d};
    Ref x = ir_input(&b, "x", type_make(m, DT_F32, 2, both)),
        y = ir_input(&b, "y", type_make(m, DT_F32, 2, both));
    Ref r = ir_input(&b, "r", type_make(m, DT_F32, 1, &s));
    Ref one = ir_const(&b, 1), zero = ir_const(&b, 0);
    const Ref pairs[][2] = {
        {ir_mul(&b, x, one), x},
        {ir_add(&b, zero, x), x},
        {ir_mul(&b, x, y), ir_mul(&b, y, x)},
        {ir_reduce(&b, OP_sum, ir_mul(&b, x, r), 1, &d), ir_mul(&b, r, ir_reduce(&b, OP_sum, x, 1, &d))},
        {ir_neg(&b, ir_neg(&b, x)), x},
        {ir_mul(&b, ir_mul(&b, x, r), r), ir_mul(&b, x, ir_mul(&b, r, r))},
        {ir_sub(&b, x, ir_neg(&b, y)), ir_add(&b, y, x)},
        {ir_mul(&b, ir_const(&b, 2), ir_const(&b, 3)), ir_const(&b, 6)},
    };
    for (size_t i = 0; i < COUNT_OF(pairs); i++)
        for (int k = 0; k < 2; k++)
            vec_push(&arena, &f->outputs, ((NamedRef){arena_format(&arena, "o%zu.%d", i, k), pairs[i][k]}));
    PassOptions o = test_pass_options();
    pass_simplify(m, &o);
    ir_verify(m, "simplify");
    f = m->funcs.at[0];
    for (uint32_t i = 0; i < f->outputs.n; i += 2)
        if (f->outputs.at[i].ref != f->outputs.at[i + 1].ref)
            fail_msg("pair %u: not the same value", i / 2);
    arena_free(&arena);
}

static void dots_merge(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena, 0);
    jmp_buf out_of_memory;
    arena.fail = &out_of_memory;
    assert_int_equal(setjmp(out_of_memory), 0);
    Module *m = test_trace(&arena, "pre_ln", micro_shape, 2, 4, NULL);
    PassOptions o = test_pass_options();
    pass_simplify(m, &o);
    pass_autodiff(m, &o);
    pass_expand(m, &o);
    pass_simplify2(m, &o);
    Func *f = module_find_func(m, "micro");
    int dots = 0, heads = 0;
    for (uint32_t i = 1; i < f->nodes.n; i++) {
        dots += f->nodes.at[i].op == OP_dot;
        heads += f->nodes.at[i].op == OP_head_loss;
    }
    assert_int_equal(dots, 2 * 4 * 3); // qkv, out, gate+up, down: forward, input and weight gradients
    assert_int_equal(heads, 0);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_ops),
        cmocka_unit_test(gradients_of_models),
        cmocka_unit_test(equal_algebra),
        cmocka_unit_test(dots_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
