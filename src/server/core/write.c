#include "server/core/write.h"

#include <math.h>
#include <quern/tokenizer.h>
#include <time.h>

#include "base/json/json.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "base/json/partial_json.h"
#include "base/mem.h"

void qn_write_warnings(const qn_api_request *r, qn_buf *out)
{
    if (r->warnings.status != QN_OK) out->status = r->warnings.status;
    if (!r->warnings.length) return;
    qn_json_key(out, "warnings");
    qn_json_open(out, '[');
    qn_buf_append(out, r->warnings.data, r->warnings.length);
    qn_json_close(out, ']');
}

void qn_write_null(qn_buf *out, const char *key)
{
    qn_json_key(out, key);
    qn_buf_puts(out, "null");
}

void qn_write_said(qn_buf *out, const char *key, const qn_said *said, qn_answer_kind kind, int32_t index)
{
    qn_buf text = {0};
    qn_said_join(said, kind, index, &text);
    qn_json_key(out, key);
    qn_json_text(out, text.data ? text.data : "", text.length);
    if (text.status != QN_OK) out->status = text.status;
    qn_buf_free(&text);
}

void qn_write_logprob(qn_buf *out, float logprob)
{
    qn_buf_printf(out, "%.9g", isfinite(logprob) ? (double)logprob : -9999.0);
}

void qn_write_token_text(const qn_model *model, int32_t id, char **text, size_t *n)
{
    *text = NULL;
    *n = 0;
    if (qn_model_decode(model, &id, 1, &(qn_decode_options){.is_inner = 1}, text, n) != QN_OK) *n = 0;
}

void qn_write_open_token(const qn_model *model, int32_t id, const float *logprob, int with_id, qn_buf *out)
{
    char *text;
    size_t n;
    qn_write_token_text(model, id, &text, &n);
    qn_json_open(out, '{');
    if (with_id) qn_json_put_int(out, "id", id);
    qn_json_key(out, "token");
    qn_json_text(out, text ? text : "", n);
    if (logprob) {
        qn_json_key(out, "logprob");
        qn_write_logprob(out, *logprob);
    }
    qn_json_key(out, "bytes");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++) qn_json_int(out, (unsigned char)text[i]);
    qn_json_close(out, ']');
    qn_buffer_free(text);
}

void qn_write_tokens(const qn_model *model, const qn_said *said, size_t first, int with_id, qn_buf *out)
{
    qn_json_open(out, '[');
    for (size_t i = first; i < qn_said_count_tokens(said); i++) {
        const qn_said_token t = qn_said_get_token(said, i);
        qn_write_open_token(model, t.id, &t.logprob, with_id, out);
        qn_json_key(out, "top_logprobs");
        qn_json_open(out, '[');
        for (int32_t k = 0; k < t.n_top; k++) {
            qn_write_open_token(model, t.top[k].id, &t.top[k].logprob, with_id, out);
            qn_json_close(out, '}');
        }
        qn_json_close(out, ']');
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
}

static double per_second(int64_t n, double ms)
{
    return ms > 0 ? (double)n * 1000 / ms : 0;
}

void qn_write_timings(const qn_generation_stats *s, qn_buf *out)
{
    const int64_t n_prompt = s->n_prompt_tokens - s->n_cached_tokens, n = s->n_generated_tokens;
    const int64_t n_steps = n > 0 ? n - 1 : 0;
    qn_json_key(out, "timings");
    qn_json_open(out, '{');
    qn_json_put_int(out, "cache_n", s->n_cached_tokens);
    qn_json_put_int(out, "prompt_n", n_prompt);
    qn_json_put_real(out, "prompt_ms", s->prefill_ms);
    qn_json_put_real(out, "prompt_per_token_ms", n_prompt ? s->prefill_ms / (double)n_prompt : 0);
    qn_json_put_real(out, "prompt_per_second", per_second(n_prompt, s->prefill_ms));
    qn_json_put_int(out, "predicted_n", n);
    qn_json_put_exact(out, "predicted_ms", s->decode_ms);
    qn_json_put_exact(out, "predicted_per_token_ms", n_steps ? s->decode_ms / (double)n_steps : 0);
    qn_json_put_exact(out, "predicted_per_second", per_second(n_steps, s->decode_ms));
    if (s->n_drafted_tokens) {
        qn_json_put_int(out, "draft_n", s->n_drafted_tokens);
        qn_json_put_int(out, "draft_n_accepted", s->n_accepted_tokens);
    }
    qn_json_close(out, '}');
}

void qn_write_progress(const qn_prompt_progress *p, qn_buf *out)
{
    qn_json_key(out, "prompt_progress");
    qn_json_open(out, '{');
    qn_json_put_int(out, "total", p->n_total);
    qn_json_put_int(out, "cache", p->n_cached);
    qn_json_put_int(out, "processed", p->n_done);
    qn_json_put_int(out, "time_ms", (int64_t)p->ms);
    qn_json_close(out, '}');
}

void qn_write_time(qn_buf *out, const char *key, int64_t seconds, int64_t nanoseconds)
{
    char text[40] = "1970-01-01T00:00:00";
    const time_t t = (time_t)seconds;
    struct tm parts;
    if (gmtime_r(&t, &parts)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    qn_json_key(out, key);
    qn_buf_printf(out, "\"%s.%09dZ\"", text, (int)nanoseconds);
}

void qn_write_json(qn_buf *out, const json_t *value)
{
    if (!value)
        qn_buf_puts(out, "null");
    else
        qn_json_write_value(out, value);
}

void qn_write_value(qn_buf *out, const char *key, const json_t *value)
{
    qn_json_key(out, key);
    qn_write_json(out, value);
}

void qn_write_arguments(qn_buf *out, const char *key, const qn_said *said, int32_t index)
{
    qn_buf text = {0}, whole = {0};
    json_t *value = NULL;
    qn_said_join(said, QN_ANSWER_CALL_ARGUMENTS, index, &text);
    qn_partial_json_close(text.data ? text.data : "", text.length, &whole);
    qn_status status = text.status != QN_OK ? text.status : whole.status;
    /* What a model writes may be no JSON at all: then the call has no arguments. */
    if (status == QN_OK) status = qn_json_parse_lenient("arguments", whole.data, whole.length, &value);
    if (status == QN_E_NOMEM)
        out->status = status;
    else if (json_is_object(value))
        qn_write_value(out, key, value);
    else {
        qn_json_key(out, key);
        qn_buf_puts(out, "{}");
    }
    json_decref(value);
    qn_buf_free(&text);
    qn_buf_free(&whole);
}
