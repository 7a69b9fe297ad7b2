/* Products of f32 or bf16 activations with a panel of plain weights, and with quantised weights unpacked to
 * f32 (exact). Written once over vec_<set>.h; an output is one chain of multiply-adds over rising k.
 *
 * The including file defines FLOAT_ROWS (rows of a tile), FLOAT_FEW (of the tile for what is left, which
 * takes FLOAT_PANELS panels at once), FLOAT_REST (5: 4 and 5 rows have tiles of their own; 0), FLOAT_DOTS (1:
 * dot_pair is an instruction; 0: many rows of bf16 activations are widened, so that nothing takes their pairs
 * apart for each panel), pair_even and pair_odd (vectors of bf16 pairs to f32), dot_pair, and unpack_blocks
 * for quantised types. */
#include <string.h>

#include "device/cpu/kernels/matmul/pack.h"

enum { FLOAT_MAX_ROWS = 12, FLOAT_PREFETCH_BYTES = 8192 };

typedef enum { W_F32, W_F16, W_BF16, W_BF16_DOT /* activations are bf16 too */ } float_kind;

INLINE vf broadcast_bits(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return v_set1(x);
}

INLINE vf load_bits(const uint8_t *p)
{
    return v_load((const float *)(const void *)p);
}

/* Adds one step (one k, or two for bf16 weights) of all rows to acc. x: the first row's activations of the
 * step. last: only the first of the two k exists. */
INLINE void float_step(float_kind kind, int rows, int last, const uint8_t *w, const uint8_t *x,
                       size_t row_bytes, vf acc[FLOAT_MAX_ROWS])
{
    if (kind == W_F32 || kind == W_F16) {
        vf v = kind == W_F32 ? load_bits(w) : v_load_f16((const uint16_t *)(const void *)w);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) acc[r] = v_fma(broadcast_bits(x + (size_t)r * row_bytes), v, acc[r]);
        return;
    }
    if (kind == W_BF16_DOT) {
        vf pair = load_bits(w);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            acc[r] = dot_pair(pair, broadcast_bits(x + (size_t)r * row_bytes), acc[r]);
        return;
    }
    vf even = pair_even(load_bits(w));
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) acc[r] = v_fma(broadcast_bits(x + (size_t)r * row_bytes), even, acc[r]);
    if (last) return;
    vf odd = pair_odd(load_bits(w)); /* loaded again: registers are scarce */
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) acc[r] = v_fma(broadcast_bits(x + (size_t)r * row_bytes + 4), odd, acc[r]);
}

/* panels (consecutive, from `panel` on) times rows (from `row` on), both constants. w: the first panel. */
INLINE void float_tile(float_kind kind, int panels, int rows, const qn_matmul_args *a, const uint8_t *w,
                       size_t panel_bytes, int64_t panel, int64_t row)
{
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in);
    const uint8_t *x = (const uint8_t *)a->x + (size_t)row * row_bytes;
    int64_t steps = kind == W_BF16 ? a->n_in / 2 : kind == W_BF16_DOT ? (a->n_in + 1) / 2 : a->n_in;
    const size_t ahead = qn_few_ahead;
    vf acc[FLOAT_PANELS][FLOAT_MAX_ROWS];
#pragma GCC unroll 2
    for (int p = 0; p < panels; p++) {
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) acc[p][r] = v_set1(0);
    }
    for (int64_t s = 0; s < steps; s++) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            const uint8_t *wp = w + (size_t)p * panel_bytes;
            if (panels > 1 && rows <= FLOAT_FEW) __builtin_prefetch(wp + FLOAT_PREFETCH_BYTES);
            if (rows == 1 && panels == 1 && ahead) __builtin_prefetch(wp + ahead, 0, 2);
            float_step(kind, rows, 0, wp, x, row_bytes, acc[p]);
        }
        w += kind == W_F16 ? 32 : 64;
        x += kind == W_BF16 ? 8 : 4;
    }
    if (kind == W_BF16 && a->n_in % 2) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++)
            float_step(kind, rows, 1, w + (size_t)p * panel_bytes, x, row_bytes, acc[p]);
    }
