// Groups become kernels: functions of their own, called where the group stood.
//
// A kernel's identity is its text without places, layers and row sizes, which never appear in it; literals
// that differ between otherwise equal kernels become launch scalars (inputs s0, s1, ..), so layers share
// kernels.
#include "passes/fusion.h"
#include <string.h>

typedef struct Draft { // a kernel that is not yet shared
    Func *f;
    const char *key;      // text with literals masked
    VEC(Ref) args;        // operands of the call, by argument
    VEC(double) literals; // in order of appearance
    int32_t same;         // the first draft with this key
} Draft;

typedef struct Outline {
    Fusion *s;
    Draft *drafts;     // by group
    int32_t *clone_of; // by node: group+1 that rebuilds it, while its draft is built
    Ref *inner;        // by node: its copy in the draft in work
    int32_t *callee;   // by first draft: function; -1: not made yet
    bool **varies;     // by first draft: literal i differs
    Func *out;
    Ref *map; // by node: its place in out
} Outline;

enum { MAX_KERNEL_NODES = 20000 }; // draft_node and the printers walk chains by recursion

static Ref draft_node(Outline *u, Builder *b, Draft *d, int32_t group, Ref r) {
    const Fusion *s = u->s;
    if (u->inner[r])
        return u->inner[r];
    const Node *n = node_at(s->f, r);
    bool own = s->role[r] == ROLE_ROW && (s->group[r] == group || u->clone_of[r] == group + 1);
    if (own || fusion_is_free(s, r)) {
        Ref *in = arena_alloc(s->m->arena, (n->n_in + 1u) * sizeof *in); // a small frame: chains can be long
        for (int i = 0; i < n->n_in; i++)
            in[i] = draft_node(u, b, d, group, node_in(s->f, r, i));
        b->loc = n->loc;
        Node copy = *n;
        if (n->op == OP_const && !n->type.rank) { // a literal at each use: equal texts have equally many
            vec_push(s->m->arena, &d->literals, n->f);
            return ir_node(b, copy, 0, NULL);
        }
        return u->inner[r] = ir_node(b, copy, n->n_in, in);
    }
    vec_push(s->m->arena, &d->args, r);
    return u->inner[r] = ir_input(b, arena_format(s->m->arena, "a%u", d->args.n - 1), n->type);
}

// The text by which kernels are compared: no places, no names; with `mask` every literal is the same.
static const char *plain_text(const Fusion *s, const Func *f, bool mask) {
    Arena *a = s->m->arena;
    Text t = {.arena = a};
    Func plain = *f;
    uint32_t args = 0;
    memset(&plain.nodes, 0, sizeof plain.nodes);
    memset(&plain.outputs, 0, sizeof plain.outputs);
    plain.name = "k";
    for (uint32_t i = 0; i < f->nodes.n; i++) {
        Node n = f->nodes.at[i];
        n.loc = (Loc){{0}, {0}};
        if (mask && n.op == OP_const && !n.type.rank)
            n.f = 0;
        if (n.op == OP_input && input_scalar(&n) < 0)
            n.name = arena_format(a, "a%u", args++);
        vec_push(a, &plain.nodes, n);
    }
    for (uint32_t i = 0; i < f->outputs.n; i++) {
        NamedRef output = {arena_format(a, "o%u", i), f->outputs.at[i].ref};
        vec_push(a, &plain.outputs, output);
    }
    ir_print_func(&t, s->m, &plain);
    return t.at;
}

static void draft_group(Outline *u, int32_t group) {
    Fusion *s = u->s;
    Group *g = &s->groups.at[group];
    Draft *d = &u->drafts[group];
    CHECK(g->nodes.n + g->clones.n <= MAX_KERNEL_NODES,
          "%u ops between two matrix products are more than the %d of one kernel", g->nodes.n + g->clones.n,
          MAX_KERNEL_NODES);
    d->f = arena_alloc(s->m->arena, sizeof *d->f);
    *d->f = (Func){.name = "k", .is_kernel = true, .n_row_axes = g->n_rows};
    memcpy(d->f->row_axes, g->rows, g->n_rows);
    vec_push(s->m->arena, &d->f->nodes, s->f->nodes.at[0]);
    Builder b = {.m = s->m, .f = d->f, .layer = -1};
    for (uint32_t i = 0; i < g->clones.n; i++)
        u->clone_of[g->clones.at[i]] = group + 1;
    memset(u->inner, 0, s->f->nodes.n * sizeof *u->inner);
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        Ref r = draft_node(u, &b, d, group, g->outputs.at[i]);
        vec_push(s->m->arena, &d->f->outputs, ((NamedRef){arena_format(s->m->arena, "o%u", i), r}));
    }
    d->key = plain_text(s, d->f, true);
}

