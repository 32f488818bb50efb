// What people may write: each idea changes the residual road in its own way, and must compile to a plan whose
// values and gradients are the evaluator's, or be refused at its line. Nothing may end in an internal error.
#include "tests/plan_host.h"

static const Shape shape = {
    .d_model = 8, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .head_dim = 4, .ff = 12, .vocab = 5};
static const char path[] = BINARY_DIR "/idea.lua";

static const char head[] =
    "local db, bb = require \"depthbench\", require \"backbone\"\n"
    "local c, d, f, v = db.shape, bb.d, db.axis \"f\", db.axis \"v\"\n"
    "local b, s, h, e, q = db.axis \"b\", db.axis \"s\", db.axis \"h\", db.axis \"e\", db.axis \"q\"\n"
    "local n, p = db.axis(\"n\", \"small\", 3), db.axis(\"p\", \"small\", 2)\n"
    "local half = db.axis(\"half\", \"wide\", c.d_model // 2)\n"
    "local function ffn(x) return bb.ffn(bb.norm(x, \"ffn_norm\")) end\n"
    "return db.model(function(ids, targets)\n"
    "  local x = bb.embed(ids)\n"
    "  for layer in db.layers(x) do\n"
    "    x = layer:block(x, function(x)\n";
static const char middle[] = "\n    end)\n  end\n";
#define LOSS "  return bb.loss(x, targets)"

typedef struct Idea {
    const char *name, *body, *end;
} Idea;

