/* Each kernel alternates with the loop that is its limit, on the same threads: the best of both counts.
 * Limits are those of bench/peaks.h:
 *   memory           reading once what the kernel reads from memory, by the set's own loads
 *   cache            the same for as many bytes as the kernel touches, again and again
 *   int8, bf16, f32  multiply-adds of the type by the set's own instructions; two planes of int8 cost two,
 *                    or one of int16 where the set has that
 * A set that has no instruction for a type is held to its f32. */
#include "tests/kernels/kernel_speed.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/threads.h"
#include "bench/peaks.h"
#include "device/cpu/kernels/kernels.h"
#include "quant/types.h"

enum {
    FEW_ROWS = 16,
    ROWS_MAX = 1024,
    BIG_BYTES = 96 << 20,
    SMALL_OUT = 1024,
    ROW = 2048,
    ROUND_NS = 2000000
};

typedef enum { OF_MEMORY, OF_CACHE, OF_INT8, OF_INT16, OF_BF16, OF_F32 } limit;
static const char *const limit_names[] = {"memory", "cache", "int8", "int16", "bf16", "f32"};

typedef struct {
    const char *set, *dtype, *kernel, *rows;
    int n_threads, repeats;
    int64_t n_in;
    qn_pool *pool, *alone; /* all threads, and the caller by itself */
} options;

/* One kernel at work. All buffers are taken before and freed after. */
typedef struct job {
    const qn_kernels *k;
    void (*run)(struct job *j, int thread, int n_threads);
    int64_t calls; /* of run, in a row */
    double amount; /* bytes or multiply-adds of one call */
    limit of;
    int ops; /* of the limit that one multiply-add costs */
    const char *read;
    size_t read_bytes;    /* what the limit reads: of memory or in the cache */
    int64_t limit_rounds; /* of arithmetic, or of reading in the cache */
    /* Operands, as run wants them. */
    qn_dtype dtype;
    qn_act act;
    qn_ew op;
    int64_t n_in, n_out, n;
    qn_matmul_args matmul;
    qn_attend_args attend;
    int64_t n_rows;
    uint8_t *bytes, *panels, *scratch;
    size_t scratch_bytes; /* of one thread */
    float *x, *y, *out;
    volatile uint64_t sink[64];
} job;

/* ---- limits ------------------------------------------------------------------------------------------ */

static int same_set(const char *peak, const char *set)
{
    return strcmp(peak, strcmp(set, "scalar") == 0 ? "plain" : set) == 0;
}

static peak_read_fn *reader_of(const char *set)
{
    peak_read_fn *best = read_plain;
    for (size_t i = 0; i < sizeof peak_readers / sizeof *peak_readers; i++)
        if (peak_readers[i].usable() && same_set(peak_readers[i].set, set)) best = peak_readers[i].read;
    return best;
}

/* The row of peak_arithmetic, or that of f32. */
static size_t arithmetic_of(const char *set, const char *type)
{
    size_t f32 = 0;
    for (size_t i = 0; i < sizeof peak_arithmetic / sizeof *peak_arithmetic; i++) {
        if (!peak_arithmetic[i].usable() || !same_set(peak_arithmetic[i].set, set)) continue;
        if (strcmp(peak_arithmetic[i].type, type) == 0) return i;
        if (strcmp(peak_arithmetic[i].type, "f32") == 0) f32 = i;
    }
    return f32;
}

static int has_int16(const char *set)
{
    return strcmp(peak_arithmetic[arithmetic_of(set, limit_names[OF_INT16])].type, limit_names[OF_INT16]) ==
           0;
}

