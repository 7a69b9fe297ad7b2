/* Adapters of the forms that peft writes beside plain factors, against peft's logits: the embedding's factors, saved
 * modules, biases, rows of tokens (tools/adapter_forms_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/formula.h"
#include "tests/support/models/adapter_dir.h"
#include "tests/support/scratch.h"

enum { IDS_MAX = 16, VOCAB_MAX = 1024 };
static const float tolerance = 3e-4f;

static const char *write_model(const json_t *all)
{
    const char *folder = qn_test_scratch();
    qn_test_formula_json(folder, "config.json", json_object_get(json_object_get(all, "bias"), "config"));
    qn_test_formula_tensors(qn_test_path(folder, "model.safetensors"), "",
                            json_object_get(json_object_get(all, "bias"), "tensors"), 1000);
    return folder;
}

/* ---- logits -------------------------------------------------------------------------------------------- */

typedef struct {
    float *last;
    int64_t at, vocab;
} last_row;

static qn_status keep_last(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const last_row *l = user;
    for (int64_t i = 0; i < n; i++)
        if (first + i == l->at) memcpy(l->last, logits + i * l->vocab, (size_t)l->vocab * sizeof *logits);
    return QN_OK;
}

/* Of the last row of ids with the adapter of this name, NULL: none. */
static void compute(qn_engine *e, const char *adapter, const int32_t *ids, int64_t n, float *out)
{
    int32_t id;
    qn_sequence *s = qn_test_sequence(e);
    qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), adapter ? adapter : "none", &id));
    qn_sequence_set_adapter(s, id);
    qn_feed feed = {s, ids, n, QN_LOGITS_ALL};
    last_row l = {out, n - 1, qn_engine_config(e)->vocab_size};
    assert_true(l.vocab <= VOCAB_MAX);
    qn_test_ok(qn_engine_step(e, 1, &feed, keep_last, NULL, &l));
    qn_sequence_free(s);
    qn_adapters_release(qn_engine_adapters(e), id);
}

static int64_t read_ids(const json_t *all, int32_t *out)
{
    const json_t *ids = json_object_get(all, "ids");
    for (size_t i = 0; i < json_array_size(ids); i++)
        out[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    return (int64_t)json_array_size(ids);
}

static void expect_form(const json_t *all, const json_t *form)
{
    const char *name = json_string_value(json_object_get(form, "name")),
               *model = json_string_value(json_object_get(form, "model"));
    const json_t *want = json_object_get(form, "logits");
    const char *adapter = qn_test_formula_adapter(form),
               *made = strcmp(model, "bias") == 0 ? write_model(all) : NULL;
    char path[128];
    int32_t ids[IDS_MAX];
    const int64_t n = read_ids(all, ids);
    float bare[VOCAB_MAX], with[VOCAB_MAX], again[VOCAB_MAX];
    qn_buf notes = {0};
    snprintf(path, sizeof path, "models/%s", model);
    qn_engine *e = qn_test_engine(made ? made : qn_test_need_fixture(path), NULL,
                                  (qn_engine_options){.precision = QN_PRECISION_EXACT});
    compute(e, NULL, ids, n, bare);
    qn_test_ok(qn_engine_adapter_load(e, "it", adapter, 1, &notes));
    compute(e, "it", ids, n, with);
    for (size_t i = 0; i < json_array_size(want); i++) {
        const float expected = (float)json_number_value(json_array_get(want, i));
        if (fabsf(with[i] - expected) > tolerance)
            fail_msg("%s: logit %zu is %g, expected %g", name, i, (double)with[i], (double)expected);
    }
    /* Rows without the adapter keep their bits beside its steps, and when it is gone. */
    compute(e, NULL, ids, n, again);
    assert_memory_equal(bare, again, (size_t)qn_engine_config(e)->vocab_size * sizeof *bare);
    qn_test_ok(qn_engine_adapter_unload(e, "it"));
    compute(e, NULL, ids, n, again);
    assert_memory_equal(bare, again, (size_t)qn_engine_config(e)->vocab_size * sizeof *bare);
    qn_buf_free(&notes);
    qn_engine_close(e);
    qn_test_remove(adapter);
    if (made) qn_test_remove(made);
}

static void test_against_peft(void **state)
{
    json_t *all = json_load_file(qn_test_need_fixture("adapter_forms.json"), 0, NULL), *form;
    size_t i;
    assert_non_null(all);
    json_array_foreach(json_object_get(all, "forms"), i, form) expect_form(all, form);
    json_decref(all);
}

/* Each allocation of a load fails in turn: what was there stays, and nothing is left behind. */
static void test_out_of_memory(void **state)
{
    json_t *all = json_load_file(qn_test_need_fixture("adapter_forms.json"), 0, NULL), *form = NULL, *each;
    size_t i;
    json_array_foreach(json_object_get(all, "forms"), i,
                       each) if (strcmp(json_string_value(json_object_get(each, "name")), "bias all") == 0)
        form = each;
    assert_non_null(form);
    const char *model = write_model(all), *adapter = qn_test_formula_adapter(form);
    qn_engine *e =
        qn_test_engine(model, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 1});
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; n < 20000 && status != QN_OK; n += n < 300 ? 1 : 97) {
        qn_buf notes = {0};
        const int64_t before = qn_mem_live_blocks();
        qn_mem_fail_nth(n);
        status = qn_engine_adapter_load(e, "it", adapter, 1, &notes);
        qn_mem_fail_nth(0);
        qn_buf_free(&notes);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        /* Places of tensors stay once they are made. */
        assert_true(qn_mem_live_blocks() <= before + 64);
    }
    assert_int_equal(status, QN_OK);
    qn_engine_close(e);
    qn_test_remove(adapter);
    qn_test_remove(model);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_peft),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests_name("forms of adapters", tests, NULL, NULL);
}
