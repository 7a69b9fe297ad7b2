/* What docs/go-mlx.md names for an engine of key/value handles under a server, each called once and looked at,
 * on a tiny model. The HTTP routes are tests/server's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>
#include <string.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

enum { N_IDS = 40, VOCAB_MAX = 1024, N_NEW = 6 };

static qn_model *model;
static int64_t n_vocab;
static int32_t ids[N_IDS];
static float logits[VOCAB_MAX], expected[VOCAB_MAX];

static int open_model(void **state)
{
    qn_model_info info;
    const qn_model_options o = {.n_threads = 1, .context_size = 128, .parallel_slots = 4};
    if (qn_model_open(qn_test_need_fixture("models/llama"), &o, &model) != QN_OK) return 1;
    if (qn_model_get_info(model, &info) != QN_OK) return 1;
    n_vocab = info.vocab_size;
    for (int i = 0; i < N_IDS; i++) ids[i] = 3 + i * 7 % 200;
    return n_vocab > VOCAB_MAX;
}

static int close_model(void **state)
{
    return qn_model_close(&model) != QN_OK;
}

static qn_status take(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    memcpy(expected, values + (n - 1) * n_vocab, (size_t)n_vocab * sizeof *values);
    return QN_OK;
}

/* The logits are those that the whole row has without any cache. */
static void expect_logits(const int32_t *row, int64_t n)
{
    const qn_logits_options o = {.last_only = 1, .no_prefix_cache = 1};
    qn_test_ok(qn_model_logits(model, &(qn_ids){row, n}, 1, &o, take, NULL));
    assert_memory_equal(logits, expected, (size_t)n_vocab * sizeof *logits);
}

static void handles(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "handle");
    qn_cache *root = NULL, *longer = NULL, *cut = NULL, *fork = NULL, *loaded = NULL;
    int64_t n;
    qn_test_ok(qn_forward_with_cache(model, ids, 30, NULL, logits, VOCAB_MAX, &root));
    expect_logits(ids, 30);
    qn_test_ok(qn_forward_with_cache(model, ids + 30, 10, root, logits, VOCAB_MAX, &longer));
    expect_logits(ids, 40);
    qn_test_ok(qn_cache_slice(longer, 20, &cut));
    qn_test_ok(qn_cache_get_length(cut, &n));
    assert_int_equal(n, 20);
    qn_test_ok(qn_forward_with_cache(model, ids + 20, 1, cut, logits, VOCAB_MAX, &fork));
    expect_logits(ids, 21);
    qn_test_ok(qn_cache_save(longer, path));
    qn_test_ok(qn_cache_load(model, path, &loaded));
    qn_test_ok(qn_cache_get_length(loaded, &n));
    assert_int_equal(n, 40);
    /* freed twice: nothing happens; used: an error */
    qn_cache_free(root);
    qn_cache_free(root);
    assert_int_equal(qn_forward_with_cache(model, ids, 1, root, logits, VOCAB_MAX, &root), QN_E_ARG);
    assert_int_equal(qn_cache_slice(root, 1, &root), QN_E_ARG);
    assert_int_equal(qn_forward_with_cache(model, ids, 0, cut, logits, VOCAB_MAX, &root), QN_E_ARG);
    assert_int_equal(qn_forward_with_cache(model, ids, 1, cut, logits, n_vocab - 1, &root), QN_E_ARG);
    qn_test_ok(qn_forward_with_cache(model, ids + 30, 1, fork, logits, VOCAB_MAX, &root)); /* forks go on */
    qn_cache_free(longer);
    qn_cache_free(cut);
    qn_cache_free(fork);
    qn_cache_free(loaded);
    qn_cache_free(root);
    qn_test_remove(folder);
}

/* Greedy; returns how many tokens of the prompt were there. */
static int64_t generate(qn_model *m, int64_t n)
{
    const qn_ids row = {ids, n};
    const qn_generate_options o = {.max_tokens = N_NEW, .ignore_eos = 1};
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_token t = {0};
    qn_test_ok(qn_generation_open(m, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    while (t.end == QN_END_NONE) qn_test_ok(qn_generation_next(g, &t));
    qn_test_ok(qn_generation_get_stats(g, &stats));
    qn_generation_close(g);
    return stats.n_cached_tokens;
}

static void note(void *user, const qn_probe_event *e)
{
    int *n = user;
    n[e->cache->event]++;
    assert_true(qn_cache_event_name(e->cache->event)[0]);
}

/* The tree looks up and keeps by itself. */
static void the_tree(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "state");
    const qn_ids row = {ids, N_IDS};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    qn_cache_counters before, after;
    qn_cache_miss miss;
    qn_figures figures;
    int64_t probe;
    int events[QN_CACHE_EVENT_POISON + 1] = {0};
    ids[0] = 211; /* nothing begins so yet */
    qn_test_ok(qn_cache_explain(model, &prompt, &miss));
    assert_int_equal(miss.n_usable_tokens, 0);
    qn_test_ok(qn_probe_add(model, 1 << QN_PROBE_CACHE, note, events, &probe));
    qn_test_ok(qn_cache_get_counters(model, &before));
    assert_int_equal(generate(model, 20), 0);
    assert_true(generate(model, N_IDS) > 0);
    qn_test_ok(qn_cache_get_counters(model, &after));
    assert_true(after.n_hits == before.n_hits + 1 && after.n_misses == before.n_misses + 1);
    assert_true(events[QN_CACHE_EVENT_HIT] == 1 && events[QN_CACHE_EVENT_MISS] == 1);
    qn_test_ok(qn_probe_remove(model, probe));
    qn_test_ok(qn_cache_explain(model, &prompt, &miss));
    assert_string_equal(qn_cache_reason_name(miss.reason), "usable");
    qn_test_ok(qn_model_get_figures(model, &figures));
    assert_true(figures.prefix_hits == after.n_hits && figures.n_generated_tokens >= 2 * N_NEW);
    assert_true(figures.pages_total >= figures.pages_used + figures.pages_kept && figures.pages_kept > 0);

    /* kept whatever else needs memory, until it is let go */
    qn_test_ok(qn_model_warm(model, &prompt, "system prompt"));
    qn_test_ok(qn_cache_get_counters(model, &after));
    assert_int_equal(after.n_pins, before.n_pins + 1);
    qn_test_ok(qn_model_unwarm(model, "system prompt"));
    assert_int_equal(qn_model_unwarm(model, "system prompt"), QN_E_NOT_FOUND);

    /* and another process begins with it */
    qn_model *other = NULL;
    qn_test_ok(qn_model_save_state(model, path));
    qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"),
                             &(qn_model_options){.n_threads = 1, .context_size = 128}, &other));
    qn_test_ok(qn_model_load_state(other, path));
    assert_true(generate(other, N_IDS) > 0);
    qn_test_ok(qn_model_close(&other));
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handles),
        cmocka_unit_test(the_tree),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
