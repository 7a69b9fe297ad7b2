/* Pins with a time: what they outlast, what they give way to, in which order, and when they end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <unistd.h>

#include "base/mem.h"
#include "cache/tree.h"
#include "cache/tree_parts.h"
#include "tests/support/fake_cache.h"

enum { CAPACITY = 1024 };
static const qn_tree_key plain = {.adapter = -1};
static const int64_t hour_ns = INT64_C(3600) * 1000000000;

static int32_t *text(int32_t *ids, int number, int64_t n, int64_t shared)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(i < shared ? 5 + i % 3 : 1000 * number + i);
    return ids;
}

static void check(qn_fake_cache *c)
{
    const char *wrong = qn_tree_check(c->tree);
    if (wrong) fail_msg("%s", wrong);
}

static qn_tree_counters counters(const qn_fake_cache *c)
{
    qn_tree_counters now;
    qn_tree_get_counters(c->tree, &now);
    return now;
}

static void begin(qn_fake_cache *c, int n_groups, const int64_t *window, int64_t n_units, int64_t n_slots)
{
    assert_int_equal(qn_fake_cache_begin(c, n_groups, window, n_units, n_slots), QN_OK);
}

static void end(qn_fake_cache *c)
{
    check(c);
    assert_true(qn_fake_cache_end(c));
}

static void serve(qn_fake_cache *c, const int32_t *ids, int64_t n)
{
    qn_fake_sequence s;
    assert_int_equal(qn_fake_sequence_begin(&s, c, plain, CAPACITY), QN_OK);
    assert_int_equal(qn_fake_sequence_match(&s, ids, n - 1), QN_OK);
    if (s.length < n) assert_int_equal(qn_fake_sequence_compute(&s, ids + s.length, n - s.length), QN_OK);
    assert_int_equal(qn_fake_sequence_insert(&s, n, c->slots != NULL, 1), QN_OK);
    qn_fake_sequence_end(&s);
    qn_tree_trim(c->tree);
    check(c);
}

static int64_t peek(qn_fake_cache *c, const int32_t *ids, int64_t n)
{
    return qn_tree_peek(c->tree, &plain, ids, n);
}

/* It outlasts what comes and goes, and gives way to what would not fit otherwise. */
static void test_gives_way(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY], b[CAPACITY];
    (void)state;
    begin(&c, 1, NULL, 20, 0);
    text(a, 1, 200, 200);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 70, hour_ns), 0);
    serve(&c, a, 200);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 70, hour_ns), 70);
    check(&c);
    for (int i = 2; i < 20; i++) serve(&c, text(b, i, 300, 0), 300);
    assert_int_equal(peek(&c, a, 200), 70);
    assert_int_equal(counters(&c).timed_pins, 1);
    assert_int_equal(counters(&c).pins, 0);
    serve(&c, text(b, 30, 600, 0), 600); /* 19 of 20 pages */
    assert_int_equal(peek(&c, b, 600), 600);
    assert_int_equal(counters(&c).timed_pins, 0);
    assert_int_equal(counters(&c).given_up_pins, 1);
    assert_true(peek(&c, a, 200) < 70);
    end(&c);
}

/* Those that were set longest ago go first; setting one again makes it young. */
static void test_order(void **state)
{
    qn_fake_cache c;
    int32_t a[4][CAPACITY], b[CAPACITY];
    (void)state;
    begin(&c, 1, NULL, 20, 0);
    for (int i = 0; i < 4; i++) {
        serve(&c, text(a[i], 1 + i, 96, 0), 96);
        assert_int_equal(qn_tree_hold(c.tree, &plain, a[i], 96, hour_ns), 96);
    }
    assert_int_equal(qn_tree_hold(c.tree, &plain, a[0], 96, 1), 96); /* the time stays the longer one */
    assert_int_equal(counters(&c).timed_pins, 4);
    serve(&c, text(b, 9, 400, 0), 400); /* 13 of 20 pages; four prefixes have 12 */
    assert_int_equal(counters(&c).timed_pins, 2);
    assert_int_equal(peek(&c, a[0], 96), 96);
    assert_true(peek(&c, a[1], 96) < 96 && peek(&c, a[2], 96) < 96);
    assert_int_equal(peek(&c, a[3], 96), 96);
    end(&c);
}

static void test_time(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY], b[CAPACITY];
    (void)state;
    begin(&c, 1, NULL, 20, 0);
    serve(&c, text(a, 1, 96, 0), 96);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 96, 1000000), 96);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 40, INT64_MAX), 40);
    usleep(3000);
    for (int i = 2; i < 6; i++) serve(&c, text(b, i, 300, 0), 300);
    assert_int_equal(peek(&c, a, 96), 40); /* the longer one is over */
    assert_int_equal(counters(&c).timed_pins, 1);
    assert_int_equal(counters(&c).given_up_pins, 0);
    qn_tree_clear(c.tree);
    assert_int_equal(counters(&c).nodes, 0);
    end(&c);
}

