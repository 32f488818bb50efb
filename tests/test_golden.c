// Traced models against golden cases of an independent float64 reference (tests/golden/oracle), in float64:
// parameters and their initial values, loss, depth states and logits. The evaluator alone runs here, so a
// difference lies in a script, the frontend or an op's definition; never in a pass or a kernel. Paper cases
// take the initial values that the scripts declare, test cases the generator's values that leave no term
// idle.
#include "runtime/init.h"
#include "tests/support.h"
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER SOURCE_DIR "/tests/golden/oracle"
static const double tolerance = 1e-12; // of float64 sums in another order; every case also passes at 1e-13

typedef struct Case {
    const char *name;
    json_t *gold, *config;
    Arena arena;
    LuaResult traced;
    double **param, *ids, *targets, inv_tokens;
    int32_t batch, seq;
} Case;

static int64_t number(const Case *c, const char *key) {
    json_t *value = json_object_get(c->config, key);
    if (!json_is_integer(value))
        fail_msg("%s: config has no number %s", c->name, key);
    return json_integer_value(value);
}

static double real(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

// ---- Parameters

typedef struct Spread { // value = base + scale * uniform(-1, 1)
    double base, scale;
} Spread;

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

// The reference's "test initial values", by the parameter's name.
static Spread spread_of(const Param *p, int64_t i, double first, double last) {
    const char *leaf = strrchr(p->name, '.') + 1;
    if (!strcmp(leaf, "static_alpha"))
        return (Spread){p->init.table[i], 0.15};
    if (!strcmp(leaf, "static_beta"))
        return (Spread){1, 0.3};
    if (ends_with(leaf, "_proj"))
        return (Spread){0, sqrt(3 / first)};
    if (ends_with(leaf, "_scale"))
        return (Spread){0.25, 0.125};
    if (!strcmp(p->name, "embed.weight"))
        return (Spread){0, 1};
    if (ends_with(p->name, "norm.weight"))
        return (Spread){1, 0.25};
    return (Spread){0, sqrt(3 / last)};
}

// Values in file order.
static float *file_values(Case *c, const Param *p, int64_t n) {
    const Module *m = c->traced.module;
    uint64_t seed = (uint64_t)number(c, "seed");
    float *x = arena_alloc(&c->arena, (size_t)n * sizeof *x);
    if (!strcmp(json_string_value(json_object_get(c->config, "init")), "paper")) {
        init_fill(&p->init, seed, p->name, n, x);
        return x;
    }
    double first = p->file.rank ? m->axes.at[p->file.axis[0]].size : 1;
    double last = p->file.rank ? m->axes.at[p->file.axis[p->file.rank - 1]].size : 1;
    uint64_t key = rng_key(seed, p->name);
    for (int64_t i = 0; i < n; i++) {
        Spread s = spread_of(p, i, first, last);
        x[i] = (float)(s.base + s.scale * (2 * rng_uniform(key, (uint64_t)i) - 1));
    }
    return x;
}

static void check_digest(const Case *c, const char *name, const json_t *digest, int64_t n, const double *at) {
    double sum = 0, square = 0, dot = 0;
    for (int64_t i = 0; i < n; i++) {
        double weight = (double)(uint32_t)((uint64_t)i * 2654435761u) / 0x1p31 - 1;
        sum += at[i];
        square += at[i] * at[i];
        dot += at[i] * weight;
    }
    double l2 = real(digest, "l2"), got[] = {sqrt(square), sum, dot};
    const char *const what[] = {"l2", "sum", "dot"};
    double scale[] = {l2, l2 * sqrt((double)n), l2 * sqrt((double)n)};
    for (int i = 0; i < 3; i++)
        if (!(fabs(got[i] - real(digest, what[i])) <= tolerance * scale[i]))
            fail_msg("%s: %s of %s is %.15g, expected %.15g", c->name, what[i], name, got[i],
                     real(digest, what[i]));
}

static void check_shape(const Case *c, const Param *p, const json_t *digest) {
    json_t *shape = json_object_get(digest, "shape");
    if ((int)json_array_size(shape) != p->file.rank)
        fail_msg("%s: %s has %d axes, expected %zu", c->name, p->name, p->file.rank, json_array_size(shape));
    for (int i = 0; i < p->file.rank; i++)
        assert_int_equal(json_integer_value(json_array_get(shape, (size_t)i)),
                         c->traced.module->axes.at[p->file.axis[i]].size);
}

static bool no_decay(const char *name) {
    return ends_with(name, ".static_alpha") || ends_with(name, ".static_beta");
}

// Where element i of the file lies in the order of memory.
static int64_t memory_index(const Module *m, const Param *p, int64_t i) {
    int64_t at[MAX_RANK] = {0}, index = 0;
    for (int k = p->file.rank - 1; k >= 0; k--) {
        at[k] = i % m->axes.at[p->file.axis[k]].size;
        i /= m->axes.at[p->file.axis[k]].size;
    }
    for (int k = 0; k < p->type.rank; k++)
        for (int f = 0; f < p->file.rank; f++)
            if (p->file.axis[f] == p->type.axis[k])
                index = index * m->axes.at[p->type.axis[k]].size + at[f];
    return index;
}

// Exactly the reference's parameters: names, shapes, count, decay, values.
static void make_params(Case *c) {
    const Module *m = c->traced.module;
    json_t *initial = json_object_get(c->gold, "initial");
    assert_int_equal(m->params.n, json_object_size(initial));
    c->param = arena_alloc(&c->arena, (m->params.n + 1) * sizeof *c->param);
    int64_t total = 0;
    for (uint32_t k = 0; k < m->params.n; k++) {
        const Param *p = &m->params.at[k];
        json_t *digest = json_object_get(initial, p->name);
        if (!digest)
            fail_msg("%s: parameter %s does not exist in the reference", c->name, p->name);
        check_shape(c, p, digest);
        assert_true(p->trained);
        assert_int_equal(p->decay, !no_decay(p->name));
        int64_t n = type_count(m, &p->type);
        total += n;
        float *file = file_values(c, p, n);
        double *wide = arena_alloc(&c->arena, (size_t)n * sizeof *wide);
        c->param[k] = arena_alloc(&c->arena, (size_t)n * sizeof(double));
        for (int64_t i = 0; i < n; i++)
            c->param[k][memory_index(m, p, i)] = wide[i] = (double)file[i];
        check_digest(c, p->name, digest, n, wide);
    }
    assert_int_equal(total, json_integer_value(json_object_get(c->gold, "n_params")));
}

// ---- One run

static void make_tokens(Case *c) {
    json_t *rows = json_object_get(c->gold, "tokens");
    size_t n = (size_t)c->batch * (size_t)c->seq;
    c->ids = arena_alloc(&c->arena, n * sizeof(double));
    c->targets = arena_alloc(&c->arena, n * sizeof(double));
    c->inv_tokens = 1 / (double)n;
    for (size_t i = 0; i < n; i++) {
        json_t *row = json_array_get(rows, i / (size_t)c->seq);
        size_t at = i % (size_t)c->seq;
        c->ids[i] = (double)json_integer_value(json_array_get(row, at));
        c->targets[i] = (double)json_integer_value(json_array_get(row, at + 1));
    }
}

static const double *param_of(void *ctx, int32_t k) {
    return ((Case *)ctx)->param[k];
}

static const double *input_of(void *ctx, const char *name) {
    Case *c = ctx;
    if (!strcmp(name, "inv_tokens"))
        return &c->inv_tokens;
    return !strcmp(name, "ids") ? c->ids : !strcmp(name, "targets") ? c->targets : NULL;
}

static void trace(Case *c, int32_t skip) {
    KeyValue set[16];
    int n_set = 0;
    const char *arch = json_string_value(json_object_get(c->config, "arch")), *key;
    json_t *value;
    json_object_foreach(json_object_get(c->config, "options"), key, value) {
        if (strncmp(key, arch, strlen(arch)) || key[strlen(arch)] != '.')
            continue; // of an analysis, not of the model
        assert_in_range(n_set, 0, 15);
        char *text = arena_format(&c->arena, "%lld", (long long)json_integer_value(value));
        if (json_is_boolean(value))
            text = json_is_true(value) ? "true" : "false";
        else if (json_is_string(value))
            text = arena_string(&c->arena, json_string_value(value));
        set[n_set++] = (KeyValue){arena_string(&c->arena, key), text};
    }
    LuaOptions o = {.path = arena_format(&c->arena, SOURCE_DIR "/models/%s.lua", arch),
                    .models_dir = SOURCE_DIR "/models",
                    .shape = {.d_model = (int32_t)number(c, "d"),
                              .n_layer = (int32_t)number(c, "L"),
                              .n_head = (int32_t)number(c, "H"),
                              .n_kv_head = (int32_t)number(c, "Hk"),
                              .head_dim = (int32_t)number(c, "hd"),
                              .ff = (int32_t)number(c, "ff"),
                              .vocab = (int32_t)number(c, "vocab")},
                    .set = set,
                    .n_set = n_set,
                    .batch = c->batch,
                    .seq = c->seq,
                    .skip_layer = skip};
    Status s = shape_complete(&o.shape);
    if (!s.code)
        s = lua_model(&c->arena, &o, &c->traced);
    if (s.code)
        fail_msg("%s: %s %s", c->name, s.text, c->traced.messages.at ? c->traced.messages.at : "");
    ir_verify(c->traced.module, "trace");
}

static Tensor *evaluate(Case *c) {
    const Func *f = module_find_func(c->traced.module, "loss");
    Env env = {c, param_of, input_of};
    Tensor *result = arena_alloc(&c->arena, (f->outputs.n + f->marks.n) * sizeof *result);
    Status s = interp_run(&c->arena, c->traced.module, f, &env, true, result);
    assert_string_equal(s.text, "");
    return result;
}

static const Tensor *mark_of(const Case *c, const Module *m, const Tensor *result, const char *name) {
    const Func *f = module_find_func(m, "loss");
    for (uint32_t i = 0; i < f->marks.n; i++)
        if (!strcmp(f->marks.at[i].name, name))
            return &result[f->outputs.n + i];
    fail_msg("%s: the model marks no %s", c->name, name);
    return NULL;
}

static void check_tensor(const Case *c, const char *name, const Tensor *x) {
    int64_t n = type_count(c->traced.module, &x->type);
    json_t *full = json_object_get(json_object_get(c->gold, "full"), name);
    double scale = 0;
    check_digest(c, name, json_object_get(json_object_get(c->gold, "tensors"), name), n, x->at);
    if (!full)
        return;
    assert_int_equal(n, json_array_size(full));
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(json_number_value(json_array_get(full, (size_t)i))));
    for (int64_t i = 0; i < n; i++) {
        double want = json_number_value(json_array_get(full, (size_t)i));
        if (!(fabs(x->at[i] - want) <= tolerance * scale))
            fail_msg("%s: %s[%lld] is %.15g, expected %.15g", c->name, name, (long long)i, x->at[i], want);
    }
}