static void run_limit(void *arg, int thread, int n_threads)
{
    job *j = arg;
    uint64_t sink = 0;
    if (j->of == OF_MEMORY) {
        int64_t begin, end;
        qn_pool_share((int64_t)j->read_bytes, PEAK_CHUNK, thread, n_threads, &begin, &end);
        sink = reader_of(j->k->name)(j->read + begin, (size_t)(end - begin) / PEAK_CHUNK * PEAK_CHUNK);
    } else if (j->of == OF_CACHE) {
        for (int64_t i = 0; i < j->limit_rounds; i++) sink ^= reader_of(j->k->name)(j->read, j->read_bytes);
    } else {
        sink = peak_arithmetic[arithmetic_of(j->k->name, limit_names[j->of])].run(j->limit_rounds);
    }
    j->sink[thread % 64] = sink;
}

/* Bytes or multiply-adds of one run of the limit. */
static double limit_amount(const job *j, int n_threads)
{
    if (j->of == OF_MEMORY) return (double)j->read_bytes;
    if (j->of == OF_CACHE) return (double)j->read_bytes * (double)j->limit_rounds * n_threads;
    return (double)peak_arithmetic[arithmetic_of(j->k->name, limit_names[j->of])].macs_per_round *
           (double)j->limit_rounds * n_threads / j->ops;
}

/* ---- measuring --------------------------------------------------------------------------------------- */

static void run_calls(void *arg, int thread, int n_threads)
{
    job *j = arg;
    for (int64_t i = 0; i < j->calls; i++) j->run(j, thread, n_threads);
}

static double nanoseconds(qn_pool *pool, qn_pool_fn *fn, job *j)
{
    int64_t start = qn_clock_ns();
    qn_pool_run(pool, fn, j);
    return (double)(qn_clock_ns() - start);
}

/* Doubles *n until fn takes about ROUND_NS, twice in a row: once may be another process's doing. */
static void calibrate(qn_pool *pool, qn_pool_fn *fn, job *j, int64_t *n)
{
    *n = 1;
    while (nanoseconds(pool, fn, j) < ROUND_NS || nanoseconds(pool, fn, j) < ROUND_NS) *n *= 2;
}

static void measure(const options *o, qn_pool *pool, job *j, const char *what)
{
    double best = 1e30, limit_best = 1e30;
    if (!j->ops) j->ops = 1;
    calibrate(pool, run_calls, j, &j->calls);
    if (j->of != OF_MEMORY) calibrate(pool, run_limit, j, &j->limit_rounds);
    for (int i = 0; i < o->repeats; i++) {
        double t = nanoseconds(pool, run_calls, j), l = nanoseconds(pool, run_limit, j);
        best = fmin(best, t);
        limit_best = fmin(limit_best, l);
    }
    double speed = j->amount * (double)j->calls / best,
           most = limit_amount(j, qn_pool_threads(pool)) / limit_best;
    printf("%-7s %-44s %8.1f %s of %8.1f %-6s %4.0f%%\n", j->k->name, what, speed,
           j->of <= OF_CACHE ? "GB/s   " : "G mac/s", most, limit_names[j->of], 100 * speed / most);
    fflush(stdout);
}

static int wanted(const options *o, const char *kernel)
{
    return !o->kernel || strcmp(o->kernel, kernel) == 0;
}

static void fill(uint8_t *p, size_t n)
{
    for (size_t i = 0; i + 8 <= n; i += 8) {
        /* small numbers in every format, none subnormal: with those Intel's chips take 100 times as long */
        uint64_t v = (qn_random_bits(1, i) & 0x3bff3bff3bff3bff) | 0x2020202020202020;
        memcpy(p + i, &v, 8);
    }
}

static float *random_row(int64_t n)
{
    float *x = qn_alloc_array((size_t)n, sizeof *x);
    for (int64_t i = 0; x && i < n; i++) x[i] = (float)(qn_random_unit(2, (uint64_t)i) - 0.5);
    return x;
}

static int finish(job *j)
{
    int ok = j->x && j->y && j->out && j->bytes && j->panels && j->scratch;
    qn_free(j->x);
    qn_free(j->y);
    qn_free(j->out);
    qn_free(j->bytes);
    qn_free(j->panels);
    qn_free(j->scratch);
    return ok;
}

/* ---- weights ----------------------------------------------------------------------------------------- */

