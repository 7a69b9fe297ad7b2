#include "format/source/source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/source/projector_file.h"
#include "format/source/raw_weights.h"
#include "format/source/source_files.h"
#include "seed/seed.h"

enum { NAME_BYTES_MAX = 1024 };
static const size_t tokenizer_bytes_max = (size_t)256 << 20, side_bytes_max = (size_t)16 << 20;

typedef struct {
    const char *path; /* NULL: not there */
    char *text;       /* NULL: not read yet */
    size_t n;
} side;

struct qn_source {
    char *path;
    qn_source_files files;
    side sides[QN_SIDE_COUNT];
    qn_gguf *gguf;      /* the first of `parts`, if there are parts */
    qn_gguf **parts;    /* NULL: the file is whole */
    qn_gguf *projector; /* of the vision tower; NULL: none */
    int projector_is_given, projector_is_dropped;
    int64_t n_own_views, n_own_elements; /* before those of the tower */
    qn_buf projector_note;
    qn_raw_weights *raw;
    qn_safetensors **shards; /* as many as files, NULL where opening failed */
    const qn_tensor_view **views;
    int64_t n_views, n_elements;
    qn_tensor_view *narrowed; /* [n_narrowed] in the place of tensors of type F64; they own their data */
    int64_t n_narrowed;
    qn_map *names;       /* tensor -> place in views */
    qn_map *index_files; /* tensor -> place in files; NULL: no index */
};

/* A link that leads nowhere is there: reading it says what is wrong, as with half a download. */
static qn_status find_sides(qn_source *s)
{
    struct stat st;
    for (int i = 0; i < QN_SIDE_COUNT && !s->files.is_seed; i++) {
        const char *path =
            qn_source_join(&s->files.arena, s->files.folder, qn_side_file_name((qn_side_file)i));
        if (!path) return QN_E_NOMEM;
        if (lstat(path, &st) == 0) s->sides[i].path = path;
    }
    if (!s->files.is_seed && !s->sides[QN_SIDE_TIKTOKEN].path)
        QN_TRY(qn_source_files_find_tiktoken(&s->files, &s->sides[QN_SIDE_TIKTOKEN].path));
    return s->files.is_seed ? QN_OK : qn_source_files_find_templates(&s->files);
}

/* Which of two views of a tensor counts: that of the file which the index names, if it is the last by name, too,
 * which transformers takes. NULL: they do not agree. */
static const qn_tensor_view *choose_view(const qn_source *s, const qn_tensor_view *a, const qn_tensor_view *b)
{
    const qn_tensor_view *last = strcmp(a->file, b->file) > 0 ? a : b;
    int64_t i;
    return s->index_files && qn_map_get(s->index_files, a->name, strlen(a->name), &i) &&
                   strcmp(s->files.files[i], last->file) == 0
               ? last
               : NULL;
}

static qn_status map_index(qn_source *s)
{
    if (!s->files.n_entries) return QN_OK;
    s->index_files = qn_map_new(s->files.n_entries);
    if (!s->index_files) return QN_E_NOMEM;
    for (size_t i = 0; i < s->files.n_entries; i++) {
        const qn_index_entry *e = &s->files.entries[i];
        QN_TRY(qn_map_set(s->index_files, e->tensor, strlen(e->tensor), (int64_t)e->i_file, NULL, NULL));
    }
    return QN_OK;
}

static qn_status add_view(qn_source *s, const qn_tensor_view *v)
{
    int64_t other = 0;
    int found;
    QN_TRY(qn_map_set(s->names, v->name, strlen(v->name), s->n_views, &other, &found));
    const qn_tensor_view *chosen = found ? choose_view(s, s->views[other], v) : NULL;
    if (chosen) {
        s->n_elements += chosen->n_elements - s->views[other]->n_elements;
        s->views[other] = chosen;
        return qn_map_set(s->names, v->name, strlen(v->name), other, NULL, NULL);
    }
    if (found)
        return qn_fail(QN_E_FORMAT,
                       "tensor %s is in two files: %s and %s. If these are two models, pick one with --file",
                       v->name, s->views[other]->file, v->file);
    /* Of types without a known size the file's length says nothing; whoever adds up elements relies on it. */
    if (!qn_add_i64(s->n_elements, v->n_elements, &s->n_elements))
        return qn_fail(QN_E_FORMAT,
                       "%s: tensor %s: together with the tensors before it, there are too many elements",
                       v->file, v->name);
    s->views[s->n_views++] = v;
    return QN_OK;
}

