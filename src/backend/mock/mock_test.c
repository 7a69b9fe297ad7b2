/* The backend mock: found by its name alone, made of a seed alone, and a whole model to whoever uses it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/scratch.h"

enum { N = 200 };

static qn_model *open_mock(const char *path)
{
    qn_model *model = NULL;
    qn_test_ok(qn_model_open(path, &(qn_model_options){.backend = "mock", .n_threads = 1}, &model));
    return model;
}

/* At most N tokens of an answer; *end is its reason. */
static int64_t answer(qn_model *model, const qn_prompt *prompt, qn_generate_options o, int32_t *ids,
                      qn_end *end)
{
    qn_generation *g;
    qn_token t;
    int64_t n = 0;
    o.max_tokens = N;
    qn_test_ok(qn_generation_open(model, prompt, &o, &g));
    for (;;) {
        qn_test_ok(qn_generation_next(g, &t));
        if (t.end != QN_END_NONE) break;
        ids[n++] = t.id;
    }
    *end = t.end;
    qn_generation_close(g);
    return n;
}

static void test_by_name_only(void **state)
{
    qn_model *model = NULL;
    assert_string_equal(qn_backend_get(NULL)->name, "native");
    for (size_t i = 0; qn_backend_name(i); i++) assert_string_not_equal(qn_backend_name(i), "mock");
    assert_non_null(qn_backend_get("mock"));
    assert_int_equal(qn_backend_set_default("mock"), QN_E_NOT_FOUND);
    assert_int_equal(qn_backend_register(&(qn_backend){.name = "mock",
                                                       .open = qn_backend_get(NULL)->open,
                                                       .close = qn_backend_get(NULL)->close}),
                     QN_E_ARG);
    assert_int_not_equal(qn_model_open("mock", NULL, &model), QN_OK);
    assert_int_not_equal(qn_model_open("7", NULL, &model), QN_OK);
    assert_null(model);
}

static void test_paths(void **state)
{
    static const char *const bad[] = {"",
                                      "x",
                                      "mock7",
                                      "7x",
                                      "-1",
                                      " 7",
                                      "7,",
                                      "7,end,end",
                                      "mock,ends",
                                      "18446744073709551616",
                                      "7,vocab=",
                                      "7,vocab=511",
                                      "7,vocab=1000001",
                                      "7,vocab=600,vocab=600",
                                      "7,vocab=99999999999999999999",
                                      "mock,vocab=-600",
                                      "models/llama"};
    qn_model *model = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(qn_model_open(bad[i], &(qn_model_options){.backend = "mock"}, &model), QN_E_ARG);
        assert_non_null(strstr(qn_last_error(), "a seed"));
        assert_null(model);
    }
    static const char *const good[] = {"mock",
                                       "0",
                                       "18446744073709551615",
                                       "mock,end",
                                       "7,end",
                                       "mock,vocab=512",
                                       "7,vocab=600,end",
                                       "7,end,vocab=600"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        qn_model_info info;
        model = open_mock(good[i]);
        qn_test_ok(qn_model_get_info(model, &info));
        assert_string_equal(info.path, good[i]);
        assert_string_equal(info.backend, "mock");
        assert_string_equal(info.packed, "");
        assert_string_equal(info.notes, "");
        const char *vocab = strstr(good[i], "vocab=");
        assert_int_equal(info.vocab_size, vocab ? strtol(vocab + strlen("vocab="), NULL, 10) : 32000);
        assert_true(info.has_chat_template);
        qn_model_close(&model);
    }
}

static void test_seeds(void **state)
{
    static int32_t first[N], again[N], named[N], other[N];
    static const char *const paths[] = {"1", "1", "mock", "2"};
    int32_t *const ids[] = {first, again, named, other};
    for (int i = 0; i < 4; i++) {
        qn_end end;
        qn_model *model = open_mock(paths[i]);
        assert_int_equal(
            answer(model, &(qn_prompt){.text = "A mill"}, (qn_generate_options){0}, ids[i], &end), N);
        assert_int_equal(end, QN_END_LENGTH);
        qn_model_close(&model);
    }
    assert_memory_equal(first, again, sizeof first);
    assert_memory_equal(first, named, sizeof first);
    int n_equal = 0;
    for (int i = 0; i < N; i++) n_equal += first[i] == other[i];
    assert_true(n_equal < N / 10);
}

/* Greedy text is no circle, depends on the whole prompt, and gives its own tokens again. */
static void test_text(void **state)
{
    static int32_t ids[N], others[N];
    static char near[] = "One long prompt of which the first letter alone is another one";
    qn_model *model = open_mock("5");
    qn_end end;
    for (int round = 0; round < 2; round++) {
        qn_generate_options o = {.temperature = (float)round, .seed = 3};
        assert_int_equal(answer(model, &(qn_prompt){.text = near}, o, ids, &end), N);
        int n_distinct = 0;
        for (int i = 0; i < N; i++) {
            int seen = 0;
            for (int j = 0; j < i; j++) seen |= ids[j] == ids[i];
            n_distinct += !seen;
        }
        assert_true(n_distinct > N / 2);
        near[0] = 'o';
        assert_int_equal(answer(model, &(qn_prompt){.text = near}, o, others, &end), N);
        assert_memory_not_equal(ids, others, sizeof ids);
        near[0] = 'O';

        char *text;
        size_t n_bytes;
        int32_t *back;
        int64_t n_back;
        qn_test_ok(qn_model_decode(model, ids, N, NULL, &text, &n_bytes));
        qn_test_ok(qn_model_encode(model, text, n_bytes, NULL, &back, &n_back));
        assert_int_equal(n_back, N);
        assert_memory_equal(back, ids, sizeof ids);
        qn_buffer_free(back);
        qn_buffer_free(text);
    }
    static const char all[] = "\x01\x7f \n\t <|end|> gr\xc3\xbc\xc3\x9f "
                              "\xf0\x9f\x98\x80 <|user|>";
    char *text;
    int32_t *some;
    int64_t n;
    qn_test_ok(qn_model_encode(model, all, sizeof all - 1, NULL, &some, &n));
    qn_test_ok(qn_model_decode(model, some, n, NULL, &text, NULL));
    assert_string_equal(text, all);
    qn_buffer_free(text);
    qn_buffer_free(some);
    qn_model_close(&model);
}

