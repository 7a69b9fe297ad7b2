/* KV pages over a device that only counts, and copies a number a token: who holds, what is kept and cached,
 * what goes back, what is copied before it is written, and that no shortage takes anything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "cache/pages.h"

enum { UNIT_BYTES = 100, N_UNITS = 12 };

static int n_dropped, n_copied;
static int contents[N_UNITS][QN_PAGE_TOKENS];

static size_t unit_bytes(const qn_state *s)
{
    return UNIT_BYTES;
}

static void drop(qn_state *s, int32_t unit)
{
    n_dropped++;
}

static void copy(qn_state *s, int32_t from, int32_t to)
{
    memcpy(contents[to], contents[from], sizeof contents[to]);
    n_copied++;
}

static const qn_device_ops ops = {
    .name = "counting", .state_unit_bytes = unit_bytes, .state_drop = drop, .state_copy = copy};

/* A second device, whose units are smaller. */
enum { OTHER_BYTES = 30 };

static size_t other_unit_bytes(const qn_state *s)
{
    return OTHER_BYTES;
}

static void read_byte(const qn_state *s, int32_t unit, void *bytes)
{
    memset(bytes, s->device->ops->name[0] + unit, s->device->ops->state_unit_bytes(s));
}

static char written[2][UNIT_BYTES];

static void write_part(qn_state *s, int32_t unit, const void *bytes)
{
    const size_t n = s->device->ops->state_unit_bytes(s);
    memcpy(written[n == OTHER_BYTES], bytes, n);
}

static const qn_device_ops part_ops[2] = {{.name = "a",
                                           .state_unit_bytes = unit_bytes,
                                           .state_drop = drop,
                                           .state_copy = copy,
                                           .state_read = read_byte,
                                           .state_write = write_part},
                                          {.name = "m",
                                           .state_unit_bytes = other_unit_bytes,
                                           .state_drop = drop,
                                           .state_copy = copy,
                                           .state_read = read_byte,
                                           .state_write = write_part}};

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
    n_dropped = n_copied = 0;
    memset(contents, 0, sizeof contents);
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
    assert_string_equal(qn_last_error(), "kv cache: 5 pages are needed, 4 of 12 are free");
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
    assert_int_equal(qn_block_table_prepare(&t, b.pages, 0, 1), QN_OK);
    assert_int_equal(t.n, 1);
    assert_int_equal(qn_block_table_prepare(&t, b.pages, 1, 32), QN_OK);
    assert_int_equal(t.n, 1);
    assert_int_equal(qn_block_table_prepare(&t, b.pages, 32, 33), QN_OK);
    assert_int_equal(t.n, 2);
    assert_int_equal(qn_block_table_prepare(&t, b.pages, 33, 32 * 11 + 1), QN_E_FULL);
    assert_string_equal(qn_last_error(), "kv cache: the sequence needs 12 pages, but its table holds 11");
    assert_int_equal(qn_block_table_prepare(&t, b.pages, 33, 32 * 11), QN_OK);
    check_distinct(t.ids, 11);
    qn_block_table_release_below(&t, b.pages, 32 * 3 + 31);
    assert_int_equal(t.n_released, 3);
    assert_int_equal(t.ids[2], -1);
    assert_int_equal(held(&b, QN_LEDGER_KV), 8);
    qn_block_table_release_below(&t, b.pages, 32 * 9);
    assert_int_equal(t.base, 8); /* moves by eights */
    assert_int_equal(t.n, 3);
    assert_int_equal(t.n_released, 1);
    assert_int_equal(qn_block_table_prepare(&t, b.pages, 32 * 11, 32 * 14), QN_OK);
    check_distinct(t.ids + 1, 5);
    qn_block_table_end(&t, b.pages);
    assert_int_equal(held(&b, QN_LEDGER_KV), 0);
    end(&b);
}

/* Writes tokens [begin, end) of a sequence that says `name` at each. */
static qn_status append(bench *b, qn_block_table *t, int64_t begin, int64_t end, int name)
{
    QN_TRY(qn_block_table_prepare(t, b->pages, begin, end));
    for (int64_t i = begin; i < end; i++) contents[t->ids[i / 32 - t->base]][i % 32] = name;
    return QN_OK;
}

static int at(const qn_block_table *t, int64_t i)
{
    return contents[t->ids[i / 32 - t->base]][i % 32];
}

