/* Reads what config.json says of hyper-connections. */
#ifndef QN_MODEL_CONFIG_BLOCKS_HYPER_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_HYPER_CONFIG_H

#include "model/config/config.h"
#include "model/config/families.h"
#include "model/config/fields.h"

/* Fills c->hyper where the family has several streams. QN_E_FORMAT: a number is missing or out of range. */
qn_status qn_hyper_config_read(const qn_family *family, const qn_fields *f, qn_model_config *c);

#endif
