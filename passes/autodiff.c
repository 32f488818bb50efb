// Reverse mode on the unfused graph: "loss" becomes "micro" (loss and gradients) and "eval" (loss alone).
//
// The gradient of each MAP op is its GRAD column, compiled here as builder calls; views and composites follow
// below. Adjoints may lack axes (a broadcast) until an op needs them whole; axes that an operand lacks are
// summed away. Adjoints are added in the order in which the backward walk meets the consumers, so the same
// program gives the same sums.
#include "passes/passes.h"
#include <string.h>

typedef struct Part { // a gradient of some slice of a value
    Ref of, grad;
    AxisId axis, to;
    int32_t from;
} Part;

typedef struct Diff {
    Builder b;
    Ref *adj;     // by node: the adjoint so far, 0: none
    bool *wanted; // by node: depends on a trained parameter
    VEC(Part) parts;
} Diff;

static const Type *type_of(const Diff *d, Ref r) {
    return &node_at(d->b.f, r)->type;
}

// Sums the axes of g that `t` lacks.
static Ref sum_to(Diff *d, Ref g, const Type *t) {
    AxisId axes[MAX_RANK];
    int n = 0;
    const Type *have = type_of(d, g);
    for (int i = 0; i < have->rank; i++)
        if (!type_has(t, have->axis[i]))
            axes[n++] = have->axis[i];
    return ir_reduce(&d->b, OP_sum, g, n, axes);
}

// g with every axis of `t`: what it lacks is multiplied in as ones.
static Ref spread_to(Diff *d, Ref g, const Type *t) {
    for (int i = 0; i < t->rank; i++)
        if (!type_has(type_of(d, g), t->axis[i]))
            g = ir_mul(&d->b, g, ir_fill(&d->b, 1, t->axis[i]));
    return g;
}

// A gradient g of a result type, for an operand that was broadcast: axes that neither g nor the operand has
// are summed too, and a sum over equal elements is a factor.
static Ref sum_missing(Diff *d, Ref g, const Type *result, const Type *operand) {
    double count = 1;
    for (int i = 0; g && i < result->rank; i++)
        if (!type_has(operand, result->axis[i]) && !type_has(type_of(d, g), result->axis[i]))
            count *= d->b.m->axes.at[result->axis[i]].size;
    return count > 1 ? ir_mul(&d->b, g, ir_const(&d->b, count)) : g;
}

static void add_adjoint(Diff *d, Ref x, Ref g) {
    if (!g || !d->wanted[x])
        return;
    g = sum_to(d, g, type_of(d, x));
    d->adj[x] = d->adj[x] ? ir_add(&d->b, d->adj[x], g) : g;
}

// ---- MAP ops, from the table. A row's GRAD(..) fills out[]; 0 means none.
// clang-format off
#define GRAD(...) memcpy(out, (const Ref[3]){__VA_ARGS__}, 3 * sizeof *out)
#define BACK_MAP(name, grad) case OP_##name: grad; break;
#define BACK_REDUCE(name, grad)
#define BACK_VIEW(name, grad)
#define BACK_DOT(name, grad)
#define BACK_ATTN(name, grad)
#define BACK_GATHER(name, grad)
#define BACK_HEAD(name, grad)
#define BACK_DATA(name, grad)
static void map_grad(Builder *b, Op op, const Ref *a, Ref y, Ref g, Ref out[3]) {
    Ref a0 = a[0], a1 = a[1];
    (void)a1;
    switch ((int)op) {
#define OP(name, cls, arity, math, grad, cost, test, doc) BACK_##cls(name, grad)
#include "ir/ops.def"
    default: break;
    }
}
#undef GRAD
// clang-format on

// ---- Views

// 1 where index `from` + (index of `to`) of a slice is the index of `axis`, else 0; to AXIS_NONE: one index.
static Ref slice_mask(Diff *d, AxisId axis, AxisId to, int32_t from) {
    Builder *b = &d->b;
    Ref at = ir_const(b, from);
    if (to != AXIS_NONE)
        at = ir_add(b, ir_iota(b, to), at);
    return ir_eq(b, ir_iota(b, axis), at);
}

static int32_t part_size(const Diff *d, const Part *p) {
    return p->to == AXIS_NONE ? 1 : d->b.m->axes.at[p->to].size;
}

