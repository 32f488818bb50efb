// metrics.jsonl and TensorBoard event files of a run. Lines and records are written whole, one write each.
#ifndef DEPTHBENCH_RUNTIME_METRICS_H
#define DEPTHBENCH_RUNTIME_METRICS_H
#include "ir/base.h"

typedef struct Metrics Metrics;
// from_step 0: new files. Else the run goes on after that step: lines of later steps and a torn last line are
// cut off metrics.jsonl (a "val" line of from_step itself too, unless keep_val), and a new event file begins
// with a mark at which viewers drop what lies beyond.
Status metrics_open(const char *run, int64_t from_step, bool keep_val, Metrics **out) MUST_USE;
void metrics_close(Metrics *m);
// One JSON object, without line end.
Status metrics_line(Metrics *m, const char *json, size_t n) MUST_USE;
// A value in the event file; tag as "train/loss".
Status metrics_scalar(Metrics *m, int64_t step, const char *tag, float value) MUST_USE;

uint32_t crc32c(const void *data, size_t n);
#endif
