#include "media/picture.h"

#include <string.h>

#include "base/mem.h"
#include "media/decoders.h"

enum { SIDE_MAX = 65535 };
static const size_t default_max_bytes = (size_t)64 << 20;
static const int64_t default_max_pixels = (int64_t)64 << 20;

size_t qn_picture_max_bytes(const qn_picture_limits *limits)
{
    return limits && limits->max_bytes ? limits->max_bytes : default_max_bytes;
}

qn_status qn_decoding_check_size(const qn_decoding *d, uint64_t width, uint64_t height)
{
    if (width < 1 || height < 1)
        return qn_fail(QN_E_FORMAT, "the picture has no pixels: it is %llu x %llu", (unsigned long long)width,
                       (unsigned long long)height);
    if (width > SIDE_MAX || height > SIDE_MAX)
        return qn_fail(QN_E_FULL, "the picture is %llu x %llu pixels; a side may have at most %d",
                       (unsigned long long)width, (unsigned long long)height, SIDE_MAX);
    if (width * height > (uint64_t)d->max_pixels)
        return qn_fail(QN_E_FULL, "the picture is %llu x %llu = %llu pixels, the limit is %lld",
                       (unsigned long long)width, (unsigned long long)height,
                       (unsigned long long)(width * height), (long long)d->max_pixels);
    return QN_OK;
}

/* ---- orientation ---- */

static uint32_t read_uint(const uint8_t *p, int n, int big)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint32_t)p[i] << 8 * (big ? n - 1 - i : i);
    return v;
}

int qn_exif_orientation(const uint8_t *tiff, size_t n)
{
    enum { TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, ENTRY_BYTES = 12 };
    if (n < 8) return 1;
    int big = tiff[0] == 'M';
    if (memcmp(tiff, big ? "MM" : "II", 2) != 0 || read_uint(tiff + 2, 2, big) != 42) return 1;
    size_t at = read_uint(tiff + 4, 4, big);
    if (at > n - 2) return 1;
    size_t n_entries = read_uint(tiff + at, 2, big);
    at += 2;
    for (size_t i = 0; i < n_entries && n - at >= ENTRY_BYTES; i++, at += ENTRY_BYTES) {
        const uint8_t *e = tiff + at;
        if (read_uint(e, 2, big) != TAG_ORIENTATION) continue;
        uint32_t value = read_uint(e + 8, 2, big);
        int plain = read_uint(e + 2, 2, big) == TYPE_SHORT && read_uint(e + 4, 4, big) == 1;
        return plain && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

/* As Pillow composes: the weight of a colour in 15 bits, divided by 255 with rounding. */
void qn_picture_lay_on_white(qn_picture *image)
{
    const uint8_t *in = image->rgb;
    uint8_t *out = image->rgb;
    for (int64_t i = 0; i < image->width * image->height; i++, in += 4, out += 3) {
        uint32_t weight = (uint32_t)in[3] << 7, rest = (255u << 7) - weight;
        for (int c = 0; c < 3; c++) {
            uint32_t sum = in[c] * weight + 255 * rest + (0x80u << 7);
            out[c] = in[3] ? (uint8_t)(((sum >> 8) + sum) >> 8 >> 7) : 255;
        }
    }
}

qn_status qn_picture_orient(qn_picture *image, int orientation)
{
    /* Per orientation: are the sides swapped, and is the upright picture's x or y the stored one's, reversed?
     */
    static const struct {
        unsigned char swap, flip_x, flip_y;
    } turns[9] = {{0, 0, 0}, {0, 0, 0}, {0, 1, 0}, {0, 1, 1}, {0, 0, 1},
                  {1, 0, 0}, {1, 0, 1}, {1, 1, 1}, {1, 1, 0}};
    int64_t w = image->width, h = image->height;
    if (orientation < 2 || orientation > 8) return QN_OK;
    uint8_t *rgb = qn_alloc_array((size_t)w * (size_t)h, 3);
    if (!rgb) return QN_E_NOMEM;
    int64_t width = turns[orientation].swap ? h : w, height = turns[orientation].swap ? w : h;
    uint8_t *out = rgb;
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++, out += 3) {
            int64_t sx = turns[orientation].swap ? y : x, sy = turns[orientation].swap ? x : y;
            if (turns[orientation].flip_x) sx = w - 1 - sx;
            if (turns[orientation].flip_y) sy = h - 1 - sy;
            memcpy(out, image->rgb + (sy * w + sx) * 3, 3);
        }
    qn_free(image->rgb);
    *image = (qn_picture){rgb, width, height};
    return QN_OK;
}

/* ---- any file ---- */

typedef struct {
    const char *name;
    size_t at, n;
    const char *magic;
    qn_status (*decode)(qn_decoding *d); /* NULL: known by name alone */
} image_format;

static const image_format formats[] = {
    {"PNG", 0, 8, "\x89PNG\r\n\x1a\n", qn_png_decode},
    {"JPEG", 0, 3, "\xff\xd8\xff", qn_jpeg_decode},
    {"GIF", 0, 4, "GIF8", NULL},
    {"WebP", 8, 4, "WEBP", qn_webp_decode},
    {"BMP", 0, 2, "BM", NULL},
    {"TIFF", 0, 4, "II*\0", NULL},
    {"TIFF", 0, 4, "MM\0*", NULL},
    {"HEIC or AVIF", 4, 4, "ftyp", NULL},
    {"JPEG 2000", 0, 12, "\0\0\0\x0cjP  \r\n\x87\n", NULL},
    {"JPEG XL", 0, 2, "\xff\x0a", NULL},
    {"SVG", 0, 4, "<svg", NULL},
};

static const image_format *format_of(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const image_format *f = &formats[i];
        if (n >= f->at + f->n && memcmp(bytes + f->at, f->magic, f->n) == 0) return f;
    }
    return NULL;
}

qn_status qn_picture_decode(const void *bytes, size_t n, const qn_picture_limits *limits, qn_picture *out)
{
    size_t max_bytes = qn_picture_max_bytes(limits);
    if (n > max_bytes)
        return qn_fail(QN_E_FULL, "the image file has %zu bytes, the limit is %zu", n, max_bytes);
    if (!n) return qn_fail(QN_E_FORMAT, "the image file is empty");
    const image_format *f = format_of(bytes, n);
    if (!f)
        return qn_fail(QN_E_UNSUPPORTED,
                       "not an image of a known format; PNG and JPEG are supported, as is WebP");
    if (!f->decode)
        return qn_fail(QN_E_UNSUPPORTED,
                       "the image is in the format %s; PNG and JPEG are supported, as is WebP", f->name);
    qn_decoding d = {.bytes = bytes,
                     .n = n,
                     .max_pixels = limits && limits->max_pixels ? limits->max_pixels : default_max_pixels,
                     .orientation = 1};
    qn_status status = f->decode(&d);
    if (status == QN_OK) status = qn_picture_orient(&d.image, d.orientation);
    if (status != QN_OK) {
        qn_picture_free(&d.image);
        return status == QN_E_NOMEM ? status : qn_fail_prefix(status, "%s", f->name);
    }
    *out = d.image;
    return QN_OK;
}

void qn_picture_free(qn_picture *image)
{
    qn_free(image->rgb);
    *image = (qn_picture){0};
}
