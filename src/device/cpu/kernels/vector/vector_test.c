/* Every set of the element-wise operations, norms and reductions: accuracy against double, equal bits
 * whatever the length, the offset and the split, special values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/kernels/kernels.h"
#include "quant/types.h"

enum { BIG = 4096 };

static uint64_t random_state;

static uint64_t random_u64(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(double lo, double hi)
{
    return lo + (hi - lo) * (double)(random_u64() >> 11) * 0x1p-53;
}

static int same_bits(float a, float b)
{
    return qn_float_bits(a) == qn_float_bits(b) || (a != a && b != b);
}

/* The error of x in units of the last place that the true value has in f32. */
static double ulps(float x, double truth)
{
    if (x != x || truth != truth) return (x != x) == (truth != truth) ? 0 : 1e30;
    if (fabs(truth) >= 0x1.ffffffp127)
        return x == (truth > 0 ? INFINITY : -INFINITY) || fabs(truth) < 0x1p128 ? 0 : 1e30;
    if (isinf(x)) return 1e30;
    int e;
    frexp(truth, &e);
    return fabs((double)x - truth) / ldexp(1.0, e < -125 ? -149 : e - 24);
}

/* ---- references ---- */

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double reference(qn_ew op, double a, double b)
{
    switch (op) {
    case QN_EW_COPY:
        return a;
    case QN_EW_NEG:
        return -a;
    case QN_EW_ABS:
        return fabs(a);
    case QN_EW_EXP:
        return exp(a);
    case QN_EW_LOG:
        return log(a);
    case QN_EW_SQRT:
        return sqrt(a);
    case QN_EW_RSQRT:
        return 1 / sqrt(a);
    case QN_EW_SQUARE:
        return a * a;
    case QN_EW_RECIP:
        return 1 / a;
    case QN_EW_SIN:
        return sin(a);
    case QN_EW_COS:
        return cos(a);
    case QN_EW_TANH:
        return tanh(a);
    case QN_EW_ERF:
        return erf(a);
    case QN_EW_SIGMOID:
        return 1 / (1 + exp(-a));
    case QN_EW_SOFTPLUS:
        return (a > 0 ? a : 0) + log1p(exp(-fabs(a)));
    case QN_EW_SILU:
        return a / (1 + exp(-a));
    case QN_EW_GELU:
        return 0.5 * a * erfc(-a / sqrt(2));
    case QN_EW_GELU_TANH:
        return gelu_tanh(a);
    case QN_EW_RELU:
        return a > 0 ? a : 0;
    case QN_EW_FLOOR:
        return floor(a);
    case QN_EW_ROUND:
        return nearbyint(a);
    case QN_EW_LOG1P:
        return log1p(a);
    case QN_EW_EXPM1:
        return expm1(a);
    case QN_EW_ADD:
        return a + b;
    case QN_EW_SUB:
        return a - b;
    case QN_EW_MUL:
        return a * b;
    case QN_EW_DIV:
        return a / b;
    case QN_EW_MAXIMUM:
        return a > b ? a : b;
    case QN_EW_MINIMUM:
        return a < b ? a : b;
    case QN_EW_POW:
        return pow(a, b);
    default:
        return NAN;
    }
}

/* Inputs from [lo, hi]: half of them evenly, half by magnitude. Errors up to `most` ulp, or up to `absolute`
 * (times |x| for gelu). */
