/* Prefixes that requests ask to keep for a time: they outlast other requests, in models of full attention, of windows and
 * of recurrent layers; they are of one salt; they give way to a request that would not fit; no bit depends on them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>
#include <string.h>

#include "base/mem.h"
#include "tests/support/fixtures.h"

enum { CONTEXT = 256, N_PROMPT = 200, N_PINNED = 90, N_OTHERS = 12, N_OUT = 4 };
static const int64_t hour_ms = 3600000;

static void ok(qn_status status)
{
    if (status != QN_OK) fail_msg("%s: %s", qn_status_name(status), qn_last_error());
}

static qn_model *open_model(const char *fixture)
{
    qn_model *model = NULL;
    const qn_model_options o = {.context_size = CONTEXT, .parallel_slots = 1, .n_threads = 1};
    ok(qn_model_open(qn_test_need_fixture(fixture), &o, &model));
    return model;
}

static size_t cache_bytes(const qn_model *model)
{
    qn_memory m;
    ok(qn_model_get_memory(model, &m));
    return m.cache_memory_bytes;
}

/* Prompts of different numbers share nothing. */
static void fill(int32_t *ids, int number, int64_t n)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(3 + (i * 7 + number * 31) % 200);
}

/* Returns how many tokens came from the cache; out: the answer. */
static int64_t ask(qn_model *model, const int32_t *ids, int64_t n, qn_generate_options o, int32_t *out)
{
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_token token = {.end = QN_END_NONE};
    const qn_ids row = {ids, n};
    o.max_tokens = N_OUT;
    o.ignore_eos = 1;
    ok(qn_generation_open(model, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    for (int i = 0; token.end == QN_END_NONE; i++) {
        ok(qn_generation_next(g, &token));
        if (out && token.end == QN_END_NONE) out[i] = token.id;
    }
    ok(qn_generation_get_stats(g, &stats));
    qn_generation_close(g);
    return stats.n_cached_tokens;
}

/* The cache holds as much as two and a half prompts leave. */
static void limit_cache(qn_model *model)
{
    int32_t ids[CONTEXT];
    fill(ids, 90, N_PROMPT);
    ask(model, ids, N_PROMPT, (qn_generate_options){0}, NULL);
    ok(qn_model_set_cache_limit(model, cache_bytes(model) * 5 / 2, NULL));
    qn_model_clear_cache(model);
}

static void ask_others(qn_model *model)
{
    int32_t ids[CONTEXT];
    for (int i = 1; i <= N_OTHERS; i++) {
        fill(ids, i, N_PROMPT);
        ask(model, ids, N_PROMPT, (qn_generate_options){0}, NULL);
    }
}

static qn_cache_counters counters(const qn_model *model)
{
    qn_cache_counters c;
    ok(qn_cache_get_counters(model, &c));
    return c;
}

static void test_outlasts(void **state)
{
    static const char *const fixtures[] = {"models/llama", "models/gemma3_text", "models/qwen3_5"};
    (void)state;
    for (int f = 0; f < 3; f++) {
        qn_model *model = open_model(fixtures[f]);
        const qn_prefix_pin pin = {N_PINNED, hour_ms};
        const qn_generate_options keep = {.pins = &pin, .n_pins = 1};
        int32_t ids[CONTEXT], first[N_OUT], again[N_OUT];
        limit_cache(model);
        fill(ids, 0, N_PROMPT);
        ask(model, ids, N_PROMPT, (qn_generate_options){0}, first);
        ask_others(model);
        assert_int_equal(ask(model, ids, N_PROMPT, keep, again), 0); /* it is gone */
        assert_memory_equal(first, again, sizeof first);
        assert_int_equal(counters(model).n_timed_pins, 1);
        ask_others(model);
        assert_true(ask(model, ids, N_PROMPT, (qn_generate_options){0}, again) >= N_PINNED);
        assert_memory_equal(first, again, sizeof first);
        ask_others(model);
        /* Another prompt that begins so has exactly the prefix. */
        fill(ids + N_PINNED, 50, N_PROMPT - N_PINNED);
        assert_int_equal(ask(model, ids, N_PROMPT, (qn_generate_options){0}, NULL), N_PINNED);
        assert_int_equal(counters(model).n_given_up_pins, 0);
        qn_model_close(&model);
    }
}

/* A request that fills the whole context needs all pages: it gets them. */
static void test_gives_way(void **state)
{
    qn_model *model = open_model("models/llama");
    const qn_prefix_pin pin = {0, hour_ms};
    const qn_generate_options keep = {.pins = &pin, .n_pins = 1};
    int32_t ids[CONTEXT];
    (void)state;
    limit_cache(model);
    for (int i = 0; i < 3; i++) {
        fill(ids, 60 + i, N_PROMPT);
        ask(model, ids, N_PROMPT, keep, NULL);
    }
    for (int i = 0; i < 3; i++) {
        fill(ids, 70 + i, CONTEXT - N_OUT);
        ask(model, ids, CONTEXT - N_OUT, (qn_generate_options){0}, NULL);
    }
    assert_true(counters(model).n_given_up_pins > 0);
    qn_model_close(&model);
}

static void test_salts_and_times(void **state)
{
    qn_model *model = open_model("models/llama");
    const qn_prefix_pin pin = {N_PINNED, hour_ms}, brief = {N_PINNED, 1}, pins[] = {{0, hour_ms}, {20, 1}};
    int32_t ids[CONTEXT];
    (void)state;
    limit_cache(model);
    fill(ids, 0, N_PROMPT);
    ask(model, ids, N_PROMPT, (qn_generate_options){.pins = &pin, .n_pins = 1, .cache_salt = "x"}, NULL);
    ask_others(model);
    assert_int_equal(ask(model, ids, N_PROMPT, (qn_generate_options){.cache_salt = "y"}, NULL), 0);
    assert_true(ask(model, ids, N_PROMPT, (qn_generate_options){.cache_salt = "x"}, NULL) >= N_PINNED);
    qn_model_clear_cache(model);
    assert_int_equal(counters(model).n_nodes, 0);
    ask(model, ids, N_PROMPT, (qn_generate_options){.pins = &brief, .n_pins = 1}, NULL);
    ask_others(model);
    assert_int_equal(ask(model, ids, N_PROMPT, (qn_generate_options){0}, NULL), 0);
    ask(model, ids, N_PROMPT, (qn_generate_options){.pins = pins, .n_pins = 2}, NULL);
    ask_others(model);
    assert_int_equal(ask(model, ids, N_PROMPT, (qn_generate_options){0}, NULL), N_PROMPT - 1);
    /* Who uses no prefixes keeps none. */
    qn_model_clear_cache(model);
    ask(model, ids, N_PROMPT, (qn_generate_options){.pins = &pin, .n_pins = 1, .no_prefix_cache = 1}, NULL);
    assert_int_equal(counters(model).n_timed_pins, 0);
    qn_model_close(&model);
}

/* Prefixes that are kept ready are of one salt and adapter as well. */
static void test_warm(void **state)
{
    qn_model *model = open_model("models/llama");
    const qn_prefix_options x = {.cache_salt = "x"}, none = {.adapter = "none"},
                            unknown = {.adapter = "mill"};
    int32_t ids[CONTEXT];
    const qn_ids row = {ids, N_PROMPT};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    qn_cache_miss miss;
    (void)state;
    limit_cache(model);
    fill(ids, 0, N_PROMPT);
    ok(qn_model_warm_prefix(model, &prompt, "name", &x));
    ask_others(model);
    ok(qn_cache_explain_prefix(model, &prompt, &x, &miss));
    assert_int_equal(miss.reason, QN_CACHE_USABLE);
    assert_int_equal(miss.n_usable_tokens, N_PROMPT);
    ok(qn_cache_explain_prefix(model, &prompt, &none, &miss));
    assert_int_equal(miss.n_usable_tokens, 0);
    ok(qn_cache_explain(model, &prompt, &miss));
    assert_int_equal(miss.n_usable_tokens, 0);
    assert_int_equal(ask(model, ids, N_PROMPT, (qn_generate_options){0}, NULL), 0);
    assert_int_equal(ask(model, ids, N_PROMPT, (qn_generate_options){.cache_salt = "x"}, NULL), N_PROMPT - 1);
    assert_int_equal(qn_model_warm_prefix(model, &prompt, "other", &unknown), QN_E_NOT_FOUND);
    assert_int_equal(qn_cache_explain_prefix(model, &prompt, &unknown, &miss), QN_E_NOT_FOUND);
    ok(qn_model_unwarm(model, "name"));
    qn_model_close(&model);
}

static void expect_refused(qn_model *model, const qn_generate_options *o, int64_t n_rows)
{
    static const int32_t ids[10] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const qn_ids rows[] = {{ids, 10}, {ids, 10}};
    qn_generation *g = NULL;
    assert_int_equal(qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = n_rows}, o, &g),
                     QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "pins"));
}

static void test_refused(void **state)
{
    qn_model *model = open_model("models/llama");
    const qn_prefix_pin wrong[] = {{11, 1000}, {-1, 1000}, {1, 0}, {1, -5}}, right[5] = {{1, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_refused(model, &(qn_generate_options){.pins = &wrong[i], .n_pins = 1}, 1);
    expect_refused(model, &(qn_generate_options){.pins = right, .n_pins = 5}, 1);
    expect_refused(model, &(qn_generate_options){.n_pins = 1}, 1);
    expect_refused(model, &(qn_generate_options){.pins = right, .n_pins = 1}, 2);
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outlasts),        cmocka_unit_test(test_gives_way),
        cmocka_unit_test(test_salts_and_times), cmocka_unit_test(test_warm),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
