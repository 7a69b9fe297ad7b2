/* CPU arithmetic on plain pointers: one struct of function pointers per instruction set (scalar, avx2,
 * avx2_vnni, avx512, avx512_amx, neon, neon_i8mm).
 *
 * A kernel takes pointers, sizes and a range of work; it neither allocates nor starts threads, and no result
 * depends on how the work is split over calls. Bits:
 * - matmul against quantised weights: integers inside a block, then f32 multiply-adds (fused) per block in
 * rising order of k; equal bits for any number of rows, and on every set.
 * - other f32 reductions over k or over a head: in an order that depends on absolute indices alone.
 * - exp, tanh, erf, log, sin, cos, rsqrt are our own polynomials, never libm's; each set may differ from the
 * others. Any thread. */
#ifndef QN_DEVICE_CPU_KERNELS_KERNELS_H
#define QN_DEVICE_CPU_KERNELS_KERNELS_H

#include <quern/dtype.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "prim/units.h"

/* ---- packed weights ------------------------------------------------------------------------------------ */

/* A matrix W [n_out, n_in] (row-major, as in files) is packed into panels of 16 output rows, interleaved
 * so that a vector lane is an output. The last panel is filled with zero blocks. The layout of a dtype is
 * the same for every set. Lossless. */
enum { QN_PANEL = 16 };

/* Of all layouts together; see QN_LAYOUT_VERSION in pack.h. */
int qn_pack_layout_version(void);
/* Bytes of one panel of a [*, n_in] matrix, 0: this dtype has no packed layout or n_in does not fit its
 * block. */
size_t qn_pack_panel_bytes(qn_dtype dtype, int64_t n_in);

/* How activations are handed to a matmul: decided by the weight's dtype and the precision. */
typedef enum {
    QN_ACT_F32,  /* f32 rows, exact against unpacked weights */
    QN_ACT_BF16, /* bf16 rows */
    QN_ACT_I8,   /* int8 per block of 32 with one f32 scale */
    QN_ACT_I8X2, /* 15 bits: a high and a low int8 plane per block of 32 with one f32 scale */
    QN_ACT_COUNT
} qn_act;
qn_act qn_matmul_act(qn_dtype weight, qn_precision precision);
/* Bytes of one packed row of n_in activations; a multiple of 64. */
size_t qn_act_row_bytes(qn_act act, int64_t n_in);
/* Where activation `at` of a packed row begins; at is a multiple of 32. */
size_t qn_act_offset(qn_act act, int64_t at);

typedef struct {
    qn_dtype dtype; /* of the weight */
    qn_act act;     /* layout of x */
    int64_t n_in, n_out;
    const void *panels; /* packed weight */
    const void *x;      /* [n_rows] packed activations, qn_act_row_bytes each */
    int64_t n_rows;
    float *out;         /* [n_rows, out_stride], columns [0, n_out) are written */
    int64_t out_stride; /* in elements */
    int streams;   /* 1: no cache would keep out; it may be written past them. Its rows lie at multiples of 64
                      bytes. */
    int same_rows; /* 1: x, n_rows, n_in and act are as in the call before, and scratch is as it left it */
} qn_matmul_args;

/* ---- attention over pages ------------------------------------------------------------------------------ */

/* KV pages hold QN_PAGE_TOKENS tokens. One page of one layer: K [kv_heads][head_dim][QN_PAGE_TOKENS] (a
 * lane is a token), then V [kv_heads][QN_PAGE_TOKENS][v_dim] (a lane is a dimension), in f32 or f16. In
 * bf16 dimensions of K and tokens of V lie in pairs: K [kv_heads][head_dim / 2][QN_PAGE_TOKENS][2], V
 * [kv_heads][QN_PAGE_TOKENS / 2][v_dim][2], with head_dim rounded up to 2 and v_dim to 16. Q8_0 is the
 * same in bytes, dimensions rounded up to 32, and behind each head's numbers stand its f16 scales, one for
 * 32 dimensions of one token: [blocks] [QN_PAGE_TOKENS]. Q4_0 has two numbers in a byte
 * (attention_pages.body.h). */
enum { QN_ATTN_GROUP = 256, QN_ATTN_ROWS = 32, QN_ATTN_PART_PAIRS = 128 };

typedef struct {
    qn_dtype dtype; /* F32, F16, BF16, Q8_0 or Q4_0 */
    int64_t kv_heads, head_dim, v_dim;
    int v_in_k;  /* 1: values are the first v_dim dimensions of the keys, and pages hold no others */
    char *pages; /* page 0 of this layer */
    size_t page_stride_bytes; /* from one page to the next */
} qn_kv_layout;
/* Bytes of one page of one layer, a multiple of 64. v_dim 0: of pages without values. */
size_t qn_kv_page_bytes(qn_dtype dtype, int64_t kv_heads, int64_t head_dim, int64_t v_dim);

