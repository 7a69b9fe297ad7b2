/* POST /api/chat: lines of a stream, and whole answers. */
#include "base/json/json_write.h"
#include "server/core/write.h"
#include "server/ollama/ollama.h"
#include "server/ollama/request.h"
#include "server/ollama/write.h"

/* {"role": "assistant", "content":, ...; the object stays open. */
static void open_message(qn_buf *out)
{
    qn_json_key(out, "message");
    qn_json_open(out, '{');
    qn_json_put_text(out, "role", "assistant");
}

/* The call that begins at part i. Its arguments are an object, so a call is written when it is whole. */
static void put_call(const qn_said *said, size_t i, qn_buf *out)
{
    const qn_answer_event e = qn_said_get(said, i);
    qn_json_open(out, '{');
    qn_json_put_text(out, "id", e.id);
    qn_json_key(out, "function");
    qn_json_open(out, '{');
    qn_json_put_int(out, "index", e.index);
    qn_json_key(out, "name");
    qn_json_text(out, e.text, e.n);
    qn_write_arguments(out, "arguments", said, e.index);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

/* ---- streams ------------------------------------------------------------------------------------------- */

static void write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    (void)c, (void)choice, (void)out; /* the first line has text */
}

/* Is the call that begins at part i whole? */
static int is_whole(const qn_said *said, size_t i)
{
    const int32_t index = qn_said_get(said, i).index;
    for (size_t k = i + 1; k < qn_said_count(said); k++) {
        const qn_answer_event e = qn_said_get(said, k);
        if (e.kind == QN_ANSWER_CALL_END && e.index == index) return 1;
    }
    return 0;
}

/* A part as a line. */
static void put_part(const qn_completion *c, const qn_completion_choice *choice, size_t i, qn_buf *out)
{
    const qn_answer_event e = qn_said_get(&choice->said, i);
    qn_ollama_open(c, out);
    open_message(out);
    qn_json_key(out, "content");
    qn_json_text(out, e.text, e.kind == QN_ANSWER_CONTENT ? e.n : 0);
    if (e.kind == QN_ANSWER_REASONING) {
        qn_json_key(out, "thinking");
        qn_json_text(out, e.text, e.n);
    }
    if (e.kind == QN_ANSWER_CALL_BEGIN) {
        qn_json_key(out, "tool_calls");
        qn_json_open(out, '[');
        put_call(&choice->said, i, out);
        qn_json_close(out, ']');
    }
    qn_json_close(out, '}');
    qn_ollama_put_logprobs(c, choice, out);
    qn_ollama_close_line(out);
}

/* Up to a call that is not whole. */
static int write_delta(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    const qn_said *said = &choice->said;
    qn_ollama_memory *m = choice->memory;
    for (; m->n_parts < qn_said_count(said); m->n_parts++) {
        const qn_answer_kind kind = qn_said_get(said, m->n_parts).kind;
        if (kind == QN_ANSWER_CALL_BEGIN && !is_whole(said, m->n_parts) && !choice->finish) return 0;
        if (kind != QN_ANSWER_CALL_ARGUMENTS && kind != QN_ANSWER_CALL_END)
            put_part(c, choice, m->n_parts, out);
    }
    return qn_ollama_is_written(choice);
}

static void write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    (void)c, (void)choice, (void)out; /* the last line says why */
}

static void write_end(const qn_completion *c, qn_buf *out)
{
    qn_ollama_open(c, out);
    open_message(out);
    qn_json_put_text(out, "content", "");
    qn_json_close(out, '}');
    if (c->n_choices) qn_ollama_put_logprobs(c, c->choices, out);
    qn_ollama_close_last(c, out);
    qn_buf_putc(out, '\n');
}

/* ---- whole answers ------------------------------------------------------------------------------------- */

static void put_calls(const qn_said *said, qn_buf *out)
{
    if (!qn_said_has(said, QN_ANSWER_CALL_BEGIN)) return;
    qn_json_key(out, "tool_calls");
    qn_json_open(out, '[');
    for (size_t i = 0; i < qn_said_count(said); i++)
        if (qn_said_get(said, i).kind == QN_ANSWER_CALL_BEGIN) put_call(said, i, out);
    qn_json_close(out, ']');
}

static void write_whole(const qn_completion *c, qn_buf *out)
{
    static const qn_said nothing;
    const qn_said *said = c->n_choices ? &c->choices[0].said : &nothing;
    qn_ollama_open(c, out);
    open_message(out);
    qn_write_said(out, "content", said, QN_ANSWER_CONTENT, 0);
    if (qn_said_has(said, QN_ANSWER_REASONING)) qn_write_said(out, "thinking", said, QN_ANSWER_REASONING, 0);
    put_calls(said, out);
    qn_json_close(out, '}');
    if (c->n_choices) qn_ollama_put_logprobs(c, c->choices, out);
    qn_ollama_close_last(c, out);
}

/* ---- the dialect --------------------------------------------------------------------------------------- */

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_ollama_read(text, n, QN_OLLAMA_CHAT, limits, out, error);
}

static const qn_dialect dialect = {.read = read_body,
                                   .read_messages = qn_ollama_read_messages,
                                   .prompt_field = "messages",
                                   .choice_bytes = sizeof(qn_ollama_memory),
                                   .stream_type = QN_STREAM_LINES,
                                   .write_whole = write_whole,
                                   .write_begin = write_begin,
                                   .write_delta = write_delta,
                                   .write_finish = write_finish,
                                   .write_end = write_end};

void qn_route_ollama_chat(qn_exchange *ex)
{
    qn_completion_begin(ex, &dialect);
}
