/* The tensors of a vision tower: what they are called and which shapes the config gives them. Numbered, so
 * that who finds, packs or locks weights needs no table of its own. Constant data: any thread. */
#ifndef QN_MODEL_WEIGHTS_VISION_ROLES_H
#define QN_MODEL_WEIGHTS_VISION_ROLES_H

#include "format/source/source.h"
#include "model/config/blocks/vision_family.h"
#include "model/config/config.h"

enum { QN_VISION_DIMS_MAX = 5, QN_VISION_NAME_MAX = 128 };

/* Numbers in use; 0: there is no tower. Some are of tensors that this tower does not have. */
int64_t qn_vision_count(const qn_vision_config *v);
/* Number of the tensor of a role; layer: 0 for those of the whole tower. */
int64_t qn_vision_index(qn_vision_role role, int64_t layer);
/* Name and shape of tensor i in files of this kind; returns the number of dimensions, 0: the tower has no such tensor.
 * In bin_weights the names are those of safetensors as the decoder's are: "visual.blocks.3.attn.qkv.weight" is
 * "visual.block3.attn.qkv.bin". */
int qn_vision_tensor(const qn_model_config *c, qn_source_kind kind, int64_t i, char name[QN_VISION_NAME_MAX],
                     int64_t shape[QN_VISION_DIMS_MAX]);
/* The i-th of the matrices whose inputs and outputs have bounds; QN_VISION_ROLE_COUNT: there are no more. */
qn_vision_role qn_vision_bounded(int i);
/* 1: tensor i is no matrix of a product: it is kept as plain floats. */
int qn_vision_is_plain(int64_t i);

#endif
