/* Runs of given lengths, by a clock of the test's: who takes them, and what that costs. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include "base/pace.h"

enum { MS = 1000000, SECOND = 1000 * MS };

typedef struct {
    qn_pace pace;
    int64_t now, alone_ns; /* alone_ns: of the last `go` */
    int n_trials;
} clocked;

/* For so long, runs that take `together` and `alone`. */
static void go(clocked *c, int64_t for_ns, int64_t together, int64_t alone, int is_disturbed)
{
    const int64_t end = c->now + for_ns;
    c->alone_ns = c->n_trials = 0;
    for (int was_trial = c->pace.state == QN_PACE_TRIAL; c->now < end;) {
        const int is_alone = qn_pace_is_alone(&c->pace, c->now);
        const int64_t took = is_alone ? alone : together;
        c->n_trials += c->pace.state == QN_PACE_TRIAL && !was_trial;
        was_trial = c->pace.state == QN_PACE_TRIAL;
        c->now += took;
        if (is_alone) c->alone_ns += took;
        qn_pace_count(&c->pace, took, c->now, is_disturbed);
    }
}

static void together_in_quiet(void **state)
{
    clocked c = {.now = SECOND};
    go(&c, 20 * (int64_t)SECOND, 3 * MS, 1 * MS, 0);
    assert_int_equal(c.alone_ns, 0);
}

static void alone_while_it_is_faster(void **state)
{
    clocked c = {.now = SECOND};
    go(&c, 90 * MS, 7 * MS, 5 * MS, 1);
    assert_int_equal(c.alone_ns, 0);
    go(&c, 20 * (int64_t)SECOND, 7 * MS, 5 * MS, 1);
    assert_true(c.alone_ns > 19 * (int64_t)SECOND);
    assert_int_equal(c.n_trials, 1); /* then looks */
    go(&c, SECOND, 3 * MS, 5 * MS, 0);
    assert_true(c.alone_ns <= 510 * MS);
    go(&c, 20 * (int64_t)SECOND, 3 * MS, 5 * MS, 0);
    assert_int_equal(c.alone_ns, 0);
    go(&c, SECOND, 7 * MS, 5 * MS, 1); /* and at once again */
    assert_true(c.alone_ns > 850 * MS);
}

/* Waits have many causes: trials in vain are rare, and rarer in time. */
static void trials_in_vain(void **state)
{
    static const int64_t alone[] = {2 * MS, 10 * MS, 400 * MS};
    for (int i = 0; i < 3; i++) {
        clocked c = {.now = SECOND};
        go(&c, 7 * (int64_t)SECOND, 2 * MS, alone[i], 1);
        assert_int_equal(c.n_trials, 3);
        go(&c, 100 * (int64_t)SECOND, 2 * MS, alone[i], 1);
        assert_in_range(c.n_trials, 11, 13);
        assert_true(c.alone_ns <= c.n_trials * (30 * MS + alone[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(together_in_quiet),
        cmocka_unit_test(alone_while_it_is_faster),
        cmocka_unit_test(trials_in_vain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
