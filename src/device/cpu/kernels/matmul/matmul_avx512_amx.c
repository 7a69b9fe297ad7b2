/* Matmul of int8 activations with the tiles of AMX: all of avx512's, but for many rows.
 *
 * TDPBF16PS multiplies a tile of 16 rows x 32 k with one of 32 k x 16 outputs in 16 cycles. Codes and
 * activations are integers of at most 8 bits, which bf16 holds exactly, and the sums of a block are below
 * 2^24, which float32 does; where both planes of activations meet codes of more than 5 bits, each plane has
 * sums of its own, and their addition rounds as the conversion of the whole integer would. So the sums are
 * those of avx512, they are floats already, and meet the same operations in the same order: the bits are the
 * same.
 *
 * Measured on a Xeon 6: while tiles are in use, and some 300 cycles longer, one of the two multipliers
 * of 512 bits is off, so that vectors get one operation a cycle. A block of 16 rows x 16 outputs takes 32
 * (a scaling and a multiply-add a row), 48 with a minimum, 64 by halves; the tiles' 16 cycles (32 of two
 * planes), their loads and stores go beside. Loading a tile whose rows cross a cache line takes 55 cycles in
 * place of 9: activations are brought into tiles of their own first. */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/kernels/matmul/blocks.h"
#include "device/cpu/kernels/matmul/codes_avx512.h"
#include "device/cpu/kernels/matmul/tiles_avx512_amx.h"
#include "device/cpu/kernels/sets.h"
#include "device/cpu/kernels/vec_avx512.h"

#include "device/cpu/kernels/sums.body.h"

enum {
    PASS_ROWS = 512, /* at most, as many as take PASS_BYTES: they stay in the second-level cache (2 MiB) */
    PASS_BYTES = 1280 << 10,
    ROWS_ENOUGH = 256,
    PANELS = 2,                    /* that use a group's tiles while they are in the first-level cache */
    CODE_BYTES = TILE_BYTES + 128, /* a block of a panel: [pair of k][output][2] bf16, d and m f32[16] */
    CODES_BYTES = PANELS * QN_CHUNK * CODE_BYTES,
    SUMS = PASS_ROWS * QN_PANEL /* of a panel */
};

/* A block of a group: [plane][row][32] bf16, then scale and sum f32[16]. */
INLINE size_t group_bytes(int planes)
{
    return (size_t)planes * TILE_BYTES + 128;
}

/* 32 integers of 16 bits, of which at most 8 count, times 2^shift. */
INLINE __m512i as_bf16(__m512i words, unsigned shift)
{
    const __m512i odd = _mm512_slli_epi32(_mm512_srai_epi32(words, 16), shift),
                  even = _mm512_srai_epi32(_mm512_slli_epi32(words, 16), 16 - shift);
    const __m512i low = _mm512_castps_si512(_mm512_cvtepi32_ps(even)),
                  high = _mm512_castps_si512(_mm512_cvtepi32_ps(odd));
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, _mm512_set1_epi32((int)0xffff0000),
                                     0xf8); /* low | (high & mask) */
}

/* n rows of n_blocks blocks as a group; what is missing of TILE_ROWS rows is 0. */
INLINE void fill_group(int planes, const uint8_t *x, size_t row_bytes, int64_t n, int64_t n_blocks,
                       uint8_t *to)
{
    for (int64_t r = 0; r < TILE_ROWS; r++, x += row_bytes) {
        const uint8_t *p = x;
        uint8_t *t = to;
        for (int64_t b = 0; b < n_blocks; b++, p += act_block_bytes(planes), t += group_bytes(planes)) {
            float *numbers = (float *)(void *)(t + planes * TILE_BYTES) + r;
            numbers[0] = numbers[TILE_ROWS] = 0;
            if (r < n) {
                memcpy(numbers, p + planes * QN_BLOCK, 4);
                memcpy(numbers + TILE_ROWS, p + planes * QN_BLOCK + 4, 4);
            }
#pragma GCC unroll 2
            for (int i = 0; i < planes; i++) {
                __m512i v = _mm512_setzero_si512();
                if (r < n)
                    v = as_bf16(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)(p + QN_BLOCK * i))),
                                planes == 2 && i == 0 ? 7 : 0);
                _mm512_store_si512(t + i * TILE_BYTES + 64 * r, v);
            }
        }
    }
}

