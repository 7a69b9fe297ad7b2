/* The JSON of chat completions and completions: chunks of a stream, and whole answers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json_write.h"
#include "base/utf8.h"
#include "server/core/completion.h"

static int is_chat(const qn_completion *c)
{
    return c->request.route == QN_REQUEST_CHAT;
}

/* ---- log-probabilities --------------------------------------------------------------------------------- */

/* As precise as they are; JSON has no infinity. */
static void put_logprob(qn_buf *b, float logprob)
{
    qn_buf_printf(b, "%.9g", isfinite(logprob) ? (double)logprob : -9999.0);
}

static void put_bytes(qn_buf *b, const char *text, size_t n)
{
    qn_json_key(b, "bytes");
    qn_json_open(b, '[');
    for (size_t i = 0; i < n; i++) qn_json_int(b, (unsigned char)text[i]);
    qn_json_close(b, ']');
}

/* {"token":, "logprob":, "bytes":; the object stays open. */
static void open_entry(const qn_completion *c, qn_buf *b, int32_t id, float logprob)
{
    char *text = NULL;
    size_t n = 0;
    if (qn_model_decode(c->ex->server->model, &id, 1, NULL, &text, &n) != QN_OK) n = 0;
    qn_json_open(b, '{');
    qn_json_key(b, "token");
    qn_json_text(b, text ? text : "", n);
    qn_json_key(b, "logprob");
    put_logprob(b, logprob);
    put_bytes(b, text, n);
    qn_buffer_free(text);
}

static void keep_chat(const qn_completion *c, qn_completion_choice *choice, const qn_token *t)
{
    qn_buf *b = &choice->logprobs;
    open_entry(c, b, t->id, t->logprob);
    qn_json_key(b, "top_logprobs");
    qn_json_open(b, '[');
    for (int32_t i = 0; i < t->n_top; i++) {
        open_entry(c, b, t->top[i].id, t->top[i].logprob);
        qn_json_close(b, '}');
    }
    qn_json_close(b, ']');
    qn_json_close(b, '}');
}

static void put_token(const qn_completion *c, qn_buf *b, int32_t id, int64_t *n_characters)
{
    char *text = NULL;
    size_t n = 0;
    if (qn_model_decode(c->ex->server->model, &id, 1, NULL, &text, &n) != QN_OK) n = 0;
    qn_json_text(b, text ? text : "", n);
    for (size_t i = 0; i < n && n_characters; i++) *n_characters += ((unsigned char)text[i] & 0xc0) != 0x80;
    qn_buffer_free(text);
}

static void comma(qn_buf *b)
{
    if (b->length) qn_buf_putc(b, ',');
}

/* The four lists of the older API. */
static void keep_text(const qn_completion *c, qn_completion_choice *choice, const qn_token *t)
{
    comma(&choice->offsets);
    qn_buf_printf(&choice->offsets, "%lld", (long long)choice->n_characters);
    put_token(c, &choice->logprobs, t->id, &choice->n_characters);
    comma(&choice->values);
    put_logprob(&choice->values, t->logprob);
    qn_json_open(&choice->tops, '{');
    for (int32_t i = 0; i < t->n_top; i++) {
        put_token(c, &choice->tops, t->top[i].id, NULL);
        qn_buf_putc(&choice->tops, ':');
        put_logprob(&choice->tops, t->top[i].logprob);
    }
    qn_json_close(&choice->tops, '}');
}

void qn_completion_keep_logprobs(const qn_completion *c, qn_completion_choice *choice, const qn_token *token)
{
    if (is_chat(c))
        keep_chat(c, choice, token);
    else
        keep_text(c, choice, token);
}

static void put_list(qn_buf *b, const char *key, const qn_buf *list)
{
    qn_json_key(b, key);
    qn_buf_putc(b, '[');
    if (list->length) qn_buf_append(b, list->data, list->length);
    qn_buf_putc(b, ']');
    if (list->status != QN_OK) b->status = list->status;
}

