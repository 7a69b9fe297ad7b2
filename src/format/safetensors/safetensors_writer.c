#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "format/files/new_file.h"
#include "format/safetensors/safetensors.h"
#include "quant/types.h"

typedef struct {
    const char *name;
    const qn_type *type;
    int n_dims;
    int64_t shape[QN_VIEW_DIMS_MAX];
    size_t offset, size; /* in the data */
    size_t written;
} entry;

struct qn_st_writer {
    char *path;
    qn_new_file *file; /* NULL: not begun */
    int created, failed, is_private;
    qn_arena arena; /* names */
    qn_buf metadata;
    entry *entries;
    size_t n_entries, capacity;
    qn_map *names;
    size_t align;       /* of the data's beginning */
    size_t data_size;   /* all tensors */
    size_t data_offset; /* where the data begins in the file */
};

qn_status qn_st_writer_new(const char *path, qn_st_writer **out)
{
    qn_st_writer *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    w->align = 8;
    w->path = qn_strdup(path);
    w->names = qn_map_new(16);
    if (!w->path || !w->names) {
        qn_st_writer_free(w);
        return QN_E_NOMEM;
    }
    *out = w;
    return QN_OK;
}

static qn_status check_text(const qn_st_writer *w, const char *text)
{
    size_t n = strlen(text);
    if (qn_utf8_valid_prefix(text, n) == n) return QN_OK;
    return qn_fail(QN_E_ARG, "%s: a name or text for the header is not valid UTF-8", w->path);
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
    if (w->created || bytes < 8 || bytes > 1 << 21 || bytes & (bytes - 1))
        return qn_fail(QN_E_ARG, "%s: data cannot be aligned to %zu bytes", w->path, bytes);
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
    entry e = {.type = qn_type_get(dtype), .n_dims = n_dims};
    if (w->created)
        return qn_fail(QN_E_ARG, "%s: tensor %s is declared after the header was written", w->path, name);
    QN_TRY(check_text(w, name));
    if (!*name || strcmp(name, "__metadata__") == 0)
        return qn_fail(QN_E_ARG, "%s: \"%s\" cannot be the name of a tensor", w->path, name);
    if (!e.type || !e.type->st_name)
        return qn_fail(QN_E_ARG, "%s: tensor %s: safetensors has no type %s", w->path, name,
                       qn_dtype_name(dtype));
    if (n_dims < 0 || n_dims > QN_VIEW_DIMS_MAX)
        return qn_fail(QN_E_ARG, "%s: tensor %s: %d dimensions", w->path, name, n_dims);
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++) {
        e.shape[i] = shape[i];
        if (!qn_mul_i64(n, shape[i], &n))
            return qn_fail(QN_E_ARG, "%s: tensor %s: impossible shape", w->path, name);
    }
    size_t total;
    if (!qn_type_bytes(dtype, n, &e.size) || !qn_add_size(w->data_size, e.size, &total) ||
        total > INT64_MAX / 2)
        return qn_fail(QN_E_ARG, "%s: tensor %s is too large", w->path, name);
    if (w->n_entries == w->capacity) {
        size_t wanted = w->capacity ? 2 * w->capacity : 16;
        entry *p = qn_realloc(w->entries, wanted * sizeof *p);
        if (!p) return QN_E_NOMEM;
        w->entries = p;
        w->capacity = wanted;
    }
    int64_t old;
    if (qn_map_get(w->names, name, strlen(name), &old))
        return qn_fail(QN_E_ARG, "%s: tensor %s is declared twice", w->path, name);
    e.name = qn_arena_strndup(&w->arena, name, strlen(name));
    if (!e.name) return QN_E_NOMEM;
    QN_TRY(qn_map_set(w->names, e.name, strlen(e.name), (int64_t)w->n_entries, NULL, NULL));
    e.offset = w->data_size;
    w->data_size = total;
    if (index) *index = (int64_t)w->n_entries;
    w->entries[w->n_entries++] = e;
    return QN_OK;
}

