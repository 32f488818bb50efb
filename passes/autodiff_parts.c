// Gradients of slices. What all slices of a value got along one axis becomes one concat, with zeros where
// nothing was read, so that a value cut into its pieces costs no sums. Parts of a wide axis that overlap are
// cut where any of them begins or ends. Along small and row axes parts that overlap or leave gaps are put
// under masks instead, which cost a row kernel nothing.
//
// Wide axes stay in the order of the value: kernels cannot turn a matrix around.
#include "passes/autodiff.h"
#include <stdlib.h>
#include <string.h>

typedef struct Parts {
    VEC(Part) list;
    Type whole; // of the value
} Parts;

static AxisKind kind_of(const Diff *d, AxisId axis) {
    return d->b.m->axes.at[axis].kind;
}

static int32_t size_of(const Diff *d, AxisId axis) {
    return axis == AXIS_NONE ? 1 : d->b.m->axes.at[axis].size;
}

// An underscore before it: no script can have an axis of that name.
static AxisId sized_axis(Diff *d, const char *name, AxisKind kind, int32_t size) {
    static const char *const kinds[] = {"row_", "small_", ""};
    return module_axis(d->b.m, arena_format(d->b.m->arena, "_%s%s_%d", kinds[kind], name, size), kind, size);
}

static int wide_axes(const Diff *d, const Type *t, AxisId out[MAX_RANK]) {
    int n = 0;
    for (int i = 0; i < t->rank; i++)
        if (kind_of(d, t->axis[i]) == AXIS_WIDE)
            out[n++] = t->axis[i];
    return n;
}

static Type part_type(const Diff *d, const Type *whole, const Part *p) {
    Type r = *whole;
    int n = 0;
    for (int i = 0; i < whole->rank; i++)
        if (whole->axis[i] != p->axis || p->to != AXIS_NONE)
            r.axis[n++] = whole->axis[i] == p->axis ? p->to : whole->axis[i];
    return type_make(d->b.m, (Dtype)whole->dtype, n, r.axis);
}

void parts_add(Diff *d, Ref x, Part p) {
    if (!d->wanted[x])
        return;
    p.before = d->last_part[x];
    vec_push(d->b.m->arena, &d->parts, p);
    d->last_part[x] = d->parts.n;
}

// A single element of a wide axis as a run of one. Among other wide axes it takes its place by views alone.
static void part_as_run(Diff *d, const Type *whole, Part *p) {
    Builder *b = &d->b;
    AxisId wide[MAX_RANK], rest[MAX_RANK];
    Type want = part_type(d, whole, p);
    int n_rest = wide_axes(d, &want, rest);
    p->to = sized_axis(d, "cut", AXIS_WIDE, 1);
    if (!n_rest) {
        p->grad = ir_mul(b, p->grad, ir_fill(b, 1, p->to));
        return;
    }
    Ref g = diff_spread(d, p->grad, &want);
    int32_t size = 1;
    for (int i = 0; i < n_rest; i++)
        size *= size_of(d, rest[i]);
    AxisId flat = sized_axis(d, "flat", AXIS_WIDE, size);
    want = part_type(d, whole, p);
    g = n_rest > 1 ? ir_merge(b, g, n_rest, rest, flat) : ir_rename(b, g, rest[0], flat);
    p->grad = ir_split(b, g, flat, wide_axes(d, &want, wide), wide);
}

// Single elements become runs where runs are among them or a wide axis follows. Beside other wide axes
// gradients get all of their axes, since no kernel multiplies along different ones.
static void parts_prepare(Diff *d, Parts *s) {
    AxisId wide[MAX_RANK];
    int n_wide = wide_axes(d, &s->whole, wide);
    bool runs = n_wide && wide[n_wide - 1] != s->list.at[0].axis;
    for (uint32_t i = 0; i < s->list.n; i++)
        runs |= s->list.at[i].to != AXIS_NONE;
    for (uint32_t i = 0; i < s->list.n; i++) {
        Part *p = &s->list.at[i];
        if (runs && p->to == AXIS_NONE)
            part_as_run(d, &s->whole, p);
        Type want = part_type(d, &s->whole, p);
        if (n_wide > 1)
            p->grad = diff_spread(d, p->grad, &want);
    }
}

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

