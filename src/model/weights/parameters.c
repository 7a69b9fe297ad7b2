#include "model/weights/parameters.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "model/config/blocks/index_config.h"
#include "model/weights/weight_experts.h"
#include "model/weights/weight_roles.h"
#include "quant/types.h"

struct qn_parameters {
    qn_scope *scope; /* owns the arrays */
    int64_t n_layers, count;
    int bits;
    qn_array *of_model[QN_WEIGHT_MODEL_COUNT];
    qn_array *(*of_layer)[QN_WEIGHT_ROLE_COUNT]; /* [n_layers]; roles of the model stay NULL */
    qn_array *rope[QN_ROPE_SETS][2];
    qn_array *heads, *index_taps;
    qn_array **vision; /* [n_vision] */
    int64_t n_vision;
    qn_array *vision_rope;
    int64_t elements[QN_DTYPE_COUNT];
    qn_packed *packed;     /* that weights lie in; NULL: none */
    qn_mapping **mappings; /* [n_mappings] that cold weights lie in */
    int64_t n_mappings;
};

/* The matrices of a model on their way to the device, [n]. */
typedef struct {
    qn_parameters *p;
    const qn_parameters_part *part;
    const qn_packed *packed; /* NULL: none */
    int is_table;            /* 1: of the matrix at hand nothing is read but rows by token ids */
    int rounds;              /* 1: the matrix at hand becomes bf16 where it is of f32 or f16 */
    int only_counts;         /* 1: nothing is loaded */
    size_t size_bytes;       /* of what was gathered, on the device */
    int64_t n;
    qn_weight *weights;
    qn_weight_part **parts; /* of each weight */
    uint16_t **rounded;     /* what is in place of a weight's own numbers; NULL: these */
    const qn_tensor_view **views;
    qn_array ***out;
    qn_buffer **buffers;
} loading;

/* [channels][n_taps], as files have it, to [n_taps, channels], as SHORT_CONV reads it. */
static qn_array *taps(qn_scope *s, const float *values, int64_t n_taps, int64_t channels)
{
    float *turned = qn_alloc_array((size_t)(n_taps * channels), sizeof *turned);
    if (!turned) return NULL;
    for (int64_t t = 0; t < n_taps; t++)
        for (int64_t c = 0; c < channels; c++) turned[t * channels + c] = values[c * n_taps + t];
    qn_array *a = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){n_taps, channels}, turned);
    qn_free(turned);
    return a;
}

/* n_taps: of a convolution's weights; 0: a vector. */
static qn_status load_vector(loading *l, const qn_tensor_view *v, int64_t n_taps, qn_array **out)
{
    qn_scope *s = l->p->scope;
    float *values = NULL;
    const float *from = NULL;
    l->size_bytes += (size_t)v->n_elements * sizeof *values;
    if (l->only_counts) return QN_OK;
    if (l->packed) QN_TRY(qn_packed_vector(l->packed, v->name, v->n_elements, &from));
    if (!from) {
        values = qn_alloc_array((size_t)v->n_elements, sizeof *values);
        if (!values) return QN_E_NOMEM;
        qn_status status = qn_weights_vector(v, values);
        if (status != QN_OK) {
            qn_free(values);
            return status;
        }
        from = values;
    }
    *out = n_taps ? taps(s, from, n_taps, v->n_elements / n_taps)
                  : qn_from_data(s, QN_DTYPE_F32, 1, &v->n_elements, from);
    qn_free(values);
    return *out ? QN_OK : QN_E_NOMEM;
}

int64_t qn_parameters_parts(const qn_tensor_view *v)
{
    return v->n_dims == 3 ? v->shape[0] : 1;
}

qn_weight qn_parameters_weight(const qn_tensor_view *v, qn_weight_part *parts)
{
    if (v->experts) return qn_weight_experts_weight(v->experts, 0, parts);
    int64_t n_in = v->shape[v->n_dims - 1];
    if (v->n_dims == 3) {
        for (int64_t i = 0; i < v->shape[0]; i++)
            parts[i] = (qn_weight_part){.data = (const char *)v->data + (size_t)i * v->matrix_bytes};
        return (qn_weight){.dtype = v->dtype,
                           .n_parts = v->shape[0],
                           .n_out = v->shape[1],
                           .n_in = n_in,
                           .parts = parts,
                           .transposed = v->transposed};
    }
    *parts =
        (qn_weight_part){v->data, v->scales ? v->scales->data : NULL, v->biases ? v->biases->data : NULL};
    return (qn_weight){
        .dtype = v->dtype, .n_parts = 1, .n_out = v->n_elements / n_in, .n_in = n_in, .parts = parts};
}

