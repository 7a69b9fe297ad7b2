/* Gradients: one rule a primitive, in rising order of primitives.def, and the pass that applies them. A rule
 * gives the gradient of input i from the gradient g of the result; it is called only for inputs that matter.
 * Where the table has no rule it says that the fallback gives the gradient, or why there is none. */
#include <stdio.h>
#include <string.h>

#include "array/tape.h"

typedef qn_array *gradient(qn_scope *s, qn_array *a, int i, qn_array *g);

static qn_array *refuse(qn_scope *s, const qn_array *a, const char *why)
{
    return qn_scope_fail(s, qn_fail(QN_E_UNSUPPORTED, "%s%s%s has no gradient%s", a->label ? a->label : "",
                                    a->label ? ": " : "", qn_prim_get(a->prim)->name, why));
}

/* ---- helpers ------------------------------------------------------------------------------------------ */

static qn_array *in_type(qn_scope *s, qn_array *a, qn_dtype dtype)
{
    return !a || a->dtype == dtype ? a : qn_apply(s, QN_PRIM_CAST, NULL, 1, &a, NULL, dtype);
}

static int is_narrow(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F16 || dtype == QN_DTYPE_BF16;
}

/* Sums of narrow numbers are f32 until they are complete. */
static qn_array *sum_of_narrow(qn_scope *s, qn_array *g, const qn_shape *shape)
{
    return in_type(s, qn_sum_to(s, in_type(s, g, QN_DTYPE_F32), shape), g->dtype);
}

qn_array *qn_sum_to(qn_scope *s, qn_array *g, const qn_shape *shape)
{
    if (!g || qn_shape_equal(&g->shape, shape)) return g;
    if (is_narrow(g->dtype)) return sum_of_narrow(s, g, shape);
    while (g && g->shape.n > shape->n) { /* a dimension that the smaller shape does not have */
        qn_shape rest = {.n = g->shape.n - 1};
        memcpy(rest.dim, g->shape.dim + 1, (size_t)rest.n * sizeof *rest.dim);
        g = qn_reshape_sym(s, qn_sum(s, g, 0), rest);
    }
    for (int d = 0; g && d < shape->n; d++) {
        int one = shape->dim[d] == 1 && !(d == 0 && qn_shape_is_symbolic(shape));
        int more = g->shape.dim[d] != 1 || (d == 0 && qn_shape_is_symbolic(&g->shape));
        if (one && more) g = qn_sum(s, g, d);
    }
    return g;
}

qn_array *qn_again(qn_scope *s, const qn_array *a, qn_array *const *in)
{
    return qn_apply(s, a->prim, &a->params, a->n_in, in, &a->shape, a->dtype);
}

qn_array *qn_max_share(qn_scope *s, qn_array *a)
{
    const int least = a->prim == QN_PRIM_MIN;
    /* 0 at the largest, 1 elsewhere */
    qn_array *below = qn_sign_of(s, least ? qn_sub(s, a->in[0], a) : qn_sub(s, a, a->in[0]));
    qn_array *at = qn_sub(s, qn_scalar(s, 1), below);
    return qn_div(s, at, qn_sum(s, at, a->params.reduce.axis));
}

qn_array *qn_zeros_like(qn_scope *s, const qn_array *a)
{
    return a ? qn_broadcast_sym(s, qn_full(s, a->dtype, 0, NULL, 0), a->shape) : NULL;
}

static qn_array *swap_with_last(qn_scope *s, qn_array *a, int axis)
{
    if (!a || axis == a->shape.n - 1) return a;
    int32_t perm[QN_MAX_DIMS];
    for (int i = 0; i < a->shape.n; i++) perm[i] = i;
    perm[axis] = a->shape.n - 1;
    perm[a->shape.n - 1] = axis;
    return qn_permute(s, a, perm);
}

