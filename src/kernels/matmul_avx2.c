/* Matmul with AVX2 and FMA.
 *
 * A lane is an output; a panel is two vectors wide, called its sides. vpmaddubsw multiplies unsigned codes by
 * signed activations and adds pairs in 16 bits, where 8 sums of 4-bit codes fit, 4 of 5-bit ones and 2 of
 * 6-bit ones; 8-bit codes go in as |w| with the sign moved to x, one at a time (128 * 127 * 2 < 2^15). So
 * nothing ever saturates. Few rows read packed codes, more rows a stretch of a panel that was unpacked into
 * scratch; both do the same operations per block, so they give the same bits. */
#include <immintrin.h>
#include <string.h>

#include "kernels/pack.h"
#include "kernels/sets.h"

#define INLINE static inline __attribute__((always_inline))

/* Rows that still go straight from packed codes; blocks of a stretch; bytes of activations that stay in the
 * second-level cache while panels pass. */
enum { DIRECT_ROWS = 4, STRETCH = 32, X_CACHE_BYTES = 256 << 10, PREFETCH_BYTES = 4096 };

INLINE __m256i broadcast4(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256(p);
}

/* Keeps a sum as the chain that it was written as: gcc makes trees of integer additions, which want more
 * registers than there are. */
INLINE __m256i in_order(__m256i v)
{
    __asm__("" : "+x"(v));
    return v;
}

INLINE __m256 load_f16x8(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

/* ---- codes and scales of one side of a block --------------------------------------------------------- */

/* Where codes come from: packed, or in scratch as codes [8][64], d f32[16], then m f32[16] or sub-scales
 * i32[2][16]; 8-bit codes are signed there. */
typedef enum { PACKED, EXPANDED } source;

/* Codes of k = 4 g .. 4 g + 3 as unsigned bytes, but signed ones for 8 bits. p: the block's codes + 32 *
 * side. */
INLINE __m256i code_vector(qn_dtype dtype, source from, const uint8_t *p, int g)
{
    int bits = qn_layout_bits(dtype);
    if (from == EXPANDED) return load(p + 64 * g);
    if (bits == 8) return _mm256_xor_si256(load(p + 64 * g), _mm256_set1_epi8((char)0x80));
    __m256i w = load(p + 64 * (g % 4));
    w = _mm256_and_si256(g < 4 ? w : _mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
    if (bits == 4) return w;
    /* The high bits of group g start at bit `at` of each byte and belong at bit 4. */
    int at = bits == 5 ? g : g % 4 * 2;
    __m256i high = load(p + 256 + (bits == 5 ? 0 : 64 * (g / 4)));
    high = at <= 4 ? _mm256_slli_epi16(high, 4 - at) : _mm256_srli_epi16(high, at - 4);
    return _mm256_or_si256(w, _mm256_and_si256(high, _mm256_set1_epi8(bits == 5 ? 0x10 : 0x30)));
}

typedef struct {
    __m256 d, m;
    __m256i sub[2];
} scales;

/* QN_SCALE_K: the 6-bit scales of 8 blocks, then the mins. */
typedef struct {
    uint8_t six[16][16];
} header;

INLINE void load_header(qn_dtype dtype, const uint8_t *p, header *h)
{
    if (qn_layout_scale(dtype) != QN_SCALE_K) return;
    const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15), top = _mm256_set1_epi8(48);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m256i a = load(p + 64 + 32 * i), b = load(p + 128 + 32 * i), c = load(p + 192 + 32 * i);
        __m256i a_top = _mm256_and_si256(_mm256_srli_epi16(a, 2), top),
                b_top = _mm256_and_si256(_mm256_srli_epi16(b, 2), top);
        _mm256_storeu_si256((void *)h->six[2 * i], _mm256_and_si256(a, six));
        _mm256_storeu_si256((void *)h->six[8 + 2 * i], _mm256_and_si256(b, six));
        _mm256_storeu_si256((void *)h->six[4 + 2 * i], _mm256_or_si256(_mm256_and_si256(c, four), a_top));
        _mm256_storeu_si256((void *)h->six[12 + 2 * i],
                            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), four), b_top));
    }
}

INLINE __m256 small_ints(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)));
}

