// Row kernels of the host against the evaluator: wide sizes around the vector length, row counts, strides,
// results in the place of operands, bf16, sums over rows, several wide axes; the same bits from gcc and
// clang.
#include "codegen/codegen.h"
#include "tests/kernel_case.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants the headers above first
#include <cmocka.h>

// ---- Kernels. In the texts $B $S $H are row sizes, $D a wide size.
static const char text_norm[] = // residual and norm; three kinds of sums over rows
    "module t layers 0\naxis b row $B\naxis s row $S\naxis d wide $D\n\n"
    "kernel norm rows b,s (%x: f32[b,s,d], %f: bf16[b,s,d], %w: f32[d], %g: f32[b,s], %s0: f32[])\n"
    "  %1 = cast %f : f32[b,s,d]\n"
    "  %2 = mul %1, %s0 : f32[b,s,d]\n"
    "  %3 = add %x, %2 : f32[b,s,d]\n"
    "  %4 = mul %3, %3 : f32[b,s,d]\n"
    "  %5 = sum.d %4 : f32[b,s]\n"
    "  %6 = add %5, 0x1p-10 : f32[b,s]\n"
    "  %7 = rsqrt %6 : f32[b,s]\n"
    "  %8 = mul %3, %7 : f32[b,s,d]\n"
    "  %9 = mul %8, %w : f32[b,s,d]\n"
    "  %10 = cast %9 : bf16[b,s,d]\n"
    "  %11 = mul %8, %g : f32[b,s,d]\n"
    "  %12 = sum.b.s %11 : f32[d]\n"
    "  %13 = sum.b.s %7 : f32[]\n"
    "  %14 = sum.b.s.d %11 : f32[]\n"
    "  %15 = cast %7 : bf16[b,s]\n"
    "  %16 = mul %x, %7 : f32[b,s,d]\n" // reads x after h was stored
    "  return h = %3\n  return y = %10\n  return r = %7\n  return r16 = %15\n"
    "  return xr = %16\n"
    "  return dw = %12\n  return n = %13\n  return m = %14\nend\n";

static const char
    text_streams[] = // a boundary of hyper-connections: small axes, their views, skinny products
    "module t layers 0\naxis b row $B\naxis s row $S\naxis n small 3\naxis m small 3\naxis t small 4\naxis d wide $D\n\n"
    "kernel mix rows b,s (%x: f32[b,s,n,d], %f: f32[b,s,d], %a: f32[b,s,n,t], %be: f32[b,s,n], %p: f32[t,d], %sa: f32[n,t])\n"
    "  %1 = mul %a, %x : f32[b,s,n,t,d]\n"
    "  %2 = sum.n %1 : f32[b,s,t,d]\n"
    "  %3 = slice.t.m %2 {k=1} : f32[b,s,m,d]\n"
    "  %4 = rename.m.n %3 : f32[b,s,n,d]\n"
    "  %5 = mul %be, %f : f32[b,s,n,d]\n"
    "  %6 = add %4, %5 : f32[b,s,n,d]\n"
    "  %7 = mul %6, %6 : f32[b,s,n,d]\n"
    "  %8 = sum.d %7 : f32[b,s,n]\n"
    "  %9 = add %8, 0x1p-10 : f32[b,s,n]\n"
    "  %10 = rsqrt %9 : f32[b,s,n]\n"
    "  %11 = mul %6, %p : f32[b,s,n,t,d]\n"
    "  %12 = sum.d %11 : f32[b,s,n,t]\n"
    "  %13 = mul %12, %10 : f32[b,s,n,t]\n"
    "  %14 = tanh %13 : f32[b,s,n,t]\n"
    "  %15 = add %14, %sa : f32[b,s,n,t]\n"
    "  %16 = slice.t %15 {k=0} : f32[b,s,n]\n"
    "  %17 = mul %16, %6 : f32[b,s,n,d]\n"
    "  %18 = sum.n %17 : f32[b,s,d]\n"
    "  %19 = rmax.d %18 : f32[b,s]\n"
    "  %20 = sub %18, %19 : f32[b,s,d]\n"
    "  %21 = exp %20 : f32[b,s,d]\n"
    "  %22 = sum.d %21 : f32[b,s]\n"
    "  %23 = div %21, %22 : f32[b,s,d]\n"
    "  %24 = mul %13, %6 : f32[b,s,n,t,d]\n"
    "  %25 = sum.n.b.s %24 : f32[t,d]\n"
    "  %26 = sum.b.s %15 : f32[n,t]\n"
    "  %27 = sum.n.d %11 : f32[b,s,t]\n"
    "  return x2 = %6\n  return a2 = %15\n  return y = %23\n  return dp = %25\n  return da = %26\n  return z = %27\nend\n";

