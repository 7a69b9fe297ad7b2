/* The prefix tree over a cache without a model: what a match gives, what is split, copied, kept, pinned,
 * poisoned and evicted, and why a match is short. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "cache/tree.h"
#include "tests/fake_cache.h"

enum { CAPACITY = 1024 };

static const qn_tree_key plain = {.adapter = -1};

/* n tokens of a text by its number; two texts have their first `shared` tokens in common. */
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

/* Matches, computes the rest in chunks, inserting after each, and goes. Returns how many tokens matched. */
static int64_t serve_key(qn_fake_cache *c, qn_tree_key key, const int32_t *ids, int64_t n, int64_t chunk,
                         uint64_t writer)
{
    qn_fake_sequence s;
    assert_int_equal(qn_fake_sequence_begin(&s, c, key, CAPACITY), QN_OK);
    assert_int_equal(qn_fake_sequence_match(&s, ids, n - 1), QN_OK);
    assert_true(qn_fake_sequence_is_right(&s));
    int64_t matched = s.length;
    while (s.length < n) {
        int64_t step = n - s.length < chunk ? n - s.length : chunk;
        assert_int_equal(qn_fake_sequence_compute(&s, ids + s.length, step), QN_OK);
        assert_int_equal(qn_fake_sequence_insert(&s, s.length, c->slots != NULL, writer), QN_OK);
        check(c);
    }
    assert_true(qn_fake_sequence_is_right(&s));
    qn_fake_sequence_end(&s);
    qn_tree_trim(c->tree);
    check(c);
    return matched;
}

static int64_t serve(qn_fake_cache *c, const int32_t *ids, int64_t n)
{
    return serve_key(c, plain, ids, n, CAPACITY, 1);
}

static void test_match(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY], b[CAPACITY];
    begin(&c, 2, NULL, 200, 0);
    text(a, 1, 300, 70);
    text(b, 2, 300, 70);
    assert_int_equal(serve(&c, a, 300), 0);
    assert_int_equal(serve(&c, a, 300), 299);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 300), 300);
    assert_int_equal(serve(&c, b, 300), 70); /* splits inside of a page */
    assert_int_equal(counters(&c).splits, 1);
    assert_int_equal(counters(&c).nodes, 3);
    assert_int_equal(counters(&c).tokens, 530);
    assert_int_equal(serve(&c, a, 300), 299);
    assert_int_equal(serve(&c, b, 300), 299);
    assert_int_equal(serve(&c, b, 71), 70);
    assert_int_equal(counters(&c).hits, 5);
    assert_int_equal(counters(&c).misses, 1);
    assert_int_equal(counters(&c).tokens_reused, 70 + 3 * 299 + 70);
    /* Nothing is used now, and all is the tree's. */
    assert_int_equal(qn_ledger_held(c.ledger, QN_LEDGER_KV), 0);
    assert_true(qn_pages_kept_count(c.pages[0]) >= 10 + 8);
    /* A sequence that has tokens cannot match. */
    qn_fake_sequence s;
    assert_int_equal(qn_fake_sequence_begin(&s, &c, plain, CAPACITY), QN_OK);
    assert_int_equal(qn_fake_sequence_match(&s, a, 10), QN_OK);
    assert_int_equal(qn_fake_sequence_match(&s, a, 10), QN_E_ARG);
    qn_fake_sequence_end(&s);
    end(&c);
}

static void test_keys(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY];
    const qn_tree_key keys[] = {{-1, 0, NULL, 0}, {3, 0, NULL, 0},  {-1, 1, NULL, 0},
                                {-1, 0, "x", 1},  {-1, 0, "xy", 2}, {-1, 0, "xz", 2}};
    enum { N = sizeof keys / sizeof *keys };
    begin(&c, 1, NULL, 200, 0);
    text(a, 1, 100, 0);
    for (int i = 0; i < N; i++) assert_int_equal(serve_key(&c, keys[i], a, 100, 40, 1), 0);
    for (int i = 0; i < N; i++) assert_int_equal(serve_key(&c, keys[i], a, 100, 40, 1), 99);
    qn_tree_forget_adapter(c.tree, 3);
    check(&c);
    assert_int_equal(qn_tree_peek(c.tree, &keys[1], a, 100), 0);
    assert_int_equal(qn_tree_peek(c.tree, &keys[2], a, 100), 100);
    qn_tree_clear(c.tree);
    assert_int_equal(counters(&c).nodes, 0);
    assert_int_equal(counters(&c).own_bytes, 0);
    end(&c);
}

