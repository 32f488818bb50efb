// What the tests of plans share: options, values for parameters and inputs, runs of a plan held against the
// evaluator.
#ifndef DEPTHBENCH_TESTS_PLAN_CHECK_H
#define DEPTHBENCH_TESTS_PLAN_CHECK_H
#include "tests/plan_machine.h"
#include <setjmp.h>
#include <stdarg.h>
// cmocka wants the headers above first
#include <cmocka.h>

enum { MAX_OUTPUTS = 512 };
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
    return (PassOptions){.compute = DT_F32,
                         .train = true,
                         .limits = {"test", 1 << 20, 4, true},
                         .printer = machine_printer,
                         .fuse = true};
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
    o.beta1 = 0.9;
    o.beta2 = 0.95;
    o.eps = 1e-8;
    o.weight_decay = 0.1;
    o.clip = 1;
    o.observe = keep;
    o.observe_ctx = k;
    return o;
}

// ---- Bindings: every parameter and input has values that follow from its number and the element.
static double value_of(uint32_t what, int64_t i) {
    uint64_t z = (uint64_t)what * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u + 1;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)(float)((double)(z >> 40) * 0x1p-24 - 0.5);
}

typedef struct Bound {
    Module *m;
    double **param, **input;
    const char **name;
    Type *type;
    int n_inputs;
} Bound;

static const double *bound_param(void *ctx, int32_t i) {
    return ((Bound *)ctx)->param[i];
}

static const double *bound_input(void *ctx, const char *name) {
    Bound *b = ctx;
    for (int i = 0; i < b->n_inputs; i++)
        if (!strcmp(b->name[i], name))
            return b->input[i];
    return NULL;
}

static Bound bind(Module *m) {
    enum { MAX_INPUTS = 32 };
    Bound b = {.m = m};
    b.param = arena_alloc(&arena, (m->params.n + 1) * sizeof *b.param);
    b.input = arena_alloc(&arena, MAX_INPUTS * sizeof *b.input);
    b.name = arena_alloc(&arena, MAX_INPUTS * sizeof *b.name);
    b.type = arena_alloc(&arena, MAX_INPUTS * sizeof *b.type);
    for (uint32_t i = 0; i < m->params.n; i++) {
        int64_t n = type_count(m, &m->params.at[i].type);
        b.param[i] = arena_alloc(&arena, (size_t)n * sizeof(double));
        for (int64_t j = 0; j < n; j++)
            b.param[i][j] = value_of(i, j);
    }
    for (uint32_t i = 0; i < m->funcs.n; i++)
        for (uint32_t j = 1; j < m->funcs.at[i]->nodes.n && !m->funcs.at[i]->is_kernel; j++) {
            const Node *n = &m->funcs.at[i]->nodes.at[j];
            if (n->op != OP_input || bound_input(&b, n->name))
                continue;
            int64_t count = type_count(m, &n->type);
            double *at = arena_alloc(&arena, (size_t)count * sizeof *at);
            for (int64_t k = 0; k < count; k++)
                at[k] = n->type.dtype == DT_I32 ? floor((value_of(1000 + j, k) + 0.5) * 5)
                                                : value_of(1000 + j, k);
            if (n->type.dtype == DT_I32 && !strcmp(n->name, "targets"))
                at[0] = -1;
            b.name[b.n_inputs] = n->name;
            b.type[b.n_inputs] = n->type;
            b.input[b.n_inputs++] = at;
        }
    return b;
}

static void bind_machine(Machine *k, const Bound *b) {
    for (uint32_t i = 0; i < k->plan->params.n; i++) {
        const PlanParam *q = &k->plan->params.at[i];
        for (int64_t j = 0; j < type_count(b->m, &b->m->params.at[i].type); j++) {
            machine_put(k, q->buffer, j, b->param[i][j]);
            if (q->copy_buffer >= 0)
                machine_put(k, q->copy_buffer, j, b->param[i][j]);
        }
    }
    for (int i = 0; i < b->n_inputs; i++)
        if (!strchr(b->name[i], '.')) // those are arenas
            machine_write(k, b->name[i], b->input[i]);
}

static void same(const char *name, const double *got, const double *want, int64_t n, double factor,
                 double tolerance) {
    double scale = tolerance > 1e-2 ? 1e-2 : 1e-6; // in bf16 sums that cancel keep the noise of their terms
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - factor * want[i]) <= tolerance * factor * scale))
            fail_msg("%s[%lld]: %.9g, expected %.9g", name, (long long)i, got[i], factor * want[i]);
}

// Runs program `name` for two micro-batches, compares all outputs with the evaluator on `graph` (the same
// function before it was fused, or itself).
static void check_run(Module *m, const Plan *plan, const char *name, const Func *graph, double tolerance) {
    const char *overlap = machine_overlap(plan, &arena);
    if (overlap)
        fail_msg("buffers overlap: %s", overlap);
    Bound bound = bind(m);
    Env env = {&bound, bound_param, bound_input};
    Tensor want[MAX_OUTPUTS];
    Status s = interp_run(&arena, m, graph, &env, false, want);
    if (s.code)
        fail_msg("%s", s.text);
    Machine k = machine_open(&arena, m, plan);
    bind_machine(&k, &bound);
    for (int64_t micro = 0; micro < 2; micro++) {
        machine_run(&k, name, micro);
        for (uint32_t i = 0; i < graph->outputs.n; i++) {
            const char *out = graph->outputs.at[i].name;
            int64_t n = type_count(m, &want[i].type);
            double *got;
            double factor = 1;
            if (!strncmp(out, "grad.", 5)) {
                got = arena_alloc(&arena, (size_t)n * sizeof *got);
                for (int64_t j = 0; j < n; j++)
                    got[j] = machine_get(&k, plan->params.at[module_param(m, out + 5)].grad_buffer, j);
                factor = (double)micro + 1;
            } else {
                got = machine_read(&k, out, name, &n);
                assert_non_null(got);
            }
            same(out, got, want[i].at, n, factor, tolerance);
        }
    }
}

#endif
