// kernel_case.h.
#include "tests/kernel_case.h"
#include "codegen/codegen.h"
#include "tests/support.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
// cmocka wants the headers above first
#include <cmocka.h>

static void must(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

double kernel_get(const KernelArray *a, int64_t row, int64_t i) {
    int64_t at = row * a->pitch + i;
    if (a->type.dtype == DT_I32)
        return ((int32_t *)a->at)[at];
    if (a->type.dtype == DT_F32)
        return (double)((float *)a->at)[at];
    uint32_t u = (uint32_t)((uint16_t *)a->at)[at] << 16;
    float x;
    memcpy(&x, &u, 4);
    return (double)x;
}

void kernel_set(KernelArray *a, int64_t row, int64_t i, double x) {
    int64_t at = row * a->pitch + i;
    if (a->type.dtype == DT_I32)
        ((int32_t *)a->at)[at] = (int32_t)x;
    else if (a->type.dtype == DT_F32)
        ((float *)a->at)[at] = (float)x;
    else
        ((uint16_t *)a->at)[at] = (uint16_t)(bits_of((float)round_bf16(x)) >> 16);
}

// ---- Arrays.
static int64_t inner_count(const Module *m, const Type *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= m->axes.at[t->axis[i]].kind == AXIS_ROW ? 1 : m->axes.at[t->axis[i]].size;
    return n;
}

static int64_t row_count(const Module *m, const Type *t) {
    return type_count(m, t) / inner_count(m, t);
}

static void array_map(KernelArray *a, int64_t elements) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (size_t)elements * dtype_bytes((Dtype)a->type.dtype);
    a->bytes = (size + page - 1) / page * page + page;
    a->map = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(a->map != MAP_FAILED);
    memset(a->map, 0xff, a->bytes); // not a number in each dtype; -1
    assert_int_equal(mprotect((char *)a->map + a->bytes - page, page, PROT_NONE), 0);
    a->at = (char *)a->map + a->bytes - page - size;
}

static void array_rows(const KernelCase *c, KernelArray *a, int64_t pad) {
    int64_t rows = row_count(c->m, &a->type), stride;
    a->pitch = inner_count(c->m, &a->type) + (rows > 1 ? pad : 0);
    array_map(a, (rows - 1) * a->pitch + inner_count(c->m, &a->type));
    stride = a->pitch;
    for (int i = c->f->n_row_axes - 1; i >= 0; i--)
        if (type_has(&a->type, c->f->row_axes[i])) {
            a->arg.stride[i] = stride;
            stride *= c->m->axes.at[c->f->row_axes[i]].size;
        }
    a->arg.at = a->at;
}

static int32_t vocabulary(const KernelCase *c) {
    AxisId v = module_find_axis(c->m, "v");
    return v == AXIS_NONE ? 2 : c->m->axes.at[v].size;
}

static void array_fill(const KernelCase *c, KernelArray *a, uint64_t seed) {
    int64_t inner = inner_count(c->m, &a->type);
    for (int64_t r = 0; r < row_count(c->m, &a->type); r++)
        for (int64_t i = 0; i < inner; i++) {
            double x = 2 * test_uniform(seed, (uint64_t)(r * inner + i));
            if (a->type.dtype == DT_I32)
                x = floor((x + 2) / 4 * vocabulary(c));
            kernel_set(a, r, i, x);
        }
}

static bool is_column(const KernelCase *c, const Type *t) {
    AxisId rows[MAX_RANK];
    return c->f->n_row_axes && !type_rows(c->m, t, rows);
}

static void make_arrays(KernelCase *c, int64_t pad) {
    c->n_in = 0;
    for (Ref r = 1; r < c->f->nodes.n; r++) {
        const Node *n = node_at(c->f, r);
        if (n->op != OP_input)
            continue;
        if (input_scalar(n) >= 0) {
            c->scalar[input_scalar(n)] = 0.75f + 0.125f * (float)input_scalar(n);
            continue;
        }
        assert_true(c->n_in < KERNEL_MAX_ARGS);
        KernelArray *a = &c->array[c->n_in++];
        a->type = n->type;
        array_rows(c, a, pad);
        array_fill(c, a, 100 + r);
    }
    c->n_out = (int)c->f->outputs.n;
    assert_true(c->n_in + c->n_out <= KERNEL_MAX_ARGS);
    for (int i = 0; i < c->n_out; i++) {
        KernelArray *a = &c->array[c->n_in + i];
        a->type = node_at(c->f, c->f->outputs.at[i].ref)->type;
        if (is_column(c, &a->type)) {
            a->count = type_count(c->m, &a->type);
            array_map(a, a->count * KERNEL_STRIPS);
            a->arg.at = a->at;
        } else {
            array_rows(c, a, pad);
        }
    }
}

static void open_module(KernelCase *c, const char *ir) {
    must(ir_parse(&c->arena, ir, "kernel.ir", &c->m));
    must(ir_verify_status(c->m));
    c->f = c->m->funcs.at[0];
    c->kernel = (PlanKernel){.name = "kernel"};
    c->text = c->kernel.source = codegen_c_row(&c->arena, c->m, c->f, "kernel");
}

