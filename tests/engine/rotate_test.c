/* The context limit and sliding windows: what was released is never missed, and what is held stays bounded
 * however long a sequence grows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/cpu/kernels/kernels.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

enum { LONG = 5200 };

static const char *const kinds[] = {"models/llama",
                                    "models/qwen3",
                                    "models/qwen2_window",
                                    "models/qwen2_yarn",
                                    "models/gemma2",
                                    "models/gemma3_text",
                                    "models/qwen3_5",
                                    "models/qwen3_next",
                                    "models/deepseek_v3",
                                    "models/gemma4_text",
                                    "models/gpt_oss",
                                    "models/qwen3_moe",
                                    NULL};

static void make_ids(int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(1 + (i * 131 + i * i) % 397);
}

/* n tokens past a context of `context`: once with pages that come and go, in several kinds of steps, once
 * with all pages kept and the same mask. */
static void same_as_kept(const char *path, const char *set, qn_precision precision, int64_t context,
                         int64_t n)
{
    static int32_t ids[LONG];
    static uint64_t rotated[LONG], kept[LONG], unlimited[LONG];
    make_ids(ids, n);
    qn_engine_options o = {.precision = precision, .n_threads = 1, .context_size = context, .max_rows = 64};
    qn_engine *e = qn_test_engine(path, set, o);
    qn_sequence *s = qn_test_sequence(e);
    int64_t half = n / 2;
    qn_test_hashes(e, s, ids, half, 50, rotated);
    qn_test_hashes(e, s, ids + half, n - half, 1, rotated + half);
    qn_sequence_free(s);
    qn_engine_close(e);

    o.keep_positions = n;
    o.max_rows = 48;
    e = qn_test_engine(path, set, o);
    s = qn_test_sequence(e);
    qn_test_hashes(e, s, ids, n, 0, kept);
    qn_sequence_free(s);
    qn_engine_close(e);
    for (int64_t i = 0; i < n; i++)
        if (rotated[i] != kept[i])
            fail_msg("%s %s %s: bits differ from a full cache at token %lld", path, set,
                     qn_test_precision_name(precision), (long long)i);

    e = qn_test_engine(path, set,
                       (qn_engine_options){.precision = precision, .n_threads = 1, .context_size = n});
    s = qn_test_sequence(e);
    qn_test_hashes(e, s, ids, n, 0, unlimited);
    qn_sequence_free(s);
    qn_engine_close(e);
    assert_memory_equal(unlimited, kept, (size_t)context * sizeof *kept);
    assert_true(unlimited[n - 1] != kept[n - 1]);
}

static void rotate(void **state)
{
    const char *path = qn_test_need_fixture(*state);
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++) {
            int scalar = strcmp(*set, "scalar") == 0;
            same_as_kept(path, *set, (qn_precision)p, scalar ? 40 : 100, scalar ? 150 : 700);
        }
}

/* Bytes of keys and values that one page of one layer takes in f32. */
static size_t page_bytes(const qn_model_config *c, int64_t layer)
{
    const qn_layer_config *l = &c->layers[layer];
    return (size_t)(l->num_key_value_heads *
                    (l->head_dim + (l->mixer == QN_MIXER_LATENT ? 0 : l->v_head_dim))) *
           QN_PAGE_TOKENS * sizeof(float);
}

/* Bytes of the state of a recurrent layer, which does not grow. */
static size_t delta_bytes(const qn_model_config *c)
{
    const qn_delta_config *d = &c->delta;
    int64_t k = d->linear_num_key_heads * d->linear_key_head_dim,
            v = d->linear_num_value_heads * d->linear_value_head_dim;
    return (size_t)((d->linear_conv_kernel_dim - 1) * (2 * k + v) + d->linear_key_head_dim * v) *
               sizeof(float) +
           128;
}

