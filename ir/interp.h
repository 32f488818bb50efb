// Shared by the parts of the evaluator: strides of named axes over dense tensors.
#ifndef DEPTHBENCH_IR_INTERP_H
#define DEPTHBENCH_IR_INTERP_H
#include "ir/ir.h"

// Distance in elements between neighbours along `axis`; 0 where the type lacks it (a broadcast).
int64_t interp_stride(const Module *m, const Type *t, AxisId axis);
// The float64 definitions of composites. in[] dense values of node r's operands, out[] zeroed results.
void interp_dot(const Module *m, const Tensor *x, const Tensor *y, Tensor *out);
void interp_attention(const Module *m, double scale, const Tensor *in, Tensor *out);      // o, lse
void interp_attention_grad(const Module *m, double scale, const Tensor *in, Tensor *out); // dq, dk, dv
void interp_head(const Module *m, bool grad, const Tensor *in, Tensor *out);              // loss (, dx, dw)
#endif
