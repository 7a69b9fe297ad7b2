/* Any bytes as bodies of /v1/messages: the first says for which route, the rest is the body. It is read, or
 * refused with a status of the client's fault and a sentence; messages and tools come out as JSON. */
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"
#include "server/anthropic/anthropic.h"
#include "server/anthropic/request.h"

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
    qn_anthropic_error_write(error, "req_0", 0, &text);
    check(text.status == QN_OK);
    check_json(text.data, text.length);
    qn_buf_free(&text);
}

static void check_value(const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT);
    check(text != NULL);
    check_json(text, strlen(text));
    free(text); /* foreign: jansson's */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static qn_api_request r;
    const qn_api_request_limits limits = {
        .vocab_size = 100, .default_temperature = -1, .default_top_p = -1, .default_top_k = -1};
    const unsigned route = size && data[0] % 2 ? QN_ANTHROPIC_COUNT : QN_ANTHROPIC_MESSAGES;
    qn_api_error error;
    int status = qn_anthropic_read(size ? (const char *)data + 1 : "", size ? size - 1 : 0, route, &limits,
                                   &r, &error);
    if (!status) {
        check(route == QN_ANTHROPIC_COUNT || r.o.max_tokens > 0);
        check(r.o.n_stop_strings <= QN_REQUEST_STOP_MAX);
        check(!r.tools || json_array_size(r.tools) <= QN_REQUEST_TOOLS_MAX);
        if (r.tools) check_value(r.tools);
        status = qn_anthropic_read_messages(&r, &error);
        if (!status) check_value(r.chat);
    }
    if (status) check_error(status, &error);
    if (r.warnings.length) {
        qn_buf list = {0};
        qn_buf_printf(&list, "[%s]", r.warnings.data);
        check_json(list.data, list.length);
        qn_buf_free(&list);
    }
    qn_api_request_free(&r);
    return 0;
}