/* Zeros before and after along one dimension. */
static qn_array *pad(qn_scope *s, qn_array *g, int axis, int64_t before, int64_t after)
{
    if (!g || (before == 0 && after == 0)) return g;
    qn_array *line = swap_with_last(s, g, axis), *parts[3], *zero = qn_full(s, g->dtype, 0, NULL, 0);
    if (!line) return NULL;
    int n = 0;
    qn_shape shape = line->shape;
    shape.dim[shape.n - 1] = before;
    if (before) parts[n++] = qn_broadcast_sym(s, zero, shape);
    parts[n++] = line;
    shape.dim[shape.n - 1] = after;
    if (after) parts[n++] = qn_broadcast_sym(s, zero, shape);
    return swap_with_last(s, qn_concat(s, n, parts), axis);
}

/* [.., n] -> [rows, n] */
static qn_array *as_matrix(qn_scope *s, qn_array *a)
{
    if (!a || a->shape.n == 2) return a;
    qn_shape m = a->shape;
    for (int d = 1; d < a->shape.n - 1; d++) {
        m.dim[0] *= a->shape.dim[d];
        for (int k = 0; k < QN_SYM_COUNT; k++) m.sym[k] *= (int32_t)a->shape.dim[d];
    }
    m.n = 2;
    m.dim[1] = a->shape.dim[a->shape.n - 1];
    return qn_reshape_sym(s, a, m);
}

static qn_array *as_type_of(qn_scope *s, qn_array *g, const qn_array *a)
{
    return qn_astype(s, g, a->dtype);
}

/* ---- views -------------------------------------------------------------------------------------------- */

static qn_array *gradient_RESHAPE(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_reshape_sym(s, g, a->in[0]->shape);
}

static qn_array *gradient_TRANSPOSE(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    int32_t inverse[QN_MAX_DIMS];
    for (int d = 0; d < a->shape.n; d++) inverse[a->params.transpose.perm[d]] = d;
    if (g && g->prim == QN_PRIM_TRANSPOSE &&
        memcmp(g->params.transpose.perm, a->params.transpose.perm, (size_t)a->shape.n * sizeof *inverse) == 0)
        return g->in[0]; /* it was turned round just now */
    return qn_permute(s, g, inverse);
}

static qn_array *gradient_SLICE(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    const qn_shape *whole = &a->in[0]->shape;
    for (int d = 0; d < whole->n; d++)
        if (a->params.slice.step[d] != 0 && a->params.slice.step[d] != 1)
            return qn_apply(s, QN_PRIM_UPDATE, &a->params, 2,
                            (qn_array *[]){qn_zeros_like(s, a->in[0]), as_type_of(s, g, a)}, NULL, a->dtype);
    for (int d = 0; d < whole->n; d++) {
        int64_t before = a->params.slice.begin[d];
        g = pad(s, g, d, before, whole->dim[d] - before - a->shape.dim[d]);
    }
    return g;
}

/* Each element's share goes to where it was read, in rising order. */
static qn_array *gradient_STRIDED(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    const int64_t n = qn_shape_elements(&a->shape, NULL), total = qn_shape_elements(&a->in[0]->shape, NULL);
    int64_t index[QN_MAX_DIMS] = {0};
    void *data;
    if (total > INT32_MAX) return refuse(s, a, " for so many elements");
    qn_array *ids = qn_array_alloc(s, "as_strided", QN_DTYPE_I32, 1, &n, &data);
    if (!ids) return NULL;
    for (int64_t e = 0; e < n; e++) {
        int64_t at = a->params.strided.offset;
        for (int d = 0; d < a->shape.n; d++) at += index[d] * a->params.strided.stride[d];
        ((int32_t *)data)[e] = (int32_t)at;
        for (int d = a->shape.n - 1; d >= 0 && ++index[d] == a->shape.dim[d]; d--) index[d] = 0;
    }
    const qn_params p = {.scatter = {.n = total}};
    g = qn_reshape_sym(s, g, qn_shape_make(2, (int64_t[]){n, 1}));
    g = qn_apply(s, QN_PRIM_SCATTER_ADD, &p, 2, (qn_array *[]){g, ids}, NULL, QN_DTYPE_F32);
    return qn_reshape_sym(s, g, a->in[0]->shape);
}

