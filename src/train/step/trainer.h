/* The training step: forward, loss, gradients, update.
 *
 * The loss is the mean cross-entropy of all targets of the batches between two updates, however they are cut
 * into batches: qn_trainer_add sums losses and gradients, qn_trainer_update divides by the targets.
 * Invariant: what is computed depends on the batches and their order, not on the number of threads. A failed
 * call changes no trained number. One thread at a time. */
#ifndef QN_TRAIN_STEP_TRAINER_H
#define QN_TRAIN_STEP_TRAINER_H

#include "train/data/batch.h"
#include "train/step/optimizer.h"
#include "train/step/trainable.h"

typedef struct {
    qn_trainable_options trainable;
    qn_optimizer optimizer;
    double clip_norm;      /* the gradient's length is cut to it; 0: never */
    int checkpoint_layers; /* 1: layers are computed again for their gradients: less memory, the same bits */
    /* The largest batch: tokens, sequences, targets (0: as many as tokens). */
    int64_t max_rows, max_sequences, max_targets;
    qn_precision precision; /* of the products with the base's weights */
} qn_trainer_options;

typedef struct {
    int64_t step;      /* the first is 1 */
    int64_t n_targets; /* of the step */
    double loss;       /* mean over them, before the update */
    double grad_norm;  /* of the mean's gradient, before it was cut */
    double rate;
} qn_trainer_report;

typedef struct qn_trainer qn_trainer;

/* base: borrowed until free. QN_E_UNSUPPORTED: the model has a primitive without a gradient between a trained
 * array and the loss (message: which); QN_E_NOMEM: the base's memory limit. */
qn_status qn_trainer_new(const qn_train_base *base, const qn_trainer_options *options, qn_trainer **out);
void qn_trainer_free(qn_trainer *t);

/* The arrays, to be read between calls, or written before the first step. */
qn_trainable *qn_trainer_trainable(qn_trainer *t);
const qn_trainer_options *qn_trainer_get_options(const qn_trainer *t); /* targets NULL: not kept */
const qn_train_base *qn_trainer_base(const qn_trainer *t);
/* Steps taken. */
int64_t qn_trainer_steps(const qn_trainer *t);
/* The optimiser's numbers of array i (optimizer.h): which 0 is m, 1 is v; NULL where it has none. */
float *qn_trainer_moment(qn_trainer *t, int64_t i, int which);
/* Goes on as after so many steps, for who has put all numbers back; what was added is dropped. */
void qn_trainer_resume(qn_trainer *t, int64_t steps);

/* Loss and gradients of a batch, added to what is there since the last update. *loss (may be NULL): mean over
 * this batch. QN_E_ARG: a batch larger than the options allow or without targets, an id outside the
 * vocabulary; QN_E_DEVICE: the loss is not finite (nothing is added). */
qn_status qn_trainer_add(qn_trainer *t, const qn_train_batch *batch, double *loss);
/* Loss and gradients of a batch with every step of the program shown to probe; nothing is added, and a loss
 * that is not finite is no failure. */
qn_status qn_trainer_watch(qn_trainer *t, const qn_train_batch *batch, qn_probe_fn *probe, void *user);
/* Where the program leaves its results: output 0 is the loss, output 1 + i the gradient by array i. */
const void *qn_trainer_output(const qn_trainer *t, int64_t i);
/* The sum of gradients by array i of what was added, [its n elements]; borrowed until the next add. */
const float *qn_trainer_gradient(const qn_trainer *t, int64_t i);
/* One step of the optimiser with this rate. QN_E_ARG: nothing was added; QN_E_DEVICE: the gradient is not
 * finite, no number was changed and what was added is dropped (message: the first array that is not). */
qn_status qn_trainer_update(qn_trainer *t, double rate, qn_trainer_report *out);
/* Bytes of the program of a step: activations, gradients. */
size_t qn_trainer_program_bytes(const qn_trainer *t);
/* Mean loss of a batch with the arrays as they are, and nothing else. */
qn_status qn_trainer_evaluate(qn_trainer *t, const qn_train_batch *batch, double *loss);

#endif
