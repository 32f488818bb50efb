// What the training loop writes into metrics.jsonl and the event file. metrics NULL: nothing.
#ifndef DEPTHBENCH_RUNTIME_TRAIN_REPORT_H
#define DEPTHBENCH_RUNTIME_TRAIN_REPORT_H
#include "runtime/metrics.h"
#include "runtime/train.h"

Status report_step(Metrics *m, const TrainStep *s) MUST_USE;
Status report_val(Metrics *m, int64_t step, double loss, int64_t tokens) MUST_USE;
#endif
