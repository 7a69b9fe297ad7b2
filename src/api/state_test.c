/* Prefixes that are kept, saved, loaded and explained, through the public API. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "format/files/mmap.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

enum { N_IDS = 150, N_NEW = 12 };

static const char *const fixtures[] = {"models/llama", "models/gemma3_text", "models/qwen3_5"};
enum { FIXTURES = sizeof fixtures / sizeof *fixtures };

static void ok(qn_status status)
{
    if (status != QN_OK) fail_msg("%s: %s", qn_status_name(status), qn_last_error());
}

static void refused(qn_status got, qn_status want, const char *words)
{
    if (got != want)
        fail_msg("%s, expected %s: %s", qn_status_name(got), qn_status_name(want), qn_last_error());
    if (!strstr(qn_last_error(), words)) fail_msg("'%s' is not in: %s", words, qn_last_error());
}

static qn_model *open_with(const char *fixture, qn_model_options o)
{
    qn_model *model = NULL;
    o.context_size = 256;
    o.n_threads = 1;
    ok(qn_model_open(qn_test_need_fixture(fixture), &o, &model));
    return model;
}

static qn_model *open_model(const char *fixture)
{
    return open_with(fixture, (qn_model_options){0});
}

static void fill_ids(int32_t *ids, int32_t seed)
{
    for (int32_t i = 0; i < N_IDS; i++) ids[i] = 3 + (i * 7 + i * i * seed) % 200;
}

/* Greedy ids behind ids[0..n); returns how many tokens of the prompt were there. */
static int64_t generate(qn_model *model, const int32_t *ids, int64_t n, int32_t *out)
{
    const qn_ids row = {ids, n};
    const qn_generate_options o = {.max_tokens = N_NEW, .ignore_eos = 1};
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_token t = {.end = QN_END_NONE};
    ok(qn_generation_open(model, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    for (int i = 0; t.end == QN_END_NONE; i++) {
        ok(qn_generation_next(g, &t));
        if (t.id >= 0) out[i] = t.id;
    }
    ok(qn_generation_get_stats(g, &stats));
    qn_generation_close(g);
    return stats.n_cached_tokens;
}

static const char *path_in(const char *folder, const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, name));
    return path;
}

/* What a second process loads, it need not compute, and gives the same. */
static void state_comes_back(void **state)
{
    const char *folder = qn_test_scratch(), *path = path_in(folder, "x.state");
    for (int f = 0; f < FIXTURES; f++) {
        qn_model *a = open_model(fixtures[f]), *b = open_model(fixtures[f]);
        int32_t ids[N_IDS], expected[N_NEW], got[N_NEW];
        fill_ids(ids, 1);
        assert_int_equal(generate(a, ids, 100, got), 0);
        ok(qn_model_save_state(a, path));
        generate(a, ids, N_IDS, expected);
        qn_model_close(&a);
        ok(qn_model_load_state(b, path));
        assert_int_equal(generate(b, ids, N_IDS, got), 100);
        assert_memory_equal(got, expected, sizeof got);
        qn_model_close(&b);
    }
    qn_test_remove(folder);
}

static void handles_come_back(void **state)
{
    const char *folder = qn_test_scratch(), *path = path_in(folder, "x.state");
    static float first[1 << 15], second[1 << 15];
    for (int f = 0; f < FIXTURES; f++) {
        qn_model *a = open_model(fixtures[f]), *b = open_model(fixtures[f]);
        qn_cache *one = NULL, *next = NULL, *loaded = NULL, *again = NULL;
        int32_t ids[N_IDS];
        fill_ids(ids, 2);
        ok(qn_forward_with_cache(a, ids, 100, NULL, first, 1 << 15, &one));
        ok(qn_cache_save(one, path));
        ok(qn_forward_with_cache(a, ids + 100, 5, one, first, 1 << 15, &next));
        ok(qn_cache_load(b, path, &loaded));
        ok(qn_forward_with_cache(b, ids + 100, 5, loaded, second, 1 << 15, &again));
        assert_memory_equal(first, second, sizeof first);
        qn_cache_free(again);
        qn_model_close(&a);
        qn_model_close(&b);
    }
    qn_test_remove(folder);
}

