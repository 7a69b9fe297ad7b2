#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/forward/layer_groups.h"
#include "model/weights/weights.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"

static void close_to(double a, double b)
{
    if (!(fabs(a - b) <= 1e-6 * fabs(b))) fail_msg("%.9g is not %.9g", a, b);
}

/* A fixture with a change to its config.json. */
static qn_status read_patched(const char *fixture, const char *patch, qn_model_config *c)
{
    char dir[QN_TEST_DIR_MAX], relative[96];
    qn_source *src = NULL;
    snprintf(relative, sizeof relative, "models/%s", fixture);
    qn_test_model_copy(qn_test_need_fixture(relative), patch, NULL, dir);
    qn_status status = qn_source_open(dir, NULL, &src);
    if (status == QN_OK) status = qn_config_read(src, c);
    qn_source_close(src);
    qn_test_model_remove(dir);
    return status;
}

static void read_ok(const char *fixture, const char *patch, qn_model_config *c)
{
    if (read_patched(fixture, patch, c) != QN_OK)
        fail_msg("%s: %s: %s", fixture, patch ? patch : "as it is", qn_last_error());
}

/* What every gemma4 has, and of each layer its kind (F full, S sliding) and sizes. */
static void check_gemma4(const char *name, const char *patch, const char *kinds, const int *kv_layer,
                         int full_kv_heads, int value_is_key, int wide, int layer_input)
{
    qn_model_config c;
    read_ok(name, patch, &c);
    assert_int_equal(c.num_hidden_layers, strlen(kinds));
    assert_true(c.attention_scale == 1 && c.norm_offset == 0 && c.value_norm && c.layer_scale);
    assert_int_equal(c.qk_norm, QN_QK_NORM_HEAD);
    assert_int_equal(c.norms, QN_NORM_PRE_ATTN | QN_NORM_POST_ATTN | QN_NORM_PRE_FFN | QN_NORM_POST_FFN);
    assert_int_equal(c.hidden_act, QN_HIDDEN_GELU_TANH);
    close_to(c.embedding_scale, 8);
    close_to(c.final_logit_softcapping, 30);
    assert_int_equal(c.hidden_size_per_layer_input, layer_input);
    assert_int_equal(c.n_rope, 2);
    assert_int_equal(c.rope[0].type, QN_ROPE_PROPORTIONAL);
    assert_int_equal(c.rope[0].rotary_dim, 32);
    close_to(c.rope[0].inv_freq[0], 1);
    close_to(c.rope[0].inv_freq[3], pow(1e6, -6.0 / 32));
    for (int i = 4; i < 16; i++) assert_true(c.rope[0].inv_freq[i] == 0);
    assert_int_equal(c.rope[1].type, QN_ROPE_DEFAULT);
    assert_int_equal(c.rope[1].rotary_dim, 16);
    close_to(c.rope[1].inv_freq[7], pow(1e4, -14.0 / 16));
    for (int i = 0; kinds[i]; i++) {
        const qn_layer_config *l = &c.layers[i];
        int full = kinds[i] == 'F';
        assert_int_equal(l->kind, full ? QN_LAYER_FULL : QN_LAYER_SLIDING);
        assert_int_equal(l->window, full ? 0 : 16);
        assert_int_equal(l->rope, !full);
        assert_int_equal(l->head_dim, full ? 32 : 16);
        assert_int_equal(l->num_key_value_heads, full ? full_kv_heads : 2);
        assert_int_equal(l->value_is_key, full && value_is_key);
        assert_int_equal(l->kv_layer, kv_layer[i]);
        assert_int_equal(l->intermediate_size, wide && kv_layer[i] != i ? 192 : 96);
    }
    qn_config_free(&c);
}

