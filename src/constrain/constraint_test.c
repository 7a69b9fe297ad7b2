/* Constraints over a small vocabulary: each kind of source, masks beside steps, forced text, limits, memory. */
#include "constrain/constraint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/support/fixtures.h"

/* ---- a vocabulary -------------------------------------------------------------------------------------- */

static qn_tokenizer *tokenizer;
static qn_vocabulary *vocabulary;
static int32_t end_id;
static uint32_t *mask;

static int open_vocabulary(void **state)
{
    const char *path = qn_test_fixture("tokenizers/qwen3/tokenizer.json");
    FILE *f = path ? fopen(path, "rb") : NULL;
    qn_buf b = {0};
    char block[4096];
    if (!f) return -1;
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) qn_buf_append(&b, block, n);
    fclose(f);
    qn_status status = qn_tokenizer_from_json("tokenizer.json", b.data, b.length, &tokenizer);
    qn_buf_free(&b);
    if (status != QN_OK) return -1;
    end_id = qn_tokenizer_find(tokenizer, "<|im_end|>", 10);
    if (end_id < 0 || qn_vocabulary_new(tokenizer, &end_id, 1, &vocabulary) != QN_OK) return -1;
    mask = qn_calloc(qn_vocabulary_mask_words(vocabulary), sizeof *mask);
    return mask ? 0 : -1;
}

static int close_vocabulary(void **state)
{
    qn_free(mask);
    qn_vocabulary_release(vocabulary);
    qn_tokenizer_free(tokenizer);
    return 0;
}

static qn_constraint_source source_of(qn_constraint_kind kind, const char *text)
{
    return (qn_constraint_source){.kind = kind, .text = text, .n = strlen(text)};
}

static qn_constraint *compile(qn_constraint_kind kind, const char *text)
{
    qn_constraint_source s = source_of(kind, text);
    qn_constraint *c = NULL;
    if (qn_constraint_new(vocabulary, &s, NULL, &c) != QN_OK) fail_msg("%s: %s", text, qn_last_error());
    return c;
}

static qn_matcher *begin(qn_constraint *c)
{
    qn_matcher *m = NULL;
    assert_int_equal(qn_matcher_new(c, &m), QN_OK);
    return m;
}

/* ---- texts --------------------------------------------------------------------------------------------- */

/* Goes through a text byte by byte, and token by token with masks; both must agree. 1: it may come, whole. */
static int takes(qn_constraint *c, const char *text)
{
    qn_matcher *m = begin(c);
    size_t n = strlen(text), n_taken = 0;
    assert_int_equal(qn_matcher_accept_text(m, text, n, &n_taken), QN_OK);
    int by_bytes = n_taken == n && qn_matcher_may_end(m);
    qn_matcher_free(m);

    int32_t *ids;
    size_t n_ids;
    m = begin(c);
    assert_int_equal(qn_tokenizer_encode(tokenizer, text, n, QN_ENCODE_SPECIAL, &ids, &n_ids), QN_OK);
    int by_tokens = 1;
    for (size_t i = 0; i < n_ids && by_tokens; i++) {
        assert_int_equal(qn_matcher_mask(m, mask), QN_OK);
        int bit = mask[ids[i] >> 5] >> (ids[i] & 31) & 1;
        assert_int_equal(bit, qn_matcher_allows(m, ids[i]));
        by_tokens = qn_matcher_accept(m, ids[i]) == QN_OK;
        assert_int_equal(bit, by_tokens);
    }
    if (by_tokens) {
        assert_int_equal(qn_matcher_mask(m, mask), QN_OK);
        by_tokens = mask[end_id >> 5] >> (end_id & 31) & 1;
        assert_int_equal(by_tokens, qn_matcher_may_end(m));
    }
    qn_free(ids);
    qn_matcher_free(m);
    if (!strstr(text, "<|")) assert_int_equal(by_bytes, by_tokens);
    return by_tokens;
}

typedef struct {
    qn_constraint_kind kind;
    const char *source;
    const char *valid[10], *invalid[10];
} example;

static void check(const example *e)
{
    qn_constraint *c = compile(e->kind, e->source);
    for (int i = 0; i < 10 && e->valid[i]; i++)
        if (!takes(c, e->valid[i])) fail_msg("%s refuses %s", e->source, e->valid[i]);
    for (int i = 0; i < 10 && e->invalid[i]; i++)
        if (takes(c, e->invalid[i])) fail_msg("%s takes %s", e->source, e->invalid[i]);
    qn_constraint_release(c);
}

