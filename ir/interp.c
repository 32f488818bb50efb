// The float64 evaluator: slow, plain, the definition of every op. Values are dense, row-major in the type's
// axis order. MATH of ops.def is compiled here in double. Composites are in interp_composite.c.
#include "ir/interp.h"
#include "ir/math_words.h"
#include <string.h>

typedef struct Run {
    Arena *arena;
    const Module *m;
    const Func *f;
    const Env *env;
    Tensor *value; // by node; at NULL: not needed
    Status status;
} Run;

int64_t interp_stride(const Module *m, const Type *t, AxisId axis) {
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->axis[i] == axis)
            return stride;
        stride *= m->axes.at[t->axis[i]].size;
    }
    return 0;
}

double round_bf16(double x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return x;
    bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000;
    memcpy(&f, &bits, 4);
    return f;
}

Cursor cursor_make(const Module *m, const Type *out, const Type *x) {
    Cursor c = {.rank = out->rank};
    for (int i = 0; i < out->rank; i++) {
        c.size[i] = m->axes.at[out->axis[i]].size;
        c.stride[i] = interp_stride(m, x, out->axis[i]);
    }
    return c;
}

void cursor_next(Cursor *c) {
    for (int i = c->rank - 1; i >= 0; i--) {
        c->offset += c->stride[i];
        if (++c->at[i] < c->size[i])
            return;
        c->offset -= c->stride[i] * c->size[i];
        c->at[i] = 0;
    }
}

// clang-format off
double ir_map_value(Op op, double a, double b, double c) {
    (void)b, (void)c;
    switch ((int)op) {
#define VALUE_MAP(name, math) case OP_##name: return math;
#define VALUE_REDUCE(name, math)
#define VALUE_VIEW(name, math)
#define VALUE_DOT(name, math)
#define VALUE_ATTN(name, math)
#define VALUE_GATHER(name, math)
#define VALUE_HEAD(name, math)
#define VALUE_DATA(name, math)
#define OP(name, cls, arity, math, grad, cost, test, doc) VALUE_##cls(name, math)
#include "ir/ops.def"
    default: return NAN;
    }
}
// clang-format on

static double reduce_value(Op op, double acc, double a) {
    return op == OP_sum ? acc + a : MAX(acc, a);
}

static void run_map(Run *r, const Node *n, Ref ref, Tensor *out) {
    int64_t count = type_count(r->m, &out->type);
    Cursor c[3] = {{0}};
    const double *at[3] = {0};
    for (int i = 0; i < n->n_in; i++) {
        const Tensor *x = &r->value[node_in(r->f, ref, i)];
        c[i] = cursor_make(r->m, &out->type, &x->type);
        at[i] = x->at;
    }
    for (int64_t i = 0; i < count; i++) {
        double v[3] = {0};
        for (int k = 0; k < n->n_in; k++) {
            v[k] = at[k][c[k].offset];
            cursor_next(&c[k]);
        }
        out->at[i] = ir_map_value((Op)n->op, v[0], v[1], v[2]);
    }
}

static void run_reduce(Run *r, const Node *n, const Tensor *x, Tensor *out) {
    int64_t count = type_count(r->m, &x->type), out_count = type_count(r->m, &out->type);
    Cursor c = cursor_make(r->m, &x->type, &out->type);
    for (int64_t i = 0; n->op != OP_sum && i < out_count; i++)
        out->at[i] = -INFINITY;
    for (int64_t i = 0; i < count; i++, cursor_next(&c))
        out->at[c.offset] = reduce_value((Op)n->op, out->at[c.offset], x->at[i]);
}

// To integers as C does, towards zero.
static double cast_value(Dtype to, double x) {
    return to == DT_BF16 ? round_bf16(x) : to == DT_I32 ? trunc(x) : x;
}

// Copies x into the part of `to` (an axis of out) that starts at index `from`; x has `axis` there, or nothing
// (size 1).
static void copy_part(Run *r, const Tensor *x, AxisId axis, AxisId to, int64_t from, Tensor *out) {
    int64_t count = type_count(r->m, &x->type);
    Type order = x->type;
    Cursor c = {.rank = order.rank};
    for (int i = 0; i < order.rank; i++) {
        c.size[i] = r->m->axes.at[order.axis[i]].size;
        c.stride[i] = interp_stride(r->m, &out->type, order.axis[i] == axis ? to : order.axis[i]);
    }
    c.offset = from * interp_stride(r->m, &out->type, to);
    for (int64_t i = 0; i < count; i++, cursor_next(&c))
        out->at[c.offset] = x->at[i];
}

