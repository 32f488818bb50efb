// What the commands share: options, errors, output, building a model's plan. The only place that joins the
// stages.
#ifndef DEPTHBENCH_FRONTEND_CLI_H
#define DEPTHBENCH_FRONTEND_CLI_H
#include "frontend/lua/lua.h"
#include "ir/plan.h"
#include "passes/passes.h"
#include "runtime/driver.h"
#include <jansson.h>

enum { MAX_LIST = 256 };
typedef struct List {
    const char *at[MAX_LIST];
    int n;
} List;

// clang-format off
#define FIELD_FLAG(f)  bool f;
#define FIELD_COUNT(f) int f;
#define FIELD_TEXT(f)  const char *f;
#define FIELD_LIST(f)  List f;
#define FIELD_INT(f)   int64_t f; bool f##_given;
#define FIELD_REAL(f)  double f; bool f##_given;
#define FIELD_LATER(f)
typedef struct Options {
    char command;            // letter in commands.def
    const char *command_name;
    List args;               // MODEL, FILE ...
#define OPT(field, name, letter, kind, arg, commands, help) FIELD_##kind(field)
#include "frontend/cli/options.def"
} Options;
// clang-format on

// Reads the command line. Code 2 with a message that names the nearest known word. argc, argv as main has
// them.
Status options_parse(int argc, char **argv, Options *o) MUST_USE;
void options_help(FILE *out, const char *command); // NULL: all commands

Status cmd_compile(const Options *o) MUST_USE;
Status cmd_train(const Options *o) MUST_USE;
Status cmd_probe(const Options *o) MUST_USE;
Status cmd_bench(const Options *o) MUST_USE;
Status cmd_estimate(const Options *o) MUST_USE;
Status cmd_shapes(const Options *o) MUST_USE;
Status cmd_doctor(const Options *o) MUST_USE;

// ---- Shapes
typedef struct ShapeRow {
    const char *suite;
    Shape shape;
    int64_t params_total, params_backbone;
    double aspect;
    const char *source;
} ShapeRow;
extern const ShapeRow shape_rows[];
extern const int n_shape_rows;
Status shape_find(const char *name, Shape *out) MUST_USE; // code 2 with the nearest name

// ---- A model, from script or text to plan (model.c)
typedef struct BuildRequest {
    const char *model;   // name in models/, path of a script, or FILE.ir
    const char *shape;   // row name; NULL: o->shape or tiny
    int64_t batch, seq;  // of a micro-batch
    int32_t vocab;       // > 0: set by the tokenizer unless --set vocab is given
    size_t memory_limit; // of the plan, for --recompute auto; 0: --memory
    bool train, want_logits, want_hidden, want_grads;
    void (*observe)(void *ctx, const char *pass, bool before, const Module *m);
    void *observe_ctx;
} BuildRequest;
typedef struct Built {
    Arena arena;
    LuaResult lua; // module NULL-filled for FILE.ir input
    Module *module;
    Plan *plan;
    Shape shape;
    PassOptions passes;
    const char *script; // path; for messages and RUN/model.lua
    double trace_ms, passes_ms;
} Built;
// Prints the script's messages to stderr. On error nothing is to be freed; otherwise build_free.
Status read_text(Arena *arena, const char *path, const char **out) MUST_USE; // a whole file
Status build_model(const Options *o, const BuildRequest *r, Built *out) MUST_USE;
void build_free(Built *b);
// What the last script that failed said, for the error event of --json.
extern char script_messages[2048];
Status models_dir(char *out, size_t bytes) MUST_USE; // where the shipped scripts are
Status dtype_parse(const Options *o, Dtype *out) MUST_USE;
Status target_find(const Options *o, const Driver **driver, const char **why) MUST_USE;
Status driver_options(const Options *o, DriverOptions *out, char *cache, size_t cache_bytes) MUST_USE;
Status bytes_parse(const char *text, size_t *out) MUST_USE; // "8GB", "512MB", plain bytes
int64_t default_seq(const Shape *s);

// ---- Counts of a plan (counts.c): formulas of docs/figures.md
typedef struct Counts {
    int64_t params, embed, head, final_norm, norms, matrices, scheme; // by part; they add up to params
    double flops_proj, flops_attn, flops_head,
        flops_scheme;             // forward, a token; multiply-add = 2, causal half
    double row_bytes, row_bound;  // a token, training step
    int kernels, launches, gemms; // distinct; of the micro program
    size_t params_bytes, state_bytes, grads_bytes, acts_bytes, acts_bound, io_bytes;
} Counts;
Counts plan_counts(const Plan *p, const Shape *s);
double row_bytes_bound(const Plan *p, const Shape *s,
                       int64_t seq); // 0 when no bound was derived for the model

void print_costs(const Options *o, const Counts *c); // parameters and flops by part, with the formula

// ---- Output
void human(const Options *o, const char *format, ...)
    PRINTF_LIKE(2, 3);                   // people's text: stdout, or stderr with --json
void emit_json(json_t *object);          // one line on stdout, takes the reference
const char *json_text(const char *text); // valid UTF-8 for json_pack, other bytes as ?; until the next call
size_t peak_resident(void);              // bytes
const char *bytes_text(double bytes, char out[32]); // "1.20 GB"
const char *count_text(double n, char out[32]);     // "14.1 M"
#endif
