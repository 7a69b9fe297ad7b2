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

/* What the fixtures of published directory shape say. */
static const struct {
    const char *name, *architecture;
    int vocab, hidden, heads, kv_heads, head_dim, inter, positions;
    const char *kinds;
    int window;
    double eps, theta, scale_of; /* attention_scale is scale_of^-0.5 */
    qn_hidden_act act;
    int gemma, qk_norm, tied, bias, n_stop_ids; /* qk_norm: qn_qk_norm */
} expected[] = {
    {"llama", "llama", 640, 64, 4, 2, 16, 128, 512, "FFFF", 0, 1e-5, 5e5, 16, QN_HIDDEN_SILU, 0, 0, 0, 0, 3},
    {"llama_rope3_tied", "llama", 640, 96, 6, 2, 16, 128, 512, "FFFF", 0, 1e-5, 5e5, 16,
     QN_HIDDEN_SILU,     0,       0,   1,  0, 3},
    {"llama_head_dim", "llama", 640, 64, 4, 1, 24, 128, 512, "FFFF", 0, 1e-5, 5e5, 24,
     QN_HIDDEN_SILU,   0,       0,   0,  1, 3},
    {"mistral", "mistral",      768, 64, 4, 2, 16, 144, 512, "SSSS", 16, 1e-5, 1e4,
     16,        QN_HIDDEN_SILU, 0,   0,  0, 0, 1},
    {"qwen2", "qwen2", 512, 64, 4, 2, 16, 128, 512, "FFFF", 0, 1e-6, 1e6, 16, QN_HIDDEN_SILU, 0, 0, 1, 1, 2},
    {"qwen2_yarn", "qwen2",        512, 96, 3, 3, 32, 96, 4096, "FFFF", 0, 1e-6, 1e4,
     32,           QN_HIDDEN_SILU, 0,   0,  0, 1, 2},
    {"qwen2_window", "qwen2", 512, 64, 4, 2, 16, 128, 512, "FFFSS", 20, 1e-6, 1e6, 16,
     QN_HIDDEN_SILU, 0,       0,   1,  1, 2},
    {"deepseek_r1_distill", "qwen2", 576, 80, 5, 1, 16, 176, 512, "FFFF", 0, 1e-6, 1e4, 16,
     QN_HIDDEN_SILU,        0,       0,   0,  1, 1},
    {"qwen3", "qwen3", 512, 64, 4, 2, 32, 128, 512, "FFFF", 0, 1e-6, 1e6, 32, QN_HIDDEN_SILU, 0, 1, 0, 0, 2},
    {"qwen3_tied", "qwen3",        512, 80, 6, 3, 16, 96, 512, "FFFF", 0, 1e-6, 1e6,
     16,           QN_HIDDEN_SILU, 0,   1,  1, 0, 2},
    {"qwen3_no_model_type", "qwen3", 512, 64, 8, 2, 16, 128, 512, "FFFF", 0, 1e-6, 1e6, 16,
     QN_HIDDEN_SILU,        0,       1,   0,  0, 2},
    {"gemma", "gemma", 768, 64, 4, 1, 24, 128, 512, "FFFF", 0, 1e-6, 1e4, 24, QN_HIDDEN_GELU_TANH,
     1,       0,       1,   0,  2},
    {"gemma2", "gemma2", 768, 64, 4, 2, 24, 128, 512, "SFSF", 16, 1e-6, 1e4, 20, QN_HIDDEN_GELU_TANH,
     1,        0,        1,   0,  2},
    {"gemma3_text",
     "gemma3_text",
     1024,
     64,
     4,
     1,
     24,
     128,
     512,
     "SSSSSFS",
     16,
     1e-6,
     1e6,
     24,
     QN_HIDDEN_GELU_TANH,
     1,
     1,
     1,
     0,
     2},
    {"gemma3", "gemma3", 1032, 64, 8, 4, 16, 128, 2048, "SSSSSFS", 16, 1e-6, 1e6, 256, QN_HIDDEN_GELU_TANH,
     1,        1,        1,    0,  2},
    {"smollm3", "smollm3",      640, 64, 4, 2, 16, 128, 512, "FFFFF", 0, 1e-6, 5e6,
     16,        QN_HIDDEN_SILU, 0,   0,  1, 0, 3},
    {"olmo2", "olmo2", 512, 64, 4, 2, 16, 128, 512, "FFFF", 0, 1e-6, 5e5, 16, QN_HIDDEN_SILU, 0, 2, 0, 0, 2},
    {"qwen2_vl", "qwen2_vl",     512, 64, 4, 2, 16, 128, 512, "FFFF", 0, 1e-6, 1e6,
     16,         QN_HIDDEN_SILU, 0,   0,  1, 1, 2},
    {"qwen3_moe", "qwen3_moe",    512, 64, 4, 2, 32, 128, 512, "FFFF", 0, 1e-6, 1e6,
     32,          QN_HIDDEN_SILU, 0,   1,  0, 0, 2},
    {"mixtral", "mixtral",      768, 64, 4, 2, 16, 64, 512, "FFFF", 0, 1e-5, 1e6,
     16,        QN_HIDDEN_SILU, 0,   0,  0, 0, 1},
    {"gpt_oss", "gpt_oss",      512, 64, 4, 2, 16, 48, 512, "SFSF", 16, 1e-5, 150000,
     16,        QN_HIDDEN_SILU, 0,   0,  0, 1, 2},
    {"phi3", "phi3", 768, 64, 4, 4, 16, 128, 512, "SSSS", 24, 1e-5, 1e4, 16, QN_HIDDEN_SILU, 0, 0, 0, 0, 3},
};
enum { N_EXPECTED = sizeof expected / sizeof expected[0] };

