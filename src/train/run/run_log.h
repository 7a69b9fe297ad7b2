/* The log of a training: a file of JSON objects, one a line for each event, on disk when put returns. One
 * process at a time writes it, which is what keeps two trainings out of one folder. One thread at a time. */
#ifndef QN_TRAIN_RUN_RUN_LOG_H
#define QN_TRAIN_RUN_RUN_LOG_H

#include <quern/train.h>

typedef struct qn_run_log qn_run_log;

/* Goes on behind what is known of steps up to `step`; lines of later ones, of a run that ended without saving
 * them, and a line that was cut off are taken away. step < 0: begins anew. QN_E_IO; QN_E_ARG: another
 * training writes it. */
qn_status qn_run_log_open(const char *path, int64_t step, qn_run_log **out);
/* NULL is accepted. */
void qn_run_log_close(qn_run_log *l);
/* settings (may be NULL): lines of "name=value" for a START. */
qn_status qn_run_log_put(qn_run_log *l, const qn_train_event *event, const char *settings);

#endif
