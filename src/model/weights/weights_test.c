#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "model/weights/weights.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"

/* Opens a copy with changes. */
static qn_status open_edited(const char *fixture, const char *patch, const qn_test_tensor_edit *edits,
                             qn_test_weights *out)
{
    char dir[QN_TEST_DIR_MAX];
    qn_test_model_copy(qn_test_need_fixture(fixture), patch, edits, dir);
    qn_status status = qn_test_weights_open(dir, out);
    qn_test_model_remove(dir);
    return status;
}

/* Has the model the roles that its config asks for, in every layer? */
static void check_whole(const qn_test_weights *m, const char *name)
{
    const qn_model_config *c = &m->config;
    static const qn_weight_role always[] = {QN_WEIGHT_Q, QN_WEIGHT_O};
    static const qn_weight_role dense[] = {QN_WEIGHT_GATE, QN_WEIGHT_UP, QN_WEIGHT_DOWN};
    static const qn_weight_role expert[] = {QN_WEIGHT_ROUTER, QN_WEIGHT_EXPERT_GATE, QN_WEIGHT_EXPERT_UP,
                                            QN_WEIGHT_EXPERT_DOWN};
    static const qn_weight_role recurrent[] = {QN_WEIGHT_CONV, QN_WEIGHT_DELTA_DT_BIAS, QN_WEIGHT_DELTA_A_LOG,
                                               QN_WEIGHT_DELTA_NORM, QN_WEIGHT_DELTA_OUT};
    static const qn_weight_role latent[] = {QN_WEIGHT_LATENT_KV_A, QN_WEIGHT_LATENT_KV_A_NORM,
                                            QN_WEIGHT_LATENT_K_B, QN_WEIGHT_LATENT_V_B};
    static const struct {
        unsigned bit;
        qn_weight_role role;
    } norms[] = {{QN_NORM_PRE_ATTN, QN_WEIGHT_ATTN_NORM},
                 {QN_NORM_POST_ATTN, QN_WEIGHT_POST_ATTN_NORM},
                 {QN_NORM_PRE_FFN, QN_WEIGHT_FFN_NORM},
                 {QN_NORM_POST_FFN, QN_WEIGHT_POST_FFN_NORM}};
    int has_inputs = c->hidden_size_per_layer_input > 0;
    const int n_streams = (int)c->altup_num_inputs - 1, n_most = QN_WEIGHT_ALTUP_OUT - QN_WEIGHT_ALTUP_IN;
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++) {
        if (role >= QN_WEIGHT_ALTUP_IN) {
            assert_int_equal(qn_weights_get(m->weights, (qn_weight_role)role, 0) != NULL,
                             (role - QN_WEIGHT_ALTUP_IN) % n_most < n_streams);
            continue;
        }
        if (role >= QN_WEIGHT_POSITION_EMBED && role <= QN_WEIGHT_CLASSIFY_OUT_BIAS) { /* of encoders */
            assert_null(qn_weights_get(m->weights, (qn_weight_role)role, 0));
            continue;
        }
        const int is_expected = role == QN_WEIGHT_FINAL_NORM_BIAS ? c->norm_bias
                                : role == QN_WEIGHT_LM_HEAD_BIAS
                                    ? c->head_bias
                                    : role < QN_WEIGHT_LAYER_INPUT_EMBED || has_inputs;
        assert_int_equal(qn_weights_get(m->weights, (qn_weight_role)role, 0) != NULL, is_expected);
    }
    assert_int_equal(qn_weights_tied(m->weights), c->tie_word_embeddings);
    for (int64_t l = 0; l < c->num_hidden_layers; l++) {
        const int attends = c->layers[l].mixer == QN_MIXER_ATTENTION;
        for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
            if (!qn_weights_get(m->weights, always[i], l) && attends)
                fail_msg("%s: layer %d, role %d", name, (int)l, (int)always[i]);
        for (size_t i = 0; i < sizeof dense / sizeof dense[0]; i++)
            assert_int_equal(qn_weights_get(m->weights, dense[i], l) != NULL,
                             c->layers[l].has_mlp && !(c->plain_mlp && dense[i] == QN_WEIGHT_GATE));
        for (size_t i = 0; i < sizeof expert / sizeof expert[0]; i++)
            assert_int_equal(qn_weights_get(m->weights, expert[i], l) != NULL, c->layers[l].has_experts);
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_EXPERT_UP_BIAS, l) != NULL, c->experts.bias);
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_SINKS, l) != NULL, c->attention_sinks);
        int has_keys = attends && c->layers[l].kv_layer == l;
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_K, l) != NULL, has_keys);
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_V, l) != NULL,
                         has_keys && !c->layers[l].value_is_key);
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_LAYER_INPUT_GATE, l) != NULL, has_inputs);
        for (size_t i = 0; i < sizeof recurrent / sizeof recurrent[0]; i++)
            assert_int_equal(qn_weights_get(m->weights, recurrent[i], l) != NULL,
                             c->layers[l].mixer == QN_MIXER_DELTA);
        for (size_t i = 0; i < sizeof latent / sizeof latent[0]; i++)
            assert_int_equal(qn_weights_get(m->weights, latent[i], l) != NULL,
                             c->layers[l].mixer == QN_MIXER_LATENT);
        for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++)
            assert_int_equal(qn_weights_get(m->weights, norms[i].role, l) != NULL,
                             (c->norms & norms[i].bit) != 0);
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_Q_NORM, l) != NULL,
                         attends && (c->qk_norm == QN_QK_NORM_HEAD || c->qk_norm == QN_QK_NORM_WHOLE));
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_V_BIAS, l) != NULL, c->attention_bias);
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_O_BIAS, l) != NULL, c->attention_output_bias);
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_DOWN_BIAS, l) != NULL, c->mlp_bias);
        if (!attends) continue;
        assert_int_equal(qn_weights_get(m->weights, QN_WEIGHT_Q, l)->shape[0],
                         c->num_attention_heads * c->layers[l].head_dim * (1 + c->attn_output_gate));
    }
    assert_null(qn_weights_get(m->weights, QN_WEIGHT_Q, c->num_hidden_layers));
}