static void test_fixtures(void **state)
{
    int n = 0;
    for (int i = 0; i < N_EXPECTED; i++) {
        char relative[96];
        snprintf(relative, sizeof relative, "models/%s", expected[i].name);
        const char *path = qn_test_fixture(relative);
        if (!path) continue;
        qn_model_config c;
        read_ok(path, &c);
        n++;
        assert_string_equal(c.architecture, expected[i].architecture);
        assert_int_equal(c.recognised_by != NULL, strcmp(expected[i].name, "qwen3_no_model_type") == 0);
        assert_int_equal(c.vocab_size, expected[i].vocab);
        assert_int_equal(c.hidden_size, expected[i].hidden);
        assert_int_equal(c.num_attention_heads, expected[i].heads);
        assert_int_equal(c.num_key_value_heads, expected[i].kv_heads);
        assert_int_equal(c.head_dim, expected[i].head_dim);
        assert_int_equal(c.intermediate_size, expected[i].inter);
        assert_int_equal(c.max_position_embeddings, expected[i].positions);
        kinds_are(&c, expected[i].kinds);
        for (int64_t l = 0; l < c.num_hidden_layers; l++) {
            if (c.layers[l].window) assert_int_equal(c.layers[l].window, expected[i].window);
            assert_int_equal(c.layers[l].head_dim, c.head_dim);
            assert_int_equal(c.layers[l].num_key_value_heads, c.num_key_value_heads);
            assert_int_equal(c.layers[l].intermediate_size, c.intermediate_size);
        }
        close_to(c.rms_norm_eps, expected[i].eps);
        close_to(c.rope[0].theta, expected[i].theta);
        assert_int_equal(c.rope[0].rotary_dim, c.head_dim);
        close_to(c.attention_scale, 1 / sqrt(expected[i].scale_of));
        assert_int_equal(c.hidden_act, expected[i].act);
        close_to(c.embedding_scale, expected[i].gemma ? sqrt(expected[i].hidden) : 1);
        assert_true(c.norm_offset == (expected[i].gemma ? 1 : 0));
        assert_int_equal(c.qk_norm, expected[i].qk_norm);
        assert_int_equal(c.tie_word_embeddings, expected[i].tied);
        assert_int_equal(c.attention_bias, expected[i].bias);
        assert_int_equal(c.rope_interleaved, 0);
        assert_int_equal(c.n_stop_ids, expected[i].n_stop_ids);
        assert_int_equal(c.quant_bits, 0);
        qn_config_free(&c);
    }
    if (n == 0) qn_test_leave_out("no fixture of models is there (QUERN_FIXTURES)");
}

