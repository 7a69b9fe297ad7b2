#include "format/gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "quant/types.h"

/* The smallest pair is a key of 1 byte with a value of 1 byte, the smallest tensor has a name of 1 byte and
 * one dimension: a count that does not fit the bytes left is refused before anything is allocated for it. */
enum { PAIR_BYTES_MIN = 8 + 1 + 4 + 1, TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8 };
enum {
    PAIRS_MAX = 1 << 16,
    TENSORS_MAX = 1 << 18,
    NAME_MAX_BYTES = 65535,
    DIMS_MAX = 4,
    ALIGNMENT_DEFAULT = 32
};

struct qn_gguf {
    char *path;
    qn_mapping *mapping; /* NULL: bytes of the caller */
    const uint8_t *bytes;
    size_t size;
    uint32_t version;
    size_t alignment;
    qn_arena arena; /* keys, names, type names */
    qn_gguf_value *values;
    int64_t n_values;
    qn_map *keys;
    qn_tensor_view *views;
    int64_t n_views;
    qn_map *names;
    int may_be_part;
    qn_gguf_parts split;
};

/* What is left to read. */
typedef struct {
    const uint8_t *at, *end;
    const char *path;
} cursor;

static size_t left(const cursor *c)
{
    return (size_t)(c->end - c->at);
}

static qn_status truncated(const cursor *c, const char *what)
{
    return qn_fail(QN_E_FORMAT, "%s: the file ends inside %s (is it truncated?)", c->path, what);
}

/* A count that the bytes left, or we, cannot hold. */
static qn_status too_many(const cursor *c, uint64_t n, const char *what, int most)
{
    if (n <= (uint64_t)most)
        return qn_fail(QN_E_FORMAT, "%s: %llu %s do not fit the %zu bytes that are left (is it truncated?)",
                       c->path, (unsigned long long)n, what, left(c));
    return qn_fail(QN_E_FORMAT, "%s: %llu %s, at most %d are allowed", c->path, (unsigned long long)n, what,
                   most);
}

static qn_status read_bytes(cursor *c, void *out, size_t n, const char *what)
{
    if (n > left(c)) return truncated(c, what);
    memcpy(out, c->at, n);
    c->at += n;
    return QN_OK;
}

/* A key or a tensor's name: copied, so that it ends with a NUL. */
static qn_status read_name(cursor *c, qn_arena *arena, const char *what, char **out)
{
    uint64_t n = 0;
    QN_TRY(read_bytes(c, &n, sizeof n, what));
    if (n == 0) return qn_fail(QN_E_FORMAT, "%s: %s is empty", c->path, what);
    if (n > left(c)) return truncated(c, what);
    if (n > NAME_MAX_BYTES)
        return qn_fail(QN_E_FORMAT, "%s: %s has %llu bytes, at most %d are allowed", c->path, what,
                       (unsigned long long)n, NAME_MAX_BYTES);
    const char *text = (const char *)c->at;
    if (memchr(text, 0, (size_t)n) || qn_utf8_valid_prefix(text, (size_t)n) != n)
        return qn_fail(QN_E_FORMAT, "%s: %s is not valid UTF-8 without NUL", c->path, what);
    *out = qn_arena_strndup(arena, text, (size_t)n);
    if (!*out) return QN_E_NOMEM;
    c->at += n;
    return QN_OK;
}

static qn_status skip_strings(cursor *c, int64_t count, const char *key)
{
    uint64_t n;
    for (int64_t i = 0; i < count; i++) {
        if (left(c) < sizeof n) return truncated(c, key);
        memcpy(&n, c->at, sizeof n);
        c->at += sizeof n;
        if (n > left(c))
            return qn_fail(
                QN_E_FORMAT,
                "%s: %s: a string of %llu bytes, but the file has only %zu left (is it truncated?)", c->path,
                key, (unsigned long long)n, left(c));
        c->at += n;
    }
    return QN_OK;
}

