/* The tables of fields of Ollama's API, what fields say together, and bodies while memory runs out. What each field
 * does is tested through the server (tests/server/test_server_ollama.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "server/ollama/request.h"

static const qn_api_request_limits limits = {.vocab_size = 100,
                                             .default_temperature = -1,
                                             .default_top_p = -1,
                                             .default_top_k = -1,
                                             .context_size = 64,
                                             .has_chat_template = 1,
                                             .has_reasoning = 1};

static void check_table(const qn_field *table)
{
    for (const qn_field *f = table; f->name; f++) {
        json_t *list = NULL;
        for (const qn_field *g = table; g < f; g++)
            assert_false(strcmp(f->name, g->name) == 0 && (f->routes & g->routes));
        assert_true(f->routes && f->low <= f->high);
        assert_int_equal(f->kind == QN_FIELD_OWN, f->read != NULL);
        assert_int_equal(f->kind == QN_FIELD_REPORTED || f->kind == QN_FIELD_REFUSED, f->note != NULL);
        if (!f->harmless) continue;
        assert_int_equal(f->kind, QN_FIELD_REFUSED);
        assert_int_equal(qn_json_parse(f->name, f->harmless, strlen(f->harmless), &list), QN_OK);
        assert_true(json_is_array(list) && json_array_size(list) > 0);
        json_decref(list);
    }
}

static void test_tables(void **state)
{
    (void)state;
    check_table(qn_ollama_fields);
    check_table(qn_ollama_options);
}

static void test_names(void **state)
{
    static const struct {
        const char *name;
        size_t kept;
    } cases[] = {{"mill:latest", 4}, {"mill", 4}, {":latest", 7},
                 {"latest", 6},      {"", 0},     {"a:latest:latest", 8}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(qn_ollama_name_length(cases[i].name, strlen(cases[i].name)), cases[i].kept);
}

static int read_body(const char *text, unsigned route, qn_api_request *r, qn_api_error *error)
{
    return qn_ollama_read(text, strlen(text), route, &limits, r, error);
}

static void test_options(void **state)
{
    static qn_api_request r;
    qn_api_error error;
    (void)state;
    assert_int_equal(
        read_body("{\"model\":\"mill:latest\",\"messages\":[{}],\"options\":{\"num_predict\":-2,\"top_k\":"
                  "3,\"seed\":5,\"stop\":[\"a\"],\"num_gpu\":1}}",
                  QN_OLLAMA_CHAT, &r, &error),
        0);
    assert_string_equal(r.model, "mill");
    assert_true(r.stream && r.n == 1 && r.o.max_tokens == 0 && r.o.top_k == 3 && r.o.seed == 5 && !r.ping_ms);
    assert_true(r.o.n_stop_strings == 1 && strstr(r.warnings.data, "options.num_gpu"));
    qn_api_request_free(&r);
    assert_int_equal(
        read_body("{\"model\":\"m\",\"prompt\":\"a\",\"raw\":true}", QN_OLLAMA_GENERATE, &r, &error), 0);
    assert_true(r.special && r.prompt && strcmp(json_string_value(r.prompt), "a") == 0);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"model\":\"m\",\"prompt\":\"\"}", QN_OLLAMA_GENERATE, &r, &error), 0);
    assert_int_equal(r.n, 0);
    qn_api_request_free(&r);
    assert_int_equal(
        read_body("{\"model\":\"m\",\"prompt\":\"a\",\"think\":\"low\"}", QN_OLLAMA_GENERATE, &r, &error), 0);
    assert_true(json_is_true(json_object_get(r.template_kwargs, "enable_thinking")) &&
                strcmp(json_string_value(json_object_get(r.template_kwargs, "reasoning_effort")), "low") ==
                    0);
    qn_api_request_free(&r);
    assert_int_equal(read_body("{\"prompt\":\"a\"}", QN_OLLAMA_GENERATE, &r, &error), 400);
    assert_string_equal(error.param, "model");
    qn_api_request_free(&r);
}

static void test_memory_runs_out(void **state)
{
    static const char text[] = "{\"model\":\"mill:latest\",\"messages\":[{\"role\":\"user\",\"content\":"
                               "\"a\"},{\"role\":\"assistant\","
                               "\"thinking\":\"b\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":"
                               "\"f\",\"arguments\":{\"a\":1}}}]},"
                               "{\"role\":\"tool\",\"content\":\"c\",\"tool_name\":\"f\"}],\"keep_alive\":1,"
                               "\"think\":true,\"options\":{"
                               "\"stop\":[\"a\"],\"numa\":true,\"tfs_z\":1}}";
    static qn_api_request r;
    int64_t live = qn_mem_live_blocks();
    int done = 0;
    (void)state;
    for (int64_t nth = 1; !done && nth < 2000; nth++) {
        qn_api_error error = {0};
        qn_mem_fail_nth(nth);
        int status = read_body(text, QN_OLLAMA_CHAT, &r, &error);
        if (!status) status = qn_ollama_read_messages(&r, &error);
        qn_mem_fail_nth(0);
        done = !status;
        if (status) assert_true(error.status == status && error.message[0]);
        qn_api_request_free(&r);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
