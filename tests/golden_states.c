#include "tests/golden_states.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static double largest(const qn_tensor_view *v)
{
    const float *x = v->data;
    double most = 0;
    for (int64_t i = 0; i < v->n_elements; i++)
        if (fabs((double)x[i]) > most) most = fabs((double)x[i]);
    return most;
}

static void note(double *worst, double difference)
{
    if (!(difference <= *worst)) *worst = difference; /* NaN too */
}

/* Rows [first, first + rows) of the tensor, which is [L, dim], or [heads, L, dim]. */
static double compare_rows(const qn_tensor_view *v, const float *got, int64_t first, int64_t rows,
                           int64_t heads, int64_t dim)
{
    const float *want = v->data;
    int64_t length = v->n_elements / (heads * dim);
    double worst = 0;
    assert_int_equal(length * heads * dim, v->n_elements);
    assert_true(first + rows <= length);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < dim; d++)
                note(&worst, fabs((double)want[(h * length + first + r) * dim + d] -
                                  (double)got[(r * heads + h) * dim + d]));
    return worst / largest(v);
}

static const qn_tensor_view *find(const qn_golden_states *s, const char *what, int64_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%lld", what, (long long)layer);
    return qn_safetensors_find(s->st, name);
}

static void keep(qn_golden_rows *to, const float *data, int64_t first, int64_t rows, int64_t heads,
                 int64_t dim)
{
    to->heads = heads;
    to->dim = dim;
    int64_t row = to->heads * to->dim;
    assert_int_equal(to->rows, first);
    float *grown = test_realloc(to->data, (size_t)((first + rows) * row) * sizeof *grown);
    memcpy(grown + first * row, data, (size_t)(rows * row) * sizeof *grown);
    to->data = grown;
    to->rows = first + rows;
}

static void compare_hidden(qn_golden_states *s, int64_t layer, const float *data, int64_t first, int64_t rows)
{
    const qn_tensor_view *v = find(s, "hidden", layer);
    if (!v) return;
    note(&s->errors.hidden, compare_rows(v, data, first, rows, 1, s->config->hidden_size));
    s->errors.n_hidden += first == 0;
}

static void see_layer(qn_golden_states *s, int64_t layer, const char *what, const float *data, int64_t rows,
                      const qn_shape *shape)
{
    assert_true(layer >= 0 && layer < QN_GOLDEN_LAYERS_MAX);
    const qn_layer_config *l = &s->config->layers[layer];
    /* Where nothing is done to them they are what the projections give. */
    int plain = l->rope == QN_ROPE_NONE && s->config->qk_norm == QN_QK_NORM_NONE;
    int64_t heads = shape->dim[1], dim = shape->n == 3 ? shape->dim[2] : l->head_dim;
    if (shape->n == 2) heads /= dim;
    if (strcmp(what, plain ? "q" : "queries") == 0)
        keep(&s->queries[layer], data, s->first, rows, heads, dim);
    if (strcmp(what, plain ? "k" : "keys") != 0) return;
    keep(&s->keys[layer], data, s->first, rows, heads, dim);
    const qn_tensor_view *v = find(s, "keys", layer);
    if (!v) return;
    note(&s->errors.keys, compare_rows(v, data, s->first, rows, heads, dim));
    s->errors.n_keys += s->first == 0;
}

void qn_golden_probe(void *user, const char *label, qn_prim prim, const void *data, const qn_operand *out,
                     const qn_sizes *sizes)
{
    qn_golden_states *s = user;
    int64_t layer, rows = qn_shape_dim(&out->shape, 0, sizes);
    char what[32];
    if (sscanf(label, "layer.%ld.%31s", &layer, what) == 2) {
        see_layer(s, layer, what, data, rows, &out->shape);
    } else if (strcmp(label, "final_norm") == 0) {
        compare_hidden(s, s->config->num_hidden_layers, data, s->head_first, rows);
        s->head_first += rows;
    } else if (sscanf(label, "hidden.%ld", &layer) == 1) {
        /* A step may bring a part of the rows only: the body's begin where its last chunk ended. */
        if (layer == 0) {
            s->first += s->n_rows;
            s->n_rows = rows;
        }
        if (layer < s->config->num_hidden_layers) compare_hidden(s, layer, data, s->first, rows);
    }
}

/* softmax(softcap(scale * q.k)) of one row and head, over the positions in its window. */
static void attend(const qn_golden_states *s, int64_t layer, const float *q, int64_t head, int64_t row,
                   double *out)
{
    const qn_model_config *c = s->config;
    const qn_golden_rows *k = &s->keys[c->layers[layer].kv_layer];
    int64_t window = c->layers[layer].window, begin = window && row >= window ? row - window + 1 : 0;
    double cap = (double)c->attn_logit_softcapping, most = -1e300, sum = 0;
    for (int64_t j = 0; j < k->rows; j++) out[j] = 0;
    for (int64_t j = begin; j <= row; j++) {
        const float *key = k->data + (j * k->heads + head) * k->dim;
        double dot = 0;
        for (int64_t d = 0; d < k->dim; d++) dot += (double)q[d] * (double)key[d];
        dot *= (double)c->attention_scale;
        out[j] = cap > 0 ? cap * tanh(dot / cap) : dot;
        if (out[j] > most) most = out[j];
    }
    for (int64_t j = begin; j <= row; j++) sum += out[j] = exp(out[j] - most);
    for (int64_t j = begin; j <= row; j++) out[j] /= sum;
}

static double compare_attention(const qn_golden_states *s, int64_t layer, const qn_tensor_view *v)
{
    const qn_golden_rows *q = &s->queries[layer], *k = &s->keys[s->config->layers[layer].kv_layer];
    const float *want = v->data;
    double worst = 0, *got = test_calloc((size_t)q->rows, sizeof *got);
    assert_true(k->rows == q->rows && k->dim == q->dim);
    assert_int_equal(v->n_elements, q->heads * q->rows * q->rows);
    for (int64_t h = 0; h < q->heads; h++)
        for (int64_t r = 0; r < q->rows; r++) {
            attend(s, layer, q->data + (r * q->heads + h) * q->dim, h / (q->heads / k->heads), r, got);
            for (int64_t j = 0; j < q->rows; j++)
                note(&worst, fabs(got[j] - (double)want[(h * q->rows + r) * q->rows + j]));
        }
    test_free(got);
    return worst / largest(v);
}

void qn_golden_finish(qn_golden_states *s)
{
    int n_hidden = 0, n_keys = 0;
    for (int64_t i = 0; i <= s->config->num_hidden_layers; i++) n_hidden += find(s, "hidden", i) != NULL;
    for (int64_t i = 0; i < s->config->num_hidden_layers; i++) {
        const qn_tensor_view *v = find(s, "attention", i);
        n_keys += find(s, "keys", i) != NULL;
        if (!v) continue;
        if (!s->queries[i].data || !s->keys[s->config->layers[i].kv_layer].data)
            fail_msg("attention.%lld is stored, but queries and keys were not seen", (long long)i);
        note(&s->errors.attention, compare_attention(s, i, v));
        s->errors.n_attention++;
    }
    assert_int_equal(s->errors.n_hidden, n_hidden);
    assert_int_equal(s->errors.n_keys, n_keys);
    for (int i = 0; i < QN_GOLDEN_LAYERS_MAX; i++) {
        test_free(s->queries[i].data);
        test_free(s->keys[i].data);
    }
}
