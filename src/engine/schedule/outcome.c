/* What a step has done for each request. */
#include <float.h>
#include <math.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/sample/logprobs.h"
#include "engine/schedule/scheduler_parts.h"
#include "engine/schedule/speculate.h"

static void draw(const qn_scheduler *s, qn_request *r, int64_t n_vocab, float *logits)
{
    int64_t position = r->n_ids + r->n_drawn;
    qn_drawn *d = qn_ring_place(&r->ring, r->n_drawn);
    qn_logprobs l;
    qn_status status = qn_sampler_draw(r->sampler, logits, position, &d->id);
    if (status == QN_OK && r->logprobs)
        status = qn_logprobs_read(qn_engine_logits_kernels(s->engine), logits, n_vocab, &l);
    if (status == QN_OK && r->logprobs) {
        d->logprob = (float)qn_logprobs_of(&l, d->id);
        d->n_top = qn_logprobs_top(&l, r->n_top, d->top);
    }
    if (status == QN_OK) status = qn_sampler_accept_drawn(r->sampler, d->id);
    if (status == QN_OK) r->n_drawn++;
    if (status == QN_OK || r->n_drawn) return; /* what failed behind a guess fails again when it is certain */
    r->is_bad = status == QN_E_INTERNAL;
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

/* A request whose logits are of no use fails alone. */
qn_status qn_batch_take_logits(void *user, int64_t i_feed, int64_t first, int64_t n, float *logits)
{
    qn_scheduler *s = user;
    qn_request *r = s->fed[i_feed];
    if (r->sampler) {
        const int64_t n_vocab = qn_engine_config(s->engine)->vocab_size;
        for (int64_t i = 0; i < n; i++)
            if (qn_request_wants_row(r, first + i)) draw(s, r, n_vocab, logits + i * n_vocab);
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

static void append(qn_request *r, int32_t id)
{
    /* Only one that rotates comes to the end of its room: it keeps no more than its last ids. */
    if (r->n_ids - r->ids_base == r->ids_capacity) r->ids_base = r->n_ids;
    *qn_request_id_at(r, r->n_ids) = id;
    r->n_ids++;
    if (r->draft) qn_draft_add(r->draft, id);
}

/* A token was drawn: it is given out, and fed next unless it was a guess that came true, or ends the request.
 * Returns 0 then. */
static int give(qn_scheduler *s, qn_request *r)
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
    if ((!r->max_tokens || r->n_generated < r->max_tokens) && r->n_ids < r->room) return 1;
    qn_batch_end(s, r, QN_END_LENGTH);
    return 0;
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
    s->now.n_accepted += n_accepted > 0 ? n_accepted : 0;
    qn_request_take_back(r);
    int64_t length = qn_sequence_length(r->sequence);
    qn_admission_count(s, r, r->n_fed);
    if (qn_points_has(s, r, length)) qn_batch_remember(s, r);
    if (length >= r->shared_end) r->shared_end = 0;
    if (!r->sampler && length == r->n_ids) qn_batch_end(s, r, QN_END_STOP);
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

/* Something was computed, but its logits never came: the step failed behind it. */
static int has_lost_logits(const qn_request *r, const qn_feed *rest)
{
    if (r->sampler) return rest->n_ids <= 0 && !r->n_drawn && rest->logits == QN_LOGITS_LAST;
    return r->evaluate && r->step_status == QN_OK && r->logits_from < qn_sequence_length(r->sequence);
}

void qn_batch_settle_failed(qn_scheduler *s)
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
