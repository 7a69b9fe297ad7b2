#include "engine/clients/generate.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "constrain/validate/validate.h"
#include "engine/machine/images.h"
#include "engine/machine/prefixes.h"
#include "engine/schedule/request.h"
#include "engine/schedule/speculate.h"
#include "text/tokenizer/stop.h"

/* What the reader of a row has; the request is beside it. */
typedef struct {
    qn_token_stream *decoder;
    qn_stop stop;
    int64_t n_given;   /* tokens */
    int keeps_answer;  /* it may be JSON that has a schema */
    qn_buf answer;     /* the whole text, then */
    int is_over;       /* its end event was given */
    qn_end end;        /* why it ends though its request has not; QN_END_NONE: it does not */
    qn_status failure; /* of QN_END_ERROR */
} row;

struct qn_run {
    qn_client client; /* first: it is what the scheduler gives back */
    qn_run_model model;
    const qn_cancel *cancel;
    int64_t n_rows, n_over, i_next; /* i_next: the row that is looked at first */
    row *rows;
    qn_request *requests; /* [n_rows] */
    int is_submitted;
    qn_ring *held; /* whose oldest token the caller looks at */
    qn_stop_set *stop_set;
    qn_words *words; /* of the sampling options; NULL: they have none */
    int32_t *stop_ids;
    int64_t n_stop_ids;
    int64_t deadline_ns; /* 0: none */
    uint64_t seed;
    char *salt, *tenant;
    qn_buf delta, text; /* of one event */
    size_t held_bytes;  /* of all this, in the ledger */
    int64_t n_generated;
};

/* ---- opening ---- */

static qn_status check_prompt(const qn_run *r, int64_t i_row, const qn_ids *prompt)
{
    int64_t context = qn_engine_get_info(r->model.engine)->context_size;
    int64_t vocabulary = qn_engine_config(r->model.engine)->vocab_size;
    if (prompt->n_ids < 1) return qn_fail(QN_E_ARG, "the prompt of row %lld has no tokens", (long long)i_row);
    if (prompt->n_ids > context)
        return qn_fail(QN_E_ARG, "the prompt has %lld tokens, the context holds %lld",
                       (long long)prompt->n_ids, (long long)context);
    for (int64_t i = 0; i < prompt->n_ids; i++)
        if (prompt->ids[i] < 0 || prompt->ids[i] >= vocabulary)
            return qn_fail(QN_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld",
                           (int)prompt->ids[i], (long long)i, (long long)vocabulary);
    return QN_OK;
}

/* Tokens that a row may have, prompt included. */
static int64_t room_of(const qn_run *r, const qn_generate_options *o)
{
    return o->rotate ? INT32_MAX : qn_engine_get_info(r->model.engine)->context_size;
}

/* The images' places in the only row, whose prompt they make longer. */
static qn_status place_images(qn_run *r, const qn_run_prompt *prompt, qn_images **out)
{
    const qn_ids *ids = prompt->rows;
    if (prompt->n_rows != 1)
        return qn_fail(QN_E_ARG, "%zu image(s) were given with %lld rows: only a single row takes images",
                       prompt->n_images, (long long)prompt->n_rows);
    return qn_images_new(qn_engine_config(r->model.engine), prompt->n_images, prompt->images, ids->ids,
                         ids->n_ids, qn_engine_get_info(r->model.engine)->context_size, out);
}

/* The model's stop ids unless they are to be ignored, and the user's. */
static qn_status collect_stop_ids(qn_run *r, const qn_generate_options *o)
{
    int64_t n_model = o->ignore_eos ? 0 : r->model.n_stop_ids;
    int64_t vocabulary = qn_engine_config(r->model.engine)->vocab_size;
    for (size_t i = 0; i < o->n_stop_ids; i++)
        if (o->stop_ids[i] < 0 || o->stop_ids[i] >= vocabulary)
            return qn_fail(QN_E_ARG, "stop_ids: token id %d is outside the vocabulary of %lld",
                           (int)o->stop_ids[i], (long long)vocabulary);
    r->stop_ids = qn_alloc_array((size_t)n_model + o->n_stop_ids, sizeof *r->stop_ids);
    if (!r->stop_ids) return QN_E_NOMEM;
    for (int64_t i = 0; i < n_model; i++) r->stop_ids[r->n_stop_ids++] = r->model.stop_ids[i];
    for (size_t i = 0; i < o->n_stop_ids; i++) r->stop_ids[r->n_stop_ids++] = o->stop_ids[i];
    return QN_OK;
}

