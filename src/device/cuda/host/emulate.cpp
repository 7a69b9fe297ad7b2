/* The threads of a block as fibers: see emulate.h.
 *
 * A fiber is a stack. Its loop runs a thread of the block from begin to end, then the next one that has not begun
 * yet: a kernel without collectives needs one fiber. A thread that must wait keeps its fiber, and the next thread
 * that is ready runs: on its own fiber if it waited before, else on one from the pool. Ready threads are bits: a
 * word for each warp, and a word for the warps. The order is fixed: lane after lane, warp after warp. */
#include "device/cuda/host/emulate.h"
#include "device/cuda/host/fiber.h"

#include <dlfcn.h>
#include <pthread.h>

enum { MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / 32, MAX_SHARED = 227 << 10, N_BARRIERS = 16 };

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

struct warp {
    unsigned all, ready; /* lanes that there are; that can run */
    unsigned n_lanes, n_here;
    const char *name; /* what n_here lanes wait for */
    void *args[32];
    unsigned turn; /* which half of the two below the next shuffle uses: lanes may still read the other */
    uint64_t value[2][32]; /* 0xff for lanes that there are not */
    unsigned ballot[2];
};

struct thread {
    qn_fiber *fiber;  /* NULL: it has not begun, or has returned */
    const char *name; /* what it waits for; NULL: it runs or is ready */
    int has_returned;
};

struct barrier {
    unsigned n_here, n_threads;
    unsigned waiting[MAX_WARPS];
};

static struct {
    void (*body)(void *);
    void *argument;
    const void *kernel;
    char *shared;
    size_t shared_bytes;
    unsigned n_threads, n_warps, n_returned;
    unsigned ready; /* warps that have a lane ready */
    unsigned now;   /* the thread that runs */
    int has_failed;
    warp warps[MAX_WARPS];
    thread threads[MAX_THREADS];
    barrier barriers[N_BARRIERS];
    unsigned until[MAX_WARPS]; /* lanes that wait in qn_emulated_until */
    qn_fiber main;             /* the stack of the caller */
} now;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- which thread runs --------------------------------------------------------------------------------- */

static void set_ready(unsigned i_warp, unsigned lanes)
{
    now.warps[i_warp].ready |= lanes;
    if (lanes) now.ready |= 1u << i_warp;
    for (unsigned left = lanes; left; left &= left - 1)
        now.threads[i_warp * 32 + (unsigned)__builtin_ctz(left)].name = NULL;
}

static void clear_ready(void)
{
    warp *w = &now.warps[now.now / 32];
    w->ready &= ~(1u << now.now % 32);
    if (!w->ready) now.ready &= ~(1u << now.now / 32);
}

/* The first bit of set behind bit i, from the start again if there is none. set is not 0. */
static unsigned next_bit(unsigned set, unsigned i)
{
    const unsigned behind = set & ~((2u << i) - 1);
    return (unsigned)__builtin_ctz(behind ? behind : set);
}

/* Chooses the thread that runs next: one of this warp if it can. 0: there is none. */
static int choose(void)
{
    if (!now.ready) return 0;
    unsigned i_warp = now.now / 32, lane = now.now % 32;
    if (!now.warps[i_warp].ready) i_warp = next_bit(now.ready, i_warp), lane = 31;
    now.now = i_warp * 32 + next_bit(now.warps[i_warp].ready, lane);
    threadIdx.x = now.now;
    return 1;
}

/* ---- failures ------------------------------------------------------------------------------------------ */

static const char *state_of(const thread *t)
{
    return t->has_returned ? "has returned" : t->name ? t->name : "can run";
}

/* Says why the block cannot end, and leaves for the caller of the launch. Its fibers are given up. */
void qn_emulated_give_up(const char *why)
{
    Dl_info info = {};
    const char *file = "?";
    uintptr_t at = (uintptr_t)now.kernel;
    if (dladdr(now.kernel, &info) && info.dli_fname) file = info.dli_fname, at -= (uintptr_t)info.dli_fbase;
    fprintf(stderr, "cuda host: kernel %s+0x%zx, block %u of %u, %u threads: %s\n", file, (size_t)at,
            blockIdx.x, gridDim.x, now.n_threads, why);
    for (unsigned i = 0, end; i < now.n_threads; i = end) {
        for (end = i + 1; end < now.n_threads; end++)
            if (strcmp(state_of(&now.threads[i]), state_of(&now.threads[end]))) break;
        fprintf(stderr, "  threads %u to %u: %s\n", i, end - 1, state_of(&now.threads[i]));
    }
#ifndef NDEBUG
    abort();
#endif
    now.has_failed = 1;
    qn_fiber_leave(&now.main);
    __builtin_unreachable();
}

/* Lets others run; returns when this thread is ready again. */
static void suspend(const char *name)
{
    const unsigned me = now.now;
    now.threads[me].name = name;
    clear_ready();
    if (!choose()) qn_emulated_give_up("no thread can go on");
    if (now.now == me) return;
    qn_fiber *from = qn_fiber_current(), *to = now.threads[now.now].fiber;
    now.threads[me].fiber = from;
    qn_fiber_switch(from, to ? to : qn_fiber_take());
}

/* What a fiber does: threads, from begin to end. */
void qn_fiber_run(qn_fiber *self)
{
    for (;;) {
        now.body(now.argument);
        now.threads[now.now].has_returned = 1;
        now.threads[now.now].fiber = NULL;
        now.n_returned++;
        clear_ready();
        qn_fiber *to = NULL;
        if (choose()) {
            to = now.threads[now.now].fiber;
            if (!to) continue;
        } else if (now.n_returned == now.n_threads) {
            to = &now.main;
        } else {
            qn_emulated_give_up("no thread can go on");
        }
        qn_fiber_put(self);
        qn_fiber_switch(self, to);
    }
}

