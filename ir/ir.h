// The intermediate representation: typed SSA over named axes (docs/ir.md).
//
// A Module owns axes, parameters and functions. A Func is an array of Nodes in topological order; no regions,
// no control flow: depth is unrolled here and rolled again in the kernels, by hash. A fused kernel is a Func
// too, with the row axes of its rows kept in its types, so evaluator, verifier, printer and parser are one
// code for both.
//
// Node 0 of each Func is the poison value: builders return it after a reported error and accept it silently.
// A node with n_out > 1 is followed by n_out-1 nodes of OP_OUT: result k of node i is node i+k.
#ifndef DEPTHBENCH_IR_IR_H
#define DEPTHBENCH_IR_IR_H
#include "ir/base.h"

typedef uint32_t Ref; // index of a node in its Func; 0 is poison
typedef uint8_t AxisId;
enum { MAX_RANK = 8, MAX_ATTR_AXES = 6, MAX_AXES = 250, AXIS_NONE = 255, MAX_SMALL = 32 };

// row: iteration space (batch b, position s, head h); sizes never appear in kernel text.
// small: at most MAX_SMALL, unrolled into registers. wide: contiguous, innermost, vectorised.
typedef enum AxisKind { AXIS_ROW, AXIS_SMALL, AXIS_WIDE } AxisKind;
typedef struct Axis {
    const char *name;
    AxisKind kind;
    int32_t size;
} Axis;

typedef enum Dtype { DT_F32, DT_BF16, DT_I32, N_DTYPES } Dtype;

// Axes in canonical order: rows, then small, then wide; rows and smalls by axis number, wides in order of
// first operand.
typedef struct Type {
    uint8_t dtype, rank;
    AxisId axis[MAX_RANK];
} Type;

// A place in the person's Lua: the line that called the op, and the caller of that function. line 0: absent.
typedef struct Loc {
    uint8_t file[2]; // index into Module.files
    uint16_t line[2];
} Loc;

typedef enum OpClass {
    CLASS_MAP,    // elementwise with broadcast by axis name
    CLASS_REDUCE, // sum, max over the axes in ax[]
    CLASS_VIEW,   // addresses only
    CLASS_DOT,    // contraction of every axis that both operands have
    CLASS_ATTN,   // attention and its gradient
    CLASS_GATHER, // indexed rows
    CLASS_HEAD,   // projection to the vocabulary with cross-entropy
    CLASS_DATA,   // inputs, parameters, constants, calls
} OpClass;

// clang-format off
typedef enum Op {
    OP_POISON,
#define OP(name, cls, arity, math, grad, cost, test, doc) OP_##name,
#include "ir/ops.def"
    N_OPS
} Op;
// clang-format on

typedef struct OpInfo {
    const char *name;
    OpClass cls;
    int8_t n_in; // -1: any number
    const char
        *math;   // formula in a, b, c (MAP) or a, acc (REDUCE); NULL else. Words: see codegen/prelude_c.h
    float flops; // per element
    const char *doc;
} OpInfo;
extern const OpInfo op_info[N_OPS];

typedef struct Node {
    uint16_t op;
    uint8_t n_in, n_out;
    uint8_t n_ax;
    AxisId ax[MAX_ATTR_AXES]; // axis attributes, see ops.def
    Type type;
    uint32_t in0;     // first input in Func.ins
    int32_t k;        // integer attribute: slice start, result number, parameter, callee, input number
    double f;         // constant value, attention scale
    const char *name; // OP_input: its name
    Loc loc;
    int16_t layer; // the layer it was made in; -1: none
    bool late; // rebuilt for backward: computed right before its use, never shared with the value it repeats
} Node;

typedef struct NamedRef {
    const char *name;
    Ref ref;
} NamedRef;

// Outputs of a graph are named ("loss", "grad.NAME", "hidden.3"); what a name is stored in is the plan's
// business. Marks are values that a plan may ask for (depth states, taps, logits); dead code unless it does.
typedef struct Func {
    const char *name;
    bool is_kernel;
    uint8_t n_row_axes; // kernel: its row space, in canonical order
    AxisId row_axes[4];
    VEC(Node) nodes;
    VEC(Ref) ins;
    VEC(NamedRef) outputs;
    VEC(NamedRef) marks;
} Func;

// Initial values: counter-based from (seed, parameter name), so targets, ranks and architectures share bits.
typedef enum InitKind { INIT_CONST, INIT_NORMAL, INIT_TABLE } InitKind;
typedef struct Init {
    InitKind kind;
    double value;        // INIT_CONST: the value; INIT_NORMAL: deviation of a normal cut at 3 deviations
    const double *table; // INIT_TABLE: row-major in file order
} Init;

typedef struct Param {
    const char *name; // "layers.3.attn.wq.weight"
    Type file;        // axes in the order of the file
    Type type;        // canonical: small before wide; wide axes keep file order
    Init init;
    bool decay, trained;
    int16_t owner;    // layer that owns it, -1: none
    const char *role; // name inside its layer; swaps exchange equal roles
    Loc loc;
} Param;

