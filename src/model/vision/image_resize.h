/* Pictures in another size: torchvision's antialiased filters on bytes, bit for bit, since the image
 * processors of transformers resize with them. Any thread. */
#ifndef QN_MODEL_VISION_IMAGE_RESIZE_H
#define QN_MODEL_VISION_IMAGE_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/config/blocks/image_config.h"

/* rgb: [height, width, 3] of bytes, rows stride_bytes apart. out: [out_height, out_width, 3], rows
 * out_stride_bytes apart. All sizes are positive and at most 65,535; no more memory is taken than a picture
 * between the two sizes, and some for the weights of each column and row. QN_E_NOMEM. */
qn_status qn_image_resize(qn_image_filter filter, const uint8_t *rgb, int64_t width, int64_t height,
                          size_t stride_bytes, uint8_t *out, int64_t out_width, int64_t out_height,
                          size_t out_stride_bytes);

#endif