/* The files of cold weights stay mapped as long as the weights are there. */
static qn_status hold_mapping(qn_parameters *p, const qn_tensor_view *v)
{
    int64_t k = p->n_mappings; /* the last one held is the likeliest */
    while (k > 0 && p->mappings[k - 1] != v->mapping) k--;
    if (k) return QN_OK;
    qn_mapping **more = qn_realloc(p->mappings, (size_t)(p->n_mappings + 1) * sizeof *more);
    if (!more) return QN_E_NOMEM;
    p->mappings = more;
    p->mappings[p->n_mappings++] = qn_mapping_retain(v->mapping);
    return QN_OK;
}

/* The i-th tensor of a file that a matrix lies in; NULL at the end. */
static const qn_tensor_view *stored(const qn_tensor_view *v, int64_t i)
{
    if (v->experts) return qn_weight_experts_stored(v->experts, i);
    if (i > 0 && !v->scales) return NULL;
    return i == 0 ? v : i == 1 ? v->scales : i == 2 ? v->biases : NULL;
}

/* 1: a matrix may stay in its files until something of it is asked for. */
static int may_wait(const loading *l, const qn_tensor_view *v)
{
    const qn_tensor_view *part;
    if (l->packed) return 0;
    if (v->experts) return qn_weight_experts_may_wait(v->experts);
    for (int64_t i = 0; l->is_table && (part = stored(v, i)); i++)
        if (!part->mapping) return 0;
    return l->is_table;
}

/* The weight at hand as bf16. */
static qn_status round_matrix(loading *l, const qn_tensor_view *v)
{
    enum { AT_ONCE = 4096 };
    float values[AT_ONCE];
    qn_weight *w = &l->weights[l->n];
    w->dtype = QN_DTYPE_BF16;
    if (l->only_counts) return QN_OK;
    uint16_t *out = l->rounded[l->n] = qn_alloc_array((size_t)v->n_elements, sizeof *out);
    if (!out) return QN_E_NOMEM;
    for (int64_t at = 0; at < v->n_elements; at += AT_ONCE) {
        const int64_t n = v->n_elements - at < AT_ONCE ? v->n_elements - at : AT_ONCE;
        QN_TRY(qn_view_floats(v, at, n, values));
        for (int64_t i = 0; i < n; i++) out[at + i] = qn_f32_to_bf16(values[i]);
    }
    l->parts[l->n][0] = (qn_weight_part){.data = out};
    return QN_OK;
}

/* Matrices are gathered, to be packed together; vectors are there at once. */
static qn_status load_matrix(loading *l, const qn_tensor_view *v, qn_array **out)
{
    qn_device *d = qn_scope_device(l->p->scope);
    size_t bytes;
    l->parts[l->n] = qn_alloc_array((size_t)qn_parameters_parts(v), sizeof **l->parts);
    if (!l->parts[l->n]) return QN_E_NOMEM;
    l->weights[l->n] = qn_parameters_weight(v, l->parts[l->n]);
    if (l->rounds && v->n_dims == 2 && (v->dtype == QN_DTYPE_F32 || v->dtype == QN_DTYPE_F16))
        QN_TRY(round_matrix(l, v));
    QN_TRY(d->ops->weight_bytes(d, &l->weights[l->n], &bytes));
    l->size_bytes += bytes;
    if (may_wait(l, v)) {
        const qn_tensor_view *part;
        l->weights[l->n].cold = 1;
        for (int64_t i = 0; (part = stored(v, i)); i++) QN_TRY(hold_mapping(l->p, part));
    }
    if (l->packed) QN_TRY(qn_packed_matrix(l->packed, v->name, bytes, &l->weights[l->n].packed));
    l->views[l->n] = v;
    l->out[l->n++] = out;
    return QN_OK;
}

static qn_status load(loading *l, const qn_tensor_view *v, int64_t n_taps, qn_array **out)
{
    qn_parameters *p = l->p;
    if (!v) return QN_OK;
    QN_TRY(qn_view_check(v));
    qn_status status = v->n_dims > 1 ? load_matrix(l, v, out) : load_vector(l, v, n_taps, out);
    if (status == QN_E_FORMAT && l->packed) return status; /* the message names the packed file */
    if (status != QN_OK) return qn_fail_prefix(status, "%s: tensor %s", v->file, v->name);
    p->count += v->n_elements;
    p->elements[v->dtype] += v->n_elements;
    return QN_OK;
}

