/* Hyper-connections (Zhu et al. 2024): the residual is n streams beside each other, x [R, n, hidden_size]. A block reads
 * one row made of all, and what it gives goes to all:
 *     in = sum_i pre_i x_i;   x_j = post_j block(in) + sum_i mix_ij x_i
 * The manifold-constrained form (Xie et al. 2026) takes the weights from one product with the normed streams:
 *     pre = sigmoid(..) + eps;  post = 2 sigmoid(..);  mix = scaled until its rows and columns have sum 1
 * so that the streams neither grow nor shrink however many layers there are. That of low rank (Qwen's 4-Exp) norms each
 * stream to y_i, y being all of them, and weighs each channel:
 *     in = mean over i of sigmoid(up silu(down y / n))_i y_i;   x_j = x_j + 2 sigmoid(inject y / n)_j block(in) */
#include "array/build.h"
#include "model/forward/blocks/blocks.h"

static const qn_weight_role sinkhorn_roles[][3] = {
    [QN_HYPER_ATTN] = {QN_WEIGHT_HYPER_ATTN, QN_WEIGHT_HYPER_ATTN_BASE, QN_WEIGHT_HYPER_ATTN_SCALE},
    [QN_HYPER_FFN] = {QN_WEIGHT_HYPER_FFN, QN_WEIGHT_HYPER_FFN_BASE, QN_WEIGHT_HYPER_FFN_SCALE}};

/* Norm, down, up, and inject. */
static const qn_weight_role low_rank_roles[][4] = {
    [QN_HYPER_ATTN] = {QN_WEIGHT_HYPER_ATTN_NORM, QN_WEIGHT_HYPER_ATTN_DOWN, QN_WEIGHT_HYPER_ATTN_UP,
                       QN_WEIGHT_HYPER_ATTN_INJECT},
    [QN_HYPER_FFN] = {QN_WEIGHT_HYPER_FFN_NORM, QN_WEIGHT_HYPER_FFN_DOWN, QN_WEIGHT_HYPER_FFN_UP,
                      QN_WEIGHT_HYPER_FFN_INJECT}};
static const qn_weight_role end_roles[] = {QN_WEIGHT_HYPER_END_NORM, QN_WEIGHT_HYPER_END_DOWN,
                                           QN_WEIGHT_HYPER_END_UP};
static const qn_weight_role none = QN_WEIGHT_ROLE_COUNT;

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

/* The mean of normed streams y, each channel by its weight: [R, hidden_size]. */
static qn_array *weighed(qn_scope *s, const qn_forward *f, qn_array *y, const qn_weight_role *roles,
                         int64_t layer)
{
    const float mean = 1 / (float)f->config->hyper.hc_count;
    qn_array *by = qn_scale(s, qn_block_linear(s, f, y, roles[1], none, layer), mean);
    by = qn_block_linear(s, f, qn_unary(s, QN_PRIM_SILU, by), roles[2], none, layer);
    return qn_scale(s, collapsed(s, f, qn_mul(s, qn_unary(s, QN_PRIM_SIGMOID, by), y), NULL), mean);
}

static qn_array *read_low_rank(qn_scope *s, const qn_forward *f, qn_array *x, qn_hyper_place place,
                               int64_t layer, qn_block_streams *out)
{
    const qn_weight_role *roles = low_rank_roles[place];
    qn_array *y = qn_block_stream_norm(s, f, x, roles[0], layer);
    qn_array *inject = qn_block_linear(s, f, y, roles[3], none, layer);
    inject = qn_unary(s, QN_PRIM_SIGMOID, qn_scale(s, inject, 1 / (float)f->config->hyper.hc_count));
    *out = (qn_block_streams){.streams = x, .post = qn_scale(s, inject, 2)};
    return weighed(s, f, y, roles, layer);
}

qn_array *qn_block_hyper_end(qn_scope *s, const qn_forward *f, qn_array *x)
{
    if (f->config->hyper.kind == QN_HYPER_LOW_RANK)
        return weighed(s, f, qn_block_stream_norm(s, f, x, end_roles[0], 0), end_roles, 0);
    return qn_scale(s, collapsed(s, f, x, NULL), 1 / (float)f->config->hyper.hc_count);
}

qn_array *qn_block_hyper_read(qn_scope *s, const qn_forward *f, qn_array *x, qn_hyper_place place,
                              int64_t layer, qn_block_streams *out)
{
    const qn_hyper_config *c = &f->config->hyper;
    const int64_t n = c->hc_count;
    const qn_weight_role *roles = sinkhorn_roles[place];
    if (c->kind == QN_HYPER_LOW_RANK) return read_low_rank(s, f, x, place, layer, out);
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
    qn_array *sum = qn_mul(s, qn_reshape_rows(s, h, 2, (int64_t[]){1, width}), post);
    if (!to->mix) return qn_add(s, to->streams, sum);
    qn_array *turned = qn_swap_axes(s, to->mix, 1, 2);
    for (int64_t i = 0; i < n; i++)
        sum = qn_add(s, sum, qn_mul(s, qn_range(s, to->streams, 1, i, 1), qn_range(s, turned, 2, i, 1)));
    return sum;
}