// An underscore before it: no script can have an axis of that name.
static AxisId sized_axis(Diff *d, const char *name, AxisId like, int32_t size) {
    Module *m = d->b.m;
    return module_axis(m, arena_format(m->arena, "_%s_%d", name, size), m->axes.at[like].kind, size);
}

// The type of a part of a value of type t.
static Type part_type(const Diff *d, const Type *t, const Part *p) {
    Type r = *t;
    int n = 0;
    for (int i = 0; i < t->rank; i++)
        if (t->axis[i] != p->axis || p->to != AXIS_NONE)
            r.axis[n++] = t->axis[i] == p->axis ? p->to : t->axis[i];
    return type_make(d->b.m, (Dtype)t->dtype, n, r.axis);
}

// Parts of a wide axis that overlap are cut where any begins or ends; afterwards two are the same or
// disjoint.
static int parts_cut(Diff *d, Part *parts, int n, int room) {
    Part cut[64];
    int count = 0;
    bool runs = false;
    for (int i = 0; i < n; i++)
        runs |= parts[i].to != AXIS_NONE;
    for (int i = 0; i < n; i++) {
        if (runs && parts[i].to == AXIS_NONE) { // single elements among runs are runs of one
            parts[i].to = sized_axis(d, "cut", parts[i].axis, 1);
            parts[i].grad = ir_mul(&d->b, parts[i].grad, ir_fill(&d->b, 1, parts[i].to));
        }
    }
    for (int i = 0; i < n; i++) {
        int32_t at = parts[i].from, end = at + part_size(d, &parts[i]);
        if (parts[i].axis != parts[0].axis)
            return -1;
        while (at < end) {
            int32_t next = end;
            for (int k = 0; k < n; k++) {
                int32_t a = parts[k].from, b = a + part_size(d, &parts[k]);
                next = a > at && a < next ? a : next;
                next = b > at && b < next ? b : next;
            }
            if (count == room)
                return -1;
            Part p = parts[i];
            if (next - at < end - parts[i].from) {
                p.to = sized_axis(d, "cut", p.axis, next - at);
                p.grad = ir_slice(&d->b, spread_to(d, p.grad, &(Type){.rank = 1, .axis = {parts[i].to}}),
                                  parts[i].to, p.to, at - parts[i].from);
                p.from = at;
            }
            cut[count++] = p;
            at = next;
        }
    }
    memcpy(parts, cut, (size_t)count * sizeof *parts);
    return count;
}

// Sorted by their start; the same part twice is one with the sum. -1: some overlap otherwise.
static int parts_sort(Diff *d, Part *parts, int n) {
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && parts[k].from < parts[k - 1].from; k--) {
            Part other = parts[k];
            parts[k] = parts[k - 1];
            parts[k - 1] = other;
        }
    int kept = 0;
    for (int i = 0; i < n; i++) {
        Part *last = kept ? &parts[kept - 1] : NULL, p = parts[i];
        bool same = last && p.from == last->from && part_size(d, &p) == part_size(d, last);
        if (same && (p.to == AXIS_NONE) == (last->to == AXIS_NONE)) {
            if (p.to != AXIS_NONE && type_has(type_of(d, p.grad), p.to))
                p.grad = ir_rename(&d->b, p.grad, p.to, last->to);
            last->grad = ir_add(&d->b, last->grad, p.grad);
        } else if (last && p.from < last->from + part_size(d, last))
            return -1;
        else
            parts[kept++] = p;
    }
    return kept;
}

// Puts zeros where no part lies. Small axes do without: masks cost them nothing.
static int parts_fill(Diff *d, Part *parts, int n, int room, const Type *t) {
    Part full[64];
    int32_t at = 0, size = d->b.m->axes.at[parts[0].axis].size;
    int count = 0;
    for (int i = 0; i <= n; i++) {
        int32_t next = i < n ? parts[i].from : size;
        if (count + 2 > room)
            return -1;
        if (next > at) {
            if (d->b.m->axes.at[parts[0].axis].kind != AXIS_WIDE)
                return -1;
            Part gap = {.axis = parts[0].axis, .from = at};
            gap.to = sized_axis(d, "gap", gap.axis, next - at);
            gap.grad = ir_node(&d->b, (Node){.op = OP_const, .type = part_type(d, t, &gap)}, 0, NULL);
            full[count++] = gap;
        }
        if (i < n) {
            full[count++] = parts[i];
            at = next + part_size(d, &parts[i]);
        }
    }
    memcpy(parts, full, (size_t)count * sizeof *parts);
    return count;
}