static qn_array *gradient_BROADCAST(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_sum_to(s, g, &a->in[0]->shape);
}

/* ---- the others --------------------------------------------------------------------------------------- */

static qn_array *gradient_COPY(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return g;
}

static qn_array *gradient_CAST(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_apply(s, QN_PRIM_CAST, NULL, 1, &g, NULL, a->in[0]->dtype);
}

/* The same elements are 0 and divided. */
static qn_array *gradient_DROPOUT(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_again(s, a, (qn_array *[]){g, a->in[1]});
}

static qn_array *gradient_CONCAT(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    int last = a->shape.n - 1;
    int64_t begin = 0;
    for (int j = 0; j < i; j++) begin += a->in[j]->shape.dim[last];
    return qn_slice_last(s, g, begin, a->in[i]->shape.dim[last]);
}

static qn_array *gradient_SUM(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_broadcast_sym(s, g, a->in[0]->shape);
}

static qn_array *gradient_MAX(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, g, qn_max_share(s, a));
}

static qn_array *gradient_MIN(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return gradient_MAX(s, a, i, g);
}

static qn_array *gradient_SELECT(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_array *zero = qn_full(s, a->dtype, 0, NULL, 0);
    g = as_type_of(s, g, a);
    return qn_where(s, a->in[0], i == 1 ? g : zero, i == 1 ? zero : g);
}

static qn_array *gradient_UPDATE(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    const qn_array *u = a->in[1];
    g = as_type_of(s, g, a);
    return i == 0 ? qn_again(s, a, (qn_array *[]){g, qn_zeros_like(s, u)})
                  : qn_apply(s, QN_PRIM_SLICE, &a->params, 1, &g, &u->shape, QN_DTYPE_F32);
}

/* Of running sums: running sums the other way round. */
static qn_array *gradient_SCAN(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_params p = a->params;
    p.scan.reverse = !p.scan.reverse;
    if (p.scan.how == QN_SCAN_SUM) return qn_apply(s, QN_PRIM_SCAN, &p, 1, &g, NULL, QN_DTYPE_F32);
    qn_array *f = qn_fallback(s, a->prim, &a->params, a->n_in, a->in), *out = NULL;
    const qn_status status = f ? qn_vjp(s, f, g, 1, a->in, &out) : qn_scope_status(s);
    return status == QN_OK ? out : qn_scope_fail(s, status);
}

/* a (g - sum(g a)); the tangent is the same product with the tangent in g's place. */
static qn_array *gradient_SOFTMAX(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_mul(s, a, qn_sub(s, g, qn_sum(s, qn_mul(s, g, a), a->shape.n - 1)));
}

static qn_array *gradient_RMS_NORM(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_array *in[3] = {a->in[0], g, a->n_in > 1 ? a->in[1] : NULL};
    if (i == 1) return qn_mul(s, g, qn_rms_norm(s, a->in[0], NULL, a->params.norm.eps, 0));
    return qn_apply(s, QN_PRIM_RMS_NORM_GRAD, &a->params, a->n_in + 1, in, NULL, QN_DTYPE_F32);
}

/* The rotation the other way round: the sines change sign. */
static qn_array *gradient_ROPE(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    if (i != 0) return refuse(s, a, " with respect to its table");
    qn_array *table = a->in[1];
    int64_t half = table->shape.dim[1] / 2;
    qn_array *parts[2] = {qn_slice_last(s, table, 0, half),
                          qn_unary(s, QN_PRIM_NEG, qn_slice_last(s, table, half, half))};
    return qn_rope(s, g, qn_concat(s, 2, parts), a->params.rope.interleaved);
}

