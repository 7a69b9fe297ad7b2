/* 16 floats as one value in two 256-bit registers. The names and their meaning are those of vec_scalar.h;
 * v_fma rounds once. */
#ifndef QN_DEVICE_CPU_KERNELS_VEC_AVX2_H
#define QN_DEVICE_CPU_KERNELS_VEC_AVX2_H

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    __m256 l, h;
} vf;
typedef vf vm; /* per lane all ones or zero */

enum { V_TILE_ROWS = 6 };

static inline int v_tile_vecs(int rows)
{
    return rows > 2 ? 1 : rows > 1 ? 2 : 4;
}

static inline vf v_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline vf v_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.l);
    _mm256_storeu_ps(p + 8, x.h);
}

/* Past the caches; p lies at a multiple of 64 bytes. What was stored so is seen by others after v_stream_end.
 */
static inline void v_stream(float *p, vf x)
{
    _mm256_stream_ps(p, x.l);
    _mm256_stream_ps(p + 8, x.h);
}

static inline void v_stream_end(void)
{
    _mm_sfence();
}

enum { V_CHAIN = 3 }; /* vectors that chain.body.h holds at a time: with their operands, 12 registers */

static inline vm v_lanes(int begin, int end)
{
    __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), hi = _mm256_add_epi32(lo, _mm256_set1_epi32(8));
    __m256i b = _mm256_set1_epi32(begin), e = _mm256_set1_epi32(end);
    lo = _mm256_andnot_si256(_mm256_cmpgt_epi32(b, lo), _mm256_cmpgt_epi32(e, lo));
    hi = _mm256_andnot_si256(_mm256_cmpgt_epi32(b, hi), _mm256_cmpgt_epi32(e, hi));
    return (vm){_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}

static inline vf v_load_n(const float *p, int n)
{
    vm m = v_lanes(0, n);
    return (vf){_mm256_maskload_ps(p, _mm256_castps_si256(m.l)),
                _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.h))};
}

static inline void v_store_n(float *p, vf x, int n)
{
    vm m = v_lanes(0, n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.l), x.l);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.h), x.h);
}

static inline vf v_add(vf x, vf y)
{
    return (vf){_mm256_add_ps(x.l, y.l), _mm256_add_ps(x.h, y.h)};
}

static inline vf v_sub(vf x, vf y)
{
    return (vf){_mm256_sub_ps(x.l, y.l), _mm256_sub_ps(x.h, y.h)};
}

static inline vf v_mul(vf x, vf y)
{
    return (vf){_mm256_mul_ps(x.l, y.l), _mm256_mul_ps(x.h, y.h)};
}

static inline vf v_div(vf x, vf y)
{
    return (vf){_mm256_div_ps(x.l, y.l), _mm256_div_ps(x.h, y.h)};
}

static inline vf v_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.l, y.l, z.l), _mm256_fmadd_ps(x.h, y.h, z.h)};
}

static inline vf v_fnma(vf x, vf y, vf z)
{
    return (vf){_mm256_fnmadd_ps(x.l, y.l, z.l), _mm256_fnmadd_ps(x.h, y.h, z.h)};
}

static inline vf v_sqrt(vf x)
{
    return (vf){_mm256_sqrt_ps(x.l), _mm256_sqrt_ps(x.h)};
}

static inline vf v_max(vf x, vf y)
{
    return (vf){_mm256_max_ps(x.l, y.l), _mm256_max_ps(x.h, y.h)};
}

static inline vf v_min(vf x, vf y)
{
    return (vf){_mm256_min_ps(x.l, y.l), _mm256_min_ps(x.h, y.h)};
}

static inline vm v_lt(vf x, vf y)
{
    return (vm){_mm256_cmp_ps(x.l, y.l, _CMP_LT_OQ), _mm256_cmp_ps(x.h, y.h, _CMP_LT_OQ)};
}

static inline vm v_eq(vf x, vf y)
{
    return (vm){_mm256_cmp_ps(x.l, y.l, _CMP_EQ_OQ), _mm256_cmp_ps(x.h, y.h, _CMP_EQ_OQ)};
}

static inline vm v_is_nan(vf x)
{
    return (vm){_mm256_cmp_ps(x.l, x.l, _CMP_UNORD_Q), _mm256_cmp_ps(x.h, x.h, _CMP_UNORD_Q)};
}

static inline vm v_or(vm x, vm y)
{
    return (vm){_mm256_or_ps(x.l, y.l), _mm256_or_ps(x.h, y.h)};
}

static inline vm v_not(vm x)
{
    __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return (vm){_mm256_xor_ps(x.l, ones), _mm256_xor_ps(x.h, ones)};
}