static void test_plain(void **state)
{
    static const example examples[] = {
        {QN_CONSTRAIN_REGEX, "[a-c]+-\\d{2}", {"a-12", "abc-00"}, {"a-1", "-12", "a-123", ""}},
        {QN_CONSTRAIN_CHOICES, "[\"yes\", \"no\", \"not\"]", {"yes", "no", "not"}, {"n", "yess", ""}},
        {QN_CONSTRAIN_GBNF, "root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"((x)", "xx"}},
        {QN_CONSTRAIN_LARK, "start: \"a\" start \"b\" | \"c\"", {"c", "aacbb"}, {"acbb", ""}},
        {QN_CONSTRAIN_JSON_OBJECT,
         "",
         {"{}", "{\"a\": [1, {\"b\": null}], \"c\": \"\\u00e9\\n\"}", "{\n  \"a\": 1.5e3,\n  \"b\": []\n}"},
         {"[]", "1", "{\"a\":1,\"a\":2}", "{\"a\":1,\"\\u0061\":2}", "{\"a\" :1}", "{\n\n\"a\":1}",
          "{\"a\": 01}", "{\"a\": \"\\ud800\"}", "{} "}},
    };
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) check(&examples[i]);
}

static void test_schemas(void **state)
{
    static const example examples[] = {
        {0, "{\"type\": \"integer\", \"minimum\": 3}", {"3", "17", "4.0"}, {"2", "-7", "3.5", "\"3\""}},
        {0,
         "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"b\": {\"enum\": [1, "
         "\"x\", [true]]}},"
         " \"required\": [\"b\"], \"additionalProperties\": false}",
         {"{\"b\":1}", "{\"a\": \"\", \"b\": [true]}", "{\n    \"b\": \"x\"\n}"},
         {"{}", "{\"a\":\"\"}", "{\"b\":2}", "{\"b\":1,\"c\":1}", "{\"b\":[false]}", "{\"b\": 1,\"b\": 1}"}},
        {0,
         "{\"properties\": {\"a\": {\"minLength\": 2, \"maxLength\": 3}}}",
         {"{\"a\":\"\xc3\xa9\xc3\xa9\"}", "{\"a\":\"\\ud83d\\ude00x\"}", "{\"a\":5}", "[]", "{\"b\": \"\"}"},
         {"{\"a\":\"\xc3\xa9\"}", "{\"a\":\"abcd\"}"}},
        {0,
         "{\"items\": {\"type\": \"string\"}, \"uniqueItems\": true, \"type\": \"array\", \"maxItems\": 3}",
         {"[]", "[\"a\", \"b\", \"ab\"]"},
         {"[\"a\",\"a\"]", "[\"a\",\"\\u0061\"]", "[\"a\",\"b\",\"c\",\"d\"]", "[1]"}},
        {0,
         "{\"patternProperties\": {\"^x\": {\"type\": \"null\"}}, \"additionalProperties\": {\"type\": "
         "\"boolean\"}}",
         {"{\"x1\": null, \"y\": true}", "{}"},
         {"{\"x1\": true}", "{\"y\": null}"}},
        {0,
         "{\"not\": {\"properties\": {\"a\": {\"type\": \"string\"}}, \"required\": [\"a\"]}}",
         {"{}", "{\"a\": 1}"},
         {"{\"a\": \"\"}", "3"}},
        {0,
         "{\"oneOf\": [{\"type\": \"number\", \"multipleOf\": 3}, {\"type\": \"number\", \"multipleOf\": "
         "5}]}",
         {"3", "10", "-6"},
         {"15", "0", "7", "\"\""}},
        {0,
         "{\"if\": {\"properties\": {\"k\": {\"const\": 1}}, \"required\": [\"k\"]}, \"then\": "
         "{\"required\": [\"v\"]},"
         " \"else\": {\"maxProperties\": 1}, \"type\": \"object\"}",
         {"{\"k\":1,\"v\":2}", "{\"k\":2}", "{}"},
         {"{\"k\":1}", "{\"k\":2,\"v\":2}"}},
        {0,
         "{\"$ref\": \"#/$defs/t\", \"$defs\": {\"t\": {\"type\": \"array\", \"items\": {\"$ref\": "
         "\"#/$defs/t\"}}}}",
         {"[]", "[[], [[]]]"},
         {"[1]", "{}"}},
        {0,
         "{\"type\": \"array\", \"contains\": {\"type\": \"integer\"}, \"minContains\": 2, \"maxContains\": "
         "2}",
         {"[1, \"a\", 2]", "[1,2]"},
         {"[]", "[1]", "[1,2,3]"}},
        {0,
         "{\"type\": \"array\", \"allOf\": [{\"contains\": {\"multipleOf\": 2}}, {\"contains\": "
         "{\"multipleOf\": "
         "3}}], \"items\": {\"type\": \"integer\"}, \"maxItems\": 3}",
         {"[6]", "[2,3]", "[1, 1, 6]", "[1,2,3]", "[9, 9, 4]"},
         {"[]", "[2,4]", "[1,1,2]", "[3, 3, 1]", "[1,2,3,6]"}},
        {0,
         "{\"type\": \"array\", \"prefixItems\": [{\"const\": 1}, {\"type\": \"string\"}], \"contains\": "
         "{\"const\": "
         "\"a\"}, \"allOf\": [{\"contains\": {\"const\": 2}}, {\"not\": {\"contains\": {\"const\": null}}}]}",
         {"[1,\"a\",2]", "[1,\"b\",2,\"a\"]", "[1, \"a\", 3, 2]"},
         {"[1,\"a\"]", "[1,2]", "[1,\"a\",null", "[2]"}},
        {0,
         "{\"allOf\": [{\"properties\": {\"a\": {}}}, {\"properties\": {\"b\": {}}}], "
         "\"unevaluatedProperties\": false}",
         {"{\"a\":1,\"b\":2}", "{}"},
         {"{\"c\":1}"}},
        {0,
         "{\"propertyNames\": {\"pattern\": \"^[a-z]$\"}, \"minProperties\": 1, \"maxProperties\": 2}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
         {"{}", "{\"ab\":1}", "{\"a\":1,\"b\":2,\"c\":3}"}},
        {0,
         "{\"type\": \"array\", \"items\": {\"type\": [\"number\", \"null\", \"string\"]}, \"uniqueItems\": "
         "true}",
         {"[1, 2.5, null, \"1\", \"null\", 10, -1]", "[1.0, 2]", "[0, 0.5]", "[]"},
         {"[1,1]", "[1, 1.0]", "[null, null]", "[0, -0.0]", "[2.5, \"a\", 2.5]"}},
        {0,
         "{\"type\": \"array\", \"items\": {\"enum\": [1, 12, true]}, \"uniqueItems\": true, \"minItems\": "
         "2}",
         {"[1, 12, true]", "[true,12]", "[12.0, 1]"},
         {"[1]", "[1,12,true,1]", "[1,1]"}},
        {0,
         "{\"$schema\": \"http://json-schema.org/draft-07/schema#\", \"type\": \"string\", "
         "\"contentEncoding\": "
         "\"base64\", \"contentMediaType\": \"image/png\"}",
         {"\"\"", "\"YWJj\"", "\"YWJjYQ==\""},
         {"\"%\"", "\"YWJ\"", "\"YQ==YWJj\""}},
        {0,
         "{\"type\": \"string\", \"contentEncoding\": \"base64\", \"contentMediaType\": "
         "\"application/json\"}",
         {"\"%\""},
         {"1"}},
        {0, "{\"format\": \"date\", \"type\": \"string\"}", {"\"2024-02-29\""}, {"\"2023-02-29\"", "\"x\""}},
    };
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) check(&examples[i]);
}

