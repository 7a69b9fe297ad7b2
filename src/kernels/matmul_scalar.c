/* The reference: what every other set must equal bit for bit in integer matmuls. */
#include <math.h>
#include <string.h>

#include "kernels/pack.h"
#include "kernels/sets.h"
#include "quant/types.h"

/* ---- activations ------------------------------------------------------------------------------------- */

static uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static float largest(const float *x, int *finite)
{
    uint32_t most = 0; /* as integers, absolute values order like floats and NaN comes last */
    for (int i = 0; i < QN_BLOCK; i++) {
        uint32_t u = float_bits(x[i]) & 0x7fffffff;
        most = u > most ? u : most;
    }
    *finite = most < 0x7f800000;
    return bits_float(most);
}

/* Integers of one block: rint(x / scale) with scale = max |x| / limit; returns scale. */
static float quantise(const float *x, int limit, int32_t q[QN_BLOCK], int32_t half[2])
{
    int finite;
    float most = largest(x, &finite), inverse = 0, scale = 0;
    memset(half, 0, 2 * sizeof half[0]);
    memset(q, 0, QN_BLOCK * sizeof q[0]);
    if (!finite) return bits_float(0x7fc00000);
    if (most < QN_ACT_TINY) return 0;
    scale = most / (float)limit;
    inverse = (float)limit / most;
    for (int i = 0; i < QN_BLOCK; i++) {
        q[i] = (int32_t)lrintf(x[i] * inverse);
        half[i / 16] += q[i];
    }
    return scale;
}

static void act_pack(qn_act act, int64_t n_in, const float *x, void *out)
{
    if (act == QN_ACT_F32) {
        memcpy(out, x, (size_t)n_in * sizeof *x);
    } else if (act == QN_ACT_BF16) {
        uint16_t *to = out;
        for (int64_t k = 0; k < n_in; k++) to[k] = qn_f32_to_bf16(x[k]);
        if (n_in % 2) to[n_in] = 0;
    } else {
        int32_t q[QN_BLOCK], half[2];
        for (int64_t b = 0; b < n_in / QN_BLOCK; b++, x += QN_BLOCK) {
            if (act == QN_ACT_I8) {
                qn_act_i8 *to = (qn_act_i8 *)out + b;
                to->scale = quantise(x, QN_ACT_I8_MAX, q, half);
                to->sum = to->scale * (float)(half[0] + half[1]);
                for (int h = 0; h < 2; h++) to->zero[h] = -128 * half[h];
                for (int i = 0; i < QN_BLOCK; i++) to->q[i] = (int8_t)q[i];
            } else {
                qn_act_i8x2 *to = (qn_act_i8x2 *)out + b;
                to->scale = quantise(x, QN_ACT_I8X2_MAX, q, half);
                to->sum = to->scale * (float)(half[0] + half[1]);
                for (int h = 0; h < 2; h++) to->zero[h] = -128 * half[h];
                for (int i = 0; i < QN_BLOCK; i++) {
                    int32_t hi = (q[i] + 64 + (128 << 10)) / 128 - (1 << 10); /* floor((q + 64) / 128) */
                    to->hi[i] = (int8_t)hi;
                    to->lo[i] = (int8_t)(q[i] - 128 * hi);
                }
            }
        }
    }
}

/* ---- unpacking --------------------------------------------------------------------------------------- */

static void unpack_panel(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out)
{
    float block[256];
    if (qn_layout_scale(dtype) == QN_SCALE_NONE) {
        const uint8_t *p = (const uint8_t *)panels + (size_t)panel * qn_pack_panel_bytes(dtype, n_in);
        for (int64_t k = 0; k < n_in; k++) {
            for (int lane = 0; lane < QN_PANEL; lane++) {
                uint16_t h;
                if (dtype == QN_DTYPE_F32) {
                    memcpy(out + k * QN_PANEL + lane, p + (k * QN_PANEL + lane) * 4, 4);
                } else if (dtype == QN_DTYPE_F16) {
                    memcpy(&h, p + (k * QN_PANEL + lane) * 2, 2);
                    out[k * QN_PANEL + lane] = qn_f16_to_f32(h);
                } else {
                    memcpy(&h, p + ((k / 2 * QN_PANEL + lane) * 2 + k % 2) * 2, 2);
                    out[k * QN_PANEL + lane] = qn_bf16_to_f32(h);
                }
            }
        }
        return;
    }
    /* A chunk is a panel of up to 256 columns: unpack it row by row and transpose. */
    const uint8_t *chunk = (const uint8_t *)panels + (size_t)panel * qn_pack_panel_bytes(dtype, n_in);
    for (int64_t k = 0; k < n_in; k += 256) {
        int64_t n = n_in - k < 256 ? n_in - k : 256;
        for (int lane = 0; lane < QN_PANEL; lane++) {
            qn_unpack_row(dtype, n, chunk, lane, block);
            for (int64_t i = 0; i < n; i++) out[(k + i) * QN_PANEL + lane] = block[i];
        }
        chunk += qn_pack_panel_bytes(dtype, n);
    }
}

/* ---- matmul ------------------------------------------------------------------------------------------ */

static void store(const qn_matmul_args *a, int64_t row, int64_t panel, const float acc[QN_PANEL])
{
    int64_t first = panel * QN_PANEL, n = a->n_out - first < QN_PANEL ? a->n_out - first : QN_PANEL;
    memcpy(a->out + row * a->out_stride + first, acc, (size_t)n * sizeof *acc);
}

/* f32 or bf16 activations against the panel as f32 in scratch: one chain over k. Not fused: the plainest chip
 * would need a call of the C library for each of them. */
