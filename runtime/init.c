// Initial values from a counter-based generator: any element of any tensor can be computed alone, in any
// order.
//
// A tensor's stream is keyed by (seed, name), so two architectures share the numbers of the parameters they
// share. No library function is involved: the same bits everywhere. Compiled without contraction (see
// CMakeLists.txt).
#include "runtime/init.h"

static const uint64_t golden_gamma = 0x9E3779B97F4A7C15u;

uint64_t rng_mix64(uint64_t z) {
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9u;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t rng_key(uint64_t seed, const char *name) {
    uint64_t h = 0xCBF29CE484222325u;
    for (const char *p = name; *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001B3u;
    return rng_mix64(rng_mix64(seed + golden_gamma) ^ h);
}

uint64_t rng_word(uint64_t key, uint64_t i) {
    return rng_mix64(key + (i + 1) * golden_gamma);
}

double rng_uniform(uint64_t key, uint64_t i) {
    return (double)(rng_word(key, i) >> 40) * 0x1p-24;
}

// Attempt a is the sum of uniforms 12a .. 12a+11 less 6; attempts beyond 3 are dropped.
static void fill_normal(uint64_t key, double deviation, int64_t n, float *out) {
    uint64_t word = 0;
    for (int64_t e = 0; e < n;) {
        double z = 0;
        for (int i = 0; i < 12; i++)
            z += rng_uniform(key, word++);
        z -= 6;
        if (z >= -3 && z <= 3)
            out[e++] = (float)(deviation * z);
    }
}

void init_fill(const Init *init, uint64_t seed, const char *name, int64_t n, float *out) {
    switch (init->kind) {
    case INIT_CONST:
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)init->value;
        break;
    case INIT_NORMAL:
        fill_normal(rng_key(seed, name), init->value, n, out);
        break;
    case INIT_TABLE:
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)init->table[i];
        break;
    }
}
