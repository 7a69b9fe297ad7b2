/* Tokenizers and texts that nobody should trust, through the public API. By the names of the list of known
 * cases:
 *   G7   tokenizer.json at odds with itself (GGUF vocabularies: hostile_gguf_test.c)
 *   G8   texts of 10 MB (of 2^31 bytes: hostile_gguf_test.c)
 * What work costs is bounded by counts of steps and bytes, and so are these tests: none looks at a clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tests/hostile/hostile.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))
enum { MIB = 1 << 20 };

/* ---- G7: tokenizer.json ---------------------------------------------------------------------------------
 */

/* The golden llama with another tokenizer.json. */
static void tokenizer_dir(const char *json, size_t n, char *dir)
{
    qn_test_model_copy(qn_test_need_fixture("models/llama"), NULL, NULL, dir);
    assert_int_equal(unlink(qn_test_path(dir, "tokenizer.json")), 0);
    qn_test_write(dir, "tokenizer.json", json, n);
}

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MODEL "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"
#define ADDED(id, content) "{\"id\":" id ",\"content\":\"" content "\",\"special\":true,\"normalized\":false}"
#define SPLIT(regex) \
    "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\"}"

static void test_bad_tokenizers(void **state)
{
    static const struct {
        qn_status status;
        const char *json, *says;
    } cases[] = {
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{},\"merges\":[]}}", "model.vocab is empty"},
        {QN_E_FORMAT, "{\"model\":{\"merges\":[]}}", "model has no vocab"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}",
         "line 1 column 24: -1 is not in [0, *]"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":2147483648},\"merges\":[]}}",
         "*: 2147483648 is not in [0, *]"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":9007199254740992},\"merges\":[]}}",
         "*: 9007199254740992 is not in [0, *]"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":18446744073709551616},\"merges\":[]}}",
         "line 1 column 24: number out of range"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":1e3},\"merges\":[]}}",
         "line 1 column 24: expected an integer"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}}",
         "line 1 column 24: expected an integer"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
         "line 1 column 31: token 0 is both 'a' and 'b'"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}",
         "line 1 column 31: 'a' is in the vocabulary twice"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":0,\"b\":200000},\"merges\":[]}}",
         "*: 200000 is not in [0, *]"},
        {QN_E_FORMAT, "{\"model\":{\"vocab\":{\"a\":0,\"b\":60000},\"merges\":[]}}",
         "token 60000 \"b\" is beyond the 640 rows of the model's embedding: *"},
        {QN_E_FORMAT, "{\"model\":{" VOCAB ",\"merges\":[\"a c\"]}}",
         "merge 0 ('a' + 'c'): the right token is not in the vocabulary"},
        {QN_E_FORMAT, "{\"model\":{" VOCAB ",\"merges\":[\"a b\",\"b a\"]}}",
         "merge 1 ('b' + 'a'): the merged token is not in the vocabulary"},
        {QN_E_FORMAT, "{\"model\":{" VOCAB ",\"merges\":[[\"a\",\"b\",\"a\"]]}}",
         "*a merge has more than two tokens"},
        {QN_E_FORMAT, "{\"model\":{" VOCAB ",\"merges\":{}}}", "*: expected an array"},
        {QN_E_FORMAT, "{\"added_tokens\":[" ADDED("-1", "x") "]," MODEL "}", "*: -1 is not in [0, *]"},
        {QN_E_FORMAT, "{\"added_tokens\":[" ADDED("2147483646", "x") "]," MODEL "}",
         "*: 2147483646 is not in [0, *]"},
        {QN_E_FORMAT, "{\"added_tokens\":[" ADDED("1", "x") "]," MODEL "}",
         "*: added token 'x' has the id 1, which belongs to 'b'"},
        {QN_E_FORMAT, "{\"added_tokens\":[" ADDED("3", "x") "," ADDED("3", "y") "]," MODEL "}",
         "*: added token 'y' has the id 3, which belongs to 'x'"},
        {QN_E_FORMAT,
         "{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",9007199254740992],\"sep\":[\"a\",0]"
         "}," MODEL "}",
         "post_processor: token id 9007199254740992 is not in the vocabulary of * tokens"},
        {QN_E_UNSUPPORTED, "{" MODEL "," SPLIT("a(*COMMIT)b") "}",
         "Split: control verbs in a regular expression"},
        {QN_E_UNSUPPORTED, "{" MODEL "," SPLIT("\\\\Ga") "}", "Split: \\G in a regular expression"},
        {QN_E_FORMAT, "{" MODEL "," SPLIT("((a{1,1000}){1,1000}){1,60}") "}",
         "Split: bad regular expression '*': regular expression is too large"},
    };
    char dir[QN_TEST_DIR_MAX], pattern[300];
    for (size_t i = 0; i < COUNT(cases); i++) {
        tokenizer_dir(cases[i].json, strlen(cases[i].json), dir);
        snprintf(pattern, sizeof pattern, "tokenizer.json: %s", cases[i].says);
        qn_test_refused(dir, "", cases[i].status, pattern);
        qn_test_model_remove(dir);
    }
}

