/* The JSON of /v1/completions: chunks of a stream, and whole answers. */
#include <math.h>
#include <quern/tokenizer.h>

#include "base/json/json_write.h"
#include "server/openai/openai.h"
#include "server/openai/request.h"
#include "server/openai/write.h"

static const char prefix[] = "cmpl-", object[] = "text_completion";

/* What is remembered of a choice. */
typedef struct {
    int64_t n_characters; /* of the tokens whose log-probabilities are written */
} memory;

/* ---- log-probabilities --------------------------------------------------------------------------------- */

static void put_token(const qn_completion *c, qn_buf *b, int32_t id)
{
    char *text;
    size_t n;
    qn_write_token_text(c->ex->server->model, id, &text, &n);
    qn_json_text(b, text ? text : "", n);
    qn_buffer_free(text);
}

/* Characters of the text that a token is: of a special one, none. */
static int64_t count_characters(const qn_completion *c, int32_t id)
{
    char *text = NULL;
    size_t n = 0;
    int64_t count = 0;
    const qn_decode_options shown = {.skip_special = 1};
    if (qn_model_decode(c->ex->server->model, &id, 1, &shown, &text, &n) != QN_OK) return 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    qn_buffer_free(text);
    return count;
}

static void comma(qn_buf *b)
{
    if (b->length) qn_buf_putc(b, ',');
}

static void put_top_one(const qn_completion *c, int32_t id, float logprob, qn_buf *b)
{
    put_token(c, b, id);
    qn_buf_putc(b, ':');
    qn_write_logprob(b, logprob);
}

/* {"token": logprob, ...}, with the token itself, as OpenAI's reference says. */
static void put_top(const qn_completion *c, const qn_said_token *t, qn_buf *b)
{
    int is_there = 0;
    qn_json_open(b, '{');
    for (int32_t i = 0; i < t->n_top && i < c->request.top_logprobs; i++) {
        put_top_one(c, t->top[i].id, t->top[i].logprob, b);
        is_there |= t->top[i].id == t->id;
    }
    if (!is_there) put_top_one(c, t->id, t->logprob, b);
    qn_json_close(b, '}');
}

static void put_list(qn_buf *b, const char *key, const qn_buf *list)
{
    qn_json_key(b, key);
    qn_json_open(b, '[');
    qn_buf_append(b, list->data, list->length);
    qn_json_close(b, ']');
    if (list->status != QN_OK) b->status = list->status;
}

/* Four lists. */
static void put_logprobs(const qn_completion *c, const qn_completion_choice *choice, qn_buf *b)
{
    qn_buf texts = {0}, values = {0}, tops = {0}, offsets = {0};
    memory *m = choice->memory;
    for (size_t i = 0; i < qn_said_count_tokens(&choice->said); i++) {
        const qn_said_token t = qn_said_get_token(&choice->said, i);
        qn_json_int(&offsets, m->n_characters);
        m->n_characters += count_characters(c, t.id);
        put_token(c, &texts, t.id);
        comma(&values);
        if (isnan(t.logprob)) { /* nothing stands before it */
            comma(&tops);
            qn_buf_puts(&values, "null");
            qn_buf_puts(&tops, "null");
        } else {
            qn_write_logprob(&values, t.logprob);
            put_top(c, &t, &tops);
        }
    }
    qn_json_key(b, "logprobs");
    qn_json_open(b, '{');
    put_list(b, "tokens", &texts);
    put_list(b, "token_logprobs", &values);
    if (c->request.top_logprobs)
        put_list(b, "top_logprobs", &tops);
    else
        qn_write_null(b, "top_logprobs");
    put_list(b, "text_offset", &offsets);
    qn_json_close(b, '}');
    qn_buf_free(&texts);
    qn_buf_free(&values);
    qn_buf_free(&tops);
    qn_buf_free(&offsets);
}

/* ---- streams ------------------------------------------------------------------------------------------- */

