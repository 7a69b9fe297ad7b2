/* Products of int8 activations in AVX2's registers: what avx2 and avx2_vnni share. They differ in how
 * integers are multiplied, which the including file says: STRETCH_LAYOUTS, stretch_layout (integer.body.h),
 * lacks, in_scratch, block_sums and add_pairs, as declared below.
 *
 * A lane is an output; a panel is two vectors wide, called its sides, which share each broadcast of four
 * activations: instructions are the limit, not the multipliers. Few rows read packed codes, more rows a
 * stretch of a panel that was unpacked into scratch; both do the same operations per block, so they give the
 * same bits. There two planes of activations are put together in 16 bits, as codes are: the integers are the
 * same, from fewer instructions. */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/kernels/matmul/codes_avx2.h"
#include "device/cpu/kernels/sets.h"
#include "device/cpu/kernels/vec_avx2.h"

enum {
    DIRECT_ROWS = 4,
    DIRECT_ROWS_2 = 2,
    TILE_ROWS = 4,
    TILE_ROWS_2 = 4,
    WIDE = 1,
    X_CACHE_BYTES = 256 << 10,
    PREFETCH_BYTES = 8192,
    FEW = 2 /* rows times planes that take less time than memory */
};

/* In 16 bits, and less their zero, only what becomes of the sums differs. */
#define STRETCH2_LAYOUTS(X) X(SYM8) X(MIN4) X(E2M1_HALF)

INLINE qn_layout wide_layout(qn_layout layout)
{
    if (qn_layout_by_halves(layout)) return QN_LAYOUT_E2M1_HALF;
    return qn_layout_has_min(layout) ? QN_LAYOUT_MIN4 : QN_LAYOUT_SYM8;
}

static qn_layout stretch_layout(qn_layout layout, int planes);

#include "device/cpu/kernels/matmul/integer.body.h"

enum { TILE_MAX = 4, SIDES = 2, SUMS_MAX = 8 };

/* Whether sums of products with codes as they are multiplied lack what stands for their zero (1), have too
 * little by it (-1), or neither. */
INLINE int lacks(qn_layout layout);
/* Codes of one plane as scratch keeps them. w: as code_vector gives them. */
INLINE __m256i in_scratch(qn_layout layout, __m256i w);
/* The integer sums of a block, by row, plane and side, of half a block or (then [0]) of all of it. codes: of
 * the first side, the next lies 32 bytes further. x[r]: one qn_act_i8 (planes 1) or qn_act_i8x2 of each row.
 * rows * planes * SIDES is at most SUMS_MAX. */
INLINE void block_sums(qn_layout layout, source from, int planes, int rows, const uint8_t *codes,
                       const uint8_t *const x[TILE_MAX], __m256i (*sum)[SUMS_MAX]);
/* sum (if opens: 0) and w x of pairs of 16 bits. */
INLINE __m256i add_pairs(__m256i sum, __m256i w, __m256i x, int opens);

INLINE __m256i broadcast4(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* Keeps a sum as the chain that it was written as: gcc makes trees of integer additions, which want more
 * registers than there are. */
INLINE __m256i in_order(__m256i v)
{
    __asm__("" : "+x"(v));
    return v;
}

/* p: behind the codes of a block in scratch. */
INLINE scales expanded_scales(qn_scale_kind kind, const uint8_t *p, int side)
{
    scales s = {0};
    s.d = _mm256_loadu_ps((const float *)(const void *)(p + 32 * side));
    if (kind != QN_SCALE_SYM) s.m = _mm256_loadu_ps((const float *)(const void *)(p + 64 + 32 * side));
    return s;
}

/* What stands for the codes' zero in a sum of half a block, or all of it (then h is 0). meta: scale, sum,
 * zero[2] of a row's block. */
INLINE __m256i zero_of(qn_layout layout, const uint8_t *meta, int h)
{
    __m256i zero = broadcast4(meta + 8 + 4 * h);
    if (qn_layout_by_halves(layout) && h == 0) zero = _mm256_sub_epi32(zero, broadcast4(meta + 12));
    return _mm256_srai_epi32(zero, 8 - qn_layout_bits(layout));
}

INLINE __m256 broadcast_f32(const void *p)
{
    return _mm256_castsi256_ps(broadcast4(p));
}

/* acc and a block whose integer sum (by halves two) is dot. */
INLINE __m256 add_dot(qn_layout layout, const __m256i dot[2], const scales *s, const uint8_t *meta,
                      __m256 acc)
{
    if (qn_layout_by_halves(layout)) {
        __m256 both = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[0]), s->d);
        both = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[1]), s->m, both);
        return _mm256_fmadd_ps(both, broadcast_f32(meta), acc);
    }
    acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot[0]), broadcast_f32(meta)), s->d, acc);
    return qn_layout_has_min(layout) ? _mm256_fmadd_ps(broadcast_f32(meta + 4), s->m, acc) : acc;
}

