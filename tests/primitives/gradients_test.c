/* Every primitive: its gradient and tangent are stated, and agree with central differences over random
 * shapes, views and parameters, for each floating type that it takes.
 *
 * QN_SEED=n in the environment repeats a run; a failure says which, and looks for a smaller case of its kind.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "array/program.h"
#include "array/tape.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "tests/primitives/gradients_cases.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { TRIALS = 400, NARROW_TRIALS = 60, LIMIT = 4, SMALLER_TRIES = 200, OUT_MAX = 4096, WHY = 512 };

static const qn_dtype types[] = {QN_DTYPE_F32, QN_DTYPE_F64, QN_DTYPE_F16, QN_DTYPE_BF16};

static qn_device *device;
static uint64_t first_seed = 1;

static int open_device(void **state)
{
    const char *text = getenv("QN_SEED");
    if (text) first_seed = strtoull(text, NULL, 10);
    return qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &device) != QN_OK;
}

static int close_device(void **state)
{
    qn_device_close(device);
    return 0;
}

/* ---- what is stated ----------------------------------------------------------------------------------- */

static void all_is_stated(void **state)
{
    static qn_stated (*const table[3])(qn_prim prim, const char **why) = {
        qn_gradient_stated, qn_tangent_stated, qn_fallback_stated};
    static const char *const what[3] = {"gradient", "tangent", "fallback"};
    for (int p = 0; p < QN_PRIM_COUNT; p++)
        for (int t = 0; t < 3; t++) {
            const char *name = qn_prim_get((qn_prim)p)->name, *why, *fallback;
            switch (table[t]((qn_prim)p, &why)) {
            case QN_UNSTATED:
                fail_msg("the %s of %s is not stated", what[t], name);
                break;
            case QN_BY_RULE:
                break;
            case QN_BY_ITS_FALLBACK:
                if (t == 2 || qn_fallback_stated((qn_prim)p, &fallback) != QN_BY_RULE)
                    fail_msg("the %s of %s is by a fallback that is not there", what[t], name);
                break;
            case QN_STATED_NONE:
                if (!why || !*why) fail_msg("why %s has no %s is not said", name, what[t]);
                break;
            }
        }
}

/* ---- one case ----------------------------------------------------------------------------------------- */

typedef struct {
    qn_gradient_case c;
    qn_array *y;         /* the result, in f32 */
    qn_array *cotangent; /* an input */
    int64_t n_out, n_in; /* elements of the result; of all bases */
    qn_program *forward;
} rig;

static void close_rig(rig *r)
{
    qn_program_free(r->forward);
    if (r->c.scope) qn_scope_free(r->c.scope);
    qn_free(r->c.base);
    memset(r, 0, sizeof *r);
}

static qn_array *as_f32(qn_scope *s, qn_array *a)
{
    if (!a || qn_array_dtype(a) == QN_DTYPE_F32) return a;
    return qn_apply(s, QN_PRIM_CAST, NULL, 1, &a, NULL, QN_DTYPE_F32);
}

static qn_status open_rig(rig *r, const qn_case_row *row, qn_dtype dtype, uint64_t seed, int64_t limit)
{
    *r = (rig){.c = {.device = device, .seed = seed, .limit = limit, .dtype = dtype}};
    r->c.scope = qn_scope_new(device);
    r->c.base = qn_calloc(QN_CASE_BASES, sizeof *r->c.base);
    if (!r->c.scope || !r->c.base) return QN_E_NOMEM;
    qn_array *y = qn_case_make(&r->c, row);
    QN_TRY(qn_scope_status(r->c.scope));
    if (!y) return qn_fail(QN_E_ARG, "the case makes nothing");
    r->y = row->kind == QN_CASE_NUMBERS ? as_f32(r->c.scope, y) : y;
    r->n_out = qn_shape_elements(qn_array_shape(y), NULL);
    for (int i = 0; i < r->c.n_bases; i++) r->n_in += r->c.base[i].n;
    return qn_scope_status(r->c.scope);
}

static qn_status compile(rig *r, int n, qn_array *const *outputs, qn_program **out)
{
    const qn_program_options o = {.name = "case", .max = r->c.sizes, .precision = QN_PRECISION_EXACT};
    return qn_program_new(r->c.scope, &o, n, outputs, out);
}

