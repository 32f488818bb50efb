// The typing rules of every op, in one place: builder, parser and verifier all ask here.
// A rule that fails reports a diag at b->loc, or is an internal error when nobody collects diags.
#include "ir/ir.h"
#include <string.h>

#define FAIL(...)                                                                                            \
    do {                                                                                                     \
        if (!b->diags)                                                                                       \
            infer_failed(b, p, in);                                                                          \
        diag_add(b->diags, b->loc, __VA_ARGS__);                                                             \
        return false;                                                                                        \
    } while (0)

static _Noreturn void infer_failed(const Builder *b, const Node *p, const Ref *in) {
    char text[128], all[1024] = "";
    for (int i = 0; i < p->n_in; i++) {
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, " %s", type_text(b->m, &node_at(b->f, in[i])->type, text));
    }
    check_failed(__FILE__, __LINE__, "%s does not type in %s: operands%s", op_info[p->op].name, b->f->name,
                 all);
}

static const Type *type_of(const Builder *b, Ref r) {
    return &node_at(b->f, r)->type;
}

static const char *axis_name(const Builder *b, AxisId a) {
    return a == AXIS_NONE ? "1" : b->m->axes.at[a].name;
}

static int32_t axis_size(const Builder *b, AxisId a) {
    return a == AXIS_NONE ? 1 : b->m->axes.at[a].size;
}

static bool need_dtype(Builder *b, const Node *p, const Ref *in, int i, Dtype want) {
    char text[128];
    if (type_of(b, in[i])->dtype != want)
        FAIL(DIAG_dtype, op_info[p->op].name, type_text(b->m, type_of(b, in[i]), text),
             dtype_name(type_of(b, in[i])->dtype), dtype_name(want));
    return true;
}

static bool need_axis(Builder *b, const Node *p, const Ref *in, int i, AxisId axis) {
    char text[128];
    if (!type_has(type_of(b, in[i]), axis))
        FAIL(DIAG_no_axis, op_info[p->op].name, type_text(b->m, type_of(b, in[i]), text), axis_name(b, axis));
    return true;
}

static bool need_no_axis(Builder *b, const Node *p, const Ref *in, int i, AxisId axis) {
    char text[128];
    if (type_has(type_of(b, in[i]), axis))
        FAIL(DIAG_has_axis, op_info[p->op].name, type_text(b->m, type_of(b, in[i]), text),
             axis_name(b, axis));
    return true;
}

static bool need_distinct(Builder *b, const Node *p, const Ref *in, int n, const AxisId *axes) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (axes[i] == axes[k])
                FAIL(DIAG_axis_twice, op_info[p->op].name, axis_name(b, axes[i]));
    return true;
}

static bool need_kind(Builder *b, const Node *p, const Ref *in, AxisId x, AxisId y) {
    static const char *const kinds[] = {"row", "small", "wide"};
    const Axis *ax = &b->m->axes.at[x], *ay = &b->m->axes.at[y];
    if (ax->kind != ay->kind)
        FAIL(DIAG_axis_kind, op_info[p->op].name, ax->name, kinds[ax->kind], ay->name, kinds[ay->kind]);
    return true;
}

static bool finish(Builder *b, const Node *p, const Ref *in, Type t, Type *out) {
    if (t.rank > MAX_RANK)
        FAIL(DIAG_rank, op_info[p->op].name, MAX_RANK);
    *out = t;
    return true;
}

// Type `t` with the axes in drop[] removed and add[] appended, in canonical order.
static Type replace_axes(const Builder *b, const Type *t, int n_drop, const AxisId *drop, int n_add,
                         const AxisId *add) {
    AxisId axes[2 * MAX_RANK];
    int n = 0;
    for (int i = 0; i < t->rank; i++)
        if (!n_drop || !memchr(drop, t->axis[i], (size_t)n_drop))
            axes[n++] = t->axis[i];
    for (int i = 0; i < n_add; i++)
        axes[n++] = add[i];
    return n > MAX_RANK ? (Type){.rank = MAX_RANK + 1} : type_make(b->m, t->dtype, n, axes);
}

