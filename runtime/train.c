// The training loop: see train.h. One step: read a batch, run "micro" once a micro-batch (gradients add up),
// run "update" with this step's rate, report, validate, save.
//
// The data cursor after step k is k batches, whatever happened before, so a resumed run reads what an
// uninterrupted one would.
#include "runtime/train.h"
#include "runtime/checkpoint.h"
#include "runtime/init.h"
#include "runtime/metrics.h"
#include "runtime/params.h"
#include "runtime/run.h"
#include "runtime/train_report.h"
#include <math.h>
#include <signal.h>
#include <string.h>

static volatile sig_atomic_t caught;

static void on_signal(int number) {
    caught = number;
}

// The first signal lets the step end and a checkpoint be written; a second one ends the process as if
// unhandled. A write beyond a file size limit becomes an error of that write.
enum { N_SIGNALS = 3 };
static void catch_signals(struct sigaction old[N_SIGNALS], bool on) {
    static const int numbers[N_SIGNALS] = {SIGINT, SIGTERM, SIGXFSZ};
    if (on)
        caught = 0;
    for (int i = 0; i < N_SIGNALS; i++) {
        bool ignored = numbers[i] == SIGXFSZ;
        struct sigaction action = {.sa_flags = ignored ? 0 : (int)SA_RESETHAND};
        action.sa_handler = ignored ? SIG_IGN : on_signal;
        sigemptyset(&action.sa_mask);
        sigaction(numbers[i], on ? &action : &old[i], on ? &old[i] : NULL);
    }
}

typedef struct Loop {
    const TrainOptions *o;
    int32_t micro, update;
    int64_t n_micro, ids;      // micro-batches a step; ids of a micro-batch
    int32_t *inputs, *targets; // of the whole batch
    Progress at;
    Metrics *metrics;
    int64_t saved; // step of the newest checkpoint, -1: none
    double last_val;
    double started; // ms
    int64_t timed_steps;
    double timed_ms;
    bool warned_low;
} Loop;

Status train_init(Exec *e, const Plan *p, uint64_t seed) {
    for (uint32_t i = 0; i < p->params.n; i++) {
        const PlanParam *q = &p->params.at[i];
        size_t n = (size_t)params_count(q);
        float *data = mem_alloc(n * sizeof *data);
        if (!data)
            return status_memory(q->name, n * sizeof *data);
        init_fill(&q->init, seed, q->name, (int64_t)n, data);
        Status s = exec_param_write(e, (int32_t)i, PART_VALUE, data);
        mem_free(data);
        TRY(s);
    }
    return exec_refresh_copies(e);
}

// ---- Validation

static int64_t count_targets(const int32_t *targets, int64_t n) {
    int64_t counted = 0;
    for (int64_t i = 0; i < n; i++)
        counted += targets[i] >= 0;
    return counted;
}

static Status write_batch(Exec *e, int32_t program, const int32_t *ids, const int32_t *targets, int64_t n,
                          float inv) {
    TRY(exec_write(e, "ids", program, ids, n));
    TRY(exec_write(e, "targets", program, targets, n));
    return exec_write(e, "inv_tokens", program, &inv, 1);
}

static Status validate(Exec *e, const Plan *p, Data *val, int32_t *ids, int32_t *targets, double *sum,
                       int64_t *tokens) {
    int32_t program = plan_program(p, "eval");
    int64_t n = p->batch * p->seq, windows = data_info(val).windows;
    CHECK(program >= 0, "the plan has no program eval");
    for (int64_t at = 0; at < windows; at += p->batch) {
        TRY(data_read(val, at, p->batch, ids, targets));
        int64_t counted = count_targets(targets, n);
        float loss;
        // the mean over this batch times its targets: sums stay near one another in size
        TRY(write_batch(e, program, ids, targets, n, 1.0f / (float)MAX_OF(counted, 1)));
        TRY(exec_run(e, program, 0));
        TRY(exec_read(e, "loss", program, &loss, 1));
        *sum += (double)loss * (double)counted;
        *tokens += counted;
    }
    return STATUS_OK;
}

Status train_validate(Exec *e, const Plan *p, Data *val, double *loss, int64_t *tokens) {
    int64_t n = p->batch * p->seq;
    double sum = 0;
    *tokens = 0;
    int32_t *ids = mem_alloc((size_t)(2 * n) * sizeof *ids);
    if (!ids)
        return status_memory("a batch of held-out data", (size_t)(2 * n) * sizeof *ids);
    Status s = validate(e, p, val, ids, ids + n, &sum, tokens);
    mem_free(ids);
    *loss = sum / (double)MAX_OF(*tokens, 1);
    return s;
}

static Status run_validation(Loop *l) {
    const TrainOptions *o = l->o;
    double start = now_ms(), loss;
    int64_t tokens;
    TRY(train_validate(o->exec, o->plan, o->val, &loss, &tokens));
    l->last_val = loss;
    if (o->hooks.val)
        o->hooks.val(o->hooks.ctx, l->at.step, loss, tokens, now_ms() - start);
    return report_val(l->metrics, l->at.step, loss, tokens);
}

