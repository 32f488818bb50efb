// Decides before anything is emitted where results are written, so that nothing is copied afterwards.
//
// From the outputs backwards: the producer of an output writes to the output's own place, the producers of
// the parts of a concat write into the concat, through any views between. A gradient's place keeps sums over
// micro-batches, so only values that nobody else reads are written there; a product of merged weights goes
// there whole when its slices are exactly the gradients that lie side by side. What cannot be decided here
// stays undecided: plan.c makes a copy. Invariant: a pinned producer can write its place with plain strides.
#include "passes/planner.h"

// Can the producer of r write a value of these strides?
static bool writable(const Planner *p, Ref r, const Place *at) {
    const Node *n = node_at(p->f, r);
    Ref base = node_base(p->f, r);
    const Node *b = node_at(p->f, base);
    AxisId rows[MAX_RANK];
    switch (b->op) {
    case OP_call: {
        const Func *callee = p->m->funcs.at[b->k];
        bool column = callee->n_row_axes && !type_rows(p->m, &n->type, rows);
        return column ? place_dense_from(p->m, &n->type, at, 0) : place_inner_dense(p->m, &n->type, at);
    }
    case OP_dot: {
        Value out = {n->type, *at};
        return dot_output_fits(p->m, &node_at(p->f, node_in(p->f, base, 0))->type,
                               &node_at(p->f, node_in(p->f, base, 1))->type, &out);
    }
    case OP_attention:
    case OP_attention_grad:
        return place_inner_dense(p->m, &n->type, at);
    case OP_scatter_sum:
        return place_dense_from(p->m, &n->type, at, 0);
    case OP_head_loss:
    case OP_head_loss_grad: {
        int64_t count, stride;
        Value out = {n->type, *at};
        return place_inner_dense(p->m, &n->type, at) && rows_flatten(p->m, &out, &count, &stride);
    }
    case OP_concat:
        return true;
    default:
        return false;
    }
}

// Writes to a gradient's place are added up: these producers can do that.
static bool adds(const Planner *p, Ref r) {
    const Node *b = node_at(p->f, node_base(p->f, r));
    if (b->op == OP_dot || b->op == OP_scatter_sum || b->op == OP_head_loss_grad)
        return true;
    return b->op == OP_call && p->m->funcs.at[b->k]->n_row_axes; // a column sum
}

// Pins the producer behind the views that end in r. n_uses: how often r may be read, 0: any number, and then
// the same holds for what is behind it.
static bool pin(Planner *p, Ref r, Place at, Accumulate acc, uint32_t n_uses) {
    for (;;) {
        const Node *n = node_at(p->f, r);
        if (n_uses && p->uses[r] != n_uses)
            return false;
        n_uses = n_uses ? 1 : 0;
        if (n->op != OP_rename && n->op != OP_split && n->op != OP_merge && n->op != OP_stop_grad)
            break;
        Ref x = node_in(p->f, r, 0);
        Place before;
        if (!view_backward(p->m, n, &node_at(p->f, x)->type, &at, &before))
            return false;
        at = before;
        r = x;
    }
    if (p->constant[r] || p->at[r].buffer >= 0 || !writable(p, r, &at) || (acc != ACC_NO && !adds(p, r)))
        return false;
    p->at[r] = at;
    p->acc[r] = acc;
    return true;
}

// ---- Gradients of merged weights: slices of one product.
typedef struct Merged {
    Ref whole;
    Place at;
    int64_t covered;
    uint32_t n;
    bool good;
} Merged;
typedef VEC(Merged) MergedList;

// The slice behind the views that end in r, when nothing else reads on the way; 0: none. *at becomes its
// place.
static Ref find_slice(const Planner *p, Ref r, Place *at) {
    for (;;) {
        const Node *n = node_at(p->f, r);
        if (p->uses[r] != 1)
            return 0;
        if (n->op == OP_slice)
            return r;
        if (n->op != OP_rename && n->op != OP_split && n->op != OP_merge)
            return 0;
        Place before;
        Ref x = node_in(p->f, r, 0);
        if (!view_backward(p->m, n, &node_at(p->f, x)->type, at, &before))
            return 0;
        *at = before;
        r = x;
    }
}

static void merged_add(Planner *p, MergedList *list, Ref output, Place at) {
    Ref r = find_slice(p, output, &at);
    if (!r)
        return;
    Ref whole = node_in(p->f, r, 0);
    const Type *t = &node_at(p->f, whole)->type;
    Place before;
    bool good = view_backward(p->m, node_at(p->f, r), t, &at, &before);
    for (uint32_t i = 0; i < list->n; i++) {
        Merged *g = &list->at[i];
        if (g->whole != whole)
            continue;
        g->good = g->good && good && place_same(p, t, &g->at, &before);
        g->covered += type_count(p->m, &node_at(p->f, r)->type);
        g->n++;
        if (good && before.offset >= 0 && g->at.offset < 0)
            g->at = before;
        return;
    }
    vec_push(p->m->arena, list,
             ((Merged){whole, before, type_count(p->m, &node_at(p->f, r)->type), 1, good}));
}

static void pin_merged(Planner *p, const MergedList *list) {
    for (uint32_t i = 0; i < list->n; i++) {
        const Merged *g = &list->at[i];
        if (g->good && g->at.offset >= 0 && g->covered == type_count(p->m, &node_at(p->f, g->whole)->type))
            pin(p, g->whole, g->at, ACC_MICRO, g->n);
    }
}

// A concat of operands that exist before the program runs (parameters, their copies) is adjacency, not
// writing.
static bool is_static(const Planner *p, Ref r) {
    const Node *n = node_at(p->f, r);
    if (n->op == OP_param || n->op == OP_input || p->constant[r])
        return true;
    if (op_info[n->op].cls != CLASS_VIEW)
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (!is_static(p, node_in(p->f, r, i)))
            return false;
    return true;
}

static void pin_parts(Planner *p, Ref r) {
    const Node *n = node_at(p->f, r);
    if (p->at[r].buffer < 0)
        p->at[r] = place_dense(p->m, &n->type,
                               buffer_acts(p, r, "concat", (Dtype)n->type.dtype, type_count(p->m, &n->type)));
    for (int i = 0; i < n->n_in; i++)
        pin(p, node_in(p->f, r, i), concat_part(p, r, i, &p->at[r]), ACC_NO, 0);
}

void pins_decide(Planner *p) {
    MergedList merged = {0};
    for (uint32_t i = 0; i < p->f->outputs.n; i++) {
        Ref r = p->f->outputs.at[i].ref;
        const PlanTarget *t = &p->target[i];
        if (!pin(p, r, t->value.at, t->acc, t->acc == ACC_NO ? 0 : 1) && t->acc == ACC_MICRO)
            merged_add(p, &merged, r, t->value.at);
    }
    pin_merged(p, &merged);
    for (Ref r = p->f->nodes.n; r-- > 1;)
        if (node_at(p->f, r)->op == OP_concat && !is_static(p, r) && p->uses[r])
            pin_parts(p, r);
}