static void panels_of(const job *j, int thread, int n_threads, int64_t *begin, int64_t *end)
{
    qn_pool_share((j->n_out + QN_PANEL - 1) / QN_PANEL, 1, thread, n_threads, begin, end);
}

static void run_matmul(job *j, int thread, int n_threads)
{
    int64_t begin, end;
    panels_of(j, thread, n_threads, &begin, &end);
    j->k->matmul(&j->matmul, begin, end, j->scratch + (size_t)thread * j->scratch_bytes);
}

static void run_pack(job *j, int thread, int n_threads)
{
    int64_t begin, end;
    panels_of(j, thread, n_threads, &begin, &end);
    j->k->pack(j->dtype, j->n_in, j->n_out, j->bytes, begin, end, j->panels);
}

static void run_unpack_row(job *j, int thread, int n_threads)
{
    int64_t begin, end;
    panels_of(j, thread, n_threads, &begin, &end);
    for (int64_t o = begin * QN_PANEL; o < end * QN_PANEL; o++)
        j->k->unpack_row(j->dtype, j->n_in, j->panels, o,
                         (float *)(void *)(j->scratch + (size_t)thread * j->scratch_bytes));
}

static void run_unpack_panel(job *j, int thread, int n_threads)
{
    int64_t begin, end;
    panels_of(j, thread, n_threads, &begin, &end);
    for (int64_t p = begin; p < end; p++)
        j->k->unpack_panel(j->dtype, j->n_in, j->panels, p,
                           (float *)(void *)(j->scratch + (size_t)thread * j->scratch_bytes));
}

/* A weight of about n_bytes when packed, in file form and packed, with what any kernel on it wants. */
static int weight_job(const options *o, const qn_kernels *k, qn_dtype dtype, size_t n_bytes, job *j)
{
    size_t panel_bytes = qn_pack_panel_bytes(dtype, o->n_in), row_bytes;
    if (!panel_bytes || !qn_type_bytes(dtype, o->n_in, &row_bytes)) return 0;
    int64_t n_panels = n_bytes / panel_bytes ? (int64_t)(n_bytes / panel_bytes) : 1;
    *j = (job){.k = k, .dtype = dtype, .n_in = o->n_in, .n_out = n_panels * QN_PANEL};
    j->read_bytes = panel_bytes * (size_t)n_panels / PEAK_CHUNK * PEAK_CHUNK;
    j->panels = qn_alloc(panel_bytes * (size_t)n_panels + PEAK_CHUNK);
    j->bytes = qn_alloc(row_bytes * (size_t)j->n_out);
    j->scratch_bytes = (size_t)o->n_in * QN_PANEL * sizeof(float);
    for (int act = 0; act < QN_ACT_COUNT; act++) {
        size_t want = (qn_matmul_scratch_bytes(k, dtype, (qn_act)act, o->n_in, INT64_MAX) + 63) / 64 * 64;
        if (want > j->scratch_bytes) j->scratch_bytes = want;
    }
    j->scratch = qn_alloc(j->scratch_bytes * (size_t)qn_pool_threads(o->pool));
    j->x = random_row(o->n_in);
    j->y = random_row(1);
    if (j->panels) fill(j->panels, panel_bytes * (size_t)n_panels);
    if (j->bytes) fill(j->bytes, row_bytes * (size_t)j->n_out);
    j->read = (const char *)j->panels;
    j->amount = (double)row_bytes * (double)j->n_out;
    return 1;
}

static int weight_speed(const options *o, const qn_kernels *k, qn_dtype dtype)
{
    static const struct {
        const char *name;
        void (*run)(job *j, int thread, int n_threads);
    } kernels[] = {{"pack", run_pack}, {"unpack_row", run_unpack_row}, {"unpack_panel", run_unpack_panel}};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        job j;
        char what[64];
        if (!wanted(o, kernels[i].name)) continue;
        if (!weight_job(o, k, dtype, BIG_BYTES / 4, &j)) return 1;
        j.out = random_row(1);
        j.run = kernels[i].run;
        snprintf(what, sizeof what, "%s %s", kernels[i].name, qn_dtype_name(dtype));
        if (j.panels && j.bytes && j.scratch) measure(o, o->pool, &j, what);
        if (!finish(&j)) return 0;
    }
    return 1;
}

