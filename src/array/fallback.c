/* Fused primitives stated in smaller ones. The statement is the reference of tests, the gradient of
 * primitives that have no better rule, and the way out on a device that lacks the primitive: qn_apply builds
 * it there. */
#include <math.h>
#include <string.h>

#include "array/tape.h"

typedef qn_array *fallback(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in);

static qn_array *one_over(qn_scope *s, qn_array *x)
{
    return qn_div(s, qn_scalar(s, 1), x);
}

static qn_array *half_of(qn_scope *s, qn_array *x, qn_array *factor)
{
    return qn_mul(s, qn_scale(s, x, 0.5f), qn_add(s, factor, qn_scalar(s, 1)));
}

/* ---- element-wise ------------------------------------------------------------------------------------- */

static qn_array *fallback_NEG(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    return qn_scale(s, in[0], -1);
}

static qn_array *fallback_ABS(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    return qn_binary(s, QN_PRIM_MAXIMUM, in[0], qn_scale(s, in[0], -1));
}

static qn_array *fallback_RSQRT(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    return one_over(s, qn_unary(s, QN_PRIM_SQRT, in[0]));
}

static qn_array *fallback_SQUARE(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    return qn_mul(s, in[0], in[0]);
}

static qn_array *fallback_RECIP(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    return one_over(s, in[0]);
}

static qn_array *fallback_SIGMOID(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *e = qn_unary(s, QN_PRIM_EXP, qn_scale(s, in[0], -1));
    return one_over(s, qn_add(s, e, qn_scalar(s, 1)));
}

/* max(x, 0) + log(1 + exp(-|x|)): no overflow on either side */
static qn_array *fallback_SOFTPLUS(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *e = qn_unary(s, QN_PRIM_EXP, qn_scale(s, qn_unary(s, QN_PRIM_ABS, in[0]), -1));
    return qn_add(s, qn_unary(s, QN_PRIM_RELU, in[0]),
                  qn_unary(s, QN_PRIM_LOG, qn_add(s, e, qn_scalar(s, 1))));
}

static qn_array *fallback_SILU(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    return qn_mul(s, in[0], qn_unary(s, QN_PRIM_SIGMOID, in[0]));
}

static qn_array *fallback_GELU(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    return half_of(s, in[0], qn_unary(s, QN_PRIM_ERF, qn_scale(s, in[0], 0.70710678118654752)));
}

static qn_array *fallback_GELU_TANH(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *inner =
        qn_add(s, qn_scale(s, qn_unary(s, QN_PRIM_SQUARE, in[0]), 0.044715), qn_number_like(s, in[0], 1));
    inner = qn_scale(s, qn_mul(s, in[0], inner), 0.79788456080286536);
    return half_of(s, in[0], qn_unary(s, QN_PRIM_TANH, inner));
}

static qn_array *fallback_RELU(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    return qn_binary(s, QN_PRIM_MAXIMUM, in[0], qn_scalar(s, 0));
}

/* What 1 + x loses of x is made good by a factor (Kahan). */
static qn_array *fallback_LOG1P(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *x = in[0], *one = qn_number_like(s, x, 1), *u = qn_add(s, x, one), *d = qn_sub(s, u, one);
    qn_array *log = qn_unary(s, QN_PRIM_LOG, u);
    qn_array *r =
        qn_where(s, qn_lt(s, u, qn_number_like(s, x, INFINITY)), qn_mul(s, log, qn_div(s, x, d)), log);
    return qn_where(s, qn_eq(s, u, one), x, r);
}

static qn_array *fallback_EXPM1(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *x = in[0], *one = qn_number_like(s, x, 1), *u = qn_unary(s, QN_PRIM_EXP, x),
             *d = qn_sub(s, u, one);
    qn_array *r = qn_mul(s, d, qn_div(s, x, qn_unary(s, QN_PRIM_LOG, u)));
    r = qn_where(s, qn_lt(s, u, qn_number_like(s, x, INFINITY)), r, u);
    r = qn_where(s, qn_eq(s, d, qn_number_like(s, x, -1)), d, r);
    return qn_where(s, qn_eq(s, u, one), x, r);
}

static qn_array *fallback_SUB(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    return qn_add(s, in[0], qn_unary(s, QN_PRIM_NEG, in[1]));
}

static qn_array *fallback_MINIMUM(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *high = qn_binary(s, QN_PRIM_MAXIMUM, qn_scale(s, in[0], -1), qn_scale(s, in[1], -1));
    return qn_scale(s, high, -1);
}

