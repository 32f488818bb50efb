// A fuzz target is one function over bytes; libFuzzer calls it (FUZZ=ON), or loop.c on changes of given
// files.
#ifndef DEPTHBENCH_TESTS_FUZZ_H
#define DEPTHBENCH_TESTS_FUZZ_H
#include "ir/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

// The bytes as a file of this process; always the same path, written anew.
const char *fuzz_file(const uint8_t *data, size_t n);
#endif
