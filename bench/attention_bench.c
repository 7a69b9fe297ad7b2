/* Speed of attention over pages as a program runs it: prefill of n tokens in chunks of 256 and decode at a
 * depth, with 1 thread and with all, beside what the machine can do in the same run.
 *
 * usage: attention_bench [TYPE...]      types of keys and values; all by default. QUERN_CPU picks the set.
 *
 * Prefill is judged by multiply-adds of q.k and p.v with visible positions against the peak of the type that
 * the set multiplies; decode by the bytes of keys and values against the read bandwidth. As many layers run
 * in a row as give decode more to read than the caches hold. The peaks are measured before each shape, the
 * bandwidth before and after each decode, both on large pages; the best of several runs counts on both sides.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "array/program.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"
#include "bench/peaks.h"
#include "device/cpu/kernels/kernels.h"

typedef struct {
    int64_t heads, kv_heads, head_dim;
} shape;

enum { CHUNK_ROWS = 256, ROUNDS = 5, READ_BYTES = 128 << 20, PAST_BYTES = 4096, LAYERS_MAX = 96 };

typedef struct {
    double f32, pairs; /* multiply-adds a nanosecond; of pairs of 16-bit numbers: bf16, else integers */
} limits;

/* ---- limits ------------------------------------------------------------------------------------------- */

typedef struct {
    const char *buffer; /* or NULL: arithmetic */
    int best;           /* index of the reader or the arithmetic */
    int64_t n_rounds;
    volatile uint64_t sink[64];
} limit_work;

static void limit_share(void *arg, int thread, int n_threads)
{
    limit_work *w = arg;
    if (w->buffer) {
        int64_t begin, end;
        qn_pool_share(READ_BYTES, PEAK_CHUNK, thread, n_threads, &begin, &end);
        w->sink[thread % 64] = peak_readers[w->best].read(w->buffer + begin, (size_t)(end - begin));
    } else {
        w->sink[thread % 64] = peak_arithmetic[w->best].run(w->n_rounds);
    }
}

static double best_run(qn_pool *pool, limit_work *w)
{
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t start = qn_clock_ns();
        qn_pool_run(pool, limit_share, w);
        double ns = (double)(qn_clock_ns() - start);
        if (ns < best) best = ns;
    }
    return best;
}

static double arithmetic_peak(qn_pool *pool, const char *type, const char *set)
{
    limit_work w = {.n_rounds = 200000, .best = -1};
    for (int i = 0; i < (int)(sizeof peak_arithmetic / sizeof *peak_arithmetic); i++)
        if (peak_arithmetic[i].usable() && strcmp(peak_arithmetic[i].type, type) == 0 &&
            (strcmp(peak_arithmetic[i].set, set) == 0 || (w.best < 0 && strcmp(set, "scalar") == 0)))
            w.best = i;
    if (w.best < 0) return 0;
    return (double)peak_arithmetic[w.best].macs_per_round * (double)w.n_rounds * qn_pool_threads(pool) /
           best_run(pool, &w);
}

/* Bytes a nanosecond. */
static double read_bandwidth(qn_pool *pool, const char *buffer)
{
    limit_work w = {.buffer = buffer};
    for (int i = 0; i < (int)(sizeof peak_readers / sizeof *peak_readers); i++)
        if (peak_readers[i].usable()) w.best = i;
    return READ_BYTES / best_run(pool, &w);
}

/* ---- attention ---------------------------------------------------------------------------------------- */

typedef struct {
    qn_device *device;
    qn_state *state;
    qn_program *program;
    int64_t n_layers;
} bench;

