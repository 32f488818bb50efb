// A machine that runs plans on plain arrays, for tests: row kernels by the evaluator, GEMMs by loops.
//
// It knows nothing of code printers and drivers, so what it shows is the plan alone: wrong strides, leading
// sizes, orders and lifetimes. The acts arena is filled with NaN before each program, so reading what nobody
// wrote shows too. Row axes get the sizes of the launch while a kernel runs.
#ifndef DEPTHBENCH_TESTS_PLAN_MACHINE_H
#define DEPTHBENCH_TESTS_PLAN_MACHINE_H
#include "ir/interp.h"
#include "passes/passes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_MAX_KERNELS = 4096 };
static struct {
    const char *text;
    const Func *f;
} machine_kernels[MACHINE_MAX_KERNELS];
static int n_machine_kernels;

static const char *machine_row(Arena *a, const Module *m, const Func *kernel, const char *name) {
    Text t = {.arena = a};
    Func copy = *kernel;
    copy.name = name;
    ir_print_func(&t, m, &copy);
    CHECK(n_machine_kernels < MACHINE_MAX_KERNELS, "too many kernels");
    machine_kernels[n_machine_kernels].text = t.at;
    machine_kernels[n_machine_kernels++].f = kernel;
    return t.at;
}

static const char *machine_finish(Arena *a, const char *name) {
    return arena_format(a, "finish %s", name);
}

static const char *machine_scatter(Arena *a, Dtype x, const char *name) {
    return arena_format(a, "scatter %s %s", dtype_name(x), name);
}

static const char *machine_attention(Arena *a, int head_dim, int group, Dtype dtype, bool grad,
                                     const char *name) {
    return arena_format(a, "attention %d %d %s %d %s", head_dim, group, dtype_name(dtype), grad, name);
}

static const KernelPrinter machine_printer = {machine_row, machine_finish, machine_scatter,
                                              machine_attention};

typedef struct Machine {
    Arena *arena;
    Module *m;
    const Plan *plan;
    unsigned char *mem[N_ARENAS];
} Machine;

static double machine_get(const Machine *k, int32_t buffer, int64_t i) {
    const PlanBuffer *b = &k->plan->buffers.at[buffer];
    size_t size = dtype_bytes(b->dtype);
    size_t at = b->offset + (size_t)i * size;
    CHECK(i >= 0 && at + size <= k->plan->arena_bytes[b->arena], "read outside of an arena: %s[%lld]",
          b->name, (long long)i);
    CHECK(b->arena != ARENA_ACTS || ((size_t)i + 1) * size <= b->bytes, "read outside of %s", b->name);
    uint32_t u = 0;
    memcpy((char *)&u + 4 - size, k->mem[b->arena] + at, size);
    if (b->dtype == DT_I32)
        return (double)(int32_t)u;
    float f;
    memcpy(&f, &u, 4);
    return (double)f;
}

static void machine_put(Machine *k, int32_t buffer, int64_t i, double x) {
    const PlanBuffer *b = &k->plan->buffers.at[buffer];
    size_t size = dtype_bytes(b->dtype);
    size_t at = b->offset + (size_t)i * size;
    CHECK(i >= 0 && at + size <= k->plan->arena_bytes[b->arena], "write outside of an arena: %s[%lld]",
          b->name, (long long)i);
    CHECK(b->arena != ARENA_ACTS || ((size_t)i + 1) * size <= b->bytes, "write outside of %s", b->name);
    uint32_t u;
    float f = (float)(b->dtype == DT_BF16 ? round_bf16(x) : x);
    int32_t whole = b->dtype == DT_I32 ? (int32_t)x : 0;
    memcpy(&u, b->dtype == DT_I32 ? (const void *)&whole : (const void *)&f, 4);
    memcpy(k->mem[b->arena] + at, (char *)&u + 4 - size, size);
}

static Machine machine_open(Arena *arena, Module *m, const Plan *plan) {
    Machine k = {.arena = arena, .m = m, .plan = plan};
    for (int a = 0; a < N_ARENAS; a++)
        k.mem[a] = arena_alloc(arena, plan->arena_bytes[a] + 8);
    for (uint32_t i = 0; i < plan->consts.n; i++)
        for (int64_t j = 0; j < plan->consts.at[i].n; j++)
            machine_put(&k, plan->consts.at[i].buffer, j, (double)plan->consts.at[i].at[j]);
    return k;
}

