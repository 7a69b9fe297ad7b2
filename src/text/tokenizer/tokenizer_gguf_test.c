/* GGUF vocabularies that are wrong, and the models of the fixtures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer.h"

/* --- writing a GGUF ------------------------------------------------------------------------------------ */

typedef struct {
    qn_buf values;
    uint64_t n;
} gguf_writer;

static void put_string(qn_buf *b, const char *s)
{
    uint64_t n = strlen(s);
    qn_buf_append(b, &n, 8);
    qn_buf_append(b, s, n);
}

static void put_key(gguf_writer *w, const char *key, uint32_t type)
{
    put_string(&w->values, key);
    qn_buf_append(&w->values, &type, 4);
    w->n++;
}

static void put_array(gguf_writer *w, const char *key, uint32_t type, uint64_t count)
{
    put_key(w, key, QN_GGUF_ARRAY);
    qn_buf_append(&w->values, &type, 4);
    qn_buf_append(&w->values, &count, 8);
}

static void put_text(gguf_writer *w, const char *key, const char *value)
{
    put_key(w, key, QN_GGUF_STRING);
    put_string(&w->values, value);
}

static void put_u32(gguf_writer *w, const char *key, uint32_t value)
{
    put_key(w, key, QN_GGUF_U32);
    qn_buf_append(&w->values, &value, 4);
}

static void put_bool(gguf_writer *w, const char *key, int value)
{
    put_key(w, key, QN_GGUF_BOOL);
    qn_buf_putc(&w->values, (char)value);
}

/* A small SentencePiece vocabulary; bend says what is wrong with it. */
typedef enum {
    SOUND,
    FEW_SCORES,
    FEW_TYPES,
    BAD_TYPE,
    BAD_BYTE,
    BAD_BOS,
    NAN_SCORE,
    TWINS,
    NO_SCORES,
    NO_TOKENS,
    BAD_MODEL,
    NO_BOS
} bend;

static const char *const spm_tokens[] = {
    "<unk>",  "<s>", "</s>", "<0x41>", "\xe2\x96\x81", "h",     "e",
    "l",      "o",   "he",   "ll",     "hell",         "hello", "\xe2\x96\x81hello",
    "<user>", "s",   "<",    ">",      "<s",
};
enum { N_SPM = sizeof spm_tokens / sizeof spm_tokens[0] };
static const int32_t spm_types[N_SPM] = {2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 1, 1};

static gguf_writer spm(bend how)
{
    gguf_writer w = {0};
    put_text(&w, "general.name", "test");
    put_text(&w, "tokenizer.ggml.model", how == BAD_MODEL ? "rwkv" : "llama");
    if (how != NO_TOKENS) {
        put_array(&w, "tokenizer.ggml.tokens", QN_GGUF_STRING, N_SPM);
        for (int i = 0; i < N_SPM; i++)
            put_string(&w.values, how == BAD_BYTE && i == 3 ? "<0x-1>"
                                  : how == TWINS && i == 7  ? "h"
                                                            : spm_tokens[i]);
    }
    if (how != NO_SCORES) {
        put_array(&w, "tokenizer.ggml.scores", QN_GGUF_F32, N_SPM - (how == FEW_SCORES));
        for (int i = 0; i < N_SPM - (how == FEW_SCORES); i++) {
            float score = how == NAN_SCORE && i == 5 ? __builtin_nanf("") : (float)-(N_SPM - i);
            qn_buf_append(&w.values, &score, 4);
        }
    }
    put_array(&w, "tokenizer.ggml.token_type", QN_GGUF_I32, N_SPM - (how == FEW_TYPES));
    for (int i = 0; i < N_SPM - (how == FEW_TYPES); i++) {
        int32_t type = how == BAD_TYPE && i == 6 ? 9 : spm_types[i];
        qn_buf_append(&w.values, &type, 4);
    }
    put_u32(&w, "tokenizer.ggml.bos_token_id", how == BAD_BOS ? 4000000 : how == NO_BOS ? UINT32_MAX : 1);
    put_u32(&w, "tokenizer.ggml.eos_token_id", 2);
    put_bool(&w, "tokenizer.ggml.add_bos_token", 1);
    return w;
}

