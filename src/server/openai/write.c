#include "server/openai/write.h"

#include "base/json/json_write.h"
#include "server/core/prefix_pins.h"

/* ---- the object around the choices --------------------------------------------------------------------- */

static void put_head(const qn_completion *c, const char *prefix, const char *object, qn_buf *b)
{
    static const char own[] = "req_";
    qn_json_key(b, "id");
    qn_buf_printf(b, "\"%s%s\"", prefix, c->ex->id + sizeof own - 1);
    qn_json_put_text(b, "object", object);
    qn_json_put_int(b, "created", c->created_s);
    qn_json_put_text(b, "model", c->model.data);
    qn_json_key(b, "system_fingerprint");
    qn_buf_printf(b, "\"b-quern-%s\"", qn_version()); /* llama.cpp's begin with a b */
}

void qn_openai_open(const qn_completion *c, const char *prefix, const char *object, qn_buf *out)
{
    qn_json_open(out, '{');
    put_head(c, prefix, object, out);
}

void qn_openai_open_event(const qn_completion *c, const char *prefix, const char *object, qn_buf *out)
{
    qn_buf_puts(out, "data: {");
    put_head(c, prefix, object, out);
}

void qn_openai_close_event(qn_buf *out)
{
    qn_buf_puts(out, "}\n\n");
}

void qn_openai_open_choice(const qn_completion_choice *choice, qn_buf *out)
{
    qn_json_key(out, "choices");
    qn_json_open(out, '[');
    qn_json_open(out, '{');
    qn_json_put_int(out, "index", choice->index);
}

void qn_openai_close_choice(const qn_completion *c, const qn_completion_choice *choice, int is_last,
                            qn_buf *out)
{
    if (is_last)
        qn_openai_put_finish(c, choice, out);
    else
        qn_write_null(out, "finish_reason");
    qn_buf_puts(out, "}]");
    /* With include_usage every chunk has the key; only the last has figures. */
    if (c->request.include_usage) qn_write_null(out, "usage");
    if (is_last && c->n_running == 0 && !c->request.include_usage) qn_write_warnings(&c->request, out);
    if (choice->n_tokens) qn_openai_put_timings(c, choice, out);
}

void qn_openai_write_end(const qn_completion *c, const char *prefix, const char *object, qn_buf *out)
{
    if (c->request.include_usage) {
        qn_openai_open_event(c, prefix, object, out);
        qn_json_key(out, "choices");
        qn_buf_puts(out, "[]");
        qn_openai_put_usage(c, out);
        qn_write_warnings(&c->request, out);
        if (c->n_choices) qn_openai_put_timings(c, &c->choices[0], out);
        qn_openai_close_event(out);
    }
    qn_buf_puts(out, "data: [DONE]\n\n");
}

void qn_openai_put_timings(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    qn_generation_stats stats;
    if (c->request.wants_timings && qn_generation_get_stats(choice->generation, &stats) == QN_OK)
        qn_write_timings(&stats, out);
}

/* ---- members of a choice ------------------------------------------------------------------------------- */

void qn_openai_put_ids(const qn_completion *c, const qn_said *said, qn_buf *out)
{
    if (!c->request.return_ids) return;
    qn_json_key(out, "token_ids");
    qn_json_open(out, '[');
    for (size_t i = 0; i < qn_said_count_tokens(said); i++) {
        const qn_said_token t = qn_said_get_token(said, i);
        if (!t.is_prompt) qn_json_int(out, t.id);
    }
    qn_json_close(out, ']');
}

void qn_openai_put_prompt_ids(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    const qn_buf *ids = &c->choices[choice->index - choice->index % c->request.n].prompt_ids;
    if (!c->request.return_ids) return;
    qn_json_key(out, "prompt_token_ids");
    qn_json_ids(out, (const int32_t *)(const void *)ids->data, (int64_t)(ids->length / sizeof(int32_t)));
}

/* Is it one that the request names? The model's own are no reason. */
static int is_asked(const qn_api_request *r, int32_t id)
{
    for (size_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return 1;
    return 0;
}

void qn_openai_put_finish(const qn_completion *c, const qn_completion_choice *choice, qn_buf *out)
{
    qn_json_put_text(out, "finish_reason", qn_openai_finish(choice->finish));
    if (choice->stop_string)
        qn_json_put_text(out, "stop_reason", choice->stop_string);
    else if (choice->end == QN_END_STOP && is_asked(&c->request, choice->stop_id))
        qn_json_put_int(out, "stop_reason", choice->stop_id);
    else
        qn_write_null(out, "stop_reason");
}

/* ---- its members --------------------------------------------------------------------------------------- */

void qn_openai_put_usage(const qn_completion *c, qn_buf *out)
{
    qn_json_key(out, "usage");
    qn_json_open(out, '{');
    qn_json_put_int(out, "prompt_tokens", c->n_prompt_tokens);
    qn_json_put_int(out, "completion_tokens", c->n_generated_tokens);
    qn_json_put_int(out, "total_tokens", c->n_prompt_tokens + c->n_generated_tokens);
    qn_json_key(out, "prompt_tokens_details");
    qn_json_open(out, '{');
    qn_json_put_int(out, "cached_tokens", c->n_cached_tokens);
    if (c->request.chat && c->n_pins)
        qn_json_put_int(out, "cache_write_tokens", qn_prefix_pins_written(c, 0));
    qn_json_close(out, '}');
    qn_json_key(out, "completion_tokens_details");
    qn_json_open(out, '{');
    qn_json_put_int(out, "reasoning_tokens", c->n_reasoning_tokens);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

const char *qn_openai_finish(qn_finish finish)
{
    static const char *const names[] = {
        [QN_FINISH_STOP] = "stop", [QN_FINISH_LENGTH] = "length", [QN_FINISH_CALLS] = "tool_calls"};
    return names[finish];
}
