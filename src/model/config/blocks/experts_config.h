/* Reading what a model's description says of its experts. */
#ifndef QN_MODEL_CONFIG_BLOCKS_EXPERTS_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_EXPERTS_CONFIG_H

#include "model/config/config.h"
#include "model/config/families.h"
#include "model/config/fields.h"

/* Fills c->experts and says of each layer (c->layers are there) whether it has experts and a dense block. For
 * a family without experts a description that speaks of some is refused by the field. */
qn_status qn_experts_config_read(const qn_family *family, const qn_fields *f, qn_model_config *c);

#endif
