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
#include "tests/support/model_dir.h"

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

/* A change to config.json that must be refused, and words of the message. */
static void test_refusals(void **state)
{
    static const struct {
        const char *fixture, *patch;
        qn_status status;
        const char *words;
    } cases[] = {
        {"llama", "{\"model_type\": \"mamba\"}", QN_E_UNSUPPORTED, "config.json: model_type is \"mamba\""},
        {"llama", "{\"model_type\": \"mamba\"}", QN_E_UNSUPPORTED,
         "known: llama, mistral, qwen2, qwen3, gemma"},
        {"llama", "{\"model_type\": null, \"architectures\": [\"T5EncoderModel\"]}", QN_E_UNSUPPORTED,
         "T5EncoderModel"},
        {"llama", "{\"model_type\": 3}", QN_E_FORMAT, "model_type is a number, expected a string"},
        {"llama", "{\"hidden_size\": 0}", QN_E_FORMAT, "hidden_size is 0, expected 1 to"},
        {"llama", "{\"hidden_size\": -64}", QN_E_FORMAT, "hidden_size is -64"},
        {"llama", "{\"hidden_size\": \"64\"}", QN_E_FORMAT, "hidden_size is a string, expected an integer"},
        {"llama", "{\"hidden_size\": 64.5}", QN_E_FORMAT, "hidden_size is 64.5, expected an integer"},
        {"llama", "{\"hidden_size\": 1e300}", QN_E_FORMAT, "hidden_size is 1e+300"},
        {"llama", "{\"hidden_size\": [64]}", QN_E_FORMAT, "hidden_size is an array"},
        {"llama", "{\"hidden_size\": null}", QN_E_FORMAT, "hidden_size is missing"},
        {"llama", "{\"num_hidden_layers\": 1000000000}", QN_E_FORMAT, "num_hidden_layers is 1000000000"},
        {"llama", "{\"num_hidden_layers\": 9223372036854775807}", QN_E_FORMAT, "num_hidden_layers is"},
        {"llama", "{\"num_attention_heads\": 0}", QN_E_FORMAT, "num_attention_heads is 0"},
        {"llama", "{\"num_attention_heads\": 7}", QN_E_FORMAT,
         "num_attention_heads 7 is not a multiple of num_key_value_heads 2"},
        {"llama", "{\"num_attention_heads\": 6}", QN_E_FORMAT, "64 rows do not match num_attention_heads 6"},
        {"llama", "{\"num_key_value_heads\": 3}", QN_E_FORMAT, "not a multiple of num_key_value_heads 3"},
        {"llama", "{\"num_key_value_heads\": 0}", QN_E_FORMAT, "num_key_value_heads is 0"},
        {"llama", "{\"head_dim\": 0}", QN_E_FORMAT, "head_dim is 0"},
        {"llama", "{\"head_dim\": 15}", QN_E_FORMAT, "15 of 15 head dimensions"},
        {"llama", "{\"intermediate_size\": -1}", QN_E_FORMAT, "intermediate_size is -1"},
        {"llama", "{\"vocab_size\": 4294967296}", QN_E_FORMAT, "vocab_size is 4294967296"},
        {"llama", "{\"max_position_embeddings\": 0}", QN_E_FORMAT, "max_position_embeddings is 0"},
        {"llama", "{\"rms_norm_eps\": -1e-6}", QN_E_FORMAT, "rms_norm_eps is -1e-06"},
        {"llama", "{\"rms_norm_eps\": \"1e-6\"}", QN_E_FORMAT, "rms_norm_eps is a string, expected a number"},
        {"llama", "{\"rope_theta\": 0}", QN_E_FORMAT, "rope_theta is 0"},
        {"llama", "{\"rope_theta\": -10000.0}", QN_E_FORMAT, "rope_theta is -10000"},
        {"llama", "{\"rope_scaling\": {\"rope_type\": \"spiral\"}}", QN_E_UNSUPPORTED,
         "rope_scaling.rope_type is \"spiral\""},
        {"llama", "{\"rope_scaling\": {\"rope_type\": \"linear\"}}", QN_E_FORMAT,
         "rope_scaling.factor is missing"},
        {"llama", "{\"rope_scaling\": {\"rope_type\": \"dynamic\"}}", QN_E_FORMAT,
         "rope_scaling.factor is missing"},
        {"qwen2_yarn", "{\"rope_scaling\": {\"factor\": null}}", QN_E_FORMAT,
         "rope_scaling.factor is missing"},
        {"llama", "{\"num_key_value_heads\": null, \"head_dim\": 8, \"num_attention_heads\": 6}", QN_E_FORMAT,
         "num_attention_heads 6 is not a multiple of num_key_value_heads 4 of the key projection"},
        {"llama", "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}}", QN_E_FORMAT,
         "rope_scaling.factor is 0"},
        {"llama", "{\"rope_scaling\": 8}", QN_E_FORMAT, "rope_scaling is a number, expected an object"},
        {"llama",
         "{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 1,"
         " \"original_max_position_embeddings\": 64}}",
         QN_E_FORMAT, "high_freq_factor is 1, expected more than"},
        {"llama", "{\"partial_rotary_factor\": 0.01}", QN_E_FORMAT, "0 of 16 head dimensions"},
        {"llama", "{\"hidden_act\": \"relu6\"}", QN_E_UNSUPPORTED, "hidden_act is \"relu6\""},
        {"llama", "{\"tie_word_embeddings\": 1}", QN_E_FORMAT,
         "tie_word_embeddings is a number, expected true or false"},
        {"llama", "{\"attention_bias\": \"yes\"}", QN_E_FORMAT, "attention_bias is a string"},
        {"llama", "{\"eos_token_id\": -5}", QN_E_FORMAT, "eos_token_id: -5 is not a token id"},
        {"llama", "{\"eos_token_id\": \"</s>\"}", QN_E_FORMAT, "eos_token_id: expected a token id"},
        {"llama", "{\"bos_token_id\": 99999999999}", QN_E_FORMAT, "bos_token_id: expected a token id"},
        {"llama", "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}}", QN_E_UNSUPPORTED,
         "\"gptq\""},
        {"llama", "{\"layer_types\": [\"full_attention\"]}", QN_E_FORMAT,
         "layer_types: expected an array of num_hidden_layers (4)"},
        {"qwen3_tied",
         "{\"layer_types\": [\"full_attention\", \"mamba\", \"full_attention\", \"full_attention\"]}",
         QN_E_UNSUPPORTED, "layer_types[1] is \"mamba\""},
        {"gemma3_text", "{\"sliding_window\": 0}", QN_E_FORMAT, "sliding_window is 0"},
        {"gemma3_text", "{\"sliding_window_pattern\": 0}", QN_E_FORMAT, "sliding_window_pattern is 0"},
        {"gemma3_text", "{\"query_pre_attn_scalar\": 0}", QN_E_FORMAT, "query_pre_attn_scalar is 0"},
        {"gemma2", "{\"use_bidirectional_attention\": true}", QN_E_UNSUPPORTED,
         "use_bidirectional_attention"},
        {"phi3_longrope", "{\"rope_scaling\": {\"short_factor\": null}}", QN_E_FORMAT,
         "rope_scaling.short_factor is missing"},
        {"phi3_longrope", "{\"rope_scaling\": {\"long_factor\": [1, 2, 3, 4, 5, 6, 7, 8]}}", QN_E_FORMAT,
         "rope_scaling.long_factor: expected an array of 9 numbers, half of head_dim"},
        {"phi3_longrope", "{\"rope_scaling\": {\"long_factor\": [1, 2, 3, 4, 5, 6, 7, 8, 0]}}", QN_E_FORMAT,
         "rope_scaling.long_factor[8] is 0, expected a positive number"},
        {"phi3_longrope", "{\"rope_scaling\": {\"short_factor\": [1, 2, 3, \"4\", 5, 6, 7, 8, 9]}}",
         QN_E_FORMAT, "rope_scaling.short_factor[3] is not a number"},
        {"phi3_longrope", "{\"rope_scaling\": {\"short_factor\": 1}}", QN_E_FORMAT, "expected an array"},
        {"phi3_longrope", "{\"rope_scaling\": {\"partial_rotary_factor\": 0.5}}", QN_E_FORMAT,
         "expected an array of 6 numbers"},
        {"phi3_longrope", "{\"original_max_position_embeddings\": 0}", QN_E_FORMAT,
         "original_max_position_embeddings is 0"},
        {"phi3_longrope", "{\"original_max_position_embeddings\": 1}", QN_E_FORMAT,
         "is 1, expected 2 or more"},
        {"phi3_longrope", "{\"rope_scaling\": {\"attention_factor\": -1}}", QN_E_FORMAT,
         "rope_scaling.attention_factor is -1"},
        {"phi3_longrope", "{\"rope_scaling\": {\"mscale_all_dim\": \"1\"}}", QN_E_FORMAT,
         "rope_scaling.mscale_all_dim is a string"},
        {"llama",
         "{\"rope_scaling\": {\"rope_type\": \"proportional\", \"factor\": 2, \"mscale_all_dim\": -1}}",
         QN_E_FORMAT, "rope_scaling.mscale_all_dim is -1"},
        {"phi3", "{\"rope_scaling\": {\"type\": \"longrope\"}}", QN_E_FORMAT,
         "rope_scaling.short_factor is missing"},
        {"minimax_m2", "{\"rope_parameters\": {\"partial_rotary_factor\": 1.5}}", QN_E_FORMAT,
         "rope_parameters.partial_rotary_factor is 1.5"},
        {"glm4_moe_lite", "{\"mlp_layer_types\": [\"dense\"]}", QN_E_FORMAT,
         "mlp_layer_types: expected an array of num_hidden_layers"},
        {"glm4_moe_lite", "{\"mlp_layer_types\": [\"dense\", 1, \"sparse\"]}", QN_E_FORMAT,
         "mlp_layer_types[1] is neither"},
        {"glm4_moe", "{\"num_nextn_predict_layers\": -1}", QN_E_FORMAT, "num_nextn_predict_layers is -1"},
        {"deepseek_v2", "{\"topk_method\": \"noaux_tc\"}", QN_E_UNSUPPORTED, "topk_method is \"noaux_tc\""},
        {"ministral3", "{\"rope_parameters\": {\"llama_4_scaling_beta\": -1}}", QN_E_FORMAT,
         "llama_4_scaling_beta is -1"},
        {"hunyuan_v1_dense", "{\"rope_parameters\": {\"alpha\": -1}}", QN_E_FORMAT, "alpha is -1"},
        {"llama4", "{\"text_config\": {\"attention_chunk_size\": 0}}", QN_E_FORMAT,
         "text_config.attention_chunk_size is 0"},
        {"llama4", "{\"text_config\": {\"attention_chunk_size\": \"null\"}}", QN_E_FORMAT,
         "layer 0 has chunked attention, but text_config.attention_chunk_size is missing"},
        {"muse_glimmer", "{\"text_config\": {\"layer_rope_theta\": [0]}}", QN_E_FORMAT,
         "text_config.layer_rope_theta: expected an array with a number for each of the 4 layers"},
        {"muse_glimmer", "{\"text_config\": {\"layer_rope_theta\": [0, null, 0, 0]}}", QN_E_FORMAT,
         "text_config.layer_rope_theta[1] is not a number"},
        {"muse_glimmer", "{\"vision_config\": {\"layer_types\": [\"full_attention\"]}}", QN_E_FORMAT,
         "layer_types: expected an array with a name for each of the 3 layers"},
        {"muse_glimmer",
         "{\"vision_config\": {\"layer_types\": [\"full_attention\", \"linear_attention\", "
         "\"full_attention\"]}}",
         QN_E_UNSUPPORTED, "layer_types[1] is not supported (known: full_attention, window_attention)"},
        {"muse_glimmer", "{\"vision_config\": {\"pos_emb_height\": 0}}", QN_E_FORMAT, "pos_emb_height is 0"},
        {"muse_glimmer", "{\"text_config\": {\"qk_scale_factor\": 0}}", QN_E_FORMAT, "qk_scale_factor is 0"},
        {"muse_glimmer", "{\"text_config\": {\"output_multiplier\": 0}}", QN_E_FORMAT,
         "output_multiplier is 0"},
        {"muse_glimmer", "{\"text_config\": {\"post_norm_eps\": -1}}", QN_E_FORMAT, "post_norm_eps is -1"},
        {"llama4", "{\"text_config\": {\"floor_scale\": 0}}", QN_E_FORMAT, "text_config.floor_scale is 0"},
        {"llama4", "{\"text_config\": {\"attn_scale\": \"1\"}}", QN_E_FORMAT,
         "text_config.attn_scale is a string"},
        {"llama4", "{\"text_config\": {\"attn_temperature_tuning\": 0.5}}", QN_E_FORMAT,
         "text_config.attn_temperature_tuning is a number"},
        {"llama4", "{\"text_config\": {\"moe_layers\": [1, 4]}}", QN_E_FORMAT,
         "text_config.moe_layers[1] is not a layer from 0 to 3"},
        {"llama4", "{\"text_config\": {\"moe_layers\": 1}}", QN_E_FORMAT,
         "text_config.moe_layers: expected an array of layers"},
        {"llama4",
         "{\"text_config\": {\"layer_types\": [\"sliding_attention\", \"full_attention\", "
         "\"full_attention\", "
         "\"full_attention\"]}}",
         QN_E_UNSUPPORTED, "(known: full_attention, chunked_attention)"},
        {"cohere2", "{\"logit_scale\": 0}", QN_E_FORMAT, "logit_scale is 0"},
        {"starcoder2", "{\"norm_epsilon\": -1}", QN_E_FORMAT, "norm_epsilon is -1"},
        {"phi2", "{\"qk_layernorm\": 1}", QN_E_FORMAT, "qk_layernorm is a number"},
        {"granite", "{\"logits_scaling\": 0}", QN_E_FORMAT, "logits_scaling is 0"},
        {"granite", "{\"residual_multiplier\": \"0.4\"}", QN_E_FORMAT, "residual_multiplier is a string"},
        {"granite", "{\"attention_multiplier\": 1e300}", QN_E_FORMAT, "attention_multiplier is 1e+300"},
        {"granite", "{\"embedding_multiplier\": -1}", QN_E_FORMAT, "embedding_multiplier is -1"},
        {"phi3", "{\"sliding_window\": 0}", QN_E_FORMAT, "sliding_window is 0"},
        {"smollm3", "{\"no_rope_layers\": [1, 1, 1, 0]}", QN_E_FORMAT,
         "no_rope_layers: expected an array with a 0 or 1 for each of the 5 layers"},
        {"smollm3", "{\"no_rope_layers\": {}}", QN_E_FORMAT, "no_rope_layers: expected an array"},
        {"smollm3", "{\"no_rope_layers\": [1, 1, 2, 0, 1]}", QN_E_FORMAT,
         "no_rope_layers[2] is neither 0 nor 1"},
        {"smollm3", "{\"no_rope_layers\": [1, 1, 1, 0, true]}", QN_E_FORMAT, "no_rope_layers[4] is neither"},
        {"smollm3", "{\"no_rope_layers\": null, \"no_rope_layer_interval\": 0}", QN_E_FORMAT,
         "no_rope_layer_interval is 0"},
        {"smollm3",
         "{\"use_sliding_window\": true, \"layer_types\": [\"full_attention\", \"full_attention\","
         " \"full_attention\", \"sliding_attention\", \"full_attention\"]}",
         QN_E_FORMAT, "layer 3 has sliding attention, but sliding_window is missing"},
        {"qwen3_moe", "{\"num_experts\": 0}", QN_E_FORMAT, "num_experts is 0, expected 1 to 4096"},
        {"qwen3_moe", "{\"num_experts\": 4097}", QN_E_FORMAT, "num_experts is 4097, expected 1 to 4096"},
        {"qwen3_moe", "{\"num_experts\": \"8\"}", QN_E_FORMAT, "num_experts is a string"},
        {"qwen3_moe", "{\"num_experts_per_tok\": 0}", QN_E_FORMAT, "num_experts_per_tok is 0"},
        {"qwen3_moe", "{\"num_experts_per_tok\": 9}", QN_E_FORMAT,
         "num_experts_per_tok is 9, but num_experts is 8"},
        {"qwen3_moe", "{\"num_experts_per_tok\": 257, \"num_experts\": 1000}", QN_E_FORMAT,
         "num_experts_per_tok is 257, expected 1 to 256"},
        {"qwen3_moe", "{\"moe_intermediate_size\": 0}", QN_E_FORMAT, "moe_intermediate_size is 0"},
        {"qwen3_moe", "{\"moe_intermediate_size\": 1e9}", QN_E_FORMAT, "moe_intermediate_size is"},
        {"qwen3_moe", "{\"norm_topk_prob\": 1}", QN_E_FORMAT, "norm_topk_prob is a number"},
        {"qwen3_moe", "{\"decoder_sparse_step\": 0}", QN_E_FORMAT, "decoder_sparse_step is 0"},
        {"qwen3_moe", "{\"mlp_only_layers\": 1}", QN_E_FORMAT,
         "mlp_only_layers: expected an array of layers"},
        {"qwen3_moe", "{\"mlp_only_layers\": [0, 4]}", QN_E_FORMAT,
         "mlp_only_layers[1] is not a layer from 0 to 3"},
        {"qwen3_moe", "{\"mlp_only_layers\": [-1]}", QN_E_FORMAT,
         "mlp_only_layers[0] is not a layer from 0 to 3"},
        {"qwen3_moe", "{\"mlp_only_layers\": [\"0\"]}", QN_E_FORMAT, "mlp_only_layers[0] is not a layer"},
        {"qwen3_moe", "{\"moe_layer_freq\": 2}", QN_E_UNSUPPORTED, "moe_layer_freq is 2"},
        {"qwen3_moe", "{\"first_k_dense_replace\": -1}", QN_E_FORMAT, "first_k_dense_replace is -1"},
        {"qwen3_moe", "{\"n_group\": 3}", QN_E_FORMAT, "8 experts are not a multiple of n_group 3"},
        {"qwen3_moe", "{\"n_group\": 0}", QN_E_FORMAT, "n_group is 0"},
        {"qwen3_moe", "{\"n_group\": 8}", QN_E_FORMAT,
         "n_group is 8: groups of 1 experts do not have two best ones"},
        {"qwen3_moe", "{\"n_group\": 4, \"topk_group\": 5}", QN_E_FORMAT, "topk_group is 5, expected 1 to 4"},
        {"qwen3_moe", "{\"n_group\": 4, \"num_experts_per_tok\": 3}", QN_E_FORMAT,
         "topk_group is 1: that many groups hold only 2 experts, but num_experts_per_tok is 3"},
        {"qwen3_moe", "{\"routed_scaling_factor\": 0}", QN_E_FORMAT, "routed_scaling_factor is 0"},
        {"qwen3_moe", "{\"n_shared_experts\": 4096, \"moe_intermediate_size\": 16777216}", QN_E_FORMAT,
         "n_shared_experts is 4096, which gives a shared expert of size"},
        {"mixtral", "{\"num_local_experts\": -1}", QN_E_FORMAT, "num_local_experts is -1"},
        {"mixtral", "{\"num_experts_per_tok\": 5}", QN_E_FORMAT,
         "num_experts_per_tok is 5, but num_local_experts is 4"},
        {"gpt_oss", "{\"swiglu_limit\": 0}", QN_E_FORMAT, "swiglu_limit is 0"},
        {"llama", "{\"num_local_experts\": 4}", QN_E_UNSUPPORTED,
         "num_local_experts is 4: a mixture of experts is not supported for this family"},
        {"gemma3", "{\"text_config\": {\"hidden_size\": 0}}", QN_E_FORMAT, "text_config.hidden_size is 0"},
        {"gemma3", "{\"text_config\": []}", QN_E_FORMAT, "text_config is an array"},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_model_config c;
        char fixture[96];
        snprintf(fixture, sizeof fixture, "models/%s", cases[i].fixture);
        if (!qn_test_fixture(fixture)) continue;
        n++;
        qn_status status = qn_test_config_patched(fixture, cases[i].patch, &c);
        if (status != cases[i].status || !strstr(qn_last_error(), cases[i].words))
            fail_msg("%s: %s: %s", cases[i].patch, qn_status_name(status), qn_last_error());
    }
    if (n == 0) qn_test_leave_out("no fixture of models is there (QUERN_FIXTURES)");
}

