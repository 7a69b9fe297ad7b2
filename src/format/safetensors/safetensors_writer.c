#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "format/files/new_tensors.h"
#include "format/safetensors/safetensors.h"

struct qn_st_writer {
    qn_new_tensors tensors;
    qn_buf metadata;
    size_t align; /* of the data's beginning */
    int begun, is_private;
};

qn_status qn_st_writer_new(const char *path, qn_st_writer **out)
{
    qn_st_writer *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    w->align = 8;
    qn_status status = qn_new_tensors_init(&w->tensors, path);
    if (status == QN_OK)
        *out = w;
    else
        qn_st_writer_free(w);
    return status;
}

static qn_status check_text(const qn_st_writer *w, const char *text)
{
    size_t n = strlen(text);
    if (qn_utf8_valid_prefix(text, n) == n) return QN_OK;
    return qn_fail(QN_E_ARG, "%s: a name or text for the header is not valid UTF-8", w->tensors.path);
}

qn_status qn_st_writer_metadata(qn_st_writer *w, const char *key, const char *value)
{
    QN_TRY(check_text(w, key));
    QN_TRY(check_text(w, value));
    if (w->metadata.length) qn_buf_putc(&w->metadata, ',');
    qn_buf_json_string(&w->metadata, key, strlen(key));
    qn_buf_putc(&w->metadata, ':');
    qn_buf_json_string(&w->metadata, value, strlen(value));
    return w->metadata.status;
}

qn_status qn_st_writer_align(qn_st_writer *w, size_t bytes)
{
    if (w->begun || bytes < 8 || bytes > 1 << 21 || bytes & (bytes - 1))
        return qn_fail(QN_E_ARG, "%s: data cannot be aligned to %zu bytes", w->tensors.path, bytes);
    w->align = bytes;
    return QN_OK;
}

void qn_st_writer_private(qn_st_writer *w)
{
    w->is_private = 1;
}

qn_status qn_st_writer_add(qn_st_writer *w, const char *name, qn_dtype dtype, int n_dims,
                           const int64_t *shape, int64_t *index)
{
    const char *path = w->tensors.path;
    const qn_type *type = qn_type_get(dtype);
    if (w->begun)
        return qn_fail(QN_E_ARG, "%s: tensor %s is declared after the header was written", path, name);
    QN_TRY(check_text(w, name));
    if (!*name || strcmp(name, "__metadata__") == 0)
        return qn_fail(QN_E_ARG, "%s: \"%s\" cannot be the name of a tensor", path, name);
    if (!type || !type->st_name)
        return qn_fail(QN_E_ARG, "%s: tensor %s: safetensors has no type %s", path, name,
                       qn_dtype_name(dtype));
    if (n_dims < 0 || n_dims > QN_VIEW_DIMS_MAX)
        return qn_fail(QN_E_ARG, "%s: tensor %s: %d dimensions", path, name, n_dims);
    return qn_new_tensors_add(&w->tensors, name, type, n_dims, shape, 1, index);
}

/* The 8 bytes of length and the JSON, padded with spaces so that the data begins aligned. */
static qn_status make_header(const qn_st_writer *w, qn_buf *b)
{
    uint64_t length = 0;
    qn_buf_append(b, &length, sizeof length);
    qn_buf_putc(b, '{');
    if (w->metadata.length) qn_buf_printf(b, "\"__metadata__\":{%s}", w->metadata.data);
    for (size_t i = 0; i < w->tensors.n; i++) {
        const qn_new_tensor *e = &w->tensors.items[i];
        if (i || w->metadata.length) qn_buf_putc(b, ',');
        qn_buf_json_string(b, e->name, strlen(e->name));
        qn_buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", e->type->st_name);
        for (int d = 0; d < e->n_dims; d++) qn_buf_printf(b, "%s%lld", d ? "," : "", (long long)e->shape[d]);
        qn_buf_printf(b, "],\"data_offsets\":[%zu,%zu]}", e->offset, e->offset + e->size_bytes);
    }
    qn_buf_putc(b, '}');
    while (b->status == QN_OK && b->length % w->align) qn_buf_putc(b, ' ');
    if (b->status != QN_OK) return b->status;
    length = b->length - sizeof length;
    memcpy(b->data, &length, sizeof length);
    return QN_OK;
}

qn_status qn_st_writer_begin(qn_st_writer *w)
{
    qn_buf header = {0};
    if (w->begun) return qn_fail(QN_E_ARG, "%s: the header was already begun", w->tensors.path);
    w->begun = 1;
    qn_status status = w->metadata.status;
    if (status == QN_OK) status = make_header(w, &header);
    if (status == QN_OK)
        status = qn_new_tensors_begin(&w->tensors, w->is_private, header.data, header.length);
    qn_buf_free(&header);
    return status;
}

qn_status qn_st_writer_write(qn_st_writer *w, int64_t index, size_t offset, const void *bytes, size_t n)
{
    return qn_new_tensors_write(&w->tensors, index, offset, bytes, n);
}

qn_status qn_st_writer_finish(qn_st_writer *w)
{
    return qn_new_tensors_finish(&w->tensors);
}

void qn_st_writer_free(qn_st_writer *w)
{
    if (!w) return;
    qn_new_tensors_free(&w->tensors);
    qn_buf_free(&w->metadata);
    qn_free(w);
}
