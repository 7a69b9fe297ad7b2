/* Matmul of int8 activations with the dot products of Advanced SIMD (FEAT_DotProd).
 *
 * A lane is an output; a panel is four vectors wide, called its quarters. SDOT adds 16 products of signed
 * bytes to 4 sums: a vector of codes (4 k of 4 outputs) times 4 activations, picked from a register by their
 * index, so nothing is ever broadcast. Codes of up to 6 bits go in as they are; what stands for 0 comes in
 * through the start value of the sum. 8-bit codes go in less 128. Two planes use one sum: that of the high
 * plane, moved 7 bits to the left, is where the low plane starts.
 *
 * One row straight from packed codes: a block of 4 bits costs 16 loads, 32 instructions that take nibbles
 * apart, 32 SDOT and about 28 for scales and sums, 110 for 288 bytes; four a cycle pass 10 bytes a cycle,
 * more than a core's share of any memory. More rows: a tile in scratch is 4 rows x 2 quarters, where 8 SDOT
 * share 2 loads of codes and 1 of activations, and 24 of 32 registers hold sums, activations and codes: SDOT
 * is the limit on cores that issue two or four of them a cycle (counted, not measured). */
#include <string.h>

#include "device/cpu/kernels/matmul/codes_neon.h"
#include "device/cpu/kernels/matmul/rows_as_packed.h"
#include "device/cpu/kernels/sets.h"
#include "device/cpu/kernels/vec_neon.h"

enum {
    DIRECT_ROWS = 4,
    DIRECT_ROWS_2 = 4,
    TILE_ROWS = 4,
    TILE_ROWS_2 = 4,
    X_CACHE_BYTES = 256 << 10,
    PREFETCH_BYTES = 4096
};

#include "device/cpu/kernels/matmul/integer.body.h"

/* What a sum of signed codes lacks: 0 nothing, 1 zero (see qn_act_i8) by the bits, -1 zero to be subtracted.
 */
INLINE int lacks(qn_layout layout, int expanded)
{
    if (qn_layout_bits(layout) == 8) return qn_layout_has_min(layout) ? -1 : 0;
    return !expanded && !qn_layout_has_min(layout);
}

/* codes[4 j .. 4 j + 3] times x[4 at .. 4 at + 3]; at is a constant wherever this is expanded. */
INLINE int32x4_t dot_4(int32x4_t sum, int8x16_t codes, int8x16_t x, int at)
{
    switch (at) {
    case 0:
        return vdotq_laneq_s32(sum, codes, x, 0);
    case 1:
        return vdotq_laneq_s32(sum, codes, x, 1);
    case 2:
        return vdotq_laneq_s32(sum, codes, x, 2);
    default:
        return vdotq_laneq_s32(sum, codes, x, 3);
    }
}

/* acc + scale * sum * d, and the sum of all activations times m where there is a min. meta: scale, sum,
 * zero[2]. */
INLINE float32x4_t add_scaled(qn_layout layout, int32x4_t sum, float32x4_t meta, const scales *s,
                              float32x4_t acc)
{
    acc = vfmaq_f32(acc, vmulq_laneq_f32(vcvtq_f32_s32(sum), meta, 0), s->d);
    return qn_layout_has_min(layout) ? vfmaq_laneq_f32(acc, s->m, meta, 1) : acc;
}

/* The start value of the sum of a half block, or of a whole one (half -1). */
INLINE int32x4_t start(qn_layout layout, int expanded, float32x4_t meta, int half)
{
    int what = lacks(layout, expanded);
    if (!what) return vdupq_n_s32(0);
    int32x4_t bits = vreinterpretq_s32_f32(meta);
    int32x4_t zero = half == 1 ? vdupq_laneq_s32(bits, 3) : vdupq_laneq_s32(bits, 2);
    if (half == 0) zero = vsubq_s32(zero, vdupq_laneq_s32(bits, 3));
    return what < 0 ? vnegq_s32(zero) : zero >> (8 - qn_layout_bits(layout));
}

enum { TILE_MAX = 4 };

/* Integer sums of the steps [first, past) of 4 k, over all planes. Where w is NULL the codes lie in scratch,
 * 64 bytes a step. */
