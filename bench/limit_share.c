/* How much of the machine's limit decoding or a prompt takes, with the limit measured between any two of its
 * bursts: on a machine that others share it changes within a second, and a figure from before the run says
 * little about it.
 *
 * usage: limit_share [--json] MODEL PRECISION LIMIT AMOUNT [BURSTS [THREADS]]
 *
 * LIMIT read: decoding, AMOUNT the bytes of all tensors that a token needs. LIMIT int8, bf16 or f32: a prompt
 * of 512 tokens, AMOUNT its multiply-adds (bench/costs.py counts both; bench/shares passes them).
 *
 * A burst of decoding is as many tokens as take about 30 ms, of the first 128 of a sequence, in pages that
 * another one had before, so that the system gives no memory on the way; its limit is the better of the
 * moments before and after it, each the best of two readings of 256 MiB. A prompt is one burst; it takes
 * about a second, in which a core that is lent in parts has many speeds: its limit is what multiply-adds
 * alone reached on average in PEAK_NS before and after it. Shown are the median and the quartiles over BURSTS
 * (40) of the share and of the limit. Multiply-adds are those of the set in use. */
#include <quern/quern.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "api/handles.h"
#include "backend/native/native_parts.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"
#include "bench/peaks.h"
#include "engine/machine/engine.h"
#include "engine/sample/sampler.h"

enum {
    DECODED = 128, /* tokens of a sequence, from the start, as bench/peers and llama-bench decode */
    PROMPT = 512,
    BURST_NS = 30000000,
    PEAK_NS = 300000000,
    MAC_ROUNDS = 20000, /* 1 ms */
    BURSTS_MAX = 400,
    PAUSE_NS = 10000000
};
static const size_t read_bytes = (size_t)256 << 20;

typedef struct {
    char *buffer;
    qn_pool *pool;
    peak_read_fn *read; /* the limit of decoding, or of a prompt: */
    peak_mac_fn *mac;
    int macs_per_round;
    int64_t until_ns;
    _Atomic int64_t n_rounds; /* of all threads until then */
    volatile uint64_t sink;
    qn_model *model;
    qn_engine *engine;
    qn_sampler *sampler; /* greedy */
    qn_sequence *sequence;
    int64_t vocab_size, n_tokens; /* tokens: of the sequence */
    int32_t id;
} bench;

