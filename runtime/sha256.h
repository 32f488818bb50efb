// SHA-256 (FIPS 180-4), for manifests that other tools can check.
#ifndef DEPTHBENCH_RUNTIME_SHA256_H
#define DEPTHBENCH_RUNTIME_SHA256_H
#include "ir/base.h"

typedef struct Sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[64];
    bool plain; // set after sha256_init: the processor's own instructions are left alone (tests)
} Sha256;
void sha256_init(Sha256 *s);
void sha256_add(Sha256 *s, const void *data, size_t n);
void sha256_hex(const Sha256 *s, char out[65]); // of all bytes so far; more can be added afterwards
Status sha256_file(const char *path, char out[65], uint64_t *bytes) MUST_USE;
#endif
