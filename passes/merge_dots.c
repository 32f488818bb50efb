// One GEMM where the graph has several with the same left side: x . Wq, x . Wk, x . Wv become slices of x .
// concat(Wq, Wk, Wv). The weights lie side by side in memory (layout.c), so the concat is free; the gradients
// follow by autodiff: one product for the input, one for the weights. Weights of different layers never
// merge, so layers stay alike.
#include "passes/rebuild.h"
#include <string.h>

enum { MAX_MERGE = MAX_ATTR_AXES - 1 };

typedef struct Group { // of the dot that comes first
    int n;
    Ref dot[MAX_MERGE];
} Group;

typedef struct Merge {
    Group *group;   // by first dot
    Ref *leader;    // by dot: the first of its group; 0: alone
    Ref *merged;    // by first dot: the new product
    Ref *head_grad; // by head_loss: the head_loss_grad of the same operands; 0: none
    Ref *map_of;    // by old node: the new one (heads only)
} Merge;

// The output axis of a mergeable weight: a parameter [out, in] whose `in` is all that x shares with it.
static bool mergeable(const Module *m, const Func *f, Ref r, AxisId *out, AxisId *in) {
    const Node *n = node_at(f, r);
    if (n->op != OP_dot || node_at(f, node_in(f, r, 1))->op != OP_param)
        return false;
    const Type *w = &node_at(f, node_in(f, r, 1))->type, *x = &node_at(f, node_in(f, r, 0))->type;
    if (w->rank != 2 || m->axes.at[w->axis[0]].kind != AXIS_WIDE || m->axes.at[w->axis[1]].kind != AXIS_WIDE)
        return false;
    *out = w->axis[0];
    *in = w->axis[1];
    return type_has(x, *in) && !type_has(x, *out);
}

static bool joins(const Module *m, const Func *f, Ref first, Ref r) {
    AxisId out[2], in[2];
    if (!mergeable(m, f, first, &out[0], &in[0]) || !mergeable(m, f, r, &out[1], &in[1]))
        return false;
    const Param *a = &m->params.at[node_at(f, node_in(f, first, 1))->k];
    const Param *b = &m->params.at[node_at(f, node_in(f, r, 1))->k];
    return node_in(f, first, 0) == node_in(f, r, 0) && in[0] == in[1] && a != b && a->owner == b->owner &&
           a->owner >= 0 && a->decay == b->decay && a->trained == b->trained;
}

// Users of the same x are close to each other; a window keeps this linear.
static void find_groups(const Module *m, const Func *f, Merge *g) {
    enum { WINDOW = 64 };
    for (Ref r = 1; r < f->nodes.n; r++) {
        AxisId out, in;
        if (g->leader[r] || !mergeable(m, f, r, &out, &in))
            continue;
        Group *group = &g->group[r];
        group->dot[group->n++] = r;
        for (Ref k = r + 1; k < f->nodes.n && k < r + WINDOW && group->n < MAX_MERGE; k++)
            if (!g->leader[k] && joins(m, f, r, k)) {
                group->dot[group->n++] = k;
                g->leader[k] = r;
            }
        if (group->n > 1)
            g->leader[r] = r;
    }
}

static void find_heads(const Func *f, Merge *g) {
    for (Ref r = 1; r < f->nodes.n; r++) {
        if (node_at(f, r)->op != OP_head_loss)
            continue;
        for (Ref k = r + 1; k < f->nodes.n; k++) {
            bool same =
                node_at(f, k)->op == OP_head_loss_grad && node_at(f, node_in(f, k, 4))->op == OP_const;
            for (int i = 0; same && i < 4; i++)
                same = node_in(f, r, i) == node_in(f, k, i);
            if (same)
                g->head_grad[r] = k;
        }
    }
}

static AxisId joined_axis(Module *m, const AxisId *axes, int n) {
    char name[128] = "";
    int32_t size = 0;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(name);
        snprintf(name + len, sizeof name - len, "%s%s", i ? "_" : "", m->axes.at[axes[i]].name);
        size += m->axes.at[axes[i]].size;
    }
    for (AxisId known; (known = module_find_axis(m, name)) != AXIS_NONE;) {
        if (m->axes.at[known].size == size && m->axes.at[known].kind == AXIS_WIDE)
            return known;
        size_t len = strlen(name);
        snprintf(name + len, sizeof name - len, "_");
    }
    return module_axis(m, name, AXIS_WIDE, size);
}

static Ref merged_dot(Builder *b, const Func *f, const Group *group, Ref x) {
    Ref weights[MAX_MERGE];
    AxisId axes[MAX_MERGE];
    for (int i = 0; i < group->n; i++) {
        const Node *w = node_at(f, node_in(f, group->dot[i], 1));
        weights[i] = ir_param(b, w->k);
        axes[i] = w->type.axis[0];
    }
    return ir_dot(b, x, ir_concat(b, joined_axis(b->m, axes, group->n), group->n, weights, axes));
}

static Ref merge_node(void *ctx, Builder *b, const Func *f, Ref r, const Ref *in) {
    Merge *g = ctx;
    Ref first = g->leader[r];
    if (first) {
        const Group *group = &g->group[first];
        if (r == first)
            g->merged[first] = merged_dot(b, f, group, in[0]);
        int32_t from = 0;
        for (int i = 0; group->dot[i] != r; i++)
            from += b->m->axes.at[node_at(f, node_in(f, group->dot[i], 1))->type.axis[0]].size;
        Ref whole = g->merged[first];
        AxisId out = node_at(f, node_in(f, r, 1))->type.axis[0];
        return ir_slice(b, whole, node_at(b->f, node_in(b->f, whole, 1))->type.axis[0], out, from);
    }
    if (node_at(f, r)->op == OP_head_loss && g->head_grad[r]) {
        Ref one = ir_const(b, node_at(f, node_in(f, g->head_grad[r], 4))->f);
        return g->map_of[g->head_grad[r]] = ir_head_loss_grad(b, in[0], in[1], in[2], in[3], one);
    }
    if (node_at(f, r)->op == OP_head_loss_grad && g->map_of[r])
        return g->map_of[r];
    return ir_copy(b, f, r, in);
}

Func *merge_dots(Module *m, Func *f) {
    uint32_t n = f->nodes.n;
    Merge g = {.group = arena_alloc(m->arena, n * sizeof *g.group),
               .leader = arena_alloc(m->arena, n * sizeof *g.leader),
               .merged = arena_alloc(m->arena, n * sizeof *g.merged),
               .head_grad = arena_alloc(m->arena, n * sizeof *g.head_grad),
               .map_of = arena_alloc(m->arena, n * sizeof *g.map_of)};
    find_groups(m, f, &g);
    find_heads(f, &g);
    return func_rebuild(m, f, merge_node, &g);
}