static qn_status check_bools(const cursor *c, const qn_gguf_value *v)
{
    for (int64_t i = 0; i < v->count; i++)
        if (v->data[i] > 1)
            return qn_fail(QN_E_FORMAT, "%s: %s: a bool with value %d", c->path, v->key, v->data[i]);
    return QN_OK;
}

static qn_status read_value(cursor *c, qn_gguf_value *v)
{
    uint32_t type = 0, element;
    uint64_t count = 1;
    QN_TRY(read_bytes(c, &type, sizeof type, v->key));
    element = type;
    if (type == QN_GGUF_ARRAY) {
        QN_TRY(read_bytes(c, &element, sizeof element, v->key));
        QN_TRY(read_bytes(c, &count, sizeof count, v->key));
        if (element == QN_GGUF_ARRAY)
            return qn_fail(QN_E_UNSUPPORTED, "%s: %s: arrays of arrays are not supported", c->path, v->key);
    }
    if (element >= QN_GGUF_TYPE_COUNT)
        return qn_fail(QN_E_FORMAT, "%s: %s: unknown value type %u", c->path, v->key, element);
    size_t each = element == QN_GGUF_STRING ? sizeof(uint64_t) : qn_gguf_type_size((qn_gguf_type)element);
    if (count > left(c) / each)
        return qn_fail(
            QN_E_FORMAT,
            "%s: %s: %llu values of type %s, but the file has only %zu bytes left (is it truncated?)",
            c->path, v->key, (unsigned long long)count, qn_gguf_type_name((qn_gguf_type)element), left(c));
    v->type = (qn_gguf_type)type;
    v->element_type = (qn_gguf_type)element;
    v->count = (int64_t)count;
    v->data = c->at;
    if (element == QN_GGUF_STRING)
        QN_TRY(skip_strings(c, v->count, v->key));
    else
        c->at += (size_t)count * each;
    v->size_bytes = (size_t)(c->at - v->data);
    return element == QN_GGUF_BOOL ? check_bools(c, v) : QN_OK;
}

static qn_status read_values(qn_gguf *g, cursor *c, uint64_t n)
{
    if (n > left(c) / PAIR_BYTES_MIN || n > PAIRS_MAX) return too_many(c, n, "metadata pairs", PAIRS_MAX);
    g->values = qn_calloc((size_t)n, sizeof *g->values);
    g->keys = qn_map_new((size_t)n);
    if (!g->values || !g->keys) return QN_E_NOMEM;
    for (; g->n_values < (int64_t)n; g->n_values++) {
        qn_gguf_value *v = &g->values[g->n_values];
        char *key;
        int found;
        QN_TRY(read_name(c, &g->arena, "a metadata key", &key));
        v->key = key;
        QN_TRY(qn_map_set(g->keys, key, strlen(key), g->n_values, NULL, &found));
        if (found) return qn_fail(QN_E_FORMAT, "%s: metadata key %s appears twice", g->path, key);
        QN_TRY(read_value(c, v));
    }
    return QN_OK;
}

static qn_status read_split(qn_gguf *g)
{
    qn_gguf_parts p = {0, 1, -1};
    QN_TRY(qn_gguf_optional(qn_gguf_get_i64(g, "split.count", 0, QN_GGUF_PARTS_MAX, &p.n_parts)));
    if (p.n_parts <= 1) return QN_OK;
    if (!g->may_be_part)
        return qn_fail(QN_E_UNSUPPORTED, "%s: this is one of %lld parts (split.count), not a whole file",
                       g->path, (long long)p.n_parts);
    QN_TRY(qn_gguf_get_i64(g, "split.no", 0, p.n_parts - 1, &p.part));
    QN_TRY(qn_gguf_optional(qn_gguf_get_i64(g, "split.tensors.count", 0, INT32_MAX, &p.n_tensors)));
    g->split = p;
    return QN_OK;
}

