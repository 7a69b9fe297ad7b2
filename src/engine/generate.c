#include "engine/generate.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/images.h"
#include "engine/logprobs.h"
#include "engine/sampler.h"
#include "text/stop.h"

/* WAITING -> FEEDING -> DRAWN -> FEEDING ... -> ENDING -> DONE: a row waits for a place, has ids to feed, has
 * a token that was not given out yet, has its end event to give. */
typedef enum { ROW_WAITING, ROW_FEEDING, ROW_DRAWN, ROW_ENDING, ROW_DONE } row_state;

typedef struct {
    row_state state;
    const int32_t *prompt;
    int64_t n_prompt, n_generated;
    int32_t token; /* drawn last; what is fed after the prompt */
    float logprob; /* of it, and of the likeliest where it stood */
    int32_t n_top;
    qn_top_logprob *top;
    qn_sequence *sequence;
    int32_t adapter; /* held while the run is open; -1: none */
    qn_sampler *sampler;
    qn_token_stream *decoder;
    qn_stop stop;
    qn_images *images; /* NULL: none */
    int64_t n_unseen;  /* of these, whose vectors are not computed yet */
    qn_end end;        /* of ROW_ENDING */
    qn_status failure; /* for QN_END_ERROR, with its message */
    char *message;
} row;

