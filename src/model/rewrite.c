/* Each tensor of the source is cut into covers: what a role of the model is of it. What lies between them is
 * of no role that changes. */
#include "model/rewrite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "base/map.h"
#include "base/mem.h"
#include "model/fused_folder.h"
#include "model/merge.h"
#include "model/weight_roles.h"

enum { RANGE_ELEMENTS = 1 << 18, COPY_BYTES = 1 << 22 };

/* Rows [first, first + n_rows) of a tensor of the source are of a role; see columns_of. */
typedef struct {
    int64_t tensor, first, n_rows;
    const qn_tensor_view *view;
    const qn_adapter_target *target; /* NULL: the adapter leaves it as it is */
    const float *numbers;            /* in the place of its own; NULL: none */
} cover;

typedef struct {
    const qn_source *source;
    const qn_rewrite_model *model;
    const qn_rewrite_changes *changes;
    const qn_type *type; /* of all numbers that are written; NULL: each as it is */
    qn_map *names;       /* of the source's tensors */
    char *is_part;       /* [tensors] 1: scales or biases of one that is decoded */
    cover *covers;       /* sorted */
    int64_t n_covers, capacity;
    qn_buf index; /* weight_map of the shard index */
    const qn_fuse_options *options;
    size_t done_bytes; /* of the source's tensors */
    qn_fuse_result result;
} rewriting;

/* ---- what is in the files ------------------------------------------------------------------------------ */

static int is_plain_float(const qn_tensor_view *v)
{
    return v->supported &&
           (v->dtype == QN_DTYPE_F32 || v->dtype == QN_DTYPE_F16 || v->dtype == QN_DTYPE_BF16);
}

static const qn_adapter_target *find_target(const rewriting *f, qn_weight_role role, int64_t layer)
{
    const qn_adapter_file *a = f->changes->adapter;
    for (int64_t i = 0; a && i < a->n_targets; i++)
        if (a->targets[i].role == role && a->targets[i].layer == layer) return &a->targets[i];
    return NULL;
}

static int is_changed(const cover *c)
{
    return c->target || c->numbers;
}

/* A tensor is read and written row by row; rows of a vector are its numbers, of more than two dimensions the
 * last. joined: columns of a matrix that lies in several tensors; 0: it does not. */
static int64_t columns_of(const qn_tensor_view *stored, int64_t joined)
{
    if (joined) return joined;
    if (!stored->n_dims || (stored->n_dims == 1 && is_plain_float(stored))) return 1;
    return stored->shape[stored->n_dims - 1];
}

static const qn_tensor_view *stored_of(const qn_tensor_view *v)
{
    return v->whole ? v->whole : v;
}

static int64_t tensor_number(const rewriting *f, const qn_tensor_view *v)
{
    int64_t number = -1;
    const char *name = stored_of(v)->name;
    return qn_map_get(f->names, name, strlen(name), &number) ? number : -1;
}

static qn_status add_cover(rewriting *f, const cover *c)
{
    if (f->n_covers == f->capacity) {
        const int64_t more = f->capacity ? 2 * f->capacity : 256;
        cover *covers = qn_realloc(f->covers, (size_t)more * sizeof *covers);
        if (!covers) return QN_E_NOMEM;
        f->covers = covers;
        f->capacity = more;
    }
    f->covers[f->n_covers++] = *c;
    return QN_OK;
}

