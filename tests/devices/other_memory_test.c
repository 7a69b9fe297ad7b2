/* Memory of a model on another device: its figures beside the device's own, limits, and what the device keeps
 * for reuse. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <quern/quern.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/devices/other_compare.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

static qn_model *open_model(void)
{
    qn_model *m = NULL;
    const qn_model_options o = {.device = qn_test_other()->name, .n_threads = 1};
    qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"), &o, &m));
    return m;
}

/* 1: the device has memory of its own, and *out has its figures in the place of the host's. */
static int memory_of(qn_model *m, qn_memory *out)
{
    qn_device_memory card;
    qn_test_ok(qn_model_get_memory(m, out));
    qn_test_ok(qn_model_get_device_memory(m, &card));
    if (!card.peak_memory_bytes) return 0;
    out->active_memory_bytes = card.active_memory_bytes;
    out->cache_memory_bytes = card.cache_memory_bytes;
    out->peak_memory_bytes = card.peak_memory_bytes;
    out->weights_bytes = card.weights_bytes;
    out->kv_bytes = card.kv_bytes;
    return 1;
}

static qn_status answer(qn_model *m, int64_t n)
{
    qn_generation *g;
    qn_token t;
    qn_status status =
        qn_generate(m, "The mill", &(qn_generate_options){.max_tokens = n, .ignore_eos = 1}, &g);
    if (status != QN_OK) return status;
    do status = qn_generation_next(g, &t);
    while (status == QN_OK && t.end == QN_END_NONE);
    qn_generation_close(g);
    return status;
}

/* Weights and pages are the device's, so they are part of what it says; the ledger has besides what lies on the
 * host. */
static void figures_beside_those_of_the_device(void **state)
{
    qn_test_usage before, then;
    const int tells = qn_test_get_usage(&before);
    qn_model *m = open_model();
    qn_test_ok(answer(m, 4));
    qn_memory now;
    memory_of(m, &now);
    assert_true(now.weights_bytes > 0 && now.kv_bytes + now.cache_memory_bytes > 0);
    if (qn_test_other()->counts_spare) assert_true(now.kv_bytes > 0);
    assert_true(now.peak_memory_bytes >= now.active_memory_bytes);
    if (tells) {
        qn_test_get_usage(&then);
        const size_t active = then.active_bytes - before.active_bytes;
        assert_true(active >= now.weights_bytes && active <= now.active_memory_bytes);
        assert_true(now.cache_memory_bytes >= then.cache_bytes);
    }
    qn_model_close(&m);
    qn_test_get_usage(&then);
    assert_int_equal(then.active_bytes, before.active_bytes);
}

static void the_cache_keeps_its_limit(void **state)
{
    qn_test_usage before, then;
    const int tells = qn_test_get_usage(&before);
    qn_model *m = open_model();
    size_t old = 0;
    qn_test_ok(answer(m, 8));
    qn_memory full;
    memory_of(m, &full);
    qn_test_ok(qn_model_clear_cache(m));
    qn_test_get_usage(&then);
    assert_int_equal(then.cache_bytes, 0);
    qn_test_ok(qn_model_set_cache_limit(m, 0, &old));
    assert_true(old >= 256 << 20);
    qn_test_ok(answer(m, 8));
    qn_memory now;
    memory_of(m, &now);
    qn_test_get_usage(&then);
    assert_int_equal(then.cache_bytes, 0);
    assert_int_equal(now.cache_memory_bytes, 0);
    /* No page is kept: the pools have given back what they had. */
    const size_t active = then.active_bytes - before.active_bytes;
    if (tells)
        assert_true(active >= now.weights_bytes && active <= now.weights_bytes + now.kv_bytes + (64 << 10));
    if (qn_test_other()->counts_spare) assert_true(now.kv_bytes < full.kv_bytes / 2);
    qn_test_ok(qn_model_set_cache_limit(m, old, NULL));
    qn_model_close(&m);
}

static qn_status set_limit(qn_model *m, int is_card, size_t limit_bytes)
{
    return (is_card ? qn_model_set_device_memory_limit : qn_model_set_memory_limit)(m, limit_bytes, NULL);
}

static void limits_are_refused_before_the_device_is_asked(void **state)
{
    qn_model *m = NULL;
    qn_model_options o = {.device = qn_test_other()->name, .memory_limit_bytes = 100000};
    assert_int_equal(qn_model_open(qn_test_need_fixture("models/llama"), &o, &m), QN_E_NOMEM);
    m = open_model();
    qn_test_ok(answer(m, 2));
    qn_memory now;
    const int is_card = memory_of(m, &now);
    if (!is_card) assert_int_equal(qn_model_set_device_memory_limit(m, 1 << 30, NULL), QN_E_UNSUPPORTED);
    /* What chunks of a card have beside pages is part of its active memory, and pages may take it. */
    qn_test_ok(set_limit(m, is_card, is_card ? now.weights_bytes : now.active_memory_bytes));
    assert_int_equal(answer(m, 400), QN_E_NOMEM);
    qn_test_ok(set_limit(m, is_card, 0));
    qn_test_ok(answer(m, 400));
    qn_test_ok(qn_model_set_wired_limit(m, 0, NULL));
    qn_model_close(&m);
}

