#include "model/weights/weight_heads.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "quant/types.h"

struct qn_weight_heads {
    qn_tensor_view view;
    char name[]; /* of the view */
};

qn_status qn_weight_heads_new(const qn_tensor_view *whole, int64_t n_heads, int64_t first, int64_t n,
                              int transposed, qn_weight_heads **out)
{
    enum { RANGE_BYTES = 48 };
    size_t name_bytes = strlen(whole->name) + RANGE_BYTES;
    if (whole->scales || qn_type_is_quantised(whole->dtype))
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: tensor %s: type %s is not supported for keys and values of all heads",
                       whole->file, whole->name, whole->type_name);
    qn_weight_heads *h = qn_alloc(sizeof *h + name_bytes);
    if (!h) return QN_E_NOMEM;
    int64_t rows = whole->shape[0] / n_heads, columns = whole->shape[1];
    size_t row_bytes = whole->size_bytes / (size_t)whole->shape[0];
    snprintf(h->name, name_bytes, "%s[*:%lld:%lld]", whole->name, (long long)first, (long long)(first + n));
    h->view = *whole;
    h->view.name = h->name;
    h->view.whole = whole;
    h->view.n_dims = 3;
    h->view.shape[0] = n_heads;
    h->view.shape[1] = transposed ? columns : n;
    h->view.shape[2] = transposed ? n : columns;
    h->view.n_elements = n_heads * n * columns;
    h->view.data = (const char *)whole->data + (size_t)first * row_bytes;
    h->view.size_bytes = (size_t)((n_heads - 1) * rows + n) * row_bytes;
    h->view.matrix_bytes = (size_t)rows * row_bytes;
    h->view.transposed = transposed;
    *out = h;
    return QN_OK;
}

void qn_weight_heads_free(qn_weight_heads *h)
{
    qn_free(h);
}

const qn_tensor_view *qn_weight_heads_view(const qn_weight_heads *h)
{
    return &h->view;
}
