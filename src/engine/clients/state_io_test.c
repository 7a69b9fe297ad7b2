/* State in files: what is loaded goes on with the bits that it had; what does not fit, or is damaged, changes
 * nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/log.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/clients/handle_parts.h"
#include "engine/clients/state_io.h"
#include "format/files/mmap.h"
#include "format/state/state_file.h"
#include "model/adapter/adapters.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

enum { CONTEXT = 320, SEQUENCES = 6, PRINT = 77 };

/* An engine and what works on it. */
typedef struct {
    qn_engine *e;
    qn_scheduler *scheduler;
    qn_handles *h;
    float *logits;
} world;

static const char *const fixtures[] = {"models/llama", "models/gemma3_text", "models/qwen3_5",
                                       "models/phi3_longrope"};
enum { FIXTURES = sizeof fixtures / sizeof *fixtures };

static world open_with(const char *fixture, qn_engine_options o)
{
    world w = {.e = qn_test_engine(qn_test_need_fixture(fixture), NULL, o)};
    qn_test_ok(qn_scheduler_new(w.e, &(qn_scheduler_options){0}, &w.scheduler));
    qn_test_ok(qn_handles_new(w.e, w.scheduler, &w.h));
    w.logits = test_malloc((size_t)qn_engine_config(w.e)->vocab_size * sizeof *w.logits);
    return w;
}

static world open_world(const char *fixture)
{
    return open_with(
        fixture,
        (qn_engine_options){.context_size = CONTEXT, .max_sequences = 16, .n_threads = 1, .max_rows = 64});
}

static void close_world(world *w)
{
    const char *broken = qn_tree_check(w->e->tree);
    if (broken) fail_msg("%s", broken);
    assert_int_equal(qn_ledger_held(qn_engine_ledger(w->e), QN_LEDGER_KV), 0);
    qn_handles_free(w->h);
    qn_scheduler_free(w->scheduler);
    qn_engine_close(w->e);
    test_free(w->logits);
}

static uint64_t hash(const world *w)
{
    return qn_hash_bytes(w->logits, (size_t)qn_engine_config(w->e)->vocab_size * sizeof *w->logits, 0);
}

static void fill_ids(const world *w, int32_t *ids, int64_t n, uint64_t seed)
{
    uint64_t end = (uint64_t)qn_engine_config(w->e)->vocab_size;
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(qn_random_bits(seed, (uint64_t)i) % end);
}

static uint64_t pass(world *w, const qn_handle *from, const int32_t *ids, int64_t n, qn_handle **out)
{
    qn_test_ok(qn_handle_forward(w->h, from, ids, n, w->logits, out));
    return hash(w);
}

static void refused(qn_status got, qn_status want, const char *words)
{
    if (got != want)
        fail_msg("%s, expected %s: %s", qn_status_name(got), qn_status_name(want), qn_last_error());
    if (!strstr(qn_last_error(), words)) fail_msg("'%s' is not in: %s", words, qn_last_error());
}

/* ---- handles ------------------------------------------------------------------------------------------ */

static void handle_goes_on(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    for (int f = 0; f < FIXTURES; f++) {
        world a = open_world(fixtures[f]), b = open_world(fixtures[f]);
        int32_t ids[CONTEXT];
        static const int64_t lengths[] = {1, 31, 32, 33, 100, 250};
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            qn_handle *one = NULL, *next = NULL, *loaded = NULL, *again = NULL;
            int64_t n = lengths[i];
            fill_ids(&a, ids, CONTEXT, i + 1);
            pass(&a, NULL, ids, n, &one);
            qn_test_ok(qn_state_save_handle(a.h, one, PRINT, path));
            uint64_t expected = pass(&a, one, ids + n, 7, &next);
            qn_test_ok(qn_state_load_handle(b.h, PRINT, path, &loaded));
            assert_int_equal(qn_handle_length(loaded), n);
            assert_int_equal(loaded->sequence.length, n);
            assert_true(pass(&b, loaded, ids + n, 7, &again) == expected);
            qn_handle_free(a.h, one);
            qn_handle_free(a.h, next);
            qn_handle_free(b.h, loaded);
            qn_handle_free(b.h, again);
        }
        close_world(&a);
        close_world(&b);
    }
    qn_test_remove(folder);
}

