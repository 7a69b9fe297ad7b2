/* Speculation changes nothing: tokens that were fed and taken back leave no trace, whatever the model is made
 * of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

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
                                                          .n_threads = 2,
                                                          .max_rows = ways[w].max_rows,
                                                          .context_size = N + QN_DRAFT_MAX});
        qn_sequence *s = qn_test_sequence(e);
        for (int64_t i = 0; i < N; i++) feed(e, s, ids + i, 1, want + i);
        int is_recurrent = qn_sequence_get_tentative_max(s) == 0;
        qn_sequence_free(s);
        int64_t n_taken = 0;
        for (uint64_t seed = 1; seed < 4; seed++) n_taken += with_wrong_ones(e, seed, ids, want);
        assert_true(is_recurrent ? n_taken == 0 : n_taken > 30);
        qn_engine_close(e);
    }
}

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[QN_TEST_KINDS_MAX];
    static char labels[QN_TEST_KINDS_MAX][2 * QN_TEST_KIND_BYTES];
    static qn_test_kind_list kinds;
    qn_test_kinds(&kinds);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (int i = 0; i < kinds.n; i++) {
        snprintf(labels[i], sizeof labels[i], "taken_back_%s", kinds.names[i]);
        tests[i] = (struct CMUnitTest){labels[i], taken_back, NULL, NULL, kinds.names[i]};
    }
    return _cmocka_run_group_tests("speculation", tests, (size_t)kinds.n, NULL, NULL);
}
