// What the files of autodiff share (autodiff.c, autodiff_parts.c); nobody else includes it.
#ifndef DEPTHBENCH_PASSES_AUTODIFF_H
#define DEPTHBENCH_PASSES_AUTODIFF_H
#include "passes/passes.h"

typedef struct Part { // the gradient of a slice
    AxisId axis, to;  // to AXIS_NONE: one index
    int32_t from;
    Ref grad;
    uint32_t before; // the part of the same value that was met before this one, +1; 0: none
} Part;

typedef struct Diff {
    Builder b;
    Ref *adj;            // by node: the adjoint so far, 0: none
    bool *wanted;        // by node: depends on a trained parameter
    uint32_t *last_part; // by node: its newest part, +1; 0: none
    VEC(Part) parts;
} Diff;

const Type *diff_type(const Diff *d, Ref r);
// g with every axis of `t`: what it lacks is multiplied in as ones.
Ref diff_spread(Diff *d, Ref g, const Type *t);
// Adds g to the adjoint of x; axes that x lacks are summed. g 0: nothing.
void diff_add(Diff *d, Ref x, Ref g);

// Notes the gradient of a slice of x.
void parts_add(Diff *d, Ref x, Part p);
// All consumers of x have been met: what its slices got becomes part of its adjoint.
void parts_settle(Diff *d, Ref x);
#endif
