/* RoPE as the config of each fixture says it: types, sets, factors, and layers without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

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

static void test_llama3_rope(void **state)
{
    qn_model_config c;
    read_ok(qn_test_need_fixture("models/llama_rope3_tied"), &c);
    assert_int_equal(c.rope[0].type, QN_ROPE_LLAMA3);
    assert_int_equal(c.n_rope, 1);
    /* theta 5e5, 8 pairs, factor 8, 64 original positions: waves up to 16 are kept, above 64 stretched. */
    close_to(c.rope[0].inv_freq[0], 1);
    double wave = 6.283185307179586 * pow(5e5, 2.0 / 16), smooth = (64 / wave - 1) / 3;
    close_to(c.rope[0].inv_freq[1], pow(5e5, -2.0 / 16) * ((1 - smooth) / 8 + smooth));
    close_to(c.rope[0].inv_freq[7], pow(5e5, -14.0 / 16) / 8);
    qn_config_free(&c);
}

static void test_long_rope(void **state)
{
    qn_model_config c;
    read_ok(qn_test_need_fixture("models/phi3_longrope"), &c);
    assert_int_equal(c.rope[0].type, QN_ROPE_LONG);
    assert_int_equal(c.head_dim, 24);
    assert_int_equal(c.rope[0].rotary_dim, 18);
    assert_int_equal(c.rope[0].short_positions, 128);
    assert_int_equal(c.rope_short_positions, 128);
    assert_int_equal(c.max_position_embeddings, 512);
    close_to(c.rope[0].attention_factor, sqrt(1 + log(4) / log(128)));
    close_to(c.rope[0].inv_freq[8], pow(1e4, -16.0 / 18) / (1 + 0.02 * 8));
    close_to(c.rope[0].long_inv_freq[8], pow(1e4, -16.0 / 18) / (1 + 0.3 * 64));
    qn_config_free(&c);
    read_ok(qn_test_need_fixture("models/phi3"), &c);
    assert_int_equal(c.rope_short_positions, 0);
    assert_null(c.rope[0].long_inv_freq);
    qn_config_free(&c);
}

static void test_yarn_rope(void **state)
{
    qn_model_config c;
    read_ok(qn_test_need_fixture("models/qwen2_yarn"), &c);
    assert_int_equal(c.rope[0].type, QN_ROPE_YARN);
    close_to(c.rope[0].attention_factor, 0.1 * log(4) + 1);
    assert_int_equal(c.max_position_embeddings, 4 * 1024);
    close_to(c.rope[0].inv_freq[0], 1);
    close_to(c.rope[0].inv_freq[15], pow(1e4, -30.0 / 32) / 4);
    assert_int_equal(c.attention_output_bias, 0);
    qn_config_free(&c);
}

static void test_gemma3_rope_sets(void **state)
{
    qn_model_config c;
    read_ok(qn_test_need_fixture("models/gemma3"), &c);
    assert_int_equal(c.n_rope, 2);
    assert_int_equal(c.rope[0].type, QN_ROPE_LINEAR);
    close_to(c.rope[0].inv_freq[0], 1.0 / 8);
    assert_int_equal(c.rope[1].type, QN_ROPE_DEFAULT);
    close_to(c.rope[1].theta, 10000);
    close_to(c.rope[1].inv_freq[1], pow(1e4, -2.0 / 16));
    for (int64_t i = 0; i < c.num_hidden_layers; i++) assert_int_equal(c.layers[i].rope, i != 5);
    assert_int_equal(c.norms, QN_NORM_PRE_ATTN | QN_NORM_POST_ATTN | QN_NORM_PRE_FFN | QN_NORM_POST_FFN);
    assert_int_equal(c.bos_token_id, 2); /* generation_config.json alone has it */
    assert_int_equal(c.stop_ids[0], 1);
    assert_int_equal(c.stop_ids[1], 9);
    assert_string_equal(c.stop_tokens[0], "<end_of_turn>");
    qn_config_free(&c);
}

