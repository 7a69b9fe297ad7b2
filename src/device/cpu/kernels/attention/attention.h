/* What the files of the attention family share: how much one pass takes at once, where things lie in a page,
 * and the functions by which vector_<set>.c adds the attention kernels and gemm_f32 to a table. Any thread.
 */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_H

#include "device/cpu/kernels/kernels.h"

/* Pairs of row and head in one pass, at most; pairs whose tiles go through a group together, at most (their
 * scores fit L1 or nearly so); rows of one micro-kernel, at most; floats of a pair's scores in
 * one group (not a power of two: rows of a tile then spread over the cache), and 16-bit numbers in whole
 * lines; pages of a group; pieces of memory that are asked for side by side; dimensions of one scale of Q8_0
 * and Q4_0. */
enum {
    QN_ATTN_PAIRS_MAX = QN_ATTN_PART_PAIRS,
    QN_ATTN_TOGETHER = 32,
    QN_ATTN_TILE_MAX = 8,
    QN_ATTN_SCORES = QN_ATTN_GROUP + 16,
    QN_ATTN_P16 = QN_ATTN_GROUP + 32,
    QN_ATTN_PAGES = QN_ATTN_GROUP / QN_PAGE_TOKENS,
    QN_ATTN_PIECES = 8,
    QN_KV_BLOCK = 32
};

/* Bytes of one head's keys and of one head's values in a page. */
size_t qn_kv_k_bytes(qn_dtype dtype, int64_t head_dim);
size_t qn_kv_v_bytes(qn_dtype dtype, int64_t v_dim);

static inline int64_t qn_kv_blocks(int64_t dim)
{
    return (dim + QN_KV_BLOCK - 1) / QN_KV_BLOCK;
}

static inline int qn_kv_has_blocks(qn_dtype dtype)
{
    return dtype == QN_DTYPE_Q8_0 || dtype == QN_DTYPE_Q4_0;
}

/* v_dim in whole vectors, for BF16 and types of blocks also in a page; for these in whole blocks. */
static inline int64_t qn_kv_v_pad(qn_dtype dtype, int64_t v_dim)
{
    return qn_kv_has_blocks(dtype) ? qn_kv_blocks(v_dim) * QN_KV_BLOCK : (v_dim + 15) / 16 * 16;
}

/* Floats of a pair's result in one group: its sums, then its largest score and its total. */
static inline int64_t qn_attend_part_row(qn_dtype dtype, int64_t v_dim)
{
    return qn_kv_v_pad(dtype, v_dim) + 16;
}

/* attend and attend_part of avx512, which avx512_amx takes for what is not BF16. */
void qn_attend_avx512(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads, void *scratch);
void qn_attend_part_avx512(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads,
                           int64_t begin, int64_t end, float *parts, void *scratch);

void qn_kernels_fill_attention_scalar(qn_kernels *k);
void qn_kernels_fill_attention_avx2(qn_kernels *k);
void qn_kernels_fill_attention_avx2_vnni(qn_kernels *k);
void qn_kernels_fill_attention_avx512(qn_kernels *k);
void qn_kernels_fill_attention_avx512_amx(qn_kernels *k);
void qn_kernels_fill_attention_neon(qn_kernels *k);

#endif
