/* Redirects, refusals and waiting, without a network: what is asked next, when, and who gets the token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "hub/names/url.h"
#include "hub/net/way.h"

static const int64_t second_ns = 1000000000;

static qn_way begin(const char *url, const char *token)
{
    qn_way w = {0};
    assert_int_equal(qn_way_begin(&w, "x", url, token), QN_OK);
    return w;
}

static qn_way_step judge(qn_way *w, int status, const char *location, const char *failure,
                         int64_t retry_after_s)
{
    qn_net_reply r = {.status = status, .location = location, .link = "", .retry_after_s = retry_after_s};
    qn_status why = QN_OK;
    snprintf(r.failure, sizeof r.failure, "%s", failure);
    const qn_way_step step = qn_way_judge(w, &r, "{\"error\":\"said\"}", 16, 100 * second_ns, &why);
    assert_int_equal(step == QN_WAY_STOP, why != QN_OK);
    return step;
}

static void test_the_token_stays_at_home(void **state)
{
    qn_way w = begin("https://hub/a", "t");
    assert_string_equal(qn_way_token(&w), "t");
    assert_int_equal(judge(&w, 302, "/b", "", -1), QN_WAY_AGAIN);
    assert_string_equal(w.now.data, "https://hub/b");
    assert_string_equal(qn_way_token(&w), "t");
    assert_int_equal(judge(&w, 302, "https://cdn/b", "", -1), QN_WAY_AGAIN);
    assert_null(qn_way_token(&w));
    assert_int_equal(judge(&w, 302, "https://hub/c", "", -1), QN_WAY_AGAIN);
    assert_string_equal(qn_way_token(&w), "t");
    assert_int_equal(judge(&w, 302, "https://hub:444/c", "", -1), QN_WAY_AGAIN);
    assert_null(qn_way_token(&w));
    qn_way_end(&w);
    w = begin("http://hub/a", "t"); /* not encrypted */
    assert_null(qn_way_token(&w));
    qn_way_end(&w);
    w = begin("http://127.0.0.1:8/a", "t");
    assert_string_equal(qn_way_token(&w), "t");
    qn_way_end(&w);
}

static void test_redirects_end(void **state)
{
    qn_way w = begin("https://hub/a", NULL);
    for (int i = 0; i < QN_WAY_HOPS_MAX; i++) assert_int_equal(judge(&w, 307, "/a", "", -1), QN_WAY_AGAIN);
    assert_int_equal(judge(&w, 307, "/a", "", -1), QN_WAY_STOP);
    qn_way_end(&w);
    w = begin("https://hub/a", NULL);
    assert_int_equal(judge(&w, 302, "", "", -1), QN_WAY_STOP);
    assert_int_equal(judge(&w, 302, "http://hub/a", "", -1), QN_WAY_STOP);
    qn_way_end(&w);
}

static void test_waiting(void **state)
{
    qn_way w = begin("https://hub/a", NULL);
    assert_int_equal(judge(&w, 429, "", "", 7), QN_WAY_AGAIN);
    assert_true(w.not_before_ns == 107 * second_ns);
    assert_int_equal(judge(&w, 503, "", "", -1), QN_WAY_AGAIN);
    assert_true(w.not_before_ns > 100 * second_ns && w.not_before_ns < 107 * second_ns);
    assert_int_equal(judge(&w, 429, "", "", QN_WAY_WAIT_MAX_S + 1), QN_WAY_STOP);
    const qn_net_reply limited = {.status = 429, .retry_after_s = -1, .reset_s = 55};
    qn_status why;
    assert_int_equal(qn_way_judge(&w, &limited, "", 0, 100 * second_ns, &why), QN_WAY_AGAIN);
    assert_true(w.not_before_ns == 156 * second_ns);
    qn_way_end(&w);
}

static void test_failures_in_a_row(void **state)
{
    qn_way w = begin("https://hub/a", NULL);
    int64_t before = 0;
    for (int i = 1; i < QN_WAY_FAILURES_MAX; i++) {
        assert_int_equal(judge(&w, i % 2 ? 0 : 500, "", i % 2 ? "broken" : "", -1), QN_WAY_AGAIN);
        assert_true(w.not_before_ns > before); /* longer each time */
        before = w.not_before_ns;
    }
    assert_int_equal(judge(&w, 200, "", "cut", -1), QN_WAY_STOP);
    assert_non_null(strstr(qn_last_error(), "x: https://hub: cut, 5 times in a row"));
    qn_way_end(&w);
}

static void test_no_answer_to_a_question(void **state)
{
    qn_status why = QN_OK;
    const qn_net_reply distrusted = {.failure = "a bad certificate", .is_final = 1};
    qn_way w = begin("https://hub/a", NULL);
    w.is_question = 1;
    assert_int_equal(judge(&w, 0, "", "no such host", -1), QN_WAY_AGAIN);
    assert_int_equal(judge(&w, 0, "", "no such host", -1), QN_WAY_STOP);
    assert_string_equal(qn_last_error(), "x: https://hub: no such host. Is the network up?");
    qn_way_end(&w);
    w = begin("https://hub/a", NULL);
    assert_int_equal(qn_way_judge(&w, &distrusted, "", 0, 0, &why), QN_WAY_STOP);
    assert_string_equal(qn_last_error(), "x: https://hub: a bad certificate");
    qn_way_end(&w);
}

