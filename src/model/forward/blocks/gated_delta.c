/* The gated delta net (Yang et al. 2024) as Qwen 3 Next has it: queries, keys and values go through a short
 * causal convolution, queries and keys to unit length, and each value head keeps a matrix S from row to row:
 *     S = exp(g) S;  S = S + k (beta (v - k S))^T;  out = q S / sqrt(dk)
 *     g = -exp(A_log) softplus(a + dt_bias),  beta = sigmoid(b)
 * The output is normed head by head and gated by silu(z), or sigmoid(z). */
#include <math.h>

#include "model/forward/blocks/blocks.h"

/* What the projections give: qkv [R, channels], z [R, heads, dv], a and b [R, heads]. */
typedef struct {
    qn_array *qkv, *z, *a, *b;
} projected;

static qn_array *flat(qn_scope *s, qn_array *x, int64_t width)
{
    return qn_reshape_rows(s, x, 1, &width);
}

/* A matrix that holds q, k, its value heads' v and z of one key head beside each other. */
static void project_qkvz(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer, projected *out)
{
    const qn_delta_config *d = &f->config->delta;
    const int64_t nk = d->linear_num_key_heads, dk = d->linear_key_head_dim, nv = d->linear_num_value_heads,
                  dv = d->linear_value_head_dim, each = nv / nk;
    qn_array *in = qn_block_linear(s, f, x, QN_WEIGHT_DELTA_QKVZ, QN_WEIGHT_ROLE_COUNT, layer);
    in = qn_reshape_rows(s, in, 2, (int64_t[]){nk, 2 * dk + 2 * each * dv});
    qn_array *qkv[3] = {flat(s, qn_slice_last(s, in, 0, dk), nk * dk),
                        flat(s, qn_slice_last(s, in, dk, dk), nk * dk),
                        flat(s, qn_slice_last(s, in, 2 * dk, each * dv), nv * dv)};
    qn_array *z = qn_slice_last(s, in, 2 * dk + each * dv, each * dv);
    out->qkv = qn_concat(s, 3, qkv);
    out->z = qn_reshape_rows(s, z, 2, (int64_t[]){nv, dv});
}

/* The same of b and a. */
static void project_ba(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer, projected *out)
{
    const qn_delta_config *d = &f->config->delta;
    const int64_t nk = d->linear_num_key_heads, nv = d->linear_num_value_heads, each = nv / nk;
    qn_array *ba = qn_block_linear(s, f, x, QN_WEIGHT_DELTA_BA, QN_WEIGHT_ROLE_COUNT, layer);
    ba = qn_reshape_rows(s, ba, 2, (int64_t[]){nk, 2 * each});
    out->a = flat(s, qn_slice_last(s, ba, each, each), nv);
    out->b = flat(s, qn_slice_last(s, ba, 0, each), nv);
}

static projected project(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    const qn_delta_config *d = &f->config->delta;
    projected out;
    if (d->by_head && !d->z_apart) {
        project_qkvz(s, f, x, layer, &out);
    } else {
        qn_array *z = qn_block_linear(s, f, x, QN_WEIGHT_DELTA_Z, QN_WEIGHT_ROLE_COUNT, layer);
        out.qkv = qn_block_linear(s, f, x, QN_WEIGHT_DELTA_QKV, QN_WEIGHT_ROLE_COUNT, layer);
        out.z = qn_reshape_rows(s, z, 2, (int64_t[]){d->linear_num_value_heads, d->linear_value_head_dim});
    }
    if (d->by_head) {
        project_ba(s, f, x, layer, &out);
    } else {
        out.a = qn_block_linear(s, f, x, QN_WEIGHT_DELTA_A, QN_WEIGHT_ROLE_COUNT, layer);
        out.b = qn_block_linear(s, f, x, QN_WEIGHT_DELTA_B, QN_WEIGHT_ROLE_COUNT, layer);
    }
    return out;
}

qn_array *qn_block_unit_heads(qn_scope *s, qn_array *x, int64_t begin, int64_t n, int64_t dim, float length)
{
    x = qn_reshape_rows(s, qn_slice_last(s, x, begin, n * dim), 2, (int64_t[]){n, dim});
    return qn_scale(s, qn_rms_norm(s, x, NULL, 1e-6f / (float)dim, 0), length / sqrtf((float)dim));
}

/* Queries or keys. Where value heads are tiled, each of them has a key head beside it. */
static qn_array *key_heads(qn_scope *s, const qn_delta_config *d, qn_array *mixed, int64_t begin,
                           float length)
{
    const int64_t nk = d->linear_num_key_heads, dk = d->linear_key_head_dim, nv = d->linear_num_value_heads;
    qn_array *x = qn_block_unit_heads(s, mixed, begin, nk, dk, length);
    if (!d->tiled) return x;
    x = flat(s, x, nk * dk);
    qn_array *all = x;
    for (int64_t n = nk; n < nv; n += nk) all = qn_concat(s, 2, (qn_array *[]){all, x});
    return qn_reshape_rows(s, all, 2, (int64_t[]){nv, dk});
}

qn_array *qn_block_gated_delta(qn_scope *s, const qn_forward *f, qn_array *x, int64_t layer)
{
    const qn_delta_config *d = &f->config->delta;
    const int64_t nk = d->linear_num_key_heads, dk = d->linear_key_head_dim, nv = d->linear_num_value_heads,
                  dv = d->linear_value_head_dim;
    projected in = project(s, f, x, layer);
    qn_array *mixed = qn_block_conv(s, f, in.qkv, QN_WEIGHT_CONV, QN_WEIGHT_CONV_BIAS, 0, layer);
    mixed = qn_label(s, qn_unary(s, QN_PRIM_SILU, mixed), "conv");

    qn_array *g = qn_add(s, in.a, qn_forward_weight(f, QN_WEIGHT_DELTA_DT_BIAS, layer));
    qn_array *rate = qn_block_rates(s, f, QN_WEIGHT_DELTA_A_LOG, 0, g, layer);
    g = qn_unary(s, QN_PRIM_NEG, qn_mul(s, rate, qn_unary(s, QN_PRIM_SOFTPLUS, g)));
    qn_array *v = qn_slice_last(s, mixed, 2 * nk * dk, nv * dv);
    qn_array *delta[8] = {key_heads(s, d, mixed, 0, 1 / sqrtf((float)dk)), key_heads(s, d, mixed, nk * dk, 1),
                          qn_reshape_rows(s, v, 2, (int64_t[]){nv, dv}), g,
                          qn_unary(s, QN_PRIM_SIGMOID, in.b)};
    qn_array *o = qn_block_recurrent(
        s, f, QN_PRIM_GATED_DELTA, (qn_params_recurrent){.offset = f->groups->rule_offset}, 5, delta, layer);
    o = qn_label(s, o, "delta");
    o = qn_rms_norm(s, o, qn_forward_weight(f, QN_WEIGHT_DELTA_NORM, layer), f->config->rms_norm_eps, 0);
    o = flat(s, qn_mul(s, o, qn_unary(s, d->gate_sigmoid ? QN_PRIM_SIGMOID : QN_PRIM_SILU, in.z)), nv * dv);
    return qn_block_linear(s, f, o, QN_WEIGHT_DELTA_OUT, QN_WEIGHT_ROLE_COUNT, layer);
}
