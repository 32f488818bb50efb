// The form of a function that fusion wants: no stop_grad, and a sum over rows runs over all rows that its
// operand has, for then it ends a row kernel. A sum over some of the rows is a product with ones, a GEMM.
#include "passes/fusion.h"
#include "passes/rebuild.h"

typedef struct Normal {
    VEC(uint8_t) fixed; // by node of the new function: depends on numbers alone
} Normal;

static void note_fixed(Normal *s, const Builder *b) {
    while (s->fixed.n < b->f->nodes.n) {
        const Node *n = node_at(b->f, s->fixed.n);
        bool fixed = n->op == OP_const || n->op == OP_iota || n->n_in > 0;
        for (int i = 0; fixed && i < n->n_in; i++)
            fixed = s->fixed.at[node_in(b->f, s->fixed.n, i)];
        vec_push(b->m->arena, &s->fixed, (uint8_t)fixed);
    }
}

static int axes_of(const Module *m, const Node *n, bool row, AxisId out[MAX_ATTR_AXES]) {
    int count = 0;
    for (int i = 0; i < n->n_ax; i++)
        if ((m->axes.at[n->ax[i]].kind == AXIS_ROW) == row)
            out[count++] = n->ax[i];
    return count;
}

static Ref normal_node(void *ctx, Builder *b, const Func *f, Ref r, const Ref *in) {
    Normal *s = ctx;
    const Node *n = node_at(f, r);
    note_fixed(s, b);
    if (n->op == OP_stop_grad)
        return in[0];
    if (op_info[n->op].cls != CLASS_REDUCE || s->fixed.at[in[0]])
        return ir_copy(b, f, r, in);
    AxisId rows[MAX_ATTR_AXES], others[MAX_ATTR_AXES], all[MAX_RANK];
    int n_rows = axes_of(b->m, n, true, rows), n_others = axes_of(b->m, n, false, others);
    CHECK(!n_rows || n->op == OP_sum, "%s: node %u: %s over rows; only sums over rows are built", f->name, r,
          op_info[n->op].name);
    if (!n_rows || type_rows(b->m, &node_at(b->f, in[0])->type, all) == n_rows)
        return ir_copy(b, f, r, in);
    Node ones = {.op = OP_const, .f = 1, .type = type_make(b->m, DT_F32, n_rows, rows)};
    Ref x = ir_reduce(b, OP_sum, in[0], n_others, others);
    return ir_dot(b, ir_node(b, ones, 0, NULL), x);
}

Func *fusion_normal_form(Module *m, const Func *f) {
    Normal s = {0};
    return func_rebuild(m, f, normal_node, &s);
}
