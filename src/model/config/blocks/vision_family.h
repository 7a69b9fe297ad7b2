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
    QN_VISION_PATCH_LATER, /* [E, P] of the second time, where each time has a tensor: pictures are the same at both */
    QN_VISION_EMBED_NORM, /* [E] of embedded patches, before the learned positions */
    QN_VISION_EMBED_NORM_BIAS,
    QN_VISION_CLASS,     /* [E] */
    QN_VISION_POSITIONS, /* [n_positions, E], or as many rows for each of two axes */
    QN_VISION_PRE_NORM,  /* [E] behind the learned positions */
    QN_VISION_PRE_NORM_BIAS,
    QN_VISION_POST_NORM, /* [E] behind the last layer */
    QN_VISION_POST_NORM_BIAS,
    QN_VISION_SHIFT,      /* [E], taken from what the patches of a token became */
    QN_VISION_SPREAD,     /* [E], multiplies that */
    QN_VISION_DOWNSAMPLE, /* [H, M], a convolution over the patches of a token in files */
    QN_VISION_DOWNSAMPLE_BIAS,
    QN_VISION_MERGER_PROJ, /* [H, H] behind that */
    QN_VISION_MERGER_PROJ_BIAS,
    QN_VISION_MERGER_NORM, /* [E] of patches, or [M] of what is merged; behind DOWNSAMPLE [H] */
    QN_VISION_MERGER_NORM_BIAS,
    QN_VISION_MERGER, /* [E, M] */
    QN_VISION_MERGER_BIAS,
    QN_VISION_MERGER_GATE, /* as the next */
    QN_VISION_MERGER_GATE_BIAS,
    QN_VISION_MERGER_UP, /* [X, M]; behind DOWNSAMPLE [X, H]; with a merger of its own, or a mean, [X, E] */
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
    QN_VISION_BOUNDS, /* [1]; QN_VISION_BOUNDS_EACH for each of Q, K, V, PROJ, GATE, FC1, FC2: the least and the largest
                             number of what it reads, then of what it gives */
    QN_VISION_BOUNDS_END = QN_VISION_BOUNDS + 28 - 1,
    QN_VISION_DEEP_NORM, /* [M] */
    QN_VISION_DEEP_NORM_BIAS,
    QN_VISION_DEEP_UP, /* [X, M] */
    QN_VISION_DEEP_UP_BIAS,
    QN_VISION_DEEP_DOWN, /* [H, X] */
    QN_VISION_DEEP_DOWN_BIAS,
    QN_VISION_ROLE_COUNT
} qn_vision_role;

enum { QN_VISION_BOUNDS_EACH = 4 };

/* '#' is the layer. */
typedef struct {
    qn_vision_role role; /* QN_VISION_ROLE_COUNT ends a list */
    const char *name;
} qn_vision_name;

/* What the field says by which patches are merged: how many beside each other become a token, one by that, or how many
 * tokens a view has. */
typedef enum { QN_VISION_MERGED_SIDE, QN_VISION_MERGED_SHARE, QN_VISION_MERGED_TOKENS } qn_vision_merged;

/* What the first matrix behind the merging gives: there is none; as much as it reads; as much as the text's width; what a
 * field says. */
typedef enum { QN_VISION_UP_NONE, QN_VISION_UP_MERGED, QN_VISION_UP_TEXT, QN_VISION_UP_SAID } qn_vision_up;

typedef struct qn_vision_family {
    const char *const *model_types;   /* of the whole model, as in config.json; NULL at the end */
    const char *const *prefixes;      /* of its tensors; the first that fits counts; NULL at the end */
    const qn_vision_name *names;      /* "NAME.weight" of a matrix; its bounds are "STEM.input_min", .. */
    const qn_field_default *defaults; /* of vision_config, by the names of vision_config.c */
    const qn_field_spelling *spelled; /* in vision_config; NULL: none */
    const qn_field_default *root_defaults; /* of the whole config.json */
    const qn_field_spelling *root_spelled; /* in the whole config.json; NULL: none */
    int patch_dims; /* of the tensor PATCH: 2 of a matrix, 4 of a convolution, 5 of one over time too */
    int batched; /* 1: the class row is [1, 1, E] and the table of positions [1, n_positions, E] in files */
    const char *merged_by; /* a field of vision_config, or of the whole config.json */
    qn_vision_merged merged;
    qn_vision_up up;
    const char *up_by,
        *down_by; /* fields that say merger_width and output_width; NULL: see qn_vision_up, the text's */
    const char *norm_by; /* a field of config.json without whose truth there is no merge_norm; NULL: always */
    const char *bias_by; /* a field of config.json that says merge_bias; NULL: as fixed has it */
    const char *layer_bias_by; /* one of vision_config that says qkv_bias, proj_bias and mlp_bias; likewise */
    int layerless;             /* 1: patches become tokens without layers */
    int switched;              /* 1: norm_type, use_qk_norm, attention_bias, use_mean_pooling and
                                    use_absolute_position_embeddings are looked at */
    int text_says_seen;        /* 1: fixed.seen is so if the text's use_bidirectional_attention is "vision" */
    int windows_reach_back;    /* 1: a token of a picture sees all of it, whatever the window */
    qn_vision_config fixed;    /* numbers and switches that files do not give */
} qn_vision_family;

/* NULL: none. */
const qn_vision_family *qn_vision_family_find(const char *model_type);
/* The name of a role; NULL: the tower has no such tensor. */
const char *qn_vision_family_name(const qn_vision_family *family, qn_vision_role role);

#endif
