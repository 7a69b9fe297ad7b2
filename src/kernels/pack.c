#include "kernels/pack.h"

#include <string.h>

#include "base/checked.h"
#include "quant/types.h"

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void store32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return qn_f16_to_f32(h);
}

static float load_scale(qn_dtype type, const uint8_t *p)
{
    uint16_t h;
    float f;
    memcpy(&h, p, sizeof h);
    if (type != QN_DTYPE_F32) return type == QN_DTYPE_F16 ? qn_f16_to_f32(h) : qn_bf16_to_f32(h);
    memcpy(&f, p, sizeof f);
    return f;
}

/* ---- sizes ------------------------------------------------------------------------------------------- */

static int64_t block_elements(qn_dtype dtype)
{
    return qn_type_get(dtype)->block_elements;
}

static size_t chunk_bytes(qn_dtype dtype, int64_t n_blocks)
{
    return qn_layout_header_bytes(dtype, n_blocks) + (size_t)n_blocks * qn_layout_code_bytes(dtype);
}

size_t qn_pack_panel_bytes(qn_dtype dtype, int64_t n_in)
{
    if (n_in <= 0 || n_in > INT64_MAX / 256) return 0;
    switch (dtype) {
    case QN_DTYPE_F32:
        return (size_t)n_in * QN_PANEL * 4;
    case QN_DTYPE_F16:
        return (size_t)n_in * QN_PANEL * 2;
    case QN_DTYPE_BF16:
        return (size_t)(n_in + 1) / 2 * QN_PANEL * 4;
    default:
        break;
    }
    if (qn_layout_scale(dtype) == QN_SCALE_NONE || n_in % block_elements(dtype) != 0) return 0;
    int64_t n_blocks = n_in / QN_BLOCK, rest = n_blocks % QN_CHUNK;
    return (size_t)(n_blocks / QN_CHUNK) * chunk_bytes(dtype, QN_CHUNK) +
           (rest ? chunk_bytes(dtype, rest) : 0);
}

qn_act qn_matmul_act(qn_dtype weight, qn_precision precision)
{
    if (precision == QN_PRECISION_EXACT) return QN_ACT_F32;
    /* MLX computes with bf16 activations, which one plane of int8 would fall short of. */
    int of_mlx = weight == QN_DTYPE_MXFP4 || qn_affine_of(weight).bits;
    if (qn_layout_scale(weight) != QN_SCALE_NONE)
        return precision == QN_PRECISION_FAST && !of_mlx ? QN_ACT_I8 : QN_ACT_I8X2;
    return weight == QN_DTYPE_BF16 && precision == QN_PRECISION_FAST ? QN_ACT_BF16 : QN_ACT_F32;
}

size_t qn_act_row_bytes(qn_act act, int64_t n_in)
{
    size_t n = n_in > 0 ? (size_t)n_in : 0, bytes;
    switch (act) {
    case QN_ACT_BF16:
        bytes = (n + 1) / 2 * 4;
        break;
    case QN_ACT_I8:
        bytes = n / QN_BLOCK * sizeof(qn_act_i8);
        break;
    case QN_ACT_I8X2:
        bytes = n / QN_BLOCK * sizeof(qn_act_i8x2);
        break;
    default:
        bytes = n * 4;
        break;
    }
    /* An odd number of cache lines: rows of a tile must not fall into the same sets of the first-level cache.
     */
    return ((bytes + 63) / 64 | 1) * 64;
}

/* ---- pack -------------------------------------------------------------------------------------------- */

/* Four bytes at once: the low (high = 0) or high nibbles of p and q, side by side. */
static uint32_t join_nibbles(uint32_t p, uint32_t q, int high)
{
    return high ? ((p >> 4) & 0x0f0f0f0f) | (q & 0xf0f0f0f0) : (p & 0x0f0f0f0f) | ((q & 0x0f0f0f0f) << 4);
}

/* Fifth bits of 32 elements as one word of the file -> bits by group of 4, see pack.h. */
static uint32_t spread_fifth(uint32_t bits)
{
    uint32_t out = 0;
    for (int g = 0; g < 8; g++) out |= (((bits >> (4 * g) & 15) * 0x00204081u) & 0x01010101u) << g;
    return out;
}

