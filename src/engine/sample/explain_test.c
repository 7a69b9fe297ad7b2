/* What a draw picked from: probabilities after the chain beside the whole distribution; biases that ban. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "base/random.h"
#include "engine/sample/sampler.h"

enum { FEW = 53, MANY = 20011, TOP = QN_TOP_LOGPROBS_MAX };

static void fill(float *logits, int64_t n, float spread, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        logits[i] =
            spread * (float)(qn_random_unit(seed, (uint64_t)i) + qn_random_unit(seed + 1, (uint64_t)i));
}

/* The likeliest tokens of p, by looking through all. */
static int32_t find_top(const float *p, int64_t n, int32_t n_top, int32_t *ids)
{
    int32_t found = 0;
    for (; found < n_top; found++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++) {
            int is_taken = !(p[i] > 0);
            for (int32_t k = 0; k < found; k++) is_taken |= ids[k] == i;
            if (!is_taken && (best < 0 || p[i] > p[best])) best = i;
        }
        if (best < 0) break;
        ids[found] = best;
    }
    return found;
}

static void check_draw(qn_sampler *s, const float *logits, int64_t n, int64_t position, int32_t n_top)
{
    static float p[MANY];
    qn_top_logprob top[TOP];
    int32_t wanted[TOP], id, n_there = -1;
    float logprob = 1;
    double sum = 0;
    assert_int_equal(qn_sampler_distribution(s, logits, position, p), QN_OK);
    assert_int_equal(qn_sampler_draw(s, logits, position, &id), QN_OK);
    qn_sampler_explain(s, id, n_top, &logprob, top, &n_there);
    assert_true(fabs(exp((double)logprob) - (double)p[id]) < 1e-6);
    assert_int_equal(n_there, find_top(p, n, n_top, wanted));
    for (int32_t i = 0; i < n_there; i++) {
        assert_true(fabs(exp((double)top[i].logprob) - (double)p[wanted[i]]) < 1e-6);
        assert_true(!i || top[i - 1].logprob > top[i].logprob ||
                    (top[i - 1].logprob == top[i].logprob && top[i - 1].id < top[i].id));
        sum += exp((double)top[i].logprob);
    }
    assert_true(sum < 1 + 1e-5 && (n_there == n_top || fabs(sum - 1) < 1e-5));
}

static void test_explain(void **state)
{
    static float logits[MANY];
    static const qn_logit_bias bias[] = {{5, 3}, {9, -INFINITY}};
    static const qn_generate_options cases[] = {
        {.temperature = 1, .seed = 3},
        {.temperature = 0},
        {.temperature = 0.3f, .top_p = 0.8f, .seed = 4},
        {.temperature = 1.5f, .min_p = 0.1f, .seed = 5},
        {.temperature = 1, .top_k = 7, .repeat_penalty = 1.4f, .seed = 6},
        {.temperature = 0.7f, .typical_p = 0.6f, .xtc_probability = 0.5f, .seed = 7},
        {.temperature = 1, .dynatemp_range = 0.5f, .top_n_sigma = 1.5f, .seed = 8},
        {.temperature = 1, .logit_bias = bias, .n_logit_bias = 2, .frequency_penalty = 1, .seed = 9},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int large = 0; large < 2; large++) {
            const int64_t n = large ? MANY : FEW;
            qn_sampler *s = NULL;
            assert_int_equal(qn_sampler_new(NULL, &cases[i], n, NULL, &s), QN_OK);
            for (int64_t position = 0; position < 4; position++) {
                fill(logits, n, 6, (uint64_t)(position + 10 * (int64_t)i));
                check_draw(s, logits, n, position, position == 3 ? 0 : position == 2 ? TOP : 5);
                assert_int_equal(qn_sampler_accept_drawn(s, (int32_t)(position * 3)), QN_OK);
            }
            qn_sampler_free(s);
        }
}

/* A token with the bias -inf is never drawn; if that leaves none, it is the options' fault. */
static void test_banned(void **state)
{
    float logits[4] = {1, 9, 2, 0}, p[4];
    static const qn_logit_bias bias[] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}, {3, -INFINITY}};
    (void)state;
    for (float temperature = 0; temperature < 2; temperature++)
        for (size_t n = 1; n <= 4; n++) {
            const qn_generate_options o = {.temperature = temperature, .logit_bias = bias, .n_logit_bias = n};
            qn_sampler *s = NULL;
            assert_int_equal(qn_sampler_new(NULL, &o, 4, NULL, &s), QN_OK);
            const qn_status status = qn_sampler_distribution(s, logits, 0, p);
            assert_int_equal(status, n < 4 ? QN_OK : QN_E_ARG);
            for (size_t i = 0; i < n && n < 4; i++) assert_true(p[i] == 0);
            if (n == 4)
                assert_string_equal(qn_last_error(),
                                    "logit_bias, allowed_ids and the bad words leave no token "
                                    "that could come next");
            qn_sampler_free(s);
        }
}

static void test_options(void **state)
{
    const qn_generate_options o = {.post_sampling = 1};
    qn_sampler *s = NULL;
    (void)state;
    assert_int_equal(qn_sampler_new(NULL, &o, 4, NULL, &s), QN_E_ARG);
    assert_string_equal(qn_last_error(), "post_sampling needs logprobs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_banned),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests_name("explain", tests, NULL, NULL);
}