static bool infer_map(Builder *b, const Node *p, const Ref *in, Type *out) {
    Type t = *type_of(b, in[0]);
    for (int i = 0; i < p->n_in; i++) {
        if (!need_dtype(b, p, in, i, DT_F32))
            return false;
        if (t.rank <= MAX_RANK)
            t = type_union(b->m, &t, type_of(b, in[i]));
    }
    return finish(b, p, in, t, out);
}

static bool infer_reduce(Builder *b, const Node *p, const Ref *in, Type *out) {
    if (!need_dtype(b, p, in, 0, DT_F32))
        return false;
    if (!need_distinct(b, p, in, p->n_ax, p->ax))
        return false;
    for (int i = 0; i < p->n_ax; i++)
        if (!need_axis(b, p, in, 0, p->ax[i]))
            return false;
    return finish(b, p, in, replace_axes(b, type_of(b, in[0]), p->n_ax, p->ax, 0, NULL), out);
}

// The axes part[0..n) must stand side by side in `t`, in this order, where `whole` stands in `merged`.
static bool neighbours(Builder *b, const Node *p, const Ref *in, const Type *t, int n, const AxisId *part,
                       AxisId whole, const Type *merged) {
    int at = 0;
    while (at < t->rank && t->axis[at] != part[0])
        at++;
    bool good = at + n <= t->rank && !memcmp(t->axis + at, part, (size_t)n) && merged->axis[at] == whole;
    if (!good) {
        char text[128], names[128] = "";
        for (int i = 0; i < n; i++) {
            size_t len = strlen(names);
            snprintf(names + len, sizeof names - len, "%s%s", i ? "," : "", axis_name(b, part[i]));
        }
        FAIL(DIAG_merge_order, names, type_text(b->m, t, text));
    }
    return true;
}

static bool infer_split_merge(Builder *b, const Node *p, const Ref *in, Type *out) {
    bool split = p->op == OP_split;
    int n = p->n_ax - 1;
    const AxisId *part = split ? p->ax + 1 : p->ax;
    AxisId whole = split ? p->ax[0] : p->ax[n];
    int64_t product = 1;
    char names[128] = "";
    if (!need_distinct(b, p, in, p->n_ax, p->ax))
        return false;
    for (int i = 0; i < n; i++) {
        product = MIN_OF(product * axis_size(b, part[i]), INT32_MAX);
        size_t len = strlen(names);
        snprintf(names + len, sizeof names - len, "%s%s", i ? "," : "", axis_name(b, part[i]));
        if (!(split ? need_no_axis(b, p, in, 0, part[i]) : need_axis(b, p, in, 0, part[i])))
            return false;
    }
    if (!(split ? need_axis(b, p, in, 0, whole) : need_no_axis(b, p, in, 0, whole)))
        return false;
    if (product != axis_size(b, whole))
        FAIL(DIAG_split_size, op_info[p->op].name, axis_name(b, whole), axis_size(b, whole), names,
             (int)product);
    const Type *t = type_of(b, in[0]);
    Type r = replace_axes(b, t, split ? 1 : n, split ? &whole : part, split ? n : 1, split ? part : &whole);
    if (r.rank > MAX_RANK)
        return finish(b, p, in, r, out);
    if (!(split ? neighbours(b, p, in, &r, n, part, whole, t) : neighbours(b, p, in, t, n, part, whole, &r)))
        return false;
    *out = r;
    return true;
}

