/* Vocabularies "bert" and "t5" of GGUF files against the tokenizer.json that they were made from, written as llama.cpp's
 * converter writes them. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes/base64.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_file.h"
#include "text/tokenizer/tokenizer.h"

enum { TOKENS_MAX = 2000, CASES = 200 };

typedef struct {
    const char *texts[TOKENS_MAX];
    char own[TOKENS_MAX][256];
    float scores[TOKENS_MAX];
    int32_t types[TOKENS_MAX];
    size_t n;
} vocabulary;

static const json_t *added_of(const json_t *file, int64_t id)
{
    const json_t *each;
    size_t i;
    json_array_foreach(json_object_get(file, "added_tokens"), i,
                       each) if (json_integer_value(json_object_get(each, "id")) == id) return each;
    return NULL;
}

/* The phantom space of BERT's words: "##" goes, and a token that begins a word gets U+2581. */
static void spell(vocabulary *v, int64_t id, const char *text, int is_bert)
{
    const int is_plain = v->types[id] != 3;
    snprintf(v->own[id], sizeof v->own[id], "%s%s",
             is_bert && is_plain && strncmp(text, "##", 2) != 0 ? "\xe2\x96\x81" : "",
             is_bert && is_plain && strncmp(text, "##", 2) == 0 ? text + 2 : text);
    v->texts[id] = v->own[id];
}

static void read_vocabulary(const json_t *file, int is_bert, vocabulary *v)
{
    const json_t *vocab = json_object_get(json_object_get(file, "model"), "vocab"), *pair;
    const char *text;
    json_t *id;
    size_t i;
    v->n = is_bert ? json_object_size(vocab) : json_array_size(vocab);
    assert_true(v->n <= TOKENS_MAX);
    for (i = 0; i < v->n; i++) v->types[i] = added_of(file, (int64_t)i) ? 3 : 1;
    if (is_bert)
        json_object_foreach((json_t *)(uintptr_t)vocab, text, id) spell(v, json_integer_value(id), text, 1);
    else
        json_array_foreach(vocab, i, pair)
        {
            v->scores[i] = (float)json_number_value(json_array_get(pair, 1));
            spell(v, (int64_t)i, json_string_value(json_array_get(pair, 0)), 0);
        }
}

static void set_charsmap(qn_test_gguf *f, const json_t *file)
{
    const json_t *each;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(file, "normalizer"), "normalizers"), i, each)
    {
        const json_t *map = json_object_get(each, "precompiled_charsmap");
        qn_buf bytes = {0};
        if (!map) continue;
        assert_int_equal(qn_base64_decode(json_string_value(map), json_string_length(map), &bytes), QN_OK);
        qn_test_gguf_set_array(f, "tokenizer.ggml.precompiled_charsmap", QN_GGUF_U8, bytes.length, bytes.data,
                               bytes.length);
        qn_buf_free(&bytes);
    }
}

static uint32_t id_of(const json_t *file, const char *token)
{
    const json_t *each;
    size_t i;
    json_array_foreach(json_object_get(file, "added_tokens"), i,
                       each) if (strcmp(json_string_value(json_object_get(each, "content")), token) ==
                                 0) return (uint32_t)json_integer_value(json_object_get(each, "id"));
    fail_msg("no token %s", token);
    return 0;
}

