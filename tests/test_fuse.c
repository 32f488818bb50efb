// Fusion: values stay exactly, the number of kernels does not grow with depth, bytes stay near the
// hand-derived bound.
#include "tests/support.h"
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WITH_ARENA(arena)                                                                                    \
    Arena arena;                                                                                             \
    arena_init(&arena, 0);                                                                                   \
    jmp_buf out_of_memory;                                                                                   \
    arena.fail = &out_of_memory;                                                                             \
    assert_int_equal(setjmp(out_of_memory), 0)

static void run_until(Module *m, const PassOptions *o, const char *last) {
    typedef void Step(Module *, const PassOptions *);
    static const struct {
        const char *name;
        Step *pass;
    } steps[] = {
#define PASS(name, doc) {#name, pass_##name},
#include "passes/pipeline.def"
    };
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        steps[i].pass(m, o);
        ir_verify(m, steps[i].name);
        if (!strcmp(steps[i].name, last))
            return;
    }
}

// What the printers of kernels rely on.
static void check_kernel(const Module *m, const Func *f) {
    AxisId rows[MAX_RANK];
    for (uint32_t r = 1; r < f->nodes.n; r++) {
        const Node *n = &f->nodes.at[r];
        OpClass c = op_info[n->op].cls;
        int over = 0;
        assert_true(c == CLASS_MAP || c == CLASS_REDUCE || c == CLASS_VIEW || n->op == OP_gather ||
                    n->op == OP_input || n->op == OP_const);
        for (int i = 0; i < n->n_in; i++) {
            const Node *in = &f->nodes.at[node_in(f, r, i)];
            if (op_info[in->op].cls == CLASS_REDUCE) // nothing follows a sum over rows
                for (int k = 0; k < in->n_ax; k++)
                    assert_int_not_equal(m->axes.at[in->ax[k]].kind, AXIS_ROW);
        }
        for (int i = 0; c == CLASS_REDUCE && i < n->n_ax; i++)
            over += m->axes.at[n->ax[i]].kind == AXIS_ROW;
        if (over) { // all rows
            assert_int_equal(over, f->n_row_axes);
            assert_int_equal(type_rows(m, &f->nodes.at[node_in(f, r, 0)].type, rows), over);
        }
        for (int i = 0; c == CLASS_VIEW && n->op != OP_one_hot && i < n->n_ax; i++)
            if (n->ax[i] != AXIS_NONE && n->op != OP_iota)
                assert_int_equal(m->axes.at[n->ax[i]].kind, AXIS_SMALL);
        if (n->op == OP_iota)
            assert_int_not_equal(m->axes.at[n->ax[0]].kind, AXIS_ROW);
        if (n->op == OP_gather)
            assert_int_equal(f->nodes.at[node_in(f, r, 0)].op, OP_input);
    }
    for (uint32_t i = 0; f->n_row_axes && i < f->outputs.n; i++) {
        const Node *n = node_at(f, f->outputs.at[i].ref);
        if (!type_rows(m, &n->type, rows))
            assert_int_equal(op_info[n->op].cls, CLASS_REDUCE);
    }
}

static void check_kernels(const Module *m) {
    for (uint32_t i = 0; i < m->funcs.n; i++)
        if (m->funcs.at[i]->is_kernel)
            check_kernel(m, m->funcs.at[i]);
}

