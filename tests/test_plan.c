// Plans: graphs by hand and the traced models, run on the machine of plan_machine.h and held against the
// evaluator on the graph itself.
#include "tests/plan_check.h"
#include "tests/plan_wrap.h"

static Module *parse(const char *text) {
    Module *m;
    Status s = ir_parse(&arena, text, "test.ir", &m);
    if (s.code)
        fail_msg("%s", s.text);
    s = ir_verify_status(m);
    if (s.code)
        fail_msg("%s", s.text);
    return m;
}

// The plan of a module, its program `name` checked.
static Plan *check_plan(Module *m, const PassOptions *o, const char *name, const Func *graph,
                        double tolerance) {
    Plan *plan;
    Status s = plan_build(m, o, &plan);
    if (s.code)
        fail_msg("%s", s.text);
    check_run(m, plan, name, graph, tolerance);
    return plan;
}

static int count_steps(const Plan *p, StepKind kind, const char *kernel) {
    int n = 0;
    for (uint32_t i = 0; i < p->steps.n; i++) {
        const PlanStep *s = &p->steps.at[i];
        n += s->kind == kind && (!kernel || !strncmp(p->kernels.at[s->kernel].name, kernel, strlen(kernel)));
    }
    return n;
}

// ---- By hand.
#define AXES                                                                                                 \
    "module demo layers 1\n"                                                                                 \
    "axis b row 2\naxis s row 3\naxis h row 4\naxis g row 2\naxis p small 2\naxis n small 3\n"               \
    "axis t small 5\naxis d wide 6\naxis q wide 8\naxis k wide 4\naxis e wide 1\naxis j wide 16\n"           \
    "axis v wide 7\n"

static void test_gemm_geometry(void **state) {
    (void)state;
    static const char *const dots[] = {
        "%x: f32[b,s,d]",
        "^w",
        "f32[b,s,q]", // plain
        "^w",
        "%x: f32[b,s,d]",
        "f32[b,s,q]", // sides exchanged
        "%y: f32[b,s,q]",
        "%x: f32[b,s,d]",
        "f32[q,d]", // weight gradient
        "%x: f32[b,s,d]",
        "%y: f32[b,s,q]",
        "f32[d,q]",
        "%y: f32[b,s,q]",
        "^w",
        "f32[b,s,d]", // input gradient
        "%z: f32[b,s,n,d]",
        "^a",
        "f32[b,s,n,t]", // small axes
        "%z: f32[b,s,n,d]",
        "%c: f32[b,s,n,t]",
        "f32[t,d]",
        "%c: f32[b,s,n,t]",
        "%z: f32[b,s,n,d]",
        "f32[t,d]",
        "%z: f32[b,s,n,d]",
        "^u",
        "f32[b,s,n]", // a vector
        "%z: f32[b,s,n,d]",
        "%r: f32[b,s,n]",
        "f32[d]",
        "^u",
        "^w",
        "f32[q]",
        "%z: f32[b,s,n,d]",
        "^z2",
        "f32[b,s,q]", // two contracted axes
        "%y: f32[b,s,q]",
        "%z: f32[b,s,n,d]",
        "f32[n,q,d]",
    };
    for (size_t i = 0; i < COUNT_OF(dots); i += 3) {
        const char *text = arena_format(
            &arena,
            AXES "param w : f32[q,d] decay trained owner -1 role - init const 0x0p+0\n"
                 "param a : f32[t,d] decay trained owner -1 role - init const 0x0p+0\n"
                 "param u : f32[d] decay trained owner -1 role - init const 0x0p+0\n"
                 "param z2 : f32[n,q,d] decay trained owner -1 role - init const 0x0p+0\n"
                 "\nfunc micro (%s%s%s)\n  %%1 = dot %.*s, %.*s {k=0} : %s\n  return out = %%1\nend\n",
            strchr(dots[i], ':') ? dots[i] : "", strchr(dots[i], ':') && strchr(dots[i + 1], ':') ? ", " : "",
            strchr(dots[i + 1], ':') ? dots[i + 1] : "", (int)strcspn(dots[i], ":"), dots[i],
            (int)strcspn(dots[i + 1], ":"), dots[i + 1], dots[i + 2]);
        Module *m = parse(text);
        PassOptions o = options();
        Plan *p = check_plan(m, &o, "micro", module_find_func(m, "micro"), 1e-5);
        bool split = strstr(dots[i + 1], "z2") || strstr(dots[i + 2], "n,q,d"); // n,q,d: one GEMM for each n
        if (p->steps.n != (split ? 3 : 1))
            fail_msg("dot %s, %s: %u steps", dots[i], dots[i + 1], p->steps.n);
    }
}