/* One block of both sides: see block_sums; s and acc [side]. */
INLINE void add_block(qn_layout layout, source from, int planes, int rows, const uint8_t *codes,
                      const scales *s, const uint8_t *const x[TILE_MAX], __m256 (*acc)[TILE_MAX])
{
    const int halves = qn_layout_by_halves(layout) ? 2 : 1, zero = lacks(layout);
    __m256i sum[2][SUMS_MAX];
    block_sums(layout, from, planes, rows, codes, x, sum);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const uint8_t *meta = x[r] + QN_BLOCK * planes;
        __m256i missing[2];
#pragma GCC unroll 2
        for (int h = 0; h < halves && zero; h++) missing[h] = zero_of(layout, meta, h);
#pragma GCC unroll 2
        for (int side = 0; side < SIDES; side++) {
            __m256i dot[2];
#pragma GCC unroll 2
            for (int h = 0; h < halves; h++) {
                const __m256i *of = &sum[h][r * planes * SIDES + side];
                dot[h] = of[0];
                if (planes == 2) dot[h] = _mm256_add_epi32(_mm256_slli_epi32(of[0], 7), of[SIDES]);
                if (zero > 0) dot[h] = _mm256_add_epi32(dot[h], missing[h]);
                if (zero < 0) dot[h] = _mm256_sub_epi32(dot[h], missing[h]);
            }
            acc[side][r] = add_dot(layout, dot, &s[side], meta, acc[side][r]);
        }
    }
}

/* The first n (below 8) outputs of one side of the last panel. */
static __attribute__((noinline)) void store_part(float *out, int64_t n, __m256 v)
{
    float all[8];
    _mm256_storeu_ps(all, v);
    for (int64_t i = 0; i < n; i++) out[i] = all[i];
}

static __attribute__((noinline)) __m256 load_part(const float *out, int64_t n)
{
    float all[8] = {0};
    for (int64_t i = 0; i < n; i++) all[i] = out[i];
    return _mm256_loadu_ps(all);
}

/* One side of a panel's output; n: outputs that exist from here on, perhaps none. */
INLINE void store_side(float *out, int64_t n, __m256 v)
{
    if (n >= 8) {
        _mm256_storeu_ps(out, v);
    } else {
        store_part(out, n, v);
    }
}

INLINE __m256 load_side(const float *out, int64_t n)
{
    return n >= 8 ? _mm256_loadu_ps(out) : load_part(out, n);
}

/* rows: a constant >= a->n_rows; what is missing is computed again from the last row and dropped. */
INLINE void direct(qn_layout layout, int planes, int rows, const qn_matmul_args *a, int64_t begin,
                   int64_t end)
{
    int64_t n_blocks = a->n_in / QN_BLOCK;
    size_t row_bytes = qn_act_row_bytes(planes == 1 ? QN_ACT_I8 : QN_ACT_I8X2, a->n_in);
    /* One row of codes that lie in several parts takes as long as memory does: one core then reads 0.85 of
     * the bandwidth, and 0.7 without. */
    const int parts = qn_layout_bits(layout) == 5 || qn_layout_bits(layout) == 6;
    const int few = rows * planes <= FEW && !(parts && rows * planes == 1);
    const size_t code_bytes = qn_layout_code_bytes(layout), ahead = few ? qn_few_ahead : PREFETCH_BYTES;
    const uint8_t *p = (const uint8_t *)a->panels + (size_t)begin * qn_pack_panel_bytes(a->dtype, a->n_in);
    for (int64_t panel = begin; panel < end; panel++) {
        const uint8_t *x[TILE_MAX];
        __m256 acc[SIDES][TILE_MAX];
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            x[r] = (const uint8_t *)a->x + row_bytes * (size_t)(r < a->n_rows ? r : a->n_rows - 1);
            acc[0][r] = acc[1][r] = _mm256_setzero_ps();
        }
        for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
            int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
            const uint8_t *codes = p + qn_layout_header_bytes(layout, a->dtype, in_chunk);
            header h;
            fetch_header(p + ahead, codes + ahead);
            load_header(layout, a->dtype, p, in_chunk, &h);
            for (int i = 0; i < in_chunk; i++, codes += code_bytes) {
                if (ahead) fetch_codes(codes + ahead, code_bytes, few);
                const scales s[SIDES] = {packed_scales(layout, p, &h, i, 0),
                                         packed_scales(layout, p, &h, i, 1)};
                add_block(layout, PACKED, planes, rows, codes, s, x, acc);
#pragma GCC unroll 6
                for (int r = 0; r < rows; r++) x[r] += act_block_bytes(planes);
            }
            p = codes;
        }
        int64_t n = a->n_out - panel * QN_PANEL;
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            if (r >= a->n_rows) continue;
            float *out = a->out + r * a->out_stride + panel * QN_PANEL;
            store_side(out, n, acc[0][r]);
            store_side(out + 8, n - 8, acc[1][r]);
        }
    }
}

