/* The vision tower of a GGUF, out of the keys clip.* of its file (qn_source_projector): the fields of config.json and of
 * preprocessor_config.json that they stand for, which vision_config.h reads as it reads those of published files. */
#ifndef QN_MODEL_CONFIG_PROJECTOR_PROJECTOR_CONFIG_H
#define QN_MODEL_CONFIG_PROJECTOR_PROJECTOR_CONFIG_H

#include "model/config/config.h"

/* Fills c->vision. The text's sizes in *c are read already. QN_E_UNSUPPORTED: the projector is of another kind, or for sound
 * alone; QN_E_FORMAT: it is damaged; QN_E_ARG: it is made for another text. */
qn_status qn_projector_config_read(qn_source *src, qn_model_config *c);

#endif
