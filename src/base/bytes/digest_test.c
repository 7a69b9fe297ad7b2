/* SHA-256 and git's SHA-1: published vectors, and the same sum however the bytes are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/bytes/digest.h"
#include "base/mem.h"

static void expect(qn_digest_kind kind, const void *bytes, size_t n, const char *hex)
{
    char got[QN_SUM_HEX_MAX];
    qn_digest d;
    qn_digest_begin(&d, kind, (int64_t)n);
    qn_digest_put(&d, bytes, n);
    qn_digest_end(&d, got);
    assert_string_equal(got, hex);
    if (kind != QN_SUM_SHA256) return;
    unsigned char sum[QN_SUM_BYTES];
    qn_digest_begin(&d, kind, (int64_t)n);
    qn_digest_put(&d, bytes, n);
    qn_digest_end_bytes(&d, sum);
    for (int i = 0; i < QN_SUM_BYTES; i++) snprintf(got + 2 * i, 3, "%02x", sum[i]);
    assert_string_equal(got, hex);
}

static void test_vectors(void **state)
{
    /* FIPS 180-4's examples, and what `git hash-object` says. */
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    expect(QN_SUM_SHA256, "", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect(QN_SUM_SHA256, "abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect(QN_SUM_SHA256, two, strlen(two),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect(QN_SUM_GIT_SHA1, "", 0, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    expect(QN_SUM_GIT_SHA1, "hello\n", 6, "ce013625030ba8dba906f756967f9e9ca394464a");
    expect(QN_SUM_NONE, "abc", 3, "");
}

static void test_a_million_letters(void **state)
{
    enum { N = 1000000 };
    char *text = qn_alloc(N);
    assert_non_null(text);
    memset(text, 'a', N);
    expect(QN_SUM_SHA256, text, N, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    qn_free(text);
}

static void test_any_cut(void **state)
{
    unsigned char bytes[300];
    char whole[QN_SUM_HEX_MAX], cut[QN_SUM_HEX_MAX];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 7);
    for (int kind = QN_SUM_SHA256; kind <= QN_SUM_GIT_SHA1; kind++)
        for (size_t n = 0; n <= sizeof bytes; n += 13)
            for (size_t at = 0; at <= n; at++) {
                qn_digest d;
                qn_digest_begin(&d, (qn_digest_kind)kind, (int64_t)n);
                qn_digest_put(&d, bytes, n);
                qn_digest_end(&d, whole);
                qn_digest_begin(&d, (qn_digest_kind)kind, (int64_t)n);
                qn_digest_put(&d, bytes, at);
                qn_digest_put(&d, bytes + at, n - at);
                qn_digest_end(&d, cut);
                assert_string_equal(whole, cut);
            }
}

static void test_is_hex(void **state)
{
    assert_true(qn_digest_is_hex("00ff", 4));
    assert_false(qn_digest_is_hex("00fF", 4));
    assert_false(qn_digest_is_hex("00ff", 3));
    assert_false(qn_digest_is_hex("../x", 4));
    assert_false(qn_digest_is_hex("", 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_a_million_letters),
        cmocka_unit_test(test_any_cut),
        cmocka_unit_test(test_is_hex),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
