/* Batches that are computed: behind all other requests, some lines at a time, in turns.
 *
 * A line goes from a worker that reads it, through a request of the server to itself, to a worker that stores its
 * answer. What is stored stays when the server ends; the lines that are not stored are computed when it starts
 * again. Loop thread only. */
#ifndef QN_SERVER_FILES_BATCH_RUN_H
#define QN_SERVER_FILES_BATCH_RUN_H

#include "server/core/state.h"
#include "server/files/batch.h"

typedef struct qn_batches qn_batches;
typedef struct qn_batch_run qn_batch_run;

/* When a server with a store starts: finds the batches that have not ended. */
qn_status qn_batches_new(qn_server *s);
/* Goes on with them; the model is there. */
void qn_batches_step(qn_server *s);
/* The place of a batch, for who stores the batch: adding cannot fail then. Any thread. NULL: out of memory. */
qn_batch_run *qn_batch_run_new(void);
/* Of one that was not added. */
void qn_batch_run_free(qn_batch_run *run);
/* Adds a batch that is stored. It takes over run and the contents of b. */
void qn_batches_add(qn_server *s, qn_batch_run *run, qn_batch_info *b);
/* Cancels the owner's batch, and appends its object. Returns 0 if no such batch is computed. */
int qn_batches_cancel(qn_server *s, const char *id, const char *owner, qn_buf *out);
/* No more lines are begun, and those that are computed are given up: a server that starts again goes on. */
void qn_batches_stop(qn_server *s);
/* 1: workers still have something of them. */
int qn_batches_are_busy(const qn_server *s);
/* They must not be busy. */
void qn_batches_free(qn_server *s);

#endif