// Element index of a row-space value: row axes by the view's strides, the others dense.
static int64_t machine_index(const Machine *k, const Func *f, const Type *t, const PlanView *v, int64_t i) {
    int64_t at = (int64_t)v->offset, dense = 1;
    for (int a = t->rank - 1; a >= 0; a--) {
        int64_t size = k->m->axes.at[t->axis[a]].size, index = i % size;
        i /= size;
        const AxisId *row = memchr(f->row_axes, t->axis[a], f->n_row_axes);
        at += index * (row ? v->stride[row - f->row_axes] : dense);
        dense *= size;
    }
    return at;
}

typedef struct MachineCall {
    const Func *f;
    double *in[64];
} MachineCall;

static const double *machine_no_param(void *ctx, int32_t i) {
    (void)ctx;
    (void)i;
    return NULL;
}

static const double *machine_input(void *ctx, const char *name) {
    MachineCall *c = ctx;
    int n = 0;
    for (uint32_t i = 1; i < c->f->nodes.n; i++)
        if (c->f->nodes.at[i].op == OP_input) {
            if (!strcmp(c->f->nodes.at[i].name, name))
                return c->in[n];
            n++;
        }
    return NULL;
}

static void machine_row_launch(Machine *k, const PlanStep *s) {
    const Func *f = NULL;
    for (int i = 0; i < n_machine_kernels; i++)
        if (machine_kernels[i].text == k->plan->kernels.at[s->kernel].source)
            f = machine_kernels[i].f;
    CHECK(f, "kernel %s was not printed", k->plan->kernels.at[s->kernel].name);
    int64_t items = 1;
    int32_t saved[4];
    for (int i = 0; i < f->n_row_axes; i++) {
        saved[i] = k->m->axes.at[f->row_axes[i]].size;
        k->m->axes.at[f->row_axes[i]].size = (int32_t)s->size[i];
        items *= s->size[i];
    }
    CHECK(items == s->items, "%s: items %lld", f->name, (long long)s->items);
    MachineCall call = {.f = f};
    int n = 0, n_in = 0;
    for (uint32_t i = 1; i < f->nodes.n; i++) {
        const Type *t = &f->nodes.at[i].type;
        if (f->nodes.at[i].op != OP_input)
            continue;
        const PlanView *v = &k->plan->views.at[s->arg0 + n];
        int64_t count = type_count(k->m, t);
        double *in = call.in[n_in++] = arena_alloc(k->arena, (size_t)(count + 1) * sizeof(double));
        int scalar = input_scalar(&f->nodes.at[i]);
        if (scalar >= 0) {
            CHECK(scalar < s->n_scalars, "%s: %d scalars", f->name, s->n_scalars);
            in[0] = (double)k->plan->scalars.at[s->scalar0 + scalar];
            continue;
        }
        for (int64_t j = 0; j < count; j++)
            in[j] = machine_get(k, v->buffer, machine_index(k, f, t, v, j));
        n++;
    }
    CHECK(s->n_args == n + (int)f->outputs.n, "%s: %d arguments", f->name, s->n_args);
    Tensor out[64];
    Env env = {&call, machine_no_param, machine_input};
    Status status = interp_run(k->arena, k->m, f, &env, false, out);
    CHECK(!status.code, "%s", status.text);
    for (uint32_t i = 0; i < f->outputs.n; i++) {
        const PlanView *v = &k->plan->views.at[s->arg0 + n + (int)i];
        AxisId rows[MAX_RANK];
        int64_t count = type_count(k->m, &out[i].type);
        bool column = f->n_row_axes && !type_rows(k->m, &out[i].type, rows);
        for (int64_t j = 0; j < count; j++)
            machine_put(k, v->buffer, machine_index(k, f, &out[i].type, v, j), out[i].at[j]);
        for (int64_t j = count; column && j < count * s->n_strips; j++)
            machine_put(k, v->buffer, (int64_t)v->offset + j, 0);
    }
    for (int i = 0; i < f->n_row_axes; i++)
        k->m->axes.at[f->row_axes[i]].size = saved[i];
}

static void machine_finish_launch(Machine *k, const PlanStep *s, bool add) {
    const PlanView *from = &k->plan->views.at[s->arg0], *to = from + 1;
    for (int64_t i = 0; i < s->size[0]; i++) {
        double sum = add ? machine_get(k, to->buffer, (int64_t)to->offset + i) : 0;
        for (int64_t j = 0; j < s->size[1]; j++)
            sum += machine_get(k, from->buffer, (int64_t)from->offset + j * s->size[0] + i);
        machine_put(k, to->buffer, (int64_t)to->offset + i, sum);
    }
}

