/* Messages of failures and log lines: one line each, whatever a hostile file put into a name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"

static void test_names(void **state)
{
    assert_string_equal(qn_status_name(QN_OK), "QN_OK");
    assert_string_equal(qn_status_name(QN_E_FORMAT), "QN_E_FORMAT");
    assert_string_equal(qn_status_text(QN_E_FULL), "no room left");
    assert_string_equal(qn_status_name((qn_status)999), "unknown status");
    assert_string_equal(qn_status_text((qn_status)-1), "unknown status");
}

static void test_clean(void **state)
{
    assert_int_equal(qn_fail(QN_E_FORMAT, "tensor %s: bad", "a\nb\x1b[2J\x7f\tc"), QN_E_FORMAT);
    assert_string_equal(qn_last_error(), "tensor a?b?[2J??c: bad");
    qn_fail(QN_E_FORMAT, "%s", "\xc3\xa9 \xff \xed\xa0\x80 \xf0\x9f");
    assert_string_equal(qn_last_error(), "\xc3\xa9 ? ??? ??");
    qn_fail(QN_E_FORMAT, "%s",
            "\xc2\x9b"
            "31m \xc2\xa0"); /* CSI is a control character of two bytes */
    assert_string_equal(qn_last_error(), "??31m \xc2\xa0");
    qn_fail_copy(QN_E_IO, "100%s\r\n");
    assert_string_equal(qn_last_error(), "100%s??");
}

static void test_prefix(void **state)
{
    qn_fail(QN_E_ARG, "shape [%d]", 4);
    assert_int_equal(qn_fail_prefix(QN_E_ARG, "%s: tensor %s", "x\ny.gguf", "w"), QN_E_ARG);
    assert_string_equal(qn_last_error(), "x?y.gguf: tensor w: shape [4]");
    /* A message may be built from the one before. */
    qn_fail(QN_E_ARG, "again: %s", qn_last_error());
    assert_string_equal(qn_last_error(), "again: x?y.gguf: tensor w: shape [4]");
}

/* Cut at the length of the buffer, never in the middle of a character. */
static void test_long(void **state)
{
    char text[3000];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    for (size_t i = QN_ERROR_TEXT_MAX - 8; i + 2 < sizeof text; i += 2) memcpy(text + i, "\xc3\xa9", 2);
    for (int shift = 0; shift < 2; shift++) {
        qn_fail(QN_E_ARG, "%s", text + shift);
        assert_int_equal(strlen(qn_last_error()), QN_ERROR_TEXT_MAX - 1);
        assert_int_equal(qn_utf8_valid_prefix(qn_last_error(), QN_ERROR_TEXT_MAX), QN_ERROR_TEXT_MAX);
    }
    for (int keep = 0; keep < 5; keep++) { /* a prefix that leaves no room for the rest */
        qn_fail(QN_E_ARG, "rest");
        qn_fail_prefix(QN_E_ARG, "%.*s", QN_ERROR_TEXT_MAX - 1 - keep, text);
        assert_true(strlen(qn_last_error()) < QN_ERROR_TEXT_MAX);
        assert_memory_equal(qn_last_error(), text, 100);
    }
}

static void *fail_elsewhere(void *empty_first)
{
    *(int *)empty_first = qn_last_error()[0] == 0;
    qn_fail(QN_E_IO, "elsewhere");
    return NULL;
}

static void test_per_thread(void **state)
{
    pthread_t thread;
    int empty_first = 0;
    qn_fail(QN_E_ARG, "here");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &empty_first), 0);
    pthread_join(thread, NULL);
    assert_true(empty_first);
    assert_string_equal(qn_last_error(), "here");
}

typedef struct {
    int n;
    qn_log_level level;
    char line[2048];
} lines;

static void sink(void *user, qn_log_level level, const char *line)
{
    lines *l = user;
    l->n++;
    l->level = level;
    snprintf(l->line, sizeof l->line, "%s", line);
}

static void test_log(void **state)
{
    lines l = {0};
    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    qn_log_set_sink(sink, &l);
    qn_log(QN_LOG_INFO, "dropped");
    assert_int_equal(l.n, 0);
    qn_log(QN_LOG_WARNING, "file %s", "a\x1b[0m\nb");
    assert_int_equal(l.n, 1);
    assert_int_equal(l.level, QN_LOG_WARNING);
    assert_string_equal(l.line, "file a?[0m?b");
    qn_log_set_level(QN_LOG_DEBUG);
    qn_log(QN_LOG_DEBUG, "%s", text);
    assert_int_equal(l.n, 2);
    assert_int_equal(strlen(l.line), 1023);
    qn_log_set_level(QN_LOG_ERROR);
    qn_log(QN_LOG_WARNING, "dropped");
    assert_int_equal(l.n, 2);
    qn_log_set_level(QN_LOG_WARNING);
    qn_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names), cmocka_unit_test(test_clean), cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_long),  cmocka_unit_test(test_log),   cmocka_unit_test(test_per_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
