/* What config.json says of layers that do not attend as llama's do, read right and refused by name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/config/config.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"

static qn_status read_config(const char *path, qn_model_config *c)
{
    qn_source *src;
    QN_TRY(qn_source_open(path, NULL, &src));
    qn_status status = qn_config_read(src, c);
    qn_source_close(src);
    return status;
}

/* Reads a copy of a fixture with a change to its config.json. */
static qn_status read_patched(const char *fixture, const char *patch, qn_model_config *c)
{
    char dir[QN_TEST_DIR_MAX];
    qn_test_model_copy(qn_test_need_fixture(fixture), patch, NULL, dir);
    qn_status status = read_config(dir, c);
    qn_test_model_remove(dir);
    return status;
}

static void read_ok(const char *fixture, const char *patch, qn_model_config *c)
{
    if (read_patched(fixture, patch, c) != QN_OK) fail_msg("%s: %s: %s", fixture, patch, qn_last_error());
}

static void close_to(double a, double b)
{
    if (!(fabs(a - b) <= 1e-6 * fabs(b))) fail_msg("%.9g is not %.9g", a, b);
}

/* Letters, one a layer: A attention, D gated delta net. */
static void mixers_are(const char *fixture, const char *patch, const char *mixers)
{
    qn_model_config c;
    read_ok(fixture, patch, &c);
    assert_int_equal(c.num_hidden_layers, strlen(mixers));
    for (int64_t i = 0; i < c.num_hidden_layers; i++)
        assert_int_equal(c.layers[i].mixer, mixers[i] == 'D' ? QN_MIXER_DELTA : QN_MIXER_ATTENTION);
    qn_config_free(&c);
}

static void gated_delta(void **state)
{
    qn_model_config c;
    read_ok("models/qwen3_5", "{}", &c);
    assert_string_equal(c.architecture, "qwen3_5_text");
    assert_int_equal(c.delta.linear_num_key_heads, 2);
    assert_int_equal(c.delta.linear_num_value_heads, 4);
    assert_int_equal(c.delta.linear_key_head_dim, 16);
    assert_int_equal(c.delta.linear_value_head_dim, 16);
    assert_int_equal(c.delta.linear_conv_kernel_dim, 4);
    assert_int_equal(c.delta.by_head, 0);
    assert_int_equal(c.attn_output_gate, 1);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.num_key_value_heads, 2);
    assert_int_equal(c.rope[0].rotary_dim, 8);
    assert_int_equal(c.tie_word_embeddings, 1);
    assert_true(c.norm_offset == 1);
    assert_int_equal(c.qk_norm, QN_QK_NORM_HEAD);
    qn_config_free(&c);
    /* what the class takes where nothing is said */
    read_ok(
        "models/qwen3_5",
        "{\"linear_conv_kernel_dim\": null, \"linear_key_head_dim\": null, \"linear_value_head_dim\": null,"
        " \"linear_num_key_heads\": null, \"linear_num_value_heads\": null, \"num_key_value_heads\": null,"
        " \"head_dim\": null, \"rms_norm_eps\": null, \"rope_parameters\": null,"
        " \"max_position_embeddings\": null, \"num_attention_heads\": null}",
        &c);
    assert_int_equal(c.delta.linear_num_key_heads, 16);
    assert_int_equal(c.delta.linear_num_value_heads, 32);
    assert_int_equal(c.delta.linear_key_head_dim, 128);
    assert_int_equal(c.delta.linear_value_head_dim, 128);
    assert_int_equal(c.delta.linear_conv_kernel_dim, 4);
    assert_int_equal(c.num_attention_heads, 16);
    assert_int_equal(c.num_key_value_heads, 4);
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.rope[0].rotary_dim, 64);
    assert_int_equal(c.max_position_embeddings, 32768);
    qn_config_free(&c);
}

