#include "train/step/trainable.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "prim/convert.h"

typedef struct {
    const qn_train_base *base;
    qn_scope *scope;
    qn_trainable *t;
    int64_t capacity;
} making;

/* ---- arrays ------------------------------------------------------------------------------------------- */

size_t qn_trainable_bytes(const qn_trainable_array *a)
{
    return (size_t)a->n * (a->dtype == QN_DTYPE_F32 ? sizeof *a->data : sizeof *a->halves);
}

void *qn_trainable_numbers(const qn_trainable_array *a)
{
    return a->data ? (void *)a->data : a->halves;
}

void qn_trainable_read(const qn_trainable_array *a, int64_t begin, int64_t n, float *out)
{
    if (a->data)
        memcpy(out, a->data + begin, (size_t)n * sizeof *out);
    else
        qn_convert(QN_DTYPE_BF16, a->halves + begin, QN_DTYPE_F32, out, n);
}

void qn_trainable_write(qn_trainable_array *a, int64_t begin, int64_t n, const float *numbers)
{
    if (a->data)
        memcpy(a->data + begin, numbers, (size_t)n * sizeof *numbers);
    else
        qn_convert(QN_DTYPE_F32, numbers, QN_DTYPE_BF16, a->halves + begin, n);
}

void qn_trainable_write_drawn(qn_trainable_array *a, int64_t begin, int64_t n, const float *numbers,
                              uint64_t key)
{
    if (a->data) {
        qn_trainable_write(a, begin, n, numbers);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        /* what is cut off says how likely the larger one is; infinity and NaN stay what they are */
        if (isfinite(numbers[i])) bits += (uint32_t)(qn_random_bits(key, (uint64_t)(begin + i)) >> 48);
        a->halves[begin + i] = (uint16_t)(bits >> 16);
    }
}

qn_status qn_trainable_describe(const qn_trainable *t, int64_t i, qn_train_array *out)
{
    if (i < 0 || i >= t->n)
        return qn_fail(QN_E_NOT_FOUND, "there is no array %lld: %lld arrays are trained", (long long)i,
                       (long long)t->n);
    const qn_trainable_array *a = &t->arrays[i];
    *out = (qn_train_array){.name = a->name, .n_dims = a->shape.n, .n = a->n};
    for (int k = 0; k < a->shape.n; k++) out->shape[k] = a->shape.dim[k];
    return QN_OK;
}

/* The array as the graph computes with it. */
static qn_array *over_buffer(qn_scope *s, const qn_trainable_array *a)
{
    qn_array *x = qn_from_buffer(s, a->dtype, a->shape, a->buffer);
    return a->data ? x : qn_apply(s, QN_PRIM_CAST, NULL, 1, &x, NULL, QN_DTYPE_F32);
}

/* *out is good until the next one is made. */
static qn_status new_array(making *k, const char *module, const char *ending, qn_shape shape, qn_dtype dtype,
                           qn_trainable_array **out)
{
    qn_trainable *t = k->t;
    qn_device *d = k->base->device;
    if (t->n == k->capacity) {
        int64_t more = k->capacity ? 2 * k->capacity : 64;
        qn_trainable_array *arrays = qn_realloc(t->arrays, (size_t)more * sizeof *arrays);
        if (!arrays) return QN_E_NOMEM;
        t->arrays = arrays;
        k->capacity = more;
    }
    qn_trainable_array *a = &t->arrays[t->n];
    *a = (qn_trainable_array){.shape = shape, .n = qn_shape_elements(&shape, NULL), .dtype = dtype};
    snprintf(a->name, sizeof a->name, "%s%s", module, ending);
    const size_t bytes = qn_trainable_bytes(a);
    QN_TRY(d->ops->alloc(d, bytes, QN_LEDGER_OTHER, &a->buffer));
    void *numbers = qn_buffer_host(a->buffer, QN_HOST_KEEPS);
    if (!numbers) return QN_E_NOMEM;
    memset(numbers, 0, bytes);
    if (dtype == QN_DTYPE_F32)
        a->data = numbers;
    else
        a->halves = numbers;
    t->n++;
    a->array = over_buffer(k->scope, a);
    QN_TRY(qn_scope_status(k->scope));
    *out = a;
    return QN_OK;
}

