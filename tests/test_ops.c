// Each row of ops.def: values of the evaluator against formulas written here with named indices, gradients
// against finite differences. A row without a TEST domain, or a composite without a case below, fails.
#include "tests/support.h"
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct Domain {
    double low, high;
    bool integer, own;
} Domain;

// clang-format off
#define R(low, high) {low, high, false, false}
#define I(n) {0, n, true, false}
#define T(name) {0, 0, false, true}
#define TEST(...) {__VA_ARGS__}
static const struct Row { Op op; const char *name; OpClass cls; int n_in; Domain domain[3]; } rows[] = {
#define OP(name, cls, arity, math, grad, cost, test, doc) {OP_##name, #name, CLASS_##cls, arity, test},
#include "ir/ops.def"
};
#undef R
#undef I
#undef T
#undef TEST
// clang-format on

// ---- A module with axes of every kind

typedef struct Bench {
    Arena arena;
    jmp_buf out_of_memory;
    Module *m;
    Builder k;
    AxisId b, s, h, g, r, n, m2, t, p, d, e, half, q, v;
    int n_params;
} Bench;

static Bench *bench_open(const char *func) {
    Bench *x = calloc(1, sizeof *x);
    assert_non_null(x);
    arena_init(&x->arena, 0);
    x->arena.fail = &x->out_of_memory;
    Module *m = x->m = module_new(&x->arena, "ops");
    x->b = module_axis(m, "b", AXIS_ROW, 2);
    x->s = module_axis(m, "s", AXIS_ROW, 3);
    x->h = module_axis(m, "h", AXIS_ROW, 4);
    x->g = module_axis(m, "g", AXIS_ROW, 2);
    x->r = module_axis(m, "r", AXIS_ROW, 6);
    x->n = module_axis(m, "n", AXIS_SMALL, 3);
    x->m2 = module_axis(m, "m", AXIS_SMALL, 3);
    x->t = module_axis(m, "t", AXIS_SMALL, 4);
    x->p = module_axis(m, "p", AXIS_SMALL, 2);
    x->d = module_axis(m, "d", AXIS_WIDE, 6);
    x->e = module_axis(m, "e", AXIS_WIDE, 6);
    x->half = module_axis(m, "half", AXIS_WIDE, 3);
    x->q = module_axis(m, "q", AXIS_WIDE, 5);
    x->v = module_axis(m, "v", AXIS_WIDE, 7);
    x->k = (Builder){.m = m, .f = module_func(m, func), .layer = -1};
    return x;
}

static void bench_close(Bench *x) {
    arena_free(&x->arena);
    free(x);
}

#define TYPE(x, dtype, ...)                                                                                  \
    type_make((x)->m, dtype, (int)(sizeof((AxisId[]){__VA_ARGS__}) / sizeof(AxisId)),                        \
              (const AxisId[]){__VA_ARGS__})

static Ref bench_param(Bench *x, Type t) {
    Param p = {.name = arena_format(&x->arena, "p%d", x->n_params++),
               .file = t,
               .type = t,
               .decay = true,
               .trained = true,
               .owner = -1,
               .role = ""};
    vec_push(&x->arena, &x->m->params, p);
    return ir_param(&x->k, (int32_t)x->m->params.n - 1);
}

static void bench_output(Bench *x, const char *name, Ref r) {
    assert_true(r != 0);
    vec_push(&x->arena, &x->k.f->outputs, ((NamedRef){name, r}));
}

// The sum of w * r with different weights everywhere is the loss.
static void bench_loss(Bench *x, Ref r) {
    Type t = node_at(x->k.f, r)->type;
    Ref w = ir_const(&x->k, 0.9);
    for (int i = 0; i < t.rank; i++)
        w = ir_cos(&x->k, ir_add(&x->k, ir_mul(&x->k, w, ir_const(&x->k, 2.3)), ir_iota(&x->k, t.axis[i])));
    bench_output(x, "loss", ir_reduce(&x->k, OP_sum, ir_mul(&x->k, r, w), t.rank, t.axis));
}

// ---- Named indices: at[axis]

static double value_at(const Module *m, const Tensor *x, const int64_t *at) {
    int64_t offset = 0;
    for (int i = 0; i < x->type.rank; i++)
        offset = offset * m->axes.at[x->type.axis[i]].size + at[x->type.axis[i]];
    return x->at[offset];
}

static bool index_next(const Module *m, const Type *t, int64_t *at) {
    for (int i = t->rank - 1; i >= 0; i--) {
        if (++at[t->axis[i]] < m->axes.at[t->axis[i]].size)
            return true;
        at[t->axis[i]] = 0;
    }
    return false;
}

