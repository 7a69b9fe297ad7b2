/* KV pages over a device that only counts: who holds, what is cached, what goes back, and that no shortage
 * takes anything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "cache/pages.h"

enum { UNIT_BYTES = 100, N_UNITS = 12 };

static int n_dropped;

static size_t unit_bytes(const qn_state *s)
{
    return UNIT_BYTES;
}

static void drop(qn_state *s, int32_t unit)
{
    n_dropped++;
}

static const qn_device_ops ops = {.name = "counting", .state_unit_bytes = unit_bytes, .state_drop = drop};

typedef struct {
    qn_ledger *ledger;
    qn_device device;
    qn_state state;
    qn_pages *pages;
} bench;

static void reclaim(void *user, size_t size_bytes)
{
    qn_pages_reclaim(((bench *)user)->pages, size_bytes);
}

static void begin(bench *b)
{
    b->ledger = qn_ledger_new();
    b->device = (qn_device){.ops = &ops, .ledger = b->ledger};
    b->state = (qn_state){.device = &b->device, .spec = {.n_units = N_UNITS}};
    assert_int_equal(qn_pages_new(&b->state, &b->pages), QN_OK);
    qn_ledger_set_reclaim(b->ledger, reclaim, b);
    n_dropped = 0;
}

static void end(bench *b)
{
    qn_pages_free(b->pages);
    assert_int_equal(qn_ledger_total(b->ledger), 0);
    qn_ledger_free(b->ledger);
}

static size_t held(const bench *b, qn_ledger_entry entry)
{
    return qn_ledger_held(b->ledger, entry) / UNIT_BYTES;
}

static void check_distinct(const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        assert_true(ids[i] >= 0 && ids[i] < N_UNITS);
        for (int64_t j = 0; j < i; j++) assert_int_not_equal(ids[i], ids[j]);
    }
}

static void test_hold_and_cache(void **state)
{
    bench b;
    int32_t ids[N_UNITS], more[N_UNITS];
    begin(&b);
    assert_int_equal(qn_pages_reserve(b.pages, 8, ids), QN_OK);
    check_distinct(ids, 8);
    assert_int_equal(held(&b, QN_LEDGER_KV), 8);
    assert_int_equal(qn_pages_reserve(b.pages, 5, more), QN_E_FULL);
    assert_string_equal(qn_last_error(), "kv cache: 5 pages wanted, 4 of 12 are free");
    qn_pages_retain(b.pages, ids[0]);
    for (int i = 0; i < 8; i++) qn_pages_release(b.pages, ids[i]);
    assert_int_equal(held(&b, QN_LEDGER_KV), 1); /* one has a second holder */
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 7);
    assert_int_equal(qn_pages_free_count(b.pages), 11);
    assert_int_equal(qn_pages_reserve(b.pages, 9, more), QN_OK); /* seven cached, two fresh */
    check_distinct(more, 9);
    for (int i = 0; i < 9; i++) assert_int_not_equal(more[i], ids[0]);
    assert_int_equal(held(&b, QN_LEDGER_KV), 10);
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 0);
    for (int i = 0; i < 9; i++) qn_pages_release(b.pages, more[i]);
    qn_pages_release(b.pages, ids[0]);
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 10);
    assert_int_equal(qn_pages_reclaim(b.pages, 150), 200);
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 8);
    assert_int_equal(qn_pages_free_count(b.pages), N_UNITS);
    end(&b);
}

static void test_limits(void **state)
{
    bench b;
    int32_t ids[N_UNITS], more[N_UNITS];
    begin(&b);
    qn_ledger_set_cache_limit(b.ledger, 3 * UNIT_BYTES);
    assert_int_equal(qn_pages_reserve(b.pages, 6, ids), QN_OK);
    for (int i = 0; i < 6; i++) qn_pages_release(b.pages, ids[i]);
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 3);
#ifndef QN_SHAKE
    assert_int_equal(n_dropped, 3);
#endif
    /* A shortage half way: the cached pages that were taken are cached again, or went for the attempt. */
    qn_ledger_set_limit(b.ledger, 5 * UNIT_BYTES);
    assert_int_equal(qn_pages_reserve(b.pages, 6, more), QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "kv needs 300 bytes more; limit 500"));
    assert_int_equal(held(&b, QN_LEDGER_KV), 0);
    assert_true(held(&b, QN_LEDGER_CACHE) <= 3);
    assert_int_equal(qn_pages_free_count(b.pages), N_UNITS);
    assert_int_equal(qn_pages_reserve(b.pages, 5, more), QN_OK);
    check_distinct(more, 5);
    assert_int_equal(qn_ledger_total(b.ledger), 500);
    assert_true(qn_ledger_peak(b.ledger) <= 600);
    for (int i = 0; i < 5; i++) qn_pages_release(b.pages, more[i]);
    /* What is cached gives way to another entry. */
    assert_int_equal(qn_ledger_reserve(b.ledger, QN_LEDGER_SCRATCH, 450), QN_OK);
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 0);
    qn_ledger_release(b.ledger, QN_LEDGER_SCRATCH, 450);
    end(&b);
}

static void test_block_table(void **state)
{
    bench b;
    qn_block_table t;
    begin(&b);
    assert_int_equal(qn_block_table_init(&t, 11), QN_OK);
    assert_int_equal(qn_block_table_extend(&t, b.pages, 1), QN_OK);
    assert_int_equal(t.n, 1);
    assert_int_equal(qn_block_table_extend(&t, b.pages, 32), QN_OK);
    assert_int_equal(t.n, 1);
    assert_int_equal(qn_block_table_extend(&t, b.pages, 33), QN_OK);
    assert_int_equal(t.n, 2);
    assert_int_equal(qn_block_table_extend(&t, b.pages, 32 * 11 + 1), QN_E_FULL);
    assert_string_equal(qn_last_error(), "kv cache: the sequence needs 12 pages, its table holds 11");
    assert_int_equal(qn_block_table_extend(&t, b.pages, 32 * 11), QN_OK);
    check_distinct(t.ids, 11);
    qn_block_table_release_below(&t, b.pages, 32 * 3 + 31);
    assert_int_equal(t.n_released, 3);
    assert_int_equal(t.ids[2], -1);
    assert_int_equal(held(&b, QN_LEDGER_KV), 8);
    qn_block_table_release_below(&t, b.pages, 32 * 9);
    assert_int_equal(t.base, 8); /* moves by eights */
    assert_int_equal(t.n, 3);
    assert_int_equal(t.n_released, 1);
    assert_int_equal(qn_block_table_extend(&t, b.pages, 32 * 14), QN_OK);
    check_distinct(t.ids + 1, 5);
    qn_block_table_end(&t, b.pages);
    assert_int_equal(held(&b, QN_LEDGER_KV), 0);
    end(&b);
}

static void test_allocation_failures(void **state)
{
    int64_t live = qn_mem_live_blocks();
    for (int n = 1;; n++) {
        bench b = {.ledger = qn_ledger_new()};
        b.device = (qn_device){.ops = &ops, .ledger = b.ledger};
        b.state = (qn_state){.device = &b.device, .spec = {.n_units = N_UNITS}};
        qn_block_table t = {0};
        qn_mem_fail_nth(n);
        qn_status status = qn_pages_new(&b.state, &b.pages);
        if (status == QN_OK) status = qn_block_table_init(&t, 3);
        qn_mem_fail_nth(0);
        if (b.pages) qn_block_table_end(&t, b.pages);
        qn_pages_free(b.pages);
        qn_ledger_free(b.ledger);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_true(n < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hold_and_cache),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_block_table),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
