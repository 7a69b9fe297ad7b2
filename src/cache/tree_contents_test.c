/* The prefix tree over sequences in which pictures stand: what their ids do not say, their digests do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "cache/tree.h"
#include "cache/tree_parts.h"
#include "tests/support/fake_cache.h"

enum { LENGTH = 300, PICTURE = 7 /* the id of all tokens of pictures */, CONTENTS_MAX = 8 };

typedef struct {
    int32_t ids[LENGTH];
    qn_tree_content contents[CONTENTS_MAX];
    int64_t n, n_contents;
} row;

static void put_text(row *r, int first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) r->ids[r->n++] = first + (int)i;
}

/* n tokens of the picture of this number; their digests differ in one bit. */
static void put_picture(row *r, int number, int64_t n)
{
    qn_tree_content *c = &r->contents[r->n_contents++];
    memset(c->digest, 0x5a, sizeof c->digest);
    c->digest[number / 8] = (unsigned char)(c->digest[number / 8] ^ 1 << number % 8);
    c->first = r->n;
    while (n--) r->ids[r->n++] = PICTURE;
}

static qn_tree_key key_of(const row *r)
{
    return (qn_tree_key){.adapter = -1, .contents = r->contents, .n_contents = r->n_contents};
}

static void check(qn_fake_cache *c)
{
    const char *wrong = qn_tree_check(c->tree);
    if (wrong) fail_msg("%s", wrong);
}

/* Matches all but the last token, computes the rest and inserts it. Returns how many matched. */
static int64_t serve(qn_fake_cache *c, const row *r)
{
    qn_fake_sequence s;
    assert_int_equal(qn_fake_sequence_begin(&s, c, key_of(r), LENGTH), QN_OK);
    assert_int_equal(qn_fake_sequence_match(&s, r->ids, r->n - 1), QN_OK);
    assert_true(qn_fake_sequence_is_right(&s));
    const int64_t matched = s.length;
    assert_int_equal(qn_fake_sequence_compute(&s, r->ids + matched, r->n - matched), QN_OK);
    assert_int_equal(qn_fake_sequence_insert(&s, r->n, c->slots != NULL, 1), QN_OK);
    assert_true(qn_fake_sequence_is_right(&s));
    qn_fake_sequence_end(&s);
    check(c);
    return matched;
}

static int64_t peek(qn_fake_cache *c, const row *r)
{
    const qn_tree_key key = key_of(r);
    return qn_tree_peek(c->tree, &key, r->ids, r->n);
}

/* A picture of the same size at the same place is another one, wherever it lies in a page. */
static void test_told_apart(void **state)
{
    static const int64_t before[] = {0, 1, 31, 32, 45};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        qn_fake_cache c;
        row a = {0}, b = {0}, longer = {0}, text = {0};
        assert_int_equal(qn_fake_cache_begin(&c, 2, NULL, 200, 0), QN_OK);
        put_text(&a, 100, before[i]);
        b = longer = text = a;
        put_picture(&a, 3, 40);
        put_picture(&b, 250, 40);
        put_picture(&longer, 3, 40);
        while (text.n < b.n) text.ids[text.n++] = PICTURE;
        put_text(&a, 200, 20);
        put_text(&b, 200, 20);
        put_text(&longer, 200, 20);
        put_picture(&longer, 3, 9);
        put_text(&longer, 300, 3);
        assert_int_equal(serve(&c, &a), 0);
        assert_int_equal(serve(&c, &b), before[i]);
        assert_int_equal(peek(&c, &text), before[i]);
        assert_int_equal(serve(&c, &longer), a.n);
        assert_int_equal(serve(&c, &text), before[i]);
        assert_int_equal(serve(&c, &a), a.n - 1);
        assert_int_equal(serve(&c, &b), b.n - 1);
        assert_int_equal(serve(&c, &longer), longer.n - 1);
        assert_int_equal(serve(&c, &text), text.n - 1);
        a.n -= 30; /* inside of the picture */
        assert_int_equal(peek(&c, &a), a.n);
        assert_true(qn_fake_cache_end(&c));
    }
}

/* What was kept goes by the same names: pins, explanations, what is forgotten and what is poisoned. */
static void test_named(void **state)
{
    qn_fake_cache c;
    qn_tree_miss miss;
    row a = {0}, b = {0};
    assert_int_equal(qn_fake_cache_begin(&c, 1, NULL, 200, 0), QN_OK);
    put_picture(&a, 1, 40);
    put_picture(&b, 2, 40);
    put_text(&a, 100, 30);
    put_text(&b, 100, 30);
    const qn_tree_key of_a = key_of(&a), of_b = key_of(&b), of_none = {.adapter = -1};
    assert_int_equal(serve(&c, &a), 0);
    assert_int_equal(qn_tree_pin(c.tree, &of_b, b.ids, 40, "b"), QN_E_NOT_FOUND);
    assert_int_equal(qn_tree_pin(c.tree, &of_a, a.ids, 40, "a"), QN_OK);
    assert_int_equal(qn_tree_hold(c.tree, &of_b, b.ids, b.n, 1000000000), 0);
    assert_int_equal(qn_tree_hold(c.tree, &of_a, a.ids, a.n, 1000000000), a.n);
    check(&c);
    qn_tree_explain(c.tree, &of_b, b.ids, b.n, &miss);
    assert_int_equal(miss.reason, QN_TREE_DIFFERS);
    assert_int_equal(miss.n_known, 0);
    qn_tree_explain(c.tree, &of_none, a.ids, a.n, &miss);
    assert_int_equal(miss.n_known, 0);
    assert_int_equal(qn_tree_unpin(c.tree, "a"), QN_OK);
    qn_tree_clear(c.tree);
    qn_tree_explain(c.tree, &of_a, a.ids, a.n, &miss);
    assert_int_equal(miss.reason, QN_TREE_EVICTED);
    qn_tree_explain(c.tree, &of_b, b.ids, b.n, &miss);
    assert_int_equal(miss.reason, QN_TREE_UNKNOWN_KEY);
    assert_int_equal(serve(&c, &a), 0);
    assert_int_equal(serve(&c, &b), 0);
    assert_int_equal(qn_tree_forget(c.tree, &of_b, b.ids, b.n), b.n);
    assert_int_equal(peek(&c, &a), a.n);
    assert_int_equal(serve(&c, &b), 0);
    qn_tree_poison_path(c.tree, &of_a, a.ids);
    assert_int_equal(peek(&c, &a), 0);
    assert_int_equal(peek(&c, &b), b.n);
    check(&c);
    assert_true(qn_fake_cache_end(&c));
}