#define EACH(m, type, at) for (bool more_##at = true; more_##at; more_##at = index_next(m, &(type), at))

static void same_value(const char *what, double have, double want) {
    if (!(fabs(have - want) <= 1e-13 * fmax(1, fabs(want))))
        fail_msg("%s: %.17g, not %.17g", what, have, want);
}

// ---- MAP

static double formula(Op op, double a, double b, double c) {
    switch ((int)op) { // the same functions in other words than ops.def
    case OP_add:
        return b + a;
    case OP_sub:
        return -(b - a);
    case OP_mul:
        return b * a;
    case OP_div:
        return a * (1 / b);
    case OP_neg:
        return 0 - a;
    case OP_min:
        return fmin(a, b);
    case OP_max:
        return fmax(a, b);
    case OP_lt:
        return a < b;
    case OP_eq:
        return !(a < b || b < a);
    case OP_select:
        return fabs(a) > 0 ? b : c;
    case OP_abs:
        return sqrt(a * a);
    case OP_exp:
        return pow(2.718281828459045235, a);
    case OP_log:
        return log2(a) * 0.6931471805599453094;
    case OP_tanh:
        return -expm1(-2 * a) / (1 + exp(-2 * a));
    case OP_sigmoid:
        return 0.5 + 0.5 * tanh(a / 2);
    case OP_silu:
        return a / (1 + exp(-a));
    case OP_silu_grad:
        return 1 / (1 + exp(-a)) + a * exp(-a) / ((1 + exp(-a)) * (1 + exp(-a)));
    case OP_sqrt:
        return pow(a, 0.5);
    case OP_rsqrt:
        return pow(a, -0.5);
    case OP_sin:
        return cos(a - 1.5707963267948966192);
    case OP_cos:
        return sin(a + 1.5707963267948966192);
    case OP_floor:
        return rint(a - 0.5);
    case OP_pow:
        return exp(b * log(a));
    default:
        return NAN;
    }
}

static double draw(const Domain *d, uint64_t seed, uint64_t i) {
    double u = (test_uniform(seed, i) + 1) / 2;
    return d->integer ? floor(u * d->high) : d->low + u * (d->high - d->low);
}

static bool has_domain(const Domain *d) {
    return d->high > d->low || d->integer;
}

// Operands of many axes against each other: whole, rows alone, small and wide alone, numbers.
static void map_values(void **state) {
    (void)state;
    Bench *x = bench_open("f");
    const Type patterns[] = {TYPE(x, DT_F32, x->b, x->s, x->n, x->d),
                             TYPE(x, DT_F32, x->b, x->s),
                             TYPE(x, DT_F32, x->n, x->d),
                             TYPE(x, DT_F32, x->d),
                             {.dtype = DT_F32}};
    enum { N = COUNT_OF(patterns) };
    for (size_t row = 0; row < COUNT_OF(rows); row++) {
        for (int k = 0; rows[row].cls == CLASS_MAP && k < N * N; k++) {
            Module *m = x->m;
            x->k.f = module_func(m, rows[row].name);
            Ref in[3];
            for (int i = 0; i < rows[row].n_in; i++)
                in[i] = ir_input(&x->k, arena_format(&x->arena, "x%d", i),
                                 patterns[i == 0   ? k % N
                                          : i == 1 ? k / N
                                                   : (k + k / N) % N]);
            bench_output(x, "y", ir_map(&x->k, rows[row].op, in));
            TestEnv e;
            test_env(&e, &x->arena, m, x->k.f, 2, 1);
            Tensor v[3];
            for (int i = 0; i < rows[row].n_in; i++) {
                v[i] = (Tensor){node_at(x->k.f, in[i])->type, e.inputs.at[i]};
                for (int64_t j = 0, n = type_count(m, &v[i].type); j < n; j++)
                    v[i].at[j] = draw(&rows[row].domain[i], (uint64_t)i, (uint64_t)j);
            }
            Tensor *y = test_eval(&x->arena, m, x->k.f, &e);
            int64_t at[MAX_AXES] = {0};
            EACH(m, y->type, at) {
                double o[3] = {0};
                for (int i = 0; i < rows[row].n_in; i++)
                    o[i] = value_at(m, &v[i], at);
                same_value(rows[row].name, value_at(m, y, at), formula(rows[row].op, o[0], o[1], o[2]));
            }
        }
    }
    bench_close(x);
}