/* n_layers steps of attention over pages of their own, which share q, k and v. */
static qn_status bench_open(bench *b, const shape *s, qn_dtype dtype, int64_t n_tokens, int64_t n_layers,
                            int64_t rows, int n_threads)
{
    int64_t pages = (n_tokens + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS, width = 1 + pages;
    QN_TRY(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &b->device));
    qn_state_spec spec = {.kind = QN_STATE_PAGES,
                          .n_layers = n_layers,
                          .n_units = pages,
                          .kv_heads = s->kv_heads,
                          .head_dim = s->head_dim,
                          .v_dim = s->head_dim,
                          .dtype = dtype};
    QN_TRY(b->device->ops->state_new(b->device, &spec, &b->state));
    b->n_layers = n_layers;
    qn_scope *scope = qn_scope_new(b->device);
    if (!scope) return QN_E_NOMEM;
    const int64_t q_dims[] = {s->heads, s->head_dim}, k_dims[] = {s->kv_heads, s->head_dim};
    qn_shape seqs = qn_shape_sym(QN_SYM_S, 0, NULL);
    seqs.dim[0] = 1;
    qn_array *q = qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, q_dims));
    qn_array *k = qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, k_dims));
    qn_array *v = qn_input(scope, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2, k_dims));
    qn_array *positions = qn_input(scope, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL));
    qn_array *row_begin = qn_input(scope, QN_DTYPE_I32, seqs);
    qn_array *blocks = qn_input(scope, QN_DTYPE_I32, qn_shape_sym(QN_SYM_S, 1, &width));
    qn_array *outputs[LAYERS_MAX];
    for (int64_t i = 0; i < n_layers; i++) {
        qn_params_attend p = {.state = b->state, .layer = (int32_t)i, .scale = 0.125f};
        outputs[i] = qn_attend(scope, &p, q, k, v, positions, row_begin, blocks, NULL);
    }
    qn_program_options o = {.name = "bench", .max = {{rows, 1, 0}}};
    qn_status status = qn_program_new(scope, &o, (int)n_layers, outputs, &b->program);
    qn_scope_free(scope);
    QN_TRY(status);
    const int64_t n[] = {rows * s->heads * s->head_dim, rows * s->kv_heads * s->head_dim};
    for (int i = 0; i < 3; i++) {
        float *x = qn_program_input(b->program, i);
        for (int64_t j = 0; j < n[i > 0]; j++) x[j] = (float)(j * 7919 % 65) / 32 - 1;
    }
    int32_t *table = qn_program_input(b->program, 5);
    table[0] = 0;
    for (int64_t i = 0; i < pages; i++) table[1 + i] = (int32_t)i;
    return QN_OK;
}

static void bench_close(bench *b)
{
    qn_program_free(b->program);
    if (b->state) b->device->ops->state_free(b->state);
    qn_device_close(b->device);
}

/* Rows [first, first + n) of the one sequence, all layers. */
static qn_status bench_rows(bench *b, int64_t first, int64_t n)
{
    int32_t *positions = qn_program_input(b->program, 3), *row_begin = qn_program_input(b->program, 4);
    for (int64_t i = 0; i < n; i++) positions[i] = (int32_t)(first + i);
    row_begin[0] = 0;
    row_begin[1] = (int32_t)n;
    return qn_program_run(b->program, &(qn_sizes){{n, 1, 0}});
}

static qn_status prefill(const shape *s, qn_dtype dtype, int64_t n_tokens, int n_threads, double *ns)
{
    bench b = {0};
    qn_status status = bench_open(&b, s, dtype, n_tokens, 1, CHUNK_ROWS, n_threads);
    *ns = 1e30;
    for (int i = 0; i < (n_tokens > 1024 ? 1 : ROUNDS) && status == QN_OK; i++) {
        int64_t start = qn_clock_ns();
        for (int64_t t = 0; t < n_tokens && status == QN_OK; t += CHUNK_ROWS)
            status = bench_rows(&b, t, CHUNK_ROWS);
        double each = (double)(qn_clock_ns() - start);
        if (each < *ns) *ns = each;
    }
    bench_close(&b);
    return status;
}

/* Of one layer. */
static qn_status decode(const shape *s, qn_dtype dtype, int64_t depth, int64_t n_layers, int n_threads,
                        double *ns)
{
    bench b = {0};
    qn_status status = bench_open(&b, s, dtype, depth, n_layers, CHUNK_ROWS, n_threads);
    if (status == QN_OK) status = bench_rows(&b, 0, QN_PAGE_TOKENS);
    for (int64_t i = 1; i < depth / QN_PAGE_TOKENS && status == QN_OK; i++)
        b.device->ops->state_copy(b.state, 0, (int32_t)i);
    *ns = 1e30;
    for (int i = 0; i < 2 * ROUNDS && status == QN_OK; i++) {
        int64_t start = qn_clock_ns();
        status = bench_rows(&b, depth - 1, 1);
        double each = (double)(qn_clock_ns() - start) / (double)n_layers;
        if (each < *ns) *ns = each;
    }
    bench_close(&b);
    return status;
}

