#include "model/adapter/adapter_gains.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { NORM_ROWS = 128 };

/* Squares of the lengths of rows [first, first + n) of W + scale B^T A, into out. */
static qn_status square_lengths(qn_scope *s, qn_array *w, const qn_adapter_target *t, const qn_lora_pair *p,
                                int64_t first, int64_t n, float *out)
{
    int32_t ids[NORM_ROWS];
    const float *b = (const float *)p->data->data + p->b;
    qn_shape a_shape = qn_shape_make(2, (int64_t[]){t->rank, t->n_in});
    float *of_rows = qn_alloc_array((size_t)(n * t->rank), sizeof *of_rows);
    if (!of_rows) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(first + i);
        for (int32_t k = 0; k < t->rank; k++)
            of_rows[i * t->rank + k] = p->scale * b[k * t->n_out + first + i];
    }
    qn_array *rows = qn_take(s, w, qn_from_data(s, QN_DTYPE_I32, 1, &n, ids));
    qn_array *change =
        qn_matmul(s, qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){n, t->rank}, of_rows),
                  qn_from_data(s, QN_DTYPE_F32, a_shape.n, a_shape.dim, (const float *)p->data->data + p->a));
    qn_array *sums = qn_sum(s, qn_unary(s, QN_PRIM_SQUARE, qn_add(s, rows, change)), 1);
    qn_free(of_rows);
    QN_TRY(qn_scope_status(s));
    QN_TRY(qn_eval(s, 1, &sums));
    memcpy(out, qn_array_data(sums), (size_t)n * sizeof *out);
    return QN_OK;
}

/* DoRA: the changed rows get the lengths that the magnitudes say, so an output's gain is its magnitude over
 * the length of its row. gain holds the magnitudes before. */
qn_status qn_adapter_gains(qn_device *device, qn_array *w, const qn_adapter_target *t, const qn_lora_pair *p,
                           float *gain)
{
    qn_status status = w ? QN_OK : qn_fail(QN_E_UNSUPPORTED, "%s: the model has no such matrix", t->m->name);
    for (int64_t i = 0; status == QN_OK && i < t->n_out; i += NORM_ROWS) {
        float squares[NORM_ROWS];
        int64_t n = t->n_out - i < NORM_ROWS ? t->n_out - i : NORM_ROWS;
        qn_scope *s = qn_scope_new(device);
        status = s ? square_lengths(s, w, t, p, i, n, squares) : QN_E_NOMEM;
        qn_scope_free(s);
        for (int64_t j = 0; status == QN_OK && j < n; j++) {
            gain[i + j] /= sqrtf(squares[j]);
            if (!isfinite(gain[i + j]))
                status = qn_fail(QN_E_FORMAT, "%s: tensor %s: row %lld of its matrix has the length %g",
                                 t->m->file, t->m->name, (long long)(i + j), sqrt((double)squares[j]));
        }
    }
    return status;
}
