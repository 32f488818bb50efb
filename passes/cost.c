// What one row of a kernel costs: every stored tensor counts once, values without rows (weights, column sums)
// not at all.
#include "passes/passes.h"

static double row_bytes(const Module *m, const Func *k, const Type *t) {
    AxisId rows[MAX_RANK];
    int n = type_rows(m, t, rows);
    double bytes = (double)dtype_bytes((Dtype)t->dtype);
    for (int i = n; i < t->rank; i++)
        bytes *= m->axes.at[t->axis[i]].size;
    return n && n == k->n_row_axes ? bytes : 0;
}

KernelCost cost_kernel(const Module *m, const Func *k) {
    KernelCost c = {0};
    int *phase = arena_alloc(m->arena, k->nodes.n * sizeof *phase);
    for (Ref r = 1; r < k->nodes.n; r++) {
        const Node *n = node_at(k, r);
        AxisId rows[MAX_RANK];
        double elems = 1;
        const Type *t = op_info[n->op].cls == CLASS_REDUCE ? &node_at(k, node_in(k, r, 0))->type : &n->type;
        for (int i = type_rows(m, t, rows); i < t->rank; i++)
            elems *= m->axes.at[t->axis[i]].size;
        c.flops += elems * (double)op_info[n->op].flops;
        if (n->op == OP_input || n->op == OP_gather) // a gather reads a row of its table
            c.read_bytes += row_bytes(m, k, &n->type);
        for (int i = 0; i < n->n_in; i++) {
            Ref x = node_in(k, r, i);
            const Node *p = node_at(k, x);
            bool ends = op_info[p->op].cls == CLASS_REDUCE && m->axes.at[p->ax[0]].kind == AXIS_WIDE;
            phase[r] = MAX_OF(phase[r], phase[x] + ends);
        }
        c.phases = MAX_OF(c.phases, phase[r] + 1);
    }
    for (uint32_t i = 0; i < k->outputs.n; i++)
        c.write_bytes += row_bytes(m, k, &node_at(k, k->outputs.at[i].ref)->type);
    return c;
}
