#include "server/llama/request.h"

#include <quern/tokenizer.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
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

/* The one place where a form of answers comes in: "grammar" and "json_schema". */
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
    static const char *const own[] = {"n_predict",       "n_probs",          "return_tokens",
                                      "response_fields", "n_keep",           "post_sampling_probs",
                                      "n_indent",        "t_max_predict_ms", "n_cmpl"};
    json_t *body = NULL;
    int found = 0;
    if (qn_json_parse("the body", text ? text : "", n, &body) != QN_OK) return 0;
    for (size_t i = 0; i < sizeof own / sizeof *own && !found; i++)
        found = json_object_get(body, own[i]) != NULL;
    json_decref(body);
    return found;
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

static int fail_memory(qn_api_error *error)
{
    return qn_api_fail_status(error, qn_fail_nomem(0));
}

static int fail_form(const char *param, qn_api_error *error)
{
    return qn_api_fail(
        error, 400, "invalid_value", param,
        "%s must be a text, a list of token ids and texts, {\"prompt_string\": text}, or an array of these",
        param);
}

/* Does a list have texts, and ids? */
static void look_at(const json_t *list, int *has_texts, int *has_ids)
{
    *has_texts = *has_ids = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        *has_texts |= json_is_string(json_array_get(list, i));
        *has_ids |= json_is_integer(json_array_get(list, i));
    }
}

/* A list of texts and ids, as ids. A text at the beginning gets what the tokenizer puts before one. */
static int join(const qn_model *model, const json_t *list, const char *param, json_t **out,
                qn_api_error *error)
{
    json_t *ids = json_array();
    int refused = ids ? 0 : fail_memory(error);
    for (size_t i = 0; i < json_array_size(list) && !refused; i++) {
        const json_t *each = json_array_get(list, i);
        int32_t *of_text = NULL;
        int64_t n = 0;
        if (json_is_integer(each)) {
            if (json_array_append(ids, (json_t *)each)) refused = fail_memory(error);
            continue;
        }
        if (!json_is_string(each)) {
            refused = fail_form(param, error);
            continue;
        }
        const qn_encode_options options = {.special = 1, .bos = i == 0};
        const qn_status status =
            qn_model_encode(model, json_string_value(each), json_string_length(each), &options, &of_text, &n);
        if (status != QN_OK) refused = qn_api_fail_status(error, status);
        for (int64_t k = 0; k < n && !refused; k++)
            if (json_array_append_new(ids, json_integer(of_text[k]))) refused = fail_memory(error);
        qn_buffer_free(of_text);
    }
    if (refused)
        json_decref(ids);
    else
        *out = ids;
    return refused;
}

static int make_one(const qn_model *model, const json_t *prompt, const char *param, json_t **out,
                    qn_api_error *error)
{
    const json_t *text = json_object_get(prompt, "prompt_string"),
                 *data = json_object_get(prompt, "multimodal_data");
    int has_texts, has_ids;
    if (json_is_object(prompt)) {
        if (!json_is_string(text)) return fail_form(param, error);
        if (data && !json_is_null(data) && (!json_is_array(data) || json_array_size(data)))
            return qn_api_fail(error, 400, "unsupported_content", param,
                               "%s: multimodal_data is not supported: only text is taken", param);
        *out = json_incref((json_t *)text);
        return 0;
    }
    look_at(prompt, &has_texts, &has_ids);
    if (has_texts) return join(model, prompt, param, out, error);
    if (!json_is_string(prompt) && !has_ids) return fail_form(param, error);
    *out = json_incref((json_t *)prompt);
    return 0;
}

int qn_llama_make_prompt(const qn_model *model, const json_t *prompt, const char *param, json_t **out,
                         qn_api_error *error)
{
    int has_texts, has_ids, refused = 0;
    look_at(prompt, &has_texts, &has_ids);
    if (!json_is_array(prompt) || has_ids) return make_one(model, prompt, param, out, error);
    if (!json_array_size(prompt)) return fail_form(param, error);
    if (json_array_size(prompt) > QN_REQUEST_CHOICES_MAX)
        return qn_api_fail(error, 400, "invalid_value", param, "%s has %zu prompts, at most %d are allowed",
                           param, json_array_size(prompt), (int)QN_REQUEST_CHOICES_MAX);
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(prompt) && !refused; i++) {
        json_t *one = NULL;
        refused = make_one(model, json_array_get(prompt, i), param, &one, error);
        if (!refused && json_array_append_new(list, one)) refused = fail_memory(error);
    }
    if (refused)
        json_decref(list);
    else
        *out = list;
    return refused;
}
