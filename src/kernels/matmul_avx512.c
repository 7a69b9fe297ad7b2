/* Matmul with AVX-512: VNNI for integers, BF16 for bf16 times bf16.
 *
 * A lane is an output. Eight vectors w[g] of a block hold the codes of k = 4 g .. 4 g + 3 of 16 outputs as
 * unsigned bytes; four activations are broadcast against each. Few rows: codes go from the packed form
 * straight to registers, so that the weights stream once. More rows: a stretch of a panel is unpacked into
 * scratch (it stays in the first-level cache) and used by all rows. Both forms do the same operations per
 * block, so they give the same bits. */
#include <immintrin.h>
#include <string.h>

#include "kernels/pack.h"
#include "kernels/sets.h"

#define INLINE static inline __attribute__((always_inline))

/* Measured on Zen 4: rows that still go straight from packed codes; rows of a tile; blocks of a stretch
 * (20-23 KiB of scratch); bytes of activations that stay in the second-level cache while panels pass. */
enum { DIRECT_ROWS = 8, STRETCH = 32, X_CACHE_BYTES = 512 << 10, PREFETCH_BYTES = 4096 };

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

INLINE __m512 load_f16x16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* ---- codes and scales of one block ------------------------------------------------------------------- */

/* high << 4 or'ed into w, where the bits of high start at bit `at` of each byte. */
INLINE __m512i add_high(__m512i w, __m512i high, int at, int mask)
{
    __m512i moved =
        at <= 4 ? _mm512_slli_epi16(high, (unsigned)(4 - at)) : _mm512_srli_epi16(high, (unsigned)(at - 4));
    return _mm512_ternarylogic_epi32(w, moved, _mm512_set1_epi8((char)mask), 0xf8); /* w | (moved & mask) */
}

INLINE void load_codes(qn_dtype dtype, const uint8_t *p, __m512i w[8])
{
    int bits = qn_layout_bits(dtype);
    if (bits == 8) {
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = _mm512_loadu_si512(p + 64 * g);
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i v = _mm512_loadu_si512(p + 64 * i);
        w[i] = _mm512_and_si512(v, low);
        w[i + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
    if (bits == 5) {
        __m512i high = _mm512_loadu_si512(p + 256);
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = add_high(w[g], high, g, 0x10);
    } else if (bits == 6) {
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++)
            w[g] = add_high(w[g], _mm512_loadu_si512(p + 256 + 64 * (g / 4)), g % 4 * 2, 0x30);
    }
}

typedef struct {
    __m512 d, m;
    __m512i sub[2];
} scales;

/* The part of a header that its blocks share. */
typedef struct {
    __m512 d, m;
    uint8_t six[16][16]; /* QN_SCALE_K: scales of 8 blocks, then mins */
} header;

INLINE void load_header(qn_dtype dtype, const uint8_t *p, header *h)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    if (kind != QN_SCALE_K && kind != QN_SCALE_SUB) return;
    h->d = load_f16x16(p);
    if (kind == QN_SCALE_SUB) return;
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

INLINE scales load_scales(qn_dtype dtype, const uint8_t *p, const header *h, int i_block)
{
    scales s = {0};
    switch (qn_layout_scale(dtype)) {
    case QN_SCALE_SYM:
        s.d = load_f16x16(p + 32 * i_block);
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
        s.d = h->d;
        s.sub[0] = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(p + 64 + 32 * i_block)));
        s.sub[1] = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(p + 80 + 32 * i_block)));
    }
    return s;
}

/* ---- one block times one row ------------------------------------------------------------------------- */

/* x: one qn_act_i8 (planes 1) or qn_act_i8x2 (planes 2). zero_shift: 7 - log2 of the code that stands for 0.
 */
