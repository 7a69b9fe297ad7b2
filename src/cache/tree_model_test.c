/* Pools and prefix tree against a naive model: random operations, some of them while an allocation fails, and
 * after each of them all that can be known is compared. The model is a set of all known prefixes, each by a
 * hash of its tokens; what may be reused is found in it position by position. QUERN_OPS: how many operations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "cache/tree.h"
#include "tests/support/fake_cache.h"

enum {
    N_SEQUENCES = 6,
    N_TEXTS = 12,
    N_PINS = 3,
    N_KEYS = 4,
    LENGTH = 260,
    PLACES = 1 << 16, /* of the model's table: more than pools have positions for */
    OPS = 100000
};

static const qn_tree_key keys[N_KEYS] = {{.adapter = -1},
                                         {.adapter = 1},
                                         {.adapter = -1, .is_long = 1},
                                         {.adapter = -1, .salt = "salt", .salt_bytes = 4}};

/* One known prefix: its last token is at position end - 1. */
typedef struct {
    uint64_t hash;
    int64_t stamp;
    int32_t pages; /* bit g: the page of that position is there, in the node that has the position */
    int is_end_with_state;
} known;

typedef struct {
    int32_t ids[LENGTH];
    int64_t n;
    int key;
} text;

typedef struct {
    qn_fake_cache c;
    uint64_t seed, draws, n_writers;
    qn_fake_sequence sequences[N_SEQUENCES];
    text planned[N_SEQUENCES], texts[N_TEXTS], pinned[N_PINS];
    uint64_t writers[N_SEQUENCES];
    known *places, *before; /* [PLACES]: now (those of this stamp), and before the operation (the last) */
    int64_t stamp, n_known, n_new;
    int injected; /* an allocation may fail in this operation */
    int64_t n_matched, n_failed;
} model;

static uint64_t draw(model *m, uint64_t n)
{
    return qn_random_bits(m->seed, m->draws++) % n;
}

/* ---- the model ---------------------------------------------------------------------------------------- */

static uint64_t first_hash(const qn_tree_key *key)
{
    return ((uint64_t)(key - keys) + 1) << 40;
}

static uint64_t hash_on(uint64_t h, int32_t id)
{
    h = (h ^ (uint32_t)id) * 0xff51afd7ed558ccdu;
    return h ^ h >> 31;
}

static int same_key(const qn_tree_key *a, const qn_tree_key *b)
{
    return a->adapter == b->adapter && a->is_long == b->is_long && a->salt_bytes == b->salt_bytes &&
           !memcmp(a->salt_bytes ? a->salt : "", b->salt_bytes ? b->salt : "", a->salt_bytes);
}

static const qn_tree_key *own_key(const qn_tree_key *key)
{
    int i = 0;
    while (!same_key(&keys[i], key)) i++;
    return &keys[i];
}

/* The place of a prefix, or the empty one where it belongs. */
static known *find(known *places, int64_t stamp, uint64_t hash)
{
    size_t i = hash % PLACES;
    while (places[i].stamp == stamp && places[i].hash != hash) i = (i + 1) % PLACES;
    return &places[i];
}

static int is_known(known *places, int64_t stamp, uint64_t hash)
{
    return find(places, stamp, hash)->stamp == stamp;
}

/* Whether a sequence of n tokens, whose prefixes are places[0..n), could go on. */
static int could_go_on(const model *m, known *const *prefixes, int64_t n)
{
    for (int g = 0; g < m->c.n_groups; g++) {
        int64_t window = m->c.window[g], first = window && n - window + 1 > 0 ? n - window + 1 : 0;
        for (int64_t page = first / 32; page * 32 < n; page++) {
            int64_t last = page * 32 + 31 < n - 1 ? page * 32 + 31 : n - 1;
            if (!(prefixes[last]->pages >> g & 1)) return 0;
        }
    }
    return !m->c.slots || prefixes[n - 1]->is_end_with_state;
}

/* How many tokens are known, and how many of use. */
static void expect(model *m, const text *t, int64_t n_max, int64_t *n_known, int64_t *n_usable)
{
    known *prefixes[LENGTH];
    uint64_t hash = first_hash(&keys[t->key]);
    *n_known = *n_usable = 0;
    for (; *n_known < n_max; (*n_known)++) {
        hash = hash_on(hash, t->ids[*n_known]);
        prefixes[*n_known] = find(m->places, m->stamp, hash);
        if (prefixes[*n_known]->stamp != m->stamp) break;
    }
    for (int64_t n = *n_known; n > 0 && !*n_usable; n--)
        if (could_go_on(m, prefixes, n)) *n_usable = n;
}

