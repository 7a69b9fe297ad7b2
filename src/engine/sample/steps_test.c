/* What the steps promise besides their values (chains_test.c): refusals, state, draws, memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/sample/sampler.h"

enum { N = 700, WIDE = 20011, CONTEXT = 64 };

static const char *const none[] = {NULL};

static void fill(float *x, int64_t n, float spread, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) x[i] = spread * (float)qn_random_unit(seed, (uint64_t)i);
}

typedef struct {
    qn_words *words;
    qn_sampler *s;
} made;

static made make(const qn_generate_options *o, int64_t n)
{
    made m = {NULL, NULL};
    if (qn_words_are_needed(o)) assert_int_equal(qn_words_new(NULL, o, n, CONTEXT, &m.words), QN_OK);
    assert_int_equal(qn_sampler_new(NULL, o, n, m.words, &m.s), QN_OK);
    return m;
}

static void end(made *m)
{
    qn_sampler_free(m->s);
    qn_words_free(m->words);
}

static void test_refusals(void **state)
{
    static const qn_sampler_step early[] = {QN_SAMPLER_MIROSTAT, QN_SAMPLER_TOP_K};
    static const char *const empty[] = {""}, *const latin[] = {"\xe9"};
    static const int32_t id = 10;
    static const qn_ids hole = {NULL, 1}, nothing = {&id, 0}, outside = {&id, 1};
    const struct {
        qn_generate_options o;
        const char *message;
    } cases[] = {
        {{.repeat_last_n = -2}, "repeat_last_n: -2 is not in the range -1 to 2.14748e+09"},
        {{.typical_p = 1.5f}, "typical_p: 1.5 is not in the range 0 to 1"},
        {{.top_n_sigma = NAN}, "top_n_sigma: nan is not in the range -1 to 1000"},
        {{.xtc_probability = -1}, "xtc_probability: -1 is not in the range 0 to 1"},
        {{.xtc_threshold = 2}, "xtc_threshold: 2 is not in the range 0 to 1"},
        {{.dynatemp_range = -1}, "dynatemp_range: -1 is not in the range 0 to 1000"},
        {{.dynatemp_exponent = INFINITY}, "dynatemp_exponent: inf is not in the range 0 to 100"},
        {{.mirostat = 3}, "mirostat: 3 is not in the range 0 to 2"},
        {{.mirostat_tau = -1}, "mirostat_tau: -1 is not in the range 0 to 100"},
        {{.mirostat_eta = 2}, "mirostat_eta: 2 is not in the range 0 to 1"},
        {{.dry_multiplier = -1}, "dry_multiplier: -1 is not in the range 0 to 100"},
        {{.dry_base = 0.5f}, "dry_base: 0.5 is not in the range 1 to 100"},
        {{.dry_allowed_length = -1}, "dry_allowed_length: -1 is not in the range 0 to 2.14748e+09"},
        {{.dry_penalty_last_n = -2}, "dry_penalty_last_n: -2 is not in the range -1 to 2.14748e+09"},
        {{.dry_sequence_breakers = empty, .n_dry_sequence_breakers = 1},
         "dry_sequence_breakers: entry 0 is empty"},
        {{.dry_sequence_breakers = empty, .n_dry_sequence_breakers = 65},
         "dry_sequence_breakers: 65 entries, at most 64 are allowed"},
        {{.n_bad_words = 1}, "bad_words is NULL"},
        {{.bad_words = empty, .n_bad_words = 1}, "bad_words: entry 0 is empty"},
        {{.n_bad_ids = 1}, "bad_ids is NULL"},
        {{.bad_ids = &hole, .n_bad_ids = 1}, "bad_ids: entry 0 is NULL"},
        {{.n_bad_ids = 1025}, "bad_ids: 1025 entries, at most 1024 are allowed"},
        {{.n_allowed_ids = 1}, "allowed_ids is NULL"},
        {{.allowed_ids = &id}, "allowed_ids: no token is allowed"},
        {{.mirostat = 1, .sampler_order = early, .n_sampler_order = 2},
         "sampler_order: top_k comes after mirostat, which must be the last step"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(qn_sampler_check(&cases[i].o), QN_E_ARG);
        assert_string_equal(qn_last_error(), cases[i].message);
    }
    assert_int_equal(qn_sampler_check(&(qn_generate_options){.bad_words = latin, .n_bad_words = 1}),
                     QN_E_FORMAT);
    assert_string_equal(qn_last_error(), "bad_words: entry 0 is not valid UTF-8 at byte 0");
    assert_int_equal(qn_sampler_check(&(qn_generate_options){.sampler_order = early, .n_sampler_order = 2}),
                     QN_OK);

    const struct {
        qn_generate_options o;
        const char *message;
    } words[] = {
        {{.bad_words = none, .n_bad_words = 1}, "bad_words need a tokenizer, and there is none; use bad_ids"},
        {{.dry_multiplier = 1},
         "dry_sequence_breakers need a tokenizer, and there is none; give an empty list"},
        {{.bad_ids = &nothing, .n_bad_ids = 1}, "bad_ids: a word has no tokens"},
        {{.bad_ids = &outside, .n_bad_ids = 1}, "bad_ids: token id 10 is outside the vocabulary of 10"},
        {{.allowed_ids = &id, .n_allowed_ids = 1},
         "allowed_ids: token id 10 is outside the vocabulary of 10"},
    };
    qn_words *w = NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        assert_int_equal(qn_words_new(NULL, &words[i].o, 10, CONTEXT, &w), QN_E_ARG);
        assert_string_equal(qn_last_error(), words[i].message);
    }
    qn_sampler *s = NULL;
    assert_int_equal(qn_sampler_new(NULL, &words[1].o, 10, NULL, &s), QN_E_INTERNAL);
    assert_null(w);
    assert_null(s);
}

static void test_names(void **state)
{
    const struct {
        const char *name;
        qn_sampler_step step;
    } names[] = {{"penalties", QN_SAMPLER_REPEAT_PENALTY},
                 {"typ_p", QN_SAMPLER_TYPICAL_P},
                 {"typical", QN_SAMPLER_TYPICAL_P},
                 {"dry", QN_SAMPLER_DRY},
                 {"mirostat", QN_SAMPLER_MIROSTAT}};
    qn_sampler_step step = QN_SAMPLER_COUNT;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_true(qn_sampler_step_from_name(names[i].name, strlen(names[i].name), &step));
        assert_int_equal(step, names[i].step);
    }
    assert_true(qn_sampler_step_from_name("top_p,dry", 5, &step));
    assert_int_equal(step, QN_SAMPLER_TOP_P);
    assert_false(qn_sampler_step_from_name("top", 3, &step));
    assert_false(qn_sampler_step_from_name("", 0, &step));
}

/* A window gives what a sampler gives that never saw the tokens before it. */
static void test_windows(void **state)
{
    enum { TOKENS = 90, PROMPT = 30, KINDS = 12 };
    float logits[N], got[N], want[N];
    int32_t tokens[TOKENS];
    fill(logits, N, 6, 3);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)(qn_random_bits(4, (uint64_t)i) % KINDS);
    for (int window = 1; window <= 70; window += 1 + window / 2) {
        qn_generate_options o = {.temperature = 1,
                                 .repeat_penalty = 1.5f,
                                 .presence_penalty = 0.5f,
                                 .frequency_penalty = 0.25f,
                                 .repeat_last_n = window};
        made m = make(&o, N);
        for (int n = 0; n < TOKENS; n++) {
            if (n < PROMPT)
                assert_int_equal(qn_sampler_accept(m.s, &tokens[n], 1), QN_OK);
            else
                assert_int_equal(qn_sampler_accept_drawn(m.s, tokens[n]), QN_OK);
            if (n % 7) continue;
            o.repeat_last_n = 0;
            made fresh = make(&o, N);
            const int kept = window < CONTEXT ? window : CONTEXT;
            for (int i = n + 1 < kept ? 0 : n + 1 - kept; i <= n; i++) {
                if (i < PROMPT)
                    assert_int_equal(qn_sampler_accept(fresh.s, &tokens[i], 1), QN_OK);
                else
                    assert_int_equal(qn_sampler_accept_drawn(fresh.s, tokens[i]), QN_OK);
            }
            assert_int_equal(qn_sampler_distribution(m.s, logits, 0, got), QN_OK);
            assert_int_equal(qn_sampler_distribution(fresh.s, logits, 0, want), QN_OK);
            assert_memory_equal(got, want, sizeof got);
            end(&fresh);
        }
        end(&m);
    }
}