// ---- Sharing

static void find_same(Outline *u) {
    Fusion *s = u->s;
    uint32_t mask = 255;
    while (mask < 4 * s->groups.n)
        mask = 2 * mask + 1;
    int32_t *table = arena_alloc(s->m->arena, ((size_t)mask + 1) * sizeof *table);
    for (uint32_t i = 0; i < s->groups.n; i++) {
        Draft *d = &u->drafts[i];
        uint32_t h = 2166136261u;
        if (!d->f)
            continue;
        for (const char *c = d->key; *c; c++)
            h = (h ^ (uint8_t)*c) * 16777619u;
        for (h &= mask; table[h] && strcmp(u->drafts[table[h] - 1].key, d->key); h = (h + 1) & mask)
            ;
        if (!table[h])
            table[h] = (int32_t)i + 1;
        d->same = table[h] - 1;
        Draft *first = &u->drafts[d->same];
        if (!u->varies[d->same])
            u->varies[d->same] = arena_alloc(s->m->arena, d->literals.n + 1);
        for (uint32_t k = 0; k < d->literals.n; k++)
            u->varies[d->same][k] |= memcmp(&d->literals.at[k], &first->literals.at[k], sizeof(double)) != 0;
    }
}

static int32_t func_named(const Module *m, const char *name) {
    for (uint32_t i = 0; i < m->funcs.n; i++)
        if (!strcmp(m->funcs.at[i]->name, name))
            return (int32_t)i;
    return -1;
}

// The first draft of its kind becomes a function, with literals that vary as inputs behind the others.
static int32_t make_kernel(Outline *u, int32_t first) {
    Fusion *s = u->s;
    Draft *d = &u->drafts[first];
    Func *f = d->f;
    Func *made = arena_alloc(s->m->arena, sizeof *made);
    *made = *f;
    memset(&made->nodes, 0, sizeof made->nodes);
    uint32_t literal = 0, scalars = 0;
    for (uint32_t i = 0; i < f->nodes.n; i++) {
        Node n = f->nodes.at[i];
        if (n.op == OP_const && !n.type.rank && u->varies[first][literal++]) {
            n = (Node){.op = OP_input, .n_out = 1, .type = n.type, .loc = n.loc, .layer = -1};
            n.name = arena_format(s->m->arena, "s%u", scalars++);
        }
        vec_push(s->m->arena, &made->nodes, n);
    }
    const char *text = plain_text(s, made, false);
    char hex[33];
    hash_hex(text, strlen(text), hex);
    for (int digits = 4;; digits++) {
        made->name = arena_format(s->m->arena, "%s.%.*s", kernel_word(made), digits, hex);
        int32_t known = func_named(s->m, made->name);
        if (known < 0)
            break;
        if (!strcmp(plain_text(s, s->m->funcs.at[known], false), text)) // another function's
            return known;
    }
    kernel_name_values(s, made, d->args.at, s->groups.at[first].outputs.at);
    vec_push(s->m->arena, &s->m->funcs, made);
    return (int32_t)s->m->funcs.n - 1;
}

// ---- The function with calls

static void call_group(Outline *u, int32_t group) {
    Fusion *s = u->s;
    Group *g = &s->groups.at[group];
    Draft *d = &u->drafts[group];
    if (!d->f)
        return;
    if (u->callee[d->same] < 0)
        u->callee[d->same] = make_kernel(u, d->same);
    Ref in[UINT8_MAX + 1];
    int n_in = 0;
    const Func *callee = s->m->funcs.at[u->callee[d->same]];
    Builder b = {.m = s->m, .f = u->out, .layer = node_at(s->f, g->outputs.at[0])->layer};
    b.loc = node_at(s->f, g->outputs.at[0])->loc;
    uint32_t literal = 0, arg = 0;
    for (uint32_t i = 1; i < callee->nodes.n; i++) { // inputs of the callee in node order
        const Node *n = &callee->nodes.at[i], *own = &d->f->nodes.at[i];
        bool is_literal = own->op == OP_const && !own->type.rank;
        if (n->op == OP_input)
            in[n_in++] = is_literal ? ir_const(&b, d->literals.at[literal]) : u->map[d->args.at[arg]];
        CHECK(n_in < UINT8_MAX, "kernel %s has too many arguments", callee->name);
        CHECK(!n_in || in[n_in - 1], "operand %d of kernel %s has no place", n_in - 1, callee->name);
        arg += n->op == OP_input && !is_literal;
        literal += is_literal;
    }
    Ref call = ir_call(&b, u->callee[d->same], n_in, in);
    for (uint32_t i = 0; i < g->outputs.n; i++)
        u->map[g->outputs.at[i]] = call + i;
}

