/* Matmul of int8 activations with AVX-512 VNNI.
 *
 * A lane is an output. Eight vectors w[g] of a block hold the codes of k = 4 g .. 4 g + 3 of 16 outputs as
 * unsigned bytes; four activations are broadcast against each. Few rows: codes go from the packed form
 * straight to registers, so that the weights stream once. More rows: a stretch of a panel is unpacked into
 * scratch, where it stays in the first-level cache for all rows. Both forms do the same operations per block,
 * so they give the same bits. */
#include <immintrin.h>
#include <string.h>

#include "kernels/codes_avx512.h"
#include "kernels/sets.h"
#include "kernels/vec_avx512.h"

enum {
    DIRECT_ROWS = 16,
    DIRECT_ROWS_2 = 8,
    TILE_ROWS = 12,
    TILE_ROWS_2 = 8,
    X_CACHE_BYTES = 768 << 10,
    PREFETCH_BYTES = 8192,
    FEW = 4
};

/* In scratch, codes of symmetric types are moved so that 128 stands for 0. */
#define STRETCH_TYPES(X) X(Q8_0) X(Q4_1) X(NVFP4)

static qn_dtype stretch_type(qn_dtype dtype)
{
    if (qn_layout_by_halves(dtype)) return QN_DTYPE_NVFP4;
    return qn_layout_has_min(dtype) ? QN_DTYPE_Q4_1 : QN_DTYPE_Q8_0;
}

#include "kernels/integer.body.h"

INLINE __m512i broadcast4(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

INLINE __m512 broadcast_f32(const void *p)
{
    float v;
    memcpy(&v, p, 4);
    return _mm512_set1_ps(v);
}

/* x: one qn_act_i8 (planes 1) or qn_act_i8x2 (planes 2). zero_shift: 7 - log2 of the code that stands for 0.
 */
INLINE __m512 add_block(qn_scale_kind kind, int planes, unsigned zero_shift, const __m512i w[8],
                        const scales *s, const uint8_t *x, __m512 acc)
{
    const uint8_t *meta = x + QN_BLOCK * planes; /* scale, sum, zero[2] */
    int by_halves = kind == QN_SCALE_SUB || kind == QN_SCALE_HALF;
    int with_min = kind != QN_SCALE_SYM && !by_halves;
    __m512i a = _mm512_setzero_si512(), b = a, high_a = a, high_b = a;
    if (!with_min) {
        a = broadcast4(meta + 8);
        if (zero_shift) a = _mm512_srai_epi32(a, zero_shift);
        if (by_halves) {
            b = broadcast4(meta + 12);
            if (zero_shift) b = _mm512_srai_epi32(b, zero_shift);
            a = _mm512_sub_epi32(a, b);
        }
    }
    const uint8_t *low = x + QN_BLOCK * (planes - 1);
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        if (planes == 2) {
            high_a = _mm512_dpbusd_epi32(high_a, w[g], broadcast4(x + 4 * g));
            high_b = _mm512_dpbusd_epi32(high_b, w[g + 4], broadcast4(x + 16 + 4 * g));
        }
        a = _mm512_dpbusd_epi32(a, w[g], broadcast4(low + 4 * g));
        b = _mm512_dpbusd_epi32(b, w[g + 4], broadcast4(low + 16 + 4 * g));
    }
    __m512i dot;
    if (by_halves && planes == 2) {
        a = _mm512_add_epi32(_mm512_slli_epi32(high_a, 7), a);
        b = _mm512_add_epi32(_mm512_slli_epi32(high_b, 7), b);
    }
    if (by_halves) {
        __m512 both = _mm512_mul_ps(_mm512_cvtepi32_ps(a), s->d);
        both = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), s->m, both);
        return _mm512_fmadd_ps(both, broadcast_f32(meta), acc);
    }
    dot = _mm512_add_epi32(a, b);
    if (planes == 2) dot = _mm512_add_epi32(dot, _mm512_slli_epi32(_mm512_add_epi32(high_a, high_b), 7));
    acc = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot), broadcast_f32(meta)), s->d, acc);
    return with_min ? _mm512_fmadd_ps(broadcast_f32(meta + 4), s->m, acc) : acc;
}