/* The 8 bytes of length and the JSON, padded with spaces so that the data begins aligned. */
static qn_status make_header(const qn_st_writer *w, qn_buf *b)
{
    uint64_t length = 0;
    qn_buf_append(b, &length, sizeof length);
    qn_buf_putc(b, '{');
    if (w->metadata.length) qn_buf_printf(b, "\"__metadata__\":{%s}", w->metadata.data);
    for (size_t i = 0; i < w->n_entries; i++) {
        const entry *e = &w->entries[i];
        if (i || w->metadata.length) qn_buf_putc(b, ',');
        qn_buf_json_string(b, e->name, strlen(e->name));
        qn_buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", e->type->st_name);
        for (int d = 0; d < e->n_dims; d++) qn_buf_printf(b, "%s%lld", d ? "," : "", (long long)e->shape[d]);
        qn_buf_printf(b, "],\"data_offsets\":[%zu,%zu]}", e->offset, e->offset + e->size);
    }
    qn_buf_putc(b, '}');
    while (b->status == QN_OK && b->length % w->align) qn_buf_putc(b, ' ');
    if (b->status != QN_OK) return b->status;
    length = b->length - sizeof length;
    memcpy(b->data, &length, sizeof length);
    return QN_OK;
}

static size_t file_size(const qn_st_writer *w)
{
    return w->data_offset + w->data_size;
}

qn_status qn_st_writer_begin(qn_st_writer *w)
{
    qn_buf header = {0};
    if (w->created || w->failed) return qn_fail(QN_E_ARG, "%s: the header was begun before", w->path);
    qn_status status = w->metadata.status;
    if (status == QN_OK) status = make_header(w, &header);
    w->created = 1;
    w->data_offset = header.length;
    if (status == QN_OK) status = qn_new_file_open(w->path, w->is_private, file_size(w), &w->file);
    if (status == QN_OK) status = qn_new_file_write(w->file, 0, header.data, header.length);
    if (status != QN_OK) w->failed = 1;
    qn_buf_free(&header);
    return status;
}

qn_status qn_st_writer_write(qn_st_writer *w, int64_t index, size_t offset, const void *bytes, size_t n)
{
    if (!w->file || w->failed) return qn_fail(QN_E_ARG, "%s: not open for writing", w->path);
    if (index < 0 || (size_t)index >= w->n_entries)
        return qn_fail(QN_E_ARG, "%s: there is no tensor number %lld", w->path, (long long)index);
    entry *e = &w->entries[index];
    if (!qn_range_ok(offset, n, e->size) || n > e->size - e->written)
        return qn_fail(QN_E_ARG, "%s: tensor %s: bytes %zu to %zu, but it has %zu and %zu are written",
                       w->path, e->name, offset, offset + n, e->size, e->written);
    QN_TRY(qn_new_file_write(w->file, w->data_offset + e->offset + offset, bytes, n));
    e->written += n;
    return QN_OK;
}

qn_status qn_st_writer_finish(qn_st_writer *w)
{
    if (!w->file || w->failed) return qn_fail(QN_E_ARG, "%s: not open for writing", w->path);
    for (size_t i = 0; i < w->n_entries; i++)
        if (w->entries[i].written != w->entries[i].size)
            return qn_fail(QN_E_ARG, "%s: tensor %s: %zu of %zu bytes were written", w->path,
                           w->entries[i].name, w->entries[i].written, w->entries[i].size);
    return qn_new_file_finish(w->file);
}

void qn_st_writer_free(qn_st_writer *w)
{
    if (!w) return;
    qn_new_file_free(w->file);
    qn_free(w->path);
    qn_free(w->entries);
    qn_map_free(w->names);
    qn_buf_free(&w->metadata);
    qn_arena_clear(&w->arena);
    qn_free(w);
}