static const char text_head[] = // softmax cross-entropy with its gradient
    "module t layers 0\naxis b row $B\naxis s row $S\naxis v wide $D\n\n"
    "kernel head rows b,s (%l: bf16[b,s,v], %targets: i32[b,s], %inv: f32[])\n"
    "  %1 = cast %l : f32[b,s,v]\n"
    "  %2 = rmax.v %1 : f32[b,s]\n"
    "  %3 = sub %1, %2 : f32[b,s,v]\n"
    "  %4 = exp %3 : f32[b,s,v]\n"
    "  %5 = sum.v %4 : f32[b,s]\n"
    "  %6 = log %5 : f32[b,s]\n"
    "  %7 = one_hot.v %targets : f32[b,s,v]\n"
    "  %8 = mul %7, %3 : f32[b,s,v]\n"
    "  %9 = sum.v %8 : f32[b,s]\n"
    "  %10 = sub %6, %9 : f32[b,s]\n"
    "  %11 = mul %10, %inv : f32[b,s]\n"
    "  %12 = div %4, %5 : f32[b,s,v]\n"
    "  %13 = sub %12, %7 : f32[b,s,v]\n"
    "  %14 = mul %13, %inv : f32[b,s,v]\n"
    "  %15 = cast %14 : bf16[b,s,v]\n"
    "  return loss = %11\n  return dl = %15\nend\n";

static const char
    text_rope[] = // three row axes, operands without some of them, views of small axes, iota, one_hot
    "module t layers 0\naxis b row $B\naxis s row $S\naxis h row $H\naxis p small 2\naxis o small 2\naxis u small 4\n"
    "axis e wide $D\n\n"
    "kernel rope rows b,s,h (%x: bf16[b,s,h,p,e], %c: f32[s,e], %i: f32[s,e], %k: i32[b,s])\n"
    "  %1 = cast %x : f32[b,s,h,p,e]\n"
    "  %2 = slice.p %1 {k=0} : f32[b,s,h,e]\n"
    "  %3 = slice.p %1 {k=1} : f32[b,s,h,e]\n"
    "  %4 = mul %2, %c : f32[b,s,h,e]\n"
    "  %5 = mul %3, %i : f32[b,s,h,e]\n"
    "  %6 = sub %4, %5 : f32[b,s,h,e]\n"
    "  %7 = mul %3, %c : f32[b,s,h,e]\n"
    "  %8 = mul %2, %i : f32[b,s,h,e]\n"
    "  %9 = add %7, %8 : f32[b,s,h,e]\n"
    "  %10 = concat.p.1.1 %6, %9 : f32[b,s,h,p,e]\n"
    "  %11 = cast %10 : bf16[b,s,h,p,e]\n"
    "  %12 = iota.e : f32[e]\n"
    "  %13 = iota.s : f32[s]\n"
    "  %14 = mul %12, %13 : f32[s,e]\n"
    "  %15 = iota.h : f32[h]\n"
    "  %16 = add %14, %15 : f32[s,h,e]\n"
    "  %17 = mul %16, %9 : f32[b,s,h,e]\n"
    "  %18 = one_hot.o %k : f32[b,s,o]\n"
    "  %19 = iota.o : f32[o]\n"
    "  %20 = add %18, %19 : f32[b,s,o]\n"
    "  %21 = mul %20, %10 : f32[b,s,h,p,o,e]\n"
    "  %22 = merge.p.o.u %21 : f32[b,s,h,u,e]\n"
    "  %23 = split.u.p.o %22 : f32[b,s,h,p,o,e]\n"
    "  return y = %11\n  return z = %17\n  return w = %22\n  return v = %23\nend\n";

