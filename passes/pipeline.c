// Runs the passes of pipeline.def in order: look, pass, verify, look. Then the plan. With --recompute auto,
// the passes from `recompute` on run again with more of it until the plan fits.
#include "passes/passes.h"
#include <string.h>

// clang-format off
const char *const pass_names[] = {
#define PASS(name, doc) #name,
#include "passes/pipeline.def"
};
static Pass *const passes[] = {
#define PASS(name, doc) pass_##name,
#include "passes/pipeline.def"
};
// clang-format on
const int n_passes = (int)COUNT_OF(passes);

static void run_pass(Module *m, const PassOptions *o, int i) {
    if (o->observe)
        o->observe(o->observe_ctx, pass_names[i], true, m);
    passes[i](m, o);
    ir_verify(m, pass_names[i]);
    if (o->observe)
        o->observe(o->observe_ctx, pass_names[i], false, m);
}

// Passes replace functions and never change one in place, so the list of them is all that has to be
// remembered.
static Status run_rest(Module *m, const PassOptions *o, int from, Plan **plan) {
    static const Recompute levels[] = {RECOMPUTE_NONE, RECOMPUTE_SOME, RECOMPUTE_FULL};
    uint32_t n_funcs = m->funcs.n, n_axes = m->axes.n;
    Func **funcs = arena_alloc(m->arena, (n_funcs + 1) * sizeof *funcs);
    memcpy(funcs, m->funcs.at, n_funcs * sizeof *funcs);
    bool search = o->recompute == RECOMPUTE_AUTO;
    for (size_t i = 0; i < (search ? COUNT_OF(levels) : 1); i++) {
        PassOptions level = *o;
        level.recompute = search ? levels[i] : o->recompute;
        memcpy(m->funcs.at, funcs, n_funcs * sizeof *funcs);
        m->funcs.n = n_funcs;
        m->axes.n = n_axes;
        for (int k = from; k < n_passes; k++)
            run_pass(m, &level, k);
        TRY(plan_build(m, &level, plan));
        if (!o->memory_limit || plan_bytes(*plan) <= o->memory_limit)
            break;
    }
    return STATUS_OK;
}

Status pipeline_run(Module *m, const PassOptions *o, Plan **plan) {
    int i = 0;
    for (; strcmp(pass_names[i], "recompute"); i++)
        run_pass(m, o, i);
    return run_rest(m, o, i, plan);
}
