/* Tangents (forward derivatives): one rule a primitive. t[i] is the tangent of input i, NULL where it is
 * zero; at least one is not. Where the table has no rule it says that the fallback gives the tangent, or why
 * there is none. */
#include <stdio.h>
#include <string.h>

#include "array/tape.h"

typedef qn_array *tangent(qn_scope *s, qn_array *a, qn_array *const *t);

static qn_array *refuse(qn_scope *s, const qn_array *a, const char *why)
{
    return qn_scope_fail(s, qn_fail(QN_E_UNSUPPORTED, "%s%s%s has no tangent%s", a->label ? a->label : "",
                                    a->label ? ": " : "", qn_prim_get(a->prim)->name, why));
}

/* Linear in the first input, and only that one has a tangent. */
static qn_array *linear(qn_scope *s, qn_array *a, qn_array *const *t)
{
    qn_array *in[QN_MAX_INPUTS];
    for (int i = 1; i < a->n_in; i++)
        if (t[i]) return refuse(s, a, " with respect to any but its first input");
    memcpy(in, a->in, sizeof in);
    in[0] = t[0];
    return qn_again(s, a, in);
}

/* Linear in each of its first two inputs; others, which have no tangents, stay. */
static qn_array *bilinear(qn_scope *s, qn_array *a, qn_array *const *t)
{
    qn_array *part[2] = {NULL, NULL}, *in[QN_MAX_INPUTS];
    for (int i = 0; i < 2; i++) {
        if (!t[i]) continue;
        memcpy(in, a->in, sizeof in);
        in[i] = t[i];
        part[i] = qn_again(s, a, in);
    }
    return part[0] && part[1] ? qn_add(s, part[0], part[1]) : part[0] ? part[0] : part[1];
}

static qn_array *elementwise(qn_scope *s, qn_array *a, qn_array *const *t)
{
    qn_array *sum = NULL;
    for (int i = 0; i < a->n_in; i++) {
        if (!t[i]) continue;
        qn_array *part = qn_derivative(s, a, i, t[i]);
        if (!part) continue;
        sum = sum ? qn_add(s, sum, part) : part;
    }
    return sum && !qn_shape_equal(&sum->shape, &a->shape) ? qn_broadcast_sym(s, sum, a->shape) : sum;
}

static qn_array *tangent_CONCAT(qn_scope *s, qn_array *a, qn_array *const *t)
{
    qn_array *in[QN_MAX_INPUTS];
    for (int i = 0; i < a->n_in; i++) in[i] = t[i] ? t[i] : qn_zeros_like(s, a->in[i]);
    return qn_again(s, a, in);
}

static qn_array *tangent_SELECT(qn_scope *s, qn_array *a, qn_array *const *t)
{
    qn_array *zero = qn_full(s, a->dtype, 0, NULL, 0);
    return qn_broadcast_sym(s, qn_where(s, a->in[0], t[1] ? t[1] : zero, t[2] ? t[2] : zero), a->shape);
}

static qn_array *tangent_SCAN(qn_scope *s, qn_array *a, qn_array *const *t)
{
    if (a->params.scan.how == QN_SCAN_SUM) return linear(s, a, t);
    qn_array *f = qn_fallback(s, a->prim, &a->params, a->n_in, a->in), *out = NULL;
    const qn_status status = f ? qn_jvp(s, f, 1, a->in, t, &out) : qn_scope_status(s);
    return status == QN_OK ? out : qn_scope_fail(s, status);
}

static qn_array *tangent_MAX(qn_scope *s, qn_array *a, qn_array *const *t)
{
    return qn_sum(s, qn_mul(s, t[0], qn_max_share(s, a)), a->params.reduce.axis);
}

static qn_array *tangent_SOFTMAX(qn_scope *s, qn_array *a, qn_array *const *t)
{
    return qn_mul(s, a, qn_sub(s, t[0], qn_sum(s, qn_mul(s, t[0], a), a->shape.n - 1)));
}