static void test_windows(void **state)
{
    qn_fake_cache c;
    const int64_t window[] = {0, 50, 17};
    int32_t a[CAPACITY], b[CAPACITY];
    begin(&c, 3, window, 200, 0);
    text(a, 1, 400, 380);
    text(b, 2, 400, 380);
    assert_int_equal(serve_key(&c, plain, a, 400, 64, 1), 0);
    assert_int_equal(serve(&c, a, 400), 399);
    assert_int_equal(serve(&c, b, 400), 380);
    /* In one go the pages of the start are released before they are inserted. */
    qn_tree_clear(c.tree);
    assert_int_equal(serve_key(&c, plain, a, 400, 400, 1), 0);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 400), 400);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 300), 0);
    qn_tree_miss miss;
    qn_tree_explain(c.tree, &plain, a, 300, &miss);
    assert_int_equal(miss.reason, QN_TREE_LACKS_WINDOW);
    assert_int_equal(miss.n_known, 300);
    /* Who computes that again adds what was missing. */
    assert_int_equal(serve_key(&c, plain, a, 300, 30, 2), 0);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 300), 300);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 270), 270);
    assert_int_equal(serve(&c, a, 400), 399);
    end(&c);
}

static void test_snapshots(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY], b[CAPACITY];
    begin(&c, 1, NULL, 100, 6);
    text(a, 1, 300, 70);
    text(b, 2, 300, 70);
    assert_int_equal(serve_key(&c, plain, a, 300, 100, 1), 0);
    assert_int_equal(counters(&c).snapshots, 3);
    assert_int_equal(serve(&c, a, 300), 200);
    assert_int_equal(serve(&c, a, 301), 300);
    assert_int_equal(serve(&c, b, 60), 0); /* known, but no state is there */
    assert_int_equal(qn_tree_peek(c.tree, &plain, b, 300), 60);
    qn_tree_miss miss;
    qn_tree_explain(c.tree, &plain, b, 70, &miss);
    assert_int_equal(miss.reason, QN_TREE_LACKS_SNAPSHOT);
    assert_int_equal(miss.n_known, 70);
    assert_int_equal(miss.n_usable, 60);
    /* There are six slots: more snapshots displace the old ones. */
    for (int i = 3; i < 9; i++) serve_key(&c, plain, text(b, i, 200, 20), 200, 100, 1);
    assert_true(counters(&c).evicted_snapshots > 0);
    assert_int_equal(serve(&c, b, 201), 200);
    end(&c);
}

static void test_poison(void **state)
{
    qn_fake_cache c;
    qn_fake_sequence s;
    int32_t a[CAPACITY];
    begin(&c, 1, NULL, 100, 0);
    text(a, 1, 300, 70);
    assert_int_equal(serve_key(&c, plain, a, 100, 50, 1), 0);
    assert_int_equal(serve_key(&c, plain, a, 200, 50, 2), 100);
    assert_int_equal(serve_key(&c, plain, a, 300, 50, 3), 200);
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 250, "x"), QN_OK);
    assert_int_equal(qn_fake_sequence_begin(&s, &c, plain, CAPACITY), QN_OK);
    assert_int_equal(qn_fake_sequence_match(&s, a, 280), QN_OK);
    assert_int_equal(s.length, 280);
    assert_false(qn_block_table_is_poisoned(&s.tables[0], c.pages[0], 280));
    qn_tree_poison(c.tree, 2);
    check(&c);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 300), 100);
    assert_true(counters(&c).poisoned_nodes >= 4);
    assert_int_equal(qn_tree_unpin(c.tree, "x"), QN_E_NOT_FOUND);
    assert_true(qn_block_table_is_poisoned(&s.tables[0], c.pages[0], 280));
    assert_false(qn_block_table_is_poisoned(&s.tables[0], c.pages[0], 100));
    /* It does not come back by who still has it. */
    assert_int_equal(qn_fake_sequence_insert(&s, 280, 0, 4), QN_E_DEVICE);
    check(&c);
    assert_int_equal(qn_fake_sequence_insert(&s, 100, 0, 4), QN_OK);
    qn_fake_sequence_end(&s);
    assert_int_equal(serve(&c, a, 300), 100);
    qn_tree_poison(c.tree, 77);
    assert_int_equal(serve(&c, a, 300), 299);
    end(&c);
}

