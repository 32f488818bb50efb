// The whole road: script, passes, kernels in C, host. Losses and gradients of small models against the
// evaluator on the graph before fusion; a whole training step against the plain machine; the same bits for
// any number of threads.
#include "tests/plan_host.h"

static const Shape shapes[] = {
    {.name = "even", .d_model = 32, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .ff = 48, .vocab = 50},
    {.name = "odd", .d_model = 24, .n_layer = 2, .n_head = 4, .ff = 20, .vocab = 37},
};
enum { BATCH = 2, SEQ = 70 };

static void run_model(const char *model, Shape shape) {
    Kept kept = {.pass = "simplify2"};
    Module *m = test_trace(&arena, model, shape, BATCH, SEQ, NULL);
    PassOptions o = model_options(&kept, DT_F32);
    Plan *plan;
    o.printer = host_printer;
    must(pipeline_run(m, &o, &plan));
    check_host(m, plan, "micro", kept.micro, 3e-5);
    check_host(m, plan, "eval", kept.eval, 1e-5);
}

static void test_pre_ln(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        run_model("pre_ln", shapes[i]);
}

static void test_hc(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        run_model("hc", shapes[i]);
}

// In bf16 the machine rounds where the plan does, inside of the head too; what is left is the order of sums
// and the few values that it tips to the other side.
static void test_bf16(void **state) {
    static const char *const models[] = {"pre_ln", "hc"};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Kept kept = {.pass = "simplify2"};
        Module *m = test_trace(&arena, models[i], shapes[0], BATCH, SEQ, NULL);
        PassOptions o = model_options(&kept, DT_BF16);
        Plan *plain, *plan;
        must(pipeline_run(m, &o, &plain));
        o.printer = host_printer;
        must(plan_build(m, &o, &plan));
        const Func *micro = module_find_func(m, "micro");
        TestEnv env = bind(m, micro);
        Machine k = machine_open(&arena, m, plain);
        bind_machine(&k, &env, "micro");
        machine_run(&k, "micro", 0);
        Exec *e = host_open(plan, 2);
        int32_t program = plan_program(plan, "micro");
        host_bind(e, plan, &env, program);
        must(exec_run(e, program, 0));
        for (uint32_t j = 0; j < micro->outputs.n; j++) {
            const char *name = micro->outputs.at[j].name;
            int64_t n = type_count(m, &node_at(micro, micro->outputs.at[j].ref)->type);
            double *want = machine_output(&k, m, name, "micro", n);
            same(name, host_output(e, m, name, program, n), want, n, 1, 3e-2);
        }
        exec_close(e);
        teardown(state);
        setup(state);
    }
}

// ---- A training step.
static const struct {
    const char *name;
    double value;
} rates[] = {{"lr", 0.01}, {"bias1", 0.1}, {"bias2", 0.05}};

static void machine_step(Machine *k, const TestEnv *env) {
    bind_machine(k, env, "micro");
    machine_run(k, "micro", 0);
    machine_run(k, "micro", 1);
    for (size_t i = 0; i < COUNT_OF(rates); i++) {
        const PlanIo *io = plan_io(k->plan, rates[i].name, plan_program(k->plan, "update"));
        machine_put(k, k->plan->views.at[io->view].buffer, 0, rates[i].value);
    }
    machine_run(k, "update", 0);
}

static void host_step(Exec *e, const Plan *plan, const TestEnv *env) {
    int32_t micro = plan_program(plan, "micro"), update = plan_program(plan, "update");
    host_bind(e, plan, env, micro);
    must(exec_run(e, micro, 0));
    must(exec_run(e, micro, 1));
    for (size_t i = 0; i < COUNT_OF(rates); i++)
        must(exec_write(e, rates[i].name, update, &(float){(float)rates[i].value}, 1));
    must(exec_run(e, update, 0));
}

