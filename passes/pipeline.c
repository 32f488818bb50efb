// Runs the passes of pipeline.def in order: look, pass, verify, look. Then the plan.
#include "passes/passes.h"

// clang-format off
const char *const pass_names[] = {
#define PASS(name, doc) #name,
#include "passes/pipeline.def"
};
const char *const pass_docs[] = {
#define PASS(name, doc) doc,
#include "passes/pipeline.def"
};
static Pass *const passes[] = {
#define PASS(name, doc) pass_##name,
#include "passes/pipeline.def"
};
// clang-format on
const int n_passes = (int)COUNT_OF(passes);

Status pipeline_run(Module *m, const PassOptions *o, Plan **plan) {
    for (int i = 0; i < n_passes; i++) {
        if (o->observe)
            o->observe(o->observe_ctx, pass_names[i], true, m);
        passes[i](m, o);
        ir_verify(m, pass_names[i]);
        if (o->observe)
            o->observe(o->observe_ctx, pass_names[i], false, m);
    }
    return plan_build(m, o, plan);
}
