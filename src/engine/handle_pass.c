/* Passes from handles. Who comes while nobody computes does so for all who wait, in steps that they share,
 * until its own pass is done, and once more for those who came meanwhile. A long pass (a prompt) is computed
 * alone, piece by piece, and others who use the engine come in between. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "engine/handle_parts.h"
#include "engine/prefixes.h"

enum {
    PIECE_ROWS = 64, /* of a long pass, between which others compute */
    SHORT_ROWS = 8,  /* most of a pass that shares a step */
    LOOK_NS = 100000
};

struct qn_handle_pass {
    qn_handle *handle;
    const qn_handle *from; /* NULL: none */
    float *logits;
    int is_finite;
    atomic_int is_done;
    qn_status status;
    char message[QN_ERROR_TEXT_MAX]; /* of status, for the thread that called */
    pthread_cond_t changed;
    qn_handle_pass *next;
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
    return qn_fail(QN_E_DEVICE, "the logits of position %lld are not finite; what led to them is given up",
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

/* Whoever called may go from here on. */
static void finish(qn_handles *h, qn_handle_pass *const *done, int64_t n, const qn_handle_pass *own)
{
    pthread_mutex_lock(&h->lock);
    for (int64_t i = 0; i < n; i++) {
        if (done[i] != own) pthread_cond_signal(&done[i]->changed);
        atomic_store_explicit(&done[i]->is_done, 1, memory_order_release);
    }
    pthread_mutex_unlock(&h->lock);
}

/* Computes the first passes of the queue. own: that of the thread, which is not to be woken. The lock is held
 * outside. */
static void compute_some(qn_handles *h, const qn_handle_pass *own)
{
    enum { LIST = 64 };
    qn_handle_pass *done[LIST]; /* compute_together changes the batch's order */
    int64_t n = take_batch(h);
    pthread_mutex_unlock(&h->lock);
    qn_status status = qn_scheduler_enter(h->scheduler);
    for (int64_t i = 0; i < n; i += LIST) {
        int64_t part = n - i < LIST ? n - i : LIST;
        memcpy(done, h->batch + i, (size_t)part * sizeof *done);
        if (status != QN_OK)
            for (int64_t j = 0; j < part; j++) set_status(done[j], status);
        else if (part == 1)
            set_status(done[0], compute_alone(h, done[0]));
        else
            compute_together(h, h->batch + i, part);
        finish(h, done, part, own);
    }
    if (status == QN_OK) qn_scheduler_leave(h->scheduler);
    pthread_mutex_lock(&h->lock);
}

/* Looks for a while whether the pass is done, or may be computed; the lock is held outside. One thread at a
 * time, where a core is left for it: a thread that sleeps takes longer to wake than a short pass takes. */
static void look(qn_handles *h, const qn_handle_pass *p)
{
    h->is_looking = 1;
    pthread_mutex_unlock(&h->lock);
    int64_t end = qn_clock_ns() + LOOK_NS;
    while (!atomic_load_explicit(&p->is_done, memory_order_acquire) &&
           atomic_load_explicit(&h->is_computing, memory_order_relaxed) && qn_clock_ns() < end)
        sched_yield();
    pthread_mutex_lock(&h->lock);
    h->is_looking = 0;
}

/* The lock is held. */
static void wake_next(qn_handles *h)
{
    if (h->first && !h->is_computing && !h->is_looking) pthread_cond_signal(&h->first->changed);
}

/* Computes until the pass is done. The lock is held outside. */
static void lead(qn_handles *h, const qn_handle_pass *p)
{
    h->is_computing = 1;
    while (!p->is_done) compute_some(h, p); /* only this thread sets it now */
    /* Whoever came meanwhile is served before it is woken, and wakes while this thread comes back. */
    if (h->first) compute_some(h, p);
    h->is_computing = 0;
}

/* Waits until the pass is done, or computes. */
static void compute(qn_handles *h, qn_handle_pass *p)
{
    int may_look = h->has_core;
    pthread_cond_init(&p->changed, NULL);
    pthread_mutex_lock(&h->lock);
    if (h->last)
        h->last->next = p;
    else
        h->first = p;
    h->last = p;
    while (!p->is_done && h->is_computing) {
        if (may_look && !h->is_looking) {
            look(h, p);
            may_look = 0;
        } else {
            pthread_cond_wait(&p->changed, &h->lock);
        }
    }
    if (!p->is_done) lead(h, p);
    wake_next(h);
    pthread_mutex_unlock(&h->lock);
    pthread_cond_destroy(&p->changed);
}

/* ---- the call ----------------------------------------------------------------------------------------- */

static qn_status check_ids(const qn_handles *h, const qn_handle *from, const int32_t *ids, int64_t n)
{
    int64_t had = from ? from->n_ids : 0, context = h->engine->info.context_size;
    int64_t vocabulary = h->engine->config.vocab_size;
    if (n < 1) return qn_fail(QN_E_ARG, "a pass needs at least one token");
    if (n > context - had)
        return qn_fail(QN_E_ARG, "%lld tokens behind %lld: the context holds %lld", (long long)n,
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

qn_status qn_handle_forward(qn_handles *h, const qn_handle *from, const int32_t *ids, int64_t n,
                            float *logits, qn_handle **out)
{
    qn_handle *handle = NULL;
    QN_TRY(check_ids(h, from, ids, n));
    QN_TRY(qn_scheduler_check_thread(h->scheduler));
    QN_TRY(qn_handle_take(h, &handle));
    qn_status status = prepare(h, handle, from, ids, n);
    if (status == QN_OK) {
        qn_handle_pass p = {.handle = handle, .from = from, .logits = logits, .is_finite = 1};
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