// Parts from one end of the axis to the other as one value, a few at a time; 0 when the axes of some lie in
// another order.
static Ref parts_concat(Diff *d, Part *parts, int n, const Type *t) {
    enum { AT_ONCE = MAX_ATTR_AXES - 1 };
    Ref in[AT_ONCE];
    AxisId axes[AT_ONCE], axis = parts[0].axis;
    for (int i = 0; i < n; i++) {
        Type want = part_type(d, t, &parts[i]);
        parts[i].grad = spread_to(d, parts[i].grad, &want);
        if (!type_same(type_of(d, parts[i].grad), &want))
            return 0;
    }
    for (;;) {
        int take = MIN_OF(n, AT_ONCE);
        int32_t size = 0;
        for (int i = 0; i < take; i++) {
            in[i] = parts[i].grad;
            axes[i] = parts[i].to;
            size += part_size(d, &parts[i]);
        }
        if (take == n)
            return ir_concat(&d->b, axis, n, in, axes);
        Part joined = {.axis = axis, .from = 0, .to = sized_axis(d, "join", axis, size)};
        joined.grad = ir_concat(&d->b, joined.to, take, in, axes);
        parts[0] = joined;
        memmove(parts + 1, parts + take, (size_t)(n - take) * sizeof *parts);
        n -= take - 1;
    }
}

// All consumers of x have been met: turns what its slices got into one adjoint.
static void settle_parts(Diff *d, Ref x) {
    enum { ROOM = 64 };
    Part mine[ROOM], whole[ROOM];
    int n = 0;
    for (uint32_t i = 0; i < d->parts.n && n < ROOM; i++)
        if (d->parts.at[i].of == x)
            mine[n++] = d->parts.at[i];
    if (!n)
        return;
    Type t = *type_of(d, x);
    memcpy(whole, mine, (size_t)n * sizeof *whole);
    bool wide = d->b.m->axes.at[mine[0].axis].kind == AXIS_WIDE;
    int count = wide ? parts_cut(d, whole, n, ROOM) : n;
    count = count < 0 ? -1 : parts_sort(d, whole, count);
    count = count < 0 ? -1 : parts_fill(d, whole, count, ROOM, &t);
    Ref g = count < 0 ? 0 : parts_concat(d, whole, count, &t);
    if (g) {
        add_adjoint(d, x, g);
        return;
    }
    for (int i = 0; i < n; i++) { // the general form: each part under a mask
        const Part *p = &mine[i];
        g = p->to == AXIS_NONE ? p->grad : spread_to(d, p->grad, &(Type){.rank = 1, .axis = {p->to}});
        g = ir_mul(&d->b, g, slice_mask(d, p->axis, p->to, p->from));
        if (p->to != AXIS_NONE && p->to != p->axis)
            g = ir_reduce(&d->b, OP_sum, g, 1, &p->to);
        add_adjoint(d, x, g);
    }
}

static void view_grad(Diff *d, Ref r, const Node *n, Ref g) {
    Builder *b = &d->b;
    Ref x = node_in(b->f, r, 0);
    switch (n->op) {
    case OP_cast:
        add_adjoint(d, x, ir_cast(b, g, (Dtype)type_of(d, x)->dtype));
        break;
    case OP_rename:
        add_adjoint(d, x, type_has(type_of(d, g), n->ax[1]) ? ir_rename(b, g, n->ax[1], n->ax[0]) : g);
        break;
    case OP_split:
        g = spread_to(d, g, type_of(d, r));
        add_adjoint(d, x, ir_merge(b, g, n->n_ax - 1, n->ax + 1, n->ax[0]));
        break;
    case OP_merge:
        g = spread_to(d, g, type_of(d, r));
        add_adjoint(d, x, ir_split(b, g, n->ax[n->n_ax - 1], n->n_ax - 1, n->ax));
        break;
    case OP_slice: {
        Part p = {
            .of = x, .grad = g, .axis = n->ax[0], .to = n->n_ax > 1 ? n->ax[1] : AXIS_NONE, .from = n->k};
        if (d->wanted[x])
            vec_push(b->m->arena, &d->parts, p);
        break;
    }
    case OP_concat:
        for (int i = 0, from = 0; i < n->n_in; i++) {
            AxisId axis = n->ax[1 + i];
            Ref part = type_has(type_of(d, g), n->ax[0]) ? ir_slice(b, g, n->ax[0], axis, from) : g;
            add_adjoint(d, node_in(b->f, r, i), part);
            from += axis == AXIS_NONE ? 1 : b->m->axes.at[axis].size;
        }
        break;
    default: // one_hot, iota: integers and constants
        break;
    }
}

