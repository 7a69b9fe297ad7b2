/* Reads what an encoder has and a decoder has not: qn_encoder_config. One thread at a time. */
#ifndef QN_MODEL_CONFIG_BLOCKS_ENCODER_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_ENCODER_CONFIG_H

#include "model/config/families.h"

/* Fills c->encoder, and norm_bias where the files say it; max_position_embeddings becomes the number of tokens that
 * have a position. Before the layers are read. root: the whole config.json. src: whose tensors say of a GGUF file what its
 * head is. QN_E_UNSUPPORTED: a decoder of an encoder's family, or another kind
 * of head; QN_E_FORMAT: a field out of range. */
qn_status qn_encoder_config_read(const qn_source *src, const qn_family *family, const qn_fields *f,
                                 const json_t *root, qn_model_config *c);
/* Windows become those of both sides. After the layers are read. */
void qn_encoder_config_finish(const qn_family *family, qn_model_config *c);

#endif
