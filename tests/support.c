// Shared by the tests: see support.h.
#include "tests/support.h"
#include <math.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

double test_uniform(uint64_t seed, uint64_t i) {
    uint64_t z = (seed + 1) * 0x9E3779B97F4A7C15u + i * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-52 - 1;
}

Module *test_trace(Arena *arena, const char *model, Shape shape, int32_t batch, int32_t seq,
                   const char *set) {
    char path[512];
    KeyValue kv = {set, set ? strchr(set, '=') + 1 : NULL};
    Status s = shape_complete(&shape);
    assert_string_equal(s.text, "");
    if (strchr(model, '/'))
        snprintf(path, sizeof path, "%s", model);
    else
        snprintf(path, sizeof path, "%s/models/%s.lua", SOURCE_DIR, model);
    LuaOptions o = {.path = path,
                    .models_dir = SOURCE_DIR "/models",
                    .shape = shape,
                    .set = &kv,
                    .n_set = set != NULL,
                    .batch = batch,
                    .seq = seq,
                    .skip_layer = -1};
    LuaResult r;
    s = lua_model(arena, &o, &r);
    if (s.code)
        fail_msg("%s: %s %s", path, s.text, r.messages.at ? r.messages.at : "");
    return r.module;
}

PassOptions test_pass_options(void) {
    return (PassOptions){.beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .weight_decay = 0.1,
                         .clip = 1,
                         .train = true,
                         .fuse = true,
                         .limits = {.head_chunk_bytes = 1 << 20, .max_strips = 32}};
}

static const double *env_param(void *ctx, int32_t k) {
    return ((TestEnv *)ctx)->param[k];
}

static const double *env_input(void *ctx, const char *name) {
    TestEnv *e = ctx;
    for (uint32_t i = 0; i < e->names.n; i++)
        if (!strcmp(e->names.at[i], name))
            return e->inputs.at[i];
    return NULL;
}

Env test_env_of(TestEnv *e) {
    return (Env){e, env_param, env_input};
}

// Norm weights and static coefficients around their initial value, matrices of a size that keeps rows near 1;
// in f32.
static double param_value(const Param *p, int64_t i, double fan_in, uint64_t seed) {
    double u = test_uniform(seed, (uint64_t)i), base = p->init.kind == INIT_CONST ? p->init.value : 0;
    if (p->init.kind == INIT_TABLE)
        base = p->init.table[i];
    double scale = p->init.kind == INIT_NORMAL || base == 0 ? sqrt(3 / fan_in) : 0.25 * fabs(base);
    return (float)(base + scale * u);
}

void test_env(TestEnv *e, Arena *arena, const Module *m, const Func *f, int32_t vocab, uint64_t seed) {
    *e = (TestEnv){.m = m, .arena = arena, .vocab = vocab};
    e->param = arena_alloc(arena, (m->params.n + 1) * sizeof *e->param);
    for (uint32_t k = 0; k < m->params.n; k++) {
        const Param *p = &m->params.at[k];
        int64_t n = type_count(m, &p->type);
        double fan_in = p->type.rank ? m->axes.at[p->type.axis[p->type.rank - 1]].size : 1;
        e->param[k] = arena_alloc(arena, (size_t)n * sizeof(double));
        for (int64_t i = 0; i < n; i++)
            e->param[k][i] = param_value(p, i, fan_in, seed * 1000 + k);
    }
    for (uint32_t i = 1; i < f->nodes.n; i++) {
        const Node *n = &f->nodes.at[i];
        if (n->op != OP_input)
            continue;
        int64_t count = type_count(m, &n->type);
        double *at = arena_alloc(arena, (size_t)count * sizeof *at);
        for (int64_t k = 0; k < count; k++) {
            double u = test_uniform(seed + 77 + i, (uint64_t)k);
            at[k] = n->type.dtype == DT_I32 ? floor((u + 1) / 2 * vocab) : (float)u;
            if (!strncmp(n->name, "exp_avg_sq", 10) || n->type.rank == 0)
                at[k] = fabs(at[k]); // second moments, rates, bias corrections
            if (!strcmp(n->name, "inv_tokens"))
                at[k] = 1.0 / 16;
        }
        vec_push(arena, &e->names, n->name);
        vec_push(arena, &e->inputs, at);
    }
}

