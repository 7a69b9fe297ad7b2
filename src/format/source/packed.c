#include "format/source/packed.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cache_folder.h"
#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "seed/seed.h"

/* What is read of a tensor at its beginning, middle and end. */
enum { SAMPLE_BYTES = 512, SEED = 1 };

static const char version_key[] = "quern.packed", device_key[] = "quern.device";
static const char layout_key[] = "quern.layout", print_key[] = "quern.fingerprint";
static const char source_key[] = "quern.source", version_now[] = "1", suffix[] = ".qpack";

struct qn_packed {
    qn_safetensors *file;
    qn_packed_key key;
    const char *source;
};

/* ---- fingerprint -------------------------------------------------------------------------------------- */

static uint64_t hash_number(uint64_t n, uint64_t hash)
{
    return qn_hash_bytes(&n, sizeof n, hash);
}

/* Size and header of the file that view i is the first of. */
static uint64_t hash_file(const qn_source *s, int64_t i, uint64_t hash)
{
    const qn_mapping *m = qn_source_get(s, i)->mapping;
    size_t header = qn_mapping_size(m);
    for (; i < qn_source_count(s) && qn_source_get(s, i)->mapping == m; i++) {
        const qn_tensor_view *v = qn_source_get(s, i);
        if (!v->supported) continue;
        size_t at = (size_t)((const uint8_t *)v->data - qn_mapping_data(m));
        if (at < header) header = at;
    }
    hash = hash_number(qn_mapping_size(m), hash);
    return qn_hash_bytes(qn_mapping_data(m), header, hash);
}

static uint64_t hash_tensor(const qn_tensor_view *v, uint64_t hash)
{
    const uint8_t *data = v->data;
    size_t n = v->size_bytes, most = SAMPLE_BYTES;
    if (n <= 3 * most) return qn_hash_bytes(data, n, hash);
    hash = qn_hash_bytes(data, most, hash);
    hash = qn_hash_bytes(data + n / 2, most, hash);
    return qn_hash_bytes(data + n - most, most, hash);
}

qn_status qn_packed_fingerprint(qn_source *s, uint64_t *out)
{
    uint64_t hash = SEED;
    const char *text;
    size_t n;
    if (qn_source_side_path(s, QN_SIDE_CONFIG)) {
        QN_TRY(qn_source_side_text(s, QN_SIDE_CONFIG, &text, &n));
        hash = qn_hash_bytes(text, n, hash);
    }
    const qn_mapping *before = NULL;
    for (int64_t i = 0; i < qn_source_count(s); i++) {
        const qn_tensor_view *v = qn_source_get(s, i);
        if (v->mapping && v->mapping != before) {
            hash = hash_file(s, i, hash);
            qn_mapping_expect(v->mapping, QN_MAPPING_SAMPLES);
        }
        before = v->mapping;
        if (v->supported) hash = hash_tensor(v, hash);
    }
    before = NULL;
    for (int64_t i = 0; i < qn_source_count(s); i++) {
        const qn_tensor_view *v = qn_source_get(s, i);
        if (v->mapping && v->mapping != before) qn_mapping_expect(v->mapping, QN_MAPPING_ALL);
        before = v->mapping;
        if (v->supported) qn_view_drop(v, 0, v->size_bytes);
    }
    *out = hash;
    return QN_OK;
}

/* ---- places ------------------------------------------------------------------------------------------- */

int qn_packed_is_name(const char *path)
{
    size_t n = strlen(path), m = sizeof suffix - 1;
    return n > m && memcmp(path + n - m, suffix, m) == 0;
}

