#include "server/anthropic/anthropic.h"
#include "server/anthropic/request.h"
#include "server/core/api/about.h"

static const qn_route_about about_messages = {.summary = "Answers messages",
                                              .fields = qn_anthropic_fields,
                                              .route = QN_ANTHROPIC_MESSAGES,
                                              .required = "messages max_tokens",
                                              .stream = "text/event-stream"};
static const qn_route_about about_count = {.summary =
                                               "Counts the tokens of the prompt that the same body gives",
                                           .fields = qn_anthropic_fields,
                                           .route = QN_ANTHROPIC_COUNT,
                                           .required = "messages"};

static const qn_route routes[] = {
    {"POST", "/v1/messages", qn_route_messages, 0, 1, &about_messages, NULL},
    {"POST", "/v1/messages/count_tokens", qn_route_messages_count, 0, 1, &about_count, NULL},
};

const qn_route_table qn_anthropic_routes = {routes, sizeof routes / sizeof *routes, qn_anthropic_error_write,
                                            "request-id"};
