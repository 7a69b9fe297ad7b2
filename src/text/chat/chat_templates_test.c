/* Where a model's chat templates lie and which one a request gets, against transformers
 * (tools/chat_templates_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "text/chat/chat.h"

static const char *write_model(const json_t *files)
{
    const char *folder = qn_test_scratch(), *name;
    json_t *text;
    qn_test_copy(folder, "tokenizer.json", qn_test_need_fixture("named_tokens/tokenizer.json"));
    assert_int_equal(mkdir(qn_test_path(folder, "additional_chat_templates"), 0777), 0);
    json_object_foreach((json_t *)files, name, text)
        qn_test_write_text(folder, name, json_string_value(text));
    return folder;
}

static qn_status open_chat(const char *folder, qn_chat_text **out)
{
    qn_source *source = NULL;
    QN_TRY(qn_source_open(folder, &(qn_source_options){.text_only = 1}, &source));
    qn_status status = qn_chat_text_open(source, NULL, out);
    qn_source_close(source);
    return status;
}

/* want NULL: refused. */
static void expect(const qn_chat_text *c, size_t i_case, const char *tools, const json_t *want)
{
    json_t *request = json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", "hi");
    qn_buf b = {0};
    if (tools) json_object_set_new(request, "tools", json_loads(tools, 0, NULL));
    qn_status status = qn_chat_text_render(c, request, QN_CHAT_TRUST_ALL, &b, NULL, NULL);
    qn_buf_putc(&b, 0);
    if (!json_is_string(want))
        assert_int_equal(status, QN_E_UNSUPPORTED);
    else if (status != QN_OK || strcmp(b.data, json_string_value(want)) != 0)
        fail_msg("case %zu, tools %s: \"%s\" (%s) instead of \"%s\"", i_case, tools ? tools : "none", b.data,
                 status == QN_OK ? "" : qn_last_error(), json_string_value(want));
    json_decref(request);
    qn_buf_free(&b);
}

static void test_against_transformers(void **state)
{
    json_t *cases = json_load_file(qn_test_need_fixture("chat_templates/cases.json"), 0, NULL), *each;
    size_t i;
    json_array_foreach(cases, i, each)
    {
        const char *folder = write_model(json_object_get(each, "files"));
        qn_chat_text *c = NULL;
        if (open_chat(folder, &c) != QN_OK) fail_msg("case %zu: %s", i, qn_last_error());
        if (qn_chat_text_builtin(c)) { /* of our own, where the model has none */
            assert_true(json_is_null(json_object_get(each, "without")));
        } else {
            expect(c, i, NULL, json_object_get(each, "without"));
            expect(c, i, "[]", json_object_get(each, "none"));
            expect(c, i, "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]",
                   json_object_get(each, "with"));
        }
        qn_chat_text_close(c);
        qn_test_remove(folder);
    }
    json_decref(cases);
}

static void expect_origin(const char *file, const char *text, const char *want)
{
    json_t *files = json_pack("{s:s}", file, text);
    const char *folder = write_model(files);
    qn_chat_text *c = NULL;
    qn_status status = open_chat(folder, &c);
    if (status != QN_OK) {
        assert_int_equal(status, QN_E_FORMAT);
        if (!strstr(qn_last_error(), want)) fail_msg("\"%s\" instead of \"%s\"", qn_last_error(), want);
    } else {
        assert_string_equal(qn_chat_text_origin(c), want);
    }
    qn_chat_text_close(c);
    qn_test_remove(folder);
    json_decref(files);
}

static void test_origins_and_refusals(void **state)
{
    expect_origin("chat_template.json", "{\"chat_template\":\"x\"}", "chat_template.json: chat_template");
    expect_origin("processor_config.json", "{\"chat_template\":\"x\"}",
                  "processor_config.json: chat_template");
    expect_origin("additional_chat_templates/rag.jinja", "x", "additional_chat_templates/rag.jinja");
    expect_origin("tokenizer_config.json", "{\"chat_template\":5}", "neither a text, a list nor an object");
    expect_origin("tokenizer_config.json", "{\"chat_template\":{\"rag\":5}}", "\"rag\" is not a text");
    expect_origin("tokenizer_config.json", "{\"chat_template\":[{\"template\":\"x\"}]}", "[0] has no name");
    expect_origin("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"x\"}]}", "\"x\" is not a text");
}

/* A model's own tokens are special wherever its template writes them, by whatever name it has them. */
static void test_named_token_is_trusted(void **state)
{
    json_t *files =
        json_pack("{s:s,s:s}", "chat_template.jinja", "{{ image_token }}{{ messages[0].content }}",
                  "tokenizer_config.json", "{\"image_token\":\"<|image_pad|>\"}");
    const char *folder = write_model(files);
    json_t *request = json_pack("{s:[{s:s,s:s}],s:s}", "messages", "role", "user", "content", "<|image_pad|>",
                                "image_token", "<|im_end|>");
    qn_chat_text *c = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(open_chat(folder, &c), QN_OK);
    const int32_t id = qn_tokenizer_find(qn_chat_text_tokenizer(c), "<|image_pad|>", 13);
    assert_int_equal(qn_chat_text_render(c, request, QN_CHAT_TRUST_TEMPLATE, NULL, &ids, &n), QN_OK);
    assert_true(n > 2 && ids[0] == id);
    for (size_t i = 1; i < n; i++) assert_int_not_equal(ids[i], id);
    qn_free(ids);
    json_decref(request);
    qn_chat_text_close(c);
    qn_test_remove(folder);
    json_decref(files);
}

static void test_out_of_memory(void **state)
{
    json_t *files =
        json_pack("{s:s,s:s,s:s}", "chat_template.jinja", "x", "additional_chat_templates/rag.jinja", "y",
                  "tokenizer_config.json", "{\"chat_template\":{\"default\":\"z\"}}");
    const char *folder = write_model(files);
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; n < 20000 && status != QN_OK; n += n < 2000 ? 1 : 37) {
        qn_chat_text *c = NULL;
        qn_mem_fail_nth(n);
        status = open_chat(folder, &c);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_chat_text_close(c);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
    json_decref(files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_transformers), cmocka_unit_test(test_origins_and_refusals),
        cmocka_unit_test(test_named_token_is_trusted), cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
