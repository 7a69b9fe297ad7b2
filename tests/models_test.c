/* Whole models against golden values of the reference: logits, greedy ids, hidden states and keys, for every
 * fixture of a known family; and the promise that a sequence's bits do not depend on its company, on chunks
 * or on threads. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "format/safetensors.h"
#include "tests/fixtures.h"

static const char *const kinds[] = {"llama",
                                    "llama_rope3_tied",
                                    "llama_head_dim",
                                    "mistral",
                                    "qwen2",
                                    "qwen2_yarn",
                                    "qwen2_window",
                                    "deepseek_r1_distill",
                                    "qwen3",
                                    "qwen3_tied",
                                    "qwen3_no_model_type",
                                    "gemma",
                                    "gemma2",
                                    "gemma3_text",
                                    "gemma3",
                                    NULL};

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static qn_engine *open_engine(const char *path, qn_engine_options o)
{
    qn_source *src;
    qn_model_config config;
    qn_engine *e;
    OK(qn_source_open(path, NULL, &src));
    OK(qn_config_read(src, &config));
    OK(qn_engine_open(src, &config, &o, &e));
    qn_source_close(src);
    return e;
}

/* ---- golden values ------------------------------------------------------------------------------------ */

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
        for (int64_t i = 0; i < c->vocab; i++) {
            double d = fabs((double)got[i] - want[i]);
            if (!(d <= c->worst)) c->worst = d;
        }
    }
    return QN_OK;
}

static const qn_tensor_view *need(const qn_safetensors *st, const char *fmt, int i)
{
    char name[64];
    snprintf(name, sizeof name, fmt, i);
    const qn_tensor_view *v;
    OK(qn_safetensors_tensor(st, name, &v));
    return v;
}

static qn_status argmax_last(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    int64_t vocab = ((int64_t *)user)[0], best = 0;
    const float *last = logits + (n - 1) * vocab;
    for (int64_t i = 1; i < vocab; i++)
        if (last[i] > last[best]) best = i;
    ((int64_t *)user)[1] = best;
    return QN_OK;
}

typedef struct {
    const qn_safetensors *st;
    int64_t layers;
    int seen;
    double worst;
    int64_t first, rows, head_first; /* where the rows of this chunk begin, and their number */
} states;

static void check_state(void *user, const char *label, qn_prim prim, const void *data, const qn_operand *out,
                        const qn_sizes *sizes)
{
    states *s = user;
    char name[64];
    int64_t layer, rows = qn_shape_dim(&out->shape, 0, sizes);
    int is_key = sscanf(label, "layer.%ld.keys", &layer) == 1 && strstr(label, ".keys");
    if (is_key)
        snprintf(name, sizeof name, "keys.%ld", layer);
    else if (strcmp(label, "final_norm") == 0)
        snprintf(name, sizeof name, "hidden.%ld", s->layers);
    else if (sscanf(label, "hidden.%ld", &layer) == 1 && layer < s->layers)
        snprintf(name, sizeof name, "%s", label);
    else
        return;
    const qn_tensor_view *v = qn_safetensors_find(s->st, name);
    if (!v) return;
    /* a step may bring a part of the rows only: the body's rows begin where its last chunk ended, the head's
     * likewise */
    if (strcmp(label, "hidden.0") == 0) {
        s->first += s->rows;
        s->rows = rows;
    }
    int is_head = strcmp(label, "final_norm") == 0;
    int64_t first = is_head ? s->head_first : s->first;
    if (is_head) s->head_first += rows;
    const float *got = data, *want = v->data;
    int64_t heads = is_key ? out->shape.dim[1] : 1, dim = out->shape.dim[out->shape.n - 1];
    int64_t length = v->n_elements / (heads * dim);
    double worst = 0, largest = 0;
    assert_true(first + rows <= length);
    for (int64_t i = 0; i < v->n_elements; i++)
        if (fabs(want[i]) > largest) largest = fabs(want[i]);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < dim; d++) {
                /* keys are [kv_heads, L, head_dim] there, rows first here */
                double w = want[(h * length + first + r) * dim + d], g = got[(r * heads + h) * dim + d];
                if (!(fabs(w - g) <= worst)) worst = fabs(w - g);
            }
    s->seen++;
    if (!(worst / largest <= s->worst)) s->worst = worst / largest;
}

