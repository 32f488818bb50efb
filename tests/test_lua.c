// The Lua frontend: every mistake is reported at its line; scripts are kept in their box; running out of
// memory at any point is survived; the shipped models have the parameters that their definitions say.
#include "frontend/cli/cli.h"
#include "tests/support.h"
#include <fnmatch.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static const Shape micro_shape = {
    .d_model = 8, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .head_dim = 6, .ff = 16, .vocab = 11};

// Sanitizers slow scripts down several times: there, a script that should pass another limit may run out of
// time.
#if defined(__SANITIZE_ADDRESS__)
enum { SLOW = 1 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif
#else
enum { SLOW = 0 };
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct Run {
    Status status;
    char messages[16384];
    double seconds;
} Run;

static LuaOptions options_for(const char *path) {
    return (LuaOptions){
        .path = path, .models_dir = "models", .shape = micro_shape, .batch = 2, .seq = 4, .skip_layer = -1};
}

static void run_options(const LuaOptions *o, Run *r) {
    Arena arena;
    LuaResult result;
    double start = now();
    arena_init(&arena, 0);
    r->status = lua_model(&arena, o, &result);
    r->seconds = now() - start;
    snprintf(r->messages, sizeof r->messages, "%s", result.messages.at ? result.messages.at : "");
    arena_free(&arena);
}

static void run_script(const char *path, Run *r) {
    LuaOptions o = options_for(path);
    run_options(&o, r);
}

// ---- Scripts with marked lines

static bool kind_seen[N_DIAGS];

// A format as a pattern: each conversion stands for any text.
static void note_kinds(const char *messages) {
    // clang-format off
    static const char *const formats[] = {
#define DIAG(id, format, hint) format,
#include "ir/diag.def"
    };
    // clang-format on
    for (int i = 0; i < N_DIAGS; i++) {
        char pattern[512] = "*: error: ";
        size_t n = strlen(pattern);
        for (const char *c = formats[i]; *c; c++) {
            bool special = strchr("[]*?\\", *c) != NULL;
            if (special)
                pattern[n++] = '\\';
            pattern[n++] = *c == '%' ? '*' : *c;
            c += *c == '%';
        }
        snprintf(pattern + n, sizeof pattern - n, "\n*");
        kind_seen[i] |= !fnmatch(pattern, messages, 0);
    }
}

// Lines "FILE:LINE: error: ..."; quoted lines of a script are indented.
static int count_errors(const char *text) {
    int n = 0;
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *at = strstr(line, ": error: "), *end = strchr(line, '\n');
        n += *line != ' ' && at && (!end || at < end);
    }
    return n;
}

// Every line that ends in "-- error: TEXT" must be reported as FILE:LINE: error: TEXT.., and no other line.
static int check_marks(const char *path, const Run *r, int *marks) {
    char line[512], expect[1024];
    FILE *f = fopen(path, "r");
    int bad = 0;
    assert_non_null(f);
    for (int number = 1; fgets(line, sizeof line, f); number++) {
        char *mark = strstr(line, "-- error: ");
        if (!mark)
            continue;
        mark[strcspn(mark, "\n")] = 0;
        ++*marks;
        snprintf(expect, sizeof expect, "%s:%d: error: %s", path, number, mark + 10);
        if (!strstr(r->messages, expect)) {
            print_error("missing: %s\n", expect);
            bad++;
        }
    }
    fclose(f);
    return bad;
}

static const char *const scripts[] = {
    "axes",           "ops",           "order",         "composites",   "weights",
    "many",           "function",      "syntax",        "kept_apart",   "loss",
    "no_loss",        "no_model",      "required",      "forever",      "forever_allocating",
    "doubled_text",   "repeated_text", "growing_table", "recursion",    "tail_calls",
    "many_layers",    "taps",          "finalizer",     "close",        "wide",
    "longest_text",   "helper_loop",   "sort",          "sort_numbers", "sort_texts",
    "concat_endless", "late_length",   "insert_front",  "block_result", "kept_layer",
    "two_loops",      "own_weight",
};

