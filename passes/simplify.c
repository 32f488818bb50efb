// Algebra on the graph, common subexpressions, dead code.
//
// Each graph function is rebuilt node by node; a rule sees an op with operands that are simplified already
// and returns another value, or 0. Termination: every rule lowers (number of wide multiplications and
// reductions, number of nodes, operand order), in this order of weight, and a value that a rule builds is
// simplified by the same rules.
#include "passes/passes.h"
#include "passes/rebuild.h"
#include <string.h>

typedef struct Simplify {
    Builder b;
    uint32_t *table; // hash of a node -> node, open addressing; 0: free
    uint32_t mask;
} Simplify;

static const Node *at(const Simplify *s, Ref r) {
    return node_at(s->b.f, r);
}

static Ref operand(const Simplify *s, Ref r, int i) {
    return node_in(s->b.f, r, i);
}

static bool is_const(const Simplify *s, Ref r, double value) {
    return at(s, r)->op == OP_const && at(s, r)->f == value;
}

static bool has_wide(const Simplify *s, Ref r) {
    const Type *t = &at(s, r)->type;
    return t->rank && s->b.m->axes.at[t->axis[t->rank - 1]].kind == AXIS_WIDE;
}

static bool lacks_all(const Simplify *s, Ref r, int n, const AxisId *axes) {
    for (int i = 0; i < n; i++)
        if (type_has(&at(s, r)->type, axes[i]))
            return false;
    return true;
}

// The type of a op b is that of a.
static bool covers(const Simplify *s, Ref a, Ref b) {
    Type t = type_union(s->b.m, &at(s, a)->type, &at(s, b)->type);
    return type_same(&t, &at(s, a)->type);
}

// ---- Common subexpressions: a node with the same op, attributes and operands is the same value.

static uint32_t node_hash(const Node *n, const Ref *in) {
    uint64_t h = n->op * 0x9E3779B97F4A7C15u ^ (uint64_t)(uint32_t)n->k << 20 ^ n->n_ax;
    uint64_t bits;
    memcpy(&bits, &n->f, 8);
    h ^= bits;
    for (int i = 0; i < n->n_ax; i++)
        h = (h ^ n->ax[i]) * 0x100000001B3u;
    for (int i = 0; i < n->n_in; i++)
        h = (h ^ in[i]) * 0x9E3779B97F4A7C15u;
    if (n->op == OP_const)
        for (int i = 0; i < n->type.rank; i++)
            h = (h ^ n->type.axis[i]) * 0x100000001B3u;
    return (uint32_t)(h >> 32 ^ h);
}

static bool node_equal(const Simplify *s, Ref r, const Node *n, const Ref *in) {
    const Node *o = at(s, r);
    if (o->op != n->op || o->k != n->k || o->n_in != n->n_in || o->n_ax != n->n_ax ||
        memcmp(&o->f, &n->f, 8) || memcmp(o->ax, n->ax, n->n_ax))
        return false;
    if (n->op == OP_const && !type_same(&o->type, &n->type))
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (operand(s, r, i) != in[i])
            return false;
    return n->op != OP_input || !strcmp(o->name, n->name);
}

static void table_grow(Simplify *s) {
    uint32_t *old = s->table, n = old ? s->mask + 1 : 0;
    s->mask = n ? 2 * n - 1 : 4095;
    s->table = arena_alloc(s->b.m->arena, ((size_t)s->mask + 1) * sizeof *s->table);
    for (uint32_t i = 0; i < n; i++) {
        if (!old[i])
            continue;
        const Node *p = at(s, old[i]);
        uint32_t h = node_hash(p, s->b.f->ins.at + p->in0) & s->mask;
        while (s->table[h])
            h = (h + 1) & s->mask;
        s->table[h] = old[i];
    }
}

static Ref intern(Simplify *s, Node n, int n_in, const Ref *in) {
    if (!s->table || s->b.f->nodes.n > s->mask / 2)
        table_grow(s);
    n.n_in = (uint8_t)n_in;
    uint32_t h = node_hash(&n, in) & s->mask;
    for (; s->table[h]; h = (h + 1) & s->mask)
        if (node_equal(s, s->table[h], &n, in))
            return s->table[h];
    return s->table[h] = ir_node(&s->b, n, n_in, in);
}

// ---- Rules

static Ref make(Simplify *s, Node n, int n_in, const Ref *in);

static Ref make_map(Simplify *s, Op op, Ref x, Ref y) {
    Ref in[] = {x, y};
    return make(s, (Node){.op = (uint16_t)op}, op_info[op].n_in, in);
}

static Ref make_const(Simplify *s, double value, Type type) {
    return make(s, (Node){.op = OP_const, .f = value, .type = type}, 0, NULL);
}

