#include "server/anthropic/anthropic.h"

static const qn_route routes[] = {
    {"POST", "/v1/messages", qn_route_messages, 0, 1},
    {"POST", "/v1/messages/count_tokens", qn_route_messages_count, 0, 1},
};

const qn_route_table qn_anthropic_routes = {routes, sizeof routes / sizeof *routes, qn_anthropic_error_write,
                                            "request-id"};