/* XTC strikes as often as it should, and always at the same positions of a seed. */
static void test_xtc_chance(void **state)
{
    float logits[N], p[N], again[N];
    int n_struck = 0;
    fill(logits, N, 1, 5);
    logits[8] = 9, logits[40] = 8.5f;
    const qn_generate_options o = {.temperature = 1, .xtc_probability = 0.3f, .seed = 9};
    made m = make(&o, N), other = make(&o, N);
    for (int64_t position = 999; position >= 0; position--) {
        assert_int_equal(qn_sampler_distribution(m.s, logits, position, p), QN_OK);
        n_struck += p[8] == 0;
        assert_true(p[40] > 0);
        if (position % 50) continue;
        assert_int_equal(qn_sampler_distribution(other.s, logits, position, again), QN_OK);
        assert_memory_equal(p, again, sizeof p);
    }
    assert_true(n_struck > 250 && n_struck < 350);
    end(&m);
    end(&other);
}

/* Filters and mirostat have no part in greedy decoding; DRY has. */
static void test_greedy(void **state)
{
    float logits[N], p[N];
    int32_t id = -1;
    fill(logits, N, 1, 6);
    logits[5] = 3, logits[7] = 2.9f;
    const qn_generate_options filters = {.typical_p = 0.1f,
                                         .top_n_sigma = 0.1f,
                                         .xtc_probability = 1,
                                         .xtc_threshold = 1e-4f,
                                         .dynatemp_range = 1,
                                         .mirostat = 2},
                              dry = {.dry_multiplier = 1, .dry_sequence_breakers = none};
    made m = make(&filters, N);
    assert_true(qn_sampler_takes_best(m.s));
    assert_int_equal(qn_sampler_draw(m.s, logits, 0, &id), QN_OK);
    assert_int_equal(id, 5);
    end(&m);
    m = make(&dry, N);
    assert_false(qn_sampler_takes_best(m.s));
    assert_int_equal(qn_sampler_accept(m.s, (int32_t[]){1, 2, 5, 1, 2}, 5), QN_OK);
    assert_int_equal(qn_sampler_draw(m.s, logits, 0, &id), QN_OK);
    assert_int_equal(id, 7);
    assert_int_equal(qn_sampler_distribution(m.s, logits, 0, p), QN_OK);
    assert_true(p[7] == 1 && p[5] == 0);
    end(&m);
}

