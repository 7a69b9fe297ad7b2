/* Speculation changes nothing: tokens that were fed and taken back leave no trace, whatever the model is made
 * of, and generations give the same tokens with and without guesses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "base/map.h"
#include "base/random.h"
#include "engine/draft.h"
#include "model/config.h"
#include "tests/engine_help.h"
#include "tests/fixtures.h"
#include "tests/kinds.h"

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

static void guesses_were_made(void **state)
{
    print_message("%d tokens were guessed, %d came true\n", (int)n_guessed, (int)n_came_true);
    assert_true(n_came_true > 100 && n_came_true < n_guessed);
}

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 * QN_TEST_KINDS_MAX + 1];
    static char labels[2 * QN_TEST_KINDS_MAX][2 * QN_TEST_KIND_BYTES];
    static qn_test_kind_list kinds;
    int n = 0;
    qn_test_kinds(&kinds);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (int i = 0; i < kinds.n; i++) {
        snprintf(labels[n], sizeof labels[n], "taken_back_%s", kinds.names[i]);
        tests[n] = (struct CMUnitTest){labels[n], taken_back, NULL, NULL, kinds.names[i]};
        n++;
        snprintf(labels[n], sizeof labels[n], "same_text_%s", kinds.names[i]);
        tests[n] = (struct CMUnitTest){labels[n], same_text, NULL, NULL, kinds.names[i]};
        n++;
    }
    if (argc < 2) tests[n++] = (struct CMUnitTest){"guesses_were_made", guesses_were_made, NULL, NULL, NULL};
    return _cmocka_run_group_tests("speculation", tests, (size_t)n, NULL, NULL);
}