/* What is not computed (a slice in the middle of recurrent layers), and no tokens at all. */
static void slices_go_on(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    for (int f = 0; f < FIXTURES; f++) {
        world a = open_world(fixtures[f]), b = open_world(fixtures[f]);
        int32_t ids[CONTEXT];
        qn_handle *one = NULL;
        fill_ids(&a, ids, CONTEXT, 9);
        pass(&a, NULL, ids, 150, &one);
        static const int64_t keeps[] = {0, 1, 40, 149};
        for (int i = 0; i < 4; i++) {
            qn_handle *cut = NULL, *next = NULL, *loaded = NULL, *again = NULL;
            qn_test_ok(qn_handle_slice(a.h, one, keeps[i], &cut));
            qn_test_ok(qn_state_save_handle(a.h, cut, PRINT, path));
            qn_test_ok(qn_state_load_handle(b.h, PRINT, path, &loaded));
            assert_int_equal(qn_handle_length(loaded), keeps[i]);
            uint64_t expected = pass(&a, cut, ids + keeps[i], 3, &next);
            assert_true(pass(&b, loaded, ids + keeps[i], 3, &again) == expected);
            qn_handle_free(a.h, cut);
            qn_handle_free(a.h, next);
            qn_handle_free(b.h, loaded);
            qn_handle_free(b.h, again);
        }
        qn_handle_free(a.h, one);
        close_world(&a);
        close_world(&b);
    }
    qn_test_remove(folder);
}

static void other_models(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    world a = open_world("models/llama"), sliding = open_world("models/gemma3_text");
    qn_engine_options o = {.context_size = 64, .max_sequences = 4, .n_threads = 1};
    qn_engine_options f32 = o, fast = o;
    f32.kv_type = QN_KV_F32;
    fast.precision = QN_PRECISION_FAST;
    fast.kv_type = QN_KV_F16;
    world short_context = open_with("models/llama", o), other_type = open_with("models/llama", f32),
          other_precision = open_with("models/llama", fast);
    int32_t ids[CONTEXT];
    qn_handle *one = NULL, *out = NULL;
    fill_ids(&a, ids, CONTEXT, 3);
    pass(&a, NULL, ids, 100, &one);
    qn_test_ok(qn_state_save_handle(a.h, one, PRINT, path));
    refused(qn_state_load_handle(a.h, PRINT + 1, path, &out), QN_E_UNSUPPORTED, "another model");
    refused(qn_state_load_handle(sliding.h, PRINT, path, &out), QN_E_UNSUPPORTED, "layout");
    refused(qn_state_load_handle(other_type.h, PRINT, path, &out), QN_E_UNSUPPORTED, "keys and values");
    refused(qn_state_load_handle(other_precision.h, PRINT, path, &out), QN_E_UNSUPPORTED, "precision");
    refused(qn_state_load_handle(short_context.h, PRINT, path, &out), QN_E_ARG, "context of 64");
    refused(qn_state_load_handle(a.h, PRINT, qn_test_path(folder, "none"), &out), QN_E_IO, "none");
    refused(qn_state_save_handle(a.h, one, PRINT, qn_test_path(folder, "no/x")), QN_E_IO, "no/x");
    qn_pages_poison(a.e->pages[0], one->sequence.tables[0].ids[0], 0);
    refused(qn_state_save_handle(a.h, one, PRINT, path), QN_E_DEVICE, "poisoned");
    assert_null(out);
    qn_handle_free(a.h, one);
    close_world(&a);
    close_world(&sliding);
    close_world(&short_context);
    close_world(&other_type);
    close_world(&other_precision);
    qn_test_remove(folder);
}

/* ---- trees -------------------------------------------------------------------------------------------- */

static const qn_tree_key plain = {.adapter = -1}, salted = {.adapter = -1, .salt = "ab\0c", .salt_bytes = 4};

/* Sequences that begin alike and part, inside of pages and at their ends. */
static void sequence_of(const world *w, int i, int32_t *ids, int64_t *n)
{
    static const int64_t parts[SEQUENCES] = {0, 0, 40, 64, 130, 0};
    *n = 90 + 37 * i % 130;
    fill_ids(w, ids, CONTEXT, 50);
    fill_ids(w, ids + parts[i], CONTEXT - parts[i], i < 2 ? 50 : 60 + (uint64_t)i);
}

