/* Hyper-connections (Zhu et al. 2024): the residual is n streams beside each other, x [R, n, hidden_size]. A block reads
 * one row made of all, and what it gives goes to all:
 *     in = sum_i pre_i x_i;   x_j = post_j block(in) + sum_i mix_ij x_i
 * The manifold-constrained form (Xie et al. 2026) takes the weights from one product with the normed streams:
 *     pre = sigmoid(..) + eps;  post = 2 sigmoid(..);  mix = scaled until its rows and columns have sum 1
 * so that the streams neither grow nor shrink however many layers there are. */
#include "array/build.h"
#include "model/forward/blocks/blocks.h"

static const qn_weight_role sinkhorn_roles[][3] = {
    [QN_HYPER_ATTN] = {QN_WEIGHT_HYPER_ATTN, QN_WEIGHT_HYPER_ATTN_BASE, QN_WEIGHT_HYPER_ATTN_SCALE},
    [QN_HYPER_FFN] = {QN_WEIGHT_HYPER_FFN, QN_WEIGHT_HYPER_FFN_BASE, QN_WEIGHT_HYPER_FFN_SCALE}};

/* Part i of the product, which begins at `begin`, times its scale, plus its base: [R, n]. */
static qn_array *part(qn_scope *s, const qn_forward *f, qn_array *product, const qn_weight_role *roles, int i,
                      int64_t begin, int64_t n, int64_t layer)
{
    qn_array *base = qn_forward_weight(f, roles[1], layer), *scale = qn_forward_weight(f, roles[2], layer);
    product = qn_mul(s, qn_slice_last(s, product, begin, n), qn_slice_last(s, scale, i, 1));
    return qn_add(s, product, qn_slice_last(s, base, begin, n));
}

static qn_array *side_by_side(qn_scope *s, const qn_forward *f, qn_array *x)
{
    const int64_t all = f->config->hyper.hc_count * f->config->hidden_size;
    return qn_reshape_rows(s, x, 1, &all);
}

/* sum_i by_i x_i of streams x, [R, hidden_size]; by NULL: all 1. */
static qn_array *collapsed(qn_scope *s, const qn_forward *f, qn_array *x, qn_array *by)
{
    const int64_t width = f->config->hidden_size;
    qn_array *sum = NULL;
    x = side_by_side(s, f, x);
    for (int64_t i = 0; i < f->config->hyper.hc_count; i++) {
        qn_array *own = qn_slice_last(s, x, i * width, width);
        if (by) own = qn_mul(s, own, qn_slice_last(s, by, i, 1));
        sum = sum ? qn_add(s, sum, own) : own;
    }
    return sum;
}

qn_array *qn_block_hyper_begin(qn_scope *s, const qn_forward *f, qn_array *x)
{
    const int64_t n = f->config->hyper.hc_count, width = f->config->hidden_size;
    qn_array *same[QN_HYPER_STREAMS_MAX];
    for (int64_t i = 0; i < n; i++) same[i] = x;
    x = qn_label(s, qn_concat(s, (int)n, same), "hidden.0");
    return qn_reshape_rows(s, x, 2, (int64_t[]){n, width});
}

qn_array *qn_block_hyper_end(qn_scope *s, const qn_forward *f, qn_array *x)
{
    return qn_scale(s, collapsed(s, f, x, NULL), 1 / (float)f->config->hyper.hc_count);
}

qn_array *qn_block_hyper_read(qn_scope *s, const qn_forward *f, qn_array *x, qn_hyper_place place,
                              int64_t layer, qn_block_streams *out)
{
    const qn_hyper_config *c = &f->config->hyper;
    const int64_t n = c->hc_count;
    const qn_weight_role *roles = sinkhorn_roles[place];
    qn_array *normed = qn_rms_norm(s, side_by_side(s, f, x), NULL, f->config->rms_norm_eps, 0);
    qn_array *product = qn_linear_exact(s, normed, qn_forward_weight(f, roles[0], layer));
    product = qn_block_adapted(s, f, normed, qn_label(s, product, "hyper"), roles[0], layer);
    qn_array *pre = qn_unary(s, QN_PRIM_SIGMOID, part(s, f, product, roles, 0, 0, n, layer));
    pre = qn_add(s, pre, qn_scalar(s, c->hc_eps));
    out->streams = x;
    out->post = qn_scale(s, qn_unary(s, QN_PRIM_SIGMOID, part(s, f, product, roles, 1, n, n, layer)), 2);
    qn_array *mix = part(s, f, product, roles, 2, 2 * n, n * n, layer);
    mix = qn_reshape_rows(s, mix, 2, (int64_t[]){n, n});
    out->mix = qn_sinkhorn(s, mix, c->hc_eps, (int32_t)c->hc_sinkhorn_iters);
    return collapsed(s, f, x, pre);
}

qn_array *qn_block_hyper_write(qn_scope *s, const qn_forward *f, const qn_block_streams *to, qn_array *h)
{
    const int64_t n = f->config->hyper.hc_count, width = f->config->hidden_size;
    qn_array *post = qn_reshape_rows(s, to->post, 2, (int64_t[]){n, 1});
    qn_array *turned = qn_swap_axes(s, to->mix, 1, 2), *sum;
    sum = qn_mul(s, qn_reshape_rows(s, h, 2, (int64_t[]){1, width}), post);
    for (int64_t i = 0; i < n; i++)
        sum = qn_add(s, sum, qn_mul(s, qn_range(s, to->streams, 1, i, 1), qn_range(s, turned, 2, i, 1)));
    return sum;
}
