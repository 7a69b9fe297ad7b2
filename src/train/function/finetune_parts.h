/* A model as a function of arrays, as the files of this folder share it. One thread at a time. */
#ifndef QN_TRAIN_FUNCTION_FINETUNE_PARTS_H
#define QN_TRAIN_FUNCTION_FINETUNE_PARTS_H

#include <quern/finetune.h>

#include "train/run/run_options.h"
#include "train/step/base.h"
#include "train/step/trainable.h"

struct qn_finetune {
    qn_run_options options; /* their fields of what is trained, with all defaults */
    qn_train_base base;     /* of the open model */
    qn_scope *scope;
    qn_trainable trainable;
    /* finetune_step.c: the optimiser's numbers [trainable.n], NULL before the first step or if its kind has
     * none; which kind; steps taken. */
    float **m, **v;
    size_t moments_bytes; /* of these, in the ledger */
    qn_optimizer_kind kind;
    int64_t step;
};

void qn_finetune_free_moments(qn_finetune *f);

#endif
