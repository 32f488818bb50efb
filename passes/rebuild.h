// Rebuilding a function node by node: the frame that passes share.
#ifndef DEPTHBENCH_PASSES_REBUILD_H
#define DEPTHBENCH_PASSES_REBUILD_H
#include "ir/ir.h"

// Makes the new form of node r of f with operands `in` (already new); returns its first result.
typedef Ref RebuildNode(void *ctx, Builder *b, const Func *f, Ref r, const Ref *in);
// A new function with the same name, outputs and marks, every node made by `node`. Names, places and layers
// are kept.
Func *func_rebuild(Module *m, const Func *f, RebuildNode *node, void *ctx);

// Products of one left operand with several weights become one product with their concat, and slices of it; a
// head's loss and its gradient become one node (merge_dots.c).
Func *merge_dots(Module *m, Func *f);
#endif
