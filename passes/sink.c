// Sinking: what a kernel reads from memory and what it rebuilds, a minimum cut a group.
//
// Groups are met from the last stage to the first, so when a group is met, everybody who reads its values has
// decided. A value that the group needs is read (its bytes, and those of its write if nobody else needs it in
// memory) or rebuilt (flops, and then it needs the operands). The cheapest choice for all needs together is
// the minimum cut between them and memory; of several the one that rebuilds least is taken. Nothing is
// rebuilt through anchors, column sums and reductions over wide axes, whose results are small and stored, nor
// through a second group: what a rebuilt node takes from another group is read, unless the group needs it
// anyway. So values are not rebuilt out of ever older ones, and all facts are local: layers with equal
// surroundings decide equally and share kernels. Numbers without axes are always rebuilt, which saves a
// launch. Values that nobody reads any more are not computed.
#include "passes/fusion.h"
#include <stdlib.h>

enum { UNITS_A_BYTE = 5 }; // of cost; a flop is one: targets do 5 to 10 flops in the time of a byte
static const int64_t ALWAYS = INT64_MAX / 4, SCALAR = INT64_MAX / 8;

typedef struct Need { // a value that the group has to get somehow
    Ref ref;
    bool own;    // a node of the group itself uses it
    bool fixed;  // never rebuilt
    bool open;   // its operands count
    double part; // of its elements that somebody uses, where slices leave some out
} Need;

typedef struct Edge {  // edge i ^ 1 is its reverse
    uint32_t to, next; // next: of the same vertex, 0: none; edges count from 2
    int64_t room;
} Edge;

// Vertices of the network: 0 the needs, 1 memory; of value i: it is needed, it is rebuilt, a rebuilt node of
// another group needs it and it is read for that.
enum { NEEDED = 2, REBUILT, BORROWED, VERTICES = 3 };

typedef struct Sink {
    Fusion *s;
    Group *g;
    int32_t index; // of g
    bool *needed;  // by node: read by an anchor, a view or as an output, so stored in any case
    bool *live;    // by node: computed by its own group
    uint32_t *at;  // by node: 1 + its number in needs; 0: none
    VEC(Need) needs;
    VEC(Edge) edges;
    VEC(uint32_t) first; // edge of each vertex
    VEC(uint32_t) from;  // edge by which the search came to a vertex; 0: not reached
    VEC(uint32_t) queue;
} Sink;

// ---- The network

static void edge_add(Sink *k, uint32_t from, uint32_t to, int64_t room) {
    Arena *a = k->s->m->arena;
    vec_push(a, &k->edges, ((Edge){to, k->first.at[from], room}));
    k->first.at[from] = k->edges.n - 1;
    vec_push(a, &k->edges, ((Edge){from, k->first.at[to], 0}));
    k->first.at[to] = k->edges.n - 1;
}

// Breadth first from the needs; true when memory is reached.
static bool search(Sink *k) {
    Arena *a = k->s->m->arena;
    k->from.n = k->queue.n = 0;
    for (uint32_t i = 0; i < k->first.n; i++)
        vec_push(a, &k->from, 0u);
    k->from.at[0] = 1;
    vec_push(a, &k->queue, 0u);
    for (uint32_t q = 0; q < k->queue.n; q++)
        for (uint32_t e = k->first.at[k->queue.at[q]]; e; e = k->edges.at[e].next) {
            uint32_t to = k->edges.at[e].to;
            if (k->edges.at[e].room <= 0 || k->from.at[to])
                continue;
            k->from.at[to] = e;
            if (to == 1)
                return true;
            vec_push(a, &k->queue, to);
        }
    return false;
}

// Afterwards exactly the vertices on the side of the needs are reached.
static void minimum_cut(Sink *k) {
    while (search(k)) {
        int64_t room = ALWAYS;
        for (uint32_t v = 1; v; v = k->edges.at[k->from.at[v] ^ 1].to)
            room = MIN_OF(room, k->edges.at[k->from.at[v]].room);
        for (uint32_t v = 1; v; v = k->edges.at[k->from.at[v] ^ 1].to) {
            k->edges.at[k->from.at[v]].room -= room;
            k->edges.at[k->from.at[v] ^ 1].room += room;
        }
    }
}

// ---- Needs

static bool is_scalar(const Fusion *s, Ref r) {
    return s->role[r] == ROLE_ROW && !s->column[r] && !s->reduces[r] && !node_at(s->f, r)->type.rank;
}

static bool may_rebuild(const Sink *k, Ref r) {
    const Fusion *s = k->s;
    return is_scalar(s, r) ||
           (s->role[r] == ROLE_ROW && !s->column[r] && !s->reduces[r] && fusion_same_rows(s, k->g, r));
}

