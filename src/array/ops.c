/* Builders of single primitives. */
#include <string.h>

#include "array/graph.h"

qn_array *qn_reshape_sym(qn_scope *s, qn_array *a, qn_shape shape)
{
    return qn_apply(s, QN_PRIM_RESHAPE, NULL, 1, &a, &shape, QN_DTYPE_F32);
}

qn_array *qn_reshape_rows(qn_scope *s, qn_array *a, int n, const int64_t *dims)
{
    if (!a) return NULL;
    qn_shape shape = a->shape;
    shape.n = n + 1;
    for (int i = 0; i < n; i++) shape.dim[i + 1] = dims[i];
    return qn_reshape_sym(s, a, shape);
}

qn_array *qn_slice_last(qn_scope *s, qn_array *a, int64_t begin, int64_t length)
{
    if (!a) return NULL;
    qn_params p = {0};
    qn_shape shape = a->shape;
    p.slice.begin[shape.n - 1] = begin;
    shape.dim[shape.n - 1] = length;
    return qn_apply(s, QN_PRIM_SLICE, &p, 1, &a, &shape, QN_DTYPE_F32);
}

qn_array *qn_broadcast_sym(qn_scope *s, qn_array *a, qn_shape shape)
{
    return qn_apply(s, QN_PRIM_BROADCAST, NULL, 1, &a, &shape, QN_DTYPE_F32);
}

qn_array *qn_concat(qn_scope *s, int n, qn_array *const *parts)
{
    return qn_apply(s, QN_PRIM_CONCAT, NULL, n, parts, NULL, QN_DTYPE_F32);
}

qn_array *qn_rms_norm(qn_scope *s, qn_array *x, qn_array *weight, float eps, float offset)
{
    qn_params p = {.norm = {eps, offset}};
    return qn_apply(s, QN_PRIM_RMS_NORM, &p, weight ? 2 : 1, (qn_array *[]){x, weight}, NULL, QN_DTYPE_F32);
}

qn_array *qn_linear_exact(qn_scope *s, qn_array *x, qn_array *weight)
{
    qn_params p = {.matmul = {.exact = 1}};
    return qn_apply(s, QN_PRIM_MATMUL, &p, 2, (qn_array *[]){x, qn_transpose(s, weight)}, NULL, QN_DTYPE_F32);
}

qn_array *qn_take(qn_scope *s, qn_array *table, qn_array *ids)
{
    return qn_binary(s, QN_PRIM_TAKE, table, ids);
}

qn_array *qn_dropout(qn_scope *s, qn_array *x, qn_array *key, float rate, int64_t stream)
{
    if (rate == 0) return x;
    qn_params p = {.dropout = {rate, stream}};
    return qn_apply(s, QN_PRIM_DROPOUT, &p, 2, (qn_array *[]){x, key}, NULL, QN_DTYPE_F32);
}

qn_array *qn_take_along(qn_scope *s, qn_array *x, qn_array *ids)
{
    return qn_binary(s, QN_PRIM_TAKE_ALONG, x, ids);
}

qn_array *qn_top_k(qn_scope *s, qn_array *x, int k)
{
    qn_params p = {.top_k = {.k = k}};
    return qn_apply(s, QN_PRIM_TOP_K, &p, 1, &x, NULL, QN_DTYPE_I32);
}

qn_array *qn_top_k_rising(qn_scope *s, qn_array *x, int k)
{
    qn_params p = {.top_k = {.k = k, .rising = 1}};
    return qn_apply(s, QN_PRIM_TOP_K, &p, 1, &x, NULL, QN_DTYPE_I32);
}

qn_array *qn_rope_table(qn_scope *s, qn_array *positions, qn_array *frequencies, float factor)
{
    qn_params p = {.rope = {.factor = factor}};
    return qn_apply(s, QN_PRIM_ROPE_TABLE, &p, 2, (qn_array *[]){positions, frequencies}, NULL, QN_DTYPE_F32);
}

qn_array *qn_rope(qn_scope *s, qn_array *x, qn_array *table, int interleaved)
{
    qn_params p = {.rope = {.interleaved = interleaved}};
    return qn_apply(s, QN_PRIM_ROPE, &p, 2, (qn_array *[]){x, table}, NULL, QN_DTYPE_F32);
}

