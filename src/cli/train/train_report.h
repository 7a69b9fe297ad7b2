/* A training as a page: curves of loss, validation, learning rate and gradient, what was trained on what, by
 * which settings. One HTML file that asks for nothing else and runs no script; made of the log, so it shows
 * resumed runs whole. One thread at a time. */
#ifndef QN_CLI_TRAIN_TRAIN_REPORT_H
#define QN_CLI_TRAIN_TRAIN_REPORT_H

#include <quern/train.h>

#include "base/buf.h"
#include "cli/train/train_log.h"

/* What the log does not say. */
typedef struct {
    qn_train_options options; /* as given */
    qn_train_info info;
} qn_train_report_about;

/* The factor by which a smoothed loss forgets: each step the share 1 - this of the step's loss is added. */
double qn_train_smoothing(int64_t n_steps);

/* Appends the page. */
void qn_train_report_put(qn_buf *b, const qn_train_log *log, const qn_train_report_about *about);
/* Reads the log and writes the page, which appears whole. QN_E_IO, QN_E_NOMEM. */
qn_status qn_train_report_write(const char *log_path, const char *path, const qn_train_report_about *about);

#endif