static const struct {
    qn_ew op;
    double lo, hi, most, absolute;
} accuracy[] = {
    {QN_EW_EXP, -104, 89, 1.2, 0},
    {QN_EW_LOG, 1e-38, 1e30, 1.5, 0},
    {QN_EW_LOG, 0.5, 2, 1.5, 0},
    {QN_EW_LOG, 1e-44, 1e-37, 1.5, 0},
    {QN_EW_SQRT, 0, 1e30, 0.5001, 0},
    {QN_EW_RSQRT, 1e-30, 1e30, 1.6, 0},
    {QN_EW_SQUARE, -1e15, 1e15, 0.5001, 0},
    {QN_EW_RECIP, -1e20, 1e20, 0.5001, 0},
    {QN_EW_SIN, -100, 100, 2, 1e-7},
    {QN_EW_COS, -100, 100, 2, 1e-7},
    {QN_EW_SIN, -1.5, 1.5, 1.5, 0},
    {QN_EW_SIN, -1e5, 1e5, 2, 2e-7},
    {QN_EW_COS, -1e5, 1e5, 2, 2e-7},
    {QN_EW_SIN, -1e38, 1e38, 2, 2e-7},
    {QN_EW_COS, -1e38, 1e38, 2, 2e-7},
    {QN_EW_TANH, -20, 20, 2, 0},
    {QN_EW_ERF, -6, 6, 1.6, 0},
    {QN_EW_SIGMOID, -87, 100, 2.5, 0},
    {QN_EW_SOFTPLUS, -87, 100, 3, 0},
    {QN_EW_SILU, -87, 100, 3, 0},
    {QN_EW_GELU, -20, 20, 2, 1.2e-7},
    {QN_EW_GELU_TANH, -8, 20, 2, 1.2e-7},
    {QN_EW_GELU_TANH, -1, 1, 4, 0},
    {QN_EW_RELU, -5, 5, 0, 0},
    {QN_EW_FLOOR, -1e9, 1e9, 0, 0},
    {QN_EW_FLOOR, -9, 9, 0, 0},
    {QN_EW_ROUND, -1e9, 1e9, 0, 0},
    {QN_EW_ROUND, -9, 9, 0, 0},
    {QN_EW_LOG1P, -0.9999, 1e30, 3, 0},
    {QN_EW_LOG1P, -0.1, 0.1, 3, 0},
    {QN_EW_EXPM1, -100, 88, 4, 0},
    {QN_EW_EXPM1, -0.1, 0.1, 4, 0},
    {QN_EW_ADD, -9, 9, 0.5001, 0},
    {QN_EW_SUB, -9, 9, 0.5001, 0},
    {QN_EW_MUL, -9, 9, 0.5001, 0},
    {QN_EW_DIV, -9, 9, 0.5001, 0},
    {QN_EW_MAXIMUM, -9, 9, 0, 0},
    {QN_EW_MINIMUM, -9, 9, 0, 0},
    {QN_EW_POW, 1e-3, 1e3, 0.51, 0},
    {QN_EW_POW, 0, 3, 0.51, 0},
    {QN_EW_COPY, -9, 9, 0, 0},
    {QN_EW_NEG, -9, 9, 0, 0},
    {QN_EW_ABS, -9, 9, 0, 0},
};

static float sample(double lo, double hi, int64_t i)
{
    if (i % 2) return (float)uniform(lo, hi);
    double m = fabs(lo) > fabs(hi) ? fabs(lo) : fabs(hi);
    double small = lo > 0 ? lo : m * 1e-9;
    double x = exp(uniform(log(small), log(m)));
    if (i % 4 && lo < 0) x = -x;
    return (float)(x < lo ? lo : x > hi ? hi : x);
}

static void test_accuracy(void **unused)
{
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        random_state = 1;
        for (size_t row = 0; row < sizeof accuracy / sizeof *accuracy; row++) {
            qn_ew op = accuracy[row].op;
            double worst = 0, worst_absolute = 0;
            static float a[BIG], b[BIG], out[BIG];
            for (int round = 0; round < 8; round++) {
                for (int64_t i = 0; i < BIG; i++) {
                    a[i] = sample(accuracy[row].lo, accuracy[row].hi, i);
                    b[i] = (float)uniform(-9, 9);
                }
                k->ew[op](out, a, 1, b, 1, BIG);
                for (int64_t i = 0; i < BIG; i++) {
                    double truth = reference(op, a[i], b[i]), e = ulps(out[i], truth);
                    double absolute =
                        fabs(out[i] - truth) / (fabs(a[i]) > 1 && op == QN_EW_GELU ? fabs(a[i]) : 1);
                    if (e <= accuracy[row].most || absolute <= accuracy[row].absolute) {
                        if (e > worst && absolute > accuracy[row].absolute) worst = e;
                        if (e > accuracy[row].most && absolute > worst_absolute) worst_absolute = absolute;
                        continue;
                    }
                    fail_msg("%s: operation %d of %.9g, %.9g: %.9g instead of %.9g, %.2f ulp", k->name,
                             (int)op, (double)a[i], (double)b[i], (double)out[i], truth, e);
                }
            }
            if (getenv("QN_SHOW"))
                printf("%s op %d: %.3f ulp, beyond them %.2g\n", k->name, (int)op, worst, worst_absolute);
        }
    }
}