struct qn_run {
    qn_run_model model;
    const qn_cancel *cancel;
    qn_slots_holder places;
    int64_t n_rows, n_started, n_done, i_next; /* i_next: the row that is looked at first */
    row *rows;
    int32_t *prompts; /* of all rows */
    qn_stop_set *stop_set;
    int32_t *stop_ids;
    int64_t n_stop_ids;
    int64_t max_tokens, deadline_ns; /* 0: none */
    int rotate, logprobs;
    int32_t n_top_logprobs;
    uint64_t seed;
    qn_feed *feeds;   /* of one step: at most n_places */
    int64_t *fed_row; /* which row a feed is */
    int64_t n_places;
    qn_buf delta, text; /* of one event */
    size_t held_bytes;  /* of all this, in the ledger */
    int64_t n_prompt_tokens, n_generated, n_decoded, prefill_ns, decode_ns;
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
static int64_t room_of(const qn_run *r)
{
    return r->rotate ? INT32_MAX : qn_engine_get_info(r->model.engine)->context_size;
}

static void end_row(qn_run *r, row *w, qn_end why)
{
    w->state = ROW_ENDING;
    w->end = why;
}

/* The images' places in the only row, whose prompt they make longer. */
static qn_status place_images(qn_run *r, const qn_run_prompt *prompt, qn_images **out)
{
    const qn_ids *ids = prompt->rows;
    if (prompt->n_rows != 1)
        return qn_fail(QN_E_ARG, "%zu image(s) were given with %lld rows: only a single one takes images",
                       prompt->n_images, (long long)prompt->n_rows);
    return qn_images_new(qn_engine_config(r->model.engine), prompt->n_images, prompt->images, ids->ids,
                         ids->n_ids, qn_engine_get_info(r->model.engine)->context_size, out);
}

static qn_status copy_rows(qn_run *r, const qn_run_prompt *prompt)
{
    int64_t total = 0, at = 0, room = room_of(r);
    for (int64_t i = 0; i < prompt->n_rows; i++) {
        QN_TRY(check_prompt(r, i, &prompt->rows[i]));
        total += prompt->rows[i].n_ids;
    }
    r->rows = qn_calloc((size_t)prompt->n_rows, sizeof *r->rows);
    if (!r->rows) return QN_E_NOMEM;
    r->n_rows = prompt->n_rows;
    for (int64_t i = 0; i < r->n_rows; i++) r->rows[i].adapter = -1;
    if (prompt->n_images) {
        QN_TRY(place_images(r, prompt, &r->rows[0].images));
        total = qn_images_prompt(r->rows[0].images).n_ids;
    }
    r->prompts = qn_alloc_array((size_t)total, sizeof *r->prompts);
    if (!r->prompts) return QN_E_NOMEM;
    for (int64_t i = 0; i < r->n_rows; i++) {
        row *w = &r->rows[i];
        const qn_ids ids = w->images ? qn_images_prompt(w->images) : prompt->rows[i];
        memcpy(r->prompts + at, ids.ids, (size_t)ids.n_ids * sizeof *r->prompts);
        w->prompt = r->prompts + at;
        w->n_prompt = ids.n_ids;
        w->n_unseen = (int64_t)(w->images ? prompt->n_images : 0);
        if (ids.n_ids >= room) end_row(r, w, QN_END_LENGTH); /* nothing fits behind it */
        at += ids.n_ids;
    }
    return QN_OK;
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

static qn_status hold_adapters(qn_run *r, const qn_generate_options *o)
{
    qn_adapters *adapters = qn_engine_adapters(r->model.engine);
    for (int64_t i = 0; i < r->n_rows; i++) {
        const char *own = o->row_adapters ? o->row_adapters[i] : NULL;
        QN_TRY(qn_adapters_hold(adapters, own ? own : o->adapter, &r->rows[i].adapter));
    }
    return QN_OK;
}

/* What each row works with is made before the first step, so that a step allocates nothing of its own. */
static qn_status make_tools(qn_run *r, const qn_generate_options *o)
{
    int64_t vocabulary = qn_engine_config(r->model.engine)->vocab_size;
    QN_TRY(collect_stop_ids(r, o));
    QN_TRY(qn_stop_set_new(o->stop_strings, o->n_stop_strings, &r->stop_set));
    for (int64_t i = 0; i < r->n_rows; i++) {
        row *w = &r->rows[i];
        w->stop.set = r->stop_set;
        QN_TRY(qn_sampler_new(o, vocabulary, &w->sampler));
        QN_TRY(qn_sampler_accept(w->sampler, w->prompt, w->n_prompt));
        if (o->n_top_logprobs) {
            w->top = qn_alloc_array((size_t)o->n_top_logprobs, sizeof *w->top);
            if (!w->top) return QN_E_NOMEM;
        }
        if (r->model.tokenizer) QN_TRY(qn_token_stream_new(r->model.tokenizer, 0, &w->decoder));
    }
    r->n_places = r->n_rows < qn_slots_count(r->model.slots) ? r->n_rows : qn_slots_count(r->model.slots);
    r->feeds = qn_alloc_array((size_t)r->n_places, sizeof *r->feeds);
    r->fed_row = qn_alloc_array((size_t)r->n_places, sizeof *r->fed_row);
    return r->feeds && r->fed_row ? QN_OK : QN_E_NOMEM;
}

qn_status qn_run_open(const qn_run_model *model, const qn_run_prompt *prompt,
                      const qn_generate_options *options, const qn_cancel *cancel, qn_run **out)
{
    int64_t before = qn_mem_thread_bytes();
    qn_run *r = qn_calloc(1, sizeof *r);
    if (!r) return QN_E_NOMEM;
    r->model = *model;
    r->cancel = cancel;
    r->max_tokens = options->max_tokens;
    r->rotate = options->rotate;
    r->logprobs = options->logprobs;
    r->n_top_logprobs = options->n_top_logprobs;
    r->seed = options->seed;
    int64_t now = qn_clock_ns(), most = (INT64_MAX - now) / 1000000;
    if (options->deadline_ms && options->deadline_ms <= most)
        r->deadline_ns = now + options->deadline_ms * 1000000;
    qn_status status = copy_rows(r, prompt);
    if (status == QN_OK) status = hold_adapters(r, options);
    if (status == QN_OK) status = make_tools(r, options);
    if (status == QN_OK) {
        size_t held_bytes = (size_t)(qn_mem_thread_bytes() - before);
        status = qn_ledger_reserve(qn_engine_ledger(r->model.engine), QN_LEDGER_OTHER, held_bytes);
        if (status == QN_OK) r->held_bytes = held_bytes;
    }
    if (status != QN_OK) {
        qn_run_close(r);
        return status;
    }
    *out = r;
    return QN_OK;
}

/* ---- ends ---- */

/* The row fails with this thread's message. */
static void fail_row(qn_run *r, row *w, qn_status status)
{
    end_row(r, w, QN_END_ERROR);
    w->failure = status;
    qn_free(w->message);
    w->message = qn_strdup(qn_last_error());
}

static void end_all(qn_run *r, qn_end why)
{
    for (int64_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].state == ROW_WAITING || r->rows[i].state == ROW_FEEDING) end_row(r, &r->rows[i], why);
}

static void fail_all(qn_run *r, qn_status status)
{
    for (int64_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].state == ROW_WAITING || r->rows[i].state == ROW_FEEDING)
            fail_row(r, &r->rows[i], status);
}

