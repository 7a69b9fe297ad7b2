/* qn_score and qn_embed on tiny models: against the golden logits, the windows of the definition, and
 * qn_model_logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { LENGTH = 90, VOCAB_MAX = 1024, TEXTS = 5 };

static qn_model *open_model(const char *kind, qn_model_options o)
{
    char path[64];
    qn_model *model = NULL;
    snprintf(path, sizeof path, "models/%s", kind);
    if (qn_model_open(qn_test_need_fixture(path), &o, &model) != QN_OK) fail_msg("%s", qn_last_error());
    return model;
}

static void make_ids(int32_t *ids)
{
    for (int i = 0; i < LENGTH; i++) ids[i] = 1 + (i * 37 + i / 5) % 250;
}

typedef struct {
    int64_t width;
    float values[LENGTH * VOCAB_MAX];
} whole;

static qn_status keep(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    whole *w = user;
    memcpy(w->values + position * w->width, values, (size_t)(n * w->width) * sizeof *values);
    return QN_OK;
}

static void compute(qn_model *model, const int32_t *row, int64_t n, int hidden, whole *w)
{
    qn_model_info info;
    qn_logits_options o = {.hidden = hidden};
    assert_int_equal(qn_model_get_info(model, &info), QN_OK);
    w->width = hidden ? info.hidden_size : info.vocab_size;
    assert_true(w->width <= VOCAB_MAX && n <= LENGTH);
    assert_int_equal(qn_model_logits(model, &(qn_ids){row, n}, 1, &o, keep, w), QN_OK);
}

static double logprob(const float *x, int64_t n, int32_t id)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i]);
    return (double)x[id] - log(sum);
}

/* ---- score ---- */

typedef struct {
    size_t n_results;
    qn_score_result result[TEXTS];
    char message[TEXTS][200];
    double logprobs[TEXTS][LENGTH];
    int32_t ids[TEXTS][LENGTH];
} scores;

static qn_status note(void *user, const qn_score_result *r)
{
    scores *s = user;
    size_t i = r->i_prompt;
    assert_int_equal(i, s->n_results++);
    s->result[i] = *r;
    snprintf(s->message[i], sizeof s->message[i], "%s", r->message ? r->message : "");
    if (!r->ids) return QN_OK;
    memcpy(s->ids[i], r->ids, (size_t)r->n_tokens * sizeof *r->ids);
    memcpy(s->logprobs[i], r->logprobs, (size_t)r->n_tokens * sizeof *r->logprobs);
    return QN_OK;
}

static void score(qn_model *model, const qn_prompt *prompts, size_t n, const qn_score_options *o, scores *s)
{
    memset(s, 0, sizeof *s);
    if (qn_score(model, prompts, n, o, note, s) != QN_OK) fail_msg("%s", qn_last_error());
    assert_int_equal(s->n_results, n);
}

static void test_golden(void **state)
{
    static const char *const kinds[] = {"llama", "gemma2", "qwen3", "mistral"};
    static scores s;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char path[80];
        qn_safetensors *st = NULL;
        snprintf(path, sizeof path, "models/%s/expected.safetensors", kinds[k]);
        qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
        qn_model *model = open_model(kinds[k], (qn_model_options){.precision = QN_PRECISION_EXACT});
        const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", 1),
                             *logits = qn_test_tensor(st, "prompt%d.logits", 1);
        int64_t n = ids->n_elements, n_vocab = logits->n_elements / n;
        double want = 0;
        for (int64_t i = 1; i < n; i++)
            want += logprob((const float *)logits->data + (i - 1) * n_vocab, n_vocab,
                            ((const int32_t *)ids->data)[i]);
        score(model, &(qn_prompt){.rows = &(qn_ids){ids->data, n}, .n_rows = 1}, 1, NULL, &s);
        assert_int_equal(s.result[0].n_tokens, n);
        assert_int_equal(s.result[0].n_scored, n - 1);
        assert_true(fabs(s.result[0].logprob - want) < 4e-4 * (double)n);
        assert_true(fabs(s.result[0].perplexity / exp(-want / (double)(n - 1)) - 1) < 1e-3);
        qn_model_close(&model);
        qn_safetensors_close(st);
    }
}