static void test_gemma4(void **state)
{
    static const int shared[] = {0, 1, 2, 3, 3, 2, 2}, own[] = {0, 1, 2, 3, 4, 5, 6},
                     one[] = {0, 1, 2, 3, 4, 5, 5};
    check_gemma4("gemma4_text", NULL, "SSFSSFF", shared, 2, 0, 1, 16);
    check_gemma4("gemma4", NULL, "SSFSSFF", shared, 2, 0, 1, 16);
    check_gemma4("gemma4_k_eq_v", NULL, "SSFSSF", own, 1, 1, 0, 0);
    check_gemma4("gemma4_text", "{\"num_kv_shared_layers\": 1}", "SSFSSFF", one, 2, 0, 1, 16);
    check_gemma4("gemma4_text", "{\"num_kv_shared_layers\": null}", "SSFSSFF", own, 2, 0, 1, 16);
    check_gemma4("gemma4_text", "{\"use_double_wide_mlp\": null}", "SSFSSFF", shared, 2, 0, 0, 16);
    /* The number of key heads of full layers is that of the others unless values are keys. */
    check_gemma4("gemma4_k_eq_v", "{\"attention_k_eq_v\": false}", "SSFSSF", own, 2, 0, 0, 0);
    check_gemma4("gemma4_k_eq_v", "{\"num_global_key_value_heads\": null}", "SSFSSF", own, 2, 1, 0, 0);
    /* Left out: the tensors say it, or the configuration class. */
    check_gemma4("gemma4_text", "{\"global_head_dim\": null, \"head_dim\": null}", "SSFSSFF", shared, 2, 0, 1,
                 16);
    check_gemma4("gemma4_text", "{\"rope_parameters\": null}", "SSFSSFF", shared, 2, 0, 1, 16);
    check_gemma4("gemma4_text",
                 "{\"hidden_size_per_layer_input\": null, \"layer_types\": null,"
                 " \"num_kv_shared_layers\": 0, \"vocab_size_per_layer_input\": null}",
                 "SSSSSFF", own, 2, 0, 1, 256);
    /* The last layer is full whatever the files say; images alone are looked at both ways. */
    check_gemma4("gemma4_k_eq_v",
                 "{\"layer_types\": [\"sliding_attention\", \"sliding_attention\","
                 " \"full_attention\", \"sliding_attention\", \"sliding_attention\","
                 " \"sliding_attention\"], \"use_bidirectional_attention\": \"vision\"}",
                 "SSFSSF", own, 1, 1, 0, 0);
}

/* Experts beside the dense block, with a router that norms for itself. */
static void test_gemma4_experts(void **state)
{
    qn_model_config c;
    static const int own[] = {0, 1, 2, 3, 4, 5};
    check_gemma4("gemma4_moe", NULL, "SSFSSF", own, 1, 1, 0, 0);
    read_ok("gemma4_moe", NULL, &c);
    assert_int_equal(c.experts.num_experts, 6);
    assert_int_equal(c.experts.num_experts_per_tok, 2);
    assert_int_equal(c.experts.moe_intermediate_size, 24);
    assert_true(c.experts.norm_topk_prob && c.experts.router_norm && c.experts.expert_scale);
    for (int64_t i = 0; i < c.num_hidden_layers; i++)
        assert_true(c.layers[i].has_mlp && c.layers[i].has_experts);
    qn_config_free(&c);
    read_ok("gemma4_moe", "{\"enable_moe_block\": null}", &c);
    assert_int_equal(c.experts.num_experts, 0);
    assert_true(c.layers[0].has_mlp && !c.layers[0].has_experts);
    qn_config_free(&c);
}

static void test_groups(void **state)
{
    qn_model_config c;
    qn_layer_groups g;
    read_ok("gemma4_text", NULL, &c);
    assert_int_equal(qn_layer_groups_make(&c, &g), QN_OK);
    assert_int_equal(g.n, 2);
    assert_int_equal(g.group[0].n_layers, 3);
    assert_int_equal(g.group[0].head_dim, 16);
    assert_int_equal(g.group[1].n_layers, 1);
    assert_int_equal(g.group[1].head_dim, 32);
    static const int group[] = {0, 0, 1, 0, 0, 1, 1}, place[] = {0, 1, 0, 2, 2, 0, 0};
    for (int i = 0; i < 7; i++) {
        assert_int_equal(g.group_of[i], group[i]);
        assert_int_equal(g.index_of[i], place[i]);
    }
    qn_layer_groups_free(&g);

    /* Between two devices: a border that no layer reads across, and places counted on each side. */
    static const int border[] = {0, 1, 2, 2, 2, 2, 2, 7}, split_place[] = {0, 1, 0, 0, 0, 0, 0};
    for (int i = 0; i <= 7; i++) assert_int_equal(qn_layer_border(&c, i), border[i]);
    assert_int_equal(qn_layer_groups_split(&c, 2, &g), QN_OK);
    assert_int_equal(g.border, 2);
    assert_int_equal(g.n, 2);
    assert_int_equal(g.group[0].n_layers, 3);
    assert_int_equal(g.group[0].n_below, 2);
    assert_int_equal(g.group[1].n_layers, 1);
    assert_int_equal(g.group[1].n_below, 0);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(g.group_of[i], group[i]);
        assert_int_equal(g.index_of[i], split_place[i]);
    }
    qn_layer_groups_free(&g);
    qn_config_free(&c);
    read_ok("qwen3_next", NULL, &c); /* three recurrent layers, then one with keys */
    assert_int_equal(qn_layer_groups_split(&c, 2, &g), QN_OK);
    assert_int_equal(g.n_recurrent, 3);
    assert_int_equal(g.n_recurrent_below, 2);
    static const int slot_place[] = {0, 1, 0, -1};
    for (int i = 0; i < 4; i++) assert_int_equal(g.recurrent_of[i], slot_place[i]);
    qn_layer_groups_free(&g);
    qn_config_free(&c);
}

