/* Matmul of int8 activations with the matrix products of Advanced SIMD (FEAT_I8MM): all of neon's, but for
 * many rows.
 *
 * SMMLA adds 32 products to 4 sums, twice as many as SDOT: 2 rows x 8 k of activations times 2 outputs x 8 k
 * of codes. In scratch the codes therefore lie as [8 k][pair of outputs][2 outputs][8 k]. A sum holds rows i
 * and i + 1 of outputs j and j + 1, in memory's order of (i, j), (i, j + 1), (i + 1, j), (i + 1, j + 1); the
 * floats keep this order for the length of a stretch. Integer sums are exact and floats of an output meet
 * the same operations in the same order as in neon, so the bits are the same.
 *
 * A tile of 4 rows x 8 outputs spends 8 SMMLA on 4 loads of codes, 1 of activations and 1 zip, and keeps 8
 * integer and 8 float sums in registers (counted, not measured). */
#include <string.h>

#include "device/cpu/kernels/matmul/codes_neon.h"
#include "device/cpu/kernels/matmul/rows_as_packed.h"
#include "device/cpu/kernels/sets.h"
#include "device/cpu/kernels/vec_neon.h"

enum { DIRECT_ROWS = 4, DIRECT_ROWS_2 = 4, TILE_ROWS = 4, TILE_ROWS_2 = 4, X_CACHE_BYTES = 256 << 10 };

#include "device/cpu/kernels/matmul/integer.body.h"

/* Two pairs of rows, four pairs of outputs: the sums of half a panel. */
enum { PAIRS = 4, TILE_PAIRS = 2 };

INLINE void direct(qn_layout layout, int planes, int rows, const qn_matmul_args *a, int64_t begin,
                   int64_t end)
{
    qn_matmul_neon(a, begin, end, NULL); /* so few rows need no scratch */
}

