/* What lists of prompts take for themselves is in the model's figures while it is held, and given back; where
 * the limit leaves no room for a list's part, smaller parts give the same results, and where it leaves none
 * for a single prompt, each fails by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>
#include <string.h>

#include "base/map.h"
#include "base/random.h"
#include "tests/support/engine_help.h"

enum { PROMPTS = 60, LENGTH = 90 };
typedef enum { CLASSIFY, CHOOSE, SCORE, EMBED, GENERATE, N_CALLS } call;

typedef struct {
    qn_model *model;
    int32_t ids[PROMPTS][LENGTH];
    qn_ids rows[PROMPTS];
    qn_prompt prompts[PROMPTS];
    /* of one call */
    size_t n_results, n_ok, stop_after; /* 0: it is not stopped */
    size_t most_bytes;
    uint64_t hashes[PROMPTS];
} bench;

static qn_memory memory_of(const bench *b)
{
    qn_memory memory;
    qn_test_ok(qn_model_get_memory(b->model, &memory));
    return memory;
}

static qn_status take(bench *b, size_t i_prompt, qn_status status, const void *bytes, size_t n)
{
    size_t held = memory_of(b).other_bytes;
    assert_int_equal(i_prompt, b->n_results);
    b->hashes[i_prompt] = status == QN_OK ? qn_hash_bytes(bytes, n, 1) : 0;
    b->n_results++;
    if (status == QN_OK)
        b->n_ok++;
    else
        assert_int_equal(status, QN_E_NOMEM);
    if (held > b->most_bytes) b->most_bytes = held;
    return b->n_results == b->stop_after ? QN_E_CANCELLED : QN_OK;
}

static qn_status take_class(void *user, const qn_classify_result *r)
{
    qn_model_info info;
    bench *b = user;
    qn_test_ok(qn_model_get_info(b->model, &info));
    if (r->n_choices)
        return take(user, r->i_prompt, r->status, r->choices, r->n_choices * sizeof *r->choices);
    return take(user, r->i_prompt, r->status, r->logits, (size_t)info.vocab_size * sizeof *r->logits);
}

static qn_status take_score(void *user, const qn_score_result *r)
{
    return take(user, r->i_prompt, r->status, &r->logprob, sizeof r->logprob);
}

static qn_status take_vector(void *user, const qn_embed_result *r)
{
    return take(user, r->i_prompt, r->status, r->vector, (size_t)r->n_values * sizeof *r->vector);
}

static qn_status generate(bench *b, size_t n)
{
    const qn_generate_options o = {.max_tokens = 5, .ignore_eos = 1, .seed = 4, .temperature = 1};
    qn_batch *batch = NULL;
    qn_batch_result r;
    int is_there = 1;
    qn_status status = qn_batch_open(b->model, b->prompts, n, &o, &batch);
    while (status == QN_OK && (status = qn_batch_next(batch, &r, &is_there)) == QN_OK && is_there)
        status = take(b, r.i_prompt, r.status, r.ids, (size_t)r.n_ids * sizeof *r.ids);
    qn_batch_close(batch);
    return status;
}

static qn_status run(bench *b, call what, size_t n)
{
    static const int32_t one[] = {5}, more[] = {6, 7, 8};
    static const qn_choice choices[] = {{.ids = one, .n_ids = 1}, {.ids = more, .n_ids = 3}};
    const qn_classify_options logits = {.logits = 1}, scores = {.choices = {choices, 2}};
    b->n_results = b->n_ok = b->most_bytes = 0;
    switch (what) {
    case CLASSIFY:
        return qn_classify(b->model, b->prompts, n, &logits, take_class, b);
    case CHOOSE:
        return qn_classify(b->model, b->prompts, n, &scores, take_class, b);
    case SCORE:
        return qn_score(b->model, b->prompts, n, NULL, take_score, b);
    case EMBED:
        return qn_embed(b->model, b->prompts, n, NULL, take_vector, b);
    default:
        return generate(b, n);
    }
}

