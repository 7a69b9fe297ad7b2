/* classify.h on a tiny model, beside what qn_model_logits and generations say of the same prompts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/fixtures.h"

enum { N = 6, VOCAB_MAX = 1024, LENGTH_MAX = 64, CHOICES = 4 };

static const int32_t ids[] = {3,  14, 15, 92, 65, 35, 89, 79, 32, 38, 46,
                              26, 43, 38, 32, 79, 50, 28, 84, 19, 71};
static const int32_t answer[][4] = {{9}, {30, 31}, {12, 5, 9, 100}, {77}};
static const qn_choice choices[CHOICES] = {
    {.ids = answer[0], .n_ids = 1},
    {.ids = answer[1], .n_ids = 2},
    {.ids = answer[2], .n_ids = 4},
    {.ids = answer[3], .n_ids = 1},
};

static qn_model *open_model(const char *kind, qn_model_options o)
{
    char path[64];
    qn_model *model = NULL;
    snprintf(path, sizeof path, "models/%s", kind);
    if (qn_model_open(qn_test_need_fixture(path), &o, &model) != QN_OK) fail_msg("%s", qn_last_error());
    return model;
}

/* Prompts of 1 to 20 tokens. */
static void make_prompts(qn_ids *rows, qn_prompt *prompts)
{
    for (int i = 0; i < N; i++) {
        rows[i] = (qn_ids){ids + i % 2, 1 + 3 * i + i % 2};
        prompts[i] = (qn_prompt){.rows = &rows[i], .n_rows = 1};
    }
}

/* ---- reference ---- */

typedef struct {
    int64_t n_vocab;
    float logits[LENGTH_MAX * VOCAB_MAX];
} whole;

static qn_status keep(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    whole *w = user;
    memcpy(w->logits + position * w->n_vocab, logits, (size_t)(n * w->n_vocab) * sizeof *logits);
    return QN_OK;
}

static void compute(qn_model *model, const int32_t *row, int64_t n, whole *w)
{
    qn_model_info info;
    assert_int_equal(qn_model_get_info(model, &info), QN_OK);
    assert_true(info.vocab_size <= VOCAB_MAX && n <= LENGTH_MAX);
    w->n_vocab = info.vocab_size;
    assert_int_equal(qn_model_logits(model, &(qn_ids){row, n}, 1, NULL, keep, w), QN_OK);
}

static double logprob(const whole *w, int64_t position, int32_t id)
{
    const float *x = w->logits + position * w->n_vocab;
    double sum = 0;
    for (int64_t i = 0; i < w->n_vocab; i++) sum += exp((double)x[i]);
    return (double)x[id] - log(sum);
}

/* ---- classify ---- */

typedef struct {
    size_t n_results;
    qn_status status[N];
    char message[N][160];
    int64_t n_tokens[N];
    int32_t id[N], n_top[N];
    float logprob[N];
    qn_top_logprob top[N][3];
    float logits[N][VOCAB_MAX];
    qn_choice_score scores[N][CHOICES];
    size_t n_scores[N], best[N];
    int64_t n_vocab;
} log_of;

static qn_status note(void *user, const qn_classify_result *r)
{
    log_of *l = user;
    size_t i = r->i_prompt;
    assert_int_equal(i, l->n_results++);
    l->status[i] = r->status;
    snprintf(l->message[i], sizeof l->message[i], "%s", r->message ? r->message : "");
    assert_int_equal(r->status == QN_OK, r->message == NULL);
    l->n_tokens[i] = r->n_tokens;
    l->id[i] = r->id;
    l->logprob[i] = r->logprob;
    l->n_top[i] = r->n_top;
    if (r->n_top) memcpy(l->top[i], r->top, (size_t)r->n_top * sizeof *r->top);
    if (r->logits) memcpy(l->logits[i], r->logits, (size_t)l->n_vocab * sizeof *r->logits);
    if (r->n_choices) memcpy(l->scores[i], r->choices, r->n_choices * sizeof *r->choices);
    l->n_scores[i] = r->n_choices;
    l->best[i] = r->best_choice;
    return QN_OK;
}

