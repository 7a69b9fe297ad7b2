/* What pages of keys and values hold: writing a token, widening a page to f32. The layouts are those of
 * kernels.h. A token owns whole bytes of a page in every type, so that several workers may write tokens of
 * one page at a time.
 *
 * Q8_0 and Q4_0 share their order, in words of 16 bits of one token: K [block][pairs of dimensions][token], V
 * [pair of tokens][block][dimension], with an even dimension (token) in the low byte and the next one in the
 * high byte. A byte of Q4_0 holds two numbers that are 16 dimensions apart, the lower dimension in its low
 * half, so that it has half of the rows (of K), or of the columns (of V).
 *
 * Four bits are too few for a block in which one dimension is much larger than the others, and keys have such
 * dimensions. So Q4_0 holds blocks turned by the Hadamard matrix of 32, which spreads every dimension over
 * all; queries are turned alike, which leaves q.k as it is, and what was gathered of values is turned back.
 */
#ifndef QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_PAGES_BODY_H
#define QN_DEVICE_CPU_KERNELS_ATTENTION_ATTENTION_PAGES_BODY_H

#include "device/cpu/kernels/attention/attention.h"

/* ---- turned blocks ------------------------------------------------------------------------------------ */

/* What keys and values, and what queries and sums are multiplied with when they are turned: H H is 32 times
 * the identity. Keys and values keep their size, more or less, for which an f16 scale has room. */
static const float turned_kept = 1.0f / 4, turned_asked = 1.0f / 8;

/* x [QN_KV_BLOCK] becomes factor * H x in place. Sums of pairs in one order on every set, and factor is a
 * power of two, so all sets write the same bytes. */
static void turn_block(float *x, float factor)
{
    vf a = v_load(x), b = v_load(x + 16), even, odd;
    for (int i = 0; i < 5; i++) {
        v_unzip(a, b, &even, &odd);
        a = v_add(even, odd);
        b = v_sub(even, odd);
    }
    v_store(x, v_mul(a, v_set1(factor)));
    v_store(x + 16, v_mul(b, v_set1(factor)));
}

/* x [n], and zeros up to a whole block, turned block by block into out. */
static void turn_blocks(float *out, const float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i += QN_KV_BLOCK) {
        const int64_t left = n - i < QN_KV_BLOCK ? n - i : QN_KV_BLOCK;
        memset(out + i, 0, QN_KV_BLOCK * sizeof *out);
        memcpy(out + i, x + i, (size_t)left * sizeof *out);
        turn_block(out + i, factor);
    }
}

/* 16 x 16: lane i of number j and lane j of number i change places, by putting the lanes of two vectors that
 * are 8 apart side by side, four times. */
static inline void turn_16(vf *x)
{
    vf y[16];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++) v_zip(x[i], x[i + 8], &y[2 * i], &y[2 * i + 1]);
        for (int i = 0; i < 16; i++) x[i] = y[i];
    }
}

/* ---- pages as f32 ------------------------------------------------------------------------------------- */

/* Rows of n elements to f32 rows padded with zeros to whole vectors. */
static void widen_rows(float *out, int64_t out_stride, const char *x, int half, int64_t n_rows, int64_t n)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const float *full = half ? NULL : (const float *)x + r * n;
        const uint16_t *halves = half ? (const uint16_t *)x + r * n : NULL;
        int64_t i = 0;
        for (; i + 16 <= n; i += 16)
            v_store(out + r * out_stride + i, half ? v_load_f16(halves + i) : v_load(full + i));
        if (i == n) continue;
        if (half) {
            uint16_t last[16] = {0};
            memcpy(last, halves + i, (size_t)(n - i) * sizeof *last);
            v_store(out + r * out_stride + i, v_load_f16(last));
        } else {
            v_store(out + r * out_stride + i, v_load_n(full + i, (int)(n - i)));
        }
    }
}