static void set_bases(rig *r, qn_program *p, const qn_case_base *at)
{
    for (int i = 0; i < r->c.n_bases; i++) {
        float *x = qn_program_input(p, r->c.base[i].input->input);
        if (x) memcpy(x, at[i].at, (size_t)at[i].n * sizeof *x);
    }
}

/* The slope of every output by every element of the bases, [n_in, n_out]: differences at h and 2 h, so that
 * what is left of the third derivative goes. */
static qn_status slopes(rig *r, const qn_case_base *at, double *out)
{
    static const double step[4] = {0x1p-6, -0x1p-6, 0x1p-5, -0x1p-5}, weight[4] = {8, -8, -1, 1};
    QN_TRY(compile(r, 1, &r->y, &r->forward));
    set_bases(r, r->forward, at);
    memset(out, 0, (size_t)(r->n_in * r->n_out) * sizeof *out);
    int64_t row = 0;
    for (int b = 0; b < r->c.n_bases; b++) {
        float *x = qn_program_input(r->forward, r->c.base[b].input->input);
        for (int64_t i = 0; i < at[b].n; i++, row++) {
            double *slope = out + row * r->n_out;
            for (int k = 0; k < 4 && x; k++) {
                x[i] = (float)(at[b].at[i] + step[k]);
                QN_TRY(qn_program_run(r->forward, &r->c.sizes));
                const float *y = qn_program_output(r->forward, 0);
                for (int64_t j = 0; j < r->n_out; j++) slope[j] += weight[k] / (12 * step[0]) * y[j];
                x[i] = at[b].at[i];
            }
        }
    }
    return QN_OK;
}

/* ---- comparing ---------------------------------------------------------------------------------------- */

static double tolerance(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 || dtype == QN_DTYPE_F64 ? 5e-4 : dtype == QN_DTYPE_F16 ? 8e-3 : 6e-2;
}

/* got may be NULL: zeros. The largest sum of parts is what rounding is measured by. */
static int differs(const char *what, int64_t n, const float *got, const double *want, double scale,
                   double within, char *why)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((got ? got[i] : 0) - want[i]) <= within * scale)) {
            snprintf(why, WHY, "%s: element %lld is %g, differences say %g", what, (long long)i,
                     (double)(got ? got[i] : 0), want[i]);
            return 1;
        }
    return 0;
}