static void marked_lines(void **state) {
    (void)state;
    int bad = 0;
    for (size_t i = 0; i < COUNT_OF(scripts); i++) {
        Run r;
        char path[128];
        int marks = 0;
        snprintf(path, sizeof path, "tests/bad/%s.lua", scripts[i]);
        run_script(path, &r);
        if (SLOW && r.status.code == EXIT_REQUEST && strstr(r.messages, ": the script runs too long"))
            continue;
        int missing = check_marks(path, &r, &marks);
        if (!strcmp(scripts[i], "required"))
            missing += check_marks("tests/bad/parts/broken.lua", &r, &marks);
        if (!strcmp(scripts[i], "many"))
            marks = MAX_DIAGS;
        if (missing || count_errors(r.messages) != marks || r.status.code != EXIT_REQUEST || r.seconds > 2) {
            print_error("%s: code %d (%s), %.2f s, messages:\n%s\n", path, r.status.code, r.status.text,
                        r.seconds, r.messages);
            bad++;
        }
        note_kinds(r.messages);
    }
    assert_int_equal(bad, 0);
}

// Rows of diag.def that no script above produces.
static void every_row_is_produced(void **state) {
    (void)state;
    // clang-format off
    static const char *const names[] = {
#define DIAG(id, format, hint) #id,
#include "ir/diag.def"
    };
    // clang-format on
    int missing = 0;
    for (int i = 0; i < N_DIAGS; i++)
        if (!kind_seen[i]) {
            print_error("no script produces %s\n", names[i]);
            missing++;
        }
    assert_int_equal(missing, 0);
}

// ---- Single statements that end a run, at line 3 of a script

static void write_script(const char *path, const char *statement) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "local db = require \"depthbench\"\n"
            "local d, s, n = db.axis(\"d\", \"wide\", 8), db.axis \"s\", db.axis(\"n\", \"small\", 2)\n"
            "%s\n"
            "return db.model(function(ids, targets) return db.ones() end)\n",
            statement);
    assert_int_equal(fclose(f), 0);
}