/* n columns (a multiple of 16) of rows that lie in pairs, element by element. */
static void widen_pairs(float *out, int64_t out_stride, const uint16_t *x, int64_t n_pairs, int64_t n)
{
    for (int64_t r = 0; r < n_pairs; r++) {
        for (int64_t i = 0; i < n; i += 16) {
            const uint16_t *p = x + 2 * (r * n + i);
            vf even, odd;
            v_unzip(v_load_bf16(p), v_load_bf16(p + 16), &even, &odd);
            v_store(out + 2 * r * out_stride + i, even);
            v_store(out + (2 * r + 1) * out_stride + i, odd);
        }
    }
}

/* Number `which` of 16 words, times scale: of 2 in a word for Q8_0, of 4 for Q4_0, from the low bits up. */
static inline vf number_of(const uint16_t *words, int bits, int which, vf scale)
{
    return v_mul(v_load_bits(words, 16 - bits * (which + 1), 16 - bits), scale);
}

/* Where number `which` of a word stands: so many dimensions (tokens) further in the pair, and so many
 * dimensions further on. */
static inline int odd_of(int bits, int which)
{
    return bits == 8 ? which : which / 2;
}

static inline int further_of(int bits, int which)
{
    return bits == 8 ? 0 : which % 2 * (QN_KV_BLOCK / 2);
}

/* bits is a constant wherever these two are expanded. */
static inline __attribute__((always_inline)) void widen_k_blocks(float *out, const char *page, int64_t blocks,
                                                                 int bits)
{
    const int n_words = QN_KV_BLOCK * bits / 16; /* rows of words of a block */
    const uint16_t *words = (const uint16_t *)page, *scales = words + blocks * n_words * QN_PAGE_TOKENS;
    for (int64_t b = 0; b < blocks; b++, out += QN_KV_BLOCK * QN_PAGE_TOKENS) {
        for (int t = 0; t < QN_PAGE_TOKENS; t += 16) {
            vf scale = v_load_f16(scales + b * QN_PAGE_TOKENS + t);
            for (int i = 0; i < n_words; i++) {
                const uint16_t *row = words + (b * n_words + i) * QN_PAGE_TOKENS + t;
                for (int w = 0; w < 16 / bits; w++) {
                    int j = 2 * i + odd_of(bits, w) + further_of(bits, w);
                    v_store(out + j * QN_PAGE_TOKENS + t, number_of(row, bits, w, scale));
                }
            }
        }
    }
}

static inline __attribute__((always_inline)) void widen_v_blocks(float *out, const char *page, int64_t v_pad,
                                                                 int bits)
{
    const int64_t n_words = QN_KV_BLOCK * bits / 8, row_words = v_pad * bits / 8;
    const int64_t blocks = v_pad / QN_KV_BLOCK;
    const uint16_t *words = (const uint16_t *)page, *scales = words + row_words * QN_PAGE_TOKENS / 2;
    for (int64_t b = 0; b < blocks; b++) {
        float scale[QN_PAGE_TOKENS];
        for (int t = 0; t < QN_PAGE_TOKENS; t += 16)
            v_store(scale + t, v_load_f16(scales + b * QN_PAGE_TOKENS + t));
        for (int64_t t = 0; t < QN_PAGE_TOKENS; t += 2) {
            vf even = v_set1(scale[t]), odd = v_set1(scale[t + 1]);
            float *to = out + t * v_pad + b * QN_KV_BLOCK;
            for (int64_t i = 0; i < n_words; i += 16) {
                const uint16_t *row = words + t / 2 * row_words + b * n_words + i;
                for (int w = 0; w < 16 / bits; w++) {
                    int is_odd = odd_of(bits, w);
                    v_store(to + is_odd * v_pad + i + further_of(bits, w),
                            number_of(row, bits, w, is_odd ? odd : even));
                }
            }
        }
    }
}

