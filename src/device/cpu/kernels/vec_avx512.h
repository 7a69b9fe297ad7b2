/* 16 floats as one value in one 512-bit register. The names and their meaning are those of vec_scalar.h;
 * v_fma rounds once. */
#ifndef QN_DEVICE_CPU_KERNELS_VEC_AVX512_H
#define QN_DEVICE_CPU_KERNELS_VEC_AVX512_H

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef __m512 vf;
typedef __mmask16 vm;

enum { V_TILE_ROWS = 8 };

static inline int v_tile_vecs(int rows)
{
    return rows > 4 ? 2 : rows > 2 ? 4 : 8;
}

static inline vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void v_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

/* Past the caches; p lies at a multiple of 64 bytes. What was stored so is seen by others after v_stream_end.
 */
static inline void v_stream(float *p, vf x)
{
    _mm512_stream_ps(p, x);
}

static inline void v_stream_end(void)
{
    _mm_sfence();
}

enum { V_CHAIN = 8 }; /* vectors that chain.body.h holds at a time */

static inline vm v_first_n(int n)
{
    return (vm)((1u << n) - 1);
}

static inline vf v_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(v_first_n(n), p);
}

static inline void v_store_n(float *p, vf x, int n)
{
    _mm512_mask_storeu_ps(p, v_first_n(n), x);
}

static inline vf v_add(vf x, vf y)
{
    return _mm512_add_ps(x, y);
}

static inline vf v_sub(vf x, vf y)
{
    return _mm512_sub_ps(x, y);
}

static inline vf v_mul(vf x, vf y)
{
    return _mm512_mul_ps(x, y);
}

static inline vf v_div(vf x, vf y)
{
    return _mm512_div_ps(x, y);
}

static inline vf v_fma(vf x, vf y, vf z)
{
    return _mm512_fmadd_ps(x, y, z);
}

static inline vf v_fnma(vf x, vf y, vf z)
{
    return _mm512_fnmadd_ps(x, y, z);
}

static inline vf v_sqrt(vf x)
{
    return _mm512_sqrt_ps(x);
}

static inline vf v_max(vf x, vf y)
{
    return _mm512_max_ps(x, y);
}

static inline vf v_min(vf x, vf y)
{
    return _mm512_min_ps(x, y);
}

static inline vm v_lt(vf x, vf y)
{
    return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ);
}

static inline vm v_eq(vf x, vf y)
{
    return _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ);
}

static inline vm v_is_nan(vf x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}

static inline vm v_lanes(int begin, int end)
{
    return (vm)(v_first_n(end) & ~v_first_n(begin));
}

static inline vm v_or(vm x, vm y)
{
    return (vm)(x | y);
}

static inline vm v_not(vm x)
{
    return (vm)~x;
}

static inline int v_any(vm m)
{
    return m != 0;
}

static inline vf v_select(vm m, vf x, vf y)
{
    return _mm512_mask_blend_ps(m, y, x);
}

static inline vf v_neg(vf x)
{
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

static inline vf v_abs(vf x)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}

static inline vf v_copysign(vf x, vf y)
{
    return _mm512_or_ps(v_abs(x), _mm512_and_ps(_mm512_set1_ps(-0.0f), y));
}

static inline vf v_round(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf v_scale(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}

static inline vf v_scale_normal(vf x, vf n)
{
    return v_scale(x, n);
}

static inline vf v_split(vf x, vf *e)
{
    __m512i bits = _mm512_sub_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x3f3504f3));
    *e = _mm512_cvtepi32_ps(_mm512_srai_epi32(bits, 23));
    bits = _mm512_and_si512(bits, _mm512_set1_epi32(0x007fffff));
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f3504f3)));
}

static inline float v_sum(vf x)
{
    __m256 o = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(o), _mm256_extractf128_ps(o, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float v_first(vf x)
{
    return _mm512_cvtss_f32(x);
}

static inline float v_largest(vf x)
{
    return v_any(v_is_nan(x)) ? NAN : _mm512_reduce_max_ps(x);
}

static inline void v_unzip(vf x, vf y, vf *even, vf *odd)
{
    __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(x, e, y);
    *odd = _mm512_permutex2var_ps(x, _mm512_add_epi32(e, _mm512_set1_epi32(1)), y);
}

static inline void v_zip(vf even, vf odd, vf *x, vf *y)
{
    __m512i l = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *x = _mm512_permutex2var_ps(even, l, odd);
    *y = _mm512_permutex2var_ps(even, _mm512_add_epi32(l, _mm512_set1_epi32(8)), odd);
}

static inline vf v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

static inline void v_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline vf v_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline vf v_load_bits(const uint16_t *p, int left, int right)
{
    __m256i x = _mm256_loadu_si256((const void *)p);
    x = _mm256_srai_epi16(_mm256_slli_epi16(x, left), right);
    return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(x));
}

/* In integers: the chip's own conversion takes subnormals for zero. */
static inline void v_store_bf16(uint16_t *p, vf x)
{
    __m512i u = _mm512_castps_si512(x), top = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    r = _mm512_mask_or_epi32(r, v_is_nan(x), top, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(r));
}

#endif
