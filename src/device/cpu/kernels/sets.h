/* What the files of each instruction set give to dispatch.c: functions that fill their part of a table. A set
 * starts as a copy of scalar and overwrites what it does better. */
#ifndef QN_DEVICE_CPU_KERNELS_SETS_H
#define QN_DEVICE_CPU_KERNELS_SETS_H

#include "device/cpu/kernels/kernels.h"

/* How many bytes ahead a core asks for weights that pass few rows, into its second-level cache. 0: not at
 * all, which is fastest on Zen 4 (integer.body.h). Intel's: 3 KiB, of 2 to 16 tried on a Xeon 6; AMD's before
 * Zen 4: 2 KiB, of 1 to 8 tried on Zen 3. Set before any table is filled. */
extern size_t qn_few_ahead;

void qn_kernels_fill_matmul_scalar(qn_kernels *k);
void qn_kernels_fill_matmul_avx2(qn_kernels *k);
void qn_kernels_fill_matmul_avx2_vnni(qn_kernels *k);
void qn_kernels_fill_matmul_avx512(qn_kernels *k);
void qn_kernels_fill_matmul_avx512_amx(qn_kernels *k);
void qn_kernels_fill_matmul_neon(qn_kernels *k);
void qn_kernels_fill_matmul_neon_i8mm(qn_kernels *k);

/* Parts of the matmul of each set: activations into packed form, panels as f32, products of f32 and bf16
 * activations (the fields act_pack, unpack_panel and matmul of qn_kernels). */
void qn_act_pack_scalar(qn_act act, int64_t n_in, const float *x, void *out);
void qn_unpack_panel_scalar(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out);
void qn_matmul_float_scalar(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch);
void qn_act_pack_avx2(qn_act act, int64_t n_in, const float *x, void *out);
void qn_unpack_panel_avx2(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out);
void qn_matmul_float_avx2(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch);
void qn_act_pack_avx512(qn_act act, int64_t n_in, const float *x, void *out);
void qn_unpack_panel_avx512(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out);
void qn_matmul_float_avx512(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch);
/* All of avx512's matmul, of which avx512_amx takes what has few rows. */
void qn_matmul_avx512(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch);
/* What k->lean has of its own. */
void qn_kernels_lean_avx512_amx(qn_kernels *k);
/* bf16 activations and weights. */
void qn_matmul_bf16_avx512_amx(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch);
void qn_act_pack_neon(qn_act act, int64_t n_in, const float *x, void *out);
void qn_unpack_panel_neon(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out);
void qn_matmul_float_neon(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch);
/* All of neon's matmul, of which neon_i8mm takes what has few rows. */
void qn_matmul_neon(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch);

/* Element-wise, norms, softmax, sums, rope, conversions, small dense products, attention. */
void qn_kernels_fill_vector_scalar(qn_kernels *k);
void qn_kernels_fill_vector_avx2(qn_kernels *k);
void qn_kernels_fill_vector_avx512(qn_kernels *k);
void qn_kernels_fill_vector_neon(qn_kernels *k);

#endif
