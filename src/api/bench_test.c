/* qn_bench_run: what a report holds, of which parts, what is refused, cancelled and absent. No clock is
 * judged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

static qn_model *open_model(const char *fixture, qn_model_options o)
{
    qn_model *model = NULL;
    if (qn_model_open(qn_test_need_fixture(fixture), &o, &model) != QN_OK) fail_msg("%s", qn_last_error());
    return model;
}

static qn_bench_report run(qn_model *model, qn_bench_options o)
{
    qn_bench_report r;
    if (qn_bench_run(model, &o, &r) != QN_OK) fail_msg("%s", qn_last_error());
    return r;
}

static const qn_bench_check *check_of(const qn_bench_report *r, const char *name)
{
    for (int32_t i = 0; i < r->n_checks; i++)
        if (strcmp(r->checks[i].name, name) == 0) return &r->checks[i];
    return NULL;
}

static void assert_spread(qn_bench_spread s)
{
    assert_true(s.low > 0 && s.low <= s.median && s.median <= s.high && isfinite(s.high));
}

/* Full attention, a window, recurrent layers: all parts, and all that depends on bits alone is in order. */
static void test_whole(void **state)
{
    static const char *const kinds[] = {"models/llama", "models/gemma3_text", "models/qwen3_next"};
    static const char *const equal[] = {"greedy_again", "greedy_together", "greedy_kept", "greedy_probed",
                                        "state_restored"};
    const char *folder = qn_test_scratch();
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        qn_model *model = open_model(kinds[k], (qn_model_options){.n_threads = 1});
        qn_bench_report r = run(
            model,
            (qn_bench_options){.n_prompt_tokens = 40, .n_decode_tokens = 5, .n_runs = 2, .folder = folder});
        assert_int_equal(r.parts, (1 << QN_BENCH_COUNT) - 1);
        assert_int_equal(r.n_prompt_tokens, 40);
        assert_int_equal(r.n_decode_tokens, 5);
        assert_int_equal(r.n_sequences, 1);
        assert_int_equal(r.n_runs, 2);
        assert_spread(r.prefill_tokens_per_sec);
        assert_spread(r.decode_tokens_per_sec);
        assert_spread(r.cold_first_token_ms);
        assert_spread(r.warm_first_token_ms);
        assert_spread(r.state_save_ms);
        assert_spread(r.state_restore_ms);
        assert_true(r.active_memory_bytes > 0 && r.peak_memory_bytes >= r.active_memory_bytes);
        /* The last token is always computed; a recurrent state is kept here and there alone. */
        assert_true(r.hit_rate >= 0 && r.hit_rate < 1);
        if (strcmp(kinds[k], "models/qwen3_next") != 0) assert_true(r.hit_rate > 0.9);
        assert_true(r.state_bytes > 40 * sizeof(int32_t));
        assert_true(r.n_probe_events >= 5);
        assert_true(r.n_answers > 0 && r.n_scored > 50 && r.perplexity > 1);
        for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) {
            const qn_bench_check *c = check_of(&r, equal[i]);
            assert_non_null(c);
            assert_true(c->passed && c->value == 1 && c->bound == 1);
        }
        qn_model_close(&model);
    }
    assert_int_equal(qn_test_count_files(folder), 0);
    qn_test_remove(folder);
}

/* A text, its own number of tokens, sequences together; the bound of the perplexity. */
static void test_prompt(void **state)
{
    int32_t *ids;
    int64_t n;
    qn_model *model = open_model("models/llama", (qn_model_options){.parallel_slots = 3});
    qn_test_ok(qn_model_encode(model, "The mill by the river", 21, &(qn_encode_options){.bos = 1}, &ids, &n));
    qn_buffer_free(ids);
    qn_bench_options o = {.prompt = "The mill by the river",
                          .n_decode_tokens = 4,
                          .n_sequences = 3,
                          .n_runs = 1,
                          .parts = 1 << QN_BENCH_SPEED | 1 << QN_BENCH_QUALITY,
                          .max_perplexity = 1e30};
    qn_bench_report r = run(model, o);
    assert_int_equal(r.parts, o.parts);
    assert_int_equal(r.n_prompt_tokens, n);
    assert_int_equal(r.n_sequences, 3);
    assert_true(check_of(&r, "perplexity")->passed);
    assert_null(check_of(&r, "greedy_probed"));
    assert_null(check_of(&r, "state_restored"));
    assert_true(r.hit_rate == 0 && r.state_bytes == 0 && r.n_probe_events == 0);
    o.max_perplexity = 1;
    o.parts = 1 << QN_BENCH_QUALITY;
    qn_bench_report strict = run(model, o);
    assert_false(check_of(&strict, "perplexity")->passed);
    assert_true(strict.perplexity == r.perplexity);
    assert_memory_equal(strict.answers[0].ids, r.answers[0].ids, sizeof r.answers[0].ids);
    qn_model_close(&model);
}

/* Without prefixes nothing of a prompt is there again; a short context shortens what is not asked for. */
static void test_little(void **state)
{
    qn_model *model =
        open_model("models/llama", (qn_model_options){.no_prefix_cache = 1, .context_size = 24});
    qn_bench_report r = run(model, (qn_bench_options){.n_runs = 1});
    assert_int_equal(r.n_prompt_tokens + r.n_decode_tokens, 24);
    assert_true(r.hit_rate == 0);
    assert_true(check_of(&r, "perplexity")->value > 1); /* in windows */
    qn_model_close(&model);
}