static qn_array *gradient_MATMUL(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_array *x = a->in[0], *w = a->in[1];
    if (x->dtype == QN_DTYPE_BF16 &&
        w->dtype == QN_DTYPE_BF16) /* it was rounded to bf16 behind the product */
        g = qn_astype(s, g, QN_DTYPE_BF16);
    if (i == 0) /* as exact as the product itself */
        return qn_apply(s, QN_PRIM_MATMUL, &a->params, 2, (qn_array *[]){g, qn_transpose(s, w)}, NULL,
                        QN_DTYPE_F32);
    if (w->shape.n > 2) return qn_matmul(s, qn_transpose(s, x), g);
    x = as_matrix(s, x);
    g = as_matrix(s, g);
    /* the sums are the same either way round; this is how the weight lies, and narrow rows waste lanes */
    if (w->prim == QN_PRIM_TRANSPOSE && x && g && g->shape.dim[1] < x->shape.dim[1])
        return qn_transpose(s, qn_binary(s, QN_PRIM_MATMUL_ROWS, g, x));
    return qn_binary(s, QN_PRIM_MATMUL_ROWS, x, g);
}

static qn_array *gradient_MATMUL_ROWS(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_matmul(s, a->in[1 - i], i == 0 ? qn_transpose(s, g) : g);
}

static qn_array *gradient_TAKE(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    const qn_shape *table = &a->in[0]->shape;
    qn_params p = {.scatter = {.n = table->dim[0]}};
    memcpy(p.scatter.sym, table->sym, sizeof p.scatter.sym);
    return qn_apply(s, QN_PRIM_SCATTER_ADD, &p, 2, (qn_array *[]){g, a->in[1]}, NULL, QN_DTYPE_F32);
}

static qn_array *gradient_SCATTER_ADD(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_take(s, g, a->in[1]);
}

static qn_array *gradient_TAKE_ALONG(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_params p = {.scatter = {.n = a->in[0]->shape.dim[1]}};
    return qn_apply(s, QN_PRIM_SCATTER_ALONG, &p, 2, (qn_array *[]){g, a->in[1]}, NULL, QN_DTYPE_F32);
}

static qn_array *gradient_SCATTER_ALONG(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return qn_take_along(s, g, a->in[1]);
}

/* Of input i, from all its primitive's gradients beside each other in each row. */
static qn_array *part_of(qn_scope *s, qn_array *a, int i, qn_array *all)
{
    const qn_shape *shape = &a->in[i]->shape;
    int64_t begin = 0;
    for (int j = 0; j < i; j++) begin += qn_shape_row(&a->in[j]->shape);
    qn_array *own = qn_slice_last(s, all, begin, qn_shape_row(shape));
    return qn_reshape_rows(s, own, shape->n - 1, shape->dim + 1);
}

/* all: what joint_ATTEND made of the gradient. */
static qn_array *gradient_ATTEND(qn_scope *s, qn_array *a, int i, qn_array *all)
{
    return i > 2 ? refuse(s, a, " with respect to its sinks") : part_of(s, a, i, all);
}

static qn_array *joint_ATTEND(qn_scope *s, qn_array *a, qn_array *g)
{
    if (a->params.attend.state) return refuse(s, a, " over pages");
    qn_array *in[9] = {a->in[0], a->in[1], a->in[2], a->in[3], a->in[4], a, g};
    int n = 7;
    for (int i = 5; i < a->n_in; i++) in[n++] = a->in[i]; /* sinks, chosen */
    return qn_apply(s, QN_PRIM_ATTEND_GRAD, &a->params, n, in, NULL, QN_DTYPE_F32);
}