// Afterwards two parts are the same or disjoint.
static void parts_cut(Diff *d, Parts *s) {
    Arena *arena = d->b.m->arena;
    Parts cut = {.whole = s->whole};
    uint32_t n = 0;
    int32_t *ends = arena_alloc(arena, (2 * s->list.n + 1) * sizeof *ends);
    for (uint32_t i = 0; i < s->list.n; i++) {
        ends[n++] = s->list.at[i].from;
        ends[n++] = s->list.at[i].from + size_of(d, s->list.at[i].to);
    }
    qsort(ends, n, sizeof *ends, by_number);
    for (uint32_t i = 0; i < s->list.n; i++) {
        Part p = s->list.at[i];
        int32_t end = p.from + size_of(d, p.to);
        uint32_t k = 0;
        for (int32_t at = p.from; at < end; at = ends[k]) {
            while (ends[k] <= at)
                k++;
            Part piece = p;
            if (ends[k] - at < size_of(d, p.to)) {
                piece.from = at;
                piece.to = sized_axis(d, "cut", AXIS_WIDE, ends[k] - at);
                if (type_has(diff_type(d, p.grad), p.to))
                    piece.grad = ir_slice(&d->b, p.grad, p.to, piece.to, at - p.from);
            }
            vec_push(arena, &cut.list, piece);
        }
    }
    *s = cut;
}

// Sorted by their start, those of one start in the order in which they were met; the same part twice is one
// with the sum. False: some overlap otherwise.
static bool parts_sort(Diff *d, Parts *s) {
    Part *at = s->list.at;
    uint32_t kept = 0;
    for (uint32_t i = 1; i < s->list.n; i++)
        for (uint32_t k = i; k > 0 && at[k].from < at[k - 1].from; k--) {
            Part other = at[k];
            at[k] = at[k - 1];
            at[k - 1] = other;
        }
    for (uint32_t i = 0; i < s->list.n; i++) {
        Part *last = kept ? &at[kept - 1] : NULL, p = at[i];
        bool same = last && p.from == last->from && size_of(d, p.to) == size_of(d, last->to);
        if (same && (p.to == AXIS_NONE) == (last->to == AXIS_NONE)) {
            if (p.to != AXIS_NONE && type_has(diff_type(d, p.grad), p.to))
                p.grad = ir_rename(&d->b, p.grad, p.to, last->to);
            last->grad = ir_add(&d->b, last->grad, p.grad);
        } else if (last && p.from < last->from + size_of(d, last->to))
            return false;
        else
            at[kept++] = p;
    }
    s->list.n = kept;
    return true;
}

// Puts zeros where no part lies. False: there are gaps in an axis that is not wide.
static bool parts_fill(Diff *d, Parts *s) {
    Arena *arena = d->b.m->arena;
    Parts full = {.whole = s->whole};
    AxisId axis = s->list.at[0].axis;
    int32_t at = 0;
    for (uint32_t i = 0; i <= s->list.n; i++) {
        int32_t next = i < s->list.n ? s->list.at[i].from : size_of(d, axis);
        if (next > at) {
            if (kind_of(d, axis) != AXIS_WIDE)
                return false;
            Part gap = {.axis = axis, .from = at, .to = sized_axis(d, "gap", AXIS_WIDE, next - at)};
            Node zeros = {.op = OP_const, .type = part_type(d, &s->whole, &gap)};
            gap.grad = ir_node(&d->b, zeros, 0, NULL);
            vec_push(arena, &full.list, gap);
        }
        if (i == s->list.n)
            break;
        vec_push(arena, &full.list, s->list.at[i]);
        at = next + size_of(d, s->list.at[i].to);
    }
    *s = full;
    return true;
}

