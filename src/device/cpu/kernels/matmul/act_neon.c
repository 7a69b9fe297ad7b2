/* Activations into their packed form with Advanced SIMD: the operations of act_scalar.c. */
#include "device/cpu/kernels/vec_neon.h"

#include "device/cpu/kernels/matmul/pack.h"
#include "device/cpu/kernels/sets.h"

/* 32 integers in [-128, 127] as bytes, in order. */
static inline void store_bytes(uint8_t *to, const int32x4_t q[8])
{
    int16x8_t h[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        h[i] = vuzp1q_s16(vreinterpretq_s16_s32(q[2 * i]), vreinterpretq_s16_s32(q[2 * i + 1]));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        vst1q_u8(to + 16 * i, vuzp1q_u8(vreinterpretq_u8_s16(h[2 * i]), vreinterpretq_u8_s16(h[2 * i + 1])));
}

static inline int32_t sum_half(const int32x4_t q[4])
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
}

static inline void act_block(int planes, const float *x, uint8_t *to)
{
    float32x4_t v[8];
    int32x4_t q[8];
    uint32x4_t largest = vdupq_n_u32(0);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        v[i] = vld1q_f32(x + 4 * i);
        q[i] = vdupq_n_s32(0);
        largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    }
    uint32_t bits = vmaxvq_u32(largest);
    float most, scale, limit = planes == 1 ? QN_ACT_I8_MAX : QN_ACT_I8X2_MAX;
    memcpy(&most, &bits, 4);
    if (bits >= 0x7f800000) {
        uint32_t nan = 0x7fc00000;
        memcpy(&scale, &nan, 4);
    } else if (most < QN_ACT_TINY) {
        scale = 0;
    } else {
        float32x4_t inverse = vdupq_n_f32(limit / most);
        scale = most / limit;
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) q[i] = vcvtnq_s32_f32(vmulq_f32(v[i], inverse));
    }
    int32_t half[2] = {sum_half(q), sum_half(q + 4)};
    float sum = scale * (float)(half[0] + half[1]);
    int32_t zero[2] = {-128 * (half[0] + half[1]), -128 * half[1]};
    if (planes == 2) {
        int32x4_t high[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            high[i] = vrshrq_n_s32(q[i], 7); /* floor((q + 64) / 128) */
            q[i] = vsubq_s32(q[i], vshlq_n_s32(high[i], 7));
        }
        store_bytes(to, high);
        to += QN_BLOCK;
    }
    store_bytes(to, q);
    to += QN_BLOCK;
    memcpy(to, &scale, 4);
    memcpy(to + 4, &sum, 4);
    memcpy(to + 8, zero, 8);
}

#include "device/cpu/kernels/matmul/act.body.h"

void qn_act_pack_neon(qn_act act, int64_t n_in, const float *x, void *out)
{
    act_pack(act, n_in, x, out);
}