static qn_status make_room(qn_source *s, size_t n)
{
    s->views = qn_alloc_array(n, sizeof *s->views);
    s->names = qn_map_new(n);
    return s->views && s->names ? QN_OK : QN_E_NOMEM;
}

/* Each tensor of the index must be in the file that it is said to be in. */
static qn_status check_index(const qn_source *s)
{
    for (size_t i = 0; i < s->files.n_entries; i++) {
        const qn_index_entry *e = &s->files.entries[i];
        if (!qn_safetensors_find(s->shards[e->i_file], e->tensor))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s is not in %s", s->files.index_path, e->tensor,
                           s->files.files[e->i_file]);
    }
    return QN_OK;
}

static qn_status open_safetensors(qn_source *s)
{
    size_t total = 0;
    s->shards = qn_calloc(s->files.n_files, sizeof *s->shards);
    if (!s->shards) return QN_E_NOMEM;
    for (size_t i = 0; i < s->files.n_files; i++) {
        QN_TRY(qn_safetensors_open(s->files.files[i], &s->shards[i]));
        total += (size_t)qn_safetensors_count(s->shards[i]);
    }
    QN_TRY(make_room(s, total));
    QN_TRY(map_index(s));
    for (size_t i = 0; i < s->files.n_files; i++)
        for (int64_t j = 0; j < qn_safetensors_count(s->shards[i]); j++)
            QN_TRY(add_view(s, qn_safetensors_get(s->shards[i], j)));
    return check_index(s);
}

/* One of several parts was opened: the first part has the metadata, all have tensors. */
static qn_status open_parts(qn_source *s, const qn_gguf_parts *given)
{
    int64_t total = 0;
    QN_TRY(qn_source_files_add_parts(&s->files, given->part, given->n_parts));
    s->parts = qn_calloc(s->files.n_files, sizeof *s->parts);
    if (!s->parts) return QN_E_NOMEM;
    s->parts[given->part] = s->gguf;
    s->gguf = NULL;
    for (size_t i = 0; i < s->files.n_files; i++) {
        if (!s->parts[i]) QN_TRY(qn_gguf_open_part(s->files.files[i], &s->parts[i]));
        const qn_gguf_parts split = qn_gguf_split(s->parts[i]);
        if (split.part != (int64_t)i || split.n_parts != given->n_parts)
            return qn_fail(QN_E_FORMAT,
                           "%s: it says that it is part %lld of %lld: it belongs to another model",
                           s->files.files[i], (long long)split.part + 1, (long long)split.n_parts);
        total += qn_gguf_count(s->parts[i]);
    }
    s->gguf = s->parts[0];
    const int64_t want = qn_gguf_split(s->gguf).n_tensors;
    if (want >= 0 && want != total)
        return qn_fail(QN_E_FORMAT,
                       "%s: the %lld parts have %lld tensors, expected %lld (split.tensors.count)",
                       s->files.files[0], (long long)given->n_parts, (long long)total, (long long)want);
    QN_TRY(make_room(s, (size_t)total));
    for (size_t i = 0; i < s->files.n_files; i++)
        for (int64_t k = 0; k < qn_gguf_count(s->parts[i]); k++)
            QN_TRY(add_view(s, qn_gguf_get(s->parts[i], k)));
    return QN_OK;
}

static qn_status open_gguf(qn_source *s)
{
    size_t n;
    const void *seed = s->files.is_seed ? qn_seed_bytes(&n) : NULL;
    QN_TRY(seed ? qn_gguf_open_bytes(s->files.files[0], seed, n, &s->gguf)
                : qn_gguf_open_part(s->files.files[0], &s->gguf));
    const qn_gguf_parts split = qn_gguf_split(s->gguf);
    if (split.n_parts > 1) return open_parts(s, &split);
    QN_TRY(make_room(s, (size_t)qn_gguf_count(s->gguf)));
    for (int64_t i = 0; i < qn_gguf_count(s->gguf); i++) QN_TRY(add_view(s, qn_gguf_get(s->gguf, i)));
    return QN_OK;
}