static const qn_tree_key *key_of(const world *w, int i)
{
    return i == SEQUENCES - 1 ? &salted : &plain;
}

static void grow_tree(world *w)
{
    for (int i = 0; i < SEQUENCES; i++) {
        int32_t ids[2 * CONTEXT];
        int64_t n;
        qn_handle *one = NULL;
        sequence_of(w, i, ids, &n);
        pass(w, NULL, ids, n, &one);
        int32_t slot = one->sequence.slot;
        if (slot >= 0) qn_pages_retain(w->e->slots, slot);
        qn_tree_key key = *key_of(w, i);
        key.is_long = one->sequence.is_long;
        qn_test_ok(
            qn_tree_insert(w->e->tree, &key, ids, n, one->sequence.tables, slot, (uint64_t)i + 1, 1000));
        qn_handle_free(w->h, one);
    }
}

/* How much of a sequence the tree has, and the logits of one token behind that. */
static void look_at(world *w, qn_tree_key key, const int32_t *ids, int64_t n, int64_t *known, uint64_t *hash)
{
    qn_handle *from = NULL, *next = NULL;
    int64_t limit = w->e->config.rope_short_positions;
    key.is_long = limit && n > limit;
    qn_test_ok(qn_handle_new(w->h, "none", &from));
    qn_sequence *s = &from->sequence;
    qn_test_ok(qn_tree_match(w->e->tree, &key, ids, n, s->tables, &s->slot, &s->length));
    s->n_given = s->length;
    s->is_long = s->length && key.is_long;
    qn_test_ok(qn_handle_put_ids(w->h, from, NULL, 0, ids, n));
    *known = s->length;
    *hash = pass(w, from, ids + n, 1, &next);
    qn_handle_free(w->h, from);
    qn_handle_free(w->h, next);
}

static void look(world *w, int64_t *known, uint64_t *hashes)
{
    for (int i = 0; i < SEQUENCES; i++) {
        int32_t ids[2 * CONTEXT];
        int64_t n;
        sequence_of(w, i, ids, &n);
        look_at(w, *key_of(w, i), ids, n, &known[i], &hashes[i]);
    }
}

static void tree_comes_back(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512], second[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    snprintf(second, sizeof second, "%s", qn_test_path(folder, "y.state"));
    for (int f = 0; f < FIXTURES; f++) {
        world a = open_world(fixtures[f]), b = open_world(fixtures[f]), c = open_world(fixtures[f]);
        int64_t known[3][SEQUENCES], all = 0;
        uint64_t hashes[3][SEQUENCES];
        grow_tree(&a);
        look(&a, known[0], hashes[0]);
        qn_test_ok(qn_state_save_tree(a.e, a.scheduler, PRINT, path));
        assert_int_equal(qn_ledger_held(qn_engine_ledger(a.e), QN_LEDGER_KV), 0);
        qn_test_ok(qn_state_load_tree(b.e, b.scheduler, PRINT, path));
        assert_null(qn_tree_check(b.e->tree));
        look(&b, known[1], hashes[1]);
        qn_test_ok(qn_state_save_tree(b.e, b.scheduler, PRINT, second)); /* as often as one likes */
        qn_test_ok(qn_state_load_tree(c.e, c.scheduler, PRINT, second));
        qn_test_ok(qn_state_load_tree(c.e, c.scheduler, PRINT, path));
        look(&c, known[2], hashes[2]);
        for (int i = 0; i < SEQUENCES; i++) {
            all += known[0][i];
            for (int j = 1; j < 3; j++) {
                if (known[j][i] != known[0][i])
                    fail_msg("%s: %lld tokens of sequence %d, there were %lld", fixtures[f],
                             (long long)known[j][i], i, (long long)known[0][i]);
                assert_true(hashes[j][i] == hashes[0][i]);
            }
        }
        assert_true(all > 400);
        close_world(&a);
        close_world(&b);
        close_world(&c);
    }
    qn_test_remove(folder);
}

