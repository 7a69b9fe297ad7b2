/* Losses: for each element or row first, then weighed and summed. */
#include <math.h>
#include <quern/array_nn.h>

#include "array/graph.h"
#include "prim/convert.h"
#include "prim/dtype.h"

/* ---- helpers ------------------------------------------------------------------------------------------ */

static qn_array *refuse(qn_scope *s, const char *what, const char *why)
{
    return s->status == QN_OK ? qn_scope_fail(s, qn_fail(QN_E_ARG, "%s: %s", what, why)) : NULL;
}

static qn_array *f32(qn_scope *s, qn_array *a)
{
    return qn_astype(s, a, QN_DTYPE_F32);
}

static qn_array *unary(qn_scope *s, qn_prim prim, qn_array *a)
{
    return qn_unary(s, prim, a);
}

static qn_array *plus(qn_scope *s, qn_array *a, double x)
{
    return qn_add(s, a, qn_scalar(s, (float)x));
}

static qn_array *times(qn_scope *s, qn_array *a, double x)
{
    return qn_mul(s, a, qn_scalar(s, (float)x));
}

static qn_array *at_most(qn_scope *s, qn_array *a, double x)
{
    return qn_binary(s, QN_PRIM_MINIMUM, a, qn_scalar(s, (float)x));
}

static qn_array *at_least(qn_scope *s, qn_array *a, double x)
{
    return qn_binary(s, QN_PRIM_MAXIMUM, a, qn_scalar(s, (float)x));
}

/* Over the last dimension, which goes to size 1. */
static qn_array *sum_last(qn_scope *s, qn_array *a)
{
    return a ? qn_sum(s, a, a->shape.n - 1) : NULL;
}

static qn_array *sum_all(qn_scope *s, qn_array *a)
{
    for (int d = a ? a->shape.n - 1 : -1; d >= 0; d--) a = qn_sum(s, a, d);
    return a ? qn_reshape_sym(s, a, (qn_shape){0}) : NULL;
}

static qn_array *broadcast(qn_scope *s, qn_array *a, const qn_shape *shape)
{
    return a ? qn_broadcast_sym(s, a, *shape) : NULL;
}

/* each: losses; weight: of its shape, or NULL. */
static qn_array *reduced(qn_scope *s, qn_loss_reduction how, qn_array *each, qn_array *weight)
{
    if (!each) return NULL;
    qn_array *all = weight ? qn_mul(s, each, weight) : each;
    const double n = (double)qn_shape_elements(&each->shape, NULL);
    if (how == QN_LOSS_EACH) return all;
    all = sum_all(s, all);
    if (how == QN_LOSS_SUM) return all;
    if (how == QN_LOSS_BATCH_MEAN) return times(s, all, 1 / (each->shape.n ? (double)each->shape.dim[0] : 1));
    return weight ? qn_div(s, all, sum_all(s, weight)) : times(s, all, 1 / n);
}

/* Where a loss of elements ends: broadcasts the weights. */
static qn_array *finish(qn_scope *s, qn_array *each, const qn_loss_options *o)
{
    static const qn_loss_options none;
    if (!o) o = &none;
    if (!each) return NULL;
    return reduced(s, o->reduction, each, o->weight ? broadcast(s, f32(s, o->weight), &each->shape) : NULL);
}

/* x - target in f32; the target is broadcast to x. */
static qn_array *difference(qn_scope *s, qn_array *x, qn_array *target)
{
    return qn_sub(s, f32(s, x), broadcast(s, f32(s, target), &x->shape));
}

/* ---- classes ------------------------------------------------------------------------------------------ */

/* One prediction and what it should have been, as rows. */
typedef struct {
    qn_array *z;      /* [n, classes] */
    qn_array *target; /* [n, 1], numbers in f32, or a distribution [n, classes] */
    qn_array *weight; /* [n, 1] or NULL */
    qn_array *norm;   /* [n, 1]: what turns z into logarithms of probabilities; NULL: they are */
    int is_distribution;
    int64_t n, classes;
    qn_shape shape; /* of the losses */
} rows_of_classes;

