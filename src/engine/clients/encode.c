#include "engine/clients/encode.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

typedef struct {
    int64_t n_ids, i; /* number i of the list */
} place;

static int by_length(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->n_ids != y->n_ids) return x->n_ids < y->n_ids ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

/* Sequences order[0..n) in one step. */
static qn_status step(qn_scheduler *s, qn_engine *e, const qn_encoding *what, const place *order, int64_t n,
                      qn_encoded_fn *fn, void *user)
{
    qn_encode_row rows[QN_ENCODE_SEQUENCES];
    const float *values;
    const int64_t width = what->scores ? qn_engine_config(e)->encoder.num_labels : qn_engine_encoded_size(e);
    for (int64_t i = 0; i < n; i++) rows[i] = what->rows[order[i].i];
    QN_TRY(qn_scheduler_enter(s));
    const int64_t begin = qn_clock_ns();
    qn_status status =
        what->scores ? qn_engine_classify(e, n, rows, &values) : qn_engine_encode(e, n, rows, &values);
    if (status == QN_OK) qn_scheduler_count_step(s, n, qn_clock_ns() - begin);
    for (int64_t i = 0; status == QN_OK && i < n; i++) {
        const int64_t n_values = what->scores ? 1 : rows[i].n_ids;
        status = fn(user, order[i].i, n_values, values);
        values += n_values * width;
    }
    qn_scheduler_leave(s);
    return status;
}

static qn_status all_steps(qn_scheduler *s, qn_engine *e, const qn_encoding *what, const place *order,
                           qn_encoded_fn *fn, void *user)
{
    const int64_t most = qn_engine_encode_rows(e);
    for (int64_t begin = 0, end; begin < what->n_rows; begin = end) {
        int64_t total = 0;
        for (end = begin; end < what->n_rows && end - begin < QN_ENCODE_SEQUENCES; end++) {
            if (end > begin && total + order[end].n_ids > most) break;
            total += order[end].n_ids;
        }
        if (what->cancel && qn_cancel_is_set(what->cancel)) return qn_fail(QN_E_CANCELLED, "cancelled");
        QN_TRY(step(s, e, what, order + begin, end - begin, fn, user));
    }
    return QN_OK;
}

qn_status qn_encode(qn_scheduler *s, qn_engine *e, const qn_encoding *what, qn_encoded_fn *fn, void *user)
{
    place *order = qn_alloc_array((size_t)what->n_rows, sizeof *order);
    if (!order) return QN_E_NOMEM;
    for (int64_t i = 0; i < what->n_rows; i++) order[i] = (place){what->rows[i].n_ids, i};
    qsort(order, (size_t)what->n_rows, sizeof *order, by_length);
    qn_status status = all_steps(s, e, what, order, fn, user);
    qn_free(order);
    return status;
}