/* Pages for a part of it: that is there, and the rest is not. */
static void small_pool(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    for (int f = 0; f < FIXTURES; f++) {
        world a = open_world(fixtures[f]);
        qn_engine_options o = {.context_size = CONTEXT, .max_sequences = 1, .n_threads = 1, .max_rows = 64};
        world b = open_with(fixtures[f], o);
        grow_tree(&a);
        qn_test_ok(qn_state_save_tree(a.e, a.scheduler, PRINT, path));
        qn_test_ok(qn_state_load_tree(b.e, b.scheduler, PRINT, path));
        close_world(&a);
        close_world(&b);
    }
    qn_test_remove(folder);
}

/* ---- little room -------------------------------------------------------------------------------------- */

/* Tokens behind which branches part: a trunk, three branches of it, two of each of these. */
enum {
    TRUNK = 70,
    BRANCH = 166,
    END = 230,
    BRANCHES = 6,
    ALL = TRUNK + 3 * (BRANCH - TRUNK) + 6 * (END - BRANCH)
};

static void branch_of(const world *w, int i, int32_t *ids)
{
    fill_ids(w, ids, CONTEXT, 70);
    fill_ids(w, ids + TRUNK, CONTEXT - TRUNK, 71 + (uint64_t)i / 2);
    fill_ids(w, ids + BRANCH, CONTEXT - BRANCH, 80 + (uint64_t)i);
}

static void grow_branches(world *w)
{
    static const int64_t ends[] = {0, TRUNK, BRANCH, END};
    for (int i = 0; i < BRANCHES; i++) {
        int32_t ids[CONTEXT];
        qn_handle *last = NULL;
        branch_of(w, i, ids);
        for (int k = 1; k < 4; k++) {
            qn_handle *next = NULL;
            pass(w, last, ids + ends[k - 1], ends[k] - ends[k - 1], &next);
            int32_t slot = next->sequence.slot;
            if (slot >= 0) qn_pages_retain(w->e->slots, slot);
            qn_test_ok(
                qn_tree_insert(w->e->tree, &plain, ids, ends[k], next->sequence.tables, slot, 1, 1000));
            qn_handle_free(w->h, last);
            last = next;
        }
        qn_handle_free(w->h, last);
    }
}

/* What the warning says; -1: there was none. */
static int64_t n_taken, n_left;

static void listen(void *user, qn_log_level level, const char *line)
{
    const char *at = strstr(line, "there was room for ");
    long long taken, all, left;
    if (!at || sscanf(at, "there was room for %lld of its %lld tokens; %lld", &taken, &all, &left) != 3)
        return;
    assert_int_equal(all, ALL);
    n_taken = taken;
    n_left = left;
}

/* Tokens that are there: those nearest the root. */
static int64_t check_branches(world *w, const uint64_t *hashes)
{
    int64_t known[BRANCHES], least = CONTEXT, most = 0, trunk = 0, sum = 0;
    for (int i = 0; i < BRANCHES; i++) {
        int32_t ids[CONTEXT];
        int64_t usable;
        uint64_t hash;
        qn_tree_miss miss;
        branch_of(w, i, ids);
        qn_tree_explain(w->e->tree, &plain, ids, END, &miss);
        known[i] = miss.n_known;
        least = known[i] < least ? known[i] : least;
        most = known[i] > most ? known[i] : most;
        look_at(w, plain, ids, END, &usable, &hash);
        assert_true(hash == hashes[i]);
        if (!w->e->slots) assert_int_equal(usable, known[i]); /* also where it was cut */
        trunk = known[i] < TRUNK ? known[i] : TRUNK;
    }
    if (most > TRUNK) assert_true(least >= TRUNK);
    if (most > BRANCH) assert_true(least >= BRANCH);
    for (int i = 0; i < BRANCHES; i += 2) {
        int64_t both = known[i] > known[i + 1] ? known[i] : known[i + 1];
        sum += both > BRANCH ? BRANCH - TRUNK : both > TRUNK ? both - TRUNK : 0;
        for (int k = 0; k < 2; k++) sum += known[i + k] > BRANCH ? known[i + k] - BRANCH : 0;
    }
    return trunk + sum;
}

