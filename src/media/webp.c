#include <string.h>
#include <webp/decode.h>

#include "base/mem.h"
#include "media/decoders.h"

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

/* The chunk EXIF of the file's own level. Some writers put JPEG's "Exif\0\0" before its TIFF bytes. */
static void read_orientation(qn_decoding *d)
{
    enum { FILE_HEADER = 12, CHUNK_HEADER = 8 };
    static const char name[6] = "Exif\0";
    for (size_t at = FILE_HEADER; d->n - at >= CHUNK_HEADER;) {
        const uint8_t *chunk = d->bytes + at, *data = chunk + CHUNK_HEADER;
        size_t n = read_u32(chunk + 4), left = d->n - at - CHUNK_HEADER;
        if (n > left) return;
        if (memcmp(chunk, "EXIF", 4) == 0) {
            const size_t skip = n >= sizeof name && memcmp(data, name, sizeof name) == 0 ? sizeof name : 0;
            d->orientation = qn_exif_orientation(data + skip, n - skip);
            return;
        }
        n += n & 1; /* chunks begin at even places */
        if (n > left) return;
        at += CHUNK_HEADER + n;
    }
}

static qn_status fail(const qn_decoding *d, VP8StatusCode code)
{
    switch (code) {
    case VP8_STATUS_OUT_OF_MEMORY:
        return QN_E_NOMEM;
    case VP8_STATUS_NOT_ENOUGH_DATA:
        return qn_fail(QN_E_FORMAT, "truncated: the file ends after %zu bytes, before the picture does",
                       d->n);
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return qn_fail(QN_E_UNSUPPORTED, "the picture has a feature that libwebp does not know");
    default:
        return qn_fail(QN_E_FORMAT, "damaged");
    }
}

/* The header alone says the size, before anything of that size is allocated. */
static qn_status read_header(qn_decoding *d, WebPBitstreamFeatures *features)
{
    const VP8StatusCode code = WebPGetFeatures(d->bytes, d->n, features);
    if (code != VP8_STATUS_OK) return fail(d, code);
    if (features->width < 1 || features->height < 1) return fail(d, VP8_STATUS_BITSTREAM_ERROR);
    QN_TRY(qn_decoding_check_size(d, (uint64_t)features->width, (uint64_t)features->height));
    if (features->has_animation) return qn_fail(QN_E_UNSUPPORTED, "it is an animation; send one picture");
    return QN_OK;
}

qn_status qn_webp_decode(qn_decoding *d)
{
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config)) return qn_fail(QN_E_UNSUPPORTED, "libwebp has another version");
    QN_TRY(read_header(d, &config.input));
    const size_t channels = config.input.has_alpha ? 4 : 3, width = (size_t)config.input.width,
                 height = (size_t)config.input.height;
    d->image = (qn_picture){qn_alloc_array(width * height, channels), (int64_t)width, (int64_t)height};
    if (!d->image.rgb) return QN_E_NOMEM;
    config.output.colorspace = channels == 4 ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = d->image.rgb;
    config.output.u.RGBA.stride = (int)(channels * width);
    config.output.u.RGBA.size = channels * width * height;
    const VP8StatusCode code = WebPDecode(d->bytes, d->n, &config);
    WebPFreeDecBuffer(&config.output);
    if (code != VP8_STATUS_OK) return fail(d, code);
    if (channels == 4) qn_picture_lay_on_white(&d->image);
    read_orientation(d);
    return QN_OK;
}
