/* The layers of a model's description: which of them slide, and how each rotates queries and keys. A part of
 * config.c. */
#ifndef QN_MODEL_CONFIG_LAYER_CONFIG_H
#define QN_MODEL_CONFIG_LAYER_CONFIG_H

#include "model/config/config.h"
#include "model/config/families.h"
#include "model/config/fields.h"

/* Fills rope, n_rope and layers of c, whose sizes are read already. What was allocated is c's, also on
 * failure. rope, notes: as of qn_config_read_changed. */
qn_status qn_layer_config_read(const qn_source *src, const qn_family *family, const qn_fields *f,
                               const qn_rope_options *rope, qn_buf *notes, qn_model_config *c);

#endif
