/* The hand-written scanners against the expressions they stand for, and the behaviours of splits. */
#include "text/tokenizer/split/pretokenize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "format/files/mmap.h"
#include "tests/support/fixtures.h"
#include "text/tokenizer/split/reference.h"
#include "text/tokenizer/split/split_fast.h"

static const char *const patterns[] = {qn_gpt2_pattern, qn_llama3_pattern, qn_qwen2_pattern};

static qn_pretokenizer *from_json(const json_t *v)
{
    qn_pretokenizer *p = NULL;
    if (qn_pretokenizer_from_json("test", v, &p) != QN_OK) fail_msg("%s", qn_last_error());
    return p;
}

static qn_pretokenizer *splitter(const char *pattern, const char *behavior, int invert, int fast)
{
    json_t *v = json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern", "Regex", pattern, "behavior",
                          behavior, "invert", invert);
    qn_pretokenizer *p = from_json(v);
    qn_pretokenizer_set_fast(p, fast);
    json_decref(v);
    return p;
}

/* Cuts the text both ways and compares. */
static void compare(const qn_pretokenizer *fast, const qn_pretokenizer *slow, qn_regex_match *m,
                    const char *text, size_t n)
{
    static qn_pieces a, b, spare;
    assert_int_equal(qn_pieces_set(&a, text, n), QN_OK);
    assert_int_equal(qn_pieces_set(&b, text, n), QN_OK);
    assert_int_equal(qn_pretokenizer_run(fast, m, QN_AFTER_NOTHING, &a, &spare), QN_OK);
    assert_int_equal(qn_pretokenizer_run(slow, m, QN_AFTER_NOTHING, &b, &spare), QN_OK);
    int same = a.n == b.n && (!a.n || memcmp(a.length, b.length, a.n * sizeof *a.length) == 0);
    if (!same) {
        qn_buf shown = {0};
        qn_buf_json_string(&shown, text, n);
        fail_msg("%zu and %zu pieces of %s", a.n, b.n, shown.data);
    }
    if (n == 0) {
        qn_pieces_free(&a);
        qn_pieces_free(&b);
        qn_pieces_free(&spare);
    }
}

/* A code point that both Unicode versions know. */
static uint32_t draw(uint64_t seed, uint64_t *at, const char *unknown)
{
    static const char common[] = "  \n\r\t'sStTrReEvVmMlLdDabc019.,!-_\"";
    static const uint32_t odd[] = {0x17f,  0xa0,   0x85,   0x2028, 0x3000, 0x180e,  0x200b,  0x200d,
                                   0x300,  0xe9,   0x5d0,  0x4e2d, 0x660,  0x2167,  0xbd,    0x1f600,
                                   0xfe0f, 0x2019, 0x212a, 0xfeff, 0,      0x1d7d8, 0x10fffd};
    for (;;) {
        uint64_t r = qn_random_bits(seed, (*at)++);
        uint32_t kind = (uint32_t)(r & 15), pick = (uint32_t)(r >> 16);
        uint32_t cp = kind < 10   ? (uint32_t)common[pick % (sizeof common - 1)]
                      : kind < 13 ? odd[pick % (sizeof odd / sizeof odd[0])]
                      : kind < 15 ? pick % 0x3000
                                  : pick % 0x110000;
        if ((cp < 0xd800 || cp >= 0xe000) && !unknown[cp]) return cp;
    }
}