static qn_status cover_role(rewriting *f, qn_weight_role role, int64_t layer)
{
    const qn_rewrite_changes *changes = f->changes;
    const qn_tensor_view *v = qn_weights_get(f->model->weights, role, layer);
    cover c = {.view = v};
    if (!v || v->n_dims > 2 || v->experts || v->matrix_bytes) return QN_OK;
    if (role == QN_WEIGHT_LM_HEAD && qn_weights_tied(f->model->weights)) return QN_OK;
    if ((c.tensor = tensor_number(f, v)) < 0) return QN_OK;
    c.target = find_target(f, role, layer);
    c.numbers = changes->numbers ? changes->numbers(changes->user, role, layer) : NULL;
    if (v->n_dims < 2 && !c.numbers) return QN_OK;
    const int64_t n_cols = columns_of(stored_of(v), v->scales ? v->shape[1] : 0);
    c.n_rows = v->n_elements / n_cols;
    if (v->whole)
        c.first = ((const char *)v->data - (const char *)v->whole->data) /
                  (ptrdiff_t)(v->size_bytes / (size_t)c.n_rows);
    if (is_changed(&c) && v->scales && !f->type)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: tensor %s is of type %s, in which changed numbers would have to be quantised "
                       "anew; with a type of f32, f16 or bf16 all of the model is written so",
                       v->file, v->name, qn_dtype_name(v->dtype));
    const qn_tensor_view *parts[] = {v->scales, v->biases};
    for (int i = 0; f->type && i < 2; i++) {
        const int64_t number = parts[i] ? tensor_number(f, parts[i]) : -1;
        if (number >= 0) f->is_part[number] = 1;
    }
    f->result.n_merged += is_changed(&c);
    return add_cover(f, &c);
}

static int by_place(const void *x, const void *y)
{
    const cover *a = x, *b = y;
    if (a->tensor != b->tensor) return a->tensor < b->tensor ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

static qn_status check_targets(const rewriting *f)
{
    const qn_adapter_file *a = f->changes->adapter;
    int64_t n_numbers = 0;
    for (int64_t k = 0; k < f->n_covers; k++) n_numbers += f->covers[k].numbers != NULL;
    if (n_numbers != f->changes->n_numbers)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %lld of %lld trained tensors have a place in the model's files",
                       qn_source_path(f->source), (long long)n_numbers, (long long)f->changes->n_numbers);
    for (int64_t i = 0; a && i < a->n_targets; i++) {
        const qn_adapter_target *t = &a->targets[i];
        int found = 0;
        for (int64_t k = 0; k < f->n_covers && !found; k++) found = f->covers[k].target == t;
        if (found) continue;
        if (t->role == QN_WEIGHT_LM_HEAD && qn_weights_tied(f->model->weights))
            return qn_fail(
                QN_E_UNSUPPORTED,
                "%s: tensor %s: the head is the embedding's own matrix, which the adapter does not "
                "change: they cannot be told apart in one file",
                t->a->file, t->a->name);
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: the model's files have no matrix for it alone",
                       t->a->file, t->a->name);
    }
    return QN_OK;
}

static qn_status plan(rewriting *f)
{
    const int64_t n = qn_source_count(f->source);
    f->names = qn_map_new((size_t)n);
    f->is_part = qn_calloc((size_t)n + 1, 1);
    if (!f->names || !f->is_part) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        const char *name = qn_source_get(f->source, i)->name;
        QN_TRY(qn_map_set(f->names, name, strlen(name), i, NULL, NULL));
    }
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++) QN_TRY(cover_role(f, (qn_weight_role)role, 0));
    for (int64_t i = 0; i < f->model->config->num_hidden_layers; i++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++)
            QN_TRY(cover_role(f, (qn_weight_role)role, i));
    if (f->n_covers) qsort(f->covers, (size_t)f->n_covers, sizeof *f->covers, by_place);
    return check_targets(f);
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* A tensor on its way: decoded, merged and encoded range by range. */
typedef struct {
    rewriting *f;
    qn_st_writer *writer;
    const qn_tensor_view *v; /* as the file has it */
    const qn_type *type;
    int64_t index, n_rows, n_cols, at; /* at: the row that comes next */
    float *rows, *change;
    void *encoded;
} passing;

static qn_status encode(passing *p, int64_t n)
{
    uint16_t *halves = p->encoded;
    size_t size;
    for (int64_t i = 0; i < n; i++) {
        const float x = p->rows[i];
        float back = x;
        if (p->type->dtype == QN_DTYPE_F16) back = qn_f16_to_f32(halves[i] = qn_f32_to_f16(x));
        if (p->type->dtype == QN_DTYPE_BF16) back = qn_bf16_to_f32(halves[i] = qn_f32_to_bf16(x));
        if (isfinite(x) && !isfinite(back))
            return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: the number %g is too large for %s", p->v->file,
                           p->v->name, (double)x, p->type->name);
    }
    if (!qn_type_bytes(p->type->dtype, n, &size)) return QN_E_INTERNAL;
    return qn_st_writer_write(p->writer, p->index, size / (size_t)n * (size_t)(p->at * p->n_cols),
                              p->type->dtype == QN_DTYPE_F32 ? (const void *)p->rows : p->encoded, size);
}