static bool infer_rename(Builder *b, const Node *p, const Ref *in, Type *out) {
    AxisId from = p->ax[0], to = p->ax[1];
    if (!need_axis(b, p, in, 0, from) || (from != to && !need_no_axis(b, p, in, 0, to)))
        return false;
    if (!need_kind(b, p, in, from, to))
        return false;
    if (axis_size(b, from) != axis_size(b, to))
        FAIL(DIAG_rename_size, axis_name(b, from), axis_size(b, from), axis_name(b, to), axis_size(b, to));
    Type t = *type_of(b, in[0]);
    for (int i = 0; i < t.rank; i++)
        if (t.axis[i] == from)
            t.axis[i] = to;
    *out = type_make(b->m, t.dtype, t.rank, t.axis);
    return true;
}

// A wide axis keeps its place under a new name; others are sorted anyway.
static Type swap_axis(const Builder *b, Type t, AxisId from, AxisId to) {
    for (int i = 0; i < t.rank; i++)
        if (t.axis[i] == from)
            t.axis[i] = to;
    return type_make(b->m, t.dtype, t.rank, t.axis);
}

static bool infer_slice(Builder *b, const Node *p, const Ref *in, Type *out) {
    AxisId axis = p->ax[0], to = p->n_ax > 1 ? p->ax[1] : AXIS_NONE;
    if (!need_axis(b, p, in, 0, axis) || (to != AXIS_NONE && to != axis && !need_no_axis(b, p, in, 0, to)))
        return false;
    int64_t end = (int64_t)p->k + axis_size(b, to);
    if (p->k < 0 || end > axis_size(b, axis))
        FAIL(DIAG_slice_range, p->k, (int)end - 1, axis_name(b, axis), axis_size(b, axis));
    if (to != AXIS_NONE && !need_kind(b, p, in, axis, to))
        return false;
    const Type *t = type_of(b, in[0]);
    *out = to == AXIS_NONE ? replace_axes(b, t, 1, &axis, 0, NULL) : swap_axis(b, *t, axis, to);
    return true;
}

static bool infer_concat(Builder *b, const Node *p, const Ref *in, Type *out) {
    AxisId to = p->ax[0];
    int64_t total = 0;
    Type t = {0};
    char first[128], other[128];
    for (int i = 0; i < p->n_in; i++) {
        AxisId axis = p->ax[1 + i];
        if (axis != AXIS_NONE && (!need_axis(b, p, in, i, axis) || !need_kind(b, p, in, axis, to)))
            return false;
        if (axis != to && !need_no_axis(b, p, in, i, to))
            return false;
        total += axis_size(b, axis);
        Type part = *type_of(b, in[i]);
        part = axis == AXIS_NONE ? replace_axes(b, &part, 0, NULL, 1, &to) : swap_axis(b, part, axis, to);
        if (part.rank > MAX_RANK)
            return finish(b, p, in, part, out);
        if (i && !type_same(&t, &part))
            FAIL(DIAG_concat_axes, type_text(b->m, type_of(b, in[0]), first),
                 type_text(b->m, type_of(b, in[i]), other));
        t = part;
    }
    if (total != axis_size(b, to))
        FAIL(DIAG_concat_size, (int)total, axis_name(b, to), axis_size(b, to));
    return finish(b, p, in, t, out);
}

static bool infer_view(Builder *b, const Node *p, const Ref *in, Type *out) {
    switch (p->op) {
    case OP_cast:
        *out = *type_of(b, in[0]);
        out->dtype = (uint8_t)p->k;
        return true;
    case OP_rename:
        return infer_rename(b, p, in, out);
    case OP_split:
    case OP_merge:
        return infer_split_merge(b, p, in, out);
    case OP_slice:
        return infer_slice(b, p, in, out);
    case OP_concat:
        return infer_concat(b, p, in, out);
    case OP_one_hot: {
        if (!need_dtype(b, p, in, 0, DT_I32) || !need_no_axis(b, p, in, 0, p->ax[0]))
            return false;
        Type t = replace_axes(b, type_of(b, in[0]), 0, NULL, 1, p->ax);
        t.dtype = DT_F32;
        return finish(b, p, in, t, out);
    }
    default: // iota
        *out = type_make(b->m, DT_F32, 1, p->ax);
        return true;
    }
}

