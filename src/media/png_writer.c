#include "media/png_writer.h"

#include <png.h>
#include <setjmp.h>

#include "base/mem.h"

enum { SIDE_MAX = 65535 };

/* One encoding; lives outside the function that the library jumps back to. */
typedef struct {
    const qn_picture *image;
    qn_buf *out;
    png_structp png;
    png_infop info;
    qn_status status;
} png_writing;

static void fail(png_structp png, png_const_charp message)
{
    png_writing *w = png_get_error_ptr(png);
    if (w->status == QN_OK) w->status = qn_fail(QN_E_INTERNAL, "PNG: %s", message);
    png_longjmp(png, 1);
}

static void ignore(png_structp png, png_const_charp message)
{
    (void)png, (void)message;
}

static void *take(png_structp png, png_alloc_size_t size_bytes)
{
    png_writing *w = png_get_mem_ptr(png);
    void *p = qn_alloc(size_bytes);
    if (!p && w->status == QN_OK) w->status = QN_E_NOMEM;
    return p;
}

static void give(png_structp png, void *p)
{
    (void)png;
    qn_free(p);
}

static void write_bytes(png_structp png, png_bytep bytes, size_t n)
{
    png_writing *w = png_get_io_ptr(png);
    qn_buf_append(w->out, bytes, n);
    if (w->out->status == QN_OK) return;
    w->status = w->out->status;
    png_longjmp(png, 1);
}

static void flush(png_structp png)
{
    (void)png;
}

/* Everything that may jump. */
static void write_pixels(png_writing *w)
{
    const qn_picture *p = w->image;
    if (setjmp(png_jmpbuf(w->png))) return;
    png_set_write_fn(w->png, w, write_bytes, flush);
    png_set_IHDR(w->png, w->info, (png_uint_32)p->width, (png_uint_32)p->height, 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(w->png, w->info);
    for (int64_t y = 0; y < p->height; y++) png_write_row(w->png, p->rgb + y * p->width * 3);
    png_write_end(w->png, NULL);
}

qn_status qn_png_encode(const qn_picture *image, qn_buf *out)
{
    png_writing w = {.image = image, .out = out};
    if (image->width < 1 || image->height < 1 || image->width > SIDE_MAX || image->height > SIDE_MAX)
        return qn_fail(QN_E_ARG, "a picture of %lld x %lld pixels cannot be written", (long long)image->width,
                       (long long)image->height);
    w.png = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, &w, fail, ignore, &w, take, give);
    if (w.png) w.info = png_create_info_struct(w.png);
    if (w.info)
        write_pixels(&w);
    else
        w.status = QN_E_NOMEM;
    png_destroy_write_struct(w.png ? &w.png : NULL, w.info ? &w.info : NULL);
    return w.status;
}