static qn_page_info info(const bench *b, const qn_block_table *t, int64_t i)
{
    return qn_pages_get_info(b->pages, t->ids[i]);
}

static void test_copy_on_write(void **state)
{
    bench b;
    qn_block_table t, u, v, small;
    begin(&b);
    assert_int_equal(qn_block_table_init(&t, 8), QN_OK);
    assert_int_equal(qn_block_table_init(&u, 8), QN_OK);
    assert_int_equal(qn_block_table_init(&v, 8), QN_OK);
    assert_int_equal(qn_block_table_init(&small, 1), QN_OK);
    assert_int_equal(append(&b, &t, 0, 40, 1), QN_OK);
    assert_int_equal(info(&b, &t, 1).fill, 8);
    assert_int_equal(qn_block_table_share(&small, b.pages, &t, 40), QN_E_FULL);
    assert_int_equal(small.n, 0);
    assert_int_equal(qn_block_table_share(&u, b.pages, &t, 40), QN_OK);
    assert_int_equal(qn_block_table_share(&v, b.pages, &t, 36), QN_OK);
    assert_int_equal(info(&b, &t, 1).users, 3);
    assert_int_equal(held(&b, QN_LEDGER_KV), 2);
    /* Nothing to write: nothing is copied. */
    assert_int_equal(qn_block_table_prepare(&v, b.pages, 36, 36), QN_OK);
    /* The first to go on writes behind the others, the next copies. */
    assert_int_equal(append(&b, &u, 40, 44, 2), QN_OK);
    assert_int_equal(n_copied, 0);
    assert_int_equal(u.ids[1], t.ids[1]);
    assert_int_equal(append(&b, &t, 40, 42, 3), QN_OK);
    assert_int_equal(n_copied, 1);
    assert_int_equal(append(&b, &v, 36, 70, 4), QN_OK);
    assert_int_equal(n_copied, 2);
    assert_int_equal(at(&t, 39), 1);
    assert_int_equal(at(&t, 41), 3);
    assert_int_equal(at(&u, 39), 1);
    assert_int_equal(at(&u, 40), 2);
    assert_int_equal(at(&u, 43), 2);
    assert_int_equal(at(&v, 35), 1);
    assert_int_equal(at(&v, 36), 4);
    assert_int_equal(info(&b, &t, 0).users, 3);
    assert_int_equal(info(&b, &u, 1).users, 1);
    /* Alone, one may go back and write over it. */
    qn_block_table_truncate(&u, b.pages, 38);
    assert_int_equal(append(&b, &u, 38, 39, 5), QN_OK);
    assert_int_equal(n_copied, 2);
    assert_int_equal(info(&b, &u, 1).fill, 7);
    /* At the start of a page that others hold nothing has to be copied, only replaced. */
    qn_block_table_truncate(&v, b.pages, 32);
    assert_int_equal(v.n, 1);
    qn_block_table_truncate(&v, b.pages, 0);
    assert_int_equal(v.n, 0);
    assert_int_equal(qn_block_table_share(&v, b.pages, &u, 39), QN_OK);
    assert_int_equal(append(&b, &v, 32, 33, 6), QN_OK);
    assert_int_equal(n_copied, 2);
    assert_int_equal(at(&u, 32), 1);
    qn_block_table_end(&t, b.pages);
    qn_block_table_end(&u, b.pages);
    qn_block_table_end(&v, b.pages);
    qn_block_table_end(&small, b.pages);
    end(&b);
}

/* Pages that were taken ahead stay the sequence's own, though the tree comes to hold what is before. */
static void test_prepared_ahead(void **state)
{
    bench b;
    qn_block_table t, u;
    begin(&b);
    assert_int_equal(qn_block_table_init(&t, 8), QN_OK);
    assert_int_equal(qn_block_table_init(&u, 8), QN_OK);
    assert_int_equal(append(&b, &t, 0, 40, 1), QN_OK);
    assert_int_equal(qn_block_table_prepare(&t, b.pages, 40, 100), QN_OK);
    assert_int_equal(qn_block_table_share(&u, b.pages, &t, 40), QN_OK);
    assert_int_equal(append(&b, &t, 40, 50, 1), QN_OK);
    assert_int_equal(append(&b, &t, 50, 66, 1), QN_OK);
    assert_int_equal(n_copied, 0);
    assert_int_equal(t.claimed, 100);
    assert_int_equal(info(&b, &t, 3).fill, 4);
    assert_int_equal(append(&b, &u, 40, 41, 2), QN_OK);
    assert_int_equal(n_copied, 1);
    assert_int_equal(at(&t, 40), 1);
    /* Given up and written again: another may hold what was there. */
    qn_block_table_clear(&u, b.pages);
    assert_int_equal(qn_block_table_share(&u, b.pages, &t, 66), QN_OK);
    qn_block_table_truncate(&t, b.pages, 65);
    assert_int_equal(append(&b, &t, 65, 66, 3), QN_OK);
    assert_int_equal(n_copied, 2);
    assert_int_equal(at(&u, 65), 1);
    qn_block_table_end(&t, b.pages);
    qn_block_table_end(&u, b.pages);
    end(&b);
}

