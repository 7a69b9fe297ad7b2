/* Fields whose values are no plain numbers or texts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "server/core/fields/field_readers.h"

static int invalid(qn_api_error *error, const char *param, const char *sentence)
{
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

/* ---- where it ends ------------------------------------------------------------------------------------- */

/* -1 is what clients of llama.cpp and LM Studio send for "no limit". */
static int read_max(const char *param, const json_t *value, int64_t *out, qn_api_error *error)
{
    const int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < -1 || n == 0 || n > INT32_MAX)
        return qn_api_fail(error, 400, "invalid_value", param,
                           "%s must be an integer from 1 to %d, or -1 for no limit%s", param, INT32_MAX,
                           json_is_integer(value) && n == 0 ? ": an answer has at least one token" : "");
    *out = n;
    return 0;
}

int qn_field_read_max_tokens(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                             qn_api_error *error)
{
    (void)limits;
    return read_max("max_tokens", value, &r->max_tokens, error);
}

/* 0 is for an echo: its answer is the prompt alone. */
int qn_field_read_max_tokens_of_text(qn_api_request *r, const json_t *value,
                                     const qn_api_request_limits *limits, qn_api_error *error)
{
    (void)limits;
    if (json_is_integer(value) && !json_integer_value(value) &&
        json_is_true(json_object_get(r->body, "echo"))) {
        r->only_prompt = 1;
        r->max_tokens = 1;
        return 0;
    }
    return read_max("max_tokens", value, &r->max_tokens, error);
}

/* llama.cpp's name of max_tokens. */
int qn_field_read_n_predict(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                            qn_api_error *error)
{
    (void)limits;
    return read_max("n_predict", value, &r->n_predict, error);
}

int qn_field_read_max_completion_tokens(qn_api_request *r, const json_t *value,
                                        const qn_api_request_limits *limits, qn_api_error *error)
{
    (void)limits;
    return read_max("max_completion_tokens", value, &r->max_completion_tokens, error);
}

static int add_stop(qn_api_request *r, const json_t *value, qn_api_error *error)
{
    const char *text = json_string_value(value);
    size_t n = json_string_length(value);
    if (!text || !n)
        return invalid(error, "stop", "must be a string that is not empty, or an array of such strings");
    if (n > QN_REQUEST_STOP_BYTES_MAX) return invalid(error, "stop", "has a string that is too long");
    if (memchr(text, 0, n)) return invalid(error, "stop", "has a NUL character");
    if (r->n_stop == QN_REQUEST_STOP_MAX) return invalid(error, "stop", "has too many strings");
    r->stop[r->n_stop++] = text;
    return 0;
}

int qn_field_read_stop(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                       qn_api_error *error)
{
    (void)limits;
    if (!json_is_array(value)) return add_stop(r, value, error);
    for (size_t i = 0; i < json_array_size(value); i++) {
        int refused = add_stop(r, json_array_get(value, i), error);
        if (refused) return refused;
    }
    return 0;
}

static int is_id(const json_t *value, const qn_api_request_limits *limits)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) < limits->vocab_size;
}

int qn_field_read_stop_ids(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                           qn_api_error *error)
{
    if (!json_is_array(value)) return invalid(error, "stop_token_ids", "must be an array of token ids");
    if (json_array_size(value) > QN_REQUEST_STOP_IDS_MAX)
        return invalid(error, "stop_token_ids", "has too many ids");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *id = json_array_get(value, i);
        if (!is_id(id, limits)) return invalid(error, "stop_token_ids", "has an id outside the vocabulary");
        r->stop_ids[r->n_stop_ids++] = (int32_t)json_integer_value(id);
    }
    return 0;
}

/* ---- sampling ------------------------------------------------------------------------------------------ */

int qn_field_add_bias(qn_api_request *r, int64_t id, double b, int64_t vocab_size, qn_api_error *error)
{
    if (id < 0 || id >= vocab_size) return invalid(error, "logit_bias", "has an id outside the vocabulary");
    if (r->n_bias == QN_REQUEST_BIAS_MAX) return invalid(error, "logit_bias", "has too many ids");
    r->bias[r->n_bias++] = (qn_logit_bias){.id = (int32_t)id, .bias = (float)b};
    return 0;
}

