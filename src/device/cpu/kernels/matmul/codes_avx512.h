/* Codes and scales of one packed block, in registers of AVX-512. The layout is described in pack.h. */
#ifndef QN_DEVICE_CPU_KERNELS_MATMUL_CODES_AVX512_H
#define QN_DEVICE_CPU_KERNELS_MATMUL_CODES_AVX512_H

#include <immintrin.h>

#include "device/cpu/kernels/matmul/pack.h"

INLINE __m512 load_f16x16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* Those bits of high that start at bit `at` of each byte or'ed into w at bit `to`, where mask has them. */
INLINE __m512i add_high(__m512i w, __m512i high, int at, int to, int mask)
{
    __m512i moved = at <= to ? _mm512_slli_epi16(high, (unsigned)(to - at))
                             : _mm512_srli_epi16(high, (unsigned)(at - to));
    return _mm512_ternarylogic_epi32(w, moved, _mm512_set1_epi8((char)mask), 0xf8); /* w | (moved & mask) */
}

INLINE void load_codes(qn_layout layout, const uint8_t *p, __m512i w[8])
{
    int bits = qn_layout_bits(layout);
    if (bits == 8 && !qn_layout_table(layout)) {
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = _mm512_loadu_si512(p + 64 * g);
        return;
    }
    if (bits < 4) {
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++)
            w[g] = _mm512_and_si512(
                _mm512_srli_epi16(_mm512_loadu_si512(p + 64 * (g / 4)), (unsigned)(g % 4 * 2)),
                _mm512_set1_epi8(3));
    } else {
        const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512i v = _mm512_loadu_si512(p + 64 * i);
            w[i] = _mm512_and_si512(v, low);
            w[i + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        }
    }
    if (qn_layout_table(layout)) {
        __m512i values =
            _mm512_add_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)qn_layout_table(layout))),
                            _mm512_set1_epi8((char)128));
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = _mm512_shuffle_epi8(values, w[g]);
    } else if (bits == 3 || bits == 5) {
        __m512i high = _mm512_loadu_si512(p + (bits == 5 ? 256 : 128));
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = add_high(w[g], high, g, bits - 1, 1 << (bits - 1));
    } else if (bits == 6) {
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++)
            w[g] = add_high(w[g], _mm512_loadu_si512(p + 256 + 64 * (g / 4)), g % 4 * 2, 4, 0x30);
    }
}

/* m: of types with a scale for each half that of the second. */
typedef struct {
    __m512 d, m;
} scales;

/* What the blocks of a chunk share. */
typedef struct {
    __m512 d, m;
    uint8_t six[16][16]; /* QN_SCALE_K: scales of 8 blocks, then mins */
    /* QN_SCALE_GROUP */
    int shift; /* group = block >> shift */
    __m512 group[QN_CHUNK][2];
} header;

INLINE __m512 load_half_x16(qn_dtype type, const void *p)
{
    if (type == QN_DTYPE_F16) return load_f16x16(p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}

INLINE __m512 signed_ints(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}

/* own: the weight's type, see qn_layout_header_bytes. */
INLINE void load_header(qn_layout layout, qn_dtype own, const uint8_t *p, int in_chunk, header *h)
{
    qn_scale_kind kind = qn_layout_scale(layout);
    if (kind == QN_SCALE_GROUP) {
        qn_affine a = qn_affine_of(own);
        h->shift = a.group == 32 ? 0 : a.group == 64 ? 1 : 2;
        for (int i = 0; i < in_chunk >> h->shift; i++) {
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++)
                h->group[i][j] = a.scale == QN_DTYPE_F32 ? _mm512_loadu_ps(p + 128 * i + 64 * j)
                                                         : load_half_x16(a.scale, p + 64 * i + 32 * j);
        }
    }
    if (kind != QN_SCALE_K && kind != QN_SCALE_SUB) return;
    h->d = load_f16x16(p);
    if (kind == QN_SCALE_SUB) {
        for (int i = 0; i < in_chunk; i++) {
            h->group[i][0] = _mm512_mul_ps(h->d, signed_ints(p + 64 + 32 * i));
            h->group[i][1] = _mm512_mul_ps(h->d, signed_ints(p + 80 + 32 * i));
        }
        return;
    }
    h->m = _mm512_xor_ps(load_f16x16(p + 32), _mm512_set1_ps(-0.0f));
    const __m512i six = _mm512_set1_epi8(63), four = _mm512_set1_epi8(15), top = _mm512_set1_epi8(48);
    __m512i a = _mm512_loadu_si512(p + 64), b = _mm512_loadu_si512(p + 128), c = _mm512_loadu_si512(p + 192);
    _mm512_storeu_si512(h->six[0], _mm512_and_si512(a, six));
    _mm512_storeu_si512(h->six[8], _mm512_and_si512(b, six));
    _mm512_storeu_si512(
        h->six[4], _mm512_ternarylogic_epi32(_mm512_and_si512(c, four), _mm512_srli_epi16(a, 2), top, 0xf8));
    _mm512_storeu_si512(h->six[12], _mm512_ternarylogic_epi32(_mm512_and_si512(_mm512_srli_epi16(c, 4), four),
                                                              _mm512_srli_epi16(b, 2), top, 0xf8));
}

INLINE __m512 small_ints(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p)));
}

INLINE __m512 load_e8m0_half(const void *p)
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p)), one = _mm512_set1_epi32(1);
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmple_epi32_mask(e, one), small));
}

INLINE __m512 load_e4m3_half(const void *p)
{
    __m256i s = _mm256_cvtepu8_epi16(_mm_loadu_si128(p)), low = _mm256_set1_epi16(0x7f);
    __m256i bits = _mm256_and_si256(s, low);
    __m256i half =
        _mm256_or_si256(_mm256_slli_epi16(bits, 7), _mm256_slli_epi16(_mm256_andnot_si256(low, s), 8));
    /* The one NaN becomes that of f16: all bits of the exponent. */
    half = _mm256_or_si256(half, _mm256_and_si256(_mm256_cmpeq_epi16(bits, low), _mm256_set1_epi16(0x7e00)));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(128));
}

INLINE scales load_scales(qn_layout layout, const uint8_t *p, const header *h, int i_block)
{
    scales s = {0};
    switch (qn_layout_scale(layout)) {
    case QN_SCALE_SYM:
        s.d = qn_layout_number(layout) == QN_NUMBER_E8M0 ? load_e8m0_half(p + 16 * i_block)
                                                         : load_f16x16(p + 32 * i_block);
        break;
    case QN_SCALE_HALF:
        s.d = load_e4m3_half(p + 32 * i_block);
        s.m = load_e4m3_half(p + 32 * i_block + 16);
        break;
    case QN_SCALE_GROUP:
        s.d = h->group[i_block >> h->shift][0];
        s.m = h->group[i_block >> h->shift][1];
        break;
    case QN_SCALE_MIN:
        s.d = load_f16x16(p + 64 * i_block);
        s.m = load_f16x16(p + 64 * i_block + 32);
        break;
    case QN_SCALE_K:
        s.d = _mm512_mul_ps(h->d, small_ints(h->six[i_block]));
        s.m = _mm512_mul_ps(h->m, small_ints(h->six[8 + i_block]));
        break;
    default:
        s.d = h->group[i_block][0];
        s.m = h->group[i_block][1];
    }
    return s;
}

#endif
