#include "server/core/request.h"

#include <math.h>
#include <string.h>

#include "base/json/json.h"
#include "base/json/json_write.h"
#include "server/openai/request_fields.h"

void qn_request_warn(qn_request *r, const char *param, const char *message)
{
    qn_json_open(&r->warnings, '{');
    qn_json_put_text(&r->warnings, "param", param);
    qn_json_put_text(&r->warnings, "message", message);
    qn_json_close(&r->warnings, '}');
}

static const qn_field *find(const char *name, unsigned route)
{
    for (const qn_field *f = qn_request_fields; f->name; f++)
        if ((f->routes & route) && strcmp(f->name, name) == 0) return f;
    return NULL;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array",  "a string",  "an integer",
                                        "a number",  "a boolean", "a boolean", "null"};
    return names[json_typeof(value)];
}

static int fail_type(qn_api_error *error, const char *name, const char *wanted, const json_t *value)
{
    return qn_api_fail(error, 400, "invalid_type", name, "%s must be %s, not %s", name, wanted,
                       type_name(value));
}

/* Is value one of those that ask for nothing? */
static int is_harmless(const qn_field *f, const json_t *value)
{
    json_t *list = NULL;
    int found = 0;
    if (!f->harmless || qn_json_parse(f->name, f->harmless, strlen(f->harmless), &list) != QN_OK) return 0;
    for (size_t i = 0; i < json_array_size(list) && !found; i++)
        found = json_equal(json_array_get(list, i), value);
    json_decref(list);
    return found;
}

static int read_number(const qn_field *f, const json_t *value, qn_request *r, qn_api_error *error)
{
    char *at = (char *)r + f->offset;
    double number = json_number_value(value);
    if (f->kind == QN_FIELD_INT && !json_is_integer(value))
        return fail_type(error, f->name, "an integer", value);
    if (!json_is_number(value)) return fail_type(error, f->name, "a number", value);
    if (!(number >= f->low && number <= f->high))
        return qn_api_fail(error, 400, "invalid_value", f->name, "%s is %.17g; it may be %.15g to %.15g",
                           f->name, number, f->low, f->high);
    if (f->kind == QN_FIELD_INT)
        *(int64_t *)(void *)at = json_integer_value(value);
    else
        *(double *)(void *)at = number;
    return 0;
}

static int read_field(const qn_field *f, const json_t *value, const qn_request_limits *limits, qn_request *r,
                      qn_api_error *error)
{
    char *at = (char *)r + f->offset;
    switch (f->kind) {
    case QN_FIELD_BOOL:
        if (!json_is_boolean(value)) return fail_type(error, f->name, "a boolean", value);
        *(int *)(void *)at = json_is_true(value);
        return 0;
    case QN_FIELD_INT:
    case QN_FIELD_REAL:
        return read_number(f, value, r, error);
    case QN_FIELD_TEXT:
        if (!json_is_string(value)) return fail_type(error, f->name, "a string", value);
        if (strlen(json_string_value(value)) != json_string_length(value))
            return qn_api_fail(error, 400, "invalid_value", f->name, "%s has a NUL character", f->name);
        *(const char **)(void *)at = json_string_value(value);
        return 0;
    case QN_FIELD_JSON:
        *(const json_t **)(void *)at = value;
        return 0;
    case QN_FIELD_OWN:
        return f->read(r, value, limits, error);
    case QN_FIELD_REPORTED:
        qn_request_warn(r, f->name, f->note);
        return 0;
    case QN_FIELD_REFUSED:
        if (is_harmless(f, value)) return 0;
        return qn_api_fail(error, 400, "unsupported_parameter", f->name, "%s is not supported: %s", f->name,
                           f->note);
    }
    return 0;
}

