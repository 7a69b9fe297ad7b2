/* The prefix tree over a cache without a model: what a match gives, what is split, copied, kept, pinned,
 * poisoned and evicted, why a match is short, and what a check finds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "cache/tree.h"
#include "cache/tree_parts.h"
#include "tests/support/fake_cache.h"

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
    const qn_tree_key keys[] = {{-1, 0, NULL, 0, NULL, 0}, {3, 0, NULL, 0, NULL, 0},
                                {-1, 1, NULL, 0, NULL, 0}, {-1, 0, "x", 1, NULL, 0},
                                {-1, 0, "xy", 2, NULL, 0}, {-1, 0, "xz", 2, NULL, 0}};
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
    a[300] = 5;
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

/* Whoever wrote what a request had read: the way goes, back to the root, with pins and all that goes on from
 * it. Others with other first tokens, and of other keys, stay. */
static void test_poison_path(void **state)
{
    const int64_t window[] = {0, 64};
    const qn_tree_key salted = {.adapter = -1, .salt = "x", .salt_bytes = 1};
    qn_fake_cache c;
    qn_fake_sequence s;
    int32_t a[CAPACITY], b[CAPACITY], other[CAPACITY];
    begin(&c, 2, window, 100, 20);
    text(a, 1, 300, 70);
    text(b, 2, 300, 70);
    text(other, 3, 100, 0);
    qn_tree_poison_path(c.tree, &plain, a); /* nothing is there */
    assert_int_equal(serve_key(&c, plain, a, 100, 50, 1), 0);
    assert_int_equal(serve_key(&c, plain, a, 200, 50, 2), 100);
    serve_key(&c, plain, b, 200, 70, 3);
    serve_key(&c, salted, a, 200, 50, 4);
    serve_key(&c, plain, other, 100, 50, 5);
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 100, "x"), QN_OK);
    assert_int_equal(qn_tree_pin(c.tree, &plain, other, 50, "y"), QN_OK);
    assert_int_equal(qn_fake_sequence_begin(&s, &c, plain, CAPACITY), QN_OK);
    assert_int_equal(qn_fake_sequence_match(&s, b, 200), QN_OK);
    assert_true(s.length > 70);
    qn_tree_poison_path(c.tree, &plain, text(b, 9, 300, 0)); /* of these tokens nothing is there */
    assert_int_equal(counters(&c).poisoned_nodes, 0);
    qn_tree_poison_path(c.tree, &plain, a);
    check(&c);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 300), 0);
    assert_int_equal(qn_tree_peek(c.tree, &plain, text(b, 2, 300, 70), 300), 0);
    assert_int_equal(qn_tree_peek(c.tree, &salted, a, 200), 200);
    assert_int_equal(qn_tree_peek(c.tree, &plain, other, 100), 100);
    assert_int_equal(qn_tree_unpin(c.tree, "x"), QN_E_NOT_FOUND);
    assert_int_equal(qn_tree_unpin(c.tree, "y"), QN_OK);
    assert_true(counters(&c).poisoned_nodes >= 3);
    assert_true(qn_block_table_is_poisoned(&s.tables[0], c.pages[0], 1));
    assert_true(qn_block_table_is_poisoned(&s.tables[1], c.pages[1], s.length));
    assert_int_equal(qn_fake_sequence_insert(&s, s.length, 0, 6), QN_E_DEVICE);
    int64_t n_free = qn_pages_free_count(c.pages[0]);
    qn_fake_sequence_end(&s);
    assert_true(qn_pages_free_count(c.pages[0]) > n_free); /* its last user left */
    check(&c);
    assert_int_equal(serve_key(&c, plain, a, 200, 50, 7), 0);
    assert_int_equal(serve_key(&c, plain, a, 200, 50, 8), 150);
    end(&c);
}