static qn_status pack(loading *l)
{
    qn_device *d = qn_scope_device(l->p->scope);
    qn_status status = d->ops->import_weights(d, l->n, l->weights, l->buffers);
    for (int64_t i = 0; i < l->n && status == QN_OK; i++) {
        const qn_tensor_view *v = l->views[i];
        const qn_tensor_view *part;
        for (int64_t k = 0; (part = stored(v, k)); k++) qn_view_drop(part, 0, part->size_bytes);
        *l->out[i] = qn_from_buffer(l->p->scope, l->weights[i].dtype, qn_shape_make(v->n_dims, v->shape),
                                    l->buffers[i]);
        qn_buffer_release(l->buffers[i]);
    }
    return status == QN_OK ? qn_scope_status(l->p->scope) : status;
}

/* The bits that a type's name speaks of: 4 for q4_1, though its scales and minima make it 5. */
static int nominal_bits(const char *name)
{
    int bits = 0;
    while (*name && (*name < '0' || *name > '9')) name++;
    for (; *name >= '0' && *name <= '9'; name++) bits = bits * 10 + (*name - '0');
    return bits;
}

static qn_status number_heads(qn_parameters *p, int64_t n)
{
    int32_t *numbers = qn_alloc_array((size_t)n, sizeof *numbers);
    if (!numbers) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) numbers[i] = (int32_t)i;
    p->heads = qn_from_data(p->scope, QN_DTYPE_I32, 1, &n, numbers);
    qn_free(numbers);
    return qn_scope_status(p->scope);
}

/* What lies in the last dimension of a convolution's channels is laid out as blocks/index.c reads it. */
static qn_status make_index_taps(qn_parameters *p, const qn_model_config *c)
{
    const int64_t taps = c->index.index_kpool, channels = qn_index_channels(c);
    float *w = qn_calloc((size_t)(taps * channels), sizeof *w);
    if (!w) return QN_E_NOMEM;
    for (int64_t i = 0; i < channels; i++) {
        if (c->index.pool == QN_INDEX_GATED)
            w[i % taps * channels + i] = 1; /* of place i % taps */
        else if (i >= c->index.index_head_dim)
            w[i] = 1; /* of the block's first row */
        else
            for (int64_t t = 0; t < taps; t++) w[t * channels + i] = 1.0f / (float)taps;
    }
    p->index_taps = qn_from_data(p->scope, QN_DTYPE_F32, 2, (int64_t[]){taps, channels}, w);
    qn_free(w);
    return qn_scope_status(p->scope);
}

/* Frequencies of a quarter of a head's dimensions for rows, then those for columns. */
static qn_status make_vision_rope(qn_parameters *p, const qn_vision_config *v)
{
    const int64_t n = v->head_dim / 4, both = 2 * n;
    if (v->rope == QN_VISION_ROPE_NONE) return QN_OK;
    float *values = qn_alloc_array((size_t)both, sizeof *values);
    if (!values) return QN_E_NOMEM;
    for (int64_t i = 0; i < both; i++) {
        const float between = i >= n && v->rope == QN_VISION_ROPE_IN_TURN ? 0.5f : 0,
                    exponent = ((float)(i % n) + between) / (float)n;
        values[i] = 1.0f / (float)pow((double)v->rope_theta, (double)exponent);
    }
    p->vision_rope = qn_from_data(p->scope, QN_DTYPE_F32, 1, &both, values);
    qn_free(values);
    return qn_scope_status(p->scope);
}

/* Every matrix is gathered. */
static qn_status gather(loading *l, const qn_weights *w, const qn_model_config *c)
{
    qn_parameters *p = l->p;
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT && l->part->has_model; role++) {
        if (role == QN_WEIGHT_LM_HEAD && qn_weights_tied(w)) continue;
        l->is_table = role == QN_WEIGHT_LAYER_INPUT_EMBED;
        l->rounds = l->part->as_bf16 && !l->packed && role != QN_WEIGHT_EMBED &&
                    role != QN_WEIGHT_POSITION_EMBED && role != QN_WEIGHT_TYPE_EMBED && !l->is_table;
        QN_TRY(load(l, qn_weights_get(w, (qn_weight_role)role, 0), 0, &p->of_model[role]));
    }
    for (int64_t i = l->part->begin; i < l->part->end; i++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++) {
            l->is_table = role == QN_WEIGHT_NGRAM_EMBED;
            l->rounds = l->part->as_bf16 && !l->packed && !l->is_table;
            QN_TRY(load(l, qn_weights_get(w, (qn_weight_role)role, i),
                        qn_weight_taps(c, i, (qn_weight_role)role), &p->of_layer[i][role]));
        }
    l->is_table = 0;
    l->rounds = 0;
    for (int64_t i = 0; i < p->n_vision; i++) QN_TRY(load(l, qn_weights_vision(w, i), 0, &p->vision[i]));
    qn_dtype most = QN_DTYPE_F32;
    for (int d = 0; d < QN_DTYPE_COUNT; d++)
        if (p->elements[d] > p->elements[most]) most = (qn_dtype)d;
    p->bits = nominal_bits(qn_dtype_name(most));
    return QN_OK;
}