static const struct {
    const char *statement, *says;
} statements[] = {
    {"db.shape.d_modl = 3", "db.shape is read-only; --set d_model=... changes a shape"},
    {"local x = db.shape.dmodel", "db.shape has no dmodel; did you mean d_model?"},
    {"local x = db.axis \"q\"", "axis q is not declared: db.axis(\"q\", \"wide\", size)"},
    {"db.axis(\"2d\", \"wide\", 3)", "axis '2d': a name begins with a letter"},
    {"db.axis(\"_q\", \"wide\", 3)", "axis '_q': a name begins with a letter"},
    {"db.axis(\"q\", \"wild\", 3)", "bad argument #2 to 'axis' (invalid option 'wild')"},
    {"db.axis(\"q\", \"wide\", 0)", "axis q: the size must be a whole number of at least 1"},
    {"db.axis(\"q\", \"wide\", 1e99)", "axis q: the size must be a whole number"},
    {"for i = 1, 300 do db.axis(\"a\" .. i, \"wide\", 2) end", "more than 186 axes"},
    {"local x = d.length", "an axis has size and name, no length"},
    {"db.weight(\"w\", {d})",
     "bad argument #3 to 'weight' (an initial value is a number, db.normal(std), or a function"},
    {"db.weight(\"w\", {d}, \"zero\")", "bad argument #3 to 'weight' (an initial value is"},
    {"db.weight(\"w\", {d}, {std = 1})", "bad argument #3 to 'weight' (an initial value is"},
    {"db.weight(\"w\", {d}, 0/0)", "an initial value must be a finite number"},
    {"db.weight(\"w\", {d}, db.normal(-1))", "normal: the deviation must be from 0 to 1e6"},
    {"db.weight(\"w\", {d}, function(i) return \"x\" .. i end)",
     "the initial value's function must return a number, not string"},
    {"db.weight(\"w\", {d}, function(i) return 1 / i end)", "an initial value must be a finite number"},
    {"db.weight(\"w\", {d}, db.sum)", "sum: which axis?"},
    {"db.weight(\"w\", {db.axis(\"q\", \"wide\", 1 << 21)}, math.abs)",
     "an initial value given by a function has at most 2^20"},
    {"db.weight(\"w\", {db.axis(\"q\", \"wide\", 1 << 30), db.axis(\"r\", \"wide\", 1 << 30)}, 0)",
     "a weight has more than 2^40 elements"},
    {"db.weight(\"w\", d, 0)", "bad argument #2 to 'weight' (table expected"},
    {"db.weight(\"w\", {8}, 0)", "a weight's axes are a list as {d, f}; number 1 is number"},
    {"db.weight(\"w\", {d, d}, 0)", "a weight has the same axis twice"},
    {"db.weight(\"w/x\", {d}, 0)", "weight 'w/x': a name has letters, digits, _ and . only"},
    {"db.weight(\"\", {d}, 0)", "weight '': a name has letters"},
    {"db.weight((\"w\"):rep(300), {d}, 0)", "weight 'wwww"},
    {"db.weight(\"w\", {d}, 0, {deacy = false})", "weight: no option deacy; there are decay, owner and role"},
    {"db.weight(\"w\", {d}, 0, {decay = 0})", "weight: option decay is a number, it must be a boolean"},
    {"db.weight(\"w\", {d}, 0, {owner = 7})", "weight: owner 7.0 is not a layer"},
    {"db.weight(\"w\", {d}, 0, true)", "bad argument #4 to 'weight' (table expected"},
    {"db.ones(d):sum()", "sum: which axis?"},
    {"db.ones(d):sum(3)", "bad argument #1 to 'sum' (an axis expected, got number)"},
    {"local x = db.ones(d) < 3", "values are compared by db.lt(a, b) and db.eq(a, b)"},
    {"local x = db.ones(d) .. \"x\"", "attempt to concatenate"},
    {"local x = db.silu(nil)", "bad argument #1 to 'silu' (a value or a number expected, got nil)"},
    {"local x = db.silu()", "bad argument #1 to 'silu' (a value or a number expected, got no value)"},
    {"local x = db.ones(d) * nil", "bad argument #2 to"},
    {"db.ones(d):slice(d, -1)", "slice: the start must not be negative"},
    {"db.ones(d):slice(d, 0.5)", "bad argument #2 to 'slice' (number has no integer representation)"},
    {"db.tap(\"a b\", db.ones(d))", "tap: a name has letters, digits, _ and . only"},
    {"db.attention(db.ones(d), db.ones(d), db.ones(d), 3)",
     "bad argument #4 to 'attention' (a table of options expected"},
    {"for a in db.layers() do for b in db.layers() do end end", "db.layers inside of db.layers"},
    {"db.model(3)", "bad argument #1 to 'model' (function expected, got number)"},
    {"db.param(\"k\")", "bad argument #2 to 'param'"},
    {"error(\"by the script\")", "by the script"},
    {"error(\"by the script\", 0)", "by the script"},
    {"error({})", "an error that is not a text"},
    {"error()", "an error that is not a text"},
    {"local x = nil; x()", "attempt to call a nil value (local 'x')"},
    // the box
    {"io.open(\"/etc/passwd\")", "attempt to index a nil value (global 'io')"},
    {"os.exit(0)", "attempt to index a nil value (global 'os')"},
    {"debug.sethook()", "attempt to index a nil value (global 'debug')"},
    {"package.loadlib(\"x\", \"y\")", "attempt to index a nil value (global 'package')"},
    {"coroutine.create(print)", "attempt to index a nil value (global 'coroutine')"},
    {"load(\"return 1\")", "attempt to call a nil value (global 'load')"},
    {"loadfile(\"x\")", "attempt to call a nil value (global 'loadfile')"},
    {"dofile(\"x\")", "attempt to call a nil value (global 'dofile')"},
    {"pcall(error)", "attempt to call a nil value (global 'pcall')"},
    {"xpcall(error, error)", "attempt to call a nil value (global 'xpcall')"},
    {"collectgarbage()", "attempt to call a nil value (global 'collectgarbage')"},
    {"rawset(_G, 1, 2)", "attempt to call a nil value (global 'rawset')"},
    {"math.random()", "attempt to call a nil value (field 'random')"},
    {"local x = (\"x\"):gsub(\"x\", \"y\")", "attempt to call a nil value (method 'gsub')"},
    {"string.dump(print)", "attempt to call a nil value (field 'dump')"},
    {"table.move({}, 1, 1e9, 2)", "attempt to call a nil value (field 'move')"},
    {"setmetatable(db.ones(d), {})", "bad argument #1 to 'setmetatable' (table expected"},
    {"setmetatable(db.shape, {})", "cannot change a protected metatable"},
    {"getmetatable(db.ones(d)).__index = 3", "attempt to index a string value"},
    {"require \"../x\"", "require '../x': a module's name has letters, digits, _ and . only"},
    {"require \"/etc/passwd\"", "require '/etc/passwd': a module's name has"},
    {"require \"a..b\"", "require 'a..b': a module's name has"},
    {"require \".a\"", "require '.a': a module's name has"},
    {"require \"a\\0b\"", "module 'a"},
    {"require \"\"", "module '' is neither beside the script nor among the shipped models"},
    {"require \"no.such\"", "module 'no.such' is neither beside the script nor among the shipped models"},
};

