// A plan on the host target, held against the evaluator.
#ifndef DEPTHBENCH_TESTS_PLAN_HOST_H
#define DEPTHBENCH_TESTS_PLAN_HOST_H
#include "codegen/codegen.h"
#include "runtime/exec.h"
#include "tests/plan_check.h"

static const KernelPrinter host_printer = {codegen_c_row, codegen_c_finish, codegen_c_scatter,
                                           codegen_c_attention};

static void must(Status s) {
    if (s.code)
        fail_msg("%d: %s", s.code, s.text);
}

// Index in canonical order of element i in file order.
static int64_t canonical_index(const Module *m, const Param *p, int64_t i) {
    int64_t at = 0;
    for (int a = p->file.rank - 1; a >= 0; a--) {
        int64_t size = m->axes.at[p->file.axis[a]].size;
        at += i % size * interp_stride(m, &p->type, p->file.axis[a]);
        i /= size;
    }
    return at;
}

static void host_bind(Exec *e, const Plan *plan, const TestEnv *b, int32_t program) {
    for (uint32_t i = 0; i < plan->params.n; i++) {
        const Param *p = &b->m->params.at[i];
        int64_t n = type_count(b->m, &p->type);
        float *file = arena_alloc(&arena, (size_t)n * sizeof *file);
        for (int64_t j = 0; j < n; j++)
            file[j] = (float)b->param[i][canonical_index(b->m, p, j)];
        must(exec_param_write(e, (int32_t)i, PART_VALUE, file));
    }
    must(exec_refresh_copies(e));
    for (uint32_t i = 0; i < b->names.n; i++) {
        const PlanIo *io = plan_io(plan, b->names.at[i], program);
        int64_t n = io_count(io);
        float *values = arena_alloc(&arena, (size_t)n * sizeof *values);
        int32_t *whole = arena_alloc(&arena, (size_t)n * sizeof *whole);
        for (int64_t j = 0; io && j < n; j++) {
            values[j] = (float)b->inputs.at[i][j];
            whole[j] = (int32_t)b->inputs.at[i][j];
        }
        if (io)
            must(exec_write(e, io->name, program, io->dtype == DT_I32 ? (void *)whole : (void *)values, n));
    }
}

// Values of an output of the function, in canonical order.
static double *host_output(Exec *e, const Module *m, const char *name, int32_t program, int64_t n) {
    float *got = arena_alloc(&arena, (size_t)n * sizeof *got);
    double *out = arena_alloc(&arena, (size_t)n * sizeof *out);
    int32_t k = strncmp(name, "grad.", 5) ? -1 : module_param(m, name + 5);
    if (k < 0)
        must(exec_read(e, name, program, got, n));
    else
        must(exec_param_read(e, k, PART_GRAD, got));
    for (int64_t j = 0; j < n; j++)
        out[k < 0 ? j : canonical_index(m, &m->params.at[k], j)] = (double)got[j];
    return out;
}

static Exec *host_open(const Plan *plan, int threads) {
    DriverOptions options = {.threads = threads, .cache_dir = BINARY_DIR "/test-kernels"};
    Exec *e;
    must(exec_open(plan, driver_find("host"), &options, &e));
    return e;
}

// check_run on the host: two micro-batches of one program against the evaluator.
static void check_host(Module *m, const Plan *plan, const char *name, const Func *graph, double tolerance) {
    int32_t program = plan_program(plan, name);
    TestEnv env = bind(m, graph);
    const Tensor *want = test_eval(&arena, m, graph, &env);
    Exec *e = host_open(plan, 2);
    host_bind(e, plan, &env, program);
    for (int64_t micro = 0; micro < 2; micro++) {
        must(exec_run(e, program, micro));
        for (uint32_t i = 0; i < graph->outputs.n; i++) {
            const char *out = graph->outputs.at[i].name;
            int64_t n = type_count(m, &want[i].type);
            same(out, host_output(e, m, out, program, n), want[i].at, n,
                 strncmp(out, "grad.", 5) ? 1 : (double)micro + 1, tolerance);
        }
    }
    exec_close(e);
}
#endif
