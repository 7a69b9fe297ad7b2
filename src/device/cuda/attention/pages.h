/* How keys and values lie in a page of a state on a card. Plain C that cc and nvcc compile alike: the host plans
 * sizes with it, kernels find rows with it.
 *
 * A page of a layer holds QN_PAGE_TOKENS tokens: the keys [kv_heads][QN_PAGE_TOKENS] and then the values
 * [kv_heads][QN_PAGE_TOKENS], a row each. A row of a plain type (F32, F16, BF16) is followed by zeros up to a
 * multiple of 16 bytes, so that kernels may read 16 bytes at a time. A row of Q8_0 or Q4_0 is blocks of 32
 * elements as in GGUF, with zeros behind the last element. Q4_0 holds blocks turned by the Hadamard matrix, as
 * the CPU's pages do (src/device/cpu/kernels/attention/attention_pages.body.h says why). */
#ifndef QN_DEVICE_CUDA_ATTENTION_PAGES_H
#define QN_DEVICE_CUDA_ATTENTION_PAGES_H

#include "device/cuda/layout.h"
#include "prim/units.h"

/* Bytes of one head's key (or value) of one token. */
QN_HD size_t qn_cuda_token_bytes(qn_dtype dtype, int64_t dim)
{
    const size_t n = (size_t)dim, blocks = (n + 31) / 32;
    switch (dtype) {
    case QN_DTYPE_F32:
        return (n * 4 + 15) / 16 * 16;
    case QN_DTYPE_Q8_0:
        return blocks * 34;
    case QN_DTYPE_Q4_0:
        return blocks * 18;
    default:
        return (n * 2 + 15) / 16 * 16;
    }
}

/* Bytes of a page of one layer, a multiple of 128. v_dim 0: pages without values (v_in_k). */
QN_HD size_t qn_cuda_page_bytes(qn_dtype dtype, int64_t kv_heads, int64_t head_dim, int64_t v_dim)
{
    const size_t rows = (size_t)kv_heads * QN_PAGE_TOKENS;
    const size_t bytes =
        rows * (qn_cuda_token_bytes(dtype, head_dim) + (v_dim ? qn_cuda_token_bytes(dtype, v_dim) : 0));
    return (bytes + 127) / 128 * 128;
}

#endif
