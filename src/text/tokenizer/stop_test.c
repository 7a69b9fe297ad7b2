#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "text/tokenizer/stop.h"

/* Feeds text in pieces of random size (seed 0: whole). Returns what came out; *hit tells of a match. */
static char *run(const qn_stop_set *set, const char *text, size_t n, uint64_t seed, int *hit)
{
    qn_stop s = {.set = set};
    qn_buf out = {0};
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t piece = seed ? qn_random_bits(seed, i) % 5 : n;
        if (piece > n - at) piece = n - at;
        assert_int_equal(qn_stop_feed(&s, text + at, piece, &out), QN_OK);
        at += piece;
    }
    *hit = s.hit;
    assert_int_equal(qn_stop_flush(&s, &out), QN_OK);
    qn_stop_end(&s);
    return qn_buf_take(&out, NULL);
}

static void expect(const char *const *strings, size_t n, const char *text, const char *want, int want_hit)
{
    qn_stop_set *set = NULL;
    assert_int_equal(qn_stop_set_new(strings, n, &set), QN_OK);
    for (uint64_t seed = 0; seed < 20; seed++) {
        int hit;
        char *got = run(set, text, strlen(text), seed, &hit);
        assert_string_equal(got, want);
        assert_int_equal(hit, want_hit);
        qn_free(got);
    }
    qn_stop_set_free(set);
}

static void test_examples(void **state)
{
    const char *one[] = {"END"}, *several[] = {"aab", "ab", "\n\n", "b\xc3\xa9"}, *nested[] = {"xabcy", "bc"};
    expect(NULL, 0, "anything", "anything", 0);
    expect(one, 1, "the END of it", "the ", 1);
    expect(one, 1, "the EN", "the EN", 0);
    expect(one, 1, "EEENEEND", "EEENE", 1);
    expect(several, 4, "caab", "c", 1);
    expect(several, 4, "cab", "c", 1);
    expect(several, 4, "one\ntwo\n\nthree", "one\ntwo", 1);
    expect(several, 4, "cb\xc3\xa9", "c", 1);
    expect(several, 4, "cb\xc3\xa8", "cb\xc3\xa8", 0);
    expect(nested, 2, "xabcy", "xa", 1);
}

/* Which string it was: the longest that is complete at the place, and of equal ones the first. */
static void test_which(void **state)
{
    static const struct {
        const char *text;
        size_t string;
    } cases[] = {{"caab", 0}, {"cab", 1}, {"one\n\n", 2}, {"xyz", 3}, {"..z", 4}};
    const char *strings[] = {"aab", "ab", "\n\n", "yz", "z", "ab"};
    (void)state;
    qn_stop_set *set = NULL;
    assert_int_equal(qn_stop_set_new(strings, 6, &set), QN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_stop s = {.set = set};
        qn_buf out = {0};
        assert_int_equal(qn_stop_feed(&s, cases[i].text, strlen(cases[i].text), &out), QN_OK);
        assert_true(s.hit);
        assert_int_equal(s.string, cases[i].string);
        qn_stop_end(&s);
        qn_buf_free(&out);
    }
    qn_stop_set_free(set);
}

static void test_holds_back_no_more_than_needed(void **state)
{
    const char *strings[] = {"stop"};
    qn_stop_set *set = NULL;
    qn_buf out = {0};
    assert_int_equal(qn_stop_set_new(strings, 1, &set), QN_OK);
    qn_stop s = {.set = set};
    assert_int_equal(qn_stop_feed(&s, "a sto", 5, &out), QN_OK);
    assert_string_equal(out.data, "a ");
    assert_int_equal(qn_stop_feed(&s, "ne", 2, &out), QN_OK);
    assert_string_equal(out.data, "a stone");
    qn_stop_end(&s);
    qn_buf_free(&out);
    qn_stop_set_free(set);
}

/* The reference: the first end of a string, then the longest string that ends there. */
static size_t cut(const char *const *strings, size_t n, const char *text, size_t length, int *hit)
{
    for (size_t end = 1; end <= length; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++) {
            size_t m = strlen(strings[i]);
            if (m <= end && m > longest && memcmp(text + end - m, strings[i], m) == 0) longest = m;
        }
        if (longest) {
            *hit = 1;
            return end - longest;
        }
    }
    *hit = 0;
    return length;
}

static void test_random(void **state)
{
    for (uint64_t round = 1; round <= 3000; round++) {
        char storage[6][8] = {{0}}, text[64];
        const char *strings[6];
        uint64_t at = 0;
        size_t n = 1 + qn_random_bits(round, at++) % 6, length = qn_random_bits(round, at++) % 64;
        for (size_t i = 0; i < n; i++) {
            size_t m = 1 + qn_random_bits(round, at++) % 7;
            for (size_t j = 0; j < m; j++) storage[i][j] = (char)('a' + qn_random_bits(round, at++) % 2);
            strings[i] = storage[i];
        }
        for (size_t i = 0; i < length; i++) text[i] = (char)('a' + qn_random_bits(round, at++) % 3);
        int want_hit, hit;
        size_t want = cut(strings, n, text, length, &want_hit);
        qn_stop_set *set = NULL;
        assert_int_equal(qn_stop_set_new(strings, n, &set), QN_OK);
        char *got = run(set, text, length, round, &hit);
        assert_int_equal(hit, want_hit);
        assert_int_equal(strlen(got), want);
        assert_memory_equal(got, text, want);
        qn_free(got);
        qn_stop_set_free(set);
    }
}

static void test_refuses(void **state)
{
    static char huge[QN_STOP_BYTES_MAX + 2];
    memset(huge, 'x', sizeof huge - 1);
    const char *empty[] = {"a", ""}, *large[] = {huge};
    qn_stop_set *set = NULL;
    assert_int_equal(qn_stop_set_new(empty, 2, &set), QN_E_ARG);
    assert_string_equal(qn_last_error(), "stop string 1 is empty");
    assert_int_equal(qn_stop_set_new(large, 1, &set), QN_E_ARG);
    assert_null(set);
}

static qn_status build_and_run(void)
{
    const char *strings[] = {"abc", "bcd"};
    qn_stop_set *set = NULL;
    QN_TRY(qn_stop_set_new(strings, 2, &set));
    qn_stop s = {.set = set};
    qn_buf out = {0};
    qn_status status = qn_stop_feed(&s, "xxab", 4, &out);
    if (status == QN_OK) status = qn_stop_flush(&s, &out);
    qn_stop_end(&s);
    qn_buf_free(&out);
    qn_stop_set_free(set);
    return status;
}

static void test_allocation_failures(void **state)
{
    int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1;; n++) {
        assert_true(n < 2000);
        qn_mem_fail_nth(n);
        qn_status status = build_and_run();
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_which),
        cmocka_unit_test(test_holds_back_no_more_than_needed),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