/* A chunk as CODE_BYTES each; returns the address of the next. */
INLINE const uint8_t *expand_chunk(qn_layout layout, qn_dtype own, const uint8_t *p, int in_chunk,
                                   uint8_t *to)
{
    const int bits = qn_layout_bits(layout);
    const uint8_t *codes = p + qn_layout_header_bytes(layout, own, in_chunk);
    const __m512i zero = _mm512_set1_epi16((short)qn_layout_zero(layout));
    const __m512i count =
        _mm512_cvtepi8_epi16(_mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,
                                              18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31));
    const __m512i few = as_bf16(_mm512_sub_epi16(count, zero), 0),
                  more = as_bf16(_mm512_sub_epi16(_mm512_add_epi16(count, _mm512_set1_epi16(32)), zero), 0);
    /* bytes 0 and 1 of a lane as words */
    const __m512i first = _mm512_broadcast_i32x4(
        _mm_setr_epi32((int)0x80018000, (int)0x80058004, (int)0x80098008, (int)0x800d800c));
    header h;
    load_header(layout, own, p, in_chunk, &h);
    for (int i = 0; i < in_chunk; i++, codes += qn_layout_code_bytes(layout), to += CODE_BYTES) {
        __m512i w[8];
        load_codes(layout, codes, w);
        const scales s = load_scales(layout, p, &h, i);
#pragma GCC unroll 16
        for (int pair = 0; pair < 16; pair++) {
            const __m512i from = _mm512_add_epi32(first, _mm512_set1_epi32(pair % 2 * 0x00020002));
            __m512i v = _mm512_shuffle_epi8(w[pair / 2], from);
            if (bits <= 5)
                v = _mm512_permutexvar_epi16(v, few);
            else if (bits == 6)
                v = _mm512_permutex2var_epi16(few, v, more);
            else
                v = as_bf16(_mm512_sub_epi16(v, zero), 0);
            _mm512_store_si512(to + 64 * pair, v);
        }
        _mm512_store_ps(to + TILE_BYTES, s.d);
        _mm512_store_ps(to + TILE_BYTES + 64, s.m);
    }
    return codes;
}

typedef const uint8_t *expand_fn(qn_dtype own, const uint8_t *p, int in_chunk, uint8_t *to);

