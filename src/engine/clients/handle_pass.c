/* Passes from handles. Who comes while nobody computes leads: it computes for all who wait, in steps that
 * they share, until its own pass is done. A long pass (a prompt) is computed alone, piece by piece, and
 * others who use the engine come in between.
 *
 * Most callers come back with their next pass at once. A caller that waits for the others, and for whom the
 * others wait, is faster than one that begins alone: a step costs little more for two rows than for one. So
 * the last leader leads again if it is back within moments (what a step works with is in its core's cache),
 * and begins when those are back whom the last step let go; for who does not come back nobody waits long, or
 * often. Waiters stay awake on cores that the engine leaves free; sleepers wake each other. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/futex.h"
#include "engine/clients/handle_parts.h"
#include "engine/machine/prefixes.h"

enum {
    PIECE_ROWS = 64,  /* of a long pass, between which others compute */
    SHORT_ROWS = 8,   /* most of a pass that shares a step */
    LOOK_NS = 300000, /* how long one waits awake */
    LOOKERS = 16,     /* so many do on one core, by turns: to wake costs more than a turn */
    SOON_NS = 8000,   /* in which who is awake comes back with its next pass, nearly always */
    LATE_NS = 20000,  /* in which sleepers may */
    LATEST_NS = 500000,
    PART_OF_STEP = 32, /* what waiting for sleepers may cost */
    HASTY_MAX = 63     /* steps that wait for nobody, after some who came late */
};

enum { PASS_WAITS, PASS_SLEEPS, PASS_DONE };

struct qn_handle_pass {
    qn_handle *handle;
    const qn_handle *from; /* NULL: none */
    float *logits;
    int is_finite;
    qn_status status;
    char message[QN_ERROR_TEXT_MAX]; /* of status, for the thread that called */
    atomic_uint state;               /* PASS_...; DONE: nobody but the thread that called looks at it */
    qn_handle_pass *next;            /* of the queue */
    qn_handle_pass *wakes;           /* done too, and asleep: to be let go by the thread of this one */
};

const qn_handle_pass *qn_handle_pass_next(const qn_handle_pass *p)
{
    return p->next;
}

typedef struct {
    qn_handle_pass **batch;
    int64_t vocab_size;
} logits_sink;