static void test_fixtures(void **state)
{
    static const char *const names[] = {"llama",
                                        "seed_oss",
                                        "glm4_moe",
                                        "glm4_moe_lite",
                                        "minimax_m2",
                                        "exaone4",
                                        "olmo3",
                                        "ministral3",
                                        "mistral4",
                                        "glm4",
                                        "hunyuan_v1_dense",
                                        "deepseek_v2",
                                        "apertus",
                                        "starcoder2",
                                        "phi2",
                                        "cohere2",
                                        "llama4",
                                        "muse_glimmer",
                                        "llama_rope3_tied",
                                        "llama_head_dim",
                                        "mistral",
                                        "qwen2",
                                        "qwen3",
                                        "qwen2_yarn",
                                        "qwen2_window",
                                        "gemma",
                                        "gemma2",
                                        "gemma3",
                                        "qwen3_tied",
                                        "qwen3_no_model_type",
                                        "gemma3_text",
                                        "deepseek_r1_distill",
                                        "smollm3",
                                        "olmo2",
                                        "phi3",
                                        "gemma4_text",
                                        "gemma4",
                                        "gemma4_k_eq_v",
                                        "gemma4_moe",
                                        "qwen3_5",
                                        "qwen3_next",
                                        "deepseek_v3",
                                        "qwen3_moe",
                                        "mixtral",
                                        "gpt_oss"};
    int n = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char relative[96];
        qn_test_weights m;
        snprintf(relative, sizeof relative, "models/%s", names[i]);
        const char *path = qn_test_fixture(relative);
        if (!path) continue;
        if (qn_test_weights_open(path, &m) != QN_OK) fail_msg("%s: %s", names[i], qn_last_error());
        check_whole(&m, names[i]);
        qn_test_weights_close(&m);
        n++;
    }
    if (n == 0) qn_test_leave_out("no fixture of models is there (QUERN_FIXTURES)");
}