static void classify(qn_model *model, const qn_prompt *prompts, size_t n, const qn_classify_options *o,
                     log_of *l)
{
    qn_model_info info;
    assert_int_equal(qn_model_get_info(model, &info), QN_OK);
    memset(l, 0, sizeof *l);
    l->n_vocab = info.vocab_size;
    if (qn_classify(model, prompts, n, o, note, l) != QN_OK) fail_msg("%s", qn_last_error());
    assert_int_equal(l->n_results, n);
}

/* The token is a generation's first one, the logits are qn_model_logits'. */
static void test_next_token(void **state)
{
    static log_of l;
    static whole w;
    qn_ids rows[N];
    qn_prompt prompts[N];
    const qn_logit_bias bias = {60, 5};
    qn_model *model = open_model("llama", (qn_model_options){.parallel_slots = 3});
    make_prompts(rows, prompts);
    for (int sampled = 0; sampled < 2; sampled++) {
        qn_generate_options sampling = {.max_tokens = 1,
                                        .ignore_eos = 1,
                                        .logprobs = 1,
                                        .n_top_logprobs = 3,
                                        .temperature = sampled ? 1.5f : 0,
                                        .repeat_penalty = 1.2f,
                                        .logit_bias = &bias,
                                        .n_logit_bias = 1,
                                        .seed = 12};
        classify(model, prompts, N, &(qn_classify_options){.sampling = &sampling, .logits = 1}, &l);
        for (int i = 0; i < N; i++) {
            qn_generation *g = NULL;
            qn_token t;
            assert_int_equal(qn_generation_open(model, &prompts[i], &sampling, &g), QN_OK);
            assert_int_equal(qn_generation_next(g, &t), QN_OK);
            assert_int_equal(l.id[i], t.id);
            assert_true(l.logprob[i] == t.logprob && l.n_top[i] == 3 && l.n_scores[i] == 0);
            assert_memory_equal(l.top[i], t.top, sizeof l.top[i]);
            assert_int_equal(l.n_tokens[i], rows[i].n_ids);
            qn_generation_close(g);
            compute(model, rows[i].ids, rows[i].n_ids, &w);
            assert_memory_equal(l.logits[i], w.logits + (rows[i].n_ids - 1) * w.n_vocab,
                                (size_t)w.n_vocab * sizeof(float));
        }
    }
    qn_model_close(&model);
}

/* Bans by ids work. Bad words and DRY are refused. */
static void test_sampling_with_bans(void **state)
{
    static log_of l, again;
    qn_ids rows[N];
    qn_prompt prompts[N];
    static const char *const word[] = {"e"};
    static const int32_t allowed[] = {9, 12};
    const qn_ids bad = {allowed, 1};
    qn_model *model = open_model("llama", (qn_model_options){.parallel_slots = 3});
    make_prompts(rows, prompts);
    const qn_generate_options bans = {.allowed_ids = allowed,
                                      .n_allowed_ids = 2,
                                      .bad_ids = &bad,
                                      .n_bad_ids = 1},
                              words = {.bad_words = word, .n_bad_words = 1}, dry = {.dry_multiplier = 1},
                              window = {.repeat_penalty = 3, .repeat_last_n = 2};
    classify(model, prompts, N, &(qn_classify_options){.sampling = &bans}, &l);
    for (int i = 0; i < N; i++) assert_int_equal(l.id[i], 12);
    classify(model, prompts, N, &(qn_classify_options){.sampling = &window}, &again);
    assert_int_equal(qn_classify(model, prompts, N, &(qn_classify_options){.sampling = &words}, note, &l),
                     QN_E_UNSUPPORTED);
    assert_string_equal(qn_last_error(), "bad_words: qn_classify takes bad_ids");
    assert_int_equal(qn_classify(model, prompts, N, &(qn_classify_options){.sampling = &dry}, note, &l),
                     QN_E_UNSUPPORTED);
    assert_string_equal(qn_last_error(), "dry_multiplier: qn_classify draws no more than one token");
    qn_model_close(&model);
}

