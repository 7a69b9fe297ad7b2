/* Sizes of KV pages and of attention's scratch, equal for all sets. */
#include "kernels/attention.h"

size_t qn_kv_page_bytes(qn_dtype dtype, int64_t kv_heads, int64_t head_dim, int64_t v_dim)
{
    size_t element = dtype == QN_DTYPE_F32 ? 4 : 2;
    size_t bytes = (size_t)kv_heads * QN_PAGE_TOKENS * (size_t)(head_dim + v_dim) * element;
    return (bytes + 63) & ~(size_t)63;
}

size_t qn_attend_scratch_bytes(int64_t head_dim, int64_t v_dim)
{
    size_t d = (size_t)head_dim, v = ((size_t)v_dim + 15) & ~(size_t)15;
    size_t per_pair = d + QN_ATTN_SCORES + 2 * v;
    size_t page = QN_PAGE_TOKENS * (d > v ? d : v);
    return (QN_ATTN_PAIRS_MAX * per_pair + page) * sizeof(float);
}
