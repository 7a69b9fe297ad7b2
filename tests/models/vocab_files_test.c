/* Tokenizers of vocab.json and merges.txt against transformers (tools/vocab_files_golden.py). */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "text/chat/chat.h"

static qn_status open_files(const char *folder, qn_chat_text **out)
{
    qn_source *source = NULL;
    QN_TRY(qn_source_open(folder, &(qn_source_options){.text_only = 1}, &source));
    qn_status status = qn_chat_text_open(source, NULL, out);
    qn_source_close(source);
    return status;
}

static const char *write_files(const char *config)
{
    const char *folder = qn_test_scratch();
    qn_test_copy(folder, "vocab.json", qn_test_need_fixture("vocab_files/vocab.json"));
    qn_test_copy(folder, "merges.txt", qn_test_need_fixture("vocab_files/merges.txt"));
    if (config) qn_test_write_text(folder, "tokenizer_config.json", config);
    return folder;
}

static void test_against_transformers(void **state)
{
    json_t *cases = json_load_file(qn_test_need_fixture("vocab_files/cases.json"), 0, NULL), *each, *text;
    size_t i, j;
    json_array_foreach(cases, i, each)
    {
        char *config = json_dumps(json_object_get(each, "config"), 0);
        const char *folder = write_files(config);
        qn_chat_text *c = NULL;
        if (open_files(folder, &c) != QN_OK) fail_msg("%s", qn_last_error());
        const qn_tokenizer *t = qn_chat_text_tokenizer(c);
        const json_t *eos = json_object_get(json_object_get(each, "names"), "eos_token");
        assert_int_equal(qn_tokenizer_eos_id(t),
                         qn_tokenizer_find(t, json_string_value(eos), json_string_length(eos)));
        json_array_foreach(json_object_get(each, "texts"), j, text)
        {
            const json_t *want = json_array_get(json_object_get(each, "ids"), j);
            int32_t *ids = NULL;
            size_t n = 0;
            assert_int_equal(qn_tokenizer_encode(t, json_string_value(text), json_string_length(text),
                                                 QN_ENCODE_SPECIAL, &ids, &n),
                             QN_OK);
            if (n != json_array_size(want))
                fail_msg("case %zu: \"%s\": %zu ids, not %zu", i, json_string_value(text), n,
                         json_array_size(want));
            for (size_t k = 0; k < n; k++)
                if (ids[k] != json_integer_value(json_array_get(want, k)))
                    fail_msg("case %zu: \"%s\": id %zu is %d", i, json_string_value(text), k, ids[k]);
            qn_free(ids);
        }
        qn_chat_text_close(c);
        qn_test_remove(folder);
        free(config); /* foreign: jansson's */
    }
    json_decref(cases);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *config, *merges, *says;
        qn_status status;
    } rows[] = {
        {"{\"tokenizer_class\":\"RobertaTokenizer\"}", NULL, "class RobertaTokenizer", QN_E_UNSUPPORTED},
        {NULL, NULL, "neither tokenizer_class", QN_E_UNSUPPORTED},
        {"{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_prefix_space\":true}", NULL, "add_prefix_space",
         QN_E_UNSUPPORTED},
        {"{\"tokenizer_class\":\"GPT2Tokenizer\"}", "#version: 0.2\na b c\n", "merges.txt: line 2",
         QN_E_FORMAT},
        {"{\"tokenizer_class\":\"GPT2Tokenizer\"}", "\xff \xfe\n", "line 1: not valid UTF-8", QN_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *folder = write_files(rows[i].config);
        qn_chat_text *c = NULL;
        if (rows[i].merges) qn_test_write_text(folder, "merges.txt", rows[i].merges);
        assert_int_equal(open_files(folder, &c), rows[i].status);
        if (!strstr(qn_last_error(), rows[i].says)) fail_msg("%s: %s", rows[i].says, qn_last_error());
        qn_test_remove(folder);
    }
}

/* Without a class, config.json's model_type says which it is. */
static void test_class_of_the_model(void **state)
{
    const char *folder = write_files(NULL);
    qn_chat_text *c = NULL;
    qn_test_write_text(folder, "config.json", "{\"model_type\":\"qwen2\"}");
    if (open_files(folder, &c) != QN_OK) fail_msg("%s", qn_last_error());
    qn_chat_text_close(c);
    qn_test_remove(folder);
}

static void test_out_of_memory(void **state)
{
    const char *folder = write_files("{\"tokenizer_class\":\"Qwen2Tokenizer\"}");
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; n < 20000 && status != QN_OK; n += n < 2000 ? 1 : 37) {
        qn_chat_text *c = NULL;
        qn_mem_fail_nth(n);
        status = open_files(folder, &c);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_chat_text_close(c);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_transformers), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_class_of_the_model), cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
