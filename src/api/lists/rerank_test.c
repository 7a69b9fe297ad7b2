/* qn_rerank on tiny models: the golden scores of every reranker, from ids and from texts; what is refused. */
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
#include <jansson.h>

enum { PAIRS_MAX = 16 };

typedef struct {
    size_t n;
    qn_rerank_result result[PAIRS_MAX];
    char message[PAIRS_MAX][200];
} results;

static qn_status note(void *user, const qn_rerank_result *r)
{
    results *out = user;
    assert_int_equal(r->i_pair, out->n++);
    out->result[r->i_pair] = *r;
    snprintf(out->message[r->i_pair], sizeof out->message[0], "%s", r->message ? r->message : "");
    return QN_OK;
}

static qn_model *open_model(const char *kind)
{
    char path[64];
    qn_model *model = NULL;
    snprintf(path, sizeof path, "families2/%s", kind);
    const qn_model_options o = {.precision = QN_PRECISION_EXACT};
    if (qn_model_open(qn_test_need_fixture(path), &o, &model) != QN_OK) fail_msg("%s", qn_last_error());
    return model;
}

static void rerank(qn_model *model, const qn_pair *pairs, size_t n, const qn_rerank_options *o, results *out)
{
    memset(out, 0, sizeof *out);
    if (qn_rerank(model, pairs, n, o, note, out) != QN_OK) fail_msg("%s", qn_last_error());
    assert_int_equal(out->n, n);
}

static void check(const results *got, const qn_safetensors *st)
{
    for (size_t i = 0; i < got->n; i++) {
        char name[40];
        snprintf(name, sizeof name, "pair%zu.score", i);
        const qn_tensor_view *score = qn_safetensors_find(st, name);
        assert_non_null(score);
        if (got->result[i].status != QN_OK) fail_msg("%s", got->message[i]);
        assert_true(fabs(got->result[i].score - (double)*(const float *)score->data) < 1e-4);
        assert_true(got->result[i].probability >= 0 && got->result[i].probability <= 1);
    }
}

static void test_golden(void **state)
{
    static const char *const kinds[] = {"qwen3_reranker", "bert_reranker", "xlm_roberta_reranker"};
    static results got;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char path[80];
        qn_safetensors *st = NULL;
        json_t *expected = NULL;
        qn_pair texts[PAIRS_MAX] = {0}, ids[PAIRS_MAX] = {0};
        size_t n = 0;
        json_t *pair;
        snprintf(path, sizeof path, "families2/%s/expected.safetensors", kinds[k]);
        qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
        snprintf(path, sizeof path, "families2/%s/expected.json", kinds[k]);
        expected = json_load_file(qn_test_need_fixture(path), 0, NULL);
        assert_non_null(expected);
        qn_model *model = open_model(kinds[k]);
        json_array_foreach(json_object_get(expected, "pairs"), n, pair)
        {
            char name[40];
            assert_true(n < PAIRS_MAX);
            texts[n] = (qn_pair){.query = json_string_value(json_object_get(pair, "query")),
                                 .document = json_string_value(json_object_get(pair, "document"))};
            snprintf(name, sizeof name, "pair%zu.ids", n);
            const qn_tensor_view *row = qn_safetensors_find(st, name);
            snprintf(name, sizeof name, "pair%zu.types", n);
            const qn_tensor_view *types = qn_safetensors_find(st, name);
            ids[n] =
                (qn_pair){.ids = row->data, .n_ids = row->n_elements, .types = types ? types->data : NULL};
        }
        rerank(model, ids, n, NULL, &got);
        check(&got, st);
        rerank(model, texts, n, NULL, &got);
        check(&got, st);
        for (size_t i = 0; i < n; i++) assert_int_equal(got.result[i].n_tokens, ids[i].n_ids);
        qn_model_close(&model);
        json_decref(expected);
        qn_safetensors_close(st);
    }
}

/* A pair has the same bits alone and among others; one that fails leaves the others alone. */
static void test_company(void **state)
{
    static results all, one;
    qn_model *model = open_model("qwen3_reranker");
    char *long_text = qn_alloc(100001);
    memset(long_text, 'a', 100000);
    long_text[100000] = 0;
    const qn_pair pairs[] = {{.query = "What is a quern?", .document = "A mill for the hand."},
                             {.query = "What is a quern?", .document = long_text},
                             {.query = "What is <|im_end|>?", .document = ""},
                             {.query = "What is a quern?"}};
    rerank(model, pairs, 4, NULL, &all);
    for (size_t i = 0; i < 3; i += 2) {
        rerank(model, &pairs[i], 1, NULL, &one);
        assert_true(one.result[0].score == all.result[i].score);
    }
    assert_int_equal(all.result[1].status, QN_E_ARG);
    assert_non_null(strstr(all.message[1], "context"));
    assert_int_equal(all.result[3].status, QN_E_ARG);
    qn_model_close(&model);
    qn_free(long_text);
}

static void test_options(void **state)
{
    static results plain, other;
    qn_model *model = open_model("qwen3_reranker");
    const qn_pair pair = {.query = "What is a quern?", .document = "A mill for the hand."};
    const int32_t ids[] = {1, 2}, types[] = {0, 1}, wrong[] = {0, 1000};
    rerank(model, &pair, 1, &(qn_rerank_options){.kind = QN_RERANK_YES_NO}, &plain);
    rerank(model, &pair, 1, &(qn_rerank_options){.instruction = "Find recipes"}, &other);
    assert_true(plain.result[0].score != other.result[0].score);
    rerank(model, &(qn_pair){.ids = ids, .n_ids = 2, .types = types}, 1, NULL, &other);
    assert_int_equal(other.result[0].status, QN_E_ARG);
    assert_int_equal(qn_rerank(model, &pair, 0, NULL, note, &other), QN_E_ARG);
    assert_int_equal(
        qn_rerank(model, &pair, 1, &(qn_rerank_options){.kind = QN_RERANK_CROSS_ENCODER}, note, &other),
        QN_E_UNSUPPORTED);
    assert_int_equal(
        qn_rerank(model, &pair, 1, &(qn_rerank_options){.kind = QN_RERANK_KIND_COUNT}, note, &other),
        QN_E_ARG);
    qn_model_close(&model);
    model = open_model("bert_reranker");
    assert_int_equal(qn_rerank(model, &pair, 1, &(qn_rerank_options){.kind = QN_RERANK_YES_NO}, note, &other),
                     QN_E_UNSUPPORTED);
    rerank(model, &(qn_pair){.ids = ids, .n_ids = 2, .types = wrong}, 1, NULL, &other);
    assert_int_equal(other.result[0].status, QN_E_ARG);
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_company),
                                       cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
