// Runs a model script and returns the module it built. state.c is the only file that calls lua_pcall.
#ifndef DEPTHBENCH_FRONTEND_LUA_H
#define DEPTHBENCH_FRONTEND_LUA_H
#include "ir/ir.h"

typedef struct Shape { // the columns of shapes.tsv; 0: not set, follows from the others (shape_complete)
    const char *name;
    int32_t d_model, n_layer, n_head, n_kv_head, head_dim, ff, vocab;
} Shape;

typedef struct KeyValue {
    const char *key, *value;
} KeyValue;

typedef struct LuaOptions {
    const char *path;       // the script
    const char *models_dir; // where require finds backbone.lua when it is not beside the script
    Shape shape;            // complete
    const KeyValue *set;    // architecture options: keys the script declares by db.param
    int n_set;
    int32_t batch, seq; // sizes of the row axes b and s
    int32_t skip_layer; // -1: none; else layer.skipped is true there
} LuaOptions;

typedef struct ScriptParam { // what db.param declared, for --help, probe --list and config.json
    const char *key, *value, *doc;
} ScriptParam;

typedef struct LuaResult {
    Module *module; // with the function "loss": inputs ids, targets, inv_tokens; output "loss"; marks
                    // hidden.K, logits, taps
    Text messages;  // "FILE:LINE: error: ..." lines (all mistakes of the run) and warnings, for stderr
    VEC(ScriptParam) params;
    VEC(const char *) files; // every Lua file it read, for RUN/model.lua
} LuaResult;

// Fills in what is not set (n_kv_head, head_dim, ff) and refuses shapes that cannot be; code 2.
Status shape_complete(Shape *s) MUST_USE;
// Status code 2 when the script is wrong (messages says where), 1 when memory ran out. Everything in `arena`.
Status lua_model(Arena *arena, const LuaOptions *options, LuaResult *out) MUST_USE;
// The text of docs/lua.md, from the tables of ops and functions.
void lua_doc(Text *out);
#endif
