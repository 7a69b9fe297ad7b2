#include "server/ollama/request.h"

#include <string.h>

#include "base/mem.h"

static int invalid(qn_api_error *error, const char *param, const char *sentence)
{
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

/* ---- fields -------------------------------------------------------------------------------------------- */

size_t qn_ollama_name_length(const char *name, size_t n)
{
    static const char tag[] = ":latest";
    enum { N = sizeof tag - 1 };
    return n > N && memcmp(name + n - N, tag, N) == 0 ? n - N : n;
}

int qn_ollama_read_model(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                         qn_api_error *error)
{
    const char *name = json_string_value(value);
    const size_t n = json_string_length(value), kept = qn_ollama_name_length(name ? name : "", n);
    (void)limits;
    if (!name) return invalid(error, "model", "must be a string");
    if (memchr(name, 0, n)) return invalid(error, "model", "has a NUL character");
    /* The body belongs to the request alone. */
    if (kept < n && json_string_setn((json_t *)value, name, kept))
        return qn_api_fail_status(error, qn_fail_nomem(n));
    r->model = json_string_value(value);
    return 0;
}

/* The one place where a form of answers comes in: "json", or a JSON schema. */
int qn_ollama_read_format(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                          qn_api_error *error)
{
    const char *text = json_string_value(value);
    (void)limits;
    if (text && !*text) return 0;
    if (text && strcmp(text, "json") == 0) return qn_form_set_object(r, "format", error);
    if (json_is_object(value)) return qn_form_set_schema(r, "format", value, error);
    return invalid(error, "format", "must be \"json\" or a JSON schema");
}

int qn_ollama_read_images(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                          qn_api_error *error)
{
    (void)limits;
    if (!json_is_array(value)) return invalid(error, "images", "must be an array");
    if (json_array_size(value)) r->images = value;
    return 0;
}

int qn_ollama_read_keep_alive(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                              qn_api_error *error)
{
    (void)limits;
    if (!json_is_string(value) && !json_is_number(value))
        return invalid(error, "keep_alive", "must be a duration (\"5m\") or a number of seconds");
    qn_api_request_warn(r, "keep_alive", "has no effect: the model stays loaded");
    return 0;
}

int qn_ollama_read_options(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                           qn_api_error *error)
{
    if (!json_is_object(value)) return invalid(error, "options", "must be an object");
    if (r->route & (QN_OLLAMA_EMBED | QN_OLLAMA_EMBEDDINGS)) {
        if (json_object_size(value)) qn_api_request_warn(r, "options", "have no effect on vectors");
        return 0;
    }
    return qn_api_request_read_members(value, "options.", qn_ollama_options, r->route, limits, r, error);
}

/* -1 and -2 are Ollama's for "no limit" and "up to the context", which is the same here. */
int qn_ollama_read_num_predict(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                               qn_api_error *error)
{
    const int64_t n = json_integer_value(value);
    (void)limits;
    if (!json_is_integer(value) || n < -2 || n > INT32_MAX)
        return invalid(error, "num_predict", "must be an integer, -1 for no limit");
    r->max_tokens = n > 0 ? n : -1;
    return 0;
}

int qn_ollama_read_num_ctx(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                           qn_api_error *error)
{
    const int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || n > INT32_MAX)
        return invalid(error, "num_ctx", "must be a number of tokens");
    if (n <= limits->context_size) return 0;
    if (limits->lenient) {
        qn_api_request_warn(r, "options.num_ctx", "is more than the context of this server holds");
        return 0;
    }
    return qn_api_fail(
        error, 400, "invalid_value", "num_ctx",
        "num_ctx is %lld, and the context of this server holds %lld tokens: quern serve --context sets "
        "it",
        (long long)n, (long long)limits->context_size);
}

/* -1 asks for a fresh one. */
int qn_ollama_read_seed(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                        qn_api_error *error)
{
    if (json_is_integer(value) && json_integer_value(value) == -1) return 0;
    return qn_field_read_seed(r, value, limits, error);
}

/* ---- what fields say together -------------------------------------------------------------------------- */

static int check_text(const json_t *value, const char *param, qn_api_error *error)
{
    if (!value || json_is_string(value)) return 0;
    return qn_api_fail(error, 400, "invalid_type", param, "%s must be a string", param);
}

static int is_empty(const json_t *text)
{
    return !json_string_length(text);
}

