#include "device/cpu/kernels/matmul/pack.h"

#include <string.h>

#include "base/checked.h"
#include "device/cpu/kernels/sets.h"
#include "quant/types.h"

size_t qn_few_ahead; /* sets.h; here, where the tables that read it may reach it */

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* ---- sizes ------------------------------------------------------------------------------------------- */

static int64_t block_elements(qn_dtype dtype)
{
    return qn_type_get(dtype)->block_elements;
}

static size_t chunk_bytes(qn_dtype dtype, int64_t n_blocks)
{
    const qn_layout layout = qn_layout_of(dtype);
    return qn_layout_header_bytes(layout, dtype, n_blocks) + (size_t)n_blocks * qn_layout_code_bytes(layout);
}

int qn_pack_layout_version(void)
{
    return QN_LAYOUT_VERSION;
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
    if (qn_layout_of(dtype) == QN_LAYOUT_NONE || n_in % block_elements(dtype) != 0) return 0;
    int64_t n_blocks = n_in / QN_BLOCK, rest = n_blocks % QN_CHUNK;
    return (size_t)(n_blocks / QN_CHUNK) * chunk_bytes(dtype, QN_CHUNK) +
           (rest ? chunk_bytes(dtype, rest) : 0);
}

qn_act qn_matmul_act(qn_dtype weight, qn_precision precision)
{
    if (precision == QN_PRECISION_EXACT) return QN_ACT_F32;
    /* MLX computes with bf16 activations, which one plane of int8 would fall short of. */
    const qn_layout layout = qn_layout_of(weight);
    const int of_mlx = qn_layout_table(layout) || qn_layout_scale(layout) == QN_SCALE_GROUP;
    if (layout != QN_LAYOUT_NONE) return precision == QN_PRECISION_FAST && !of_mlx ? QN_ACT_I8 : QN_ACT_I8X2;
    return weight == QN_DTYPE_BF16 && precision == QN_PRECISION_FAST ? QN_ACT_BF16 : QN_ACT_F32;
}

size_t qn_act_offset(qn_act act, int64_t at)
{
    size_t n = at > 0 ? (size_t)at : 0;
    switch (act) {
    case QN_ACT_BF16:
        return n * 2;
    case QN_ACT_I8:
        return n / QN_BLOCK * sizeof(qn_act_i8);
    case QN_ACT_I8X2:
        return n / QN_BLOCK * sizeof(qn_act_i8x2);
    default:
        return n * 4;
    }
}

size_t qn_act_row_bytes(qn_act act, int64_t n_in)
{
    size_t bytes = qn_act_offset(act, n_in + (act == QN_ACT_BF16 && n_in % 2));
    /* An odd number of cache lines: rows of a tile must not fall into the same sets of the first-level cache.
     */
    return ((bytes + 63) / 64 | 1) * 64;
}

/* ---- pack -------------------------------------------------------------------------------------------- */

/* All 16 rows of a panel are packed together: words of 4 bytes are taken from each and transposed, so that a
 * vector of 64 bytes has one of each row; what bits still have to move is moved in whole vectors. The memory
 * that a copy takes is the limit (bench/pack_bench). A vector is 4 times 4 words here, which every chip has.
 */
typedef uint32_t word4 __attribute__((vector_size(16)));
enum { QUADS = QN_PANEL / 4 };

/* Rows beyond the last one are zeros. Longer than what is read of a row at a time. */
static const uint8_t no_row[512];

#ifdef __clang__
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (word4){i, j, k, l})
#endif