/* Windows of samplers hold no more than the longest row can become. */
static qn_status make_words(qn_run *r, const qn_run_prompt *prompt, const qn_generate_options *o)
{
    int64_t longest = 0, most = qn_engine_get_info(r->model.engine)->context_size;
    if (!qn_words_are_needed(o)) return QN_OK;
    for (int64_t i = 0; i < prompt->n_rows; i++)
        if (prompt->rows[i].n_ids > longest) longest = prompt->rows[i].n_ids;
    const int is_bounded = o->max_tokens && !o->rotate && !prompt->n_images && longest <= most;
    if (is_bounded && o->max_tokens < most - longest) most = longest + o->max_tokens;
    return qn_words_new(r->model.tokenizer, o, qn_engine_config(r->model.engine)->vocab_size, most,
                        &r->words);
}

static int is_schema(const qn_constraint *c)
{
    return c && qn_constraint_get_source(c)->kind == QN_CONSTRAIN_JSON_SCHEMA;
}

/* What the check of a complete answer needs is made before the first step: opening a request may wait, and who polls
 * for its tokens may not. */
static qn_status make_validators(qn_constraint *c, qn_constraint *alternative)
{
    const qn_schema *opened;
    QN_TRY(qn_constraint_get_validator(c, &opened));
    return alternative ? qn_constraint_get_validator(alternative, &opened) : QN_OK;
}

/* Of the form, if the answers have one. */
static qn_status make_form(qn_run *r, qn_request *q, int64_t i_row, const qn_generate_options *o)
{
    qn_constraint *own = o->row_constraints ? o->row_constraints[i_row] : NULL,
                  *c = own ? own : o->constraint;
    const qn_form_ends ends = {.n_vocab = qn_engine_config(r->model.engine)->vocab_size,
                               .stop_ids = r->stop_ids,
                               .n_stop_ids = r->n_stop_ids,
                               .end_ids = r->model.stop_ids,
                               .n_end_ids = o->ignore_eos ? r->model.n_stop_ids : 0};
    if (!c) return QN_OK;
    r->rows[i_row].keeps_answer = is_schema(c) || is_schema(o->alternative);
    QN_TRY(make_validators(c, o->alternative));
    return qn_form_new(c, o->alternative, &ends, q->sampler, &q->form);
}

/* The last row of the prompt must be computed: its token is drawn. */
static qn_status make_prompt_logprobs(const row *w, qn_request *q, const qn_generate_options *o)
{
    if (!o->prompt_logprobs) return QN_OK;
    if (q->images)
        return qn_fail(QN_E_UNSUPPORTED, "prompt_logprobs: a prompt with pictures has no log-probabilities");
    if (w->end != QN_END_NONE)
        return qn_fail(
            QN_E_ARG,
            "prompt_logprobs: nothing can follow the prompt of %lld tokens: it fills the context, or "
            "the answer's form is empty",
            (long long)q->n_prompt);
    return qn_prompt_logprobs_new(q->ids[0], q->n_prompt, o->n_prompt_top_logprobs, &q->prompt_logprobs);
}

/* The shortest first. */
static qn_status set_pins(qn_request *q, const qn_run_prompt *prompt, const qn_generate_options *o)
{
    if (!o->n_pins || prompt->n_images) return QN_OK;
    if (prompt->n_rows != 1)
        return qn_fail(QN_E_ARG, "pins: the prompt has %lld rows, expected one", (long long)prompt->n_rows);
    for (size_t i = 0; i < o->n_pins; i++) {
        qn_prefix_pin pin = o->pins[i];
        int at = q->n_pins++;
        if (!pin.n_tokens) pin.n_tokens = q->n_prompt;
        if (pin.n_tokens > q->n_prompt)
            return qn_fail(QN_E_ARG, "pins: a prefix of %lld tokens, the prompt has %lld",
                           (long long)pin.n_tokens, (long long)q->n_prompt);
        for (; at && q->pins[at - 1].n_tokens > pin.n_tokens; at--) q->pins[at] = q->pins[at - 1];
        q->pins[at] = pin;
    }
    return QN_OK;
}

/* prompt->n_stable counts the row's ids before they were made longer: pictures stand before that place. */
static int64_t stable_of(const qn_run_prompt *prompt, int64_t i_row, const qn_ids *ids)
{
    const int64_t n_behind = prompt->rows[i_row].n_ids - prompt->n_stable;
    return prompt->n_stable && n_behind < ids->n_ids ? ids->n_ids - n_behind : 0;
}

