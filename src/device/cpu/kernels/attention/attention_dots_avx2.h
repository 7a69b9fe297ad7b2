/* Attention over Q8_0 and Q4_0 pages in integers of 16 bits: vpmaddwd and an addition, four fifths of the
 * instructions that f32 takes, and no page is widened in memory first. */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_AVX2_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_DOTS_AVX2_H

#define DOTS_BF16 0
#define DOTS_BYTES 0
enum { DOTS_ROWS = V_TILE_ROWS, DOTS_ROWS_V4 = 3 };

typedef struct {
    __m256i l, h;
} vi, va, vb;

/* As many as leave room for operands in 16 registers. */
static inline int dots_vecs(int rows)
{
    return rows <= 2 ? 2 : 1;
}

static inline vi dots_zero(void)
{
    return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

static inline vi dots_load_sums(const float *p)
{
    return (vi){_mm256_loadu_si256((const void *)p), _mm256_loadu_si256((const void *)(p + 8))};
}

static inline void dots_store_sums(float *p, vi sums)
{
    _mm256_storeu_si256((void *)p, sums.l);
    _mm256_storeu_si256((void *)(p + 8), sums.h);
}

static inline vf dots_to_f32(vi sums)
{
    return (vf){_mm256_cvtepi32_ps(sums.l), _mm256_cvtepi32_ps(sums.h)};
}

static inline __m256i dots_widen(const char *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p));
}

static inline __attribute__((always_inline)) void dots_load(const char *p, int64_t next, attend_form form,
                                                            vb *b)
{
    if (form == FORM_Q8) {
        b[0] = (vb){dots_widen(p), dots_widen(p + 16)};
        return;
    }
    /* 16 bytes, two a lane, stand for both halves. */
    const vb x = {dots_widen(p), dots_widen(p + 16)};
    const __m256i high = _mm256_set1_epi16(-16);
    b[0] = (vb){_mm256_srai_epi16(_mm256_slli_epi16(x.l, 12), 8),
                _mm256_srai_epi16(_mm256_slli_epi16(x.h, 12), 8)};
    b[1] = (vb){_mm256_and_si256(x.l, high), _mm256_and_si256(x.h, high)};
}

static inline va dots_spread(const void *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    const __m256i x = _mm256_set1_epi32(pair);
    return (va){x, x};
}

static inline vi dots_add(vi sum, vb b, va x, attend_form form)
{
#if defined(__AVXVNNI__)
    sum.l = _mm256_dpwssd_avx_epi32(sum.l, b.l, x.l);
    sum.h = _mm256_dpwssd_avx_epi32(sum.h, b.h, x.h);
    __asm__("" : "+x"(sum.l), "+x"(sum.h));
#else
    /* Into the sum's own register: gcc gives it a new one and copies it back. */
    __asm__("vpaddd %1, %0, %0" : "+x"(sum.l) : "x"(_mm256_madd_epi16(b.l, x.l)));
    __asm__("vpaddd %1, %0, %0" : "+x"(sum.h) : "x"(_mm256_madd_epi16(b.h, x.h)));
#endif
    return sum;
}

static inline __m256i dots_rounded(vf x)
{
    const __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32(x.l), _mm256_cvtps_epi32(x.h));
    return _mm256_permute4x64_epi64(both, 0xd8);
}

static inline void dots_store_16(void *out, vf x)
{
    _mm256_storeu_si256(out, dots_rounded(x));
}

static inline void dots_store_32(void *out, vf x, vf y, int wide)
{
    _mm256_storeu_si256(out, dots_rounded(x));
    _mm256_storeu_si256((void *)((char *)out + 32), dots_rounded(y));
}

static inline vf dots_weighted(vf p, vf scale)
{
    return v_select(v_eq(p, v_set1(0)), v_set1(0), v_mul(p, scale));
}

static inline vf dots_max_bits(vf x, vf y)
{
    return (vf){_mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(x.l), _mm256_castps_si256(y.l))),
                _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(x.h), _mm256_castps_si256(y.h)))};
}

static inline uint32_t dots_largest_bits(vf x)
{
    uint32_t all[16], most = 0;
    v_store((float *)all, x);
    for (int i = 0; i < 16; i++)
        if (all[i] > most) most = all[i];
    return most;
}

#include "device/cpu/kernels/attention/attention_dots.body.h"

#endif
