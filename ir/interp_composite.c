// Float64 definitions of the ops that have a kernel of their own: products, attention, the head.
#include "ir/interp.h"
#include <math.h>
#include <string.h>

// Counts through the index space of some axes, keeping offsets into several tensors.
typedef struct Walk {
    int rank, n_tensors;
    int64_t size[2 * MAX_RANK], at[2 * MAX_RANK], stride[2 * MAX_RANK][4], offset[4];
} Walk;

static void walk_axis(Walk *w, const Module *m, AxisId axis, const Tensor *const *tensors) {
    w->size[w->rank] = m->axes.at[axis].size;
    for (int i = 0; i < w->n_tensors; i++)
        w->stride[w->rank][i] = interp_stride(m, &tensors[i]->type, axis);
    w->rank++;
}

static bool walk_next(Walk *w) {
    for (int i = w->rank - 1; i >= 0; i--) {
        for (int k = 0; k < w->n_tensors; k++)
            w->offset[k] += w->stride[i][k];
        if (++w->at[i] < w->size[i])
            return true;
        for (int k = 0; k < w->n_tensors; k++)
            w->offset[k] -= w->stride[i][k] * w->size[i];
        w->at[i] = 0;
    }
    return false;
}

void interp_dot(const Module *m, const Tensor *x, const Tensor *y, Tensor *out) {
    const Tensor *const tensors[] = {x, y, out};
    Walk w = {.n_tensors = 3};
    for (int i = 0; i < out->type.rank; i++)
        walk_axis(&w, m, out->type.axis[i], tensors);
    for (int i = 0; i < x->type.rank; i++)
        if (type_has(&y->type, x->type.axis[i]))
            walk_axis(&w, m, x->type.axis[i], tensors);
    do
        out->at[w.offset[2]] += x->at[w.offset[0]] * y->at[w.offset[1]];
    while (walk_next(&w));
}

typedef struct Heads { // sizes of an attention; a head's row is `width` neighbouring values in q, k, v
    int64_t batch, seq, heads, groups, width;
} Heads;

// The head axis is the last row axis, positions the one before; earlier row axes are batch. Row axes come
// first in memory, so q is [batch, seq, heads, width] and k is [batch, seq, groups, width].
static Heads heads_of(const Module *m, const Type *q, const Type *k) {
    AxisId rows[MAX_RANK];
    int n = type_rows(m, q, rows);
    Heads h = {1, m->axes.at[rows[n - 2]].size, m->axes.at[rows[n - 1]].size, 1, 1};
    for (int i = 0; i < n - 2; i++)
        h.batch *= m->axes.at[rows[i]].size;
    h.width = type_count(m, q) / (h.batch * h.seq * h.heads);
    h.groups = type_count(m, k) / (h.batch * h.seq * h.width);
    return h;
}

static double dot_rows(const double *a, const double *b, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += a[i] * b[i];
    return s;
}

void interp_attention(const Module *m, double scale, const Tensor *in, Tensor *out) {
    Heads h = heads_of(m, &in[0].type, &in[1].type);
    for (int64_t b = 0; b < h.batch; b++)
        for (int64_t t = 0; t < h.seq; t++)
            for (int64_t head = 0; head < h.heads; head++) {
                int64_t row = (b * h.seq + t) * h.heads + head, g = head / (h.heads / h.groups);
                const double *q = in[0].at + row * h.width;
                double max = -INFINITY, sum = 0;
                for (int64_t u = 0; u <= t; u++) {
                    double s =
                        scale * dot_rows(q, in[1].at + ((b * h.seq + u) * h.groups + g) * h.width, h.width);
                    max = s > max ? s : max;
                }
                for (int64_t u = 0; u <= t; u++) {
                    int64_t key = ((b * h.seq + u) * h.groups + g) * h.width;
                    double p = exp(scale * dot_rows(q, in[1].at + key, h.width) - max);
                    sum += p;
                    for (int64_t e = 0; e < h.width; e++)
                        out[0].at[row * h.width + e] += p * in[2].at[key + e];
                }
                for (int64_t e = 0; e < h.width; e++)
                    out[0].at[row * h.width + e] /= sum;
                out[1].at[row] = max + log(sum);
            }
}

