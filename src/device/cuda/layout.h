/* How a packed weight lies on a card. Plain C that cc and nvcc compile alike: the host plans sizes with it and
 * tests it, kernels pack and read with it.
 *
 * A matrix [n_out, n_in] is cut into panels of 16 rows, a panel into units of unit_k columns, one behind the
 * other. A unit holds the codes of its 16 x unit_k elements, then their scales:
 *
 *   codes   tiles of 16 x 64 elements. 32 lanes own 32 elements of a tile each: the ones that a lane holds as
 *           operand A of mma.m16n8k16 (and of wgmma.m64nNk16) in 4 steps of 16 columns. A code of more bits than
 *           a power of two is cut into planes: 6 bits are 4 low ones and 2 high ones.
 *   scales  for each block of columns the 16 rows' side by side.
 *
 * Rows and columns that a matrix lacks are zeros (code and scale 0). */
#ifndef QN_DEVICE_CUDA_LAYOUT_H
#define QN_DEVICE_CUDA_LAYOUT_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define QN_HD __host__ __device__ static inline
#else
#define QN_HD static inline
#endif

enum { QN_CUDA_PANEL = 16, QN_CUDA_TILE_K = 64 };

/* What a weight is made of. value: what an element stands for, in f32. half: the f16 number that products with
 * rounded operands multiply by (high, fast), value / the row's factor rounded. */
typedef enum {
    QN_CUDA_F32, /* plain rows of f32, no panels; products are computed in f32 */
    QN_CUDA_F16, /* elements are f16 (or bf16, f32 that are made f16: not exactly); value = element * factor */
    QN_CUDA_SCALED, /* (code - zero) * scale; blocks of 32, f16 scales: Q4_0, Q5_0, Q8_0 */
    QN_CUDA_AFFINE, /* code * scale + bias; groups of 32, 64, 128: Q4_1, Q5_1, MLX's */
    QN_CUDA_K,      /* code * (d * sc) - dmin * mn: Q4_K, Q5_K */
    QN_CUDA_Q6K,    /* (code - 32) * (d * sc); blocks of 16 */
    QN_CUDA_MX,     /* e2m1 * 2^(e - 127); blocks of 32 */
    QN_CUDA_NV      /* e2m1 * e4m3; blocks of 16 */
} qn_cuda_form;

typedef struct {
    qn_cuda_form form;
    qn_dtype dtype; /* of the file */
    int bits;       /* of a code; F16: 16 */
    int block;      /* columns that share a scale */
    int zero;       /* SCALED, Q6K: the code of 0 */
    qn_dtype scale; /* AFFINE: F16, BF16 or F32 */
    int unit_k;     /* columns of a unit: a multiple of 64 */
    int unit_bytes, code_bytes;
    int64_t n_parts, n_out, n_in, n_panels, n_units; /* panels of a part, units of a panel */
    char *data;
    float *factor; /* [n_parts][n_panels * 16], a power of two for each row; NULL: 1 */
} qn_cuda_weight;

/* Rows of a part as they lie in a file. scales NULL: blocks of the dtype (src/quant). */
typedef struct {
    const uint8_t *data, *scales, *biases;
    size_t row_bytes, scale_row_bytes; /* from one row to the next; transposed: from one column to the next */
    int transposed;
} qn_cuda_raw;

