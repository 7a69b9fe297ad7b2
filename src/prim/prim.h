/* Primitives: their names, parameters and shape rules. */
#ifndef QN_PRIM_PRIM_H
#define QN_PRIM_PRIM_H

#include <quern/dtype.h>

#include "prim/shape.h"

typedef enum {
#define S(name) QN_PRIM_##name,
#define E(name, inputs) QN_PRIM_##name,
#define P(name, rows) QN_PRIM_##name,
#include "prim/primitives.def"
    QN_PRIM_COUNT
} qn_prim;

typedef enum { QN_CLASS_SOURCE, QN_CLASS_ELEMENTWISE, QN_CLASS_OTHER } qn_prim_class;

enum { QN_MAX_INPUTS = 10, QN_FUSED_MAX = 12, QN_SINKHORN_MAX = 8 };

/* State that outlives a run (KV pages, recurrent state): owned by a device, see device/device.h. */
struct qn_state;

/* Attention. With a state: writes k and v of its rows into the pages, then attends over the pages. Without:
 * ragged causal attention over k and v themselves, the only form with a gradient. Inputs: q [R, n_heads,
 * head_dim], k [R, kv_heads, head_dim], v [R, kv_heads, v_dim], positions [R] i32, row_begin [S + 1] i32
 * (rows of sequence s are row_begin[s] .. row_begin[s + 1], positions rise by 1 in them), blocks [S, 1 +
 * max_blocks] i32 (with a state only: first the number of pages that lie before the table, a multiple of 8 so
 * that groups of 256 positions stay where they are, then page ids), sinks [n_heads] (if has_sinks). A
 * state may say that values are parts of keys: then v must be the first v_dim dimensions of k. Output
 * [R, n_heads, v_dim].
 *
 * Over chosen blocks (block > 0): chosen [R, top] i32, the last input, has numbers of blocks of so many positions from
 * the first of the sequence on (in the ragged form, from its first row), in rising order, -1 behind the last. A row at p
 * sees the positions of these, as far as its window reaches, and unless no_tail those from its last whole block, of
 * which p + 1 is a multiple, on. A row that sees nothing gives 0. Not with whole or chunk. */
typedef struct {
    struct qn_state *state; /* NULL: ragged */
    int32_t layer;          /* within the state */
    int32_t is_written; /* 1: an earlier step wrote k and v of these rows into the pages; none are written */
    int32_t has_sinks;
    int32_t
        whole; /* 1: a row sees all rows of its sequence, those behind it too; with a window, which is for the
                       ragged form alone, a row at p sees (p - window, p + window) */
    int64_t window; /* a row at p sees (p - window, p]; 0: no window */
    int64_t
        chunk; /* > 0: positions are chunks of so many, and a row sees nothing before its own; not with whole */
    int64_t block;   /* > 0: positions of a block, and there is chosen */
    int32_t no_tail; /* with block */
    float scale, softcap;
} qn_params_attend;

/* INDEX_BLOCKS: the blocks that ATTEND's chosen names. Inputs: q [R, heads, d], k [R, d], positions, row_begin and
 * blocks as of ATTEND, weights [R, heads] (if has_weights). k of a block's last position is the block's key, and no
 * other row of k is looked at. A row's candidates are the blocks that it sees as a whole, and whose first position
 * lies in its window. Each scores sum over heads, in rising order, of weights[h] * relu(scale * q[h] . key); the top
 * best are chosen, of equal ones the lower numbers. Output i32 [R, top], rising, -1 behind the last. With a state k is
 * written into its pages first, which are of f32, with one key head of d and no values beside it; a row of k lies in
 * them as it is. */
typedef struct {
    struct qn_state *state; /* NULL: ragged */
    int32_t layer;
    int32_t has_weights, top;
    float scale;
    int64_t block, window; /* window 0: none */
} qn_params_index;

/* Losses of rows of a model's head: logsumexp(z) - z[target] with z = scale * row . each row of the head, or
 * softcap * tanh(z / softcap) of that; logits are never held whole. Inputs: rows [L, k], head [V, k] (packed
 * or plain f32), targets [L] or [L, 1] i32 in [0, V). Output [L, 1]. CROSS_ENTROPY_GRAD takes the losses and
 * their gradient [L, 1] behind these, and gives d rows, or d head [V, k] where the head is plain, summed over
 * rows in rising order. */
typedef struct {
    float scale, softcap; /* softcap 0: none */
    int32_t which;        /* CROSS_ENTROPY_GRAD: 0 d rows, 1 d head */
} qn_params_cross_entropy;