/* Two ledgers: what the host has is not the card's, and the limits are apart. */
static void a_card_has_figures_and_a_limit(void **state)
{
    qn_model *m = open_model();
    qn_memory host;
    qn_device_memory card;
    size_t old = 1;
    qn_test_ok(answer(m, 2));
    qn_test_ok(qn_model_get_memory(m, &host));
    qn_test_ok(qn_model_get_device_memory(m, &card));
    if (!card.peak_memory_bytes) {
        qn_model_close(&m);
        return;
    }
    assert_true(card.weights_bytes > 0 && host.weights_bytes == 0);
    assert_true(card.kv_bytes + card.cache_memory_bytes > 0 && host.kv_bytes == 0);
    assert_true(host.other_bytes > 0 && card.free_bytes > 0);
    qn_test_ok(qn_model_set_device_memory_limit(m, 1 << 30, &old));
    assert_int_equal(old, 0);
    qn_test_ok(qn_model_get_device_memory(m, &card));
    qn_test_ok(qn_model_get_memory(m, &host));
    assert_int_equal(card.limit_bytes, 1 << 30);
    assert_int_equal(host.limit_bytes, 0);
    qn_test_ok(qn_model_clear_cache(m));
    qn_test_ok(qn_model_reset_peak_memory(m));
    qn_test_ok(qn_model_get_device_memory(m, &card));
    assert_int_equal(card.cache_memory_bytes, 0);
    assert_int_equal(card.peak_memory_bytes, card.active_memory_bytes);
    qn_metrics metrics;
    qn_test_ok(qn_model_get_metrics(m, &metrics));
    assert_int_equal(metrics.device_active_memory_bytes, card.active_memory_bytes);
    qn_model_close(&m);
    /* The host's limit alone, and the card's alone, are enough to refuse a model. */
    qn_model_options o = {.device = qn_test_other()->name, .device_memory_limit_bytes = 100000};
    assert_int_equal(qn_model_open(qn_test_need_fixture("models/llama"), &o, &m), QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "left under the device memory limit"));
}

/* Resident bytes of this process; 0: unknown. */
static size_t resident_bytes(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%*s %ld", &pages) != 1) pages = 0;
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Answers of many sizes leave nothing behind, neither in the ledgers nor in the memory that the card and the system
 * count. QN_TEST_TOKENS: so many tokens in all. */
static void memory_is_flat(void **state)
{
    enum { WARM = 4, SLACK = 4 << 20 };
    const char *wish = getenv("QN_TEST_TOKENS");
    const int64_t most = wish ? strtol(wish, NULL, 10) : 100;
    qn_memory host[2];
    qn_device_memory card[2];
    size_t resident[2];
    qn_model *m = open_model();
    for (int64_t i = 0, n = 0, at = 0; at < 2; i++) {
        if (i == WARM || n >= most) {
            resident[at] = resident_bytes();
            qn_test_ok(qn_model_get_memory(m, &host[at]));
            qn_test_ok(qn_model_get_device_memory(m, &card[at++]));
            n = 0;
        }
        const int64_t length = i == 0 ? 60 : 1 + (i * 37) % 60;
        qn_test_ok(answer(m, length));
        n += length;
        if (i < WARM) n = 0;
    }
    print_message(
        "%lld tokens: the device's memory %lld to %lld bytes, free %lld to %lld; the host's %lld to %lld, "
        "resident %lld to %lld\n",
        (long long)most, (long long)card[0].active_memory_bytes, (long long)card[1].active_memory_bytes,
        (long long)card[0].free_bytes, (long long)card[1].free_bytes, (long long)host[0].active_memory_bytes,
        (long long)host[1].active_memory_bytes, (long long)resident[0], (long long)resident[1]);
    assert_int_equal(card[1].active_memory_bytes, card[0].active_memory_bytes);
    assert_int_equal(host[1].active_memory_bytes, host[0].active_memory_bytes);
    assert_true(card[1].free_bytes + SLACK >= card[0].free_bytes);
    assert_true(resident[1] <= resident[0] + SLACK);
    qn_model_close(&m);
}

/* Arrays of a card are in its ledger, and what the host reads of them is in the host's. */
static void scopes_have_both_limits(void **state)
{
    qn_scope *s;
    size_t live, peak, old = 1;
    const qn_scope_options o = {.device = qn_test_other()->name, .device_memory_limit_bytes = 1 << 20};
    qn_test_ok(qn_scope_open_with(&o, &s));
    qn_array *a = qn_add(s, qn_arange(s, QN_DTYPE_F32, 0, 1000, 1), qn_scalar(s, 1));
    qn_test_ok(qn_eval(s, 1, &a));
    qn_scope_device_memory(s, &live, &peak);
    const int is_card = peak > 0;
    if (is_card) {
        assert_true(live >= 4000 && peak <= 1 << 20);
        qn_array *big = qn_exp(s, qn_zeros(s, QN_DTYPE_F32, 2, (int64_t[]){1000, 1000}));
        assert_int_equal(qn_eval(s, 1, &big), QN_E_NOMEM);
        assert_non_null(strstr(qn_last_error(), "device memory limit"));
    }
    qn_scope_set_device_memory_limit(s, 0, &old);
    assert_int_equal(old, is_card ? 1 << 20 : 0);
    qn_scope_memory(s, &live, &peak);
    assert_true(is_card || live > 0);
    qn_scope_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_beside_those_of_the_device),
        cmocka_unit_test(the_cache_keeps_its_limit),
        cmocka_unit_test(limits_are_refused_before_the_device_is_asked),
        cmocka_unit_test(a_card_has_figures_and_a_limit),
        cmocka_unit_test(memory_is_flat),
        cmocka_unit_test(scopes_have_both_limits),
    };
    return qn_test_run_others("memory", tests, sizeof tests / sizeof *tests, NULL, NULL);
}
