/* What a step has done for each request. */
#include <float.h>
#include <math.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/sample/logprobs.h"
#include "engine/schedule/scheduler_parts.h"
#include "engine/schedule/speculate.h"

static qn_status note_logprobs(const qn_scheduler *s, const qn_request *r, const float *logits, int is_drawn,
                               qn_drawn *d)
{
    qn_logprobs l;
    if (!r->logprobs) return QN_OK;
    if (r->post_sampling && is_drawn) {
        qn_sampler_explain(r->sampler, d->id, r->n_top, &d->logprob, d->top, &d->n_top);
        return QN_OK;
    }
    if (r->post_sampling) { /* nothing else could come */
        d->logprob = 0;
        d->n_top = r->n_top > 0;
        if (d->n_top) d->top[0] = (qn_top_logprob){.id = d->id};
        return QN_OK;
    }
    QN_TRY(qn_logprobs_read(qn_engine_logits_kernels(s->engine), logits,
                            qn_engine_config(s->engine)->vocab_size, &l));
    d->logprob = (float)qn_logprobs_of(&l, d->id);
    d->n_top = qn_logprobs_top(&l, r->n_top, d->top);
    return QN_OK;
}

/* The one that ends the reasoning, where that is due; else under the form's mask, if there is a form. */
static qn_status draw_id(qn_request *r, const float *logits, int64_t position, int32_t *id)
{
    *id = qn_reasoning_forced(r->reasoning);
    if (*id >= 0 && (!r->form || qn_form_allows(r->form, *id))) return QN_OK;
    if (*id >= 0) qn_reasoning_give_up(r->reasoning);
    if (r->form) QN_TRY(qn_form_set_mask(r->form));
    return qn_sampler_draw(r->sampler, logits, position, id);
}

/* Goes on with a token that was drawn, or that ends the reasoning. */
static qn_status accept_drawn(qn_request *r, int32_t id)
{
    const int is_forced = qn_reasoning_forced(r->reasoning) >= 0;
    QN_TRY(is_forced ? qn_sampler_accept_forced(r->sampler, id) : qn_sampler_accept_drawn(r->sampler, id));
    QN_TRY(qn_reasoning_accept(r->reasoning, id));
    return r->form && !qn_request_stops_at(r, id) ? qn_form_accept(r->form, id) : QN_OK;
}

/* The row gives the next token: the one that the form forces, or one that is drawn. Those of the form's queue that
 * were fed become tokens before it. */
static void draw(const qn_scheduler *s, qn_request *r, const float *logits)
{
    const int64_t n_certain = r->n_certain, place = r->n_drawn + n_certain, position = r->n_ids + place;
    int64_t n_forced = 0;
    const int32_t *forced = r->form ? qn_form_get_forced(r->form, &n_forced) : NULL;
    const int is_forced = n_forced > n_certain;
    int is_accepted = 0;
    qn_drawn *d = qn_ring_place(&r->ring, place);
    qn_status status = QN_OK;
    if (is_forced)
        d->id = forced[n_certain];
    else
        status = draw_id(r, logits, position, &d->id);
    if (status == QN_OK) status = note_logprobs(s, r, logits, !is_forced, d);
    if (status == QN_OK && r->form) {
        for (int64_t i = 0; i < n_certain; i++) qn_ring_place(&r->ring, i)->id = forced[i];
        for (int64_t i = 0; i < n_certain + is_forced && status == QN_OK; i++)
            status = qn_reasoning_accept(r->reasoning, forced[i]);
        qn_form_take(r->form, n_certain + is_forced);
    }
    if (status == QN_OK && !is_forced) {
        is_accepted = 1;
        status = accept_drawn(r, d->id);
    }
    if (status == QN_OK) {
        r->n_drawn += n_certain + 1;
        return;
    }
    if (r->n_drawn && !is_accepted) return; /* what failed behind a guess fails again when it is certain */
    r->is_bad = status == QN_E_INTERNAL && !is_accepted;
    r->step_status = qn_fail_prefix(status, "position %lld", (long long)position);
    r->message = qn_strdup(qn_last_error());
}

/* Row i, from the one of the request's last id on, of a step that feeds ids of the form's queue. */
static void take_certain_row(const qn_scheduler *s, qn_request *r, int64_t i, const float *logits)
{
    if (r->step_status != QN_OK || r->n_drawn) return;
    if (i == r->n_certain) {
        draw(s, r, logits);
        return;
    }
    int64_t n;
    qn_drawn *d = qn_ring_place(&r->ring, i);
    d->id = qn_form_get_forced(r->form, &n)[i];
    const qn_status status = note_logprobs(s, r, logits, 0, d);
    r->n_noted++;
    if (status == QN_OK) return;
    r->is_bad = status == QN_E_INTERNAL;
    r->step_status = qn_fail_prefix(status, "position %lld", (long long)(r->n_ids + i));
    r->message = qn_strdup(qn_last_error());
}

/* The row of a position of the prompt that is not its last: the log-probabilities of what follows there are taken
 * unless they were before, when the request had to begin again. */
