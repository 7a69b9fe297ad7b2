/* Products of int8 activations with quantised weights: which kernel runs, and the order of rows, panels and
 * blocks. Written once; the arithmetic is the including file's, as declared below, with DIRECT_ROWS (4, 8 or
 * 16) and DIRECT_ROWS_2 (2, 4 or 8): rows that go straight from packed codes in one pass, for one and two
 * planes, TILE_ROWS, TILE_ROWS_2 (rows of a tile), X_CACHE_BYTES (activations that stay in the second-level
 * cache while panels pass), WIDE (1: many rows of two planes are multiplied as integers of 16 bits, and codes
 * in scratch then take two bytes), STRETCH_LAYOUTS(X) and STRETCH2_LAYOUTS(X), the layouts that differ in
 * scratch for one and two planes, and stretch_layout(layout, planes), the one of them that a layout is like
 * in scratch: codes are bytes there, so little is left of what tells layouts apart. It includes the set's
 * vec_<set>.h. Measured on Zen 4: a stretch of 32 blocks (20 KiB of scratch) stays in the first-level cache;
 * two passes over packed codes beat it, and one pass of 16 rows beats two of 8, for memory is read all the
 * time. */
#include "device/cpu/kernels/matmul/blocks.h"
#include "device/cpu/kernels/sums.body.h"

enum { STRETCH = 32, PASS_ROWS = 256 };
/* With codes of two bytes: blocks of a stretch, rows of a pass. Scratch is CODES_BYTES for a stretch, then
 * room for the rows of a pass (form_rows). */
enum { WIDE_STRETCH = STRETCH / 2, WIDE_ROWS = 64, CODES_BYTES = STRETCH * 640 };

INLINE int is_wide(int planes)
{
    return WIDE && planes == 2;
}

/* The most rows that go straight from packed codes, in passes. With integers of 16 bits passes are short, and
 * the more a code takes to unpack the sooner scratch pays. */
INLINE int64_t direct_most(qn_layout layout, int planes)
{
    if (!is_wide(planes)) return 2 * (planes == 1 ? DIRECT_ROWS : DIRECT_ROWS_2);
    const int bits = qn_layout_bits(layout);
    return bits <= 4 ? 8 : bits < 8 ? 6 : 4;
}

/* A block in scratch: codes [8][64], or as integers of 16 bits [16][64], d f32[16], then m f32[16] (a min, or
 * the second half's scale). */
INLINE size_t scratch_code_bytes(int planes)
{
    return is_wide(planes) ? 1024 : 512;
}

INLINE size_t scratch_block_bytes(qn_scale_kind kind, int planes)
{
    return scratch_code_bytes(planes) + (kind == QN_SCALE_SYM ? 64 : 128);
}

/* The lines of a header. Few rows are multiplied faster than memory comes, and nothing is asked for ahead but
 * the header that comes next, whole, since its blocks would read it a line at a time between their codes: a
 * stream whose lines are first seen in the order of memory is what the chip's own prefetchers follow best. Of
 * Q4_1 they lost it otherwise (0.43 of the bandwidth), and each request for a line 8 KiB ahead cost more than
 * it brought (0.8 to 1.0 of what loads alone reach). With more rows the loop is slower than memory, sees too
 * little of the stream at a time, and asks 8 KiB ahead. */
INLINE void fetch_header(const uint8_t *p, const uint8_t *codes)
{
#pragma GCC unroll 8
    for (; p < codes; p += 64) __builtin_prefetch(p);
}

/* Those of a block's codes, into the second-level cache where there are few rows. */
INLINE void fetch_codes(const uint8_t *p, size_t n_bytes, int few)
{
#pragma GCC unroll 8
    for (size_t at = 0; at < n_bytes; at += 64) {
        if (few)
            __builtin_prefetch(p + at, 0, 2);
        else
            __builtin_prefetch(p + at);
    }
}

/* All rows (at most `rows`) straight from packed codes. */
INLINE void direct(qn_layout layout, int planes, int rows, const qn_matmul_args *a, int64_t begin,
                   int64_t end);
