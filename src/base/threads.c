#include "base/threads.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/futex.h"
#include "base/mem.h"
#include "base/pace.h"
#include "base/random.h"

/* How long who waits for the others keeps its processor. Between runs (IDLE_NS): longer than the work between
 * two steps of a decode loop, since waking costs tens of microseconds. At a barrier (CALM_NS): for as long as
 * even shares ever differ; to sleep earlier costs a quiet machine 5% of prefill and 12% of decode. Waits that
 * took longer and follow each other within AGAIN_NS mean that the system runs somebody else in a worker's
 * place; one alone means little, a virtual machine has several a second. Then (for DISTURBED_NS, and again
 * while it goes on) a long spin would only keep from it the processor on which it could go on, and BRIEF_NS
 * have to do: beside a busy process, two threads on two cores decoded at 1 : 0.72 : 0.43 with 4, 20 and 60 us
 * (one run each). A waiter does not yield there either: beside two busy processes decode fell to a tenth with
 * it. Only with more workers than processors does it yield, for CROWDED_NS: who must run next is most likely
 * a fellow worker. Brief runs may then be the caller's alone (pace.h): beside a busy process, two threads on
 * two cores decoded SmolLM2 at 135 tokens a second, one at 211, and both in quiet at 388. */
enum {
    IDLE_NS = 500000,
    CALM_NS = 200000,
    AGAIN_NS = 20000000,
    DISTURBED_NS = 50000000,
    BRIEF_NS = 4000,
    CROWDED_NS = 100000,
    SPINS_PER_CLOCK = 16,
    PIECE_MIN = 2, /* of a share: what is claimed last */
    REST = 16      /* of a share: the part that is left for slower moments */
};

/* On a cache line of its own: the others write `claimed` when they take a part of this worker's share. */
typedef struct {
    _Alignas(64) atomic_uint_fast64_t claimed; /* loop << 32 | items of the share handed out in that loop */
    uint32_t loop;                             /* how many loops of claims this worker has finished */
    int64_t kept;                              /* items of its share that it took itself in this loop */
    int is_slow;                               /* others took some of its share in the last short loop */
    int index;
    qn_pool *pool;
    pthread_t thread;
} worker;

struct qn_pool {
    int n;
    int crowded; /* more workers than processors: some always wait for a turn to run */
    int stop;
    atomic_int is_disturbed; /* until the first wait after disturbed_until */
    worker *workers;         /* workers[0] is the caller and has no thread */
    qn_pool_fn *fn;
    void *arg;
    int is_alone; /* the caller, in this run: nothing of it changes while others run */
    int gave_all; /* to the caller alone, of this loop of claims */
    qn_pace pace; /* of brief runs */
    /* Words that workers wait for. Bit 0 is set by who goes to sleep on the word; whoever changes the word
     * swaps it and so learns, in the same instruction, whether somebody must be woken. */
    _Alignas(64) atomic_uint generation; /* of runs, in steps of GENERATION */
    _Alignas(64) atomic_uint barrier;    /* phase, in steps of PHASE, and the workers that arrived in it */
    atomic_int caller_cpu;               /* where the caller came to the end of the last run */
    /* By the clock: when a wait at a barrier was last too long, and how long such waits count. */
    atomic_int_fast64_t long_wait_at, disturbed_until;
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

/* That the affinity mask allows, siblings of a core counted singly. */
static int processors(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
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

/* ---- waiting ----------------------------------------------------------------------------------------- */

enum { SLEEPS = 1, ARRIVAL = 2, GENERATION = 2, PHASE = 1 << 16 };
static const unsigned RUN_OF = ~(unsigned)SLEEPS, PHASE_OF = ~(unsigned)(PHASE - 1);

/* Gives the word its next value and wakes who sleeps on the old one. */
static void change(atomic_uint *word, unsigned value)
{
    if (atomic_exchange_explicit(word, value, memory_order_acq_rel) & SLEEPS) qn_futex_wake(word, INT_MAX);
}

static int changed(atomic_uint *word, unsigned mask, unsigned value, int spins)
{
    for (int i = 0; i < spins; i++) {
        if ((atomic_load_explicit(word, memory_order_acquire) & mask) != value) return 1;
        relax();
    }
    return 0;
}

/* Waits until the bits `mask` of the word differ from value: at first awake, for patience_ns or a little
 * longer. */
static void wait_change(qn_pool *p, atomic_uint *word, unsigned mask, unsigned value, int64_t patience_ns)
{
    if (changed(word, mask, value, SPINS_PER_CLOCK)) return;
    int64_t start = qn_clock_ns();
    do {
        if (p->crowded) sched_yield();
        if (changed(word, mask, value, SPINS_PER_CLOCK)) return;
    } while (qn_clock_ns() - start < patience_ns);
    for (;;) {
        unsigned seen = atomic_fetch_or_explicit(word, SLEEPS, memory_order_acquire);
        if ((seen & mask) != value) return;
        qn_futex_wait(word, seen | SLEEPS);
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    qn_pool *p = w->pool;
    for (unsigned seen = 0;;) {
        /* On the caller's own processor one would only keep it from going on: half a millisecond for the
         * first run after a pause, when the system wakes the worker there. */
        int in_the_way = atomic_load_explicit(&p->caller_cpu, memory_order_relaxed) == sched_getcpu();
        wait_change(p, &p->generation, RUN_OF, seen, in_the_way ? 0 : IDLE_NS);
        seen += GENERATION;
        if (p->stop) return NULL;
        p->fn(p->arg, w->index, p->n);
        qn_pool_barrier(p);
    }
}

static void start_generation(qn_pool *p)
{
    unsigned seen = atomic_load_explicit(&p->generation, memory_order_relaxed);
    change(&p->generation, (seen & RUN_OF) + GENERATION);
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
    p->crowded = n > processors();
    atomic_init(&p->caller_cpu, -1);
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
                           "cannot start thread %d of %d: %s; ask for fewer threads, or raise the limits on "
                           "processes (ulimit -u, pids.max of the cgroup)",
                           i + 1, n, strerror(refused));
        }
    }
    *out = p;
    return QN_OK;
}