/* Of rows [R, k] that all their choices read: summed over these. */
static qn_array *gradient_EXPERTS(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    if (i != 0) return refuse(s, a, " with respect to its weights");
    const int64_t k = a->in[1]->shape.dim[2];
    g = qn_apply(s, QN_PRIM_EXPERTS_GRAD, NULL, 3, (qn_array *[]){g, a->in[1], a->in[2]}, NULL, QN_DTYPE_F32);
    return a->in[0]->shape.n == 3 ? g : qn_reshape_rows(s, qn_sum(s, g, 1), 1, &k);
}

/* y [R, top, k], summed over the choices if x has one vector for all of a row's. */
static qn_array *by_row_of(qn_scope *s, const qn_array *x, qn_array *y)
{
    const int64_t k = x->shape.dim[x->shape.n - 1];
    return x->shape.n == 3 ? y : qn_reshape_rows(s, qn_sum(s, y, 1), 1, &k);
}

static qn_array *gather_mm(qn_scope *s, qn_array *x, qn_array *w, qn_array *ids, int transposed)
{
    qn_params p = {.gather_mm = {.transposed = transposed}};
    return qn_apply(s, QN_PRIM_GATHER_MM, &p, 3, (qn_array *[]){x, w, ids}, NULL, QN_DTYPE_F32);
}

static qn_array *gradient_GATHER_MM(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_array *x = a->in[0], *w = a->in[1], *ids = a->in[2];
    const int transposed = a->params.gather_mm.transposed;
    if (i == 0) return by_row_of(s, x, gather_mm(s, g, w, ids, !transposed));
    qn_params p = {.gather_mm = {.n_matrices = w->shape.dim[0]}};
    qn_array *in[3] = {transposed ? x : g, transposed ? g : x, ids};
    return qn_apply(s, QN_PRIM_SCATTER_MM, &p, 3, in, NULL, QN_DTYPE_F32);
}

static qn_array *gradient_SCATTER_MM(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    return by_row_of(s, a->in[i], gather_mm(s, a->in[1 - i], g, a->in[2], i));
}

static qn_array *gradient_SHORT_CONV(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    if (a->params.recurrent.state) return refuse(s, a, " with a state");
    qn_params p = a->params;
    p.recurrent.which = i;
    return qn_apply(s, QN_PRIM_SHORT_CONV_GRAD, &p, 4, (qn_array *[]){a->in[0], a->in[1], a->in[2], g}, NULL,
                    QN_DTYPE_F32);
}

/* all: what joint_GATED_DELTA made of the gradient. */
static qn_array *gradient_GATED_DELTA(qn_scope *s, qn_array *a, int i, qn_array *all)
{
    return part_of(s, a, i, all);
}

static qn_array *joint_GATED_DELTA(qn_scope *s, qn_array *a, qn_array *g)
{
    if (a->params.recurrent.state) return refuse(s, a, " with a state");
    qn_array *in[7] = {a->in[0], a->in[1], a->in[2], a->in[3], a->in[4], a->in[5], g};
    return qn_apply(s, QN_PRIM_GATED_DELTA_GRAD, &a->params, 7, in, NULL, QN_DTYPE_F32);
}

static qn_array *gradient_CROSS_ENTROPY(qn_scope *s, qn_array *a, int i, qn_array *g)
{
    qn_params p = a->params;
    p.cross_entropy.which = i;
    qn_array *in[5] = {a->in[0], a->in[1], a->in[2], a, g};
    return qn_apply(s, QN_PRIM_CROSS_ENTROPY_GRAD, &p, 5, in, NULL, QN_DTYPE_F32);
}

