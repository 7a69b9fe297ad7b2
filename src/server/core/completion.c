#include "server/core/completion.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/core/next_turn/look_ahead.h"
#include "server/core/slots/completion_slot.h"
#include "text/tools/call_ids.h"

/* ---- the end ------------------------------------------------------------------------------------------- */

static void free_choice(qn_completion_choice *choice)
{
    qn_generation_close(choice->generation);
    qn_answer_free(choice->parser);
    qn_said_free(&choice->said);
    qn_buf_free(&choice->prompt_ids);
    qn_buf_free(&choice->prompt_logprobs);
    qn_free(choice->memory);
}

static qn_completion *of_job(qn_job *job)
{
    return (qn_completion *)(void *)((char *)job - offsetof(qn_completion, job));
}

/* On a worker: closing may wait for the step that is under way. */
static void close_all(qn_job *job)
{
    qn_completion *c = of_job(job);
    /* An answer that nobody waits for and that did not end well says so to who asks later. */
    if (c->request.background && c->is_stored && !c->is_kept) c->keep_status = c->dialect->keep(c);
    qn_completion_give_slot(c);
    for (size_t i = 0; i < c->n_choices; i++) free_choice(&c->choices[i]);
    qn_free(c->choices);
    c->choices = NULL;
    c->n_choices = 0;
}

static void all_closed(qn_job *job)
{
    qn_completion *c = of_job(job);
    /* No computing thread calls any more, but one may have called just before. */
    qn_server_look(c->ex->server);
    for (qn_completion **at = &c->ex->server->background; *at; at = &(*at)->next_background)
        if (*at == c) {
            *at = c->next_background;
            break;
        }
    qn_exchange_release(c->ex);
}

static void free_completion(qn_exchange *ex)
{
    qn_completion *c = ex->state;
    qn_said_free(&c->said);
    qn_buf_free(&c->said_ids);
    qn_buf_free(&c->slot_ids);
    qn_api_request_free(&c->request);
    qn_buf_free(&c->model);
    qn_buf_free(&c->salt);
    qn_buf_free(&c->tenant);
    qn_buf_free(&c->shown);
    qn_free(c);
}

static void begin_closing(qn_completion *c)
{
    if (c->phase == QN_COMPLETION_CLOSING) return;
    if (c->request.background && c->is_stored && !c->is_kept) {
        if (c->state != QN_ANSWER_CANCELLED) c->state = QN_ANSWER_FAILED;
        c->dialect->write_whole(c, &c->shown);
    }
    if (c->phase == QN_COMPLETION_RUNNING) c->ex->server->n_generating -= (int64_t)c->n_choices;
    c->phase = QN_COMPLETION_CLOSING;
    for (size_t i = 0; i < c->n_choices; i++) qn_generation_cancel(c->choices[i].generation);
    c->job = (qn_job){close_all, all_closed, NULL};
    qn_workers_push(c->ex->server->workers, &c->job);
}

static void client_gone(qn_exchange *ex)
{
    qn_completion *c = ex->state;
    atomic_store(&c->is_gone, 1);
    if (c->phase == QN_COMPLETION_RUNNING) begin_closing(c);
}

void qn_completion_cancel(qn_completion *c)
{
    if (c->phase != QN_COMPLETION_RUNNING) return;
    c->state = QN_ANSWER_CANCELLED;
    begin_closing(c);
}

void qn_completion_drop_background(qn_server *s)
{
    for (qn_completion *c = s->background; c; c = c->next_background) {
        if (c->phase != QN_COMPLETION_RUNNING) continue;
        qn_api_fail(&c->error, 503, "shutting_down", NULL,
                    "the server ended before the response was complete");
        begin_closing(c);
    }
}

static void fail(qn_completion *c, const qn_api_error *error)
{
    if (!c->error.status) c->error = *error;
    qn_exchange_fail(c->ex, error);
    begin_closing(c);
}

static void fail_status(qn_completion *c, qn_status status)
{
    qn_api_error error;
    qn_api_fail_status(&error, status);
    /* What goes wrong once a request was found good is not the client's fault. */
    if (error.status < 500) error.status = 500;
    fail(c, &error);
}

