#include "tests/support/engine_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"

void qn_test_ok(qn_status status)
{
    if (status != QN_OK) fail_msg("%s: %s", qn_status_name(status), qn_last_error());
}

const qn_tensor_view *qn_test_tensor(const qn_safetensors *st, const char *fmt, int i)
{
    char name[64];
    snprintf(name, sizeof name, fmt, i);
    const qn_tensor_view *v = NULL;
    qn_test_ok(qn_safetensors_tensor(st, name, &v));
    return v;
}

const char *qn_test_precision_name(qn_precision precision)
{
    static const char *const names[] = {
        [QN_PRECISION_HIGH] = "high", [QN_PRECISION_FAST] = "fast", [QN_PRECISION_EXACT] = "exact"};
    return names[precision];
}

/* ---- engines ------------------------------------------------------------------------------------------ */

qn_status qn_test_engine_try(const char *path, const qn_engine_options *o, qn_engine **out)
{
    qn_source *source;
    qn_model_config config = {0};
    QN_TRY(qn_source_open(path, NULL, &source));
    qn_status status = qn_config_read(source, &config);
    if (status == QN_OK) status = qn_engine_open(source, &config, o, out);
    qn_config_free(&config);
    qn_source_close(source);
    return status;
}

qn_engine *qn_test_engine(const char *path, const char *set, qn_engine_options o)
{
    qn_engine *e = NULL;
    const char *before = getenv("QUERN_CPU");
    char *kept = before ? qn_strdup(before) : NULL;
    if (set) setenv("QUERN_CPU", set, 1);
    qn_status status = qn_test_engine_try(path, &o, &e);
    if (set && kept) setenv("QUERN_CPU", kept, 1);
    if (set && !kept) unsetenv("QUERN_CPU");
    qn_free(kept);
    qn_test_ok(status);
    return e;
}

qn_sequence *qn_test_sequence(qn_engine *e)
{
    qn_sequence *s = NULL;
    qn_test_ok(qn_sequence_new(e, &s));
    return s;
}

/* ---- logits ------------------------------------------------------------------------------------------- */

int64_t qn_test_argmax(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

typedef struct {
    float *out;
    int64_t vocab;
} copies;

static qn_status copy_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    copies *c = user;
    memcpy(c->out + first * c->vocab, logits, (size_t)(n * c->vocab) * sizeof *logits);
    return QN_OK;
}

void qn_test_logits(qn_engine *e, const int32_t *ids, int64_t n, int64_t piece, float *out)
{
    qn_sequence *s = qn_test_sequence(e);
    qn_sequence_expect(s, n);
    for (int64_t i = 0, step = piece ? piece : n; i < n; i += step) {
        copies c = {out + i * qn_engine_config(e)->vocab_size, qn_engine_config(e)->vocab_size};
        qn_feed feed = {s, ids + i, i + step < n ? step : n - i, QN_LOGITS_ALL};
        qn_test_ok(qn_engine_step(e, 1, &feed, copy_logits, NULL, &c));
    }
    qn_sequence_free(s);
}

typedef struct {
    int64_t vocab;
    uint64_t *hash;
} last_hash;

static qn_status hash_last(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    last_hash *h = user;
    *h->hash = qn_hash_bytes(logits + (n - 1) * h->vocab, (size_t)h->vocab * sizeof *logits, 0);
    return QN_OK;
}

uint64_t qn_test_last_hash(qn_engine *e, const int32_t *ids, int64_t n, int64_t piece)
{
    uint64_t hash = 0;
    qn_sequence *s = qn_test_sequence(e);
    for (int64_t i = 0; i < n; i += piece) {
        int64_t left = n - i < piece ? n - i : piece;
        last_hash h = {qn_engine_config(e)->vocab_size, &hash};
        qn_feed feed = {s, ids + i, left, QN_LOGITS_LAST};
        qn_test_ok(qn_engine_step(e, 1, &feed, hash_last, NULL, &h));
    }
    qn_sequence_free(s);
    return hash;
}

/* Row i of feed f is hashed into out[f][i]. */
typedef struct {
    uint64_t *out[QN_TEST_SEQUENCES];
    int64_t vocab;
} row_hashes;

static qn_status hash_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    row_hashes *h = user;
    for (int64_t i = 0; i < n; i++)
        h->out[feed][first + i] = qn_hash_bytes(logits + i * h->vocab, (size_t)h->vocab * sizeof *logits, 0);
    return QN_OK;
}

