// Runs the programs of a plan on a driver: arenas, binding table, inputs and outputs by name.
#ifndef DEPTHBENCH_RUNTIME_EXEC_H
#define DEPTHBENCH_RUNTIME_EXEC_H
#include "runtime/driver.h"

typedef struct Exec Exec;
// Allocates the arenas, compiles kernels, fills const tables, creates GEMMs. The plan must outlive it.
Status exec_open(const Plan *plan, const Driver *driver, const DriverOptions *options, Exec **out) MUST_USE;
void exec_close(Exec *e);
// Runs a program. micro: number of the micro-batch in its step (gradients are added up from the second on).
Status exec_run(Exec *e, int32_t program, int64_t micro) MUST_USE;
// Writes an input, reads an output, by name. n: elements; must equal the size. f32 values, or int32 for i32.
Status exec_write(Exec *e, const char *name, int32_t program, const void *data, int64_t n) MUST_USE;
Status exec_read(Exec *e, const char *name, int32_t program, float *data, int64_t n) MUST_USE;
// Parameters, by number in Plan.params, in FILE order (transposed on the way when memory differs).
typedef enum ParamPart { PART_VALUE, PART_GRAD, PART_EXP_AVG, PART_EXP_AVG_SQ } ParamPart;
Status exec_param_write(Exec *e, int32_t param, ParamPart part, const float *data) MUST_USE;
Status exec_param_read(Exec *e, int32_t param, ParamPart part, float *data) MUST_USE;
Status exec_refresh_copies(Exec *e) MUST_USE; // bf16 copies from the master values, after writing parameters
void exec_swap(Exec *e, int32_t param_a, int32_t param_b); // exchanges what two parameters are bound to
const CompileStats *exec_compile_stats(const Exec *e);
Status exec_device(Exec *e, DeviceInfo *out) MUST_USE;
// Per-step times of the last run when profiling is on: ms[step].
void exec_profile(Exec *e, bool on);
const double *exec_step_ms(const Exec *e);
// Name of the first buffer written in the last run that holds a value that is not finite; NULL if none. Slow.
Status exec_find_nonfinite(Exec *e, int32_t program, char *name, size_t name_bytes) MUST_USE;
#endif
