/* An adapter to begin with: what its files say of it stands in for the options that were not given. */
#ifndef QN_TRAIN_RUN_RUN_START_H
#define QN_TRAIN_RUN_RUN_START_H

#include "train/run/run_options.h"
#include "train/step/base.h"

/* Fills in method, targets, rank and alpha of r, as far as they were not given, by the adapter at start_path.
 * Nothing without one. Statuses as for qn_adapter_file_open. */
qn_status qn_run_start_fill(qn_run_options *r, const qn_train_base *base);

#endif
