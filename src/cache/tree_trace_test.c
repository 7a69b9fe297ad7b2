/* What eviction costs: a trace of 32 chats that take turns is played through the tree, and through a cache of
 * the same size that evicts, whole, the end of the branch that was used least lately. The tree has to prefill
 * no more tokens. QUERN_SEEDS: how many traces. And what it costs when now and then a way is poisoned: those
 * who share its beginning compute their chats again, once, and nobody else does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/random.h"
#include "cache/tree.h"
#include "tests/support/fake_cache.h"

enum {
    N_CHATS = 32,
    N_PROMPTS = 4, /* system prompts that chats share */
    N_TURNS = 640,
    LENGTH = 1600,
    SEEDS = 3
};

/* The chat's tokens are its system prompt's and then its own, up to n_prompt the turn's prompt, up to n the
 * answer. A chat that got too long begins anew with other messages. */
typedef struct {
    int chat, beginning;
    int64_t n_system, n_prompt, n;
} turn;

/* Some chats are busy and some are not. */
static void make_trace(turn *turns, uint64_t seed)
{
    uint64_t draws = 0;
    turn last[N_CHATS] = {0};
    for (int i = 0; i < N_TURNS; i++) {
        double u = qn_random_unit(seed, draws++);
        turn *t = &last[(int)(u * u * N_CHATS)];
        int64_t user = 10 + (int64_t)(qn_random_bits(seed, draws++) % 60),
                answer = 10 + (int64_t)(qn_random_bits(seed, draws++) % 150);
        t->chat = (int)(t - last);
        t->n_system = 90 + 40 * (t->chat % N_PROMPTS);
        if (t->n < t->n_system || t->n + user + answer > LENGTH) {
            t->beginning++;
            t->n = t->n_system;
        }
        t->n_prompt = t->n + user;
        t->n = t->n_prompt + answer;
        turns[i] = *t;
    }
}

static void make_ids(const turn *t, int32_t *ids)
{
    for (int64_t i = 0; i < t->n; i++)
        ids[i] = (int32_t)(i < t->n_system ? 10 * (t->chat % N_PROMPTS) + i % 7
                                           : 1000 + (t->beginning * N_CHATS + t->chat) * LENGTH + i);
}

/* Poisons the way of a turn: all chats of its system prompt are gone, and no others are. Returns how many
 * tokens that are. */
static int64_t poison(qn_fake_cache *c, const turn *turns, int i_turn)
{
    static int32_t ids[LENGTH];
    const qn_tree_key key = {.adapter = -1};
    int64_t known[N_TURNS];
    qn_tree_counters before, after;
    for (int i = 0; i <= i_turn; i++) {
        make_ids(&turns[i], ids);
        known[i] = qn_tree_peek(c->tree, &key, ids, turns[i].n);
    }
    qn_tree_get_counters(c->tree, &before);
    make_ids(&turns[i_turn], ids);
    qn_tree_poison_path(c->tree, &key, ids);
    qn_tree_get_counters(c->tree, &after);
    for (int i = 0; i <= i_turn; i++) {
        int is_same = turns[i].chat % N_PROMPTS == turns[i_turn].chat % N_PROMPTS;
        make_ids(&turns[i], ids);
        assert_int_equal(qn_tree_peek(c->tree, &key, ids, turns[i].n), is_same ? 0 : known[i]);
    }
    assert_null(qn_tree_check(c->tree));
    return before.tokens - after.tokens;
}

/* Tokens prefilled with the tree. every > 0: after so many turns the way of the last one is poisoned; *lost
 * is how many tokens go with these. */
static int64_t play_tree(const turn *turns, int64_t n_units, int every, int64_t *lost)
{
    static int32_t ids[LENGTH];
    qn_fake_cache c;
    qn_fake_sequence s;
    int64_t prefilled = 0;
    assert_int_equal(qn_fake_cache_begin(&c, 1, NULL, n_units, 0), QN_OK);
    for (int i = 0; i < N_TURNS; i++) {
        const turn *t = &turns[i];
        make_ids(t, ids);
        assert_int_equal(qn_fake_sequence_begin(&s, &c, (qn_tree_key){.adapter = -1}, LENGTH), QN_OK);
        assert_int_equal(qn_fake_sequence_match(&s, ids, t->n_prompt - 1), QN_OK);
        prefilled += t->n_prompt - s.length;
        assert_int_equal(qn_fake_sequence_compute(&s, ids + s.length, t->n_prompt - s.length), QN_OK);
        assert_int_equal(qn_fake_sequence_insert(&s, s.length, 0, (uint64_t)i + 1), QN_OK);
        for (; s.length < t->n;) assert_int_equal(qn_fake_sequence_compute(&s, ids + s.length, 1), QN_OK);
        assert_int_equal(qn_fake_sequence_insert(&s, s.length, 0, (uint64_t)i + 1), QN_OK);
        assert_true(qn_fake_sequence_is_right(&s));
        qn_fake_sequence_end(&s);
        if (every && i % every == every - 1) *lost += poison(&c, turns, i);
    }
    assert_null(qn_tree_check(c.tree));
    assert_true(qn_fake_cache_end(&c));
    return prefilled;
}

