/* The parts of URLs, where redirects lead, and which of them may have the token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "hub/names/url.h"

static void test_parts(void **state)
{
    qn_url u;
    size_t n;
    assert_int_equal(qn_url_parse("https://Host.example:8443/a/b.gguf?x=/y#z", &u), QN_OK);
    assert_true(u.is_https && u.port == 8443 && u.n_host == strlen("Host.example"));
    assert_string_equal(u.path, "/a/b.gguf?x=/y#z");
    const char *file = qn_url_file(&u, &n);
    assert_true(n == 6 && memcmp(file, "b.gguf", 6) == 0);
    assert_int_equal(qn_url_parse("http://[::1]:80", &u), QN_OK);
    assert_true(!u.is_https && u.port == 80 && u.n_host == 5 && qn_url_is_local(&u) && !*u.path);
    assert_int_equal(qn_url_parse("http://127.0.0.1.evil.example/", &u), QN_OK);
    assert_false(qn_url_is_local(&u));
}

static void test_refused(void **state)
{
    static const char *const texts[] = {
        "",           "x",           "ftp://x",         "http://",     "http:///x",
        "http://a b", "http://a\\b", "http://u@h/",     "http://h:0/", "http://h:/",
        "http://h:x", "http://[::1", "http://h:99999/", "http://h/\n", "//h/x"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        qn_url u = {.port = 7};
        if (qn_url_parse(texts[i], &u) != QN_E_ARG) fail_msg("%s was taken", texts[i]);
        assert_int_equal(u.port, 7); /* untouched */
    }
}

static int same(const char *a, const char *b)
{
    qn_url x, y;
    assert_int_equal(qn_url_parse(a, &x), QN_OK);
    assert_int_equal(qn_url_parse(b, &y), QN_OK);
    return qn_url_same_server(&x, &y);
}

static void test_same_server(void **state)
{
    assert_true(same("https://h/x", "https://H:443/y?z"));
    assert_false(same("https://h/", "http://h/"));
    assert_false(same("https://h/", "https://h:444/"));
    assert_false(same("https://h/", "https://h.x/"));
    assert_false(same("https://h/", "https://x.h/"));
}

static void expect_join(const char *base, const char *location, const char *want)
{
    qn_buf out = {0};
    qn_buf_puts(&out, "before");
    qn_status status = qn_url_join(base, location, &out);
    assert_int_equal(status, want ? QN_OK : QN_E_FORMAT);
    assert_string_equal(out.data, want ? want : "before");
    qn_buf_free(&out);
}

static void test_join(void **state)
{
    expect_join("https://h/a/b?c", "https://i/d", "https://i/d");
    expect_join("https://h/a/b?c", "//i/d", "https://i/d");
    expect_join("https://h:1/a/b?c", "/d?e", "https://h:1/d?e");
    expect_join("https://h/a/b?c=/x", "d", "https://h/a/d");
    expect_join("https://h", "d", "https://h/d");
    expect_join("http://h/a", "https://h/b", "https://h/b");
    expect_join("https://h/a", "http://h/b", NULL); /* no longer encrypted */
    expect_join("https://h/a", "ftp://h/b", NULL);
    expect_join("https://h/a", "https://u:p@h/b", NULL);
    expect_join("https://h/a", "https:// h", NULL);
}

static void test_escapes(void **state)
{
    qn_buf b = {0};
    qn_url_put_escaped(&b, "a/b c?d%#\xc3\xa4~.gguf");
    assert_string_equal(b.data, "a/b%20c%3Fd%25%23%C3%A4~.gguf");
    qn_buf_free(&b);
}

static void test_memory_runs_out(void **state)
{
    for (int n = 1;; n++) {
        qn_buf out = {0};
        const int64_t live = qn_mem_live_blocks();
        qn_mem_fail_nth(n);
        qn_status status = qn_url_join("https://h/a/b", "/c", &out);
        qn_mem_fail_nth(0);
        qn_buf_free(&out);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts), cmocka_unit_test(test_refused), cmocka_unit_test(test_same_server),
        cmocka_unit_test(test_join),  cmocka_unit_test(test_escapes), cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