static inline word4 load_word4(const uint8_t *p)
{
    word4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* n words from the address of each row: w[word][row / 4]. */
static inline __attribute__((always_inline)) void gather(const uint8_t *const rows[QN_PANEL], int n,
                                                         word4 w[][QUADS])
{
    for (int q = 0; q < QUADS; q++) {
        const uint8_t *const *r = rows + 4 * q;
        int i = 0;
        for (; i + 4 <= n; i += 4) {
            word4 a = load_word4(r[0] + 4 * i), b = load_word4(r[1] + 4 * i);
            word4 c = load_word4(r[2] + 4 * i), d = load_word4(r[3] + 4 * i);
            word4 ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5);
            word4 AB = SHUFFLE(a, b, 2, 6, 3, 7), CD = SHUFFLE(c, d, 2, 6, 3, 7);
            w[i][q] = SHUFFLE(ab, cd, 0, 1, 4, 5);
            w[i + 1][q] = SHUFFLE(ab, cd, 2, 3, 6, 7);
            w[i + 2][q] = SHUFFLE(AB, CD, 0, 1, 4, 5);
            w[i + 3][q] = SHUFFLE(AB, CD, 2, 3, 6, 7);
        }
        for (; i < n; i++)
            w[i][q] = (word4){load32(r[0] + 4 * i), load32(r[1] + 4 * i), load32(r[2] + 4 * i),
                              load32(r[3] + 4 * i)};
    }
}

/* A number of 2 bytes from `at` of each row. */
static inline void gather_halves(const uint8_t *const rows[QN_PANEL], size_t at, uint8_t *out)
{
    for (int r = 0; r < QN_PANEL; r++) memcpy(out + 2 * r, rows[r] + at, 2);
}

/* The low or high halves of a word of each row. */
static inline void store_halves(const word4 w[QUADS], int high, uint8_t *out)
{
    uint32_t words[QN_PANEL];
    uint16_t halves[QN_PANEL];
    memcpy(words, w, sizeof words);
    for (int r = 0; r < QN_PANEL; r++) halves[r] = (uint16_t)(words[r] >> (high ? 16 : 0));
    memcpy(out, halves, sizeof halves);
}

/* The bytes of a word of each row: [byte][row]. */
static inline void store_bytes(const word4 w[QUADS], uint8_t *out)
{
    uint32_t words[QN_PANEL];
    memcpy(words, w, sizeof words);
    for (int i = 0; i < 4; i++)
        for (int r = 0; r < QN_PANEL; r++) out[QN_PANEL * i + r] = (uint8_t)(words[r] >> 8 * i);
}

/* The low (high = 0) or high nibbles of p and q, side by side. */
static inline void join_nibbles(const word4 p[QUADS], const word4 q[QUADS], int high, uint8_t *out)
{
    for (int i = 0; i < QUADS; i++) {
        word4 v = high ? ((p[i] >> 4) & 0x0f0f0f0f) | (q[i] & 0xf0f0f0f0)
                       : (p[i] & 0x0f0f0f0f) | ((q[i] & 0x0f0f0f0f) << 4);
        memcpy(out + 16 * i, &v, sizeof v);
    }
}

/* Exchanges the bits of mask with those so many places above them. */
static inline word4 swap_bits(word4 v, int distance, uint32_t mask)
{
    word4 t = ((v >> distance) ^ v) & mask;
    return v ^ t ^ (t << distance);
}

/* Exchanges the bits of mask of b with those so many places above them in a. */
static inline void swap_across(word4 a[QUADS], word4 b[QUADS], int distance, uint32_t mask)
{
    for (int i = 0; i < QUADS; i++) {
        word4 t = ((a[i] >> distance) ^ b[i]) & mask;
        b[i] ^= t;
        a[i] ^= t << distance;
    }
}

/* Fifth bits of 32 elements as one word of the file, bit 4 g + j -> bit 8 j + g, see pack.h: the five bits of
 * a bit's place turn by two. */
static inline void spread_fifth(const word4 w[QUADS], uint8_t *out)
{
    for (int i = 0; i < QUADS; i++) {
        word4 v = swap_bits(w[i], 14, 0x0000cccc);
        v = swap_bits(v, 7, 0x00aa00aa);
        v = swap_bits(v, 2, 0x0c0c0c0c);
        v = swap_bits(v, 1, 0x22222222);
        memcpy(out + 16 * i, &v, sizeof v);
    }
}

