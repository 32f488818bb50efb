// The builder: appends nodes with inferred types, interns inputs, parameters and constants.
#include "ir/ir.h"
#include <string.h>

static int result_count(const Module *m, const Node *p) {
    switch (p->op) {
    case OP_attention:
        return 2;
    case OP_attention_grad:
    case OP_head_loss_grad:
        return 3;
    case OP_call:
        return (int)m->funcs.at[p->k]->outputs.n;
    default:
        return 1;
    }
}

Ref ir_node(Builder *b, Node p, int n_in, const Ref *in) {
    for (int i = 0; i < n_in; i++)
        if (!in[i])
            return 0;
    CHECK(n_in <= UINT8_MAX, "%s: %d operands", op_info[p.op].name, n_in);
    int n_out = result_count(b->m, &p);
    CHECK(n_out >= 1 && n_out <= UINT8_MAX, "%s: %d results", op_info[p.op].name, n_out);
    Type types[UINT8_MAX + 1];
    p.n_in = (uint8_t)n_in;
    p.n_out = (uint8_t)n_out;
    if (!ir_infer(b, &p, in, types))
        return 0;
    Func *f = b->f;
    Ref first = f->nodes.n;
    p.type = types[0];
    p.in0 = f->ins.n;
    p.loc = b->loc;
    p.layer = b->layer;
    for (int i = 0; i < n_in; i++)
        vec_push(b->m->arena, &f->ins, in[i]);
    vec_push(b->m->arena, &f->nodes, p);
    for (int i = 1; i < n_out; i++) {
        Node o = {.op = OP_out, .n_out = 1, .type = types[i], .k = i, .loc = b->loc, .layer = b->layer};
        vec_push(b->m->arena, &f->nodes, o);
    }
    return first;
}

Ref ir_copy(Builder *b, const Func *from, Ref r, const Ref *in) {
    Node p = *node_at(from, r);
    Loc loc = b->loc;
    int16_t layer = b->layer;
    b->loc = p.loc;
    b->layer = p.layer;
    Ref c = ir_node(b, p, p.n_in, in);
    b->loc = loc;
    b->layer = layer;
    return c;
}

Ref ir_map(Builder *b, Op op, const Ref *in) {
    CHECK(op_info[op].cls == CLASS_MAP, "%s is not a map", op_info[op].name);
    return ir_node(b, (Node){.op = (uint16_t)op}, op_info[op].n_in, in);
}

// Leaves are few but asked for often: the scan from the end finds a recent one at once, others cost a pass
// over the nodes.
static Ref find_leaf(const Func *f, const Node *p) {
    for (uint32_t i = f->nodes.n; i-- > 1;) {
        const Node *n = &f->nodes.at[i];
        if (n->op != p->op || n->k != p->k)
            continue;
        if (p->op == OP_input
                ? !strcmp(n->name, p->name)
                : p->op == OP_param || (type_same(&n->type, &p->type) && !memcmp(&n->f, &p->f, 8)))
            return i;
    }
    return 0;
}

static Ref leaf(Builder *b, Node p) {
    enum { NEAR = 64 }; // constants are cheap to repeat: looking further costs more than a duplicate
    Func *f = b->f;
    if (p.op == OP_const) {
        for (uint32_t i = f->nodes.n, low = i > NEAR ? i - NEAR : 1; i-- > low;) {
            const Node *n = &f->nodes.at[i];
            if (n->op == OP_const && type_same(&n->type, &p.type) && !memcmp(&n->f, &p.f, 8))
                return i;
        }
        return ir_node(b, p, 0, NULL);
    }
    Ref r = find_leaf(f, &p);
    return r ? r : ir_node(b, p, 0, NULL);
}

Ref ir_const(Builder *b, double value) {
    return leaf(b, (Node){.op = OP_const, .f = value, .type = {.dtype = DT_F32}});
}