/* p: the chunk's header. */
INLINE scales packed_scales(qn_dtype dtype, const uint8_t *p, const header *h, int i_block, int side)
{
    scales s = {0};
    switch (qn_layout_scale(dtype)) {
    case QN_SCALE_SYM:
        s.d = load_f16x8(p + 32 * i_block + 16 * side);
        break;
    case QN_SCALE_MIN:
        s.d = load_f16x8(p + 64 * i_block + 16 * side);
        s.m = load_f16x8(p + 64 * i_block + 32 + 16 * side);
        break;
    case QN_SCALE_K:
        s.d = _mm256_mul_ps(load_f16x8(p + 16 * side), small_ints(h->six[i_block] + 8 * side));
        s.m = _mm256_mul_ps(load_f16x8(p + 32 + 16 * side), small_ints(h->six[8 + i_block] + 8 * side));
        s.m = _mm256_xor_ps(s.m, _mm256_set1_ps(-0.0f));
        break;
    default:
        s.d = load_f16x8(p + 16 * side);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            s.sub[half] = _mm256_cvtepi8_epi32(
                _mm_loadl_epi64((const void *)(p + 64 + 16 * (2 * i_block + half) + 8 * side)));
    }
    return s;
}

INLINE scales expanded_scales(qn_scale_kind kind, const uint8_t *p, int side)
{
    scales s = {0};
    s.d = _mm256_loadu_ps((const float *)(const void *)(p + 512 + 32 * side));
    if (kind == QN_SCALE_SUB) {
        s.sub[0] = load(p + 576 + 32 * side);
        s.sub[1] = load(p + 640 + 32 * side);
    } else if (kind != QN_SCALE_SYM) {
        s.m = _mm256_loadu_ps((const float *)(const void *)(p + 576 + 32 * side));
    }
    return s;
}

/* ---- one side of a block times some rows ------------------------------------------------------------- */

enum { TILE_MAX = 4 };

/* x[r]: one qn_act_i8 (planes 1) or qn_act_i8x2 (planes 2) of each row. */
INLINE void add_block(qn_dtype dtype, source from, int planes, int rows, const uint8_t *codes,
                      const scales *s, const uint8_t *const x[TILE_MAX], __m256 acc[TILE_MAX])
{
    enum { MAX = 2 * TILE_MAX };
    qn_scale_kind kind = qn_layout_scale(dtype);
    int bits = qn_layout_bits(dtype), run = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
    int halves = kind == QN_SCALE_SUB ? 2 : 1;
    __m256i sum[2][MAX]; /* of a half block (or all of it), by row and plane */
#pragma GCC unroll 8
    for (int first = 0; first < 8; first += run) {
        __m256i pairs[MAX];
#pragma GCC unroll 8
        for (int g = first; g < first + run; g++) {
            __m256i w = code_vector(dtype, from, codes, g);
            __m256i magnitude = bits == 8 ? _mm256_abs_epi8(w) : w;
#pragma GCC unroll 8
            for (int v = 0; v < rows * planes; v++) {
                __m256i xv = broadcast4(x[v / planes] + QN_BLOCK * (v % planes) + 4 * g);
                __m256i t = _mm256_maddubs_epi16(magnitude, bits == 8 ? _mm256_sign_epi8(xv, w) : xv);
                pairs[v] = in_order(g == first ? t : _mm256_add_epi16(pairs[v], t));
            }
        }
        int h = halves == 2 ? first / 4 : 0;
#pragma GCC unroll 8
        for (int v = 0; v < rows * planes; v++) {
            __m256i t = _mm256_madd_epi16(pairs[v], _mm256_set1_epi16(1));
            sum[h][v] =
                in_order(first == 0 || (halves == 2 && first == 4) ? t : _mm256_add_epi32(sum[h][v], t));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const uint8_t *meta = x[r] + QN_BLOCK * planes; /* scale, sum, zero[2] */
        __m256i dot[2];
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++) {
            dot[h] = sum[h][r * planes];
            if (planes == 2) dot[h] = _mm256_add_epi32(_mm256_slli_epi32(dot[h], 7), sum[h][r * planes + 1]);
        }
        if (kind == QN_SCALE_SUB) {
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m256i zero = _mm256_srai_epi32(broadcast4(meta + 8 + 4 * h), 8 - bits);
                dot[h] = _mm256_mullo_epi32(_mm256_add_epi32(dot[h], zero), s->sub[h]);
            }
            dot[0] = _mm256_add_epi32(dot[0], dot[1]);
        } else if (kind == QN_SCALE_SYM && bits < 8) {
            __m256i zero = _mm256_add_epi32(broadcast4(meta + 8), broadcast4(meta + 12));
            dot[0] = _mm256_add_epi32(dot[0], _mm256_srai_epi32(zero, 8 - bits));
        }
        __m256 t = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[0]), _mm256_castsi256_ps(broadcast4(meta)));
        acc[r] = _mm256_fmadd_ps(t, s->d, acc[r]);
        if (kind == QN_SCALE_MIN || kind == QN_SCALE_K)
            acc[r] = _mm256_fmadd_ps(_mm256_castsi256_ps(broadcast4(meta + 4)), s->m, acc[r]);
    }
}