/* The rows' blocks of 32 (Q4_0 ... Q8_0) of a chunk. */
static inline __attribute__((always_inline)) void
pack_simple(qn_layout layout, const uint8_t *const chunk_rows[QN_PANEL], int n_blocks, uint8_t *chunk)
{
    int bits = qn_layout_bits(layout), with_min = qn_layout_has_min(layout), five = bits == 5;
    int at = with_min ? 4 : 2, block_bytes = at + 4 * bits;
    const uint8_t *rows[QN_PANEL];
    uint8_t *codes = chunk + (size_t)(qn_layout_row_of(layout)->header * n_blocks);
    for (int b = 0; b < n_blocks; b++, codes += qn_layout_code_bytes(layout)) {
        word4 w[8][QUADS];
        for (int r = 0; r < QN_PANEL; r++) rows[r] = chunk_rows[r] + b * block_bytes;
        gather_halves(rows, 0, chunk + (with_min ? 64 : 32) * b);
        if (with_min) gather_halves(rows, 2, chunk + 64 * b + 32);
        for (int r = 0; r < QN_PANEL; r++) rows[r] += at;
        if (five) {
            gather(rows, 1, w);
            spread_fifth(w[0], codes + 256);
            for (int r = 0; r < QN_PANEL; r++) rows[r] += 4;
        }
        gather(rows, bits == 8 ? 8 : 4, w);
        if (bits == 8)
            for (int i = 0; i < 8; i++)
                for (int q = 0; q < QUADS; q++) w[i][q] ^= 0x80808080u;
        memcpy(codes, w, bits == 8 ? 512 : 256);
    }
}

/* A super-block of Q4_K or Q5_K. */
static inline __attribute__((always_inline)) void
pack_k(qn_layout layout, const uint8_t *const chunk_rows[QN_PANEL], uint8_t *chunk)
{
    int five = qn_layout_bits(layout) == 5;
    size_t code_bytes = qn_layout_code_bytes(layout);
    uint8_t *codes = chunk + 256;
    const uint8_t *rows[QN_PANEL];
    word4 w[8][QUADS];
    gather(chunk_rows, 4, w);
    store_halves(w[0], 0, chunk);
    store_halves(w[0], 1, chunk + 32);
    for (int i = 0; i < 3; i++) store_bytes(w[1 + i], chunk + 64 * (1 + i));
    for (int r = 0; r < QN_PANEL; r++) rows[r] = chunk_rows[r] + 16;
    if (five) { /* byte by byte, bit b of word g -> bit g of block b's */
        gather(rows, 8, w);
        for (int i = 0; i < 4; i++) swap_across(w[i], w[i + 4], 4, 0x0f0f0f0f);
        for (int i = 0; i < 6; i += i == 1 ? 3 : 1) swap_across(w[i], w[i + 2], 2, 0x33333333);
        for (int i = 0; i < 8; i += 2) swap_across(w[i], w[i + 1], 1, 0x55555555);
        for (int b = 0; b < QN_CHUNK; b++) memcpy(codes + (size_t)b * code_bytes + 256, w[b], 64);
        for (int r = 0; r < QN_PANEL; r++) rows[r] += 32;
    }
    for (int b = 0; b < QN_CHUNK; b += 2, codes += 2 * code_bytes) {
        gather(rows, 8, w);
        for (int i = 0; i < 4; i++) {
            join_nibbles(w[i], w[i + 4], 0, codes + 64 * i);
            join_nibbles(w[i], w[i + 4], 1, codes + code_bytes + 64 * i);
        }
        for (int r = 0; r < QN_PANEL; r++) rows[r] += 32;
    }
}

/* A super-block of Q6_K. In the file, half h of 128 elements: ql[64 h + 32 (b & 1) + i] holds elements of
 * blocks b = 0, 1 in its low nibbles and of b + 2 in its high ones; qh[32 h + i] has 2 bits for each of the
 * four. */
