/* The tokenizer against the golden ids of every fixture vocabulary. */
#include "text/tokenizer/tokenizer.h"

#include <dirent.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "tests/support/fixtures.h"

/* ---- files --------------------------------------------------------------------------------------------- */

/* The bytes of a file or, with a name that ends in .gz, what gzip makes of it. Freed with qn_buf_free. */
static qn_buf read_file(const char *path)
{
    char command[4200];
    size_t n = strlen(path);
    int packed = n > 3 && strcmp(path + n - 3, ".gz") == 0;
    snprintf(command, sizeof command, "gzip -dc '%s'", path);
    FILE *f = packed ? popen(command, "r") : fopen(path, "rb");
    qn_buf b = {0};
    char block[65536];
    assert_non_null(f);
    for (size_t got; (got = fread(block, 1, sizeof block, f)) > 0;) qn_buf_append(&b, block, got);
    if (packed)
        assert_int_equal(pclose(f), 0);
    else
        fclose(f);
    assert_int_equal(b.status, QN_OK);
    return b;
}

static json_t *read_json(const char *path)
{
    qn_buf b = read_file(path);
    json_t *v = NULL;
    assert_int_equal(qn_json_parse(path, b.data, b.length, &v), QN_OK);
    qn_buf_free(&b);
    return v;
}

static qn_tokenizer *open_json(const char *path, double *ms)
{
    qn_buf b = read_file(path);
    qn_tokenizer *t = NULL;
    int64_t start = qn_clock_ns();
    if (qn_tokenizer_from_json(path, b.data, b.length, &t) != QN_OK) fail_msg("%s", qn_last_error());
    if (ms) *ms = (double)(qn_clock_ns() - start) / 1e6;
    qn_buf_free(&b);
    return t;
}

static qn_tokenizer *open_gguf(const char *path, double *ms)
{
    qn_buf b = read_file(path);
    qn_gguf *g = NULL;
    qn_tokenizer *t = NULL;
    if (qn_gguf_open_bytes(path, b.data, b.length, &g) != QN_OK) fail_msg("%s", qn_last_error());
    int64_t start = qn_clock_ns();
    if (qn_tokenizer_from_gguf(g, NULL, &t) != QN_OK) fail_msg("%s", qn_last_error());
    if (ms) *ms = (double)(qn_clock_ns() - start) / 1e6;
    qn_gguf_close(g);
    qn_buf_free(&b);
    return t;
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

static int n_wrong;

static void complain(const char *where, size_t i, const char *what, const char *text, size_t n)
{
    if (n_wrong++ < 20) {
        qn_buf b = {0};
        qn_buf_json_string(&b, text, n < 200 ? n : 200);
        print_error("%s case %zu: %s: %s\n", where, i, what, b.data);
        qn_buf_free(&b);
    }
}

static int same_ids(const json_t *expected, const int32_t *ids, size_t n)
{
    if (json_array_size(expected) != n) return 0;
    for (size_t i = 0; i < n; i++)
        if (json_integer_value(json_array_get(expected, i)) != ids[i]) return 0;
    return 1;
}

static void print_ids(const char *name, const int32_t *ids, size_t n)
{
    print_error("  %s:", name);
    for (size_t i = 0; i < n && i < 24; i++) print_error(" %d", ids[i]);
    print_error("\n");
}

/* Do these ids come out? alternative (may be NULL) will do as well. */
static int check_ids(const qn_tokenizer *t, const char *where, size_t i, const char *text, size_t n,
                     unsigned flags, const json_t *expected, const json_t *alternative)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (qn_tokenizer_encode(t, text, n, flags, &ids, &n_ids) != QN_OK) fail_msg("%s", qn_last_error());
    int ok = same_ids(expected, ids, n_ids) || (alternative && same_ids(alternative, ids, n_ids));
    if (!ok) {
        complain(where, i, flags & QN_ENCODE_BOS ? "ids with special" : "ids", text, n);
        if (n_wrong < 20) {
            int32_t want[24];
            size_t n_want = json_array_size(expected) < 24 ? json_array_size(expected) : 24;
            for (size_t j = 0; j < n_want; j++)
                want[j] = (int32_t)json_integer_value(json_array_get(expected, j));
            print_ids("got", ids, n_ids);
            print_ids("expected", want, n_want);
        }
    }
    qn_free(ids);
    return ok;
}

