/* What a choice has said does not depend on how its text was cut, is forgotten and collected again, and lack
 * of memory sticks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/mem.h"
#include "server/core/answer.h"

enum { NTH_MAX = 200 };

static const struct {
    qn_answer_kind kind;
    int32_t index;
    const char *text, *id;
} parts[] = {
    {QN_ANSWER_REASONING, 0, "because", NULL},
    {QN_ANSWER_CONTENT, 0, "I look it up.", NULL},
    {QN_ANSWER_CALL_BEGIN, 0, "get_weather", "call_1"},
    {QN_ANSWER_CALL_ARGUMENTS, 0, "{\"city\": \"Rome\"}", NULL},
    {QN_ANSWER_CALL_END, 0, "", NULL},
    {QN_ANSWER_CALL_BEGIN, 1, "get_time", ""},
    {QN_ANSWER_CALL_ARGUMENTS, 1, "{}", NULL},
    {QN_ANSWER_CALL_END, 1, "", NULL},
    {QN_ANSWER_CONTENT, 0, "Done.", NULL},
};
enum { N_PARTS = sizeof parts / sizeof *parts };

/* Adds all parts, texts in pieces of `step` bytes. */
static void add_all(qn_said *s, size_t step)
{
    for (size_t i = 0; i < N_PARTS; i++) {
        const int is_edge = parts[i].kind == QN_ANSWER_CALL_BEGIN || parts[i].kind == QN_ANSWER_CALL_END;
        const size_t n = strlen(parts[i].text), most = is_edge ? n : step;
        size_t at = 0;
        do {
            const size_t piece = n - at < most ? n - at : most;
            qn_said_add(s, &(qn_answer_event){.kind = parts[i].kind,
                                              .index = parts[i].index,
                                              .text = parts[i].text + at,
                                              .n = piece,
                                              .id = parts[i].id});
            at += piece;
        } while (at < n);
    }
}

static void check_all(const qn_said *s)
{
    assert_int_equal(qn_said_status(s), QN_OK);
    assert_int_equal(qn_said_count(s), N_PARTS);
    for (size_t i = 0; i < N_PARTS; i++) {
        const qn_answer_event e = qn_said_get(s, i);
        assert_int_equal(e.kind, parts[i].kind);
        assert_int_equal(e.index, parts[i].index);
        assert_int_equal(e.n, strlen(parts[i].text));
        assert_memory_equal(e.text, parts[i].text, e.n);
        if (e.kind == QN_ANSWER_CALL_BEGIN) {
            assert_string_equal(e.text, parts[i].text);
            assert_string_equal(e.id, parts[i].id);
        }
    }
}

static void test_cuts(void **state)
{
    qn_said s = {0};
    (void)state;
    assert_int_equal(qn_said_count(&s), 0);
    assert_false(qn_said_has(&s, QN_ANSWER_CONTENT));
    for (size_t step = 1; step < 20; step++) {
        add_all(&s, step);
        check_all(&s);
        qn_said_forget(&s);
        assert_int_equal(qn_said_count(&s), 0);
    }
    qn_said_add(&s, &(qn_answer_event){.kind = QN_ANSWER_CONTENT, .text = "", .n = 0});
    assert_int_equal(qn_said_count(&s), 0);
    qn_said_free(&s);
}

static void test_join(void **state)
{
    qn_said s = {0};
    qn_buf text = {0};
    (void)state;
    add_all(&s, 4);
    qn_said_join(&s, QN_ANSWER_CONTENT, 0, &text);
    assert_string_equal(text.data, "I look it up.Done.");
    qn_buf_reset(&text);
    qn_said_join(&s, QN_ANSWER_CALL_ARGUMENTS, 1, &text);
    assert_string_equal(text.data, "{}");
    assert_true(qn_said_has(&s, QN_ANSWER_REASONING));
    qn_buf_free(&text);
    qn_said_free(&s);
}

static void test_tokens(void **state)
{
    const qn_top_logprob top[2] = {{7, -0.5f}, {9, -1.5f}};
    qn_said s = {0};
    (void)state;
    for (int32_t i = 0; i < 100; i++)
        qn_said_add_token(&s, &(qn_token){.id = i, .logprob = -2, .top = i % 3 ? top : NULL, .n_top = i % 3});
    assert_int_equal(qn_said_status(&s), QN_OK);
    assert_int_equal(qn_said_count_tokens(&s), 100);
    assert_int_equal(qn_said_count(&s), 0);
    for (int32_t i = 0; i < 100; i++) {
        const qn_said_token t = qn_said_get_token(&s, (size_t)i);
        assert_true(t.id == i && t.logprob == -2 && t.n_top == i % 3);
        for (int32_t k = 0; k < t.n_top; k++)
            assert_true(t.top[k].id == top[k].id && t.top[k].logprob == top[k].logprob);
    }
    qn_said_free(&s);
}

static void test_memory_runs_out(void **state)
{
    int64_t live = qn_mem_live_blocks();
    int done = 0;
    (void)state;
    for (int64_t nth = 1; !done && nth < NTH_MAX; nth++) {
        qn_said s = {0};
        qn_mem_fail_nth(nth);
        add_all(&s, 3);
        qn_said_add_token(&s, &(qn_token){.id = 1, .top = &(qn_top_logprob){1, -1}, .n_top = 1});
        qn_mem_fail_nth(0);
        done = qn_said_status(&s) == QN_OK;
        if (done)
            check_all(&s);
        else
            assert_int_equal(qn_said_status(&s), QN_E_NOMEM);
        qn_said_free(&s);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