static void fill_a(const qn_trainable_options *o, qn_trainable_array *a)
{
    const uint64_t key = qn_random_bits(o->seed, qn_hash_bytes(a->name, strlen(a->name), 0));
    const double root = sqrt((double)a->shape.dim[a->shape.n - 1]), bound = 1 / root,
                 divisor = o->init == QN_TRAIN_NORMAL ? (double)o->rank : root;
    for (int64_t i = 0; i < a->n; i++) {
        const double u = qn_random_unit(key, 2 * (uint64_t)i);
        float x = (float)((2 * u - 1) * bound);
        if (o->init != QN_TRAIN_UNIFORM) { /* Box and Muller */
            const double v = qn_random_unit(key, 2 * (uint64_t)i + 1);
            x = (float)(sqrt(-2 * log(1 - u)) * cos(6.28318530717958647692 * v) / divisor);
        }
        qn_trainable_write(a, i, 1, &x);
    }
}

/* ---- DoRA --------------------------------------------------------------------------------------------- */

enum { LENGTH_ROWS = 128 };

/* Squared lengths of all rows of W. */
static qn_status square_lengths(const making *k, qn_array *w, int64_t n_out, float *out)
{
    for (int64_t i = 0; i < n_out; i += LENGTH_ROWS) {
        int32_t ids[LENGTH_ROWS];
        int64_t n = n_out - i < LENGTH_ROWS ? n_out - i : LENGTH_ROWS;
        for (int64_t j = 0; j < n; j++) ids[j] = (int32_t)(i + j);
        qn_scope *s = qn_scope_new(k->base->device);
        if (!s) return QN_E_NOMEM;
        qn_array *rows = qn_take(s, w, qn_from_data(s, QN_DTYPE_I32, 1, &n, ids));
        qn_array *sums = qn_sum(s, qn_unary(s, QN_PRIM_SQUARE, rows), 1);
        qn_status status = qn_eval(s, 1, &sums);
        if (status == QN_OK) memcpy(out + i, qn_array_data(sums), (size_t)n * sizeof *out);
        qn_scope_free(s);
        if (status != QN_OK) return status;
    }
    return QN_OK;
}

/* Magnitudes begin as the lengths of the module's rows, so that nothing changes before the first step. */
static qn_status fill_magnitudes(const making *k, int64_t i_module, const qn_trainable_array *magnitude)
{
    const qn_module *module = &k->t->modules[i_module];
    float *squares = qn_alloc_array((size_t)magnitude->n, sizeof *squares);
    if (!squares) return QN_E_NOMEM;
    qn_status status = QN_OK;
    int64_t first = 0, layer = module->layer < 0 ? 0 : module->layer;
    for (int i = 0; i < module->n_roles && status == QN_OK; i++) {
        qn_array *w = qn_parameters_get(k->base->parameters, module->roles[i], layer);
        status = square_lengths(k, w, module->n_out[i], squares + first);
        first += module->n_out[i];
    }
    for (int64_t i = 0; status == QN_OK && i < magnitude->n; i++) magnitude->data[i] = sqrtf(squares[i]);
    if (status == QN_OK) {
        k->t->squares[i_module] = qn_from_data(k->scope, QN_DTYPE_F32, 1, &magnitude->n, squares);
        status = qn_scope_status(k->scope);
    }
    qn_free(squares);
    return status;
}

/* ---- factors ------------------------------------------------------------------------------------------ */