static void test_special_values(void **unused)
{
    static const struct {
        qn_ew op;
        float a, b, expected;
    } cases[] = {
        {QN_EW_EXP, -INFINITY, 0, 0},
        {QN_EW_EXP, INFINITY, 0, INFINITY},
        {QN_EW_EXP, NAN, 0, NAN},
        {QN_EW_EXP, 0, 0, 1},
        {QN_EW_EXP, -200, 0, 0},
        {QN_EW_EXP, 1e30f, 0, INFINITY},
        {QN_EW_EXP, -3e38f, 0, 0},
        {QN_EW_LOG, 0, 0, -INFINITY},
        {QN_EW_LOG, -0.0f, 0, -INFINITY},
        {QN_EW_LOG, 1, 0, 0},
        {QN_EW_LOG, -1, 0, NAN},
        {QN_EW_LOG, INFINITY, 0, INFINITY},
        {QN_EW_LOG, -INFINITY, 0, NAN},
        {QN_EW_LOG, NAN, 0, NAN},
        {QN_EW_FLOOR, -0.25f, 0, -1},
        {QN_EW_FLOOR, NAN, 0, NAN},
        {QN_EW_FLOOR, -INFINITY, 0, -INFINITY},
        {QN_EW_FLOOR, -0.0f, 0, -0.0f},
        {QN_EW_FLOOR, 0x1p31f, 0, 0x1p31f},
        {QN_EW_ROUND, 2.5f, 0, 2},
        {QN_EW_ROUND, -3.5f, 0, -4},
        {QN_EW_ROUND, 8388607.5f, 0, 8388608},
        {QN_EW_ROUND, -0.25f, 0, -0.0f},
        {QN_EW_ROUND, NAN, 0, NAN},
        {QN_EW_ROUND, INFINITY, 0, INFINITY},
        {QN_EW_LOG1P, -1, 0, -INFINITY},
        {QN_EW_LOG1P, -2, 0, NAN},
        {QN_EW_LOG1P, INFINITY, 0, INFINITY},
        {QN_EW_LOG1P, -0.0f, 0, -0.0f},
        {QN_EW_LOG1P, 1e-30f, 0, 1e-30f},
        {QN_EW_LOG1P, NAN, 0, NAN},
        {QN_EW_EXPM1, -INFINITY, 0, -1},
        {QN_EW_EXPM1, -200, 0, -1},
        {QN_EW_EXPM1, INFINITY, 0, INFINITY},
        {QN_EW_EXPM1, 1e30f, 0, INFINITY},
        {QN_EW_EXPM1, -0.0f, 0, -0.0f},
        {QN_EW_EXPM1, 1e-30f, 0, 1e-30f},
        {QN_EW_EXPM1, NAN, 0, NAN},
        {QN_EW_SQRT, -1, 0, NAN},
        {QN_EW_RSQRT, 0, 0, INFINITY},
        {QN_EW_RSQRT, INFINITY, 0, 0},
        {QN_EW_RECIP, 0, 0, INFINITY},
        {QN_EW_SIN, INFINITY, 0, NAN},
        {QN_EW_SIN, NAN, 0, NAN},
        {QN_EW_COS, -INFINITY, 0, NAN},
        {QN_EW_SIN, 0, 0, 0},
        {QN_EW_COS, 0, 0, 1},
        {QN_EW_SIN, -0.0f, 0, -0.0f},
        {QN_EW_TANH, INFINITY, 0, 1},
        {QN_EW_TANH, -INFINITY, 0, -1},
        {QN_EW_TANH, NAN, 0, NAN},
        {QN_EW_TANH, -0.0f, 0, -0.0f},
        {QN_EW_TANH, 1e30f, 0, 1},
        {QN_EW_ERF, INFINITY, 0, 1},
        {QN_EW_ERF, -INFINITY, 0, -1},
        {QN_EW_ERF, NAN, 0, NAN},
        {QN_EW_ERF, 0, 0, 0},
        {QN_EW_SIGMOID, INFINITY, 0, 1},
        {QN_EW_SIGMOID, -INFINITY, 0, 0},
        {QN_EW_SIGMOID, NAN, 0, NAN},
        {QN_EW_SOFTPLUS, INFINITY, 0, INFINITY},
        {QN_EW_SOFTPLUS, -INFINITY, 0, 0},
        {QN_EW_SOFTPLUS, NAN, 0, NAN},
        {QN_EW_SOFTPLUS, 1e30f, 0, 1e30f},
        {QN_EW_SILU, INFINITY, 0, INFINITY},
        {QN_EW_SILU, NAN, 0, NAN},
        {QN_EW_SILU, -1000, 0, -0.0f},
        {QN_EW_GELU, INFINITY, 0, INFINITY},
        {QN_EW_GELU, NAN, 0, NAN},
        {QN_EW_GELU_TANH, INFINITY, 0, INFINITY},
        {QN_EW_GELU_TANH, -1000, 0, -0.0f},
        {QN_EW_GELU_TANH, NAN, 0, NAN},
        {QN_EW_RELU, NAN, 0, NAN},
        {QN_EW_RELU, -INFINITY, 0, 0},
        {QN_EW_MAXIMUM, NAN, 1, NAN},
        {QN_EW_MAXIMUM, 1, NAN, NAN},
        {QN_EW_MINIMUM, NAN, 1, NAN},
        {QN_EW_MINIMUM, 1, NAN, NAN},
        {QN_EW_POW, 2, 10, 1024},
        {QN_EW_POW, -2, 3, -8},
        {QN_EW_POW, -2, 0.5f, NAN},
        {QN_EW_POW, 0, 0, 1},
        {QN_EW_POW, NAN, 0, 1},
        {QN_EW_POW, 1, NAN, 1},
        {QN_EW_POW, 0, -1, INFINITY},
        {QN_EW_POW, -0.0f, -1, -INFINITY},
        {QN_EW_POW, -1, INFINITY, 1},
        {QN_EW_POW, 2, INFINITY, INFINITY},
        {QN_EW_POW, 2, -INFINITY, 0},
        {QN_EW_POW, 0.5f, INFINITY, 0},
        {QN_EW_POW, -INFINITY, 3, -INFINITY},
        {QN_EW_POW, INFINITY, -1, 0},
        {QN_EW_POW, 2, NAN, NAN},
        {QN_EW_POW, 1e-40f, 1, 1e-40f},
        {QN_EW_POW, 3e38f, 2, INFINITY},
    };
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            float out;
            k->ew[cases[i].op](&out, &cases[i].a, 1, &cases[i].b, 1, 1);
            if (!same_bits(out, cases[i].expected)) {
                fail_msg("%s: operation %d of %g, %g: %g instead of %g", k->name, (int)cases[i].op,
                         (double)cases[i].a, (double)cases[i].b, (double)out, (double)cases[i].expected);
            }
        }
    }
}

