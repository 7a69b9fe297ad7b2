/* Configurations that are refused: which, and what the sentence names. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_broken_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
