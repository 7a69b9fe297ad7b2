#include "server/core/api/about.h"
#include "server/responses/request.h"
#include "server/responses/responses.h"

#include <string.h>

#include "base/json/json_write.h"
#include "server/openai/openai.h"

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

static const qn_route_about about_create = {.summary = "Answers an input",
                                            .fields = qn_responses_fields,
                                            .route = QN_RESPONSES_CREATE,
                                            .required = "input",
                                            .stream = "text/event-stream"};
static const qn_route_about about_count = {.summary =
                                               "Counts the tokens of the prompt that the same body gives",
                                           .fields = qn_responses_fields,
                                           .route = QN_RESPONSES_COUNT,
                                           .required = "input"};
static const qn_route_about about_get = {.summary = "Gives a stored response"};
static const qn_route_about about_delete = {.summary = "Deletes a stored response"};
static const qn_route_about about_cancel = {.summary = "Cancels a response that is made in the background"};
static const qn_route_about about_items = {.summary = "Lists the input of a stored response",
                                           .query = "after limit order"};

static const qn_route routes[] = {
    {"POST", "/v1/responses", qn_route_responses, 0, 1, &about_create, NULL},
    {"POST", "/v1/responses/input_tokens", qn_route_responses_count, 0, 1, &about_count, NULL},
    {"GET", "/v1/responses/{response_id}", qn_route_response_get, 0, 0, &about_get, NULL},
    {"DELETE", "/v1/responses/{response_id}", qn_route_response_delete, 0, 0, &about_delete, NULL},
    {"POST", "/v1/responses/{response_id}/cancel", qn_route_response_cancel, 0, 0, &about_cancel, NULL},
    {"GET", "/v1/responses/{response_id}/input_items", qn_route_response_items, 0, 0, &about_items, NULL},
};

const qn_route_table qn_responses_routes = {routes, sizeof routes / sizeof *routes, write_error, NULL};
