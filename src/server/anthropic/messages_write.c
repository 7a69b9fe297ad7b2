/* The JSON of /v1/messages: events of a stream, and whole answers. An answer is a list of blocks: each run of
 * text, of thinking, and each call is one. */
#include <string.h>

#include "base/json/json_write.h"
#include "server/anthropic/anthropic.h"
#include "server/anthropic/request.h"
#include "server/core/prefix_pins.h"
#include "server/core/write.h"

/* Thinking comes back with its signature. Nothing is checked by it here, but clients leave out thinking that has
 * none. */
static const char signature[] = "quern";

/* What is remembered of a choice. */
typedef struct {
    int64_t n_blocks; /* that were begun */
    int is_open;      /* the last of them, which is of this kind */
    qn_answer_kind kind;
} memory;

/* ---- parts of both ------------------------------------------------------------------------------------- */

/* Tokens of the prompt as they are known so far. What is not read from the cache is written to it up to the last mark, and
 * input behind it. */
static void put_usage(const qn_completion *c, int64_t n_prompt, int64_t n_generated, qn_buf *out)
{
    enum { HOUR_MS = 3600000 };
    const int64_t n_written = qn_prefix_pins_written(c, 0), n_hour = qn_prefix_pins_written(c, HOUR_MS);
    qn_json_key(out, "usage");
    qn_json_open(out, '{');
    qn_json_put_int(out, "input_tokens", n_prompt - c->n_cached_tokens - n_written);
    qn_json_put_int(out, "cache_creation_input_tokens", n_written);
    qn_json_put_int(out, "cache_read_input_tokens", c->n_cached_tokens);
    qn_json_key(out, "cache_creation");
    qn_json_open(out, '{');
    qn_json_put_int(out, "ephemeral_5m_input_tokens", n_written - n_hour);
    qn_json_put_int(out, "ephemeral_1h_input_tokens", n_hour);
    qn_json_close(out, '}');
    qn_json_put_int(out, "output_tokens", n_generated);
    qn_json_key(out, "output_tokens_details");
    qn_json_open(out, '{');
    qn_json_put_int(out, "thinking_tokens", c->n_reasoning_tokens);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

static void put_head(const qn_completion *c, qn_buf *out)
{
    static const char own[] = "req_";
    qn_json_key(out, "id");
    qn_buf_printf(out, "\"msg_%s\"", c->ex->id + sizeof own - 1);
    qn_json_put_text(out, "type", "message");
    qn_json_put_text(out, "role", "assistant");
    qn_json_put_text(out, "model", c->model.data);
}

static void put_stop(const qn_completion_choice *choice, qn_buf *out)
{
    /* A stop string may have cut a call, which nobody should run then. */
    const int is_string = choice->end == QN_END_STOP_STRING;
    qn_json_put_text(out, "stop_reason",
                     is_string                            ? "stop_sequence"
                     : choice->finish == QN_FINISH_LENGTH ? "max_tokens"
                     : choice->finish == QN_FINISH_CALLS  ? "tool_use"
                                                          : "end_turn");
    if (is_string && choice->stop_string)
        qn_json_put_text(out, "stop_sequence", choice->stop_string);
    else
        qn_write_null(out, "stop_sequence");
}

/* ---- streams ------------------------------------------------------------------------------------------- */

/* "event: TYPE", and its data up to behind "type". */
static void open_event(const char *type, qn_buf *out)
{
    qn_buf_printf(out, "event: %s\ndata: {", type);
    qn_json_put_text(out, "type", type);
}

static void close_event(qn_buf *out)
{
    qn_buf_puts(out, "}\n\n");
}

static void write_ping(qn_buf *out)
{
    open_event("ping", out);
    close_event(out);
}

static void write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    qn_generation_stats stats = {0};
    /* The length of the prompt is known at once, what the cache has of it is not. */
    if (qn_generation_get_stats(choice->generation, &stats) != QN_OK) stats.n_prompt_tokens = 0;
    open_event("message_start", out);
    qn_json_key(out, "message");
    qn_json_open(out, '{');
    put_head(c, out);
    qn_json_key(out, "content");
    qn_buf_puts(out, "[]");
    qn_write_null(out, "stop_reason");
    qn_write_null(out, "stop_sequence");
    put_usage(c, stats.n_prompt_tokens, 0, out);
    qn_json_close(out, '}');
    close_event(out);
    write_ping(out);
}

static void open_block_event(const char *type, int64_t index, qn_buf *out)
{
    open_event(type, out);
    qn_json_put_int(out, "index", index);
}

static void open_delta(const memory *m, const char *type, qn_buf *out)
{
    open_block_event("content_block_delta", m->n_blocks - 1, out);
    qn_json_key(out, "delta");
    qn_json_open(out, '{');
    qn_json_put_text(out, "type", type);
}

static void close_delta(qn_buf *out)
{
    qn_json_close(out, '}');
    close_event(out);
}

static void stop_block(memory *m, qn_buf *out)
{
    if (!m->is_open) return;
    if (m->kind == QN_ANSWER_REASONING) {
        open_delta(m, "signature_delta", out);
        qn_json_put_text(out, "signature", signature);
        close_delta(out);
    }
    open_block_event("content_block_stop", m->n_blocks - 1, out);
    close_event(out);
    m->is_open = 0;
}

