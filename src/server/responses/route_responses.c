/* POST /v1/responses: events of a stream, and whole answers. Events have the whole text of an item at its end,
 * so what was said is kept until the answer has ended: write_delta never gives it up, and remembers how far it
 * has come. */
#include <string.h>

#include "base/json/json_write.h"
#include "server/responses/request.h"
#include "server/responses/responses.h"
#include "server/responses/stored.h"
#include "server/responses/write.h"

/* What is remembered of the choice. */
typedef struct {
    int64_t sequence; /* of the next event */
    size_t i_part;    /* that is not yet written to its end */
    size_t n_done;    /* bytes of it that are */
    int is_open;      /* an item is, of these */
    size_t i_first;   /* its first part */
    int64_t index;    /* of it, or of the next one */
} memory;

/* ---- events -------------------------------------------------------------------------------------------- */

/* "event: TYPE", and its data up to behind "sequence_number". */
static void open_event(memory *m, const char *type, qn_buf *out)
{
    qn_buf_printf(out, "event: %s\ndata: {", type);
    qn_json_put_text(out, "type", type);
    qn_json_put_int(out, "sequence_number", m->sequence++);
}

static void close_event(qn_buf *out)
{
    qn_buf_puts(out, "}\n\n");
}

/* llama.cpp's, with timings_per_token. */
static void put_timings(const qn_completion *c, qn_buf *out)
{
    qn_generation_stats stats;
    if (c->request.wants_timings && c->choices[0].n_tokens &&
        qn_generation_get_stats(c->choices[0].generation, &stats) == QN_OK)
        qn_write_timings(&stats, out);
}

static void put_response(const qn_completion *c, const char *type, qn_buf *out)
{
    open_event(c->choices[0].memory, type, out);
    qn_json_key(out, "response");
    qn_response_write(c, out);
    put_timings(c, out);
    close_event(out);
}

static qn_response_item open_item(const qn_completion *c, const memory *m)
{
    return (qn_response_item){qn_said_get(&c->choices[0].said, m->i_first), m->i_first, m->index};
}

/* An event about the open item, up to behind its place. */
static void open_item_event(const qn_completion *c, memory *m, const char *type, int has_content, qn_buf *out)
{
    const qn_response_item item = open_item(c, m);
    open_event(m, type, out);
    qn_response_put_id(c, "item_id", &item, out);
    qn_json_put_int(out, "output_index", m->index);
    if (has_content) qn_json_put_int(out, "content_index", 0);
}

static void put_item(const qn_completion *c, memory *m, const char *type, const char *status, qn_buf *out)
{
    const qn_response_item item = open_item(c, m);
    open_event(m, type, out);
    qn_json_put_int(out, "output_index", m->index);
    qn_json_key(out, "item");
    qn_response_write_item(c, &item, status, out);
    close_event(out);
}

static void put_part(const qn_completion *c, memory *m, const char *type, const qn_answer_event *e,
                     int has_text, qn_buf *out)
{
    open_item_event(c, m, type, 1, out);
    qn_json_key(out, "part");
    qn_response_write_part(e->kind, has_text ? e->text : "", has_text ? e->n : 0, out);
    close_event(out);
}

/* ---- items --------------------------------------------------------------------------------------------- */

static void begin_item(const qn_completion *c, memory *m, const qn_answer_event *e, qn_buf *out)
{
    m->is_open = 1;
    m->i_first = m->i_part;
    put_item(c, m, "response.output_item.added", "in_progress", out);
    if (e->kind != QN_ANSWER_CALL_BEGIN) put_part(c, m, "response.content_part.added", e, 0, out);
}