static void test_an_address_that_ran_out(void **state)
{
    qn_way w = begin("https://hub/a", NULL);
    assert_int_equal(judge(&w, 302, "https://cdn/b", "", -1), QN_WAY_AGAIN);
    assert_int_equal(judge(&w, 403, "", "", -1), QN_WAY_AGAIN);
    assert_string_equal(w.now.data, "https://hub/a");
    assert_int_equal(judge(&w, 403, "", "", -1), QN_WAY_STOP);
    assert_non_null(strstr(qn_last_error(), "(403)"));
    qn_way_end(&w);
}

static void test_refusals(void **state)
{
    static const int statuses[] = {400, 401, 403, 404, 410, 416, 100};
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        qn_way w = begin("https://hub/a?signature=secret", i % 2 ? "t0k3n" : NULL);
        assert_int_equal(judge(&w, statuses[i], "", "", -1), QN_WAY_STOP);
        assert_non_null(strstr(qn_last_error(), "said"));
        assert_null(strstr(qn_last_error(), "secret"));
        assert_null(strstr(qn_last_error(), "t0k3n"));
        qn_way_end(&w);
    }
    qn_way w = begin("https://hub/a", NULL);
    assert_int_equal(judge(&w, 200, "", "", -1), QN_WAY_GO);
    assert_int_equal(judge(&w, 206, "", "", -1), QN_WAY_GO);
    qn_way_end(&w);
}

static void test_headers(void **state)
{
    static char location[QN_URL_BYTES_MAX + 1], link[QN_URL_BYTES_MAX + 1], long_line[QN_URL_BYTES_MAX + 99];
    static const char *const lines[] = {"Content-Length: 12\r\n",
                                        "content-range:bytes 3-5/ 9\r\n",
                                        "ETag: W/\"abc\"\r\n",
                                        "X-Linked-Etag: \"def\"\r\n",
                                        "X-LINKED-SIZE: 7\r\n",
                                        "Retry-After: 30\r\n",
                                        "RateLimit: \"api\";r=0;t=55\r\n",
                                        "X-Error-Code: GatedRepo\r\n",
                                        "Location: /x\r\n",
                                        "Link: <y>; rel=\"next\"\r\n",
                                        "nothing\r\n",
                                        "\r\n",
                                        ": \r\n",
                                        "Content-Range: bytes 3-5/9\r\n"};
    qn_net_reply r = {.location = location, .link = link};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        qn_net_read_header(&r, location, link, lines[i], strlen(lines[i]));
    assert_true(r.length == 12 && r.range_begin == 3 && r.range_total == 9 && r.linked_size == 7 &&
                r.retry_after_s == 30);
    assert_int_equal(r.reset_s, 55);
    assert_string_equal(r.etag, "abc");
    assert_string_equal(r.linked_etag, "def");
    assert_string_equal(r.error, "GatedRepo");
    assert_string_equal(location, "/x");
    assert_string_equal(link, "<y>; rel=\"next\"");
    static const char *const bad[] = {"Content-Length: -1", "Content-Length: 1x",
                                      "Content-Length: 99999999999999999999",
                                      "Content-Length:", "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        r.length = r.retry_after_s = 5;
        qn_net_read_header(&r, location, link, bad[i], strlen(bad[i]));
        assert_true(r.length == -1 || r.retry_after_s == -1);
    }
    memset(long_line, 'x', sizeof long_line - 1);
    memcpy(long_line, "Location:", 9);
    qn_net_read_header(&r, location, link, long_line, sizeof long_line - 1);
    assert_string_equal(location, "");
}

static void test_memory_runs_out(void **state)
{
    for (int n = 1;; n++) {
        qn_way w = {0};
        qn_status why = QN_OK;
        qn_way_step step = QN_WAY_STOP;
        const qn_net_reply r = {.status = 302, .location = "https://cdn/b"},
                           broken = {.status = 500, .retry_after_s = -1};
        const int64_t live = qn_mem_live_blocks();
        qn_mem_fail_nth(n);
        qn_status status = qn_way_begin(&w, "x", "https://hub/a", NULL);
        if (status == QN_OK) step = qn_way_judge(&w, &r, "", 0, 0, &why);
        if (step == QN_WAY_AGAIN) step = qn_way_judge(&w, &broken, "", 0, 0, &why);
        qn_mem_fail_nth(0);
        qn_way_end(&w);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (step == QN_WAY_AGAIN) break;
        assert_int_equal(status == QN_OK ? why : status, QN_E_NOMEM);
        assert_true(n < 2000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_token_stays_at_home),
        cmocka_unit_test(test_redirects_end),
        cmocka_unit_test(test_waiting),
        cmocka_unit_test(test_failures_in_a_row),
        cmocka_unit_test(test_no_answer_to_a_question),
        cmocka_unit_test(test_an_address_that_ran_out),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
