/* sentence.h: poolings of older and newer files, linear layers, prompts, refusals, memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "model/sentence/sentence.h"
#include "tests/support/scratch.h"

enum { WIDTH = 3, OUT = 2 };

#define MODULE(path, type) "{\"path\": \"" path "\", \"type\": \"sentence_transformers.models." type "\"}"
static const char all[] = "[" MODULE("", "Transformer") "," MODULE("1_Pooling", "Pooling") "," MODULE(
    "2_Dense", "Dense") "," MODULE("3_Normalize", "Normalize") "]";

static void write_dense(const char *folder, int n_in)
{
    float weight[OUT * 16], bias[OUT] = {0.5f, -1};
    const int64_t shape[] = {OUT, n_in}, n_out = OUT;
    qn_st_writer *w;
    for (int i = 0; i < OUT * n_in; i++) weight[i] = 0.1f * (float)(i + 1);
    assert_int_equal(qn_st_writer_new(qn_test_path(folder, "model.safetensors"), &w), QN_OK);
    assert_int_equal(qn_st_writer_add(w, "linear.weight", QN_DTYPE_F32, 2, shape, NULL), QN_OK);
    assert_int_equal(qn_st_writer_add(w, "linear.bias", QN_DTYPE_F32, 1, &n_out, NULL), QN_OK);
    assert_int_equal(qn_st_writer_begin(w), QN_OK);
    assert_int_equal(qn_st_writer_write(w, 0, 0, weight, (size_t)(OUT * n_in) * sizeof *weight), QN_OK);
    assert_int_equal(qn_st_writer_write(w, 1, 0, bias, sizeof bias), QN_OK);
    assert_int_equal(qn_st_writer_finish(w), QN_OK);
    qn_st_writer_free(w);
}

/* A folder with these files; pooling and dense NULL: without their folders. */
static const char *make(const char *modules, const char *pooling, const char *dense, int n_in)
{
    const char *folder = qn_test_scratch(), *own;
    if (modules) qn_test_write_text(folder, "modules.json", modules);
    qn_test_write_text(
        folder, "config_sentence_transformers.json",
        "{\"prompts\": {\"query\": \"q: \", \"none\": \"\"}, \"default_prompt_name\": \"query\"}");
    qn_test_write_text(folder, "sentence_bert_config.json", "{\"max_seq_length\": 77}");
    own = qn_test_path(folder, "1_Pooling");
    if (pooling) {
        assert_int_equal(mkdir(own, 0700), 0);
        qn_test_write_text(own, "config.json", pooling);
    }
    own = qn_test_path(folder, "2_Dense");
    if (dense) {
        assert_int_equal(mkdir(own, 0700), 0);
        qn_test_write_text(own, "config.json", dense);
        write_dense(own, n_in);
    }
    return folder;
}

static const char cls_and_mean[] =
    "{\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": true, \"include_prompt\": false}";
static const char tanh_layer[] = "{\"in_features\": 6, \"out_features\": 2, \"bias\": true,"
                                 " \"activation_function\": \"torch.nn.modules.activation.Tanh\"}";

static void everything(void **state)
{
    const char *folder = make(all, cls_and_mean, tanh_layer, 2 * WIDTH);
    qn_sentence *s = NULL;
    if (qn_sentence_read(folder, WIDTH, &s) != QN_OK) fail_msg("%s", qn_last_error());
    const qn_sentence_info *info = qn_sentence_get(s);
    assert_int_equal(info->poolings, QN_SENTENCE_CLS | QN_SENTENCE_MEAN);
    assert_int_equal(info->n_poolings, 2);
    assert_true(info->leaves_prompt_out && info->normalises);
    assert_int_equal(info->n_in, 2 * WIDTH);
    assert_int_equal(info->n_out, OUT);
    assert_int_equal(info->max_tokens, 77);
    assert_int_equal(info->n_prompts, 2);
    assert_string_equal(info->default_prompt, "query");
    const float x[] = {1, 0, -1, 0.5f, 0, 0};
    float out[OUT], scratch[16];
    assert_true(qn_sentence_scratch(s) <= 16);
    qn_sentence_project(s, x, scratch, out);
    assert_true(fabs((double)out[0] - tanh(0.1 - 0.3 + 0.2 + 0.5)) < 1e-6);
    assert_true(fabs((double)out[1] - tanh(0.7 - 0.9 + 0.5 - 1)) < 1e-6);
    qn_sentence_free(s);
    qn_test_remove(folder);
}

