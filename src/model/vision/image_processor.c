#include "model/vision/image_processor.h"

#include <string.h>

#include "base/mem.h"
#include "model/vision/image_resize.h"
#include "model/vision/image_sizes.h"

/* ---- plans -------------------------------------------------------------------------------------------- */

static qn_image_rule_fn *const rules[] = {
    [QN_IMAGE_ROUNDED] = qn_image_rounded,     [QN_IMAGE_PADDED] = qn_image_padded,
    [QN_IMAGE_CLOSEST] = qn_image_closest,     [QN_IMAGE_BUDGET] = qn_image_budget,
    [QN_IMAGE_LONGEST] = qn_image_longest,     [QN_IMAGE_FIXED] = qn_image_fixed,
    [QN_IMAGE_GRID] = qn_image_tiles_grid,     [QN_IMAGE_ASPECT] = qn_image_tiles_aspect,
    [QN_IMAGE_CANVAS] = qn_image_tiles_canvas, [QN_IMAGE_LARGE] = qn_image_tiles_large,
};

/* A picture of a model that does not resize any. */
static qn_status keep_size(const qn_image_processor *p, qn_image_size size, qn_image_plan *plan)
{
    const int64_t unit = p->patch_size * p->merge_size;
    if (p->rule == QN_IMAGE_FIXED && (size.width != p->width || size.height != p->height))
        return qn_fail(
            QN_E_ARG,
            "the image is %lld x %lld pixels; this model does not resize images and needs %lld x %lld",
            (long long)size.width, (long long)size.height, (long long)p->width, (long long)p->height);
    if (p->rule != QN_IMAGE_FIXED && (size.width % unit || size.height % unit))
        return qn_fail(
            QN_E_ARG,
            "the image is %lld x %lld pixels; this model does not resize images and needs multiples of %lld",
            (long long)size.width, (long long)size.height, (long long)unit);
    return qn_image_whole_of((double)size.height, (double)size.width, plan);
}

static qn_status count_patches(const qn_image_processor *p, qn_image_grid *view)
{
    view->rows = view->height / p->patch_size;
    view->columns = view->width / p->patch_size;
    view->token_rows = (view->rows + p->merge_size - 1) / p->merge_size;
    view->token_columns = (view->columns + p->merge_size - 1) / p->merge_size;
    if (!view->height || (view->rows && view->columns)) return QN_OK;
    return qn_fail(QN_E_ARG, "a view of %lld x %lld pixels is smaller than a patch of %lld",
                   (long long)view->width, (long long)view->height, (long long)p->patch_size);
}

qn_status qn_image_plan_of(const qn_image_processor *p, int64_t width, int64_t height, qn_image_plan *out)
{
    const qn_image_size size = {height, width};
    const int is_resized =
        p->do_resize || p->rule == QN_IMAGE_GRID || p->rule == QN_IMAGE_ASPECT || p->rule == QN_IMAGE_LARGE;
    qn_image_plan plan = {.tile_rows = 1, .tile_columns = 1};
    if (width < 1 || height < 1 || width > QN_IMAGE_SIDE_MAX || height > QN_IMAGE_SIDE_MAX)
        return qn_fail(QN_E_ARG, "the image is %lld x %lld pixels; a side may have 1 to %d", (long long)width,
                       (long long)height, (int)QN_IMAGE_SIDE_MAX);
    QN_TRY(is_resized ? rules[p->rule](p, size, &plan) : keep_size(p, size, &plan));
    if (!plan.tile.height)
        plan.tile = (qn_image_grid){.height = plan.canvas.height, .width = plan.canvas.width};
    QN_TRY(count_patches(p, &plan.tile));
    QN_TRY(count_patches(p, &plan.whole));
    *out = plan;
    return QN_OK;
}

int64_t qn_image_plan_views(const qn_image_plan *plan)
{
    return plan->tile_rows * plan->tile_columns + (plan->whole.height > 0);
}

const qn_image_grid *qn_image_plan_view(const qn_image_plan *plan, int64_t i)
{
    return i < plan->tile_rows * plan->tile_columns ? &plan->tile : &plan->whole;
}

int64_t qn_image_grid_tokens(const qn_image_grid *view)
{
    return view->token_rows * view->token_columns;
}

int64_t qn_image_grid_bytes(const qn_image_grid *view)
{
    return view->height * view->width * QN_IMAGE_CHANNELS;
}

int64_t qn_image_plan_tokens(const qn_image_plan *plan)
{
    return plan->tile_rows * plan->tile_columns * qn_image_grid_tokens(&plan->tile) +
           qn_image_grid_tokens(&plan->whole);
}

int64_t qn_image_plan_bytes(const qn_image_plan *plan)
{
    return plan->tile_rows * plan->tile_columns * qn_image_grid_bytes(&plan->tile) +
           qn_image_grid_bytes(&plan->whole);
}

/* ---- pixels ------------------------------------------------------------------------------------------- */

/* Pixels in memory, rows stride_bytes apart; owned: qn_free, NULL if they are the caller's. */
typedef struct {
    const uint8_t *rgb;
    qn_image_size size;
    size_t stride_bytes;
    uint8_t *owned;
} pixels;

static size_t row_bytes(int64_t width)
{
    return QN_IMAGE_CHANNELS * (size_t)width;
}