static Ref concat_of(Diff *d, AxisId to, const Part *p, int n) {
    Ref in[MAX_ATTR_AXES];
    AxisId axes[MAX_ATTR_AXES];
    for (int i = 0; i < n; i++) {
        in[i] = p[i].grad;
        axes[i] = p[i].to;
    }
    return ir_concat(&d->b, to, n, in, axes);
}

// Parts from one end of the axis to the other as one value; 0 when the axes of some lie in another order. A
// concat takes few operands: more are joined level by level, which needs few axes.
static Ref parts_concat(Diff *d, Parts *s) {
    enum { AT_ONCE = MAX_ATTR_AXES - 1 };
    Part *p = s->list.at;
    AxisId axis = p[0].axis;
    int n = (int)s->list.n;
    for (int i = 0; i < n; i++) {
        Type want = part_type(d, &s->whole, &p[i]);
        p[i].grad = diff_spread(d, p[i].grad, &want);
        if (!type_same(diff_type(d, p[i].grad), &want))
            return 0;
    }
    while (n > AT_ONCE) {
        int joined = 0;
        for (int i = 0; i < n; i += AT_ONCE) {
            int take = MIN_OF(AT_ONCE, n - i);
            Part whole = p[i];
            int32_t size = 0;
            for (int k = 0; k < take; k++)
                size += size_of(d, p[i + k].to);
            if (take > 1) {
                whole.to = sized_axis(d, "join", kind_of(d, axis), size);
                whole.grad = concat_of(d, whole.to, p + i, take);
            }
            p[joined++] = whole;
        }
        n = joined;
    }
    return concat_of(d, axis, p, n);
}

// 1 where index `from` + (index of `to`) of a slice is the index of `axis`, else 0.
static Ref part_mask(Diff *d, const Part *p) {
    Builder *b = &d->b;
    Ref at = ir_const(b, p->from);
    if (p->to != AXIS_NONE)
        at = ir_add(b, ir_iota(b, p->to), at);
    return ir_eq(b, ir_iota(b, p->axis), at);
}

static void parts_mask(Diff *d, Ref x, const Parts *s) {
    for (uint32_t i = 0; i < s->list.n; i++) {
        const Part *p = &s->list.at[i];
        Ref g = p->grad;
        if (p->to != AXIS_NONE)
            g = diff_spread(d, g, &(Type){.rank = 1, .axis = {p->to}});
        g = ir_mul(&d->b, g, part_mask(d, p));
        if (p->to != AXIS_NONE && p->to != p->axis)
            g = ir_reduce(&d->b, OP_sum, g, 1, &p->to);
        diff_add(d, x, g);
    }
}

static void parts_of_axis(Diff *d, Ref x, Parts *s) {
    Parts whole = {.whole = s->whole};
    for (uint32_t i = 0; i < s->list.n; i++)
        vec_push(d->b.m->arena, &whole.list, s->list.at[i]);
    if (kind_of(d, s->list.at[0].axis) == AXIS_WIDE) {
        parts_prepare(d, &whole);
        parts_cut(d, &whole);
    }
    Ref g = parts_sort(d, &whole) && parts_fill(d, &whole) ? parts_concat(d, &whole) : 0;
    if (g)
        diff_add(d, x, g);
    else
        parts_mask(d, x, s);
}

void parts_settle(Diff *d, Ref x) {
    uint32_t n = 0, first = d->last_part[x];
    for (uint32_t i = first; i; i = d->parts.at[i - 1].before)
        n++;
    if (!n)
        return;
    Part *all = arena_alloc(d->b.m->arena, n * sizeof *all);
    for (uint32_t i = first, k = n; i; i = d->parts.at[i - 1].before)
        all[--k] = d->parts.at[i - 1];
    Type type = *diff_type(d, x);
    for (int i = 0; i < type.rank; i++) {
        Parts s = {.whole = type};
        for (uint32_t k = 0; k < n; k++)
            if (all[k].axis == type.axis[i])
                vec_push(d->b.m->arena, &s.list, all[k]);
        if (s.list.n)
            parts_of_axis(d, x, &s);
    }
}
