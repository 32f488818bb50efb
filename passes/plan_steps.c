// Steps of a program: kernel launches, copies, column sums, attention, the gradient of an embedding.
//
// A row kernel sees strides of its row axes alone; everything else of a value must be dense, so an operand
// that is not gets a dense copy (rare: views of small axes stay inside of kernels). Column sums go through a
// buffer of partial sums, one row a strip; the number of strips depends on the number of rows alone, so the
// bits do not depend on threads.
#include "passes/planner.h"
#include <string.h>

enum { ROWS_PER_STRIP = 64, FINISH_GROUP = 256, FINISH_PER_STRIP = 8 };

int32_t strips_of(const Planner *p, int64_t items, int64_t per_strip) {
    int64_t n = items / per_strip;
    n = MIN_OF(n, (int64_t)p->o->limits.max_strips);
    return (int32_t)MAX_OF(n, 1);
}

// The step stays valid until the next step_begin.
PlanStep *step_begin(Planner *p, StepKind kind) {
    PlanStep s = {.kind = kind, .kernel = -1, .arg0 = (int32_t)p->plan->views.n, .n_strips = 1};
    s.scalar0 = (int32_t)p->plan->scalars.n;
    s.origin = origin_text(p, p->origin);
    vec_push(p->plan->arena, &p->plan->steps, s);
    return &p->plan->steps.at[p->plan->steps.n - 1];
}

void step_arg(Planner *p, PlanStep *s, int32_t buffer, int64_t offset, int n, const int64_t *stride) {
    CHECK(buffer >= 0 && offset >= 0 && n <= PLAN_MAX_ROWS, "argument %d of a step of %s", s->n_args,
          p->f->name);
    PlanView v = {.buffer = buffer, .offset = (size_t)offset};
    for (int i = 0; i < n; i++)
        v.stride[i] = stride[i];
    vec_push(p->plan->arena, &p->plan->views, v);
    s->n_args++;
}

// ---- Values.
Value value_at(Planner *p, Ref r) {
    Value v = {node_at(p->f, r)->type, p->at[r]};
    CHECK(v.at.buffer >= 0, "%s: %%%u (%s) is used before it is made", p->f->name, (unsigned)r,
          op_info[node_at(p->f, r)->op].name);
    return v;
}

Value value_result(Planner *p, Ref r) {
    const Type *t = &node_at(p->f, r)->type;
    if (p->at[r].buffer < 0) {
        const Node *base = node_at(p->f, node_base(p->f, r));
        const char *what = base->op == OP_call ? p->m->funcs.at[base->k]->name : op_info[base->op].name;
        p->at[r] = place_dense(p->m, t, buffer_acts(p, r, what, (Dtype)t->dtype, type_count(p->m, t)));
    }
    return (Value){*t, p->at[r]};
}

bool rows_flatten(const Module *m, const Value *v, int64_t *n, int64_t *stride) {
    AxisId rows[MAX_RANK];
    int n_rows = type_rows(m, &v->type, rows);
    *n = 1;
    *stride = 0;
    for (int i = n_rows - 1; i >= 0; i--) {
        int64_t size = axis_size(m, rows[i]);
        if (size == 1)
            continue;
        if (*stride && v->at.stride[i] != *stride * *n)
            return false;
        *stride = *stride ? *stride : v->at.stride[i];
        *n *= size;
    }
    return true;
}

static Value temporary(Planner *p, const Type *t) {
    return (Value){*t, place_dense(p->m, t, buffer_acts(p, 0, "copy", (Dtype)t->dtype, type_count(p->m, t)))};
}

Value value_dense(Planner *p, const Value *v) {
    if (place_dense_from(p->m, &v->type, &v->at, 0))
        return *v;
    Value t = temporary(p, &v->type);
    emit_copy(p, v, &t);
    return t;
}

Value value_inner_dense(Planner *p, const Value *v) {
    return place_inner_dense(p->m, &v->type, &v->at) ? *v : value_dense(p, v);
}

// ---- Row kernels.
// The axis of the caller that stands where the kernel has its row axis i; -1 when the type has none.
static int row_index(const Func *f, int i, const Type *t) {
    return type_axis(t, f->row_axes[i]);
}

static Ref kernel_input(const Func *f, int k) {
    for (Ref r = 1; r < f->nodes.n; r++)
        if (f->nodes.at[r].op == OP_input && input_scalar(&f->nodes.at[r]) < 0 && k-- == 0)
            return r;
    CHECK(false, "kernel %s has too few operands", f->name);
}

static const Type *arg_type(const Func *f, int i, int n_in) {
    return &node_at(f, i < n_in ? kernel_input(f, i) : f->outputs.at[i - n_in].ref)->type;
}

