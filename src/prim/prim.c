#include "prim/prim.h"

#include <string.h>

#include "base/checked.h"
#include "prim/dtype.h"
#include "prim/rules.h"

static int is_float(qn_dtype d)
{
    return d == QN_DTYPE_F32;
}

#define ARITY(want) \
    if (c->n_in != (want)) return qn_rule_bad(c, "wrong number of inputs")
#define NEED(condition, why) \
    if (!(condition)) return qn_rule_bad(c, why)

int qn_prim_takes_integers(qn_prim prim)
{
    switch (prim) {
    case QN_PRIM_NEG:
    case QN_PRIM_ABS:
    case QN_PRIM_SQUARE:
    case QN_PRIM_RELU:
    case QN_PRIM_FLOOR:
    case QN_PRIM_ROUND:
    case QN_PRIM_ADD:
    case QN_PRIM_SUB:
    case QN_PRIM_MUL:
    case QN_PRIM_DIV:
    case QN_PRIM_MAXIMUM:
    case QN_PRIM_MINIMUM:
    case QN_PRIM_POW:
        return 1;
    default:
        return 0;
    }
}

/* What arithmetic is done in: bool has extremes alone, f16 and bf16 are cast to f32 by who builds. */
static int is_computed(qn_prim prim, qn_dtype d)
{
    if (d == QN_DTYPE_BOOL) return prim == QN_PRIM_MAXIMUM || prim == QN_PRIM_MINIMUM;
    return d == QN_DTYPE_F32 || d == QN_DTYPE_F64 || (d < QN_DTYPE_F16 && qn_prim_takes_integers(prim));
}

static qn_status rule_elementwise(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(qn_prim_get(c->prim)->elementwise_inputs);
    for (int i = 0; i < c->n_in; i++)
        NEED(c->dtype[i] == c->dtype[0] && is_computed(c->prim, c->dtype[i]),
             "inputs must have the same supported type");
    qn_shape s = *c->shape[0];
    if (c->n_in == 2) QN_TRY(qn_shape_broadcast(c->shape[0], c->shape[1], &s));
    *shape = s;
    *dtype = c->dtype[0];
    return QN_OK;
}

static int elements_as_lines(const qn_shape *a, int64_t out[4])
{
    int64_t row = qn_shape_row(a);
    if (a->n == 0) {
        out[0] = 1;
        out[1] = out[2] = out[3] = 0;
        return 1;
    }
    if (!qn_mul_i64(a->dim[0], row, &out[0])) return 0;
    for (int k = 0; k < QN_SYM_COUNT; k++) out[k + 1] = a->sym[k] * row;
    return 1;
}

static qn_status rule_RESHAPE(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    int64_t a[4], b[4];
    NEED(elements_as_lines(c->shape[0], a) && elements_as_lines(shape, b) && memcmp(a, b, sizeof a) == 0,
         "the number of elements must stay the same");
    *dtype = c->dtype[0];
    return QN_OK;
}

static qn_status rule_TRANSPOSE(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    const int32_t *perm = c->params->transpose.perm;
    qn_shape s = {.n = c->shape[0]->n};
    int seen = 0;
    for (int i = 0; i < s.n; i++) {
        NEED(perm[i] >= 0 && perm[i] < s.n && !(seen >> perm[i] & 1), "not a permutation");
        seen |= 1 << perm[i];
        s.dim[i] = c->shape[0]->dim[perm[i]];
    }
    if (s.n && qn_shape_is_symbolic(c->shape[0])) {
        NEED(perm[0] == 0, "a symbolic dimension must stay first");
        memcpy(s.sym, c->shape[0]->sym, sizeof s.sym);
    }
    *shape = s;
    *dtype = c->dtype[0];
    return QN_OK;
}