INLINE __m512 add_block(qn_scale_kind kind, int planes, unsigned zero_shift, const __m512i w[8],
                        const scales *s, const uint8_t *x, __m512 acc)
{
    const uint8_t *meta = x + QN_BLOCK * planes; /* scale, sum, zero[2] */
    int with_min = kind == QN_SCALE_MIN || kind == QN_SCALE_K;
    __m512i a = _mm512_setzero_si512(), b = a, high_a = a, high_b = a;
    if (!with_min) {
        a = broadcast4(meta + 8);
        b = broadcast4(meta + 12);
        if (zero_shift) {
            a = _mm512_srai_epi32(a, zero_shift);
            b = _mm512_srai_epi32(b, zero_shift);
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
    if (kind == QN_SCALE_SUB) {
        if (planes == 2) {
            a = _mm512_add_epi32(_mm512_slli_epi32(high_a, 7), a);
            b = _mm512_add_epi32(_mm512_slli_epi32(high_b, 7), b);
        }
        dot = _mm512_add_epi32(_mm512_mullo_epi32(a, s->sub[0]), _mm512_mullo_epi32(b, s->sub[1]));
    } else {
        dot = _mm512_add_epi32(a, b);
        if (planes == 2) dot = _mm512_add_epi32(dot, _mm512_slli_epi32(_mm512_add_epi32(high_a, high_b), 7));
    }
    acc = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot), broadcast_f32(meta)), s->d, acc);
    return with_min ? _mm512_fmadd_ps(broadcast_f32(meta + 4), s->m, acc) : acc;
}

INLINE size_t act_block_bytes(int planes)
{
    return planes == 1 ? sizeof(qn_act_i8) : sizeof(qn_act_i8x2);
}

INLINE __mmask16 lanes(const qn_matmul_args *a, int64_t panel)
{
    int64_t n = a->n_out - panel * QN_PANEL;
    return n >= QN_PANEL ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* ---- few rows: straight from the packed codes -------------------------------------------------------- */

/* rows: a constant >= a->n_rows; what is missing is computed again from the last row and dropped. */
INLINE void direct(qn_dtype dtype, int planes, int rows, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    unsigned zero_shift = (unsigned)(8 - qn_layout_bits(dtype));
    int64_t n_blocks = a->n_in / QN_BLOCK;
    size_t row_bytes = qn_act_row_bytes(planes == 1 ? QN_ACT_I8 : QN_ACT_I8X2, a->n_in);
    size_t code_bytes = qn_layout_code_bytes(dtype);
    const uint8_t *p = (const uint8_t *)a->panels + (size_t)begin * qn_pack_panel_bytes(dtype, a->n_in);
    for (int64_t panel = begin; panel < end; panel++) {
        const uint8_t *x[8];
        __m512 acc[8];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            x[r] = (const uint8_t *)a->x + row_bytes * (size_t)(r < a->n_rows ? r : a->n_rows - 1);
            acc[r] = _mm512_setzero_ps();
        }
        for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
            int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
            const uint8_t *codes = p + qn_layout_header_bytes(dtype, in_chunk);
            header h;
            load_header(dtype, p, &h);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) _mm_prefetch((const char *)p + PREFETCH_BYTES + 64 * i, _MM_HINT_T0);
            for (int i = 0; i < in_chunk; i++) {
                __m512i w[8];
#pragma GCC unroll 8
                for (size_t at = 0; at < code_bytes; at += 64)
                    _mm_prefetch((const char *)codes + PREFETCH_BYTES + at, _MM_HINT_T0);
                load_codes(dtype, codes, w);
                scales s = load_scales(dtype, p, &h, i);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    acc[r] = add_block(kind, planes, zero_shift, w, &s, x[r], acc[r]);
                    x[r] += act_block_bytes(planes);
                }
                codes += code_bytes;
            }
            p = codes;
        }
        __mmask16 mask = lanes(a, panel);
        float *out = a->out + panel * QN_PANEL;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            if (r < a->n_rows) _mm512_mask_storeu_ps(out + r * a->out_stride, mask, acc[r]);
    }
}