static qn_array *as_rows(qn_scope *s, qn_array *a, int64_t n, int64_t columns)
{
    return a ? qn_reshape_sym(s, a, qn_shape_make(2, (int64_t[]){n, columns})) : NULL;
}

/* log(sum(exp(z))) without overflow; a row's largest number is a constant to its gradient, which is softmax.
 */
static qn_array *log_sum(qn_scope *s, qn_array *z)
{
    qn_array *top = z ? qn_max(s, z, 1) : NULL;
    return qn_add(s, unary(s, QN_PRIM_LOG, sum_last(s, unary(s, QN_PRIM_EXP, qn_sub(s, z, top)))), top);
}

static int read_rows(qn_scope *s, const char *what, qn_array *x, qn_array *targets, const qn_class_options *o,
                     rows_of_classes *r)
{
    if (!x || !targets) return 0;
    const int last = x->shape.n - 1;
    *r = (rows_of_classes){.is_distribution = qn_dtype_is_float(targets->dtype)};
    if (last < 0 || qn_shape_is_symbolic(&x->shape) || x->shape.dim[last] < 1)
        return refuse(s, what, "takes [.., classes]"), 0;
    r->shape = x->shape;
    r->shape.n = last;
    r->classes = x->shape.dim[last];
    r->n = qn_shape_elements(&r->shape, NULL);
    if (!qn_shape_equal(&targets->shape, r->is_distribution ? &x->shape : &r->shape))
        return refuse(s, what,
                      "targets must be one class per row, or a distribution of the prediction's shape"),
               0;
    if (!(o->label_smoothing >= 0 && o->label_smoothing < 1))
        return refuse(s, what, "label_smoothing must be at least 0 and below 1"), 0;
    if (r->is_distribution && (o->class_weight || o->has_ignored))
        return refuse(s, what, "class weights and ignored classes need targets that are classes"), 0;
    if (o->class_weight && !qn_shape_equal(&o->class_weight->shape, &(qn_shape){.n = 1, .dim = {r->classes}}))
        return refuse(s, what, "class_weight must have the shape [classes]"), 0;
    r->z = as_rows(s, f32(s, x), r->n, r->classes);
    r->target = as_rows(s, f32(s, targets), r->n, r->is_distribution ? r->classes : 1);
    if (o->weight) r->weight = as_rows(s, broadcast(s, f32(s, o->weight), &r->shape), r->n, 1);
    return 1;
}

/* 1 where a, a whole number or a weight, is not 0; else 0. */
static qn_array *is_not_zero(qn_scope *s, qn_array *a)
{
    return at_most(s, times(s, unary(s, QN_PRIM_ABS, a), 0x1p127), 1);
}

static qn_array *joined(qn_scope *s, qn_array *a, qn_array *b)
{
    return a ? qn_mul(s, a, b) : b;
}

/* No device looks at indices: a target that is no class is replaced by one that is, and the row's loss by NaN
 * unless the row counts nothing. r->weight becomes what the mean divides by. */
static qn_array *of_classes(qn_scope *s, rows_of_classes *r, const qn_class_options *o)
{
    qn_array *row = r->weight, *own_weight = NULL, *all_weights = NULL;
    if (o->has_ignored) /* whole numbers below 2^24: the difference is exact */
        row = joined(s, row, is_not_zero(s, plus(s, r->target, -(double)o->ignored)));
    qn_array *known = at_least(s, at_most(s, r->target, (double)(r->classes - 1)), 0);
    qn_array *bad = is_not_zero(s, qn_sub(s, r->target, known)), *ids = qn_astype(s, known, QN_DTYPE_I32);
    if (row) bad = qn_mul(s, bad, is_not_zero(s, row));
    if (o->class_weight && r->z) {
        all_weights = broadcast(s, f32(s, o->class_weight), &r->z->shape);
        own_weight = qn_take_along(s, all_weights, ids);
    }
    qn_array *each = qn_sub(s, r->norm ? r->norm : qn_scalar(s, 0), qn_take_along(s, r->z, ids));
    each = qn_add(s, each, qn_div(s, qn_scalar(s, 0), qn_sub(s, qn_scalar(s, 1), bad)));
    each = own_weight ? qn_mul(s, each, own_weight) : each;
    if (o->label_smoothing > 0) { /* the shares of all classes have their own weights */
        qn_array *log_p = r->norm ? qn_sub(s, r->z, r->norm) : r->z;
        qn_array *shares = sum_last(s, all_weights ? qn_mul(s, log_p, all_weights) : log_p);
        each = qn_sub(s, times(s, each, 1 - o->label_smoothing),
                      times(s, shares, o->label_smoothing / (double)r->classes));
    }
    r->weight = row && own_weight ? qn_mul(s, row, own_weight) : row ? row : own_weight;
    return row ? qn_mul(s, each, row) : each;
}

