/* One step: who is fed how many ids, and what came of it. */
#include "base/clock.h"
#include "base/mem.h"
#include "engine/images.h"
#include "engine/logprobs.h"
#include "engine/prefixes.h"
#include "engine/scheduler_parts.h"
#include "engine/speculate.h"

enum {
    PREFILL_BUDGET_NS = 40000000, /* of a step, while others decode */
    PREFILL_ROWS_MIN = 16,        /* of a step, however slow */
    SNAPSHOT_IDS = 1024           /* between two prefixes that are kept of a prompt, where keeping costs */
};

/* ---- ends --------------------------------------------------------------------------------------------- */

static void touch(qn_scheduler *s, qn_client *c)
{
    if (c->is_touched) return;
    c->is_touched = 1;
    c->next_touched = s->touched;
    s->touched = c;
}

/* Where the id at this position lies. */
static int32_t *id_at(const qn_request *r, int64_t position)
{
    return r->ids + (position - r->ids_base);
}

static void remember(qn_scheduler *s, qn_request *r)
{
    if (r->no_cache || r->images || r->ids_base || r->step_status != QN_OK) return;
    qn_sequence_remember(r->sequence, r->salt, r->ids, r->number, (int64_t)s->prefill_ns_a_row);
    qn_events_cache(s, QN_CACHE_EVENT_INSERT, r, qn_sequence_length(r->sequence));
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
    if (!atomic_load_explicit(&r->admitted_ns, memory_order_relaxed)) atomic_fetch_sub(&s->n_waiting, 1);
    qn_admission_forget(s, r);
    s->now.n_finished++;
}

static void end(qn_scheduler *s, qn_request *r, qn_end why)
{
    if (r->sequence) remember(s, r);
    take_out(s, r);
    s->now.n_failed += why == QN_END_ERROR;
    r->end = why;
    touch(s, r->client);
    r->next = s->ended;
    s->ended = r;
    atomic_store_explicit(&r->is_done, 1, memory_order_release);
}

/* It fails with this thread's message, unless it has one. */
static void fail(qn_scheduler *s, qn_request *r, qn_status status)
{
    r->step_status = r->failure = status;
    if (!r->message) r->message = qn_strdup(qn_last_error());
    end(s, r, QN_END_ERROR);
}

