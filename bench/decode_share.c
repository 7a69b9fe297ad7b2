/* How much of the read bandwidth decoding takes, with the bandwidth measured between any two of its bursts:
 * on a machine that others share it changes within a second, and a figure from before the run says little
 * about it.
 *
 * usage: decode_share [--json] MODEL BYTES PRECISION [BURSTS [THREADS]]
 *
 * BYTES: of all tensors that a token needs, as bench/costs.py counts them (bench/shares passes them). A burst
 * is as many tokens as take about 30 ms, of one sequence of 64 to 192 tokens, in pages that another one had
 * before, so that the system gives no memory on the way; the limit of a burst is the better of the moments
 * before and after it, each the best of two readings of 256 MiB. Shown are the median and the quartiles over
 * BURSTS (40) of the share and of the bandwidth. */
#include <quern/quern.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "backend/handles.h"
#include "backend/native_parts.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"
#include "bench/peaks.h"
#include "engine/engine.h"

enum { PROMPT = 64, DEPTH = 192, BURST_NS = 30000000, BURSTS_MAX = 400, PAUSE_NS = 10000000 };
static const size_t read_bytes = (size_t)256 << 20;

typedef struct {
    char *buffer;
    qn_pool *pool;
    peak_read_fn *read;
    volatile uint64_t sink;
    qn_model *model;
    qn_engine *engine;
    qn_sequence *sequence;
    int64_t vocab_size, n_tokens; /* tokens: of the sequence */
    int32_t id;
} bench;

static void check(qn_status status)
{
    if (status == QN_OK) return;
    fprintf(stderr, "decode_share: %s\n", qn_last_error());
    exit(1);
}

static void fill(void *arg, int thread, int n_threads)
{
    bench *b = arg;
    int64_t begin, end;
    qn_pool_share((int64_t)read_bytes, PEAK_CHUNK, thread, n_threads, &begin, &end);
    memset(b->buffer + begin, 1 + thread, (size_t)(end - begin));
}

static void read_share(void *arg, int thread, int n_threads)
{
    bench *b = arg;
    int64_t begin, end;
    qn_pool_share((int64_t)read_bytes, PEAK_CHUNK, thread, n_threads, &begin, &end);
    b->sink = b->read(b->buffer + begin, (size_t)(end - begin));
}

/* Bytes per second, the best of n readings. The model's threads and the readers', which look out for more
 * work for a while, leave the cores before and after. */
static double bandwidth(bench *b, int n)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    double best = 0;
    nanosleep(&pause, NULL);
    for (int i = 0; i < n; i++) {
        int64_t start = qn_clock_ns();
        qn_pool_run(b->pool, read_share, b);
        double now = (double)read_bytes / ((double)(qn_clock_ns() - start) * 1e-9);
        if (now > best) best = now;
    }
    nanosleep(&pause, NULL);
    return best;
}

static void choose_reader(bench *b)
{
    peak_read_fn *best = NULL;
    double most = 0;
    for (size_t i = 0; i < sizeof peak_readers / sizeof *peak_readers; i++) {
        if (!peak_readers[i].usable()) continue;
        b->read = peak_readers[i].read;
        double now = bandwidth(b, 5);
        if (now > most) most = now, best = b->read;
    }
    b->read = best;
}

static qn_status choose_id(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    bench *b = user;
    int64_t best = 0;
    for (int64_t i = 1; i < b->vocab_size; i++)
        if (logits[i] > logits[best]) best = i;
    b->id = (int32_t)best;
    return QN_OK;
}

/* A new sequence behind the prompt. */
static void begin(bench *b)
{
    int32_t ids[PROMPT];
    qn_sequence_free(b->sequence);
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)(1 + i * 7919LL % (b->vocab_size - 1));
    check(qn_sequence_new(b->engine, &b->sequence));
    check(qn_engine_step(b->engine, 1, &(qn_feed){b->sequence, ids, PROMPT, QN_LOGITS_LAST}, choose_id, NULL,
                         b));
    b->n_tokens = PROMPT;
}

