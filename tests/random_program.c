// See random_program.h. An op that does not fit the value it was drawn for gives 0 and another is drawn.
#include "tests/random_program.h"

typedef struct Random {
    Module *m;
    Builder b;
    uint64_t state;
    bool wild, whole_gradient;
    AxisId rows[2], h, g, n, m2, t, p, d, f, q, k, e, half, v;
    Ref pool[128];
    int n_pool, n_params;
} Random;

static uint32_t random_below(Random *r, uint32_t n) {
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = (r->state >> 22 ^ r->state) >> (22 + (r->state >> 61));
    return (uint32_t)(x % n);
}

static Ref random_param(Random *r, int n, const AxisId *axes) {
    Param p = {.name = arena_format(r->m->arena, "w%d", r->n_params++),
               .decay = random_below(r, 4) > 0,
               .trained = true,
               .owner = -1,
               .role = "-"};
    p.type = p.file = type_make(r->m, DT_F32, n, axes);
    vec_push(r->m->arena, &r->m->params, p);
    return ir_param(&r->b, (int32_t)r->m->params.n - 1);
}

static const Type *random_type(const Random *r, Ref x) {
    return &node_at(r->b.f, x)->type;
}

static AxisId random_kind(const Random *r, Ref x, AxisKind kind) {
    const Type *t = random_type(r, x);
    for (int i = 0; i < t->rank; i++)
        if (r->m->axes.at[t->axis[i]].kind == kind)
            return t->axis[i];
    return AXIS_NONE;
}

static Ref random_mean(Random *r, Ref x, AxisId axis) {
    return ir_mul(&r->b, ir_reduce(&r->b, OP_sum, x, 1, &axis),
                  ir_const(&r->b, 1.0 / r->m->axes.at[axis].size));
}

static Ref random_norm(Random *r, Ref x, AxisId axis) {
    Builder *b = &r->b;
    Ref mean = random_mean(r, ir_mul(b, x, x), axis);
    return ir_mul(b, x, ir_rsqrt(b, ir_add(b, mean, ir_const(b, 0.1))));
}

static Ref random_project(Random *r, Ref x, AxisId to) {
    AxisId from = random_kind(r, x, AXIS_WIDE), axes[] = {to, from};
    return from == to ? x : ir_tanh(&r->b, ir_dot(&r->b, x, random_param(r, 2, axes)));
}

// Attention from a value of [b,s,wide]; its result is [b,s,q].
static Ref random_attention(Random *r, Ref x) {
    Builder *b = &r->b;
    AxisId heads[] = {r->h, r->p, r->e}, kv[] = {r->g, r->p, r->e}, from = random_kind(r, x, AXIS_WIDE);
    AxisId qa[] = {r->q, from}, ka[] = {r->k, from};
    Ref q = ir_split(b, ir_dot(b, x, random_param(r, 2, qa)), r->q, 3, heads);
    Ref k = ir_split(b, ir_dot(b, x, random_param(r, 2, ka)), r->k, 3, kv);
    Ref v = ir_split(b, ir_dot(b, x, random_param(r, 2, ka)), r->k, 3, kv);
    if (random_below(r, 2)) { // a turn of the pairs
        Ref lo = ir_slice(b, q, r->p, AXIS_NONE, 0), hi = ir_slice(b, q, r->p, AXIS_NONE, 1);
        Ref c = ir_constant(
            b, ir_cos(b, ir_mul(b, ir_iota(b, r->rows[1]), ir_exp(b, ir_neg(b, ir_iota(b, r->e))))));
        Ref parts[] = {ir_sub(b, ir_mul(b, lo, c), hi), ir_add(b, ir_mul(b, hi, c), lo)};
        q = ir_concat(b, r->p, 2, parts, (AxisId[]){AXIS_NONE, AXIS_NONE});
    }
    return ir_merge(b, ir_attention(b, q, k, v, 0.5), 3, heads, r->q);
}

static Ref random_map(Random *r, Ref x, Ref y) {
    Builder *b = &r->b;
    switch (random_below(r, 9)) {
    case 0:
        return ir_tanh(b, x);
    case 1:
        return ir_sigmoid(b, x);
    case 2:
        return ir_silu(b, x);
    case 3:
        return ir_mul(b, x, ir_tanh(b, y));
    case 4:
        return ir_sub(b, x, ir_mul(b, y, ir_const(b, 0.25 + 0.25 * random_below(r, 3))));
    case 5:
        return ir_max(b, x, ir_neg(b, y));
    case 6:
        return ir_exp(b, ir_tanh(b, x));
    case 7:
        return ir_select(b, ir_lt(b, y, ir_const(b, 0.1)), x, ir_mul(b, x, ir_const(b, 0.5)));
    default:
        return ir_add(b, ir_mul(b, x, ir_const(b, 0.5)), y);
    }
}

// A run of a wide axis, anywhere.
static Ref random_half(Random *r, Ref x) {
    return ir_slice(&r->b, x, r->f, r->half, (int32_t)random_below(r, 7));
}