typedef struct {
    qn_kv_layout kv;
    int64_t n_heads;  /* query heads; a multiple of kv_heads */
    const float *q;   /* first row of the tile, [row][n_heads][head_dim] */
    int64_t q_stride; /* elements between rows */
    float *out;       /* first row of the tile, [row][n_heads][v_dim] */
    int64_t out_stride;
    const int32_t
        *blocks;      /* the sequence's block table: position p lives in page blocks[p / QN_PAGE_TOKENS] */
    int64_t position; /* absolute position of the tile's first row; the others follow one by one */
    int64_t window;   /* row at p sees positions (p - window, p]; 0: all of [0, p] */
    int64_t chunk;    /* > 0: and none before p - (p + chunk_at) % chunk */
    int64_t chunk_at; /* of position 0 in its chunk */
    int64_t seen;     /* > 0: every row sees [0, seen) instead; with a window (p - window, p + window) of it;
                      < 0: [0, -seen), with a window (p - window, -seen) */
    const float
        *hidden;   /* NULL, or of each position 0, or -1 where no row sees it; of a single row, whose page at
                            each position it sees some of; not with attend_part */
    float scale;   /* scores = scale * q.k */
    float softcap; /* 0: none; else scores = softcap * tanh(scores / softcap) */
    const float *sinks; /* [n_heads] extra logit per head that takes part in the softmax, or NULL */
} qn_attend_args;

/* The first position that a row at `position` sees. */
static inline int64_t qn_attend_first(int64_t window, int64_t chunk, int64_t chunk_at, int64_t position)
{
    const int64_t first = window > 0 && position >= window ? position - window + 1 : 0,
                  own = chunk > 0 ? position - (position + chunk_at) % chunk : 0;
    return own > first ? own : first;
}

/* ---- recurrent layers ---------------------------------------------------------------------------------- */

/* Rows of one sequence, on from the state that its rows before left behind, which becomes that of the last
 * row. Strides are in elements, from one row to the next. */
typedef struct {
    int64_t n_rows, channels, kernel;
    const float *x; /* [row][channels] */
    int64_t x_stride;
    const float *w; /* [kernel][channels], the last tap for the row itself */
    float *state;   /* [kernel - 1][channels]: the last inputs */
    float *out;     /* not x */
    int64_t out_stride;
} qn_conv_args;

/* Of one head. */
typedef struct {
    int64_t n_rows, dk, dv;
    const float *q, *k, *v, *g, *beta; /* [row][dk], [row][dk], [row][dv]; g and beta: a number a row */
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride;
    int by_channel; /* 1: g is [row][dk] and has the decay of each row of the state, not its logarithm */
    int additive;   /* 1: d is beta v */
    float *state;   /* [dk][dv] */
    float *out;     /* [row][dv] */
    int64_t out_stride;
} qn_delta_args;

/* ---- element-wise -------------------------------------------------------------------------------------- */

/* The operations of ew: a copy, and the element-wise primitives. */
typedef enum {
    QN_EW_COPY,
#define E(name, inputs) QN_EW_##name,
#include "prim/elementwise.def"
    QN_EW_COUNT
} qn_ew;

/* Those that cost little more than loading and storing their operands: they are done in registers, one behind
 * the other. */
#define QN_EW_LINK_LIST(X) \
    X(NEG)                 \
    X(ABS)                 \
    X(SQUARE)              \
    X(RELU)                \
    X(SQRT)                \
    X(RSQRT)               \
    X(RECIP)               \
    X(ADD)                 \
    X(SUB)                 \
    X(MUL)                 \
    X(DIV)                 \
    X(MAXIMUM)             \
    X(MINIMUM)

/* t = op(t, other[i]), or op(other[i], t) when swapped; step 0: other[0] for every i. other NULL: t itself,
 * or nothing where the operation has one input. */
typedef struct {
    const float *other;
    int64_t step;
    uint8_t op; /* qn_ew, of QN_EW_LINK_LIST */
    uint8_t swapped;
} qn_ew_link;