INLINE void dots(int planes, int rows, int quarters, int first, int past, const int8x16_t *w,
                 const uint8_t *expanded, const uint8_t *const x[TILE_MAX], const int32x4_t from[TILE_MAX],
                 int32x4_t sum[TILE_MAX][2])
{
#pragma GCC unroll 2
    for (int plane = 0; plane < planes; plane++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
            for (int q = 0; q < quarters; q++) {
                sum[r][q] = plane ? vshlq_n_s32(sum[r][q], 7) : vdupq_n_s32(0);
                if (plane == planes - 1) sum[r][q] = vaddq_s32(sum[r][q], from[r]);
            }
        }
#pragma GCC unroll 2
        for (int i = first; i < past; i += 4) {
            int8x16_t xv[TILE_MAX];
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                xv[r] = vreinterpretq_s8_u8(vld1q_u8(x[r] + QN_BLOCK * plane + 4 * i));
#pragma GCC unroll 4
            for (int g = i; g < i + 4; g++) {
#pragma GCC unroll 2
                for (int q = 0; q < quarters; q++) {
                    int8x16_t codes = w ? w[g] : vreinterpretq_s8_u8(vld1q_u8(expanded + 64 * g + 16 * q));
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++) sum[r][q] = dot_4(sum[r][q], codes, xv[r], g - i);
                }
            }
        }
    }
}

/* One block of one or two quarters. x[r]: one qn_act_i8 (planes 1) or qn_act_i8x2 (planes 2) of each row. */
INLINE void add_block(qn_layout layout, int planes, int rows, int quarters, const int8x16_t *w,
                      const uint8_t *expanded, const scales *s, const uint8_t *const x[TILE_MAX],
                      float32x4_t acc[TILE_MAX][2])
{
    int halves = qn_layout_by_halves(layout) ? 2 : 1;
    int32x4_t from[TILE_MAX], sum[TILE_MAX][2];
    float32x4_t both[TILE_MAX][2];
#pragma GCC unroll 2
    for (int h = 0; h < halves; h++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            from[r] = start(layout, !w, load_f32x4(x[r] + QN_BLOCK * planes), halves == 2 ? h : -1);
        dots(planes, rows, quarters, 8 / halves * h, 8 / halves * (h + 1), w, expanded, x, from, sum);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
            for (int q = 0; q < quarters; q++) {
                float32x4_t v = vcvtq_f32_s32(sum[r][q]);
                if (halves == 2) both[r][q] = h ? vfmaq_f32(both[r][q], v, s[q].m) : vmulq_f32(v, s[q].d);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        float32x4_t meta = load_f32x4(x[r] + QN_BLOCK * planes);
#pragma GCC unroll 2
        for (int q = 0; q < quarters; q++)
            acc[r][q] = halves == 2 ? vfmaq_laneq_f32(acc[r][q], both[r][q], meta, 0)
                                    : add_scaled(layout, sum[r][q], meta, &s[q], acc[r][q]);
    }
}

/* The first n (below 4, perhaps none) outputs of one quarter of the last panel. */
static __attribute__((noinline)) void store_part(float *out, int64_t n, float32x4_t v)
{
    float all[4];
    vst1q_f32(all, v);
    for (int64_t i = 0; i < n; i++) out[i] = all[i];
}

static __attribute__((noinline)) float32x4_t load_part(const float *out, int64_t n)
{
    float all[4] = {0};
    for (int64_t i = 0; i < n; i++) all[i] = out[i];
    return vld1q_f32(all);
}

/* One quarter of a panel's output; n: outputs that exist from here on. */
INLINE void store_quarter(float *out, int64_t n, float32x4_t v)
{
    if (n >= 4) {
        vst1q_f32(out, v);
    } else {
        store_part(out, n, v);
    }
}

INLINE float32x4_t load_quarter(const float *out, int64_t n)
{
    return n >= 4 ? vld1q_f32(out) : load_part(out, n);
}

/* rows: a constant >= a->n_rows; what is missing is computed again from the last row and dropped. */
INLINE void direct(qn_layout layout, int planes, int rows, const qn_matmul_args *a, int64_t begin,
                   int64_t end)
{
    int64_t n_blocks = a->n_in / QN_BLOCK;
    size_t row_bytes = qn_act_row_bytes(planes == 1 ? QN_ACT_I8 : QN_ACT_I8X2, a->n_in);
    size_t code_bytes = qn_layout_code_bytes(layout);
    const uint8_t *p = (const uint8_t *)a->panels + (size_t)begin * qn_pack_panel_bytes(a->dtype, a->n_in);
    for (int64_t panel = begin; panel < end; panel++) {
        const uint8_t *x[TILE_MAX];
        float32x4_t acc[4][TILE_MAX][2]; /* [quarter][row][one] */
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            x[r] = (const uint8_t *)a->x + row_bytes * (size_t)(r < a->n_rows ? r : a->n_rows - 1);
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) acc[q][r][0] = vdupq_n_f32(0);
        }
        for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
            int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
            const uint8_t *codes = p + qn_layout_header_bytes(layout, a->dtype, in_chunk);
            header h;
            load_header(layout, a->dtype, p, in_chunk, &h);
#pragma GCC unroll 8
            for (size_t at = 0; at < qn_layout_header_bytes(layout, a->dtype, QN_CHUNK); at += 64)
                __builtin_prefetch(p + PREFETCH_BYTES + at);
            for (int i = 0; i < in_chunk; i++, codes += code_bytes) {
#pragma GCC unroll 8
                for (size_t at = 0; at < code_bytes; at += 64)
                    __builtin_prefetch(codes + PREFETCH_BYTES + at);
                for (int q = 0; q < 4; q++) {
                    int8x16_t w[8];
#pragma GCC unroll 8
                    for (int g = 0; g < 8; g++) w[g] = code_vector(layout, codes + 16 * q, g);
                    scales s = packed_scales(layout, p, &h, i, q);
                    add_block(layout, planes, rows, 1, w, NULL, &s, x, acc[q]);
                }
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) x[r] += act_block_bytes(planes);
            }
            p = codes;
        }
        int64_t n = a->n_out - panel * QN_PANEL;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            if (r >= a->n_rows) continue;
            float *out = a->out + r * a->out_stride + panel * QN_PANEL;
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) store_quarter(out + 4 * q, n - 4 * q, acc[q][r][0]);
        }
    }
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
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
            uint8_t *t = to + 16 * q;
            scales s = packed_scales(layout, p, &h, i, q);
