/* Memory of a whole engine: the hard limit, and long use without growth. Failed allocations: failures_test.c.
 * QUERN_SOAK=1 (`make soak`) does the last on a real model at length and looks at resident memory too, which
 * says nothing under a sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "base/mem.h"
#include "engine/machine/engine_parts.h"
#include "engine/machine/prefixes.h"
#include "tests/engine/resident.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

static const int32_t some_ids[200] = {5, 9, 2, 77, 31, 8};

static qn_status ignore(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    return QN_OK;
}

static qn_status feed_some(qn_engine *e, qn_sequence *s, int64_t n)
{
    qn_feed feed = {s, some_ids, n, QN_LOGITS_LAST};
    return qn_engine_step(e, 1, &feed, ignore, NULL, NULL);
}

static qn_status open_and_step(const char *path)
{
    qn_engine *e = NULL;
    qn_sequence *s = NULL;
    qn_engine_options o = {.n_threads = 2, .max_rows = 16, .context_size = 64};
    qn_status status = qn_test_engine_try(path, &o, &e);
    if (status == QN_OK) status = qn_sequence_new(e, &s);
    if (status == QN_OK) status = feed_some(e, s, 6);
    qn_sequence_free(s);
    qn_engine_close(e);
    return status;
}

/* Without a prefix tree freed pages are kept for the next sequence, in each group of layers, and recurrent
 * state is. All of it can be given back. */
static void gives_pages_back(void **state)
{
    static const char *const paths[] = {"models/llama", "models/gemma3_text", "models/qwen3_5"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        qn_engine *e = qn_test_engine(
            qn_test_need_fixture(paths[i]), NULL,
            (qn_engine_options){.n_threads = 1, .max_rows = 16, .context_size = 256, .no_prefix_cache = 1});
        qn_ledger *ledger = qn_engine_ledger(e);
        qn_sequence *s = qn_test_sequence(e);
        for (int j = 0; j < 6; j++) qn_test_ok(feed_some(e, s, 16));
        const size_t held = qn_ledger_held(ledger, QN_LEDGER_KV);
        qn_sequence_free(s);
        assert_int_equal(qn_ledger_held(ledger, QN_LEDGER_KV), 0);
        assert_true(qn_ledger_held(ledger, QN_LEDGER_CACHE) >= held && held > 0);
        qn_ledger_clear_cache(ledger);
        assert_int_equal(qn_ledger_held(ledger, QN_LEDGER_CACHE), 0);
        s = qn_test_sequence(e);
        qn_test_ok(feed_some(e, s, 16));
        qn_sequence_free(s);
        qn_engine_close(e);
    }
}

/* A known prefix is left alone where there is no room for what the sequence needs of its own: a copy of the
 * recurrent state, or the ids that may have to be turned again. It begins with nothing then. */
static void attaches_nothing(void **state)
{
    enum { N = 40, MOST = 8192 };
    for (int has_states = 0; has_states < 2; has_states++) {
        qn_engine *e = qn_test_engine(
            qn_test_need_fixture(has_states ? "models/qwen3_5" : "models/phi3_longrope"), NULL,
            (qn_engine_options){.n_threads = 1, .max_rows = 64, .context_size = 256, .max_sequences = 3});
        qn_sequence *first = qn_test_sequence(e), *s = qn_test_sequence(e);
        static int32_t slots[MOST];
        int64_t n = 0;
        qn_sequence_expect(first, N + 1);
        qn_sequence_expect(s, N + 1);
        qn_test_ok(feed_some(e, first, N));
        qn_sequence_remember(first, "", some_ids, 1, 1);
        if (!has_states) qn_ledger_set_limit(qn_engine_ledger(e), 1); /* pages stay, for they are in use */
        if (has_states) {                                             /* all but the one that is kept */
            n = qn_pages_free_count(e->slots);
            assert_in_range(n, 1, MOST);
            qn_test_ok(qn_pages_reserve(e->slots, n, slots));
        }
        assert_int_equal(qn_sequence_attach(s, "", some_ids, N + 1), 0);
        assert_int_equal(qn_sequence_length(s), 0);
        qn_ledger_set_limit(qn_engine_ledger(e), 0);
        while (n > 0) qn_pages_release(e->slots, slots[--n]);
        assert_int_equal(qn_sequence_attach(s, "", some_ids, N + 1), N);
        qn_sequence_free(s);
        qn_sequence_free(first);
        qn_engine_close(e);
    }
}

/* More sequences than the engine was opened for are refused. */
static void too_many_feeds(void **state)
{
    qn_engine *e = qn_test_engine(
        qn_test_need_fixture("models/llama"), NULL,
        (qn_engine_options){.n_threads = 1, .max_rows = 16, .context_size = 64, .max_sequences = 2});
    qn_sequence *s[3];
    qn_feed feeds[3];
    for (int i = 0; i < 3; i++) {
        s[i] = qn_test_sequence(e);
        feeds[i] = (qn_feed){s[i], some_ids, 2, QN_LOGITS_LAST};
    }
    assert_int_equal(qn_engine_step(e, 3, feeds, ignore, NULL, NULL), QN_E_ARG);
    assert_string_equal(qn_last_error(), "3 sequences in one step, but the model was opened for 2");
    qn_test_ok(qn_engine_step(e, 2, feeds, ignore, NULL, NULL));
    for (int i = 0; i < 3; i++) qn_sequence_free(s[i]);
    qn_engine_close(e);
}