/* Rows up to `end`, which lie in v from row p->at - first on; c NULL: as they are. merge: the cover's, where
 * it has a target. */
static qn_status pass_rows(passing *p, const qn_tensor_view *v, int64_t first, int64_t end, const cover *c,
                           const qn_merge *merge)
{
    const int64_t most = p->n_cols < RANGE_ELEMENTS ? RANGE_ELEMENTS / p->n_cols : 1;
    while (p->at < end) {
        const int64_t n = end - p->at < most ? end - p->at : most;
        if (c && c->numbers)
            memcpy(p->rows, c->numbers + (p->at - first) * p->n_cols,
                   (size_t)(n * p->n_cols) * sizeof *p->rows);
        else
            QN_TRY(qn_weights_rows(v, p->n_cols, p->at - first, n, p->rows));
        if (c && c->target) QN_TRY(qn_merge_rows(merge, p->at - first, n, p->rows, p->change));
        QN_TRY(encode(p, n * p->n_cols));
        p->at += n;
    }
    return QN_OK;
}

static qn_status pass_cover(passing *p, const cover *c)
{
    qn_merge merge = {0};
    if (p->at < c->first) QN_TRY(pass_rows(p, p->v, 0, c->first, NULL, NULL));
    if (p->at > c->first)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: rows of it are of two matrices of the model",
                       p->v->file, p->v->name);
    if (c->target) QN_TRY(qn_merge_read(p->f->changes->adapter, c->target, &merge));
    qn_status status = pass_rows(p, c->view, c->first, c->first + c->n_rows, c, &merge);
    qn_merge_free(&merge);
    return status;
}

/* covers: [n] of this tensor. */
static qn_status pass_tensor(passing *p, const cover *covers, int64_t n)
{
    const int64_t range = p->n_cols < RANGE_ELEMENTS ? RANGE_ELEMENTS : p->n_cols;
    p->rows = qn_alloc_array((size_t)range, sizeof *p->rows);
    p->change = qn_alloc_array((size_t)p->n_cols, sizeof *p->change);
    p->encoded = qn_alloc_array((size_t)range, sizeof(uint16_t));
    qn_status status = p->rows && p->change && p->encoded ? QN_OK : QN_E_NOMEM;
    for (int64_t i = 0; i < n && status == QN_OK; i++) status = pass_cover(p, &covers[i]);
    if (status == QN_OK) status = pass_rows(p, p->v, 0, p->n_rows, NULL, NULL);
    qn_free(p->rows);
    qn_free(p->change);
    qn_free(p->encoded);
    return status;
}

/* ---- files --------------------------------------------------------------------------------------------- */

static int64_t covers_of(const rewriting *f, int64_t tensor, const cover **first)
{
    int64_t n = 0;
    for (int64_t i = 0; i < f->n_covers; i++) {
        if (f->covers[i].tensor != tensor) continue;
        if (!n++) *first = &f->covers[i];
    }
    return n;
}

/* The type in which a tensor is decoded and written; NULL: it is copied. */
static const qn_type *type_of(const rewriting *f, const qn_tensor_view *v, const cover *covers, int64_t n)
{
    int is_new = f->type && (is_plain_float(v) ? v->dtype != f->type->dtype : n > 0);
    for (int64_t i = 0; i < n; i++) is_new |= is_changed(&covers[i]);
    if (!is_new) return NULL;
    return f->type ? f->type : qn_type_get(v->dtype);
}