void qn_test_hashes(qn_engine *e, qn_sequence *s, const int32_t *ids, int64_t n, int64_t piece, uint64_t *out)
{
    qn_sequence_expect(s, qn_sequence_length(s) + n);
    for (int64_t i = 0, step = piece ? piece : n; i < n; i += step) {
        row_hashes h = {.out = {out + i}, .vocab = qn_engine_config(e)->vocab_size};
        qn_feed feed = {s, ids + i, i + step < n ? step : n - i, QN_LOGITS_ALL};
        qn_test_ok(qn_engine_step(e, 1, &feed, hash_logits, NULL, &h));
    }
}

typedef struct {
    int64_t vocab;
    int32_t id;
} pick;

static qn_status pick_best(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    pick *p = user;
    p->id = (int32_t)qn_test_argmax(logits + (n - 1) * p->vocab, p->vocab);
    return QN_OK;
}

void qn_test_greedy(qn_engine *e, const int32_t *ids, int64_t n, int32_t *out, int64_t n_out)
{
    qn_sequence *s = qn_test_sequence(e);
    pick p = {.vocab = qn_engine_config(e)->vocab_size};
    qn_feed feed = {s, ids, n, QN_LOGITS_LAST};
    for (int64_t i = 0; i < n_out; i++) {
        qn_test_ok(qn_engine_step(e, 1, &feed, pick_best, NULL, &p));
        out[i] = p.id;
        feed = (qn_feed){s, out + i, 1, QN_LOGITS_LAST};
    }
    qn_sequence_free(s);
}

/* ---- the same bits ------------------------------------------------------------------------------------ */

enum { N_SEQUENCES = 8 }; /* of different texts */

typedef struct {
    const qn_test_bits *what;
    int n; /* sequences in use */
    int64_t length[N_SEQUENCES];
    int32_t *ids[N_SEQUENCES];
    uint64_t *expected[N_SEQUENCES], *got[N_SEQUENCES];
} bits;

static qn_engine *open_bits(const bits *b, int n_threads, int64_t max_rows)
{
    return qn_test_engine(b->what->path, b->what->set,
                          (qn_engine_options){.precision = b->what->precision,
                                              .kv_type = b->what->kv_type,
                                              .n_threads = n_threads,
                                              .max_sequences = QN_TEST_SEQUENCES,
                                              .max_rows = max_rows,
                                              .context_size = b->what->longest});
}

static void compare(const bits *b, int i, const char *how)
{
    for (int64_t j = 0; j < b->length[i]; j++)
        if (b->expected[i][j] != b->got[i][j])
            fail_msg("%s, %s, %s: bits of sequence %d differ at token %lld of %lld: %s", b->what->name,
                     b->what->set ? b->what->set : "best set", qn_test_precision_name(b->what->precision), i,
                     (long long)j, (long long)b->length[i], how);
}

static void alone(bits *b, qn_engine *e, int i, int64_t piece, const char *how)
{
    qn_sequence *s = qn_test_sequence(e);
    qn_test_hashes(e, s, b->ids[i], b->length[i], piece, b->got[i]);
    qn_sequence_free(s);
    compare(b, i, how);
}

/* piece tokens of each sequence a step; 0: all in one. */
static void together(bits *b, qn_engine *e, int64_t piece, const char *how)
{
    qn_sequence *s[N_SEQUENCES];
    for (int i = 0; i < b->n; i++) {
        s[i] = qn_test_sequence(e);
        qn_sequence_expect(s[i], b->length[i]);
    }
    if (!piece) piece = b->what->longest;
    for (int64_t t = 0; t < b->what->longest; t += piece) {
        row_hashes h = {.vocab = qn_engine_config(e)->vocab_size};
        qn_feed feeds[N_SEQUENCES];
        int n = 0;
        for (int i = 0; i < b->n; i++) {
            int64_t left = b->length[i] - t;
            if (left <= 0) continue;
            h.out[n] = b->got[i] + t;
            feeds[n++] = (qn_feed){s[i], b->ids[i] + t, left < piece ? left : piece, QN_LOGITS_ALL};
        }
        qn_test_ok(qn_engine_step(e, n, feeds, hash_logits, NULL, &h));
    }
    for (int i = 0; i < b->n; i++) {
        qn_sequence_free(s[i]);
        compare(b, i, how);
    }
}

/* The first text by many sequences, each a token behind the one before: steps of 1, 2, ... rows up to all of
 * them. */