/* As much as the ledger has room for, from nothing to all. */
static void tight_limit(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    qn_log_set_sink(listen, NULL);
    for (int f = 0; f < 3; f++) {
        world a = open_world(fixtures[f]), b = open_world(fixtures[f]);
        qn_ledger *ledger = qn_engine_ledger(b.e);
        uint64_t hashes[BRANCHES];
        int64_t last = -1, n_parts = 0;
        grow_branches(&a);
        for (int i = 0; i < BRANCHES; i++) {
            int32_t ids[CONTEXT];
            int64_t known;
            branch_of(&a, i, ids);
            look_at(&a, plain, ids, END, &known, &hashes[i]);
            assert_int_equal(known, END);
        }
        int32_t deep[CONTEXT];
        branch_of(&a, BRANCHES - 1, deep);
        qn_test_ok(qn_tree_pin(a.e->tree, &plain, deep, TRUNK, "trunk"));
        qn_test_ok(qn_tree_pin(a.e->tree, &plain, deep, END, "deep"));
        qn_test_ok(qn_state_save_tree(a.e, a.scheduler, PRINT, path));
        size_t most = qn_ledger_held(qn_engine_ledger(a.e), QN_LEDGER_CACHE), free_bytes = 0;
        while (last < ALL) {
            n_taken = n_left = -1;
            qn_tree_clear(b.e->tree);
            qn_ledger_clear_cache(ledger);
            qn_ledger_set_limit(ledger, qn_ledger_total(ledger) + free_bytes);
            qn_test_ok(qn_state_load_tree(b.e, b.scheduler, PRINT, path));
            assert_null(qn_tree_check(b.e->tree));
            assert_int_equal(qn_ledger_held(ledger, QN_LEDGER_KV), 0);
            assert_true(qn_ledger_total(ledger) <= qn_ledger_get_limit(ledger));
            qn_ledger_set_limit(ledger, 0);
            int64_t n = check_branches(&b, hashes), usable = qn_tree_peek(b.e->tree, &plain, deep, END);
            assert_int_equal(qn_tree_is_pinned(b.e->tree, "trunk"), usable >= TRUNK);
            assert_int_equal(qn_tree_is_pinned(b.e->tree, "deep"), usable == END);
            qn_tree_clear(b.e->tree); /* they stay */
            assert_int_equal(qn_tree_peek(b.e->tree, &plain, deep, END), usable == END     ? END
                                                                         : usable >= TRUNK ? TRUNK
                                                                                           : 0);
            qn_tree_unpin(b.e->tree, "trunk");
            qn_tree_unpin(b.e->tree, "deep");
            assert_int_equal(n, n_taken < 0 ? ALL : n_taken);
            assert_int_equal(ALL - n, n_left < 0 ? 0 : n_left);
            n_parts += n > last && n < ALL;
            last = n;
            free_bytes += most / 24;
            assert_true(free_bytes < 4 * most);
        }
        assert_true(n_parts >= 5);
        close_world(&a);
        close_world(&b);
    }
    qn_log_set_sink(NULL, NULL);
    qn_test_remove(folder);
}

/* A tree is no handle; a handle is a tree. */
static void trees_and_handles(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    world w = open_world("models/llama");
    int32_t ids[CONTEXT];
    qn_handle *one = NULL, *out = NULL;
    grow_tree(&w);
    qn_test_ok(qn_state_save_tree(w.e, w.scheduler, PRINT, path));
    refused(qn_state_load_handle(w.h, PRINT, path, &out), QN_E_UNSUPPORTED, "not one sequence");
    fill_ids(&w, ids, CONTEXT, 1234);
    pass(&w, NULL, ids, 100, &one);
    assert_int_equal(qn_tree_peek(w.e->tree, &plain, ids, 100), 0);
    qn_test_ok(qn_state_save_handle(w.h, one, PRINT, path));
    qn_test_ok(qn_state_load_tree(w.e, w.scheduler, PRINT, path));
    assert_int_equal(qn_tree_peek(w.e->tree, &plain, ids, 100), 100);
    qn_handle_free(w.h, one);
    close_world(&w);
    qn_test_remove(folder);
}

static qn_status poison_first(void *user, const qn_tree_view *v)
{
    const world *w = user;
    qn_pages_poison(w->e->pages[0], v->pages[0][v->n_pages - 1], 0);
    return QN_E_CANCELLED;
}