static qn_array *short_conv(qn_scope *s, qn_array *a, qn_array *const *t)
{
    return a->params.recurrent.state ? refuse(s, a, " with a state") : bilinear(s, a, t);
}

/* The bias, which is added once, goes. */
static qn_array *experts(qn_scope *s, qn_array *a, qn_array *const *t)
{
    if (t[1] || t[a->n_in - 1]) return refuse(s, a, " with respect to its weights");
    return qn_experts(s, t[0], a->in[1], a->in[2], NULL);
}

#define tangent_DATA QN_NONE("it is made of nothing")
#define tangent_INPUT QN_NONE("it is made of nothing")
#define tangent_RESHAPE linear
#define tangent_TRANSPOSE linear
#define tangent_SLICE linear
#define tangent_BROADCAST linear
#define tangent_FUSED QN_NONE("the planner makes it, behind differentiation")
#define tangent_COPY linear
#define tangent_CAST linear
#define tangent_DROPOUT linear
#define tangent_STRIDED linear
#define tangent_COMPARE QN_NONE("it gives bool")
#define tangent_UPDATE tangent_CONCAT
#define tangent_MIN tangent_MAX
#define tangent_PROD QN_BY_FALLBACK
#define tangent_ARG_MAX QN_NONE("it gives indices")
#define tangent_ARG_SORT QN_NONE("it gives indices")
#define tangent_LAST_WRITER QN_NONE("it gives indices")
#define tangent_HASH_IDS QN_NONE("it gives indices")
#define tangent_RANDOM QN_NONE("its key is of integers")
#define tangent_SUM linear
#define tangent_RMS_NORM QN_BY_FALLBACK
#define tangent_RMS_NORM_GRAD QN_BY_FALLBACK
#define tangent_LAYER_NORM QN_BY_FALLBACK
#define tangent_SINKHORN QN_BY_FALLBACK
#define tangent_ROPE_TABLE QN_NONE("positions are integers, and frequencies are constants of a model")
#define tangent_ROPE linear
#define tangent_MATMUL bilinear
#define tangent_MATMUL_ROWS bilinear
#define tangent_TAKE linear
#define tangent_SCATTER_ADD linear
#define tangent_TAKE_ALONG linear
#define tangent_SCATTER_ALONG linear
#define tangent_TOP_K QN_NONE("it gives indices")
#define tangent_ATTEND QN_NONE("rows are ragged by data; attention in smaller primitives has one")
#define tangent_ATTEND_GRAD QN_NONE("attention is differentiated once")
#define tangent_INDEX_BLOCKS QN_NONE("it gives indices")
#define tangent_CROSS_ENTROPY QN_BY_FALLBACK
#define tangent_CROSS_ENTROPY_GRAD QN_BY_FALLBACK
#define tangent_LORA QN_NONE("it is for adapters in use; training states the two products")
#define tangent_EXPERTS_LORA QN_NONE("it is for adapters in use; training states the two products")
#define tangent_EXPERTS experts
#define tangent_EXPERTS_SUM QN_BY_FALLBACK
#define tangent_EXPERTS_GRAD linear
#define tangent_GATHER_MM bilinear
#define tangent_SCATTER_MM bilinear
#define tangent_SHORT_CONV short_conv
#define tangent_SHORT_CONV_GRAD QN_NONE("the convolution is differentiated once")
#define tangent_GATED_DELTA \
    QN_NONE("the state of a row depends on all rows before it, and training needs only gradients")
#define tangent_GATED_DELTA_GRAD QN_NONE("the recurrence is differentiated once")

typedef struct {
    tangent *rule;
    int by_fallback;
    const char *none;
} entry;