static const Idea ideas[] = {
    {"mean over positions", "return x + ffn(x - x:mean(s))", LOSS},
    {"mean over sequences", "return x + ffn(x - x:mean(b))", LOSS},
    {"mean over all rows", "return x + ffn(x - x:mean(b, s))", LOSS},
    {"a stopped product",
     "local y = bb.norm(x, \"a\") return x + ffn(y) * db.stop_grad(bb.linear(y, \"w\", f, d):mean(f)) + bb.attention(y)",
     LOSS},
    {"a branch that nothing reads", "local y = bb.attention(x) return bb.norm(x + bb.ffn(x), \"b\")", LOSS},
    {"halves of halves",
     "local lo, hi = x:slice(d, 0, half), x:slice(d, half.size, half) return x + ffn(x) * (lo * hi + lo):mean(half) * x:slice(d, 0, half):mean(half)",
     LOSS},
    {"overlapping parts", "return x + ffn(x) * (x:slice(d, 0, half) * x:slice(d, 1, half)):mean(half)", LOSS},
    {"an element of a part",
     "return x + ffn(x) * db.tanh(x:slice(d, 1, half):mean(half) + x:slice(d, 2) * x:slice(d, 7))", LOSS},
    {"a low-rank matrix",
     "local w = db.weight(\"w\", {d, n}, db.normal(1)):dot(db.weight(\"w2\", {n, f}, db.normal(0.1))) return x + bb.linear(x, \"up\", f, d):dot(w)",
     LOSS},
    {"a vector through a matrix of weights",
     "return x + ffn(x) * db.weight(\"w\", {f}, db.normal(1)):dot(db.weight(\"w2\", {d, f}, db.normal(0.1)))",
     LOSS},
    {"axes named as the optimizer's",
     "local z, r = db.axis(\"z\", \"wide\", 4), db.axis(\"rd\", \"wide\", 4) return x + bb.linear(bb.linear(x, \"u\", z, d) , \"w\", d, z) + bb.linear(bb.linear(x, \"u2\", r, d), \"w2\", d, r)",
     LOSS},
    {"names of weights",
     "return x + ffn(x * db.weight(\"1\", {d}, 1) + db.weight(\"a.2\", {d}, 1) * db.weight(\"s0\", {d}, 1) + db.weight(\"for\", {d}, 1))",
     LOSS},
    {"many elements", "local y = ffn(x) for i = 0, 6 do y = y * db.sigmoid(x:slice(d, i)) end return x + y",
     LOSS},
    {"two halves", "return x + ffn(x) * (x:slice(d, 0, half) * x:slice(d, half.size, half)):mean(half)",
     LOSS},
    {"one half", "return x + ffn(x) * db.tanh(x:slice(d, 0, half):mean(half))", LOSS},
    {"a middle part", "return x + ffn(x) * db.tanh(x:slice(d, 2, half):mean(half))", LOSS},
    {"one element", "return x + ffn(x) * db.tanh(x:slice(d, 3))", LOSS},
    {"norms of queries and keys",
     "local y = bb.norm(x, \"attn_norm\") "
     "local function rms(z, name) return z * db.rsqrt((z * z):mean(p, e) + 1e-6) * db.weight(name, {p, e}, "
     "1) end "
     "local Q = rms(bb.linear(y, \"wq\", q, d):split(q, h, p, e), \"qn\") "
     "local K = rms(bb.linear(y, \"wk\", q, d):split(q, h, p, e), \"kn\") "
     "local V = bb.linear(y, \"wv\", q, d):split(q, h, p, e) "
     "return x + bb.linear(db.attention(Q, K, V):merge(h, p, e, q), \"wo\", d, q)",
     LOSS},
    {"gated heads",
     "local Q = bb.linear(x, \"wq\", q, d):split(q, h, p, e) local V = bb.linear(x, \"wv\", q, d):split(q, "
     "h, p, e) "
     "local o = db.attention(Q, Q, V) * db.sigmoid(x:mean(d)) * db.weight(\"g\", {p, e}, 1) "
     "return x + bb.linear(o:merge(h, p, e, q), \"wo\", d, q)",
     LOSS},
    {"mean over heads",
     "local Q = bb.linear(x, \"wq\", q, d):split(q, h, p, e) return x + Q:mean(h):dot(db.weight(\"o\", {d, "
     "p, e}, db.normal(0.1)))",
     LOSS},
    {"similarity of branch and stream", "local y = ffn(x) return x + y * x:dot(y)", LOSS},
    {"a gate", "return x + ffn(x) * db.sigmoid(x:dot(db.weight(\"g\", {d}, db.normal(0.1))))", LOSS},
    {"positions", "return x + db.cos(db.iota(s) * 0.3) * ffn(x)", LOSS},
    {"after the norm", "x = bb.norm(x + bb.attention(x), \"a\") return bb.norm(x + bb.ffn(x), \"b\")", LOSS},
    {"branches side by side", "local y = bb.norm(x, \"a\") return x + bb.attention(y) + bb.ffn(y)", LOSS},
    {"a softmax over streams",
     "local X = x * db.ones(n) * db.weight(\"st\", {n}, function(i) return 1 + i end) "
     "local a = db.exp(X:mean(d) - db.stop_grad(X:mean(d):rmax(n))) a = a / a:sum(n) return x + ffn((a * "
     "X):sum(n))",
     LOSS},
    {"the largest element", "return x + ffn(x) * db.sigmoid(db.stop_grad(x:rmax(d)))", LOSS},
    {"a weight through a map",
     "return x + x:dot(db.tanh(db.weight(\"w\", {half, d}, db.normal(0.1)))):dot(db.weight(\"w2\", {d, "
     "half}, db.normal(0.1)))",
     LOSS},
    {"low rank",
     "return x + x:dot(db.weight(\"a\", {p, d}, db.normal(0.1))):dot(db.weight(\"b\", {d, p}, "
     "db.normal(0.1)))",
     LOSS},
    {"the first position", "return x + ffn(x) * db.tanh(x:slice(s, 0):mean(d))", LOSS},
    {"fixed numbers", "return x * db.fixed(\"c\", {}, function() return 0.5 end) + ffn(x)", LOSS},
    {"fixed positions",
     "return x + db.fixed(\"pos\", {s, d}, function(i, j) return 0.1 * i * j end) + ffn(x)", LOSS},
    {"a stopped branch", "return x + ffn(db.stop_grad(x))", LOSS},
    {"a power", "return x + db.pow(db.abs(x) + 0.1, db.weight(\"pw\", {d}, 1)) + ffn(x)", LOSS},
    {"embedding again", "return x + db.gather(db.weight(\"e2\", {v, d}, db.normal(0.1)), ids)", LOSS},
    {"a weight that nothing reads", "db.weight(\"dead\", {d}, 1) return x + ffn(x)", LOSS},
    {"tied ends", "return x + ffn(x)",
     "  return db.head_loss(bb.norm(x, \"final_norm\"), db.weight(\"embed.weight\", {v, d}, "
     "db.normal(0.02)), targets)"},
    {"two heads", "return x + ffn(x)",
     "  return bb.loss(x, targets) + db.head_loss(x, db.weight(\"h2\", {v, d}, db.normal(0.02)), targets) * "
     "0.1"},
    {"a penalty", "return x + ffn(x)", "  return bb.loss(x, targets) + (x * x):mean(d):mean(b, s) * 0.01"},
    {"no head", "return x + ffn(x)", "  return (x * x):mean(d):mean(b, s)"},
    {"shared layers", "return x + ffn(x)", "  for i = 1, 3 do x = x + bb.ffn(bb.norm(x, \"top\")) end" LOSS},
    {"no weight decay", "return x",
     "  return db.head_loss(x, db.weight(\"h2\", {v, d}, db.normal(0.1), {decay = false}), targets)"},
    {"nothing", "return x", LOSS},

    {"streams side by side",
     "local nd = db.axis(\"nd\", \"wide\", 3 * d.size) local X = x * db.weight(\"st\", {n, d}, db.normal(1)) "
     "return x + X:merge(n, d, nd):dot(db.weight(\"w\", {d, nd}, db.normal(0.1)))",
     LOSS},
    {"groups",
     "local g, w = db.axis(\"gr\", \"small\", 2), half local X = x:split(d, g, w) X = X * db.rsqrt((X * "
     "X):mean(w) + 1e-6) return x + bb.ffn(X:merge(g, w, d))",
     LOSS},
    {"a table over channels", "return x + ffn(x) * db.constant(db.cos(db.iota(d) * 0.1))", LOSS},
    {"a table made at run time", "return x + ffn(x) * db.cos(db.iota(d) * 0.1)", LOSS},
    {"softmax of weights",
     "local a = db.exp(db.weight(\"a\", {n}, 0.1)) a = a / a:sum(n) return x + (a * db.weight(\"st\", {n, "
     "d}, db.normal(1)) * ffn(x)):sum(n)",
     LOSS},
    {"statistics of weights",
     "local w = db.weight(\"w\", {d}, db.normal(1)) return x + ffn(x) * w * db.rsqrt((w * w):mean(d) + 0.1)",
     LOSS},
    {"statistics of a matrix",
     "local w = db.weight(\"w\", {half, d}, db.normal(1)) w = w * db.rsqrt((w * w):mean(half, d) + 0.1) "
     "return x + x:dot(w):dot(db.weight(\"w2\", {d, half}, db.normal(0.1)))",
     LOSS},
    {"a product of weights",
     "local w = db.weight(\"w\", {d, half}, db.normal(1)):dot(db.weight(\"w2\", {half, f}, db.normal(0.1))) "
     "return x + bb.linear(x, \"up\", f, d):dot(w)",
     LOSS},
    {"a map of the table",
     "return x + ffn(x) + db.gather(db.tanh(db.weight(\"e2\", {v, d}, db.normal(0.1))), ids)", LOSS},
    {"a map of the head", "return x + ffn(x)",
     "  return db.head_loss(x, db.weight(\"h2\", {v, d}, db.normal(0.1)) * 0.5, targets)"},
    {"previous positions",
     "local s2 = db.axis(\"s2\", \"row\", s.size - 1) return x + ffn(x) * x:slice(s, 0, s2):mean(s2, d)",
     LOSS},
    {"a larger head", "return x + ffn(x)", "  return bb.loss(x * 2 + 1, targets) * 0.5 + 1"},
    {"streams from three places",
     "local X = db.stack(n, x, ffn(x), bb.attention(bb.norm(x, \"a\"))) return (X * db.weight(\"mix\", {n}, "
     "0.5)):sum(n)",
     LOSS},
    {"a stack of rows", "local b2 = db.axis(\"b2\", \"row\", 2) return x + db.stack(b2, x, ffn(x)):mean(b2)",
     LOSS},
    {"the largest over streams", "local X = db.stack(n, x, x * 2, ffn(x)) return X:rmax(n)", LOSS},
    {"a renamed width",
     "local d2 = db.axis(\"d2\", \"wide\", d.size) return x + x:rename(d, d2):dot(db.weight(\"w\", {d, d2}, "
     "db.normal(0.1)))",
     LOSS},
    {"a similarity matrix",
     "local y = x:rename(s, db.axis(\"s3\", \"row\", s.size)) return x + (x * y):mean(d):mean(db.axis "
     "\"s3\")",
     LOSS},
    {"dot of rows",
     "local y = x:rename(d, db.axis(\"d3\", \"wide\", d.size)) return x + x:dot(x:dot(y)):rename(db.axis "
     "\"d3\", d)",
     LOSS},
    {"unused attention output",
     "local Q = bb.linear(x, \"wq\", q, d):split(q, h, p, e) return x + db.attention(Q, Q, Q):slice(p, "
     "0):mean(h, e)",
     LOSS},
    {"heads of the stream",
     "return x + x:split(d, h, p, e):mean(h, p):dot(db.weight(\"w\", {d, e}, db.normal(0.1)))", LOSS},
    {"many streams",
     "local m = db.axis(\"m32\", \"small\", 32) local X = x * db.weight(\"st\", {m}, function(i) return 1 + "
     "0.1 * i end) return db.tanh(X):mean(m) + ffn(x)",
     LOSS},
    {"weights made of weights",
     "local function w(x, ...) return db.weight(x, {...}, db.normal(1)) end local z = db.tanh(w(\"m\", f, d):dot(w(\"r\", f))) local u = db.tanh(w(\"a\", d)) * w(\"c\", d) return x + ffn(bb.norm(x, \"n\") * (z * u + db.sigmoid(z))):dot(w(\"o\", f, d)):dot(w(\"o2\", f, d)) * u",
     LOSS},
    {"a constant loss", "return x", "  return db.ones()"},
};