#define PARAM(name, type) "param " name " : " type " decay trained owner -1 role - init const 0x0p+0\n"

// Parses a text with the function `name`, wraps its nodes, checks the plan against the function as it was.
static Plan *check_text(const char *text, const char *name, PassOptions o) {
    Module *m = parse(text);
    const Func *graph = module_find_func(m, name);
    wrap_nodes(m, graph);
    pass_schedule(m, &o);
    ir_verify(m, "wrap");
    return check_plan(m, &o, name, graph, 1e-5);
}

// q|k|v as one product over parameters side by side; the gradients of the three are slices of one product
// that goes straight to their places, and what flows back into the product is written in parts.
static void test_merged_weights(void **state) {
    (void)state;
    Plan *p = check_text(
        AXES PARAM("wq", "f32[q,d]") PARAM("wk", "f32[k,d]") PARAM("wv", "f32[k,d]") PARAM(
            "wo", "f32[d,q]") "\n"
                              "func micro (%x: f32[b,s,d])\n"
                              "  %1 = concat.j.q.k.k ^wq, ^wk, ^wv : f32[j,d]\n"
                              "  %2 = dot %x, %1 {k=0} : f32[b,s,j]\n"
                              "  %3 = slice.j.q %2 {k=0} : f32[b,s,q]\n"
                              "  %4 = slice.j.k %2 {k=8} : f32[b,s,k]\n"
                              "  %5 = slice.j.k %2 {k=12} : f32[b,s,k]\n"
                              "  %6 = split.q.h.p.e %3 : f32[b,s,h,p,e]\n"
                              "  %7 = split.k.g.p.e %4 : f32[b,s,g,p,e]\n"
                              "  %8 = split.k.g.p.e %5 : f32[b,s,g,p,e]\n"
                              "  (%9, %10) = attention %6, %7, %8 {f=0x1p-1} : f32[b,s,h,p,e], f32[b,s,h]\n"
                              "  %11 = merge.h.p.e.q %9 : f32[b,s,q]\n"
                              "  %12 = dot %11, ^wo {k=0} : f32[b,s,d]\n"
                              "  %13 = mul %12, %12 : f32[b,s,d]\n"
                              "  %14 = dot %13, ^wo {k=0} : f32[b,s,q]\n"
                              "  %15 = split.q.h.p.e %14 : f32[b,s,h,p,e]\n"
                              "  (%16, %17, %18) = attention_grad %6, %7, %8, %9, %10, %15 {f=0x1p-1} : "
                              "f32[b,s,h,p,e], f32[b,s,g,p,e], f32[b,s,g,p,e]\n"
                              "  %19 = merge.h.p.e.q %16 : f32[b,s,q]\n"
                              "  %20 = merge.g.p.e.k %17 : f32[b,s,k]\n"
                              "  %21 = merge.g.p.e.k %18 : f32[b,s,k]\n"
                              "  %22 = concat.j.q.k.k %19, %20, %21 : f32[b,s,j]\n"
                              "  %23 = dot %22, %x {k=0} : f32[j,d]\n"
                              "  %24 = dot %22, %1 {k=0} : f32[b,s,d]\n"
                              "  %25 = slice.j.q %23 {k=0} : f32[q,d]\n"
                              "  %26 = slice.j.k %23 {k=8} : f32[k,d]\n"
                              "  %27 = slice.j.k %23 {k=12} : f32[k,d]\n"
                              "  %28 = dot %13, %11 {k=0} : f32[d,q]\n"
                              "  return grad.wq = %25\n  return grad.wk = %26\n  return grad.wv = %27\n  "
                              "return grad.wo = %28\n"
                              "  return dx = %24\nend\n",
        "micro", options());
    assert_int_equal(count_steps(p, STEP_GEMM, NULL), 6);
    assert_int_equal(count_steps(p, STEP_LAUNCH, "copy"), 0);
    assert_int_equal(count_steps(p, STEP_LAUNCH, "finish"), 0);
    assert_int_equal(p->steps.n, 9);
}

