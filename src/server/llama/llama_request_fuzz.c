/* Any bytes as bodies of llama.cpp's API: the first says for which route, the rest is the body. It is read, or
 * refused with a status of the client's fault and a sentence. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"
#include "server/llama/llama.h"
#include "server/llama/request.h"
#include "server/llama/settings.h"

static void check(int ok)
{
    if (!ok) abort();
}

static void check_json(const char *text, size_t n)
{
    json_t *value = NULL;
    check(qn_json_parse("text", text, n, &value) == QN_OK);
    json_decref(value);
}

static void check_error(int status, const qn_api_error *error)
{
    qn_buf text = {0};
    check(status >= 400 && status < 500 && error->status == status && error->message[0]);
    check(qn_utf8_valid_prefix(error->message, strlen(error->message)) == strlen(error->message));
    check(qn_utf8_valid_prefix(error->param, strlen(error->param)) == strlen(error->param));
    qn_llama_error_write(error, "req_0", 0, &text);
    check(text.status == QN_OK);
    check_json(text.data, text.length);
    qn_buf_free(&text);
}

static void check_request(const qn_api_request *r, const qn_api_request_limits *limits)
{
    const qn_generate_options *o = &r->o;
    qn_buf text = {0};
    check(r->n >= 1 && r->n <= QN_REQUEST_N_MAX && o->max_tokens >= 0);
    check(o->temperature >= 0 && isfinite(o->temperature) && o->top_p > 0 && o->top_p <= 1);
    check(o->n_stop_strings <= QN_REQUEST_STOP_MAX && o->n_top_logprobs <= QN_TOP_LOGPROBS_MAX);
    check(!r->has_seed || o->seed);
    check(r->slot >= -1 && r->slot < (limits->n_slots ? limits->n_slots : 1));
    for (size_t i = 0; i < o->n_logit_bias; i++)
        check(o->logit_bias[i].id >= 0 && o->logit_bias[i].id < limits->vocab_size);
    for (size_t i = 0; i < json_array_size(r->fields); i++)
        check(json_string_length(json_array_get(r->fields, i)) > 0);
    qn_llama_write_settings(r, 1, &text);
    check(text.status == QN_OK);
    check_json(text.data, text.length);
    qn_buf_reset(&text);
    qn_buf_printf(&text, "[%s]", r->warnings.length ? r->warnings.data : "");
    check_json(text.data, text.length);
    qn_buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned routes[] = {QN_LLAMA_COMPLETION, QN_LLAMA_INFILL, QN_LLAMA_TOKENIZE,
                                      QN_LLAMA_DETOKENIZE, QN_LLAMA_EMBEDDING};
    static qn_api_request r;
    const unsigned first = size ? data[0] : 0;
    const char *body = size ? (const char *)data + 1 : "";
    const qn_api_request_limits limits = {.vocab_size = 100,
                                          .takes_pictures = 1,
                                          .default_temperature = -1,
                                          .default_top_p = -1,
                                          .default_top_k = -1,
                                          .context_size = 64,
                                          .n_slots = first & 64 ? 4 : 0,
                                          .lenient = (first & 32) != 0};
    const unsigned route = first & 128 ? (unsigned)QN_LLAMA_SLOT : routes[first % 5];
    qn_api_error error;
    const int status = qn_llama_read(body, size ? size - 1 : 0, route, &limits, &r, &error);
    if (status)
        check_error(status, &error);
    else
        check_request(&r, &limits);
    qn_api_request_free(&r);
    (void)qn_llama_is_own(body, size ? size - 1 : 0);
    return 0;
}
