#include "server/llama/request.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "server/core/fields/prompt_forms.h"
#include "server/llama/llama.h"

static int invalid(qn_api_error *error, const char *param, const char *sentence)
{
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

/* ---- fields -------------------------------------------------------------------------------------------- */

/* 0: the prompt alone is computed. Negative: no limit. */
static int read_limit(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error)
{
    const int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < -2 || n > INT32_MAX)
        return invalid(error, param, "must be an integer, -1 for no limit");
    r->only_prompt = n == 0;
    r->max_tokens = n > 0 ? n : n == 0 ? 1 : -1;
    return 0;
}

int qn_llama_read_n_predict(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                            qn_api_error *error)
{
    (void)limits;
    return read_limit(r, "n_predict", value, error);
}

int qn_llama_read_max_tokens(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                             qn_api_error *error)
{
    (void)limits;
    return read_limit(r, "max_tokens", value, error);
}

int qn_llama_read_n_probs(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                          qn_api_error *error)
{
    const int64_t n = json_integer_value(value);
    (void)limits;
    if (!json_is_integer(value) || n < 0 || n > QN_REQUEST_TOP_LOGPROBS_MAX)
        return qn_api_fail(error, 400, "invalid_value", "n_probs", "n_probs must be an integer from 0 to %d",
                           (int)QN_REQUEST_TOP_LOGPROBS_MAX);
    r->logprobs = n > 0;
    r->top_logprobs = n;
    return 0;
}

/* -1, and the same in 32 bits, ask for a fresh one. */
int qn_llama_read_seed(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                       qn_api_error *error)
{
    const int64_t seed = json_integer_value(value);
    if (json_is_integer(value) && (seed == -1 || seed == UINT32_MAX)) return 0;
    return qn_field_read_seed(r, value, limits, error);
}

int qn_llama_read_fields(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                         qn_api_error *error)
{
    (void)limits;
    if (!json_is_array(value)) return invalid(error, "response_fields", "must be an array of names");
    if (json_array_size(value) > QN_LLAMA_FIELDS_MAX)
        return invalid(error, "response_fields", "has too many names");
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_string_length(json_array_get(value, i)))
            return invalid(error, "response_fields", "has an entry that is not a name");
    r->fields = json_array_size(value) ? value : NULL;
    return 0;
}

int qn_llama_read_normalize(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                            qn_api_error *error)
{
    const int64_t n = json_integer_value(value);
    (void)limits;
    if (!json_is_integer(value) || (n != -1 && n != 2))
        return invalid(error, "embd_normalize", "must be 2 (a length of 1) or -1 (as it is)");
    r->no_normalise = n == -1;
    return 0;
}

/* ---- what fields say together -------------------------------------------------------------------------- */

static int check_text(const json_t *value, const char *param, qn_api_error *error)
{
    if (!value || json_is_string(value)) return 0;
    return qn_api_fail(error, 400, "invalid_type", param, "%s must be a string", param);
}

static int finish_infill(qn_api_request *r, qn_api_error *error)
{
    int refused = check_text(r->prompt, "prompt", error);
    if (!refused) refused = check_text(r->prefix, "input_prefix", error);
    if (!refused) refused = check_text(r->suffix, "input_suffix", error);
    if (!refused && !r->prefix && !r->suffix)
        refused = qn_api_fail(error, 400, "missing_parameter", "input_prefix",
                              "input_prefix is missing, and so is input_suffix");
    if (!refused && r->extra && !json_is_array(r->extra))
        refused =
            qn_api_fail(error, 400, "invalid_type", "input_extra", "input_extra must be an array of files");
    return refused;
}

static int finish(qn_api_request *r, qn_api_error *error)
{
    if (r->route == QN_LLAMA_COMPLETION && !r->prompt)
        return qn_api_fail(error, 400, "missing_parameter", "prompt", "prompt is missing");
    if (r->route == QN_LLAMA_TOKENIZE && r->prompt && r->content)
        return invalid(error, "content", "excludes prompt");
    if (r->route == QN_LLAMA_TOKENIZE && r->prompt) {
        int refused = check_text(r->prompt, "prompt", error);
        if (refused) return refused;
        /* vLLM's default */
        if (!json_is_boolean(json_object_get(r->body, "add_special_tokens"))) r->adds_special = 1;
    }
    if (r->route == QN_LLAMA_TOKENIZE && !json_is_boolean(json_object_get(r->body, "parse_special")))
        r->special = 1;
    if (r->route == QN_LLAMA_DETOKENIZE && !json_is_array(r->tokens))
        return invalid(error, "tokens", "must be an array of token ids");
    if (r->route == QN_LLAMA_EMBEDDING && !r->input)
        return qn_api_fail(error, 400, "missing_parameter", "content", "content is missing");
    if (!(r->route & (QN_LLAMA_COMPLETION | QN_LLAMA_INFILL))) return 0;
    r->special = 1;
    if (r->wants_progress && !r->stream)
        qn_api_request_warn(r, "return_progress", "has no effect: it needs stream");
    return r->route == QN_LLAMA_INFILL ? finish_infill(r, error) : 0;
}

int qn_llama_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                  qn_api_request *out, qn_api_error *error)
{
    int refused = qn_api_request_read_fields(text, n, qn_llama_fields, route, limits, out, error);
    if (!refused) refused = finish(out, error);
    if (refused) return refused;
    qn_api_request_set_options(out, limits);
    return out->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, out->warnings.status);
}

int qn_llama_is_own(const char *text, size_t n)
{
    static const char *const own[] = {
        "n_predict",           "n_probs",       "return_tokens",    "response_fields",  "n_keep",
        "post_sampling_probs", "n_indent",      "t_max_predict_ms", "t_max_prompt_ms",  "n_cmpl",
        "n_discard",           "n_cache_reuse", "min_keep",         "backend_sampling", "adaptive_target",
        "adaptive_decay"};
    json_t *body = NULL;
    int found = 0;
    if (qn_json_parse("the body", text ? text : "", n, &body) != QN_OK) return 0;
    for (size_t i = 0; i < sizeof own / sizeof *own && !found; i++)
        found = json_object_get(body, own[i]) != NULL;
    json_decref(body);
    return found;
}

int qn_llama_make_prompt(const qn_model *model, const json_t *prompt, const char *param, json_t **out,
                         qn_api_error *error)
{
    static const qn_prompt_forms forms = {
        .special = 1, .text_begins = 1, .prompts_max = QN_REQUEST_CHOICES_MAX};
    return qn_prompt_form_make(model, prompt, param, &forms, out, error);
}
