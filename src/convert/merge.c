#include "convert/merge.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "model/weights/row_order.h"

/* Numbers of each output, in the order in which adapters are published, to the order of the model's rows;
 * spare: room for as many. */
static void reorder(const qn_model_config *c, const qn_adapter_target *t, float *x, float *spare)
{
    memcpy(spare, x, (size_t)t->n_out * sizeof *x);
    for (int64_t o = 0; o < t->n_out; o++) x[qn_row_order_place(c, t->role, t->layer, o)] = spare[o];
}

static qn_status read_one(const qn_model_config *c, const qn_adapter_target *t, qn_merge *out)
{
    const int64_t ranks = t->rank * qn_adapter_target_count(t);
    const size_t n_a = (size_t)(t->n_in * ranks), n_b = (size_t)(t->n_out * ranks);
    qn_merge m = {.target = t, .a = qn_alloc_array(n_a + n_b + 2 * (size_t)t->n_out, sizeof *m.a)};
    if (!m.a) return QN_E_NOMEM;
    m.b = m.a + n_a;
    m.m = t->m ? m.b + n_b : NULL;
    float *spare = m.b + n_b + t->n_out;
    qn_status status = qn_adapter_target_read(t, m.a, m.b, m.m);
    if (status == QN_OK && qn_row_order_differs(c, t->role)) {
        for (int32_t k = 0; k < t->rank; k++) reorder(c, t, m.b + k * t->n_out, spare);
        if (m.m) reorder(c, t, m.m, spare);
    }
    if (status == QN_OK)
        *out = m;
    else
        qn_merge_free(&m);
    return status;
}

qn_status qn_merge_read(const qn_model_config *c, const qn_adapter_target *target, qn_merge *out)
{
    qn_merge first = {0}, **next = &first.also;
    QN_TRY(read_one(c, target, &first));
    qn_status status = QN_OK;
    for (const qn_adapter_target *t = target->also; t && status == QN_OK; t = t->also) {
        *next = qn_calloc(1, sizeof **next);
        status = *next ? read_one(c, t, *next) : QN_E_NOMEM;
        if (status == QN_OK) next = &(*next)->also;
    }
    if (status == QN_OK)
        *out = first;
    else
        qn_merge_free(&first);
    return status;
}

void qn_merge_free(qn_merge *m)
{
    for (qn_merge *also = m->also, *next; also; also = next) {
        next = also->also;
        qn_free(also->a);
        qn_free(also);
    }
    qn_free(m->a);
    *m = (qn_merge){0};
}

/* DoRA: a row gets the length that its magnitude says. */
static void set_length(float *row, int64_t n, float length)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)row[i] * (double)row[i];
    const float by = (float)((double)length / sqrt(squares));
    for (int64_t i = 0; i < n; i++) row[i] *= by;
}

/* Of one adapter. */
static qn_status add_to_rows(const qn_merge *m, int64_t first, int64_t n, float *rows, float *change)
{
    const qn_adapter_target *t = m->target;
    for (int64_t r = first; r < first + n; r++, rows += t->n_in) {
        const int64_t expert = r / t->n_out, o = r % t->n_out;
        memset(change, 0, (size_t)t->n_in * sizeof *change);
        for (int32_t k = 0; k < t->rank; k++) {
            const float b = m->b[(expert * t->rank + k) * t->n_out + o];
            const float *a = m->a + (expert * t->rank + k) * t->n_in;
            for (int64_t i = 0; i < t->n_in; i++) change[i] += b * a[i];
        }
        float sum = 0;
        for (int64_t i = 0; i < t->n_in; i++) rows[i] += t->factor * change[i];
        if (m->m) set_length(rows, t->n_in, m->m[o]);
        for (int64_t i = 0; i < t->n_in; i++) sum += rows[i] * 0; /* 0, or NaN where one is not finite */
        if (sum != 0)
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: row %lld of the merged matrix is not finite",
                           t->b->file, t->b->name, (long long)r);
    }
    return QN_OK;
}

qn_status qn_merge_rows(const qn_merge *m, int64_t first, int64_t n, float *rows, float *change)
{
    for (; m; m = m->also) QN_TRY(add_to_rows(m, first, n, rows, change));
    return QN_OK;
}

static qn_status add_to_inputs(const qn_merge *m, int64_t expert, int64_t input, int64_t step, float *out)
{
    const qn_adapter_target *t = m->target;
    float sum = 0;
    for (int64_t o = 0; o < t->n_out; o++) {
        float change = 0;
        for (int32_t k = 0; k < t->rank; k++)
            change +=
                m->b[(expert * t->rank + k) * t->n_out + o] * m->a[(expert * t->rank + k) * t->n_in + input];
        out[o * step] += t->factor * change;
        sum += out[o * step] * 0; /* 0, or NaN where one is not finite */
    }
    return sum == 0 ? QN_OK
                    : qn_fail(QN_E_FORMAT,
                              "%s: tensor %s: column %lld of the merged matrix of expert %lld is not finite",
                              t->b->file, t->b->name, (long long)input, (long long)expert);
}

qn_status qn_merge_inputs(const qn_merge *m, int64_t expert, int64_t input, int64_t step, float *out)
{
    for (; m; m = m->also) QN_TRY(add_to_inputs(m, expert, input, step, out));
    return QN_OK;
}