/* Components inside each other, and lists without end. */
static void test_deep_tokenizers(void **state)
{
    static const struct {
        const char *before, *unit, *after, *says;
    } cases[] = {
        {"{\"x\":", "[", "", "line 1 column *: nested deeper than 96"},
        {"{\"normalizer\":", "{\"type\":\"Sequence\",\"normalizers\":[", "", "*: nested deeper than 96"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}",
         ",{\"type\":\"NFC\"}", "]}}", "more than 64 normalizers in sequence"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}",
         ",{\"type\":\"Digits\"}", "]}}", "more than 64 pre-tokenizers in sequence"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"}",
         ",{\"type\":\"Fuse\"}", "]}}", "more than 32 decoders in sequence"},
        {"{" MODEL "," SPLIT("a") ",\"decoder\":{\"type\":\"Strip\",\"content\":\"", "a",
         "\",\"start\":0,\"stop\":0}}", "decoder Strip: bad or missing content"},
    };
    char dir[QN_TEST_DIR_MAX], pattern[300];
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *json = qn_test_repeat(cases[i].before, cases[i].unit, 1000, cases[i].after);
        tokenizer_dir(json, strlen(json), dir);
        snprintf(pattern, sizeof pattern, "tokenizer.json: %s", cases[i].says);
        qn_test_refused(dir, "", strstr(pattern, "more than") ? QN_E_UNSUPPORTED : QN_E_FORMAT, pattern);
        qn_test_model_remove(dir);
        qn_buffer_free(json);
    }
}

#define TIMES_TEN "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}"
#define TIMES_A_MILLION \
    TIMES_TEN "," TIMES_TEN "," TIMES_TEN "," TIMES_TEN "," TIMES_TEN "," TIMES_TEN "," TIMES_TEN

/* Tokenizers that load and are wrong in use: the text ends in a refusal, and with it nothing else. */
static void test_costly_tokenizers(void **state)
{
    static const struct {
        const char *json, *unit, *after, *says;
        int count, decodes; /* decodes: it is the decoder that refuses */
    } cases[] = {
        {"{" MODEL "," SPLIT("(a+)+$") "}", "a", "b", "regular expression '(a+)+$': match limit exceeded", 40,
         0},
        {"{" MODEL "," SPLIT("(?=.*b)a") "}", "a", "",
         "regular expression '(?=.*b)a' looks too far ahead in a text of 300000 bytes", 300000, 0},
        {"{" MODEL "," SPLIT("\\\\d{1,3}(?=(?:\\\\d{3})*\\\\b)") "}", "1", "",
         "regular expression '*' looks too far ahead in a text of 300000 bytes", 300000, 0},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" TIMES_A_MILLION "]}}", "a", "",
         "the normalizer makes more than 4230 bytes from a text of 1 bytes", 1, 0},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\"},\"content\":"
         "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}}",
         "a", "", "the normalizer makes more than 68176 bytes from a text of 1000 bytes", 1000, 0},
        {"{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" TIMES_A_MILLION "]}}", "a", "",
         "the decoder makes more than * bytes from tokens of 2 bytes", 1, 1},
        {"{" MODEL
         ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\","
         "\"pattern\":{\"Regex\":\"(a+)+$\"},\"content\":\"\"}]}}",
         "a", "b", "regular expression '(a+)+$': match limit exceeded", 40, 1},
    };
    char dir[QN_TEST_DIR_MAX], pattern[300];
    for (size_t i = 0; i < COUNT(cases); i++) {
        tokenizer_dir(cases[i].json, strlen(cases[i].json), dir);
        qn_model *m = qn_test_open_model(dir, NULL);
        char *text = qn_test_repeat("", cases[i].unit, (size_t)cases[i].count, cases[i].after),
             *decoded = NULL;
        int32_t *ids = NULL;
        int64_t n = 0, blocks = qn_mem_live_blocks();
        size_t before = qn_mem_reset_peak();
        snprintf(pattern, sizeof pattern, "*tokenizer.json: %s", cases[i].says);
        qn_status status = qn_model_encode(m, text, strlen(text), NULL, &ids, &n);
        if (cases[i].decodes) {
            assert_int_equal(status, QN_OK);
            status = qn_model_decode(m, ids, n, NULL, &decoded, NULL);
        }
        qn_test_expect(cases[i].json, status, strstr(pattern, " makes ") ? QN_E_FULL : QN_E_UNSUPPORTED,
                       pattern);
        assert_true(qn_mem_peak_bytes() - before < 16u * MIB);
        qn_buffer_free(ids);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        assert_int_equal(qn_model_encode(m, "b", 1, NULL, &ids, &n), QN_OK); /* and the next text is fine */
        qn_buffer_free(ids);
        qn_buffer_free(text);
        qn_model_close(&m);
        qn_test_model_remove(dir);
    }
}