/* A chunk into scratch; returns the address of the next. planes: a constant. */
INLINE const uint8_t *expand_chunk(qn_layout layout, qn_dtype own, int planes, const uint8_t *p, int in_chunk,
                                   uint8_t *to);
/* n_blocks blocks of n_rows rows at x, as they are or in room, as integers of 16 bits if is_wide. */
static tile_rows form_rows(int planes, const uint8_t *x, size_t row_bytes, int64_t n_rows, int64_t n_blocks,
                           uint8_t *room);
/* What is wanted next, in two halves: with each block that it multiplies a tile fetches the next line of
 * both (fetch_lines), so that memory is waited for nowhere. */
typedef struct {
    const uint8_t *half[2];
} next_lines;

INLINE void fetch_lines(const next_lines *next, int64_t i_block)
{
    __builtin_prefetch(next->half[0] + 64 * i_block, 0, 2);
    __builtin_prefetch(next->half[1] + 64 * i_block, 0, 2);
}

/* Rows times a stretch of blocks in scratch; sums go on from out unless first. n: outputs of the panel that
 * exist. */
INLINE void tile(qn_layout layout, int planes, int rows, const uint8_t *scratch, int64_t n_blocks,
                 const uint8_t *x, size_t row_bytes, float *out, int64_t out_stride, int64_t n, int first,
                 const next_lines *next);

/* All rows of x, from one block on, times a stretch; next_bytes from next on are wanted afterwards. */
typedef void stretch_fn(const uint8_t *scratch, int64_t n_blocks, const uint8_t *x, size_t row_bytes,
                        int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first,
                        const uint8_t *next, size_t next_bytes);

INLINE void stretch(qn_layout layout, int planes, const uint8_t *scratch, int64_t n_blocks, const uint8_t *x,
                    size_t row_bytes, int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first,
                    const uint8_t *next, size_t next_bytes)
{
    int full = planes == 1 ? TILE_ROWS : TILE_ROWS_2;
    const size_t half = next_bytes / 2, lines = 64 * (size_t)n_blocks;
    for (size_t at = 0; n_rows >= full; n_rows -= full, at += lines) {
        /* when all is there: lines of scratch, which are near */
        const next_lines wanted = {{at < half ? next + at : scratch, at < half ? next + half + at : scratch}};
        tile(layout, planes, full, scratch, n_blocks, x, row_bytes, out, out_stride, n, first, &wanted);
        x += (size_t)full * row_bytes;
        out += full * out_stride;
    }
    const next_lines nothing = {{scratch, scratch}};
    for (; full > 4 && n_rows >= 4; n_rows -= 4, x += 4 * row_bytes, out += 4 * out_stride)
        tile(layout, planes, 4, scratch, n_blocks, x, row_bytes, out, out_stride, n, first, &nothing);
    for (; n_rows > 0; n_rows--, x += row_bytes, out += out_stride)
        tile(layout, planes, 1, scratch, n_blocks, x, row_bytes, out, out_stride, n, first, &nothing);
}

#define STRETCH_FUNCTION(t)                                                                                 \
    static void stretch_##t(const uint8_t *scratch, int64_t n_blocks, const uint8_t *x, size_t row_bytes,   \
                            int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first,           \
                            const uint8_t *next, size_t next_bytes)                                         \
    {                                                                                                       \
        stretch(QN_LAYOUT_##t, 1, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, n, first, next, \
                next_bytes);                                                                                \
    }
#define STRETCH2_FUNCTION(t)                                                                                \
    static void stretch2_##t(const uint8_t *scratch, int64_t n_blocks, const uint8_t *x, size_t row_bytes,  \
                             int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first,          \
                             const uint8_t *next, size_t next_bytes)                                        \
    {                                                                                                       \
        stretch(QN_LAYOUT_##t, 2, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, n, first, next, \
                next_bytes);                                                                                \
    }
STRETCH_LAYOUTS(STRETCH_FUNCTION)
STRETCH2_LAYOUTS(STRETCH2_FUNCTION)