/* An embedding without rows says nothing of the vocabulary. */
static void test_no_rows(void **state)
{
    static const char header[] =
        "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[0,64],\"data_offsets\":[0,0]}}";
    const uint64_t n = sizeof header - 1;
    char dir[QN_TEST_DIR_MAX], path[QN_TEST_DIR_MAX + 32];
    qn_model_config c;
    qn_test_model_copy(qn_test_need_fixture("models/llama"), "{\"vocab_size\": null}", NULL, dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(remove(path), 0); /* a link */
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&n, sizeof n, 1, f), 1);
    assert_int_equal(fwrite(header, (size_t)n, 1, f), 1);
    fclose(f);
    assert_int_equal(qn_test_config(dir, &c), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "vocab_size is missing"));
    qn_test_model_remove(dir);
}

static void test_broken_json(void **state)
{
    char dir[QN_TEST_DIR_MAX], path[QN_TEST_DIR_MAX + 16];
    static const char *const texts[] = {
        "", "{", "[1]", "null", "{\"a\": 1, \"a\": 2}", "{\"hidden_size\": NaN}"};
    qn_test_model_copy(qn_test_need_fixture("models/llama"), NULL, NULL, dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        qn_model_config c;
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(texts[i], f);
        fclose(f);
        assert_int_not_equal(qn_test_config(dir, &c), QN_OK);
        assert_non_null(strstr(qn_last_error(), "config.json"));
    }
    qn_test_model_remove(dir);
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
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_multipliers),
        cmocka_unit_test(test_gemma2_caps),
        cmocka_unit_test(test_missing_head_dim),
        cmocka_unit_test(test_new_keys),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_switched_on),
        cmocka_unit_test(test_recognised_by_tensors),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_broken_json),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_gguf_refusals),
        cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_config_beside_gguf),
        cmocka_unit_test(test_real_models),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
