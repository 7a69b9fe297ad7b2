#include "server/core/completion.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json/json_write.h"
#include "base/mem.h"
#include "server/core/look_ahead.h"
#include "server/openai/openai.h"
#include "text/tools/call_ids.h"

/* ---- the end ------------------------------------------------------------------------------------------- */

static void free_choice(qn_completion_choice *choice)
{
    qn_generation_close(choice->generation);
    qn_answer_free(choice->answer);
    qn_buf_free(&choice->text);
    qn_buf_free(&choice->reasoning);
    qn_buf_free(&choice->calls);
    qn_buf_free(&choice->arguments);
    qn_buf_free(&choice->logprobs);
    qn_buf_free(&choice->values);
    qn_buf_free(&choice->tops);
    qn_buf_free(&choice->offsets);
}

static qn_completion *of_job(qn_job *job)
{
    return (qn_completion *)(void *)((char *)job - offsetof(qn_completion, job));
}

/* On a worker: closing may wait for the step that is under way. */
static void close_all(qn_job *job)
{
    qn_completion *c = of_job(job);
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
    qn_exchange_release(c->ex);
}

void qn_said_free(qn_said *said)
{
    qn_buf_free(&said->content);
    qn_buf_free(&said->calls);
    qn_buf_free(&said->arguments);
    qn_buf_free(&said->ids);
}

static void free_completion(qn_exchange *ex)
{
    qn_completion *c = ex->state;
    qn_said_free(&c->said);
    qn_request_free(&c->request);
    qn_buf_free(&c->model);
    qn_buf_free(&c->salt);
    qn_buf_free(&c->tenant);
    qn_free(c);
}

