/* Evaluation: a program that runs once, now or behind others on a thread of its own.
 *
 * What qn_eval_async begins is a job: a program whose outputs are the arrays' data already. One worker a
 * device runs jobs in the order in which they were given; what comes behind one that failed is not run.
 * Whoever wants to use the device, or to look at data, waits: a device computes for one thread at a time. */
#include "array/eval.h"

#include <pthread.h>
#include <stdio.h>

#include "array/program.h"
#include "base/mem.h"

struct qn_job {
    atomic_int references, done; /* done: status and message are written */
    qn_program *program;
    qn_worker *worker; /* valid until done */
    uint64_t generation;
    qn_status status;
    char message[QN_ERROR_TEXT_MAX];
    qn_job *next;
};

struct qn_worker {
    atomic_int holders; /* scopes */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a job was given, or is done; or the end */
    pthread_t thread;
    int started, ends;
    qn_job *first, *last; /* given and not done; the worker runs the first */
    qn_status status;     /* of the first job that failed, until somebody was told */
    char message[QN_ERROR_TEXT_MAX];
    /* of the owner's thread: changes with each failure that is told; no two workers ever have the same */
    uint64_t generation;
};

static atomic_uint_fast64_t next_generation = 1;

/* ---- the worker --------------------------------------------------------------------------------------- */

void qn_job_release(qn_job *j)
{
    if (j && atomic_fetch_sub_explicit(&j->references, 1, memory_order_acq_rel) == 1) qn_free(j);
}

static void take_text(char *to, const char *from)
{
    snprintf(to, QN_ERROR_TEXT_MAX, "%s", from);
}

static void *work(void *arg)
{
    qn_worker *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->ends) pthread_cond_wait(&w->changed, &w->lock);
        qn_job *j = w->first;
        if (!j) break;
        j->status = w->status;
        take_text(j->message, w->message);
        if (j->status == QN_OK) {
            pthread_mutex_unlock(&w->lock);
            qn_status status = qn_program_run(j->program, &(qn_sizes){{0}});
            pthread_mutex_lock(&w->lock);
            j->status = status;
            if (status != QN_OK) {
                take_text(j->message, qn_last_error());
                w->status = status;
                take_text(w->message, j->message);
            }
        }
        qn_program_free(j->program); /* its outputs are held by the arrays */
        j->program = NULL;
        w->first = j->next;
        if (!w->first) w->last = NULL;
        atomic_store_explicit(&j->done, 1, memory_order_release);
        qn_job_release(j);
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

qn_worker *qn_worker_new(void)
{
    qn_worker *w = qn_calloc(1, sizeof *w);
    if (!w) return NULL;
    atomic_init(&w->holders, 1);
    w->generation = atomic_fetch_add(&next_generation, 1);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    return w;
}

qn_worker *qn_worker_retain(qn_worker *w)
{
    if (w) atomic_fetch_add_explicit(&w->holders, 1, memory_order_relaxed);
    return w;
}

static void wait_for_all(qn_worker *w)
{
    while (w->first) pthread_cond_wait(&w->changed, &w->lock);
}