INLINE size_t act_block_bytes(int planes)
{
    return planes == 1 ? sizeof(qn_act_i8) : sizeof(qn_act_i8x2);
}

/* The first n (below 8) outputs of one side of the last panel. */
static __attribute__((noinline)) void store_part(float *out, int64_t n, __m256 v)
{
    float all[8];
    _mm256_storeu_ps(all, v);
    for (int64_t i = 0; i < n; i++) out[i] = all[i];
}

static __attribute__((noinline)) __m256 load_part(const float *out, int64_t n)
{
    float all[8] = {0};
    for (int64_t i = 0; i < n; i++) all[i] = out[i];
    return _mm256_loadu_ps(all);
}

/* One side of a panel's output; n: outputs that exist from here on, perhaps none. */
INLINE void store_side(float *out, int64_t n, __m256 v)
{
    if (n >= 8) {
        _mm256_storeu_ps(out, v);
    } else {
        store_part(out, n, v);
    }
}

INLINE __m256 load_side(const float *out, int64_t n)
{
    return n >= 8 ? _mm256_loadu_ps(out) : load_part(out, n);
}

/* ---- few rows: straight from the packed codes -------------------------------------------------------- */

/* rows: a constant >= a->n_rows; what is missing is computed again from the last row and dropped. */
INLINE void direct(qn_dtype dtype, int planes, int rows, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    int64_t n_blocks = a->n_in / QN_BLOCK;
    size_t row_bytes = qn_act_row_bytes(planes == 1 ? QN_ACT_I8 : QN_ACT_I8X2, a->n_in);
    size_t code_bytes = qn_layout_code_bytes(dtype);
    const uint8_t *p = (const uint8_t *)a->panels + (size_t)begin * qn_pack_panel_bytes(dtype, a->n_in);
    for (int64_t panel = begin; panel < end; panel++) {
        const uint8_t *x[TILE_MAX];
        __m256 acc[2][TILE_MAX];
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            x[r] = (const uint8_t *)a->x + row_bytes * (size_t)(r < a->n_rows ? r : a->n_rows - 1);
            acc[0][r] = acc[1][r] = _mm256_setzero_ps();
        }
        for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
            int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
            const uint8_t *codes = p + qn_layout_header_bytes(dtype, in_chunk);
            header h;
            load_header(dtype, p, &h);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) _mm_prefetch((const char *)p + PREFETCH_BYTES + 64 * i, _MM_HINT_T0);
            for (int i = 0; i < in_chunk; i++, codes += code_bytes) {
#pragma GCC unroll 8
                for (size_t at = 0; at < code_bytes; at += 64)
                    _mm_prefetch((const char *)codes + PREFETCH_BYTES + at, _MM_HINT_T0);
#pragma GCC unroll 2
                for (int side = 0; side < 2; side++) {
                    scales s = packed_scales(dtype, p, &h, i, side);
                    add_block(dtype, PACKED, planes, rows, codes + 32 * side, &s, x, acc[side]);
                }
#pragma GCC unroll 6
                for (int r = 0; r < rows; r++) x[r] += act_block_bytes(planes);
            }
            p = codes;
        }
        int64_t n = a->n_out - panel * QN_PANEL;
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            if (r >= a->n_rows) continue;
            float *out = a->out + r * a->out_stride + panel * QN_PANEL;
            store_side(out, n, acc[0][r]);
            store_side(out + 8, n - 8, acc[1][r]);
        }
    }
}