/* What a row works with is made before the first step, so that a step allocates nothing of its own. */
static qn_status make_row(qn_run *r, int64_t i_row, const qn_run_prompt *prompt, const qn_generate_options *o)
{
    row *w = &r->rows[i_row];
    qn_request *q = &r->requests[i_row];
    qn_ids ids = prompt->rows[i_row];
    const char *own = o->row_adapters ? o->row_adapters[i_row] : NULL;
    QN_TRY(check_prompt(r, i_row, &ids));
    if (prompt->n_images) {
        QN_TRY(place_images(r, prompt, &q->images));
        if (qn_engine_has_tree(r->model.engine) && !o->no_prefix_cache) QN_TRY(qn_images_identify(q->images));
        ids = qn_images_prompt(q->images);
        q->n_unseen = (int64_t)prompt->n_images;
    }
    QN_TRY(qn_adapters_hold(qn_engine_adapters(r->model.engine), own ? own : o->adapter, &q->adapter));
    QN_TRY(qn_sampler_new(qn_engine_logits_kernels(r->model.engine), o,
                          qn_engine_config(r->model.engine)->vocab_size, r->words, &q->sampler));
    if (o->min_tokens)
        QN_TRY(qn_sampler_ban_before(q->sampler, r->stop_ids, r->n_stop_ids, ids.n_ids + o->min_tokens));
    QN_TRY(qn_sampler_accept(q->sampler, ids.ids, ids.n_ids));
    QN_TRY(qn_request_init(q, ids.ids, ids.n_ids, QN_TOKENS_AHEAD, o->n_top_logprobs));
    q->client = &r->client;
    q->row = i_row;
    q->n_stable = stable_of(prompt, i_row, &ids);
    QN_TRY(set_pins(q, prompt, o));
    q->salt = r->salt;
    q->tenant = r->tenant;
    q->priority = o->priority;
    q->no_cache = o->no_prefix_cache;
    q->rotate = o->rotate;
    q->cancel = r->cancel;
    q->deadline_ns = r->deadline_ns;
    q->stop_ids = r->stop_ids;
    q->n_stop_ids = r->n_stop_ids;
    q->max_tokens = o->max_tokens;
    q->room = room_of(r, o);
    q->logprobs = o->logprobs;
    q->n_top = o->n_top_logprobs;
    q->post_sampling = o->post_sampling;
    q->tells_prompt = o->notify_prompts;
    QN_TRY(make_form(r, q, i_row, o));
    if (prompt->reasoning && prompt->reasoning->n_ids)
        QN_TRY(qn_reasoning_new(prompt->reasoning, &q->reasoning));
    /* A guess would not know of what is forced behind it. */
    if (o->n_draft && !q->reasoning) QN_TRY(qn_request_speculate(q, o->n_draft, r->model.draft_engine));
    w->stop.set = r->stop_set;
    if (r->model.tokenizer) QN_TRY(qn_token_stream_new(r->model.tokenizer, 0, &w->decoder));
    const int is_over = q->form && qn_form_is_over(q->form);
    if (is_over || ids.n_ids >= q->room) {
        w->end = is_over ? QN_END_STOP : QN_END_LENGTH; /* nothing may come, or nothing fits behind it */
        atomic_init(&q->is_unwanted, 1);
    }
    return make_prompt_logprobs(w, q, o);
}

static qn_status make_rows(qn_run *r, const qn_run_prompt *prompt, const qn_generate_options *o)
{
    r->rows = qn_calloc((size_t)prompt->n_rows, sizeof *r->rows);
    r->requests = qn_calloc((size_t)prompt->n_rows, sizeof *r->requests);
    if (!r->rows || !r->requests) return QN_E_NOMEM;
    r->n_rows = prompt->n_rows;
    for (int64_t i = 0; i < r->n_rows; i++) r->requests[i].adapter = -1;
    if (o->cache_salt && !(r->salt = qn_strdup(o->cache_salt))) return QN_E_NOMEM;
    if (o->tenant && !(r->tenant = qn_strdup(o->tenant))) return QN_E_NOMEM;
    QN_TRY(collect_stop_ids(r, o));
    QN_TRY(qn_stop_set_new(o->stop_strings, o->n_stop_strings, &r->stop_set));
    QN_TRY(make_words(r, prompt, o));
    for (int64_t i = 0; i < r->n_rows; i++) QN_TRY(make_row(r, i, prompt, o));
    return QN_OK;
}

