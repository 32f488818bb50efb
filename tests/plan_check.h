// What the tests of plans share: options, values for parameters and inputs, runs of a plan held against the
// evaluator.
#ifndef DEPTHBENCH_TESTS_PLAN_CHECK_H
#define DEPTHBENCH_TESTS_PLAN_CHECK_H
#include "tests/plan_machine.h"
#include "tests/support.h"
#include <setjmp.h>
#include <stdarg.h>
// cmocka wants the headers above first
#include <cmocka.h>

static Arena arena;
static jmp_buf no_memory;

static int setup(void **state) {
    (void)state;
    arena_init(&arena, 0);
    arena.fail = &no_memory;
    if (setjmp(no_memory))
        fail_msg("out of memory");
    n_machine_kernels = 0;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    arena_free(&arena);
    return 0;
}

static PassOptions options(void) {
    PassOptions o = test_pass_options();
    o.compute = DT_F32;
    o.limits.max_strips = 4;
    o.printer = machine_printer;
    return o;
}

// The functions as they are after the named pass, kept while the pipeline goes on.
typedef struct Kept {
    const char *pass;
    const Func *micro, *eval;
} Kept;

static void keep(void *ctx, const char *pass, bool before, const Module *m) {
    Kept *k = ctx;
    if (before || strcmp(pass, k->pass))
        return;
    k->micro = module_find_func(m, "micro");
    k->eval = module_find_func(m, "eval");
}

static PassOptions model_options(Kept *k, Dtype compute) {
    PassOptions o = options();
    o.compute = compute;
    o.observe = keep;
    o.observe_ctx = k;
    return o;
}

// ---- Values of parameters and inputs; the first target does not count.
static TestEnv bind(const Module *m, const Func *graph) {
    enum { VOCAB = 5 };
    TestEnv e;
    test_env(&e, &arena, m, graph, VOCAB, 1);
    for (uint32_t i = 0; i < e.names.n; i++)
        if (!strcmp(e.names.at[i], "targets"))
            e.inputs.at[i][0] = -1;
    return e;
}

static int64_t io_count(const PlanIo *io) {
    int64_t n = 1;
    for (int i = 0; io && i < io->rank; i++)
        n *= io->shape[i];
    return n;
}

static void bind_machine(Machine *k, const TestEnv *e, const char *program) {
    for (uint32_t i = 0; i < k->plan->params.n; i++) {
        const PlanParam *q = &k->plan->params.at[i];
        for (int64_t j = 0; j < type_count(e->m, &e->m->params.at[i].type); j++) {
            machine_put(k, q->buffer, j, e->param[i][j]);
            if (q->copy_buffer >= 0)
                machine_put(k, q->copy_buffer, j, e->param[i][j]);
        }
    }
    for (uint32_t i = 0; i < e->names.n; i++) {
        const PlanIo *io = plan_io(k->plan, e->names.at[i], plan_program(k->plan, program));
        for (int64_t j = 0; io && j < io_count(io); j++)
            machine_put(k, k->plan->views.at[io->view].buffer, j, e->inputs.at[i][j]);
    }
}

static void same(const char *name, const double *got, const double *want, int64_t n, double factor,
                 double tolerance) {
    double scale = tolerance > 1e-2 ? 0.1 : 1e-4; // in bf16 sums that cancel keep the noise of their terms
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - factor * want[i]) <= tolerance * factor * scale))
            fail_msg("%s[%lld]: %.9g, expected %.9g", name, (long long)i, got[i], factor * want[i]);
}

// Values of an output of the function: a gradient from its arena, others by name.
static double *machine_output(Machine *k, const Module *m, const char *out, const char *program, int64_t n) {
    if (strncmp(out, "grad.", 5)) {
        double *got = machine_read(k, out, program, &n);
        assert_non_null(got);
        return got;
    }
    double *got = arena_alloc(&arena, (size_t)n * sizeof *got);
    for (int64_t j = 0; j < n; j++)
        got[j] = machine_get(k, k->plan->params.at[module_param(m, out + 5)].grad_buffer, j);
    return got;
}

// Runs program `name` for two micro-batches, compares all outputs with the evaluator on `graph` (the same
// function before it was fused, or itself).
static inline void check_run(Module *m, const Plan *plan, const char *name, const Func *graph,
                             double tolerance) {
    const char *overlap = machine_overlap(plan, &arena);
    if (overlap)
        fail_msg("buffers overlap: %s", overlap);
    TestEnv env = bind(m, graph);
    const Tensor *want = test_eval(&arena, m, graph, &env);
    Machine k = machine_open(&arena, m, plan);
    bind_machine(&k, &env, name);
    for (int64_t micro = 0; micro < 2; micro++) {
        machine_run(&k, name, micro);
        for (uint32_t i = 0; i < graph->outputs.n; i++) {
            const char *out = graph->outputs.at[i].name;
            int64_t n = type_count(m, &want[i].type);
            double *got = machine_output(&k, m, out, name, n);
            double factor = strncmp(out, "grad.", 5) ? 1 : (double)micro + 1;
            same(out, got, want[i].at, n, factor, tolerance);
        }
    }
}

#endif
