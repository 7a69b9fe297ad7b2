/* What dispatch.c takes from the vector and attention families: one function per set that sets every pointer
 * of the table but pack, unpack_row, unpack_panel, act_pack, matmul and name. A set's function may run only
 * on a machine that has the set. Any thread. */
#ifndef QN_KERNELS_VECTOR_H
#define QN_KERNELS_VECTOR_H

#include "kernels/kernels.h"

void qn_kernels_fill_vector_scalar(qn_kernels *k);
void qn_kernels_fill_vector_avx2(qn_kernels *k);
void qn_kernels_fill_vector_avx512(qn_kernels *k);

/* kv_write, attend and gemm_f32; called by the functions above. */
void qn_kernels_fill_attention_scalar(qn_kernels *k);
void qn_kernels_fill_attention_avx2(qn_kernels *k);
void qn_kernels_fill_attention_avx512(qn_kernels *k);

/* Floats of scratch that attend needs for so many pairs of row and head at once. */
enum { QN_ATTN_PAIRS_MAX = 36, QN_ATTN_SCORES = QN_ATTN_GROUP + 16 };

#endif