static qn_end why_stop(const qn_run *r)
{
    if (r->cancel && qn_cancel_is_set(r->cancel)) return QN_END_CANCELLED;
    if (r->deadline_ns && qn_clock_ns() >= r->deadline_ns) return QN_END_DEADLINE;
    return QN_END_NONE;
}

static int should_stop(void *user)
{
    return why_stop(user) != QN_END_NONE;
}

static qn_status should_stop_waiting(void *user)
{
    return should_stop(user) ? QN_E_CANCELLED : QN_OK;
}

/* Gives the row's sequence back, and all places when no row needs one any more. */
static void release_row(qn_run *r, row *w)
{
    w->state = ROW_DONE;
    r->n_done++;
    if (w->sequence) {
        qn_slots_begin_turn(r->model.slots, &r->places);
        qn_sequence_free(w->sequence);
        qn_slots_end_turn(r->model.slots);
        w->sequence = NULL;
    }
    if (r->n_done == r->n_rows) qn_slots_give(r->model.slots, &r->places);
}

/* ---- a step ---- */

/* Rows that wait get the sequences that are free among this run's places. */
static qn_status start_rows(qn_run *r)
{
    int64_t n_held = 0;
    for (int64_t i = 0; i < r->n_rows; i++) n_held += r->rows[i].sequence != NULL;
    for (int64_t i = 0; i < r->n_rows && n_held < r->n_places; i++) {
        row *w = &r->rows[i];
        if (w->state != ROW_WAITING) continue;
        QN_TRY(qn_sequence_new(r->model.engine, &w->sequence));
        qn_sequence_expect(w->sequence, w->n_prompt);
        qn_sequence_set_adapter(w->sequence, w->adapter);
        qn_sequence_set_images(w->sequence, w->images);
        w->state = ROW_FEEDING;
        r->n_prompt_tokens += w->n_prompt;
        n_held++;
    }
    return QN_OK;
}

static qn_status find_logprobs(const qn_run *r, row *w, const float *logits)
{
    qn_logprobs l;
    QN_TRY(qn_logprobs_read(logits, qn_engine_config(r->model.engine)->vocab_size, &l));
    w->logprob = (float)qn_logprobs_of(&l, w->token);
    w->n_top = qn_logprobs_top(&l, r->n_top_logprobs, w->top);
    return QN_OK;
}

/* Draws the row's next token. A row whose logits are of no use fails alone. */
static qn_status draw(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    qn_run *r = user;
    row *w = &r->rows[r->fed_row[feed]];
    int64_t position = w->n_prompt + w->n_generated;
    qn_status status = qn_sampler_draw(w->sampler, logits, position, &w->token);
    if (status == QN_OK && r->logprobs) status = find_logprobs(r, w, logits);
    if (status == QN_OK)
        w->state = ROW_DRAWN;
    else
        fail_row(r, w, qn_fail_prefix(status, "position %lld", (long long)position));
    return QN_OK;
}

static void fail_and_free(qn_run *r, row *w, qn_status status)
{
    fail_row(r, w, status);
    qn_sequence_free(w->sequence);
    w->sequence = NULL;
}

