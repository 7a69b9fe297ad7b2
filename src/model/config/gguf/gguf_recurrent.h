/* What GGUF metadata and tensors say of layers that recur, in the words of config.json. A part of gguf_config.c. */
#ifndef QN_MODEL_CONFIG_GGUF_GGUF_RECURRENT_H
#define QN_MODEL_CONFIG_GGUF_GGUF_RECURRENT_H

#include "base/json/json.h"
#include "base/status.h"
#include "format/source/source.h"
#include "model/config/families.h"

/* root: what gguf_config.c read of the file, of a family whose layers may recur, or have several
 * residual streams. It gets layer_types, where the file says
 * of each layer whether it recurs: recurrent_layers, or no heads of keys. Layers for drafts are left out. Numbers that differ
 * between layers because some have no such block become one number. Sizes that a tensor alone shows are
 * added. QN_E_UNSUPPORTED: they differ in another way. */
qn_status qn_gguf_recurrent(const qn_source *src, const char *architecture, const qn_family *family,
                            json_t *root);

#endif