/* Copies and looks at each number once. */
static qn_status take_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const logits_sink *sink = user;
    qn_handle_pass *p = sink->batch[feed];
    uint32_t bad = 0, bits;
    for (int64_t i = 0; i < sink->vocab_size; i++) {
        memcpy(&bits, &logits[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
        p->logits[i] = logits[i];
    }
    p->is_finite = !bad;
    return QN_OK;
}

static int64_t missing_rows(const qn_handle_pass *p)
{
    return p->handle->n_ids - p->handle->sequence.length;
}

static void set_status(qn_handle_pass *p, qn_status status)
{
    p->status = status;
    if (status != QN_OK) snprintf(p->message, sizeof p->message, "%s", qn_last_error());
}

/* ---- computing; the engine is the caller's ------------------------------------------------------------- */

/* The new handle as it begins: with what is computed of the old one, or of a prefix. */
static qn_status begin_pass(qn_handles *h, qn_handle_pass *p)
{
    qn_engine *e = h->engine;
    qn_sequence *s = &p->handle->sequence;
    const qn_sequence *of = p->from ? &p->from->sequence : NULL;
    qn_sequence_expect(s, p->handle->n_ids);
    if (s->length && e->slots) { /* the pass changes the state in place */
        int32_t slot;
        QN_TRY(qn_pages_reserve(e->slots, 1, &slot));
        s->slot = slot;
        qn_pages_copy(e->slots, of->slot, slot);
    }
    if (!s->length) qn_sequence_attach(s, NULL, p->handle->log->ids, p->handle->n_ids - 1);
    return QN_OK;
}

/* The next n tokens of a pass; logits behind the last. */
static qn_feed feed_of(const qn_handle_pass *p, int64_t n)
{
    const qn_sequence *s = &p->handle->sequence;
    return (qn_feed){.sequence = &p->handle->sequence,
                     .ids = p->handle->log->ids + s->length,
                     .n_ids = n,
                     .logits = s->length + n == p->handle->n_ids ? QN_LOGITS_LAST : QN_LOGITS_NONE};
}

static qn_status check_finite(const qn_handle_pass *p)
{
    if (p->is_finite) return QN_OK;
    return qn_fail(QN_E_DEVICE,
                   "the logits of position %lld are not finite; the state that led to them is discarded",
                   (long long)(p->handle->n_ids - 1));
}

/* Gives the engine up between pieces. On return it is the caller's, unless the status is that of entering. */
static qn_status compute_alone(qn_handles *h, qn_handle_pass *p)
{
    logits_sink sink = {&p, h->engine->config.vocab_size};
    QN_TRY(begin_pass(h, p));
    while (missing_rows(p) > 0) {
        qn_feed feed = feed_of(p, missing_rows(p) < PIECE_ROWS ? missing_rows(p) : PIECE_ROWS);
        QN_TRY(qn_engine_step(h->engine, 1, &feed, take_logits, NULL, &sink));
        if (missing_rows(p) == 0) break;
        qn_scheduler_leave(h->scheduler);
        QN_TRY(
            qn_scheduler_enter(h->scheduler)); /* it fails for a thread that leads, and this one does not */
    }
    return check_finite(p);
}

/* What is computed of from becomes the new handle's. */
static qn_status begin_with(qn_handles *h, qn_handle *handle, const qn_handle *from)
{
    int64_t limit = h->engine->config.rope_short_positions;
    if (!from) return QN_OK;
    if (limit && handle->n_ids > limit && !from->sequence.is_long) return QN_OK; /* all is computed anew */
    return qn_handle_share(handle, from, from->n_ids);
}

/* As it was before the step that failed for all of a batch. */
static qn_status rewind_pass(qn_handles *h, qn_handle_pass *p)
{
    qn_engine *e = h->engine;
    qn_sequence *s = &p->handle->sequence;
    for (int i = 0; i < e->groups.n; i++) qn_block_table_clear(&s->tables[i], e->pages[i]);
    if (s->slot >= 0) qn_pages_release(e->slots, s->slot);
    s->slot = -1;
    s->length = s->n_given = 0;
    s->is_long = s->is_lost = 0;
    return begin_with(h, p->handle, p->from);
}

/* What one pass lacks, pages or memory, fails that one; where the step fails each is tried alone. */
static void compute_together(qn_handles *h, qn_handle_pass **batch, int64_t n)
{
    int64_t n_feeds = 0;
    for (int64_t i = 0; i < n; i++) {
        qn_handle_pass *p = batch[i];
        set_status(p, begin_pass(h, p));
        if (p->status == QN_OK) set_status(p, qn_sequence_reserve(&p->handle->sequence, missing_rows(p)));
        if (p->status != QN_OK) continue;
        h->feeds[n_feeds] = feed_of(p, missing_rows(p));
        batch[n_feeds++] = p;
    }
    logits_sink sink = {batch, h->engine->config.vocab_size};
    qn_status status =
        n_feeds ? qn_engine_step(h->engine, n_feeds, h->feeds, take_logits, NULL, &sink) : QN_OK;
    for (int64_t i = 0; i < n_feeds; i++) {
        qn_handle_pass *p = batch[i];
        qn_status own = status == QN_OK ? check_finite(p) : status;
        if (status != QN_OK && n_feeds > 1) {
            own = rewind_pass(h, p);
            if (own == QN_OK) own = compute_alone(h, p);
        }
        set_status(p, own);
    }
}

/* ---- who computes ------------------------------------------------------------------------------------- */

/* Takes the first passes of the queue that share a step. The lock is held. */
static int64_t take_batch(qn_handles *h)
{
    int64_t n = 0, rows = 0, most = h->engine->info.max_sequences;
    while (h->first && n < most) {
        qn_handle_pass *p = h->first;
        int64_t missing = missing_rows(p);
        if (n && (missing > SHORT_ROWS || rows + missing > h->engine->info.max_rows)) break;
        h->first = p->next;
        if (!h->first) h->last = NULL;
        h->batch[n++] = p;
        rows += missing;
        if (missing > SHORT_ROWS) break;
    }
    return n;
}

static int64_t count_arrived(const qn_handles *h)
{
    return atomic_load_explicit(&h->n_arrived, memory_order_relaxed);
}

/* Lets the thread of a pass go. It may be gone before the system was asked to wake it. */
static void let_go(qn_handle_pass *p)
{
    if (!p) return;
    atomic_store_explicit(&p->state, PASS_DONE, memory_order_release);
    qn_futex_wake(&p->state, 1);
}

/* Whoever called may go from here on. To wake a thread costs as much as a short pass, so that who computes
 * wakes one at most: sleepers hang on a chain, whose first is woken by one who is awake, if there is any, and
 * each wakes the next on its way out. own: that of this thread. */
static void finish(qn_handles *h, qn_handle_pass **done, int64_t n, const qn_handle_pass *own)
{
    qn_handle_pass *asleep = NULL;
    int64_t n_awake = 0, n_own = 0;
    h->due = h->due_soon = count_arrived(h);
    for (int64_t i = n; i-- > 0;) {
        qn_handle_pass *p = done[i];
        if (p == own) {
            atomic_store_explicit(&done[i]->state, PASS_DONE, memory_order_relaxed);
            n_own = 1;
        } else if (atomic_load_explicit(&p->state, memory_order_relaxed) == PASS_SLEEPS) {
            p->wakes = asleep;
            asleep = p;
        } else {
            done[n - ++n_awake] = p; /* behind what is still to be looked at */
        }
    }
    h->due += n - n_own;
    h->due_soon += n_awake;
    for (int64_t i = n - n_awake; i < n; i++) {
        qn_handle_pass *p = done[i];
        unsigned waits = PASS_WAITS;
        p->wakes = asleep;
        int takes = atomic_compare_exchange_strong_explicit(&p->state, &waits, PASS_DONE,
                                                            memory_order_release, memory_order_relaxed);
        asleep = takes ? NULL : p; /* it has fallen asleep */
    }
    let_go(asleep);
}

/* Callers come back with their next passes as soon as they were let go: waits for those who are worth it, so
 * that they share the next step, too. Who is awake needs less than a step gains by sharing it; sleepers are
 * waited for where steps are long. The lock is held outside. */
static void gather(qn_handles *h)
{
    int64_t patience = h->step_ns / PART_OF_STEP, due = h->due, now, arrived = count_arrived(h);
    if (arrived >= due) return;
    if (patience < LATE_NS) {
        patience = SOON_NS;
        due = h->due_soon;
    }
    if (patience > LATEST_NS) patience = LATEST_NS;
    pthread_mutex_unlock(&h->lock);
    if (arrived < due && !h->n_hasty) {
        int64_t end = qn_clock_ns() + patience;
        do {
            sched_yield();
            now = qn_clock_ns();
        } while (now < end && count_arrived(h) < due);
        h->n_missed = now < end ? 0 : 2 * h->n_missed + 1 < HASTY_MAX ? 2 * h->n_missed + 1 : HASTY_MAX;
        h->n_hasty = h->n_missed;
    } else {
        h->n_hasty -= h->n_hasty > 0;
        sched_yield(); /* one of those who are missing may wait for this core */
    }
    pthread_mutex_lock(&h->lock);
}

/* Computes the first passes of the queue. own: that of the thread, which is not to be woken. The lock is held
 * outside. */
static void compute_some(qn_handles *h, const qn_handle_pass *own)
{
    enum { LIST = 64 };
    qn_handle_pass *done[LIST]; /* compute_together changes the batch's order */
    gather(h);
    int64_t n = take_batch(h);
    pthread_mutex_unlock(&h->lock);
    qn_status status = qn_scheduler_enter(h->scheduler);
    int64_t start = qn_clock_ns();
    for (int64_t i = 0; i < n; i += LIST) {
        int64_t part = n - i < LIST ? n - i : LIST;
        memcpy(done, h->batch + i, (size_t)part * sizeof *done);
        if (status != QN_OK)
            for (int64_t j = 0; j < part; j++) set_status(done[j], status);
        else if (part == 1)
            set_status(done[0], compute_alone(h, done[0]));
        else
            compute_together(h, h->batch + i, part);
        h->step_ns = qn_clock_ns() - start;
        finish(h, done, part, own);
    }
    if (status == QN_OK) qn_scheduler_leave(h->scheduler);
    pthread_mutex_lock(&h->lock);
}

static int is_done(const qn_handle_pass *p)
{
    return atomic_load_explicit(&p->state, memory_order_acquire) == PASS_DONE;
}

/* Computes until the pass is done. The lock is held outside. */
static void lead(qn_handles *h, const qn_handle_pass *p)
{
    atomic_store_explicit(&h->is_computing, 1, memory_order_relaxed);
    h->leader = pthread_self();
    while (!is_done(p)) compute_some(h, p);
    h->due++; /* this one comes back, too */
    h->due_soon++;
    int64_t due_ns = h->n_hasty ? 0 : qn_clock_ns() + SOON_NS;
    atomic_store_explicit(&h->leader_due_ns, due_ns, memory_order_relaxed);
    atomic_store_explicit(&h->is_computing, 0, memory_order_relaxed);
}

/* May a thread that is not the last leader compute? */
static int is_free(const qn_handles *h)
{
    return !atomic_load_explicit(&h->is_computing, memory_order_relaxed) &&
           qn_clock_ns() >= atomic_load_explicit(&h->leader_due_ns, memory_order_relaxed);
}

/* Looks for a while whether the pass is done, or may be computed: only where cores are left for that. */
static void look(const qn_handles *h, const qn_handle_pass *p)
{
    int64_t end = qn_clock_ns() + LOOK_NS;
    while (!is_done(p) && !is_free(h) && qn_clock_ns() < end) sched_yield();
}

/* Lets go of who is waiting for this thread. The pass is done. */
static void pass_on(qn_handle_pass *p)
{
    let_go(p->wakes);
    p->wakes = NULL;
}

/* Until the pass is done, or somebody wants it to be computed by this thread. */
static void rest(qn_handle_pass *p)
{
    while (atomic_load_explicit(&p->state, memory_order_acquire) == PASS_SLEEPS)
        qn_futex_wait(&p->state, PASS_SLEEPS);
}

/* Somebody must look after those who wait: nobody computes, and nobody who is awake will find that out. The
 * lock is held outside. */
static void call_next(qn_handles *h)
{
    unsigned sleeps = PASS_SLEEPS;
    if (!h->first || h->n_looking || atomic_load_explicit(&h->is_computing, memory_order_relaxed)) return;
    atomic_uint *state = &h->first->state;
    int is_asleep = atomic_compare_exchange_strong_explicit(state, &sleeps, PASS_WAITS, memory_order_relaxed,
                                                            memory_order_relaxed);
    pthread_mutex_unlock(&h->lock);
    if (is_asleep) qn_futex_wake(state, 1);
    pthread_mutex_lock(&h->lock);
}

/* Waits until the pass is done, or computes. */
static void compute(qn_handles *h, qn_handle_pass *p)
{
    int may_look = 1;
    pthread_mutex_lock(&h->lock);
    if (h->last)
        h->last->next = p;
    else
        h->first = p;
    h->last = p;
    atomic_fetch_add_explicit(&h->n_arrived, 1, memory_order_relaxed);
    while (!is_done(p)) {
        unsigned waits = PASS_WAITS;
        int is_computing = atomic_load_explicit(&h->is_computing, memory_order_relaxed);
        if (!is_computing && (pthread_equal(h->leader, pthread_self()) || is_free(h))) {
            lead(h, p);
        } else if ((may_look || !is_computing) && h->n_looking < LOOKERS * h->n_spare_cores) {
            may_look = 0;
            h->n_looking++;
            pthread_mutex_unlock(&h->lock);
            look(h, p);
            if (is_done(p)) pass_on(p);
            pthread_mutex_lock(&h->lock);
            h->n_looking--;
        } else if (!is_computing && !h->n_looking) {
            lead(h, p);
        } else if (atomic_compare_exchange_strong_explicit(&p->state, &waits, PASS_SLEEPS,
                                                           memory_order_relaxed, memory_order_relaxed)) {
            pthread_mutex_unlock(&h->lock);
            rest(p);
            if (is_done(p)) {
                pass_on(p);
                return;
            }
            pthread_mutex_lock(&h->lock);
        }
    }
    call_next(h);
    pthread_mutex_unlock(&h->lock);
    pass_on(p);
}

/* ---- the call ----------------------------------------------------------------------------------------- */

static qn_status check_ids(const qn_handles *h, const qn_handle *from, const int32_t *ids, int64_t n)
{
    int64_t had = from ? from->n_ids : 0, context = h->engine->info.context_size;
    int64_t vocabulary = h->engine->config.vocab_size;
    if (n < 1) return qn_fail(QN_E_ARG, "a pass needs at least one token");
    if (n > context - had)
        return qn_fail(QN_E_ARG, "%lld tokens after %lld: the context holds %lld", (long long)n,
                       (long long)had, (long long)context);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return qn_fail(QN_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld",
                           (int)ids[i], (long long)(had + i), (long long)vocabulary);
    return QN_OK;
}

/* Everything that needs no engine. */
static qn_status prepare(qn_handles *h, qn_handle *handle, const qn_handle *from, const int32_t *ids,
                         int64_t n)
{
    qn_engine *e = h->engine;
    if (!from) {
        QN_TRY(qn_adapters_hold(e->adapters, NULL, &handle->sequence.adapter));
        return qn_handle_put_ids(h, handle, NULL, 0, ids, n);
    }
    QN_TRY(qn_handle_check_poison(from));
    handle->sequence.adapter = from->sequence.adapter;
    qn_adapters_retain(e->adapters, from->sequence.adapter);
    QN_TRY(qn_handle_put_ids(h, handle, from, from->n_ids, ids, n));
    return begin_with(h, handle, from);
}

static void make_pass(qn_handle_pass *p, qn_handle *handle, const qn_handle *from, float *logits)
{
    p->handle = handle;
    p->from = from;
    p->logits = logits;
    p->is_finite = 1;
    p->next = p->wakes = NULL;
    atomic_init(&p->state, PASS_WAITS);
}

qn_status qn_handle_forward(qn_handles *h, const qn_handle *from, const int32_t *ids, int64_t n,
                            float *logits, qn_handle **out)
{
    qn_handle *handle = NULL;
    QN_TRY(check_ids(h, from, ids, n));
    QN_TRY(qn_scheduler_check_thread(h->scheduler));
    QN_TRY(qn_handle_take(h, &handle));
    qn_status status = prepare(h, handle, from, ids, n);
    if (status == QN_OK) {
        qn_handle_pass p; /* its message is only there with a status */
        make_pass(&p, handle, from, logits);
        compute(h, &p);
        status = p.status;
        if (status != QN_OK) qn_fail_copy(status, p.message);
    }
    if (status == QN_OK)
        *out = handle;
    else
        qn_handle_free(h, handle);
    return status;
}
