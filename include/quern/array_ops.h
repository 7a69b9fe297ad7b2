/* Operations on arrays: element-wise, comparison, along axes, products, shapes, indices, random numbers, and
 * those of models. Included by array.h, whose conventions hold: nothing is computed before qn_eval or a
 * reading of data; NULL for an array gives NULL; the first error is the scope's.
 *
 * Axes may be counted from the end (-1 is the last one). Types: all operations take all plain types. Where
 * arrays of several types meet, qn_promote says what the result is; f16 and bf16 are computed in f32 and
 * rounded once an operation; what has fractions makes f32 of integers and bool; arithmetic on bool gives i32.
 * Integers wrap around (two's complement). f32 has its own kernels and is fused; other types are correct, not
 * fast. Every result is the same for any number of threads, to the last bit. */
#ifndef QUERN_ARRAY_OPS_H
#define QUERN_ARRAY_OPS_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_array qn_array;
typedef struct qn_scope qn_scope;

/* ---- element by element ------------------------------------------------------------------------------- */

QN_API qn_array *qn_add(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_sub(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_mul(qn_scope *s, qn_array *a, qn_array *b);
/* With its fraction: of two integers f32. */
QN_API qn_array *qn_div(qn_scope *s, qn_array *a, qn_array *b);
/* a / b rounded down; of integers by 0: 0. */
QN_API qn_array *qn_floor_divide(qn_scope *s, qn_array *a, qn_array *b);
/* a - b * floor_divide(a, b): it has b's sign; of integers by 0: a. */
QN_API qn_array *qn_remainder(qn_scope *s, qn_array *a, qn_array *b);
/* Of integers exact, without the fraction where b < 0. A negative f32 to a power that is not whole is NaN. */
QN_API qn_array *qn_pow(qn_scope *s, qn_array *a, qn_array *b);
/* NaN if one of them is; at equal numbers each has half of the gradient. */
QN_API qn_array *qn_maximum(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_minimum(qn_scope *s, qn_array *a, qn_array *b);
/* a times a number, in a's type where that is a floating one. */
QN_API qn_array *qn_scale(qn_scope *s, qn_array *a, double factor);
/* min(max(a, low), high). */
QN_API qn_array *qn_clip(qn_scope *s, qn_array *a, double low, double high);

QN_API qn_array *qn_neg(qn_scope *s, qn_array *a);
QN_API qn_array *qn_abs(qn_scope *s, qn_array *a);
/* -1, 0 or 1; NaN of NaN. Its gradient is 0. */
QN_API qn_array *qn_sign(qn_scope *s, qn_array *a);
QN_API qn_array *qn_square(qn_scope *s, qn_array *a);
QN_API qn_array *qn_sqrt(qn_scope *s, qn_array *a);
/* 1 / sqrt(a) and 1 / a. */
QN_API qn_array *qn_rsqrt(qn_scope *s, qn_array *a);
QN_API qn_array *qn_reciprocal(qn_scope *s, qn_array *a);
QN_API qn_array *qn_exp(qn_scope *s, qn_array *a);
/* exp(a) - 1 and log(1 + a), exact near 0. */
QN_API qn_array *qn_expm1(qn_scope *s, qn_array *a);
QN_API qn_array *qn_log1p(qn_scope *s, qn_array *a);
/* The natural logarithm (qn_log writes a line of the log). */
QN_API qn_array *qn_ln(qn_scope *s, qn_array *a);
QN_API qn_array *qn_sin(qn_scope *s, qn_array *a);
QN_API qn_array *qn_cos(qn_scope *s, qn_array *a);
QN_API qn_array *qn_tanh(qn_scope *s, qn_array *a);
QN_API qn_array *qn_erf(qn_scope *s, qn_array *a);
/* To a whole number, of the same type: down, up, to the nearest with ties to even. Their gradient is 0. */
QN_API qn_array *qn_floor(qn_scope *s, qn_array *a);
QN_API qn_array *qn_ceil(qn_scope *s, qn_array *a);
QN_API qn_array *qn_round(qn_scope *s, qn_array *a);
QN_API qn_array *qn_relu(qn_scope *s, qn_array *a);
/* 1 / (1 + exp(-a)); log(1 + exp(a)); a sigmoid(a). */
QN_API qn_array *qn_sigmoid(qn_scope *s, qn_array *a);
QN_API qn_array *qn_softplus(qn_scope *s, qn_array *a);
QN_API qn_array *qn_silu(qn_scope *s, qn_array *a);
/* By erf, and by tanh. */
QN_API qn_array *qn_gelu(qn_scope *s, qn_array *a);
QN_API qn_array *qn_gelu_tanh(qn_scope *s, qn_array *a);

/* ---- comparison, logic, choice: bool ------------------------------------------------------------------ */

/* Nothing but != holds for NaN; -0 equals 0. */
QN_API qn_array *qn_eq(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_ne(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_lt(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_le(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_gt(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_ge(qn_scope *s, qn_array *a, qn_array *b);
/* Of any types: what is not 0 is true. */
QN_API qn_array *qn_logical_and(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_logical_or(qn_scope *s, qn_array *a, qn_array *b);
QN_API qn_array *qn_logical_not(qn_scope *s, qn_array *a);
QN_API qn_array *qn_isnan(qn_scope *s, qn_array *a);
QN_API qn_array *qn_isinf(qn_scope *s, qn_array *a);
QN_API qn_array *qn_isfinite(qn_scope *s, qn_array *a);
/* a where the condition holds (is not 0), b elsewhere; the three are broadcast. Neither value nor gradient of
 * the side that was not chosen matters, be it NaN. */
QN_API qn_array *qn_where(qn_scope *s, qn_array *condition, qn_array *a, qn_array *b);

/* ---- along axes --------------------------------------------------------------------------------------- */

/* VAR divides by the number of elements; LOGSUMEXP is log(sum(exp(a))) without overflow; ANY and ALL give
 * bool. Of no elements: SUM 0, PROD 1, ANY 0, ALL 1; MAX and MIN are refused. MAX and MIN are NaN if one
 * element is; equal largest ones share the gradient. */
typedef enum {
    QN_REDUCE_SUM,
    QN_REDUCE_MEAN,
    QN_REDUCE_PROD,
    QN_REDUCE_MAX,
    QN_REDUCE_MIN,
    QN_REDUCE_VAR,
    QN_REDUCE_STD,
    QN_REDUCE_LOGSUMEXP,
    QN_REDUCE_ANY,
    QN_REDUCE_ALL
} qn_reduction;
/* Over n_axes axes (axes NULL: all of them), which stay with size 1 if keepdims, else go. */
QN_API qn_array *qn_reduce(qn_scope *s, qn_reduction how, qn_array *a, int n_axes, const int *axes,
                           int keepdims);
/* Over one axis, which stays with size 1. */
QN_API qn_array *qn_sum(qn_scope *s, qn_array *a, int axis);
QN_API qn_array *qn_mean(qn_scope *s, qn_array *a, int axis);
QN_API qn_array *qn_max(qn_scope *s, qn_array *a, int axis);
QN_API qn_array *qn_min(qn_scope *s, qn_array *a, int axis);
/* VAR divided by the number of elements less ddof. */
QN_API qn_array *qn_var(qn_scope *s, qn_array *a, int axis, int ddof);
/* i32: where along the axis the first largest (smallest) is; the first NaN where there is one. The axis goes
 * unless keepdims. */
QN_API qn_array *qn_argmax(qn_scope *s, qn_array *a, int axis, int keepdims);
QN_API qn_array *qn_argmin(qn_scope *s, qn_array *a, int axis, int keepdims);

/* Running sums, products, largest and smallest. exclusive: of the elements before alone (the first is 0, 1,
 * -inf, inf, or the type's end). reverse: from the end on. */
typedef enum { QN_CUMSUM, QN_CUMPROD, QN_CUMMAX, QN_CUMMIN } qn_cumulation;
QN_API qn_array *qn_cumulate(qn_scope *s, qn_cumulation how, qn_array *a, int axis, int reverse,
                             int exclusive);

/* Sorted along an axis, equal elements in their order; NaN counts as larger than all numbers. falling: the
 * largest first. qn_argsort: the indices, i32. */
QN_API qn_array *qn_sort(qn_scope *s, qn_array *a, int axis, int falling);
QN_API qn_array *qn_argsort(qn_scope *s, qn_array *a, int axis, int falling);
/* The k largest along an axis, the largest first; *indices (may be NULL): where they were, i32. */
QN_API qn_array *qn_topk(qn_scope *s, qn_array *a, int64_t k, int axis, qn_array **indices);

/* exp(a) / sum(exp(a)) along the last axis, along any axis, and its logarithm. */
QN_API qn_array *qn_softmax(qn_scope *s, qn_array *a);
QN_API qn_array *qn_softmax_axis(qn_scope *s, qn_array *a, int axis);
QN_API qn_array *qn_log_softmax(qn_scope *s, qn_array *a, int axis);

/* ---- shape: views where that is possible -------------------------------------------------------------- */

/* As many elements in another shape, in row-major order; one dimension may be -1: what is left. */
QN_API qn_array *qn_reshape(qn_scope *s, qn_array *a, int n_dims, const int64_t *dims);
/* Dimensions first to last become one. */
QN_API qn_array *qn_flatten(qn_scope *s, qn_array *a, int first, int last);
/* The last two dimensions swapped; any two; all in a given order (dimension i of the result is perm[i]). */
QN_API qn_array *qn_transpose(qn_scope *s, qn_array *a);
QN_API qn_array *qn_swap_axes(qn_scope *s, qn_array *a, int x, int y);
QN_API qn_array *qn_permute(qn_scope *s, qn_array *a, const int32_t *perm);
/* A dimension of size 1 that comes to lie at axis; one that goes. */
QN_API qn_array *qn_expand_dims(qn_scope *s, qn_array *a, int axis);
QN_API qn_array *qn_squeeze(qn_scope *s, qn_array *a, int axis);
QN_API qn_array *qn_broadcast_to(qn_scope *s, qn_array *a, int n_dims, const int64_t *dims);
/* Element [i0, i1, ..] is element offset + i0 * strides[0] + i1 * strides[1] + .. of a in row-major order.
 * What reaches outside a is refused. The gradient adds up where elements come several times. */
QN_API qn_array *qn_as_strided(qn_scope *s, qn_array *a, int n_dims, const int64_t *dims,
                               const int64_t *strides, int64_t offset);

/* As far as it goes, in the direction of the step. */
#define QN_TO_END INT64_MAX
/* a[begin:end:step, ..] of NumPy, for each dimension: indices from the end are negative, what reaches beyond
 * is cut, steps may be negative but not 0. step NULL: 1 everywhere. */
QN_API qn_array *qn_slice(qn_scope *s, qn_array *a, const int64_t *begin, const int64_t *end,
                          const int64_t *step);
/* a with these elements replaced by those of update, which is broadcast to them and cast to a's type. */
QN_API qn_array *qn_slice_update(qn_scope *s, qn_array *a, qn_array *update, const int64_t *begin,
                                 const int64_t *end, const int64_t *step);
/* low[i] elements of this value before dimension i, high[i] behind it. */
QN_API qn_array *qn_pad(qn_scope *s, qn_array *a, const int64_t *low, const int64_t *high, double value);
/* Along an axis; of arrays of any number. qn_stack: along a new one. */
QN_API qn_array *qn_concatenate(qn_scope *s, int n, qn_array *const *parts, int axis);
QN_API qn_array *qn_stack(qn_scope *s, int n, qn_array *const *parts, int axis);
/* n parts of equal size into out[0..n); all NULL on error. */
QN_API void qn_split(qn_scope *s, qn_array *a, int n, int axis, qn_array **out);
/* Each element n times, one behind the other; the whole array times[i] times along dimension i. */
QN_API qn_array *qn_repeat(qn_scope *s, qn_array *a, int64_t n, int axis);
QN_API qn_array *qn_tile(qn_scope *s, qn_array *a, const int64_t *times);

/* ---- indices ------------------------------------------------------------------------------------------ */

/* Indices are of any integer type; negative ones count from the end. An index outside is an error where the
 * indices are data when this is called; where they are only computed later it is taken for the nearest one
 * inside. */

/* Elements by indices along an axis, in whose place the dimensions of indices come. */
QN_API qn_array *qn_take_axis(qn_scope *s, qn_array *a, qn_array *indices, int axis);
/* out[.., i, ..] = a[.., indices[.., i, ..], ..]: shapes agree but for the axis (or are broadcast). */
QN_API qn_array *qn_take_along_axis(qn_scope *s, qn_array *a, qn_array *indices, int axis);
/* a with a[.., indices[.., i, ..], ..] = values[.., i, ..]; of several values for one place the last stays.
 */
QN_API qn_array *qn_put_along_axis(qn_scope *s, qn_array *a, qn_array *indices, qn_array *values, int axis);
/* a with the slices that indices [n] name along an axis replaced by those of updates (as a, n along the
 * axis), the last one where an index comes several times; and with updates added to them, in rising order. */
QN_API qn_array *qn_scatter(qn_scope *s, qn_array *a, qn_array *indices, qn_array *updates, int axis);
QN_API qn_array *qn_scatter_add(qn_scope *s, qn_array *a, qn_array *indices, qn_array *updates, int axis);

/* ---- products ----------------------------------------------------------------------------------------- */

/* As NumPy's: a vector on the left is a row, on the right a column, and its dimension goes; dimensions before
 * the last two are broadcast. b may be quantised: see qn_quantise. */
QN_API qn_array *qn_matmul(qn_scope *s, qn_array *a, qn_array *b);
/* x [.., k] times transpose(weight [n, k]), of any weight type. */
QN_API qn_array *qn_linear(qn_scope *s, qn_array *x, qn_array *weight);

/* A matrix [n, k], or matrices [m, n, k], in a type of weights: block types, MLX's affine types, or plain
 * floating ones; k must be whole blocks. Computes a. What it gives goes into qn_matmul (transposed),
 * qn_linear, qn_gather_mm, qn_cross_entropy, and rows of it into qn_take_axis; gradients go through the other
 * factor. QN_E_ARG names a number that the type cannot hold. */
QN_API qn_array *qn_quantise(qn_scope *s, qn_array *a, qn_dtype dtype);
/* The matrix back, as f32. */
QN_API qn_array *qn_dequantise(qn_scope *s, qn_array *w);
/* Each row times the transposed matrices that its indices name: x [rows, k], or [rows, top, k] with a vector
 * for each, w [matrices, n, k] of any weight type, indices [rows, top] -> [rows, top, n]. The gradient by w
 * is there where w is plain. */
QN_API qn_array *qn_gather_mm(qn_scope *s, qn_array *x, qn_array *w, qn_array *indices);
/* Losses of rows [.., k] by a head [classes, k] of any weight type: logsumexp(z) - z[target] with z = head
 * row, or softcap tanh(z / softcap) where softcap > 0; 0 where the target [..] is negative. Logits are never
 * held whole, in the gradient neither. */
QN_API qn_array *qn_cross_entropy(qn_scope *s, qn_array *rows, qn_array *head, qn_array *targets,
                                  float softcap);

/* x [batch, length, channels] by w [outputs, kernel, channels / groups] -> [batch, out, outputs]: zeros
 * before and behind (padding), every stride-th place, taps dilation apart; out = (length + 2 padding -
 * dilation (kernel - 1) - 1) / stride + 1. conv2d: x [batch, height, width, channels], w [outputs, kh, kw,
 * channels / groups], a number for each of height and width. */
QN_API qn_array *qn_conv1d(qn_scope *s, qn_array *x, qn_array *w, int64_t stride, int64_t padding,
                           int64_t dilation, int64_t groups);
QN_API qn_array *qn_conv2d(qn_scope *s, qn_array *x, qn_array *w, const int64_t stride[2],
                           const int64_t padding[2], const int64_t dilation[2], int64_t groups);

/* ---- random numbers ----------------------------------------------------------------------------------- */

/* A key is two u32; results depend on the key and the shape alone. The words are Philox4x32-10's (Salmon et
 * al. 2011): element i of a result, in row-major order, is word i % 4 of the block with the counter (i / 4
 * low half, i / 4 high half, stream, 0); stream 0 are numbers, stream 1 new keys. To draw several times,
 * split. */
QN_API qn_array *qn_random_key(qn_scope *s, uint64_t seed);
/* n keys of a key, which should not be used any longer, into out[0..n). */
QN_API void qn_random_split(qn_scope *s, qn_array *key, int n, qn_array **out);
/* Words as u32; f32 in [low, high): low + (high - low) * (word >> 8) 2^-24. */
QN_API qn_array *qn_random_words(qn_scope *s, qn_array *key, int n_dims, const int64_t *dims);
QN_API qn_array *qn_random_uniform(qn_scope *s, qn_array *key, int n_dims, const int64_t *dims, float low,
                                   float high);
/* sqrt(-2 log(1 - u)) cos(2 pi v) of the first and the second half of as many uniform numbers. */
QN_API qn_array *qn_random_normal(qn_scope *s, qn_array *key, int n_dims, const int64_t *dims, float mean,
                                  float deviation);
/* bool: true with probability p. */
QN_API qn_array *qn_random_bernoulli(qn_scope *s, qn_array *key, int n_dims, const int64_t *dims, float p);
/* One index i32 for each row of logits [.., n], with probability softmax(logits). */
QN_API qn_array *qn_random_categorical(qn_scope *s, qn_array *key, qn_array *logits);

/* ---- of models ---------------------------------------------------------------------------------------- */

/* x / sqrt(mean(x^2) + eps) (weight + offset) over the last dimension; weight NULL: no factor. */
QN_API qn_array *qn_rms_norm(qn_scope *s, qn_array *x, qn_array *weight, float eps, float offset);
/* (x - mean) / sqrt(var + eps) weight + bias; weight and bias may be NULL. */
QN_API qn_array *qn_layer_norm(qn_scope *s, qn_array *x, qn_array *weight, qn_array *bias, float eps);

/* Zeros are the defaults. */
typedef struct {
    int64_t dims;    /* of the last dimension, which are rotated; 0: all */
    int interleaved; /* 1: pairs are neighbours ("traditional"); 0: element i and i + dims / 2 */
    float base;      /* 0: 10000 */
    float scale;     /* of positions; 0: 1 */
    int64_t offset;  /* the position of the first element of the length */
} qn_rotary_options;
/* Rotary positions on x [.., length, dim]; options NULL: defaults. */
QN_API qn_array *qn_rotary(qn_scope *s, qn_array *x, const qn_rotary_options *options);

typedef struct {
    float scale;     /* of q k; 0: 1 / sqrt(dim) */
    int causal;      /* the last query stands at the last key and sees it, and so on */
    int64_t window;  /* > 0: causal, and only the last so many keys are seen */
    float softcap;   /* > 0: softcap tanh(scores / softcap), before the mask */
    qn_array *sinks; /* [heads]: one logit more for the softmax of a head; NULL: none */
} qn_sdpa_options;
/* softmax(scale q k^T + mask) v: q [batch, heads, n, dim], k [batch, kv_heads, m, dim], v [batch, kv_heads,
 * m, v_dim]; query head h reads head h / (heads / kv_heads). mask (NULL: none): added, or bool that is true
 * where a key is seen; [n, m], or what broadcasts to [batch, heads, n, m]. A query that sees nothing gives
 * NaN. */
QN_API qn_array *qn_sdpa(qn_scope *s, qn_array *q, qn_array *k, qn_array *v, qn_array *mask,
                         const qn_sdpa_options *options);

#ifdef __cplusplus
}
#endif
#endif
