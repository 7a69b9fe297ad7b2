#include "server/llama/llama.h"

static const qn_route routes[] = {
    {"POST", "/completion", qn_route_llama_completion, 0, 1},
    {"POST", "/infill", qn_route_llama_infill, 0, 1},
    {"POST", "/tokenize", qn_route_llama_tokenize, 0, 1},
    {"POST", "/detokenize", qn_route_llama_detokenize, 0, 1},
    {"POST", "/apply-template", qn_route_llama_apply_template, 0, 1},
    {"POST", "/embedding", qn_route_llama_embedding, 0, 1},
    {"GET", "/props", qn_route_llama_props, 0, 1},
    {"POST", "/props", qn_route_llama_refused, 0, 0},
    {"GET", "/slots", qn_route_llama_slots, 0, 1},
    {"POST", "/slots/", qn_route_llama_refused, 0, 0},
    {"GET", "/version", qn_route_llama_version, 0, 0},
};

const qn_route_table qn_llama_routes = {
    .routes = routes, .n_routes = sizeof routes / sizeof *routes, .write_error = qn_llama_error_write};
