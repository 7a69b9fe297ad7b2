/* The learning rate at a step: a warm-up in equal steps, then constant, or falling in a line or half a cosine
 * to its end, which a step behind the last would have. Pure functions; any thread. */
#ifndef QN_TRAIN_STEP_SCHEDULE_H
#define QN_TRAIN_STEP_SCHEDULE_H

#include <quern/train.h>

typedef struct {
    qn_schedule_kind kind;
    double rate;          /* the highest */
    double end_rate;      /* of LINEAR and COSINE */
    int64_t warmup_steps; /* step i of them has rate * (i + 1) / warmup_steps */
    int64_t n_steps;      /* of the whole run, the warm-up among them */
} qn_schedule;

/* Of step i, the first being 0; beyond the last one: the end. */
double qn_schedule_rate(const qn_schedule *s, int64_t i);

#endif