/* ---- many rows ----------------------------------------------------------------------------------------- */

/* Codes of k = 4 g .. 4 g + 3 as vectors of pairs of 16 bits, the first two and the others, less their zero:
 * what rows of 16 bits are multiplied by. */
INLINE void wide_codes(qn_layout layout, __m256i w, __m256i wide[2])
{
    const int bits = qn_layout_bits(layout), has_min = qn_layout_has_min(layout);
    const __m256i spread =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13));
    if (bits < 8 && !has_min) w = _mm256_sub_epi8(w, _mm256_set1_epi8((char)qn_layout_zero(layout)));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        wide[i] = _mm256_shuffle_epi8(w, _mm256_add_epi8(spread, _mm256_set1_epi8((char)(2 * i))));
        wide[i] = _mm256_srai_epi16(wide[i], 8);
        if (bits == 8 && has_min) wide[i] = _mm256_add_epi16(wide[i], _mm256_set1_epi16(128));
    }
}

INLINE const uint8_t *expand_chunk(qn_layout layout, qn_dtype own, int planes, const uint8_t *p, int in_chunk,
                                   uint8_t *to)
{
    qn_scale_kind kind = qn_layout_scale(layout);
    const uint8_t *codes = p + qn_layout_header_bytes(layout, own, in_chunk);
    header h;
    load_header(layout, own, p, in_chunk, &h);
    for (int i = 0; i < in_chunk;
         i++, codes += qn_layout_code_bytes(layout), to += scratch_block_bytes(kind, planes)) {
#pragma GCC unroll 2
        for (int side = 0; side < 2; side++) {
            uint8_t *t = to + 32 * side;
            scales s = packed_scales(layout, p, &h, i, side);
#pragma GCC unroll 8
            for (int g = 0; g < 8; g++) {
                const __m256i w = code_vector(layout, PACKED, codes + 32 * side, g);
                if (planes == 1) {
                    _mm256_storeu_si256((void *)(t + 64 * g), in_scratch(layout, w));
                    continue;
                }
                __m256i wide[2];
                wide_codes(layout, w, wide);
                _mm256_storeu_si256((void *)(t + 128 * g), wide[0]);
                _mm256_storeu_si256((void *)(t + 128 * g + 64), wide[1]);
            }
            t += scratch_code_bytes(planes);
            _mm256_storeu_ps((float *)(void *)t, s.d);
            if (kind != QN_SCALE_SYM) _mm256_storeu_ps((float *)(void *)(t + 64), s.m);
        }
    }
    return codes;
}

/* Two planes become integers of 16 bits (wide_at), scale and sum stay where they are in a qn_act_i8x2. */
static tile_rows form_rows(int planes, const uint8_t *x, size_t row_bytes, int64_t n_rows, int64_t n_blocks,
                           uint8_t *room)
{
    if (planes == 1) return (tile_rows){x, row_bytes};
    const size_t block_bytes = act_block_bytes(2),
                 to_bytes =
                     (((size_t)n_blocks * block_bytes + 63) / 64 | 1) * 64; /* an odd number of lines */
    const __m256i times = _mm256_set1_epi16((short)0x8001);                 /* 1, 128 */
    for (int64_t r = 0; r < n_rows; r++) {
        const uint8_t *from = x + (size_t)r * row_bytes;
        uint8_t *to = room + (size_t)r * to_bytes;
        for (int64_t b = 0; b < n_blocks; b++, from += block_bytes, to += block_bytes) {
            __builtin_prefetch(from + 2 * row_bytes); /* of the row after the next: here they lie apart */
            __builtin_prefetch(from + 2 * row_bytes + 63);
            const __m256i high = load(from), low = load(from + QN_BLOCK);
            const __m256i a = _mm256_maddubs_epi16(times, _mm256_unpacklo_epi8(low, high)),
                          c = _mm256_maddubs_epi16(times, _mm256_unpackhi_epi8(low, high));
            _mm256_storeu_si256((void *)to, a);
            _mm256_storeu_si256((void *)(to + 32), c);
            _mm_storeu_si128((void *)(to + 64), _mm_loadu_si128((const void *)(from + 64)));
        }
    }
    return (tile_rows){room, to_bytes};
}

