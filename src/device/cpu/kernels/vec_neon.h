/* 16 floats as one value in four 128-bit registers of Advanced SIMD. The names and their meaning are those of
 * vec_scalar.h; v_fma rounds once. FMAX and FMIN hand on NaN from either side and order the zeros, so v_max
 * and v_min are a comparison and a selection here. */
#ifndef QN_DEVICE_CPU_KERNELS_VEC_NEON_H
#define QN_DEVICE_CPU_KERNELS_VEC_NEON_H

#include <arm_neon.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    float32x4_t a, b, c, d;
} vf;
typedef struct {
    uint32x4_t a, b, c, d;
} vm; /* per lane all ones or zero */

/* Of 32 registers 24 hold sums in the largest tile, 4 a vector of b and one the broadcast. */
enum { V_TILE_ROWS = 6 };

static inline int v_tile_vecs(int rows)
{
    return rows > 2 ? 1 : rows > 1 ? 2 : 4;
}

static inline vf v_set1(float x)
{
    float32x4_t q = vdupq_n_f32(x);
    return (vf){q, q, q, q};
}

static inline vf v_load(const float *p)
{
    return (vf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

static inline void v_store(float *p, vf x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}

/* This set has no stores that pass the caches by. */
static inline void v_stream(float *p, vf x)
{
    v_store(p, x);
}

static inline void v_stream_end(void)
{
}

enum { V_CHAIN = 2 }; /* vectors that chain.body.h holds at a time */

static inline vf v_load_n(const float *p, int n)
{
    float lanes[16] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return v_load(lanes);
}

static inline void v_store_n(float *p, vf x, int n)
{
    float lanes[16];
    v_store(lanes, x);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}

static inline vf v_add(vf x, vf y)
{
    return (vf){vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
}

static inline vf v_sub(vf x, vf y)
{
    return (vf){vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
}

static inline vf v_mul(vf x, vf y)
{
    return (vf){vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}

static inline vf v_div(vf x, vf y)
{
    return (vf){vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
}

static inline vf v_fma(vf x, vf y, vf z)
{
    return (vf){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                vfmaq_f32(z.d, x.d, y.d)};
}

static inline vf v_fnma(vf x, vf y, vf z)
{
    return (vf){vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b), vfmsq_f32(z.c, x.c, y.c),
                vfmsq_f32(z.d, x.d, y.d)};
}

static inline vf v_sqrt(vf x)
{
    return (vf){vsqrtq_f32(x.a), vsqrtq_f32(x.b), vsqrtq_f32(x.c), vsqrtq_f32(x.d)};
}

static inline vm v_lt(vf x, vf y)
{
    return (vm){vcltq_f32(x.a, y.a), vcltq_f32(x.b, y.b), vcltq_f32(x.c, y.c), vcltq_f32(x.d, y.d)};
}

static inline vm v_eq(vf x, vf y)
{
    return (vm){vceqq_f32(x.a, y.a), vceqq_f32(x.b, y.b), vceqq_f32(x.c, y.c), vceqq_f32(x.d, y.d)};
}

static inline vm v_not(vm x)
{
    return (vm){vmvnq_u32(x.a), vmvnq_u32(x.b), vmvnq_u32(x.c), vmvnq_u32(x.d)};
}

static inline vm v_is_nan(vf x)
{
    return v_not(v_eq(x, x));
}

static inline uint32x4_t v_lanes_4(int first, int32x4_t begin, int32x4_t end)
{
    static const int32_t counted[4] = {0, 1, 2, 3};
    int32x4_t i = vaddq_s32(vld1q_s32(counted), vdupq_n_s32(first));
    return vandq_u32(vcgeq_s32(i, begin), vcltq_s32(i, end));
}

static inline vm v_lanes(int begin, int end)
{
    int32x4_t b = vdupq_n_s32(begin), e = vdupq_n_s32(end);
    return (vm){v_lanes_4(0, b, e), v_lanes_4(4, b, e), v_lanes_4(8, b, e), v_lanes_4(12, b, e)};
}

static inline vm v_or(vm x, vm y)
{
    return (vm){vorrq_u32(x.a, y.a), vorrq_u32(x.b, y.b), vorrq_u32(x.c, y.c), vorrq_u32(x.d, y.d)};
}

static inline int v_any(vm m)
{
    return vmaxvq_u32(vorrq_u32(vorrq_u32(m.a, m.b), vorrq_u32(m.c, m.d))) != 0;
}

static inline vf v_select(vm m, vf x, vf y)
{
    return (vf){vbslq_f32(m.a, x.a, y.a), vbslq_f32(m.b, x.b, y.b), vbslq_f32(m.c, x.c, y.c),
                vbslq_f32(m.d, x.d, y.d)};
}

static inline vf v_max(vf x, vf y)
{
    return v_select(v_lt(y, x), x, y);
}

static inline vf v_min(vf x, vf y)
{
    return v_select(v_lt(x, y), x, y);
}

static inline vf v_neg(vf x)
{
    return (vf){vnegq_f32(x.a), vnegq_f32(x.b), vnegq_f32(x.c), vnegq_f32(x.d)};
}

static inline vf v_abs(vf x)
{
    return (vf){vabsq_f32(x.a), vabsq_f32(x.b), vabsq_f32(x.c), vabsq_f32(x.d)};
}

static inline vf v_copysign(vf x, vf y)
{
    uint32x4_t sign = vdupq_n_u32(0x80000000);
    return (vf){vbslq_f32(sign, y.a, x.a), vbslq_f32(sign, y.b, x.b), vbslq_f32(sign, y.c, x.c),
                vbslq_f32(sign, y.d, x.d)};
}

static inline vf v_round(vf x)
{
    return (vf){vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d)};
}

static inline float32x4_t v_pow2_4(int32x4_t n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

static inline float32x4_t v_scale_4(float32x4_t x, float32x4_t n)
{
    int32x4_t i = vcvtq_s32_f32(n), half = vshrq_n_s32(i, 1);
    return vmulq_f32(vmulq_f32(x, v_pow2_4(half)), v_pow2_4(vsubq_s32(i, half)));
}

static inline vf v_scale(vf x, vf n)
{
    return (vf){v_scale_4(x.a, n.a), v_scale_4(x.b, n.b), v_scale_4(x.c, n.c), v_scale_4(x.d, n.d)};
}

static inline float32x4_t v_scale_normal_4(float32x4_t x, float32x4_t n)
{
    int32x4_t up = vshlq_n_s32(vcvtq_s32_f32(n), 23); /* of NaN: 0 */
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), up));
}

static inline vf v_scale_normal(vf x, vf n)
{
    return (vf){v_scale_normal_4(x.a, n.a), v_scale_normal_4(x.b, n.b), v_scale_normal_4(x.c, n.c),
                v_scale_normal_4(x.d, n.d)};
}

static inline float32x4_t v_split_4(float32x4_t x, float32x4_t *e)
{
    uint32x4_t root = vdupq_n_u32(0x3f3504f3); /* sqrt(1/2) */
    uint32x4_t bits = vsubq_u32(vreinterpretq_u32_f32(x), root);
    *e = vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(bits), 23));
    return vreinterpretq_f32_u32(vaddq_u32(vandq_u32(bits, vdupq_n_u32(0x007fffff)), root));
}