static void matmul_float(const qn_matmul_args *a, int64_t panel, float *w)
{
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in);
    unpack_panel(a->dtype, a->n_in, a->panels, panel, w);
    for (int64_t r = 0; r < a->n_rows; r++) {
        const uint8_t *x = (const uint8_t *)a->x + (size_t)r * row_bytes;
        float acc[QN_PANEL] = {0};
        for (int64_t k = 0; k < a->n_in; k++) {
            float xk = a->act == QN_ACT_F32 ? ((const float *)(const void *)x)[k]
                                            : qn_bf16_to_f32(((const uint16_t *)(const void *)x)[k]);
            for (int lane = 0; lane < QN_PANEL; lane++) acc[lane] += xk * w[k * QN_PANEL + lane];
        }
        store(a, r, panel, acc);
    }
}

/* The weights of one block of a panel: d, m, sub-scales and codes less their zero. */
typedef struct {
    float d[QN_PANEL], m[QN_PANEL];
    int32_t sub[2][QN_PANEL];
    int16_t q[QN_PANEL][QN_BLOCK];
} block_codes;

static void expand_block(qn_dtype dtype, const uint8_t *header, const uint8_t *codes, int i_block,
                         block_codes *w)
{
    int zero = qn_layout_zero(dtype);
    for (int lane = 0; lane < QN_PANEL; lane++) {
        uint8_t q[QN_BLOCK];
        qn_lane_scale s = qn_lane_scales(dtype, header, i_block, lane);
        w->d[lane] = s.d;
        w->m[lane] = s.m;
        for (int h = 0; h < 2; h++) w->sub[h][lane] = s.sub[h];
        qn_lane_codes(dtype, codes, lane, q);
        for (int i = 0; i < QN_BLOCK; i++) w->q[lane][i] = (int16_t)(q[i] - zero);
    }
}

static int32_t dot_half(const int16_t *x, const int16_t *w)
{
    int32_t sum = 0;
    for (int i = 0; i < QN_BLOCK / 2; i++) sum += (int32_t)x[i] * (int32_t)w[i];
    return sum;
}

static void matmul_integer(const qn_matmul_args *a, int64_t panel, block_codes *w)
{
    qn_scale_kind kind = qn_layout_scale(a->dtype);
    int64_t n_blocks = a->n_in / QN_BLOCK;
    const uint8_t *p = (const uint8_t *)a->panels + (size_t)panel * qn_pack_panel_bytes(a->dtype, a->n_in);
    for (int64_t b = 0; b < n_blocks;) {
        int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
        const uint8_t *codes = p + qn_layout_header_bytes(a->dtype, in_chunk);
        for (int i = 0; i < in_chunk; i++, codes += qn_layout_code_bytes(a->dtype))
            expand_block(a->dtype, p, codes, i, &w[b++]);
        p = codes;
    }
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in);
    for (int64_t r = 0; r < a->n_rows; r++) {
        const uint8_t *x = (const uint8_t *)a->x + (size_t)r * row_bytes;
        float acc[QN_PANEL] = {0};
        for (int64_t b = 0; b < n_blocks; b++) {
            int16_t v[QN_BLOCK];
            float scale, sum;
            if (a->act == QN_ACT_I8) {
                const qn_act_i8 *xb = (const qn_act_i8 *)(const void *)x + b;
                for (int i = 0; i < QN_BLOCK; i++) v[i] = xb->q[i];
                scale = xb->scale;
                sum = xb->sum;
            } else {
                const qn_act_i8x2 *xb = (const qn_act_i8x2 *)(const void *)x + b;
                for (int i = 0; i < QN_BLOCK; i++) v[i] = (int16_t)(128 * xb->hi[i] + xb->lo[i]);
                scale = xb->scale;
                sum = xb->sum;
            }
            for (int lane = 0; lane < QN_PANEL; lane++) {
                int32_t first = dot_half(v, w[b].q[lane]),
                        second = dot_half(v + QN_BLOCK / 2, w[b].q[lane] + QN_BLOCK / 2);
                /* For Q6_K each is at most 16 * 32 * 16256 < 2^23, so times sub they fit, and so does their
                 * sum. */
                if (kind == QN_SCALE_SUB) {
                    first *= w[b].sub[0][lane];
                    second *= w[b].sub[1][lane];
                }
                acc[lane] = fmaf((float)(first + second) * scale, w[b].d[lane], acc[lane]);
                if (kind == QN_SCALE_MIN || kind == QN_SCALE_K)
                    acc[lane] = fmaf(sum, w[b].m[lane], acc[lane]);
            }
        }
        store(a, r, panel, acc);
    }
}

static void matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    for (int64_t p = begin; p < end; p++) {
        if (a->act == QN_ACT_F32 || a->act == QN_ACT_BF16) {
            matmul_float(a, p, scratch);
        } else {
            matmul_integer(a, p, scratch);
        }
    }
}

/* Enough for every set: a panel as f32, or the codes and scales of its blocks (block_codes here; the vector
 * sets keep fewer). */
size_t qn_matmul_scratch_bytes(qn_dtype weight, qn_act act, int64_t n_in)
{
    if (!qn_pack_panel_bytes(weight, n_in)) return 0;
    return act == QN_ACT_F32 || act == QN_ACT_BF16 ? (size_t)n_in * QN_PANEL * 2 * sizeof(float)
                                                   : (size_t)(n_in / QN_BLOCK) * sizeof(block_codes);
}

void qn_kernels_fill_matmul_scalar(qn_kernels *k)
{
    k->pack = qn_pack;
    k->unpack_row = qn_unpack_row;
    k->unpack_panel = unpack_panel;
    k->act_pack = act_pack;
    k->matmul = matmul;
}