/* A chunk without text. */
static void write_fixed(const qn_completion *c, const qn_completion_choice *choice, int is_last, qn_buf *out)
{
    qn_openai_open_event(c, prefix, object, out);
    qn_openai_open_choice(choice, out);
    qn_json_put_text(out, "text", "");
    qn_write_null(out, "logprobs");
    if (!is_last) qn_openai_put_prompt_ids(c, choice, out);
    qn_openai_close_choice(c, choice, is_last, out);
}

static void write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    write_fixed(c, choice, 0, out);
    qn_openai_close_event(out);
}

/* llama.cpp's, with return_progress: a chunk that says nothing. */
static void write_progress(const qn_completion *c, const qn_completion_choice *choice,
                           const qn_prompt_progress *progress, qn_buf *out)
{
    qn_openai_open_event(c, prefix, object, out);
    qn_openai_open_choice(choice, out);
    qn_json_put_text(out, "text", "");
    qn_write_null(out, "logprobs");
    qn_openai_close_choice(c, choice, 0, out);
    qn_write_progress(progress, out);
    qn_openai_close_event(out);
}

/* Log-probabilities go with text, and wait for some. */
static int write_delta(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    const size_t n_tokens = qn_said_count_tokens(&choice->said);
    if (!qn_said_has(&choice->said, QN_ANSWER_CONTENT) && !(choice->finish && n_tokens)) return 0;
    qn_openai_open_event(c, prefix, object, out);
    qn_openai_open_choice(choice, out);
    qn_write_said(out, "text", &choice->said, QN_ANSWER_CONTENT, 0);
    if (n_tokens && c->request.logprobs)
        put_logprobs(c, choice, out);
    else
        qn_write_null(out, "logprobs");
    qn_openai_put_ids(c, &choice->said, out);
    qn_openai_close_choice(c, choice, 0, out);
    qn_openai_close_event(out);
    return 1;
}

static void write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    write_fixed(c, choice, 1, out);
    qn_openai_close_event(out);
}

static void write_end(const qn_completion *c, qn_buf *out)
{
    qn_openai_write_end(c, prefix, object, out);
}

/* ---- whole answers ------------------------------------------------------------------------------------- */

static void write_whole(const qn_completion *c, qn_buf *out)
{
    qn_openai_open(c, prefix, object, out);
    qn_json_key(out, "choices");
    qn_json_open(out, '[');
    for (const qn_completion_choice *choice = c->choices; choice < c->choices + c->n_choices; choice++) {
        qn_json_open(out, '{');
        qn_json_put_int(out, "index", choice->index);
        qn_write_said(out, "text", &choice->said, QN_ANSWER_CONTENT, 0);
        if (c->request.logprobs)
            put_logprobs(c, choice, out);
        else
            qn_write_null(out, "logprobs");
        qn_openai_put_ids(c, &choice->said, out);
        qn_openai_put_prompt_ids(c, choice, out);
        qn_openai_put_prompt_logprobs(c, choice, out);
        qn_openai_put_finish(c, choice, out);
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
    qn_openai_put_usage(c, out);
    if (c->n_choices) qn_openai_put_timings(c, &c->choices[0], out);
    qn_write_warnings(&c->request, out);
    qn_json_close(out, '}');
}

/* ---- the dialect --------------------------------------------------------------------------------------- */

static int read_body(const char *text, size_t n, const qn_api_request_limits *limits, qn_api_request *out,
                     qn_api_error *error)
{
    return qn_api_request_read(text, n, QN_REQUEST_COMPLETIONS, limits, out, error);
}

const qn_dialect qn_openai_completions = {.read = read_body,
                                          .prompt_field = "prompt",
                                          .make_rest = qn_openai_make_rest,
                                          .choice_bytes = sizeof(memory),
                                          .stream_type = QN_STREAM_EVENTS,
                                          .write_whole = write_whole,
                                          .write_begin = write_begin,
                                          .write_delta = write_delta,
                                          .write_progress = write_progress,
                                          .write_finish = write_finish,
                                          .write_end = write_end};

void qn_route_completions(qn_exchange *ex)
{
    qn_completion_begin(ex, &qn_openai_completions);
}