static int matmul_speed(const options *o, const qn_kernels *k, qn_dtype dtype, qn_act act, int64_t n_rows)
{
    static const char *const acts[] = {"f32", "bf16", "i8", "i8x2"};
    static const limit limits[] = {OF_F32, OF_BF16, OF_INT8, OF_INT8};
    job j;
    char what[64];
    size_t small = qn_pack_panel_bytes(dtype, o->n_in) * SMALL_OUT / QN_PANEL,
           row = qn_act_row_bytes(act, o->n_in);
    if (!weight_job(o, k, dtype, n_rows <= FEW_ROWS ? BIG_BYTES : small, &j)) return 1;
    j.run = run_matmul;
    qn_free(j.bytes); /* the file's rows are not needed */
    j.bytes = qn_calloc((size_t)n_rows, row);
    j.out = qn_calloc((size_t)(n_rows * j.n_out), sizeof *j.out);
    if (j.x && j.out && j.bytes && j.panels && j.scratch) {
        for (int64_t r = 0; r < n_rows; r++) k->act_pack(act, o->n_in, j.x, j.bytes + (size_t)r * row);
        j.matmul =
            (qn_matmul_args){dtype, act, o->n_in, j.n_out, j.panels, j.bytes, n_rows, j.out, j.n_out, 0, 0};
        snprintf(what, sizeof what, "matmul %s %s, %lld rows", qn_dtype_name(dtype), acts[act],
                 (long long)n_rows);
        if (n_rows <= FEW_ROWS) measure(o, o->pool, &j, what);
        if (n_rows > 1) {
            j.of = limits[act];
            j.ops = act == QN_ACT_I8X2 ? 2 : 1;
            if (act == QN_ACT_I8X2 && has_int16(k->name)) j.of = OF_INT16, j.ops = 1;
            j.amount = (double)o->n_in * (double)j.n_out * (double)n_rows;
            measure(o, o->pool, &j, what);
        }
    }
    return finish(&j);
}

static int all_weights(const options *o, const qn_kernels *k)
{
    for (int t = 0; t < QN_DTYPE_COUNT; t++) {
        qn_affine a = qn_affine_of((qn_dtype)t); /* unless one is named, those that MLX writes by default */
        int use = o->dtype ? strcmp(o->dtype, qn_dtype_name((qn_dtype)t)) == 0
                           : !a.bits || (a.group == 64 && a.scale == QN_DTYPE_BF16);
        if (!use || !qn_pack_panel_bytes((qn_dtype)t, o->n_in)) continue;
        if (!weight_speed(o, k, (qn_dtype)t)) return 0;
        for (int act = 0; act < QN_ACT_COUNT && wanted(o, "matmul"); act++) {
            int used = 0;
            for (int p = 0; p < 3; p++) used |= qn_matmul_act((qn_dtype)t, (qn_precision)p) == (qn_act)act;
            for (const char *r = o->rows; used && r && *r; r = strchr(r, ',') ? strchr(r, ',') + 1 : NULL) {
                int64_t n = strtoll(r, NULL, 10);
                if (n >= 1 && n <= ROWS_MAX && !matmul_speed(o, k, (qn_dtype)t, (qn_act)act, n)) return 0;
            }
        }
    }
    return 1;
}

/* ---- rows in the cache: one thread ------------------------------------------------------------------- */

static void run_act_pack(job *j, int thread, int n_threads)
{
    j->k->act_pack(j->act, j->n, j->x, j->scratch);
}

static void run_ew(job *j, int thread, int n_threads)
{
    j->k->ew[j->op](j->out, j->x, 1, j->y, 1, j->n);
}

