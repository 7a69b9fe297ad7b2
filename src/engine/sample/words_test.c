/* Words of the options as ids of real vocabularies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sample/words.h"
#include "tests/support/fixtures.h"

enum { CONTEXT = 100, TEXT_MOST = 64 << 20 };

static const char *const names[] = {"llama3", "gemma3"};

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

static int64_t size_of(const qn_tokenizer *t)
{
    return (int64_t)qn_tokenizer_vocab_size(t);
}

/* A token breaks if its text holds one of the breakers, and no other does. */
static void check_breakers(const qn_tokenizer *t, const qn_words *w, const char *const *texts, size_t n)
{
    qn_buf piece = {0};
    int n_breakers = 0;
    for (int32_t id = 0; id < size_of(t); id++) {
        int want = 0;
        qn_buf_reset(&piece);
        assert_int_equal(qn_tokenizer_piece(t, id, &piece), QN_OK);
        for (size_t i = 0; i < n && piece.length; i++)
            want |= memmem(piece.data, piece.length, texts[i], strlen(texts[i])) != NULL;
        n_breakers += want;
        assert_int_equal(qn_words_breakers(w)[id / 64] >> (id % 64) & 1, want);
    }
    assert_true(n_breakers > 0);
    qn_buf_free(&piece);
}

static void test_breakers(void **state)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"}, *const own[] = {"th", "e"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_tokenizer *t = read_tokenizer(names[i]);
        qn_words *w = NULL;
        qn_generate_options o = {.dry_multiplier = 1};
        assert_int_equal(qn_words_new(t, &o, size_of(t), CONTEXT, &w), QN_OK);
        check_breakers(t, w, usual, 4);
        qn_words_free(w);
        o.dry_sequence_breakers = own;
        o.n_dry_sequence_breakers = 2;
        assert_int_equal(qn_words_new(t, &o, size_of(t), CONTEXT, &w), QN_OK);
        check_breakers(t, w, own, 2);
        qn_words_free(w);
        o.n_dry_sequence_breakers = 0;
        assert_int_equal(qn_words_new(t, &o, size_of(t), CONTEXT, &w), QN_OK);
        assert_null(qn_words_breakers(w));
        qn_words_free(w);
        o.dry_multiplier = 0; /* DRY is off */
        o.dry_sequence_breakers = NULL;
        o.repeat_last_n = 1;
        assert_int_equal(qn_words_new(t, &o, size_of(t), CONTEXT, &w), QN_OK);
        assert_null(qn_words_breakers(w));
        qn_words_free(w);
        qn_tokenizer_free(t);
    }
}

/* No token holds it: the last one of its encoding breaks. */
static void test_breaker_of_many_tokens(void **state)
{
    static const char *const text[] = {"qzxv jqkw zzq"};
    qn_tokenizer *t = read_tokenizer("llama3");
    const qn_generate_options o = {
        .dry_multiplier = 1, .dry_sequence_breakers = text, .n_dry_sequence_breakers = 1};
    qn_words *w = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    int n_breakers = 0;
    assert_int_equal(qn_words_new(t, &o, size_of(t), CONTEXT, &w), QN_OK);
    assert_int_equal(qn_tokenizer_encode(t, text[0], strlen(text[0]), 0, &ids, &n), QN_OK);
    assert_true(n > 1);
    for (int64_t id = 0; id < size_of(t); id++)
        n_breakers += (int)(qn_words_breakers(w)[id / 64] >> (id % 64) & 1);
    assert_int_equal(n_breakers, 1);
    assert_true(qn_words_breakers(w)[ids[n - 1] / 64] >> (ids[n - 1] % 64) & 1);
    qn_free(ids);
    qn_words_free(w);
    qn_tokenizer_free(t);
}

/* Behind any text that ends with all but the last token of a bad word, at a begin or behind a space, that
 * token cannot come. */
static void test_bad_words(void **state)
{
    static const char *const bad[] = {"hello", "unbelievably wrong"}, *const texts[] = {
                                                                          "hello", "say hello",
                                                                          "unbelievably wrong",
                                                                          "so unbelievably wrong"};
    static float logits[1 << 19];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_tokenizer *t = read_tokenizer(names[i]);
        const qn_generate_options o = {.bad_words = bad, .n_bad_words = 2};
        const int64_t n_vocab = size_of(t);
        qn_words *w = NULL;
        assert_true(n_vocab <= 1 << 19);
        assert_int_equal(qn_words_new(t, &o, n_vocab, CONTEXT, &w), QN_OK);
        assert_true(qn_words_ban(w) && qn_words_longest(w) > 1);
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            int32_t *ids = NULL;
            size_t n = 0;
            int n_banned = 0;
            assert_int_equal(qn_tokenizer_encode(t, texts[k], strlen(texts[k]), 0, &ids, &n), QN_OK);
            memset(logits, 0, (size_t)n_vocab * sizeof *logits);
            qn_words_mask(w, ids, (int64_t)n - 1, logits);
            assert_true(logits[ids[n - 1]] == -INFINITY);
            for (int64_t id = 0; id < n_vocab; id++) n_banned += logits[id] == -INFINITY;
            assert_true(n_banned <= 4);
            qn_free(ids);
        }
        qn_words_free(w);
        qn_tokenizer_free(t);
    }
}

static void test_windows(void **state)
{
    const qn_generate_options o = {.repeat_last_n = 5};
    qn_words *w = NULL;
    assert_int_equal(qn_words_new(NULL, &o, 10, CONTEXT, &w), QN_OK);
    assert_int_equal(qn_words_window(w, 5), 5);
    assert_int_equal(qn_words_window(w, 0), CONTEXT);
    assert_int_equal(qn_words_window(w, -1), CONTEXT);
    assert_int_equal(qn_words_window(w, INT32_MAX), CONTEXT);
    assert_false(qn_words_ban(w));
    qn_words_free(w);
}

static void test_allocation_failures(void **state)
{
    static const char *const bad[] = {"so wrong"}, *const breakers[] = {"qzxv jqkw zzq"};
    qn_tokenizer *t = read_tokenizer("llama3");
    const qn_generate_options o = {.dry_multiplier = 1,
                                   .dry_sequence_breakers = breakers,
                                   .n_dry_sequence_breakers = 1,
                                   .bad_words = bad,
                                   .n_bad_words = 1};
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; status != QN_OK; n++) {
        assert_true(n < 2000);
        qn_words *w = NULL;
        qn_mem_fail_nth(n);
        status = qn_words_new(t, &o, size_of(t), CONTEXT, &w);
        qn_mem_fail_nth(0);
        qn_words_free(w);
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_true(status == QN_OK || status == QN_E_NOMEM);
    }
    qn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_breakers),
        cmocka_unit_test(test_breaker_of_many_tokens),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
