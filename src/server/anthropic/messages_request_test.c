/* The table of request fields, messages made of blocks, and bodies while memory runs out. What each field does
 * is tested through the server (tests/server/test_server_messages.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "server/anthropic/request.h"

static const qn_api_request_limits limits = {
    .vocab_size = 100, .default_temperature = -1, .default_top_p = -1, .default_top_k = -1};

static void test_table(void **state)
{
    (void)state;
    for (const qn_field *f = qn_anthropic_fields; f->name; f++) {
        json_t *list = NULL;
        for (const qn_field *g = qn_anthropic_fields; g < f; g++)
            assert_false(strcmp(f->name, g->name) == 0 && (f->routes & g->routes));
        assert_true(f->routes && f->low <= f->high);
        assert_int_equal(f->kind == QN_FIELD_OWN, f->read != NULL);
        assert_int_equal(f->kind == QN_FIELD_REPORTED || f->kind == QN_FIELD_REFUSED, f->note != NULL);
        if (!f->harmless) continue;
        assert_int_equal(qn_json_parse(f->name, f->harmless, strlen(f->harmless), &list), QN_OK);
        assert_true(json_is_array(list) && json_array_size(list) > 0);
        json_decref(list);
    }
}

static int read_all(const char *text, qn_api_request *r, qn_api_error *error)
{
    int status = qn_anthropic_read(text, strlen(text), QN_ANTHROPIC_MESSAGES, &limits, r, error);
    return status ? status : qn_anthropic_read_messages(r, error);
}

/* Bodies with these messages, and the chat that comes of them. */
static void test_messages(void **state)
{
    static const struct {
        const char *members, *chat;
    } cases[] = {
        {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]", "[{\"role\":\"user\",\"content\":\"a\"}]"},
        {"\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"text\",\"text\":\"b\",\"cache_control\":{\"type\":\"ephemeral\"}}]}]",
         "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\\nb\"}]"},
        {"\"system\":[{\"type\":\"text\",\"text\":\"s\"},{\"type\":\"text\",\"text\":\"t\"}],\"messages\":[{"
         "\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"h\",\"signature\":\"x\"},"
         "{"
         "\"type\":\"text\",\"text\":\"a\"},{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{"
         "\"k\":1}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\","
         "\"content\":[{\"type\":\"text\",\"text\":\"r\"}]},{\"type\":\"text\",\"text\":\"go\"}]}]",
         "[{\"role\":\"system\",\"content\":\"s\\nt\"},{\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"arguments\":{\"k\":1}}}],\"role\":\"assistant\",\"content\":\"a\","
         "\"reasoning_content\":\"h\"},{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"1\"},{"
         "\"role\":\"user\",\"content\":\"go\"}]"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
         "\"tool_result\",\"tool_use_id\":\"1\"}]},{\"role\":\"assistant\",\"content\":[]}]",
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":\"1\"},"
         "{\"role\":\"assistant\",\"content\":\"\"}]"},
    };
    static qn_api_request r;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_api_error error;
        json_t *want = NULL;
        qn_buf text = {0};
        qn_buf_printf(&text, "{\"max_tokens\":1,%s}", cases[i].members);
        if (read_all(text.data, &r, &error)) fail_msg("%zu: %s", i, error.message);
        assert_int_equal(qn_json_parse("want", cases[i].chat, strlen(cases[i].chat), &want), QN_OK);
        assert_true(json_equal(r.chat, want));
        json_decref(want);
        qn_api_request_free(&r);
        qn_buf_free(&text);
    }
}

static void test_memory_runs_out(void **state)
{
    static const char text[] =
        "{\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":\"s\"}],\"stop_sequences\":[\"a\"],"
        "\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{},\"strict\":true}],"
        "\"metadata\":{},\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\","
        "\"cache_control\":{}},{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":[{"
        "\"type\":\"thinking\",\"thinking\":\"h\",\"signature\":\"\"},{\"type\":\"tool_use\",\"id\":\"1\","
        "\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
        "\"tool_use_id\":\"1\",\"is_error\":true,\"content\":\"r\"}]}]}";
    static qn_api_request r;
    const int64_t live = qn_mem_live_blocks();
    int done = 0;
    (void)state;
    for (int64_t nth = 1; !done && nth < 2000; nth++) {
        qn_api_error error = {0};
        qn_mem_fail_nth(nth);
        const int status = read_all(text, &r, &error);
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
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
