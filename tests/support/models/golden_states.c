#include "tests/support/models/golden_states.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { LAYERS_MAX = 64 };

/* Rows of one layer, [rows, heads, dim]. */
typedef struct {
    float *data;
    int64_t heads, dim, rows;
} layer_rows;

typedef struct {
    const qn_safetensors *st; /* hidden.I, keys.I and attention.I */
    qn_safetensors *model;    /* its weights, where attention has sinks; else NULL */
    const qn_model_config *config;
    int64_t first, n_rows, head_first; /* where the rows of this chunk begin, and their number */
    qn_golden_errors errors;
    layer_rows queries[LAYERS_MAX], keys[LAYERS_MAX];
    layer_rows chosen[LAYERS_MAX]; /* numbers of blocks, i32, of layers with an index */
} states;

qn_safetensors *qn_golden_picture(const char *kind)
{
    char path[160];
    qn_safetensors *st;
    snprintf(path, sizeof path, "images/%.60s.safetensors", kind);
    const char *own = qn_test_fixture(path);
    snprintf(path, sizeof path, "models/%.60s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(own ? own : qn_test_need_fixture(path), &st));
    return st;
}

double qn_golden_tolerance(const char *kind)
{
    static const struct {
        const char *begin;
        double tolerance;
    } others[] = {{"gemma4", 1e-3},      {"gemma3n", 1e-3},   {"muse_glimmer", 1e-3},
                  {"qwen3_next", 2e-3},  {"qwen3_5", 2e-3},   {"qwen4_exp", 2e-3},
                  {"kimi_linear", 2e-3}, {"glm5_next", 2e-3}, {"granitemoehybrid", 2e-3},
                  {"nemotron_h", 2e-3},  {"falcon_h1", 2e-3}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(kind, others[i].begin, strlen(others[i].begin)) == 0) return others[i].tolerance;
    return 2e-4;
}

/* ---- on the way --------------------------------------------------------------------------------------- */

static double largest(const qn_tensor_view *v)
{
    const float *x = v->data;
    double most = 0;
    for (int64_t i = 0; i < v->n_elements; i++)
        if (fabs((double)x[i]) > most) most = fabs((double)x[i]);
    return most;
}

const double qn_golden_states_tolerance = 1e-4;

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

static const qn_tensor_view *find(const states *s, const char *what, int64_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%lld", what, (long long)layer);
    return qn_safetensors_find(s->st, name);
}

static void keep(layer_rows *to, const float *data, int64_t first, int64_t rows, int64_t heads, int64_t dim)
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

static void note_tensor(states *s, const qn_tensor_view *v, double *worst, double difference)
{
    note(worst, difference);
    if (!(difference <= qn_golden_states_tolerance) && !s->errors.first[0])
        snprintf(s->errors.first, sizeof s->errors.first, "%s", v->name);
}

static void compare_hidden(states *s, int64_t layer, const float *data, int64_t first, int64_t rows)
{
    const qn_tensor_view *v = find(s, "hidden", layer);
    qn_tensor_view active; /* of streams [streams, 1, L, hidden_size] */
    if (v && v->n_dims == 4 && s->config->altup_num_inputs) {
        active = *v;
        active.n_elements /= v->shape[0];
        active.data = (const float *)v->data + s->config->altup_active_idx * active.n_elements;
        v = &active;
    }
    if (!v) return;
    const int is_projected = layer == s->config->num_hidden_layers && s->config->encoder.embedding_dim;
    const int64_t streams =
        layer < s->config->num_hidden_layers && s->config->hyper.hc_count ? s->config->hyper.hc_count : 1;
    const int64_t width = is_projected ? s->config->encoder.embedding_dim : streams * s->config->hidden_size;
    note_tensor(s, v, &s->errors.hidden, compare_rows(v, data, first, rows, 1, width));
    s->errors.n_hidden += first == 0;
}

static void see_layer(states *s, int64_t layer, const char *what, const float *data, int64_t rows,
                      const qn_shape *shape)
{
    assert_true(layer >= 0 && layer < LAYERS_MAX);
    const qn_layer_config *l = &s->config->layers[layer];
    /* Where nothing is done to them they are what the projections give. */
    const int is_normed = s->config->qk_norm != QN_QK_NORM_NONE && !s->config->qk_norm_with_rope;
    int plain =
        l->rope == QN_ROPE_NONE && l->mixer != QN_MIXER_LATENT && !is_normed && !s->config->attention_bias;
    const int is_scaled = s->config->query_scale_beta != 0;
    int64_t heads = shape->dim[1], dim = shape->n == 3 ? shape->dim[2] : l->head_dim;
    if (shape->n == 2 && dim) heads /= dim; /* layers that recur may have no head_dim */
    if (strcmp(what, plain && !is_scaled ? "q" : "queries") == 0)
        keep(&s->queries[layer], data, s->first, rows, heads, dim);
    if (strcmp(what, "index") == 0) keep(&s->chosen[layer], data, s->first, rows, 1, shape->dim[1]);
    /* Of a latent the reference shows the part that is not rotated. */
    const int is_all_latent = l->mixer == QN_MIXER_LATENT && !s->config->latent.qk_rope_head_dim;
    int is_latent = l->mixer == QN_MIXER_LATENT && strcmp(what, is_all_latent ? "keys" : "latent") == 0;
    if (is_all_latent && is_latent) keep(&s->keys[layer], data, s->first, rows, heads, dim);
    if (!is_latent && strcmp(what, plain ? "k" : "keys") != 0) return;
    if (!is_latent) keep(&s->keys[layer], data, s->first, rows, heads, dim);
    if (!is_latent && l->mixer == QN_MIXER_LATENT) return;
    const qn_tensor_view *v = find(s, "keys", layer);
    if (!v) return;
    note_tensor(s, v, &s->errors.keys, compare_rows(v, data, s->first, rows, heads, dim));
    s->errors.n_keys += s->first == 0;
}

static void see(void *user, const qn_probe_view *view)
{
    states *s = user;
    const char *label = view->step->label;
    const float *data = view->out;
    int64_t layer, rows = qn_shape_dim(&view->step->out.shape, 0, view->sizes);
    char what[32];
    if (sscanf(label, "layer.%ld.%31s", &layer, what) == 2) {
        see_layer(s, layer, what, data, rows, &view->step->out.shape);
    } else if (strcmp(label, "encoded") == 0) {
        compare_hidden(s, s->config->num_hidden_layers, data, 0, rows);
    } else if (strcmp(label, "final_norm") == 0) {
        if (!s->config->altup_num_inputs)
            compare_hidden(s, s->config->num_hidden_layers, data, s->head_first, rows);
        s->head_first += rows;
    } else if (sscanf(label, "hidden.%ld", &layer) == 1) {
        /* A step may bring a part of the rows only: the body's begin where its last chunk ended. */
        if (layer == 0) {
            s->first += s->n_rows;
            s->n_rows = rows;
        }
        /* The last one is that before the final norm where there are streams. */
        if (layer < s->config->num_hidden_layers || s->config->altup_num_inputs)
            compare_hidden(s, layer, data, s->first, rows);
    }
}

/* The weights beside the golden values, in one file. */
static qn_safetensors *open_model(const qn_safetensors *st)
{
    char path[4096];
    const char *own = qn_safetensors_path(st), *slash = strrchr(own, '/');
    qn_safetensors *model = NULL;
    assert_non_null(slash);
    snprintf(path, sizeof path, "%.*s/model.safetensors", (int)(slash - own), own);
    qn_test_ok(qn_safetensors_open(path, &model));
    return model;
}

/* The logit of a query head that takes part in the softmax and takes nothing; minus infinity: none. */
static double sink_of(const states *s, int64_t layer, int64_t head)
{
    float value;
    if (!s->config->attention_sinks) return -HUGE_VAL;
    const qn_tensor_view *v = qn_test_tensor(s->model, "model.layers.%d.self_attn.sinks", (int)layer);
    const qn_type *type = qn_type_get(v->dtype);
    type->decode(type, (const char *)v->data + (size_t)head * type->block_bytes, 1, &value);
    return (double)value;
}

/* 1: an index shows the row position j: a block that it chose, or one behind the last whole block. */
static int is_chosen(const qn_model_config *c, const layer_rows *chosen, int64_t row, int64_t j)
{
    const int32_t *blocks = (const int32_t *)(const void *)chosen->data + row * chosen->dim;
    const int64_t each = c->index.index_kpool;
    if (!c->index.no_tail && j / each >= (row + 1) / each) return 1;
    for (int64_t i = 0; i < chosen->dim; i++)
        if (blocks[i] == j / each) return 1;
    return 0;
}

/* softmax(softcap(scale * q.k)) of one row and key head, over the positions in its window. */
static void attend(const states *s, int64_t layer, const float *q, int64_t head, int64_t row, double sink,
                   double *out)
{
    const qn_model_config *c = s->config;
    const layer_rows *k = &s->keys[c->layers[layer].kv_layer];
    int64_t window = c->layers[layer].window, begin = window && row >= window ? row - window + 1 : 0,
            end = c->encoder.both_ways ? k->rows : row + 1;
    if (window && row + window < end) end = row + window;
    const int64_t chunk = c->layers[layer].chunk, own = chunk ? row - row % chunk : 0;
    if (begin < own) begin = own;
    const layer_rows *chosen = c->layers[layer].indexed ? &s->chosen[c->layers[layer].index_layer] : NULL;
    double cap = (double)c->attn_logit_softcapping, most = sink > -1e300 ? sink : -1e300, sum;
    for (int64_t j = 0; j < k->rows; j++) out[j] = 0;
    for (int64_t j = begin; j < end; j++) {
        const float *key = k->data + (j * k->heads + head) * k->dim;
        double dot = 0;
        for (int64_t d = 0; d < k->dim; d++) dot += (double)q[d] * (double)key[d];
        dot *= (double)c->attention_scale;
        out[j] = cap > 0 ? cap * tanh(dot / cap) : dot;
        if (chosen && !is_chosen(c, chosen, row, j)) out[j] = -HUGE_VAL;
        if (out[j] > most) most = out[j];
    }
    sum = exp(sink - most);
    for (int64_t j = begin; j < end; j++) sum += out[j] = exp(out[j] - most);
    for (int64_t j = begin; j < end; j++) out[j] /= sum;
}

static double compare_attention(const states *s, int64_t layer, const qn_tensor_view *v)
{
    const layer_rows *q = &s->queries[layer], *k = &s->keys[s->config->layers[layer].kv_layer];
    const float *want = v->data;
    double worst = 0, *got = test_calloc((size_t)q->rows, sizeof *got);
    assert_true(k->rows == q->rows && k->dim == q->dim);
    assert_int_equal(v->n_elements, q->heads * q->rows * q->rows);
    for (int64_t h = 0; h < q->heads; h++)
        for (int64_t r = 0; r < q->rows; r++) {
            attend(s, layer, q->data + (r * q->heads + h) * q->dim, h / (q->heads / k->heads), r,
                   sink_of(s, layer, h), got);
            for (int64_t j = 0; j < q->rows; j++)
                note(&worst, fabs(got[j] - (double)want[(h * q->rows + r) * q->rows + j]));
        }
    test_free(got);
    return worst / largest(v);
}

static void finish(states *s)
{
    int n_hidden = 0, n_keys = 0;
    for (int64_t i = 0; i <= s->config->num_hidden_layers; i++) n_hidden += find(s, "hidden", i) != NULL;
    for (int64_t i = 0; i < s->config->num_hidden_layers; i++) {
        const qn_tensor_view *v = find(s, "attention", i);
        n_keys += find(s, "keys", i) != NULL;
        if (!v) continue;
        if (!s->queries[i].data || !s->keys[s->config->layers[i].kv_layer].data)
            fail_msg("attention.%lld is stored, but queries and keys were not seen", (long long)i);
        note_tensor(s, v, &s->errors.attention, compare_attention(s, i, v));
        s->errors.n_attention++;
    }
    assert_int_equal(s->errors.n_hidden, n_hidden);
    assert_int_equal(s->errors.n_keys, n_keys);
    for (int i = 0; i < LAYERS_MAX; i++) {
        test_free(s->queries[i].data);
        test_free(s->keys[i].data);
        test_free(s->chosen[i].data);
    }
}

/* ---- logits ------------------------------------------------------------------------------------------- */

typedef struct {
    const int32_t *positions;
    const float *expected;
    int64_t n, vocab, next;
    double worst;
} compare;

static qn_status compare_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    compare *c = user;
    for (; c->next < c->n && c->positions[c->next] < first + n; c->next++) {
        const float *got = logits + (c->positions[c->next] - first) * c->vocab,
                    *want = c->expected + c->next * c->vocab;
        for (int64_t i = 0; i < c->vocab; i++) note(&c->worst, fabs((double)got[i] - (double)want[i]));
    }
    return QN_OK;
}