void qn_pool_free(qn_pool *p)
{
    if (!p) return;
    p->stop = 1;
    start_generation(p);
    for (int i = 1; i < p->n; i++) pthread_join(p->workers[i].thread, NULL);
    qn_free(p->workers);
    qn_free(p);
}

int qn_pool_threads(const qn_pool *p)
{
    return p->n;
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
    atomic_store_explicit(&p->caller_cpu, sched_getcpu(), memory_order_relaxed);
    qn_pool_barrier(p);
}

static void run_alone(qn_pool *p, qn_pool_fn *fn, void *arg)
{
    p->is_alone = 1;
    p->gave_all = 0;
    fn(arg, 0, 1);
    p->is_alone = 0;
}

void qn_pool_run_brief(qn_pool *p, qn_pool_fn *fn, void *arg)
{
    if (p->n == 1 || p->crowded) {
        qn_pool_run(p, fn, arg);
        return;
    }
    const int64_t start = qn_clock_ns();
#ifdef QN_SHAKE
    const int alone = qn_random_bits((uint64_t)start, 0) % 4 == 0;
#else
    const int alone = qn_pace_is_alone(&p->pace, start);
#endif
    (alone ? run_alone : qn_pool_run)(p, fn, arg);
    const int64_t now = qn_clock_ns();
    qn_pace_count(&p->pace, now - start, now,
                  now < atomic_load_explicit(&p->disturbed_until, memory_order_relaxed));
}

/* Several workers may have waited for the same one: the first to notice stands for all. */
static void note_long_wait(qn_pool *p, int64_t start, int64_t now)
{
    const int64_t last = atomic_load_explicit(&p->long_wait_at, memory_order_relaxed);
    if (last >= start) return;
    atomic_store_explicit(&p->long_wait_at, now, memory_order_relaxed);
    if (last && now - last < AGAIN_NS) {
        atomic_store_explicit(&p->disturbed_until, now + DISTURBED_NS, memory_order_relaxed);
        atomic_store_explicit(&p->is_disturbed, 1, memory_order_relaxed);
    }
}

/* At a barrier, until its phase is no longer the one given. */
static void wait_phase(qn_pool *p, unsigned phase)
{
    if (changed(&p->barrier, PHASE_OF, phase, SPINS_PER_CLOCK)) return;
    int64_t start = qn_clock_ns(), patience = CALM_NS;
    if (p->crowded)
        patience = CROWDED_NS;
    else if (start < atomic_load_explicit(&p->disturbed_until, memory_order_relaxed))
        patience = BRIEF_NS;
    else if (atomic_load_explicit(&p->is_disturbed, memory_order_relaxed))
        atomic_store_explicit(&p->is_disturbed, 0, memory_order_relaxed);
    wait_change(p, &p->barrier, PHASE_OF, phase, patience);
    int64_t now = qn_clock_ns();
    if (now - start > CALM_NS) note_long_wait(p, start, now);
}

void qn_pool_barrier(qn_pool *p)
{
    if (p->n == 1 || p->is_alone) return;
    unsigned seen = atomic_fetch_add_explicit(&p->barrier, ARRIVAL, memory_order_acq_rel);
    if ((int)((seen & ~PHASE_OF) / ARRIVAL) == p->n - 1)
        change(&p->barrier, (seen & PHASE_OF) + PHASE);
    else
        wait_phase(p, seen & PHASE_OF);
}

