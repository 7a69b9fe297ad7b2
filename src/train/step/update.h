/* A step of the optimiser over one trained array, in whatever type it is kept. */
#ifndef QN_TRAIN_STEP_UPDATE_H
#define QN_TRAIN_STEP_UPDATE_H

#include "train/step/optimizer.h"
#include "train/step/trainable.h"

typedef struct {
    const qn_optimizer *optimizer;
    int64_t step; /* the first is 1 */
    double rate, g_scale;
} qn_update;

/* g, m, v: [n] of array i, as for qn_optimizer_step. Numbers in bf16 are widened, moved in f32 and rounded by
 * draws that belong to seed, step and place. */
void qn_trainable_update(qn_trainable *t, int64_t i, const qn_update *u, const float *g, float *m, float *v);

#endif
