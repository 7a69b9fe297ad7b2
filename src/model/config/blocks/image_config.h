/* How pictures become patches of a vision tower, out of preprocessor_config.json, which lies beside the
 * model: sizes and the values of pixels. image_processor.h does it. Immutable after reading: any thread. */
#ifndef QN_MODEL_CONFIG_BLOCKS_IMAGE_CONFIG_H
#define QN_MODEL_CONFIG_BLOCKS_IMAGE_CONFIG_H

#include "format/source/source.h"

enum { QN_IMAGE_CHANNELS = 3, QN_IMAGE_SIDE_MAX = 65535 };

typedef struct {
    int64_t patch_size, merge_size, temporal_patch_size; /* merge_size: patches beside each other, and below,
                                                            that become one token */
    int64_t min_pixels, max_pixels;                      /* of a picture that was resized */
    int do_resize;                                       /* 0: sizes must fit as they are */
    float factor[QN_IMAGE_CHANNELS], offset[QN_IMAGE_CHANNELS]; /* value = byte * factor + offset */
} qn_image_processor;

/* Reads preprocessor_config.json, or the image_processor of processor_config.json; without either, and for
 * what they leave out, what the published models have. The sizes of patches come from the model's own
 * configuration: QN_E_FORMAT where the file has others, or a field of the wrong type or out of range;
 * QN_E_UNSUPPORTED: another filter than bicubic. */
qn_status qn_image_processor_read(qn_source *src, int64_t patch_size, int64_t merge_size,
                                  int64_t temporal_patch_size, qn_image_processor *out);

#endif
