#include "train/schedule.h"

#include <math.h>

double qn_schedule_rate(const qn_schedule *s, int64_t step)
{
    if (step < s->warmup_steps) return s->rate * (double)(step + 1) / (double)s->warmup_steps;
    if (s->kind == QN_SCHEDULE_CONSTANT || s->n_steps <= s->warmup_steps) return s->rate;
    double done = (double)(step - s->warmup_steps) / (double)(s->n_steps - s->warmup_steps);
    if (done > 1) done = 1;
    double share = s->kind == QN_SCHEDULE_LINEAR ? 1 - done : 0.5 * (1 + cos(3.14159265358979323846 * done));
    return s->final_rate + (s->rate - s->final_rate) * share;
}
