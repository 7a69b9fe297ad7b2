/* Tokens that only the files beside tokenizer.json name, against transformers (tools/named_tokens_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "format/files/mmap.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "text/chat/chat.h"

static json_t *read_json(const char *path)
{
    json_t *v = json_load_file(path, 0, NULL);
    assert_non_null(v);
    return v;
}

static const char *write_model(const json_t *files)
{
    const char *folder = qn_test_scratch(), *name;
    json_t *value;
    qn_test_copy(folder, "tokenizer.json", qn_test_need_fixture("named_tokens/tokenizer.json"));
    json_object_foreach((json_t *)files, name, value)
    {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        qn_test_write_text(folder, name, text);
        free(text); /* foreign: jansson's */
    }
    return folder;
}

static qn_status open_chat(const char *folder, const char *template, qn_chat_text **out)
{
    qn_source *source = NULL;
    QN_TRY(qn_source_open(folder, &(qn_source_options){.text_only = 1}, &source));
    qn_status status = qn_chat_text_open(source, &(qn_chat_text_options){.chat_template = template}, out);
    qn_source_close(source);
    return status;
}

static void expect_ids(const qn_chat_text *c, size_t i_case, const char *text, const json_t *want,
                       const char *plain)
{
    int32_t *ids = NULL;
    size_t n = 0;
    const qn_tokenizer *t = qn_chat_text_tokenizer(c);
    assert_int_equal(qn_tokenizer_encode(t, text, strlen(text), QN_ENCODE_SPECIAL, &ids, &n), QN_OK);
    for (size_t i = 0; i < n || i < json_array_size(want); i++) {
        json_int_t id = i < json_array_size(want) ? json_integer_value(json_array_get(want, i)) : -1;
        if (i >= n || ids[i] != id)
            fail_msg("case %zu: \"%s\": id %zu is %d, not %lld", i_case, text, i, i < n ? ids[i] : -1,
                     (long long)id);
    }
    qn_buf b = {0};
    assert_int_equal(qn_tokenizer_decode(t, ids, n, QN_DECODE_SKIP_SPECIAL, &b), QN_OK);
    qn_buf_putc(&b, 0);
    if (strcmp(b.data, plain) != 0) fail_msg("case %zu: \"%s\" instead of \"%s\"", i_case, b.data, plain);
    qn_buf_free(&b);
    qn_free(ids);
}

static void expect_names(const qn_chat_text *c, size_t i_case, const json_t *names)
{
    const char *name;
    json_t *value, *request = json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", "x");
    json_t *wanted = json_array();
    qn_buf b = {0};
    json_object_foreach((json_t *)names, name, value)
        json_array_append_new(wanted, json_pack("[s,O]", name, value));
    assert_int_equal(qn_chat_text_render(c, request, QN_CHAT_TRUST_ALL, &b, NULL, NULL), QN_OK);
    char *want = json_dumps(wanted, JSON_COMPACT);
    json_t *got = json_loadb(b.data, b.length, 0, NULL);
    if (!json_equal(got, wanted))
        fail_msg("case %zu: %.*s instead of %s", i_case, (int)b.length, b.data, want);
    free(want); /* foreign: jansson's */
    json_decref(got);
    json_decref(wanted);
    json_decref(request);
    qn_buf_free(&b);
}

/* A template that writes each named token as ["name", "text"]. */
static char *names_template(const json_t *names)
{
    qn_buf b = {0};
    const char *name, *comma = "[";
    json_t *value;
    json_object_foreach((json_t *)names, name, value)
    {
        qn_buf_printf(&b, "%s[\"%s\",{{ %s|tojson }}]", comma, name, name);
        comma = ",";
    }
    qn_buf_puts(&b, *comma == '[' ? "[]" : "]");
    qn_buf_putc(&b, 0);
    assert_int_equal(b.status, QN_OK);
    return b.data;
}

static void test_against_transformers(void **state)
{
    json_t *cases = read_json(qn_test_need_fixture("named_tokens/cases.json")), *each;
    size_t i, j;
    json_array_foreach(cases, i, each)
    {
        const char *folder = write_model(json_object_get(each, "files"));
        const json_t *names = json_object_get(each, "names"), *texts = json_object_get(each, "texts");
        char *template = names_template(names);
        qn_chat_text *c = NULL;
        if (open_chat(folder, template, &c) != QN_OK) fail_msg("case %zu: %s", i, qn_last_error());
        for (j = 0; j < json_array_size(texts); j++)
            expect_ids(c, i, json_string_value(json_array_get(texts, j)),
                       json_array_get(json_object_get(each, "ids"), j),
                       json_string_value(json_array_get(json_object_get(each, "plain"), j)));
        expect_names(c, i, names);
        qn_chat_text_close(c);
        qn_free(template);
        qn_test_remove(folder);
    }
    json_decref(cases);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *name, *text, *says;
    } rows[] = {
        {"tokenizer_config.json", "{\"added_tokens_decoder\":[]}", "added_tokens_decoder: not an object"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"a\"}}}", "not a token id"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"7\":\"a\"}}", "added_tokens_decoder.7"},
        {"tokenizer_config.json", "{\"eos_token\":5}", "eos_token: neither"},
        {"tokenizer_config.json", "{\"extra_special_tokens\":[1]}", "extra_special_tokens[0]"},
        {"tokenizer_config.json", "{\"extra_special_tokens\":{\"a\":1}}", "extra_special_tokens.a"},
        {"tokenizer_config.json", "{\"additional_special_tokens\":\"x\"}", "not a list"},
        {"special_tokens_map.json", "[]", "special_tokens_map.json: not a JSON object"},
        {"added_tokens.json", "{\"a\":\"b\"}", "the id is not an integer"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *none = json_object();
        const char *folder = write_model(none);
        qn_chat_text *c = NULL;
        qn_test_write_text(folder, rows[i].name, rows[i].text);
        assert_int_equal(open_chat(folder, "x", &c), QN_E_FORMAT);
        if (!strstr(qn_last_error(), rows[i].says)) fail_msg("%s: %s", rows[i].says, qn_last_error());
        qn_test_remove(folder);
        json_decref(none);
    }
}

static void test_out_of_memory(void **state)
{
    json_t *cases = read_json(qn_test_need_fixture("named_tokens/cases.json"));
    const char *folder = write_model(json_object_get(json_array_get(cases, 3), "files"));
    qn_status status = QN_E_NOMEM;
    const int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1; n < 20000 && status != QN_OK; n += n < 2000 ? 1 : 37) {
        qn_chat_text *c = NULL;
        qn_mem_fail_nth(n);
        status = open_chat(folder, "x", &c);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_chat_text_close(c);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_transformers),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
