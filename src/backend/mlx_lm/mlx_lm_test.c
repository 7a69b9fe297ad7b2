/* The backend mlx_lm with the bridge as it is and, in the package's place, one that does what the prompt says
 * (tests/devices/fake_mlx). The real package: tests/cli/test_mlx_lm.py. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <pthread.h>
#include <quern/quern.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tests/engine/resident.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

static qn_model *model;
static const char *cache;

static qn_status open_as(const char *path, const char *python, int background, qn_model **out)
{
    return qn_model_open(
        path, &(qn_model_options){.backend = "mlx_lm", .python = python, .background = background}, out);
}

static int set_up(void **state)
{
    (void)state;
    cache = qn_test_scratch();
    setenv("QUERN_CACHE", cache, 1);
    setenv("PYTHONPATH", "tests/devices/fake_mlx", 1);
    qn_test_ok(open_as(qn_test_need_fixture("models/llama"), NULL, 0, &model));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    qn_model_close(&model);
    qn_test_remove(cache);
    return 0;
}

typedef struct {
    char text[4096];
    int64_t n;
    qn_end end;
    qn_status status;
} answer;

static answer finish(qn_generation *g)
{
    answer a = {0};
    qn_token t;
    size_t at = 0;
    do {
        a.status = qn_generation_next(g, &t);
        if (at + t.text_bytes < sizeof a.text) memcpy(a.text + at, t.text, t.text_bytes), at += t.text_bytes;
        a.n += t.end == QN_END_NONE;
    } while (a.status == QN_OK && t.end == QN_END_NONE);
    a.end = t.end;
    qn_generation_close(g);
    return a;
}

static answer ask(const char *text, const qn_generate_options *options)
{
    qn_generation *g;
    qn_test_ok(qn_generate(model, text, options, &g));
    return finish(g);
}

static void answers(void **state)
{
    (void)state;
    answer a = ask("say one| two|\xe6\x97\xa5\xe6\x9c\xac|\xe2\x80\xa8\"\\|", NULL);
    assert_int_equal(a.end, QN_END_STOP);
    assert_int_equal(a.n, 5);
    assert_string_equal(a.text, "one two\xe6\x97\xa5\xe6\x9c\xac\xe2\x80\xa8\"\\");
    a = ask("count 100", &(qn_generate_options){.max_tokens = 3});
    assert_int_equal(a.end, QN_END_LENGTH);
    assert_string_equal(a.text, "0 1 2 ");
    const char *stops[] = {"lo wor", "zzz"};
    a = ask("say hel|lo| wo|rld|z", &(qn_generate_options){.stop_strings = stops, .n_stop_strings = 2});
    assert_int_equal(a.end, QN_END_STOP_STRING);
    assert_string_equal(a.text, "hel");
    a = ask("say hel|lo| zz", &(qn_generate_options){.stop_strings = stops, .n_stop_strings = 2});
    assert_int_equal(a.end, QN_END_STOP);
    assert_string_equal(a.text, "hello zz");
    const int32_t stop_ids[] = {12};
    a = ask("count 9", &(qn_generate_options){.stop_ids = stop_ids, .n_stop_ids = 1});
    assert_int_equal(a.end, QN_END_STOP);
    assert_string_equal(a.text, "0 1 ");
    a = ask("noise", NULL); /* what libraries print is no answer */
    assert_string_equal(a.text, "ok");
    const qn_message chat[] = {{"system", "x"}, {"user", "say hi"}};
    qn_generation *g;
    qn_test_ok(qn_chat(model, chat, 2, NULL, &g));
    assert_string_equal(finish(g).text, "hi");
}

static void fails(const char *text, qn_status status, const char *words)
{
    answer a = ask(text, NULL);
    assert_int_equal(a.status, status);
    assert_int_equal(a.end, QN_END_ERROR);
    if (!strstr(qn_last_error(), words)) fail_msg("%s: %s", text, qn_last_error());
    assert_string_equal(ask("say on", NULL).text, "on"); /* and it goes on */
}