// With p the softmax row, D = g . o - g_lse: ds = p (g . v - D); dq = scale sum ds k; dk += scale ds q; dv +=
// p g. Operand 3 is o where lse has no gradient, else D.
void interp_attention_grad(const Module *m, double scale, const Tensor *in, Tensor *out) {
    Heads h = heads_of(m, &in[0].type, &in[1].type);
    for (int64_t b = 0; b < h.batch; b++)
        for (int64_t t = 0; t < h.seq; t++)
            for (int64_t head = 0; head < h.heads; head++) {
                int64_t row = (b * h.seq + t) * h.heads + head, g = head / (h.heads / h.groups), w = h.width;
                const double *q = in[0].at + row * w, *grad = in[5].at + row * w;
                double mean =
                    in[3].type.rank < in[0].type.rank ? in[3].at[row] : dot_rows(grad, in[3].at + row * w, w);
                for (int64_t u = 0; u <= t; u++) {
                    int64_t key = ((b * h.seq + u) * h.groups + g) * w;
                    const double *k = in[1].at + key, *v = in[2].at + key;
                    double p = exp(scale * dot_rows(q, k, w) - in[4].at[row]);
                    double ds = p * (dot_rows(grad, v, w) - mean) * scale;
                    for (int64_t e = 0; e < w; e++) {
                        out[0].at[row * w + e] += ds * k[e];
                        out[1].at[key + e] += ds * q[e];
                        out[2].at[key + e] += p * grad[e];
                    }
                }
            }
}

// Operands x [rows,d], w [v,d], targets [rows], inv [], (g: any broadcast over rows). logits_o = x . w_o;
// loss = inv (lse - logits_target); dlogits = g inv (softmax - one_hot); nothing where the target is
// negative.
Status interp_head(const Module *m, bool grad, const Tensor *in, Tensor *out) {
    int64_t d = m->axes.at[in[1].type.axis[1]].size, v = m->axes.at[in[1].type.axis[0]].size;
    int64_t rows = type_count(m, &in[2].type);
    double inv = in[3].at[0], *logits = arena_alloc(m->arena, (size_t)v * sizeof *logits);
    Cursor g_at = {0};
    if (grad)
        g_at = cursor_make(m, &in[2].type, &in[4].type);
    for (int64_t r = 0; r < rows; r++, cursor_next(&g_at)) {
        const double *x = in[0].at + r * d;
        double max = -INFINITY, sum = 0;
        if (in[2].at[r] < 0)
            continue;
        if (!(in[2].at[r] < (double)v))
            return status_make(EXIT_REQUEST, "target %.0f is outside of the vocabulary of %lld", in[2].at[r],
                               (long long)v);
        int64_t target = (int64_t)in[2].at[r];
        for (int64_t o = 0; o < v; o++) {
            logits[o] = dot_rows(x, in[1].at + o * d, d);
            max = logits[o] > max ? logits[o] : max;
        }
        for (int64_t o = 0; o < v; o++)
            sum += exp(logits[o] - max);
        double lse = max + log(sum);
        out[0].at[r] = inv * (lse - logits[target]);
        double g = grad ? inv * in[4].at[g_at.offset] : 0;
        for (int64_t o = 0; grad && o < v; o++) {
            double dl = g * (exp(logits[o] - lse) - (o == target));
            for (int64_t i = 0; i < d; i++) {
                out[1].at[r * d + i] += dl * in[1].at[o * d + i];
                out[2].at[o * d + i] += dl * x[i];
            }
        }
    }
    return STATUS_OK;
}
