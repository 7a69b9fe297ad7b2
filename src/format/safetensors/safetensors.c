#include "format/safetensors/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/safetensors/json_scan.h"
#include "quant/types.h"

/* The format's own bound on headers, and ours on tensors of one file (the largest models have 100,000 in all
 * files). */
enum { HEADER_MAX = 100000000, TENSORS_MAX = 1 << 18, METADATA_MAX = 1 << 16 };

typedef struct {
    const char *key, *value;
} pair;

struct qn_safetensors {
    char *path;
    qn_mapping *mapping; /* NULL: bytes of the caller */
    const uint8_t *data; /* behind the header */
    size_t data_size;
    qn_arena arena; /* names, type names, metadata */
    qn_tensor_view *views;
    size_t n_views, views_capacity;
    pair *pairs;
    size_t n_pairs, pairs_capacity;
    qn_map *names;
};

/* Room for one more element in a growing array. */
static qn_status grow(void **items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity) return QN_OK;
    size_t wanted = *capacity ? *capacity * 2 : 64, bytes;
    if (!qn_mul_size(wanted, size, &bytes)) return qn_fail_nomem(SIZE_MAX);
    void *p = qn_realloc(*items, bytes);
    if (!p) return QN_E_NOMEM;
    *items = p;
    *capacity = wanted;
    return QN_OK;
}

static qn_status parse_metadata(qn_safetensors *s, qn_json_scan *scan)
{
    int first = 1;
    char *key, *value;
    size_t n;
    if (qn_scan_null(scan)) return QN_OK; /* as MLX writes it when there is none */
    if (!qn_scan_begin(scan, '{')) return scan->status;
    while (qn_scan_key(scan, &first, &key, &n)) {
        if (!qn_scan_string(scan, &value, &n)) break;
        if (s->n_pairs == METADATA_MAX)
            return qn_fail(QN_E_FORMAT, "%s: __metadata__ has more than %d keys", s->path, METADATA_MAX);
        QN_TRY(grow((void **)&s->pairs, s->n_pairs, &s->pairs_capacity, sizeof *s->pairs));
        s->pairs[s->n_pairs++] = (pair){key, value};
    }
    return scan->status;
}

static qn_status parse_shape(qn_safetensors *s, qn_json_scan *scan, qn_tensor_view *v)
{
    int first = 1;
    int64_t dim;
    if (!qn_scan_begin(scan, '[')) return scan->status;
    while (qn_scan_element(scan, &first)) {
        if (!qn_scan_count(scan, &dim)) break;
        if (v->n_dims == QN_VIEW_DIMS_MAX)
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: more than %d dimensions", s->path, v->name,
                           QN_VIEW_DIMS_MAX);
        v->shape[v->n_dims++] = dim;
    }
    return scan->status;
}

static qn_status count_elements(qn_safetensors *s, qn_tensor_view *v)
{
    char text[128];
    int64_t n = 1;
    for (int i = 0; i < v->n_dims; i++)
        if (v->shape[i] == 0) n = 0;
    for (int i = 0; i < v->n_dims && n; i++)
        if (!qn_mul_i64(n, v->shape[i], &n))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s has too many elements", s->path, v->name,
                           qn_view_shape_text(v, text, sizeof text));
    v->n_elements = n;
    return QN_OK;
}

/* Type, range and shape of one tensor against each other and the file. */
static qn_status check_tensor(qn_safetensors *s, qn_tensor_view *v, const char *dtype, size_t dtype_length,
                              const int64_t *offsets)
{
    char text[128];
    size_t wanted;
    QN_TRY(count_elements(s, v));
    if (offsets[0] > offsets[1])
        return qn_fail(QN_E_FORMAT,
                       "%s: tensor %s: data_offsets [%lld, %lld]: the end is before the beginning", s->path,
                       v->name, (long long)offsets[0], (long long)offsets[1]);
    if ((uint64_t)offsets[1] > s->data_size)
        return qn_fail(QN_E_FORMAT,
                       "%s: tensor %s: data up to byte %lld, but the file has only %zu bytes of data "
                       "(is it truncated?)",
                       s->path, v->name, (long long)offsets[1], s->data_size);
    const qn_type *type = qn_type_from_safetensors(dtype, dtype_length);
    v->supported = type != NULL;
    v->type_name = type ? type->st_name : dtype;
    v->data = s->data + offsets[0];
    v->size_bytes = (size_t)(offsets[1] - offsets[0]);
    if (!type) return QN_OK;
    v->dtype = type->dtype;
    if (!qn_type_bytes(type->dtype, v->n_elements, &wanted) || wanted != v->size_bytes)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: %s of shape %s does not fill its %zu bytes", s->path,
                       v->name, type->st_name, qn_view_shape_text(v, text, sizeof text), v->size_bytes);
    return QN_OK;
}