static void refusals(void **state)
{
    const char *folder = qn_test_scratch(), *path = path_in(folder, "x.state");
    qn_model *a = open_model("models/llama"), *other = open_model("models/gemma3_text");
    qn_model *fast = open_with("models/llama", (qn_model_options){.precision = QN_PRECISION_FAST});
    qn_model *turned = open_with("models/llama", (qn_model_options){.rope = {.theta = 20000}});
    qn_model *without = open_with("models/llama", (qn_model_options){.no_prefix_cache = 1});
    qn_cache *out = NULL;
    qn_cache_counters counters;
    int32_t ids[N_IDS], expected[N_NEW], got[N_NEW];
    char *text;
    size_t n;
    fill_ids(ids, 3);
    generate(a, ids, N_IDS, expected);
    ok(qn_model_save_state(a, path));
    refused(qn_model_load_state(other, path), QN_E_UNSUPPORTED, "another model");
    refused(qn_model_load_state(fast, path), QN_E_UNSUPPORTED, "precision");
    refused(qn_model_load_state(turned, path), QN_E_UNSUPPORTED, "other rotary positions");
    refused(qn_cache_load(turned, path, &out), QN_E_UNSUPPORTED, "other rotary positions");
    refused(qn_model_load_state(without, path), QN_E_UNSUPPORTED, "without a prefix cache");
    refused(qn_model_save_state(without, path), QN_E_UNSUPPORTED, "without a prefix cache");
    refused(qn_model_load_state(a, qn_test_path(folder, "none")), QN_E_IO, "none");
    refused(qn_model_save_state(a, qn_test_path(folder, "none/x")), QN_E_IO, "none/x");
    refused(qn_model_load_state(NULL, path), QN_E_ARG, "model");
    refused(qn_model_load_state(a, NULL), QN_E_ARG, "path");
    refused(qn_model_save_state(a, NULL), QN_E_ARG, "path");
    refused(qn_cache_save(NULL, path), QN_E_ARG, "NULL");
    refused(qn_cache_load(a, NULL, &out), QN_E_ARG, "path");
    refused(qn_cache_load(a, path, NULL), QN_E_ARG, "out");
    refused(qn_cache_load(other, path, &out), QN_E_UNSUPPORTED, "another model");
    assert_null(out);
    ok(qn_file_read(path, 1 << 30, &text, &n));
    text[n / 2] = (char)(text[n / 2] ^ 16);
    qn_test_write(folder, "bent", text, n);
    refused(qn_model_load_state(a, qn_test_path(folder, "bent")), QN_E_FORMAT, "damaged");
    qn_test_write(folder, "cut", text, n - 1);
    refused(qn_model_load_state(a, qn_test_path(folder, "cut")), QN_E_FORMAT, "cut");
    qn_free(text);
    ok(qn_cache_get_counters(a, &counters));
    assert_true(counters.n_nodes > 0);
    assert_true(generate(a, ids, N_IDS, got) == N_IDS - 1); /* all goes on */
    assert_memory_equal(got, expected, sizeof got);
    qn_model_close(&a);
    qn_model_close(&other);
    qn_model_close(&fast);
    qn_model_close(&turned);
    qn_model_close(&without);
    qn_test_remove(folder);
}

/* ---- prefixes that stay, and explanations ------------------------------------------------------------- */

static qn_cache_miss explain(qn_model *model, const int32_t *ids, int64_t n)
{
    const qn_ids row = {ids, n};
    qn_cache_miss miss;
    ok(qn_cache_explain(model, &(qn_prompt){.rows = &row, .n_rows = 1}, &miss));
    return miss;
}

