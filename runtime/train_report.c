// Metrics of a step and of a validation: see train_report.h.
#include "runtime/train_report.h"
#include "runtime/json_out.h"

static void step_text(Text *out, const TrainStep *s) {
    JsonOut j;
    jout_begin(&j, out);
    jout_string(&j, "event", "step");
    jout_int(&j, "step", s->step);
    jout_real(&j, "loss", s->loss);
    jout_real32(&j, "grad_norm", (float)s->grad_norm);
    jout_real32(&j, "clip_factor", (float)s->clip_factor);
    jout_real(&j, "lr", s->lr);
    jout_int(&j, "tokens", s->tokens);
    jout_real32(&j, "tokens_per_s", (float)s->tokens_per_s);
    jout_real32(&j, "step_ms", (float)s->step_ms);
    jout_real32(&j, "data_ms", (float)s->data_ms);
    jout_int(&j, "peak_bytes", (int64_t)s->planned_bytes);
    jout_close(&j);
}

static void val_text(Text *out, int64_t step, double loss, int64_t tokens) {
    JsonOut j;
    jout_begin(&j, out);
    jout_string(&j, "event", "val");
    jout_int(&j, "step", step);
    jout_real(&j, "loss", loss);
    jout_int(&j, "tokens", tokens);
    jout_close(&j);
}

static Status write_line(Metrics *m, const TrainStep *step, int64_t at, double loss, int64_t tokens) {
    Arena arena;
    arena_init(&arena, 0);
    Text text = {.arena = &arena};
    volatile bool built = true;
    ARENA_CATCH(
        &arena,
        {
            if (step)
                step_text(&text, step);
            else
                val_text(&text, at, loss, tokens);
        },
        built = false);
    Status s = built ? metrics_line(m, text.at, text.n) : status_memory("a line of metrics", 512);
    arena_free(&arena);
    return s;
}

Status report_step(Metrics *m, const TrainStep *s) {
    if (!m)
        return STATUS_OK;
    TRY(write_line(m, s, 0, 0, 0));
    const struct {
        const char *tag;
        double value;
    } scalars[] = {{"train/loss", s->loss},
                   {"train/grad_norm", s->grad_norm},
                   {"train/lr", s->lr},
                   {"throughput/tokens_per_second", s->tokens_per_s},
                   {"memory/peak_bytes", (double)s->planned_bytes}};
    for (size_t i = 0; i < COUNT_OF(scalars); i++)
        TRY(metrics_scalar(m, s->step, scalars[i].tag, (float)scalars[i].value));
    return STATUS_OK;
}

Status report_val(Metrics *m, int64_t step, double loss, int64_t tokens) {
    if (!m)
        return STATUS_OK;
    TRY(write_line(m, NULL, step, loss, tokens));
    return metrics_scalar(m, step, "val/loss", (float)loss);
}