// ---- Causal scores: layers skipped one at a time

// |u' - u| / |u| averaged over tokens, where u is the update of one layer.
static double causal_score(int64_t n, int64_t width, const double *z[4]) {
    double total = 0;
    for (int64_t t = 0; t < n; t += width) {
        double change = 0, size = 0;
        for (int64_t i = t; i < t + width; i++) {
            double u = z[1][i] - z[0][i], skipped = z[3][i] - z[2][i];
            change += (skipped - u) * (skipped - u);
            size += u * u;
        }
        total += sqrt(change) / fmax(sqrt(size), 1e-8);
    }
    return total * (double)width / (double)n;
}

// A trace with a skipped layer has fewer parameters: they are bound by name.
static void bind_by_name(Case *c, const Module *base, double **values) {
    const Module *m = c->traced.module;
    c->param = arena_alloc(&c->arena, (m->params.n + 1) * sizeof *c->param);
    for (uint32_t k = 0; k < m->params.n; k++) {
        int32_t from = module_param(base, m->params.at[k].name);
        assert_true(from >= 0);
        c->param[k] = values[from];
    }
}

static void check_skips(Case *c, const Tensor *base, json_t *scores) {
    int32_t layers = (int32_t)number(c, "L");
    const Module *whole = c->traced.module;
    double **values = c->param;
    for (int32_t skip = 0; skip < layers; skip++) {
        trace(c, skip);
        const Module *m = c->traced.module;
        assert_true(m->params.n < whole->params.n);
        bind_by_name(c, whole, values);
        const Tensor *result = evaluate(c);
        for (int32_t l = skip + 1; l < layers; l++) {
            const char *low = arena_format(&c->arena, "hidden.%d", l);
            const char *high = arena_format(&c->arena, "hidden.%d", l + 1);
            const Tensor *z = mark_of(c, whole, base, low);
            int64_t n = type_count(whole, &z->type);
            const double *all[] = {z->at, mark_of(c, whole, base, high)->at, mark_of(c, m, result, low)->at,
                                   mark_of(c, m, result, high)->at};
            double got = causal_score(n, n / (c->batch * c->seq), all);
            double want = json_number_value(json_array_get(json_array_get(scores, (size_t)skip), (size_t)l));
            if (!(fabs(got - want) <= 1e-9 * want))
                fail_msg("%s: causal score of layer %d without layer %d is %.12g, expected %.12g", c->name, l,
                         skip, got, want);
        }
    }
}

