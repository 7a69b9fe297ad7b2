/* Activations into their packed form: the reference. */
#include <math.h>
#include <string.h>

#include "device/cpu/kernels/matmul/pack.h"
#include "device/cpu/kernels/sets.h"
#include "quant/types.h"

static float largest(const float *x, int *finite)
{
    uint32_t most = 0; /* as integers, absolute values order like floats and NaN comes last */
    for (int i = 0; i < QN_BLOCK; i++) {
        uint32_t u = qn_float_bits(x[i]) & 0x7fffffff;
        most = u > most ? u : most;
    }
    *finite = most < 0x7f800000;
    return qn_bits_float(most);
}

/* Integers of one block: rint(x / scale) with scale = max |x| / limit; returns scale. */
static float quantise(const float *x, int limit, int32_t q[QN_BLOCK], int32_t half[2])
{
    int finite;
    float most = largest(x, &finite), inverse = 0, scale = 0;
    memset(half, 0, 2 * sizeof half[0]);
    memset(q, 0, QN_BLOCK * sizeof q[0]);
    if (!finite) return qn_bits_float(0x7fc00000);
    if (most < QN_ACT_TINY) return 0;
    scale = most / (float)limit;
    inverse = (float)limit / most;
    for (int i = 0; i < QN_BLOCK; i++) {
        q[i] = (int32_t)lrintf(x[i] * inverse);
        half[i / 16] += q[i];
    }
    return scale;
}

static void set_zero(int32_t zero[2], const int32_t half[2])
{
    zero[0] = -128 * (half[0] + half[1]);
    zero[1] = -128 * half[1];
}

void qn_act_pack_scalar(qn_act act, int64_t n_in, const float *x, void *out)
{
    if (act == QN_ACT_F32) {
        memcpy(out, x, (size_t)n_in * sizeof *x);
    } else if (act == QN_ACT_BF16) {
        uint16_t *to = out;
        for (int64_t k = 0; k < n_in; k++) to[k] = qn_f32_to_bf16(x[k]);
        if (n_in % 2) to[n_in] = 0;
    } else {
        int32_t q[QN_BLOCK], half[2];
        for (int64_t b = 0; b < n_in / QN_BLOCK; b++, x += QN_BLOCK) {
            if (act == QN_ACT_I8) {
                qn_act_i8 *to = (qn_act_i8 *)out + b;
                to->scale = quantise(x, QN_ACT_I8_MAX, q, half);
                to->sum = to->scale * (float)(half[0] + half[1]);
                set_zero(to->zero, half);
                for (int i = 0; i < QN_BLOCK; i++) to->q[i] = (int8_t)q[i];
            } else {
                qn_act_i8x2 *to = (qn_act_i8x2 *)out + b;
                to->scale = quantise(x, QN_ACT_I8X2_MAX, q, half);
                to->sum = to->scale * (float)(half[0] + half[1]);
                set_zero(to->zero, half);
                for (int i = 0; i < QN_BLOCK; i++) {
                    int32_t hi = (q[i] + 64 + (128 << 10)) / 128 - (1 << 10); /* floor((q + 64) / 128) */
                    to->hi[i] = (int8_t)hi;
                    to->lo[i] = (int8_t)(q[i] - 128 * hi);
                }
            }
        }
    }
}
