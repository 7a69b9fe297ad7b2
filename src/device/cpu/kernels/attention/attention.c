/* Sizes of KV pages and of attention's scratch, equal for all sets. */
#include "device/cpu/kernels/attention/attention.h"

qn_dtype qn_kv_fast(const qn_kernels *k)
{
    return k->gemm_bf16 ? QN_DTYPE_BF16 : QN_DTYPE_F16;
}

int qn_attend_rounds(const qn_kernels *k, qn_dtype dtype)
{
    return qn_kv_has_blocks(dtype) ? k->integer_kv : dtype == QN_DTYPE_BF16 && k->gemm_bf16 != NULL;
}

size_t qn_kv_k_bytes(qn_dtype dtype, int64_t head_dim)
{
    size_t d = (size_t)head_dim, blocks = (size_t)qn_kv_blocks(head_dim);
    switch (dtype) {
    case QN_DTYPE_F32:
        return d * QN_PAGE_TOKENS * 4;
    case QN_DTYPE_BF16:
        return (d + 1) / 2 * 2 * QN_PAGE_TOKENS * 2;
    case QN_DTYPE_Q8_0:
        return blocks * QN_PAGE_TOKENS * (QN_KV_BLOCK + 2);
    case QN_DTYPE_Q4_0:
        return blocks * QN_PAGE_TOKENS * (QN_KV_BLOCK / 2 + 2);
    default:
        return d * QN_PAGE_TOKENS * 2;
    }
}

size_t qn_kv_v_bytes(qn_dtype dtype, int64_t v_dim)
{
    size_t pad = (size_t)qn_kv_v_pad(dtype, v_dim);
    switch (dtype) {
    case QN_DTYPE_F32:
        return (size_t)v_dim * QN_PAGE_TOKENS * 4;
    case QN_DTYPE_BF16:
        return pad * QN_PAGE_TOKENS * 2;
    case QN_DTYPE_Q8_0:
        return pad / QN_KV_BLOCK * QN_PAGE_TOKENS * (QN_KV_BLOCK + 2);
    case QN_DTYPE_Q4_0:
        return pad / QN_KV_BLOCK * QN_PAGE_TOKENS * (QN_KV_BLOCK / 2 + 2);
    default:
        return (size_t)v_dim * QN_PAGE_TOKENS * 2;
    }
}

size_t qn_kv_page_bytes(qn_dtype dtype, int64_t kv_heads, int64_t head_dim, int64_t v_dim)
{
    size_t bytes = (size_t)kv_heads * (qn_kv_k_bytes(dtype, head_dim) + qn_kv_v_bytes(dtype, v_dim));
    return (bytes + 63) & ~(size_t)63;
}

size_t qn_attend_part_bytes(qn_dtype dtype, int64_t v_dim, int64_t n_pairs)
{
    return (size_t)(qn_attend_part_row(dtype, v_dim) * n_pairs) * sizeof(float);
}

size_t qn_attend_scratch_bytes(qn_dtype dtype, int64_t head_dim, int64_t v_dim)
{
    const size_t tile = QN_ATTN_TILE_MAX, pairs = QN_ATTN_PAIRS_MAX + tile, slots = QN_ATTN_TOGETHER;
    size_t d = (size_t)qn_kv_blocks(head_dim) * QN_KV_BLOCK, v = (size_t)qn_kv_v_pad(dtype, v_dim);
    size_t blocks = v / 16, rows_of_p = qn_kv_has_blocks(dtype) ? v / QN_KV_BLOCK : 1;
    size_t floats = pairs * (d + v)                                          /* q, merged */
                    + slots * (QN_ATTN_SCORES + v)                           /* scores, sums */
                    + slots * rows_of_p * (QN_ATTN_P16 / 2)                  /* 16-bit probabilities */
                    + blocks * QN_ATTN_GROUP + pairs + slots * blocks + tile /* scales of v, q, p */
                    + QN_ATTN_GROUP * (d + v) + QN_PAGE_TOKENS * v;          /* wide pages, the edge's copy */
    return floats * sizeof(float);
}