double qn_golden_logits(qn_engine *e, const qn_safetensors *st, int i, qn_golden_errors *errors)
{
    static states s;
    const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", i),
                         *positions = qn_test_tensor(st, "prompt%d.positions", i);
    compare c = {.positions = positions->data,
                 .expected = qn_test_tensor(st, "prompt%d.logits", i)->data,
                 .n = positions->n_elements,
                 .vocab = qn_engine_config(e)->vocab_size};
    qn_sequence *sequence = qn_test_sequence(e);
    s = (states){.st = st, .config = qn_engine_config(e)};
    if (errors) qn_engine_set_probe(e, see, &s);
    qn_feed feed = {sequence, ids->data, ids->n_elements, QN_LOGITS_ALL};
    qn_test_ok(qn_engine_step(e, 1, &feed, compare_logits, NULL, &c));
    qn_engine_set_probe(e, NULL, NULL);
    assert_int_equal(c.next, c.n);
    qn_sequence_free(sequence);
    if (errors) {
        if (s.config->attention_sinks) s.model = open_model(st);
        finish(&s);
        qn_safetensors_close(s.model);
        *errors = s.errors;
    }
    return c.worst;
}

const qn_tensor_view *qn_golden_tensor(const qn_safetensors *st, const char *prompt, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", prompt, what);
    const qn_tensor_view *v = qn_safetensors_find(st, name);
    if (!v) fail_msg("there is no tensor %s", name);
    return v;
}