// ---- REDUCE: every set of axes of a value

static void reduce_values(void **state) {
    (void)state;
    Bench *x = bench_open("f");
    Module *m = x->m;
    Type t = TYPE(x, DT_F32, x->b, x->s, x->n, x->d);
    Ref in = ir_input(&x->k, "x", t);
    for (int set = 1; set < 32; set++) {
        AxisId axes[4];
        int n = 0;
        for (int i = 0; i < 4; i++)
            if (set >> i & 1)
                axes[n++] = t.axis[i];
        if (n)
            bench_output(x, arena_format(&x->arena, "o%d", set),
                         ir_reduce(&x->k, set & 16 ? OP_rmax : OP_sum, in, n, axes));
        else
            bench_output(x, "whole", in);
    }
    TestEnv e;
    test_env(&e, &x->arena, m, x->k.f, 2, 1);
    Tensor v = {t, e.inputs.at[0]}, *y = test_eval(&x->arena, m, x->k.f, &e);
    for (int set = 1; set < 32; set++) {
        int64_t out[MAX_AXES] = {0};
        if (set == 16)
            continue;
        EACH(m, y[set - 1].type, out) {
            Type over = {.rank = 0};
            int64_t at[MAX_AXES];
            memcpy(at, out, sizeof at);
            double want = set & 16 ? -INFINITY : 0;
            for (int i = 0; i < 4; i++)
                if (set >> i & 1)
                    over.axis[over.rank++] = t.axis[i];
            EACH(m, over, at)
            want = set & 16 ? fmax(want, value_at(m, &v, at)) : want + value_at(m, &v, at);
            same_value("reduce", value_at(m, &y[set - 1], out), want);
        }
    }
    bench_close(x);
}

// ---- VIEW: where each element comes from

typedef struct ViewCase {
    Ref ref;
    AxisId from, to; // the index `to` of the result, plus k, is the index `from` of the operand
    int32_t k;
} ViewCase;

static void view_values(void **state) {
    (void)state;
    Bench *x = bench_open("f");
    Module *m = x->m;
    Builder *k = &x->k;
    Type t = TYPE(x, DT_F32, x->b, x->s, x->n, x->d);
    Ref in = ir_input(k, "x", t);
    const ViewCase cases[] = {{ir_rename(k, in, x->n, x->m2), x->n, x->m2, 0},
                              {ir_rename(k, in, x->d, x->e), x->d, x->e, 0},
                              {ir_slice(k, in, x->d, x->half, 2), x->d, x->half, 2},
                              {ir_slice(k, in, x->n, x->p, 1), x->n, x->p, 1},
                              {ir_slice(k, in, x->n, AXIS_NONE, 2), x->n, AXIS_NONE, 2},
                              {ir_slice(k, in, x->d, AXIS_NONE, 5), x->d, AXIS_NONE, 5},
                              {ir_slice(k, in, x->s, AXIS_NONE, 1), x->s, AXIS_NONE, 1},
                              {ir_cast(k, ir_cast(k, in, DT_BF16), DT_F32), x->d, x->d, 0}};
    enum { N = COUNT_OF(cases) };
    for (size_t i = 0; i < N; i++)
        bench_output(x, arena_format(&x->arena, "o%zu", i), cases[i].ref);
    AxisId halves[] = {x->p, x->half}, batch[] = {x->b, x->s};
    Ref split = ir_split(k, in, x->d, 2, halves), parts[] = {ir_slice(k, in, x->n, AXIS_NONE, 1), in};
    bench_output(x, "split", split);
    bench_output(x, "merge", ir_merge(k, split, 2, halves, x->e));
    bench_output(x, "rows", ir_merge(k, in, 2, batch, x->r));
    bench_output(x, "concat", ir_concat(k, x->t, 2, parts, (AxisId[]){AXIS_NONE, x->n}));
    TestEnv e;
    test_env(&e, &x->arena, m, x->k.f, 2, 1);
    Tensor v = {t, e.inputs.at[0]}, *y = test_eval(&x->arena, m, k->f, &e);
    for (int64_t i = 0, n = type_count(m, &t); i < n; i++)
        v.at[i] = round_bf16(v.at[i]);
    y = test_eval(&x->arena, m, k->f, &e);
    for (size_t i = 0; i < N + 4; i++) {
        int64_t out[MAX_AXES] = {0}, at[MAX_AXES];
        EACH(m, y[i].type, out) {
            memcpy(at, out, sizeof at);
            if (i < N)
                at[cases[i].from] = cases[i].k + (cases[i].to == AXIS_NONE ? 0 : out[cases[i].to]);
            else if (i == N) // split
                at[x->d] = out[x->p] * 3 + out[x->half];
            else if (i == N + 1) // merge
                at[x->d] = out[x->e];
            else if (i == N + 2) // rows
                at[x->b] = out[x->r] / 3, at[x->s] = out[x->r] % 3;
            else // concat
                at[x->n] = out[x->t] ? out[x->t] - 1 : 1;
            same_value(k->f->outputs.at[i].name, value_at(m, &y[i], out), value_at(m, &v, at));
        }
    }
    bench_close(x);
}

