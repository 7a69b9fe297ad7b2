#include "train/model_file.h"

#include <math.h>

#include "model/rewrite.h"

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
                return qn_fail(QN_E_ARG, "%s: %s: number %lld is not finite: nothing was written", path,
                               t->arrays[i].name, (long long)k);
    return QN_OK;
}

qn_status qn_trainable_save_model(const qn_trainable *t, const qn_train_base *base, const char *path,
                                  const char *type)
{
    lookup l = {t, base};
    if (t->options.method != QN_TRAIN_FULL)
        return qn_fail(QN_E_ARG, "%s: factors are trained, which are written as an adapter", path);
    QN_TRY(check_numbers(t, path));
    return qn_rewrite_folder(&(qn_rewrite_model){base->source, &base->config, base->weights},
                             &(qn_rewrite_changes){.numbers = trained_numbers, .user = &l, .n_numbers = t->n},
                             &(qn_fuse_options){.type = type}, path, NULL);
}