double qn_golden_encoded(qn_engine *e, const qn_safetensors *st, const char *prompt, const char *want,
                         qn_golden_errors *errors)
{
    static states s;
    const qn_tensor_view *ids = qn_golden_tensor(st, prompt, "ids"),
                         *expected = qn_golden_tensor(st, prompt, want);
    char types[64];
    snprintf(types, sizeof types, "%s.types", prompt);
    const qn_tensor_view *t = qn_safetensors_find(st, types);
    const int scores = strcmp(want, "score") == 0;
    const qn_encode_row row = {ids->data, t ? t->data : NULL, ids->n_elements, -1};
    const float *got, *numbers = expected->data;
    double worst = 0;
    s = (states){.st = st, .config = qn_engine_config(e)};
    if (errors) qn_engine_set_probe(e, see, &s);
    qn_test_ok(scores ? qn_engine_classify(e, 1, &row, &got) : qn_engine_encode(e, 1, &row, &got));
    qn_engine_set_probe(e, NULL, NULL);
    assert_int_equal(expected->n_elements, scores ? qn_engine_config(e)->encoder.num_labels
                                                  : ids->n_elements * qn_engine_encoded_size(e));
    for (int64_t i = 0; i < expected->n_elements; i++)
        note(&worst, fabs((double)got[i] - (double)numbers[i]));
    if (errors) {
        finish(&s);
        *errors = s.errors;
    }
    return worst;
}

