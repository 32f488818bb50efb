// A row kernel seen as phases: which loop over a wide axis computes what, what is kept between loops.
//
// phase(x) = number of wide reductions on the longest path to x. Section p is the scalar code before the
// loops of phase p; one loop a phase and wide size, all its reductions folded behind it. Wide axes of one
// value count as one flat axis, so loops are told apart by the number of elements alone. Small axes are
// unrolled: an Element is one value of them.
#ifndef DEPTHBENCH_PHASES_H
#define DEPTHBENCH_PHASES_H
#include "ir/ir.h"

enum { PHASES_SCRATCH = 8 << 20, PHASES_LANES = 16 }; // bytes of row values kept between loops, at most

typedef enum Action {
    ACT_NONE,
    ACT_ALIAS,  // a view: its operands are there
    ACT_LOAD,   // an input, from memory
    ACT_CODE,   // computed
    ACT_RELOAD, // kept by an earlier loop
} Action;

typedef enum Hold { HOLD_NO, HOLD_SCRATCH, HOLD_OUTPUT } Hold;

typedef struct RowNode {
    uint32_t number; // in the dump; 0: stands where it is used
    int32_t wide;    // elements of the wide axes; 0: narrow
    int32_t small;   // elements of the small axes
    int32_t arg;     // inputs: number of the argument, or of the launch scalar; -1
    int16_t phase;   // first loop that can compute it; narrow: its section
    int16_t made_in; // wide: the first loop that computes or loads it; -1
    int32_t held_at; // HOLD_SCRATCH: offset in floats; HOLD_OUTPUT: number of the output
    uint8_t hold;    // Hold
    bool live;
    bool once;   // narrow and the same in each row: computed before the rows
    bool column; // sum over the rows
} RowNode;

typedef struct RowLoop {
    int32_t phase, wide;
    uint8_t *action; // by node
} RowLoop;

typedef struct RowKernel {
    Arena *arena;
    const Module *m;
    const Func *f;
    RowNode *node;      // by Ref
    VEC(RowLoop) loops; // in order
    int n_sections;
    int n_inputs;    // arguments before the outputs
    int32_t scratch; // floats
    uint32_t *stamp, stamps;
    double read_bytes, write_bytes, flops; // of one row
} RowKernel;

typedef struct Element {
    Ref ref;
    int32_t index; // row-major over the small axes of ref's type
} Element;

RowKernel *phases_make(Arena *a, const Module *m, const Func *f);
// Follows views to the node that has the value.
Element phases_resolve(const RowKernel *k, Ref r, int32_t index);
// What operand i contributes to element `index` of node r, a MAP or cast; resolved.
Element phases_operand(const RowKernel *k, Ref r, int i, int32_t index);
// Elements of the operand of reduction r that make up element `index`; resolved; returns their number.
int phases_reduced(const RowKernel *k, Ref r, int32_t index, Element **out);
bool phases_is_view(const RowKernel *k, Ref r);
bool phases_has_rows(const RowKernel *k, const Type *t);
// Output i is a sum over the rows.
bool phases_column(const RowKernel *k, uint32_t output);
#endif