INLINE void direct_rows(qn_dtype dtype, int planes, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    if (a->n_rows == 1) {
        direct(dtype, planes, 1, a, begin, end);
    } else if (a->n_rows == 2) {
        direct(dtype, planes, 2, a, begin, end);
    } else if (a->n_rows <= 4) {
        direct(dtype, planes, 4, a, begin, end);
    } else {
        direct(dtype, planes, 8, a, begin, end);
    }
}

/* ---- many rows: through scratch ---------------------------------------------------------------------- */

/* A block in scratch: codes [8][64] (symmetric ones moved so that 128 stands for 0), d f32[16], then m
 * f32[16] or the two sub-scales i32[16] each. */
INLINE size_t scratch_block_bytes(qn_scale_kind kind)
{
    return kind == QN_SCALE_SYM ? 576 : kind == QN_SCALE_SUB ? 704 : 640;
}

/* Unpacks one chunk; returns the address of the next. */
INLINE const uint8_t *expand_chunk(qn_dtype dtype, const uint8_t *p, int in_chunk, uint8_t *to)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    const uint8_t *codes = p + qn_layout_header_bytes(dtype, in_chunk);
    int move = qn_layout_zero(dtype) ? 128 - qn_layout_zero(dtype) : 0;
    header h;
    load_header(dtype, p, &h);
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
        if (kind == QN_SCALE_SUB) {
            _mm512_store_si512(to + 576, s.sub[0]);
            _mm512_store_si512(to + 640, s.sub[1]);
        } else if (kind != QN_SCALE_SYM) {
            _mm512_store_ps(to + 576, s.m);
        }
    }
    return codes;
}

/* rows (constant) of x, from their block x on, times n_blocks of scratch; sums go on from out unless first.
 */
INLINE void tile(qn_scale_kind kind, int planes, int rows, const uint8_t *scratch, int64_t n_blocks,
                 const uint8_t *x, size_t row_bytes, float *out, int64_t out_stride, __mmask16 mask,
                 int first)
{
    __m512 acc[12];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        acc[r] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, out + r * out_stride);
    for (int64_t b = 0; b < n_blocks; b++) {
        __m512i w[8];
        scales s = {0};
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = _mm512_load_si512(scratch + 64 * g);
        s.d = _mm512_load_ps(scratch + 512);
        if (kind == QN_SCALE_SUB) {
            s.sub[0] = _mm512_load_si512(scratch + 576);
            s.sub[1] = _mm512_load_si512(scratch + 640);
        } else if (kind != QN_SCALE_SYM) {
            s.m = _mm512_load_ps(scratch + 576);
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            acc[r] = add_block(kind, planes, 0, w, &s, x + (size_t)r * row_bytes, acc[r]);
        scratch += scratch_block_bytes(kind);
        x += act_block_bytes(planes);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) _mm512_mask_storeu_ps(out + r * out_stride, mask, acc[r]);
}

/* All rows [0, n_rows) of x times a stretch. */
INLINE void stretch(qn_scale_kind kind, int planes, const uint8_t *scratch, int64_t n_blocks,
                    const uint8_t *x, size_t row_bytes, int64_t n_rows, float *out, int64_t out_stride,
                    __mmask16 mask, int first)
{
    enum { TILE_1 = 12, TILE_2 = 8 };
    int full = planes == 1 ? TILE_1 : TILE_2;
    for (; n_rows >= full; n_rows -= full, x += (size_t)full * row_bytes, out += full * out_stride)
        tile(kind, planes, full, scratch, n_blocks, x, row_bytes, out, out_stride, mask, first);
    for (; n_rows >= 4; n_rows -= 4, x += 4 * row_bytes, out += 4 * out_stride)
        tile(kind, planes, 4, scratch, n_blocks, x, row_bytes, out, out_stride, mask, first);
    for (; n_rows > 0; n_rows--, x += row_bytes, out += out_stride)
        tile(kind, planes, 1, scratch, n_blocks, x, row_bytes, out, out_stride, mask, first);
}