#pragma GCC unroll 8
            for (int g = 0; g < 8; g++)
                vst1q_u8(t + 64 * g,
                         vreinterpretq_u8_s8(vsubq_s8(code_vector(layout, codes + 16 * q, g), zero)));
            store_scales(kind, &s, t + 512);
        }
    }
    return codes;
}

INLINE void tile(qn_layout layout, int planes, int rows, const uint8_t *scratch, int64_t n_blocks,
                 const uint8_t *x, size_t row_bytes, float *out, int64_t out_stride, int64_t n, int first,
                 const next_lines *next)
{
    for (int side = 0; side < 2; side++, out += 8, n -= 8) {
        const uint8_t *w = scratch + 32 * side, *xr[TILE_MAX];
        float32x4_t acc[TILE_MAX][2];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            xr[r] = x + (size_t)r * row_bytes;
#pragma GCC unroll 2
            for (int q = 0; q < 2; q++)
                acc[r][q] = first ? vdupq_n_f32(0) : load_quarter(out + r * out_stride + 4 * q, n - 4 * q);
        }
        for (int64_t b = 0; b < n_blocks; b++, w += scratch_block_bytes(qn_layout_scale(layout), 1)) {
            scales s[2] = {expanded_scales(qn_layout_scale(layout), w + 512),
                           expanded_scales(qn_layout_scale(layout), w + 528)};
            add_block(layout, planes, rows, 2, NULL, w, s, xr, acc);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) xr[r] += act_block_bytes(planes);
            if (side == 0) fetch_lines(next, b);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
            for (int q = 0; q < 2; q++) store_quarter(out + r * out_stride + 4 * q, n - 4 * q, acc[r][q]);
        }
    }
}

void qn_matmul_neon(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->act == QN_ACT_I8 || a->act == QN_ACT_I8X2) {
        integer_matmul(a, begin, end, scratch);
    } else {
        qn_matmul_float_neon(a, begin, end, scratch);
    }
}

void qn_kernels_fill_matmul_neon(qn_kernels *k)
{
    k->unpack_panel = qn_unpack_panel_neon;
    k->act_pack = qn_act_pack_neon;
    k->matmul = qn_matmul_neon;
}