/* One row's blocks of 32 (Q4_0 ... Q8_0) of a chunk into one lane. */
static void pack_simple(qn_dtype dtype, const uint8_t *src, int n_blocks, int lane, uint8_t *chunk)
{
    int bits = qn_layout_bits(dtype), with_min = qn_layout_scale(dtype) == QN_SCALE_MIN;
    uint8_t *codes = chunk + qn_layout_header_bytes(dtype, n_blocks) + 4 * lane;
    for (int b = 0; b < n_blocks; b++, codes += qn_layout_code_bytes(dtype)) {
        uint8_t *scales = chunk + (with_min ? 64 : 32) * b + 2 * lane;
        memcpy(scales, src, 2);
        src += 2;
        if (with_min) {
            memcpy(scales + 32, src, 2);
            src += 2;
        }
        if (bits == 5) {
            store32(codes + 256, spread_fifth(load32(src)));
            src += 4;
        }
        if (bits == 8) {
            for (int i = 0; i < 8; i++, src += 4) store32(codes + 64 * i, load32(src) ^ 0x80808080u);
        } else {
            for (int i = 0; i < 4; i++, src += 4) store32(codes + 64 * i, load32(src));
        }
    }
}

/* One super-block of Q4_K or Q5_K into one lane. */
static void pack_k(qn_dtype dtype, const uint8_t *src, int lane, uint8_t *chunk)
{
    int five = dtype == QN_DTYPE_Q5_K;
    const uint8_t *fifth = src + 16, *low = src + (five ? 48 : 16);
    uint8_t *codes = chunk + 256 + 4 * lane;
    memcpy(chunk + 2 * lane, src, 2);
    memcpy(chunk + 32 + 2 * lane, src + 2, 2);
    for (int i = 0; i < 12; i++) chunk[64 + 16 * i + lane] = src[4 + i];
    for (int b = 0; b < QN_CHUNK; b++, codes += qn_layout_code_bytes(dtype)) {
        const uint8_t *p = low + 32 * (b / 2);
        for (int i = 0; i < 4; i++)
            store32(codes + 64 * i, join_nibbles(load32(p + 4 * i), load32(p + 16 + 4 * i), b & 1));
        if (five) {
            uint32_t word = 0;
            for (int g = 0; g < 8; g++) word |= (load32(fifth + 4 * g) >> b & 0x01010101u) << g;
            store32(codes + 256, word);
        }
    }
}

/* One super-block of Q6_K into one lane. In the file, half h of 128 elements: ql[64 h + 32 (b & 1) + i] holds
 * elements of blocks b = 0, 1 in its low nibbles and of b + 2 in its high ones; qh[32 h + i] has 2 bits for
 * each of the four. */
static void pack_q6(const uint8_t *src, int lane, uint8_t *chunk)
{
    const uint8_t *ql = src, *qh = src + 128, *scales = src + 192;
    uint8_t *codes = chunk + 320 + 4 * lane;
    memcpy(chunk + 2 * lane, src + 208, 2);
    for (int i = 0; i < 16; i++) chunk[64 + 16 * i + lane] = scales[i];
    for (int b = 0; b < QN_CHUNK; b++, codes += qn_layout_code_bytes(QN_DTYPE_Q6_K)) {
        const uint8_t *p = ql + 64 * (b / 4) + 32 * (b & 1), *q = qh + 32 * (b / 4);
        int in_half = b & 3;
        for (int i = 0; i < 4; i++)
            store32(codes + 64 * i, join_nibbles(load32(p + 4 * i), load32(p + 16 + 4 * i), in_half >= 2));
        for (int h = 0; h < 2; h++) {
            uint32_t word = 0;
            for (int i = 0; i < 4; i++)
                word |= (load32(q + 16 * h + 4 * i) >> (2 * in_half) & 0x03030303u) << (2 * i);
            store32(codes + 256 + 64 * h, word);
        }
    }
}

static uint32_t codes_of(const uint8_t q[QN_BLOCK], int g)
{
    return load32(q + 4 * g);
}