static void test_refused(void **state)
{
    const struct {
        qn_bench_options o;
        const char *word;
    } bad[] = {
        {{.n_prompt_tokens = -1}, "n_prompt_tokens"},
        {{.n_prompt_tokens = 4, .prompt = "A"}, "n_prompt_tokens"},
        {{.n_prompt_tokens = 1 << 20}, "context"},
        {{.n_decode_tokens = 1}, "n_decode_tokens"},
        {{.n_prompt_tokens = 200, .n_decode_tokens = 1 << 20}, "do not fit into the context"},
        {{.n_decode_tokens = -5}, "n_decode_tokens"},
        {{.n_sequences = -1}, "n_sequences"},
        {{.n_sequences = 1 << 20}, "n_sequences"},
        {{.n_runs = QN_BENCH_RUNS_MAX + 1}, "n_runs"},
        {{.parts = 1 << QN_BENCH_COUNT}, "parts"},
        {{.max_perplexity = NAN}, "max_perplexity"},
        {{.folder = "/no/such/place", .n_prompt_tokens = 4, .parts = 1 << QN_BENCH_STATE}, "/no/such/place"},
    };
    qn_model *model = open_model("models/llama", (qn_model_options){0});
    qn_bench_report r, before;
    memset(&r, 7, sizeof r);
    before = r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_not_equal(qn_bench_run(model, &bad[i].o, &r), QN_OK);
        if (!strstr(qn_last_error(), bad[i].word)) fail_msg("%d: %s", (int)i, qn_last_error());
        assert_memory_equal(&r, &before, sizeof r);
    }
    assert_int_equal(qn_bench_run(NULL, NULL, &r), QN_E_ARG);
    assert_int_equal(qn_bench_run(model, NULL, NULL), QN_E_ARG);
    assert_string_equal(qn_bench_part_name(QN_BENCH_PROMPT_CACHE), "prompt_cache");
    assert_string_equal(qn_bench_part_name((qn_bench_part)-1), "unknown part");
    qn_model_close(&model);
}

/* A text without tokens, and sequences that leave no room to run together. */
static void test_no_room(void **state)
{
    qn_bench_report r;
    qn_model *model = open_model("models/qwen2", (qn_model_options){.context_size = 64, .parallel_slots = 2});
    assert_int_equal(qn_bench_run(model, &(qn_bench_options){.prompt = "", .n_decode_tokens = 4}, &r),
                     QN_E_ARG);
    assert_string_equal(qn_last_error(), "the prompt has no tokens");
    const qn_bench_options o = {.n_prompt_tokens = 40,
                                .n_decode_tokens = 20,
                                .n_sequences = 2,
                                .n_runs = 1,
                                .parts = 1 << QN_BENCH_SPEED};
    assert_int_equal(qn_bench_run(model, &o, &r), QN_E_ARG);
    if (!strstr(qn_last_error(), "the context is full")) fail_msg("%s", qn_last_error());
    qn_model_close(&model);
}

/* Cancels generation number `at`. */
typedef struct {
    int at, n;
} canceller;

static void cancel(void *user, qn_generation *generation)
{
    canceller *c = user;
    if (generation && c->n++ == c->at) qn_generation_cancel(generation);
}

static void test_cancelled(void **state)
{
    qn_model *model = open_model("models/llama", (qn_model_options){0});
    for (int i = 0;; i++) {
        canceller c = {.at = i};
        qn_bench_report r;
        qn_status status = qn_bench_run(
            model,
            &(qn_bench_options){
                .n_prompt_tokens = 8, .n_decode_tokens = 3, .n_runs = 1, .watch = cancel, .user = &c},
            &r);
        if (status == QN_OK) {
            assert_true(i > 10 && c.n == i);
            break;
        }
        assert_int_equal(status, QN_E_CANCELLED);
    }
    qn_model_close(&model);
}

/* A backend without probes, handles and scores gives what is left. */
static void test_absent(void **state)
{
    static qn_backend plain;
    plain = *qn_backend_get("native");
    plain.name = "plain";
    plain.probe_add = NULL;
    plain.probe_remove = NULL;
    plain.cache_forward = NULL;
    plain.logits = NULL;
    qn_test_ok(qn_backend_register(&plain));
    qn_model *model = open_model("models/llama", (qn_model_options){.backend = "plain"});
    qn_bench_report r =
        run(model, (qn_bench_options){.n_prompt_tokens = 8, .n_decode_tokens = 3, .n_runs = 1});
    assert_int_equal(r.parts, 1 << QN_BENCH_SPEED | 1 << QN_BENCH_PROMPT_CACHE | 1 << QN_BENCH_QUALITY);
    assert_true(check_of(&r, "greedy_again")->passed);
    assert_null(check_of(&r, "state_restored"));
    qn_model_close(&model);
}

static void test_memory_runs_out(void **state)
{
    const char *folder = qn_test_scratch();
    const qn_bench_options o = {.n_prompt_tokens = 4, .n_decode_tokens = 2, .n_runs = 1, .folder = folder};
    qn_model *model = open_model("models/llama", (qn_model_options){.no_prefix_cache = 1, .n_threads = 1});
    qn_bench_report r;
    qn_test_ok(qn_bench_run(model, &o, &r)); /* what is taken once is there */
    const int64_t before = qn_mem_live_blocks();
    for (int64_t i = 1, made;; i += i > 300 ? 37 : 1) {
        assert_true(i < 20000);
        made = qn_mem_allocations();
        qn_mem_fail_nth(i);
        qn_status status = qn_bench_run(model, &o, &r);
        qn_mem_fail_nth(0);
        made = qn_mem_allocations() - made;
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_true(status == QN_OK || status == QN_E_NOMEM);
        if (made < i) break;
    }
    qn_model_close(&model);
    assert_int_equal(qn_test_count_files(folder), 0);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),           cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_little),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cancelled),       cmocka_unit_test(test_absent),
        cmocka_unit_test(test_memory_runs_out), cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