Ref ir_fill(Builder *b, double value, AxisId axis) {
    return leaf(b, (Node){.op = OP_const, .f = value, .type = {.dtype = DT_F32, .rank = 1, .axis = {axis}}});
}

Ref ir_iota(Builder *b, AxisId axis) {
    return ir_node(b, (Node){.op = OP_iota, .n_ax = 1, .ax = {axis}}, 0, NULL);
}

Ref ir_input(Builder *b, const char *name, Type type) {
    Ref r = leaf(b, (Node){.op = OP_input, .name = name, .type = type});
    Node *n = node_at(b->f, r);
    if (n->name == name)
        n->name = arena_string(b->m->arena, name);
    CHECK(type_same(&n->type, &type), "input %s asked for with two types", name);
    return r;
}

Ref ir_param(Builder *b, int32_t param) {
    return leaf(b, (Node){.op = OP_param, .k = param});
}

Ref ir_constant(Builder *b, Ref x) {
    return ir_node(b, (Node){.op = OP_constant}, 1, &x);
}

Ref ir_stop_grad(Builder *b, Ref x) {
    return ir_node(b, (Node){.op = OP_stop_grad}, 1, &x);
}

Ref ir_cast(Builder *b, Ref x, Dtype to) {
    if (!x || node_at(b->f, x)->type.dtype == to)
        return x;
    return ir_node(b, (Node){.op = OP_cast, .k = (int32_t)to}, 1, &x);
}

static Node with_axes(Op op, int n, const AxisId *axes) {
    CHECK(n <= MAX_ATTR_AXES, "%s with %d axes", op_info[op].name, n);
    Node p = {.op = (uint16_t)op, .n_ax = (uint8_t)n};
    if (n)
        memcpy(p.ax, axes, (size_t)n);
    return p;
}

Ref ir_reduce(Builder *b, Op op, Ref x, int n, const AxisId *axes) {
    return n ? ir_node(b, with_axes(op, n, axes), 1, &x) : x;
}

Ref ir_rename(Builder *b, Ref x, AxisId from, AxisId to) {
    AxisId axes[] = {from, to};
    return from == to ? x : ir_node(b, with_axes(OP_rename, 2, axes), 1, &x);
}

Ref ir_split(Builder *b, Ref x, AxisId from, int n, const AxisId *to) {
    AxisId axes[MAX_ATTR_AXES] = {from};
    CHECK(n < MAX_ATTR_AXES, "split into %d axes", n);
    memcpy(axes + 1, to, (size_t)n);
    return ir_node(b, with_axes(OP_split, n + 1, axes), 1, &x);
}

Ref ir_merge(Builder *b, Ref x, int n, const AxisId *from, AxisId to) {
    AxisId axes[MAX_ATTR_AXES];
    CHECK(n < MAX_ATTR_AXES, "merge of %d axes", n);
    memcpy(axes, from, (size_t)n);
    axes[n] = to;
    return ir_node(b, with_axes(OP_merge, n + 1, axes), 1, &x);
}

Ref ir_slice(Builder *b, Ref x, AxisId axis, AxisId to, int32_t from) {
    AxisId axes[] = {axis, to};
    Node p = with_axes(OP_slice, to == AXIS_NONE ? 1 : 2, axes);
    p.k = from;
    return ir_node(b, p, 1, &x);
}

Ref ir_concat(Builder *b, AxisId to, int n, const Ref *x, const AxisId *part) {
    AxisId axes[MAX_ATTR_AXES] = {to};
    CHECK(n < MAX_ATTR_AXES, "concat of %d parts", n);
    memcpy(axes + 1, part, (size_t)n);
    return ir_node(b, with_axes(OP_concat, n + 1, axes), n, x);
}

Ref ir_one_hot(Builder *b, Ref ids, AxisId axis) {
    return ir_node(b, with_axes(OP_one_hot, 1, &axis), 1, &ids);
}

Ref ir_dot(Builder *b, Ref x, Ref y) {
    Ref in[] = {x, y};
    return ir_node(b, (Node){.op = OP_dot, .k = DT_F32}, 2, in);
}