static const char text_gather[] = // rows of a table; one row axis; two wide sizes
    "module t layers 0\naxis s row $S\naxis v wide 37\naxis d wide $D\naxis f wide 24\n\n"
    "kernel embed rows s (%t: f32[v,d], %t16: bf16[v,d], %ids: i32[s], %y: f32[s,f])\n"
    "  %1 = gather %t, %ids : f32[s,d]\n"
    "  %2 = gather %t16, %ids : bf16[s,d]\n"
    "  %3 = cast %2 : f32[s,d]\n"
    "  %4 = mul %1, %3 : f32[s,d]\n"
    "  %5 = sum.d %4 : f32[s]\n"
    "  %6 = mul %y, %5 : f32[s,f]\n"
    "  %7 = mul %6, %6 : f32[s,f]\n"
    "  %8 = sum.f %7 : f32[s]\n"
    "  %9 = add %4, %8 : f32[s,d]\n"
    "  %10 = cast %ids : f32[s]\n"
    "  %11 = lt %10, 0x1p+4 : f32[s]\n"
    "  %12 = mul %6, %11 : f32[s,f]\n"
    "  return x = %1\n  return r = %9\n  return g = %12\n  return copy = %y\nend\n";

static const char text_whole[] = // no rows: a tensor is one item
    "module t layers 0\naxis d wide $D\naxis n small 2\n\n"
    "kernel whole (%x: f32[n,d], %k: f32[n])\n"
    "  %1 = mul %x, %k : f32[n,d]\n"
    "  %2 = sum.n.d %1 : f32[]\n"
    "  %3 = sum.d %1 : f32[n]\n"
    "  %4 = sub %x, %2 : f32[n,d]\n"
    "  return y = %4\n  return s = %2\n  return n = %3\n  return c = 0x1.8p+0\nend\n";

// text with the sizes filled in; to be freed.
static char *sized(const char *text, const int size[4]) {
    char *out = malloc(strlen(text) + 256), *at = out;
    assert_non_null(out);
    for (; *text; text++) {
        const char *key = *text == '$' ? strchr("BSHD", text[1]) : NULL;
        if (key) {
            at += sprintf(at, "%d", size[key - "BSHD"]);
            text++;
        } else {
            *at++ = *text;
        }
    }
    *at = 0;
    return out;
}

static const struct {
    const char *name, *text;
    int overlay[2]; // result, operand of the same type; -1: none
    double tolerance;
} kernels[] = {
    {"norm", text_norm, {0, 0}, 1e-5},     {"streams", text_streams, {0, 0}, 2e-5},
    {"head", text_head, {1, 0}, 5e-6},     {"rope", text_rope, {0, 0}, 1e-6},
    {"gather", text_gather, {2, 3}, 1e-5}, {"whole", text_whole, {0, 0}, 1e-5},
};

static void run_kernel(size_t k, const int size[4], int64_t pad, bool overlay) {
    KernelCase c;
    char *ir = sized(kernels[k].text, size);
    kernel_open(&c, ir, pad, NULL);
    KernelArg first = c.array[kernels[k].overlay[1]].arg;
    if (overlay)
        kernel_overlay(&c, kernels[k].overlay[0], kernels[k].overlay[1]);
    kernel_run(&c, KERNEL_STRIPS);
    c.array[kernels[k].overlay[1]].arg = first;
    kernel_check(&c, kernels[k].tolerance);
    kernel_close(&c);
    free(ir);
}

static void test_wide_sizes(void **state) {
    (void)state;
    static const int wide[] = {1, 3, 16, 17, 34, 640, 1000, 4097};
    for (size_t k = 0; k < COUNT_OF(kernels); k++)
        for (size_t i = 0; i < COUNT_OF(wide); i++)
            for (int overlay = 0; overlay < 2; overlay++)
                run_kernel(k, (int[]){2, 3, 2, wide[i]}, overlay ? 5 : 0, overlay);
}

static void test_row_counts(void **state) {
    (void)state;
    static const int rows[][3] = {{1, 1, 1},  {1, 2, 1},  {7, 9, 2}, {8, 8, 1},
                                  {5, 13, 3}, {65, 1, 1}, {1, 64, 2}};
    for (size_t k = 0; k < COUNT_OF(kernels); k++)
        for (size_t i = 0; i < COUNT_OF(rows); i++)
            run_kernel(k, (int[]){rows[i][0], rows[i][1], rows[i][2], 34}, 3, false);
}

