/* The reader of requests: what is taken, what is refused, and that it does not matter how the bytes arrive.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/mem.h"
#include "server/http/http.h"

enum { BODY_MAX = 100 };

/* Feeds text in pieces of n bytes; the state at the end. *used: bytes taken. */
static void feed(qn_http *h, const char *text, size_t length, size_t n, size_t *used)
{
    qn_http_start(h, BODY_MAX);
    *used = 0;
    while (*used < length && h->state != QN_HTTP_FAILED && h->state != QN_HTTP_DONE) {
        size_t piece = length - *used < n ? length - *used : n;
        *used += qn_http_feed(h, text + *used, piece);
        if (h->state == QN_HTTP_READY) qn_http_read_body(h);
    }
}

#define GET "GET /health HTTP/1.1\r\nHost: a\r\n"
#define POST "POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\n"

static void test_taken(void **state)
{
    static const struct {
        const char *text, *path, *query, *body;
        int keep_alive;
    } cases[] = {
        {GET "\r\n", "/health", "", "", 1},
        {GET "Connection: foo , Close\r\n\r\n", "/health", "", "", 0},
        {"GET / HTTP/1.0\r\n\r\n", "/", "", "", 0},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "/", "", "", 1},
        {POST "content-length: 3\r\n\r\nabc", "/v1/x", "y=1", "abc", 1},
        {POST "Content-Length:0\r\n\r\n", "/v1/x", "y=1", "", 1},
        {POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\n\r\n\r\n0\r\n\r\n", "/v1/x", "y=1",
         "abc\r\n", 1},
        {POST "Transfer-Encoding: chunked\r\n\r\n0A\r\n0123456789\r\n00\r\n\r\n", "/v1/x", "y=1",
         "0123456789", 1},
        {"\r\n\r\n" GET "\r\n", "/health", "", "", 1},
        {POST "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2 \t; a=\"b;c\"\r\nde\r\n0;last\r\n\r\n",
         "/v1/x", "y=1", "abcde", 1},
        {"GET http://a/b?c HTTP/1.1\r\nHost: z\r\n\r\n", "/b", "c", "", 1},
        {"GET HTTPS://a:80?c=/ HTTP/1.1\r\nHost: z\r\n\r\n", "/", "c=/", "", 1},
        {"GET http://a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "/", "", "", 1},
        {"GET /%68ealt%68/%2e%7E%2F%2b?%61 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "/health/.~%2F%2b",
         "%61", "", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length = strlen(cases[i].text);
        for (size_t n = 1; n <= length; n++) {
            qn_http h;
            size_t used;
            feed(&h, cases[i].text, length, n, &used);
            assert_int_equal(h.state, QN_HTTP_DONE);
            assert_int_equal(used, length);
            assert_string_equal(h.path, cases[i].path);
            assert_string_equal(h.query, cases[i].query);
            assert_int_equal(h.body.length, strlen(cases[i].body));
            if (h.body.length) assert_memory_equal(h.body.data, cases[i].body, h.body.length);
            assert_int_equal(h.keep_alive, cases[i].keep_alive);
            qn_http_free(&h);
        }
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"\r\n\r\n\r\n\r\n\r\n", 400},
        {"GET /\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\n\r\n", 505},
        {"GET / HTTP/\r\n\r\n", 505}, /* shorter than any version that is known */
        {"GET / HTTP/1.1.\r\n\r\n", 505},
        {"GET / http/1.1\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1 \r\n\r\n", 400},
        {"G(T / HTTP/1.1\r\n\r\n", 400},
        {"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET http://a/ HTTP/1.1\r\n\r\n", 400}, /* no host */
        {"GET /%6 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%g1 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},      /* no host */
        {GET "Host: b\r\n\r\n", 400},         /* two hosts */
        {"GET / HTTP/1.1\nHost: a\n\n", 400}, /* bare line feeds */
        {GET "A: b\rc\r\n\r\n", 400},         /* a bare return */
        {GET "A: b\r\n c\r\n\r\n", 400},      /* folded */
        {GET "A : b\r\n\r\n", 400},           /* white space before the colon */
        {GET ": b\r\n\r\n", 400},
        {GET "A\r\n\r\n", 400},
        {GET "A: \x7f\r\n\r\n", 400},
        {POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
        {POST "Content-Length: 3, 3\r\n\r\nabc", 400},
        {POST "Content-Length: +3\r\n\r\nabc", 400},
        {POST "Content-Length: 0x3\r\n\r\nabc", 400},
        {POST "Content-Length:\r\n\r\nabc", 400},
        {POST "Content-Length: 99999999999999999999\r\n\r\n", 400},
        {POST "Content-Length: 101\r\n\r\n", 413},
        {POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: xchunked\r\n\r\n", 400},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n3;x\ny\r\nabc\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n3;x\ry\r\nabc\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n3;x\x01\r\nabc\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n;x\r\nabc\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc;x\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n65\r\n", 413},
        {POST "Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n", 413},
        {POST "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n", 400},
        {POST "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n", 415},
        {POST "Expect: 200-ok\r\n\r\n", 417},
        {GET "X-Api-Key: a\r\nX-Api-Key: a\r\n\r\n", 400},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length = strlen(cases[i].text);
        for (size_t n = 1; n <= length; n++) {
            qn_http h;
            size_t used;
            feed(&h, cases[i].text, length, n, &used);
            if (h.state != QN_HTTP_FAILED || h.status != cases[i].status)
                fail_msg("case %zu (%s) in pieces of %zu: state %d, status %d", i, cases[i].text, n,
                         (int)h.state, h.status);
            assert_non_null(h.why);
            qn_http_free(&h);
        }
    }
}

/* What stands first in the request is what it is refused for, and nothing is taken over from its line. */
static void test_first_reason(void **state)
{
    static const struct {
        const char *text;
        int status;
        const char *why;
    } cases[] = {
        {"G(T x HTTP/2.0\r\n\r\n", 400, "the method is malformed"},
        {" / HTTP/2.0\r\n\r\n", 400, "the method is malformed"},
        {"GET x HTTP/2.0\r\n\r\n", 505, "only HTTP/1.1 and HTTP/1.0 are supported"},
        {"GET \x01 HTTP/1.1\r\n\r\n", 400, "the target is not a path"},
        {GET "Host: \x01\r\n\r\n", 400, "a header has a control character"},
        {"GET / HTTP/1.1\r\nExpect: x\r\n\r\n", 400, "the header Host is missing"},
        {POST "Content-Length: x\r\nExpect: x\r\n\r\n", 400, "Content-Length is not a number"},
        {POST "Content-Length: \r\nExpect: x\r\n\r\n", 400, "Content-Length is not a number"},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "HTTP/1.0 has no Transfer-Encoding"},
        {POST "Content-Encoding: gzip\r\nExpect: x\r\n\r\n", 415, "compressed requests are not supported"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_http h;
        size_t used, length = strlen(cases[i].text);
        feed(&h, cases[i].text, length, length, &used);
        assert_int_equal(h.state, QN_HTTP_FAILED);
        assert_int_equal(h.status, cases[i].status);
        assert_string_equal(h.why, cases[i].why);
        if (i < 4) assert_true(!h.method && !h.path && !h.query && !h.keep_alive);
        qn_http_free(&h);
    }
}

static void test_nul_byte(void **state)
{
    static const char text[] = GET "A: b\0c\r\n\r\n";
    qn_http h;
    size_t used;
    (void)state;
    feed(&h, text, sizeof text - 1, 1, &used);
    assert_int_equal(h.status, 400);
    qn_http_free(&h);
}

static void test_bounds(void **state)
{
    qn_http h;
    size_t used;
    qn_buf text = {0};
    (void)state;
    qn_buf_puts(&text, GET "A: ");
    for (int i = 0; i < QN_HTTP_HEAD_MAX; i++) qn_buf_putc(&text, 'x');
    feed(&h, text.data, text.length, text.length, &used);
    assert_int_equal(h.status, 431);
    assert_true(h.head.length <= QN_HTTP_HEAD_MAX);
    qn_http_free(&h);
    qn_buf_reset(&text);
    qn_buf_puts(&text, GET);
    for (int i = 0; i < QN_HTTP_HEADERS_MAX; i++) qn_buf_printf(&text, "a%d: b\r\n", i);
    qn_buf_puts(&text, "\r\n");
    feed(&h, text.data, text.length, text.length, &used);
    assert_int_equal(h.status, 431);
    qn_http_free(&h);
    qn_buf_free(&text);
}

/* What follows a request stays for the next one. */
static void test_one_after_the_other(void **state)
{
    static const char text[] = POST "Content-Length: 2\r\n\r\nab" GET "\r\n";
    qn_http h;
    size_t used;
    (void)state;
    feed(&h, text, sizeof text - 1, sizeof text, &used);
    assert_int_equal(h.state, QN_HTTP_DONE);
    qn_http_next(&h);
    assert_false(qn_http_is_inside(&h));
    used += qn_http_feed(&h, text + used, sizeof text - 1 - used);
    assert_int_equal(used, sizeof text - 1);
    assert_int_equal(h.state, QN_HTTP_READY);
    qn_http_read_body(&h);
    assert_int_equal(h.state, QN_HTTP_DONE);
    assert_string_equal(h.method, "GET");
    assert_string_equal(qn_http_get(&h, "host"), "a");
    qn_http_free(&h);
}

static void test_memory_runs_out(void **state)
{
    static const char text[] = POST "Content-Length: 3\r\n\r\nabc";
    int64_t live = qn_mem_live_blocks();
    int done = 0;
    (void)state;
    for (int64_t nth = 1; !done && nth < 2000; nth++) {
        qn_http h;
        size_t used;
        qn_mem_fail_nth(nth);
        feed(&h, text, sizeof text - 1, 7, &used);
        qn_mem_fail_nth(0);
        done = h.state == QN_HTTP_DONE;
        if (!done) assert_int_equal(h.status, 503);
        qn_http_free(&h);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_true(done);
}

/* The host of a URL is the host that counts. */
static void test_authority(void **state)
{
    static const char *const texts[] = {"GET http://a:1/b HTTP/1.1\r\nHost: evil\r\n\r\n",
                                        "GET http://a:1/b HTTP/1.0\r\n\r\n"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        qn_http h;
        size_t used;
        feed(&h, texts[i], strlen(texts[i]), 7, &used);
        assert_int_equal(h.state, QN_HTTP_DONE);
        assert_string_equal(qn_http_get(&h, "host"), "a:1");
        assert_string_equal(h.path, "/b");
        qn_http_free(&h);
    }
}

/* The example of RFC 9110, a leap day, and the ends of years. */
static void test_date(void **state)
{
    static const struct {
        int64_t time_s;
        const char *date;
    } cases[] = {{784111777, "Sun, 06 Nov 1994 08:49:37 GMT"},
                 {0, "Thu, 01 Jan 1970 00:00:00 GMT"},
                 {951827696, "Tue, 29 Feb 2000 12:34:56 GMT"},
                 {1798761599, "Thu, 31 Dec 2026 23:59:59 GMT"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char date[QN_HTTP_DATE_BYTES];
        qn_http_date(cases[i].time_s, date);
        assert_string_equal(date, cases[i].date);
    }
}

/* Extensions say nothing, so they may not go on for ever. */
static void test_long_extensions(void **state)
{
    static const char head[] = POST "Transfer-Encoding: chunked\r\n\r\n";
    qn_http h;
    size_t used, n = 0;
    (void)state;
    feed(&h, head, strlen(head), 100, &used);
    while (h.state == QN_HTTP_BODY && n < 2 * QN_HTTP_EXTENSIONS_MAX)
        n += qn_http_feed(&h, "1;aaaa\r\nb\r\n", 11);
    assert_int_equal(h.state, QN_HTTP_FAILED);
    qn_http_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_authority),
        cmocka_unit_test(test_date),
        cmocka_unit_test(test_long_extensions),
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_first_reason),
        cmocka_unit_test(test_nul_byte),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