/* Begins the block that the part goes into, unless that is the open one. */
static void start_block(memory *m, const qn_answer_event *e, qn_buf *out)
{
    const int is_call = e->kind == QN_ANSWER_CALL_BEGIN;
    if (m->is_open && m->kind == e->kind && !is_call) return;
    stop_block(m, out);
    m->is_open = 1;
    m->kind = e->kind;
    open_block_event("content_block_start", m->n_blocks++, out);
    qn_json_key(out, "content_block");
    qn_json_open(out, '{');
    if (is_call) {
        qn_json_put_text(out, "type", "tool_use");
        qn_json_put_text(out, "id", e->id);
        qn_json_key(out, "name");
        qn_json_text(out, e->text, e->n);
        qn_json_key(out, "input");
        qn_buf_puts(out, "{}");
    } else if (e->kind == QN_ANSWER_REASONING) {
        qn_json_put_text(out, "type", "thinking");
        qn_json_put_text(out, "thinking", "");
        qn_json_put_text(out, "signature", "");
    } else {
        qn_json_put_text(out, "type", "text");
        qn_json_put_text(out, "text", "");
    }
    qn_json_close(out, '}');
    close_event(out);
}

static void put_delta(const memory *m, const char *type, const char *key, const qn_answer_event *e,
                      qn_buf *out)
{
    open_delta(m, type, out);
    qn_json_key(out, key);
    qn_json_text(out, e->text, e->n);
    close_delta(out);
}

static int write_delta(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    memory *m = choice->memory;
    (void)c;
    for (size_t i = 0; i < qn_said_count(&choice->said); i++) {
        const qn_answer_event e = qn_said_get(&choice->said, i);
        switch (e.kind) {
        case QN_ANSWER_CONTENT:
            start_block(m, &e, out);
            put_delta(m, "text_delta", "text", &e, out);
            break;
        case QN_ANSWER_REASONING:
            start_block(m, &e, out);
            put_delta(m, "thinking_delta", "thinking", &e, out);
            break;
        case QN_ANSWER_CALL_BEGIN:
            start_block(m, &e, out);
            break;
        case QN_ANSWER_CALL_ARGUMENTS:
            put_delta(m, "input_json_delta", "partial_json", &e, out);
            break;
        case QN_ANSWER_CALL_END:
            stop_block(m, out);
            break;
        }
    }
    return 1;
}

static void write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    stop_block(choice->memory, out);
    open_event("message_delta", out);
    qn_json_key(out, "delta");
    qn_json_open(out, '{');
    put_stop(choice, out);
    qn_json_close(out, '}');
    put_usage(c, c->n_prompt_tokens, c->n_generated_tokens, out);
    close_event(out);
}

static void write_end(const qn_completion *c, qn_buf *out)
{
    open_event("message_stop", out);
    qn_write_warnings(&c->request, out);
    close_event(out);
}

/* ---- whole answers ------------------------------------------------------------------------------------- */

static void put_block(const qn_said *said, const qn_answer_event *e, qn_buf *out)
{
    qn_json_open(out, '{');
    if (e->kind == QN_ANSWER_CALL_BEGIN) {
        qn_json_put_text(out, "type", "tool_use");
        qn_json_put_text(out, "id", e->id);
        qn_json_key(out, "name");
        qn_json_text(out, e->text, e->n);
        qn_write_arguments(out, "input", said, e->index);
    } else {
        const char *key = e->kind == QN_ANSWER_REASONING ? "thinking" : "text";
        qn_json_put_text(out, "type", key);
        qn_json_key(out, key);
        qn_json_text(out, e->text, e->n);
        if (e->kind == QN_ANSWER_REASONING) qn_json_put_text(out, "signature", signature);
    }
    qn_json_close(out, '}');
}

static void write_whole(const qn_completion *c, qn_buf *out)
{
    const qn_said *said = &c->choices[0].said;
    qn_json_open(out, '{');
    put_head(c, out);
    qn_json_key(out, "content");
    qn_json_open(out, '[');
    for (size_t i = 0; i < qn_said_count(said); i++) {
        const qn_answer_event e = qn_said_get(said, i);
        if (e.kind != QN_ANSWER_CALL_ARGUMENTS && e.kind != QN_ANSWER_CALL_END) put_block(said, &e, out);
    }
    qn_json_close(out, ']');
    put_stop(&c->choices[0], out);
    put_usage(c, c->n_prompt_tokens, c->n_generated_tokens, out);
    qn_write_warnings(&c->request, out);
    qn_json_close(out, '}');
}

/* ---- the routes ---------------------------------------------------------------------------------------- */

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_anthropic_read(text, n, QN_ANTHROPIC_MESSAGES, limits, out, error);
}

static const qn_dialect dialect = {.read = read_body,
                                   .read_messages = qn_anthropic_read_messages,
                                   .prompt_field = "messages",
                                   .choice_bytes = sizeof(memory),
                                   .stream_type = QN_STREAM_EVENTS,
                                   .stream_ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                   .write_whole = write_whole,
                                   .write_begin = write_begin,
                                   .write_delta = write_delta,
                                   .write_finish = write_finish,
                                   .write_end = write_end};

void qn_route_messages(qn_exchange *ex)
{
    qn_completion_begin(ex, &dialect);
}
