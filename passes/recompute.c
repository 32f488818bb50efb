// What backward rebuilds instead of keeping.
//
//   some   the left operands of weight gradients (norm outputs, the SwiGLU product): their last elementwise
//   steps, from
//          values that backward reads anyway
//   full   every value of a layer from the depth state before it
// A rebuilt value is a copy of its node, marked `late`: fusion computes it right before its use. Only
// backward reads the copies. AUTO is settled by the pipeline, which tries the levels in turn.
#include "passes/passes.h"
#include <string.h>

typedef struct Rebuild {
    Module *m;
    const Func *f;
    bool *forward; // the loss needs it
    bool *chosen;  // rebuilt for backward
    Func *out;
    Ref *map, *late; // by old node: the new one, and its copy for backward
} Rebuild;

static void find_forward(Rebuild *u) {
    const Func *f = u->f;
    for (uint32_t i = 0; i < f->outputs.n; i++)
        if (strncmp(f->outputs.at[i].name, "grad.", 5))
            u->forward[node_base(f, f->outputs.at[i].ref)] = true;
    for (Ref r = f->nodes.n; r-- > 1;)
        for (int i = 0; u->forward[r] && i < node_at(f, r)->n_in; i++)
            u->forward[node_base(f, node_in(f, r, i))] = true;
}

static bool has_rows(const Rebuild *u, Ref r) {
    AxisId rows[MAX_RANK];
    return type_rows(u->m, &node_at(u->f, r)->type, rows) > 0;
}

static bool is_leaf(const Rebuild *u, Ref r) {
    const Node *n = node_at(u->f, r);
    return !n->n_in || n->op == OP_constant || !has_rows(u, r);
}

// Every value with rows that is used inside of its own layer alone.
static void choose_full(Rebuild *u) {
    const Func *f = u->f;
    for (Ref r = 1; r < f->nodes.n; r++) {
        const Node *n = node_at(f, r);
        u->chosen[r] = u->forward[r] && n->op != OP_out && n->layer >= 0 && !is_leaf(u, r);
    }
    for (Ref r = 1; r < f->nodes.n; r++)
        for (int i = 0; u->forward[r] && i < node_at(f, r)->n_in; i++) {
            Ref x = node_base(f, node_in(f, r, i));
            if (node_at(f, x)->layer != node_at(f, r)->layer)
                u->chosen[x] = false;
        }
    for (uint32_t i = 0; i < f->outputs.n; i++)
        u->chosen[node_base(f, f->outputs.at[i].ref)] = false;
}

static bool is_weight_gradient(const Rebuild *u, Ref r) {
    return node_at(u->f, r)->op == OP_dot && !has_rows(u, r);
}

// Elementwise steps from x down to what backward reads anyway (or what is no elementwise step).
static void choose_cone(Rebuild *u, const bool *kept, Ref x) {
    const Node *n = node_at(u->f, x);
    if (u->chosen[x] || kept[x] || !u->forward[x] || op_info[n->op].cls != CLASS_MAP || is_leaf(u, x))
        return;
    u->chosen[x] = true;
    for (int i = 0; i < n->n_in; i++)
        choose_cone(u, kept, node_in(u->f, x, i));
}

static void choose_some(Rebuild *u) {
    const Func *f = u->f;
    bool *kept =
        arena_alloc(u->m->arena, f->nodes.n); // read by backward, other than as operand of a weight gradient
    for (Ref r = 1; r < f->nodes.n; r++)
        for (int i = 0; !u->forward[node_base(f, r)] && !is_weight_gradient(u, r) && i < node_at(f, r)->n_in;
             i++)
            kept[node_in(f, r, i)] = true;
    for (Ref r = 1; r < f->nodes.n; r++)
        for (int i = 0; !u->forward[r] && is_weight_gradient(u, r) && i < 2; i++)
            choose_cone(u, kept, node_in(f, r, i));
}

static Ref late_copy(Rebuild *u, Builder *b, Ref r) {
    const Func *f = u->f;
    Ref base = node_base(f, r);
    if (!u->chosen[base])
        return u->map[r];
    if (!u->late[base]) {
        Ref in[UINT8_MAX + 1];
        Node n = *node_at(f, base);
        for (int i = 0; i < n.n_in; i++)
            in[i] = late_copy(u, b, node_in(f, base, i));
        Loc loc = b->loc;
        int16_t layer = b->layer;
        b->loc = n.loc;
        b->layer = n.layer;
        n.late = true;
        u->late[base] = ir_node(b, n, n.n_in, in);
        b->loc = loc;
        b->layer = layer;
    }
    return u->late[base] + (r - base);
}

static Func *rebuild(Rebuild *u) {
    const Func *f = u->f;
    Builder b = {.m = u->m, .f = u->out, .layer = -1};
    vec_push(u->m->arena, &u->out->nodes, f->nodes.at[0]);
    for (Ref r = 1; r < f->nodes.n; r++) {
        const Node *n = node_at(f, r);
        Ref in[UINT8_MAX + 1];
        if (n->op == OP_out) {
            u->map[r] = u->map[node_base(f, r)] + (Ref)n->k;
            continue;
        }
        for (int i = 0; i < n->n_in; i++) {
            Ref x = node_in(f, r, i);
            in[i] = u->forward[r] ? u->map[x] : late_copy(u, &b, x);
        }
        u->map[r] = ir_copy(&b, f, r, in);
    }
    for (uint32_t i = 0; i < f->outputs.n; i++)
        vec_push(u->m->arena, &u->out->outputs,
                 ((NamedRef){f->outputs.at[i].name, u->map[f->outputs.at[i].ref]}));
    return u->out;
}

void pass_recompute(Module *m, const PassOptions *o) {
    for (uint32_t i = 0; i < m->funcs.n && o->recompute != RECOMPUTE_NONE; i++) {
        const Func *f = m->funcs.at[i];
        if (strcmp(f->name, "micro"))
            continue;
        uint32_t n = f->nodes.n;
        Rebuild u = {.m = m, .f = f};
        u.forward = arena_alloc(m->arena, n);
        u.chosen = arena_alloc(m->arena, n);
        u.map = arena_alloc(m->arena, n * sizeof *u.map);
        u.late = arena_alloc(m->arena, n * sizeof *u.late);
        u.out = arena_alloc(m->arena, sizeof *u.out);
        *u.out = (Func){.name = f->name};
        find_forward(&u);
        if (o->recompute == RECOMPUTE_FULL)
            choose_full(&u);
        else
            choose_some(&u);
        m->funcs.at[i] = func_clone_live(m, rebuild(&u), false);
    }
}
