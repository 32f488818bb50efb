// Arithmetic on places: what a view does to offset and strides, in both directions.
//
// Forward gives the place of a view from its operand. Backward says where the operand must be written so that
// the view lies in a given place; that is how producers write straight into a part of a concat or into the
// gradient arena. False means that strides cannot say it and a copy is needed.
#include "passes/planner.h"

int type_axis(const Type *t, AxisId axis) {
    for (int i = 0; i < t->rank; i++)
        if (t->axis[i] == axis)
            return i;
    return -1;
}

int64_t axis_size(const Module *m, AxisId axis) {
    return axis == AXIS_NONE ? 1 : m->axes.at[axis].size;
}

Place place_none(void) {
    return (Place){.buffer = -1};
}

Place place_dense(const Module *m, const Type *t, int32_t buffer) {
    Place p = {.buffer = buffer};
    int64_t step = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        p.stride[i] = step;
        step *= axis_size(m, t->axis[i]);
    }
    return p;
}

bool place_dense_from(const Module *m, const Type *t, const Place *p, int from) {
    int64_t step = 1;
    for (int i = t->rank - 1; i >= from; i--) {
        if (axis_size(m, t->axis[i]) > 1 && p->stride[i] != step)
            return false;
        step *= axis_size(m, t->axis[i]);
    }
    return true;
}

bool place_inner_dense(const Module *m, const Type *t, const Place *p) {
    AxisId rows[MAX_RANK];
    return place_dense_from(m, t, p, type_rows(m, t, rows));
}

// Address of an offset in a buffer of an arena that is laid out already, in elements.
static int64_t absolute(const Planner *p, const Place *a) {
    const PlanBuffer *b = &p->plan->buffers.at[a->buffer];
    return (int64_t)(b->offset / dtype_bytes(b->dtype)) + a->offset;
}

static bool same_storage(const Planner *p, const Place *a, const Place *b) {
    const PlanBuffer *x = &p->plan->buffers.at[a->buffer], *y = &p->plan->buffers.at[b->buffer];
    if (a->buffer == b->buffer)
        return true;
    return x->arena == y->arena && x->arena != ARENA_ACTS && x->dtype == y->dtype;
}

bool place_same(const Planner *p, const Type *t, const Place *a, const Place *b) {
    if (a->buffer < 0 || b->buffer < 0 || !same_storage(p, a, b))
        return false;
    if (a->buffer == b->buffer ? a->offset != b->offset : absolute(p, a) != absolute(p, b))
        return false;
    for (int i = 0; i < t->rank; i++)
        if (axis_size(p->m, t->axis[i]) > 1 && a->stride[i] != b->stride[i])
            return false;
    return true;
}

// Axes part[0..n), outermost first, seen as one: its stride. False when they do not follow each other.
static bool merged_stride(const Module *m, const Type *t, const Place *p, int n, const AxisId *part,
                          int64_t *out) {
    int64_t inner = 0, size = 1; // of the axes seen so far, from the inside
    for (int i = n - 1; i >= 0; i--) {
        int64_t k = axis_size(m, part[i]), stride = p->stride[type_axis(t, part[i])];
        if (k == 1)
            continue;
        if (inner && stride != inner * size)
            return false;
        inner = inner ? inner : stride;
        size *= k;
    }
    *out = inner ? inner : 1;
    return true;
}

// Index of axis a among part[0..n), -1 when it is none; *inner: elements of the parts after it.
static int part_index(const Module *m, AxisId a, int n, const AxisId *part, int64_t *inner) {
    *inner = 1;
    for (int i = n - 1; i >= 0; i--) {
        if (part[i] == a)
            return i;
        *inner *= axis_size(m, part[i]);
    }
    return -1;
}

// Stride of axis a of `whole` (or of a part of it) when the parts become one axis or one axis its parts.
typedef struct Parts {
    int n;
    const AxisId *part;
    AxisId whole;
} Parts;

static Parts node_parts(const Node *n) {
    int k = n->n_ax - 1;
    return n->op == OP_split ? (Parts){k, n->ax + 1, n->ax[0]} : (Parts){k, n->ax, n->ax[k]};
}

