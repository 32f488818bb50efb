// Kernel texts. A row kernel is printed for rows [item0, item1) of its row space; see runtime/driver.h for
// the C interface that the prelude repeats.
#ifndef DEPTHBENCH_CODEGEN_H
#define DEPTHBENCH_CODEGEN_H
#include "ir/ir.h"

// Host: readable C17 with GNU vectors of 16 floats; the text is complete (prelude included) and exports one
// function NAME.
const char *codegen_c_row(Arena *a, const Module *m, const Func *kernel, const char *name);
const char *codegen_c_finish(Arena *a, const char *name);
const char *codegen_c_scatter(Arena *a, Dtype x, const char *name);
// Flash-style causal attention of one (batch, kv head) an item, any even head_dim from 2 to 256, `group`
// query heads each.
const char *codegen_c_attention(Arena *a, int head_dim, int group, Dtype dtype, bool grad, const char *name);
#endif
