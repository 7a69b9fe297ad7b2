/* Every step of the sampler chain gives the same tokens alone and in company, and with guesses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include <quern/quern.h>

#include "base/mem.h"
#include "base/random.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { PROMPT = 24, TOKENS = 40, OTHERS = 5 };

static const int32_t word[] = {17, 40}, allowed[] = {5, 6, 7, 8, 9, 300, 301, 302};
static const qn_ids bad_id = {word, 1};
static const char *const bad_words[] = {"the", "e"}, *const breakers[] = {"a"};
static const qn_sampler_step order[] = {QN_SAMPLER_XTC, QN_SAMPLER_TEMPERATURE, QN_SAMPLER_DRY,
                                        QN_SAMPLER_TYPICAL_P, QN_SAMPLER_MIROSTAT};

static const qn_generate_options ways[] = {
    {.temperature = 1, .typical_p = 0.3f},
    {.temperature = 1, .top_n_sigma = 0.7f},
    {.temperature = 1, .xtc_probability = 0.5f, .xtc_threshold = 0.003f},
    {.temperature = 1, .dynatemp_range = 0.9f, .dynatemp_exponent = 2},
    {.temperature = 1, .mirostat = 1, .mirostat_tau = 3},
    {.temperature = 1, .mirostat = 2, .mirostat_tau = 3, .mirostat_eta = 0.5f},
    {.temperature = 0.1f, .dry_multiplier = 2, .dry_allowed_length = 1},
    {.dry_multiplier = 2,
     .dry_allowed_length = 1,
     .dry_penalty_last_n = 12,
     .dry_sequence_breakers = breakers,
     .n_dry_sequence_breakers = 1},
    {.temperature = 0.3f, .repeat_penalty = 1.8f, .repeat_last_n = 3},
    {.temperature = 0.3f, .presence_penalty = 2, .frequency_penalty = 1, .repeat_last_n = 6},
    {.temperature = 1, .bad_words = bad_words, .n_bad_words = 2, .bad_ids = &bad_id, .n_bad_ids = 1},
    {.allowed_ids = allowed, .n_allowed_ids = 8},
    {.temperature = 1.5f,
     .xtc_probability = 0.5f,
     .xtc_threshold = 0.01f,
     .dry_multiplier = 1,
     .typical_p = 0.9f,
     .mirostat = 2,
     .sampler_order = order,
     .n_sampler_order = 5},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

static void make_prompt(int32_t *ids, uint64_t seed)
{
    for (int i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)(5 + qn_random_bits(seed, (uint64_t)(i % 9)) % 300); /* with a repetition */
}

static qn_model *open_model(void)
{
    qn_model *m = NULL;
    qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"),
                             &(qn_model_options){.n_threads = 2, .parallel_slots = OTHERS + 1}, &m));
    return m;
}

