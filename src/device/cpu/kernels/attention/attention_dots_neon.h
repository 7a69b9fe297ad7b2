/* Attention over Q8_0 and Q4_0 pages in integers of 16 bits, which are two operands of 8: 256 times the upper
 * one and the lower one, both signed. SDOT adds four products of bytes to a sum of 32 bits, so four
 * dimensions (or positions) of a lane are a step: the pairs of two rows of a page, zipped. The sums of both
 * halves stay apart until a block (or a group of positions) ends.
 *
 * 4 SDOT for 32 products of 16 and 8 bits, where f32 takes 8 FMLA and each page is widened in memory first
 * (counted, not measured). */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_NEON_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_NEON_H

#define DOTS_BF16 0
#define DOTS_BYTES 1
enum { DOTS_ROWS = 2, DOTS_ROWS_V4 = 1 }; /* of 32 registers a row's sums take 8, of Q4_0 16 */

typedef struct {
    int32x4_t a, b, c, d;
} dots_sums;
typedef struct {
    dots_sums high, low;
} vi;
typedef int8x8_t va; /* four upper halves, four lower ones */
typedef struct {
    int8x16_t a, b, c, d;
} vb;

static inline int dots_vecs(int rows)
{
    return 1;
}

static inline vi dots_zero(void)
{
    const int32x4_t zero = vdupq_n_s32(0);
    const dots_sums all = {zero, zero, zero, zero};
    return (vi){all, all};
}

static inline dots_sums dots_whole(vi x)
{
    return (dots_sums){
        vaddq_s32(vshlq_n_s32(x.high.a, 8), x.low.a), vaddq_s32(vshlq_n_s32(x.high.b, 8), x.low.b),
        vaddq_s32(vshlq_n_s32(x.high.c, 8), x.low.c), vaddq_s32(vshlq_n_s32(x.high.d, 8), x.low.d)};
}

static inline vi dots_load_sums(const float *p)
{
    const int32_t *from = (const int32_t *)(const void *)p;
    vi x = dots_zero();
    x.low = (dots_sums){vld1q_s32(from), vld1q_s32(from + 4), vld1q_s32(from + 8), vld1q_s32(from + 12)};
    return x;
}

static inline void dots_store_sums(float *p, vi sums)
{
    const dots_sums x = dots_whole(sums);
    int32_t *to = (int32_t *)(void *)p;
    vst1q_s32(to, x.a);
    vst1q_s32(to + 4, x.b);
    vst1q_s32(to + 8, x.c);
    vst1q_s32(to + 12, x.d);
}

static inline vf dots_to_f32(vi sums)
{
    const dots_sums x = dots_whole(sums);
    return (vf){vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)};
}

/* 16 lanes of a pair and of the next one: four bytes a lane. */
static inline vb dots_zipped(int8x16_t x, int8x16_t y, int8x16_t next_x, int8x16_t next_y)
{
    const int16x8_t p = vreinterpretq_s16_s8(x), q = vreinterpretq_s16_s8(y),
                    next_p = vreinterpretq_s16_s8(next_x), next_q = vreinterpretq_s16_s8(next_y);
    return (vb){vreinterpretq_s8_s16(vzip1q_s16(p, next_p)), vreinterpretq_s8_s16(vzip2q_s16(p, next_p)),
                vreinterpretq_s8_s16(vzip1q_s16(q, next_q)), vreinterpretq_s8_s16(vzip2q_s16(q, next_q))};
}

static inline int8x16_t dots_upper(int8x16_t x)
{
    return vandq_s8(x, vdupq_n_s8(-16));
}

static inline __attribute__((always_inline)) void dots_load(const char *p, int64_t next, attend_form form,
                                                            vb *b)
{
    const int8_t *from = (const int8_t *)p;
    const int8x16_t x = vld1q_s8(from), y = vld1q_s8(from + 16), next_x = vld1q_s8(from + next),
                    next_y = vld1q_s8(from + next + 16);
    if (form == FORM_Q8) {
        b[0] = dots_zipped(x, y, next_x, next_y);
        return;
    }
    b[0] = dots_zipped(vshlq_n_s8(x, 4), vshlq_n_s8(y, 4), vshlq_n_s8(next_x, 4), vshlq_n_s8(next_y, 4));
    b[1] = dots_zipped(dots_upper(x), dots_upper(y), dots_upper(next_x), dots_upper(next_y));
}

