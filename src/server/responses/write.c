#include "server/responses/write.h"

#include <string.h>

#include "base/json/json_write.h"

/* ---- items --------------------------------------------------------------------------------------------- */

static const qn_said *said_of(const qn_completion *c)
{
    return &c->choices[0].said;
}

static const char *number_of(const qn_completion *c)
{
    static const char own[] = "req_";
    return c->ex->id + sizeof own - 1;
}

int qn_response_is_incomplete(const qn_completion *c)
{
    return c->choices[0].finish == QN_FINISH_LENGTH;
}

void qn_response_put_id(const qn_completion *c, const char *key, const qn_response_item *item, qn_buf *out)
{
    const char *prefix = item->first.kind == QN_ANSWER_CONTENT     ? "msg"
                         : item->first.kind == QN_ANSWER_REASONING ? "rs"
                                                                   : "fc";
    qn_json_key(out, key);
    qn_buf_printf(out, "\"%s_%s_%lld\"", prefix, number_of(c), (long long)item->index);
}

const char *qn_response_item_status(const qn_completion *c, const qn_response_item *item)
{
    const qn_said *said = said_of(c);
    const size_t n = qn_said_count(said);
    if (item->first.kind != QN_ANSWER_CALL_BEGIN)
        return item->i_part + 1 == n && qn_response_is_incomplete(c) ? "incomplete" : "completed";
    for (size_t i = item->i_part + 1; i < n; i++) {
        const qn_answer_event e = qn_said_get(said, i);
        if (e.kind == QN_ANSWER_CALL_END && e.index == item->first.index)
            return e.is_malformed ? "incomplete" : "completed";
    }
    return "incomplete";
}

void qn_response_write_part(qn_answer_kind kind, const char *text, size_t n, qn_buf *out)
{
    const int is_text = kind == QN_ANSWER_CONTENT;
    qn_json_open(out, '{');
    qn_json_put_text(out, "type", is_text ? "output_text" : "reasoning_text");
    qn_json_key(out, "text");
    qn_json_text(out, text ? text : "", n);
    if (is_text) {
        qn_json_key(out, "annotations");
        qn_buf_puts(out, "[]");
        qn_json_key(out, "logprobs");
        qn_buf_puts(out, "[]");
    }
    qn_json_close(out, '}');
}

void qn_response_write_item(const qn_completion *c, const qn_response_item *item, const char *status,
                            qn_buf *out)
{
    const qn_answer_event *e = &item->first;
    const int has_text = strcmp(status, "in_progress") != 0;
    qn_json_open(out, '{');
    qn_response_put_id(c, "id", item, out);
    if (e->kind == QN_ANSWER_CALL_BEGIN) {
        qn_json_put_text(out, "type", "function_call");
        qn_json_put_text(out, "call_id", e->id);
        qn_json_key(out, "name");
        qn_json_text(out, e->text, e->n);
        if (has_text)
            qn_write_said(out, "arguments", said_of(c), QN_ANSWER_CALL_ARGUMENTS, e->index);
        else
            qn_json_put_text(out, "arguments", "");
    } else {
        const int is_text = e->kind == QN_ANSWER_CONTENT;
        qn_json_put_text(out, "type", is_text ? "message" : "reasoning");
        if (is_text) {
            qn_json_put_text(out, "role", "assistant");
        } else {
            qn_json_key(out, "summary");
            qn_buf_puts(out, "[]");
        }
        qn_json_key(out, "content");
        qn_json_open(out, '[');
        if (has_text) qn_response_write_part(e->kind, e->text, e->n, out);
        qn_json_close(out, ']');
    }
    qn_json_put_text(out, "status", status);
    qn_json_close(out, '}');
}

static void put_output(const qn_completion *c, qn_buf *out)
{
    const qn_said *said = said_of(c);
    qn_response_item item = {0};
    qn_json_key(out, "output");
    qn_json_open(out, '[');
    for (size_t i = 0; i < qn_said_count(said); i++) {
        item.first = qn_said_get(said, i);
        item.i_part = i;
        if (item.first.kind == QN_ANSWER_CALL_ARGUMENTS || item.first.kind == QN_ANSWER_CALL_END) continue;
        qn_response_write_item(c, &item, qn_response_item_status(c, &item), out);
        item.index++;
    }
    qn_json_close(out, ']');
}

/* ---- the response -------------------------------------------------------------------------------------- */

