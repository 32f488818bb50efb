// Random modules from a seed, for tests that hold the stages against each other.
//
// The function "loss" has the shape of a model: rows of embedded ids, some dozens of random ops on values
// with rows b, s (maps, sums, norms, skinny and wide products, views of small and wide axes, attention),
// everything gathered into one row and a head. Values stay near 1, and every op leaves its gradient finite.
#ifndef DEPTHBENCH_TESTS_RANDOM_PROGRAM_H
#define DEPTHBENCH_TESTS_RANDOM_PROGRAM_H
#include "ir/ir.h"

enum { RANDOM_VOCAB = 11 };
typedef struct RandomOptions {
    uint64_t seed;
    int n_ops;
    int n_outputs;       // values of the pool that are outputs "out.K" beside the loss
    bool wild;           // also sums over single row axes
    bool whole_gradient; // nothing that stops a gradient
} RandomOptions;

Module *random_module(Arena *a, RandomOptions o);
#endif