static void step(bench *b)
{
    qn_feed feed = {b->sequence, &b->id, 1, QN_LOGITS_LAST};
    check(qn_engine_step(b->engine, 1, &feed, choose_id, NULL, b));
    b->n_tokens++;
}

static int parse_precision(const char *name, qn_precision *out)
{
    for (int p = QN_PRECISION_HIGH; p <= QN_PRECISION_EXACT; p++)
        if (strcmp(qn_precision_name((qn_precision)p), name) == 0) {
            *out = (qn_precision)p;
            return 1;
        }
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static double shares[BURSTS_MAX], reads[BURSTS_MAX];
    int json = argc > 1 && strcmp(argv[1], "--json") == 0;
    bench b = {.id = 1};
    qn_model_info info;
    argv += json;
    argc -= json;
    double bytes = argc > 2 ? strtod(argv[2], NULL) : 0;
    int64_t bursts = argc > 4 ? strtoll(argv[4], NULL, 10) : 40;
    qn_model_options o = {.parallel_slots = 1, .context_size = 2 * DEPTH, .no_prefix_cache = 1};
    if (argc < 4 || !(bytes > 0) || bursts < 1 || bursts > BURSTS_MAX ||
        !parse_precision(argv[3], &o.precision)) {
        fprintf(stderr, "usage: decode_share [--json] MODEL BYTES PRECISION [BURSTS [THREADS]]\n");
        return 2;
    }
    o.n_threads = argc > 5 ? (int)strtol(argv[5], NULL, 10) : qn_threads_default();
    check(qn_model_open(argv[1], &o, &b.model));
    check(qn_model_get_info(b.model, &info));
    b.engine = ((native_model *)b.model->object)->engine;
    b.vocab_size = info.vocab_size;
    b.buffer = qn_alloc(read_bytes + 4096); /* prefetching looks a little ahead */
    if (!b.buffer) check(QN_E_NOMEM);
    madvise((void *)(((uintptr_t)b.buffer + 4095) & ~(uintptr_t)4095), read_bytes, MADV_HUGEPAGE);
    check(qn_pool_new(o.n_threads, &b.pool));
    qn_pool_run(b.pool, fill, &b);
    choose_reader(&b);

    begin(&b);
    while (b.n_tokens < DEPTH) step(&b);
    begin(&b);
    int64_t n = 0, start = qn_clock_ns();
    for (; qn_clock_ns() - start < BURST_NS && b.n_tokens < DEPTH; n++) step(&b);

    double before = bandwidth(&b, 2);
    for (int64_t i = 0; i < bursts; i++) {
        if (b.n_tokens + n > DEPTH) {
            begin(&b);
            before = bandwidth(&b, 2);
        }
        start = qn_clock_ns();
        for (int64_t k = 0; k < n; k++) step(&b);
        double took = (double)(qn_clock_ns() - start) * 1e-9;
        double after = bandwidth(&b, 2);
        reads[i] = after > before ? after : before;
        shares[i] = bytes * (double)n / took / reads[i];
        before = after;
    }
    qsort(shares, (size_t)bursts, sizeof *shares, by_value);
    qsort(reads, (size_t)bursts, sizeof *reads, by_value);
    int64_t low = bursts / 4, mid = bursts / 2, high = bursts * 3 / 4;
    if (json)
        printf("{\"share\": [%.4f, %.4f, %.4f], \"read_gb_per_sec\": [%.1f, %.1f, %.1f], \"tokens\": %lld}\n",
               shares[low], shares[mid], shares[high], reads[low] * 1e-9, reads[mid] * 1e-9,
               reads[high] * 1e-9, (long long)(n * bursts));
    else
        printf(
            "share %.0f%% (%.0f to %.0f), bandwidth %.1f GB/s (%.1f to %.1f), %lld bursts of %lld tokens\n",
            100 * shares[mid], 100 * shares[low], 100 * shares[high], reads[mid] * 1e-9, reads[low] * 1e-9,
            reads[high] * 1e-9, (long long)bursts, (long long)n);
    qn_pool_free(b.pool);
    qn_free(b.buffer);
    qn_sequence_free(b.sequence);
    qn_model_close(&b.model);
    return 0;
}
