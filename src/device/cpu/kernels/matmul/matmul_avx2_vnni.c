/* Matmul of int8 activations with AVX-VNNI (Intel's chips without AVX-512, from Alder Lake on): all of
 * avx2's, but for its integers. vpdpbusd adds four products of unsigned codes and signed activations to a sum
 * of 32 bits, vpdpwssd two of 16 bits, in one instruction where AVX2 takes two to five. The integers are the
 * same, and so are the bits. */

/* In scratch, codes of symmetric types are moved so that 128 stands for 0. */
#define STRETCH_LAYOUTS(X) X(SYM8) X(MIN4) X(E2M1_HALF)

#include "device/cpu/kernels/matmul/matmul_avx2.body.h"

static qn_layout stretch_layout(qn_layout layout, int planes)
{
    return wide_layout(layout);
}

INLINE int lacks(qn_layout layout)
{
    return !qn_layout_has_min(layout);
}

/* w: signed if of 8 bits. */
INLINE __m256i as_unsigned(qn_layout layout, __m256i w)
{
    return qn_layout_bits(layout) == 8 ? _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80)) : w;
}

INLINE __m256i in_scratch(qn_layout layout, __m256i w)
{
    const int move = qn_layout_has_min(layout) ? 0 : 128 - qn_layout_zero(layout);
    return _mm256_add_epi8(as_unsigned(layout, w), _mm256_set1_epi8((char)move));
}

INLINE void block_sums(qn_layout layout, source from, int planes, int rows, const uint8_t *codes,
                       const uint8_t *const x[TILE_MAX], __m256i (*sum)[SUMS_MAX])
{
    const int half = qn_layout_by_halves(layout) ? 4 : 8;
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        __m256i w[SIDES], *to = sum[g / half];
#pragma GCC unroll 2
        for (int side = 0; side < SIDES; side++) {
            w[side] = code_vector(layout, from, codes + 32 * side, g);
            if (from == PACKED) w[side] = as_unsigned(layout, w[side]);
        }
#pragma GCC unroll 8
        for (int v = 0; v < rows * planes; v++) {
            const __m256i xv = broadcast4(x[v / planes] + QN_BLOCK * (v % planes) + 4 * g);
#pragma GCC unroll 2
            for (int side = 0; side < SIDES; side++) {
                __m256i *of = to + v * SIDES + side;
                *of = in_order(_mm256_dpbusd_avx_epi32(g % half ? *of : _mm256_setzero_si256(), w[side], xv));
            }
        }
    }
}

INLINE __m256i add_pairs(__m256i sum, __m256i w, __m256i x, int opens)
{
    return _mm256_dpwssd_avx_epi32(opens ? _mm256_setzero_si256() : sum, w, x);
}

void qn_kernels_fill_matmul_avx2_vnni(qn_kernels *k)
{
    fill_matmul(k);
}
