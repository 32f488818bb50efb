// Stages and groups.
//
// stage(x) is the longest path to x, where every edge counts one but those that stay inside of a row kernel:
// between two ROW nodes with the same row axes, unless the first is a column sum. Stages never fall along an
// edge, so nodes of one stage that are connected inside of it form convex groups, and the graph of groups has
// no cycle by construction. Groups of one stage and one row space that read the same tensor join too.
#include "passes/fusion.h"
#include <string.h>

Ref fusion_base(const Func *f, Ref r) {
    return node_at(f, r)->op == OP_out ? r - (Ref)node_at(f, r)->k : r;
}

static bool touches_wide(const Module *m, const Node *n) {
    for (int i = 0; i < n->n_ax; i++)
        if (n->ax[i] != AXIS_NONE && m->axes.at[n->ax[i]].kind != AXIS_SMALL)
            return true;
    return false;
}

static Role role_of(const Fusion *s, Ref r) {
    const Node *n = node_at(s->f, r);
    switch (op_info[n->op].cls) {
    case CLASS_MAP:
    case CLASS_REDUCE:
        return ROLE_ROW;
    case CLASS_VIEW:
        if (n->op == OP_one_hot || n->op == OP_iota || n->op == OP_cast)
            return ROLE_ROW;
        return touches_wide(s->m, n) ? ROLE_ALIAS : ROLE_ROW;
    case CLASS_GATHER:
        return n->op == OP_gather ? ROLE_ROW : ROLE_ANCHOR;
    case CLASS_DATA:
        if (n->op == OP_input || n->op == OP_param || n->op == OP_const)
            return ROLE_LEAF;
        return n->op == OP_stop_grad ? ROLE_ROW : ROLE_ANCHOR;
    case CLASS_DOT:
    case CLASS_ATTN:
    case CLASS_HEAD:
        break;
    }
    return ROLE_ANCHOR;
}

static bool reduces_kind(const Fusion *s, Ref r, AxisKind kind) {
    const Node *n = node_at(s->f, r);
    return op_info[n->op].cls == CLASS_REDUCE && s->m->axes.at[n->ax[0]].kind == kind;
}

// Row axes in which a node is computed: a column sum runs over the rows of its operand.
static int rows_of(const Fusion *s, Ref r, AxisId out[MAX_RANK]) {
    Ref x = s->column[r] ? node_in(s->f, r, 0) : r;
    return type_rows(s->m, &node_at(s->f, x)->type, out);
}

bool fusion_same_rows(const Fusion *s, const Group *g, Ref r) {
    AxisId rows[MAX_RANK];
    return rows_of(s, r, rows) == g->n_rows && !memcmp(rows, g->rows, g->n_rows);
}

static bool same_rows(const Fusion *s, Ref a, Ref b) {
    AxisId ra[MAX_RANK], rb[MAX_RANK];
    int n = rows_of(s, a, ra);
    return n == rows_of(s, b, rb) && !memcmp(ra, rb, (size_t)n);
}

double fusion_row_bytes(const Fusion *s, Ref r) {
    const Type *t = &node_at(s->f, r)->type;
    bool wide = t->rank && s->m->axes.at[t->axis[t->rank - 1]].kind == AXIS_WIDE;
    double n = wide && s->o->compute == DT_BF16 ? 2 : 4;
    AxisId rows[MAX_RANK];
    int n_rows = type_rows(s->m, t, rows);
    for (int i = n_rows; i < t->rank; i++)
        n *= s->m->axes.at[t->axis[i]].size;
    return n_rows ? n : 0;
}

static void find_roles(Fusion *s) {
    const Func *f = s->f;
    for (Ref r = 1; r < f->nodes.n; r++) {
        const Node *n = node_at(f, r);
        if (n->op == OP_out) {
            s->role[r] = s->role[fusion_base(f, r)];
            continue;
        }
        bool fixed = n->op == OP_const || n->n_in > 0 || n->op == OP_iota;
        for (int i = 0; i < n->n_in; i++) {
            Role in = s->role[node_in(f, r, i)];
            fixed &= in == ROLE_STATIC || (in == ROLE_LEAF && node_at(f, node_in(f, r, i))->op == OP_const);
        }
        s->role[r] = role_of(s, r);
        if (s->role[r] != ROLE_LEAF && fixed && n->op != OP_constant)
            s->role[r] = ROLE_STATIC;
        s->column[r] = s->role[r] == ROLE_ROW && reduces_kind(s, r, AXIS_ROW);
        s->reduces[r] = s->role[r] == ROLE_ROW && reduces_kind(s, r, AXIS_WIDE);
    }
}