#pragma GCC unroll 2
    for (int p = 0; p < panels; p++) {
        int64_t n = a->n_out - (panel + p) * QN_PANEL;
        float *out = a->out + row * a->out_stride + (panel + p) * QN_PANEL;
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++, out += a->out_stride) {
            if (n >= QN_PANEL) {
                v_store(out, acc[p][r]);
            } else {
                v_store_n(out, acc[p][r], (int)n);
            }
        }
    }
}

/* Rows from *row on as far as whole tiles go. */
INLINE void float_rows(float_kind kind, int panels, int rows, const qn_matmul_args *a, const uint8_t *w,
                       size_t panel_bytes, int64_t panel, int64_t *row, int64_t end_row)
{
    for (; *row + rows <= end_row; *row += rows)
        float_tile(kind, panels, rows, a, w, panel_bytes, panel, *row);
}

INLINE void float_panels(float_kind kind, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    const int tile_rows = kind == W_BF16_DOT ? 0 : FLOAT_ROWS;
    size_t panel_bytes = qn_pack_panel_bytes(a->dtype, a->n_in);
    /* Rows in whole tiles go one panel at a time, the rest behind them, while the panels are in a cache: 4 or
     * 5 in a pass of their own, fewer FLOAT_PANELS at a time, to hide latency; but one row alone, which waits
     * for memory and not for sums, reads one stream and asks for nothing ahead: two streams gave 0.8 to 0.9
     * of the bandwidth, one gives all of it. */
    const int64_t full = tile_rows ? a->n_rows / tile_rows * tile_rows : 0, rest = a->n_rows - full;
    const int together = rest == 1 || (rest >= 4 && rest <= FLOAT_REST) ? 1 : FLOAT_PANELS;
    int64_t row;
    for (int64_t panel = begin, next; panel < end; panel = next) {
        const uint8_t *w = (const uint8_t *)a->panels + (size_t)panel * panel_bytes;
        next = panel + (panel + together <= end ? together : 1);
        for (int64_t p = panel; p < next && full; p++) {
            row = 0;
            float_rows(kind, 1, tile_rows, a, w + (size_t)(p - panel) * panel_bytes, panel_bytes, p, &row,
                       full);
        }
        row = full;
        if (together == 1) {
            if (FLOAT_REST >= 5) float_rows(kind, 1, 5, a, w, panel_bytes, panel, &row, a->n_rows);
            if (FLOAT_REST >= 4) float_rows(kind, 1, 4, a, w, panel_bytes, panel, &row, a->n_rows);
            float_rows(kind, 1, 1, a, w, panel_bytes, panel, &row, a->n_rows);
        } else if (next > panel + 1) {
            if (FLOAT_FEW > 2)
                float_rows(kind, FLOAT_PANELS, FLOAT_FEW, a, w, panel_bytes, panel, &row, a->n_rows);
            if (FLOAT_FEW > 1) float_rows(kind, FLOAT_PANELS, 2, a, w, panel_bytes, panel, &row, a->n_rows);
            float_rows(kind, FLOAT_PANELS, 1, a, w, panel_bytes, panel, &row, a->n_rows);
        } else {
            if (FLOAT_FEW > 1) float_rows(kind, 1, FLOAT_FEW, a, w, panel_bytes, panel, &row, a->n_rows);
            float_rows(kind, 1, 1, a, w, panel_bytes, panel, &row, a->n_rows);
        }
    }
}

static void float_f32(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    float_panels(W_F32, a, begin, end);
}

static void float_f16(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    float_panels(W_F16, a, begin, end);
}

static void float_bf16(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    float_panels(W_BF16, a, begin, end);
}

