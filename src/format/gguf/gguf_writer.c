#include "format/gguf/gguf_writer.h"

#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "format/files/new_tensors.h"

enum { VERSION = 3, DIMS_MAX = 4, ALIGNMENT_DEFAULT = 32, ALIGNMENT_MAX = 1 << 21 };

struct qn_gguf_writer {
    qn_new_tensors tensors;
    qn_status status; /* the first failure; from then on nothing is done */
    qn_arena arena;   /* keys */
    qn_map *keys;
    qn_buf values; /* all pairs, as in the file */
    uint64_t n_values;
    int64_t n_texts_left; /* of an array that was begun */
    size_t alignment;
};

qn_status qn_gguf_writer_new(const char *path, qn_gguf_writer **out)
{
    qn_gguf_writer *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    w->alignment = ALIGNMENT_DEFAULT;
    w->keys = qn_map_new(64);
    qn_status status = qn_new_tensors_init(&w->tensors, path);
    if (!w->keys) status = QN_E_NOMEM;
    if (status == QN_OK)
        *out = w;
    else
        qn_gguf_writer_free(w);
    return status;
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

/* Can a key or a tensor of this name come now? */
static qn_status check_name(const qn_gguf_writer *w, const char *what, const char *name)
{
    const size_t n = strlen(name);
    if (w->tensors.file || w->n_texts_left)
        return qn_fail(QN_E_ARG, "%s: %s %s comes %s", w->tensors.path, what, name,
                       w->tensors.file ? "after the header was written" : "before the end of an array");
    if (!n || qn_utf8_valid_prefix(name, n) != n)
        return qn_fail(QN_E_ARG, "%s: %s \"%s\" is empty or not valid UTF-8", w->tensors.path, what, name);
    return QN_OK;
}

static qn_status take_key(qn_gguf_writer *w, const char *key)
{
    const size_t n = strlen(key);
    int64_t old;
    QN_TRY(check_name(w, "metadata key", key));
    if (qn_map_get(w->keys, key, n, &old))
        return qn_fail(QN_E_ARG, "%s: metadata key %s appears twice", w->tensors.path, key);
    const char *kept = qn_arena_strndup(&w->arena, key, n);
    return kept ? qn_map_set(w->keys, kept, n, (int64_t)w->n_values, NULL, NULL) : QN_E_NOMEM;
}

static qn_status begin_value(qn_gguf_writer *w, const char *key, qn_gguf_type type)
{
    if (w->status != QN_OK) return w->status;
    QN_TRY(note(w, take_key(w, key)));
    w->n_values++;
    put_text(&w->values, key, strlen(key));
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
        return qn_fail(QN_E_ARG, "%s: general.alignment %u: it must be a power of two up to %d",
                       w->tensors.path, alignment, ALIGNMENT_MAX);
    if (w->tensors.n)
        return qn_fail(QN_E_ARG, "%s: general.alignment must be set before the first tensor",
                       w->tensors.path);
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
        return note(
            w, qn_fail(QN_E_ARG, "%s: metadata key %s: %lld values", w->tensors.path, key, (long long)count));
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
        return note(w, qn_fail(QN_E_ARG, "%s: metadata key %s: an array cannot hold that many %s",
                               w->tensors.path, key, qn_gguf_type_name(type)));
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
    if (!w->n_texts_left)
        return note(w, qn_fail(QN_E_ARG, "%s: there are more strings than the array has", w->tensors.path));
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

static qn_status add_tensor(qn_gguf_writer *w, const char *name, qn_dtype dtype, int n_dims,
                            const int64_t *shape, int64_t *index)
{
    const char *path = w->tensors.path;
    const qn_type *type = qn_type_get(dtype);
    QN_TRY(check_name(w, "tensor", name));
    if (!type || type->ggml_type < 0)
        return qn_fail(QN_E_ARG, "%s: tensor %s: GGUF has no type %s", path, name, qn_dtype_name(dtype));
    if (n_dims < 1 || n_dims > DIMS_MAX)
        return qn_fail(QN_E_ARG, "%s: tensor %s: %d dimensions, expected 1 to %d", path, name, n_dims,
                       DIMS_MAX);
    for (int i = 0; i < n_dims; i++)
        if (shape[i] < 1) return qn_fail(QN_E_ARG, "%s: tensor %s: invalid shape", path, name);
    if (shape[n_dims - 1] % type->block_elements)
        return qn_fail(QN_E_ARG,
                       "%s: tensor %s: rows of %lld elements are not a multiple of the %lld of a %s block",
                       path, name, (long long)shape[n_dims - 1], (long long)type->block_elements, type->name);
    return qn_new_tensors_add(&w->tensors, name, type, n_dims, shape, w->alignment, index);
}

qn_status qn_gguf_writer_add(qn_gguf_writer *w, const char *name, qn_dtype dtype, int n_dims,
                             const int64_t *shape, int64_t *index)
{
    if (w->status != QN_OK) return w->status;
    return note(w, add_tensor(w, name, dtype, n_dims, shape, index));
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static qn_status make_header(const qn_gguf_writer *w, qn_buf *b)
{
    qn_buf_puts(b, "GGUF");
    put_u32(b, VERSION);
    put_u64(b, w->tensors.n);
    put_u64(b, w->n_values);
    qn_buf_append(b, w->values.data, w->values.length);
    for (size_t i = 0; i < w->tensors.n; i++) {
        const qn_new_tensor *e = &w->tensors.items[i];
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
    if (w->tensors.file || w->n_texts_left)
        return qn_fail(QN_E_ARG, "%s: %s", w->tensors.path,
                       w->tensors.file ? "the header was already begun" : "strings of an array are missing");
    qn_status status = make_header(w, &header);
    if (status == QN_OK) status = qn_new_tensors_begin(&w->tensors, 0, header.data, header.length);
    qn_buf_free(&header);
    return status;
}

qn_status qn_gguf_writer_begin(qn_gguf_writer *w)
{
    return w->status != QN_OK ? w->status : note(w, begin(w));
}

qn_status qn_gguf_writer_write(qn_gguf_writer *w, int64_t index, size_t offset, const void *bytes, size_t n)
{
    return w->status != QN_OK ? w->status : qn_new_tensors_write(&w->tensors, index, offset, bytes, n);
}

const char *qn_gguf_writer_place(const qn_gguf_writer *w)
{
    return w->tensors.file ? qn_new_file_place(w->tensors.file) : NULL;
}

qn_status qn_gguf_writer_finish(qn_gguf_writer *w)
{
    return w->status != QN_OK ? w->status : qn_new_tensors_finish(&w->tensors);
}

void qn_gguf_writer_free(qn_gguf_writer *w)
{
    if (!w) return;
    qn_new_tensors_free(&w->tensors);
    qn_map_free(w->keys);
    qn_buf_free(&w->values);
    qn_arena_clear(&w->arena);
    qn_free(w);
}
