/* When memory runs out at any one point: an error, nothing left behind, and the next call works and gives
 * what it gave before. Blocks, maps of pages, threads and the JSON library's own blocks all count as points;
 * each is tried up to N_EACH, then a sample. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "base/map.h"
#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { N_EACH = 2000, N_STEP = 97 };

static const char *const models[] = {"models/llama",       "models/qwen3_5",
                                     "models/deepseek_v3", "models/gpt_oss",
                                     "models/qwen3_moe",   "quant/gguf_models/gemma3-Q4_0.gguf"};
static const int32_t prompt_ids[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26};
static const char messages[] = "[{\"role\":\"user\",\"content\":\"What does a mill grind?\"}]";

/* What calls gave: the bits of it all. */
typedef struct {
    const char *path;
    qn_model *model;
    uint64_t got;
} subject;

static void note(subject *s, const void *bytes, size_t n)
{
    s->got = qn_hash_bytes(bytes, n, s->got);
}

/* ---- the calls ---------------------------------------------------------------------------------------- */

static qn_status open_model(subject *s)
{
    qn_model_options o = {.n_threads = 1, .context_size = 256, .parallel_slots = 2};
    return qn_model_open(s->path, &o, &s->model);
}

static qn_status encode(subject *s)
{
    static const char text[] = "The quern grinds 12,345 grains a day; d\xc3\xa9j\xc3\xa0 vu.\n\tAnd a tab.";
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    char *back = NULL;
    size_t n_bytes = 0;
    qn_status status = qn_model_encode(s->model, text, sizeof text - 1, NULL, &ids, &n_ids);
    if (status == QN_OK) status = qn_model_decode(s->model, ids, n_ids, NULL, &back, &n_bytes);
    if (status == QN_OK) note(s, ids, (size_t)n_ids * sizeof *ids);
    if (status == QN_OK) note(s, back, n_bytes);
    qn_buffer_free(ids);
    qn_buffer_free(back);
    return status;
}

static qn_status render(subject *s)
{
    const qn_prompt chat = {.messages_json = messages, .variables_json = "{\"enable_thinking\":false}"};
    char *text = NULL;
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    qn_status status = qn_chat_render(s->model, &chat, &text, &ids, &n_ids);
    if (status == QN_OK) note(s, text, strlen(text));
    if (status == QN_OK) note(s, ids, (size_t)n_ids * sizeof *ids);
    qn_buffer_free(text);
    qn_buffer_free(ids);
    return status;
}

static qn_status read_all(subject *s, const qn_prompt *prompt, int64_t n_rows, int64_t max_tokens)
{
    const char *stop = "never";
    qn_generate_options o = {.max_tokens = max_tokens,
                             .temperature = 1,
                             .top_p = 0.9f,
                             .seed = 3,
                             .repeat_penalty = 1.1f,
                             .stop_strings = &stop,
                             .n_stop_strings = 1,
                             .ignore_eos = 1};
    subject of_row[3] = {{0}}; /* rows may come in another order */
    qn_generation *g = NULL;
    qn_status status = qn_generation_open(s->model, prompt, &o, &g);
    for (int64_t n_open = n_rows; status == QN_OK && n_open > 0;) {
        qn_token t;
        status = qn_generation_next(g, &t);
        n_open -= t.end != QN_END_NONE;
        if (status == QN_OK) note(&of_row[t.row], &t.id, sizeof t.id);
        if (status == QN_OK) note(&of_row[t.row], t.text, t.text_bytes);
    }
    for (int64_t i = 0; i < n_rows; i++) note(s, &of_row[i].got, sizeof of_row[i].got);
    qn_generation_close(g);
    return status;
}

static qn_status answer(subject *s)
{
    return read_all(s, &(qn_prompt){.messages_json = messages}, 1, 3);
}

/* Three rows over two places. */
static qn_status rows(subject *s)
{
    const qn_ids ids[3] = {{prompt_ids, 12}, {prompt_ids + 2, 7}, {prompt_ids + 5, 1}};
    return read_all(s, &(qn_prompt){.rows = ids, .n_rows = 3}, 3, 2);
}

static qn_status take_logits(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    subject *s = user;
    qn_model_info info;
    QN_TRY(qn_model_get_info(s->model, &info));
    /* A sum over positions: blocks may be cut elsewhere, and those of several rows come in another order. */
    for (int64_t i = 0; i < n; i++)
        s->got += qn_hash_bytes(logits + i * info.vocab_size, (size_t)info.vocab_size * sizeof *logits,
                                (uint64_t)(row * 1000 + position + i));
    return QN_OK;
}

static qn_status logits(subject *s)
{
    const qn_ids ids[2] = {{prompt_ids, 12}, {prompt_ids + 2, 7}};
    return qn_model_logits(s->model, ids, 2, NULL, take_logits, s);
}

