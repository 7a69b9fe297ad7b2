/* One step: who becomes active, and who is fed how many ids. */
#include "base/clock.h"
#include "base/mem.h"
#include "engine/machine/images.h"
#include "engine/machine/prefixes.h"
#include "engine/schedule/scheduler_parts.h"
#include "engine/schedule/speculate.h"

enum {
    /* Of a step, while others decode, or in idle times, prompts may take 40 ms more than a step without them
     * takes, or as long as that; what they take is known from the last steps, and grows with a prompt. */
    PREFILL_AIM_NS = 32000000,
    PREFILL_ROWS_MIN = 8, /* of a step, however slow */
    MIXED_MOST = 16       /* steps with prompts, then one without them, which tells what that takes now */
};

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

/* Room for all ids that it may draw, so that no step has to make any. */
static qn_status make_room(qn_scheduler *s, qn_request *r)
{
    qn_ledger *ledger = qn_engine_ledger(s->engine);
    const int64_t context = qn_engine_get_info(s->engine)->context_size;
    int64_t most = r->rotate ? context + 1 : r->room;
    if (r->max_tokens && r->max_tokens < most - r->n_prompt) most = r->n_prompt + r->max_tokens;
    if (!r->sampler || r->ids_capacity >= most) return QN_OK;
    const size_t more_bytes = (size_t)(most - r->ids_capacity) * sizeof *r->ids;
    QN_TRY(qn_ledger_reserve(ledger, QN_LEDGER_OTHER, more_bytes));
    int32_t *ids = qn_realloc(r->ids, (size_t)most * sizeof *ids);
    if (!ids) {
        qn_ledger_release(ledger, QN_LEDGER_OTHER, more_bytes);
        return QN_E_NOMEM;
    }
    r->ids = ids;
    r->ids_capacity = most;
    r->held_bytes += more_bytes;
    return QN_OK;
}

/* Where a sequence may be computed again from its first token on (LongRoPE), no picture's vectors can be spared. */
static int64_t first_computed(const qn_scheduler *s, const qn_request *r)
{
    return qn_engine_config(s->engine)->rope_short_positions ? 0 : r->n_attached;
}

static qn_status start(qn_scheduler *s, qn_request *r)
{
    QN_TRY(make_room(s, r));
    QN_TRY(qn_sequence_new(s->engine, &r->sequence));
    qn_request_list_remove(&s->queued, r);
    qn_request_list_put(&s->active, r);
    qn_sequence_expect(r->sequence, r->n_ids);
    qn_sequence_set_adapter(r->sequence, r->adapter);
    qn_sequence_set_images(r->sequence, r->images);
    if (r->sampler) qn_sequence_set_any_thread(r->sequence); /* each draws by itself */
    int64_t most = r->n_ids - 1;
    const int64_t wanted = qn_prompt_logprobs_wanted(r->prompt_logprobs);
    if (wanted >= 0) most = wanted;
    if (!r->sampler && r->evaluate && r->logits_from < most) most = r->logits_from;
    r->n_attached = 0;
    if (qn_request_uses_tree(r) && !r->begins_anew) {
        r->n_attached = qn_sequence_attach(r->sequence, r->salt, r->ids, most);
        qn_events_cache(s, r->n_attached ? QN_CACHE_EVENT_HIT : QN_CACHE_EVENT_MISS, r, r->n_attached);
    }
    r->n_unseen = qn_images_unseen(r->images, first_computed(s, r));
    if (!atomic_load_explicit(&r->admitted_ns, memory_order_relaxed)) {
        r->n_cached = r->n_attached; /* it may be read once the time is set */
        atomic_store_explicit(&r->n_computed, r->n_cached, memory_order_relaxed);
        atomic_store_explicit(&r->admitted_ns, qn_clock_ns(), memory_order_release);
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
            qn_batch_preempt(s, v);
            continue;
        }
        qn_status status = start(s, r);
        if (status == QN_E_NOMEM && s->active.n) break; /* others will give memory back */
        if (status != QN_OK) qn_batch_fail(s, r, status);
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
            qn_batch_preempt(s, v);
            continue;
        }
        if (s->active.n == 1 || (status != QN_E_FULL && status != QN_E_NOMEM))
            qn_batch_fail(s, r, status);
        else if (!s->n_feeds && s->active.first == r)
            qn_batch_fail(s, r, status); /* the others have rotated: they do not give way */
        return 0;
    }
}