static void check_values(const char *model, const char *set, bool fuse) {
    WITH_ARENA(arena);
    Shape shape = {
        .d_model = 12, .n_layer = 3, .n_head = 2, .n_kv_head = 1, .head_dim = 6, .ff = 16, .vocab = 11};
    PassOptions o = test_pass_options();
    o.want_hidden = o.want_logits = true;
    Module *plain = test_trace(&arena, model, shape, 2, 4, set),
           *fused = test_trace(&arena, model, shape, 2, 4, set);
    run_until(plain, &o, "optimizer");
    o.fuse = fuse;
    run_until(fused, &o, "fuse");
    check_kernels(fused);
    for (uint32_t i = 0; i < plain->funcs.n; i++) {
        const Func *a = plain->funcs.at[i], *b = module_find_func(fused, a->name);
        TestEnv ea, eb;
        assert_non_null(b);
        assert_int_equal(a->outputs.n, b->outputs.n);
        test_env(&ea, &arena, plain, a, shape.vocab, 5);
        test_env(&eb, &arena, fused, a, shape.vocab, 5);
        Tensor *x = test_eval(&arena, plain, a, &ea), *y = test_eval(&arena, fused, b, &eb);
        for (uint32_t k = 0; k < a->outputs.n; k++)
            if (test_error(plain, &y[k], &x[k], 1e-12) != 0)
                fail_msg("%s %s: %s of %s changed by %g", model, set ? set : "", a->outputs.at[k].name,
                         a->name, test_error(plain, &y[k], &x[k], 1e-12));
        for (uint32_t r = 1; r < b->nodes.n; r++) {
            OpClass c = op_info[b->nodes.at[r].op].cls;
            bool fixed = b->nodes.at[r].op == OP_constant; // its operands are tables
            for (int k = 0; k < b->nodes.at[r].n_in && !fixed; k++)
                if (c == CLASS_MAP ||
                    c == CLASS_REDUCE) // only what feeds a constant may stay outside of kernels
                    assert_int_not_equal(b->nodes.at[node_in(b, r, k)].op, OP_call);
        }
    }
    arena_free(&arena);
}

// Sums over some of the rows, over axes of all kinds, positions without `constant`, computed ids and values
// without rows; fused and not.
static Module *corners(Arena *arena) {
    Module *m = module_new(arena, "corners");
    AxisId b = module_axis(m, "b", AXIS_ROW, 3), s = module_axis(m, "s", AXIS_ROW, 4),
           n = module_axis(m, "n", AXIS_SMALL, 2), d = module_axis(m, "d", AXIS_WIDE, 5),
           v = module_axis(m, "v", AXIS_WIDE, 7);
    Func *f = module_func(m, "eval");
    Builder k = {.m = m, .f = f, .layer = -1};
    Param w = {.name = "w", .trained = true, .owner = -1, .role = ""}, p = w;
    w.file = w.type = type_make(m, DT_F32, 2, (AxisId[]){v, d});
    p.name = "p";
    p.file = p.type = type_make(m, DT_F32, 2, (AxisId[]){n, d});
    vec_push(arena, &m->params, w);
    vec_push(arena, &m->params, p);
    Type tx = type_make(m, DT_F32, 3, (AxisId[]){b, s, d}), ti = type_make(m, DT_I32, 2, (AxisId[]){b, s});
    Ref x = ir_input(&k, "x", tx), ids = ir_input(&k, "ids", ti);
    Ref e =
        ir_gather(&k, ir_param(&k, 0),
                  ir_cast(&k, ir_floor(&k, ir_mul(&k, ir_cast(&k, ids, DT_F32), ir_const(&k, 0.5))), DT_I32));
    Ref at = ir_mul(&k, ir_iota(&k, s), ir_exp(&k, ir_neg(&k, ir_iota(&k, d)))); // [s,d]
    Ref y = ir_tanh(&k, ir_add(&k, ir_mul(&k, x, at), e));                       // [b,s,d]
    Ref z = ir_mul(&k, y, ir_exp(&k, ir_param(&k, 1)));                          // [b,s,n,d]
    Ref over_b = ir_reduce(&k, OP_sum, ir_mul(&k, z, z), 1, &b);                 // [s,n,d]
    Ref back = ir_mul(&k, y, ir_reduce(&k, OP_sum, ir_sin(&k, over_b), 1, &n));  // [b,s,d] again
    Ref mean = ir_reduce(&k, OP_rmax, ir_reduce(&k, OP_sum, ir_param(&k, 1), 1, &d), 1, &n);
    const struct {
        const char *name;
        Ref ref;
    } out[] = {{"over_b", over_b},
               {"over_s_d", ir_reduce(&k, OP_sum, back, 2, (AxisId[]){d, s})},
               {"all", ir_reduce(&k, OP_sum, z, 4, (AxisId[]){n, b, d, s})},
               {"of_all", ir_exp(&k, ir_neg(&k, ir_reduce(&k, OP_sum, y, 3, (AxisId[]){d, s, b})))},
               {"back", ir_mul(&k, back, mean)},
               {"stop", ir_stop_grad(&k, back)}};
    for (size_t i = 0; i < COUNT_OF(out); i++)
        vec_push(arena, &f->outputs, ((NamedRef){out[i].name, out[i].ref}));
    return m;
}