static void newer_pooling(void **state)
{
    const char *folder = make("[" MODULE("1_Pooling", "Pooling") "]",
                              "{\"pooling_mode\": [\"lasttoken\", \"weightedmean\"]}", NULL, 0);
    qn_sentence *s = NULL;
    assert_int_equal(qn_sentence_read(folder, WIDTH, &s), QN_OK);
    assert_int_equal(qn_sentence_get(s)->poolings, QN_SENTENCE_LAST | QN_SENTENCE_WEIGHTED_MEAN);
    assert_int_equal(qn_sentence_get(s)->n_out, 2 * WIDTH);
    qn_sentence_free(s);
    qn_test_remove(folder);
}

static void no_modules(void **state)
{
    const char *folder = make(NULL, NULL, NULL, 0);
    qn_sentence *s = NULL;
    assert_int_equal(qn_sentence_read(folder, WIDTH, &s), QN_OK);
    assert_null(s);
    qn_test_remove(folder);
}

static void refusals(void **state)
{
    static const struct {
        const char *modules, *pooling, *dense;
        qn_status status;
        const char *words;
    } cases[] = {
        {"{}", NULL, NULL, QN_E_FORMAT, "expected an array"},
        {"[" MODULE("../1_Pooling", "Pooling") "]", NULL, NULL, QN_E_FORMAT, "leads elsewhere"},
        {"[" MODULE("1_Pooling", "LSTM") "]", NULL, NULL, QN_E_UNSUPPORTED, "LSTM"},
        {"[" MODULE("1_Pooling", "Pooling") "]", NULL, NULL, QN_E_NOT_FOUND, "1_Pooling/config.json"},
        {all, "{}", tanh_layer, QN_E_UNSUPPORTED, "no pooling is switched on"},
        {all, "{\"pooling_mode_cls_token\": 1}", tanh_layer, QN_E_FORMAT, "pooling_mode_cls_token"},
        {all, "{\"pooling_mode\": \"attention\"}", tanh_layer, QN_E_UNSUPPORTED, "attention"},
        {all, "{\"pooling_mode_cls_token\": true}", tanh_layer, QN_E_FORMAT, "in_features is 6"},
        {all, cls_and_mean, "{\"in_features\": 6, \"out_features\": 3}", QN_E_FORMAT, "does not fit"},
        {all, cls_and_mean, "{\"in_features\": 6}", QN_E_FORMAT, "out_features"},
        {all, cls_and_mean,
         "{\"in_features\": 6, \"out_features\": 2, \"activation_function\": \"torch.nn.Softplus\"}",
         QN_E_UNSUPPORTED, "Softplus"},
        {"[" MODULE("2_Dense", "Dense") "]", NULL, tanh_layer, QN_E_UNSUPPORTED, "before the Pooling"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = make(cases[i].modules, cases[i].pooling, cases[i].dense, 2 * WIDTH);
        qn_sentence *s = NULL;
        const qn_status status = qn_sentence_read(folder, WIDTH, &s);
        if (status != cases[i].status || !strstr(qn_last_error(), cases[i].words))
            fail_msg("case %zu: %s: %s", i, qn_status_name(status), qn_last_error());
        qn_test_remove(folder);
    }
}

static void memory_runs_out(void **state)
{
    const char *folder = make(all, cls_and_mean, tanh_layer, 2 * WIDTH);
    qn_sentence *s = NULL;
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; status != QN_OK && n < 2000; n++) {
        qn_mem_fail_nth(n);
        status = qn_sentence_read(folder, WIDTH, &s);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_null(s);
    }
    assert_int_equal(status, QN_OK);
    qn_sentence_free(s);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything), cmocka_unit_test(newer_pooling),
                                       cmocka_unit_test(no_modules), cmocka_unit_test(refusals),
                                       cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