static qn_status load_all(loading *l, const qn_weights *w, const qn_model_config *c)
{
    qn_parameters *p = l->p;
    QN_TRY(gather(l, w, c));
    if (l->only_counts) return QN_OK;
    QN_TRY(pack(l));
    if (qn_weights_tied(w) && l->part->has_model)
        p->of_model[QN_WEIGHT_LM_HEAD] = p->of_model[QN_WEIGHT_EMBED];
    for (int i = 0; i < c->n_rope; i++) {
        int64_t half = c->rope[i].rotary_dim / 2;
        const float *sets[] = {c->rope[i].inv_freq, c->rope[i].long_inv_freq};
        for (int j = 0; j < 2; j++) {
            if (!sets[j]) continue;
            p->rope[i][j] = qn_from_data(p->scope, QN_DTYPE_F32, 1, &half, sets[j]);
            if (!p->rope[i][j]) return qn_scope_status(p->scope);
        }
    }
    for (int64_t i = 0; i < p->n_layers && !p->heads; i++)
        if (c->layers[i].mixer == QN_MIXER_LATENT) QN_TRY(number_heads(p, c->num_attention_heads));
    if (c->index.index_kpool) QN_TRY(make_index_taps(p, c));
    return p->n_vision ? make_vision_rope(p, &c->vision) : QN_OK;
}

/* counted NULL: loads. Else nothing is loaded, and *counted is the size on the device. */
static qn_status load_into(qn_parameters *p, const qn_weights *w, const qn_model_config *c,
                           const qn_parameters_part *part, const qn_packed *packed, size_t *counted)
{
    size_t most = QN_WEIGHT_ROLE_COUNT * ((size_t)p->n_layers + 1) + (size_t)p->n_vision;
    loading l = {.p = p,
                 .part = part,
                 .packed = packed,
                 .only_counts = counted != NULL,
                 .weights = qn_calloc(most, sizeof *l.weights),
                 .parts = qn_calloc(most, sizeof *l.parts),
                 .rounded = qn_calloc(most, sizeof *l.rounded),
                 .views = qn_calloc(most, sizeof *l.views),
                 .out = qn_calloc(most, sizeof *l.out),
                 .buffers = qn_calloc(most, sizeof *l.buffers)};
    qn_status status = QN_E_NOMEM;
    if (l.weights && l.parts && l.rounded && l.views && l.out && l.buffers) status = load_all(&l, w, c);
    if (counted) *counted = l.size_bytes;
    for (size_t i = 0; l.parts && i < most; i++) qn_free(l.parts[i]);
    for (size_t i = 0; l.rounded && i < most; i++) qn_free(l.rounded[i]);
    qn_free(l.weights);
    qn_free(l.parts);
    qn_free(l.rounded);
    qn_free(l.views);
    qn_free(l.out);
    qn_free(l.buffers);
    return status;
}

static qn_parameters *empty(qn_device *device, int64_t n_layers, int64_t n_vision)
{
    qn_parameters *p = qn_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->n_layers = n_layers;
    p->n_vision = n_vision;
    p->scope = qn_scope_new(device);
    p->of_layer = qn_calloc((size_t)n_layers + 1, sizeof *p->of_layer);
    p->vision = qn_calloc((size_t)n_vision, sizeof *p->vision);
    if (p->scope && p->of_layer && p->vision) return p;
    qn_parameters_free(p);
    return NULL;
}

static qn_parameters *empty_part(qn_device *device, const qn_weights *weights, const qn_model_config *config,
                                 const qn_parameters_part *part)
{
    return empty(device, config->num_hidden_layers, part->has_model ? qn_weights_vision_count(weights) : 0);
}

static qn_parameters_part all_of(const qn_model_config *config)
{
    return (qn_parameters_part){.end = config->num_hidden_layers, .has_model = 1};
}

qn_status qn_parameters_load(qn_device *device, const qn_weights *weights, const qn_model_config *config,
                             qn_packed *packed, qn_parameters **out)
{
    const qn_parameters_part all = all_of(config);
    return qn_parameters_load_part(device, weights, config, &all, packed, out);
}

