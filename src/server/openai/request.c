#include "server/openai/request.h"

#include "server/core/fields/field_readers.h"

/* What depends on two fields. */
static int finish(qn_api_request *r, const qn_api_request_limits *limits, qn_api_error *error)
{
    if (r->route == QN_REQUEST_CHAT && !r->messages)
        return qn_api_fail(error, 400, "missing_parameter", "messages", "messages is missing");
    if (r->route == QN_REQUEST_COMPLETIONS && !r->prompt)
        return qn_api_fail(error, 400, "missing_parameter", "prompt", "prompt is missing");
    if (r->route == QN_REQUEST_DECISIONS && !r->questions)
        return qn_api_fail(error, 400, "missing_parameter", "questions", "questions is missing");
    if ((r->route == QN_REQUEST_EMBEDDINGS || r->route == QN_REQUEST_DECISIONS) && !r->input)
        return qn_api_fail(error, 400, "missing_parameter", "input", "input is missing");
    if (r->continue_final > 0 && r->add_generation_prompt > 0)
        return qn_api_fail(error, 400, "invalid_value", "continue_final_message",
                           "continue_final_message and add_generation_prompt exclude each other: either the "
                           "last message is continued, or a new one is started");
    int refused = qn_api_request_finish_tools(r, error);
    if (refused) return refused;
    if (r->max_tokens && r->max_completion_tokens && r->max_tokens != r->max_completion_tokens)
        return qn_api_fail(error, 400, "invalid_value", "max_tokens",
                           "max_tokens and max_completion_tokens have different values");
    if (r->n_predict && r->max_tokens && r->n_predict != r->max_tokens)
        return qn_api_fail(error, 400, "invalid_value", "n_predict",
                           "n_predict and max_tokens have different values");
    if (!r->max_tokens) r->max_tokens = r->n_predict;
    if (r->top_logprobs && !r->logprobs)
        return qn_api_fail(error, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs");
    if (r->prompt_logprobs > 0 && r->stream)
        return qn_api_fail(
            error, 400, "invalid_value", "prompt_logprobs",
            "prompt_logprobs is not available in a stream; completions have echo with logprobs");
    if (r->prompt_logprobs == 0 && r->stream) {
        qn_api_request_warn(r, "prompt_logprobs", "has no effect in a stream");
        r->prompt_logprobs = -1;
    }
    if (r->return_ids) r->keep_tokens = 1;
    if (json_object_get(r->body, "stream_options") &&
        !json_is_null(json_object_get(r->body, "stream_options")) && !r->stream)
        return qn_api_fail(error, 400, "invalid_value", "stream_options", "stream_options needs stream");
    if (r->ping_ms > 0 && !r->stream)
        qn_api_request_warn(r, "sse_ping_interval", "has no effect: the answer is not a stream");
    if (r->wants_progress && !r->stream)
        qn_api_request_warn(r, "return_progress", "has no effect: it needs stream");
    if (!r->max_tokens) r->max_tokens = r->max_completion_tokens;
    /* As OpenAI's reference says. */
    if (!r->max_tokens && r->route == QN_REQUEST_COMPLETIONS && !limits->default_max_tokens)
        r->max_tokens = 16;
    if (r->max_tokens > 0 && r->o.min_tokens > r->max_tokens)
        return qn_api_fail(error, 400, "invalid_value", "min_tokens",
                           "min_tokens is greater than max_tokens");
    return 0;
}

int qn_api_request_read(const char *text, size_t n, unsigned route, const qn_api_request_limits *limits,
                        qn_api_request *out, qn_api_error *error)
{
    int refused = qn_api_request_read_fields(text, n, qn_api_request_fields, route, limits, out, error);
    if (!refused) refused = finish(out, limits, error);
    if (refused) return refused;
    qn_api_request_set_options(out, limits);
    return out->warnings.status == QN_OK ? 0 : qn_api_fail_status(error, out->warnings.status);
}