// ---- One step

static Status write_micro(Loop *l, int64_t m, float inv) {
    const TrainOptions *o = l->o;
    return write_batch(o->exec, l->micro, l->inputs + m * l->ids, l->targets + m * l->ids, l->ids, inv);
}

// Runs every micro-batch again, slowly, to find the first tensor that is not finite.
static Status report_nonfinite(Loop *l, const char *what, double value, float inv) {
    char name[256] = "";
    for (int64_t m = 0; m < l->n_micro && !name[0]; m++) {
        TRY(write_micro(l, m, inv));
        TRY(exec_find_nonfinite(l->o->exec, l->micro, name, sizeof name));
    }
    return status_make(
        EXIT_WORK,
        "step %lld: the %s is %g; first tensor that is not finite: %.200s. The step was not applied; "
        "--resume goes on from the last checkpoint, with a lower --lr perhaps",
        (long long)l->at.step + 1, what, value, name[0] ? name : "none but the norm itself (overflow)");
}

// Runs the micro-batches slowly, looking at every stored tensor; their gradients do not count.
static Status debug_step(Loop *l, float inv) {
    char name[256];
    for (int64_t m = 0; m < l->n_micro; m++) {
        TRY(write_micro(l, m, inv));
        TRY(exec_find_nonfinite(l->o->exec, l->micro, name, sizeof name));
        if (name[0])
            return status_make(EXIT_WORK, "step %lld, micro-batch %lld: not finite: %.200s",
                               (long long)l->at.step + 1, (long long)m, name);
    }
    return STATUS_OK;
}

static Status run_micro(Loop *l, float inv, double *loss) {
    const TrainOptions *o = l->o;
    *loss = 0;
    for (int64_t m = 0; m < l->n_micro; m++) {
        float part;
        TRY(write_micro(l, m, inv));
        TRY(exec_run(o->exec, l->micro, m));
        TRY(exec_read(o->exec, "loss", l->micro, &part, 1));
        *loss += (double)part;
    }
    return STATUS_OK;
}

static Status run_update(Loop *l, double lr, double *norm) {
    const TrainOptions *o = l->o;
    double k = (double)(l->at.step + 1);
    float rate = (float)lr, bias1 = (float)(1 - pow(o->beta1, k)), bias2 = (float)(1 - pow(o->beta2, k)),
          value;
    TRY(exec_write(o->exec, "lr", l->update, &rate, 1));
    TRY(exec_write(o->exec, "bias1", l->update, &bias1, 1));
    TRY(exec_write(o->exec, "bias2", l->update, &bias2, 1));
    TRY(exec_run(o->exec, l->update, 0));
    TRY(exec_read(o->exec, "grad_norm", l->update, &value, 1));
    *norm = (double)value;
    return STATUS_OK;
}

static Status one_step(Loop *l, TrainStep *s) {
    const TrainOptions *o = l->o;
    double start = now_ms();
    TRY(data_read(o->data, o->overfit ? 0 : l->at.cursor, o->batch, l->inputs, l->targets));
    s->data_ms = now_ms() - start;
    int64_t counted = count_targets(l->targets, o->batch * o->plan->seq);
    float inv = 1.0f / (float)MAX_OF(counted, 1);
    s->step = l->at.step + 1;
    s->lr = schedule_rate(&o->schedule, s->step);
    if (o->debug_nan)
        TRY(debug_step(l, inv));
    TRY(run_micro(l, inv, &s->loss));
    if (!isfinite(s->loss))
        return report_nonfinite(l, "loss", s->loss, inv);
    TRY(run_update(l, s->lr, &s->grad_norm));
    if (!isfinite(s->grad_norm))
        return report_nonfinite(l, "gradient norm", s->grad_norm, inv);
    s->clip_factor = o->clip > 0 ? fmin(1, o->clip / (s->grad_norm + 1e-6)) : 1;
    l->at.step++;
    l->at.cursor += o->batch;
    l->at.tokens += counted;
    s->tokens = l->at.tokens;
    s->step_ms = now_ms() - start;
    s->tokens_per_s = 1e3 * (double)counted / s->step_ms;
    return STATUS_OK;
}

// ---- Before, after, between

static void note(void *ctx, const char *text) {
    const TrainOptions *o = ((const Loop *)ctx)->o;
    if (o->hooks.note)
        o->hooks.note(o->hooks.ctx, text);
}

static Status save(Loop *l) {
    const TrainOptions *o = l->o;
    if (!o->run || l->saved == l->at.step)
        return STATUS_OK;
    double start = now_ms();
    char folder[FILE_PATH];
    TRY(checkpoint_save(o->run->checkpoints, o->exec, o->plan, &l->at, o->keep, o->keep_every, folder));
    l->saved = l->at.step;
    if (o->hooks.saved)
        o->hooks.saved(o->hooks.ctx, l->at.step, folder, now_ms() - start);
    return STATUS_OK;
}