static qn_status check_values(qn_gguf *g)
{
    g->alignment = ALIGNMENT_DEFAULT;
    const qn_gguf_value *v = qn_gguf_value_find(g, "general.alignment");
    if (v) {
        uint32_t alignment;
        if (v->type != QN_GGUF_U32)
            return qn_fail(QN_E_FORMAT, "%s: general.alignment is of type %s, expected u32", g->path,
                           qn_gguf_type_name(v->type));
        memcpy(&alignment, v->data, sizeof alignment);
        if (alignment == 0 || (alignment & (alignment - 1)))
            return qn_fail(QN_E_FORMAT, "%s: general.alignment %u is not a power of two", g->path, alignment);
        g->alignment = alignment;
    }
    return read_split(g);
}

static qn_status read_shape(cursor *c, qn_tensor_view *v)
{
    uint32_t n_dims = 0;
    QN_TRY(read_bytes(c, &n_dims, sizeof n_dims, v->name));
    if (n_dims < 1 || n_dims > DIMS_MAX)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: %u dimensions, expected 1 to %d", c->path, v->name,
                       n_dims, DIMS_MAX);
    v->n_dims = (int)n_dims;
    v->n_elements = 1;
    for (int i = v->n_dims - 1; i >= 0; i--) { /* the file has the fastest dimension first */
        uint64_t dim = 0;
        QN_TRY(read_bytes(c, &dim, sizeof dim, v->name));
        if (dim == 0 || dim > INT64_MAX)
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: invalid dimension %llu", c->path, v->name,
                           (unsigned long long)dim);
        if (!qn_mul_i64(v->n_elements, (int64_t)dim, &v->n_elements))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s has too many elements", c->path, v->name);
        v->shape[i] = (int64_t)dim;
    }
    return QN_OK;
}

static qn_status read_type(qn_gguf *g, cursor *c, qn_tensor_view *v)
{
    uint32_t number = 0;
    int64_t block_elements;
    size_t block_bytes;
    QN_TRY(read_bytes(c, &number, sizeof number, v->name));
    const qn_type *type = qn_type_from_ggml(number);
    v->supported = type != NULL;
    if (type) v->dtype = type->dtype;
    v->type_name = qn_ggml_type_name(number);
    if (!v->type_name) {
        char text[32];
        int n = snprintf(text, sizeof text, "number %u", number);
        v->type_name = qn_arena_strndup(&g->arena, text, (size_t)n);
        return v->type_name ? QN_OK : QN_E_NOMEM;
    }
    qn_ggml_type_layout(number, &block_elements, &block_bytes);
    int64_t row = v->shape[v->n_dims - 1];
    if (row % block_elements)
        return qn_fail(QN_E_FORMAT,
                       "%s: tensor %s: rows of %lld elements are not a multiple of the %lld of a %s block",
                       g->path, v->name, (long long)row, (long long)block_elements, v->type_name);
    if (!qn_mul_size((size_t)(v->n_elements / block_elements), block_bytes, &v->size_bytes))
        return qn_fail(QN_E_FORMAT, "%s: tensor %s is too large", g->path, v->name);
    return QN_OK;
}

/* Where the data begins is known only behind the last tensor, so offsets are kept until then. */
static qn_status read_views(qn_gguf *g, cursor *c, uint64_t n, uint64_t *offsets)
{
    for (; g->n_views < (int64_t)n; g->n_views++) {
        qn_tensor_view *v = &g->views[g->n_views];
        char *name;
        int found;
        QN_TRY(read_name(c, &g->arena, "a tensor's name", &name));
        *v = (qn_tensor_view){.name = name, .file = g->path, .mapping = g->mapping};
        QN_TRY(qn_map_set(g->names, name, strlen(name), g->n_views, NULL, &found));
        if (found) return qn_fail(QN_E_FORMAT, "%s: tensor %s appears twice", g->path, name);
        QN_TRY(read_shape(c, v));
        QN_TRY(read_type(g, c, v));
        QN_TRY(read_bytes(c, &offsets[g->n_views], sizeof *offsets, name));
        if (offsets[g->n_views] % g->alignment)
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: offset %llu is not a multiple of the alignment %zu",
                           g->path, name, (unsigned long long)offsets[g->n_views], g->alignment);
    }
    return QN_OK;
}

