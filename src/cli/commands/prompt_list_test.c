#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "cli/commands/prompt_list.h"

static const char json[] = "{\"prompt\":\"One\",\"choices\":[\"a\",[1,2,3],\"\"]}\r\n"
                           "{\"messages\":[{\"role\":\"user\",\"content\":\"Two\"}]}\n"
                           "{\"ids\":[4,5,6]}\n{\"ids\":[]}";

static qn_status take(const char *bytes, size_t n, int as_json, int whole, qn_prompt_list *out)
{
    qn_buf text = {0};
    qn_buf_append(&text, bytes, n);
    if (text.status != QN_OK) return text.status;
    return qn_prompt_list_take("test", &text, as_json, whole, out);
}

static void check_text(const qn_prompt_list *l, size_t i, const char *text)
{
    assert_int_equal(l->prompts[i].text_bytes, strlen(text));
    assert_string_equal(l->prompts[i].text, text);
}

static void test_lines(void **state)
{
    static const char lines[] = "One\n\nthree, \xc3\xa9\r\nfour\r";
    qn_prompt_list l;
    assert_int_equal(take(lines, strlen(lines), 0, 0, &l), QN_OK);
    assert_int_equal(l.n, 4);
    assert_int_equal(qn_prompt_list_finish(&l, 0, NULL), QN_OK);
    check_text(&l, 0, "One");
    check_text(&l, 1, "");
    check_text(&l, 2, "three, \xc3\xa9");
    check_text(&l, 3, "four");
    assert_int_equal(qn_prompt_list_finish(&l, 1, "Be brief."), QN_OK);
    assert_int_equal(l.prompts[2].n_messages, 2);
    assert_string_equal(l.prompts[2].messages[0].content, "Be brief.");
    assert_string_equal(l.prompts[2].messages[1].content, "three, \xc3\xa9");
    assert_int_equal(qn_prompt_list_finish(&l, 1, NULL), QN_OK);
    assert_int_equal(l.prompts[0].n_messages, 1);
    assert_string_equal(l.prompts[0].messages[0].role, "user");
    assert_string_equal(l.prompts[0].messages[0].content, "One");
    qn_prompt_list_free(&l);

    assert_int_equal(take(lines, strlen(lines), 0, 1, &l), QN_OK);
    assert_int_equal(l.n, 1);
    assert_int_equal(qn_prompt_list_finish(&l, 0, NULL), QN_OK);
    check_text(&l, 0, lines);
    qn_prompt_list_free(&l);

    assert_int_equal(take("a\0b\n", 4, 0, 0, &l), QN_OK);
    assert_int_equal(qn_prompt_list_finish(&l, 0, NULL), QN_OK);
    assert_int_equal(l.prompts[0].text_bytes, 3);
    assert_int_equal(qn_prompt_list_finish(&l, 1, NULL), QN_E_FORMAT);
    qn_prompt_list_free(&l);
    assert_int_equal(take("", 0, 0, 0, &l), QN_E_ARG);
    assert_int_equal(take("\n", 1, 0, 0, &l), QN_OK);
    assert_int_equal(l.n, 1);
    qn_prompt_list_free(&l);
}

static void test_json(void **state)
{
    qn_prompt_list l;
    qn_choice *choices;
    int32_t *ids;
    size_t n;
    assert_int_equal(take(json, strlen(json), 1, 1, &l), QN_OK);
    assert_int_equal(l.n, 4);
    assert_int_equal(qn_prompt_list_finish(&l, 0, NULL), QN_OK);
    check_text(&l, 0, "One");
    assert_string_equal(l.prompts[1].messages_json, "[{\"role\":\"user\",\"content\":\"Two\"}]");
    assert_int_equal(l.prompts[2].rows->n_ids, 3);
    assert_int_equal(l.prompts[2].rows->ids[1], 5);
    assert_int_equal(l.prompts[3].rows->n_ids, 0);
    assert_int_equal(qn_prompt_list_choices(&l, 0, &choices, &n, &ids), QN_OK);
    assert_int_equal(n, 3);
    assert_string_equal(choices[0].text, "a");
    assert_int_equal(choices[1].n_ids, 3);
    assert_int_equal(choices[1].ids[2], 3);
    assert_string_equal(choices[2].text, "");
    qn_free(choices);
    qn_free(ids);
    assert_int_equal(qn_prompt_list_choices(&l, 1, &choices, &n, &ids), QN_OK);
    assert_null(choices);
    qn_prompt_list_free(&l);
}

static void test_refused(void **state)
{
    static const char *const bad[] = {"[]",
                                      "{",
                                      "{}",
                                      "3",
                                      "\n",
                                      "{\"prompt\":1}",
                                      "{\"ids\":[1.5]}",
                                      "{\"ids\":[1]}\n{\"ids\":[-1]}",
                                      "{\"prompt\":\"a\",\"messages\":[]}",
                                      "{\"other\":\"a\"}",
                                      "{\"prompt\":\"a\",\"prompt\":\"b\"}"};
    qn_prompt_list l;
    int64_t before = qn_mem_live_blocks();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(take(bad[i], strlen(bad[i]), 1, 0, &l), QN_E_FORMAT);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
}

static void test_allocation_failures(void **state)
{
    int64_t before = qn_mem_live_blocks();
    for (int64_t i = 1;; i++) {
        qn_prompt_list l;
        qn_choice *choices;
        int32_t *ids;
        size_t n;
        assert_true(i < 2000);
        qn_mem_fail_nth(i);
        qn_status status = take(json, strlen(json), 1, 0, &l);
        if (status == QN_OK) {
            status = qn_prompt_list_choices(&l, 0, &choices, &n, &ids);
            if (status == QN_OK) {
                qn_free(choices);
                qn_free(ids);
            }
            qn_prompt_list_free(&l);
        }
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
