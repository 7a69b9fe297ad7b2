#include "tests/devices/other_compare.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/mlx/mlx.h"
#include "device/registry.h"
#include "prim/convert.h"
#include "tests/support/fixtures.h"

/* ---- what is expected --------------------------------------------------------------------------------- */

static void mlx_usage(qn_test_usage *out)
{
    const qn_mlx_shim *shim;
    *out = (qn_test_usage){0};
    if (qn_mlx_load(&shim) != QN_OK) return;
    const qn_mlx_memory m = shim->memory();
    *out = (qn_test_usage){m.active_bytes, m.peak_bytes, m.cache_bytes};
}

/* A device without a row has all defaults. */
static const qn_test_expectations table[] = {
    {.name = "mlx",
     .f64_refusal = "has no f64", /* Apple's GPUs */
     .kv_refusal = "--kv-type f16",
     .compile_variable = "QUERN_MLX_COMPILE",
     .sums_by_batch = 1,
     .counts_spare = 1,
     .get_usage = mlx_usage},
    {.name = "cuda", .row_loss = 0x1p-38},
};

static const double usual[QN_TEST_TOLERANCES] = {
    [QN_TEST_F16] = 2e-3,           [QN_TEST_BF16] = 1.6e-2,      [QN_TEST_F32] = 1e-5,
    [QN_TEST_F64] = 1e-12,          [QN_TEST_SUM] = 1e-5,         [QN_TEST_GRAPH] = 1e-4,
    [QN_TEST_PAGES] = 2e-5,         [QN_TEST_SLOTS] = 5e-5,       [QN_TEST_MATMUL_F32] = 1e-6,
    [QN_TEST_MATMUL_BF16] = 0x1p-8, [QN_TEST_MATMUL_F64] = 1e-14, [QN_TEST_PRODUCT] = 1e-5,
    [QN_TEST_LOGITS] = 1e-3,        [QN_TEST_LOGITS_WIDE] = 5e-3, [QN_TEST_LOSS] = 1e-4,
    [QN_TEST_GRADIENT] = 1e-3,      [QN_TEST_WEIGHT] = 5e-4,
};

static qn_test_expectations expect(const char *name)
{
    qn_test_expectations e = {.name = name};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0) e = table[i];
    for (int i = 0; i < QN_TEST_TOLERANCES; i++)
        if (e.tolerance[i] == 0) e.tolerance[i] = usual[i];
    return e;
}

/* ---- which device ------------------------------------------------------------------------------------- */

enum { WHY_BYTES = 1024 };

static struct {
    qn_test_expectations expected;
    qn_status status; /* of opening it */
    char why[WHY_BYTES];
} now = {.status = QN_E_UNSUPPORTED, .why = "no device is chosen: qn_test_run_others was not called"};

static qn_status try_open(const char *name)
{
    qn_device *d = NULL;
    const qn_status status = qn_device_open(name, &(qn_device_options){.n_threads = 1}, &d);
    qn_device_close(d);
    return status;
}

static int is_absent(qn_status status)
{
    return status == QN_E_UNSUPPORTED || status == QN_E_NOT_FOUND;
}

int qn_test_run_others(const char *group, const struct CMUnitTest *tests, size_t n_tests,
                       int (*setup)(void **), int (*teardown)(void **))
{
    const char *chosen = getenv("QN_TEST_DEVICE");
    int n_seen = 0, n_run = 0, n_failed = 0;
    char title[96], absent[WHY_BYTES] = "";
    if (chosen && !*chosen) chosen = NULL;
    for (const qn_device_ops *const *d = qn_device_registry; *d; d++) {
        const char *name = (*d)->name;
        if (chosen ? strcmp(name, chosen) != 0 : strcmp(name, "cpu") == 0) continue;
        n_seen++;
        now.expected = expect(name);
        now.status = try_open(name);
        if (now.status != QN_OK) snprintf(now.why, sizeof now.why, "%s", qn_last_error());
        if (is_absent(now.status)) {
            const size_t n = strlen(absent);
            snprintf(absent + n, sizeof absent - n, "%s%s", n ? "; " : "", now.why);
            continue;
        }
        snprintf(title, sizeof title, "%s on %s", group, name);
        n_failed += _cmocka_run_group_tests(title, tests, n_tests, setup, teardown);
        n_run++;
    }
    if (n_run) {
        if (*absent) printf("left out: %s\n", absent);
        return n_failed;
    }
    now.status = chosen && !n_seen ? QN_E_ARG : QN_E_UNSUPPORTED;
    if (chosen && !n_seen)
        snprintf(now.why, sizeof now.why, "QN_TEST_DEVICE: this build has no device '%.40s'", chosen);
    else
        snprintf(now.why, sizeof now.why, "%s", *absent ? absent : "this build has no device beside the CPU");
    return _cmocka_run_group_tests(group, tests, n_tests, setup, teardown);
}

