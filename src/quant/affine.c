#include "quant/affine.h"

#include <math.h>
#include <string.h>

#include "quant/decode.h"

enum { GROUP = 32, GROUPS_MAX = 16 /* of a block */ };

typedef struct {
    float scale, bias;
    uint8_t code[GROUP];
} group;

static float load_f16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return qn_f16_to_f32(v);
}

/* 16 bytes of nibbles: byte j holds code j low and code j + 16 high. */
static void nibbles(const uint8_t *q, group *g)
{
    for (int j = 0; j < 16; j++) {
        g->code[j] = q[j] & 15;
        g->code[j + 16] = q[j] >> 4;
    }
}

/* And bit j of 4 bytes is the fifth of code j. */
static void fifth_bits(const uint8_t *high, group *g)
{
    for (int j = 0; j < GROUP; j++) g->code[j] |= (uint8_t)((high[j / 8] >> j % 8 & 1) << 4);
}

/* The layouts are drawn in decode.c. Products of a scale and a code have fewer bits than an f32, so that only
 * the sum with the bias is rounded, as the decoder's is. */
static void from_q4_0(const uint8_t *b, group *g)
{
    g->scale = load_f16(b);
    g->bias = -8 * g->scale;
    nibbles(b + 2, g);
}

static void from_q4_1(const uint8_t *b, group *g)
{
    g->scale = load_f16(b);
    g->bias = load_f16(b + 2);
    nibbles(b + 4, g);
}

static void from_q5_0(const uint8_t *b, group *g)
{
    g->scale = load_f16(b);
    g->bias = -16 * g->scale;
    nibbles(b + 6, g);
    fifth_bits(b + 2, g);
}

static void from_q5_1(const uint8_t *b, group *g)
{
    g->scale = load_f16(b);
    g->bias = load_f16(b + 2);
    nibbles(b + 8, g);
    fifth_bits(b + 4, g);
}

static void from_q8_0(const uint8_t *b, group *g)
{
    g->scale = load_f16(b);
    g->bias = -128 * g->scale;
    for (int j = 0; j < GROUP; j++) g->code[j] = b[2 + j] ^ 0x80; /* plus 128 */
}

/* Group k of the 8 of a block of Q4_K, or of Q5_K with its fifth bits. */
static void from_k(const uint8_t *b, const uint8_t *low, const uint8_t *high, int k, group *g)
{
    int scale, min;
    qn_k_scale_and_min(b + 4, k, &scale, &min);
    g->scale = load_f16(b) * (float)scale;
    g->bias = -(load_f16(b + 2) * (float)min);
    for (int j = 0; j < GROUP; j++) {
        g->code[j] = low[32 * (k / 2) + j] >> 4 * (k & 1) & 15;
        if (high) g->code[j] |= (uint8_t)((high[j] >> k & 1) << 4);
    }
}

static void from_q4_k(const uint8_t *b, group *g)
{
    for (int k = 0; k < 8; k++) from_k(b, b + 16, NULL, k, g + k);
}

static void from_q5_k(const uint8_t *b, group *g)
{
    for (int k = 0; k < 8; k++) from_k(b, b + 48, b + 16, k, g + k);
}

/* Halves of 128: 8 pairs of 16 codes each, a scale for 16. */
static void from_q6_k(const uint8_t *b, group *g)
{
    const float d = load_f16(b + 208);
    for (int i = 0; i < 16; i++, g++) {
        const int half = i / 8, pair = i % 8 / 2, first = i % 2 * 16;
        const uint8_t *low = b + 64 * half + 32 * (pair & 1) + first, *top = b + 128 + 32 * half + first;
        g->scale = d * (float)(int8_t)b[192 + i];
        g->bias = -32 * g->scale;
        for (int j = 0; j < 16; j++)
            g->code[j] = (uint8_t)((low[j] >> (pair < 2 ? 0 : 4) & 15) | (top[j] >> 2 * pair & 3) << 4);
    }
}

typedef struct {
    qn_dtype dtype;
    int bits, group;
    qn_dtype scale;
    void (*take_apart)(const uint8_t *block, group *g);
} form;

static const form forms[] = {
    {QN_DTYPE_Q4_0, 4, 32, QN_DTYPE_F16, from_q4_0}, {QN_DTYPE_Q4_1, 4, 32, QN_DTYPE_F16, from_q4_1},
    {QN_DTYPE_Q5_0, 5, 32, QN_DTYPE_F16, from_q5_0}, {QN_DTYPE_Q5_1, 5, 32, QN_DTYPE_F16, from_q5_1},
    {QN_DTYPE_Q8_0, 8, 32, QN_DTYPE_F16, from_q8_0}, {QN_DTYPE_Q4_K, 4, 32, QN_DTYPE_F32, from_q4_k},
    {QN_DTYPE_Q5_K, 5, 32, QN_DTYPE_F32, from_q5_k}, {QN_DTYPE_Q6_K, 6, 16, QN_DTYPE_F32, from_q6_k},
};

static const form *form_of(qn_dtype dtype)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (forms[i].dtype == dtype) return &forms[i];
    return NULL;
}

qn_affine qn_affine_of_blocks(qn_dtype dtype)
{
    const form *f = form_of(dtype);
    return f ? (qn_affine){f->bits, f->group, f->scale} : (qn_affine){0, 0, QN_DTYPE_F32};
}

/* The other way than qn_unpack_bits. */
static void pack_bits(const uint8_t q[8], int bits, uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v |= (uint64_t)q[i] << bits * i;
    for (int i = 0; i < bits; i++) p[i] = (uint8_t)(v >> 8 * i);
}

/* Number i of an array of f16 or f32; 0: it does not go in. */
static int put(float v, qn_dtype dtype, int64_t i, void *to)
{
    if (!isfinite(v)) return 0;
    if (dtype == QN_DTYPE_F32) {
        memcpy((char *)to + 4 * i, &v, sizeof v);
        return 1;
    }
    const uint16_t half = qn_f32_to_f16(v);
    memcpy((char *)to + 2 * i, &half, sizeof half);
    return qn_f16_to_f32(half) == v;
}

int qn_affine_from_blocks(qn_dtype dtype, int64_t n_in, const void *blocks, void *codes, void *scales,
                          void *biases)
{
    const form *f = form_of(dtype);
    const qn_type *type = qn_type_get(dtype);
    const uint8_t *b = blocks;
    uint8_t *to = codes;
    const int n = (int)type->block_elements / f->group;
    group g[GROUPS_MAX];
    int good = 1;
    for (int64_t i = 0; i < n_in / f->group; i += n, b += type->block_bytes) {
        f->take_apart(b, g);
        for (int k = 0; k < n; k++) {
            good &= put(g[k].scale, f->scale, i + k, scales) & put(g[k].bias, f->scale, i + k, biases);
            for (int j = 0; j < f->group; j += 8, to += f->bits) pack_bits(g[k].code + j, f->bits, to);
        }
    }
    return good;
}