static void note_prompt_row(const qn_scheduler *s, qn_request *r, int64_t position, const float *logits)
{
    qn_logprobs l;
    if (r->step_status != QN_OK || position != qn_prompt_logprobs_wanted(r->prompt_logprobs)) return;
    const qn_status status = qn_logprobs_read(qn_engine_logits_kernels(s->engine), logits,
                                              qn_engine_config(s->engine)->vocab_size, &l);
    if (status == QN_OK) {
        qn_prompt_logprobs_note(r->prompt_logprobs, &l, *qn_request_id_at(r, position + 1));
        return;
    }
    r->is_bad = 1;
    r->step_status = qn_fail_prefix(status, "position %lld", (long long)position);
    r->message = qn_strdup(qn_last_error());
}

/* Of n rows of logits, where -inf is a token that cannot come, or of hidden states. */
static int are_numbers(const qn_scheduler *s, const qn_request *r, int64_t n, const float *values)
{
    const qn_model_config *c = qn_engine_config(s->engine);
    const float least = r->hidden ? -FLT_MAX : -INFINITY;
    int is_bad = 0;
    n *= r->hidden ? c->hidden_size : c->vocab_size;
    for (int64_t i = 0; i < n; i++) is_bad |= !(values[i] >= least && values[i] <= FLT_MAX);
    return !is_bad;
}

/* Which row the feed's first is, counted from that of the request's last id. */
static int64_t first_row(const qn_scheduler *s, int64_t i_feed)
{
    const qn_request *r = s->fed[i_feed];
    return s->feeds[i_feed].ids - r->ids + r->ids_base - (r->n_ids - 1);
}

/* A request whose logits are of no use fails alone. */
qn_status qn_batch_take_logits(void *user, int64_t i_feed, int64_t first, int64_t n, float *logits)
{
    qn_scheduler *s = user;
    qn_request *r = s->fed[i_feed];
    if (r->sampler) {
        const int64_t n_vocab = qn_engine_config(s->engine)->vocab_size, row = first_row(s, i_feed) + first;
        for (int64_t i = 0; i < n; i++) {
            if (row + i < 0)
                note_prompt_row(s, r, r->n_ids - 1 + row + i, logits + i * n_vocab);
            else if (r->n_certain)
                take_certain_row(s, r, row + i, logits + i * n_vocab);
            else if (qn_request_wants_row(r, first + i))
                draw(s, r, logits + i * n_vocab);
        }
        return QN_OK;
    }
    if (r->step_status != QN_OK) return QN_OK;
    r->is_bad |= !are_numbers(s, r, n, logits);
    if (r->is_bad && r->n_attached) { /* nobody sees them before they came without what it was given */
        r->step_status = qn_fail(QN_E_INTERNAL, "the model gave logits that are not finite numbers");
        r->message = qn_strdup(qn_last_error());
        return QN_OK;
    }
    int64_t position = s->feeds[i_feed].ids - r->ids + first;
    qn_status status = r->evaluate(r->evaluate_user, position, n, logits);
    if (status != QN_OK) {
        r->step_status = status;
        r->message = qn_strdup(qn_last_error());
    }
    r->logits_from = position + n;
    return QN_OK;
}

/* Forms whose next token may be drawn in this step. */
static void prepare_form(void *user, int64_t i)
{
    const qn_scheduler *s = user;
    if (s->fed[i]->form) qn_form_prepare(s->fed[i]->form);
}

void qn_batch_prepare_forms(void *user)
{
    qn_scheduler *s = user;
    int64_t n_forms = 0, last = 0;
    for (int64_t i = 0; i < s->n_feeds; i++) {
        if (!s->fed[i]->form) continue;
        n_forms++;
        last = i;
    }
    if (n_forms == 1)
        prepare_form(s, last);
    else if (n_forms > 1)
        qn_engine_device(s->engine)->ops->for_each(qn_engine_device(s->engine), s->n_feeds, prepare_form, s);
}

static void append(qn_request *r, int32_t id)
{
    /* Only one that rotates comes to the end of its room: it keeps no more than its last ids. */
    if (r->n_ids - r->ids_base == r->ids_capacity) r->ids_base = r->n_ids;
    *qn_request_id_at(r, r->n_ids) = id;
    r->n_ids++;
    if (r->draft) qn_draft_add(r->draft, id);
}

/* A token is there: it is given out, and fed next unless it was fed already, or ends the request. Returns 0 then.
 * is_last: of those that are there. */
static int give(qn_scheduler *s, qn_request *r, int is_last)
{
    const int32_t id = qn_ring_place(&r->ring, 0)->id;
    if (qn_request_stops_at(r, id)) {
        r->stop_id = id + 1;
        qn_batch_end(s, r, QN_END_STOP);
        return 0;
    }
    append(r, id);
    if (!r->n_generated++) atomic_store_explicit(&r->first_ns, qn_clock_ns(), memory_order_relaxed);
    s->now.n_generated_tokens++;
    qn_events_token(s, r);
    qn_ring_publish(&r->ring, 1);
    qn_batch_touch(s, r->client);
    if (is_last && r->form && qn_form_is_over(r->form)) {
        qn_batch_end(s, r, QN_END_STOP);
        return 0;
    }
    if ((!r->max_tokens || r->n_generated < r->max_tokens) && r->n_ids < r->room) return 1;
    qn_batch_end(s, r, QN_END_LENGTH);
    return 0;
}

