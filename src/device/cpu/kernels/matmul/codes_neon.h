/* Codes and scales of one quarter (4 of 16 outputs) of a packed block, in registers of Advanced SIMD. The
 * layout is described in pack.h. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_CODES_NEON_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_CODES_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "device/cpu/kernels/matmul/pack.h"

/* In scratch codes are signed: those of symmetric types less their zero, unsigned ones of 8 bits less 128. */
#define STRETCH_LAYOUTS(X) X(SYM8) X(MIN4) X(E2M1_HALF) X(GROUP8)

INLINE qn_layout stretch_layout(qn_layout layout, int planes)
{
    if (qn_layout_by_halves(layout)) return QN_LAYOUT_E2M1_HALF;
    if (!qn_layout_has_min(layout)) return QN_LAYOUT_SYM8;
    return qn_layout_bits(layout) == 8 ? QN_LAYOUT_GROUP8 : QN_LAYOUT_MIN4;
}

INLINE float32x4_t load_f16x4(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

INLINE float32x4_t load_f32x4(const uint8_t *p)
{
    return vreinterpretq_f32_u8(vld1q_u8(p));
}

/* Those bits of high that start at bit `at` of each byte or'ed into w at bit `to`, where mask has them. */
INLINE uint8x16_t add_high(uint8x16_t w, uint8x16_t high, int at, int to, int mask)
{
    high = at <= to ? high << (to - at) : high >> (at - to);
    return vorrq_u8(w, vandq_u8(high, vdupq_n_u8((uint8_t)mask)));
}

/* Codes of k = 4 g .. 4 g + 3: as they are, but less 128 for 8 bits. p: the block's codes + 16 * quarter. */
INLINE int8x16_t code_vector(qn_layout layout, const uint8_t *p, int g)
{
    int bits = qn_layout_bits(layout);
    uint8x16_t w;
    if (bits == 8 && !qn_layout_table(layout))
        return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 64 * g), vdupq_n_u8(0x80)));
    if (bits < 4) {
        w = vandq_u8(vld1q_u8(p + 64 * (g / 4)) >> (g % 4 * 2), vdupq_n_u8(3));
        return vreinterpretq_s8_u8(bits == 2 ? w : add_high(w, vld1q_u8(p + 128), g, 2, 4));
    }
    w = vld1q_u8(p + 64 * (g % 4));
    w = g < 4 ? vandq_u8(w, vdupq_n_u8(15)) : vshrq_n_u8(w, 4);
    if (bits == 8) return vqtbl1q_s8(vld1q_s8(qn_layout_table(layout)), w);
    if (bits == 5) w = add_high(w, vld1q_u8(p + 256), g, 4, 0x10);
    if (bits == 6) w = add_high(w, vld1q_u8(p + 256 + 64 * (g / 4)), g % 4 * 2, 4, 0x30);
    return vreinterpretq_s8_u8(w);
}

/* m: of types with a scale for each half that of the second. */
typedef struct {
    float32x4_t d, m;
} scales;

/* What the blocks of a chunk share. */
typedef struct {
    uint8_t six[16][16]; /* QN_SCALE_K: the 6-bit scales of 8 blocks, then the mins */
    /* QN_SCALE_GROUP */
    int shift;                         /* group = block >> shift */
    float32x4_t group[QN_CHUNK][2][4]; /* scale and bias of the quarters */
} header;

INLINE float32x4_t load_half_x4(qn_dtype type, const uint8_t *p)
{
    if (type == QN_DTYPE_F16) return load_f16x4(p);
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

/* own: the weight's type, see qn_layout_header_bytes. */
INLINE void load_header(qn_layout layout, qn_dtype own, const uint8_t *p, int in_chunk, header *h)
{
    if (qn_layout_scale(layout) == QN_SCALE_GROUP) {
        qn_affine a = qn_affine_of(own);
        h->shift = a.group == 32 ? 0 : a.group == 64 ? 1 : 2;
        for (int i = 0; i < in_chunk >> h->shift; i++) {
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                h->group[i][j / 4][j % 4] = a.scale == QN_DTYPE_F32
                                                ? load_f32x4(p + 128 * i + 16 * j)
                                                : load_half_x4(a.scale, p + 64 * i + 8 * j);
        }
    }
    if (qn_layout_scale(layout) != QN_SCALE_K) return;
    const uint8x16_t six = vdupq_n_u8(63), four = vdupq_n_u8(15), top = vdupq_n_u8(48);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        uint8x16_t a = vld1q_u8(p + 64 + 16 * i), b = vld1q_u8(p + 128 + 16 * i),
                   c = vld1q_u8(p + 192 + 16 * i);
        uint8x16_t a_top = vandq_u8(vshrq_n_u8(a, 2), top), b_top = vandq_u8(vshrq_n_u8(b, 2), top);
        vst1q_u8(h->six[i], vandq_u8(a, six));
        vst1q_u8(h->six[8 + i], vandq_u8(b, six));
        vst1q_u8(h->six[4 + i], vorrq_u8(vandq_u8(c, four), a_top));
        vst1q_u8(h->six[12 + i], vorrq_u8(vshrq_n_u8(c, 4), b_top));
    }
}

