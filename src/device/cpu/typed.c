/* Element-wise primitives of numbers that are not f32, comparisons, choices and casts: by tiles of numbers of
 * 8 bytes, or by the size of an element where nothing is computed.
 *
 * Integers wrap around; what is divided by 0 gives 0, the smallest number by -1 itself; quotients are rounded
 * down. f64 is computed by the C library. */
#include <math.h>
#include <string.h>

#include "device/cpu/wide.h"

/* ---- arithmetic --------------------------------------------------------------------------------------- */

static uint64_t power(uint64_t x, uint64_t n)
{
    uint64_t r = 1;
    for (; n; n >>= 1, x *= x)
        if (n & 1) r *= x;
    return r;
}

/* x to the power of n < 0: 1 / x^-n without its fraction. */
static int64_t reciprocal_power(int64_t x, int64_t n)
{
    if (x == 1) return 1;
    return x == -1 ? (n & 1 ? -1 : 1) : 0;
}

static int64_t divide(int64_t a, int64_t b)
{
    if (b == 0) return 0;
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static void compute_signed(qn_prim op, qn_wide *x, const qn_wide *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t a = x[i].i, b = y[i].i;
        switch (op) {
        case QN_PRIM_NEG:
            x[i].u = 0 - x[i].u;
            break;
        case QN_PRIM_ABS:
            x[i].u = a < 0 ? 0 - x[i].u : x[i].u;
            break;
        case QN_PRIM_SQUARE:
            x[i].u *= x[i].u;
            break;
        case QN_PRIM_RELU:
            x[i].i = a > 0 ? a : 0;
            break;
        case QN_PRIM_ADD:
            x[i].u += y[i].u;
            break;
        case QN_PRIM_SUB:
            x[i].u -= y[i].u;
            break;
        case QN_PRIM_MUL:
            x[i].u *= y[i].u;
            break;
        case QN_PRIM_DIV:
            x[i].i = divide(a, b);
            break;
        case QN_PRIM_MAXIMUM:
            x[i].i = a > b ? a : b;
            break;
        case QN_PRIM_MINIMUM:
            x[i].i = a < b ? a : b;
            break;
        case QN_PRIM_POW:
            if (b < 0)
                x[i].i = reciprocal_power(a, b);
            else
                x[i].u = power(x[i].u, (uint64_t)b);
            break;
        default:
            break; /* FLOOR, ROUND: as it is */
        }
    }
}

static void compute_unsigned(qn_prim op, qn_wide *x, const qn_wide *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint64_t a = x[i].u, b = y[i].u;
        switch (op) {
        case QN_PRIM_NEG:
            x[i].u = 0 - a;
            break;
        case QN_PRIM_SQUARE:
            x[i].u = a * a;
            break;
        case QN_PRIM_ADD:
            x[i].u = a + b;
            break;
        case QN_PRIM_SUB:
            x[i].u = a - b;
            break;
        case QN_PRIM_MUL:
            x[i].u = a * b;
            break;
        case QN_PRIM_DIV:
            x[i].u = b ? a / b : 0;
            break;
        case QN_PRIM_MAXIMUM:
            x[i].u = a > b ? a : b;
            break;
        case QN_PRIM_MINIMUM:
            x[i].u = a < b ? a : b;
            break;
        case QN_PRIM_POW:
            x[i].u = power(a, b);
            break;
        default:
            break; /* ABS, RELU, FLOOR, ROUND: as it is */
        }
    }
}

static double real_of(qn_prim op, double a, double b)
{
    const double half_root = 0.70710678118654752440, c = 0.79788456080286535588;
    switch (op) {
    case QN_PRIM_NEG:
        return -a;
    case QN_PRIM_ABS:
        return fabs(a);
    case QN_PRIM_EXP:
        return exp(a);
    case QN_PRIM_LOG:
        return log(a);
    case QN_PRIM_SQRT:
        return sqrt(a);
    case QN_PRIM_RSQRT:
        return 1 / sqrt(a);
    case QN_PRIM_SQUARE:
        return a * a;
    case QN_PRIM_RECIP:
        return 1 / a;
    case QN_PRIM_SIN:
        return sin(a);
    case QN_PRIM_COS:
        return cos(a);
    case QN_PRIM_TANH:
        return tanh(a);
    case QN_PRIM_ERF:
        return erf(a);
    case QN_PRIM_SIGMOID:
        return a < 0 ? exp(a) / (1 + exp(a)) : 1 / (1 + exp(-a));
    case QN_PRIM_SOFTPLUS:
        return (a > 0 ? a : a < 0 ? 0 : a) + log1p(exp(-fabs(a)));
    case QN_PRIM_SILU:
        return a / (1 + exp(-a));
    case QN_PRIM_GELU:
        return 0.5 * a * (1 + erf(a * half_root));
    case QN_PRIM_GELU_TANH:
        return 0.5 * a * (1 + tanh(c * a * (1 + 0.044715 * a * a)));
    case QN_PRIM_RELU:
        return a < 0 ? 0 : a;
    case QN_PRIM_FLOOR:
        return floor(a);
    case QN_PRIM_ROUND:
        return nearbyint(a);
    case QN_PRIM_LOG1P:
        return log1p(a);
    case QN_PRIM_EXPM1:
        return expm1(a);
    case QN_PRIM_ADD:
        return a + b;
    case QN_PRIM_SUB:
        return a - b;
    case QN_PRIM_MUL:
        return a * b;
    case QN_PRIM_DIV:
        return a / b;
    case QN_PRIM_MAXIMUM:
        return a != a ? a : b != b ? b : a > b ? a : b;
    case QN_PRIM_MINIMUM:
        return a != a ? a : b != b ? b : a < b ? a : b;
    case QN_PRIM_POW:
        return pow(a, b);
    default:
        return a;
    }
}