static void warm_stays(void **state)
{
    for (int f = 0; f < FIXTURES; f++) {
        qn_model *model = open_model(fixtures[f]);
        int32_t ids[N_IDS], got[N_NEW];
        fill_ids(ids, 4);
        const qn_ids row = {ids, 100}, more = {ids, 120};
        const qn_prompt prompt = {.rows = &row, .n_rows = 1}, longer = {.rows = &more, .n_rows = 1};
        ok(qn_model_warm(model, &prompt, "system"));
        ok(qn_model_clear_cache(model));
        assert_int_equal(explain(model, ids, 100).n_usable_tokens, 100);
        assert_int_equal(generate(model, ids, N_IDS, got), 100);
        ok(qn_model_warm(model, &longer, "system")); /* in its place */
        ok(qn_model_warm(model, &prompt, "other"));
        ok(qn_model_unwarm(model, "system"));
        refused(qn_model_unwarm(model, "system"), QN_E_NOT_FOUND, "system");
        ok(qn_model_clear_cache(model));
        assert_int_equal(explain(model, ids, 120).n_usable_tokens, 100);
        ok(qn_model_unwarm(model, "other"));
        ok(qn_model_clear_cache(model));
        qn_cache_miss miss = explain(model, ids, 100);
        assert_int_equal(miss.n_usable_tokens, 0);
        assert_int_equal(miss.reason, QN_CACHE_EVICTED);
        qn_model_close(&model);
    }
}

/* What was kept ready is so again where it is loaded, under its names; those that are in use stay. */
static void warm_comes_back(void **state)
{
    const char *folder = qn_test_scratch(), *path = path_in(folder, "x.state");
    for (int f = 0; f < FIXTURES; f++) {
        qn_model *a = open_model(fixtures[f]), *b = open_model(fixtures[f]), *c = open_model(fixtures[f]);
        int32_t ids[N_IDS], other[N_IDS], got[N_NEW], expected[N_NEW];
        qn_cache_counters counters;
        fill_ids(ids, 4);
        fill_ids(other, 5);
        const qn_ids row = {ids, 70}, more = {ids, 100}, another = {other, 50};
        const qn_prompt prompt = {.rows = &row, .n_rows = 1}, longer = {.rows = &more, .n_rows = 1},
                        own = {.rows = &another, .n_rows = 1};
        ok(qn_model_warm(a, &prompt, "system"));
        ok(qn_model_warm(a, &prompt, "the same"));
        ok(qn_model_warm(a, &longer, "tools and \"more\""));
        generate(a, other, N_IDS, got); /* not kept ready */
        ok(qn_model_save_state(a, path));
        generate(a, ids, N_IDS, expected);

        ok(qn_model_load_state(b, path));
        ok(qn_cache_get_counters(b, &counters));
        assert_int_equal(counters.n_pins, 3);
        ok(qn_model_clear_cache(b));
        assert_true(explain(b, other, 60).n_usable_tokens < 10);
        assert_int_equal(generate(b, ids, N_IDS, got), 100);
        assert_memory_equal(got, expected, sizeof got);
        ok(qn_model_unwarm(b, "tools and \"more\""));
        ok(qn_model_unwarm(b, "system"));
        ok(qn_model_clear_cache(b));
        assert_int_equal(explain(b, ids, 100).n_usable_tokens, 70);
        ok(qn_model_unwarm(b, "the same"));

        ok(qn_model_warm(c, &own, "system"));
        ok(qn_model_load_state(c, path));
        ok(qn_model_load_state(c, path));
        ok(qn_cache_get_counters(c, &counters));
        assert_int_equal(counters.n_pins, 3);
        ok(qn_model_unwarm(c, "the same"));
        ok(qn_model_unwarm(c, "tools and \"more\""));
        ok(qn_model_clear_cache(c));
        assert_int_equal(explain(c, other, 50).n_usable_tokens, 50);
        assert_true(explain(c, ids, 100).n_usable_tokens < 10);
        qn_model_close(&a);
        qn_model_close(&b);
        qn_model_close(&c);
    }
    qn_test_remove(folder);
}