/* Published files carry keys and values of layers that have none; nothing else may lie there. */
static void test_unused_tensors(void **state)
{
    static const struct {
        const char *from, *name, *words; /* a copy of layer 0's tensor `from`; words NULL: tolerated */
    } cases[] = {
        {"self_attn.k_proj.weight", "model.layers.4.self_attn.k_proj.weight", NULL},
        {"self_attn.v_proj.weight", "model.layers.6.self_attn.v_proj.weight", NULL},
        {"self_attn.k_norm.weight", "model.layers.5.self_attn.k_norm.weight", NULL},
        {"self_attn.k_norm.weight", "model.layers.5.self_attn.v_proj.scales", NULL},
        {"self_attn.k_norm.weight", "model.layers.5.self_attn.k_proj.biases", NULL},
        {"self_attn.k_norm.weight", "model.layers.5.self_attn.k_proj.weight_scale", "not belong to a model"},
        {"self_attn.k_norm.weight", "model.layers.5.self_attn.v_norm.weight", "not belong to a model"},
        {"self_attn.k_norm.weight", "model.layers.3.self_attn.k_proj.scales", "k_proj"},
        {"self_attn.k_norm.weight", "model.layers.7.self_attn.k_proj.weight", "belongs to layer 7"},
    };
    const char *fixture = qn_test_need_fixture("models/gemma4_text");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char from[96], dir[QN_TEST_DIR_MAX];
        qn_test_weights m;
        snprintf(from, sizeof from, "model.layers.0.%s", cases[i].from);
        const qn_test_tensor_edit edits[] = {{from, QN_TEST_COPY, cases[i].name}, {NULL, 0, NULL}};
        qn_test_model_copy(fixture, NULL, edits, dir);
        qn_status status = qn_test_weights_open(dir, &m);
        qn_test_model_remove(dir);
        if (cases[i].words) {
            if (status == QN_OK || !strstr(qn_last_error(), cases[i].words))
                fail_msg("%s: %s: %s", cases[i].name, qn_status_name(status), qn_last_error());
            continue;
        }
        if (status != QN_OK) fail_msg("%s: %s", cases[i].name, qn_last_error());
        for (int l = 4; l < 7; l++) {
            assert_null(qn_weights_get(m.weights, QN_WEIGHT_K, l));
            assert_null(qn_weights_get(m.weights, QN_WEIGHT_V, l));
            assert_null(qn_weights_get(m.weights, QN_WEIGHT_K_NORM, l));
        }
        qn_test_weights_close(&m);
    }
}