static int add_bias(qn_api_request *r, int64_t id, const json_t *bias, const qn_api_request_limits *limits,
                    qn_api_error *error)
{
    const double b = json_number_value(bias);
    if (!json_is_number(bias) || !(b >= -100 && b <= 100))
        return invalid(error, "logit_bias", "has a bias that is not a number from -100 to 100");
    return qn_field_add_bias(r, id, b, limits->vocab_size, error);
}

int64_t qn_field_read_id(const char *text)
{
    int64_t id = 0;
    size_t n = strlen(text);
    if (!n || n > 10) return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return -1;
        id = id * 10 + (*text - '0');
    }
    return id;
}

/* {"id": bias, ...}, or [[id, bias], ...] */
int qn_field_read_logit_bias(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                             qn_api_error *error)
{
    const char *key;
    json_t *bias;
    int refused = 0;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, bias) if (!refused) refused =
            add_bias(r, qn_field_read_id(key), bias, limits, error);
    } else if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value) && !refused; i++) {
            const json_t *pair = json_array_get(value, i), *id = json_array_get(pair, 0);
            if (json_array_size(pair) != 2 || !json_is_integer(id))
                return invalid(error, "logit_bias", "must have pairs of a token id and a bias");
            refused = add_bias(r, json_integer_value(id), json_array_get(pair, 1), limits, error);
        }
    } else {
        return invalid(error, "logit_bias", "must be an object of biases by token id");
    }
    return refused;
}

int qn_field_read_seed(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                       qn_api_error *error)
{
    (void)limits;
    if (!json_is_integer(value)) return invalid(error, "seed", "must be an integer of 64 bits");
    r->seed = json_integer_value(value);
    r->has_seed = 1;
    return 0;
}

/* ---- how it is answered -------------------------------------------------------------------------------- */

int qn_field_read_stream_options(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                 qn_api_error *error)
{
    const char *key;
    json_t *each;
    (void)limits;
    if (!json_is_object(value)) return invalid(error, "stream_options", "must be an object");
    json_object_foreach((json_t *)value, key, each)
    {
        char param[128];
        snprintf(param, sizeof param, "stream_options.%s", key);
        if (json_is_null(each)) continue;
        if (strcmp(key, "include_usage") != 0 && strcmp(key, "include_obfuscation") != 0)
            return qn_api_fail(error, 400, "unknown_parameter", param, "unknown parameter: %s", param);
        if (!json_is_boolean(each)) return invalid(error, param, "must be a boolean");
        if (strcmp(key, "include_usage") == 0)
            r->include_usage = json_is_true(each);
        else if (json_is_true(each))
            qn_api_request_warn(r, param, "has no effect: chunks are not padded");
    }
    return 0;
}

/* llama.cpp's, in seconds: 0 and -1 are "none". The lower bound keeps a client from making work of it. */
int qn_field_read_ping(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                       qn_api_error *error)
{
    const double seconds = json_number_value(value);
    const int is_off = seconds == 0 || seconds == -1;
    (void)limits;
    if (!json_is_number(value) || (!is_off && !(seconds >= 0.1 && seconds <= INT32_MAX)))
        return invalid(error, "sse_ping_interval",
                       "must be a number of seconds, 0.1 or more, or -1 for none");
    r->ping_ms = is_off ? 0 : (int64_t)(seconds * 1000);
    return 0;
}

/* -1: the server chooses. */
int qn_field_read_slot(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                       qn_api_error *error)
{
    const json_int_t id = json_integer_value(value);
    if (!limits->n_slots) {
        qn_api_request_warn(r, "id_slot", "has no effect: all requests share one cache");
        return r->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, r->warnings.status);
    }
    if (!json_is_integer(value) || id < -1 || id >= limits->n_slots)
        return qn_api_fail(error, 400, "invalid_value", "id_slot",
                           "id_slot must be an integer from -1 to %lld", (long long)limits->n_slots - 1);
    r->slot = id;
    return 0;
}

/* The number of likeliest tokens to report; 0: that of the token alone. */
int qn_field_read_completion_logprobs(qn_api_request *r, const json_t *value,
                                      const qn_api_request_limits *limits, qn_api_error *error)
{
    (void)limits;
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > QN_REQUEST_TOP_LOGPROBS_MAX)
        return qn_api_fail(error, 400, "invalid_value", "logprobs",
                           "logprobs must be an integer from 0 to %d", (int)QN_REQUEST_TOP_LOGPROBS_MAX);
    r->logprobs = 1;
    r->top_logprobs = json_integer_value(value);
    return 0;
}