/* The bits of an element depend on its inputs alone: any length, any offset, in place, and nothing behind the
 * end is touched. */
static void test_bits_do_not_depend_on_length(void **unused)
{
    float a[64], b[64], whole[64], out[64];
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        random_state = 2;
        for (int op = 0; op < QN_EW_COUNT; op++) {
            for (int i = 0; i < 64; i++) {
                a[i] = (float)uniform(-4, 4);
                b[i] = (float)uniform(-4, 4);
            }
            a[3] = 1e6f;
            k->ew[op](whole, a, 1, b, 1, 64);
            for (int n = 0; n <= 40; n++) {
                for (int offset = 0; offset < 20; offset += 1 + n % 3) {
                    for (int i = 0; i < 64; i++) out[i] = -77.0f;
                    k->ew[op](out + offset, a + offset, 1, b + offset, 1, n);
                    for (int i = 0; i < 64; i++) {
                        assert_true(same_bits(out[i], i >= offset && i < offset + n ? whole[i] : -77.0f));
                    }
                }
                memcpy(out, a, sizeof out);
                k->ew[op](out, out, 1, b, 1, n);
                for (int i = 0; i < 64; i++) assert_true(same_bits(out[i], i < n ? whole[i] : a[i]));
                memcpy(out, b, sizeof out);
                k->ew[op](out, a, 1, out, 1, n);
                for (int i = 0; i < 64; i++) assert_true(same_bits(out[i], i < n ? whole[i] : b[i]));
                /* Steps of 0: the same as a filled array. */
                float filled[64], expected[64];
                for (int i = 0; i < 64; i++) filled[i] = a[5];
                k->ew[op](expected, filled, 1, b, 1, n);
                k->ew[op](out, a + 5, 0, b, 1, n);
                for (int i = 0; i < n; i++) assert_true(same_bits(out[i], expected[i]));
                for (int i = 0; i < 64; i++) filled[i] = b[5];
                k->ew[op](expected, a, 1, filled, 1, n);
                k->ew[op](out, a, 1, b + 5, 0, n);
                for (int i = 0; i < n; i++) assert_true(same_bits(out[i], expected[i]));
            }
        }
    }
}