/* n_ahead of the n ids are guessed, n_certain come out of the form's queue. */
static void feed(qn_scheduler *s, qn_request *r, int64_t from, int64_t n, int64_t n_ahead, int64_t n_certain)
{
    qn_logits_wish wish = QN_LOGITS_NONE;
    if (r->sampler)
        wish = n_ahead || (n_certain && r->logprobs) || qn_prompt_logprobs_wanted(r->prompt_logprobs) >= 0
                   ? QN_LOGITS_ALL
               : from + n >= r->n_ids ? QN_LOGITS_LAST
                                      : QN_LOGITS_NONE;
    else if (r->evaluate && from >= r->logits_from)
        wish = r->hidden ? QN_LOGITS_HIDDEN : QN_LOGITS_ALL;
    else if (r->evaluate && !r->hidden && from + n == r->n_ids && r->logits_from == r->n_ids - 1)
        wish = QN_LOGITS_LAST;
    s->feeds[s->n_feeds] = (qn_feed){r->sequence, qn_request_id_at(r, from), n, wish};
    s->fed[s->n_feeds++] = r;
    r->is_fed = 1;
    r->n_drawn = 0;
    r->n_fed = n;
    r->n_ahead = n_ahead;
    r->n_certain = n_certain;
    r->n_noted = 0;
    qn_sequence_set_tentative(r->sequence, n_ahead);
    const int is_single = r->sampler && n == 1 && !n_ahead && !(r->form && qn_form_is_forced(r->form));
    qn_sequence_set_follows_best(r->sequence, is_single && r->n_generated + 1 != r->max_tokens &&
                                                  qn_sampler_takes_best(r->sampler));
}

/* Those that are for idle times wait while there is anybody else. */
static int is_its_time(const qn_scheduler *s, const qn_request *r)
{
    return !qn_request_is_idle(r) || qn_request_is_idle(s->active.first);
}

static int may_feed(const qn_scheduler *s, qn_request *r, const qn_client *leader)
{
    if (!is_its_time(s, r)) return 0;
    return !is_parked(r) && !r->n_unseen && (!r->own_thread || r->client == leader);
}

/* Within the budget while others decode, and in idle times, so that whoever comes then waits no longer; then
 * all rows together are whole tiles, for a tile that is not full takes as long as one that is. None where
 * much hangs on what a step takes in which so many rows decode, and that is not known. */
static int64_t prefill_rows(const qn_scheduler *s, int64_t n_decode)
{
    const int64_t most = qn_engine_get_info(s->engine)->max_rows - n_decode;
    const int is_bounded = n_decode || (s->active.first && qn_request_is_idle(s->active.first));
    if (!is_bounded) return most;
    double aim = n_decode ? qn_step_costs_get(&s->costs, n_decode) : 0;
    if (2 * aim > PREFILL_AIM_NS && (s->n_mixed >= MIXED_MOST || !qn_step_costs_known(&s->costs, n_decode)))
        return 0;
    if (aim < PREFILL_AIM_NS) aim = PREFILL_AIM_NS;
    const int64_t n = qn_prompt_costs_rows(&s->prompt_costs, aim) - n_decode % QN_PROMPT_TILE,
                  rows = n < PREFILL_ROWS_MIN ? n + QN_PROMPT_TILE : n;
    return rows < most ? rows : most;
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

/* What a form begins with is computed with the end of the prompt, unless a prefix is to be kept there, or logits
 * are wanted that no row of a prompt gives. */
static int64_t certain_of_prompt(qn_scheduler *s, qn_request *r, int64_t room)
{
    if (!r->sampler || r->logprobs || r->prompt_logprobs || qn_engine_keeps_points(s->engine)) return 0;
    const int64_t n = qn_request_put_certain(r, s->engine, 0);
    return n < room ? n : room;
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
        int64_t n_certain = qn_request_put_certain(r, s->engine, n_rows), n_ahead = 0;
        if (!n_certain) n_ahead = qn_request_look_ahead(r, s->engine, &s->costs, n_rows);
        if (!n_ahead && !secure(s, r, 1 + n_certain)) continue;
        feed(s, r, from, 1 + n_certain + n_ahead, n_ahead, n_certain);
        n_rows += n_certain + n_ahead;
    }
    int64_t room = prefill_rows(s, s->n_feeds + n_rows - s->active.n);
    for (qn_request *r; room > 0 && (r = next_prompt(s, 2 * s->n_steps + 1));) {
        int64_t from = qn_sequence_length(r->sequence), rest = r->n_ids - from;
        r->seen = 2 * s->n_steps + 1;
        if (is_decoding(r) || !may_feed(s, r, leader)) continue;
        int64_t n = qn_points_chunk(s, r, from, rest < room ? rest : room);
        n = qn_images_extend(r->images, from + n) - from;
        const int64_t n_certain = n == rest && n < room ? certain_of_prompt(s, r, room - n) : 0;
        if (!secure(s, r, n + n_certain)) continue;
        feed(s, r, from, n + n_certain, 0, n_certain);
        room -= n + n_certain;
        n_prompt_rows += n + n_certain;
    }
    return n_prompt_rows;
}

