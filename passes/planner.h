// What the files that build a plan share (plan*.c, head.c, memory.c); nobody else includes it.
//
// Every value of a program gets a Place: a buffer, an offset and one stride an axis. Views are arithmetic on
// places and cost nothing; a step that needs a friendlier layout than it finds makes a copy first.
#ifndef DEPTHBENCH_PLANNER_H
#define DEPTHBENCH_PLANNER_H
#include "passes/passes.h"

typedef struct Place { // element (i, j, ..) is at offset + i*stride[0] + j*stride[1] + ..
    int32_t buffer;    // -1: none yet
    int64_t offset;    // elements
    int64_t stride[MAX_RANK];
} Place;

typedef struct Value {
    Type type;
    Place at;
} Value;

typedef struct PlanTarget { // where an output of the program must end
    Value value;
    Accumulate acc;
} PlanTarget;

typedef struct InPlace { // at this step result buffer `to` could take the place of operand buffer `from`
    int32_t step, from, to;
} InPlace;
typedef VEC(InPlace) InPlaceList;

typedef struct Planner {
    Module *m;
    const PassOptions *o;
    Plan *plan;
    ParamLayout layout;
    int32_t *kernel_of;           // plan kernel of each function of the module; -1: not printed yet
    VEC(const char *) kernel_key; // hash of each plan kernel's text under a neutral name
    // of the program in work
    int32_t program;
    const Func *f;
    Place *at;          // by Ref
    Accumulate *acc;    // by Ref: how a value that lies in its final place is written
    uint32_t *uses;     // by Ref: operands and outputs that name it
    bool *constant;     // by Ref: depends on no input and no parameter
    PlanTarget *target; // by output
    const Node *origin; // the node that steps are made for
    InPlaceList in_place;
    int32_t sort_ids, sort_order; // buffers of the last STEP_SORT; -1: none
} Planner;

// ---- Places (plan_views.c)
Place place_none(void);
Place place_dense(const Module *m, const Type *t, int32_t buffer);
// Axes [from, rank) lie as in a dense value.
bool place_dense_from(const Module *m, const Type *t, const Place *p, int from);
bool place_inner_dense(const Module *m, const Type *t, const Place *p); // all axes but the row axes
bool place_same(const Planner *p, const Type *t, const Place *a, const Place *b);
int type_axis(const Type *t, AxisId axis); // its index, -1 when absent
int64_t axis_size(const Module *m, AxisId axis);
// Place of the result of view n from that of its operand (type in), and the other way round; false when
// strides alone cannot say it.
bool view_forward(const Module *m, const Node *n, const Type *in, const Place *x, Place *out);
bool view_backward(const Module *m, const Node *n, const Type *in, const Place *y, Place *out);
// Place of operand i (type part) inside of a concat.
Place concat_part(const Planner *p, Ref concat, int i, const Place *whole);
// A concat whose operands already lie side by side.
bool concat_adjacent(const Planner *p, Ref concat, Place *out);

// ---- Where results go before anything is emitted (plan_pins.c)
// Decides places of outputs and of the parts of concats, from the outputs backwards.
void pins_decide(Planner *p);

// ---- Buffers, kernels (plan_kernels.c)
int32_t buffer_new(Planner *p, const char *name, ArenaId arena, Dtype dtype, size_t offset, int64_t count);
int32_t buffer_acts(Planner *p, Ref r, const char *what, Dtype dtype, int64_t count);
Func *kernel_func(Planner *p, const char *name, int n_rows, const AxisId *rows); // outside of the module
int32_t kernel_row(Planner *p, const Func *f);
int32_t kernel_finish(Planner *p);
int32_t kernel_scatter(Planner *p, Dtype x);
int32_t kernel_attention(Planner *p, int head_dim, int group, Dtype dtype, bool grad);
const char *origin_text(const Planner *p, const Node *n);

// ---- Steps (plan_steps.c, plan_gemm.c, head.c)
int32_t strips_of(const Planner *p, int64_t items, int64_t per_strip);
PlanStep *step_begin(Planner *p, StepKind kind);
void step_arg(Planner *p, PlanStep *s, int32_t buffer, int64_t offset, int n, const int64_t *stride);
// One launch of a row kernel: operands but for launch scalars, results, how each result is written.
typedef struct LaunchSpec {
    const Func *f;
    int32_t kernel;
    int n_in, n_out, n_scalars;
    const Value *in, *out;
    const Accumulate *acc;
    const float *scalars;
} LaunchSpec;
void emit_launch(Planner *p, const LaunchSpec *l);
// to (+)= from[0] + from[1] + ..: both dense f32.
void emit_finish(Planner *p, int32_t from, int64_t offset, int64_t strips, const Place *to, int64_t count,
                 Accumulate acc);
void emit_copy(Planner *p, const Value *from, const Value *to);
// A value with all axes but rows dense (or all axes): itself, or a copy of it.
Value value_inner_dense(Planner *p, const Value *v);
Value value_dense(Planner *p, const Value *v);
void emit_attention(Planner *p, Ref r);
void emit_scatter(Planner *p, Ref r);
void emit_dot(Planner *p, const Value *x, const Value *y, const Value *out, Accumulate acc);
bool dot_output_fits(const Module *m, const Type *x, const Type *y, const Value *out);
void emit_head(Planner *p, Ref r);
Value value_at(Planner *p, Ref r);     // of an operand that exists
Value value_result(Planner *p, Ref r); // of a result: where it was pinned, else a new buffer
// One GEMM step; places are offsets in buffers, leading sizes as in PlanStep.
typedef struct GemmSpec {
    int64_t m, n, k, lda, ldb, ldc;
    bool trans_a, trans_b;
    int32_t a, b, c; // buffers
    int64_t a0, b0, c0;
    Accumulate acc;
} GemmSpec;
void emit_gemm(Planner *p, const GemmSpec *g);
// Rows of a value (all its row axes) as one axis: number and distance; false when the strides are not
// uniform.
bool rows_flatten(const Module *m, const Value *v, int64_t *n, int64_t *stride);

// ---- Memory (memory.c): offsets of the acts buffers of one program, its peak and bound. in_place in order
// of steps.
void memory_place(Plan *plan, int32_t program, const InPlaceList *in_place);
#endif