static void gated_delta_with_experts(void **state)
{
    qn_model_config c;
    read_ok("models/qwen3_next", "{}", &c);
    assert_int_equal(c.delta.by_head, 1);
    assert_int_equal(c.attn_output_gate, 1);
    assert_int_equal(c.experts.num_experts, 8);
    assert_int_equal(c.experts.num_experts_per_tok, 2);
    assert_int_equal(c.experts.shared_intermediate_size, 32);
    assert_int_equal(c.experts.shared_gate, 1);
    assert_int_equal(c.experts.norm_topk_prob, 1);
    assert_int_equal(c.rope[0].rotary_dim, 8);
    for (int i = 0; i < 4; i++) assert_true(c.layers[i].has_experts && !c.layers[i].has_mlp);
    qn_config_free(&c);
    read_ok("models/qwen3_next",
            "{\"num_experts\": null, \"num_experts_per_tok\": null, \"moe_intermediate_size\": null,"
            " \"shared_expert_intermediate_size\": null, \"norm_topk_prob\": null,"
            " \"partial_rotary_factor\": null, \"num_key_value_heads\": null}",
            &c);
    assert_int_equal(c.experts.num_experts, 512);
    assert_int_equal(c.experts.num_experts_per_tok, 10);
    assert_int_equal(c.experts.moe_intermediate_size, 512);
    assert_int_equal(c.experts.shared_intermediate_size, 512);
    assert_int_equal(c.experts.norm_topk_prob, 1);
    assert_int_equal(c.num_key_value_heads, 2);
    assert_int_equal(c.rope[0].rotary_dim, 8);
    qn_config_free(&c);
}

static void latent(void **state)
{
    qn_model_config c;
    double m = 0.1 * log(4) + 1;
    read_ok("models/deepseek_v3", "{}", &c);
    assert_int_equal(c.latent.q_lora_rank, 32);
    assert_int_equal(c.latent.kv_lora_rank, 24);
    assert_int_equal(c.latent.qk_nope_head_dim, 16);
    assert_int_equal(c.latent.qk_rope_head_dim, 8);
    assert_int_equal(c.latent.v_head_dim, 16);
    assert_int_equal(c.rope[0].rotary_dim, 8);
    assert_int_equal(c.rope[0].type, QN_ROPE_YARN);
    close_to(c.rope[0].attention_factor, 1);
    close_to(c.attention_scale, m * m / sqrt(24));
    assert_int_equal(c.rope_interleaved, 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(c.layers[i].mixer, QN_MIXER_LATENT);
        assert_int_equal(c.layers[i].num_key_value_heads, 1);
        assert_int_equal(c.layers[i].head_dim, 32);
        assert_int_equal(c.layers[i].v_head_dim, 24);
        assert_int_equal(c.layers[i].has_experts, i >= 1);
    }
    assert_int_equal(c.experts.num_experts, 8);
    assert_int_equal(c.experts.n_group, 4);
    assert_int_equal(c.experts.topk_group, 2);
    assert_int_equal(c.experts.score, QN_SCORE_SIGMOID);
    assert_int_equal(c.experts.correction_bias, 1);
    assert_int_equal(c.experts.shared_intermediate_size, 32);
    close_to(c.experts.routed_scaling_factor, 2.5);
    qn_config_free(&c);
    /* what the class takes where nothing is said; null for q_lora_rank says that there is none */
    read_ok("models/deepseek_v3",
            "{\"q_lora_rank\": \"null\", \"kv_lora_rank\": null, \"qk_nope_head_dim\": null, \"v_head_dim\": "
            "null,"
            " \"qk_rope_head_dim\": null, \"rope_scaling\": null, \"num_key_value_heads\": null,"
            " \"rope_interleave\": false, \"first_k_dense_replace\": null, \"routed_scaling_factor\": null}",
            &c);
    assert_int_equal(c.latent.q_lora_rank, 0);
    assert_int_equal(c.latent.kv_lora_rank, 512);
    assert_int_equal(c.latent.qk_nope_head_dim, 128);
    assert_int_equal(c.latent.qk_rope_head_dim, 64);
    assert_int_equal(c.latent.v_head_dim, 128);
    close_to(c.attention_scale, 1 / sqrt(192));
    assert_int_equal(c.rope_interleaved, 0);
    assert_int_equal(c.layers[2].has_experts, 0);
    assert_int_equal(c.layers[3].has_experts, 1);
    qn_config_free(&c);
    read_ok("models/deepseek_v3", "{\"q_lora_rank\": null}", &c);
    assert_int_equal(c.latent.q_lora_rank, 1536);
    qn_config_free(&c);
    read_ok("models/deepseek_v3", "{\"rope_scaling\": {\"mscale_all_dim\": 0.5}}", &c);
    close_to(c.attention_scale, (0.05 * log(4) + 1) * (0.05 * log(4) + 1) / sqrt(24));
    close_to(c.rope[0].attention_factor, m / (0.05 * log(4) + 1));
    qn_config_free(&c);
    read_ok("models/deepseek_v3", "{\"rope_scaling\": {\"mscale_all_dim\": null}}", &c);
    close_to(c.attention_scale, 1 / sqrt(24));
    close_to(c.rope[0].attention_factor, m);
    qn_config_free(&c);
}