/* Gradients and tangents of the rig against the slopes. Returns 1 and says why when they differ. */
static int compare(rig *r, int has_tangent, const double *slope, const qn_case_base *at, char *why)
{
    qn_scope *s = r->c.scope;
    const int n = r->c.n_bases;
    qn_array *wrt[QN_CASE_BASES], *t[QN_CASE_BASES], *g[QN_CASE_BASES + 1] = {NULL}, *list[QN_CASE_BASES + 1];
    int place[QN_CASE_BASES + 1], n_list = 0, bad = 1;
    qn_program *p = NULL;
    double *sum = qn_calloc((size_t)(r->n_in + r->n_out + 1), sizeof *sum);
    float *weight = qn_calloc((size_t)(r->n_in + r->n_out + 1), sizeof *weight);
    qn_array *cotangent = qn_input(s, QN_DTYPE_F32, *qn_array_shape(r->y));
    for (int i = 0; i < n; i++) {
        wrt[i] = r->c.base[i].input;
        t[i] = qn_input(s, QN_DTYPE_F32, *qn_array_shape(wrt[i]));
    }
    if (!sum || !weight || qn_vjp(s, r->y, cotangent, n, wrt, g) != QN_OK ||
        (has_tangent && qn_jvp(s, r->y, n, wrt, t, &g[n]) != QN_OK))
        goto error;
    for (int i = 0; i <= n; i++) {
        place[i] = g[i] ? n_list : -1;
        if (g[i]) list[n_list++] = as_f32(s, g[i]);
    }
    if (n_list && (compile(r, n_list, list, &p) != QN_OK)) goto error;
    for (int64_t i = 0; i < r->n_in + r->n_out; i++)
        weight[i] = (float)(qn_random_unit(r->c.seed, (uint64_t)(1000000 + i)) + 0.25);
    if (p) {
        float *x = qn_program_input(p, cotangent->input);
        if (x) memcpy(x, weight + r->n_in, (size_t)r->n_out * sizeof *x);
        set_bases(r, p, at);
        int64_t from = 0;
        for (int i = 0; i < n; from += r->c.base[i++].n)
            if ((x = qn_program_input(p, t[i]->input)) != NULL)
                memcpy(x, weight + from, (size_t)r->c.base[i].n * sizeof *x);
        if (qn_program_run(p, &r->c.sizes) != QN_OK) goto error;
    }
    double largest = 0.5; /* below, rounding of the results is what differences show */
    for (int64_t i = 0; i < r->n_in; i++)
        for (int64_t j = 0; j < r->n_out; j++) {
            const double d = slope[i * r->n_out + j];
            sum[i] += d * weight[r->n_in + j];
            sum[r->n_in + j] += d * weight[i];
            if (fabs(d) > largest) largest = fabs(d);
        }
    for (int64_t i = 0; i < r->n_in + r->n_out; i++)
        if (fabs(sum[i]) > largest) largest = fabs(sum[i]);
    const double within = tolerance(r->c.dtype);
    int64_t from = 0;
    bad = 0;
    for (int i = 0; i < n && !bad; from += r->c.base[i++].n) {
        char what[40];
        snprintf(what, sizeof what, "gradient by input %d", i);
        bad = differs(what, r->c.base[i].n, place[i] < 0 ? NULL : qn_program_output(p, place[i]), sum + from,
                      largest, within, why);
    }
    if (!bad && has_tangent)
        bad = differs("tangent", r->n_out, place[n] < 0 ? NULL : qn_program_output(p, place[n]),
                      sum + r->n_in, largest, within, why);
    goto out;
error:
    snprintf(why, WHY, "%.300s", qn_last_error());
out:
    qn_program_free(p);
    qn_free(weight);
    qn_free(sum);
    return bad;
}

/* 0: agrees; 1: does not, and why; -1: the primitive does not take the type. */
static int trial(const qn_case_row *row, qn_dtype dtype, uint64_t seed, int64_t limit, char *why, char *text)
{
    const char *none;
    const int has_tangent = qn_tangent_stated(row->prim, &none) != QN_STATED_NONE;
    rig narrow = {0}, exact = {0};
    double *slope = NULL;
    int bad = 1;
    if (dtype != QN_DTYPE_F32) {
        qn_status status = open_rig(&narrow, row, dtype, seed, limit);
        if (status == QN_OK) status = compile(&narrow, 1, &narrow.y, &narrow.forward);
        if (status == QN_E_ARG || status == QN_E_UNSUPPORTED) bad = -1;
        if (status != QN_OK) goto error;
        for (int i = 0; i < narrow.c.n_bases; i++) /* numbers that the type holds */
            for (int64_t k = 0; k < narrow.c.base[i].n && dtype != QN_DTYPE_F64; k++) {
                float *x = &narrow.c.base[i].at[k];
                *x = dtype == QN_DTYPE_F16 ? ldexpf(rintf(ldexpf(*x, 8)), -8)
                                           : ldexpf(rintf(ldexpf(*x, 4)), -4);
            }
    }
    if (open_rig(&exact, row, QN_DTYPE_F32, seed, limit) != QN_OK) goto error;
    rig *r = dtype == QN_DTYPE_F32 ? &exact : &narrow;
    if (exact.n_out > OUT_MAX || !(slope = qn_calloc((size_t)(exact.n_in * exact.n_out) + 1, sizeof *slope)))
        goto error;
    if (slopes(&exact, r->c.base, slope) != QN_OK) goto error;
    bad = compare(r, has_tangent, slope, r->c.base, why);
    snprintf(text, sizeof r->c.text, "%s", r->c.text);
    goto out;
error:
    snprintf(why, WHY, "%.300s", qn_last_error());
out:
    qn_free(slope);
    close_rig(&exact);
    close_rig(&narrow);
    return bad;
}