static qn_generation *open_one(qn_model *m, qn_generate_options o, uint64_t seed, int n_draft)
{
    int32_t ids[PROMPT];
    const qn_ids row = {ids, PROMPT};
    qn_generation *g = NULL;
    make_prompt(ids, seed);
    o.max_tokens = TOKENS;
    o.ignore_eos = 1;
    o.seed = seed;
    o.n_draft = n_draft;
    qn_test_ok(qn_generation_open(m, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    return g;
}

/* Reads a generation to its end, and closes it. */
static void read_ids(qn_generation *g, int32_t *ids)
{
    qn_token t;
    for (int n = 0;; n++) {
        qn_test_ok(qn_generation_next(g, &t));
        if (t.end == QN_END_NONE) {
            assert_true(n < TOKENS);
            ids[n] = t.id;
            continue;
        }
        assert_int_equal(t.end, QN_END_LENGTH);
        assert_int_equal(n, TOKENS);
        break;
    }
    qn_generation_close(g);
}

static void test_company(void **state)
{
    qn_model *m = open_model();
    for (size_t w = 0; w < N_WAYS; w++) {
        int32_t alone[TOKENS], beside[TOKENS], guessed[TOKENS], without[TOKENS];
        qn_generation *others[OTHERS];
        const qn_generate_options plain = {.temperature = ways[w].temperature};
        read_ids(open_one(m, ways[w], 3, 0), alone);
        read_ids(open_one(m, plain, 3, 0), without);
        if (memcmp(alone, without, sizeof alone) == 0) fail_msg("way %zu changes nothing", w);
        for (int i = 0; i < OTHERS; i++)
            others[i] = open_one(m, ways[(w + (size_t)i) % N_WAYS], 50 + (uint64_t)i, i % 2 ? 4 : 0);
        read_ids(open_one(m, ways[w], 3, 0), beside);
        for (int i = 0; i < OTHERS; i++) qn_generation_close(others[i]);
        read_ids(open_one(m, ways[w], 3, 6), guessed);
        if (memcmp(alone, beside, sizeof alone) != 0) fail_msg("way %zu: other tokens in company", w);
        if (memcmp(alone, guessed, sizeof alone) != 0) fail_msg("way %zu: other tokens with guesses", w);
    }
    qn_model_close(&m);
}

static void test_banned_words(void **state)
{
    qn_model *m = open_model();
    const qn_generate_options o = {.temperature = 1.5f,
                                   .bad_words = bad_words,
                                   .n_bad_words = 2,
                                   .bad_ids = &bad_id,
                                   .n_bad_ids = 1,
                                   .max_tokens = 200,
                                   .ignore_eos = 1,
                                   .seed = 4};
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    qn_generation *g = NULL;
    qn_token t;
    qn_test_ok(qn_model_encode(m, "e", 1, NULL, &ids, &n_ids));
    assert_int_equal(n_ids, 1);
    qn_test_ok(qn_generate(m, "th", &o, &g));
    for (int n = 0;; n++) {
        qn_test_ok(qn_generation_next(g, &t));
        if (t.end != QN_END_NONE) break;
        assert_true(t.id != word[0] && t.id != ids[0]);
    }
    qn_generation_close(g);
    qn_buffer_free(ids);
    /* What cannot be made into ids of this model is refused. */
    const int32_t far = 1 << 30;
    const qn_generate_options outside = {.allowed_ids = &far, .n_allowed_ids = 1};
    assert_int_equal(qn_generate(m, "th", &outside, &g), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "allowed_ids: token id 1073741824 is outside the vocabulary of"));
    qn_model_close(&m);
}

static void test_nothing_left(void **state)
{
    qn_model *m = open_model();
    const int32_t only[] = {20, 21};
    const qn_ids bad[] = {{only, 2}, {only, 1}}; /* 21 behind 20, which is banned; 20 alone */
    const qn_ids both[] = {{only, 1}, {only + 1, 1}};
    static const int32_t twice[] = {20, 20};
    const qn_ids later[] = {{only + 1, 1}, {twice, 2}}; /* 20 comes once, and nothing behind it */
    qn_generate_options o = {
        .bad_ids = bad, .n_bad_ids = 2, .allowed_ids = only, .n_allowed_ids = 2, .max_tokens = 4};
    qn_generation *g = NULL;
    qn_token t;
    qn_test_ok(qn_generate(m, "th", &o, &g));
    for (int i = 0; i < 4; i++) {
        qn_test_ok(qn_generation_next(g, &t));
        assert_int_equal(t.id, 21);
    }
    qn_generation_close(g);
    o.bad_ids = both;
    assert_int_equal(qn_generate(m, "th", &o, &g), QN_E_ARG);
    assert_string_equal(qn_last_error(), "bad_words: all allowed tokens are banned");
    o.bad_ids = later;
    qn_test_ok(qn_generate(m, "th", &o, &g));
    qn_test_ok(qn_generation_next(g, &t));
    assert_int_equal(t.id, 20);
    assert_int_equal(qn_generation_next(g, &t), QN_E_ARG);
    assert_int_equal(t.end, QN_END_ERROR);
    assert_non_null(strstr(qn_last_error(), "leave no token that could come next"));
    qn_generation_close(g);
    qn_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_banned_words),
        cmocka_unit_test(test_nothing_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