// Formulas with a domain, kept inside of it.
static Ref random_root(Random *r, Ref x) {
    Builder *b = &r->b;
    Ref one = ir_add(b, ir_mul(b, x, x), ir_const(b, 0.5));
    switch (random_below(r, 5)) {
    case 0:
        return ir_sqrt(b, one);
    case 1:
        return ir_log(b, one);
    case 2:
        return ir_div(b, x, one);
    case 3:
        return ir_mul(b, ir_abs(b, x), ir_sin(b, x));
    default:
        return ir_pow(b, one, ir_const(b, random_below(r, 2) ? -0.5 : 0.75));
    }
}

// A table over positions, as rotary angles are.
static Ref random_positions(Random *r, Ref x) {
    Builder *b = &r->b;
    Ref angle = ir_mul(b, ir_iota(b, r->rows[1]), ir_const(b, 0.1 + 0.1 * random_below(r, 4)));
    return ir_mul(b, x, ir_constant(b, ir_cos(b, angle)));
}

// f as p x half, a map there, and back.
static Ref random_pairs(Random *r, Ref x) {
    Builder *b = &r->b;
    AxisId to[] = {r->p, r->half};
    Ref pairs = ir_split(b, x, r->f, 2, to);
    pairs = ir_mul(b, pairs, random_param(r, 2, to));
    if (random_below(r, 2)) {
        Ref parts[] = {ir_slice(b, pairs, r->p, AXIS_NONE, 1), ir_slice(b, pairs, r->p, AXIS_NONE, 0)};
        pairs = ir_concat(b, r->p, 2, parts, (AxisId[]){AXIS_NONE, AXIS_NONE});
    }
    return ir_merge(b, pairs, 2, to, r->f);
}

// Two statistics of a row side by side along a small axis.
static Ref random_statistics(Random *r, Ref x, AxisId wide) {
    Ref mean = random_mean(r, x, wide), parts[] = {mean, ir_tanh(&r->b, mean)};
    return ir_concat(&r->b, r->p, 2, parts, (AxisId[]){AXIS_NONE, AXIS_NONE});
}

// The gradient of a largest element compares values for equality, which rounding of stored values breaks:
// programs for targets that store f32 take the largest without its gradient, as softmax does.
static Ref random_largest(Random *r, Ref x, AxisId wide) {
    Ref y = ir_reduce(&r->b, OP_rmax, x, 1, &wide);
    return r->whole_gradient ? y : ir_stop_grad(&r->b, y);
}

static Ref random_more(Random *r, Ref x, AxisId wide, AxisId small) {
    Builder *b = &r->b;
    bool narrow = wide == AXIS_NONE, flat = small == AXIS_NONE;
    switch (random_below(r, 8)) {
    case 0:
        return random_root(r, x);
    case 1:
        return random_positions(r, x);
    case 2:
        return wide == r->f && flat ? random_pairs(r, x) : 0;
    case 3:
        return narrow || !flat ? 0 : random_statistics(r, x, wide);
    case 4:
        return narrow ? 0 : random_largest(r, x, wide);
    case 5:
        return r->whole_gradient ? 0 : ir_add(b, ir_mul(b, ir_stop_grad(b, x), ir_const(b, 0.5)), x);
    case 6:
        return small == r->t ? ir_slice(b, x, r->t, r->n, (int32_t)random_below(r, 2)) : 0;
    default: // what all positions of a sequence share
        return r->wild ? ir_mul(b, ir_tanh(b, random_mean(r, x, r->rows[random_below(r, 2)])), x) : 0;
    }
}

static Ref random_op(Random *r) {
    Builder *b = &r->b;
    Ref x = r->pool[random_below(r, (uint32_t)r->n_pool)], y = r->pool[random_below(r, (uint32_t)r->n_pool)];
    AxisId wide = random_kind(r, x, AXIS_WIDE), small = random_kind(r, x, AXIS_SMALL);
    AxisId other = random_kind(r, y, AXIS_WIDE);
    bool narrow = wide == AXIS_NONE, flat = small == AXIS_NONE;
    switch (random_below(r, 18)) {
    case 14:
    case 15:
    case 16:
    case 17:
        return random_more(r, x, wide, small);
    case 0: // a row statistic
        return narrow ? 0 : random_mean(r, x, wide);
    case 1:
        return narrow ? 0 : ir_mul(b, random_norm(r, x, wide), random_param(r, 1, &wide));
    case 2: // streams
        return flat ? ir_mul(b, x, random_param(r, 1, &r->n)) : random_mean(r, x, small);
    case 3:
        return narrow ? 0 : random_project(r, x, random_below(r, 2) ? r->d : r->f);
    case 4: { // a skinny product
        AxisId axes[] = {r->t, wide};
        return narrow || small == r->t ? 0 : ir_tanh(b, ir_dot(b, x, random_param(r, 2, axes)));
    }
    case 5:
        return flat ? 0
                    : ir_slice(b, x, small, AXIS_NONE,
                               (int32_t)random_below(r, (uint32_t)r->m->axes.at[small].size));
    case 6: // mixing of streams
        if (small != r->n)
            return 0;
        return ir_rename(
            b, ir_reduce(b, OP_sum, ir_mul(b, x, random_param(r, 2, (AxisId[]){r->n, r->m2})), 1, &r->n),
            r->m2, r->n);
    case 7:
        return wide == r->f ? random_half(r, x) : 0;
    case 8:
        return narrow || !flat || wide == r->q ? 0 : random_attention(r, x);
    case 9:
        return narrow ? ir_mul(b, x, random_param(r, 1, &r->d)) : 0;
    case 10: // a product with an inner sum of two rows
        return narrow || wide != other ? 0 : random_mean(r, ir_mul(b, x, y), wide);
    case 11: { // wide concat of equal types
        Ref parts[] = {x, random_map(r, x, x)};
        return wide == r->half && flat ? ir_concat(b, r->f, 2, parts, (AxisId[]){wide, wide}) : 0;
    }
    default:
        return wide == other || narrow || other == AXIS_NONE ? random_map(r, x, y) : 0;
    }
}

