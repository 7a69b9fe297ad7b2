/* The table of request fields, chats made of items, and bodies while memory runs out. What each field does is
 * tested through the server (tests/server/test_server_responses.py). */
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
#include "server/responses/request.h"

static const qn_api_request_limits limits = {
    .vocab_size = 100, .default_temperature = -1, .default_top_p = -1, .default_top_k = -1};

static void test_table(void **state)
{
    (void)state;
    for (const qn_field *f = qn_responses_fields; f->name; f++) {
        json_t *list = NULL;
        for (const qn_field *g = qn_responses_fields; g < f; g++)
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
    int status = qn_responses_read(text, strlen(text), QN_RESPONSES_CREATE, &limits, r, error);
    return status ? status : qn_responses_read_items(r, error);
}

#define CALL(id) "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"f\",\"arguments\":\"{}\"}"
#define MADE(id) \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"
#define OUTPUT(id) "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"r\"}"
#define RESULT(id) "{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"" id "\"}"
#define THOUGHT(text)                                                                                 \
    "{\"type\":\"reasoning\",\"id\":\"rs\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\"," \
    "\"text\":\"" text "\"}]}"
#define USER "{\"role\":\"user\",\"content\":\"a\"}"

/* Items, and the chat that comes of them. */
static void test_items(void **state)
{
    static const struct {
        const char *members, *chat;
    } cases[] = {
        {"\"input\":\"a\"", "[" USER "]"},
        {"\"instructions\":\"s\",\"input\":[" USER "]", "[{\"role\":\"system\",\"content\":\"s\"}," USER "]"},
        {"\"input\":[{\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":\"input_text\","
         "\"text\":\"s\"},{\"type\":\"input_text\",\"text\":\"t\"}]}]",
         "[{\"role\":\"system\",\"content\":\"s\\nt\"}]"},
        /* an answer's items are one message */
        {"\"input\":[" USER "," THOUGHT(
             "h") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
                  "\"text\":\"b\",\"annotations\":[],\"logprobs\":[]}],\"id\":\"msg\",\"status\":"
                  "\"completed\"}," CALL("1") "," CALL("2") "," OUTPUT("1") "," OUTPUT("2") "," USER "]",
         "[" USER
         ",{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"h\",\"tool_calls\":[" MADE(
             "1") "," MADE("2") "]}," RESULT("1") "," RESULT("2") "," USER "]"},
        /* a call without text, and reasoning between two */
        {"\"input\":[" CALL("1") "," OUTPUT("1") "," THOUGHT("h") "," CALL("2") "," OUTPUT("2") "]",
         "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" MADE("1") "]}," RESULT(
             "1") ",{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"h\",\"tool_calls\":"
                  "[" MADE("2") "]}," RESULT("2") "]"},
        /* reasoning that was cut short */
        {"\"input\":[" THOUGHT("h") "," USER "]",
         "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"h\"}," USER "]"},
    };
    static qn_api_request r;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_api_error error;
        json_t *want = NULL;
        qn_buf text = {0};
        qn_buf_printf(&text, "{%s}", cases[i].members);
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
        "{\"instructions\":\"s\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{},"
        "\"strict\":true}],\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},\"store\":true,\"input\":"
        "[" USER "," THOUGHT("h") "," CALL("1") "," OUTPUT("1") "," THOUGHT("i") "," USER "]}";
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
        cmocka_unit_test(test_items),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