/* mu follows the surprise of each drawn token once, however often a draw is repeated. */
static void test_mirostat_state(void **state)
{
    float logits[N], p[N];
    fill(logits, N, 8, 7);
    for (int version = 1; version <= 2; version++) {
        const qn_generate_options o = {
            .temperature = 1, .mirostat = version, .mirostat_tau = 3, .mirostat_eta = 0.2f, .seed = 11};
        made m = make(&o, N), other = make(&o, N);
        const qn_generate_options open = {.temperature = 1};
        made all = make(&open, N);
        assert_int_equal(qn_sampler_distribution(all.s, logits, 0, p), QN_OK);
        double mu = 6;
        for (int64_t position = 0; position < 60; position++) {
            int32_t id, again;
            assert_true(fabs(qn_sampler_mirostat_mu(m.s) - mu) < 1e-4);
            assert_int_equal(qn_sampler_draw(m.s, logits, position, &id), QN_OK);
            for (int i = 0; i < 3; i++) {
                assert_int_equal(qn_sampler_draw(other.s, logits, position, &again), QN_OK);
                assert_int_equal(id, again);
            }
            assert_int_equal(qn_sampler_accept_drawn(m.s, id), QN_OK);
            assert_int_equal(qn_sampler_accept_drawn(other.s, id), QN_OK);
            assert_true(qn_sampler_mirostat_mu(m.s) == qn_sampler_mirostat_mu(other.s));
            mu -= (double)0.2f * (-log2((double)p[id]) - 3);
        }
        end(&m);
        end(&other);
        end(&all);
    }
}

static int bit(const uint32_t *bits, int64_t i)
{
    return (int)(bits[i / 32] >> (i % 32) & 1);
}

/* Under a mask a chain draws as if the other logits had been -inf from the beginning: behind biases and bans, before
 * the first step; and without the mask as ever. */