/* Sizes of a model of GLM 5.3 Flash's family, whatever those of the fixture are. */
#define HYPER_SIZES                                                                                 \
    "\"num_hidden_layers\": 4, \"hc_eps\": 1e-6, \"rms_norm_eps\": 1e-5, \"qk_nope_head_dim\": 12," \
    " \"qk_rope_head_dim\": 0, \"qk_head_dim\": 12, \"kv_lora_rank\": 20, \"indexer_types\": null"

static void read_hyper(const char *more, qn_model_config *c)
{
    char patch[1024];
    snprintf(patch, sizeof patch, "{\"text_config\": {" HYPER_SIZES ", %s}}", more);
    read_ok("models/glm5_next", patch, c);
}

/* Streams, decays that are held, latents without a rotated part, layers by their names. */
static void hyper_connections(void **state)
{
    qn_model_config c;
    read_hyper("\"hc_mult\": 3, \"hc_sinkhorn_iters\": 7, \"linear_lower_bound\": -4, \"swiglu_limit\": 1.5, "
               "\"layer_types\": [\"linear_attention\", \"linear_attention\", \"linear_attention\", "
               "\"indexed_attention\"], \"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\", \"sparse\"]",
               &c);
    assert_string_equal(c.architecture, "glm5_next");
    assert_int_equal(c.hyper.kind, QN_HYPER_SINKHORN);
    assert_int_equal(c.hyper.hc_count, 3);
    assert_int_equal(c.hyper.hc_sinkhorn_iters, 7);
    close_to(c.hyper.hc_eps, 1e-6);
    close_to(c.delta.lower_bound, -4);
    close_to(c.mlp_limit, 1.5);
    close_to(c.attention_scale, 1 / sqrt(12));
    close_to(c.latent.norm_eps, 1e-5);
    assert_int_equal(c.n_rope, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(c.layers[i].mixer, i == 3 ? QN_MIXER_LATENT : QN_MIXER_CHANNEL_DELTA);
        assert_int_equal(c.layers[i].has_experts, i > 0);
        assert_int_equal(c.layers[i].indexed, i == 3);
    }
    assert_int_equal(c.layers[3].head_dim, 20);
    qn_config_free(&c);
    /* What the class takes where nothing is said, and the older spelling of the decay's limit. */
    read_hyper(
        "\"hc_mult\": null, \"hc_sinkhorn_iters\": null, \"swiglu_limit\": null, \"layer_types\": null, "
        "\"mlp_layer_types\": null, \"linear_attn_config\": {\"gate_lower_bound\": -2.5}",
        &c);
    assert_int_equal(c.hyper.hc_count, 4);
    assert_int_equal(c.hyper.hc_sinkhorn_iters, 20);
    close_to(c.mlp_limit, 10);
    close_to(c.delta.lower_bound, -2.5);
    assert_int_equal(c.layers[3].mixer, QN_MIXER_LATENT);
    assert_int_equal(c.layers[2].mixer, QN_MIXER_CHANNEL_DELTA);
    assert_int_equal(c.layers[2].has_experts, 0);
    assert_int_equal(c.layers[3].has_experts, 1);
    qn_config_free(&c);
}

