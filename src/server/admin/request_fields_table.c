#include <stddef.h>

#include "server/admin/request.h"

#define AT(field) offsetof(qn_api_request, field)
#define LOAD QN_ADMIN_LOAD
#define VLLM_LOAD QN_ADMIN_VLLM_LOAD
#define VLLM_UNLOAD QN_ADMIN_VLLM_UNLOAD

const qn_field qn_admin_fields[] = {
    {"name", LOAD, QN_FIELD_TEXT, AT(adapter_name), 0, 0, NULL, NULL, NULL},
    {"path", LOAD, QN_FIELD_TEXT, AT(adapter_path), 0, 0, NULL, NULL, NULL},
    {"scale", LOAD, QN_FIELD_REAL, AT(adapter_scale), -1000, 1000, NULL, NULL, NULL},
    /* vLLM's names of the same. */
    {"lora_name", VLLM_LOAD | VLLM_UNLOAD, QN_FIELD_TEXT, AT(adapter_name), 0, 0, NULL, NULL, NULL},
    {"lora_path", VLLM_LOAD, QN_FIELD_TEXT, AT(adapter_path), 0, 0, NULL, NULL, NULL},
    {"load_inplace", VLLM_LOAD, QN_FIELD_REFUSED, 0, 0, 0, NULL, "[false]",
     "an adapter is not replaced while it is loaded: unload it first"},
    {"base_model_name", VLLM_LOAD, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL, "the server has one model"},
    {"lora_int_id", VLLM_UNLOAD, QN_FIELD_REPORTED, 0, 0, 0, NULL, NULL,
     "adapters have names, and no numbers"},
    {0},
};
