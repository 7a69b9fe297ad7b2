/* The bound on reasoning: where it falls, token by token, beside a count over the whole text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/schedule/reasoning.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { TEXT_MOST = 64 << 20 };

static qn_tokenizer *read_tokenizer(const char *name)
{
    char relative[64];
    qn_tokenizer *t = NULL;
    snprintf(relative, sizeof relative, "tokenizers/%s/tokenizer.json", name);
    FILE *f = fopen(qn_test_need_fixture(relative), "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    const size_t n = (size_t)ftell(f);
    assert_true(n < TEXT_MOST);
    rewind(f);
    char *text = qn_alloc(n);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, n, f), n);
    fclose(f);
    assert_int_equal(qn_tokenizer_from_json(relative, text, n, &t), QN_OK);
    qn_free(text);
    return t;
}

/* Is reasoning open behind text[0..n)? By looking for the marks from the beginning. */
static int is_open(const char *text, size_t n, const char *open, const char *close, int begins_inside)
{
    int inside = begins_inside;
    for (size_t i = 0; i < n;) {
        const char *mark = inside ? close : open;
        const size_t m = strlen(mark);
        if (i + m <= n && memcmp(text + i, mark, m) == 0) {
            inside = !inside;
            i += m;
        } else {
            i++;
        }
    }
    return inside;
}

/* The first ids that the bound leaves of a text, by the definition: tokens that begin and end inside. Characters of these texts are whole in each token. */
static size_t count_free(const qn_tokenizer *t, const int32_t *ids, size_t n, const qn_reasoning_options *o)
{
    int64_t n_inside = 0;
    qn_buf text = {0};
    size_t i = 0;
    if (o->begins_inside && !o->most) return 0;
    while (i < n) {
        const size_t before = text.length;
        assert_int_equal(qn_tokenizer_piece(t, ids[i++], &text), QN_OK);
        const int was = is_open(text.data, before, o->open, o->close, o->begins_inside),
                  now = is_open(text.data, text.length, o->open, o->close, o->begins_inside);
        n_inside += was && now;
        if (now && n_inside >= o->most) break;
    }
    qn_buf_free(&text);
    return i;
}

static const char *const texts[] = {
    "<think>one two three four five</think>six seven",
    "one two <think>three</think> four <think>five six seven eight nine",
    "<thi<think>a b c d e f</thi</think>g h i j k l",
    "no marks at all, only a few words that are an answer",
    "<<think>>x y z</<</think>",
    "<think></think><think></think><think>a b c d e f g h i",
    "a b c</think> d e f <think> g h i j k",
};

static void test_bounds(void **state)
{
    qn_tokenizer *t = read_tokenizer("llama3");
    static const int32_t forced[] = {11, 12, 13};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t *ids = NULL;
        size_t n = 0;
        assert_int_equal(qn_tokenizer_encode(t, texts[i], strlen(texts[i]), 0, &ids, &n), QN_OK);
        for (int64_t most = 0; most < 12; most++) {
            for (int inside = 0; inside < 2; inside++) {
                const qn_reasoning_options o = {t, "<think>", "</think>", inside, most, forced, 3};
                qn_reasoning *r = NULL;
                size_t k = 0;
                qn_test_ok(qn_reasoning_new(&o, &r));
                while (qn_reasoning_forced(r) < 0 && k < n) qn_test_ok(qn_reasoning_accept(r, ids[k++]));
                const size_t want = count_free(t, ids, n, &o);
                if (k != want)
                    fail_msg("text %zu, %d tokens, %d: %zu are free, not %zu", i, (int)most, inside, k, want);
                if (qn_reasoning_forced(r) >= 0) {
                    for (int f = 0; f < 3; f++) {
                        assert_int_equal(qn_reasoning_forced(r), forced[f]);
                        qn_test_ok(qn_reasoning_accept(r, forced[f]));
                    }
                    assert_int_equal(qn_reasoning_forced(r), -1);
                    /* What opens again is closed at once, for the count goes on. */
                    int32_t *again = NULL;
                    size_t n_again = 0;
                    assert_int_equal(qn_tokenizer_encode(t, "<think>", 7, 0, &again, &n_again), QN_OK);
                    for (size_t a = 0; a < n_again; a++) {
                        assert_int_equal(qn_reasoning_forced(r), -1);
                        qn_test_ok(qn_reasoning_accept(r, again[a]));
                    }
                    assert_int_equal(qn_reasoning_forced(r), 11);
                    qn_reasoning_give_up(r);
                    qn_test_ok(qn_reasoning_accept(r, 14));
                    assert_int_equal(qn_reasoning_forced(r), -1);
                    qn_free(again);
                }
                qn_reasoning_free(r);
            }
        }
        qn_free(ids);
    }
    assert_int_equal(qn_reasoning_forced(NULL), -1);
    qn_test_ok(qn_reasoning_accept(NULL, 1));
    qn_reasoning_free(NULL);
    qn_tokenizer_free(t);
}

/* A bound within a character waits for its end. */
static void test_characters(void **state)
{
    static const char text[] = "\xf0\x9f\xa6\x86\xf0\x9f\xa6\x86"; /* a duck is several tokens */
    static const int32_t forced[] = {11};
    qn_tokenizer *t = read_tokenizer("llama3");
    int32_t *ids = NULL;
    size_t n = 0, k = 0;
    assert_int_equal(qn_tokenizer_encode(t, text, strlen(text), 0, &ids, &n), QN_OK);
    assert_true(n > 2);
    const qn_reasoning_options o = {t, "<think>", "</think>", 1, 1, forced, 1};
    qn_reasoning *r = NULL;
    qn_test_ok(qn_reasoning_new(&o, &r));
    qn_buf said = {0};
    while (qn_reasoning_forced(r) < 0 && k < n) {
        assert_int_equal(qn_tokenizer_piece(t, ids[k], &said), QN_OK);
        qn_test_ok(qn_reasoning_accept(r, ids[k++]));
    }
    assert_true(k > 1 && k < n && said.length % 4 == 0);
    qn_reasoning_free(r);
    qn_buf_free(&said);
    qn_free(ids);
    qn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds), cmocka_unit_test(test_characters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
