/* What this machine can do at most: bytes read from memory per second and multiply-adds per second, for each
 * number of threads and each instruction set that it has. The speed of a model is judged against these
 * figures.
 *
 * usage: limits [--json] [--mib N] [--repeats N]
 *
 * Reading: a buffer far larger than the caches, in order, each thread its share. Multiply-adds: operands in
 * registers, enough independent sums to hide latency. Best and median of the repeats; the best is the limit.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"

enum { CHUNK = 512, REPEATS_MAX = 99 };

typedef uint64_t read_fn(const char *p, size_t n_bytes); /* n_bytes: a multiple of CHUNK */
typedef uint64_t mac_fn(int64_t n_rounds);

static uint64_t read_plain(const char *p, size_t n_bytes)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < n_bytes; i += 64) {
        uint64_t v[8];
        memcpy(v, p + i, sizeof v);
        for (int j = 0; j < 8; j++) sum[j] ^= v[j];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

/* 16 sums of 4 lanes: what the plainest chip of the architecture does by itself. */
static uint64_t mac_f32_plain(int64_t n_rounds)
{
    float sum[64] = {0}, x = 1e-9f, y = 1e-9f;
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+m"(x), "+m"(y));
        float a = x, b = y;
        for (int j = 0; j < 64; j++) sum[j] += a * b + sum[j] * b;
    }
    float all = 0;
    for (int j = 0; j < 64; j++) all += sum[j];
    return (uint64_t)all;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")))
enum { SUMS = 12 }; /* latency 4 or 5 times two units, and they still fit the 16 registers of AVX2 */

AVX2 static uint64_t read_avx2(const char *p, size_t n_bytes)
{
    __m256i a[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
    for (size_t i = 0; i < n_bytes; i += CHUNK) {
        for (int j = 0; j < CHUNK; j += 64) _mm_prefetch(p + i + 1024 + j, _MM_HINT_T0);
        for (int j = 0; j < CHUNK / 32; j++)
            a[j % 4] = _mm256_xor_si256(a[j % 4], _mm256_loadu_si256((const __m256i *)(p + i) + j));
    }
    a[0] = _mm256_xor_si256(_mm256_xor_si256(a[0], a[1]), _mm256_xor_si256(a[2], a[3]));
    return (uint64_t)_mm256_extract_epi64(a[0], 0) ^ (uint64_t)_mm256_extract_epi64(a[0], 3);
}

AVX512 static uint64_t read_avx512(const char *p, size_t n_bytes)
{
    __m512i a[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                    _mm512_setzero_si512()};
    for (size_t i = 0; i < n_bytes; i += CHUNK) {
        for (int j = 0; j < CHUNK; j += 64) _mm_prefetch(p + i + 1024 + j, _MM_HINT_T0);
        for (int j = 0; j < CHUNK / 64; j++)
            a[j % 4] = _mm512_xor_si512(a[j % 4], _mm512_loadu_si512(p + i + 64 * j));
    }
    a[0] = _mm512_xor_si512(_mm512_xor_si512(a[0], a[1]), _mm512_xor_si512(a[2], a[3]));
    return (uint64_t)_mm512_reduce_add_epi64(a[0]);
}

AVX2 static uint64_t mac_f32_avx2(int64_t n_rounds)
{
    __m256 a[SUMS], x = _mm256_set1_ps(1e-9f), y = x;
    for (int j = 0; j < SUMS; j++) a[j] = _mm256_setzero_ps();
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+x"(x), "+x"(y));
        for (int j = 0; j < SUMS; j++) a[j] = _mm256_fmadd_ps(x, y, a[j]);
    }
    for (int j = 1; j < SUMS; j++) a[0] = _mm256_add_ps(a[0], a[j]);
    return (uint64_t)_mm256_cvtss_f32(a[0]);
}

/* Without VNNI a product of bytes is two multiplications of pairs and an addition. */
AVX2 static uint64_t mac_i8_avx2(int64_t n_rounds)
{
    __m256i a[SUMS], x = _mm256_set1_epi8(1), y = x, one = _mm256_set1_epi16(1);
    for (int j = 0; j < SUMS; j++) a[j] = _mm256_setzero_si256();
    for (int64_t i = 0; i < n_rounds; i++)
        for (int j = 0; j < SUMS; j++) {
            __asm__ volatile("" : "+x"(x));
            a[j] = _mm256_add_epi32(a[j], _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), one));
        }
    for (int j = 1; j < SUMS; j++) a[0] = _mm256_xor_si256(a[0], a[j]);
    return (uint64_t)_mm256_extract_epi64(a[0], 0);
}