/* Is there anything to compute? */
static int has_open_row(const qn_run *r)
{
    for (int64_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].end == QN_END_NONE) return 1;
    return 0;
}

qn_status qn_run_open(const qn_run_model *model, const qn_run_prompt *prompt,
                      const qn_generate_options *options, const qn_cancel *cancel, qn_run **out)
{
    int64_t before = qn_mem_thread_bytes();
    qn_run *r = qn_calloc(1, sizeof *r);
    if (!r) return QN_E_NOMEM;
    r->model = *model;
    r->cancel = cancel;
    r->client.notify = options->notify;
    r->client.notify_user = options->notify_user;
    r->seed = options->seed;
    int64_t now = qn_clock_ns(), most = (INT64_MAX - now) / 1000000;
    if (options->deadline_ms && options->deadline_ms <= most)
        r->deadline_ns = now + options->deadline_ms * 1000000;
    qn_status status = make_rows(r, prompt, options);
    if (status == QN_OK) {
        size_t held_bytes = (size_t)(qn_mem_thread_bytes() - before);
        status = qn_ledger_reserve(qn_engine_ledger(r->model.engine), QN_LEDGER_OTHER, held_bytes);
        if (status == QN_OK) r->held_bytes = held_bytes;
    }
    if (status == QN_OK && has_open_row(r)) {
        status = qn_scheduler_submit(r->model.scheduler, r->n_rows, r->requests);
        r->is_submitted = status == QN_OK;
    }
    if (status != QN_OK) {
        qn_run_close(r);
        return status;
    }
    *out = r;
    return QN_OK;
}

/* ---- events ---- */

static qn_end why_stop(const qn_run *r)
{
    if (r->cancel && qn_cancel_is_set(r->cancel)) return QN_END_CANCELLED;
    if (r->deadline_ns && qn_clock_ns() >= r->deadline_ns) return QN_END_DEADLINE;
    return QN_END_NONE;
}

static int is_done(const qn_run *r, int64_t i_row)
{
    return atomic_load_explicit(&r->requests[i_row].is_done, memory_order_acquire);
}

/* The row ends here, whatever its request is about to do. */
static void end_row(qn_run *r, int64_t i_row, qn_end why)
{
    r->rows[i_row].end = why;
    atomic_store_explicit(&r->requests[i_row].is_unwanted, 1, memory_order_relaxed);
}

static qn_status feed_stop(qn_run *r, row *w)
{
    if (r->delta.status != QN_OK) return r->delta.status;
    return qn_stop_feed(&w->stop, r->delta.data, r->delta.length, &r->text);
}

/* The text that the token makes certain. */
static qn_status decode_token(qn_run *r, row *w, int32_t id)
{
    if (w->decoder) QN_TRY(qn_token_stream_push(w->decoder, id, &r->delta));
    return feed_stop(r, w);
}

/* The text that was held back until the end. */
static qn_status decode_rest(qn_run *r, row *w)
{
    if (w->stop.hit) return QN_OK;
    if (w->decoder) QN_TRY(qn_token_stream_finish(w->decoder, &r->delta));
    QN_TRY(feed_stop(r, w));
    return qn_stop_flush(&w->stop, &r->text);
}

static void put_text(qn_run *r, row *w, qn_token *out)
{
    if (w->keeps_answer) qn_buf_append(&w->answer, r->text.data, r->text.length);
    out->text = r->text.length ? r->text.data : "";
    out->text_bytes = r->text.length;
}

/* Gives a token that was drawn. */
static void give_token(qn_run *r, int64_t i_row, const qn_drawn *d, qn_token *out)
{
    row *w = &r->rows[i_row];
    r->held = &r->requests[i_row].ring;
    qn_status status = decode_token(r, w, d->id);
    out->id = d->id;
    out->position = r->requests[i_row].n_prompt + w->n_given;
    out->logprob = d->logprob;
    out->top = d->top;
    out->n_top = d->n_top;
    put_text(r, w, out);
    w->n_given++;
    r->n_generated++;
    if (status != QN_OK) {
        w->failure = status;
        end_row(r, i_row, QN_END_ERROR);
    } else if (w->stop.hit) {
        end_row(r, i_row, QN_END_STOP_STRING);
    }
}

/* An answer in JSON is compared with its schema once more, by a validator that shares nothing with what held it to
 * the form. What the validator cannot decide, or not within its steps, passes: this runs where tokens are polled for,
 * and other requests wait. */
