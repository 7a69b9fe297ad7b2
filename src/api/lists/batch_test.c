/* Batches on a tiny model: each answer is that of its prompt alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <quern/quern.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"

enum { TOKENS = 24, MANY = 150 };

typedef struct {
    int32_t ids[TOKENS];
    float logprobs[TOKENS];
    int64_t n;
    qn_buf text;
    qn_end end;
} answer;

static const int32_t ids[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26};

static qn_model *open_model(qn_model_options o)
{
    qn_model *model = NULL;
    if (qn_model_open(qn_test_need_fixture("models/llama"), &o, &model) != QN_OK)
        fail_msg("%s", qn_last_error());
    return model;
}

static void generate(qn_model *model, const qn_prompt *prompt, const qn_generate_options *o, answer *a)
{
    qn_generation *g = NULL;
    memset(a, 0, sizeof *a);
    if (qn_generation_open(model, prompt, o, &g) != QN_OK) fail_msg("%s", qn_last_error());
    while (a->end == QN_END_NONE) {
        qn_token t;
        assert_int_equal(qn_generation_next(g, &t), QN_OK);
        if (t.id >= 0) {
            a->ids[a->n] = t.id;
            a->logprobs[a->n++] = t.logprob;
        }
        qn_buf_append(&a->text, t.text, t.text_bytes);
        a->end = t.end;
    }
    qn_generation_close(g);
}

static void check_answer(const qn_batch_result *r, const answer *a)
{
    assert_int_equal(r->status, QN_OK);
    assert_null(r->message);
    assert_int_equal(r->end, a->end);
    assert_int_equal(r->n_ids, a->n);
    assert_memory_equal(r->ids, a->ids, (size_t)a->n * sizeof *a->ids);
    if (r->logprobs) assert_memory_equal(r->logprobs, a->logprobs, (size_t)a->n * sizeof *a->logprobs);
    assert_int_equal(r->text_bytes, a->text.length);
    if (a->text.length) assert_memory_equal(r->text, a->text.data, a->text.length);
    assert_int_equal(r->text[r->text_bytes], 0);
}

/* Texts, chats and ids, more than one generation takes, some of them no good. */
static void test_as_alone(void **state)
{
    static qn_prompt prompts[MANY];
    static qn_ids rows[MANY];
    const qn_message message = {"user", "Tell me of the mill."};
    const int32_t outside = 1 << 20;
    const qn_ids bad = {&outside, 1}, none = {ids, 0};
    const char *const stops[] = {"e"};
    for (int i = 0; i < MANY; i++) {
        rows[i] = (qn_ids){ids + i % 5, 1 + i % 7};
        prompts[i] = (qn_prompt){.rows = &rows[i], .n_rows = 1};
        if (i % 10 == 3) prompts[i] = (qn_prompt){.text = i % 20 == 3 ? "The mill" : "A wheel and"};
        if (i % 10 == 4) prompts[i] = (qn_prompt){.messages = &message, .n_messages = 1};
        if (i % 25 == 7) prompts[i] = (qn_prompt){.rows = &bad, .n_rows = 1};
        if (i % 25 == 8) prompts[i] = (qn_prompt){.text = "\xff\xfe"};
        if (i % 25 == 9) prompts[i] = (qn_prompt){.rows = &none, .n_rows = 1};
    }
    for (int sampled = 0; sampled < 2; sampled++) {
        const qn_generate_options o = {.max_tokens = TOKENS,
                                       .temperature = sampled ? 1.1f : 0,
                                       .seed = 5,
                                       .stop_strings = stops,
                                       .n_stop_strings = (size_t)sampled,
                                       .logprobs = !sampled,
                                       .frequency_penalty = 0.5f};
        qn_model *model = open_model((qn_model_options){.parallel_slots = sampled ? 1 : 8}),
                 *other = open_model((qn_model_options){.prefill_chunk = 3});
        qn_batch *b = NULL;
        qn_batch_result r;
        qn_generation_stats stats;
        int64_t n_generated = 0;
        int is_there = 1;
        assert_int_equal(qn_batch_open(model, prompts, MANY, &o, &b), QN_OK);
        for (size_t i = 0;; i++) {
            if (qn_batch_next(b, &r, &is_there) != QN_OK) fail_msg("%s", qn_last_error());
            if (!is_there) {
                assert_int_equal(i, MANY);
                break;
            }
            assert_int_equal(r.i_prompt, i);
            n_generated += r.n_ids;
            size_t bad_kind = i % 25;
            if (bad_kind >= 7 && bad_kind <= 9) {
                assert_int_equal(r.status, bad_kind == 8 ? QN_E_FORMAT : QN_E_ARG);
                assert_int_equal(r.end, QN_END_ERROR);
                assert_true(r.message && r.message[0] && r.n_ids == 0);
                continue;
            }
            assert_true((r.logprobs != NULL) == (!sampled && r.n_ids > 0));
            answer a;
            generate(other, &prompts[i], &o, &a);
            check_answer(&r, &a);
            qn_buf_free(&a.text);
        }
        assert_int_equal(qn_batch_get_stats(b, &stats), QN_OK);
        assert_int_equal(stats.n_generated_tokens, n_generated);
        assert_true(stats.seed == 5 && stats.n_prompt_tokens > 0 && stats.prefill_ms > 0);
        qn_batch_close(b);
        qn_model_close(&model);
        qn_model_close(&other);
    }
}