// Parameters and moments of both after the step. The step of AdamW is near lr whatever the gradient's size,
// so a gradient that is zero but for rounding may go either way: at most lr apart.
static void compare_state(Exec *e, Machine *k, const Module *m) {
    static const struct {
        ParamPart part;
        ArenaId arena;
        double tolerance;
    } parts[] = {{PART_VALUE, ARENA_PARAMS, 2e-3},
                 {PART_EXP_AVG, ARENA_EXP_AVG, 1e-4},
                 {PART_EXP_AVG_SQ, ARENA_EXP_AVG_SQ, 1e-4}};
    for (uint32_t i = 0; i < k->plan->params.n; i++)
        for (size_t part = 0; part < COUNT_OF(parts); part++) {
            const PlanBuffer *b = &k->plan->buffers.at[k->plan->params.at[i].buffer];
            int64_t n = type_count(m, &m->params.at[i].type);
            float *file = arena_alloc(&arena, (size_t)n * sizeof *file);
            double *got = arena_alloc(&arena, (size_t)n * sizeof *got),
                   *want = arena_alloc(&arena, (size_t)n * sizeof *want);
            must(exec_param_read(e, (int32_t)i, parts[part].part, file));
            for (int64_t j = 0; j < n; j++) {
                float value;
                memcpy(&value, k->mem[parts[part].arena] + b->offset + (size_t)j * 4, 4);
                want[j] = (double)value;
                got[canonical_index(m, &m->params.at[i], j)] = (double)file[j];
            }
            same(b->name, got, want, n, 1, parts[part].tolerance);
        }
}

static void test_step(void **state) {
    static const char *const models[] = {"pre_ln", "hc"};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Kept kept = {.pass = "simplify2"};
        Module *m = test_trace(&arena, models[i], shapes[1], BATCH, SEQ, NULL);
        PassOptions o = model_options(&kept, DT_F32);
        Plan *plain, *plan;
        o.limits.max_strips = 32;
        must(pipeline_run(m, &o, &plain));
        o.printer = host_printer;
        must(plan_build(m, &o, &plan));
        TestEnv env = bind(m, module_find_func(m, "micro"));
        Machine k = machine_open(&arena, m, plain);
        machine_step(&k, &env);
        Exec *e = host_open(plan, 2);
        host_step(e, plan, &env);
        compare_state(e, &k, m);
        float norm, ok;
        int64_t one;
        must(exec_read(e, "grad_norm", plan_program(plan, "update"), &norm, 1));
        must(exec_read(e, "ok", plan_program(plan, "update"), &ok, 1));
        double *want = machine_read(&k, "grad_norm", "update", &one);
        assert_true(ok == 1 && fabs((double)norm - *want) < 1e-5 * *want);
        exec_close(e);
        teardown(state);
        setup(state);
    }
}

// Everything a step leaves behind, bit by bit.
static void test_threads(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 7};
    Kept kept = {.pass = "simplify2"};
    Module *m = test_trace(&arena, "hc", shapes[0], BATCH, SEQ, NULL);
    PassOptions o = model_options(&kept, DT_F32);
    Plan *plan;
    float *first[512] = {NULL};
    o.printer = host_printer;
    o.limits.max_strips = 32;
    must(pipeline_run(m, &o, &plan));
    assert_in_range(plan->params.n, 1, COUNT_OF(first));
    TestEnv env = bind(m, module_find_func(m, "micro"));
    for (size_t t = 0; t < COUNT_OF(threads); t++) {
        Exec *e = host_open(plan, threads[t]);
        host_step(e, plan, &env);
        for (uint32_t i = 0; i < plan->params.n; i++) {
            size_t n = (size_t)type_count(m, &m->params.at[i].type);
            float *values = arena_alloc(&arena, n * sizeof *values);
            must(exec_param_read(e, (int32_t)i, PART_VALUE, values));
            first[i] = first[i] ? first[i] : values;
            assert_memory_equal(values, first[i], n * sizeof *values);
        }
        exec_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pre_ln, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hc, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bf16, setup, teardown),
        cmocka_unit_test_setup_teardown(test_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