static bool is_column(const Planner *p, const Func *f, const Type *t) {
    AxisId rows[MAX_RANK];
    return f->n_row_axes && !type_rows(p->m, t, rows);
}

static void row_arg(Planner *p, PlanStep *s, const Func *f, const Type *formal, const Value *v) {
    int64_t stride[PLAN_MAX_ROWS] = {0};
    CHECK(formal->rank == v->type.rank && formal->dtype == v->type.dtype,
          "kernel %s: argument %d has another type", f->name, s->n_args);
    for (int i = 0; i < f->n_row_axes; i++) {
        int at = row_index(f, i, formal);
        if (at < 0)
            continue;
        stride[i] = v->at.stride[at];
        s->size[i] = axis_size(p->m, v->type.axis[at]);
    }
    step_arg(p, s, v->at.buffer, v->at.offset, f->n_row_axes, stride);
}

// Sizes of the row axes as the arguments have them, then items and strips.
static void row_sizes(const Planner *p, PlanStep *s, const LaunchSpec *l) {
    const Func *f = l->f;
    for (int i = 0; i < f->n_row_axes; i++)
        s->size[i] = axis_size(p->m, f->row_axes[i]);
    for (int j = 0; j < l->n_in + l->n_out; j++) {
        const Type *formal = arg_type(f, j, l->n_in),
                   *t = j < l->n_in ? &l->in[j].type : &l->out[j - l->n_in].type;
        for (int i = 0; i < f->n_row_axes; i++) {
            int at = row_index(f, i, formal);
            if (at >= 0)
                s->size[i] = axis_size(p->m, t->axis[at]);
        }
    }
    s->items = 1;
    for (int i = 0; i < f->n_row_axes; i++)
        s->items *= s->size[i];
    s->n_strips = strips_of(p, s->items, ROWS_PER_STRIP);
}

// Where the kernel writes a result: its place, or partial sums that are added up behind the launch.
static Value launch_target(Planner *p, const LaunchSpec *l, int i, int64_t n_strips) {
    Value v = l->out[i];
    bool column = is_column(p, l->f, &v.type);
    if (l->acc[i] == ACC_NO && (!column || n_strips == 1))
        return v;
    int64_t count = type_count(p->m, &v.type) * (column ? n_strips : 1);
    v.at = place_dense(p->m, &v.type, buffer_acts(p, 0, "partial", DT_F32, count));
    return v;
}

// The value is all there is in its buffer of the acts arena.
static bool fills_buffer(const Planner *p, const Value *v) {
    const PlanBuffer *b = &p->plan->buffers.at[v->at.buffer];
    size_t bytes = (size_t)type_count(p->m, &v->type) * dtype_bytes(b->dtype);
    return b->arena == ARENA_ACTS && b->bytes == bytes && place_dense_from(p->m, &v->type, &v->at, 0);
}

// A row kernel may write a result over an operand of the same type that has all rows: each row is read before
// it is written, while what lacks rows is read by all. Whether it does depends on lifetimes.
static void note_in_place(Planner *p, const Func *f, const Value *in, int n_in, const Value *out, int n_out) {
    int32_t step = (int32_t)p->plan->steps.n - 1;
    AxisId rows[MAX_RANK];
    for (int i = 0; i < n_out; i++)
        for (int j = 0; j < n_in && type_rows(p->m, &out[i].type, rows) == f->n_row_axes; j++)
            if (type_same(&in[j].type, &out[i].type) && fills_buffer(p, &in[j]) && fills_buffer(p, &out[i]))
                vec_push(p->plan->arena, &p->in_place, ((InPlace){step, in[j].at.buffer, out[i].at.buffer}));
}

void emit_launch(Planner *p, const LaunchSpec *l) {
    const Func *f = l->f;
    CHECK(f->n_row_axes <= PLAN_MAX_ROWS, "kernel %s has %d row axes", f->name, f->n_row_axes);
    PlanStep sizes = {0};
    row_sizes(p, &sizes, l);
    int n = l->n_in + l->n_out;
    Value *args = arena_alloc(p->plan->arena, (size_t)n * sizeof *args);
    for (int i = 0; i < l->n_in; i++)
        args[i] = value_inner_dense(p, &l->in[i]);
    for (int i = 0; i < l->n_out; i++)
        args[l->n_in + i] = launch_target(p, l, i, sizes.n_strips);
    PlanStep *s = step_begin(p, STEP_LAUNCH);
    s->kernel = l->kernel;
    s->items = sizes.items;
    s->n_strips = sizes.n_strips;
    s->n_scalars = l->n_scalars;
    memcpy(s->size, sizes.size, sizeof s->size);
    for (int i = 0; i < l->n_scalars; i++)
        vec_push(p->plan->arena, &p->plan->scalars, l->scalars[i]);
    for (int i = 0; i < n; i++)
        row_arg(p, s, f, arg_type(f, i, l->n_in), &args[i]);
    note_in_place(p, f, args, l->n_in, args + l->n_in, l->n_out);
    const PlanKernel *k = &p->plan->kernels.at[l->kernel];
    s->bytes = k->bytes_per_item * (double)s->items;
    s->flops = k->flops_per_item * (double)s->items;
    for (int i = 0; i < l->n_out; i++) {
        const Value *to = &l->out[i], *from = &args[l->n_in + i];
        if (from->at.buffer != to->at.buffer)
            emit_finish(p, from->at.buffer, 0, is_column(p, f, &to->type) ? sizes.n_strips : 1, &to->at,
                        type_count(p->m, &to->type), l->acc[i]);
    }
}