static void widen_k(const qn_kv_layout *kv, float *out, const char *page)
{
    switch (kv->dtype) {
    case QN_DTYPE_BF16:
        widen_pairs(out, QN_PAGE_TOKENS, (const uint16_t *)page, (kv->head_dim + 1) / 2, QN_PAGE_TOKENS);
        break;
    case QN_DTYPE_Q8_0:
        widen_k_blocks(out, page, qn_kv_blocks(kv->head_dim), 8);
        break;
    case QN_DTYPE_Q4_0:
        widen_k_blocks(out, page, qn_kv_blocks(kv->head_dim), 4);
        break;
    default:
        widen_rows(out, QN_PAGE_TOKENS, page, kv->dtype == QN_DTYPE_F16, kv->head_dim, QN_PAGE_TOKENS);
    }
}

static void widen_v(const qn_kv_layout *kv, float *out, const char *page)
{
    const int64_t v_pad = qn_kv_v_pad(kv->dtype, kv->v_dim);
    switch (kv->dtype) {
    case QN_DTYPE_BF16:
        widen_pairs(out, v_pad, (const uint16_t *)page, QN_PAGE_TOKENS / 2, v_pad);
        break;
    case QN_DTYPE_Q8_0:
        widen_v_blocks(out, page, v_pad, 8);
        break;
    case QN_DTYPE_Q4_0:
        widen_v_blocks(out, page, v_pad, 4);
        break;
    default:
        widen_rows(out, v_pad, page, kv->dtype == QN_DTYPE_F16, QN_PAGE_TOKENS, kv->v_dim);
    }
}

/* ---- writing pages ------------------------------------------------------------------------------------ */

/* n numbers (32 at most) as integers of 8 or 4 bits and a scale in f16: largest / 127, or what makes the
 * largest -8, whatever its sign: all 16 numbers are used. What is not finite makes the scale so. */
static uint16_t quantise(const float *x, int64_t n, int bits, int8_t *out)
{
    vf largest = v_set1(0), odd = v_set1(0), parts[2];
    for (int i = 0; i < 2; i++) {
        int64_t left = n - 16 * i;
        parts[i] = left >= 16 ? v_load(x + 16 * i) : left > 0 ? v_load_n(x + 16 * i, (int)left) : v_set1(0);
        largest = v_max(largest, v_abs(parts[i]));
        odd = v_fma(parts[i], v_set1(0), odd);
    }
    float most = v_largest(largest), scale = most / 127.0f, rounded[16];
    if (bits == 4) {
        vf m = v_set1(most);
        scale = v_any(v_or(v_eq(parts[0], m), v_eq(parts[1], m))) ? most / -8.0f : most / 8.0f;
    }
    if (v_any(v_is_nan(odd))) scale = NAN;
    uint16_t halves[16];
    v_store_f16(halves, v_set1(scale));
    scale = v_first(v_load_f16(halves));
    vf inverse = v_set1(scale != 0 && fabsf(scale) < INFINITY ? 1.0f / scale : 0.0f);
    vf low = v_set1(bits == 8 ? -127 : -8), high = v_set1(bits == 8 ? 127 : 7);
    for (int64_t i = 0; i < 2; i++) {
        vf y = v_round(v_mul(parts[i], inverse));
        y = v_select(v_is_nan(y), v_set1(0), v_min(high, v_max(low, y)));
        v_store(rounded, y);
        for (int64_t j = 0; j < 16; j++) out[16 * i + j] = (int8_t)rounded[j];
    }
    return halves[0];
}

/* x [n] in blocks: byte j of block b (32 bytes, or 16 with 4 bits) goes to to[b * block_bytes + j / 2 *
 * pair_bytes + j % 2 * odd_bytes], the scale to scales[b * QN_PAGE_TOKENS]. */