/* One prefix of several is saved, comes back in another process, and is dropped. */
static void prefix_comes_back(void **state)
{
    const char *folder = qn_test_scratch(), *path = path_in(folder, "x.state");
    for (int f = 0; f < FIXTURES; f++) {
        qn_model *a = open_model(fixtures[f]), *b = open_model(fixtures[f]);
        int32_t ids[N_IDS], other[N_IDS], expected[N_NEW], got[N_NEW];
        const qn_prefix_options salted = {.cache_salt = "x"};
        qn_saved_prefix *p = NULL;
        qn_cache *handle = NULL;
        int64_t n = -1;
        fill_ids(ids, 4);
        fill_ids(other, 5);
        generate(a, ids, 100, got);
        generate(a, other, 100, got);
        ok(qn_model_save_prefix(a, ids, N_IDS, NULL, path, &n));
        assert_int_equal(n, 100);
        generate(a, ids, N_IDS, expected);
        ok(qn_model_load_prefix(b, path, &p));
        assert_int_equal(p->n_ids, 100);
        assert_int_equal(p->n_loaded, 100);
        assert_memory_equal(p->ids, ids, 100 * sizeof *ids);
        assert_string_equal(p->options.adapter, "none");
        assert_null(p->options.cache_salt);
        qn_buffer_free(p);
        ok(qn_cache_load(b, path, &handle));
        ok(qn_cache_get_length(handle, &n));
        assert_int_equal(n, 100);
        qn_cache_free(handle);
        assert_true(generate(b, other, N_IDS, got) < 10);
        assert_int_equal(generate(b, ids, N_IDS, got), 100);
        assert_memory_equal(got, expected, sizeof got);
        ok(qn_model_forget_prefix(b, ids, 100, NULL, &n));
        assert_true(n > 90);
        assert_true(generate(b, ids, N_IDS, got) < 10);
        assert_memory_equal(got, expected, sizeof got);
        /* An unused salt has nothing saved under it. Saving that works too. */
        ok(qn_model_forget_prefix(b, ids, N_IDS, &salted, &n));
        assert_int_equal(n, 0);
        ok(qn_model_save_prefix(a, ids, 100, &salted, path, &n));
        assert_int_equal(n, 0);
        ok(qn_model_load_prefix(b, path, &p));
        assert_int_equal(p->n_ids, 0);
        assert_string_equal(p->options.cache_salt, "x");
        qn_buffer_free(p);
        qn_model_close(&a);
        qn_model_close(&b);
    }
    qn_test_remove(folder);
}

static void prefix_refusals(void **state)
{
    const char *folder = qn_test_scratch(), *path = path_in(folder, "x.state");
    qn_model *a = open_model("models/llama"), *other = open_model("models/gemma3_text");
    qn_model *without = open_with("models/llama", (qn_model_options){.no_prefix_cache = 1});
    const qn_prefix_options unknown = {.adapter = "nobody"};
    int32_t ids[N_IDS], got[N_NEW];
    qn_saved_prefix *p = NULL;
    int64_t n;
    fill_ids(ids, 4);
    generate(a, ids, 100, got);
    refused(qn_model_save_prefix(a, NULL, 1, NULL, path, &n), QN_E_ARG, "ids");
    refused(qn_model_save_prefix(a, ids, 1, &unknown, path, &n), QN_E_NOT_FOUND, "nobody");
    refused(qn_model_save_prefix(a, ids, 1, NULL, qn_test_path(folder, "none/x"), &n), QN_E_IO, "none/x");
    refused(qn_model_save_prefix(without, ids, 1, NULL, path, &n), QN_E_UNSUPPORTED,
            "without a prefix cache");
    refused(qn_model_forget_prefix(without, ids, 1, NULL, &n), QN_E_UNSUPPORTED, "without a prefix cache");
    refused(qn_model_forget_prefix(a, ids, 1, &unknown, &n), QN_E_NOT_FOUND, "nobody");
    refused(qn_model_load_prefix(a, path, &p), QN_E_IO, path);
    ok(qn_model_save_prefix(a, ids, 100, NULL, path, &n));
    refused(qn_model_load_prefix(other, path, &p), QN_E_UNSUPPORTED, path);
    refused(qn_model_load_prefix(without, path, &p), QN_E_UNSUPPORTED, "without a prefix cache");
    generate(a, ids + 10, 100, got);
    ok(qn_model_save_state(a, path));
    refused(qn_model_load_prefix(a, path, &p), QN_E_UNSUPPORTED, "not the state of one sequence");
    assert_null(p);
    qn_model_close(&a);
    qn_model_close(&other);
    qn_model_close(&without);
    qn_test_remove(folder);
}