static void test_gguf(void **state)
{
    static const char *const names[] = {"llama-F32",    "llama-Q4_K_M", "llama-Q8_0", "qwen3-F16",
                                        "qwen3-Q4_K_M", "gemma3-Q4_0",  "gemma3-Q8_0"};
    qn_test_weights m;
    qn_test_need_fixture("quant/gguf_models/llama-F32.gguf");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char relative[96];
        snprintf(relative, sizeof relative, "quant/gguf_models/%s.gguf", names[i]);
        if (qn_test_weights_open(qn_test_need_fixture(relative), &m) != QN_OK)
            fail_msg("%s: %s", names[i], qn_last_error());
        check_whole(&m, names[i]);
        qn_test_weights_close(&m);
    }
    assert_int_equal(qn_test_weights_open(qn_test_need_fixture("quant/gguf_models/qwen2-Q5_K_M.gguf"), &m),
                     QN_OK);
    assert_non_null(qn_weights_get(m.weights, QN_WEIGHT_Q_BIAS, 1));
    assert_true(qn_weights_tied(m.weights));
    qn_test_weights_close(&m);
}

static void test_real_models(void **state)
{
    static const char *const names[] = {"smollm2", "gemma3-270m"};
    for (int i = 0; i < 2; i++) {
        qn_test_weights m;
        if (qn_test_weights_open(qn_test_need_model(names[i]), &m) != QN_OK)
            fail_msg("%s: %s", names[i], qn_last_error());
        check_whole(&m, names[i]);
        qn_test_weights_close(&m);
    }
}

static void test_head_of_its_own(void **state)
{
    /* A separate head is used even where the config ties. */
    const qn_test_tensor_edit add[] = {{"model.embed_tokens.weight", QN_TEST_COPY, "lm_head.weight"},
                                       {NULL, 0, NULL}};
    const qn_test_tensor_edit drop[] = {{"lm_head.weight", QN_TEST_DROP, NULL}, {NULL, 0, NULL}};
    qn_test_weights m;
    assert_int_equal(open_edited("models/llama_rope3_tied", NULL, add, &m), QN_OK);
    assert_int_equal(m.config.tie_word_embeddings, 1);
    assert_false(qn_weights_tied(m.weights));
    assert_string_equal(qn_weights_get(m.weights, QN_WEIGHT_LM_HEAD, 0)->name, "lm_head.weight");
    qn_test_weights_close(&m);
    assert_int_equal(open_edited("models/llama", "{\"tie_word_embeddings\": true}", drop, &m), QN_OK);
    assert_true(qn_weights_tied(m.weights));
    assert_ptr_equal(qn_weights_get(m.weights, QN_WEIGHT_LM_HEAD, 0),
                     qn_weights_get(m.weights, QN_WEIGHT_EMBED, 0));
    qn_test_weights_close(&m);
    assert_int_equal(open_edited("models/llama", "{\"tie_word_embeddings\": null}", drop, &m), QN_OK);
    assert_true(qn_weights_tied(m.weights));
    qn_test_weights_close(&m);
    assert_int_equal(open_edited("models/llama", NULL, drop, &m), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "lm_head.weight is missing, expected with shape [640, 64]"));
}

