/* The learning rate at a step. */
#ifndef QN_TRAIN_SCHEDULE_H
#define QN_TRAIN_SCHEDULE_H

#include <stdint.h>

typedef enum { QN_SCHEDULE_CONSTANT, QN_SCHEDULE_LINEAR, QN_SCHEDULE_COSINE } qn_schedule_kind;

typedef struct {
    qn_schedule_kind kind;
    double rate;          /* the highest */
    double final_rate;    /* where linear and cosine end */
    int64_t warmup_steps; /* rising from 0: step i of them has rate * (i + 1) / warmup_steps */
    int64_t n_steps;      /* of the whole run, the warm-up among them; 0: constant after it */
} qn_schedule;

/* Of step i, the first being 0; beyond the last one: as in the last one. */
double qn_schedule_rate(const qn_schedule *s, int64_t step);

#endif