static void compute(qn_wide_kind kind, qn_prim op, qn_wide *x, const qn_wide *y, int64_t n)
{
    if (kind == QN_WIDE_SIGNED)
        compute_signed(op, x, y, n);
    else if (kind == QN_WIDE_UNSIGNED)
        compute_unsigned(op, x, y, n);
    else
        for (int64_t i = 0; i < n; i++) x[i].f = real_of(op, x[i].f, y[i].f);
}

static void typed_line(const qn_cpu_run *run, const qn_cpu_step *s, char *out, char *const *in,
                       const int64_t *stride, int64_t n)
{
    const qn_dtype dtype = s->plan.out.dtype;
    const int64_t bytes = (int64_t)qn_wide_bytes(dtype);
    qn_wide x[QN_WIDE_TILE], y[QN_WIDE_TILE];
    for (int64_t at = 0; at < n; at += QN_WIDE_TILE) {
        const int64_t m = n - at < QN_WIDE_TILE ? n - at : QN_WIDE_TILE;
        qn_wide_load(dtype, in[0] + at * stride[0] * bytes, stride[0], m, x);
        if (s->plan.n_in > 1)
            qn_wide_load(dtype, in[1] + at * stride[1] * bytes, stride[1], m, y);
        else
            memcpy(y, x, (size_t)m * sizeof *y);
        compute(qn_wide_kind_of(dtype), s->plan.prim, x, y, m);
        qn_wide_store(dtype, x, m, out + at * bytes, 1);
    }
}

static void typed_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    qn_wide_each_line(run, s, typed_line);
}

const qn_cpu_prim qn_cpu_typed = {typed_run, NULL};

/* ---- comparison --------------------------------------------------------------------------------------- */

static int less(qn_wide_kind kind, qn_wide a, qn_wide b)
{
    return kind == QN_WIDE_SIGNED ? a.i < b.i : kind == QN_WIDE_UNSIGNED ? a.u < b.u : a.f < b.f;
}

static int equal(qn_wide_kind kind, qn_wide a, qn_wide b)
{
    return kind == QN_WIDE_REAL ? a.f == b.f : a.u == b.u;
}

static void compare_line(const qn_cpu_run *run, const qn_cpu_step *s, char *out, char *const *in,
                         const int64_t *stride, int64_t n)
{
    const qn_dtype dtype = s->plan.in[0].dtype;
    const qn_wide_kind kind = qn_wide_kind_of(dtype);
    const int64_t bytes = (int64_t)qn_wide_bytes(dtype);
    const int which = s->plan.params.compare.which;
    qn_wide x[QN_WIDE_TILE], y[QN_WIDE_TILE];
    for (int64_t at = 0; at < n; at += QN_WIDE_TILE) {
        const int64_t m = n - at < QN_WIDE_TILE ? n - at : QN_WIDE_TILE;
        qn_wide_load(dtype, in[0] + at * stride[0] * bytes, stride[0], m, x);
        qn_wide_load(dtype, in[1] + at * stride[1] * bytes, stride[1], m, y);
        for (int64_t i = 0; i < m; i++) {
            int holds = 0;
            switch (which) {
            case QN_COMPARE_EQ:
                holds = equal(kind, x[i], y[i]);
                break;
            case QN_COMPARE_NE:
                holds = !equal(kind, x[i], y[i]);
                break;
            case QN_COMPARE_LT:
                holds = less(kind, x[i], y[i]);
                break;
            case QN_COMPARE_LE:
                holds = less(kind, x[i], y[i]) || equal(kind, x[i], y[i]);
                break;
            }
            out[at + i] = (char)holds;
        }
    }
}

static void compare_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    qn_wide_each_line(run, s, compare_line);
}

const qn_cpu_prim qn_cpu_COMPARE = {compare_run, NULL};

/* ---- choice ------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void select(size_t bytes, char *out, char *const *in,
                                                         const int64_t *stride, int64_t n)
{
    const int64_t a = stride[1] * (int64_t)bytes, b = stride[2] * (int64_t)bytes;
    for (int64_t i = 0; i < n; i++)
        memcpy(out + i * (int64_t)bytes, in[0][i * stride[0]] ? in[1] + i * a : in[2] + i * b, bytes);
}

static void select_line(const qn_cpu_run *run, const qn_cpu_step *s, char *out, char *const *in,
                        const int64_t *stride, int64_t n)
{
    switch (qn_wide_bytes(s->plan.out.dtype)) {
    case 1:
        select(1, out, in, stride, n);
        break;
    case 2:
        select(2, out, in, stride, n);
        break;
    case 4:
        select(4, out, in, stride, n);
        break;
    default:
        select(8, out, in, stride, n);
        break;
    }
}

static void select_run(const qn_cpu_run *run, const qn_cpu_step *s)
{
    qn_wide_each_line(run, s, select_line);
}

const qn_cpu_prim qn_cpu_SELECT = {select_run, NULL};