/* Random runs of links against the operations one by one, of any length, at any offset, in place, and past
 * the caches where lines begin. */
static void test_chains_are_their_operations(void **unused)
{
    enum { N = 300, LINKS = 6, INPUTS = 3 };
#define IS_LINK(name) QN_EW_##name,
    static const uint8_t ops[] = {QN_EW_LINK_LIST(IS_LINK)};
#undef IS_LINK
    static const uint8_t two[QN_EW_COUNT] = {
#define E(name, inputs) [QN_EW_##name] = (inputs) == 2,
#include "prim/elementwise.def"
    };
    static _Alignas(64) float out[N + 64], in[INPUTS][N + 64], want[N + 64];
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        random_state = 5;
        for (int round = 0; round < 400; round++) {
            const int64_t n = (int64_t)(random_u64() % (N + 1)), a_step = (int64_t)(random_u64() % 4 != 0);
            const int n_links = (int)(random_u64() % (LINKS + 1)), streams = (int)(random_u64() % 3);
            const int offset = streams ? 0 : (int)(random_u64() % 17);
            qn_ew_link links[LINKS];
            for (int i = 0; i < INPUTS; i++)
                for (int j = 0; j < N + 64; j++) in[i][j] = (float)uniform(-3, 3);
            in[0][random_u64() % N] = NAN;
            for (int i = 0; i < N + 64; i++) out[i] = -77;
            for (int64_t i = 0; i < n; i++) want[i] = in[0][offset + i * a_step];
            for (int l = 0; l < n_links; l++) {
                const uint8_t op = ops[random_u64() % sizeof ops];
                links[l] = (qn_ew_link){.op = op};
                if (two[op] && random_u64() % 4)
                    links[l] = (qn_ew_link){.other = in[random_u64() % INPUTS] + offset,
                                            .step = (int64_t)(random_u64() % 3 != 0),
                                            .op = op,
                                            .swapped = (uint8_t)(random_u64() % 2)};
                const float *other = links[l].other ? links[l].other : want;
                const int64_t step = links[l].other ? links[l].step : 1;
                if (links[l].swapped)
                    k->ew[op](want, other, step, want, 1, n);
                else
                    k->ew[op](want, want, 1, other, step, n);
            }
            k->ew_chain(out + offset, in[0] + offset, a_step, links, n_links, n, streams);
            if (streams == 1) k->ew_chain(out, out, 1, NULL, 0, 0, 2);
            for (int i = 0; i < N + 64; i++) {
                const int inside = i >= offset && i < offset + n;
                if (!same_bits(out[i], inside ? want[i - offset] : -77))
                    fail_msg("%s, round %d: element %d of %d is %g, not %g", *name, round, i - offset, (int)n,
                             (double)out[i], (double)(inside ? want[i - offset] : -77));
            }
            if (a_step) { /* in place */
                memcpy(out, in[0], sizeof out);
                for (int l = 0; l < n_links; l++)
                    if (links[l].other == in[0] + offset && links[l].step) links[l].other = out + offset;
                k->ew_chain(out + offset, out + offset, 1, links, n_links, n, 0);
                for (int64_t i = 0; i < n; i++) assert_true(same_bits(out[offset + i], want[i]));
            }
        }
    }
}