AVX512 static uint64_t mac_f32_avx512(int64_t n_rounds)
{
    __m512 a[SUMS], x = _mm512_set1_ps(1e-9f), y = x;
    for (int j = 0; j < SUMS; j++) a[j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+v"(x), "+v"(y));
        for (int j = 0; j < SUMS; j++) a[j] = _mm512_fmadd_ps(x, y, a[j]);
    }
    for (int j = 1; j < SUMS; j++) a[0] = _mm512_add_ps(a[0], a[j]);
    return (uint64_t)_mm512_reduce_add_ps(a[0]);
}

AVX512 static uint64_t mac_i8_avx512(int64_t n_rounds)
{
    __m512i a[SUMS], x = _mm512_set1_epi8(1), y = x;
    for (int j = 0; j < SUMS; j++) a[j] = _mm512_setzero_si512();
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+v"(x), "+v"(y));
        for (int j = 0; j < SUMS; j++) a[j] = _mm512_dpbusd_epi32(a[j], x, y);
    }
    for (int j = 1; j < SUMS; j++) a[0] = _mm512_xor_si512(a[0], a[j]);
    return (uint64_t)_mm512_reduce_add_epi64(a[0]);
}

AVX512 static uint64_t mac_bf16_avx512(int64_t n_rounds)
{
    __m512 a[SUMS];
    __m512i bits = _mm512_set1_epi16(0x3000);
    for (int j = 0; j < SUMS; j++) a[j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile("" : "+v"(bits));
        for (int j = 0; j < SUMS; j++) a[j] = _mm512_dpbf16_ps(a[j], (__m512bh)bits, (__m512bh)bits);
    }
    for (int j = 1; j < SUMS; j++) a[0] = _mm512_add_ps(a[0], a[j]);
    return (uint64_t)_mm512_reduce_add_ps(a[0]);
}

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512bf16");
}
#endif

static int always(void)
{
    return 1;
}

static const struct {
    const char *set;
    int (*usable)(void);
    read_fn *read;
} readers[] = {
    {"plain", always, read_plain},
#if defined(__x86_64__)
    {"avx2", has_avx2, read_avx2},
    {"avx512", has_avx512, read_avx512},
#endif
};

static const struct {
    const char *type, *set;
    int (*usable)(void);
    mac_fn *run;
    int macs_per_round;
} arithmetic[] = {
    {"f32", "plain", always, mac_f32_plain, 128},
#if defined(__x86_64__)
    {"f32", "avx2", has_avx2, mac_f32_avx2, SUMS * 8},
    {"f32", "avx512", has_avx512, mac_f32_avx512, SUMS * 16},
    {"bf16", "avx512", has_avx512, mac_bf16_avx512, SUMS * 32},
    {"int8", "avx2", has_avx2, mac_i8_avx2, SUMS * 32},
    {"int8", "avx512", has_avx512, mac_i8_avx512, SUMS * 64},
#endif
};

typedef struct {
    char *buffer;
    size_t n_bytes;
    read_fn *read; /* or NULL: */
    mac_fn *mac;
    int64_t n_rounds;
    volatile uint64_t sink;
} work;

static void fill_share(void *arg, int thread, int n_threads)
{
    work *w = arg;
    int64_t begin, end;
    qn_pool_share((int64_t)w->n_bytes, CHUNK, thread, n_threads, &begin, &end);
    memset(w->buffer + begin, 1 + thread, (size_t)(end - begin));
}

