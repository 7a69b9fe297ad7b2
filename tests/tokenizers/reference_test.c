/* Tokenizers of every kind against the packages that define them: ids, the tokens around, pairs with their types,
 * decoded text. Data: tools/tokenizer_kinds.py, the small set in tests/golden/tokenizer_kinds, or the folder
 * $QUERN_TOKENIZER_KINDS (make test-tokenizers). */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/source/source.h"
#include "tests/support/fixtures.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_source.h"

enum { SHOWN = 5 };

static const char *kinds_folder(void)
{
    const char *given = getenv("QUERN_TOKENIZER_KINDS");
    return given ? given : qn_test_need_fixture("tokenizer_kinds");
}

static qn_status open_folder(const char *folder, qn_tokenizer **out)
{
    qn_source *source = NULL;
    QN_TRY(qn_source_open(folder, &(qn_source_options){.text_only = 1}, &source));
    qn_status status = qn_tokenizer_open(source, NULL, out);
    qn_source_close(source);
    return status;
}

static int same_ids(const json_t *want, const int32_t *ids, size_t n)
{
    if (json_array_size(want) != n) return 0;
    for (size_t i = 0; i < n; i++)
        if (json_integer_value(json_array_get(want, i)) != ids[i]) return 0;
    return 1;
}

static void print_ids(const char *name, const int32_t *ids, size_t n)
{
    printf("   %s:", name);
    for (size_t i = 0; i < n; i++) printf(" %d", ids[i]);
    printf("\n");
}

static int check_ids(const qn_tokenizer *t, const json_t *text, const json_t *want, unsigned flags, int show)
{
    int32_t *ids = NULL;
    size_t n = 0;
    if (qn_tokenizer_encode(t, json_string_value(text), json_string_length(text), flags | QN_ENCODE_SPECIAL,
                            &ids, &n) != QN_OK)
        fail_msg("%s", qn_last_error());
    int same = same_ids(want, ids, n);
    if (!same && show) print_ids("ids", ids, n);
    qn_free(ids);
    return same;
}

static int check_decoded(const qn_tokenizer *t, const json_t *list, const json_t *want)
{
    const size_t n = json_array_size(list);
    int32_t *ids = qn_alloc_array(n + 1, sizeof *ids);
    qn_buf text = {0};
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    assert_int_equal(qn_tokenizer_decode(t, ids, n, 0, &text), QN_OK);
    int same = text.length == json_string_length(want) &&
               (!text.length || memcmp(text.data, json_string_value(want), text.length) == 0);
    qn_buf_free(&text);
    qn_free(ids);
    return same;
}

static int check_pair(const qn_tokenizer *t, const json_t *row, int show)
{
    qn_text_segment texts[2];
    qn_token_pair pair = {0};
    for (size_t i = 0; i < 2; i++) {
        const json_t *text = json_array_get(json_object_get(row, "pair"), i);
        texts[i] = (qn_text_segment){json_string_value(text), json_string_length(text), 1};
    }
    if (qn_tokenizer_encode_pair(t, &texts[0], &texts[1], QN_ENCODE_BOS,
                                 (size_t)json_integer_value(json_object_get(row, "max")), &pair) != QN_OK)
        fail_msg("%s", qn_last_error());
    int same = same_ids(json_object_get(row, "ids"), pair.ids, pair.n) &&
               same_ids(json_object_get(row, "types"), pair.types, pair.n);
    if (!same && show) {
        print_ids("ids", pair.ids, pair.n);
        print_ids("types", pair.types, pair.n);
    }
    qn_token_pair_free(&pair);
    return same;
}

static int check_row(const qn_tokenizer *t, const json_t *row, int show)
{
    const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, "ids"),
                 *around = json_object_get(row, "around"), *decoded = json_object_get(row, "decoded");
    if (json_object_get(row, "pair")) return check_pair(t, row, show);
    return check_ids(t, text, ids, 0, show) && (!around || check_ids(t, text, around, QN_ENCODE_BOS, show)) &&
           (!decoded || check_decoded(t, ids, decoded));
}

static int check_kind(const char *folder)
{
    char path[4200], *line = NULL;
    size_t capacity = 0, n = 0, n_other = 0;
    qn_tokenizer *t = NULL;
    if (open_folder(folder, &t) != QN_OK) fail_msg("%s: %s", folder, qn_last_error());
    snprintf(path, sizeof path, "%s/cases.jsonl", folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (; getline(&line, &capacity, f) > 0; n++) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        if (!check_row(t, row, 0) && n_other++ < SHOWN) {
            printf("%s: line %zu: %s", folder, n + 1, line);
            check_row(t, row, 1);
        }
        json_decref(row);
    }
    free(line); /* foreign: getline's */
    fclose(f);
    qn_tokenizer_free(t);
    printf("%s: %zu cases, %zu differ\n", folder, n, n_other);
    assert_true(n > 0);
    return n_other == 0;
}

static void each_kind(int (*check)(const char *folder))
{
    char folder[4100];
    const char *base = kinds_folder();
    DIR *d = opendir(base);
    int n = 0, n_bad = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(folder, sizeof folder, "%s/%s", base, e->d_name);
        n_bad += !check(folder);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
    assert_int_equal(n_bad, 0);
}

static void test_against_references(void **state)
{
    each_kind(check_kind);
}

static int check_memory(const char *folder)
{
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; n < 200000 && status != QN_OK; n += n < 300 ? 1 : 97) {
        qn_text_segment text = {"a b", 3, 0};
        qn_tokenizer *t = NULL;
        qn_token_pair pair = {0};
        qn_mem_fail_nth(n);
        status = open_folder(folder, &t);
        if (status == QN_OK) status = qn_tokenizer_encode_pair(t, &text, &text, QN_ENCODE_BOS, 0, &pair);
        qn_mem_fail_nth(0);
        if (status == QN_E_UNSUPPORTED) status = QN_OK; /* no rule for pairs */
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_token_pair_free(&pair);
        qn_tokenizer_free(t);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    return status == QN_OK;
}

static void test_out_of_memory(void **state)
{
    if (getenv("QUERN_TOKENIZER_KINDS")) return;
    each_kind(check_memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_references),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
