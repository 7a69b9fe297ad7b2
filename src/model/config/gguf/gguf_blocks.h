/* What GGUF metadata says of indexes that choose blocks for attention, of limits of gates and of embeddings of n-grams, in
 * the words of config.json. A part of gguf_config.c. */
#ifndef QN_MODEL_CONFIG_GGUF_GGUF_BLOCKS_H
#define QN_MODEL_CONFIG_GGUF_GGUF_BLOCKS_H

#include "base/json/json.h"
#include "base/status.h"
#include "model/config/families.h"

/* root: what gguf_config.c read of the file. The sizes of blocks, one for each layer, become index_kpool and indexed_layers.
 * The flags that say which layers have an index become indexer_types. The layers of n-grams become ple_layer_ids, and their
 * width becomes ple_embed_dim. QN_E_UNSUPPORTED: numbers differ between layers, or limits between experts and the shared one. */
qn_status qn_gguf_blocks(const char *path, const char *architecture, const qn_family *family, json_t *root);

#endif
