#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "model/config/config.h"
#include "model/config/unknown/unknown_family.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/kinds.h"
#include "tests/support/models/model_dir.h"

static void check_fields(const char *kind, const json_t *object)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value) if (!qn_is_known_field(name))
        fail_msg("%s: %s is taken for a field that nothing here computes", kind, name);
}

/* What supported models say is known, in both spellings. */
static void test_known_fields(void **state)
{
    static const char *const files[] = {"config.json", "config.hub.json"};
    qn_test_kind_list kinds = {.n = 0};
    int n = 0;
    qn_test_kinds(&kinds);
    qn_test_encoder_kinds(&kinds);
    for (int i = 0; i < 2 * kinds.n; i++) {
        char path[160];
        snprintf(path, sizeof path, "models/%s/%s", kinds.names[i / 2], files[i % 2]);
        json_t *root = qn_test_fixture(path) ? json_load_file(qn_test_fixture(path), 0, NULL) : NULL;
        check_fields(kinds.names[i / 2], root);
        check_fields(kinds.names[i / 2], json_object_get(root, "text_config"));
        n += root != NULL;
        json_decref(root);
    }
    assert_true(n > 0);
    assert_false(qn_is_known_field("") || qn_is_known_field("hidden_siz") ||
                 qn_is_known_field("hidden_sizes"));
}

static const char *refusal_of(const char *dir)
{
    qn_model_config c = {.vocab_size = 0};
    const qn_status status = qn_test_config(dir, &c);
    if (status == QN_OK) qn_config_free(&c);
    assert_int_equal(status, QN_E_UNSUPPORTED);
    return qn_last_error();
}

static void refused(const char *patch, const qn_test_tensor_edit *edits, const char *words)
{
    char dir[QN_TEST_DIR_MAX];
    qn_test_model_copy(qn_test_need_fixture("models/llama"), patch, edits, dir);
    const char *why = refusal_of(dir);
    if (!strstr(why, words)) fail_msg("\"%s\" does not say \"%s\"", why, words);
    if (!strstr(words, "no family") && strstr(why, "no family")) fail_msg("%s", why);
    qn_test_model_remove(dir);
}

static void test_refusals(void **state)
{
    static const qn_test_tensor_edit added[] = {
        {"model.layers.0.self_attn.q_proj.weight", QN_TEST_COPY, "model.layers.0.self_attn.s_proj.weight"},
        {"model.layers.1.self_attn.q_proj.weight", QN_TEST_COPY, "model.layers.1.self_attn.s_proj.weight"},
        {"model.layers.0.self_attn.q_proj.weight", QN_TEST_COPY, "model.visual.proj.weight"},
        {NULL, 0, NULL}};
    refused("{\"model_type\": \"llama_next\"}", added,
            "12 of its 13 kinds of weights; no family has the weight model.layers.0.self_attn.s_proj.weight");
    refused("{\"model_type\": \"llama_next\"}", NULL, ". Here llama has 12 of its 12 kinds of weights");
    refused("{\"model_type\": \"llama_next\", \"n_streams\": 3}", NULL,
            "12 of its 12 kinds of weights; no family has the field n_streams");
    refused("{\"model_type\": \"llama_next\", \"n_streams\": 3, \"n_sinks\": 2}", NULL,
            "no family has the field n_streams and 1 more");
    refused("{\"model_type\": null, \"architectures\": [\"NextForCausalLM\"], \"n_streams\": 1}", NULL,
            "no family has the field n_streams");
}

/* Kinds that wait have something that no family has. */
static void test_waiting(void **state)
{
    for (const qn_test_waiting_kind *w = qn_test_waiting_kinds; w->name; w++) {
        char path[128];
        snprintf(path, sizeof path, "models/%s", w->name);
        if (!qn_test_fixture(path)) continue;
        const char *why = refusal_of(qn_test_fixture(path));
        if (!strstr(why, "no family has the ")) fail_msg("%s", why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known_fields), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_waiting)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