static qn_status open_raw(qn_source *s)
{
    const char *text = NULL;
    size_t n = 0;
    qn_dtype dtype;
    QN_TRY(qn_source_side_text(s, QN_SIDE_CONFIG, &text, &n));
    QN_TRY(qn_raw_weights_dtype(qn_source_side_path(s, QN_SIDE_CONFIG), text, n, &dtype));
    QN_TRY(qn_raw_weights_open(s->files.files, s->files.n_files, dtype, &s->raw));
    QN_TRY(make_room(s, s->files.n_files));
    for (int64_t i = 0; i < qn_raw_weights_count(s->raw); i++)
        QN_TRY(add_view(s, qn_raw_weights_get(s->raw, i)));
    return QN_OK;
}

/* ---- numbers of 64 bits --------------------------------------------------------------------------------- */

static qn_status narrow(const qn_tensor_view *from, qn_tensor_view *to)
{
    *to = *from;
    to->data = NULL;
    size_t size;
    float *data = qn_mul_size((size_t)from->n_elements, sizeof *data, &size) ? qn_alloc(size) : NULL;
    if (!data) return QN_E_NOMEM;
    to->data = data;
    to->dtype = QN_DTYPE_F32;
    to->size_bytes = size;
    to->mapping = NULL;
    QN_TRY(qn_view_floats(from, 0, from->n_elements, data));
    for (int64_t i = 0; i < from->n_elements; i++) {
        double own;
        memcpy(&own, (const char *)from->data + 8 * i, sizeof own);
        if (isfinite(own) && !isfinite(data[i]))
            return qn_fail(QN_E_UNSUPPORTED,
                           "%s: tensor %s: element %lld is %g, which is too large for float32", from->file,
                           from->name, (long long)i, own);
    }
    return QN_OK;
}

/* Nothing is computed with 64 bits: tensors of that type become float32, and that is said. */
static qn_status narrow_all(qn_source *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_views; i++)
        n += s->views[i]->supported && s->views[i]->dtype == QN_DTYPE_F64;
    if (!n) return QN_OK;
    s->narrowed = qn_calloc((size_t)n, sizeof *s->narrowed);
    if (!s->narrowed) return QN_E_NOMEM;
    for (int64_t i = 0; i < s->n_views; i++) {
        if (!s->views[i]->supported || s->views[i]->dtype != QN_DTYPE_F64) continue;
        QN_TRY(narrow(s->views[i], &s->narrowed[s->n_narrowed++]));
        s->views[i] = &s->narrowed[s->n_narrowed - 1];
    }
    qn_log(QN_LOG_WARNING, "%s: %lld tensor%s of type F64 %s taken as float32", s->path, (long long)n,
           n == 1 ? "" : "s", n == 1 ? "is" : "are");
    return QN_OK;
}

static qn_status open_views(qn_source *s)
{
    if (s->files.kind == QN_SOURCE_GGUF) return open_gguf(s);
    if (s->files.kind == QN_SOURCE_RAW) return open_raw(s);
    if (s->files.n_files) return open_safetensors(s);
    return make_room(s, 0);
}

/* ---- a vision tower ------------------------------------------------------------------------------------- */

static qn_status check_architecture(const qn_gguf *g)
{
    static const char word[] = "clip"; /* llama.cpp's */
    qn_gguf_string name;
    QN_TRY(qn_gguf_get_string(g, "general.architecture", &name));
    if (name.length == sizeof word - 1 && memcmp(name.data, word, name.length) == 0) return QN_OK;
    return qn_fail(QN_E_ARG, "%s: this is no vision tower: general.architecture is \"%.*s\", expected \"%s\"",
                   qn_gguf_path(g), (int)(name.length < 60 ? name.length : 60), name.data, word);
}

static qn_status add_projector(qn_source *s, const char *path)
{
    QN_TRY(qn_gguf_open(path, &s->projector));
    QN_TRY(check_architecture(s->projector));
    const int64_t n = s->n_views + qn_gguf_count(s->projector);
    const qn_tensor_view **views = qn_realloc(s->views, (size_t)n * sizeof *views);
    if (!views) return QN_E_NOMEM;
    s->views = views;
    for (int64_t i = 0; i < qn_gguf_count(s->projector); i++) {
        const char *name = qn_gguf_get(s->projector, i)->name;
        if (qn_source_find(s, name))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s is in the model's file too: this is no vision tower",
                           path, name);
    }
    for (int64_t i = 0; i < qn_gguf_count(s->projector); i++)
        QN_TRY(add_view(s, qn_gguf_get(s->projector, i)));
    return QN_OK;
}

