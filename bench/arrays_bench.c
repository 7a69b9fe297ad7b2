/* What arrays cost beside what the machine can do, measured in turns in the same run. usage: arrays_bench
 * [--threads N] [--turns N] [fusion | matmul]...   (default: both)
 *
 * Rows are CSV: the work, its size, threads, instruction set, the medians of both times in microseconds, and
 * the lowest, median and highest ratio of two that were measured one after the other.
 *
 * fusion: a program that is a chain of k element-wise operations on two arrays of 10^7 floats, over one pass
 * over them that does nothing but add (the faster of plain and of streaming stores). The result has its
 * memory. matmul: a square product through a program, over the same multiply-adds at the peak of the cores
 * (f32, and bf16 where the set has it); and of f32 over OpenBLAS, where libopenblas.so.0 is installed, with
 * as many threads. What building and planning a graph costs is graph_bench's. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "array/program.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"
#include "bench/peaks.h"
#include "device/cpu/kernels/kernels.h"

enum {
    TURNS_MAX = 101,
    ELEMENTS = 10000000,
    CHAIN_MAX = 12,
    SQUARE = 2048,
    PEAK_ROUNDS = 4000000,
    PAUSE_NS = 30000000
};

typedef struct {
    int n_threads, turns;
    qn_device *device;
    qn_pool *pool;
    const qn_kernels *kernels;
} bench;

static void check(qn_status status)
{
    if (status == QN_OK) return;
    fprintf(stderr, "arrays_bench: %s\n", qn_last_error());
    exit(1);
}

/* ---- turns -------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

typedef void work_fn(bench *b, void *what);

static double timed(bench *b, work_fn *fn, void *what)
{
    const int64_t start = qn_clock_ns();
    fn(b, what);
    return (double)(qn_clock_ns() - start) * 1e-3;
}

/* Ratios of `of` to `beside`, whose time is multiplied by `factor`. Between two a pause of 30 ms: threads of
 * others that wait for work busily, as OpenBLAS's do, have gone to sleep by then. */
static void compare(bench *b, const char *name, int64_t size, work_fn *of, void *of_what, work_fn *beside,
                    void *beside_what, double factor)
{
    double x[TURNS_MAX], y[TURNS_MAX], ratio[TURNS_MAX];
    of(b, of_what);
    beside(b, beside_what);
    for (int i = 0; i < b->turns; i++) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        y[i] = timed(b, beside, beside_what) * factor;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        x[i] = timed(b, of, of_what);
        ratio[i] = x[i] / y[i];
    }
    const double middle = median(ratio, b->turns);
    printf("%s,%lld,%d,%s,%.1f,%.1f,%.3f,%.3f,%.3f\n", name, (long long)size, b->n_threads, b->kernels->name,
           median(x, b->turns), median(y, b->turns), ratio[0], middle, ratio[b->turns - 1]);
    fflush(stdout);
}

static void run_program(bench *b, void *what)
{
    check(qn_program_run(what, &(qn_sizes){{0}}));
}

/* ---- fusion ------------------------------------------------------------------------------------------- */

typedef struct {
    const float *x, *y;
    float *out;
    int streams; /* stores that pass the caches by */
} pass;

#if defined(__x86_64__)
/* Eight vectors of one array, then eight of the other: whole pages' rows at a time. */
PEAK_AVX512 static void add_avx512(const pass *p, int64_t i, int64_t end)
{
    for (; i + 128 <= end; i += 128) {
        __m512 v[8];
        for (int j = 0; j < 8; j++) v[j] = _mm512_loadu_ps(p->x + i + 16 * j);
        for (int j = 0; j < 8; j++) v[j] = _mm512_add_ps(v[j], _mm512_loadu_ps(p->y + i + 16 * j));
        if (p->streams)
            for (int j = 0; j < 8; j++) _mm512_stream_ps(p->out + i + 16 * j, v[j]);
        else
            for (int j = 0; j < 8; j++) _mm512_storeu_ps(p->out + i + 16 * j, v[j]);
    }
    for (; i < end; i++) p->out[i] = p->x[i] + p->y[i];
    _mm_sfence();
}

