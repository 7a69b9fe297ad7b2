/* What config.json says of hyper-connections and of embeddings of n-grams, read right and refused by name; and the
 * numbers of the hash, which follow from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/config/blocks/ngram_config.h"
#include "model/config/config.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"

/* qwen3_5's layers are DDDA; its files have no numbers of a hash. */
static const char base[] =
    "\"model_type\": \"qwen4_exp_text\", \"architectures\": [\"Qwen4ExpForCausalLM\"], \"eos_token_id\": 9,"
    " \"indexer_n_heads\": 4, \"indexer_head_dim\": 32, \"indexer_budget\": 16, \"indexer_compress_ratio\": "
    "4,"
    " \"ple_layer_ids\": [1]";

static qn_status read_with(const char *more, qn_model_config *c)
{
    char dir[QN_TEST_DIR_MAX], patch[2048];
    qn_source *src;
    snprintf(patch, sizeof patch, "{%s%s%s}", base, *more ? ", " : "", more);
    qn_test_model_copy(qn_test_need_fixture("models/qwen3_5"), patch, NULL, dir);
    assert_int_equal(qn_source_open(dir, NULL, &src), QN_OK);
    qn_status status = qn_config_read(src, c);
    qn_source_close(src);
    qn_test_model_remove(dir);
    return status;
}

static void read_ok(const char *more, qn_model_config *c)
{
    if (read_with(more, c) != QN_OK) fail_msg("%s: %s", more, qn_last_error());
}

/* What the reference makes of the published defaults. */
static void published_numbers(void **state)
{
    static const int64_t first[] = {23703573157769, 20109073645365, 8052911324071},
                         second[] = {3352040966061, 19752442147475, 10742103100073};
    qn_model_config c;
    read_ok("\"vocab_size\": 248320, \"hidden_size\": 2048, \"ple_layer_ids\": [3, 1, 3]", &c);
    const qn_ngram_config *n = &c.ngram;
    assert_int_equal(n->ngram_size, 3);
    assert_int_equal(n->n_heads, 16);
    assert_int_equal(n->ple_embed_dim, 2048);
    assert_int_equal(n->eos_token_id, 9);
    assert_int_equal(n->n_hashes, 2);
    assert_int_equal(c.layers[0].ngrams, 1);
    assert_int_equal(c.layers[1].ngrams, 0);
    assert_int_equal(c.layers[2].ngrams, 2);
    assert_memory_equal(n->hashes[0].multiplier, first, sizeof first);
    assert_memory_equal(n->hashes[1].multiplier, second, sizeof second);
    assert_int_equal(n->hashes[0].size[0], 20000003);
    assert_int_equal(n->hashes[0].size[15], 20000171);
    assert_int_equal(n->hashes[0].offset[1], 20000003);
    assert_int_equal(n->hashes[1].size[0], 20000213);
    assert_int_equal(n->hashes[1].size[15], 20000429);
    assert_int_equal(n->hashes[1].offset[0], 0);
    assert_int_equal(n->n_rows[0], 320001536);
    assert_int_equal(n->n_rows[1], 320005120);
    assert_int_equal(c.hyper.kind, QN_HYPER_LOW_RANK);
    assert_int_equal(c.hyper.hc_count, 4);
    assert_int_equal(c.hyper.hc_lowrank, 320);
    int64_t conv, rule, other;
    qn_layer_state_floats(&c, 0, &conv, &rule);
    qn_layer_state_floats(&c, 1, &other, &rule);
    assert_int_equal(conv - other, 2 * 3 + 3 * 3 * 4 * 2048);
    qn_config_free(&c);
}

static void other_numbers(void **state)
{
    static const int64_t third[] = {12298418137055121, 12552434486070805, 17841365476042849,
                                    11016933023561279};
    qn_model_config c;
    read_ok("\"vocab_size\": 512, \"ngram_size\": 4, \"seed\": -5, \"ple_layer_ids\": [1, 2, 3], "
            "\"heads_per_ngram\": 2, \"ple_embed_dim\": 12, \"ngram_vocab_size_base\": 1, "
            "\"make_ngram_vocab_size_divisible_by\": 5, \"hc_count\": 2, \"eos_token_id\": [11, 9]",
            &c);
    static const int32_t primes[] = {17, 19, 23, 29, 31, 37};
    assert_memory_equal(c.ngram.hashes[2].multiplier, third, sizeof third);
    assert_memory_equal(c.ngram.hashes[1].size, primes, sizeof primes);
    assert_int_equal(c.ngram.n_rows[1], 160);
    assert_int_equal(c.ngram.eos_token_id, 11);
    qn_config_free(&c);
    read_ok("\"ple_layer_ids\": null", &c);
    assert_int_equal(c.ngram.n_hashes, 0);
    qn_config_free(&c);
    read_ok("\"ple_layer_ids\": [], \"eos_token_id\": null", &c);
    assert_int_equal(c.ngram.n_hashes, 0);
    qn_config_free(&c);
}

