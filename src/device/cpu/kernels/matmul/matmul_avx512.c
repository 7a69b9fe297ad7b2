/* Matmul of int8 activations with AVX-512 VNNI.
 *
 * A lane is an output. Eight vectors w[g] of a block hold the codes of k = 4 g .. 4 g + 3 of 16 outputs as
 * unsigned bytes; four activations are broadcast against each. Few rows: codes go from the packed form
 * straight to registers, so that the weights stream once. More rows: a stretch of a panel is unpacked into
 * scratch, where it stays in the first-level cache for all rows. Both forms do the same operations per block,
 * so they give the same bits. */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/kernels/matmul/codes_avx512.h"
#include "device/cpu/kernels/matmul/rows_as_packed.h"
#include "device/cpu/kernels/sets.h"
#include "device/cpu/kernels/vec_avx512.h"

enum {
    DIRECT_ROWS = 16,
    DIRECT_ROWS_2 = 8,
    TILE_ROWS = 12,
    TILE_ROWS_2 = 8,
    X_CACHE_BYTES = 768 << 10,
    PREFETCH_BYTES = 8192,
    FEW = 4 /* rows times planes that take less time than memory */
};

/* In scratch, codes of symmetric types are moved so that 128 stands for 0. */
#define STRETCH_LAYOUTS(X) X(SYM8) X(MIN4) X(E2M1_HALF)

static qn_layout stretch_layout(qn_layout layout, int planes)
{
    if (qn_layout_by_halves(layout)) return QN_LAYOUT_E2M1_HALF;
    return qn_layout_has_min(layout) ? QN_LAYOUT_MIN4 : QN_LAYOUT_SYM8;
}

#include "device/cpu/kernels/matmul/integer.body.h"

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

/* acc + w's bytes of each lane times the four activations at p. in_order: as an instruction of its own where
 * it is written, for the compiler would load and spread p first, and take rows one behind the other. Where
 * two threads share a core, half as many instructions and neighbours that do not wait for each other are
 * worth a sixth; one row alone, which waits for memory, is better left to the compiler. */
INLINE __m512i add_dots(__m512i acc, __m512i w, const uint8_t *p, int in_order)
{
    if (!in_order) return _mm512_dpbusd_epi32(acc, w, broadcast4(p));
    __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)p));
    return acc;
}

enum { ROWS_MAX = 16, TOGETHER = 6 };

/* Row r begins at from[r / 3] + r % 3 * stride: an address that an instruction can name, so that few
 * registers hold all. */
typedef struct {
    const uint8_t *from[(ROWS_MAX + 2) / 3];
    size_t stride;
} act_rows;

INLINE const uint8_t *row_of(const act_rows *x, int r)
{
    return x->from[r / 3] + (size_t)(r % 3) * x->stride;
}

/* Which of n rows that of from[i] is, where n_rows (a constant, at least n) are computed: the last ones stand
 * for what is missing. */
INLINE int64_t row_from(int i, int n_rows, int64_t n)
{
    const int64_t part = n_rows - 3 * i < 3 ? n_rows - 3 * i : 3;
    return 3 * i < n - part ? 3 * i : n - part;
}

INLINE act_rows rows_at(const uint8_t *p, size_t stride, int n_rows, int64_t n)
{
    act_rows x = {.stride = stride};
#pragma GCC unroll 6
    for (int i = 0; 3 * i < n_rows; i++) x.from[i] = p + (size_t)row_from(i, n_rows, n) * stride;
    return x;
}

/* On to the next block. */
INLINE void next_block(act_rows *x, int n_rows, int planes)
{
#pragma GCC unroll 6
    for (int i = 0; 3 * i < n_rows; i++) {
        x->from[i] += act_block_bytes(planes);
        __asm__ volatile("" : "+r"(x->from[i]), "+r"(x->stride)); /* else an address each is kept */
    }
}

/* acc of n of n_rows rows (constants, n at most TOGETHER) from `first` on, and their products with a block,
 * taken in turns. Rows: of qn_act_i8 (planes 1) or qn_act_i8x2 (planes 2). zero_shift: 7 - log2 of the code
 * that stands for 0. */