/* As when a pass fails while its pages are being copied: such a file does not come to be. */
static void poisoned_meanwhile(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    world w = open_world("models/llama");
    grow_tree(&w);
    assert_int_equal(qn_tree_walk(w.e->tree, poison_first, &w), QN_E_CANCELLED);
    refused(qn_state_save_tree(w.e, w.scheduler, PRINT, path), QN_E_DEVICE, "x.state");
    assert_int_equal(qn_test_count_files(folder), 0);
    for (uint64_t i = 0; i < SEQUENCES; i++) qn_tree_poison(w.e->tree, i + 1);
    qn_test_ok(qn_state_save_tree(w.e, w.scheduler, PRINT, path));
    close_world(&w);
    qn_test_remove(folder);
}

/* ---- damage ------------------------------------------------------------------------------------------- */

static void expect_unchanged(world *w, const qn_tree_counters *before)
{
    qn_tree_counters now;
    qn_tree_get_counters(w->e->tree, &now);
    assert_int_equal(now.nodes, before->nodes);
    assert_int_equal(now.tokens, before->tokens);
    assert_int_equal(qn_ledger_held(qn_engine_ledger(w->e), QN_LEDGER_KV), 0);
}

/* Bits flipped and ends cut at random places: refused, and the tree is as it was. */
static void damaged(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    world a = open_world("models/qwen3_5"), b = open_world("models/qwen3_5");
    int64_t known[2][SEQUENCES];
    uint64_t hashes[2][SEQUENCES];
    qn_tree_counters before;
    char *text;
    size_t n;
    grow_tree(&a);
    qn_test_ok(qn_state_save_tree(a.e, a.scheduler, PRINT, path));
    qn_test_ok(qn_state_load_tree(b.e, b.scheduler, PRINT, path));
    look(&b, known[0], hashes[0]);
    qn_tree_get_counters(b.e->tree, &before);
    qn_test_ok(qn_file_read(path, (size_t)1 << 30, &text, &n));
    for (uint64_t i = 0; i < 60; i++) {
        uint64_t at = qn_random_bits(4, i) % n, length = n;
        char kept = text[at];
        if (i % 3 == 0)
            length = at;
        else
            text[at] = (char)(text[at] ^ 1 << i % 8);
        qn_test_write(folder, "bent.state", text, length);
        qn_status status = qn_state_load_tree(b.e, b.scheduler, PRINT, qn_test_path(folder, "bent.state"));
        refused(status, QN_E_FORMAT, "bent.state");
        text[at] = kept;
        expect_unchanged(&b, &before);
    }
    qn_free(text);
    look(&b, known[1], hashes[1]);
    assert_memory_equal(hashes[0], hashes[1], sizeof hashes[0]);
    close_world(&a);
    close_world(&b);
    qn_test_remove(folder);
}

/* What a file says of its first node and key. */
typedef struct {
    int32_t id; /* 0: as it is */
    const char *adapter;
    size_t adapter_length;
} lie;

/* Copies a file of state, with checksums that are right. */
static void copy_with(const char *from, const char *to, lie l)
{
    qn_state_file *f;
    qn_state_writer *w;
    int64_t n_pages[QN_STATE_FILE_GROUPS_MAX];
    int32_t ids[CONTEXT];
    const void *bytes;
    qn_test_ok(qn_state_file_open(from, &f));
    const qn_state_sizes *sizes = qn_state_file_sizes(f);
    qn_test_ok(qn_state_writer_new(to, qn_state_file_binding(f), sizes, &w));
    for (int64_t i = 0; i < qn_state_file_keys(f); i++) {
        qn_state_key key = qn_state_file_key(f, i);
        if (l.adapter && i == 0) key.adapter = l.adapter, key.adapter_length = l.adapter_length;
        qn_test_ok(qn_state_writer_key(w, &key, NULL));
    }
    for (int64_t i = 0; i < qn_state_file_nodes(f); i++) {
        qn_state_node node = qn_state_file_node(f, i);
        assert_true(node.n_ids <= CONTEXT);
        memcpy(ids, node.ids, (size_t)node.n_ids * sizeof *ids);
        if (l.id && i == 0) ids[node.n_ids - 1] = l.id;
        node.ids = ids;
        qn_test_ok(qn_state_writer_node(w, &node, NULL));
    }
    for (int g = 0; g < sizes->n_groups; g++) n_pages[g] = qn_state_file_pages(f, g);
    qn_test_ok(qn_state_writer_begin(w, n_pages, 0));
    for (int g = 0; g < sizes->n_groups; g++)
        for (int64_t i = 0; i < n_pages[g]; i++) {
            qn_test_ok(qn_state_file_page(f, g, i, &bytes));
            qn_test_ok(qn_state_writer_page(w, g, i, bytes));
        }
    qn_test_ok(qn_state_writer_finish(w));
    qn_state_writer_free(w);
    qn_state_file_close(f);
}