// Every way a gradient can be produced ends in its place, added up over micro-batches.
static void test_gradients_in_place(void **state) {
    (void)state;
    Plan *p = check_text(
        AXES PARAM("a", "f32[d]") PARAM("c", "f32[]") PARAM("w", "f32[q,d]") PARAM("z", "f32[n,d]")
            PARAM("y", "f32[d]") PARAM("embed", "f32[v,d]")
                PARAM("u", "f32[d]") "\n"
                                     "func micro (%ids: i32[b,s], %x: f32[b,s,d], %n: f32[b,s,n,d])\n"
                                     "  %1 = mul %x, ^a : f32[b,s,d]\n"
                                     "  %2 = sum.b.s %1 : f32[d]\n" // a column sum
                                     "  %3 = mul %x, %1 : f32[b,s,d]\n"
                                     "  %4 = sum.d %3 : f32[b,s]\n"
                                     "  %5 = sum.b.s %4 : f32[]\n"        // a scalar
                                     "  %6 = mul ^w, 0x1p+1 : f32[q,d]\n" // rowless
                                     "  %7 = sum.b.s %n : f32[n,d]\n"
                                     "  %8 = mul %2, 0x1p+1 : f32[d]\n" // of a gradient that others read
                                     "  %9 = gather ^embed, %ids : f32[b,s,d]\n"
                                     "  %10 = mul %9, %1 : f32[b,s,d]\n"
                                     "  %11 = scatter_sum.v %10, %ids : f32[v,d]\n"
                                     "  return grad.a = %2\n  return grad.c = %5\n  return grad.w = %6\n  "
                                     "return grad.z = %7\n  return grad.y = %8\n"
                                     "  return grad.embed = %11\n  return grad.u = ^a\n"
                                     "  return sum = %5\nend\n",
        "micro", options());
    assert_int_equal(count_steps(p, STEP_SORT, NULL), 1);
    const PlanIo *ids = plan_io(p, "ids", 0);
    assert_int_equal(ids->low, 0);
    assert_int_equal(ids->limit, 7);
}

// Views that strides cannot say, parts with two owners, outputs that are inputs or shared.
static void test_copies(void **state) {
    (void)state;
    check_text(
        AXES PARAM("a", "f32[n,d]") PARAM(
            "w",
            "f32[q,d]") "axis m small 3\naxis o small 1\naxis f wide 12\naxis i wide 2\naxis x wide 4\n\n"
                        "func eval (%x: f32[b,s,d], %z: f32[b,s,n,d])\n"
                        "  %1 = slice.n %z {k=1} : f32[b,s,d]\n"
                        "  %2 = dot %1, ^w {k=0} : f32[b,s,q]\n"     // a strided operand
                        "  %3 = slice.d.i %z {k=3} : f32[b,s,n,i]\n" // a small axis that is not dense
                        "  %4 = mul %3, 0x1p+1 : f32[b,s,n,i]\n"
                        "  %5 = concat.f.d.d %x, %1 : f32[b,s,f]\n" // an input, a view
                        "  %6 = mul %1, %x : f32[b,s,d]\n"
                        "  %7 = concat.f.d.d %6, %6 : f32[b,s,f]\n" // a value twice
                        "  %8 = concat.n.1.1.1 %6, %x, %1 : f32[b,s,n,d]\n"
                        "  %9 = rename.n.m %8 : f32[b,s,m,d]\n"
                        "  %10 = concat.f.d.d %x, %x : f32[b,s,f]\n"
                        "  %11 = mul %7, %10 : f32[b,s,f]\n"
                        "  %12 = slice.f.x %11 {k=2} : f32[b,s,x]\n"
                        "  %13 = split.x.p.i %12 : f32[b,s,p,i]\n"
                        "  %14 = mul %13, %13 : f32[b,s,p,i]\n"
                        "  %15 = merge.p.i.x %14 : f32[b,s,x]\n"
                        "  %16 = iota.d : f32[d]\n"
                        "  %17 = exp %16 : f32[d]\n"
                        "  %18 = constant %17 : f32[d]\n"
                        "  %19 = mul %x, %18 : f32[b,s,d]\n"
                        "  return y = %2\n  return a = %4\n  return f = %5\n  return g = %7\n  return h = "
                        "%9\n  return x2 = %x\n"
                        "  return c = %18\n  return d = %18\n  return e = %19\n  return i = %11\n  return j "
                        "= %15\n  return k = %15\nend\n",
        "eval", options());
}