/* The definition: windows at multiples of the stride, each predicts what no window before has seen. */
static void strided(qn_model *model, const int32_t *ids, int64_t window, int64_t stride, double *want)
{
    static whole w;
    for (int64_t i = 0; i < LENGTH; i++) want[i] = NAN;
    for (int64_t begin = 0, seen = 0; seen < LENGTH; begin += stride) {
        int64_t end = begin + window < LENGTH ? begin + window : LENGTH;
        compute(model, ids + begin, end - begin, 0, &w);
        for (int64_t i = seen > begin + 1 ? seen : begin + 1; i < end; i++)
            want[i] = logprob(w.values + (i - begin - 1) * w.width, w.width, ids[i]);
        seen = end;
    }
}

static void test_windows(void **state)
{
    static const struct {
        int64_t window, stride;
    } cases[] = {{90, 0}, {89, 1}, {32, 16}, {32, 32}, {30, 30}, {89, 89}, {20, 7}, {2, 1}, {2, 2}};
    static scores s, other;
    int32_t ids[LENGTH];
    double want[LENGTH];
    make_ids(ids);
    qn_model *model = open_model("gemma3_text", (qn_model_options){.parallel_slots = 4}),
             *narrow = open_model("gemma3_text", (qn_model_options){.prefill_chunk = 9});
    const qn_ids rows[] = {{ids, LENGTH}, {ids, 25}};
    const qn_prompt prompts[] = {{.rows = &rows[0], .n_rows = 1}, {.rows = &rows[1], .n_rows = 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const qn_score_options o = {.window = cases[c].window, .stride = cases[c].stride, .tokens = 1};
        score(model, prompts, 1 + (c > 2), &o, &s);
        strided(model, ids, o.window, o.stride ? o.stride : LENGTH, want);
        double sum = 0;
        int64_t n = 0;
        for (int i = 0; i < LENGTH; i++) {
            assert_int_equal(s.ids[0][i], ids[i]);
            assert_int_equal(isnan(s.logprobs[0][i]), isnan(want[i]));
            if (isnan(want[i])) continue;
            assert_true(fabs(s.logprobs[0][i] - want[i]) < 1e-5);
            sum += want[i];
            n++;
        }
        assert_int_equal(s.result[0].n_scored, n);
        assert_true(fabs(s.result[0].logprob - sum) < 1e-4);
        assert_true(fabs(s.result[0].perplexity / exp(-sum / (double)n) - 1) < 1e-5);
        score(narrow, prompts, 1, &o, &other);
        assert_memory_equal(other.logprobs[0], s.logprobs[0], sizeof s.logprobs[0]);
        assert_true(other.result[0].logprob == s.result[0].logprob);
    }
    qn_model_close(&model);
    qn_model_close(&narrow);
}

static void test_scores_refused(void **state)
{
    static scores s;
    int32_t ids[LENGTH];
    make_ids(ids);
    qn_model *model = open_model("llama", (qn_model_options){.context_size = 40});
    const qn_ids rows[] = {{ids, 41}, {ids, 1}, {ids, 40}};
    const qn_prompt prompts[] = {
        {.rows = &rows[0], .n_rows = 1}, {.rows = &rows[1], .n_rows = 1}, {.rows = &rows[2], .n_rows = 1}};
    score(model, prompts, 3, NULL, &s);
    assert_int_equal(s.result[0].status, QN_E_ARG);
    assert_non_null(strstr(s.message[0], "the text has 41 tokens, but the window holds 40"));
    assert_int_equal(s.result[1].status, QN_E_ARG);
    assert_int_equal(s.result[2].status, QN_OK);
    score(model, prompts, 1, &(qn_score_options){.stride = 20}, &s);
    assert_int_equal(s.result[0].status, QN_OK);
    const qn_score_options bad[] = {
        {.window = 41}, {.window = 1}, {.window = -5}, {.stride = 41}, {.stride = -1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(qn_score(model, prompts, 1, &bad[i], note, &s), QN_E_ARG);
    assert_int_equal(qn_score(model, prompts, 0, NULL, note, &s), QN_E_ARG);
    assert_int_equal(qn_score(model, NULL, 1, NULL, note, &s), QN_E_ARG);
    qn_model_close(&model);
}

/* ---- embed ---- */

typedef struct {
    size_t n_results;
    qn_embed_result result[TEXTS];
    float vector[TEXTS][VOCAB_MAX];
} vectors;

static qn_status note_vector(void *user, const qn_embed_result *r)
{
    vectors *v = user;
    assert_int_equal(r->i_prompt, v->n_results++);
    v->result[r->i_prompt] = *r;
    if (r->vector) memcpy(v->vector[r->i_prompt], r->vector, (size_t)r->n_values * sizeof *r->vector);
    return QN_OK;
}

static void embed(qn_model *model, const qn_prompt *prompts, size_t n, const qn_embed_options *o, vectors *v)
{
    memset(v, 0, sizeof *v);
    if (qn_embed(model, prompts, n, o, note_vector, v) != QN_OK) fail_msg("%s", qn_last_error());
    assert_int_equal(v->n_results, n);
}

/* Number k of the vector of n hidden states. */
static double pooled(qn_pooling pooling, const whole *w, int64_t n, int64_t k)
{
    double sum = 0, most = -INFINITY, weights = 0;
    for (int64_t t = 0; t < n; t++) {
        const double x = (double)w->values[t * w->width + k];
        sum += pooling == QN_POOLING_WEIGHTED_MEAN ? (double)(t + 1) * x : x;
        weights += (double)(t + 1);
        if (x > most) most = x;
    }
    switch (pooling) {
    case QN_POOLING_LAST:
        return (double)w->values[(n - 1) * w->width + k];
    case QN_POOLING_CLS:
        return (double)w->values[k];
    case QN_POOLING_MAX:
        return most;
    case QN_POOLING_WEIGHTED_MEAN:
        return sum / weights;
    case QN_POOLING_MEAN_SQRT:
        return sum / sqrt((double)n);
    default: /* this model's files say nothing */
        return sum / (double)n;
    }
}

static void test_vectors(void **state)
{
    static vectors v, alone;
    static whole w;
    int32_t ids[LENGTH];
    make_ids(ids);
    qn_model *model = open_model("qwen3", (qn_model_options){.parallel_slots = 3}),
             *narrow = open_model("qwen3", (qn_model_options){.prefill_chunk = 6, .n_threads = 1});
    const qn_ids rows[] = {{ids, 40}, {ids + 3, 1}, {ids + 9, 70}};
    const qn_prompt prompts[TEXTS] = {{.rows = &rows[0], .n_rows = 1},
                                      {.rows = &rows[1], .n_rows = 1},
                                      {.text = ""},
                                      {.rows = &rows[2], .n_rows = 1},
                                      {.text = "The mill"}};
    for (int pooling = 0; pooling < QN_POOLING_COUNT; pooling++) {
        for (int normalise = 0; normalise < 2; normalise++) {
            const qn_embed_options o = {.pooling = (qn_pooling)pooling, .normalise = normalise};
            embed(model, prompts, TEXTS, &o, &v);
            assert_int_equal(v.result[2].status, QN_E_ARG); /* this tokenizer puts nothing around a text */
            assert_null(v.result[2].vector);
            for (int i = 0; i < TEXTS; i++) {
                if (i == 2) continue;
                assert_int_equal(v.result[i].status, QN_OK);
                embed(narrow, &prompts[i], 1, &o, &alone);
                assert_memory_equal(alone.vector[0], v.vector[i], sizeof v.vector[i]);
                if (i == 4) continue;
                const qn_ids *row = prompts[i].rows;
                double squares = 0, length = 1;
                compute(model, row->ids, row->n_ids, 1, &w);
                assert_int_equal(v.result[i].n_values, w.width);
                double want[VOCAB_MAX] = {0};
                for (int64_t k = 0; k < w.width; k++) {
                    want[k] = pooled((qn_pooling)pooling, &w, row->n_ids, k);
                    squares += want[k] * want[k];
                }
                if (normalise) length = sqrt(squares);
                for (int64_t k = 0; k < w.width; k++)
                    assert_true(fabs((double)v.vector[i][k] - want[k] / length) < 1e-6 * (1 + fabs(want[k])));
            }
        }
    }
    assert_int_equal(qn_embed(model, prompts, 0, NULL, note_vector, &v), QN_E_ARG);
    assert_int_equal(qn_embed(model, prompts, 1, &(qn_embed_options){.pooling = 9}, note_vector, &v),
                     QN_E_ARG);
    assert_int_equal(qn_embed(model, prompts, 1, NULL, NULL, &v), QN_E_ARG);
    assert_string_equal(qn_pooling_name(QN_POOLING_CLS), "cls");
    qn_model_close(&model);
    qn_model_close(&narrow);
}

/* The engine's logits, but no number from the third position on. */
typedef struct {
    qn_logits_fn *fn;
    void *user;
    int64_t vocab_size;
} spoiling;

static qn_status spoil(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    const spoiling *s = user;
    float *bad = test_malloc((size_t)(n * s->vocab_size) * sizeof *bad);
    memcpy(bad, logits, (size_t)(n * s->vocab_size) * sizeof *bad);
    for (int64_t i = 0; i < n; i++)
        if (position + i >= 2) bad[i * s->vocab_size] = NAN;
    qn_status status = s->fn(s->user, row, position, n, bad);
    test_free(bad);
    return status;
}

static qn_status spoiled_logits(void *model, const qn_ids *rows, int64_t n_rows,
                                const qn_logits_options *options, qn_logits_fn *fn, void *user)
{
    qn_model_info info;
    qn_test_ok(qn_backend_get("native")->get_info(model, &info));
    spoiling s = {fn, user, info.vocab_size};
    return qn_backend_get("native")->logits(model, rows, n_rows, options, spoil, &s);
}

/* Logits that are no numbers fail their text alone; a backend without ids of prompts takes rows alone. */
static void test_lacking_backends(void **state)
{
    static qn_backend spoiled, wordless;
    static scores s;
    int32_t ids[LENGTH];
    make_ids(ids);
    const qn_ids rows[] = {{ids, 30}, {ids, 2}};
    const qn_prompt prompts[] = {{.rows = rows, .n_rows = 1}, {.rows = rows + 1, .n_rows = 1}},
                    text = {.text = "The mill"};
    spoiled = wordless = *qn_backend_get("native");
    spoiled.name = "spoiled";
    spoiled.logits = spoiled_logits;
    wordless.name = "wordless";
    wordless.prompt_ids = NULL;
    qn_test_ok(qn_backend_register(&spoiled));
    qn_test_ok(qn_backend_register(&wordless));
    qn_model *model = open_model("llama", (qn_model_options){.backend = "spoiled"});
    score(model, prompts, 2, NULL, &s);
    assert_int_equal(s.result[0].status, QN_E_INTERNAL);
    qn_test_ok(s.result[1].status);
    qn_model_close(&model);
    model = open_model("llama", (qn_model_options){.backend = "wordless"});
    score(model, &text, 1, NULL, &s);
    assert_int_equal(s.result[0].status, QN_E_UNSUPPORTED);
    score(model, prompts, 2, NULL, &s);
    qn_test_ok(s.result[0].status);
    qn_model_close(&model);
}

static void test_allocation_failures(void **state)
{
    static scores s;
    static vectors v;
    int32_t ids[LENGTH];
    make_ids(ids);
    const qn_ids row = {ids, 30};
    const qn_prompt prompts[] = {{.rows = &row, .n_rows = 1}, {.text = "The mill"}};
    const qn_score_options o = {.window = 20, .stride = 10, .tokens = 1};
    qn_model *model = open_model("llama", (qn_model_options){.no_prefix_cache = 1});
    score(model, prompts, 2, &o, &s); /* what is taken once is there */
    embed(model, prompts, 2, NULL, &v);
    int64_t before = qn_mem_live_blocks();
    for (int which = 0; which < 2; which++) {
        for (int64_t i = 1;; i++) {
            assert_true(i < 2000);
            s.n_results = v.n_results = 0;
            int64_t made = qn_mem_allocations();
            qn_mem_fail_nth(i);
            qn_status status = which ? qn_embed(model, prompts, 2, NULL, note_vector, &v)
                                     : qn_score(model, prompts, 2, &o, note, &s);
            qn_mem_fail_nth(0);
            made = qn_mem_allocations() - made;
            assert_int_equal(qn_mem_live_blocks(), before);
            assert_true(status == QN_OK || status == QN_E_NOMEM);
            if (made < i) break;
        }
    }
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),           cmocka_unit_test(test_windows),
        cmocka_unit_test(test_scores_refused),   cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_lacking_backends), cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
