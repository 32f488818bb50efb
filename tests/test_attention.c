// Attention kernels of the host against plain loops in double: values, gradients, causality, threads, extreme
// shapes.
#include "codegen/codegen.h"
#include "runtime/host.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants the headers above first
#include <cmocka.h>

typedef struct Shape {
    int b, s, h, g, hd;
    Dtype dtype;
    int pad;    // elements between rows
    bool given; // the gradient subtracts D, whatever it is, and not o . g
} Shape;

enum { Q, K, V_, O, LSE, G_, DQ, DK, DV, D_, N_ARGS };

typedef struct Case {
    Shape shape;
    double scale;
    void *data[N_ARGS]; // as kernels see them
    KernelArg arg[N_ARGS];
    double *want[N_ARGS]; // dense [b, s, head, hd]; LSE and D_ [b, s, h]
} Case;

static void must(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

static uint32_t rng = 7;
static double random_value(void) {
    rng = rng * 1664525u + 1013904223u;
    return (double)(rng >> 8) * 0x1p-23 - 1.0;
}

static float round16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

static bool is_number(int which) { // f32, one a row of q
    return which == LSE || which == D_;
}

static int heads_of(const Shape *s, int which) {
    return which == K || which == V_ || which == DK || which == DV ? s->g : s->h;
}

static double element(const Case *c, int which, int b, int s, int h, int d) {
    const KernelArg *a = &c->arg[which];
    int64_t at = b * a->stride[0] + s * a->stride[1] + h * a->stride[2] + d;
    if (!is_number(which) && c->shape.dtype == DT_BF16) {
        uint32_t u = (uint32_t)((uint16_t *)a->at)[at] << 16;
        float x;
        memcpy(&x, &u, 4);
        return (double)x;
    }
    return (double)((float *)a->at)[at];
}

static size_t dense(const Shape *s, int which, int b, int t, int h, int d) {
    int heads = heads_of(s, which), hd = is_number(which) ? 1 : s->hd;
    return (((size_t)b * (size_t)s->s + (size_t)t) * (size_t)heads + (size_t)h) * (size_t)hd + (size_t)d;
}

static void case_make(Case *c, Shape s) {
    *c = (Case){.shape = s, .scale = 1.0 / sqrt(s.hd)};
    for (int w = 0; w < N_ARGS; w++) {
        int heads = heads_of(&s, w), hd = is_number(w) ? 1 : s.hd;
        int64_t row = (int64_t)heads * hd + s.pad;
        bool half = !is_number(w) && s.dtype == DT_BF16;
        size_t n = (size_t)s.b * (size_t)s.s * (size_t)row;
        c->data[w] = mem_alloc(n * 4);
        c->want[w] = mem_alloc(dense(&s, w, s.b, 0, 0, 0) * sizeof(double));
        c->arg[w] = (KernelArg){.at = c->data[w], .stride = {s.s * row, row, hd}};
        for (size_t i = 0; i < n; i++) {
            float x = (float)(random_value() * (w == Q || w == K ? 2 : 1));
            uint32_t u;
            if (half) {
                x = round16(x);
                memcpy(&u, &x, 4);
                ((uint16_t *)c->data[w])[i] = (uint16_t)(u >> 16);
            } else {
                ((float *)c->data[w])[i] = x;
            }
        }
    }
}

static void case_free(Case *c) {
    for (int w = 0; w < N_ARGS; w++) {
        mem_free(c->data[w]);
        mem_free(c->want[w]);
    }
}

// One query of one head, forward and gradient, from the definition.
static void reference_row(Case *c, int b, int t, int h, double *p) {
    const Shape *s = &c->shape;
    int g = h / (s->h / s->g);
    double top = -INFINITY, sum = 0, dot = 0;
    for (int j = 0; j <= t; j++) {
        p[j] = 0;
        for (int d = 0; d < s->hd; d++)
            p[j] += c->scale * element(c, Q, b, t, h, d) * element(c, K, b, j, g, d);
        top = fmax(top, p[j]);
    }
    for (int j = 0; j <= t; j++)
        sum += exp(p[j] - top);
    c->want[LSE][dense(s, LSE, b, t, h, 0)] = top + log(sum);
    double *o = &c->want[O][dense(s, O, b, t, h, 0)];
    for (int j = 0; j <= t; j++) {
        p[j] = exp(p[j] - top) / sum;
        for (int d = 0; d < s->hd; d++)
            o[d] += p[j] * element(c, V_, b, j, g, d);
    }
    for (int d = 0; d < s->hd; d++)
        dot += o[d] * element(c, G_, b, t, h, d);
    dot = s->given ? element(c, D_, b, t, h, 0) : dot;
    for (int j = 0; j <= t; j++) {
        double dp = 0;
        for (int d = 0; d < s->hd; d++)
            dp += element(c, G_, b, t, h, d) * element(c, V_, b, j, g, d);
        double ds = p[j] * (dp - dot) * c->scale;
        for (int d = 0; d < s->hd; d++) {
            c->want[DQ][dense(s, DQ, b, t, h, d)] += ds * element(c, K, b, j, g, d);
            c->want[DK][dense(s, DK, b, j, g, d)] += ds * element(c, Q, b, t, h, d);
            c->want[DV][dense(s, DV, b, j, g, d)] += p[j] * element(c, G_, b, t, h, d);
        }
    }
}

// Queries before `from` are left out: rows from there on are right all the same, also those of dk and dv.
static void reference(Case *c, int from) {
    const Shape *s = &c->shape;
    double *p = mem_alloc((size_t)s->s * sizeof *p);
    for (int b = 0; b < s->b; b++)
        for (int h = 0; h < s->h; h++)
            for (int t = from; t < s->s; t++)
                reference_row(c, b, t, h, p);
    mem_free(p);
}

static void check(const Case *c, int which, int from, double tolerance) {
    const Shape *s = &c->shape;
    static const char *const names[] = {"q", "k", "v", "o", "lse", "g", "dq", "dk", "dv", "d"};
    int heads = heads_of(s, which), hd = is_number(which) ? 1 : s->hd;
    double largest = 0.05; // gradients that are zero but for rounding
    for (size_t i = 0; i < dense(s, which, s->b, 0, 0, 0); i++)
        largest = fmax(largest, fabs(c->want[which][i]));
    for (int b = 0; b < s->b; b++)
        for (int t = from; t < s->s; t++)
            for (int h = 0; h < heads; h++)
                for (int d = 0; d < hd; d++) {
                    double got = element(c, which, b, t, h, d),
                           want = c->want[which][dense(s, which, b, t, h, d)];
                    if (!(fabs(got - want) <= tolerance * largest))
                        fail_msg("%s[%d,%d,%d,%d] of b %d s %d h %d g %d hd %d %s: %.9g, expected %.9g",
                                 names[which], b, t, h, d, s->b, s->s, s->h, s->g, s->hd,
                                 dtype_name(s->dtype), got, want);
                }
}

typedef struct Device {
    DriverState *state;
    Arena arena;
    Plan plan;
    PlanKernel kernel[2];
} Device;

static void print_kernels(Device *d, Shape s) {
    for (int grad = 0; grad < 2; grad++)
        d->kernel[grad].source =
            codegen_c_attention(&d->arena, s.hd, s.h / s.g, s.dtype, grad, d->kernel[grad].name);
}

static void device_open(Device *d, Shape s, int threads) {
    static const char cache[] = BINARY_DIR "/test-cache";
    *d = (Device){.kernel = {{.name = "attn.0"}, {.name = "attn_grad.0"}}};
    arena_init(&d->arena, 0);
    ARENA_CATCH(&d->arena, print_kernels(d, s), fail_msg("out of memory"));
    d->plan.kernels.at = d->kernel;
    d->plan.kernels.n = 2;
    CompileStats stats;
    must(driver_host.open(&(DriverOptions){.threads = threads, .cache_dir = cache}, &d->state));
    must(driver_host.compile(d->state, &d->plan, &stats));
}

static void device_close(Device *d) {
    driver_host.close(d->state);
    arena_free(&d->arena);
}

static void launch(Device *d, Case *c, bool grad) {
    const Shape *s = &c->shape;
    float scale = (float)c->scale;
    int64_t blocks = (s->s + PLAN_ATTN_QUERIES - 1) / PLAN_ATTN_QUERIES,
            items = grad ? s->b * s->g : s->b * s->h * blocks;
    Launch l = {.kernel = grad, .items = items, .n_strips = (int32_t)items};
    KernelArg arg[N_ARGS];
    memcpy(arg, c->arg, sizeof arg);
    if (grad && s->given)
        arg[O] = arg[D_];
    l.args =
        (KernelArgs){.size = {s->b, s->s, s->h, s->g, s->hd, grad && s->given}, .arg = arg, .scalar = &scale};
    must(driver_host.launch(d->state, &l));
}

static void run_shape(Shape s, int from) {
    Case c;
    Device d;
    case_make(&c, s);
    reference(&c, from);
    device_open(&d, s, 2);
    bool half = s.dtype == DT_BF16;
    launch(&d, &c, false);
    check(&c, O, from, half ? 5e-3 : 5e-6);
    check(&c, LSE, from, 1e-6);
    launch(&d, &c, true);
    for (int w = DQ; w <= DV; w++)
        check(&c, w, from, half ? 2e-2 : 5e-6);
    for (int w = 0; s.pad && w < N_ARGS; w++) // nothing between rows is touched
        assert_true(c.arg[w].stride[1] == heads_of(&s, w) * (is_number(w) ? 1 : s.hd) + s.pad);
    device_close(&d);
    case_free(&c);
}

static void test_head_sizes(void **state) {
    (void)state;
    static const int sizes[] = {2, 6, 16, 18, 34, 62, 64, 94, 108, 256};
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        run_shape(
            (Shape){.b = 1, .s = 70, .h = 2, .g = 1, .hd = sizes[i], .dtype = i % 3 == 2 ? DT_BF16 : DT_F32},
            0);
}

static void test_sequence_lengths(void **state) {
    (void)state;
    static const int lengths[] = {1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 127, 129, 255, 257, 300, 530};
    for (size_t i = 0; i < COUNT_OF(lengths); i++)
        for (int half = 0; half < 2; half++)
            run_shape((Shape){.b = 2,
                              .s = lengths[i],
                              .h = 2,
                              .g = 2,
                              .hd = 40,
                              .dtype = half ? DT_BF16 : DT_F32,
                              .pad = 3},
                      0);
}

static void test_groups(void **state) {
    (void)state;
    static const int groups[][2] = {{1, 1}, {4, 1}, {6, 2}, {3, 3}};
    for (size_t i = 0; i < COUNT_OF(groups); i++)
        run_shape(
            (Shape){
                .b = 2, .s = 100, .h = groups[i][0], .g = groups[i][1], .hd = 32, .dtype = DT_F32, .pad = 5},
            0);
}

// The gradient of o and lse together: D comes from outside.
static void test_given_mean(void **state) {
    (void)state;
    static const int shapes[][4] = {{1, 2, 2, 6}, {17, 4, 2, 34}, {130, 3, 1, 40}, {300, 2, 2, 16}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int half = 0; half < 2; half++)
            run_shape((Shape){.b = 2,
                              .s = shapes[i][0],
                              .h = shapes[i][1],
                              .g = shapes[i][2],
                              .hd = shapes[i][3],
                              .dtype = half ? DT_BF16 : DT_F32,
                              .pad = 3,
                              .given = true},
                      0);
}

static void test_threads_same_bits(void **state) {
    (void)state;
    Shape s = {.b = 2, .s = 300, .h = 4, .g = 2, .hd = 24, .dtype = DT_F32};
    Case first = {0};
    static const int threads[] = {1, 2, 3, 5};
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        Case c;
        Device d;
        rng = 7;
        case_make(&c, s);
        device_open(&d, s, threads[i]);
        launch(&d, &c, false);
        launch(&d, &c, true);
        for (int w = 0; i && w < N_ARGS; w++) {
            size_t n = dense(&s, w, s.b, 0, 0, 0) * sizeof(float);
            assert_memory_equal(first.data[w], c.data[w], n);
        }
        device_close(&d);
        if (i == 0)
            first = c;
        else
            case_free(&c);
    }
    case_free(&first);
}