static inline int v_any(vm m)
{
    return _mm256_movemask_ps(_mm256_or_ps(m.l, m.h)) != 0;
}

static inline vf v_select(vm m, vf x, vf y)
{
    return (vf){_mm256_blendv_ps(y.l, x.l, m.l), _mm256_blendv_ps(y.h, x.h, m.h)};
}

static inline vf v_neg(vf x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_xor_ps(x.l, sign), _mm256_xor_ps(x.h, sign)};
}

static inline vf v_abs(vf x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, x.l), _mm256_andnot_ps(sign, x.h)};
}

static inline vf v_copysign(vf x, vf y)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    vf a = v_abs(x);
    return (vf){_mm256_or_ps(a.l, _mm256_and_ps(sign, y.l)), _mm256_or_ps(a.h, _mm256_and_ps(sign, y.h))};
}

static inline vf v_round(vf x)
{
    return (vf){_mm256_round_ps(x.l, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm256_round_ps(x.h, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

static inline __m256 v_scale_8(__m256 x, __m256 n)
{
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_sub_epi32(i, half);
    half = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    rest = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(half)), _mm256_castsi256_ps(rest));
}

static inline vf v_scale(vf x, vf n)
{
    return (vf){v_scale_8(x.l, n.l), v_scale_8(x.h, n.h)};
}

static inline __m256 v_scale_normal_8(__m256 x, __m256 n)
{
    __m256i up = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23); /* of NaN: 0 */
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), up));
}

static inline vf v_scale_normal(vf x, vf n)
{
    return (vf){v_scale_normal_8(x.l, n.l), v_scale_normal_8(x.h, n.h)};
}

static inline __m256 v_split_8(__m256 x, __m256 *e)
{
    __m256i bits = _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x3f3504f3));
    *e = _mm256_cvtepi32_ps(_mm256_srai_epi32(bits, 23));
    bits = _mm256_and_si256(bits, _mm256_set1_epi32(0x007fffff));
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f3504f3)));
}

static inline vf v_split(vf x, vf *e)
{
    vf m;
    m.l = v_split_8(x.l, &e->l);
    m.h = v_split_8(x.h, &e->h);
    return m;
}

static inline float v_sum(vf x)
{
    __m256 o = _mm256_add_ps(x.l, x.h);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(o), _mm256_extractf128_ps(o, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float v_first(vf x)
{
    return _mm256_cvtss_f32(x.l);
}

static inline float v_largest(vf x)
{
    if (v_any(v_is_nan(x))) return NAN;
    __m256 o = _mm256_max_ps(x.l, x.h);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(o), _mm256_extractf128_ps(o, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* In each half of a register first, then the 64-bit quarters in order. */
static inline __m256 v_in_order(__m256 x)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
}

static inline void v_unzip(vf x, vf y, vf *even, vf *odd)
{
    *even =
        (vf){v_in_order(_mm256_shuffle_ps(x.l, x.h, 0x88)), v_in_order(_mm256_shuffle_ps(y.l, y.h, 0x88))};
    *odd = (vf){v_in_order(_mm256_shuffle_ps(x.l, x.h, 0xdd)), v_in_order(_mm256_shuffle_ps(y.l, y.h, 0xdd))};
}

static inline void v_zip(vf even, vf odd, vf *x, vf *y)
{
    __m256 a = _mm256_unpacklo_ps(even.l, odd.l), b = _mm256_unpackhi_ps(even.l, odd.l);
    __m256 c = _mm256_unpacklo_ps(even.h, odd.h), d = _mm256_unpackhi_ps(even.h, odd.h);
    *x = (vf){_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)};
    *y = (vf){_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31)};
}

static inline vf v_load_f16(const uint16_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8)))};
}

static inline void v_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.l, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(x.h, _MM_FROUND_TO_NEAREST_INT));
}

static inline __m256 v_load_bf16_8(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

static inline vf v_load_bf16(const uint16_t *p)
{
    return (vf){v_load_bf16_8(p), v_load_bf16_8(p + 8)};
}

static inline vf v_load_bits(const uint16_t *p, int left, int right)
{
    __m256i x = _mm256_loadu_si256((const void *)p);
    x = _mm256_srai_epi16(_mm256_slli_epi16(x, left), right);
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(x))),
                _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(x, 1)))};
}

static inline __m256i v_bf16_8(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(r, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
}

static inline void v_store_bf16(uint16_t *p, vf x)
{
    __m256i both = _mm256_packus_epi32(v_bf16_8(x.l), v_bf16_8(x.h));
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(both, 0xd8));
}

#endif