#define LAYOUT(name, ...)                                                                          \
    static const uint8_t *expand_##name(qn_dtype own, const uint8_t *p, int in_chunk, uint8_t *to) \
    {                                                                                              \
        return expand_chunk(QN_LAYOUT_##name, own, p, in_chunk, to);                               \
    }
#include "device/cpu/kernels/matmul/layouts.def"

static expand_fn *expand_of(qn_layout layout)
{
    switch (layout) {
#define LAYOUT(name, ...)  \
    case QN_LAYOUT_##name: \
        return expand_##name;
#include "device/cpu/kernels/matmul/layouts.def"
    default:
        return NULL;
    }
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

/* What becomes of a block's sums. */
typedef enum { SYM, MIN, HALVES } sums_kind;

/* Shapes of the eight tiles: 0 to 3 sums, 4 and 5 activations, 6 and 7 codes. */
static const tile_shapes whole = {.palette = 1,
                                  .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                  .rows = {16, 16, 16, 16, 16, 16, 16, 16}},
                         halves = {.palette = 1,
                                   .bytes = {64, 64, 64, 64, 32, 32, 64, 64},
                                   .rows = {16, 16, 16, 16, 16, 16, 8, 8}};

/* Sums of a block into tiles c0 and c1 (constants): c1 has those of the second half, or of the lower plane
 * where it is apart. */
#define BLOCK_PRODUCTS(kind, planes, apart, x, w, c0, c1)  \
    do {                                                   \
        _tile_zero(c0);                                    \
        if ((kind) == HALVES || (apart)) _tile_zero(c1);   \
        _tile_loadd(4, x, 64);                             \
        _tile_loadd(6, w, 64);                             \
        _tile_dpbf16ps(c0, 4, 6);                          \
        if ((kind) == HALVES) {                            \
            _tile_loadd(5, (x) + 32, 64);                  \
            _tile_loadd(7, (w) + TILE_BYTES / 2, 64);      \
            _tile_dpbf16ps(c1, 5, 7);                      \
            if ((planes) == 2) {                           \
                _tile_loadd(4, (x) + TILE_BYTES, 64);      \
                _tile_dpbf16ps(c0, 4, 6);                  \
                _tile_loadd(5, (x) + TILE_BYTES + 32, 64); \
                _tile_dpbf16ps(c1, 5, 7);                  \
            }                                              \
        } else if ((planes) == 2) {                        \
            _tile_loadd(5, (x) + TILE_BYTES, 64);          \
            if (apart)                                     \
                _tile_dpbf16ps(c1, 5, 6);                  \
            else                                           \
                _tile_dpbf16ps(c0, 5, 6);                  \
        }                                                  \
    } while (0)

/* sums: [2][row][16] of a block; x: scales and sums of the group's rows; s: d and m of the panel. */
INLINE void add_sums(sums_kind kind, int apart, const float *sums, const float *x, const float *s,
                     __m512 acc[TILE_ROWS])
{
    const __m512 d = _mm512_load_ps(s), m = kind == SYM ? d : _mm512_load_ps(s + 16);
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++) {
        const __m512 scale = _mm512_set1_ps(x[r]);
        __m512 v = _mm512_load_ps(sums + QN_PANEL * r);
        if (kind == HALVES) {
            v = _mm512_fmadd_ps(_mm512_load_ps(sums + TILE_SUMS + QN_PANEL * r), m, _mm512_mul_ps(v, d));
            acc[r] = _mm512_fmadd_ps(v, scale, acc[r]);
            continue;
        }
        if (apart) v = _mm512_add_ps(v, _mm512_load_ps(sums + TILE_SUMS + QN_PANEL * r));
        acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(v, scale), d, acc[r]);
        if (kind == MIN) acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(x[TILE_ROWS + r]), m, acc[r]);
    }
}

/* A group times n_blocks blocks of a panel, added to out [TILE_ROWS][16] (0 if first). While the tiles work
 * on one block, they give away the sums of that before, and the vectors add those of the one before that:
 * nothing is waited for. */
INLINE void group_times_panel(sums_kind kind, int planes, int apart, const uint8_t *x, const uint8_t *w,
                              int64_t n_blocks, float *out, int first)
{
    enum { BEHIND = 2 };
    const int two = kind == HALVES || apart;
    _Alignas(64) float sums[2][2 * TILE_SUMS];
    __m512 acc[TILE_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++)
        acc[r] = first ? _mm512_setzero_ps() : _mm512_load_ps(out + QN_PANEL * r);
    for (int64_t b = 0; b < n_blocks + BEHIND; b++, x += group_bytes(planes), w += CODE_BYTES) {
        if (b < n_blocks && b % 2 == 0)
            BLOCK_PRODUCTS(kind, planes, apart, x, w, 0, 1);
        else if (b < n_blocks)
            BLOCK_PRODUCTS(kind, planes, apart, x, w, 2, 3);
        if (b > 0 && b <= n_blocks && b % 2) {
            _tile_stored(0, sums[0], 64);
            if (two) _tile_stored(1, sums[0] + TILE_SUMS, 64);
        } else if (b > 0 && b <= n_blocks) {
            _tile_stored(2, sums[1], 64);
            if (two) _tile_stored(3, sums[1] + TILE_SUMS, 64);
        }
        if (b < BEHIND) continue;
        const uint8_t *px = x - BEHIND * group_bytes(planes) + (size_t)planes * TILE_BYTES,
                      *pw = w - BEHIND * CODE_BYTES + TILE_BYTES;
        add_sums(kind, apart, sums[b % 2], (const float *)(const void *)px, (const float *)(const void *)pw,
                 acc);
    }
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++) _mm512_store_ps(out + QN_PANEL * r, acc[r]);
}