static void made_values(void **state) {
    (void)state;
    Bench *x = bench_open("f");
    Module *m = x->m;
    Builder *k = &x->k;
    Ref ids = ir_input(k, "ids", TYPE(x, DT_I32, x->b, x->s));
    bench_output(x, "one_hot", ir_one_hot(k, ids, x->v));
    bench_output(x, "iota", ir_iota(k, x->d));
    bench_output(x, "const", ir_fill(k, 2.5, x->n));
    bench_output(x, "constant", ir_constant(k, ir_exp(k, ir_iota(k, x->n))));
    bench_output(x, "stop_grad", ir_stop_grad(k, ir_cast(k, ids, DT_F32)));
    bench_output(x, "floor", ir_cast(k, ir_mul(k, ir_cast(k, ids, DT_F32), ir_const(k, -0.5)), DT_I32));
    TestEnv e;
    test_env(&e, &x->arena, m, k->f, 7, 1);
    Tensor v = {node_at(k->f, ids)->type, e.inputs.at[0]}, *y = test_eval(&x->arena, m, k->f, &e);
    for (int i = 0; i < 6; i++) {
        int64_t at[MAX_AXES] = {0};
        EACH(m, y[i].type, at) {
            double id = value_at(m, &v, at);
            const double want[] = {id == (double)at[x->v], (double)at[x->d], 2.5, exp((double)at[x->n]), id,
                                   trunc(-0.5 * id)};
            same_value(k->f->outputs.at[i].name, value_at(m, &y[i], at), want[i]);
        }
    }
    bench_close(x);
}

static void rounding(void **state) {
    (void)state;
    static const double cases[][2] = {
        {1 + 0x1p-8, 1},              // a tie goes to the even neighbour, below
        {1 + 3 * 0x1p-8, 1 + 0x1p-6}, // and above
        {1 + 0x1p-8 + 0x1p-20, 1 + 0x1p-7},
        {-1 - 0x1p-8, -1},
        {3.4e38, INFINITY},
        {0x1.fep127, 0x1.fep127},
        {0x1p-133, 0x1p-133}, // the smallest that is not 0
        {0x1p-135, 0},
        {0, 0},
        {-INFINITY, -INFINITY},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_true(round_bf16(cases[i][0]) == cases[i][1]);
    assert_true(isnan(round_bf16(NAN)));
}

// ---- DOT

static void dot_values(void **state) {
    (void)state;
    Bench *x = bench_open("f");
    Module *m = x->m;
    const Type pairs[][2] = {
        {TYPE(x, DT_F32, x->b, x->s, x->d), TYPE(x, DT_F32, x->q, x->d)},       // product with a weight
        {TYPE(x, DT_F32, x->b, x->s, x->q), TYPE(x, DT_F32, x->q, x->d)},       // its gradient to the input
        {TYPE(x, DT_F32, x->b, x->s, x->q), TYPE(x, DT_F32, x->b, x->s, x->d)}, // and to the weight
        {TYPE(x, DT_F32, x->b, x->s, x->n, x->d), TYPE(x, DT_F32, x->t, x->d)},
        {TYPE(x, DT_F32, x->b, x->s, x->n, x->d), TYPE(x, DT_F32, x->n, x->d)},
        {TYPE(x, DT_F32, x->n), TYPE(x, DT_F32, x->b, x->n, x->m2)},
        {TYPE(x, DT_F32, x->d), TYPE(x, DT_F32, x->d)},
    };
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        x->k.f = module_func(m, arena_format(&x->arena, "f%zu", i));
        Ref a = ir_input(&x->k, "a", pairs[i][0]), b = ir_input(&x->k, "b", pairs[i][1]);
        bench_output(x, "y", ir_dot(&x->k, a, b));
        TestEnv e;
        test_env(&e, &x->arena, m, x->k.f, 2, 1);
        Tensor va = {pairs[i][0], e.inputs.at[0]}, vb = {pairs[i][1], e.inputs.at[1]};
        Tensor *y = test_eval(&x->arena, m, x->k.f, &e);
        int64_t out[MAX_AXES] = {0};
        Type shared = {.rank = 0};
        for (int k = 0; k < va.type.rank; k++)
            if (type_has(&vb.type, va.type.axis[k]))
                shared.axis[shared.rank++] = va.type.axis[k];
        assert_int_equal(y->type.rank, va.type.rank + vb.type.rank - 2 * shared.rank);
        EACH(m, y->type, out) {
            double want = 0;
            int64_t at[MAX_AXES];
            memcpy(at, out, sizeof at);
            EACH(m, shared, at)
            want += value_at(m, &va, at) * value_at(m, &vb, at);
            same_value("dot", value_at(m, y, out), want);
        }
    }
    bench_close(x);
}