int qn_field_read_encoding(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                           qn_api_error *error)
{
    const char *text = json_string_value(value);
    (void)limits;
    if (!text || (strcmp(text, "float") != 0 && strcmp(text, "base64") != 0))
        return invalid(error, "encoding_format", "must be \"float\" or \"base64\"");
    r->base64 = strcmp(text, "base64") == 0;
    return 0;
}

/* ---- tools and templates ------------------------------------------------------------------------------- */

int qn_api_request_check_tools(const json_t *tools, qn_api_error *error)
{
    char param[128];
    if (!json_is_array(tools)) return invalid(error, "tools", "must be an array");
    if (json_array_size(tools) > QN_REQUEST_TOOLS_MAX) return invalid(error, "tools", "has too many tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
        const char *type = json_string_value(json_object_get(tool, "type")), *key;
        const json_t *strict = json_object_get(function, "strict"), *name = json_object_get(function, "name");
        const json_t *parameters = json_object_get(function, "parameters");
        json_t *each;
        snprintf(param, sizeof param, "tools[%zu].type", i);
        if (!type || strcmp(type, "function") != 0) return invalid(error, param, "must be \"function\"");
        snprintf(param, sizeof param, "tools[%zu].function", i);
        if (!json_is_object(function)) return invalid(error, param, "must be an object");
        json_object_foreach((json_t *)function, key, each)
        {
            static const char *const known[] = {"name", "description", "parameters", "strict"};
            size_t k = 0;
            while (k < 4 && strcmp(known[k], key) != 0) k++;
            snprintf(param, sizeof param, "tools[%zu].function.%s", i, key);
            if (k == 4)
                return qn_api_fail(error, 400, "unknown_parameter", param, "unknown parameter: %s", param);
        }
        snprintf(param, sizeof param, "tools[%zu].function.name", i);
        if (!json_string_length(name) || json_string_length(name) > 256)
            return invalid(error, param, "must be a string of 1 to 256 bytes");
        snprintf(param, sizeof param, "tools[%zu].function.parameters", i);
        if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
            return invalid(error, param, "must be an object");
        snprintf(param, sizeof param, "tools[%zu].function.strict", i);
        if (strict && !json_is_boolean(strict) && !json_is_null(strict))
            return invalid(error, param, "must be a boolean");
    }
    return 0;
}

static int is_off(const json_t *choice)
{
    const char *text = json_string_value(choice);
    return text && strcmp(text, "none") == 0;
}

int qn_field_read_tools(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                        qn_api_error *error)
{
    (void)limits;
    int refused = qn_api_request_check_tools(value, error);
    if (!refused && json_array_size(value) && !is_off(json_object_get(r->body, "tool_choice")))
        r->tools = value;
    return refused;
}

int qn_field_read_parallel_calls(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                 qn_api_error *error)
{
    (void)limits;
    if (!json_is_boolean(value)) return invalid(error, "parallel_tool_calls", "must be a boolean");
    r->one_tool_call = json_is_false(value);
    return 0;
}

int qn_field_read_template_kwargs(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                  qn_api_error *error)
{
    static const char *const own[] = {"messages", "tools", "add_generation_prompt", "continue_final_message"};
    if (!limits->allow_template_kwargs)
        return qn_api_fail(error, 400, "unsupported_parameter", "chat_template_kwargs",
                           "chat_template_kwargs is not supported: this server was started with "
                           "--no-template-kwargs");
    if (!json_is_object(value)) return invalid(error, "chat_template_kwargs", "must be an object");
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (json_object_get(value, own[i]))
            return invalid(error, "chat_template_kwargs",
                           "must not set messages, tools, add_generation_prompt or continue_final_message");
    r->template_kwargs = value;
    return 0;
}

int qn_field_read_effort(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                         qn_api_error *error)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const char *text = json_string_value(value);
    (void)limits;
    for (size_t i = 0; text && i < sizeof known / sizeof *known; i++)
        if (strcmp(text, known[i]) == 0) {
            r->reasoning_effort = known[i];
            qn_api_request_warn(r, "reasoning_effort",
                                "was passed to the chat template as a variable, which the template may "
                                "ignore");
            return 0;
        }
    return invalid(error, "reasoning_effort", "must be none, minimal, low, medium, high, xhigh or max");
}