static void test_choices(void **state)
{
    static log_of l, alone;
    static whole w;
    const char *const kinds[] = {"llama", "gemma3_text", "qwen3_next"};
    qn_ids rows[N];
    qn_prompt prompts[N];
    make_prompts(rows, prompts);
    const qn_classify_options o = {.choices = {choices, CHOICES}, .logits = 1};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        qn_model *model = open_model(kinds[k], (qn_model_options){.parallel_slots = 4});
        classify(model, prompts, N, &o, &l);
        for (int i = 0; i < N; i++) {
            double sum = 0, want[CHOICES];
            for (int c = 0; c < CHOICES; c++) {
                int32_t both[LENGTH_MAX];
                memcpy(both, rows[i].ids, (size_t)rows[i].n_ids * sizeof *both);
                memcpy(both + rows[i].n_ids, answer[c], sizeof answer[c]);
                compute(model, both, rows[i].n_ids + choices[c].n_ids, &w);
                want[c] = 0;
                for (int64_t t = 0; t < choices[c].n_ids; t++)
                    want[c] += logprob(&w, rows[i].n_ids + t - 1, answer[c][t]);
                assert_true(fabs(l.scores[i][c].logprob - want[c]) < 1e-5);
                assert_int_equal(l.scores[i][c].n_tokens, choices[c].n_ids);
                sum += exp(want[c]);
            }
            for (int c = 0; c < CHOICES; c++) {
                assert_true(fabs(l.scores[i][c].probability - exp(want[c]) / sum) < 1e-5);
                assert_true(l.scores[i][c].logprob <= l.scores[i][l.best[i]].logprob);
            }
        }
        qn_model_close(&model);
        /* Alone, in other chunks, beside nobody: the same bits. */
        for (int chunk = 0; chunk < 2; chunk++) {
            model = open_model(kinds[k],
                               (qn_model_options){.prefill_chunk = chunk ? 5 : 0, .n_threads = 1 + chunk});
            for (int i = 0; i < N; i++) {
                classify(model, &prompts[i], 1, &o, &alone);
                assert_int_equal(alone.id[0], l.id[i]);
                assert_memory_equal(alone.scores[0], l.scores[i], sizeof alone.scores[0]);
                assert_memory_equal(alone.logits[0], l.logits[i], sizeof alone.logits[0]);
            }
            qn_model_close(&model);
        }
    }
}

/* Answers of each prompt's own, texts and chats among the prompts. */
static void test_own_choices(void **state)
{
    static log_of l, other;
    qn_model *model = open_model("llama", (qn_model_options){0});
    const qn_message message = {"user", "Which colour has the sky?"};
    const qn_choice texts[] = {{.text = " mill"}, {.text = " the wheel turns"}};
    const qn_choices own[] = {{texts, 2}, {choices, 3}, {texts + 1, 1}};
    const qn_prompt prompts[] = {
        {.text = "The"}, {.messages = &message, .n_messages = 1}, {.text = "The mill and"}};
    classify(model, prompts, 3, &(qn_classify_options){.prompt_choices = own}, &l);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(l.status[i], QN_OK);
        assert_int_equal(l.n_scores[i], own[i].n);
        classify(model, &prompts[i], 1, &(qn_classify_options){.choices = own[i]}, &other);
        assert_memory_equal(other.scores[0], l.scores[i], sizeof other.scores[0]);
    }
    assert_true(l.scores[2][0].probability == 1);
    int32_t *encoded = NULL;
    int64_t n = 0;
    assert_int_equal(qn_model_encode(model, " the wheel turns", 16, NULL, &encoded, &n), QN_OK);
    assert_int_equal(l.scores[0][1].n_tokens, n);
    qn_buffer_free(encoded);
    qn_model_close(&model);
}

