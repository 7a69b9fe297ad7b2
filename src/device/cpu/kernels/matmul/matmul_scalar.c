/* Matmul of int8 activations: the reference that every other set must equal bit for bit. */
#include <math.h>
#include <string.h>

#include "device/cpu/kernels/matmul/pack.h"
#include "device/cpu/kernels/sets.h"

static void store(const qn_matmul_args *a, int64_t row, int64_t panel, const float acc[QN_PANEL])
{
    int64_t first = panel * QN_PANEL, n = a->n_out - first < QN_PANEL ? a->n_out - first : QN_PANEL;
    memcpy(a->out + row * a->out_stride + first, acc, (size_t)n * sizeof *acc);
}

/* The weights of one block of a panel: d, m and codes less their zero. */
typedef struct {
    float d[QN_PANEL], m[QN_PANEL];
    int16_t q[QN_PANEL][QN_BLOCK];
} block_codes;

static void expand_block(qn_dtype dtype, const uint8_t *header, const uint8_t *codes, int i_block,
                         block_codes *w)
{
    const qn_layout layout = qn_layout_of(dtype);
    const int zero = qn_layout_zero(layout);
    for (int lane = 0; lane < QN_PANEL; lane++) {
        uint8_t q[QN_BLOCK];
        qn_lane_scale s = qn_lane_scales(dtype, header, i_block, lane);
        w->d[lane] = s.d;
        w->m[lane] = s.m;
        qn_lane_codes(layout, codes, lane, q);
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
    const qn_layout layout = qn_layout_of(a->dtype);
    const int with_min = qn_layout_has_min(layout), by_halves = qn_layout_by_halves(layout);
    int64_t n_blocks = a->n_in / QN_BLOCK;
    const uint8_t *p = (const uint8_t *)a->panels + (size_t)panel * qn_pack_panel_bytes(a->dtype, a->n_in);
    for (int64_t b = 0; b < n_blocks;) {
        int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
        const uint8_t *codes = p + qn_layout_header_bytes(layout, a->dtype, in_chunk);
        for (int i = 0; i < in_chunk; i++, codes += qn_layout_code_bytes(layout))
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
                if (by_halves) { /* each is at most 16 * 32 * 16256 < 2^24: an exact float */
                    float both = (float)first * w[b].d[lane];
                    both = fmaf((float)second, w[b].m[lane], both);
                    acc[lane] = fmaf(both, scale, acc[lane]);
                    continue;
                }
                acc[lane] = fmaf((float)(first + second) * scale, w[b].d[lane], acc[lane]);
                if (with_min) acc[lane] = fmaf(sum, w[b].m[lane], acc[lane]);
            }
        }
        store(a, r, panel, acc);
    }
}

static void matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->act == QN_ACT_I8 || a->act == QN_ACT_I8X2) {
        for (int64_t p = begin; p < end; p++) matmul_integer(a, p, scratch);
    } else {
        qn_matmul_float_scalar(a, begin, end, scratch);
    }
}

int qn_matmul_reforms(const qn_kernels *k, qn_act act, int64_t n_rows)
{
    return k->rows_bytes && (act == QN_ACT_I8 || act == QN_ACT_I8X2) && n_rows > QN_FEW_ROWS;
}

/* Enough for every set: a panel as f32, or the codes and scales of its blocks (block_codes here; the vector
 * sets keep fewer), or what the set asks for. */
size_t qn_matmul_scratch_bytes(const qn_kernels *k, qn_dtype weight, qn_act act, int64_t n_in,
                               int64_t most_rows)
{
    if (!qn_pack_panel_bytes(weight, n_in)) return 0;
    const size_t panels = (size_t)n_in * QN_PANEL * 2 * sizeof(float);
    if (act == QN_ACT_F32 || act == QN_ACT_BF16) return panels;
    size_t own = (size_t)(n_in / QN_BLOCK) * sizeof(block_codes);
    if (act == QN_ACT_I8X2 && own < k->two_planes_bytes) own = k->two_planes_bytes;
    return qn_matmul_reforms(k, act, most_rows) && own < k->rows_bytes ? k->rows_bytes : own;
}

void qn_kernels_fill_matmul_scalar(qn_kernels *k)
{
    k->pack = qn_pack;
    k->unpack_row = qn_unpack_row;
    k->unpack_panel = qn_unpack_panel_scalar;
    k->act_pack = qn_act_pack_scalar;
    k->matmul = matmul;
}