static qn_status measure(const shape *s, qn_dtype dtype, const qn_kernels *k, qn_pool *pool, const limits *l,
                         const char *buffer)
{
    const int n_threads = qn_pool_threads(pool);
    char name[64];
    snprintf(name, sizeof name, "%-6s %d/%d x %-3d %-5s %d thread%s", k->name, (int)s->heads,
             (int)s->kv_heads, (int)s->head_dim, qn_dtype_name(dtype), n_threads, n_threads > 1 ? "s" : " ");
    static const int64_t prompts[] = {512, 4096}, depths[] = {512, 4096, 16384};
    double ns, peak = qn_attend_rounds(k, dtype) && l->pairs > 0 ? l->pairs : l->f32;
    for (int i = 0; i < 2; i++) {
        double n = (double)prompts[i], macs = n * (n + 1) / 2 * (double)(s->heads * s->head_dim * 2);
        QN_TRY(prefill(s, dtype, prompts[i], n_threads, &ns));
        printf("%s prefill %5d  %10.1f us %7.2f G multiply-adds/s %4.0f%% of the peak\n", name,
               (int)prompts[i], ns / 1e3, macs / ns, 100 * macs / ns / peak);
        fflush(stdout);
    }
    for (int i = 0; i < 3; i++) {
        double bytes = (double)qn_kv_page_bytes(dtype, s->kv_heads, s->head_dim, s->head_dim) *
                       (double)depths[i] / QN_PAGE_TOKENS;
        int64_t n_layers = (int64_t)(1.2e8 / bytes) + 1;
        if (n_layers > LAYERS_MAX) n_layers = LAYERS_MAX;
        double before = read_bandwidth(pool, buffer);
        QN_TRY(decode(s, dtype, depths[i], n_layers, n_threads, &ns));
        double after = read_bandwidth(pool, buffer), read = before > after ? before : after;
        printf("%s decode  %5d  %10.1f us %7.2f GB/s              %4.0f%% of the bandwidth of %.1f GB/s\n",
               name, (int)depths[i], ns / 1e3, bytes / ns, 100 * bytes / ns / read, read);
        fflush(stdout);
    }
    return QN_OK;
}

static int wanted(int argc, char **argv, qn_dtype dtype)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], qn_dtype_name(dtype)) == 0) return 1;
    return argc < 2;
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {{32, 8, 64}, {16, 8, 128}, {64, 8, 64}, {9, 3, 64}, {4, 1, 256}};
    static const qn_dtype types[] = {QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_Q8_0, QN_DTYPE_Q4_0};
    const qn_kernels *k = NULL;
    qn_pool *pool = NULL;
    int rc = 1, most = qn_threads_default();
    char *buffer = qn_alloc_mapped(READ_BYTES + PAST_BYTES);
    if (!buffer || qn_kernels_get(&k) != QN_OK) goto out;
    memset(buffer, 1, READ_BYTES);
    for (int n_threads = 1; n_threads <= most; n_threads += most > 1 ? most - 1 : 1) {
        if (qn_pool_new(n_threads, &pool) != QN_OK) goto out;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            limits l = {arithmetic_peak(pool, "f32", k->name), arithmetic_peak(pool, "bf16", k->name)};
            if (l.pairs == 0) l.pairs = arithmetic_peak(pool, "int16", k->name);
            printf("%-6s limits, %d thread%s: f32 %.1f, pairs of 16 bits %.1f G multiply-adds/s\n", k->name,
                   n_threads, n_threads > 1 ? "s" : "", l.f32, l.pairs);
            for (size_t t = 0; t < sizeof types / sizeof *types; t++)
                if (wanted(argc, argv, types[t]) &&
                    measure(&shapes[i], types[t], k, pool, &l, buffer) != QN_OK)
                    goto out;
        }
        qn_pool_free(pool);
        pool = NULL;
    }
    rc = 0;
out:
    if (rc) fprintf(stderr, "attention_bench: %s\n", qn_last_error());
    qn_pool_free(pool);
    qn_free_mapped(buffer, READ_BYTES + PAST_BYTES);
    return rc;
}
