/* Products of int8 activations with quantised weights: which kernel runs, and the order of rows, panels and
 * blocks. Written once; the arithmetic is the including file's, as declared below, with DIRECT_ROWS (4 or 8:
 * rows that go straight from packed codes in one pass), TILE_ROWS, TILE_ROWS_2 (rows of a tile for one and
 * two planes), X_CACHE_BYTES (activations that stay in the second-level cache while panels pass),
 * STRETCH_TYPES(X), the types that differ in scratch, and stretch_type(dtype), the one of them that stands
 * for dtype. Measured on Zen 4: a stretch of 32 blocks (20 KiB of scratch) stays in the first-level cache;
 * two passes over packed codes beat it up to twice DIRECT_ROWS rows (16 rows: 0.73 of the integer peak, 0.67
 * through scratch). */
#include "kernels/pack.h"

enum { STRETCH = 32, DIRECT_PASSES = 2 };

INLINE size_t act_block_bytes(int planes)
{
    return planes == 1 ? sizeof(qn_act_i8) : sizeof(qn_act_i8x2);
}

/* A block in scratch: codes [8][64], d f32[16], then m f32[16] or the sub-scales i32[2][16]. */
INLINE size_t scratch_block_bytes(qn_scale_kind kind)
{
    return kind == QN_SCALE_SYM ? 576 : kind == QN_SCALE_SUB ? 704 : 640;
}

/* Bytes of a chunk's header. dtype: the constant that stands for the weight's own. */
INLINE size_t header_bytes(qn_dtype dtype, qn_dtype own, int64_t n_blocks)
{
    return qn_layout_header_bytes(qn_layout_scale(dtype) == QN_SCALE_GROUP ? own : dtype, n_blocks);
}

/* All rows (at most `rows`) straight from packed codes. */
INLINE void direct(qn_dtype dtype, int planes, int rows, const qn_matmul_args *a, int64_t begin, int64_t end);
/* A chunk into scratch; returns the address of the next. */
INLINE const uint8_t *expand_chunk(qn_dtype dtype, qn_dtype own, const uint8_t *p, int in_chunk, uint8_t *to);
/* Rows times a stretch of blocks in scratch; sums go on from out unless first. n: outputs of the panel that
 * exist. */
INLINE void tile(qn_dtype dtype, int planes, int rows, const uint8_t *scratch, int64_t n_blocks,
                 const uint8_t *x, size_t row_bytes, float *out, int64_t out_stride, int64_t n, int first);

/* All rows of x, from one block on, times a stretch. */
typedef void stretch_fn(const uint8_t *scratch, int64_t n_blocks, const uint8_t *x, size_t row_bytes,
                        int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first);

INLINE void stretch(qn_dtype dtype, int planes, const uint8_t *scratch, int64_t n_blocks, const uint8_t *x,
                    size_t row_bytes, int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first)
{
    int full = planes == 1 ? TILE_ROWS : TILE_ROWS_2;
    for (; n_rows >= full; n_rows -= full, x += (size_t)full * row_bytes, out += full * out_stride)
        tile(dtype, planes, full, scratch, n_blocks, x, row_bytes, out, out_stride, n, first);
    for (; full > 4 && n_rows >= 4; n_rows -= 4, x += 4 * row_bytes, out += 4 * out_stride)
        tile(dtype, planes, 4, scratch, n_blocks, x, row_bytes, out, out_stride, n, first);
    for (; n_rows > 0; n_rows--, x += row_bytes, out += out_stride)
        tile(dtype, planes, 1, scratch, n_blocks, x, row_bytes, out, out_stride, n, first);
}

