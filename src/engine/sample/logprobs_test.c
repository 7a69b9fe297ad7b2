#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/sample/logprobs.h"

enum { MOST = 20011 };

static float logits[MOST];

static int falling(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (logits[x] != logits[y]) return logits[x] < logits[y] ? 1 : -1;
    return x < y ? -1 : x > y;
}

/* Against sums in float64 and a full sort: sizes around blocks, ties, tokens that cannot come. */
static void test_against_definition(void **state)
{
    static int32_t order[MOST];
    const int64_t sizes[] = {1, 2, 19, 20, 21, 255, 256, 257, 4095, 4096, 4097, MOST};
    const float steps[] = {0, 0.5f};
    for (size_t c = 0; c < 2 * sizeof sizes / sizeof *sizes; c++) {
        int64_t n = sizes[c / 2], n_can = 0;
        float step = steps[c % 2];
        double sum = 0;
        for (int32_t i = 0; i < n; i++) {
            float x = 12 * (float)qn_random_unit(c, (uint64_t)i) - 4;
            logits[i] = step > 0 ? step * nearbyintf(x / step) : x;
            if (n > 2 && qn_random_unit(77, (uint64_t)i) < 0.2) logits[i] = -INFINITY;
            if (logits[i] > -INFINITY) n_can++;
            sum += exp((double)logits[i]);
            order[i] = i;
        }
        qsort(order, (size_t)n, sizeof *order, falling);
        qn_logprobs l;
        qn_top_logprob top[QN_TOP_LOGPROBS_MAX];
        assert_int_equal(qn_logprobs_read(NULL, logits, n, &l), QN_OK);
        for (int32_t i = 0; i < n; i++) {
            double got = qn_logprobs_of(&l, i), want = (double)logits[i] - log(sum);
            assert_true(got == want || fabs(got - want) < 2e-6);
        }
        for (int32_t n_top = 0; n_top <= QN_TOP_LOGPROBS_MAX; n_top++) {
            assert_int_equal(qn_logprobs_top(&l, n_top, top), n_top < n_can ? n_top : n_can);
            for (int32_t i = 0; i < n_top && i < n_can; i++) {
                assert_int_equal(top[i].id, order[i]);
                assert_true(top[i].logprob == (float)qn_logprobs_of(&l, order[i]));
            }
        }
    }
}

static void test_not_finite(void **state)
{
    const float bad[] = {NAN, INFINITY};
    const int64_t places[] = {0, 300, 4999, 5000, 9999};
    qn_logprobs l;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        for (int k = 0; k < 2; k++) {
            memset(logits, 0, sizeof logits);
            logits[places[i]] = bad[k];
            assert_int_equal(qn_logprobs_read(NULL, logits, 10000, &l), QN_E_INTERNAL);
        }
    }
    for (int i = 0; i < 100; i++) logits[i] = -INFINITY;
    assert_int_equal(qn_logprobs_read(NULL, logits, 100, &l), QN_E_INTERNAL);
    logits[5] = 3e38f;
    assert_int_equal(qn_logprobs_read(NULL, logits, 100, &l), QN_OK);
    assert_true(qn_logprobs_of(&l, 5) == 0 && qn_logprobs_of(&l, 6) == -INFINITY);
}

static void test_no_allocation(void **state)
{
    qn_logprobs l;
    qn_top_logprob top[QN_TOP_LOGPROBS_MAX];
    memset(logits, 0, sizeof logits);
    int64_t before = qn_mem_allocations();
    assert_int_equal(qn_logprobs_read(NULL, logits, MOST, &l), QN_OK);
    assert_int_equal(qn_logprobs_top(&l, 20, top), 20);
    assert_int_equal(qn_mem_allocations(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_definition),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