static void failures_are_one_requests(void **state)
{
    (void)state;
    fails("throw", QN_E_DEVICE, "RuntimeError: the model does not want to");
    fails("die", QN_E_DEVICE, "signal 9");
    fails("garbage", QN_E_DEVICE, "an invalid answer");
    fails("long", QN_E_DEVICE, "without a line end");
    const qn_message chat[] = {{"user", "x"}, {"assistant", "y"}};
    qn_generation *g;
    qn_test_ok(qn_chat(model, chat, 2, NULL, &g));
    answer a = finish(g);
    assert_int_equal(a.status, QN_E_DEVICE);
    assert_non_null(strstr(qn_last_error(), "not the user's"));
}

static void others_wait_in_order(void **state)
{
    (void)state;
    enum { N = 5 };
    qn_generation *g[N];
    qn_token t;
    for (int i = 0; i < N; i++) {
        char text[32];
        snprintf(text, sizeof text, "say number %d", i);
        qn_test_ok(qn_generate(model, i == 2 ? "die" : text, NULL, &g[i]));
    }
    qn_generation_cancel(g[3]);
    assert_string_equal(finish(g[4]).text, "number 4"); /* nobody need read the others' first */
    assert_int_equal(finish(g[3]).end, QN_END_CANCELLED);
    assert_int_equal(finish(g[2]).status, QN_E_DEVICE);
    assert_string_equal(finish(g[1]).text, "number 1");
    qn_generation_close(g[0]); /* unread */
    qn_test_ok(qn_generate(model, "count 1000000", NULL, &g[0]));
    qn_test_ok(qn_generate(model, "say next", NULL, &g[1]));
    for (int i = 0; i < 5; i++) qn_test_ok(qn_generation_next(g[0], &t));
    qn_generation_close(g[0]); /* under way */
    assert_string_equal(finish(g[1]).text, "next");
}

static void ends_when_told(void **state)
{
    (void)state;
    qn_generation *g;
    qn_token t;
    qn_test_ok(qn_generate(model, "count 1000000", NULL, &g));
    for (int i = 0; i < 5; i++) {
        qn_test_ok(qn_generation_next(g, &t));
        assert_int_equal(t.id, 10 + i);
    }
    qn_generation_cancel(g);
    int64_t start = qn_clock_ns();
    answer a = finish(g);
    assert_int_equal(a.end, QN_END_CANCELLED);
    assert_true(a.n <= QN_TOKENS_AHEAD);
    print_message("cancelled after %.0f ms\n", (double)(qn_clock_ns() - start) * 1e-6);
    a = ask("count 1000000", &(qn_generate_options){.deadline_ms = 100});
    assert_int_equal(a.end, QN_END_DEADLINE);
    qn_test_ok(qn_generate(model, "count 1000000", NULL, &g));
    qn_model_close(&model); /* while it is computed */
    assert_int_equal(qn_generation_next(g, &t), QN_E_CLOSED);
    qn_generation_close(g);
    qn_test_ok(open_as(qn_test_need_fixture("models/llama"), NULL, 0, &model));
}

static atomic_int n_notified;

static void note(void *user)
{
    (void)user;
    atomic_fetch_add(&n_notified, 1);
}

static void polled(void **state)
{
    (void)state;
    qn_generation *g;
    qn_token t;
    int is_there, n = 0;
    atomic_store(&n_notified, 0);
    qn_test_ok(qn_generate(model, "count 200", &(qn_generate_options){.notify = note}, &g));
    for (t.end = QN_END_NONE; t.end == QN_END_NONE;) {
        qn_test_ok(qn_generation_poll(g, &t, &is_there));
        if (!is_there) usleep(1000);
        n += is_there;
    }
    qn_generation_close(g);
    assert_int_equal(n, 201);
    assert_int_equal(atomic_load(&n_notified), 201);
}