INLINE void direct_rows(qn_dtype dtype, int planes, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    if (a->n_rows == 1) {
        direct(dtype, planes, 1, a, begin, end);
    } else if (a->n_rows == 2) {
        direct(dtype, planes, 2, a, begin, end);
    } else {
        direct(dtype, planes, 4, a, begin, end);
    }
}

/* ---- many rows: through scratch ---------------------------------------------------------------------- */

INLINE size_t scratch_block_bytes(qn_scale_kind kind)
{
    return kind == QN_SCALE_SYM ? 576 : kind == QN_SCALE_SUB ? 704 : 640;
}

/* Unpacks one chunk; returns the address of the next. */
INLINE const uint8_t *expand_chunk(qn_dtype dtype, const uint8_t *p, int in_chunk, uint8_t *to)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    const uint8_t *codes = p + qn_layout_header_bytes(dtype, in_chunk);
    header h;
    load_header(dtype, p, &h);
    for (int i = 0; i < in_chunk;
         i++, codes += qn_layout_code_bytes(dtype), to += scratch_block_bytes(kind)) {
#pragma GCC unroll 2
        for (int side = 0; side < 2; side++) {
            uint8_t *t = to + 32 * side;
            scales s = packed_scales(dtype, p, &h, i, side);
#pragma GCC unroll 8
            for (int g = 0; g < 8; g++)
                _mm256_storeu_si256((void *)(t + 64 * g), code_vector(dtype, PACKED, codes + 32 * side, g));
            _mm256_storeu_ps((float *)(void *)(t + 512), s.d);
            if (kind == QN_SCALE_SUB) {
                _mm256_storeu_si256((void *)(t + 576), s.sub[0]);
                _mm256_storeu_si256((void *)(t + 640), s.sub[1]);
            } else if (kind != QN_SCALE_SYM) {
                _mm256_storeu_ps((float *)(void *)(t + 576), s.m);
            }
        }
    }
    return codes;
}

/* rows (constant) of x times one side of a stretch; sums go on from out unless first. n: outputs that exist.
 */
INLINE void tile(qn_dtype dtype, int planes, int rows, int side, const uint8_t *scratch, int64_t n_blocks,
                 const uint8_t *x, size_t row_bytes, float *out, int64_t out_stride, int64_t n, int first)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    __m256 acc[TILE_MAX];
    const uint8_t *xr[TILE_MAX];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        acc[r] = first ? _mm256_setzero_ps() : load_side(out + r * out_stride, n);
        xr[r] = x + (size_t)r * row_bytes;
    }
    for (int64_t b = 0; b < n_blocks; b++) {
        scales s = expanded_scales(kind, scratch, side);
        add_block(dtype, EXPANDED, planes, rows, scratch + 32 * side, &s, xr, acc);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) xr[r] += act_block_bytes(planes);
        scratch += scratch_block_bytes(kind);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) store_side(out + r * out_stride, n, acc[r]);
}

INLINE void stretch(qn_dtype dtype, int planes, const uint8_t *scratch, int64_t n_blocks, const uint8_t *x,
                    size_t row_bytes, int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first)
{
    int full = planes == 1 ? 4 : 2;
    for (; n_rows >= full; n_rows -= full, x += (size_t)full * row_bytes, out += full * out_stride)
        for (int side = 0; side < 2; side++)
            tile(dtype, planes, full, side, scratch, n_blocks, x, row_bytes, out + 8 * side, out_stride,
                 n - 8 * side, first);
    for (; n_rows > 0; n_rows--, x += row_bytes, out += out_stride)
        for (int side = 0; side < 2; side++)
            tile(dtype, planes, 1, side, scratch, n_blocks, x, row_bytes, out + 8 * side, out_stride,
                 n - 8 * side, first);
}

/* In scratch only the bits and whether there are mins or sub-scales matter: one function for each of these
 * types. */