/* The end of a branch goes, with what goes on from it; what others begin with, or what is pinned, stays. */
static void test_forget(void **state)
{
    const int64_t window[] = {0, 64};
    const qn_tree_key salted = {.adapter = -1, .salt = "x", .salt_bytes = 1};
    for (int n_slots = 0; n_slots <= 50; n_slots += 50) {
        qn_fake_cache c;
        int32_t a[CAPACITY], b[CAPACITY], other[CAPACITY];
        begin(&c, 2, window, 200, n_slots);
        text(a, 1, 300, 70);
        text(b, 2, 300, 70);
        text(other, 3, 300, 0);
        assert_int_equal(qn_tree_forget(c.tree, &plain, a, 200), 0); /* nothing is there */
        serve_key(&c, plain, a, 70, 70, 1);
        serve_key(&c, plain, a, 200, CAPACITY, 1);
        serve_key(&c, plain, a, 250, CAPACITY, 1);
        serve_key(&c, plain, b, 200, CAPACITY, 1);
        serve_key(&c, salted, a, 200, CAPACITY, 1);
        assert_int_equal(qn_tree_forget(c.tree, &plain, other, 200), 0);
        /* Others part from these tokens before their end. */
        assert_int_equal(qn_tree_forget(c.tree, &plain, text(other, 4, 300, 70), 100), 0);
        assert_int_equal(qn_tree_peek(c.tree, &plain, a, 250), 250);
        assert_int_equal(qn_tree_forget(c.tree, &plain, a, 200), 130);
        check(&c);
        assert_int_equal(qn_tree_peek(c.tree, &plain, a, 250), 70);
        assert_int_equal(qn_tree_peek(c.tree, &plain, b, 200), 200);
        assert_int_equal(qn_tree_peek(c.tree, &salted, a, 200), 200);
        /* It was dropped as far as it is known, and the rest is longer. */
        assert_int_equal(qn_tree_pin(c.tree, &plain, b, 70, "begin"), QN_OK);
        assert_int_equal(qn_tree_forget(c.tree, &plain, b, 300), 130);
        check(&c);
        assert_int_equal(qn_tree_peek(c.tree, &plain, b, 200), 70);
        assert_int_equal(qn_tree_forget(c.tree, &plain, b, 50), 0); /* pinned behind it */
        assert_int_equal(qn_tree_unpin(c.tree, "begin"), QN_OK);
        assert_int_equal(qn_tree_forget(c.tree, &plain, b, 70), 70);
        assert_int_equal(qn_tree_peek(c.tree, &plain, b, 200), 0);
        assert_int_equal(qn_tree_forget(c.tree, &salted, a, 100), 100);
        check(&c);
        assert_int_equal(counters(&c).nodes, 0);
        assert_int_equal(counters(&c).pages, 0);
        end(&c);
    }
}

/* Of [0, 20) "less", of [20, 40) "system" and "again" in any order. */
static qn_status count_names(void *user, const qn_tree_view *v)
{
    int *n = user;
    const char *const *expected =
        v->end == 20 ? (const char *const[]){"less", ""} : (const char *const[]){"system", "again"};
    assert_int_equal(v->end, v->begin + 20);
    assert_int_equal(v->n_pins, 1 + (*n)++);
    for (int i = 0; i < v->n_pins; i++) {
        const char *name = qn_tree_view_pin(v, i);
        assert_true(strcmp(name, expected[0]) == 0 || strcmp(name, expected[1]) == 0);
        if (i) assert_string_not_equal(name, qn_tree_view_pin(v, i - 1));
    }
    return QN_OK;
}

static void test_pins(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY], b[CAPACITY];
    begin(&c, 1, NULL, 20, 0);
    text(a, 1, 200, 200);
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 70, "system"), QN_E_NOT_FOUND);
    assert_string_equal(qn_last_error(), "prefix tree: only 0 of 70 tokens exist");
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
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 40, "again"), QN_OK);
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 20, "less"), QN_OK);
    assert_int_equal(qn_tree_walk(c.tree, count_names, &(int){0}), QN_OK);
    assert_true(qn_tree_is_pinned(c.tree, "again"));
    assert_false(qn_tree_is_pinned(c.tree, "agai"));
    assert_int_equal(qn_tree_unpin(c.tree, "again"), QN_OK);
    assert_int_equal(qn_tree_unpin(c.tree, "less"), QN_OK);
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

