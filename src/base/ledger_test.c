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
    assert_int_equal(qn_ledger_try(l, QN_LEDGER_OTHER, 1), 0);
    qn_ledger_move(l, QN_LEDGER_KV, QN_LEDGER_CACHE, 300);
    assert_int_equal(qn_ledger_try(l, QN_LEDGER_OTHER, 1), 0); /* what is cached stays */
    qn_ledger_move(l, QN_LEDGER_CACHE, QN_LEDGER_KV, 300);
    qn_ledger_release(l, QN_LEDGER_KV, 300);
    assert_int_equal(qn_ledger_try(l, QN_LEDGER_KV, 300), 1);
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

/* A cache of blocks of 10 bytes. */
typedef struct {
    qn_ledger *ledger;
    size_t n_kept;
} block_cache;

static void give_up(void *user, size_t size_bytes)
{
    block_cache *c = user;
    for (size_t given = 0; given < size_bytes && c->n_kept; given += 10, c->n_kept--)
        qn_ledger_release(c->ledger, QN_LEDGER_CACHE, 10);
}

static void keep(block_cache *c, size_t n)
{
    for (size_t i = 0; i < n; i++) c->n_kept += (size_t)qn_ledger_keep(c->ledger, QN_LEDGER_KV, 10);
}

/* Cached memory goes before anything is refused, and no more of it than is in the way. */
static void test_cache(void **state)
{
    qn_ledger *l = qn_ledger_new();
    block_cache c = {l, 0};
    assert_int_equal(qn_ledger_get(l).cache_limit, QN_LEDGER_CACHE_DEFAULT);
    qn_ledger_set_reclaim(l, give_up, &c);
    qn_ledger_set_limit(l, 100);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_KV, 80), QN_OK);
    keep(&c, 5);
    assert_int_equal(c.n_kept, 5);
    assert_int_equal(qn_ledger_held(l, QN_LEDGER_CACHE), 50);
    assert_int_equal(qn_ledger_held(l, QN_LEDGER_KV), 30);
    assert_int_equal(qn_ledger_total(l), 80);

    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_SCRATCH, 35), QN_OK); /* 15 too many: two blocks go */
    assert_int_equal(c.n_kept, 3);
    assert_int_equal(qn_ledger_total(l), 95);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_OTHER, 36), QN_E_NOMEM); /* 35 could be had */
    assert_non_null(strstr(qn_last_error(), "other needs 36 bytes more; limit 100"));
    assert_int_equal(qn_ledger_total(l), 65);
    assert_int_equal(c.n_kept, 0);
    assert_true(qn_ledger_peak(l) <= 100);

    keep(&c, 2);
    qn_ledger_move(l, QN_LEDGER_CACHE, QN_LEDGER_KV, 10);
    c.n_kept--;
    assert_int_equal(qn_ledger_held(l, QN_LEDGER_KV), 20);
    assert_int_equal(qn_ledger_held(l, QN_LEDGER_CACHE), 10);
    assert_int_equal(qn_ledger_set_cache_limit(l, 5), QN_LEDGER_CACHE_DEFAULT); /* smaller than a block */
    assert_int_equal(c.n_kept, 0);
    keep(&c, 1);
    assert_int_equal(c.n_kept, 0);
    assert_int_equal(qn_ledger_held(l, QN_LEDGER_KV), 10);
    assert_int_equal(qn_ledger_set_cache_limit(l, 1000), 5);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_KV, 30), QN_OK);
    keep(&c, 3);
    assert_int_equal(qn_ledger_set_limit(l, 60), 100); /* held 75, of which 30 cached */
    assert_int_equal(c.n_kept, 1);
    qn_ledger_clear_cache(l);
    assert_int_equal(qn_ledger_held(l, QN_LEDGER_CACHE), 0);
    qn_ledger_set_limit(l, 20);
    keep(&c, 1); /* above the hard limit nothing is kept */
    assert_int_equal(c.n_kept, 0);
    qn_ledger_free(l);
}

/* A cache whose first block given up is taken by somebody else before it can be reserved. */
typedef struct {
    block_cache cache;
    int n_rivals;
} contested_cache;

static void give_up_contested(void *user, size_t size_bytes)
{
    contested_cache *c = user;
    give_up(&c->cache, size_bytes);
    if (c->n_rivals-- > 0)
        assert_int_equal(qn_ledger_reserve(c->cache.ledger, QN_LEDGER_OTHER, size_bytes), QN_OK);
}

static void give_up_nothing(void *user, size_t size_bytes)
{
    ++*(int *)user;
}

static void test_rivals(void **state)
{
    qn_ledger *l = qn_ledger_new();
    contested_cache c = {{l, 0}, 2};
    int n_asked = 0;
    qn_ledger_set_reclaim(l, give_up_contested, &c);
    qn_ledger_set_limit(l, 100);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_KV, 100), QN_OK);
    keep(&c.cache, 8);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_SCRATCH, 20), QN_OK);
    assert_int_equal(qn_ledger_held(l, QN_LEDGER_OTHER), 40);
    assert_int_equal(qn_ledger_held(l, QN_LEDGER_CACHE), 20);
    qn_ledger_set_reclaim(l, give_up_nothing, &n_asked);
    assert_int_equal(qn_ledger_reserve(l, QN_LEDGER_SCRATCH, 10), QN_E_NOMEM);
    assert_int_equal(n_asked, 1);
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
        cmocka_unit_test(test_limit),   cmocka_unit_test(test_peak),
        cmocka_unit_test(test_threads), cmocka_unit_test(test_cache),
        cmocka_unit_test(test_rivals),  cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
