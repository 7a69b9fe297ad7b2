#include "model/adapter/adapter_changes.h"

#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "model/weights/weight_roles.h"

enum { ROWS = 128 };

int qn_adapter_change_steps(const qn_model_config *c, qn_weight_role role, int64_t layer)
{
    int64_t shape[QN_WEIGHT_DIMS_MAX];
    if (role == QN_WEIGHT_EMBED || qn_weight_shape(c, layer, role, shape) != 2) return 1;
    return (int)((shape[1] + QN_LORA_RANK_MAX - 1) / QN_LORA_RANK_MAX);
}

/* ---- the model's own numbers --------------------------------------------------------------------------- */

static qn_status read_rows(qn_device *device, qn_array *own, const qn_adapter_whole *w, int64_t first,
                           int64_t n, float *out)
{
    int32_t ids[ROWS];
    qn_scope *s = qn_scope_new(device);
    if (!s) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(first + i);
    /* Twice and halved is exact, and gives an array that is computed. */
    qn_array *rows = w->n_cols == 1 ? own : qn_take(s, own, qn_from_data(s, QN_DTYPE_I32, 1, &n, ids));
    rows = qn_scale(s, qn_astype(s, rows, QN_DTYPE_F32), 2);
    qn_status status = qn_scope_status(s);
    if (status == QN_OK) status = qn_eval(s, 1, &rows);
    const float *data =
        status == QN_OK ? (const float *)qn_array_data(rows) + (w->n_cols == 1 ? first : 0) : NULL;
    for (int64_t i = 0; status == QN_OK && i < n * w->n_cols; i++) out[i] = data[i] / 2;
    qn_scope_free(s);
    return status;
}

static qn_status read_own(qn_device *device, const qn_parameters *p, const qn_adapter_whole *w, float *out)
{
    qn_array *own = qn_parameters_get(p, w->role, w->layer);
    const qn_tensor_view *v = qn_adapter_whole_view(w);
    if (!own && (w->value || w->a || w->tokens))
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: the model has no such tensor", v->file, v->name);
    if (!own) {
        memset(out, 0, (size_t)(w->n_rows * w->n_cols) * sizeof *out);
        return QN_OK;
    }
    for (int64_t i = 0; i < w->n_rows; i += ROWS)
        QN_TRY(
            read_rows(device, own, w, i, w->n_rows - i < ROWS ? w->n_rows - i : ROWS, out + i * w->n_cols));
    return QN_OK;
}

/* ---- pairs --------------------------------------------------------------------------------------------- */

/* Rows of the distance with a number that is not 0, into rows; their number. */
static int64_t changed_rows(const qn_adapter_whole *w, const float *d, int32_t *rows)
{
    int64_t n = 0;
    for (int64_t r = 0; r < w->n_rows; r++)
        for (int64_t i = 0; i < w->n_cols; i++)
            if (d[r * w->n_cols + i] != 0) {
                rows[n++] = (int32_t)r;
                break;
            }
    return n;
}

/* How the pairs of an entry lie in their buffer. */
typedef struct {
    int n_pairs;
    int64_t rank, a, b; /* ranks of each but the last; floats of A and B of one rank */
    int64_t n_ranks;
} layout;

static layout lay_out(const qn_adapter_whole *w, int64_t n_changed)
{
    if (w->n_cols == 1) return (layout){1, 1, 1, w->n_rows, 1};
    if (w->role == QN_WEIGHT_EMBED) return (layout){1, 1, w->n_rows, w->n_rows * w->n_cols, 1};
    if (n_changed <= QN_LORA_RANK_MAX) return (layout){1, n_changed, w->n_cols, w->n_rows, n_changed};
    const int n = (int)((w->n_cols + QN_LORA_RANK_MAX - 1) / QN_LORA_RANK_MAX);
    return (layout){n, QN_LORA_RANK_MAX, w->n_cols, w->n_rows, w->n_cols};
}

