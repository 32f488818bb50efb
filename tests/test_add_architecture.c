// docs/add-an-architecture.md, followed: its script is taken from the page, traced, differentiated, held
// against finite differences, compiled to a plan, and turned back into Pre-LN by its own option.
#include "tests/plan_check.h"

static const Shape micro_shape = {
    .d_model = 8, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .head_dim = 6, .ff = 16, .vocab = 11};
static const char script[] = BINARY_DIR "/my.lua";

// Writes the page's only block of Lua to `script`.
static int take_script(void **state) {
    (void)state;
    char line[512];
    bool inside = false, closed = false;
    FILE *page = fopen(SOURCE_DIR "/docs/add-an-architecture.md", "r"), *out = fopen(script, "w");
    assert_non_null(page);
    assert_non_null(out);
    while (!closed && fgets(line, sizeof line, page)) {
        closed = inside && !strncmp(line, "```", 3);
        if (inside && !closed)
            fputs(line, out);
        inside |= !strncmp(line, "```lua", 6);
    }
    fclose(page);
    assert_int_equal(fclose(out), 0);
    assert_true(closed);
    return 0;
}

static int remove_script(void **state) {
    (void)state;
    return remove(script);
}

static void gradients(void **state) {
    (void)state;
    test_gradients(script, micro_shape, NULL);
    test_gradients(script, micro_shape, "gate.start=1.5");
}

static double loss_of(const char *model, const char *set) {
    Module *m = test_trace(&arena, model, micro_shape, 2, 4, set);
    Func *f = module_find_func(m, "loss");
    TestEnv e;
    test_env(&e, &arena, m, f, micro_shape.vocab, 3);
    // parameters by name, so that both models have the same; gates at their initial value
    for (uint32_t k = 0; k < m->params.n; k++) {
        const Param *p = &m->params.at[k];
        uint64_t seed = 0;
        for (const char *c = p->name; *c; c++)
            seed = seed * 31 + (uint64_t)*c;
        for (int64_t i = 0, n = type_count(m, &p->type); i < n; i++)
            e.param[k][i] = strstr(p->name, "_gate.") ? p->init.value : test_uniform(seed, (uint64_t)i);
    }
    return test_eval(&arena, m, f, &e)[0].at[0];
}

// A gate that is wide open leaves Pre-LN.
static void open_gates_are_pre_ln(void **state) {
    (void)state;
    double pre_ln = loss_of("pre_ln", NULL);
    assert_true(fabs(loss_of(script, "gate.start=40") - pre_ln) < 1e-9 * pre_ln);
    assert_true(fabs(loss_of(script, "gate.start=0") - pre_ln) > 1e-3 * pre_ln);
}

// The whole pipeline, and its plan run by the test's machine.
static void compiles(void **state) {
    (void)state;
    Kept kept = {.pass = "simplify2"};
    PassOptions o = model_options(&kept, DT_F32);
    Plan *plan = NULL;
    int32_t dead[64];
    Module *m = test_trace(&arena, script, micro_shape, 2, 4, NULL);
    assert_int_equal(autodiff_dead_params(m, dead), 0);
    assert_false(m->params.at[module_param(m, "layers.1.ffn_gate.bias")].decay);
    Status s = pipeline_run(m, &o, &plan);
    assert_string_equal(s.text, "");
    check_run(m, plan, "micro", kept.micro, 1e-4);
    check_run(m, plan, "eval", kept.eval, 1e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients),
        cmocka_unit_test_setup_teardown(open_gates_are_pre_ln, setup, teardown),
        cmocka_unit_test_setup_teardown(compiles, setup, teardown),
    };
    return cmocka_run_group_tests(tests, take_script, remove_script);
}
