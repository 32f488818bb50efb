// Every MAP op of the table as the kernels compute it, against libm in double: along a wide axis, for several
// small elements, for one number; over the whole range of f32, at infinities, zeros and what is not a number.
// bf16 casts.
#include "ir/math_words.h"
#include "tests/kernel_case.h"
#include "tests/support.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants the headers above first
#include <cmocka.h>

enum { WIDE = 1003, ROWS = 64, SMALL = 21 }; // a part vector; more than one vector of small elements

// Error in units in the last place of f32 at the exact value.
static double ulps(double got, double want) {
    float near = (float)want;
    if (isnan(got) && isnan(want))
        return 0;
    if (isinf(near) || isinf(got))
        return got == (double)near ? 0 : INFINITY;
    int e;
    frexp(fmax(fabs(want), 0x1p-126), &e);
    return fabs(got - want) / ldexp(1, e - 24);
}

// Bounds in units in the last place; silu_grad crosses zero, so its bound is absolute
// (1e-6); silu multiplies by a sigmoid that has few bits left below 2^-126.
static double bound_of(const char *op) {
    static const struct {
        const char *name;
        double bound;
    } bounds[] = {{"exp", 1},     {"log", 1},  {"tanh", 1.5}, {"sigmoid", 2.5}, {"silu", 3.5},
                  {"rsqrt", 1.5}, {"sin", .6}, {"cos", .6},   {"pow", .6}};
    for (size_t i = 0; i < COUNT_OF(bounds); i++)
        if (!strcmp(bounds[i].name, op))
            return bounds[i].bound;
    return 0.5;
}

// clang-format off
static double exact(int op, double a, double b, double c) {
    (void)b, (void)c;
    switch (op) {
#define EXACT_MAP(name, math) case OP_##name: return math;
#define EXACT_REDUCE(name, math)
#define EXACT_VIEW(name, math)
#define EXACT_DOT(name, math)
#define EXACT_ATTN(name, math)
#define EXACT_GATHER(name, math)
#define EXACT_HEAD(name, math)
#define EXACT_DATA(name, math)
#define OP(name, cls, arity, math, grad, cost, test, doc) EXACT_##cls(name, math)
#include "ir/ops.def"
    default: return NAN;
    }
}
// clang-format on

// A kernel of one op over operands a, b, c of the axes given after b.
static char *op_text(int op, const char *axes, const char *type) {
    char *out = malloc(1024), names[32] = "", operands[128] = "";
    assert_non_null(out);
    for (int i = 0; i < op_info[op].n_in; i++) {
        sprintf(names + strlen(names), "%s%%%c", i ? ", " : "", 'a' + i);
        sprintf(operands + strlen(operands), "%s%%%c: %s", i ? ", " : "", 'a' + i, type);
    }
    sprintf(
        out,
        "module t layers 0\naxis r row %d\n%s\nkernel op rows r (%s)\n  %%1 = %s %s : %s\n  return y = %%1\nend\n",
        ROWS, axes, operands, op_info[op].name, names, type);
    return out;
}

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

// Number i of operand k: every pair of special values first, then random bits, then moderate values.
static double operand(int k, int64_t i) {
    static const float special[] = {0.0f,  -0.0f,     1.0f,       -1.0f,       INFINITY, -INFINITY,
                                    NAN,   0x1p-149f, -0x1p-130f, 0x1p-126f,   2.0f,     -3.0f,
                                    0.5f,  88.7228f,  88.73f,     -87.4f,      -103.9f,  -104.1f,
                                    1e30f, -1e30f,    0x1p23f,    -8388607.5f, 0.625f,   3.4028235e38f};
    enum { N = COUNT_OF(special) };
    if (i < N * N)
        return (double)special[k == 0 ? i % N : k == 1 ? i / N : (i / N + i) % N];
    double u = test_uniform(7 + (uint64_t)k, (uint64_t)i);
    if (i % 2)
        return (double)(float)(u * (i % 4 == 1 ? 4 : 100));
    return (double)from_bits((uint32_t)(int64_t)((u + 1) * 0x1p31));
}

static void fill(KernelCase *c, int64_t inner) {
    for (int k = 0; k < c->n_in; k++)
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t i = 0; i < inner; i++)
                kernel_set(&c->array[k], r, i, operand(k, r * inner + i));
}

