#include "server/core/api/about.h"
#include "server/ollama/ollama.h"
#include "server/ollama/request.h"

#define OPTIONS .fields = qn_ollama_fields, .member = "options", .member_fields = qn_ollama_options

static const qn_route_about about_root = {.summary = "Says that Ollama's API is there",
                                          .answer = "text/plain"};
static const qn_route_about about_version = {.summary = "Tells the version of the API"};
static const qn_route_about about_chat = {.summary = "Answers a chat",
                                          .route = QN_OLLAMA_CHAT,
                                          .required = "model",
                                          .stream = "application/x-ndjson",
                                          OPTIONS};
static const qn_route_about about_generate = {.summary = "Answers a prompt",
                                              .route = QN_OLLAMA_GENERATE,
                                              .required = "model",
                                              .stream = "application/x-ndjson",
                                              OPTIONS};
static const qn_route_about about_embed = {
    .summary = "Computes vectors of texts", .route = QN_OLLAMA_EMBED, .required = "model", OPTIONS};
static const qn_route_about about_embeddings = {
    .summary = "Computes the vector of a text", .route = QN_OLLAMA_EMBEDDINGS, .required = "model", OPTIONS};
static const qn_route_about about_tags = {.summary = "Lists models"};
static const qn_route_about about_ps = {.summary = "Lists loaded models"};
static const qn_route_about about_show = {
    .summary = "Describes the model", .fields = qn_ollama_fields, .route = QN_OLLAMA_SHOW};
static const qn_route_about about_refused = {.summary = "Is refused: a command of quern does it",
                                             .status = 501};

static const qn_route routes[] = {
    {"GET", "/", qn_route_ollama_root, 0, 0, &about_root, NULL},
    {"GET", "/api/version", qn_route_ollama_version, 0, 0, &about_version, NULL},
    {"POST", "/api/chat", qn_route_ollama_chat, 0, 1, &about_chat, NULL},
    {"POST", "/api/generate", qn_route_ollama_generate, 0, 1, &about_generate, NULL},
    {"POST", "/api/embed", qn_route_ollama_embed, 0, 1, &about_embed, NULL},
    {"POST", "/api/embeddings", qn_route_ollama_embeddings, 0, 1, &about_embeddings, NULL},
    {"GET", "/api/tags", qn_route_ollama_tags, 0, 1, &about_tags, NULL},
    {"GET", "/api/ps", qn_route_ollama_ps, 0, 1, &about_ps, NULL},
    {"POST", "/api/show", qn_route_ollama_show, 0, 1, &about_show, NULL},
    {"POST", "/api/pull", qn_route_ollama_refused, 0, 0, &about_refused, NULL},
    {"POST", "/api/create", qn_route_ollama_refused, 0, 0, &about_refused, NULL},
    {"DELETE", "/api/delete", qn_route_ollama_refused, 0, 0, &about_refused, NULL},
    {"POST", "/api/push", qn_route_ollama_refused, 0, 0, &about_refused, NULL},
    {"POST", "/api/copy", qn_route_ollama_refused, 0, 0, &about_refused, NULL},
};

const qn_route_table qn_ollama_routes = {
    .routes = routes, .n_routes = sizeof routes / sizeof *routes, .write_error = qn_ollama_error_write};