// Strides of type `to` from those of type `from`, where the parts stand for the whole or the whole for the
// parts.
static bool regroup(const Module *m, Parts g, const Type *from, const Place *x, const Type *to, Place *out) {
    for (int i = 0; i < to->rank; i++) {
        int64_t inner;
        AxisId a = to->axis[i];
        if (a == g.whole) {
            if (!merged_stride(m, from, x, g.n, g.part, &out->stride[i]))
                return false;
        } else if (part_index(m, a, g.n, g.part, &inner) >= 0) {
            out->stride[i] = x->stride[type_axis(from, g.whole)] * inner;
        } else {
            out->stride[i] = x->stride[type_axis(from, a)];
        }
    }
    return true;
}

// Strides of type `to` from those of `from` where axis `now` of `to` was called `before`.
static void renamed(AxisId before, AxisId now, const Type *from, const Place *x, const Type *to, Place *out) {
    for (int i = 0; i < to->rank; i++)
        out->stride[i] = x->stride[type_axis(from, to->axis[i] == now ? before : to->axis[i])];
}

bool view_forward(const Module *m, const Node *n, const Type *in, const Place *x, Place *out) {
    *out = (Place){.buffer = x->buffer, .offset = x->offset};
    switch (n->op) {
    case OP_stop_grad:
        *out = *x;
        return true;
    case OP_rename:
        renamed(n->ax[0], n->ax[1], in, x, &n->type, out);
        return true;
    case OP_slice:
        out->offset += n->k * x->stride[type_axis(in, n->ax[0])];
        renamed(n->ax[0], n->n_ax > 1 ? n->ax[1] : AXIS_NONE, in, x, &n->type, out);
        return true;
    case OP_split:
    case OP_merge:
        return regroup(m, node_parts(n), in, x, &n->type, out);
    default:
        return false;
    }
}

bool view_backward(const Module *m, const Node *n, const Type *in, const Place *y, Place *out) {
    *out = (Place){.buffer = y->buffer, .offset = y->offset};
    switch (n->op) {
    case OP_stop_grad:
        *out = *y;
        return true;
    case OP_rename:
        renamed(n->ax[1], n->ax[0], &n->type, y, in, out);
        return true;
    case OP_slice:
        if (n->n_ax < 2)
            return false;
        renamed(n->ax[1], n->ax[0], &n->type, y, in, out);
        out->offset -= n->k * out->stride[type_axis(in, n->ax[0])];
        return true;
    case OP_split:
    case OP_merge:
        return regroup(m, node_parts(n), &n->type, y, in, out);
    default:
        return false;
    }
}

Place concat_part(const Planner *p, Ref concat, int i, const Place *whole) {
    const Node *n = node_at(p->f, concat);
    const Type *t = &node_at(p->f, node_in(p->f, concat, i))->type;
    int64_t before = 0;
    for (int j = 0; j < i; j++)
        before += axis_size(p->m, n->ax[1 + j]);
    Place out = {.buffer = whole->buffer};
    out.offset = whole->offset + before * whole->stride[type_axis(&n->type, n->ax[0])];
    renamed(n->ax[0], n->ax[1 + i], &n->type, whole, t, &out);
    return out;
}

bool concat_adjacent(const Planner *p, Ref concat, Place *out) {
    const Node *n = node_at(p->f, concat);
    Ref first = node_in(p->f, concat, 0);
    const Type *t = &node_at(p->f, first)->type;
    const Place *x = &p->at[first];
    if (x->buffer < 0 || n->ax[1] == AXIS_NONE)
        return false;
    *out = (Place){.buffer = x->buffer, .offset = x->offset};
    renamed(n->ax[1], n->ax[0], t, x, &n->type, out);
    for (int i = 1; i < n->n_in; i++) {
        Ref r = node_in(p->f, concat, i);
        Place want = concat_part(p, concat, i, out);
        if (!place_same(p, &node_at(p->f, r)->type, &want, &p->at[r]))
            return false;
    }
    return true;
}
