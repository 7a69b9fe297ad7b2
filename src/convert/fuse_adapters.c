#include "convert/fuse_adapters.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* A tensor that adapters change as a whole, in the model's order. */
typedef struct {
    qn_weight_role role;
    int64_t layer, n;
    float *numbers; /* owned */
} tensor;

struct qn_fuse_adapters {
    qn_adapter_file *files; /* [n] */
    int64_t n;
    qn_adapter_target *targets; /* one for each matrix; the others of it are behind `also` */
    int64_t n_targets;
    tensor *tensors;
    int64_t n_tensors;
};

/* ---- factors ------------------------------------------------------------------------------------------- */

static qn_status add_target(qn_fuse_adapters *a, qn_adapter_target *t)
{
    for (int64_t i = 0; i < a->n_targets; i++) {
        qn_adapter_target *first = &a->targets[i];
        if (first->role != t->role || first->layer != t->layer) continue;
        if (first->m || t->m)
            return qn_fail(
                QN_E_UNSUPPORTED,
                "%s: tensor %s: another adapter changes this matrix too, and one of them is a DoRA "
                "adapter; fuse one after the other",
                t->a->file, t->a->name);
        while (first->also) first = first->also;
        first->also = t;
        return QN_OK;
    }
    a->targets[a->n_targets++] = *t;
    return QN_OK;
}

static qn_status gather_targets(qn_fuse_adapters *a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->n; i++) n += a->files[i].n_targets;
    a->targets = qn_calloc((size_t)n + 1, sizeof *a->targets);
    if (!a->targets) return QN_E_NOMEM;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t k = 0; k < a->files[i].n_targets; k++) QN_TRY(add_target(a, &a->files[i].targets[k]));
    return QN_OK;
}

/* ---- whole tensors ------------------------------------------------------------------------------------- */

static tensor *find_tensor(const qn_fuse_adapters *a, qn_weight_role role, int64_t layer)
{
    for (int64_t i = 0; i < a->n_tensors; i++)
        if (a->tensors[i].role == role && a->tensors[i].layer == layer) return &a->tensors[i];
    return NULL;
}

static qn_status begin_tensor(qn_fuse_adapters *a, const qn_rewrite_model *model, const qn_adapter_whole *w,
                              tensor **out)
{
    const qn_tensor_view *v = qn_weights_get(model->weights, w->role, w->layer),
                         *named = qn_adapter_whole_view(w);
    *out = find_tensor(a, w->role, w->layer);
    if (*out) return QN_OK;
    if (!v || v->n_elements != w->n_rows * w->n_cols)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: the model's files have no tensor for it",
                       named->file, named->name);
    tensor *t = &a->tensors[a->n_tensors++];
    *t = (tensor){.role = w->role, .layer = w->layer, .n = v->n_elements};
    t->numbers = qn_alloc_array((size_t)t->n, sizeof *t->numbers);
    if (!t->numbers) return QN_E_NOMEM;
    *out = t;
    return qn_weights_floats(v, t->numbers);
}

static qn_status apply(const qn_adapter_whole *w, const qn_model_config *c, float scale, tensor *t)
{
    float *old = scale == 1 ? NULL : qn_alloc_array((size_t)t->n, sizeof *old);
    if (scale == 1) return qn_adapter_whole_apply(w, c, t->numbers);
    if (!old) return QN_E_NOMEM;
    memcpy(old, t->numbers, (size_t)t->n * sizeof *old);
    const qn_status status = qn_adapter_whole_apply(w, c, t->numbers);
    for (int64_t i = 0; i < t->n; i++) t->numbers[i] = old[i] + scale * (t->numbers[i] - old[i]);
    qn_free(old);
    return status;
}