static void test_cancel_and_deadline(void **state)
{
    enum { N = 100 };
    qn_prompt prompts[N];
    const qn_ids row = {ids, 12};
    qn_model *model = open_model((qn_model_options){.parallel_slots = 4});
    for (int i = 0; i < N; i++) prompts[i] = (qn_prompt){.rows = &row, .n_rows = 1};
    for (int deadline = 0; deadline < 2; deadline++) {
        qn_generate_options o = {.max_tokens = 300, .ignore_eos = 1, .deadline_ms = deadline ? 40 : 0};
        qn_batch *b = NULL;
        qn_batch_result r;
        int is_there;
        int64_t n_ended = 0;
        assert_int_equal(qn_batch_open(model, prompts, N, &o, &b), QN_OK);
        for (int i = 0; i < N; i++) {
            if (!deadline && i == 3) qn_batch_cancel(b);
            assert_int_equal(qn_batch_next(b, &r, &is_there), QN_OK);
            assert_true(is_there && r.status == QN_OK);
            if (r.end == QN_END_LENGTH) continue;
            assert_int_equal(r.end, deadline ? QN_END_DEADLINE : QN_END_CANCELLED);
            n_ended++;
        }
        assert_true(n_ended > N / 2);
        assert_int_equal(qn_batch_next(b, &r, &is_there), QN_OK);
        assert_false(is_there);
        qn_batch_cancel(b);
        qn_batch_close(b);
    }
    qn_batch_cancel(NULL);
    qn_batch_close(NULL);
    qn_model_close(&model);
}

static void test_refused(void **state)
{
    qn_batch *b = NULL;
    qn_batch_result r;
    int is_there;
    const char *adapters[] = {NULL};
    const qn_prompt prompt = {.text = "The mill"};
    qn_model *model = open_model((qn_model_options){0});
    const qn_generate_options bad[] = {{.temperature = -1},
                                       {.row_adapters = adapters},
                                       {.logprobs = 1, .n_top_logprobs = 1},
                                       {.deadline_ms = -5}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(qn_batch_open(model, &prompt, 1, &bad[i], &b), QN_E_ARG);
    assert_int_equal(qn_batch_open(model, &prompt, 0, NULL, &b), QN_E_ARG);
    assert_int_equal(qn_batch_open(model, NULL, 1, NULL, &b), QN_E_ARG);
    assert_null(b);
    const qn_generate_options unknown = {.adapter = "nobody"};
    assert_int_equal(qn_batch_open(model, &prompt, 1, &unknown, &b), QN_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(qn_batch_next(b, &r, &is_there), QN_E_NOT_FOUND);
        assert_non_null(strstr(qn_last_error(), "nobody"));
    }
    qn_batch_close(b);
    const int32_t ids[] = {-1, 1 << 30};
    for (int i = 0; i < 2; i++) {
        const qn_generate_options stops = {.stop_ids = ids + i, .n_stop_ids = 1};
        qn_generation *g = NULL;
        assert_int_equal(qn_generation_open(model, &prompt, &stops, &g), QN_E_ARG);
        assert_non_null(
            strstr(qn_last_error(), i ? "stop_ids: token id 1073741824" : "stop_ids: token id -1"));
        assert_null(g);
    }
    qn_model_close(&model);
}

static void test_allocation_failures(void **state)
{
    const qn_ids row = {ids, 5};
    const qn_prompt prompts[] = {{.rows = &row, .n_rows = 1}, {.text = "The mill"}, {.text = "\xff"}};
    const qn_generate_options o = {.max_tokens = 3, .temperature = 1, .seed = 2, .logprobs = 1};
    qn_model *model = open_model((qn_model_options){.parallel_slots = 2, .no_prefix_cache = 1});
    answer want;
    generate(model, &prompts[1], &o, &want);
    int64_t before = qn_mem_live_blocks();
    for (int64_t i = 1;; i++) {
        assert_true(i < 2000);
        qn_batch *b = NULL;
        int is_there = 1;
        int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(i);
        qn_status status = qn_batch_open(model, prompts, 3, &o, &b);
        for (size_t p = 0; status == QN_OK && p < 3; p++) {
            qn_batch_result r;
            status = qn_batch_next(b, &r, &is_there);
            if (status != QN_OK) break;
            assert_int_equal(r.i_prompt, p);
            if (p == 1 && r.status == QN_OK) check_answer(&r, &want);
            assert_true(r.status == (p == 2 ? QN_E_FORMAT : QN_OK) || r.status == QN_E_NOMEM);
        }
        qn_mem_fail_nth(0);
        made = qn_mem_allocations() - made;
        assert_true(status == QN_OK || status == QN_E_NOMEM);
        qn_batch_close(b);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (made < i) break;
    }
    qn_buf_free(&want.text);
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_alone),
        cmocka_unit_test(test_cancel_and_deadline),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