/* The most bytes of keys and values held while tokens [from, to) are fed one by one or in pieces. */
static size_t most_held(qn_engine *e, qn_sequence *s, const int32_t *ids, int64_t from, int64_t to,
                        int64_t piece)
{
    size_t most = 0;
    for (int64_t i = from; i < to; i += piece) {
        qn_feed feed = {s, ids + i, i + piece < to ? piece : to - i, QN_LOGITS_NONE};
        qn_test_ok(qn_engine_step(e, 1, &feed, NULL, NULL, NULL));
        size_t held = qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_KV);
        if (held > most) most = held;
    }
    return most;
}

static void bounded(void **state)
{
    static int32_t ids[LONG];
    enum { CONTEXT = 200, PIECE = 32 };
    make_ids(ids, LONG);
    qn_engine *e = qn_test_engine(
        qn_test_need_fixture(*state), NULL,
        (qn_engine_options){
            .precision = QN_PRECISION_EXACT, .n_threads = 1, .max_rows = PIECE, .context_size = CONTEXT});
    const qn_model_config *c = qn_engine_config(e);
    size_t allowed = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        int64_t window = c->layers[i].window;
        if (c->layers[i].mixer == QN_MIXER_DELTA) {
            allowed += delta_bytes(c);
            continue;
        }
        if (!window || window > CONTEXT) window = CONTEXT;
        allowed += page_bytes(c, i) * (size_t)((window + PIECE) / QN_PAGE_TOKENS + 2);
    }
    qn_sequence *s = qn_test_sequence(e);
    size_t early = most_held(e, s, ids, 0, 1000, PIECE), late = most_held(e, s, ids, 1000, 5000, PIECE),
           decode = most_held(e, s, ids, 5000, LONG, 1);
    assert_int_equal(qn_sequence_length(s), LONG);
    if (late > early || early > allowed || decode > allowed)
        fail_msg("keys and values take %zu, then %zu and %zu bytes; %zu are enough", early, late, decode,
                 allowed);
    qn_sequence_free(s);
    assert_int_equal(qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_KV), 0);
    qn_engine_close(e);
}

/* Far inside the context, layers with a window hold no more than the window. */
static void window(void **state)
{
    static int32_t ids[LONG];
    enum { N = 3000, PIECE = 64 };
    make_ids(ids, N);
    qn_engine *e = qn_test_engine(
        qn_test_need_fixture("models/gemma3_text"), NULL,
        (qn_engine_options){
            .precision = QN_PRECISION_EXACT, .n_threads = 1, .max_rows = PIECE, .context_size = N});
    const qn_model_config *c = qn_engine_config(e);
    size_t allowed = 0;
    int n_sliding = 0;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        int64_t seen = c->layers[i].window ? c->layers[i].window + PIECE : N;
        n_sliding += c->layers[i].window != 0;
        allowed += page_bytes(c, i) * (size_t)(seen / QN_PAGE_TOKENS + 2);
    }
    assert_true(n_sliding > 0);
    qn_sequence *s = qn_test_sequence(e);
    size_t most = most_held(e, s, ids, 0, N, PIECE);
    if (most > allowed) fail_msg("keys and values take %zu bytes, %zu are enough", most, allowed);
    qn_sequence_free(s);
    qn_engine_close(e);
}

int main(void)
{
    struct CMUnitTest tests[32];
    static char names[32][64];
    size_t n = 0;
    for (int i = 0; kinds[i]; i++) {
        snprintf(names[n], sizeof names[n], "rotate %s", kinds[i]);
        tests[n] = (struct CMUnitTest){names[n], rotate, NULL, NULL, (void *)(uintptr_t)kinds[i]};
        n++;
        snprintf(names[n], sizeof names[n], "bounded %s", kinds[i]);
        tests[n] = (struct CMUnitTest){names[n], bounded, NULL, NULL, (void *)(uintptr_t)kinds[i]};
        n++;
    }
    tests[n++] = (struct CMUnitTest){"window", window, NULL, NULL, NULL};
    return _cmocka_run_group_tests("rotate", tests, n, NULL, NULL);
}
