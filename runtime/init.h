// Initial values and the counter-based generator behind them (keyed by seed and name; any element computed
// alone).
#ifndef DEPTHBENCH_RUNTIME_INIT_H
#define DEPTHBENCH_RUNTIME_INIT_H
#include "ir/plan.h"

uint64_t rng_mix64(uint64_t z);
uint64_t rng_key(uint64_t seed, const char *name);
uint64_t rng_word(uint64_t key, uint64_t i);
double rng_uniform(uint64_t key, uint64_t i); // 24 bits, [0,1)
// Fills n elements, row-major in file order. INIT_NORMAL: sum of 12 uniforms minus 6, redrawn beyond 3, times
// deviation.
void init_fill(const Init *init, uint64_t seed, const char *name, int64_t n, float *out);
#endif
