// The executor on a plan made by hand: every step kind, names, parameters, exchanges, profiles, values not
// finite.
#include "runtime/exec.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants the headers above first
#include <cmocka.h>

static void must(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

// y = factor * x + table, rows of 8.
static const char scale_text[] =
    "#include <stdint.h>\n"
    "typedef struct { char *at; int64_t stride[3]; } Arg;\n"
    "typedef struct { int64_t size[6]; const Arg *arg; const float *scalar; int64_t acc; void *scratch; } "
    "Args;\n"
    "void scale_1(const Args *a, int64_t item0, int64_t item1, int64_t strip) {\n"
    "    for (int64_t i = item0; i < item1; i++) {\n"
    "        const float *x = (const float *)a->arg[0].at + i * a->arg[0].stride[0], *t = (const float "
    "*)a->arg[1].at;\n"
    "        float *y = (float *)a->arg[2].at + i * a->arg[2].stride[0];\n"
    "        for (int j = 0; j < 8; j++) y[j] = a->scalar[0] * x[j] + t[j];\n"
    "    }\n"
    "}\n";

enum { ROWS = 6, D = 8, F = 3, ROW = 12 }; // rows of y lie ROW elements apart
enum { IDS, ORDER, X, TABLE, Y, C, W_A, W_B, W_A16, W_B16, G_A, CLEARED, HALF, N_BUFFERS };

typedef struct Made {
    Arena arena;
    Plan plan;
    size_t used[N_ARENAS];
} Made;

static int32_t add_buffer(Made *m, const char *name, ArenaId arena, Dtype dtype, size_t elements) {
    PlanBuffer b = {.name = name, .arena = arena, .dtype = dtype, .program = -1, .first = -1, .last = -1};
    b.bytes = elements * dtype_bytes(dtype);
    b.offset = m->used[arena];
    m->used[arena] = (b.offset + b.bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    m->plan.arena_bytes[arena] = m->used[arena];
    vec_push(&m->arena, &m->plan.buffers, b);
    return (int32_t)m->plan.buffers.n - 1;
}

static int32_t add_view(Made *m, int32_t buffer, size_t offset, int64_t stride) {
    PlanView v = {.buffer = buffer, .offset = offset, .stride = {stride}};
    vec_push(&m->arena, &m->plan.views, v);
    return (int32_t)m->plan.views.n - 1;
}

static void add_io(Made *m, const char *name, int32_t view, Dtype dtype, int64_t rows, int64_t cols,
                   bool output) {
    PlanIo io = {
        .name = name, .view = view, .program = 0, .dtype = dtype, .rank = cols ? 2 : 1, .output = output};
    io.shape[0] = rows;
    io.shape[1] = cols;
    if (dtype == DT_I32)
        io.limit = 50;
    vec_push(&m->arena, &m->plan.io, io);
}

static void add_param(Made *m, const char *name, int32_t value, int32_t copy, int32_t grad) {
    PlanParam p = {
        .name = name, .buffer = value, .copy_buffer = copy, .grad_buffer = grad, .rank = 2, .trained = true};
    p.shape[0] = D; // in the file [D, F], in memory [F, D]
    p.shape[1] = F;
    p.order[0] = 1;
    p.order[1] = 0;
    vec_push(&m->arena, &m->plan.params, p);
}

static void build(Made *m) {
    static float table[D] = {.5f, 1, 2, 3, 4, 5, 6, 7};
    Plan *p = &m->plan;
    Arena *a = &m->arena;
    p->arena = a;
    add_buffer(m, "ids", ARENA_IO, DT_I32, ROWS);
    add_buffer(m, "order", ARENA_ACTS, DT_I32, ROWS);
    add_buffer(m, "x", ARENA_IO, DT_F32, ROWS * D);
    add_buffer(m, "table", ARENA_CONST, DT_F32, D);
    add_buffer(m, "y", ARENA_ACTS, DT_F32, ROWS * ROW);
    add_buffer(m, "c", ARENA_ACTS, DT_F32, ROWS * F);
    add_buffer(m, "wa", ARENA_PARAMS, DT_F32, D * F);
    add_buffer(m, "wb", ARENA_PARAMS, DT_F32, D * F);
    add_buffer(m, "wa.bf16", ARENA_COPIES, DT_BF16, PLAN_ALIGN / 4);
    add_buffer(m, "wb.bf16", ARENA_COPIES, DT_BF16, PLAN_ALIGN / 4);
    add_buffer(m, "ga", ARENA_GRADS, DT_F32, D * F);
    add_buffer(m, "cleared", ARENA_ACTS, DT_F32, D);
    add_buffer(m, "half", ARENA_IO, DT_BF16, D);
    p->arena_bytes[ARENA_EXP_AVG] = p->arena_bytes[ARENA_EXP_AVG_SQ] = p->arena_bytes[ARENA_PARAMS];
    vec_push(a, &p->consts, ((PlanConst){.buffer = TABLE, .at = table, .n = D}));
    vec_push(a, &p->scalars, 9.0f);
    vec_push(a, &p->scalars, 2.0f);
    PlanKernel k = {
        .name = "scale.1", .source = scale_text, .n_args = 3, .n_scalars = 1, .origin = "layers.0 @test:1"};
    vec_push(a, &p->kernels, k);
    PlanStep sort = {.kind = STEP_SORT, .items = ROWS, .n_args = 2};
    sort.arg0 = add_view(m, IDS, 0, 1);
    add_view(m, ORDER, 0, 1);
    PlanStep launch = {
        .kind = STEP_LAUNCH, .items = ROWS, .n_strips = 4, .size = {ROWS}, .n_args = 3, .scalar0 = 1};
    launch.n_scalars = 1;
    launch.origin = "layers.0 @test:1";
    launch.arg0 = add_view(m, X, 0, D);
    add_view(m, TABLE, 0, 0);
    int32_t y = add_view(m, Y, 2, ROW);
    PlanStep gemm = {
        .kind = STEP_GEMM, .m = ROWS, .n = F, .k = D, .lda = ROW, .ldb = D, .ldc = F, .trans_b = true};
    gemm.n_args = 3;
    gemm.arg0 = add_view(m, Y, 2, ROW);
    add_view(m, W_A, 0, 0);
    int32_t c = add_view(m, C, 0, F);
    PlanStep grad = {
        .kind = STEP_GEMM, .m = F, .n = D, .k = ROWS, .lda = F, .ldb = ROW, .ldc = D, .trans_a = true};
    grad.acc = ACC_MICRO;
    grad.n_args = 3;
    grad.arg0 = add_view(m, C, 0, F);
    add_view(m, Y, 2, ROW);
    add_view(m, G_A, 0, 0);
    PlanStep clear = {.kind = STEP_FILL, .items = D, .n_args = 1, .acc = ACC_MICRO};
    clear.arg0 = add_view(m, CLEARED, 0, 0);
    const PlanStep steps[] = {sort, launch, gemm, grad, clear};
    for (size_t i = 0; i < COUNT_OF(steps); i++)
        vec_push(a, &p->steps, steps[i]);
    vec_push(a, &p->programs, ((PlanProgram){.name = "micro", .n_steps = COUNT_OF(steps)}));
    add_io(m, "ids", add_view(m, IDS, 0, 1), DT_I32, ROWS, 0, false);
    add_io(m, "x", add_view(m, X, 0, D), DT_F32, ROWS, D, false);
    add_io(m, "order", add_view(m, ORDER, 0, 1), DT_I32, ROWS, 0, true);
    add_io(m, "y", y, DT_F32, ROWS, D, true);
    add_io(m, "c", c, DT_F32, ROWS, F, true);
    add_io(m, "cleared", clear.arg0, DT_F32, D, 0, true);
    add_io(m, "half", add_view(m, HALF, 0, 1), DT_BF16, D, 0, true);
    add_io(m, "wa.bf16", add_view(m, W_A16, 0, 1), DT_BF16, D * F, 0, true);
    add_param(m, "a", W_A, W_A16, G_A);
    add_param(m, "b", W_B, W_B16, -1);
}

static Exec *make(Made *m) {
    static const DriverOptions options = {.threads = 2, .cache_dir = BINARY_DIR "/test-cache"};
    Exec *e;
    *m = (Made){0};
    arena_init(&m->arena, 0);
    ARENA_CATCH(&m->arena, build(m), fail_msg("out of memory"));
    must(exec_open(&m->plan, &driver_host, &options, &e));
    return e;
}

static void end(Made *m, Exec *e) {
    exec_close(e);
    arena_free(&m->arena);
}

static float x[ROWS * D], wa[D * F], wb[D * F];
static const int32_t ids[ROWS] = {7, 0, 49, 7, 0, 7};

static void fill(Exec *e) {
    for (int i = 0; i < ROWS * D; i++)
        x[i] = (float)(i % 7) - 3;
    for (int i = 0; i < D * F; i++) {
        wa[i] = (float)(i % 5) - 2;
        wb[i] = (float)(i % 3) - 1;
    }
    must(exec_write(e, "ids", 0, ids, ROWS));
    must(exec_write(e, "x", 0, x, ROWS * D));
    must(exec_param_write(e, 0, PART_VALUE, wa));
    must(exec_param_write(e, 1, PART_VALUE, wb));
}

static float y_of(int i, int j) {
    static const float table[D] = {.5f, 1, 2, 3, 4, 5, 6, 7};
    return 2 * x[i * D + j] + table[j];
}

static void check_c(Exec *e, const float *w) {
    float c[ROWS * F];
    must(exec_read(e, "c", 0, c, ROWS * F));
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < F; k++) {
            float want = 0;
            for (int j = 0; j < D; j++)
                want += y_of(i, j) * w[j * F + k];
            assert_true(c[i * F + k] == want);
        }
}

static void test_run(void **state) {
    (void)state;
    Made m;
    Exec *e = make(&m);
    float y[ROWS * D], order[ROWS], ga[D * F], twice[D * F];
    fill(e);
    must(exec_run(e, 0, 0));
    must(exec_read(e, "y", 0, y, ROWS * D));
    for (int i = 0; i < ROWS * D; i++)
        assert_true(y[i] == y_of(i / D, i % D));
    const float want_order[ROWS] = {1, 4, 0, 3, 5, 2}; // stable
    must(exec_read(e, "order", 0, order, ROWS));
    assert_memory_equal(order, want_order, sizeof order);
    check_c(e, wa);
    must(exec_param_read(e, 0, PART_GRAD, ga));
    must(exec_run(e, 0, 1)); // the second micro-batch adds
    must(exec_param_read(e, 0, PART_GRAD, twice));
    for (int i = 0; i < D * F; i++)
        assert_true(twice[i] == 2 * ga[i]);
    must(exec_run(e, 0, 0)); // the first overwrites
    must(exec_param_read(e, 0, PART_GRAD, twice));
    assert_memory_equal(twice, ga, sizeof ga);
    end(&m, e);
}

static void test_params(void **state) {
    (void)state;
    Made m;
    Exec *e = make(&m);
    float back[D * F], half[D * F];
    fill(e);
    must(exec_param_read(e, 0, PART_VALUE, back));
    assert_memory_equal(back, wa, sizeof wa);
    must(exec_param_write(e, 1, PART_EXP_AVG, wa));
    must(exec_param_write(e, 1, PART_EXP_AVG_SQ, wb));
    must(exec_param_read(e, 1, PART_EXP_AVG, back));
    assert_memory_equal(back, wa, sizeof wa);
    must(exec_param_read(e, 1, PART_EXP_AVG_SQ, back));
    assert_memory_equal(back, wb, sizeof wb);
    must(exec_param_read(e, 1, PART_GRAD, back)); // has none
    for (int i = 0; i < D * F; i++)
        assert_true(back[i] == 0);
    must(exec_refresh_copies(e));
    must(exec_read(e, "wa.bf16", 0, half, D * F));
    for (int i = 0; i < D * F; i++) // in memory order [F, D]
        assert_true(half[i] == wa[i % D * F + i / D]);
    end(&m, e);
}

static void test_swap(void **state) {
    (void)state;
    Made m;
    Exec *e = make(&m);
    float back[D * F];
    fill(e);
    exec_swap(e, 0, 1);
    must(exec_run(e, 0, 0));
    check_c(e, wb);
    must(exec_param_read(e, 0, PART_VALUE, back));
    assert_memory_equal(back, wb, sizeof wb);
    exec_swap(e, 0, 1);
    must(exec_run(e, 0, 0));
    check_c(e, wa);
    end(&m, e);
}

static void test_names_and_ranges(void **state) {
    (void)state;
    Made m;
    Exec *e = make(&m);
    int32_t bad[ROWS] = {1, 2, 3, 4, 50, 6};
    float values[D] = {1, 1.00390625f, 3.0e38f, -0.0f, 1e-30f, 2, 3, 4}, back[D];
    Status s = exec_write(e, "ids", 0, bad, ROWS);
    assert_int_equal(s.code, EXIT_REQUEST);
    assert_non_null(strstr(s.text, "element 4 is 50"));
    bad[4] = -1;
    assert_int_equal(exec_write(e, "ids", 0, bad, ROWS).code, EXIT_REQUEST);
    must(exec_write(e, "half", 0, values, D));
    must(exec_read(e, "half", 0, back, D));
    for (int i = 0; i < D; i++)
        assert_true(fabsf(back[i] - values[i]) <= fabsf(values[i]) / 256);
    assert_true(back[1] == 1.0f); // half way, to even
    values[0] = NAN;
    must(exec_write(e, "half", 0, values, D));
    must(exec_read(e, "half", 0, back, D));
    assert_true(isnan(back[0]));
    end(&m, e);
}

static void test_profile(void **state) {
    (void)state;
    Made m;
    Exec *e = make(&m);
    DeviceInfo info;
    fill(e);
    exec_profile(e, true);
    must(exec_run(e, 0, 0));
    double sum = 0;
    for (uint32_t i = 0; i < m.plan.steps.n; i++) {
        assert_true(exec_step_ms(e)[i] >= 0);
        sum += exec_step_ms(e)[i];
    }
    assert_true(sum > 0);
    assert_int_equal(exec_compile_stats(e)->compiled + exec_compile_stats(e)->cached, 1);
    must(exec_device(e, &info));
    assert_int_equal(info.threads, 2);
    end(&m, e);
}

static void test_not_finite(void **state) {
    (void)state;
    Made m;
    Exec *e = make(&m);
    char name[200];
    fill(e);
    must(exec_find_nonfinite(e, 0, name, sizeof name));
    assert_string_equal(name, "");
    for (int i = 0; i < D * F; i++)
        wa[i] = 3e38f; // c overflows
    must(exec_param_write(e, 0, PART_VALUE, wa));
    must(exec_find_nonfinite(e, 0, name, sizeof name));
    assert_int_equal(strncmp(name, "c (step 2, gemm", 15), 0);
    fill(e);
    x[5] = INFINITY;
    must(exec_write(e, "x", 0, x, ROWS * D));
    must(exec_find_nonfinite(e, 0, name, sizeof name));
    assert_int_equal(strncmp(name, "x (step 1, scale.1, layers.0 @test:1)", 200), 0);
    end(&m, e);
}

// Every allocation, file call and driver call fails in turn: a status, no leak (the sanitizer build looks),
// no crash.
static void test_faults(void **state) {
    (void)state;
    static const DriverOptions options = {.threads = 2, .cache_dir = BINARY_DIR "/test-cache"};
    Made m;
    end(&m, make(&m)); // warm cache
    for (int kind = 0; kind < N_FAULTS; kind++)
        for (int sticky = 0; sticky < 2; sticky++)
            for (long nth = 1;; nth++) {
                Exec *e = NULL;
                m = (Made){0};
                arena_init(&m.arena, 0);
                ARENA_CATCH(&m.arena, build(&m), fail_msg("out of memory"));
                fault_set((FaultKind)kind, nth, sticky);
                Status s = exec_open(&m.plan, &driver_host, &options, &e);
                if (!s.code)
                    s = exec_run(e, 0, 0);
                bool reached = fault_count((FaultKind)kind) >= nth;
                fault_set((FaultKind)kind, 0, false);
                exec_close(e);
                arena_free(&m.arena);
                assert_true(s.code == 0 || (s.text[0] && reached));
                if (!reached)
                    break;
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),     cmocka_unit_test(test_params),
        cmocka_unit_test(test_swap),    cmocka_unit_test(test_names_and_ranges),
        cmocka_unit_test(test_profile), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