/* Tokens that hold a whole key or item: the texts that it may not be are told apart as they are byte by byte. */
static void test_keys_inside_of_tokens(void **state)
{
    static const char json[] =
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"{\": 0, \"}\": 1, \"[\": 2, \"]\": 3, \"\\\"\": 4, "
        "\"a\": 5, "
        "\"b\": 6, \":\": 7, \"1\": 8, \",\": 9, \"\\\"a\\\"\": 10, \"\\\"b\\\"\": 11, \"\\\"a\\\":\": 12, "
        "\"\\\"b\\\":\": 13, \"\\\"a\\\":1\": 14, \"\\\"b\\\":1\": 15, \",\\\"a\\\":1\": 16, "
        "\",\\\"b\\\":1}\": 17, "
        "\",\\\"a\\\"\": 18, \",\\\"b\\\"]\": 19, \"\\\"\\\":1\": 20, \"\\\"\\\"\": 21, \"\\\"ab\\\":1\": "
        "22, "
        "\"\\\"\\\\u0061\\\":1\": 23, \"\\\"\\\\u0062\\\"\": 24, \"\\\"a\\\":\\\"\": 25}, \"merges\": []}, "
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}, "
        "\"decoder\": {\"type\": \"ByteLevel\"}, \"added_tokens\": []}";
    static const struct {
        const char *schema, *texts[4];
    } forms[] = {
        {"{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}",
         {"{", "{\"a\":1", "{\"b\":1,", "{\"\":1,"}},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}}, \"additionalProperties\": "
         "{\"type\": \"integer\"}}",
         {"{", "{\"b\":1", "{\"b\":1,", "{\"ab\":1,"}},
        {"{\"type\": \"array\", \"items\": {\"type\": \"string\"}, \"uniqueItems\": true}",
         {"[", "[\"a\"", "[\"a\",", "[\"b\",\"\","}},
    };
    qn_tokenizer *t;
    qn_vocabulary *v;
    uint32_t bits;
    (void)state;
    if (qn_tokenizer_from_json("tokenizer.json", json, strlen(json), &t) != QN_OK)
        fail_msg("%s", qn_last_error());
    assert_int_equal(qn_vocabulary_new(t, NULL, 0, &v), QN_OK);
    assert_int_equal(qn_vocabulary_mask_words(v), 1);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        qn_constraint_source s = source_of(QN_CONSTRAIN_JSON_SCHEMA, forms[i].schema);
        qn_constraint *c;
        assert_int_equal(qn_constraint_new(v, &s, NULL, &c), QN_OK);
        for (size_t k = 0; k < 4; k++) {
            qn_matcher *m = begin(c);
            size_t n_taken;
            assert_int_equal(
                qn_matcher_accept_text(m, forms[i].texts[k], strlen(forms[i].texts[k]), &n_taken), QN_OK);
            assert_int_equal(n_taken, strlen(forms[i].texts[k]));
            assert_int_equal(qn_matcher_mask(m, &bits), QN_OK);
            for (int32_t id = 0; id < 26; id++)
                if (qn_matcher_allows(m, id) != (int)(bits >> id & 1))
                    fail_msg("%s behind %s: token %d: the mask says %d", forms[i].schema, forms[i].texts[k],
                             id, (int)(bits >> id & 1));
            qn_matcher_free(m);
        }
        qn_constraint_release(c);
    }
    qn_vocabulary_release(v);
    qn_tokenizer_free(t);
}