static void run_slice(Run *r, const Node *n, const Tensor *x, Tensor *out) {
    int64_t count = type_count(r->m, &out->type);
    Cursor c = {.rank = out->type.rank};
    for (int i = 0; i < out->type.rank; i++) {
        AxisId a = out->type.axis[i];
        c.size[i] = r->m->axes.at[a].size;
        c.stride[i] = interp_stride(r->m, &x->type, n->n_ax > 1 && a == n->ax[1] ? n->ax[0] : a);
    }
    c.offset = n->k * interp_stride(r->m, &x->type, n->ax[0]);
    for (int64_t i = 0; i < count; i++, cursor_next(&c))
        out->at[i] = x->at[c.offset];
}

// A rename may change the order of axes in memory.
static void run_rename(Run *r, const Node *n, const Tensor *x, Tensor *out) {
    int64_t count = type_count(r->m, &out->type);
    Cursor c = {.rank = out->type.rank};
    for (int i = 0; i < out->type.rank; i++) {
        AxisId a = out->type.axis[i];
        c.size[i] = r->m->axes.at[a].size;
        c.stride[i] = interp_stride(r->m, &x->type, a == n->ax[1] ? n->ax[0] : a);
    }
    for (int64_t i = 0; i < count; i++, cursor_next(&c))
        out->at[i] = x->at[c.offset];
}

static void run_view(Run *r, const Node *n, Ref ref, Tensor *out) {
    const Tensor *x = n->n_in ? &r->value[node_in(r->f, ref, 0)] : NULL;
    int64_t count = type_count(r->m, &out->type);
    switch (n->op) {
    case OP_rename:
        run_rename(r, n, x, out);
        break;
    case OP_slice:
        run_slice(r, n, x, out);
        break;
    case OP_concat:
        for (int64_t i = 0, from = 0; i < n->n_in; i++) {
            AxisId axis = n->ax[1 + i];
            copy_part(r, &r->value[node_in(r->f, ref, (int)i)], axis, n->ax[0], from, out);
            from += axis == AXIS_NONE ? 1 : r->m->axes.at[axis].size;
        }
        break;
    case OP_one_hot: {
        Type index = {.rank = 1, .axis = {n->ax[0]}};
        Cursor a = cursor_make(r->m, &out->type, &x->type), b = cursor_make(r->m, &out->type, &index);
        for (int64_t i = 0; i < count; i++, cursor_next(&a), cursor_next(&b))
            out->at[i] = x->at[a.offset] == (double)b.offset;
        break;
    }
    case OP_iota:
        for (int64_t i = 0; i < count; i++)
            out->at[i] = (double)i;
        break;
    default: // cast, split, merge keep the order in memory
        for (int64_t i = 0; i < count; i++)
            out->at[i] = n->op == OP_cast ? cast_value((Dtype)n->k, x->at[i]) : x->at[i];
    }
}

static void run_gather(Run *r, const Node *n, Ref ref, Tensor *out) {
    const Tensor *x = &r->value[node_in(r->f, ref, 0)], *ids = &r->value[node_in(r->f, ref, 1)];
    bool scatter = n->op == OP_scatter_sum;
    const Type *table = scatter ? &out->type : &x->type;
    int64_t rows = type_count(r->m, &ids->type), d = r->m->axes.at[table->axis[1]].size;
    int64_t v = r->m->axes.at[table->axis[0]].size;
    for (int64_t i = 0; i < rows; i++) {
        if (!(ids->at[i] >= 0 && ids->at[i] < (double)v)) {
            r->status = status_make(EXIT_REQUEST, "token id %.0f is outside of the vocabulary of %lld",
                                    ids->at[i], (long long)v);
            return;
        }
        int64_t id = (int64_t)ids->at[i];
        for (int64_t k = 0; k < d; k++)
            if (scatter)
                out->at[id * d + k] += x->at[i * d + k];
            else
                out->at[i * d + k] = x->at[id * d + k];
    }
}

static void run_leaf(Run *r, const Node *n, Tensor *out) {
    int64_t count = type_count(r->m, &out->type);
    if (n->op == OP_const) {
        for (int64_t i = 0; i < count; i++)
            out->at[i] = n->f;
        return;
    }
    const double *bound =
        n->op == OP_param ? r->env->param(r->env->ctx, n->k) : r->env->input(r->env->ctx, n->name);
    if (bound)
        memcpy(out->at, bound, (size_t)count * sizeof *bound);
    else
        r->status = status_make(EXIT_REQUEST, "%s has no value",
                                n->op == OP_param ? r->m->params.at[n->k].name : n->name);
}

// A call runs its callee with inputs bound by position: the callee's inputs in node order.
typedef struct CallEnv {
    const Func *callee;
    const Tensor *in;
    const Env *outer;
} CallEnv;

