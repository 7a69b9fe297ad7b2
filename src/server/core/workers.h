/* Threads that take jobs in order of arrival, and the wake-up of an event loop.
 *
 * A job is run by a worker and then lies among the finished ones until the loop collects it. */
#ifndef QN_SERVER_CORE_WORKERS_H
#define QN_SERVER_CORE_WORKERS_H

#include <stdatomic.h>

#include "base/status.h"

/* Wakes a loop that watches `file`; calls between two wake-ups are one. Any thread. */
typedef struct {
    int file; /* an eventfd */
    atomic_int pending;
} qn_wake;

qn_status qn_wake_open(qn_wake *w);
void qn_wake_close(qn_wake *w);
void qn_wake_send(qn_wake *w);
/* By the loop, before it looks for what it was woken for. */
void qn_wake_take(qn_wake *w);

typedef struct qn_job qn_job;
struct qn_job {
    void (*run)(qn_job *job);  /* on a worker */
    void (*done)(qn_job *job); /* on the loop, afterwards; may free the job */
    qn_job *next;
};

typedef struct qn_workers qn_workers;
/* wake: sent after each job; it must outlive the workers. */
qn_status qn_workers_new(int n_threads, qn_wake *wake, qn_workers **out);
/* Waits for the job that each worker is at; jobs that were not begun are run too. NULL is accepted. */
void qn_workers_free(qn_workers *w);
/* The job is borrowed until its `done` was called. */
void qn_workers_push(qn_workers *w, qn_job *job);
/* By the loop: calls `done` of what is finished, in order. */
void qn_workers_collect(qn_workers *w);

#endif