static void put_logprobs(const qn_completion *c, const qn_completion_choice *choice, qn_buf *b)
{
    qn_json_key(b, "logprobs");
    if (!c->request.logprobs) {
        qn_buf_puts(b, "null");
        return;
    }
    qn_json_open(b, '{');
    if (is_chat(c)) {
        put_list(b, "content", &choice->logprobs);
        qn_json_key(b, "refusal");
        qn_buf_puts(b, "null");
    } else {
        put_list(b, "tokens", &choice->logprobs);
        put_list(b, "token_logprobs", &choice->values);
        if (c->request.top_logprobs) {
            put_list(b, "top_logprobs", &choice->tops);
        } else {
            qn_json_key(b, "top_logprobs");
            qn_buf_puts(b, "null");
        }
        put_list(b, "text_offset", &choice->offsets);
    }
    qn_json_close(b, '}');
}

/* ---- answers ------------------------------------------------------------------------------------------- */

static void open_object(const qn_completion *c, const char *object, qn_buf *b)
{
    qn_json_open(b, '{');
    qn_json_put_text(b, "id", c->id);
    qn_json_put_text(b, "object", object);
    qn_json_put_int(b, "created", c->created_s);
    qn_json_put_text(b, "model", c->model.data);
    qn_json_key(b, "system_fingerprint");
    qn_buf_printf(b, "\"quern-%s\"", qn_version());
}

static const char *chunk_object(const qn_completion *c)
{
    return is_chat(c) ? "chat.completion.chunk" : "text_completion";
}

static void put_usage(const qn_completion *c, qn_buf *b)
{
    qn_json_key(b, "usage");
    qn_json_open(b, '{');
    qn_json_put_int(b, "prompt_tokens", c->n_prompt_tokens);
    qn_json_put_int(b, "completion_tokens", c->n_generated_tokens);
    qn_json_put_int(b, "total_tokens", c->n_prompt_tokens + c->n_generated_tokens);
    qn_json_key(b, "prompt_tokens_details");
    qn_json_open(b, '{');
    qn_json_put_int(b, "cached_tokens", c->n_cached_tokens);
    qn_json_close(b, '}');
    qn_json_close(b, '}');
}

/* With include_usage every chunk has the key; only the last has figures. */
static void put_no_usage(const qn_completion *c, qn_buf *b)
{
    if (!c->request.include_usage) return;
    qn_json_key(b, "usage");
    qn_buf_puts(b, "null");
}

static void put_warnings(const qn_completion *c, qn_buf *b)
{
    if (c->request.warnings.length) put_list(b, "warnings", &c->request.warnings);
}

static void put_text(qn_buf *b, const char *key, const qn_buf *text)
{
    qn_json_key(b, key);
    qn_json_text(b, text->data ? text->data : "", text->length);
}

/* {"choices": [{"index":, : what the choice says follows. */
static void open_chunk(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    open_object(c, chunk_object(c), out);
    qn_json_key(out, "choices");
    qn_json_open(out, '[');
    qn_json_open(out, '{');
    qn_json_put_int(out, "index", choice->index);
}

static void close_chunk(const qn_completion *c, const qn_completion_choice *choice, int is_last, qn_buf *out)
{
    qn_json_key(out, "finish_reason");
    if (is_last)
        qn_json_text(out, choice->finish, strlen(choice->finish));
    else
        qn_buf_puts(out, "null");
    qn_buf_puts(out, "}]");
    put_no_usage(c, out);
}

/* A chunk that says the same of every choice. */
static void write_fixed(const qn_completion *c, const qn_completion_choice *choice, const char *delta,
                        int is_last, qn_buf *out)
{
    open_chunk(c, choice, out);
    if (is_chat(c)) {
        qn_json_key(out, "delta");
        qn_buf_puts(out, delta);
    } else {
        qn_json_put_text(out, "text", "");
    }
    qn_json_key(out, "logprobs");
    qn_buf_puts(out, "null");
    close_chunk(c, choice, is_last, out);
}

void qn_completion_write_begin(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    write_fixed(c, choice, "{\"role\":\"assistant\",\"content\":\"\"}", 0, out);
    if (choice->index == 0) put_warnings(c, out);
    qn_json_close(out, '}');
}

void qn_completion_write_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    write_fixed(c, choice, "{}", 1, out);
    qn_json_close(out, '}');
}

void qn_completion_open_call(qn_completion_choice *choice)
{
    qn_buf_putc(&choice->calls, '{');
    qn_json_put_int(&choice->calls, "index", choice->call_index);
}

void qn_completion_end_piece(qn_completion_choice *choice)
{
    if (choice->arguments.length) {
        qn_completion_open_call(choice);
        qn_json_key(&choice->calls, "function");
        qn_json_open(&choice->calls, '{');
        put_text(&choice->calls, "arguments", &choice->arguments);
        qn_buf_puts(&choice->calls, "}}\n");
    }
    if (choice->arguments.status != QN_OK) choice->calls.status = choice->arguments.status;
    qn_buf_reset(&choice->arguments);
}