static void machine_scatter_launch(Machine *k, const PlanStep *s, bool add) {
    const PlanView *v = &k->plan->views.at[s->arg0];
    int64_t d = s->size[1], at = 0;
    for (int64_t id = 0; id < s->items; id++)
        for (int64_t j = 0, first = at; j < d; j++) {
            int64_t to = (int64_t)v[3].offset + id * d + j;
            double sum = add ? machine_get(k, v[3].buffer, to) : 0;
            for (at = first; at < s->size[0]; at++) {
                int64_t i = (int64_t)machine_get(k, v[2].buffer, (int64_t)v[2].offset + at);
                if (machine_get(k, v[1].buffer, (int64_t)v[1].offset + i) != (double)id)
                    break;
                sum += machine_get(k, v[0].buffer, (int64_t)v[0].offset + i * v[0].stride[0] + j);
            }
            machine_put(k, v[3].buffer, to, sum);
        }
    CHECK(at == s->size[0], "scatter: %lld of %lld ids used", (long long)at, (long long)s->size[0]);
}

static void machine_attention_launch(Machine *k, const PlanStep *s, bool grad) {
    Module *m = module_new(k->arena, "attention");
    AxisId b = module_axis(m, "b", AXIS_ROW, (int32_t)s->size[0]),
           r = module_axis(m, "s", AXIS_ROW, (int32_t)s->size[1]);
    AxisId h = module_axis(m, "h", AXIS_ROW, (int32_t)s->size[2]),
           g = module_axis(m, "g", AXIS_ROW, (int32_t)s->size[3]);
    AxisId e = module_axis(m, "e", AXIS_WIDE, (int32_t)s->size[4]);
    AxisId qa[] = {b, r, h, e}, ka[] = {b, r, g, e};
    Type q = type_make(m, DT_F32, 4, qa), kv = type_make(m, DT_F32, 4, ka), lse = type_make(m, DT_F32, 3, qa);
    const Type types[] = {q, kv, kv, s->size[5] ? lse : q, lse, q, q, kv, kv};
    Func rows = {.n_row_axes = 3, .row_axes = {b, r, h}}, kv_rows = {.n_row_axes = 3, .row_axes = {b, r, g}};
    Machine local = *k;
    local.m = m;
    Tensor t[9];
    int n_in = grad ? 6 : 3;
    CHECK(s->n_args == (grad ? 9 : 5) && s->n_scalars == 1, "attention: arguments");
    for (int i = 0; i < s->n_args; i++) {
        const PlanView *v = &k->plan->views.at[s->arg0 + i];
        const Func *f = type_has(&types[i], g) ? &kv_rows : &rows;
        int64_t count = type_count(m, &types[i]);
        t[i] = (Tensor){types[i], arena_alloc(k->arena, (size_t)count * sizeof(double))};
        for (int64_t j = 0; j < count && i < n_in; j++)
            t[i].at[j] = machine_get(k, v->buffer, machine_index(&local, f, &types[i], v, j));
    }
    double scale = (double)k->plan->scalars.at[s->scalar0];
    if (grad)
        interp_attention_grad(m, scale, t, t + n_in);
    else
        interp_attention(m, scale, t, t + n_in);
    for (int i = n_in; i < s->n_args; i++) {
        const PlanView *v = &k->plan->views.at[s->arg0 + i];
        const Func *f = type_has(&types[i], g) ? &kv_rows : &rows;
        for (int64_t j = 0; j < type_count(m, &types[i]); j++)
            machine_put(k, v->buffer, machine_index(&local, f, &types[i], v, j), t[i].at[j]);
    }
}

static void machine_gemm(Machine *k, const PlanStep *s, bool add) {
    const PlanView *v = &k->plan->views.at[s->arg0];
    CHECK(s->lda >= (s->trans_a ? s->m : s->k) && s->ldb >= (s->trans_b ? s->k : s->n) && s->ldc >= s->n,
          "gemm %lldx%lldx%lld: leading sizes %lld %lld %lld", (long long)s->m, (long long)s->n,
          (long long)s->k, (long long)s->lda, (long long)s->ldb, (long long)s->ldc);
    for (int i = 0; i < 3; i++)
        CHECK(k->plan->buffers.at[v[i].buffer].dtype == (i < 2 ? s->dtype_ab : s->dtype_c), "gemm: dtype");
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            int64_t to = (int64_t)v[2].offset + i * s->ldc + j;
            double sum = add ? machine_get(k, v[2].buffer, to) : 0;
            for (int64_t l = 0; l < s->k; l++) {
                int64_t a = s->trans_a ? l * s->lda + i : i * s->lda + l;
                int64_t b = s->trans_b ? j * s->ldb + l : l * s->ldb + j;
                sum += machine_get(k, v[0].buffer, (int64_t)v[0].offset + a) *
                       machine_get(k, v[1].buffer, (int64_t)v[1].offset + b);
            }
            machine_put(k, v[2].buffer, to, sum);
        }
}

