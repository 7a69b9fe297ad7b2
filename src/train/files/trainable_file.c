#include "train/files/trainable_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/adapter/adapter_file.h"
#include "model/adapter/adapter_writer.h"
#include "model/weights/row_order.h"

typedef struct {
    qn_trainable_array *a, *b, *m; /* m NULL unless DoRA */
} factors;

static qn_trainable_array *find_array(const qn_trainable *t, const char *module, const char *ending)
{
    char name[sizeof t->arrays->name];
    snprintf(name, sizeof name, "%s%s", module, ending);
    return qn_trainable_find(t, name);
}

static factors factors_of(const qn_trainable *t, const qn_module *module)
{
    const char *const *ending = qn_adapter_layouts[QN_ADAPTER_PEFT].ending;
    return (factors){.a = find_array(t, module->name, ending[QN_ADAPTER_A]),
                     .b = find_array(t, module->name, ending[QN_ADAPTER_B]),
                     .m = find_array(t, module->name, ending[QN_ADAPTER_M])};
}

/* Matrices of a role. */
static int64_t count_of(const qn_module *m)
{
    return m->n_experts ? m->n_experts : 1;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

/* Those of bf16 are widened at *at, which moves on. */
static const float *floats_of(const qn_trainable_array *a, float **at)
{
    float *to = *at;
    if (a->data) return a->data;
    qn_trainable_read(a, 0, a->n, to);
    *at += a->n;
    return to;
}

qn_status qn_trainable_save(const qn_trainable *t, const qn_train_base *base, const char *path,
                            const qn_trainable_save_options *options)
{
    const qn_trainable_save_options o = options ? *options : (qn_trainable_save_options){0};
    const qn_adapter_form form = {.layout = o.layout,
                                  .dtype = o.bf16 || t->options.bf16 ? QN_DTYPE_BF16 : QN_DTYPE_F32,
                                  .base_model = o.base_model ? o.base_model : qn_source_path(base->source),
                                  .rank = t->options.rank,
                                  .alpha = t->options.alpha,
                                  .dropout = t->options.dropout,
                                  .rslora = t->options.rslora,
                                  .dora = t->options.method == QN_TRAIN_DORA};
    qn_module *all = NULL;
    int64_t n_all = 0;
    if (t->options.method == QN_TRAIN_FULL)
        return qn_fail(
            QN_E_ARG, "%s: this training changes the weights themselves: there is no adapter to write", path);
    qn_adapter_part *parts = qn_alloc_array((size_t)t->n_modules, sizeof *parts);
    float *widened = t->options.bf16 ? qn_alloc_array((size_t)t->n_elements, sizeof *widened) : NULL,
          *at = widened;
    if (!parts || (t->options.bf16 && !widened)) {
        qn_free(parts);
        qn_free(widened);
        return QN_E_NOMEM;
    }
    for (int64_t i = 0; i < t->n_modules; i++) {
        const factors f = factors_of(t, &t->modules[i]);
        parts[i] = (qn_adapter_part){.module = &t->modules[i],
                                     .a = floats_of(f.a, &at),
                                     .b = floats_of(f.b, &at),
                                     .m = f.m ? f.m->data : NULL};
    }
    qn_status status = qn_modules_list(&base->config, base->parameters, base->prefix, &all, &n_all);
    if (status == QN_OK)
        status = qn_adapter_write(path, &base->config, &form, all, n_all, parts, t->n_modules);
    qn_free(all);
    qn_free(parts);
    qn_free(widened);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

typedef struct {
    const qn_trainable *t;
    const qn_model_config *config;
    const qn_adapter_file *file;
    const char *path;
    float *numbers; /* of all arrays, one after the other */
} reading;

static const qn_adapter_target *find_target(const reading *r, qn_weight_role role, int64_t layer)
{
    for (int64_t i = 0; i < r->file->n_targets; i++)
        if (r->file->targets[i].role == role && r->file->targets[i].layer == layer)
            return &r->file->targets[i];
    return NULL;
}

static qn_status check_form(const reading *r)
{
    const int dora = r->t->options.method == QN_TRAIN_DORA;
    int64_t n = 0;
    if (r->file->config.dora != dora)
        return qn_fail(QN_E_ARG, "%s: the adapter has %s magnitudes (DoRA), but the training has %s", r->path,
                       r->file->config.dora ? "" : "no", dora ? "them" : "none");
    for (int64_t i = 0; i < r->t->n_modules; i++) n += r->t->modules[i].n_roles;
    if (n < r->file->n_targets)
        return qn_fail(QN_E_ARG, "%s: the adapter changes %lld matrices, but the training changes %lld",
                       r->path, (long long)r->file->n_targets, (long long)n);
    return QN_OK;
}

/* Matrices that files keep in one tensor are trained with one A. Files may have the experts' apart: read_module
 * compares the numbers. */
static qn_status check_module(const reading *r, const qn_module *m, const qn_adapter_target **targets)
{
    const double scale = r->t->scale;
    for (int i = 0; i < m->n_roles; i++) {
        const qn_adapter_target *t = find_target(r, m->roles[i], m->layer < 0 ? 0 : m->layer);
        if (!t) return qn_fail(QN_E_ARG, "%s: the adapter has nothing for %s", r->path, m->name);
        if (t->rank != r->t->options.rank || fabs(t->factor - scale) > 1e-6 * fabs(scale))
            return qn_fail(QN_E_ARG,
                           "%s: %s has rank %d and scale %g, but the training has rank %d and scale %g",
                           r->path, m->name, t->rank, (double)t->factor, r->t->options.rank, scale);
        targets[i] = t;
        if (!m->n_experts && (t->a != targets[0]->a || t->n_rows != m->n_rows))
            return qn_fail(QN_E_ARG, "%s: %s is split differently than in this training", r->path, m->name);
    }
    return QN_OK;
}

/* a and b have room for the factors of the largest role. */
static qn_status read_module(const reading *r, const qn_module *m, float *a, float *b)
{
    const qn_adapter_target *targets[QN_MODULE_ROLES_MAX];
    const factors f = factors_of(r->t, m);
    const int64_t rank = r->t->options.rank, experts = count_of(m);
    int64_t first = 0;
    float *to[3] = {NULL}, *at = r->numbers;
    QN_TRY(check_module(r, m, targets));
    for (int64_t i = 0; i < r->t->n; i++) {
        const qn_trainable_array *array = &r->t->arrays[i];
        if (array == f.a) to[0] = at;
        if (array == f.b) to[1] = at;
        if (array == f.m) to[2] = at;
        at += array->n;
    }
    for (int i = 0; i < m->n_roles; i++) {
        const qn_adapter_target *t = targets[i];
        float *magnitudes = b + experts * rank * t->n_out;
        QN_TRY(qn_adapter_target_read(t, i ? a : to[0], b, t->m ? magnitudes : NULL));
        if (i && memcmp(a, to[0], (size_t)(experts * rank * m->n_in) * sizeof *a) != 0)
            return qn_fail(
                QN_E_UNSUPPORTED,
                "%s: tensors %s and %s differ, but this training has one A for both matrices of %s", r->path,
                targets[0]->a->name, t->a->name, m->name);
        for (int64_t o = 0; o < t->n_out; o++) {
            const int64_t row = first + qn_row_order_place(r->config, t->role, t->layer, o);
            for (int64_t k = 0; k < experts * rank; k++)
                to[1][(k / rank * m->n_rows + row) * rank + k % rank] = b[k * t->n_out + o];
            if (to[2]) to[2][row] = magnitudes[o];
        }
        first += t->n_out;
    }
    return QN_OK;
}

static qn_status read_all(reading *r)
{
    int64_t rows = 0, inputs = 0;
    QN_TRY(check_form(r));
    for (int64_t i = 0; i < r->t->n_modules; i++) {
        const qn_module *m = &r->t->modules[i];
        if (m->n_rows * count_of(m) > rows) rows = m->n_rows * count_of(m);
        if (m->n_in * count_of(m) > inputs) inputs = m->n_in * count_of(m);
    }
    r->numbers = qn_alloc_array((size_t)r->t->n_elements, sizeof *r->numbers);
    float *a = qn_alloc_array((size_t)inputs, (size_t)r->t->options.rank * sizeof *a);
    float *b = qn_alloc_array((size_t)rows, (size_t)(r->t->options.rank + 1) * sizeof *b);
    qn_status status = r->numbers && a && b ? QN_OK : QN_E_NOMEM;
    for (int64_t i = 0; i < r->t->n_modules && status == QN_OK; i++)
        status = read_module(r, &r->t->modules[i], a, b);
    qn_free(a);
    qn_free(b);
    return status;
}

qn_status qn_trainable_load(qn_trainable *t, const qn_train_base *base, const char *path, qn_buf *notes)
{
    qn_adapter_file file;
    reading r = {.t = t, .config = &base->config, .file = &file, .path = path};
    if (t->options.method == QN_TRAIN_FULL)
        return qn_fail(QN_E_ARG,
                       "%s: this training changes the weights themselves, so it cannot start from an adapter",
                       path);
    QN_TRY(qn_adapter_file_open(path, &base->config, notes, &file));
    qn_status status = qn_adapter_file_needs_factors(
        &file, "a training cannot go on with an adapter that changes whole tensors");
    if (status == QN_OK) status = read_all(&r);
    const float *from = r.numbers;
    for (int64_t i = 0; i < t->n && status == QN_OK; i++) {
        qn_trainable_write(&t->arrays[i], 0, t->arrays[i].n, from);
        from += t->arrays[i].n;
    }
    qn_free(r.numbers);
    qn_adapter_file_close(&file);
    return status;
}