/* What is left of a form needs no pass where no log-probabilities are asked for and nothing is drawn behind it. */
static void give_rest(qn_scheduler *s, qn_request *r)
{
    int64_t n;
    if (!r->form) return;
    const qn_status status = qn_form_refill(r->form);
    if (status != QN_OK) {
        qn_batch_fail(s, r, status);
        return;
    }
    if (r->logprobs || !qn_form_is_ending(r->form)) return;
    for (const int32_t *ids; qn_ring_room(&r->ring) > 0 && (ids = qn_form_get_forced(r->form, &n), n > 0);) {
        qn_ring_place(&r->ring, 0)->id = ids[0];
        qn_form_take(r->form, 1);
        if (!give(s, r, n == 1)) return;
    }
}

/* Nothing checks the panels of a packed file at a start: they may be what is damaged. */
static void name_packed(const qn_scheduler *s, qn_request *r)
{
    const char *packed = qn_engine_get_info(s->engine)->packed;
    qn_buf b = {0};
    if (!*packed || !r->message) return;
    qn_buf_printf(&b,
                  "%s; the weights come from the packed file %s, which `quern pack` compares with the model",
                  r->message, packed);
    char *message = qn_buf_take(&b, NULL);
    if (!message) return;
    qn_free(r->message);
    r->message = message;
}

/* A part of the prompt is computed. */
static void tell_prompt(qn_scheduler *s, qn_request *r, int64_t length)
{
    const int64_t n = length < r->n_prompt ? length : r->n_prompt;
    if (n <= atomic_load_explicit(&r->n_computed, memory_order_relaxed)) return; /* it began anew */
    atomic_store_explicit(&r->n_computed, n, memory_order_relaxed);
    if (r->tells_prompt) qn_batch_touch(s, r->client);
}

void qn_batch_settle(qn_scheduler *s, qn_request *r)
{
    r->is_fed = 0;
    if (r->step_status != QN_OK) {
        qn_status status = r->step_status;
        if (r->is_bad && qn_batch_blame(s, r) && qn_batch_begin_anew(s, r)) return;
        if (r->is_bad || status == QN_E_INTERNAL) qn_batch_forget(s, r);
        if (r->is_bad) name_packed(s, r);
        qn_batch_fail(s, r, status);
        return;
    }
    if (r->is_bad) qn_batch_forget(s, r);
    int64_t n_accepted = r->n_ahead ? r->n_drawn - 1 : 0;
    s->now.n_drafted += r->n_ahead;
    s->now.n_drafts += r->n_ahead > 0;
    s->now.n_accepted += n_accepted > 0 ? n_accepted : 0;
    qn_request_take_back(r);
    int64_t length = qn_sequence_length(r->sequence);
    qn_admission_count(s, r, r->n_fed);
    if (qn_points_has(s, r, length)) qn_batch_remember(s, r);
    if (length >= r->shared_end) r->shared_end = 0;
    if (!r->n_generated) tell_prompt(s, r, length);
    if (!r->sampler && length == r->n_ids) qn_batch_end(s, r, QN_END_STOP);
    for (int64_t n = r->n_drawn; n > 0; n--)
        if (!give(s, r, n == 1)) return;
    if (r->n_drawn) give_rest(s, r);
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

/* Something was computed, but its logits never came: the step failed behind it. */
static int has_lost_logits(const qn_request *r, const qn_feed *rest)
{
    if (r->prompt_logprobs && rest->logits == QN_LOGITS_ALL && !r->n_certain && !r->n_ahead) {
        const int64_t wanted = qn_prompt_logprobs_wanted(r->prompt_logprobs),
                      length = qn_sequence_length(r->sequence);
        return (wanted >= 0 && wanted < length) || (rest->n_ids <= 0 && !r->n_drawn && length == r->n_ids);
    }
    if (r->sampler && r->n_certain && rest->logits == QN_LOGITS_ALL)
        return !r->n_drawn && rest->ids - r->ids + r->ids_base - (r->n_ids - 1) > r->n_noted;
    if (r->sampler) return rest->n_ids <= 0 && !r->n_drawn && rest->logits == QN_LOGITS_LAST;
    return r->evaluate && r->step_status == QN_OK && r->logits_from < qn_sequence_length(r->sequence);
}

void qn_batch_settle_failed(qn_scheduler *s)
{
    int64_t n = s->n_feeds;
    s->n_feeds = 1; /* each runs alone, as number 0 */
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
        if (rest.n_ids > 0 && !has_lost_logits(r, &rest))
            status = qn_engine_step(s->engine, 1, &rest, qn_batch_take_logits, NULL, s);
        if (status == QN_OK && has_lost_logits(r, &rest)) status = QN_E_DEVICE;
        if (status != QN_OK) {
            r->is_fed = 0;
            if (!qn_batch_begin_anew(s, r)) qn_batch_fail(s, r, status);
            continue;
        }
        qn_batch_settle(s, r);
    }
}