/* Files that are whole, but say what cannot be: tokens outside the vocabulary, names that no adapter has. */
static void impossible(void **state)
{
    static const char lengthy[QN_ADAPTER_NAME_LENGTH + 1] = {[0 ... QN_ADAPTER_NAME_LENGTH] = 'a'};
    const char *folder = qn_test_scratch();
    char from[512], to[512];
    snprintf(from, sizeof from, "%s", qn_test_path(folder, "x.state"));
    snprintf(to, sizeof to, "%s", qn_test_path(folder, "other.state"));
    world a = open_world("models/llama"), b = open_world("models/llama");
    const int32_t vocab = (int32_t)qn_engine_config(a.e)->vocab_size;
    const struct {
        lie l;
        const char *words;
    } rows[] = {{{.id = vocab}, "outside the vocabulary"},
                {{.id = -1}, "token id -1"},
                {{.adapter = lengthy, .adapter_length = sizeof lengthy}, "not the name of an adapter"},
                {{.adapter = "a\0b", .adapter_length = 3}, "not the name of an adapter"}};
    qn_tree_counters before;
    grow_tree(&a);
    qn_test_ok(qn_state_save_tree(a.e, a.scheduler, PRINT, from));
    qn_tree_get_counters(b.e->tree, &before);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        copy_with(from, to, rows[i].l);
        refused(qn_state_load_tree(b.e, b.scheduler, PRINT, to), QN_E_FORMAT, rows[i].words);
        refused(QN_E_FORMAT, QN_E_FORMAT, "other.state");
        expect_unchanged(&b, &before);
    }
    copy_with(from, to, (lie){0});
    qn_test_ok(qn_state_load_tree(b.e, b.scheduler, PRINT, to));
    close_world(&a);
    close_world(&b);
    qn_test_remove(folder);
}

static void out_of_memory(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    for (int what = 0; what < 4; what++) {
        world w = open_world("models/qwen3_5");
        qn_handle *one = NULL;
        int32_t ids[60];
        fill_ids(&w, ids, 60, 1);
        pass(&w, NULL, ids, 60, &one);
        grow_tree(&w);
        qn_test_ok(what < 2 ? qn_state_save_handle(w.h, one, PRINT, path)
                            : qn_state_save_tree(w.e, w.scheduler, PRINT, path));
        qn_status status = QN_E_NOMEM;
        for (int64_t nth = 1; status != QN_OK && nth < 2000; nth++) {
            qn_handle *out = NULL;
            qn_mem_fail_nth(nth);
            status = what == 0   ? qn_state_save_handle(w.h, one, PRINT, path)
                     : what == 1 ? qn_state_load_handle(w.h, PRINT, path, &out)
                     : what == 2 ? qn_state_save_tree(w.e, w.scheduler, PRINT, path)
                                 : qn_state_load_tree(w.e, w.scheduler, PRINT, path);
            qn_mem_fail_nth(0);
            if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
            qn_handle_free(w.h, out);
            assert_null(qn_tree_check(w.e->tree));
            assert_int_equal(qn_test_count_files(folder), 1);
        }
        assert_int_equal(status, QN_OK);
        qn_handle_free(w.h, one);
        close_world(&w);
    }
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(handle_goes_on), cmocka_unit_test(slices_go_on),
                                       cmocka_unit_test(other_models),   cmocka_unit_test(tree_comes_back),
                                       cmocka_unit_test(small_pool),     cmocka_unit_test(trees_and_handles),
                                       cmocka_unit_test(tight_limit),    cmocka_unit_test(poisoned_meanwhile),
                                       cmocka_unit_test(damaged),        cmocka_unit_test(impossible),
                                       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