static void staggered(bits *b, qn_engine *e)
{
    qn_sequence *s[QN_TEST_SEQUENCES];
    for (int i = 0; i < QN_TEST_SEQUENCES; i++) {
        s[i] = qn_test_sequence(e);
        qn_sequence_expect(s[i], b->length[0]);
    }
    for (int64_t t = 0; t < QN_TEST_SEQUENCES && t < b->length[0]; t++) {
        row_hashes h = {.vocab = qn_engine_config(e)->vocab_size};
        qn_feed feeds[QN_TEST_SEQUENCES];
        uint64_t got[QN_TEST_SEQUENCES], expected[QN_TEST_SEQUENCES];
        int n_feeds = 0;
        for (int i = 0; i <= t; i++) {
            expected[n_feeds] = b->expected[0][t - i];
            h.out[n_feeds] = got + n_feeds;
            feeds[n_feeds++] = (qn_feed){s[i], b->ids[0] + t - i, 1, QN_LOGITS_ALL};
        }
        qn_test_ok(qn_engine_step(e, n_feeds, feeds, hash_logits, NULL, &h));
        for (int i = 0; i < n_feeds; i++)
            if (got[i] != expected[i])
                fail_msg("%s, %s, %s: bits differ in row %d of a step of %d sequences", b->what->name,
                         b->what->set ? b->what->set : "best set", qn_test_precision_name(b->what->precision),
                         i, n_feeds);
    }
    for (int i = 0; i < QN_TEST_SEQUENCES; i++) qn_sequence_free(s[i]);
}

void qn_test_same_bits(const qn_test_bits *what)
{
    static const int64_t shorter[N_SEQUENCES] = {0, 1, 33, 7, 64, 2, 40, 19};
    bits b = {.what = what, .n = what->brief ? N_SEQUENCES / 2 : N_SEQUENCES};
    for (int i = 0; i < b.n; i++) {
        int64_t n = i && shorter[i] < what->longest ? shorter[i] : what->longest;
        b.length[i] = n;
        b.ids[i] = test_calloc((size_t)n, sizeof *b.ids[i]);
        b.expected[i] = test_calloc((size_t)n, sizeof *b.expected[i]);
        b.got[i] = test_calloc((size_t)n, sizeof *b.got[i]);
        for (int64_t j = 0; j < n; j++)
            b.ids[i][j] =
                1 + (int32_t)(qn_random_bits((uint64_t)i, (uint64_t)j) % (uint64_t)(what->id_end - 1));
    }
    qn_engine *e = open_bits(&b, 1, 512);
    for (int i = 0; i < b.n; i++) {
        qn_sequence *s = qn_test_sequence(e);
        qn_test_hashes(e, s, b.ids[i], b.length[i], 512, b.expected[i]);
        qn_sequence_free(s);
    }
    alone(&b, e, 0, 1, "token by token");
    if (!what->brief) {
        alone(&b, e, 0, 7, "pieces of 7");
        alone(&b, e, 0, 64, "pieces of 64");
        together(&b, e, 1, "all sequences token by token");
        qn_engine_close(e);
        e = open_bits(&b, 2, what->longest > 512 ? what->longest : 512);
        alone(&b, e, 0, 0, "whole, 2 threads");
        together(&b, e, 0, "all sequences in one step, 2 threads");
        staggered(&b, e);
    }
    qn_engine_close(e);
    e = open_bits(&b, 3, 64);
    together(&b, e, 0, "all sequences in chunks of 64, 3 threads");
    alone(&b, e, b.n - 1, 1, "token by token, 3 threads"); /* few: steps are slow on fewer cores */
    qn_engine_close(e);
    for (int i = 0; i < b.n; i++) {
        test_free(b.ids[i]);
        test_free(b.expected[i]);
        test_free(b.got[i]);
    }
}

qn_engine *qn_test_adapter_engine(const char *path, const char *set, int n_threads)
{
    return qn_test_engine(path, set,
                          (qn_engine_options){.precision = QN_PRECISION_EXACT,
                                              .max_rows = 64,
                                              .max_sequences = 8,
                                              .context_size = 64,
                                              .n_threads = n_threads});
}

enum { HASHED_IDS = 19 };

uint64_t qn_test_adapter_hash(qn_engine *e, const char *adapter)
{
    int32_t id, ids[HASHED_IDS];
    uint64_t hashes[HASHED_IDS];
    for (int i = 0; i < HASHED_IDS; i++)
        ids[i] = (int32_t)(qn_random_bits(8, (uint64_t)i) % (uint64_t)qn_engine_config(e)->vocab_size);
    qn_sequence *s = qn_test_sequence(e);
    qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), adapter, &id));
    qn_sequence_set_adapter(s, id);
    qn_test_hashes(e, s, ids, HASHED_IDS, 0, hashes);
    qn_sequence_free(s);
    qn_adapters_release(qn_engine_adapters(e), id);
    for (int i = 1; i < HASHED_IDS; i++) hashes[0] = hashes[0] * 31 + hashes[i];
    return hashes[0];
}
