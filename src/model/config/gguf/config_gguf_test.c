/* Configurations from the metadata of GGUF files, and from a config.json beside one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/config/config.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"

static void read_ok(const char *path, qn_model_config *c)
{
    qn_status status = qn_test_config(path, c);
    if (status != QN_OK) fail_msg("%s: %s", path, qn_last_error());
}

static void close_to(double a, double b)
{
    if (!(fabs(a - b) <= 1e-6 * fabs(b))) fail_msg("%.9g is not %.9g", a, b);
}

/* Letters F (full) and S (sliding), one per layer. */
static void kinds_are(const qn_model_config *c, const char *kinds)
{
    assert_int_equal(c->num_hidden_layers, strlen(kinds));
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        assert_int_equal(c->layers[i].kind == QN_LAYER_SLIDING, kinds[i] == 'S');
        assert_int_equal(c->layers[i].window > 0, kinds[i] == 'S');
    }
}

static void test_gguf(void **state)
{
    static const struct {
        const char *name, *architecture;
        int heads, kv_heads, head_dim, tied, interleaved, bits;
        const char *kinds;
    } files[] = {
        {"llama-F32", "llama", 4, 2, 64, 0, 1, 0, "FF"},
        {"llama-Q4_K_M", "llama", 4, 2, 64, 0, 1, 4, "FF"},
        {"llama-Q8_0", "llama", 4, 2, 64, 0, 1, 8, "FF"},
        {"qwen2-Q5_K_M", "qwen2", 4, 2, 64, 1, 0, 5, "FF"},
        {"qwen3-F16", "qwen3", 4, 2, 128, 0, 0, 0, "FF"},
        {"qwen3-Q4_K_M", "qwen3", 4, 2, 128, 0, 0, 4, "FF"},
        {"gemma3-Q4_0", "gemma3", 2, 1, 128, 1, 0, 4, "SSSSSFS"},
        {"gemma3-Q8_0", "gemma3", 2, 1, 128, 1, 0, 8, "SSSSSFS"},
    };
    qn_test_need_fixture("quant/gguf_models/llama-F32.gguf");
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char relative[96];
        qn_model_config c;
        snprintf(relative, sizeof relative, "quant/gguf_models/%s.gguf", files[i].name);
        read_ok(qn_test_need_fixture(relative), &c);
        assert_string_equal(c.architecture, files[i].architecture);
        assert_int_equal(c.vocab_size, 512);
        assert_int_equal(c.hidden_size, 256);
        assert_int_equal(c.num_attention_heads, files[i].heads);
        assert_int_equal(c.num_key_value_heads, files[i].kv_heads);
        assert_int_equal(c.head_dim, files[i].head_dim);
        assert_int_equal(c.max_position_embeddings, 2048);
        assert_int_equal(c.tie_word_embeddings, files[i].tied);
        assert_int_equal(c.rope_interleaved, files[i].interleaved);
        assert_int_equal(c.quant_bits, files[i].bits);
        assert_true(c.norm_offset == 0);
        close_to(c.attention_scale, 1 / sqrt(files[i].head_dim));
        kinds_are(&c, files[i].kinds);
        assert_int_equal(c.n_stop_ids, 1);
        if (files[i].interleaved)
            assert_true(c.rope[0].inv_freq[31] < pow(5e5, -62.0 / 64) / 7); /* rope_freqs.weight */
        if (strcmp(files[i].architecture, "gemma3") == 0) {
            assert_int_equal(c.n_rope, 2);
            close_to(c.rope[1].theta, 10000);
            close_to(c.embedding_scale, 16);
            assert_int_equal(c.layers[0].window, 16);
        }
        qn_config_free(&c);
    }
}

