/* What GGUF metadata says of the layers one by one, or of sliding ones beside the others, in the words of
 * config.json. A part of gguf_config.c. */
#ifndef QN_MODEL_CONFIG_GGUF_GGUF_LAYERS_H
#define QN_MODEL_CONFIG_GGUF_GGUF_LAYERS_H

#include "base/json/json.h"
#include "base/status.h"

/* root as qn_gguf_config read it. Numbers that differ between layers become num_key_value_heads with
 * num_global_key_value_heads, and intermediate_size with use_double_wide_mlp; sizes of sliding layers
 * (swa_...) become head_dim, beside global_head_dim, and rope_parameters. QN_E_UNSUPPORTED: they differ in
 * another way. */
qn_status qn_gguf_layers(const char *path, const char *architecture, json_t *root);

#endif