static void test_head_in_chunks(void **state) {
    (void)state;
    const char *text =
        AXES PARAM("u", "f32[v,d]") "\n"
                                    "func micro (%x: f32[b,s,d], %targets: i32[b,s], %inv_tokens: f32[])\n"
                                    "  (%1, %2, %3) = head_loss_grad %x, ^u, %targets, %inv_tokens, 0x1p+0 : "
                                    "f32[b,s], f32[b,s,d], f32[v,d]\n"
                                    "  %4 = sum.b.s %1 : f32[]\n"
                                    "  return loss = %4\n  return dx = %2\n  return grad.u = %3\nend\n"
                                    "\nfunc eval (%x: f32[b,s,d], %targets: i32[b,s], %inv_tokens: f32[])\n"
                                    "  %1 = head_loss %x, ^u, %targets, %inv_tokens : f32[b,s]\n"
                                    "  %2 = sum.b.s %1 : f32[]\n"
                                    "  return loss = %2\nend\n";
    static const int64_t bytes[] = {1, 4 * 7 * 2, 4 * 7 * 4, 1 << 20};
    static const int chunks[] = {6, 3, 2, 1};
    for (size_t i = 0; i < COUNT_OF(bytes); i++) {
        PassOptions o = options();
        o.limits.head_chunk_bytes = bytes[i];
        Module *m = parse(text);
        const Func *micro = module_find_func(m, "micro"), *eval = module_find_func(m, "eval");
        wrap_nodes(m, micro);
        wrap_nodes(m, eval);
        Plan *p = check_plan(m, &o, "micro", micro, 1e-5);
        assert_int_equal(count_steps(p, STEP_GEMM, NULL), chunks[i] * 4);
        check_plan(m, &o, "eval", eval, 1e-5);
        const PlanIo *targets = plan_io(p, "targets", 0);
        assert_true(targets->low == INT32_MIN && targets->limit == 7);
    }
}

// ---- Models.
static const Shape small_shape = {
    .name = "test", .d_model = 8, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .ff = 12, .vocab = 11};

static const char *const models[] = {"pre_ln", "hc"};

// Each node its own kernel: the plan alone.
static void test_models_unfused(void **state) {
    (void)state;
    static const char *const programs[] = {"micro", "eval"};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Module *m = test_trace(&arena, models[i], small_shape, 2, 5, NULL);
        PassOptions o = options();
        o.limits.head_chunk_bytes = 4 * 11 * 4; // four rows
        pass_simplify(m, &o);
        pass_autodiff(m, &o);
        pass_expand(m, &o);
        pass_simplify2(m, &o);
        const Func *graph[2];
        for (size_t j = 0; j < 2; j++) {
            graph[j] = module_find_func(m, programs[j]);
            wrap_nodes(m, graph[j]);
        }
        pass_schedule(m, &o);
        ir_verify(m, "schedule");
        for (size_t j = 0; j < 2; j++)
            check_plan(m, &o, programs[j], graph[j], 1e-4);
    }
}

