// A model of twelve numbers on a driver of its own: what the training loop and checkpoints need, without
// compiler.
//
// pred(id) = a[id % 6] + b[id % 6]; loss = inv_tokens * sum of (pred - target % 5)^2; AdamW without clipping.
#ifndef DEPTHBENCH_TESTS_TOY_MODEL_H
#define DEPTHBENCH_TESTS_TOY_MODEL_H
#include "runtime/exec.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOY_A = 0, TOY_B = 64, TOY_FIXED = PLAN_ROW, TOY_SEQ = 8 };
enum { TOY_MICRO, TOY_UPDATE, TOY_EVAL };

static Status toy_open(const DriverOptions *o, DriverState **s) {
    (void)o;
    *s = malloc(1);
    return STATUS_OK;
}
static void toy_close(DriverState *s) {
    free(s);
}
static Status toy_query(DriverState *s, DeviceInfo *i) {
    (void)s;
    *i = (DeviceInfo){.threads = 1};
    return STATUS_OK;
}
static Status toy_alloc(DriverState *s, size_t bytes, const char *what, DevPtr *p) {
    (void)s;
    (void)what;
    *p = (DevPtr)calloc(1, bytes);
    return STATUS_OK;
}
static void toy_free(DriverState *s, DevPtr p) {
    (void)s;
    free((void *)p);
}
static Status toy_compile(DriverState *s, const Plan *p, CompileStats *c) {
    (void)s;
    (void)p;
    *c = (CompileStats){0};
    return STATUS_OK;
}
static Status toy_gemm(DriverState *s, const Gemm *g) {
    (void)s;
    (void)g;
    return STATUS_OK;
}
static Status toy_copy(DriverState *s, DevPtr to, DevPtr from, size_t bytes, CopyKind kind) {
    (void)s;
    (void)kind;
    memcpy((void *)to, (void *)from, bytes);
    return STATUS_OK;
}
static Status toy_fill(DriverState *s, DevPtr to, size_t bytes) {
    (void)s;
    memset((void *)to, 0, bytes);
    return STATUS_OK;
}
static Status toy_sync(DriverState *s) {
    (void)s;
    return STATUS_OK;
}

static void toy_loss(const Launch *l, bool grad) {
    const KernelArg *a = l->args.arg;
    const float *w = a[0].at;
    float *g = a[1].at, inv = *(float *)a[4].at, sum = 0;
    const int32_t *ids = a[2].at, *targets = a[3].at;
    if (grad && !l->args.acc)
        memset(g, 0, PLAN_ROW * sizeof *g);
    for (int64_t i = 0; i < l->items; i++) {
        if (targets[i] < 0)
            continue;
        int32_t k = ids[i] % 6;
        float e = w[TOY_A + k] + w[TOY_B + k] - (float)(targets[i] % 5);
        sum += e * e * inv;
        if (grad) {
            g[TOY_A + k] += 2 * e * inv;
            g[TOY_B + k] += 2 * e * inv;
        }
    }
    *(float *)a[5].at = sum;
}

static void toy_update(const Launch *l) {
    const KernelArg *a = l->args.arg;
    float *w = a[0].at, *g = a[1].at, *m = a[2].at, *v = a[3].at, lr = *(float *)a[4].at,
          b1 = *(float *)a[5].at, b2 = *(float *)a[6].at, sum = 0;
    for (int i = 0; i < PLAN_ROW; i++)
        sum += g[i] * g[i];
    *(float *)a[7].at = sqrtf(sum);
    for (int i = 0; i < PLAN_ROW && isfinite(sum); i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.95f * v[i] + 0.05f * g[i] * g[i];
        w[i] = w[i] * (1 - 0.1f * lr) - lr / b1 * m[i] / (sqrtf(v[i] / b2) + 1e-8f);
    }
}

static Status toy_launch(DriverState *s, const Launch *l) {
    (void)s;
    if (l->kernel == TOY_UPDATE)
        toy_update(l);
    else
        toy_loss(l, l->kernel == TOY_MICRO);
    return STATUS_OK;
}

static const Driver toy_driver = {.name = "toy",
                                  .open = toy_open,
                                  .close = toy_close,
                                  .query = toy_query,
                                  .measure = toy_query,
                                  .alloc = toy_alloc,
                                  .free = toy_free,
                                  .compile = toy_compile,
                                  .prepare = toy_gemm,
                                  .launch = toy_launch,
                                  .gemm = toy_gemm,
                                  .copy = toy_copy,
                                  .fill = toy_fill,
                                  .sync = toy_sync};