/* What is odd but sound: holes in the ids, merges with empty texts, byte tokens that are none. */
static void test_odd_tokenizers(void **state)
{
    static const struct {
        const char *json, *text;
        int32_t ids[4];
        int64_t n;
    } cases[] = {
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":639},\"merges\":[]}}", "ab", {0, 639}, 2},
        {"{\"model\":{\"vocab\":{\"a\":0,\"\":1},\"merges\":[\"a \",\" a\"]}}", "aa", {0, 0}, 2},
        {"{\"model\":{\"vocab\":{\"a\":0,\"<0x-1>\":1,\"?\":2},\"merges\":[],\"byte_fallback\":true,"
         "\"unk_token\":\"?\"}}",
         "a\xc3\xa9",
         {2, 0, 2},
         3},
        {"{\"model\":{\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a a\",\"a a\"]}}", "aaa", {1, 0}, 2},
    };
    char dir[QN_TEST_DIR_MAX];
    for (size_t i = 0; i < COUNT(cases); i++) {
        tokenizer_dir(cases[i].json, strlen(cases[i].json), dir);
        qn_model *m = qn_test_open_model(dir, NULL);
        int32_t *ids = NULL;
        int64_t n = 0;
        assert_int_equal(qn_model_encode(m, cases[i].text, strlen(cases[i].text), NULL, &ids, &n), QN_OK);
        assert_int_equal(n, cases[i].n);
        assert_memory_equal(ids, cases[i].ids, (size_t)n * sizeof *ids);
        qn_buffer_free(ids);
        qn_model_close(&m);
        qn_test_model_remove(dir);
    }
}

/* Hundreds of added tokens, each the beginning of the next, in a text where none counts. */
static void test_added_tokens_alike(void **state)
{
    enum { N_TOKENS = 600 };
    char dir[QN_TEST_DIR_MAX], name[N_TOKENS + 1] = "";
    qn_buf json = {0};
    qn_buf_puts(&json, "{\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"added_tokens\":[");
    for (int i = 0; i < N_TOKENS; i++) {
        name[i] = '<';
        qn_buf_printf(&json, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? "," : "", i + 2, name);
    }
    qn_buf_puts(&json, "]}");
    tokenizer_dir(json.data, json.length, dir);
    qn_model *m = qn_test_open_model(dir, NULL);
    char *text = qn_test_repeat("", "<", 300000, "");
    int32_t *ids = NULL;
    int64_t n = 0;
    qn_test_expect("added tokens", qn_model_encode(m, text, 300000, NULL, &ids, &n), QN_E_UNSUPPORTED,
                   "*tokenizer.json: too many added tokens begin the same for a text of 300000 bytes");
    assert_int_equal(qn_model_encode(m, text, 300000, &(qn_encode_options){.special = 1}, &ids, &n), QN_OK);
    assert_int_equal(n, 300000 / N_TOKENS);
    qn_buffer_free(ids);
    qn_buffer_free(text);
    qn_buf_free(&json);
    qn_model_close(&m);
    qn_test_model_remove(dir);
}

static void keep_line(void *user, qn_log_level level, const char *line)
{
    snprintf(user, 300, "%s", line);
}

/* Text that would get lost is worth a warning that names the first byte token that is missing. */
static void test_missing_byte_tokens(void **state)
{
    static const char json[] =
        "{\"model\":{\"vocab\":{\"a\":0,\"<0x00>\":1},\"merges\":[],\"byte_fallback\":true}}";
    char dir[QN_TEST_DIR_MAX], line[300] = "";
    tokenizer_dir(json, strlen(json), dir);
    qn_log_set_sink(keep_line, line);
    qn_model *m = qn_test_open_model(dir, NULL);
    qn_log_set_sink(NULL, NULL);
    if (!qn_test_matches(
            "*tokenizer.json: model.byte_fallback is true, but there is neither a token <0x01> nor *", line))
        fail_msg("%s", line);
    qn_model_close(&m);
    qn_test_model_remove(dir);
}

/* ---- G8: 10 MB of anything ------------------------------------------------------------------------------
 */

enum { LONG = 10 << 20 };

/* Encodes unit again and again, size_bytes of it, which normalisation makes so many times longer. The work is
 * that of a few tables, whatever the text: their number is counted, and their size by the text's. */
