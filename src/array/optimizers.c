/* Steps of optimisers as arrays, and the clipping of gradients. The formulas are those of
 * train/step/optimizer.c, whose trainer updates plain memory in f64; here every number is f32. */
#include <math.h>
#include <quern/array_nn.h>

#include "array/graph.h"

static qn_array *times(qn_scope *s, qn_array *a, double x)
{
    return x == 1 ? a : qn_mul(s, a, qn_scalar(s, (float)x));
}

qn_optimizer_options qn_optimizer_defaults(qn_optimizer_kind kind)
{
    qn_optimizer_options o = {.kind = kind, .rate = 1e-5, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    if (kind == QN_OPTIMIZER_ADAMW) o.weight_decay = 0.01;
    return o;
}

static qn_array *running(qn_scope *s, qn_array *mean, double keep, qn_array *x, double take)
{
    x = times(s, x, take);
    return mean ? qn_add(s, times(s, mean, keep), x) : x;
}

/* The corrections of m and v are plain numbers: rate m / c1 / (sqrt(v) / sqrt(c2) + eps). */
static qn_array *adamw(qn_scope *s, const qn_optimizer_options *o, int64_t step, qn_array *g,
                       qn_optimizer_state *state)
{
    const double c1 = o->no_bias_correction ? 1 : 1 - pow(o->beta1, (double)step);
    const double c2 = o->no_bias_correction ? 1 : 1 - pow(o->beta2, (double)step);
    state->m = running(s, state->m, o->beta1, g, 1 - o->beta1);
    state->v = running(s, state->v, o->beta2, qn_unary(s, QN_PRIM_SQUARE, g), 1 - o->beta2);
    qn_array *root = times(s, qn_unary(s, QN_PRIM_SQRT, state->v), 1 / sqrt(c2));
    return times(s, qn_div(s, state->m, qn_add(s, root, qn_scalar(s, (float)o->eps))), o->rate / c1);
}

qn_array *qn_optimizer_update(qn_scope *s, const qn_optimizer_options *o, int64_t step, qn_array *w,
                              qn_array *g, qn_optimizer_state *state)
{
    if (!w || !g || s->status != QN_OK) return NULL;
    if (!qn_shape_equal(&w->shape, &g->shape) || step < 1 ||
        (o->kind != QN_OPTIMIZER_ADAMW && o->kind != QN_OPTIMIZER_SGD))
        return qn_scope_fail(s, qn_fail(QN_E_ARG, "qn_optimizer_update: %s",
                                        step < 1 ? "the first step must be 1"
                                        : o->kind != QN_OPTIMIZER_ADAMW && o->kind != QN_OPTIMIZER_SGD
                                            ? "the optimiser does not exist"
                                            : "a gradient has another shape than its parameter"));
    const qn_dtype dtype = w->dtype;
    qn_optimizer_state next = *state;
    g = qn_astype(s, g, QN_DTYPE_F32);
    qn_array *by;
    if (o->kind == QN_OPTIMIZER_ADAMW) {
        by = adamw(s, o, step, g, &next);
    } else {
        if (o->momentum != 0) next.m = g = running(s, next.m, o->momentum, g, 1);
        by = times(s, g, o->rate);
    }
    w = times(s, qn_astype(s, w, QN_DTYPE_F32), 1 - o->rate * o->weight_decay);
    w = qn_astype(s, qn_sub(s, w, by), dtype);
    if (w) *state = next;
    return w;
}

void qn_clip_gradients(qn_scope *s, int n, qn_array *const *g, double max_norm, qn_array **out,
                       qn_array **norm)
{
    qn_array *total = NULL;
    for (int i = 0; i < n; i++) {
        if (!g[i]) continue;
        qn_array *sum = qn_unary(s, QN_PRIM_SQUARE, qn_astype(s, g[i], QN_DTYPE_F32));
        for (int d = g[i]->shape.n - 1; d >= 0; d--) sum = sum ? qn_sum(s, sum, d) : NULL;
        sum = sum ? qn_reshape_sym(s, sum, (qn_shape){0}) : NULL;
        total = total ? qn_add(s, total, sum) : sum;
    }
    qn_array *length = total ? qn_unary(s, QN_PRIM_SQRT, total) : s->status == QN_OK ? qn_scalar(s, 0) : NULL;
    qn_array *factor = qn_div(s, qn_scalar(s, (float)max_norm), qn_add(s, length, qn_scalar(s, 1e-6f)));
    factor = qn_binary(s, QN_PRIM_MINIMUM, factor, qn_scalar(s, 1));
    for (int i = 0; i < n; i++)
        out[i] = g[i] ? qn_astype(s, qn_mul(s, qn_astype(s, g[i], QN_DTYPE_F32), factor), g[i]->dtype) : NULL;
    if (norm) *norm = length;
}