/* Masks of strings pass whole subtrees of tokens by what is known of an automaton in advance. Each bit must be what
 * steps say, also where some characters above ASCII, some letters or a length are left out. */
static void test_masks_of_strings(void **state)
{
    static const char *const patterns[] = {
        "^[^ab]*$",
        "a",
        "^.*$",
        "^[^,\\u2028]+x?$",
        "^\\\\S+$",
        "^[^\\u0400-\\u04ff\\u4e00-\\u9fff]{0,9}$",
        "^[\\u4e00-\\u4eff]?[^q]{3,12}$",
        "^[a-zA-Z0-9_.-]*[^\\u3000-\\u30ff]{0,3}$",
        "^[\\u0800-\\uffff]*[\\ud800\\udc00-\\udbff\\udfff]?$",
        "^(ab|[^a])*$",
        "^[^A-M]*$",
        "^[\\u0080-\\u00ff]{2}",
        "^[ -~]{1,6}$",
        "\\\\n|\\t",
        "^[^\\\"\\\\\\\\]{0,4}$",
    };
    size_t n_ids = qn_tokenizer_vocab_size(tokenizer);
    uint32_t random = 7;
    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char schema[256];
        size_t n_taken;
        snprintf(schema, sizeof schema, "{\"type\": \"string\", \"pattern\": \"%s\"}", patterns[i]);
        qn_constraint *c = compile(QN_CONSTRAIN_JSON_SCHEMA, schema);
        for (int walk = 0; walk < 6; walk++) {
            qn_matcher *m = begin(c);
            assert_int_equal(qn_matcher_accept_text(m, "\"", 1, &n_taken), QN_OK);
            for (int step = 0; step < 8 && !qn_matcher_is_done(m); step++) {
                size_t n_allowed = 0;
                int32_t chosen = -1;
                assert_int_equal(qn_matcher_mask(m, mask), QN_OK);
                for (size_t id = 0; id < n_ids; id++) {
                    int bit = mask[id >> 5] >> (id & 31) & 1;
                    if (bit != qn_matcher_allows(m, (int32_t)id))
                        fail_msg("%s: token %zu: the mask says %d", patterns[i], id, bit);
                    random = random * 1664525u + 1013904223u;
                    if (bit && random % ++n_allowed == 0) chosen = (int32_t)id;
                }
                assert_int_equal(qn_matcher_accept(m, chosen), QN_OK);
            }
            qn_matcher_free(m);
        }
        qn_constraint_release(c);
    }
}

/* A finite set of keys or items may not be used up in the middle of one. */
static void test_no_dead_ends(void **state)
{
    qn_constraint *c =
        compile(QN_CONSTRAIN_JSON_SCHEMA,
                "{\"patternProperties\": {\"^(ab|ac)$\": {}}, \"additionalProperties\": false}");
    qn_matcher *m = begin(c);
    size_t n_taken;
    static const char text[] = "{\"ab\":1,\"ac\":2,";
    assert_int_equal(qn_matcher_accept_text(m, text, strlen(text), &n_taken), QN_OK);
    assert_int_equal(n_taken, strlen(text) - 1);
    qn_matcher_free(m);
    qn_constraint_release(c);
    c = compile(
        QN_CONSTRAIN_JSON_SCHEMA,
        "{\"type\": \"array\", \"items\": {\"enum\": [\"aa\", \"ab\", \"b\"]}, \"uniqueItems\": true}");
    m = begin(c);
    static const char items[] = "[\"aa\",\"b\",\"a";
    assert_int_equal(qn_matcher_accept_text(m, items, strlen(items), &n_taken), QN_OK);
    assert_int_equal(n_taken, strlen(items));
    assert_int_equal(qn_matcher_accept_text(m, "a", 1, &n_taken), QN_OK);
    assert_int_equal(n_taken, 0);
    assert_int_equal(qn_matcher_accept_text(m, "b\",", 3, &n_taken), QN_OK);
    assert_int_equal(n_taken, 2);
    qn_matcher_free(m);
    assert_true(takes(c, "[\"b\",\"aa\",\"ab\"]"));
    assert_true(takes(c, "[\"b\", \"aa\"]"));
    assert_false(takes(c, "[\"b\", \"aa\", \"b\"]"));
    assert_false(takes(c, "[\"b\", \"aa\", \"ab\", \"b\"]"));
    qn_constraint_release(c);
}

/* ---- the rest of the interface ------------------------------------------------------------------------- */

static void forced_is(qn_constraint *c, const char *so_far, const char *want)
{
    qn_matcher *m = begin(c);
    int32_t ids[64];
    size_t n, n_taken;
    qn_buf text = {0};
    assert_int_equal(qn_matcher_accept_text(m, so_far, strlen(so_far), &n_taken), QN_OK);
    assert_int_equal(n_taken, strlen(so_far));
    assert_int_equal(qn_matcher_forced(m, ids, 64, &n), QN_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(qn_tokenizer_piece(tokenizer, ids[i], &text), QN_OK);
        assert_int_equal(qn_matcher_accept(m, ids[i]), QN_OK);
    }
    if (strncmp(want, text.data ? text.data : "", text.length) != 0)
        fail_msg("after %s: %s is forced, not the begin of %s", so_far, text.data, want);
    if (*want)
        assert_true(text.length > 0);
    else
        assert_int_equal(text.length, 0);
    qn_buf_free(&text);
    qn_matcher_free(m);
}

