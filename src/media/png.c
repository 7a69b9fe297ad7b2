#include <png.h>
#include <setjmp.h>
#include <string.h>

#include "base/mem.h"
#include "media/decoders.h"

/* One decoding; lives in qn_png_decode's frame, outside the function that the library jumps back to. */
typedef struct {
    qn_decoding *d;
    png_structp png;
    png_infop info;
    size_t at;        /* bytes read so far */
    size_t block_max; /* no row and no chunk that is there needs more */
    qn_status status;
} png_reading;

static void fail(png_structp png, png_const_charp message)
{
    png_reading *r = png_get_error_ptr(png);
    if (r->status == QN_OK) r->status = qn_fail(QN_E_FORMAT, "damaged: %s", message);
    png_longjmp(png, 1);
}

/* What libpng warns of (an odd ancillary chunk, bytes behind the picture) changes no pixel. */
static void ignore(png_structp png, png_const_charp message)
{
    (void)png, (void)message;
}

static void *take(png_structp png, png_alloc_size_t size_bytes)
{
    png_reading *r = png_get_mem_ptr(png);
    if (size_bytes > r->block_max) return NULL; /* libpng believes the length of a chunk that it keeps */
    void *p = qn_alloc(size_bytes);
    if (!p && r->status == QN_OK) r->status = QN_E_NOMEM;
    return p;
}

static void give(png_structp png, void *p)
{
    (void)png;
    qn_free(p);
}

static void read_bytes(png_structp png, png_bytep out, size_t n)
{
    png_reading *r = png_get_io_ptr(png);
    if (n > r->d->n - r->at) {
        if (r->status == QN_OK)
            r->status = qn_fail(QN_E_FORMAT,
                                "truncated: the file ends after %zu bytes, before the picture does", r->d->n);
        png_longjmp(png, 1);
    }
    memcpy(out, r->d->bytes + r->at, n);
    r->at += n;
}

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The size, before anything is allocated: the header is the first chunk, at a fixed place. */
static qn_status read_header(qn_decoding *d)
{
    enum { SIGNATURE = 8, HEADER = 8 + 13 };
    const uint8_t *h = d->bytes + SIGNATURE;
    if (d->n < SIGNATURE + HEADER)
        return qn_fail(QN_E_FORMAT, "truncated: the file ends after %zu bytes, in its header", d->n);
    if (memcmp(h + 4, "IHDR", 4) != 0 || read_u32(h) != 13)
        return qn_fail(QN_E_FORMAT, "damaged: it does not begin with a header");
    QN_TRY(qn_decoding_check_size(d, read_u32(h + 8), read_u32(h + 12)));
    d->image.width = read_u32(h + 8);
    d->image.height = read_u32(h + 12);
    return QN_OK;
}

/* Chunks that say nothing of pixels are skipped unread: texts, colour profiles and gamma (which Pillow does
 * not apply either), times. */
static void skip_chunks(png_structp png)
{
    static const png_byte skipped[] =
        "tEXt\0zTXt\0iTXt\0iCCP\0sPLT\0hIST\0pCAL\0sCAL\0tIME\0oFFs\0pHYs\0sBIT\0"
        "bKGD\0cHRM\0gAMA\0sRGB";
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, skipped, (int)(sizeof skipped / 5));
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, 0);
}

/* To 8 bits of RGB or RGBA. 16 bits give their upper half. */
static void ask_for_rgb(png_structp png, png_infop info)
{
    if (png_get_bit_depth(png, info) == 16) png_set_strip_16(png);
    png_set_expand(png);
    png_set_gray_to_rgb(png);
}

/* Everything that may jump. Returns 0 when it did. */
static int read_pixels(png_reading *r)
{
    enum { CHUNK_BYTES = 1 << 20 };
    qn_decoding *d = r->d;
    if (setjmp(png_jmpbuf(r->png))) return 0;
    png_set_user_limits(r->png, (png_uint_32)d->image.width, (png_uint_32)d->image.height);
    png_set_chunk_malloc_max(r->png, CHUNK_BYTES);
    skip_chunks(r->png);
    png_set_read_fn(r->png, r, read_bytes);
    png_read_info(r->png, r->info);
    ask_for_rgb(r->png, r->info);
    int n_passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    size_t channels = png_get_channels(r->png, r->info), width = (size_t)d->image.width;
    if ((channels != 3 && channels != 4) || png_get_rowbytes(r->png, r->info) != channels * width)
        png_error(r->png, "the pixel format is unknown");
    /* Laying on white happens in place, so the pixels have room for their fourth channel. */
    d->image.rgb = qn_calloc(width * (size_t)d->image.height, channels);
    if (!d->image.rgb) {
        r->status = QN_E_NOMEM;
        png_longjmp(r->png, 1);
    }
    for (int pass = 0; pass < n_passes; pass++)
        for (int64_t y = 0; y < d->image.height; y++)
            png_read_row(r->png, d->image.rgb + (size_t)y * channels * width, NULL);
    png_read_end(r->png, r->info);
    return 1;
}

static void read_orientation(const png_reading *r)
{
    png_uint_32 n = 0;
    png_bytep exif = NULL;
    if (png_get_eXIf_1(r->png, r->info, &n, &exif) == PNG_INFO_eXIf && exif)
        r->d->orientation = qn_exif_orientation(exif, n);
}

qn_status qn_png_decode(qn_decoding *d)
{
    QN_TRY(read_header(d));
    png_reading r = {.d = d, .block_max = d->n + 16 * (size_t)d->image.width + (1 << 20)};
    r.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r, fail, ignore, &r, take, give);
    if (r.png) r.info = png_create_info_struct(r.png);
    if (!r.info) {
        r.status = QN_E_NOMEM;
    } else if (read_pixels(&r)) {
        if (png_get_channels(r.png, r.info) == 4) qn_picture_lay_on_white(&d->image);
        read_orientation(&r);
    } else if (r.status == QN_OK) {
        r.status = qn_fail(QN_E_FORMAT, "damaged");
    }
    png_destroy_read_struct(r.png ? &r.png : NULL, r.info ? &r.info : NULL, NULL);
    return r.status;
}