static const entry table[QN_PRIM_COUNT] = {
#define S(name) [QN_PRIM_##name] = {.rule = tangent_##name},
#define E(name, inputs) [QN_PRIM_##name] = {.rule = elementwise},
#define P(name, rows) [QN_PRIM_##name] = {.rule = tangent_##name},
#include "prim/primitives.def"
};

qn_stated qn_tangent_stated(qn_prim prim, const char **why)
{
    const entry *e = &table[prim];
    *why = e->none;
    return e->rule          ? QN_BY_RULE
           : e->by_fallback ? QN_BY_ITS_FALLBACK
           : e->none        ? QN_STATED_NONE
                            : QN_UNSTATED;
}

static qn_array *by_fallback(qn_scope *s, qn_array *a, qn_array *const *t)
{
    if (table[a->prim].none) {
        char why[160];
        snprintf(why, sizeof why, ": %s", table[a->prim].none);
        return refuse(s, a, why);
    }
    qn_array *f = qn_fallback(s, a->prim, &a->params, a->n_in, a->in), *out = NULL;
    if (!f) return NULL;
    qn_status status = qn_jvp(s, f, a->n_in, a->in, t, &out);
    return status == QN_OK ? out : qn_scope_fail(s, status);
}

/* A gradient of its own says nothing of tangents: what the array was made of gives them. */
static qn_array *through_custom(qn_scope *s, qn_array *a, const qn_tape *tape)
{
    const qn_custom *c = a->custom;
    qn_array *t[QN_CUSTOM_INPUTS_MAX], *out = NULL;
    for (int i = 0; i < c->n_in; i++) {
        const qn_tape_node *in = qn_tape_find(tape, c->in[i]);
        t[i] = in ? in->value : NULL;
    }
    qn_status status = qn_jvp(s, a->in[0], c->n_in, c->in, t, &out);
    return status == QN_OK ? out : qn_scope_fail(s, status);
}

static qn_array *push_forward(qn_scope *s, qn_array *a, const qn_tape *tape)
{
    qn_array *t[QN_MAX_INPUTS] = {NULL};
    int any = 0;
    if (a->stops) return NULL;
    if (a->custom) return through_custom(s, a, tape);
    for (int i = 0; i < a->n_in; i++) {
        const qn_tape_node *in = qn_tape_find(tape, a->in[i]);
        t[i] = in ? in->value : NULL;
        any |= t[i] != NULL;
    }
    if (!any) return NULL;
    const entry *e = &table[a->prim];
    return e->rule ? e->rule(s, a, t) : by_fallback(s, a, t);
}

qn_status qn_jvp(qn_scope *s, qn_array *of, int n, qn_array *const *wrt, qn_array *const *tangents,
                 qn_array **out)
{
    QN_TRY(qn_scope_status(s));
    if (!of) return qn_fail(QN_E_ARG, "the array to differentiate is NULL");
    for (int i = 0; i < n; i++) {
        char x[96], y[96];
        if (wrt[i] && tangents[i] && !qn_shape_equal(&wrt[i]->shape, &tangents[i]->shape))
            return qn_fail(QN_E_ARG, "an array %s with a tangent %s",
                           qn_shape_text(&wrt[i]->shape, x, sizeof x),
                           qn_shape_text(&tangents[i]->shape, y, sizeof y));
    }
    qn_tape t;
    QN_TRY(qn_tape_new(of, n, wrt, &t));
    for (int i = 0; i < n; i++) {
        qn_tape_node *leaf = wrt[i] ? qn_tape_find(&t, wrt[i]) : NULL;
        if (leaf) leaf->value = tangents[i];
    }
    for (int64_t i = 0; i < t.n && s->status == QN_OK; i++)
        if (t.nodes[i].depends && !t.nodes[i].leaf) t.nodes[i].value = push_forward(s, t.nodes[i].a, &t);
    qn_status status = qn_scope_status(s);
    if (status == QN_OK) *out = t.n ? t.nodes[t.n - 1].value : NULL;
    qn_tape_free(&t);
    return status;
}