// The whole pipeline against the graph before it was fused; in bf16 against the last form, which says what is
// rounded.
static void test_models_fused(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++)
        for (int half = 0; half < 2; half++) {
            Kept kept = {.pass = "simplify2"};
            Module *m = test_trace(&arena, models[i], small_shape, 2, 5, NULL);
            PassOptions o = model_options(&kept, half ? DT_BF16 : DT_F32);
            Plan *plan;
            Status s = pipeline_run(m, &o, &plan);
            assert_int_equal(s.code, 0);
            check_run(m, plan, "micro", half ? module_find_func(m, "micro") : kept.micro, half ? 6e-2 : 3e-5);
            check_run(m, plan, "eval", half ? module_find_func(m, "eval") : kept.eval, half ? 1e-3 : 1e-5);
            assert_int_equal(count_steps(plan, STEP_LAUNCH, "copy"), 0);
        }
}

// The optimizer on arenas of two parts, against the evaluator.
static void test_update(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++) {
        Module *m = parse(AXES PARAM(
            "a", "f32[q,d]") "param c : f32[n] nodecay trained owner -1 role - init const 0x0p+0\n");
        PassOptions o = options();
        o.compute = half ? DT_BF16 : DT_F32;
        pass_optimizer(m, &o);
        const Func *graph = module_find_func(m, "update");
        wrap_nodes(m, graph);
        pass_schedule(m, &o);
        Plan *plan;
        Status s = plan_build(m, &o, &plan);
        assert_int_equal(s.code, 0);
        TestEnv env = bind(m, graph);
        const Tensor *want = test_eval(&arena, m, graph, &env);
        Machine k = machine_open(&arena, m, plan);
        bind_machine(&k, &env, "update");
        for (uint32_t i = 0; i < env.names.n; i++) {
            assert_true(!plan_io(plan, env.names.at[i], 0) == !!strchr(env.names.at[i], '.'));
            for (uint32_t j = 0; strchr(env.names.at[i], '.') && j < plan->buffers.n; j++)
                for (int64_t l = 0; l < PLAN_ROW && !strcmp(plan->buffers.at[j].name, env.names.at[i]); l++)
                    machine_put(&k, (int32_t)j, l, env.inputs.at[i][l]);
        }
        machine_run(&k, "update", 0);
        assert_int_equal(graph->outputs.n, half ? 10 : 8);
        for (uint32_t i = 0; i < graph->outputs.n; i++) {
            int64_t n = type_count(m, &want[i].type);
            double *got = arena_alloc(&arena, (size_t)n * sizeof *got);
            for (uint32_t j = 0; j < plan->buffers.n; j++)
                for (int64_t l = 0; !strcmp(plan->buffers.at[j].name, graph->outputs.at[i].name) && l < n;
                     l++)
                    got[l] = machine_get(&k, (int32_t)j, l);
            same(graph->outputs.at[i].name, got, want[i].at, n, 1, 1e-5);
        }
    }
}

// Planned activations against the largest sum of what lives at once, at the shape of 400m-L70.
static void test_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Kept kept = {.pass = ""};
        Shape shape = {
            .name = "400m-L70", .d_model = 640, .n_layer = 70, .n_head = 16, .ff = 1712, .vocab = 50280};
        Module *m = test_trace(&arena, models[i], shape, 8, 2048, NULL);
        PassOptions o = model_options(&kept, DT_BF16);
        o.limits = (Limits){.head_chunk_bytes = 256 << 20, .max_strips = 32};
        Plan *plan;
        Status s = pipeline_run(m, &o, &plan);
        assert_int_equal(s.code, 0);
        assert_null(machine_overlap(plan, &arena));
        const PlanProgram *q = &plan->programs.at[plan_program(plan, "micro")];
        print_message("%s: %d steps, %u kernels, activations %zu bytes, ratio to the largest live sum %.4f\n",
                      models[i], q->n_steps, plan->kernels.n, q->acts_peak,
                      (double)q->acts_peak / (double)q->acts_bound);
        assert_true((double)q->acts_peak <= 1.05 * (double)q->acts_bound);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gemm_geometry, setup, teardown),
        cmocka_unit_test_setup_teardown(test_merged_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gradients_in_place, setup, teardown),
        cmocka_unit_test_setup_teardown(test_copies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_head_in_chunks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_models_unfused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_models_fused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_update, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