static inline va dots_spread(const void *p)
{
    return vld1_s8(p);
}

static inline vi dots_add(vi sum, vb b, va x, attend_form form)
{
    sum.high = (dots_sums){vdotq_lane_s32(sum.high.a, b.a, x, 0), vdotq_lane_s32(sum.high.b, b.b, x, 0),
                           vdotq_lane_s32(sum.high.c, b.c, x, 0), vdotq_lane_s32(sum.high.d, b.d, x, 0)};
    sum.low = (dots_sums){vdotq_lane_s32(sum.low.a, b.a, x, 1), vdotq_lane_s32(sum.low.b, b.b, x, 1),
                          vdotq_lane_s32(sum.low.c, b.c, x, 1), vdotq_lane_s32(sum.low.d, b.d, x, 1)};
    return sum;
}

static inline vi dots_add_all(vi sum, vb b)
{
    const int8x16_t one = vdupq_n_s8(1);
    sum.low = (dots_sums){vdotq_s32(sum.low.a, b.a, one), vdotq_s32(sum.low.b, b.b, one),
                          vdotq_s32(sum.low.c, b.c, one), vdotq_s32(sum.low.d, b.d, one)};
    return sum;
}

static inline vi dots_with_all(vi sum, vi all)
{
    sum.low = (dots_sums){
        vaddq_s32(sum.low.a, vshlq_n_s32(all.low.a, 15)), vaddq_s32(sum.low.b, vshlq_n_s32(all.low.b, 15)),
        vaddq_s32(sum.low.c, vshlq_n_s32(all.low.c, 15)), vaddq_s32(sum.low.d, vshlq_n_s32(all.low.d, 15))};
    return sum;
}

/* 8 numbers: of each four the upper halves, then the lower ones. wide: less 32768, which is the upper half's
 * sign. */
static inline void dots_store_8(int8_t *out, float32x4_t x, float32x4_t y, int wide)
{
    const int32x4_t first = vcvtnq_s32_f32(x), second = vcvtnq_s32_f32(y);
    int16x8_t whole;
    int8x8_t upper;
    if (wide) {
        const uint16x8_t positive = vcombine_u16(vqmovun_s32(first), vqmovun_s32(second));
        whole = vreinterpretq_s16_u16(positive);
        upper = vreinterpret_s8_u8(veor_u8(vrshrn_n_u16(positive, 8), vdup_n_u8(128)));
    } else {
        whole = vcombine_s16(vqmovn_s32(first), vqmovn_s32(second));
        upper = vrshrn_n_s16(whole, 8);
    }
    const int32x2_t high = vreinterpret_s32_s8(upper), low = vreinterpret_s32_s8(vmovn_s16(whole));
    vst1_s8(out, vreinterpret_s8_s32(vzip1_s32(high, low)));
    vst1_s8(out + 8, vreinterpret_s8_s32(vzip2_s32(high, low)));
}

static inline void dots_store_16(void *out, vf x)
{
    dots_store_8(out, x.a, x.b, 0);
    dots_store_8((int8_t *)out + 16, x.c, x.d, 0);
}

static inline void dots_store_32(void *out, vf x, vf y, int wide)
{
    dots_store_8(out, x.a, x.b, wide);
    dots_store_8((int8_t *)out + 16, x.c, x.d, wide);
    dots_store_8((int8_t *)out + 32, y.a, y.b, wide);
    dots_store_8((int8_t *)out + 48, y.c, y.d, wide);
}

static inline vf dots_weighted(vf p, vf scale)
{
    return v_select(v_eq(p, v_set1(0)), v_set1(0), v_mul(p, scale));
}

static inline float32x4_t dots_max_bits_4(float32x4_t x, float32x4_t y)
{
    return vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(y)));
}

static inline vf dots_max_bits(vf x, vf y)
{
    return (vf){dots_max_bits_4(x.a, y.a), dots_max_bits_4(x.b, y.b), dots_max_bits_4(x.c, y.c),
                dots_max_bits_4(x.d, y.d)};
}

static inline uint32_t dots_largest_bits(vf x)
{
    return vmaxvq_u32(
        vreinterpretq_u32_f32(dots_max_bits_4(dots_max_bits_4(x.a, x.b), dots_max_bits_4(x.c, x.d))));
}

#include "device/cpu/kernels/attention/attention_dots.body.h"

#endif
