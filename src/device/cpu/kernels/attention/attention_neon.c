/* The neon set of attention and of the small f32 product, which share one micro-kernel. */
#include "device/cpu/kernels/vec_neon.h"

#include "device/cpu/kernels/attention/attention.h"

#include "device/cpu/kernels/attention/attention.body.h"
#include "device/cpu/kernels/attention/attention_dots_neon.h"
#include "device/cpu/kernels/matmul/gemm.body.h"

void qn_kernels_fill_attention_neon(qn_kernels *k)
{
    k->kv_write = kv_write;
    k->attend = attend;
    k->integer_kv = 1;
    k->attend_part = attend_part;
    k->attend_merge = attend_merge;
    k->gemm_f32 = gemm_f32;
    k->panel_rows = panel_rows;
}