/* Where k = 2 pair and the next lie in what form_rows makes of a block. */
INLINE int wide_at(int pair)
{
    return pair / 4 % 2 * 32 + pair / 8 * 16 + pair % 4 * 4;
}

/* add_block of both sides for codes and rows of 16 bits. */
INLINE void add_wide(qn_layout layout, int rows, const uint8_t *codes, const scales *s,
                     const uint8_t *const x[TILE_MAX], __m256 (*acc)[TILE_MAX])
{
    const int halves = qn_layout_by_halves(layout) ? 2 : 1;
    __m256i sum[2][SUMS_MAX];
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; pair++) {
        const int h = halves * pair / 16, opens = pair * halves % 16 == 0;
        const __m256i w[SIDES] = {load(codes + 64 * pair), load(codes + 64 * pair + 32)};
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const __m256i xv = broadcast4(x[r] + wide_at(pair));
#pragma GCC unroll 2
            for (int side = 0; side < SIDES; side++) {
                __m256i *to = &sum[h][SIDES * r + side];
                *to = in_order(add_pairs(*to, w[side], xv, opens));
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int side = 0; side < SIDES; side++) {
            const __m256i dot[2] = {sum[0][SIDES * r + side], sum[halves - 1][SIDES * r + side]};
            acc[side][r] = add_dot(layout, dot, &s[side], x[r] + 2 * QN_BLOCK, acc[side][r]);
        }
    }
}

/* rows (constant) of x times a stretch; sums go on from out unless first. n: outputs that exist. */
INLINE void tile(qn_layout layout, int planes, int rows, const uint8_t *scratch, int64_t n_blocks,
                 const uint8_t *x, size_t row_bytes, float *out, int64_t out_stride, int64_t n, int first,
                 const next_lines *next)
{
    const qn_scale_kind kind = qn_layout_scale(layout);
    const size_t code_bytes = scratch_code_bytes(planes);
    __m256 acc[SIDES][TILE_MAX];
    const uint8_t *xr[TILE_MAX];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        acc[0][r] = first ? _mm256_setzero_ps() : load_side(out + r * out_stride, n);
        acc[1][r] = first ? _mm256_setzero_ps() : load_side(out + r * out_stride + 8, n - 8);
        xr[r] = x + (size_t)r * row_bytes;
    }
    for (int64_t b = 0; b < n_blocks; b++) {
        const scales s[SIDES] = {expanded_scales(kind, scratch + code_bytes, 0),
                                 expanded_scales(kind, scratch + code_bytes, 1)};
        if (planes == 1)
            add_block(layout, EXPANDED, 1, rows, scratch, s, xr, acc);
        else
            add_wide(layout, rows, scratch, s, xr, acc);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) xr[r] += act_block_bytes(planes);
        scratch += scratch_block_bytes(kind, planes);
        fetch_lines(next, b);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        store_side(out + r * out_stride, n, acc[0][r]);
        store_side(out + r * out_stride + 8, n - 8, acc[1][r]);
    }
}

static void matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->act == QN_ACT_I8 || a->act == QN_ACT_I8X2) {
        integer_matmul(a, begin, end, scratch);
    } else {
        qn_matmul_float_avx2(a, begin, end, scratch);
    }
}

static void fill_matmul(qn_kernels *k)
{
    k->unpack_panel = qn_unpack_panel_avx2;
    k->act_pack = qn_act_pack_avx2;
    k->matmul = matmul;
    k->two_planes_bytes = CODES_BYTES + WIDE_ROWS * (WIDE_STRETCH * sizeof(qn_act_i8x2) + 64);
}
