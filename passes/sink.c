// Sinking: what a kernel reads from memory and what it rebuilds from tensors that it reads anyway.
//
// Groups are met from the last stage to the first, so when a group is met, everybody who reads its values has
// decided. For each operand from another group the cheaper road is taken, in bytes a row:
//   read:    the operand's bytes, plus its write if nobody else needs it in memory
//   rebuild: the sum of the same over the operands of its op, 0 for what the group reads or holds anyway, a
//   share for
//            what several operands would be rebuilt from
// never through anchors, column sums and reductions over wide axes, whose results are small and stored, nor
// out of nodes of a second group: values would be rebuilt from ever older ones, and no two layers alike. Work
// that is rebuilt costs a little too, so that a value is not rebuilt out of ever older ones. All facts are
// local: layers with equal surroundings decide equally and share kernels. Values that nobody reads any more
// are not computed.
#include "passes/fusion.h"
#include <stdlib.h>

enum { MAX_DEPTH = 24 };
static const double BYTES_A_FLOP = 0.2; // both targets: about ten times as many flops as bytes a second

typedef struct Sink {
    Fusion *s;
    Group *g;
    int32_t index;      // of g
    uint32_t stamp;     // of the trial in work
    int32_t *holds;     // by node: index+1 of the last group that computes, rebuilds or reads it
    uint32_t *tried;    // by node: stamp of the trial in which it was counted
    bool *needed;       // read by an anchor, a view or as an output: stored in any case
    int32_t home;       // group of the value that may be rebuilt
    int32_t *shared_in; // by node: index+1 of the last group of which some operand has it as its own operand
    uint32_t *shares;   // and of how many operands
} Sink;

static double flops_cost(const Sink *k, Ref r) {
    const Node *n = node_at(k->s->f, r);
    double elems = 1;
    for (int i = 0; i < n->type.rank; i++)
        if (k->s->m->axes.at[n->type.axis[i]].kind != AXIS_ROW)
            elems *= k->s->m->axes.at[n->type.axis[i]].size;
    return BYTES_A_FLOP * (double)op_info[n->op].flops * elems;
}

static bool may_rebuild(const Sink *k, Ref r) {
    const Fusion *s = k->s;
    if (s->role[r] != ROLE_ROW || s->column[r] || s->reduces[r])
        return false;
    return node_at(s->f, r)->type.rank == 0 || (s->group[r] == k->home && fusion_same_rows(s, k->g, r));
}

static double read_cost(const Sink *k, Ref r) {
    double bytes = fusion_row_bytes(k->s, r);
    bool stored = k->s->role[r] != ROLE_ROW || k->needed[r] || k->s->stored[r];
    return stored ? bytes : 2 * bytes;
}

// Cost of having r in the group; `limit`: beyond it the answer does not matter.
static double cone_cost(Sink *k, Ref r, double limit, int depth) {
    const Fusion *s = k->s;
    Role role = s->role[r];
    if (role == ROLE_LEAF || role == ROLE_STATIC || k->holds[r] == k->index + 1 || k->tried[r] == k->stamp)
        return 0;
    double read = read_cost(k, r);
    if (depth == 1 && k->shared_in[r] == k->index + 1)
        read /= k->shares[r];
    if (!may_rebuild(k, r) || depth > MAX_DEPTH) {
        k->tried[r] = k->stamp;
        return read;
    }
    double cost = flops_cost(k, r), best = MIN_OF(limit, read);
    for (int i = 0; i < node_at(s->f, r)->n_in && cost < best; i++)
        cost += cone_cost(k, node_in(s->f, r, i), best - cost, depth + 1);
    k->tried[r] = k->stamp;
    return MIN_OF(cost, read);
}

// The operands of r alone, without the choice to read r.
static double rebuild_cost(Sink *k, Ref r, double limit) {
    double cost = flops_cost(k, r);
    k->stamp++;
    for (int i = 0; i < node_at(k->s->f, r)->n_in && cost < limit; i++)
        cost += cone_cost(k, node_in(k->s->f, r, i), limit - cost, 1);
    return cost;
}