/* ---- what a choice says -------------------------------------------------------------------------------- */

/* Where what a choice says is kept whole; NULL: it is not. */
static qn_said *said_of(qn_completion *c, const qn_completion_choice *choice)
{
    return c->keeps_said && choice->index == 0 ? &c->said : NULL;
}

static void take_event(qn_completion *c, qn_completion_choice *choice, const qn_answer_event *event)
{
    char own_id[QN_CALL_ID_BYTES_MAX];
    qn_answer_event e = *event;
    qn_said *kept = said_of(c, choice);
    if (e.kind == QN_ANSWER_CALL_BEGIN) {
        qn_call_id_write(c->ex->server->traits.ids, c->ex->number, choice->index, e.index, own_id);
        if (!e.id || !e.id[0]) e.id = own_id;
        choice->n_calls++;
    }
    qn_said_add(&choice->said, &e);
    if (kept && e.kind != QN_ANSWER_REASONING) qn_said_add(kept, &e);
    if (e.kind == QN_ANSWER_CALL_END && c->request.one_tool_call) choice->is_cut = 1;
}

/* The next text of a choice; is_end: its last. */
static qn_status take_text(qn_completion *c, qn_completion_choice *choice, const char *text, size_t n,
                           int is_end)
{
    if (choice->is_cut) return QN_OK;
    if (!choice->parser)
        take_event(c, choice, &(qn_answer_event){.kind = QN_ANSWER_CONTENT, .text = text, .n = n});
    for (int last = 0; choice->parser && last <= is_end; last++) {
        size_t n_events;
        QN_TRY(last ? qn_answer_finish(choice->parser) : qn_answer_feed(choice->parser, text, n));
        const qn_answer_event *events = qn_answer_get_events(choice->parser, &n_events);
        for (size_t i = 0; i < n_events && !choice->is_cut; i++) take_event(c, choice, &events[i]);
    }
    return qn_said_status(&choice->said);
}

static void note_token(qn_completion *c, qn_completion_choice *choice)
{
    qn_server_metrics *m = &c->ex->server->metrics;
    int64_t now = qn_clock_ns();
    if (choice->n_tokens++ == 0)
        qn_histogram_add(&m->first_token, (double)(now - c->ex->begin_ns) * 1e-9);
    else
        qn_histogram_add(&m->between_tokens, (double)(now - choice->last_token_ns) * 1e-9);
    choice->last_token_ns = now;
}

static void note_times(qn_server_metrics *m, const qn_generation_stats *stats)
{
    const int64_t n = stats->n_prompt_tokens + stats->n_generated_tokens;
    m->prefill_s += stats->prefill_ms * 1e-3;
    m->decode_s += stats->decode_ms * 1e-3;
    if (n > m->n_tokens_max) m->n_tokens_max = n;
}

