// Runs the programs of a plan on a driver.
//
// Views are resolved once into kernel arguments through the binding table (buffer -> address) and again only
// after bindings changed, so a step costs no look-ups. The same code for every target: device memory is
// touched by copies only, except by STEP_SORT, which works on host copies of ids. Invariant: arg[v] belongs
// to plan view v whenever !stale.
#include "runtime/exec.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Exec {
    const Plan *plan;
    const Driver *driver;
    DriverState *state;
    DevPtr arena[N_ARENAS];
    DevPtr *bound;  // address of each buffer
    KernelArg *arg; // one a view
    bool stale, profile;
    double *step_ms;
    CompileStats compile;
    int32_t *sort_ids, *sort_order, *sort_count; // STEP_SORT
    int64_t sort_n, sort_count_n;
    void *staging; // copies on their way to and from the device
    size_t staging_bytes;
};

enum { STAGING_ELEMS = 1 << 20 };

static void exec_resolve(Exec *e) {
    const Plan *p = e->plan;
    for (uint32_t i = 0; i < p->views.n; i++) {
        const PlanView *v = &p->views.at[i];
        size_t size = dtype_bytes(p->buffers.at[v->buffer].dtype);
        e->arg[i].at = (void *)(e->bound[v->buffer] + v->offset * size);
        memcpy(e->arg[i].stride, v->stride, sizeof v->stride);
    }
    e->stale = false;
}

static Gemm step_gemm(const Exec *e, const PlanStep *s, bool add) {
    const KernelArg *a = &e->arg[s->arg0];
    return (Gemm){.m = s->m,
                  .n = s->n,
                  .k = s->k,
                  .lda = s->lda,
                  .ldb = s->ldb,
                  .ldc = s->ldc,
                  .trans_a = s->trans_a,
                  .trans_b = s->trans_b,
                  .add = add,
                  .dtype_ab = s->dtype_ab,
                  .dtype_c = s->dtype_c,
                  .a = (DevPtr)a[0].at,
                  .b = (DevPtr)a[1].at,
                  .c = (DevPtr)a[2].at};
}

static Status exec_prepare_gemms(Exec *e) {
    for (uint32_t i = 0; i < e->plan->steps.n; i++) {
        const PlanStep *s = &e->plan->steps.at[i];
        if (s->kind != STEP_GEMM)
            continue;
        Gemm plain = step_gemm(e, s, false), add = step_gemm(e, s, true);
        if (s->acc != ACC_YES)
            TRY(e->driver->prepare(e->state, &plain));
        if (s->acc != ACC_NO)
            TRY(e->driver->prepare(e->state, &add));
    }
    return STATUS_OK;
}

static Status exec_alloc_tables(Exec *e) {
    const Plan *p = e->plan;
    size_t need = 0;
    for (uint32_t i = 0; i < p->steps.n; i++)
        if (p->steps.at[i].kind == STEP_SORT)
            e->sort_n = MAX_OF(e->sort_n, p->steps.at[i].items);
    e->bound = mem_alloc(p->buffers.n * sizeof *e->bound);
    e->arg = mem_alloc(p->views.n * sizeof *e->arg);
    e->step_ms = mem_alloc(p->steps.n * sizeof *e->step_ms);
    e->sort_ids = mem_alloc((size_t)e->sort_n * sizeof *e->sort_ids);
    e->sort_order = mem_alloc((size_t)e->sort_n * sizeof *e->sort_order);
    e->staging_bytes = (size_t)STAGING_ELEMS * sizeof(float);
    e->staging = mem_alloc(e->staging_bytes);
    need = p->views.n * sizeof *e->arg + e->staging_bytes;
    if (!e->bound || !e->arg || !e->step_ms || !e->sort_ids || !e->sort_order || !e->staging)
        return status_memory("executor", need);
    return STATUS_OK;
}