static qn_status limits(subject *s)
{
    qn_memory memory;
    QN_TRY(qn_model_set_wired_limit(s->model, 1, NULL)); /* less than a page: nothing */
    QN_TRY(qn_model_set_memory_limit(s->model, 0, NULL));
    QN_TRY(qn_model_clear_cache(s->model));
    QN_TRY(qn_model_get_memory(s->model, &memory));
    note(s, &memory.cache_memory_bytes, sizeof memory.cache_memory_bytes);
    return QN_OK;
}

/* ---- one failure after the other ----------------------------------------------------------------------- */

typedef qn_status call_fn(subject *s);

static const struct {
    const char *name;
    call_fn *fn;
} calls[] = {{"encode", encode}, {"render", render}, {"answer", answer},
             {"rows", rows},     {"logits", logits}, {"limits", limits}};

/* Whether allocation n of the call was reached; checks what a failure must look like: an error that says so,
 * or, where others gave memory back, what it always gives. */
static int fails_well(const char *name, call_fn *fn, subject *s, int64_t n, uint64_t expected)
{
    int64_t made = qn_mem_allocations();
    qn_mem_fail_nth(n);
    qn_status status = fn(s);
    qn_mem_fail_nth(0);
    if (qn_mem_allocations() - made < n) {
        assert_int_equal(status, QN_OK);
        return 0;
    }
    if (status == QN_OK && (fn == rows || fn == logits) && s->got == expected) return 1;
    if (status != QN_E_NOMEM)
        fail_msg("%s, allocation %d of %s failed: status %s, %s", s->path, (int)n, name,
                 qn_status_name(status), qn_last_error());
    assert_true(strlen(qn_last_error()) > 5);
    return 1;
}

static int64_t next_point(int64_t n)
{
    return n + (n < N_EACH ? 1 : N_STEP);
}

static void while_it_answers(void **state)
{
    subject s = {.path = qn_test_need_fixture(*state)};
    int64_t before = qn_mem_live_blocks();
    qn_test_ok(open_model(&s));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (calls[i].fn == render || calls[i].fn == answer) {
            qn_model_info info;
            qn_test_ok(qn_model_get_info(s.model, &info));
            if (!info.has_chat_template) continue;
        }
        s.got = 0;
        qn_test_ok(calls[i].fn(&s));
        uint64_t expected = s.got;
        int64_t n = 1, live = qn_mem_live_blocks();
        s.got = 0;
        while (fails_well(calls[i].name, calls[i].fn, &s, n, expected)) {
            if (qn_mem_live_blocks() != live)
                fail_msg("%s, allocation %d of %s failed: %d blocks leaked", s.path, (int)n, calls[i].name,
                         (int)(qn_mem_live_blocks() - live));
            s.got = 0;
            qn_test_ok(calls[i].fn(&s));
            if (s.got != expected)
                fail_msg("%s: after the failure of allocation %d %s gave something else", s.path, (int)n,
                         calls[i].name);
            s.got = 0;
            n = next_point(n);
        }
        print_message("%s: %s: %d allocations\n", s.path, calls[i].name, (int)n - 1);
    }
    qn_model_close(&s.model);
    assert_int_equal(qn_mem_live_blocks(), before);
}

static void while_it_opens(void **state)
{
    subject s = {.path = qn_test_need_fixture(*state)};
    int64_t before = qn_mem_live_blocks(), n = 1;
    qn_test_ok(open_model(&s));
    s.got = 0;
    qn_test_ok(rows(&s));
    uint64_t expected = s.got;
    qn_model_close(&s.model);
    while (fails_well("open", open_model, &s, n, 0)) {
        if (qn_mem_live_blocks() != before)
            fail_msg("%s, allocation %d of open failed: %d blocks leaked", s.path, (int)n,
                     (int)(qn_mem_live_blocks() - before));
        assert_null(s.model);
        qn_test_ok(open_model(&s));
        s.got = 0;
        qn_test_ok(rows(&s));
        if (s.got != expected)
            fail_msg("%s: after the failure of allocation %d it gave something else", s.path, (int)n);
        qn_model_close(&s.model);
        n = next_point(n);
    }
    qn_model_close(&s.model);
    assert_int_equal(qn_mem_live_blocks(), before);
    print_message("%s: open: %d allocations\n", s.path, (int)n - 1);
    assert_true(n > 100);
}

int main(void)
{
    enum { N = sizeof models / sizeof *models };
    static char names[2 * N][96];
    static struct CMUnitTest tests[2 * N];
    for (int i = 0; i < N; i++) {
        const char *slash = strrchr(models[i], '/') + 1;
        void *model = (void *)(uintptr_t)models[i];
        snprintf(names[i], sizeof names[i], "while %s opens", slash);
        snprintf(names[N + i], sizeof names[i], "while %s answers", slash);
        tests[i] = (struct CMUnitTest){names[i], while_it_opens, NULL, NULL, model};
        tests[N + i] = (struct CMUnitTest){names[N + i], while_it_answers, NULL, NULL, model};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