static void pack_q6(const uint8_t *const chunk_rows[QN_PANEL], uint8_t *chunk)
{
    size_t code_bytes = qn_layout_code_bytes(QN_LAYOUT_SUB6);
    const uint8_t *rows[QN_PANEL];
    word4 w[8][QUADS];
    gather_halves(chunk_rows, 208, chunk);
    memset(chunk + 32, 0, 32);
    for (int r = 0; r < QN_PANEL; r++) rows[r] = chunk_rows[r] + 192;
    gather(rows, 4, w);
    for (int i = 0; i < 4; i++) store_bytes(w[i], chunk + 64 * (1 + i));
    for (int h = 0; h < 2; h++) {
        uint8_t *codes = chunk + 320 + 4 * (size_t)h * code_bytes;
        for (int odd = 0; odd < 2; odd++) {
            for (int r = 0; r < QN_PANEL; r++) rows[r] = chunk_rows[r] + 64 * h + 32 * odd;
            gather(rows, 8, w);
            for (int high = 0; high < 2; high++)
                for (int i = 0; i < 4; i++)
                    join_nibbles(w[i], w[i + 4], high,
                                 codes + (size_t)(odd + 2 * high) * code_bytes + 64 * i);
        }
        for (int r = 0; r < QN_PANEL; r++) rows[r] = chunk_rows[r] + 128 + 32 * h;
        gather(rows, 8, w);
        for (int half = 0; half < 2; half++) { /* of a block: pair b of word i -> pair i of block b's */
            word4(*v)[QUADS] = w + 4 * half;
            for (int i = 0; i < 2; i++) swap_across(v[i], v[i + 2], 4, 0x0f0f0f0f);
            for (int i = 0; i < 4; i += 2) swap_across(v[i], v[i + 1], 2, 0x33333333);
            for (int b = 0; b < 4; b++) memcpy(codes + (size_t)b * code_bytes + 256 + 64 * half, v[b], 64);
        }
    }
}

/* A block's codes, one a byte: w[g] has those of k = 4 g ... of each row. */
static inline __attribute__((always_inline)) void store_codes(int bits, word4 w[8][QUADS], uint8_t *codes)
{
    if (bits == 8) {
        memcpy(codes, w, 512);
        return;
    }
    if (bits >= 4)
        for (int i = 0; i < 4; i++, codes += 64) join_nibbles(w[i], w[i + 4], 0, codes);
    if (bits == 2 || bits == 3 || bits == 6)
        for (int h = 0; h < 2; h++, codes += 64)
            for (int q = 0; q < QUADS; q++) {
                word4 v = {0};
                for (int i = 0; i < 4; i++)
                    v |= ((w[4 * h + i][q] >> (bits == 6 ? 4 : 0)) & 0x03030303) << 2 * i;
                memcpy(codes + 16 * q, &v, sizeof v);
            }
    if (bits == 3 || bits == 5)
        for (int q = 0; q < QUADS; q++) {
            word4 v = {0};
            for (int g = 0; g < 8; g++) v |= ((w[g][q] >> (bits - 1)) & 0x01010101) << g;
            memcpy(codes + 16 * q, &v, sizeof v);
        }
}

/* As many bytes as there are bits in a code, read in one or two pieces: a copy by bytes would be waited for.
 */
static inline uint64_t load_bits(const uint8_t *p, int bits)
{
    uint16_t h;
    if (bits >= 4) return load32(p) | (uint64_t)(load32(p + bits - 4) >> (8 * (8 - bits) & 31)) << 32;
    memcpy(&h, p, 2);
    return bits == 3 ? h | (uint64_t)p[2] << 16 : h;
}

/* 8 codes of so many bits, side by side, to a byte each. */
static inline uint64_t spread_codes(uint64_t v, int bits)
{
    if (bits == 8) return v;
    uint64_t four = ((uint64_t)1 << 4 * bits) - 1, two = ((uint64_t)1 << 2 * bits) - 1;
    uint64_t one = ((uint64_t)1 << bits) - 1;
    v = (v & four) | (v >> 4 * bits & four) << 32;
    v = (v & two * 0x0000000100000001u) | (v >> 2 * bits & two * 0x0000000100000001u) << 16;
    return (v & one * 0x0001000100010001u) | (v >> bits & one * 0x0001000100010001u) << 8;
}

/* The rows' blocks of an affine type (a whole number of groups). bits: a constant, so that the loops over
 * bits unroll. */