#define gradient_DATA QN_NONE("it is made of nothing")
#define gradient_INPUT QN_NONE("it is made of nothing")
#define gradient_COMPARE QN_NONE("it gives bool")
#define gradient_PROD QN_BY_FALLBACK
#define gradient_ARG_MAX QN_NONE("it gives indices")
#define gradient_ARG_SORT QN_NONE("it gives indices")
#define gradient_LAST_WRITER QN_NONE("it gives indices")
#define gradient_HASH_IDS QN_NONE("it gives indices")
#define gradient_RANDOM QN_NONE("its key is of integers")
#define gradient_FUSED QN_NONE("the planner makes it, behind differentiation")
#define gradient_RMS_NORM_GRAD QN_BY_FALLBACK
#define gradient_LAYER_NORM QN_BY_FALLBACK
#define gradient_SINKHORN QN_BY_FALLBACK
#define gradient_ROPE_TABLE QN_NONE("positions are integers, and frequencies are constants of a model")
#define gradient_TOP_K QN_NONE("it gives indices")
#define gradient_ATTEND_GRAD QN_NONE("attention is differentiated once")
#define gradient_INDEX_BLOCKS QN_NONE("it gives indices")
#define gradient_CROSS_ENTROPY_GRAD QN_BY_FALLBACK
#define gradient_LORA QN_NONE("it is for adapters in use; training states the two products")
#define gradient_EXPERTS_LORA QN_NONE("it is for adapters in use; training states the two products")
#define gradient_EXPERTS_SUM QN_BY_FALLBACK
#define gradient_EXPERTS_GRAD QN_NONE("experts are differentiated once")
#define gradient_SHORT_CONV_GRAD QN_NONE("the convolution is differentiated once")
#define gradient_GATED_DELTA_GRAD QN_NONE("the recurrence is differentiated once")

/* Primitives whose gradients by all inputs are one step: it is built once, and the rule takes it in g's
 * place. */
static qn_array *(*const joint[QN_PRIM_COUNT])(qn_scope *s, qn_array *a, qn_array *g) = {
    [QN_PRIM_ATTEND] = joint_ATTEND, [QN_PRIM_GATED_DELTA] = joint_GATED_DELTA};

typedef struct {
    gradient *rule;
    int by_fallback;
    const char *none;
} entry;

static const entry table[QN_PRIM_COUNT] = {
#define S(name) [QN_PRIM_##name] = {.rule = gradient_##name},
#define E(name, inputs) [QN_PRIM_##name] = {.rule = qn_derivative},
#define P(name, rows) [QN_PRIM_##name] = {.rule = gradient_##name},
#include "prim/primitives.def"
};

qn_stated qn_gradient_stated(qn_prim prim, const char **why)
{
    const entry *e = &table[prim];
    *why = e->none;
    return e->rule          ? QN_BY_RULE
           : e->by_fallback ? QN_BY_ITS_FALLBACK
           : e->none        ? QN_STATED_NONE
                            : QN_UNSTATED;
}

/* ---- the pass ----------------------------------------------------------------------------------------- */

void qn_tape_add(qn_scope *s, qn_tape_node *in, qn_array *g)
{
    if (!g) return; /* it is 0, or the scope has failed */
    g = qn_astype(s, qn_sum_to(s, g, &in->a->shape), in->a->dtype);
    in->value = in->value ? qn_add(s, in->value, g) : g;
}

/* Gradients of the inputs of a primitive without a rule: those of its fallback, whose leaves are the inputs.
 */
static void by_fallback(qn_scope *s, qn_array *a, qn_array *g, const qn_tape *t)
{
    if (table[a->prim].none) {
        char why[160];
        snprintf(why, sizeof why, ": %s", table[a->prim].none);
        refuse(s, a, why);
        return;
    }
    qn_array *f = qn_fallback(s, a->prim, &a->params, a->n_in, a->in), *grads[QN_MAX_INPUTS] = {NULL},
             *wrt[QN_MAX_INPUTS];
    if (!f) return;
    for (int i = 0; i < a->n_in; i++) {
        const qn_tape_node *in = qn_tape_find(t, a->in[i]);
        wrt[i] = in && in->depends ? a->in[i] : NULL;
    }
    qn_status status = qn_vjp(s, f, g, a->n_in, wrt, grads);
    if (status != QN_OK) {
        qn_scope_fail(s, status);
        return;
    }
    for (int i = 0; i < a->n_in; i++) {
        qn_tape_node *in = qn_tape_find(t, a->in[i]);
        int seen = 0; /* an input that comes twice has its whole gradient at its first place */
        for (int j = 0; j < i; j++) seen |= a->in[j] == a->in[i];
        if (in && in->depends && grads[i] && !seen) qn_tape_add(s, in, grads[i]);
    }
}

