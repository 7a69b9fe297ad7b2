/* Heads that differ between the layers of a model, and layers that read the keys and values of another one. A
 * part of layer_config.c. */
#ifndef QN_MODEL_CONFIG_LAYER_HEADS_H
#define QN_MODEL_CONFIG_LAYER_HEADS_H

#include "model/config/config.h"
#include "model/config/families.h"
#include "model/config/fields.h"

/* Sets head_dim, num_key_value_heads, value_is_key, kv_layer and intermediate_size of c->layers, whose kinds
 * are known; head_dim of c where the files do not say it. QN_E_FORMAT: a field is out of range or at odds
 * with another. */
qn_status qn_layer_heads_read(const qn_source *src, const qn_family *family, const qn_fields *f,
                              qn_model_config *c);

#endif