// f(constants) = constant
static Ref fold_constants(Simplify *s, const Node *n, const Ref *in) {
    double v[3] = {0};
    Type t = {.dtype = DT_F32};
    if (op_info[n->op].cls != CLASS_MAP)
        return 0;
    for (int i = 0; i < n->n_in; i++) {
        if (at(s, in[i])->op != OP_const)
            return 0;
        v[i] = at(s, in[i])->f;
        t = type_union(s->b.m, &t, &at(s, in[i])->type);
    }
    double value = ir_map_value((Op)n->op, v[0], v[1], v[2]);
    return value - value == 0 ? make_const(s, value, t) : 0;
}

// x + 0 = x - 0 = x * 1 = x / 1 = x, where the constant has no axis that x lacks;  -(-x) = x
static Ref neutral(Simplify *s, const Node *n, const Ref *in) {
    if (n->op == OP_neg && at(s, in[0])->op == OP_neg)
        return operand(s, in[0], 0);
    bool product = n->op == OP_mul || n->op == OP_div, sum = n->op == OP_add || n->op == OP_sub;
    if ((product && is_const(s, in[1], 1)) || (sum && is_const(s, in[1], 0)))
        return covers(s, in[0], in[1]) ? in[0] : 0;
    return 0;
}

// a (-1) = -a;  a (-b) = -(a b);  a + (-b) = a - b;  a - (-b) = a + b
static Ref signs(Simplify *s, const Node *n, const Ref *in) {
    if (n->op == OP_mul && is_const(s, in[1], -1) && covers(s, in[0], in[1]))
        return make_map(s, OP_neg, in[0], 0);
    for (int i = 0; i < 2 && n->op == OP_mul; i++)
        if (at(s, in[i])->op == OP_neg)
            return make_map(s, OP_neg, make_map(s, OP_mul, in[1 - i], operand(s, in[i], 0)), 0);
    if ((n->op == OP_add || n->op == OP_sub) && at(s, in[1])->op == OP_neg)
        return make_map(s, n->op == OP_add ? OP_sub : OP_add, in[0], operand(s, in[1], 0));
    if (n->op == OP_add && at(s, in[0])->op == OP_neg)
        return make_map(s, OP_sub, in[1], operand(s, in[0], 0));
    return 0;
}

// (A r) c = A (r c): A wide, r and c not: one wide multiplication less
static Ref narrow_first(Simplify *s, const Node *n, const Ref *in) {
    if (n->op != OP_mul)
        return 0;
    for (int i = 0; i < 2; i++) {
        Ref p = in[i], c = in[1 - i];
        if (has_wide(s, c) || at(s, p)->op != OP_mul)
            continue;
        for (int k = 0; k < 2; k++) {
            Ref wide = operand(s, p, k), r = operand(s, p, 1 - k);
            if (has_wide(s, wide) && !has_wide(s, r))
                return make_map(s, OP_mul, wide, make_map(s, OP_mul, r, c));
        }
    }
    return 0;
}

// (A r) (B c) = (A B) (r c) and (A r) B = (A B) r: A, B wide, r and c not, so that r can leave a sum over the
// wide axis
static Ref wide_together(Simplify *s, const Node *n, const Ref *in) {
    Ref wide[2], narrow[2] = {0};
    if (n->op != OP_mul || !has_wide(s, in[0]) || !has_wide(s, in[1]))
        return 0;
    for (int i = 0; i < 2; i++) {
        wide[i] = in[i];
        for (int k = 0; k < 2 && at(s, in[i])->op == OP_mul; k++)
            if (has_wide(s, operand(s, in[i], k)) && !has_wide(s, operand(s, in[i], 1 - k))) {
                wide[i] = operand(s, in[i], k);
                narrow[i] = operand(s, in[i], 1 - k);
            }
    }
    if (!narrow[0] && !narrow[1])
        return 0;
    Ref r = narrow[0] && narrow[1] ? make_map(s, OP_mul, narrow[0], narrow[1])
            : narrow[0]            ? narrow[0]
                                   : narrow[1];
    return make_map(s, OP_mul, make_map(s, OP_mul, wide[0], wide[1]), r);
}

// sum_A (x r) = r sum_A x and sum_A (x / r) = (sum_A x) / r, r without the axes A;  sum_A (-x) = -sum_A x
static Ref factor_leaves_sum(Simplify *s, const Node *n, const Ref *in) {
    const Node *p = at(s, in[0]);
    if (n->op != OP_sum || (p->op != OP_mul && p->op != OP_div && p->op != OP_neg))
        return 0;
    Node sum = *n;
    if (p->op == OP_neg) {
        Ref x = operand(s, in[0], 0);
        return make_map(s, OP_neg, make(s, sum, 1, &x), 0);
    }
    Op op = (Op)p->op;
    for (int k = 1; k >= (op == OP_mul ? 0 : 1); k--) {
        Ref r = operand(s, in[0], k), x = operand(s, in[0], 1 - k);
        bool whole = true; // every summed axis is in what stays
        for (int i = 0; i < n->n_ax; i++)
            whole &= type_has(&at(s, x)->type, n->ax[i]);
        if (whole && lacks_all(s, r, n->n_ax, n->ax))
            return make_map(s, op, make(s, sum, 1, &x), r);
    }
    return 0;
}