static __attribute__((noinline)) void stretch_any(qn_scale_kind kind, int planes, const uint8_t *scratch,
                                                  int64_t n_blocks, const uint8_t *x, size_t row_bytes,
                                                  int64_t n_rows, float *out, int64_t out_stride,
                                                  __mmask16 mask, int first)
{
    if (kind == QN_SCALE_SYM && planes == 1) {
        stretch(QN_SCALE_SYM, 1, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, mask, first);
    } else if (kind == QN_SCALE_SYM) {
        stretch(QN_SCALE_SYM, 2, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, mask, first);
    } else if (kind == QN_SCALE_SUB && planes == 1) {
        stretch(QN_SCALE_SUB, 1, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, mask, first);
    } else if (kind == QN_SCALE_SUB) {
        stretch(QN_SCALE_SUB, 2, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, mask, first);
    } else if (planes == 1) {
        stretch(QN_SCALE_MIN, 1, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, mask, first);
    } else {
        stretch(QN_SCALE_MIN, 2, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, mask, first);
    }
}

INLINE void through_scratch(qn_dtype dtype, const qn_matmul_args *a, int64_t begin, int64_t end,
                            uint8_t *scratch)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    int planes = a->act == QN_ACT_I8 ? 1 : 2;
    int64_t n_blocks = a->n_in / QN_BLOCK;
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in), panel_bytes = qn_pack_panel_bytes(dtype, a->n_in);
    int64_t together = (int64_t)(X_CACHE_BYTES / row_bytes) / 24 * 24;
    if (together < 48) together = 48;
    for (int64_t row = 0; row < a->n_rows; row += together) {
        int64_t n = a->n_rows - row < together ? a->n_rows - row : together;
        const uint8_t *x = (const uint8_t *)a->x + (size_t)row * row_bytes;
        for (int64_t panel = begin; panel < end; panel++) {
            const uint8_t *p = (const uint8_t *)a->panels + (size_t)panel * panel_bytes;
            float *out = a->out + row * a->out_stride + panel * QN_PANEL;
            for (int64_t b = 0; b < n_blocks; b += STRETCH) {
                int64_t in_stretch = n_blocks - b < STRETCH ? n_blocks - b : STRETCH;
                for (int64_t i = 0; i < in_stretch; i += QN_CHUNK)
                    p = expand_chunk(dtype, p, in_stretch - i < QN_CHUNK ? (int)(in_stretch - i) : QN_CHUNK,
                                     scratch + (size_t)i * scratch_block_bytes(kind));
                stretch_any(kind, planes, scratch, in_stretch, x + (size_t)b * act_block_bytes(planes),
                            row_bytes, n, out, a->out_stride, lanes(a, panel), b == 0);
            }
        }
    }
}

