/* What evaluation keeps in scopes and arrays, for the files of array/ only. */
#ifndef QN_ARRAY_EVAL_H
#define QN_ARRAY_EVAL_H

#include "array/graph.h"

/* Runs programs one after the other on a thread that is started with the first; shared by the scopes over one
 * device. */
qn_worker *qn_worker_new(void);
qn_worker *qn_worker_retain(qn_worker *w);
/* Waits until nothing is left to do. */
void qn_worker_release(qn_worker *w);

void qn_job_release(qn_job *j);
/* Waits for what qn_eval_async began, so that the device may be used; the scope gets its error. */
qn_status qn_scope_settle(qn_scope *s);
/* Waits for a's data alone, and says whether computing it failed. */
qn_status qn_array_wait(const qn_array *a);
/* Whether a program of the scope may read a's data: not when computing it failed and somebody was told. One
 * that is still untold makes the program fail too, for it runs behind it. */
qn_status qn_array_usable(const qn_scope *s, const qn_array *a);

#endif