// Later tokens do not change earlier rows, whatever they hold; what is not finite is not hidden.
static void test_causal_and_not_finite(void **state) {
    (void)state;
    Shape s = {.b = 1, .s = 200, .h = 1, .g = 1, .hd = 16, .dtype = DT_F32};
    enum { CUT = 77 };
    Case a, b;
    Device d;
    rng = 3;
    case_make(&a, s);
    rng = 3;
    case_make(&b, s);
    for (int w = Q; w <= V_; w++)
        for (int i = CUT * 16; i < 200 * 16; i++)
            ((float *)b.data[w])[i] = 100.0f;
    device_open(&d, s, 1);
    launch(&d, &a, false);
    launch(&d, &b, false);
    assert_memory_equal(a.data[O], b.data[O], (size_t)CUT * 16 * 4);
    ((float *)b.data[Q])[5 * 16] = NAN;
    launch(&d, &b, false);
    assert_true(isnan(((float *)b.data[O])[5 * 16]));
    device_close(&d);
    case_free(&a);
    case_free(&b);
}

// Scores far apart, and keys in more than one panel of scratch.
static void test_extremes(void **state) {
    (void)state;
    Shape s = {.b = 1, .s = 150, .h = 1, .g = 1, .hd = 8, .dtype = DT_F32};
    Case c;
    Device d;
    case_make(&c, s);
    for (int i = 0; i < 150 * 8; i++)
        ((float *)c.data[Q])[i] *= 300.0f;
    reference(&c, 0);
    device_open(&d, s, 1);
    launch(&d, &c, false);
    check(&c, O, 0, 1e-4);
    check(&c, LSE, 0, 1e-6);
    device_close(&d);
    case_free(&c);
    run_shape((Shape){.b = 1, .s = 3200, .h = 2, .g = 1, .hd = 250, .dtype = DT_F32}, 3100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_sequence_lengths),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_given_mean),
        cmocka_unit_test(test_threads_same_bits),
        cmocka_unit_test(test_causal_and_not_finite),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