#define INTEGER_TYPES(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K)
#define INTEGER_FUNCTION(t)                                                                       \
    static void matmul_##t(const qn_matmul_args *a, int64_t begin, int64_t end, uint8_t *scratch) \
    {                                                                                             \
        if (a->n_rows > DIRECT_ROWS) {                                                            \
            through_scratch(QN_DTYPE_##t, a, begin, end, scratch);                                \
        } else if (a->act == QN_ACT_I8) {                                                         \
            direct_rows(QN_DTYPE_##t, 1, a, begin, end);                                          \
        } else {                                                                                  \
            direct_rows(QN_DTYPE_##t, 2, a, begin, end);                                          \
        }                                                                                         \
    }
INTEGER_TYPES(INTEGER_FUNCTION)

static void integers(qn_dtype dtype, const qn_matmul_args *a, int64_t begin, int64_t end, uint8_t *scratch)
{
    switch (dtype) {
#define INTEGER_CASE(t)                     \
    case QN_DTYPE_##t:                      \
        matmul_##t(a, begin, end, scratch); \
        break;
        INTEGER_TYPES(INTEGER_CASE)
    default:
        break;
    }
}

/* ---- floats ------------------------------------------------------------------------------------------ */

/* One step: how many k a vector of weights covers (1, or 2 for bf16 pairs), and its products. */
typedef enum { W_F32, W_F16, W_BF16, W_BF16_DOT } float_kind;

INLINE size_t float_step_bytes(float_kind kind)
{
    return kind == W_F16 ? 32 : 64;
}

/* panels and rows are constants: panels consecutive panels times rows rows. An output is one chain over k. */
INLINE void float_tile(float_kind kind, int panels, int rows, const qn_matmul_args *a, const uint8_t *w,
                       size_t panel_bytes, const uint8_t *x, size_t row_bytes, int64_t panel, int64_t row)
{
    int per_step = kind == W_BF16 || kind == W_BF16_DOT ? 2 : 1;
    int64_t steps = kind == W_BF16_DOT ? (a->n_in + 1) / 2 : a->n_in / per_step;
    size_t x_step = kind == W_BF16 ? 8 : 4;
    __m512 acc[24];
#pragma GCC unroll 24
    for (int i = 0; i < panels * rows; i++) acc[i] = _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; s++) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            const uint8_t *wp = w + (size_t)p * panel_bytes;
            if (rows <= 4) _mm_prefetch((const char *)wp + PREFETCH_BYTES, _MM_HINT_T0);
            if (kind == W_BF16_DOT) {
                __m512bh v = (__m512bh)_mm512_loadu_si512(wp);
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++)
                    acc[p * rows + r] = _mm512_dpbf16_ps(acc[p * rows + r], v,
                                                         (__m512bh)broadcast4(x + (size_t)r * row_bytes));
                continue;
            }
            __m512 v, odd = _mm512_setzero_ps();
            if (kind == W_F32) {
                v = _mm512_loadu_ps(wp);
            } else if (kind == W_F16) {
                v = load_f16x16(wp);
            } else {
                __m512i pair = _mm512_loadu_si512(wp);
                v = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
                odd = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000)));
            }
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
                acc[p * rows + r] =
                    _mm512_fmadd_ps(broadcast_f32(x + (size_t)r * row_bytes), v, acc[p * rows + r]);
            if (kind != W_BF16) continue;
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
                acc[p * rows + r] =
                    _mm512_fmadd_ps(broadcast_f32(x + (size_t)r * row_bytes + 4), odd, acc[p * rows + r]);
        }
        w += float_step_bytes(kind);
        x += x_step;
    }
    if (kind == W_BF16 && a->n_in % 2) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            __m512 v =
                _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(w + (size_t)p * panel_bytes), 16));
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
                acc[p * rows + r] =
                    _mm512_fmadd_ps(broadcast_f32(x + (size_t)r * row_bytes), v, acc[p * rows + r]);
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < panels; p++) {
        __mmask16 mask = lanes(a, panel + p);
        float *out = a->out + row * a->out_stride + (panel + p) * QN_PANEL;
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            _mm512_mask_storeu_ps(out + r * a->out_stride, mask, acc[p * rows + r]);
    }
}

/* Rows [*row, end_row) as far as whole tiles of `rows` go, times one panel or two, which are panels panel,
 * panel + 1 of the output. */
INLINE void float_rows(float_kind kind, int panels, int rows, const qn_matmul_args *a, const uint8_t *w,
                       size_t panel_bytes, int64_t panel, int64_t *row, int64_t end_row)
{
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in);
    for (; *row + rows <= end_row; *row += rows)
        float_tile(kind, panels, rows, a, w, panel_bytes, (const uint8_t *)a->x + (size_t)*row * row_bytes,
                   row_bytes, panel, *row);
}