static qn_status make_key(making *k)
{
    qn_trainable *t = k->t;
    qn_device *d = k->base->device;
    const int64_t n = 3;
    if (t->options.dropout == 0) return QN_OK;
    QN_TRY(d->ops->alloc(d, (size_t)n * sizeof *t->key, QN_LEDGER_OTHER, &t->key_buffer));
    t->key = qn_buffer_host(t->key_buffer, QN_HOST_KEEPS);
    if (!t->key) return QN_E_NOMEM;
    memset(t->key, 0, (size_t)n * sizeof *t->key);
    t->key_array = qn_from_buffer(k->scope, QN_DTYPE_I32, qn_shape_make(1, &n), t->key_buffer);
    return qn_scope_status(k->scope);
}

/* [rows, columns], and as many of them as the module has experts. */
static qn_shape factor_shape(const qn_module *m, int64_t rows, int64_t columns)
{
    const int64_t dims[3] = {m->n_experts, rows, columns};
    return m->n_experts ? qn_shape_make(3, dims) : qn_shape_make(2, dims + 1);
}

/* Of one module. */
static qn_status make_module(making *k, int64_t i_module)
{
    qn_trainable *t = k->t;
    const qn_trainable_options *o = &t->options;
    const qn_module *m = &t->modules[i_module];
    const qn_dtype dtype = o->bf16 ? QN_DTYPE_BF16 : QN_DTYPE_F32;
    qn_trainable_array *a;
    QN_TRY(new_array(k, m->name, ".lora_A.weight", factor_shape(m, o->rank, m->n_in), dtype, &a));
    fill_a(o, a);
    QN_TRY(new_array(k, m->name, ".lora_B.weight", factor_shape(m, m->n_rows, o->rank), dtype, &a));
    if (o->method != QN_TRAIN_DORA) return QN_OK;
    QN_TRY(new_array(k, m->name, ".lora_magnitude_vector", qn_shape_make(1, &m->n_rows), QN_DTYPE_F32, &a));
    return fill_magnitudes(k, i_module, a);
}

static qn_status make_factors(making *k)
{
    qn_trainable *t = k->t;
    if (t->options.method == QN_TRAIN_DORA) {
        t->squares = qn_calloc((size_t)t->n_modules, sizeof(qn_array *));
        if (!t->squares) return QN_E_NOMEM;
    }
    QN_TRY(make_key(k));
    for (int64_t i = 0; i < t->n_modules; i++) QN_TRY(make_module(k, i));
    return QN_OK;
}

/* ---- which modules ------------------------------------------------------------------------------------ */

static int fits(const char *module, const char *pattern)
{
    if (strpbrk(pattern, "*?")) return fnmatch(pattern, module, 0) == 0;
    size_t n = strlen(module), m = strlen(pattern);
    return m && m <= n && strcmp(module + n - m, pattern) == 0 && (m == n || module[n - m - 1] == '.');
}

static int is_router(const qn_module *m)
{
    return m->roles[0] == QN_WEIGHT_ROUTER || m->roles[0] == QN_WEIGHT_SHARED_ROUTER;
}

/* What chooses blocks for attention: a choice has no gradient. */
static int is_of_index(qn_weight_role role)
{
    return role >= QN_WEIGHT_INDEX_Q && role <= QN_WEIGHT_INDEX_PLACES;
}

static qn_status refuse_index(const char *name)
{
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: an index that chooses what attention sees has no gradient, and is not trained", name);
}

static int in_layers(const qn_trainable_options *o, const qn_module *m)
{
    if (m->layer < 0) return !o->layer_begin && !o->layer_end;
    return m->layer >= o->layer_begin && (!o->layer_end || m->layer < o->layer_end);
}

/* A pattern with a wildcard leaves out what cannot be trained, unless it matches nothing else. */
static qn_status mark_pattern(const qn_trainable_options *o, const char *pattern, const qn_module *modules,
                              int64_t n, char *chosen)
{
    const int is_wild = strpbrk(pattern, "*?") != NULL;
    const char *of_index = NULL;
    int64_t any = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!fits(modules[i].name, pattern)) continue;
        if (is_wild && is_of_index(modules[i].roles[0])) {
            of_index = modules[i].name;
            continue;
        }
        any++;
        if (in_layers(o, &modules[i])) chosen[i] = 1;
    }
    if (!any && of_index) return refuse_index(of_index);
    return any ? QN_OK
               : qn_fail(QN_E_ARG,
                         "target %s matches no linear layer of the model; their names are such as %s or %s",
                         pattern, n ? modules[0].name : "-", n ? modules[n - 1].name : "-");
}

