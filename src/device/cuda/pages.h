/* How a page of keys and values lies on a card. Plain C that cc and nvcc compile alike. */
#ifndef QN_DEVICE_CUDA_PAGES_H
#define QN_DEVICE_CUDA_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "device/cuda/layout.h"
#include "prim/units.h"

/* Bytes of one token's keys (or values) of one head. Q8_0 and Q4_0: whole blocks of 32. */
QN_HD size_t qn_cuda_token_bytes(qn_dtype dtype, int64_t dim)
{
    const size_t blocks = (size_t)(dim + 31) / 32;
    if (dtype == QN_DTYPE_Q8_0) return blocks * 34;
    if (dtype == QN_DTYPE_Q4_0) return blocks * 18;
    return (size_t)dim * (dtype == QN_DTYPE_F32 ? 4 : 2);
}

/* Bytes of one layer's page; v_dim 0: values are parts of keys. */
QN_HD size_t qn_cuda_page_bytes(qn_dtype dtype, int64_t kv_heads, int64_t head_dim, int64_t v_dim)
{
    return (size_t)kv_heads * QN_PAGE_TOKENS *
           (qn_cuda_token_bytes(dtype, head_dim) + (v_dim ? qn_cuda_token_bytes(dtype, v_dim) : 0));
}

#endif