static void end_item(const qn_completion *c, memory *m, qn_buf *out)
{
    if (!m->is_open) return;
    const qn_response_item item = open_item(c, m);
    const qn_answer_event *e = &item.first;
    if (e->kind == QN_ANSWER_CALL_BEGIN) {
        open_item_event(c, m, "response.function_call_arguments.done", 0, out);
        qn_json_key(out, "name");
        qn_json_text(out, e->text, e->n);
        qn_write_said(out, "arguments", &c->choices[0].said, QN_ANSWER_CALL_ARGUMENTS, e->index);
        close_event(out);
    } else {
        const int is_text = e->kind == QN_ANSWER_CONTENT;
        open_item_event(c, m, is_text ? "response.output_text.done" : "response.reasoning_text.done", 1, out);
        qn_json_key(out, "text");
        qn_json_text(out, e->text, e->n);
        if (is_text) qn_buf_puts(out, ",\"logprobs\":[]");
        close_event(out);
        put_part(c, m, "response.content_part.done", e, 1, out);
    }
    put_item(c, m, "response.output_item.done", qn_response_item_status(c, &item), out);
    m->is_open = 0;
    m->index++;
}

/* What a part has that was not written yet. */
static void put_delta(const qn_completion *c, memory *m, const qn_answer_event *e, qn_buf *out)
{
    const int is_call = e->kind == QN_ANSWER_CALL_ARGUMENTS, is_text = e->kind == QN_ANSWER_CONTENT;
    if (e->n <= m->n_done) return;
    open_item_event(c, m,
                    is_call   ? "response.function_call_arguments.delta"
                    : is_text ? "response.output_text.delta"
                              : "response.reasoning_text.delta",
                    !is_call, out);
    qn_json_key(out, "delta");
    qn_json_text(out, e->text + m->n_done, e->n - m->n_done);
    if (is_text) qn_buf_puts(out, ",\"logprobs\":[]");
    put_timings(c, out);
    close_event(out);
    m->n_done = e->n;
}

/* ---- streams ------------------------------------------------------------------------------------------- */

static void write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    (void)choice;
    put_response(c, "response.created", out);
    put_response(c, "response.in_progress", out);
}

/* llama.cpp's, with return_progress: once more that the response is in progress. */
static void write_progress(const qn_completion *c, const qn_completion_choice *choice,
                           const qn_prompt_progress *progress, qn_buf *out)
{
    open_event(choice->memory, "response.in_progress", out);
    qn_json_key(out, "response");
    qn_response_write(c, out);
    qn_write_progress(progress, out);
    close_event(out);
}

/* The last part may grow, unless it is an edge of a call. */
static int write_delta(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    memory *m = choice->memory;
    const size_t n = qn_said_count(&choice->said);
    for (; m->i_part < n; m->i_part++, m->n_done = 0) {
        const qn_answer_event e = qn_said_get(&choice->said, m->i_part);
        const int is_edge = e.kind == QN_ANSWER_CALL_BEGIN || e.kind == QN_ANSWER_CALL_END;
        if (e.kind == QN_ANSWER_CALL_END)
            end_item(c, m, out);
        else if (!m->is_open)
            begin_item(c, m, &e, out);
        if (is_edge) continue;
        put_delta(c, m, &e, out);
        if (m->i_part + 1 == n) break;
        if (e.kind != QN_ANSWER_CALL_ARGUMENTS) end_item(c, m, out);
    }
    return 0;
}

static void write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    end_item(c, choice->memory, out);
}

static void write_end(const qn_completion *c, qn_buf *out)
{
    put_response(c, qn_response_is_incomplete(c) ? "response.incomplete" : "response.completed", out);
}

/* ---- the route ----------------------------------------------------------------------------------------- */

static void write_whole(const qn_completion *c, qn_buf *out)
{
    qn_response_write(c, out);
}

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_responses_read(text, n, QN_RESPONSES_CREATE, limits, out, error);
}

static const qn_dialect dialect = {.read = read_body,
                                   .read_messages = qn_responses_read_items,
                                   .prepare = qn_response_load_history,
                                   .keep = qn_response_keep,
                                   .prompt_field = "input",
                                   .choice_bytes = sizeof(memory),
                                   .stream_type = QN_STREAM_EVENTS,
                                   .write_whole = write_whole,
                                   .write_begin = write_begin,
                                   .write_delta = write_delta,
                                   .write_progress = write_progress,
                                   .write_finish = write_finish,
                                   .write_end = write_end};

void qn_route_responses(qn_exchange *ex)
{
    qn_completion_begin(ex, &dialect);
}
