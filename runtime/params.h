// Parameters and moments between the device and safetensors files, one tensor's copy at a time.
#ifndef DEPTHBENCH_RUNTIME_PARAMS_H
#define DEPTHBENCH_RUNTIME_PARAMS_H
#include "runtime/checkpoint.h"
#include "runtime/safetensors.h"

enum { PARAM_NAME = 256 };
int64_t params_count(const PlanParam *q); // elements
// Reads these parts (NAME, NAME.exp_avg, NAME.exp_avg_sq) of all parameters; all differences are noted before
// anything is written to the device.
Status params_read(const char *path, Exec *e, const Plan *p, const ParamPart *parts, int n_parts,
                   Notes notes) MUST_USE;
Status params_write(const char *path, Exec *e, const Plan *p, const ParamPart *parts, int n_parts,
                    char sha256[65], uint64_t *bytes) MUST_USE;
#endif