/* Low-rank additions to a product (Hu et al. 2021). Row r of the output is row r of y plus scale (x A^T) B of
 * pairs[adapters[r]], in f32 whatever the product was computed in: h = scale * (x . each row of A), then one
 * chain of multiply-adds that begins at y, in rising rank; times a gain of each output where the pair has one
 * (DoRA, Liu et al. 2024). Where adapters[r] is negative, or that pair has no
 * data, it is y bit for bit. The pairs are looked at in each run: they live as long as the program, and what
 * they hold may change between runs.
 *
 * EXPERTS_LORA: the same beside EXPERTS. x [R, n_in] or [R, top, n_in], y [R, top, n_out], ids [R, top] in [0,
 * n_experts), adapters [R]; a pair holds A and B of all experts, one after the other, and no gains. With shares [R,
 * top] behind them y is [R, n_out]: each product times its share is added, in rising order of the choices. */
struct qn_buffer;
enum { QN_LORA_RANK_MAX = 1024 };
typedef struct {
    const struct qn_buffer *data; /* plain f32; NULL: nothing is added */
    /* where A [rank, n_in], B [rank, n_out] and the gains [n_out] (< 0: none) begin in it, in elements */
    int64_t a, b, gain;
    int32_t rank; /* 1 to QN_LORA_RANK_MAX */
    float scale;
} qn_lora_pair;
typedef struct {
    const qn_lora_pair *pairs;
    int32_t n_pairs;
} qn_params_lora;
typedef struct {
    qn_params_lora lora;
    int32_t has_share;
    int64_t n_experts;
} qn_params_experts_lora;

/* Recurrent primitives. slots [S] i32 name the state row of each sequence; reset [S] i32 1: start from zero.
 * SHORT_CONV inputs: x [R, channels], w [kernel, channels], row_begin [S + 1], slots [S], reset [S]; output
 * like x. GATED_DELTA inputs: q, k [R, k_heads, dk], v [R, heads, dv] with as many heads to each of k_heads,
 * g [R, heads] (log decay), beta [R, heads], row_begin, slots, reset; output [R, heads, dv]. Per row: S = S
 * exp(g); S = S + k (beta (v - k S))^T; out = q S (Yang et al. 2024, gated delta net). g [R, heads, dk] has a
 * decay of each row of S, from 0 to 1, not its logarithm (Kimi delta attention). additive 1: S = S + k (beta v)^T, the
 * state space of Mamba-2 (Dao and Gu 2024). Without a state every
 * sequence starts from zero, there are no slots and no reset, and there is a gradient: SHORT_CONV_GRAD
 * inputs: x, w, row_begin, d_out; output like x or like w. GATED_DELTA_GRAD inputs: q, k, v, g, beta,
 * row_begin, d_out; output [R, ..]: dq, dk, dv, dg and dbeta of a row, one behind the other. */
typedef struct {
    struct qn_state *state; /* NULL: none */
    int32_t layer;
    int64_t offset;   /* in floats: where a slot of the layer holds this primitive's [kernel - 1, channels] or
                       [heads, dk, dv] */
    int32_t which;    /* SHORT_CONV_GRAD: 0 dx, 1 dw */
    int32_t additive; /* GATED_DELTA and its gradient */
} qn_params_recurrent;

/* Products of each row with the matrices that its ids name. EXPERTS: x [R, k] or [R, top, k], w [n_experts,
 * n, k], ids [R, top] i32, each at most once in a row, bias [n_experts, n] (if has_bias); output [R, top, n]:
 * out[r, j] = x[r] transpose(w[ids[r, j]]) + bias[ids[r, j]]. EXPERTS_SUM: x [R, top, k], w, ids, share [R,
 * top], bias; output [R, n], the sum of share[r, j] times such a product, from 0 on by rising id. */
typedef struct {
    int32_t has_bias;
} qn_params_experts;

/* Products with plain matrices that are chosen by ids [R, top] i32, each in [0, matrices). GATHER_MM: x [R, k] or
 * [R, top, k], w [matrices, n, k]; output [R, top, n]: out[r, j] = x[r] transpose(w[ids[r, j]]). Transposed, w is
 * [matrices, k, n], and each factor w[ids[r, j]] itself. SCATTER_MM: a [R, n] or [R, top, n], b [R, k] or [R, top,
 * k]; output [n_matrices, n, k]: matrix e is the sum of transpose(a[r, j]) b[r, j] where ids[r, j] is e, in rising
 * order of r and j. */
typedef struct {
    int32_t transposed; /* GATHER_MM */
    int64_t n_matrices; /* SCATTER_MM */
} qn_params_gather_mm;