#define STRETCH_FUNCTION(t)                                                                                \
    static void stretch_##t(const uint8_t *scratch, int64_t n_blocks, const uint8_t *x, size_t row_bytes,  \
                            int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first)          \
    {                                                                                                      \
        stretch(QN_DTYPE_##t, 1, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, n, first);      \
    }                                                                                                      \
    static void stretch2_##t(const uint8_t *scratch, int64_t n_blocks, const uint8_t *x, size_t row_bytes, \
                             int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first)         \
    {                                                                                                      \
        stretch(QN_DTYPE_##t, 2, scratch, n_blocks, x, row_bytes, n_rows, out, out_stride, n, first);      \
    }
STRETCH_TYPES(STRETCH_FUNCTION)

static stretch_fn *stretch_of(qn_dtype dtype, int planes)
{
    switch (stretch_type(dtype)) {
#define STRETCH_CASE(t) \
    case QN_DTYPE_##t:  \
        return planes == 1 ? stretch_##t : stretch2_##t;
        STRETCH_TYPES(STRETCH_CASE)
    default:
        return NULL;
    }
}

INLINE void through_scratch(qn_dtype dtype, const qn_matmul_args *a, int64_t begin, int64_t end,
                            uint8_t *scratch)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    int planes = a->act == QN_ACT_I8 ? 1 : 2;
    stretch_fn *fn = stretch_of(dtype, planes);
    int64_t n_blocks = a->n_in / QN_BLOCK;
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in),
           panel_bytes = qn_pack_panel_bytes(a->dtype, a->n_in);
    size_t stretch_bytes = panel_bytes / (size_t)((n_blocks + STRETCH - 1) / STRETCH);
    int64_t together = (int64_t)(X_CACHE_BYTES / row_bytes) / 24 * 24;
    if (together < 48) together = 48;
    for (int64_t row = 0; row < a->n_rows; row += together) {
        int64_t n_rows = a->n_rows - row < together ? a->n_rows - row : together;
        const uint8_t *x = (const uint8_t *)a->x + (size_t)row * row_bytes;
        for (int64_t panel = begin; panel < end; panel++) {
            const uint8_t *p = (const uint8_t *)a->panels + (size_t)panel * panel_bytes;
            float *out = a->out + row * a->out_stride + panel * QN_PANEL;
            for (int64_t b = 0; b < n_blocks; b += STRETCH) {
                int64_t in_stretch = n_blocks - b < STRETCH ? n_blocks - b : STRETCH;
                for (int64_t i = 0; i < in_stretch; i += QN_CHUNK)
                    p = expand_chunk(dtype, a->dtype, p,
                                     in_stretch - i < QN_CHUNK ? (int)(in_stretch - i) : QN_CHUNK,
                                     scratch + (size_t)i * scratch_block_bytes(kind));
                /* While this stretch is used, the next one (of this panel or the one behind it) comes nearer.
                 */
                for (size_t at = 0; at < stretch_bytes; at += 64) __builtin_prefetch(p + at, 0, 2);
                fn(scratch, in_stretch, x + (size_t)b * act_block_bytes(planes), row_bytes, n_rows, out,
                   a->out_stride, a->n_out - panel * QN_PANEL, b == 0);
            }
        }
    }
}

INLINE void direct_rows(qn_dtype dtype, int planes, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    if (a->n_rows == 1) {
        direct(dtype, planes, 1, a, begin, end);
    } else if (a->n_rows == 2) {
        direct(dtype, planes, 2, a, begin, end);
    } else if (a->n_rows <= 4 || DIRECT_ROWS == 4) {
        direct(dtype, planes, 4, a, begin, end);
    } else {
        direct(dtype, planes, 8, a, begin, end);
    }
}

/* Rows for which unpacking into scratch does not pay: a few at a time, and then panel by panel, so that its
 * codes come from the first-level cache after the first pass. */
INLINE void direct_passes(qn_dtype dtype, int planes, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in);
    int64_t together = a->n_rows <= DIRECT_ROWS ? end - begin : 1;
    for (int64_t panel = begin; panel < end; panel += together) {
        for (int64_t row = 0; row < a->n_rows; row += DIRECT_ROWS) {
            qn_matmul_args part = *a;
            part.x = (const char *)a->x + (size_t)row * row_bytes;
            part.out = a->out + row * a->out_stride;
            part.n_rows = a->n_rows - row < DIRECT_ROWS ? a->n_rows - row : DIRECT_ROWS;
            direct_rows(dtype, planes, &part, panel, panel + together);
        }
    }
}

#define INTEGER_FUNCTION(t)                                                                        \
    static void integer_##t(const qn_matmul_args *a, int64_t begin, int64_t end, uint8_t *scratch) \
    {                                                                                              \
        if (a->n_rows > DIRECT_PASSES * DIRECT_ROWS) {                                             \
            through_scratch(QN_DTYPE_##t, a, begin, end, scratch);                                 \
        } else if (a->act == QN_ACT_I8) {                                                          \
            direct_passes(QN_DTYPE_##t, 1, a, begin, end);                                         \
        } else {                                                                                   \
            direct_passes(QN_DTYPE_##t, 2, a, begin, end);                                         \
        }                                                                                          \
    }
QN_BLOCK_TYPES(INTEGER_FUNCTION)

static void integer_matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->n_rows < 1) return;
    switch (qn_layout_type(a->dtype)) {
#define INTEGER_CASE(t)                      \
    case QN_DTYPE_##t:                       \
        integer_##t(a, begin, end, scratch); \
        break;
        QN_BLOCK_TYPES(INTEGER_CASE)
    default:
        break;
    }
}
