// Learning rates: see schedule.h.
#include "runtime/schedule.h"
#include <math.h>

const char *const decay_names[N_DECAYS] = {"cosine", "linear", "constant"};

double schedule_rate(const Schedule *s, int64_t step) {
    if (step < s->warmup)
        return s->peak * ((double)step / (double)s->warmup);
    if (s->decay == DECAY_CONSTANT)
        return s->peak;
    double low = s->peak * s->min_ratio;
    if (step >= s->steps)
        return low;
    double done = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
    double share = s->decay == DECAY_LINEAR ? 1 - done : (1 + cos(3.14159265358979323846 * done)) / 2;
    return fmin(low + (s->peak - low) * share, s->peak);
}

Status schedule_check(const Schedule *s) {
    if (!isfinite(s->peak) || s->peak <= 0)
        return status_make(EXIT_REQUEST, "--lr %g: a learning rate is a positive number", s->peak);
    if (!(s->min_ratio >= 0 && s->min_ratio <= 1))
        return status_make(EXIT_REQUEST, "--min-lr-ratio %g: choose a number from 0 to 1", s->min_ratio);
    if (s->warmup < 0)
        return status_make(EXIT_REQUEST, "--warmup %lld: choose 0 or more", (long long)s->warmup);
    if (s->steps < 1)
        return status_make(EXIT_REQUEST, "--steps %lld: choose 1 or more", (long long)s->steps);
    return STATUS_OK;
}
