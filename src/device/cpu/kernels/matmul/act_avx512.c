/* Activations into their packed form with AVX-512: the operations of act_scalar.c. */
#include "device/cpu/kernels/vec_avx512.h"

#include "device/cpu/kernels/matmul/pack.h"
#include "device/cpu/kernels/sets.h"

static inline void act_block(int planes, const float *x, uint8_t *to)
{
    const __m512i sign_off = _mm512_set1_epi32(0x7fffffff);
    __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    __m512i largest = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), sign_off),
                                       _mm512_and_si512(_mm512_castps_si512(b), sign_off));
    uint32_t bits = _mm512_reduce_max_epu32(largest);
    float most, scale, limit = planes == 1 ? QN_ACT_I8_MAX : QN_ACT_I8X2_MAX;
    memcpy(&most, &bits, 4);
    __m512i qa = _mm512_setzero_si512(), qb = qa;
    if (bits >= 0x7f800000) {
        uint32_t nan = 0x7fc00000;
        memcpy(&scale, &nan, 4);
    } else if (most < QN_ACT_TINY) {
        scale = 0;
    } else {
        __m512 inverse = _mm512_set1_ps(limit / most);
        scale = most / limit;
        qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
        qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    }
    if (planes == 1) {
        _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(qa));
        _mm_storeu_si128((void *)(to + 16), _mm512_cvtepi32_epi8(qb));
    } else {
        const __m512i round = _mm512_set1_epi32(64);
        __m512i ha = _mm512_srai_epi32(_mm512_add_epi32(qa, round), 7),
                hb = _mm512_srai_epi32(_mm512_add_epi32(qb, round), 7);
        _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(ha));
        _mm_storeu_si128((void *)(to + 16), _mm512_cvtepi32_epi8(hb));
        _mm_storeu_si128((void *)(to + 32),
                         _mm512_cvtepi32_epi8(_mm512_sub_epi32(qa, _mm512_slli_epi32(ha, 7))));
        _mm_storeu_si128((void *)(to + 48),
                         _mm512_cvtepi32_epi8(_mm512_sub_epi32(qb, _mm512_slli_epi32(hb, 7))));
    }
    int32_t half[2] = {_mm512_reduce_add_epi32(qa), _mm512_reduce_add_epi32(qb)};
    float sum = scale * (float)(half[0] + half[1]);
    int32_t zero[2] = {-128 * (half[0] + half[1]), -128 * half[1]};
    to += QN_BLOCK * planes;
    memcpy(to, &scale, 4);
    memcpy(to + 4, &sum, 4);
    memcpy(to + 8, zero, 8);
}

#include "device/cpu/kernels/matmul/act.body.h"

void qn_act_pack_avx512(qn_act act, int64_t n_in, const float *x, void *out)
{
    act_pack(act, n_in, x, out);
}
