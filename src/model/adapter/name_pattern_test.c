/* Keys of rank_pattern against peft's own function (tools/adapter_patterns_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "model/adapter/adapter_config.h"
#include "tests/support/fixtures.h"

enum { KEYS_MAX = 8 };

/* The index of the first key that matches; n: none does. */
static size_t find(qn_name_pattern *const *keys, size_t n, const char *module)
{
    int matches = 0;
    size_t i = 0;
    for (; i < n; i++) {
        if (qn_name_pattern_match(keys[i], module, &matches) != QN_OK) fail_msg("%s", qn_last_error());
        if (matches) break;
    }
    return i;
}

static void test_against_peft(void **state)
{
    json_t *all = json_load_file(qn_test_need_fixture("adapter_patterns.json"), 0, NULL), *each;
    const json_t *modules = json_object_get(all, "modules");
    size_t i, j;
    json_array_foreach(json_object_get(all, "cases"), i, each)
    {
        const json_t *keys = json_object_get(each, "keys"), *first = json_object_get(each, "first");
        const size_t n = json_array_size(keys);
        qn_name_pattern *patterns[KEYS_MAX] = {NULL};
        assert_true(n <= KEYS_MAX);
        for (j = 0; j < n; j++) {
            const char *key = json_string_value(json_array_get(keys, j));
            const qn_status status = qn_name_pattern_new(key, &patterns[j]);
            if (status != (json_is_null(first) ? QN_E_FORMAT : QN_OK))
                fail_msg("%s: %s", key, qn_last_error());
        }
        for (j = 0; j < json_array_size(first); j++) {
            const char *module = json_string_value(json_array_get(modules, j)),
                       *want = json_string_value(json_array_get(first, j));
            const size_t got = find(patterns, n, module);
            const char *key = got < n ? json_string_value(json_array_get(keys, got)) : NULL;
            if (!key != !want || (key && strcmp(key, want) != 0))
                fail_msg("%s: key %s instead of %s", module, key ? key : "none", want ? want : "none");
        }
        for (j = 0; j < n; j++) qn_name_pattern_free(patterns[j]);
    }
    json_decref(all);
}

static void test_limits(void **state)
{
    static char key[5000], name[300];
    qn_name_pattern *p = NULL;
    int matches = 5;
    memset(key, 'a', sizeof key - 1);
    assert_int_equal(qn_name_pattern_new(key, &p), QN_E_UNSUPPORTED);
    assert_null(p);
    assert_int_equal(qn_name_pattern_new("(a+)+(a+)+(a+)+[bc]", &p), QN_OK);
    memset(name, 'a', sizeof name - 1);
    assert_int_equal(qn_name_pattern_match(p, name, &matches), QN_E_UNSUPPORTED);
    assert_int_equal(matches, 5);
    qn_name_pattern_free(p);
    qn_name_pattern_free(NULL);
}

static void test_out_of_memory(void **state)
{
    const char text[] =
        "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"rank_pattern\":{\"layers.[01].x\":2,"
        "\"y\":3},\"alpha_pattern\":{\".*z\":1}}";
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; n < 2000 && status != QN_OK; n++) {
        qn_adapter_config c = {0};
        qn_buf notes = {0};
        int64_t rank = 0;
        double factor = 0;
        qn_mem_fail_nth(n);
        status = qn_adapter_config_read("a.json", text, sizeof text - 1, &notes, &c);
        if (status == QN_OK) status = qn_adapter_config_module(&c, "layers.1.x", &rank, &factor);
        qn_mem_fail_nth(0);
        if (status == QN_OK)
            assert_true(rank == 2 && factor == 4);
        else
            assert_int_equal(status, QN_E_NOMEM);
        qn_adapter_config_free(&c);
        qn_buf_free(&notes);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_peft), cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