void qn_batch_drop(qn_scheduler *s, qn_request *r)
{
    if (atomic_load_explicit(&r->is_done, memory_order_acquire)) return;
    if (r->sequence) remember(s, r);
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

/* Pages go to whoever needs them; what the prefix tree can keep of them makes it quick to go on. */
static void preempt(qn_scheduler *s, qn_request *r)
{
    remember(s, r);
    r->n_preemptions++;
    s->now.n_preemptions++;
    put_back(s, r);
}

static void forget(qn_scheduler *s, const qn_request *r)
{
    qn_engine_forget(s->engine, r->number);
    qn_events_cache(s, QN_CACHE_EVENT_POISON, r, 0);
}

/* Something that it had been given, or had computed, is no good: all of it anew, by itself. Returns 0 when
 * that was tried before. */
static int begin_anew(qn_scheduler *s, qn_request *r)
{
    forget(s, r);
    if (r->begins_anew) return 0;
    r->begins_anew = 1;
    r->n_restarts++;
    s->now.n_restarts++;
    put_back(s, r);
    r->step_status = QN_OK;
    qn_free(r->message);
    r->message = NULL;
    return 1;
}

/* ---- clocks and cancellations -------------------------------------------------------------------------- */

static void sweep_list(qn_scheduler *s, qn_request_list *l, int64_t now)
{
    for (qn_request *r = l->first, *next; r; r = next) {
        next = r->next;
        if (r->cancel && qn_cancel_is_set(r->cancel))
            end(s, r, QN_END_CANCELLED);
        else if (atomic_load_explicit(&r->is_unwanted, memory_order_relaxed))
            end(s, r, QN_END_STOP_STRING);
        else if (r->deadline_ns && now >= r->deadline_ns)
            end(s, r, QN_END_DEADLINE);
    }
}

/* ---- admission ----------------------------------------------------------------------------------------- */

/* It has gone on past its context, and its first ids are gone: it cannot be computed anew. */
static int has_rotated(const qn_request *r)
{
    return r->ids_base > 0;
}

/* It cannot go on before its owner has read. */
static int is_parked(const qn_request *r)
{
    return r->sampler && qn_ring_room(&r->ring) <= 0;
}

/* Somebody who gives way to r: who cannot go on anyway, else the least important one; not who is fed in this
 * step. NULL: nobody. */
static qn_request *find_victim(qn_scheduler *s, const qn_request *r, int only_lower)
{
    for (qn_request *v = s->active.last; v; v = v->previous)
        if (v != r && is_parked(v) && !v->is_fed && !has_rotated(v)) return v;
    for (qn_request *v = s->active.last; v; v = v->previous) {
        if (v == r || v->is_fed || has_rotated(v)) continue;
        int is_less =
            v->priority != r->priority ? v->priority < r->priority : !only_lower && v->number > r->number;
        return is_less ? v : NULL;
    }
    return NULL;
}

static qn_status start(qn_scheduler *s, qn_request *r)
{
    QN_TRY(qn_sequence_new(s->engine, &r->sequence));
    qn_request_list_remove(&s->queued, r);
    qn_request_list_put(&s->active, r);
    qn_sequence_expect(r->sequence, r->n_ids);
    qn_sequence_set_adapter(r->sequence, r->adapter);
    qn_sequence_set_images(r->sequence, r->images);
    int64_t most = r->n_ids - 1;
    if (!r->sampler && r->evaluate && r->logits_from < most) most = r->logits_from;
    r->n_attached = 0;
    if (!r->no_cache && !r->begins_anew && !r->images) {
        r->n_attached = qn_sequence_attach(r->sequence, r->salt, r->ids, most);
        qn_events_cache(s, r->n_attached ? QN_CACHE_EVENT_HIT : QN_CACHE_EVENT_MISS, r, r->n_attached);
    }
    if (!atomic_load_explicit(&r->admitted_ns, memory_order_relaxed)) {
        atomic_fetch_sub(&s->n_waiting, 1);
        atomic_store_explicit(&r->admitted_ns, qn_clock_ns(), memory_order_relaxed);
        r->n_cached = r->n_attached;
        s->now.n_prompt_tokens += r->n_prompt;
        s->now.n_cached_tokens += r->n_cached;
    }
    return QN_OK;
}

/* Is there a place, or somebody who would give his to a queued one? */
static int has_place(const qn_scheduler *s)
{
    if (s->active.n < qn_engine_get_info(s->engine)->max_sequences) return 1;
    if (s->active.last->priority < s->queued.first->priority) return 1;
    for (const qn_request *r = s->active.first; r; r = r->next)
        if (is_parked(r)) return 1;
    return 0;
}

/* Queued requests become active while there are places, and pages for all their ids. */
static void admit(qn_scheduler *s)
{
    const int64_t places = qn_engine_get_info(s->engine)->max_sequences;
    while (s->queued.first && has_place(s)) {
        qn_request *r = qn_admission_choose(s);
        if (!r) break;
        if (s->active.n == places || (s->active.n && !qn_engine_has_room(s->engine, r->n_ids))) {
            qn_request *v = find_victim(s, r, 1);
            if (!v) break;
            preempt(s, v);
            continue;
        }
        qn_status status = start(s, r);
        if (status != QN_OK) fail(s, r, status);
    }
    if (qn_engine_keeps_points(s->engine)) qn_admission_mark(s);
}

/* ---- who is fed ---------------------------------------------------------------------------------------- */

/* Pages for n more ids, whatever it takes. Returns 0 when it must wait, or has failed. */
static int secure(qn_scheduler *s, qn_request *r, int64_t n)
{
    for (;;) {
        qn_status status = qn_sequence_reserve(r->sequence, n);
        if (status == QN_OK) return 1;
        qn_request *v = status == QN_E_FULL || status == QN_E_NOMEM ? find_victim(s, r, 0) : NULL;
        if (v) {
            preempt(s, v);
            continue;
        }
        if (s->active.n == 1 || (status != QN_E_FULL && status != QN_E_NOMEM))
            fail(s, r, status);
        else if (!s->n_feeds && s->active.first == r)
            fail(s, r, status); /* the others have rotated: they do not give way */
        return 0;
    }
}

/* n_ahead of the n ids are guessed. */
static void feed(qn_scheduler *s, qn_request *r, int64_t from, int64_t n, int64_t n_ahead)
{
    qn_logits_wish wish = QN_LOGITS_NONE;
    if (r->sampler)
        wish = n_ahead ? QN_LOGITS_ALL : from + n == r->n_ids ? QN_LOGITS_LAST : QN_LOGITS_NONE;
    else if (r->evaluate && from >= r->logits_from)
        wish = r->hidden ? QN_LOGITS_HIDDEN : QN_LOGITS_ALL;
    else if (r->evaluate && !r->hidden && from + n == r->n_ids && r->logits_from == r->n_ids - 1)
        wish = QN_LOGITS_LAST;
    s->feeds[s->n_feeds] = (qn_feed){r->sequence, id_at(r, from), n, wish};
    s->fed[s->n_feeds++] = r;
    r->is_fed = 1;
    r->n_drawn = 0;
    r->n_fed = n;
    r->n_ahead = n_ahead;
    qn_sequence_set_tentative(r->sequence, n_ahead);
}

/* Those that are for idle times wait while there is anybody else. */
static int is_its_time(const qn_scheduler *s, const qn_request *r)
{
    return r->priority != QN_PRIORITY_IDLE || s->active.first->priority == QN_PRIORITY_IDLE;
}

static int may_feed(const qn_scheduler *s, qn_request *r, const qn_client *leader)
{
    if (!is_its_time(s, r)) return 0;
    return !is_parked(r) && !r->n_unseen && (!r->own_thread || r->client == leader);
}

/* Where who asks the same goes on from: a recurrent state that has seen the last id is of no use to who needs
 * that id's logits. 0: nowhere else than from the end. */
static int64_t point_before_last(const qn_scheduler *s, const qn_request *r)
{
    return qn_engine_has_state(s->engine) ? r->n_prompt - 1 : 0;
}

/* How many of the next n ids it computes at once: up to where a prefix of it is to be kept. */
static int64_t chunk(qn_scheduler *s, const qn_request *r, int64_t from, int64_t n)
{
    int64_t end = from + n, last = r->n_ids;
    if (r->shared_end > from && r->shared_end < end) end = r->shared_end;
    if (!r->sampler && r->evaluate && r->logits_from > from && r->logits_from < end &&
        (r->hidden || r->logits_from != last - 1))
        end = r->logits_from;
    if (!qn_engine_keeps_points(s->engine) || r->no_cache) return end - from;
    if (r->n_stable > from && r->n_stable < end) end = r->n_stable;
    int64_t before_last = point_before_last(s, r);
    if (before_last > from && before_last < end) end = before_last;
    int64_t point = (from / SNAPSHOT_IDS + 1) * SNAPSHOT_IDS;
    return (point < end ? point : end) - from;
}

/* Where it has come to is worth keeping: always, where that costs nothing. */
static int is_point(qn_scheduler *s, const qn_request *r, int64_t length)
{
    if (r->n_generated) return 0;
    return !qn_engine_keeps_points(s->engine) || length == r->shared_end || length == r->n_stable ||
           length == r->n_prompt || length == point_before_last(s, r) || length % SNAPSHOT_IDS == 0;
}

static int64_t prefill_rows(const qn_scheduler *s, int64_t n_decode)
{
    int64_t most = qn_engine_get_info(s->engine)->max_rows - n_decode, n = most;
    if (n_decode && s->prefill_ns_a_row > 0)
        n = (int64_t)(PREFILL_BUDGET_NS / s->prefill_ns_a_row) / PREFILL_ROWS_MIN * PREFILL_ROWS_MIN;
    else if (n_decode)
        n = 2 * PREFILL_ROWS_MIN;
    if (n < PREFILL_ROWS_MIN) n = PREFILL_ROWS_MIN;
    return n < most ? n : most;
}

/* The first that was not looked at in this round. The list changes while it is walked: whoever is looked at
 * may fail, or preempt others. */
static qn_request *next_unseen(const qn_scheduler *s, uint64_t round)
{
    qn_request *r = s->active.first;
    while (r && r->seen == round) r = r->next;
    return r;
}

/* Whose prompt goes on: every other step the oldest one's, else the one of which least is left, so that short
 * prompts pass long ones and these come to an end as well. */
static qn_request *next_prompt(const qn_scheduler *s, uint64_t round)
{
    qn_request *best = next_unseen(s, round);
    if (!best || s->n_steps % 2 == 0) return best;
    int64_t least = best->n_ids - qn_sequence_length(best->sequence);
    for (qn_request *r = best->next; r && r->priority == best->priority; r = r->next) {
        int64_t left = r->n_ids - qn_sequence_length(r->sequence);
        if (r->seen == round || left >= least) continue;
        best = r;
        least = left;
    }
    return best;
}

/* One id is to be fed, and a token comes of it. */
static int is_decoding(const qn_request *r)
{
    return r->sampler && r->n_ids - qn_sequence_length(r->sequence) == 1;
}

/* Returns how many of the rows are of prompts. */
static int64_t compose(qn_scheduler *s, const qn_client *leader)
{
    int64_t n_prompt_rows = 0, n_rows = s->active.n;
    s->n_feeds = 0;
    for (qn_request *r; (r = next_unseen(s, 2 * s->n_steps));) {
        int64_t from = qn_sequence_length(r->sequence);
        r->seen = 2 * s->n_steps;
        r->is_fed = 0;
        if (!is_decoding(r) || !may_feed(s, r, leader)) continue;
        int64_t n_ahead = qn_request_look_ahead(r, s->engine, &s->costs, n_rows);
        if (!n_ahead && !secure(s, r, 1)) continue;
        feed(s, r, from, 1 + n_ahead, n_ahead);
        n_rows += n_ahead;
    }
    int64_t room = prefill_rows(s, s->n_feeds + n_rows - s->active.n);
    for (qn_request *r; room > 0 && (r = next_prompt(s, 2 * s->n_steps + 1));) {
        int64_t from = qn_sequence_length(r->sequence), rest = r->n_ids - from;
        r->seen = 2 * s->n_steps + 1;
        if (is_decoding(r) || !may_feed(s, r, leader)) continue;
        int64_t n = chunk(s, r, from, rest < room ? rest : room);
        if (!secure(s, r, n)) continue;
        feed(s, r, from, n, 0);
        room -= n;
        n_prompt_rows += n;
    }
    return n_prompt_rows;
}

/* ---- what comes of it ---------------------------------------------------------------------------------- */

static void draw(qn_request *r, int64_t n_vocab, float *logits)
{
    int64_t position = r->n_ids + r->n_drawn;
    qn_drawn *d = qn_ring_place(&r->ring, r->n_drawn);
    qn_logprobs l;
    qn_status status = qn_sampler_draw(r->sampler, logits, position, &d->id);
    if (status == QN_OK && r->logprobs && (status = qn_logprobs_read(logits, n_vocab, &l)) == QN_OK) {
        d->logprob = (float)qn_logprobs_of(&l, d->id);
        d->n_top = qn_logprobs_top(&l, r->n_top, d->top);
    }
    if (status == QN_OK) status = qn_sampler_accept_drawn(r->sampler, d->id);
    if (status == QN_OK) r->n_drawn++;
    if (status == QN_OK || r->n_drawn) return; /* what failed behind a guess fails again when it is certain */
    r->step_status = qn_fail_prefix(status, "position %lld", (long long)position);
    r->message = qn_strdup(qn_last_error());
}

/* A request whose logits are of no use fails alone. */
static qn_status take_logits(void *user, int64_t i_feed, int64_t first, int64_t n, float *logits)
{
    qn_scheduler *s = user;
    qn_request *r = s->fed[i_feed];
    if (r->sampler) {
        const int64_t n_vocab = qn_engine_config(s->engine)->vocab_size;
        for (int64_t i = 0; i < n; i++)
            if (qn_request_wants_row(r, first + i)) draw(r, n_vocab, logits + i * n_vocab);
        return QN_OK;
    }
    if (r->step_status != QN_OK) return QN_OK;
    int64_t position = s->feeds[i_feed].ids - r->ids + first;
    qn_status status = r->evaluate(r->evaluate_user, position, n, logits);
    if (status != QN_OK) {
        r->step_status = status;
        r->message = qn_strdup(qn_last_error());
    }
    return QN_OK;
}

static qn_status append(qn_scheduler *s, qn_request *r, int32_t id)
{
    if (r->n_ids - r->ids_base == r->ids_capacity) {
        if (r->rotate && r->n_ids > qn_engine_get_info(s->engine)->context_size) {
            r->ids_base = r->n_ids; /* one that goes on for ever keeps no more than this */
        } else {
            int32_t *ids = qn_realloc(r->ids, 2 * (size_t)r->ids_capacity * sizeof *ids);
            if (!ids) return QN_E_NOMEM;
            r->ids = ids;
            r->ids_capacity *= 2;
        }
    }
    *id_at(r, r->n_ids) = id;
    r->n_ids++;
    if (r->draft) qn_draft_add(r->draft, id);
    return QN_OK;
}

/* A token was drawn: it is given out, and fed next unless it was a guess that came true, or ends the request.
 * Returns 0 then. */
static int give(qn_scheduler *s, qn_request *r)
{
    const int32_t id = qn_ring_place(&r->ring, 0)->id;
    if (qn_request_stops_at(r, id)) {
        end(s, r, QN_END_STOP);
        return 0;
    }
    qn_status status = append(s, r, id);
    if (status != QN_OK) {
        fail(s, r, status);
        return 0;
    }
    if (!r->n_generated++) atomic_store_explicit(&r->first_ns, qn_clock_ns(), memory_order_relaxed);
    s->now.n_generated_tokens++;
    qn_events_token(s, r);
    qn_ring_publish(&r->ring, 1);
    touch(s, r->client);
    if ((!r->max_tokens || r->n_generated < r->max_tokens) && r->n_ids < r->room) return 1;
    end(s, r, QN_END_LENGTH);
    return 0;
}

/* What the step has done for one request. */
static void settle(qn_scheduler *s, qn_request *r)
{
    r->is_fed = 0;
    if (r->step_status != QN_OK) {
        qn_status status = r->step_status;
        int is_bad = r->sampler && status == QN_E_INTERNAL; /* logits that are no numbers */
        if (is_bad && r->n_attached && begin_anew(s, r)) return;
        if (is_bad) forget(s, r);
        fail(s, r, status);
        return;
    }
    int64_t n_accepted = r->n_ahead ? r->n_drawn - 1 : 0;
    s->now.n_drafted += r->n_ahead;
    s->now.n_accepted += n_accepted > 0 ? n_accepted : 0;
    qn_request_take_back(r);
    int64_t length = qn_sequence_length(r->sequence);
    qn_admission_count(s, r, r->n_fed);
    if (is_point(s, r, length)) remember(s, r);
    if (length >= r->shared_end) r->shared_end = 0;
    if (!r->sampler && length == r->n_ids) end(s, r, QN_END_STOP);
    for (int64_t n = r->n_drawn; n > 0 && give(s, r); n--)
        ;
}

/* A step with guesses failed: the request keeps what was drawn, or feeds the certain id again. */
static void drop_guess(qn_feed *feed, qn_request *r)
{
    if (r->n_drawn) {
        feed->n_ids = r->n_drawn;
    } else {
        if (qn_sequence_length(r->sequence) >= r->n_ids) qn_sequence_truncate(r->sequence, r->n_ids - 1);
        feed->n_ids = 1;
        feed->logits = QN_LOGITS_LAST;
        r->n_ahead = 0;
        r->n_fed = 1;
    }
}

/* The step as a whole failed: who is to blame shows when each is fed alone. One whose own step fails begins
 * anew, once. */
static void settle_failed(qn_scheduler *s)
{
    int64_t n = s->n_feeds;
    for (int64_t i = 0; i < n; i++) {
        qn_request *r = s->fed[i];
        if (r->n_ahead) drop_guess(&s->feeds[i], r);
        int64_t done = qn_sequence_length(r->sequence) - (s->feeds[i].ids - r->ids + r->ids_base);
        qn_status status = QN_OK;
        qn_feed rest = s->feeds[i];
        rest.ids += done;
        rest.n_ids -= done;
        s->feeds[0] = rest;
        s->fed[0] = r;
        if (rest.n_ids > 0) status = qn_engine_step(s->engine, 1, &rest, take_logits, NULL, s);
        if (status == QN_OK && rest.n_ids <= 0 && r->sampler && !r->n_drawn && rest.logits == QN_LOGITS_LAST)
            status = QN_E_DEVICE; /* computed, but its logits were lost */
        if (status != QN_OK) {
            r->is_fed = 0;
            if (!begin_anew(s, r)) fail(s, r, status);
            continue;
        }
        settle(s, r);
    }
}

/* One picture, before its tokens can be fed. Returns 0 when there is none to be seen. */
static int see(qn_scheduler *s)
{
    for (qn_request *r = s->active.first; r; r = r->next) {
        if (!r->n_unseen) continue;
        int64_t start = qn_clock_ns();
        qn_status status = qn_images_see(r->images, s->engine, &r->n_unseen);
        atomic_fetch_add_explicit(&r->client->prefill_ns, qn_clock_ns() - start, memory_order_relaxed);
        if (status != QN_OK) fail(s, r, status);
        return 1;
    }
    return 0;
}

/* ---- the step ------------------------------------------------------------------------------------------ */

/* A step's time belongs to all who took part. */
static void count(qn_scheduler *s, int64_t took_ns, int64_t n_prompt_rows)
{
    for (int64_t i = 0; i < s->n_feeds; i++) {
        qn_client *c = s->fed[i]->client;
        int is_prompt = 0;
        int64_t n = 0;
        if (c->last_step == s->n_steps) continue;
        c->last_step = s->n_steps;
        for (int64_t j = i; j < s->n_feeds; j++) {
            if (s->fed[j]->client != c) continue;
            n += s->fed[j]->n_drawn;
            is_prompt |= !s->fed[j]->n_generated;
        }
        atomic_fetch_add_explicit(is_prompt ? &c->prefill_ns : &c->decode_ns, took_ns, memory_order_relaxed);
        if (!is_prompt) atomic_fetch_add_explicit(&c->n_decoded, n, memory_order_relaxed);
    }
    if (n_prompt_rows >= PREFILL_ROWS_MIN) {
        double now = (double)took_ns / (double)n_prompt_rows;
        s->prefill_ns_a_row += (s->prefill_ns_a_row > 0 ? 0.25 : 1) * (now - s->prefill_ns_a_row);
    }
    if (!n_prompt_rows) {
        int64_t n_rows = 0;
        for (int64_t i = 0; i < s->n_feeds; i++) n_rows += s->fed[i]->n_fed;
        qn_step_costs_note(&s->costs, n_rows, (double)took_ns);
    }
    int bucket = 0;
    while (bucket < QN_STEP_BUCKETS - 1 && took_ns >= (int64_t)250000 << bucket) bucket++;
    s->now.step_buckets[bucket]++;
    s->now.step_ns += took_ns;
    s->now.n_steps++;
}

int qn_batch_step(qn_scheduler *s, qn_client *leader)
{
    int64_t begin = qn_clock_ns();
    s->n_steps++;
    qn_admission_receive(s);
    sweep_list(s, &s->queued, begin);
    sweep_list(s, &s->active, begin);
    admit(s);
    s->now.n_active = s->active.n;
    s->now.n_queued = s->queued.n;
    if (s->ended) return 1; /* who waits for these need not wait for a step */
    if (see(s)) return 1;
    int64_t n_prompt_rows = compose(s, leader);
    if (!s->n_feeds) return s->ended != NULL;
    int64_t start = qn_clock_ns();
    qn_status status = qn_engine_step(s->engine, s->n_feeds, s->feeds, take_logits, NULL, s);
    int64_t stop = qn_clock_ns();
    count(s, stop - start, n_prompt_rows);
    qn_events_step(s, n_prompt_rows, stop - start);
    if (status == QN_OK)
        for (int64_t i = 0; i < s->n_feeds; i++) settle(s, s->fed[i]);
    else
        settle_failed(s);
    s->now.n_active = s->active.n;
    s->now.n_queued = s->queued.n;
    qn_events_evictions(s);
    s->now.scheduling_ns += qn_clock_ns() - begin - (stop - start);
    return 1;
}
