#include "model/vision/image_resize.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* A picture is scaled in its width, rounded to bytes, then scaled in its height. A value of the result is the
 * sum of neighbouring ones with weights of 16 bits in fixed point: as many bits lie behind the point as the
 * largest weight of the side leaves, at most 22. When a side shrinks, the filter is stretched by as much. */
enum { SHIFT_MAX = 22, WEIGHT_END = 1 << 15 };
static const double pi = 3.14159265358979323846;

/* Of one side: result i is made of values [first[i], first[i] + n[i]) with weights i * most .. */
typedef struct {
    int64_t most; /* weights of a result at most */
    int shift;    /* bits of a weight behind the point */
    int32_t *first, *n, *weights;
} filter;

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* Cubic convolution (Keys 1981) with a = -0.5. */
static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x)
{
    return x == 0 ? 1 : sin(x * pi) / (x * pi);
}

/* Lanczos' window with three lobes. */
static double lanczos(double x)
{
    return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

static const struct {
    double (*weight)(double x);
    int reach; /* it is 0 from here on */
} kernels[] = {
    [QN_IMAGE_BILINEAR] = {triangle, 1}, [QN_IMAGE_BICUBIC] = {cubic, 2}, [QN_IMAGE_LANCZOS] = {lanczos, 3}};

/* Weights [most] of the value at place i of the result, normalised; returns the largest. */
static double measure(filter *f, qn_image_filter kind, int64_t i, int64_t n_in, double scale, double *weights)
{
    const double stretch = scale < 1 ? 1 : scale, support = kernels[kind].reach * stretch,
                 center = ((double)i + 0.5) * scale;
    int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
    double sum = 0, largest = 0;
    if (first < 0) first = 0;
    if (end > n_in) end = n_in;
    for (int64_t j = first; j < end; j++) {
        weights[j - first] = kernels[kind].weight(((double)j - center + 0.5) * (1 / stretch));
        sum += weights[j - first];
    }
    for (int64_t j = 0; j < end - first; j++) {
        if (sum != 0) weights[j] /= sum;
        largest = fmax(largest, weights[j]);
    }
    f->first[i] = (int32_t)first;
    f->n[i] = (int32_t)(end - first);
    return largest;
}

/* The most bits behind the point with which the largest weight has 16 bits and its sign. */
static int shift_of(double largest)
{
    int shift = 0;
    while (shift < SHIFT_MAX && (int)(0.5 + largest * (1 << (shift + 1))) < WEIGHT_END) shift++;
    return shift;
}

static void filter_free(filter *f)
{
    qn_free(f->first);
    qn_free(f->n);
    qn_free(f->weights);
}

static qn_status filter_make(qn_image_filter kind, int64_t n_in, int64_t n_out, filter *f)
{
    const double scale = (double)n_in / (double)n_out, stretch = scale < 1 ? 1 : scale;
    double largest = 0;
    f->most = (int64_t)ceil(kernels[kind].reach * stretch) * 2 + 1;
    f->first = qn_alloc_array((size_t)n_out, sizeof *f->first);
    f->n = qn_alloc_array((size_t)n_out, sizeof *f->n);
    f->weights = qn_calloc((size_t)(n_out * f->most), sizeof *f->weights);
    double *row = qn_alloc_array((size_t)f->most, sizeof *row);
    if (!f->first || !f->n || !f->weights || !row) {
        qn_free(row);
        filter_free(f);
        return QN_E_NOMEM;
    }
    for (int64_t i = 0; i < n_out; i++) largest = fmax(largest, measure(f, kind, i, n_in, scale, row));
    f->shift = shift_of(largest);
    for (int64_t i = 0; i < n_out; i++) {
        measure(f, kind, i, n_in, scale, row);
        for (int64_t j = 0; j < f->n[i]; j++) {
            double w = row[j] * (1 << f->shift);
            f->weights[i * f->most + j] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
        }
    }
    qn_free(row);
    return QN_OK;
}

static uint8_t to_byte(int32_t sum, int shift)
{
    sum >>= shift;
    return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
}

/* One row in its width. */
static void scale_row(const filter *f, const uint8_t *in, uint8_t *out, int64_t n_out)
{
    for (int64_t i = 0; i < n_out; i++) {
        const int32_t *w = f->weights + i * f->most;
        const uint8_t *from = in + 3 * (int64_t)f->first[i];
        int32_t sum[3];
        for (int c = 0; c < 3; c++) sum[c] = (1 << f->shift) >> 1;
        for (int32_t j = 0; j < f->n[i]; j++)
            for (int c = 0; c < 3; c++) sum[c] += w[j] * from[3 * j + c];
        for (int c = 0; c < 3; c++) out[3 * i + c] = to_byte(sum[c], f->shift);
    }
}

/* Row i of the result out of rows of `width` values that lie below each other. */
static void mix_rows(const filter *f, int64_t i, const uint8_t *in, size_t stride_bytes, uint8_t *out,
                     int64_t width)
{
    const int32_t *w = f->weights + i * f->most;
    in += (size_t)f->first[i] * stride_bytes;
    for (int64_t x = 0; x < width; x++) {
        int32_t sum = (1 << f->shift) >> 1;
        for (int32_t j = 0; j < f->n[i]; j++) sum += w[j] * in[(size_t)j * stride_bytes + (size_t)x];
        out[x] = to_byte(sum, f->shift);
    }
}

/* A picture in memory, rows stride_bytes apart. */
typedef struct {
    const uint8_t *rgb;
    int64_t width, height;
    size_t stride_bytes;
} picture;

static qn_status scale_width(qn_image_filter kind, const picture *in, uint8_t *out, int64_t out_width,
                             size_t out_stride)
{
    filter f = {0};
    QN_TRY(filter_make(kind, in->width, out_width, &f));
    for (int64_t y = 0; y < in->height; y++)
        scale_row(&f, in->rgb + (size_t)y * in->stride_bytes, out + (size_t)y * out_stride, out_width);
    filter_free(&f);
    return QN_OK;
}

static qn_status scale_height(qn_image_filter kind, const picture *in, uint8_t *out, int64_t out_height,
                              size_t out_stride)
{
    filter f = {0};
    QN_TRY(filter_make(kind, in->height, out_height, &f));
    for (int64_t y = 0; y < out_height; y++)
        mix_rows(&f, y, in->rgb, in->stride_bytes, out + (size_t)y * out_stride, 3 * in->width);
    filter_free(&f);
    return QN_OK;
}

static void copy(const picture *in, uint8_t *out, size_t out_stride)
{
    for (int64_t y = 0; y < in->height; y++)
        memcpy(out + (size_t)y * out_stride, in->rgb + (size_t)y * in->stride_bytes, 3 * (size_t)in->width);
}

qn_status qn_image_resize(qn_image_filter kind, const uint8_t *rgb, int64_t width, int64_t height,
                          size_t stride_bytes, uint8_t *out, int64_t out_width, int64_t out_height,
                          size_t out_stride_bytes)
{
    const picture in = {rgb, width, height, stride_bytes};
    if (width == out_width && height == out_height) {
        copy(&in, out, out_stride_bytes);
        return QN_OK;
    }
    if (height == out_height) return scale_width(kind, &in, out, out_width, out_stride_bytes);
    if (width == out_width) return scale_height(kind, &in, out, out_height, out_stride_bytes);
    picture half = {.width = out_width, .height = height, .stride_bytes = 3 * (size_t)out_width};
    uint8_t *between = qn_alloc_array((size_t)half.height, half.stride_bytes);
    if (!between) return QN_E_NOMEM;
    half.rgb = between;
    qn_status status = scale_width(kind, &in, between, out_width, half.stride_bytes);
    if (status == QN_OK) status = scale_height(kind, &half, out, out_height, out_stride_bytes);
    qn_free(between);
    return status;
}
