#include <stdio.h> /* jpeglib.h needs it first */

#include <jerror.h>
#include <jpeglib.h>
#include <setjmp.h>
#include <string.h>

#include "base/mem.h"
#include "media/decoders.h"

enum {
    SCANS_MAX = 100,             /* a progressive file has about ten; each passes over the whole picture */
    COEFFICIENT_BYTES = 1 << 29, /* what libjpeg may hold of a progressive picture */
    EXIF_MARKER = JPEG_APP0 + 1
};

/* One decoding; lives in qn_jpeg_decode's frame, outside the function that the library jumps back to. */
typedef struct {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    qn_decoding *d;
    uint8_t *row; /* of CMYK; NULL for other pictures */
    qn_status status;
} jpeg_reading;

/* The sentence for the library's own error or warning. */
static qn_status explain(const jpeg_reading *r, int code, const char *text)
{
    switch (code) {
    case JERR_OUT_OF_MEMORY:
    case JERR_NO_BACKING_STORE:
        return qn_fail(QN_E_NOMEM, "out of memory");
    case JWRN_JPEG_EOF:
    case JERR_INPUT_EOF:
    case JERR_INPUT_EMPTY:
        return qn_fail(QN_E_FORMAT, "truncated: the file ends after %zu bytes, before the picture does",
                       r->d->n);
    case JERR_IMAGE_TOO_BIG:
        return qn_fail(QN_E_FULL, "the picture is %u x %u pixels; a side may have at most %ld",
                       r->c.image_width, r->c.image_height, JPEG_MAX_DIMENSION);
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_ARITH_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL:
        return qn_fail(QN_E_UNSUPPORTED, "%s", text);
    default:
        return qn_fail(QN_E_FORMAT, "damaged: %s", text);
    }
}

static void fail(j_common_ptr c)
{
    jpeg_reading *r = c->client_data;
    char text[JMSG_LENGTH_MAX];
    c->err->format_message(c, text);
    if (r->status == QN_OK) r->status = explain(r, c->err->msg_code, text);
    longjmp(r->back, 1);
}

/* Level -1 is a warning: the decoder would go on with pixels that the file does not have. Only bytes between
 * two segments and odd version numbers harm none. */
static void warn(j_common_ptr c, int level)
{
    int code = c->err->msg_code;
    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_JFIF_MAJOR && code != JWRN_ADOBE_XFORM)
        fail(c);
}

static void say_nothing(j_common_ptr c)
{
    (void)c;
}

static void watch(j_common_ptr c)
{
    jpeg_reading *r = c->client_data;
    if (r->c.input_scan_number <= SCANS_MAX) return;
    if (r->status == QN_OK) r->status = qn_fail(QN_E_FULL, "the picture has more than %d scans", SCANS_MAX);
    longjmp(r->back, 1);
}

static void read_orientation(const jpeg_reading *r)
{
    static const char name[6] = "Exif\0";
    for (jpeg_saved_marker_ptr m = r->c.marker_list; m; m = m->next)
        if (m->marker == EXIF_MARKER && m->data_length >= sizeof name &&
            memcmp(m->data, name, sizeof name) == 0) {
            r->d->orientation = qn_exif_orientation(m->data + sizeof name, m->data_length - sizeof name);
            return;
        }
}

/* a * b / 255, rounded. */
static uint8_t share(unsigned a, unsigned b)
{
    unsigned t = a * b + 128;
    return (uint8_t)(((t >> 8) + t) >> 8);
}

/* Ink on white, as Pillow does it: the four channels are stored inverted, as Adobe began. */
static void cmyk_to_rgb(const uint8_t *in, uint8_t *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++, in += 4, out += 3)
        for (int c = 0; c < 3; c++) {
            int v = in[3] - share(255 - in[c], in[3]);
            out[c] = v < 0 ? 0 : (uint8_t)v;
        }
}

/* Takes the header: the size is checked before anything of its size is allocated. */
static void accept_header(jpeg_reading *r)
{
    struct jpeg_decompress_struct *c = &r->c;
    qn_decoding *d = r->d;
    size_t n_pixels = (size_t)c->image_width * c->image_height;
    if ((r->status = qn_decoding_check_size(d, c->image_width, c->image_height)) != QN_OK)
        longjmp(r->back, 1);
    int cmyk = c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK;
    if (!cmyk && c->jpeg_color_space == JCS_UNKNOWN) {
        r->status = qn_fail(QN_E_UNSUPPORTED, "it has %d colour components", c->num_components);
        longjmp(r->back, 1);
    }
    c->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    d->image = (qn_picture){qn_alloc_array(n_pixels, 3), c->image_width, c->image_height};
    if (cmyk) r->row = qn_alloc_array(c->image_width, 4);
    if (d->image.rgb && (!cmyk || r->row)) return;
    r->status = QN_E_NOMEM;
    longjmp(r->back, 1);
}

/* Everything that may jump. */
static void read_pixels(jpeg_reading *r)
{
    struct jpeg_decompress_struct *c = &r->c;
    if (setjmp(r->back)) return;
    jpeg_create_decompress(c);
    c->mem->max_memory_to_use = COEFFICIENT_BYTES;
    c->progress = &r->progress;
    jpeg_mem_src(c, r->d->bytes, (unsigned long)r->d->n);
    jpeg_save_markers(c, EXIF_MARKER, 0xffff);
    jpeg_read_header(c, TRUE);
    accept_header(r);
    read_orientation(r);
    jpeg_start_decompress(c);
    while (c->output_scanline < c->output_height) {
        uint8_t *out = r->d->image.rgb + (size_t)c->output_scanline * c->output_width * 3;
        JSAMPROW row = r->row ? r->row : out;
        if (jpeg_read_scanlines(c, &row, 1) == 1 && r->row) cmyk_to_rgb(r->row, out, c->output_width);
    }
    jpeg_finish_decompress(c);
}

qn_status qn_jpeg_decode(qn_decoding *d)
{
    jpeg_reading r = {.d = d};
    r.c.err = jpeg_std_error(&r.errors);
    r.c.client_data = &r;
    r.errors.error_exit = fail;
    r.errors.emit_message = warn;
    r.errors.output_message = say_nothing;
    r.progress.progress_monitor = watch;
    read_pixels(&r);
    jpeg_destroy_decompress(&r.c);
    qn_free(r.row);
    return r.status;
}