static void corners_stay(void **state) {
    (void)state;
    for (int fuse = 0; fuse < 2; fuse++) {
        WITH_ARENA(arena);
        Module *plain = corners(&arena), *fused = corners(&arena);
        PassOptions o = test_pass_options();
        o.fuse = fuse;
        pass_fuse(fused, &o);
        ir_verify(fused, "fuse");
        check_kernels(fused);
        TestEnv e;
        Func *a = plain->funcs.at[0], *b = module_find_func(fused, "eval");
        test_env(&e, &arena, plain, a, 7, 5);
        Tensor *x = test_eval(&arena, plain, a, &e), *y = test_eval(&arena, fused, b, &e);
        for (uint32_t k = 0; k < a->outputs.n; k++)
            if (test_error(plain, &y[k], &x[k], 1e-12) > 1e-14)
                fail_msg("%s changed by %g", a->outputs.at[k].name, test_error(plain, &y[k], &x[k], 1e-12));
        arena_free(&arena);
    }
}

static void values_stay(void **state) {
    (void)state;
    for (int fuse = 0; fuse < 2; fuse++) {
        check_values("pre_ln", NULL, fuse);
        check_values("hc", NULL, fuse);
        check_values("hc", "hc.mixing=none", fuse);
        check_values("hc", "hc.dynamic=false", fuse);
        check_values("hc", "hc.collapse=mean", fuse);
        check_values("hc", "hc.readout=norm_collapse", fuse);
        check_values("hc", "hc.streams=1", fuse);
    }
}

typedef struct Traffic {
    int kernels;  // distinct
    double bytes; // of row kernels of "micro", a token
} Traffic;

static Traffic traffic(Arena *arena, const char *model, Shape shape, Dtype compute) {
    Module *m = test_trace(arena, model, shape, 8, 2048, NULL);
    PassOptions o = test_pass_options();
    o.compute = compute;
    run_until(m, &o, "precision");
    Traffic t = {0};
    bool *used = arena_alloc(arena, m->funcs.n);
    for (uint32_t i = 0; i < m->funcs.n; i++) {
        const Func *f = m->funcs.at[i];
        for (uint32_t r = 1; r < f->nodes.n; r++) {
            if (f->nodes.at[r].op != OP_call || !strcmp(f->name, "eval"))
                continue;
            const Func *k = m->funcs.at[f->nodes.at[r].k];
            KernelCost c = cost_kernel(m, k);
            double rows = 1; // a token
            for (int a = 2; a < k->n_row_axes; a++)
                rows *= m->axes.at[k->row_axes[a]].size;
            if (!strcmp(f->name, "micro"))
                t.bytes += rows * (c.read_bytes + c.write_bytes);
            t.kernels += !used[f->nodes.at[r].k];
            used[f->nodes.at[r].k] = true;
        }
    }
    return t;
}

// Rows of d that a boundary must move, 8 ff for SwiGLU, 4 (q + k) for RoPE: docs/figures.md.
static double bound(const char *model, Shape shape, double bytes) {
    double d = shape.d_model, l = shape.n_layer, ff = 16 * ceil(ceil(8 * d / 3) / 16);
    double rows = !strcmp(model, "hc") ? 2 + 10 * (2 * l - 1) + 7 + 3 + 12 + 15 * (2 * l - 2) + 9
                                       : 2 + 4 * (2 * l - 1) + 4 + 3 + 4 * 2 * l;
    return bytes * (rows * d + l * (8 * ff + 8 * d));
}

