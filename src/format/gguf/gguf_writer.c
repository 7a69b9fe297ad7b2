#include "format/gguf/gguf_writer.h"

#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "format/files/new_file.h"
#include "quant/types.h"

enum { VERSION = 3, DIMS_MAX = 4, ALIGNMENT_DEFAULT = 32, ALIGNMENT_MAX = 1 << 21 };

typedef struct {
    const char *name;
    const qn_type *type;
    int n_dims;
    int64_t shape[DIMS_MAX];
    size_t offset, size; /* in the data */
    size_t written;
} entry;

struct qn_gguf_writer {
    char *path;
    qn_new_file *file; /* NULL: not begun */
    qn_status status;  /* the first failure; from then on nothing is done */
    qn_arena arena;    /* names */
    qn_map *keys, *names;
    qn_buf values; /* all pairs, as in the file */
    uint64_t n_values;
    int64_t n_texts_left; /* of an array that was begun */
    entry *entries;
    size_t n_entries, capacity;
    size_t alignment, data_size, data_offset;
};

qn_status qn_gguf_writer_new(const char *path, qn_gguf_writer **out)
{
    qn_gguf_writer *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    w->alignment = ALIGNMENT_DEFAULT;
    w->path = qn_strdup(path);
    w->keys = qn_map_new(64);
    w->names = qn_map_new(64);
    if (!w->path || !w->keys || !w->names) {
        qn_gguf_writer_free(w);
        return QN_E_NOMEM;
    }
    *out = w;
    return QN_OK;
}

static qn_status note(qn_gguf_writer *w, qn_status status)
{
    if (w->status == QN_OK) w->status = status;
    return status;
}

/* ---- metadata ------------------------------------------------------------------------------------------ */

static void put_u32(qn_buf *b, uint32_t v)
{
    qn_buf_append(b, &v, sizeof v);
}

static void put_u64(qn_buf *b, uint64_t v)
{
    qn_buf_append(b, &v, sizeof v);
}

static void put_text(qn_buf *b, const char *text, size_t n)
{
    put_u64(b, n);
    qn_buf_append(b, text, n);
}

/* Takes a name into a set of them. */
static qn_status take_name(qn_gguf_writer *w, qn_map *set, const char *what, const char *name, int64_t value,
                           const char **out)
{
    const size_t n = strlen(name);
    int64_t old;
    if (w->file || w->n_texts_left)
        return qn_fail(QN_E_ARG, "%s: %s %s comes %s", w->path, what, name,
                       w->file ? "after the header was written" : "before the end of an array");
    if (!n || qn_utf8_valid_prefix(name, n) != n)
        return qn_fail(QN_E_ARG, "%s: %s \"%s\" is empty or not valid UTF-8", w->path, what, name);
    if (qn_map_get(set, name, n, &old))
        return qn_fail(QN_E_ARG, "%s: %s %s is there twice", w->path, what, name);
    const char *kept = qn_arena_strndup(&w->arena, name, n);
    if (!kept) return QN_E_NOMEM;
    QN_TRY(qn_map_set(set, kept, n, value, NULL, NULL));
    *out = kept;
    return QN_OK;
}

static qn_status begin_value(qn_gguf_writer *w, const char *key, qn_gguf_type type)
{
    const char *kept = NULL;
    if (w->status != QN_OK) return w->status;
    QN_TRY(note(w, take_name(w, w->keys, "metadata key", key, (int64_t)w->n_values, &kept)));
    w->n_values++;
    put_text(&w->values, kept, strlen(kept));
    put_u32(&w->values, type);
    return QN_OK;
}

/* A value of one number. */
static qn_status put_number(qn_gguf_writer *w, const char *key, qn_gguf_type type, const void *bytes)
{
    QN_TRY(begin_value(w, key, type));
    qn_buf_append(&w->values, bytes, qn_gguf_type_size(type));
    return note(w, w->values.status);
}

