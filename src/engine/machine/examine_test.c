/* Looking at weights without loading them. Faults that the weights' own reader names are weights_test.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/machine/examine.h"
#include "format/files/mmap.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"

typedef struct {
    qn_source *source;
    qn_model_config config;
} opened;

static opened open_model(const char *path)
{
    opened m = {0};
    assert_int_equal(qn_source_open(path, NULL, &m.source), QN_OK);
    assert_int_equal(qn_config_read(m.source, &m.config), QN_OK);
    return m;
}

static void close_model(opened *m)
{
    qn_config_free(&m->config);
    qn_source_close(m->source);
}

static void test_bits(void **state)
{
    static const struct {
        const char *name;
        int bits;
    } rows[] = {{"Q4_K", 4},  {"BF16", 16}, {"affine6_g64_bf16", 6}, {"MXFP4", 4},
                {"nvfp4", 4}, {"BOOL", 0},  {"number 77", 0},        {"", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(qn_examine_bits(rows[i].name), rows[i].bits);
}

/* Every tensor of these files is used, none twice, whatever is tied. */
static void test_whole_files(void **state)
{
    static const struct {
        const char *path, *type;
        int bits, tied, others; /* others: read with the config */
    } rows[] = {{"models/llama", "BF16", 16, 0, 0},
                {"models/llama_rope3_tied", "BF16", 16, 1, 0},
                {"models/qwen3_tied", "F32", 32, 1, 0},
                {"models/phi3", "BF16", 16, 0, 0},
                {"models/gpt_oss", "BF16", 16, 0, 0},
                {"models/qwen3_next", "BF16", 16, 0, 0},
                {"models/deepseek_v3", "BF16", 16, 0, 0},
                {"quant/gguf_models/qwen3-Q4_K_M.gguf", "Q4_K", 4, 0, 0},
                {"quant/gguf_models/gemma3-Q8_0.gguf", "Q8_0", 8, 1, 0},
                {"quant/gguf_models/llama-Q4_K_M.gguf", "Q4_K", 4, 0, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        opened m = open_model(qn_test_need_fixture(rows[i].path));
        qn_examination e;
        int64_t n = 0;
        assert_int_equal(qn_examine_weights(m.source, &m.config, &e), QN_OK);
        assert_int_equal(e.n_tensors + rows[i].others, qn_source_count(m.source));
        if (rows[i].others)
            assert_true(e.size_bytes < qn_source_tensor_bytes(m.source));
        else
            assert_int_equal(e.size_bytes, qn_source_tensor_bytes(m.source));
        assert_int_equal(e.n_unused, 0);
        assert_null(e.unused);
        assert_int_equal(e.tied, rows[i].tied);
        assert_string_equal(e.type_name, rows[i].type);
        assert_int_equal(e.bits, rows[i].bits);
        assert_int_equal(qn_examine_vectors(m.source, &m.config, &n), QN_OK);
        int64_t n_zeros = -1;
        const char *zeros = "";
        assert_int_equal(qn_examine_zeros(m.source, &m.config, &n_zeros, &zeros), QN_OK);
        assert_int_equal(n_zeros, 0);
        assert_null(zeros);
        assert_true(n > 2 * m.config.num_hidden_layers);
        close_model(&m);
    }
}

/* Scales and biases go with their matrix; all that these files hold is used. */
static void test_packed_in_several_tensors(void **state)
{
    static const char *const paths[] = {"quant/mlx_models/llama-mixed", "quant/mlx_models/qwen2-mxfp4"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        opened m = open_model(qn_test_need_fixture(paths[i]));
        qn_examination e;
        assert_int_equal(qn_examine_weights(m.source, &m.config, &e), QN_OK);
        assert_int_equal(e.bits, 4);
        assert_int_equal(e.n_unused, 0);
        assert_int_equal(e.size_bytes, qn_source_tensor_bytes(m.source));
        close_model(&m);
    }
}

static void test_unused(void **state)
{
    const qn_test_tensor_edit edits[] = {{"model.norm.weight", QN_TEST_COPY, "vision.norm"},
                                         {"model.embed_tokens.weight", QN_TEST_COPY, "vision.embed"},
                                         {0}};
    char dir[QN_TEST_DIR_MAX];
    qn_test_model_copy(qn_test_need_fixture("models/llama"), NULL, edits, dir);
    opened m = open_model(dir);
    qn_examination e;
    assert_int_equal(qn_examine_weights(m.source, &m.config, &e), QN_OK);
    assert_int_equal(e.n_unused, 2);
    assert_non_null(strstr(e.unused, "vision."));
    assert_int_equal(e.unused_bytes, qn_source_find(m.source, "model.norm.weight")->size_bytes +
                                         qn_source_find(m.source, "model.embed_tokens.weight")->size_bytes);
    close_model(&m);
    qn_test_model_remove(dir);
}

static void test_missing(void **state)
{
    const qn_test_tensor_edit edits[] = {{"model.layers.1.self_attn.k_proj.weight", QN_TEST_DROP, NULL}, {0}};
    char dir[QN_TEST_DIR_MAX];
    qn_test_model_copy(qn_test_need_fixture("models/llama"), NULL, edits, dir);
    opened m = open_model(dir);
    qn_examination e = {.n_tensors = 7};
    assert_int_equal(qn_examine_weights(m.source, &m.config, &e), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "model.layers.1.self_attn.k_proj.weight"));
    assert_int_equal(e.n_tensors, 7);
    close_model(&m);
    qn_test_model_remove(dir);
}

