#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/buf.h"
#include "base/random.h"
#include "cli/chat/think_split.h"

/* Writes the runs as [thinking]text, neighbours of one kind joined. */
typedef struct {
    qn_buf out;
    int is_thinking;
} sink;

static void take(void *user, int is_thinking, const char *text, size_t n)
{
    sink *s = user;
    assert_true(n > 0);
    if (is_thinking != s->is_thinking) qn_buf_putc(&s->out, is_thinking ? '[' : ']');
    s->is_thinking = is_thinking;
    qn_buf_append(&s->out, text, n);
}

static void expect(const char *text, int inside, const char *want)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        qn_think_split t;
        sink s = {{0}, 0};
        size_t n = strlen(text);
        qn_buf_append(&s.out, "", 0);
        qn_think_split_begin(&t, inside);
        for (size_t at = 0, i = 0; at < n; i++) {
            size_t piece = seed ? qn_random_bits(seed, i) % 4 : n;
            if (piece > n - at) piece = n - at;
            qn_think_split_put(&t, text + at, piece, take, &s);
            at += piece;
        }
        qn_think_split_flush(&t, take, &s);
        assert_string_equal(s.out.data, want);
        qn_buf_free(&s.out);
    }
}

static void test_splits(void **state)
{
    expect("", 0, "");
    expect("plain", 0, "plain");
    expect("<think>a</think>b", 0, "[<think>a</think>]b");
    expect("\n <think>a<b</ think></think>\n\nb", 0, "\n [<think>a<b</ think></think>]\n\nb");
    expect("<think>never closed", 0, "[<think>never closed");
    expect("<think", 0, "<think");
    expect("<<think>a", 0, "<<think>a");
    expect("<thin king>", 0, "<thin king>");
    expect("say <think>a</think>", 0, "say <think>a</think>");
    expect("<think>a</think>b<think>c", 0, "[<think>a</think>]b<think>c");
    expect("<think>a<</think>b", 0, "[<think>a<</think>]b");
    expect("<think>a</thin", 0, "[<think>a</thin");
}

static void test_opened_by_the_prompt(void **state)
{
    expect("a</think>b", 1, "[a</think>]b");
    expect("</think>b", 1, "[</think>]b");
    assert_true(qn_think_split_is_open("x<think>"));
    assert_true(qn_think_split_is_open("x<think>\n"));
    assert_false(qn_think_split_is_open("x<think>\n\n</think>\n\n"));
    assert_false(qn_think_split_is_open("<think"));
    assert_false(qn_think_split_is_open(""));
}

/* A run never ends inside a character when no piece does. */
static void test_characters_stay_whole(void **state)
{
    qn_think_split t;
    sink s = {{0}, 0};
    qn_think_split_begin(&t, 0);
    qn_think_split_put(&t, "\xc3\xa9", 2, take, &s);
    assert_int_equal(s.out.length, 2);
    qn_think_split_begin(&t, 1);
    qn_think_split_put(&t, "<", 1, take, &s);
    assert_int_equal(s.out.length, 2);
    qn_think_split_put(&t, "\xc3\xa9", 2, take, &s);
    assert_string_equal(s.out.data, "\xc3\xa9[<\xc3\xa9");
    qn_buf_free(&s.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_opened_by_the_prompt),
        cmocka_unit_test(test_characters_stay_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