/* A limit of the cache counts as a need. A pin by name stays in any case. */
static void test_limits(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY], b[CAPACITY];
    (void)state;
    begin(&c, 1, NULL, 100, 0);
    serve(&c, text(a, 1, 96, 0), 96);
    serve(&c, text(b, 2, 96, 0), 96);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 96, hour_ns), 96);
    assert_int_equal(qn_tree_hold(c.tree, &plain, b, 96, hour_ns), 96);
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 96, "x"), QN_OK);
    qn_ledger_set_cache_limit(c.ledger, 0);
    qn_tree_trim(c.tree);
    assert_int_equal(peek(&c, a, 96), 96);
    assert_int_equal(peek(&c, b, 96), 0);
    assert_int_equal(counters(&c).timed_pins, 1); /* to give it up would free nothing */
    qn_tree_unpin(c.tree, "x");
    qn_tree_trim(c.tree);
    assert_int_equal(counters(&c).nodes, 0);
    end(&c);
}

/* What cannot be gone on from is not kept: a pin keeps what is usable. Snapshots give way as pages do. */
static void test_snapshots(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY], b[CAPACITY];
    (void)state;
    begin(&c, 1, NULL, 100, 4);
    serve(&c, text(a, 1, 96, 0), 96);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 95, hour_ns), 0);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 96, hour_ns), 96);
    for (int i = 2; i < 9; i++) serve(&c, text(b, i, 96, 0), 96);
    assert_int_equal(peek(&c, a, 96), 96);
    qn_fake_sequence s[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(qn_fake_sequence_begin(&s[i], &c, plain, CAPACITY), QN_OK);
        assert_int_equal(qn_fake_sequence_compute(&s[i], text(b, 20 + i, 10, 0), 10), QN_OK);
    }
    assert_int_equal(peek(&c, a, 96), 0);
    assert_int_equal(counters(&c).given_up_pins, 1);
    for (int i = 0; i < 4; i++) qn_fake_sequence_end(&s[i]);
    end(&c);
}

/* They go with what they are about, and there are no more than QN_TREE_TIMED_MAX. */
static void test_ends(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY];
    (void)state;
    begin(&c, 1, NULL, 100, 0);
    serve(&c, text(a, 1, 96, 0), 96);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 50, hour_ns), 50);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 96, hour_ns), 96);
    qn_tree_poison_path(c.tree, &plain, a);
    assert_int_equal(counters(&c).timed_pins, 0);
    check(&c);
    serve(&c, text(a, 1, 96, 0), 96);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 96, hour_ns), 96);
    qn_tree_forget_adapter(c.tree, -1);
    assert_int_equal(counters(&c).timed_pins, 0);
    for (int i = 0; i < QN_TREE_TIMED_MAX + 5; i++) {
        serve(&c, text(a, 1 + i, 1, 0), 1);
        qn_tree_hold(c.tree, &plain, a, 1, hour_ns);
        assert_true(counters(&c).timed_pins <= QN_TREE_TIMED_MAX);
    }
    end(&c);
}

/* Where memory is short nothing is held, and nothing breaks. */
static void test_no_memory(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY];
    (void)state;
    begin(&c, 1, NULL, 100, 0);
    serve(&c, text(a, 1, 200, 0), 200);
    for (int n = 1;; n++) {
        qn_mem_fail_nth(n);
        const int64_t held = qn_tree_hold(c.tree, &plain, a, 70, hour_ns);
        qn_mem_fail_nth(0);
        check(&c);
        if (held) break;
        assert_true(n < 20);
    }
    assert_int_equal(counters(&c).timed_pins, 1);
    /* The limit of memory leaves no room for a node; where one ends none is needed. */
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 200, "all"), QN_OK);
    qn_ledger_set_limit(c.ledger, qn_ledger_get(c.ledger).total);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 10, hour_ns), 0);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 200, hour_ns), 200);
    qn_tree_unpin(c.tree, "all");
    end(&c);
}

static void test_check(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY];
    (void)state;
    begin(&c, 1, NULL, 100, 0);
    serve(&c, text(a, 1, 200, 0), 200);
    assert_int_equal(qn_tree_hold(c.tree, &plain, a, 70, hour_ns), 70);
    qn_tree *t = c.tree;
    t->counters.timed_pins = 7;
    assert_string_equal(qn_tree_check(t), "pins with a time are not counted");
    t->counters.timed_pins = 1;
    t->first_until_ns = INT64_MAX;
    assert_string_equal(qn_tree_check(t), "the list of pins with a time is not linked");
    t->first_until_ns = 0;
    end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gives_way), cmocka_unit_test(test_order),     cmocka_unit_test(test_time),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_snapshots), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
