// What train needs before its first step: tokenizer, plan that fits, data, schedule, run directory.
#ifndef DEPTHBENCH_FRONTEND_TRAIN_SETUP_H
#define DEPTHBENCH_FRONTEND_TRAIN_SETUP_H
#include "frontend/cli/cli.h"
#include "runtime/train.h"

typedef struct Setup {
    const Options *o;
    const Driver *driver;
    const char *why; // of the target
    DriverOptions driver_options;
    char cache[4200];
    DeviceInfo device;
    double peak_flops;      // measured GEMM rate of the compute type; 0: unknown
    double flops_per_token; // training step
    Tokenizer *tokenizer;   // NULL: token files only
    Built built;
    Counts counts;
    int64_t batch, micro_batch, seq;
    uint64_t seed;
    Data *data, *val;
    Schedule schedule;
    Run *run;
} Setup;

// On error everything is closed again.
Status setup_open(const Options *o, Setup *out) MUST_USE;
// Opens the run directory: after kernels are compiled, so that what fails before leaves nothing behind.
Status setup_run(Setup *s) MUST_USE;
void setup_table(Setup *s); // the start table, to people and as one JSON object
void setup_close(Setup *s);
#endif
