#include "server/ollama/ollama.h"

static const qn_route routes[] = {
    {"GET", "/", qn_route_ollama_root, 0, 0},
    {"GET", "/api/version", qn_route_ollama_version, 0, 0},
    {"POST", "/api/chat", qn_route_ollama_chat, 0, 1},
    {"POST", "/api/generate", qn_route_ollama_generate, 0, 1},
    {"POST", "/api/embed", qn_route_ollama_embed, 0, 1},
    {"POST", "/api/embeddings", qn_route_ollama_embeddings, 0, 1},
    {"GET", "/api/tags", qn_route_ollama_tags, 0, 1},
    {"GET", "/api/ps", qn_route_ollama_ps, 0, 1},
    {"POST", "/api/show", qn_route_ollama_show, 0, 1},
    {"POST", "/api/pull", qn_route_ollama_refused, 0, 0},
    {"POST", "/api/create", qn_route_ollama_refused, 0, 0},
    {"DELETE", "/api/delete", qn_route_ollama_refused, 0, 0},
    {"POST", "/api/push", qn_route_ollama_refused, 0, 0},
    {"POST", "/api/copy", qn_route_ollama_refused, 0, 0},
};

const qn_route_table qn_ollama_routes = {
    .routes = routes, .n_routes = sizeof routes / sizeof *routes, .write_error = qn_ollama_error_write};
