// The plainest fusion there is, for tests of the plan alone: each computing node becomes a kernel of its own.
//
// Dots, attention, heads, views and constants stay in the function as they are, so the plan sees far more
// views of small axes than a real fusion leaves.
#ifndef DEPTHBENCH_TESTS_PLAN_WRAP_H
#define DEPTHBENCH_TESTS_PLAN_WRAP_H
#include "ir/ir.h"
#include <string.h>

static bool wrap_computes(const Func *f, Ref r, const bool *constant) {
    const Node *n = node_at(f, r);
    OpClass c = op_info[n->op].cls;
    return !constant[r] && (c == CLASS_MAP || c == CLASS_REDUCE || n->op == OP_gather || n->op == OP_one_hot);
}

static int32_t wrap_kernel(Module *m, const Func *f, Ref r) {
    const Node *n = node_at(f, r);
    Func *k =
        module_func(m, arena_format(m->arena, "one.%s.%s.%u", f->name, op_info[n->op].name, (unsigned)r));
    Builder b = {.m = m, .f = k, .layer = -1};
    Type all = n->type;
    Ref in[8];
    k->is_kernel = true;
    for (int i = 0; i < n->n_in; i++) {
        const Type *t = &node_at(f, node_in(f, r, i))->type;
        all = type_union(m, &all, t);
        in[i] = ir_input(&b, arena_format(m->arena, "x%d", i), *t);
    }
    AxisId rows[MAX_RANK];
    k->n_row_axes = (uint8_t)type_rows(m, &all, rows);
    memcpy(k->row_axes, rows, sizeof k->row_axes);
    vec_push(m->arena, &k->outputs, ((NamedRef){"y", ir_copy(&b, f, r, in)}));
    return (int32_t)m->funcs.n - 1;
}

// The wrapped function takes the old one's place in the module.
static void wrap_nodes(Module *m, const Func *f) {
    Arena *a = m->arena;
    Func *out = arena_alloc(a, sizeof *out);
    out->name = f->name;
    vec_push(a, &out->nodes, f->nodes.at[0]);
    Ref *map = arena_alloc(a, f->nodes.n * sizeof *map);
    bool *constant = arena_alloc(a, f->nodes.n);
    for (Ref r = 1; r < f->nodes.n; r++) {
        const Node *n = node_at(f, r);
        constant[r] = n->op == OP_const || n->op == OP_iota || (n->n_in && op_info[n->op].cls != CLASS_DOT);
        for (int i = 0; i < n->n_in; i++)
            constant[r] = constant[r] && constant[node_in(f, r, i)];
        Node q = *n;
        if (wrap_computes(f, r, constant)) {
            q = (Node){.op = OP_call,
                       .n_in = n->n_in,
                       .n_out = 1,
                       .type = n->type,
                       .loc = n->loc,
                       .layer = n->layer};
            q.k = wrap_kernel(m, f, r);
        }
        q.in0 = out->ins.n;
        for (int i = 0; i < n->n_in; i++)
            vec_push(a, &out->ins, map[node_in(f, r, i)]);
        map[r] = out->nodes.n;
        vec_push(a, &out->nodes, q);
    }
    for (uint32_t i = 0; i < f->outputs.n; i++)
        vec_push(a, &out->outputs, ((NamedRef){f->outputs.at[i].name, map[f->outputs.at[i].ref]}));
    for (uint32_t i = 0; i < m->funcs.n; i++)
        if (m->funcs.at[i] == f)
            m->funcs.at[i] = out;
}
#endif
