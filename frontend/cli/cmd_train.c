// train: reads data, plans what fits, trains, prints a line a step.
#include "frontend/cli/cli.h"
#include "frontend/cli/train_setup.h"
#include <math.h>
#include <string.h>
#include <unistd.h>

static void on_step(void *ctx, const TrainStep *s) {
    Setup *t = ctx;
    const Options *o = t->o;
    int64_t every = o->log_every > 0 ? o->log_every : 1;
    if (s->step % every && s->step != s->steps && s->step != 1)
        return;
    char rate[32], memory[32], share[64] = "", left[32] = "-";
    size_t peak = peak_resident();
    double flops = t->flops_per_token * s->tokens_per_s;
    if (t->peak_flops > 0)
        snprintf(share, sizeof share, "  %.0f%% of %.0f GF/s", 100 * flops / t->peak_flops,
                 t->peak_flops / 1e9);
    if (s->seconds_left >= 0)
        snprintf(left, sizeof left, "%d:%02d", (int)s->seconds_left / 60, (int)s->seconds_left % 60);
    human(o, "step %lld/%lld  loss %.4f  norm %.3f  lr %.2e  %s tok/s%s  mem %s  left %s\n",
          (long long)s->step, (long long)s->steps, s->loss, s->grad_norm, s->lr,
          count_text(s->tokens_per_s, rate), share, bytes_text((double)peak, memory), left);
    if (!o->json)
        fflush(stdout);
    else
        emit_json(json_pack("{s:s,s:I,s:f,s:f,s:f,s:f,s:I,s:f,s:f,s:I,s:I}", "event", "step", "step",
                            (json_int_t)s->step, "loss", s->loss, "grad_norm", s->grad_norm, "clip_factor",
                            s->clip_factor, "lr", s->lr, "tokens", (json_int_t)s->tokens, "tokens_per_s",
                            s->tokens_per_s, "peak_share", t->peak_flops > 0 ? flops / t->peak_flops : 0.0,
                            "peak_bytes", (json_int_t)peak, "planned_bytes", (json_int_t)s->planned_bytes));
}

static void on_val(void *ctx, int64_t step, double loss, int64_t tokens, double ms) {
    Setup *t = ctx;
    human(t->o, "step %lld  validation loss %.4f  (%lld tokens, %.1f s)\n", (long long)step, loss,
          (long long)tokens, ms / 1e3);
    if (t->o->json)
        emit_json(json_pack("{s:s,s:I,s:f,s:I}", "event", "val", "step", (json_int_t)step, "loss", loss,
                            "tokens", (json_int_t)tokens));
}

static void on_saved(void *ctx, int64_t step, const char *folder, double ms) {
    Setup *t = ctx;
    human(t->o, "step %lld  checkpoint %s (%.0f ms)\n", (long long)step, folder, ms);
    if (t->o->json)
        emit_json(json_pack("{s:s,s:I,s:s}", "event", "checkpoint", "step", (json_int_t)step, "path",
                            json_text(folder)));
}

static void on_note(void *ctx, const char *text) {
    (void)ctx;
    fprintf(stderr, "depthbench: warning: %s\n", text);
}

static json_t *real_or_null(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static void print_done(Setup *t, const TrainResult *r) {
    const Options *o = t->o;
    human(o, "done: step %lld", (long long)r->last_step);
    if (isfinite(r->loss))
        human(o, ", loss %.4f", r->loss);
    if (isfinite(r->val_loss))
        human(o, ", validation loss %.4f", r->val_loss);
    human(o, ", %lld tokens, %.1f s, run %s\n", (long long)r->tokens, r->seconds,
          o->out ? o->out : "not kept");
    if (o->json)
        emit_json(json_pack("{s:s,s:I,s:o,s:o,s:I,s:f,s:s}", "event", "done", "step",
                            (json_int_t)r->last_step, "loss", real_or_null(r->loss), "val_loss",
                            real_or_null(r->val_loss), "tokens", (json_int_t)r->tokens, "seconds", r->seconds,
                            "run", json_text(o->out ? o->out : "")));
}

static Status run(Setup *t, Exec *e) {
    const Options *o = t->o;
    TrainOptions train = {
        .exec = e,
        .plan = t->built.plan,
        .data = t->data,
        .val = t->val,
        .run = t->run,
        .schedule = t->schedule,
        .seed = t->seed,
        .batch = t->batch,
        .beta1 = t->built.passes.beta1,
        .beta2 = t->built.passes.beta2,
        .clip = t->built.passes.clip,
        .val_every = o->val_every,
        .save_every = o->save_every,
        .keep = o->keep_given ? o->keep : 2,
        .keep_every = o->keep_every,
        .overfit = o->overfit,
        .debug_nan = o->debug_nan,
        .allow_changed_data = o->allow_changed_data,
        .hooks = {t, on_step, on_val, on_saved, on_note},
    };
    TrainResult result;
    TRY(train_run(&train, &result));
    if (result.signal)
        return status_make(128 + result.signal, "interrupted after step %lld; go on with --resume",
                           (long long)result.last_step);
    if (result.first_step > result.last_step)
        human(o, "nothing to do: the run is at step %lld of %lld already\n", (long long)result.last_step,
              (long long)t->schedule.steps);
    print_done(t, &result);
    return STATUS_OK;
}

Status cmd_train(const Options *o) {
    if (o->args.n != 1)
        return status_make(EXIT_REQUEST, "train takes one MODEL, got %d", o->args.n);
    Setup t;
    TRY(setup_open(o, &t));
    Status s = STATUS_OK;
    setup_table(&t);
    if (!o->dry_run) {
        Exec *e;
        s = exec_open(t.built.plan, t.driver, &t.driver_options, &e);
        if (!s.code) {
            const CompileStats *c = exec_compile_stats(e);
            human(o, "compile    %d kernels compiled, %d from the cache, %.1f s\n\n", c->compiled, c->cached,
                  c->ms / 1e3);
            s = setup_run(&t);
            if (!s.code)
                s = run(&t, e);
            exec_close(e);
        }
    }
    setup_close(&t);
    return s;
}
