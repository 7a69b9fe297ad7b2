#include "server/responses/responses.h"

#include <string.h>

#include "base/json/json_write.h"
#include "server/openai/openai.h"

void qn_route_responses_stored(qn_exchange *ex)
{
    qn_api_error error;
    qn_api_fail(
        &error, 404, "response_not_found", "response_id",
        "this server stores no responses: each ends with its request, and \"store\" is answered false");
    qn_exchange_fail(ex, &error);
}

/* In a stream: an event of the type "error", with its members also where clients of the chat look for them. */
static void write_error(const qn_api_error *e, const char *request_id, int in_stream, qn_buf *out)
{
    if (!in_stream) {
        qn_openai_error_write(e, request_id, 0, out);
        return;
    }
    qn_buf inner = {0};
    qn_openai_error_write(e, request_id, 0, &inner); /* {"error":{...}} */
    qn_buf_puts(out, "event: error\ndata: {");
    qn_json_put_text(out, "type", "error");
    qn_json_put_text(out, "code", e->code ? e->code : "server_error");
    qn_json_put_text(out, "message", e->message);
    qn_json_put_text(out, "param", e->param);
    if (inner.status == QN_OK && inner.length > 2) {
        qn_buf_putc(out, ',');
        qn_buf_append(out, inner.data + 1, inner.length - 2);
    }
    qn_buf_puts(out, "}\n\n");
    qn_buf_free(&inner);
}

/* Those of one response come last: their path stands for all below it. */
static const qn_route routes[] = {
    {"POST", "/v1/responses", qn_route_responses, 0, 1},
    {"POST", "/v1/responses/input_tokens", qn_route_responses_count, 0, 1},
    {"GET", "/v1/responses/", qn_route_responses_stored, 0, 0},
    {"DELETE", "/v1/responses/", qn_route_responses_stored, 0, 0},
    {"POST", "/v1/responses/", qn_route_responses_stored, 0, 0},
};

const qn_route_table qn_responses_routes = {routes, sizeof routes / sizeof *routes, write_error, NULL};
