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

/* A task that makes something which goes on after its answer. */
typedef struct {
    qn_task_fn *run, *made; /* made: on the loop, before the answer is sent, or with an error */
    qn_task_fn *free_made;  /* last of all */
} qn_task_maker;

struct qn_task {
    qn_job job;
    qn_exchange *ex;
    qn_task_fn *run;
    const qn_task_maker *maker; /* NULL: none */
    void *made;                 /* of `run`, for `made` */
    const void *dialect;        /* of the route; the task's functions know what it is */
    qn_api_request request;     /* zeroed; freed with the task */
    qn_api_error error;         /* status 0: the answer is sent */
    qn_buf answer;              /* JSON */
    int has_file, file;         /* with has_file the answer is the content of this open file */
    int64_t file_bytes;
    qn_cancel *cancel;
    int64_t n_prompt_tokens; /* that were computed */
};

/* Begins the exchange's task; is_slow: it may take longer than milliseconds. */
void qn_task_begin(qn_exchange *ex, qn_task_fn *run, const void *dialect, int is_slow);
void qn_task_begin_making(qn_exchange *ex, const qn_task_maker *maker, int is_slow);

#endif