static void test_masks(void **state)
{
    static float logits[WIDE], hidden[WIDE], p[WIDE], q[WIDE];
    static const qn_logit_bias bias[] = {{3, 5}, {64, -4}, {700, 9}};
    static const int32_t single = 9;
    static const qn_ids bad = {&single, 1};
    const qn_generate_options ways[] = {
        {0},
        {.temperature = 1},
        {.temperature = 0.7f, .top_p = 0.8f, .repeat_penalty = 1.5f},
        {.temperature = 1,
         .logit_bias = bias,
         .n_logit_bias = 3,
         .presence_penalty = 1,
         .bad_ids = &bad,
         .n_bad_ids = 1},
        {.temperature = 1, .top_k = 40, .min_p = 0.01f, .typical_p = 0.9f, .mirostat = 2},
    };
    static uint32_t bits[(WIDE + 31) / 32];
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        for (uint64_t share = 1; share <= 4096; share *= 16) { /* one token of so many may come */
            made masked = make(&ways[w], WIDE), plain = make(&ways[w], WIDE);
            int32_t id, want;
            fill(logits, WIDE, 9, 20 + share);
            memset(bits, 0, sizeof bits);
            for (int64_t i = 0; i < WIDE; i++)
                if (qn_random_bits(21, (uint64_t)i) % share == 0) bits[i / 32] |= UINT32_C(1) << (i % 32);
            for (int64_t i = 0; i < WIDE; i++) hidden[i] = bit(bits, i) ? logits[i] : -INFINITY;
            assert_int_equal(qn_sampler_allow_masks(masked.s), QN_OK);
            assert_int_equal(qn_sampler_accept_forced(masked.s, 700), QN_OK);
            assert_int_equal(qn_sampler_accept_forced(plain.s, 700), QN_OK);
            qn_sampler_set_mask(masked.s, bits);
            assert_int_equal(qn_sampler_distribution(masked.s, logits, 0, p), QN_OK);
            assert_int_equal(qn_sampler_distribution(plain.s, hidden, 0, q), QN_OK);
            for (int64_t i = 0; i < WIDE; i++) {
                if (fabsf(p[i] - q[i]) > 1e-6f * q[i])
                    fail_msg("way %zu, share %d, token %d: %g, want %g", w, (int)share, (int)i, (double)p[i],
                             (double)q[i]);
                if (!bit(bits, i)) assert_true(p[i] == 0);
            }
            for (int64_t position = 0; position < 20; position++) {
                assert_int_equal(qn_sampler_draw(masked.s, logits, position, &id), QN_OK);
                assert_int_equal(qn_sampler_draw(plain.s, hidden, position, &want), QN_OK);
                assert_int_equal(id, want);
            }
            qn_sampler_set_mask(masked.s, NULL);
            assert_int_equal(qn_sampler_draw(masked.s, logits, 7, &id), QN_OK);
            assert_int_equal(qn_sampler_draw(plain.s, logits, 7, &want), QN_OK);
            assert_int_equal(id, want);
            end(&masked);
            end(&plain);
        }
    }
}

/* A mask that leaves nothing is no fault of the model's, a NaN is. */
static void test_empty_masks(void **state)
{
    static float logits[N];
    uint32_t bits[(N + 31) / 32] = {0};
    const qn_generate_options greedy = {0};
    int32_t id;
    made m = make(&greedy, N);
    fill(logits, N, 1, 30);
    logits[40] = 5;
    assert_int_equal(qn_sampler_allow_masks(m.s), QN_OK);
    assert_true(qn_sampler_takes_best(m.s));
    qn_sampler_set_mask(m.s, bits);
    assert_int_equal(qn_sampler_draw(m.s, logits, 0, &id), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "leave no token that the constraint allows"));
    bits[0] = 6;
    assert_int_equal(qn_sampler_draw(m.s, logits, 0, &id), QN_OK);
    assert_true(id == 1 || id == 2);
    assert_false(qn_sampler_takes_best(m.s)); /* it was another one */
    bits[1] = 1 << 8;
    assert_int_equal(qn_sampler_draw(m.s, logits, 0, &id), QN_OK);
    assert_int_equal(id, 40);
    assert_true(qn_sampler_takes_best(m.s));
    bits[1] = 0;
    logits[1] = NAN;
    assert_int_equal(qn_sampler_draw(m.s, logits, 0, &id), QN_E_INTERNAL);
    end(&m);
}