static qn_array *of_distributions(qn_scope *s, rows_of_classes *r, const qn_class_options *o)
{
    const double e = o->label_smoothing;
    qn_array *p = e > 0 ? plus(s, times(s, r->target, 1 - e), e / (double)r->classes) : r->target;
    qn_array *each =
        sum_last(s, qn_mul(s, p, r->norm ? qn_sub(s, r->norm, r->z) : unary(s, QN_PRIM_NEG, r->z)));
    return r->weight ? qn_mul(s, each, r->weight) : each;
}

static qn_array *class_loss(qn_scope *s, const char *what, qn_array *x, qn_array *targets,
                            const qn_class_options *o, int is_logits)
{
    static const qn_class_options none;
    rows_of_classes r;
    if (!o) o = &none;
    if (!read_rows(s, what, x, targets, o, &r)) return NULL;
    if (is_logits) r.norm = log_sum(s, r.z);
    qn_array *each = r.is_distribution ? of_distributions(s, &r, o) : of_classes(s, &r, o); /* weighed */
    if (!each) return NULL;
    if (o->reduction == QN_LOSS_EACH) return qn_reshape_sym(s, each, r.shape);
    qn_array *all = sum_all(s, each);
    if (o->reduction == QN_LOSS_SUM) return all;
    if (o->reduction == QN_LOSS_BATCH_MEAN)
        return times(s, all, 1 / (r.shape.n ? (double)r.shape.dim[0] : 1));
    return r.weight ? qn_div(s, all, sum_all(s, r.weight)) : times(s, all, 1 / (double)r.n);
}

qn_array *qn_loss_cross_entropy(qn_scope *s, qn_array *logits, qn_array *targets,
                                const qn_class_options *options)
{
    return class_loss(s, "qn_loss_cross_entropy", logits, targets, options, 1);
}

qn_array *qn_loss_nll(qn_scope *s, qn_array *log_probs, qn_array *targets, const qn_class_options *options)
{
    return class_loss(s, "qn_loss_nll", log_probs, targets, options, 0);
}

/* ---- elements ----------------------------------------------------------------------------------------- */

qn_array *qn_loss_mse(qn_scope *s, qn_array *x, qn_array *target, const qn_loss_options *options)
{
    if (!x || !target) return NULL;
    return finish(s, unary(s, QN_PRIM_SQUARE, difference(s, x, target)), options);
}

qn_array *qn_loss_l1(qn_scope *s, qn_array *x, qn_array *target, const qn_loss_options *options)
{
    if (!x || !target) return NULL;
    return finish(s, unary(s, QN_PRIM_ABS, difference(s, x, target)), options);
}

/* With c = min(d, delta): c^2 / 2 + delta (d - c), which has no branches and the right slope. */
static qn_array *huber(qn_scope *s, qn_array *x, qn_array *target, double delta)
{
    qn_array *d = unary(s, QN_PRIM_ABS, difference(s, x, target)), *c = at_most(s, d, delta);
    return qn_add(s, times(s, unary(s, QN_PRIM_SQUARE, c), 0.5), times(s, qn_sub(s, d, c), delta));
}

