/* Adapters on encoders against peft's numbers (tools/adapter_encoders_golden.py): published names and those of
 * transformers' classes, fused projections, the pooler, heads that are saved whole; from safetensors and from GGUF. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/machine/encode.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/formula.h"
#include "tests/support/scratch.h"

enum { IDS_MAX = 16, FLOATS_MAX = IDS_MAX * 64 };
static const float tolerance = 3e-4f;
static const qn_engine_options exact = {.precision = QN_PRECISION_EXACT, .n_threads = 2};

static json_t *read_forms(void)
{
    json_t *all = json_load_file(qn_test_need_fixture("adapter_encoders.json"), 0, NULL);
    assert_non_null(all);
    return all;
}

static int64_t read_ids(const json_t *all, int32_t *out)
{
    const json_t *ids = json_object_get(all, "ids");
    assert_true(json_array_size(ids) <= IDS_MAX);
    for (size_t i = 0; i < json_array_size(ids); i++)
        out[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    return (int64_t)json_array_size(ids);
}

/* Returns the values that the form has: scores, or the last row's. out [FLOATS_MAX]: all. */
static const float *compute(qn_engine *e, const char *adapter, const int32_t *ids, int64_t n, float *out)
{
    int32_t id;
    const float *got;
    const int64_t width = qn_engine_encoded_size(e), labels = qn_engine_config(e)->encoder.num_labels;
    qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), adapter, &id));
    const qn_encode_row row = {ids, NULL, n, id};
    assert_true(n * width <= FLOATS_MAX);
    qn_test_ok(labels ? qn_engine_classify(e, 1, &row, &got) : qn_engine_encode(e, 1, &row, &got));
    memset(out, 0, FLOATS_MAX * sizeof *out);
    memcpy(out, got, (size_t)(labels ? labels : n * width) * sizeof *out);
    qn_adapters_release(qn_engine_adapters(e), id);
    return labels ? out : out + (n - 1) * width;
}

/* Rows without the adapter keep their bits beside it, and when it is gone. */
static void expect_form(const char *path, const json_t *all, const json_t *form)
{
    static float bare[FLOATS_MAX], with[FLOATS_MAX], again[FLOATS_MAX];
    const json_t *want = json_object_get(form, "values");
    const char *adapter = qn_test_formula_adapter(form);
    int32_t ids[IDS_MAX];
    const int64_t n = read_ids(all, ids);
    qn_buf notes = {0};
    qn_engine *e = qn_test_engine(path, NULL, exact);
    compute(e, "none", ids, n, bare);
    qn_test_ok(qn_engine_adapter_load(e, "it", adapter, 1, &notes));
    const float *got = compute(e, "it", ids, n, with);
    for (size_t i = 0; i < json_array_size(want); i++) {
        const float expected = (float)json_number_value(json_array_get(want, i));
        if (!(fabsf(got[i] - expected) <= tolerance))
            fail_msg("%s, %s: value %zu is %g, expected %g", path,
                     json_string_value(json_object_get(form, "name")), i, (double)got[i], (double)expected);
    }
    compute(e, "none", ids, n, again);
    assert_memory_equal(bare, again, sizeof bare);
    qn_test_ok(qn_engine_adapter_unload(e, "it"));
    compute(e, "none", ids, n, again);
    assert_memory_equal(bare, again, sizeof bare);
    qn_buf_free(&notes);
    qn_engine_close(e);
    qn_test_remove(adapter);
}

/* format: of the path of a kind. Kinds that are not there are left out; at least one must be. */
static void expect_all(const char *format, int with_heads)
{
    json_t *all = read_forms(), *form;
    size_t i;
    int n = 0;
    json_array_foreach(json_object_get(all, "forms"), i, form)
    {
        char path[128];
        snprintf(path, sizeof path, format, json_string_value(json_object_get(form, "model")));
        const char *found = qn_test_fixture(path);
        const int saves_head = json_object_get(json_object_get(form, "config"), "modules_to_save") != NULL;
        /* EmbeddingGemma's file is of another model: it has no word for the layers that slide. */
        if (!found || (saves_head && !with_heads) || strstr(path, "gemma.gguf")) continue;
        expect_form(found, all, form);
        n++;
    }
    json_decref(all);
    if (!n) qn_test_leave_out("the encoders are not in this clone");
}

static void safetensors(void **state)
{
    (void)state;
    expect_all("models/%s", 1);
}

static void gguf(void **state)
{
    (void)state;
    expect_all("gguf/%s.gguf", 0);
}

/* A file that calls xlm-roberta bert cannot place what peft saves of the head. */
static void refused(void **state)
{
    json_t *all = read_forms(), *form;
    size_t i;
    (void)state;
    json_array_foreach(json_object_get(all, "forms"), i, form)
    {
        if (strcmp(json_string_value(json_object_get(form, "model")), "xlm_roberta_reranker") != 0) continue;
        qn_buf notes = {0};
        const char *adapter = qn_test_formula_adapter(form);
        qn_engine *e = qn_test_engine(qn_test_need_fixture("gguf/xlm_roberta_reranker.gguf"), NULL, exact);
        assert_int_equal(qn_engine_adapter_load(e, "it", adapter, 1, &notes), QN_E_UNSUPPORTED);
        assert_non_null(strstr(qn_last_error(), "classifier.dense"));
        qn_buf_free(&notes);
        qn_engine_close(e);
        qn_test_remove(adapter);
    }
    json_decref(all);
}

/* Of GGUF files where these were made (make test-encoders-gguf). */
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(safetensors)},
                            of_gguf[] = {cmocka_unit_test(gguf), cmocka_unit_test(refused)};
    const int failed = cmocka_run_group_tests_name("adapters on encoders", tests, NULL, NULL);
    if (failed || !qn_test_fixture("gguf/xlm_roberta_reranker.gguf")) return failed;
    return cmocka_run_group_tests_name("adapters on encoders in GGUF", of_gguf, NULL, NULL);
}
