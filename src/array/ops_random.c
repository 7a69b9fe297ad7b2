/* Random numbers of keys: each result depends on its key and its shape alone. */
#include <math.h>

#include "array/build.h"

qn_array *qn_random_key(qn_scope *s, uint64_t seed)
{
    const uint32_t words[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    return qn_from_data(s, QN_DTYPE_U32, 1, (int64_t[]){2}, words);
}

static qn_array *draw(qn_scope *s, const char *what, qn_array *key, int stream, qn_dtype dtype, int n_dims,
                      const int64_t *dims)
{
    if (!key) return NULL;
    if (n_dims < 0 || n_dims > QN_MAX_DIMS)
        return qn_bad_call(s, what, key, "the result would have more than 6 dimensions");
    const qn_shape shape = qn_shape_make(n_dims, dims);
    const qn_params p = {.random = {stream}};
    return qn_apply(s, QN_PRIM_RANDOM, &p, 1, &key, &shape, dtype);
}

void qn_random_split(qn_scope *s, qn_array *key, int n, qn_array **out)
{
    qn_array *words = draw(s, "qn_random_split", key, 1, QN_DTYPE_U32, 2, (int64_t[]){n, 2});
    for (int i = 0; i < n; i++)
        out[i] = words ? qn_reshape(s, qn_range(s, words, 0, i, 1), 1, (int64_t[]){2}) : NULL;
}

qn_array *qn_random_words(qn_scope *s, qn_array *key, int n_dims, const int64_t *dims)
{
    return draw(s, "qn_random_words", key, 0, QN_DTYPE_U32, n_dims, dims);
}

qn_array *qn_random_uniform(qn_scope *s, qn_array *key, int n_dims, const int64_t *dims, float low,
                            float high)
{
    qn_array *u = draw(s, "qn_random_uniform", key, 0, QN_DTYPE_F32, n_dims, dims);
    if (low == 0 && high == 1) return u;
    return qn_add(s, qn_scale(s, u, high - low), qn_scalar(s, low));
}

/* Two uniform numbers make one normal one (Box and Muller 1958). */
qn_array *qn_random_normal(qn_scope *s, qn_array *key, int n_dims, const int64_t *dims, float mean,
                           float deviation)
{
    if (!key) return NULL;
    if (n_dims < 0 || n_dims > QN_MAX_DIMS)
        return qn_bad_call(s, "qn_random_normal", key, "the result would have more than 6 dimensions");
    size_t bytes;
    qn_shape shape;
    if (!qn_check_shape(s, "qn_random_normal", QN_DTYPE_F32, n_dims, dims, &shape, &bytes)) return NULL;
    const int64_t n = qn_shape_elements(&shape, NULL);
    qn_array *u = draw(s, "qn_random_normal", key, 0, QN_DTYPE_F32, 2, (int64_t[]){2, n});
    qn_array *left = qn_sub(s, qn_scalar(s, 1), qn_range(s, u, 0, 0, 1)); /* (0, 1] */
    qn_array *radius = qn_sqrt(s, qn_scale(s, qn_ln(s, left), -2));
    qn_array *z = qn_mul(s, radius, qn_cos(s, qn_scale(s, qn_range(s, u, 0, 1, 1), 6.28318530717958648)));
    z = qn_add(s, qn_scale(s, z, deviation), qn_scalar(s, mean));
    return qn_reshape_sym(s, z, shape);
}

qn_array *qn_random_bernoulli(qn_scope *s, qn_array *key, int n_dims, const int64_t *dims, float p)
{
    return qn_lt(s, qn_random_uniform(s, key, n_dims, dims, 0, 1), qn_scalar(s, p));
}

/* The largest of logits plus Gumbel noise. */
qn_array *qn_random_categorical(qn_scope *s, qn_array *key, qn_array *logits)
{
    if (!logits) return NULL;
    if (logits->shape.n < 1) return qn_bad_call(s, "qn_random_categorical", logits, "takes logits [.., n]");
    qn_array *u = qn_random_uniform(s, key, logits->shape.n, logits->shape.dim, 0, 1);
    qn_array *noise = qn_neg(s, qn_ln(s, qn_neg(s, qn_ln(s, u))));
    return qn_argmax(s, qn_add(s, qn_real(s, qn_widened(s, logits)), noise), -1, 0);
}