static void test_multipliers(void **state)
{
    qn_model_config c;
    read_ok(qn_test_need_fixture("models/granite"), &c);
    assert_string_equal(c.architecture, "granite");
    close_to(c.embedding_scale, 3);
    close_to(c.attention_scale, 0.15);
    close_to(c.residual_scale, 0.4);
    close_to(c.logits_scale, 0.5);
    qn_config_free(&c);
    /* Other families do not look at these fields. */
    assert_int_equal(
        qn_test_config_patched("models/llama", "{\"residual_multiplier\": 2, \"logits_scaling\": 3}", &c),
        QN_OK);
    assert_true(c.residual_scale == 1 && c.logits_scale == 1 && c.embedding_scale == 1);
    qn_config_free(&c);
}

static void test_gemma2_caps(void **state)
{
    qn_model_config c;
    read_ok(qn_test_need_fixture("models/gemma2"), &c);
    close_to(c.attn_logit_softcapping, 20);
    close_to(c.final_logit_softcapping, 15);
    assert_int_equal(c.n_rope, 1);
    qn_config_free(&c);
}

static void test_missing_head_dim(void **state)
{
    static const struct {
        const char *fixture, *patch;
        int head_dim;
    } cases[] = {{"models/qwen3", "{\"head_dim\": null}", 32},
                 {"models/qwen3_tied", "{\"head_dim\": null}", 16},
                 {"models/gemma3_text", "{\"head_dim\": null}", 24},
                 {"models/gemma3", "{\"text_config\": {\"head_dim\": null}}", 16},
                 {"models/llama_head_dim", "{\"head_dim\": \"null\"}", 24},
                 {"models/gemma2", "{\"head_dim\": null}", 24}};
    int n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_model_config c;
        if (!qn_test_fixture(cases[i].fixture)) continue;
        assert_int_equal(qn_test_config_patched(cases[i].fixture, cases[i].patch, &c), QN_OK);
        assert_int_equal(c.head_dim, cases[i].head_dim);
        assert_int_equal(c.rope[0].rotary_dim, cases[i].head_dim);
        qn_config_free(&c);
        n++;
    }
    if (n == 0) qn_test_leave_out("no fixture of models is there (QUERN_FIXTURES)");
}

static void test_new_keys(void **state)
{
    qn_model_config c;
    assert_int_equal(
        qn_test_config_patched(
            "models/gemma3_text",
            "{\"rope_theta\": null, \"rope_scaling\": null, \"rope_local_base_freq\": null,"
            " \"sliding_window_pattern\": null, \"rope_parameters\": {"
            "  \"full_attention\": {\"rope_type\": \"linear\", \"factor\": 2.0, \"rope_theta\": 5e5},"
            "  \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 20000}},"
            " \"layer_types\": [\"full_attention\", \"sliding_attention\", \"sliding_attention\","
            "  \"full_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\"]}",
            &c),
        QN_OK);
    kinds_are(&c, "FSSFSSF");
    close_to(c.rope[0].theta, 5e5);
    assert_int_equal(c.rope[0].type, QN_ROPE_LINEAR);
    close_to(c.rope[1].theta, 20000);
    assert_int_equal(c.layers[0].rope, 0);
    assert_int_equal(c.layers[1].rope, 1);
    qn_config_free(&c);
}

