/* Products of bf16 activations and bf16 weights with the tiles of AMX, for any number of rows: TDPBF16PS
 * takes 32 k of 16 rows and of a panel as it lies. Its sums are not vdpbf16ps's (those of even and odd k
 * apart, and then both), so one row, which goes by vectors, takes the same steps. An output is a chain of
 * such steps in rising k, through memory between blocks of k: its bits depend on no split. */
#include <string.h>

#include "device/cpu/kernels/matmul/pack.h"
#include "device/cpu/kernels/matmul/tiles_avx512_amx.h"
#include "device/cpu/kernels/sets.h"
#include "device/cpu/kernels/vec_avx512.h"

enum {
    STEP_BYTES = 64, /* of a row: 32 k */
    STEPS = 16,      /* 2 panels of so many stay in the first-level cache (32 KiB) */
    GROUPS = 32      /* of rows, in a pass */
};

typedef struct {
    const uint8_t *x[2], *w[2];
    size_t row_bytes;
    float *sums[2][2]; /* [group][panel] */
    int64_t n_steps;
    int first; /* the sums are 0 */
} part;

/* groups and panels: 1 or 2 of each, constants. */
INLINE void add_steps(const part *p, int groups, int panels)
{
    const uint8_t *x0 = p->x[0], *x1 = p->x[1], *w0 = p->w[0], *w1 = p->w[1];
    const size_t row_bytes = p->row_bytes;
    if (p->first) {
        _tile_zero(0);
        if (panels == 2) _tile_zero(1);
        if (groups == 2) _tile_zero(2);
        if (groups == 2 && panels == 2) _tile_zero(3);
    } else {
        _tile_loadd(0, p->sums[0][0], 64);
        if (panels == 2) _tile_loadd(1, p->sums[0][1], 64);
        if (groups == 2) _tile_loadd(2, p->sums[1][0], 64);
        if (groups == 2 && panels == 2) _tile_loadd(3, p->sums[1][1], 64);
    }
    for (int64_t i = 0; i < p->n_steps; i++, x0 += STEP_BYTES, w0 += TILE_BYTES) {
        _tile_loadd(4, x0, row_bytes);
        _tile_loadd(6, w0, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (panels == 2) {
            _tile_loadd(7, w1, 64);
            _tile_dpbf16ps(1, 4, 7);
            w1 += TILE_BYTES;
        }
        if (groups == 2) {
            _tile_loadd(5, x1, row_bytes);
            _tile_dpbf16ps(2, 5, 6);
            if (panels == 2) _tile_dpbf16ps(3, 5, 7);
            x1 += STEP_BYTES;
        }
    }
    _tile_stored(0, p->sums[0][0], 64);
    if (panels == 2) _tile_stored(1, p->sums[0][1], 64);
    if (groups == 2) _tile_stored(2, p->sums[1][0], 64);
    if (groups == 2 && panels == 2) _tile_stored(3, p->sums[1][1], 64);
}

/* Rows [row, row + n_rows) in groups: the last one may begin among the rows of the one before. */
typedef struct {
    const qn_matmul_args *a;
    int64_t row, n_rows, n_groups;
    int rows; /* of a group */
    float *sums;
} pass;

static int64_t row_of(const pass *p, int64_t group)
{
    const int64_t last = p->row + p->n_rows - p->rows, row = p->row + group * TILE_ROWS;
    return row < last ? row : last;
}

/* Steps [from, from + n_steps) of panels [panel, panel + panels) for all groups. */
static void add_block(const pass *p, int64_t panel, int panels, int64_t from, int64_t n_steps)
{
    const qn_matmul_args *a = p->a;
    const size_t panel_bytes = qn_pack_panel_bytes(a->dtype, a->n_in);
    part q = {.row_bytes = qn_act_row_bytes(a->act, a->n_in), .n_steps = n_steps, .first = from == 0};
    for (int i = 0; i < panels; i++)
        q.w[i] = (const uint8_t *)a->panels + (size_t)(panel + i) * panel_bytes + (size_t)from * TILE_BYTES;
    for (int64_t g = 0; g < p->n_groups; g += 2) {
        const int groups = p->n_groups - g < 2 ? 1 : 2;
        for (int i = 0; i < groups; i++) {
            q.x[i] =
                (const uint8_t *)a->x + (size_t)row_of(p, g + i) * q.row_bytes + (size_t)from * STEP_BYTES;
            for (int j = 0; j < panels; j++) q.sums[i][j] = p->sums + (j * GROUPS + g + i) * TILE_SUMS;
        }
        if (groups == 2 && panels == 2)
            add_steps(&q, 2, 2);
        else if (groups == 2)
            add_steps(&q, 2, 1);
        else if (panels == 2)
            add_steps(&q, 1, 2);
        else
            add_steps(&q, 1, 1);
    }
}

/* Which of a panel's outputs exist. */
INLINE vm outputs(const qn_matmul_args *a, int64_t panel)
{
    const int64_t left = a->n_out - panel * QN_PANEL;
    return v_first_n(left < QN_PANEL ? (int)left : QN_PANEL);
}

static void write_sums(const pass *p, int64_t panel, const float *sums)
{
    const qn_matmul_args *a = p->a;
    const vm exist = outputs(a, panel);
    for (int64_t g = 0; g < p->n_groups; g++, sums += TILE_SUMS) {
        float *out = a->out + row_of(p, g) * a->out_stride + panel * QN_PANEL;
        for (int r = 0; r < p->rows; r++, out += a->out_stride)
            _mm512_mask_storeu_ps(out, exist, _mm512_load_ps(sums + r * QN_PANEL));
    }
}

/* For `rows` rows of activations, and pairs of k. */
static tile_shapes shapes_of(int rows, int pairs)
{
    tile_shapes s = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        s.bytes[i] = i < 4 || i > 5 ? 64 : (uint16_t)(4 * pairs);
        s.rows[i] = (uint8_t)(i < 6 ? rows : pairs);
    }
    return s;
}

