// Inside of a run directory, for the training loop.
#ifndef DEPTHBENCH_RUNTIME_RUN_H
#define DEPTHBENCH_RUNTIME_RUN_H
#include "runtime/file.h"
#include "runtime/train.h"

struct Run {
    char dir[FILE_PATH], checkpoints[FILE_PATH];
    char config_hash[33]; // of the keys that must not change
    bool resume;
    int lock;
};
#endif