static void encode_long(qn_model *m, const char *unit, size_t size_bytes, size_t growth)
{
    size_t n_unit = strlen(unit), n = size_bytes / n_unit * n_unit;
    char *text = qn_test_repeat("", unit, n / n_unit, "");
    int32_t *ids = NULL;
    int64_t n_ids = 0, made = qn_mem_allocations();
    size_t before = qn_mem_reset_peak();
    if (qn_model_encode(m, text, n, NULL, &ids, &n_ids) != QN_OK) fail_msg("%s: %s", unit, qn_last_error());
    assert_true(qn_mem_allocations() - made < 400);
    if (qn_mem_peak_bytes() - before > 96u * n * growth + 4u * MIB)
        fail_msg("%s: %zu bytes for a text of %zu", unit, qn_mem_peak_bytes() - before, n);
    assert_true(n_ids > 0 && n_ids <= (int64_t)(n * growth));
    qn_buffer_free(ids);
    qn_buffer_free(text);
}

static void test_long_texts(void **state)
{
    static const char *const units[] = {"a", " ", "\xf0\x9f\x98\x80", "7"};
    qn_model *m = qn_test_open_model(qn_test_need_fixture("models/llama"), NULL);
    for (size_t i = 0; i < COUNT(units); i++) encode_long(m, units[i], i ? MIB : LONG, 1);

    /* Bytes that are no text are refused, not changed. */
    int32_t *ids = NULL;
    int64_t n = 0;
    qn_generation *g = NULL;
    char *text = qn_test_repeat("ab", "\xff", LONG, ""), *words = qn_test_repeat("", "a b ", LONG / 4, "");
    qn_test_expect("bytes", qn_model_encode(m, text, LONG + 2, NULL, &ids, &n), QN_E_FORMAT,
                   "the text is not valid UTF-8 at byte 2");
    qn_test_expect("bytes", qn_generate(m, text, NULL, &g), QN_E_FORMAT,
                   "the prompt: not valid UTF-8 at byte 2");

    /* What is encoded and does not fit is refused with both counts. */
    const qn_message message = {"user", words};
    assert_int_equal(qn_model_encode(m, words, LONG, &(qn_encode_options){.bos = 1}, &ids, &n), QN_OK);
    char pattern[200];
    snprintf(pattern, sizeof pattern, "the prompt has %lld tokens, the context holds 64", (long long)n);
    qn_test_expect("a long prompt", qn_generate(m, words, NULL, &g), QN_E_ARG, pattern);
    qn_test_expect("a long message", qn_chat(m, &message, 1, NULL, &g), QN_E_ARG,
                   "the prompt has * tokens, the context holds 64");
    qn_buffer_free(ids);
    qn_buffer_free(text);
    qn_buffer_free(words);
    qn_model_close(&m);
}

/* Rows of combining marks, which normalisation puts in order, and letters that become many. */
static void test_long_normal_forms(void **state)
{
    static const struct {
        const char *form, *unit;
        size_t size_bytes, growth;
        const char *text, *normal;
    } cases[] = {
        {"NFC", "\xcc\x81\xcc\xa3", MIB, 1, "a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81"},
        {"NFD", "\xcc\x81\xcc\xa3", MIB / 4, 1, "\xe1\xba\xa1\xcc\x81", "a\xcc\xa3\xcc\x81"},
        {"NFKC", "\xef\xb7\xba", MIB / 4, 11, "\xef\xac\x81", "fi"},
        {"NFKD", "\xe1\xbe\xa2", MIB / 4, 3, "\xe1\xbe\xa2", "\xcf\x89\xcc\x93\xcc\x80\xcd\x85"},
    };
    char dir[QN_TEST_DIR_MAX], json[400];
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(
            json, sizeof json,
            "{\"normalizer\":{\"type\":\"%s\"},\"model\":{\"vocab\":{\"a\":0,\"%s\":1,\"?\":2},\"merges\":[],"
            "\"unk_token\":\"?\",\"ignore_merges\":true}}",
            cases[i].form, cases[i].normal);
        tokenizer_dir(json, strlen(json), dir);
        qn_model *m = qn_test_open_model(dir, NULL);
        int32_t *ids = NULL;
        int64_t n = 0;
        encode_long(m, cases[i].unit, cases[i].size_bytes, cases[i].growth);
        assert_int_equal(qn_model_encode(m, cases[i].text, strlen(cases[i].text), NULL, &ids, &n), QN_OK);
        assert_int_equal(n, 1);
        assert_int_equal(ids[0], 1);
        qn_buffer_free(ids);
        qn_model_close(&m);
        qn_test_model_remove(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_tokenizers),      cmocka_unit_test(test_deep_tokenizers),
        cmocka_unit_test(test_costly_tokenizers),   cmocka_unit_test(test_odd_tokenizers),
        cmocka_unit_test(test_missing_byte_tokens), cmocka_unit_test(test_added_tokens_alike),
        cmocka_unit_test(test_long_texts),          cmocka_unit_test(test_long_normal_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