INLINE void add_rows(qn_scale_kind kind, int planes, unsigned zero_shift, const __m512i w[8], const scales *s,
                     const act_rows *x, int n_rows, int first, int n, __m512 *acc)
{
    const int in_order = n_rows > 2, by_halves = kind == QN_SCALE_SUB || kind == QN_SCALE_HALF,
              with_min = kind != QN_SCALE_SYM && !by_halves, apart = by_halves || !in_order,
              low = QN_BLOCK * (planes - 1), meta = QN_BLOCK * planes; /* scale, sum, zero[2] */
    __m512i a[TOGETHER], b[TOGETHER], high_a[TOGETHER], high_b[TOGETHER];
#pragma GCC unroll 6
    for (int r = 0; r < n; r++) {
        const uint8_t *p = row_of(x, first + r);
        a[r] = b[r] = high_a[r] = high_b[r] = _mm512_setzero_si512();
        if (with_min) continue;
        a[r] = broadcast4(p + meta + 8);
        if (zero_shift) a[r] = _mm512_srai_epi32(a[r], zero_shift);
        if (!by_halves) continue;
        b[r] = broadcast4(p + meta + 12);
        if (zero_shift) b[r] = _mm512_srai_epi32(b[r], zero_shift);
        a[r] = _mm512_sub_epi32(a[r], b[r]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const int g = apart ? i / 2 + i % 2 * 4 : i, in_b = apart && g >= 4;
#pragma GCC unroll 6
        for (int r = 0; r < n; r++) {
            const uint8_t *p = row_of(x, first + r);
            __m512i *sum = in_b ? &b[r] : &a[r], *high = in_b ? &high_b[r] : &high_a[r];
            if (planes == 2) *high = add_dots(*high, w[g], p + 4 * g, in_order);
            *sum = add_dots(*sum, w[g], p + low + 4 * g, in_order);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < n; r++) {
        const uint8_t *p = row_of(x, first + r);
        __m512 *sum = acc + first + r;
        if (by_halves) {
            if (planes == 2) {
                a[r] = _mm512_add_epi32(_mm512_slli_epi32(high_a[r], 7), a[r]);
                b[r] = _mm512_add_epi32(_mm512_slli_epi32(high_b[r], 7), b[r]);
            }
            __m512 both = _mm512_mul_ps(_mm512_cvtepi32_ps(a[r]), s->d);
            both = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b[r]), s->m, both);
            *sum = _mm512_fmadd_ps(both, broadcast_f32(p + meta), *sum);
            continue;
        }
        if (apart) a[r] = _mm512_add_epi32(a[r], b[r]);
        if (planes == 2) {
            if (apart) high_a[r] = _mm512_add_epi32(high_a[r], high_b[r]);
            a[r] = _mm512_add_epi32(a[r], _mm512_slli_epi32(high_a[r], 7));
        }
        *sum = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(a[r]), broadcast_f32(p + meta)), s->d, *sum);
        if (with_min) *sum = _mm512_fmadd_ps(broadcast_f32(p + meta + 4), s->m, *sum);
    }
}

/* The same of n_rows (a constant), as many in turns as the registers have room for. */
INLINE void add_block(qn_scale_kind kind, int planes, unsigned zero_shift, int n_rows, const __m512i w[8],
                      const scales *s, const act_rows *x, __m512 *acc)
{
    const int by_halves = kind == QN_SCALE_SUB || kind == QN_SCALE_HALF, sums = planes * (by_halves ? 2 : 1);
    int most = n_rows == 12 ? TOGETHER / sums : 4;
    if (sums == 4) most = 2;
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; r += most)
        add_rows(kind, planes, zero_shift, w, s, x, n_rows, r, n_rows - r < most ? n_rows - r : most, acc);
}