static qn_status mark_targets(const qn_trainable_options *o, const qn_module *modules, int64_t n,
                              char *chosen)
{
    if (!o->targets) {
        for (int64_t i = 0; i < n; i++)
            chosen[i] = modules[i].layer >= 0 && !is_router(&modules[i]) &&
                        !is_of_index(modules[i].roles[0]) && !modules[i].n_experts &&
                        in_layers(o, &modules[i]);
        return QN_OK;
    }
    char *list = qn_strdup(o->targets), *rest = NULL;
    if (!list) return QN_E_NOMEM;
    qn_status status = QN_OK;
    for (char *p = strtok_r(list, ", ", &rest); p && status == QN_OK; p = strtok_r(NULL, ", ", &rest))
        status = mark_pattern(o, p, modules, n, chosen);
    qn_free(list);
    return status;
}

static qn_status choose_modules(making *k)
{
    qn_trainable *t = k->t;
    int64_t n = 0;
    QN_TRY(qn_modules_list(&k->base->config, k->base->parameters, k->base->prefix, &t->modules, &n));
    char *chosen = qn_calloc((size_t)n + 1, 1);
    if (!chosen) return QN_E_NOMEM;
    qn_status status = mark_targets(&t->options, t->modules, n, chosen);
    for (int64_t i = 0; i < n; i++)
        if (chosen[i]) t->modules[t->n_modules++] = t->modules[i];
    qn_free(chosen);
    for (int64_t i = 0; i < t->n_modules && status == QN_OK; i++)
        if (is_of_index(t->modules[i].roles[0])) status = refuse_index(t->modules[i].name);
    for (int64_t i = 0; i < t->n_modules && status == QN_OK; i++)
        if (t->modules[i].n_experts && t->options.method == QN_TRAIN_DORA)
            status = qn_fail(QN_E_UNSUPPORTED,
                             "%s: matrices of experts are not trained with magnitudes (DoRA); use LoRA",
                             t->modules[i].name);
    if (status == QN_OK && !t->n_modules)
        status = qn_fail(QN_E_ARG, "no linear layer is left to train: the layers are 0 to %lld",
                         (long long)k->base->config.num_hidden_layers - 1);
    return status;
}

/* ---- whole weights ------------------------------------------------------------------------------------ */

static qn_status add_weight(making *k, qn_weight_role role, int64_t layer)
{
    const qn_train_base *base = k->base;
    const qn_tensor_view *v = qn_weights_get(base->weights, role, layer);
    char name[QN_TENSOR_NAME_MAX];
    qn_trainable_array *a;
    if (!v || !qn_parameters_get(base->parameters, role, layer)) return QN_OK;
    if (is_of_index(role)) return refuse_index(v->name);
    if (v->experts || v->n_dims > 2)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: tensor %s: matrices of experts are not trained as a whole; use LoRA", v->file,
                       v->name);
    if (!qn_family_weight_name(base->config.family, QN_SOURCE_SAFETENSORS, base->prefix, role, layer, name))
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s has no published name, so it cannot be trained",
                       v->file, v->name);
    QN_TRY(new_array(k, name, "", qn_shape_make(v->n_dims, v->shape), QN_DTYPE_F32, &a));
    a->role = role;
    a->layer = layer;
    return qn_weights_floats(v, a->data);
}

static qn_status make_weights(making *k)
{
    const qn_trainable_options *o = &k->t->options;
    const int64_t n = k->base->config.num_hidden_layers;
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT && !o->layer_begin && !o->layer_end; role++)
        if (role != QN_WEIGHT_LM_HEAD || !qn_weights_tied(k->base->weights))
            QN_TRY(add_weight(k, (qn_weight_role)role, 0));
    for (int64_t i = o->layer_begin; i < n && (!o->layer_end || i < o->layer_end); i++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++)
            QN_TRY(add_weight(k, (qn_weight_role)role, i));
    return QN_OK;
}

