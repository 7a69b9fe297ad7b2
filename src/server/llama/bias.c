#include "server/llama/bias.h"

#include <math.h>
#include <quern/tokenizer.h>
#include <string.h>

#include "server/core/fields/field_readers.h"
#include "server/core/state.h"

static int invalid(qn_api_error *error, const char *sentence)
{
    return qn_api_fail(error, 400, "invalid_value", "logit_bias", "logit_bias %s", sentence);
}

/* The bias of each token of a text; a text is no special token. */
static int add_text(const qn_server *s, qn_api_request *r, const char *text, double bias, qn_api_error *error)
{
    const size_t n_bytes = strlen(text);
    int32_t *ids = NULL;
    int64_t n = 0;
    int refused = 0;
    if (n_bytes > QN_REQUEST_STOP_BYTES_MAX) return invalid(error, "has a text that is too long");
    const qn_status status =
        qn_model_encode(s->model, text, n_bytes, &(qn_encode_options){.special = 0}, &ids, &n);
    if (status != QN_OK)
        refused = qn_api_fail_status(error, status);
    else if (!n)
        refused = invalid(error, "has a text without a token");
    for (int64_t i = 0; i < n && !refused; i++)
        refused = qn_field_add_bias(r, ids[i], bias, s->info.vocab_size, error);
    qn_buffer_free(ids);
    return refused;
}

/* id: -1: the text counts. */
static int add(const qn_server *s, qn_api_request *r, int64_t id, const char *text, const json_t *value,
               qn_api_error *error)
{
    const double bias = json_is_false(value) ? (double)-INFINITY : json_number_value(value);
    if (!json_is_false(value) && (!json_is_number(value) || !(bias >= -100 && bias <= 100)))
        return invalid(error, "has a bias that is neither a number from -100 to 100 nor false");
    return id < 0 && text ? add_text(s, r, text, bias, error)
                          : qn_field_add_bias(r, id, bias, s->info.vocab_size, error);
}

static int list_ends(const qn_server *s, qn_api_request *r, qn_api_error *error)
{
    for (int32_t id = 0; r->o.ignore_eos && id < s->info.vocab_size; id++)
        if (qn_model_is_stop_id(s->model, id)) qn_buf_append(&r->end_ids, &id, sizeof id);
    return r->end_ids.status == QN_OK ? 0 : qn_api_fail_status(error, r->end_ids.status);
}

/* {"id or text": bias, ...}, or [[id or text, bias], ...]. */
int qn_llama_set_bias(const qn_server *s, qn_api_request *r, qn_api_error *error)
{
    const json_t *value = r->bias_sent;
    const char *key;
    json_t *each;
    int refused = 0;
    if (!value) return list_ends(s, r, error);
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, each) if (!refused) refused =
            add(s, r, qn_field_read_id(key), key, each, error);
    } else if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value) && !refused; i++) {
            const json_t *pair = json_array_get(value, i), *first = json_array_get(pair, 0);
            if (json_array_size(pair) != 2 || (!json_is_integer(first) && !json_is_string(first)))
                return invalid(error, "must have pairs of a token id or a text and a bias");
            refused = add(s, r, json_is_integer(first) ? json_integer_value(first) : -1,
                          json_string_value(first), json_array_get(pair, 1), error);
        }
    } else {
        return invalid(error, "must be an object of biases, or an array of pairs");
    }
    r->o.n_logit_bias = r->n_bias;
    return refused ? refused : list_ends(s, r, error);
}