static void run_rms_norm(job *j, int thread, int n_threads)
{
    j->k->rms_norm(j->out, j->x, j->y, 0, 1e-5f, j->n);
}

static void run_layer_norm(job *j, int thread, int n_threads)
{
    j->k->layer_norm(j->out, j->x, j->y, NULL, 1e-5f, j->n);
}

static void run_rope(job *j, int thread, int n_threads)
{
    j->k->rope(j->x, j->n / 64, 64, 64, j->y, j->y + 32, 0);
}

static void run_softmax(job *j, int thread, int n_threads)
{
    j->k->softmax(j->out, j->x, j->n);
}

static void run_sum(job *j, int thread, int n_threads)
{
    j->out[0] = j->k->sum(j->x, j->n);
}

static void run_max(job *j, int thread, int n_threads)
{
    j->out[0] = j->k->max(j->x, j->n);
}

static void run_max_blocks(job *j, int thread, int n_threads)
{
    j->k->max_blocks(j->x, j->n, j->out);
}

static void run_sum_exp_blocks(job *j, int thread, int n_threads)
{
    j->k->sum_exp_blocks(j->x, j->n, 1, 1, j->out);
}

static void run_exp_scaled(job *j, int thread, int n_threads)
{
    j->k->exp_scaled(j->x, j->n, 1, 1, j->out);
}

static void run_collect(job *j, int thread, int n_threads)
{
    j->out[0] = (float)j->k->collect(j->x, j->n, 1e30f, 0, (int32_t *)(void *)j->scratch, j->out);
}

static void run_dot(job *j, int thread, int n_threads)
{
    j->out[0] = j->k->dot(j->x, j->y, j->n);
}

static void run_to_f32(job *j, int thread, int n_threads)
{
    j->k->to_f32(j->dtype, j->bytes, j->out, j->n);
}

static void run_from_f32(job *j, int thread, int n_threads)
{
    j->k->from_f32(j->dtype, j->x, j->scratch, j->n);
}

static const struct {
    const char *name;
    void (*run)(job *j, int thread, int n_threads);
    int bytes; /* read for an element */
} row_kernels[] = {{"rms_norm", run_rms_norm, 8},
                   {"layer_norm", run_layer_norm, 8},
                   {"rope", run_rope, 4},
                   {"softmax", run_softmax, 4},
                   {"sum", run_sum, 4},
                   {"max", run_max, 4},
                   {"dot", run_dot, 8},
                   {"max_blocks", run_max_blocks, 4},
                   {"sum_exp_blocks", run_sum_exp_blocks, 4},
                   {"exp_scaled", run_exp_scaled, 4},
                   {"collect", run_collect, 4}};

/* A row of n elements, twice: x, y; out. */
static int row_speed(const options *o, const qn_kernels *k, const job *what_to_do, const char *what)
{
    job j = *what_to_do;
    j.k = k;
    j.n = ROW;
    j.of = OF_CACHE;
    j.x = random_row(ROW);
    j.y = random_row(ROW);
    j.out = random_row(ROW);
    j.bytes = qn_calloc(ROW, 4);
    j.panels = qn_alloc(3 * ROW * sizeof(float)); /* what the limit reads */
    j.scratch = qn_alloc(ROW * sizeof(float) + 4096);
    j.read = (const char *)j.panels;
    j.read_bytes = 3 * ROW * sizeof(float);
    j.amount *= ROW;
    if (j.panels) fill(j.panels, j.read_bytes);
    if (j.x && j.y && j.out && j.bytes && j.panels && j.scratch) measure(o, o->alone, &j, what);
    return finish(&j);
}