static void write_idea(const Idea *i) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s%s%s%s\nend)\n", head, i->body, middle, i->end);
    assert_int_equal(fclose(f), 0);
}

static Module *trace(void) {
    return test_trace(&arena, path, shape, 2, 3, NULL);
}

static void check_text(Module *m, const char *name) {
    Text first = {.arena = &arena}, second = {.arena = &arena};
    Module *again;
    ir_print(&first, m);
    Status s = ir_parse(&arena, first.at, "idea.ir", &again);
    if (s.code)
        fail_msg("%s: %s", name, s.text);
    ir_print(&second, again);
    assert_string_equal(first.at, second.at);
}

static void run_idea(const Idea *i, bool host) {
    Kept kept = {.pass = "simplify2"};
    PassOptions o = model_options(&kept, DT_F32);
    Plan *plan;
    if (host)
        o.printer = host_printer;
    write_idea(i);
    Module *m = trace();
    Status s = pipeline_run(m, &o, &plan);
    if (s.code)
        fail_msg("%s: %s", i->name, s.text);
    check_text(m, i->name);
    if (host) {
        check_host(m, plan, "micro", kept.micro, 1e-4);
        check_host(m, plan, "eval", kept.eval, 1e-4);
    } else {
        check_run(m, plan, "micro", kept.micro, 1e-4);
        check_run(m, plan, "eval", kept.eval, 1e-5);
    }
}

static void each_idea(void **state, bool host) {
    const char *only = getenv("DEPTHBENCH_IDEA");
    for (size_t i = 0; i < COUNT_OF(ideas); i++) {
        if (only && strcmp(only, ideas[i].name))
            continue;
        print_message("%s\n", ideas[i].name);
        run_idea(&ideas[i], host);
        teardown(state);
        setup(state);
    }
    remove(path);
}

static void ideas_on_paper(void **state) {
    each_idea(state, false);
}

static void ideas_on_the_host(void **state) {
    each_idea(state, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(ideas_on_paper, setup, teardown),
                                       cmocka_unit_test_setup_teardown(ideas_on_the_host, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
