/* How pictures become patches of a vision tower, out of preprocessor_config.json, which lies beside the
 * model: sizes, tiles and the values of pixels. image_processor.h does it. Immutable after reading: any
 * thread. */
#ifndef QN_MODEL_CONFIG_BLOCKS_IMAGE_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_IMAGE_CONFIG_H

#include "format/source/source.h"
#include "model/config/fields.h"

enum { QN_IMAGE_CHANNELS = 3, QN_IMAGE_SIDE_MAX = 65535, QN_IMAGE_TILES_MAX = 1024 };

/* How the sizes of what the tower sees follow from the size of a picture. A unit is patch_size * merge_size
 * pixels: the side of what becomes one token. */
typedef enum {
    QN_IMAGE_ROUNDED, /* Qwen-VL: sides are rounded to units, the area lies between two bounds */
    QN_IMAGE_PADDED,  /* GLM 5: sides are rounded up to units; black fills what the picture leaves */
    QN_IMAGE_CLOSEST, /* Muse: the grid of units around the picture's with the closest aspect ratio */
    QN_IMAGE_BUDGET,  /* Gemma 4: the largest picture of at most max_tokens units */
    QN_IMAGE_LONGEST, /* Pixtral: at most width x height, then rounded up to units */
    QN_IMAGE_FIXED,   /* Gemma 3: width x height, whatever the picture's shape */
    QN_IMAGE_GRID,    /* Idefics 3: tiles of width x height over the picture, and the whole */
    QN_IMAGE_ASPECT,  /* InternVL: as many tiles as have the closest aspect ratio, and the whole */
    QN_IMAGE_CANVAS,  /* Llama 4: as many tiles as hold the picture with the least shrinking, and the whole */
    QN_IMAGE_LARGE    /* LFM2-VL: tiles as in QN_IMAGE_ASPECT if it is large, else as QN_IMAGE_ROUNDED */
} qn_image_rule;

/* The order of the patches of a view, and of the values of a patch. */
typedef enum {
    QN_IMAGE_MERGED, /* patches of a token together; [channels][times][patch][patch] */
    QN_IMAGE_TIMES,  /* row by row; [times][channels][patch][patch] */
    QN_IMAGE_PIXELS, /* row by row; [patch][patch][channels] */
    QN_IMAGE_PLANES  /* row by row; [channels][patch][patch] */
} qn_image_order;

typedef enum { QN_IMAGE_BILINEAR, QN_IMAGE_BICUBIC, QN_IMAGE_LANCZOS } qn_image_filter;

/* What stands in a prompt for a picture: image_prompt.h. */
typedef enum {
    QN_IMAGE_PROMPT_PLAIN,     /* a token for each vector */
    QN_IMAGE_PROMPT_ENCLOSED,  /* between a begin and an end */
    QN_IMAGE_PROMPT_PARAGRAPH, /* the same between empty lines */
    QN_IMAGE_PROMPT_ROWS,      /* a break behind each row, an end behind the last */
    QN_IMAGE_PROMPT_TILES,     /* Idefics 3: each tile's row and column */
    QN_IMAGE_PROMPT_GRID,      /* Llama 4: separators between tiles */
    QN_IMAGE_PROMPT_MARKED     /* LFM2-VL: begin, each tile's row and column, thumbnail, end */
} qn_image_prompt_form;

typedef struct {
    qn_image_rule rule;
    qn_image_order order;
    qn_image_filter filter;
    qn_image_prompt_form prompt;
    int do_resize;     /* 0: sizes must fit as they are */
    int joins_patches; /* the patches of a token are one: patch_size is a unit, merge_size 1 */
    int rounds_values; /* values are rounded to bfloat16 at each step */
    int64_t patch_size, merge_size, temporal_patch_size; /* merge_size: patches beside each other, and below,
                                                            that become one token */
    int64_t min_pixels, max_pixels;                      /* of a resized picture: QN_IMAGE_ROUNDED */
    int64_t min_tokens, max_tokens; /* of a picture: QN_IMAGE_PADDED, _CLOSEST, _BUDGET, _LARGE */
    int64_t width, height;          /* of a tile, or what else the rule says */
    int64_t longest_edge;           /* QN_IMAGE_GRID: of the picture before it is cut; 0: it keeps its size */
    int do_split;                   /* 0: a picture is never cut */
    int64_t min_tiles, max_tiles;
    int has_thumbnail; /* the whole picture follows its tiles */
    int fills_canvas;  /* QN_IMAGE_CANVAS: small pictures grow as far as the tiles allow */
    double tolerance;  /* QN_IMAGE_LARGE: a picture of more than max_tokens times this is cut */
    float value[QN_IMAGE_CHANNELS][256]; /* of each byte */
} qn_image_processor;

/* What the model's own configuration says of its pictures. */
typedef struct {
    const char *model_type; /* chooses the processor if no file names its class */
    int64_t patch_size, merge_size, temporal_patch_size; /* temporal_patch_size 1: there is no time */
} qn_image_tower;

/* 1: a prompt may have marks between the tokens of one picture. */
int qn_image_prompt_is_spread(qn_image_prompt_form form);

/* Reads preprocessor_config.json, or the image_processor of processor_config.json; `otherwise`, if it has an object, if there
 * is no such file. What the files leave out is as in transformers' class of that name. QN_E_FORMAT: a file has other sizes of patches than the tower, or a
 * field of the wrong type or out of range; QN_E_UNSUPPORTED: an unknown processor or filter. */
qn_status qn_image_processor_read(qn_source *src, const qn_image_tower *tower, const qn_fields *otherwise,
                                  qn_image_processor *out);

#endif
