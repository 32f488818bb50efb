// Reverse mode on the unfused graph: "loss" becomes "micro" (loss and gradients) and "eval" (loss alone).
//
// The gradient of each MAP op is its GRAD column, compiled here as builder calls; views and composites follow
// below. Adjoints may lack axes (a broadcast) until an op needs them whole; axes that an operand lacks are
// summed away. Adjoints are added in the order in which the backward walk meets the consumers, so the same
// program gives the same sums.
#include "passes/autodiff.h"
#include <string.h>

const Type *diff_type(const Diff *d, Ref r) {
    return &node_at(d->b.f, r)->type;
}

// Sums the axes of g that `t` lacks.
static Ref sum_to(Diff *d, Ref g, const Type *t) {
    AxisId axes[MAX_RANK];
    int n = 0;
    const Type *have = diff_type(d, g);
    for (int i = 0; i < have->rank; i++)
        if (!type_has(t, have->axis[i]))
            axes[n++] = have->axis[i];
    return ir_reduce(&d->b, OP_sum, g, n, axes);
}

// A gradient g of a result type, for an operand that was broadcast: axes that neither g nor the operand has
// are summed too, and a sum over equal elements is a factor.
static Ref sum_missing(Diff *d, Ref g, const Type *result, const Type *operand) {
    double count = 1;
    for (int i = 0; g && i < result->rank; i++)
        if (!type_has(operand, result->axis[i]) && !type_has(diff_type(d, g), result->axis[i]))
            count *= d->b.m->axes.at[result->axis[i]].size;
    return count > 1 ? ir_mul(&d->b, g, ir_const(&d->b, count)) : g;
}

