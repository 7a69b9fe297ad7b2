/* A training as the files of the run share it: what train.h's handle holds.
 *
 * Invariant between calls: trainer, data set and counters stand right behind the same step, whether calls
 * before succeeded or not. One thread at a time, except for `stop`. */
#ifndef QN_TRAIN_RUN_RUN_H
#define QN_TRAIN_RUN_RUN_H

#include <quern/train.h>
#include <stdatomic.h>

#include "train/files/train_state.h"
#include "train/run/run_log.h"
#include "train/run/run_options.h"

struct qn_training {
    qn_run_options options;
    qn_train_base base;
    qn_chat_text *text;
    qn_dataset *train, *valid; /* valid NULL: none */
    qn_trainer *trainer;
    int64_t max_rows, max_sequences; /* of a batch */
    qn_schedule schedule;
    int64_t n_steps;
    int64_t n_tokens;             /* of all steps */
    int64_t n_step_counted;       /* targets of the last step; 0: none was taken since open */
    int64_t validated;            /* steps taken at the last validation; -1: there was none */
    double valid_loss, best_loss; /* of the last; of all, INFINITY: none */
    int64_t run_ns, run_from;     /* of the run under way: when it began, and behind which step */
    qn_buf notes, settings;
    qn_run_log *log; /* NULL: nothing is written, or not yet */
    atomic_int stop;
};

/* One step. watch: QN_E_CANCELLED, without a message, once `stop` is set; nothing has changed then. */
qn_status qn_training_take_step(qn_training *t, int watch, qn_train_step_report *out);
/* Likewise; the mean loss becomes t->valid_loss. */
qn_status qn_training_take_validation(qn_training *t, int watch);

/* ---- files of out_path (run_files.c) ---- */

/* QN_E_ARG: there is a training in it, and it is neither resumed nor begun anew; QN_E_NOT_FOUND: there is
 * none to be resumed. Writes nothing. */
qn_status qn_run_files_check(const qn_training *t);
/* Without a device of the options: that which computed the state to go on from. */
qn_status qn_run_files_take_device(qn_training *t);
/* The state of out_path into a training that is otherwise open. */
qn_status qn_run_files_restore(qn_training *t);
/* Makes the folder, opens the log, and writes a first state where there is none. */
qn_status qn_run_files_begin(qn_training *t);
/* The state; and what is trained, as the last or the best. saved gets the path, owned by the caller.
 * QN_E_DEVICE: a number that is trained is not finite (message: of which array); nothing is written. */
qn_status qn_run_files_save_state(qn_training *t);
qn_status qn_run_files_save_last(qn_training *t, char **saved);
qn_status qn_run_files_save_best(qn_training *t, char **saved);

#endif
