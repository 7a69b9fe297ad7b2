/* The tensors of a vision tower: what they are called and which shapes the config gives them. Numbered, so
 * that who finds, packs or locks weights needs no table of its own. Constant data: any thread. */
#ifndef QN_MODEL_WEIGHTS_VISION_ROLES_H
#define QN_MODEL_WEIGHTS_VISION_ROLES_H

#include "format/source/source.h"
#include "model/config/config.h"

/* Shapes: E embed_dim, F its intermediate_size, M patches of a token times E, H hidden_size of the text. */
typedef enum {
    QN_VISION_PATCH, /* [E, 3, temporal_patch_size, patch_size, patch_size] in files, [E, the rest] here */
    QN_VISION_MERGER_NORM, /* [E] */
    QN_VISION_MERGER_NORM_BIAS,
    QN_VISION_MERGER_UP, /* [M, M] */
    QN_VISION_MERGER_UP_BIAS,
    QN_VISION_MERGER_DOWN, /* [H, M] */
    QN_VISION_MERGER_DOWN_BIAS,
    QN_VISION_MODEL_COUNT,
    /* From here on one per layer. */
    QN_VISION_NORM1 = QN_VISION_MODEL_COUNT, /* [E] before attention */
    QN_VISION_NORM1_BIAS,
    QN_VISION_QKV, /* [3 E, E] */
    QN_VISION_QKV_BIAS,
    QN_VISION_PROJ, /* [E, E] */
    QN_VISION_PROJ_BIAS,
    QN_VISION_NORM2, /* [E] before the MLP */
    QN_VISION_NORM2_BIAS,
    QN_VISION_FC1, /* [F, E] */
    QN_VISION_FC1_BIAS,
    QN_VISION_FC2, /* [E, F] */
    QN_VISION_FC2_BIAS,
    QN_VISION_ROLE_COUNT
} qn_vision_role;

enum { QN_VISION_DIMS_MAX = 5, QN_VISION_NAME_MAX = 128 };

/* Tensors of the tower; 0: there is none. */
int64_t qn_vision_count(const qn_vision_config *v);
/* Number of the tensor of a role; layer: 0 for those of the whole tower. */
int64_t qn_vision_index(qn_vision_role role, int64_t layer);
/* Name and shape of tensor i in files of this kind; returns the number of dimensions. In bin_weights the names
 * are those of safetensors as the decoder's are: "visual.blocks.3.attn.qkv.weight" is
 * "visual.block3.attn.qkv.bin". */
int qn_vision_tensor(const qn_model_config *c, qn_source_kind kind, int64_t i, char name[QN_VISION_NAME_MAX],
                     int64_t shape[QN_VISION_DIMS_MAX]);

#endif
