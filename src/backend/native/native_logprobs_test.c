/* Log-probabilities, biases and penalties of a generation, through the public API on a tiny model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "tests/support/engine_help.h"
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

/* ---- of prompts ---- */

enum { LONG = 90 };

typedef struct {
    int64_t n_vocab, n;
    const int32_t *ids;
    qn_prompt_token want[LONG];
    qn_top_logprob top[LONG][TOP];
} prompt_figures;

/* The definitions, in double precision. */
static qn_status take_row(void *user, int64_t row, int64_t position, int64_t n, const float *logits)
{
    prompt_figures *f = user;
    for (int64_t i = position; i < position + n && i + 1 < f->n; i++, logits += f->n_vocab) {
        qn_prompt_token *t = &f->want[i + 1];
        const float own = logits[f->ids[i + 1]];
        double sum = 0;
        t->rank = 1;
        for (int64_t j = 0; j < f->n_vocab; j++) {
            sum += exp((double)logits[j]);
            t->rank += logits[j] > own || (logits[j] == own && j < f->ids[i + 1]);
            for (int k = 0; k < TOP; k++) /* sorted by insertion, as logits */
                if (t->n_top == k || logits[j] > f->top[i + 1][k].logprob) {
                    memmove(&f->top[i + 1][k + 1], &f->top[i + 1][k],
                            (size_t)(TOP - 1 - k) * sizeof(qn_top_logprob));
                    f->top[i + 1][k] = (qn_top_logprob){(int32_t)j, logits[j]};
                    if (t->n_top < TOP) t->n_top++;
                    break;
                }
        }
        t->logprob = own - (float)log(sum);
        for (int k = 0; k < TOP; k++) f->top[i + 1][k].logprob -= (float)log(sum);
    }
    return QN_OK;
}

static qn_generation *open_prompt(qn_model *model, const prompt_figures *f, int has_logprobs)
{
    qn_generation *g = NULL;
    const qn_ids row = {f->ids, f->n};
    const qn_prompt prompt = {.rows = &row, .n_rows = 1};
    const qn_generate_options o = {.max_tokens = 3,
                                   .ignore_eos = 1,
                                   .prompt_logprobs = has_logprobs,
                                   .n_prompt_top_logprobs = has_logprobs ? TOP : 0};
    if (qn_generation_open(model, &prompt, &o, &g) != QN_OK) fail_msg("%s", qn_last_error());
    return g;
}

static void check_prompt(qn_generation *g, const prompt_figures *f)
{
    qn_prompt_token t;
    assert_int_equal(qn_generation_get_prompt_token(g, 0, 0, &t), QN_OK);
    assert_true(t.id == f->ids[0] && isnan(t.logprob) && t.rank == 0 && t.n_top == 0);
    for (int64_t i = 1; i < f->n; i++) {
        assert_int_equal(qn_generation_get_prompt_token(g, 0, i, &t), QN_OK);
        assert_int_equal(t.id, f->ids[i]);
        assert_int_equal(t.rank, f->want[i].rank);
        assert_true(fabs((double)(t.logprob - f->want[i].logprob)) < 1e-4);
        assert_int_equal(t.n_top, TOP);
        for (int k = 0; k < TOP; k++) {
            assert_int_equal(t.top[k].id, f->top[i][k].id);
            assert_true(fabs((double)(t.top[k].logprob - f->top[i][k].logprob)) < 1e-4);
        }
        if (t.rank <= TOP) assert_int_equal(t.top[t.rank - 1].id, t.id);
    }
    assert_int_equal(qn_generation_get_prompt_token(g, 0, f->n, &t), QN_E_ARG);
    assert_int_equal(qn_generation_get_prompt_token(g, 1, 0, &t), QN_E_ARG);
}

/* They are those of the model's logits, also where the prompt is in the cache; the next prompt may come from there. */
static void test_prompt(void **state)
{
    static const int64_t lengths[] = {1, 2, 9, LONG};
    static int32_t ids[LONG];
    static prompt_figures f;
    qn_model *model = open_model(1);
    qn_model_info info;
    qn_token t;
    qn_prompt_token none;
    qn_test_ok(qn_model_get_info(model, &info));
    for (int i = 0; i < LONG; i++) ids[i] = 1 + (i * 37 + i * i) % ((int32_t)info.vocab_size - 1);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        f = (prompt_figures){.n_vocab = info.vocab_size, .n = lengths[l], .ids = ids};
        const qn_logits_options all = {.no_prefix_cache = 1};
        qn_test_ok(qn_model_logits(model, &(qn_ids){ids, f.n}, 1, &all, take_row, &f));
        for (int turn = 0; turn < 3; turn++) {
            qn_generation_stats stats;
            qn_generation *g = open_prompt(model, &f, turn < 2);
            assert_int_equal(qn_generation_get_prompt_token(g, 0, 0, &none), QN_E_ARG);
            qn_test_ok(qn_generation_next(g, &t));
            if (turn < 2)
                check_prompt(g, &f);
            else
                assert_int_equal(qn_generation_get_prompt_token(g, 0, 0, &none), QN_E_ARG);
            while (t.end == QN_END_NONE) qn_test_ok(qn_generation_next(g, &t));
            if (turn < 2) check_prompt(g, &f);
            qn_test_ok(qn_generation_get_stats(g, &stats));
            assert_int_equal(stats.n_cached_tokens > 0, turn == 2 && f.n > 1);
            qn_generation_close(g);
        }
    }
    qn_model_close(&model);
}

static void test_refused_prompts(void **state)
{
    qn_model *model = NULL;
    qn_generation *g = NULL;
    int32_t ids[16] = {0};
    const qn_model_options small = {.context_size = 16};
    qn_test_ok(qn_model_open(qn_test_need_fixture("models/llama"), &small, &model));
    const qn_prompt prompt = {.rows = &(qn_ids){ids, 16}, .n_rows = 1};
    qn_generate_options o = {.prompt_logprobs = 1};
    assert_int_equal(qn_generation_open(model, &prompt, &o, &g), QN_E_ARG);
    assert_non_null(
        strstr(qn_last_error(), "nothing can follow the prompt of 16 tokens: it fills the context"));
    const qn_prompt shorter = {.rows = &(qn_ids){ids, 3}, .n_rows = 1};
    qn_prompt_token t;
    assert_int_equal(qn_generation_get_prompt_token(NULL, 0, 0, &t), QN_E_ARG);
    qn_test_ok(qn_generation_open(model, &shorter, &o, &g));
    qn_model_close(&model);
    assert_int_equal(qn_generation_get_prompt_token(g, 0, 0, &t), QN_E_CLOSED);
    qn_generation_close(g);
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
        cmocka_unit_test(test_any_company), cmocka_unit_test(test_of_raw_logits),
        cmocka_unit_test(test_prompt),      cmocka_unit_test(test_refused_prompts),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