static void test_forced(void **state)
{
    qn_constraint *c =
        compile(QN_CONSTRAIN_JSON_SCHEMA,
                "{\"type\": \"object\", \"properties\": {\"colour\": {\"type\": \"string\"}, \"is_on\":"
                "{\"const\": true}}, \"required\": [\"colour\", \"is_on\"],"
                "\"additionalProperties\": false}");
    forced_is(c, "", "{\"colour\":\"");
    forced_is(c, "{\"colour\":\"a\"", ",\"is_on\":true}");
    forced_is(c, "{\"colour\":\"a", "");
    /* Where the model starts lines, it also says where the next begins. */
    forced_is(c, "{\n  \"colour\": \"a\",", "");
    qn_constraint_release(c);
}

static void test_copies_and_ends(void **state)
{
    qn_constraint *c = compile(QN_CONSTRAIN_CHOICES, "[\"ab\", \"ac\"]");
    qn_matcher *m = begin(c), *copy = NULL;
    size_t n_taken;
    assert_int_equal(qn_matcher_accept_text(m, "a", 1, &n_taken), QN_OK);
    assert_int_equal(qn_matcher_copy(m, &copy), QN_OK);
    assert_int_equal(qn_matcher_accept_text(copy, "b", 1, &n_taken), QN_OK);
    assert_true(qn_matcher_is_done(copy));
    assert_false(qn_matcher_may_end(m));
    assert_int_equal(qn_matcher_accept(m, end_id), QN_E_ARG);
    assert_int_equal(qn_matcher_accept(copy, end_id), QN_OK);
    assert_int_equal(qn_matcher_accept(copy, end_id), QN_E_ARG);
    assert_int_equal(qn_matcher_accept(m, -1), QN_E_ARG);
    assert_int_equal(qn_matcher_accept(m, INT32_MAX), QN_E_ARG);
    assert_int_equal(qn_matcher_mask(copy, mask), QN_OK);
    for (size_t i = 0; i < qn_vocabulary_mask_words(vocabulary); i++) assert_int_equal(mask[i], 0);
    qn_constraint_release(c); /* its matchers hold it */
    qn_matcher_free(m);
    qn_matcher_free(copy);
}

static void test_after(void **state)
{
    qn_constraint_source s = source_of(QN_CONSTRAIN_CHOICES, "[\"yes\"]");
    qn_constraint *c;
    s.after = "</think>";
    s.n_after = 8;
    assert_int_equal(qn_constraint_new(vocabulary, &s, NULL, &c), QN_OK);
    assert_true(takes(c, "any <thing></think>yes"));
    assert_true(takes(c, "</think>yes"));
    assert_false(takes(c, "yes"));
    assert_false(takes(c, "</think>no"));
    qn_constraint_release(c);
}

static void test_tools(void **state)
{
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"look\", \"parameters\": {\"type\": \"object\","
        "\"properties\": {\"city\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}}, \"required\": "
        "[\"city\"], \"additionalProperties\": false}}}, {\"type\": \"function\", \"function\": {\"name\": "
        "\"go\"}}]";
    qn_constraint_source s = source_of(QN_CONSTRAIN_TOOLS, tools);
    qn_constraint *c;
    s.tools.format = qn_answer_format_find("hermes", "");
    assert_non_null(s.tools.format.calls);
    assert_int_equal(qn_constraint_new(vocabulary, &s, NULL, &c), QN_OK);
    static const char call[] =
        "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    char text[512];
    assert_true(takes(c, "Just text."));
    assert_true(takes(c, call));
    snprintf(text, sizeof text, "I will look. %s", call);
    assert_true(takes(c, text));
    snprintf(text, sizeof text, "%s\n%s", call, call);
    assert_true(takes(c, text));
    assert_false(takes(c, "<tool_call>\n{\"name\": \"fly\""));
    assert_false(takes(c, "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>"));
    qn_constraint_release(c);

    s.tools.mode = QN_TOOL_CALLS_REQUIRED;
    s.tools.is_one_call = 1;
    assert_int_equal(qn_constraint_new(vocabulary, &s, NULL, &c), QN_OK);
    assert_true(takes(c, call));
    assert_false(takes(c, "Just text."));
    assert_false(takes(c, text));
    qn_constraint_release(c);

    s.tools.mode = QN_TOOL_CALLS_NAMED;
    s.tools.name = "go";
    assert_int_equal(qn_constraint_new(vocabulary, &s, NULL, &c), QN_OK);
    assert_false(takes(c, call));
    assert_true(takes(c, "<tool_call>{\"name\":\"go\",\"arguments\":{\"x\":1}}</tool_call>"));
    qn_constraint_release(c);

    s.tools.format = qn_answer_format_find("qwen_coder", "");
    s.tools.name = "look";
    assert_int_equal(qn_constraint_new(vocabulary, &s, NULL, &c), QN_OK);
    assert_true(takes(c,
                      "<tool_call>\n<function=look>\n<parameter=city>\nRome\n</parameter>\n<parameter=n>\n3\n"
                      "</parameter>\n</function>\n</tool_call>"));
    assert_false(
        takes(c, "<tool_call>\n<function=look>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"));
    qn_constraint_release(c);
}

