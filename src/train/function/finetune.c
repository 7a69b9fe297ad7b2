/* Opening a model for fine-tuning by hand, and what is trained of it. */
#include <math.h>

#include <quern/log.h>

#include "base/log.h"
#include "base/mem.h"
#include "train/files/model_file.h"
#include "train/files/trainable_file.h"
#include "train/function/finetune_parts.h"
#include "train/run/run_start.h"

static qn_train_options as_train_options(const qn_finetune_options *o)
{
    return (qn_train_options){.method = o->method,
                              .targets = o->targets,
                              .rank = o->rank,
                              .alpha = o->alpha,
                              .rslora = o->rslora,
                              .init = o->init,
                              .bf16_adapter = o->bf16_adapter,
                              .layer_begin = o->layer_begin,
                              .layer_end = o->layer_end,
                              .start_path = o->start_path,
                              .seed = o->seed,
                              .checkpoint_layers = o->checkpoint_layers,
                              .precision = o->precision,
                              .n_threads = o->n_threads,
                              .memory_limit_bytes = o->memory_limit_bytes};
}

static qn_status start_with(qn_finetune *f, const char *path)
{
    qn_buf notes = {0};
    const qn_status status = qn_trainable_load(&f->trainable, &f->base, path, &notes);
    if (status == QN_OK && notes.length) qn_log_lines(QN_LOG_WARNING, notes.data);
    qn_buf_free(&notes);
    return status;
}

static qn_status open_all(qn_finetune *f, qn_model *model, const qn_finetune_options *options)
{
    const qn_train_options given = as_train_options(options);
    QN_TRY(qn_run_options_make_without_files(&given, &f->options));
    const qn_train_options *o = &f->options.o;
    QN_TRY(qn_train_base_borrow(model, o->n_threads, o->memory_limit_bytes, &f->base));
    QN_TRY(qn_run_start_fill(&f->options, &f->base));
    if (!(f->scope = qn_scope_new(f->base.device))) return QN_E_NOMEM;
    qn_scope_precision(f->scope, o->precision);
    const qn_trainer_options trainer = qn_run_options_trainer(&f->options);
    QN_TRY(qn_trainable_new(&f->base, f->scope, &trainer.trainable, &f->trainable));
    return o->start_path ? start_with(f, o->start_path) : QN_OK;
}

qn_status qn_finetune_open(qn_model *model, const qn_finetune_options *options, qn_finetune **out)
{
    static const qn_finetune_options defaults;
    if (!model || !out) return qn_fail(QN_E_ARG, "qn_finetune_open: model and out are needed");
    qn_finetune *f = qn_calloc(1, sizeof *f);
    if (!f) return QN_E_NOMEM;
    const qn_status status = open_all(f, model, options ? options : &defaults);
    if (status == QN_OK)
        *out = f;
    else
        qn_finetune_close(f);
    return status;
}

void qn_finetune_close(qn_finetune *f)
{
    if (!f) return;
    qn_finetune_free_moments(f);
    qn_trainable_free(&f->trainable);
    qn_scope_free(f->scope);
    qn_train_base_close(&f->base);
    qn_run_options_free(&f->options);
    qn_free(f);
}

qn_scope *qn_finetune_scope(qn_finetune *f)
{
    return f->scope;
}

/* ---- what is trained ---------------------------------------------------------------------------------- */

int64_t qn_finetune_count(const qn_finetune *f)
{
    return f->trainable.n;
}

qn_status qn_finetune_get_array(const qn_finetune *f, int64_t i, qn_train_array *out)
{
    return qn_trainable_describe(&f->trainable, i, out);
}

qn_array *qn_finetune_array(const qn_finetune *f, int64_t i)
{
    return i >= 0 && i < f->trainable.n ? f->trainable.arrays[i].array : NULL;
}

/* Computes one of the values and checks it. */
static qn_status check_value(const qn_trainable_array *a, qn_scope *s, qn_array *value, float *numbers)
{
    char given[96], own[96];
    if (!qn_shape_equal(qn_array_shape(value), &a->shape))
        return qn_fail(QN_E_ARG, "%s: the new numbers have the shape %s, but the array has %s", a->name,
                       qn_shape_text(qn_array_shape(value), given, sizeof given),
                       qn_shape_text(&a->shape, own, sizeof own));
    QN_TRY(qn_array_read(s, value, QN_DTYPE_F32, numbers, a->n));
    for (int64_t k = 0; k < a->n; k++)
        if (!isfinite(numbers[k]))
            return qn_fail(QN_E_ARG, "%s: new value %lld is not finite", a->name, (long long)k);
    return QN_OK;
}

static int64_t most_elements(const qn_trainable *t)
{
    int64_t most = 0;
    for (int64_t i = 0; i < t->n; i++)
        if (t->arrays[i].n > most) most = t->arrays[i].n;
    return most;
}

qn_status qn_finetune_set(qn_finetune *f, qn_scope *s, qn_array *const *values)
{
    qn_trainable *t = &f->trainable;
    float *numbers = qn_alloc_array((size_t)most_elements(t), sizeof *numbers);
    qn_status status = numbers ? qn_eval(s, (int)t->n, values) : QN_E_NOMEM;
    for (int64_t i = 0; i < t->n && status == QN_OK; i++)
        if (values[i]) status = check_value(&t->arrays[i], s, values[i], numbers);
    for (int64_t i = 0; i < t->n && status == QN_OK; i++) {
        if (!values[i]) continue;
        status = qn_array_read(s, values[i], QN_DTYPE_F32, numbers, t->arrays[i].n);
        if (status == QN_OK) qn_trainable_write(&t->arrays[i], 0, t->arrays[i].n, numbers);
    }
    qn_free(numbers);
    return status;
}

qn_status qn_finetune_save(qn_finetune *f, const char *path, qn_adapter_layout layout)
{
    if (!path || !*path) return qn_fail(QN_E_ARG, "qn_finetune_save: the path is empty");
    if (f->trainable.options.method == QN_TRAIN_FULL)
        return qn_trainable_save_model(&f->trainable, &f->base, path, NULL);
    return qn_trainable_save(&f->trainable, &f->base, path, &(qn_trainable_save_options){.layout = layout});
}
