/* A route whose answer is one piece that a worker makes: tokens, a rendered template, vectors.
 *
 * The worker reads the body and appends the answer, or fills in an error; the loop sends it. The task owns its
 * request, answer and error. If the client goes, `cancel` is set and the answer is dropped. Invariant: `run` has the
 * task for itself, apart from `cancel`. */
#ifndef QN_SERVER_CORE_TASKS_TASK_H
#define QN_SERVER_CORE_TASKS_TASK_H

#include "server/core/state.h"
#include "server/http/exchange.h"

typedef struct qn_task qn_task;
typedef void qn_task_fn(qn_task *t);

struct qn_task {
    qn_job job;
    qn_exchange *ex;
    qn_task_fn *run;
    const void *dialect;    /* of the route; the task's functions know what it is */
    qn_api_request request; /* zeroed; freed with the task */
    qn_api_error error;     /* status 0: the answer is sent */
    qn_buf answer;          /* JSON */
    qn_cancel *cancel;
    int64_t n_prompt_tokens; /* that were computed */
};

/* Begins the exchange's task; is_slow: it may take longer than milliseconds. */
void qn_task_begin(qn_exchange *ex, qn_task_fn *run, const void *dialect, int is_slow);

#endif