static qn_status copy_tensor(qn_st_writer *w, int64_t index, const qn_tensor_view *v)
{
    for (size_t at = 0; at < v->size_bytes; at += COPY_BYTES) {
        const size_t n = v->size_bytes - at < COPY_BYTES ? v->size_bytes - at : COPY_BYTES;
        QN_TRY(qn_st_writer_write(w, index, at, (const char *)v->data + at, n));
        qn_view_drop(v, at, n);
    }
    return QN_OK;
}

/* The shape that a tensor has when it is written. */
static void shape_of(const qn_tensor_view *v, const cover *covers, int64_t n, int64_t shape[QN_VIEW_DIMS_MAX])
{
    memcpy(shape, v->shape, sizeof v->shape);
    if (n && covers[0].view->scales) shape[1] = covers[0].view->shape[1];
}

static qn_status declare(rewriting *f, qn_st_writer *w, int64_t i, const char *file)
{
    const qn_tensor_view *v = qn_source_get(f->source, i);
    const cover *covers = NULL;
    const int64_t n = covers_of(f, i, &covers);
    const qn_type *type = type_of(f, v, covers, n);
    int64_t shape[QN_VIEW_DIMS_MAX];
    QN_TRY(qn_view_check(v));
    if (f->type && !n && !is_plain_float(v) && (v->dtype == QN_DTYPE_U32 || v->dtype == QN_DTYPE_U8))
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s is quantised in a way that cannot be written as %s",
                       v->file, v->name, f->type->name);
    memcpy(shape, v->shape, sizeof shape);
    if (type) shape_of(v, covers, n, shape);
    QN_TRY(qn_st_writer_add(w, v->name, type ? type->dtype : v->dtype, v->n_dims, shape, NULL));
    qn_json_key(&f->index, v->name);
    qn_json_text(&f->index, file, strlen(file));
    f->result.n_tensors++;
    return f->index.status;
}

static qn_status write_tensor(rewriting *f, qn_st_writer *w, int64_t i, int64_t index)
{
    const qn_tensor_view *v = qn_source_get(f->source, i);
    const cover *covers = NULL;
    const int64_t n = covers_of(f, i, &covers);
    int64_t shape[QN_VIEW_DIMS_MAX], n_elements = 1;
    size_t size = v->size_bytes;
    qn_status status = QN_OK;
    passing p = {.f = f, .writer = w, .v = v, .type = type_of(f, v, covers, n), .index = index};
    if (f->options->progress)
        QN_TRY(f->options->progress(f->options->user, f->done_bytes, qn_source_tensor_bytes(f->source)));
    f->done_bytes += v->size_bytes;
    if (!p.type) {
        status = copy_tensor(w, index, v);
    } else {
        shape_of(v, covers, n, shape);
        for (int d = 0; d < v->n_dims; d++) n_elements *= shape[d];
        p.n_cols = columns_of(v, n && covers[0].view->scales ? shape[1] : 0);
        p.n_rows = p.n_cols ? n_elements / p.n_cols : 0;
        status = n_elements ? pass_tensor(&p, covers, n) : QN_OK;
        if (!qn_type_bytes(p.type->dtype, n_elements, &size)) status = QN_E_INTERNAL;
        qn_view_drop(v, 0, v->size_bytes);
    }
    f->result.size_bytes += size;
    return status;
}

static qn_status copy_metadata(const char *path, qn_st_writer *w)
{
    qn_safetensors *st;
    const char *key, *value;
    QN_TRY(qn_safetensors_open(path, &st));
    qn_status status = QN_OK;
    for (int64_t i = 0; status == QN_OK && qn_safetensors_metadata_at(st, i, &key, &value); i++)
        status = qn_st_writer_metadata(w, key, value);
    qn_safetensors_close(st);
    return status;
}

static qn_status fill_file(rewriting *f, qn_st_writer *w, const char *path)
{
    int64_t index = 0;
    const int64_t n = qn_source_count(f->source);
    QN_TRY(copy_metadata(path, w));
    for (int64_t i = 0; i < n; i++)
        if (!f->is_part[i] && strcmp(qn_source_get(f->source, i)->file, path) == 0)
            QN_TRY(declare(f, w, i, qn_fused_name(path)));
    QN_TRY(qn_st_writer_begin(w));
    for (int64_t i = 0; i < n; i++)
        if (!f->is_part[i] && strcmp(qn_source_get(f->source, i)->file, path) == 0)
            QN_TRY(write_tensor(f, w, i, index++));
    return qn_st_writer_finish(w);
}

