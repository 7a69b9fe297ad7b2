/* Trained arrays in the places of a graph where a model's weights are read. */
#include <stdio.h>

#include "model/weights/weight_roles.h"
#include "train/step/trainable.h"

typedef struct {
    const qn_trainable *t;
    const qn_train_base *base;
    qn_scope *scope;
    qn_array *const *arrays; /* [t->n] */
    qn_trained *to;
} binding;

/* The one of these arrays that is called so; NULL: none. */
static qn_array *find(const binding *b, const char *module, const char *ending)
{
    char name[sizeof b->t->arrays->name];
    snprintf(name, sizeof name, "%s%s", module, ending);
    const qn_trainable_array *a = qn_trainable_find(b->t, name);
    return a ? b->arrays[a - b->t->arrays] : NULL;
}

/* Rows [first, first + n) of a, of each expert where it has three dimensions. */
static qn_array *row_range(qn_scope *s, qn_array *a, int64_t first, int64_t n)
{
    const int axis = a && qn_array_shape(a)->n == 3;
    if (!a || qn_array_shape(a)->dim[axis] == n) return a;
    qn_params p = {0};
    qn_shape shape = *qn_array_shape(a);
    p.slice.begin[axis] = first;
    shape.dim[axis] = n;
    return qn_apply(s, QN_PRIM_SLICE, &p, 1, &a, &shape, QN_DTYPE_F32);
}

/* All roles of a module read the same rows, and drop the same of them. */
static qn_status bind_module(const binding *b, int64_t i_module)
{
    const qn_trainable *t = b->t;
    const qn_module *module = &t->modules[i_module];
    qn_scope *s = b->scope;
    const int is_dora = t->options.method == QN_TRAIN_DORA;
    qn_array *a = find(b, module->name, ".lora_A.weight"), *lora_b = find(b, module->name, ".lora_B.weight");
    qn_array *magnitude = is_dora ? find(b, module->name, ".lora_magnitude_vector") : NULL;
    qn_array *still_a = is_dora ? qn_stop_gradient(s, a) : NULL;
    qn_array *still_b = is_dora ? qn_stop_gradient(s, lora_b) : NULL;
    int64_t first = 0, layer = module->layer < 0 ? 0 : module->layer;
    for (int i = 0; i < module->n_roles; i++) {
        const int64_t n = module->n_out[i];
        qn_trained_matrix *m = qn_trained_add(b->to, module->roles[i], layer);
        if (!m) return QN_E_NOMEM;
        *m = (qn_trained_matrix){.a = a,
                                 .b = row_range(s, lora_b, first, n),
                                 .magnitude = row_range(s, magnitude, first, n),
                                 .still_a = still_a,
                                 .still_b = row_range(s, still_b, first, n),
                                 .squares = is_dora ? row_range(s, t->squares[i_module], first, n) : NULL,
                                 .scale = t->scale,
                                 .key = t->key_array,
                                 .dropout = t->options.dropout,
                                 .stream = i_module};
        first += n;
    }
    return qn_scope_status(s);
}

static qn_status bind_weight(const binding *b, int64_t i)
{
    const qn_trainable_array *a = &b->t->arrays[i];
    qn_array *weight = b->arrays[i];
    const int64_t taps =
        a->role < QN_WEIGHT_MODEL_COUNT ? 0 : qn_weight_taps(&b->base->config, a->layer, a->role);
    if (taps) { /* files have [channels, taps], SHORT_CONV reads [taps, channels] */
        const qn_shape file = qn_shape_make(2, (int64_t[]){a->n / taps, taps});
        weight = qn_transpose(b->scope, qn_reshape_sym(b->scope, weight, file));
    }
    qn_trained_matrix *m = qn_trained_add(b->to, a->role, a->layer);
    if (!m) return QN_E_NOMEM;
    m->weight = weight;
    if (a->role == QN_WEIGHT_EMBED && qn_weights_tied(b->base->weights)) {
        if (!(m = qn_trained_add(b->to, QN_WEIGHT_LM_HEAD, 0))) return QN_E_NOMEM;
        m->weight = weight;
    }
    return qn_scope_status(b->scope);
}

qn_status qn_trainable_bind(const qn_trainable *t, const qn_train_base *base, qn_scope *s,
                            qn_array *const *arrays, qn_trained **out)
{
    binding b = {.t = t, .base = base, .scope = s, .arrays = arrays};
    const int is_full = t->options.method == QN_TRAIN_FULL;
    QN_TRY(qn_trained_new(base->config.num_hidden_layers, &b.to));
    qn_status status = qn_scope_status(s);
    for (int64_t i = 0; i < (is_full ? t->n : t->n_modules) && status == QN_OK; i++)
        status = is_full ? bind_weight(&b, i) : bind_module(&b, i);
    if (status == QN_OK)
        *out = b.to;
    else
        qn_trained_free(b.to);
    return status;
}