#define STRETCH_TYPES(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q6_K)
typedef void stretch_fn(const uint8_t *scratch, int64_t n_blocks, const uint8_t *x, size_t row_bytes,
                        int64_t n_rows, float *out, int64_t out_stride, int64_t n, int first);
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
    if (dtype == QN_DTYPE_Q4_K) dtype = QN_DTYPE_Q4_1;
    if (dtype == QN_DTYPE_Q5_K) dtype = QN_DTYPE_Q5_1;
    switch (dtype) {
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
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in), panel_bytes = qn_pack_panel_bytes(dtype, a->n_in);
    int64_t together = (int64_t)(X_CACHE_BYTES / row_bytes) / TILE_MAX * TILE_MAX;
    if (together < 32) together = 32;
    for (int64_t row = 0; row < a->n_rows; row += together) {
        int64_t n_rows = a->n_rows - row < together ? a->n_rows - row : together;
        const uint8_t *x = (const uint8_t *)a->x + (size_t)row * row_bytes;
        for (int64_t panel = begin; panel < end; panel++) {
            const uint8_t *p = (const uint8_t *)a->panels + (size_t)panel * panel_bytes;
            float *out = a->out + row * a->out_stride + panel * QN_PANEL;
            for (int64_t b = 0; b < n_blocks; b += STRETCH) {
                int64_t in_stretch = n_blocks - b < STRETCH ? n_blocks - b : STRETCH;
                for (int64_t i = 0; i < in_stretch; i += QN_CHUNK)
                    p = expand_chunk(dtype, p, in_stretch - i < QN_CHUNK ? (int)(in_stretch - i) : QN_CHUNK,
                                     scratch + (size_t)i * scratch_block_bytes(kind));
                fn(scratch, in_stretch, x + (size_t)b * act_block_bytes(planes), row_bytes, n_rows, out,
                   a->out_stride, a->n_out - panel * QN_PANEL, b == 0);
            }
        }
    }
}

#define INTEGER_TYPES(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K)
#define INTEGER_FUNCTION(t)                                                                       \
    static void matmul_##t(const qn_matmul_args *a, int64_t begin, int64_t end, uint8_t *scratch) \
    {                                                                                             \
        if (a->n_rows > DIRECT_ROWS) {                                                            \
            through_scratch(QN_DTYPE_##t, a, begin, end, scratch);                                \
        } else if (a->act == QN_ACT_I8) {                                                         \
            direct_rows(QN_DTYPE_##t, 1, a, begin, end);                                          \
        } else {                                                                                  \
            direct_rows(QN_DTYPE_##t, 2, a, begin, end);                                          \
        }                                                                                         \
    }
INTEGER_TYPES(INTEGER_FUNCTION)

static void integers(qn_dtype dtype, const qn_matmul_args *a, int64_t begin, int64_t end, uint8_t *scratch)
{
    switch (dtype) {
#define INTEGER_CASE(t)                     \
    case QN_DTYPE_##t:                      \
        matmul_##t(a, begin, end, scratch); \
        break;
        INTEGER_TYPES(INTEGER_CASE)
    default:
        break;
    }
}

/* ---- floats ------------------------------------------------------------------------------------------ */

typedef enum { W_F32, W_F16, W_BF16, W_BF16_DOT /* activations are bf16 too */ } float_kind;

INLINE __m256 low_bf16(__m256i pair)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
}

INLINE __m256 high_bf16(__m256i pair)
{
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000)));
}

/* Adds k (even: the first of its pair) to acc[panel][side][row]. x: the row's k-th activation, or its pair
 * for W_BF16_DOT. */
INLINE void float_step(float_kind kind, int odd, int panels, int rows, const uint8_t *w, size_t panel_bytes,
                       const uint8_t *x, size_t row_bytes, __m256 acc[2][2][6])
{
#pragma GCC unroll 2
    for (int p = 0; p < panels; p++) {
        const uint8_t *wp = w + (size_t)p * panel_bytes;
        __m256 v[2];
#pragma GCC unroll 2
        for (int side = 0; side < 2; side++) {
            if (kind == W_F32) {
                v[side] = _mm256_loadu_ps((const float *)(const void *)(wp + 32 * side));
            } else if (kind == W_F16) {
                v[side] = load_f16x8(wp + 16 * side);
            } else {
                v[side] = odd ? high_bf16(load(wp + 32 * side)) : low_bf16(load(wp + 32 * side));
            }
        }
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m256i raw = broadcast4(x + (size_t)r * row_bytes);
            __m256 xv = kind != W_BF16_DOT ? _mm256_castsi256_ps(raw) : odd ? high_bf16(raw) : low_bf16(raw);
            acc[p][0][r] = _mm256_fmadd_ps(xv, v[0], acc[p][0][r]);
            acc[p][1][r] = _mm256_fmadd_ps(xv, v[1], acc[p][1][r]);
        }
    }
}