/* Every kind of tensor, deleted once per family, is missed by its name. */
static void test_each_tensor_missing(void **state)
{
    static const char *const families[] = {
        "llama",         "llama_head_dim",   "qwen2",       "qwen3",      "gemma2",        "gemma3_text",
        "gemma3",        "smollm3",          "olmo2",       "phi3",       "phi3_longrope", "gemma4_text",
        "gemma4_k_eq_v", "gemma4_moe",       "qwen3_5",     "qwen3_next", "deepseek_v3",   "qwen3_moe",
        "mixtral",       "gpt_oss",          "qwen2_vl",    "granite",    "seed_oss",      "glm4_moe",
        "glm4_moe_lite", "minimax_m2",       "exaone4",     "olmo3",      "ministral3",    "mistral4",
        "glm4",          "hunyuan_v1_dense", "deepseek_v2", "apertus",    "starcoder2",    "phi2",
        "cohere2",       "llama4",           "muse_glimmer"};
    int n = 0;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        char relative[96];
        qn_test_weights whole;
        snprintf(relative, sizeof relative, "models/%s", families[f]);
        if (!qn_test_fixture(relative)) continue;
        assert_int_equal(qn_test_weights_open(qn_test_fixture(relative), &whole), QN_OK);
        for (int role = 0; role < QN_WEIGHT_ROLE_COUNT; role++) {
            int64_t layer = role < QN_WEIGHT_MODEL_COUNT ? 0 : whole.config.num_hidden_layers - 1;
            const qn_tensor_view *v = qn_weights_get(whole.weights, (qn_weight_role)role, layer);
            while (!v && layer > 0) v = qn_weights_get(whole.weights, (qn_weight_role)role, --layer);
            if (!v || (role == QN_WEIGHT_LM_HEAD && qn_weights_tied(whole.weights))) continue;
            if (v->whole) v = v->whole;
            const qn_test_tensor_edit drop[] = {{v->name, QN_TEST_DROP, NULL}, {NULL, 0, NULL}};
            if (role == QN_WEIGHT_LAYER_SCALE) continue; /* without one a layer is not scaled */
            qn_test_weights m;
            char words[160];
            snprintf(words, sizeof words, "tensor %s is missing, expected with shape [%lld", v->name,
                     (long long)v->shape[0]);
            qn_status status = open_edited(relative, NULL, drop, &m);
            /* Without its embedding a file's prefix is not known: the plain one is named. */
            if (role == QN_WEIGHT_EMBED)
                snprintf(words, sizeof words, "embed_tokens.weight is missing, expected with shape [");
            if (status != QN_E_FORMAT || !strstr(qn_last_error(), words) ||
                !strstr(qn_last_error(), "model.safetensors"))
                fail_msg("%s without %s: %s: %s", families[f], v->name, qn_status_name(status),
                         qn_last_error());
            n++;
        }
        qn_test_weights_close(&whole);
    }
    if (n == 0) qn_test_leave_out("no fixture of models is there (QUERN_FIXTURES)");
}