static void test_refusals(void **state)
{
    static const struct {
        const char *fixture, *patch;
        qn_status status;
        const char *words;
    } cases[] = {
        {"gemma4_text", "{\"num_kv_shared_layers\": 7}", QN_E_FORMAT,
         "num_kv_shared_layers is 7, expected 0 to 6"},
        {"gemma4_text", "{\"num_kv_shared_layers\": -1}", QN_E_FORMAT, "num_kv_shared_layers is -1"},
        {"gemma4_text", "{\"num_kv_shared_layers\": 5}", QN_E_FORMAT,
         "num_kv_shared_layers is 5, but no earlier layer has the kind of layer 2"},
        {"gemma4", "{\"text_config\": {\"num_kv_shared_layers\": 1e9}}", QN_E_FORMAT,
         "text_config.num_kv_shared_layers is 1000000000"},
        {"gemma4_text", "{\"global_head_dim\": 0}", QN_E_FORMAT, "global_head_dim is 0, expected 1 to"},
        {"gemma4_text", "{\"global_head_dim\": 33}", QN_E_FORMAT, "33 of 33 head dimensions"},
        {"gemma4_text", "{\"global_head_dim\": \"32\"}", QN_E_FORMAT, "global_head_dim is a string"},
        {"gemma4_k_eq_v", "{\"num_global_key_value_heads\": 3}", QN_E_FORMAT,
         "num_attention_heads 4 is not a multiple of num_global_key_value_heads 3"},
        {"gemma4_k_eq_v", "{\"num_global_key_value_heads\": 0}", QN_E_FORMAT,
         "num_global_key_value_heads is 0"},
        {"gemma4_k_eq_v", "{\"attention_k_eq_v\": 1}", QN_E_FORMAT, "attention_k_eq_v is a number"},
        {"gemma4_text", "{\"hidden_size_per_layer_input\": -16}", QN_E_FORMAT,
         "hidden_size_per_layer_input is -16"},
        {"gemma4_text", "{\"hidden_size_per_layer_input\": 2000000}", QN_E_FORMAT,
         "hidden_size_per_layer_input is 2000000"},
        {"gemma4_text", "{\"vocab_size_per_layer_input\": 1023}", QN_E_FORMAT,
         "vocab_size_per_layer_input is 1023, less than vocab_size 1024"},
        {"gemma4_text", "{\"vocab_size_per_layer_input\": 0}", QN_E_FORMAT,
         "vocab_size_per_layer_input is 0"},
        {"gemma4_moe", "{\"num_experts\": \"null\"}", QN_E_FORMAT, "num_experts is missing"},
        {"gemma4_moe", "{\"num_experts\": 0}", QN_E_FORMAT, "num_experts is 0, expected 1 to"},
        {"gemma4_moe", "{\"top_k_experts\": 7}", QN_E_FORMAT, "top_k_experts is 7, but num_experts is 6"},
        {"gemma4_moe", "{\"top_k_experts\": 0}", QN_E_FORMAT, "top_k_experts is 0, expected 1 to"},
        {"gemma4_moe", "{\"moe_intermediate_size\": -24}", QN_E_FORMAT, "moe_intermediate_size is -24"},
        {"gemma4_moe", "{\"enable_moe_block\": 1}", QN_E_FORMAT, "enable_moe_block is a number"},
        {"gemma4_text", "{\"use_double_wide_mlp\": \"yes\"}", QN_E_FORMAT, "use_double_wide_mlp is a string"},
        {"gemma4_text", "{\"use_bidirectional_attention\": \"all\"}", QN_E_UNSUPPORTED,
         "use_bidirectional_attention is \"all\""},
        {"gemma4_text", "{\"use_bidirectional_attention\": true}", QN_E_UNSUPPORTED,
         "use_bidirectional_attention is true"},
        {"gemma4_text", "{\"use_bidirectional_attention\": 1}", QN_E_FORMAT,
         "use_bidirectional_attention is a number"},
        {"gemma4_text", "{\"rope_parameters\": {\"full_attention\": {\"partial_rotary_factor\": 1.5}}}",
         QN_E_FORMAT, "rope_parameters.full_attention.partial_rotary_factor is 1.5"},
        {"gemma4_text", "{\"rope_parameters\": {\"full_attention\": {\"factor\": 0}}}", QN_E_FORMAT,
         "rope_parameters.full_attention.factor is 0"},
        {"gemma4_text", "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": null}}}", QN_E_FORMAT,
         "rope_theta is missing"},
        {"gemma4_text", "{\"rope_parameters\": {\"sliding_attention\": null}}", QN_E_FORMAT,
         "rope_theta is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_model_config c;
        qn_status status = read_patched(cases[i].fixture, cases[i].patch, &c);
        if (status != cases[i].status || !strstr(qn_last_error(), cases[i].words))
            fail_msg("%s: %s: %s", cases[i].patch, qn_status_name(status), qn_last_error());
    }
}

static void test_allocation_failures(void **state)
{
    qn_test_weights_run_out(qn_test_need_fixture("models/gemma4_text"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemma4),   cmocka_unit_test(test_gemma4_experts),
        cmocka_unit_test(test_groups),   cmocka_unit_test(test_unused_tensors),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