Ref ir_gather(Builder *b, Ref table, Ref ids) {
    Ref in[] = {table, ids};
    return ir_node(b, (Node){.op = OP_gather}, 2, in);
}

Ref ir_scatter_sum(Builder *b, Ref x, Ref ids, AxisId v) {
    Ref in[] = {x, ids};
    return ir_node(b, with_axes(OP_scatter_sum, 1, &v), 2, in);
}

Ref ir_attention(Builder *b, Ref q, Ref k, Ref v, double scale) {
    Ref in[] = {q, k, v};
    return ir_node(b, (Node){.op = OP_attention, .f = scale}, 3, in);
}

Ref ir_attention_grad(Builder *b, Ref q, Ref k, Ref v, Ref o, Ref lse, Ref g, double scale) {
    Ref in[] = {q, k, v, o, lse, g};
    return ir_node(b, (Node){.op = OP_attention_grad, .f = scale}, 6, in);
}

Ref ir_head_loss(Builder *b, Ref x, Ref w, Ref targets, Ref inv) {
    Ref in[] = {x, w, targets, inv};
    return ir_node(b, (Node){.op = OP_head_loss}, 4, in);
}

Ref ir_head_loss_grad(Builder *b, Ref x, Ref w, Ref targets, Ref inv, Ref g) {
    Ref in[] = {x, w, targets, inv, g};
    return ir_node(b, (Node){.op = OP_head_loss_grad}, 5, in);
}

Ref ir_call(Builder *b, int32_t callee, int n_in, const Ref *in) {
    return ir_node(b, (Node){.op = OP_call, .k = callee}, n_in, in);
}

Func *func_clone_live(Module *m, const Func *f, bool keep_marks) {
    uint32_t n = f->nodes.n;
    bool *live = arena_alloc(m->arena, n);
    for (uint32_t i = 0; i < f->outputs.n; i++)
        live[f->outputs.at[i].ref] = true;
    for (uint32_t i = 0; keep_marks && i < f->marks.n; i++)
        live[f->marks.at[i].ref] = true;
    for (uint32_t i = n; i-- > 1;) {
        const Node *p = &f->nodes.at[i];
        if (p->op == OP_out && live[i])
            live[i - (uint32_t)p->k] = true;
        if (p->op == OP_input && f->is_kernel)
            live[i] = true; // a kernel keeps its argument list
        for (int j = 0; live[i] && j < p->n_in; j++)
            live[node_in(f, i, j)] = true;
    }
    Func *c = arena_alloc(m->arena, sizeof *c);
    *c = *f;
    memset(&c->nodes, 0, sizeof c->nodes);
    memset(&c->ins, 0, sizeof c->ins);
    memset(&c->outputs, 0, sizeof c->outputs);
    memset(&c->marks, 0, sizeof c->marks);
    Ref *map = arena_alloc(m->arena, n * sizeof *map);
    for (uint32_t i = 0; i < n; i++) {
        const Node *p = &f->nodes.at[i];
        if (i && !live[i] && !(p->op == OP_out && live[i - (uint32_t)p->k]))
            continue;
        Node q = *p;
        q.in0 = c->ins.n;
        for (int j = 0; j < p->n_in; j++)
            vec_push(m->arena, &c->ins, map[node_in(f, i, j)]);
        map[i] = c->nodes.n;
        vec_push(m->arena, &c->nodes, q);
    }
    for (uint32_t i = 0; i < f->outputs.n; i++)
        vec_push(m->arena, &c->outputs, ((NamedRef){f->outputs.at[i].name, map[f->outputs.at[i].ref]}));
    for (uint32_t i = 0; i < f->marks.n; i++)
        if (map[f->marks.at[i].ref])
            vec_push(m->arena, &c->marks, ((NamedRef){f->marks.at[i].name, map[f->marks.at[i].ref]}));
    return c;
}
