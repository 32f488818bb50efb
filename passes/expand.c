// Skinny products become products and sums, so that they live inside of row kernels: a contraction over small
// axes alone, or one whose one side has nothing but few small elements beside what is contracted
// (hyper-connections: X . [d,t], and its gradients). Everything else stays a GEMM.
#include "passes/passes.h"
#include "passes/rebuild.h"

enum { SKINNY = 32 };

static bool has_kind(const Module *m, const Type *t, const Type *other, bool shared, AxisKind kind) {
    for (int i = 0; i < t->rank; i++)
        if (type_has(other, t->axis[i]) == shared && m->axes.at[t->axis[i]].kind == kind)
            return true;
    return false;
}

static int64_t free_size(const Module *m, const Type *t, const Type *other) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        if (!type_has(other, t->axis[i]))
            n *= m->axes.at[t->axis[i]].size;
    return n;
}

static bool is_skinny(const Module *m, const Type *x, const Type *y) {
    bool small_only = !has_kind(m, x, y, true, AXIS_WIDE) && !has_kind(m, x, y, true, AXIS_ROW);
    bool wide_x = has_kind(m, x, y, false, AXIS_WIDE), wide_y = has_kind(m, y, x, false, AXIS_WIDE);
    if ((wide_x && wide_y) || ((wide_x || wide_y) && has_kind(m, x, y, true, AXIS_WIDE)))
        return false; // no kernel multiplies along different wide axes
    for (int side = 0; side < 2; side++) {
        const Type *a = side ? y : x, *b = side ? x : y;
        if (!has_kind(m, a, b, false, AXIS_WIDE) && !has_kind(m, a, b, false, AXIS_ROW) &&
            free_size(m, a, b) <= SKINNY)
            return true;
    }
    return small_only;
}

static Ref expand_dot(Builder *b, Ref x, Ref y) {
    const Module *m = b->m;
    Type tx = node_at(b->f, x)->type, ty = node_at(b->f, y)->type;
    Ref r = ir_mul(b, x, y);
    static const AxisKind order[] = {AXIS_SMALL, AXIS_WIDE, AXIS_ROW};
    for (size_t k = 0; k < COUNT_OF(order); k++) {
        AxisId axes[MAX_RANK];
        int n = 0;
        for (int i = 0; i < tx.rank; i++)
            if (type_has(&ty, tx.axis[i]) && m->axes.at[tx.axis[i]].kind == order[k])
                axes[n++] = tx.axis[i];
        r = ir_reduce(b, OP_sum, r, n, axes);
    }
    return r;
}

static Ref expand_node(void *ctx, Builder *b, const Func *f, Ref r, const Ref *in) {
    (void)ctx;
    if (node_at(f, r)->op == OP_dot &&
        is_skinny(b->m, &node_at(b->f, in[0])->type, &node_at(b->f, in[1])->type))
        return expand_dot(b, in[0], in[1]);
    return ir_copy(b, f, r, in);
}

void pass_expand(Module *m, const PassOptions *o) {
    (void)o;
    for (uint32_t i = 0; i < m->funcs.n; i++)
        if (!m->funcs.at[i]->is_kernel)
            m->funcs.at[i] = func_rebuild(m, m->funcs.at[i], expand_node, NULL);
}