qn_array *qn_attend(qn_scope *s, const qn_params_attend *p, qn_array *q, qn_array *k, qn_array *v,
                    qn_array *positions, qn_array *row_begin, qn_array *blocks, qn_array *sinks)
{
    return qn_attend_chosen(s, p, q, k, v, positions, row_begin, blocks, sinks, NULL);
}

qn_array *qn_attend_chosen(qn_scope *s, const qn_params_attend *attend, qn_array *q, qn_array *k, qn_array *v,
                           qn_array *positions, qn_array *row_begin, qn_array *blocks, qn_array *sinks,
                           qn_array *chosen)
{
    qn_params p = {.attend = *attend};
    qn_array *in[8] = {q, k, v, positions, row_begin};
    int n = 5;
    if (attend->state) in[n++] = blocks;
    if (attend->has_sinks) in[n++] = sinks;
    if (attend->block) in[n++] = chosen;
    return qn_apply(s, QN_PRIM_ATTEND, &p, n, in, NULL, QN_DTYPE_F32);
}

qn_array *qn_index_blocks(qn_scope *s, const qn_params_index *index, qn_array *q, qn_array *k,
                          qn_array *positions, qn_array *row_begin, qn_array *blocks, qn_array *weights)
{
    qn_params p = {.index = *index};
    qn_array *in[6] = {q, k, positions, row_begin};
    int n = 4;
    if (index->state) in[n++] = blocks;
    if (index->has_weights) in[n++] = weights;
    return qn_apply(s, QN_PRIM_INDEX_BLOCKS, &p, n, in, NULL, QN_DTYPE_I32);
}

qn_array *qn_head_loss(qn_scope *s, qn_array *rows, qn_array *head, qn_array *targets, float scale,
                       float softcap)
{
    qn_params p = {.cross_entropy = {.scale = scale, .softcap = softcap}};
    return qn_apply(s, QN_PRIM_CROSS_ENTROPY, &p, 3, (qn_array *[]){rows, head, targets}, NULL, QN_DTYPE_F32);
}

qn_array *qn_lora(qn_scope *s, const qn_params_lora *lora, qn_array *x, qn_array *y, qn_array *adapters)
{
    qn_params p = {.lora = *lora};
    return qn_apply(s, QN_PRIM_LORA, &p, 3, (qn_array *[]){x, y, adapters}, NULL, QN_DTYPE_F32);
}

qn_array *qn_experts_lora(qn_scope *s, const qn_params_lora *lora, int64_t n_experts, qn_array *x,
                          qn_array *y, qn_array *ids, qn_array *adapters, qn_array *share)
{
    qn_params p = {.experts_lora = {*lora, share != NULL, n_experts}};
    return qn_apply(s, QN_PRIM_EXPERTS_LORA, &p, share ? 5 : 4, (qn_array *[]){x, y, ids, adapters, share},
                    NULL, QN_DTYPE_F32);
}

qn_array *qn_experts(qn_scope *s, qn_array *x, qn_array *w, qn_array *ids, qn_array *bias)
{
    qn_params p = {.experts = {bias != NULL}};
    return qn_apply(s, QN_PRIM_EXPERTS, &p, bias ? 4 : 3, (qn_array *[]){x, w, ids, bias}, NULL,
                    QN_DTYPE_F32);
}

qn_array *qn_experts_sum(qn_scope *s, qn_array *x, qn_array *w, qn_array *ids, qn_array *share,
                         qn_array *bias)
{
    qn_params p = {.experts = {bias != NULL}};
    return qn_apply(s, QN_PRIM_EXPERTS_SUM, &p, bias ? 5 : 4, (qn_array *[]){x, w, ids, share, bias}, NULL,
                    QN_DTYPE_F32);
}

qn_array *qn_gather_plain(qn_scope *s, qn_array *x, qn_array *w, qn_array *ids)
{
    return qn_apply(s, QN_PRIM_GATHER_MM, NULL, 3, (qn_array *[]){x, w, ids}, NULL, QN_DTYPE_F32);
}

qn_array *qn_logsumexp(qn_scope *s, qn_array *x)
{
    if (!x) return NULL;
    int last = x->shape.n - 1;
    qn_array *max = qn_max(s, x, last);
    qn_array *sum = qn_sum(s, qn_unary(s, QN_PRIM_EXP, qn_sub(s, x, max)), last);
    return qn_add(s, qn_unary(s, QN_PRIM_LOG, sum), max);
}