typedef struct {
    int32_t ids[N_UNITS];
    int n, n_asked;
} keeper;

static void evict(void *user, qn_pages *p, int64_t n)
{
    keeper *k = user;
    k->n_asked++;
    for (; n > 0 && k->n > 0; n--) assert_int_equal(qn_pages_unkeep(p, k->ids[--k->n]), QN_PAGES_CACHED);
}

static void test_kept(void **state)
{
    bench b;
    keeper k = {.n = 3};
    int32_t ids[N_UNITS], more[N_UNITS];
    begin(&b);
    assert_int_equal(qn_pages_reserve(b.pages, 4, ids), QN_OK);
    for (int i = 0; i < 3; i++) qn_pages_keep(b.pages, k.ids[i] = ids[i]);
    ids[4] = -1;
    assert_int_equal(qn_pages_count_unused(b.pages, ids, 5), 0);
    qn_pages_release(b.pages, ids[1]);
    qn_pages_release(b.pages, ids[2]);
    qn_pages_release(b.pages, ids[3]);
    assert_int_equal(held(&b, QN_LEDGER_KV), 1);
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 3);
    assert_int_equal(qn_pages_kept_count(b.pages), 2);
    assert_int_equal(qn_pages_free_count(b.pages), 9);
    assert_int_equal(qn_pages_count_unused(b.pages, ids, 5), 2);
    qn_pages_keep(b.pages, ids[2]);
    assert_int_equal(qn_pages_unkeep(b.pages, ids[2]), QN_PAGES_HELD);
    /* What is kept is not given back, only what is cached; and it can be used again. */
    assert_int_equal(qn_pages_reclaim(b.pages, 1000), 100);
    qn_pages_retain(b.pages, ids[1]);
    assert_int_equal(held(&b, QN_LEDGER_KV), 2);
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 1);
    assert_int_equal(qn_pages_kept_count(b.pages), 1);
    /* The tree lets go of a used one: that is its user's alone. */
    assert_int_equal(qn_pages_unkeep(b.pages, ids[1]), QN_PAGES_HELD);
    k.ids[1] = ids[2];
    k.n = 2;
    assert_int_equal(qn_pages_reserve(b.pages, 10, more), QN_E_FULL); /* nobody to ask */
    qn_pages_set_evict(b.pages, evict, &k);
    assert_int_equal(qn_pages_reserve(b.pages, 11, more), QN_E_FULL);
    assert_int_equal(k.n_asked, 0); /* it would not help */
    assert_int_equal(qn_pages_reserve(b.pages, 10, more), QN_OK);
    assert_int_equal(k.n_asked, 1);
    assert_int_equal(qn_pages_kept_count(b.pages), 0);
    /* What cannot be kept for the limit's sake goes back. */
    qn_ledger_set_cache_limit(b.ledger, 0);
    qn_pages_release(b.pages, ids[0]);
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 1); /* above the limit, until the tree is trimmed */
    assert_int_equal(qn_pages_unkeep(b.pages, ids[0]), QN_PAGES_FREED);
    assert_int_equal(held(&b, QN_LEDGER_CACHE), 0);
    qn_pages_keep(b.pages, ids[1]);
    qn_pages_release(b.pages, ids[1]);
    assert_true(qn_pages_bytes(b.pages) > N_UNITS * sizeof(int32_t));
    qn_pages_fill(b.pages, more[0]);
    assert_int_equal(qn_pages_get_info(b.pages, more[0]).fill, 32);
    end(&b); /* a pool that goes takes all that is in it out of the ledger */
}