int qn_field_set_budget(qn_api_request *r, const char *param, const json_t *value, qn_api_error *error)
{
    const int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < -1 || n > INT32_MAX)
        return qn_api_fail(error, 400, "invalid_value", param,
                           "%s must be an integer from 0 to %d, or -1 for no limit", param, INT32_MAX);
    if (r->budget_param && r->reasoning_budget != n)
        return qn_api_fail(error, 400, "invalid_value", param, "%s and %s have different values",
                           r->budget_param, param);
    r->reasoning_budget = n;
    r->budget_param = param;
    return 0;
}

int qn_field_read_thinking_budget(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                  qn_api_error *error)
{
    (void)limits;
    return qn_field_set_budget(r, "thinking_budget", value, error);
}

int qn_field_read_thinking_token_budget(qn_api_request *r, const json_t *value,
                                        const qn_api_request_limits *limits, qn_api_error *error)
{
    (void)limits;
    return qn_field_set_budget(r, "thinking_token_budget", value, error);
}

int qn_field_read_thinking_budget_tokens(qn_api_request *r, const json_t *value,
                                         const qn_api_request_limits *limits, qn_api_error *error)
{
    (void)limits;
    return qn_field_set_budget(r, "thinking_budget_tokens", value, error);
}

int qn_field_read_reasoning_budget(qn_api_request *r, const json_t *value,
                                   const qn_api_request_limits *limits, qn_api_error *error)
{
    (void)limits;
    return qn_field_set_budget(r, "reasoning_budget", value, error);
}

int qn_field_read_budget_message(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                 qn_api_error *error)
{
    enum { BYTES_MAX = 4096 };
    (void)limits;
    if (!json_is_string(value) || json_string_length(value) > BYTES_MAX ||
        memchr(json_string_value(value), 0, json_string_length(value)))
        return qn_api_fail(error, 400, "invalid_value", "reasoning_budget_message",
                           "reasoning_budget_message must be a string of at most %d bytes without NUL",
                           (int)BYTES_MAX);
    r->reasoning_message = json_string_value(value);
    return 0;
}

/* OpenRouter's: {"effort", "max_tokens", "enabled", "exclude"}. */
int qn_field_read_reasoning(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                            qn_api_error *error)
{
    const char *key;
    json_t *each;
    if (!json_is_object(value)) return invalid(error, "reasoning", "must be an object");
    json_object_foreach((json_t *)value, key, each)
    {
        char param[128];
        int refused = 0;
        snprintf(param, sizeof param, "reasoning.%s", key);
        if (json_is_null(each)) continue;
        if (strcmp(key, "effort") == 0)
            refused = qn_field_read_effort(r, each, limits, error);
        else if (strcmp(key, "max_tokens") == 0)
            refused = qn_field_set_budget(r, "reasoning.max_tokens", each, error);
        else if (strcmp(key, "enabled") != 0 && strcmp(key, "exclude") != 0)
            return qn_api_fail(error, 400, "unknown_parameter", param, "unknown parameter: %s", param);
        else if (!json_is_boolean(each))
            return invalid(error, param, "must be a boolean");
        else if (strcmp(key, "enabled") == 0)
            r->thinking = json_is_true(each);
        else if (json_is_true(each))
            return qn_api_fail(error, 400, "unsupported_parameter", param,
                               "reasoning.exclude is not supported: reasoning is always included");
        if (refused) return refused;
    }
    return 0;
}

/* As the Responses API has it, for what it can mean here: the context forgets its beginning. */
int qn_field_read_truncation(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                             qn_api_error *error)
{
    const char *text = json_string_value(value);
    (void)limits;
    if (!text || (strcmp(text, "auto") != 0 && strcmp(text, "disabled") != 0))
        return invalid(error, "truncation", "must be \"auto\" or \"disabled\"");
    r->o.rotate = strcmp(text, "auto") == 0;
    return 0;
}

int qn_field_read_reasoning_format(qn_api_request *r, const json_t *value,
                                   const qn_api_request_limits *limits, qn_api_error *error)
{
    const char *text = json_string_value(value);
    (void)limits;
    if (!text || (strcmp(text, "auto") != 0 && strcmp(text, "none") != 0))
        return invalid(error, "reasoning_format", "must be \"auto\" or \"none\"");
    r->plain_reasoning = strcmp(text, "none") == 0;
    return 0;
}
