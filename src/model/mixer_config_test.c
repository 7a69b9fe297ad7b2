/* What config.json says of layers that do not attend as llama's do, read right and refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/config.h"
#include "tests/fixtures.h"
#include "tests/model_dir.h"

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
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_model_config c;
        qn_status status = read_patched(cases[i].fixture, cases[i].patch, &c);
        if (status != cases[i].status || !strstr(qn_last_error(), cases[i].words) ||
            !strstr(qn_last_error(), "config.json"))
            fail_msg("%s: %s: %s", cases[i].patch, qn_status_name(status), qn_last_error());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gated_delta),
        cmocka_unit_test(which_layers),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
