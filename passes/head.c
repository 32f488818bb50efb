// The projection to the vocabulary with cross-entropy, in chunks of rows: logits never exist whole.
//
// A chunk is a GEMM (f32 logits), one row kernel (loss, gradient of the logits), and for training two GEMMs:
// the gradient of x, and that of the weight, which the chunks add up in order. The row kernel is an ordinary
// kernel function built here, so the printers know nothing of heads.
#include "passes/planner.h"

// loss = inv * (log sum exp logits - logits[target]) where target >= 0, else 0; its gradient to the logits is
// g * inv * (softmax(logits) - one_hot(target)). Operands logits, targets, inv, g (with grad).
static const Func *head_func(Planner *p, const Type *rows, AxisId v, const Type *tg, Dtype dlogits) {
    AxisId axes[MAX_RANK];
    for (int i = 0; i < rows->rank; i++)
        axes[i] = rows->axis[i];
    axes[rows->rank] = v;
    Type logits = type_make(p->m, DT_F32, rows->rank + 1, axes);
    Func *f = kernel_func(p, tg ? "head_grad" : "head", rows->rank, rows->axis);
    Builder b = {.m = p->m, .f = f, .layer = -1};
    Ref x = ir_input(&b, "logits", logits), target = ir_input(&b, "targets", *rows);
    Ref inv = ir_input(&b, "inv", (Type){.dtype = DT_F32});
    Ref g = tg ? ir_input(&b, "g", *tg) : 0;
    Ref hot = ir_one_hot(&b, target, v);
    Ref top = ir_reduce(&b, OP_rmax, x, 1, &v);
    Ref e = ir_exp(&b, ir_sub(&b, x, top)), z = ir_reduce(&b, OP_sum, e, 1, &v);
    Ref counts = ir_mul(&b, inv, ir_reduce(&b, OP_sum, hot, 1, &v));
    Ref picked = ir_reduce(&b, OP_sum, ir_mul(&b, hot, x), 1, &v);
    Ref loss = ir_mul(&b, counts, ir_sub(&b, ir_add(&b, top, ir_log(&b, z)), picked));
    vec_push(p->m->arena, &f->outputs, ((NamedRef){"loss", loss}));
    if (!tg)
        return f;
    Ref scale = ir_mul(&b, counts, g);
    Ref d = ir_mul(&b, scale, ir_sub(&b, ir_mul(&b, e, ir_div(&b, ir_const(&b, 1), z)), hot));
    vec_push(p->m->arena, &f->outputs, ((NamedRef){"dlogits", ir_cast(&b, d, dlogits)}));
    return f;
}

typedef struct Head {
    Value x, w, targets, inv, g, loss, dx, dw; // dx, dw: with grad
    bool grad;
    Accumulate acc; // of dw
    int64_t rows, d, v, x_row, dx_row, target_row, loss_row, g_row;
    int64_t chunk; // rows
    const Func *f;
    int32_t kernel, logits, dlogits; // buffers of one chunk
} Head;

static Value flat_rows(Planner *p, Ref r, int64_t *n, int64_t *stride) {
    Value v = value_at(p, r);
    v = value_inner_dense(p, &v);
    if (rows_flatten(p->m, &v, n, stride))
        return v;
    v = value_dense(p, &v);
    bool flat = rows_flatten(p->m, &v, n, stride);
    CHECK(flat, "rows of a dense value");
    return v;
}

static Head head_gather(Planner *p, Ref r) {
    const Node *n = node_at(p->f, r);
    Head h = {.grad = n->op == OP_head_loss_grad, .acc = ACC_NO};
    int64_t rows;
    h.x = flat_rows(p, node_in(p->f, r, 0), &h.rows, &h.x_row);
    Value w = value_at(p, node_in(p->f, r, 1));
    h.w = value_dense(p, &w);
    h.targets = flat_rows(p, node_in(p->f, r, 2), &rows, &h.target_row);
    h.inv = value_at(p, node_in(p->f, r, 3));
    h.loss = value_result(p, r);
    rows_flatten(p->m, &h.loss, &rows, &h.loss_row);
    h.d = axis_size(p->m, h.w.type.axis[1]);
    h.v = axis_size(p->m, h.w.type.axis[0]);
    int64_t most = MAX_OF(p->o->limits.head_chunk_bytes / (h.v * 4), 1);
    int64_t n_chunks = (h.rows + most - 1) / most;
    h.chunk = (h.rows + n_chunks - 1) / n_chunks;
    if (h.grad) {
        h.g = flat_rows(p, node_in(p->f, r, 4), &rows, &h.g_row);
        h.dx = value_result(p, r + 1);
        h.dw = value_result(p, r + 2);
        h.acc = p->acc[r + 2];
        rows_flatten(p->m, &h.dx, &rows, &h.dx_row);
    }
    return h;
}

