/* The fields of Mamba-2's state space. */
#ifndef QN_MODEL_CONFIG_BLOCKS_STATE_SPACE_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_STATE_SPACE_CONFIG_H

#include "model/config/families.h"

/* Sizes, norm, biases and multipliers, into c->state_space; c->hidden_size and c->hidden_act are known. src shows what GGUF does not
 * say. QN_E_FORMAT:
 * a field is missing, of the wrong type or at odds with another. QN_E_UNSUPPORTED: an activation. */
qn_status qn_state_space_config_read(const qn_source *src, const qn_fields *f, const qn_family *family,
                                     qn_model_config *c);

#endif