INLINE __m512 add_step(__m512 sum, const float *x, const uint8_t *w, int64_t n_pairs, size_t ahead)
{
    __m512 even = _mm512_setzero_ps(), odd = even;
#pragma GCC unroll 1
    for (int64_t i = 0; i < n_pairs; i++, w += 64) {
        const __m512i pair = _mm512_loadu_si512(w);
        if (ahead) __builtin_prefetch(w + ahead, 0, 2);
        even =
            _mm512_fmadd_ps(_mm512_set1_ps(x[2 * i]), _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), even);
        odd = _mm512_fmadd_ps(_mm512_set1_ps(x[2 * i + 1]),
                              _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000))),
                              odd);
    }
    return _mm512_add_ps(sum, _mm512_add_ps(even, odd));
}

/* One row, which waits for memory: what a tile does to it, done by vectors, whose loads memory serves faster
 * (a tenth more tokens of Qwen3-0.6B). Its multiply-adds take subnormals for zero and give none. */
static void one_row(const qn_matmul_args *a, int64_t begin, int64_t end, float *x)
{
    enum { NO_SUBNORMALS = 0x8040 };
    const unsigned kept = _mm_getcsr();
    const int64_t n_pairs = (a->n_in + 1) / 2;
    const uint16_t *from = a->x;
    const size_t ahead = qn_few_ahead;
    for (int64_t i = 0; i < 2 * n_pairs; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(x + i, &bits, sizeof bits);
    }
    _mm_setcsr(kept | NO_SUBNORMALS);
    /* The compiler moves no load over these: all arithmetic lies between. */
    __asm__ volatile("" : : : "memory");
    const uint8_t *w = (const uint8_t *)a->panels + (size_t)begin * qn_pack_panel_bytes(a->dtype, a->n_in);
    for (int64_t panel = begin; panel < end; panel++) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t k = 0; k < n_pairs; k += 16) {
            if (n_pairs - k >= 16)
                sum = add_step(sum, x + 2 * k, w, 16, ahead);
            else
                sum = add_step(sum, x + 2 * k, w, n_pairs - k, ahead);
            w += 64 * (n_pairs - k < 16 ? n_pairs - k : 16);
        }
        _mm512_mask_storeu_ps(a->out + panel * QN_PANEL, outputs(a, panel), sum);
    }
    __asm__ volatile("" : : : "memory");
    _mm_setcsr(kept);
}

void qn_matmul_bf16_avx512_amx(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->n_rows < 1) return;
    if (a->n_rows == 1) {
        one_row(a, begin, end, scratch);
        return;
    }
    _Alignas(64) float sums[2 * GROUPS * TILE_SUMS]; /* of two panels: [panel][group][row][16] */
    pass p = {.a = a, .sums = sums};
    const int64_t n_pairs = (a->n_in + 1) / 2, n_steps = n_pairs / 16, rest = n_pairs % 16;
    p.rows = a->n_rows < TILE_ROWS ? (int)a->n_rows : TILE_ROWS;
    const tile_shapes whole = shapes_of(p.rows, 16), last = shapes_of(p.rows, (int)rest);
    take_tiles(&whole);
    for (; p.row < a->n_rows; p.row += p.n_rows) {
        p.n_rows = a->n_rows - p.row < GROUPS * TILE_ROWS ? a->n_rows - p.row : GROUPS * TILE_ROWS;
        if (p.n_rows < p.rows) p.row -= p.rows - p.n_rows, p.n_rows = p.rows;
        p.n_groups = (p.n_rows + TILE_ROWS - 1) / TILE_ROWS;
        /* One group streams the weights: one panel after the other, in the order of memory. */
        const int most = p.n_groups > 1 ? 2 : 1;
        const int64_t block = p.n_groups > 1 ? STEPS : n_steps;
        for (int64_t panel = begin; panel < end; panel += most) {
            const int panels = end - panel < most ? 1 : most;
            for (int64_t from = 0; from < n_steps; from += block)
                add_block(&p, panel, panels, from, n_steps - from < block ? n_steps - from : block);
            if (rest) {
                take_tiles(&last);
                add_block(&p, panel, panels, n_steps, 1);
                take_tiles(&whole);
            }
            for (int i = 0; i < panels; i++) write_sums(&p, panel + i, p.sums + i * GROUPS * TILE_SUMS);
        }
    }
    _tile_release();
}
