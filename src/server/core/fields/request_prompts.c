/* "prompt" and "input": a text, token ids, or an array of either. */
#include <stdio.h>

#include "server/core/request.h"

/* An array of integers is one prompt. */
static int is_list(const json_t *value)
{
    const json_t *first = json_array_get(value, 0);
    return json_is_string(first) || json_is_array(first);
}

size_t qn_api_request_count_prompts(const json_t *value)
{
    return is_list(value) ? json_array_size(value) : 1;
}

int qn_api_request_get_prompt(const json_t *value, size_t i, const char *field, int64_t vocab_size,
                              qn_api_request_prompt *out, qn_api_error *error)
{
    const json_t *prompt = is_list(value) ? json_array_get(value, i) : value;
    size_t n = json_array_size(prompt);
    out->prompt = (qn_prompt){0};
    qn_buf_reset(&out->ids);
    if (json_is_string(prompt)) {
        out->prompt.text = json_string_value(prompt);
        out->prompt.text_bytes = json_string_length(prompt);
        return 0;
    }
    if (!n)
        return qn_api_fail(error, 400, "invalid_value", field,
                           "%s must be a text, a list of token ids, or an array of these, and none may be "
                           "empty",
                           field);
    for (size_t k = 0; k < n; k++) {
        const json_t *id = json_array_get(prompt, k);
        int64_t value_of_id = json_integer_value(id);
        if (!json_is_integer(id) || value_of_id < 0 || value_of_id >= vocab_size)
            return qn_api_fail(error, 400, "invalid_value", field,
                               "%s: element %zu is not a token id from 0 to %lld", field, k,
                               (long long)vocab_size - 1);
        int32_t narrow = (int32_t)value_of_id;
        qn_buf_append(&out->ids, &narrow, sizeof narrow);
    }
    if (out->ids.status != QN_OK) return qn_api_fail_status(error, out->ids.status);
    out->row = (qn_ids){(const int32_t *)(const void *)out->ids.data, (int64_t)n};
    out->prompt.rows = &out->row;
    out->prompt.n_rows = 1;
    return 0;
}

int qn_api_request_fail_length(const char *field, int64_t n_tokens, int64_t context_size, qn_api_error *error)
{
    qn_api_fail(
        error, 400, "context_length_exceeded", field,
        "%s is too large: a length of %lld tokens exceeds the available context size; the context of this "
        "model holds %lld",
        field, (long long)n_tokens, (long long)context_size);
    error->n_prompt_tokens = n_tokens;
    error->n_ctx = context_size;
    return error->status;
}