static void check_op(int op, const KernelCase *c, int64_t inner) {
    const char *name = op_info[op].name;
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t i = 0; i < inner; i++) {
            double x[3] = {0};
            for (int k = 0; k < c->n_in; k++)
                x[k] = kernel_get(&c->array[k], r, i);
            double got = kernel_get(&c->array[c->n_in], r, i), want = exact(op, x[0], x[1], x[2]);
            double absolute = !strcmp(name, "silu_grad") ? 1e-6 : !strcmp(name, "silu") ? 0x1p-141 : 0;
            if (fabs(got - want) <= absolute)
                continue;
            if (!(ulps(got, want) <= bound_of(name)))
                fail_msg("%s(%.9g, %.9g, %.9g) = %.9g, expected %.9g: %.2f units", name, x[0], x[1], x[2],
                         got, want, ulps(got, want));
        }
}

static void test_map_ops(void **state) {
    (void)state;
    for (int op = 1; op < N_OPS; op++) {
        if (op_info[op].cls != CLASS_MAP)
            continue;
        KernelCase wide, small, one;
        char axes[64];
        sprintf(axes, "axis d wide %d\n", WIDE);
        char *w = op_text(op, axes, "f32[r,d]");
        sprintf(axes, "axis n small %d\n", SMALL);
        char *s = op_text(op, axes, "f32[r,n]"), *o = op_text(op, "", "f32[r]");
        kernel_open(&wide, w, 0, NULL);
        kernel_open(&small, s, 0, NULL);
        kernel_open(&one, o, 0, NULL);
        fill(&wide, WIDE);
        fill(&small, SMALL);
        fill(&one, 1);
        kernel_run(&wide, 3);
        kernel_run(&small, 3);
        kernel_run(&one, 3);
        check_op(op, &wide, WIDE);
        const unsigned char *all =
            wide.array[wide.n_in].at; // the same numbers in the same order: the same bits
        if (memcmp(all, small.array[small.n_in].at, ROWS * SMALL * 4) ||
            memcmp(all, one.array[one.n_in].at, ROWS * 4))
            fail_msg("%s: numbers and vectors differ", op_info[op].name);
        kernel_close(&wide);
        kernel_close(&small);
        kernel_close(&one);
        free(w);
        free(s);
        free(o);
    }
}

static void test_bf16_rounding(void **state) {
    (void)state;
    static const char *const types[][2] = {{"axis d wide 37\n", "r,d"}, {"axis d small 32\n", "r,d"}};
    static const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x7f7fffff, 0xff7f8000,
                                    0x7f800001, 0xffffffff, 0x7f800000, 0x00008000, 0x00018000, 0x80000001};
    for (size_t t = 0; t < COUNT_OF(types); t++) {
        char text[512];
        KernelCase c;
        sprintf(
            text,
            "module t layers 0\naxis r row %d\n%s\nkernel k rows r (%%a: f32[%s])\n  %%1 = cast %%a : bf16[%s]\n"
            "  %%2 = cast %%1 : f32[%s]\n  return y = %%1\n  return z = %%2\nend\n",
            ROWS, types[t][0], types[t][1], types[t][1], types[t][1]);
        kernel_open(&c, text, 0, NULL);
        int64_t inner = c.array[0].pitch;
        for (int64_t i = 0; i < ROWS * inner; i++)
            ((uint32_t *)c.array[0].at)[i] =
                i < (int64_t)COUNT_OF(bits)
                    ? bits[i]
                    : (uint32_t)(int64_t)((test_uniform(3, (uint64_t)i) + 1) * 0x1p31);
        kernel_run(&c, 2);
        for (int64_t i = 0; i < ROWS * inner; i++) {
            double x = kernel_get(&c.array[0], 0, i), want = isnan(x) ? NAN : round_bf16(x);
            double y = kernel_get(&c.array[1], 0, i), z = kernel_get(&c.array[2], 0, i);
            if (isnan(want) ? !isnan(y) || !isnan(z) : y != want || z != want)
                fail_msg("bf16 of %a (element %lld): %a, %a, expected %a", x, (long long)i, y, z, want);
        }
        kernel_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_map_ops), cmocka_unit_test(test_bf16_rounding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