/* One image of a row that has some before it can be fed. Returns 0 when there is none. */
static int see_under_turn(qn_run *r)
{
    row *w = &r->rows[0];
    if (w->state != ROW_FEEDING || !w->n_unseen) return 0;
    int64_t start = qn_clock_ns();
    qn_status status = qn_images_see(w->images, r->model.engine, &w->n_unseen);
    r->prefill_ns += qn_clock_ns() - start;
    if (status != QN_OK) fail_and_free(r, w, status);
    return 1;
}

/* One chunk: prompts go on where the chunk before ended, so that others have their turns in between. */
static qn_status step_under_turn(qn_run *r)
{
    QN_TRY(start_rows(r));
    if (see_under_turn(r)) return QN_OK;
    int64_t n = 0, n_prefill = 0, room = qn_engine_get_info(r->model.engine)->max_rows;
    for (int64_t i = 0; i < r->n_rows && room > 0; i++) {
        row *w = &r->rows[i];
        if (w->state != ROW_FEEDING) continue;
        int is_prompt = w->n_generated == 0;
        int64_t from = is_prompt ? qn_sequence_length(w->sequence) : 0,
                rest = is_prompt ? w->n_prompt - from : 1, n_ids = rest < room ? rest : room;
        qn_status status = qn_sequence_reserve(w->sequence, n_ids);
        if (status != QN_OK) { /* its pages may be what the others need */
            fail_and_free(r, w, status);
            continue;
        }
        n_prefill += is_prompt;
        room -= n_ids;
        r->feeds[n] = (qn_feed){w->sequence, is_prompt ? w->prompt + from : &w->token, n_ids,
                                n_ids == rest ? QN_LOGITS_LAST : QN_LOGITS_NONE};
        r->fed_row[n++] = i;
    }
    if (!n) return QN_OK;
    int64_t start = qn_clock_ns();
    qn_status status = qn_engine_step(r->model.engine, n, r->feeds, draw, should_stop, r);
    int64_t took = qn_clock_ns() - start;
    if (n_prefill) {
        r->prefill_ns += took;
    } else {
        r->decode_ns += took;
        r->n_decoded += n;
    }
    return status;
}

/* Brings rows that can go on to their next token, or nearer. Failures of the step as a whole end those rows.
 */
static void step(qn_run *r)
{
    qn_status status = qn_slots_check_thread(r->model.slots);
    if (status == QN_OK && !r->places.n)
        status = qn_slots_take(r->model.slots, r->n_places, &r->places, should_stop_waiting, r);
    if (status == QN_OK) {
        qn_slots_begin_turn(r->model.slots, &r->places);
        status = step_under_turn(r);
        qn_slots_end_turn(r->model.slots);
    }
    if (status == QN_OK) return;
    qn_end why = why_stop(r);
    if (status == QN_E_CANCELLED && why != QN_END_NONE)
        end_all(r, why);
    else
        fail_all(r, status);
}

/* ---- events ---- */

