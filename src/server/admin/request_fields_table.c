#include <stddef.h>

#include "server/admin/request.h"
#include "server/core/fields/field_readers.h"

#define AT(field) offsetof(qn_api_request, field)
#define LOAD QN_ADMIN_LOAD
#define VLLM_LOAD QN_ADMIN_VLLM_LOAD
#define VLLM_UNLOAD QN_ADMIN_VLLM_UNLOAD
#define PROMPT (QN_ADMIN_WARM | QN_ADMIN_EXPLAIN)

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
    /* a prompt, as chats and completions have it */
    {"model", PROMPT, QN_FIELD_TEXT, AT(model), 0, 0, NULL, NULL, NULL},
    {"messages", PROMPT, QN_FIELD_JSON, AT(messages), 0, 0, NULL, NULL, NULL},
    {"prompt", PROMPT, QN_FIELD_JSON, AT(prompt), 0, 0, NULL, NULL, NULL},
    {"tools", PROMPT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_tools, NULL, NULL},
    {"chat_template_kwargs", PROMPT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_template_kwargs, NULL, NULL},
    {"reasoning_effort", PROMPT, QN_FIELD_OWN, 0, 0, 0, qn_field_read_effort, NULL, NULL},
    {"cache_salt", PROMPT, QN_FIELD_TEXT, AT(cache_salt), 0, 0, NULL, NULL, NULL},
    {"api_key", PROMPT, QN_FIELD_TEXT, AT(api_key), 0, 0, NULL, NULL, NULL},
    {"name", QN_ADMIN_WARM, QN_FIELD_TEXT, AT(cache_name), 0, 0, NULL, NULL, NULL},
    {"file", QN_ADMIN_CACHE_FILE, QN_FIELD_TEXT, AT(cache_file), 0, 0, NULL, NULL, NULL},
    {0},
};