void emit_finish(Planner *p, int32_t from, int64_t offset, int64_t strips, const Place *to, int64_t count,
                 Accumulate acc) {
    int32_t kernel = kernel_finish(p);
    PlanStep *s = step_begin(p, STEP_LAUNCH);
    s->kernel = kernel;
    s->acc = acc;
    s->items = (count + FINISH_GROUP - 1) / FINISH_GROUP;
    s->n_strips = strips_of(p, s->items, FINISH_PER_STRIP);
    s->size[0] = count;
    s->size[1] = strips;
    s->bytes = 4.0 * (double)count * (double)(strips + (acc == ACC_NO ? 1 : 2));
    s->flops = (double)count * (double)strips;
    step_arg(p, s, from, offset, 0, NULL);
    step_arg(p, s, to->buffer, to->offset, 0, NULL);
}

// ---- Copies.
// The kernel y = x for rows of this type; a cast when the dtypes differ.
static const Func *copy_func(Planner *p, const Type *t, int n_rows, Dtype to) {
    Func *f = kernel_func(p, "copy", n_rows, t->axis);
    Builder b = {.m = p->m, .f = f, .layer = -1};
    Ref x = ir_input(&b, "x", *t);
    Ref y = ir_cast(&b, ir_mul(&b, ir_cast(&b, x, DT_F32), ir_const(&b, 1)), to);
    vec_push(p->m->arena, &f->outputs, ((NamedRef){"y", y}));
    return f;
}

// The rows of both and what is dense in both are one launch; axes between are looped over.
void emit_copy(Planner *p, const Value *from, const Value *to) {
    const Type *t = &from->type;
    AxisId rows[MAX_RANK], axes[MAX_RANK];
    int n_rows = type_rows(p->m, t, rows), first = n_rows;
    CHECK(t->dtype != DT_I32 && t->rank == to->type.rank, "copy of a value of %s", p->f->name);
    while (!place_dense_from(p->m, t, &from->at, first) || !place_dense_from(p->m, t, &to->at, first))
        first++;
    int64_t loops = 1;
    for (int i = n_rows; i < first; i++)
        loops *= axis_size(p->m, t->axis[i]);
    memcpy(axes, t->axis, (size_t)n_rows);
    memcpy(axes + n_rows, t->axis + first, (size_t)(t->rank - first));
    Value x = {type_make(p->m, (Dtype)t->dtype, t->rank - first + n_rows, axes), from->at}, y = x;
    y.type.dtype = to->type.dtype;
    y.at = to->at;
    for (int i = first; i < t->rank; i++) {
        x.at.stride[n_rows + i - first] = from->at.stride[i];
        y.at.stride[n_rows + i - first] = to->at.stride[i];
    }
    const Func *f = copy_func(p, &x.type, n_rows, (Dtype)to->type.dtype);
    int32_t kernel = kernel_row(p, f);
    for (int64_t l = 0; l < loops; l++) {
        Value a = x, b = y;
        int64_t rest = l;
        for (int i = first - 1; i >= n_rows; i--) {
            int64_t at = rest % axis_size(p->m, t->axis[i]);
            rest /= axis_size(p->m, t->axis[i]);
            a.at.offset += at * from->at.stride[i];
            b.at.offset += at * to->at.stride[i];
        }
        emit_launch(p, &(LaunchSpec){.f = f,
                                     .kernel = kernel,
                                     .n_in = 1,
                                     .in = &a,
                                     .n_out = 1,
                                     .out = &b,
                                     .acc = &(Accumulate){ACC_NO}});
    }
}

// ---- Attention.
// Strides of batch, position, head; a value without a batch axis has one batch.
static void attention_arg(Planner *p, PlanStep *s, const Value *v, int n_rows) {
    int64_t stride[PLAN_MAX_ROWS] = {0};
    for (int i = 0; i < n_rows; i++)
        stride[PLAN_MAX_ROWS - n_rows + i] = v->at.stride[i];
    step_arg(p, s, v->at.buffer, v->at.offset, PLAN_MAX_ROWS, stride);
}

