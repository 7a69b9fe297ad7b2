/* Operations of models: norms, rotary positions, attention. */
#include <math.h>

#include "array/build.h"

qn_array *qn_layer_norm(qn_scope *s, qn_array *x, qn_array *weight, qn_array *bias, float eps)
{
    if (!x) return NULL;
    if (bias && !weight && x->shape.n > 0) weight = qn_ones(s, bias->dtype, 1, &x->shape.dim[x->shape.n - 1]);
    const qn_params p = {.norm = {.eps = eps}};
    return qn_apply(s, QN_PRIM_LAYER_NORM, &p, weight ? bias ? 3 : 2 : 1, (qn_array *[]){x, weight, bias},
                    NULL, QN_DTYPE_F32);
}

/* ---- rotary positions --------------------------------------------------------------------------------- */

/* Cosines and sines of positions offset .. offset + length - 1. */
static qn_array *angles(qn_scope *s, const qn_rotary_options *o, int64_t length, int64_t dims)
{
    const double base = o->base > 0 ? o->base : 10000, scale = o->scale > 0 ? o->scale : 1;
    const int64_t half = dims / 2;
    void *f, *at;
    qn_array *frequencies = qn_array_alloc(s, "qn_rotary", QN_DTYPE_F32, 1, &half, &f);
    qn_array *positions = qn_array_alloc(s, "qn_rotary", QN_DTYPE_I32, 1, &length, &at);
    if (!frequencies || !positions) return NULL;
    for (int64_t i = 0; i < half; i++)
        ((float *)f)[i] = (float)(scale * pow(base, -(double)i / (double)half));
    for (int64_t i = 0; i < length; i++) ((int32_t *)at)[i] = (int32_t)(o->offset + i);
    return qn_rope_table(s, positions, frequencies, 1);
}

qn_array *qn_rotary(qn_scope *s, qn_array *x, const qn_rotary_options *options)
{
    static const qn_rotary_options none;
    const qn_rotary_options *o = options ? options : &none;
    if (!x) return NULL;
    const int n = x->shape.n;
    if (n < 2 || qn_shape_is_symbolic(&x->shape))
        return qn_bad_call(s, "qn_rotary", x, "takes x [.., length, dim]");
    const qn_shape shape = x->shape;
    const int64_t length = shape.dim[n - 2], dim = shape.dim[n - 1], dims = o->dims ? o->dims : dim;
    if (dims < 2 || dims % 2 || dims > dim)
        return qn_bad_call(s, "qn_rotary", x, "dims must be even, and no more than the last dimension");
    if (o->offset < 0 || o->offset > INT32_MAX - length)
        return qn_bad_call(s, "qn_rotary", x, "the positions are invalid");
    int64_t lead = 1;
    for (int d = 0; d < n - 2; d++) lead *= shape.dim[d];
    /* positions are the rows of the primitive, all else its heads */
    x = qn_swap_axes(s, qn_reshape(s, x, 3, (int64_t[]){lead, length, dim}), 0, 1);
    x = qn_rope(s, x, angles(s, o, length, dims), o->interleaved);
    return qn_reshape_sym(s, qn_swap_axes(s, x, 0, 1), shape);
}

/* ---- attention ---------------------------------------------------------------------------------------- */

/* Which keys [1, m] a query [n, 1] sees; queries stand at the end of the keys. */
static qn_array *seen(qn_scope *s, int64_t n, int64_t m, int causal, int64_t window)
{
    qn_array *at =
        qn_add(s, qn_expand_dims(s, qn_count_up(s, n), 1), qn_constant(s, QN_DTYPE_I32, (double)(m - n)));
    qn_array *key = qn_expand_dims(s, qn_count_up(s, m), 0);
    qn_array *sees = causal || window ? qn_le(s, key, at) : NULL;
    if (!window) return sees;
    qn_array *from = qn_add(s, at, qn_constant(s, QN_DTYPE_I32, -(double)window));
    return qn_logical_and(s, sees, qn_gt(s, key, from));
}