static int32_t *to_ids(const json_t *list, size_t *n)
{
    *n = json_array_size(list);
    int32_t *ids = qn_alloc_array(*n, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

/* Decoding as a whole and as a stream; every delta is whole characters. */
static void check_text(const qn_tokenizer *t, const char *where, size_t i, const json_t *list, unsigned flags,
                       const char *expected, size_t n_expected)
{
    size_t n;
    int32_t *ids = to_ids(list, &n);
    qn_buf whole = {0}, joined = {0};
    qn_token_stream *s = NULL;
    assert_int_equal(qn_tokenizer_decode(t, ids, n, flags, &whole), QN_OK);
    assert_int_equal(qn_token_stream_new(t, flags, &s), QN_OK);
    for (size_t j = 0; j < n; j++) {
        size_t before = joined.length;
        assert_int_equal(qn_token_stream_push(s, ids[j], &joined), QN_OK);
        size_t added = joined.length - before;
        if (!(flags & QN_DECODE_RAW) && added)
            assert_int_equal(qn_utf8_valid_prefix(joined.data + before, added), added);
    }
    assert_int_equal(qn_token_stream_finish(s, &joined), QN_OK);
    if (whole.length != n_expected || (n_expected && memcmp(whole.data, expected, n_expected) != 0)) {
        complain(where, i, "decoded", whole.data ? whole.data : "", whole.length);
        complain(where, i, "expected", expected, n_expected);
    }
    assert_int_equal(joined.length, whole.length);
    if (whole.length) assert_memory_equal(joined.data, whole.data, whole.length);
    qn_token_stream_free(s);
    qn_buf_free(&whole);
    qn_buf_free(&joined);
    qn_free(ids);
}

static void check_text_json(const qn_tokenizer *t, const char *where, size_t i, const json_t *ids,
                            unsigned flags, const json_t *expected)
{
    if (expected)
        check_text(t, where, i, ids, flags, json_string_value(expected), json_string_length(expected));
}

/* ---- tokenizers/NAME ----------------------------------------------------------------------------------- */

static void run_cases(const char *name)
{
    char path[4200];
    const char *folder = qn_test_fixture("tokenizers");
    snprintf(path, sizeof path, "%s/%s/tokenizer.json", folder, name);
    qn_tokenizer *t = open_json(path, NULL);
    snprintf(path, sizeof path, "%s/%s/tokenizer_cases.json", folder, name);
    json_t *all = read_json(path), *c;
    size_t i;
    json_array_foreach(json_object_get(all, "cases"), i, c)
    {
        const json_t *text = json_object_get(c, "text"), *ids = json_object_get(c, "ids");
        const json_t *with_special = json_object_get(c, "ids_with_special");
        const char *s = json_string_value(text);
        size_t n = json_string_length(text);
        check_ids(t, name, i, s, n, QN_ENCODE_SPECIAL, ids, NULL);
        check_ids(t, name, i, s, n, QN_ENCODE_SPECIAL | QN_ENCODE_BOS, with_special ? with_special : ids,
                  NULL);
        check_text_json(t, name, i, ids, 0, json_object_get(c, "decoded"));
        check_text_json(t, name, i, ids, QN_DECODE_SKIP_SPECIAL, json_object_get(c, "decoded_skip_special"));
    }
    assert_true(i > 100);
    json_array_foreach(json_object_get(all, "decode_only"), i, c)
    {
        const json_t *ids = json_object_get(c, "ids");
        check_text_json(t, name, i, ids, 0, json_object_get(c, "decoded"));
        check_text_json(t, name, i, ids, QN_DECODE_SKIP_SPECIAL, json_object_get(c, "decoded_skip_special"));
        for (size_t j = 0; j < json_array_size(ids); j++) {
            const json_t *token = json_array_get(json_object_get(c, "tokens"), j);
            size_t n = 0;
            const char *own =
                qn_tokenizer_token_text(t, (int32_t)json_integer_value(json_array_get(ids, j)), &n);
            assert_non_null(own);
            assert_int_equal(n, json_string_length(token));
            assert_memory_equal(own, json_string_value(token), n);
        }
    }
    json_decref(all);
    qn_tokenizer_free(t);
}

static void test_cases(void **state)
{
    qn_test_need_fixture("tokenizers/llama3/tokenizer_cases.json");
    const char *folder = qn_test_fixture("tokenizers");
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, alphasort), n_run = 0;
    n_wrong = 0;
    for (int i = 0; i < n; i++) {
        char relative[512];
        snprintf(relative, sizeof relative, "tokenizers/%s/tokenizer_cases.json", entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && qn_test_fixture(relative)) {
            run_cases(entries[i]->d_name);
            n_run++;
        }
        free(entries[i]); /* foreign: scandir's */
    }
    free(entries); /* foreign: scandir's */
    assert_int_equal(n_wrong, 0);
    assert_true(n_run > 0);
}

/* ---- tokenizers/real ----------------------------------------------------------------------------------- */

static size_t from_hex(const char *hex, char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (char)byte;
    }
    return n;
}

