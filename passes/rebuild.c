// The frame of passes that rebuild a function.
#include "passes/rebuild.h"

Func *func_rebuild(Module *m, const Func *f, RebuildNode *node, void *ctx) {
    Func *out = arena_alloc(m->arena, sizeof *out);
    *out = (Func){.name = f->name, .is_kernel = f->is_kernel, .n_row_axes = f->n_row_axes};
    for (int i = 0; i < f->n_row_axes; i++)
        out->row_axes[i] = f->row_axes[i];
    Builder b = {.m = m, .f = out, .layer = -1};
    Ref *map = arena_alloc(m->arena, f->nodes.n * sizeof *map);
    vec_push(m->arena, &out->nodes, f->nodes.at[0]);
    for (Ref r = 1; r < f->nodes.n; r++) {
        const Node *n = node_at(f, r);
        Ref in[UINT8_MAX + 1];
        if (n->op == OP_out) {
            map[r] = map[r - (Ref)n->k] + (Ref)n->k;
            continue;
        }
        for (int i = 0; i < n->n_in; i++)
            in[i] = map[node_in(f, r, i)];
        b.loc = n->loc;
        b.layer = n->layer;
        map[r] = node(ctx, &b, f, r, in);
    }
    for (uint32_t i = 0; i < f->outputs.n; i++)
        vec_push(m->arena, &out->outputs, ((NamedRef){f->outputs.at[i].name, map[f->outputs.at[i].ref]}));
    for (uint32_t i = 0; i < f->marks.n; i++)
        vec_push(m->arena, &out->marks, ((NamedRef){f->marks.at[i].name, map[f->marks.at[i].ref]}));
    return out;
}