/* ------------------------------------------------------------------------------------------------------- */

static int by_name(const void *x, const void *y)
{
    return strcmp(((const qn_trainable_array *)x)->name, ((const qn_trainable_array *)y)->name);
}

static qn_status check_options(const qn_train_base *base, const qn_trainable_options *o)
{
    const int64_t n = base->config.num_hidden_layers;
    if (o->layer_begin < 0 || o->layer_begin >= n || o->layer_end < 0 || o->layer_end > n ||
        (o->layer_end && o->layer_end <= o->layer_begin))
        return qn_fail(QN_E_ARG, "layers %lld to %lld are requested, but the model has %lld",
                       (long long)o->layer_begin, (long long)(o->layer_end ? o->layer_end : n), (long long)n);
    if (o->method == QN_TRAIN_FULL)
        return o->bf16 ? qn_fail(QN_E_ARG,
                                 "bf16 is only for the factors of LoRA and DoRA: whole weights are trained "
                                 "in f32")
                       : QN_OK;
    if (o->rank < 1 || o->rank > QN_LORA_RANK_MAX)
        return qn_fail(QN_E_ARG, "rank %d: it must be 1 to %d", o->rank, QN_LORA_RANK_MAX);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return qn_fail(QN_E_ARG, "dropout %g: it must be at least 0 and below 1", (double)o->dropout);
    return isfinite(o->alpha) ? QN_OK : qn_fail(QN_E_ARG, "alpha is not finite");
}

static qn_status bind_own(qn_trainable *t, const qn_train_base *base, qn_scope *scope)
{
    qn_array **own = qn_alloc_array((size_t)t->n, sizeof(qn_array *));
    if (!own) return QN_E_NOMEM;
    for (int64_t i = 0; i < t->n; i++) own[i] = t->arrays[i].array;
    const qn_status status = qn_trainable_bind(t, base, scope, own, &t->trained);
    qn_free(own);
    return status;
}

qn_status qn_trainable_new(const qn_train_base *base, qn_scope *scope, const qn_trainable_options *options,
                           qn_trainable *out)
{
    *out = (qn_trainable){.options = *options};
    making k = {.base = base, .scope = scope, .t = out};
    qn_status status = check_options(base, options);
    if (options->method != QN_TRAIN_FULL && status == QN_OK) {
        const double rank = options->rank;
        out->scale = (float)(options->alpha / (options->rslora ? sqrt(rank) : rank));
    }
    if (status == QN_OK && options->method != QN_TRAIN_FULL) status = choose_modules(&k);
    if (status == QN_OK) status = options->method == QN_TRAIN_FULL ? make_weights(&k) : make_factors(&k);
    out->options.targets = NULL;
    if (status == QN_OK) qsort(out->arrays, (size_t)out->n, sizeof *out->arrays, by_name);
    for (int64_t i = 0; i < out->n; i++) out->n_elements += out->arrays[i].n;
    if (status == QN_OK) status = bind_own(out, base, scope);
    if (status != QN_OK) qn_trainable_free(out);
    return status;
}

void qn_trainable_free(qn_trainable *t)
{
    for (int64_t i = 0; i < t->n; i++) qn_buffer_release(t->arrays[i].buffer);
    qn_buffer_release(t->key_buffer);
    qn_trained_free(t->trained);
    qn_free(t->squares);
    qn_free(t->arrays);
    qn_free(t->modules);
    *t = (qn_trainable){0};
}

qn_trainable_array *qn_trainable_find(const qn_trainable *t, const char *name)
{
    for (int64_t begin = 0, end = t->n; begin < end;) {
        int64_t mid = begin + (end - begin) / 2;
        int order = strcmp(name, t->arrays[mid].name);
        if (!order) return &t->arrays[mid];
        if (order < 0)
            end = mid;
        else
            begin = mid + 1;
    }
    return NULL;
}