static void test_shapes(void **state)
{
    static const struct {
        const char *fixture, *patch, *words;
    } cases[] = {
        {"models/llama", "{\"num_hidden_layers\": 2}", "belongs to layer 2, but num_hidden_layers is 2"},
        {"models/llama", "{\"vocab_size\": 641}",
         "model.safetensors: tensor model.embed_tokens.weight: shape [640, 64], expected [641, 64]"},
        {"models/llama", "{\"hidden_size\": 128}", "shape [640, 64], expected [640, 128]"},
        {"models/llama", "{\"intermediate_size\": 64}",
         "tensor model.layers.0.mlp.gate_proj.weight: shape [128, 64], expected [64, 64]"},
        {"models/llama", "{\"num_key_value_heads\": 4}",
         "tensor model.layers.0.self_attn.k_proj.weight: shape [32, 64], expected [64, 64]"},
        {"models/llama", "{\"head_dim\": 32}",
         "tensor model.layers.0.self_attn.q_proj.weight: shape [64, 64], expected [128, 64]"},
        {"models/llama", "{\"num_hidden_layers\": 5}",
         "tensor model.layers.4.input_layernorm.weight is missing, expected with shape [64]"},
        {"models/llama", "{\"attention_bias\": true}",
         "tensor model.layers.0.self_attn.q_proj.bias is missing, expected with shape [64]"},
        {"models/qwen3", "{\"head_dim\": 64, \"num_attention_heads\": 2, \"num_key_value_heads\": 1}",
         "tensor model.layers.0.self_attn.q_norm.weight: shape [32], expected [64]"},
        {"models/olmo2", "{\"num_key_value_heads\": 4}",
         "tensor model.layers.0.self_attn.k_proj.weight: shape [32, 64], expected [64, 64]"},
        {"models/phi3", "{\"num_key_value_heads\": 2}",
         "tensor model.layers.0.self_attn.qkv_proj.weight: shape [192, 64], expected [128, 64]"},
        {"models/qwen3_moe", "{\"num_experts\": 9}",
         "tensor model.layers.0.mlp.gate.weight: shape [8, 64], expected [9, 64]"},
        {"models/qwen3_moe", "{\"moe_intermediate_size\": 31}",
         "tensor model.layers.0.mlp.experts.0.gate_proj.weight: shape [32, 64], expected [31, 64]"},
        {"models/qwen3_moe", "{\"mlp_only_layers\": [2]}",
         "tensor model.layers.2.mlp.gate_proj.weight is missing, expected with shape [128, 64]"},
        {"models/gemma4_moe", "{\"moe_intermediate_size\": 25}",
         "tensor model.layers.0.experts.gate_up_proj: shape [6, 48, 64], expected [6, 50, 64]"},
        {"models/gemma4_moe", "{\"num_experts\": 7}",
         "tensor model.layers.0.router.proj.weight: shape [6, 64], expected [7, 64]"},
        {"models/gpt_oss", "{\"intermediate_size\": 32}",
         "tensor model.layers.0.mlp.experts.gate_up_proj: shape [4, 64, 96], expected [4, 64, 64]"},
        {"models/qwen3_5", "{\"linear_num_key_heads\": 4}",
         "tensor model.layers.0.linear_attn.in_proj_qkv.weight: shape [128, 64], expected [192, 64]"},
        {"models/qwen3_5", "{\"linear_num_value_heads\": 2}",
         "tensor model.layers.0.linear_attn.in_proj_qkv.weight: shape [128, 64], expected [96, 64]"},
        {"models/qwen3_5", "{\"linear_conv_kernel_dim\": 5}",
         "tensor model.layers.0.linear_attn.conv1d.weight: shape [128, 1, 4], expected [128, 1, 5]"},
        {"models/qwen3_5", "{\"full_attention_interval\": 2}",
         "tensor model.layers.1.self_attn.q_proj.weight is missing, expected with shape [256, 64]"},
        {"models/qwen3_next", "{\"linear_num_value_heads\": 2}",
         "tensor model.layers.0.linear_attn.in_proj_qkvz.weight: shape [192, 64], expected [128, 64]"},
        {"models/qwen3_next", "{\"shared_expert_intermediate_size\": 48}",
         "tensor model.layers.0.mlp.shared_expert.gate_proj.weight: shape [32, 64], expected [48, 64]"},
        {"models/deepseek_v3", "{\"q_lora_rank\": 16}",
         "tensor model.layers.0.self_attn.q_a_proj.weight: shape [32, 64], expected [16, 64]"},
        {"models/deepseek_v3", "{\"q_lora_rank\": \"null\"}",
         "tensor model.layers.0.self_attn.q_proj.weight is missing, expected with shape [96, 64]"},
        {"models/deepseek_v3", "{\"kv_lora_rank\": 16}",
         "tensor model.layers.0.self_attn.kv_a_proj_with_mqa.weight: shape [32, 64], expected [24, 64]"},
        {"models/deepseek_v3", "{\"qk_nope_head_dim\": 24}",
         "tensor model.layers.0.self_attn.q_b_proj.weight: shape [96, 32], expected [128, 32]"},
        {"models/deepseek_v3", "{\"v_head_dim\": 24}",
         "tensor model.layers.0.self_attn.o_proj.weight: shape [64, 64], expected [64, 96]"},
        {"models/deepseek_v3", "{\"num_hidden_layers\": 3}",
         "belongs to layer 3, but num_hidden_layers is 3"},
        {"models/deepseek_v3", "{\"first_k_dense_replace\": 2}",
         "tensor model.layers.1.mlp.gate_proj.weight is missing, expected with shape [128, 64]"},
        {"models/qwen3_5", "{\"attn_output_gate\": false}",
         "tensor model.layers.3.self_attn.q_proj.weight: shape [256, 64], expected [128, 64]"},
        {"models/phi3", "{\"intermediate_size\": 127}",
         "tensor model.layers.0.mlp.gate_up_proj.weight: shape [256, 64], expected [254, 64]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_test_weights m;
        qn_status status = open_edited(cases[i].fixture, cases[i].patch, NULL, &m);
        if (status != QN_E_FORMAT || !strstr(qn_last_error(), cases[i].words))
            fail_msg("%s: %s: %s", cases[i].patch, qn_status_name(status), qn_last_error());
    }
}

static void test_dimensions_and_types(void **state)
{
    const qn_test_tensor_edit flat[] = {{"model.norm.weight", QN_TEST_FLATTEN, NULL}, {NULL, 0, NULL}};
    const qn_test_tensor_edit integers[] = {{"model.layers.1.mlp.up_proj.weight", QN_TEST_RETYPE, NULL},
                                            {NULL, 0, NULL}};
    qn_test_weights m;
    assert_int_equal(open_edited("models/llama", NULL, flat, &m), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "tensor model.norm.weight: shape [1, 64], expected [64]"));
    assert_int_equal(open_edited("models/llama", NULL, integers, &m), QN_E_UNSUPPORTED);
    assert_non_null(
        strstr(qn_last_error(), "tensor model.layers.1.mlp.up_proj.weight: type I16 is not supported"));
}