/* Which layers have RoPE, one letter each: R or N; and which slide: S or F. */
static void rope_is(const char *patch, const char *ropes, const char *kinds)
{
    qn_model_config c;
    if (qn_test_config_patched("models/smollm3", patch, &c) != QN_OK)
        fail_msg("%s: %s", patch, qn_last_error());
    for (int64_t i = 0; i < c.num_hidden_layers; i++) {
        assert_int_equal(c.layers[i].rope, ropes[i] == 'N' ? QN_ROPE_NONE : 0);
        assert_int_equal(c.layers[i].kind, kinds[i] == 'S' ? QN_LAYER_SLIDING : QN_LAYER_FULL);
    }
    qn_config_free(&c);
}

static void test_layers_without_rope(void **state)
{
    qn_test_need_fixture("models/smollm3");
    rope_is("{}", "RRRNR", "FFFFF");
    rope_is("{\"no_rope_layers\": null, \"no_rope_layer_interval\": null}", "RRRNR", "FFFFF");
    rope_is("{\"no_rope_layers\": \"null\", \"no_rope_layer_interval\": 2}", "RNRNR", "FFFFF");
    rope_is("{\"no_rope_layers\": [0, 1, 1, 1, 0, 0, 0]}", "NRRRN", "FFFFF");
    rope_is("{\"layer_types\": null, \"use_sliding_window\": true, \"sliding_window\": 8}", "RRRNR", "FFFSF");
    rope_is("{\"layer_types\": null, \"sliding_window\": 8}", "RRRNR", "FFFFF");
}

static void expect_set(size_t i_case, const char *name, const qn_rope_config *r, const json_t *want)
{
    const char *type = json_string_value(json_object_get(want, "type"));
    const double theta = json_number_value(json_object_get(want, "theta")),
                 factor = strcmp(type, "linear") ? 1 : json_number_value(json_object_get(want, "factor"));
    if (strcmp(qn_rope_type_name(r->type), type) != 0 || r->theta != theta || r->factor != factor)
        fail_msg("case %zu: %s is %s, %g, %g instead of %s, %g, %g", i_case, name, qn_rope_type_name(r->type),
                 r->theta, r->factor, type, theta, factor);
}

/* gemma3's two sets against transformers (tools/rope_sets_golden.py). */
static void test_sets_beside_scaling(void **state)
{
    json_t *cases = json_load_file(qn_test_need_fixture("rope_sets.json"), 0, NULL), *each;
    size_t i;
    json_array_foreach(cases, i, each)
    {
        char *patch = json_dumps(json_object_get(each, "patch"), 0);
        qn_model_config c = {0};
        if (qn_test_config_patched("models/gemma3_text", patch, &c) != QN_OK)
            fail_msg("case %zu: %s", i, qn_last_error());
        assert_int_equal(c.n_rope, 2);
        expect_set(i, "full_attention", &c.rope[0], json_object_get(each, "full"));
        expect_set(i, "sliding_attention", &c.rope[1], json_object_get(each, "sliding"));
        qn_config_free(&c);
        free(patch); /* foreign: jansson's */
    }
    json_decref(cases);
}

/* transformers does not look at the type of these two. */
static void test_numbers_as_texts(void **state)
{
    qn_model_config c = {0};
    assert_int_equal(
        qn_test_config_patched(
            "models/llama",
            "{\"rope_theta\":\"20000.0\",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":\"2.5\"}}",
            &c),
        QN_OK);
    assert_true(c.rope[0].theta == 20000 && c.rope[0].factor == 2.5);
    qn_config_free(&c);
    static const char *const bad[] = {"{\"rope_theta\":\"\"}", "{\"rope_theta\":\"1e4x\"}",
                                      "{\"rope_theta\":\"inf\"}", "{\"rope_theta\":\"Infinity\"}",
                                      "{\"rope_theta\":\"-1\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(qn_test_config_patched("models/llama", bad[i], &c), QN_E_FORMAT);
        assert_non_null(strstr(qn_last_error(), "rope_theta is"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama3_rope),         cmocka_unit_test(test_long_rope),
        cmocka_unit_test(test_yarn_rope),           cmocka_unit_test(test_gemma3_rope_sets),
        cmocka_unit_test(test_layers_without_rope), cmocka_unit_test(test_sets_beside_scaling),
        cmocka_unit_test(test_numbers_as_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