/* A prompt that fails has its own status, and its neighbours have what they have alone. */
static void test_failures_of_one(void **state)
{
    static log_of l, alone;
    qn_model *model = open_model("llama", (qn_model_options){.context_size = 32, .parallel_slots = 2});
    const int32_t outside[] = {4, 1 << 20}, many[40] = {1};
    const qn_ids rows[] = {{ids, 9}, {outside, 2}, {many, 33}, {many, 30}};
    const qn_image image = {(const uint8_t *)"abc", 1, 1, 0};
    const qn_prompt prompts[N] = {
        {.rows = &rows[0], .n_rows = 1},
        {.rows = &rows[1], .n_rows = 1},
        {.rows = &rows[2], .n_rows = 1},
        {.rows = &rows[3], .n_rows = 1},
        {.text = "The", .images = &image, .n_images = 1},
        {.text = "The", .rows = &rows[0], .n_rows = 1},
    };
    const qn_classify_options o = {.choices = {choices, CHOICES}};
    classify(model, prompts, N, &o, &l);
    const char *const words[N] = {"",
                                  "token id 1048576 at position 1",
                                  "the prompt has 33 tokens",
                                  "30 tokens and an answer 4, the context holds 32",
                                  "images",
                                  "2 are given"};
    for (int i = 0; i < N; i++) {
        assert_int_equal(l.status[i], i ? QN_E_ARG : QN_OK);
        assert_non_null(strstr(l.message[i], words[i]));
        assert_int_equal(l.n_scores[i], i ? 0 : CHOICES);
    }
    classify(model, prompts, 1, &o, &alone);
    assert_memory_equal(alone.scores[0], l.scores[0], sizeof alone.scores[0]);
    const qn_ids two[2] = {{ids, 3}, {ids, 4}};
    const qn_prompt more[] = {{.rows = two, .n_rows = 2}, {.text = "\xff"}, {.text = "Well"}};
    classify(model, more, 3, NULL, &l);
    assert_int_equal(l.status[0], QN_E_ARG);
    assert_int_equal(l.status[1], QN_E_FORMAT);
    assert_int_equal(l.status[2], QN_OK);
    qn_model_close(&model);
}

static qn_status stop_at_two(void *user, const qn_classify_result *r)
{
    ++*(int *)user;
    return r->i_prompt == 2 ? qn_fail(QN_E_IO, "enough") : QN_OK;
}