/* The mask behind a text, beside each token's own question. */
static void check_masks(const char *schema, const char *text)
{
    qn_constraint *c = compile(QN_CONSTRAIN_JSON_SCHEMA, schema);
    qn_matcher *m = begin(c);
    size_t n_taken;
    assert_int_equal(qn_matcher_accept_text(m, text, strlen(text), &n_taken), QN_OK);
    assert_int_equal(n_taken, strlen(text));
    assert_int_equal(qn_matcher_mask(m, mask), QN_OK);
    for (int32_t id = 0; id < (int32_t)qn_tokenizer_vocab_size(tokenizer); id++)
        if ((int)(mask[id >> 5] >> (id & 31) & 1) != qn_matcher_allows(m, id))
            fail_msg("%s: token %d: the mask says %d", text, id, (int)(mask[id >> 5] >> (id & 31) & 1));
    qn_matcher_free(m);
    qn_constraint_release(c);
}

static void test_masks_where_texts_are_used_up(void **state)
{
    static const char items[] =
        "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\",1,null]}}";
    static const char keys[] = "{\"type\":\"object\",\"patternProperties\":{\"^[ab]$\":{},\"^c[0-9]+$\":{}},"
                               "\"additionalProperties\":false}";
    static const char *const texts[] = {"[",
                                        "[\"a\",",
                                        "[\"a\",\"b\"",
                                        "[\"a\",\"b\",",
                                        "[1,\"b\",\"a\",",
                                        "[null,1,\"b\",",
                                        "[\"b\",\"a\",1,"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) check_masks(items, texts[i]);
    check_masks(keys, "{\"a\":1,\"b\":2,");
    check_masks(keys, "{\"a\":1,\"b\":2");
}