static void pull_back(qn_scope *s, qn_tape_node *n, const qn_tape *t)
{
    qn_array *a = n->a;
    if (a->checkpoint) {
        qn_status status = qn_checkpoint_back(s, n, t);
        if (status != QN_OK) qn_scope_fail(s, status);
        return;
    }
    if (a->custom) {
        qn_status status = qn_custom_back(s, n, t);
        if (status != QN_OK) qn_scope_fail(s, status);
        return;
    }
    const entry *e = &table[a->prim];
    if (!e->rule) {
        by_fallback(s, a, n->value, t);
        return;
    }
    qn_array *g = joint[a->prim] ? joint[a->prim](s, a, n->value) : n->value;
    for (int i = 0; i < a->n_in; i++) {
        qn_tape_node *in = qn_tape_find(t, a->in[i]);
        if (in && in->depends) qn_tape_add(s, in, e->rule(s, a, i, g));
    }
}

static qn_status check(qn_array *of, const qn_array *cotangent, int n, qn_array *const *wrt)
{
    char x[96], y[96];
    if (!qn_is_real(of)) return qn_fail(QN_E_ARG, "there is no gradient of %s", qn_dtype_name(of->dtype));
    if (cotangent ? !qn_shape_equal(&cotangent->shape, &of->shape)
                  : qn_shape_is_symbolic(&of->shape) || qn_shape_elements(&of->shape, NULL) != 1)
        return qn_fail(QN_E_ARG, "gradient of an array %s with a cotangent %s",
                       qn_shape_text(&of->shape, x, sizeof x),
                       cotangent ? qn_shape_text(&cotangent->shape, y, sizeof y) : "of ones");
    for (int i = 0; i < n; i++)
        if (wrt[i] && wrt[i]->prim == QN_PRIM_DATA && !qn_is_real(wrt[i]) && wrt[i]->dtype != QN_DTYPE_I32)
            return qn_fail(QN_E_UNSUPPORTED,
                           "there is no gradient with respect to %s: it is a packed weight (%s)",
                           wrt[i]->label ? wrt[i]->label : "an array", qn_dtype_name(wrt[i]->dtype));
    return QN_OK;
}

qn_status qn_vjp(qn_scope *s, qn_array *of, qn_array *cotangent, int n, qn_array *const *wrt, qn_array **out)
{
    QN_TRY(qn_scope_status(s));
    if (!of) return qn_fail(QN_E_ARG, "the array to differentiate is NULL");
    QN_TRY(check(of, cotangent, n, wrt));
    qn_tape t;
    QN_TRY(qn_tape_new(of, n, wrt, &t));
    if (!cotangent) cotangent = qn_broadcast_sym(s, qn_scalar(s, 1), of->shape);
    t.nodes[t.n - 1].value = cotangent; /* `of` is the youngest */
    for (int64_t i = t.n - 1; i >= 0 && s->status == QN_OK; i--)
        if (t.nodes[i].depends && t.nodes[i].value && !t.nodes[i].leaf) pull_back(s, &t.nodes[i], &t);
    qn_status status = qn_scope_status(s);
    for (int i = 0; i < n && status == QN_OK; i++) {
        const qn_tape_node *leaf = wrt[i] ? qn_tape_find(&t, wrt[i]) : NULL;
        out[i] = leaf ? leaf->value : NULL;
    }
    qn_tape_free(&t);
    return status;
}