// sum_A c = |A| c for a constant
static Ref sum_of(Simplify *s, const Node *n, const Ref *in) {
    const Node *p = at(s, in[0]);
    if (n->op != OP_sum || p->op != OP_const)
        return 0;
    double count = 1;
    Type t = {.dtype = DT_F32};
    for (int i = 0; i < n->n_ax; i++)
        count *= s->b.m->axes.at[n->ax[i]].size;
    for (int i = 0; i < p->type.rank; i++)
        if (!memchr(n->ax, p->type.axis[i], n->n_ax))
            t.axis[t.rank++] = p->type.axis[i];
    return make_const(s, p->f * count, t);
}

// split(merge x) = x, merge(split x) = x for the same axes;  slice(concat x..) = the operand that it takes
static Ref view_of_view(Simplify *s, const Node *n, const Ref *in) {
    if (op_info[n->op].cls != CLASS_VIEW || n->n_in < 1)
        return 0;
    const Node *p = at(s, in[0]);
    bool back = (n->op == OP_split && p->op == OP_merge) || (n->op == OP_merge && p->op == OP_split);
    if (back && n->n_ax == p->n_ax) {
        int parts = n->n_ax - 1;
        const AxisId *a = n->op == OP_split ? n->ax + 1 : n->ax, *b = p->op == OP_split ? p->ax + 1 : p->ax;
        if (!memcmp(a, b, (size_t)parts))
            return operand(s, in[0], 0);
    }
    if (n->op != OP_slice || p->op != OP_concat || p->ax[0] != n->ax[0])
        return 0;
    AxisId to = n->n_ax > 1 ? n->ax[1] : AXIS_NONE;
    for (int i = 0, from = 0; i < p->n_in; i++) {
        AxisId part = p->ax[1 + i];
        if (from == n->k && part == to)
            return operand(s, in[0], i);
        from += part == AXIS_NONE ? 1 : s->b.m->axes.at[part].size;
    }
    return 0;
}

// cast_A x = x for x of dtype A;  cast_A (cast_f32 x) = cast_A x for x in bf16: f32 holds each of its values
static Ref cast_of_cast(Simplify *s, const Node *n, const Ref *in) {
    if (n->op != OP_cast)
        return 0;
    if (at(s, in[0])->type.dtype == n->k)
        return in[0];
    if (at(s, in[0])->op != OP_cast || at(s, in[0])->type.dtype != DT_F32)
        return 0;
    Ref x = operand(s, in[0], 0);
    return at(s, x)->type.dtype == DT_BF16 ? make(s, *n, 1, &x) : 0;
}

// a + b = b + a: constants last, else the older value first, where it leaves the order of wide axes alone
static void order_operands(const Simplify *s, const Node *n, Ref *in) {
    if (n->op != OP_add && n->op != OP_mul && n->op != OP_min && n->op != OP_max && n->op != OP_eq)
        return;
    Type given = type_union(s->b.m, &at(s, in[0])->type, &at(s, in[1])->type);
    Type turned = type_union(s->b.m, &at(s, in[1])->type, &at(s, in[0])->type);
    if (!type_same(&given, &turned))
        return;
    bool c0 = at(s, in[0])->op == OP_const, c1 = at(s, in[1])->op == OP_const;
    if (c0 != c1 ? c0 : in[0] > in[1]) {
        Ref t = in[0];
        in[0] = in[1];
        in[1] = t;
    }
}

static Ref make(Simplify *s, Node n, int n_in, const Ref *given) {
    typedef Ref Rule(Simplify *, const Node *, const Ref *);
    static Rule *const rules[] = {fold_constants,    neutral, signs,        narrow_first, wide_together,
                                  factor_leaves_sum, sum_of,  view_of_view, cast_of_cast};
    Ref in[UINT8_MAX + 1];
    for (int i = 0; i < n_in; i++)
        in[i] = given[i];
    n.n_in = (uint8_t)n_in;
    order_operands(s, &n, in);
    Type type[UINT8_MAX + 1];
    ir_infer(&s->b, &n, in, type);
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        Ref r = rules[i](s, &n, in);
        if (r && type_same(&at(s, r)->type, type)) // a rule may turn wide axes around
            return r;
    }
    return intern(s, n, n_in, in);
}

static Ref simplify_node(void *ctx, Builder *b, const Func *f, Ref r, const Ref *in) {
    Simplify *s = ctx;
    s->b = *b;
    Node n = *node_at(f, r);
    return make(s, n, n.n_in, in);
}

static Func *simplify_func(Module *m, Func *f) {
    f = merge_dots(m, f);
    Simplify s = {0};
    f = func_rebuild(m, f, simplify_node, &s);
    return func_clone_live(m, f, true);
}

void pass_simplify(Module *m, const PassOptions *o) {
    (void)o;
    for (uint32_t i = 0; i < m->funcs.n; i++)
        if (!m->funcs.at[i]->is_kernel)
            m->funcs.at[i] = simplify_func(m, m->funcs.at[i]);
}

void pass_simplify2(Module *m, const PassOptions *o) {
    pass_simplify(m, o);
}
