/* The JSON of /v1/chat/completions: chunks of a stream, and whole answers. */
#include "base/json/json_write.h"
#include "server/openai/openai.h"
#include "server/openai/request.h"
#include "server/openai/write.h"

static const char prefix[] = "chatcmpl-", chunk[] = "chat.completion.chunk";

/* ---- log-probabilities --------------------------------------------------------------------------------- */

static void put_logprobs(const qn_completion *c, const qn_said *said, qn_buf *b)
{
    qn_json_key(b, "logprobs");
    qn_json_open(b, '{');
    qn_json_key(b, "content");
    qn_write_tokens(c->ex->server->model, said, 0, 0, b);
    qn_write_null(b, "refusal");
    qn_json_close(b, '}');
}

/* ---- streams ------------------------------------------------------------------------------------------- */

/* A chunk up to its delta. */
static void open_chunk(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    qn_openai_open_event(c, prefix, chunk, out);
    qn_openai_open_choice(choice, out);
    qn_json_key(out, "delta");
}

/* tokens: what the choice has said, whose log-probabilities and ids go with this chunk; NULL: none. */
static void close_chunk(const qn_completion *c, const qn_completion_choice *choice, const qn_said *tokens,
                        qn_buf *out)
{
    const int has_tokens = tokens && qn_said_count_tokens(tokens);
    if (has_tokens && c->request.logprobs)
        put_logprobs(c, tokens, out);
    else
        qn_write_null(out, "logprobs");
    if (has_tokens) qn_openai_put_ids(c, tokens, out);
    qn_openai_close_choice(c, choice, 0, out);
    qn_openai_close_event(out);
}

static void write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    open_chunk(c, choice, out);
    qn_buf_puts(out, "{\"role\":\"assistant\",\"content\":\"\"}");
    qn_write_null(out, "logprobs");
    qn_openai_close_choice(c, choice, 0, out);
    if (choice->index == 0) qn_openai_put_prompt_ids(c, choice, out);
    qn_openai_close_event(out);
}

/* llama.cpp's, with return_progress: a chunk that says nothing. */
static void write_progress(const qn_completion *c, const qn_completion_choice *choice,
                           const qn_prompt_progress *progress, qn_buf *out)
{
    open_chunk(c, choice, out);
    qn_buf_puts(out, "{}");
    qn_write_null(out, "logprobs");
    qn_openai_close_choice(c, choice, 0, out);
    qn_write_progress(progress, out);
    qn_openai_close_event(out);
}

/* {"tool_calls": [one object]}. The first object of a call has no arguments yet: programs that follow
 * OpenAI's guide add those of the first object to itself. */
static void put_call_delta(const qn_answer_event *e, qn_buf *out)
{
    qn_buf_puts(out, "{\"tool_calls\":[{");
    qn_json_put_int(out, "index", e->index);
    if (e->kind == QN_ANSWER_CALL_BEGIN) {
        qn_json_put_text(out, "id", e->id);
        qn_json_put_text(out, "type", "function");
    }
    qn_json_key(out, "function");
    qn_json_open(out, '{');
    if (e->kind == QN_ANSWER_CALL_BEGIN) {
        qn_json_key(out, "name");
        qn_json_text(out, e->text, e->n);
        qn_json_put_text(out, "arguments", "");
    } else {
        qn_json_key(out, "arguments");
        qn_json_text(out, e->text, e->n);
    }
    qn_buf_puts(out, "}}]}");
}

static void put_text_delta(const qn_said *said, qn_buf *out)
{
    qn_json_open(out, '{');
    if (qn_said_has(said, QN_ANSWER_REASONING))
        qn_write_said(out, "reasoning_content", said, QN_ANSWER_REASONING, 0);
    if (qn_said_has(said, QN_ANSWER_CONTENT)) qn_write_said(out, "content", said, QN_ANSWER_CONTENT, 0);
    qn_json_close(out, '}');
}

/* Text goes before calls, and one object of a call to a chunk. Log-probabilities go with the first chunk; if
 * there is nothing that they can go with, they wait. */
static int write_delta(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    const qn_said *said = &choice->said, *tokens = said;
    const int has_text = qn_said_has(said, QN_ANSWER_CONTENT) || qn_said_has(said, QN_ANSWER_REASONING),
              has_calls =
                  qn_said_has(said, QN_ANSWER_CALL_BEGIN) || qn_said_has(said, QN_ANSWER_CALL_ARGUMENTS),
              has_rest = choice->finish && qn_said_count_tokens(said);
    if (has_text || (has_rest && !has_calls)) {
        open_chunk(c, choice, out);
        put_text_delta(said, out);
        close_chunk(c, choice, tokens, out);
        tokens = NULL;
    }
    for (size_t i = 0; i < qn_said_count(said); i++) {
        const qn_answer_event e = qn_said_get(said, i);
        if (e.kind != QN_ANSWER_CALL_BEGIN && e.kind != QN_ANSWER_CALL_ARGUMENTS) continue;
        open_chunk(c, choice, out);
        put_call_delta(&e, out);
        close_chunk(c, choice, tokens, out);
        tokens = NULL;
    }
    return !tokens;
}