void diff_add(Diff *d, Ref x, Ref g) {
    if (!g || !d->wanted[x])
        return;
    g = sum_to(d, g, diff_type(d, x));
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

static void view_grad(Diff *d, Ref r, const Node *n, Ref g) {
    Builder *b = &d->b;
    Ref x = node_in(b->f, r, 0);
    switch (n->op) {
    case OP_cast:
        diff_add(d, x, ir_cast(b, g, (Dtype)diff_type(d, x)->dtype));
        break;
    case OP_rename:
        diff_add(d, x, type_has(diff_type(d, g), n->ax[1]) ? ir_rename(b, g, n->ax[1], n->ax[0]) : g);
        break;
    case OP_split:
        g = diff_spread(d, g, diff_type(d, r));
        diff_add(d, x, ir_merge(b, g, n->n_ax - 1, n->ax + 1, n->ax[0]));
        break;
    case OP_merge:
        g = diff_spread(d, g, diff_type(d, r));
        diff_add(d, x, ir_split(b, g, n->ax[n->n_ax - 1], n->n_ax - 1, n->ax));
        break;
    case OP_slice: {
        AxisId to = n->n_ax > 1 ? n->ax[1] : AXIS_NONE;
        parts_add(d, x, (Part){.axis = n->ax[0], .to = to, .from = n->k, .grad = g});
        break;
    }
    case OP_concat:
        for (int i = 0, from = 0; i < n->n_in; i++) {
            AxisId axis = n->ax[1 + i];
            Ref part = type_has(diff_type(d, g), n->ax[0]) ? ir_slice(b, g, n->ax[0], axis, from) : g;
            diff_add(d, node_in(b->f, r, i), part);
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
    for (int k = 0; k < diff_type(d, y)->rank; k++)
        shares |= type_has(diff_type(d, g), diff_type(d, y)->axis[k]);
    if (!shares && !(has_wide(d, diff_type(d, g)) && has_wide(d, diff_type(d, y))))
        return ir_mul(b, g, y);
    if (!shares) {
        Ref one = ir_fill(b, 1, module_axis(b->m, "_one", AXIS_SMALL, 1));
        g = ir_mul(b, g, one);
        y = ir_mul(b, y, one);
    }
    Ref r = ir_dot(b, g, y);
    return type_same(diff_type(d, r), &want) ? r : ir_dot(b, y, g);
}

Ref diff_spread(Diff *d, Ref g, const Type *t) {
    Module *m = d->b.m;
    AxisId wide[MAX_RANK];
    int n = 0;
    for (int i = 0; i < t->rank; i++) {
        if (type_has(diff_type(d, g), t->axis[i]))
            continue;
        if (m->axes.at[t->axis[i]].kind == AXIS_WIDE)
            wide[n++] = t->axis[i];
        else
            g = ir_mul(&d->b, g, ir_fill(&d->b, 1, t->axis[i]));
    }
    if (!n)
        return g;
    Node ones = {.op = OP_const, .f = 1, .type = type_make(m, DT_F32, n, wide)};
    return product_as(d, g, ir_node(&d->b, ones, 0, NULL), t);
}

// d(x . y): each side gets the product of g with the other, in the order of axes that the side has.
static void dot_grad(Diff *d, Ref r, Ref g) {
    Builder *b = &d->b;
    g = diff_spread(d, g, diff_type(d, r));
    for (int i = 0; i < 2; i++) {
        Ref x = node_in(b->f, r, i), y = node_in(b->f, r, 1 - i);
        if (!d->wanted[x])
            continue;
        diff_add(d, x, product_as(d, g, y, diff_type(d, x)));
    }
}

// What a softmax over rows with results o and lse subtracts in its gradient: o itself (the kernel forms o .
// g) or, where lse has a gradient, D = o . g - g_lse. g has all axes of o.
static Ref attention_mean(Diff *d, Ref o, Ref g) {
    Builder *b = &d->b;
    if (!d->adj[o + 1])
        return o;
    Ref dot = sum_to(d, ir_mul(b, o, g), diff_type(d, o + 1));
    return ir_sub(b, dot, d->adj[o + 1]);
}

static void composite_grad(Diff *d, Ref r, const Node *n, Ref g) {
    Builder *b = &d->b;
    Ref in[8];
    for (int i = 0; i < n->n_in; i++)
        in[i] = node_in(b->f, r, i);
    switch (n->op) {
    case OP_sum:
        diff_add(d, in[0], g);
        break;
    case OP_rmax: { // elements that share the largest value share its gradient
        Ref mask = ir_eq(b, in[0], r), sharers = ir_reduce(b, OP_sum, mask, n->n_ax, n->ax);
        diff_add(d, in[0], ir_mul(b, ir_div(b, g, ir_max(b, sharers, ir_const(b, 1))), mask));
        break;
    }
    case OP_dot:
        dot_grad(d, r, g);
        break;
    case OP_attention: {
        g = diff_spread(d, g, diff_type(d, r));
        Ref first = ir_attention_grad(b, in[0], in[1], in[2], attention_mean(d, r, g), r + 1, g, n->f);
        for (Ref i = 0; i < 3; i++)
            diff_add(d, in[i], first + i);
        break;
    }
    case OP_gather:
        diff_add(d, in[0],
                 ir_scatter_sum(b, diff_spread(d, g, diff_type(d, r)), in[1], diff_type(d, in[0])->axis[0]));
        break;
    case OP_head_loss: {
        Ref first = ir_head_loss_grad(b, in[0], in[1], in[2], in[3], g);
        diff_add(d, in[0], first + 1);
        diff_add(d, in[1], first + 2);
        break;
    }
    default: // data, constant, stop_grad: a path ends
        break;
    }
}

static void node_grad(Diff *d, Ref r) {
    Node n = *node_at(d->b.f, r); // a copy: the array grows below
    parts_settle(d, r);
    Ref g = d->adj[r];
    if (!g && n.n_out > 1 && d->adj[r + 1]) // the second result alone has a gradient
        g = ir_node(&d->b, (Node){.op = OP_const, .type = n.type}, 0, NULL);
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
                diff_add(d, in[i], sum_missing(d, out[i], &n.type, diff_type(d, in[i])));
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
        return diff_spread(d, g, t);
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
    d.last_part = arena_alloc(m->arena, n * sizeof *d.last_part);
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
