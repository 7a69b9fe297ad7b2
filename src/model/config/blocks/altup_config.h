/* The fields of alternating updates, LAuReL and sparse gates (Gemma 3n). */
#ifndef QN_MODEL_CONFIG_BLOCKS_ALTUP_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_ALTUP_CONFIG_H

#include "model/config/config.h"
#include "model/config/fields.h"

/* intermediate_size as a list with a number for each layer, into layers where that is not NULL; c->intermediate_size
 * gets the first. */
qn_status qn_altup_read_widths(const qn_fields *f, qn_layer_config *layers, qn_model_config *c);
/* All of it; c->layers is there. QN_E_FORMAT: a field is missing, of the wrong type or out of range. */
qn_status qn_altup_config_read(const qn_fields *f, qn_model_config *c);

#endif
