/* Guesses against a search without tables, and the rule that says whether they pay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/schedule/draft.h"

/* The position behind the last earlier occurrence of the last `length` ids; 0: none in sight. */
static int64_t find_plainly(const int32_t *ids, int64_t n, int length)
{
    for (int64_t at = n - 1; at >= length && n - (at - length) <= QN_DRAFT_WINDOW; at--)
        if (memcmp(ids + at - length, ids + n - length, (size_t)length * sizeof *ids) == 0) return at;
    return 0;
}

static void test_finds_what_followed_before(void **state)
{
    enum { N = 2 * QN_DRAFT_WINDOW };
    int32_t *ids = qn_alloc_array(N, sizeof *ids), guess[QN_DRAFT_MAX];
    int64_t n_found = 0, n_missed = 0, n_checked = 0;
    for (uint64_t seed = 1; seed < 3; seed++) {
        qn_draft *d = NULL;
        assert_int_equal(qn_draft_new(&d), QN_OK);
        int64_t ends = 0; /* of the guess that is being compared */
        for (int64_t n = 0; n < N; n++) {
            int repeats = n > 50 && qn_random_bits(seed, (uint64_t)n / 20) % 2;
            ids[n] = repeats ? ids[n - 40] : (int32_t)(qn_random_bits(seed, (uint64_t)n + N) % 300);
            int is_wrong = n < ends && n_found && ids[n] != guess[QN_DRAFT_MAX - (ends - n)];
            qn_draft_add(d, ids[n]);
            if (n + 1 < ends && !is_wrong) continue;
            int64_t at = find_plainly(ids, n + 1, 4), got = qn_draft_guess(d, QN_DRAFT_MAX, guess);
            if (!at) at = find_plainly(ids, n + 1, 2);
            n_checked++;
            ends = n + 1 + got;
            if (got == 0) { /* an entry of the table may have gone to another pair */
                n_missed += at != 0;
                continue;
            }
            n_found++;
            assert_int_equal(got, QN_DRAFT_MAX);
            assert_true(at > 0);
            if (guess[0] != ids[at]) n_missed++;
        }
        qn_draft_free(d);
    }
    assert_true(n_found > 500 && n_missed * 10 < n_checked);
    qn_free(ids);
}

static void test_repeats_what_repeats(void **state)
{
    const int32_t loop[] = {5, 9, 2, 9, 7};
    int32_t guess[QN_DRAFT_MAX];
    qn_draft *d = NULL;
    assert_int_equal(qn_draft_new(&d), QN_OK);
    for (int i = 0; i < 5 + 3; i++) qn_draft_add(d, loop[i % 5]);
    assert_int_equal(qn_draft_guess(d, QN_DRAFT_MAX, guess), QN_DRAFT_MAX);
    for (int i = 0; i < QN_DRAFT_MAX; i++) assert_int_equal(guess[i], loop[(3 + i) % 5]);
    /* A part that came true leaves the rest; a wrong one ends it. */
    qn_draft_add(d, guess[0]);
    int32_t rest[QN_DRAFT_MAX];
    assert_int_equal(qn_draft_guess(d, 4, rest), 4);
    assert_memory_equal(rest, guess + 1, sizeof *rest * 4);
    qn_draft_add(d, 1000);
    assert_int_equal(qn_draft_guess(d, 4, rest), 0);
    qn_draft_free(d);
}

/* Measured costs: a step of one row takes 1, each further row `row`. */
static void tell_costs(qn_step_costs *c, double row, int64_t n_rows)
{
    for (int64_t i = 1; i <= n_rows; i++) qn_step_costs_note(c, i, 1e6 * (1 + row * (double)(i - 1)));
}

/* Guesses that come true or not, as `right` says, n times; then what is worth computing. */
static int64_t worth_after(double right, double row, int64_t n_rows)
{
    qn_step_costs c = {0};
    qn_draft *d = NULL;
    int32_t guess[QN_DRAFT_MAX];
    tell_costs(&c, row, 40);
    assert_int_equal(qn_draft_new(&d), QN_OK);
    for (int i = 0; i < 8; i++) qn_draft_add(d, i % 3);
    for (uint64_t i = 0; i < 2000; i++) {
        int64_t n = qn_draft_guess(d, QN_DRAFT_MAX, guess);
        int32_t other = 1 + (int32_t)(qn_random_bits(9, i) % 10), id = n ? guess[0] : other;
        if (n && qn_random_unit(7, i) >= right) id = (guess[0] + other) % 11;
        qn_draft_add(d, id);
    }
    int64_t worth = 0;
    int64_t n = 0;
    for (int i = 0; i < 100 && !n; i++) {
        qn_draft_add(d, (int32_t)(qn_random_bits(8, (uint64_t)i) % 11));
        n = qn_draft_guess(d, QN_DRAFT_MAX, guess);
        worth = qn_draft_worth(d, &c, n_rows, n);
    }
    assert_true(n > 0);
    qn_draft_free(d);
    return worth;
}

static void test_is_off_where_it_does_not_pay(void **state)
{
    assert_true(worth_after(1.0, 0.05, 1) >= 8);
    assert_int_equal(worth_after(0.02, 0.05, 1), 0);
    assert_int_equal(worth_after(0.9, 1.0, 1), 0);  /* a row costs a step */
    assert_int_equal(worth_after(0.5, 0.95, 8), 0); /* so it does in a batch */
    assert_true(worth_after(0.9, 0.02, 8) > 0);
    assert_int_equal(worth_after(1.0, 0.05, QN_STEP_ROWS), 0); /* nothing is known of such steps */
    qn_step_costs none = {0};
    qn_draft *d = NULL;
    assert_int_equal(qn_draft_new(&d), QN_OK);
    assert_int_equal(qn_draft_worth(d, &none, 1, 4), 0);
    qn_draft_free(d);
}

static void test_runs_out_of_memory(void **state)
{
    int64_t blocks = qn_mem_live_blocks();
    qn_draft *d = NULL;
    qn_mem_fail_nth(1);
    assert_int_equal(qn_draft_new(&d), QN_E_NOMEM);
    qn_mem_fail_nth(0);
    assert_int_equal(qn_mem_live_blocks(), blocks);
    assert_int_equal(qn_draft_new(&d), QN_OK);
    int64_t held = qn_mem_live_blocks();
    int32_t guess[QN_DRAFT_MAX];
    for (int i = 0; i < 30000; i++) {
        qn_draft_add(d, i % 77);
        qn_draft_guess(d, QN_DRAFT_MAX, guess);
    }
    assert_int_equal(qn_mem_live_blocks(), held);
    qn_draft_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_what_followed_before),
        cmocka_unit_test(test_repeats_what_repeats),
        cmocka_unit_test(test_is_off_where_it_does_not_pay),
        cmocka_unit_test(test_runs_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
