/* Pictures in another size: Pillow's bicubic filter, bit for bit, since image processors of published models
 * were written with it. Any thread. */
#ifndef QN_MODEL_VISION_IMAGE_RESIZE_H
#define QN_MODEL_VISION_IMAGE_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* rgb: [height, width, 3] of bytes, rows stride_bytes apart. out: [out_height, out_width, 3] without gaps.
 * All sizes are positive and at most 65,535; no more memory is taken than a picture between the two sizes,
 * and some for the weights of each column and row. QN_E_NOMEM. */
qn_status qn_image_resize(const uint8_t *rgb, int64_t width, int64_t height, size_t stride_bytes,
                          uint8_t *out, int64_t out_width, int64_t out_height);

#endif
