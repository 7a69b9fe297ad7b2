/* qn_discover: the walk through the public API. Layouts of folders are tests/cli/test_cli_models.py's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

typedef struct {
    int n_models, n_problems, stop_at;
    char last[512], type[64], quant[64], format[64];
} seen;

static qn_status take(void *user, const qn_discovery *d)
{
    seen *s = user;
    s->n_models += !d->is_problem;
    s->n_problems += d->is_problem;
    snprintf(s->last, sizeof s->last, "%s", d->name);
    snprintf(s->type, sizeof s->type, "%s", d->model_type);
    snprintf(s->format, sizeof s->format, "%s", d->format);
    snprintf(s->quant, sizeof s->quant, "%s", d->quant);
    assert_true((d->status == QN_OK) == (d->error[0] == 0));
    return s->n_models == s->stop_at ? QN_E_CANCELLED : QN_OK;
}

/* A folder with two small models and a broken one. */
static const char *make_tree(void)
{
    const char *root = qn_test_scratch(), *files[] = {"config.json", "model.safetensors"};
    char folder[600];
    const char *from = qn_test_need_fixture("models/llama");
    for (int i = 0; i < 2; i++) {
        snprintf(folder, sizeof folder, "%s/m%d", root, i);
        assert_int_equal(mkdir(folder, 0700), 0);
        for (int j = 0; j < 2; j++) qn_test_copy(folder, files[j], qn_test_path(from, files[j]));
    }
    qn_test_write_text(root, "broken.gguf", "GGUF");
    return root;
}

static void test_walk(void **state)
{
    const char *root = make_tree();
    seen s = {0};
    assert_int_equal(qn_discover(root, NULL, take, &s), QN_OK);
    assert_int_equal(s.n_models, 3);
    assert_string_equal(s.last, "m1");
    assert_string_equal(s.type, "llama");
    s = (seen){.stop_at = 2};
    assert_int_equal(qn_discover(root, NULL, take, &s), QN_E_CANCELLED);
    assert_int_equal(s.n_models, 2);
    qn_test_remove(root);
}

/* A configuration that speaks of quantisation as MLX does, by a method's name, and with no numbers at all. */
static void test_words_of_quantisation(void **state)
{
    static const struct {
        const char *config, *quant;
    } rows[] = {
        {"{\"quantization\": {\"bits\": 4, \"group_size\": 64}}", "mlx affine 4 g64"},
        {"{\"quantization\": {\"bits\": 4, \"group_size\": 32, \"mode\": \"mxfp4\"}}", "mlx mxfp4 g32"},
        {"{\"quantization\": {\"bits\": 4, \"group_size\": 16, \"mode\": \"nvfp4\"}}", "mlx nvfp4 g16"},
        {"{\"quantization_config\": {\"bits\": 4, \"quant_method\": \"gptq\"}}", "gptq 4"},
        {"{\"quantization_config\": {\"load_in_8bit\": true}}", "bf16"},
    };
    const char *root = qn_test_scratch();
    qn_test_copy(root, "model.safetensors",
                 qn_test_path(qn_test_need_fixture("models/llama"), "model.safetensors"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        seen s = {0};
        qn_test_write_text(root, "config.json", rows[i].config);
        assert_int_equal(qn_discover(root, NULL, take, &s), QN_OK);
        assert_string_equal(s.quant, rows[i].quant);
    }
    qn_test_remove(root);
}

/* A folder of raw weights is a model, of which the configuration is read. */
static void test_raw_weights(void **state)
{
    const char *root = qn_test_scratch();
    char folder[600];
    seen s = {0};
    qn_test_copy(root, "config.json", qn_test_path(qn_test_need_fixture("models/llama"), "config.json"));
    snprintf(folder, sizeof folder, "%s/bin_weights", root);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(qn_discover(root, NULL, take, &s), QN_OK);
    assert_int_equal(s.n_models, 1);
    assert_string_equal(s.format, "bin_weights");
    qn_test_remove(root);
}

static void test_arguments(void **state)
{
    seen s = {0};
    assert_int_equal(qn_discover(NULL, NULL, take, &s), QN_E_ARG);
    assert_int_equal(qn_discover("", NULL, take, &s), QN_E_ARG);
    assert_int_equal(qn_discover("x", NULL, NULL, &s), QN_E_ARG);
    assert_int_equal(qn_discover("x", &(qn_discover_options){.max_depth = 257}, take, &s), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "max_depth: 257"));
    assert_int_equal(qn_discover("/no/such/folder", NULL, take, &s), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "/no/such/folder"));
    assert_int_equal(s.n_models + s.n_problems, 0);
}

/* Running out of memory anywhere is QN_E_NOMEM, never a model that is called broken, and leaves nothing
 * behind. */
static void test_no_memory(void **state)
{
    const char *root = make_tree();
    int64_t before = qn_mem_live_blocks(), allocations = qn_mem_allocations();
    seen all = {0}, s;
    assert_int_equal(qn_discover(root, &(qn_discover_options){.follow_links = 1}, take, &all), QN_OK);
    allocations = qn_mem_allocations() - allocations;
    for (int64_t i = 1; i <= allocations; i += i < 200 ? 1 : 7) {
        s = (seen){0};
        qn_mem_fail_nth(i);
        qn_status status = qn_discover(root, &(qn_discover_options){.follow_links = 1}, take, &s);
        qn_mem_fail_nth(0);
        assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    s = (seen){0};
    assert_int_equal(qn_discover(root, NULL, take, &s), QN_OK);
    assert_int_equal(s.n_models, all.n_models);
    qn_test_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk),        cmocka_unit_test(test_words_of_quantisation),
        cmocka_unit_test(test_raw_weights), cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
