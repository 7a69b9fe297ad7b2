#include "server/openai/openai.h"

static const qn_route routes[] = {
    {"GET", "/v1/models", qn_route_models, 0, 1},
    {"GET", "/v1/models/", qn_route_models, 0, 1},
    {"POST", "/v1/chat/completions", qn_route_chat, 0, 1},
    {"POST", "/v1/completions", qn_route_completions, 0, 1},
    {"POST", "/v1/embeddings", qn_route_embeddings, 0, 1},
    {"POST", "/v1/decisions", qn_route_decisions, 0, 1},
};

const qn_route_table qn_openai_routes = {routes, sizeof routes / sizeof *routes, qn_openai_error_write, NULL};
