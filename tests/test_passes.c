// The graph passes: gradients of models against finite differences, simplification keeps values and
// makes equal algebra equal.
#include "tests/support.h"
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const Shape micro_shape = {
    .d_model = 8, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .head_dim = 6, .ff = 16, .vocab = 11};

static void gradients_of_models(void **state) {
    (void)state;
    test_gradients("pre_ln", micro_shape, NULL);
    test_gradients("hc", micro_shape, NULL);
    test_gradients("hc", micro_shape, "hc.mixing=none");
    test_gradients("hc", micro_shape, "hc.dynamic=false");
    test_gradients("hc", micro_shape, "hc.readout=norm_collapse");
    test_gradients("hc", micro_shape, "hc.streams=2");
}

// ---- Gradients of slices: many, of matrices along any axis, overlapping, with gaps

static const char slice_path[] = BINARY_DIR "/slices.lua";
static const char *const slices[][2] = {
    {"80 elements", "local w = weight({L}) for i = 0, 79 do y = y * (1 + 0.1 * db.tanh(w:slice(L, i))) end"},
    {"80 rows of a table", "local w = weight({L, d}) for i = 0, 79 do y = y + 0.1 * w:slice(L, i) end"},
    {"some rows", "local w = weight({f, d}) y = y + w:slice(f, 1) * w:slice(f, 4)"},
    {"all rows", "local w = weight({half, d}) for i = 0, 3 do y = y + i * w:slice(half, i) end"},
    {"columns", "local w = weight({d, f}) y = y + w:slice(f, 1) * w:slice(f, 4)"},
    {"runs of rows", "y = y * y:dot(weight({f, d}):slice(f, 3, half)):mean(half)"},
    {"runs of columns", "y = y * y:slice(d, 1, half):dot(weight({f, d}):slice(d, 2, half)):mean(f)"},
    {"rows and columns",
     "local w = weight({f, d}) y = y + w:slice(f, 1) * w:slice(d, 2):mean(f) * w:slice(d, 0, half):mean(f, half)"},
    {"runs that overlap",
     "local w = weight({d}) y = y * (w:slice(d, 1, half) * w:slice(d, 3, half)):mean(half) * w:slice(d, 4)"},
    {"elements of rows",
     "local w = weight({f, d}) y = y * w:slice(f, 2):slice(d, 3) * w:slice(d, 4):slice(f, 1)"},
    {"a mean of a matrix", "y = y * (1 + weight({f, d}):mean(f, d))"},
    {"the first of three axes", "y = y + (y:dot(weight({half, f, d}):slice(half, 1))):mean(f)"},
    {"the second of three axes", "y = y + (y:dot(weight({f, half, d}):slice(half, 2))):mean(f)"},
    {"the last of three axes", "y = y + (y:dot(weight({f, d, half}):slice(half, 3))):mean(f)"},
    {"small and wide axes alike",
     "local w, u = weight({a, d}), weight({half, d}) for i = 0, 6 do y = y + i * w:slice(a, i) end "
     "for i = 0, 6 do y = y * (1 + 0.1 * y:slice(d, i)) end y = y * u:slice(half, 1)"},
};

static void gradients_of_slices(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(slices); i++) {
        FILE *f = fopen(slice_path, "w");
        assert_non_null(f);
        fprintf(f,
                "local db, bb = require \"depthbench\", require \"backbone\"\n"
                "local d, f = bb.d, db.axis \"f\"\n"
                "local L, half = db.axis(\"L\", \"wide\", 80), db.axis(\"half\", \"wide\", 4)\n"
                "local a, n = db.axis(\"a\", \"small\", 7), 0\n"
                "local function weight(axes) n = n + 1 return db.weight(\"w\" .. n, axes, db.normal(1)) end\n"
                "return db.model(function(ids, targets)\n"
                "  local y = bb.embed(ids)\n  %s\n  return bb.loss(y, targets)\nend)\n",
                slices[i][1]);
        assert_int_equal(fclose(f), 0);
        print_message("%s\n", slices[i][0]);
        test_gradients(slice_path, micro_shape, NULL);
    }
    remove(slice_path);
}