/* Calls fn for each line of a .jsonl file. */
static size_t each_line(const char *path, void (*fn)(json_t *line, size_t i, void *user), void *user)
{
    qn_buf b = read_file(path);
    size_t count = 0;
    for (char *at = b.data, *end; at < b.data + b.length; at = end + 1, count++) {
        end = memchr(at, '\n', (size_t)(b.data + b.length - at));
        if (!end) break;
        json_t *v = NULL;
        if (qn_json_parse(path, at, (size_t)(end - at), &v) != QN_OK) fail_msg("%s", qn_last_error());
        fn(v, count, user);
        json_decref(v);
    }
    qn_buf_free(&b);
    return count;
}

typedef struct {
    const char *name;
    const qn_tokenizer *t;
    json_t *inputs; /* id -> {"text"} or {"hex"} */
    int is_json;
    int n_same, n_decoded; /* decoded texts, and those that llama.cpp gives too */
} real_run;

static void add_input(json_t *line, size_t i, void *user)
{
    real_run *run = user;
    json_object_set(run->inputs, json_string_value(json_object_get(line, "id")), line);
}

static void check_encode(json_t *line, size_t i, void *user)
{
    real_run *run = user;
    static char bytes[1 << 20];
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    if (!text) {
        const json_t *input = json_object_get(run->inputs, json_string_value(json_object_get(line, "id")));
        assert_non_null(input);
        text = json_object_get(input, "text");
        if (!text) text = json_object_get(input, "hex");
        if (!json_object_get(input, "text")) {
            size_t n = from_hex(json_string_value(text), bytes);
            unsigned flags = (json_is_true(json_object_get(line, "add_special")) ? QN_ENCODE_BOS : 0) |
                             (json_is_true(json_object_get(line, "parse_special")) ? QN_ENCODE_SPECIAL : 0);
            check_ids(run->t, run->name, i, bytes, n, flags, ids, json_object_get(line, "alt"));
            return;
        }
    }
    unsigned flags = (json_is_true(json_object_get(line, "add_special")) ? QN_ENCODE_BOS : 0) |
                     (json_is_true(json_object_get(line, "parse_special")) ? QN_ENCODE_SPECIAL : 0);
    const json_t *alternative = run->is_json ? NULL : json_object_get(line, "alt");
    check_ids(run->t, run->name, i, json_string_value(text), json_string_length(text), flags, ids,
              alternative);
}

static void check_decode(json_t *line, size_t i, void *user)
{
    real_run *run = user;
    const json_t *ids = json_object_get(line, "ids");
    if (run->is_json) {
        check_text_json(run->t, run->name, i, ids, 0, json_object_get(line, "text"));
        check_text_json(run->t, run->name, i, ids, QN_DECODE_SKIP_SPECIAL,
                        json_object_get(line, "text_skip_special"));
        return;
    }
    char bytes[65536];
    /* The whole is the pieces without the space that the encoder put in front. llama.cpp's own whole
     * (detok_hex) moreover lacks spaces before punctuation for some vocabularies, which would spoil code, and
     * is empty where its buffer was too small. */
    size_t n = 0;
    for (size_t j = 0; j < json_array_size(ids); j++)
        n += from_hex(json_string_value(json_array_get(json_object_get(line, "pieces_hex"), j)), bytes + n);
    int strip = strcmp(run->name, "llama-spm") == 0 && bytes[0] == ' ';
    check_text(run->t, run->name, i, ids, QN_DECODE_RAW, bytes + strip, n - (size_t)strip);
    size_t n_detok = from_hex(json_string_value(json_object_get(line, "detok_hex")), bytes + n);
    run->n_same += n_detok == n - (size_t)strip && memcmp(bytes + strip, bytes + n, n_detok) == 0;
    run->n_decoded++;
    for (size_t j = 0; j < json_array_size(ids); j++) {
        qn_buf piece = {0};
        n = from_hex(json_string_value(json_array_get(json_object_get(line, "pieces_hex"), j)), bytes);
        assert_int_equal(
            qn_tokenizer_piece(run->t, (int32_t)json_integer_value(json_array_get(ids, j)), &piece), QN_OK);
        if (piece.length != n || (n && memcmp(piece.data, bytes, n) != 0))
            complain(run->name, i, "piece", bytes, n);
        qn_buf_free(&piece);
    }
}