static qn_status rule_SLICE(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    const qn_shape *a = c->shape[0];
    NEED(shape->n == a->n, "the number of dimensions must stay the same");
    for (int i = 0; i < a->n; i++) {
        const int64_t begin = c->params->slice.begin[i], step = c->params->slice.step[i];
        int64_t reach;
        if (i == 0 && qn_shape_is_symbolic(a)) {
            NEED(begin == 0 && (step == 0 || step == 1) && shape->dim[0] == a->dim[0] &&
                     memcmp(shape->sym, a->sym, sizeof a->sym) == 0,
                 "a symbolic dimension must be taken whole");
            continue;
        }
        if (shape->dim[i] == 0 && begin >= 0 && begin <= a->dim[i]) continue;
        NEED(shape->dim[i] > 0 && begin >= 0 && begin < a->dim[i] && step > INT64_MIN &&
                 qn_mul_i64(shape->dim[i] - 1,
                            step < 0 ? -step
                            : step   ? step
                                     : 1,
                            &reach) &&
                 (step < 0 ? reach <= begin : reach < a->dim[i] - begin),
             "the range is outside the array");
    }
    *dtype = c->dtype[0];
    return QN_OK;
}

static qn_status rule_BROADCAST(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    qn_shape s;
    QN_TRY(qn_shape_broadcast(c->shape[0], shape, &s));
    NEED(qn_shape_equal(&s, shape), "does not fit the requested shape");
    *dtype = c->dtype[0];
    return QN_OK;
}

static qn_status rule_FUSED(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    return qn_rule_bad(c, "only the planner may make it");
}

static qn_status rule_COPY(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    *shape = *c->shape[0];
    *dtype = c->dtype[0];
    return QN_OK;
}

static qn_status rule_CAST(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    NEED(*dtype <= QN_DTYPE_F64, "gives plain types only");
    *shape = *c->shape[0];
    return QN_OK;
}

static qn_status rule_DROPOUT(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(2);
    NEED(is_float(c->dtype[0]) && c->shape[0]->n > 0 && c->dtype[1] == QN_DTYPE_I32 && c->shape[1]->n == 1 &&
             c->shape[1]->dim[0] == 3,
         "takes x [R, ..] and key [3] i32");
    NEED(c->params->dropout.rate >= 0 && c->params->dropout.rate < 1, "takes a rate from 0 to below 1");
    *shape = *c->shape[0];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_CONCAT(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in >= 1, "no inputs");
    qn_shape s = *c->shape[0];
    NEED(s.n >= 1, "a scalar");
    for (int i = 1; i < c->n_in; i++) {
        qn_shape other = *c->shape[i];
        NEED(other.n == s.n && c->dtype[i] == c->dtype[0], "inputs differ in dimensions or dtype");
        int64_t last = other.dim[s.n - 1], sum;
        other.dim[s.n - 1] = s.dim[s.n - 1];
        NEED(qn_shape_equal(&other, &s) && !(s.n == 1 && qn_shape_is_symbolic(&s)),
             "only the last dimension may differ");
        NEED(qn_add_i64(s.dim[s.n - 1], last, &sum), "too large");
        s.dim[s.n - 1] = sum;
    }
    *shape = s;
    *dtype = c->dtype[0];
    return QN_OK;
}

static int is_plain_number(qn_dtype d)
{
    return d <= QN_DTYPE_F64 && d != QN_DTYPE_F16 && d != QN_DTYPE_BF16;
}

static qn_status rule_reduce(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    const int axis = c->params->reduce.axis;
    NEED(is_plain_number(c->dtype[0]) && axis >= 0 && axis < c->shape[0]->n,
         "the axis does not exist, or the type is f16 or bf16");
    *shape = *c->shape[0];
    shape->dim[axis] = 1;
    if (axis == 0) memset(shape->sym, 0, sizeof shape->sym);
    *dtype = c->dtype[0];
    return QN_OK;
}

/* Of no numbers there is a sum and a product, but no largest. */
static qn_status rule_extreme(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    QN_TRY(rule_reduce(c, shape, dtype));
    const int axis = c->params->reduce.axis;
    NEED(c->shape[0]->dim[axis] > 0 || (axis == 0 && qn_shape_is_symbolic(c->shape[0])),
         "the axis has no elements");
    return QN_OK;
}