PEAK_AVX2 static void add_avx2(const pass *p, int64_t i, int64_t end)
{
    for (; i + 64 <= end; i += 64) {
        __m256 v[8];
        for (int j = 0; j < 8; j++) v[j] = _mm256_loadu_ps(p->x + i + 8 * j);
        for (int j = 0; j < 8; j++) v[j] = _mm256_add_ps(v[j], _mm256_loadu_ps(p->y + i + 8 * j));
        if (p->streams)
            for (int j = 0; j < 8; j++) _mm256_stream_ps(p->out + i + 8 * j, v[j]);
        else
            for (int j = 0; j < 8; j++) _mm256_storeu_ps(p->out + i + 8 * j, v[j]);
    }
    for (; i < end; i++) p->out[i] = p->x[i] + p->y[i];
    _mm_sfence();
}
#endif

static void add_share(void *arg, int thread, int n_threads)
{
    const pass *p = arg;
    int64_t begin, end;
    qn_pool_share(ELEMENTS, 64, thread, n_threads, &begin, &end);
#if defined(__x86_64__)
    if (peak_has_avx512()) {
        add_avx512(p, begin, end);
        return;
    }
    if (peak_has_avx2()) {
        add_avx2(p, begin, end);
        return;
    }
#endif
    for (int64_t i = begin; i < end; i++) p->out[i] = p->x[i] + p->y[i];
}

static void run_pass(bench *b, void *what)
{
    qn_pool_run(b->pool, add_share, what);
}

/* t = t y, t + x, max(t, a), a t, ..: k of them, each of a value that the one before gave. */
static qn_array *chain(qn_scope *s, qn_array *x, qn_array *y, int k)
{
    static const qn_prim by[4] = {QN_PRIM_MUL, QN_PRIM_ADD, QN_PRIM_MAXIMUM, QN_PRIM_MUL};
    qn_array *a = qn_scalar(s, 0.5f), *t = x;
    for (int i = 0; i < k; i++) t = qn_binary(s, by[i % 4], t, i % 4 == 0 ? y : i % 4 == 1 ? x : a);
    return t;
}

/* Both go over the program's own memory. */
static void fusion(bench *b)
{
    for (int k = 2; k <= CHAIN_MAX; k += k < 4 ? 1 : 2) {
        qn_scope *s = qn_scope_new(b->device);
        const int64_t n = ELEMENTS;
        qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_make(1, &n)), *out = NULL;
        qn_array *y = qn_input(s, QN_DTYPE_F32, qn_shape_make(1, &n));
        qn_program *program = NULL;
        out = chain(s, x, y, k);
        check(qn_program_new(s, &(qn_program_options){.name = "chain"}, 1, &out, &program));
        float *at[2] = {qn_program_input(program, 0), qn_program_input(program, 1)};
        for (int64_t i = 0; i < n; i++) at[0][i] = at[1][i] = 0.5f + (float)(i % 1000) * 1e-3f;
        pass p = {at[0], at[1], qn_program_output_buffer(program, 0)->data, 0};
        double time[2][TURNS_MAX];
        for (int i = 0; i < 2 * b->turns; i++) {
            p.streams = i % 2;
            time[i % 2][i / 2] = timed(b, run_pass, &p);
        }
        p.streams = median(time[1], b->turns) < median(time[0], b->turns);
        compare(b, "fusion", k, run_program, program, run_pass, &p, 1);
        qn_program_free(program);
        qn_scope_free(s);
    }
}

/* ---- products ----------------------------------------------------------------------------------------- */

typedef struct {
    peak_mac_fn *fn;
    volatile uint64_t sink;
} peak;

static void peak_share(void *arg, int thread, int n_threads)
{
    peak *p = arg;
    p->sink = p->fn(PEAK_ROUNDS);
}

static void run_peak(bench *b, void *what)
{
    qn_pool_run(b->pool, peak_share, what);
}

typedef void sgemm_fn(int order, int turn_a, int turn_b, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);

typedef struct {
    sgemm_fn *sgemm;
    const float *a, *b;
    float *out;
} blas;

static void run_blas(bench *b, void *what)
{
    const blas *w = what;
    w->sgemm(101, 111, 111, SQUARE, SQUARE, SQUARE, 1, w->a, SQUARE, w->b, SQUARE, 0, w->out,
             SQUARE); /* by rows */
}

static void set_numbers(qn_array *a, qn_dtype dtype, void *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = (float)((i * 2654435761u >> 7) % 1000) * 2e-3f - 1;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (dtype == QN_DTYPE_F32)
            ((float *)to)[i] = x;
        else
            ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
    }
}