static void write_blocks(const float *x, int64_t n, int bits, char *to, int64_t block_bytes,
                         int64_t pair_bytes, int64_t odd_bytes, uint16_t *scales)
{
    for (int64_t b = 0; b * QN_KV_BLOCK < n; b++, to += block_bytes) {
        const float *from = x + b * QN_KV_BLOCK;
        int64_t left = n - b * QN_KV_BLOCK;
        int8_t block[QN_KV_BLOCK];
        float turned[QN_KV_BLOCK];
        if (left > QN_KV_BLOCK) left = QN_KV_BLOCK;
        if (bits == 4) {
            turn_blocks(turned, from, left, turned_kept);
            from = turned;
            left = QN_KV_BLOCK;
        }
        scales[b * QN_PAGE_TOKENS] = quantise(from, left, bits, block);
        for (int64_t j = 0; j < QN_KV_BLOCK / 2; j++) {
            char *at = to + j / 2 * pair_bytes + j % 2 * odd_bytes;
            if (bits == 4) {
                *at = (char)((block[j] & 15) | (block[j + QN_KV_BLOCK / 2] & 15) << 4);
                continue;
            }
            *at = block[j];
            at[QN_KV_BLOCK / 4 * pair_bytes] = block[j + QN_KV_BLOCK / 2];
        }
    }
}

/* One head's key, token `slot` of a page. */
static void write_k(const qn_kv_layout *kv, char *to, int64_t slot, const float *k)
{
    const int64_t d = kv->head_dim, pairs = (d + 1) / 2, blocks = qn_kv_blocks(d);
    const int bits = kv->dtype == QN_DTYPE_Q8_0 ? 8 : 4;
    uint16_t halves[16];
    if (kv->dtype == QN_DTYPE_F32) {
        for (int64_t i = 0; i < d; i++) ((float *)to)[i * QN_PAGE_TOKENS + slot] = k[i];
    } else if (qn_kv_has_blocks(kv->dtype)) {
        const int64_t block_bytes = QN_KV_BLOCK * QN_PAGE_TOKENS * bits / 8;
        write_blocks(k, d, bits, to + 2 * slot, block_bytes, 2 * QN_PAGE_TOKENS, 1,
                     (uint16_t *)(to + blocks * block_bytes) + slot);
    } else if (kv->dtype == QN_DTYPE_BF16) {
        for (int64_t i = 0; i < pairs; i += 8) {
            int64_t n = d - 2 * i < 16 ? d - 2 * i : 16;
            v_store_bf16(halves, v_load_n(k + 2 * i, (int)n));
            for (int64_t j = 0; j < 8 && i + j < pairs; j++)
                memcpy((uint16_t *)to + ((i + j) * QN_PAGE_TOKENS + slot) * 2, halves + 2 * j, 4);
        }
    } else {
        for (int64_t i = 0; i < d; i += 16) {
            int64_t n = d - i < 16 ? d - i : 16;
            v_store_f16(halves, v_load_n(k + i, (int)n));
            for (int64_t j = 0; j < n; j++) ((uint16_t *)to)[(i + j) * QN_PAGE_TOKENS + slot] = halves[j];
        }
    }
}

/* One head's value. */
static void write_v(const qn_kv_layout *kv, char *to, int64_t slot, const float *v)
{
    const int64_t d = kv->v_dim, pad = qn_kv_v_pad(kv->dtype, d);
    const int bits = kv->dtype == QN_DTYPE_Q8_0 ? 8 : 4;
    uint16_t halves[16];
    if (kv->dtype == QN_DTYPE_F32) {
        memcpy((float *)to + slot * d, v, (size_t)d * sizeof *v);
    } else if (qn_kv_has_blocks(kv->dtype)) {
        const int64_t row_bytes = pad * bits / 4; /* of a pair of tokens */
        write_blocks(v, d, bits, to + slot / 2 * row_bytes + slot % 2, QN_KV_BLOCK * bits / 4, 4, 2,
                     (uint16_t *)(to + row_bytes * QN_PAGE_TOKENS / 2) + slot);
    } else if (kv->dtype == QN_DTYPE_BF16) {
        for (int64_t i = 0; i < pad; i += 16) {
            v_store_bf16(halves, v_load_n(v + i, (int)(d - i < 16 ? d - i : 16)));
            for (int64_t j = 0; j < 16; j++)
                ((uint16_t *)to)[(slot / 2 * pad + i + j) * 2 + slot % 2] = halves[j];
        }
    } else {
        for (int64_t i = 0; i < d; i += 16) {
            int64_t n = d - i < 16 ? d - i : 16;
            v_store_f16(halves, v_load_n(v + i, (int)n));
            memcpy((uint16_t *)to + slot * d + i, halves, (size_t)n * sizeof *halves);
        }
    }
}