/* ---- reductions and norms ---- */

/* A copy that ends where its block ends, so that the address sanitizer sees a read behind it. */
static float *exact(const float *x, int64_t n)
{
    size_t bytes = (size_t)n * sizeof *x, whole = (bytes + 63) & ~(size_t)63;
    char *p = qn_alloc(whole);
    assert_non_null(p);
    p += whole - bytes;
    memcpy(p, x, bytes);
    return (float *)p;
}

static void exact_free(float *x, int64_t n)
{
    size_t bytes = (size_t)n * sizeof *x, whole = (bytes + 63) & ~(size_t)63;
    qn_free((char *)x - (whole - bytes));
}

static float lane_sum(const float *x, int64_t n)
{
    float lanes[16] = {0};
    for (int64_t i = 0; i < n; i++) lanes[i % 16] += x[i];
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

static void test_reductions(void **unused)
{
    static float x[BIG + 16], y[BIG + 16];
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        random_state = 3;
        for (int i = 0; i < BIG; i++) {
            x[i] = (float)uniform(-1, 1);
            y[i] = (float)uniform(-1, 1);
        }
        for (int64_t n = 0; n <= BIG; n += n < 70 ? 1 : 571) {
            float *p = exact(x, n), *q = exact(y, n);
            double s = 0, d = 0, absolute = 1e-30;
            float m = -INFINITY;
            for (int64_t i = 0; i < n; i++) {
                s += x[i];
                d += (double)x[i] * y[i];
                absolute += fabs(x[i]);
                m = x[i] > m ? x[i] : m;
            }
            assert_true(same_bits(k->sum(p, n), lane_sum(x, n)));
            assert_true(fabs(k->sum(p, n) - s) <= absolute * 1e-5);
            assert_true(fabs(k->dot(p, q, n) - d) <= absolute * 1e-5);
            assert_true(same_bits(k->max(p, n), m));
            memmove(y + 1, y, sizeof *y * BIG); /* another alignment */
            assert_true(same_bits(k->dot(p, y + 1, n), k->dot(p, q, n)));
            memmove(y, y + 1, sizeof *y * BIG);
            if (n) {
                p[n / 2] = NAN;
                assert_true(isnan(k->max(p, n)));
                assert_true(isnan(k->sum(p, n)));
            }
            exact_free(p, n);
            exact_free(q, n);
        }
    }
}

/* Rows in blocks: lengths around the block and the vector, equal bits whatever the length and the offset. */
static void test_blocks(void **unused)
{
    enum { BLOCK = QN_ROW_BLOCK, MOST = 16 };
    static float x[BIG], value[BIG + 1];
    static int32_t index[BIG + 1];
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        random_state = 10;
        for (int i = 0; i < BIG; i++) x[i] = (float)uniform(-30, 9);
        x[100] = x[700] = -INFINITY;
        x[40] = x[41] = 8.5f;
        float largest[MOST + 1], sums[MOST + 1], whole[MOST];
        k->sum_exp_blocks(x, BIG, 9, 0.7f, whole);
        for (int64_t n = 0; n <= BIG; n += n < 40 || (n > BLOCK - 20 && n < BLOCK + 20) ? 1 : 109) {
            float *p = exact(x, n);
            int64_t n_blocks = (n + BLOCK - 1) / BLOCK, kept = 0;
            largest[n_blocks] = sums[n_blocks] = -77.0f;
            k->max_blocks(p, n, largest);
            k->sum_exp_blocks(p, n, 9, 0.7f, sums);
            assert_true(largest[n_blocks] == -77.0f && sums[n_blocks] == -77.0f);
            for (int64_t b = 0; b < n_blocks; b++) {
                float most = -INFINITY;
                double truth = 0;
                for (int64_t i = b * BLOCK; i < n && i < (b + 1) * BLOCK; i++) {
                    most = x[i] > most ? x[i] : most;
                    truth += exp((double)(x[i] - 9) * (double)0.7f);
                }
                assert_true(same_bits(largest[b], most));
                assert_true(fabs(sums[b] - truth) <= 3e-6 * truth);
                if ((b + 1) * BLOCK <= n) assert_true(same_bits(sums[b], whole[b]));
            }
            const float least[] = {-INFINITY, -FLT_MAX, 0, 8.5f, 10};
            for (size_t t = 0; t < sizeof least / sizeof *least; t++) {
                kept = 0;
                value[n] = -77.0f;
                index[n] = -77;
                int64_t got = k->collect(p, n, least[t], 1000, index, value);
                for (int64_t i = 0; i < n; i++) {
                    if (!(x[i] >= least[t])) continue;
                    assert_int_equal(index[kept], 1000 + i);
                    assert_true(same_bits(value[kept++], x[i]));
                }
                assert_int_equal(got, kept);
                assert_true(value[n] == -77.0f && index[n] == -77);
            }
            if (n) {
                p[n - 1] = NAN;
                k->max_blocks(p, n, largest);
                k->sum_exp_blocks(p, n, 9, 0.7f, sums);
                assert_true(isnan(largest[n_blocks - 1]) && isnan(sums[n_blocks - 1]));
                for (int64_t b = 0; b + 1 < n_blocks; b++) assert_true(!isnan(largest[b]));
                int64_t got = k->collect(p, n, -INFINITY, 0, index, value);
                assert_int_equal(got, n - 1);
            }
            exact_free(p, n);
        }
    }
}