static void put_usage(const qn_completion *c, qn_buf *out)
{
    qn_json_key(out, "usage");
    qn_json_open(out, '{');
    qn_json_put_int(out, "input_tokens", c->n_prompt_tokens);
    qn_json_key(out, "input_tokens_details");
    qn_json_open(out, '{');
    qn_json_put_int(out, "cached_tokens", c->n_cached_tokens);
    qn_json_put_int(out, "cache_write_tokens", c->n_prompt_tokens - c->n_cached_tokens);
    qn_json_close(out, '}');
    qn_json_put_int(out, "output_tokens", c->n_generated_tokens);
    qn_json_key(out, "output_tokens_details");
    qn_json_open(out, '{');
    qn_json_put_int(out, "reasoning_tokens", c->n_reasoning_tokens);
    qn_json_close(out, '}');
    qn_json_put_int(out, "total_tokens", c->n_prompt_tokens + c->n_generated_tokens);
    qn_json_close(out, '}');
}

/* A field as it was sent, or what it is if it was not. */
static void put_sent(const qn_completion *c, const char *key, const char *otherwise, qn_buf *out)
{
    const json_t *value = json_object_get(c->request.body, key);
    if (value && !json_is_null(value)) {
        qn_write_value(out, key, value);
    } else {
        qn_json_key(out, key);
        qn_buf_puts(out, otherwise);
    }
}

/* What was asked, as every response tells. */
static void put_request(const qn_completion *c, qn_buf *out)
{
    static const char *const as_sent[][2] = {{"instructions", "null"},
                                             {"max_output_tokens", "null"},
                                             {"metadata", "{}"},
                                             {"parallel_tool_calls", "true"},
                                             {"reasoning", "{\"effort\":null,\"summary\":null}"},
                                             {"text", "{\"format\":{\"type\":\"text\"}}"},
                                             {"tool_choice", "\"auto\""},
                                             {"tools", "[]"},
                                             {"truncation", "\"disabled\""}};
    for (size_t i = 0; i < sizeof as_sent / sizeof *as_sent; i++)
        put_sent(c, as_sent[i][0], as_sent[i][1], out);
    qn_json_put_real(out, "temperature", (double)c->request.o.temperature);
    qn_json_put_real(out, "top_p", (double)c->request.o.top_p);
    qn_json_put_int(out, "top_logprobs", 0);
    qn_json_put_bool(out, "background", c->request.background);
    qn_json_put_bool(out, "store", c->request.store > 0);
    put_sent(c, "previous_response_id", "null", out);
}

void qn_response_write_id(const qn_completion *c, qn_buf *out)
{
    qn_buf_printf(out, "resp_%s", number_of(c));
}

static void put_error(const qn_completion *c, qn_buf *out)
{
    if (c->state != QN_ANSWER_FAILED) {
        qn_write_null(out, "error");
        return;
    }
    qn_json_key(out, "error");
    qn_json_open(out, '{');
    qn_json_put_text(out, "code", "server_error");
    qn_json_put_text(out, "message",
                     c->error.message[0] ? c->error.message : "the response was not completed");
    qn_json_close(out, '}');
}

void qn_response_write(const qn_completion *c, qn_buf *out)
{
    static const char *const states[] = {"in_progress", "completed", "failed", "cancelled"};
    const int has_ended = c->state == QN_ANSWER_ENDED;
    const int is_incomplete = has_ended && qn_response_is_incomplete(c);
    qn_json_open(out, '{');
    qn_json_key(out, "id");
    qn_buf_printf(out, "\"resp_%s\"", number_of(c));
    qn_json_put_text(out, "object", "response");
    qn_json_put_int(out, "created_at", c->created_s);
    qn_json_put_text(out, "status", is_incomplete ? "incomplete" : states[c->state]);
    qn_json_put_text(out, "model", c->model.data);
    put_error(c, out);
    if (is_incomplete) {
        qn_json_key(out, "incomplete_details");
        qn_buf_puts(out, "{\"reason\":\"max_output_tokens\"}");
    } else {
        qn_write_null(out, "incomplete_details");
    }
    if (has_ended) {
        put_output(c, out);
        put_usage(c, out);
    } else {
        qn_json_key(out, "output");
        qn_buf_puts(out, "[]");
        qn_write_null(out, "usage");
    }
    put_request(c, out);
    if (has_ended) qn_write_warnings(&c->request, out);
    qn_json_close(out, '}');
}