static inline __attribute__((always_inline)) void pack_affine_bits(qn_dtype dtype, int bits,
                                                                   const uint8_t *const chunk_rows[QN_PANEL],
                                                                   int n_blocks, uint8_t *chunk)
{
    qn_affine a = qn_affine_of(dtype);
    size_t scale = a.scale == QN_DTYPE_F32 ? 4 : 2, at = 0;
    uint8_t *codes = chunk + qn_layout_header_bytes(qn_layout_of(dtype), dtype, n_blocks), *scales = chunk;
    for (int b = 0; b < n_blocks; b++, codes += 64 * bits) {
        uint64_t q[QN_PANEL][QN_BLOCK / 8];
        const uint8_t *rows[QN_PANEL];
        word4 w[8][QUADS];
        if (b * QN_BLOCK % a.group == 0) {
            for (int r = 0; r < QN_PANEL; r++) {
                memcpy(scales + scale * (size_t)r, chunk_rows[r] + at, scale);
                memcpy(scales + scale * (size_t)(QN_PANEL + r), chunk_rows[r] + at + scale, scale);
            }
            scales += 2 * scale * QN_PANEL;
            at += 2 * scale;
        }
        for (int r = 0; r < QN_PANEL; r++) {
            const uint8_t *src = chunk_rows[r] + at;
            for (int i = 0; i < QN_BLOCK / 8; i++) {
                q[r][i] = spread_codes(load_bits(src + i * bits, bits), bits);
            }
            rows[r] = (const uint8_t *)q[r];
        }
        at += 4 * (size_t)bits;
        gather(rows, 8, w);
        store_codes(bits, w, codes);
    }
}

static void pack_affine(qn_dtype dtype, const uint8_t *const rows[QN_PANEL], int n_blocks, uint8_t *chunk)
{
    switch (qn_affine_of(dtype).bits) {
    case 2:
        pack_affine_bits(dtype, 2, rows, n_blocks, chunk);
        break;
    case 3:
        pack_affine_bits(dtype, 3, rows, n_blocks, chunk);
        break;
    case 4:
        pack_affine_bits(dtype, 4, rows, n_blocks, chunk);
        break;
    case 5:
        pack_affine_bits(dtype, 5, rows, n_blocks, chunk);
        break;
    case 6:
        pack_affine_bits(dtype, 6, rows, n_blocks, chunk);
        break;
    default:
        pack_affine_bits(dtype, 8, rows, n_blocks, chunk);
        break;
    }
}

/* The rows' blocks of MXFP4 or NVFP4: so many scales, which are bytes, then the codes. */
static inline __attribute__((always_inline)) void
pack_fp4(int n_scales, const uint8_t *const chunk_rows[QN_PANEL], int n_blocks, uint8_t *chunk)
{
    uint8_t *codes = chunk + QN_PANEL * n_scales * n_blocks;
    for (int b = 0; b < n_blocks; b++, codes += 256) {
        const uint8_t *rows[QN_PANEL];
        word4 w[4][QUADS];
        for (int r = 0; r < QN_PANEL; r++) {
            rows[r] = chunk_rows[r] + (16 + n_scales) * b + n_scales;
            for (int h = 0; h < n_scales; h++) chunk[16 * (n_scales * b + h) + r] = rows[r][h - n_scales];
        }
        gather(rows, 4, w);
        memcpy(codes, w, 256);
    }
}

/* Addresses of the byte `at` of a panel's rows. */
static inline void rows_at(const uint8_t *first, size_t row_bytes, int64_t n_rows, size_t at,
                           const uint8_t *rows[QN_PANEL])
{
    for (int r = 0; r < QN_PANEL; r++) rows[r] = r < n_rows ? first + (size_t)r * row_bytes + at : no_row;
}