/* Turns offsets into pointers. */
static qn_status place_views(qn_gguf *g, const cursor *c, const uint64_t *offsets)
{
    size_t begin, data_size = 0;
    if (!qn_align_size((size_t)(c->at - g->bytes), g->alignment, &begin)) return qn_fail_nomem(SIZE_MAX);
    if (begin < g->size) data_size = g->size - begin;
    for (int64_t i = 0; i < g->n_views; i++) {
        qn_tensor_view *v = &g->views[i];
        if (!qn_range_ok(offsets[i], v->size_bytes, data_size))
            return qn_fail(QN_E_FORMAT,
                           "%s: tensor %s: %zu bytes at %llu, but the file has only %zu bytes of data (is it "
                           "truncated?)",
                           g->path, v->name, v->size_bytes, (unsigned long long)offsets[i], data_size);
        v->data = data_size ? g->bytes + begin + offsets[i] : g->bytes;
    }
    return QN_OK;
}

static int by_place(const void *a, const void *b)
{
    const qn_tensor_view *x = *(const qn_tensor_view *const *)a, *y = *(const qn_tensor_view *const *)b;
    const uint8_t *p = x->data, *q = y->data;
    if (p != q) return p < q ? -1 : 1;
    return x->size_bytes < y->size_bytes ? -1 : x->size_bytes > y->size_bytes;
}

static qn_status check_overlap(const qn_gguf *g)
{
    size_t n = (size_t)g->n_views;
    const qn_tensor_view **order = qn_alloc_array(n, sizeof *order);
    if (!order) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) order[i] = &g->views[i];
    if (n) qsort(order, n, sizeof *order, by_place);
    qn_status status = QN_OK;
    for (size_t i = 1; i < n && status == QN_OK; i++) {
        const uint8_t *before = order[i - 1]->data, *at = order[i]->data;
        if ((size_t)(at - before) < order[i - 1]->size_bytes)
            status = qn_fail(QN_E_FORMAT, "%s: the data of tensors %s and %s overlap", g->path,
                             order[i - 1]->name, order[i]->name);
    }
    qn_free(order);
    return status;
}

static qn_status read_tensors(qn_gguf *g, cursor *c, uint64_t n)
{
    if (n > left(c) / TENSOR_BYTES_MIN || n > TENSORS_MAX) return too_many(c, n, "tensors", TENSORS_MAX);
    uint64_t *offsets = qn_calloc((size_t)n, sizeof *offsets);
    g->views = qn_calloc((size_t)n, sizeof *g->views);
    g->names = qn_map_new((size_t)n);
    qn_status status = offsets && g->views && g->names ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK) status = read_views(g, c, n, offsets);
    if (status == QN_OK) status = place_views(g, c, offsets);
    if (status == QN_OK) status = check_overlap(g);
    qn_free(offsets);
    return status;
}