static qn_status check_answer(const row *w, const qn_request *q)
{
    qn_constraint *c = qn_form_get_constraint(q->form);
    const qn_schema *schema = NULL;
    qn_schema_report report = {0};
    if (w->answer.status != QN_OK) return w->answer.status;
    if (w->answer.length && c) QN_TRY(qn_constraint_get_validator(c, &schema));
    if (!schema) return QN_OK;
    const size_t begin =
        qn_constraint_find_form(qn_constraint_get_source(c), w->answer.data, w->answer.length);
    qn_status status =
        qn_schema_validate_text(schema, w->answer.data + begin, w->answer.length - begin, &report);
    if (status == QN_OK && !report.is_valid)
        status = qn_fail(QN_E_INTERNAL, "the answer does not satisfy its schema: %s: %s: %s",
                         report.n_failures ? report.failures[0].instance : "",
                         report.n_failures ? report.failures[0].keyword : "",
                         report.n_failures ? report.failures[0].message : "it is not valid");
    else if (status == QN_E_FORMAT)
        status = qn_fail_prefix(QN_E_INTERNAL, "the answer is no JSON, which its schema asks for");
    else if (status == QN_E_UNSUPPORTED)
        status = QN_OK;
    qn_schema_report_clear(&report);
    return status;
}

/* why: QN_END_NONE where the request has ended by itself. */
static qn_status give_end(qn_run *r, int64_t i_row, qn_end why, qn_token *out)
{
    row *w = &r->rows[i_row];
    const qn_request *q = &r->requests[i_row];
    qn_status status = w->failure;
    if (why == QN_END_NONE) {
        why = q->end;
        status = q->failure;
        if (status != QN_OK) qn_fail_copy(status, q->message ? q->message : qn_status_text(status));
    }
    if (status == QN_OK) status = decode_rest(r, w);
    if (status == QN_OK && w->stop.hit) why = QN_END_STOP_STRING;
    put_text(r, w, out);
    if (status == QN_OK && why == QN_END_STOP && w->keeps_answer) status = check_answer(w, q);
    out->end = status == QN_OK ? why : QN_END_ERROR;
    out->stop = out->end == QN_END_STOP_STRING ? (w->stop.hit ? (int32_t)w->stop.string + 1 : 0)
                : out->end == QN_END_STOP      ? q->stop_id
                                               : 0;
    out->position = q->n_prompt + w->n_given;
    w->is_over = 1;
    r->n_over++;
    return status;
}

/* The next event that is ready; 0: there is none. */
static int give_event(qn_run *r, qn_token *out, qn_status *status)
{
    qn_end why = why_stop(r);
    for (int64_t n = 0; n < r->n_rows; n++, r->i_next = (r->i_next + 1) % r->n_rows) {
        row *w = &r->rows[r->i_next];
        if (w->is_over) continue;
        int done = is_done(r, r->i_next); /* looked at before the ring: nothing is written after it */
        const qn_drawn *d = qn_ring_peek(&r->requests[r->i_next].ring);
        out->row = r->i_next;
        if (w->end == QN_END_NONE && why != QN_END_NONE && !(done && !d)) w->end = why;
        if (w->end != QN_END_NONE || (done && !d)) {
            *status = give_end(r, r->i_next, w->end, out);
            return 1;
        }
        if (!d) continue;
        give_token(r, r->i_next, d, out);
        r->i_next = (r->i_next + 1) % r->n_rows;
        return 1;
    }
    return 0;
}

static void begin_event(qn_run *r, qn_token *out)
{
    qn_buf_reset(&r->delta);
    qn_buf_reset(&r->text);
    if (r->held && qn_ring_drop(r->held)) qn_scheduler_stir(r->model.scheduler);
    r->held = NULL;
    *out = (qn_token){.id = -1, .text = ""};
}

qn_status qn_run_next(qn_run *r, qn_token *out)
{
    qn_status status = QN_OK;
    begin_event(r, out);
    while (!give_event(r, out, &status)) {
        qn_status waited = qn_scheduler_wait(r->model.scheduler, &r->client, 0);
        for (int64_t i = 0; waited != QN_OK && i < r->n_rows; i++) {
            r->rows[i].failure = waited;
            end_row(r, i, QN_END_ERROR);
        }
    }
    return status;
}

qn_status qn_run_poll(qn_run *r, qn_token *out, int *is_there)
{
    qn_status status = QN_OK;
    begin_event(r, out);
    *is_there = give_event(r, out, &status);
    return status;
}