static void test_poison(void **state)
{
    bench b;
    qn_block_table t, u;
    begin(&b);
    assert_int_equal(qn_block_table_init(&t, 8), QN_OK);
    assert_int_equal(qn_block_table_init(&u, 8), QN_OK);
    assert_int_equal(append(&b, &t, 0, 40, 1), QN_OK);
    assert_int_equal(qn_block_table_share(&u, b.pages, &t, 40), QN_OK);
    assert_int_equal(append(&b, &t, 40, 44, 1), QN_OK);
    qn_pages_poison(b.pages, t.ids[1], 9);
    qn_pages_poison(b.pages, t.ids[1], 8);
    qn_pages_poison(b.pages, t.ids[1], 20);
    assert_int_equal(info(&b, &t, 1).poisoned_from, 8);
    assert_true(qn_pages_is_poisoned(b.pages, t.ids[1], 9));
    assert_false(qn_pages_is_poisoned(b.pages, t.ids[1], 8));
    assert_true(qn_block_table_is_poisoned(&t, b.pages, 44));
    assert_false(qn_block_table_is_poisoned(&t, b.pages, 40));
    assert_false(qn_block_table_is_poisoned(&u, b.pages, 40));
    /* What is written anew is good, in a copy and in place; what was copied with poison is not. */
    assert_int_equal(append(&b, &u, 40, 48, 2), QN_OK);
    assert_int_equal(n_copied, 1);
    assert_false(qn_block_table_is_poisoned(&u, b.pages, 48));
    qn_block_table_truncate(&t, b.pages, 40);
    assert_int_equal(append(&b, &t, 40, 41, 2), QN_OK);
    assert_false(qn_block_table_is_poisoned(&t, b.pages, 41));
    qn_pages_poison(b.pages, t.ids[1], 3);
    qn_block_table_clear(&u, b.pages);
    assert_int_equal(qn_block_table_share(&u, b.pages, &t, 38), QN_OK);
    assert_int_equal(append(&b, &u, 38, 39, 2), QN_OK);
    assert_true(qn_block_table_is_poisoned(&u, b.pages, 39));
    /* All of a table, also for who shares it; what was released is not its own any more. */
    qn_block_table_release_below(&u, b.pages, 32);
    qn_block_table_poison(&u, b.pages);
    assert_int_equal(qn_pages_get_info(b.pages, u.ids[1]).poisoned_from, 0);
    assert_int_equal(info(&b, &t, 0).poisoned_from, 32);
    qn_block_table_poison(&t, b.pages);
    assert_true(qn_block_table_is_poisoned(&t, b.pages, 1));
    qn_block_table_end(&u, b.pages);
    qn_block_table_end(&t, b.pages);
    end(&b);
}

static void test_begin(void **state)
{
    bench b;
    qn_block_table t;
    begin(&b);
    assert_int_equal(qn_block_table_init(&t, 6), QN_OK);
    assert_false(qn_block_table_begin(&t, 32 * 20, 32 * 13));
    assert_int_equal(t.n, 0);
    assert_true(qn_block_table_begin(&t, 32 * 13 - 5, 32 * 11 + 3));
    assert_int_equal(t.base, 8);
    assert_int_equal(t.n_released, 3);
    assert_int_equal(t.n, 5);
    assert_int_equal(t.ids[2], -1);
    assert_int_equal(qn_pages_reserve(b.pages, 2, t.ids + 3), QN_OK);
    /* Behind the window there is nothing to go back to. */
    qn_block_table_truncate(&t, b.pages, 32 * 9);
    assert_int_equal(t.n, 3);
    assert_int_equal(held(&b, QN_LEDGER_KV), 0);
    qn_block_table_end(&t, b.pages);
    end(&b);
}

