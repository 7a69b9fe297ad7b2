/* What the files of the attention family share: how much one pass takes at once, and the functions by which
 * vector_<set>.c adds kv_write, attend and gemm_f32 to a table. Any thread. */
#ifndef QN_KERNELS_ATTENTION_H
#define QN_KERNELS_ATTENTION_H

#include "kernels/kernels.h"

/* Pairs of row and head in one pass, at most; floats of a pair's scores in one group (not a power of two:
 * rows of a tile then spread over the cache). */
enum { QN_ATTN_PAIRS_MAX = 36, QN_ATTN_SCORES = QN_ATTN_GROUP + 16 };

void qn_kernels_fill_attention_scalar(qn_kernels *k);
void qn_kernels_fill_attention_avx2(qn_kernels *k);
void qn_kernels_fill_attention_avx512(qn_kernels *k);
void qn_kernels_fill_attention_neon(qn_kernels *k);

#endif
