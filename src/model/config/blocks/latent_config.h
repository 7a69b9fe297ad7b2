/* Reading of what config.json says of multi-head latent attention. */
#ifndef QN_MODEL_CONFIG_BLOCKS_LATENT_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_LATENT_CONFIG_H

#include "model/config/config.h"
#include "model/config/fields.h"

/* The sizes, and those of heads that follow: head_dim is what is rotated. num_attention_heads was read. */
qn_status qn_latent_config_read(const qn_fields *f, qn_model_config *c);
/* Makes all layers such, when their ropes and heads were read; and the scale of attention. */
void qn_latent_config_finish(qn_model_config *c);

#endif