static void pack_plain(qn_dtype dtype, int64_t n_in, const uint8_t *first, size_t row_bytes, int64_t n_rows,
                       uint8_t *panel)
{
    enum { WORDS = 16 }; /* of a row at a time: a line of the cache, read once */
    const uint8_t *rows[QN_PANEL];
    word4 w[WORDS][QUADS];
    size_t n_words = row_bytes / 4;
    for (size_t i = 0; i < n_words; i += WORDS) {
        int n = n_words - i < WORDS ? (int)(n_words - i) : WORDS;
        rows_at(first, row_bytes, n_rows, 4 * i, rows);
        if (n == WORDS)
            gather(rows, WORDS, w);
        else
            gather(rows, n, w);
        for (int j = 0; dtype == QN_DTYPE_F16 && j < n; j++) {
            store_halves(w[j], 0, panel + 64 * (i + (size_t)j));
            store_halves(w[j], 1, panel + 64 * (i + (size_t)j) + 32);
        }
        if (dtype != QN_DTYPE_F16) memcpy(panel + 64 * i, w, 64 * (size_t)n);
    }
    if (row_bytes % 4 == 0) return;
    /* The last of an odd number of halves. */
    rows_at(first, row_bytes, n_rows, 4 * n_words, rows);
    panel += 64 * n_words;
    if (dtype == QN_DTYPE_BF16) memset(panel, 0, 64);
    for (int r = 0; r < QN_PANEL; r++) memcpy(panel + (dtype == QN_DTYPE_BF16 ? 4 : 2) * r, rows[r], 2);
}

static void pack_chunk(qn_dtype dtype, const uint8_t *const rows[QN_PANEL], int n_blocks, uint8_t *chunk)
{
    switch (dtype) {
    case QN_DTYPE_Q4_0:
        pack_simple(QN_LAYOUT_SYM4, rows, n_blocks, chunk);
        break;
    case QN_DTYPE_Q4_1:
        pack_simple(QN_LAYOUT_MIN4, rows, n_blocks, chunk);
        break;
    case QN_DTYPE_Q5_0:
        pack_simple(QN_LAYOUT_SYM5, rows, n_blocks, chunk);
        break;
    case QN_DTYPE_Q5_1:
        pack_simple(QN_LAYOUT_MIN5, rows, n_blocks, chunk);
        break;
    case QN_DTYPE_Q8_0:
        pack_simple(QN_LAYOUT_SYM8, rows, n_blocks, chunk);
        break;
    case QN_DTYPE_Q4_K:
        pack_k(QN_LAYOUT_K4, rows, chunk);
        break;
    case QN_DTYPE_Q5_K:
        pack_k(QN_LAYOUT_K5, rows, chunk);
        break;
    case QN_DTYPE_Q6_K:
        pack_q6(rows, chunk);
        break;
    case QN_DTYPE_MXFP4:
        pack_fp4(1, rows, n_blocks, chunk);
        break;
    case QN_DTYPE_NVFP4:
        pack_fp4(2, rows, n_blocks, chunk);
        break;
    default:
        pack_affine(dtype, rows, n_blocks, chunk);
        break;
    }
}

void qn_pack(qn_dtype dtype, int64_t n_in, int64_t n_out, const void *rows, int64_t begin, int64_t end,
             void *dst)
{
    size_t panel_bytes = qn_pack_panel_bytes(dtype, n_in), row_bytes;
    if (!panel_bytes || !qn_type_bytes(dtype, n_in, &row_bytes)) return;
    for (int64_t p = begin; p < end; p++) {
        uint8_t *panel = (uint8_t *)dst + (size_t)p * panel_bytes;
        const uint8_t *first = (const uint8_t *)rows + (size_t)p * QN_PANEL * row_bytes;
        int64_t n_rows = n_out - p * QN_PANEL < QN_PANEL ? n_out - p * QN_PANEL : QN_PANEL;
        if (qn_layout_of(dtype) == QN_LAYOUT_NONE) {
            pack_plain(dtype, n_in, first, row_bytes, n_rows, panel);
            continue;
        }
        int64_t n_blocks = n_in / QN_BLOCK;
        size_t step = row_bytes / (size_t)(n_in / block_elements(dtype)); /* of a block of the file */
        for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
            const uint8_t *chunk[QN_PANEL];
            int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
            rows_at(first, row_bytes, n_rows, (size_t)(b * QN_BLOCK / block_elements(dtype)) * step, chunk);
            pack_chunk(dtype, chunk, in_chunk, panel);
            panel += chunk_bytes(dtype, in_chunk);
        }
    }
}