/* The reason and nothing else: clients stop reading there. */
static void write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    open_chunk(c, choice, out);
    qn_buf_puts(out, "{}");
    qn_write_null(out, "logprobs");
    qn_openai_close_choice(c, choice, 1, out);
    qn_openai_close_event(out);
}

static void write_end(const qn_completion *c, qn_buf *out)
{
    qn_openai_write_end(c, prefix, chunk, out);
}

/* ---- whole answers ------------------------------------------------------------------------------------- */

static void put_calls(const qn_said *said, qn_buf *b)
{
    qn_json_key(b, "tool_calls");
    qn_json_open(b, '[');
    for (size_t i = 0; i < qn_said_count(said); i++) {
        const qn_answer_event e = qn_said_get(said, i);
        if (e.kind != QN_ANSWER_CALL_BEGIN) continue;
        qn_json_open(b, '{');
        qn_json_put_text(b, "id", e.id);
        qn_json_put_text(b, "type", "function");
        qn_json_key(b, "function");
        qn_json_open(b, '{');
        qn_json_key(b, "name");
        qn_json_text(b, e.text, e.n);
        qn_write_said(b, "arguments", said, QN_ANSWER_CALL_ARGUMENTS, e.index);
        qn_json_close(b, '}');
        qn_json_close(b, '}');
    }
    qn_json_close(b, ']');
}

static void put_choice(const qn_completion *c, const qn_completion_choice *choice, qn_buf *b)
{
    const qn_said *said = &choice->said;
    const int has_calls = qn_said_has(said, QN_ANSWER_CALL_BEGIN);
    qn_json_open(b, '{');
    qn_json_put_int(b, "index", choice->index);
    qn_json_key(b, "message");
    qn_json_open(b, '{');
    qn_json_put_text(b, "role", "assistant");
    if (has_calls && !qn_said_has(said, QN_ANSWER_CONTENT))
        qn_write_null(b, "content");
    else
        qn_write_said(b, "content", said, QN_ANSWER_CONTENT, 0);
    if (qn_said_has(said, QN_ANSWER_REASONING))
        qn_write_said(b, "reasoning_content", said, QN_ANSWER_REASONING, 0);
    if (has_calls) put_calls(said, b);
    qn_write_null(b, "refusal");
    qn_json_close(b, '}');
    if (c->request.logprobs)
        put_logprobs(c, said, b);
    else
        qn_write_null(b, "logprobs");
    qn_openai_put_ids(c, said, b);
    qn_openai_put_finish(c, choice, b);
    qn_json_close(b, '}');
}

static void write_whole(const qn_completion *c, qn_buf *out)
{
    qn_openai_open(c, prefix, "chat.completion", out);
    qn_json_key(out, "choices");
    qn_json_open(out, '[');
    for (size_t i = 0; i < c->n_choices; i++) put_choice(c, &c->choices[i], out);
    qn_json_close(out, ']');
    if (c->n_choices) qn_openai_put_prompt_ids(c, &c->choices[0], out);
    if (c->n_choices) qn_openai_put_prompt_logprobs(c, &c->choices[0], out);
    qn_openai_put_usage(c, out);
    if (c->n_choices) qn_openai_put_timings(c, &c->choices[0], out);
    qn_write_warnings(&c->request, out);
    qn_json_close(out, '}');
}

/* ---- the dialect --------------------------------------------------------------------------------------- */

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_api_request_read(text, n, QN_REQUEST_CHAT, limits, out, error);
}

static const qn_dialect dialect = {.read = read_body,
                                   .read_messages = qn_api_request_read_messages,
                                   .prompt_field = "messages",
                                   .make_rest = qn_openai_make_rest,
                                   .stream_type = QN_STREAM_EVENTS,
                                   .write_whole = write_whole,
                                   .write_begin = write_begin,
                                   .write_delta = write_delta,
                                   .write_progress = write_progress,
                                   .write_finish = write_finish,
                                   .write_end = write_end};

void qn_route_chat(qn_exchange *ex)
{
    qn_completion_begin(ex, &dialect);
}