// ---- Equal algebra becomes the same node

static void equal_algebra(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena, 0);
    jmp_buf out_of_memory;
    arena.fail = &out_of_memory;
    assert_int_equal(setjmp(out_of_memory), 0);
    Module *m = module_new(&arena, "algebra");
    AxisId s = module_axis(m, "s", AXIS_ROW, 4), d = module_axis(m, "d", AXIS_WIDE, 8);
    Func *f = module_func(m, "loss");
    Builder b = {.m = m, .f = f, .layer = -1};
    AxisId both[] = {s, d};
    Ref x = ir_input(&b, "x", type_make(m, DT_F32, 2, both)),
        y = ir_input(&b, "y", type_make(m, DT_F32, 2, both));
    Ref r = ir_input(&b, "r", type_make(m, DT_F32, 1, &s));
    Ref one = ir_const(&b, 1), zero = ir_const(&b, 0), half = ir_cast(&b, x, DT_BF16);
    const Ref pairs[][2] = {
        {ir_mul(&b, x, one), x},
        {ir_add(&b, zero, x), x},
        {ir_mul(&b, x, y), ir_mul(&b, y, x)},
        {ir_reduce(&b, OP_sum, ir_mul(&b, x, r), 1, &d), ir_mul(&b, r, ir_reduce(&b, OP_sum, x, 1, &d))},
        {ir_neg(&b, ir_neg(&b, x)), x},
        {ir_mul(&b, ir_mul(&b, x, r), r), ir_mul(&b, x, ir_mul(&b, r, r))},
        {ir_sub(&b, x, ir_neg(&b, y)), ir_add(&b, y, x)},
        {ir_mul(&b, ir_const(&b, 2), ir_const(&b, 3)), ir_const(&b, 6)},
        {ir_cast(&b, ir_cast(&b, half, DT_F32), DT_BF16), half},
    };
    for (size_t i = 0; i < COUNT_OF(pairs); i++)
        for (int k = 0; k < 2; k++)
            vec_push(&arena, &f->outputs, ((NamedRef){arena_format(&arena, "o%zu.%d", i, k), pairs[i][k]}));
    vec_push(&arena, &f->outputs, ((NamedRef){"rounded", ir_cast(&b, half, DT_F32)}));
    PassOptions o = test_pass_options();
    pass_simplify(m, &o);
    ir_verify(m, "simplify");
    f = m->funcs.at[0];
    for (uint32_t i = 0; i + 1 < f->outputs.n; i += 2)
        if (f->outputs.at[i].ref != f->outputs.at[i + 1].ref)
            fail_msg("pair %u: not the same value", i / 2);
    Ref rounded = f->outputs.at[f->outputs.n - 1].ref; // through bf16 and back is not x
    assert_int_equal(node_at(f, rounded)->op, OP_cast);
    arena_free(&arena);
}

static void dots_merge(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena, 0);
    jmp_buf out_of_memory;
    arena.fail = &out_of_memory;
    assert_int_equal(setjmp(out_of_memory), 0);
    Module *m = test_trace(&arena, "pre_ln", micro_shape, 2, 4, NULL);
    PassOptions o = test_pass_options();
    pass_simplify(m, &o);
    pass_autodiff(m, &o);
    pass_expand(m, &o);
    pass_simplify2(m, &o);
    Func *f = module_find_func(m, "micro");
    int dots = 0, heads = 0;
    for (uint32_t i = 1; i < f->nodes.n; i++) {
        dots += f->nodes.at[i].op == OP_dot;
        heads += f->nodes.at[i].op == OP_head_loss;
    }
    assert_int_equal(dots, 2 * 4 * 3); // qkv, out, gate+up, down: forward, input and weight gradients
    assert_int_equal(heads, 0);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_models),
        cmocka_unit_test(gradients_of_slices),
        cmocka_unit_test(equal_algebra),
        cmocka_unit_test(dots_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