void kernel_open(KernelCase *c, const char *ir, int64_t pad, const char *cc) {
    static const char cache[] = "test-cache";
    *c = (KernelCase){.items = 1};
    arena_init(&c->arena, 0);
    ARENA_CATCH(&c->arena, open_module(c, ir), fail_msg("out of memory"));
    for (int i = 0; i < c->f->n_row_axes; i++)
        c->items *= c->m->axes.at[c->f->row_axes[i]].size;
    ARENA_CATCH(&c->arena, make_arrays(c, pad), fail_msg("out of memory"));
    c->plan.kernels.at = &c->kernel;
    c->plan.kernels.n = 1;
    CompileStats stats;
    if (cc)
        setenv("CC", cc, 1);
    must(driver_host.open(&(DriverOptions){.threads = 2, .cache_dir = cc ? NULL : cache}, &c->driver));
    must(driver_host.compile(c->driver, &c->plan, &stats));
    if (cc)
        unsetenv("CC");
}

void kernel_close(KernelCase *c) {
    driver_host.close(c->driver);
    for (int i = 0; i < c->n_in + c->n_out; i++)
        if (c->array[i].map)
            munmap(c->array[i].map, c->array[i].bytes);
    arena_free(&c->arena);
}

void kernel_overlay(KernelCase *c, int out, int in) {
    KernelArray *a = &c->array[c->n_in + out];
    for (int64_t r = 0; r < row_count(c->m, &a->type); r++)
        for (int64_t i = 0; i < inner_count(c->m, &a->type); i++)
            kernel_set(a, r, i, kernel_get(&c->array[in], r, i));
    c->array[in].arg = a->arg;
}

void kernel_run(KernelCase *c, int strips) {
    KernelArg arg[KERNEL_MAX_ARGS];
    for (int i = 0; i < c->n_in + c->n_out; i++)
        arg[i] = c->array[i].arg;
    Launch l = {.items = c->items, .n_strips = strips, .args = {.arg = arg, .scalar = c->scalar}};
    for (int i = 0; i < c->f->n_row_axes; i++)
        l.args.size[i] = c->m->axes.at[c->f->row_axes[i]].size;
    must(driver_host.launch(c->driver, &l));
}

// ---- Comparison.
static const double *bind_input(void *ctx, const char *name) {
    KernelCase *c = ctx;
    int arg = 0;
    for (Ref r = 1; r < c->f->nodes.n; r++) {
        const Node *n = node_at(c->f, r);
        if (n->op != OP_input)
            continue;
        int scalar = input_scalar(n);
        if (strcmp(n->name, name)) {
            arg += scalar < 0;
            continue;
        }
        int64_t inner = inner_count(c->m, &n->type), rows = row_count(c->m, &n->type);
        double *x = arena_alloc(&c->arena, (size_t)(inner * rows) * sizeof *x);
        for (int64_t i = 0; i < inner * rows; i++)
            x[i] = scalar >= 0 ? (double)c->scalar[scalar] : kernel_get(&c->array[arg], i / inner, i % inner);
        return x;
    }
    return NULL;
}

static void evaluate(KernelCase *c, Tensor *want) {
    Env env = {.ctx = c, .input = bind_input};
    must(interp_run(&c->arena, c->m, c->f, &env, false, want));
}

static double result(const KernelArray *a, int64_t row, int64_t i) {
    if (!a->count)
        return kernel_get(a, row, i);
    double sum = 0;
    for (int s = 0; s < KERNEL_STRIPS; s++)
        sum += (double)((float *)a->at)[s * a->count + i];
    return sum;
}

static void check_output(const KernelCase *c, int o, const Tensor *want, double f32) {
    const KernelArray *a = &c->array[c->n_in + o];
    int64_t inner = inner_count(c->m, &a->type), n = inner * row_count(c->m, &a->type);
    double largest = 1e-3;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want->at[i]));
    for (int64_t i = 0; i < n; i++) {
        double got = result(a, i / inner, i % inner), bound = f32 * largest;
        if (a->type.dtype == DT_BF16)
            bound += fabs(want->at[i]) * 0x1p-7;
        if (!(fabs(got - want->at[i]) <= bound))
            fail_msg("%s[%lld] of %lld (rows of %lld, %lld items): %.9g, expected %.9g",
                     c->f->outputs.at[o].name, (long long)i, (long long)n, (long long)inner,
                     (long long)c->items, got, want->at[i]);
    }
    for (int64_t r = 0; !a->count && r + 1 < row_count(c->m, &a->type); r++)
        for (int64_t i = inner; i < a->pitch; i++)
            assert_true(a->type.dtype == DT_I32 ? kernel_get(a, r, i) < 0 : isnan(kernel_get(a, r, i)));
}

void kernel_check(KernelCase *c, double f32) {
    Tensor want[KERNEL_MAX_ARGS];
    ARENA_CATCH(&c->arena, evaluate(c, want), fail_msg("out of memory"));
    for (int o = 0; o < c->n_out; o++)
        check_output(c, o, &want[o], f32);
}
