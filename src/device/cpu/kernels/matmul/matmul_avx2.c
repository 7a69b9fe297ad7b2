/* Matmul of int8 activations with AVX2.
 *
 * vpmaddubsw multiplies unsigned codes by signed activations and adds pairs in 16 bits, where 8 sums of 4-bit
 * codes fit, 4 of 5-bit ones and 2 of 6-bit ones; 8-bit codes go in as |w| with the sign moved to x, one at a
 * time (128 * 127 * 2 < 2^15). So nothing ever saturates. */

/* In scratch, how often 16-bit sums are emptied depends on the bits. */
#define STRETCH_LAYOUTS(X) X(SYM4) X(MIN4) X(SYM5) X(MIN5) X(SYM8) X(SUB6) X(E2M1_HALF) X(GROUP6) X(GROUP8)

#include "device/cpu/kernels/matmul/matmul_avx2.body.h"

static qn_layout stretch_layout(qn_layout layout, int planes)
{
    const int bits = qn_layout_bits(layout);
    if (planes == 2) return wide_layout(layout);
    if (qn_layout_scale(layout) == QN_SCALE_SYM && bits == 8) return QN_LAYOUT_SYM8;
    if (!qn_layout_has_min(layout) || bits > 5) return layout;
    return bits == 5 ? QN_LAYOUT_MIN5 : QN_LAYOUT_MIN4;
}

/* 8-bit codes are signed, others unsigned. */
INLINE int lacks(qn_layout layout)
{
    const int has_min = qn_layout_has_min(layout);
    return qn_layout_bits(layout) == 8 ? -has_min : !has_min;
}

INLINE __m256i in_scratch(qn_layout layout, __m256i w)
{
    return w;
}

/* Of pairs of products with unsigned codes of so many bits, or of one such vector of magnitudes. */
INLINE int sums_in_16_bits(int bits)
{
    if (bits <= 4) return 8;
    return bits == 5 ? 4 : bits == 6 ? 2 : 1;
}

INLINE void block_sums(qn_layout layout, source from, int planes, int rows, const uint8_t *codes,
                       const uint8_t *const x[TILE_MAX], __m256i (*sum)[SUMS_MAX])
{
    const int bits = qn_layout_bits(layout), run = sums_in_16_bits(bits),
              by_halves = qn_layout_by_halves(layout);
    /* Of the vectors of a run as many are in registers as leave room for the sums. */
    const int held = run <= 2 ? run : 1;
    __m256i pairs[SUMS_MAX]; /* of a run */
#pragma GCC unroll 8
    for (int g = 0; g < 8; g += held) {
        const int starts = g % run == 0, ends = (g + held) % run == 0, h = by_halves ? g / 4 : 0,
                  opens = g / run * run % (by_halves ? 4 : 8) == 0;
        __m256i w[2][SIDES], magnitude[2][SIDES];
#pragma GCC unroll 2
        for (int i = 0; i < held; i++) {
#pragma GCC unroll 2
            for (int side = 0; side < SIDES; side++) {
                w[i][side] = code_vector(layout, from, codes + 32 * side, g + i);
                magnitude[i][side] = bits == 8 ? _mm256_abs_epi8(w[i][side]) : w[i][side];
            }
        }
#pragma GCC unroll 8
        for (int v = 0; v < rows * planes; v++) {
            const uint8_t *at = x[v / planes] + QN_BLOCK * (v % planes) + 4 * g;
            __m256i xv[2];
#pragma GCC unroll 2
            for (int i = 0; i < held; i++) xv[i] = broadcast4(at + 4 * i);
#pragma GCC unroll 2
            for (int side = 0; side < SIDES; side++) {
                const int to = v * SIDES + side;
                __m256i t = pairs[to];
#pragma GCC unroll 2
                for (int i = 0; i < held; i++) {
                    const __m256i of = _mm256_maddubs_epi16(
                        magnitude[i][side], bits == 8 ? _mm256_sign_epi8(xv[i], w[i][side]) : xv[i]);
                    t = in_order(starts && i == 0 ? of : _mm256_add_epi16(t, of));
                }
                pairs[to] = t;
                if (!ends) continue;
                t = _mm256_madd_epi16(t, _mm256_set1_epi16(1));
                sum[h][to] = in_order(opens ? t : _mm256_add_epi32(sum[h][to], t));
            }
        }
    }
}

INLINE __m256i add_pairs(__m256i sum, __m256i w, __m256i x, int opens)
{
    const __m256i t = _mm256_madd_epi16(w, x);
    return opens ? t : _mm256_add_epi32(sum, t);
}

void qn_kernels_fill_matmul_avx2(qn_kernels *k)
{
    fill_matmul(k);
}