INLINE __mmask16 lanes(int64_t n)
{
    return n >= QN_PANEL ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* rows: a constant >= a->n_rows. */
INLINE void direct(qn_layout layout, int planes, int rows, const qn_matmul_args *a, int64_t begin,
                   int64_t end)
{
    qn_scale_kind kind = qn_layout_scale(layout);
    unsigned zero_shift = (unsigned)(8 - qn_layout_bits(layout));
    int64_t n_blocks = a->n_in / QN_BLOCK;
    size_t row_bytes = qn_act_row_bytes(planes == 1 ? QN_ACT_I8 : QN_ACT_I8X2, a->n_in);
    const int few = rows * planes <= FEW;
    const size_t code_bytes = qn_layout_code_bytes(layout), ahead = few ? qn_few_ahead : PREFETCH_BYTES;
    const uint8_t *p = (const uint8_t *)a->panels + (size_t)begin * qn_pack_panel_bytes(a->dtype, a->n_in);
    for (int64_t panel = begin; panel < end; panel++) {
        act_rows x = rows_at(a->x, row_bytes, rows, a->n_rows);
        __m512 acc[DIRECT_ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) acc[r] = _mm512_setzero_ps();
        for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
            int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
            const uint8_t *codes = p + qn_layout_header_bytes(layout, a->dtype, in_chunk);
            header h;
            fetch_header(p + ahead, codes + ahead);
            load_header(layout, a->dtype, p, in_chunk, &h);
            for (int i = 0; i < in_chunk; i++) {
                __m512i w[8];
                if (ahead) fetch_codes(codes + ahead, code_bytes, few);
                load_codes(layout, codes, w);
                scales s = load_scales(layout, p, &h, i);
                add_block(kind, planes, zero_shift, rows, w, &s, &x, acc);
                next_block(&x, rows, planes);
                codes += code_bytes;
            }
            p = codes;
        }
        __mmask16 mask = lanes(a->n_out - panel * QN_PANEL);
        float *out = a->out + panel * QN_PANEL;
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const int64_t row = row_from(r / 3, rows, a->n_rows) + r % 3;
            _mm512_mask_storeu_ps(out + row * a->out_stride, mask, acc[r]);
        }
    }
}

INLINE const uint8_t *expand_chunk(qn_layout layout, qn_dtype own, int planes, const uint8_t *p, int in_chunk,
                                   uint8_t *to)
{
    qn_scale_kind kind = qn_layout_scale(layout);
    const uint8_t *codes = p + qn_layout_header_bytes(layout, own, in_chunk);
    int move = qn_layout_zero(layout) ? 128 - qn_layout_zero(layout) : 0;
    header h;
    load_header(layout, own, p, in_chunk, &h);
    for (int i = 0; i < in_chunk;
         i++, codes += qn_layout_code_bytes(layout), to += scratch_block_bytes(kind, 1)) {
        __m512i w[8];
        load_codes(layout, codes, w);
        scales s = load_scales(layout, p, &h, i);
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
INLINE void tile(qn_layout layout, int planes, int rows, const uint8_t *scratch, int64_t n_blocks,
                 const uint8_t *x, size_t row_bytes, float *out, int64_t out_stride, int64_t n, int first,
                 const next_lines *next)
{
    qn_scale_kind kind = qn_layout_scale(layout);
    __mmask16 mask = lanes(n);
    __m512 acc[12];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        acc[r] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, out + r * out_stride);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) __builtin_prefetch(out + r * out_stride, 1, 3);
    act_rows from = rows_at(x, row_bytes, rows, rows);
    for (int64_t b = 0; b < n_blocks; b++) {
        __m512i w[8];
        scales s = {0};
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = _mm512_load_si512(scratch + 64 * g);
        s.d = _mm512_load_ps(scratch + 512);
        if (kind != QN_SCALE_SYM) s.m = _mm512_load_ps(scratch + 576);
        add_block(kind, planes, 0, rows, w, &s, &from, acc);
        next_block(&from, rows, planes);
        scratch += scratch_block_bytes(kind, 1);
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

void qn_matmul_avx512(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
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
    k->matmul = qn_matmul_avx512;
}