/* ---- along an axis ------------------------------------------------------------------------------------ */

static qn_array *piece(qn_scope *s, qn_array *x, int axis, int64_t begin, int64_t length)
{
    if (!x) return NULL;
    qn_params p = {0};
    qn_shape shape = x->shape;
    p.slice.begin[axis] = begin;
    shape.dim[axis] = length;
    return qn_apply(s, QN_PRIM_SLICE, &p, 1, &x, &shape, QN_DTYPE_F32);
}

/* Halves multiplied with each other, until one number is left. */
static qn_array *fallback_PROD(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *x = in[0];
    const int axis = p->reduce.axis;
    if (x->shape.dim[axis] == 0) {
        qn_shape one = x->shape;
        one.dim[axis] = 1;
        return qn_broadcast_sym(s, qn_full(s, x->dtype, 0, NULL, 1), one);
    }
    while (x && x->shape.dim[axis] > 1) {
        const int64_t n = x->shape.dim[axis], half = n / 2;
        qn_array *product = qn_mul(s, piece(s, x, axis, 0, half), piece(s, x, axis, half, half));
        if (n % 2) {
            qn_array *first = qn_mul(s, piece(s, product, axis, 0, 1), piece(s, x, axis, n - 1, 1));
            qn_params at = {0};
            product = qn_apply(s, QN_PRIM_UPDATE, &at, 2, (qn_array *[]){product, first}, NULL, QN_DTYPE_F32);
        }
        x = product;
    }
    return x;
}

/* x moved by n places along an axis; what comes in is the number that changes nothing. */
static qn_array *moved(qn_scope *s, const qn_params *p, qn_array *x, int64_t n)
{
    static const double neutral[] = {
        [QN_SCAN_SUM] = 0, [QN_SCAN_PROD] = 1, [QN_SCAN_MAX] = -INFINITY, [QN_SCAN_MIN] = INFINITY};
    if (!x) return NULL;
    const int axis = p->scan.axis;
    const int64_t left = x->shape.dim[axis] - n;
    qn_params at = {0};
    if (!p->scan.reverse) at.slice.begin[axis] = n;
    qn_array *in[2] = {qn_broadcast_sym(s, qn_full(s, x->dtype, 0, NULL, neutral[p->scan.how]), x->shape),
                       piece(s, x, axis, p->scan.reverse ? n : 0, left)};
    return qn_apply(s, QN_PRIM_UPDATE, &at, 2, in, NULL, QN_DTYPE_F32);
}

/* Each element with the one 1, 2, 4, .. places before (Hillis and Steele 1986). */
static qn_array *fallback_SCAN(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    static const qn_prim join[] = {[QN_SCAN_SUM] = QN_PRIM_ADD,
                                   [QN_SCAN_PROD] = QN_PRIM_MUL,
                                   [QN_SCAN_MAX] = QN_PRIM_MAXIMUM,
                                   [QN_SCAN_MIN] = QN_PRIM_MINIMUM};
    const int64_t n = in[0]->shape.dim[p->scan.axis];
    qn_array *x = p->scan.exclusive && n > 0 ? moved(s, p, in[0], 1) : in[0];
    for (int64_t step = 1; step < n; step *= 2) x = qn_binary(s, join[p->scan.how], x, moved(s, p, x, step));
    return x;
}

/* ---- rows --------------------------------------------------------------------------------------------- */

static qn_array *mean(qn_scope *s, qn_array *x)
{
    int last = x ? x->shape.n - 1 : 0;
    return x ? qn_scale(s, qn_sum(s, x, last), 1.0 / (double)x->shape.dim[last]) : NULL;
}

/* x / sqrt(mean(x^2) + eps) */
static qn_array *normed(qn_scope *s, qn_array *x, float eps)
{
    qn_array *m = qn_add(s, mean(s, qn_unary(s, QN_PRIM_SQUARE, x)), qn_scalar(s, eps));
    return qn_mul(s, x, qn_unary(s, QN_PRIM_RSQRT, m));
}

static qn_array *fallback_SOFTMAX(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    int last = in[0]->shape.n - 1;
    qn_array *e = qn_unary(s, QN_PRIM_EXP, qn_sub(s, in[0], qn_max(s, in[0], last)));
    return qn_div(s, e, qn_sum(s, e, last));
}

