#include "model/parameters.h"

#include "base/mem.h"

struct qn_parameters {
    qn_scope *scope; /* owns the arrays */
    int64_t n_layers, count;
    int bits;
    qn_array *of_model[QN_WEIGHT_MODEL_COUNT];
    qn_array *(*of_layer)[QN_WEIGHT_ROLE_COUNT]; /* [n_layers]; roles of the model stay NULL */
    qn_array *rope[QN_ROPE_SETS];
    int64_t elements[QN_DTYPE_COUNT];
};

static qn_array *load_vector(qn_scope *s, const qn_tensor_view *v)
{
    float *values = qn_alloc_array((size_t)v->n_elements, sizeof *values);
    if (!values) return NULL;
    qn_array *a = NULL;
    if (qn_weights_vector(v, values) == QN_OK)
        a = qn_from_data(s, QN_DTYPE_F32, qn_shape_make(1, &v->n_elements), values);
    qn_free(values);
    return a;
}

static qn_status load_matrix(qn_parameters *p, const qn_tensor_view *v, qn_array **out)
{
    qn_device *d = qn_scope_device(p->scope);
    int64_t n_in = v->shape[v->n_dims - 1];
    qn_buffer *b = NULL;
    int packed = 0;
    qn_weight_part bytes = {v->data, v->scales ? v->scales->data : NULL, v->biases ? v->biases->data : NULL};
    QN_TRY(d->ops->import_weight(d, v->dtype, 1, &bytes, v->n_elements / n_in, n_in, &b, &packed));
    if (packed) {
        qn_view_drop(v, 0, v->size_bytes);
        if (v->scales) qn_view_drop(v->scales, 0, v->scales->size_bytes);
        if (v->biases) qn_view_drop(v->biases, 0, v->biases->size_bytes);
    }
    *out = qn_from_buffer(p->scope, v->dtype, qn_shape_make(v->n_dims, v->shape), b);
    qn_buffer_release(b);
    return *out ? QN_OK : qn_scope_status(p->scope);
}

static qn_status load(qn_parameters *p, const qn_tensor_view *v, qn_array **out)
{
    if (!v) return QN_OK;
    QN_TRY(qn_view_check(v));
    qn_status status = QN_OK;
    if (v->n_dims > 1)
        status = load_matrix(p, v, out);
    else if (!(*out = load_vector(p->scope, v)))
        status = qn_scope_status(p->scope) != QN_OK ? qn_scope_status(p->scope) : QN_E_NOMEM;
    if (status != QN_OK) return qn_fail_prefix(status, "%s: tensor %s", v->file, v->name);
    p->count += v->n_elements;
    p->elements[v->dtype] += v->n_elements;
    return QN_OK;
}

/* The bits that a type's name speaks of: 4 for q4_1, though its scales and minima make it 5. */
static int nominal_bits(const char *name)
{
    int bits = 0;
    while (*name && (*name < '0' || *name > '9')) name++;
    for (; *name >= '0' && *name <= '9'; name++) bits = bits * 10 + (*name - '0');
    return bits;
}

static qn_status load_all(qn_parameters *p, const qn_weights *w, const qn_model_config *c)
{
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++) {
        if (role == QN_WEIGHT_LM_HEAD && qn_weights_tied(w)) continue;
        QN_TRY(load(p, qn_weights_get(w, (qn_weight_role)role, 0), &p->of_model[role]));
    }
    if (qn_weights_tied(w)) p->of_model[QN_WEIGHT_LM_HEAD] = p->of_model[QN_WEIGHT_EMBED];
    for (int64_t l = 0; l < p->n_layers; l++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++)
            QN_TRY(load(p, qn_weights_get(w, (qn_weight_role)role, l), &p->of_layer[l][role]));
    for (int i = 0; i < c->n_rope; i++) {
        int64_t half = c->rope[i].rotary_dim / 2;
        p->rope[i] = qn_from_data(p->scope, QN_DTYPE_F32, qn_shape_make(1, &half), c->rope[i].inv_freq);
        if (!p->rope[i]) return qn_scope_status(p->scope);
    }
    qn_dtype most = QN_DTYPE_F32;
    for (int d = 0; d < QN_DTYPE_COUNT; d++)
        if (p->elements[d] > p->elements[most]) most = (qn_dtype)d;
    p->bits = nominal_bits(qn_dtype_name(most));
    return QN_OK;
}

qn_status qn_parameters_load(qn_device *device, const qn_weights *weights, const qn_model_config *config,
                             qn_parameters **out)
{
    qn_parameters *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    qn_status status = QN_E_NOMEM;
    p->n_layers = config->num_hidden_layers;
    p->scope = qn_scope_new(device);
    p->of_layer = qn_calloc((size_t)p->n_layers + 1, sizeof *p->of_layer);
    if (p->scope && p->of_layer) status = load_all(p, weights, config);
    if (status != QN_OK) {
        qn_parameters_free(p);
        return status;
    }
    *out = p;
    return QN_OK;
}

void qn_parameters_free(qn_parameters *p)
{
    if (!p) return;
    qn_scope_free(p->scope);
    qn_free(p->of_layer);
    qn_free(p);
}

qn_array *qn_parameters_get(const qn_parameters *p, qn_weight_role role, int64_t layer)
{
    return role < QN_WEIGHT_MODEL_COUNT ? p->of_model[role] : p->of_layer[layer][role];
}

qn_array *qn_parameters_rope(const qn_parameters *p, int i)
{
    return p->rope[i];
}

int64_t qn_parameters_count(const qn_parameters *p)
{
    return p->count;
}

int qn_parameters_bits(const qn_parameters *p)
{
    return p->bits;
}