static void do_share(void *arg, int thread, int n_threads)
{
    work *w = arg;
    if (w->mac) {
        w->sink = w->mac(w->n_rounds);
        return;
    }
    int64_t begin, end;
    qn_pool_share((int64_t)w->n_bytes, CHUNK, thread, n_threads, &begin, &end);
    w->sink = w->read(w->buffer + begin, (size_t)(end - begin));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of `repeats` runs, sorted. */
static void measure(qn_pool *pool, work *w, int repeats, double *seconds)
{
    qn_pool_run(pool, do_share, w);
    for (int r = 0; r < repeats; r++) {
        int64_t start = qn_clock_ns();
        qn_pool_run(pool, do_share, w);
        seconds[r] = (double)(qn_clock_ns() - start) * 1e-9;
    }
    qsort(seconds, (size_t)repeats, sizeof *seconds, by_value);
}

/* As many rounds as fill about 20 ms. */
static int64_t rounds_for(qn_pool *pool, work *w)
{
    for (w->n_rounds = 1000;; w->n_rounds *= 2) {
        int64_t start = qn_clock_ns();
        qn_pool_run(pool, do_share, w);
        if (qn_clock_ns() - start > 20000000) return w->n_rounds;
    }
}

/* One line, or one member of a JSON list. amount: bytes or multiply-adds of a run. */
static void show(int json, int *first, const char *type, const char *set, int n_threads, double amount,
                 const double *seconds, int repeats)
{
    double best = amount / seconds[0] * 1e-9, median = amount / seconds[repeats / 2] * 1e-9;
    if (json)
        printf("%s\n  {\"type\": \"%s\", \"set\": \"%s\", \"threads\": %d, \"best\": %.2f, \"median\": %.2f}",
               *first ? "" : ",", type, set, n_threads, best, median);
    else
        printf("%-6s %-8s %7d %10.2f %10.2f\n", type, set, n_threads, best, median);
    *first = 0;
    fflush(stdout);
}

static int run(int json, int64_t mib, int repeats)
{
    int n_max = qn_threads_default(), first = 1, rc = 1;
    double seconds[REPEATS_MAX];
    qn_pool *pool = NULL;
    work w = {.n_bytes = (size_t)mib << 20};
    w.buffer = qn_alloc(w.n_bytes + 4096); /* prefetching looks a little ahead */
    if (!w.buffer) goto out;
    madvise((void *)(((uintptr_t)w.buffer + 4095) & ~(uintptr_t)4095), w.n_bytes, MADV_HUGEPAGE);

    if (json)
        printf("{\"threads\": %d, \"buffer_mib\": %lld, \"repeats\": %d,\n \"read_gb_per_sec\": [", n_max,
               (long long)mib, repeats);
    else
        printf("reading %lld MiB\n%-6s %-8s %7s %10s %10s\n", (long long)mib, "", "set", "threads",
               "best GB/s", "median");
    for (int n_threads = 1; n_threads <= n_max; n_threads++) {
        if (qn_pool_new(n_threads, &pool) != QN_OK) goto out;
        qn_pool_run(pool, fill_share, &w);
        for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
            if (!readers[i].usable()) continue;
            w.read = readers[i].read;
            measure(pool, &w, repeats, seconds);
            show(json, &first, "read", readers[i].set, n_threads, (double)w.n_bytes, seconds, repeats);
        }
        qn_pool_free(pool);
        pool = NULL;
    }
    if (json)
        printf("\n ],\n \"gmac_per_sec\": [");
    else
        printf("multiply-adds\n%-6s %-8s %7s %10s %10s\n", "type", "set", "threads", "best G/s", "median");
    first = 1;
    for (int n_threads = 1; n_threads <= n_max; n_threads++) {
        if (qn_pool_new(n_threads, &pool) != QN_OK) goto out;
        for (size_t i = 0; i < sizeof arithmetic / sizeof *arithmetic; i++) {
            if (!arithmetic[i].usable()) continue;
            w.mac = arithmetic[i].run;
            double macs = (double)arithmetic[i].macs_per_round * (double)rounds_for(pool, &w) * n_threads;
            measure(pool, &w, repeats, seconds);
            show(json, &first, arithmetic[i].type, arithmetic[i].set, n_threads, macs, seconds, repeats);
        }
        qn_pool_free(pool);
        pool = NULL;
    }
    if (json) printf("\n ]}\n");
    rc = 0;
out:
    if (rc) fprintf(stderr, "limits: %s\n", qn_last_error());
    qn_pool_free(pool);
    qn_free(w.buffer);
    return rc;
}

int main(int argc, char **argv)
{
    int json = 0;
    int64_t mib = 512, repeats = 9;
    for (int i = 1; i < argc; i++) {
        int64_t *number = strcmp(argv[i], "--mib") == 0       ? &mib
                          : strcmp(argv[i], "--repeats") == 0 ? &repeats
                                                              : NULL;
        char *end = NULL;
        if (number && i + 1 < argc) *number = strtoll(argv[++i], &end, 10);
        if (strcmp(argv[i], "--json") == 0) {
            json = 1;
        } else if (!end || *end || mib < 1 || mib > 1 << 20 || repeats < 1 || repeats > REPEATS_MAX) {
            fprintf(stderr, "usage: limits [--json] [--mib N] [--repeats 1..%d]\n", REPEATS_MAX);
            return 2;
        }
    }
    return run(json, mib, (int)repeats);
}
