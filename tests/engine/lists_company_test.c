/* Lists of prompts beside each other: classify, score, embed, batch and generations on several threads of one
 * model, with prompts that begin alike, have the results that each has alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/fixtures.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 1 }; /* slow there, and one shows what they look for */
#else
enum { ROUNDS = 3 };
#endif
enum { N = 6, COMMON = 80, LENGTH = 96, TOKENS = 12, KINDS = 5, THREADS = 10, WIDTH = 64 };

/* What a job gave, in whatever form, to be compared byte for byte. */
typedef struct {
    double values[N][WIDTH];
    int32_t ids[N][TOKENS];
    qn_status status;
} result;

typedef struct {
    qn_model *model;
    int kind;
    result got;
} job;

static int32_t ids[N][LENGTH];
static qn_ids rows[N];
static qn_prompt prompts[N];

static void make_prompts(void)
{
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < LENGTH; k++) ids[i][k] = 1 + (k < COMMON ? k * 13 : k * 7 + i * 31) % 240;
        rows[i] = (qn_ids){ids[i], LENGTH - 3 * i};
        prompts[i] = (qn_prompt){.rows = &rows[i], .n_rows = 1};
    }
}

static qn_status take_scores(void *user, const qn_classify_result *r)
{
    result *out = user;
    out->values[r->i_prompt][0] = r->choices[0].logprob;
    out->values[r->i_prompt][1] = r->choices[1].logprob;
    out->ids[r->i_prompt][0] = r->id;
    return r->status;
}

static qn_status take_score(void *user, const qn_score_result *r)
{
    ((result *)user)->values[r->i_prompt][0] = r->logprob;
    return r->status;
}

static qn_status take_vector(void *user, const qn_embed_result *r)
{
    for (int i = 0; r->status == QN_OK && i < WIDTH && i < r->n_values; i++)
        ((result *)user)->values[r->i_prompt][i] = (double)r->vector[i];
    return r->status;
}

static const qn_generate_options sampling = {
    .max_tokens = TOKENS, .temperature = 1, .seed = 3, .ignore_eos = 1, .logprobs = 1, .presence_penalty = 1};

static qn_status run_batch(qn_model *model, result *out)
{
    qn_batch *b = NULL;
    qn_batch_result r;
    int is_there;
    qn_status status = qn_batch_open(model, prompts, N, &sampling, &b);
    for (int i = 0; status == QN_OK && i < N; i++) {
        status = qn_batch_next(b, &r, &is_there);
        if (status == QN_OK) status = r.status;
        if (status != QN_OK) break;
        memcpy(out->ids[i], r.ids, (size_t)r.n_ids * sizeof *r.ids);
        for (int64_t k = 0; k < r.n_ids; k++) out->values[i][k] = (double)r.logprobs[k];
    }
    qn_batch_close(b);
    return status;
}

static qn_status run_generation(qn_model *model, result *out)
{
    qn_generation *g = NULL;
    const qn_prompt prompt = {.rows = rows, .n_rows = N};
    int64_t n[N] = {0};
    qn_status status = qn_generation_open(model, &prompt, &sampling, &g);
    for (int n_open = N; status == QN_OK && n_open > 0;) {
        qn_token t;
        status = qn_generation_next(g, &t);
        if (t.end != QN_END_NONE) {
            n_open--;
            continue;
        }
        out->values[t.row][n[t.row]] = (double)t.logprob;
        out->ids[t.row][n[t.row]++] = t.id;
    }
    qn_generation_close(g);
    return status;
}

static void *run(void *user)
{
    static const int32_t answer[] = {40, 41, 42};
    const qn_choice choices[] = {{.ids = answer, .n_ids = 1}, {.ids = answer, .n_ids = 3}};
    job *j = user;
    result *out = &j->got;
    memset(out, 0, sizeof *out);
    switch (j->kind) {
    case 0: {
        const qn_classify_options o = {.sampling = &sampling, .choices = {choices, 2}};
        out->status = qn_classify(j->model, prompts, N, &o, take_scores, out);
        break;
    }
    case 1:
        out->status =
            qn_score(j->model, prompts, N, &(qn_score_options){.window = 50, .stride = 20}, take_score, out);
        break;
    case 2:
        out->status = qn_embed(j->model, prompts, N, NULL, take_vector, out);
        break;
    case 3:
        out->status = run_batch(j->model, out);
        break;
    default:
        out->status = run_generation(j->model, out);
        break;
    }
    return NULL;
}

static void beside_each_other(void **state)
{
    static job alone[KINDS], jobs[THREADS];
    char path[64];
    make_prompts();
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    for (int kind = 0; kind < KINDS; kind++) {
        qn_model_options o = {.no_prefix_cache = 1, .n_threads = 1};
        alone[kind].kind = kind;
        if (qn_model_open(qn_test_need_fixture(path), &o, &alone[kind].model) != QN_OK)
            fail_msg("%s", qn_last_error());
        run(&alone[kind]);
        if (alone[kind].got.status != QN_OK) fail_msg("%s", qn_last_error());
        qn_model_close(&alone[kind].model);
    }
    for (int background = 0; background < 2; background++) {
        qn_model *model = NULL;
        qn_model_options o = {.parallel_slots = 4, .n_threads = 1, .background = background};
        assert_int_equal(qn_model_open(qn_test_need_fixture(path), &o, &model), QN_OK);
        for (int round = 0; round < ROUNDS; round++) {
            pthread_t threads[THREADS];
            for (int t = 0; t < THREADS; t++) {
                jobs[t] = (job){.model = model, .kind = (t + round) % KINDS};
                assert_int_equal(pthread_create(&threads[t], NULL, run, &jobs[t]), 0);
            }
            for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
            for (int t = 0; t < THREADS; t++) {
                const job *want = &alone[jobs[t].kind];
                assert_int_equal(jobs[t].got.status, QN_OK);
                if (memcmp(&jobs[t].got, &want->got, sizeof want->got) != 0)
                    fail_msg("kind %d on thread %d in round %d is not what it is alone", jobs[t].kind, t,
                             round);
            }
        }
        qn_model_close(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(beside_each_other, "llama"),
        cmocka_unit_test_prestate(beside_each_other, "gemma3_text"),
        cmocka_unit_test_prestate(beside_each_other, "qwen3_next"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