/* Fills everything but data and factor. 0: there is no such weight. */
QN_HD int qn_cuda_weight_plan(qn_dtype dtype, int64_t n_parts, int64_t n_out, int64_t n_in, qn_cuda_weight *w)
{
    static const int affine_bits[6] = {2, 3, 4, 5, 6, 8};
    qn_cuda_weight p;
    memset(&p, 0, sizeof p);
    p.form = QN_CUDA_F16;
    p.dtype = dtype;
    p.bits = 16;
    p.block = p.unit_k = 64;
    p.scale = QN_DTYPE_F16;
    switch (dtype) {
    case QN_DTYPE_F32:
        p.form = QN_CUDA_F32, p.bits = 32;
        break;
    case QN_DTYPE_F16:
    case QN_DTYPE_BF16:
        break;
    case QN_DTYPE_Q4_0:
        p.form = QN_CUDA_SCALED, p.bits = 4, p.block = 32, p.zero = 8;
        break;
    case QN_DTYPE_Q5_0:
        p.form = QN_CUDA_SCALED, p.bits = 5, p.block = 32, p.zero = 16;
        break;
    case QN_DTYPE_Q8_0:
        p.form = QN_CUDA_SCALED, p.bits = 8, p.block = 32, p.zero = 128;
        break;
    case QN_DTYPE_Q4_1:
        p.form = QN_CUDA_AFFINE, p.bits = 4, p.block = 32;
        break;
    case QN_DTYPE_Q5_1:
        p.form = QN_CUDA_AFFINE, p.bits = 5, p.block = 32;
        break;
    case QN_DTYPE_Q4_K:
        p.form = QN_CUDA_K, p.bits = 4, p.block = 32, p.unit_k = 256;
        break;
    case QN_DTYPE_Q5_K:
        p.form = QN_CUDA_K, p.bits = 5, p.block = 32, p.unit_k = 256;
        break;
    case QN_DTYPE_Q6_K:
        p.form = QN_CUDA_Q6K, p.bits = 6, p.block = 16, p.zero = 32, p.unit_k = 256;
        break;
    case QN_DTYPE_MXFP4:
        p.form = QN_CUDA_MX, p.bits = 4, p.block = 32;
        break;
    case QN_DTYPE_NVFP4:
        p.form = QN_CUDA_NV, p.bits = 4, p.block = 16;
        break;
    default: {
        const int i = (int)dtype - (int)QN_DTYPE_AFFINE2_G32_F16;
        if (dtype < QN_DTYPE_AFFINE2_G32_F16 || dtype > QN_DTYPE_AFFINE8_G128_F32) return 0;
        p.form = QN_CUDA_AFFINE;
        p.bits = affine_bits[i / 9];
        p.block = 32 << i / 3 % 3;
        p.scale = i % 3 == 0 ? QN_DTYPE_F16 : i % 3 == 1 ? QN_DTYPE_BF16 : QN_DTYPE_F32;
        p.unit_k = p.block < 64 ? 64 : p.block;
    }
    }
    p.n_parts = n_parts;
    p.n_out = n_out;
    p.n_in = n_in;
    p.n_panels = (n_out + QN_CUDA_PANEL - 1) / QN_CUDA_PANEL;
    p.n_units = (n_in + p.unit_k - 1) / p.unit_k;
    p.code_bytes = QN_CUDA_PANEL * p.unit_k * p.bits / 8;
    const int rows = QN_CUDA_PANEL, n_blocks = p.unit_k / p.block;
    int scale_bytes = 0;
    switch (p.form) {
    case QN_CUDA_SCALED:
        scale_bytes = n_blocks * rows * 2;
        break;
    case QN_CUDA_AFFINE:
        scale_bytes = n_blocks * rows * (p.scale == QN_DTYPE_F32 ? 8 : 4);
        break;
    case QN_CUDA_K:
        scale_bytes = n_blocks * rows * 2 + rows * 4;
        break;
    case QN_CUDA_Q6K:
        scale_bytes = n_blocks * rows + rows * 2;
        break;
    case QN_CUDA_MX:
    case QN_CUDA_NV:
        scale_bytes = n_blocks * rows;
        break;
    default:
        break;
    }
    p.unit_bytes = p.code_bytes + scale_bytes;
    *w = p;
    return n_parts > 0 && n_out > 0 && n_in > 0;
}

/* 1: rows have factors, found from their largest element, that bring their numbers into the range of f16. */
QN_HD int qn_cuda_has_factors(const qn_cuda_weight *w)
{
    return (w->form == QN_CUDA_F16 && w->dtype != QN_DTYPE_F16) || w->form == QN_CUDA_MX ||
           (w->form == QN_CUDA_AFFINE && w->scale != QN_DTYPE_F16);
}