static void test_many_branches(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY];
    for (int failing = 0; failing < 2; failing++) {
        begin(&c, 1, NULL, 600, 0);
        for (int i = 0; i < 250; i++) {
            text(a, i + 1, 40, 20);
            qn_fake_sequence s;
            assert_int_equal(qn_fake_sequence_begin(&s, &c, plain, CAPACITY), QN_OK);
            assert_int_equal(qn_fake_sequence_compute(&s, a, 40), QN_OK);
            /* Node, tokens, pages; and the larger table of nodes, without which it works as well. */
            if (failing && i > 1) qn_mem_fail_nth(4);
            assert_int_equal(qn_fake_sequence_insert(&s, 40, 0, 1), QN_OK);
            qn_mem_fail_nth(0);
            qn_fake_sequence_end(&s);
        }
        check(&c);
        assert_int_equal(counters(&c).nodes, 251);
        for (int i = 0; i < 250; i++)
            assert_int_equal(qn_tree_peek(c.tree, &plain, text(a, i + 1, 40, 20), 40), 40);
        end(&c);
    }
}

static void test_no_room(void **state)
{
    qn_fake_cache c;
    qn_fake_sequence s;
    int32_t a[CAPACITY];
    begin(&c, 1, NULL, 100, 0);
    serve_key(&c, plain, text(a, 1, 300, 0), 300, 100, 1);
    /* A table with few entries limits what is of use. */
    assert_int_equal(qn_fake_sequence_begin(&s, &c, plain, CAPACITY), QN_OK);
    s.tables[0].capacity = 4;
    assert_int_equal(qn_fake_sequence_match(&s, a, 300), QN_OK);
    assert_int_equal(s.length, 128);
    assert_int_equal(s.tables[0].n, 4);
    /* What it has no pages for cannot be inserted. */
    assert_int_equal(qn_tree_insert(c.tree, &plain, a, 129, s.tables, -1, 1, 1), QN_E_ARG);
    assert_string_equal(qn_last_error(), "prefix tree: the sequence has no pages for its token 128");
    assert_int_equal(qn_tree_insert(c.tree, &plain, a, 0, s.tables, -1, 1, 1), QN_OK);
    /* The limit of memory leaves no room for nodes; a pin where one ends needs none. */
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 300, "all"), QN_OK);
    qn_ledger_clear_cache(c.ledger);
    qn_ledger_set_limit(c.ledger, qn_ledger_total(c.ledger));
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 10, "x"), QN_E_NOMEM);
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 100, "x"), QN_OK);
    assert_int_equal(qn_tree_unpin(c.tree, "all"), QN_OK);
    assert_int_equal(qn_tree_unpin(c.tree, "x"), QN_OK);
    qn_ledger_set_limit(c.ledger, 0);
    text(a, 2, 300, 128);
    assert_int_equal(qn_fake_sequence_compute(&s, a + 128, 0), QN_OK);
    qn_tree_clear(c.tree);
    qn_ledger_set_limit(c.ledger, qn_ledger_total(c.ledger));
    qn_ledger_clear_cache(c.ledger);
    qn_ledger_set_limit(c.ledger, qn_ledger_total(c.ledger));
    assert_int_equal(qn_fake_sequence_insert(&s, 128, 0, 1), QN_E_NOMEM);
    check(&c);
    qn_fake_sequence_end(&s);
    qn_ledger_set_limit(c.ledger, 0);
    end(&c);
}

/* Everything once, with an allocation that fails. */
static qn_status use_all(qn_fake_cache *c, qn_fake_sequence *s, const int32_t *a, const int32_t *b)
{
    const qn_tree_key salted = {3, 1, "salt", 4, NULL, 0};
    QN_TRY(qn_fake_cache_begin(c, 2, NULL, 60, 4));
    QN_TRY(qn_fake_sequence_begin(s, c, salted, CAPACITY));
    QN_TRY(qn_fake_sequence_compute(s, a, 100));
    QN_TRY(qn_fake_sequence_insert(s, 100, 1, 1));
    qn_fake_sequence_end(s);
    QN_TRY(qn_fake_sequence_begin(s, c, salted, CAPACITY));
    QN_TRY(qn_fake_sequence_compute(s, b, 100));
    QN_TRY(qn_fake_sequence_insert(s, 100, 0, 2));
    QN_TRY(qn_tree_pin(c->tree, &salted, a, 100, "pinned"));
    return qn_tree_check(c->tree) ? QN_E_NOMEM : QN_OK;
}

