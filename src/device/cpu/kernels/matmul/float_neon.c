/* Unpacking and f32, f16, bf16 products with Advanced SIMD. Products of two bf16 are f32 multiply-adds, one
 * for each of a pair: BFDOT takes both at once, but rounds to odd and drops subnormals, as no other set does.
 */
#include "device/cpu/kernels/vec_neon.h"

#include "device/cpu/kernels/matmul/codes_neon.h"
#include "device/cpu/kernels/sets.h"

/* A tile has 24 sums in registers. */
enum { FLOAT_ROWS = 6, FLOAT_FEW = 2, FLOAT_PANELS = 2, FLOAT_REST = 5, FLOAT_DOTS = 0 };

INLINE float32x4_t even_4(float32x4_t pair)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pair), 16));
}

INLINE float32x4_t odd_4(float32x4_t pair)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pair), vdupq_n_u32(0xffff0000)));
}

INLINE vf pair_even(vf p)
{
    return (vf){even_4(p.a), even_4(p.b), even_4(p.c), even_4(p.d)};
}

INLINE vf pair_odd(vf p)
{
    return (vf){odd_4(p.a), odd_4(p.b), odd_4(p.c), odd_4(p.d)};
}

INLINE vf dot_pair(vf w, vf x, vf acc)
{
    return v_fma(pair_odd(x), pair_odd(w), v_fma(pair_even(x), pair_even(w), acc));
}

/* The weights of k = 4 g .. 4 g + 3 of one quarter into out, 16 outputs apart. */
INLINE void unpack_four(qn_layout layout, int8x16_t codes, const scales *s, int g, float *out)
{
    int zero = qn_layout_zero(layout) - (qn_layout_bits(layout) == 8 ? 128 : 0); /* 8-bit codes come signed */
    float32x4_t d = qn_layout_by_halves(layout) && g >= 4 ? s->m : s->d;
    int32x4_t w = vreinterpretq_s32_s8(codes);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        int32x4_t q = vshlq_s32(vshlq_n_s32(w, 24 - 8 * j), vdupq_n_s32(-24));
        float32x4_t v = vmulq_f32(d, vcvtq_f32_s32(vsubq_s32(q, vdupq_n_s32(zero))));
        if (qn_layout_has_min(layout)) v = vaddq_f32(v, s->m);
        vst1q_f32(out + j * QN_PANEL, v);
    }
}

INLINE void unpack_layout(qn_layout layout, qn_dtype own, int64_t n_in, const uint8_t *p, float *out)
{
    int64_t n_blocks = n_in / QN_BLOCK;
    for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
        int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
        const uint8_t *codes = p + qn_layout_header_bytes(layout, own, in_chunk);
        header h;
        load_header(layout, own, p, in_chunk, &h);
        for (int i = 0; i < in_chunk;
             i++, codes += qn_layout_code_bytes(layout), out += QN_BLOCK * QN_PANEL) {
            for (int quarter = 0; quarter < 4; quarter++) {
                scales s = packed_scales(layout, p, &h, i, quarter);
#pragma GCC unroll 8
                for (int g = 0; g < 8; g++)
                    unpack_four(layout, code_vector(layout, codes + 16 * quarter, g), &s, g,
                                out + 4 * g * QN_PANEL + 4 * quarter);
            }
        }
        p = codes;
    }
}

#include "device/cpu/kernels/matmul/unpack.body.h"

#include "device/cpu/kernels/matmul/float.body.h"

void qn_matmul_float_neon(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    float_matmul(a, begin, end, scratch);
}

void qn_unpack_panel_neon(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out)
{
    unpack_panel(dtype, n_in, panels, panel, out);
}