/* The codes of a block into one lane. */
static inline __attribute__((always_inline)) void store_codes(int bits, const uint8_t q[QN_BLOCK],
                                                              uint8_t *codes)
{
    if (bits == 8) {
        for (int g = 0; g < 8; g++) store32(codes + 64 * g, codes_of(q, g));
        return;
    }
    if (bits >= 4) {
        for (int i = 0; i < 4; i++, codes += 64)
            store32(codes, (codes_of(q, i) & 0x0f0f0f0f) | (codes_of(q, i + 4) & 0x0f0f0f0f) << 4);
    }
    if (bits == 2 || bits == 3 || bits == 6) {
        for (int h = 0; h < 2; h++, codes += 64) {
            uint32_t word = 0;
            for (int i = 0; i < 4; i++)
                word |= (codes_of(q, 4 * h + i) >> (bits == 6 ? 4 : 0) & 0x03030303) << 2 * i;
            store32(codes, word);
        }
    }
    if (bits == 3 || bits == 5) {
        uint32_t word = 0;
        for (int g = 0; g < 8; g++) word |= (codes_of(q, g) >> (bits - 1) & 0x01010101) << g;
        store32(codes, word);
    }
}

/* One row's blocks of an affine type (of a whole number of groups) into one lane of a chunk. bits: a
 * constant, so that the loops over bits unroll. */
static inline __attribute__((always_inline)) void
pack_affine_bits(qn_dtype dtype, int bits, const uint8_t *src, int n_blocks, int lane, uint8_t *chunk)
{
    qn_affine a = qn_affine_of(dtype);
    size_t scale = a.scale == QN_DTYPE_F32 ? 4 : 2;
    uint8_t *codes = chunk + qn_layout_header_bytes(dtype, n_blocks) + 4 * lane, *scales = chunk;
    for (int b = 0; b < n_blocks; b++, codes += 64 * bits) {
        if (b * QN_BLOCK % a.group == 0) {
            memcpy(scales + scale * (size_t)lane, src, scale);
            memcpy(scales + scale * (size_t)(QN_PANEL + lane), src + scale, scale);
            scales += 2 * scale * QN_PANEL;
            src += 2 * scale;
        }
        uint8_t q[QN_BLOCK];
        for (int i = 0; i < QN_BLOCK; i += 8, src += bits) qn_unpack_bits(src, bits, q + i);
        store_codes(bits, q, codes);
    }
}

static void pack_affine(qn_dtype dtype, const uint8_t *src, int n_blocks, int lane, uint8_t *chunk)
{
    switch (qn_affine_of(dtype).bits) {
    case 2:
        pack_affine_bits(dtype, 2, src, n_blocks, lane, chunk);
        break;
    case 3:
        pack_affine_bits(dtype, 3, src, n_blocks, lane, chunk);
        break;
    case 4:
        pack_affine_bits(dtype, 4, src, n_blocks, lane, chunk);
        break;
    case 5:
        pack_affine_bits(dtype, 5, src, n_blocks, lane, chunk);
        break;
    case 6:
        pack_affine_bits(dtype, 6, src, n_blocks, lane, chunk);
        break;
    default:
        pack_affine_bits(dtype, 8, src, n_blocks, lane, chunk);
        break;
    }
}

static void pack_mxfp4(const uint8_t *src, int n_blocks, int lane, uint8_t *chunk)
{
    uint8_t *codes = chunk + qn_layout_header_bytes(QN_DTYPE_MXFP4, n_blocks) + 4 * lane;
    for (int b = 0; b < n_blocks; b++, src += 17, codes += 256) {
        chunk[16 * b + lane] = src[0];
        for (int i = 0; i < 4; i++) store32(codes + 64 * i, load32(src + 1 + 4 * i));
    }
}

static void pack_plain(qn_dtype dtype, int64_t n_in, const uint8_t *rows, int64_t n_rows, uint8_t *panel)
{
    if (dtype == QN_DTYPE_F32) {
        for (int64_t r = 0; r < n_rows; r++)
            for (int64_t k = 0; k < n_in; k++)
                memcpy(panel + (k * QN_PANEL + r) * 4, rows + (r * n_in + k) * 4, 4);
    } else if (dtype == QN_DTYPE_F16) {
        for (int64_t r = 0; r < n_rows; r++)
            for (int64_t k = 0; k < n_in; k++)
                memcpy(panel + (k * QN_PANEL + r) * 2, rows + (r * n_in + k) * 2, 2);
    } else {
        for (int64_t r = 0; r < n_rows; r++)
            for (int64_t k = 0; k < n_in; k++)
                memcpy(panel + ((k / 2 * QN_PANEL + r) * 2 + k % 2) * 2, rows + (r * n_in + k) * 2, 2);
    }
}

