#include "base/mem.h"
#include "model/weights/weight_experts.h"
#include "model/weights/weights.h"
#include "quant/mlx.h"
#include "quant/types.h"

/* Rows of a matrix that lies in several tensors. */
static qn_status decode_joined(const qn_tensor_view *v, const qn_type *type, int64_t first, int64_t n,
                               float *out)
{
    const int64_t n_cols = v->shape[v->n_dims - 1];
    size_t row_bytes = 0;
    if (!qn_type_bytes(v->dtype, n_cols, &row_bytes))
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: %lld columns are not a whole number of blocks", v->file,
                       v->name, (long long)n_cols);
    void *blocks = qn_alloc(row_bytes);
    if (!blocks) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        qn_mlx_join(v->dtype, n_cols, v->data, v->scales->data, v->biases ? v->biases->data : NULL, first + i,
                    blocks);
        type->decode(type, blocks, n_cols, out + i * n_cols);
    }
    qn_free(blocks);
    return QN_OK;
}

qn_status qn_weights_rows(const qn_tensor_view *v, int64_t n_cols, int64_t first, int64_t n, float *out)
{
    const qn_type *type = NULL;
    if (v->experts && v->n_dims == 3) {
        for (int64_t i = first; i < first + n; i++, out += n_cols)
            QN_TRY(qn_weight_experts_row(v->experts, i / v->shape[1], i % v->shape[1], out));
        return QN_OK;
    }
    QN_TRY(qn_view_decoder(v, &type));
    if (v->scales) return decode_joined(v, type, first, n, out);
    return qn_view_floats(v, first * n_cols, n * n_cols, out);
}

qn_status qn_weights_floats(const qn_tensor_view *v, float *out)
{
    const qn_type *type = NULL;
    QN_TRY(qn_view_decoder(v, &type));
    if (v->n_dims == 1 && v->experts) return qn_weight_experts_vector(v->experts, out);
    if (v->scales) return decode_joined(v, type, 0, v->n_elements / v->shape[v->n_dims - 1], out);
    return qn_view_floats(v, 0, v->n_elements, out);
}

qn_status qn_weights_vector(const qn_tensor_view *v, float *out)
{
    char shape[128];
    if (v->n_dims != 1)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected one dimension", v->file, v->name,
                       qn_view_shape_text(v, shape, sizeof shape));
    return qn_weights_floats(v, out);
}
