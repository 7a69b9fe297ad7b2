#include "model/vision/image_processor.h"

#include <math.h>
#include <string.h>

#include "model/vision/image_resize.h"

/* ---- sizes -------------------------------------------------------------------------------------------- */

static int64_t longer(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

qn_status qn_image_grid_of(const qn_image_processor *p, int64_t width, int64_t height, qn_image_grid *out)
{
    const int64_t unit = p->patch_size * p->merge_size, long_side = longer(width, height),
                  short_side = width + height - long_side;
    const double w = (double)width, h = (double)height, u = (double)unit, least = (double)p->min_pixels,
                 most = (double)p->max_pixels;
    if (width < 1 || height < 1 || width > QN_IMAGE_SIDE_MAX || height > QN_IMAGE_SIDE_MAX)
        return qn_fail(QN_E_ARG, "the image is %lld x %lld pixels; a side may have 1 to %d", (long long)width,
                       (long long)height, (int)QN_IMAGE_SIDE_MAX);
    if (!p->do_resize) {
        if (width % unit || height % unit)
            return qn_fail(
                QN_E_ARG,
                "the image is %lld x %lld pixels; this model does not resize images and needs multiples of "
                "%lld",
                (long long)width, (long long)height, (long long)unit);
        *out = (qn_image_grid){height / p->patch_size, width / p->patch_size};
        return QN_OK;
    }
    if (long_side > QN_IMAGE_ASPECT_MAX * short_side)
        return qn_fail(QN_E_ARG, "the image is %lld x %lld pixels: one side is more than %d times the other",
                       (long long)width, (long long)height, (int)QN_IMAGE_ASPECT_MAX);
    /* rint rounds halves to even, as Python does. */
    double rows = rint(h / u), columns = rint(w / u);
    if (rows * u * columns * u > most) {
        double shrink = sqrt(h * w / most);
        rows = fmax(1, floor(h / shrink / u));
        columns = fmax(1, floor(w / shrink / u));
    } else if (rows * u * columns * u < least) {
        double grow = sqrt(least / (h * w));
        rows = ceil(h * grow / u);
        columns = ceil(w * grow / u);
    }
    *out = (qn_image_grid){(int64_t)rows * p->merge_size, (int64_t)columns * p->merge_size};
    if (rows * u > QN_IMAGE_SIDE_MAX || columns * u > QN_IMAGE_SIDE_MAX)
        return qn_fail(QN_E_ARG,
                       "the image would be resized to %.0f x %.0f pixels; a side may have at most %d",
                       columns * u, rows * u, (int)QN_IMAGE_SIDE_MAX);
    return QN_OK;
}

int64_t qn_image_grid_tokens(const qn_image_processor *p, const qn_image_grid *grid)
{
    return (grid->rows / p->merge_size) * (grid->columns / p->merge_size);
}

int64_t qn_image_grid_bytes(const qn_image_processor *p, const qn_image_grid *grid)
{
    return grid->rows * grid->columns * p->patch_size * p->patch_size * QN_IMAGE_CHANNELS;
}

/* ---- pixels ------------------------------------------------------------------------------------------- */

qn_status qn_image_fit(const qn_image_processor *p, const qn_image *image, const qn_image_grid *grid,
                       uint8_t *out)
{
    const size_t row = QN_IMAGE_CHANNELS * (size_t)image->width,
                 stride = image->stride_bytes ? image->stride_bytes : row;
    if (!image->rgb) return qn_fail(QN_E_ARG, "the image has no pixels: rgb is NULL");
    if (stride < row)
        return qn_fail(QN_E_ARG, "the image's stride_bytes is %zu, but a row of %lld pixels has %zu bytes",
                       stride, (long long)image->width, row);
    return qn_image_resize(image->rgb, image->width, image->height, stride, out,
                           grid->columns * p->patch_size, grid->rows * p->patch_size);
}

int64_t qn_image_patch_floats(const qn_image_processor *p)
{
    return QN_IMAGE_CHANNELS * p->temporal_patch_size * p->patch_size * p->patch_size;
}

/* One patch, whose first pixel is at rgb. */
static void cut_patch(const qn_image_processor *p, const uint8_t *rgb, int64_t stride, float *out)
{
    const int64_t area = p->patch_size * p->patch_size;
    for (int c = 0; c < QN_IMAGE_CHANNELS; c++) {
        float *first = out;
        for (int64_t y = 0; y < p->patch_size; y++)
            for (int64_t x = 0; x < p->patch_size; x++)
                *out++ = (float)rgb[y * stride + QN_IMAGE_CHANNELS * x + c] * p->factor[c] + p->offset[c];
        for (int64_t t = 1; t < p->temporal_patch_size; t++, out += area)
            memcpy(out, first, (size_t)area * sizeof *out);
    }
}

void qn_image_patches(const qn_image_processor *p, const uint8_t *rgb, const qn_image_grid *grid, float *out)
{
    const int64_t merge = p->merge_size, stride = QN_IMAGE_CHANNELS * grid->columns * p->patch_size;
    for (int64_t row = 0; row < grid->rows; row += merge)
        for (int64_t column = 0; column < grid->columns; column += merge)
            for (int64_t i = 0; i < merge * merge; i++, out += qn_image_patch_floats(p)) {
                int64_t y = (row + i / merge) * p->patch_size, x = (column + i % merge) * p->patch_size;
                cut_patch(p, rgb + y * stride + QN_IMAGE_CHANNELS * x, stride, out);
            }
}
