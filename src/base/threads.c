#include "base/threads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"

/* A worker spins for SPIN_NS between runs. At a barrier inside a run it spins some tens of microseconds: the
 * others are at work, or the machine has given their core to somebody else and spinning would only keep them
 * from it. */
enum { SPIN_NS = 500000, SPINS_PER_CLOCK = 16, SPINS_BEFORE_SLEEP = 2000 };

typedef struct {
    qn_pool *pool;
    int index;
    pthread_t thread;
} worker;

struct qn_pool {
    int n;
    worker *workers; /* workers[0] is the caller and has no thread */
    qn_pool_fn *fn;
    void *arg;
    _Alignas(64) atomic_uint generation; /* rises once per run */
    _Alignas(64) atomic_int arrived;     /* at the barrier */
    _Alignas(64) atomic_uint phase;      /* of the barrier */
    _Alignas(64) atomic_int sleepers;
    atomic_int stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- how many threads -------------------------------------------------------------------------------- */

static int read_ints(const char *path, long *a, long *b)
{
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    char first[32] = "";
    int n = fscanf(f, "%31s %ld", first, b);
    fclose(f);
    if (n < 1) return 0;
    *a = strcmp(first, "max") == 0 ? -1 : strtol(first, NULL, 10);
    return n;
}

static long cgroup_cpus(void)
{
    long quota = -1, period = 0, unused = 0;
    if (read_ints("/sys/fs/cgroup/cpu.max", &quota, &period) == 2 && quota > 0 && period > 0) {
        long cpus = quota / period;
        return cpus < 1 ? 1 : cpus;
    }
    if (read_ints("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &quota, &unused) >= 1 && quota > 0 &&
        read_ints("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, &unused) >= 1 && period > 0) {
        long cpus = quota / period;
        return cpus < 1 ? 1 : cpus;
    }
    return 0;
}

int qn_threads_default(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = 0;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int i = 0; i < CPU_SETSIZE; i++) {
            if (!CPU_ISSET(i, &set)) continue;
            /* One of the siblings of a core counts: the first that the mask allows. */
            char path[96], list[64] = "";
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
            FILE *f = fopen(path, "r");
            int first = i;
            if (f) {
                if (fgets(list, sizeof list, f)) {
                    for (char *p = list; *p;) {
                        char *end;
                        long from = strtol(p, &end, 10), to = from;
                        if (end == p) break;
                        if (*end == '-') to = strtol(end + 1, &end, 10);
                        int seen = 0;
                        for (long k = from; k <= to && k < CPU_SETSIZE; k++) {
                            if (k >= 0 && CPU_ISSET((int)k, &set)) {
                                first = (int)k;
                                seen = 1;
                                break;
                            }
                        }
                        if (seen) break;
                        p = *end == ',' ? end + 1 : end;
                        if (*end != ',') break;
                    }
                }
                fclose(f);
            }
            cores += first == i;
        }
    }
    if (cores < 1) cores = 1;
    long quota = cgroup_cpus();
    return quota > 0 && quota < cores ? (int)quota : cores;
}

/* ---- running ----------------------------------------------------------------------------------------- */

static void wake_sleepers(qn_pool *p)
{
    if (atomic_load(&p->sleepers) == 0) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void *work(void *arg)
{
    worker *w = arg;
    qn_pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        /* between runs: spin for a bounded time, so that the next step of a decode loop finds the worker
         * awake */
        int64_t start = qn_clock_ns();
        while (atomic_load_explicit(&p->generation, memory_order_acquire) == seen &&
               qn_clock_ns() - start < SPIN_NS)
            for (int i = 0; i < SPINS_PER_CLOCK; i++) relax();
        pthread_mutex_t *lock = &p->lock;
        if (atomic_load(&p->generation) == seen) {
            pthread_mutex_lock(lock);
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, lock);
            atomic_fetch_sub(&p->sleepers, 1);
            pthread_mutex_unlock(lock);
        }
        seen++;
        if (atomic_load(&p->stop)) return NULL;
        p->fn(p->arg, w->index, p->n);
        qn_pool_barrier(p);
    }
}

static void start_generation(qn_pool *p)
{
    atomic_fetch_add(&p->generation, 1);
    wake_sleepers(p);
}

qn_status qn_pool_new(int n_threads, qn_pool **out)
{
    int n = n_threads > 0 ? n_threads : qn_threads_default();
    qn_pool *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    p->workers = qn_calloc((size_t)n, sizeof *p->workers);
    if (!p->workers) {
        qn_free(p);
        return QN_E_NOMEM;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->n = 1;
    for (int i = 1; i < n; i++) {
        p->workers[i] = (worker){.pool = p, .index = i};
        p->n = i + 1;
        int refused =
            qn_mem_fails() ? EAGAIN : pthread_create(&p->workers[i].thread, NULL, work, &p->workers[i]);
        if (refused) {
            p->n = i;
            qn_pool_free(p);
            return qn_fail(QN_E_NOMEM,
                           "cannot start thread %d of %d: %s; fewer threads may be asked for, or the limits "
                           "of processes raised (ulimit -u, pids.max of the cgroup)",
                           i + 1, n, strerror(refused));
        }
    }
    *out = p;
    return QN_OK;
}

void qn_pool_free(qn_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, 1);
    start_generation(p);
    for (int i = 1; i < p->n; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    qn_free(p->workers);
    qn_free(p);
}

int qn_pool_threads(const qn_pool *p)
{
    return p->n;
}

/* Waits until *word is no longer value: spins for a while, then sleeps. Whoever changes the word calls
 * wake_sleepers afterwards; both sides are sequentially consistent, so either the sleeper sees the change or
 * the changer sees the sleeper. */
static void wait_change(qn_pool *p, atomic_uint *word, unsigned value)
{
    for (int spins = 0; spins < SPINS_BEFORE_SLEEP; spins++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(word) == value) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

void qn_pool_run(qn_pool *p, qn_pool_fn *fn, void *arg)
{
    if (p->n == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    start_generation(p);
    fn(arg, 0, p->n);
    qn_pool_barrier(p);
}

void qn_pool_barrier(qn_pool *p)
{
    if (p->n == 1) return;
    unsigned phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == p->n - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store(&p->phase, phase + 1);
        wake_sleepers(p);
        return;
    }
    wait_change(p, &p->phase, phase);
}

void qn_pool_share(int64_t n, int64_t unit, int thread, int n_threads, int64_t *begin, int64_t *end)
{
    int64_t units = (n + unit - 1) / unit, from = units * thread / n_threads,
            to = units * (thread + 1) / n_threads;
#ifdef QN_SHAKE
    /* Cut points depend on n and unit only, so that all workers of one step agree. */
    if (thread > 0) from = (int64_t)(qn_random_bits((uint64_t)n, (uint64_t)thread) % (uint64_t)(units + 1));
    if (thread + 1 < n_threads)
        to = (int64_t)(qn_random_bits((uint64_t)n, (uint64_t)thread + 1) % (uint64_t)(units + 1));
    /* Sorted cut points: take running maxima over the threads before. */
    for (int t = 1; t < thread; t++) {
        int64_t c = (int64_t)(qn_random_bits((uint64_t)n, (uint64_t)t) % (uint64_t)(units + 1));
        if (c > from) from = c;
    }
    for (int t = 1; t <= thread && thread + 1 < n_threads; t++) {
        int64_t c = (int64_t)(qn_random_bits((uint64_t)n, (uint64_t)t) % (uint64_t)(units + 1));
        if (c > to) to = c;
    }
#endif
    *begin = from * unit < n ? from * unit : n;
    *end = to * unit < n ? to * unit : n;
}
