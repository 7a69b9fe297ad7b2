/* Vision towers as GGUF files of llama.cpp's converter (general.architecture "clip"), one row for each clip.projector_type: the row
 * of vision_family.h that it is of, the names of its tensors, what its keys are in config.json, and where its numbers lie
 * otherwise than in published files. A new one is a new row. Constant data: any thread. */
#ifndef QN_MODEL_CONFIG_PROJECTOR_PROJECTOR_FAMILY_H
#define QN_MODEL_CONFIG_PROJECTOR_PROJECTOR_FAMILY_H

#include "model/config/blocks/vision_family.h"

/* Where a field belongs: vision_config, config.json, its text_config, preprocessor_config.json. */
typedef enum { QN_PROJECTOR_VISION, QN_PROJECTOR_ROOT, QN_PROJECTOR_IMAGES } qn_projector_place;

/* What a field is made of. Keys lie behind "clip.vision.". A key or tensor that is not there leaves the field alone. */
typedef enum {
    QN_PROJECTOR_GIVEN,   /* value */
    QN_PROJECTOR_KEY,     /* the key's number, times value if that is not 0 */
    QN_PROJECTOR_INVERSE, /* 1 / the key's number */
    QN_PROJECTOR_PERIOD,  /* the numbers of each n-th layer, n the key's number */
    QN_PROJECTOR_FLAGGED, /* the numbers of layers for which the key, a list, is true; without the key none */
    QN_PROJECTOR_TOKENS,  /* pixels of as many tokens as value says */
    QN_PROJECTOR_UNITS,   /* tokens of as many pixels as the key says */
    QN_PROJECTOR_SHRUNK, /* tokens of a view whose patches become one by n x n, n the key's number, else value */
    QN_PROJECTOR_ROWS,    /* first dimension of the tensor */
    QN_PROJECTOR_COLUMNS, /* second */
    QN_PROJECTOR_SIDE,    /* square root of the first */
    QN_PROJECTOR_SHARE,   /* the first, for each head */
    QN_PROJECTOR_HAS,     /* true: the tensor is there */
    QN_PROJECTOR_LACKS,   /* true: it is not */
    QN_PROJECTOR_WORD     /* word, if the tensor is not there */
} qn_projector_kind;

typedef struct {
    qn_projector_place place;
    const char *name; /* a dot: a field of an object inside */
    qn_projector_kind kind;
    const char *from; /* key or tensor */
    double value;
    const char *word;
} qn_projector_value;

typedef struct qn_projector {
    const char *name; /* clip.projector_type */
    const char *
        told_by; /* a tensor: without it the row does not count, and the next of that name does; NULL: none */
    const char *model_type;          /* of the row of vision_family.h, and of the images' processor */
    const char *const *image_tokens; /* what may stand for a picture in the vocabulary; NULL at the end */
    const qn_vision_name *names;
    const qn_projector_value *values; /* name NULL at the end; later ones replace earlier ones */
    int patch_dims;                   /* of the tensor PATCH: 2 of a matrix, 4 of a convolution */
    int planes;                       /* 1: values of a patch lie channel by channel */
    int pairs_beside;                 /* 1: rotated pairs of queries and keys lie side by side */
    int axes_apart;                   /* 1: tables of positions of two axes lie one behind the other */
    int whole_norms;                  /* 1: weights of the merging norm are whole, not distances from 1 */
    int inputs_deny_seen; /* 1: tokens of a picture see those behind them if the text has no inputs of layers */
} qn_projector;

/* The i-th row; NULL behind the last. */
const qn_projector *qn_projector_row(int i);
/* The name of a role; NULL: the tower has no such tensor. */
const char *qn_projector_name(const qn_projector *projector, qn_vision_role role);

#endif