static qn_array *fallback_SINKHORN(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    const int last = in[0]->shape.n - 1;
    qn_array *eps = qn_scalar(s, p->sinkhorn.eps), *m = qn_add(s, qn_softmax(s, in[0]), eps);
    m = qn_div(s, m, qn_add(s, qn_sum(s, m, last - 1), eps));
    for (int32_t i = 1; i < p->sinkhorn.n_turns; i++) {
        m = qn_div(s, m, qn_add(s, qn_sum(s, m, last), eps));
        m = qn_div(s, m, qn_add(s, qn_sum(s, m, last - 1), eps));
    }
    return m;
}

static qn_array *fallback_RMS_NORM(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *x = normed(s, in[0], p->norm.eps);
    if (n_in < 2) return x;
    return qn_mul(s, x, p->norm.offset != 0 ? qn_add(s, in[1], qn_scalar(s, p->norm.offset)) : in[1]);
}

/* With r = 1 / sqrt(mean(x^2) + eps) and h the gradient by x r: r h - x r^3 mean(h x). */
static qn_array *fallback_RMS_NORM_GRAD(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *x = in[0], *h = in[1];
    if (n_in > 2)
        h = qn_mul(s, h, p->norm.offset != 0 ? qn_add(s, in[2], qn_scalar(s, p->norm.offset)) : in[2]);
    qn_array *m = qn_add(s, mean(s, qn_unary(s, QN_PRIM_SQUARE, x)), qn_scalar(s, p->norm.eps));
    qn_array *r = qn_unary(s, QN_PRIM_RSQRT, m), *c = qn_div(s, qn_mul(s, r, mean(s, qn_mul(s, h, x))), m);
    return qn_sub(s, qn_mul(s, h, r), qn_mul(s, x, c));
}

static qn_array *fallback_LAYER_NORM(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *x = normed(s, qn_sub(s, in[0], mean(s, in[0])), p->norm.eps);
    if (n_in > 1) x = qn_mul(s, x, in[1]);
    return n_in > 2 ? qn_add(s, x, in[2]) : x;
}

/* Pairs (u, v) -> (u cos - v sin, v cos + u sin); pairs are the halves of the first rotary dimensions, or
 * neighbours when interleaved. */
static qn_array *fallback_ROPE(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    int64_t heads = in[0]->shape.dim[1], dim = in[0]->shape.dim[2], rotary = in[1]->shape.dim[1],
            half = rotary / 2;
    int64_t neighbours[3] = {heads, half, 2};
    qn_array *x = qn_slice_last(s, in[0], 0, rotary), *u, *v, *parts[2];
    qn_array *angles = qn_reshape_rows(s, in[1], 2, (int64_t[]){1, rotary});
    qn_array *cosine = qn_slice_last(s, angles, 0, half), *sine = qn_slice_last(s, angles, half, half);
    if (p->rope.interleaved) {
        x = qn_reshape_rows(s, x, 3, neighbours);
        u = qn_reshape_rows(s, qn_slice_last(s, x, 0, 1), 2, neighbours);
        v = qn_reshape_rows(s, qn_slice_last(s, x, 1, 1), 2, neighbours);
    } else {
        u = qn_slice_last(s, x, 0, half);
        v = qn_slice_last(s, x, half, half);
    }
    parts[0] = qn_sub(s, qn_mul(s, u, cosine), qn_mul(s, v, sine));
    parts[1] = qn_add(s, qn_mul(s, v, cosine), qn_mul(s, u, sine));
    if (p->rope.interleaved) {
        int64_t single[3] = {heads, half, 1}, line[2] = {heads, rotary};
        for (int i = 0; i < 2; i++) parts[i] = qn_reshape_rows(s, parts[i], 3, single);
        x = qn_reshape_rows(s, qn_concat(s, 2, parts), 2, line);
    } else {
        x = qn_concat(s, 2, parts);
    }
    if (rotary == dim) return x;
    return qn_concat(s, 2, (qn_array *[]){x, qn_slice_last(s, in[0], rotary, dim - rotary)});
}

static qn_array *fallback_EXPERTS_SUM(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *y = qn_experts(s, in[0], in[1], in[2], p->experts.has_bias ? in[4] : NULL);
    int64_t top = in[2]->shape.dim[1], n = in[1]->shape.dim[1];
    y = qn_mul(s, y, qn_reshape_rows(s, in[3], 2, (int64_t[]){top, 1}));
    return qn_reshape_rows(s, qn_sum(s, y, 1), 1, &n);
}