static Status resume(Loop *l) {
    const TrainOptions *o = l->o;
    char folder[FILE_PATH];
    const Notes notes = {note, l};
    TRY(checkpoint_find(o->run->checkpoints, notes, folder, &l->at));
    if (!folder[0])
        return status_make(EXIT_REQUEST,
                           "%s: no complete checkpoint to resume from; start anew with --overwrite",
                           o->run->dir);
    if (l->at.seed != o->seed)
        return status_make(EXIT_REQUEST, "%s: made with seed %lld, not %lld", folder, (long long)l->at.seed,
                           (long long)o->seed);
    if (strcmp(l->at.data_hash, data_hash(o->data)) != 0 && !o->allow_changed_data)
        return status_make(EXIT_REQUEST,
                           "%s: the training data is not what the run began with; --allow-changed-data "
                           "goes on all the same",
                           folder);
    l->saved = l->at.step;
    return checkpoint_load(folder, o->exec, o->plan, notes);
}

static Status begin(Loop *l) {
    const TrainOptions *o = l->o;
    bool again = o->run && o->run->resume;
    l->at = (Progress){.seed = o->seed};
    TRY(again ? resume(l) : train_init(o->exec, o->plan, o->seed));
    snprintf(l->at.data_hash, sizeof l->at.data_hash, "%s", data_hash(o->data));
    if (o->run) {
        snprintf(l->at.config_hash, sizeof l->at.config_hash, "%s", o->run->config_hash);
        bool due = o->val_every > 0 && l->at.step % o->val_every == 0;
        TRY(metrics_open(o->run->dir, l->at.step, due, &l->metrics));
    }
    if (!again && o->schedule.warmup >= o->schedule.steps && o->schedule.decay != DECAY_CONSTANT)
        note(l, "the warm-up is as long as the run: the rate never falls");
    if (!again && o->val && o->val_every > 0)
        TRY(run_validation(l));
    return STATUS_OK;
}

static Status after_step(Loop *l, TrainStep *s) {
    const TrainOptions *o = l->o;
    if (l->timed_steps++ > 0) // the first one pays for cold memory
        l->timed_ms += s->step_ms;
    int64_t left = o->schedule.steps - l->at.step;
    s->steps = o->schedule.steps;
    s->seconds_left =
        l->timed_steps > 1 ? 1e-3 * l->timed_ms / (double)(l->timed_steps - 1) * (double)left : -1;
    for (int a = 0; a < N_ARENAS; a++)
        s->planned_bytes += o->plan->arena_bytes[a];
    if (s->loss < 0.01 && s->step <= 100 && !o->overfit && !l->warned_low) {
        l->warned_low = true;
        note(l, "a loss below 0.01 within the first 100 steps: is the data one thing again and again?");
    }
    if (o->hooks.step)
        o->hooks.step(o->hooks.ctx, s);
    TRY(report_step(l->metrics, s));
    bool last = left == 0;
    if (o->val && (last || (o->val_every > 0 && l->at.step % o->val_every == 0)))
        TRY(run_validation(l));
    if (last || (o->save_every > 0 && l->at.step % o->save_every == 0))
        TRY(save(l));
    return STATUS_OK;
}

static Status loop(Loop *l, TrainResult *r) {
    const TrainOptions *o = l->o;
    TRY(begin(l));
    r->first_step = l->at.step + 1;
    while (l->at.step < o->schedule.steps) {
        TrainStep s = {0};
        TRY(one_step(l, &s));
        r->loss = s.loss;
        TRY(after_step(l, &s));
        r->signal = (int)caught;
        if (r->signal || (o->stop_after > 0 && l->at.step >= o->stop_after))
            return save(l);
    }
    return STATUS_OK;
}

Status train_run(const TrainOptions *o, TrainResult *result) {
    int64_t batch_ids = o->batch * o->plan->seq;
    Loop l = {.o = o,
              .micro = plan_program(o->plan, "micro"),
              .update = plan_program(o->plan, "update"),
              .n_micro = o->batch / o->plan->batch,
              .ids = o->plan->batch * o->plan->seq,
              .saved = -1,
              .last_val = NAN,
              .started = now_ms()};
    *result = (TrainResult){.first_step = 1, .loss = NAN, .val_loss = NAN};
    CHECK(l.micro >= 0 && l.update >= 0, "the plan lacks micro or update");
    CHECK(o->batch > 0 && o->batch % o->plan->batch == 0, "batch %lld of micro-batches of %lld",
          (long long)o->batch, (long long)o->plan->batch);
    TRY(schedule_check(&o->schedule));
    l.inputs = mem_alloc((size_t)(2 * batch_ids) * sizeof *l.inputs);
    if (!l.inputs)
        return status_memory("a batch", (size_t)(2 * batch_ids) * sizeof *l.inputs);
    l.targets = l.inputs + batch_ids;
    struct sigaction old[N_SIGNALS];
    catch_signals(old, true);
    Status s = loop(&l, result);
    catch_signals(old, false);
    result->last_step = l.at.step;
    result->tokens = l.at.tokens;
    result->val_loss = l.last_val;
    result->seconds = 1e-3 * (now_ms() - l.started);
    metrics_close(l.metrics);
    mem_free(l.inputs);
    return s;
}
