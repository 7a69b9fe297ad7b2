/* Log-probabilities, biases and penalties of a generation, through the public API on a tiny model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "tests/support/fixtures.h"

enum { TOKENS = 20, ROWS = 5, TOP = 4 };

typedef struct {
    int32_t ids[TOKENS];
    int64_t n;
    float logprobs[TOKENS];
    qn_top_logprob top[TOKENS][TOP];
} result;

static const int32_t prompt_ids[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26};

static qn_model *open_model(int32_t slots)
{
    qn_model *model = NULL;
    qn_model_options o = {.parallel_slots = slots, .precision = QN_PRECISION_EXACT};
    qn_status status = qn_model_open(qn_test_need_fixture("models/llama"), &o, &model);
    if (status != QN_OK) fail_msg("%s", qn_last_error());
    return model;
}

static void run(qn_model *model, const qn_ids *rows, int64_t n_rows, const qn_generate_options *o,
                result *out)
{
    qn_generation *g = NULL;
    qn_prompt prompt = {.rows = rows, .n_rows = n_rows};
    if (qn_generation_open(model, &prompt, o, &g) != QN_OK) fail_msg("%s", qn_last_error());
    memset(out, 0, (size_t)n_rows * sizeof *out);
    for (int64_t n_open = n_rows; n_open > 0;) {
        qn_token t;
        assert_int_equal(qn_generation_next(g, &t), QN_OK);
        n_open -= t.end != QN_END_NONE;
        if (t.end != QN_END_NONE) {
            assert_int_equal(t.n_top, 0);
            continue;
        }
        result *r = &out[t.row];
        assert_int_equal(t.n_top, o->n_top_logprobs);
        r->ids[r->n] = t.id;
        r->logprobs[r->n] = t.logprob;
        if (t.n_top) memcpy(r->top[r->n], t.top, (size_t)t.n_top * sizeof *t.top);
        r->n++;
    }
    qn_generation_close(g);
}

static void test_any_company(void **state)
{
    static result together[ROWS], alone;
    qn_ids rows[ROWS];
    const qn_logit_bias bias = {77, 4};
    for (int i = 0; i < ROWS; i++) rows[i] = (qn_ids){prompt_ids + i, 12 - i};
    qn_generate_options o = {.max_tokens = TOKENS,
                             .temperature = 0.9f,
                             .top_p = 0.95f,
                             .seed = 3,
                             .ignore_eos = 1,
                             .presence_penalty = 0.5f,
                             .frequency_penalty = 0.25f,
                             .logit_bias = &bias,
                             .n_logit_bias = 1,
                             .logprobs = 1,
                             .n_top_logprobs = TOP};
    for (int32_t slots = 1; slots <= 4; slots += 3) {
        qn_model *model = open_model(slots);
        o.n_draft = 0;
        run(model, rows, ROWS, &o, together);
        for (o.n_draft = 0; o.n_draft <= 6; o.n_draft += 3) { /* guesses change nothing */
            for (int i = 0; i < ROWS; i++) {
                run(model, &rows[i], 1, &o, &alone);
                assert_int_equal(alone.n, TOKENS);
                assert_memory_equal(&alone, &together[i], sizeof alone);
            }
        }
        qn_model_close(&model);
    }
}

typedef struct {
    int64_t n_vocab;
    int32_t id;
    double sum, chosen;
} wanted;

static qn_status take_last(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    wanted *w = user;
    for (int64_t i = 0; i < w->n_vocab; i++) w->sum += exp((double)logits[i]);
    w->chosen = (double)logits[w->id];
    return QN_OK;
}

/* They are of the model's own logits, whatever bias, penalties and temperature make of the draw. */
static void test_of_raw_logits(void **state)
{
    static result r;
    const qn_logit_bias bias[] = {{5, 60}, {6, 60}};
    qn_generate_options o = {.max_tokens = TOKENS,
                             .temperature = 3,
                             .seed = 3,
                             .ignore_eos = 1,
                             .presence_penalty = 2,
                             .logit_bias = bias,
                             .n_logit_bias = 2,
                             .logprobs = 1,
                             .n_top_logprobs = 2};
    qn_model *model = open_model(1);
    qn_model_info info;
    assert_int_equal(qn_model_get_info(model, &info), QN_OK);
    run(model, &(qn_ids){prompt_ids, 12}, 1, &o, &r);
    int32_t ids[12 + TOKENS];
    memcpy(ids, prompt_ids, sizeof prompt_ids);
    for (int64_t i = 0; i < r.n; i++) {
        assert_true(r.ids[i] == 5 || r.ids[i] == 6);
        wanted w = {.n_vocab = info.vocab_size, .id = r.ids[i]};
        qn_logits_options last = {.last_only = 1};
        assert_int_equal(qn_model_logits(model, &(qn_ids){ids, 12 + i}, 1, &last, take_last, &w), QN_OK);
        assert_true(fabs((double)r.logprobs[i] - (w.chosen - log(w.sum))) < 1e-5);
        assert_true(r.top[i][0].logprob >= r.top[i][1].logprob && r.top[i][1].logprob >= r.logprobs[i]);
        ids[12 + i] = r.ids[i];
    }
    /* Both have the same bias: the penalty makes them take turns. */
    o.frequency_penalty = 2;
    o.temperature = 0;
    run(model, &(qn_ids){prompt_ids, 12}, 1, &o, &r);
    int n_five = 0;
    for (int64_t i = 0; i < r.n; i++) n_five += r.ids[i] == 5;
    assert_true(n_five > 0 && n_five < r.n);
    qn_model_close(&model);
}

static void test_refused(void **state)
{
    qn_generation *g = NULL;
    qn_model *model = open_model(1);
    const qn_logit_bias outside = {1 << 20, 1};
    qn_generate_options o = {.logit_bias = &outside, .n_logit_bias = 1};
    assert_int_equal(qn_generate(model, "The mill", &o, &g), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "logit_bias: token id 1048576 is outside the vocabulary of "));
    o = (qn_generate_options){.presence_penalty = -3};
    assert_int_equal(qn_generate(model, "The mill", &o, &g), QN_E_ARG);
    assert_null(g);
    qn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_company),
        cmocka_unit_test(test_of_raw_logits),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