static void product(bench *b, qn_dtype dtype, const char *type, blas *other)
{
    qn_scope *s = qn_scope_new(b->device);
    const int64_t dims[2] = {SQUARE, SQUARE}, n = (int64_t)SQUARE * SQUARE;
    qn_array *x = qn_input(s, dtype, qn_shape_make(2, dims)), *y = qn_input(s, dtype, qn_shape_make(2, dims));
    qn_array *out = qn_matmul(s, x, y);
    qn_program *p = NULL;
    check(qn_program_new(s, &(qn_program_options){.name = "product", .precision = QN_PRECISION_HIGH}, 1, &out,
                         &p));
    set_numbers(x, dtype, qn_program_input(p, 0), n);
    set_numbers(y, dtype, qn_program_input(p, 1), n);
    peak best = {0};
    double per_round = 0;
    for (size_t i = 0; i < sizeof peak_arithmetic / sizeof *peak_arithmetic; i++)
        if (peak_arithmetic[i].usable() && strcmp(peak_arithmetic[i].type, type) == 0) {
            best.fn = peak_arithmetic[i].run;
            per_round = peak_arithmetic[i].macs_per_round;
        }
    const double factor = (double)n * SQUARE / (per_round * PEAK_ROUNDS * b->n_threads);
    char name[40];
    snprintf(name, sizeof name, "matmul %s over its peak", type);
    if (best.fn) compare(b, name, SQUARE, run_program, p, run_peak, &best, factor);
    if (other) {
        other->a = qn_program_input(p, 0);
        other->b = qn_program_input(p, 1);
        other->out = qn_alloc_array((size_t)n, sizeof(float));
        if (!other->out) check(QN_E_NOMEM);
        compare(b, "matmul f32 over OpenBLAS", SQUARE, run_program, p, run_blas, other, 1);
        const float *ours = qn_program_output(p, 0);
        for (int64_t i = 0; i < n; i++)
            if (!(other->out[i] - ours[i] < 1e-2f && ours[i] - other->out[i] < 1e-2f)) {
                fprintf(stderr, "arrays_bench: OpenBLAS has %g where we have %g\n", other->out[i], ours[i]);
                exit(1);
            }
        qn_free(other->out);
    }
    qn_program_free(p);
    qn_scope_free(s);
}

static void products(bench *b)
{
    blas other = {0};
    setenv("OPENBLAS_THREAD_TIMEOUT", "4", 1); /* its threads do not wait busily while we are measured */
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    void (*set_threads)(int) = NULL;
    if (library) {
        *(void **)&other.sgemm = dlsym(library, "cblas_sgemm");
        *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
        if (set_threads) set_threads(b->n_threads);
    }
    if (!other.sgemm)
        fprintf(stderr, "arrays_bench: OpenBLAS is left out: libopenblas.so.0 is not installed\n");
    product(b, QN_DTYPE_F32, "f32", other.sgemm ? &other : NULL);
    if (b->kernels->gemm_bf16)
        product(b, QN_DTYPE_BF16, "bf16", NULL);
    else
        fprintf(stderr, "arrays_bench: bf16 is left out: %s does not multiply it\n", b->kernels->name);
    if (library) dlclose(library);
}

/* ---- the command -------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(bench *b);
    } parts[] = {{"fusion", fusion}, {"matmul", products}};
    bench b = {.n_threads = qn_threads_default(), .turns = 9};
    int i = 1;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        const long n = strtol(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--threads") == 0 && n > 0 && n <= 1024)
            b.n_threads = (int)n;
        else if (strcmp(argv[i], "--turns") == 0 && n > 0 && n <= TURNS_MAX)
            b.turns = (int)n;
        else
            break;
    }
    int known = i == argc;
    for (int k = i; k < argc; k++)
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++)
            known += strcmp(argv[k], parts[j].name) == 0;
    if (known != (i == argc ? 1 : argc - i)) {
        fprintf(stderr, "usage: arrays_bench [--threads N] [--turns N] [fusion | matmul]...\n");
        return 2;
    }
    check(qn_kernels_get(&b.kernels));
    check(qn_pool_new(b.n_threads, &b.pool));
    check(qn_device_open("cpu", &(qn_device_options){.n_threads = b.n_threads}, &b.device));
    printf("work,size,threads,set,us,beside_us,ratio_min,ratio_median,ratio_max\n");
    for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) {
        int wanted = i == argc;
        for (int k = i; k < argc; k++) wanted |= strcmp(argv[k], parts[j].name) == 0;
        if (wanted) parts[j].run(&b);
    }
    qn_device_close(b.device);
    qn_pool_free(b.pool);
    return 0;
}