static bool inside(const Fusion *s, Ref x, Ref user) {
    return s->o->fuse && s->role[x] == ROLE_ROW && s->role[user] == ROLE_ROW && !s->column[x] &&
           same_rows(s, x, user);
}

static void find_stages(Fusion *s) {
    const Func *f = s->f;
    for (Ref r = 1; r < f->nodes.n; r++) {
        const Node *n = node_at(f, r);
        for (int i = 0; i < n->n_in; i++) {
            Ref x = node_in(f, r, i);
            if (s->role[x] == ROLE_LEAF || s->role[x] == ROLE_STATIC)
                continue;
            uint32_t at = s->stage[fusion_base(f, x)] + !inside(s, x, r);
            s->stage[r] = MAX_OF(s->stage[r], at);
        }
    }
}

static Ref find(Ref *parent, Ref r) {
    while (parent[r] != r)
        r = parent[r] = parent[parent[r]];
    return r;
}

// The smaller number leads, so that a group's name does not depend on the order of unions.
static void unite(Ref *parent, Ref a, Ref b) {
    a = find(parent, a);
    b = find(parent, b);
    parent[MAX_OF(a, b)] = MIN_OF(a, b);
}

static void find_groups(Fusion *s, Ref *parent) {
    const Func *f = s->f;
    Ref *reader = arena_alloc(s->m->arena, f->nodes.n * sizeof *reader); // last ROW node that read a tensor
    for (Ref r = 1; r < f->nodes.n; r++) {
        parent[r] = r;
        for (int i = 0; s->role[r] == ROLE_ROW && s->o->fuse && i < node_at(f, r)->n_in; i++) {
            Ref x = node_in(f, r, i);
            if (s->role[x] == ROLE_LEAF || s->role[x] == ROLE_STATIC)
                continue;
            if (inside(s, x, r) && s->stage[x] == s->stage[r]) {
                unite(parent, x, r);
                continue;
            }
            if (reader[x] && s->stage[reader[x]] == s->stage[r] && same_rows(s, reader[x], r))
                unite(parent, reader[x], r);
            reader[x] = r;
        }
    }
}

void fusion_stage(Fusion *s) {
    uint32_t n = s->f->nodes.n;
    Arena *a = s->m->arena;
    s->role = arena_alloc(a, n * sizeof *s->role);
    s->stage = arena_alloc(a, n * sizeof *s->stage);
    s->group = arena_alloc(a, n * sizeof *s->group);
    s->column = arena_alloc(a, n);
    s->reduces = arena_alloc(a, n);
    s->stored = arena_alloc(a, n);
    Ref *parent = arena_alloc(a, n * sizeof *parent);
    find_roles(s);
    find_stages(s);
    find_groups(s, parent);
    for (Ref r = 1; r < n; r++) {
        s->group[r] = -1;
        if (s->role[r] != ROLE_ROW)
            continue;
        Ref leader = find(parent, r);
        if (leader == r) {
            Group g = {.stage = s->stage[r]};
            AxisId rows[MAX_RANK];
            int n_rows = rows_of(s, r, rows);
            CHECK(n_rows <= PLAN_MAX_ROWS, "node %u: a row kernel has at most %d row axes", r, PLAN_MAX_ROWS);
            g.n_rows = (uint8_t)n_rows;
            memcpy(g.rows, rows, (size_t)n_rows);
            vec_push(a, &s->groups, g);
            s->group[r] = (int32_t)s->groups.n - 1;
        } else
            s->group[r] = s->group[leader];
        vec_push(a, &s->groups.at[s->group[r]].nodes, r);
    }
}
