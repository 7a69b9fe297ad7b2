#include "model/vision/image_resize.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* A picture is scaled in one direction, rounded to bytes, then scaled in the other. A value of the result is
 * the sum of `n` neighbouring ones with weights in fixed point, of which 22 bits lie behind the point: 32
 * less 8 of a value and 2 of what a weighted sum may overshoot. When a side shrinks, the filter is stretched
 * by as much. */
enum { WEIGHT_BITS = 32 - 8 - 2 };

/* Of one side: result i is made of values [first[i], first[i] + n[i]) with weights i * most .. */
typedef struct {
    int64_t most; /* weights of a result at most */
    int32_t *first, *n, *weights;
} filter;

/* Cubic convolution (Keys 1981) with a = -0.5. */
static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/* Weights of the value at place i of the result, normalised, then rounded. scratch: [most]. */
static void make_weights(filter *f, int64_t i, int64_t n_in, double scale, double stretch, double *scratch)
{
    const double support = 2 * stretch, center = ((double)i + 0.5) * scale;
    int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
    double sum = 0;
    if (first < 0) first = 0;
    if (end > n_in) end = n_in;
    for (int64_t j = first; j < end; j++) {
        scratch[j - first] = cubic(((double)j - center + 0.5) * (1 / stretch));
        sum += scratch[j - first];
    }
    for (int64_t j = 0; j < end - first; j++) {
        double w = (sum != 0 ? scratch[j] / sum : scratch[j]) * (1 << WEIGHT_BITS);
        f->weights[i * f->most + j] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
    }
    f->first[i] = (int32_t)first;
    f->n[i] = (int32_t)(end - first);
}

static void filter_free(filter *f)
{
    qn_free(f->first);
    qn_free(f->n);
    qn_free(f->weights);
}

static qn_status filter_make(int64_t n_in, int64_t n_out, filter *f)
{
    const double scale = (double)n_in / (double)n_out, stretch = scale < 1 ? 1 : scale;
    f->most = (int64_t)ceil(2 * stretch) * 2 + 1;
    f->first = qn_alloc_array((size_t)n_out, sizeof *f->first);
    f->n = qn_alloc_array((size_t)n_out, sizeof *f->n);
    f->weights = qn_calloc((size_t)(n_out * f->most), sizeof *f->weights);
    double *scratch = qn_alloc_array((size_t)f->most, sizeof *scratch);
    qn_status status = f->first && f->n && f->weights && scratch ? QN_OK : QN_E_NOMEM;
    for (int64_t i = 0; i < n_out && status == QN_OK; i++) make_weights(f, i, n_in, scale, stretch, scratch);
    qn_free(scratch);
    if (status != QN_OK) filter_free(f);
    return status;
}

static uint8_t to_byte(int64_t sum)
{
    sum >>= WEIGHT_BITS;
    return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
}

/* One row in its width. */
static void scale_row(const filter *f, const uint8_t *in, uint8_t *out, int64_t n_out)
{
    for (int64_t i = 0; i < n_out; i++) {
        const int32_t *w = f->weights + i * f->most;
        const uint8_t *from = in + 3 * (int64_t)f->first[i];
        int64_t sum[3];
        for (int c = 0; c < 3; c++) sum[c] = 1 << (WEIGHT_BITS - 1);
        for (int32_t j = 0; j < f->n[i]; j++)
            for (int c = 0; c < 3; c++) sum[c] += (int64_t)w[j] * from[3 * j + c];
        for (int c = 0; c < 3; c++) out[3 * i + c] = to_byte(sum[c]);
    }
}

/* Row i of the result out of rows of `width` values that lie below each other. */
static void mix_rows(const filter *f, int64_t i, const uint8_t *in, size_t stride_bytes, uint8_t *out,
                     int64_t width)
{
    const int32_t *w = f->weights + i * f->most;
    in += (size_t)f->first[i] * stride_bytes;
    for (int64_t x = 0; x < width; x++) {
        int64_t sum = 1 << (WEIGHT_BITS - 1);
        for (int32_t j = 0; j < f->n[i]; j++) sum += (int64_t)w[j] * in[(size_t)j * stride_bytes + (size_t)x];
        out[x] = to_byte(sum);
    }
}

/* A picture in memory, rows stride_bytes apart. */
typedef struct {
    const uint8_t *rgb;
    int64_t width, height;
    size_t stride_bytes;
} picture;

static qn_status scale_width(const picture *in, uint8_t *out, int64_t out_width)
{
    filter f = {0};
    QN_TRY(filter_make(in->width, out_width, &f));
    for (int64_t y = 0; y < in->height; y++)
        scale_row(&f, in->rgb + (size_t)y * in->stride_bytes, out + 3 * y * out_width, out_width);
    filter_free(&f);
    return QN_OK;
}

static qn_status scale_height(const picture *in, uint8_t *out, int64_t out_height)
{
    filter f = {0};
    QN_TRY(filter_make(in->height, out_height, &f));
    for (int64_t y = 0; y < out_height; y++)
        mix_rows(&f, y, in->rgb, in->stride_bytes, out + 3 * y * in->width, 3 * in->width);
    filter_free(&f);
    return QN_OK;
}

static void copy(const picture *in, uint8_t *out)
{
    for (int64_t y = 0; y < in->height; y++)
        memcpy(out + 3 * y * in->width, in->rgb + (size_t)y * in->stride_bytes, 3 * (size_t)in->width);
}

/* Which side comes first shows in the last bits, for what lies between is rounded: the width, unless the
 * height shrinks by more than twice as many places (found out by trying with Pillow 13; older ones begin with
 * the width). */
static int height_first(const picture *in, int64_t out_width, int64_t out_height)
{
    return out_height < in->height && in->height - out_height > 2 * (in->width - out_width);
}

qn_status qn_image_resize(const uint8_t *rgb, int64_t width, int64_t height, size_t stride_bytes,
                          uint8_t *out, int64_t out_width, int64_t out_height)
{
    const picture in = {rgb, width, height, stride_bytes};
    if (width == out_width && height == out_height) {
        copy(&in, out);
        return QN_OK;
    }
    if (height == out_height) return scale_width(&in, out, out_width);
    if (width == out_width) return scale_height(&in, out, out_height);
    const int by_height = height_first(&in, out_width, out_height);
    picture half = {.width = by_height ? width : out_width, .height = by_height ? out_height : height};
    half.stride_bytes = 3 * (size_t)half.width;
    uint8_t *between = qn_alloc_array((size_t)half.height, half.stride_bytes);
    if (!between) return QN_E_NOMEM;
    half.rgb = between;
    qn_status status =
        by_height ? scale_height(&in, between, out_height) : scale_width(&in, between, out_width);
    if (status == QN_OK)
        status = by_height ? scale_width(&half, out, out_width) : scale_height(&half, out, out_height);
    qn_free(between);
    return status;
}