static void depth_is_rolled_up(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int budget;
    } cases[] = {{"pre_ln", 18}, {"hc", 26}};
    static const int32_t depths[] = {4, 8, 16, 70};
    for (size_t c = 0; c < COUNT_OF(cases); c++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            int first = 0;
            for (size_t d = 0; d < COUNT_OF(depths); d++) {
                WITH_ARENA(arena);
                Shape shape = {.d_model = 640, .n_layer = depths[d], .n_head = 16, .vocab = 50280};
                Traffic t = traffic(&arena, cases[c].model, shape, bf16 ? DT_BF16 : DT_F32);
                double ratio = t.bytes / bound(cases[c].model, shape, bf16 ? 2 : 4);
                print_message("%-8s %-4s %2d layers: %2d kernels, %9.0f bytes a token, %.4f of the bound\n",
                              cases[c].model, bf16 ? "bf16" : "f32", depths[d], t.kernels, t.bytes, ratio);
                first = first ? first : t.kernels;
                assert_int_equal(t.kernels, first);
                assert_true(t.kernels <= cases[c].budget);
                if (depths[d] >= 16)
                    assert_true(ratio <= 1.05); // the bound leaves out f32 coefficients
                arena_free(&arena);
            }
        }
}

// tests/golden/traffic.tsv: a lost fusion is a difference there. DEPTHBENCH_BLESS=1 writes it anew.
static void traffic_is_golden(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {{1216, 16}, {896, 32}, {640, 70}};
    static const char *const models[] = {"pre_ln", "hc"};
    WITH_ARENA(arena);
    Text t = {.arena = &arena};
    text_add(&t, "model\tshape\tdtype\tkernels\tbytes_per_token\tof_bound\n");
    for (size_t i = 0; i < COUNT_OF(models) * COUNT_OF(shapes) * 2; i++) {
        const int32_t *s = shapes[i / 2 % COUNT_OF(shapes)];
        const char *model = models[i / 2 / COUNT_OF(shapes)];
        Shape shape = {.d_model = s[0], .n_layer = s[1], .n_head = 16, .vocab = 50280};
        Traffic x = traffic(&arena, model, shape, i % 2 ? DT_BF16 : DT_F32);
        text_add(&t, "%s\t400m-L%d\t%s\t%d\t%.0f\t%.4f\n", model, s[1], i % 2 ? "bf16" : "f32", x.kernels,
                 x.bytes, x.bytes / bound(model, shape, i % 2 ? 2 : 4));
    }
    const char *path = SOURCE_DIR "/tests/golden/traffic.tsv";
    FILE *f = fopen(path, getenv("DEPTHBENCH_BLESS") ? "w+" : "r");
    char *want = arena_alloc(&arena, 1 << 16);
    assert_non_null(f);
    if (getenv("DEPTHBENCH_BLESS")) {
        fputs(t.at, f);
        rewind(f);
    }
    want[fread(want, 1, (1 << 16) - 1, f)] = 0;
    fclose(f);
    assert_string_equal(t.at, want);
    arena_free(&arena);
}

static void literals_become_scalars(void **state) {
    (void)state;
    WITH_ARENA(arena);
    Module *m = module_new(&arena, "scalars");
    AxisId s = module_axis(m, "s", AXIS_ROW, 4), d = module_axis(m, "d", AXIS_WIDE, 8), both[] = {s, d};
    Func *f = module_func(m, "eval");
    Builder b = {.m = m, .f = f, .layer = -1};
    Param p = {.name = "w", .trained = true, .owner = -1, .role = ""};
    p.file = p.type = type_make(m, DT_F32, 2, (AxisId[]){d, module_axis(m, "e", AXIS_WIDE, 8)});
    vec_push(&arena, &m->params, p);
    Ref x = ir_input(&b, "x", type_make(m, DT_F32, 2, both)), w = ir_param(&b, 0);
    for (int i = 0; i < 3; i++) { // y = (scale x) . w, with a scale of its own each time
        Ref y = ir_dot(&b, ir_mul(&b, x, ir_const(&b, 1.5 + i)), w);
        x = ir_rename(&b, y, module_find_axis(m, "e"), d);
    }
    vec_push(&arena, &f->outputs, ((NamedRef){"y", x}));
    PassOptions o = test_pass_options();
    pass_fuse(m, &o);
    ir_verify(m, "fuse");
    int kernels = 0;
    for (uint32_t i = 0; i < m->funcs.n; i++)
        kernels += m->funcs.at[i]->is_kernel;
    assert_int_equal(kernels, 1);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_stay),
        cmocka_unit_test(corners_stay),
        cmocka_unit_test(depth_is_rolled_up),
        cmocka_unit_test(traffic_is_golden),
        cmocka_unit_test(literals_become_scalars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