// ---- ATTN

static void attention_values(void **state) {
    (void)state;
    Bench *x = bench_open("f");
    Module *m = x->m;
    Type tq = TYPE(x, DT_F32, x->b, x->s, x->h, x->p, x->half),
         tk = TYPE(x, DT_F32, x->b, x->s, x->g, x->p, x->half);
    Ref q = ir_input(&x->k, "q", tq), k = ir_input(&x->k, "k", tk), v = ir_input(&x->k, "v", tk);
    Ref o = ir_attention(&x->k, q, k, v, 0.7);
    bench_output(x, "o", o);
    bench_output(x, "lse", o + 1);
    TestEnv e;
    test_env(&e, &x->arena, m, x->k.f, 2, 1);
    const double *qa = e.inputs.at[0], *ka = e.inputs.at[1], *va = e.inputs.at[2];
    Tensor *y = test_eval(&x->arena, m, x->k.f, &e);
    enum { S = 3, H = 4, G = 2, W = 6 }; // two query heads share a key head; W = p * half
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < S; s++)
            for (int h = 0; h < H; h++) {
                double sum = 0, out[W] = {0};
                int row = (b * S + s) * H + h;
                for (int u = 0; u <= s; u++) { // without a maximum: scores are small here
                    double score = 0;
                    int key = ((b * S + u) * G + h / 2) * W;
                    for (int w = 0; w < W; w++)
                        score += qa[row * W + w] * ka[key + w];
                    sum += exp(0.7 * score);
                    for (int w = 0; w < W; w++)
                        out[w] += exp(0.7 * score) * va[key + w];
                }
                for (int w = 0; w < W; w++)
                    same_value("attention", y[0].at[row * W + w], out[w] / sum);
                same_value("lse", y[1].at[row], log(sum));
            }
    bench_close(x);
}

// ---- GATHER, HEAD

static void gather_values(void **state) {
    (void)state;
    Bench *x = bench_open("f");
    Module *m = x->m;
    Ref ids = ir_input(&x->k, "ids", TYPE(x, DT_I32, x->b, x->s)),
        table = ir_input(&x->k, "table", TYPE(x, DT_F32, x->v, x->d)),
        rows_in = ir_input(&x->k, "rows", TYPE(x, DT_F32, x->b, x->s, x->d));
    bench_output(x, "gather", ir_gather(&x->k, table, ids));
    bench_output(x, "scatter_sum", ir_scatter_sum(&x->k, rows_in, ids, x->v));
    TestEnv e;
    test_env(&e, &x->arena, m, x->k.f, 7, 3);
    Tensor *y = test_eval(&x->arena, m, x->k.f, &e);
    double sums[7][6] = {{0}};
    for (int r = 0; r < 6; r++)
        for (int d = 0; d < 6; d++) {
            int id = (int)e.inputs.at[0][r];
            same_value("gather", y[0].at[r * 6 + d], e.inputs.at[1][id * 6 + d]);
            sums[id][d] += e.inputs.at[2][r * 6 + d];
        }
    for (int i = 0; i < 42; i++)
        same_value("scatter_sum", y[1].at[i], sums[i / 6][i % 6]);
    for (int bad = 0; bad < 2; bad++) {
        e.inputs.at[0][4] = bad ? 7 : -1;
        Env env = test_env_of(&e);
        Tensor out[2];
        Status s = interp_run(&x->arena, m, x->k.f, &env, false, out);
        assert_int_equal(s.code, EXIT_REQUEST);
        assert_non_null(strstr(s.text, "outside of the vocabulary of 7"));
    }
    bench_close(x);
}