/* unknown[cp]: PCRE2's tables do not have the code point yet, utf8proc's may, and it has no stand-in. */
static char *unknown_points(qn_regex_match *m)
{
    char *unknown = qn_calloc(0x110000, 1), utf8[4];
    qn_buf all = {0};
    qn_regex *r = NULL;
    assert_non_null(unknown);
    for (uint32_t cp = 0; cp < 0x110000; cp++)
        if (cp < 0xd800 || cp >= 0xe000) qn_buf_append(&all, utf8, qn_utf8_encode(cp, utf8));
    assert_int_equal(qn_regex_new("\\p{Cn}+", 7, &r), QN_OK);
    qn_regex_walk w = {0};
    for (;;) {
        int found;
        size_t start, end;
        assert_int_equal(qn_regex_next(r, m, all.data, all.length, &w, &found, &start, &end), QN_OK);
        if (!found) break;
        uint32_t cp;
        for (size_t i = start, used; i < end; i += used) {
            used = qn_utf8_decode(all.data + i, end - i, &cp);
            unknown[cp] = 1;
        }
    }
    qn_regex_free(r);
    qn_buf_free(&all);
    for (int i = 0; i < qn_stand_in_count; i++)
        for (uint32_t cp = qn_stand_ins[i].first; cp <= qn_stand_ins[i].last; cp++) unknown[cp] = 0;
    return unknown;
}

static void test_scanners_on_random_text(void **state)
{
    qn_regex_match *m = qn_regex_match_new();
    char *unknown = unknown_points(m);
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        qn_pretokenizer *fast = splitter(patterns[i], "Isolated", 0, 1),
                        *slow = splitter(patterns[i], "Isolated", 0, 0);
        uint64_t at = 0;
        for (int round = 0; round < 20000; round++) {
            char text[256];
            size_t n = 0, length = qn_random_bits(i + 100, (uint64_t)round) % 24;
            for (size_t j = 0; j < length; j++) n += qn_utf8_encode(draw(i, &at, unknown), text + n);
            if (n) compare(fast, slow, m, text, n);
        }
        /* Every code point on its own, after a letter, a space and a newline. */
        for (uint32_t cp = 0; cp < 0x30000; cp++) {
            char text[32] = "a";
            size_t n = 1;
            if ((cp >= 0xd800 && cp < 0xe000) || unknown[cp]) continue;
            n += qn_utf8_encode(cp, text + n);
            text[n++] = ' ';
            n += qn_utf8_encode(cp, text + n);
            text[n++] = '\n';
            n += qn_utf8_encode(cp, text + n);
            text[n++] = 'b';
            compare(fast, slow, m, text, n);
        }
        compare(fast, slow, m, "", 0);
        qn_pretokenizer_free(fast);
        qn_pretokenizer_free(slow);
    }
    qn_free(unknown);
    qn_regex_match_free(m);
}

static void test_scanners_on_corpus(void **state)
{
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(qn_file_read(qn_test_need_fixture("corpus.txt"), 64 << 20, &text, &n), QN_OK);
    qn_regex_match *m = qn_regex_match_new();
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        qn_pretokenizer *fast = splitter(patterns[i], "Isolated", 0, 1),
                        *slow = splitter(patterns[i], "Isolated", 0, 0);
        compare(fast, slow, m, text, n);
        compare(fast, slow, m, "", 0);
        qn_pretokenizer_free(fast);
        qn_pretokenizer_free(slow);
    }
    qn_regex_match_free(m);
    qn_free(text);
}

static void expect_pieces(const char *json, const char *text, const char *expected)
{
    json_t *v = NULL;
    assert_int_equal(qn_json_parse("test", json, strlen(json), &v), QN_OK);
    qn_pretokenizer *p = from_json(v);
    qn_regex_match *m = qn_regex_match_new();
    qn_pieces pieces = {0}, spare = {0};
    qn_buf joined = {0};
    assert_int_equal(qn_pieces_set(&pieces, text, strlen(text)), QN_OK);
    assert_int_equal(qn_pretokenizer_run(p, m, QN_AFTER_NOTHING, &pieces, &spare), QN_OK);
    qn_buf_append(&joined, "", 0);
    for (size_t i = 0; i < pieces.n; i++) {
        if (i) qn_buf_putc(&joined, '/');
        qn_buf_append(&joined, pieces.text.data + pieces.start[i], pieces.length[i]);
    }
    assert_string_equal(joined.data, expected);
    qn_buf_free(&joined);
    qn_pieces_free(&pieces);
    qn_pieces_free(&spare);
    qn_regex_match_free(m);
    qn_pretokenizer_free(p);
    json_decref(v);
}