/* A copy of a GGUF file as DIR/model.gguf in which the 32 bits of a key's value are replaced. */
static void copy_gguf(const char *from, const char *key, uint32_t value, char *dir, char *path)
{
    FILE *f = fopen(from, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *bytes = qn_alloc(n);
    assert_int_equal(fread(bytes, 1, n, f), n);
    fclose(f);
    if (key) {
        char *at = memmem(bytes, n, key, strlen(key));
        assert_non_null(at);
        memcpy(at + strlen(key) + 4, &value, 4);
    }
    snprintf(dir, QN_TEST_DIR_MAX, "%s", P_tmpdir "/quern-gguf-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, QN_TEST_DIR_MAX + 16, "%s/model.gguf", dir);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    qn_free(bytes);
}

static void test_gguf_refusals(void **state)
{
    static const struct {
        const char *key;
        uint32_t value;
        const char *words;
    } cases[] = {
        {"llama.block_count", 1000000000, "model.gguf: llama.block_count is 1000000000, expected 1 to 4096"},
        {"llama.block_count", 0, "llama.block_count is 0"},
        {"llama.embedding_length", 0, "llama.embedding_length is 0"},
        {"llama.attention.head_count", 0, "llama.attention.head_count is 0"},
        {"llama.attention.head_count", 3,
         "llama.attention.head_count 3 is not a multiple of llama.attention.head_count_kv 2"},
        {"llama.attention.head_count_kv", 0, "llama.attention.head_count_kv is 0"},
        {"llama.feed_forward_length", 0xffffffff, "llama.feed_forward_length is 4294967295"},
        {"llama.context_length", 0xffffffff, "llama.context_length is 4294967295"},
        {"llama.rope.dimension_count", 66, "llama.rope.dimension_count is 66, expected 2 to 64"},
        {"llama.rope.dimension_count", 7, "7 of 64 head dimensions"},
        {"llama.rope.dimension_count", 32, "tensor rope_freqs.weight: shape [32], expected [16]"},
        {"llama.rope.freq_base", 0x7fc00000, "llama.rope.freq_base"}, /* NaN */
        {"llama.attention.layer_norm_rms_epsilon", 0xbf800000,
         "llama.attention.layer_norm_rms_epsilon is -1"},
        {"tokenizer.ggml.eos_token_id", 0x80000000, "tokenizer.ggml.eos_token_id"},
    };
    const char *from = qn_test_need_fixture("quant/gguf_models/llama-F32.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[QN_TEST_DIR_MAX], path[QN_TEST_DIR_MAX + 16];
        qn_model_config c;
        copy_gguf(from, cases[i].key, cases[i].value, dir, path);
        qn_status status = qn_test_config(path, &c);
        qn_test_model_remove(dir);
        if (status != QN_E_FORMAT || !strstr(qn_last_error(), cases[i].words))
            fail_msg("%s: %s: %s", cases[i].key, qn_status_name(status), qn_last_error());
    }
}

/* Beside a GGUF file config.json describes the model; what the weights look like stays GGUF's. */
static void test_config_beside_gguf(void **state)
{
    char dir[QN_TEST_DIR_MAX], path[QN_TEST_DIR_MAX + 16];
    qn_model_config c;
    copy_gguf(qn_test_need_fixture("quant/gguf_models/llama-F32.gguf"), NULL, 0, dir, path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"model_type\": \"llama\", \"hidden_size\": 256, \"num_hidden_layers\": 2, "
          "\"num_attention_heads\": 4,"
          " \"num_key_value_heads\": 2, \"intermediate_size\": 256, \"max_position_embeddings\": 777, "
          "\"rope_theta\": 5e5,"
          " \"eos_token_id\": 7}",
          f);
    fclose(f);
    read_ok(dir, &c);
    assert_int_equal(c.max_position_embeddings, 777);
    assert_int_equal(c.vocab_size, 512);
    assert_int_equal(c.rope_interleaved, 1);
    assert_int_equal(c.tie_word_embeddings, 0);
    close_to(c.rope[0].inv_freq[31], pow(5e5, -62.0 / 64)); /* no scaling in config.json, so none */
    assert_int_equal(c.stop_ids[0], 7);
    assert_int_equal(c.stop_ids[1], 436);
    qn_config_free(&c);
    qn_test_model_remove(dir);
}

/* -1 says that there is no such token: transformers keeps it, llama.cpp writes it so. */
static void test_no_token(void **state)
{
    char dir[QN_TEST_DIR_MAX], path[QN_TEST_DIR_MAX + 16];
    qn_model_config c = {0};
    assert_int_equal(
        qn_test_config_patched("models/llama", "{\"eos_token_id\":[5,-1],\"bos_token_id\":-1}", &c), QN_OK);
    for (int i = 0; i < c.n_stop_ids; i++) assert_true(c.stop_ids[i] >= 0);
    qn_config_free(&c);
    assert_int_equal(qn_test_config_patched("models/llama", "{\"eos_token_id\":-2}", &c), QN_E_FORMAT);
    assert_int_equal(qn_test_config_patched("models/llama", "{\"bos_token_id\":-2}", &c), QN_E_FORMAT);
    copy_gguf(qn_test_need_fixture("quant/gguf_models/llama-F32.gguf"), "tokenizer.ggml.eos_token_id",
              0xffffffff, dir, path);
    assert_int_equal(qn_test_config(path, &c), QN_OK);
    for (int i = 0; i < c.n_stop_ids; i++) assert_true(c.stop_ids[i] >= 0);
    qn_config_free(&c);
    qn_test_model_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_gguf_refusals),
        cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_config_beside_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