/* What a page should hold is what the fake sequences write. */
static uint64_t content_on(const qn_tree_key *key, uint64_t h, int64_t at, int32_t id)
{
    if (!at) {
        h = (uint64_t)key->adapter * 7919 + (uint64_t)key->is_long * 104729;
        for (size_t i = 0; i < key->salt_bytes; i++) h = h * 31 + ((const uint8_t *)key->salt)[i];
    }
    h = (h + (uint32_t)id + 1) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* Takes a node into the model, and compares what its pages and its snapshot hold. */
static qn_status visit(void *user, const qn_tree_view *v)
{
    model *m = user;
    const qn_tree_key *key = own_key(v->key);
    uint64_t hash = first_hash(key), content = 0;
    for (int64_t at = 0; at < v->end; at++) {
        hash = hash_on(hash, v->path[at]);
        content = content_on(key, content, at, v->path[at]);
        int64_t i = at / 32 - v->first_page;
        for (int g = 0; i >= 0 && g < m->c.n_groups; g++)
            if (v->pages[g][i] >= 0)
                assert_true(m->c.states[g].contents[v->pages[g][i] * 32 + at % 32] == content);
        if (at < v->begin) continue;
        known *k = find(m->places, m->stamp, hash);
        assert_true(k->stamp != m->stamp);
        *k = (known){.hash = hash, .stamp = m->stamp, .is_end_with_state = at == v->end - 1 && v->slot >= 0};
        for (int g = 0; g < m->c.n_groups; g++) k->pages |= (v->pages[g][i] >= 0) << g;
        m->n_known++;
        m->n_new += !is_known(m->before, m->stamp - 1, hash);
    }
    if (v->slot >= 0) assert_true(m->c.slot_state.contents[v->slot] == content);
    return QN_OK;
}

/* ---- what holds after each operation ------------------------------------------------------------------ */

static void check_users(model *m)
{
    int32_t users[256];
    int64_t n_used = 0, n_used_slots = 0;
    for (int g = 0; g < m->c.n_groups; g++) {
        memset(users, 0, sizeof users);
        for (int k = 0; k < N_SEQUENCES; k++) {
            const qn_block_table *t = &m->sequences[k].tables[g];
            for (int64_t i = t->n_released; i < t->n; i++) users[t->ids[i]]++;
        }
        int64_t used = 0;
        for (int32_t id = 0; id < qn_pages_total(m->c.pages[g]); id++) {
            assert_int_equal(qn_pages_get_info(m->c.pages[g], id).users, users[id]);
            used += users[id] > 0;
        }
        assert_int_equal(used + qn_pages_kept_count(m->c.pages[g]) + qn_pages_free_count(m->c.pages[g]),
                         qn_pages_total(m->c.pages[g]));
        n_used += used;
    }
    for (int k = 0; k < N_SEQUENCES; k++) n_used_slots += m->sequences[k].cache && m->sequences[k].slot >= 0;
    qn_ledger_figures now = qn_ledger_get(m->c.ledger);
    assert_int_equal(now.held[QN_LEDGER_KV], n_used * FAKE_UNIT_BYTES + n_used_slots * FAKE_SLOT_BYTES);
    qn_tree_counters counters;
    qn_tree_get_counters(m->c.tree, &counters);
    size_t kept = counters.own_bytes;
    for (int g = 0; g < m->c.n_groups; g++)
        kept += (size_t)qn_pages_kept_count(m->c.pages[g]) * FAKE_UNIT_BYTES;
    if (m->c.slots) kept += (size_t)qn_pages_kept_count(m->c.slots) * FAKE_SLOT_BYTES;
    assert_true(now.held[QN_LEDGER_CACHE] >= kept); /* and what is cached without contents */
    assert_int_equal(counters.tokens, m->n_known);
}

/* Reads the tree into the model, and counts prefixes that were not known before. */
static void reread(model *m)
{
    known *old = m->places;
    m->places = m->before;
    m->before = old;
    m->stamp++;
    m->n_known = m->n_new = 0;
    assert_int_equal(qn_tree_walk(m->c.tree, visit, m), QN_OK);
    assert_true(m->n_known < PLACES / 2);
}

static void check(model *m, int64_t n_new_most)
{
    const char *wrong = qn_tree_check(m->c.tree);
    if (wrong)
        fail_msg("%s, at draw %llu of seed %llu", wrong, (unsigned long long)m->draws,
                 (unsigned long long)m->seed);
    reread(m);
    assert_true(m->n_new <= n_new_most);
    check_users(m);
    for (int k = 0; k < N_SEQUENCES; k++)
        if (m->sequences[k].cache) assert_true(qn_fake_sequence_is_right(&m->sequences[k]));
    for (int k = 0; k < N_PINS; k++)
        if (m->pinned[k].n)
            assert_int_equal(
                qn_tree_peek(m->c.tree, &keys[m->pinned[k].key], m->pinned[k].ids, m->pinned[k].n),
                m->pinned[k].n);
}

/* ---- operations --------------------------------------------------------------------------------------- */

/* Some old text up to somewhere, and something new. */
static void make_text(model *m, text *t)
{
    *t = m->texts[draw(m, N_TEXTS)];
    if (draw(m, 4) == 0) t->key = (int)draw(m, N_KEYS);
    if (t->n) t->n = (int64_t)draw(m, (uint64_t)t->n + 1);
    if (draw(m, 3) == 0) t->n = t->n / 32 * 32;
    int64_t more = (int64_t)draw(m, 3) ? (int64_t)draw(m, 40) : (int64_t)draw(m, LENGTH);
    while (more-- > 0 && t->n < LENGTH) t->ids[t->n++] = (int32_t)draw(m, 4);
    m->texts[draw(m, N_TEXTS)] = *t;
}

static int may_fail(const model *m, qn_status status)
{
    return status == QN_OK || status == QN_E_FULL || status == QN_E_NOMEM ||
           (m->injected && status == QN_E_NOMEM);
}

static void start(model *m, int k)
{
    qn_fake_sequence *s = &m->sequences[k];
    text *t = &m->planned[k];
    int64_t n_known = 0, n_usable = 0;
    make_text(m, t);
    qn_status status = qn_fake_sequence_begin(s, &m->c, keys[t->key], LENGTH);
    if (status != QN_OK) {
        assert_true(m->injected);
        return;
    }
    m->writers[k] = ++m->n_writers;
    expect(m, t, t->n, &n_known, &n_usable);
    qn_tree_miss miss;
    qn_tree_explain(m->c.tree, &keys[t->key], t->ids, t->n, &miss);
    assert_int_equal(miss.n_known, n_known);
    assert_int_equal(miss.n_usable, n_usable);
    assert_int_equal(miss.reason == QN_TREE_USABLE, n_usable == t->n);
    if (t->n && draw(m, 2)) expect(m, t, t->n - 1, &n_known, &n_usable);
    status = qn_fake_sequence_match(s, t->ids, n_known < t->n ? n_known : t->n);
    assert_true(may_fail(m, status));
    if (status == QN_OK) assert_int_equal(s->length, n_usable);
    m->n_matched += s->length;
}

static void compute(model *m, int k)
{
    qn_fake_sequence *s = &m->sequences[k];
    text *t = &m->planned[k];
    int64_t n = 1 + (int64_t)draw(m, draw(m, 2) ? 4 : 90);
    if (s->length + n > LENGTH) n = LENGTH - s->length;
    if (n <= 0) return;
    for (int64_t i = s->length; i < s->length + n; i++)
        if (i >= t->n) t->ids[i] = (int32_t)draw(m, 4);
    if (t->n < s->length + n) t->n = s->length + n;
    int64_t length = s->length;
    qn_status status = qn_fake_sequence_compute(s, t->ids + length, n);
    assert_true(may_fail(m, status));
    assert_int_equal(s->length, status == QN_OK ? length + n : length);
    m->n_failed += status != QN_OK;
}

/* Returns how many prefixes may be new. */
static int64_t insert(model *m, int k)
{
    qn_fake_sequence *s = &m->sequences[k];
    int with_snapshot = m->c.slots && s->slot >= 0 && draw(m, 3);
    int64_t n = with_snapshot || draw(m, 4) ? s->length : (int64_t)draw(m, (uint64_t)s->length + 1),
            n_new = 0;
    uint64_t hash = first_hash(&keys[m->planned[k].key]);
    for (int64_t i = 0; i < n; i++) {
        hash = hash_on(hash, s->ids[i]);
        n_new += !is_known(m->places, m->stamp, hash);
    }
    qn_tree_counters before, after;
    qn_tree_get_counters(m->c.tree, &before);
    qn_status status = qn_fake_sequence_insert(s, n, with_snapshot, m->writers[k]);
    qn_tree_get_counters(m->c.tree, &after);
    assert_true(may_fail(m, status));
    if (status != QN_OK) {
        m->n_failed++;
        assert_int_equal(after.tokens_inserted, before.tokens_inserted);
        return 0;
    }
    /* What a sequence inserts is known, and it can go on from there. */
    if (after.evicted_tokens == before.evicted_tokens)
        assert_int_equal(after.tokens_inserted - before.tokens_inserted, n_new);
    qn_tree_miss miss;
    qn_tree_explain(m->c.tree, &s->key, s->ids, n, &miss);
    assert_int_equal(miss.n_known, n);
    if (n == s->length && (!m->c.slots || with_snapshot)) assert_int_equal(miss.n_usable, n);
    return after.tokens_inserted - before.tokens_inserted;
}

static void truncate(model *m, int k)
{
    qn_fake_sequence *s = &m->sequences[k];
    int64_t n = s->length - 1 - (int64_t)draw(m, draw(m, 2) ? 4 : 60);
    if (m->c.slots || n < 0) return;
    for (int g = 0; g < m->c.n_groups; g++) { /* as far as the windows allow */
        int64_t window = m->c.window[g], first = window && n - window + 1 > 0 ? n - window + 1 : 0;
        if (first / 32 < s->tables[g].base + s->tables[g].n_released) return;
    }
    qn_fake_sequence_truncate(s, n);
}

/* Either what a sequence wrote, or all that it may have read. */
static void poison(model *m, int k)
{
    const qn_fake_sequence *own = &m->sequences[k];
    int is_path = own->length > 0 && draw(m, 2);
    if (is_path) {
        qn_tree_poison_path(m->c.tree, &own->key, own->ids);
        for (int g = 0; g < m->c.n_groups; g++) qn_block_table_poison(&own->tables[g], m->c.pages[g]);
        assert_int_equal(qn_tree_peek(m->c.tree, &own->key, own->ids, own->length), 0);
    } else {
        qn_tree_poison(m->c.tree, m->writers[k]);
    }
    for (int j = 0; j < N_SEQUENCES; j++) {
        const qn_fake_sequence *s = &m->sequences[j];
        int is_poisoned = s->cache && s->slot >= 0 && qn_pages_is_poisoned(m->c.slots, s->slot, 1);
        for (int g = 0; s->cache && g < m->c.n_groups; g++)
            is_poisoned |= qn_block_table_is_poisoned(&s->tables[g], m->c.pages[g], s->length);
        if (is_poisoned || j == k) qn_fake_sequence_end(&m->sequences[j]);
    }
}

/* Pins may have gone with what was poisoned or forgotten. */
static void forget_lost_pins(model *m)
{
    for (int k = 0; k < N_PINS; k++) {
        text *t = &m->pinned[k];
        if (t->n && qn_tree_peek(m->c.tree, &keys[t->key], t->ids, t->n) == t->n) continue;
        char name[2] = {(char)('a' + k)};
        if (t->n) assert_int_equal(qn_tree_unpin(m->c.tree, name), QN_E_NOT_FOUND);
        t->n = 0;
    }
}

static void pin(model *m)
{
    int k = (int)draw(m, N_PINS);
    const text *t = &m->texts[draw(m, N_TEXTS)];
    char name[2] = {(char)('a' + k)};
    int64_t n = (int64_t)draw(m, (uint64_t)t->n + 1);
    if (draw(m, 2)) {
        qn_status status = qn_tree_unpin(m->c.tree, name);
        assert_int_equal(status, m->pinned[k].n ? QN_OK : QN_E_NOT_FOUND);
        m->pinned[k].n = 0;
        return;
    }
    if (draw(m, 2)) n = qn_tree_peek(m->c.tree, &keys[t->key], t->ids, t->n);
    int is_usable = n > 0 && qn_tree_peek(m->c.tree, &keys[t->key], t->ids, n) == n;
    qn_tree_counters before, after;
    qn_tree_get_counters(m->c.tree, &before);
    qn_status status = qn_tree_pin(m->c.tree, &keys[t->key], t->ids, n, name);
    qn_tree_get_counters(m->c.tree, &after);
    if (after.evicted_tokens != before.evicted_tokens && status == QN_E_NOT_FOUND)
        return; /* it went for its node */
    if (status == QN_OK) {
        assert_true(is_usable);
        m->pinned[k] = *t;
        m->pinned[k].n = n;
    } else if (is_usable) {
        assert_true(may_fail(m, status));
    } else {
        assert_true(status == QN_E_NOT_FOUND || status == QN_E_NOMEM);
    }
}

static int64_t free_bytes(const model *m)
{
    int64_t n = 0;
    for (int g = 0; g < m->c.n_groups; g++) n += qn_pages_free_count(m->c.pages[g]) * FAKE_UNIT_BYTES;
    return n + (m->c.slots ? qn_pages_free_count(m->c.slots) * FAKE_SLOT_BYTES : 0);
}

static void give_up(model *m)
{
    int64_t before = free_bytes(m);
    size_t total = qn_ledger_total(m->c.ledger), size_bytes = (size_t)draw(m, 30000), freed;
    switch (draw(m, 4)) {
    case 0:
        freed = qn_tree_evict(m->c.tree, size_bytes);
        assert_int_equal(free_bytes(m) - before, freed);
        break;
    case 1:
        freed = qn_tree_reclaim(m->c.tree, size_bytes);
        assert_int_equal(total - qn_ledger_total(m->c.ledger), freed);
        break;
    case 2:
        qn_tree_trim(m->c.tree);
        break;
    default:
        if (draw(m, 10)) return;
        if (draw(m, 2)) {
            qn_tree_clear(m->c.tree);
        } else {
            qn_tree_forget_adapter(m->c.tree, 1);
            forget_lost_pins(m);
        }
    }
}

static void set_limits(model *m)
{
    if (draw(m, 2))
        qn_ledger_set_cache_limit(m->c.ledger, (size_t)draw(m, draw(m, 4) ? 100000 : 10000));
    else
        qn_ledger_set_limit(m->c.ledger, draw(m, 2) ? 0 : 20000 + (size_t)draw(m, 250000));
}

static int64_t operate(model *m)
{
    int k = (int)draw(m, N_SEQUENCES);
    uint64_t what = draw(m, 100);
    if (what < 6) {
        give_up(m);
    } else if (what < 8) {
        set_limits(m);
    } else if (what < 11) {
        pin(m);
    } else if (!m->sequences[k].cache) {
        start(m, k);
    } else if (what < 50) {
        compute(m, k);
    } else if (what < 75) {
        return m->sequences[k].length ? insert(m, k) : 0;
    } else if (what < 80) {
        truncate(m, k);
    } else if (what < 81) {
        poison(m, k);
        forget_lost_pins(m);
    } else if (what < 90) {
        qn_fake_sequence_end(&m->sequences[k]);
    }
    return 0;
}

/* ---- runs --------------------------------------------------------------------------------------------- */

static int64_t n_operations(void)
{
    const char *text = getenv("QUERN_OPS");
    return text ? strtoll(text, NULL, 10) : OPS;
}

static void run(int n_groups, const int64_t *window, int64_t n_units, int64_t n_slots, uint64_t seed)
{
    enum { N_RUNS = 8 /* that share the operations */ };
    model *m = qn_calloc(1, sizeof *m);
    assert_non_null(m);
    m->seed = seed;
    m->places = qn_calloc(PLACES, sizeof *m->places);
    m->before = qn_calloc(PLACES, sizeof *m->before);
    m->stamp = 1;
    assert_true(m->places && m->before);
    int64_t live = qn_mem_live_blocks();
    assert_int_equal(qn_fake_cache_begin(&m->c, n_groups, window, n_units, n_slots), QN_OK);
    qn_ledger_set_cache_limit(m->c.ledger, 100000);
    for (int64_t i = 0; i < n_operations() / N_RUNS; i++) {
        m->injected = draw(m, 8) == 0;
        if (m->injected) qn_mem_fail_nth(1 + (int64_t)draw(m, 4));
        int64_t n_new = operate(m);
        qn_mem_fail_nth(0);
        check(m, n_new);
    }
    for (int k = 0; k < N_SEQUENCES; k++) qn_fake_sequence_end(&m->sequences[k]);
    check(m, 0);
    qn_tree_counters counters;
    qn_tree_get_counters(m->c.tree, &counters);
    assert_true(m->n_matched > 0 && m->n_failed > 0 && counters.splits > 0 && counters.evicted_nodes > 0);
    assert_true(qn_fake_cache_end(&m->c));
    assert_int_equal(qn_mem_live_blocks(), live);
    qn_free(m->places);
    qn_free(m->before);
    qn_free(m);
}

static void test_full(void **state)
{
    run(1, NULL, 40, 0, 1);
    run(2, NULL, 24, 0, 2);
}

static void test_windows(void **state)
{
    const int64_t window[] = {0, 40, 9}, narrow[] = {33, 1};
    run(3, window, 40, 0, 3);
    run(3, window, 80, 0, 4);
    run(2, narrow, 30, 0, 5);
}

static void test_recurrent(void **state)
{
    const int64_t window[] = {0, 64};
    run(1, NULL, 40, 12, 6);
    run(2, window, 40, 20, 7);
    run(0, NULL, 1, 14, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_recurrent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