static void test_components(void **state)
{
#define SPLIT(behavior, invert) \
    "{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}"
    expect_pieces(SPLIT("Removed", "false"), "the-final--countdown", "the/final/countdown");
    expect_pieces(SPLIT("Isolated", "false"), "the-final--countdown", "the/-/final/-/-/countdown");
    expect_pieces(SPLIT("MergedWithPrevious", "false"), "the-final--countdown", "the-/final-/-/countdown");
    expect_pieces(SPLIT("MergedWithNext", "false"), "the-final--countdown", "the/-final/-/-countdown");
    expect_pieces(SPLIT("Contiguous", "false"), "the-final--countdown", "the/-/final/--/countdown");
    expect_pieces(SPLIT("Removed", "true"), "the-final--countdown", "-/-/-");
    expect_pieces("null", "a b", "a b");
    expect_pieces("{\"type\":\"Digits\",\"individual_digits\":true}", "a12b", "a/1/2/b");
    expect_pieces("{\"type\":\"Digits\",\"individual_digits\":false}", "a12b", "a/12/b");
    expect_pieces("{\"type\":\"Punctuation\"}", "Hey, you!", "Hey/,/ you/!");
    expect_pieces("{\"type\":\"Whitespace\"}", "Hey, you!?", "Hey/,/you/!?");
    expect_pieces("{\"type\":\"WhitespaceSplit\"}", " Hey,  you!", "Hey,/you!");
    expect_pieces("{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"x\"}", "axbxxc", "a/b/c");
    expect_pieces("{\"type\":\"FixedLength\",\"length\":2}",
                  "abc\xc3\xa9"
                  "e",
                  "ab/c\xc3\xa9/e");
    expect_pieces("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\"}", "Hey  you",
                  "_Hey/_/_you");
    expect_pieces(
        "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\",\"split\":false}",
        "Hey you", "Hey_you");
    expect_pieces("{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}", "Hey you",
                  "\xc4\xa0Hey/\xc4\xa0you");
    expect_pieces(
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}",
        "a1 \xc3\xa9", "a/1/\xc4\xa0\xc3\x83\xc2\xa9");
    /* Set operations of Oniguruma's classes. */
    expect_pieces("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\\\p{L}&&[^\\\\p{Han}]]+\"},\"behavior\":"
                  "\"Isolated\"}",
                  "ab\xe4\xb8\xad"
                  "c",
                  "ab/\xe4\xb8\xad/c");
    expect_pieces("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-c[x-z]]+\"},\"behavior\":\"Isolated\"}",
                  "axq[z", "ax/q[/z");
    expect_pieces("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^a-c[x-z]]+\"},\"behavior\":\"Isolated\"}",
                  "axq[z", "ax/q[/z");
}

static void test_refused(void **state)
{
    static const struct {
        const char *json;
        qn_status status;
        const char *says;
    } cases[] = {
        {"{\"type\":\"UnicodeScripts\"}", QN_E_UNSUPPORTED, "\"UnicodeScripts\""},
        {"{}", QN_E_FORMAT, "type"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}", QN_E_FORMAT,
         "regular expression"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(*COMMIT)a\"},\"behavior\":\"Isolated\"}",
         QN_E_UNSUPPORTED, "verbs"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}", QN_E_FORMAT,
         "behavior"},
        {"{\"type\":\"Split\",\"pattern\":\"a\",\"behavior\":\"Isolated\"}", QN_E_FORMAT, "pattern"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"__\"}", QN_E_FORMAT, "replacement"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *v = NULL;
        qn_pretokenizer *p = NULL;
        assert_int_equal(qn_json_parse("test", cases[i].json, strlen(cases[i].json), &v), QN_OK);
        assert_int_equal(qn_pretokenizer_from_json("test", v, &p), cases[i].status);
        if (!strstr(qn_last_error(), cases[i].says)) fail_msg("case %zu: %s", i, qn_last_error());
        json_decref(v);
    }
}