static qn_status write_file(rewriting *f, qn_folder_writer *to, const char *path)
{
    qn_st_writer *w = NULL;
    const char *own = qn_folder_writer_path(to, qn_fused_name(path));
    if (!own) return QN_E_NOMEM;
    QN_TRY(qn_st_writer_new(own, &w));
    qn_status status = fill_file(f, w, path);
    qn_st_writer_free(w);
    return status;
}

static qn_status write_index(rewriting *f, qn_folder_writer *to)
{
    const char *index = qn_source_index_path(f->source), *path;
    qn_buf b = {0};
    if (!index) return QN_OK;
    qn_json_open(&b, '{');
    qn_json_key(&b, "metadata");
    qn_json_open(&b, '{');
    qn_json_put_int(&b, "total_size", (int64_t)f->result.size_bytes);
    qn_json_close(&b, '}');
    qn_json_key(&b, "weight_map");
    qn_json_open(&b, '{');
    qn_buf_append(&b, f->index.data, f->index.length);
    qn_buf_puts(&b, "}}\n");
    qn_status status = b.status;
    if (status == QN_OK)
        status = (path = qn_folder_writer_path(to, qn_fused_name(index)))
                     ? qn_file_write(path, b.data, b.length)
                     : QN_E_NOMEM;
    qn_buf_free(&b);
    return status;
}

static qn_status write_folder(rewriting *f, const char *out_path)
{
    static const char *const names[] = {"float32", "float16", "bfloat16"};
    qn_folder_writer *to = NULL;
    const char *dtype = NULL;
    if (f->type) dtype = names[f->type->dtype == QN_DTYPE_F32 ? 0 : f->type->dtype == QN_DTYPE_F16 ? 1 : 2];
    QN_TRY(qn_folder_writer_new(out_path, &to));
    qn_status status = QN_OK;
    for (int64_t i = 0; i < qn_source_file_count(f->source) && status == QN_OK; i++)
        status = write_file(f, to, qn_source_file_path(f->source, i));
    if (status == QN_OK) status = write_index(f, to);
    if (status == QN_OK) status = qn_fused_config(f->model->source, to, dtype);
    if (status == QN_OK) status = qn_fused_copy(f->source, to);
    if (status == QN_OK) status = qn_folder_writer_finish(to);
    qn_folder_writer_free(to);
    return status;
}

/* ---- the call ------------------------------------------------------------------------------------------ */

static qn_status read_type(const char *name, const qn_type **out)
{
    static const qn_dtype types[] = {QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16};
    *out = NULL;
    if (!name) return QN_OK;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, qn_dtype_name(types[i])) == 0) *out = qn_type_get(types[i]);
    return *out ? QN_OK
                : qn_fail(QN_E_ARG, "type \"%.40s\": a fused model is written as f32, f16 or bf16", name);
}

qn_status qn_rewrite_folder(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                            const qn_fuse_options *options, const char *out_path, qn_fuse_result *out)
{
    const qn_fuse_options defaults = {0};
    rewriting f = {.source = model->source,
                   .model = model,
                   .changes = changes,
                   .options = options ? options : &defaults};
    QN_TRY(read_type(f.options->type, &f.type));
    if (qn_source_get_kind(f.source) != QN_SOURCE_SAFETENSORS)
        return qn_fail(QN_E_UNSUPPORTED, "%s: models in safetensors are written anew, and this is none",
                       qn_source_path(f.source));
    qn_status status = plan(&f);
    if (status == QN_OK) status = write_folder(&f, out_path);
    if (status == QN_OK && out) *out = f.result;
    qn_buf_free(&f.index);
    qn_free(f.covers);
    qn_free(f.is_part);
    qn_map_free(f.names);
    return status;
}