static void test_pins(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY], b[CAPACITY];
    begin(&c, 1, NULL, 20, 0);
    text(a, 1, 200, 200);
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 70, "system"), QN_E_NOT_FOUND);
    assert_string_equal(qn_last_error(), "prefix tree: 0 of 70 tokens are there");
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 0, "nothing"), QN_E_NOT_FOUND);
    serve(&c, a, 200);
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 70, "system"), QN_OK);
    check(&c);
    for (int i = 2; i < 20; i++) serve(&c, text(b, i, 300, 0), 300);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 200), 70);
    qn_tree_clear(c.tree);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 200), 70);
    /* The same name again is the same pin. */
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 40, "system"), QN_OK);
    check(&c);
    assert_int_equal(counters(&c).pins, 1);
    qn_tree_clear(c.tree);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 200), 40);
    assert_int_equal(qn_tree_unpin(c.tree, "system"), QN_OK);
    assert_int_equal(qn_tree_unpin(c.tree, "system"), QN_E_NOT_FOUND);
    qn_tree_clear(c.tree);
    assert_int_equal(counters(&c).nodes, 0);
    end(&c);
}

static void test_explain(void **state)
{
    qn_fake_cache c;
    qn_tree_miss miss;
    int32_t a[CAPACITY], b[CAPACITY];
    begin(&c, 1, NULL, 100, 0);
    text(a, 1, 100, 40);
    text(b, 2, 100, 40);
    qn_tree_explain(c.tree, &plain, a, 100, &miss);
    assert_int_equal(miss.reason, QN_TREE_UNKNOWN_KEY);
    serve_key(&c, plain, a, 100, 44, 1);
    qn_tree_explain(c.tree, &plain, a, 100, &miss);
    assert_int_equal(miss.reason, QN_TREE_USABLE);
    assert_int_equal(miss.n_usable, 100);
    qn_tree_explain(c.tree, &plain, b, 100, &miss);
    assert_int_equal(miss.reason, QN_TREE_DIFFERS);
    assert_int_equal(miss.n_known, 40);
    assert_int_equal(miss.i_given, 8);
    assert_int_equal(miss.n_given, 16);
    assert_int_equal(miss.n_known_ids, 16);
    assert_int_equal(miss.given[8], b[40]);
    assert_int_equal(miss.given[7], a[39]);
    assert_int_equal(miss.known[miss.i_known], a[40]);
    assert_int_equal(miss.known[15], a[47]);
    assert_int_equal(miss.evicted_begin, -1);
    memcpy(b, a, sizeof b);
    b[100] = 7;
    qn_tree_explain(c.tree, &plain, b, 101, &miss);
    assert_int_equal(miss.reason, QN_TREE_ENDS);
    assert_int_equal(miss.n_known, 100);
    assert_int_equal(miss.n_given, 9);
    assert_int_equal(miss.n_known_ids, 8);
    b[3] = 99;
    qn_tree_explain(c.tree, &plain, b, 100, &miss);
    assert_int_equal(miss.n_known, 3);
    assert_int_equal(miss.i_known, 3);
    qn_tree_clear(c.tree);
    qn_tree_explain(c.tree, &plain, a, 100, &miss);
    assert_int_equal(miss.reason, QN_TREE_EVICTED);
    assert_int_equal(miss.evicted_end, 100);
    assert_int_equal(miss.evicted_begin, 88);
    assert_true(miss.evicted_ago > 0);
    qn_tree_explain(c.tree, &plain, b, 100, &miss);
    assert_int_equal(miss.reason, QN_TREE_UNKNOWN_KEY);
    end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_match),     cmocka_unit_test(test_keys),   cmocka_unit_test(test_windows),
        cmocka_unit_test(test_snapshots), cmocka_unit_test(test_poison), cmocka_unit_test(test_pins),
        cmocka_unit_test(test_explain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