static void test_allocation_failures(void **state)
{
    int64_t live = qn_mem_live_blocks();
    int32_t a[CAPACITY], b[CAPACITY];
    text(a, 1, 100, 50);
    text(b, 2, 100, 50);
    for (int n = 1;; n++) {
        qn_fake_cache c = {0};
        qn_fake_sequence s = {0};
        qn_mem_fail_nth(n);
        qn_status status = use_all(&c, &s, a, b);
        qn_mem_fail_nth(0);
        if (c.tree) check(&c);
        qn_fake_sequence_end(&s);
        assert_true(qn_fake_cache_end(&c));
        assert_int_equal(qn_mem_live_blocks(), live);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_true(n < 200);
    }
}

static void test_trim(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY];
    begin(&c, 2, NULL, 100, 0);
    serve(&c, text(a, 1, 300, 0), 300);
    qn_ledger_set_cache_limit(c.ledger, 8 * FAKE_UNIT_BYTES);
    assert_true(qn_ledger_held(c.ledger, QN_LEDGER_CACHE) <= 8 * FAKE_UNIT_BYTES);
    int64_t n = qn_tree_peek(c.tree, &plain, a, 300);
    assert_true(n >= 64 && n <= 128); /* whole pages from the end, no more than needed */
    qn_tree_trim(c.tree);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 300), n);
    /* A pin stays above the limit. */
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 64, "x"), QN_OK);
    qn_ledger_set_cache_limit(c.ledger, 0);
    qn_tree_trim(c.tree);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 300), 64);
    assert_int_equal(qn_tree_evict(c.tree, SIZE_MAX), 0);
    qn_tree_unpin(c.tree, "x");
    qn_tree_trim(c.tree);
    assert_int_equal(qn_ledger_held(c.ledger, QN_LEDGER_CACHE), 0);
    end(&c);
}

/* Pages of windows that no end of a branch needs go before anything that is of use. */
static void test_thinning(void **state)
{
    qn_fake_cache c;
    const int64_t window[] = {0, 40};
    int32_t a[CAPACITY], b[CAPACITY];
    begin(&c, 2, window, 64, 0);
    serve_key(&c, plain, text(a, 1, 400, 0), 400, 32, 1);
    serve_key(&c, plain, text(b, 2, 400, 0), 400, 32, 1);
    int64_t kept = qn_pages_kept_count(c.pages[1]);
    assert_int_equal(counters(&c).evicted_nodes, 0);
    int32_t ids[64];
    assert_int_equal(qn_pages_reserve(c.pages[1], 60, ids), QN_OK);
    for (int i = 0; i < 60; i++) qn_pages_release(c.pages[1], ids[i]);
    assert_int_equal(qn_pages_kept_count(c.pages[1]), 4);
    assert_true(kept > 20);
    assert_int_equal(counters(&c).evicted_nodes, 0);
    assert_int_equal(qn_tree_peek(c.tree, &plain, a, 400), 400);
    assert_int_equal(qn_tree_peek(c.tree, &plain, b, 400), 400);
    assert_int_equal(qn_tree_peek(c.tree, &plain, b, 200), 0);
    check(&c);
    /* Several may add what is missing; with any of them it goes again. */
    serve_key(&c, plain, b, 200, 200, 5);
    assert_int_equal(qn_tree_peek(c.tree, &plain, b, 200), 200);
    serve_key(&c, plain, b, 100, 100, 6);
    check(&c);
    qn_tree_poison(c.tree, 0);
    assert_int_equal(qn_tree_peek(c.tree, &plain, b, 400), 400);
    qn_tree_poison(c.tree, 5);
    check(&c);
    assert_true(qn_tree_peek(c.tree, &plain, b, 400) < 200);
    end(&c);
}

/* ---- what a check finds ------------------------------------------------------------------------------- */