static Need *need(Sink *k, Ref r) {
    if (!k->at[r]) {
        vec_push(k->s->m->arena, &k->needs, ((Need){.ref = r, .fixed = !may_rebuild(k, r)}));
        k->at[r] = k->needs.n;
    }
    return &k->needs.at[k->at[r] - 1];
}

static void own_needs(Sink *k) {
    const Fusion *s = k->s;
    for (uint32_t i = 0; i < k->g->nodes.n; i++) {
        Ref r = k->g->nodes.at[i];
        for (int j = 0; k->live[r] && j < node_at(s->f, r)->n_in; j++) {
            Ref x = node_in(s->f, r, j);
            if (!fusion_is_free(s, x) && (s->role[x] != ROLE_ROW || s->group[x] != k->index))
                need(k, x)->own = true;
        }
    }
}

static int later_first(const void *a, const void *b) {
    Ref x = *(const Ref *)a, y = *(const Ref *)b;
    return x > y ? -1 : x < y;
}

// Rebuilt node r takes operand x from another group than its own.
static bool is_borrowed(const Sink *k, Ref r, Ref x) {
    const Need *operand = &k->needs.at[k->at[x] - 1];
    return !operand->own && !operand->fixed && !is_scalar(k->s, x) && k->s->group[x] != k->s->group[r];
}

static void open_need(Sink *k, uint32_t i) {
    if (k->needs.at[i].open)
        return;
    k->needs.at[i].open = true;
    vec_push(k->s->m->arena, &k->queue, i);
}

// Operands of what may be rebuilt; through a borrowed one nothing is rebuilt.
static void further_needs(Sink *k) {
    const Fusion *s = k->s;
    k->queue.n = 0;
    for (uint32_t i = 0, n = k->needs.n; i < n; i++)
        open_need(k, i);
    for (uint32_t q = 0; q < k->queue.n; q++) {
        Need n = k->needs.at[k->queue.at[q]];
        for (int j = 0; !n.fixed && j < node_at(s->f, n.ref)->n_in; j++) {
            Ref x = node_in(s->f, n.ref, j);
            if (fusion_is_free(s, x))
                continue;
            need(k, x);
            if (!is_borrowed(k, n.ref, x))
                open_need(k, k->at[x] - 1);
        }
    }
}

// What a slice leaves out is not computed, though it is part of the nodes.
static void find_parts(Sink *k) {
    const Fusion *s = k->s;
    Ref *order = arena_alloc(s->m->arena, (k->needs.n + 1) * sizeof *order);
    for (uint32_t i = 0; i < k->needs.n; i++) {
        order[i] = k->needs.at[i].ref;
        k->needs.at[i].part = k->needs.at[i].own ? 1 : 0;
    }
    qsort(order, k->needs.n, sizeof *order, later_first);
    for (uint32_t i = 0; i < k->needs.n; i++) {
        const Need *n = &k->needs.at[k->at[order[i]] - 1];
        const Node *p = node_at(s->f, n->ref);
        double part = n->part;
        if (p->op == OP_slice)
            part *= (double)type_count(s->m, &p->type) /
                    (double)type_count(s->m, &node_at(s->f, node_in(s->f, n->ref, 0))->type);
        for (int j = 0; !n->fixed && n->open && j < p->n_in; j++) {
            Ref x = node_in(s->f, n->ref, j);
            uint32_t at = k->at[x];
            if (at && !is_borrowed(k, n->ref, x))
                k->needs.at[at - 1].part = MAX_OF(k->needs.at[at - 1].part, part);
        }
    }
}

static int64_t read_cost(const Sink *k, Ref r) {
    const Fusion *s = k->s;
    if (is_scalar(s, r))
        return SCALAR;
    double units = fusion_row_bytes(s, r) * UNITS_A_BYTE;
    bool stored = s->role[r] != ROLE_ROW || k->needed[r] || s->stored[r];
    return (int64_t)(stored ? units : 2 * units);
}

static double rebuild_cost(const Fusion *s, Ref r) {
    const Node *n = node_at(s->f, r);
    const Type *t = op_info[n->op].cls == CLASS_REDUCE ? &node_at(s->f, node_in(s->f, r, 0))->type : &n->type;
    double flops = (double)op_info[n->op].flops;
    for (int i = 0; i < t->rank; i++)
        if (s->m->axes.at[t->axis[i]].kind != AXIS_ROW)
            flops *= s->m->axes.at[t->axis[i]].size;
    if (n->op == OP_gather) // reads a row of its table, which is f32
        flops += 4.0 * UNITS_A_BYTE * (double)s->m->axes.at[n->type.axis[n->type.rank - 1]].size;
    return flops;
}

static uint32_t vertex(uint32_t i, uint32_t what) {
    return VERTICES * i + what;
}

