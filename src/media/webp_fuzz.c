/* Any bytes as a WebP: refused, or a picture within the limits whose every pixel is there. */
#include <stdlib.h>

#include "base/mem.h"
#include "media/decoders.h"

static volatile uint8_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { PIXELS_MAX = 1 << 16 }; /* small, so that the fuzzer spends its time on parsing */
    qn_decoding d = {.bytes = data, .n = size, .max_pixels = PIXELS_MAX, .orientation = 1};
    qn_status status = qn_webp_decode(&d);
    if (status == QN_OK) status = qn_picture_orient(&d.image, d.orientation);
    if (status == QN_OK) {
        int64_t n = d.image.width * d.image.height;
        if (n < 1 || n > PIXELS_MAX || !d.image.rgb) abort();
        for (int64_t i = 0; i < 3 * n; i++) sink = d.image.rgb[i];
    }
    qn_picture_free(&d.image);
    return 0;
}