static void copy_node(Outline *u, Ref r) {
    const Fusion *s = u->s;
    const Node *n = node_at(s->f, r);
    Ref in[UINT8_MAX + 1];
    Builder b = {.m = s->m, .f = u->out, .layer = -1};
    for (int i = 0; i < n->n_in; i++) {
        in[i] = u->map[node_in(s->f, r, i)];
        CHECK(in[i], "operand %d of node %u (%s) has no place", i, r, op_info[n->op].name);
    }
    u->map[r] = ir_copy(&b, s->f, r, in);
    for (int i = 1; i < n->n_out; i++)
        u->map[r + (Ref)i] = u->map[r] + (Ref)i;
}

// Everything in order of stages: no edge stays inside of a stage but those inside of groups.
static void emit_all(Outline *u) {
    Fusion *s = u->s;
    uint32_t n = s->f->nodes.n, stages = 1;
    for (Ref r = 1; r < n; r++)
        stages = MAX_OF(stages, s->stage[r] + 2);
    uint32_t *first = arena_alloc(s->m->arena, (stages + 1) * sizeof *first);
    Ref *order = arena_alloc(s->m->arena, n * sizeof *order);
    for (int pass = 0; pass < 2; pass++) {
        for (Ref r = 1; r < n; r++) {
            if (node_at(s->f, r)->op == OP_out)
                continue;
            bool early = s->role[r] == ROLE_LEAF || s->role[r] == ROLE_STATIC;
            uint32_t at = early ? 0 : s->stage[r] + 1;
            if (pass)
                order[first[at]++] = r;
            else
                first[at]++;
        }
        uint32_t sum = 0;
        for (uint32_t i = 0; !pass && i <= stages; i++) {
            uint32_t count = first[i];
            first[i] = sum;
            sum += count;
        }
    }
    bool *called = arena_alloc(s->m->arena, s->groups.n + 1);
    for (uint32_t i = 0; i < n && order[i]; i++) {
        Ref r = order[i];
        if (s->role[r] != ROLE_ROW)
            copy_node(u, r);
        else if (!called[s->group[r]]) {
            called[s->group[r]] = true;
            call_group(u, s->group[r]);
        }
    }
}

Func *fusion_outline(Fusion *s) {
    Arena *a = s->m->arena;
    uint32_t n = s->f->nodes.n;
    Outline u = {.s = s,
                 .drafts = arena_alloc(a, (s->groups.n + 1) * sizeof *u.drafts),
                 .clone_of = arena_alloc(a, n * sizeof *u.clone_of),
                 .inner = arena_alloc(a, n * sizeof *u.inner),
                 .callee = arena_alloc(a, (s->groups.n + 1) * sizeof *u.callee),
                 .varies = arena_alloc(a, (s->groups.n + 1) * sizeof *u.varies),
                 .map = arena_alloc(a, n * sizeof *u.map)};
    u.out = arena_alloc(a, sizeof *u.out);
    *u.out = (Func){.name = s->f->name};
    vec_push(a, &u.out->nodes, s->f->nodes.at[0]);
    for (uint32_t i = 0; i < s->groups.n; i++) {
        u.callee[i] = -1;
        if (s->groups.at[i].outputs.n)
            draft_group(&u, (int32_t)i);
    }
    find_same(&u);
    emit_all(&u);
    for (uint32_t i = 0; i < s->f->outputs.n; i++)
        vec_push(a, &u.out->outputs, ((NamedRef){s->f->outputs.at[i].name, u.map[s->f->outputs.at[i].ref]}));
    return func_clone_live(s->m, u.out, false);
}