static int all_rows(const options *o, const qn_kernels *k)
{
    static const char *const names[] = {
        "COPY",
#define E(name, inputs) #name,
#include "prim/elementwise.def"
    };
    static const char *const acts[] = {"f32", "bf16", "i8", "i8x2"};
    static const qn_dtype halves[] = {QN_DTYPE_F16, QN_DTYPE_BF16};
    int ok = 1;
    char what[64];
    for (int act = 0; act < QN_ACT_COUNT && wanted(o, "act_pack"); act++) {
        snprintf(what, sizeof what, "act_pack %s", acts[act]);
        ok = ok && row_speed(o, k, &(job){.run = run_act_pack, .act = (qn_act)act, .amount = 4}, what);
    }
    for (int op = 0; op < QN_EW_COUNT && wanted(o, "ew"); op++) {
        snprintf(what, sizeof what, "ew %s", names[op]);
        ok = ok &&
             row_speed(o, k, &(job){.run = run_ew, .op = (qn_ew)op, .amount = op < QN_EW_ADD ? 4 : 8}, what);
    }
    for (size_t i = 0; i < sizeof row_kernels / sizeof *row_kernels; i++)
        if (wanted(o, row_kernels[i].name))
            ok = ok && row_speed(o, k, &(job){.run = row_kernels[i].run, .amount = row_kernels[i].bytes},
                                 row_kernels[i].name);
    for (int i = 0; i < 2; i++) {
        snprintf(what, sizeof what, "to_f32 %s", qn_dtype_name(halves[i]));
        if (wanted(o, "to_f32"))
            ok = ok && row_speed(o, k, &(job){.run = run_to_f32, .dtype = halves[i], .amount = 2}, what);
        snprintf(what, sizeof what, "from_f32 %s", qn_dtype_name(halves[i]));
        if (wanted(o, "from_f32"))
            ok = ok && row_speed(o, k, &(job){.run = run_from_f32, .dtype = halves[i], .amount = 4}, what);
    }
    return ok;
}

/* ---- small products and attention: one thread -------------------------------------------------------- */

static void run_gemm(job *j, int thread, int n_threads)
{
    j->k->gemm_f32(j->out, j->n, j->x, j->n, 1, j->y, j->n, 1, j->n, j->n, 0, j->n, 0);
}

/* One head of 128 columns, 16 rows in turn: its state of 64 KiB stays in L2. */
enum { DELTA_DIM = 128, DELTA_ROWS = 16 };

static void run_delta(job *j, int thread, int n_threads)
{
    j->k->gated_delta(&(qn_delta_args){.n_rows = DELTA_ROWS,
                                       .dk = DELTA_DIM,
                                       .dv = DELTA_DIM,
                                       .q = j->x,
                                       .k = j->x,
                                       .v = j->x,
                                       .g = j->y + DELTA_DIM * DELTA_DIM,
                                       .beta = j->y + DELTA_DIM * DELTA_DIM + DELTA_ROWS,
                                       .q_stride = DELTA_DIM,
                                       .k_stride = DELTA_DIM,
                                       .v_stride = DELTA_DIM,
                                       .g_stride = 1,
                                       .beta_stride = 1,
                                       .state = j->y,
                                       .out = j->out,
                                       .out_stride = DELTA_DIM},
                      0, DELTA_DIM);
}

/* Multiply-adds: k S, S + k d and q S. */
static int delta_speed(const options *o, const qn_kernels *k)
{
    enum { STATE = DELTA_DIM * DELTA_DIM, ROWS = DELTA_ROWS * DELTA_DIM };
    if (!wanted(o, "gated_delta")) return 1;
    job j = {.k = k, .run = run_delta, .of = OF_F32, .n = ROWS, .amount = 3.0 * DELTA_ROWS * STATE};
    j.x = random_row(ROWS);
    j.y = random_row(STATE + 2 * DELTA_ROWS);
    j.out = random_row(ROWS);
    j.bytes = qn_alloc(1);
    j.panels = qn_alloc(1);
    j.scratch = qn_alloc(1);
    for (int i = 0; j.y && i < 2 * DELTA_ROWS; i++) j.y[STATE + i] = i < DELTA_ROWS ? -0.1f : 0.5f;
    for (int i = 0; j.x && i < ROWS; i++) j.x[i] *= 0.05f; /* the state stays bounded */
    if (j.x && j.y && j.out) measure(o, o->alone, &j, "gated_delta 16 rows, 128 x 128");
    return finish(&j);
}

