/* GGUF metadata under config.json's names: the one place that knows GGUF's keys for hyper-parameters. */
#ifndef QN_MODEL_CONFIG_GGUF_GGUF_CONFIG_H
#define QN_MODEL_CONFIG_GGUF_GGUF_CONFIG_H

#include "base/json/json.h"
#include "base/status.h"
#include "format/source/source.h"
#include "model/config/families.h"

/* The keys "ARCHITECTURE.*" and "tokenizer.*" that are known, of a file of the family, as an object like config.json's root (with rope_scaling inside).
 * *out is owned by the caller (json_decref). QN_E_FORMAT: a value of the wrong type. QN_E_UNSUPPORTED: a
 * value that differs between layers. */
qn_status qn_gguf_config(const qn_source *src, const char *architecture, const qn_family *family,
                         json_t **out);
/* "attention.head_count" for "num_attention_heads"; NULL when GGUF has no such key. Static storage. */
const char *qn_gguf_config_key(const char *name);
/* "bert.attention.head_count" for "attention.head_count", into text[size]; a key of the tokenizer stays. */
void qn_gguf_config_full_key(const char *architecture, const char *key, char *text, size_t size);
/* Bits of most weights by the number in general.file_type; 0: not quantised, or not known. */
int qn_gguf_file_type_bits(int64_t file_type);

#endif