static void test_chat(void **state)
{
    static int32_t ids[N];
    static const char messages[] =
        "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hello\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"content\":\"3\"}]";
    qn_model *model = open_mock("7,end");
    const qn_prompt prompt = {.messages_json = messages, .tools_json = "[{\"type\":\"function\"}]"};
    char *text;
    qn_test_ok(qn_chat_render(model, &prompt, &text, NULL, NULL));
    assert_string_equal(
        text, "<|begin|><|system|>Tools: [{\"type\": \"function\"}]<|end|><|system|>Be brief.<|end|>"
              "<|user|>Hello<|end|><|assistant|>[{\"type\": \"function\", \"function\": "
              "{\"name\": \"f\", \"arguments\": {}}}]<|end|><|tool|>3<|end|><|assistant|>");
    qn_buffer_free(text);
    int n_stopped = 0;
    int64_t n_tokens = 0;
    for (uint64_t seed = 0; seed < 40; seed++) { /* 0: greedy */
        qn_end end;
        qn_generate_options o = {.temperature = seed ? 1 : 0, .seed = seed};
        n_tokens += answer(model, &prompt, o, ids, &end);
        n_stopped += end == QN_END_STOP;
        assert_true(end == QN_END_STOP || end == QN_END_LENGTH);
    }
    assert_true(n_stopped >= 30 && n_tokens >= 200);
    qn_model_close(&model);

    model = open_mock("7");
    for (uint64_t seed = 0; seed < 10; seed++) {
        qn_end end;
        qn_generate_options o = {.temperature = seed ? 1 : 0, .seed = seed};
        assert_int_equal(answer(model, &prompt, o, ids, &end), N);
    }
    qn_model_close(&model);
}

static void test_other_calls(void **state)
{
    const int32_t ids[] = {300, 301, 40};
    qn_model *model = open_mock("mock");
    qn_memory memory;
    qn_test_ok(qn_model_get_memory(model, &memory));
    assert_true(memory.weights_bytes > 0);
    qn_test_ok(qn_model_clear_cache(model));
    assert_true(qn_model_is_stop_id(model, 257));
    assert_false(qn_model_is_stop_id(model, 300));
    assert_int_equal(qn_adapter_unload(model, "does not exist"), QN_E_NOT_FOUND);
    char *text;
    qn_test_ok(qn_model_decode(model, ids, 3, NULL, &text, NULL));
    assert_int_equal(text[0], ' ');
    qn_buffer_free(text);
    qn_model_close(&model);
}

/* Makes folder the place for temporary files; returns what move_back needs. */
static char *move_place(const char *folder)
{
    const char *old = getenv("TMPDIR");
    char *kept = old ? qn_strdup(old) : NULL;
    setenv("TMPDIR", folder, 1);
    return kept;
}

static void move_back(char *kept)
{
    if (kept)
        setenv("TMPDIR", kept, 1);
    else
        unsetenv("TMPDIR");
    qn_free(kept);
}

/* Every type of keys and values; nothing is left in the place for temporary files, which must be one. */
static void test_opening(void **state)
{
    for (int type = QN_KV_AUTO; type <= QN_KV_Q4_0; type++) {
        qn_model *model = NULL;
        int32_t ids[N];
        qn_end end;
        qn_test_ok(qn_model_open("mock", &(qn_model_options){.backend = "mock", .kv_type = (qn_kv_type)type},
                                 &model));
        assert_int_equal(answer(model, &(qn_prompt){.text = "A"}, (qn_generate_options){0}, ids, &end), N);
        qn_model_close(&model);
    }
    const char *folder = qn_test_scratch();
    char *kept = move_place(folder);
    qn_model *model = open_mock("mock");
    assert_int_equal(qn_test_count_files(folder), 0);
    qn_model_close(&model);
    setenv("TMPDIR", qn_test_path(folder, "no such place"), 1);
    assert_int_equal(qn_model_open("mock", &(qn_model_options){.backend = "mock"}, &model), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "no such place"));
    move_back(kept);
    qn_test_remove(folder);
}

static void test_memory_runs_out(void **state)
{
    const char *folder = qn_test_scratch();
    char *kept = move_place(folder);
    int64_t before = qn_mem_live_blocks(), n = 1;
    for (qn_status status = QN_E_NOMEM; status != QN_OK; n += n < 60 ? 1 : 97) {
        qn_model *model = NULL;
        qn_mem_fail_nth(n);
        status = qn_model_open("mock", &(qn_model_options){.backend = "mock", .n_threads = 1}, &model);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_model_close(&model);
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_int_equal(qn_test_count_files(folder), 0);
    }
    assert_true(n > 100);
    move_back(kept);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_name_only), cmocka_unit_test(test_paths),
        cmocka_unit_test(test_seeds),        cmocka_unit_test(test_text),
        cmocka_unit_test(test_chat),         cmocka_unit_test(test_other_calls),
        cmocka_unit_test(test_opening),      cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