/* An escape that can become none but a text that was written is refused at its first digit that says so. */
static void test_escapes_of_texts_that_are_used_up(void **state)
{
    static const char items[] =
        "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"0\",\"q\",\"0x\"]}}",
                      emoji[] =
                          "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"\\ud83d\\ude00\","
                          "\"\\ud83d\\ude01\",\"\\ud83e\\udd14\"]}}",
                      keys[] = "{\"type\":\"object\",\"patternProperties\":{\"^(0|q|x+)$\":{}},"
                               "\"additionalProperties\":false}";
    static const struct {
        const char *schema, *text;
        size_t n_refused; /* bytes at the end */
    } cases[] = {
        {items, "[\"0\",\"\\u0030x\"", 0},
        {items, "[\"0\",\"\\u0030\"", 1},
        {items, "[\"0x\",\"0\",\"\\u0071\"", 0},
        {items, "[\"0x\",\"0\",\"\\u003", 1},
        {items, "[\"q\",\"\\u003", 0},
        {items, "[\"q\",\"\\u007", 1},
        {emoji, "[\"\\ud83d\\ude00\",\"\\ud83d\\ude01\",\"\\ud83e\\udd14\"]", 0},
        {emoji, "[\"\\ud83d\\ude00\",\"\\ud83d\\ude01\",\"\\ud83d", 1},
        {emoji, "[\"\\ud83e\\udd14\",\"\\ud83d\\ude00\",\"\\ud83d\\ude00", 1},
        {keys, "{\"0\":1,\"\\u003", 1},
        {keys, "{\"0\":1,\"\\u007", 0},
        {keys, "{\"q\":1,\"\\u007", 0},
        {keys, "{\"q\":1,\"\\u0071", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t n = strlen(cases[i].text);
        qn_constraint *c = compile(QN_CONSTRAIN_JSON_SCHEMA, cases[i].schema);
        qn_matcher *m = begin(c);
        size_t n_taken;
        assert_int_equal(qn_matcher_accept_text(m, cases[i].text, n, &n_taken), QN_OK);
        if (n_taken != n - cases[i].n_refused) fail_msg("%s: %zu bytes were taken", cases[i].text, n_taken);
        qn_matcher_free(m);
        qn_constraint_release(c);
        char whole[120];
        snprintf(whole, sizeof whole, "%.*s", (int)n_taken, cases[i].text);
        check_masks(cases[i].schema, whole);
    }
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static void refused(qn_constraint_kind kind, const char *text, size_t n, const qn_constraint_limits *l,
                    const char *words)
{
    qn_constraint_source s = {.kind = kind, .text = text, .n = n};
    qn_constraint *c = NULL;
    qn_status status = qn_constraint_new(vocabulary, &s, l, &c);
    if (status != QN_E_UNSUPPORTED && status != QN_E_FORMAT) fail_msg("%.80s: status %d", text, (int)status);
    if (!strstr(qn_last_error(), words)) fail_msg("\"%s\" does not say \"%s\"", qn_last_error(), words);
    assert_null(c);
}

static void test_refusals(void **state)
{
    static const char *const schemas[][2] = {
        {"{\"$schema\": \"http://json-schema.org/draft-07/schema#\", \"contentMediaType\": "
         "\"application/json\"}",
         "contentMediaType"},
        {"{\"allOf\": [{\"contains\": {\"const\": 1}}, {\"contains\": {\"const\": 2}, \"maxContains\": 1}]}",
         "contains"},
        {"false", "no value"},
        {"{\"type\": \"array\", \"contains\": {}, \"maxContains\": 0}", "no value"},
        {"{\"type\": \"array\", \"contains\": {\"type\": \"null\"}, \"minContains\": 3, \"maxContains\": 2}",
         "no value"},
        {"[]", "schema"},
        {"{\"type\": \"strnig\"}", "strnig"},
        {"{\"properties\": {\"a\": {\"pattern\": \"(a)\\\\1\"}}}", "#/properties/a: pattern"},
        {"{\"$ref\": \"https://example.com/s\"}", "nothing is fetched"},
        {"{\"$ref\": \"#/nowhere\"}", "$ref"},
        {"{\"properties\": {\"a/b\": {\"$ref\": \"#\"}}, \"required\": [\"a/b\"], \"type\": \"object\"}",
         "no value"},
        {"{\"$ref\": \"#\"}", "$ref"},
    };
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++)
        refused(QN_CONSTRAIN_JSON_SCHEMA, schemas[i][0], strlen(schemas[i][0]), NULL, schemas[i][1]);
    refused(QN_CONSTRAIN_CHOICES, "[]", 2, NULL, "choices");
    refused(QN_CONSTRAIN_CHOICES, "[1]", 3, NULL, "choices");
    refused(QN_CONSTRAIN_REGEX, "(", 1, NULL, "regex");
    qn_constraint_limits l = {.source_bytes_max = 4};
    refused(QN_CONSTRAIN_REGEX, "abcde", 5, &l, "5 bytes");
}

/* J1 to J3: brackets inside brackets, patterns that explode, sources without end. */
static void test_hostile(void **state)
{
    enum { DEEP = 3000 };
    qn_buf b = {0};
    for (int i = 0; i < DEEP; i++) qn_buf_puts(&b, "{\"not\":");
    qn_buf_puts(&b, "{}");
    for (int i = 0; i < DEEP; i++) qn_buf_putc(&b, '}');
    refused(QN_CONSTRAIN_JSON_SCHEMA, b.data, b.length, NULL, "deep");
    qn_buf_reset(&b);
    for (int i = 0; i < DEEP; i++) qn_buf_putc(&b, '(');
    refused(QN_CONSTRAIN_REGEX, b.data, b.length, NULL, "regex");
    qn_buf_free(&b);
    refused(QN_CONSTRAIN_REGEX, "((((a{1,99}){1,99}){1,99}){1,99})b", 34, NULL, "regex");
    refused(QN_CONSTRAIN_REGEX, "(a|b)*a(a|b){40}", 16, NULL, "regex");
    refused(QN_CONSTRAIN_REGEX, "*a", 2, NULL, "regex");
    static const char pattern[] = "{\"pattern\": \"(x|y)*x(x|y){60}\", \"type\": \"string\"}";
    refused(QN_CONSTRAIN_JSON_SCHEMA, pattern, sizeof pattern - 1, NULL, "pattern");
}

/* What a constraint holds stays below its limit however long the text gets. */
static void test_memory_is_bounded(void **state)
{
    qn_constraint_source s = source_of(QN_CONSTRAIN_JSON_SCHEMA, "{\"type\": \"array\"}");
    qn_constraint_limits l = {.memory_max = 4 << 20};
    qn_constraint *c;
    assert_int_equal(qn_constraint_new(vocabulary, &s, &l, &c), QN_OK);
    qn_matcher *m = begin(c);
    size_t n_taken, n_max = 0;
    char item[64];
    assert_int_equal(qn_matcher_accept_text(m, "[0", 2, &n_taken), QN_OK);
    for (int i = 0; i < 3000; i++) {
        snprintf(item, sizeof item, ",{\"key number %d\":%d}", i, i);
        assert_int_equal(qn_matcher_accept_text(m, item, strlen(item), &n_taken), QN_OK);
        assert_int_equal(n_taken, strlen(item));
        if (qn_constraint_bytes(c) > n_max) n_max = qn_constraint_bytes(c);
    }
    assert_int_equal(qn_matcher_mask(m, mask), QN_OK);
    assert_int_equal(qn_matcher_accept_text(m, "]", 1, &n_taken), QN_OK);
    assert_true(qn_matcher_is_done(m));
    assert_true(n_max <= l.memory_max + (1 << 20));
    qn_matcher_free(m);
    qn_constraint_release(c);
}

/* The check of a complete answer is made ready once, and ends however large the answer and the schema are. */
static void test_the_last_check(void **state)
{
    qn_buf schema = {0}, answer = {0};
    const qn_schema *validator, *again;
    qn_schema_report report = {0};
    (void)state;
    qn_buf_puts(&schema, "{\"type\": \"array\", \"items\": {\"type\": \"string\", \"allOf\": [");
    for (int i = 0; i < 300; i++) qn_buf_printf(&schema, "%s{\"maxLength\": %d}", i ? ", " : "", 100 + i);
    qn_buf_puts(&schema, "]}}");
    qn_constraint *c = compile(QN_CONSTRAIN_JSON_SCHEMA, schema.data);
    size_t before = qn_constraint_bytes(c);
    assert_int_equal(qn_constraint_get_validator(c, &validator), QN_OK);
    assert_int_equal(qn_constraint_get_validator(c, &again), QN_OK);
    assert_non_null(validator);
    assert_ptr_equal(validator, again);
    assert_true(qn_constraint_bytes(c) > before);
    assert_int_equal(qn_schema_validate_text(validator, "[\"a\"]", 5, &report), QN_OK);
    assert_true(report.is_valid);
    for (int i = 0; i < 5000; i++) qn_buf_puts(&answer, i ? ",\"a\"" : "[\"a\"");
    qn_buf_putc(&answer, ']');
    assert_int_equal(qn_schema_validate_text(validator, answer.data, answer.length, &report),
                     QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "more than 500000 steps"));
    qn_constraint_release(c);

    c = compile(QN_CONSTRAIN_REGEX, "a+");
    assert_int_equal(qn_constraint_get_validator(c, &validator), QN_OK);
    assert_null(validator);
    qn_constraint_release(c);
    qn_buf_free(&schema);
    qn_buf_free(&answer);
}

