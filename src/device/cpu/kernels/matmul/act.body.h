/* A row of activations into its packed form, over vec_<set>.h. The including file defines act_block(planes,
 * x, to): one block of 32 into a qn_act_i8 (planes 1) or qn_act_i8x2 (planes 2). */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_ACT_BODY_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_ACT_BODY_H

#include <string.h>

#include "device/cpu/kernels/matmul/pack.h"

static void act_pack(qn_act act, int64_t n_in, const float *x, void *out)
{
    uint8_t *to = out;
    switch (act) {
    case QN_ACT_I8:
        for (int64_t k = 0; k < n_in; k += QN_BLOCK, to += sizeof(qn_act_i8)) act_block(1, x + k, to);
        break;
    case QN_ACT_I8X2:
        for (int64_t k = 0; k < n_in; k += QN_BLOCK, to += sizeof(qn_act_i8x2)) act_block(2, x + k, to);
        break;
    case QN_ACT_BF16:
        for (; n_in >= 16; n_in -= 16, x += 16, to += 32) v_store_bf16((uint16_t *)(void *)to, v_load(x));
        if (n_in > 0) {
            uint16_t last[16];
            v_store_bf16(last, v_load_n(x, (int)n_in));
            memcpy(to, last, 2 * (size_t)(n_in + n_in % 2)); /* an odd row ends with a 0 */
        }
        break;
    default:
        memcpy(out, x, (size_t)n_in * sizeof *x);
        break;
    }
}

#endif
