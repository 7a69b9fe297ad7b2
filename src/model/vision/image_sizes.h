/* The rules by which the size of a picture says what becomes of it: one function for each qn_image_rule, as
 * the image processors of transformers compute it, in the same order and with the same roundings. Private to
 * image_processor.c. */
#ifndef QN_MODEL_VISION_IMAGE_SIZES_H
#define QN_MODEL_VISION_IMAGE_SIZES_H

#include "model/vision/image_processor.h"

/* Fills content, canvas and the numbers of tiles, and the pixels of `tile` and `whole` where the picture is
 * cut. QN_E_ARG: the reference refuses such a picture. */
typedef qn_status qn_image_rule_fn(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan);

/* Of one view. */
qn_image_rule_fn qn_image_rounded, qn_image_padded, qn_image_closest, qn_image_budget, qn_image_longest,
    qn_image_fixed;
/* Of tiles. */
qn_image_rule_fn qn_image_tiles_grid, qn_image_tiles_aspect, qn_image_tiles_canvas, qn_image_tiles_large;

/* Puts the whole picture on a canvas of this size. */
qn_status qn_image_whole_of(double height, double width, qn_image_plan *plan);

#endif