/* 16 keys of whole vectors, tokens from `slot` on: 16 dimensions of them at a time are turned.
 * Of a type without blocks. */
static void write_16_keys(const qn_kv_layout *kv, char *to, int64_t slot, const float *k, int64_t stride)
{
    for (int64_t d = 0; d < kv->head_dim; d += 16) {
        vf x[16];
        for (int i = 0; i < 16; i++) x[i] = v_load(k + i * stride + d);
        turn_16(x);
        for (int64_t i = 0; i < 16; i++) {
            const int64_t at = (d + i) * QN_PAGE_TOKENS + slot;
            if (kv->dtype == QN_DTYPE_F32) {
                v_store((float *)to + at, x[i]);
            } else if (kv->dtype == QN_DTYPE_F16) {
                v_store_f16((uint16_t *)to + at, x[i]);
            } else if (i % 2 == 0) {
                uint16_t *pairs = (uint16_t *)to + (d + i) * QN_PAGE_TOKENS + 2 * slot;
                vf low, high;
                v_zip(x[i], x[i + 1], &low, &high);
                v_store_bf16(pairs, low);
                v_store_bf16(pairs + 16, high);
            }
        }
    }
}

/* Two values of whole vectors in BF16, of which the first one has an even slot. */
static void write_2_values(const qn_kv_layout *kv, char *to, int64_t slot, const float *v, int64_t stride)
{
    uint16_t *out = (uint16_t *)to + slot * kv->v_dim;
    for (int64_t i = 0; i < kv->v_dim; i += 16) {
        vf low, high;
        v_zip(v_load(v + i), v_load(v + stride + i), &low, &high);
        v_store_bf16(out + 2 * i, low);
        v_store_bf16(out + 2 * i + 16, high);
    }
}

/* Tokens outside, heads inside, which is how rows lie. */
static void kv_write(const qn_kv_layout *kv, int64_t head, int64_t n_heads, int64_t page, int64_t slot,
                     int64_t n, const float *k, int64_t k_stride, const float *v, int64_t v_stride)
{
    const size_t k_bytes = qn_kv_k_bytes(kv->dtype, kv->head_dim),
                 v_bytes = qn_kv_v_bytes(kv->dtype, kv->v_dim);
    const int turns = !qn_kv_has_blocks(kv->dtype) && kv->head_dim % 16 == 0,
              pairs = kv->dtype == QN_DTYPE_BF16 && kv->v_dim % 16 == 0;
    char *keys = kv->pages + (size_t)page * kv->page_stride_bytes,
         *values = keys + (size_t)kv->kv_heads * k_bytes + (size_t)head * v_bytes;
    keys += (size_t)head * k_bytes;
    for (int64_t i = 0, step; i < n; i += step) {
        const float *row = k + i * k_stride;
        char *to = keys;
        step = turns && n - i >= 16 ? 16 : 1;
        for (int64_t h = 0; h < n_heads; h++, to += k_bytes, row += kv->head_dim) {
            if (step == 16)
                write_16_keys(kv, to, slot + i, row, k_stride);
            else
                write_k(kv, to, slot + i, row);
        }
    }
    for (int64_t i = 0, step; i < n && !kv->v_in_k; i += step) {
        const float *row = v + i * v_stride;
        char *to = values;
        step = pairs && (slot + i) % 2 == 0 && n - i >= 2 ? 2 : 1;
        for (int64_t h = 0; h < n_heads; h++, to += v_bytes, row += kv->v_dim) {
            if (step == 2)
                write_2_values(kv, to, slot + i, row, v_stride);
            else
                write_v(kv, to, slot + i, row);
        }
    }
}

#endif
