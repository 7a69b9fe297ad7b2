/* Recurrent state in the engine: counted, given back, never left half-way, whatever ends a step. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

enum { N = 90, ROWS = 16 };

static const char *const kinds[] = {"models/qwen3_5", "models/qwen3_next", NULL};

static void make_ids(int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(1 + (i * 131 + i * i) % 397);
}

static qn_engine *open_engine(const char *path, int64_t max_sequences)
{
    return qn_test_engine(path, NULL,
                          (qn_engine_options){.precision = QN_PRECISION_EXACT,
                                              .n_threads = 2,
                                              .max_rows = ROWS,
                                              .context_size = 256,
                                              .max_sequences = max_sequences});
}

static size_t held(qn_engine *e)
{
    return qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_KV);
}

/* Bytes of a sequence's recurrent state. */
static size_t state_bytes(const qn_model_config *c)
{
    const qn_delta_config *d = &c->delta;
    int64_t k = d->linear_num_key_heads * d->linear_key_head_dim,
            v = d->linear_num_value_heads * d->linear_value_head_dim, n_layers = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) n_layers += c->layers[i].mixer == QN_MIXER_DELTA;
    assert_true(n_layers > 0);
    return (size_t)(n_layers * ((d->linear_conv_kernel_dim - 1) * (2 * k + v) + d->linear_key_head_dim * v)) *
           sizeof(float);
}

static qn_status ignore(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    return QN_OK;
}

/* ---- the ledger --------------------------------------------------------------------------------------- */

static void counted(void **state)
{
    static int32_t ids[N];
    make_ids(ids, N);
    qn_engine *e = open_engine(qn_test_need_fixture(*state), 2);
    size_t bytes = state_bytes(qn_engine_config(e));
    qn_sequence *s[2] = {qn_test_sequence(e), qn_test_sequence(e)};
    assert_int_equal(held(e), 0);
    qn_test_ok(qn_sequence_reserve(s[0], 1));
    size_t one = held(e);
    assert_true(one >= bytes && one < bytes + 65536);
    qn_test_ok(qn_sequence_reserve(s[0], 1));
    assert_int_equal(held(e), one);
    qn_test_ok(qn_sequence_reserve(s[1], 1));
    assert_int_equal(held(e), 2 * one);
    qn_sequence_free(s[0]);
    assert_int_equal(held(e), one);
    qn_sequence_free(s[1]);
    assert_int_equal(held(e), 0);

    /* the limit: refused as a whole, and again possible afterwards */
    qn_ledger_clear_cache(qn_engine_ledger(e));
    qn_ledger_set_limit(qn_engine_ledger(e), qn_ledger_total(qn_engine_ledger(e)) + bytes / 2);
    s[0] = qn_test_sequence(e);
    assert_int_equal(qn_sequence_reserve(s[0], 1), QN_E_NOMEM);
    assert_int_equal(held(e), 0);
    qn_ledger_set_limit(qn_engine_ledger(e), 0);
    qn_test_ok(qn_sequence_reserve(s[0], 1));
    assert_int_equal(held(e), one);
    qn_sequence_free(s[0]);
    qn_engine_close(e);
}

/* Too little memory for the state of all sequences is known when the model is opened. */
static void opened_within_limit(void **state)
{
    const char *path = qn_test_need_fixture(*state);
    qn_engine *e = open_engine(path, 1);
    size_t total = qn_ledger_peak(qn_engine_ledger(e)), bytes = state_bytes(qn_engine_config(e));
    qn_engine_close(e);
    qn_engine_options o = {.n_threads = 2,
                           .max_rows = ROWS,
                           .context_size = 32,
                           .max_sequences = 64,
                           .memory_limit_bytes = total + 32 * bytes};
    int64_t blocks = qn_mem_live_blocks();
    assert_int_equal(qn_test_engine_try(path, &o, &e), QN_E_NOMEM);
    assert_int_equal(qn_mem_live_blocks(), blocks);
}

