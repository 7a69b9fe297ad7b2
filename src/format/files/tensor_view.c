#include "format/files/tensor_view.h"

#include <stdio.h>
#include <string.h>

qn_status qn_view_check(const qn_tensor_view *v)
{
    if (v->supported) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: type %s is not supported", v->file, v->name,
                   v->type_name);
}

qn_status qn_view_decoder(const qn_tensor_view *v, const qn_type **out)
{
    const qn_type *type = v->supported ? qn_type_get(v->dtype) : NULL;
    if (!type || !type->decode)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: type %s is not supported for weights", v->file,
                       v->name, v->type_name);
    *out = type;
    return QN_OK;
}

static qn_status fail_blocks(const qn_tensor_view *v, int64_t n)
{
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: %lld elements are not a whole number of blocks", v->file,
                   v->name, (long long)n);
}

/* Data in files is of any alignment, decoders want their own type's: through an aligned buffer. */
qn_status qn_view_floats(const qn_tensor_view *v, int64_t first, int64_t n, float *out)
{
    enum { CHUNK = 256 };
    _Alignas(64) char aligned[CHUNK * 8];
    const qn_type *type = NULL;
    size_t skipped = 0;
    QN_TRY(qn_view_decoder(v, &type));
    if (!qn_type_bytes(v->dtype, first, &skipped)) return fail_blocks(v, first);
    const char *from = (const char *)v->data + skipped;
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t part = n - i < CHUNK ? n - i : CHUNK;
        size_t bytes = 0;
        if (!qn_type_bytes(v->dtype, part, &bytes) || bytes > sizeof aligned) return fail_blocks(v, n);
        memcpy(aligned, from, bytes);
        type->decode(type, aligned, part, out + i);
        from += bytes;
    }
    return QN_OK;
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