void emit_attention(Planner *p, Ref r) {
    const Node *n = node_at(p->f, r);
    bool grad = n->op == OP_attention_grad;
    Value args[9];
    int n_in = n->n_in, n_args = n_in + n->n_out;
    AxisId rows[MAX_RANK];
    for (int i = 0; i < n_in; i++) {
        Value v = value_at(p, node_in(p->f, r, i));
        args[i] = value_inner_dense(p, &v);
    }
    for (int i = n_in; i < n_args; i++)
        args[i] = value_result(p, r + (Ref)(i - n_in));
    const Type *q = &args[0].type, *k = &args[1].type;
    int n_rows = type_rows(p->m, q, rows);
    CHECK(n_rows == 2 || n_rows == 3, "attention over %d row axes", n_rows);
    int64_t heads = axis_size(p->m, q->axis[n_rows - 1]), kv_heads = axis_size(p->m, k->axis[n_rows - 1]);
    int64_t seq = axis_size(p->m, q->axis[n_rows - 2]), batch = n_rows == 3 ? axis_size(p->m, q->axis[0]) : 1;
    int64_t head_dim = type_count(p->m, q) / (batch * seq * heads);
    int32_t kernel = kernel_attention(p, (int)head_dim, (int)(heads / kv_heads), (Dtype)q->dtype, grad);
    PlanStep *s = step_begin(p, STEP_LAUNCH);
    s->kernel = kernel;
    int64_t size[] = {batch, seq, heads, kv_heads, head_dim, grad && args[3].type.rank == n_rows};
    memcpy(s->size, size, sizeof size);
    s->items = grad ? batch * kv_heads : batch * heads * ((seq + PLAN_ATTN_QUERIES - 1) / PLAN_ATTN_QUERIES);
    s->n_strips = (int32_t)s->items;
    s->n_scalars = 1;
    vec_push(p->plan->arena, &p->plan->scalars, (float)n->f);
    // Two products of half of seq x seq forward; five backward.
    s->flops = (grad ? 5.0 : 2.0) * (double)(batch * heads * head_dim) * (double)seq * (double)seq;
    for (int i = 0; i < n_args; i++) {
        attention_arg(p, s, &args[i], n_rows);
        s->bytes += (double)type_count(p->m, &args[i].type) * (double)dtype_bytes((Dtype)args[i].type.dtype);
    }
}

// ---- Gradient of an embedding.
static void emit_sort(Planner *p, const Value *ids, int64_t n) {
    if (p->sort_ids == ids->at.buffer)
        return;
    p->sort_ids = ids->at.buffer;
    p->sort_order = buffer_acts(p, 0, "order", DT_I32, n);
    PlanStep *s = step_begin(p, STEP_SORT);
    s->items = n;
    s->bytes = 8.0 * (double)n;
    step_arg(p, s, ids->at.buffer, ids->at.offset, 0, NULL);
    step_arg(p, s, p->sort_order, 0, 0, NULL);
}

void emit_scatter(Planner *p, Ref r) {
    Value x = value_at(p, node_in(p->f, r, 0)), ids = value_at(p, node_in(p->f, r, 1)),
          out = value_result(p, r);
    int64_t n, stride, d = axis_size(p->m, out.type.axis[1]);
    x = value_inner_dense(p, &x);
    if (!rows_flatten(p->m, &x, &n, &stride)) {
        x = value_dense(p, &x);
        CHECK(rows_flatten(p->m, &x, &n, &stride), "rows of a dense value");
    }
    CHECK(place_dense_from(p->m, &ids.type, &ids.at, 0), "ids of a scatter are a view");
    emit_sort(p, &ids, n);
    int32_t kernel = kernel_scatter(p, (Dtype)x.type.dtype);
    PlanStep *s = step_begin(p, STEP_LAUNCH);
    s->kernel = kernel;
    s->acc = p->acc[r];
    s->items = axis_size(p->m, out.type.axis[0]);
    s->n_strips = strips_of(p, s->items, ROWS_PER_STRIP);
    s->size[0] = n;
    s->size[1] = d;
    s->flops = (double)n * (double)d;
    s->bytes =
        (double)n * (double)d * (double)dtype_bytes((Dtype)x.type.dtype) + 4.0 * (double)(s->items * d);
    step_arg(p, s, x.at.buffer, x.at.offset, 1, &stride);
    step_arg(p, s, ids.at.buffer, ids.at.offset, 0, NULL);
    step_arg(p, s, p->sort_order, 0, 0, NULL);
    step_arg(p, s, out.at.buffer, out.at.offset, 0, NULL);
}
