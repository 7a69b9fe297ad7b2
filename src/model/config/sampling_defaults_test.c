/* What a generation_config.json says of sampling. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "model/config/sampling_defaults.h"
#include "tests/support/scratch.h"

static qn_status read_text(const char *text, qn_sampling_defaults *out)
{
    const char *folder = qn_test_scratch();
    qn_source *source = NULL;
    qn_test_write_text(folder, "tokenizer.json", "{}");
    if (text) qn_test_write_text(folder, "generation_config.json", text);
    qn_status status = qn_source_open(folder, &(qn_source_options){.text_only = 1}, &source);
    if (status == QN_OK) status = qn_sampling_defaults_read(source, out);
    qn_source_close(source);
    qn_test_remove(folder);
    return status;
}

static qn_sampling_defaults read_good(const char *text)
{
    qn_sampling_defaults d;
    if (read_text(text, &d) != QN_OK) fail_msg("%s", qn_last_error());
    return d;
}

static void test_values(void **state)
{
    qn_sampling_defaults d = read_good(
        "{\"temperature\":0.7,\"top_p\":0.8,\"top_k\":20,\"min_p\":0.02,\"typical_p\":0.9,\"do_sample\":true,"
        "\"repetition_penalty\":1.05,\"bad_words_ids\":[[5],[6,7]],\"suppress_tokens\":[8],\"eos_token_id\":"
        "2}");
    assert_true(d.temperature == 0.7f && d.top_p == 0.8f && d.top_k == 20 && d.min_p == 0.02f);
    assert_true(d.typical_p == 0.9f && d.repeat_penalty == 1.05f);
    assert_int_equal(d.n_bad_ids, 3);
    assert_int_equal(d.bad_ids[1].n_ids, 2);
    assert_int_equal(d.bad_ids[1].ids[1], 7);
    assert_int_equal(d.bad_ids[2].ids[0], 8);
    assert_string_equal(d.text, "temperature 0.7, top_p 0.8, top_k 20, min_p 0.02, typical_p 0.9, "
                                "repetition_penalty 1.05, do_sample true, bad_words_ids (2), "
                                "suppress_tokens (1)");
    qn_sampling_defaults_free(&d);
}

static void test_unset(void **state)
{
    static const char *const texts[] = {NULL, "{}", "{\"temperature\":null,\"bad_words_ids\":null}",
                                        "{\"num_beams\":1,\"no_repeat_ngram_size\":0,\"stop_strings\":[]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        qn_sampling_defaults d = read_good(texts[i]);
        assert_true(d.temperature < 0 && d.top_p < 0 && d.top_k < 0);
        assert_true(d.min_p == 0 && d.typical_p == 0 && d.repeat_penalty == 0 && !d.n_bad_ids);
        assert_string_equal(d.text, "");
        qn_sampling_defaults_free(&d);
    }
}

static void test_greedy(void **state)
{
    qn_sampling_defaults d = read_good("{\"do_sample\":false,\"temperature\":0.6}");
    assert_true(d.temperature == 0);
    qn_sampling_defaults_free(&d);
}

/* What cannot be followed is said, not dropped. */
static void test_not_applied(void **state)
{
    qn_sampling_defaults d =
        read_good("{\"top_k\":5,\"temperature\":\"hot\",\"repetition_penalty\":-1,\"bad_words_ids\":[[]],"
                  "\"num_beams\":4,\"no_repeat_ngram_size\":3,\"max_new_tokens\":9,\"guidance_scale\":2}");
    assert_true(d.temperature < 0 && d.repeat_penalty == 0 && !d.n_bad_ids && d.top_k == 5);
    assert_string_equal(d.text, "top_k 5; not applied: temperature, repetition_penalty, bad_words_ids, "
                                "guidance_scale, max_new_tokens, no_repeat_ngram_size, num_beams");
    qn_sampling_defaults_free(&d);
    assert_int_equal(read_text("{", &d), QN_E_FORMAT);
    qn_sampling_defaults_free(&d);
}

static void test_out_of_memory(void **state)
{
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; n < 2000 && status != QN_OK; n++) {
        qn_sampling_defaults d = {0};
        qn_mem_fail_nth(n);
        status = read_text("{\"top_k\":5,\"bad_words_ids\":[[5],[6,7]],\"num_beams\":2}", &d);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_sampling_defaults_free(&d);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_unset),
                                       cmocka_unit_test(test_greedy), cmocka_unit_test(test_not_applied),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
