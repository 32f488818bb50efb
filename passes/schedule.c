// Order of the nodes of each program.
//
// Every output ends a chain. Outputs are taken in order of the longest path behind them, and what an output
// still needs is put in front of it, operands first. So a weight gradient runs as soon as its operands exist
// and ends their lives, what is rebuilt for backward comes right before its use, and forward comes first
// because everything else needs it. Nodes that no output needs disappear. The order depends on the graph
// alone.
#include "passes/passes.h"
#include <stdlib.h>
#include <string.h>

typedef struct Sink {
    Ref ref;
    uint32_t depth, number;
} Sink;

typedef struct Schedule {
    Module *m;
    const Func *f;
    Func *out;
    Ref *map;        // new number of each node; 0: not placed yet
    uint32_t *depth; // longest path to a node, in steps
    struct Frame {
        Ref ref;
        int next; // operand to look at
    } * stack;
} Schedule;

static int by_depth(const void *a, const void *b) {
    const Sink *x = a, *y = b;
    if (x->depth != y->depth)
        return x->depth < y->depth ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void place_node(Schedule *s, Ref r) {
    Arena *a = s->m->arena;
    const Node *n = node_at(s->f, r);
    for (Ref i = r; i < r + MAX_OF(n->n_out, 1); i++) {
        Node copy = *node_at(s->f, i);
        copy.in0 = s->out->ins.n;
        for (int j = 0; j < copy.n_in; j++)
            vec_push(a, &s->out->ins, s->map[node_in(s->f, i, j)]);
        s->map[i] = s->out->nodes.n;
        vec_push(a, &s->out->nodes, copy);
    }
}

static void place_with_operands(Schedule *s, Ref r) {
    uint32_t n = 0;
    s->stack[n++] = (struct Frame){node_base(s->f, r), 0};
    while (n) {
        struct Frame *top = &s->stack[n - 1];
        const Node *node = node_at(s->f, top->ref);
        if (s->map[top->ref]) {
            n--;
        } else if (top->next < node->n_in) {
            Ref x = node_base(s->f, node_in(s->f, top->ref, top->next++));
            if (!s->map[x])
                s->stack[n++] = (struct Frame){x, 0};
        } else {
            place_node(s, top->ref);
            n--;
        }
    }
}

static void find_depths(Schedule *s) {
    for (Ref r = 1; r < s->f->nodes.n; r++) {
        const Node *n = node_at(s->f, r);
        uint32_t d = 0;
        for (int j = 0; j < n->n_in; j++)
            d = MAX_OF(d, s->depth[node_in(s->f, r, j)]);
        bool step = op_info[n->op].cls != CLASS_VIEW && n->n_in;
        s->depth[r] = n->op == OP_out ? s->depth[node_base(s->f, r)] : d + step;
    }
}

static Func *schedule_func(Module *m, const Func *f) {
    Arena *a = m->arena;
    uint32_t n = f->nodes.n;
    Func *out = arena_alloc(a, sizeof *out);
    *out = (Func){.name = f->name, .is_kernel = f->is_kernel};
    vec_push(a, &out->nodes, f->nodes.at[0]);
    Schedule s = {.m = m, .f = f, .out = out};
    s.map = arena_alloc(a, n * sizeof *s.map);
    s.depth = arena_alloc(a, n * sizeof *s.depth);
    s.stack = arena_alloc(a, n * sizeof *s.stack);
    find_depths(&s);
    Sink *sinks = arena_alloc(a, f->outputs.n * sizeof *sinks);
    for (uint32_t i = 0; i < f->outputs.n; i++)
        sinks[i] = (Sink){f->outputs.at[i].ref, s.depth[f->outputs.at[i].ref], i};
    qsort(sinks, f->outputs.n, sizeof *sinks, by_depth);
    for (uint32_t i = 0; i < f->outputs.n; i++)
        place_with_operands(&s, sinks[i].ref);
    for (uint32_t i = 0; i < f->outputs.n; i++)
        vec_push(a, &out->outputs, ((NamedRef){f->outputs.at[i].name, s.map[f->outputs.at[i].ref]}));
    for (uint32_t i = 0; i < f->marks.n; i++)
        if (s.map[f->marks.at[i].ref])
            vec_push(a, &out->marks, ((NamedRef){f->marks.at[i].name, s.map[f->marks.at[i].ref]}));
    return out;
}

void pass_schedule(Module *m, const PassOptions *o) {
    static const char *const names[] = {"micro", "update", "eval"};
    (void)o;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        for (uint32_t j = 0; j < m->funcs.n; j++)
            if (!strcmp(m->funcs.at[j]->name, names[i]))
                m->funcs.at[j] = schedule_func(m, m->funcs.at[j]);
}