qn_status qn_packed_find_place(const qn_source *s, qn_packed_place place, qn_buf *out)
{
    const char *first = qn_source_file_path(s, 0), *slash = strrchr(first, '/');
    const int n_folder = slash ? (int)(slash - first) + 1 : 0;
    /* The parts of several GGUF models may share a folder. */
    const int is_folder = qn_source_file_count(s) > 1 && !qn_source_gguf(s);
    const char *name = is_folder ? "model" : first + n_folder;
    if (strcmp(first, QN_SEED_PATH) == 0)
        return qn_fail(QN_E_NOT_FOUND,
                       "%s is part of the program, so its packed weights need a path: give one with -o",
                       first);
    if (place == QN_PACKED_BESIDE) {
        qn_buf_printf(out, "%.*s%s%s", n_folder, first, name, suffix);
        return out->status;
    }
    char real[PATH_MAX];
    QN_TRY(qn_cache_folder(out));
    if (!realpath(first, real)) snprintf(real, sizeof real, "%s", first);
    qn_buf_printf(out, "/packed/%s-%016" PRIx64 "%s", name, qn_hash_bytes(real, strlen(real), SEED), suffix);
    return out->status;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static qn_status read_key(qn_packed *p)
{
    const char *path = qn_safetensors_path(p->file);
    const char *version = qn_safetensors_metadata(p->file, version_key);
    const char *device = qn_safetensors_metadata(p->file, device_key);
    const char *layout = qn_safetensors_metadata(p->file, layout_key);
    const char *print = qn_safetensors_metadata(p->file, print_key);
    p->source = qn_safetensors_metadata(p->file, source_key);
    char *end;
    if (!version || !device || !layout || !print || !p->source)
        return qn_fail(QN_E_FORMAT, "%s: not a file of packed weights", path);
    if (strcmp(version, version_now) != 0)
        return qn_fail(QN_E_FORMAT,
                       "%s: packed weights of format %.16s; this version of quern reads format %s", path,
                       version, version_now);
    p->key.device = device;
    long number = strtol(layout, &end, 10);
    if (end == layout || *end || number < 0 || number > INT_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s \"%.16s\" is not a number", path, layout_key, layout);
    p->key.layout = (int)number;
    if (strlen(print) != 16 || strspn(print, "0123456789abcdef") != 16)
        return qn_fail(QN_E_FORMAT, "%s: %s \"%.32s\" is not a hash", path, print_key, print);
    p->key.fingerprint = strtoull(print, NULL, 16);
    return QN_OK;
}

static qn_status take(qn_packed *p, qn_status status, qn_packed **out)
{
    if (status == QN_OK) status = read_key(p);
    if (status == QN_OK)
        *out = p;
    else
        qn_packed_close(p);
    return status;
}

qn_status qn_packed_open(const char *path, qn_packed **out)
{
    qn_packed *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    return take(p, qn_safetensors_open(path, &p->file), out);
}

qn_status qn_packed_open_bytes(const char *name, const void *bytes, size_t n, qn_packed **out)
{
    qn_packed *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    return take(p, qn_safetensors_open_bytes(name, bytes, n, &p->file), out);
}

void qn_packed_close(qn_packed *p)
{
    if (!p) return;
    qn_safetensors_close(p->file);
    qn_free(p);
}

const char *qn_packed_path(const qn_packed *p)
{
    return qn_safetensors_path(p->file);
}

const qn_packed_key *qn_packed_get_key(const qn_packed *p)
{
    return &p->key;
}

const char *qn_packed_source(const qn_packed *p)
{
    return p->source;
}

size_t qn_packed_bytes(const qn_packed *p)
{
    size_t total = 0;
    for (int64_t i = 0; i < qn_safetensors_count(p->file); i++)
        total += qn_safetensors_get(p->file, i)->size_bytes;
    return total;
}

qn_status qn_packed_check(const qn_packed *p, const qn_packed_key *wanted)
{
    const char *path = qn_packed_path(p);
    if (strcmp(p->key.device, wanted->device) != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: packed for the device %.32s, not %s", path, p->key.device,
                       wanted->device);
    if (p->key.layout != wanted->layout)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: packed in layout version %d; this version of quern uses layout version %d", path,
                       p->key.layout, wanted->layout);
    if (p->key.fingerprint != wanted->fingerprint)
        return qn_fail(QN_E_UNSUPPORTED, "%s: packed from another model, or before the model was changed",
                       path);
    return QN_OK;
}

static qn_status rounded(size_t size_bytes, size_t *out)
{
    if (!qn_add_size(size_bytes, QN_PACKED_ALIGN - 1, out) || *out > INT64_MAX / 2)
        return qn_fail(QN_E_ARG, "%zu bytes are too many to pack", size_bytes);
    *out = *out / QN_PACKED_ALIGN * QN_PACKED_ALIGN;
    return QN_OK;
}

qn_status qn_packed_matrix(const qn_packed *p, const char *name, size_t size_bytes, const void **out)
{
    const qn_tensor_view *v = qn_safetensors_find(p->file, name);
    size_t size = 0;
    QN_TRY(rounded(size_bytes, &size));
    if (!v || !v->supported || v->size_bytes != size)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: %s", qn_packed_path(p), name,
                       v ? "its size does not match the model's tensor" : "missing");
    if ((uintptr_t)v->data % QN_PACKED_ALIGN)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s is not aligned to %d bytes", qn_packed_path(p), name,
                       QN_PACKED_ALIGN);
    *out = v->data;
    return QN_OK;
}

qn_status qn_packed_vector(const qn_packed *p, const char *name, int64_t n, const float **out)
{
    const qn_tensor_view *v = qn_safetensors_find(p->file, name);
    if (!v || !v->supported || v->dtype != QN_DTYPE_F32 || v->n_elements != n)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: %s", qn_packed_path(p), name,
                       v ? "it does not match the model's vector" : "missing");
    if ((uintptr_t)v->data % sizeof(float))
        return qn_fail(QN_E_FORMAT, "%s: tensor %s is not aligned", qn_packed_path(p), name);
    *out = v->data;
    return QN_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

qn_status qn_packed_writer_new(const char *path, const qn_packed_key *key, const char *source,
                               qn_st_writer **out)
{
    qn_st_writer *w;
    char number[24], print[24];
    /* Paths may be any bytes; the header is UTF-8. */
    if (qn_utf8_valid_prefix(source, strlen(source)) != strlen(source)) source = "(not UTF-8)";
    QN_TRY(qn_st_writer_new(path, &w));
    snprintf(number, sizeof number, "%d", key->layout);
    snprintf(print, sizeof print, "%016" PRIx64, key->fingerprint);
    qn_status status = qn_st_writer_metadata(w, version_key, version_now);
    if (status == QN_OK) status = qn_st_writer_metadata(w, device_key, key->device);
    if (status == QN_OK) status = qn_st_writer_metadata(w, layout_key, number);
    if (status == QN_OK) status = qn_st_writer_metadata(w, print_key, print);
    if (status == QN_OK) status = qn_st_writer_metadata(w, source_key, source);
    if (status == QN_OK) status = qn_st_writer_align(w, QN_PACKED_ALIGN);
    if (status == QN_OK)
        *out = w;
    else
        qn_st_writer_free(w);
    return status;
}

qn_status qn_packed_add_matrix(qn_st_writer *w, const char *name, size_t size_bytes, int64_t *index)
{
    size_t size = 0;
    QN_TRY(rounded(size_bytes, &size));
    int64_t shape = (int64_t)size;
    return qn_st_writer_add(w, name, QN_DTYPE_U8, 1, &shape, index);
}

qn_status qn_packed_add_vector(qn_st_writer *w, const char *name, int64_t n, int64_t *index)
{
    return qn_st_writer_add(w, name, QN_DTYPE_F32, 1, &n, index);
}
