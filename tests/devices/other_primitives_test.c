/* Every primitive of the table, of every type that the CPU device takes, on another device: random shapes,
 * views and numbers, NaN and infinities among them, against the scalar instruction set. A primitive without a
 * row here is an error.
 *
 * QN_SEED=n in the environment repeats a run; a failure says which, and looks for a smaller case of its kind.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "array/program.h"
#include "array/tape.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "prim/convert.h"
#include "tests/devices/other_compare.h"
#include "tests/primitives/other_cases.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { TRIALS = 90, TYPED_TRIALS = 12, GRADIENT_TRIALS = 20, LIMIT = 6, WHY = 1600, SMALLER_TRIES = 100 };
enum { OUTPUTS = QN_CASE_BASES + 1 };

static uint64_t first_seed = 1;

/* What is known of a primitive. ALIKE: elements do not meet, so that each agrees by itself; EXACT: the bits
 * are the reference's; SPECIAL: NaN, infinities, -0 and the ends of integers are among its numbers; HAS_F32:
 * what it computes f64 with is f32 in part; COARSE: small results are differences of larger numbers. */
enum { KNOWN = 1, ALIKE = 2, EXACT = 4, SPECIAL = 8, HAS_F32 = 16, COARSE = 32 };
enum { MOVED = KNOWN | EXACT | SPECIAL, SINGLE = KNOWN | ALIKE | SPECIAL, SUMMED = KNOWN | SPECIAL };

static const uint8_t table[QN_PRIM_COUNT] = {
    [QN_PRIM_DATA] = KNOWN | EXACT,
    [QN_PRIM_INPUT] = MOVED,
    [QN_PRIM_RESHAPE] = MOVED,
    [QN_PRIM_TRANSPOSE] = MOVED,
    [QN_PRIM_SLICE] = MOVED,
    [QN_PRIM_STRIDED] = MOVED,
    [QN_PRIM_BROADCAST] = MOVED,
    [QN_PRIM_NEG] = MOVED,
    [QN_PRIM_ABS] = MOVED,
    [QN_PRIM_EXP] = SINGLE,
    [QN_PRIM_LOG] = SINGLE,
    [QN_PRIM_SQRT] = SINGLE,
    [QN_PRIM_RSQRT] = SINGLE,
    [QN_PRIM_SQUARE] = SINGLE,
    [QN_PRIM_RECIP] = SINGLE,
    [QN_PRIM_SIN] = SINGLE,
    [QN_PRIM_COS] = SINGLE,
    [QN_PRIM_TANH] = SINGLE,
    [QN_PRIM_ERF] = SINGLE,
    [QN_PRIM_SIGMOID] = SINGLE,
    [QN_PRIM_SOFTPLUS] = SINGLE,
    [QN_PRIM_SILU] = SINGLE,
    [QN_PRIM_GELU] = SINGLE | COARSE,
    [QN_PRIM_GELU_TANH] = SINGLE,
    [QN_PRIM_RELU] = MOVED,
    [QN_PRIM_FLOOR] = MOVED,
    [QN_PRIM_ROUND] = MOVED,
    [QN_PRIM_LOG1P] = SINGLE,
    [QN_PRIM_EXPM1] = SINGLE,
    [QN_PRIM_ADD] = SINGLE,
    [QN_PRIM_SUB] = SINGLE,
    [QN_PRIM_MUL] = SINGLE,
    [QN_PRIM_DIV] = SINGLE,
    [QN_PRIM_MAXIMUM] = MOVED,
    [QN_PRIM_MINIMUM] = MOVED,
    [QN_PRIM_POW] = SINGLE,
    [QN_PRIM_FUSED] = SINGLE | COARSE,
    [QN_PRIM_COPY] = MOVED,
    [QN_PRIM_CAST] = MOVED,
    [QN_PRIM_COMPARE] = MOVED,
    [QN_PRIM_SELECT] = MOVED,
    [QN_PRIM_DROPOUT] = MOVED,
    [QN_PRIM_CONCAT] = MOVED,
    [QN_PRIM_SUM] = SUMMED,
    [QN_PRIM_MAX] = MOVED,
    [QN_PRIM_MIN] = MOVED,
    [QN_PRIM_PROD] = SUMMED,
    [QN_PRIM_ARG_MAX] = MOVED,
    [QN_PRIM_SCAN] = SUMMED,
    [QN_PRIM_ARG_SORT] = MOVED,
    [QN_PRIM_SOFTMAX] = SUMMED,
    [QN_PRIM_SINKHORN] = SUMMED,
    [QN_PRIM_RMS_NORM] = KNOWN,
    [QN_PRIM_RMS_NORM_GRAD] = KNOWN,
    [QN_PRIM_LAYER_NORM] = KNOWN,
    [QN_PRIM_ROPE_TABLE] = KNOWN,
    [QN_PRIM_ROPE] = KNOWN | HAS_F32,
    [QN_PRIM_MATMUL] = KNOWN,
    [QN_PRIM_MATMUL_ROWS] = KNOWN,
    [QN_PRIM_TAKE] = MOVED,
    [QN_PRIM_SCATTER_ADD] = SUMMED,
    [QN_PRIM_TAKE_ALONG] = MOVED,
    [QN_PRIM_SCATTER_ALONG] = SUMMED,
    [QN_PRIM_LAST_WRITER] = MOVED,
    [QN_PRIM_HASH_IDS] = KNOWN | EXACT,
    [QN_PRIM_UPDATE] = MOVED,
    [QN_PRIM_RANDOM] = KNOWN | EXACT,
    [QN_PRIM_TOP_K] = KNOWN | EXACT,
    [QN_PRIM_ATTEND] = KNOWN,
    [QN_PRIM_ATTEND_GRAD] = KNOWN,
    [QN_PRIM_INDEX_BLOCKS] = KNOWN | EXACT,
    [QN_PRIM_CROSS_ENTROPY] = KNOWN,
    [QN_PRIM_CROSS_ENTROPY_GRAD] = KNOWN,
    [QN_PRIM_LORA] = KNOWN,
    [QN_PRIM_EXPERTS] = KNOWN,
    [QN_PRIM_EXPERTS_SUM] = KNOWN,
    [QN_PRIM_EXPERTS_GRAD] = KNOWN,
    [QN_PRIM_EXPERTS_LORA] = KNOWN,
    [QN_PRIM_GATHER_MM] = KNOWN,
    [QN_PRIM_SCATTER_MM] = KNOWN,
    [QN_PRIM_SHORT_CONV] = KNOWN,
    [QN_PRIM_SHORT_CONV_GRAD] = KNOWN,
    [QN_PRIM_GATED_DELTA] = KNOWN,
    [QN_PRIM_GATED_DELTA_GRAD] = KNOWN,
};