/* Bytes of data, without factors. */
QN_HD size_t qn_cuda_part_bytes(const qn_cuda_weight *w)
{
    if (w->form == QN_CUDA_F32) return (size_t)(w->n_out * w->n_in) * 4;
    return (size_t)(w->n_panels * w->n_units) * (size_t)w->unit_bytes;
}

QN_HD size_t qn_cuda_factor_bytes(const qn_cuda_weight *w)
{
    return qn_cuda_has_factors(w) ? (size_t)(w->n_parts * w->n_panels * QN_CUDA_PANEL) * sizeof(float) : 0;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

QN_HD float qn_cuda_bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

QN_HD uint32_t qn_cuda_float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

QN_HD float qn_cuda_half_value(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 0x3ffu;
    if (e == 31) return qn_cuda_bits_float(sign | 0x7f800000u | m << 13);
    if (e) return qn_cuda_bits_float(sign | (e + 112) << 23 | m << 13);
    const float f = (float)m * 5.9604644775390625e-8f; /* 2^-24 */
    return sign ? -f : f;
}

/* Rounded to nearest even. */
QN_HD uint16_t qn_cuda_to_half(float f)
{
    const uint32_t u = qn_cuda_float_bits(f), x = u & 0x7fffffffu;
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if (x > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (x >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (x < 0x38800000u)
        return (uint16_t)(sign | (uint16_t)(qn_cuda_float_bits(qn_cuda_bits_float(x) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (uint16_t)((x - 0x38000000u + 0xfffu + (x >> 13 & 1)) >> 13));
}

/* Half of 2^(e - 127), E8M0. 255, which stands for no number, is read as GGUF's decoders read it. */
QN_HD float qn_cuda_e8m0_half(uint8_t e)
{
    return qn_cuda_bits_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* E4M3 without infinities; 0x7f and 0xff are no numbers. */
QN_HD float qn_cuda_e4m3(uint8_t s)
{
    if ((s & 0x7f) == 0x7f) return qn_cuda_bits_float(0x7fc00000u);
    return qn_cuda_half_value((uint16_t)((s & 0x80u) << 8 | (s & 0x7fu) << 7)) * 256;
}

/* Code 8 is 0 without a sign, as src/quant reads it. */
QN_HD float qn_cuda_e2m1(unsigned code)
{
    const int e = code >> 1 & 3, m = code & 1, twice = e ? (2 + m) << (e - 1) : m;
    return 0.5f * (float)(code & 8 ? -twice : twice);
}

/* ---- raw rows ------------------------------------------------------------------------------------------ */

QN_HD uint16_t qn_cuda_load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

QN_HD uint32_t qn_cuda_load32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* 16 bits at `half` of a scale or bias: halves 0 (and 1 of f32) of element i of a row of them. */
QN_HD uint16_t qn_cuda_scale_half(const uint8_t *row, int width, int64_t i, int half)
{
    return qn_cuda_load16(row + i * width + 2 * half);
}

/* Sub-block k of 8 of a Q4_K's or Q5_K's 12 bytes of scales. */
QN_HD uint16_t qn_cuda_k_pair(const uint8_t *s, int k)
{
    const unsigned sc = k < 4 ? s[k] & 63u : (s[k + 4] & 15u) | (unsigned)(s[k - 4] >> 6) << 4;
    const unsigned mn = k < 4 ? s[k + 4] & 63u : (unsigned)(s[k + 4] >> 4) | (unsigned)(s[k] >> 6) << 4;
    return (uint16_t)(sc | mn << 8);
}

/* The code at column k of a row. */
QN_HD unsigned qn_cuda_raw_code(const qn_cuda_weight *w, const qn_cuda_raw *raw, int64_t row, int64_t k)
{
    const uint8_t *p = raw->data + (size_t)row * raw->row_bytes;
    const int j = (int)(k & 31);
    switch (w->dtype) {
    case QN_DTYPE_Q4_0:
        p += k / 32 * 18 + 2;
        return j < 16 ? p[j] & 15u : (unsigned)p[j - 16] >> 4;
    case QN_DTYPE_Q4_1:
        p += k / 32 * 20 + 4;
        return j < 16 ? p[j] & 15u : (unsigned)p[j - 16] >> 4;
    case QN_DTYPE_Q5_0:
    case QN_DTYPE_Q5_1: {
        p += k / 32 * (w->dtype == QN_DTYPE_Q5_0 ? 22 : 24) + (w->dtype == QN_DTYPE_Q5_0 ? 2 : 4);
        const unsigned high = qn_cuda_load32(p) >> j & 1;
        return (j < 16 ? p[4 + j] & 15u : (unsigned)p[4 + j - 16] >> 4) | high << 4;
    }
    case QN_DTYPE_Q8_0:
        return (unsigned)p[k / 32 * 34 + 2 + j] ^ 0x80u;
    case QN_DTYPE_Q4_K:
    case QN_DTYPE_Q5_K: {
        const int is5 = w->dtype == QN_DTYPE_Q5_K, sub = (int)(k / 32 % 8);
        p += k / 256 * (is5 ? 176 : 144);
        const unsigned low = p[(is5 ? 48 : 16) + 32 * (sub / 2) + j] >> 4 * (sub & 1) & 15u;
        return is5 ? low | (unsigned)(p[16 + j] >> sub & 1) << 4 : low;
    }
    case QN_DTYPE_Q6_K: {
        p += k / 256 * 210;
        const int half = (int)(k / 128 % 2), g = (int)(k / 32 % 4);
        const unsigned low = p[64 * half + 32 * (g & 1) + j] >> (g < 2 ? 0 : 4) & 15u;
        return low | (unsigned)(p[128 + 32 * half + j] >> 2 * g & 3) << 4;
    }
    case QN_DTYPE_MXFP4:
    case QN_DTYPE_NVFP4:
        if (raw->scales) return p[k / 2] >> 4 * (k & 1) & 15u;
        p += w->dtype == QN_DTYPE_MXFP4 ? k / 32 * 17 + 1 : k / 32 * 18 + 2;
        return j < 16 ? p[j] & 15u : (unsigned)p[j - 16] >> 4;
    default: { /* MLX's: a stream of bits */
        const int width = w->scale == QN_DTYPE_F32 ? 4 : 2;
        int64_t i = k;
        if (!raw->scales) {
            p += k / w->block * (2 * width + w->block * w->bits / 8) + 2 * width;
            i = k % w->block;
        }
        const int64_t bit = i * w->bits;
        const unsigned low = p[bit / 8], high = bit % 8 + w->bits > 8 ? p[bit / 8 + 1] : 0;
        return (low | high << 8) >> bit % 8 & ((1u << w->bits) - 1);
    }
    }
}

/* An element of a plain type (F16, BF16, F32) in f32. */
QN_HD float qn_cuda_raw_plain(const qn_cuda_weight *w, const qn_cuda_raw *raw, int64_t row, int64_t k)
{
    const int width = w->dtype == QN_DTYPE_F32 ? 4 : 2;
    const uint8_t *p = raw->transposed ? raw->data + (size_t)k * raw->row_bytes + row * width
                                       : raw->data + (size_t)row * raw->row_bytes + k * width;
    if (w->dtype == QN_DTYPE_F32) return qn_cuda_bits_float(qn_cuda_load32(p));
    return w->dtype == QN_DTYPE_F16 ? qn_cuda_half_value(qn_cuda_load16(p))
                                    : qn_cuda_bits_float((uint32_t)qn_cuda_load16(p) << 16);
}

/* 16 bits of the scales of a unit: half i of them, rows from `row` on, columns from k on. */
QN_HD uint16_t qn_cuda_raw_scale(const qn_cuda_weight *w, const qn_cuda_raw *raw, int64_t row, int64_t n_rows,
                                 int64_t k, int i)
{
    const int n = QN_CUDA_PANEL;
    switch (w->form) {
    case QN_CUDA_SCALED: {
        const int64_t r = row + i % n, at = k + i / n * 32;
        const int bytes = w->bits == 4 ? 18 : w->bits == 5 ? 22 : 34;
        if (r >= n_rows || at >= w->n_in) return 0;
        return qn_cuda_load16(raw->data + (size_t)r * raw->row_bytes + at / 32 * bytes);
    }
    case QN_CUDA_AFFINE: {
        const int width = w->scale == QN_DTYPE_F32 ? 4 : 2, per = width / 2;
        const int half = i % per, e = i / per; /* element: [group][scale, bias][row] */
        const int64_t r = row + e % n, at = k + e / (2 * n) * w->block;
        const int is_bias = e / n % 2;
        if (r >= n_rows || at >= w->n_in) return 0;
        if (raw->scales)
            return qn_cuda_scale_half((is_bias ? raw->biases : raw->scales) +
                                          (size_t)r * raw->scale_row_bytes,
                                      width, at / w->block, half);
        const int is_file = w->dtype == QN_DTYPE_Q4_1 || w->dtype == QN_DTYPE_Q5_1;
        const int bytes = !is_file ? 2 * width + w->block * w->bits / 8 : w->dtype == QN_DTYPE_Q4_1 ? 20 : 24;
        return qn_cuda_load16(raw->data + (size_t)r * raw->row_bytes + at / w->block * bytes +
                              is_bias * width + 2 * half);
    }
    case QN_CUDA_K: {
        const int64_t r = row + i % n;
        if (r >= n_rows || k >= w->n_in) return 0;
        const uint8_t *p =
            raw->data + (size_t)r * raw->row_bytes + k / 256 * (w->dtype == QN_DTYPE_Q5_K ? 176 : 144);
        return i < 8 * n ? qn_cuda_k_pair(p + 4, i / n) : qn_cuda_load16(p + 2 * ((i - 8 * n) / n));
    }
    case QN_CUDA_Q6K: {
        const int is_scale = i < 8 * n;
        uint16_t out = 0;
        if (!is_scale) {
            const int64_t r = row + (i - 8 * n);
            if (r >= n_rows || k >= w->n_in) return 0;
            return qn_cuda_load16(raw->data + (size_t)r * raw->row_bytes + k / 256 * 210 + 208);
        }
        for (int j = 0; j < 2; j++) {
            const int byte = 2 * i + j;
            const int64_t r = row + byte % n;
            if (r < n_rows && k < w->n_in)
                out = (uint16_t)(out | raw->data[(size_t)r * raw->row_bytes + k / 256 * 210 + 192 + byte / n]
                                           << 8 * j);
        }
        return out;
    }
    case QN_CUDA_MX:
    case QN_CUDA_NV: {
        uint16_t out = 0;
        for (int j = 0; j < 2; j++) {
            const int byte = 2 * i + j;
            const int64_t r = row + byte % n, at = k + byte / n * w->block;
            uint8_t s = 0;
            if (r < n_rows && at < w->n_in) {
                if (raw->scales)
                    s = raw->scales[(size_t)r * raw->scale_row_bytes + at / w->block];
                else if (w->form == QN_CUDA_MX)
                    s = raw->data[(size_t)r * raw->row_bytes + at / 32 * 17];
                else
                    s = raw->data[(size_t)r * raw->row_bytes + at / 32 * 18 + at / 16 % 2];
            }
            out = (uint16_t)(out | s << 8 * j);
        }
        return out;
    }
    default:
        return 0;
    }
}

/* ---- where codes lie ----------------------------------------------------------------------------------- */

/* Planes of a code: `low` bits, then `high` ones; 0: there is no second plane. */
QN_HD int qn_cuda_low_bits(int bits)
{
    return bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
}

/* The place of element (row, k) of a tile in a plane of `width` bits (1, 2, 4, 8): the word of 32 bits and the
 * bit in it. A lane's words of a plane lie together, in pieces of at most 4 words. */
QN_HD int qn_cuda_code_word(int width, int row, int k, int *bit)
{
    const int step = k / 16, c = k % 16, lane = row % 8 * 4 + c % 8 / 2;
    const int slot = step * 4 + row / 8 + c / 8 * 2, per_word = 16 / width; /* register of the lane's 16 */
    const int word = slot / per_word, n_words = width < 4 ? width : 4;
    *bit = width * (slot % per_word) + 16 * (c % 2);
    return word / n_words * 32 * n_words + lane * n_words + word % n_words;
}

/* The reverse: element i of word `at` of a plane: i / per_word is the half, i % per_word the register's place. */
QN_HD void qn_cuda_word_element(int width, int at, int i, int *row, int *k)
{
    const int per_word = 16 / width, n_words = width < 4 ? width : 4;
    const int piece = at / (32 * n_words), lane = at % (32 * n_words) / n_words,
              word = piece * n_words + at % n_words;
    const int slot = word * per_word + i % per_word, step = slot / 4;
    *row = lane / 4 + slot % 2 * 8;
    *k = step * 16 + lane % 4 * 2 + slot / 2 % 2 * 8 + i / per_word;
}

/* Half of an F16 tile: element i (0, 1) of word `at`. [step][lane][4 words] */
QN_HD void qn_cuda_half_element(int at, int i, int *row, int *k)
{
    const int step = at / 128, lane = at % 128 / 4, slot = at % 4;
    *row = lane / 4 + slot % 2 * 8;
    *k = step * 16 + lane % 4 * 2 + slot / 2 * 8 + i;
}

QN_HD int qn_cuda_half_word(int row, int k)
{
    const int step = k / 16, c = k % 16, lane = row % 8 * 4 + c % 8 / 2;
    return step * 128 + lane * 4 + row / 8 + c / 8 * 2;
}

/* Word `at` of a unit whose first row and column are these; inverse: 1 / factor of the panel's rows, or NULL.
 * n_rows: rows that raw has. */
QN_HD uint32_t qn_cuda_pack_word(const qn_cuda_weight *w, const qn_cuda_raw *raw, int64_t first_row,
                                 int64_t n_rows, int64_t first_k, const float *inverse, int at)
{
    uint32_t out = 0;
    if (4 * at >= w->code_bytes) {
        const int i = (4 * at - w->code_bytes) / 2;
        out = qn_cuda_raw_scale(w, raw, first_row, n_rows, first_k, i);
        return out | (uint32_t)qn_cuda_raw_scale(w, raw, first_row, n_rows, first_k, i + 1) << 16;
    }
    if (w->form == QN_CUDA_F16) {
        const int tile = at / 512;
        for (int i = 0; i < 2; i++) {
            int r, k;
            qn_cuda_half_element(at % 512, i, &r, &k);
            k += tile * QN_CUDA_TILE_K;
            if (first_row + r >= n_rows || first_k + k >= w->n_in) continue;
            const float x = qn_cuda_raw_plain(w, raw, first_row + r, first_k + k);
            out |= (uint32_t)qn_cuda_to_half(inverse ? x * inverse[r] : x) << 16 * i;
        }
        return out;
    }
    const int low = qn_cuda_low_bits(w->bits), n_tiles = w->unit_k / QN_CUDA_TILE_K;
    const int is_high = at >= n_tiles * 32 * low, width = is_high ? w->bits - low : low;
    const int in_plane = is_high ? at - n_tiles * 32 * low : at, tile = in_plane / (32 * width);
    const int n = 32 / width;
    for (int i = 0; i < n; i++) {
        int r, k;
        qn_cuda_word_element(width, in_plane % (32 * width), i, &r, &k);
        k += tile * QN_CUDA_TILE_K;
        if (first_row + r >= n_rows || first_k + k >= w->n_in) continue;
        const unsigned code = qn_cuda_raw_code(w, raw, first_row + r, first_k + k);
        const unsigned part = is_high ? code >> low : code & ((1u << low) - 1);
        out |= part << (width * (i % (16 / width)) + 16 * (i / (16 / width)));
    }
    return out;
}

/* ---- reading an element -------------------------------------------------------------------------------- */

QN_HD unsigned qn_cuda_unit_code(const qn_cuda_weight *w, const char *unit, int row, int k)
{
    const int low = qn_cuda_low_bits(w->bits), n_tiles = w->unit_k / QN_CUDA_TILE_K,
              tile = k / QN_CUDA_TILE_K;
    const uint32_t *words = (const uint32_t *)unit;
    int bit;
    int at = qn_cuda_code_word(low, row, k % QN_CUDA_TILE_K, &bit);
    unsigned code = words[tile * 32 * low + at] >> bit & ((1u << low) - 1);
    if (w->bits > low) {
        const int width = w->bits - low;
        at = qn_cuda_code_word(width, row, k % QN_CUDA_TILE_K, &bit);
        code |= (words[n_tiles * 32 * low + tile * 32 * width + at] >> bit & ((1u << width) - 1)) << low;
    }
    return code;
}

/* Element (row, k) of a part in f32: what src/quant's decoder gives, but for the rounding of BF16's and F32's
 * elements to f16 (form F16). */
QN_HD float qn_cuda_value(const qn_cuda_weight *w, int64_t part, int64_t row, int64_t k)
{
    if (w->form == QN_CUDA_F32) return ((const float *)w->data)[(part * w->n_out + row) * w->n_in + k];
    const int64_t panel = part * w->n_panels + row / QN_CUDA_PANEL;
    const char *unit = w->data + (size_t)(panel * w->n_units + k / w->unit_k) * (size_t)w->unit_bytes;
    const int n = QN_CUDA_PANEL, r = (int)(row % n), j = (int)(k % w->unit_k), b = j / w->block;
    const uint8_t *scales = (const uint8_t *)unit + w->code_bytes;
    if (w->form == QN_CUDA_F16) {
        const uint32_t word =
            ((const uint32_t *)unit)[j / QN_CUDA_TILE_K * 512 + qn_cuda_half_word(r, j % QN_CUDA_TILE_K)];
        const float x = qn_cuda_half_value((uint16_t)(word >> 16 * (k & 1)));
        return w->factor ? x * w->factor[panel * n + r] : x;
    }
    const unsigned code = qn_cuda_unit_code(w, unit, r, j);
    switch (w->form) {
    case QN_CUDA_SCALED:
        return qn_cuda_half_value(qn_cuda_load16(scales + 2 * (b * n + r))) * (float)((int)code - w->zero);
    case QN_CUDA_AFFINE: {
        const int width = w->scale == QN_DTYPE_F32 ? 4 : 2;
        float v[2];
        for (int i = 0; i < 2; i++) {
            const uint8_t *p = scales + ((2 * b + i) * n + r) * width;
            v[i] = w->scale == QN_DTYPE_F32   ? qn_cuda_bits_float(qn_cuda_load32(p))
                   : w->scale == QN_DTYPE_F16 ? qn_cuda_half_value(qn_cuda_load16(p))
                                              : qn_cuda_bits_float((uint32_t)qn_cuda_load16(p) << 16);
        }
        return v[0] * (float)code + v[1];
    }
    case QN_CUDA_K: {
        const uint8_t *pair = scales + 2 * (b * n + r), *d = scales + 16 * n + 2 * r;
        const float ds = qn_cuda_half_value(qn_cuda_load16(d)) * (float)pair[0];
        const float m = qn_cuda_half_value(qn_cuda_load16(d + 2 * n)) * (float)pair[1];
        return ds * (float)code - m;
    }
    case QN_CUDA_Q6K: {
        const float d = qn_cuda_half_value(qn_cuda_load16(scales + 16 * n + 2 * r));
        return d * (float)(int8_t)scales[b * n + r] * (float)((int)code - 32);
    }
    case QN_CUDA_MX:
        return qn_cuda_e8m0_half(scales[b * n + r]) * (2 * qn_cuda_e2m1(code));
    default:
        return qn_cuda_e4m3(scales[b * n + r]) * qn_cuda_e2m1(code);
    }
}

#endif