/* One row for each pair of row and choice: [R top, ..] of [R, top, ..]. */
static qn_array *by_pair(qn_scope *s, qn_array *a)
{
    if (!a) return NULL;
    qn_shape shape = a->shape;
    shape.dim[0] *= shape.dim[1];
    for (int i = 0; i < QN_SYM_COUNT; i++) shape.sym[i] *= (int32_t)shape.dim[1];
    for (int d = 1; d < shape.n - 1; d++) shape.dim[d] = shape.dim[d + 1];
    shape.n--;
    return qn_reshape_sym(s, a, shape);
}

/* x [R, k] or [R, top, k] as [R top, k]. */
static qn_array *vectors_by_pair(qn_scope *s, qn_array *x, const qn_array *ids)
{
    if (!x || x->shape.n == 3) return by_pair(s, x);
    qn_shape shape = ids->shape;
    shape.n = 3;
    shape.dim[2] = x->shape.dim[1];
    return by_pair(s, qn_broadcast_sym(s, qn_reshape_rows(s, x, 2, (int64_t[]){1, shape.dim[2]}), shape));
}

static qn_array *fallback_GATHER_MM(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    const int64_t rows = in[1]->shape.dim[1], columns = in[1]->shape.dim[2];
    const int transposed = p->gather_mm.transposed != 0;
    qn_array *x = vectors_by_pair(s, in[0], in[2]), *w = in[1];
    w = qn_reshape_sym(s, w, qn_shape_make(2, (int64_t[]){w->shape.dim[0], rows * columns}));
    w = qn_reshape_rows(s, qn_take(s, w, by_pair(s, in[2])), 2, (int64_t[]){rows, columns});
    qn_shape out = in[2]->shape;
    out.n = 3;
    out.dim[2] = transposed ? columns : rows;
    x = qn_reshape_rows(s, x, 2, transposed ? (int64_t[]){1, rows} : (int64_t[]){columns, 1});
    return qn_reshape_sym(s, transposed ? qn_matmul(s, x, w) : qn_matmul(s, w, x), out);
}

static qn_array *fallback_SCATTER_MM(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *a = vectors_by_pair(s, in[0], in[2]), *b = vectors_by_pair(s, in[1], in[2]);
    if (!a || !b) return NULL;
    const int64_t n = a->shape.dim[1], k = b->shape.dim[1], both = n * k;
    a = qn_mul(s, qn_reshape_rows(s, a, 2, (int64_t[]){n, 1}), qn_reshape_rows(s, b, 2, (int64_t[]){1, k}));
    qn_params to = {.scatter = {.n = p->gather_mm.n_matrices}};
    qn_array *pair[2] = {qn_reshape_rows(s, a, 1, &both), by_pair(s, in[2])};
    a = qn_apply(s, QN_PRIM_SCATTER_ADD, &to, 2, pair, NULL, QN_DTYPE_F32);
    return qn_reshape_sym(s, a, qn_shape_make(3, (int64_t[]){to.scatter.n, n, k}));
}

/* tanh(scale * x . head / softcap) in *tanh, NULL without a cap; returns the logits. */
static qn_array *head_logits(qn_scope *s, const qn_params *p, qn_array *const *in, qn_array **tanh)
{
    const float cap = p->cross_entropy.softcap;
    qn_array *z = qn_scale(s, qn_linear(s, in[0], in[1]), p->cross_entropy.scale);
    *tanh = cap > 0 ? qn_unary(s, QN_PRIM_TANH, qn_scale(s, z, 1 / cap)) : NULL;
    return *tanh ? qn_scale(s, *tanh, cap) : z;
}

static qn_array *as_column(qn_scope *s, qn_array *targets)
{
    const int64_t one = 1;
    return targets->shape.n == 2 ? targets : qn_reshape_rows(s, targets, 1, &one);
}

static qn_array *fallback_CROSS_ENTROPY(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *tanh, *z = head_logits(s, p, in, &tanh);
    return qn_sub(s, qn_logsumexp(s, z), qn_take_along(s, z, as_column(s, in[2])));
}

/* g (softmax - 1 at the target) times what the cap and the scale make of it, and the product's own gradient.
 */
static qn_array *fallback_CROSS_ENTROPY_GRAD(qn_scope *s, const qn_params *p, int n_in, qn_array *const *in)
{
    qn_array *tanh, *z = head_logits(s, p, in, &tanh), *targets = as_column(s, in[2]);
    qn_array *total = qn_add(s, in[3], qn_take_along(s, z, targets));
    qn_array *d = qn_mul(s, qn_unary(s, QN_PRIM_EXP, qn_sub(s, z, total)), in[4]);
    qn_params at = {.scatter = {.n = in[1]->shape.dim[0]}};
    d = qn_sub(
        s, d, qn_apply(s, QN_PRIM_SCATTER_ALONG, &at, 2, (qn_array *[]){in[4], targets}, NULL, QN_DTYPE_F32));
    if (tanh) d = qn_mul(s, d, qn_sub(s, qn_scalar(s, 1), qn_unary(s, QN_PRIM_SQUARE, tanh)));
    d = qn_scale(s, d, p->cross_entropy.scale);
    return p->cross_entropy.which ? qn_binary(s, QN_PRIM_MATMUL_ROWS, d, in[0]) : qn_matmul(s, d, in[1]);
}

