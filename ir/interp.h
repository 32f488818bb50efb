// Shared by the parts of the evaluator: strides of named axes over dense tensors.
#ifndef DEPTHBENCH_IR_INTERP_H
#define DEPTHBENCH_IR_INTERP_H
#include "ir/ir.h"

// Distance in elements between neighbours along `axis`; 0 where the type lacks it (a broadcast).
int64_t interp_stride(const Module *m, const Type *t, AxisId axis);

// Steps through the elements of one type in order, with the offset of a (broadcast) operand.
typedef struct Cursor {
    int rank;
    int64_t size[MAX_RANK], at[MAX_RANK], stride[MAX_RANK], offset;
} Cursor;
Cursor cursor_make(const Module *m, const Type *out, const Type *x);
void cursor_next(Cursor *c);

// The float64 definitions of composites. in[] dense values of node r's operands, out[] zeroed results.
void interp_dot(const Module *m, const Tensor *x, const Tensor *y, Tensor *out);
void interp_attention(const Module *m, double scale, const Tensor *in, Tensor *out);      // o, lse
void interp_attention_grad(const Module *m, double scale, const Tensor *in, Tensor *out); // dq, dk, dv
// loss (, dx, dw); an error where a target is not below the size of the vocabulary
Status interp_head(const Module *m, bool grad, const Tensor *in, Tensor *out) MUST_USE;
#endif
