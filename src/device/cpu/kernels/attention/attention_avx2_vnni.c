/* The avx2_vnni set of attention: avx2's, with vpdpwssd over Q8_0 and Q4_0 pages in place of a product and an
 * addition. The integers are the same, and so are the bits. */
#include "device/cpu/kernels/vec_avx2.h"

#include "device/cpu/kernels/attention/attention.h"
#include "device/cpu/kernels/sets.h"

#include "device/cpu/kernels/attention/attention.body.h"
#include "device/cpu/kernels/attention/attention_dots_avx2.h"

void qn_kernels_fill_attention_avx2_vnni(qn_kernels *k)
{
    qn_kernels_fill_attention_avx2(k);
    k->kv_write = kv_write;
    k->attend = attend;
    k->attend_part = attend_part;
    k->attend_merge = attend_merge;
}