static bool infer_dot(Builder *b, const Node *p, const Ref *in, Type *out) {
    const Type *x = type_of(b, in[0]), *y = type_of(b, in[1]);
    char tx[128], ty[128];
    if (x->dtype != y->dtype || x->dtype == DT_I32)
        FAIL(DIAG_dtype, "dot", type_text(b->m, y, ty), dtype_name(y->dtype), dtype_name(x->dtype));
    AxisId shared[MAX_RANK];
    int n = 0;
    for (int i = 0; i < x->rank; i++)
        if (type_has(y, x->axis[i]))
            shared[n++] = x->axis[i];
    if (!n)
        FAIL(DIAG_no_shared_axis, type_text(b->m, x, tx), type_text(b->m, y, ty));
    Type t = type_union(b->m, x, y);
    if (t.rank <= MAX_RANK)
        t = replace_axes(b, &t, n, shared, 0, NULL);
    t.dtype = (uint8_t)p->k;
    return finish(b, p, in, t, out);
}

static bool infer_attention(Builder *b, const Node *p, const Ref *in, Type *out) {
    const Type *q = type_of(b, in[0]), *k = type_of(b, in[1]);
    if (!type_same(k, type_of(b, in[2])))
        FAIL(DIAG_attention_shape, "k and v have different axes");
    if (q->rank != k->rank || q->dtype != k->dtype || q->dtype == DT_I32)
        FAIL(DIAG_attention_shape, "q and k have different axes");
    AxisId rows[MAX_RANK];
    int n_rows = type_rows(b->m, q, rows);
    if (n_rows < 2)
        FAIL(DIAG_attention_shape, "q needs at least a position axis and a head axis");
    if (q->rank == n_rows)
        FAIL(DIAG_attention_shape, "q needs an axis behind that of its heads");
    for (int i = 0; i < q->rank; i++)
        if (i != n_rows - 1 && q->axis[i] != k->axis[i])
            FAIL(DIAG_attention_shape, "q and k may differ in the head axis alone");
    AxisId h = q->axis[n_rows - 1], g = k->axis[n_rows - 1];
    if (b->m->axes.at[g].kind != AXIS_ROW || axis_size(b, h) % axis_size(b, g))
        FAIL(DIAG_attention_shape, "the number of query heads is not a multiple of the number of key heads");
    Type lse = type_make(b->m, DT_F32, n_rows, rows);
    if (p->op == OP_attention) {
        out[0] = *q;
        out[1] = lse;
        return true;
    }
    if (!type_same(type_of(b, in[3]), q) && !type_same(type_of(b, in[3]), &lse))
        FAIL(DIAG_attention_shape, "o does not fit q");
    if (!type_same(type_of(b, in[5]), q) || !type_same(type_of(b, in[4]), &lse))
        FAIL(DIAG_attention_shape, "lse or g do not fit q");
    out[0] = *q;
    out[1] = *k;
    out[2] = *k;
    return true;
}