/* ---- a launch ------------------------------------------------------------------------------------------ */

static void begin_block(void)
{
    now.n_returned = 0;
    now.ready = 0;
    memset(now.threads, 0, now.n_threads * sizeof *now.threads);
    memset(now.barriers, 0, sizeof now.barriers);
    memset(now.until, 0, sizeof now.until);
    for (unsigned i = 0; i < now.n_warps; i++) {
        warp *w = &now.warps[i];
        const unsigned left = now.n_threads - i * 32;
        w->n_lanes = left < 32 ? left : 32;
        w->all = w->n_lanes < 32 ? (1u << w->n_lanes) - 1 : 0xffffffffu;
        w->n_here = w->turn = w->ready = 0;
        if (w->n_lanes < 32) {
            memset(w->value, 0xff, sizeof w->value);
            memset(w->args, 0, sizeof w->args);
        }
        set_ready(i, w->all);
    }
    qn_emulated_forget_copies(now.n_threads);
    qn_emulated_forget_products(now.n_threads);
    if (now.shared) memset(now.shared, 0xff, now.shared_bytes);
    now.now = 0;
    threadIdx.x = 0;
}

static cudaError_t run_blocks(unsigned grid)
{
    qn_fiber_enter(&now.main);
    for (unsigned i = 0; i < grid; i++) {
        blockIdx.x = i;
        begin_block();
        qn_fiber_switch(&now.main, qn_fiber_take());
        if (!now.has_failed) continue;
        qn_fiber_reset();
        return cudaErrorLaunchFailure;
    }
    return cudaSuccess;
}

cudaError_t qn_emulate_body(const void *kernel, void (*body)(void *), void *argument, unsigned grid,
                            int block, size_t shared_bytes)
{
    if (block <= 0 || block > MAX_THREADS || !grid) return qn_emulated_error(cudaErrorInvalidConfiguration);
    if (shared_bytes > MAX_SHARED) return qn_emulated_error(cudaErrorInvalidValue);
    if (qn_emulated_launch_failure() != cudaSuccess) return cudaErrorIllegalAddress;
    void *shared = NULL;
    if (shared_bytes && posix_memalign(&shared, 128, shared_bytes))
        return qn_emulated_error(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&lock);
    now.kernel = kernel;
    now.body = body;
    now.argument = argument;
    now.shared = (char *)shared;
    now.shared_bytes = shared_bytes;
    now.n_threads = (unsigned)block;
    now.n_warps = (now.n_threads + 31) / 32;
    now.has_failed = 0;
    blockDim = dim3(now.n_threads);
    gridDim = dim3(grid);
    const cudaError_t e = run_blocks(grid);
    pthread_mutex_unlock(&lock);
    free(shared);
    return qn_emulated_error(e);
}

char *qn_emulated_shared(void)
{
    return now.shared;
}

/* ---- what threads do together -------------------------------------------------------------------------- */

void qn_emulated_warp(const char *name, void *arg, qn_emulated_work *work)
{
    warp *w = &now.warps[now.now / 32];
    if (w->n_here && w->name != name) {
        now.threads[now.now].name = name;
        qn_emulated_give_up("lanes of a warp are at different things");
    }
    if (work && w->n_lanes < 32) qn_emulated_give_up("a warp that lacks lanes cannot do this");
    w->name = name;
    w->args[now.now % 32] = arg;
    if (++w->n_here < w->n_lanes) {
        suspend(name);
        return;
    }
    if (work) work(w->args, (int)w->n_lanes);
    w->n_here = 0;
    w->turn ^= 1;
    set_ready(now.now / 32, w->all);
}

static const char shuffle_name[] = "a shuffle", ballot_name[] = "a vote", barrier_name[] = "__syncthreads";

uint64_t qn_emulated_shuffle(uint64_t mine, int from)
{
    warp *w = &now.warps[now.now / 32];
    uint64_t *value = w->value[w->turn];
    value[now.now % 32] = mine;
    qn_emulated_warp(shuffle_name, NULL, NULL);
    return value[from & 31];
}

unsigned qn_emulated_ballot(int is_true)
{
    warp *w = &now.warps[now.now / 32];
    unsigned *ballot = &w->ballot[w->turn];
    if (!w->n_here) *ballot = 0;
    *ballot |= (unsigned)!!is_true << now.now % 32;
    qn_emulated_warp(ballot_name, NULL, NULL);
    return *ballot;
}

void qn_emulated_barrier(int id, int n_threads)
{
    if (id < 0 || id >= N_BARRIERS || n_threads <= 0 || n_threads > (int)now.n_threads)
        qn_emulated_give_up("there is no such barrier");
    barrier *b = &now.barriers[id];
    if (b->n_here && b->n_threads != (unsigned)n_threads)
        qn_emulated_give_up("threads give a barrier different counts");
    b->n_threads = (unsigned)n_threads;
    if (++b->n_here < b->n_threads) {
        b->waiting[now.now / 32] |= 1u << now.now % 32;
        suspend(id ? "a named barrier" : barrier_name);
        return;
    }
    b->n_here = 0;
    for (unsigned i = 0; i < now.n_warps; i++) {
        set_ready(i, b->waiting[i]);
        b->waiting[i] = 0;
    }
}

void qn_emulated_until(const char *name, int (*is_done)(const void *arg, unsigned detail), const void *arg,
                       unsigned detail)
{
    while (!is_done(arg, detail)) {
        now.until[now.now / 32] |= 1u << now.now % 32;
        suspend(name);
    }
}

void qn_emulated_wake(void)
{
    for (unsigned i = 0; i < now.n_warps; i++) {
        set_ready(i, now.until[i]);
        now.until[i] = 0;
    }
}
