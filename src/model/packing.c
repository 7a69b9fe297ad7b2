#include "model/packing.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"

qn_status qn_packing_key(qn_source *s, qn_device *d, qn_packed_key *out)
{
    *out = (qn_packed_key){.device = d->ops->name, .layout = d->ops->describe(d).layout};
    return qn_packed_fingerprint(s, &out->fingerprint);
}

void qn_packing_note(qn_buf *notes)
{
    qn_buf_printf(notes,
                  "%s; it is left aside and the weights are packed again (`quern pack` makes it anew)\n",
                  qn_last_error());
}

static qn_status open_one(qn_source *s, qn_device *d, const char *path, qn_packed **out, qn_buf *notes)
{
    qn_packed *p = NULL;
    qn_packed_key key;
    qn_status status = qn_packed_open(path, &p);
    if (status == QN_OK) status = qn_packing_key(s, d, &key);
    if (status == QN_OK) status = qn_packed_check(p, &key);
    if (status == QN_OK) {
        *out = p;
        return QN_OK;
    }
    qn_packed_close(p);
    if (status == QN_E_NOMEM) return status;
    qn_packing_note(notes);
    return notes->status;
}

qn_status qn_packing_find(qn_source *s, qn_device *d, const char *wish, qn_packed **out, qn_buf *notes)
{
    *out = NULL;
    if (wish && strcmp(wish, "none") == 0) return QN_OK;
    if (d->ops->describe(d).layout == 0) { /* it takes weights from the model's own files alone */
        if (wish)
            qn_buf_printf(notes, "%s: the device %s has no packed weights; the file is left aside\n", wish,
                          d->ops->name);
        return notes->status;
    }
    if (wish) return open_one(s, d, wish, out, notes);
    static const qn_packed_place places[] = {QN_PACKED_BESIDE, QN_PACKED_ELSEWHERE};
    qn_status status = QN_OK;
    for (int i = 0; i < 2 && status == QN_OK && !*out; i++) {
        qn_buf path = {0};
        status = qn_packed_find_place(s, places[i], &path);
        if (status == QN_OK && access(path.data, F_OK) == 0) status = open_one(s, d, path.data, out, notes);
        qn_buf_free(&path);
        if (status == QN_E_NOT_FOUND) status = QN_OK;
    }
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

typedef struct {
    const qn_weights *w;
    qn_device *d;
    qn_st_writer *writer;
    size_t done, total;
    qn_packing_fn *progress;
    void *user;
    int64_t n_layers, next; /* next: number of the tensor in the file */
} writing;

typedef qn_status write_fn(writing *x, const qn_tensor_view *v);

static qn_status visit_one(writing *x, write_fn *fn, const qn_tensor_view *v, int vectors)
{
    if ((v->n_dims < 2) != vectors) return QN_OK;
    qn_status status = fn(x, v);
    /* Messages of the writer name its file. */
    if (status == QN_OK || status == QN_E_IO || status == QN_E_CANCELLED) return status;
    return qn_fail_prefix(status, "%s: tensor %s", v->file, v->name);
}

/* All matrices, then all vectors: fn sees a tied one once. */
static qn_status visit(writing *x, write_fn *fn)
{
    for (int vectors = 0; vectors < 2; vectors++) {
        for (int64_t l = -1; l < x->n_layers; l++) {
            int from = l < 0 ? 0 : QN_WEIGHT_MODEL_COUNT,
                to = l < 0 ? QN_WEIGHT_MODEL_COUNT : QN_WEIGHT_ROLE_COUNT;
            for (int role = from; role < to; role++) {
                const qn_tensor_view *v = qn_weights_get(x->w, (qn_weight_role)role, l < 0 ? 0 : l);
                if (!v || (role == QN_WEIGHT_LM_HEAD && qn_weights_tied(x->w))) continue;
                QN_TRY(visit_one(x, fn, v, vectors));
            }
        }
        for (int64_t i = 0; i < qn_weights_vision_count(x->w); i++)
            QN_TRY(visit_one(x, fn, qn_weights_vision(x->w, i), vectors));
    }
    return QN_OK;
}

/* The room in the file of a matrix that qn_packed_add_matrix took. */
static size_t rounded(size_t size_bytes)
{
    return (size_bytes + QN_PACKED_ALIGN - 1) / QN_PACKED_ALIGN * QN_PACKED_ALIGN;
}

static qn_status declare(writing *x, const qn_tensor_view *v)
{
    size_t bytes = (size_t)v->n_elements * sizeof(float);
    QN_TRY(qn_view_check(v));
    if (v->n_dims < 2) {
        QN_TRY(qn_packed_add_vector(x->writer, v->name, v->n_elements, NULL));
    } else {
        qn_weight_part *parts = qn_alloc_array((size_t)qn_parameters_parts(v), sizeof *parts);
        if (!parts) return QN_E_NOMEM;
        qn_weight weight = qn_parameters_weight(v, parts);
        qn_status status = x->d->ops->weight_bytes(x->d, &weight, &bytes);
        qn_free(parts);
        QN_TRY(status);
        QN_TRY(qn_packed_add_matrix(x->writer, v->name, bytes, NULL));
        bytes = rounded(bytes);
    }
    x->total += bytes;
    return QN_OK;
}

static qn_status write_vector(writing *x, const qn_tensor_view *v, int64_t index)
{
    size_t bytes = (size_t)v->n_elements * sizeof(float);
    float *values = qn_alloc(bytes);
    if (!values) return QN_E_NOMEM;
    qn_status status = qn_weights_vector(v, values);
    if (status == QN_OK) status = qn_st_writer_write(x->writer, index, 0, values, bytes);
    x->done += bytes;
    qn_free(values);
    return status;
}

static qn_status write_matrix(writing *x, const qn_tensor_view *v, int64_t index)
{
    static const char zeros[QN_PACKED_ALIGN];
    qn_weight_part *parts = qn_alloc_array((size_t)qn_parameters_parts(v), sizeof *parts);
    if (!parts) return QN_E_NOMEM;
    qn_weight weight = qn_parameters_weight(v, parts);
    qn_buffer *b = NULL;
    qn_status packed = x->d->ops->import_weights(x->d, 1, &weight, &b);
    qn_free(parts);
    QN_TRY(packed);
    size_t bytes = b->size_bytes, rest = rounded(bytes) - bytes;
    qn_status status = qn_st_writer_write(x->writer, index, 0, b->data, bytes);
    if (status == QN_OK && rest) status = qn_st_writer_write(x->writer, index, bytes, zeros, rest);
    x->done += bytes + rest;
    qn_buffer_release(b);
    return status;
}

static qn_status write_one(writing *x, const qn_tensor_view *v)
{
    int64_t index = x->next++;
    if (x->progress) QN_TRY(x->progress(x->user, x->done, x->total));
    return v->n_dims < 2 ? write_vector(x, v, index) : write_matrix(x, v, index);
}

qn_status qn_packing_write(const char *source, const qn_weights *w, qn_device *d, const qn_packed_key *key,
                           const char *path, qn_packing_fn *progress, void *user, size_t *size_bytes)
{
    writing x = {.w = w, .d = d, .progress = progress, .user = user, .n_layers = qn_weights_layers(w)};
    QN_TRY(qn_packed_writer_new(path, key, source, &x.writer));
    qn_status status = visit(&x, declare);
    if (status == QN_OK) status = qn_st_writer_begin(x.writer);
    if (status == QN_OK) status = visit(&x, write_one);
    if (status == QN_OK && progress) status = progress(user, x.done, x.total);
    if (status == QN_OK) status = qn_st_writer_finish(x.writer);
    if (status == QN_OK) *size_bytes = x.total;
    qn_st_writer_free(x.writer);
    return status;
}