static void fill(const qn_adapter_whole *w, const layout *l, const float *d, const int32_t *rows, float *a,
                 float *b)
{
    if (w->n_cols == 1 || w->role == QN_WEIGHT_EMBED) {
        for (int64_t i = 0; i < l->a; i++) a[i] = 1;
        memcpy(b, d, (size_t)l->b * sizeof *b);
        return;
    }
    memset(a, 0, (size_t)(l->n_ranks * l->a) * sizeof *a);
    memset(b, 0, (size_t)(l->n_ranks * l->b) * sizeof *b);
    const int is_whole = l->n_ranks == w->n_cols && !rows;
    for (int64_t k = 0; k < l->n_ranks; k++) {
        if (is_whole) {
            a[k * l->a + k] = 1;
            for (int64_t r = 0; r < w->n_rows; r++) b[k * l->b + r] = d[r * w->n_cols + k];
        } else {
            memcpy(a + k * l->a, d + rows[k] * w->n_cols, (size_t)l->a * sizeof *a);
            b[k * l->b + rows[k]] = 1;
        }
    }
}

static qn_status put(qn_device *device, const qn_adapter_whole *w, const float *d, const int32_t *rows,
                     int64_t n_changed, float scale, qn_adapter_change *out)
{
    const layout l = lay_out(w, n_changed);
    size_t n_a, n_b, size;
    if (!qn_mul_size((size_t)l.n_ranks, (size_t)l.a, &n_a) || !qn_align_size(n_a, 16, &n_a) ||
        !qn_mul_size((size_t)l.n_ranks, (size_t)l.b, &n_b) || !qn_add_size(n_a, n_b, &size) ||
        !qn_mul_size(size, sizeof(float), &size))
        return qn_fail(QN_E_FORMAT, "%s: the adapter is too large", qn_adapter_whole_view(w)->file);
    qn_adapter_change made = {.size_bytes = size, .n_pairs = l.n_pairs};
    made.pairs = qn_calloc((size_t)l.n_pairs, sizeof *made.pairs);
    qn_status status = made.pairs ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) status = device->ops->alloc(device, size, QN_LEDGER_WEIGHTS, &made.data);
    if (status == QN_OK && !qn_buffer_host(made.data, QN_HOST_WRITES)) status = QN_E_NOMEM;
    if (status != QN_OK) {
        qn_adapter_change_free(&made);
        return status;
    }
    float *data = made.data->data;
    fill(w, &l, d, n_changed <= QN_LORA_RANK_MAX ? rows : NULL, data, data + n_a);
    for (int i = 0; i < l.n_pairs; i++) {
        const int64_t first = i * l.rank, rank = l.n_ranks - first < l.rank ? l.n_ranks - first : l.rank;
        made.pairs[i] = (qn_lora_pair){.data = made.data,
                                       .a = first * l.a,
                                       .b = (int64_t)n_a + first * l.b,
                                       .gain = -1,
                                       .rank = (int32_t)rank,
                                       .scale = scale};
    }
    *out = made;
    return QN_OK;
}

qn_status qn_adapter_change_make(qn_device *device, const qn_parameters *p, const qn_model_config *c,
                                 const qn_adapter_whole *w, float scale, qn_adapter_change *out)
{
    size_t n;
    if (!qn_mul_size((size_t)w->n_rows, (size_t)w->n_cols, &n)) return QN_E_NOMEM;
    float *own = qn_alloc_array(n, 2 * sizeof *own), *changed = own ? own + n : NULL;
    int32_t *rows = qn_alloc_array((size_t)w->n_rows, sizeof *rows);
    qn_status status = own && rows ? read_own(device, p, w, own) : QN_E_NOMEM;
    if (status == QN_OK) {
        memcpy(changed, own, n * sizeof *own);
        status = qn_adapter_whole_apply(w, c, changed);
    }
    if (status == QN_OK) {
        for (size_t i = 0; i < n; i++) changed[i] -= own[i];
        const int64_t n_changed = changed_rows(w, changed, rows);
        if (n_changed) status = put(device, w, changed, rows, n_changed, scale, out);
        if (!n_changed) *out = (qn_adapter_change){0};
    }
    qn_free(own);
    qn_free(rows);
    return status;
}

void qn_adapter_change_free(qn_adapter_change *change)
{
    qn_buffer_release(change->data);
    qn_free(change->pairs);
    *change = (qn_adapter_change){0};
}