INLINE void floats(float_kind kind, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    enum { TILE = 12 };
    size_t panel_bytes = qn_pack_panel_bytes(a->dtype, a->n_in);
    /* Rows in whole tiles go one panel at a time, the rest two panels at a time. */
    int64_t full = a->n_rows / TILE * TILE;
    for (int64_t panel = begin; panel < end && full; panel++) {
        int64_t row = 0;
        float_rows(kind, 1, TILE, a, (const uint8_t *)a->panels + (size_t)panel * panel_bytes, panel_bytes,
                   panel, &row, full);
    }
    for (int64_t panel = begin; panel < end && full < a->n_rows; panel += 2) {
        int64_t row = full;
        const uint8_t *w = (const uint8_t *)a->panels + (size_t)panel * panel_bytes;
        if (panel + 1 < end) {
            float_rows(kind, 2, 4, a, w, panel_bytes, panel, &row, a->n_rows);
            float_rows(kind, 2, 2, a, w, panel_bytes, panel, &row, a->n_rows);
            float_rows(kind, 2, 1, a, w, panel_bytes, panel, &row, a->n_rows);
        } else {
            float_rows(kind, 1, 4, a, w, panel_bytes, panel, &row, a->n_rows);
            float_rows(kind, 1, 1, a, w, panel_bytes, panel, &row, a->n_rows);
        }
    }
}

static void floats_f32(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    floats(W_F32, a, begin, end);
}

static void floats_f16(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    floats(W_F16, a, begin, end);
}

static void floats_bf16(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    floats(W_BF16, a, begin, end);
}

static void floats_bf16_dot(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    floats(W_BF16_DOT, a, begin, end);
}

/* ---- unpacking --------------------------------------------------------------------------------------- */

INLINE void unpack_blocks(qn_dtype dtype, int64_t n_in, const uint8_t *p, float *out)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    int64_t n_blocks = n_in / QN_BLOCK;
    for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
        int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
        const uint8_t *codes = p + qn_layout_header_bytes(dtype, in_chunk);
        header h;
        load_header(dtype, p, &h);
        for (int i = 0; i < in_chunk; i++, codes += qn_layout_code_bytes(dtype), out += QN_BLOCK * QN_PANEL) {
            __m512i w[8];
            load_codes(dtype, codes, w);
            scales s = load_scales(dtype, p, &h, i);
#pragma GCC unroll 8
            for (int g = 0; g < 8; g++) {
                __m512 d = kind == QN_SCALE_SUB ? _mm512_mul_ps(s.d, _mm512_cvtepi32_ps(s.sub[g / 4])) : s.d;
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    __m512i q =
                        _mm512_and_si512(_mm512_srli_epi32(w[g], (unsigned)(8 * j)), _mm512_set1_epi32(255));
                    q = _mm512_sub_epi32(q, _mm512_set1_epi32(qn_layout_zero(dtype)));
                    __m512 v = _mm512_mul_ps(d, _mm512_cvtepi32_ps(q));
                    if (kind == QN_SCALE_MIN || kind == QN_SCALE_K) v = _mm512_add_ps(v, s.m);
                    _mm512_storeu_ps(out + (4 * g + j) * QN_PANEL, v);
                }
            }
        }
        p = codes;
    }
}

static void unpack_panel(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out)
{
    const uint8_t *p = (const uint8_t *)panels + (size_t)panel * qn_pack_panel_bytes(dtype, n_in);
    switch (dtype) {
    case QN_DTYPE_F32:
        memcpy(out, p, (size_t)n_in * QN_PANEL * sizeof *out);
        break;
    case QN_DTYPE_F16:
        for (int64_t k = 0; k < n_in; k++) _mm512_storeu_ps(out + k * QN_PANEL, load_f16x16(p + 32 * k));
        break;
    case QN_DTYPE_BF16:
        for (int64_t k = 0; k < n_in; k++) {
            __m512i pair = _mm512_loadu_si512(p + k / 2 * 64);
            pair = k % 2 ? _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000))
                         : _mm512_slli_epi32(pair, 16);
            _mm512_storeu_si512(out + k * QN_PANEL, pair);
        }
        break;
