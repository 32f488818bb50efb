// The plan: pure data that a driver runs. No pointers to the IR: it can be printed, priced (`estimate`) and
// run alone.
//
// Storage is a few arenas, one allocation each; a Buffer is a place in one; a View is a typed window on a
// buffer. A step names views by number; the executor turns buffers into addresses through one binding table,
// so exchanging two parameters is exchanging two entries.
#ifndef DEPTHBENCH_IR_PLAN_H
#define DEPTHBENCH_IR_PLAN_H
#include "ir/base.h"
#include "ir/ir.h"

typedef enum ArenaId {
    ARENA_PARAMS, // f32 master values; [decay | no decay | fixed], each part padded to PLAN_ROW elements
    ARENA_COPIES, // bf16 copies for GEMMs, same element offsets as ARENA_PARAMS; empty for f32
    ARENA_EXP_AVG,
    ARENA_EXP_AVG_SQ,
    ARENA_GRADS, // f32; same offsets as ARENA_PARAMS without the fixed part
    ARENA_ACTS,  // everything between; offsets shared by buffers that do not live together
    ARENA_CONST, // tables that were evaluated when compiled
    ARENA_IO,    // what the runtime writes before a run and reads after it
    N_ARENAS
} ArenaId;
enum { PLAN_ROW = 1024, PLAN_ALIGN = 256, PLAN_MAX_ROWS = 3, PLAN_ATTN_QUERIES = 256 };

typedef struct PlanBuffer {
    const char *name;
    ArenaId arena;
    Dtype dtype;
    size_t offset, bytes; // in its arena
    int32_t first, last;  // steps of its program between which it lives; acts only
    int32_t program;      // -1: all
} PlanBuffer;

// element (i, j, k, ..) of the row axes starts at offset + i*stride[0] + j*stride[1] + k*stride[2], in
// elements
typedef struct PlanView {
    int32_t buffer;
    size_t offset;
    int64_t stride[PLAN_MAX_ROWS]; // of the launch's row axes; 0 where the value lacks the axis
} PlanView;

typedef enum KernelKind {
    // items: rows; size[i]: size of row axis i. args: the operands of the call in order, but for launch
    // scalars (input_scalar in ir.h), then its results in order. A result without row axes of a kernel
    // with row axes is a column sum: the arg is f32[n_strips, elements], strip s overwrites row s of it
    // (dense) with the sums over its own rows. A result may lie in the place of an operand of the same
    // type and strides.
    KERNEL_ROW,
    // adds the strips of a column sum in order. items: groups of 256 elements. args partial f32[strips,
    // elements], out f32[elements]; size[0]: elements, size[1]: strips
    KERNEL_FINISH,
    // items: batch x heads x ceil(seq / PLAN_ATTN_QUERIES), one a strip. args q k v o lse; scalar scale.
    // Strides are those of b, s and head
    KERNEL_ATTN,
    // items: batch x kv heads, one a strip. args q k v o lse g dq dk dv; scalar scale. size[5] 1: D, the
    // number a row that is subtracted from g . v, in the place of o
    KERNEL_ATTN_GRAD,
    // items: vocabulary rows, all written (zeros where no id is). args x, ids, order, out f32[items, d];
    // size[0]: number of ids, size[1]: d. Position i of x starts at i * stride[0]
    KERNEL_SCATTER,
} KernelKind;

typedef struct PlanKernel {
    const char *name; // "mix.7c41", stable for the same content
    KernelKind kind;
    const char *source; // C or CUDA text
    const char *hash;   // of the source
    const char *origin; // Lua lines and layers, for people
    double bytes_per_item, flops_per_item;
    int32_t n_args, n_scalars;
} PlanKernel;

// SORT: order i32[items] = positions of ids, sorted by id, equal ids in order of position (items: number of
// ids).
typedef enum StepKind { STEP_LAUNCH, STEP_GEMM, STEP_SORT, STEP_FILL } StepKind;
// What happens to the target's old value: overwritten; added to from the second micro-batch on; always added
// to.
typedef enum Accumulate { ACC_NO, ACC_MICRO, ACC_YES } Accumulate;

typedef struct PlanStep {
    StepKind kind;
    Accumulate acc;   // GEMM: C. FINISH, SCATTER launches: the last argument
    int32_t kernel;   // LAUNCH
    int64_t items;    // LAUNCH: work items; FILL: elements
    int32_t n_strips; // LAUNCH: fixed partition of the items; strip s is [s*items/n, (s+1)*items/n)
    int64_t size[PLAN_MAX_ROWS + 3]; // LAUNCH row: sizes of the row axes. ATTN: B, S, H, G, head_dim, form
    int32_t arg0, n_args;            // in Plan.views; GEMM: A, B, C; SORT: ids, order; FILL: target
    int32_t scalar0, n_scalars;      // in Plan.scalars
    int64_t m, n, k, lda, ldb,
        ldc;                 // GEMM: C[m,n] = op(A)[m,k] op(B)[k,n], row-major, leading sizes in elements
    bool trans_a, trans_b;   // A is stored [k,m]; B is stored [n,k]
    Dtype dtype_ab, dtype_c; // accumulation is f32
    const char *origin;      // "layers.3 @backbone:12"
    double bytes, flops;
} PlanStep;

typedef struct PlanProgram {
    const char *name; // "micro", "update", "eval"
    int32_t step0, n_steps;
    size_t acts_peak, acts_bound; // planned bytes, and the largest sum of live buffers
} PlanProgram;

typedef struct PlanParam {
    const char *name;
    int32_t buffer, copy_buffer, grad_buffer; // -1: none
    int32_t rank;
    int64_t shape[MAX_RANK];    // in file order
    int8_t order[MAX_RANK];     // memory axis i is file axis order[i]
    const char *axes[MAX_RANK]; // names in file order
    Init init;
    bool decay, trained;
    int16_t owner;
    const char *role;
    const char *loc; // "models/hc.lua:12"
} PlanParam;

// Named places that the runtime fills or reads: "ids", "targets", "inv_tokens", "lr", "loss", "grad_norm",
// "hidden.3" ...
typedef struct PlanIo {
    const char *name;
    int32_t view, program; // program: -1 any
    Dtype dtype;
    int32_t rank;
    int64_t shape[MAX_RANK];
    bool output;
    int64_t low, limit; // i32 inputs: values lie in [low, limit), checked when written; limit 0: any value
} PlanIo;

typedef struct PlanConst {
    int32_t buffer;
    const float *at;
    int64_t n;
} PlanConst;

typedef struct Plan {
    Arena *arena; // owns everything below
    const char *model;
    Dtype compute;      // DT_F32 or DT_BF16
    int64_t batch, seq; // of one micro-batch
    int32_t n_layer;
    size_t arena_bytes[N_ARENAS];
    size_t decay_elems, trained_elems; // parts of the params arena: [0,decay) [decay,trained) [trained,..)
    VEC(PlanBuffer) buffers;
    VEC(PlanView) views;
    VEC(float) scalars;
    VEC(PlanKernel) kernels;
    VEC(PlanStep) steps;
    VEC(PlanProgram) programs;
    VEC(PlanParam) params;
    VEC(PlanIo) io;
    VEC(PlanConst) consts;
    double row_bytes_per_token, row_bytes_bound, flops_per_token;
} Plan;

int32_t plan_program(const Plan *p, const char *name); // -1 when absent
const PlanIo *plan_io(const Plan *p, const char *name, int32_t program);
size_t plan_bytes(const Plan *p); // all arenas together
void plan_print(Text *out, const Plan *p);
const char *arena_id_name(ArenaId id);
#endif