static void limit(void **state)
{
    const char *path = qn_test_need_fixture("models/llama");
    qn_engine *e = NULL;
    qn_engine_options o = {.n_threads = 1, .max_rows = 16, .context_size = 1024, .memory_limit_bytes = 20000};
    int64_t before = qn_mem_live_blocks();
    assert_int_equal(qn_test_engine_try(path, &o, &e), QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "weights"));
    assert_int_equal(qn_mem_live_blocks(), before);

    o.memory_limit_bytes = 0;
    e = qn_test_engine(path, NULL, o);
    size_t held = qn_ledger_total(qn_engine_ledger(e)), most = qn_ledger_peak(qn_engine_ledger(e));
    qn_sequence *s = qn_test_sequence(e);
    qn_test_ok(feed_some(e, s, 1));
    size_t page = qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_KV);
    qn_sequence_free(s);
    qn_engine_close(e);
    assert_true(page > 0 && most >= held);

    /* All but keys and values fit: refused as soon as the context is asked for, or chosen smaller. */
    o.memory_limit_bytes = most + 3 * page;
    assert_int_equal(qn_test_engine_try(path, &o, &e), QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "context size 1024"));

    o.memory_limit_bytes = 0;
    e = qn_test_engine(path, NULL, o);
    qn_ledger_set_limit(qn_engine_ledger(e), held + 3 * page);
    s = qn_test_sequence(e);
    assert_int_equal(feed_some(e, s, 200), QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "kv"));
    assert_true(qn_sequence_length(s) >= 16 && qn_sequence_length(s) <= 96);
    assert_int_equal(feed_some(e, s, 200), QN_E_NOMEM);
    qn_sequence_free(s);
    assert_true(qn_ledger_total(qn_engine_ledger(e)) <= held + 3 * page);
    qn_ledger_clear_cache(qn_engine_ledger(e));
    assert_int_equal(qn_ledger_total(qn_engine_ledger(e)), held);
    s = qn_test_sequence(e);
    qn_test_ok(feed_some(e, s, 40));
    qn_sequence_free(s);
    qn_engine_close(e);
    assert_int_equal(qn_mem_live_blocks(), before);
}

/* Tokens go far past the context; then the model is opened and closed again. */
static void long_use(void **state)
{
    const char *path = qn_test_need_fixture("models/llama");
    int64_t blocks = qn_mem_live_blocks(), made = 0;
    qn_engine_options o = {.precision = QN_PRECISION_FAST, .context_size = 64};
    qn_engine *e = qn_test_engine(path, NULL, o);
    qn_sequence *s = qn_test_sequence(e);
    qn_test_ok(feed_some(e, s, 6));
    for (int i = 0; i < 500; i++) {
        qn_test_ok(feed_some(e, s, 1));
        if (i == 100) made = qn_mem_allocations();
    }
    assert_int_equal(qn_mem_allocations(), made); /* no allocation for a token */
    qn_sequence_free(s);
    qn_engine_close(e);
    assert_int_equal(qn_mem_live_blocks(), blocks);
    for (int i = 0; i < 3; i++) {
        qn_test_ok(open_and_step(path));
        assert_int_equal(qn_mem_live_blocks(), blocks);
    }
}

/* n tokens of a real model through the public API, rotating; resident memory after a fifth of them, and the
 * most later. */
static void generate(const char *path, int64_t n, long *warm, long *most)
{
    qn_model *m;
    qn_generation *g;
    qn_token t;
    qn_test_ok(qn_model_open(path, &(qn_model_options){.context_size = 512}, &m));
    qn_generate_options o = {.max_tokens = n, .temperature = 0.8f, .seed = 7, .ignore_eos = 1, .rotate = 1};
    qn_test_ok(qn_generate(m, "A quern is", &o, &g));
    int64_t seen = 0;
    *warm = *most = 0;
    do {
        qn_test_ok(qn_generation_next(g, &t));
        seen += t.end == QN_END_NONE;
        if (seen == n / 5 && !*warm) *warm = *most = qn_test_resident_kib();
        if (*warm && seen % 50 == 0 && qn_test_resident_kib() > *most) *most = qn_test_resident_kib();
    } while (t.end == QN_END_NONE);
    assert_int_equal(t.end, QN_END_LENGTH);
    assert_int_equal(seen, n);
    qn_generation_close(g);
    qn_model_close(&m);
}

/* `make soak`: 10,000 sampled tokens, then 50 times open, answer, close. */
static void soak(void **state)
{
    const char *path = qn_test_need_model("smollm2");
    int64_t blocks = qn_mem_live_blocks();
    long warm, most, first = 0, ignored[2];
    generate(path, 10000, &warm, &most);
    print_message("10000 tokens: %ld KiB after warm-up, at most %ld later\n", warm, most);
    assert_true(most <= warm + 512);
    most = 0;
    for (int i = 0; i < 50; i++) {
        generate(path, 10, &ignored[0], &ignored[1]);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (i == 10) first = qn_test_resident_kib();
        if (i >= 10 && qn_test_resident_kib() > most) most = qn_test_resident_kib();
    }
    print_message("50 rounds: %ld KiB after warm-up, at most %ld later\n", first, most);
    assert_true(most <= first + 1024);
}

int main(void)
{
    const struct CMUnitTest at_length[] = {cmocka_unit_test(soak)};
    if (getenv("QUERN_SOAK")) return cmocka_run_group_tests(at_length, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limit),          cmocka_unit_test(gives_pages_back),
        cmocka_unit_test(too_many_feeds), cmocka_unit_test(attaches_nothing),
        cmocka_unit_test(long_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