/* A banned token never comes, a word's last token comes unless the others are before it. */
static void test_bans(void **state)
{
    float logits[N], p[N];
    static const int32_t word[] = {4, 5, 6}, single = 9, allowed[] = {6, 9, 11};
    const qn_ids bad[] = {{word, 3}, {&single, 1}};
    qn_generate_options o = {.temperature = 1, .bad_ids = bad, .n_bad_ids = 2};
    fill(logits, N, 2, 8);
    made m = make(&o, N);
    assert_false(qn_sampler_takes_best(m.s));
    assert_int_equal(qn_sampler_accept(m.s, (int32_t[]){5, 4}, 2), QN_OK);
    assert_int_equal(qn_sampler_distribution(m.s, logits, 0, p), QN_OK);
    assert_true(p[9] == 0 && p[6] > 0 && p[5] > 0);
    assert_int_equal(qn_sampler_accept_drawn(m.s, 5), QN_OK);
    assert_int_equal(qn_sampler_distribution(m.s, logits, 0, p), QN_OK);
    assert_true(p[9] == 0 && p[6] == 0 && p[5] > 0);
    end(&m);
    /* Whatever is added to it. */
    const qn_logit_bias bias = {9, 100};
    o.allowed_ids = allowed;
    o.n_allowed_ids = 3;
    o.logit_bias = &bias;
    o.n_logit_bias = 1;
    m = make(&o, N);
    assert_int_equal(qn_sampler_distribution(m.s, logits, 0, p), QN_OK);
    for (int i = 0; i < N; i++) assert_true((p[i] > 0) == (i == 6 || i == 11));
    end(&m);
    /* Bans that leave no token are the request's fault, NaN is the model's. */
    o.n_allowed_ids = 2;
    m = make(&o, N);
    assert_int_equal(qn_sampler_accept(m.s, (int32_t[]){4, 5}, 2), QN_OK);
    int32_t id;
    assert_int_equal(qn_sampler_draw(m.s, logits, 0, &id), QN_E_ARG);
    assert_string_equal(qn_last_error(), "allowed_ids and the bad words leave no token that could come next");
    logits[6] = NAN;
    assert_int_equal(qn_sampler_draw(m.s, logits, 0, &id), QN_E_INTERNAL);
    end(&m);
}

/* Chains with all steps over more tokens than a list holds. */
static const qn_generate_options grid[] = {
    {.temperature = 1, .typical_p = 0.9f},
    {.temperature = 1, .typical_p = 0.95f, .top_p = 0.99f, .xtc_probability = 1, .xtc_threshold = 1e-5f},
    {.temperature = 0.8f, .dynatemp_range = 0.5f, .top_n_sigma = 1},
    {.temperature = 1.5f, .mirostat = 1},
    {.temperature = 1.5f, .mirostat = 2},
    {.temperature = 1,
     .dry_multiplier = 1,
     .dry_allowed_length = 1,
     .dry_sequence_breakers = none,
     .repeat_penalty = 1.1f,
     .repeat_last_n = 20},
    {.temperature = 0, .dry_multiplier = 1, .dry_sequence_breakers = none, .frequency_penalty = 0.1f},
};
enum { N_GRID = sizeof grid / sizeof *grid };

static void test_no_allocation_per_token(void **state)
{
    static float logits[WIDE], p[WIDE];
    fill(logits, WIDE, 0.5f, 9);
    for (size_t g = 0; g < N_GRID; g++) {
        made m = make(&grid[g], WIDE);
        const int64_t before = qn_mem_allocations();
        for (int64_t i = 0; i < 3 * CONTEXT; i++) {
            int32_t id = -1;
            assert_int_equal(qn_sampler_draw(m.s, logits, i, &id), QN_OK);
            if (i % 16 == 0) {
                assert_int_equal(qn_sampler_distribution(m.s, logits, i, p), QN_OK);
                assert_true(p[id] > 0);
            }
            assert_int_equal(qn_sampler_accept_drawn(m.s, id), QN_OK);
        }
        assert_int_equal(qn_mem_allocations(), before);
        end(&m);
    }
}

static void test_allocation_failures(void **state)
{
    static const int32_t ids[] = {3, 4};
    const qn_ids bad = {ids, 2};
    const qn_generate_options o = {.temperature = 1,
                                   .repeat_penalty = 1.1f,
                                   .repeat_last_n = 9,
                                   .presence_penalty = 1,
                                   .typical_p = 0.5f,
                                   .dry_multiplier = 1,
                                   .dry_sequence_breakers = none,
                                   .bad_ids = &bad,
                                   .n_bad_ids = 1,
                                   .allowed_ids = ids,
                                   .n_allowed_ids = 2};
    const int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1;; n++) {
        qn_words *words = NULL;
        qn_sampler *s = NULL;
        assert_true(n < 2000);
        qn_mem_fail_nth(n);
        qn_status status = qn_words_new(NULL, &o, 100, CONTEXT, &words);
        if (status == QN_OK) status = qn_sampler_new(NULL, &o, 100, words, &s);
        qn_mem_fail_nth(0);
        qn_sampler_free(s);
        qn_words_free(words);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_null(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_xtc_chance),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_mirostat_state),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_empty_masks),
        cmocka_unit_test(test_bans),
        cmocka_unit_test(test_no_allocation_per_token),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
