#include "train/step/schedule.h"

#include <math.h>

double qn_schedule_rate(const qn_schedule *s, int64_t i)
{
    const int64_t n = s->n_steps - s->warmup_steps;
    if (i < s->warmup_steps) return s->rate * ((double)(i + 1) / (double)s->warmup_steps);
    if (s->kind == QN_SCHEDULE_CONSTANT || n < 1) return s->rate;
    double done = (double)(i - s->warmup_steps) / (double)n;
    if (done > 1) done = 1;
    const double share =
        s->kind == QN_SCHEDULE_LINEAR ? 1 - done : 0.5 * (1 + cos(3.14159265358979323846 * done));
    return s->end_rate + (s->rate - s->end_rate) * share;
}