// A text depends on neither row sizes nor on how often it is printed.
static void test_text_identity(void **state) {
    (void)state;
    for (size_t k = 0; k < COUNT_OF(kernels); k++) {
        KernelCase a, b;
        char *x = sized(kernels[k].text, (int[]){2, 3, 2, 34}),
             *y = sized(kernels[k].text, (int[]){5, 7, 1, 34});
        kernel_open(&a, x, 0, NULL);
        kernel_open(&b, y, 4, NULL);
        assert_string_equal(a.text, b.text);
        kernel_close(&a);
        kernel_close(&b);
        free(x);
        free(y);
    }
}

// A result may lie in the place of an operand: also where that operand comes last, and where there are no
// rows.
static void check_loads_first(bool rows) {
    Arena arena = {0};
    Module *m = module_new(&arena, "t");
    AxisId s = module_axis(m, "s", AXIS_ROW, 3), d = module_axis(m, "d", AXIS_WIDE, 32);
    Func *f = module_func(m, "k");
    f->is_kernel = true;
    f->n_row_axes = rows;
    f->row_axes[0] = s;
    Type t = type_make(m, DT_F32, rows ? 2 : 1, rows ? (AxisId[]){s, d} : (AxisId[]){d});
    Builder b = {.m = m, .f = f, .layer = -1};
    Ref x = ir_input(&b, "x", t), y = ir_mul(&b, x, x), z = ir_mul(&b, ir_input(&b, "z", t), x);
    vec_push(&arena, &f->outputs, ((NamedRef){"y", y}));
    vec_push(&arena, &f->outputs, ((NamedRef){"z", z}));
    const char *text = codegen_c_row(&arena, m, f, "k"), *last = strstr(text, "load_f32(p1"),
               *store = strstr(text, "store_f32(q0");
    assert_true(last && store && last < store);
    arena_free(&arena);
}

static void test_loads_before_stores(void **state) {
    (void)state;
    check_loads_first(true);
    check_loads_first(false);
}

static bool same_results(const KernelCase *a, const KernelCase *b, int out) {
    const KernelArray *x = &a->array[a->n_in + out], *y = &b->array[b->n_in + out];
    size_t n = (size_t)((char *)x->map + x->bytes - (char *)x->at) - 4096;
    return !memcmp(x->at, y->at, n);
}

static void test_strips_same_bits(void **state) {
    (void)state;
    char *ir = sized(text_streams, (int[]){5, 7, 1, 100});
    KernelCase a, b;
    kernel_open(&a, ir, 1, NULL);
    kernel_open(&b, ir, 1, NULL);
    kernel_run(&a, 1);
    kernel_run(&b, KERNEL_STRIPS);
    for (int o = 0; o < a.n_out; o++)
        if (!a.array[a.n_in + o].count)
            assert_true(same_results(&a, &b, o));
    kernel_close(&a);
    kernel_close(&b);
    free(ir);
}

static bool have(const char *program) {
    char command[128];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", program);
    return system(command) == 0;
}

// Compilers, optimisation, instruction sets: all the same bits.
static void test_compilers_same_bits(void **state) {
    (void)state;
    static const char *const compilers[] = {"gcc -O0", "gcc -O3 -mno-avx512f", "gcc -mno-avx", "clang",
                                            "clang -mno-avx512f"};
    for (size_t k = 0; k < COUNT_OF(kernels); k++) {
        char *ir = sized(kernels[k].text, (int[]){2, 5, 2, 100});
        KernelCase a;
        kernel_open(&a, ir, 1, NULL);
        kernel_run(&a, KERNEL_STRIPS);
        for (size_t i = 0; i < COUNT_OF(compilers); i++) {
            KernelCase b;
            if (!have(compilers[i][0] == 'g' ? "gcc" : "clang"))
                continue;
            kernel_open(&b, ir, 1, compilers[i]);
            kernel_run(&b, KERNEL_STRIPS);
            for (int o = 0; o < a.n_out; o++)
                if (!same_results(&a, &b, o))
                    fail_msg("%s: %s: result %d has other bits", kernels[k].name, compilers[i], o);
            kernel_close(&b);
        }
        kernel_close(&a);
        free(ir);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wide_sizes),          cmocka_unit_test(test_row_counts),
        cmocka_unit_test(test_text_identity),       cmocka_unit_test(test_strips_same_bits),
        cmocka_unit_test(test_compilers_same_bits), cmocka_unit_test(test_loads_before_stores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
