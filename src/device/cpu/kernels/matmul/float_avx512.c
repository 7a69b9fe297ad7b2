/* Unpacking and f32, f16, bf16 products with AVX-512. */
#include "device/cpu/kernels/vec_avx512.h"

#include "device/cpu/kernels/matmul/codes_avx512.h"
#include "device/cpu/kernels/sets.h"

/* bf16 products are bound by loads: two panels share those of x. */
enum { FLOAT_ROWS = 12, FLOAT_FEW = 4, FLOAT_PANELS = 2, FLOAT_REST = 0, FLOAT_DOTS = 1 };

INLINE vf pair_even(vf pair)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pair), 16));
}

INLINE vf pair_odd(vf pair)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(pair), _mm512_set1_epi32((int)0xffff0000)));
}

INLINE vf dot_pair(vf w, vf x, vf acc)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}

INLINE void unpack_layout(qn_layout layout, qn_dtype own, int64_t n_in, const uint8_t *p, float *out)
{
    int64_t n_blocks = n_in / QN_BLOCK;
    for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
        int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
        const uint8_t *codes = p + qn_layout_header_bytes(layout, own, in_chunk);
        header h;
        load_header(layout, own, p, in_chunk, &h);
        for (int i = 0; i < in_chunk;
             i++, codes += qn_layout_code_bytes(layout), out += QN_BLOCK * QN_PANEL) {
            __m512i w[8];
            load_codes(layout, codes, w);
            scales s = load_scales(layout, p, &h, i);
#pragma GCC unroll 8
            for (int g = 0; g < 8; g++) {
                __m512 d = qn_layout_by_halves(layout) && g >= 4 ? s.m : s.d;
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    __m512i q =
                        _mm512_and_si512(_mm512_srli_epi32(w[g], (unsigned)(8 * j)), _mm512_set1_epi32(255));
                    q = _mm512_sub_epi32(q, _mm512_set1_epi32(qn_layout_zero(layout)));
                    __m512 v = _mm512_mul_ps(d, _mm512_cvtepi32_ps(q));
                    if (qn_layout_has_min(layout)) v = _mm512_add_ps(v, s.m);
                    _mm512_storeu_ps(out + (4 * g + j) * QN_PANEL, v);
                }
            }
        }
        p = codes;
    }
}

#include "device/cpu/kernels/matmul/unpack.body.h"

#include "device/cpu/kernels/matmul/float.body.h"

void qn_matmul_float_avx512(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    float_matmul(a, begin, end, scratch);
}

void qn_unpack_panel_avx512(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out)
{
    unpack_panel(dtype, n_in, panels, panel, out);
}