static const double *call_param(void *ctx, int32_t param) {
    const Env *outer = ((CallEnv *)ctx)->outer;
    return outer->param(outer->ctx, param);
}

static const double *call_input(void *ctx, const char *name) {
    CallEnv *c = ctx;
    int k = 0;
    for (uint32_t i = 1; i < c->callee->nodes.n; i++) {
        const Node *n = &c->callee->nodes.at[i];
        if (n->op != OP_input)
            continue;
        if (!strcmp(n->name, name))
            return c->in[k].at;
        k++;
    }
    return NULL;
}

static void run_composite(Run *r, const Node *n, Ref ref, Tensor *out) {
    Tensor in[UINT8_MAX + 1];
    for (int i = 0; i < n->n_in; i++)
        in[i] = r->value[node_in(r->f, ref, i)];
    switch (n->op) {
    case OP_dot:
        interp_dot(r->m, &in[0], &in[1], out);
        break;
    case OP_attention:
        interp_attention(r->m, n->f, in, out);
        break;
    case OP_attention_grad:
        interp_attention_grad(r->m, n->f, in, out);
        break;
    case OP_head_loss:
    case OP_head_loss_grad:
        r->status = interp_head(r->m, n->op == OP_head_loss_grad, in, out);
        break;
    case OP_call: {
        CallEnv call = {r->m->funcs.at[n->k], in, r->env};
        Env env = {&call, call_param, call_input};
        r->status = interp_run(r->arena, r->m, call.callee, &env, false, out);
        break;
    }
    default: // constant, stop_grad
        memcpy(out->at, in[0].at, (size_t)type_count(r->m, &out->type) * sizeof(double));
    }
    // what is stored in bf16 is rounded by its op
    for (int i = 0; i < n->n_out; i++)
        if (out[i].type.dtype == DT_BF16 && n->op != OP_call)
            for (int64_t k = 0, count = type_count(r->m, &out[i].type); k < count; k++)
                out[i].at[k] = round_bf16(out[i].at[k]);
}

static void run_node(Run *r, Ref ref) {
    const Node *n = node_at(r->f, ref);
    Tensor *out = &r->value[ref];
    for (int i = 0; i < n->n_out; i++) {
        out[i].type = node_at(r->f, ref + (Ref)i)->type;
        out[i].at = arena_alloc(r->arena, (size_t)MAX(type_count(r->m, &out[i].type), 1) * sizeof(double));
    }
    switch (op_info[n->op].cls) {
    case CLASS_MAP:
        run_map(r, n, ref, out);
        break;
    case CLASS_REDUCE:
        run_reduce(r, n, &r->value[node_in(r->f, ref, 0)], out);
        break;
    case CLASS_VIEW:
        run_view(r, n, ref, out);
        break;
    case CLASS_GATHER:
        run_gather(r, n, ref, out);
        break;
    case CLASS_DATA:
        if (n->op == OP_input || n->op == OP_param || n->op == OP_const) {
            run_leaf(r, n, out);
            break;
        }
        run_composite(r, n, ref, out);
        break;
    case CLASS_DOT:
    case CLASS_ATTN:
    case CLASS_HEAD:
        run_composite(r, n, ref, out);
        break;
    }
}

static void mark_needed(const Func *f, bool marks, bool *needed) {
    for (uint32_t i = 0; i < f->outputs.n; i++)
        needed[f->outputs.at[i].ref] = true;
    for (uint32_t i = 0; marks && i < f->marks.n; i++)
        needed[f->marks.at[i].ref] = true;
    for (uint32_t i = f->nodes.n; i-- > 1;) {
        const Node *n = &f->nodes.at[i];
        if (!needed[i])
            continue;
        if (n->op == OP_out)
            needed[i - (uint32_t)n->k] = true;
        for (int k = 0; k < n->n_in; k++)
            needed[node_in(f, i, k)] = true;
    }
}

Status interp_run(Arena *arena, const Module *m, const Func *f, const Env *env, bool marks, Tensor *result) {
    Run r = {.arena = arena, .m = m, .f = f, .env = env};
    bool *needed = arena_alloc(arena, f->nodes.n);
    r.value = arena_alloc(arena, f->nodes.n * sizeof *r.value);
    mark_needed(f, marks, needed);
    for (uint32_t i = 1; i < f->nodes.n && !r.status.code; i++)
        if (needed[i] && f->nodes.at[i].op != OP_out)
            run_node(&r, i);
    for (uint32_t i = 0; i < f->outputs.n && !r.status.code; i++)
        result[i] = r.value[f->outputs.at[i].ref];
    for (uint32_t i = 0; marks && i < f->marks.n && !r.status.code; i++)
        result[f->outputs.n + i] = r.value[f->marks.at[i].ref];
    return r.status;
}
