#include "server/routes.h"
#include "server/core/api/about.h"

#include "server/admin/admin.h"
#include "server/anthropic/anthropic.h"
#include "server/files/files.h"
#include "server/llama/llama.h"
#include "server/ollama/ollama.h"
#include "server/openai/openai.h"
#include "server/rerank/rerank.h"
#include "server/responses/responses.h"

static const qn_route_about about_health = {.summary = "Tells whether the model is loaded"};
static const qn_route_about about_metrics = {.summary = "Tells figures for Prometheus",
                                             .answer = "text/plain"};
static const qn_route_about about_prompt_cache = {.summary = "Saves the prompt cache"};
/* A body with a field that only llama.cpp knows is read by that table instead. */
static const qn_route_about about_either = {.summary = "Continues a text, in OpenAI's form or in llama.cpp's",
                                            .body = "application/json",
                                            .parts = "{\"type\":\"object\"}",
                                            .stream = "text/event-stream"};
static const qn_route_about about_openapi = {.summary = "Describes the API"};

static const qn_route own[] = {
    {"GET", "/health", qn_route_health, 1, 0, &about_health, NULL},
    {"GET", "/v1/health", qn_route_health, 1, 0, &about_health, NULL},
    {"GET", "/metrics", qn_route_metrics, 0, 0, &about_metrics, NULL},
    {"POST", "/prompt-cache", qn_route_prompt_cache, 0, 1, &about_prompt_cache, NULL},
    {"POST", "/completions", qn_route_completions_either, 0, 1, &about_either, NULL},
    {"GET", "/openapi.json", qn_route_openapi, 0, 0, &about_openapi, NULL},
};

static const qn_route_table own_table = {own, sizeof own / sizeof *own, qn_openai_error_write, NULL};

const qn_route_table *const qn_server_tables[QN_SERVER_TABLES] = {
    &qn_openai_routes, &qn_responses_routes, &qn_anthropic_routes, &qn_ollama_routes, &qn_llama_routes,
    &qn_files_routes,  &qn_admin_routes,     &qn_rerank_routes,    &own_table};