typedef struct Module {
    Arena *arena;
    VEC(Axis) axes;
    VEC(const char *) files; // 0 is ""
    VEC(Param) params;
    VEC(Func *) funcs;
    const char *model; // name of the script, for texts
    int32_t n_layer;
} Module;

// ---- Diagnostics: mistakes of the person. Sticky; at most MAX_DIAGS are kept.
// clang-format off
typedef enum DiagKind {
#define DIAG(id, format, hint) DIAG_##id,
#include "ir/diag.def"
    N_DIAGS
} DiagKind;
// clang-format on
enum { MAX_DIAGS = 20 };
typedef struct Diag {
    DiagKind kind;
    Loc loc;
    const char *text; // without place and hint
} Diag;
typedef struct Diags {
    Arena *arena;
    VEC(Diag) list;
    uint32_t dropped; // beyond MAX_DIAGS
} Diags;
void diag_add(Diags *d, Loc loc, DiagKind kind, ...); // arguments as the format in diag.def asks
const char *diag_hint(DiagKind kind);                 // "" when there is none

// ---- Module and types (ir.c)
Module *module_new(Arena *arena, const char *model);
AxisId module_axis(Module *m, const char *name, AxisKind kind,
                   int32_t size);                           // same name, kind, size: same axis
AxisId module_find_axis(const Module *m, const char *name); // AXIS_NONE when absent
int32_t module_param(const Module *m, const char *name);    // -1 when absent
Func *module_func(Module *m, const char *name);             // new, empty but for poison
Func *module_find_func(const Module *m, const char *name);

Type type_make(const Module *m, Dtype dtype, int rank, const AxisId *axes); // sorts into canonical order
bool type_has(const Type *t, AxisId axis);
bool type_same(const Type *a, const Type *b); // dtype, axes and their order
int64_t type_count(const Module *m, const Type *t);
size_t dtype_bytes(Dtype dtype);
const char *dtype_name(Dtype dtype);
// Broadcast of two types: union of axes in canonical order, dtype of a.
Type type_union(const Module *m, const Type *a, const Type *b);
// Row axes of a type, in order; returns their number.
int type_rows(const Module *m, const Type *t, AxisId out[MAX_RANK]);
// "f32[b,s,d]" into a buffer of 128 bytes; returns it.
const char *type_text(const Module *m, const Type *t, char out[128]);

// ---- Builder. Location, layer and diagnostics go into every node. With diags NULL a type error is a CHECK
// failure.
typedef struct Builder {
    Module *m;
    Func *f;
    Diags *diags;
    Loc loc;
    int16_t layer;
} Builder;

static inline Node *node_at(const Func *f, Ref r) {
    return &f->nodes.at[r];
}
// The node of which r is a result: itself, or the op before an OP_out.
static inline Ref node_base(const Func *f, Ref r) {
    return f->nodes.at[r].op == OP_out ? r - (Ref)f->nodes.at[r].k : r;
}
static inline Ref node_in(const Func *f, Ref r, int i) {
    return f->ins.at[f->nodes.at[r].in0 + (uint32_t)i];
}

// The launch scalar that an input of a kernel stands for: those named "s0", "s1", .. of type f32[] are read
// from KernelArgs.scalar at that number and take no place among the arguments. -1: an argument in memory.
static inline int input_scalar(const Node *n) {
    int number = 0, i = 1;
    if (n->op != OP_input || n->type.rank || n->type.dtype != DT_F32 || n->name[0] != 's')
        return -1;
    for (; n->name[i] >= '0' && n->name[i] <= '9' && i < 5; i++)
        number = 10 * number + n->name[i] - '0';
    return i > 1 && !n->name[i] ? number : -1;
}

// Result type of a node from its op, attributes and input types; false with a diag when it has none. The one
// place that knows the typing rules: builder, parser and verifier all call it. `out` has n_out types (1 for
// most ops).
bool ir_infer(Builder *b, const Node *proto, const Ref *in, Type *out);
// Appends a node as given (op, attributes), inferring its type; returns its first result.
Ref ir_node(Builder *b, Node proto, int n_in, const Ref *in);
// Copies node r of `from` into b->f with new inputs (callers map the refs), keeping attributes, loc and
// layer.
Ref ir_copy(Builder *b, const Func *from, Ref r, const Ref *in);