static void expect_wrong(qn_fake_cache *c, const char *text)
{
    const char *wrong = qn_tree_check(c->tree);
    assert_non_null(wrong);
    assert_string_equal(wrong, text);
}

/* With other bytes in a field for the time of a check. */
static void expect_broken(qn_fake_cache *c, void *field, size_t size_bytes, uint64_t bytes, const char *text)
{
    char right[8];
    memcpy(right, field, size_bytes);
    memcpy(field, &bytes, size_bytes);
    expect_wrong(c, text);
    memcpy(field, right, size_bytes);
    check(c);
}

static void test_check(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY];
    begin(&c, 1, NULL, 100, 8);
    c.tree->seed = 1; /* what is broken must not lie in the right bucket by chance */
    serve_key(&c, plain, text(a, 1, 200, 50), 200, 100, 1);
    serve_key(&c, plain, text(a, 2, 200, 50), 200, 100, 1);
    assert_int_equal(qn_tree_pin(c.tree, &plain, a, 200, "x"), QN_OK);
    check(&c);
    qn_tree *t = c.tree;
    qn_tree_node *root = t->roots, *head = root->child, *n = head->child, *leaf = n->next->child;
    assert_non_null(leaf);
    expect_broken(&c, &n->begin, 8, 3, "a node does not begin where its parent ends");
    expect_broken(&c, &n->ids[0], 4, 3, "a child is not found by its first token");
    expect_broken(&c, &n->used, 8, UINT64_MAX, "a node is younger than its parent");
    expect_broken(&c, &leaf->is_listed, 4, 0, "the list of evictable nodes is wrong");
    expect_broken(&c, &n->next->before, 8, 0, "siblings are not linked");
    expect_broken(&c, &leaf->hash, 8, 0, "a node's hash does not match its tokens");
    expect_broken(&c, &n->first_page, 8, 7, "a node's pages do not match its tokens");
    expect_broken(&c, &n->missing[0], 8, 1, "a page is missing between others");
    expect_broken(&c, &head->slot_writer, 8, 1, "a snapshot's writer does not have it");
    expect_broken(&c, &root->child, 8, 0, "a key has no tokens");
    expect_broken(&c, &root->key->adapter, 4, 9, "a key is not found");
    expect_broken(&c, &t->newest, 8, 0, "the list of evictable nodes is not linked");
    expect_broken(&c, &t->oldest, 8, 0, "the list of evictable nodes has other members");
    expect_broken(&c, &t->newest_slot, 8, 0, "the list of snapshots is not linked");
    expect_broken(&c, &t->oldest_slot, 8, (uint64_t)(uintptr_t)t->oldest_slot->newer_slot,
                  "the list of snapshots has other members");
    expect_broken(&c, &t->counters.pins, 8, 7, "pins are not counted");
    expect_broken(&c, &t->n_in_buckets, 8, 0, "the table has other nodes");
    expect_broken(&c, &t->counters.tokens, 8, 7, "held memory is not counted");
    qn_pages_keep(c.pages[0], n->pages[0]);
    expect_wrong(&c, "a pool counts other holds on a page");
    qn_pages_unkeep(c.pages[0], n->pages[0]);
    qn_pages_keep(c.slots, n->slot);
    expect_wrong(&c, "a pool counts other holds on a page");
    qn_pages_unkeep(c.slots, n->slot);
    qn_mem_fail_nth(1);
    expect_wrong(&c, "there is no memory for the check");
    qn_mem_fail_nth(0);
    qn_pages_poison(c.slots, leaf->slot, 0);
    expect_wrong(&c, "a snapshot is poisoned");
    qn_pages_poison(c.pages[0], leaf->pages[1], 3);
    expect_wrong(&c, "a page is poisoned");
    qn_tree_unpin(t, "x");
    qn_tree_clear(t);
    /* A page that nobody wrote. */
    qn_fake_sequence s;
    assert_int_equal(qn_fake_sequence_begin(&s, &c, plain, CAPACITY), QN_OK);
    assert_int_equal(qn_fake_sequence_compute(&s, a, 10), QN_OK);
    s.ids[10] = 3;
    assert_int_equal(qn_tree_insert(t, &plain, s.ids, 11, s.tables, -1, 1, 1), QN_OK);
    expect_wrong(&c, "a page is not filled");
    qn_tree_clear(t);
    qn_fake_sequence_end(&s);
    end(&c);
}