/* Four bytes as integers. */
INLINE uint32x4_t small_ints(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(v))));
}

INLINE float32x4_t small_signed(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(v)))));
}

INLINE float32x4_t load_e8m0_half(const uint8_t *p)
{
    uint32x4_t e = small_ints(p), one = vdupq_n_u32(1);
    uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, one), 23);
    uint32x4_t small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(vminq_u32(e, one)));
    return vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(e, one), normal, small));
}

INLINE float32x4_t load_e4m3_half(const uint8_t *p)
{
    uint32x4_t s = small_ints(p), low = vdupq_n_u32(0x7f), bits = vandq_u32(s, low);
    uint32x4_t half = vorrq_u32(vshlq_n_u32(bits, 7), vshlq_n_u32(vbicq_u32(s, low), 8));
    /* The one NaN becomes that of f16: all bits of the exponent. */
    half = vorrq_u32(half, vandq_u32(vceqq_u32(bits, low), vdupq_n_u32(0x7e00)));
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(half))), 128);
}

/* p: the chunk's header. */
INLINE scales packed_scales(qn_layout layout, const uint8_t *p, const header *h, int i_block, int quarter)
{
    scales s = {0};
    switch (qn_layout_scale(layout)) {
    case QN_SCALE_SYM:
        s.d = qn_layout_number(layout) == QN_NUMBER_E8M0 ? load_e8m0_half(p + 16 * i_block + 4 * quarter)
                                                         : load_f16x4(p + 32 * i_block + 8 * quarter);
        break;
    case QN_SCALE_HALF:
        s.d = load_e4m3_half(p + 32 * i_block + 4 * quarter);
        s.m = load_e4m3_half(p + 32 * i_block + 16 + 4 * quarter);
        break;
    case QN_SCALE_GROUP:
        s.d = h->group[i_block >> h->shift][0][quarter];
        s.m = h->group[i_block >> h->shift][1][quarter];
        break;
    case QN_SCALE_MIN:
        s.d = load_f16x4(p + 64 * i_block + 8 * quarter);
        s.m = load_f16x4(p + 64 * i_block + 32 + 8 * quarter);
        break;
    case QN_SCALE_K:
        s.d =
            vmulq_f32(load_f16x4(p + 8 * quarter), vcvtq_f32_u32(small_ints(h->six[i_block] + 4 * quarter)));
        s.m = vnegq_f32(vmulq_f32(load_f16x4(p + 32 + 8 * quarter),
                                  vcvtq_f32_u32(small_ints(h->six[8 + i_block] + 4 * quarter))));
        break;
    default:
        s.d = vmulq_f32(load_f16x4(p + 8 * quarter), small_signed(p + 64 + 32 * i_block + 4 * quarter));
        s.m = vmulq_f32(load_f16x4(p + 8 * quarter), small_signed(p + 80 + 32 * i_block + 4 * quarter));
    }
    return s;
}

/* Scales of a quarter of a block in scratch: d f32[16], then m f32[16]. p: of the quarter. */
INLINE void store_scales(qn_scale_kind kind, const scales *s, uint8_t *p)
{
    vst1q_f32((float *)(void *)p, s->d);
    if (kind != QN_SCALE_SYM) vst1q_f32((float *)(void *)(p + 64), s->m);
}

INLINE scales expanded_scales(qn_scale_kind kind, const uint8_t *p)
{
    scales s = {0};
    s.d = load_f32x4(p);
    if (kind != QN_SCALE_SYM) s.m = load_f32x4(p + 64);
    return s;
}

#endif