// Makes r available in the group by the cheaper road.
static void provide(Sink *k, Ref r, int depth) {
    Fusion *s = k->s;
    if (s->role[r] == ROLE_LEAF || s->role[r] == ROLE_STATIC || k->holds[r] == k->index + 1)
        return;
    double read = read_cost(k, r);
    bool scalar = node_at(s->f, r)->type.rank == 0; // computed again rather than by a launch of its own
    if (depth < MAX_DEPTH && may_rebuild(k, r) && (rebuild_cost(k, r, scalar ? 1 : read) < read || scalar)) {
        k->holds[r] = k->index + 1;
        for (int i = 0; i < node_at(s->f, r)->n_in; i++)
            provide(k, node_in(s->f, r, i), depth + 1);
        vec_push(s->m->arena, &k->g->clones, r);
        return;
    }
    k->holds[r] = k->index + 1;
    s->stored[fusion_base(s->f, r)] |= s->role[r] == ROLE_ROW;
    s->stored[r] = true;
}

static int by_number(const void *a, const void *b) {
    Ref x = *(const Ref *)a, y = *(const Ref *)b;
    return x < y ? -1 : x > y;
}

static void count_shares(Sink *k, Ref x) {
    const Fusion *s = k->s;
    k->home = s->group[x];
    if (s->role[x] != ROLE_ROW || !may_rebuild(k, x))
        return;
    for (int i = 0; i < node_at(s->f, x)->n_in; i++) {
        Ref y = node_in(s->f, x, i);
        k->shares[y] = k->shared_in[y] == k->index + 1 ? k->shares[y] + 1 : 1;
        k->shared_in[y] = k->index + 1;
    }
}

// What must be read in any case first, then what may be rebuilt, older values first: what is decided is free
// for the rest.
static void provide_operands(Sink *k, const bool *live) {
    const Fusion *s = k->s;
    VEC(Ref) operands = {0};
    for (uint32_t i = 0; i < k->g->nodes.n; i++)
        for (int j = 0; live[i] && j < node_at(s->f, k->g->nodes.at[i])->n_in; j++) {
            Ref x = node_in(s->f, k->g->nodes.at[i], j);
            if (k->holds[x] != k->index + 1)
                vec_push(s->m->arena, &operands, x);
        }
    if (operands.n)
        qsort(operands.at, operands.n, sizeof *operands.at, by_number);
    for (uint32_t i = 0; i < operands.n; i++)
        if (!i || operands.at[i] != operands.at[i - 1])
            count_shares(k, operands.at[i]);
    for (int rebuild = 0; rebuild < 2; rebuild++)
        for (uint32_t i = 0; i < operands.n; i++) {
            k->home = s->group[operands.at[i]];
            if (may_rebuild(k, operands.at[i]) == (rebuild == 1))
                provide(k, operands.at[i], 0);
        }
}

static void meet_group(Sink *k) {
    Fusion *s = k->s;
    Group *g = k->g;
    bool *live = arena_alloc(s->m->arena, g->nodes.n + 1);
    for (uint32_t i = 0; i < g->nodes.n; i++) {
        Ref r = g->nodes.at[i];
        if (k->needed[r] || s->stored[r]) {
            s->stored[r] = true;
            live[i] = true;
            vec_push(s->m->arena, &g->outputs, r);
        }
    }
    // own nodes that an output needs; nodes stand in order, so one walk back is enough with a mark by node
    bool *wanted = arena_alloc(s->m->arena, s->f->nodes.n);
    for (uint32_t i = g->nodes.n; i-- > 0;) {
        Ref r = g->nodes.at[i];
        live[i] |= wanted[r];
        for (int j = 0; live[i] && j < node_at(s->f, r)->n_in; j++)
            wanted[node_in(s->f, r, j)] = true;
        if (live[i])
            k->holds[r] = k->index + 1;
    }
    provide_operands(k, live);
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
    Sink k = {.s = s,
              .holds = arena_alloc(a, n * sizeof *k.holds),
              .tried = arena_alloc(a, n * sizeof *k.tried),
              .needed = arena_alloc(a, n),
              .shared_in = arena_alloc(a, n * sizeof *k.shared_in),
              .shares = arena_alloc(a, n * sizeof *k.shares)};
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
