// A dot as GEMMs: which axes are rows, columns and depth, which operand is transposed, what must be looped.
//
// The axes of the left operand that the right lacks are M, those of the right that the left lacks N, the
// shared ones K. Neighbouring axes with uniform strides in all matrices that have them become one; what does
// not flatten is looped over (several row axes of a slice, for instance). The result may come out transposed
// (a parameter stores small axes first): then the operands change sides.
#include "passes/planner.h"

typedef struct Dim { // an axis of the product: size, and strides in A, B, C (0 where it is absent)
    int64_t n, a, b, c;
} Dim;
typedef struct Dims {
    int n;
    Dim at[MAX_RANK];
} Dims;

static int64_t stride_in(const Value *v, AxisId axis) {
    int i = v ? type_axis(&v->type, axis) : -1;
    return i < 0 ? 0 : v->at.stride[i];
}

static void dims_add(Dims *d, Dim x) {
    if (x.n == 1)
        return;
    Dim *last = d->n ? &d->at[d->n - 1] : NULL;
    if (last && last->a == x.a * x.n && last->b == x.b * x.n && last->c == x.c * x.n) {
        x.n *= last->n;
        *last = x;
        return;
    }
    d->at[d->n++] = x;
}

typedef struct Product {
    Dims m, n, k;
    Dtype dtype_ab, dtype_c;
    int32_t buffer[3];
    int64_t offset[3];
    Accumulate acc;
} Product;

// With x, y or out NULL their strides count as 0, which flattens whatever the others allow.
static void product_dims(const Module *m, const Type *tx, const Type *ty, const Value *x, const Value *y,
                         const Value *out, Product *g) {
    *g = (Product){0};
    for (int i = 0; i < tx->rank; i++) {
        AxisId a = tx->axis[i];
        Dim d = {axis_size(m, a), stride_in(x, a), stride_in(y, a), stride_in(out, a)};
        dims_add(type_has(ty, a) ? &g->k : &g->m, d);
    }
    for (int i = 0; i < ty->rank; i++) {
        AxisId a = ty->axis[i];
        if (!type_has(tx, a))
            dims_add(&g->n, (Dim){axis_size(m, a), 0, stride_in(y, a), stride_in(out, a)});
    }
}

// The dimension that stays inside of the GEMM, the others are looped over: the last, which is contiguous if
// any is.
static Dim inner_dim(const Dims *d) {
    return d->n ? d->at[d->n - 1] : (Dim){.n = 1, .a = 1, .b = 1, .c = 1};
}

// Rows or columns of the result are contiguous.
static bool output_strides(Dim m, Dim n) {
    return m.n == 1 || n.n == 1 || n.c == 1 || m.c == 1;
}

bool dot_output_fits(const Module *m, const Type *x, const Type *y, const Value *out) {
    Product g;
    product_dims(m, x, y, NULL, NULL, out, &g);
    return output_strides(inner_dim(&g.m), inner_dim(&g.n));
}

void emit_gemm(Planner *p, const GemmSpec *g) {
    const PlanBuffer *b = p->plan->buffers.at;
    Dtype ab = b[g->a].dtype, c = b[g->c].dtype;
    CHECK(b[g->b].dtype == ab, "gemm of %s and %s", b[g->a].name, b[g->b].name);
    PlanStep *s = step_begin(p, STEP_GEMM);
    s->acc = g->acc;
    s->m = g->m;
    s->n = g->n;
    s->k = g->k;
    s->lda = g->lda;
    s->ldb = g->ldb;
    s->ldc = g->ldc;
    s->trans_a = g->trans_a;
    s->trans_b = g->trans_b;
    s->dtype_ab = ab;
    s->dtype_c = c;
    s->flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    s->bytes = ((double)g->m + (double)g->n) * (double)g->k * (double)dtype_bytes(ab) +
               (double)g->m * (double)g->n * (double)dtype_bytes(c);
    step_arg(p, s, g->a, g->a0, 0, NULL);
    step_arg(p, s, g->b, g->b0, 0, NULL);
    step_arg(p, s, g->c, g->c0, 0, NULL);
}