static void begin(bench *b)
{
    *b = (bench){0};
    const qn_model_options o = {.backend = "mock", .n_threads = 1, .context_size = 128, .parallel_slots = 2};
    qn_test_ok(qn_model_open("3", &o, &b->model));
    qn_test_ok(qn_model_set_cache_limit(b->model, 0, NULL));
    for (int i = 0; i < PROMPTS; i++) {
        for (int k = 0; k < LENGTH; k++)
            b->ids[i][k] = (int32_t)(10 + qn_random_bits((uint64_t)i, (uint64_t)k) % 30000);
        b->rows[i] = (qn_ids){b->ids[i], LENGTH};
        b->prompts[i] = (qn_prompt){.rows = &b->rows[i], .n_rows = 1};
    }
}

/* At least what a prompt's own results take, while they are there. */
static size_t least_bytes(const bench *b, call what)
{
    qn_model_info info;
    qn_test_ok(qn_model_get_info(b->model, &info));
    const size_t ids = LENGTH * sizeof(int32_t);
    switch (what) {
    case CLASSIFY:
        return ids + (size_t)info.vocab_size * sizeof(float);
    case CHOOSE:
        return 2 * ids + 2 * sizeof(qn_choice_score);
    case SCORE:
        return ids + LENGTH * sizeof(double);
    case EMBED:
        return ids + (size_t)info.hidden_size * sizeof(double);
    default:
        return ids;
    }
}

static void is_held_and_given_back(void **state)
{
    bench b;
    begin(&b);
    for (call what = 0; what < N_CALLS; what++) {
        run(&b, what, 1); /* what a first call leaves is not the list's */
        size_t held = memory_of(&b).other_bytes;
        qn_test_ok(run(&b, what, PROMPTS));
        assert_int_equal(b.n_ok, PROMPTS);
        assert_true(b.most_bytes >= held + PROMPTS * least_bytes(&b, what));
        assert_int_equal(memory_of(&b).other_bytes, held);
        b.stop_after = 3;
        assert_int_equal(run(&b, what, PROMPTS), QN_E_CANCELLED);
        assert_int_equal(b.n_results, 3);
        assert_int_equal(memory_of(&b).other_bytes, held);
        b.stop_after = 0;
    }
    qn_model_close(&b.model);
}

static void smaller_parts(void **state)
{
    bench b;
    begin(&b);
    for (call what = 0; what < N_CALLS; what++) {
        uint64_t hashes[PROMPTS];
        qn_test_ok(run(&b, what, 1));
        qn_test_ok(qn_model_clear_cache(b.model));
        qn_test_ok(qn_model_reset_peak_memory(b.model));
        qn_test_ok(run(&b, what, 1));
        size_t alone = memory_of(&b).peak_memory_bytes, held = memory_of(&b).other_bytes;
        qn_test_ok(run(&b, what, PROMPTS));
        memcpy(hashes, b.hashes, sizeof hashes);
        size_t list = b.most_bytes - held;
        qn_test_ok(qn_model_set_memory_limit(b.model, alone + list / 2, NULL));
        qn_test_ok(run(&b, what, PROMPTS));
        assert_int_equal(b.n_results, PROMPTS);
        assert_int_equal(b.n_ok, PROMPTS);
        assert_memory_equal(hashes, b.hashes, sizeof hashes);
        assert_true(b.most_bytes < held + list);
        assert_int_equal(memory_of(&b).other_bytes, held);
        qn_test_ok(qn_model_set_memory_limit(b.model, memory_of(&b).active_memory_bytes + 1, NULL));
        /* Answers are the whole call's. */
        assert_int_equal(run(&b, what, 5), what == CHOOSE ? QN_E_NOMEM : QN_OK);
        assert_int_equal(b.n_results, what == CHOOSE ? 0 : 5);
        assert_int_equal(b.n_ok, 0);
        assert_int_equal(memory_of(&b).other_bytes, held);
        qn_test_ok(qn_model_set_memory_limit(b.model, 0, NULL));
    }
    qn_model_close(&b.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_held_and_given_back),
                                       cmocka_unit_test(smaller_parts)};
    return cmocka_run_group_tests_name("memory of lists", tests, NULL, NULL);
}
