/* The vision towers that are known, one row each: which files have one, what they call its tensors, and what they
 * fix without saying it. A new tower of known blocks is a new row. Constant data: any thread. */
#ifndef QN_MODEL_CONFIG_BLOCKS_VISION_FAMILY_H
#define QN_MODEL_CONFIG_BLOCKS_VISION_FAMILY_H

#include "model/config/blocks/vision_config.h"

/* Tensors of a tower. Shapes: E embed_dim, A all heads, F intermediate_size, P floats of a patch, M what a token is
 * merged of, X merger_width, Y output_width, H hidden_size of the text. The bias of a matrix or norm is the next role.
 * Those of a deepstack are numbered as deepstack_layers is. */
typedef enum {
    QN_VISION_PATCH_NORM, /* [P] of the floats of a patch */
    QN_VISION_PATCH_NORM_BIAS,
    QN_VISION_PATCH, /* [E, P] */
    QN_VISION_PATCH_BIAS,
    QN_VISION_EMBED_NORM, /* [E] of embedded patches, before the learned positions */
    QN_VISION_EMBED_NORM_BIAS,
    QN_VISION_CLASS,     /* [E] */
    QN_VISION_POSITIONS, /* [n_positions, E], or as many rows for each of two axes */
    QN_VISION_PRE_NORM,  /* [E] behind the learned positions */
    QN_VISION_PRE_NORM_BIAS,
    QN_VISION_POST_NORM, /* [E] behind the last layer */
    QN_VISION_POST_NORM_BIAS,
    QN_VISION_SHIFT,       /* [E], taken from what the patches of a token became */
    QN_VISION_SPREAD,      /* [E], multiplies that */
    QN_VISION_MERGER_NORM, /* [E] of patches, or [M] of what is merged */
    QN_VISION_MERGER_NORM_BIAS,
    QN_VISION_MERGER, /* [E, M] */
    QN_VISION_MERGER_BIAS,
    QN_VISION_MERGER_UP, /* [X, M]; with a merger of its own, or a mean, [X, E] */
    QN_VISION_MERGER_UP_BIAS,
    QN_VISION_MERGER_DOWN, /* [Y, X]; without the one above [Y, M] or [Y, E] */
    QN_VISION_MERGER_DOWN_BIAS,
    QN_VISION_PROJECTION, /* [H, Y] */
    QN_VISION_PROJECTION_BIAS,
    QN_VISION_TURNED_PROJECTION, /* [E, H] */
    QN_VISION_MODEL_COUNT,
    /* From here on one per layer. */
    QN_VISION_NORM1 = QN_VISION_MODEL_COUNT, /* [E] before attention */
    QN_VISION_NORM1_BIAS,
    QN_VISION_QKV, /* [3 A, E] */
    QN_VISION_QKV_BIAS,
    QN_VISION_Q, /* [A, E] */
    QN_VISION_Q_BIAS,
    QN_VISION_K,
    QN_VISION_K_BIAS,
    QN_VISION_V,
    QN_VISION_V_BIAS,
    QN_VISION_Q_NORM, /* [A], or [head_dim] */
    QN_VISION_K_NORM,
    QN_VISION_PROJ, /* [E, A] */
    QN_VISION_PROJ_BIAS,
    QN_VISION_POST_NORM1, /* [E] of what attention gives */
    QN_VISION_SCALE1,     /* [E], multiplies that */
    QN_VISION_NORM2,      /* [E] before the MLP */
    QN_VISION_NORM2_BIAS,
    QN_VISION_GATE, /* [F, E] */
    QN_VISION_GATE_BIAS,
    QN_VISION_FC1, /* [F, E] */
    QN_VISION_FC1_BIAS,
    QN_VISION_FC2, /* [E, F] */
    QN_VISION_FC2_BIAS,
    QN_VISION_POST_NORM2, /* [E] of what the MLP gives */
    QN_VISION_SCALE2,     /* [E], multiplies that */
    QN_VISION_DEEP_NORM,  /* [M] */
    QN_VISION_DEEP_NORM_BIAS,
    QN_VISION_DEEP_UP, /* [X, M] */
    QN_VISION_DEEP_UP_BIAS,
    QN_VISION_DEEP_DOWN, /* [H, X] */
    QN_VISION_DEEP_DOWN_BIAS,
    QN_VISION_ROLE_COUNT
} qn_vision_role;

/* '#' is the layer. */
typedef struct {
    qn_vision_role role; /* QN_VISION_ROLE_COUNT ends a list */
    const char *name;
} qn_vision_name;

/* What the field says by which patches are merged: how many beside each other become a token, one by that, or how many
 * tokens a view has. */
typedef enum { QN_VISION_MERGED_SIDE, QN_VISION_MERGED_SHARE, QN_VISION_MERGED_TOKENS } qn_vision_merged;

typedef struct qn_vision_family {
    const char *const *model_types; /* of the whole model, as in config.json; NULL at the end */
    const char *const *prefixes;    /* of its tensors; the first that fits counts; NULL at the end */
    const qn_vision_name *names;
    const qn_field_default *defaults;      /* of vision_config, by the names of vision_config.c */
    const qn_field_spelling *spelled;      /* in vision_config; NULL: none */
    const qn_field_default *root_defaults; /* of the whole config.json */
    const qn_field_spelling *root_spelled; /* in the whole config.json; NULL: none */
    int patch_dims; /* of the tensor PATCH: 2 of a matrix, 4 of a convolution, 5 of one over time too */
    const char *merged_by; /* a field of vision_config, or of the whole config.json */
    qn_vision_merged merged;
    int smart_resize;       /* pictures are resized as image_processor.h says */
    qn_vision_config fixed; /* numbers and switches that files do not give */
} qn_vision_family;

/* NULL: none. */
const qn_vision_family *qn_vision_family_find(const char *model_type);
/* The name of a role; NULL: the tower has no such tensor. */
const char *qn_vision_family_name(const qn_vision_family *family, qn_vision_role role);

#endif