void qn_worker_release(qn_worker *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    wait_for_all(w);
    pthread_mutex_unlock(&w->lock);
    if (atomic_fetch_sub_explicit(&w->holders, 1, memory_order_acq_rel) != 1) return;
    if (w->started) {
        pthread_mutex_lock(&w->lock);
        w->ends = 1;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    qn_free(w);
}

static qn_status start(qn_worker *w)
{
    if (w->started) return QN_OK;
    if (qn_mem_fails() || pthread_create(&w->thread, NULL, work, w) != 0)
        return qn_fail(QN_E_NOMEM, "qn_eval_async: the system cannot start another thread");
    w->started = 1;
    return QN_OK;
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

qn_status qn_scope_settle(qn_scope *s)
{
    qn_worker *w = s->worker;
    if (w && w->started) {
        pthread_mutex_lock(&w->lock);
        wait_for_all(w);
        qn_status status = w->status;
        if (status != QN_OK) {
            qn_scope_fail(s, qn_fail_copy(status, w->message));
            w->generation = atomic_fetch_add(&next_generation, 1);
        }
        w->status = QN_OK;
        pthread_mutex_unlock(&w->lock);
    }
    return qn_scope_status(s);
}

qn_status qn_array_wait(const qn_array *a)
{
    const qn_job *j = a->job;
    if (!j) return QN_OK;
    if (!atomic_load_explicit(&j->done, memory_order_acquire)) {
        qn_worker *w = j->worker;
        pthread_mutex_lock(&w->lock);
        while (!atomic_load_explicit(&j->done, memory_order_acquire))
            pthread_cond_wait(&w->changed, &w->lock);
        pthread_mutex_unlock(&w->lock);
    }
    return j->status == QN_OK ? QN_OK : qn_fail_copy(j->status, j->message);
}

qn_status qn_array_usable(const qn_scope *s, const qn_array *a)
{
    const qn_job *j = a->job;
    if (!j || (s->worker && s->worker->generation == j->generation)) return QN_OK;
    return qn_array_wait(a);
}

/* ---- evaluation --------------------------------------------------------------------------------------- */

/* A program of those of the arrays that are not computed yet: *m of them in pending [n]. */
static qn_status plan(qn_scope *s, int n, qn_array *const *arrays, qn_array **pending, int *m,
                      qn_program **out)
{
    *m = 0;
    for (int i = 0; i < n; i++) {
        int seen = !arrays[i] || arrays[i]->prim == QN_PRIM_DATA;
        for (int j = 0; j < *m; j++) seen |= pending[j] == arrays[i];
        if (!seen) pending[(*m)++] = arrays[i];
    }
    if (!*m) return QN_OK;
    qn_program_options options = {.name = "eval", .precision = s->precision};
    qn_program *p;
    QN_TRY(qn_program_new(s, &options, *m, pending, &p));
    if (qn_program_has_inputs(p)) {
        qn_program_free(p);
        return qn_fail(QN_E_ARG, "an array that depends on an input of a program has no value yet");
    }
    *out = p;
    return QN_OK;
}

/* The handles become plain data. */
static void settle_on(qn_program *p, int m, qn_array **pending, qn_job *job)
{
    for (int i = 0; i < m; i++) {
        qn_array *a = pending[i];
        for (int j = 0; j < a->n_in; j++) qn_release(a->in[j]);
        a->n_in = 0;
        a->prim = QN_PRIM_DATA;
        a->buffer = qn_buffer_retain(qn_program_output_buffer(p, i));
        if (!job) continue;
        a->job = job;
        atomic_fetch_add_explicit(&job->references, 1, memory_order_relaxed);
    }
}

qn_status qn_eval(qn_scope *s, int n, qn_array *const *arrays)
{
    QN_TRY(qn_scope_settle(s));
    qn_program *p = NULL;
    int m;
    qn_array **pending = qn_alloc(((size_t)n + 1) * sizeof *pending);
    if (!pending) return QN_E_NOMEM;
    qn_status status = plan(s, n, arrays, pending, &m, &p);
    if (status == QN_OK && m) status = qn_program_run(p, &(qn_sizes){{0}});
    if (status == QN_OK && m) settle_on(p, m, pending, NULL);
    qn_program_free(p);
    qn_free(pending);
    for (int i = 0; i < n && status == QN_OK; i++)
        if (arrays[i]) status = qn_array_wait(arrays[i]); /* failed earlier, and said so then */
    return status;
}

/* The job owns p from then on. */
static void give(qn_worker *w, qn_job *j, qn_program *p)
{
    j->program = p;
    j->worker = w;
    j->generation = w->generation;
    pthread_mutex_lock(&w->lock);
    if (w->last)
        w->last->next = j;
    else
        w->first = j;
    w->last = j;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

qn_status qn_eval_async(qn_scope *s, int n, qn_array *const *arrays)
{
    QN_TRY(qn_scope_status(s));
    qn_program *p = NULL;
    int m = 0;
    qn_job *job = qn_calloc(1, sizeof *job);
    qn_array **pending = qn_alloc(((size_t)n + 1) * sizeof *pending);
    if (!s->worker) s->worker = qn_worker_new();
    qn_status status = job && pending && s->worker ? start(s->worker) : QN_E_NOMEM;
    if (status == QN_OK) status = plan(s, n, arrays, pending, &m, &p);
    if (status == QN_OK && m) {
        atomic_init(&job->references, 1);
        settle_on(p, m, pending, job);
        give(s->worker, job, p);
        job = NULL;
    }
    if (status != QN_OK) qn_scope_fail(s, status);
    qn_free(job);
    qn_free(pending);
    return status;
}

qn_array *qn_detach(qn_scope *s, qn_array *a)
{
    if (!a) return NULL;
    if (s->traced) return qn_stop_gradient(s, a);
    qn_status status = qn_eval(s, 1, &a);
    return status == QN_OK ? a : qn_scope_fail(s, status);
}
