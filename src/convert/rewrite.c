#include "convert/rewrite.h"

#include <string.h>

#include "base/json/json_write.h"
#include "base/mem.h"
#include "convert/fused_folder.h"
#include "convert/rewrite_plan.h"
#include "quant/mlx.h"

/* What becomes of a tensor of the source. */
typedef struct {
    const qn_type *type;       /* it is written anew in it; NULL: copied */
    const qn_tensor_view *own; /* the matrix, with scales and biases; NULL: all of the tensor */
    qn_row_part part;          /* of it that the tensor has in the new file */
    int64_t tensor;            /* whose covers count */
    int is_left_out;           /* 1: scales or biases of what is decoded */
} fate;

typedef struct {
    const qn_source *source;
    const qn_rewrite_model *model;
    const qn_fuse_options *options;
    const qn_type *type; /* of all numbers that are written; NULL: each as it is */
    qn_rewrite_plan plan;
    fate *fates; /* [tensors] */
    qn_pool *pool;
    qn_buf index;      /* weight_map of the shard index */
    size_t done_bytes; /* of the source's tensors */
    qn_fuse_result result;
} rewriting;

/* ---- what becomes of it -------------------------------------------------------------------------------- */

/* Scales and biases go the way of the codes. */
static void follow(rewriting *f, const qn_rewrite_cover *c, const qn_tensor_view *v, qn_row_part part)
{
    const int64_t number = v ? qn_rewrite_tensor(&f->plan, v) : -1;
    if (number < 0) return;
    fate *to = &f->fates[number];
    *to = f->fates[c->tensor];
    to->part = part;
    to->is_left_out = f->type != NULL;
}

static qn_status decide(rewriting *f, int64_t i)
{
    const qn_tensor_view *v = qn_source_get(f->source, i);
    const qn_rewrite_cover *covers;
    const int64_t n = qn_rewrite_covers(&f->plan, i, &covers);
    fate *own = &f->fates[i];
    int is_new = f->type && (qn_rewrite_is_float(v) ? v->dtype != f->type->dtype : n > 0);
    for (int64_t k = 0; k < n; k++) is_new |= qn_rewrite_is_changed(&covers[k]);
    if (own->type || own->is_left_out || !is_new) return QN_OK; /* parts of others were decided with these */
    if (n && covers[0].is_experts && covers[0].lines.blocks)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: tensor %s is quantised in a form that cannot be written again; write a GGUF file",
                       v->file, v->name);
    own->tensor = i;
    own->type = f->type ? f->type : qn_type_get(n ? covers[0].view->dtype : v->dtype);
    own->own = n && covers[0].view->scales ? covers[0].view : NULL;
    if (own->own && !f->type) own->part = QN_ROW_CODES;
    if (!own->type->encode)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "%s: tensor %s has type %s, in which changed values cannot be written; choose f32, f16 or bf16 "
            "as the type of the whole model",
            v->file, v->name, own->type->name);
    if (!own->own) return QN_OK;
    follow(f, &covers[0], own->own->scales, QN_ROW_SCALES);
    follow(f, &covers[0], own->own->biases, QN_ROW_BIASES);
    return QN_OK;
}

static qn_status decide_all(rewriting *f)
{
    const int64_t n = qn_source_count(f->source);
    f->fates = qn_calloc((size_t)n + 1, sizeof *f->fates);
    if (!f->fates) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) QN_TRY(decide(f, i));
    return QN_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

/* The shape that a tensor has when it is written. */
static void shape_of(const qn_tensor_view *v, const fate *a, int64_t shape[QN_VIEW_DIMS_MAX])
{
    memcpy(shape, v->shape, sizeof v->shape);
    if (a->type && a->own && a->part == QN_ROW_BLOCKS) shape[v->n_dims - 1] = a->own->shape[1];
}

static qn_status declare(rewriting *f, qn_st_writer *w, int64_t i, const char *file)
{
    const qn_tensor_view *v = qn_source_get(f->source, i);
    const fate *a = &f->fates[i];
    int64_t shape[QN_VIEW_DIMS_MAX];
    QN_TRY(qn_view_check(v));
    if (f->type && !a->type && !qn_rewrite_is_float(v) &&
        (v->dtype == QN_DTYPE_U32 || v->dtype == QN_DTYPE_U8))
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s is quantised in a way that cannot be written as %s",
                       v->file, v->name, f->type->name);
    shape_of(v, a, shape);
    QN_TRY(qn_st_writer_add(w, v->name, a->type && a->part == QN_ROW_BLOCKS ? a->type->dtype : v->dtype,
                            v->n_dims, shape, NULL));
    qn_json_key(&f->index, v->name);
    qn_json_text(&f->index, file, strlen(file));
    f->result.n_tensors++;
    return f->index.status;
}

