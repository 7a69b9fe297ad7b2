/* A pool of threads that run one function together. The caller is worker 0. Between calls the workers spin
 * for a bounded time and then sleep, so a decode loop pays no wake-up and an idle process uses no CPU. A pool
 * is used by one caller at a time. */
#ifndef QN_BASE_THREADS_H
#define QN_BASE_THREADS_H

#include <stdint.h>

#include "base/status.h"

typedef struct qn_pool qn_pool;
typedef void qn_pool_fn(void *arg, int thread, int n_threads);

/* Physical cores that the affinity mask and the cgroup quota (v1 and v2) allow; at least 1. */
int qn_threads_default(void);
/* n_threads 0: the default. QN_E_NOMEM: the system starts no more threads (message: which of how many). */
qn_status qn_pool_new(int n_threads, qn_pool **out);
void qn_pool_free(qn_pool *pool);
int qn_pool_threads(const qn_pool *pool);
/* Runs fn on every worker and returns when all have finished. */
void qn_pool_run(qn_pool *pool, qn_pool_fn *fn, void *arg);
/* The same for short runs of which many alike follow each other, steps of decoding. In a time in which others
 * take so much of the processors that it is faster, the caller runs fn alone: n_threads is 1 then. */
void qn_pool_run_brief(qn_pool *pool, qn_pool_fn *fn, void *arg);
/* Inside fn: waits until every worker of the run has called it as often. */
void qn_pool_barrier(qn_pool *pool);
/* The same; whoever comes last calls `all_here` before anybody goes on. */
void qn_pool_barrier_call(qn_pool *pool, void (*all_here)(void *arg), void *arg);
/* The share of worker `thread` of n items, in whole multiples of `unit`: [*begin, *end). In a build with
 * QN_SHAKE the split is random, to show that nothing depends on it. */
void qn_pool_share(int64_t n, int64_t unit, int thread, int n_threads, int64_t *begin, int64_t *end);
/* Inside fn: a piece [*begin, *end) of n items that nobody else has, and 1; or 0 when all are handed out.
 * First come pieces of the worker's own share, in order, then what is left of slower workers' shares. All
 * workers go through the same loops of claims, each until it gets 0; no barrier is needed between two loops.
 * n < 2^32. */
int qn_pool_claim(qn_pool *pool, int thread, int64_t n, int64_t *begin, int64_t *end);
/* The same for a loop that is over soon: a worker takes most of its share at once, unless it was slower than
 * the others in the last such loop or others run on these processors. */
int qn_pool_claim_most(qn_pool *pool, int thread, int64_t n, int64_t *begin, int64_t *end);
/* Calls fn(user, i) once for each i in [0, n), n < 2^32, on any worker, several at a time, and returns when
 * all have returned. */
void qn_pool_each(qn_pool *pool, int64_t n, void (*fn)(void *user, int64_t i), void *user);

#endif