static void warm_refusals(void **state)
{
    qn_model *model = open_model("models/llama");
    int32_t ids[300] = {0};
    qn_ids rows[2] = {{ids, 10}, {ids, 10}};
    qn_prompt prompt = {.rows = rows, .n_rows = 1};
    qn_cache_miss miss;
    refused(qn_model_warm(model, &prompt, NULL), QN_E_ARG, "name");
    refused(qn_model_warm(model, &prompt, ""), QN_E_ARG, "name");
    refused(qn_model_warm(NULL, &prompt, "x"), QN_E_ARG, "model");
    refused(qn_model_warm(model, NULL, "x"), QN_E_ARG, "prompt");
    refused(qn_model_unwarm(model, "x"), QN_E_NOT_FOUND, "x");
    prompt.n_rows = 2;
    refused(qn_model_warm(model, &prompt, "x"), QN_E_ARG, "2 rows");
    refused(qn_cache_explain(model, &prompt, &miss), QN_E_ARG, "2 rows");
    prompt.n_rows = 1;
    prompt.images = &(qn_image){(const uint8_t[3]){0}, 1, 1, 0};
    prompt.n_images = 1;
    refused(qn_model_warm(model, &prompt, "x"), QN_E_UNSUPPORTED, "images");
    prompt.n_images = 0;
    rows[0].n_ids = 300;
    refused(qn_model_warm(model, &prompt, "x"), QN_E_ARG, "300 tokens");
    rows[0].n_ids = 10;
    ids[4] = -1;
    refused(qn_model_warm(model, &prompt, "x"), QN_E_ARG, "vocabulary");
    qn_model_close(&model);
}

static void explanations(void **state)
{
    qn_model *model = open_model("models/llama");
    int32_t ids[N_IDS], got[N_NEW];
    fill_ids(ids, 5);
    qn_cache_miss miss = explain(model, ids, 60);
    assert_int_equal(miss.reason, QN_CACHE_UNKNOWN);
    generate(model, ids, 60, got);
    miss = explain(model, ids, 60);
    assert_int_equal(miss.reason, QN_CACHE_USABLE);
    assert_int_equal(miss.n_usable_tokens, 60);
    assert_int_equal(miss.n_prompt_tokens, 60);
    const int32_t before = ids[40];
    ids[40] = before + 1;
    miss = explain(model, ids, 60);
    assert_int_equal(miss.reason, QN_CACHE_DIFFERS);
    assert_string_equal(qn_cache_reason_name(miss.reason), "differs");
    assert_int_equal(miss.n_known_tokens, 40);
    assert_int_equal(miss.given[miss.i_given], before + 1);
    assert_int_equal(miss.known[miss.i_known], before);
    char *text = NULL;
    size_t n_bytes;
    ok(qn_model_decode(model, &before, 1, NULL, &text, &n_bytes));
    assert_string_equal(miss.known_token, text);
    qn_buffer_free(text);
    assert_non_null(strstr(miss.known_context, miss.known_token));
    assert_non_null(strstr(miss.given_context, miss.given_token));
    ids[40] = before;
    memcpy(ids + 60, got, sizeof got);
    miss = explain(model, ids, 60 + N_NEW + 5);
    assert_true(miss.reason == QN_CACHE_ENDS || miss.reason == QN_CACHE_DIFFERS);
    assert_in_range(miss.n_known_tokens, 60, 60 + N_NEW);
    qn_model_close(&model);
}

static void load_adapter(qn_model *model, const char *name, float scale)
{
    const qn_adapter_options o = {
        .name = name, .path = qn_test_need_fixture("lora/llama_qv"), .scale = scale};
    ok(qn_adapter_load(model, &o));
}