/* ---- slots -------------------------------------------------------------------------------------------- */

/* A slot that another sequence left behind is as good as a new one. */
static void slots_begin_at_zero(void **state)
{
    static int32_t ids[N];
    uint64_t expected[N], got[N];
    make_ids(ids, N);
    qn_engine *e = open_engine(qn_test_need_fixture(*state), 1);
    for (int round = 0; round < 3; round++) {
        qn_sequence *s = qn_test_sequence(e);
        qn_test_hashes(e, s, ids, N, round, round ? got : expected);
        qn_sequence_free(s);
        if (round) assert_memory_equal(got, expected, sizeof got);
        s = qn_test_sequence(e);
        qn_test_hashes(e, s, ids + 7, 40, 0, got);
        qn_sequence_free(s);
    }
    qn_engine_close(e);
}

/* ---- steps that end early ------------------------------------------------------------------------------ */

typedef struct {
    int after; /* chunks */
} stopper;

static int stop_after(void *user)
{
    return ((stopper *)user)->after-- == 0;
}

static qn_status stop_at_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    return qn_fail(QN_E_CANCELLED, "enough");
}

/* Whatever ended a step, the sequence goes on from the length that it says it has. */
static void goes_on_after(void **state)
{
    static int32_t ids[N];
    uint64_t expected[N], got[N];
    make_ids(ids, N);
    qn_engine *e = open_engine(qn_test_need_fixture(*state), 1);
    qn_sequence *s = qn_test_sequence(e);
    qn_test_hashes(e, s, ids, N, 0, expected);
    qn_sequence_free(s);
    for (int chunks = 0; chunks < 3; chunks++) {
        s = qn_test_sequence(e);
        qn_feed feed = {s, ids, N - 10, QN_LOGITS_NONE};
        stopper stop = {chunks};
        assert_int_equal(qn_engine_step(e, 1, &feed, ignore, stop_after, &stop), QN_E_CANCELLED);
        int64_t at = qn_sequence_length(s);
        feed = (qn_feed){s, ids + at, 5, QN_LOGITS_ALL};
        assert_int_equal(qn_engine_step(e, 1, &feed, stop_at_logits, NULL, NULL), QN_E_CANCELLED);
        assert_true(qn_sequence_length(s) > at);
        at = qn_sequence_length(s);
        feed = (qn_feed){s, (const int32_t[]){-1}, 1, QN_LOGITS_NONE};
        assert_int_equal(qn_engine_step(e, 1, &feed, ignore, NULL, NULL), QN_E_ARG);
        assert_int_equal(qn_sequence_length(s), at);
        qn_test_hashes(e, s, ids + at, N - at, 1, got);
        assert_memory_equal(got, expected + at, (size_t)(N - at) * sizeof *got);
        qn_sequence_free(s);
    }
    qn_engine_close(e);
}