typedef struct qn_kernels {
    const char *name; /* "scalar", "avx2", "avx2_vnni", "avx512", "avx512_amx", "neon", "neon_i8mm" */
    /* Of matmul's scratch, bytes where a call puts many rows of integers in another form first, whatever the
     * number of panels (qn_matmul_reforms). 0: there is no such form. */
    size_t rows_bytes;
    /* Of matmul's scratch, bytes that products of QN_ACT_I8X2 take at least, whatever their size. */
    size_t two_planes_bytes;
    /* The same set, slower and without that form, for where memory is scarce: bit by bit the same. Or NULL.
     */
    const struct qn_kernels *lean;

    int integer_kv; /* attention over Q8_0 and Q4_0 pages is in integers: qn_attend_rounds */

    /* Packs panels [begin, end) of W [n_out, n_in] (rows of dtype's blocks, tightly packed) into dst (panel
     * 0's address). */
    void (*pack)(qn_dtype dtype, int64_t n_in, int64_t n_out, const void *rows, int64_t begin, int64_t end,
                 void *dst);
    /* One row of W back as f32: equal, bit for bit, to decoding the file's row. */
    void (*unpack_row)(qn_dtype dtype, int64_t n_in, const void *panels, int64_t row, float *out);
    /* One panel as f32 [n_in][QN_PANEL]. */
    void (*unpack_panel)(qn_dtype dtype, int64_t n_in, const void *panels, int64_t panel, float *out);
    /* One row of activations into its packed form. */
    void (*act_pack)(qn_act act, int64_t n_in, const float *x, void *out);
    /* Computes panels [begin, end) of the output for all rows. scratch: qn_matmul_scratch_bytes. */
    void (*matmul)(const qn_matmul_args *a, int64_t begin, int64_t end, void *scratch);

    /* Of key heads [head, head + n_heads) K rows [n_heads][head_dim] and V rows [n_heads][v_dim] of n tokens
     * into a page, from slot on (slot + n at most QN_PAGE_TOKENS). Strides in elements. */
    void (*kv_write)(const qn_kv_layout *kv, int64_t head, int64_t n_heads, int64_t page, int64_t slot,
                     int64_t n, const float *k, int64_t k_stride, const float *v, int64_t v_stride);
    /* Attention of n_rows (1..QN_ATTN_ROWS) consecutive rows of one sequence, for query heads [head, head +
     * n_heads) that share one kv head, or all those of several kv heads. Softmax inside groups of
     * QN_ATTN_GROUP absolute positions, groups merged in rising order; positions that a row may not see are
     * selected away (a stale page may hold NaN). scratch: qn_attend_scratch_bytes. */
    void (*attend)(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads, void *scratch);
    /* The same in two steps, for at most QN_ATTN_PART_PAIRS pairs of row and head of one kv head: the results
     * of the groups [begin, end) alone, counted from position 0, into parts [group - begin],
     * qn_attend_part_bytes each; and the output from the parts of all groups that the rows see. Bits are
     * those of attend. */
    void (*attend_part)(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads, int64_t begin,
                        int64_t end, float *parts, void *scratch);
    void (*attend_merge)(const qn_attend_args *a, int64_t n_rows, int64_t head, int64_t n_heads,
                         const float *parts, void *scratch);

    /* out[i] = op(a[i], b[i]); a_step, b_step are 1 or 0 (0: a[0] for every i). out may be a or b. */
    void (*ew[QN_EW_COUNT])(float *out, const float *a, int64_t a_step, const float *b, int64_t b_step,
                            int64_t n);
    /* out[i] = a[i] after all links, bit for bit what ew gives one by one. out may be a or another operand.
     * streams: 1 past the caches (out lies at a multiple of 64 bytes), 2 and others may look at all of it. */
    void (*ew_chain)(float *out, const float *a, int64_t a_step, const qn_ew_link *links, int n_links,
                     int64_t n, int streams);
    /* out = x / sqrt(mean(x^2) + eps) * (w + w_offset); w NULL: factor 1. Sums in 16 virtual lanes
     * by absolute index and one fixed tree. out may be x. */
    void (*rms_norm)(float *out, const float *x, const float *w, float w_offset, float eps, int64_t n);
    /* out = (x - mean) / sqrt(var + eps) * w + b; w, b may be NULL. */
    void (*layer_norm)(float *out, const float *x, const float *w, const float *b, float eps, int64_t n);
    /* Rotates pairs of x [n_heads][head_dim] in place by the angles whose cosines and sines [rotary_dim / 2]
     * are given. interleaved 0: pairs (i, i + rotary_dim / 2); 1: pairs (2 i, 2 i + 1). */
    void (*rope)(float *x, int64_t n_heads, int64_t head_dim, int64_t rotary_dim, const float *cosines,
                 const float *sines, int interleaved);
    /* softmax of x[0..n) into out; -inf gives exactly 0. out may be x. */
    void (*softmax)(float *out, const float *x, int64_t n);
    /* Sum and maximum of x[0..n): 16 virtual lanes by absolute index, one fixed tree. */
    float (*sum)(const float *x, int64_t n);
    float (*max)(const float *x, int64_t n);
    float (*dot)(const float *x, const float *y, int64_t n);
    /* Of a long row in blocks of QN_ROW_BLOCK, the last may be shorter: out [n / QN_ROW_BLOCK, rounded up].
     * The largest of each block, NaN if one is NaN; and the sum of exp((x - shift) * scale), for x <= shift
     * and scale > 0, in 16 lanes by index inside the block and the fixed tree. */
    void (*max_blocks)(const float *x, int64_t n, float *out);
    void (*sum_exp_blocks)(const float *x, int64_t n, float shift, float scale, float *out);
    /* out[i] = exp((x[i] - shift) * scale), each operation rounded, with the exp of ew. out may be x. */
    void (*exp_scaled)(const float *x, int64_t n, float shift, float scale, float *out);
    /* Elements >= least in order: first + index into index, themselves into value; both have room for n.
     * Returns how many. */
    int64_t (*collect)(const float *x, int64_t n, float least, int32_t first, int32_t *index, float *value);
    /* Small dense f32 product for training and state updates: out [m, n] = (accumulate ? out : 0) + a [m, k]
     * b [k, n]; strides in elements between rows and columns of a and b; each output is one chain of fused
     * multiply-adds in rising k. Rows [begin, end) of out. */
    void (*gemm_f32)(float *out, int64_t out_stride, const float *a, int64_t a_row, int64_t a_col,
                     const float *b, int64_t b_row, int64_t b_col, int64_t n, int64_t k, int64_t begin,
                     int64_t end, int accumulate);
    /* The same of bf16 numbers, or NULL where the set does not multiply them. a [m, k], b in pairs [k / 2
     * rounded up][n][2], a_row and b_row in numbers and in pairs; k is even, or both have a zero behind it.
     * Each output is one chain in rising k, two products an addition, subnormals taken for zero. */
    void (*gemm_bf16)(float *out, int64_t out_stride, const uint16_t *a, int64_t a_row, const uint32_t *b,
                      int64_t b_row, int64_t n, int64_t k, int64_t begin, int64_t end, int accumulate);
    /* A panel of f32 [n][QN_PANEL] as QN_PANEL rows of n, out_row apart; and as b of gemm_bf16 (NULL without
     * it): the pair of rows 2 i and 2 i + 1 is row i, the even one its lower half. */
    void (*panel_rows)(const float *panel, int64_t n, float *out, int64_t out_row);
    void (*panel_pairs)(const float *panel, int64_t n, uint32_t *out, int64_t out_row);
    /* out[r][c] = sum over t of w[t][c] x[r + t - kernel + 1][c], in rising t, of channels [begin, end). */
    void (*short_conv)(const qn_conv_args *a, int64_t begin, int64_t end);
    /* The gated delta rule (Yang et al. 2024), row by row, of columns [begin, end) of v:
     *     d = beta (v - exp(g) k S),  S = exp(g) S + k d^T,  out = q S
     * with sums over dk in rising order. */
    void (*gated_delta)(const qn_delta_args *a, int64_t begin, int64_t end);
    /* f16, bf16 <-> f32 rows. */
    void (*to_f32)(qn_dtype from, const void *x, float *out, int64_t n);
    void (*from_f32)(qn_dtype to, const float *x, void *out, int64_t n);
} qn_kernels;

