// Look-ups in a plan and its text.
#include "ir/plan.h"
#include <string.h>

const char *arena_id_name(ArenaId id) {
    static const char *const names[] = {"params", "copies", "exp_avg", "exp_avg_sq",
                                        "grads",  "acts",   "const",   "io"};
    return names[id];
}

int32_t plan_program(const Plan *p, const char *name) {
    for (uint32_t i = 0; i < p->programs.n; i++)
        if (!strcmp(p->programs.at[i].name, name))
            return (int32_t)i;
    return -1;
}

const PlanIo *plan_io(const Plan *p, const char *name, int32_t program) {
    for (uint32_t i = 0; i < p->io.n; i++) {
        const PlanIo *io = &p->io.at[i];
        if (!strcmp(io->name, name) && (io->program == program || io->program < 0))
            return io;
    }
    return NULL;
}

static void print_view(Text *out, const Plan *p, int32_t view) {
    const PlanView *v = &p->views.at[view];
    text_add(out, "%d", v->buffer);
    if (v->offset)
        text_add(out, "+%zu", v->offset);
    if (v->stride[0] || v->stride[1] || v->stride[2])
        text_add(out, "/%lld", (long long)v->stride[0]);
    for (int i = 1; i < PLAN_MAX_ROWS && (v->stride[i] || v->stride[PLAN_MAX_ROWS - 1]); i++)
        text_add(out, ".%lld", (long long)v->stride[i]);
}

static void print_step(Text *out, const Plan *p, int32_t i) {
    static const char *const acc[] = {"", " acc micro", " acc"};
    const PlanStep *s = &p->steps.at[i];
    text_add(out, "step %d ", i);
    switch (s->kind) {
    case STEP_LAUNCH:
        text_add(out, "launch @%s items %lld strips %d", p->kernels.at[s->kernel].name, (long long)s->items,
                 s->n_strips);
        break;
    case STEP_GEMM:
        text_add(out, "gemm %s %c%c %lldx%lldx%lld", dtype_name(s->dtype_ab), s->trans_a ? 'T' : 'N',
                 s->trans_b ? 'T' : 'N', (long long)s->m, (long long)s->n, (long long)s->k);
        break;
    case STEP_SORT:
        text_add(out, "sort");
        break;
    case STEP_FILL:
        text_add(out, "fill %lld", (long long)s->items);
        break;
    }
    text_add(out, " args");
    for (int32_t k = 0; k < s->n_args; k++) {
        text_add(out, " ");
        print_view(out, p, s->arg0 + k);
    }
    for (int32_t k = 0; k < s->n_scalars; k++)
        text_add(out, " =%.9g", (double)p->scalars.at[s->scalar0 + k]);
    text_add(out, "%s", acc[s->acc]);
    if (s->origin)
        text_add(out, "   # %s", s->origin);
    text_add(out, "\n");
}

static void print_buffer(Text *out, const Plan *p, uint32_t i) {
    const PlanBuffer *b = &p->buffers.at[i];
    text_add(out, "buffer %u %s %s %s+%zu %zu B", i, b->name ? b->name : "-", dtype_name(b->dtype),
             arena_id_name(b->arena), b->offset, b->bytes);
    if (b->arena == ARENA_ACTS)
        text_add(out, " live %d..%d", b->first, b->last);
    text_add(out, "\n");
}

void plan_print(Text *out, const Plan *p) {
    text_add(out, "plan %s %s batch %lld seq %lld layers %d\n", p->model, dtype_name(p->compute),
             (long long)p->batch, (long long)p->seq, p->n_layer);
    for (int a = 0; a < N_ARENAS; a++)
        text_add(out, "arena %s %zu B\n", arena_id_name((ArenaId)a), p->arena_bytes[a]);
    for (uint32_t i = 0; i < p->kernels.n; i++)
        text_add(out, "kernel %u @%s bytes/item %.0f flops/item %.0f\n", i, p->kernels.at[i].name,
                 p->kernels.at[i].bytes_per_item, p->kernels.at[i].flops_per_item);
    for (uint32_t i = 0; i < p->buffers.n; i++)
        print_buffer(out, p, i);
    for (uint32_t i = 0; i < p->io.n; i++)
        text_add(out, "io %s %s view %d program %d\n", p->io.at[i].output ? "out" : "in", p->io.at[i].name,
                 p->io.at[i].view, p->io.at[i].program);
    for (uint32_t g = 0; g < p->programs.n; g++) {
        const PlanProgram *r = &p->programs.at[g];
        text_add(out, "program %s  # activations peak %zu B, lower bound %zu B\n", r->name, r->acts_peak,
                 r->acts_bound);
        for (int32_t i = r->step0; i < r->step0 + r->n_steps; i++)
            print_step(out, p, i);
    }
}

size_t plan_bytes(const Plan *p) {
    size_t n = 0;
    for (int a = 0; a < N_ARENAS; a++)
        n += p->arena_bytes[a];
    return n;
}