/* While no file may grow, the program's trace cannot be written and its run fails at the end. */
static void let_files_grow(int may)
{
    struct rlimit limit;
    signal(SIGXFSZ, may ? SIG_DFL : SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = may ? limit.rlim_max : 0;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* A program that failed has changed state and committed nothing: its sequence is refused, others are not. */
static void lost(void **state)
{
    static int32_t ids[N];
    uint64_t expected[N], got[N];
    char trace[QN_TEST_DIR_MAX];
    make_ids(ids, N);
    const char *folder = qn_test_scratch();
    snprintf(trace, sizeof trace, "%s/trace", folder);
    setenv("QUERN_TRACE", trace, 1);
    qn_engine *e = open_engine(qn_test_need_fixture(*state), 3);
    unsetenv("QUERN_TRACE");
    qn_sequence *s[3] = {qn_test_sequence(e), qn_test_sequence(e), qn_test_sequence(e)};
    qn_test_hashes(e, s[0], ids, N, 0, expected);
    qn_test_hashes(e, s[1], ids, 20, 0, got);
    qn_sequence_free(s[0]);
    s[0] = qn_test_sequence(e);
    qn_test_hashes(e, s[0], ids, 20, 0, got);

    let_files_grow(0);
    qn_feed feeds[2] = {{s[1], ids + 20, 3, QN_LOGITS_NONE}, {s[2], ids, 3, QN_LOGITS_NONE}};
    qn_status status = qn_engine_step(e, 2, feeds, ignore, NULL, NULL);
    let_files_grow(1);
    assert_int_equal(status, QN_E_IO);
    assert_int_equal(qn_sequence_length(s[1]), 20);
    assert_int_equal(qn_sequence_length(s[2]), 0);
    assert_int_equal(qn_engine_step(e, 1, feeds, ignore, NULL, NULL), QN_E_DEVICE);
    assert_non_null(strstr(qn_last_error(), "lost at position 20"));
    /* one that had not begun begins again, one that was not in the step goes on */
    qn_test_hashes(e, s[2], ids, N, 0, got);
    assert_memory_equal(got, expected, sizeof got);
    qn_test_hashes(e, s[0], ids + 20, N - 20, 0, got);
    assert_memory_equal(got, expected + 20, (N - 20) * sizeof *got);
    for (int i = 0; i < 3; i++) qn_sequence_free(s[i]);
    qn_engine_close(e);
    qn_test_remove(folder);
}

/* A sequence that gets so long that it is turned by other frequencies is computed anew, its state from zero.
 */
static void lengthened(void **state)
{
    static int32_t ids[N];
    uint64_t expected[N], got[N];
    char dir[QN_TEST_DIR_MAX];
    make_ids(ids, N);
    qn_test_model_copy(qn_test_need_fixture(*state),
                       "{\"rope_scaling\": null, \"rope_parameters\": {\"rope_type\": \"longrope\","
                       " \"rope_theta\": 10000000, \"mrope_section\": null, \"partial_rotary_factor\": 0.25, "
                       "\"factor\": 2.0,"
                       " \"short_factor\": [1, 1, 1, 1], \"long_factor\": [1, 1.5, 2, 3],"
                       " \"original_max_position_embeddings\": 40}}",
                       NULL, dir);
    qn_engine *e = open_engine(dir, 1);
    assert_int_equal(qn_engine_config(e)->rope_short_positions, 40);
    qn_sequence *s = qn_test_sequence(e);
    qn_test_hashes(e, s, ids, N, 0, expected);
    qn_sequence_free(s);
    s = qn_test_sequence(e);
    for (int64_t at = 0; at < N; at += 7)
        qn_test_hashes(e, s, ids + at, N - at < 7 ? N - at : 7, 0, got + at);
    qn_sequence_free(s);
    assert_memory_equal(got + 42, expected + 42, (N - 42) * sizeof *got);
    assert_true(got[30] != expected[30]); /* short then */
    qn_engine_close(e);
    qn_test_model_remove(dir);
}

int main(void)
{
    static struct CMUnitTest tests[16];
    size_t n = 0;
    for (int i = 0; kinds[i]; i++) {
        void *kind = (void *)(uintptr_t)kinds[i];
        tests[n++] = (struct CMUnitTest){"counted", counted, NULL, NULL, kind};
        tests[n++] = (struct CMUnitTest){"opened_within_limit", opened_within_limit, NULL, NULL, kind};
        tests[n++] = (struct CMUnitTest){"slots_begin_at_zero", slots_begin_at_zero, NULL, NULL, kind};
        tests[n++] = (struct CMUnitTest){"goes_on_after", goes_on_after, NULL, NULL, kind};
        tests[n++] = (struct CMUnitTest){"lost", lost, NULL, NULL, kind};
        tests[n++] = (struct CMUnitTest){"lengthened", lengthened, NULL, NULL, kind};
    }
    return _cmocka_run_group_tests("recurrent", tests, n, NULL, NULL);
}
