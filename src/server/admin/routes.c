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

static const qn_route routes[] = {
    {"GET", "/v1/adapters", qn_route_adapters, QN_ACCESS_KEY, 1, &about_adapters, NULL},
    {"POST", "/v1/adapters", qn_route_adapter_load, QN_ACCESS_ADMIN, 1, &about_load, NULL},
    {"GET", "/v1/adapters/{adapter}", qn_route_adapters, QN_ACCESS_KEY, 1, &about_adapter, NULL},
    {"DELETE", "/v1/adapters/{adapter}", qn_route_adapter_unload, QN_ACCESS_ADMIN, 1, &about_unload, NULL},
    {"POST", "/v1/load_lora_adapter", qn_route_adapter_load, QN_ACCESS_ADMIN, 1, &about_vllm_load, NULL},
    {"POST", "/v1/unload_lora_adapter", qn_route_adapter_unload, QN_ACCESS_ADMIN, 1, &about_vllm_unload,
     NULL},
};

const qn_route_table qn_admin_routes = {routes, sizeof routes / sizeof *routes, qn_openai_error_write, NULL};