/* Pages over two devices: each ledger has its part, and both or none. */
static void test_parts(void **state)
{
    qn_ledger *l[2] = {qn_ledger_new(), qn_ledger_new()};
    qn_device d[2];
    qn_state s[2], *both[2] = {&s[0], &s[1]};
    qn_pages *p = NULL;
    int32_t ids[N_UNITS];
    char bytes[UNIT_BYTES + OTHER_BYTES];
    n_dropped = n_copied = 0;
    for (int i = 0; i < 2; i++) {
        d[i] = (qn_device){.ops = &part_ops[i], .ledger = l[i]};
        s[i] = (qn_state){.device = &d[i], .spec = {.n_units = N_UNITS}};
    }
    assert_int_equal(qn_pages_new_over(2, both, &p), QN_OK);
    assert_int_equal(qn_pages_total(p), N_UNITS);
    assert_int_equal(qn_pages_unit_bytes(p), UNIT_BYTES + OTHER_BYTES);
    assert_int_equal(qn_pages_bytes_in(p, l[0]), UNIT_BYTES);
    assert_int_equal(qn_pages_bytes_in(p, l[1]), OTHER_BYTES);
    assert_int_equal(qn_pages_reserve(p, 3, ids), QN_OK);
    assert_int_equal(qn_ledger_held(l[0], QN_LEDGER_KV), 3 * UNIT_BYTES);
    assert_int_equal(qn_ledger_held(l[1], QN_LEDGER_KV), 3 * OTHER_BYTES);

    qn_pages_read(p, ids[1], bytes);
    assert_int_equal(bytes[UNIT_BYTES - 1], 'a' + ids[1]);
    assert_int_equal(bytes[UNIT_BYTES], 'm' + ids[1]);
    qn_pages_write(p, ids[2], bytes);
    assert_memory_equal(written[0], bytes, UNIT_BYTES);
    assert_memory_equal(written[1], bytes + UNIT_BYTES, OTHER_BYTES);
    qn_pages_copy(p, ids[0], ids[1]);
    assert_int_equal(n_copied, 2);

    /* The second ledger is full: what was entered in the first is taken back. */
    qn_ledger_set_limit(l[1], 4 * OTHER_BYTES);
    assert_int_equal(qn_pages_reserve(p, 2, ids + 3), QN_E_NOMEM);
    assert_int_equal(qn_ledger_total(l[0]), 3 * UNIT_BYTES);
    assert_int_equal(qn_ledger_total(l[1]), 3 * OTHER_BYTES);
    assert_int_equal(qn_pages_free_count(p), N_UNITS - 3);

    /* Both ledgers keep the page, or none. */
    qn_pages_release(p, ids[0]);
    assert_int_equal(qn_ledger_held(l[0], QN_LEDGER_CACHE), UNIT_BYTES);
    assert_int_equal(qn_ledger_held(l[1], QN_LEDGER_CACHE), OTHER_BYTES);
    qn_ledger_set_cache_limit(l[1], OTHER_BYTES);
    n_dropped = 0;
    qn_pages_release(p, ids[1]);
    assert_true(n_dropped >= 2);
    assert_int_equal(qn_ledger_total(l[0]), 2 * UNIT_BYTES);
    assert_int_equal(qn_ledger_total(l[1]), 2 * OTHER_BYTES);
    assert_int_equal(qn_pages_reclaim(p, 1), UNIT_BYTES + OTHER_BYTES);
    assert_int_equal(qn_ledger_held(l[0], QN_LEDGER_CACHE), 0);
    assert_int_equal(qn_ledger_held(l[1], QN_LEDGER_CACHE), 0);
    qn_pages_release(p, ids[2]);
    qn_pages_free(p);

    /* A part alone, whichever it is. */
    both[0] = NULL;
    assert_int_equal(qn_pages_new_over(2, both, &p), QN_OK);
    assert_int_equal(qn_pages_unit_bytes(p), OTHER_BYTES);
    assert_int_equal(qn_pages_bytes_in(p, l[0]), 0);
    qn_pages_free(p);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(qn_ledger_total(l[i]), 0);
        qn_ledger_free(l[i]);
    }
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

/* Whatever order they went back in, pages are handed out in the order of their places. */
static void test_pages_come_in_order(void **state)
{
    static const int back[] = {5, 2, 7, 0, 3, 6, 1, 4};
    bench b;
    int32_t ids[8];
    begin(&b);
    assert_int_equal(qn_pages_reserve(b.pages, 8, ids), QN_OK);
    for (int i = 0; i < 8; i++) qn_pages_release(b.pages, ids[back[i]]);
    assert_int_equal(qn_pages_reserve(b.pages, 8, ids), QN_OK);
#ifndef QN_SHAKE /* which hands out any */
    for (int i = 1; i < 8; i++) assert_true(ids[i] > ids[i - 1]);
#endif
    for (int i = 0; i < 8; i++) qn_pages_release(b.pages, ids[i]);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hold_and_cache),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_block_table),
        cmocka_unit_test(test_copy_on_write),
        cmocka_unit_test(test_prepared_ahead),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_pages_come_in_order),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_begin),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