/* panels (1 or 2, consecutive) times rows, both constants. An output is one chain over k. */
INLINE void float_tile(float_kind kind, int panels, int rows, const qn_matmul_args *a, const uint8_t *w,
                       size_t panel_bytes, const uint8_t *x, size_t row_bytes, int64_t panel, int64_t row)
{
    int pairs = kind == W_BF16 || kind == W_BF16_DOT;
    __m256 acc[2][2][6];
#pragma GCC unroll 2
    for (int p = 0; p < panels; p++)
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) acc[p][0][r] = acc[p][1][r] = _mm256_setzero_ps();
    for (int64_t k = 0; k + pairs < a->n_in; k += 1 + pairs) {
        if (rows <= 2)
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++)
                _mm_prefetch((const char *)w + (size_t)p * panel_bytes + PREFETCH_BYTES, _MM_HINT_T0);
        float_step(kind, 0, panels, rows, w, panel_bytes, x, row_bytes, acc);
        if (pairs)
            float_step(kind, 1, panels, rows, w, panel_bytes, kind == W_BF16 ? x + 4 : x, row_bytes, acc);
        w += kind == W_F16 ? 32 : 64;
        x += kind == W_BF16 ? 8 : 4;
    }
    if (pairs && a->n_in % 2) float_step(kind, 0, panels, rows, w, panel_bytes, x, row_bytes, acc);
#pragma GCC unroll 2
    for (int p = 0; p < panels; p++) {
        int64_t n = a->n_out - (panel + p) * QN_PANEL;
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            float *out = a->out + (row + r) * a->out_stride + (panel + p) * QN_PANEL;
            store_side(out, n, acc[p][0][r]);
            store_side(out + 8, n - 8, acc[p][1][r]);
        }
    }
}

/* One panel or two, which panels panel, panel + 1 of the output are. */
INLINE void float_rows(float_kind kind, int panels, int rows, const qn_matmul_args *a, const uint8_t *w,
                       size_t panel_bytes, int64_t panel, int64_t *row, int64_t end_row)
{
    size_t row_bytes = qn_act_row_bytes(a->act, a->n_in);
    for (; *row + rows <= end_row; *row += rows)
        float_tile(kind, panels, rows, a, w, panel_bytes, (const uint8_t *)a->x + (size_t)*row * row_bytes,
                   row_bytes, panel, *row);
}

INLINE void floats(float_kind kind, const qn_matmul_args *a, int64_t begin, int64_t end)
{
    enum { TILE_F32 = 6, TILE_BF16 = 4 }; /* bf16 activations want more registers */
    int tile_rows = kind == W_BF16_DOT ? TILE_BF16 : TILE_F32;
    size_t panel_bytes = qn_pack_panel_bytes(a->dtype, a->n_in);
    /* Rows in whole tiles go one panel at a time, the rest two panels at a time. */
    int64_t full = a->n_rows / tile_rows * tile_rows;
    for (int64_t panel = begin; panel < end && full; panel++) {
        int64_t row = 0;
        float_rows(kind, 1, tile_rows, a, (const uint8_t *)a->panels + (size_t)panel * panel_bytes,
                   panel_bytes, panel, &row, full);
    }
    for (int64_t panel = begin; panel < end && full < a->n_rows; panel += 2) {
        int64_t row = full;
        const uint8_t *w = (const uint8_t *)a->panels + (size_t)panel * panel_bytes;
        if (panel + 1 < end) {
            float_rows(kind, 2, 2, a, w, panel_bytes, panel, &row, a->n_rows);
            float_rows(kind, 2, 1, a, w, panel_bytes, panel, &row, a->n_rows);
        } else {
            float_rows(kind, 1, 1, a, w, panel_bytes, panel, &row, a->n_rows);
        }
    }
}