/* The exp of sum_exp_blocks alone, with a scale at which its exponent to 2 is the element itself. */
static void test_exp_of_sums(void **unused)
{
    float scale = 0.69314718f;
    while (scale * 1.44269504f < 1) scale = nextafterf(scale, 1);
    assert_true(scale * 1.44269504f == 1);
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        for (int i = 0; i < 200000; i++) {
            float t = -(float)i * 7.5e-4f, got;
            qn_kernels_by_name(*name)->sum_exp_blocks(&t, 1, 0, scale, &got);
            if (ulps(got, exp2((double)t)) > 1.2) fail_msg("%s: 2^%.9g is %g", *name, (double)t, (double)got);
        }
    }
}

static void test_softmax(void **unused)
{
    static float x[BIG], out[BIG];
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        random_state = 4;
        for (int64_t n = 1; n < 300; n += n < 40 ? 1 : 37) {
            for (int64_t i = 0; i < n; i++) x[i] = (float)uniform(-30, 30);
            if (n > 3) x[1] = -INFINITY;
            double m = -INFINITY, s = 0;
            for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
            for (int64_t i = 0; i < n; i++) s += exp(x[i] - m);
            float *p = exact(x, n);
            out[n] = -77.0f;
            k->softmax(out, p, n);
            assert_true(out[n] == -77.0f);
            for (int64_t i = 0; i < n; i++) {
                double truth = exp(x[i] - m) / s;
                /* x - m is rounded to f32 before exp. */
                assert_true(fabs(out[i] - truth) <= (1e-6 + 6e-8 * fmin(m - x[i], 99)) * truth + 1e-30);
                if (x[i] == -INFINITY) assert_true(qn_float_bits(out[i]) == 0);
            }
            k->softmax(p, p, n);
            assert_memory_equal(p, out, (size_t)n * sizeof *p);
            for (int64_t i = 0; i < n; i++) p[i] = -INFINITY;
            k->softmax(p, p, n);
            for (int64_t i = 0; i < n; i++) assert_true(qn_float_bits(p[i]) == 0);
            exact_free(p, n);
        }
    }
}

