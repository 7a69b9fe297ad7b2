/* The avx512 set of attention and of small products, which share one micro-kernel. */
#include "device/cpu/kernels/vec_avx512.h"

#include "device/cpu/kernels/attention/attention.h"

#include "device/cpu/kernels/attention/attention.body.h"
#include "device/cpu/kernels/attention/attention_dots_avx512.h"
#include "device/cpu/kernels/attention/attention_tiles_none.h"
#include "device/cpu/kernels/matmul/gemm.body.h"
#include "device/cpu/kernels/matmul/gemm_bf16_avx512.h"

void qn_attend_avx512(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads, void *scratch)
{
    attend(a, n_rows, head, n_heads, scratch);
}

void qn_attend_part_avx512(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads,
                           int64_t begin, int64_t end, float *parts, void *scratch)
{
    attend_part(a, n_rows, head, n_heads, begin, end, parts, scratch);
}

void qn_kernels_fill_attention_avx512(qn_kernels *k)
{
    k->kv_write = kv_write;
    k->attend = attend;
    k->integer_kv = 1;
    k->attend_part = attend_part;
    k->attend_merge = attend_merge;
    k->gemm_f32 = gemm_f32;
    k->panel_rows = panel_rows;
    k->gemm_bf16 = gemm_bf16;
    k->panel_pairs = panel_pairs;
}
