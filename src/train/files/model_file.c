#include "train/files/model_file.h"

#include <math.h>

#include "convert/rewrite.h"
#include "format/files/folder_writer.h"

typedef struct {
    const qn_trainable *trainable;
    const qn_train_base *base;
} lookup;

static const float *trained_numbers(void *user, qn_weight_role role, int64_t layer)
{
    const lookup *l = user;
    char name[QN_TENSOR_NAME_MAX];
    if (!qn_family_weight_name(l->base->config.family, QN_SOURCE_SAFETENSORS, l->base->prefix, role, layer,
                               name))
        return NULL;
    const qn_trainable_array *a = qn_trainable_find(l->trainable, name);
    return a ? a->data : NULL;
}

static qn_status check_numbers(const qn_trainable *t, const char *path)
{
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t k = 0; k < t->arrays[i].n; k++)
            if (!isfinite(t->arrays[i].data[k]))
                return qn_fail(QN_E_ARG, "%s: %s: value %lld is not finite: nothing was written", path,
                               t->arrays[i].name, (long long)k);
    return QN_OK;
}

static qn_status save_gguf(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                           const qn_fuse_options *options, const char *path)
{
    qn_folder_writer *to = NULL;
    QN_TRY(qn_folder_writer_new(path, &to));
    const char *file = qn_folder_writer_path(to, "model.gguf");
    qn_status status = file ? qn_rewrite_gguf(model, changes, options, file, NULL) : QN_E_NOMEM;
    if (status == QN_OK) status = qn_folder_writer_finish(to);
    qn_folder_writer_free(to);
    return status;
}

qn_status qn_trainable_check_model(const qn_train_base *base)
{
    if (!base->config.rope_changed) return QN_OK;
    return qn_fail(
        QN_E_ARG,
        "the rotary positions of %s were changed by options, and a model that is written keeps those of "
        "its files: train an adapter, or change the files",
        qn_source_path(base->source));
}

qn_status qn_trainable_save_model(const qn_trainable *t, const qn_train_base *base, const char *path,
                                  const char *type)
{
    lookup l = {t, base};
    const qn_rewrite_model model = {base->source, &base->config, base->weights};
    const qn_rewrite_changes changes = {.numbers = trained_numbers, .user = &l, .n_numbers = t->n};
    const qn_fuse_options options = {.type = type};
    if (t->options.method != QN_TRAIN_FULL)
        return qn_fail(QN_E_ARG, "%s: this training makes an adapter, not a whole model", path);
    QN_TRY(qn_trainable_check_model(base));
    QN_TRY(check_numbers(t, path));
    return qn_source_get_kind(base->source) == QN_SOURCE_GGUF
               ? save_gguf(&model, &changes, &options, path)
               : qn_rewrite_folder(&model, &changes, &options, path, NULL);
}