/* A file that is found, but cannot be read, does not keep the text from being read. */
static qn_status add_found_projector(qn_source *s)
{
    qn_buf path = {0};
    const char *file = s->files.files[0], *slash = strrchr(file, '/');
    if (s->files.is_seed) return QN_OK;
    qn_status status =
        qn_projector_find(s->files.folder, slash ? slash + 1 : file, &path, &s->projector_note);
    if (status == QN_OK && path.length) status = add_projector(s, path.data);
    if (status != QN_OK && status != QN_E_NOMEM && path.length) {
        qn_source_drop_projector(s);
        qn_buf_printf(&s->projector_note, "the vision tower beside the model is not used: %s",
                      qn_last_error());
        status = s->projector_note.status;
    }
    qn_buf_free(&path);
    return status;
}

static qn_status open_projector(qn_source *s, const qn_source_options *options)
{
    s->n_own_views = s->n_views;
    s->n_own_elements = s->n_elements;
    s->projector_is_given = options->mmproj != NULL;
    if (options->mmproj && s->files.kind != QN_SOURCE_GGUF)
        return qn_fail(QN_E_ARG,
                       "%s: a vision tower in a file (%s) is for a GGUF: this model has its tower in its own "
                       "files, if it sees",
                       s->path, options->mmproj);
    if (options->mmproj) return add_projector(s, options->mmproj);
    return options->sees && s->files.kind == QN_SOURCE_GGUF ? add_found_projector(s) : QN_OK;
}

static qn_status open_all(qn_source *s, const char *path, const qn_source_options *options)
{
    s->path = qn_strdup(path);
    if (!s->path) return QN_E_NOMEM;
    QN_TRY(qn_source_files_find(path, options, &s->files));
    QN_TRY(find_sides(s));
    QN_TRY(open_views(s));
    QN_TRY(open_projector(s, options));
    return options->as_stored || options->text_only ? QN_OK : narrow_all(s);
}

qn_status qn_source_open(const char *path, const qn_source_options *options, qn_source **out)
{
    static const qn_source_options defaults = {0};
    qn_source *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    qn_status status = open_all(s, path, options ? options : &defaults);
    if (status == QN_OK)
        *out = s;
    else
        qn_source_close(s);
    return status;
}

void qn_source_close(qn_source *s)
{
    if (!s) return;
    for (int i = 0; i < QN_SIDE_COUNT; i++) qn_free(s->sides[i].text);
    qn_map_free(s->names);
    qn_map_free(s->index_files);
    for (int64_t i = 0; i < s->n_narrowed; i++) qn_free((void *)(uintptr_t)s->narrowed[i].data);
    qn_free(s->narrowed);
    qn_free(s->views);
    for (size_t i = 0; s->shards && i < s->files.n_files; i++) qn_safetensors_close(s->shards[i]);
    qn_free(s->shards);
    if (!s->parts) qn_gguf_close(s->gguf);
    for (size_t i = 0; s->parts && i < s->files.n_files; i++) qn_gguf_close(s->parts[i]);
    qn_free(s->parts);
    qn_gguf_close(s->projector);
    qn_buf_free(&s->projector_note);
    qn_raw_weights_close(s->raw);
    qn_source_files_clear(&s->files);
    qn_free(s->path);
    qn_free(s);
}

const char *qn_source_path(const qn_source *s)
{
    return s->path;
}

qn_source_kind qn_source_get_kind(const qn_source *s)
{
    return s->files.kind;
}

const qn_gguf *qn_source_gguf(const qn_source *s)
{
    return s->gguf;
}

const qn_gguf *qn_source_projector(const qn_source *s)
{
    return s->projector_is_dropped ? NULL : s->projector;
}

int qn_source_projector_is_given(const qn_source *s)
{
    return s->projector_is_given;
}

void qn_source_drop_projector(qn_source *s)
{
    if (!s->projector) return;
    s->n_views = s->n_own_views;
    s->n_elements = s->n_own_elements;
    s->projector_is_dropped = 1; /* its names stay in the map, so the file stays open */
}

const char *qn_source_projector_note(const qn_source *s)
{
    return s->projector_note.data ? s->projector_note.data : "";
}

