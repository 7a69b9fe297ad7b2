/* Any bytes as bodies of Ollama's API: the first says for which route and model, the rest is the body. It is read,
 * or refused with a status of the client's fault and a sentence; messages come out as JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"
#include "server/ollama/ollama.h"
#include "server/ollama/request.h"

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
    qn_ollama_error_write(error, "req_0", 0, &text);
    check(text.status == QN_OK);
    check_json(text.data, text.length);
    qn_buf_free(&text);
}

static void check_request(qn_api_request *r)
{
    const qn_generate_options *o = &r->o;
    qn_api_error error;
    qn_buf warnings = {0};
    check(r->model && !r->ping_ms && r->n >= 0 && r->n <= 1 && o->max_tokens >= 0);
    check(o->temperature >= 0 && isfinite(o->temperature) && o->top_p > 0 && o->top_p <= 1);
    check(o->n_stop_strings <= QN_REQUEST_STOP_MAX && o->n_top_logprobs <= QN_TOP_LOGPROBS_MAX);
    check(!r->has_seed || o->seed);
    qn_buf_printf(&warnings, "[%s]", r->warnings.length ? r->warnings.data : "");
    check_json(warnings.data, warnings.length);
    qn_buf_free(&warnings);
    if (!(r->route & (QN_OLLAMA_CHAT | QN_OLLAMA_GENERATE)) || !r->n || r->prompt || r->suffix) return;
    const int status = qn_ollama_read_messages(r, &error);
    if (status) {
        check_error(status, &error);
    } else {
        char *text = json_dumps(r->chat, JSON_COMPACT);
        check(text && json_array_size(r->chat) > 0);
        check_json(text, strlen(text));
        free(text); /* foreign: jansson's */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned routes[] = {QN_OLLAMA_CHAT, QN_OLLAMA_GENERATE, QN_OLLAMA_EMBED,
                                      QN_OLLAMA_EMBEDDINGS, QN_OLLAMA_SHOW};
    static qn_api_request r;
    const unsigned first = size ? data[0] : 0;
    const qn_api_request_limits limits = {.vocab_size = 100,
                                          .takes_pictures = 1,
                                          .default_temperature = -1,
                                          .default_top_p = -1,
                                          .default_top_k = -1,
                                          .context_size = 64,
                                          .has_chat_template = (first & 8) != 0,
                                          .has_reasoning = (first & 16) != 0,
                                          .lenient = (first & 32) != 0};
    qn_api_error error;
    const int status = qn_ollama_read(size ? (const char *)data + 1 : "", size ? size - 1 : 0,
                                      routes[first % 5], &limits, &r, &error);
    if (status)
        check_error(status, &error);
    else
        check_request(&r);
    qn_api_request_free(&r);
    return 0;
}