static qn_status parse_tensor(qn_safetensors *s, qn_json_scan *scan, const char *name)
{
    qn_tensor_view v = {.name = name, .file = s->path, .mapping = s->mapping};
    int first = 1, seen_shape = 0, n_offsets = -1;
    int64_t offsets[2] = {0, 0};
    char *key, *dtype = NULL;
    size_t n, dtype_length = 0;
    if (!qn_scan_begin(scan, '{')) return scan->status;
    while (qn_scan_key(scan, &first, &key, &n)) {
        if (strcmp(key, "dtype") == 0 && !dtype) {
            if (!qn_scan_string(scan, &dtype, &dtype_length)) break;
        } else if (strcmp(key, "shape") == 0 && !seen_shape) {
            seen_shape = 1;
            QN_TRY(parse_shape(s, scan, &v));
        } else if (strcmp(key, "data_offsets") == 0 && n_offsets < 0) {
            int first_offset = 1;
            n_offsets = 0;
            if (!qn_scan_begin(scan, '[')) break;
            while (qn_scan_element(scan, &first_offset)) {
                if (n_offsets == 2)
                    return qn_fail(QN_E_FORMAT, "%s: tensor %s: data_offsets has more than 2 numbers",
                                   s->path, name);
                if (!qn_scan_count(scan, &offsets[n_offsets])) break;
                n_offsets++;
            }
        } else {
            return qn_fail(QN_E_FORMAT, "%s: tensor %s: unexpected or repeated key \"%s\"", s->path, name,
                           key);
        }
    }
    if (scan->status != QN_OK) return scan->status;
    if (!dtype || !seen_shape || n_offsets != 2)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: %s is missing", s->path, name,
                       !dtype        ? "dtype"
                       : !seen_shape ? "shape"
                                     : "a complete data_offsets");
    QN_TRY(check_tensor(s, &v, dtype, dtype_length, offsets));
    if (s->n_views == TENSORS_MAX)
        return qn_fail(QN_E_FORMAT, "%s: more than %d tensors", s->path, TENSORS_MAX);
    QN_TRY(grow((void **)&s->views, s->n_views, &s->views_capacity, sizeof *s->views));
    int found;
    QN_TRY(qn_map_set(s->names, name, strlen(name), (int64_t)s->n_views, NULL, &found));
    if (found) return qn_fail(QN_E_FORMAT, "%s: tensor %s appears twice", s->path, name);
    s->views[s->n_views++] = v;
    return QN_OK;
}

static qn_status parse_header(qn_safetensors *s, const char *text, size_t n)
{
    qn_json_scan scan = {.what = s->path, .begin = text, .at = text, .end = text + n, .arena = &s->arena};
    int first = 1, seen_metadata = 0;
    char *name;
    size_t length;
    if (n == 0 || text[0] != '{')
        return qn_fail(QN_E_FORMAT, "%s: the header is not JSON: not a safetensors file", s->path);
    qn_scan_begin(&scan, '{');
    while (qn_scan_key(&scan, &first, &name, &length)) {
        if (length == 0) return qn_fail(QN_E_FORMAT, "%s: a tensor has an empty name", s->path);
        if (strcmp(name, "__metadata__") == 0) {
            if (seen_metadata++) return qn_fail(QN_E_FORMAT, "%s: __metadata__ appears twice", s->path);
            QN_TRY(parse_metadata(s, &scan));
        } else {
            QN_TRY(parse_tensor(s, &scan, name));
        }
    }
    if (scan.status == QN_OK) qn_scan_end(&scan);
    return scan.status;
}

static int by_offset(const void *a, const void *b)
{
    const qn_tensor_view *x = *(const qn_tensor_view *const *)a, *y = *(const qn_tensor_view *const *)b;
    const uint8_t *p = x->data, *q = y->data;
    if (p != q) return p < q ? -1 : 1;
    return x->size_bytes < y->size_bytes ? -1 : x->size_bytes > y->size_bytes;
}

/* The data must be the tensors, end to end in some order: the format allows neither overlap nor unnamed
 * bytes. */