/* A product of so few rows streams its weights, and is over before a worker could be put aside. */
enum { QN_FEW_ROWS = 16 };
/* Whether a call with so many rows first puts them in another form: such products should take few calls. */
int qn_matmul_reforms(const qn_kernels *k, qn_act act, int64_t n_rows);
/* Scratch bytes that one matmul call of at most so many rows needs. */
size_t qn_matmul_scratch_bytes(const qn_kernels *k, qn_dtype weight, qn_act act, int64_t n_in,
                               int64_t most_rows);
size_t qn_attend_scratch_bytes(qn_dtype dtype, int64_t head_dim, int64_t v_dim);
/* Whether queries and probabilities become 16-bit numbers for pages of dtype: BF16's for a set that
 * multiplies them, integers of 15 bits. */
int qn_attend_rounds(const qn_kernels *k, qn_dtype dtype);
/* BF16 for a set that multiplies it, else F16. */
qn_dtype qn_kv_fast(const qn_kernels *k);
/* Of n_pairs pairs of row and head in one group; a multiple of 64. */
size_t qn_attend_part_bytes(qn_dtype dtype, int64_t v_dim, int64_t n_pairs);

/* The best set of this machine, or the one that QUERN_CPU names (scalar, avx2, avx2_vnni, avx512, avx512_amx,
 * neon, neon_i8mm). QN_E_UNSUPPORTED when QUERN_CPU names an unknown set or one that this machine cannot run;
 * the message lists those it can. */
qn_status qn_kernels_get(const qn_kernels **out);
/* NULL: an unknown name, or a set that the system refuses to this process (dispatch.c: tiles). */
const qn_kernels *qn_kernels_by_name(const char *name);
/* Names of all sets this machine can run, best last; NULL-terminated. */
const char *const *qn_kernels_names(void);

#endif