static void machine_sort(Machine *k, const PlanStep *s) {
    const PlanView *v = &k->plan->views.at[s->arg0];
    int64_t at = 0;
    for (int64_t id = 0; at < s->items; id++)
        for (int64_t i = 0; i < s->items; i++)
            if ((int64_t)machine_get(k, v[0].buffer, (int64_t)v[0].offset + i) == id)
                machine_put(k, v[1].buffer, (int64_t)v[1].offset + at++, (double)i);
}

static void machine_run(Machine *k, const char *program, int64_t micro) {
    const PlanProgram *q = &k->plan->programs.at[plan_program(k->plan, program)];
    memset(k->mem[ARENA_ACTS], 0xff, k->plan->arena_bytes[ARENA_ACTS]);
    for (int32_t i = q->step0; i < q->step0 + q->n_steps; i++) {
        const PlanStep *s = &k->plan->steps.at[i];
        bool add = s->acc == ACC_YES || (s->acc == ACC_MICRO && micro > 0);
        KernelKind kind = s->kind == STEP_LAUNCH ? k->plan->kernels.at[s->kernel].kind : KERNEL_ROW;
        if (s->kind == STEP_GEMM)
            machine_gemm(k, s, add);
        else if (s->kind == STEP_SORT)
            machine_sort(k, s);
        else if (kind == KERNEL_ROW)
            machine_row_launch(k, s);
        else if (kind == KERNEL_FINISH)
            machine_finish_launch(k, s, add);
        else if (kind == KERNEL_SCATTER)
            machine_scatter_launch(k, s, add);
        else
            machine_attention_launch(k, s, kind == KERNEL_ATTN_GRAD);
    }
}

// Dense values of a named place; NULL when the plan has none.
static double *machine_read(Machine *k, const char *name, const char *program, int64_t *n) {
    const PlanIo *io = plan_io(k->plan, name, plan_program(k->plan, program));
    *n = 1;
    if (!io)
        return NULL;
    for (int i = 0; i < io->rank; i++)
        *n *= io->shape[i];
    double *out = arena_alloc(k->arena, (size_t)*n * sizeof *out);
    for (int64_t i = 0; i < *n; i++)
        out[i] = machine_get(k, k->plan->views.at[io->view].buffer, i);
    return out;
}

// Every row axis of a launch moves through this operand: no row reads what another row may have written.
static bool machine_all_rows(const Plan *plan, const PlanStep *s, int32_t buffer) {
    for (int32_t a = 0; a < s->n_args; a++) {
        const PlanView *v = &plan->views.at[s->arg0 + a];
        for (int i = 0; v->buffer == buffer && i < PLAN_MAX_ROWS; i++)
            if (s->size[i] > 1 && !v->stride[i])
                return false;
    }
    return true;
}

// Two buffers of one program that share bytes and are both alive at some step: names them; NULL when there
// are none. Lifetimes are found again from the steps.
static const char *machine_overlap(const Plan *plan, Arena *a) {
    for (uint32_t q = 0; q < plan->programs.n; q++) {
        const PlanProgram *p = &plan->programs.at[q];
        uint32_t n = plan->buffers.n;
        int32_t *first = arena_alloc(a, n * sizeof *first), *last = arena_alloc(a, n * sizeof *last);
        memset(first, 0xff, n * sizeof *first);
        for (int32_t i = p->step0; i < p->step0 + p->n_steps; i++)
            for (int32_t j = 0; j < plan->steps.at[i].n_args; j++) {
                int32_t b = plan->views.at[plan->steps.at[i].arg0 + j].buffer;
                first[b] = first[b] < 0 ? i : first[b];
                last[b] = i;
            }
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < i; j++) {
                const PlanBuffer *x = &plan->buffers.at[i], *y = &plan->buffers.at[j];
                bool alive = first[i] >= 0 && first[j] >= 0 && first[i] <= last[j] && first[j] <= last[i];
                int32_t both = first[i] > first[j] ? first[i] : first[j];
                const PlanStep *s = &plan->steps.at[both < 0 ? 0 : both];
                bool in_place = both >= 0 &&
                                machine_all_rows(plan, s, first[i] > first[j] ? (int32_t)j : (int32_t)i) &&
                                (last[i] == both || last[j] == both) && x->offset == y->offset &&
                                x->bytes == y->bytes && s->kind == STEP_LAUNCH &&
                                plan->kernels.at[s->kernel].kind == KERNEL_ROW && first[i] != first[j];
                alive = alive && !in_place;
                if (alive && x->arena == ARENA_ACTS && y->arena == ARENA_ACTS &&
                    x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes)
                    return arena_format(a, "%s and %s", x->name, y->name);
            }
    }
    return NULL;
}
#endif
