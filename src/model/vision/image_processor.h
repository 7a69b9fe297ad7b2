/* Pictures as a vision tower takes them: resized, cut into tiles, normalised, cut into patches, as the image
 * processor beside the model does. A picture becomes views: its tiles row by row, and the whole of it if the
 * rule has it; a picture that is not cut is one view. Each view goes through the tower by itself. The numbers
 * are those of preprocessor_config.json (image_config.h). Any thread. */
#ifndef QN_MODEL_VISION_IMAGE_PROCESSOR_H
#define QN_MODEL_VISION_IMAGE_PROCESSOR_H

#include <quern/generate.h>

#include "model/config/blocks/image_config.h"

enum { QN_IMAGE_ASPECT_MAX = 200 };

/* A view: its pixels, patches and tokens, below and beside each other. */
typedef struct {
    int64_t height, width;             /* pixels */
    int64_t rows, columns;             /* patches */
    int64_t token_rows, token_columns; /* vectors that the tower makes of it */
} qn_image_grid;

typedef struct {
    int64_t height, width;
} qn_image_size;

/* What becomes of a picture of one size. */
typedef struct {
    qn_image_size first;   /* the picture is resized to this before all else; height 0: it is not */
    qn_image_size content; /* then to this */
    qn_image_size canvas;  /* then black is put below it and on its right; this is cut into the tiles */
    int64_t tile_rows, tile_columns;
    qn_image_grid tile;
    qn_image_grid whole;    /* another view; height 0: none */
    int is_whole_of_canvas; /* it is resized from the canvas, not from the picture */
} qn_image_plan;

/* QN_E_ARG: a side is not in [1, 65535], or the model's processor takes no picture of this shape; the message
 * says why. */
qn_status qn_image_plan_of(const qn_image_processor *p, int64_t width, int64_t height, qn_image_plan *out);
int64_t qn_image_plan_views(const qn_image_plan *plan);
/* View i, in the order of their vectors. */
const qn_image_grid *qn_image_plan_view(const qn_image_plan *plan, int64_t i);
/* Vectors of a view, and of all views. */
int64_t qn_image_grid_tokens(const qn_image_grid *view);
int64_t qn_image_plan_tokens(const qn_image_plan *plan);
/* Bytes of a view's pixels, and of all views'. */
int64_t qn_image_grid_bytes(const qn_image_grid *view);
int64_t qn_image_plan_bytes(const qn_image_plan *plan);

/* Checks the picture's fields, resizes and cuts it: out holds view after view, [height, width, 3] each.
 * QN_E_ARG: no pixels, or a stride that is less than a row. */
qn_status qn_image_fit(const qn_image_processor *p, const qn_image *image, const qn_image_plan *plan,
                       uint8_t *out);
/* Floats of one patch. */
int64_t qn_image_patch_floats(const qn_image_processor *p);
/* The patches [rows * columns, qn_image_patch_floats] of a view, in the order that p->order says. rgb: its
 * pixels, as qn_image_fit gives them. A picture is the same at all times. */
void qn_image_patches(const qn_image_processor *p, const uint8_t *rgb, const qn_image_grid *view, float *out);

#endif
