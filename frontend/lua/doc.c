// docs/lua.md, made from ir/ops.def and the tables of functions, so that it cannot fall behind them.
#include "frontend/lua/script.h"

static const char head[] =
    "# Models in Lua\n"
    "\n"
    "This page is generated (`test_lua --bless-docs`). A first script: "
    "[add-an-architecture.md](add-an-architecture.md).\n"
    "\n"
    "A script runs once, when a model is compiled: it builds a graph, no number is "
    "computed. Values have named axes and\n"
    "no order of axes that a script could see: `x * w` matches axes by name, and an "
    "axis that only one of the two has is a\n"
    "broadcast. A value prints as its type, `f32[b,s,d]`. `b` (sequences) and `s` "
    "(positions) exist in every script; all\n"
    "other axes are declared:\n"
    "\n"
    "| kind | use |\n"
    "|---|---|\n"
    "| `row` | iterated: sequences, positions, heads |\n"
    "| `small` | at most 32 elements, unrolled: streams, pairs, sources |\n"
    "| `wide` | contiguous and vectorised: d_model, feed-forward width, vocabulary |\n"
    "\n"
    "```lua\n"
    "local db = require \"depthbench\"\n"
    "local d = db.axis(\"d\", \"wide\", db.shape.d_model)\n"
    "```\n"
    "\n"
    "`db.shape` has `d_model n_layer n_head n_kv_head head_dim ff vocab` of the shape "
    "that was chosen. `axis.size` and\n"
    "`axis.name` can be read. `require \"backbone\"` gives the parts that the shipped "
    "models share: RMSNorm, rotary\n"
    "attention, SwiGLU, embedding, loss.\n"
    "\n"
    "Two rules keep every value inside of one kernel's loop: operands of an elementwise function that have wide axes have\n"
    "the same ones (an outer product is a `dot`, or one of its axes is small), and a reduction takes all wide axes of a\n"
    "value or none.\n"
    "\n"
    "A mistake is reported with its line, and the run goes on to find more. Scripts "
    "have Lua's base, `string`, `table` and\n"
    "`math` without files, processes, random numbers, pattern matching and `pcall`; "
    "they may take 1.5 seconds, 256 MB of\n"
    "memory and half a million operations of the graph.\n";

static const char layer_text[] = "\n"
                                 "## Layers\n"
                                 "\n"
                                 "| field | |\n"
                                 "|---|---|\n"
                                 "| `layer.index` | 0, 1, .. n_layer - 1 |\n"
                                 "| `layer.skipped` | true where an analysis leaves this layer out |\n"
                                 "| `layer:block(x, function(x) .. end)` | the function's result, or x where "
                                 "the layer is skipped; also marks depth state index + 1 |\n";

static void functions(Text *out, const char *title, const LuaFunction *at, int n) {
    text_add(out, "\n## %s\n\n| function | |\n|---|---|\n", title);
    for (int i = 0; i < n; i++)
        text_add(out, "| `db.%s(%s)`%s | %s |\n", at[i].name, at[i].args,
                 at[i].method ? " and as a method" : "", at[i].doc);
}

static void ops(Text *out, OpClass cls) {
    static const char *const map_args[] = {"", "a", "a, b", "a, b, c"};
    for (int op = 1; op < N_OPS; op++) {
        const OpInfo *i = &op_info[op];
        if (i->cls == cls)
            text_add(out, "| `db.%s(%s)` | %s |\n", i->name,
                     cls == CLASS_MAP ? map_args[i->n_in] : "x, axis, ..", i->doc);
    }
}

void lua_doc(Text *out) {
    text_add(out, "%s", head);
    functions(out, "The model", layers_functions, n_layers_functions);
    text_add(out, "%s", layer_text);
    functions(out, "Axes, weights, options", params_functions, n_params_functions);
    functions(out, "Values", build_functions, n_build_functions);
    text_add(out, "\n## Element by element\n\n"
                  "Each is a function and a method, `db.silu(x)` and `x:silu()`; `+ - * / ^` and unary `-` "
                  "are operators.\n"
                  "Numbers stand for values anywhere.\n\n| function | |\n|---|---|\n");
    ops(out, CLASS_MAP);
    text_add(out, "\n## Over axes\n\nEach is a function and a method.\n\n| function | |\n|---|---|\n");
    ops(out, CLASS_REDUCE);
}