static int use_seed(void **state)
{
    const char *text = getenv("QN_SEED");
    if (text) first_seed = strtoull(text, NULL, 10);
    return 0;
}

/* ---- a case on one device ----------------------------------------------------------------------------- */

typedef struct {
    qn_gradient_case c;
    qn_array *y[OUTPUTS]; /* the result; or it and its gradients */
    int n_y;
    qn_program *program;
} rig;

typedef struct {
    qn_prim prim;
    qn_dtype dtype;
    uint64_t seed;
    int64_t limit;
    int with_gradients; /* by all bases, of the result turned or summed */
} what;

static void close_rig(rig *r)
{
    qn_program_free(r->program);
    if (r->c.scope) qn_scope_free(r->c.scope);
    qn_free(r->c.base);
    memset(r, 0, sizeof *r);
}

static qn_status add_gradients(rig *r)
{
    qn_array *wrt[QN_CASE_BASES], *g[QN_CASE_BASES] = {NULL};
    for (int i = 0; i < r->c.n_bases; i++) wrt[i] = r->c.base[i].input;
    QN_TRY(qn_vjp(r->c.scope, r->y[0], r->y[0], r->c.n_bases, wrt, g));
    for (int i = 0; i < r->c.n_bases; i++) {
        int known = 0;
        for (int j = 0; j < r->n_y; j++) known |= r->y[j] == g[i];
        if (g[i] && !known) r->y[r->n_y++] = g[i];
    }
    return QN_OK;
}

static qn_status open_rig(rig *r, qn_device *device, const what *w)
{
    *r = (rig){.c = {.device = device,
                     .seed = w->seed,
                     .limit = w->limit,
                     .dtype = w->dtype,
                     .as_it_is = !w->with_gradients}};
    r->c.scope = qn_scope_new(device);
    r->c.base = qn_calloc(QN_CASE_BASES, sizeof *r->c.base);
    if (!r->c.scope || !r->c.base) return QN_E_NOMEM;
    r->y[0] = qn_other_case_has(w->prim) ? qn_other_case_make(&r->c, w->prim)
                                         : qn_case_make(&r->c, qn_case_find(w->prim));
    QN_TRY(qn_scope_status(r->c.scope));
    if (!r->y[0]) return qn_fail(QN_E_NOT_FOUND, "the case makes nothing");
    r->n_y = 1;
    if (w->with_gradients) QN_TRY(add_gradients(r));
    const qn_program_options o = {.name = "case", .max = r->c.sizes, .precision = QN_PRECISION_EXACT};
    return qn_program_new(r->c.scope, &o, r->n_y, r->y, &r->program);
}

