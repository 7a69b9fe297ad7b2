/* Codes and scales of one side (8 of 16 outputs) of a packed block, in registers of AVX2. The layout is
 * described in pack.h. */
#ifndef QN_KERNELS_CODES_AVX2_H
#define QN_KERNELS_CODES_AVX2_H

#include <immintrin.h>

#include "kernels/pack.h"

#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif

INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256(p);
}

INLINE __m256 load_f16x8(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

/* Where codes come from: packed, or in scratch as codes [8][64], d f32[16], then m f32[16] or sub-scales
 * i32[2][16]; 8-bit codes are signed there. */
typedef enum { PACKED, EXPANDED } source;

/* Codes of k = 4 g .. 4 g + 3 as unsigned bytes, but signed ones for 8 bits. p: the block's codes + 32 *
 * side. */
INLINE __m256i code_vector(qn_dtype dtype, source from, const uint8_t *p, int g)
{
    int bits = qn_layout_bits(dtype);
    if (from == EXPANDED) return load(p + 64 * g);
    if (bits == 8) return _mm256_xor_si256(load(p + 64 * g), _mm256_set1_epi8((char)0x80));
    __m256i w = load(p + 64 * (g % 4));
    w = _mm256_and_si256(g < 4 ? w : _mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
    if (bits == 4) return w;
    /* The high bits of group g start at bit `at` of each byte and belong at bit 4. */
    int at = bits == 5 ? g : g % 4 * 2;
    __m256i high = load(p + 256 + (bits == 5 ? 0 : 64 * (g / 4)));
    high = at <= 4 ? _mm256_slli_epi16(high, 4 - at) : _mm256_srli_epi16(high, at - 4);
    return _mm256_or_si256(w, _mm256_and_si256(high, _mm256_set1_epi8(bits == 5 ? 0x10 : 0x30)));
}

typedef struct {
    __m256 d, m;
    __m256i sub[2];
} scales;

/* QN_SCALE_K: the 6-bit scales of 8 blocks, then the mins. */
typedef struct {
    uint8_t six[16][16];
} header;

INLINE void load_header(qn_dtype dtype, const uint8_t *p, header *h)
{
    if (qn_layout_scale(dtype) != QN_SCALE_K) return;
    const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15), top = _mm256_set1_epi8(48);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m256i a = load(p + 64 + 32 * i), b = load(p + 128 + 32 * i), c = load(p + 192 + 32 * i);
        __m256i a_top = _mm256_and_si256(_mm256_srli_epi16(a, 2), top),
                b_top = _mm256_and_si256(_mm256_srli_epi16(b, 2), top);
        _mm256_storeu_si256((void *)h->six[2 * i], _mm256_and_si256(a, six));
        _mm256_storeu_si256((void *)h->six[8 + 2 * i], _mm256_and_si256(b, six));
        _mm256_storeu_si256((void *)h->six[4 + 2 * i], _mm256_or_si256(_mm256_and_si256(c, four), a_top));
        _mm256_storeu_si256((void *)h->six[12 + 2 * i],
                            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), four), b_top));
    }
}

INLINE __m256 small_ints(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)));
}

/* p: the chunk's header. */
INLINE scales packed_scales(qn_dtype dtype, const uint8_t *p, const header *h, int i_block, int side)
{
    scales s = {0};
    switch (qn_layout_scale(dtype)) {
    case QN_SCALE_SYM:
        s.d = load_f16x8(p + 32 * i_block + 16 * side);
        break;
    case QN_SCALE_MIN:
        s.d = load_f16x8(p + 64 * i_block + 16 * side);
        s.m = load_f16x8(p + 64 * i_block + 32 + 16 * side);
        break;
    case QN_SCALE_K:
        s.d = _mm256_mul_ps(load_f16x8(p + 16 * side), small_ints(h->six[i_block] + 8 * side));
        s.m = _mm256_mul_ps(load_f16x8(p + 32 + 16 * side), small_ints(h->six[8 + i_block] + 8 * side));
        s.m = _mm256_xor_ps(s.m, _mm256_set1_ps(-0.0f));
        break;
    default:
        s.d = load_f16x8(p + 16 * side);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            s.sub[half] = _mm256_cvtepi8_epi32(
                _mm_loadl_epi64((const void *)(p + 64 + 16 * (2 * i_block + half) + 8 * side)));
    }
    return s;
}

#endif