typedef void group_fn(const uint8_t *x, const uint8_t *w, int64_t n_blocks, float *out, int first);

#define GROUP_FUNCTION(name, kind, planes, apart)                                                 \
    static void name(const uint8_t *x, const uint8_t *w, int64_t n_blocks, float *out, int first) \
    {                                                                                             \
        group_times_panel(kind, planes, apart, x, w, n_blocks, out, first);                       \
    }
GROUP_FUNCTION(sym_1, SYM, 1, 0)
GROUP_FUNCTION(sym_2, SYM, 2, 0)
GROUP_FUNCTION(sym_apart, SYM, 2, 1)
GROUP_FUNCTION(min_1, MIN, 1, 0)
GROUP_FUNCTION(min_2, MIN, 2, 0)
GROUP_FUNCTION(min_apart, MIN, 2, 1)
GROUP_FUNCTION(halves_1, HALVES, 1, 0)
GROUP_FUNCTION(halves_2, HALVES, 2, 0)

static group_fn *group_of(qn_layout layout, int planes)
{
    if (qn_layout_by_halves(layout)) return planes == 1 ? halves_1 : halves_2;
    const int has_min = qn_layout_has_min(layout);
    if (planes == 1) return has_min ? min_1 : sym_1;
    if (qn_layout_bits(layout) > 5 && !qn_layout_table(layout)) return has_min ? min_apart : sym_apart;
    return has_min ? min_2 : sym_2;
}

/* ---- products ------------------------------------------------------------------------------------------ */

typedef struct {
    const qn_matmul_args *a;
    expand_fn *expand;
    group_fn *times;
    int planes;
    int64_t row, n_rows; /* of this pass, */
    int64_t from, to;    /* and its blocks */
    uint8_t *x, *codes;
    float *sums;
} pass;

static void fill_rows(const pass *p)
{
    const size_t row_bytes = qn_act_row_bytes(p->a->act, p->a->n_in);
    const uint8_t *x =
        (const uint8_t *)p->a->x + (size_t)p->row * row_bytes + (size_t)p->from * act_block_bytes(p->planes);
    uint8_t *to = p->x;
    for (int64_t r = 0; r < p->n_rows; r += TILE_ROWS, x += TILE_ROWS * row_bytes) {
        const int64_t n = p->n_rows - r < TILE_ROWS ? p->n_rows - r : TILE_ROWS, n_blocks = p->to - p->from;
        if (p->planes == 1)
            fill_group(1, x, row_bytes, n, n_blocks, to);
        else
            fill_group(2, x, row_bytes, n, n_blocks, to);
        to += (size_t)n_blocks * group_bytes(p->planes);
    }
}

/* n (at most PANELS) panels from `panel` on. */
static void pass_panels(const pass *p, int64_t panel, int n)
{
    const qn_matmul_args *a = p->a;
    const int64_t n_blocks = a->n_in / QN_BLOCK;
    const qn_layout layout = qn_layout_of(a->dtype);
    const size_t panel_bytes = qn_pack_panel_bytes(a->dtype, a->n_in),
                 group = (size_t)(p->to - p->from) * group_bytes(p->planes);
    const uint8_t *w[PANELS];
    for (int i = 0; i < n; i++) {
        w[i] = (const uint8_t *)a->panels + (size_t)(panel + i) * panel_bytes +
               bytes_before(layout, a->dtype, p->from);
    }
    for (int64_t b = p->from; b < p->to; b += QN_CHUNK) {
        const int in_chunk = p->to - b < QN_CHUNK ? (int)(p->to - b) : QN_CHUNK;
        const uint8_t *x = p->x + (size_t)(b - p->from) * group_bytes(p->planes);
        for (int i = 0; i < n; i++)
            w[i] = p->expand(a->dtype, w[i], in_chunk, p->codes + i * QN_CHUNK * CODE_BYTES);
        __asm__ volatile("" ::: "memory"); /* loads of tiles do not tell the compiler what they read */
        for (int64_t r = 0; r < p->n_rows; r += TILE_ROWS, x += group) {
            const int64_t n_rows = p->n_rows - r < TILE_ROWS ? p->n_rows - r : TILE_ROWS;
            for (int i = 0; i < n; i++) {
                float *sums = p->sums + SUMS * i + r * QN_PANEL;
                if (b == p->from && b) copy_sums(a, panel + i, p->row + r, n_rows, sums, 0);
                p->times(x, p->codes + i * QN_CHUNK * CODE_BYTES, in_chunk, sums, b == 0);
            }
            for (int i = 0; i < n && b + in_chunk == p->to; i++) {
                float *sums = p->sums + SUMS * i + r * QN_PANEL;
                if (p->to - p->from == n_blocks && may_stream(a, panel + i, a->n_rows))
                    stream_rows(a, panel + i, p->row + r, n_rows, sums);
                else
                    copy_sums(a, panel + i, p->row + r, n_rows, sums, 1);
            }
        }
    }
}

