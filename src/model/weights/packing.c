#include "model/weights/packing.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

qn_status qn_packing_key(qn_source *s, qn_device *d, qn_packed_key *out)
{
    *out = (qn_packed_key){.device = d->ops->name, .layout = d->ops->describe(d).layout};
    return qn_packed_fingerprint(s, &out->fingerprint);
}

static void note_aside(const char *why, const char *wish, qn_buf *notes)
{
    qn_buf_printf(notes,
                  "%s; it is ignored and the weights are packed again (`quern pack%s%s` writes a new "
                  "file)\n",
                  why, wish ? " --force -o " : "", wish ? wish : "");
}

void qn_packing_note(const char *wish, qn_buf *notes)
{
    note_aside(qn_last_error(), wish, notes);
}

static int is_newer(const struct stat *a, const struct stat *b)
{
    if (a->st_mtim.tv_sec != b->st_mtim.tv_sec) return a->st_mtim.tv_sec > b->st_mtim.tv_sec;
    return a->st_mtim.tv_nsec > b->st_mtim.tv_nsec;
}

/* A model may have been repaired where the fingerprint does not look. */
static void note_older(const qn_source *s, const qn_packed *p, qn_buf *notes)
{
    struct stat own, of_model;
    if (stat(qn_packed_path(p), &own) != 0) return;
    for (int64_t i = 0; i < qn_source_file_count(s); i++) {
        const char *file = qn_source_file_path(s, i);
        if (stat(file, &of_model) != 0 || !is_newer(&of_model, &own)) continue;
        qn_buf_printf(
            notes,
            "%s: packed weights older than %s; they match in the samples that a start compares, and are used "
            "(`quern pack` compares everything)\n",
            qn_packed_path(p), file);
        return;
    }
}

static qn_status open_one(qn_source *s, qn_device *d, const char *path, qn_packed **out)
{
    qn_packed *p = NULL;
    qn_packed_key key;
    qn_status status = qn_packed_open(path, &p);
    if (status == QN_OK) status = qn_packing_key(s, d, &key);
    if (status == QN_OK) status = qn_packed_check(p, &key);
    if (status == QN_OK)
        *out = p;
    else
        qn_packed_close(p);
    return status;
}

/* The first that fits of where one may lie. */
static qn_status find_place(qn_source *s, qn_device *d, qn_packed **out, qn_buf *notes)
{
    static const qn_packed_place places[] = {QN_PACKED_BESIDE, QN_PACKED_ELSEWHERE};
    qn_buf why[2] = {{0}};
    qn_status status = QN_OK;
    for (int i = 0; i < 2 && status == QN_OK && !*out; i++) {
        qn_buf path = {0};
        status = qn_packed_find_place(s, places[i], &path);
        if (status == QN_OK && access(path.data, F_OK) == 0) {
            status = open_one(s, d, path.data, out);
            if (status != QN_OK && status != QN_E_NOMEM) {
                qn_buf_puts(&why[i], qn_last_error());
                status = why[i].status;
            }
        }
        qn_buf_free(&path);
        if (status == QN_E_NOT_FOUND) status = QN_OK;
    }
    for (int i = 0; i < 2; i++) {
        if (why[i].length && *out)
            qn_buf_printf(notes, "%s; it is ignored in favour of %s\n", why[i].data, qn_packed_path(*out));
        else if (why[i].length)
            note_aside(why[i].data, NULL, notes);
        qn_buf_free(&why[i]);
    }
    return status;
}