static qn_test_gguf *convert(const json_t *file, int is_bert)
{
    qn_test_gguf *f = qn_test_gguf_empty();
    vocabulary *v = test_calloc(1, sizeof *v);
    const uint8_t yes = 1;
    read_vocabulary(file, is_bert, v);
    qn_test_gguf_set_text(f, "tokenizer.ggml.model", is_bert ? "bert" : "t5");
    qn_test_gguf_set_texts(f, "tokenizer.ggml.tokens", v->n, v->texts);
    qn_test_gguf_set_array(f, "tokenizer.ggml.token_type", QN_GGUF_I32, v->n, v->types, v->n * 4);
    if (is_bert) {
        qn_test_gguf_set_u32(f, "tokenizer.ggml.cls_token_id", id_of(file, "[CLS]"));
        qn_test_gguf_set_u32(f, "tokenizer.ggml.seperator_token_id", id_of(file, "[SEP]"));
        qn_test_gguf_set_u32(f, "tokenizer.ggml.unknown_token_id", id_of(file, "[UNK]"));
    } else {
        qn_test_gguf_set_array(f, "tokenizer.ggml.scores", QN_GGUF_F32, v->n, v->scores, v->n * 4);
        set_charsmap(f, file);
        qn_test_gguf_set_u32(f, "tokenizer.ggml.bos_token_id", id_of(file, "<s>"));
        qn_test_gguf_set_u32(f, "tokenizer.ggml.eos_token_id", id_of(file, "</s>"));
        qn_test_gguf_set_u32(f, "tokenizer.ggml.unknown_token_id", id_of(file, "<unk>"));
        qn_test_gguf_set(f, "tokenizer.ggml.add_bos_token", QN_GGUF_BOOL, &yes, 1);
        qn_test_gguf_set(f, "tokenizer.ggml.add_eos_token", QN_GGUF_BOOL, &yes, 1);
        qn_test_gguf_set(f, "tokenizer.ggml.remove_extra_whitespaces", QN_GGUF_BOOL, &yes, 1);
    }
    test_free(v);
    return f;
}

/* The rules that transformers 5 gives XLM-RoBERTa and T5. */
static void set_rules(json_t *file)
{
    static const char rules[] =
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Metaspace\","
        "\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\",\"split\":true}]}";
    const json_t *all = json_object_get(json_object_get(file, "normalizer"), "normalizers");
    assert_int_equal(json_object_set(file, "normalizer", json_array_get(all, 0)), 0);
    assert_int_equal(json_object_set_new(file, "pre_tokenizer", json_loads(rules, 0, NULL)), 0);
}

static void expect_same(const qn_tokenizer *x, const qn_tokenizer *y, const char *text, size_t n,
                        unsigned flags)
{
    int32_t *ids[2] = {NULL};
    size_t n_ids[2];
    assert_int_equal(qn_tokenizer_encode(x, text, n, flags | QN_ENCODE_SPECIAL, &ids[0], &n_ids[0]), QN_OK);
    assert_int_equal(qn_tokenizer_encode(y, text, n, flags | QN_ENCODE_SPECIAL, &ids[1], &n_ids[1]), QN_OK);
    if (n_ids[0] != n_ids[1] || memcmp(ids[0], ids[1], n_ids[0] * sizeof *ids[0]) != 0)
        fail_msg("other ids for %s", text);
    qn_free(ids[0]);
    qn_free(ids[1]);
}

static void same_as_json(const char *kind, int is_bert)
{
    char path[128], line[1 << 16];
    snprintf(path, sizeof path, "tokenizer_kinds/%s/tokenizer.json", kind);
    json_t *file = json_load_file(qn_test_need_fixture(path), 0, NULL);
    qn_test_gguf *f = convert(file, is_bert);
    qn_buf bytes = {0};
    qn_gguf *g = NULL;
    qn_tokenizer *t = NULL, *reference = NULL;
    qn_test_gguf_bytes(f, &bytes);
    assert_int_equal(qn_gguf_open_bytes("encoder.gguf", bytes.data, bytes.length, &g), QN_OK);
    if (qn_tokenizer_from_gguf(g, NULL, &t) != QN_OK) fail_msg("%s", qn_last_error());
    if (!is_bert) set_rules(file);
    char *text = json_dumps(file, 0);
    assert_int_equal(qn_tokenizer_from_json("reference", text, strlen(text), &reference), QN_OK);
    free(text); /* foreign */
    snprintf(path, sizeof path, "tokenizer_kinds/%s/cases.jsonl", kind);
    FILE *cases = fopen(qn_test_need_fixture(path), "rb");
    int n = 0;
    assert_non_null(cases);
    for (; n < CASES && fgets(line, sizeof line, cases);) {
        json_t *c = json_loads(line, 0, NULL);
        const json_t *words = json_object_get(c, "text");
        for (unsigned around = 0; words && around < 2; around++)
            expect_same(reference, t, json_string_value(words), json_string_length(words),
                        around ? QN_ENCODE_BOS : 0);
        n += words != NULL;
        json_decref(c);
    }
    assert_true(n > 20);
    fclose(cases);
    qn_tokenizer_free(reference);
    qn_tokenizer_free(t);
    qn_gguf_close(g);
    qn_buf_free(&bytes);
    qn_test_gguf_free(f);
    json_decref(file);
}