/* A model computed as another family's, or with a part left out, must not answer. */
static void test_tensors_without_a_place(void **state)
{
    static const struct {
        const char *from, *patch, *name, *words; /* name: the copy of layer 0's input norm; NULL: none */
    } cases[] = {
        {"models/qwen3", "{\"model_type\": \"llama\"}", NULL, "self_attn.k_norm.weight"},
        {"models/gemma2", "{\"model_type\": \"llama\"}", NULL, "feedforward_layernorm.weight"},
        {"models/gemma3_text", "{\"model_type\": \"gemma2\"}", NULL, "self_attn.k_norm.weight"},
        {"models/gemma4_moe", "{\"enable_moe_block\": false}", NULL, "does not belong to a model"},
        {"models/llama", NULL, "model.layers.0.self_attn.sinks", "self_attn.sinks"},
        {"models/llama", NULL, "model.layers.2.self_attn.sinks", "model.layers.2.self_attn.sinks"},
        {"models/llama", NULL, "model.layers.9.self_attn.sinks", "belongs to layer 9, but num_hidden"},
        {"models/llama", NULL, "model.layers.9.self_attn.rotary_emb.inv_freq", NULL},
        {"models/llama", NULL, "model.layers.1.input_layernorm.scales", "input_layernorm.scales"},
        {"models/llama", NULL, "model.layers.0.mlp.up_proj.scales", "mlp.up_proj"},
        {"models/llama", NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", NULL},
        {"models/llama", NULL, "vision_tower.layers.0.norm.weight", NULL},
        {"models/glm4_moe", "{\"num_nextn_predict_layers\": 1}", "model.layers.3.eh_proj.weight", NULL},
        {"models/glm4_moe", "{\"num_nextn_predict_layers\": 0}", "model.layers.3.eh_proj.weight",
         "belongs to layer 3"},
        {"models/glm4_moe", "{\"num_nextn_predict_layers\": 1}", "model.layers.4.eh_proj.weight",
         "belongs to layer 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_test_weights m;
        const qn_test_tensor_edit edits[] = {
            {"model.layers.0.input_layernorm.weight", QN_TEST_COPY, cases[i].name}, {NULL, 0, NULL}};
        qn_status status = open_edited(cases[i].from, cases[i].patch, cases[i].name ? edits : NULL, &m);
        if (!cases[i].words) {
            if (status != QN_OK) fail_msg("case %zu: %s", i, qn_last_error());
            qn_test_weights_close(&m);
            continue;
        }
        if (status == QN_OK || !strstr(qn_last_error(), cases[i].words))
            fail_msg("case %zu: %s: %s", i, qn_status_name(status), qn_last_error());
    }
}

static void test_vector(void **state)
{
    qn_test_weights m;
    float values[64];
    assert_int_equal(qn_test_weights_open(qn_test_need_fixture("models/llama"), &m), QN_OK);
    const qn_tensor_view *v = qn_weights_get(m.weights, QN_WEIGHT_ATTN_NORM, 2);
    assert_int_equal(v->dtype, QN_DTYPE_BF16);
    assert_int_equal(qn_weights_vector(v, values), QN_OK);
    for (int i = 0; i < 64; i++) {
        uint16_t h;
        uint32_t bits;
        memcpy(&h, (const char *)v->data + 2 * i, 2);
        memcpy(&bits, &values[i], 4);
        assert_int_equal(bits, (uint32_t)h << 16);
    }
    assert_int_equal(qn_weights_vector(qn_weights_get(m.weights, QN_WEIGHT_Q, 0), values), QN_E_FORMAT);
    qn_test_weights_close(&m);
}

static void test_allocation_failures(void **state)
{
    qn_test_weights_run_out(qn_test_need_fixture("models/llama_rope3_tied"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_real_models),
        cmocka_unit_test(test_head_of_its_own),
        cmocka_unit_test(test_each_tensor_missing),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_dimensions_and_types),
        cmocka_unit_test(test_tensors_without_a_place),
        cmocka_unit_test(test_vector),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