void qn_pack(qn_dtype dtype, int64_t n_in, int64_t n_out, const void *rows, int64_t begin, int64_t end,
             void *dst)
{
    size_t panel_bytes = qn_pack_panel_bytes(dtype, n_in), row_bytes;
    if (!panel_bytes || !qn_type_bytes(dtype, n_in, &row_bytes)) return;
    qn_scale_kind kind = qn_layout_scale(dtype);
    for (int64_t p = begin; p < end; p++) {
        uint8_t *panel = (uint8_t *)dst + (size_t)p * panel_bytes;
        const uint8_t *first = (const uint8_t *)rows + (size_t)p * QN_PANEL * row_bytes;
        int64_t lanes = n_out - p * QN_PANEL < QN_PANEL ? n_out - p * QN_PANEL : QN_PANEL;
        if (lanes < QN_PANEL || kind == QN_SCALE_SUB || dtype == QN_DTYPE_BF16) memset(panel, 0, panel_bytes);
        if (kind == QN_SCALE_NONE) {
            pack_plain(dtype, n_in, first, lanes, panel);
            continue;
        }
        int64_t n_blocks = n_in / QN_BLOCK;
        size_t step = row_bytes / (size_t)(n_in / block_elements(dtype)); /* of a block of the file */
        for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
            int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
            for (int lane = 0; lane < lanes; lane++) {
                const uint8_t *src =
                    first + (size_t)lane * row_bytes + (size_t)(b * QN_BLOCK / block_elements(dtype)) * step;
                if (kind == QN_SCALE_K) {
                    pack_k(dtype, src, lane, panel);
                } else if (kind == QN_SCALE_SUB) {
                    pack_q6(src, lane, panel);
                } else if (kind == QN_SCALE_GROUP) {
                    pack_affine(dtype, src, in_chunk, lane, panel);
                } else if (dtype == QN_DTYPE_MXFP4) {
                    pack_mxfp4(src, in_chunk, lane, panel);
                } else {
                    pack_simple(dtype, src, in_chunk, lane, panel);
                }
            }
            panel += chunk_bytes(dtype, in_chunk);
        }
    }
}

/* ---- unpack ------------------------------------------------------------------------------------------ */

void qn_lane_codes(qn_dtype dtype, const uint8_t *codes, int lane, uint8_t q[QN_BLOCK])
{
    const uint8_t *p = codes + 4 * lane;
    int bits = qn_layout_bits(dtype);
    if (dtype == QN_DTYPE_MXFP4) {
        for (int k = 0; k < QN_BLOCK; k++)
            q[k] = (uint8_t)(128 + qn_e2m1_twice[p[64 * (k % 16 / 4) + k % 4] >> k / 16 * 4 & 15]);
        return;
    }
    if (bits == 8) {
        for (int g = 0; g < 8; g++) store32(q + 4 * g, load32(p + 64 * g));
        return;
    }
    const uint8_t *pairs = p + (bits == 6 ? 256 : 0), *top = p + (bits == 5 ? 256 : 128);
    for (int g = 0; g < 8; g++) {
        uint32_t v = bits < 4 ? 0 : load32(p + 64 * (g % 4)) >> g / 4 * 4 & 0x0f0f0f0f;
        if (bits == 2 || bits == 3 || bits == 6)
            v |= (load32(pairs + 64 * (g / 4)) >> 2 * (g % 4) & 0x03030303) << (bits == 6 ? 4 : 0);
        if (bits == 3 || bits == 5) v |= (load32(top) >> g & 0x01010101) << (bits - 1);
        store32(q + 4 * g, v);
    }
}