INLINE __mmask16 lanes(int64_t n)
{
    return n >= QN_PANEL ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* rows: a constant >= a->n_rows; what is missing is computed again from the last row and dropped. */
INLINE void direct(qn_dtype dtype, int planes, int rows, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    unsigned zero_shift = (unsigned)(8 - qn_layout_bits(dtype));
    int64_t n_blocks = a->n_in / QN_BLOCK;
    size_t row_bytes = qn_act_row_bytes(planes == 1 ? QN_ACT_I8 : QN_ACT_I8X2, a->n_in);
    const size_t code_bytes = qn_layout_code_bytes(dtype), ahead = rows * planes > FEW ? PREFETCH_BYTES : 0;
    const uint8_t *p = (const uint8_t *)a->panels + (size_t)begin * qn_pack_panel_bytes(a->dtype, a->n_in);
    for (int64_t panel = begin; panel < end; panel++) {
        const uint8_t *x[DIRECT_ROWS];
        __m512 acc[DIRECT_ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            x[r] = (const uint8_t *)a->x + row_bytes * (size_t)(r < a->n_rows ? r : a->n_rows - 1);
            acc[r] = _mm512_setzero_ps();
        }
        for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
            int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
            const uint8_t *codes = p + header_bytes(dtype, a->dtype, in_chunk);
            header h;
            fetch_header(p + ahead, codes + ahead);
            load_header(dtype, a->dtype, p, in_chunk, &h);
            for (int i = 0; i < in_chunk; i++) {
                __m512i w[8];
#pragma GCC unroll 8
                for (size_t at = 0; ahead && at < code_bytes; at += 64)
                    __builtin_prefetch(codes + ahead + at);
                load_codes(dtype, codes, w);
                scales s = load_scales(dtype, p, &h, i);
#pragma GCC unroll 16
                for (int r = 0; r < rows; r++) {
                    acc[r] = add_block(kind, planes, zero_shift, w, &s, x[r], acc[r]);
                    x[r] += act_block_bytes(planes);
                }
                codes += code_bytes;
            }
            p = codes;
        }
        __mmask16 mask = lanes(a->n_out - panel * QN_PANEL);
        float *out = a->out + panel * QN_PANEL;
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            if (r < a->n_rows) _mm512_mask_storeu_ps(out + r * a->out_stride, mask, acc[r]);
    }
}

INLINE const uint8_t *expand_chunk(qn_dtype dtype, qn_dtype own, const uint8_t *p, int in_chunk, uint8_t *to)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    const uint8_t *codes = p + header_bytes(dtype, own, in_chunk);
    int move = qn_layout_zero(dtype) ? 128 - qn_layout_zero(dtype) : 0;
    header h;
    load_header(dtype, own, p, in_chunk, &h);
    for (int i = 0; i < in_chunk;
         i++, codes += qn_layout_code_bytes(dtype), to += scratch_block_bytes(kind)) {
        __m512i w[8];
        load_codes(dtype, codes, w);
        scales s = load_scales(dtype, p, &h, i);
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) {
            if (move) w[g] = _mm512_add_epi8(w[g], _mm512_set1_epi8((char)move));
            _mm512_store_si512(to + 64 * g, w[g]);
        }
        _mm512_store_ps(to + 512, s.d);
        if (kind != QN_SCALE_SYM) _mm512_store_ps(to + 576, s.m);
    }
    return codes;
}

/* rows (constant) of x, from their block x on, times n_blocks of scratch; sums go on from out unless first.
 */
INLINE void tile(qn_dtype dtype, int planes, int rows, const uint8_t *scratch, int64_t n_blocks,
                 const uint8_t *x, size_t row_bytes, float *out, int64_t out_stride, int64_t n, int first,
                 const next_lines *next)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    __mmask16 mask = lanes(n);
    __m512 acc[12];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        acc[r] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, out + r * out_stride);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) __builtin_prefetch(out + r * out_stride, 1, 3);
    for (int64_t b = 0; b < n_blocks; b++) {
        __m512i w[8];
        scales s = {0};
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = _mm512_load_si512(scratch + 64 * g);
        s.d = _mm512_load_ps(scratch + 512);
        if (kind != QN_SCALE_SYM) s.m = _mm512_load_ps(scratch + 576);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            acc[r] = add_block(kind, planes, 0, w, &s, x + (size_t)r * row_bytes, acc[r]);
        scratch += scratch_block_bytes(kind);
        x += act_block_bytes(planes);
        fetch_lines(next, b);
    }
    if (n >= QN_PANEL) {
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) _mm512_storeu_ps(out + r * out_stride, acc[r]);
        return;
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) _mm512_mask_storeu_ps(out + r * out_stride, mask, acc[r]);
}

static void matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->act == QN_ACT_I8 || a->act == QN_ACT_I8X2) {
        integer_matmul(a, begin, end, scratch);
    } else {
        qn_matmul_float_avx512(a, begin, end, scratch);
    }
}

void qn_kernels_fill_matmul_avx512(qn_kernels *k)
{
    k->unpack_panel = qn_unpack_panel_avx512;
    k->act_pack = qn_act_pack_avx512;
    k->matmul = matmul;
}