static void test_real(void **state)
{
    static const char *const names[] = {"llama-spm", "llama-bpe",   "llama3-json", "qwen2",   "qwen3-json",
                                        "gemma-3",   "gemma3-json", "gpt-2",       "smollm2", "deepseek-llm"};
    qn_test_need_fixture("tokenizers/real/inputs.jsonl");
    const char *folder = qn_test_fixture("tokenizers/real");
    char path[4200];
    real_run run = {.inputs = json_object()};
    snprintf(path, sizeof path, "%s/inputs.jsonl", folder);
    each_line(path, add_input, &run);
    n_wrong = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        double ms = 0;
        run.name = names[i];
        run.is_json = strstr(names[i], "-json") != NULL;
        snprintf(path, sizeof path, "%s/%s/%s", folder, names[i],
                 run.is_json ? "tokenizer.json.gz" : "vocab.gguf.gz");
        qn_tokenizer *t = run.is_json ? open_json(path, &ms) : open_gguf(path, &ms);
        run.t = t;
        int64_t start = qn_clock_ns();
        int before = n_wrong;
        snprintf(path, sizeof path, "%s/%s/encode.jsonl", folder, names[i]);
        assert_true(each_line(path, check_encode, &run) > 400);
        snprintf(path, sizeof path, "%s/%s/decode.jsonl", folder, names[i]);
        assert_true(each_line(path, check_decode, &run) > 100);
        print_message("%s: loaded in %.1f ms, cases in %.0f ms, %d wrong\n", names[i], ms,
                      (double)(qn_clock_ns() - start) / 1e6, n_wrong - before);
        qn_tokenizer_free(t);
    }
    json_decref(run.inputs);
    print_message("%d of %d decoded texts are llama.cpp's\n", run.n_same, run.n_decoded);
    assert_true(run.n_same + 4 >= run.n_decoded);
    assert_int_equal(n_wrong, 0);
}

/* ---- quant/gguf_models --------------------------------------------------------------------------------- */

static void test_gguf_models(void **state)
{
    static const char *const names[] = {"gemma3-Q4_0", "gemma3-Q8_0",  "llama-F32", "llama-Q4_K_M",
                                        "llama-Q8_0",  "qwen2-Q5_K_M", "qwen3-F16", "qwen3-Q4_K_M"};
    char path[4200];
    qn_test_need_fixture("quant/gguf_models");
    const char *folder = qn_test_fixture("quant/gguf_models");
    n_wrong = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s.gguf", folder, names[i]);
        qn_tokenizer *t = open_gguf(path, NULL);
        snprintf(path, sizeof path, "%s/%s.tokens.json", folder, names[i]);
        json_t *all = read_json(path), *c;
        size_t j;
        json_array_foreach(json_object_get(all, "cases"), j, c)
        {
            const json_t *text = json_object_get(c, "text");
            unsigned flags = (json_is_true(json_object_get(c, "add_special")) ? QN_ENCODE_BOS : 0) |
                             (json_is_true(json_object_get(c, "parse_special")) ? QN_ENCODE_SPECIAL : 0);
            check_ids(t, names[i], j, json_string_value(text), json_string_length(text), flags,
                      json_object_get(c, "ids"), NULL);
        }
        assert_true(j > 5);
        json_decref(all);
        qn_tokenizer_free(t);
    }
    assert_int_equal(n_wrong, 0);
}

