/* Which slot a request gets, and whose the tokens in it are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants these before it */
#include <cmocka.h>
#include <quern/quern.h>

#include "base/mem.h"
#include "server/core/slots/slots.h"

static const qn_slot_owner anyone = {.key = -1};
static const int32_t first[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static const int32_t second[] = {1, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32};

static int64_t run(qn_slots *s, int64_t wanted, const int32_t *ids, int64_t n)
{
    const int64_t id = qn_slots_take(s, &anyone, wanted, ids, n);
    int64_t n_has;
    assert_true(qn_slots_look(s, id, NULL));
    qn_slots_give(s, id, &anyone, ids, n);
    assert_false(qn_slots_look(s, id, &n_has));
    assert_int_equal(n_has, n);
    return id;
}

static void test_choice(void **state)
{
    qn_slots *s = NULL;
    assert_int_equal(qn_slots_new(3, NULL, &s), QN_OK);
    assert_int_equal(run(s, -1, first, 10), 0);
    assert_int_equal(run(s, -1, first, 12), 0);  /* goes on */
    assert_int_equal(run(s, -1, second, 12), 1); /* a twelfth alone is the same */
    assert_int_equal(run(s, 2, second, 5), 2);
    assert_int_equal(run(s, -1, second, 12), 1);   /* the longer beginning */
    assert_int_equal(run(s, -1, first + 5, 5), 0); /* used longest ago */
    /* What is busy is left alone while another is idle. */
    assert_int_equal(qn_slots_take(s, &anyone, 1, second, 12), 1);
    assert_int_equal(run(s, -1, second, 12), 2);
    assert_int_equal(qn_slots_take(s, &anyone, -1, first, 1), 2);
    assert_int_equal(qn_slots_take(s, &anyone, -1, first, 1), 0);
    assert_int_equal(qn_slots_take(s, &anyone, -1, first + 5, 5), 0);
    qn_slots_free(s);
}

static void test_owner(void **state)
{
    const qn_slot_owner a = {0, {"x", "0 "}}, b = {1, {"x", "1 "}};
    qn_slot_sequence got;
    qn_slots *s = NULL;
    assert_int_equal(qn_slots_new(2, NULL, &s), QN_OK);
    assert_int_equal(qn_slots_take(s, &a, -1, first, 12), 0);
    qn_slots_give(s, 0, &a, first, 12);
    assert_int_equal(qn_slots_take(s, &b, -1, first, 12), 1);
    assert_int_equal(qn_slots_get(s, 0, 1, 0, &got), QN_OK);
    assert_int_equal(got.n_ids, 0);
    assert_int_equal(qn_slots_get(s, 0, 0, 0, &got), QN_OK);
    assert_int_equal(got.n_ids, 12);
    assert_memory_equal(got.ids, first, sizeof first);
    assert_string_equal(got.adapter, "x");
    assert_string_equal(got.salt, "0 ");
    qn_slot_sequence_free(&got);
    assert_int_equal(qn_slots_get(s, 0, 0, 1, &got), QN_OK);
    assert_int_equal(got.n_ids, 12);
    qn_slot_sequence_free(&got);
    assert_int_equal(qn_slots_get(s, 0, 0, 0, &got), QN_OK);
    assert_int_equal(got.n_ids, 0);
    qn_slots_free(s);
}

/* Without memory a slot is empty, and nothing is counted. */
static void test_held(void **state)
{
    qn_held held;
    qn_slots *s = NULL;
    qn_held_start(&held, 0);
    assert_int_equal(qn_slots_new(1, &held, &s), QN_OK);
    qn_slots_set(s, 0, &anyone, first, 12);
    assert_int_equal(qn_held_get(&held), sizeof first);
    qn_slots_set(s, 0, &anyone, first, 3);
    assert_int_equal(qn_held_get(&held), 3 * sizeof *first);
    qn_mem_fail_nth(1);
    qn_slots_set(s, 0, &anyone, first, 12);
    qn_mem_fail_nth(0);
    assert_int_equal(qn_held_get(&held), 0);
    qn_slots_set(s, 0, &anyone, first, 12);
    qn_slots_free(s);
    assert_int_equal(qn_held_get(&held), 0);
    qn_held_end(&held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choice), cmocka_unit_test(test_owner),
                                       cmocka_unit_test(test_held)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
