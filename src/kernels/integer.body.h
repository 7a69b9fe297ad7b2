/* Products of int8 activations with quantised weights: which kernel runs, and the order of rows, panels and
 * blocks. Written once; the arithmetic is the including file's, as declared below, with DIRECT_ROWS (4, 8 or
 * 16) and DIRECT_ROWS_2 (4 or 8): rows that go straight from packed codes in one pass, for one and two
 * planes, TILE_ROWS, TILE_ROWS_2 (rows of a tile), X_CACHE_BYTES (activations that stay in the second-level
 * cache while panels pass), STRETCH_TYPES(X), the types that differ in scratch, and stretch_type(dtype), the
 * one of them that stands for dtype. It includes the set's vec_<set>.h. Measured on Zen 4: a stretch of 32
 * blocks (20 KiB of scratch) stays in the first-level cache; two passes over packed codes beat it, and one
 * pass of 16 rows beats two of 8, for memory is read all the time. */
#include "kernels/pack.h"

enum { STRETCH = 32, DIRECT_PASSES = 2, STREAM_ROWS = 64 };

INLINE size_t act_block_bytes(int planes)
{
    return planes == 1 ? sizeof(qn_act_i8) : sizeof(qn_act_i8x2);
}

/* A block in scratch: codes [8][64], d f32[16], then m f32[16] (a min, or the second half's scale) or the
 * sub-scales i32[2][16]. */
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

/* Rows whose sums were kept together. Rows of a large output may lie a power of two apart: then their lines
 * crowd in one set of each cache, and storing them one by one waits for what is overwritten to be read. */
INLINE void stream_rows(const qn_matmul_args *a, int64_t panel, int64_t row, int64_t n_rows,
                        const float *sums)
{
    float *out = a->out + row * a->out_stride + panel * QN_PANEL;
    for (int64_t r = 0; r < n_rows; r++, out += a->out_stride) v_stream(out, v_load(sums + r * QN_PANEL));
}

/* Of at most STREAM_ROWS rows and all of a panel. */
static int may_stream(const qn_matmul_args *a, int64_t panel, int64_t n_rows)
{
    return a->streams && n_rows <= STREAM_ROWS && a->n_out - panel * QN_PANEL >= QN_PANEL;
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
            _Alignas(64) float sums[STREAM_ROWS * QN_PANEL];
            int streams = may_stream(a, panel, n_rows);
            float *out = streams ? sums : a->out + row * a->out_stride + panel * QN_PANEL;
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
                   streams ? QN_PANEL : a->out_stride, a->n_out - panel * QN_PANEL, b == 0);
            }
            if (streams) stream_rows(a, panel, row, n_rows, sums);
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
    } else if (a->n_rows <= 8 || planes == 2 || DIRECT_ROWS == 8) {
        direct(dtype, planes, 8, a, begin, end);
    } else {
        direct(dtype, planes, 16, a, begin, end);
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
INLINE void direct_passes(qn_dtype dtype, int planes, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    _Alignas(64) float sums[DIRECT_PASSES * 16 * QN_PANEL];
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
            direct_rows(dtype, planes, &part, 0, together);
        }
        if (streams) stream_rows(a, panel, 0, a->n_rows, sums);
    }
}

#define INTEGER_FUNCTION(t)                                                                        \
    static void integer_##t(const qn_matmul_args *a, int64_t begin, int64_t end, uint8_t *scratch) \
    {                                                                                              \
        int most = a->act == QN_ACT_I8 ? DIRECT_ROWS : DIRECT_ROWS_2;                              \
        if (a->n_rows > DIRECT_PASSES * most) {                                                    \
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
    if (a->streams) v_stream_end();
}
