/* POST /api/generate: lines of a stream, and whole answers. */
#include "base/json/json_write.h"
#include "server/core/infill.h"
#include "server/core/state.h"
#include "server/core/write.h"
#include "server/ollama/ollama.h"
#include "server/ollama/request.h"
#include "server/ollama/write.h"

static void put_texts(const qn_said *said, qn_buf *out)
{
    qn_write_said(out, "response", said, QN_ANSWER_CONTENT, 0);
    if (qn_said_has(said, QN_ANSWER_REASONING)) qn_write_said(out, "thinking", said, QN_ANSWER_REASONING, 0);
}

static void write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    (void)c, (void)choice, (void)out; /* the first line has text */
}

static int write_delta(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    const qn_said *said = &choice->said;
    qn_ollama_memory *m = choice->memory;
    if (qn_said_count(said)) {
        qn_ollama_open(c, out);
        put_texts(said, out);
        qn_ollama_put_logprobs(c, choice, out);
        qn_ollama_close_line(out);
        m->n_parts = qn_said_count(said);
    }
    return qn_ollama_is_written(choice);
}

static void write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    (void)c, (void)choice, (void)out; /* the last line says why */
}

/* said: what the last object has to say. */
static void put_last(const qn_completion *c, const qn_said *said, qn_buf *out)
{
    qn_ollama_open(c, out);
    put_texts(said, out);
    if (c->n_choices) qn_ollama_put_logprobs(c, c->choices, out);
    qn_ollama_close_last(c, out);
}

static const qn_said nothing;

static void write_end(const qn_completion *c, qn_buf *out)
{
    put_last(c, &nothing, out);
    qn_buf_putc(out, '\n');
}

static void write_whole(const qn_completion *c, qn_buf *out)
{
    put_last(c, c->n_choices ? &c->choices[0].said : &nothing, out);
}

/* ---- the dialect --------------------------------------------------------------------------------------- */

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_ollama_read(text, n, QN_OLLAMA_GENERATE, limits, out, error);
}

/* With a suffix the prompt is what is before a gap. */
static int prepare(const qn_server *s, qn_api_request *r, qn_api_error *error)
{
    const qn_infill parts = {.prefix = r->content, .suffix = r->suffix};
    if (!r->suffix) return 0;
    const int refused = qn_infill_make(s->model, &parts, "suffix", "suffix", &r->made, error);
    r->prompt = r->made;
    return refused;
}

static const qn_dialect dialect = {.read = read_body,
                                   .read_messages = qn_ollama_read_messages,
                                   .prepare = prepare,
                                   .prompt_field = "prompt",
                                   .choice_bytes = sizeof(qn_ollama_memory),
                                   .stream_type = QN_STREAM_LINES,
                                   .write_whole = write_whole,
                                   .write_begin = write_begin,
                                   .write_delta = write_delta,
                                   .write_finish = write_finish,
                                   .write_end = write_end};

void qn_route_ollama_generate(qn_exchange *ex)
{
    qn_completion_begin(ex, &dialect);
}