qn_status qn_packing_find(qn_source *s, qn_device *d, const char *wish, qn_packed **out, qn_buf *notes)
{
    *out = NULL;
    if (wish && strcmp(wish, "none") == 0) return QN_OK;
    if (d->ops->describe(d).layout == 0) { /* it takes weights from the model's own files alone */
        if (wish)
            qn_buf_printf(notes, "%s: the device %s does not use packed weights; the file is ignored\n", wish,
                          d->ops->name);
        return notes->status;
    }
    qn_status status = wish ? open_one(s, d, wish, out) : find_place(s, d, out, notes);
    if (status == QN_E_NOMEM) return status;
    if (status != QN_OK) qn_packing_note(wish, notes);
    if (*out) note_older(s, *out, notes);
    return notes->status;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

typedef struct {
    const qn_weights *w;
    qn_device *d;
    qn_st_writer *writer;
    size_t done, total;
    qn_packing_fn *progress;
    void *user;
    int64_t n_layers, next;    /* next: number of the tensor in the file */
    const qn_packed *compared; /* in place of a writer */
    int differs;
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
            if (qn_weights_vision(x->w, i)) QN_TRY(visit_one(x, fn, qn_weights_vision(x->w, i), vectors));
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

typedef qn_status use_fn(writing *x, const qn_tensor_view *v, const void *bytes, size_t n);

/* Gives the values of a vector, or a packed matrix, to fn. */
static qn_status with_packed(writing *x, const qn_tensor_view *v, use_fn *fn)
{
    if (x->progress) QN_TRY(x->progress(x->user, x->done, x->total));
    if (v->n_dims < 2) {
        size_t bytes = (size_t)v->n_elements * sizeof(float);
        float *values = qn_alloc(bytes);
        if (!values) return QN_E_NOMEM;
        qn_status status = qn_weights_vector(v, values);
        if (status == QN_OK) status = fn(x, v, values, bytes);
        x->done += bytes;
        qn_free(values);
        return status;
    }
    qn_weight_part *parts = qn_alloc_array((size_t)qn_parameters_parts(v), sizeof *parts);
    if (!parts) return QN_E_NOMEM;
    qn_weight weight = qn_parameters_weight(v, parts);
    qn_buffer *b = NULL;
    qn_status status = x->d->ops->import_weights(x->d, 1, &weight, &b);
    qn_free(parts);
    QN_TRY(status);
    status = fn(x, v, b->data, b->size_bytes);
    x->done += rounded(b->size_bytes);
    qn_buffer_release(b);
    return status;
}

static qn_status write_bytes(writing *x, const qn_tensor_view *v, const void *bytes, size_t n)
{
    static const char zeros[QN_PACKED_ALIGN];
    const int64_t index = x->next++;
    const size_t rest = v->n_dims < 2 ? 0 : rounded(n) - n;
    qn_status status = qn_st_writer_write(x->writer, index, 0, bytes, n);
    if (status == QN_OK && rest) status = qn_st_writer_write(x->writer, index, n, zeros, rest);
    return status;
}

static qn_status write_one(writing *x, const qn_tensor_view *v)
{
    return with_packed(x, v, write_bytes);
}

static qn_status compare_bytes(writing *x, const qn_tensor_view *v, const void *bytes, size_t n)
{
    const void *there = NULL;
    const float *values = NULL;
    const qn_status status = v->n_dims < 2 ? qn_packed_vector(x->compared, v->name, v->n_elements, &values)
                                           : qn_packed_matrix(x->compared, v->name, n, &there);
    if (v->n_dims < 2) there = values;
    x->differs = status != QN_OK || memcmp(there, bytes, n) != 0;
    return QN_OK;
}

static qn_status compare_one(writing *x, const qn_tensor_view *v)
{
    return x->differs ? QN_OK : with_packed(x, v, compare_bytes);
}

qn_status qn_packing_compare(const qn_packed *p, const qn_weights *w, qn_device *d, qn_packing_fn *progress,
                             void *user, int *same)
{
    writing x = {.w = w,
                 .d = d,
                 .progress = progress,
                 .user = user,
                 .n_layers = qn_weights_layers(w),
                 .compared = p,
                 .total = qn_packed_bytes(p)};
    QN_TRY(visit(&x, compare_one));
    *same = !x.differs;
    return QN_OK;
}

qn_status qn_packing_write(const char *source, const qn_weights *w, qn_device *d, const qn_packed_key *key,
                           const char *path, int is_private, qn_packing_fn *progress, void *user,
                           size_t *size_bytes)
{
    writing x = {.w = w, .d = d, .progress = progress, .user = user, .n_layers = qn_weights_layers(w)};
    QN_TRY(qn_packed_writer_new(path, key, source, &x.writer));
    if (is_private) qn_st_writer_private(x.writer);
    qn_status status = visit(&x, declare);
    if (status == QN_OK) status = qn_st_writer_begin(x.writer);
    if (status == QN_OK) status = visit(&x, write_one);
    if (status == QN_OK && progress) status = progress(user, x.done, x.total);
    if (status == QN_OK) status = qn_st_writer_finish(x.writer);
    if (status == QN_OK) *size_bytes = x.total;
    qn_st_writer_free(x.writer);
    return status;
}