/* ---- at random ---------------------------------------------------------------------------------------- */

/* A row that begins as others do: each part is one of few texts or pictures. */
static void put_random(row *r, uint64_t seed)
{
    for (int64_t part = 0; r->n < 200 && part < CONTENTS_MAX; part++) {
        const int choice = (int)(qn_random_bits(seed, (uint64_t)part) % 4);
        if (choice < 2)
            put_picture(r, choice, 5 + 33 * choice);
        else
            put_text(r, 100 * choice, 1 + 29 * (choice - 2));
    }
}

static int has_content_at(const row *r, int64_t at, const row *other)
{
    const unsigned char *digests[2] = {NULL, NULL};
    const row *rows[2] = {r, other};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < rows[k]->n_contents; i++)
            if (rows[k]->contents[i].first == at) digests[k] = rows[k]->contents[i].digest;
    if (!digests[0] || !digests[1]) return digests[0] == digests[1];
    return memcmp(digests[0], digests[1], QN_TREE_DIGEST_BYTES) == 0;
}

static int64_t shared(const row *a, const row *b, int64_t most)
{
    int64_t n = 0;
    while (n < most && n < b->n && a->ids[n] == b->ids[n] && has_content_at(a, n, b)) n++;
    return n;
}

/* With pages enough a row matches what it shares with those before, and no more. */
static void test_random(void **state)
{
    enum { ROWS = 60 };
    static row rows[ROWS];
    qn_fake_cache c;
    assert_int_equal(qn_fake_cache_begin(&c, 1, NULL, 2000, 0), QN_OK);
    for (int i = 0; i < ROWS; i++) {
        int64_t want = 0;
        rows[i] = (row){0};
        put_random(&rows[i], (uint64_t)(1000 + i));
        for (int k = 0; k < i; k++) {
            const int64_t n = shared(&rows[i], &rows[k], rows[i].n - 1);
            if (n > want) want = n;
        }
        assert_int_equal(serve(&c, &rows[i]), want);
    }
    assert_true(qn_fake_cache_end(&c));
}

/* With few pages, windows and snapshots what is matched is right, and the tree stays sound. */
static void test_random_evicting(void **state)
{
    static const int64_t window[] = {0, 50};
    for (int with_slots = 0; with_slots < 2; with_slots++) {
        qn_fake_cache c;
        int64_t matched = 0;
        assert_int_equal(qn_fake_cache_begin(&c, 2, window, 40, with_slots ? 6 : 0), QN_OK);
        for (int i = 0; i < 2000; i++) {
            row r = {0};
            put_random(&r, (uint64_t)i % 37);
            r.n--;
            matched += serve(&c, &r);
            r.n++;
            matched += serve(&c, &r);
        }
        assert_true(matched > 0);
        assert_true(qn_fake_cache_end(&c));
    }
}

/* A tree that gets no memory for one of a row's nodes keeps none of them. */
static void test_out_of_memory(void **state)
{
    for (int with_text = 0; with_text < 2; with_text++) {
        qn_fake_cache c;
        qn_fake_sequence s;
        row first = {0}, r = {0};
        assert_int_equal(qn_fake_cache_begin(&c, 2, NULL, 100, 0), QN_OK);
        put_text(&first, 100, 50);
        if (with_text) serve(&c, &first);
        put_text(&r, 100, 45);
        put_picture(&r, 1, 40);
        put_picture(&r, 2, 5);
        put_text(&r, 200, 45);
        const qn_tree_key key = key_of(&r);
        assert_int_equal(qn_fake_sequence_begin(&s, &c, key, LENGTH), QN_OK);
        assert_int_equal(qn_fake_sequence_compute(&s, r.ids, r.n), QN_OK);
        qn_status status = QN_E_NOMEM;
        for (int n = 1; status != QN_OK; n++) {
            const size_t held = qn_ledger_held(c.ledger, QN_LEDGER_CACHE);
            qn_mem_fail_nth(n);
            status = qn_tree_insert(c.tree, &key, r.ids, r.n, s.tables, -1, 1, 1);
            qn_mem_fail_nth(0);
            check(&c);
            if (status == QN_OK) break;
            assert_int_equal(status, QN_E_NOMEM);
            assert_int_equal(qn_tree_peek(c.tree, &key, r.ids, r.n), with_text ? 45 : 0);
            if (!with_text) assert_int_equal(qn_ledger_held(c.ledger, QN_LEDGER_CACHE), held);
        }
        assert_int_equal(qn_tree_peek(c.tree, &key, r.ids, r.n), r.n);
        qn_fake_sequence_end(&s);
        assert_true(qn_fake_cache_end(&c));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_told_apart),    cmocka_unit_test(test_named),
        cmocka_unit_test(test_random),        cmocka_unit_test(test_random_evicting),
        cmocka_unit_test(test_out_of_memory),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
