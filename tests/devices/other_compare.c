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
#include "prim/convert.h"
#include "tests/support/fixtures.h"

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
    char *kept = put_variable("QUERN_CPU", "scalar");
    const qn_device_options one = {.n_threads = 1};
    const qn_status status = qn_device_open("cpu", &one, &p.cpu);
    put_back("QUERN_CPU", kept);
    if (status != QN_OK) fail_msg("%s", qn_last_error());
    kept = put_variable("QUERN_MLX_COMPILE", compile ? "1" : "0");
    const qn_status there = qn_device_open("mlx", &one, &p.mlx);
    put_back("QUERN_MLX_COMPILE", kept);
    if (there == QN_OK) return p;
    qn_device_close(p.cpu);
    if (there != QN_E_UNSUPPORTED && there != QN_E_NOT_FOUND) fail_msg("%s", qn_last_error());
    qn_test_leave_out(qn_last_error());
    return p;
}

void qn_test_pair_close(qn_test_pair *p)
{
    qn_device_close(p->mlx);
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
