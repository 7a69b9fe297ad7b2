#include "server/core/api/about.h"
#include "server/openai/openai.h"
#include "server/openai/request.h"

#define FIELDS qn_api_request_fields

static const qn_route_about about_models = {.summary = "Lists the model and its adapters"};
static const qn_route_about about_model = {.summary = "Describes the model or an adapter"};
static const qn_route_about about_chat = {.summary = "Answers a chat",
                                          .fields = FIELDS,
                                          .route = QN_REQUEST_CHAT,
                                          .required = "messages",
                                          .stream = "text/event-stream"};
static const qn_route_about about_count = {.summary = "Counts the tokens of a chat's prompt",
                                           .fields = FIELDS,
                                           .route = QN_REQUEST_CHAT,
                                           .required = "messages"};
static const qn_route_about about_completions = {.summary = "Continues a text",
                                                 .fields = FIELDS,
                                                 .route = QN_REQUEST_COMPLETIONS,
                                                 .required = "prompt",
                                                 .stream = "text/event-stream"};
static const qn_route_about about_embeddings = {.summary = "Computes vectors of texts",
                                                .fields = FIELDS,
                                                .route = QN_REQUEST_EMBEDDINGS,
                                                .required = "input"};
static const qn_route_about about_decisions = {.summary = "Computes probabilities of answers to questions",
                                               .fields = FIELDS,
                                               .route = QN_REQUEST_DECISIONS,
                                               .required = "input questions"};

static const qn_route routes[] = {
    {"GET", "/v1/models", qn_route_models, 0, 1, &about_models, NULL},
    {"GET", "/v1/models/", qn_route_models, 0, 1, &about_model, NULL},
    {"POST", "/v1/chat/completions", qn_route_chat, 0, 1, &about_chat, NULL},
    {"POST", "/v1/chat/completions/input_tokens", qn_route_chat_count, 0, 1, &about_count, NULL},
    {"POST", "/v1/completions", qn_route_completions, 0, 1, &about_completions, NULL},
    {"POST", "/v1/embeddings", qn_route_embeddings, 0, 1, &about_embeddings, NULL},
    {"POST", "/v1/decisions", qn_route_decisions, 0, 1, &about_decisions, NULL},
};

const qn_route_table qn_openai_routes = {routes, sizeof routes / sizeof *routes, qn_openai_error_write, NULL};