static qn_status check_ranges(const qn_safetensors *s)
{
    const qn_tensor_view **order = qn_alloc_array(s->n_views, sizeof *order);
    if (!order) return QN_E_NOMEM;
    for (size_t i = 0; i < s->n_views; i++) order[i] = &s->views[i];
    if (s->n_views) qsort(order, s->n_views, sizeof *order, by_offset);
    qn_status status = QN_OK;
    size_t end = 0;
    for (size_t i = 0; i < s->n_views && status == QN_OK; i++) {
        size_t begin = (size_t)((const uint8_t *)order[i]->data - s->data);
        if (begin < end)
            status = qn_fail(QN_E_FORMAT, "%s: the data of tensors %s and %s overlap", s->path,
                             order[i - 1]->name, order[i]->name);
        else if (begin > end)
            status = qn_fail(QN_E_FORMAT,
                             "%s: bytes %zu to %zu of the data, before tensor %s, belong to no tensor",
                             s->path, end, begin, order[i]->name);
        end = begin + order[i]->size_bytes;
    }
    if (status == QN_OK && end != s->data_size)
        status =
            qn_fail(QN_E_FORMAT, "%s: the last %zu bytes belong to no tensor", s->path, s->data_size - end);
    qn_free(order);
    return status;
}

static qn_status parse(qn_safetensors *s, const uint8_t *bytes, size_t n)
{
    uint64_t header;
    if (n < sizeof header)
        return qn_fail(QN_E_FORMAT, "%s: %zu bytes are too few for a safetensors file (is it truncated?)",
                       s->path, n);
    memcpy(&header, bytes, sizeof header);
    if (header > HEADER_MAX)
        return qn_fail(QN_E_FORMAT,
                       "%s: a header of %llu bytes, at most %d are allowed: not a safetensors file", s->path,
                       (unsigned long long)header, HEADER_MAX);
    if (header > n - sizeof header)
        return qn_fail(QN_E_FORMAT,
                       "%s: a header of %llu bytes, but the file has only %zu (is it truncated?)", s->path,
                       (unsigned long long)header, n);
    s->data = bytes + sizeof header + header;
    s->data_size = n - sizeof header - (size_t)header;
    s->names = qn_map_new(64);
    if (!s->names) return QN_E_NOMEM;
    QN_TRY(parse_header(s, (const char *)bytes + sizeof header, (size_t)header));
    return check_ranges(s);
}

qn_status qn_safetensors_open_bytes(const char *name, const void *bytes, size_t n, qn_safetensors **out)
{
    qn_safetensors *s = qn_calloc(1, sizeof *s);
    qn_status status = QN_E_NOMEM;
    if (s && (s->path = qn_strdup(name))) status = parse(s, bytes, n);
    if (status == QN_OK)
        *out = s;
    else
        qn_safetensors_close(s);
    return status;
}

qn_status qn_safetensors_open(const char *path, qn_safetensors **out)
{
    qn_safetensors *s = qn_calloc(1, sizeof *s);
    qn_status status = QN_E_NOMEM;
    if (s && (s->path = qn_strdup(path))) status = qn_mapping_open(path, &s->mapping);
    if (status == QN_OK)
        status = qn_file_check_pointer(path, qn_mapping_data(s->mapping), qn_mapping_size(s->mapping));
    if (status == QN_OK) status = parse(s, qn_mapping_data(s->mapping), qn_mapping_size(s->mapping));
    if (status == QN_OK)
        *out = s;
    else
        qn_safetensors_close(s);
    return status;
}

void qn_safetensors_close(qn_safetensors *s)
{
    if (!s) return;
    qn_map_free(s->names);
    qn_free(s->pairs);
    qn_free(s->views);
    qn_arena_clear(&s->arena);
    qn_mapping_close(s->mapping);
    qn_free(s->path);
    qn_free(s);
}

const char *qn_safetensors_path(const qn_safetensors *s)
{
    return s->path;
}

int64_t qn_safetensors_count(const qn_safetensors *s)
{
    return (int64_t)s->n_views;
}

const qn_tensor_view *qn_safetensors_get(const qn_safetensors *s, int64_t i)
{
    return &s->views[i];
}

const qn_tensor_view *qn_safetensors_find(const qn_safetensors *s, const char *name)
{
    int64_t i;
    return qn_map_get(s->names, name, strlen(name), &i) ? &s->views[i] : NULL;
}

qn_status qn_safetensors_tensor(const qn_safetensors *s, const char *name, const qn_tensor_view **out)
{
    const qn_tensor_view *v = qn_safetensors_find(s, name);
    if (!v) return qn_fail(QN_E_NOT_FOUND, "%s: there is no tensor %s", s->path, name);
    QN_TRY(qn_view_check(v));
    *out = v;
    return QN_OK;
}

const char *qn_safetensors_metadata(const qn_safetensors *s, const char *key)
{
    for (size_t i = 0; i < s->n_pairs; i++)
        if (strcmp(s->pairs[i].key, key) == 0) return s->pairs[i].value;
    return NULL;
}

int qn_safetensors_metadata_at(const qn_safetensors *s, int64_t i, const char **key, const char **value)
{
    if (i < 0 || (size_t)i >= s->n_pairs) return 0;
    *key = s->pairs[i].key;
    *value = s->pairs[i].value;
    return 1;
}