static void gate_of_the_delta_net(void **state)
{
    qn_model_config c;
    read_ok("", &c);
    assert_false(c.delta.gate_sigmoid);
    qn_config_free(&c);
    read_ok("\"output_gate_type\": \"sigmoid\"", &c);
    assert_true(c.delta.gate_sigmoid);
    qn_config_free(&c);
}

static void refusals(void **state)
{
    static const struct {
        const char *more;
        qn_status status;
        const char *words;
    } cases[] = {
        {"\"hc_count\": 1", QN_E_FORMAT, "hc_count is 1"},
        {"\"hc_count\": 9", QN_E_FORMAT, "hc_count is 9"},
        {"\"hc_lowrank\": 0", QN_E_FORMAT, "hc_lowrank is 0"},
        {"\"ple_layer_ids\": 1", QN_E_FORMAT, "ple_layer_ids: expected an array of layers"},
        {"\"ple_layer_ids\": [0]", QN_E_FORMAT,
         "ple_layer_ids[0] is not a layer from 1 to num_hidden_layers (4)"},
        {"\"ple_layer_ids\": [1, 5]", QN_E_FORMAT, "ple_layer_ids[1] is not a layer"},
        {"\"ple_layer_ids\": [\"1\"]", QN_E_FORMAT, "ple_layer_ids[0] is not a layer"},
        {"\"ple_layer_ids\": [4]", QN_E_FORMAT, "ple_layer_ids[0]: layer 4 is not one of linear_attention"},
        {"\"ngram_size\": 1", QN_E_FORMAT, "ngram_size is 1"},
        {"\"ngram_size\": 9", QN_E_FORMAT, "ngram_size is 9"},
        {"\"heads_per_ngram\": 0", QN_E_FORMAT, "heads_per_ngram is 0"},
        {"\"heads_per_ngram\": 65", QN_E_UNSUPPORTED, "heads_per_ngram 65 for each of 2 sizes of n-grams"},
        {"\"ple_embed_dim\": 17", QN_E_FORMAT, "ple_embed_dim 17 is not a multiple of the 16 heads"},
        {"\"ple_conv_kernel_size\": 0", QN_E_FORMAT, "ple_conv_kernel_size is 0"},
        {"\"split_ngram_parts\": 0", QN_E_FORMAT, "split_ngram_parts is 0"},
        {"\"ngram_vocab_size_base\": 0", QN_E_FORMAT, "ngram_vocab_size_base is 0"},
        {"\"ngram_vocab_size_base\": 1000000000", QN_E_UNSUPPORTED,
         "a table of n-grams has more than 2147483647 rows"},
        {"\"make_ngram_vocab_size_divisible_by\": 0", QN_E_FORMAT, "make_ngram_vocab_size_divisible_by is 0"},
        {"\"seed\": 1.5", QN_E_FORMAT, "seed is 1.5"},
        {"\"eos_token_id\": null", QN_E_FORMAT, "eos_token_id: expected a token id below vocab_size"},
        {"\"eos_token_id\": 1000000", QN_E_FORMAT, "eos_token_id: expected a token id below vocab_size"},
        {"\"output_gate_type\": \"tanh\"", QN_E_UNSUPPORTED, "output_gate_type is \"tanh\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_model_config c;
        qn_status status = read_with(cases[i].more, &c);
        if (status != cases[i].status || !strstr(qn_last_error(), cases[i].words) ||
            !strstr(qn_last_error(), "config.json"))
            fail_msg("%s: %s: %s", cases[i].more, qn_status_name(status), qn_last_error());
    }
}

static void names_of_numbers(void **state)
{
    assert_true(qn_ngram_config_has("model.layers.0.ple.ple_embedding.layer_multipliers"));
    assert_true(qn_ngram_config_has("model.language_model.layers.12.ple.ple_embedding.ngram_heads_offsets"));
    assert_false(qn_ngram_config_has("model.layers.0.ple.ple_embedding.ngram_embedding.shard_0.weight"));
    assert_false(qn_ngram_config_has("layer_multipliers"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_numbers),     cmocka_unit_test(other_numbers),
        cmocka_unit_test(gate_of_the_delta_net), cmocka_unit_test(refusals),
        cmocka_unit_test(names_of_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