/* ---- the other cache ---------------------------------------------------------------------------------- */

/* Of a system prompt (chat -1 - its number), or of a chat since its beginning. */
typedef struct {
    int chat, beginning, n_children, parent, is_there, has_copy;
    int64_t begin, end, used;
} run;

typedef struct {
    run runs[3 * N_TURNS];
    int n_runs;
    int64_t n_free;
} lru;

/* Behind a system prompt a chat has a copy of the page where it ends, if another had none of that. */
static int64_t pages_of(const run *r)
{
    return (r->end + 31) / 32 - (r->has_copy ? r->begin : r->begin + 31) / 32;
}

static int find_run(const lru *c, const turn *t, int64_t begin)
{
    for (int i = 0; i < c->n_runs; i++) {
        const run *r = &c->runs[i];
        if (r->is_there && r->begin == begin &&
            (r->chat == t->chat ? r->beginning == t->beginning : r->chat == -1 - t->chat % N_PROMPTS))
            return i;
    }
    return -1;
}

static void make_room(lru *c, int64_t n_pages, int64_t now)
{
    while (c->n_free < n_pages) {
        run *oldest = NULL;
        for (int i = 0; i < c->n_runs; i++) {
            run *r = &c->runs[i];
            if (r->is_there && !r->n_children && r->used < now && (!oldest || r->used < oldest->used))
                oldest = r;
        }
        assert_non_null(oldest);
        oldest->is_there = 0;
        if (oldest->parent >= 0) c->runs[oldest->parent].n_children--;
        c->n_free += pages_of(oldest);
    }
    c->n_free -= n_pages;
}

static int add_run(lru *c, int chat, int beginning, int parent, int64_t begin, int64_t end, int64_t now)
{
    if (begin == end) return parent;
    run *r = &c->runs[c->n_runs];
    *r = (run){
        .chat = chat, .beginning = beginning, .parent = parent, .begin = begin, .end = end, .used = now};
    r->has_copy = parent >= 0 && c->runs[parent].n_children++ > 0;
    make_room(c, pages_of(r), now);
    r->is_there = 1;
    return c->n_runs++;
}

static int64_t play_lru(const turn *turns, int64_t n_units)
{
    lru *c = qn_calloc(1, sizeof *c);
    int64_t prefilled = 0;
    assert_non_null(c);
    c->n_free = n_units;
    for (int i = 0; i < N_TURNS; i++) {
        const turn *t = &turns[i];
        int64_t at = 0;
        int last = -1;
        for (int next; (next = find_run(c, t, at)) >= 0; at = c->runs[last].end) {
            last = next;
            c->runs[last].used = i;
        }
        prefilled += t->n_prompt - at;
        if (!at) {
            last = add_run(c, -1 - t->chat % N_PROMPTS, 0, -1, 0, t->n_system, i);
            at = t->n_system;
        }
        last = add_run(c, t->chat, t->beginning, last, at, t->n_prompt, i);
        add_run(c, t->chat, t->beginning, last, t->n_prompt, t->n, i);
    }
    qn_free(c);
    return prefilled;
}

static void test_trace(void **state)
{
    static turn turns[N_TURNS];
    const int64_t n_units[] = {100, 200, 400, 600};
    const char *seeds = getenv("QUERN_SEEDS");
    int64_t n_seeds = seeds ? strtoll(seeds, NULL, 10) : SEEDS;
    for (int64_t seed = 1; seed <= n_seeds; seed++) {
        int64_t all[2] = {0};
        make_trace(turns, (uint64_t)seed);
        for (size_t i = 0; i < sizeof n_units / sizeof *n_units; i++) {
            int64_t tree = play_tree(turns, n_units[i], 0, NULL), lru = play_lru(turns, n_units[i]);
            print_message("seed %lld, %lld pages: %lld tokens prefilled, least lately used: %lld\n",
                          (long long)seed, (long long)n_units[i], (long long)tree, (long long)lru);
            all[0] += tree;
            all[1] += lru;
        }
        assert_true(all[0] <= all[1]);
    }
}

/* What goes is computed again at most once. There is room for all: eviction has no part in it. */
static void test_poison(void **state)
{
    static turn turns[N_TURNS];
    int64_t lost = 0;
    make_trace(turns, 1);
    int64_t without = play_tree(turns, 8000, 0, NULL), with = play_tree(turns, 8000, 64, &lost);
    print_message("%lld tokens prefilled, %lld where %lld were poisoned\n", (long long)without,
                  (long long)with, (long long)lost);
    assert_true(lost > 0 && with > without && with <= without + lost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trace), cmocka_unit_test(test_poison)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