static bool infer_gather(Builder *b, const Node *p, const Ref *in, Type *out) {
    const Type *x = type_of(b, in[0]), *ids = type_of(b, in[1]);
    if (ids->dtype != DT_I32)
        FAIL(DIAG_gather_shape, "the ids are not integers");
    if (p->op == OP_gather) {
        if (x->rank != 2 || x->dtype == DT_I32)
            FAIL(DIAG_gather_shape, "the table does not have two axes");
        if (b->m->axes.at[x->axis[0]].kind != AXIS_WIDE) // canonical order would have turned the table
            FAIL(DIAG_gather_shape, "the axes of the table are not wide");
        if (type_has(ids, x->axis[0]) || type_has(ids, x->axis[1]))
            FAIL(DIAG_gather_shape, "the ids have an axis of the table");
        for (int i = 0; i < ids->rank; i++)
            if (b->m->axes.at[ids->axis[i]].kind == AXIS_WIDE) // rows stand before the table's axis
                FAIL(DIAG_gather_shape, "the ids have a wide axis");
        Type row = type_make(b->m, (Dtype)x->dtype, 1, x->axis + 1);
        Type t = type_union(b->m, &row, ids);
        return finish(b, p, in, t, out);
    }
    AxisId axes[MAX_RANK + 1] = {p->ax[0]};
    int n = 1;
    for (int i = 0; i < x->rank; i++)
        if (!type_has(ids, x->axis[i]))
            axes[n++] = x->axis[i];
    if (n != 2 || x->rank != ids->rank + 1 || axes[1] != x->axis[x->rank - 1] || x->dtype == DT_I32)
        FAIL(DIAG_gather_shape, "the rows of x are not those of the ids");
    if (axes[0] == axes[1] || b->m->axes.at[axes[0]].kind != AXIS_WIDE ||
        b->m->axes.at[axes[1]].kind != AXIS_WIDE)
        FAIL(DIAG_gather_shape, "the axes of the table are not wide");
    *out = type_make(b->m, DT_F32, n, axes);
    return true;
}

static bool infer_head(Builder *b, const Node *p, const Ref *in, Type *out) {
    const Type *x = type_of(b, in[0]), *w = type_of(b, in[1]), *t = type_of(b, in[2]);
    if (t->dtype != DT_I32)
        FAIL(DIAG_head_shape, "targets are not integers");
    if (w->rank != 2 || x->rank != t->rank + 1 || x->axis[x->rank - 1] != w->axis[1] ||
        w->dtype != x->dtype || x->dtype == DT_I32)
        FAIL(DIAG_head_shape, "the last axis of x is not that of the weight");
    for (int i = 0; i < t->rank; i++)
        if (x->axis[i] != t->axis[i])
            FAIL(DIAG_head_shape, "x and targets have different rows");
    if (type_of(b, in[3])->rank || type_of(b, in[3])->dtype != DT_F32)
        FAIL(DIAG_head_shape, "inv is not a scalar");
    for (int i = 0; p->op == OP_head_loss_grad && i < type_of(b, in[4])->rank; i++)
        if (!type_has(t, type_of(b, in[4])->axis[i]))
            FAIL(DIAG_head_shape, "g has an axis that the targets lack");
    out[0] = *t;
    out[0].dtype = DT_F32;
    if (p->op == OP_head_loss_grad) {
        out[1] = *x;
        out[2] = *w;
        out[2].dtype = DT_F32;
    }
    return true;
}

static bool infer_data(Builder *b, const Node *p, const Ref *in, Type *out) {
    switch (p->op) {
    case OP_constant:
    case OP_stop_grad:
        *out = *type_of(b, in[0]);
        return true;
    case OP_param:
        *out = b->m->params.at[p->k].type;
        return true;
    case OP_call: {
        const Func *f = b->m->funcs.at[p->k];
        for (uint32_t i = 0; i < f->outputs.n; i++)
            out[i] = node_at(f, f->outputs.at[i].ref)->type;
        return true;
    }
    default: // input, const
        CHECK(p->op != OP_const || p->type.dtype == DT_F32, "a constant of %s",
              dtype_name((Dtype)p->type.dtype));
        *out = p->type;
        return true;
    }
}

bool ir_infer(Builder *b, const Node *p, const Ref *in, Type *out) {
    switch (op_info[p->op].cls) {
    case CLASS_MAP:
        return infer_map(b, p, in, out);
    case CLASS_REDUCE:
        return infer_reduce(b, p, in, out);
    case CLASS_VIEW:
        return infer_view(b, p, in, out);
    case CLASS_DOT:
        return infer_dot(b, p, in, out);
    case CLASS_ATTN:
        return infer_attention(b, p, in, out);
    case CLASS_GATHER:
        return infer_gather(b, p, in, out);
    case CLASS_HEAD:
        return infer_head(b, p, in, out);
    case CLASS_DATA:
        return infer_data(b, p, in, out);
    }
    return false;
}