/* ---- a small tokenizer of our own ---------------------------------------------------------------------- */

#define ADDED(id, content, special, more) \
    "{\"id\":" id ",\"content\":\"" content "\",\"special\":" special ",\"normalized\":false" more "}"
static const char byte_style[] =
    "{\"version\":\"1.0\",\"added_tokens\":[" ADDED("10", "<s>", "true", "") "," ADDED(
        "11", "<t>", "false",
        "") "," ADDED("12", "<r>", "true",
                      ",\"rstrip\":true") "],"
                                          "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                                          "\"add_prefix_space\":false,\"use_regex\":true},"
                                          "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
                                          "\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
                                          "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{"
                                          "\"<s>\":{\"ids\":[10]}}},"
                                          "\"decoder\":{\"type\":\"ByteLevel\"},"
                                          "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"<\":2,"
                                          "\"s\":3,\">\":4,\"ab\":5,\"\xc4\xa0\":6,"
                                          "\"\xc3\x83\":7,\"\xc2\xa9\":8,\"aa\":9,\"\\u00e9\":13},\"merges\":"
                                          "[\"a b\",[\"a\",\"a\"]]}}";

static qn_tokenizer *open_text(const char *text)
{
    qn_tokenizer *t = NULL;
    if (qn_tokenizer_from_json("tokenizer.json", text, strlen(text), &t) != QN_OK)
        fail_msg("%s", qn_last_error());
    return t;
}

static void expect_segments(const qn_tokenizer *t, const qn_text_segment *segments, size_t n_segments,
                            unsigned flags, const int32_t *expected, size_t n_expected)
{
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(qn_tokenizer_encode_segments(t, segments, n_segments, flags, &ids, &n), QN_OK);
    assert_int_equal(n, n_expected);
    assert_memory_equal(ids, expected, n * sizeof *ids);
    qn_free(ids);
}
#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define SEGMENTS(...) \
    (const qn_text_segment[]){__VA_ARGS__}, sizeof((qn_text_segment[]){__VA_ARGS__}) / sizeof(qn_text_segment)

static void test_segments(void **state)
{
    qn_tokenizer *t = open_text(byte_style);
    /* Trusted text may hold special tokens, a stranger's may not. */
    expect_segments(t, SEGMENTS({"<s>ab", 5, 1}, {"<s>ab", 5, 0}), 0, IDS(10, 5, 2, 3, 4, 5));
    expect_segments(t, SEGMENTS({"<s>ab", 5, 0}, {"<s>ab", 5, 1}), QN_ENCODE_BOS, IDS(10, 2, 3, 4, 5, 10, 5));
    /* Half of one is not one, from either side; two trusted halves are. */
    expect_segments(t, SEGMENTS({"<s", 2, 1}, {">", 1, 0}), 0, IDS(2, 3, 4));
    expect_segments(t, SEGMENTS({"<", 1, 0}, {"s>", 2, 1}), 0, IDS(2, 3, 4));
    expect_segments(t, SEGMENTS({"<", 1, 1}, {"s>", 2, 1}), 0, IDS(10));
    /* Merges and other added tokens do not care where a segment ends. */
    expect_segments(t, SEGMENTS({"a", 1, 1}, {"b", 1, 0}), 0, IDS(5));
    expect_segments(t, SEGMENTS({"<t", 2, 0}, {">", 1, 1}), 0, IDS(11));
    expect_segments(t, SEGMENTS({"<r>", 3, 1}, {" \n a", 4, 0}), 0, IDS(12, 0));
    expect_segments(t, SEGMENTS({"", 0, 1}, {"<s>", 3, 0}, {"", 0, 1}), 0, IDS(2, 3, 4));
    expect_segments(t, NULL, 0, QN_ENCODE_BOS, IDS(10));
    /* What is not UTF-8 counts as U+FFFD, which this vocabulary does not have; the rest goes on. */
    expect_segments(t,
                    SEGMENTS({"a\xff"
                              "b",
                              3, 1}),
                    0, IDS(0, 1));
    qn_tokenizer_free(t);
}

