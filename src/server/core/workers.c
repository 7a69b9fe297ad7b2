#include "server/core/workers.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

enum { THREADS_MAX = 16 };

qn_status qn_wake_open(qn_wake *w)
{
    atomic_init(&w->pending, 0);
    w->file = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return w->file >= 0 ? QN_OK : qn_fail(QN_E_IO, "the system cannot create an event file");
}

void qn_wake_close(qn_wake *w)
{
    if (w->file >= 0) close(w->file);
    w->file = -1;
}

void qn_wake_send(qn_wake *w)
{
    uint64_t one = 1;
    if (atomic_exchange(&w->pending, 1) == 0 &&
        write(w->file, &one, sizeof one) < 0) { /* it is full: that wakes too */
    }
}

void qn_wake_take(qn_wake *w)
{
    uint64_t n;
    if (read(w->file, &n, sizeof n) < 0) { /* somebody else's wake-up was taken before */
    }
    atomic_store(&w->pending, 0);
}

typedef struct {
    qn_job *first, *last;
} queue;

struct qn_workers {
    qn_wake *wake;
    pthread_mutex_t lock; /* guards all below; held for the time of a few instructions */
    pthread_cond_t work;
    queue waiting, finished;
    int ending, n_threads;
    pthread_t threads[THREADS_MAX];
};

static void put(queue *q, qn_job *job)
{
    job->next = NULL;
    if (q->last)
        q->last->next = job;
    else
        q->first = job;
    q->last = job;
}

static qn_job *take(queue *q)
{
    qn_job *job = q->first;
    if (job) q->first = job->next;
    if (!q->first) q->last = NULL;
    return job;
}

static void *work(void *user)
{
    qn_workers *w = user;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        qn_job *job = take(&w->waiting);
        if (job) {
            pthread_mutex_unlock(&w->lock);
            job->run(job);
            pthread_mutex_lock(&w->lock);
            put(&w->finished, job);
            qn_wake_send(w->wake);
        } else if (w->ending) {
            break;
        } else {
            pthread_cond_wait(&w->work, &w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

qn_status qn_workers_new(int n_threads, qn_wake *wake, qn_workers **out)
{
    qn_workers *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    w->wake = wake;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    for (; w->n_threads < n_threads && w->n_threads < THREADS_MAX; w->n_threads++) {
        if (!qn_mem_fails() && pthread_create(&w->threads[w->n_threads], NULL, work, w) == 0) continue;
        qn_workers_free(w);
        return qn_fail(QN_E_NOMEM, "the system cannot start another thread");
    }
    *out = w;
    return QN_OK;
}

void qn_workers_free(qn_workers *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ending = 1;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++) pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    qn_free(w);
}

void qn_workers_push(qn_workers *w, qn_job *job)
{
    pthread_mutex_lock(&w->lock);
    put(&w->waiting, job);
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
}

void qn_workers_collect(qn_workers *w)
{
    pthread_mutex_lock(&w->lock);
    qn_job *job = w->finished.first;
    w->finished = (queue){NULL, NULL};
    pthread_mutex_unlock(&w->lock);
    while (job) {
        qn_job *next = job->next;
        job->done(job);
        job = next;
    }
}