static void test_norms(void **unused)
{
    static float x[BIG], w[BIG], b[BIG], out[BIG + 1];
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        random_state = 5;
        for (int64_t n = 1; n < 2100; n += n < 70 ? 1 : 463) {
            double mean = 0, square = 0, var = 0;
            for (int64_t i = 0; i < n; i++) {
                x[i] = (float)uniform(-2, 3);
                w[i] = (float)uniform(-1, 1);
                b[i] = (float)uniform(-1, 1);
                mean += x[i] / (double)n;
                square += (double)x[i] * x[i] / (double)n;
            }
            for (int64_t i = 0; i < n; i++) var += (x[i] - mean) * (x[i] - mean) / (double)n;
            float *p = exact(x, n), *pw = exact(w, n), *pb = exact(b, n);
            for (int form = 0; form < 8; form++) {
                int rms = form & 1, has_w = form & 2, has_b = form & 4;
                out[n] = -77.0f;
                if (rms)
                    k->rms_norm(out, p, has_w ? pw : NULL, has_b ? 1.0f : 0, 1e-5f, n);
                else
                    k->layer_norm(out, p, has_w ? pw : NULL, has_b ? pb : NULL, 1e-5f, n);
                assert_true(out[n] == -77.0f);
                for (int64_t i = 0; i < n; i++) {
                    double scale = has_w ? w[i] + (rms && has_b ? 1.0 : 0) : 1.0;
                    double truth = rms ? x[i] / sqrt(square + 1e-5) * scale
                                       : (x[i] - mean) / sqrt(var + 1e-5) * scale + (has_b ? b[i] : 0);
                    double slack = rms || n > 1 ? 2e-6 * (fabs(truth) + 1) : 1e-3;
                    if (fabs(out[i] - truth) > slack) {
                        fail_msg("%s: form %d, n %d, element %d: %g instead of %g", k->name, form, (int)n,
                                 (int)i, (double)out[i], truth);
                    }
                }
                float *in_place = exact(x, n);
                if (rms)
                    k->rms_norm(in_place, in_place, has_w ? pw : NULL, has_b ? 1.0f : 0, 1e-5f, n);
                else
                    k->layer_norm(in_place, in_place, has_w ? pw : NULL, has_b ? pb : NULL, 1e-5f, n);
                assert_memory_equal(in_place, out, (size_t)n * sizeof *out);
                exact_free(in_place, n);
            }
            exact_free(p, n);
            exact_free(pw, n);
            exact_free(pb, n);
        }
    }
}

static void test_rope(void **unused)
{
    static const int64_t shapes[][2] = {{64, 64}, {16, 16}, {24, 24}, {128, 64}, {10, 6},
                                        {34, 34}, {80, 2},  {66, 50}, {512, 512}};
    float x[3 * 512 + 1], was[3 * 512], c[256], s[256];
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        random_state = 6;
        for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
            int64_t head_dim = shapes[shape][0], rotary = shapes[shape][1], half = rotary / 2,
                    n = 3 * head_dim;
            for (int interleaved = 0; interleaved < 2; interleaved++) {
                for (int64_t i = 0; i < n; i++) was[i] = (float)uniform(-2, 2);
                for (int64_t i = 0; i < half; i++) {
                    double angle = uniform(-3, 3);
                    c[i] = (float)cos(angle);
                    s[i] = (float)sin(angle);
                }
                float *in = exact(was, n), *pc = exact(c, half), *ps = exact(s, half);
                k->rope(in, 3, head_dim, rotary, pc, ps, interleaved);
                memcpy(x, in, (size_t)n * sizeof *x);
                for (int64_t h = 0; h < 3; h++) {
                    const float *p = was + h * head_dim, *out = x + h * head_dim;
                    for (int64_t i = rotary; i < head_dim; i++) assert_true(p[i] == out[i]);
                    for (int64_t i = 0; i < half; i++) {
                        int64_t j0 = interleaved ? 2 * i : i, j1 = interleaved ? 2 * i + 1 : i + half;
                        assert_true(fabs((double)p[j0] * c[i] - (double)p[j1] * s[i] - out[j0]) < 4e-7);
                        assert_true(fabs((double)p[j1] * c[i] + (double)p[j0] * s[i] - out[j1]) < 4e-7);
                    }
                }
                /* One head alone has the same bits. */
                memcpy(in, was + head_dim, (size_t)head_dim * sizeof *in);
                k->rope(in, 1, head_dim, rotary, pc, ps, interleaved);
                assert_memory_equal(in, x + head_dim, (size_t)head_dim * sizeof *in);
                exact_free(in, n);
                exact_free(pc, half);
                exact_free(ps, half);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_bits_do_not_depend_on_length),
        cmocka_unit_test(test_chains_are_their_operations),
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_exp_of_sums),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests_name("kernels/vector", tests, NULL, NULL);
}