/* What transformers' classes take where the files say nothing. */
static void test_defaults(void **state)
{
    static const char left_out[] =
        "{\"sliding_window\": null, \"rms_norm_eps\": null, \"rope_theta\": null, \"rope_scaling\": null,"
        " \"max_position_embeddings\": null, \"query_pre_attn_scalar\": null, \"hidden_act\": null,"
        " \"attn_logit_softcapping\": null, \"final_logit_softcapping\": null, \"hidden_activation\": null,"
        " \"use_sliding_window\": null, \"max_window_layers\": null, \"attention_bias\": null,"
        " \"mlp_bias\": null, \"tie_word_embeddings\": null}";
    static const struct {
        const char *fixture, *kinds;
        int positions, window, tied;
        double scale_of, attn_cap, final_cap;
        qn_hidden_act act;
    } rows[] = {
        {"models/llama", "FFFF", 2048, 0, 0, 16, 0, 0, QN_HIDDEN_SILU},
        {"models/mistral", "SSSS", 131072, 4096, 0, 16, 0, 0, QN_HIDDEN_SILU},
        {"models/qwen2", "FFFF", 32768, 0, 1, 16, 0, 0, QN_HIDDEN_SILU},
        {"models/qwen2_window", "FFFFF", 32768, 0, 1, 16, 0, 0, QN_HIDDEN_SILU},
        {"models/deepseek_r1_distill", "FFFF", 32768, 0, 0, 16, 0, 0, QN_HIDDEN_SILU},
        {"models/qwen3", "FFFF", 32768, 0, 0, 32, 0, 0, QN_HIDDEN_SILU},
        {"models/gemma", "FFFF", 8192, 0, 1, 24, 0, 0, QN_HIDDEN_GELU_TANH},
        {"models/gemma2", "SFSF", 8192, 4096, 1, 256, 50, 30, QN_HIDDEN_GELU_TANH},
        {"models/gemma3_text", "SSSSSFS", 131072, 4096, 1, 256, 0, 0, QN_HIDDEN_GELU_TANH},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        qn_model_config c;
        if (qn_test_config_patched(rows[i].fixture, left_out, &c) != QN_OK)
            fail_msg("%s: %s", rows[i].fixture, qn_last_error());
        kinds_are(&c, rows[i].kinds);
        assert_int_equal(c.layers[0].window, rows[i].window);
        assert_int_equal(c.max_position_embeddings, rows[i].positions);
        assert_int_equal(c.tie_word_embeddings, rows[i].tied);
        assert_int_equal(c.hidden_act, rows[i].act);
        close_to(c.rms_norm_eps, 1e-6);
        close_to(c.rope[0].theta, c.n_rope == 2 ? 1e6 : 1e4);
        close_to(c.attention_scale, 1 / sqrt(rows[i].scale_of));
        assert_true(c.attn_logit_softcapping == (float)rows[i].attn_cap);
        assert_true(c.final_logit_softcapping == (float)rows[i].final_cap);
        qn_config_free(&c);
    }
}

/* The window of qwen2 where it is switched on and the rest is left out; rope parameters by numbers. */
static void test_switched_on(void **state)
{
    qn_model_config c;
    assert_int_equal(qn_test_config_patched("models/qwen2",
                                            "{\"use_sliding_window\": true, \"sliding_window\": null}", &c),
                     QN_OK);
    kinds_are(&c, "FFSS");
    assert_int_equal(c.layers[3].window, 4096);
    qn_config_free(&c);
    assert_int_equal(qn_test_config_patched(
                         "models/qwen2", "{\"use_sliding_window\": true, \"sliding_window\": \"null\"}", &c),
                     QN_OK);
    kinds_are(&c, "FFFF");
    qn_config_free(&c);
    assert_int_equal(
        qn_test_config_patched("models/qwen2_yarn",
                               "{\"max_position_embeddings\": 4096, \"rope_scaling\": {\"factor\": \"null\","
                               " \"original_max_position_embeddings\": 512, \"mscale\": 0.7,"
                               " \"mscale_all_dim\": 1}}",
                               &c),
        QN_OK);
    close_to(c.rope[0].factor, 8);
    close_to(c.rope[0].attention_factor, (0.1 * 0.7 * log(8) + 1) / (0.1 * log(8) + 1));
    assert_int_equal(c.max_position_embeddings, 4096);
    qn_config_free(&c);
    assert_int_equal(qn_test_config_patched("models/llama",
                                            "{\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}}",
                                            &c),
                     QN_OK);
    assert_int_equal(c.rope[0].type, QN_ROPE_DYNAMIC);
    assert_string_equal(qn_rope_type_name(c.rope[0].type), "dynamic");
    close_to(c.rope[0].inv_freq[7], pow(5e5, -14.0 / 16));
    qn_config_free(&c);
}

