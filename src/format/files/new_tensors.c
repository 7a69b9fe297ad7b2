#include "format/files/new_tensors.h"

#include <string.h>

#include "base/checked.h"
#include "base/mem.h"

qn_status qn_new_tensors_init(qn_new_tensors *t, const char *path)
{
    t->path = qn_strdup(path);
    t->by_name = qn_map_new(64);
    return t->path && t->by_name ? QN_OK : QN_E_NOMEM;
}

/* The tensor's place behind those before it; *end is where the next begins. */
static qn_status measure(const qn_new_tensors *t, const char *name, size_t align, qn_new_tensor *e,
                         size_t *end)
{
    int64_t n = 1;
    for (int i = 0; i < e->n_dims; i++)
        if (!qn_mul_i64(n, e->shape[i], &n))
            return qn_fail(QN_E_ARG, "%s: tensor %s: invalid shape", t->path, name);
    if (!qn_type_bytes(e->type->dtype, n, &e->size_bytes))
        return qn_fail(QN_E_ARG, "%s: tensor %s is too large", t->path, name);
    e->offset = t->data_size;
    if (!qn_add_size(e->offset, e->size_bytes, end) || !qn_align_size(*end, align, end) ||
        *end > INT64_MAX / 2)
        return qn_fail(QN_E_ARG, "%s: tensor %s: the file would be too large", t->path, name);
    return QN_OK;
}

static qn_status grow(qn_new_tensors *t)
{
    if (t->n < t->capacity) return QN_OK;
    const size_t wanted = t->capacity ? 2 * t->capacity : 64;
    qn_new_tensor *items = qn_realloc(t->items, wanted * sizeof *items);
    if (!items) return QN_E_NOMEM;
    t->items = items;
    t->capacity = wanted;
    return QN_OK;
}

qn_status qn_new_tensors_add(qn_new_tensors *t, const char *name, const qn_type *type, int n_dims,
                             const int64_t *shape, size_t align, int64_t *index)
{
    qn_new_tensor e = {.type = type, .n_dims = n_dims};
    const size_t length = strlen(name);
    size_t end = 0;
    int64_t old;
    for (int i = 0; i < n_dims; i++) e.shape[i] = shape[i];
    QN_TRY(measure(t, name, align, &e, &end));
    if (qn_map_get(t->by_name, name, length, &old))
        return qn_fail(QN_E_ARG, "%s: tensor %s is declared twice", t->path, name);
    QN_TRY(grow(t));
    e.name = qn_arena_strndup(&t->names, name, length);
    if (!e.name) return QN_E_NOMEM;
    QN_TRY(qn_map_set(t->by_name, e.name, length, (int64_t)t->n, NULL, NULL));
    t->data_size = end;
    if (index) *index = (int64_t)t->n;
    t->items[t->n++] = e;
    return QN_OK;
}

qn_status qn_new_tensors_begin(qn_new_tensors *t, int is_private, const void *header, size_t n)
{
    t->data_offset = n;
    QN_TRY(qn_new_file_open(t->path, is_private, n + t->data_size, &t->file));
    return qn_new_file_write(t->file, 0, header, n);
}

qn_status qn_new_tensors_write(qn_new_tensors *t, int64_t index, size_t offset, const void *bytes, size_t n)
{
    if (!t->file) return qn_fail(QN_E_ARG, "%s: not open for writing", t->path);
    if (index < 0 || (size_t)index >= t->n)
        return qn_fail(QN_E_ARG, "%s: there is no tensor number %lld", t->path, (long long)index);
    qn_new_tensor *e = &t->items[index];
    if (!qn_range_ok(offset, n, e->size_bytes) || n > e->size_bytes - e->written_bytes)
        return qn_fail(QN_E_ARG,
                       "%s: tensor %s: bytes %zu to %zu do not fit: it has %zu bytes, of which "
                       "%zu are written",
                       t->path, e->name, offset, offset + n, e->size_bytes, e->written_bytes);
    QN_TRY(qn_new_file_write(t->file, t->data_offset + e->offset + offset, bytes, n));
    e->written_bytes += n;
    return QN_OK;
}

qn_status qn_new_tensors_finish(qn_new_tensors *t)
{
    if (!t->file) return qn_fail(QN_E_ARG, "%s: not open for writing", t->path);
    for (size_t i = 0; i < t->n; i++)
        if (t->items[i].written_bytes != t->items[i].size_bytes)
            return qn_fail(QN_E_ARG, "%s: tensor %s: %zu of %zu bytes were written", t->path,
                           t->items[i].name, t->items[i].written_bytes, t->items[i].size_bytes);
    return qn_new_file_finish(t->file);
}

void qn_new_tensors_free(qn_new_tensors *t)
{
    qn_new_file_free(t->file);
    qn_free(t->path);
    qn_free(t->items);
    qn_map_free(t->by_name);
    qn_arena_clear(&t->names);
    *t = (qn_new_tensors){0};
}
