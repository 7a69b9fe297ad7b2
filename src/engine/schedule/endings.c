/* How requests end, or go back into the queue. */
#include "base/mem.h"
#include "engine/machine/prefixes.h"
#include "engine/schedule/scheduler_parts.h"

void qn_batch_touch(qn_scheduler *s, qn_client *c)
{
    if (c->is_touched) return;
    c->is_touched = 1;
    c->next_touched = s->touched;
    s->touched = c;
}

void qn_batch_remember(qn_scheduler *s, qn_request *r)
{
    if (!qn_request_uses_tree(r) || r->ids_base || r->is_bad || r->step_status != QN_OK) return;
    const int64_t rows = QN_PROMPT_TILES * QN_PROMPT_TILE;
    const double ns = qn_prompt_costs_get(&s->prompt_costs, rows);
    qn_sequence_remember(r->sequence, r->salt, r->ids, r->number, (int64_t)ns / rows);
    qn_events_cache(s, QN_CACHE_EVENT_INSERT, r, qn_sequence_length(r->sequence));
    for (; r->n_pinned < r->n_pins; r->n_pinned++) {
        const qn_prefix_pin *pin = &r->pins[r->n_pinned];
        if (pin->n_tokens > qn_sequence_length(r->sequence)) break;
        qn_sequence_hold(r->sequence, r->salt, r->ids, pin->n_tokens, pin->ttl_ms);
    }
}

/* Out of the lists, without a word. */
static void take_out(qn_scheduler *s, qn_request *r)
{
    if (r->sequence) {
        qn_request_list_remove(&s->active, r);
        qn_sequence_free(r->sequence);
        qn_drafter_release(r->drafter);
        r->sequence = NULL;
    } else {
        qn_request_list_remove(&s->queued, r);
    }
    atomic_fetch_sub(qn_request_is_idle(r) ? &s->n_idle : &s->n_open, 1);
    qn_admission_forget(s, r);
    s->now.n_finished++;
}

void qn_batch_end(qn_scheduler *s, qn_request *r, qn_end why)
{
    if (r->sequence) qn_batch_remember(s, r);
    take_out(s, r);
    s->now.n_failed += why == QN_END_ERROR;
    r->end = why;
    qn_batch_touch(s, r->client);
    r->next = s->ended;
    s->ended = r;
    atomic_store_explicit(&r->is_done, 1, memory_order_release);
}

void qn_batch_fail(qn_scheduler *s, qn_request *r, qn_status status)
{
    r->step_status = r->failure = status;
    if (!r->message) r->message = qn_strdup(qn_last_error());
    qn_batch_end(s, r, QN_END_ERROR);
}

void qn_batch_drop(qn_scheduler *s, qn_request *r)
{
    if (atomic_load_explicit(&r->is_done, memory_order_acquire)) return;
    if (r->sequence) qn_batch_remember(s, r);
    take_out(s, r);
    r->end = QN_END_CANCELLED;
    atomic_store_explicit(&r->is_done, 1, memory_order_release);
    atomic_store_explicit(&r->is_settled, 1, memory_order_release);
}

/* Back into the queue, with all its ids. */
static void put_back(qn_scheduler *s, qn_request *r)
{
    qn_request_list_remove(&s->active, r);
    qn_sequence_free(r->sequence);
    qn_drafter_release(r->drafter);
    r->sequence = NULL;
    r->compared_with = 0;
    r->shared_end = 0;
    qn_request_list_put(&s->queued, r);
}

void qn_batch_preempt(qn_scheduler *s, qn_request *r)
{
    qn_batch_remember(s, r);
    r->n_preemptions++;
    s->now.n_preemptions++;
    put_back(s, r);
}

/* Who reads nothing but what it wrote itself is not concerned, whoever goes on from that. */
static int reads_poison(const qn_request *a)
{
    return a->n_attached && qn_sequence_is_poisoned(a->sequence);
}

void qn_batch_forget(qn_scheduler *s, const qn_request *r)
{
    qn_engine_forget(s->engine, r->number);
    qn_events_cache(s, QN_CACHE_EVENT_POISON, r, 0);
    for (qn_request *a = s->active.first; a; a = a->next)
        if (a != r && reads_poison(a)) a->is_poisoned = 1;
}

int qn_batch_blame(qn_scheduler *s, qn_request *r)
{
    if (!r->n_attached || !qn_sequence_blame(r->sequence, r->salt, r->ids_base ? NULL : r->ids)) return 0;
    for (qn_request *a = s->active.first; a; a = a->next)
        if (a != r && !a->ids_base && reads_poison(a)) a->is_poisoned = 1;
    return 1;
}

int qn_batch_begin_anew(qn_scheduler *s, qn_request *r)
{
    qn_batch_forget(s, r);
    r->is_poisoned = 0;
    if (r->begins_anew || r->ids_base > 0) return 0; /* above 0: its first ids are gone */
    r->begins_anew = 1;
    r->n_pinned = 0;
    r->n_restarts++;
    s->now.n_restarts++;
    put_back(s, r);
    r->step_status = QN_OK;
    r->is_bad = 0;
    qn_free(r->message);
    r->message = NULL;
    return 1;
}

static void sweep_list(qn_scheduler *s, qn_request_list *l, int64_t now)
{
    for (qn_request *r = l->first, *next; r; r = next) {
        next = r->next;
        if (r->cancel && qn_cancel_is_set(r->cancel))
            qn_batch_end(s, r, QN_END_CANCELLED);
        else if (atomic_load_explicit(&r->is_unwanted, memory_order_relaxed))
            qn_batch_end(s, r, QN_END_STOP_STRING);
        else if (r->deadline_ns && now >= r->deadline_ns)
            qn_batch_end(s, r, QN_END_DEADLINE);
    }
}

/* What they had built on is no good. What was drawn stays: samplers do not forget. */
static void sweep_poisoned(qn_scheduler *s)
{
    for (qn_request *r = s->active.first, *next; r; r = next) {
        next = r->next;
        if (!r->is_poisoned || qn_batch_begin_anew(s, r)) continue;
        qn_batch_fail(s, r, qn_fail(QN_E_DEVICE, "a step failed whose results this request depends on"));
    }
}

void qn_batch_sweep(qn_scheduler *s, int64_t now)
{
    sweep_list(s, &s->queued, now);
    sweep_list(s, &s->active, now);
    sweep_poisoned(s);
}