/* What depends on two fields, or on the model. */
static int finish(qn_request *r, const qn_request_limits *limits, qn_api_error *error)
{
    qn_generate_options *o = &r->o;
    if (r->route == QN_REQUEST_CHAT && !r->messages)
        return qn_api_fail(error, 400, "missing_parameter", "messages", "messages is missing");
    if (r->route == QN_REQUEST_COMPLETIONS && !r->prompt)
        return qn_api_fail(error, 400, "missing_parameter", "prompt", "prompt is missing");
    if (r->route == QN_REQUEST_EMBEDDINGS && !r->input)
        return qn_api_fail(error, 400, "missing_parameter", "input", "input is missing");
    if (r->continue_final > 0 && r->add_generation_prompt > 0)
        return qn_api_fail(error, 400, "invalid_value", "continue_final_message",
                           "continue_final_message and add_generation_prompt exclude each other: a message "
                           "is continued, or a new one is begun");
    if (r->max_tokens && r->max_completion_tokens && r->max_tokens != r->max_completion_tokens)
        return qn_api_fail(error, 400, "invalid_value", "max_tokens",
                           "max_tokens and max_completion_tokens say different things");
    if (r->top_logprobs && !r->logprobs)
        return qn_api_fail(error, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs");
    if (json_object_get(r->body, "stream_options") &&
        !json_is_null(json_object_get(r->body, "stream_options")) && !r->stream)
        return qn_api_fail(error, 400, "invalid_value", "stream_options", "stream_options needs stream");
    if (r->ping_ms > 0 && !r->stream)
        qn_request_warn(r, "sse_ping_interval", "has no effect: the answer is no stream");
    o->max_tokens = r->max_tokens ? r->max_tokens : r->max_completion_tokens;
    if (!o->max_tokens && r->route == QN_REQUEST_COMPLETIONS)
        o->max_tokens = 16;                   /* as OpenAI's reference says */
    if (o->max_tokens < 0) o->max_tokens = 0; /* the library's "up to the context" */
    o->temperature = (float)(r->temperature >= 0                ? r->temperature
                             : limits->default_temperature >= 0 ? limits->default_temperature
                                                                : 1);
    o->top_p = (float)(r->top_p >= 0 ? r->top_p : limits->default_top_p >= 0 ? limits->default_top_p : 1);
    o->top_k = (int32_t)(r->top_k >= -1 ? r->top_k : limits->default_top_k);
    if (o->top_k < 0) o->top_k = 0;
    o->min_p = (float)r->min_p;
    /* For the library 0 is "off"; here a nucleus of nothing, or of what is as likely as the best, is the best
     * alone. */
    if (r->top_p == 0 || o->top_p <= 0 || r->min_p == 1) o->top_k = 1;
    if (o->top_p <= 0) o->top_p = 1;
    if (o->min_p >= 1) o->min_p = 0;
    o->repeat_penalty = (float)r->repeat_penalty;
    o->presence_penalty = (float)r->presence_penalty;
    o->frequency_penalty = (float)r->frequency_penalty;
    o->logit_bias = r->bias;
    o->n_logit_bias = r->n_bias;
    o->logprobs = r->logprobs;
    o->n_top_logprobs = (int32_t)r->top_logprobs;
    o->stop_strings = r->stop;
    o->n_stop_strings = r->n_stop;
    o->stop_ids = r->stop_ids;
    o->n_stop_ids = r->n_stop_ids;
    /* 0 asks the library for a fresh seed; of a client it is a seed like any other. */
    if (r->has_seed) o->seed = r->seed ? (uint64_t)r->seed : UINT64_C(0x9e3779b97f4a7c15);
    return 0;
}

int qn_request_read(const char *text, size_t n, unsigned route, const qn_request_limits *limits,
                    qn_request *out, qn_api_error *error)
{
    const char *key;
    json_t *value;
    memset(out, 0, sizeof *out);
    out->route = route;
    out->n = 1;
    out->cache_prompt = 1;
    out->temperature = out->top_p = -1;
    out->repeat_penalty = 1;
    out->top_k = -2;
    out->continue_final = out->add_generation_prompt = -1;
    out->ping_ms = -1;
    qn_status status = qn_json_parse("the body", text ? text : "", n, &out->body);
    if (status != QN_OK) {
        qn_api_fail_status(error, status);
        if (status == QN_E_FORMAT) error->code = "invalid_json";
        return error->status;
    }
    if (!json_is_object(out->body))
        return qn_api_fail(error, 400, "invalid_json", NULL, "the body must be a JSON object, not %s",
                           type_name(out->body));
    json_object_foreach(out->body, key, value)
    {
        const qn_field *f = find(key, route);
        if (!f) return qn_api_fail(error, 400, "unknown_parameter", key, "unknown parameter: %s", key);
        if (json_is_null(value)) continue;
        int refused = read_field(f, value, limits, out, error);
        if (refused) return refused;
    }
    int refused = finish(out, limits, error);
    if (refused) return refused;
    return out->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, out->warnings.status);
}

void qn_request_free(qn_request *r)
{
    json_decref(r->body);
    r->body = NULL;
    qn_buf_free(&r->warnings);
}