static void head_values(void **state) {
    (void)state;
    Bench *x = bench_open("f");
    Module *m = x->m;
    Ref in = ir_input(&x->k, "x", TYPE(x, DT_F32, x->b, x->s, x->d)),
        w = ir_input(&x->k, "w", TYPE(x, DT_F32, x->v, x->d)),
        targets = ir_input(&x->k, "targets", TYPE(x, DT_I32, x->b, x->s)),
        inv = ir_input(&x->k, "inv_tokens", (Type){.dtype = DT_F32}),
        g = ir_input(&x->k, "g", TYPE(x, DT_F32, x->s));
    bench_output(x, "loss", ir_head_loss(&x->k, in, w, targets, inv));
    Ref grad = ir_head_loss_grad(&x->k, in, w, targets, inv, g);
    bench_output(x, "loss2", grad);
    bench_output(x, "dx", grad + 1);
    bench_output(x, "dw", grad + 2);
    TestEnv e;
    test_env(&e, &x->arena, m, x->k.f, 7, 3);
    e.inputs.at[2][1] = -1; // does not count
    Tensor *y = test_eval(&x->arena, m, x->k.f, &e);
    double dw[7][6] = {{0}};
    for (int r = 0; r < 6; r++) {
        double sum = 0, p[7], dx[6] = {0};
        int target = (int)e.inputs.at[2][r];
        for (int v = 0; v < 7; v++) {
            double logit = 0;
            for (int d = 0; d < 6; d++)
                logit += e.inputs.at[0][r * 6 + d] * e.inputs.at[1][v * 6 + d];
            sum += p[v] = exp(logit);
        }
        double loss = target < 0 ? 0 : -log(p[target] / sum) / 16;
        same_value("head_loss", y[0].at[r], loss);
        same_value("head_loss_grad", y[1].at[r], loss);
        for (int v = 0; v < 7; v++) {
            double dl = target < 0 ? 0 : e.inputs.at[4][r % 3] / 16 * (p[v] / sum - (v == target));
            for (int d = 0; d < 6; d++) {
                dx[d] += dl * e.inputs.at[1][v * 6 + d];
                dw[v][d] += dl * e.inputs.at[0][r * 6 + d];
            }
        }
        for (int d = 0; d < 6; d++)
            same_value("head_loss_grad dx", y[2].at[r * 6 + d], dx[d]);
    }
    for (int i = 0; i < 42; i++)
        same_value("head_loss_grad dw", y[3].at[i], dw[i / 6][i % 6]);
    e.inputs.at[2][1] = 7;
    Env env = test_env_of(&e);
    assert_int_equal(interp_run(&x->arena, m, x->k.f, &env, false, y).code, EXIT_REQUEST);
    bench_close(x);
}

// ---- Gradients

// loss = sum(w * op(params)); the gradient of each element of each operand against central differences.
static void check_map_gradient(const struct Row *row) {
    Bench *x = bench_open("loss");
    Module *m = x->m;
    Ref in[3];
    for (int i = 0; i < row->n_in; i++) // the second operand is broadcast
        in[i] = bench_param(x, i == 1 ? TYPE(x, DT_F32, x->d) : TYPE(x, DT_F32, x->n, x->d));
    bench_loss(x, row->cls == CLASS_MAP ? ir_map(&x->k, row->op, in)
                                        : ir_reduce(&x->k, row->op, in[0], 1, &x->d));
    PassOptions o = test_pass_options();
    pass_autodiff(m, &o);
    ir_verify(m, row->name);
    TestEnv e;
    Func *micro = module_find_func(m, "micro"), *eval = module_find_func(m, "eval");
    test_env(&e, &x->arena, m, micro, 2, 1);
    for (int i = 0; i < row->n_in; i++)
        for (int64_t k = 0, n = type_count(m, &m->params.at[i].type); k < n; k++)
            e.param[i][k] = draw(&row->domain[i], 7 + (uint64_t)i, (uint64_t)k);
    Tensor *g = test_eval(&x->arena, m, micro, &e);
    for (int i = 0; i < row->n_in; i++) {
        if (row->domain[i].integer) // a step: its derivative is 0 wherever it has one
            continue;
        for (int64_t k = 0, n = type_count(m, &m->params.at[i].type); k < n; k++) {
            double step = 1e-6, at = e.param[i][k], side[2];
            for (int s = 0; s < 2; s++) {
                e.param[i][k] = at + (s ? -step : step);
                side[s] = test_eval(&x->arena, m, eval, &e)[0].at[0];
            }
            e.param[i][k] = at;
            double numeric = (side[0] - side[1]) / (2 * step), got = g[1 + i].at[k];
            if (!(fabs(numeric - got) <= 1e-6 * fmax(1, fabs(got))))
                fail_msg("%s, operand %d, element %lld: gradient %.9g, finite differences %.9g", row->name, i,
                         (long long)k, got, numeric);
        }
    }
    bench_close(x);
}

