#include "server/routes.h"

#include "server/anthropic/anthropic.h"
#include "server/llama/llama.h"
#include "server/ollama/ollama.h"
#include "server/openai/openai.h"
#include "server/responses/responses.h"

static const qn_route own[] = {
    {"GET", "/health", qn_route_health, 1, 0},
    {"GET", "/metrics", qn_route_metrics, 0, 0},
    {"POST", "/prompt-cache", qn_route_prompt_cache, 0, 1},
    {"POST", "/completions", qn_route_completions_either, 0, 1},
};

static const qn_route_table own_table = {own, sizeof own / sizeof *own, qn_openai_error_write, NULL};

const qn_route_table *const qn_server_tables[QN_SERVER_TABLES] = {&qn_openai_routes,    &qn_responses_routes,
                                                                  &qn_anthropic_routes, &qn_ollama_routes,
                                                                  &qn_llama_routes,     &own_table};