#define UNPACK_CASE(t)                             \
    case QN_DTYPE_##t:                             \
        unpack_blocks(QN_DTYPE_##t, n_in, p, out); \
        break;
        INTEGER_TYPES(UNPACK_CASE)
    default:
        break;
    }
}

/* ---- activations ------------------------------------------------------------------------------------- */

/* See matmul_scalar.c: the same operations. */
INLINE void act_block(int planes, const float *x, uint8_t *to)
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
    for (int i = 0; i < 2; i++) half[i] *= -128;
    to += QN_BLOCK * planes;
    memcpy(to, &scale, 4);
    memcpy(to + 4, &sum, 4);
    memcpy(to + 8, half, 8);
}

/* Nearest even; NaN stays NaN. Not vcvtneps2bf16, which turns subnormal numbers into 0. */
INLINE __m256i to_bf16(__m512 x)
{
    __m512i u = _mm512_castps_si512(x),
            odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff)), 16);
    __m512i nan = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan));
}

static void act_pack(qn_act act, int64_t n_in, const float *x, void *out)
{
    uint8_t *to = out;
    switch (act) {
    case QN_ACT_I8:
        for (int64_t k = 0; k < n_in; k += QN_BLOCK, to += sizeof(qn_act_i8)) act_block(1, x + k, to);
        break;
    case QN_ACT_I8X2:
        for (int64_t k = 0; k < n_in; k += QN_BLOCK, to += sizeof(qn_act_i8x2)) act_block(2, x + k, to);
        break;
    case QN_ACT_BF16:
        for (int64_t k = 0; k < n_in; k += 16) {
            int64_t left = n_in - k;
            __mmask16 mask = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
            _mm256_mask_storeu_epi16(to + 2 * k, mask, to_bf16(_mm512_maskz_loadu_ps(mask, x + k)));
        }
        if (n_in % 2) memset(to + 2 * n_in, 0, 2);
        break;
    default:
        memcpy(out, x, (size_t)n_in * sizeof *x);
        break;
    }
}

/* ---- table ------------------------------------------------------------------------------------------- */

static void matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->act == QN_ACT_I8 || a->act == QN_ACT_I8X2) {
        integers(a->dtype, a, begin, end, scratch);
    } else if (a->act == QN_ACT_BF16) {
        floats_bf16_dot(a, begin, end);
    } else if (a->dtype == QN_DTYPE_F32) {
        floats_f32(a, begin, end);
    } else if (a->dtype == QN_DTYPE_F16) {
        floats_f16(a, begin, end);
    } else if (a->dtype == QN_DTYPE_BF16) {
        floats_bf16(a, begin, end);
    } else {
        /* Exact: two panels at a time as f32. */
        qn_matmul_args part = *a;
        size_t panel_bytes = qn_pack_panel_bytes(QN_DTYPE_F32, a->n_in);
        part.dtype = QN_DTYPE_F32;
        part.panels = scratch;
        for (int64_t p = begin; p < end; p += 2) {
            int64_t n = end - p < 2 ? 1 : 2;
            for (int64_t i = 0; i < n; i++)
                unpack_panel(a->dtype, a->n_in, a->panels, p + i,
                             (float *)(void *)((char *)scratch + (size_t)i * panel_bytes));
            part.out = a->out + p * QN_PANEL;
            part.n_out = a->n_out - p * QN_PANEL;
            floats_f32(&part, 0, n);
        }
    }
}

void qn_kernels_fill_matmul_avx512(qn_kernels *k)
{
    k->unpack_panel = unpack_panel;
    k->act_pack = act_pack;
    k->matmul = matmul;
}
