// The passes, in the order of pipeline.def, and what they may know of a target.
#ifndef DEPTHBENCH_PASSES_H
#define DEPTHBENCH_PASSES_H
#include "ir/ir.h"
#include "ir/plan.h"

typedef struct Limits {       // a target, as far as passes see it
    int64_t head_chunk_bytes; // logits that may exist at once
    int32_t max_strips;       // partial sums of a column sum
} Limits;

// AUTO takes the first of NONE, SOME, FULL whose plan fits memory_limit.
typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_AUTO, RECOMPUTE_FULL, RECOMPUTE_SOME } Recompute;

// Prints kernel texts; the codegen directory provides one a target, the caller (frontend/cli) joins the two.
typedef struct KernelPrinter {
    const char *(*row)(Arena *, const Module *, const Func *kernel, const char *name);
    const char *(*finish)(Arena *, const char *name);
    const char *(*scatter)(Arena *, Dtype x, const char *name);
    const char *(*attention)(Arena *, int head_dim, int group, Dtype dtype, bool grad, const char *name);
} KernelPrinter;

typedef struct PassOptions {
    Dtype compute;
    Recompute recompute;
    size_t memory_limit;                          // bytes for everything; 0: none
    double beta1, beta2, eps, weight_decay, clip; // optimizer
    bool train;                                   // build "micro" and "update"
    bool want_logits, want_hidden, want_grads;    // outputs of "micro"/"eval" that a probe reads
    Limits limits;
    KernelPrinter printer;
    // Called after (when & 1: before) each pass with its name; the module as it stands. NULL: nobody looks.
    void (*observe)(void *ctx, const char *pass, bool before, const Module *m);
    void *observe_ctx;
    bool fuse; // false: every node its own kernel (tests hold the two against each other)
} PassOptions;

// A pass changes the module in place (functions are rebuilt and replaced by name).
typedef void Pass(Module *m, const PassOptions *o);
// clang-format off
#define PASS(name, doc) Pass pass_##name;
#include "passes/pipeline.def"
// clang-format on

// Runs pipeline.def on a module with the function "loss", verifying after each pass, and builds the plan.
// The module is left as the last pass made it. ms[i]: time of pass i, may be NULL.
Status pipeline_run(Module *m, const PassOptions *o, Plan **plan) MUST_USE;
extern const char *const pass_names[];
extern const int n_passes;
// Trained parameters that "loss" does not depend on, into out[] (room for all); their number.
int autodiff_dead_params(const Module *m, int32_t *out);

// Places of the parameters in the flat arenas, in elements: [decay | no decay | fixed], each part padded to
// PLAN_ROW. Parameters that some function concatenates lie side by side in the order of the concat
// (layout.c).
typedef struct ParamLayout {
    size_t *offset; // one a parameter
    size_t decay_elems, trained_elems, total_elems;
} ParamLayout;
ParamLayout param_layout(Module *m);

// The last stage: the functions "micro", "update", "eval" (those that exist) become programs.
// "update" has inputs and outputs ARENA.PART of type [r,z] (z of PLAN_ROW elements): ARENA is params, grads,
// exp_avg, exp_avg_sq (f32) or copies (bf16, output only), PART is "decay" or "plain"; an output of such a
// name is written in place. All other inputs ("lr", ...) and outputs ("grad_norm", "ok", ...) are scalars
// that the runtime writes and reads.
Status plan_build(Module *m, const PassOptions *o, Plan **plan) MUST_USE;

// Shared analyses.
// Cost of one item of a kernel: bytes read and written in memory, flops (cost.c).
typedef struct KernelCost {
    double read_bytes, write_bytes, flops;
    int phases;
} KernelCost;
KernelCost cost_kernel(const Module *m, const Func *kernel);
#endif