static int is_stop_id(const qn_run *r, int32_t id)
{
    for (int64_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return 1;
    return 0;
}

static qn_status feed_stop(qn_run *r, row *w)
{
    if (r->delta.status != QN_OK) return r->delta.status;
    return qn_stop_feed(&w->stop, r->delta.data, r->delta.length, &r->text);
}

/* The text that the token makes certain. */
static qn_status decode_token(qn_run *r, row *w)
{
    if (w->decoder) QN_TRY(qn_token_stream_push(w->decoder, w->token, &r->delta));
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

static void put_text(qn_run *r, qn_token *out)
{
    out->text = r->text.length ? r->text.data : "";
    out->text_bytes = r->text.length;
}

/* Gives the token that was drawn and finds out how the row goes on. Returns 0 when the token ends the row
 * unseen. */
static int give_token(qn_run *r, row *w, qn_token *out)
{
    if (is_stop_id(r, w->token)) {
        end_row(r, w, QN_END_STOP);
        return 0;
    }
    qn_status status = qn_sampler_accept_drawn(w->sampler, w->token);
    if (status == QN_OK) status = decode_token(r, w);
    if (status != QN_OK) {
        fail_row(r, w, status);
        return 0;
    }
    out->id = w->token;
    out->position = w->n_prompt + w->n_generated;
    out->logprob = w->logprob;
    out->top = w->top;
    out->n_top = w->n_top;
    put_text(r, out);
    w->n_generated++;
    r->n_generated++;
    int64_t length = w->n_prompt + w->n_generated;
    if (w->stop.hit)
        end_row(r, w, QN_END_STOP_STRING);
    else if ((r->max_tokens && w->n_generated >= r->max_tokens) || length >= room_of(r))
        end_row(r, w, QN_END_LENGTH);
    else
        w->state = ROW_FEEDING;
    return 1;
}

static qn_status give_end(qn_run *r, row *w, qn_token *out)
{
    qn_status status = w->end == QN_END_ERROR ? w->failure : decode_rest(r, w);
    if (w->end == QN_END_ERROR)
        qn_fail_copy(status, w->message ? w->message : qn_status_text(status));
    else if (status == QN_OK && w->stop.hit)
        w->end = QN_END_STOP_STRING;
    out->end = status == QN_OK ? w->end : QN_END_ERROR;
    out->position = w->n_prompt + w->n_generated;
    put_text(r, out);
    release_row(r, w);
    return status;
}

/* The next event that is ready; 0: there is none. */
static int give_event(qn_run *r, qn_token *out, qn_status *status)
{
    for (; r->i_next < r->n_rows; r->i_next++) {
        row *w = &r->rows[r->i_next];
        out->row = r->i_next;
        if (w->state == ROW_DRAWN && give_token(r, w, out)) return 1;
        if (w->state == ROW_ENDING) {
            *status = give_end(r, w, out);
            return 1;
        }
    }
    r->i_next = 0;
    return 0;
}

qn_status qn_run_next(qn_run *r, qn_token *out)
{
    qn_status status = QN_OK;
    qn_buf_reset(&r->delta);
    qn_buf_reset(&r->text);
    *out = (qn_token){.id = -1, .text = ""};
    while (!give_event(r, out, &status)) {
        qn_end why = why_stop(r);
        if (why != QN_END_NONE)
            end_all(r, why);
        else
            step(r);
    }
    return status;
}

void qn_run_get_stats(const qn_run *r, qn_generation_stats *out)
{
    *out = (qn_generation_stats){
        .n_prompt_tokens = r->n_prompt_tokens,
        .n_generated_tokens = r->n_generated,
        .prefill_ms = (double)r->prefill_ns * 1e-6,
        .decode_ms = (double)r->decode_ns * 1e-6,
        .prefill_tokens_per_sec =
            r->prefill_ns ? (double)r->n_prompt_tokens / ((double)r->prefill_ns * 1e-9) : 0,
        .decode_tokens_per_sec = r->decode_ns ? (double)r->n_decoded / ((double)r->decode_ns * 1e-9) : 0,
        .seed = r->seed,
    };
}

void qn_run_close(qn_run *r)
{
    if (!r) return;
    if (r->places.n) {
        qn_slots_begin_turn(r->model.slots, &r->places);
        for (int64_t i = 0; i < r->n_rows; i++) qn_sequence_free(r->rows[i].sequence);
        qn_slots_end_turn(r->model.slots);
        qn_slots_give(r->model.slots, &r->places);
    }
    for (int64_t i = 0; r->rows && i < r->n_rows; i++) {
        row *w = &r->rows[i];
        qn_adapters_release(qn_engine_adapters(r->model.engine), w->adapter);
        qn_sampler_free(w->sampler);
        qn_token_stream_free(w->decoder);
        qn_stop_end(&w->stop);
        qn_free(w->top);
        qn_free(w->message);
        qn_images_free(w->images);
    }
    qn_stop_set_free(r->stop_set);
    qn_buf_free(&r->delta);
    qn_buf_free(&r->text);
    qn_free(r->feeds);
    qn_free(r->fed_row);
    qn_free(r->stop_ids);
    qn_free(r->prompts);
    qn_free(r->rows);
    qn_ledger_release(qn_engine_ledger(r->model.engine), QN_LEDGER_OTHER, r->held_bytes);
    qn_free(r);
}