qn_lane_scale qn_lane_scales(qn_dtype dtype, const uint8_t *header, int i_block, int lane)
{
    qn_lane_scale s = {0, 0, {1, 1}};
    qn_affine a = qn_affine_of(dtype);
    switch (qn_layout_scale(dtype)) {
    case QN_SCALE_SYM:
        s.d = dtype == QN_DTYPE_MXFP4 ? qn_e8m0_half(header[16 * i_block + lane])
                                      : load_f16(header + 32 * i_block + 2 * lane);
        break;
    case QN_SCALE_GROUP: {
        size_t bytes = a.scale == QN_DTYPE_F32 ? 4 : 2;
        const uint8_t *p = header + (size_t)(i_block * QN_BLOCK / a.group) * 2 * QN_PANEL * bytes;
        s.d = load_scale(a.scale, p + bytes * (size_t)lane);
        s.m = load_scale(a.scale, p + bytes * (size_t)(QN_PANEL + lane));
        break;
    }
    case QN_SCALE_MIN:
        s.d = load_f16(header + 64 * i_block + 2 * lane);
        s.m = load_f16(header + 64 * i_block + 32 + 2 * lane);
        break;
    case QN_SCALE_K: {
        const uint8_t *b = header + 64 + lane;
        int j = i_block & 3, sc, mn;
        if (i_block < 4) {
            sc = b[16 * j] & 63;
            mn = b[16 * (j + 4)] & 63;
        } else {
            sc = (b[16 * (j + 8)] & 15) | (b[16 * j] >> 6) << 4;
            mn = b[16 * (j + 8)] >> 4 | (b[16 * (j + 4)] >> 6) << 4;
        }
        s.d = load_f16(header + 2 * lane) * (float)sc;
        s.m = -(load_f16(header + 32 + 2 * lane) * (float)mn);
        break;
    }
    case QN_SCALE_SUB:
        s.d = load_f16(header + 2 * lane);
        for (int h = 0; h < 2; h++) s.sub[h] = (int8_t)header[64 + 16 * (2 * i_block + h) + lane];
        break;
    default:
        break;
    }
    return s;
}

void qn_unpack_row(qn_dtype dtype, int64_t n_in, const void *panels, int64_t row, float *out)
{
    int lane = (int)(row % QN_PANEL), zero = qn_layout_zero(dtype);
    const uint8_t *panel =
        (const uint8_t *)panels + (size_t)(row / QN_PANEL) * qn_pack_panel_bytes(dtype, n_in);
    qn_scale_kind kind = qn_layout_scale(dtype);
    if (dtype == QN_DTYPE_F32) {
        for (int64_t k = 0; k < n_in; k++) memcpy(out + k, panel + (k * QN_PANEL + lane) * 4, 4);
    } else if (dtype == QN_DTYPE_F16) {
        for (int64_t k = 0; k < n_in; k++) out[k] = load_f16(panel + (k * QN_PANEL + lane) * 2);
    } else if (dtype == QN_DTYPE_BF16) {
        for (int64_t k = 0; k < n_in; k++) {
            uint16_t h;
            memcpy(&h, panel + ((k / 2 * QN_PANEL + lane) * 2 + k % 2) * 2, 2);
            out[k] = qn_bf16_to_f32(h);
        }
    }
    if (kind == QN_SCALE_NONE) return;
    for (int64_t k = 0; k < n_in; k += QN_BLOCK * QN_CHUNK) {
        int n_blocks = n_in - k < QN_BLOCK * QN_CHUNK ? (int)((n_in - k) / QN_BLOCK) : QN_CHUNK;
        const uint8_t *codes = panel + qn_layout_header_bytes(dtype, n_blocks);
        for (int b = 0; b < n_blocks; b++, codes += qn_layout_code_bytes(dtype)) {
            uint8_t q[QN_BLOCK];
            float *y = out + k + b * QN_BLOCK;
            qn_lane_scale s = qn_lane_scales(dtype, panel, b, lane);
            qn_lane_codes(dtype, codes, lane, q);
            if (kind == QN_SCALE_SUB) {
                for (int h = 0; h < 2; h++) {
                    float d = s.d * (float)s.sub[h];
                    for (int i = 16 * h; i < 16 * h + 16; i++) y[i] = d * (float)(q[i] - zero);
                }
            } else if (kind == QN_SCALE_SYM) {
                for (int i = 0; i < QN_BLOCK; i++) y[i] = s.d * (float)(q[i] - zero);
            } else {
                for (int i = 0; i < QN_BLOCK; i++) y[i] = s.d * (float)q[i] + s.m;
            }
        }
        panel = codes;
    }
}
