// What a plan costs, in the terms that people compare: parameters by part, flops a token, bytes, memory by
// kind.
#include "frontend/cli/cli.h"
#include <string.h>

static int64_t param_elems(const PlanParam *p) {
    int64_t n = 1;
    for (int i = 0; i < p->rank; i++)
        n *= p->shape[i];
    return n;
}

static void count_params(const Plan *p, Counts *c) {
    for (uint32_t i = 0; i < p->params.n; i++) {
        const PlanParam *q = &p->params.at[i];
        if (!q->trained)
            continue;
        int64_t n = param_elems(q);
        c->params += n;
        if (!strcmp(q->name, "embed.weight"))
            c->embed += n;
        else if (!strcmp(q->name, "lm_head.weight"))
            c->head += n;
        else if (!strcmp(q->name, "final_norm.weight"))
            c->final_norm += n;
        else if (strstr(q->name, "norm.weight"))
            c->norms += n;
        else if (strstr(q->name, ".attn.") || strstr(q->name, ".ffn."))
            c->matrices += n;
        else
            c->scheme += n;
    }
}

static void count_flops(const Plan *p, const Shape *s, Counts *c) {
    double d = s->d_model, q = (double)s->n_head * s->head_dim, kv = (double)s->n_kv_head * s->head_dim,
           l = s->n_layer;
    c->flops_proj = l * 2 * (2 * d * q + 2 * d * kv + 3 * d * s->ff);
    c->flops_attn = l * 4 * q * ((double)p->seq + 1) / 2;
    c->flops_head = 2.0 * s->vocab * d;
    int64_t streams = 0; // read off the plan: rows of static_alpha
    for (uint32_t i = 0; i < p->params.n; i++)
        if (strstr(p->params.at[i].name, "_hc.static_alpha"))
            streams = p->params.at[i].shape[0];
    double n = (double)streams;
    if (streams) // norms 3nd, projections 2nd(n+2), mixing 2n(n+1)d, write 2nd, for each of 2L connectors
        c->flops_scheme = 2 * l * d * (3 * n + 2 * n * (n + 2) + 2 * n * (n + 1) + 2 * n);
}

Counts plan_counts(const Plan *p, const Shape *s) {
    Counts c = {0};
    count_params(p, &c);
    if (s->d_model)
        count_flops(p, s, &c);
    c.row_bytes = p->row_bytes_per_token;
    c.row_bound = row_bytes_bound(p, s, p->seq);
    bool used[65536] = {0};
    for (uint32_t i = 0; i < p->programs.n; i++) {
        const PlanProgram *g = &p->programs.at[i];
        bool main = !strcmp(g->name, "micro") || p->programs.n == 1;
        for (int32_t k = 0; k < g->n_steps; k++) {
            const PlanStep *st = &p->steps.at[g->step0 + k];
            if (st->kind == STEP_LAUNCH && strcmp(g->name, "eval") && (size_t)st->kernel < COUNT_OF(used))
                used[st->kernel] = true;
            c.launches += main && st->kind == STEP_LAUNCH;
            c.gemms += main && st->kind == STEP_GEMM;
        }
        c.acts_bytes = MAX_OF(c.acts_bytes, g->acts_peak);
        c.acts_bound = MAX_OF(c.acts_bound, g->acts_bound);
    }
    for (size_t i = 0; i < COUNT_OF(used); i++)
        c.kernels += used[i];
    c.params_bytes = p->arena_bytes[ARENA_PARAMS] + p->arena_bytes[ARENA_COPIES];
    c.state_bytes = p->arena_bytes[ARENA_EXP_AVG] + p->arena_bytes[ARENA_EXP_AVG_SQ];
    c.grads_bytes = p->arena_bytes[ARENA_GRADS];
    c.io_bytes = p->arena_bytes[ARENA_IO] + p->arena_bytes[ARENA_CONST];
    return c;
}

// Fewest elements a token that row kernels must move in a training step when all work between two GEMMs is
// one kernel and each kernel reads and writes each tensor once (statistics and coefficients left out). Rows
// of d:
//   Pre-LN  forward: 2 at the embedding, 4 at each of the 2L-1 inner boundaries (read x, f; write x', y), 4
//   at the end;
//           backward: 3 at the end, 4 at each boundary (read g, x, dy; write g')
//   HC (n streams)  forward: 2, 2n+2 inner (read X, f; write X', y), n+3 at the end;
//           backward: 3, n+8 at the last boundary, 3n+3 inner (read gX', X, f, dy; write gX, gf), n+5 at the
//           first
// plus, a layer, 8 ff for SwiGLU (forward 3, backward 5), 4 (q + k) for RoPE, and 2 V for the head's rows.
double row_bytes_bound(const Plan *p, const Shape *s, int64_t seq) {
    (void)seq;
    if (!s->d_model || !s->n_layer)
        return 0;
    double l = s->n_layer, d = s->d_model, rows;
    if (!strcmp(p->model, "pre_ln"))
        rows = 2 + 4 * (2 * l - 1) + 4 + 3 + 4 * 2 * l;
    else if (!strcmp(p->model, "hc")) {
        double n = 4;
        for (uint32_t i = 0; i < p->params.n; i++)
            if (strstr(p->params.at[i].name, "_hc.static_alpha"))
                n = (double)p->params.at[i].shape[0];
        rows = 2 + (2 * n + 2) * (2 * l - 1) + (n + 3) + 3 + (n + 8) + (3 * n + 3) * (2 * l - 2) + (n + 5);
    } else
        return 0;
    double rope = 4.0 * s->head_dim * (s->n_head + s->n_kv_head);
    double wide = p->compute == DT_BF16 ? 2 : 4;
    return (rows * d + l * (8.0 * s->ff + rope)) * wide + s->vocab * (4 + wide);
}

void print_costs(const Options *o, const Counts *c) {
    char t[5][32];
    human(
        o,
        "params     %lld = embedding %lld + head %lld + final norm %lld + matrices %lld + norms %lld + scheme "
        "%lld\n",
        (long long)c->params, (long long)c->embed, (long long)c->head, (long long)c->final_norm,
        (long long)c->matrices, (long long)c->norms, (long long)c->scheme);
    human(o, "backbone   %lld = matrices + norms\n", (long long)(c->matrices + c->norms));
    human(
        o,
        "flops      %s a token, forward: projections %s + attention %s + head %s + residual scheme %s (x3 in "
        "training)\n",
        count_text(c->flops_proj + c->flops_attn + c->flops_head + c->flops_scheme, t[0]),
        count_text(c->flops_proj, t[1]), count_text(c->flops_attn, t[2]), count_text(c->flops_head, t[3]),
        count_text(c->flops_scheme, t[4]));
    human(
        o,
        "           2L(2d*H*hd + 2d*Hk*hd + 3d*ff) + 2L*H*hd*(seq+1) + 2V*d + scheme; the scheme is left out "
        "of the share of the peak\n");
}