/* How much higher the logit of `picked` is than that of `expected`, behind ids[0..n) and golden[0..k). */
static double margin_of(qn_engine *e, const qn_tensor_view *ids, const int32_t *golden, int64_t k,
                        int32_t picked)
{
    const int64_t n = ids->n_elements + k, vocab = qn_engine_config(e)->vocab_size;
    int32_t *all = test_calloc((size_t)n, sizeof *all);
    float *logits = test_calloc((size_t)(n * vocab), sizeof *logits);
    memcpy(all, ids->data, (size_t)ids->n_elements * sizeof *all);
    memcpy(all + ids->n_elements, golden, (size_t)k * sizeof *all);
    qn_test_logits(e, all, n, 0, logits);
    const float *last = logits + (n - 1) * vocab;
    const double margin = (double)last[picked] - (double)last[golden[k]];
    test_free(logits);
    test_free(all);
    return margin;
}

void qn_golden_greedy(qn_engine *e, const qn_safetensors *st, int i, double margin, const char *kind)
{
    int32_t picked[64];
    const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", i),
                         *greedy = qn_test_tensor(st, "prompt%d.greedy", i);
    const int32_t *golden = greedy->data;
    assert_true(greedy->n_elements <= 64);
    qn_test_greedy(e, ids->data, ids->n_elements, picked, greedy->n_elements);
    for (int64_t k = 0; k < greedy->n_elements; k++) {
        if (picked[k] == golden[k]) continue;
        if (margin > 0 && margin_of(e, ids, golden, k, picked[k]) <= margin) return;
        fail_msg("%s prompt %d: greedy token %ld is %d, expected %d", kind, i, k, picked[k], golden[k]);
    }
}