static void check(qn_status status)
{
    if (status == QN_OK) return;
    fprintf(stderr, "limit_share: %s\n", qn_last_error());
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

/* The model's threads and the meters', which look out for more work for a while, leave the cores. */
static void pause_threads(void)
{
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* Bytes per second, the best of n readings. */
static double bandwidth(bench *b, int n)
{
    double best = 0;
    pause_threads();
    for (int i = 0; i < n; i++) {
        int64_t start = qn_clock_ns();
        qn_pool_run(b->pool, read_share, b);
        double now = (double)read_bytes / ((double)(qn_clock_ns() - start) * 1e-9);
        if (now > best) best = now;
    }
    pause_threads();
    return best;
}

/* Until then, each thread for itself: a slow core holds up no other. */
static void multiply(void *arg, int thread, int n_threads)
{
    (void)thread, (void)n_threads;
    bench *b = arg;
    int64_t n = 0;
    for (; qn_clock_ns() < b->until_ns; n++) b->sink = b->mac(MAC_ROUNDS);
    atomic_fetch_add(&b->n_rounds, n * MAC_ROUNDS);
}

/* Multiply-adds per second of all threads together, on average. */
static double multiply_adds(bench *b, int64_t ns)
{
    pause_threads();
    int64_t start = qn_clock_ns();
    b->until_ns = start + ns;
    atomic_store(&b->n_rounds, 0);
    qn_pool_run(b->pool, multiply, b);
    double seconds = (double)(qn_clock_ns() - start) * 1e-9;
    pause_threads();
    return (double)atomic_load(&b->n_rounds) * b->macs_per_round / seconds;
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

static int arithmetic_of(const char *set, const char *type)
{
    for (int i = 0; i < (int)(sizeof peak_arithmetic / sizeof *peak_arithmetic); i++)
        if (strcmp(peak_arithmetic[i].type, type) == 0 && strcmp(peak_arithmetic[i].set, set) == 0) return i;
    return -1;
}

/* What a set has no instruction for is done in float32, as the kernels do. */
static void choose_arithmetic(bench *b, const char *set, const char *type)
{
    int i = arithmetic_of(set, type);
    if (i < 0) i = arithmetic_of(set, "f32");
    if (i < 0) i = arithmetic_of("plain", "f32");
    b->mac = peak_arithmetic[i].run;
    b->macs_per_round = peak_arithmetic[i].macs_per_round;
}

static qn_status choose_id(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    bench *b = user;
    return qn_sampler_draw(b->sampler, logits, b->n_tokens, &b->id);
}

/* A new sequence behind a prompt. */
static void begin(bench *b, int n)
{
    int32_t ids[PROMPT];
    qn_sequence_free(b->sequence);
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(1 + i * 7919LL % (b->vocab_size - 1));
    check(qn_sequence_new(b->engine, &b->sequence));
    check(qn_engine_step(b->engine, 1, &(qn_feed){b->sequence, ids, n, QN_LOGITS_LAST}, choose_id, NULL, b));
    b->n_tokens = n;
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

/* Of n values in order. */
static double median(const double *x, int64_t n)
{
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Tokens of a burst. */
static int64_t decode_bursts(bench *b, double bytes, int64_t bursts, double *shares, double *limits)
{
    choose_reader(b);
    begin(b, 1);
    while (b->n_tokens < DECODED) step(b);
    begin(b, 1);
    int64_t n = 0, start = qn_clock_ns();
    for (; qn_clock_ns() - start < BURST_NS && b->n_tokens < DECODED; n++) step(b);

    double before = bandwidth(b, 2);
    for (int64_t i = 0; i < bursts; i++) {
        if (b->n_tokens + n > DECODED) {
            begin(b, 1);
            before = bandwidth(b, 2);
        }
        start = qn_clock_ns();
        for (int64_t k = 0; k < n; k++) step(b);
        double took = (double)(qn_clock_ns() - start) * 1e-9;
        double after = bandwidth(b, 2);
        limits[i] = after > before ? after : before;
        shares[i] = bytes * (double)n / took / limits[i];
        before = after;
    }
    return n;
}

static int64_t prompt_bursts(bench *b, double macs, int64_t bursts, double *shares, double *limits)
{
    begin(b, PROMPT);
    double before = multiply_adds(b, PEAK_NS);
    for (int64_t i = 0; i < bursts; i++) {
        int64_t start = qn_clock_ns();
        begin(b, PROMPT);
        double took = (double)(qn_clock_ns() - start) * 1e-9;
        double after = multiply_adds(b, PEAK_NS);
        limits[i] = (after + before) / 2;
        shares[i] = macs / took / limits[i];
        before = after;
    }
    return PROMPT;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: limit_share [--json] MODEL PRECISION read|int8|bf16|f32 AMOUNT [BURSTS [THREADS]]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static double shares[BURSTS_MAX], limits[BURSTS_MAX];
    int json = argc > 1 && strcmp(argv[1], "--json") == 0;
    bench b = {.id = 1};
    qn_model_info info;
    argv += json;
    argc -= json;
    double amount = argc > 4 ? strtod(argv[4], NULL) : 0;
    int64_t bursts = argc > 5 ? strtoll(argv[5], NULL, 10) : 40;
    qn_model_options o = {.parallel_slots = 1, .context_size = 2 * PROMPT, .no_prefix_cache = 1};
    if (argc < 5 || !(amount > 0) || bursts < 1 || bursts > BURSTS_MAX ||
        !parse_precision(argv[2], &o.precision))
        return usage();
    int decodes = strcmp(argv[3], "read") == 0;
    if (!decodes && strcmp(argv[3], "int8") != 0 && strcmp(argv[3], "bf16") != 0 &&
        strcmp(argv[3], "f32") != 0)
        return usage();
    o.n_threads = argc > 6 ? (int)strtol(argv[6], NULL, 10) : qn_threads_default();
    check(qn_pool_new(o.n_threads, &b.pool));
    check(qn_model_open(argv[1], &o, &b.model));
    check(qn_model_get_info(b.model, &info));
    if (!decodes) choose_arithmetic(&b, info.cpu_set, argv[3]);
    b.engine = ((native_model *)b.model->object)->engine;
    b.vocab_size = info.vocab_size;
    check(qn_sampler_new(qn_engine_logits_kernels(b.engine), &(qn_generate_options){0}, b.vocab_size, NULL,
                         &b.sampler));
    if (decodes) {
        b.buffer = qn_alloc(read_bytes + 4096); /* prefetching looks a little ahead */
        if (!b.buffer) check(QN_E_NOMEM);
        madvise((void *)(((uintptr_t)b.buffer + 4095) & ~(uintptr_t)4095), read_bytes, MADV_HUGEPAGE);
        qn_pool_run(b.pool, fill, &b);
    }
    int64_t n = (decodes ? decode_bursts : prompt_bursts)(&b, amount, bursts, shares, limits);
    qsort(shares, (size_t)bursts, sizeof *shares, by_value);
    qsort(limits, (size_t)bursts, sizeof *limits, by_value);
    int64_t low = bursts / 4, high = bursts * 3 / 4;
    double share = median(shares, bursts), limit = median(limits, bursts) * 1e-9;
    if (json)
        printf("{\"share\": [%.4f, %.4f, %.4f], \"limit_g_per_sec\": [%.1f, %.1f, %.1f], \"tokens\": %lld}\n",
               shares[low], share, shares[high], limits[low] * 1e-9, limit, limits[high] * 1e-9,
               (long long)(n * bursts));
    else
        printf("share %.0f%% (%.0f to %.0f), %s %.1f G/s (%.1f to %.1f), %lld bursts of %lld tokens\n",
               100 * share, 100 * shares[low], 100 * shares[high], argv[3], limit, limits[low] * 1e-9,
               limits[high] * 1e-9, (long long)bursts, (long long)n);
    qn_pool_free(b.pool);
    qn_free(b.buffer);
    qn_sequence_free(b.sequence);
    qn_sampler_free(b.sampler);
    qn_model_close(&b.model);
    return 0;
}