static void through_tiles(const qn_matmul_args *a, int64_t begin, int64_t end, uint8_t *scratch)
{
    const qn_layout layout = qn_layout_of(a->dtype);
    pass p = {.a = a, .expand = expand_of(layout), .planes = a->act == QN_ACT_I8 ? 1 : 2};
    p.times = group_of(layout, p.planes);
    p.x = scratch;
    p.codes = p.x + PASS_BYTES;
    p.sums = (float *)(void *)(p.codes + CODES_BYTES);
    /* Rather fewer rows than fewer blocks, as long as there are ROWS_ENOUGH. */
    const int64_t n_blocks = a->n_in / QN_BLOCK, block_bytes = (int64_t)group_bytes(p.planes);
    int64_t most = PASS_BYTES / (n_blocks * block_bytes) * TILE_ROWS;
    if (most > PASS_ROWS) most = PASS_ROWS;
    if (most < ROWS_ENOUGH) most = ROWS_ENOUGH;
    const int64_t rows = equal_parts(a->n_rows, most, TILE_ROWS),
                  n_groups = (rows + TILE_ROWS - 1) / TILE_ROWS, fit = PASS_BYTES / (n_groups * block_bytes),
                  blocks =
                      fit >= n_blocks ? n_blocks : equal_parts(n_blocks, fit / QN_CHUNK * QN_CHUNK, QN_CHUNK);
    take_tiles(qn_layout_by_halves(layout) ? &halves : &whole);
    for (p.row = 0; p.row < a->n_rows; p.row += rows) {
        p.n_rows = a->n_rows - p.row < rows ? a->n_rows - p.row : rows;
        for (p.from = 0; p.from < n_blocks; p.from += blocks) {
            p.to = n_blocks - p.from < blocks ? n_blocks : p.from + blocks;
            if (!a->same_rows || rows < a->n_rows || blocks < n_blocks) fill_rows(&p);
            for (int64_t panel = begin; panel < end; panel += PANELS)
                pass_panels(&p, panel, end - panel < PANELS ? (int)(end - panel) : PANELS);
        }
    }
    _tile_release();
    if (a->streams) v_stream_end();
}

static void matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if ((a->act == QN_ACT_I8 || a->act == QN_ACT_I8X2) && a->n_rows > QN_FEW_ROWS)
        through_tiles(a, begin, end, scratch);
    else if (a->act == QN_ACT_BF16)
        qn_matmul_bf16_avx512_amx(a, begin, end, scratch);
    else
        qn_matmul_avx512(a, begin, end, scratch);
}

static void lean_matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    (a->act == QN_ACT_BF16 ? qn_matmul_bf16_avx512_amx : qn_matmul_avx512)(a, begin, end, scratch);
}

void qn_kernels_lean_avx512_amx(qn_kernels *k)
{
    k->matmul = lean_matmul;
    k->rows_bytes = 0;
}

void qn_kernels_fill_matmul_avx512_amx(qn_kernels *k)
{
    qn_kernels_fill_matmul_avx512(k);
    k->matmul = matmul;
    k->rows_bytes = PASS_BYTES + CODES_BYTES + PANELS * SUMS * sizeof(float);
}
