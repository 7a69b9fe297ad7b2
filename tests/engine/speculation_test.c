/* Speculation changes nothing: tokens that were fed and taken back leave no trace, whatever the model is made
 * of, and generations give the same tokens with and without guesses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/schedule/draft.h"
#include "model/config/config.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/kinds.h"

/* Past windows of 16 and 20, several pages of 32, and the length where LongRoPE turns over. */
enum { N = 180 };

typedef struct {
    uint64_t *out;
    int64_t vocab;
} row_hashes;

static qn_status hash_rows(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    row_hashes *h = user;
    for (int64_t i = 0; i < n; i++)
        h->out[first + i] = qn_hash_bytes(logits + i * h->vocab, (size_t)h->vocab * sizeof *logits, 0);
    return QN_OK;
}

static void feed(qn_engine *e, qn_sequence *s, const int32_t *ids, int64_t n, uint64_t *out)
{
    row_hashes h = {out, qn_engine_config(e)->vocab_size};
    qn_feed f = {s, ids, n, QN_LOGITS_ALL};
    qn_test_ok(qn_engine_step(e, 1, &f, hash_rows, NULL, &h));
}

/* A sequence of ids[0..N), with wrong ones fed behind right ones and taken back. Returns how many were. */
static int64_t with_wrong_ones(qn_engine *e, uint64_t seed, const int32_t *ids, const uint64_t *want)
{
    qn_sequence *s = qn_test_sequence(e);
    int64_t n_taken = 0;
    for (int64_t at = 0; at < N;) {
        int32_t ahead[1 + QN_DRAFT_MAX];
        uint64_t got[1 + QN_DRAFT_MAX];
        int64_t n = (int64_t)(qn_random_bits(seed, (uint64_t)at) % (QN_DRAFT_MAX + 1)),
                right = (int64_t)(qn_random_bits(seed, (uint64_t)(at + N)) % (QN_DRAFT_MAX + 1)),
                most = qn_sequence_get_tentative_max(s);
        if (n > most) n = most;
        if (right > n) right = n;
        if (right > N - 1 - at) right = N - 1 - at;
        for (int64_t i = 0; i <= n; i++) ahead[i] = i <= right ? ids[at + i] : ids[i] + 1;
        qn_sequence_set_tentative(s, n);
        feed(e, s, ahead, 1 + n, got);
        for (int64_t i = 0; i <= right; i++)
            if (got[i] != want[at + i])
                fail_msg("seed %d: other logits at %d, row %d of %d", (int)seed, (int)(at + i), (int)i,
                         (int)(1 + n));
        at += 1 + right;
        if (n > right) qn_sequence_truncate(s, at);
        n_taken += n - right;
        assert_int_equal(qn_sequence_length(s), at);
    }
    qn_sequence_free(s);
    return n_taken;
}

static void taken_back(void **state)
{
    static const struct {
        qn_kv_type kv_type;
        int64_t max_rows;
    } ways[] = {{QN_KV_AUTO, 0}, {QN_KV_Q8_0, 7}};
    char path[128];
    int32_t ids[N];
    uint64_t want[N];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    const char *dir = qn_test_need_fixture(path);
    for (int i = 0; i < N; i++) ids[i] = (int32_t)(1 + qn_random_bits(5, (uint64_t)i) % 300);
    for (int w = 0; w < 2; w++) {
        qn_engine *e = qn_test_engine(dir, NULL,
                                      (qn_engine_options){.precision = QN_PRECISION_HIGH,
                                                          .kv_type = ways[w].kv_type,
                                                          .n_threads = 1,
                                                          .max_rows = ways[w].max_rows,
                                                          .context_size = N + QN_DRAFT_MAX});
        qn_sequence *s = qn_test_sequence(e);
        for (int64_t i = 0; i < N; i++) feed(e, s, ids + i, 1, want + i);
        int is_recurrent = qn_sequence_get_tentative_max(s) == 0;
        qn_sequence_free(s);
        int64_t n_taken = 0;
        for (uint64_t seed = 1; seed < 3; seed++) n_taken += with_wrong_ones(e, seed, ids, want);
        assert_true(is_recurrent ? n_taken == 0 : n_taken > 30);
        qn_engine_close(e);
    }
}

/* ---- generations ---- */

enum { PROMPT = 40, ROWS = 3, TOKENS = 70 };

typedef struct {
    int64_t n;
    int32_t ids[TOKENS];
    float logprobs[TOKENS];
    qn_end end;
} answer;