/* A vector with a value that is no number is named with its file and the element. */
static void test_infinite_vector(void **state)
{
    const char *bad[] = {"\x80\x7f", "\xc0\x7f"},
               *words[] = {"element 3 is infinite", "element 3 is not a number"};
    const qn_test_tensor_edit edits[] = {{"model.norm.weight", QN_TEST_COPY, "copied"}, {0}};
    for (int i = 0; i < 2; i++) {
        char dir[QN_TEST_DIR_MAX];
        qn_test_model_copy(qn_test_need_fixture("models/llama"), NULL, edits, dir);
        opened m = open_model(dir);
        const qn_tensor_view *v = qn_source_find(m.source, "model.norm.weight");
        assert_int_equal(v->dtype, QN_DTYPE_BF16);
        FILE *f = fopen(v->file, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, (const uint8_t *)v->data - qn_mapping_data(v->mapping) + 6, SEEK_SET), 0);
        assert_int_equal(fwrite(bad[i], 1, 2, f), 2);
        fclose(f);
        close_model(&m);
        m = open_model(dir);
        int64_t n = -1;
        assert_int_equal(qn_examine_vectors(m.source, &m.config, &n), QN_E_FORMAT);
        if (!strstr(qn_last_error(), words[i])) fail_msg("%s", qn_last_error());
        assert_non_null(strstr(qn_last_error(), "model.norm.weight"));
        assert_int_equal(n, -1);
        close_model(&m);
        qn_test_model_remove(dir);
    }
}

static void test_no_memory(void **state)
{
    opened m = open_model(qn_test_need_fixture("models/llama"));
    int64_t before = qn_mem_live_blocks();
    for (int64_t i = 1; i < 2000; i++) {
        qn_examination e;
        int64_t n;
        qn_mem_fail_nth(i);
        qn_status status = qn_examine_weights(m.source, &m.config, &e);
        if (status == QN_OK) status = qn_examine_vectors(m.source, &m.config, &n);
        const char *zeros;
        if (status == QN_OK) status = qn_examine_zeros(m.source, &m.config, &n, &zeros);
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_whole_files),
        cmocka_unit_test(test_packed_in_several_tensors),
        cmocka_unit_test(test_unused),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_infinite_vector),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