Tensor *test_eval(Arena *arena, const Module *m, const Func *f, TestEnv *e) {
    Env env = test_env_of(e);
    Tensor *result = arena_alloc(arena, (f->outputs.n + 1) * sizeof *result);
    Status s = interp_run(arena, m, f, &env, false, result);
    assert_string_equal(s.text, "");
    return result;
}

double test_error(const Module *m, const Tensor *a, const Tensor *b, double floor) {
    double worst = 0, scale = floor;
    int64_t n = type_count(m, &b->type);
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(a->at[i] - b->at[i]);
        worst = d > worst || d != d ? d : worst;
        scale = fmax(scale, fabs(b->at[i]));
    }
    return worst / scale;
}

// The slope of the loss along direction u of parameter k, by central differences.
static double numeric_slope(Arena *arena, const Module *m, const Func *eval, TestEnv *e, int32_t k) {
    double sides[2], h = 1e-5;
    int64_t n = type_count(m, &m->params.at[k].type);
    double *x = e->param[k], *moved = arena_alloc(arena, (size_t)n * sizeof *moved);
    for (int side = 0; side < 2; side++) {
        for (int64_t j = 0; j < n; j++)
            moved[j] = x[j] + (side ? -h : h) * test_uniform(99, (uint64_t)j);
        e->param[k] = moved;
        sides[side] = test_eval(arena, m, eval, e)[0].at[0];
    }
    e->param[k] = x;
    return (sides[0] - sides[1]) / (2 * h);
}

static void check_same(const Module *m, const Func *f, const Tensor *have, const Tensor *want,
                       const char *name) {
    for (uint32_t i = 0; i < f->outputs.n; i++)
        if (!(test_error(m, &have[i], &want[i], 1e-6) < 1e-10))
            fail_msg("%s: %s changed by %g", name, f->outputs.at[i].name,
                     test_error(m, &have[i], &want[i], 1e-6));
}

void test_module_gradients(Arena *arena, Module *m, const char *name, int32_t vocab, uint64_t seed) {
    PassOptions o = test_pass_options();
    TestEnv e;
    pass_simplify(m, &o);
    ir_verify(m, "simplify");
    pass_autodiff(m, &o);
    ir_verify(m, "autodiff");
    Func *f = module_find_func(m, "micro"), *eval = module_find_func(m, "eval");
    test_env(&e, arena, m, f, vocab, seed);
    Tensor *g = test_eval(arena, m, f, &e);
    for (uint32_t i = 0; i < f->outputs.n; i++) {
        if (strncmp(f->outputs.at[i].name, "grad.", 5))
            continue;
        int32_t k = module_param(m, f->outputs.at[i].name + 5);
        double slope = 0;
        for (int64_t j = 0, n = type_count(m, &g[i].type); j < n; j++)
            slope += g[i].at[j] * test_uniform(99, (uint64_t)j);
        double numeric = numeric_slope(arena, m, eval, &e, k);
        if (!(fabs(numeric - slope) <= 1e-6 * fmax(fabs(slope), 1e-2)))
            fail_msg("%s %s: gradient %.9g, finite differences %.9g", name, f->outputs.at[i].name, slope,
                     numeric);
    }
    pass_expand(m, &o);
    ir_verify(m, "expand");
    check_same(m, f, test_eval(arena, m, module_find_func(m, "micro"), &e), g, name);
    pass_simplify2(m, &o);
    ir_verify(m, "simplify2");
    check_same(m, f, test_eval(arena, m, module_find_func(m, "micro"), &e), g, name);
}

void test_gradients(const char *model, Shape shape, const char *set) {
    Arena arena;
    arena_init(&arena, 0);
    jmp_buf out_of_memory;
    arena.fail = &out_of_memory;
    assert_int_equal(setjmp(out_of_memory), 0);
    char name[512];
    snprintf(name, sizeof name, "%s %s", model, set ? set : "");
    test_module_gradients(&arena, test_trace(&arena, model, shape, 2, 4, set), name, shape.vocab, 1);
    arena_free(&arena);
}