INLINE float32x4_t low_halves(float32x4_t a, float32x4_t b)
{
    return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

INLINE float32x4_t high_halves(float32x4_t a, float32x4_t b)
{
    return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

INLINE const uint8_t *expand_chunk(qn_layout layout, qn_dtype own, int planes, const uint8_t *p, int in_chunk,
                                   uint8_t *to)
{
    qn_scale_kind kind = qn_layout_scale(layout);
    const uint8_t *codes = p + qn_layout_header_bytes(layout, own, in_chunk);
    int8x16_t zero = vdupq_n_s8((int8_t)(qn_layout_bits(layout) == 8 ? 0 : qn_layout_zero(layout)));
    header h;
    load_header(layout, own, p, in_chunk, &h);
    for (int i = 0; i < in_chunk;
         i++, codes += qn_layout_code_bytes(layout), to += scratch_block_bytes(kind, 1)) {
        for (int q = 0; q < 4; q++) {
            scales s = packed_scales(layout, p, &h, i, q);
#pragma GCC unroll 4
            for (int g = 0; g < 8; g += 2) {
                uint8_t *t = to + 64 * g + 32 * q;
                int8x16_t a = vsubq_s8(code_vector(layout, codes + 16 * q, g), zero);
                int8x16_t b = vsubq_s8(code_vector(layout, codes + 16 * q, g + 1), zero);
                int32x4_t first = vreinterpretq_s32_s8(a), second = vreinterpretq_s32_s8(b);
                vst1q_s32((int32_t *)(void *)t, vzip1q_s32(first, second));
                vst1q_s32((int32_t *)(void *)(t + 16), vzip2q_s32(first, second));
            }
            store_scales(kind, &s, to + 512 + 16 * q);
        }
    }
    return codes;
}

/* 8 bytes of a pair of outputs, for both rows: a, b, a, b. */
INLINE float32x4_t both_rows(const uint8_t *p)
{
    float64_t v;
    memcpy(&v, p, sizeof v);
    return vreinterpretq_f32_f64(vdupq_n_f64(v));
}

/* Integer sums of the steps [first, past) of 8 k, over all planes. x[r]: activations of row r. */
INLINE void products(int planes, int row_pairs, int first, int past, const uint8_t *w,
                     const uint8_t *const x[2 * TILE_PAIRS], int32x4_t sum[TILE_PAIRS][PAIRS])
{
#pragma GCC unroll 2
    for (int plane = 0; plane < planes; plane++) {
#pragma GCC unroll 2
        for (int r = 0; r < row_pairs; r++) {
#pragma GCC unroll 4
            for (int o = 0; o < PAIRS; o++) sum[r][o] = plane ? vshlq_n_s32(sum[r][o], 7) : vdupq_n_s32(0);
        }
#pragma GCC unroll 2
        for (int i = first; i < past; i += 2) {
            int8x16_t xv[TILE_PAIRS][2];
#pragma GCC unroll 2
            for (int r = 0; r < row_pairs; r++) {
                float32x4_t a = load_f32x4(x[2 * r] + QN_BLOCK * plane + 8 * i);
                float32x4_t b = load_f32x4(x[2 * r + 1] + QN_BLOCK * plane + 8 * i);
                xv[r][0] = vreinterpretq_s8_f32(low_halves(a, b));
                xv[r][1] = vreinterpretq_s8_f32(high_halves(a, b));
            }
#pragma GCC unroll 2
            for (int g = i; g < i + 2; g++) {
#pragma GCC unroll 4
                for (int o = 0; o < PAIRS; o++) {
                    int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(w + 128 * g + 16 * o));
#pragma GCC unroll 2
                    for (int r = 0; r < row_pairs; r++)
                        sum[r][o] = vmmlaq_s32(sum[r][o], xv[r][g - i], codes);
                }
            }
        }
    }
}

/* w: codes of one side (8 outputs) of a block in scratch; s: its scales. */
INLINE void add_block(qn_layout layout, int planes, int row_pairs, const uint8_t *w, const uint8_t *s,
                      const uint8_t *const x[2 * TILE_PAIRS], float32x4_t acc[TILE_PAIRS][PAIRS])
{
    const int by_halves = qn_layout_by_halves(layout);
    int32x4_t sum[TILE_PAIRS][PAIRS];
    float32x4_t both[TILE_PAIRS][PAIRS];
    products(planes, row_pairs, 0, by_halves ? 2 : 4, w, x, sum);
    if (by_halves) {
#pragma GCC unroll 4
        for (int o = 0; o < PAIRS; o++) {
#pragma GCC unroll 2
            for (int r = 0; r < row_pairs; r++)
                both[r][o] = vmulq_f32(vcvtq_f32_s32(sum[r][o]), both_rows(s + 8 * o));
        }
        products(planes, row_pairs, 2, 4, w, x, sum);
#pragma GCC unroll 4
        for (int o = 0; o < PAIRS; o++) {
#pragma GCC unroll 2
            for (int r = 0; r < row_pairs; r++)
                both[r][o] = vfmaq_f32(both[r][o], vcvtq_f32_s32(sum[r][o]), both_rows(s + 64 + 8 * o));
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < row_pairs; r++) {
        /* Of both rows: scale, sum, zero[2]. */
        float32x4_t a = load_f32x4(x[2 * r] + QN_BLOCK * planes),
                    b = load_f32x4(x[2 * r + 1] + QN_BLOCK * planes);
        float32x4_t floats = vzip1q_f32(a, b);
        float32x4_t scale = vzip1q_f32(floats, floats), x_sum = vzip2q_f32(floats, floats);
        int32x4_t zero = vreinterpretq_s32_f32(vzip2q_f32(a, b));
        zero = vzip1q_s32(zero, zero);
#pragma GCC unroll 4
        for (int o = 0; o < PAIRS; o++) {
            if (by_halves) {
                acc[r][o] = vfmaq_f32(acc[r][o], both[r][o], scale);
                continue;
            }
            if (qn_layout_has_min(layout) && qn_layout_bits(layout) == 8)
                sum[r][o] = vsubq_s32(sum[r][o], zero); /* codes are less by 128 */
            acc[r][o] =
                vfmaq_f32(acc[r][o], vmulq_f32(vcvtq_f32_s32(sum[r][o]), scale), both_rows(s + 8 * o));
            if (qn_layout_has_min(layout)) acc[r][o] = vfmaq_f32(acc[r][o], x_sum, both_rows(s + 64 + 8 * o));
        }
    }
}

/* The first n of 8 outputs of a row. */
static void copy_part(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n && i < 8; i++) to[i] = from[i];
}

/* Sums of a pair of rows, from and to rows a and b of 8 outputs. */
INLINE void load_pair(const float *a, const float *b, float32x4_t acc[PAIRS])
{
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        float32x4_t p = vld1q_f32(a + 4 * i), q = vld1q_f32(b + 4 * i);
        acc[2 * i] = low_halves(p, q);
        acc[2 * i + 1] = high_halves(p, q);
    }
}

