// Shapes: what follows from what, and what cannot be.
#include "frontend/lua/lua.h"

enum { MAX_SIZE = 1 << 24 };

Status shape_complete(Shape *s) {
    if (s->d_model < 1 || s->n_layer < 1 || s->n_head < 1 || s->vocab < 2)
        return status_make(EXIT_REQUEST,
                           "the shape is incomplete: d_model %d, n_layer %d, n_head %d, vocab %d", s->d_model,
                           s->n_layer, s->n_head, s->vocab);
    if (s->n_kv_head < 0 || s->head_dim < 0 || s->ff < 0)
        return status_make(EXIT_REQUEST,
                           "the shape has sizes below 1: n_kv_head %d, head_dim %d, ff %d (0: they follow)",
                           s->n_kv_head, s->head_dim, s->ff);
    if (s->d_model > MAX_SIZE || s->ff > MAX_SIZE || s->n_head > MAX_SIZE)
        return status_make(EXIT_REQUEST, "the shape has sizes above %d: d_model %d, n_head %d, ff %d",
                           MAX_SIZE, s->d_model, s->n_head, s->ff);
    if (!s->n_kv_head)
        s->n_kv_head = s->n_head;
    if (!s->head_dim) {
        if (s->d_model % s->n_head)
            return status_make(EXIT_REQUEST, "d_model %d is not a multiple of n_head %d; set head_dim",
                               s->d_model, s->n_head);
        s->head_dim = s->d_model / s->n_head;
    }
    if (!s->ff)
        s->ff = 16 * (((8 * s->d_model + 2) / 3 + 15) / 16);
    if (s->head_dim % 2)
        return status_make(EXIT_REQUEST,
                           "head_dim %d is odd; rotary positions need pairs: choose an even head_dim",
                           s->head_dim);
    if (s->head_dim > 256)
        return status_make(EXIT_REQUEST,
                           "head_dim %d is above 256, the largest that attention kernels are made for",
                           s->head_dim);
    if (s->n_head % s->n_kv_head)
        return status_make(EXIT_REQUEST, "n_head %d is not a multiple of n_kv_head %d", s->n_head,
                           s->n_kv_head);
    if (s->n_layer > 4096)
        return status_make(EXIT_REQUEST, "n_layer %d is above 4096", s->n_layer);
    return STATUS_OK;
}