/* One picture a step, before its tokens can be fed: who decodes waits for no more. Returns how long it took;
 * 0 when there is none to be seen. */
static int64_t see(qn_scheduler *s)
{
    for (qn_request *r = s->active.first; r; r = r->next) {
        if (!r->n_unseen || !is_its_time(s, r)) continue;
        int64_t start = qn_clock_ns();
        qn_status status = qn_images_see(r->images, s->engine, first_computed(s, r), &r->n_unseen);
        int64_t took = qn_clock_ns() - start;
        atomic_fetch_add_explicit(&r->client->prefill_ns, took, memory_order_relaxed);
        if (status != QN_OK) qn_batch_fail(s, r, status);
        return took > 0 ? took : 1;
    }
    return 0;
}

void qn_scheduler_count_step(qn_scheduler *s, int64_t n_rows, int64_t took_ns)
{
    int bucket = 0;
    while (bucket < QN_STEP_BUCKETS - 1 && took_ns >= (int64_t)250000 << bucket) bucket++;
    s->now.step_buckets[bucket]++;
    s->now.step_ns += took_ns;
    s->now.n_steps++;
    s->now.n_step_rows += n_rows;
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
    int64_t n_rows = 0, n_certain = 0;
    for (int64_t i = 0; i < s->n_feeds; i++) {
        n_rows += s->fed[i]->n_fed;
        n_certain += s->fed[i]->n_certain;
    }
    const int64_t n_decode = n_rows - n_prompt_rows, in_last_tile = (n_rows - 1) % QN_PROMPT_TILE + 1;
    s->n_mixed = n_prompt_rows && n_decode ? s->n_mixed + 1 : 0;
    if (!n_prompt_rows && n_certain) {
        /* Rows that need no logits cost less than others. */
    } else if (!n_prompt_rows) {
        qn_step_costs_note(&s->costs, n_decode, (double)took_ns);
    } else if (n_prompt_rows >= PREFILL_ROWS_MIN && 4 * in_last_tile >= 3 * QN_PROMPT_TILE) {
        const double took = (double)took_ns, without = n_decode ? qn_step_costs_get(&s->costs, n_decode) : 0,
                     more = took - without > took / 4 ? took - without : took / 4;
        qn_prompt_costs_note(&s->prompt_costs, n_prompt_rows, more);
    }
    qn_scheduler_count_step(s, s->n_feeds, took_ns);
}

int qn_batch_step(qn_scheduler *s, qn_client *leader)
{
    int64_t begin = qn_clock_ns();
    s->n_steps++;
    qn_admission_receive(s);
    qn_batch_sweep(s, begin);
    admit(s);
    s->now.n_active = s->active.n;
    s->now.n_queued = s->queued.n;
    if (s->ended) return 1; /* who waits for these need not wait for a step */
    const int64_t seeing = see(s);
    int64_t n_prompt_rows = compose(s, leader);
    if (!s->n_feeds) return seeing || s->ended != NULL;
    int64_t start = qn_clock_ns();
    qn_status status = qn_engine_step(s->engine, s->n_feeds, s->feeds, qn_batch_take_logits, NULL, s);
    int64_t stop = qn_clock_ns();
    count(s, stop - start, n_prompt_rows);
    qn_events_step(s, n_prompt_rows, stop - start);
    if (status == QN_OK)
        for (int64_t i = 0; i < s->n_feeds; i++) qn_batch_settle(s, s->fed[i]);
    else
        qn_batch_settle_failed(s);
    s->n_feeds =
        0; /* the engine's other users compute steps too, and qn_batch_prepare_forms is called in them */
    s->now.n_active = s->active.n;
    s->now.n_queued = s->queued.n;
    qn_events_evictions(s);
    s->now.scheduling_ns += qn_clock_ns() - begin - seeing - (stop - start);
    return 1;
}
