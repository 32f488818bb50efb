// Learning rates. Step numbers begin at 1.
#ifndef DEPTHBENCH_RUNTIME_SCHEDULE_H
#define DEPTHBENCH_RUNTIME_SCHEDULE_H
#include "ir/base.h"

typedef enum Decay { DECAY_COSINE, DECAY_LINEAR, DECAY_CONSTANT, N_DECAYS } Decay;
extern const char *const decay_names[N_DECAYS];

typedef struct Schedule {
    Decay decay;
    int64_t warmup, steps; // warmup of all or more steps: the rate rises to the end
    double peak, min_ratio;
} Schedule;
// The rate of a step: peak k/warmup before warmup, then from peak down to min_ratio peak at the last step and
// after it. Finite, in [0, peak] for every schedule that schedule_check accepts.
double schedule_rate(const Schedule *s, int64_t step);
// Code 2 with the guilty value: peak not positive and finite, min_ratio outside [0, 1], negative warmup, no
// steps.
Status schedule_check(const Schedule *s) MUST_USE;
#endif