static void map_gradients(void **state) {
    (void)state;
    for (size_t row = 0; row < COUNT_OF(rows); row++)
        if (rows[row].cls == CLASS_MAP || rows[row].cls == CLASS_REDUCE)
            check_map_gradient(&rows[row]);
}

// A value made of parameters by the composite `op`, variant 0, 1 or 2; 0: no such variant.
static Ref composite(Bench *x, Op op, int variant) {
    Builder *k = &x->k;
    const Type whole = TYPE(x, DT_F32, x->n, x->d);
    const AxisId halves[] = {x->p, x->half};
    const Type ids = TYPE(x, DT_I32, x->b, x->s);
    switch ((int)op) {
    case OP_cast:
        return variant ? 0 : ir_mul(k, bench_param(x, whole), ir_cast(k, ir_input(k, "ids", ids), DT_F32));
    case OP_rename:
        return variant ? ir_rename(k, bench_param(x, whole), x->d, x->e)
                       : ir_rename(k, bench_param(x, whole), x->n, x->m2);
    case OP_split:
        return variant ? 0 : ir_split(k, bench_param(x, whole), x->d, 2, halves);
    case OP_merge:
        return variant ? 0 : ir_merge(k, bench_param(x, TYPE(x, DT_F32, x->p, x->half)), 2, halves, x->e);
    case OP_slice:
        return variant ? ir_slice(k, bench_param(x, whole), x->n, AXIS_NONE, 1)
                       : ir_slice(k, bench_param(x, whole), x->d, x->half, 2);
    case OP_concat: {
        Ref parts[] = {bench_param(x, TYPE(x, DT_F32, x->d)), bench_param(x, whole)};
        return variant ? 0 : ir_concat(k, x->t, 2, parts, (AxisId[]){AXIS_NONE, x->n});
    }
    case OP_one_hot:
        return variant ? 0 : ir_mul(k, bench_param(x, whole), ir_one_hot(k, ir_input(k, "ids", ids), x->v));
    case OP_dot: {
        Ref w = bench_param(x, TYPE(x, DT_F32, x->q, x->d));
        Ref rows_in = ir_gather(k, bench_param(x, TYPE(x, DT_F32, x->v, x->d)), ir_input(k, "ids", ids));
        return ir_dot(k, variant ? bench_param(x, whole) : rows_in, w);
    }
    case OP_attention: {
        Ref table = bench_param(x, TYPE(x, DT_F32, x->v, x->d)), q, kv[2];
        Ref split = ir_split(k, ir_gather(k, table, ir_input(k, "ids", ids)), x->d, 2, halves);
        q = ir_mul(k, split, ir_sin(k, ir_add(k, ir_iota(k, x->h), ir_const(k, 1))));
        for (int i = 0; i < 2; i++)
            kv[i] = ir_mul(k, ir_mul(k, split, bench_param(x, TYPE(x, DT_F32, x->p, x->half))),
                           ir_cos(k, ir_iota(k, x->g)));
        Ref o = ir_attention(k, q, kv[0], kv[1], 0.7);
        return variant == 0 ? o : variant == 1 ? ir_mul(k, o, o + 1) : o + 1; // the gradient of lse, too
    }
    case OP_gather:
        return variant ? 0
                       : ir_gather(k, bench_param(x, TYPE(x, DT_F32, x->v, x->d)), ir_input(k, "ids", ids));
    case OP_head_loss: {
        Ref rows_in = ir_gather(k, bench_param(x, TYPE(x, DT_F32, x->v, x->d)), ir_input(k, "ids", ids));
        return variant ? 0
                       : ir_head_loss(k, rows_in, bench_param(x, TYPE(x, DT_F32, x->v, x->d)),
                                      ir_input(k, "targets", ids),
                                      ir_input(k, "inv_tokens", (Type){.dtype = DT_F32}));
    }
    default:
        return 0;
    }
}

static bool has_gradient(const struct Row *row) {
    switch ((int)row->op) {
    case OP_iota: // no operand
    case OP_attention_grad:
    case OP_scatter_sum:
    case OP_head_loss_grad:
        return false;
    default:
        return row->cls != CLASS_DATA && row->cls != CLASS_MAP && row->cls != CLASS_REDUCE;
    }
}