static int gemm_speed(const options *o, const qn_kernels *k)
{
    enum { N = 128 };
    if (!wanted(o, "gemm_f32")) return 1;
    job j = {.k = k, .run = run_gemm, .of = OF_F32, .n = N, .amount = (double)N * N * N};
    j.x = random_row(N * N);
    j.y = random_row(N * N);
    j.out = random_row(N * N);
    j.bytes = qn_alloc(1);
    j.panels = qn_alloc(1);
    j.scratch = qn_alloc(1);
    if (j.x && j.y && j.out) measure(o, o->alone, &j, "gemm_f32 128 x 128 x 128");
    return finish(&j);
}

static void run_attend(job *j, int thread, int n_threads)
{
    int64_t group = j->attend.n_heads / j->attend.kv.kv_heads;
    for (int64_t h = 0; h < j->attend.n_heads; h += group)
        j->k->attend(&j->attend, j->n_rows, h, group, j->scratch);
}

static void run_kv_write(job *j, int thread, int n_threads)
{
    const qn_kv_layout *kv = &j->attend.kv;
    for (int64_t t = 0; t < j->n; t += QN_PAGE_TOKENS)
        j->k->kv_write(kv, 0, kv->kv_heads, t / QN_PAGE_TOKENS, 0, QN_PAGE_TOKENS, j->x,
                       kv->kv_heads * kv->head_dim, j->y, kv->kv_heads * kv->v_dim);
}

/* heads query heads over kv_heads of 128 at a context of so many tokens; 0 rows: writing them. */
static int attend_speed(const options *o, const qn_kernels *k, qn_dtype dtype, int64_t n_rows)
{
    enum { HEADS = 16, KV_HEADS = 8, DIM = 128, DECODE_TOKENS = 16384, PREFILL_TOKENS = 1024 };
    int64_t n_tokens = n_rows == 1 ? DECODE_TOKENS : PREFILL_TOKENS, n_pages = n_tokens / QN_PAGE_TOKENS;
    qn_kv_layout kv = {.dtype = dtype,
                       .kv_heads = KV_HEADS,
                       .head_dim = DIM,
                       .v_dim = DIM,
                       .page_stride_bytes = qn_kv_page_bytes(dtype, KV_HEADS, DIM, DIM)};
    job j = {.k = k, .n = n_tokens, .n_rows = n_rows, .run = n_rows ? run_attend : run_kv_write};
    int32_t *blocks = qn_alloc_array((size_t)n_pages, sizeof *blocks);
    j.read_bytes = kv.page_stride_bytes * (size_t)n_pages / PEAK_CHUNK * PEAK_CHUNK;
    j.panels = qn_alloc(kv.page_stride_bytes * (size_t)n_pages + PEAK_CHUNK);
    j.read = (const char *)j.panels;
    kv.pages = (char *)j.panels;
    j.x = random_row(QN_ATTN_ROWS * HEADS * DIM);
    j.y = random_row(QN_PAGE_TOKENS * KV_HEADS * DIM);
    j.out = random_row(QN_ATTN_ROWS * HEADS * DIM);
    j.scratch = qn_alloc(qn_attend_scratch_bytes(dtype, DIM, DIM));
    j.bytes = qn_alloc(1);
    if (blocks && j.panels && j.x && j.y && j.out && j.scratch) {
        for (int64_t i = 0; i < n_pages; i++) blocks[i] = (int32_t)i;
        j.attend = (qn_attend_args){.kv = kv,
                                    .n_heads = HEADS,
                                    .q = j.x,
                                    .q_stride = HEADS * DIM,
                                    .out = j.out,
                                    .out_stride = HEADS * DIM,
                                    .blocks = blocks,
                                    .position = n_tokens - n_rows,
                                    .scale = 0.1f};
        run_kv_write(&j, 0, 1);
        char what[64];
        snprintf(what, sizeof what, n_rows ? "attend %s, %d rows, %d tokens" : "kv_write %s",
                 qn_dtype_name(dtype), (int)n_rows, (int)n_tokens);
        const limit peak = !qn_attend_rounds(k, dtype) ? OF_F32 : has_int16(k->name) ? OF_INT16 : OF_BF16;
        j.of = n_rows > 1 ? peak : OF_MEMORY;
        j.amount = n_rows > 1 ? 2.0 * HEADS * DIM * (double)(n_rows * n_tokens)
                              : (double)kv.page_stride_bytes * (double)n_pages;
        measure(o, o->alone, &j, what);
    }
    qn_free(blocks);
    return finish(&j);
}

