/* Reading of what config.json says of the index that chooses blocks for attention. */
#ifndef QN_MODEL_CONFIG_BLOCKS_INDEX_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_INDEX_CONFIG_H

#include "model/config/families.h"

/* Sizes into c->index, and which layers are indexed by themselves or by a layer before; c->layers is there, its mixers
 * known. Does nothing where the family has no index. QN_E_FORMAT: a field is missing, of the wrong type or at odds with
 * another. */
qn_status qn_index_config_read(const qn_fields *f, const qn_family *family, qn_model_config *c);

/* Numbers of a row that a convolution carries on to the last row of the block: of a mean the key and the row's positions
 * in pictures, where there are such; else the key and its weights, once for each place in the block. */
int64_t qn_index_channels(const qn_model_config *c);

#endif
