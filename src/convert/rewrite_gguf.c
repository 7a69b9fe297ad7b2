/* A GGUF file written anew: its metadata and its tensors in their order, each of which keeps its type or gets
 * another. */
#include <string.h>

#include "base/mem.h"
#include "convert/rewrite_plan.h"
#include "convert/tensor_types.h"
#include "model/weights/weight_experts.h"

typedef struct {
    const qn_rewrite_model *model;
    const qn_source *source;
    const qn_fuse_options *options;
    qn_tensor_types types;
    qn_rewrite_plan plan;
    int *roles;             /* [tensors] of each the first role that it has rows of; ROLE_COUNT: none */
    const qn_type **chosen; /* [tensors] NULL: copied */
    qn_pool *pool;
    size_t done_bytes;
    qn_fuse_result result;
} rewriting;

static void note_role(rewriting *f, const qn_tensor_view *v, int role)
{
    const int64_t number = v ? qn_rewrite_tensor(&f->plan, v) : -1;
    if (number >= 0 && f->roles[number] == QN_WEIGHT_ROLE_COUNT) f->roles[number] = role;
}

static void note_view(rewriting *f, const qn_tensor_view *v, int role)
{
    if (!v || !v->experts) {
        note_role(f, v, role);
        return;
    }
    const qn_tensor_view *stored;
    for (int64_t i = 0; (stored = qn_weight_experts_stored(v->experts, i)); i++) note_role(f, stored, role);
}

static void find_roles(rewriting *f)
{
    const qn_weights *w = f->model->weights;
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++)
        note_view(f, qn_weights_get(w, (qn_weight_role)role, 0), role);
    for (int64_t i = 0; i < f->model->config->num_hidden_layers; i++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++)
            note_view(f, qn_weights_get(w, (qn_weight_role)role, i), role);
}

static qn_status choose(rewriting *f, int64_t i)
{
    const qn_tensor_view *v = qn_source_get(f->source, i);
    const qn_rewrite_cover *covers;
    const int64_t n = qn_rewrite_covers(&f->plan, i, &covers);
    int is_changed = 0;
    QN_TRY(qn_view_check(v));
    const qn_type *own = qn_type_get(v->dtype),
                  *wanted = qn_tensor_types_of(&f->types, (qn_weight_role)f->roles[i], v->n_dims,
                                               v->shape[v->n_dims - 1]);
    for (int64_t k = 0; k < n; k++) is_changed |= qn_rewrite_is_changed(&covers[k]);
    if (!wanted) wanted = own;
    if (!is_changed && wanted == own) return QN_OK;
    if (!wanted->encode)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "%s: tensor %s has type %s, in which changed values cannot be written; choose a type for all "
            "matrices",
            v->file, v->name, wanted->name);
    f->chosen[i] = wanted;
    return QN_OK;
}

static qn_status put_metadata(rewriting *f, qn_gguf_writer *w)
{
    const qn_gguf *g = qn_source_gguf(f->source);
    static const char key[] = "general.file_type";
    const int number = f->types.matrices ? qn_tensor_types_file_type(f->types.matrices->dtype) : -1;
    for (int64_t i = 0; i < qn_gguf_value_count(g); i++) {
        const qn_gguf_value *v = qn_gguf_value_get(g, i);
        if (number >= 0 && strcmp(v->key, key) == 0) continue;
        if (strncmp(v->key, "split.", 6) == 0) continue; /* what is written is whole */
        QN_TRY(qn_gguf_writer_copy(w, v));
    }
    return number >= 0 ? qn_gguf_writer_u32(w, key, (uint32_t)number) : QN_OK;
}

static qn_status write_tensor(rewriting *f, qn_gguf_writer *w, int64_t i)
{
    const qn_tensor_view *v = qn_source_get(f->source, i);
    const qn_type *type = f->chosen[i] ? f->chosen[i] : qn_type_get(v->dtype);
    const qn_rewrite_cover *covers;
    size_t size = 0;
    if (f->options->progress)
        QN_TRY(f->options->progress(f->options->user, f->done_bytes, qn_source_tensor_bytes(f->source)));
    f->done_bytes += v->size_bytes;
    if (!qn_type_bytes(type->dtype, v->n_elements, &size)) return QN_E_INTERNAL;
    f->result.size_bytes += size;
    if (!f->chosen[i]) return qn_rewrite_copy(&(qn_tensor_file){.gguf = w}, i, v);
    const int64_t n = qn_rewrite_covers(&f->plan, i, &covers), n_cols = qn_rewrite_columns(v, 0);
    qn_row_writer to = {.to = {.gguf = w},
                        .type = type,
                        .n_cols = n_cols,
                        .index = i,
                        .file = v->file,
                        .name = v->name,
                        .pool = f->pool};
    qn_status status = qn_rewrite_pass(&f->plan, v, v->n_elements / n_cols, covers, n, &to);
    qn_row_writer_free(&to);
    qn_view_drop(v, 0, v->size_bytes);
    return status;
}

static qn_status fill(rewriting *f, qn_gguf_writer *w)
{
    const int64_t n = qn_source_count(f->source);
    QN_TRY(put_metadata(f, w));
    for (int64_t i = 0; i < n; i++) {
        const qn_tensor_view *v = qn_source_get(f->source, i);
        QN_TRY(qn_gguf_writer_add(w, v->name, f->chosen[i] ? f->chosen[i]->dtype : v->dtype, v->n_dims,
                                  v->shape, NULL));
    }
    QN_TRY(qn_gguf_writer_begin(w));
    for (int64_t i = 0; i < n; i++) QN_TRY(write_tensor(f, w, i));
    f->result.n_tensors = n;
    return qn_gguf_writer_finish(w);
}

static qn_status rewrite(rewriting *f, const qn_rewrite_changes *changes, const char *out_path)
{
    const int64_t n = qn_source_count(f->source);
    qn_gguf_writer *w = NULL;
    if (qn_source_get_kind(f->source) != QN_SOURCE_GGUF)
        return qn_fail(QN_E_UNSUPPORTED, "%s: not a GGUF file", qn_source_path(f->source));
    QN_TRY(qn_tensor_types_read(f->options->type, f->options->embedding_type, &f->types));
    QN_TRY(qn_rewrite_plan_make(f->model, changes, &f->plan));
    f->result.n_merged = f->plan.n_changed;
    f->roles = qn_alloc_array((size_t)n + 1, sizeof *f->roles);
    f->chosen = qn_calloc((size_t)n + 1, sizeof *f->chosen);
    if (!f->roles || !f->chosen) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) f->roles[i] = QN_WEIGHT_ROLE_COUNT;
    find_roles(f);
    for (int64_t i = 0; i < n; i++) QN_TRY(choose(f, i));
    QN_TRY(qn_pool_new(0, &f->pool));
    QN_TRY(qn_gguf_writer_new(out_path, &w));
    qn_status status = fill(f, w);
    qn_gguf_writer_free(w);
    return status;
}

qn_status qn_rewrite_gguf(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                          const qn_fuse_options *options, const char *out_path, qn_fuse_result *out)
{
    const qn_fuse_options defaults = {0};
    rewriting f = {.model = model, .source = model->source, .options = options ? options : &defaults};
    qn_status status = rewrite(&f, changes, out_path);
    if (status == QN_OK && out) *out = f.result;
    qn_pool_free(f.pool);
    qn_free(f.roles);
    qn_free(f.chosen);
    qn_rewrite_plan_free(&f.plan);
    return status;
}