static void note_end(qn_completion *c, qn_completion_choice *choice, const qn_token *token)
{
    const qn_end end = token->end;
    qn_generation_stats stats;
    choice->end = end;
    if (token->stop && end == QN_END_STOP_STRING) choice->stop_string = c->request.stop[token->stop - 1];
    choice->stop_id = token->stop && end == QN_END_STOP ? token->stop - 1 : -1;
    choice->finish = c->request.only_prompt                           ? QN_FINISH_LENGTH
                     : choice->is_cut                                 ? QN_FINISH_CALLS
                     : end == QN_END_LENGTH || end == QN_END_DEADLINE ? QN_FINISH_LENGTH
                     : choice->n_calls                                ? QN_FINISH_CALLS
                                                                      : QN_FINISH_STOP;
    c->n_running--;
    if (choice->index == 0) qn_completion_give_slot(c);
    if (qn_generation_get_stats(choice->generation, &stats) != QN_OK) return;
    qn_histogram_add(&c->ex->server->metrics.queue, stats.queue_ms * 1e-3);
    /* The choices of one prompt share it. */
    if (choice->index % c->request.n == 0) {
        c->n_prompt_tokens += stats.n_prompt_tokens;
        c->n_cached_tokens += stats.n_cached_tokens;
    }
    if (!c->request.only_prompt) c->n_generated_tokens += stats.n_generated_tokens;
    note_times(&c->ex->server->metrics, &stats);
    c->n_reasoning_tokens += choice->n_reasoning_tokens;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

/* The stop string that ended a choice, if it is to be shown; else NULL. */
static const char *included_stop(const qn_completion *c, const qn_token *token)
{
    if (!c->request.include_stop || token->end != QN_END_STOP_STRING || !token->stop) return NULL;
    return c->request.stop[token->stop - 1];
}

/* An echo with log-probabilities says the prompt's tokens before its own. They are known at the first event. */
static qn_status say_prompt(const qn_completion *c, qn_completion_choice *choice)
{
    qn_generation_stats stats;
    qn_prompt_token t;
    if (choice->has_prompt || !c->request.echo || !c->request.logprobs) return QN_OK;
    choice->has_prompt = 1;
    QN_TRY(qn_generation_get_stats(choice->generation, &stats));
    for (int64_t i = 0; i < stats.n_prompt_tokens; i++) {
        QN_TRY(qn_generation_get_prompt_token(choice->generation, 0, i, &t));
        qn_said_add_prompt_token(&choice->said, &t);
    }
    return qn_said_status(&choice->said);
}

static void send_bytes(qn_completion *c, const qn_buf *written)
{
    if (written->status == QN_OK)
        qn_exchange_send(c->ex, written->data, written->length);
    else
        fail_status(c, written->status);
}

static void send_progress(qn_completion *c, qn_completion_choice *choice, int64_t n_done,
                          const qn_generation_stats *stats)
{
    const qn_prompt_progress progress = {stats->n_prompt_tokens, stats->n_cached_tokens, n_done,
                                         n_done > stats->n_cached_tokens ? stats->prefill_ms : 0};
    qn_buf b = {0};
    choice->has_progress = 1;
    choice->n_done = n_done;
    c->dialect->write_progress(c, choice, &progress, &b);
    send_bytes(c, &b);
    qn_buf_free(&b);
}

/* Tells what is new of a choice's prompt. is_whole: its first token is there. */
static void note_progress(qn_completion *c, qn_completion_choice *choice, int is_whole)
{
    qn_generation_stats stats;
    if (!c->request.wants_progress || !c->request.stream || !c->dialect->write_progress || choice->n_tokens)
        return;
    if (qn_generation_get_stats(choice->generation, &stats) != QN_OK) return;
    const int64_t n_done = is_whole ? stats.n_prompt_tokens : stats.n_computed_tokens;
    if (!is_whole && !n_done && stats.queue_ms <= 0) return; /* it waits for its turn */
    if (!choice->has_progress) send_progress(c, choice, stats.n_cached_tokens, &stats);
    if (c->phase == QN_COMPLETION_RUNNING && n_done > choice->n_done)
        send_progress(c, choice, n_done, &stats);
}

/* One event of a choice. Returns QN_OK and *is_there 0 when there is none yet. */
static qn_status poll_choice(qn_completion *c, qn_completion_choice *choice, int *is_there)
{
    qn_token token;
    QN_TRY(qn_generation_poll(choice->generation, &token, is_there));
    note_progress(c, choice, *is_there);
    if (c->phase != QN_COMPLETION_RUNNING) *is_there = 0;
    if (!*is_there) return QN_OK;
    if (token.end == QN_END_CANCELLED && !choice->is_cut)
        return qn_fail(QN_E_CANCELLED, "the request was cancelled");
    QN_TRY(say_prompt(c, choice));
    if (token.id >= 0) {
        note_token(c, choice);
        if (choice->index == 0) qn_completion_note_slot(c, token.id);
        if (said_of(c, choice)) qn_buf_append(&c->said_ids, &token.id, sizeof token.id);
        const int is_shown = !choice->is_cut && !c->request.only_prompt;
        if ((c->request.logprobs || c->request.keep_tokens) && is_shown)
            qn_said_add_token(&choice->said, &token);
    }
    if (c->request.only_prompt) {
        if (token.end != QN_END_NONE) note_end(c, choice, &token);
        return QN_OK;
    }
    const char *stop = included_stop(c, &token);
    QN_TRY(take_text(c, choice, token.text, token.text_bytes, token.end != QN_END_NONE && !stop));
    if (stop) QN_TRY(take_text(c, choice, stop, strlen(stop), 1));
    if (choice->is_cut && token.end == QN_END_NONE) qn_generation_cancel(choice->generation);
    if (token.id >= 0 && choice->parser && qn_answer_is_reasoning(choice->parser))
        choice->n_reasoning_tokens++;
    if (token.end != QN_END_NONE) note_end(c, choice, &token);
    return QN_OK;
}

static void finish(qn_completion *c);

/* Behind a worker's job: the client may have gone meanwhile. */
static void go_on(qn_completion *c)
{
    if (atomic_load(&c->is_gone))
        begin_closing(c);
    else
        finish(c);
}

static void keep(qn_job *job)
{
    qn_completion *c = of_job(job);
    c->keep_status = c->dialect->keep(c);
    if (c->keep_status != QN_OK) qn_api_fail_status(&c->error, c->keep_status);
}

/* The answer is sent all the same if it could not be stored. */
static void kept(qn_job *job)
{
    qn_completion *c = of_job(job);
    c->phase = QN_COMPLETION_RUNNING;
    c->is_kept = 1;
    if (c->keep_status != QN_OK && c->request.background) { /* it is nowhere, so it has failed */
        c->is_kept = 0;
        fail(c, &c->error);
        return;
    }
    if (c->keep_status != QN_OK) {
        qn_api_request_warn(&c->request, "store", c->error.message);
        c->request.store = 0;
        c->error = (qn_api_error){0};
    }
    go_on(c);
}

/* Returns 1 if the answer is being stored, and finish comes again. */
static int begin_keeping(qn_completion *c)
{
    if (c->request.store <= 0 || !c->dialect->keep || c->is_kept) return 0;
    c->phase = QN_COMPLETION_KEEPING;
    c->job = (qn_job){keep, kept, NULL};
    qn_workers_push(c->ex->server->workers, &c->job);
    return 1;
}

static void make_rest(qn_job *job)
{
    qn_completion *c = of_job(job);
    c->keep_status = c->dialect->make_rest(c);
    if (c->keep_status != QN_OK) qn_api_fail_status(&c->error, c->keep_status);
}

static void rest_made(qn_job *job)
{
    qn_completion *c = of_job(job);
    c->phase = QN_COMPLETION_RUNNING;
    c->is_rest_made = 1;
    if (c->keep_status != QN_OK)
        fail(c, &c->error);
    else
        go_on(c);
}

/* Returns 1 if a worker makes the rest of the answer, and finish comes again. */
static int begin_rest(qn_completion *c)
{
    if (c->request.prompt_logprobs < 0 || !c->dialect->make_rest || c->is_rest_made) return 0;
    c->phase = QN_COMPLETION_KEEPING;
    c->job = (qn_job){make_rest, rest_made, NULL};
    qn_workers_push(c->ex->server->workers, &c->job);
    return 1;
}

static void finish(qn_completion *c)
{
    qn_server_metrics *m = &c->ex->server->metrics;
    qn_buf b = {0};
    c->state = QN_ANSWER_ENDED;
    if (begin_rest(c) || begin_keeping(c)) return;
    m->n_prompt_tokens += c->n_prompt_tokens;
    m->n_cached_tokens += c->n_cached_tokens;
    m->n_generated_tokens += c->n_generated_tokens;
    if (c->request.stream) {
        c->dialect->write_end(c, &b);
        send_bytes(c, &b);
        if (c->phase == QN_COMPLETION_RUNNING) qn_exchange_end(c->ex);
    } else {
        c->dialect->write_whole(c, &b);
        if (b.status == QN_OK)
            qn_exchange_reply(c->ex, 200, "application/json", NULL, b.data, b.length);
        else
            fail_status(c, b.status);
    }
    if (c->phase == QN_COMPLETION_RUNNING && c->keeps_said) qn_look_ahead_begin(c);
    begin_closing(c);
    qn_buf_free(&b);
}

/* What a choice has to say now. */
static void send_news(qn_completion *c, qn_completion_choice *choice)
{
    qn_buf b = {0};
    if (c->dialect->write_delta(c, choice, &b)) qn_said_forget(&choice->said);
    if (choice->finish) c->dialect->write_finish(c, choice, &b);
    send_bytes(c, &b);
    qn_buf_free(&b);
}

/* Takes what is ready of all choices, as far as the client keeps up. */
static void poll_all(qn_completion *c)
{
    for (size_t i = 0; i < c->n_choices && c->phase == QN_COMPLETION_RUNNING; i++) {
        qn_completion_choice *choice = &c->choices[i];
        int is_there = 1;
        /* The phase comes first: once the completion is closing, a worker may have freed the choices. */
        while (c->phase == QN_COMPLETION_RUNNING && is_there && !choice->finish &&
               !qn_exchange_is_full(c->ex)) {
            qn_status status = poll_choice(c, choice, &is_there);
            if (status != QN_OK)
                fail_status(c, status);
            else if (is_there && c->request.stream)
                send_news(c, choice);
        }
    }
    if (c->phase == QN_COMPLETION_RUNNING && c->n_running == 0) finish(c);
}

static void look(qn_ready *r)
{
    qn_completion *c = (qn_completion *)(void *)r;
    if (c->phase == QN_COMPLETION_RUNNING) poll_all(c);
}

static void room_again(qn_exchange *ex)
{
    look(ex->state);
}

/* ---- the beginning ------------------------------------------------------------------------------------- */

static void open_all(qn_job *job)
{
    qn_completion *c = of_job(job);
    qn_completion_open(c);
    if (c->error.status || !c->request.background) return;
    const qn_status status = c->dialect->keep(c);
    c->is_stored = status == QN_OK;
    if (status != QN_OK) qn_api_fail_status(&c->error, status);
}

/* The answer is made while its client has what there is of it, and may ask again. */
static void begin_background(qn_completion *c)
{
    qn_server *s = c->ex->server;
    qn_buf b = {0};
    c->next_background = s->background;
    s->background = c;
    c->dialect->write_whole(c, &b);
    if (b.status == QN_OK)
        qn_exchange_reply(c->ex, 200, "application/json", NULL, b.data, b.length);
    else
        fail_status(c, b.status);
    qn_buf_free(&b);
}

static void all_open(qn_job *job)
{
    qn_completion *c = of_job(job);
    if (!qn_exchange_is_awaited(c->ex)) {
        begin_closing(c);
        return;
    }
    if (c->error.status) {
        fail(c, &c->error);
        return;
    }
    c->phase = QN_COMPLETION_RUNNING;
    c->n_running = c->n_choices;
    c->ex->server->n_generating += (int64_t)c->n_choices;
    if (c->request.stream) {
        qn_buf b = {0};
        c->ex->ping = c->dialect->stream_ping;
        qn_exchange_stream(c->ex, c->dialect->stream_type);
        qn_exchange_ping_every(c->ex, c->request.ping_ms);
        for (size_t i = 0; i < c->n_choices && c->phase == QN_COMPLETION_RUNNING; i++) {
            qn_buf_reset(&b);
            c->dialect->write_begin(c, &c->choices[i], &b);
            send_bytes(c, &b);
        }
        qn_buf_free(&b);
    }
    if (c->request.background) begin_background(c);
    if (c->phase == QN_COMPLETION_RUNNING) poll_all(c);
}

void qn_completion_begin(qn_exchange *ex, const qn_dialect *dialect)
{
    qn_api_error error;
    qn_completion *c = qn_calloc(1, sizeof *c);
    if (!c) {
        qn_api_fail_status(&error, QN_E_NOMEM);
        qn_exchange_fail(ex, &error);
        return;
    }
    c->ready.server = ex->server;
    c->ready.look = look;
    c->ex = ex;
    c->slot = -1;
    c->dialect = dialect;
    c->created_s = (int64_t)time(NULL);
    ex->state = c;
    ex->gone = client_gone;
    ex->drained = room_again;
    ex->free_state = free_completion;
    qn_exchange_hold(ex);
    c->job = (qn_job){open_all, all_open, NULL};
    qn_workers_push(ex->server->workers, &c->job);
}
