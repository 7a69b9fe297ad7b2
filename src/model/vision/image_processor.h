/* Pictures as a vision tower takes them: resized to whole patches, normalised, cut into patches, as the image
 * processor of Qwen2-VL does. The numbers are those of preprocessor_config.json, beside the model. Any
 * thread. */
#ifndef QN_MODEL_VISION_IMAGE_PROCESSOR_H
#define QN_MODEL_VISION_IMAGE_PROCESSOR_H

#include <quern/generate.h>

#include "model/config/blocks/image_config.h"

enum { QN_IMAGE_ASPECT_MAX = 200 };

/* Patches of a picture, below and beside each other: multiples of merge_size. */
typedef struct {
    int64_t rows, columns;
} qn_image_grid;

/* The grid of a picture of this size. QN_E_ARG: a side is not in [1, 65535], or 200 times as long as the
 * other, or (where nothing is resized) no multiple of patch_size * merge_size. */
qn_status qn_image_grid_of(const qn_image_processor *p, int64_t width, int64_t height, qn_image_grid *out);
/* Tokens that a picture of this grid becomes. */
int64_t qn_image_grid_tokens(const qn_image_processor *p, const qn_image_grid *grid);
/* The size of the resized picture. */
int64_t qn_image_grid_bytes(const qn_image_processor *p, const qn_image_grid *grid);
/* Checks the picture's fields and resizes it: out [rows * patch_size, columns * patch_size, 3]. QN_E_ARG: no
 * pixels, or a stride that is less than a row. */
qn_status qn_image_fit(const qn_image_processor *p, const qn_image *image, const qn_image_grid *grid,
                       uint8_t *out);
/* Floats of one patch. */
int64_t qn_image_patch_floats(const qn_image_processor *p);
/* rgb as qn_image_fit gives it. out [rows * columns][channels][temporal_patch_size][patch_size][patch_size]:
 * the patches that become one token together, row by row, and tokens row by row; a picture is the same at all
 * times. */
void qn_image_patches(const qn_image_processor *p, const uint8_t *rgb, const qn_image_grid *grid, float *out);

#endif