static void expect_cut(const qn_tokenizer *t, const qn_text_segment *segments, size_t n_segments, size_t cut,
                       size_t want_at, const int32_t *expected, size_t n_expected)
{
    int32_t *ids = NULL;
    size_t n = 0, at = 99;
    assert_int_equal(qn_tokenizer_encode_cut(t, segments, n_segments, 0, &cut, 1, &at, &ids, &n), QN_OK);
    assert_int_equal(n, n_expected);
    assert_memory_equal(ids, expected, n * sizeof *ids);
    assert_int_equal(at, want_at);
    qn_free(ids);
}

/* A token ends where a text is cut. */
static void test_cuts(void **state)
{
    qn_tokenizer *t = open_text(byte_style);
    expect_cut(t, SEGMENTS({"ab", 2, 0}), 1, 1, IDS(0, 1));
    expect_cut(t, SEGMENTS({"a", 1, 0}, {"b", 1, 1}), 1, 1, IDS(0, 1));
    expect_cut(t, SEGMENTS({"ab", 2, 0}), 0, 0, IDS(5));
    expect_cut(t, SEGMENTS({"ab", 2, 0}), 2, 1, IDS(5));
    /* Neither may an added token, or a special one, reach over it. */
    expect_cut(t, SEGMENTS({"<s>ab", 5, 1}), 3, 1, IDS(10, 5));
    expect_cut(t, SEGMENTS({"<s>", 3, 1}), 1, 1, IDS(2, 3, 4));
    /* But white space that one takes may lie behind it. */
    expect_cut(t, SEGMENTS({"<r> \n a", 7, 1}), 3, 1, IDS(12, 0));
    size_t at, n, cuts[] = {2, 1};
    int32_t *ids = NULL;
    const qn_text_segment text = {"a\xc3\xa9", 3, 0};
    assert_int_equal(qn_tokenizer_encode_cut(t, &text, 1, 0, cuts, 1, &at, &ids, &n), QN_E_ARG);
    cuts[0] = 4;
    assert_int_equal(qn_tokenizer_encode_cut(t, &text, 1, 0, cuts, 1, &at, &ids, &n), QN_E_ARG);
    assert_null(ids);
    qn_tokenizer_free(t);
}

/* In tokenizers of all kinds: nothing is put in front of what lies behind a cut, and a cut where a token ends
 * anyway changes nothing. */
static void test_cuts_in_words(void **state)
{
    static const char *const names[] = {"gemma3", "llama3", "mistral", "qwen3"};
    static const char text[] = "Hello there,  world of 123 words\n\nand lines. caf\xc3\xa9";
    enum { N = sizeof text - 1 };
    for (int k = 0; k < 4; k++) {
        char path[80];
        snprintf(path, sizeof path, "tokenizers/%s/tokenizer.json", names[k]);
        qn_tokenizer *t = open_json(qn_test_need_fixture(path), NULL);
        const qn_text_segment whole = {text, N, 0};
        int32_t *plain, *ids, *head;
        size_t n_plain, n, n_head, at;
        assert_int_equal(qn_tokenizer_encode(t, text, N, 0, &plain, &n_plain), QN_OK);
        for (size_t cut = 0; cut <= N; cut++) {
            qn_buf behind = {0};
            if (cut < N && ((uint8_t)text[cut] & 0xc0) == 0x80) continue;
            assert_int_equal(qn_tokenizer_encode_cut(t, &whole, 1, 0, &cut, 1, &at, &ids, &n), QN_OK);
            assert_int_equal(qn_tokenizer_encode(t, text, cut, 0, &head, &n_head), QN_OK);
            assert_int_equal(at, n_head);
            assert_memory_equal(ids, head, at * sizeof *ids);
            if (cut)
                for (size_t i = at; i < n; i++)
                    assert_int_equal(qn_tokenizer_piece(t, ids[i], &behind), QN_OK);
            if (cut && cut < N) assert_string_equal(behind.data, text + cut);
            int ends_here = n_head <= n_plain && memcmp(head, plain, n_head * sizeof *head) == 0;
            if (cut && cut < N && ends_here && text[cut] == ' ' && text[cut - 1] != ' ' &&
                text[cut + 1] != ' ') {
                assert_int_equal(n, n_plain);
                assert_memory_equal(ids, plain, n * sizeof *ids);
            }
            qn_buf_free(&behind);
            qn_free(ids);
            qn_free(head);
        }
        qn_free(plain);
        qn_tokenizer_free(t);
    }
}

