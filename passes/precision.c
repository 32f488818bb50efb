// Storage types of bf16 programs.
//
//   bf16  rows with a wide axis that a kernel, GEMM, attention or the head stores; GEMM operands; copies of
//   GEMM weights f32   everything inside of a kernel, statistics, routing coefficients, lse, sums over rows,
//   parameters' gradients
//
// Every change of type is a cast node: in kernels right behind inputs and right before outputs, so that each
// update is formed in f32 and rounded once; on weights, where the plan binds the cast to a copy that the
// optimizer writes. The function "update" works on f32 state alone and stays as it is.
#include "passes/passes.h"
#include "passes/rebuild.h"
#include <string.h>

typedef struct Variant { // a kernel with some arguments and results in bf16
    int32_t callee, made;
    const char *mask; // one letter an argument, then one a result
} Variant;

typedef struct Precision {
    Module *m;
    const Func *f;
    bool *is_output;
    VEC(Variant) variants;
    VEC(NamedRef) casts; // of weights: value in the new function and its cast (name unused)
    VEC(Ref) cast_of;
} Precision;

static bool stored_narrow(const Module *m, const Type *t) {
    AxisId rows[MAX_RANK];
    return t->dtype == DT_F32 && t->rank && m->axes.at[t->axis[t->rank - 1]].kind == AXIS_WIDE &&
           type_rows(m, t, rows);
}

// The bf16 form of a weight, one cast node each.
static Ref narrow(Precision *p, Builder *b, Ref x) {
    if (node_at(b->f, x)->type.dtype == DT_BF16)
        return x;
    for (uint32_t i = 0; i < p->casts.n; i++)
        if (p->casts.at[i].ref == x)
            return p->cast_of.at[i];
    Ref c = ir_cast(b, x, DT_BF16);
    vec_push(p->m->arena, &p->casts, ((NamedRef){"", x}));
    vec_push(p->m->arena, &p->cast_of, c);
    return c;
}

static Func *narrow_kernel(Module *m, const Func *k, const char *mask) {
    Func *f = arena_alloc(m->arena, sizeof *f);
    *f = (Func){.name = k->name, .is_kernel = true, .n_row_axes = k->n_row_axes};
    memcpy(f->row_axes, k->row_axes, sizeof f->row_axes);
    vec_push(m->arena, &f->nodes, k->nodes.at[0]);
    Builder b = {.m = m, .f = f, .layer = -1};
    Ref *map = arena_alloc(m->arena, k->nodes.n * sizeof *map),
        *wide = arena_alloc(m->arena, k->nodes.n * sizeof *wide);
    int arg = 0;
    for (Ref r = 1; r < k->nodes.n; r++) { // inputs first: an argument list stays together
        const Node *n = node_at(k, r);
        Type t = n->type;
        if (n->op != OP_input)
            continue;
        t.dtype = mask[arg++] == 'h' ? DT_BF16 : t.dtype;
        wide[r] = ir_input(&b, n->name, t);
    }
    for (Ref r = 1; r < k->nodes.n; r++) {
        Ref in[UINT8_MAX + 1];
        const Node *n = node_at(k, r);
        b.loc = n->loc;
        if (n->op == OP_input) {
            map[r] = n->type.dtype == DT_F32 ? ir_cast(&b, wide[r], DT_F32) : wide[r];
            continue;
        }
        for (int i = 0; i < n->n_in; i++)
            in[i] = map[node_in(k, r, i)];
        map[r] = ir_copy(&b, k, r, in);
    }
    for (uint32_t i = 0; i < k->outputs.n; i++) {
        Ref r = map[k->outputs.at[i].ref];
        b.loc = node_at(f, r)->loc;
        r = mask[arg++] == 'h' ? ir_cast(&b, r, DT_BF16) : r;
        vec_push(m->arena, &f->outputs, ((NamedRef){k->outputs.at[i].name, r}));
    }
    return f;
}