static qn_status write_anew(rewriting *f, qn_st_writer *w, const fate *a, const qn_tensor_view *v,
                            int64_t index, size_t *size)
{
    const qn_rewrite_cover *covers;
    const qn_tensor_view *whole = a->own ? a->own : v;
    const int64_t n = qn_rewrite_covers(&f->plan, a->tensor, &covers);
    int64_t shape[QN_VIEW_DIMS_MAX], n_rows = 1;
    qn_row_writer to = {.to = {.st = w},
                        .type = a->type,
                        .n_cols = qn_rewrite_columns(whole, a->own ? a->own->shape[1] : 0),
                        .index = index,
                        .part = a->part,
                        .file = v->file,
                        .name = v->name,
                        .pool = f->pool};
    shape_of(v, a, shape);
    for (int d = 0; d < v->n_dims - 1; d++) n_rows *= v->shape[d]; /* of codes, scales and biases */
    if (a->part == QN_ROW_BLOCKS) {
        int64_t n_elements = 1;
        for (int d = 0; d < v->n_dims; d++) n_elements *= shape[d];
        n_rows = to.n_cols ? n_elements / to.n_cols : 0;
        if (!qn_type_bytes(a->type->dtype, n_elements, size)) return QN_E_INTERNAL;
    }
    qn_status status = n_rows ? qn_rewrite_pass(&f->plan, whole, n_rows, covers, n, &to) : QN_OK;
    qn_row_writer_free(&to);
    qn_view_drop(v, 0, v->size_bytes);
    return status;
}

static qn_status write_tensor(rewriting *f, qn_st_writer *w, int64_t i, int64_t index)
{
    const qn_tensor_view *v = qn_source_get(f->source, i);
    const fate *a = &f->fates[i];
    size_t size = v->size_bytes;
    if (f->options->progress)
        QN_TRY(f->options->progress(f->options->user, f->done_bytes, qn_source_tensor_bytes(f->source)));
    f->done_bytes += v->size_bytes;
    QN_TRY(a->type ? write_anew(f, w, a, v, index, &size)
                   : qn_rewrite_copy(&(qn_tensor_file){.st = w}, index, v));
    f->result.size_bytes += size;
    return QN_OK;
}

/* ---- files --------------------------------------------------------------------------------------------- */

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

static int is_in(const rewriting *f, int64_t i, const char *path)
{
    return !f->fates[i].is_left_out && strcmp(qn_source_get(f->source, i)->file, path) == 0;
}

static qn_status fill_file(rewriting *f, qn_st_writer *w, const char *path)
{
    int64_t index = 0;
    const int64_t n = qn_source_count(f->source);
    QN_TRY(copy_metadata(path, w));
    for (int64_t i = 0; i < n; i++)
        if (is_in(f, i, path)) QN_TRY(declare(f, w, i, qn_fused_name(path)));
    QN_TRY(qn_st_writer_begin(w));
    for (int64_t i = 0; i < n; i++)
        if (is_in(f, i, path)) QN_TRY(write_tensor(f, w, i, index++));
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
                : qn_fail(QN_E_ARG, "type \"%.40s\": a fused model can be written as f32, f16 or bf16", name);
}

static qn_status rewrite(rewriting *f, const qn_rewrite_changes *changes, const char *out_path)
{
    QN_TRY(read_type(f->options->type, &f->type));
    if (f->options->embedding_type)
        return qn_fail(QN_E_ARG,
                       "embedding_type \"%.40s\": in a folder of safetensors all tensors get one type, or "
                       "each keeps its type",
                       f->options->embedding_type);
    if (qn_source_get_kind(f->source) != QN_SOURCE_SAFETENSORS)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: only models in safetensors can be written as folders, and this is not one",
                       qn_source_path(f->source));
    QN_TRY(qn_rewrite_plan_make(f->model, changes, &f->plan));
    f->result.n_merged = f->plan.n_changed;
    QN_TRY(decide_all(f));
    QN_TRY(qn_pool_new(0, &f->pool));
    return write_folder(f, out_path);
}

qn_status qn_rewrite_folder(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                            const qn_fuse_options *options, const char *out_path, qn_fuse_result *out)
{
    const qn_fuse_options defaults = {0};
    rewriting f = {.source = model->source, .model = model, .options = options ? options : &defaults};
    qn_status status = rewrite(&f, changes, out_path);
    if (status == QN_OK && out) *out = f.result;
    qn_pool_free(f.pool);
    qn_buf_free(&f.index);
    qn_free(f.fates);
    qn_rewrite_plan_free(&f.plan);
    return status;
}