Ref ir_map(Builder *b, Op op, const Ref *in); // any MAP op of the table
// clang-format off
#define ARGS_1 Ref x
#define ARGS_2 Ref x, Ref y
#define ARGS_3 Ref x, Ref y, Ref z
#define PASS_1 x
#define PASS_2 x, y
#define PASS_3 x, y, z
#define BUILD_MAP(name, n) static inline Ref ir_##name(Builder *b, ARGS_##n) { Ref in[] = {PASS_##n}; return ir_map(b, OP_##name, in); }
#define BUILD_REDUCE(name, n)
#define BUILD_VIEW(name, n)
#define BUILD_DOT(name, n)
#define BUILD_ATTN(name, n)
#define BUILD_GATHER(name, n)
#define BUILD_HEAD(name, n)
#define BUILD_DATA(name, n)
#define OP(name, cls, arity, math, grad, cost, test, doc) BUILD_##cls(name, arity)
#include "ir/ops.def"
// clang-format on

Ref ir_const(Builder *b, double value);                // f32[]; interned in the Func
Ref ir_fill(Builder *b, double value, AxisId axis);    // f32[axis], every element the value
Ref ir_iota(Builder *b, AxisId axis);                  // f32[axis]: 0, 1, 2 ...
Ref ir_input(Builder *b, const char *name, Type type); // interned by name
Ref ir_param(Builder *b, int32_t param);               // interned by number
Ref ir_constant(Builder *b, Ref x); // evaluated in f64 when compiled; x depends on no input
Ref ir_stop_grad(Builder *b, Ref x);
Ref ir_cast(Builder *b, Ref x, Dtype to);                           // x itself when it has the type
Ref ir_reduce(Builder *b, Op op, Ref x, int n, const AxisId *axes); // OP_sum or OP_max over one or more axes
Ref ir_rename(Builder *b, Ref x, AxisId from, AxisId to);
Ref ir_split(Builder *b, Ref x, AxisId from, int n, const AxisId *to); // from -> to[0] x to[1] x ..
Ref ir_merge(Builder *b, Ref x, int n, const AxisId *from, AxisId to);
Ref ir_slice(Builder *b, Ref x, AxisId axis, AxisId to,
             int32_t from); // to AXIS_NONE: one index, axis dropped
Ref ir_concat(Builder *b, AxisId to, int n, const Ref *x,
              const AxisId *axes);                // axes[i] AXIS_NONE: x[i] has size 1
Ref ir_one_hot(Builder *b, Ref ids, AxisId axis); // ids i32[..] -> f32[.., axis]
Ref ir_dot(Builder *b, Ref x, Ref y);
Ref ir_gather(Builder *b, Ref table, Ref ids);                   // [v,d], i32[rows] -> [rows,d]
Ref ir_scatter_sum(Builder *b, Ref x, Ref ids, AxisId v);        // [rows,d], i32[rows] -> [v,d]
Ref ir_attention(Builder *b, Ref q, Ref k, Ref v, double scale); // results o, lse
Ref ir_attention_grad(Builder *b, Ref q, Ref k, Ref v, Ref o, Ref lse, Ref g,
                      double scale);                              // results dq, dk, dv
Ref ir_head_loss(Builder *b, Ref x, Ref w, Ref targets, Ref inv); // f32[rows]
Ref ir_head_loss_grad(Builder *b, Ref x, Ref w, Ref targets, Ref inv,
                      Ref g);                                     // results loss f32[rows], dx, dw
Ref ir_call(Builder *b, int32_t callee, int n_in, const Ref *in); // results: the callee's outputs

// Copies a function of a module with everything reachable from its outputs and marks (DCE on the way).
Func *func_clone_live(Module *m, const Func *f, bool keep_marks);

// ---- Text: print(parse(print(x))) == print(x), byte for byte.
void ir_print(Text *out, const Module *m);
void ir_print_func(Text *out, const Module *m, const Func *f);
// A kernel's identity: its text without names, places and row sizes; literals become launch scalars.
Status ir_parse(Arena *arena, const char *text, const char *file,
                Module **out) MUST_USE; // errors name FILE:LINE

// ---- Verifier: the rules are listed on top of verify.c. An error is ours (CHECK) unless `diags` is given.
void ir_verify(const Module *m, const char *after_pass);
bool ir_attributes_fit(const Module *m, const Func *f,
                       const Node *n);             // counts and ranges of a node's attributes
Status ir_verify_status(const Module *m) MUST_USE; // for text given by a person: code 2

// ---- Evaluator: float64, slow, the definition of every op. Values are dense row-major in the type's axis
// order.
typedef struct Tensor {
    Type type;
    double *at; // type_count elements; i32 as integers; bf16 values already rounded where the dump says cast
} Tensor;
typedef struct Env { // what inputs and parameters are bound to; NULL result: not bound, an error
    void *ctx;
    const double *(*param)(void *ctx, int32_t param); // canonical order
    const double *(*input)(void *ctx, const char *name);
} Env;
// Evaluates every node that the outputs (and marks, when asked) need; result[i] for outputs then marks.
Status interp_run(Arena *arena, const Module *m, const Func *f, const Env *env, bool marks,
                  Tensor *result) MUST_USE;
double round_bf16(double x); // to nearest even
double ir_map_value(Op op, double a, double b,
                    double c); // MATH of a MAP op; operands beyond its number are not read
#endif