/* An expression that would run for ever stops with a message. */
static void test_runaway(void **state)
{
    qn_pretokenizer *p = splitter("(a+)+$", "Isolated", 0, 0);
    qn_regex_match *m = qn_regex_match_new();
    qn_pieces pieces = {0}, spare = {0};
    char text[64];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    assert_int_equal(qn_pieces_set(&pieces, text, sizeof text), QN_OK);
    assert_int_equal(qn_pretokenizer_run(p, m, QN_AFTER_NOTHING, &pieces, &spare), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "(a+)+$"));
    qn_pieces_free(&pieces);
    qn_pieces_free(&spare);
    qn_regex_match_free(m);
    qn_pretokenizer_free(p);
}

/* An expression whose machine code wants more stack than PCRE2 has at first gets it from our memory. */
static void test_stack_of_long_matches(void **state)
{
    static char text[40001];
    static const char pattern[] = "(?:a|b|c)+z";
    int64_t before = qn_mem_live_blocks();
    qn_regex *r = NULL;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'z';
    assert_int_equal(qn_regex_new(pattern, sizeof pattern - 1, &r), QN_OK);
    qn_status status = QN_E_NOMEM;
    int n = 0;
    while (status != QN_OK && ++n < 10) {
        qn_regex_match *m = qn_regex_match_new();
        qn_regex_walk w = {0};
        size_t start, end;
        int found;
        assert_non_null(m);
        qn_mem_fail_nth(n);
        status = qn_regex_next(r, m, text, sizeof text, &w, &found, &start, &end);
        qn_mem_fail_nth(0);
        if (status == QN_OK) assert_true(found && start == 0 && end == sizeof text);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_regex_match_free(m);
    }
    if (n < 3) fail_msg("%d allocations", n - 1); /* a context and the stack */
    qn_regex_free(r);
    assert_int_equal(qn_mem_live_blocks(), before);
}

/* Code points of Unicode 15 and 16 belong to the classes that they have there, whatever the version of PCRE2. */
static void test_young_code_points(void **state)
{
    static const struct {
        const char *pattern, *text;
        size_t n, first;
    } rows[] = {
        {"\\p{L}+", "!\xf0\xb1\xac\x91s!", 3, 1},      /* U+31B11, Han */
        {"\\p{Han}+", "a\xf0\xb1\xac\x91s", 3, 1},     /* the same */
        {"\\p{Lu}", "\xe1\xb2\x89\xe1\xb2\x8a", 2, 3}, /* U+1C89 and U+1C8A, a capital and a small letter */
        {"\\p{N}{1,3}",
         "a\xf0\x96\xb5\xb0"
         "5b",
         3, 1},                                         /* U+16D70, a digit */
        {"[^\\p{L}\\s]+", "a\xf0\x9f\xab\x9f!b", 3, 1}, /* U+1FADF, a symbol */
        {"\\p{Han}+", "ab", 1, 2},
    };
    qn_regex_match *m = qn_regex_match_new();
    qn_pieces pieces = {0}, spare = {0};
    assert_non_null(m);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        qn_pretokenizer *p = splitter(rows[i].pattern, "Isolated", 0, 1);
        size_t n = strlen(rows[i].text);
        assert_int_equal(qn_pieces_set(&pieces, rows[i].text, n), QN_OK);
        assert_int_equal(qn_pretokenizer_run(p, m, QN_AFTER_NOTHING, &pieces, &spare), QN_OK);
        if (pieces.n != rows[i].n || pieces.length[0] != rows[i].first)
            fail_msg("row %zu: %zu pieces, the first of %zu bytes", i, pieces.n, pieces.length[0]);
        assert_memory_equal(pieces.text.data, rows[i].text,
                            n); /* the pieces keep the code points of the text */
        qn_pretokenizer_free(p);
    }
    qn_pieces_free(&pieces);
    qn_pieces_free(&spare);
    qn_regex_match_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scanners_on_random_text),
        cmocka_unit_test(test_scanners_on_corpus),
        cmocka_unit_test(test_young_code_points),
        cmocka_unit_test(test_components),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_runaway),
        cmocka_unit_test(test_stack_of_long_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
