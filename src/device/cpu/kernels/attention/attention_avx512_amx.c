/* The avx512_amx set of attention: avx512's, but for BF16 pages, which go through tiles. */
#include "device/cpu/kernels/vec_avx512.h"

#include "device/cpu/kernels/attention/attention.h"
#include "device/cpu/kernels/sets.h"

#include "device/cpu/kernels/attention/attention.body.h"
#include "device/cpu/kernels/attention/attention_dots_avx512.h"
#include "device/cpu/kernels/attention/attention_tiles_avx512_amx.h"

static int in_tiles(const qn_kv_layout *kv)
{
    return kv->dtype == QN_DTYPE_BF16 && !kv->v_in_k;
}

static void attend_any(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads, void *scratch)
{
    (in_tiles(&a->kv) ? attend : qn_attend_avx512)(a, n_rows, head, n_heads, scratch);
}

static void attend_part_any(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads,
                            int64_t begin, int64_t end, float *parts, void *scratch)
{
    (in_tiles(&a->kv) ? attend_part : qn_attend_part_avx512)(a, n_rows, head, n_heads, begin, end, parts,
                                                             scratch);
}

void qn_kernels_fill_attention_avx512_amx(qn_kernels *k)
{
    qn_kernels_fill_attention_avx512(k);
    k->kv_write = kv_write;
    k->attend = attend_any;
    k->attend_part = attend_part_any;
    k->attend_merge = attend_merge;
}