// One operand as a matrix of rows x cols with these strides: leading size, and whether it is stored the other
// way round. False when neither stride is 1.
static bool orient(int64_t rows, int64_t row, int64_t cols, int64_t col, int64_t *ld, bool *trans) {
    if (cols == 1 || col == 1) {
        *trans = false;
        *ld = rows == 1 ? cols : row;
        return *ld >= cols;
    }
    *trans = true;
    *ld = col;
    return (rows == 1 || row == 1) && col >= rows;
}

static bool emit_one(Planner *p, const Product *g, Dim m, Dim n, Dim k, bool emit) {
    GemmSpec s = {.m = m.n, .n = n.n, .k = k.n, .acc = g->acc};
    int a = 0, b = 1;
    Dim left = m, right = n;
    if (n.n > 1 && n.c != 1) { // the columns of the result are contiguous: its transpose is B' A'
        a = 1;
        b = 0;
        left = n;
        right = m;
        s.m = n.n;
        s.n = m.n;
    }
    int64_t left_stride = a ? left.b : left.a, right_stride = a ? right.a : right.b;
    int64_t k_left = a ? k.b : k.a, k_right = a ? k.a : k.b;
    s.ldc = s.m == 1 ? s.n : left.c;
    if (s.n > 1 && right.c != 1)
        return false;
    if (!orient(s.m, left_stride, s.k, k_left, &s.lda, &s.trans_a) ||
        !orient(s.k, k_right, s.n, right_stride, &s.ldb, &s.trans_b))
        return false;
    s.a = g->buffer[a];
    s.b = g->buffer[b];
    s.c = g->buffer[2];
    s.a0 = g->offset[a];
    s.b0 = g->offset[b];
    s.c0 = g->offset[2];
    if (emit)
        emit_gemm(p, &s);
    return true;
}

static int64_t loop_count(const Dims *d) {
    int64_t n = 1;
    for (int i = 0; i + 1 < d->n; i++)
        n *= d->at[i].n;
    return n;
}

static void loop_offset(const Dims *d, int64_t i, int64_t offset[3]) {
    for (int a = d->n - 2; a >= 0; a--) {
        int64_t j = i % d->at[a].n;
        i /= d->at[a].n;
        offset[0] += j * d->at[a].a;
        offset[1] += j * d->at[a].b;
        offset[2] += j * d->at[a].c;
    }
}

static void emit_loops(Planner *p, const Product *g) {
    int64_t nm = loop_count(&g->m), nn = loop_count(&g->n), nk = loop_count(&g->k);
    CHECK(nm * nn * nk <= 4096, "a dot needs %lld GEMMs", (long long)(nm * nn * nk));
    for (int64_t i = 0; i < nm * nn * nk; i++) {
        Product one = *g;
        loop_offset(&g->m, i / nk / nn, one.offset);
        loop_offset(&g->n, i / nk % nn, one.offset);
        loop_offset(&g->k, i % nk, one.offset);
        if (i % nk)
            one.acc = ACC_YES;
        bool done = emit_one(p, &one, inner_dim(&g->m), inner_dim(&g->n), inner_dim(&g->k), true);
        CHECK(done, "a dot does not fit a GEMM");
    }
}

static bool product_of(Planner *p, const Value *x, const Value *y, const Value *out, Accumulate acc,
                       Product *g) {
    product_dims(p->m, &x->type, &y->type, x, y, out, g);
    const Value *v[] = {x, y, out};
    for (int i = 0; i < 3; i++) {
        g->buffer[i] = v[i]->at.buffer;
        g->offset[i] = v[i]->at.offset;
    }
    g->acc = acc;
    return emit_one(p, g, inner_dim(&g->m), inner_dim(&g->n), inner_dim(&g->k), false);
}

void emit_dot(Planner *p, const Value *x, const Value *y, const Value *out, Accumulate acc) {
    Product g;
    if (product_of(p, x, y, out, acc, &g)) {
        emit_loops(p, &g);
        return;
    }
    Value a = value_dense(p, x), b = value_dense(p, y);
    bool fits = product_of(p, &a, &b, out, acc, &g);
    CHECK(fits, "a dot does not fit a GEMM");
    emit_loops(p, &g);
}