/* n_in elements of n_rows rows as f32. */
static void widen_rows(const uint8_t *x, size_t row_bytes, int64_t n_in, int64_t n_rows, uint8_t *to,
                       size_t to_bytes)
{
    for (int64_t r = 0; r < n_rows; r++, x += row_bytes, to += to_bytes) {
        const uint16_t *from = (const uint16_t *)(const void *)x;
        int64_t k = 0;
        for (; k + 16 <= n_in; k += 16) v_store((float *)(void *)(to + 4 * k), v_load_bf16(from + k));
        for (; k < n_in; k++) {
            const uint32_t bits = (uint32_t)from[k] << 16;
            memcpy(to + 4 * k, &bits, sizeof bits);
        }
    }
}

/* Scratch holds FLOAT_PANELS panels of f32. Pairs end with a 0 where n_in is odd. */
static void float_bf16_dot(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    qn_matmul_args rest = *a, wide = *a;
    wide.act = QN_ACT_F32;
    wide.n_in += a->n_in % 2;
    wide.x = scratch;
    const size_t row_bytes = qn_act_row_bytes(QN_ACT_BF16, a->n_in),
                 wide_bytes = qn_act_row_bytes(QN_ACT_F32, wide.n_in),
                 room = (size_t)FLOAT_PANELS * qn_pack_panel_bytes(QN_DTYPE_F32, a->n_in) / wide_bytes;
    const int64_t most = (int64_t)room / FLOAT_ROWS * FLOAT_ROWS;
    while (!FLOAT_DOTS && most && rest.n_rows >= FLOAT_ROWS) {
        wide.n_rows = rest.n_rows < most ? rest.n_rows / FLOAT_ROWS * FLOAT_ROWS : most;
        widen_rows(rest.x, row_bytes, wide.n_in, wide.n_rows, scratch, wide_bytes);
        float_bf16(&wide, begin, end);
        rest.x = (const uint8_t *)rest.x + (size_t)wide.n_rows * row_bytes;
        rest.out += wide.n_rows * a->out_stride;
        wide.out = rest.out;
        rest.n_rows -= wide.n_rows;
    }
    if (rest.n_rows) float_panels(W_BF16_DOT, &rest, begin, end);
}

static void unpack_panel(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out)
{
    const uint8_t *p = (const uint8_t *)panels + (size_t)panel * qn_pack_panel_bytes(dtype, n_in);
    if (dtype == QN_DTYPE_F32) {
        memcpy(out, p, (size_t)n_in * QN_PANEL * sizeof *out);
    } else if (dtype == QN_DTYPE_F16) {
        for (int64_t k = 0; k < n_in; k++)
            v_store(out + k * QN_PANEL, v_load_f16((const uint16_t *)(const void *)(p + 32 * k)));
    } else if (dtype == QN_DTYPE_BF16) {
        for (int64_t k = 0; k < n_in; k++) {
            vf pair = load_bits(p + k / 2 * 64);
            v_store(out + k * QN_PANEL, k % 2 ? pair_odd(pair) : pair_even(pair));
        }
    } else {
        unpack_blocks(dtype, n_in, p, out);
    }
}

static void float_matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->act == QN_ACT_BF16) {
        float_bf16_dot(a, begin, end, scratch);
    } else if (a->dtype == QN_DTYPE_F32) {
        float_f32(a, begin, end);
    } else if (a->dtype == QN_DTYPE_F16) {
        float_f16(a, begin, end);
    } else if (a->dtype == QN_DTYPE_BF16) {
        float_bf16(a, begin, end);
    } else {
        qn_matmul_args part = *a;
        size_t panel_bytes = qn_pack_panel_bytes(QN_DTYPE_F32, a->n_in);
        part.dtype = QN_DTYPE_F32;
        part.panels = scratch;
        for (int64_t p = begin; p < end; p += FLOAT_PANELS) {
            int64_t n = end - p < FLOAT_PANELS ? end - p : FLOAT_PANELS;
            for (int64_t i = 0; i < n; i++)
                unpack_panel(a->dtype, a->n_in, a->panels, p + i,
                             (float *)(void *)((char *)scratch + (size_t)i * panel_bytes));
            part.out = a->out + p * QN_PANEL;
            part.n_out = a->n_out - p * QN_PANEL;
            float_f32(&part, 0, n);
        }
    }
}
