/* Any bytes as a PNG: refused, or a picture within the limits whose every pixel is there. The memory is that
 * of the pixels, some rows and the file, whatever its chunks promise. */
#include <stdlib.h>

#include "base/mem.h"
#include "media/decoders.h"

static volatile uint8_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { PIXELS_MAX = 1 << 16 /* small, so that the fuzzer spends its time on parsing */ };
    const size_t most = qn_mem_reset_peak() + (8 << 20) + 4 * size;
    qn_decoding d = {.bytes = data, .n = size, .max_pixels = PIXELS_MAX, .orientation = 1};
    qn_status status = qn_png_decode(&d);
    if (status == QN_OK) status = qn_picture_orient(&d.image, d.orientation);
    if (status == QN_OK) {
        int64_t n = d.image.width * d.image.height;
        if (n < 1 || n > PIXELS_MAX || !d.image.rgb) abort();
        for (int64_t i = 0; i < 3 * n; i++) sink = d.image.rgb[i];
    }
    if (qn_mem_peak_bytes() > most) abort();
    qn_picture_free(&d.image);
    return 0;
}
