// Random programs: the whole pipeline, fused and unfused, against the evaluator on the graph before fusion.
// DEPTHBENCH_SEEDS=FIRST,COUNT runs others on the plain machine, DEPTHBENCH_HOST_SEEDS=FIRST,COUNT on the
// host.
#include "tests/plan_host.h"
#include "tests/random_program.h"

static void run_seed(uint64_t seed, bool fuse, Dtype compute) {
    Kept kept = {.pass = "simplify2"};
    Module *m =
        random_module(&arena, (RandomOptions){.seed = seed, .n_ops = 4 + (int)(seed % 28), .wild = seed % 2});
    PassOptions o = model_options(&kept, compute);
    Plan *plan;
    o.fuse = fuse;
    o.limits.head_chunk_bytes = 4 * 11 * (int64_t)(1 + seed % 7);
    ir_verify(m, "random");
    Status s = pipeline_run(m, &o, &plan);
    assert_int_equal(s.code, 0);
    bool half = compute == DT_BF16;
    check_run(m, plan, "micro", half ? module_find_func(m, "micro") : kept.micro, half ? 0.2 : 1e-4);
    check_run(m, plan, "eval", half ? module_find_func(m, "eval") : kept.eval, half ? 0.02 : 1e-5);
}

// Kernels in C take their time to compile, so fewer of these.
static void run_on_host(uint64_t seed) {
    Kept kept = {.pass = "simplify2"};
    Module *m =
        random_module(&arena, (RandomOptions){.seed = seed, .n_ops = 4 + (int)(seed % 28), .wild = seed % 2});
    PassOptions o = model_options(&kept, DT_F32);
    Plan *plan;
    o.printer = host_printer;
    o.limits.head_chunk_bytes = 4 * 11 * (int64_t)(1 + seed % 7);
    must(pipeline_run(m, &o, &plan));
    check_host(m, plan, "micro", kept.micro, 1e-4);
    check_host(m, plan, "eval", kept.eval, 1e-4);
}

static void seeds(const char *variable, unsigned long *first, unsigned long *count) {
    const char *text = getenv(variable);
    if (text)
        assert_int_equal(sscanf(text, "%lu,%lu", first, count), 2);
}

static void test_random(void **state) {
    unsigned long first = 1, count = 40;
    seeds("DEPTHBENCH_SEEDS", &first, &count);
    for (unsigned long seed = first; seed < first + count; seed++)
        for (int mode = 0; mode < 3; mode++) {
            print_message("seed %lu %s\n", seed, mode == 0 ? "fused" : mode == 1 ? "unfused" : "bf16");
            run_seed(seed, mode != 1, mode == 2 ? DT_BF16 : DT_F32);
            teardown(state);
            setup(state);
        }
}

// Seeds that once failed. 401: kernels that differ in how often they use one literal.
static void test_known(void **state) {
    static const uint64_t known[] = {401};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        run_seed(known[i], true, DT_F32);
        teardown(state);
        setup(state);
    }
}

static void test_random_host(void **state) {
    unsigned long first = 1, count = 3;
    seeds("DEPTHBENCH_HOST_SEEDS", &first, &count);
    for (unsigned long seed = first; seed < first + count; seed++) {
        print_message("seed %lu on the host\n", seed);
        run_on_host(seed);
        teardown(state);
        setup(state);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_random, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_known, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_random_host, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