static void floats_f32(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    floats(W_F32, a, begin, end);
}

static void floats_f16(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    floats(W_F16, a, begin, end);
}

static void floats_bf16(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    floats(W_BF16, a, begin, end);
}

static void floats_bf16_dot(const qn_matmul_args *a, int64_t begin, int64_t end)
{
    floats(W_BF16_DOT, a, begin, end);
}

/* ---- unpacking --------------------------------------------------------------------------------------- */

INLINE void unpack_blocks(qn_dtype dtype, int64_t n_in, const uint8_t *p, float *out)
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    int64_t n_blocks = n_in / QN_BLOCK;
    int zero = qn_layout_bits(dtype) == 8 ? 0 : qn_layout_zero(dtype); /* 8-bit codes come signed */
    for (int64_t b = 0; b < n_blocks; b += QN_CHUNK) {
        int in_chunk = n_blocks - b < QN_CHUNK ? (int)(n_blocks - b) : QN_CHUNK;
        const uint8_t *codes = p + qn_layout_header_bytes(dtype, in_chunk);
        header h;
        load_header(dtype, p, &h);
        for (int i = 0; i < in_chunk; i++, codes += qn_layout_code_bytes(dtype), out += QN_BLOCK * QN_PANEL) {
#pragma GCC unroll 2
            for (int side = 0; side < 2; side++) {
                scales s = packed_scales(dtype, p, &h, i, side);
#pragma GCC unroll 8
                for (int g = 0; g < 8; g++) {
                    __m256i w = code_vector(dtype, PACKED, codes + 32 * side, g);
                    __m256 d =
                        kind == QN_SCALE_SUB ? _mm256_mul_ps(s.d, _mm256_cvtepi32_ps(s.sub[g / 4])) : s.d;
#pragma GCC unroll 4
                    for (int j = 0; j < 4; j++) {
                        __m256i q = _mm256_srai_epi32(_mm256_slli_epi32(w, 24 - 8 * j), 24);
                        __m256 v = _mm256_mul_ps(
                            d, _mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(zero))));
                        if (kind == QN_SCALE_MIN || kind == QN_SCALE_K) v = _mm256_add_ps(v, s.m);
                        _mm256_storeu_ps(out + (4 * g + j) * QN_PANEL + 8 * side, v);
                    }
                }
            }
        }
        p = codes;
    }
}

static void unpack_panel(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out)
{
    const uint8_t *p = (const uint8_t *)panels + (size_t)panel * qn_pack_panel_bytes(dtype, n_in);
    switch (dtype) {
    case QN_DTYPE_F32:
        memcpy(out, p, (size_t)n_in * QN_PANEL * sizeof *out);
        break;
    case QN_DTYPE_F16:
        for (int64_t i = 0; i < n_in * QN_PANEL; i += 8) _mm256_storeu_ps(out + i, load_f16x8(p + 2 * i));
        break;
    case QN_DTYPE_BF16:
        for (int64_t k = 0; k < n_in; k++)
#pragma GCC unroll 2
            for (int side = 0; side < 2; side++) {
                __m256i pair = load(p + k / 2 * 64 + 32 * side);
                _mm256_storeu_ps(out + k * QN_PANEL + 8 * side, k % 2 ? high_bf16(pair) : low_bf16(pair));
            }
        break;
#define UNPACK_CASE(t)                             \
    case QN_DTYPE_##t:                             \
        unpack_blocks(QN_DTYPE_##t, n_in, p, out); \
        break;
        INTEGER_TYPES(UNPACK_CASE)
    default:
        break;
    }
}

/* ---- activations ------------------------------------------------------------------------------------- */

INLINE int32_t sum_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

INLINE uint32_t max_lanes(__m256i v)
{
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* 32 integers in [-128, 127] as bytes, in order. */
INLINE __m256i to_bytes(const __m256i q[4])
{
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* See matmul_scalar.c: the same operations. */
INLINE void act_block(int planes, const float *x, uint8_t *to)
{
    __m256 v[4];
    __m256i q[4], largest = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        q[i] = _mm256_setzero_si256();
        largest = _mm256_max_epi32(
            largest, _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff)));
    }
    uint32_t bits = max_lanes(largest);
    float most, scale, limit = planes == 1 ? QN_ACT_I8_MAX : QN_ACT_I8X2_MAX;
    memcpy(&most, &bits, 4);
    if (bits >= 0x7f800000) {
        uint32_t nan = 0x7fc00000;
        memcpy(&scale, &nan, 4);
    } else if (most < QN_ACT_TINY) {
        scale = 0;
    } else {
        __m256 inverse = _mm256_set1_ps(limit / most);
        scale = most / limit;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    }
    int32_t half[2] = {sum_lanes(_mm256_add_epi32(q[0], q[1])), sum_lanes(_mm256_add_epi32(q[2], q[3]))};
    float sum = scale * (float)(half[0] + half[1]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) half[i] *= -128;
    if (planes == 2) {
        __m256i high[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            high[i] = _mm256_srai_epi32(_mm256_add_epi32(q[i], _mm256_set1_epi32(64)), 7);
            q[i] = _mm256_sub_epi32(q[i], _mm256_slli_epi32(high[i], 7));
        }
        _mm256_storeu_si256((void *)to, to_bytes(high));
        to += QN_BLOCK;
    }
    _mm256_storeu_si256((void *)to, to_bytes(q));
    to += QN_BLOCK;
    memcpy(to, &scale, 4);
    memcpy(to + 4, &sum, 4);
    memcpy(to + 8, half, 8);
}