static int32_t toy_buffer(Plan *p, const char *name, ArenaId arena, Dtype dtype, size_t elems) {
    size_t bytes = (elems * 4 + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    PlanBuffer b = {.name = name,
                    .arena = arena,
                    .dtype = dtype,
                    .bytes = elems * 4,
                    .offset = p->arena_bytes[arena],
                    .program = -1};
    p->arena_bytes[arena] += bytes;
    vec_push(p->arena, &p->buffers, b);
    return (int32_t)p->buffers.n - 1;
}

static void toy_io(Plan *p, const char *name, Dtype dtype, int64_t batch, bool output) {
    int32_t buffer = toy_buffer(p, name, ARENA_IO, dtype, batch ? (size_t)(batch * TOY_SEQ) : 1);
    PlanIo io = {
        .name = name, .view = buffer, .program = -1, .dtype = dtype, .rank = batch ? 2 : 0, .output = output};
    io.shape[0] = batch;
    io.shape[1] = TOY_SEQ;
    vec_push(p->arena, &p->io, io);
}

static void toy_param(Plan *p, const char *name, size_t at, int32_t rank, const int64_t *shape,
                      bool trained) {
    PlanBuffer b = {.name = name, .arena = ARENA_PARAMS, .dtype = DT_F32, .offset = at * 4, .program = -1};
    size_t n = 1;
    PlanParam q = {.name = name,
                   .copy_buffer = -1,
                   .grad_buffer = -1,
                   .rank = rank,
                   .trained = trained,
                   .decay = trained,
                   .owner = -1,
                   .init = {INIT_NORMAL, 0.5, NULL}};
    for (int32_t i = 0; i < rank; i++) {
        q.shape[i] = shape[i];
        q.order[i] = (int8_t)(rank - 1 - i);
        n *= (size_t)shape[i];
    }
    b.bytes = n * 4;
    vec_push(p->arena, &p->buffers, b);
    q.buffer = (int32_t)p->buffers.n - 1;
    vec_push(p->arena, &p->params, q);
}

static void toy_program(Plan *p, const char *name, int32_t kernel, int64_t items, const int32_t *args,
                        int32_t n) {
    PlanProgram program = {.name = name, .step0 = (int32_t)p->steps.n, .n_steps = 1};
    PlanStep step = {.kind = STEP_LAUNCH,
                     .kernel = kernel,
                     .items = items,
                     .n_strips = 1,
                     .arg0 = (int32_t)p->views.n,
                     .n_args = n,
                     .acc = kernel == TOY_MICRO ? ACC_MICRO : ACC_NO,
                     .origin = "toy:1"};
    PlanKernel k = {.name = name};
    vec_push(p->arena, &p->kernels, k);
    vec_push(p->arena, &p->programs, program);
    vec_push(p->arena, &p->steps, step);
    for (int32_t i = 0; i < n; i++) {
        PlanView v = {.buffer = args[i]};
        vec_push(p->arena, &p->views, v);
    }
}

// The plan of micro-batches of `batch` sequences. arena: arena_init with a fail point set, or memory that
// suffices.
static void toy_plan(Arena *arena, int64_t batch, Plan *p) {
    *p = (Plan){.arena = arena,
                .model = "toy",
                .batch = batch,
                .seq = TOY_SEQ,
                .decay_elems = PLAN_ROW,
                .trained_elems = PLAN_ROW};
    vec_push(arena, &p->scalars, 0.0f);
    int32_t params = toy_buffer(p, "params", ARENA_PARAMS, DT_F32, 2 * PLAN_ROW);
    int32_t grads = toy_buffer(p, "grads", ARENA_GRADS, DT_F32, PLAN_ROW);
    int32_t m = toy_buffer(p, "exp_avg", ARENA_EXP_AVG, DT_F32, PLAN_ROW);
    int32_t v = toy_buffer(p, "exp_avg_sq", ARENA_EXP_AVG_SQ, DT_F32, PLAN_ROW);
    int32_t io = (int32_t)p->buffers.n;
    // io views come first, one a buffer
    for (int32_t i = 0; i < io + 8; i++) {
        PlanView view = {.buffer = i};
        vec_push(arena, &p->views, view);
    }
    toy_io(p, "ids", DT_I32, batch, false);
    toy_io(p, "targets", DT_I32, batch, false);
    toy_io(p, "inv_tokens", DT_F32, 0, false);
    toy_io(p, "loss", DT_F32, 0, true);
    toy_io(p, "lr", DT_F32, 0, false);
    toy_io(p, "bias1", DT_F32, 0, false);
    toy_io(p, "bias2", DT_F32, 0, false);
    toy_io(p, "grad_norm", DT_F32, 0, true);
    toy_param(p, "a.weight", TOY_A, 1, (int64_t[]){6}, true);
    toy_param(p, "b.weight", TOY_B, 2, (int64_t[]){3, 2}, true);
    toy_param(p, "fixed", TOY_FIXED, 1, (int64_t[]){2}, false);
    int64_t items = batch * TOY_SEQ;
    toy_program(p, "micro", TOY_MICRO, items, (int32_t[]){params, grads, io, io + 1, io + 2, io + 3}, 6);
    toy_program(p, "update", TOY_UPDATE, 1, (int32_t[]){params, grads, m, v, io + 4, io + 5, io + 6, io + 7},
                8);
    toy_program(p, "eval", TOY_EVAL, items, (int32_t[]){params, grads, io, io + 1, io + 2, io + 3}, 6);
}
#endif
