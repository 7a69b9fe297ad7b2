/* Activations into their packed form with AVX2: the operations of act_scalar.c. */
#include "device/cpu/kernels/vec_avx2.h"

#include "device/cpu/kernels/matmul/pack.h"
#include "device/cpu/kernels/sets.h"

static inline int32_t sum_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

static inline uint32_t max_lanes(__m256i v)
{
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* 32 integers in [-128, 127] as bytes, in order. */
static inline __m256i to_bytes(const __m256i q[4])
{
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static inline void act_block(int planes, const float *x, uint8_t *to)
{
    __m256 v[4];
    __m256i q[4], largest = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        q[i] = _mm256_setzero_si256();
        largest = _mm256_max_epi32(
            largest, _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff)));
    }
    uint32_t bits = max_lanes(largest);
    float most, scale, limit = planes == 1 ? QN_ACT_I8_MAX : QN_ACT_I8X2_MAX;
    memcpy(&most, &bits, 4);
    if (bits >= 0x7f800000) {
        uint32_t nan = 0x7fc00000;
        memcpy(&scale, &nan, 4);
    } else if (most < QN_ACT_TINY) {
        scale = 0;
    } else {
        __m256 inverse = _mm256_set1_ps(limit / most);
        scale = most / limit;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    }
    int32_t half[2] = {sum_lanes(_mm256_add_epi32(q[0], q[1])), sum_lanes(_mm256_add_epi32(q[2], q[3]))};
    float sum = scale * (float)(half[0] + half[1]);
    int32_t zero[2] = {-128 * (half[0] + half[1]), -128 * half[1]};
    if (planes == 2) {
        __m256i high[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            high[i] = _mm256_srai_epi32(_mm256_add_epi32(q[i], _mm256_set1_epi32(64)), 7);
            q[i] = _mm256_sub_epi32(q[i], _mm256_slli_epi32(high[i], 7));
        }
        _mm256_storeu_si256((void *)to, to_bytes(high));
        to += QN_BLOCK;
    }
    _mm256_storeu_si256((void *)to, to_bytes(q));
    to += QN_BLOCK;
    memcpy(to, &scale, 4);
    memcpy(to + 4, &sum, 4);
    memcpy(to + 8, zero, 8);
}

#include "device/cpu/kernels/matmul/act.body.h"

void qn_act_pack_avx2(qn_act act, int64_t n_in, const float *x, void *out)
{
    act_pack(act, n_in, x, out);
}
