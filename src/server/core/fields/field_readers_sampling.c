/* Fields of the sampler chain that are lists. */
#include <string.h>

#include "server/core/fields/field_readers.h"

static int invalid(qn_api_error *error, const char *param, const char *sentence)
{
    return qn_api_fail(error, 400, "invalid_value", param, "%s %s", param, sentence);
}

/* A text of a list; NULL: it is none that could be matched. */
static const char *read_text(const json_t *value)
{
    const char *text = json_string_value(value);
    const size_t n = json_string_length(value);
    return text && n && n <= QN_REQUEST_STOP_BYTES_MAX && !memchr(text, 0, n) ? text : NULL;
}

/* Names of steps, ours or llama.cpp's. Mirostat has no name in llama.cpp: it draws last if it is set and
 * not listed. */
int qn_field_read_samplers(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                           qn_api_error *error)
{
    unsigned used = 0;
    (void)limits;
    if (!json_is_array(value)) return invalid(error, "samplers", "must be an array of names");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *name = json_array_get(value, i);
        qn_sampler_step step;
        if (!json_is_string(name) ||
            !qn_sampler_step_from_name(json_string_value(name), json_string_length(name), &step))
            return invalid(error, "samplers", "has an entry that is not a step of the sampler chain");
        if (used & 1u << step) return invalid(error, "samplers", "has a step twice");
        if (used & 1u << QN_SAMPLER_MIROSTAT)
            return invalid(error, "samplers", "has a step after mirostat, which must be the last");
        used |= 1u << step;
        r->steps[r->n_steps++] = step;
    }
    r->has_steps = 1;
    return 0;
}

int qn_field_read_adaptive_target(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                  qn_api_error *error)
{
    static const char param[] = "adaptive_target";
    (void)r, (void)limits;
    if (!json_is_number(value))
        return qn_api_fail(error, 400, "invalid_type", param, "%s must be a number", param);
    if (json_number_value(value) < 0) return 0; /* off */
    return qn_api_fail(error, 400, "unsupported_parameter", param,
                       "%s is not supported: there is no adaptive sampler; a negative value turns it off",
                       param);
}

int qn_field_read_breakers(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                           qn_api_error *error)
{
    static const char param[] = "dry_sequence_breakers";
    (void)limits;
    if (!json_is_array(value)) return invalid(error, param, "must be an array of strings");
    if (json_array_size(value) > QN_REQUEST_BREAKERS_MAX)
        return invalid(error, param, "has too many strings");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *text = read_text(json_array_get(value, i));
        if (!text)
            return invalid(error, param, "has an entry that is not a string, is empty, or is too long");
        r->breakers[r->n_breakers++] = text;
    }
    r->has_breakers = 1;
    return 0;
}

/* Appends the ids of a list to a buffer. */
static int add_ids(const char *param, const json_t *list, size_t most, const qn_api_request_limits *limits,
                   qn_buf *to, qn_api_error *error)
{
    const size_t n = json_array_size(list);
    if (!n) return invalid(error, param, "has an empty list of token ids");
    if (n > most) return invalid(error, param, "has too many token ids");
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        const int64_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= limits->vocab_size)
            return invalid(error, param, "has an id outside the vocabulary");
        qn_buf_append(to, &(int32_t){(int32_t)id}, sizeof(int32_t));
    }
    return to->status == QN_OK ? 0 : qn_api_fail_status(error, to->status);
}

/* Strings, or lists of token ids. */
int qn_field_read_bad_words(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                            qn_api_error *error)
{
    static const char param[] = "bad_words";
    if (!json_is_array(value))
        return invalid(error, param, "must be an array of strings or lists of token ids");
    if (json_array_size(value) > QN_REQUEST_BAD_WORDS_MAX)
        return invalid(error, param, "has too many entries");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *word = json_array_get(value, i);
        const char *text = read_text(word);
        if (!json_is_array(word)) {
            if (!text)
                return invalid(error, param, "has an entry that is not a string, is empty, or is too long");
            r->bad_words[r->n_bad_words++] = text;
            continue;
        }
        const int refused = add_ids(param, word, QN_BAD_WORD_TOKENS_MAX, limits, &r->ids, error);
        if (refused) return refused;
        r->bad_ids[r->n_bad_ids++].n_ids = (int64_t)json_array_size(word);
    }
    return 0;
}

int qn_field_read_allowed_ids(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                              qn_api_error *error)
{
    static const char param[] = "allowed_token_ids";
    if (!json_is_array(value)) return invalid(error, param, "must be an array of token ids");
    return add_ids(param, value, (size_t)limits->vocab_size, limits, &r->allowed_ids, error);
}