INLINE void store_pair(float *a, float *b, const float32x4_t acc[PAIRS])
{
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        vst1q_f32(b + 4 * i, high_halves(acc[2 * i], acc[2 * i + 1]));
        vst1q_f32(a + 4 * i, low_halves(acc[2 * i], acc[2 * i + 1]));
    }
}

/* A single row is both rows of its pair. */
INLINE void tile(qn_layout layout, int planes, int rows, const uint8_t *scratch, int64_t n_blocks,
                 const uint8_t *x, size_t row_bytes, float *out, int64_t out_stride, int64_t n, int first,
                 const next_lines *next)
{
    size_t block_bytes = scratch_block_bytes(qn_layout_scale(layout), 1);
    int row_pairs = (rows + 1) / 2;
    for (int side = 0; side < 2; side++, out += 8, n -= 8) {
        const uint8_t *block = scratch, *xr[2 * TILE_PAIRS];
        float32x4_t acc[TILE_PAIRS][PAIRS];
        float part[2 * TILE_PAIRS][8] = {{0}}; /* the last panel of a matrix may lack outputs */
        float *to[2 * TILE_PAIRS];
#pragma GCC unroll 4
        for (int r = 0; r < 2 * row_pairs; r++) {
            int row = r < rows ? r : rows - 1;
            xr[r] = x + (size_t)row * row_bytes;
            to[r] = n >= 8 ? out + row * out_stride : part[row];
            if (n < 8 && !first) copy_part(part[row], out + row * out_stride, n);
        }
#pragma GCC unroll 2
        for (int r = 0; r < row_pairs; r++) {
            if (first) {
#pragma GCC unroll 4
                for (int o = 0; o < PAIRS; o++) acc[r][o] = vdupq_n_f32(0);
            } else {
                load_pair(to[2 * r], to[2 * r + 1], acc[r]);
            }
        }
        for (int64_t b = 0; b < n_blocks; b++, block += block_bytes) {
            add_block(layout, planes, row_pairs, block + 64 * side, block + 512 + 32 * side, xr, acc);
#pragma GCC unroll 4
            for (int r = 0; r < 2 * row_pairs; r++) xr[r] += act_block_bytes(planes);
            if (side == 0) fetch_lines(next, b);
        }
#pragma GCC unroll 2
        for (int r = 0; r < row_pairs; r++) store_pair(to[2 * r], to[2 * r + 1], acc[r]);
        for (int r = 0; r < rows && n < 8; r++) copy_part(out + r * out_stride, part[r], n);
    }
}

static void matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->act == QN_ACT_I8 || a->act == QN_ACT_I8X2) {
        integer_matmul(a, begin, end, scratch);
    } else {
        qn_matmul_float_neon(a, begin, end, scratch);
    }
}

void qn_kernels_fill_matmul_neon_i8mm(qn_kernels *k)
{
    qn_kernels_fill_matmul_neon(k);
    k->matmul = matmul;
}
