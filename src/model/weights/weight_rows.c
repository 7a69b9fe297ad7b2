#include "model/weights/weight_rows.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

struct qn_weight_rows {
    qn_tensor_view view, scales, biases;
    char name[]; /* of the view */
};

/* Every row of a tensor takes as many bytes: blocks do not reach over the end of one. */
static qn_tensor_view cut(const qn_tensor_view *v, const char *name, int64_t first, int64_t n)
{
    qn_tensor_view part = *v;
    size_t row_bytes = v->size_bytes / (size_t)v->shape[0];
    part.name = name;
    part.shape[0] = n;
    part.n_elements = v->n_elements / v->shape[0] * n;
    part.data = (const char *)v->data + (size_t)first * row_bytes;
    part.size_bytes = (size_t)n * row_bytes;
    return part;
}

qn_status qn_weight_rows_new(const qn_tensor_view *whole, const qn_tensor_view *stored, int64_t first,
                             int64_t n, qn_weight_rows **out)
{
    enum { RANGE_BYTES = 48 };
    size_t name_bytes = strlen(whole->name) + RANGE_BYTES;
    if (whole->size_bytes % (size_t)whole->shape[0])
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: rows of type %s cannot be separated", whole->file,
                       whole->name, whole->type_name);
    qn_weight_rows *r = qn_alloc(sizeof *r + name_bytes);
    if (!r) return QN_E_NOMEM;
    snprintf(r->name, name_bytes, "%s[%lld:%lld]", whole->name, (long long)first, (long long)(first + n));
    r->view = cut(whole, r->name, first, n);
    r->view.whole = stored;
    if (whole->scales) {
        r->scales = cut(whole->scales, whole->scales->name, first, n);
        r->scales.whole = whole->scales;
        r->view.scales = &r->scales;
    }
    if (whole->biases) {
        r->biases = cut(whole->biases, whole->biases->name, first, n);
        r->biases.whole = whole->biases;
        r->view.biases = &r->biases;
    }
    *out = r;
    return QN_OK;
}

void qn_weight_rows_free(qn_weight_rows *r)
{
    qn_free(r);
}

const qn_tensor_view *qn_weight_rows_view(const qn_weight_rows *r)
{
    return &r->view;
}