static void test_long_run(void **state)
{
    enum { N = 100000 };
    qn_tokenizer *t = open_text(byte_style);
    char *text = qn_alloc(N);
    int32_t *ids = NULL;
    size_t n = 0;
    memset(text, 'a', N);
    assert_int_equal(qn_tokenizer_encode(t, text, N, 0, &ids, &n), QN_OK);
    assert_int_equal(n, N / 2);
    for (size_t i = 0; i < n; i++) assert_int_equal(ids[i], 9);
    qn_free(ids);
    qn_free(text);
    assert_int_equal(qn_tokenizer_encode(t, "", (size_t)QN_TOKENIZER_TEXT_MAX + 1, 0, &ids, &n), QN_E_ARG);
    qn_tokenizer_free(t);
}

static void test_streaming(void **state)
{
    qn_tokenizer *t = open_text(byte_style);
    qn_token_stream *s = NULL;
    qn_buf b = {0};
    assert_int_equal(qn_token_stream_new(t, QN_DECODE_SKIP_SPECIAL, &s), QN_OK);
    assert_int_equal(qn_token_stream_push(s, 7, &b), QN_OK); /* the first half of U+00E9 */
    assert_int_equal(b.length, 0);
    assert_int_equal(qn_token_stream_push(s, 10, &b), QN_OK);
    assert_int_equal(qn_token_stream_push(s, 8, &b), QN_OK);
    assert_string_equal(b.data, "\xc3\xa9");
    assert_int_equal(qn_token_stream_push(s, 7, &b), QN_OK);
    assert_int_equal(qn_token_stream_push(s, 0, &b), QN_OK);
    assert_string_equal(b.data, "\xc3\xa9\xef\xbf\xbd"
                                "a");
    assert_int_equal(qn_token_stream_push(s, 7, &b), QN_OK);
    assert_int_equal(qn_token_stream_finish(s, &b), QN_OK);
    assert_string_equal(b.data, "\xc3\xa9\xef\xbf\xbd"
                                "a\xef\xbf\xbd");
    qn_token_stream_free(s);
    qn_buf_reset(&b);
    assert_int_equal(qn_tokenizer_piece(t, 7, &b), QN_OK);
    assert_int_equal(qn_tokenizer_piece(t, 6, &b), QN_OK);
    assert_string_equal(b.data, "\xc3 ");
    qn_buf_free(&b);
    qn_tokenizer_free(t);
}

/* A file without any rule: the vocabulary tells. */
static void test_no_rule(void **state)
{
    qn_tokenizer *t =
        open_text("{\"model\":{\"vocab\":{\"\xc4\xa0the\":0,\"\xc4\xa0\":1,\"t\":2,\"he\":3,\"h\":4,\"e\":5,"
                  "\"the\":6},\"merges\":[\"h e\",\"t he\",\"\xc4\xa0 the\"]}}");
    qn_buf b = {0};
    expect_segments(t, SEGMENTS({"the the", 7, 0}), QN_ENCODE_BOS, IDS(6, 0));
    assert_int_equal(qn_tokenizer_decode(t, IDS(6, 0), 0, &b), QN_OK);
    assert_string_equal(b.data, "the the");
    qn_tokenizer_free(t);
    qn_buf_reset(&b);
    t = open_text("{\"model\":{\"vocab\":{\"\xe2\x96\x81\":0,\"a\":1,\"\xe2\x96\x81"
                  "a\":2},"
                  "\"merges\":[\"\xe2\x96\x81 a\"]}}");
    expect_segments(t, SEGMENTS({"a a", 3, 0}), 0, IDS(2, 2));
    assert_int_equal(qn_tokenizer_decode(t, IDS(2, 2), 0, &b), QN_OK);
    assert_string_equal(b.data, "a a");
    qn_tokenizer_free(t);
    qn_buf_free(&b);
}

