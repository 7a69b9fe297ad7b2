/* Pictures as a vision tower takes them: resized to whole patches, normalised, cut into patches, as the image
 * processor of Qwen2-VL does. The numbers are those of preprocessor_config.json, beside the model. Any
 * thread. */
#ifndef QN_MODEL_IMAGE_PROCESSOR_H
#define QN_MODEL_IMAGE_PROCESSOR_H

#include <quern/generate.h>

#include "format/source.h"

enum { QN_IMAGE_CHANNELS = 3, QN_IMAGE_SIDE_MAX = 65535, QN_IMAGE_ASPECT_MAX = 200 };

typedef struct {
    int64_t patch_size, merge_size, temporal_patch_size; /* merge_size: patches beside each other, and below,
                                                            that become one token */
    int64_t min_pixels, max_pixels;                      /* of a picture that was resized */
    int do_resize;                                       /* 0: sizes must fit as they are */
    float factor[QN_IMAGE_CHANNELS], offset[QN_IMAGE_CHANNELS]; /* value = byte * factor + offset */
} qn_image_processor;

/* Patches of a picture, below and beside each other: multiples of merge_size. */
typedef struct {
    int64_t rows, columns;
} qn_image_grid;

/* Reads preprocessor_config.json, or the image_processor of processor_config.json; without either, and for
 * what they leave out, what the published models have. The sizes of patches come from the model's own
 * configuration: QN_E_FORMAT where the file has others, or a field of the wrong type or out of range;
 * QN_E_UNSUPPORTED: another filter than bicubic. */
qn_status qn_image_processor_read(qn_source *src, int64_t patch_size, int64_t merge_size,
                                  int64_t temporal_patch_size, qn_image_processor *out);

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