/* What others are stated in. */
#define BASIC QN_NONE("others are stated in it")
#define SOURCE QN_NONE("a source or a view: no device computes it")
#define fallback_DATA SOURCE
#define fallback_INPUT SOURCE
#define fallback_RESHAPE SOURCE
#define fallback_TRANSPOSE SOURCE
#define fallback_SLICE SOURCE
#define fallback_STRIDED SOURCE
#define fallback_BROADCAST SOURCE
#define fallback_EXP BASIC
#define fallback_LOG BASIC
#define fallback_SQRT BASIC
#define fallback_SIN BASIC
#define fallback_COS BASIC
#define fallback_TANH BASIC
#define fallback_ERF BASIC
#define fallback_FLOOR BASIC
#define fallback_ROUND BASIC
#define fallback_ADD BASIC
#define fallback_MUL BASIC
#define fallback_DIV BASIC
#define fallback_MAXIMUM BASIC
#define fallback_POW BASIC
#define fallback_FUSED QN_NONE("the planner makes it of primitives that the device has")
#define fallback_COPY BASIC
#define fallback_CAST BASIC
#define fallback_DROPOUT QN_NONE("random bits are integers")
#define fallback_CONCAT BASIC
#define fallback_SUM BASIC
#define fallback_MAX BASIC
#define fallback_MIN BASIC
#define fallback_COMPARE BASIC
#define fallback_SELECT BASIC
#define fallback_ARG_MAX BASIC
#define fallback_ARG_SORT BASIC
#define fallback_LAST_WRITER BASIC
#define fallback_HASH_IDS BASIC
#define fallback_UPDATE BASIC
#define fallback_RANDOM QN_NONE("random bits are integers")
#define fallback_ROPE_TABLE BASIC
#define fallback_MATMUL BASIC
#define fallback_MATMUL_ROWS BASIC
#define fallback_TAKE BASIC
#define fallback_SCATTER_ADD BASIC
#define fallback_TAKE_ALONG BASIC
#define fallback_SCATTER_ALONG BASIC
#define fallback_TOP_K BASIC
/* Their masks depend on data (row_begin), their state on earlier runs: no smaller primitives can say it. */
#define RAGGED QN_NONE("which rows belong together is data, and its state outlives a run")
#define fallback_ATTEND RAGGED
#define fallback_ATTEND_GRAD RAGGED
#define fallback_INDEX_BLOCKS RAGGED
#define fallback_LORA QN_NONE("which pair a row takes is data")
#define fallback_EXPERTS_LORA QN_NONE("which pair and which matrices a row takes is data")
#define fallback_EXPERTS QN_NONE("which matrices a row takes is data")
#define fallback_EXPERTS_GRAD QN_NONE("which matrices a row takes is data")
#define fallback_SHORT_CONV RAGGED
#define fallback_SHORT_CONV_GRAD RAGGED
#define fallback_GATED_DELTA RAGGED
#define fallback_GATED_DELTA_GRAD RAGGED

typedef struct {
    fallback *rule;
    int by_fallback;
    const char *none;
} entry;

static const entry table[QN_PRIM_COUNT] = {
#define S(name) [QN_PRIM_##name] = {.rule = fallback_##name},
#define E(name, inputs) [QN_PRIM_##name] = {.rule = fallback_##name},
#define P(name, rows) [QN_PRIM_##name] = {.rule = fallback_##name},
#include "prim/primitives.def"
};

qn_stated qn_fallback_stated(qn_prim prim, const char **why)
{
    const entry *e = &table[prim];
    *why = e->none;
    return e->rule          ? QN_BY_RULE
           : e->by_fallback ? QN_BY_ITS_FALLBACK
           : e->none        ? QN_STATED_NONE
                            : QN_UNSTATED;
}

qn_array *qn_fallback(qn_scope *s, qn_prim prim, const qn_params *params, int n_in, qn_array *const *in)
{
    return table[prim].rule ? table[prim].rule(s, params, n_in, in) : NULL;
}
