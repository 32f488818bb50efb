// The training loop and the run directory it writes. Prints nothing: the caller gives callbacks.
//
// RUN/ holds config.json, model.lua, metrics.jsonl, events.out.tfevents.*, checkpoints/step-N/, lock.
// Everything a step depends on is (parameters, moments, step, data cursor, seed), and a checkpoint holds
// exactly that, so a resumed run is the same bits as one that was never interrupted.
#ifndef DEPTHBENCH_RUNTIME_TRAIN_H
#define DEPTHBENCH_RUNTIME_TRAIN_H
#include "runtime/data.h"
#include "runtime/exec.h"
#include "runtime/schedule.h"

typedef enum RunMode { RUN_NEW, RUN_RESUME, RUN_OVERWRITE } RunMode;
typedef struct Run Run;
// Opens and locks a run directory. config: a JSON object (text), written as config.json. scripts: pairs of
// file name and text, ended by NULL, written beside it ("model.lua", "..."), may be NULL. RUN_NEW refuses a
// folder that has anything in it, RUN_RESUME one without a complete checkpoint, and a config that differs
// from the run's in a key that is not in free_keys (NULL-ended list; all differences are named with both
// values). Code 2.
Status run_open(const char *dir, RunMode mode, const char *config, const char *const *free_keys,
                const char *const *scripts, Run **out) MUST_USE;
// The refusals of run_open that need no lock, before costly work; touches nothing.
Status run_check(const char *dir, RunMode mode) MUST_USE;
// Value of a key of the config.json of an existing run as JSON text ("" when absent); for the caller's
// defaults.
Status run_config(const char *dir, char **json) MUST_USE; // whole text; mem_free
void run_close(Run *r);

typedef struct TrainStep {
    int64_t step, steps;
    double loss;        // nats a counted target
    double grad_norm;   // before clipping
    double clip_factor; // 1 when not clipped
    double lr;
    int64_t tokens; // targets trained on since the start of the run, resumed parts included
    double step_ms, data_ms;
    double tokens_per_s; // of this step
    double seconds_left; // from the mean of the steps of this process; < 0: not known yet
    size_t planned_bytes;
} TrainStep;

typedef struct TrainHooks {
    void *ctx;
    void (*step)(void *ctx, const TrainStep *s); // after each step (the caller skips by its --log-every)
    void (*val)(void *ctx, int64_t step, double loss, int64_t tokens, double ms);
    void (*saved)(void *ctx, int64_t step, const char *folder, double ms);
    void (*note)(void *ctx, const char *text); // a warning, one line; each cause once
} TrainHooks;

typedef struct TrainOptions {
    Exec *exec;
    const Plan *plan;  // programs micro, update; eval when val is given
    Data *data, *val;  // val may be NULL
    Run *run;          // NULL: nothing is written
    Schedule schedule; // schedule.steps is the length of the run
    uint64_t seed;
    int64_t batch;             // sequences in a step; a multiple of plan->batch
    double beta1, beta2, clip; // as the plan was built with
    int64_t val_every;         // 0: after the last step only; the first value is taken before step 1 when > 0
    int64_t save_every;        // 0: after the last step only
    int64_t keep,
        keep_every;          // newest checkpoints that stay (at least 1); every N-th stays for ever (0: none)
    int64_t stop_after;      // > 0: stops after this step with a checkpoint, as if interrupted
    bool overfit;            // the first batch again and again
    bool debug_nan;          // look for values that are not finite after every micro-batch (slow)
    bool allow_changed_data; // resume although the data's hash differs
    TrainHooks hooks;
} TrainOptions;

typedef struct TrainResult {
    int64_t first_step, last_step; // of this process; first_step > last_step: nothing was left to do
    double loss, val_loss;         // last ones; NaN when there was none
    int64_t tokens;
    double seconds;
    int signal; // SIGINT or SIGTERM that ended the run after a checkpoint (exit 128 + signal); else 0
} TrainResult;

// Fills parameters from the seed (or the run's newest complete checkpoint), then trains. A loss or gradient
// norm that is not finite: code 1, text names step and first tensor; the step's update is not applied, no
// checkpoint is written, older ones stay.
Status train_run(const TrainOptions *o, TrainResult *result) MUST_USE;
// Initial values of all parameters from a seed.
Status train_init(Exec *e, const Plan *p, uint64_t seed) MUST_USE;
// Mean loss over all targets of held-out data, with the plan's program "eval": sum of losses / number of
// targets.
Status train_validate(Exec *e, const Plan *p, Data *val, double *loss, int64_t *tokens) MUST_USE;
#endif