static void ask(qn_model *m, const qn_ids *rows, const qn_generate_options *o, answer *out,
                qn_generation_stats *stats)
{
    qn_generation *g = NULL;
    qn_test_ok(qn_generation_open(m, &(qn_prompt){.rows = rows, .n_rows = ROWS}, o, &g));
    memset(out, 0, ROWS * sizeof *out);
    for (int n_over = 0; n_over < ROWS;) {
        qn_token t;
        qn_test_ok(qn_generation_next(g, &t));
        answer *a = &out[t.row];
        if (t.end != QN_END_NONE) {
            a->end = t.end;
            n_over++;
            continue;
        }
        assert_true(a->n < TOKENS);
        assert_int_equal(t.position, PROMPT + a->n);
        a->ids[a->n] = t.id;
        a->logprobs[a->n++] = t.logprob;
    }
    qn_test_ok(qn_generation_get_stats(g, stats));
    qn_generation_close(g);
}

static int64_t n_guessed, n_came_true; /* by all kinds */

static void compare_answers(const char *kind, int way, const answer *want, const answer *got)
{
    for (int r = 0; r < ROWS; r++) {
        if (got[r].n != want[r].n || got[r].end != want[r].end)
            fail_msg("%s, way %d, row %d: %d tokens, %d without guesses", kind, way, r, (int)got[r].n,
                     (int)want[r].n);
        assert_memory_equal(got[r].ids, want[r].ids, sizeof got[r].ids);
        assert_memory_equal(got[r].logprobs, want[r].logprobs, sizeof got[r].logprobs);
    }
}

static void same_text(void **state)
{
    const qn_generate_options ways[] = {
        {.max_tokens = TOKENS, .ignore_eos = 1, .logprobs = 1},
        {.max_tokens = TOKENS - 1,
         .logprobs = 1,
         .n_top_logprobs = 2,
         .repeat_penalty = 1.05f,
         .seed = 3,
         .temperature = 0.4f,
         .top_k = 5},
        {.max_tokens = 9,
         .ignore_eos = 1,
         .temperature = 1,
         .top_p = 0.5f,
         .seed = 9,
         .frequency_penalty = -1},
        {.ignore_eos = 1,
         .seed = 9,
         .frequency_penalty = -2,
         .logprobs = 1}, /* up to the end of the context */
    };
    char path[128];
    int32_t prompt[ROWS][PROMPT];
    qn_ids rows[ROWS];
    answer want[ROWS], got[ROWS];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    qn_model *m = NULL;
    qn_test_ok(qn_model_open(
        qn_test_need_fixture(path),
        &(qn_model_options){
            .n_threads = 1, .context_size = PROMPT + TOKENS - 2, .parallel_slots = 2, .no_prefix_cache = 1},
        &m));
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < PROMPT; i++)
            prompt[r][i] = (int32_t)(5 + qn_random_bits((uint64_t)r, (uint64_t)(i % (5 + 3 * r))) % 300);
        rows[r] = (qn_ids){prompt[r], PROMPT};
    }
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        qn_generation_stats stats;
        qn_generate_options o = ways[w];
        ask(m, rows, &o, want, &stats);
        assert_int_equal(stats.n_drafted_tokens, 0);
        for (o.n_draft = 2; o.n_draft <= QN_DRAFT_TOKENS_MAX; o.n_draft += 13) {
            ask(m, rows, &o, got, &stats);
            compare_answers(*state, (int)w, want, got);
            n_guessed += stats.n_drafted_tokens;
            n_came_true += stats.n_accepted_tokens;
            assert_true(stats.n_accepted_tokens <= stats.n_drafted_tokens);
        }
    }
    qn_model_close(&m);
}

/* The draft model is the model itself, or one that guesses badly; prompts repeat nothing. */
static void guessed_by_a_model(void **state)
{
    static const char *const pairs[][2] = {{"llama", "llama"},
                                           {"mistral", "mistral"},
                                           {"gemma3_text", "gemma3_text"},
                                           {"gpt_oss", "gpt_oss"},
                                           {"phi3_longrope", "phi3_longrope"},
                                           {"qwen2", "qwen2_window"}};
    const qn_generate_options ways[] = {
        {.max_tokens = TOKENS, .ignore_eos = 1, .logprobs = 1},
        {.max_tokens = TOKENS, .ignore_eos = 1, .logprobs = 1, .seed = 3, .temperature = 0.7f},
    };
    int64_t n_right = 0, n_all = 0;
    int32_t prompt[ROWS][PROMPT];
    qn_ids rows[ROWS];
    answer want[ROWS], got[ROWS];
    (void)state;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < PROMPT; i++)
            prompt[r][i] = (int32_t)(5 + qn_random_bits((uint64_t)r, (uint64_t)i) % 300);
        rows[r] = (qn_ids){prompt[r], PROMPT};
    }
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
        char paths[2][512];
        for (int i = 0; i < 2; i++) {
            char name[128];
            snprintf(name, sizeof name, "models/%s", pairs[p][i]);
            snprintf(paths[i], sizeof paths[i], "%s", qn_test_need_fixture(name));
        }
        qn_model_options o = {.n_threads = 1, .context_size = PROMPT + TOKENS, .parallel_slots = 2};
        qn_model *alone = NULL, *m = NULL;
        qn_memory memory, with;
        qn_test_ok(qn_model_open(paths[0], &o, &alone));
        o.draft_model = paths[1];
        qn_status status = qn_model_open(paths[0], &o, &m);
        if (status == QN_E_ARG && strcmp(pairs[p][0], pairs[p][1]) != 0) { /* other tokens in this set */
            qn_model_close(&alone);
            continue;
        }
        qn_test_ok(status);
        qn_test_ok(qn_model_get_memory(alone, &memory));
        qn_test_ok(qn_model_get_memory(m, &with));
        assert_true(with.other_bytes > memory.other_bytes);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            qn_generation_stats stats;
            qn_generate_options g = ways[w];
            ask(alone, rows, &g, want, &stats);
            for (g.n_draft = 1; g.n_draft <= QN_DRAFT_TOKENS_MAX; g.n_draft += 7) {
                ask(m, rows, &g, got, &stats);
                compare_answers(pairs[p][0], (int)w, want, got);
                n_right += stats.n_accepted_tokens;
                n_all += stats.n_drafted_tokens;
            }
        }
        qn_model_close(&m);
        qn_model_close(&alone);
    }
    print_message("%d tokens were guessed, %d came true\n", (int)n_all, (int)n_right);
    assert_true(n_right > 20);
}

