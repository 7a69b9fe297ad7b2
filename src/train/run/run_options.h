/* The options of a training with every default filled in and every bound checked, and what of them the steps
 * depend on. Immutable once made; any thread. */
#ifndef QN_TRAIN_RUN_RUN_OPTIONS_H
#define QN_TRAIN_RUN_RUN_OPTIONS_H

#include <quern/train.h>

#include "train/data/dataset.h"
#include "train/step/schedule.h"
#include "train/step/trainer.h"

/* Strings are the owner's copies. n_steps 0: as many as n_epochs take. rank and alpha 0: as the adapter has
 * them that it begins with (run_start.h). */
typedef struct {
    qn_train_options o;
} qn_run_options;

/* QN_E_ARG: a value that cannot work (message: which). */
qn_status qn_run_options_make(const qn_train_options *given, qn_run_options *out);
/* The same without a look at the paths of model, data and output. */
qn_status qn_run_options_make_without_files(const qn_train_options *given, qn_run_options *out);
/* Accepts a zeroed one. */
void qn_run_options_free(qn_run_options *r);
/* A line for each setting that was given and belongs to another method, optimiser or schedule. */
void qn_run_options_note_unused(const qn_train_options *given, qn_buf *notes);

/* As parts of a training take them. vocab_size: the model's. */
qn_dataset_options qn_run_options_data(const qn_run_options *r, int64_t vocab_size);
qn_trainer_options qn_run_options_trainer(const qn_run_options *r);
qn_schedule qn_run_options_schedule(const qn_run_options *r, int64_t n_steps);

/* Appends lines of "name=value": what the steps depend on beside the trainer's own options, which a state
 * keeps by itself. data: hash of the file that is trained on; summary: of all its lines. */
void qn_run_options_describe(const qn_run_options *r, int64_t n_steps, uint64_t data,
                             const qn_dataset_summary *summary, qn_buf *out);

#endif
