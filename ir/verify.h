// The parts of the verifier, for the parser, which knows the line of each breach. Every text begins with the
// rule that is broken (the list is on top of verify.c); code 2.
#ifndef DEPTHBENCH_IR_VERIFY_H
#define DEPTHBENCH_IR_VERIFY_H
#include "ir/ir.h"

Status verify_axis(const Axis *a) MUST_USE;
Status verify_param(const Module *m, const Param *p) MUST_USE;
// *where: the node that breaks the rule; 0: the function as a whole.
Status verify_func(const Module *m, const Func *f, Ref *where) MUST_USE;
#endif