static void long_prompts(void **state)
{
    (void)state;
    size_t n = 10 << 20;
    char *text = qn_alloc(n + 1), want[32];
    memset(text, 'x', n);
    memcpy(text, "length ", 7);
    text[n] = 0;
    snprintf(want, sizeof want, "%zu", n);
    answer a = ask(text, NULL);
    qn_free(text);
    assert_string_equal(a.text, want);
}

static void only_native(qn_status status)
{
    assert_int_equal(status, QN_E_UNSUPPORTED);
    if (!strstr(qn_last_error(), "mlx_lm")) fail_msg("%s", qn_last_error());
}

static void what_it_has_not(void **state)
{
    (void)state;
    const int32_t id[] = {1, 2};
    const qn_ids rows[] = {{id, 2}, {id, 2}};
    qn_generation *g;
    const char *file = qn_test_need_fixture("models/llama/config.json");
    qn_model *other;
    only_native(qn_generation_open(model, &(qn_prompt){.rows = rows, .n_rows = 2}, NULL, &g));
    assert_non_null(strstr(qn_last_error(), "native"));
    only_native(qn_generate(model, "x", &(qn_generate_options){.logprobs = 1}, &g));
    only_native(qn_generate(model, "x", &(qn_generate_options){.rotate = 1}, &g));
    const qn_generate_options steps[] = {{.repeat_last_n = 4},
                                         {.typical_p = 0.5f},
                                         {.top_n_sigma = 1},
                                         {.xtc_probability = 1},
                                         {.dynatemp_range = 1},
                                         {.mirostat = 2},
                                         {.dry_multiplier = 1},
                                         {.bad_ids = rows, .n_bad_ids = 1},
                                         {.allowed_ids = id, .n_allowed_ids = 2}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        only_native(qn_generate(model, "x", &steps[i], &g));
    only_native(qn_model_logits(model, rows, 1, NULL, (qn_logits_fn *)1, NULL));
    only_native(open_as(file, NULL, 0, &other));
    qn_model_info info;
    qn_test_ok(qn_model_get_info(model, &info));
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.backend, "mlx_lm");
    assert_true(info.vocab_size > 0 && info.num_layers > 0 && info.hidden_size > 0);
    qn_generation_stats s;
    qn_token t;
    qn_test_ok(qn_generate(model, "count 3", NULL, &g));
    for (t.end = QN_END_NONE; t.end == QN_END_NONE;) qn_test_ok(qn_generation_next(g, &t));
    qn_test_ok(qn_generation_get_stats(g, &s));
    qn_generation_close(g);
    assert_int_equal(s.n_generated_tokens, 3);
    assert_int_equal(s.n_prompt_tokens, 8);
    assert_true(s.prefill_tokens_per_sec > 0 && s.decode_tokens_per_sec == 20 && s.seed != 0);
    int32_t *ids;
    int64_t n;
    char *text;
    qn_test_ok(qn_model_encode(model, "hello", 5, NULL, &ids, &n));
    qn_test_ok(qn_model_decode(model, ids, n, NULL, &text, NULL));
    assert_string_equal(text, "hello");
    qn_buffer_free(text);
    qn_buffer_free(ids);
}

static void refuses(const char *python, const char *pythonpath, const char *words)
{
    qn_model *other = NULL;
    setenv("PYTHONPATH", pythonpath, 1);
    qn_status status = open_as(qn_test_need_fixture("models/llama"), python, 0, &other);
    setenv("PYTHONPATH", "tests/devices/fake_mlx", 1);
    assert_true(status != QN_OK);
    assert_null(other);
    if (!strstr(qn_last_error(), words)) fail_msg("%s: \"%s\" is not in: %s", python, words, qn_last_error());
}

static void strange_pythons(void **state)
{
    (void)state;
    refuses("no-such-python", "tests/devices/fake_mlx", "no program no-such-python");
    refuses("false", "tests/devices/fake_mlx", "ended with status 1");
    refuses("cat", "tests/devices/fake_mlx", "an invalid answer"); /* shows the script */
    refuses("sh", "tests/devices/fake_mlx", "last output");
    refuses("python3", "/nonexistent", "python3 -m pip install");
}