/* *out: `in` of another size on black. */
static qn_status resize(const qn_image_processor *p, const pixels *in, qn_image_size content,
                        qn_image_size canvas, pixels *out)
{
    const size_t stride = row_bytes(canvas.width);
    uint8_t *rgb = qn_calloc((size_t)canvas.height, stride);
    if (!rgb) return QN_E_NOMEM;
    qn_status status = qn_image_resize(p->filter, in->rgb, in->size.width, in->size.height, in->stride_bytes,
                                       rgb, content.width, content.height, stride);
    if (status == QN_OK)
        *out = (pixels){rgb, canvas, stride, rgb};
    else
        qn_free(rgb);
    return status;
}

static void cut_tiles(const qn_image_plan *plan, const pixels *canvas, uint8_t *out)
{
    const size_t row = row_bytes(plan->tile.width);
    for (int64_t i = 0; i < plan->tile_rows * plan->tile_columns; i++) {
        const uint8_t *from = canvas->rgb +
                              (size_t)(i / plan->tile_columns * plan->tile.height) * canvas->stride_bytes +
                              (size_t)(i % plan->tile_columns) * row;
        for (int64_t y = 0; y < plan->tile.height; y++, out += row)
            memcpy(out, from + (size_t)y * canvas->stride_bytes, row);
    }
}

static qn_status make_views(const qn_image_processor *p, const pixels *picture, const qn_image_plan *plan,
                            uint8_t *out)
{
    pixels canvas;
    QN_TRY(resize(p, picture, plan->content, plan->canvas, &canvas));
    cut_tiles(plan, &canvas, out);
    const pixels *from = plan->is_whole_of_canvas ? &canvas : picture;
    qn_status status = QN_OK;
    if (plan->whole.height)
        status =
            qn_image_resize(p->filter, from->rgb, from->size.width, from->size.height, from->stride_bytes,
                            out + plan->tile_rows * plan->tile_columns * qn_image_grid_bytes(&plan->tile),
                            plan->whole.width, plan->whole.height, row_bytes(plan->whole.width));
    qn_free(canvas.owned);
    return status;
}

qn_status qn_image_fit(const qn_image_processor *p, const qn_image *image, const qn_image_plan *plan,
                       uint8_t *out)
{
    const size_t row = row_bytes(image->width), stride = image->stride_bytes ? image->stride_bytes : row;
    if (!image->rgb) return qn_fail(QN_E_ARG, "the image has no pixels: rgb is NULL");
    if (stride < row)
        return qn_fail(QN_E_ARG, "the image's stride_bytes is %zu, but a row of %lld pixels has %zu bytes",
                       stride, (long long)image->width, row);
    pixels picture = {image->rgb, {image->height, image->width}, stride, NULL};
    if (plan->first.height) QN_TRY(resize(p, &picture, plan->first, plan->first, &picture));
    qn_status status = make_views(p, &picture, plan, out);
    qn_free(picture.owned);
    return status;
}

/* ---- patches ------------------------------------------------------------------------------------------ */

int64_t qn_image_patch_floats(const qn_image_processor *p)
{
    return QN_IMAGE_CHANNELS * p->temporal_patch_size * p->patch_size * p->patch_size;
}

/* One channel of a patch, whose first pixel is at rgb. */
static float *cut_channel(const qn_image_processor *p, const uint8_t *rgb, int64_t stride, int c, float *out)
{
    for (int64_t y = 0; y < p->patch_size; y++)
        for (int64_t x = 0; x < p->patch_size; x++)
            *out++ = p->value[c][rgb[y * stride + QN_IMAGE_CHANNELS * x + c]];
    return out;
}

static void cut_pixels(const qn_image_processor *p, const uint8_t *rgb, int64_t stride, float *out)
{
    for (int64_t y = 0; y < p->patch_size; y++)
        for (int64_t x = 0; x < p->patch_size; x++)
            for (int c = 0; c < QN_IMAGE_CHANNELS; c++)
                *out++ = p->value[c][rgb[y * stride + QN_IMAGE_CHANNELS * x + c]];
}

static void cut_patch(const qn_image_processor *p, const uint8_t *rgb, int64_t stride, float *out)
{
    const int64_t area = p->patch_size * p->patch_size, n_times = p->temporal_patch_size;
    if (p->order == QN_IMAGE_PIXELS) {
        cut_pixels(p, rgb, stride, out);
    } else if (p->order == QN_IMAGE_TIMES) {
        float *first = out;
        for (int c = 0; c < QN_IMAGE_CHANNELS; c++) out = cut_channel(p, rgb, stride, c, out);
        for (int64_t t = 1; t < n_times; t++, out += QN_IMAGE_CHANNELS * area)
            memcpy(out, first, (size_t)(QN_IMAGE_CHANNELS * area) * sizeof *out);
    } else {
        for (int c = 0; c < QN_IMAGE_CHANNELS; c++) {
            float *first = out;
            out = cut_channel(p, rgb, stride, c, out);
            for (int64_t t = 1; t < n_times; t++, out += area) memcpy(out, first, (size_t)area * sizeof *out);
        }
    }
}

void qn_image_patches(const qn_image_processor *p, const uint8_t *rgb, const qn_image_grid *view, float *out)
{
    const int64_t merge = p->order == QN_IMAGE_MERGED ? p->merge_size : 1,
                  stride = QN_IMAGE_CHANNELS * view->width;
    for (int64_t row = 0; row < view->rows; row += merge)
        for (int64_t column = 0; column < view->columns; column += merge)
            for (int64_t i = 0; i < merge * merge; i++, out += qn_image_patch_floats(p)) {
                int64_t y = (row + i / merge) * p->patch_size, x = (column + i % merge) * p->patch_size;
                cut_patch(p, rgb + y * stride + QN_IMAGE_CHANNELS * x, stride, out);
            }
}
