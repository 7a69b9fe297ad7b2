/* The avx512_amx set of attention: avx512's, but for BF16 pages, which go through tiles. */
#include "kernels/vec_avx512.h"

#include "kernels/attention.h"
#include "kernels/sets.h"

#include "kernels/attention.body.h"
#include "kernels/attention_dots_avx512.h"
#include "kernels/attention_tiles_avx512_amx.h"

void qn_kernels_fill_attention_avx512_amx(qn_kernels *k)
{
    k->kv_write = kv_write;
    k->attend = attend;
    k->attend_part = attend_part;
    k->attend_merge = attend_merge;
}

void qn_kernels_fill_vector_avx512_amx(qn_kernels *k)
{
    qn_kernels_fill_vector_avx512(k);
    qn_kernels_fill_attention_avx512_amx(k);
}