static void test_refused(void **state)
{
    static log_of l;
    int n = 0;
    qn_ids rows[N];
    qn_prompt prompts[N];
    qn_model *model = open_model("llama", (qn_model_options){0});
    make_prompts(rows, prompts);
    assert_int_equal(qn_classify(model, prompts, 0, NULL, note, &l), QN_E_ARG);
    assert_int_equal(qn_classify(model, NULL, 1, NULL, note, &l), QN_E_ARG);
    assert_int_equal(qn_classify(NULL, prompts, 1, NULL, note, &l), QN_E_ARG);
    assert_int_equal(qn_classify(model, prompts, 1, NULL, NULL, &l), QN_E_ARG);
    const int32_t outside = 1 << 20;
    const qn_choice bad[] = {{.text = ""}, {.ids = ids, .n_ids = 0}, {0}, {.ids = &outside, .n_ids = 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const qn_choice pair[] = {{.ids = ids, .n_ids = 1}, bad[i]};
        const qn_classify_options o = {.choices = {pair, 2}};
        assert_int_equal(qn_classify(model, prompts, 1, &o, note, &l), QN_E_ARG);
        assert_non_null(strstr(qn_last_error(), "choice 1"));
    }
    const qn_generate_options hot = {.temperature = -1}, unknown = {.adapter = "nobody"};
    const qn_classify_options several[] = {
        {.choices = {choices, 0}}, {.choices = {choices, QN_CHOICES_MAX + 1}}, {.sampling = &hot}};
    for (size_t i = 0; i < sizeof several / sizeof *several; i++)
        assert_int_equal(qn_classify(model, prompts, 1, &several[i], note, &l), QN_E_ARG);
    assert_int_equal(qn_classify(model, prompts, N, &(qn_classify_options){.sampling = &unknown}, note, &l),
                     QN_E_NOT_FOUND);
    assert_int_equal(l.n_results, 0);
    assert_int_equal(qn_classify(model, prompts, N, NULL, stop_at_two, &n), QN_E_IO);
    assert_int_equal(n, 3);
    assert_string_equal(qn_last_error(), "enough");
    qn_model_close(&model);
}

static qn_status set_cancel(void *user, const qn_classify_result *r)
{
    qn_cancel_set(user);
    return QN_OK;
}

static qn_status no_score(void *user, const qn_score_result *r)
{
    fail_msg("a result of a call that was cancelled");
    return QN_OK;
}

static qn_status no_vector(void *user, const qn_embed_result *r)
{
    fail_msg("a result of a call that was cancelled");
    return QN_OK;
}

/* A cancel ends each of the calls, also one that was set before. */
static void test_cancel(void **state)
{
    enum { MANY = 600 };
    static qn_prompt prompts[MANY];
    static log_of l;
    const qn_ids row = {ids, 4};
    qn_cancel *cancel = NULL;
    qn_model *model = open_model("llama", (qn_model_options){0});
    for (int i = 0; i < MANY; i++) prompts[i] = (qn_prompt){.rows = &row, .n_rows = 1};
    assert_int_equal(qn_cancel_new(&cancel), QN_OK);
    const qn_classify_options o = {.cancel = cancel};
    assert_int_equal(qn_classify(model, prompts, MANY, &o, set_cancel, cancel), QN_E_CANCELLED);
    assert_int_equal(qn_classify(model, prompts, 1, &o, note, &l), QN_E_CANCELLED);
    assert_int_equal(l.n_results, 0);
    assert_int_equal(qn_score(model, prompts, 1, &(qn_score_options){.cancel = cancel}, no_score, NULL),
                     QN_E_CANCELLED);
    assert_int_equal(qn_embed(model, prompts, 1, &(qn_embed_options){.cancel = cancel}, no_vector, NULL),
                     QN_E_CANCELLED);
    qn_cancel_free(cancel);
    qn_cancel_free(NULL);
    qn_cancel_set(NULL);
    assert_int_equal(qn_cancel_new(NULL), QN_E_ARG);
    qn_model_close(&model);
}

/* More prompts than are evaluated together, and a function that uses the model. */
static qn_status count_and_compute(void *user, const qn_classify_result *r)
{
    static whole w;
    int64_t *n = user;
    assert_int_equal(r->status, QN_OK);
    assert_int_equal(r->i_prompt, *n);
    if (r->i_prompt % 100 == 0) compute((qn_model *)(uintptr_t)n[1], ids, 3, &w);
    ++*n;
    return QN_OK;
}

static void test_long_lists(void **state)
{
    enum { MANY = 700 };
    static qn_prompt prompts[MANY];
    const qn_ids row = {ids, 4};
    qn_model *model = open_model("llama", (qn_model_options){.parallel_slots = 8});
    int64_t n[2] = {0, (int64_t)(uintptr_t)model};
    for (int i = 0; i < MANY; i++) prompts[i] = (qn_prompt){.rows = &row, .n_rows = 1};
    assert_int_equal(qn_classify(model, prompts, MANY, NULL, count_and_compute, n), QN_OK);
    assert_int_equal(n[0], MANY);
    qn_model_close(&model);
}

static void test_allocation_failures(void **state)
{
    static log_of l;
    qn_ids rows[N];
    qn_prompt prompts[N];
    make_prompts(rows, prompts);
    prompts[1] = (qn_prompt){.text = "The mill"};
    const qn_classify_options o = {.choices = {choices, CHOICES}, .logits = 1};
    qn_model *model = open_model("llama", (qn_model_options){.no_prefix_cache = 1});
    classify(model, prompts, 3, &o, &l); /* what is taken once is there */
    int64_t before = qn_mem_live_blocks();
    for (int64_t i = 1;; i++) {
        assert_true(i < 2000);
        memset(l.status, 0, sizeof l.status);
        l.n_results = 0;
        int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(i);
        qn_status status = qn_classify(model, prompts, 3, &o, note, &l);
        qn_mem_fail_nth(0);
        made = qn_mem_allocations() - made;
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_true(status == QN_OK || status == QN_E_NOMEM);
        for (size_t p = 0; status == QN_OK && p < 3; p++)
            assert_true(l.status[p] == QN_OK || l.status[p] == QN_E_NOMEM);
        if (made < i) break;
    }
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_token),
        cmocka_unit_test(test_sampling_with_bans),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_own_choices),
        cmocka_unit_test(test_failures_of_one),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_long_lists),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