static void statements_are_refused(void **state) {
    (void)state;
    char path[512], expect[1024];
    int bad = 0;
    snprintf(path, sizeof path, "%s/test_lua_statement.lua", BINARY_DIR);
    for (size_t i = 0; i < COUNT_OF(statements); i++) {
        Run r;
        write_script(path, statements[i].statement);
        run_script(path, &r);
        snprintf(expect, sizeof expect, "%s:3: error: %s", path, statements[i].says);
        if (r.status.code != EXIT_REQUEST || !strstr(r.messages, expect)) {
            print_error("%s\n  expected: %s\n  code %d, got: %s\n", statements[i].statement, expect,
                        r.status.code, r.messages);
            bad++;
        }
    }
    remove(path);
    assert_int_equal(bad, 0);
}

// ---- --set

static void set_keys(void **state) {
    (void)state;
    static const struct {
        const char *set, *says;
    } cases[] = {
        {"hc.stream=2",
         "--set hc.stream: hc has no such key; did you mean hc.streams?; its keys: hc.streams"},
        {"zzzzzzzzzzzz=2", "--set zzzzzzzzzzzz: hc has no such key; its keys: hc.streams, hc.dynamic"},
        {"n_hed=2", "--set n_hed: hc has no such key; did you mean n_head?"},
        {"hc.streams=two", "--set hc.streams=two: not a number"},
        {"hc.streams=2.5", "--set hc.streams=2.5: not a whole number"},
        {"hc.streams=0", "--set hc.streams=0: the smallest value is 1"},
        {"hc.streams=32", "--set hc.streams=32: the largest value is 31"},
        {"hc.tanh=yes", "--set hc.tanh=yes: choose true or false"},
        {"hc.mixing=half", "--set hc.mixing=half: choose from full, none"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Run r;
        KeyValue set = {cases[i].set, strchr(cases[i].set, '=') + 1};
        LuaOptions o = options_for("models/hc.lua");
        o.set = &set;
        o.n_set = 1;
        run_options(&o, &r);
        assert_int_equal(r.status.code, EXIT_REQUEST);
        if (!strstr(r.messages, cases[i].says) && !strstr(r.status.text, cases[i].says))
            fail_msg("%s: '%s' '%s' do not say '%s'", cases[i].set, r.messages, r.status.text, cases[i].says);
    }
}

static void shapes_that_cannot_be(void **state) {
    (void)state;
    static const struct {
        Shape shape;
        const char *says;
    } cases[] = {
        {{.n_layer = 1, .n_head = 1, .vocab = 5}, "the shape is incomplete: d_model 0"},
        {{.d_model = 10, .n_layer = 1, .n_head = 3, .vocab = 5}, "d_model 10 is not a multiple of n_head 3"},
        {{.d_model = 9, .n_layer = 1, .n_head = 3, .vocab = 5}, "head_dim 3 is odd"},
        {{.d_model = 8, .n_layer = 1, .n_head = 4, .n_kv_head = 3, .vocab = 5},
         "n_head 4 is not a multiple of n_kv_head 3"},
        {{.d_model = 8, .n_layer = 1, .n_head = 4, .n_kv_head = -4, .vocab = 5},
         "sizes below 1: n_kv_head -4"},
        {{.d_model = 8, .n_layer = 1, .n_head = 4, .head_dim = -2, .vocab = 5}, "head_dim -2"},
        {{.d_model = 8, .n_layer = 1, .n_head = 4, .ff = -1, .vocab = 5}, "ff -1"},
        {{.d_model = INT32_MAX, .n_layer = 1, .n_head = 1, .vocab = 5}, "sizes above 16777216"},
        {{.d_model = 1024, .n_layer = 1, .n_head = 2, .vocab = 5}, "head_dim 512 is above 256"},
        {{.d_model = 8, .n_layer = 1000000, .n_head = 2, .vocab = 5}, "n_layer 1000000 is above 4096"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Shape s = cases[i].shape;
        Status status = shape_complete(&s);
        assert_int_equal(status.code, EXIT_REQUEST);
        if (!strstr(status.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", status.text, cases[i].says);
    }
    Shape s = {.d_model = 640, .n_layer = 2, .n_head = 16, .vocab = 5};
    assert_int_equal(shape_complete(&s).code, 0);
    assert_int_equal(s.head_dim, 40);
    assert_int_equal(s.n_kv_head, 16);
    assert_int_equal(s.ff, 1712);
}

// ---- Memory that runs out at any point

static void out_of_memory_anywhere(void **state) {
    (void)state;
    static const char *const paths[] = {"models/hc.lua", "tests/bad/kept_apart.lua"};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        bool done = false;
        for (long n = 1; !done; n += 1 + n / 8) { // dense at the start, where the kinds of allocation differ
            for (int sticky = 0; sticky < 2; sticky++) {
                Run r;
                fault_set(FAULT_ALLOC, n, sticky);
                run_script(paths[i], &r);
                done = fault_count(FAULT_ALLOC) < n;
                fault_set(FAULT_ALLOC, 0, false);
                int wrong = i ? EXIT_REQUEST : 0;
                if (r.status.code != EXIT_WORK && r.status.code != wrong)
                    fail_msg("%s: allocation %ld: code %d %s %s", paths[i], n, r.status.code, r.status.text,
                             r.messages);
            }
        }
    }
}

// ---- The shipped models

static int64_t count_params(const Module *m, bool backbone) {
    int64_t n = 0;
    for (uint32_t i = 0; i < m->params.n; i++)
        if (!backbone || m->params.at[i].owner >= 0)
            n += type_count(m, &m->params.at[i].type);
    return n;
}

static void parameter_counts(void **state) {
    (void)state;
    for (int i = 0; i < n_shape_rows; i++) {
        const ShapeRow *row = &shape_rows[i];
        const Shape *s = &row->shape;
        for (int hc = 0; hc < 2; hc++) {
            Arena arena;
            arena_init(&arena, 0);
            double start = now();
            Module *m = test_trace(&arena, hc ? "hc" : "pre_ln", *s, 1, 2048, NULL);
            double seconds = now() - start;
            int64_t extra = hc ? 2 * (int64_t)s->n_layer * (6 * s->d_model + 26) : 0;
            int64_t total = count_params(m, false), backbone = count_params(m, true);
            if (total != row->params_total + extra || backbone != row->params_backbone + extra)
                fail_msg("%s %s: %lld parameters (%lld in layers)", hc ? "hc" : "pre_ln", s->name,
                         (long long)total, (long long)backbone);
            if (seconds > 1 && !SLOW)
                fail_msg("%s %s: traced in %.2f s", hc ? "hc" : "pre_ln", s->name, seconds);
            arena_free(&arena);
        }
    }
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

static bool routing_static(const char *name) {
    return ends_with(name, ".static_alpha") || ends_with(name, ".static_beta");
}

// The read column is 1 at stream j mod n of sublayer j, the others are the identity.
static void check_static_alpha(const Param *p, int n) {
    bool ffn = strstr(p->name, "ffn_hc") != NULL;
    int j = 2 * atoi(p->name + strlen("layers.")) + ffn;
    assert_int_equal(p->init.kind, INIT_TABLE);
    for (int s = 0; s < n; s++)
        for (int c = 0; c <= n; c++)
            assert_true(p->init.table[s * (n + 1) + c] == (c == 0 ? s == j % n : c == s + 1));
}

static void check_initial(const Param *p, bool hc, int n) {
    bool norm = ends_with(p->name, "norm.weight"),
         residual = strstr(p->name, ".wo.") || strstr(p->name, "w_down");
    double expect = norm || ends_with(p->name, ".static_beta") ? 1
                    : ends_with(p->name, "_proj")              ? 0
                    : ends_with(p->name, "_scale")             ? 0.01
                                                               : 0.02;
    assert_true(p->trained);
    assert_int_equal(p->decay, !routing_static(p->name));
    if (ends_with(p->name, ".static_alpha")) {
        check_static_alpha(p, n);
        return;
    }
    if (expect == 0.02) {
        double scaled = hc && residual ? 0.02 / sqrt(n) : 0.02;
        if (p->init.kind != INIT_NORMAL || fabs(p->init.value - scaled) > 1e-15)
            fail_msg("%s: initial value %d %g, expected a normal of %g", p->name, p->init.kind, p->init.value,
                     scaled);
        return;
    }
    if (p->init.kind != INIT_CONST || p->init.value != expect)
        fail_msg("%s: initial value %d %g, expected %g", p->name, p->init.kind, p->init.value, expect);
}

static void initial_values(void **state) {
    (void)state;
    Shape shape = micro_shape;
    shape.n_layer = 3;
    for (int i = 0; i < 3; i++) { // pre_ln, hc, hc with two streams
        Arena arena;
        arena_init(&arena, 0);
        Module *m = test_trace(&arena, i ? "hc" : "pre_ln", shape, 2, 4, i == 2 ? "hc.streams=2" : NULL);
        int static_ones = 0;
        for (uint32_t k = 0; k < m->params.n; k++) {
            check_initial(&m->params.at[k], i, i == 2 ? 2 : 4);
            static_ones += routing_static(m->params.at[k].name);
        }
        assert_int_equal(static_ones, i ? 2 * 2 * shape.n_layer : 0);
        arena_free(&arena);
    }
    for (int scaled = 0; scaled < 2; scaled++) {
        Arena arena;
        arena_init(&arena, 0);
        Module *m =
            test_trace(&arena, "hc", shape, 2, 4, scaled ? "hc.scale_out=true" : "hc.scale_out=false");
        const Param *p = &m->params.at[module_param(m, "layers.0.attn.wo.weight")];
        assert_true(p->init.value == (scaled ? 0.01 : 0.02));
        arena_free(&arena);
    }
}

static void depth_states_are_marked(void **state) {
    (void)state;
    static const char *const models[] = {"pre_ln", "hc"};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Arena arena;
        arena_init(&arena, 0);
        Module *m = test_trace(&arena, models[i], micro_shape, 2, 4, NULL);
        const Func *f = module_find_func(m, "loss");
        const char *expect[] = {"hidden.0", "hidden.1", "hidden.2", "logits"};
        assert_int_equal(f->marks.n, COUNT_OF(expect));
        for (size_t k = 0; k < COUNT_OF(expect); k++)
            assert_string_equal(f->marks.at[k].name, expect[k]);
        arena_free(&arena);
    }
}

// ---- Scripts that are right

static Module *trace_text(Arena *arena, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/test_lua_right.lua", BINARY_DIR);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    Module *m = test_trace(arena, path, micro_shape, 2, 4, NULL);
    remove(path);
    return m;
}

// break and return leave a loop's scope; the next loop begins at layer 0 again.
static void scopes_end(void **state) {
    (void)state;
    static const char *const names[] = {"layers.0.a", "between", "layers.0.b", "layers.1.b", "after"};
    Arena arena;
    arena_init(&arena, 0);
    Module *m = trace_text(
        &arena, "local db = require 'depthbench'\n"
                "local d = db.axis('d', 'wide', 8)\n"
                "local function first() for layer in db.layers() do return db.weight('b', {d}, 1) end end\n"
                "return db.model(function(ids, targets)\n"
                "  local x = db.ones(d)\n"
                "  for layer in db.layers() do x = x * db.weight('a', {d}, 1) break end\n"
                "  x = x * db.weight('between', {d}, 1) * first()\n"
                "  for layer in db.layers() do x = x * db.weight('b', {d}, 1) end\n"
                "  return (x * db.weight('after', {d}, 1)):sum(d)\n"
                "end)\n");
    assert_int_equal(m->params.n, COUNT_OF(names));
    for (size_t i = 0; i < COUNT_OF(names); i++)
        assert_string_equal(m->params.at[i].name, names[i]);
    arena_free(&arena);
}

// Table functions that are counted give what Lua's own give.
static void table_functions(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena, 0);
    trace_text(
        &arena,
        "local db = require 'depthbench'\n"
        "local t, names = {}, {'c', 'a', 'b'}\n"
        "for i = 1, 20000 do table.insert(t, i) end\n" // appending is cheap however long the list is
        "table.insert(t, 1, 5)\n"
        "assert(table.remove(t) == 20000 and table.remove(t, 1) == 5 and #t == 19999)\n"
        "table.sort(names)\n"
        "assert(table.concat(names, ',') == 'a,b,c' and table.concat({}) == '')\n"
        "table.sort(names, function(a, b) return a > b end)\n"
        "assert(table.concat(names, ',', 2) == 'b,a' and table.concat(names, '-', 1, 2) == 'c-b')\n"
        "local a, b = table.unpack({7, 8})\n"
        "assert(a == 7 and b == 8 and table.unpack({7, 8, 9}, 2) == 8)\n"
        "assert(select('#', table.unpack({}, 1, 3)) == 3 and select('#', table.unpack({}, 3, 1)) == 0)\n"
        "assert(table.pack(1, 2, nil).n == 3 and table.move == nil)\n"
        "return db.model(function(ids, targets) return db.ones() end)\n");
    arena_free(&arena);
}

// A graph may be as deep as it has nodes.
static void deep_constant(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena, 0);
    Module *m = trace_text(&arena, "local db = require 'depthbench'\n"
                                   "local d = db.axis('d', 'wide', 8)\n"
                                   "return db.model(function(ids, targets)\n"
                                   "  local x = db.iota(d)\n"
                                   "  for i = 1, 300000 do x = x + 1 end\n"
                                   "  return db.constant(x):sum(d)\n"
                                   "end)\n");
    assert_true(module_find_func(m, "loss")->nodes.n > 300000);
    arena_free(&arena);
}

// ---- docs/lua.md

static char *doc_text(Arena *arena) {
    Text text = {.arena = arena};
    ARENA_CATCH(arena, lua_doc(&text), fail_msg("out of memory"));
    return text.at;
}

static void docs_are_up_to_date(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena, 0);
    const char *expect = doc_text(&arena);
    char *have = calloc(1, strlen(expect) + 2);
    FILE *f = fopen("docs/lua.md", "r");
    assert_non_null(f);
    size_t n = fread(have, 1, strlen(expect) + 1, f);
    fclose(f);
    have[n] = 0;
    if (strcmp(have, expect))
        fail_msg("docs/lua.md is not what the tables say; run test_lua --bless-docs");
    free(have);
    arena_free(&arena);
}

static int bless_docs(void) {
    Arena arena;
    arena_init(&arena, 0);
    FILE *f = fopen("docs/lua.md", "w");
    bool good = f && fputs(doc_text(&arena), f) >= 0;
    good = f && fclose(f) == 0 && good;
    arena_free(&arena);
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    if (chdir(SOURCE_DIR)) // scripts are named as a person would name them
        return 1;
    if (argc == 2 && !strcmp(argv[1], "--bless-docs"))
        return bless_docs();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marked_lines),
        cmocka_unit_test(every_row_is_produced),
        cmocka_unit_test(statements_are_refused),
        cmocka_unit_test(set_keys),
        cmocka_unit_test(shapes_that_cannot_be),
        cmocka_unit_test(out_of_memory_anywhere),
        cmocka_unit_test(parameter_counts),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(depth_states_are_marked),
        cmocka_unit_test(scopes_end),
        cmocka_unit_test(table_functions),
        cmocka_unit_test(deep_constant),
        cmocka_unit_test(docs_are_up_to_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
