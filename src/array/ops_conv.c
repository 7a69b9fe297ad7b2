/* Convolutions: the windows as a strided view, times the weight. */
#include "array/build.h"

/* x [batch, height, width, channels], padded, as windows [batch, out height, out width, kh, kw, channels]. */
static qn_array *windows(qn_scope *s, qn_array *x, const int64_t out[2], const int64_t kernel[2],
                         const int64_t stride[2], const int64_t dilation[2])
{
    if (!x) return NULL;
    const int64_t *d = x->shape.dim, row = d[2] * d[3];
    const int64_t dims[6] = {d[0], out[0], out[1], kernel[0], kernel[1], d[3]};
    const int64_t strides[6] = {d[1] * row,        stride[0] * row,    stride[1] * d[3],
                                dilation[0] * row, dilation[1] * d[3], 1};
    return qn_as_strided(s, x, 6, dims, strides, 0);
}

qn_array *qn_conv2d(qn_scope *s, qn_array *x, qn_array *w, const int64_t stride[2], const int64_t padding[2],
                    const int64_t dilation[2], int64_t groups)
{
    static const char what[] = "qn_conv";
    if (!x || !w) return NULL;
    if (x->shape.n != 4 || w->shape.n != 4 || qn_shape_is_symbolic(&x->shape))
        return qn_bad_call(s, what, x,
                           "takes x [batch, length.., channels] and w [outputs, kernel.., channels]");
    const int64_t *d = x->shape.dim, *k = w->shape.dim, outputs = k[0], each = k[3];
    int64_t out[2];
    if (groups < 1 || d[3] != each * groups || outputs % groups)
        return qn_bad_call(s, what, w, "channels do not match the weight and the groups");
    for (int i = 0; i < 2; i++) {
        if (stride[i] < 1 || dilation[i] < 1 || padding[i] < 0 || padding[i] > INT32_MAX ||
            stride[i] > INT32_MAX || dilation[i] > INT32_MAX || k[i + 1] < 1)
            return qn_bad_call(s, what, w, "the stride, padding, dilation or kernel is invalid");
        const int64_t reach = dilation[i] * (k[i + 1] - 1) + 1, all = d[i + 1] + 2 * padding[i];
        if (all < reach) return qn_bad_call(s, what, x, "is smaller than the kernel");
        out[i] = (all - reach) / stride[i] + 1;
    }
    const int64_t at[4] = {0, padding[0], padding[1], 0}, taps = k[1] * k[2], rows = d[0] * out[0] * out[1],
                  result[4] = {d[0], out[0], out[1], outputs};
    x = windows(s, qn_pad(s, x, at, at, 0), out, (int64_t[]){k[1], k[2]}, stride, dilation);
    if (groups == 1) {
        x = qn_reshape(s, x, 2, (int64_t[]){rows, taps * each});
        return qn_reshape(s, qn_linear(s, x, qn_reshape(s, w, 2, (int64_t[]){outputs, taps * each})), 4,
                          result);
    }
    x = qn_reshape(s, x, 4, (int64_t[]){rows, taps, groups, each});
    if (each == 1 && outputs == groups) { /* each channel on its own */
        w = qn_transpose(s, qn_reshape(s, w, 2, (int64_t[]){outputs, taps}));
        x = qn_mul(s, qn_reshape(s, x, 3, (int64_t[]){rows, taps, groups}), w);
        return qn_reshape(s, qn_sum(s, x, 1), 4, result);
    }
    x = qn_reshape(s, qn_permute(s, x, (int32_t[]){2, 0, 1, 3}), 3, (int64_t[]){groups, rows, taps * each});
    w = qn_reshape(s, w, 3, (int64_t[]){groups, outputs / groups, taps * each});
    x = qn_permute(s, qn_matmul(s, x, qn_transpose(s, w)), (int32_t[]){1, 0, 2});
    return qn_reshape(s, x, 4, result);
}

qn_array *qn_conv1d(qn_scope *s, qn_array *x, qn_array *w, int64_t stride, int64_t padding, int64_t dilation,
                    int64_t groups)
{
    if (!x || !w) return NULL;
    if (x->shape.n != 3 || w->shape.n != 3)
        return qn_bad_call(s, "qn_conv1d", x,
                           "takes x [batch, length, channels] and w [outputs, kernel, channels]");
    x = qn_conv2d(s, qn_expand_dims(s, x, 1), qn_expand_dims(s, w, 1), (int64_t[]){1, stride},
                  (int64_t[]){0, padding}, (int64_t[]){1, dilation}, groups);
    return qn_squeeze(s, x, 1);
}