static void golden(void **state)
{
    const char *kind = *state;
    char path[128];
    snprintf(path, sizeof path, "models/%s", kind);
    const char *dir = qn_test_need_fixture(path);
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_safetensors *st;
    OK(qn_safetensors_open(qn_test_need_fixture(path), &st));
    qn_engine *e = open_engine(
        dir, (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2});
    const qn_model_config *c = qn_engine_config(e);
    for (int i = 0; i < 5; i++) {
        const qn_tensor_view *ids = need(st, "prompt%d.ids", i),
                             *positions = need(st, "prompt%d.positions", i);
        compare cmp = {positions->data,
                       need(st, "prompt%d.logits", i)->data,
                       positions->n_elements,
                       c->vocab_size,
                       0,
                       0};
        qn_sequence *seq;
        OK(qn_sequence_new(e, &seq));
        states probe = {.st = st, .layers = c->num_hidden_layers};
        if (i == 3) qn_engine_set_probe(e, check_state, &probe);
        qn_feed feed = {seq, ids->data, ids->n_elements, QN_LOGITS_ALL};
        OK(qn_engine_step(e, 1, &feed, compare_logits, NULL, &cmp));
        qn_engine_set_probe(e, NULL, NULL);
        assert_int_equal(cmp.next, cmp.n);
        if (!(cmp.worst <= 2e-4)) fail_msg("%s prompt %d: logits differ by %g", kind, i, cmp.worst);
        if (i == 3) {
            assert_true(probe.seen >= 3);
            if (!(probe.worst <= 1e-4))
                fail_msg("%s: hidden states or keys differ by %g of the largest", kind, probe.worst);
        }
        qn_sequence_free(seq);
        /* greedy, from scratch: one decode step a token */
        const qn_tensor_view *greedy = need(st, "prompt%d.greedy", i);
        int64_t pick[2] = {c->vocab_size, 0};
        OK(qn_sequence_new(e, &seq));
        feed = (qn_feed){seq, ids->data, ids->n_elements, QN_LOGITS_LAST};
        for (int64_t k = 0; k < greedy->n_elements; k++) {
            OK(qn_engine_step(e, 1, &feed, argmax_last, NULL, pick));
            if (pick[1] != ((const int32_t *)greedy->data)[k])
                fail_msg("%s prompt %d: greedy token %ld is %ld, expected %d", kind, i, k, pick[1],
                         ((const int32_t *)greedy->data)[k]);
            feed = (qn_feed){seq, (const int32_t *)greedy->data + k, 1, QN_LOGITS_LAST};
        }
        qn_sequence_free(seq);
    }
    qn_engine_close(e);
    qn_safetensors_close(st);
}

/* ---- the same bits ------------------------------------------------------------------------------------ */

typedef struct {
    float *out[8];
    int64_t vocab, done[8];
} collected;

static qn_status collect(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    collected *c = user;
    memcpy(c->out[feed] + (c->done[feed] + first) * c->vocab, logits, (size_t)(n * c->vocab) * sizeof(float));
    return QN_OK;
}

static void same_bits_of(const char *kind, const char *dir, qn_precision precision)
{
    static const int64_t lengths[8] = {70, 1, 33, 7, 64, 2, 40, 19};
    static const int chunks[] = {1, 7, 64, 512};
    int32_t ids[8][70];
    int64_t vocab = 0;
    float *alone[8] = {NULL};
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 70; j++) ids[i][j] = (i * 131 + j * 37 + j * j) % 400;
    for (int variant = 0; variant < 8; variant++) {
        /* 0: alone, whole; 1-3: 8 together, 1-3 threads; 4-6: chunks of 1, 7, 64; 7: token by token, as
         * decode does */
        qn_engine_options o = {.precision = precision,
                               .max_sequences = 8,
                               .n_threads = variant >= 1 && variant <= 3 ? variant : 2};
        o.max_rows = variant >= 4 && variant <= 6 ? chunks[variant - 4] : 512;
        qn_engine *e = open_engine(dir, o);
        vocab = qn_engine_config(e)->vocab_size;
        collected c = {.vocab = vocab};
        qn_sequence *seq[8];
        qn_feed feeds[8];
        for (int i = 0; i < 8; i++) {
            c.out[i] = test_calloc((size_t)(lengths[i] * vocab), sizeof(float));
            OK(qn_sequence_new(e, &seq[i]));
            feeds[i] = (qn_feed){seq[i], ids[i], lengths[i], QN_LOGITS_ALL};
        }
        if (variant == 0) {
            for (int i = 0; i < 8; i++) {
                collected one = {.out = {c.out[i]}, .vocab = vocab};
                OK(qn_engine_step(e, 1, &feeds[i], collect, NULL, &one));
            }
        } else if (variant < 7) {
            OK(qn_engine_step(e, 8, feeds, collect, NULL, &c));
        } else {
            for (int t = 0; t < 70; t++) {
                collected some = {.vocab = vocab};
                qn_feed one[8];
                int n = 0;
                for (int i = 0; i < 8; i++) {
                    if (t >= lengths[i]) continue;
                    one[n] = (qn_feed){seq[i], ids[i] + t, 1, QN_LOGITS_LAST};
                    some.out[n++] = c.out[i] + t * vocab;
                }
                OK(qn_engine_step(e, n, one, collect, NULL, &some));
            }
        }
        for (int i = 0; i < 8; i++) {
            if (variant == 0) {
                alone[i] = c.out[i];
            } else {
                if (memcmp(alone[i], c.out[i], (size_t)(lengths[i] * vocab) * sizeof(float)) != 0)
                    fail_msg("%s: bits of sequence %d differ in variant %d, precision %d", kind, i, variant,
                             precision);
                test_free(c.out[i]);
            }
            qn_sequence_free(seq[i]);
        }
        qn_engine_close(e);
    }
    for (int i = 0; i < 8; i++) test_free(alone[i]);
}

static void same_bits(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    const char *dir = qn_test_need_fixture(path);
    for (int p = 0; p < 3; p++) same_bits_of(*state, dir, (qn_precision)p);
}

int main(void)
{
    struct CMUnitTest tests[64];
    static char names[64][64];
    int n = 0;
    for (int i = 0; kinds[i]; i++) {
        snprintf(names[n], 64, "golden_%s", kinds[i]);
        tests[n] = (struct CMUnitTest){names[n], golden, NULL, NULL, (void *)(uintptr_t)kinds[i]};
        n++;
        snprintf(names[n], 64, "same_bits_%s", kinds[i]);
        tests[n] = (struct CMUnitTest){names[n], same_bits, NULL, NULL, (void *)(uintptr_t)kinds[i]};
        n++;
    }
    return _cmocka_run_group_tests("models", tests, (size_t)n, NULL, NULL);
}
