/* Codes and scales of one side (8 of 16 outputs) of a packed block, in registers of AVX2. The layout is
 * described in pack.h. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_CODES_AVX2_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_CODES_AVX2_H

#include <immintrin.h>

#include "device/cpu/kernels/matmul/pack.h"

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

/* Those bits of high that start at bit `at` of each byte or'ed into w at bit `to`, where mask has them. */
INLINE __m256i add_high(__m256i w, __m256i high, int at, int to, int mask)
{
    high = at <= to ? _mm256_slli_epi16(high, to - at) : _mm256_srli_epi16(high, at - to);
    return _mm256_or_si256(w, _mm256_and_si256(high, _mm256_set1_epi8((char)mask)));
}

/* Codes of k = 4 g .. 4 g + 3 as unsigned bytes, but signed ones for 8 bits. p: the block's codes + 32 *
 * side. */
INLINE __m256i code_vector(qn_layout layout, source from, const uint8_t *p, int g)
{
    int bits = qn_layout_bits(layout);
    if (from == EXPANDED) return load(p + 64 * g);
    if (bits < 4) {
        __m256i w =
            _mm256_and_si256(_mm256_srli_epi16(load(p + 64 * (g / 4)), g % 4 * 2), _mm256_set1_epi8(3));
        return bits == 2 ? w : add_high(w, load(p + 128), g, 2, 4);
    }
    if (bits == 8 && !qn_layout_table(layout))
        return _mm256_xor_si256(load(p + 64 * g), _mm256_set1_epi8((char)0x80));
    __m256i w = load(p + 64 * (g % 4));
    w = _mm256_and_si256(g < 4 ? w : _mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
    if (bits == 4) return w;
    if (bits == 5) return add_high(w, load(p + 256), g, 4, 0x10);
    if (bits == 6) return add_high(w, load(p + 256 + 64 * (g / 4)), g % 4 * 2, 4, 0x30);
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)qn_layout_table(layout))), w);
}

/* m: of types with a scale for each half that of the second. */
typedef struct {
    __m256 d, m;
} scales;

/* What the blocks of a chunk share. */
typedef struct {
    uint8_t six[16][16]; /* QN_SCALE_K: the 6-bit scales of 8 blocks, then the mins */
    /* QN_SCALE_GROUP */
    int shift;                    /* group = block >> shift */
    __m256 group[QN_CHUNK][2][2]; /* scale and bias of the sides */
} header;

INLINE __m256 load_half_x8(qn_dtype type, const void *p)
{
    if (type == QN_DTYPE_F16) return load_f16x8(p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}

/* own: the weight's type, see qn_layout_header_bytes. */
INLINE void load_header(qn_layout layout, qn_dtype own, const uint8_t *p, int in_chunk, header *h)
{
    if (qn_layout_scale(layout) == QN_SCALE_GROUP) {
        qn_affine a = qn_affine_of(own);
        h->shift = a.group == 32 ? 0 : a.group == 64 ? 1 : 2;
        for (int i = 0; i < in_chunk >> h->shift; i++) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                h->group[i][j / 2][j % 2] =
                    a.scale == QN_DTYPE_F32
                        ? _mm256_loadu_ps((const float *)(const void *)(p + 128 * i + 32 * j))
                        : load_half_x8(a.scale, p + 64 * i + 16 * j);
        }
    }
    if (qn_layout_scale(layout) != QN_SCALE_K) return;
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

INLINE __m256 signed_ints(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}

INLINE __m256 load_e8m0_half(const void *p)
{
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p)), one = _mm256_set1_epi32(1);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, one)));
}

INLINE __m256 load_e4m3_half(const void *p)
{
    __m128i s = _mm_cvtepu8_epi16(_mm_loadl_epi64(p)), low = _mm_set1_epi16(0x7f);
    __m128i bits = _mm_and_si128(s, low);
    __m128i half = _mm_or_si128(_mm_slli_epi16(bits, 7), _mm_slli_epi16(_mm_andnot_si128(low, s), 8));
    /* The one NaN becomes that of f16: all bits of the exponent. */
    half = _mm_or_si128(half, _mm_and_si128(_mm_cmpeq_epi16(bits, low), _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(128));
}

/* p: the chunk's header. */
INLINE scales packed_scales(qn_layout layout, const uint8_t *p, const header *h, int i_block, int side)
{
    scales s = {0};
    switch (qn_layout_scale(layout)) {
    case QN_SCALE_SYM:
        s.d = qn_layout_number(layout) == QN_NUMBER_E8M0 ? load_e8m0_half(p + 16 * i_block + 8 * side)
                                                         : load_f16x8(p + 32 * i_block + 16 * side);
        break;
    case QN_SCALE_HALF:
        s.d = load_e4m3_half(p + 32 * i_block + 8 * side);
        s.m = load_e4m3_half(p + 32 * i_block + 16 + 8 * side);
        break;
    case QN_SCALE_GROUP:
        s.d = h->group[i_block >> h->shift][0][side];
        s.m = h->group[i_block >> h->shift][1][side];
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
        s.d = _mm256_mul_ps(load_f16x8(p + 16 * side), signed_ints(p + 64 + 32 * i_block + 8 * side));
        s.m = _mm256_mul_ps(load_f16x8(p + 16 * side), signed_ints(p + 80 + 32 * i_block + 8 * side));
    }
    return s;
}

#endif