/* COMPARE. GT and GE are LT and LE the other way round. */
typedef enum { QN_COMPARE_EQ, QN_COMPARE_NE, QN_COMPARE_LT, QN_COMPARE_LE } qn_comparison;
/* SCAN. */
typedef enum { QN_SCAN_SUM, QN_SCAN_PROD, QN_SCAN_MAX, QN_SCAN_MIN } qn_scan_how;

typedef struct {
    uint8_t op;  /* qn_prim, element-wise */
    int8_t a, b; /* >= 0: result of instruction a; < 0: input ~a */
} qn_fused_op;

typedef union {
    int64_t i[12];
    struct {
        int32_t perm[QN_MAX_DIMS];
    } transpose;
    /* Index i of the result's dimension d is begin[d] + i * step[d]; sizes come from the output's shape. Of
     * UPDATE: where the elements of update go. */
    struct {
        int64_t begin[QN_MAX_DIMS];
        int64_t step[QN_MAX_DIMS]; /* 0: 1 */
    } slice;
    struct {
        int64_t offset, stride[QN_MAX_DIMS]; /* in elements of the contiguous input */
    } strided;
    struct {
        int32_t axis;
        int32_t least; /* ARG_MAX: the smallest */
    } reduce;
    struct {
        int32_t axis, how /* qn_scan_how */, reverse;
        int32_t exclusive; /* without the element itself; the first is what the others start from */
    } scan;
    struct {
        int32_t which; /* qn_comparison */
    } compare;
    struct {
        int32_t falling; /* the largest first, equal ones still in their order */
    } sort;
    struct {
        int32_t stream; /* 0: numbers, 1: keys made of a key */
    } random;
    /* Each element is 0 with probability rate (in steps of 2^-16), else divided by 1 - rate: by 16 random
     * bits of its place, the stream and key[0], key[1]; all of x as it is where key[2] is 0. */
    struct {
        float rate; /* [0, 1) */
        int64_t stream;
    } dropout;
    struct {
        int32_t exact; /* f32 activations whatever the program's precision: for what decides, as routers do */
    } matmul;
    struct {
        float eps, offset; /* weight + offset is the factor */
    } norm;
    struct {
        int32_t rotary_dim, interleaved;
        float factor; /* of cosines and sines */
    } rope;
    struct {
        int32_t k, rising; /* rising 1: the k indices by themselves, not by their values */
    } top_k;
    struct {
        int64_t n;                 /* size of the dimension that is scattered into */
        int32_t sym[QN_SYM_COUNT]; /* and its symbols, where that is the first one */
    } scatter;
    struct {
        float eps;
        int32_t n_turns; /* >= 1 */
    } sinkhorn; /* m = softmax of rows + eps; m /= column sums + eps; then n_turns - 1 times m /= row sums + eps, m /=
                   column sums + eps. n is at most QN_SINKHORN_MAX */
    /* HASH_IDS: tokens[r, k] lies k places before the last token of row r's n-grams. From the first k > 0 on where it
     * is `end`, `end` stands in for all. Of the heads, as many for each m from 2 to n, head h of m gives offsets[h] plus
     * the remainder by sizes[h] of the xor of all tokens[r, k] * multipliers[k] with k < m, in 64 bits without a sign. */
    struct {
        int32_t end; /* not negative */
    } hash_ids;
    qn_params_attend attend;
    qn_params_index index;
    qn_params_cross_entropy cross_entropy;
    qn_params_recurrent recurrent;
    qn_params_lora lora;
    qn_params_experts_lora experts_lora;
    qn_params_experts experts;
    qn_params_gather_mm gather_mm;
    struct {
        int32_t n;
        qn_fused_op op[QN_FUSED_MAX];
    } fused;
} qn_params;

/* One application of a primitive, before it is computed. */
typedef struct {
    qn_prim prim;
    const qn_params *params;
    int n_in;
    const qn_shape *shape[QN_MAX_INPUTS];
    qn_dtype dtype[QN_MAX_INPUTS];
} qn_prim_call;

/* Checks a call and says what it returns. For RESHAPE, SLICE, STRIDED, BROADCAST, CAST and RANDOM *out_shape
 * or *out_dtype comes in as the wish. */
typedef qn_status qn_shape_rule(const qn_prim_call *call, qn_shape *out_shape, qn_dtype *out_dtype);

typedef struct {
    const char *name; /* "rms_norm" */
    qn_prim_class kind;
    int elementwise_inputs;
    int row_local;
    qn_shape_rule *rule; /* NULL: DATA and INPUT */
} qn_prim_info;

const qn_prim_info *qn_prim_get(qn_prim prim);
/* 1: an element-wise primitive that is computed in integers too (in all of f32 and f64). */
int qn_prim_takes_integers(qn_prim prim);

#endif
