#include "server/admin/admin.h"
#include "server/admin/request.h"
#include "server/core/api/about.h"
#include "server/openai/openai.h"

#define FIELDS .fields = qn_admin_fields

static const qn_route_about about_adapters = {.summary = "Lists the adapters that are loaded"};
static const qn_route_about about_adapter = {.summary = "Describes an adapter"};
static const qn_route_about about_load = {
    .summary = "Loads an adapter", .route = QN_ADMIN_LOAD, .required = "path", FIELDS};
static const qn_route_about about_unload = {.summary = "Unloads an adapter"};
static const qn_route_about about_vllm_load = {.summary = "Loads an adapter, in vLLM's form",
                                               .route = QN_ADMIN_VLLM_LOAD,
                                               .required = "lora_name lora_path",
                                               FIELDS};
static const qn_route_about about_vllm_unload = {.summary = "Unloads an adapter, in vLLM's form",
                                                 .route = QN_ADMIN_VLLM_UNLOAD,
                                                 .required = "lora_name",
                                                 FIELDS};

static const qn_route_about about_cache = {.summary = "Tells figures of the prompt cache"};
static const qn_route_about about_warm = {
    .summary = "Computes a prompt and keeps it ready", .route = QN_ADMIN_WARM, .required = "name", FIELDS};
static const qn_route_about about_unwarm = {.summary = "Keeps a prompt ready no longer"};
static const qn_route_about about_explain = {
    .summary = "Tells how much of a prompt is cached, and why no more", .route = QN_ADMIN_EXPLAIN, FIELDS};
static const qn_route_about about_save = {
    .summary = "Saves the prompt cache", .route = QN_ADMIN_CACHE_FILE, .required = "file", FIELDS};
static const qn_route_about about_restore = {
    .summary = "Loads a saved prompt cache", .route = QN_ADMIN_CACHE_FILE, .required = "file", FIELDS};

static const qn_route routes[] = {
    {"GET", "/v1/adapters", qn_route_adapters, QN_ACCESS_KEY, 1, &about_adapters, NULL},
    {"POST", "/v1/adapters", qn_route_adapter_load, QN_ACCESS_ADMIN, 1, &about_load, NULL},
    {"GET", "/v1/adapters/{adapter}", qn_route_adapters, QN_ACCESS_KEY, 1, &about_adapter, NULL},
    {"DELETE", "/v1/adapters/{adapter}", qn_route_adapter_unload, QN_ACCESS_ADMIN, 1, &about_unload, NULL},
    {"POST", "/v1/load_lora_adapter", qn_route_adapter_load, QN_ACCESS_ADMIN, 1, &about_vllm_load, NULL},
    {"POST", "/v1/unload_lora_adapter", qn_route_adapter_unload, QN_ACCESS_ADMIN, 1, &about_vllm_unload,
     NULL},
    {"GET", "/v1/cache", qn_route_cache, QN_ACCESS_KEY, 1, &about_cache, NULL},
    {"POST", "/v1/cache/warm", qn_route_cache_warm, QN_ACCESS_ADMIN, 1, &about_warm, NULL},
    {"DELETE", "/v1/cache/warm/{name}", qn_route_cache_unwarm, QN_ACCESS_ADMIN, 1, &about_unwarm, NULL},
    {"POST", "/v1/cache/explain", qn_route_cache_explain, QN_ACCESS_KEY, 1, &about_explain, NULL},
    {"POST", "/v1/cache/save", qn_route_cache_save, QN_ACCESS_ADMIN, 1, &about_save, NULL},
    {"POST", "/v1/cache/load", qn_route_cache_load, QN_ACCESS_ADMIN, 1, &about_restore, NULL},
};

const qn_route_table qn_admin_routes = {routes, sizeof routes / sizeof *routes, qn_openai_error_write, NULL};