/* "null": the key is there, without a value. */
static void limit_of_decays(void **state)
{
    static const struct {
        const char *more;
        double limit;
    } cases[] = {{"\"linear_lower_bound\": \"null\"", 0},
                 {"\"linear_lower_bound\": \"null\", \"linear_attn_config\": {}", -5},
                 {"\"linear_lower_bound\": \"null\", \"linear_attn_config\": {\"safe_gate\": false}", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[256];
        qn_model_config c;
        snprintf(more, sizeof more, "\"layer_types\": null, \"mlp_layer_types\": null, %s", cases[i].more);
        read_hyper(more, &c);
        if (c.delta.lower_bound != cases[i].limit) fail_msg("%s: %g", cases[i].more, c.delta.lower_bound);
        qn_config_free(&c);
    }
}

static void which_layers(void **state)
{
    mixers_are("models/qwen3_5", "{}", "DDDA");
    mixers_are("models/qwen3_5", "{\"full_attention_interval\": null}", "DDDA");
    mixers_are("models/qwen3_5", "{\"full_attention_interval\": 2}", "DADA");
    mixers_are("models/qwen3_5", "{\"full_attention_interval\": 1}", "AAAA");
    mixers_are("models/qwen3_5", "{\"full_attention_interval\": 5}", "DDDD");
    mixers_are("models/qwen3_5",
               "{\"full_attention_interval\": 2, \"layer_types\": [\"full_attention\", \"linear_attention\","
               " \"linear_attention\", \"linear_attention\"]}",
               "ADDD");
}

static void refusals(void **state)
{
    static const struct {
        const char *fixture, *patch;
        qn_status status;
        const char *words;
    } cases[] = {
        {"models/qwen3_5", "{\"linear_num_key_heads\": 0}", QN_E_FORMAT, "linear_num_key_heads is 0"},
        {"models/qwen3_5", "{\"linear_num_key_heads\": 1e9}", QN_E_FORMAT, "linear_num_key_heads is"},
        {"models/qwen3_5", "{\"linear_num_key_heads\": 3}", QN_E_FORMAT,
         "linear_num_value_heads 4 is not a multiple of linear_num_key_heads 3"},
        {"models/qwen3_5", "{\"linear_num_value_heads\": -4}", QN_E_FORMAT, "linear_num_value_heads is -4"},
        {"models/qwen3_5", "{\"linear_num_value_heads\": 65537}", QN_E_FORMAT,
         "linear_num_value_heads is 65537"},
        {"models/qwen3_5", "{\"linear_key_head_dim\": 0}", QN_E_FORMAT, "linear_key_head_dim is 0"},
        {"models/qwen3_5", "{\"linear_key_head_dim\": 16.5}", QN_E_FORMAT, "linear_key_head_dim is 16.5"},
        {"models/qwen3_5", "{\"linear_value_head_dim\": 4294967296}", QN_E_FORMAT,
         "linear_value_head_dim is"},
        {"models/qwen3_5", "{\"linear_value_head_dim\": \"16\"}", QN_E_FORMAT,
         "linear_value_head_dim is a string"},
        {"models/qwen3_5", "{\"linear_conv_kernel_dim\": 0}", QN_E_FORMAT, "linear_conv_kernel_dim is 0"},
        {"models/qwen3_5", "{\"linear_conv_kernel_dim\": 1025}", QN_E_FORMAT,
         "linear_conv_kernel_dim is 1025"},
        {"models/qwen3_5", "{\"full_attention_interval\": 0}", QN_E_FORMAT, "full_attention_interval is 0"},
        {"models/qwen3_5", "{\"full_attention_interval\": []}", QN_E_FORMAT,
         "full_attention_interval is an array"},
        {"models/qwen3_5", "{\"attn_output_gate\": 1}", QN_E_FORMAT, "attn_output_gate is a number"},
        {"models/qwen3_5", "{\"layer_types\": [\"linear_attention\"]}", QN_E_FORMAT,
         "layer_types: expected an array of num_hidden_layers (4)"},
        {"models/qwen3_5",
         "{\"layer_types\": [\"linear_attention\", \"mamba\", \"full_attention\", \"full_attention\"]}",
         QN_E_UNSUPPORTED,
         "layer_types[1] is \"mamba\", which is not supported (known: full_attention, sliding_attention, "
         "linear_attention)"},
        {"models/qwen3_tied",
         "{\"layer_types\": [\"linear_attention\", \"full_attention\", \"full_attention\","
         " \"full_attention\"]}",
         QN_E_UNSUPPORTED, "layer_types[0] is \"linear_attention\", which is not supported"},
        {"models/qwen3_5", "{\"rope_parameters\": {\"partial_rotary_factor\": 0.01}}", QN_E_FORMAT,
         "0 of 32 head dimensions"},
        {"models/deepseek_v3", "{\"q_lora_rank\": 0}", QN_E_FORMAT, "q_lora_rank is 0"},
        {"models/deepseek_v3", "{\"q_lora_rank\": -32}", QN_E_FORMAT, "q_lora_rank is -32"},
        {"models/deepseek_v3", "{\"kv_lora_rank\": 0}", QN_E_FORMAT, "kv_lora_rank is 0"},
        {"models/deepseek_v3", "{\"kv_lora_rank\": \"null\"}", QN_E_FORMAT, "kv_lora_rank is missing"},
        {"models/deepseek_v3", "{\"kv_lora_rank\": 1e12}", QN_E_FORMAT, "kv_lora_rank is"},
        {"models/deepseek_v3", "{\"qk_nope_head_dim\": 0}", QN_E_FORMAT, "qk_nope_head_dim is 0"},
        {"models/deepseek_v3", "{\"qk_rope_head_dim\": 7}", QN_E_FORMAT,
         "qk_rope_head_dim is 7, expected an even number"},
        {"models/deepseek_v3", "{\"qk_rope_head_dim\": 0}", QN_E_FORMAT, "qk_rope_head_dim is 0"},
        {"models/deepseek_v3", "{\"v_head_dim\": 65537}", QN_E_FORMAT, "v_head_dim is 65537"},
        {"models/deepseek_v3", "{\"num_key_value_heads\": 2}", QN_E_FORMAT,
         "num_key_value_heads is 2, expected num_attention_heads (4)"},
        {"models/deepseek_v3", "{\"rope_interleave\": 1}", QN_E_FORMAT, "rope_interleave is a number"},
        {"models/deepseek_v3", "{\"num_nextn_predict_layers\": -1}", QN_E_FORMAT,
         "num_nextn_predict_layers is -1"},
        {"models/deepseek_v3", "{\"rope_scaling\": {\"mscale_all_dim\": -1}}", QN_E_FORMAT,
         "mscale_all_dim is -1"},
        {"models/deepseek_v3", "{\"n_group\": 3}", QN_E_FORMAT, "8 experts are not a multiple of n_group 3"},
        {"models/deepseek_v3", "{\"topk_group\": 5}", QN_E_FORMAT, "topk_group is 5"},
        {"models/deepseek_v3", "{\"scoring_func\": \"softmax\"}", QN_E_UNSUPPORTED,
         "scoring_func is \"softmax\""},
        {"models/deepseek_v3", "{\"scoring_func\": 1}", QN_E_FORMAT, "scoring_func"},
        {"models/deepseek_v3", "{\"topk_method\": \"greedy\"}", QN_E_UNSUPPORTED,
         "topk_method is \"greedy\""},
        {"models/glm5_next", "{\"text_config\": {\"hc_mult\": 9}}", QN_E_FORMAT, "hc_mult is 9"},
        {"models/glm5_next", "{\"text_config\": {\"hc_sinkhorn_iters\": 0}}", QN_E_FORMAT,
         "hc_sinkhorn_iters is 0"},
        {"models/glm5_next", "{\"text_config\": {\"linear_lower_bound\": 0}}", QN_E_FORMAT,
         "linear_lower_bound is 0"},
        {"models/glm5_next", "{\"text_config\": {\"qk_rope_head_dim\": 8}}", QN_E_FORMAT,
         "qk_rope_head_dim is 8"},
        {"models/glm5_next", "{\"text_config\": {\"hidden_act\": \"gelu\"}}", QN_E_UNSUPPORTED,
         "(known: silu)"},
        {"models/glm5_next", "{\"text_config\": {\"layer_types\": [\"conv\", \"conv\", \"conv\", \"conv\"]}}",
         QN_E_UNSUPPORTED, "(known: full_attention, indexed_attention, linear_attention)"},
        {"models/deepseek_v3", "{\"routed_scaling_factor\": 0}", QN_E_FORMAT, "routed_scaling_factor is 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_model_config c;
        if (!qn_test_fixture(cases[i].fixture)) continue; /* one of the larger set */
        qn_status status = read_patched(cases[i].fixture, cases[i].patch, &c);
        if (status != cases[i].status || !strstr(qn_last_error(), cases[i].words) ||
            !strstr(qn_last_error(), "config.json"))
            fail_msg("%s: %s: %s", cases[i].patch, qn_status_name(status), qn_last_error());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gated_delta),     cmocka_unit_test(gated_delta_with_experts),
        cmocka_unit_test(latent),          cmocka_unit_test(hyper_connections),
        cmocka_unit_test(limit_of_decays), cmocka_unit_test(which_layers),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