void qn_run_get_stats(const qn_run *r, qn_generation_stats *out)
{
    double prefill_ns = (double)atomic_load_explicit(&r->client.prefill_ns, memory_order_relaxed),
           decode_ns = (double)atomic_load_explicit(&r->client.decode_ns, memory_order_relaxed);
    int64_t n_decoded = atomic_load_explicit(&r->client.n_decoded, memory_order_relaxed), first_ns = 0;
    *out = (qn_generation_stats){.n_generated_tokens = r->n_generated,
                                 .prefill_ms = prefill_ns * 1e-6,
                                 .decode_ms = decode_ns * 1e-6,
                                 .seed = r->seed};
    for (int64_t i = 0; i < r->n_rows; i++) {
        const qn_request *q = &r->requests[i];
        int64_t submitted = atomic_load_explicit(&q->submitted_ns, memory_order_relaxed),
                admitted =
                    atomic_load_explicit(&q->admitted_ns, memory_order_acquire), /* then n_cached is there */
            first = atomic_load_explicit(&q->first_ns, memory_order_relaxed);
        out->n_prompt_tokens += q->n_prompt; /* known before anything is computed */
        if (!admitted) continue;
        out->n_drafted_tokens += atomic_load_explicit(&q->n_drafted, memory_order_relaxed);
        out->n_accepted_tokens += atomic_load_explicit(&q->n_accepted, memory_order_relaxed);
        out->n_cached_tokens += q->n_cached;
        out->n_computed_tokens += atomic_load_explicit(&q->n_computed, memory_order_relaxed);
        if (i == 0) out->queue_ms = (double)(admitted - submitted) * 1e-6;
        if (first && (!first_ns || first < first_ns)) {
            first_ns = first;
            out->first_token_ms = (double)(first - submitted) * 1e-6;
        }
    }
    if (prefill_ns > 0)
        out->prefill_tokens_per_sec =
            (double)(out->n_prompt_tokens - out->n_cached_tokens) / (prefill_ns * 1e-9);
    if (decode_ns > 0) out->decode_tokens_per_sec = (double)n_decoded / (decode_ns * 1e-9);
}

qn_status qn_run_get_prompt_token(const qn_run *r, int64_t i_row, int64_t position, qn_prompt_token *out)
{
    if (i_row < 0 || i_row >= r->n_rows || position < 0 || position >= r->requests[i_row].n_prompt)
        return qn_fail(QN_E_ARG, "the prompt has no token at row %lld, position %lld", (long long)i_row,
                       (long long)position);
    const qn_request *q = &r->requests[i_row];
    if (!q->prompt_logprobs) return qn_fail(QN_E_ARG, "the generation was opened without prompt_logprobs");
    if ((!r->rows[i_row].n_given && !is_done(r, i_row)) ||
        !qn_prompt_logprobs_get(q->prompt_logprobs, position, out))
        return qn_fail(QN_E_ARG, "the prompt of row %lld is not computed", (long long)i_row);
    return QN_OK;
}

static void free_run(qn_client *client)
{
    qn_run *r = (qn_run *)client;
    for (int64_t i = 0; r->rows && r->requests && i < r->n_rows; i++) {
        row *w = &r->rows[i];
        qn_request *q = &r->requests[i];
        qn_adapters_release(qn_engine_adapters(r->model.engine), q->adapter);
        qn_form_free(q->form);
        qn_prompt_logprobs_free(q->prompt_logprobs);
        qn_reasoning_free(q->reasoning);
        qn_sampler_free(q->sampler);
        qn_images_free(q->images);
        qn_ledger_release(qn_engine_ledger(r->model.engine), QN_LEDGER_OTHER, q->held_bytes);
        qn_request_end(q);
        qn_token_stream_free(w->decoder);
        qn_stop_end(&w->stop);
        qn_buf_free(&w->answer);
    }
    qn_stop_set_free(r->stop_set);
    qn_words_free(r->words);
    qn_buf_free(&r->delta);
    qn_buf_free(&r->text);
    qn_free(r->stop_ids);
    qn_free(r->salt);
    qn_free(r->tenant);
    qn_free(r->requests);
    qn_free(r->rows);
    qn_ledger_release(qn_engine_ledger(r->model.engine), QN_LEDGER_OTHER, r->held_bytes);
    qn_free(r);
}

void qn_run_close(qn_run *r)
{
    if (!r) return;
    if (r->is_submitted)
        qn_scheduler_quit(r->model.scheduler, &r->client, r->n_rows, r->requests, free_run);
    else
        free_run(&r->client);
}