static gguf_writer bpe(const char *pre, const char *merge)
{
    static const char *const tokens[] = {"a",
                                         "b",
                                         "ab",
                                         "\xc4\xa0",
                                         "<|im_end|>",
                                         "\xc4\xa0"
                                         "ab"};
    static const int32_t types[] = {1, 1, 1, 1, 3, 1};
    gguf_writer w = {0};
    put_text(&w, "tokenizer.ggml.model", "gpt2");
    if (pre) put_text(&w, "tokenizer.ggml.pre", pre);
    put_array(&w, "tokenizer.ggml.tokens", QN_GGUF_STRING, 6);
    for (int i = 0; i < 6; i++) put_string(&w.values, tokens[i]);
    put_array(&w, "tokenizer.ggml.token_type", QN_GGUF_I32, 6);
    qn_buf_append(&w.values, types, sizeof types);
    put_array(&w, "tokenizer.ggml.merges", QN_GGUF_STRING, 2);
    put_string(&w.values, "a b");
    put_string(&w.values, merge);
    put_u32(&w, "tokenizer.ggml.eos_token_id", 4);
    return w;
}

/* Opens what was written; the writer is freed. */
static qn_status try_open(gguf_writer w, const qn_tokenizer_options *options, qn_tokenizer **out)
{
    qn_buf file = {0};
    uint32_t version = 3;
    uint64_t none = 0;
    qn_gguf *g = NULL;
    qn_buf_append(&file, "GGUF", 4);
    qn_buf_append(&file, &version, 4);
    qn_buf_append(&file, &none, 8);
    qn_buf_append(&file, &w.n, 8);
    qn_buf_append(&file, w.values.data, w.values.length);
    qn_buf_free(&w.values);
    assert_int_equal(file.status, QN_OK);
    qn_status status = qn_gguf_open_bytes("test.gguf", file.data, file.length, &g);
    if (status == QN_OK) status = qn_tokenizer_from_gguf(g, options, out);
    qn_gguf_close(g);
    qn_buf_free(&file);
    return status;
}

static void expect_ids(const qn_tokenizer *t, const char *text, unsigned flags, const int32_t *expected,
                       size_t n_expected)
{
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(qn_tokenizer_encode(t, text, strlen(text), flags, &ids, &n), QN_OK);
    assert_int_equal(n, n_expected);
    assert_memory_equal(ids, expected, n * sizeof *ids);
    qn_free(ids);
}
#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static void test_spm(void **state)
{
    qn_tokenizer *t = NULL;
    assert_int_equal(try_open(spm(SOUND), NULL, &t), QN_OK);
    expect_ids(t, "hello", QN_ENCODE_BOS, IDS(1, 13));
    expect_ids(t, "A", 0, IDS(4, 3));
    expect_ids(t, "hello<user>hello", 0, IDS(13, 14, 13));
    expect_ids(t, "\xc3\xa9", 0, IDS(4, 0)); /* no bytes for it */
    /* "<s" and ">" merge to "<s>" by the letter; text is no control token unless it may be. */
    expect_ids(t, "<s>", 0, IDS(4, 18, 17));
    expect_ids(t, "<s>", QN_ENCODE_SPECIAL, IDS(1));
    assert_int_equal(qn_tokenizer_bos_id(t), 1);
    assert_int_equal(qn_tokenizer_eos_id(t), 2);
    assert_true(qn_tokenizer_is_special(t, 0) && qn_tokenizer_is_special(t, 1) &&
                !qn_tokenizer_is_special(t, 14));
    qn_buf text = {0};
    assert_int_equal(qn_tokenizer_decode(t, IDS(1, 13, 14, 3, 99, -1), QN_DECODE_SKIP_SPECIAL, &text), QN_OK);
    assert_string_equal(text.data, "hello<user>A");
    qn_buf_free(&text);
    qn_tokenizer_free(t);
}