void qn_pool_barrier_call(qn_pool *p, void (*all_here)(void *arg), void *arg)
{
    if (p->n == 1 || p->is_alone) {
        all_here(arg);
        return;
    }
    unsigned seen = atomic_fetch_add_explicit(&p->barrier, ARRIVAL, memory_order_acq_rel);
    if ((int)((seen & ~PHASE_OF) / ARRIVAL) == p->n - 1) {
        all_here(arg);
        change(&p->barrier, (seen & PHASE_OF) + PHASE);
    } else {
        wait_phase(p, seen & PHASE_OF);
    }
}

/* ---- sharing work ------------------------------------------------------------------------------------- */

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

/* How many of the `left` items of a share its owner or a helper takes at once: half, so that a share costs
 * few claims and what a slow worker sits on gets small. Where memory is the limit a claim costs 0.2 us, which
 * is that of its cache lines behind all that is being fetched: six of them are a twentieth of a product of 1
 * MB. So of a loop that is over soon the owner takes most at first. */
static int64_t piece_of(int64_t left, int most, uint32_t loop)
{
#ifdef QN_SHAKE
    return 1 + (int64_t)(qn_random_bits(loop, (uint64_t)left) % (uint64_t)left);
#else
    if (left <= PIECE_MIN) return left;
    return most ? left - (left + REST - 1) / REST : (left + 1) / 2;
#endif
}

/* Takes a piece of the share of worker `owner` in this loop. most: of a share that nobody took from. A word
 * of an older loop means that nothing is taken yet; one of a newer loop that all was, since nobody ends a
 * loop before. So nothing is ever reset. */
static int claim_from(qn_pool *p, int owner, uint32_t loop, int64_t n, int most, int64_t *begin, int64_t *end)
{
    int64_t from, to;
    qn_pool_share(n, 1, owner, p->n, &from, &to);
    atomic_uint_fast64_t *word = &p->workers[owner].claimed;
    uint_fast64_t seen = atomic_load_explicit(word, memory_order_relaxed), next;
    do {
        int32_t ahead = (int32_t)((uint32_t)(seen >> 32) - loop);
        if (ahead > 0) return 0;
        int64_t taken = ahead == 0 ? (int64_t)(seen & UINT32_MAX) : 0, left = to - from - taken;
        if (left <= 0) return 0;
        *begin = from + taken;
        *end = *begin + (p->n > 1 ? piece_of(left, most && !taken, loop) : left);
        next = (uint_fast64_t)loop << 32 | (uint_fast64_t)(*end - from);
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return 1;
}

static int claim(qn_pool *p, int thread, int64_t n, int most, int64_t *begin, int64_t *end)
{
    if (p->is_alone) {
        *begin = 0;
        *end = n;
        p->gave_all = !p->gave_all && n > 0;
        return p->gave_all;
    }
    worker *w = &p->workers[thread];
    for (int i = 0; i < p->n; i++) { /* one's own share first, then the next one's */
        if (!claim_from(p, (thread + i) % p->n, w->loop, n, most && !i && !w->is_slow, begin, end)) continue;
        if (i == 0) w->kept += *end - *begin;
        return 1;
    }
    if (most) {
        qn_pool_share(n, 1, thread, p->n, begin, end);
        w->is_slow = *end - *begin - w->kept > (*end - *begin) / (2 * REST);
    }
    w->kept = 0;
    /* The word may not stay behind for ever, or a wrapped count of loops would call it newer. */
    uint_fast64_t seen = atomic_load_explicit(&w->claimed, memory_order_relaxed);
    if ((int32_t)((uint32_t)(seen >> 32) - ++w->loop) < 0)
        atomic_compare_exchange_strong_explicit(&w->claimed, &seen, (uint_fast64_t)w->loop << 32,
                                                memory_order_relaxed, memory_order_relaxed);
    return 0;
}

int qn_pool_claim(qn_pool *p, int thread, int64_t n, int64_t *begin, int64_t *end)
{
    return claim(p, thread, n, 0, begin, end);
}

int qn_pool_claim_most(qn_pool *p, int thread, int64_t n, int64_t *begin, int64_t *end)
{
    return claim(p, thread, n, !atomic_load_explicit(&p->is_disturbed, memory_order_relaxed), begin, end);
}

typedef struct {
    qn_pool *pool;
    int64_t n;
    void (*fn)(void *user, int64_t i);
    void *user;
} calls;

static void call_some(void *arg, int thread, int n_threads)
{
    const calls *c = arg;
    int64_t begin, end;
    while (qn_pool_claim(c->pool, thread, c->n, &begin, &end))
        for (int64_t i = begin; i < end; i++) c->fn(c->user, i);
}

void qn_pool_each(qn_pool *pool, int64_t n, void (*fn)(void *user, int64_t i), void *user)
{
    qn_pool_run(pool, call_some, &(calls){pool, n, fn, user});
}
