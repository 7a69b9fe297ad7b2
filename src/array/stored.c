/* Arrays in safetensors files. */
#include "array/graph.h"
#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "prim/dtype.h"

struct qn_array_file {
    qn_safetensors *file;
};

qn_status qn_array_file_open(const char *path, qn_array_file **out)
{
    qn_array_file *f = qn_calloc(1, sizeof *f);
    if (!f) return QN_E_NOMEM;
    qn_status status = qn_safetensors_open(path, &f->file);
    if (status != QN_OK) {
        qn_free(f);
        return status;
    }
    *out = f;
    return QN_OK;
}

void qn_array_file_close(qn_array_file *f)
{
    if (!f) return;
    qn_safetensors_close(f->file);
    qn_free(f);
}

int64_t qn_array_file_count(const qn_array_file *f)
{
    return qn_safetensors_count(f->file);
}

const char *qn_array_file_name(const qn_array_file *f, int64_t i)
{
    return i >= 0 && i < qn_array_file_count(f) ? qn_safetensors_get(f->file, i)->name : NULL;
}

const char *qn_array_file_metadata(const qn_array_file *f, const char *key)
{
    return qn_safetensors_metadata(f->file, key);
}

static void close_mapping(void *mapping)
{
    qn_mapping_close(mapping);
}

/* In place, where the bytes lie as elements must. */
static qn_array *mapped(qn_scope *s, const qn_tensor_view *v)
{
    qn_buffer *b = NULL;
    qn_mapping *m = qn_mapping_retain(v->mapping);
    qn_status status = qn_buffer_borrow(s->device, v->data, v->size_bytes, close_mapping, m, &b);
    if (status != QN_OK) {
        qn_mapping_close(m);
        return qn_scope_fail(s, status);
    }
    qn_array *a = qn_from_buffer(s, v->dtype, qn_shape_make(v->n_dims, v->shape), b);
    qn_buffer_release(b);
    return a;
}

qn_array *qn_array_file_get(qn_scope *s, const qn_array_file *f, const char *name)
{
    const qn_tensor_view *v;
    if (s->status != QN_OK) return NULL;
    qn_status status = qn_safetensors_tensor(f->file, name, &v);
    if (status != QN_OK) return qn_scope_fail(s, status);
    if (v->n_dims > QN_MAX_DIMS)
        return qn_scope_fail(s, qn_fail(QN_E_UNSUPPORTED, "%s: %s has %d dimensions, arrays have at most %d",
                                        v->file, v->name, v->n_dims, (int)QN_MAX_DIMS));
    if (v->mapping && (uintptr_t)v->data % qn_dtype_size(v->dtype) == 0) return mapped(s, v);
    return qn_from_data(s, v->dtype, v->n_dims, v->shape, v->data);
}

/* ---- writing ------------------------------------------------------------------------------------------ */

static qn_status declare(qn_st_writer *w, int64_t n, const char *const *names, qn_array *const *arrays)
{
    for (int64_t i = 0; i < n; i++)
        QN_TRY(
            qn_st_writer_add(w, names[i], arrays[i]->dtype, arrays[i]->shape.n, arrays[i]->shape.dim, NULL));
    return qn_st_writer_begin(w);
}

static qn_status write_one(qn_scope *s, qn_st_writer *w, int64_t index, qn_array *a)
{
    const void *data = qn_array_data(a);
    size_t bytes = (size_t)qn_array_size(a) * qn_dtype_size(a->dtype);
    void *copy = NULL;
    if (!data) { /* a view */
        data = copy = qn_alloc(bytes);
        if (!copy) return QN_E_NOMEM;
    }
    qn_status status = copy ? qn_array_read(s, a, a->dtype, copy, qn_array_size(a)) : QN_OK;
    if (status == QN_OK) status = qn_st_writer_write(w, index, 0, data, bytes);
    qn_free(copy);
    return status;
}

qn_status qn_save_safetensors(qn_scope *s, const char *path, int64_t n, const char *const *names,
                              qn_array *const *arrays, int64_t n_metadata, const char *const *metadata)
{
    QN_TRY(qn_scope_status(s));
    for (int64_t i = 0; i < n; i++) {
        qn_view v; /* computes it, and knows whether it has elements to write */
        if (!arrays[i]) return qn_fail(QN_E_ARG, "%s: array %s is NULL", path, names[i]);
        QN_TRY(qn_array_view(s, arrays[i], &v));
    }
    qn_st_writer *w;
    QN_TRY(qn_st_writer_new(path, &w));
    qn_status status = QN_OK;
    for (int64_t i = 0; i < n_metadata && status == QN_OK; i++)
        status = qn_st_writer_metadata(w, metadata[2 * i], metadata[2 * i + 1]);
    if (status == QN_OK) status = declare(w, n, names, arrays);
    for (int64_t i = 0; i < n && status == QN_OK; i++) status = write_one(s, w, i, arrays[i]);
    if (status == QN_OK) status = qn_st_writer_finish(w);
    qn_st_writer_free(w);
    return status;
}