static int all_attention(const options *o, const qn_kernels *k)
{
    static const qn_dtype kv_types[] = {QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_Q8_0,
                                        QN_DTYPE_Q4_0};
    int ok = gemm_speed(o, k) && delta_speed(o, k);
    for (size_t i = 0; i < sizeof kv_types / sizeof *kv_types; i++) {
        if (wanted(o, "kv_write")) ok = ok && attend_speed(o, k, kv_types[i], 0);
        if (wanted(o, "attend"))
            ok = ok && attend_speed(o, k, kv_types[i], 1) && attend_speed(o, k, kv_types[i], QN_ATTN_ROWS);
    }
    return ok;
}

/* ---- command line ------------------------------------------------------------------------------------ */

static int usage(int status)
{
    fprintf(status ? stderr : stdout,
            "usage: kernel_check --speed [--set NAME] [--kernel NAME] [--dtype NAME] [--rows N,N,...] "
            "[--cols N]\n"
            "                            [--threads N] [--repeats N]\n"
            "Speed of each kernel beside its limit, measured in turn; GB/s count the file's bytes of "
            "weights, or\n"
            "what is read and written. Weights run on all threads, the rest on one.\n");
    return status;
}

static int parse(int argc, char **argv, options *o)
{
    for (int i = 0; i < argc; i += 2) {
        static const char *const names[] = {"--set",     "--kernel",  "--dtype", "--rows",
                                            "--threads", "--repeats", "--cols"};
        const char **texts[] = {&o->set, &o->kernel, &o->dtype, &o->rows};
        int known = -1;
        for (int n = 0; n < 7; n++)
            if (strcmp(argv[i], names[n]) == 0) known = n;
        if (known < 0 || i + 1 >= argc) return 0;
        if (known < 4) *texts[known] = argv[i + 1];
        long long number = strtoll(argv[i + 1], NULL, 10);
        if (known == 4) o->n_threads = (int)number;
        if (known == 5) o->repeats = (int)number;
        if (known == 6) o->n_in = number;
    }
    return o->repeats >= 1 && o->n_in >= 1 && o->n_threads >= 0;
}

int qn_test_kernel_speed(int argc, char **argv)
{
    options o = {.rows = "1,4,16,128", .repeats = 10, .n_in = 2048};
    if (argc == 1 && strcmp(argv[0], "--help") == 0) return usage(0);
    if (!parse(argc, argv, &o)) return usage(2);
    const qn_kernels *k = o.set ? qn_kernels_by_name(o.set) : NULL;
    if (!o.set && qn_kernels_get(&k) != QN_OK) fprintf(stderr, "kernel_check: %s\n", qn_last_error());
    if (o.set && !k) fprintf(stderr, "kernel_check: no such instruction set here: %s\n", o.set);
    if (!k || qn_pool_new(o.n_threads, &o.pool) != QN_OK || qn_pool_new(1, &o.alone) != QN_OK) return 2;
    int ok = all_weights(&o, k) && (o.dtype || (all_rows(&o, k) && all_attention(&o, k)));
    if (!ok) fprintf(stderr, "kernel_check: out of memory\n");
    qn_pool_free(o.alone);
    qn_pool_free(o.pool);
    return !ok;
}
