/* AdamW (Loshchilov, Hutter 2017) and SGD with momentum on plain f32 numbers. Every number's update depends
 * on that number alone, so it does not matter who computes which. */
#ifndef QN_TRAIN_STEP_OPTIMIZER_H
#define QN_TRAIN_STEP_OPTIMIZER_H

#include <quern/train.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    qn_optimizer_kind kind;
    double beta1, beta2, eps; /* AdamW */
    double weight_decay;      /* of the number itself, times the rate, before its step; both kinds */
    double momentum;          /* SGD: v = momentum * v + g; the step is v */
    int no_bias_correction;   /* AdamW: the means as they are, as mlx does by default */
} qn_optimizer;

/* Arrays that a number of w needs beside it: AdamW 2, SGD 1 with momentum, else 0. */
int qn_optimizer_states(const qn_optimizer *o);

/* Step `step` (the first is 1) of n numbers; g: the gradient, multiplied by g_scale. m, v: zero before the
 * first step; those that qn_optimizer_states does not ask for may be NULL. */
void qn_optimizer_step(const qn_optimizer *o, int64_t step, double rate, double g_scale, int64_t n, float *w,
                       const float *g, float *m, float *v);

#endif