/* A failure in as few elements as some tries find. */
static void report(const qn_case_row *row, qn_dtype dtype, uint64_t seed, int64_t limit, char *why,
                   char *text)
{
    for (int64_t smaller = 1; smaller <= limit; smaller++)
        for (uint64_t i = 0; i < SMALLER_TRIES; i++) {
            char now[512] = "", shapes[1024] = "";
            if (trial(row, dtype, seed + i, smaller, now, shapes) != 1) continue;
            fail_msg("%s of %s:%s: %s (case %llu, dimensions up to %lld)\n  found by%s: %s\n  QN_SEED=%llu "
                     "repeats it",
                     qn_prim_get(row->prim)->name, qn_dtype_name(dtype), shapes, now,
                     (unsigned long long)(seed + i), (long long)smaller, text, why,
                     (unsigned long long)first_seed);
        }
    fail_msg("%s of %s:%s: %s (case %llu)\n  QN_SEED=%llu repeats it", qn_prim_get(row->prim)->name,
             qn_dtype_name(dtype), text, why, (unsigned long long)seed, (unsigned long long)first_seed);
}

/* Gradient and tangent are refused, and the reason is told. */
static void is_refused(const qn_case_row *row, uint64_t seed)
{
    for (int t = 0; t < 2; t++) {
        rig r;
        const char *why, *name = qn_prim_get(row->prim)->name;
        if (open_rig(&r, row, QN_DTYPE_F32, seed, LIMIT) != QN_OK) fail_msg("%s: %s", name, qn_last_error());
        if ((t ? qn_tangent_stated : qn_gradient_stated)(row->prim, &why) != QN_STATED_NONE) {
            close_rig(&r);
            continue;
        }
        qn_array *x = r.c.base[0].input, *out = NULL;
        qn_status status =
            t ? qn_jvp(r.c.scope, r.y, 1, &x, &x, &out) : qn_vjp(r.c.scope, r.y, r.y, 1, &x, &out);
        /* a tangent may be refused on its way to a gradient already */
        if (status != QN_E_UNSUPPORTED || !strstr(qn_last_error(), t ? "has no tangent: " : why))
            fail_msg("%s has no %s, but asked for it says: %s", name, t ? "tangent" : "gradient",
                     status == QN_OK ? "nothing" : qn_last_error());
        close_rig(&r);
    }
}

static void agrees_with_differences(void **state)
{
    int64_t cases = 0, start = qn_clock_ns();
    int n_prims = 0, n_narrow = 0;
    printf("QN_SEED=%llu\n", (unsigned long long)first_seed);
    for (int p = 0; p < QN_PRIM_COUNT; p++) {
        const qn_case_row *row = qn_case_find((qn_prim)p);
        const char *why;
        if (!row)
            fail_msg("%s has no row in tests/primitives/gradients_cases.c", qn_prim_get((qn_prim)p)->name);
        const int none = qn_gradient_stated((qn_prim)p, &why) == QN_STATED_NONE;
        if (row->kind == QN_CASE_NOTHING) assert_true(none);
        if (row->kind == QN_CASE_REFUSED) is_refused(row, first_seed);
        if (row->kind != QN_CASE_NUMBERS) continue;
        if (none) fail_msg("%s has no gradient, but a row of numbers", qn_prim_get((qn_prim)p)->name);
        n_prims++;
        for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
            int taken = 1;
            const int n = d == 0 ? TRIALS : NARROW_TRIALS;
            for (int i = 0; i < n && taken; i++) {
                char reason[512] = "", text[1024] = "";
                const uint64_t seed = first_seed * 1000003 + (uint64_t)p * 1009 + (uint64_t)i;
                const int64_t limit = 1 + i % LIMIT;
                const int bad = trial(row, types[d], seed, limit, reason, text);
                if (bad == 1) report(row, types[d], seed, limit, reason, text);
                taken = bad == 0;
                cases += taken;
            }
            if (d == 0) assert_true(taken);
            n_narrow += d > 0 && taken;
        }
    }
    printf("%lld cases of %d primitives agree, %d other types than f32 among them, %.1f s\n",
           (long long)cases, n_prims, n_narrow, (double)(qn_clock_ns() - start) * 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_is_stated),
                                       cmocka_unit_test(agrees_with_differences)};
    return cmocka_run_group_tests_name("gradients", tests, open_device, close_device);
}