static int count(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

/* QUERN_MLX_ROUNDS and QUERN_MLX_MODEL: with another package and model (tests/cli/test_mlx_lm.py). */
static void nothing_is_left(void **state)
{
    (void)state;
    const char *rounds = getenv("QUERN_MLX_ROUNDS"), *own = getenv("QUERN_MLX_MODEL");
    const char *path = own ? own : qn_test_need_fixture("models/llama");
    int64_t blocks = 0;
    long kib = 0;
    int files = 0, threads = 0, n = rounds ? (int)strtol(rounds, NULL, 10) : 6;
    for (int round = 0; round < n; round++) {
        if (round == n / 2) kib = qn_test_resident_kib();
        qn_model *other;
        qn_generation *g;
        if (round == 1) {
            blocks = qn_mem_live_blocks();
            files = count("/proc/self/fd");
            threads = count("/proc/self/task");
        }
        qn_test_ok(open_as(path, NULL, round & 1, &other));
        qn_test_ok(qn_generate(other, round & 2 ? "count 100000" : "say x", NULL, &g));
        qn_model_close(&other);
        qn_generation_close(g);
    }
    assert_int_equal(qn_mem_live_blocks(), blocks);
    assert_int_equal(count("/proc/self/fd"), files);
    assert_int_equal(count("/proc/self/task"), threads);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    (void)kib; /* a sanitizer keeps what was freed */
#else
    assert_true(qn_test_resident_kib() - kib < 1024);
#endif
}

static void a_folder_of_others(void **state)
{
    (void)state;
    const char *own = qn_test_scratch();
    char folder[512];
    snprintf(folder, sizeof folder, "%s/mlx_lm", own);
    qn_model *other;
    setenv("QUERN_CACHE", own, 1);
    qn_test_ok(open_as(qn_test_need_fixture("models/llama"), NULL, 0, &other));
    qn_model_close(&other);
    assert_int_equal(chmod(folder, 0777), 0);
    assert_int_equal(open_as(qn_test_need_fixture("models/llama"), NULL, 0, &other), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "other users can write"));
    assert_int_equal(chmod(folder, 0700), 0);
    qn_test_write_text(folder, "bridge.py", "import os; os._exit(7)");
    qn_test_ok(open_as(qn_test_need_fixture("models/llama"), NULL, 0, &other)); /* it is put right */
    qn_model_close(&other);
    setenv("QUERN_CACHE", cache, 1);
    qn_test_remove(own);
}

static void memory_fails(void **state)
{
    (void)state;
    const char *path = qn_test_need_fixture("models/qwen3");
    for (int64_t n = 1;; n += n < 40 ? 1 : 97) { /* each failed opening costs a start of Python */
        int64_t before = qn_mem_live_blocks();
        qn_model *other = NULL;
        qn_generation *g = NULL;
        qn_mem_fail_nth(n);
        qn_status status = open_as(path, NULL, 0, &other);
        if (status == QN_OK) status = qn_generate(other, "say x", NULL, &g);
        if (status == QN_OK) {
            answer a = finish(g);
            status = a.status;
            if (status == QN_OK) assert_string_equal(a.text, "x");
        }
        qn_mem_fail_nth(0);
        qn_model_close(&other);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) break;
        assert_true(n < 20000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),         cmocka_unit_test(failures_are_one_requests),
        cmocka_unit_test(ends_when_told),  cmocka_unit_test(others_wait_in_order),
        cmocka_unit_test(polled),          cmocka_unit_test(long_prompts),
        cmocka_unit_test(what_it_has_not), cmocka_unit_test(strange_pythons),
        cmocka_unit_test(nothing_is_left), cmocka_unit_test(a_folder_of_others),
        cmocka_unit_test(memory_fails),
    };
    const struct CMUnitTest rounds[] = {cmocka_unit_test(nothing_is_left)};
    if (getenv("QUERN_MLX_ROUNDS")) return cmocka_run_group_tests(rounds, NULL, NULL);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