/* Scores [batch, kv_heads, shared, n, m] under a mask that fits [batch, heads, n, m]. */
static qn_array *masked(qn_scope *s, qn_array *scores, qn_array *mask)
{
    if (!scores || !mask) return NULL;
    const int64_t *d = scores->shape.dim;
    if (mask->shape.n > 2) {
        mask = qn_broadcast_to(s, mask, 4, (int64_t[]){d[0], d[1] * d[2], d[3], d[4]});
        mask = qn_reshape(s, mask, 5, d);
    }
    if (mask && mask->dtype == QN_DTYPE_BOOL)
        return qn_where(s, mask, scores, qn_number_like(s, scores, -INFINITY));
    return qn_add(s, scores, mask);
}

/* Softmax over the keys and, where there are sinks [heads], one logit more whose share goes nowhere. */
static qn_array *shares(qn_scope *s, qn_array *scores, qn_array *sinks)
{
    if (!sinks || !scores) return qn_softmax(s, scores);
    int64_t dims[5], m = scores->shape.dim[4];
    for (int i = 0; i < 5; i++) dims[i] = scores->shape.dim[i];
    dims[4] = 1;
    sinks = qn_reshape(s, sinks, 5, (int64_t[]){1, dims[1], dims[2], 1, 1});
    qn_array *all[2] = {scores, qn_broadcast_to(s, qn_astype(s, sinks, scores->dtype), 5, dims)};
    return qn_range(s, qn_softmax(s, qn_concat(s, 2, all)), 4, 0, m);
}

qn_array *qn_sdpa(qn_scope *s, qn_array *q, qn_array *k, qn_array *v, qn_array *mask,
                  const qn_sdpa_options *options)
{
    static const char what[] = "qn_sdpa";
    static const qn_sdpa_options none;
    const qn_sdpa_options *o = options ? options : &none;
    if (!q || !k || !v) return NULL;
    if (q->shape.n != 4 || k->shape.n != 4 || v->shape.n != 4 || qn_shape_is_symbolic(&q->shape))
        return qn_bad_call(s, what, q, "takes q, k and v of [batch, heads, length, dim]");
    const int64_t *x = q->shape.dim, *y = k->shape.dim, *z = v->shape.dim;
    if (x[0] != y[0] || y[0] != z[0] || y[1] != z[1] || y[2] != z[2] || x[3] != y[3] || y[1] < 1 ||
        x[1] % y[1])
        return qn_bad_call(s, what, k, "keys do not match queries, or values do not match keys");
    const int64_t batch = x[0], heads = x[1], n = x[2], dim = x[3], kv = y[1], m = y[2], shared = heads / kv;
    if (o->sinks && (o->sinks->shape.n != 1 || o->sinks->shape.dim[0] != heads))
        return qn_bad_call(s, what, o->sinks, "takes one sink per head");
    const qn_dtype back = q->dtype;
    q = qn_reshape(s, qn_widened(s, q), 4, (int64_t[]){batch, kv, shared * n, dim});
    k = qn_widened(s, k);
    v = qn_widened(s, v);
    qn_array *scores = qn_matmul(s, q, qn_transpose(s, k));
    scores = qn_scale(s, scores, o->scale != 0 ? o->scale : 1 / sqrt((double)dim));
    if (o->softcap > 0)
        scores = qn_scale(s, qn_tanh(s, qn_scale(s, scores, 1 / (double)o->softcap)), o->softcap);
    scores = qn_reshape(s, scores, 5, (int64_t[]){batch, kv, shared, n, m});
    if (o->causal || o->window) scores = masked(s, scores, seen(s, n, m, o->causal, o->window));
    if (mask) scores = masked(s, scores, mask);
    scores = qn_reshape(s, shares(s, scores, o->sinks), 4, (int64_t[]){batch, kv, shared * n, m});
    qn_array *out = qn_matmul(s, scores, v);
    return qn_astype(s, qn_reshape(s, out, 4, (int64_t[]){batch, heads, n, z[3]}), back);
}

qn_array *qn_sinkhorn(qn_scope *s, qn_array *x, float eps, int32_t n_turns)
{
    const qn_params p = {.sinkhorn = {.eps = eps, .n_turns = n_turns}};
    return qn_apply(s, QN_PRIM_SINKHORN, &p, 1, &x, NULL, QN_DTYPE_F32);
}