static stretch_fn *stretch_of(qn_layout layout, int planes)
{
    const qn_layout of = stretch_layout(layout, planes);
#define STRETCH_CASE(t) \
    if (planes == 1 && of == QN_LAYOUT_##t) return stretch_##t;
    STRETCH_LAYOUTS(STRETCH_CASE)
#define STRETCH2_CASE(t) \
    if (planes == 2 && of == QN_LAYOUT_##t) return stretch2_##t;
    STRETCH2_LAYOUTS(STRETCH2_CASE)
    return NULL;
}

/* Rows [row, row + n_rows) and blocks [from, to) of panels [begin, end), a stretch of a panel at a time. The
 * sums of several stretches are kept together: rows of out may lie a power of two apart. */
INLINE void scratch_pass(qn_layout layout, const qn_matmul_args *a, int64_t begin, int64_t end, int64_t row,
                         int64_t n_rows, int64_t from, int64_t to, uint8_t *scratch)
{
    const int planes = a->act == QN_ACT_I8 ? 1 : 2;
    const size_t panel_bytes = qn_pack_panel_bytes(a->dtype, a->n_in),
                 row_bytes = qn_act_row_bytes(a->act, a->n_in), block_bytes = act_block_bytes(planes);
    const int64_t length = equal_parts(to - from, is_wide(planes) ? WIDE_STRETCH : STRETCH, QN_CHUNK),
                  n_blocks = a->n_in / QN_BLOCK;
    const tile_rows x =
        form_rows(planes, (const uint8_t *)a->x + (size_t)row * row_bytes + (size_t)from * block_bytes,
                  row_bytes, n_rows, to - from, scratch + CODES_BYTES);
    stretch_fn *fn = stretch_of(layout, planes);
    _Alignas(64) float sums[PASS_ROWS * QN_PANEL];
    for (int64_t panel = begin; panel < end; panel++) {
        const uint8_t *start = (const uint8_t *)a->panels + (size_t)panel * panel_bytes +
                               bytes_before(layout, a->dtype, from),
                      *p = start;
        const int streams = to - from == n_blocks && may_stream(a, panel, n_rows),
                  apart = streams || to - from > length;
        float *out = apart ? sums : a->out + row * a->out_stride + panel * QN_PANEL;
        if (apart && from) copy_sums(a, panel, row, n_rows, sums, 0);
        for (int64_t b = from; b < to; b += length) {
            const int64_t n = to - b < length ? to - b : length;
            for (int64_t i = 0; i < n; i += QN_CHUNK) {
                const int in_chunk = n - i < QN_CHUNK ? (int)(n - i) : QN_CHUNK;
                uint8_t *codes = scratch + (size_t)i * scratch_block_bytes(qn_layout_scale(layout), planes);
                p = is_wide(planes) ? expand_chunk(layout, a->dtype, 2, p, in_chunk, codes)
                                    : expand_chunk(layout, a->dtype, 1, p, in_chunk, codes);
            }
            fn(scratch, n, x.p + (size_t)(b - from) * block_bytes, x.row_bytes, n_rows, out,
               apart ? QN_PANEL : a->out_stride, apart ? QN_PANEL : a->n_out - panel * QN_PANEL, b == 0,
               b + length < to ? p : start + panel_bytes, bytes_before(layout, a->dtype, length));
        }
        if (streams)
            stream_rows(a, panel, row, n_rows, sums);
        else if (apart)
            copy_sums(a, panel, row, n_rows, sums, 1);
    }
}

/* In passes over all panels: each of as many rows, and blocks of them, as the second-level cache keeps. */
INLINE void through_scratch(qn_layout layout, const qn_matmul_args *a, int64_t begin, int64_t end,
                            uint8_t *scratch)
{
    const int planes = a->act == QN_ACT_I8 ? 1 : 2;
    const int64_t n_blocks = a->n_in / QN_BLOCK,
                  rows = equal_parts(a->n_rows, is_wide(planes) ? WIDE_ROWS : PASS_ROWS, 4);
    int64_t most = X_CACHE_BYTES / ((int64_t)act_block_bytes(planes) * rows);
    if (most < STRETCH) most = STRETCH;
    if (is_wide(planes)) most = WIDE_STRETCH;
    const int64_t blocks = equal_parts(n_blocks, most, QN_CHUNK);
    for (int64_t row = 0; row < a->n_rows; row += rows) {
        const int64_t n_rows = a->n_rows - row < rows ? a->n_rows - row : rows;
        for (int64_t from = 0; from < n_blocks; from += blocks)
            scratch_pass(layout, a, begin, end, row, n_rows, from,
                         n_blocks - from < blocks ? n_blocks : from + blocks, scratch);
    }
}

INLINE void direct_rows(qn_layout layout, int planes, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    if (a->n_rows == 1) {
        direct(layout, planes, 1, a, begin, end);
    } else if (a->n_rows == 2 || (planes == 2 && DIRECT_ROWS_2 == 2)) {
        direct(layout, planes, 2, a, begin, end);
    } else if (a->n_rows <= 4 || DIRECT_ROWS == 4) {
        direct(layout, planes, 4, a, begin, end);
    } else if (a->n_rows <= 8 || planes == 2 || DIRECT_ROWS == 8) {
        direct(layout, planes, 8, a, begin, end);
    } else {
        direct(layout, planes, 16, a, begin, end);
    }
}

/* A pass of 16 rows computes for nothing what is missing of them: up to 12 take two smaller ones. */
static int64_t rows_of_pass(int64_t n_rows, int most)
{
    if (n_rows >= most) return most;
    return n_rows <= 8 || n_rows > 12 ? n_rows : 8;
}

/* Rows for which unpacking into scratch does not pay: a few at a time, and then panel by panel, so that its
 * codes come from the first-level cache after the first pass. */
INLINE void direct_passes(qn_layout layout, int planes, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    _Alignas(64) float sums[DIRECT_ROWS * 2 * QN_PANEL];
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in),
           panel_bytes = qn_pack_panel_bytes(a->dtype, a->n_in);
    int most = planes == 1 ? DIRECT_ROWS : DIRECT_ROWS_2;
    int64_t together = !a->streams && rows_of_pass(a->n_rows, most) == a->n_rows ? end - begin : 1;
    qn_matmul_args part = *a;
    for (int64_t panel = begin; panel < end; panel += together) {
        int streams = may_stream(a, panel, a->n_rows);
        part.panels = (const char *)a->panels + (size_t)panel * panel_bytes;
        part.n_out = a->n_out - panel * QN_PANEL;
        part.out_stride = streams ? QN_PANEL : a->out_stride;
        for (int64_t row = 0; row < a->n_rows; row += part.n_rows) {
            part.x = (const char *)a->x + (size_t)row * row_bytes;
            part.out = streams ? sums + row * QN_PANEL : a->out + row * a->out_stride + panel * QN_PANEL;
            part.n_rows = rows_of_pass(a->n_rows - row, most);
            direct_rows(layout, planes, &part, 0, together);
        }
        if (streams) stream_rows(a, panel, 0, a->n_rows, sums);
    }
}

#define LAYOUT(name, ...)                                                                             \
    static void integer_##name(const qn_matmul_args *a, int64_t begin, int64_t end, uint8_t *scratch) \
    {                                                                                                 \
        if (a->n_rows > direct_most(QN_LAYOUT_##name, a->act == QN_ACT_I8 ? 1 : 2)) {                 \
            through_scratch(QN_LAYOUT_##name, a, begin, end, scratch);                                \
        } else if (a->act == QN_ACT_I8) {                                                             \
            direct_passes(QN_LAYOUT_##name, 1, a, begin, end);                                        \
        } else {                                                                                      \
            direct_passes(QN_LAYOUT_##name, 2, a, begin, end);                                        \
        }                                                                                             \
    }
#include "device/cpu/kernels/matmul/layouts.def"

static void integer_matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->n_rows < 1) return;
    switch (qn_layout_of(a->dtype)) {
#define LAYOUT(name, ...)                       \
    case QN_LAYOUT_##name:                      \
        integer_##name(a, begin, end, scratch); \
        break;
#include "device/cpu/kernels/matmul/layouts.def"
    default:
        break;
    }
    if (a->streams) v_stream_end();
}