/* Where memory runs out a generation fails, or goes on without guesses: it never gives another text. */
static void runs_out_of_memory(void **state)
{
    static const int32_t prompt[] = {7, 8, 9, 10, 7, 8, 9, 10, 7, 8};
    const qn_ids row = {prompt, 10};
    const qn_generate_options o = {.max_tokens = 12, .ignore_eos = 1, .n_draft = 4};
    int32_t want[12];
    int n_failed = 0;
    (void)state;
    const char *path = qn_test_need_fixture("models/llama");
    int64_t blocks = qn_mem_live_blocks();
    qn_model *m = NULL;
    qn_test_ok(qn_model_open(
        path,
        &(qn_model_options){.n_threads = 1, .context_size = 64, .draft_model = path, .no_prefix_cache = 1},
        &m));
    for (uint64_t nth = 0; nth < 200; nth++) {
        qn_generation *g = NULL;
        qn_token t = {0};
        int64_t n = 0;
        if (nth) qn_mem_fail_nth(nth);
        qn_status status = qn_generation_open(m, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g);
        while (status == QN_OK && (status = qn_generation_next(g, &t)) == QN_OK && t.end == QN_END_NONE) {
            if (nth == 0) want[n] = t.id;
            assert_int_equal(t.id, want[n++]);
        }
        qn_mem_fail_nth(0);
        qn_generation_close(g);
        if (status == QN_OK) assert_int_equal(n, 12);
        n_failed += status != QN_OK;
    }
    assert_true(n_failed > 3);
    qn_model_close(&m);
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

static void no_draft_models(void **state)
{
    static const struct {
        const char *draft;
        qn_status status;
        const char *words;
    } cases[] = {
        {"models/mistral", QN_E_ARG, "its vocabulary has "},
        {"models/none_such", QN_E_IO, "draft model"},
    };
    char path[512], draft[600];
    qn_model *m = NULL;
    (void)state;
    snprintf(path, sizeof path, "%s", qn_test_need_fixture("models/qwen3_next"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(draft, sizeof draft, "%.*s/%s", (int)(strlen(path) - strlen("/models/qwen3_next")), path,
                 cases[i].draft);
        assert_int_equal(qn_model_open(path, &(qn_model_options){.draft_model = draft}, &m), cases[i].status);
        if (!strstr(qn_last_error(), cases[i].words)) fail_msg("%s", qn_last_error());
    }
    assert_int_equal(qn_model_open(path, &(qn_model_options){.draft_model = path}, &m), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "recurrent"));
}

static void guesses_were_made(void **state)
{
    print_message("%d tokens were guessed, %d came true\n", (int)n_guessed, (int)n_came_true);
    assert_true(n_came_true > 100 && n_came_true < n_guessed);
}

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 * QN_TEST_KINDS_MAX + 4];
    static const qn_test_kind_row rows[] = {{"taken_back_", taken_back}, {"same_text_", same_text}};
    int n = qn_test_kind_rows(2, rows, tests);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    tests[n++] = (struct CMUnitTest){"guessed_by_a_model", guessed_by_a_model, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"runs_out_of_memory", runs_out_of_memory, NULL, NULL, NULL};
    tests[n++] = (struct CMUnitTest){"no_draft_models", no_draft_models, NULL, NULL, NULL};
    if (argc < 2) tests[n++] = (struct CMUnitTest){"guesses_were_made", guesses_were_made, NULL, NULL, NULL};
    return _cmocka_run_group_tests("speculation", tests, (size_t)n, NULL, NULL);
}