static Status exec_alloc_arenas(Exec *e) {
    for (int a = 0; a < N_ARENAS; a++)
        if (e->plan->arena_bytes[a])
            TRY(e->driver->alloc(e->state, e->plan->arena_bytes[a], arena_id_name((ArenaId)a), &e->arena[a]));
    for (uint32_t i = 0; i < e->plan->buffers.n; i++) {
        const PlanBuffer *b = &e->plan->buffers.at[i];
        CHECK(b->offset + b->bytes <= e->plan->arena_bytes[b->arena], "buffer %s ends outside of its arena",
              b->name);
        e->bound[i] = e->arena[b->arena] + b->offset;
    }
    exec_resolve(e);
    return STATUS_OK;
}

static uint16_t to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static float from_bf16(uint16_t x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

// Host values (f32, or i32 for DT_I32) of n elements to and from contiguous device memory of a dtype.
static Status elems_write(Exec *e, DevPtr at, Dtype dtype, const void *data, int64_t n) {
    if (dtype != DT_BF16)
        return e->driver->copy(e->state, at, (DevPtr)data, (size_t)n * 4, COPY_TO_DEVICE);
    const float *f = data;
    uint16_t *half = e->staging;
    for (int64_t i = 0, m; i < n; i += m) {
        m = MIN_OF(n - i, (int64_t)STAGING_ELEMS);
        for (int64_t j = 0; j < m; j++)
            half[j] = to_bf16(f[i + j]);
        TRY(e->driver->copy(e->state, at + (size_t)i * 2, (DevPtr)half, (size_t)m * 2, COPY_TO_DEVICE));
        TRY(e->driver->sync(e->state));
    }
    return STATUS_OK;
}

static Status elems_read(Exec *e, DevPtr at, Dtype dtype, float *data, int64_t n) {
    for (int64_t i = 0, m; i < n; i += m) {
        m = dtype == DT_F32 ? n : MIN_OF(n - i, (int64_t)STAGING_ELEMS);
        void *to = dtype == DT_F32 ? (void *)data : e->staging;
        TRY(e->driver->copy(e->state, (DevPtr)to, at + (size_t)i * dtype_bytes(dtype),
                            (size_t)m * dtype_bytes(dtype), COPY_TO_HOST));
        TRY(e->driver->sync(e->state));
        for (int64_t j = 0; dtype != DT_F32 && j < m; j++)
            data[i + j] = dtype == DT_BF16 ? from_bf16(((uint16_t *)to)[j]) : (float)((int32_t *)to)[j];
    }
    return STATUS_OK;
}

static Status exec_fill_consts(Exec *e) {
    for (uint32_t i = 0; i < e->plan->consts.n; i++) {
        const PlanConst *c = &e->plan->consts.at[i];
        TRY(elems_write(e, e->bound[c->buffer], e->plan->buffers.at[c->buffer].dtype, c->at, c->n));
    }
    return e->driver->sync(e->state);
}

Status exec_open(const Plan *plan, const Driver *driver, const DriverOptions *options, Exec **out) {
    *out = NULL;
    Exec *e = mem_alloc(sizeof *e);
    if (!e)
        return status_memory("executor", sizeof *e);
    e->plan = plan;
    e->driver = driver;
    Status s = driver->open(options, &e->state);
    s = s.code ? s : driver->compile(e->state, plan, &e->compile);
    s = s.code ? s : exec_alloc_tables(e);
    s = s.code ? s : exec_alloc_arenas(e);
    s = s.code ? s : exec_prepare_gemms(e);
    s = s.code ? s : exec_fill_consts(e);
    if (s.code) {
        exec_close(e);
        return s;
    }
    *out = e;
    return STATUS_OK;
}

void exec_close(Exec *e) {
    if (!e)
        return;
    if (e->state)
        for (int a = 0; a < N_ARENAS; a++)
            if (e->arena[a])
                e->driver->free(e->state, e->arena[a]);
    e->driver->close(e->state);
    mem_free(e->bound);
    mem_free(e->arg);
    mem_free(e->step_ms);
    mem_free(e->sort_ids);
    mem_free(e->sort_order);
    mem_free(e->sort_count);
    mem_free(e->staging);
    mem_free(e);
}

// ---- Steps.
// order: the positions of ids, sorted by id, equal ids in order of position. Stable counting sort on the CPU.
static Status step_sort(Exec *e, const PlanStep *s) {
    const KernelArg *a = &e->arg[s->arg0];
    int64_t n = s->items, top = 0;
    size_t bytes = (size_t)n * sizeof(int32_t);
    TRY(e->driver->copy(e->state, (DevPtr)e->sort_ids, (DevPtr)a[0].at, bytes, COPY_TO_HOST));
    TRY(e->driver->sync(e->state));
    for (int64_t i = 0; i < n; i++) {
        if (e->sort_ids[i] < 0)
            return status_make(EXIT_REQUEST, "token %lld has the id %d", (long long)i, e->sort_ids[i]);
        top = MAX_OF(top, e->sort_ids[i]);
    }
    if (e->sort_count_n < top + 2) {
        int32_t *more = mem_realloc(e->sort_count, (size_t)(top + 2) * sizeof *more);
        if (!more)
            return status_memory("sorting of ids", (size_t)(top + 2) * sizeof *more);
        e->sort_count = more;
        e->sort_count_n = top + 2;
    }
    memset(e->sort_count, 0, (size_t)(top + 2) * sizeof *e->sort_count);
    for (int64_t i = 0; i < n; i++)
        e->sort_count[e->sort_ids[i] + 1]++;
    for (int64_t v = 1; v <= top; v++)
        e->sort_count[v] += e->sort_count[v - 1];
    for (int64_t i = 0; i < n; i++)
        e->sort_order[e->sort_count[e->sort_ids[i]]++] = (int32_t)i;
    TRY(e->driver->copy(e->state, (DevPtr)a[1].at, (DevPtr)e->sort_order, bytes, COPY_TO_DEVICE));
    return e->driver->sync(e->state); // the table is used again
}

static Status exec_step(Exec *e, const PlanStep *s, int64_t micro) {
    bool add = s->acc == ACC_YES || (s->acc == ACC_MICRO && micro > 0);
    switch (s->kind) {
    case STEP_LAUNCH: {
        Launch l = {.kernel = s->kernel, .items = s->items, .n_strips = s->n_strips};
        memcpy(l.args.size, s->size, sizeof l.args.size);
        l.args.arg = &e->arg[s->arg0];
        l.args.scalar = s->n_scalars ? e->plan->scalars.at + s->scalar0 : NULL;
        l.args.acc = add;
        return e->driver->launch(e->state, &l);
    }
    case STEP_GEMM: {
        Gemm g = step_gemm(e, s, add);
        return e->driver->gemm(e->state, &g);
    }
    case STEP_SORT:
        return step_sort(e, s);
    case STEP_FILL:
        if (add)
            return STATUS_OK;
        return e->driver->fill(e->state, (DevPtr)e->arg[s->arg0].at,
                               (size_t)s->items *
                                   dtype_bytes(e->plan->buffers.at[e->plan->views.at[s->arg0].buffer].dtype));
    }
    CHECK(false, "step kind %d", (int)s->kind);
}

Status exec_run(Exec *e, int32_t program, int64_t micro) {
    const PlanProgram *p = &e->plan->programs.at[program];
    if (e->stale)
        exec_resolve(e);
    for (int32_t i = p->step0; i < p->step0 + p->n_steps; i++) {
        double start = e->profile ? now_ms() : 0;
        TRY(exec_step(e, &e->plan->steps.at[i], micro));
        if (e->profile) {
            TRY(e->driver->sync(e->state));
            e->step_ms[i] = now_ms() - start;
        }
    }
    return e->driver->sync(e->state);
}

void exec_profile(Exec *e, bool on) {
    e->profile = on;
}

const double *exec_step_ms(const Exec *e) {
    return e->step_ms;
}

const CompileStats *exec_compile_stats(const Exec *e) {
    return &e->compile;
}

Status exec_device(Exec *e, DeviceInfo *out) {
    return e->driver->query(e->state, out);
}

// ---- Inputs and outputs.
// Runs of consecutive elements of a named place: the first row axes may have strides, what follows is
// contiguous.
typedef struct Runs {
    int64_t n, length; // n runs of length elements
    int rank;          // outer axes
    int64_t size[PLAN_MAX_ROWS], stride[PLAN_MAX_ROWS];
} Runs;

static Runs io_runs(const PlanIo *io, const PlanView *v) {
    Runs r = {.n = 1, .length = 1};
    int64_t dense[MAX_RANK + 1];
    dense[io->rank] = 1;
    for (int i = io->rank - 1; i >= 0; i--)
        dense[i] = dense[i + 1] * io->shape[i];
    for (int i = 0; i < io->rank && i < PLAN_MAX_ROWS; i++)
        if (v->stride[i] && v->stride[i] != dense[i + 1])
            r.rank = i + 1; // the last axis that is not where a dense value has it
    for (int i = 0; i < r.rank; i++) {
        r.size[i] = io->shape[i];
        r.stride[i] = v->stride[i];
        r.n *= io->shape[i];
    }
    r.length = dense[r.rank];
    return r;
}

static int64_t run_offset(const Runs *r, int64_t i) {
    int64_t at = 0;
    for (int a = r->rank - 1; a >= 0; a--) {
        at += i % r->size[a] * r->stride[a];
        i /= r->size[a];
    }
    return at;
}

static const PlanIo *io_find(Exec *e, const char *name, int32_t program, int64_t n) {
    const PlanIo *io = plan_io(e->plan, name, program);
    CHECK(io, "the plan has no %s", name);
    int64_t count = 1;
    for (int i = 0; i < io->rank; i++)
        count *= io->shape[i];
    CHECK(count == n, "%s has %lld elements, not %lld", name, (long long)count, (long long)n);
    return io;
}

static DevPtr io_address(Exec *e, const PlanIo *io) {
    const PlanView *v = &e->plan->views.at[io->view];
    const PlanBuffer *b = &e->plan->buffers.at[v->buffer];
    return e->bound[v->buffer] + v->offset * dtype_bytes(b->dtype);
}

Status exec_write(Exec *e, const char *name, int32_t program, const void *data, int64_t n) {
    const PlanIo *io = io_find(e, name, program, n);
    const int32_t *ids = data;
    for (int64_t i = 0; io->dtype == DT_I32 && io->limit && i < n; i++)
        if (ids[i] < io->low || ids[i] >= io->limit)
            return status_make(EXIT_REQUEST, "%s: element %lld is %d, which is not in [%lld, %lld)", name,
                               (long long)i, ids[i], (long long)io->low, (long long)io->limit);
    Runs r = io_runs(io, &e->plan->views.at[io->view]);
    size_t size = dtype_bytes(io->dtype);
    for (int64_t i = 0; i < r.n; i++)
        TRY(elems_write(e, io_address(e, io) + (size_t)run_offset(&r, i) * size, io->dtype,
                        (const char *)data + i * r.length * 4, r.length));
    return e->driver->sync(e->state);
}

Status exec_read(Exec *e, const char *name, int32_t program, float *data, int64_t n) {
    const PlanIo *io = io_find(e, name, program, n);
    Runs r = io_runs(io, &e->plan->views.at[io->view]);
    size_t size = dtype_bytes(io->dtype);
    for (int64_t i = 0; i < r.n; i++)
        TRY(elems_read(e, io_address(e, io) + (size_t)run_offset(&r, i) * size, io->dtype,
                       data + i * r.length, r.length));
    return STATUS_OK;
}

// ---- Parameters.
// Where a part of a parameter is: moments lie in their arenas at the offset of the value.
static DevPtr param_address(Exec *e, const PlanParam *p, ParamPart part) {
    const PlanBuffer *value = &e->plan->buffers.at[p->buffer];
    if (part == PART_VALUE)
        return e->bound[p->buffer];
    if (part == PART_GRAD)
        return p->grad_buffer < 0 ? 0 : e->bound[p->grad_buffer];
    ArenaId arena = part == PART_EXP_AVG ? ARENA_EXP_AVG : ARENA_EXP_AVG_SQ;
    return p->trained && e->arena[arena] ? e->arena[arena] + value->offset : 0;
}

static int64_t param_count(const PlanParam *p) {
    int64_t n = 1;
    for (int i = 0; i < p->rank; i++)
        n *= p->shape[i];
    return n;
}

static bool param_transposed(const PlanParam *p) {
    for (int i = 0; i < p->rank; i++)
        if (p->order[i] != i)
            return true;
    return false;
}

// file[...] and memory[...] hold the same elements; memory axis i is file axis order[i].
static void param_reorder(const PlanParam *p, float *file, float *memory, bool to_memory) {
    int64_t stride[MAX_RANK], index[MAX_RANK] = {0}, file_stride[MAX_RANK], n = param_count(p), at = 0,
                              step = 1;
    for (int i = p->rank - 1; i >= 0; i--) {
        file_stride[i] = step;
        step *= p->shape[i];
    }
    for (int i = 0; i < p->rank; i++)
        stride[i] = file_stride[p->order[i]];
    for (int64_t m = 0; m < n; m++) {
        if (to_memory)
            memory[m] = file[at];
        else
            file[at] = memory[m];
        for (int i = p->rank - 1; i >= 0; i--) { // next index in memory order
            at += stride[i];
            if (++index[i] < p->shape[p->order[i]])
                break;
            at -= stride[i] * index[i];
            index[i] = 0;
        }
    }
}

Status exec_param_write(Exec *e, int32_t param, ParamPart part, const float *data) {
    const PlanParam *p = &e->plan->params.at[param];
    DevPtr at = param_address(e, p, part);
    int64_t n = param_count(p);
    CHECK(at, "parameter %s has no such part", p->name);
    if (!param_transposed(p))
        return elems_write(e, at, DT_F32, data, n);
    float *memory = mem_alloc((size_t)n * sizeof *memory);
    if (!memory)
        return status_memory(p->name, (size_t)n * sizeof *memory);
    param_reorder(p, (float *)(uintptr_t)data, memory, true);
    Status s = elems_write(e, at, DT_F32, memory, n);
    s = s.code ? s : e->driver->sync(e->state);
    mem_free(memory);
    return s;
}

Status exec_param_read(Exec *e, int32_t param, ParamPart part, float *data) {
    const PlanParam *p = &e->plan->params.at[param];
    DevPtr at = param_address(e, p, part);
    int64_t n = param_count(p);
    if (!at) { // not trained: no gradient, no moments
        memset(data, 0, (size_t)n * sizeof *data);
        return STATUS_OK;
    }
    if (!param_transposed(p))
        return elems_read(e, at, DT_F32, data, n);
    float *memory = mem_alloc((size_t)n * sizeof *memory);
    if (!memory)
        return status_memory(p->name, (size_t)n * sizeof *memory);
    Status s = elems_read(e, at, DT_F32, memory, n);
    if (!s.code)
        param_reorder(p, data, memory, false);
    mem_free(memory);
    return s;
}

Status exec_refresh_copies(Exec *e) {
    enum { PIECE = STAGING_ELEMS / 2 }; // elems_write uses the staging area too
    if (!e->arena[ARENA_COPIES])
        return STATUS_OK;
    size_t n = MIN_OF(e->plan->arena_bytes[ARENA_COPIES] / 2, e->plan->arena_bytes[ARENA_PARAMS] / 4);
    float *values = mem_alloc((size_t)PIECE * sizeof *values);
    if (!values)
        return status_memory("bf16 copies", (size_t)PIECE * sizeof *values);
    Status s = STATUS_OK;
    for (size_t i = 0; !s.code && i < n; i += PIECE) {
        int64_t m = (int64_t)MIN_OF(n - i, (size_t)PIECE);
        s = elems_read(e, e->arena[ARENA_PARAMS] + i * 4, DT_F32, values, m);
        s = s.code ? s : elems_write(e, e->arena[ARENA_COPIES] + i * 2, DT_BF16, values, m);
    }
    mem_free(values);
    return s.code ? s : e->driver->sync(e->state);
}

static void swap_bound(Exec *e, int32_t a, int32_t b) {
    CHECK((a < 0) == (b < 0), "exchange of parameters of different kinds");
    if (a < 0)
        return;
    CHECK(e->plan->buffers.at[a].bytes == e->plan->buffers.at[b].bytes,
          "exchange of %s and %s of different sizes", e->plan->buffers.at[a].name,
          e->plan->buffers.at[b].name);
    DevPtr t = e->bound[a];
    e->bound[a] = e->bound[b];
    e->bound[b] = t;
}

void exec_swap(Exec *e, int32_t param_a, int32_t param_b) {
    const PlanParam *a = &e->plan->params.at[param_a], *b = &e->plan->params.at[param_b];
    swap_bound(e, a->buffer, b->buffer);
    swap_bound(e, a->copy_buffer, b->copy_buffer);
    e->stale = true;
}

// ---- Values that are not finite.
static Status buffer_finite(Exec *e, int32_t buffer, bool *finite) {
    const PlanBuffer *b = &e->plan->buffers.at[buffer];
    size_t size = dtype_bytes(b->dtype), n = b->bytes / size;
    *finite = true;
    if (b->dtype == DT_I32)
        return STATUS_OK;
    float *values = mem_alloc((size_t)STAGING_ELEMS * sizeof *values);
    if (!values)
        return status_memory("search for values that are not finite", (size_t)STAGING_ELEMS * sizeof *values);
    Status s = STATUS_OK;
    for (size_t i = 0; !s.code && *finite && i < n; i += STAGING_ELEMS) {
        int64_t m = (int64_t)MIN_OF(n - i, (size_t)STAGING_ELEMS);
        s = elems_read(e, e->bound[buffer] + i * size, b->dtype, values, m);
        for (int64_t j = 0; !s.code && j < m; j++)
            if (!isfinite(values[j]))
                *finite = false;
    }
    mem_free(values);
    return s;
}

static bool buffers_overlap(const PlanBuffer *a, const PlanBuffer *b) {
    return a->arena == b->arena && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

// A buffer that begins to live at this step is cleared, so that parts which nobody has written yet do not
// show what lay there before; unless it shares its place with another operand (computed in place).
static Status clear_new_buffers(Exec *e, int32_t step) {
    const PlanStep *s = &e->plan->steps.at[step];
    for (int32_t i = 0; i < s->n_args; i++) {
        int32_t buffer = e->plan->views.at[s->arg0 + i].buffer;
        const PlanBuffer *b = &e->plan->buffers.at[buffer];
        bool clear = b->arena == ARENA_ACTS && b->first == step;
        for (int32_t j = 0; clear && j < s->n_args; j++) {
            int32_t other = e->plan->views.at[s->arg0 + j].buffer;
            clear = other == buffer || !buffers_overlap(b, &e->plan->buffers.at[other]);
        }
        if (clear)
            TRY(e->driver->fill(e->state, e->bound[buffer], b->bytes));
    }
    return STATUS_OK;
}

static const char *step_what(const Exec *e, const PlanStep *s) {
    switch (s->kind) {
    case STEP_LAUNCH:
        return e->plan->kernels.at[s->kernel].name;
    case STEP_GEMM:
        return "gemm";
    case STEP_SORT:
        return "sort";
    case STEP_FILL:
        return "fill";
    }
    return "";
}

Status exec_find_nonfinite(Exec *e, int32_t program, char *name, size_t name_bytes) {
    const PlanProgram *p = &e->plan->programs.at[program];
    name[0] = 0;
    if (e->stale)
        exec_resolve(e);
    for (int32_t i = p->step0; i < p->step0 + p->n_steps; i++) {
        const PlanStep *s = &e->plan->steps.at[i];
        TRY(clear_new_buffers(e, i));
        TRY(exec_step(e, s, 0));
        TRY(e->driver->sync(e->state));
        for (int32_t a = 0; a < s->n_args; a++) {
            int32_t buffer = e->plan->views.at[s->arg0 + a].buffer;
            bool finite;
            TRY(buffer_finite(e, buffer, &finite));
            if (!finite) {
                snprintf(name, name_bytes, "%s (step %d, %s, %s)", e->plan->buffers.at[buffer].name,
                         i - p->step0, step_what(e, s), s->origin ? s->origin : "");
                return STATUS_OK;
            }
        }
    }
    return STATUS_OK;
}
