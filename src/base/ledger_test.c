/* The ledger: one limit over all entries, the peak, a refusal that says who holds what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>

#include "base/ledger.h"
#include "base/mem.h"

static void test_limit(void **state)
{
    qn_ledger *l = qn_ledger_new();
    assert_int_equal(qn_ledger_set_limit(l, 1000), 0);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_WEIGHTS, 600), QN_OK);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_KV, 300), QN_OK);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_SCRATCH, 101), QN_E_NOMEM);
    assert_string_equal(qn_last_error(),
                        "memory limit: scratch needs 101 bytes more; limit 1000, held: weights 600, "
                        "kv 300, scratch 0, cache 0, other 0");
    assert_int_equal(qn_ledger_total(l), 900); /* a refusal takes nothing */
    assert_int_equal(qn_ledger_held(l, QN_LEDGER_SCRATCH), 0);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_SCRATCH, 100), QN_OK); /* up to the limit itself */
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_OTHER, 1), QN_E_NOMEM);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_OTHER, SIZE_MAX), QN_E_NOMEM);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_OTHER, 0), QN_OK);
    qn_ledger_release(l, QN_LEDGER_WEIGHTS, 600);
    assert_int_equal(qn_ledger_total(l), 400);
    assert_int_equal(qn_ledger_set_limit(l, 100), 1000); /* below what is held */
    assert_int_equal(qn_ledger_get_limit(l), 100);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_CACHE, 1), QN_E_NOMEM);
    qn_ledger_set_limit(l, 0);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_CACHE, SIZE_MAX - 400), QN_OK);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_CACHE, 1), QN_E_NOMEM); /* the sum cannot wrap */
    qn_ledger_free(l);
    qn_ledger_free(NULL);
}

static void test_peak(void **state)
{
    qn_ledger *l = qn_ledger_new();
    assert_int_equal(qn_ledger_peak(l), 0);
    qn_ledger_reserve(l, QN_LEDGER_KV, 50);
    qn_ledger_reserve(l, QN_LEDGER_CACHE, 30);
    qn_ledger_release(l, QN_LEDGER_KV, 50);
    assert_int_equal(qn_ledger_total(l), 30);
    assert_int_equal(qn_ledger_peak(l), 80);
    qn_ledger_reset_peak(l);
    assert_int_equal(qn_ledger_peak(l), 30);
    qn_ledger_reserve(l, QN_LEDGER_OTHER, 5);
    assert_int_equal(qn_ledger_peak(l), 35);
    qn_ledger_free(l);
}

typedef struct {
    qn_ledger *ledger;
    qn_ledger_entry entry;
    int n_taken, n_over;
} taker;

static void *take(void *arg)
{
    taker *t = arg;
    for (int i = 0; i < 20000; i++) {
        if (qn_ledger_reserve(t->ledger, t->entry, 3) != QN_OK) continue;
        t->n_taken++;
        t->n_over += qn_ledger_total(t->ledger) > 10;
        if (i % 4) {
            qn_ledger_release(t->ledger, t->entry, 3);
            t->n_taken--;
        } else if (t->n_taken > 1) {
            qn_ledger_release(t->ledger, t->entry, 6);
            t->n_taken -= 2;
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    qn_ledger *l = qn_ledger_new();
    pthread_t threads[4];
    taker takers[4];
    size_t total = 0;
    qn_ledger_set_limit(l, 10);
    for (int i = 0; i < 4; i++) {
        takers[i] = (taker){.ledger = l, .entry = (qn_ledger_entry)i};
        assert_int_equal(pthread_create(&threads[i], NULL, take, &takers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(takers[i].n_over, 0);
        assert_int_equal(qn_ledger_held(l, (qn_ledger_entry)i), (size_t)takers[i].n_taken * 3);
        total += (size_t)takers[i].n_taken * 3;
    }
    assert_int_equal(qn_ledger_total(l), total);
    assert_true(qn_ledger_peak(l) <= 10);
    qn_ledger_free(l);
}

static void test_allocation_failures(void **state)
{
    int64_t live = qn_mem_live_blocks();
    qn_mem_fail_nth(1);
    assert_null(qn_ledger_new());
    qn_mem_fail_nth(0);
    assert_int_equal(qn_mem_live_blocks(), live);
    for (int i = 0; i < QN_LEDGER_COUNT; i++) assert_true(strlen(qn_ledger_name((qn_ledger_entry)i)) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_peak),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
