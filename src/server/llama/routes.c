#include "server/core/api/about.h"
#include "server/llama/llama.h"
#include "server/llama/request.h"
#include "server/openai/request.h"

#define FIELDS .fields = qn_llama_fields

static const qn_route_about about_completion = {.summary = "Continues a text",
                                                .route = QN_LLAMA_COMPLETION,
                                                .required = "prompt",
                                                .stream = "text/event-stream",
                                                FIELDS};
static const qn_route_about about_infill = {.summary = "Fills the gap between two texts",
                                            .route = QN_LLAMA_INFILL,
                                            .stream = "text/event-stream",
                                            FIELDS};
static const qn_route_about about_tokenize = {
    .summary = "Makes token ids of a text", .route = QN_LLAMA_TOKENIZE, FIELDS};
static const qn_route_about about_detokenize = {
    .summary = "Makes a text of token ids", .route = QN_LLAMA_DETOKENIZE, FIELDS};
static const qn_route_about about_template = {.summary = "Tells the text that a chat becomes",
                                              .fields = qn_api_request_fields,
                                              .route = QN_REQUEST_CHAT,
                                              .required = "messages"};
static const qn_route_about about_embedding = {
    .summary = "Computes vectors of texts", .route = QN_LLAMA_EMBEDDING, FIELDS};
static const qn_route_about about_props = {.summary = "Tells defaults and limits"};
static const qn_route_about about_slots = {.summary = "Tells how many sequences are busy",
                                           .query = "fail_on_no_slot"};
static const qn_route_about about_slot = {.summary = "Saves, restores or erases the sequence of a slot",
                                          .route = QN_LLAMA_SLOT,
                                          .query = "action",
                                          FIELDS};
static const qn_route_about about_version = {.summary = "Tells the version of the program"};
static const qn_route_about about_adapters = {.summary = "Lists the adapters with the scales in force"};
static const qn_route_about about_refused = {.summary = "Is refused: settings are fixed", .status = 501};

static const qn_route routes[] = {
    {"POST", "/completion", qn_route_llama_completion, 0, 1, &about_completion, NULL},
    {"POST", "/infill", qn_route_llama_infill, 0, 1, &about_infill, NULL},
    {"POST", "/tokenize", qn_route_llama_tokenize, 0, 1, &about_tokenize, NULL},
    {"POST", "/detokenize", qn_route_llama_detokenize, 0, 1, &about_detokenize, NULL},
    {"POST", "/apply-template", qn_route_llama_apply_template, 0, 1, &about_template, NULL},
    {"POST", "/embedding", qn_route_llama_embedding, 0, 1, &about_embedding, NULL},
    {"GET", "/props", qn_route_llama_props, 0, 1, &about_props, NULL},
    {"POST", "/props", qn_route_llama_refused, 0, 0, &about_refused, NULL},
    {"GET", "/slots", qn_route_llama_slots, 0, 1, &about_slots, NULL},
    {"POST", "/slots/", qn_route_llama_slot_action, 0, 1, &about_slot, NULL},
    {"GET", "/lora-adapters", qn_route_llama_adapters, 0, 1, &about_adapters, NULL},
    {"POST", "/lora-adapters", qn_route_llama_refused, 0, 0, &about_refused, NULL},
    {"GET", "/version", qn_route_llama_version, 0, 0, &about_version, NULL},
};

const qn_route_table qn_llama_routes = {
    .routes = routes, .n_routes = sizeof routes / sizeof *routes, .write_error = qn_llama_error_write};