static qn_status run_rig(rig *r, const qn_case_base *at)
{
    for (int i = 0; i < r->c.n_bases; i++) {
        float *x = qn_program_input(r->program, r->c.base[i].input->input);
        if (x) memcpy(x, at[i].at, (size_t)at[i].n * sizeof *x);
    }
    return qn_program_run(r->program, &r->c.sizes);
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

/* Integers of some size; of one seed in three, numbers at the ends of their types: of all kinds, or of one.
 */
static void choose_numbers(const what *w, int n_bases, qn_case_base *base)
{
    static const float special[] = {NAN,  NAN,   INFINITY, -INFINITY, -0.0f, 0.0f,
                                    1.0f, -1.0f, 88.5f,    -90.0f,    3e38f, -3e38f};
    const int is_special = table[w->prim] & SPECIAL && w->seed % 3 == 0 && !w->with_gradients;
    /* sums of what is large show how they were rounded */
    const uint64_t n_special = table[w->prim] & (ALIKE | EXACT) ? 12 : 8, kind = w->seed / 3;
    for (int b = 0; b < n_bases; b++)
        for (int64_t i = 0; i < base[b].n; i++) {
            float *x = &base[b].at[i];
            const uint64_t dice = qn_random_bits(w->seed, (uint64_t)(7000000 + 1000 * b + i));
            if (!qn_dtype_is_float(w->dtype)) *x = roundf(*x * 30);
            if (is_special && dice % 2) *x = special[(kind % 2 ? kind / 2 : dice / 2) % n_special];
        }
}

static double precision_of(qn_dtype dtype)
{
    return qn_test_bound_of(dtype == QN_DTYPE_F64    ? QN_TEST_F64
                            : dtype == QN_DTYPE_F16  ? QN_TEST_F16
                            : dtype == QN_DTYPE_BF16 ? QN_TEST_BF16
                                                     : QN_TEST_F32);
}

/* ---- comparing ---------------------------------------------------------------------------------------- */

static int compare(const what *w, const rig *got, const rig *want, char *why)
{
    double largest = 1;
    for (int i = 0; i < want->c.n_bases; i++)
        largest = fmax(largest, qn_test_largest(QN_DTYPE_F32, want->c.base[i].n, want->c.base[i].at));
    for (int k = 0; k < want->n_y; k++) {
        const qn_dtype dtype = qn_array_dtype(want->y[k]);
        const int64_t n = qn_shape_elements(qn_array_shape(want->y[k]), &want->c.sizes);
        const void *a = qn_program_output(got->program, k), *b = qn_program_output(want->program, k);
        if (got->n_y != want->n_y || qn_array_dtype(got->y[k]) != dtype) {
            snprintf(why, WHY, "another type, or other gradients");
            return 1;
        }
        qn_test_tolerance t = {precision_of(dtype), table[w->prim] & COARSE ? 0.05 : 0.01};
        if (table[w->prim] & HAS_F32) t.relative = fmax(t.relative, precision_of(QN_DTYPE_F32));
        if (table[w->prim] & EXACT && !qn_test_may_differ(w->prim) && !w->with_gradients) t.relative = 0;
        if (!(table[w->prim] & ALIKE)) t.least = fmax(largest, qn_test_largest(dtype, n, b));
        if (w->with_gradients) t.relative *= 10;
        if (qn_test_differ(dtype, n, a, b, t, why)) return 1;
    }
    return 0;
}

/* 0: agrees; 1: does not, and why; -1: there is no such case. */
static int trial(const qn_test_pair *pair, const what *w, char *why, char *text)
{
    rig cpu, other = {0};
    int bad = -1;
    qn_status status = open_rig(&cpu, pair->cpu, w);
    if (status == QN_OK) {
        choose_numbers(w, cpu.c.n_bases, cpu.c.base);
        status = run_rig(&cpu, cpu.c.base);
    }
    if (status != QN_OK) {
        snprintf(why, WHY, "%s", qn_last_error());
        goto out;
    }
    bad = 1;
    status = open_rig(&other, pair->other, w);
    if (status == QN_OK) status = run_rig(&other, cpu.c.base);
    if (status == QN_OK)
        bad = compare(w, &other, &cpu, why);
    else
        snprintf(why, WHY, "%s", qn_last_error());
    if (qn_test_refuses_f64(status)) bad = -1;
out:
    snprintf(text, sizeof cpu.c.text, "%s", cpu.c.text);
    close_rig(&other);
    close_rig(&cpu);
    return bad;
}

/* A failure in as few elements as some tries find. */
static void report(const qn_test_pair *pair, what w)
{
    char why[WHY] = "", text[1000];
    const what first = w;
    for (w.limit = 1; w.limit <= first.limit; w.limit++)
        for (w.seed = first.seed; w.seed < first.seed + SMALLER_TRIES; w.seed++)
            if (trial(pair, &w, why, text) == 1) goto found;
    w = first;
    trial(pair, &w, why, text);
found:
    fail_msg("%s%s of %s:%s: %s (case %llu, dimensions up to %lld)\n  QN_SEED=%llu repeats it",
             w.with_gradients ? "gradients of " : "", qn_prim_get(w.prim)->name, qn_dtype_name(w.dtype), text,
             why, (unsigned long long)w.seed, (long long)w.limit, (unsigned long long)first_seed);
}

/* QN_TEST_SHARE=n: an n-th of the trials, for tools that slow them down. */
static int share_of(int n)
{
    const char *text = getenv("QN_TEST_SHARE");
    const int share = text ? (int)strtol(text, NULL, 10) : 1;
    return share > 1 ? (n + share - 1) / share : n;
}

/* How many of n random cases there are. */
static int agree(const qn_test_pair *pair, what w, int n)
{
    int taken = 0;
    char why[WHY] = "", text[1000];
    for (int i = 0; i < share_of(n); i++) {
        w.seed = first_seed * 1000003 + (uint64_t)w.prim * 1009 + (uint64_t)i;
        w.limit = 1 + i % LIMIT;
        const int bad = trial(pair, &w, why, text);
        if (bad == 1) report(pair, w);
        taken += bad == 0;
        if (taken == 0 && i == 5) return 0; /* the type is none of its own */
    }
    return taken;
}

/* ---- tests -------------------------------------------------------------------------------------------- */

static void every_primitive(void **state)
{
    qn_test_pair pair = qn_test_pair_open(0);
    const int64_t start = qn_clock_ns();
    int64_t cases = 0;
    int n_types = 0;
    printf("QN_SEED=%llu\n", (unsigned long long)first_seed);
    for (int p = 0; p < QN_PRIM_COUNT; p++) {
        const char *name = qn_prim_get((qn_prim)p)->name;
        if (!table[p]) fail_msg("%s has no row in tests/devices/other_primitives_test.c", name);
        if (!qn_other_case_has((qn_prim)p) && !qn_case_find((qn_prim)p))
            fail_msg("%s has no random cases", name);
        for (int d = 0; d <= QN_DTYPE_F64; d++) {
            const int is_main = d == QN_DTYPE_F32;
            const int taken = agree(&pair, (what){.prim = (qn_prim)p, .dtype = (qn_dtype)d},
                                    is_main ? TRIALS : TYPED_TRIALS);
            if (is_main && !taken) fail_msg("%s is not taken of f32: %s", name, qn_last_error());
            cases += taken;
            n_types += taken > 0;
        }
    }
    printf("%lld cases of %d primitives agree, %d types of them, %.1f s\n", (long long)cases, QN_PRIM_COUNT,
           n_types, (double)(qn_clock_ns() - start) * 1e-9);
    qn_test_pair_close(&pair);
}

static void every_gradient(void **state)
{
    qn_test_pair pair = qn_test_pair_open(0);
    int64_t cases = 0;
    for (int p = 0; p < QN_PRIM_COUNT; p++) {
        const qn_case_row *row = qn_case_find((qn_prim)p);
        if (!row || row->kind != QN_CASE_NUMBERS) continue;
        const int taken = agree(&pair, (what){.prim = (qn_prim)p, .dtype = QN_DTYPE_F32, .with_gradients = 1},
                                GRADIENT_TRIALS);
        if (!taken) fail_msg("%s has no gradient: %s", qn_prim_get((qn_prim)p)->name, qn_last_error());
        cases += taken;
    }
    printf("gradients of %lld cases agree\n", (long long)cases);
    qn_test_pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_primitive),
        cmocka_unit_test(every_gradient),
    };
    return qn_test_run_others("primitives", tests, sizeof tests / sizeof *tests, use_seed, NULL);
}