static void network_clear(Sink *k) {
    Arena *a = k->s->m->arena;
    k->edges.n = k->first.n = 0;
    for (int i = 0; i < 2; i++)
        vec_push(a, &k->edges, ((Edge){0}));
    for (uint32_t i = 0; i < NEEDED + VERTICES * k->needs.n; i++)
        vec_push(a, &k->first, 0u);
}

static void build_network(Sink *k) {
    const Fusion *s = k->s;
    network_clear(k);
    for (uint32_t i = 0; i < k->needs.n; i++) {
        const Need *n = &k->needs.at[i];
        uint32_t rebuilt = vertex(i, REBUILT);
        int64_t read = read_cost(k, n->ref);
        if (n->own)
            edge_add(k, 0, vertex(i, NEEDED), ALWAYS);
        edge_add(k, vertex(i, NEEDED), n->fixed ? 1 : rebuilt, read);
        edge_add(k, vertex(i, BORROWED), 1, read);
        if (n->fixed || !n->open)
            continue;
        edge_add(k, rebuilt, 1, (int64_t)(n->part * rebuild_cost(s, n->ref)));
        for (int j = 0; j < node_at(s->f, n->ref)->n_in; j++) {
            Ref x = node_in(s->f, n->ref, j);
            if (k->at[x])
                edge_add(k, rebuilt, vertex(k->at[x] - 1, is_borrowed(k, n->ref, x) ? BORROWED : NEEDED),
                         ALWAYS);
        }
    }
}

// ---- Groups

static void provide(Sink *k) {
    Fusion *s = k->s;
    own_needs(k);
    further_needs(k);
    find_parts(k);
    build_network(k);
    minimum_cut(k);
    for (uint32_t i = 0; i < k->needs.n; i++) {
        const Need *n = &k->needs.at[i];
        bool borrowed = k->from.at[vertex(i, BORROWED)], needed = k->from.at[vertex(i, NEEDED)];
        if (needed && !borrowed && !n->fixed && k->from.at[vertex(i, REBUILT)])
            vec_push(s->m->arena, &k->g->clones, n->ref);
        else if (needed || borrowed)
            s->stored[n->ref] |= s->role[n->ref] == ROLE_ROW;
        k->at[n->ref] = 0;
    }
    k->needs.n = 0;
}

static void meet_group(Sink *k) {
    Fusion *s = k->s;
    Group *g = k->g;
    for (uint32_t i = g->nodes.n; i-- > 0;) { // nodes stand in order
        Ref r = g->nodes.at[i];
        s->stored[r] |= k->needed[r];
        k->live[r] |= s->stored[r];
        for (int j = 0; k->live[r] && j < node_at(s->f, r)->n_in; j++)
            k->live[node_in(s->f, r, j)] |= s->group[node_in(s->f, r, j)] == k->index;
    }
    for (uint32_t i = 0; i < g->nodes.n; i++)
        if (s->stored[g->nodes.at[i]])
            vec_push(s->m->arena, &g->outputs, g->nodes.at[i]);
    if (g->outputs.n)
        provide(k);
}

static void find_needed(Sink *k) {
    const Fusion *s = k->s;
    const Func *f = s->f;
    for (Ref r = 1; r < f->nodes.n; r++)
        for (int i = 0; i < node_at(f, r)->n_in; i++) {
            Ref x = node_in(f, r, i);
            k->needed[x] |= s->role[r] != ROLE_ROW && s->role[r] != ROLE_STATIC;
        }
    for (uint32_t i = 0; i < f->outputs.n; i++)
        k->needed[f->outputs.at[i].ref] = true;
}

void fusion_sink(Fusion *s) {
    Arena *a = s->m->arena;
    uint32_t n = s->f->nodes.n;
    Sink k = {.s = s};
    k.needed = arena_alloc(a, n);
    k.live = arena_alloc(a, n);
    k.at = arena_alloc(a, n * sizeof *k.at);
    uint32_t stages = 0;
    for (uint32_t i = 0; i < s->groups.n; i++)
        stages = MAX_OF(stages, s->groups.at[i].stage + 1);
    find_needed(&k);
    // groups by stage, last first
    uint32_t *first = arena_alloc(a, (stages + 1) * sizeof *first),
             *order = arena_alloc(a, (s->groups.n + 1) * sizeof *order);
    for (uint32_t i = 0; i < s->groups.n; i++)
        first[s->groups.at[i].stage]++;
    for (uint32_t st = 0, at = 0; st <= stages; st++) {
        uint32_t count = first[st];
        first[st] = at;
        at += count;
    }
    for (uint32_t i = 0; i < s->groups.n; i++)
        order[first[s->groups.at[i].stage]++] = i;
    for (uint32_t i = s->groups.n; i-- > 0;) {
        k.index = (int32_t)order[i];
        k.g = &s->groups.at[order[i]];
        meet_group(&k);
    }
}