// Any value of the pool as a row of d.
static Ref random_row(Random *r, Ref x) {
    AxisId small;
    while ((small = random_kind(r, x, AXIS_SMALL)) != AXIS_NONE)
        x = random_mean(r, x, small);
    return random_kind(r, x, AXIS_WIDE) == AXIS_NONE ? ir_mul(&r->b, x, random_param(r, 1, &r->d))
                                                     : random_project(r, x, r->d);
}

Module *random_module(Arena *a, RandomOptions o) {
    Module *m = module_new(a, "random");
    Random r = {.m = m,
                .state = o.seed * 0x9e3779b97f4a7c15u + 1,
                .wild = o.wild,
                .whole_gradient = o.whole_gradient,
                .b = {.m = m, .layer = -1}};
    static const int32_t ds[] = {8, 16, 20, 33};
    r.rows[0] = module_axis(m, "b", AXIS_ROW, 1 + (int32_t)random_below(&r, 3));
    r.rows[1] = module_axis(m, "s", AXIS_ROW, 1 + (int32_t)random_below(&r, 9));
    r.h = module_axis(m, "h", AXIS_ROW, 4);
    r.g = module_axis(m, "g", AXIS_ROW, random_below(&r, 2) ? 2 : 4);
    r.n = module_axis(m, "n", AXIS_SMALL, 3);
    r.m2 = module_axis(m, "m", AXIS_SMALL, 3);
    r.t = module_axis(m, "t", AXIS_SMALL, 4);
    r.p = module_axis(m, "p", AXIS_SMALL, 2);
    r.d = module_axis(m, "d", AXIS_WIDE, ds[random_below(&r, 4)]);
    r.f = module_axis(m, "f", AXIS_WIDE, 12);
    r.half = module_axis(m, "half", AXIS_WIDE, 6);
    r.e = module_axis(m, "e", AXIS_WIDE, 3);
    r.q = module_axis(m, "q", AXIS_WIDE, 24);
    r.k = module_axis(m, "k", AXIS_WIDE, m->axes.at[r.g].size * 6);
    r.v = module_axis(m, "v", AXIS_WIDE, RANDOM_VOCAB);
    r.b.f = module_func(m, "loss");
    Builder *b = &r.b;
    AxisId table[] = {r.v, r.d};
    Type ids = type_make(m, DT_I32, 2, r.rows);
    Ref targets = ir_input(b, "targets", ids), inv = ir_input(b, "inv_tokens", (Type){.dtype = DT_F32});
    r.pool[r.n_pool++] = ir_gather(b, random_param(&r, 2, table), ir_input(b, "ids", ids));
    for (int i = 0; i < o.n_ops;) {
        Ref x = random_op(&r);
        if (!x || random_type(&r, x)->rank > 5)
            continue;
        r.pool[r.n_pool++] = x;
        i++;
    }
    Ref sum = r.pool[0];
    for (int i = 0; i < r.n_pool; i++) // the youngest, and some of the others
        if (i + 3 > r.n_pool || !random_below(&r, 4))
            sum = ir_add(b, sum, random_row(&r, r.pool[i]));
    Ref loss = ir_head_loss(b, random_norm(&r, sum, r.d), random_param(&r, 2, table), targets, inv);
    loss = ir_reduce(b, OP_sum, loss, 2, r.rows);
    vec_push(a, &r.b.f->outputs, ((NamedRef){"loss", loss}));
    for (int i = 0; i < o.n_outputs; i++) {
        Ref x = r.pool[random_below(&r, (uint32_t)r.n_pool)];
        vec_push(a, &r.b.f->outputs, ((NamedRef){arena_format(a, "out.%d", i), x}));
    }
    return m;
}