static void test_bert(void **state)
{
    same_as_json("bert", 1);
    same_as_json("bert_cased", 1);
}

static void test_t5(void **state)
{
    same_as_json("xlmr", 0);
}

static qn_status open_little(qn_test_gguf *f)
{
    qn_buf bytes = {0};
    qn_gguf *g = NULL;
    qn_tokenizer *t = NULL;
    qn_test_gguf_bytes(f, &bytes);
    qn_status status = qn_gguf_open_bytes("little.gguf", bytes.data, bytes.length, &g);
    if (status == QN_OK) status = qn_tokenizer_from_gguf(g, NULL, &t);
    qn_tokenizer_free(t);
    qn_gguf_close(g);
    qn_buf_free(&bytes);
    return status;
}

static qn_test_gguf *little(const char *model)
{
    static const char *const bert[] = {"[UNK]", "[CLS]", "[SEP]", "\xe2\x96\x81one", "s"};
    static const char *const t5[] = {"<pad>", "</s>", "<unk>", "\xe2\x96\x81one", "s"};
    static const float scores[] = {0, 0, 0, -1, -2};
    qn_test_gguf *f = qn_test_gguf_empty();
    qn_test_gguf_set_text(f, "tokenizer.ggml.model", model);
    qn_test_gguf_set_texts(f, "tokenizer.ggml.tokens", 5, strcmp(model, "bert") == 0 ? bert : t5);
    if (strcmp(model, "t5") == 0)
        qn_test_gguf_set_array(f, "tokenizer.ggml.scores", QN_GGUF_F32, 5, scores, sizeof scores);
    return f;
}

static void expect_refused(qn_test_gguf *f, const char *words)
{
    assert_int_equal(open_little(f), QN_E_FORMAT);
    if (!strstr(qn_last_error(), words)) fail_msg("%s", qn_last_error());
    qn_test_gguf_free(f);
}

static void test_refused(void **state)
{
    static const char *const without[] = {"[UNK]", "one"};
    static const int32_t types[5] = {9, 1, 1, 1, 1};
    for (int i = 0; i < 2; i++) {
        qn_test_gguf *f = little(i ? "t5" : "bert");
        if (open_little(f) != QN_OK) fail_msg("%s", qn_last_error());
        qn_test_gguf_set_array(f, "tokenizer.ggml.token_type", QN_GGUF_I32, 5, types, sizeof types);
        expect_refused(f, "token_type");
        f = little(i ? "t5" : "bert");
        qn_test_gguf_set_u32(f, "tokenizer.ggml.unknown_token_id", 5);
        expect_refused(f, "unknown_token_id is 5");
    }
    qn_test_gguf *f = little("bert");
    qn_test_gguf_set_texts(f, "tokenizer.ggml.tokens", 2, without);
    expect_refused(f, "[CLS] and [SEP]");
    f = little("t5");
    qn_test_gguf_set_array(f, "tokenizer.ggml.scores", QN_GGUF_F32, 0, "", 0);
    expect_refused(f, "scores has 0 entries");
    f = little("t5");
    qn_test_gguf_set_u32(f, "tokenizer.ggml.precompiled_charsmap", 3);
    expect_refused(f, "precompiled_charsmap is not an array");
}

static void test_out_of_memory(void **state)
{
    qn_test_gguf *f = little("t5");
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    qn_buf bytes = {0};
    qn_test_gguf_bytes(f, &bytes);
    const int64_t with_bytes = qn_mem_live_blocks();
    for (int64_t n = 1; n < 2000 && status != QN_OK; n++) {
        qn_gguf *g = NULL;
        qn_tokenizer *t = NULL;
        assert_int_equal(qn_gguf_open_bytes("little.gguf", bytes.data, bytes.length, &g), QN_OK);
        qn_mem_fail_nth(n);
        status = qn_tokenizer_from_gguf(g, NULL, &t);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_tokenizer_free(t);
        qn_gguf_close(g);
        assert_int_equal(qn_mem_live_blocks(), with_bytes);
    }
    assert_int_equal(status, QN_OK);
    qn_buf_free(&bytes);
    assert_int_equal(qn_mem_live_blocks(), before);
    qn_test_gguf_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bert), cmocka_unit_test(test_t5),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests_name("encoders' vocabularies in GGUF", tests, NULL, NULL);
}