qn_status qn_parameters_load_part(qn_device *device, const qn_weights *weights, const qn_model_config *config,
                                  const qn_parameters_part *part, qn_packed *packed, qn_parameters **out)
{
    qn_parameters *p = empty_part(device, weights, config, part);
    if (!p) return QN_E_NOMEM;
    qn_status status = load_into(p, weights, config, part, packed, NULL);
    if (status != QN_OK) {
        qn_parameters_free(p);
        return status;
    }
    p->packed = packed;
    *out = p;
    return QN_OK;
}

qn_status qn_parameters_measure(qn_device *device, const qn_weights *weights, const qn_model_config *config,
                                size_t *size_bytes, int *bits)
{
    const qn_parameters_part all = all_of(config);
    return qn_parameters_measure_part(device, weights, config, &all, size_bytes, bits);
}

qn_status qn_parameters_measure_part(qn_device *device, const qn_weights *weights,
                                     const qn_model_config *config, const qn_parameters_part *part,
                                     size_t *size_bytes, int *bits)
{
    qn_parameters *p = empty_part(device, weights, config, part);
    if (!p) return QN_E_NOMEM;
    const qn_status status = load_into(p, weights, config, part, NULL, size_bytes);
    *bits = p->bits;
    qn_parameters_free(p);
    return status;
}

/* Fails in the scope of p. */
static qn_array *share(qn_parameters *p, const qn_array *a)
{
    if (!a) return NULL;
    return qn_from_buffer(p->scope, qn_array_dtype(a), *qn_array_shape(a), qn_array_buffer(a));
}

qn_status qn_parameters_share(const qn_parameters *from, qn_device *device, qn_parameters **out)
{
    qn_parameters *p = empty(device, from->n_layers, from->n_vision);
    if (!p) return QN_E_NOMEM;
    const int is_tied = from->of_model[QN_WEIGHT_LM_HEAD] == from->of_model[QN_WEIGHT_EMBED];
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++)
        p->of_model[role] = share(p, from->of_model[role]);
    if (is_tied) p->of_model[QN_WEIGHT_LM_HEAD] = p->of_model[QN_WEIGHT_EMBED];
    for (int64_t i = 0; i < p->n_layers; i++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++)
            p->of_layer[i][role] = share(p, from->of_layer[i][role]);
    for (int i = 0; i < QN_ROPE_SETS; i++)
        for (int j = 0; j < 2; j++) p->rope[i][j] = share(p, from->rope[i][j]);
    p->heads = share(p, from->heads);
    p->index_taps = share(p, from->index_taps);
    for (int64_t i = 0; i < p->n_vision; i++) p->vision[i] = share(p, from->vision[i]);
    p->vision_rope = share(p, from->vision_rope);
    p->count = from->count;
    p->bits = from->bits;
    memcpy(p->elements, from->elements, sizeof p->elements);
    const qn_status status = qn_scope_status(p->scope);
    if (status == QN_OK)
        *out = p;
    else
        qn_parameters_free(p);
    return status;
}

void qn_parameters_free(qn_parameters *p)
{
    if (!p) return;
    qn_scope_free(p->scope);
    qn_packed_close(p->packed);
    for (int64_t i = 0; i < p->n_mappings; i++) qn_mapping_close(p->mappings[i]);
    qn_free(p->mappings);
    qn_free(p->of_layer);
    qn_free(p->vision);
    qn_free(p);
}

qn_array *qn_parameters_get(const qn_parameters *p, qn_weight_role role, int64_t layer)
{
    return role < QN_WEIGHT_MODEL_COUNT ? p->of_model[role] : p->of_layer[layer][role];
}

qn_array *qn_parameters_index_taps(const qn_parameters *p)
{
    return p->index_taps;
}

qn_array *qn_parameters_heads(const qn_parameters *p)
{
    return p->heads;
}

int64_t qn_parameters_vision_count(const qn_parameters *p)
{
    return p->n_vision;
}

qn_array *qn_parameters_vision(const qn_parameters *p, int64_t i)
{
    return p->vision[i];
}

qn_array *qn_parameters_vision_rope(const qn_parameters *p)
{
    return p->vision_rope;
}

qn_array *qn_parameters_rope(const qn_parameters *p, int i, int is_long)
{
    return p->rope[i][is_long];
}

int64_t qn_parameters_count(const qn_parameters *p)
{
    return p->count;
}

int qn_parameters_bits(const qn_parameters *p)
{
    return p->bits;
}
