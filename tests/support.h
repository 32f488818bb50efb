// What tests share: traced models, random values for parameters and inputs, evaluation.
#ifndef DEPTHBENCH_TESTS_SUPPORT_H
#define DEPTHBENCH_TESTS_SUPPORT_H
#include "frontend/lua/lua.h"
#include "passes/passes.h"

// Uniform numbers in [-1, 1) by counter: the same everywhere.
double test_uniform(uint64_t seed, uint64_t i);

// Traces a model of models/ (or a path); fails the test on errors. set: "key=value" or NULL.
Module *test_trace(Arena *arena, const char *model, Shape shape, int32_t batch, int32_t seq, const char *set);
// Default options of the passes: f32, training, fused.
PassOptions test_pass_options(void);

// Values for every parameter and input of a module: parameters near what makes every term matter, ids below
// the vocabulary.
typedef struct TestEnv {
    const Module *m;
    double **param;
    VEC(const char *) names; // of inputs
    VEC(double *) inputs;
    Arena *arena;
    int32_t vocab;
} TestEnv;
void test_env(TestEnv *e, Arena *arena, const Module *m, const Func *f, int32_t vocab, uint64_t seed);
Env test_env_of(TestEnv *e);
// Evaluates every output of f; result has f->outputs.n tensors.
Tensor *test_eval(Arena *arena, const Module *m, const Func *f, TestEnv *e);
// Largest |a - b| over the largest |b| (at least `floor`).
double test_error(const Module *m, const Tensor *a, const Tensor *b, double floor);
// Gradients of a model (as in test_trace) in "micro" against central differences of its loss along a random
// direction of every parameter; then expand and simplify2 keep every value.
void test_gradients(const char *model, Shape shape, const char *set);
// The same for a module with the function "loss", whose outputs may be more than the loss.
void test_module_gradients(Arena *arena, Module *m, const char *name, int32_t vocab, uint64_t seed);
#endif