static qn_status set_alignment(qn_gguf_writer *w, uint32_t alignment)
{
    if (!alignment || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return qn_fail(QN_E_ARG, "%s: general.alignment %u: it is a power of two up to %d", w->path,
                       alignment, ALIGNMENT_MAX);
    if (w->n_entries) return qn_fail(QN_E_ARG, "%s: general.alignment comes after a tensor", w->path);
    w->alignment = alignment;
    return QN_OK;
}

qn_status qn_gguf_writer_u32(qn_gguf_writer *w, const char *key, uint32_t value)
{
    if (strcmp(key, "general.alignment") == 0) QN_TRY(note(w, set_alignment(w, value)));
    return put_number(w, key, QN_GGUF_U32, &value);
}

qn_status qn_gguf_writer_f32(qn_gguf_writer *w, const char *key, float value)
{
    return put_number(w, key, QN_GGUF_F32, &value);
}

qn_status qn_gguf_writer_bool(qn_gguf_writer *w, const char *key, int value)
{
    return put_number(w, key, QN_GGUF_BOOL, &(uint8_t){value != 0});
}

qn_status qn_gguf_writer_text(qn_gguf_writer *w, const char *key, const char *text, size_t n)
{
    QN_TRY(begin_value(w, key, QN_GGUF_STRING));
    put_text(&w->values, text, n);
    return note(w, w->values.status);
}

static qn_status begin_array(qn_gguf_writer *w, const char *key, qn_gguf_type type, int64_t count)
{
    if (count < 0)
        return note(w, qn_fail(QN_E_ARG, "%s: metadata key %s: %lld values", w->path, key, (long long)count));
    QN_TRY(begin_value(w, key, QN_GGUF_ARRAY));
    put_u32(&w->values, type);
    put_u64(&w->values, (uint64_t)count);
    return note(w, w->values.status);
}

qn_status qn_gguf_writer_array(qn_gguf_writer *w, const char *key, qn_gguf_type type, int64_t count,
                               const void *data)
{
    const size_t each = qn_gguf_type_size(type);
    size_t size = 0;
    if (!each || count < 0 || !qn_mul_size((size_t)count, each, &size))
        return note(w, qn_fail(QN_E_ARG, "%s: metadata key %s: no array of that many %s", w->path, key,
                               qn_gguf_type_name(type)));
    QN_TRY(begin_array(w, key, type, count));
    qn_buf_append(&w->values, data, size);
    return note(w, w->values.status);
}

qn_status qn_gguf_writer_texts(qn_gguf_writer *w, const char *key, int64_t count)
{
    QN_TRY(begin_array(w, key, QN_GGUF_STRING, count));
    w->n_texts_left = count;
    return QN_OK;
}

qn_status qn_gguf_writer_next(qn_gguf_writer *w, const char *text, size_t n)
{
    if (w->status != QN_OK) return w->status;
    if (!w->n_texts_left) return note(w, qn_fail(QN_E_ARG, "%s: more strings than the array has", w->path));
    w->n_texts_left--;
    put_text(&w->values, text, n);
    return note(w, w->values.status);
}

qn_status qn_gguf_writer_copy(qn_gguf_writer *w, const qn_gguf_value *v)
{
    uint32_t alignment;
    if (strcmp(v->key, "general.alignment") == 0 && v->type == QN_GGUF_U32) {
        memcpy(&alignment, v->data, sizeof alignment);
        return qn_gguf_writer_u32(w, v->key, alignment);
    }
    if (v->type == QN_GGUF_ARRAY)
        QN_TRY(begin_array(w, v->key, v->element_type, v->count));
    else
        QN_TRY(begin_value(w, v->key, v->type));
    qn_buf_append(&w->values, v->data, v->size_bytes);
    return note(w, w->values.status);
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

static qn_status check_tensor(const qn_gguf_writer *w, const entry *e, const char *name, size_t *size)
{
    int64_t n = 1;
    for (int i = 0; i < e->n_dims; i++)
        if (e->shape[i] < 1 || !qn_mul_i64(n, e->shape[i], &n))
            return qn_fail(QN_E_ARG, "%s: tensor %s: impossible shape", w->path, name);
    if (e->shape[e->n_dims - 1] % e->type->block_elements)
        return qn_fail(QN_E_ARG,
                       "%s: tensor %s: rows of %lld elements are no multiple of the %lld of a %s block",
                       w->path, name, (long long)e->shape[e->n_dims - 1], (long long)e->type->block_elements,
                       e->type->name);
    if (!qn_type_bytes(e->type->dtype, n, size) || *size > INT64_MAX / 4)
        return qn_fail(QN_E_ARG, "%s: tensor %s is too large", w->path, name);
    return QN_OK;
}

static qn_status add_entry(qn_gguf_writer *w, const char *name, qn_dtype dtype, int n_dims,
                           const int64_t *shape)
{
    entry e = {.type = qn_type_get(dtype), .n_dims = n_dims};
    size_t end;
    if (!e.type || e.type->ggml_type < 0)
        return qn_fail(QN_E_ARG, "%s: tensor %s: GGUF has no type %s", w->path, name, qn_dtype_name(dtype));
    if (n_dims < 1 || n_dims > DIMS_MAX)
        return qn_fail(QN_E_ARG, "%s: tensor %s: %d dimensions, expected 1 to %d", w->path, name, n_dims,
                       DIMS_MAX);
    memcpy(e.shape, shape, (size_t)n_dims * sizeof *shape);
    QN_TRY(check_tensor(w, &e, name, &e.size));
    e.offset = w->data_size;
    if (!qn_add_size(e.offset, e.size, &end) || !qn_align_size(end, w->alignment, &end) ||
        end > INT64_MAX / 2)
        return qn_fail(QN_E_ARG, "%s: tensor %s: the file would be too large", w->path, name);
    if (w->n_entries == w->capacity) {
        const size_t wanted = w->capacity ? 2 * w->capacity : 64;
        entry *p = qn_realloc(w->entries, wanted * sizeof *p);
        if (!p) return QN_E_NOMEM;
        w->entries = p;
        w->capacity = wanted;
    }
    QN_TRY(take_name(w, w->names, "tensor", name, (int64_t)w->n_entries, &e.name));
    w->data_size = end;
    w->entries[w->n_entries++] = e;
    return QN_OK;
}

qn_status qn_gguf_writer_add(qn_gguf_writer *w, const char *name, qn_dtype dtype, int n_dims,
                             const int64_t *shape, int64_t *index)
{
    if (w->status != QN_OK) return w->status;
    QN_TRY(note(w, add_entry(w, name, dtype, n_dims, shape)));
    if (index) *index = (int64_t)w->n_entries - 1;
    return QN_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static qn_status make_header(const qn_gguf_writer *w, qn_buf *b)
{
    qn_buf_puts(b, "GGUF");
    put_u32(b, VERSION);
    put_u64(b, w->n_entries);
    put_u64(b, w->n_values);
    qn_buf_append(b, w->values.data, w->values.length);
    for (size_t i = 0; i < w->n_entries; i++) {
        const entry *e = &w->entries[i];
        put_text(b, e->name, strlen(e->name));
        put_u32(b, (uint32_t)e->n_dims);
        for (int d = e->n_dims - 1; d >= 0; d--) put_u64(b, (uint64_t)e->shape[d]);
        put_u32(b, (uint32_t)e->type->ggml_type);
        put_u64(b, e->offset);
    }
    while (b->status == QN_OK && b->length % w->alignment) qn_buf_putc(b, 0);
    return b->status;
}

static qn_status begin(qn_gguf_writer *w)
{
    qn_buf header = {0};
    if (w->file || w->n_texts_left)
        return qn_fail(QN_E_ARG, "%s: %s", w->path,
                       w->file ? "the header was begun before" : "strings of an array are missing");
    qn_status status = make_header(w, &header);
    w->data_offset = header.length;
    if (status == QN_OK) status = qn_new_file_open(w->path, 0, w->data_offset + w->data_size, &w->file);
    if (status == QN_OK) status = qn_new_file_write(w->file, 0, header.data, header.length);
    qn_buf_free(&header);
    return status;
}

qn_status qn_gguf_writer_begin(qn_gguf_writer *w)
{
    return w->status != QN_OK ? w->status : note(w, begin(w));
}

qn_status qn_gguf_writer_write(qn_gguf_writer *w, int64_t index, size_t offset, const void *bytes, size_t n)
{
    if (!w->file || w->status != QN_OK) return qn_fail(QN_E_ARG, "%s: not open for writing", w->path);
    if (index < 0 || (size_t)index >= w->n_entries)
        return qn_fail(QN_E_ARG, "%s: there is no tensor number %lld", w->path, (long long)index);
    entry *e = &w->entries[index];
    if (!qn_range_ok(offset, n, e->size) || n > e->size - e->written)
        return qn_fail(QN_E_ARG, "%s: tensor %s: bytes %zu to %zu, but it has %zu and %zu are written",
                       w->path, e->name, offset, offset + n, e->size, e->written);
    QN_TRY(note(w, qn_new_file_write(w->file, w->data_offset + e->offset + offset, bytes, n)));
    e->written += n;
    return QN_OK;
}

const char *qn_gguf_writer_place(const qn_gguf_writer *w)
{
    return w->file ? qn_new_file_place(w->file) : NULL;
}

qn_status qn_gguf_writer_finish(qn_gguf_writer *w)
{
    if (!w->file || w->status != QN_OK) return qn_fail(QN_E_ARG, "%s: not open for writing", w->path);
    for (size_t i = 0; i < w->n_entries; i++)
        if (w->entries[i].written != w->entries[i].size)
            return qn_fail(QN_E_ARG, "%s: tensor %s: %zu of %zu bytes were written", w->path,
                           w->entries[i].name, w->entries[i].written, w->entries[i].size);
    return note(w, qn_new_file_finish(w->file));
}

void qn_gguf_writer_free(qn_gguf_writer *w)
{
    if (!w) return;
    qn_new_file_free(w->file);
    qn_free(w->path);
    qn_map_free(w->keys);
    qn_map_free(w->names);
    qn_buf_free(&w->values);
    qn_free(w->entries);
    qn_arena_clear(&w->arena);
    qn_free(w);
}
