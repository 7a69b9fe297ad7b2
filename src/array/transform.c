/* Transforms of functions: gradients by their inputs, pieces that are computed twice, gradients of one's own.
 */
#include <string.h>

#include "array/tape.h"
#include "base/mem.h"

qn_array *qn_alias(qn_scope *s, qn_array *a)
{
    return a ? qn_reshape_sym(s, a, a->shape) : NULL;
}

qn_array *qn_stop_gradient(qn_scope *s, qn_array *a)
{
    qn_array *out = qn_alias(s, a);
    if (out) out->stops = 1;
    return out;
}

static qn_status call(qn_scope *s, qn_function *fn, void *user, int n_in, qn_array *const *in, int n_out,
                      qn_array **out)
{
    QN_TRY(qn_scope_status(s));
    for (int i = 0; i < n_out; i++) out[i] = NULL;
    qn_status status = fn(user, s, n_in, in, n_out, out);
    if (status != QN_OK) {
        qn_scope_fail(s, status);
        return status;
    }
    QN_TRY(qn_scope_status(s));
    for (int i = 0; i < n_out; i++)
        if (!out[i]) return qn_fail(QN_E_ARG, "the function made no output %d", i);
    return QN_OK;
}

/* ---- gradients by arguments --------------------------------------------------------------------------- */

static qn_array *zeros_like(qn_scope *s, const qn_array *a)
{
    qn_array *zero = qn_zeros(s, a->dtype, 0, NULL);
    return zero ? qn_broadcast_sym(s, zero, a->shape) : NULL;
}

/* own: fresh handles of the inputs, so that an array that is given twice is two arguments. */
static qn_status differentiate(qn_scope *s, qn_function *fn, void *user, int n_in, qn_array **own, int n,
                               const int *argnums, qn_array **wrt, int n_out, qn_array **out,
                               qn_array **grads)
{
    QN_TRY(call(s, fn, user, n_in, own, n_out, out));
    for (int i = 0; i < n; i++) {
        wrt[i] = own[argnums[i]];
        grads[i] = NULL;
        if (!qn_is_real(wrt[i]))
            return qn_fail(QN_E_ARG, "there is no gradient with respect to argument %d, which is %s",
                           argnums[i], qn_dtype_name(wrt[i]->dtype));
    }
    QN_TRY(qn_vjp(s, out[0], NULL, n, wrt, grads));
    for (int i = 0; i < n; i++)
        if (!grads[i]) grads[i] = zeros_like(s, wrt[i]);
    return qn_scope_status(s);
}

qn_status qn_value_and_grad(qn_scope *s, qn_function *fn, void *user, int n_in, qn_array *const *in,
                            int n_argnums, const int *argnums, int n_out, qn_array **out, qn_array **grads)
{
    QN_TRY(qn_scope_status(s));
    if (n_out < 1) return qn_fail(QN_E_ARG, "qn_value_and_grad: the function has no outputs");
    for (int i = 0; i < n_argnums; i++)
        if (argnums[i] < 0 || argnums[i] >= n_in)
            return qn_fail(QN_E_ARG, "qn_value_and_grad: argument %d of %d", argnums[i], n_in);
    qn_array **own = qn_calloc((size_t)n_in + (size_t)n_argnums + 1, sizeof *own);
    if (!own) return QN_E_NOMEM;
    qn_status status = QN_OK;
    memcpy(own, in, (size_t)n_in * sizeof *own);
    for (int i = 0; i < n_argnums; i++) { /* others are handed on as they are */
        qn_array **at = &own[argnums[i]];
        if (*at == in[argnums[i]]) *at = qn_alias(s, *at);
        if (!*at)
            status = s->status != QN_OK ? s->status : qn_fail(QN_E_ARG, "argument %d is NULL", argnums[i]);
    }
    if (status == QN_OK)
        status = differentiate(s, fn, user, n_in, own, n_argnums, argnums, own + n_in, n_out, out, grads);
    qn_free(own);
    return status;
}

/* ---- checkpoints -------------------------------------------------------------------------------------- */

qn_status qn_checkpoint(qn_scope *s, qn_function *fn, void *user, int n_in, qn_array *const *in, int n_out,
                        qn_array **out)
{
    QN_TRY(qn_scope_status(s));
    const uint64_t before = qn_array_youngest();
    QN_TRY(call(s, fn, user, n_in, in, n_out, out));
    for (int i = 0; i < n_out; i++)
        if (out[i]->id > before) out[i]->checkpoint = before;
    return QN_OK;
}

/* ---- gradients of one's own --------------------------------------------------------------------------- */

void qn_customize(qn_scope *s, qn_array *a, qn_gradient_function *gradient, void *user, int n_in,
                  qn_array *const *in)
{
    qn_custom *c = qn_calloc(1, sizeof *c);
    qn_array **own = qn_calloc((size_t)n_in + 1, sizeof *own);
    if (!c || !own) {
        qn_free(c);
        qn_free(own);
        qn_scope_fail(s, QN_E_NOMEM);
        return;
    }
    for (int i = 0; i < n_in; i++) own[i] = qn_keep(in[i]);
    *c = (qn_custom){gradient, user, n_in, own};
    a->custom = c;
}

qn_array *qn_custom_gradient(qn_scope *s, qn_function *fn, qn_gradient_function *gradient, void *user,
                             int n_in, qn_array *const *in)
{
    if (s->status != QN_OK) return NULL;
    qn_status status = QN_OK;
    qn_array *made = NULL;
    if (n_in < 0 || n_in > QN_CUSTOM_INPUTS_MAX)
        status =
            qn_fail(QN_E_ARG, "qn_custom_gradient: %d inputs, at most %d", n_in, (int)QN_CUSTOM_INPUTS_MAX);
    for (int i = 0; i < n_in && status == QN_OK; i++)
        if (!in[i]) status = qn_fail(QN_E_ARG, "qn_custom_gradient: input %d is NULL", i);
    if (status == QN_OK) status = call(s, fn, user, n_in, in, 1, &made);
    qn_array *out = status == QN_OK ? qn_alias(s, made) : NULL;
    if (out) qn_customize(s, out, gradient, user, n_in, in);
    if (status != QN_OK) return qn_scope_fail(s, status);
    return s->status == QN_OK ? out : NULL;
}

qn_status qn_custom_back(qn_scope *s, const qn_tape_node *n, const qn_tape *t)
{
    const qn_custom *c = n->a->custom;
    qn_array *grads[QN_CUSTOM_INPUTS_MAX] = {NULL};
    QN_TRY(c->gradient(c->user, s, c->n_in, c->in, n->a, n->value, grads));
    QN_TRY(qn_scope_status(s));
    for (int i = 0; i < c->n_in; i++) {
        qn_tape_node *in = qn_tape_find(t, c->in[i]);
        if (!in || !in->depends || !grads[i]) continue;
        if (!qn_shape_equal(&grads[i]->shape, &in->a->shape) || grads[i]->dtype != in->a->dtype) {
            char x[96], y[96];
            return qn_fail(QN_E_ARG,
                           "the custom gradient with respect to input %d is %s %s, but the input is %s %s", i,
                           qn_dtype_name(grads[i]->dtype), qn_shape_text(&grads[i]->shape, x, sizeof x),
                           qn_dtype_name(in->a->dtype), qn_shape_text(&in->a->shape, y, sizeof y));
        }
        qn_tape_add(s, in, grads[i]);
    }
    return QN_OK;
}