static void composite_gradients(void **state) {
    (void)state;
    for (size_t row = 0; row < COUNT_OF(rows); row++)
        for (int variant = 0; has_gradient(&rows[row]) && variant < 3; variant++) {
            Bench *x = bench_open("loss");
            Ref y = composite(x, rows[row].op, variant);
            if (y) {
                bench_loss(x, y);
                test_module_gradients(&x->arena, x->m, rows[row].name, 7, 1);
            } else if (!variant)
                fail_msg("op %s has no case in composite()", rows[row].name);
            bench_close(x);
        }
}

static void no_gradient_passes(void **state) {
    (void)state;
    Bench *x = bench_open("loss");
    Ref p = bench_param(x, TYPE(x, DT_F32, x->d));
    bench_loss(x, ir_mul(&x->k, p, ir_stop_grad(&x->k, ir_exp(&x->k, p))));
    PassOptions o = test_pass_options();
    pass_autodiff(x->m, &o);
    TestEnv e;
    Func *micro = module_find_func(x->m, "micro");
    test_env(&e, &x->arena, x->m, micro, 2, 1);
    Tensor *g = test_eval(&x->arena, x->m, micro, &e);
    for (int i = 0; i < 6; i++)
        same_value("stop_grad", g[1].at[i] / exp(e.param[0][i]), cos(0.9 * 2.3 + i));
    bench_close(x);
}

// ---- The table itself

static void rows_have_tests(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct Row *row = &rows[i];
        for (int k = 0; row->cls != CLASS_DATA && k < row->n_in && k < 3 && !row->domain[0].own; k++)
            if (!has_domain(&row->domain[k]))
                fail_msg("op %s: operand %d has no TEST domain", row->name, k);
        if (row->cls == CLASS_MAP && isnan(formula(row->op, 0.5, 0.5, 0.5)))
            fail_msg("op %s has no formula in formula()", row->name);
        assert_string_equal(op_info[row->op].name, row->name);
        assert_true(op_info[row->op].doc[0] != 0);
    }
}

// An input, a parameter or a target that nobody binds is an error that names it; a call runs its callee.
static void unbound_and_calls(void **state) {
    (void)state;
    Bench *x = bench_open("k");
    Type t = TYPE(x, DT_F32, x->b, x->d);
    Func *kernel = x->k.f;
    kernel->is_kernel = true;
    kernel->n_row_axes = 1;
    kernel->row_axes[0] = x->b;
    Ref one = ir_input(&x->k, "one", t), two = ir_input(&x->k, "two", t);
    bench_output(x, "y", ir_sub(&x->k, one, two));
    bench_output(x, "z", ir_reduce(&x->k, OP_sum, two, 1, &x->d));
    x->k.f = module_func(x->m, "f");
    Ref a = ir_input(&x->k, "a", t), in[] = {a, ir_mul(&x->k, a, ir_const(&x->k, 3))};
    Ref call = ir_call(&x->k, 0, 2, in);
    bench_output(x, "y", call);
    bench_output(x, "z", call + 1);
    ir_verify(x->m, "test");
    TestEnv e;
    test_env(&e, &x->arena, x->m, x->k.f, 2, 1);
    Tensor *y = test_eval(&x->arena, x->m, x->k.f, &e);
    for (int r = 0; r < 2; r++) {
        double sum = 0;
        for (int d = 0; d < 6; d++) {
            same_value("call", y[0].at[r * 6 + d], -2 * e.inputs.at[0][r * 6 + d]);
            sum += 3 * e.inputs.at[0][r * 6 + d];
        }
        same_value("call", y[1].at[r], sum);
    }
    e.names.n = 0;
    Env env = test_env_of(&e);
    Status s = interp_run(&x->arena, x->m, x->k.f, &env, false, y);
    assert_int_equal(s.code, EXIT_REQUEST);
    assert_string_equal(s.text, "a has no value");
    bench_close(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_tests),     cmocka_unit_test(map_values),
        cmocka_unit_test(reduce_values),       cmocka_unit_test(view_values),
        cmocka_unit_test(made_values),         cmocka_unit_test(rounding),
        cmocka_unit_test(dot_values),          cmocka_unit_test(attention_values),
        cmocka_unit_test(gather_values),       cmocka_unit_test(head_values),
        cmocka_unit_test(unbound_and_calls),   cmocka_unit_test(map_gradients),
        cmocka_unit_test(composite_gradients), cmocka_unit_test(no_gradient_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