/* One tensor of the files is both: it can become one thing only. */
static qn_status join_tied(qn_fuse_adapters *a, const qn_rewrite_model *model)
{
    const tensor *embed = find_tensor(a, QN_WEIGHT_EMBED, 0);
    tensor *head = find_tensor(a, QN_WEIGHT_LM_HEAD, 0);
    if (!qn_weights_tied(model->weights) || (!embed && !head)) return QN_OK;
    if (embed && head && memcmp(embed->numbers, head->numbers, (size_t)embed->n * sizeof(float)) == 0) {
        qn_free(head->numbers);
        *head = a->tensors[--a->n_tensors];
        return QN_OK;
    }
    return qn_fail(
        QN_E_UNSUPPORTED,
        "%s: the adapter changes the embedding and the head differently, and both are one matrix in "
        "the model's files",
        qn_source_path(model->source));
}

static qn_status gather_tensors(qn_fuse_adapters *a, const qn_rewrite_model *model,
                                const qn_adapter_options *options)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->n; i++) n += a->files[i].wholes.n;
    a->tensors = qn_calloc((size_t)n + 1, sizeof *a->tensors);
    if (!a->tensors) return QN_E_NOMEM;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t k = 0; k < a->files[i].wholes.n; k++) {
            const qn_adapter_whole *w = &a->files[i].wholes.list[k];
            tensor *t;
            QN_TRY(begin_tensor(a, model, w, &t));
            QN_TRY(apply(w, model->config, options[i].scale == 0 ? 1 : options[i].scale, t));
        }
    return join_tied(a, model);
}

static const float *numbers_of(void *user, qn_weight_role role, int64_t layer)
{
    const tensor *t = find_tensor(user, role, layer);
    return t ? t->numbers : NULL;
}

/* ---- the set ------------------------------------------------------------------------------------------- */

static qn_status open_files(qn_fuse_adapters *a, const qn_model_config *c, const qn_adapter_options *options,
                            int64_t n, qn_buf *notes)
{
    a->files = qn_calloc((size_t)n + 1, sizeof *a->files);
    if (!a->files) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        const float scale = options[i].scale == 0 ? 1 : options[i].scale;
        if (!isfinite(scale))
            return qn_fail(QN_E_ARG, "%s: the scale is not a finite number", options[i].path);
        QN_TRY(qn_adapter_file_open(options[i].path, c, notes, &a->files[i]));
        a->n++;
        for (int64_t k = 0; k < a->files[i].n_targets; k++) {
            qn_adapter_target *t = &a->files[i].targets[k];
            t->factor *= scale;
            if (!isfinite(t->factor))
                return qn_fail(QN_E_ARG, "%s: the scale %g times the adapter's own is too large",
                               options[i].path, (double)scale);
        }
    }
    return QN_OK;
}

qn_status qn_fuse_adapters_open(const qn_rewrite_model *model, const qn_adapter_options *options, int64_t n,
                                qn_buf *notes, qn_fuse_adapters **out)
{
    qn_fuse_adapters *a = qn_calloc(1, sizeof *a);
    if (!a) return QN_E_NOMEM;
    qn_status status = open_files(a, model->config, options, n, notes);
    if (status == QN_OK) status = gather_targets(a);
    if (status == QN_OK) status = gather_tensors(a, model, options);
    if (status == QN_OK)
        *out = a;
    else
        qn_fuse_adapters_close(a);
    return status;
}

void qn_fuse_adapters_close(qn_fuse_adapters *a)
{
    if (!a) return;
    for (int64_t i = 0; i < a->n_tensors; i++) qn_free(a->tensors[i].numbers);
    for (int64_t i = 0; i < a->n; i++) qn_adapter_file_close(&a->files[i]);
    qn_free(a->tensors);
    qn_free(a->targets);
    qn_free(a->files);
    qn_free(a);
}

qn_rewrite_changes qn_fuse_adapters_changes(qn_fuse_adapters *a)
{
    return (qn_rewrite_changes){.targets = a->targets,
                                .n_targets = a->n_targets,
                                .numbers = numbers_of,
                                .user = a,
                                .n_numbers = a->n_tensors};
}
