// Stages and groups.
//
// stage(x) is the longest path to x, where every edge counts one but those that stay inside of a row kernel:
// between two ROW nodes with the same row axes, unless the first is a column sum. Stages never fall along an
// edge, so nodes of one stage that are connected inside of it form convex groups, and the graph of groups has
// no cycle by construction. Groups of one stage and one row space that read the same tensor join too.
#include "passes/fusion.h"
#include <string.h>

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
    for (int i = 0; op_info[n->op].cls == CLASS_REDUCE && i < n->n_ax; i++)
        if (s->m->axes.at[n->ax[i]].kind == kind)
            return true;
    return false;
}

bool fusion_is_free(const Fusion *s, Ref r) {
    const Node *n = node_at(s->f, r);
    AxisId rows[MAX_RANK];
    return (n->op == OP_const || n->op == OP_iota) && !type_rows(s->m, &n->type, rows);
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
            s->role[r] = s->role[node_base(f, r)];
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
            uint32_t at = s->stage[node_base(f, x)] + !inside(s, x, r);
            s->stage[r] = MAX_OF(s->stage[r], at);
        }
    }
}

// What is rebuilt for backward, and what is computed from it, goes to the last stage that its users allow, so
// that it does not live before.
static void delay_late(Fusion *s) {
    const Func *f = s->f;
    uint32_t n_nodes = f->nodes.n, *limit = arena_alloc(s->m->arena, n_nodes * sizeof *limit);
    bool *moves = arena_alloc(s->m->arena, n_nodes);
    for (Ref r = 1; r < n_nodes; r++) {
        limit[r] = UINT32_MAX; // no user yet
        moves[r] = node_at(f, r)->late;
        for (int i = 0; i < node_at(f, r)->n_in; i++)
            moves[r] |= moves[node_base(f, node_in(f, r, i))];
    }
    for (Ref r = n_nodes; r-- > 1;) {
        const Node *n = node_at(f, r);
        if (moves[r] && limit[r] != UINT32_MAX)
            s->stage[r] = limit[r];
        for (int i = 0; i < n->n_in; i++) {
            Ref x = node_in(f, r, i), base = node_base(f, x);
            limit[base] = MIN_OF(limit[base], s->stage[r] - !inside(s, x, r));
        }
    }
}

// ---- A column sum that nobody waits for goes where its largest operand is read anyway

typedef struct Users { // of each node, in order: list[first[r] .. first[r+1])
    uint32_t *first;
    Ref *list;
} Users;

static Users find_users(const Fusion *s) {
    const Func *f = s->f;
    uint32_t n = f->nodes.n;
    Users u = {arena_alloc(s->m->arena, (n + 2) * sizeof *u.first),
               arena_alloc(s->m->arena, (f->ins.n + 1) * sizeof *u.list)};
    for (Ref r = 1; r < n; r++)
        for (int i = 0; i < node_at(f, r)->n_in; i++)
            u.first[node_in(f, r, i) + 2]++;
    for (uint32_t r = 2; r < n + 2; r++)
        u.first[r] += u.first[r - 1];
    for (Ref r = 1; r < n; r++)
        for (int i = 0; i < node_at(f, r)->n_in; i++)
            u.list[u.first[node_in(f, r, i) + 1]++] = r;
    return u;
}

static uint32_t n_users(const Users *u, Ref r) {
    return u->first[r + 1] - u->first[r];
}

// Nodes that only the column sum c needs, c first; at most `max`.
static int own_cone(const Fusion *s, const Users *u, Ref c, Ref *out, int max) {
    int n = 0;
    out[n++] = c;
    for (int at = 0; at < n; at++)
        for (int i = 0; i < node_at(s->f, out[at])->n_in; i++) {
            Ref x = node_in(s->f, out[at], i);
            if (n < max && s->role[x] == ROLE_ROW && n_users(u, x) == 1 && !s->reduces[x] && !s->column[x] &&
                same_rows(s, x, c))
                out[n++] = x;
        }
    return n;
}

// The stage, later than that of c, at which somebody with the same rows reads w; 0: nobody, or somebody
// already does at c's.
static uint32_t later_reader(const Fusion *s, const Users *u, Ref w, Ref c, const Ref *cone, int n_cone) {
    uint32_t best = 0;
    for (uint32_t i = u->first[w]; i < u->first[w + 1]; i++) {
        Ref r = u->list[i];
        bool own = false;
        for (int k = 0; k < n_cone; k++)
            own |= cone[k] == r;
        if (own || s->role[r] != ROLE_ROW || !same_rows(s, r, c))
            continue;
        if (s->stage[r] == s->stage[c])
            return 0;
        if (s->stage[r] > s->stage[c] && (!best || s->stage[r] < best))
            best = s->stage[r];
    }
    return best;
}

static void settle_columns(Fusion *s) {
    enum { MAX_CONE = 16 };
    Users u = find_users(s);
    for (Ref c = 1; c < s->f->nodes.n; c++) {
        Ref cone[MAX_CONE], largest = 0;
        if (!s->column[c] || n_users(&u, c))
            continue;
        int n = own_cone(s, &u, c, cone, MAX_CONE);
        for (int k = 0; k < n; k++)
            for (int i = 0; i < node_at(s->f, cone[k])->n_in; i++) {
                Ref x = node_in(s->f, cone[k], i);
                bool inside_cone = false;
                for (int j = 0; j < n; j++)
                    inside_cone |= cone[j] == x;
                if (!inside_cone && s->role[x] != ROLE_LEAF && s->stage[x] < s->stage[c] &&
                    (!largest || fusion_row_bytes(s, x) > fusion_row_bytes(s, largest)))
                    largest = x;
            }
        uint32_t to = largest ? later_reader(s, &u, largest, c, cone, n) : 0;
        for (int k = 0; to && k < n; k++)
            s->stage[cone[k]] = to;
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
    delay_late(s);
    if (s->o->fuse)
        settle_columns(s);
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
