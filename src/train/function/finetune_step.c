/* Steps over a loss of the caller's. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "train/function/finetune_parts.h"
#include "train/step/update.h"

/* ---- the optimiser's numbers --------------------------------------------------------------------------- */

static void free_numbers(float **numbers, int64_t n)
{
    for (int64_t i = 0; numbers && i < n; i++) qn_free(numbers[i]);
    qn_free(numbers);
}

void qn_finetune_free_moments(qn_finetune *f)
{
    free_numbers(f->m, f->trainable.n);
    free_numbers(f->v, f->trainable.n);
    f->m = f->v = NULL;
    if (f->moments_bytes) qn_ledger_release(f->base.device->host_ledger, QN_LEDGER_OTHER, f->moments_bytes);
    f->moments_bytes = 0;
}

static qn_status new_numbers(const qn_trainable *t, float ***out)
{
    *out = qn_calloc((size_t)t->n, sizeof **out);
    if (!*out) return QN_E_NOMEM;
    for (int64_t i = 0; i < t->n; i++)
        if (!((*out)[i] = qn_calloc((size_t)t->arrays[i].n, sizeof(float)))) return QN_E_NOMEM;
    return QN_OK;
}

static qn_status make_moments(qn_finetune *f, const qn_optimizer *o)
{
    const int states = qn_optimizer_states(o);
    const size_t bytes = (size_t)f->trainable.n_elements * sizeof(float) * (size_t)states;
    if (f->m || !states) return QN_OK;
    QN_TRY(qn_ledger_reserve(f->base.device->host_ledger, QN_LEDGER_OTHER, bytes));
    f->moments_bytes = bytes;
    qn_status status = new_numbers(&f->trainable, &f->m);
    if (status == QN_OK && states > 1) status = new_numbers(&f->trainable, &f->v);
    if (status != QN_OK) qn_finetune_free_moments(f);
    return status;
}

/* ---- gradients ---------------------------------------------------------------------------------------- */

/* Gradients [n] and, behind them, the loss, computed. */
static qn_status differentiate(qn_finetune *f, qn_scope *s, qn_array *loss, qn_array **out)
{
    const qn_trainable *t = &f->trainable;
    qn_array **wrt = qn_alloc_array((size_t)t->n, sizeof(qn_array *));
    if (!wrt) return QN_E_NOMEM;
    for (int64_t i = 0; i < t->n; i++) wrt[i] = t->arrays[i].array;
    qn_status status = qn_vjp(s, loss, NULL, (int)t->n, wrt, out);
    qn_free(wrt);
    int64_t n_reached = 0;
    for (int64_t i = 0; status == QN_OK && i < t->n; i++) n_reached += out[i] != NULL;
    if (status == QN_OK && !n_reached)
        status = qn_fail(QN_E_ARG, "qn_finetune_step: the loss depends on no trained array");
    out[t->n] = loss;
    return status == QN_OK ? qn_eval(s, (int)t->n + 1, out) : status;
}

static qn_status measure(const qn_finetune *f, qn_array *const *gradients, double *norm)
{
    const qn_trainable *t = &f->trainable;
    double squares = 0;
    for (int64_t i = 0; i < t->n; i++) {
        const float *g = gradients[i] ? qn_array_data(gradients[i]) : NULL;
        double own = 0;
        for (int64_t k = 0; g && k < t->arrays[i].n; k++) own += (double)g[k] * g[k];
        if (!isfinite(own))
            return qn_fail(QN_E_DEVICE, "the gradient with respect to %s is not finite after %lld steps",
                           t->arrays[i].name, (long long)f->step);
        squares += own;
    }
    *norm = sqrt(squares);
    return QN_OK;
}

static qn_status step(qn_finetune *f, qn_scope *s, qn_array **results, const qn_optimizer_options *o,
                      double clip_norm, qn_finetune_report *report)
{
    qn_trainable *t = &f->trainable;
    const qn_optimizer optimizer = {.kind = o->kind,
                                    .beta1 = o->beta1,
                                    .beta2 = o->beta2,
                                    .eps = o->eps,
                                    .weight_decay = o->weight_decay,
                                    .momentum = o->momentum,
                                    .no_bias_correction = o->no_bias_correction};
    double loss, norm = 0;
    QN_TRY(qn_array_item(s, results[t->n], &loss));
    if (!isfinite(loss))
        return qn_fail(QN_E_DEVICE, "the loss is %g after %lld steps", loss, (long long)f->step);
    QN_TRY(measure(f, results, &norm));
    QN_TRY(make_moments(f, &optimizer));
    f->kind = o->kind;
    f->step++;
    qn_update u = {.optimizer = &optimizer, .step = f->step, .rate = o->rate, .g_scale = 1};
    if (clip_norm > 0 && norm > clip_norm) u.g_scale = clip_norm / (norm + 1e-6);
    for (int64_t i = 0; i < t->n; i++)
        if (results[i])
            qn_trainable_update(t, i, &u, qn_array_data(results[i]), f->m ? f->m[i] : NULL,
                                f->v ? f->v[i] : NULL);
    if (report) *report = (qn_finetune_report){.step = f->step, .loss = loss, .grad_norm = norm};
    return QN_OK;
}

qn_status qn_finetune_step(qn_finetune *f, qn_scope *s, qn_array *loss, const qn_optimizer_options *o,
                           double clip_norm, qn_finetune_report *report)
{
    QN_TRY(qn_scope_status(s));
    if (!loss || !o) return qn_fail(QN_E_ARG, "qn_finetune_step: loss and options are needed");
    if (f->step && o->kind != f->kind)
        return qn_fail(QN_E_ARG, "qn_finetune_step: the first step had another optimiser");
    qn_array **results = qn_calloc((size_t)f->trainable.n + 1, sizeof(qn_array *));
    if (!results) return QN_E_NOMEM;
    qn_status status = differentiate(f, s, loss, results);
    if (status == QN_OK) status = step(f, s, results, o, clip_norm, report);
    qn_free(results);
    return status;
}