static void test_cache(void **state)
{
    qn_constraint_cache *k;
    qn_constraint *a, *b, *d;
    qn_constraint_source s = source_of(QN_CONSTRAIN_REGEX, "a+"), t = source_of(QN_CONSTRAIN_REGEX, "b+");
    assert_int_equal(qn_constraint_cache_new(vocabulary, 1, &k), QN_OK);
    assert_int_equal(qn_constraint_cache_get(k, &s, NULL, &a), QN_OK);
    assert_int_equal(qn_constraint_cache_get(k, &s, NULL, &b), QN_OK);
    assert_ptr_equal(a, b);
    /* The limit leaves room for the last one alone. */
    assert_int_equal(qn_constraint_cache_get(k, &t, NULL, &d), QN_OK);
    assert_ptr_not_equal(a, d);
    qn_constraint_release(b);
    assert_int_equal(qn_constraint_cache_get(k, &s, NULL, &b), QN_OK);
    assert_ptr_not_equal(a, b);
    qn_constraint_release(a);
    qn_constraint_release(b);
    qn_constraint_release(d);
    qn_constraint_cache_free(k);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static qn_status live(const qn_constraint_source *s, const char *text)
{
    qn_constraint *c = NULL;
    qn_matcher *m = NULL, *copy = NULL;
    size_t n_taken, n;
    int32_t ids[16];
    qn_status status = qn_constraint_new(vocabulary, s, NULL, &c);
    if (status == QN_OK) status = qn_matcher_new(c, &m);
    for (size_t i = 0; status == QN_OK && i <= strlen(text); i += 3) {
        status = qn_matcher_mask(m, mask);
        if (status == QN_OK) status = qn_matcher_forced(m, ids, 16, &n);
        size_t left = strlen(text) - i;
        if (status == QN_OK) status = qn_matcher_accept_text(m, text + i, left < 3 ? left : 3, &n_taken);
    }
    if (status == QN_OK) status = qn_matcher_copy(m, &copy);
    if (status == QN_OK) assert_true(qn_matcher_may_end(copy));
    qn_matcher_free(copy);
    qn_matcher_free(m);
    qn_constraint_release(c);
    return status;
}

static void test_runs_out_of_memory(void **state)
{
    qn_constraint_source s =
        source_of(QN_CONSTRAIN_JSON_SCHEMA,
                  "{\"type\": \"object\", \"properties\": {\"a\": {\"oneOf\": [{\"const\": [1]}, "
                  "{\"pattern\": \"^x\"}]}},"
                  "\"patternProperties\": {\"^b\": {\"type\": \"array\", \"items\": {\"type\": \"string\"},"
                  "\"uniqueItems\": true}}, \"required\": [\"a\"]}");
    static const char text[] = "{\"a\":\"xy\",\"b1\":[\"p\",\"q\"],\"z\":null}";
    assert_int_equal(live(&s, text), QN_OK); /* what is made once is there */
    for (int64_t nth = 1; nth < 20000; nth += nth < 500 ? 1 : 37) {
        int64_t blocks = qn_mem_live_blocks();
        qn_mem_fail_nth(nth);
        qn_status status = live(&s, text);
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (status == QN_OK) return;
        if (status != QN_E_NOMEM) fail_msg("allocation %lld: %s", (long long)nth, qn_last_error());
    }
    fail();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_keys_inside_of_tokens),
        cmocka_unit_test(test_masks_of_strings),
        cmocka_unit_test(test_no_dead_ends),
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_copies_and_ends),
        cmocka_unit_test(test_after),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_masks_where_texts_are_used_up),
        cmocka_unit_test(test_escapes_of_texts_that_are_used_up),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_the_last_check),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_runs_out_of_memory),
    };
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