static void test_recognised_by_tensors(void **state)
{
    qn_model_config c;
    assert_int_equal(qn_test_config_patched("models/llama", "{\"model_type\": null}", &c), QN_OK);
    assert_string_equal(c.architecture, "llama"); /* by its class */
    assert_null(c.recognised_by);
    qn_config_free(&c);
    assert_int_equal(
        qn_test_config_patched("models/llama", "{\"model_type\": null, \"architectures\": null}", &c), QN_OK);
    assert_string_equal(c.architecture, "qwen2"); /* the same blocks, with biases where there are some */
    assert_string_equal(c.recognised_by, "there is neither self_attn.q_norm nor a bias");
    assert_non_null(c.recognised_by);
    assert_int_equal(c.attention_bias, 0);
    qn_config_free(&c);
    static const char nameless[] = "{\"model_type\": null, \"architectures\": null}";
    assert_int_equal(qn_test_config_patched("models/qwen2_window", nameless, &c), QN_OK);
    assert_string_equal(c.architecture, "qwen2");
    assert_string_equal(c.recognised_by, "self_attn.q_proj.bias exists, self_attn.q_norm does not");
    assert_int_equal(c.attention_bias, 1);
    kinds_are(&c, "FFFSS");
    qn_config_free(&c);
    assert_int_equal(qn_test_config_patched("models/qwen3", nameless, &c), QN_OK);
    assert_string_equal(c.recognised_by, "self_attn.q_norm exists");
    qn_config_free(&c);
    /* Gemma's tensors have llama's names, or more: guessing would compute another model. */
    static const char *const others[] = {"models/gemma", "models/gemma2", "models/gemma3_text"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(qn_test_config_patched(others[i], nameless, &c), QN_E_FORMAT);
        assert_non_null(strstr(qn_last_error(), "model_type is missing"));
    }
    assert_int_equal(
        qn_test_config_patched(others[0],
                               "{\"model_type\": null, \"architectures\": null, \"hidden_act\": null}", &c),
        QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "hidden_activation \"gelu_pytorch_tanh\""));
}

static void test_real_models(void **state)
{
    qn_model_config c;
    read_ok(qn_test_need_model("smollm2"), &c);
    assert_int_equal(c.num_hidden_layers, 30);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.rope_interleaved, 1);
    assert_int_equal(c.tie_word_embeddings, 1);
    assert_int_equal(c.stop_ids[0], 2);
    qn_config_free(&c);
    read_ok(qn_test_need_model("gemma3-270m"), &c);
    assert_int_equal(c.vocab_size, 262144);
    assert_int_equal(c.head_dim, 256);
    kinds_are(&c, "SSSSSFSSSSSFSSSSSF");
    assert_int_equal(c.layers[0].window, 512);
    close_to(c.embedding_scale, sqrt(640));
    close_to(c.attention_scale, 1.0 / 16);
    qn_config_free(&c);
}

static void fails_cleanly(const char *path)
{
    int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1;; n++) {
        qn_model_config c;
        assert_true(n < 2000);
        qn_mem_fail_nth(n);
        qn_status status = qn_test_config(path, &c);
        qn_mem_fail_nth(0);
        if (status == QN_OK) qn_config_free(&c);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
}

static void test_allocation_failures(void **state)
{
    fails_cleanly(qn_test_need_fixture("models/gemma3_text"));
    const char *gguf = qn_test_fixture("quant/gguf_models/llama-F32.gguf");
    if (gguf) fails_cleanly(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),    cmocka_unit_test(test_multipliers),
        cmocka_unit_test(test_gemma2_caps), cmocka_unit_test(test_missing_head_dim),
        cmocka_unit_test(test_new_keys),    cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_switched_on), cmocka_unit_test(test_recognised_by_tensors),
        cmocka_unit_test(test_real_models), cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