static void test_refused(void **state)
{
#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
    static const struct {
        const char *text;
        qn_status status;
        const char *says;
    } cases[] = {
        {"", QN_E_FORMAT, "expected an object"},
        {"{}", QN_E_FORMAT, "no model"},
        {"{\"model\":{\"type\":\"WordLevel\"}}", QN_E_UNSUPPORTED, "\"WordLevel\""},
        {"{\"model\":{\"type\":\"Unigram\"}}", QN_E_FORMAT, "no vocab"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1],[\"b\"]]}}", QN_E_FORMAT, "has no score"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"x\"]]}}", QN_E_FORMAT, "not a number"},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",1]]}}", QN_E_FORMAT, "1 is not in"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", QN_E_FORMAT, "no unk_token"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"BertNormalizer\"}}", QN_E_FORMAT, "clean_text is neither"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}}",
         QN_E_FORMAT, "3 bytes are too few"},
        {"{\"model\":{\"vocab\":{\"a\":0}}}", QN_E_FORMAT, "no merges"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"a\":2},\"merges\":[]}}", QN_E_FORMAT,
         "line 1 column 37: 'a' is in the vocabulary twice"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", QN_E_FORMAT, "line 1 column 24: -1 is not in"},
        {"{\"model\":{\"vocab\":{\"a\":2147483646},\"merges\":[]}}", QN_E_FORMAT, "2147483646 is not in"},
        {"{\"model\":{\"vocab\":{\"a\":0.5},\"merges\":[]}}", QN_E_FORMAT, "expected an integer"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", QN_E_FORMAT,
         "merge 0 ('a' + 'b'): the right token"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}", QN_E_FORMAT, "a space between"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", QN_E_FORMAT, "a merge has 1 tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", QN_E_FORMAT,
         "unk_token \"u\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", QN_E_UNSUPPORTED, "dropout"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}", QN_E_UNSUPPORTED,
         "</w>"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Nmt\"}}", QN_E_UNSUPPORTED, "normalizer \"Nmt\""},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Odd\"}}", QN_E_UNSUPPORTED, "pre-tokenizer \"Odd\""},
        {"{" MODEL ",\"decoder\":{\"type\":\"CTC\"}}", QN_E_UNSUPPORTED, "decoder \"CTC\""},
        {"{" MODEL ",\"post_processor\":{\"type\":\"Odd\"}}", QN_E_UNSUPPORTED, "post_processor \"Odd\""},
        {"{" MODEL ",\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",9],\"sep\":[\"a\",0]}}",
         QN_E_FORMAT, "token id 9"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":3}]}", QN_E_FORMAT, "no content"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":999999999,\"content\":\"x\"}]}", QN_E_FORMAT,
         "999999999 is not in"},
        {"{" MODEL "} x", QN_E_FORMAT, "text after the end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_tokenizer *t = NULL;
        qn_status status = qn_tokenizer_from_json("t.json", cases[i].text, strlen(cases[i].text), &t);
        if (status != cases[i].status)
            fail_msg("case %zu: %s: %s", i, qn_status_name(status), qn_last_error());
        if (!strstr(qn_last_error(), cases[i].says)) fail_msg("case %zu: %s", i, qn_last_error());
        if (!strstr(qn_last_error(), "t.json")) fail_msg("case %zu: %s", i, qn_last_error());
        assert_null(t);
    }
}

static qn_status use_once(void)
{
    qn_tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    qn_buf text = {0};
    QN_TRY(qn_tokenizer_from_json("t.json", byte_style, strlen(byte_style), &t));
    const qn_text_segment segments[] = {{"<s>ab <t>", 9, 1}, {"aab\xff", 4, 0}};
    qn_status status = qn_tokenizer_encode_segments(t, segments, 2, QN_ENCODE_BOS, &ids, &n);
    if (status == QN_OK) status = qn_tokenizer_decode(t, ids, n, 0, &text);
    if (status == QN_OK) assert_string_equal(text.data, "<s><s>ab <t>aab");
    qn_buf_free(&text);
    qn_free(ids);
    qn_tokenizer_free(t);
    return status;
}

static void test_memory(void **state)
{
    qn_status status = QN_E_NOMEM;
    int64_t n, before = qn_mem_live_blocks();
    for (n = 1; status != QN_OK && n < 2000; n++) {
        qn_mem_fail_nth(n);
        status = use_once();
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    assert_true(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),       cmocka_unit_test(test_real),
        cmocka_unit_test(test_gguf_models), cmocka_unit_test(test_segments),
        cmocka_unit_test(test_cuts),        cmocka_unit_test(test_cuts_in_words),
        cmocka_unit_test(test_long_run),    cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_no_rule),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