/* Nearest even; NaN stays NaN. */
INLINE __m128i to_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff)), 16);
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i v = _mm256_blendv_epi8(rounded, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

static void act_pack(qn_act act, int64_t n_in, const float *x, void *out)
{
    uint8_t *to = out;
    switch (act) {
    case QN_ACT_I8:
        for (int64_t k = 0; k < n_in; k += QN_BLOCK, to += sizeof(qn_act_i8)) act_block(1, x + k, to);
        break;
    case QN_ACT_I8X2:
        for (int64_t k = 0; k < n_in; k += QN_BLOCK, to += sizeof(qn_act_i8x2)) act_block(2, x + k, to);
        break;
    case QN_ACT_BF16:
        for (; n_in >= 8; n_in -= 8, x += 8, to += 16)
            _mm_storeu_si128((void *)to, to_bf16(_mm256_loadu_ps(x)));
        if (n_in > 0) {
            __m128i last = to_bf16(load_part(x, n_in));
            memcpy(to, &last, 2 * (size_t)(n_in + n_in % 2)); /* an odd row ends with a 0 */
        }
        break;
    default:
        memcpy(out, x, (size_t)n_in * sizeof *x);
        break;
    }
}

/* ---- table ------------------------------------------------------------------------------------------- */

static void matmul(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch)
{
    if (a->act == QN_ACT_I8 || a->act == QN_ACT_I8X2) {
        integers(a->dtype, a, begin, end, scratch);
    } else if (a->act == QN_ACT_BF16) {
        floats_bf16_dot(a, begin, end);
    } else if (a->dtype == QN_DTYPE_F32) {
        floats_f32(a, begin, end);
    } else if (a->dtype == QN_DTYPE_F16) {
        floats_f16(a, begin, end);
    } else if (a->dtype == QN_DTYPE_BF16) {
        floats_bf16(a, begin, end);
    } else {
        /* Exact: two panels at a time as f32. */
        qn_matmul_args part = *a;
        size_t panel_bytes = qn_pack_panel_bytes(QN_DTYPE_F32, a->n_in);
        part.dtype = QN_DTYPE_F32;
        part.panels = scratch;
        for (int64_t p = begin; p < end; p += 2) {
            int64_t n = end - p < 2 ? 1 : 2;
            for (int64_t i = 0; i < n; i++)
                unpack_panel(a->dtype, a->n_in, a->panels, p + i,
                             (float *)(void *)((char *)scratch + (size_t)i * panel_bytes));
            part.out = a->out + p * QN_PANEL;
            part.n_out = a->n_out - p * QN_PANEL;
            floats_f32(&part, 0, n);
        }
    }
}

void qn_kernels_fill_matmul_avx2(qn_kernels *k)
{
    k->unpack_panel = unpack_panel;
    k->act_pack = act_pack;
    k->matmul = matmul;
}
