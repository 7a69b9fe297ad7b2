/* Unpacking and f32, f16, bf16 products with AVX2. */
#include "device/cpu/kernels/vec_avx2.h"

#include "device/cpu/kernels/matmul/codes_avx2.h"
#include "device/cpu/kernels/sets.h"

enum { FLOAT_ROWS = 6, FLOAT_FEW = 2, FLOAT_PANELS = 2, FLOAT_REST = 5, FLOAT_DOTS = 0 };

INLINE __m256 even_8(__m256 pair)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pair), 16));
}

INLINE vf pair_even(vf pair)
{
    return (vf){even_8(pair.l), even_8(pair.h)};
}

INLINE vf pair_odd(vf pair)
{
    __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000));
    return (vf){_mm256_and_ps(pair.l, mask), _mm256_and_ps(pair.h, mask)};
}

INLINE vf dot_pair(vf w, vf x, vf acc)
{
    return v_fma(pair_odd(x), pair_odd(w), v_fma(pair_even(x), pair_even(w), acc));
}

INLINE void unpack_layout(qn_layout layout, qn_dtype own, int64_t n_in, const uint8_t *p, float *out)
{
    int64_t n_blocks = n_in / QN_BLOCK;
    int zero = qn_layout_zero(layout) - (qn_layout_bits(layout) == 8 ? 128 : 0); /* 8-bit codes come signed */
    for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
        int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
        const uint8_t *codes = p + qn_layout_header_bytes(layout, own, in_chunk);
        header h;
        load_header(layout, own, p, in_chunk, &h);
        for (int i = 0; i < in_chunk;
             i++, codes += qn_layout_code_bytes(layout), out += QN_BLOCK * QN_PANEL) {
#pragma GCC unroll 2
            for (int side = 0; side < 2; side++) {
                scales s = packed_scales(layout, p, &h, i, side);
#pragma GCC unroll 8
                for (int g = 0; g < 8; g++) {
                    __m256i w = code_vector(layout, PACKED, codes + 32 * side, g);
                    __m256 d = qn_layout_by_halves(layout) && g >= 4 ? s.m : s.d;
#pragma GCC unroll 4
                    for (int j = 0; j < 4; j++) {
                        __m256i q = _mm256_srai_epi32(_mm256_slli_epi32(w, 24 - 8 * j), 24);
                        __m256 v = _mm256_mul_ps(
                            d, _mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(zero))));
                        if (qn_layout_has_min(layout)) v = _mm256_add_ps(v, s.m);
                        _mm256_storeu_ps(out + (4 * g + j) * QN_PANEL + 8 * side, v);
                    }
                }
            }
        }
        p = codes;
    }
}

#include "device/cpu/kernels/matmul/unpack.body.h"

#include "device/cpu/kernels/matmul/float.body.h"

void qn_matmul_float_avx2(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    float_matmul(a, begin, end, scratch);
}

void qn_unpack_panel_avx2(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out)
{
    unpack_panel(dtype, n_in, panels, panel, out);
}