/* Variables that templates of models that think have: Qwen's, DeepSeek's, gpt-oss'. */
static int make_think(qn_api_request *r, const qn_api_request_limits *limits, qn_api_error *error)
{
    static const char *const levels[] = {"low", "medium", "high"};
    const char *level = json_string_value(r->think);
    size_t i = 0;
    if (!r->think) return 0;
    while (level && i < 3 && strcmp(levels[i], level) != 0) i++;
    if (level ? i == 3 : !json_is_boolean(r->think))
        return invalid(error, "think", "must be a boolean, \"low\", \"medium\" or \"high\"");
    const int is_on = level || json_is_true(r->think);
    if (is_on && !limits->has_reasoning)
        return qn_api_fail(error, 400, "unsupported_parameter", "think",
                           "think is not supported: the model does not support thinking");
    if (r->prompt || r->suffix || !limits->has_reasoning) {
        if (is_on) return invalid(error, "think", "needs a chat: neither raw nor suffix may be given");
        return 0;
    }
    r->made = json_object();
    if (json_object_set_new(r->made, "enable_thinking", json_boolean(is_on)) ||
        json_object_set_new(r->made, "thinking", json_boolean(is_on)) ||
        (level && json_object_set_new(r->made, "reasoning_effort", json_string(level))))
        return qn_api_fail_status(error, qn_fail_nomem(0));
    r->template_kwargs = r->made;
    qn_api_request_warn(r, "think",
                        "was passed to the chat template as a variable, which the template may ignore");
    return 0;
}

/* "prompt" goes through the template, unless it is raw, or what is before a gap. */
static int finish_generate(qn_api_request *r, const qn_api_request_limits *limits, qn_api_error *error)
{
    int refused = check_text(r->content, "prompt", error);
    if (!refused) refused = check_text(r->suffix, "suffix", error);
    if (!refused) refused = check_text(r->system, "system", error);
    if (refused) return refused;
    if (is_empty(r->suffix)) r->suffix = NULL;
    if (is_empty(r->system)) r->system = NULL;
    if (r->images && (r->raw || r->suffix || !limits->has_chat_template))
        return invalid(error, "images", "need a chat: neither raw nor suffix may be given");
    if (r->raw && (r->system || r->suffix))
        return invalid(error, "raw", "excludes system and suffix: the prompt is taken as it is");
    if (r->suffix && r->system)
        return invalid(error, "suffix", "excludes system: a gap is filled without the template");
    if (is_empty(r->content) && !r->suffix) {
        r->n = 0;
        return 0;
    }
    if (!r->suffix && !r->raw && !limits->has_chat_template && r->system)
        return invalid(error, "system", "has no place: the model has no chat template");
    if (!r->suffix && (r->raw || !limits->has_chat_template)) r->prompt = r->content;
    r->special = r->raw;
    return 0;
}

static int finish(qn_api_request *r, const qn_api_request_limits *limits, qn_api_error *error)
{
    const int has_text = (r->route & (QN_OLLAMA_CHAT | QN_OLLAMA_GENERATE)) != 0;
    const json_t *stream = json_object_get(r->body, "stream");
    int refused = 0;
    if (!r->model) return qn_api_fail(error, 400, "missing_parameter", "model", "model is required");
    r->ping_ms = 0; /* lines have no comments */
    if (has_text && (!stream || json_is_null(stream))) r->stream = 1;
    if (r->route == QN_OLLAMA_EMBED && !json_object_get(r->body, "truncate")) r->truncates = 1;
    if (r->route == QN_OLLAMA_CHAT && r->messages && !json_is_array(r->messages))
        return qn_api_fail(error, 400, "invalid_type", "messages", "messages must be an array");
    if (r->route == QN_OLLAMA_CHAT && !json_array_size(r->messages)) r->n = 0;
    if (r->route == QN_OLLAMA_GENERATE) refused = finish_generate(r, limits, error);
    if (!refused && has_text && r->n) refused = make_think(r, limits, error);
    if (!refused && r->top_logprobs && !r->logprobs)
        refused = qn_api_fail(error, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs");
    return refused;
}

int qn_ollama_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                   qn_api_request *out, qn_api_error *error)
{
    int refused = qn_api_request_read_fields(text, n, qn_ollama_fields, route, limits, out, error);
    if (!refused) refused = finish(out, limits, error);
    if (!refused) refused = qn_api_request_finish_tools(out, error);
    if (refused) return refused;
    qn_api_request_set_options(out, limits);
    return out->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, out->warnings.status);
}