/* ---- threads ------------------------------------------------------------------------------------------ */

enum { N_CALLERS = 4, N_ROUNDS = 400 };

typedef struct {
    qn_fake_cache *cache;
    int number;
} caller;

/* Whoever is not the device's thread: looks, matches, gives back, pins, evicts, presses on the ledger. */
static void *call(void *user)
{
    caller *w = user;
    qn_fake_cache *c = w->cache;
    int32_t a[CAPACITY];
    qn_tree_miss miss;
    qn_tree_counters now;
    char name[2] = {(char)('a' + w->number)};
    for (int i = 0; i < N_ROUNDS; i++) {
        text(a, 1 + (i * 7 + w->number) % 20, 200, 50);
        qn_block_table table;
        int32_t slot;
        int64_t n;
        if (qn_block_table_init(&table, 32) != QN_OK) return w;
        qn_tree_match(c->tree, &plain, a, 200, &table, &slot, &n);
        if (qn_block_table_is_poisoned(&table, c->pages[0], n)) return w;
        qn_block_table_end(&table, c->pages[0]);
        qn_tree_explain(c->tree, &plain, a, 200, &miss);
        if (n && i % 5 == 0) qn_tree_pin(c->tree, &plain, a, n, name);
        if (n && i % 5 == 2) qn_tree_hold(c->tree, &plain, a, n, 1000 * (i % 1000));
        if (i % 10 == 9) qn_tree_unpin(c->tree, name);
        if (i % 16 == w->number) qn_tree_evict(c->tree, 3 * FAKE_UNIT_BYTES);
        if (i % 16 == 8 + w->number)
            qn_ledger_set_cache_limit(c->ledger, (size_t)(10 + i % 20) * FAKE_UNIT_BYTES);
        if (qn_ledger_reserve(c->ledger, QN_LEDGER_OTHER, 20 * FAKE_UNIT_BYTES) == QN_OK)
            qn_ledger_release(c->ledger, QN_LEDGER_OTHER, 20 * FAKE_UNIT_BYTES);
        qn_tree_trim(c->tree);
        qn_tree_get_counters(c->tree, &now);
    }
    qn_tree_unpin(c->tree, name);
    return NULL;
}

static void test_threads(void **state)
{
    qn_fake_cache c;
    int32_t a[CAPACITY];
    pthread_t threads[N_CALLERS];
    caller callers[N_CALLERS];
    begin(&c, 1, NULL, 100, 0);
    qn_ledger_set_limit(c.ledger, 60 * FAKE_UNIT_BYTES);
    for (int i = 0; i < N_CALLERS; i++) {
        callers[i] = (caller){&c, i};
        assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    for (int i = 0; i < N_ROUNDS; i++) {
        qn_fake_sequence s;
        text(a, 1 + i % 20, 200, 50);
        assert_int_equal(qn_fake_sequence_begin(&s, &c, plain, CAPACITY), QN_OK);
        assert_int_equal(qn_fake_sequence_match(&s, a, 200), QN_OK);
        assert_true(qn_fake_sequence_is_right(&s));
        if (qn_fake_sequence_compute(&s, a + s.length, 200 - s.length) == QN_OK) {
            qn_fake_sequence_insert(&s, s.length, 0, (uint64_t)i + 1);
            assert_true(qn_fake_sequence_is_right(&s));
        }
        qn_fake_sequence_end(&s);
    }
    for (int i = 0; i < N_CALLERS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_match),   cmocka_unit_test(test_keys),
        cmocka_unit_test(test_windows), cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_poison),  cmocka_unit_test(test_poison_path),
        cmocka_unit_test(test_forget),  cmocka_unit_test(test_pins),
        cmocka_unit_test(test_explain), cmocka_unit_test(test_many_branches),
        cmocka_unit_test(test_no_room), cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_trim),    cmocka_unit_test(test_thinning),
        cmocka_unit_test(test_check),   cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
