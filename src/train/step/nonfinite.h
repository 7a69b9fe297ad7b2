/* Where numbers stop being finite: a batch is computed once more, and every step of it is looked at. */
#ifndef QN_TRAIN_STEP_NONFINITE_H
#define QN_TRAIN_STEP_NONFINITE_H

#include "base/buf.h"
#include "train/step/trainer.h"

/* Appends where the first number that is not finite comes up ("layer 2 (step layer.2.q_proj)"); nothing when
 * all are finite. Nothing is added to the trainer. */
qn_status qn_nonfinite_find(qn_trainer *t, const qn_train_batch *batch, qn_buf *where);

#endif