int64_t qn_source_file_count(const qn_source *s)
{
    return (int64_t)s->files.n_files;
}

const char *qn_source_file_path(const qn_source *s, int64_t i)
{
    return s->files.files[i];
}

size_t qn_source_file_bytes(const qn_source *s, int64_t i)
{
    struct stat st;
    size_t n;
    if (s->files.is_seed) return qn_seed_bytes(&n) ? n : 0;
    return stat(s->files.files[i], &st) == 0 ? (size_t)st.st_size : 0;
}

const char *qn_source_index_path(const qn_source *s)
{
    return s->files.index_path;
}

const char *qn_source_side_path(const qn_source *s, qn_side_file which)
{
    return s->sides[which].path;
}

static int is_large(qn_side_file which)
{
    return which == QN_SIDE_TOKENIZER || which >= QN_SIDE_VOCAB;
}

qn_status qn_source_side_text(qn_source *s, qn_side_file which, const char **text, size_t *n)
{
    side *f = &s->sides[which];
    if (!f->path)
        return qn_fail(QN_E_NOT_FOUND, "%s: there is no %s", s->files.folder, qn_side_file_name(which));
    if (!f->text)
        QN_TRY(
            qn_file_read(f->path, is_large(which) ? tokenizer_bytes_max : side_bytes_max, &f->text, &f->n));
    *text = f->text;
    if (n) *n = f->n;
    return QN_OK;
}

size_t qn_source_template_count(const qn_source *s)
{
    return s->files.n_templates;
}

const char *qn_source_template_name(const qn_source *s, size_t i)
{
    return s->files.templates[i];
}

qn_status qn_source_template_read(const qn_source *s, size_t i, char **text, size_t *n)
{
    char *path = qn_source_files_template_path(&s->files, i);
    if (!path) return QN_E_NOMEM;
    qn_status status = qn_file_read(path, side_bytes_max, text, n);
    qn_free(path);
    return status;
}

void qn_source_side_drop(qn_source *s, qn_side_file which)
{
    qn_free(s->sides[which].text);
    s->sides[which].text = NULL;
}

int64_t qn_source_count(const qn_source *s)
{
    return s->n_views;
}

const qn_tensor_view *qn_source_get(const qn_source *s, int64_t i)
{
    return s->views[i];
}

const qn_tensor_view *qn_source_find(const qn_source *s, const char *name)
{
    int64_t i;
    return qn_map_get(s->names, name, strlen(name), &i) && i < s->n_views ? s->views[i] : NULL;
}

/* The first prefix and name that exist together. */
static const qn_tensor_view *find_prefixed(const qn_source *s, const char *name, const char *const *prefixes)
{
    char full[NAME_BYTES_MAX];
    for (; *prefixes; prefixes++) {
        int n = snprintf(full, sizeof full, "%s%s", *prefixes, name);
        const qn_tensor_view *v = n > 0 && n < NAME_BYTES_MAX ? qn_source_find(s, full) : NULL;
        if (v) return v;
    }
    return NULL;
}

static qn_status not_found(const qn_source *s, const char *name, const char *const *prefixes)
{
    char tried[256] = "";
    size_t at = 0;
    for (; prefixes && *prefixes && at < sizeof tried; prefixes++) {
        if (!**prefixes) continue;
        int n =
            snprintf(tried + at, sizeof tried - at, "%s%s", at ? ", " : ", also with the prefix ", *prefixes);
        at += n > 0 ? (size_t)n : 0;
    }
    const char *where = s->files.n_files == 1 ? s->files.files[0] : s->path;
    return qn_fail(QN_E_NOT_FOUND, "%s: tensor %s is missing%s", where, name, tried);
}

qn_status qn_source_tensor(const qn_source *s, const char *name, const char *const *prefixes,
                           const qn_tensor_view **out)
{
    const qn_tensor_view *v = prefixes ? find_prefixed(s, name, prefixes) : qn_source_find(s, name);
    if (!v) return not_found(s, name, prefixes);
    QN_TRY(qn_view_check(v));
    *out = v;
    return QN_OK;
}

size_t qn_source_tensor_bytes(const qn_source *s)
{
    size_t total = 0;
    for (int64_t i = 0; i < s->n_views; i++)
        if (s->views[i]->supported) total += s->views[i]->size_bytes;
    return total;
}