static void begin_closing(qn_completion *c)
{
    if (c->phase == QN_COMPLETION_CLOSING) return;
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

static void fail(qn_completion *c, const qn_api_error *error)
{
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

/* A call as whole answers and messages have it: an object, closed when its arguments are there. */
static void take_call(const qn_answer_event *e, const char *id, qn_buf *calls, qn_buf *arguments)
{
    switch (e->kind) {
    case QN_ANSWER_CALL_BEGIN:
        qn_json_open(calls, '{');
        qn_json_put_text(calls, "id", id);
        qn_json_put_text(calls, "type", "function");
        qn_json_key(calls, "function");
        qn_json_open(calls, '{');
        qn_json_key(calls, "name");
        qn_json_text(calls, e->text, e->n);
        qn_json_key(calls, "arguments");
        qn_buf_reset(arguments);
        break;
    case QN_ANSWER_CALL_ARGUMENTS:
        qn_buf_append(arguments, e->text, e->n);
        break;
    default:
        qn_json_text(calls, arguments->data ? arguments->data : "", arguments->length);
        qn_buf_puts(calls, "}}");
        if (arguments->status != QN_OK) calls->status = arguments->status;
    }
}

/* The same of a stream, a line for each object; arguments wait until something is sent. The first object of a
 * call has no arguments yet: programs that follow OpenAI's guide add those of the first object to itself. */
static void take_call_delta(const qn_answer_event *e, const char *id, qn_completion_choice *choice)
{
    qn_buf *calls = &choice->calls;
    choice->call_index = e->index;
    if (e->kind == QN_ANSWER_CALL_ARGUMENTS) {
        qn_buf_append(&choice->arguments, e->text, e->n);
        return;
    }
    qn_completion_end_piece(choice);
    if (e->kind == QN_ANSWER_CALL_END) return;
    qn_completion_open_call(choice);
    qn_json_put_text(calls, "id", id);
    qn_json_put_text(calls, "type", "function");
    qn_json_key(calls, "function");
    qn_json_open(calls, '{');
    qn_json_key(calls, "name");
    qn_json_text(calls, e->text, e->n);
    qn_json_put_text(calls, "arguments", "");
    qn_buf_puts(calls, "}}\n");
}

static void take_event(qn_completion *c, qn_completion_choice *choice, const qn_answer_event *e,
                       qn_said *said)
{
    char own_id[QN_CALL_ID_BYTES_MAX];
    const char *id = e->id && e->id[0] ? e->id : own_id;
    switch (e->kind) {
    case QN_ANSWER_CONTENT:
        qn_buf_append(&choice->text, e->text, e->n);
        if (said) qn_buf_append(&said->content, e->text, e->n);
        return;
    case QN_ANSWER_REASONING:
        qn_buf_append(&choice->reasoning, e->text, e->n);
        return;
    case QN_ANSWER_CALL_BEGIN:
    case QN_ANSWER_CALL_ARGUMENTS:
    case QN_ANSWER_CALL_END:
        qn_call_id_write(c->ex->server->traits.ids, c->ex->number, choice->index, e->index, own_id);
        choice->n_calls += e->kind == QN_ANSWER_CALL_BEGIN;
        if (c->request.stream)
            take_call_delta(e, id, choice);
        else
            take_call(e, id, &choice->calls, &choice->arguments);
        if (said) take_call(e, id, &said->calls, &said->arguments);
        if (e->kind == QN_ANSWER_CALL_END && c->request.one_tool_call) choice->is_cut = 1;
    }
}

/* Where what a choice says is kept whole; NULL: it is not. */
static qn_said *said_of(qn_completion *c, const qn_completion_choice *choice)
{
    return c->keeps_said && choice->index == 0 ? &c->said : NULL;
}

/* The next text of a choice; is_end: its last. */
static qn_status take_text(qn_completion *c, qn_completion_choice *choice, const char *text, size_t n,
                           int is_end)
{
    qn_said *said = said_of(c, choice);
    if (choice->is_cut) return QN_OK;
    if (!choice->answer) {
        qn_buf_append(&choice->text, text, n);
        if (said) qn_buf_append(&said->content, text, n);
        return choice->text.status;
    }
    for (int last = 0; last <= is_end; last++) {
        size_t n_events;
        QN_TRY(last ? qn_answer_finish(choice->answer) : qn_answer_feed(choice->answer, text, n));
        const qn_answer_event *events = qn_answer_get_events(choice->answer, &n_events);
        for (size_t i = 0; i < n_events && !choice->is_cut; i++) take_event(c, choice, &events[i], said);
    }
    const qn_buf *written[] = {&choice->text, &choice->reasoning, &choice->calls, &choice->arguments};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (written[i]->status != QN_OK) return written[i]->status;
    return QN_OK;
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

static void note_end(qn_completion *c, qn_completion_choice *choice, qn_end end)
{
    qn_generation_stats stats;
    choice->finish = choice->is_cut                                   ? "tool_calls"
                     : end == QN_END_LENGTH || end == QN_END_DEADLINE ? "length"
                     : choice->n_calls                                ? "tool_calls"
                                                                      : "stop";
    c->n_running--;
    if (qn_generation_get_stats(choice->generation, &stats) != QN_OK) return;
    qn_histogram_add(&c->ex->server->metrics.queue, stats.queue_ms * 1e-3);
    /* The choices of one prompt share it. */
    if (choice->index % c->request.n == 0) {
        c->n_prompt_tokens += stats.n_prompt_tokens;
        c->n_cached_tokens += stats.n_cached_tokens;
    }
    c->n_generated_tokens += stats.n_generated_tokens;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

/* One event of a choice. Returns QN_OK and *is_there 0 when there is none yet. */
static qn_status poll_choice(qn_completion *c, qn_completion_choice *choice, int *is_there)
{
    qn_token token;
    QN_TRY(qn_generation_poll(choice->generation, &token, is_there));
    if (!*is_there) return QN_OK;
    if (token.end == QN_END_CANCELLED && !choice->is_cut)
        return qn_fail(QN_E_CANCELLED, "the request was cancelled");
    if (token.id >= 0) {
        qn_said *said = said_of(c, choice);
        note_token(c, choice);
        if (said) qn_buf_append(&said->ids, &token.id, sizeof token.id);
        if (c->request.logprobs && !choice->is_cut) qn_completion_keep_logprobs(c, choice, &token);
    }
    QN_TRY(take_text(c, choice, token.text, token.text_bytes, token.end != QN_END_NONE));
    if (choice->is_cut && token.end == QN_END_NONE) qn_generation_cancel(choice->generation);
    if (token.end != QN_END_NONE) note_end(c, choice, token.end);
    return QN_OK;
}

static void send_event(qn_completion *c, const qn_buf *event)
{
    if (event->status == QN_OK)
        qn_exchange_send(c->ex, event->data, event->length);
    else
        fail_status(c, event->status);
}

static void finish(qn_completion *c)
{
    qn_server_metrics *m = &c->ex->server->metrics;
    qn_buf b = {0};
    m->n_prompt_tokens += c->n_prompt_tokens;
    m->n_cached_tokens += c->n_cached_tokens;
    m->n_generated_tokens += c->n_generated_tokens;
    if (c->request.stream) {
        if (c->request.include_usage) {
            qn_completion_write_usage(c, &b);
            send_event(c, &b);
        }
        if (c->phase == QN_COMPLETION_RUNNING) {
            qn_exchange_send(c->ex, "[DONE]", 6);
            qn_exchange_end(c->ex);
        }
    } else {
        qn_completion_write_whole(c, &b);
        if (b.status == QN_OK)
            qn_exchange_reply(c->ex, 200, "application/json", NULL, b.data, b.length);
        else
            fail_status(c, b.status);
    }
    if (c->phase == QN_COMPLETION_RUNNING && c->keeps_said) qn_look_ahead_begin(c);
    begin_closing(c);
    qn_buf_free(&b);
}

/* What a choice has to say now. The last event says its reason and nothing else: clients stop reading there.
 */
static void send_news(qn_completion *c, qn_completion_choice *choice)
{
    qn_buf b = {0};
    while (c->phase == QN_COMPLETION_RUNNING && qn_completion_write_delta(c, choice, &b)) {
        send_event(c, &b);
        qn_buf_reset(&b);
    }
    if (choice->finish && c->phase == QN_COMPLETION_RUNNING) {
        qn_completion_write_finish(c, choice, &b);
        send_event(c, &b);
    }
    qn_buf_free(&b);
}

/* Takes what is ready of all choices, as far as the client keeps up. */
static void poll_all(qn_completion *c)
{
    for (size_t i = 0; i < c->n_choices && c->phase == QN_COMPLETION_RUNNING; i++) {
        qn_completion_choice *choice = &c->choices[i];
        int is_there = 1;
        while (is_there && !choice->finish && c->phase == QN_COMPLETION_RUNNING &&
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
    qn_completion_open(of_job(job));
}

static void all_open(qn_job *job)
{
    qn_completion *c = of_job(job);
    if (!c->ex->connection) {
        begin_closing(c);
        return;
    }
    if (c->error.status) {
        fail(c, &c->error);
        return;
    }
    c->phase = QN_COMPLETION_RUNNING;
    c->n_running = c->n_choices;
    if (c->request.stream) {
        qn_buf b = {0};
        qn_exchange_stream(c->ex);
        qn_exchange_ping_every(c->ex, c->request.ping_ms);
        for (size_t i = 0; i < c->n_choices && c->phase == QN_COMPLETION_RUNNING; i++) {
            qn_buf_reset(&b);
            qn_completion_write_begin(c, &c->choices[i], &b);
            send_event(c, &b);
        }
        qn_buf_free(&b);
    }
    if (c->phase == QN_COMPLETION_RUNNING) poll_all(c);
}

void qn_completion_begin(qn_exchange *ex, unsigned route)
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
    c->request.route = route;
    c->created_s = (int64_t)time(NULL);
    snprintf(c->id, sizeof c->id, "%s%s", route == QN_REQUEST_CHAT ? "chatcmpl-" : "cmpl-", ex->id + 4);
    ex->state = c;
    ex->gone = client_gone;
    ex->drained = room_again;
    ex->free_state = free_completion;
    qn_exchange_hold(ex);
    c->job = (qn_job){open_all, all_open, NULL};
    qn_workers_push(ex->server->workers, &c->job);
}

void qn_route_chat(qn_exchange *ex)
{
    qn_completion_begin(ex, QN_REQUEST_CHAT);
}

void qn_route_completions(qn_exchange *ex)
{
    qn_completion_begin(ex, QN_REQUEST_COMPLETIONS);
}