static void forget(qn_buf *sent, qn_buf *out)
{
    if (sent->status != QN_OK) out->status = sent->status;
    qn_buf_reset(sent);
}

/* {"content":} and the like. */
static void put_text_delta(const qn_completion *c, qn_completion_choice *choice, qn_buf *out)
{
    if (is_chat(c)) {
        qn_json_key(out, "delta");
        qn_json_open(out, '{');
        if (choice->reasoning.length) put_text(out, "reasoning_content", &choice->reasoning);
        if (choice->text.length) put_text(out, "content", &choice->text);
        qn_json_close(out, '}');
    } else {
        put_text(out, "text", &choice->text);
    }
    forget(&choice->text, out);
    forget(&choice->reasoning, out);
}

/* {"tool_calls": [one object]} */
static void put_call_delta(qn_completion_choice *choice, qn_buf *out)
{
    qn_buf *calls = &choice->calls;
    size_t n = (size_t)((char *)memchr(calls->data, '\n', calls->length) - calls->data);
    qn_json_key(out, "delta");
    qn_buf_puts(out, "{\"tool_calls\":[");
    qn_buf_append(out, calls->data, n);
    qn_buf_puts(out, "]}");
    calls->length -= n + 1;
    memmove(calls->data, calls->data + n + 1, calls->length);
}

int qn_completion_write_delta(const qn_completion *c, qn_completion_choice *choice, qn_buf *out)
{
    int has_text = choice->text.length || choice->reasoning.length;
    qn_completion_end_piece(choice);
    if (choice->calls.status != QN_OK) out->status = choice->calls.status; /* its last line is not whole */
    if (out->status != QN_OK) return 1;
    if (!has_text && !choice->calls.length && !(choice->finish && choice->logprobs.length)) return 0;
    open_chunk(c, choice, out);
    if (has_text || !choice->calls.length)
        put_text_delta(c, choice, out);
    else
        put_call_delta(choice, out);
    if (choice->logprobs.length) {
        put_logprobs(c, choice, out);
    } else {
        qn_json_key(out, "logprobs");
        qn_buf_puts(out, "null");
    }
    close_chunk(c, choice, 0, out);
    qn_json_close(out, '}');
    qn_buf *sent[] = {&choice->logprobs, &choice->values, &choice->tops, &choice->offsets};
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) forget(sent[i], out);
    return 1;
}

void qn_completion_write_usage(const qn_completion *c, qn_buf *out)
{
    open_object(c, chunk_object(c), out);
    qn_json_key(out, "choices");
    qn_buf_puts(out, "[]");
    put_usage(c, out);
    qn_json_close(out, '}');
}

static void put_choice(const qn_completion *c, const qn_completion_choice *choice, qn_buf *b)
{
    qn_json_open(b, '{');
    qn_json_put_int(b, "index", choice->index);
    if (is_chat(c)) {
        qn_json_key(b, "message");
        qn_json_open(b, '{');
        qn_json_put_text(b, "role", "assistant");
        if (choice->text.length || !choice->calls.length) {
            put_text(b, "content", &choice->text);
        } else {
            qn_json_key(b, "content");
            qn_buf_puts(b, "null");
        }
        if (choice->reasoning.length) put_text(b, "reasoning_content", &choice->reasoning);
        if (choice->calls.length) put_list(b, "tool_calls", &choice->calls);
        qn_json_key(b, "refusal");
        qn_buf_puts(b, "null");
        qn_json_close(b, '}');
    } else {
        put_text(b, "text", &choice->text);
    }
    put_logprobs(c, choice, b);
    qn_json_put_text(b, "finish_reason", choice->finish);
    qn_json_close(b, '}');
}

void qn_completion_write_whole(const qn_completion *c, qn_buf *out)
{
    open_object(c, is_chat(c) ? "chat.completion" : "text_completion", out);
    qn_json_key(out, "choices");
    qn_json_open(out, '[');
    for (size_t i = 0; i < c->n_choices; i++) put_choice(c, &c->choices[i], out);
    qn_json_close(out, ']');
    put_usage(c, out);
    put_warnings(c, out);
    qn_json_close(out, '}');
}