static int32_t variant_of(Precision *p, int32_t callee, const char *mask) {
    if (!strchr(mask, 'h'))
        return callee;
    for (uint32_t i = 0; i < p->variants.n; i++)
        if (p->variants.at[i].callee == callee && !strcmp(p->variants.at[i].mask, mask))
            return p->variants.at[i].made;
    Func *f = narrow_kernel(p->m, p->m->funcs.at[callee], mask);
    for (int more = 0; module_find_func(p->m, f->name); more++)
        f->name = arena_format(p->m->arena, "%s%s", p->m->funcs.at[callee]->name, more ? "h" : ".h");
    vec_push(p->m->arena, &p->m->funcs, f);
    Variant v = {callee, (int32_t)p->m->funcs.n - 1, arena_string(p->m->arena, mask)};
    vec_push(p->m->arena, &p->variants, v);
    return v.made;
}

static Ref narrow_call(Precision *p, Builder *b, const Node *n, const Ref *in) {
    char mask[2 * UINT8_MAX + 1] = "";
    const Func *callee = p->m->funcs.at[n->k];
    int at = 0;
    for (int i = 0; i < n->n_in; i++)
        mask[at++] = node_at(b->f, in[i])->type.dtype == DT_BF16 ? 'h' : '.';
    for (uint32_t i = 0; i < callee->outputs.n; i++)
        mask[at++] = stored_narrow(p->m, &node_at(callee, callee->outputs.at[i].ref)->type) ? 'h' : '.';
    mask[at] = 0;
    return ir_call(b, variant_of(p, n->k, mask), n->n_in, in);
}

static Ref precision_node(void *ctx, Builder *b, const Func *f, Ref r, const Ref *in) {
    Precision *p = ctx;
    Node n = *node_at(f, r);
    Ref narrowed[UINT8_MAX + 1];
    for (int i = 0; i < n.n_in; i++)
        narrowed[i] = in[i];
    switch (n.op) {
    case OP_call:
        return narrow_call(p, b, &n, in);
    case OP_dot: {
        bool rows = stored_narrow(p->m, &n.type);
        n.k = rows && !p->is_output[r] ? DT_BF16 : DT_F32;
        narrowed[0] = narrow(p, b, in[0]);
        narrowed[1] = narrow(p, b, in[1]);
        return ir_node(b, n, 2, narrowed);
    }
    case OP_concat: { // constants have the type of the values they stand beside
        bool any = false;
        for (int i = 0; i < n.n_in; i++)
            any |= node_at(b->f, in[i])->type.dtype == DT_BF16;
        for (int i = 0; any && i < n.n_in; i++) {
            if (node_at(b->f, in[i])->op == OP_const)
                narrowed[i] = ir_cast(b, in[i], DT_BF16);
        }
        return ir_node(b, n, n.n_in, narrowed);
    }
    case OP_head_loss:
    case OP_head_loss_grad:
        narrowed[0] = narrow(p, b, in[0]);
        narrowed[1] = narrow(p, b, in[1]);
        return ir_node(b, n, n.n_in, narrowed);
    default:
        return ir_copy(b, f, r, in);
    }
}

void pass_precision(Module *m, const PassOptions *o) {
    if (o->compute != DT_BF16)
        return;
    Precision p = {.m = m};
    uint32_t n = m->funcs.n;
    for (uint32_t i = 0; i < n; i++) {
        const Func *f = m->funcs.at[i];
        if (f->is_kernel || !strcmp(f->name, "update"))
            continue;
        p.f = f;
        p.casts.n = p.cast_of.n = 0;
        p.is_output = arena_alloc(m->arena, f->nodes.n);
        for (uint32_t k = 0; k < f->outputs.n; k++)
            p.is_output[f->outputs.at[k].ref] = true;
        Func *made = func_rebuild(m, f, precision_node, &p);
        m->funcs.at[i] = made;
    }
}