const qn_test_expectations *qn_test_other(void)
{
    if (is_absent(now.status)) qn_test_leave_out(now.why);
    if (now.status != QN_OK) fail_msg("%s", now.why);
    return &now.expected;
}

double qn_test_bound_of(qn_test_bound which)
{
    return qn_test_other()->tolerance[which];
}

int qn_test_may_differ(qn_prim prim)
{
    const qn_test_expectations *e = qn_test_other();
    for (int i = 0; i < e->n_inexact; i++)
        if (e->inexact[i] == prim) return 1;
    return 0;
}

int qn_test_refuses_f64(qn_status status)
{
    const char *text = qn_test_other()->f64_refusal;
    return text && status == QN_E_UNSUPPORTED && strstr(qn_last_error(), text) != NULL;
}

int qn_test_get_usage(qn_test_usage *out)
{
    const qn_test_expectations *e = qn_test_other();
    *out = (qn_test_usage){0};
    if (e->get_usage) e->get_usage(out);
    return e->get_usage != NULL;
}

/* ---- two devices -------------------------------------------------------------------------------------- */

/* Sets a variable of the environment, or takes it away; the old value is for the next call. */
static char *put_variable(const char *name, const char *value)
{
    const char *before = getenv(name);
    char *kept = before ? qn_strdup(before) : NULL;
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
    return kept;
}

static void put_back(const char *name, char *kept)
{
    qn_free(put_variable(name, kept));
    qn_free(kept);
}

qn_test_pair qn_test_pair_open(int compile)
{
    qn_test_pair p = {0};
    const qn_test_expectations *e = qn_test_other();
    const qn_device_options one = {.n_threads = 1};
    char *kept = put_variable("QUERN_CPU", "scalar");
    qn_status status = qn_device_open("cpu", &one, &p.cpu);
    put_back("QUERN_CPU", kept);
    if (status != QN_OK) fail_msg("%s", qn_last_error());
    kept = e->compile_variable ? put_variable(e->compile_variable, compile ? "1" : "0") : NULL;
    status = qn_device_open(e->name, &one, &p.other);
    if (e->compile_variable) put_back(e->compile_variable, kept);
    if (status != QN_OK) fail_msg("%s", qn_last_error());
    return p;
}

void qn_test_pair_close(qn_test_pair *p)
{
    qn_device_close(p->other);
    qn_device_close(p->cpu);
    *p = (qn_test_pair){0};
}

static double number(qn_dtype dtype, const void *x, int64_t i)
{
    double d;
    qn_convert(dtype, (const char *)x + i * qn_dtype_width(dtype), QN_DTYPE_F64, &d, 1);
    return d;
}

int qn_test_differ(qn_dtype dtype, int64_t n, const void *got, const void *want, qn_test_tolerance t,
                   char *why)
{
    const int64_t width = qn_dtype_width(dtype);
    for (int64_t i = 0; i < n; i++) {
        const double a = number(dtype, got, i), b = number(dtype, want, i);
        if (qn_dtype_is_float(dtype)) {
            if ((isnan(a) && isnan(b)) || a == b) continue;
            if (isfinite(a) && isfinite(b) && fabs(a - b) <= t.relative * fmax(fabs(b), t.least)) continue;
        } else if (memcmp((const char *)got + i * width, (const char *)want + i * width, (size_t)width) ==
                   0) {
            continue;
        }
        snprintf(why, 256, "element %" PRId64 " of %s is %.9g, the reference's %.9g", i, qn_dtype_name(dtype),
                 a, b);
        return 1;
    }
    return 0;
}

double qn_test_largest(qn_dtype dtype, int64_t n, const void *x)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const double a = fabs(number(dtype, x, i));
        if (isfinite(a) && a > largest) largest = a;
    }
    return largest;
}