static void test_wrong(void **state)
{
    static const struct {
        bend how;
        qn_status status;
        const char *says;
    } cases[] = {
        {FEW_SCORES, QN_E_FORMAT, "tokenizer.ggml.scores has 18 entries for 19 tokens"},
        {FEW_TYPES, QN_E_FORMAT, "tokenizer.ggml.token_type has 18 entries for 19 tokens"},
        {BAD_TYPE, QN_E_FORMAT, "tokenizer.ggml.token_type"},
        {BAD_BYTE, QN_E_FORMAT, "<0x-1>"},
        {BAD_BOS, QN_E_FORMAT, "bos_token_id is 4000000"},
        {NAN_SCORE, QN_E_FORMAT, "tokenizer.ggml.scores"},
        {TWINS, QN_E_FORMAT, "tokens 5 and 7 are both 'h'"},
        {NO_SCORES, QN_E_NOT_FOUND, "tokenizer.ggml.scores"},
        {NO_TOKENS, QN_E_NOT_FOUND, "tokenizer.ggml.tokens"},
        {BAD_MODEL, QN_E_UNSUPPORTED, "\"rwkv\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_tokenizer *t = NULL;
        qn_status status = try_open(spm(cases[i].how), NULL, &t);
        if (status != cases[i].status)
            fail_msg("case %zu: %s: %s", i, qn_status_name(status), qn_last_error());
        if (!strstr(qn_last_error(), cases[i].says)) fail_msg("case %zu: %s", i, qn_last_error());
        assert_null(t);
    }
}

static void test_pre(void **state)
{
    qn_tokenizer *t = NULL;
    assert_int_equal(try_open(bpe("qwen2", "\xc4\xa0 ab"), NULL, &t), QN_OK);
    expect_ids(t, "ab ab", QN_ENCODE_BOS, IDS(2, 5));
    expect_ids(t, "ab<|im_end|>", QN_ENCODE_SPECIAL, IDS(2, 4));
    size_t n = 0;
    assert_int_equal(qn_tokenizer_turn_end_ids(t, &n)[0], 4);
    assert_int_equal(n, 1);
    qn_tokenizer_free(t);
    t = NULL;
    assert_int_equal(try_open(bpe("of-tomorrow", "\xc4\xa0 ab"), NULL, &t), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "\"of-tomorrow\""));
    static const char *const by_hand[] = {"b"};
    qn_tokenizer_options o = {.pre_regexes = by_hand, .n_pre_regexes = 1};
    assert_int_equal(try_open(bpe("of-tomorrow", "\xc4\xa0 ab"), &o, &t), QN_OK);
    expect_ids(t, "ab ab", 0, IDS(0, 1, 3, 0, 1));
    qn_tokenizer_free(t);
    t = NULL;
    assert_int_equal(try_open(bpe("qwen2", "ab c"), NULL, &t), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "merge 1 ('ab' + 'c'): the right token"));
    assert_int_equal(try_open(bpe("qwen2", "ab"), NULL, &t), QN_E_FORMAT);
}

/* A token of a part of a character is found nowhere in a text: the rest of the character would be none. */
static void test_parts_of_characters(void **state)
{
    static const char *const tokens[] = {"\xc3\x83", "\xc2\xa9", "\xa9", "x", "\xc3\xa9\xc3"};
    static const int32_t types[] = {1, 1, 4, 4, 3};
    static const char *const by_hand[] = {"[a-z]+"};
    const qn_tokenizer_options o = {.pre_regexes = by_hand, .n_pre_regexes = 1};
    gguf_writer w = {0};
    qn_tokenizer *t = NULL;
    put_text(&w, "tokenizer.ggml.model", "gpt2");
    put_array(&w, "tokenizer.ggml.tokens", QN_GGUF_STRING, 5);
    for (int i = 0; i < 5; i++) put_string(&w.values, tokens[i]);
    put_array(&w, "tokenizer.ggml.token_type", QN_GGUF_I32, 5);
    qn_buf_append(&w.values, types, sizeof types);
    put_array(&w, "tokenizer.ggml.merges", QN_GGUF_STRING, 0);
    assert_int_equal(try_open(w, &o, &t), QN_OK);
    expect_ids(t, "\xc3\xa9x\xc3\xa9\xc3\xa9", QN_ENCODE_SPECIAL, IDS(0, 1, 3, 0, 1, 0, 1));
    qn_buf text = {0};
    assert_int_equal(qn_tokenizer_decode(t, IDS(0, 2, 3), QN_DECODE_RAW, &text), QN_OK);
    assert_string_equal(text.data, "\xc3\xa9x");
    qn_buf_free(&text);
    qn_tokenizer_free(t);
}

static void test_memory(void **state)
{
    qn_tokenizer *t = NULL;
    qn_status status = QN_E_NOMEM;
    int64_t n = 0;
    for (int kind = 0; kind < 2; kind++) {
        status = QN_E_NOMEM;
        for (n = 1; status != QN_OK && n < 2000; n++) {
            gguf_writer w = kind ? bpe("llama-bpe", "\xc4\xa0 ab") : spm(SOUND);
            int64_t before = qn_mem_live_blocks();
            qn_mem_fail_nth(n + 3); /* past the test's own buffer */
            status = try_open(w, NULL, &t);
            qn_mem_fail_nth(0);
            if (status == QN_OK) {
                qn_tokenizer_free(t);
            } else {
                assert_int_equal(status, QN_E_NOMEM);
            }
            assert_int_equal(qn_mem_live_blocks(), before - 1); /* the writer's values */
        }
        assert_int_equal(status, QN_OK);
        assert_true(n > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spm),    cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_pre),    cmocka_unit_test(test_parts_of_characters),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