static qn_status rule_SUM(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    return rule_reduce(c, shape, dtype);
}

static qn_status rule_PROD(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    return rule_reduce(c, shape, dtype);
}

static qn_status rule_MAX(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    return rule_extreme(c, shape, dtype);
}

static qn_status rule_MIN(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    return rule_extreme(c, shape, dtype);
}

static qn_status rule_SOFTMAX(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    NEED(is_float(c->dtype[0]) && c->shape[0]->n >= 1, "needs f32 with a last dimension");
    *shape = *c->shape[0];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_SINKHORN(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    const qn_shape *x = c->shape[0];
    NEED(is_float(c->dtype[0]) && x->n >= 3, "needs f32 of three dimensions or more");
    NEED(x->dim[x->n - 1] == x->dim[x->n - 2] && x->dim[x->n - 1] <= QN_SINKHORN_MAX,
         "the last two dimensions must be the same and at most 8");
    NEED(c->params->sinkhorn.n_turns >= 1, "n_turns must be positive");
    *shape = *x;
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_norm(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    const qn_shape *x = c->shape[0];
    NEED(is_float(c->dtype[0]) && x->n >= 1, "needs f32 with a last dimension");
    for (int i = 1; i < c->n_in; i++)
        NEED(is_float(c->dtype[i]) && c->shape[i]->n == 1 && c->shape[i]->dim[0] == x->dim[x->n - 1],
             "weight and last dimension differ");
    *shape = *x;
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_RMS_NORM(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in == 1 || c->n_in == 2, "wrong number of inputs");
    return rule_norm(c, shape, dtype);
}

static qn_status rule_RMS_NORM_GRAD(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in == 2 || c->n_in == 3, "wrong number of inputs");
    const qn_shape *x = c->shape[0];
    NEED(is_float(c->dtype[0]) && is_float(c->dtype[1]) && x->n >= 1 && qn_shape_equal(x, c->shape[1]),
         "needs f32 and a gradient of its shape");
    NEED(c->n_in == 2 ||
             (is_float(c->dtype[2]) && c->shape[2]->n == 1 && c->shape[2]->dim[0] == x->dim[x->n - 1]),
         "weight and last dimension differ");
    *shape = *x;
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_LAYER_NORM(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    NEED(c->n_in >= 1 && c->n_in <= 3, "wrong number of inputs");
    return rule_norm(c, shape, dtype);
}

static int same_rows(const qn_shape *a, const qn_shape *b)
{
    return a->n >= 1 && b->n >= 1 && a->dim[0] == b->dim[0] && memcmp(a->sym, b->sym, sizeof a->sym) == 0;
}

static qn_status rule_ROPE_TABLE(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(2);
    NEED(c->dtype[0] == QN_DTYPE_I32 && c->shape[0]->n == 1 && is_float(c->dtype[1]) && c->shape[1]->n == 1,
         "takes positions [R] i32 and frequencies [n] f32");
    *shape = *c->shape[0];
    shape->n = 2;
    shape->dim[1] = 2 * c->shape[1]->dim[0];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_ROPE(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(2);
    const qn_shape *x = c->shape[0], *table = c->shape[1];
    NEED(is_float(c->dtype[0]) && is_float(c->dtype[1]) && x->n == 3 && table->n == 2 &&
             same_rows(x, table) && table->dim[1] <= x->dim[2] && table->dim[1] % 2 == 0,
         "takes x [R, heads, head_dim] and its table [R, rotary_dim]");
    *shape = *x;
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

/* Computed as such, into f32. */
static int is_bf16_product(const qn_prim_call *c)
{
    return c->dtype[0] == QN_DTYPE_BF16 && c->dtype[1] == QN_DTYPE_BF16;
}

static qn_status rule_MATMUL(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(2);
    const qn_shape *a = c->shape[0], *b = c->shape[1];
    NEED(a->n >= 2 && (b->n == 2 || b->n == a->n) &&
             (is_float(c->dtype[0]) || is_bf16_product(c) ||
              (is_plain_number(c->dtype[0]) && c->dtype[0] == c->dtype[1])),
         "needs matrices, the first f32 or both of one type, not f16");
    NEED(a->dim[a->n - 1] == b->dim[b->n - 2] && !(b->n == 2 && qn_shape_is_symbolic(b)),
         "inner dimensions differ");
    qn_shape s = *a;
    s.dim[s.n - 1] = b->dim[b->n - 1];
    if (b->n > 2) {
        NEED(same_rows(a, b), "batches differ");
        for (int i = 1; i < a->n - 2; i++) NEED(a->dim[i] == b->dim[i], "batches differ");
    }
    *shape = s;
    *dtype = is_bf16_product(c) ? QN_DTYPE_F32 : c->dtype[0];
    return QN_OK;
}

static qn_status rule_MATMUL_ROWS(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(2);
    const qn_shape *a = c->shape[0], *b = c->shape[1];
    NEED(is_plain_number(c->dtype[0]) && c->dtype[0] == c->dtype[1] && a->n == 2 && b->n == 2 &&
             same_rows(a, b),
         "takes a [R, k] and b [R, n] of one type");
    *shape = qn_shape_make(2, (int64_t[]){a->dim[1], b->dim[1]});
    *dtype = c->dtype[0];
    return QN_OK;
}

static qn_status rule_TAKE(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(2);
    const qn_shape *table = c->shape[0], *ids = c->shape[1];
    NEED(table->n >= 1 && ids->n == 1 && c->dtype[1] == QN_DTYPE_I32, "takes a table and ids [R] i32");
    qn_shape s = *ids;
    s.n = table->n;
    for (int i = 1; i < s.n; i++) s.dim[i] = table->dim[i];
    *shape = s;
    *dtype = c->dtype[0] <= QN_DTYPE_F64 && c->dtype[0] != QN_DTYPE_F16 && c->dtype[0] != QN_DTYPE_BF16
                 ? c->dtype[0]
                 : QN_DTYPE_F32; /* rows of weights, packed or not */
    return QN_OK;
}

static qn_status rule_SCATTER_ADD(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(2);
    NEED(is_plain_number(c->dtype[0]) && c->dtype[1] == QN_DTYPE_I32 && c->shape[1]->n == 1 &&
             same_rows(c->shape[0], c->shape[1]),
         "takes rows [R, ..] and ids [R] i32");
    *shape = *c->shape[0];
    memcpy(shape->sym, c->params->scatter.sym, sizeof shape->sym);
    shape->dim[0] = c->params->scatter.n;
    *dtype = c->dtype[0];
    return QN_OK;
}

static qn_status rule_TAKE_ALONG(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(2);
    NEED(qn_dtype_is_plain(c->dtype[0]) && c->dtype[1] == QN_DTYPE_I32 && c->shape[0]->n == 2 &&
             c->shape[1]->n == 2 && same_rows(c->shape[0], c->shape[1]),
         "takes x [R, n] and ids [R, k] i32");
    *shape = *c->shape[1];
    *dtype = c->dtype[0];
    return QN_OK;
}

static qn_status rule_SCATTER_ALONG(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(2);
    NEED(is_plain_number(c->dtype[0]) && c->dtype[1] == QN_DTYPE_I32 && c->shape[0]->n == 2 &&
             qn_shape_equal(c->shape[0], c->shape[1]),
         "takes x [R, k] and ids [R, k] i32");
    *shape = *c->shape[0];
    shape->dim[1] = c->params->scatter.n;
    *dtype = c->dtype[0];
    return QN_OK;
}

static qn_status rule_TOP_K(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(1);
    NEED(is_float(c->dtype[0]) && c->shape[0]->n == 2 && c->params->top_k.k >= 1 &&
             c->params->top_k.k <= c->shape[0]->dim[1],
         "takes x [R, n] and 1 <= k <= n");
    *shape = *c->shape[0];
    shape->dim[1] = c->params->top_k.k;
    *dtype = QN_DTYPE_I32;
    return QN_OK;
}

static int is_index(const qn_prim_call *c, int i, int n_dims)
{
    return c->dtype[i] == QN_DTYPE_I32 && c->shape[i]->n == n_dims;
}

static qn_status rule_ATTEND(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    const qn_params_attend *p = &c->params->attend;
    const int plain = 5 + (p->state != NULL), sinks = plain, chosen = plain + (p->has_sinks != 0);
    ARITY(chosen + (p->block != 0));
    const qn_shape *q = c->shape[0], *k = c->shape[1], *v = c->shape[2];
    NEED(is_float(c->dtype[0]) && is_float(c->dtype[1]) && is_float(c->dtype[2]) && q->n == 3 && k->n == 3 &&
             v->n == 3 && same_rows(q, k) && same_rows(q, v) && q->dim[2] == k->dim[2] &&
             k->dim[1] == v->dim[1] && k->dim[1] > 0 && q->dim[1] % k->dim[1] == 0,
         "takes q [R, heads, d], k [R, kv_heads, d], v [R, kv_heads, dv]");
    NEED(is_index(c, 3, 1) && same_rows(q, c->shape[3]) && is_index(c, 4, 1),
         "takes positions [R] and row_begin [S + 1]");
    NEED(!p->whole || p->window == 0 || !p->state,
         "over pages cannot both have a window and see whole sequences");
    NEED(p->chunk >= 0 && (!p->whole || p->chunk == 0), "cannot both have chunks and see whole sequences");
    if (p->state) NEED(is_index(c, 5, 2), "takes a block table [S, blocks]");
    if (p->has_sinks)
        NEED(is_float(c->dtype[sinks]) && c->shape[sinks]->dim[0] == q->dim[1], "takes sinks [heads]");
    if (p->block) {
        NEED(p->block > 0 && !p->whole && !p->chunk,
             "over chosen blocks cannot have chunks or see whole sequences");
        NEED(is_index(c, chosen, 2) && same_rows(q, c->shape[chosen]), "takes chosen blocks [R, top]");
    }
    *shape = *q;
    shape->dim[2] = v->dim[2];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_ATTEND_GRAD(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    /* q, k, v, positions, row_begin, out, d_out, sinks, chosen */
    ARITY(7 + (c->params->attend.has_sinks != 0) + (c->params->attend.block != 0));
    *shape = *c->shape[0];
    shape->n = 2;
    shape->dim[1] = qn_shape_row(c->shape[0]) + qn_shape_row(c->shape[1]) + qn_shape_row(c->shape[2]);
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_INDEX_BLOCKS(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    const qn_params_index *p = &c->params->index;
    const int weights = 4 + (p->state != NULL);
    ARITY(weights + (p->has_weights != 0));
    const qn_shape *q = c->shape[0], *k = c->shape[1];
    NEED(is_float(c->dtype[0]) && is_float(c->dtype[1]) && q->n == 3 && k->n == 2 && same_rows(q, k) &&
             q->dim[1] > 0 && q->dim[2] == k->dim[1] && k->dim[1] > 0,
         "takes q [R, heads, d], k [R, d]");
    NEED(is_index(c, 2, 1) && same_rows(q, c->shape[2]) && is_index(c, 3, 1),
         "takes positions [R] and row_begin [S + 1]");
    NEED(p->block > 0 && p->top > 0 && p->window >= 0, "takes a size of blocks and a number of them");
    if (p->state) NEED(is_index(c, 4, 2), "takes a block table [S, blocks]");
    if (p->has_weights)
        NEED(is_float(c->dtype[weights]) && c->shape[weights]->n == 2 && same_rows(q, c->shape[weights]) &&
                 c->shape[weights]->dim[1] == q->dim[1],
             "takes weights [R, heads]");
    *shape = *q;
    shape->n = 2;
    shape->dim[1] = p->top;
    *dtype = QN_DTYPE_I32;
    return QN_OK;
}

/* What both have in front: rows, head, targets. */
static qn_status check_cross_entropy(const qn_prim_call *c)
{
    const qn_shape *x = c->shape[0], *w = c->shape[1], *targets = c->shape[2];
    NEED(is_float(c->dtype[0]) && x->n == 2 && w->n == 2 && !qn_shape_is_symbolic(w) &&
             x->dim[1] == w->dim[1] && w->dim[0] > 0 && c->dtype[1] != QN_DTYPE_I32,
         "takes rows [L, k] and a head [V, k]");
    NEED(c->dtype[2] == QN_DTYPE_I32 && (targets->n == 1 || (targets->n == 2 && targets->dim[1] == 1)) &&
             same_rows(x, targets),
         "takes targets [L] or [L, 1]");
    return QN_OK;
}

static qn_status rule_CROSS_ENTROPY(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(3);
    QN_TRY(check_cross_entropy(c));
    *shape = *c->shape[0];
    shape->dim[1] = 1;
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_CROSS_ENTROPY_GRAD(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(5); /* rows, head, targets, losses, their gradient */
    QN_TRY(check_cross_entropy(c));
    const int which = c->params->cross_entropy.which;
    NEED(which == 0 || which == 1, "which must be 0 or 1");
    for (int i = 3; i < 5; i++)
        NEED(is_float(c->dtype[i]) && c->shape[i]->n == 2 && c->shape[i]->dim[1] == 1 &&
                 same_rows(c->shape[0], c->shape[i]),
             "takes losses and their gradient [L, 1]");
    *shape = *c->shape[which];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_LORA(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(3);
    const qn_shape *x = c->shape[0], *y = c->shape[1];
    NEED(is_float(c->dtype[0]) && is_float(c->dtype[1]) && x->n == 2 && y->n == 2 && same_rows(x, y) &&
             is_index(c, 2, 1) && same_rows(x, c->shape[2]),
         "takes x [R, n_in], y [R, n_out], adapters [R]");
    NEED(c->params->lora.pairs && c->params->lora.n_pairs > 0, "takes pairs");
    *shape = *y;
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

/* What both have: ids [R, top], w [experts, n, k], and the bias behind all others. */
static qn_status check_experts(const qn_prim_call *c, int n_in)
{
    const qn_shape *x = c->shape[0], *w = c->shape[1], *ids = c->shape[2];
    ARITY(n_in + (c->params->experts.has_bias != 0));
    NEED(is_float(c->dtype[0]) && w->n == 3 && is_index(c, 2, 2) && same_rows(x, ids) &&
             (x->n == 3 ? x->dim[1] == ids->dim[1] : x->n == 2 && n_in == 3) && x->dim[x->n - 1] == w->dim[2],
         "takes x [R, k] (only for EXPERTS) or [R, top, k], w [experts, n, k], ids [R, top]");
    if (c->params->experts.has_bias)
        NEED(is_float(c->dtype[n_in]) && c->shape[n_in]->n == 2 && c->shape[n_in]->dim[0] == w->dim[0] &&
                 c->shape[n_in]->dim[1] == w->dim[1],
             "takes a bias [experts, n]");
    return QN_OK;
}

static qn_status rule_EXPERTS(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    QN_TRY(check_experts(c, 3));
    *shape = *c->shape[2];
    shape->n = 3;
    shape->dim[2] = c->shape[1]->dim[1];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_EXPERTS_SUM(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    QN_TRY(check_experts(c, 4));
    NEED(is_float(c->dtype[3]) && qn_shape_equal(c->shape[3], c->shape[2]), "takes shares [R, top]");
    *shape = *c->shape[2];
    shape->dim[1] = c->shape[1]->dim[1];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_EXPERTS_GRAD(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(3);
    const qn_shape *g = c->shape[0], *w = c->shape[1], *ids = c->shape[2];
    NEED(is_float(c->dtype[0]) && g->n == 3 && w->n == 3 && is_index(c, 2, 2) && same_rows(g, ids) &&
             g->dim[1] == ids->dim[1] && g->dim[2] == w->dim[1],
         "takes g [R, top, n], w [experts, n, k], ids [R, top]");
    *shape = *g;
    shape->dim[2] = w->dim[2];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

/* x: a vector for each row, or for each choice. */
static int is_chosen(const qn_prim_call *c, int i, const qn_shape *ids)
{
    const qn_shape *x = c->shape[i];
    return is_float(c->dtype[i]) && (x->n == 2 || (x->n == 3 && x->dim[1] == ids->dim[1])) &&
           same_rows(x, ids);
}

static qn_status rule_EXPERTS_LORA(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    const qn_params_experts_lora *p = &c->params->experts_lora;
    ARITY(4 + (p->has_share != 0));
    const qn_shape *y = c->shape[1], *ids = c->shape[2];
    NEED(is_index(c, 2, 2) && is_chosen(c, 0, ids) && is_index(c, 3, 1) && same_rows(ids, c->shape[3]),
         "takes x [R, n_in] or [R, top, n_in], y, ids [R, top], adapters [R]");
    NEED(is_float(c->dtype[1]) && same_rows(y, ids) &&
             (p->has_share ? y->n == 2 : y->n == 3 && y->dim[1] == ids->dim[1]),
         "takes y [R, top, n_out], with shares [R, n_out]");
    if (p->has_share)
        NEED(is_float(c->dtype[4]) && qn_shape_equal(c->shape[4], ids), "takes shares [R, top]");
    NEED(p->lora.pairs && p->lora.n_pairs > 0 && p->n_experts > 0, "takes pairs and a number of experts");
    *shape = *y;
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_GATHER_MM(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(3);
    const qn_shape *x = c->shape[0], *w = c->shape[1], *ids = c->shape[2];
    const int transposed = c->params->gather_mm.transposed != 0;
    NEED(is_index(c, 2, 2) && is_chosen(c, 0, ids) && is_float(c->dtype[1]) && w->n == 3 &&
             !qn_shape_is_symbolic(w) && w->dim[transposed ? 1 : 2] == x->dim[x->n - 1],
         "takes x [R, k] or [R, top, k], w [matrices, n, k] (transposed: [matrices, k, n]), ids [R, top]");
    *shape = *ids;
    shape->n = 3;
    shape->dim[2] = w->dim[transposed ? 2 : 1];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_SCATTER_MM(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(3);
    const qn_shape *a = c->shape[0], *b = c->shape[1], *ids = c->shape[2];
    NEED(is_index(c, 2, 2) && is_chosen(c, 0, ids) && is_chosen(c, 1, ids),
         "takes a [R, n] or [R, top, n], b [R, k] or [R, top, k], ids [R, top]");
    NEED(c->params->gather_mm.n_matrices >= 0, "takes a number of matrices");
    *shape =
        qn_shape_make(3, (int64_t[]){c->params->gather_mm.n_matrices, a->dim[a->n - 1], b->dim[b->n - 1]});
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_SHORT_CONV(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    const int with_state = c->params->recurrent.state != NULL;
    ARITY(with_state ? 5 : 3);
    const qn_shape *x = c->shape[0], *w = c->shape[1];
    NEED(is_float(c->dtype[0]) && is_float(c->dtype[1]) && x->n == 2 && w->n == 2 && x->dim[1] == w->dim[1] &&
             is_index(c, 2, 1) && (!with_state || (is_index(c, 3, 1) && is_index(c, 4, 1))),
         "takes x [R, channels], w [kernel, channels], row_begin, and with a state slots, reset");
    *shape = *x;
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_SHORT_CONV_GRAD(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(4);
    const int which = c->params->recurrent.which;
    NEED(which == 0 || which == 1, "which must be 0 or 1");
    NEED(is_float(c->dtype[0]) && is_float(c->dtype[1]) && c->shape[1]->n == 2 && is_index(c, 2, 1) &&
             is_float(c->dtype[3]) && qn_shape_equal(c->shape[0], c->shape[3]),
         "takes x, w, row_begin, d_out");
    *shape = *c->shape[which];
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

/* g of the gated delta rule: a number for each head, or for each row of its state. */
static int is_decay(const qn_shape *g, const qn_shape *q, const qn_shape *v)
{
    return same_rows(q, g) && g->dim[1] == v->dim[1] && (g->n == 2 || (g->n == 3 && g->dim[2] == q->dim[2]));
}

static qn_status rule_GATED_DELTA(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    const int with_state = c->params->recurrent.state != NULL;
    ARITY(with_state ? 8 : 6);
    const qn_shape *q = c->shape[0], *k = c->shape[1], *v = c->shape[2], *g = c->shape[3],
                   *beta = c->shape[4];
    for (int i = 0; i < 5; i++) NEED(is_float(c->dtype[i]), "inputs must be f32");
    NEED(q->n == 3 && v->n == 3 && qn_shape_equal(q, k) && same_rows(q, v) && q->dim[1] > 0 &&
             v->dim[1] % q->dim[1] == 0 && is_decay(g, q, v) && beta->n == 2 && same_rows(q, beta) &&
             beta->dim[1] == v->dim[1] && is_index(c, 5, 1) &&
             (!with_state || (is_index(c, 6, 1) && is_index(c, 7, 1))),
         "takes q, k [R, k_heads, dk], v [R, heads, dv], g [R, heads] or [R, heads, dk], beta [R, heads], "
         "row_begin, and with a state slots, reset");
    *shape = *v;
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

static qn_status rule_GATED_DELTA_GRAD(const qn_prim_call *c, qn_shape *shape, qn_dtype *dtype)
{
    ARITY(7);
    const qn_shape *q = c->shape[0], *v = c->shape[2];
    NEED(q->n == 3 && v->n == 3 && is_decay(c->shape[3], q, v) && is_index(c, 5, 1) &&
             is_float(c->dtype[6]) && qn_shape_equal(c->shape[6], v),
         "takes q, k, v, g, beta, row_begin, d_out");
    *shape = *q;
    shape->n = 2;
    shape->dim[1] = 2 * q->dim[1] * q->dim[2] + v->dim[1] * (v->dim[2] + 1) + qn_shape_row(c->shape[3]);
    *dtype = QN_DTYPE_F32;
    return QN_OK;
}

#define rule_DATA NULL
#define rule_INPUT NULL
#define rule_STRIDED qn_rule_STRIDED
#define rule_COMPARE qn_rule_COMPARE
#define rule_SELECT qn_rule_SELECT
#define rule_ARG_MAX qn_rule_ARG_MAX
#define rule_SCAN qn_rule_SCAN
#define rule_ARG_SORT qn_rule_ARG_SORT
#define rule_LAST_WRITER qn_rule_LAST_WRITER
#define rule_HASH_IDS qn_rule_HASH_IDS
#define rule_UPDATE qn_rule_UPDATE
#define rule_RANDOM qn_rule_RANDOM

static const qn_prim_info table[QN_PRIM_COUNT] = {
#define S(name) {#name, QN_CLASS_SOURCE, 0, 0, rule_##name},
#define E(name, inputs) {#name, QN_CLASS_ELEMENTWISE, inputs, 1, rule_elementwise},
#define P(name, rows) {#name, QN_CLASS_OTHER, 0, rows, rule_##name},
#include "prim/primitives.def"
};

const qn_prim_info *qn_prim_get(qn_prim prim)
{
    return &table[prim];
}
