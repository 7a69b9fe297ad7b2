#include "tests/kernels/kernel_compare.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* What is being computed, for whoever reads of a failure or a crash. */
static char where[256];

void qn_test_at(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(where, sizeof where, fmt, args);
    va_end(args);
}

void qn_test_crashed(int signal)
{
    static const char text[] = "\nkernel_check: memory fault in ";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    n += write(STDERR_FILENO, where, strlen(where));
    n += write(STDERR_FILENO, "\n", 1);
    _exit(n > 0 ? 3 : 4);
}

void qn_test_same_bytes(const void *got, const void *expected, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const uint8_t *)got)[i] != ((const uint8_t *)expected)[i])
            fail_msg("%s: byte %zu of %zu is %02x, expected %02x", where, i, n, ((const uint8_t *)got)[i],
                     ((const uint8_t *)expected)[i]);
}

int qn_test_same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

void qn_test_same_floats(const float *got, const float *expected, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!qn_test_same_float(got[i], expected[i]))
            fail_msg("%s: element %lld of %lld is %a, expected %a", where, (long long)i, (long long)n,
                     (double)got[i], (double)expected[i]);
}

void qn_test_near_float(float got, double expected, double bound, int64_t i)
{
    int ok = isnan(expected) ? isnan(got) : isinf(expected) ? got == expected : fabs(got - expected) <= bound;
    if (!ok)
        fail_msg("%s: element %lld is %.9g, expected %.9g (bound %.2g)", where, (long long)i, (double)got,
                 expected, bound);
}