static qn_status parse(qn_gguf *g, const uint8_t *bytes, size_t n)
{
    QN_TRY(qn_file_check_pointer(g->path, bytes, n));
    g->split = (qn_gguf_parts){0, 1, -1};
    cursor c = {bytes, bytes + n, g->path};
    uint64_t n_tensors = 0, n_values = 0;
    g->bytes = bytes;
    g->size = n;
    if (memcmp(bytes, "GGUF", n < 4 ? n : 4) != 0)
        return qn_fail(QN_E_FORMAT, "%s: not a GGUF file", g->path);
    if (n < 4) return truncated(&c, "the header");
    c.at += 4;
    QN_TRY(read_bytes(&c, &g->version, sizeof g->version, "the header"));
    if (g->version && (g->version & 0xffff) == 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: a big-endian GGUF file is not supported", g->path);
    if (g->version != 2 && g->version != 3)
        return qn_fail(QN_E_UNSUPPORTED, "%s: GGUF version %u is not supported (2 and 3 are)", g->path,
                       g->version);
    QN_TRY(read_bytes(&c, &n_tensors, sizeof n_tensors, "the header"));
    QN_TRY(read_bytes(&c, &n_values, sizeof n_values, "the header"));
    QN_TRY(read_values(g, &c, n_values));
    QN_TRY(check_values(g));
    return read_tensors(g, &c, n_tensors);
}

qn_status qn_gguf_open_bytes(const char *name, const void *bytes, size_t n, qn_gguf **out)
{
    qn_gguf *g = qn_calloc(1, sizeof *g);
    qn_status status = QN_E_NOMEM;
    if (g && (g->path = qn_strdup(name))) status = parse(g, bytes, n);
    if (status == QN_OK)
        *out = g;
    else
        qn_gguf_close(g);
    return status;
}

static qn_status open_file(const char *path, int may_be_part, qn_gguf **out)
{
    qn_gguf *g = qn_calloc(1, sizeof *g);
    qn_status status = QN_E_NOMEM;
    if (g) g->may_be_part = may_be_part;
    if (g && (g->path = qn_strdup(path))) status = qn_mapping_open(path, &g->mapping);
    if (status == QN_OK) status = parse(g, qn_mapping_data(g->mapping), qn_mapping_size(g->mapping));
    if (status == QN_OK)
        *out = g;
    else
        qn_gguf_close(g);
    return status;
}

qn_status qn_gguf_open(const char *path, qn_gguf **out)
{
    return open_file(path, 0, out);
}

qn_status qn_gguf_open_part(const char *path, qn_gguf **out)
{
    return open_file(path, 1, out);
}

qn_gguf_parts qn_gguf_split(const qn_gguf *g)
{
    return g->split;
}

void qn_gguf_close(qn_gguf *g)
{
    if (!g) return;
    qn_map_free(g->names);
    qn_free(g->views);
    qn_map_free(g->keys);
    qn_free(g->values);
    qn_arena_clear(&g->arena);
    qn_mapping_close(g->mapping);
    qn_free(g->path);
    qn_free(g);
}

const char *qn_gguf_path(const qn_gguf *g)
{
    return g->path;
}

uint32_t qn_gguf_version(const qn_gguf *g)
{
    return g->version;
}

int64_t qn_gguf_value_count(const qn_gguf *g)
{
    return g->n_values;
}

const qn_gguf_value *qn_gguf_value_get(const qn_gguf *g, int64_t i)
{
    return &g->values[i];
}

const qn_gguf_value *qn_gguf_value_find(const qn_gguf *g, const char *key)
{
    int64_t i;
    return qn_map_get(g->keys, key, strlen(key), &i) ? &g->values[i] : NULL;
}

int64_t qn_gguf_count(const qn_gguf *g)
{
    return g->n_views;
}

const qn_tensor_view *qn_gguf_get(const qn_gguf *g, int64_t i)
{
    return &g->views[i];
}

const qn_tensor_view *qn_gguf_find(const qn_gguf *g, const char *name)
{
    int64_t i;
    return qn_map_get(g->names, name, strlen(name), &i) ? &g->views[i] : NULL;
}

qn_status qn_gguf_tensor(const qn_gguf *g, const char *name, const qn_tensor_view **out)
{
    const qn_tensor_view *v = qn_gguf_find(g, name);
    if (!v) return qn_fail(QN_E_NOT_FOUND, "%s: there is no tensor %s", g->path, name);
    QN_TRY(qn_view_check(v));
    *out = v;
    return QN_OK;
}