// True when the case has causal scores too.
static bool check_case(const char *name, const json_t *causal) {
    static jmp_buf out_of_memory;
    char path[512];
    json_error_t error;
    Case c = {.name = name};
    arena_init(&c.arena, 0);
    c.arena.fail = &out_of_memory;
    assert_int_equal(setjmp(out_of_memory), 0);
    snprintf(path, sizeof path, FOLDER "/%s", name);
    c.gold = json_load_file(path, 0, &error);
    if (!c.gold)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    c.config = json_object_get(c.gold, "config");
    c.batch = (int32_t)number(&c, "batch");
    c.seq = (int32_t)number(&c, "seq");
    trace(&c, -1);
    make_params(&c);
    make_tokens(&c);
    const Tensor *result = evaluate(&c);
    double loss = real(c.gold, "loss");
    if (!(fabs(result[0].at[0] - loss) <= tolerance * loss))
        fail_msg("%s: loss is %.15g, expected %.15g", name, result[0].at[0], loss);
    check_tensor(&c, "logits", mark_of(&c, c.traced.module, result, "logits"));
    for (int32_t l = 0; l <= (int32_t)number(&c, "L"); l++) {
        const char *state = arena_format(&c.arena, "hidden.%d", l);
        check_tensor(&c, state, mark_of(&c, c.traced.module, result, state));
    }
    json_t *scores = json_object_get(causal, name);
    if (scores)
        check_skips(&c, result, scores);
    json_decref(c.gold);
    arena_free(&c.arena);
    return scores != NULL;
}

static void test_cases(void **state) {
    (void)state;
    DIR *folder = opendir(FOLDER);
    size_t n = 0, n_causal = 0;
    json_t *causal = json_load_file(SOURCE_DIR "/tests/golden/causal.json", 0, NULL);
    assert_non_null(folder);
    assert_non_null(causal);
    for (struct dirent *e; (e = readdir(folder));)
        if (ends_with(e->d_name, ".json")) {
            n_causal += check_case(e->d_name, causal);
            n++;
        }
    closedir(folder);
    assert_true(n >= 12);
    assert_int_equal(n_causal, json_object_size(causal)); // none of the scores went unread
    json_decref(causal);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
