#include "format/tensor_view.h"

#include <stdio.h>

qn_status qn_view_check(const qn_tensor_view *v)
{
    if (v->supported) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: type %s is not supported", v->file, v->name,
                   v->type_name);
}

void qn_view_drop(const qn_tensor_view *v, size_t offset_bytes, size_t n_bytes)
{
    if (!v->mapping || !v->supported || offset_bytes >= v->size_bytes) return;
    if (n_bytes > v->size_bytes - offset_bytes) n_bytes = v->size_bytes - offset_bytes;
    size_t at = (size_t)((const uint8_t *)v->data - qn_mapping_data(v->mapping));
    qn_mapping_drop(v->mapping, at + offset_bytes, n_bytes);
}

const char *qn_view_shape_text(const qn_tensor_view *v, char *text, size_t size)
{
    size_t at = 0;
    for (int i = 0; i < v->n_dims && at < size; i++) {
        int n = snprintf(text + at, size - at, "%s%lld", i ? ", " : "[", (long long)v->shape[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    if (at < size) snprintf(text + at, size - at, v->n_dims ? "]" : "[]");
    return text;
}