// ---- Composites

static bool has_wide(const Diff *d, const Type *t) {
    for (int i = 0; i < t->rank; i++)
        if (d->b.m->axes.at[t->axis[i]].kind == AXIS_WIDE)
            return true;
    return false;
}

// The dot of g and y, with wide axes in the order of type t. With nothing to contract it is a product; one
// along two wide axes has no kernel, so that it becomes a dot over an axis of one element.
static Ref product_as(Diff *d, Ref g, Ref y, const Type *t) {
    Builder *b = &d->b;
    bool shares = false;
    Type want = *t;
    for (int k = 0; k < type_of(d, y)->rank; k++)
        shares |= type_has(type_of(d, g), type_of(d, y)->axis[k]);
    if (!shares && !(has_wide(d, type_of(d, g)) && has_wide(d, type_of(d, y))))
        return ir_mul(b, g, y);
    if (!shares) {
        Ref one = ir_fill(b, 1, module_axis(b->m, "_one", AXIS_SMALL, 1));
        g = ir_mul(b, g, one);
        y = ir_mul(b, y, one);
    }
    Ref r = ir_dot(b, g, y);
    return type_same(type_of(d, r), &want) ? r : ir_dot(b, y, g);
}

// d(x . y): each side gets the product of g with the other, in the order of axes that the side has.
static void dot_grad(Diff *d, Ref r, Ref g) {
    Builder *b = &d->b;
    g = spread_to(d, g, type_of(d, r));
    for (int i = 0; i < 2; i++) {
        Ref x = node_in(b->f, r, i), y = node_in(b->f, r, 1 - i);
        if (!d->wanted[x])
            continue;
        add_adjoint(d, x, product_as(d, g, y, type_of(d, x)));
    }
}

static void composite_grad(Diff *d, Ref r, const Node *n, Ref g) {
    Builder *b = &d->b;
    Ref in[8];
    for (int i = 0; i < n->n_in; i++)
        in[i] = node_in(b->f, r, i);
    switch (n->op) {
    case OP_sum:
        add_adjoint(d, in[0], g);
        break;
    case OP_rmax: { // elements that share the largest value share its gradient
        Ref mask = ir_eq(b, in[0], r), sharers = ir_reduce(b, OP_sum, mask, n->n_ax, n->ax);
        add_adjoint(d, in[0], ir_mul(b, ir_div(b, g, ir_max(b, sharers, ir_const(b, 1))), mask));
        break;
    }
    case OP_dot:
        dot_grad(d, r, g);
        break;
    case OP_attention: {
        CHECK(!d->adj[r + 1], "the gradient of attention's lse is not defined");
        Ref first = ir_attention_grad(b, in[0], in[1], in[2], r, r + 1, spread_to(d, g, type_of(d, r)), n->f);
        for (Ref i = 0; i < 3; i++)
            add_adjoint(d, in[i], first + i);
        break;
    }
    case OP_gather:
        add_adjoint(d, in[0],
                    ir_scatter_sum(b, spread_to(d, g, type_of(d, r)), in[1], type_of(d, in[0])->axis[0]));
        break;
    case OP_head_loss: {
        Ref first = ir_head_loss_grad(b, in[0], in[1], in[2], in[3], g);
        add_adjoint(d, in[0], first + 1);
        add_adjoint(d, in[1], first + 2);
        break;
    }
    default: // data, constant, stop_grad: a path ends
        break;
    }
}

static void node_grad(Diff *d, Ref r) {
    Node n = *node_at(d->b.f, r); // a copy: the array grows below
    settle_parts(d, r);
    Ref g = d->adj[r];
    if (n.op == OP_out || !g || !n.n_in || !d->wanted[r])
        return;
    d->b.loc = n.loc;
    d->b.layer = n.layer;
    if (op_info[n.op].cls == CLASS_MAP) {
        Ref in[3] = {0}, out[3] = {0};
        for (int i = 0; i < n.n_in; i++)
            in[i] = node_in(d->b.f, r, i);
        map_grad(&d->b, (Op)n.op, in, r, g, out);
        for (int i = 0; i < n.n_in; i++)
            if (d->wanted[in[i]])
                add_adjoint(d, in[i], sum_missing(d, out[i], &n.type, type_of(d, in[i])));
    } else if (op_info[n.op].cls == CLASS_VIEW)
        view_grad(d, r, &n, g);
    else
        composite_grad(d, r, &n, g);
}