static inline vf v_split(vf x, vf *e)
{
    vf m;
    m.a = v_split_4(x.a, &e->a);
    m.b = v_split_4(x.b, &e->b);
    m.c = v_split_4(x.c, &e->c);
    m.d = v_split_4(x.d, &e->d);
    return m;
}

static inline float v_sum(vf x)
{
    float32x4_t q = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t p = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(p, 0) + vget_lane_f32(p, 1);
}

static inline float v_first(vf x)
{
    return vgetq_lane_f32(x.a, 0);
}

/* FMAXV gives NaN if one is NaN. */
static inline float v_largest(vf x)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d)));
}

static inline void v_unzip(vf x, vf y, vf *even, vf *odd)
{
    *even = (vf){vuzp1q_f32(x.a, x.b), vuzp1q_f32(x.c, x.d), vuzp1q_f32(y.a, y.b), vuzp1q_f32(y.c, y.d)};
    *odd = (vf){vuzp2q_f32(x.a, x.b), vuzp2q_f32(x.c, x.d), vuzp2q_f32(y.a, y.b), vuzp2q_f32(y.c, y.d)};
}

static inline void v_zip(vf e, vf o, vf *x, vf *y)
{
    *x = (vf){vzip1q_f32(e.a, o.a), vzip2q_f32(e.a, o.a), vzip1q_f32(e.b, o.b), vzip2q_f32(e.b, o.b)};
    *y = (vf){vzip1q_f32(e.c, o.c), vzip2q_f32(e.c, o.c), vzip1q_f32(e.d, o.d), vzip2q_f32(e.d, o.d)};
}

static inline float32x4_t v_load_f16_4(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

static inline vf v_load_f16(const uint16_t *p)
{
    return (vf){v_load_f16_4(p), v_load_f16_4(p + 4), v_load_f16_4(p + 8), v_load_f16_4(p + 12)};
}

static inline void v_store_f16_4(uint16_t *p, float32x4_t x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}

static inline void v_store_f16(uint16_t *p, vf x)
{
    v_store_f16_4(p, x.a);
    v_store_f16_4(p + 4, x.b);
    v_store_f16_4(p + 8, x.c);
    v_store_f16_4(p + 12, x.d);
}

static inline float32x4_t v_load_bf16_4(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

static inline vf v_load_bf16(const uint16_t *p)
{
    return (vf){v_load_bf16_4(p), v_load_bf16_4(p + 4), v_load_bf16_4(p + 8), v_load_bf16_4(p + 12)};
}

static inline vf v_load_bits(const uint16_t *p, int left, int right)
{
    int16x8_t up = vdupq_n_s16((int16_t)left), down = vdupq_n_s16((int16_t)-right);
    int16x8_t x = vshlq_s16(vshlq_s16(vreinterpretq_s16_u16(vld1q_u16(p)), up), down);
    int16x8_t y = vshlq_s16(vshlq_s16(vreinterpretq_s16_u16(vld1q_u16(p + 8)), up), down);
    return (vf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(x))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(y))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(y)))};
}

static inline void v_store_bf16_4(uint16_t *p, float32x4_t x)
{
    uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
}

static inline void v_store_bf16(uint16_t *p, vf x)
{
    v_store_bf16_4(p, x.a);
    v_store_bf16_4(p + 4, x.b);
    v_store_bf16_4(p + 8, x.c);
    v_store_bf16_4(p + 12, x.d);
}

#endif