static int64_t generate_with(qn_model *model, const char *adapter, const int32_t *ids, int64_t n)
{
    const qn_ids row = {ids, n};
    const qn_generate_options o = {.max_tokens = 2, .ignore_eos = 1, .adapter = adapter};
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_token t = {.end = QN_END_NONE};
    ok(qn_generation_open(model, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    while (t.end == QN_END_NONE) ok(qn_generation_next(g, &t));
    ok(qn_generation_get_stats(g, &stats));
    qn_generation_close(g);
    return stats.n_cached_tokens;
}

/* What an adapter computed is used with the same adapter alone, whatever number it has now. */
static void adapters(void **state)
{
    const char *folder = qn_test_scratch(), *path = path_in(folder, "x.state");
    char one[512];
    snprintf(one, sizeof one, "%s", qn_test_path(folder, "one.state"));
    qn_model *a = open_model("models/llama"), *same = open_model("models/llama"),
             *none = open_model("models/llama"), *other = open_model("models/llama");
    const qn_model_options o = {.adapter_path = qn_test_need_fixture("lora/llama_qv"),
                                .adapter_name = "tuned"};
    qn_model *by_default = open_with("models/llama", o);
    static float logits[1 << 15];
    qn_cache *handle = NULL, *out = NULL;
    int32_t ids[N_IDS];
    fill_ids(ids, 7);
    load_adapter(a, "tuned", 1);
    generate_with(a, "tuned", ids, 100);
    generate_with(a, "none", ids + 3, 100);
    ok(qn_model_save_state(a, path));
    load_adapter(same, "first", 2);
    load_adapter(same, "tuned", 1);
    load_adapter(other, "tuned", 0.5f);
    ok(qn_model_load_state(same, path));
    ok(qn_model_load_state(none, path));
    ok(qn_model_load_state(other, path));
    assert_int_equal(generate_with(same, "tuned", ids, 120), 100);
    assert_int_equal(generate_with(same, "first", ids, 120), 0);
    assert_int_equal(generate_with(same, "none", ids + 3, 120), 100);
    assert_int_equal(generate_with(other, "tuned", ids, 120), 0);
    assert_int_equal(generate_with(other, "none", ids + 3, 120), 100);
    assert_int_equal(generate_with(none, "none", ids + 3, 120), 100);
    ok(qn_forward_with_cache(by_default, ids, 50, NULL, logits, 1 << 15, &handle));
    refused(qn_adapter_unload(by_default, "tuned"), QN_E_ARG, "tuned"); /* the handle holds it */
    ok(qn_cache_save(handle, one));
    refused(qn_cache_load(none, one, &out), QN_E_NOT_FOUND, "tuned");
    refused(qn_cache_load(other, one, &out), QN_E_NOT_FOUND, "another");
    ok(qn_cache_load(same, one, &out));
    refused(qn_adapter_unload(same, "tuned"), QN_E_ARG, "tuned");
    qn_cache_free(out);
    ok(qn_adapter_unload(same, "tuned"));
    qn_model_close(&a);
    qn_model_close(&same);
    qn_model_close(&none);
    qn_model_close(&other);
    qn_model_close(&by_default);
    qn_test_remove(folder);
}

static void out_of_memory(void **state)
{
    const char *folder = qn_test_scratch(), *path = path_in(folder, "x.state");
    qn_model *model = open_model("models/llama");
    int32_t ids[N_IDS], got[N_NEW], expected[N_NEW];
    fill_ids(ids, 6);
    const qn_ids row = {ids, 90};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    generate(model, ids, N_IDS, expected);
    ok(qn_model_save_state(model, path));
    for (int what = 0; what < 6; what++) {
        qn_status status = QN_E_NOMEM;
        for (int64_t nth = 1; status != QN_OK && nth < 2000; nth++) {
            qn_cache_miss miss;
            qn_saved_prefix *p = NULL;
            int64_t n;
            ok(qn_model_clear_cache(model));
            qn_mem_fail_nth(nth);
            status = what == 0   ? qn_model_warm(model, &prompt, "x")
                     : what == 1 ? qn_cache_explain(model, &prompt, &miss)
                     : what == 2 ? qn_model_load_state(model, path)
                     : what == 3 ? qn_model_save_state(model, path)
                     : what == 4 ? qn_model_save_prefix(model, ids, 90, NULL, path, &n)
                                 : qn_model_load_prefix(model, path, &p);
            qn_mem_fail_nth(0);
            qn_buffer_free(p);
            if (status != QN_OK && status != QN_E_NOMEM && status != QN_E_NOT_FOUND)
                fail_msg("%d: %s: %s", what, qn_status_name(status), qn_last_error());
        }
        assert_int_equal(status, QN_OK);
        generate(model, ids, N_IDS, got);
        assert_memory_equal(got, expected, sizeof got);
    }
    qn_model_close(&model);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_comes_back), cmocka_unit_test(handles_come_back),
        cmocka_unit_test(refusals),         cmocka_unit_test(warm_stays),
        cmocka_unit_test(warm_comes_back),  cmocka_unit_test(prefix_comes_back),
        cmocka_unit_test(prefix_refusals),  cmocka_unit_test(warm_refusals),
        cmocka_unit_test(explanations),     cmocka_unit_test(adapters),
        cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