// A value is wanted when a trained parameter reaches it by a road that has gradients.
static void find_wanted(Diff *d, uint32_t n) {
    const Func *f = d->b.f;
    for (Ref r = 1; r < n; r++) {
        const Node *p = node_at(f, r);
        if (p->op == OP_param)
            d->wanted[r] = d->b.m->params.at[p->k].trained;
        else if (p->op == OP_out)
            d->wanted[r] = d->wanted[r - (Ref)p->k];
        else if (p->op != OP_stop_grad && p->op != OP_constant)
            for (int i = 0; i < p->n_in; i++)
                d->wanted[r] |= d->wanted[node_in(f, r, i)];
    }
}

static Ref param_grad(Diff *d, int32_t k, uint32_t n) {
    const Type *t = &d->b.m->params.at[k].type;
    Ref g = 0;
    for (Ref r = 1; r < n && !g; r++)
        if (node_at(d->b.f, r)->op == OP_param && node_at(d->b.f, r)->k == k)
            g = d->adj[r];
    if (g)
        return spread_to(d, g, t);
    Node zero = {.op = OP_const, .type = *t, .f = 0};
    return ir_node(&d->b, zero, 0, NULL);
}

static Func *differentiate(Module *m, const Func *loss) {
    Func *f = func_clone_live(m, loss, true);
    uint32_t n = f->nodes.n;
    f->name = "micro";
    Diff d = {.b = {.m = m, .f = f, .layer = -1}};
    d.adj = arena_alloc(m->arena, n * sizeof *d.adj);
    d.wanted = arena_alloc(m->arena, n);
    find_wanted(&d, n);
    for (uint32_t i = 0; i < f->outputs.n; i++)
        if (!strcmp(f->outputs.at[i].name, "loss"))
            d.adj[f->outputs.at[i].ref] = ir_const(&d.b, 1);
    for (Ref r = n; r-- > 1;)
        node_grad(&d, r);
    d.b.layer = -1;
    d.b.loc = (Loc){{0}, {0}};
    for (uint32_t k = 0; k < m->params.n; k++)
        if (m->params.at[k].trained) {
            const char *name = arena_format(m->arena, "grad.%s", m->params.at[k].name);
            vec_push(m->arena, &f->outputs, ((NamedRef){name, param_grad(&d, (int32_t)k, n)}));
        }
    return f;
}

// Marks that were asked for become outputs; the others are gone.
static void settle_marks(Module *m, Func *f, const PassOptions *o) {
    for (uint32_t i = 0; i < f->marks.n; i++) {
        const char *name = f->marks.at[i].name;
        if ((o->want_hidden && !strncmp(name, "hidden.", 7)) || (o->want_logits && !strcmp(name, "logits")))
            vec_push(m->arena, &f->outputs, f->marks.at[i]);
    }
    f->marks.n = 0;
}

int autodiff_dead_params(const Module *m, int32_t *out) {
    const Func *f = module_find_func(m, "loss");
    int dead = 0;
    bool *live = arena_alloc(m->arena, m->params.n + 1);
    const Func *used = func_clone_live((Module *)(uintptr_t)m, f, false);
    for (uint32_t i = 1; i < used->nodes.n; i++)
        if (used->nodes.at[i].op == OP_param)
            live[used->nodes.at[i].k] = true;
    for (uint32_t k = 0; k < m->params.n; k++)
        if (m->params.at[k].trained && !live[k])
            out[dead++] = (int32_t)k;
    return dead;
}

void pass_autodiff(Module *m, const PassOptions *o) {
    Func *loss = module_find_func(m, "loss");
    CHECK(loss, "no function named loss");
    Func *eval = func_clone_live(m, loss, true);
    eval->name = "eval";
    Func *micro = o->train ? differentiate(m, loss) : NULL;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->funcs.n; i++)
        if (m->funcs.at[i] != loss)
            m->funcs.at[kept++] = m->funcs.at[i];
    m->funcs.n = kept;
    settle_marks(m, eval, o);
    vec_push(m->arena, &m->funcs, func_clone_live(m, eval, false));
    if (micro) {
        settle_marks(m, micro, o);
        vec_push(m->arena, &m->funcs, func_clone_live(m, micro, false));
    }
}