// One value of the row kernel for rows [row0, row0 + n): all rows are in the last row axis.
static void row_view(Planner *p, PlanStep *s, const Value *v, int64_t row0, int64_t row, int n_rows) {
    int64_t stride[PLAN_MAX_ROWS] = {0};
    if (n_rows)
        stride[n_rows - 1] = row;
    step_arg(p, s, v->at.buffer, v->at.offset + row0 * row, n_rows, stride);
}

static void head_rows(Planner *p, const Head *h, int64_t row0, int64_t n) {
    int n_rows = h->f->n_row_axes;
    Value logits = {.at = {.buffer = h->logits}}, dlogits = {.at = {.buffer = h->dlogits}};
    PlanStep *s = step_begin(p, STEP_LAUNCH);
    s->kernel = h->kernel;
    for (int i = 0; i < n_rows; i++)
        s->size[i] = i == n_rows - 1 ? n : 1;
    s->items = n;
    s->n_strips = strips_of(p, n, 16);
    s->bytes = p->plan->kernels.at[h->kernel].bytes_per_item * (double)n;
    s->flops = p->plan->kernels.at[h->kernel].flops_per_item * (double)n;
    row_view(p, s, &logits, 0, h->v, n_rows);
    row_view(p, s, &h->targets, row0, h->target_row, n_rows);
    row_view(p, s, &h->inv, 0, 0, n_rows);
    if (h->grad)
        row_view(p, s, &h->g, row0, h->g_row, n_rows);
    row_view(p, s, &h->loss, row0, h->loss_row, n_rows);
    if (h->grad)
        row_view(p, s, &dlogits, 0, h->v, n_rows);
}

static void head_chunk(Planner *p, const Head *h, int64_t row0, int64_t n) {
    int64_t x0 = h->x.at.offset + row0 * h->x_row;
    emit_gemm(p, &(GemmSpec){.m = n,
                             .n = h->v,
                             .k = h->d,
                             .a = h->x.at.buffer,
                             .a0 = x0,
                             .lda = h->x_row ? h->x_row : h->d,
                             .b = h->w.at.buffer,
                             .b0 = h->w.at.offset,
                             .ldb = h->d,
                             .trans_b = true,
                             .c = h->logits,
                             .ldc = h->v});
    head_rows(p, h, row0, n);
    if (!h->grad)
        return;
    emit_gemm(p, &(GemmSpec){.m = n,
                             .n = h->d,
                             .k = h->v,
                             .a = h->dlogits,
                             .lda = h->v,
                             .b = h->w.at.buffer,
                             .b0 = h->w.at.offset,
                             .ldb = h->d,
                             .c = h->dx.at.buffer,
                             .c0 = h->dx.at.offset + row0 * h->dx_row,
                             .ldc = h->dx_row ? h->dx_row : h->d});
    emit_gemm(p, &(GemmSpec){.m = h->v,
                             .n = h->d,
                             .k = n,
                             .a = h->dlogits,
                             .lda = h->v,
                             .trans_a = true,
                             .b = h->x.at.buffer,
                             .b0 = x0,
                             .ldb = h->x_row ? h->x_row : h->d,
                             .c = h->dw.at.buffer,
                             .c0 = h->dw.at.offset,
                             .ldc = h->d,
                             .acc = row0 ? ACC_YES : h->acc});
}

void emit_head(Planner *p, Ref r) {
    Head h = head_gather(p, r);
    Dtype compute = (Dtype)h.x.type.dtype;
    h.f = head_func(p, &h.targets.type, h.w.type.axis[0], h.grad ? &h.g.type : NULL, compute);
    h.kernel = kernel_row(p, h.f);
    h.logits = buffer_acts(p, r, "logits", DT_F32, h.chunk * h.v);
    if (h.grad)
        h.dlogits = buffer_acts(p, r, "dlogits", compute, h.chunk * h.v);
    for (int64_t row = 0; row < h.rows; row += h.chunk)
        head_chunk(p, &h, row, MIN_OF(h.chunk, h.rows - row));
}