qn_array *qn_loss_huber(qn_scope *s, qn_array *x, qn_array *target, double delta,
                        const qn_loss_options *options)
{
    if (!x || !target) return NULL;
    if (!(delta > 0)) return refuse(s, "qn_loss_huber", "delta must be above 0");
    return finish(s, huber(s, x, target, delta), options);
}

qn_array *qn_loss_smooth_l1(qn_scope *s, qn_array *x, qn_array *target, double beta,
                            const qn_loss_options *options)
{
    if (!x || !target) return NULL;
    if (!(beta >= 0)) return refuse(s, "qn_loss_smooth_l1", "beta must be at least 0");
    if (beta == 0) return qn_loss_l1(s, x, target, options);
    return finish(s, times(s, huber(s, x, target, beta), 1 / beta), options);
}

/* (1 - t) x + (1 + (positive - 1) t) softplus(-x) */
qn_array *qn_loss_binary_cross_entropy(qn_scope *s, qn_array *logits, qn_array *target, double positive,
                                       const qn_loss_options *options)
{
    if (!logits || !target) return NULL;
    qn_array *x = f32(s, logits), *t = broadcast(s, f32(s, target), &logits->shape);
    qn_array *low = unary(s, QN_PRIM_SOFTPLUS, unary(s, QN_PRIM_NEG, x));
    if (positive != 1) low = qn_mul(s, low, plus(s, times(s, t, positive - 1), 1));
    return finish(s, qn_add(s, qn_mul(s, x, qn_sub(s, qn_scalar(s, 1), t)), low), options);
}

static qn_array *bounded_log(qn_scope *s, qn_array *p)
{
    return at_least(s, unary(s, QN_PRIM_LOG, p), -100);
}

qn_array *qn_loss_binary_probabilities(qn_scope *s, qn_array *p, qn_array *target,
                                       const qn_loss_options *options)
{
    if (!p || !target) return NULL;
    qn_array *t = broadcast(s, f32(s, target), &p->shape), *one = qn_scalar(s, 1);
    p = f32(s, p);
    qn_array *yes = qn_mul(s, t, bounded_log(s, p));
    qn_array *no = qn_mul(s, qn_sub(s, one, t), bounded_log(s, qn_sub(s, one, p)));
    return finish(s, unary(s, QN_PRIM_NEG, qn_add(s, yes, no)), options);
}

qn_array *qn_loss_kl_div(qn_scope *s, qn_array *log_probs, qn_array *target, int is_log,
                         const qn_loss_options *options)
{
    if (!log_probs || !target) return NULL;
    qn_array *t = broadcast(s, f32(s, target), &log_probs->shape);
    /* below the smallest normal number 0 log 0 would be NaN */
    qn_array *p = is_log ? unary(s, QN_PRIM_EXP, t) : t;
    qn_array *log_t = is_log ? t : unary(s, QN_PRIM_LOG, at_least(s, t, 0x1p-126));
    return finish(s, qn_mul(s, p, qn_sub(s, log_t, f32(s, log_probs))), options);
}

qn_array *qn_loss_cosine(qn_scope *s, qn_array *a, qn_array *b, double eps, const qn_loss_options *options)
{
    if (!a || !b) return NULL;
    if (a->shape.n < 1) return refuse(s, "qn_loss_cosine", "takes [.., n]");
    const qn_shape shape = a->shape;
    qn_shape rows = shape;
    rows.n--;
    a = f32(s, a);
    b = broadcast(s, f32(s, b), &shape);
    qn_array *squares =
        qn_mul(s, sum_last(s, unary(s, QN_PRIM_SQUARE, a)), sum_last(s, unary(s, QN_PRIM_SQUARE, b)));
    if (eps == 0) eps = 1e-8;
    /* the floor lies under the root, whose slope at 0 is infinite */
    qn_array *norms = unary(s, QN_PRIM_SQRT, at_least(s, squares, eps * eps));
    qn_array *each = qn_sub(s, qn_scalar(s, 1), qn_div(s, sum_last(s, qn_mul(s, a, b)), norms));
    return finish(s, each ? qn_reshape_sym(s, each, rows) : NULL, options);
}
