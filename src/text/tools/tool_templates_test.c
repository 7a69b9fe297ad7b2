/* What real templates make of real calls. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "tests/support/answer_text.h"
#include "tests/support/fixtures.h"
#include "text/tools/tool_calls.h"

static json_t *read_json(const char *path)
{
    FILE *f = fopen(path, "rb");
    qn_buf b = {0};
    char block[16384];
    json_t *json = NULL;
    if (!f) return NULL;
    for (size_t got; (got = fread(block, 1, sizeof block, f)) > 0;) qn_buf_append(&b, block, got);
    fclose(f);
    assert_int_equal(qn_json_parse(path, b.data, b.length, &json), QN_OK);
    qn_buf_free(&b);
    return json;
}

static const json_t *find_case(const json_t *cases, const char *name)
{
    size_t i;
    json_t *each;
    json_array_foreach((json_t *)cases, i, each)
    {
        if (strcmp(json_string_value(json_object_get(each, "name")), name) == 0 &&
            json_object_get(each, "text"))
            return each;
    }
    return NULL;
}

static const char *text_of(const json_t *c)
{
    return c ? json_string_value(json_object_get(c, "text")) : NULL;
}

/* What follows the prompt of a case's only question. */
static const char *answer_of(const json_t *cases, const json_t *c, size_t *prompt_bytes)
{
    const char *with = text_of(find_case(cases, "user+gen")), *without = text_of(find_case(cases, "user"));
    const char *question = json_string_value(json_object_get(
        json_array_get(json_object_get(json_object_get(c, "context"), "messages"), 0), "content"));
    const char *at = text_of(c);
    for (const char *p; (p = strstr(at, question));) at = p + strlen(question);
    if (with && without && strncmp(with, without, strlen(without)) == 0 && with[strlen(without)]) {
        const char *p = strstr(at, with + strlen(without));
        if (p) at = p + strlen(with + strlen(without));
    }
    *prompt_bytes = (size_t)(at - text_of(c));
    return at;
}

/* The calls of the messages that the text shows, against those that were read. */
static int compare_calls(const char *file, const json_t *c, const qn_answer_format format, const char *answer,
                         size_t prompt_bytes)
{
    const json_t *context = json_object_get(c, "context");
    json_t *calls = NULL, *message, *each;
    size_t i, n, seen = 0;
    int n_calls = 0;
    qn_answer_options o = {.format = format,
                           .tools = json_object_get(context, "tools"),
                           .prompt = text_of(c),
                           .prompt_bytes = prompt_bytes};
    qn_answer *a = NULL;
    if (!json_is_array(o.tools)) o.tools = qn_test_tools();
    assert_int_equal(qn_answer_new(&o, &a), QN_OK);
    const char *end = strstr(answer, "<|eot_id|>"); /* a stop token, which no answer contains */
    assert_int_equal(qn_answer_feed(a, answer, end ? (size_t)(end - answer) : strlen(answer)), QN_OK);
    if (qn_answer_count_calls(a) == 0) assert_int_equal(qn_answer_finish(a), QN_OK);
    const qn_answer_event *e = qn_answer_get_events(a, &n);
    json_array_foreach(json_object_get(context, "messages"), i, message)
    {
        if (!calls) calls = json_object_get(message, "tool_calls");
    }
    json_array_foreach(calls, i, each)
    {
        const json_t *function = json_object_get(each, "function");
        json_t *arguments = json_object_get(function, "arguments"), *parsed = NULL, *got = NULL;
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!strstr(answer, name)) continue;
        if (json_is_string(arguments)) {
            const char *text = json_string_value(arguments);
            assert_int_equal(qn_json_parse("arguments", text, strlen(text), &parsed), QN_OK);
        }
        while (seen < n && e[seen].kind != QN_ANSWER_CALL_BEGIN) seen++;
        if (seen == n) fail_msg("%s: call of %s not found in %s", file, name, answer);
        assert_string_equal(e[seen].text, name);
        assert_int_equal(qn_json_parse("got", e[seen + 1].text, e[seen + 1].n, &got), QN_OK);
        if (!json_equal(parsed ? parsed : arguments, got))
            fail_msg("%s: %s: other arguments: %.*s", file, name, (int)e[seen + 1].n, e[seen + 1].text);
        json_decref(parsed);
        json_decref(got);
        seen++;
        n_calls++;
    }
    assert_int_equal(qn_answer_count_calls(a), n_calls);
    assert_int_equal(qn_answer_count_malformed(a), 0);
    char *whole = qn_test_answer(&o, answer, strlen(answer), 0);
    for (uint64_t seed = 1; seed < 8; seed++) {
        char *cut = qn_test_answer(&o, answer, strlen(answer), seed);
        assert_string_equal(cut, whole);
        qn_free(cut);
    }
    qn_free(whole);
    qn_answer_free(a);
    return n_calls;
}

static void test_templates(void **state)
{
    static const char *const names[] = {"tool_call_and_result", "parallel_calls", "string_arguments+gen"};
    char folder[1024];
    int n_templates = 0;
    snprintf(folder, sizeof folder, "%s", qn_test_need_fixture("templates"));
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        char path[2048];
        const char *end = strstr(entry->d_name, ".cases.json");
        if (!end) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        json_t *cases = read_json(path),
               *array = json_is_array(cases) ? cases : json_object_get(cases, "cases");
        snprintf(path, sizeof path, "%s/%.*s.jinja", folder, (int)(end - entry->d_name), entry->d_name);
        FILE *f = fopen(path, "rb");
        char text[65536];
        size_t n = f ? fread(text, 1, sizeof text, f) : 0;
        if (f) fclose(f);
        qn_answer_format format = qn_answer_format_choose(text, n);
        int n_calls = 0;
        for (size_t i = 0; i < sizeof names / sizeof *names && format.calls; i++) {
            const json_t *c = find_case(array, names[i]);
            size_t prompt_bytes;
            const char *answer = c ? answer_of(array, c, &prompt_bytes) : NULL;
            if (answer) n_calls += compare_calls(entry->d_name, c, format, answer, prompt_bytes);
        }
        print_message("%s: %s, %d calls\n", entry->d_name, qn_answer_format_name(format), n_calls);
        n_templates += n_calls > 0;
        json_decref(cases);
    }
    closedir(d);
    assert_true(n_templates > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
