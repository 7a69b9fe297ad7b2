/* Public operations against numbers written down, over all element types, with wrong arguments, without
 * memory, and on several threads. Gradients: tests/primitives/ops_test.c and
 * tests/primitives/gradients_test.c. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <string.h>

#include "array/array.h"
#include "array/program.h"
#include "base/mem.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

#define D(...)                                                        \
    (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                 \
        __VA_ARGS__                                                   \
    }
#define V(...)                                                     \
    (sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]) \
    {                                                              \
        __VA_ARGS__                                                \
    }
#define L(...)      \
    (int64_t[])     \
    {               \
        __VA_ARGS__ \
    }

static const qn_dtype plain[] = {QN_DTYPE_BOOL, QN_DTYPE_U8,  QN_DTYPE_U16, QN_DTYPE_U32, QN_DTYPE_U64,
                                 QN_DTYPE_I8,   QN_DTYPE_I16, QN_DTYPE_I32, QN_DTYPE_I64, QN_DTYPE_F16,
                                 QN_DTYPE_BF16, QN_DTYPE_F32, QN_DTYPE_F64};
enum { N_PLAIN = sizeof plain / sizeof *plain };

static qn_scope *s;

static int open_scope(void **state)
{
    return qn_scope_open(2, 0, &s) != QN_OK;
}

static int close_scope(void **state)
{
    qn_scope_close(s);
    return 0;
}

/* ---- helpers ------------------------------------------------------------------------------------------ */

static qn_array *of(qn_dtype dtype, size_t n_dims, const int64_t *dims, const double *values)
{
    return qn_astype(s, qn_from_data(s, QN_DTYPE_F64, (int)n_dims, dims, values), dtype);
}

static qn_array *vec(qn_dtype dtype, size_t n, const double *values)
{
    return of(dtype, 1, L((int64_t)n), values);
}

static int line; /* of the test that is being computed */

static void check_near(qn_array *a, qn_dtype dtype, size_t n, const double *want, double tolerance)
{
    double got[256];
    OK(qn_scope_status(s));
    assert_non_null(a);
    if (qn_array_dtype(a) != dtype)
        fail_msg("line %d: %s instead of %s", line, qn_dtype_name(qn_array_dtype(a)), qn_dtype_name(dtype));
    OK(qn_array_read(s, a, QN_DTYPE_F64, got, (int64_t)n));
    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i]) ? isnan(got[i]) : got[i] == want[i]) continue;
        if (!(fabs(got[i] - want[i]) <= tolerance * fabs(want[i])))
            fail_msg("line %d: %s: element %zu is %.17g, not %.17g", line, qn_dtype_name(dtype), i, got[i],
                     want[i]);
    }
}

#define expect_near(...) (line = __LINE__, check_near(__VA_ARGS__))
#define expect(...) (line = __LINE__, check_near(__VA_ARGS__, 0))

static void expect_dims(const qn_array *a, size_t n, const int64_t *dims)
{
    OK(qn_scope_status(s));
    assert_int_equal(qn_array_n_dims(a), n);
    for (size_t i = 0; i < n; i++) assert_int_equal(qn_array_dim(a, (int)i), dims[i]);
}

static void check_refused(qn_array *a, const char *says)
{
    if (a) fail_msg("line %d: not refused", line);
    assert_int_not_equal(qn_scope_status(s), QN_OK);
    if (!strstr(qn_last_error(), says)) fail_msg("\"%s\" does not say \"%s\"", qn_last_error(), says);
    (void)qn_scope_recover(s);
}

static int is_real(qn_dtype d)
{
    return d >= QN_DTYPE_F16;
}

static int has_sign(qn_dtype d)
{
    return d >= QN_DTYPE_I8;
}

/* Data, not what will be computed. */
static qn_array *ids(size_t n, const double *values)
{
    qn_array *a = vec(QN_DTYPE_I32, n, values);
    OK(qn_eval(s, 1, &a));
    return a;
}

#define refused(...) (line = __LINE__, check_refused(__VA_ARGS__))

/* ---- arithmetic --------------------------------------------------------------------------------------- */

static void arithmetic_of_all_types(void **state)
{
    for (int i = 0; i < N_PLAIN; i++) {
        const qn_dtype t = plain[i], r = t == QN_DTYPE_BOOL ? QN_DTYPE_I32 : t;
        if (t == QN_DTYPE_BOOL) {
            qn_array *a = vec(t, V(0, 1, 1)), *b = vec(t, V(1, 1, 0));
            expect(qn_add(s, a, b), r, V(1, 2, 1));
            expect(qn_maximum(s, a, b), t, V(1, 1, 1));
            continue;
        }
        qn_array *a = vec(t, V(6, 3, 9, 7)), *b = vec(t, V(2, 3, 4, 2));
        expect(qn_add(s, a, b), t, V(8, 6, 13, 9));
        expect(qn_sub(s, a, b), t, V(4, 0, 5, 5));
        expect(qn_mul(s, a, b), t, V(12, 9, 36, 14));
        expect(qn_div(s, a, b), is_real(t) ? t : QN_DTYPE_F32, V(3, 1, 2.25, 3.5));
        expect(qn_floor_divide(s, a, b), t, V(3, 1, 2, 3));
        expect(qn_remainder(s, a, b), t, V(0, 0, 1, 1));
        expect_near(qn_pow(s, b, vec(t, V(3, 2, 1, 0))), t, V(8, 9, 4, 1), 1e-6);
        expect(qn_maximum(s, a, b), t, V(6, 3, 9, 7));
        expect(qn_minimum(s, a, b), t, V(2, 3, 4, 2));
        expect(qn_square(s, b), t, V(4, 9, 16, 4));
        expect(qn_clip(s, a, 3.5, 7.5), t, is_real(t) ? 4 : 4,
               is_real(t) ? (double[]){6, 3.5, 7.5, 7} : (double[]){6, 4, 7, 7});
        expect_near(qn_exp(s, vec(t, V(0, 1))), is_real(t) ? t : QN_DTYPE_F32, V(1, M_E),
                    t == QN_DTYPE_BF16  ? 4e-3
                    : t == QN_DTYPE_F16 ? 5e-4
                                        : 2e-7);
        if (!has_sign(t)) continue;
        a = vec(t, V(-7, 7, -6, 0));
        b = vec(t, V(2, -2, 3, 5));
        expect(qn_neg(s, a), t, V(7, -7, 6, 0));
        expect(qn_abs(s, a), t, V(7, 7, 6, 0));
        expect(qn_sign(s, a), t, V(-1, 1, -1, 0));
        expect(qn_relu(s, a), t, V(0, 7, 0, 0));
        expect(qn_floor_divide(s, a, b), t, V(-4, -4, -2, 0));
        expect(qn_remainder(s, a, b), t, V(1, -1, 0, 0));
    }
}

/* What C leaves undefined is defined here. */
static void integers_at_their_ends(void **state)
{
    const int32_t big[4] = {INT32_MAX, INT32_MIN, INT32_MIN, 5}, by[4] = {1, -1, 0, 0};
    const double max = INT32_MAX, min = INT32_MIN;
    qn_array *a = qn_from_data(s, QN_DTYPE_I32, D(4), big), *b = qn_from_data(s, QN_DTYPE_I32, D(4), by);
    expect(qn_add(s, a, b), QN_DTYPE_I32, V(min, max, min, 5));
    expect(qn_neg(s, a), QN_DTYPE_I32, V(-max, min, min, -5));
    expect(qn_abs(s, a), QN_DTYPE_I32, V(max, min, min, 5));
    expect(qn_floor_divide(s, a, b), QN_DTYPE_I32, V(max, min, 0, 0));
    expect(qn_remainder(s, a, b), QN_DTYPE_I32, V(0, 0, min, 5));
    expect(qn_square(s, a), QN_DTYPE_I32, V(1, 0, 0, 25));
    const int64_t wide[2] = {INT64_MIN, INT64_MAX};
    a = qn_from_data(s, QN_DTYPE_I64, D(2), wide);
    b = qn_from_data(s, QN_DTYPE_I64, D(2), L(-1, 1));
    expect(qn_floor_divide(s, a, b), QN_DTYPE_I64, V(-0x1p63, 0x1p63));
    expect(qn_mul(s, a, b), QN_DTYPE_I64, V(-0x1p63, 0x1p63));
    expect(qn_reduce(s, QN_REDUCE_SUM, a, 0, NULL, 0), QN_DTYPE_I64, V(-1));
    expect(qn_pow(s, vec(QN_DTYPE_I32, V(2, -1, 3, 1)), vec(QN_DTYPE_I32, V(-1, -3, 40, -9))), QN_DTYPE_I32,
           V(0, -1, (double)(int32_t)(uint32_t)12157665459056928801u, 1));
    expect(qn_sub(s, vec(QN_DTYPE_U8, V(1, 0)), vec(QN_DTYPE_U8, V(2, 1))), QN_DTYPE_U8, V(255, 255));
}

static void functions_of_doubles(void **state)
{
    const double x[4] = {-1.5, -0.25, 0.75, 2.5};
    const struct {
        qn_array *(*op)(qn_scope *, qn_array *);
        double (*is)(double);
    } all[] = {{qn_exp, exp},     {qn_sin, sin},     {qn_cos, cos},   {qn_tanh, tanh},      {qn_erf, erf},
               {qn_expm1, expm1}, {qn_floor, floor}, {qn_ceil, ceil}, {qn_round, nearbyint}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double want[4];
        for (int k = 0; k < 4; k++) want[k] = all[i].is(x[k]);
        expect(all[i].op(s, vec(QN_DTYPE_F64, 4, x)), QN_DTYPE_F64, 4, want);
        expect_near(all[i].op(s, vec(QN_DTYPE_F32, 4, x)), QN_DTYPE_F32, 4, want, 4e-7);
        expect_near(all[i].op(s, vec(QN_DTYPE_BF16, 4, x)), QN_DTYPE_BF16, 4, want, 4e-3);
    }
    expect(qn_ln(s, vec(QN_DTYPE_F64, V(0.5, 10))), QN_DTYPE_F64, V(log(0.5), log(10)));
    expect(qn_log1p(s, vec(QN_DTYPE_F64, V(1e-20, -0.5))), QN_DTYPE_F64, V(1e-20, log1p(-0.5)));
    expect_near(qn_sigmoid(s, vec(QN_DTYPE_F64, V(-800, 0, 2))), QN_DTYPE_F64, V(0, 0.5, 1 / (1 + exp(-2))),
                1e-15);
    /* what is fused for f32 goes by its parts: f64 has f64's accuracy */
    qn_array *y = qn_softmax(s, vec(QN_DTYPE_F64, V(1, 2, 3)));
    const double sum = exp(1) + exp(2) + exp(3);
    expect_near(y, QN_DTYPE_F64, V(exp(1) / sum, exp(2) / sum, exp(3) / sum), 1e-15);
    y = qn_rms_norm(s, of(QN_DTYPE_F64, D(1, 2), (double[]){3, 4}), NULL, 0, 0);
    expect_near(y, QN_DTYPE_F64, V(3 / sqrt(12.5), 4 / sqrt(12.5)), 1e-15);
}

static void comparison_and_logic(void **state)
{
    for (int i = 0; i < N_PLAIN; i++) {
        const qn_dtype t = plain[i];
        qn_array *a = vec(t, V(0, 1, 1)), *b = vec(t, V(1, 1, 0));
        expect(qn_eq(s, a, b), QN_DTYPE_BOOL, V(0, 1, 0));
        expect(qn_ne(s, a, b), QN_DTYPE_BOOL, V(1, 0, 1));
        expect(qn_lt(s, a, b), QN_DTYPE_BOOL, V(1, 0, 0));
        expect(qn_le(s, a, b), QN_DTYPE_BOOL, V(1, 1, 0));
        expect(qn_gt(s, a, b), QN_DTYPE_BOOL, V(0, 0, 1));
        expect(qn_ge(s, a, b), QN_DTYPE_BOOL, V(0, 1, 1));
        expect(qn_logical_and(s, a, b), QN_DTYPE_BOOL, V(0, 1, 0));
        expect(qn_logical_or(s, a, b), QN_DTYPE_BOOL, V(1, 1, 1));
        expect(qn_logical_not(s, a), QN_DTYPE_BOOL, V(1, 0, 0));
        expect(qn_where(s, a, a, b), t, V(1, 1, 1));
        expect(qn_isnan(s, a), QN_DTYPE_BOOL, V(0, 0, 0));
        expect(qn_isfinite(s, a), QN_DTYPE_BOOL, V(1, 1, 1));
        if (!is_real(t)) continue;
        a = vec(t, V(NAN, INFINITY, -INFINITY, -0.0));
        b = vec(t, V(NAN, 1, 1, 0));
        expect(qn_isnan(s, a), QN_DTYPE_BOOL, V(1, 0, 0, 0));
        expect(qn_isinf(s, a), QN_DTYPE_BOOL, V(0, 1, 1, 0));
        expect(qn_isfinite(s, a), QN_DTYPE_BOOL, V(0, 0, 0, 1));
        expect(qn_eq(s, a, b), QN_DTYPE_BOOL, V(0, 0, 0, 1));
        expect(qn_ne(s, a, b), QN_DTYPE_BOOL, V(1, 1, 1, 0));
        expect(qn_lt(s, a, b), QN_DTYPE_BOOL, V(0, 0, 1, 0));
        expect(qn_ge(s, a, b), QN_DTYPE_BOOL, V(0, 1, 0, 1));
        expect(qn_maximum(s, a, b), t, V(NAN, INFINITY, 1, 0));
        expect(qn_sign(s, a), t, V(NAN, 1, -1, 0));
    }
    /* broadcast, and views in any layout */
    qn_array *rows = qn_arange(s, QN_DTYPE_I32, 0, 2, 1), *columns = qn_arange(s, QN_DTYPE_I32, 0, 3, 1);
    qn_array *less = qn_lt(s, qn_expand_dims(s, rows, 1), columns);
    expect(less, QN_DTYPE_BOOL, V(0, 1, 1, 0, 0, 1));
    expect(qn_where(s, qn_transpose(s, less), qn_scalar(s, 5), qn_expand_dims(s, columns, 1)), QN_DTYPE_F32,
           V(0, 0, 5, 1, 5, 5));
}

/* ---- along axes --------------------------------------------------------------------------------------- */

static void reductions(void **state)
{
    const double x[6] = {1, 5, 2, 4, 0, 3};
    for (int i = 1; i < N_PLAIN; i++) {
        const qn_dtype t = plain[i], f = is_real(t) ? t : QN_DTYPE_F32;
        qn_array *a = of(t, D(2, 3), x);
        expect(qn_sum(s, a, 0), t, V(5, 5, 5));
        expect(qn_sum(s, a, -1), t, V(8, 7));
        expect(qn_max(s, a, 1), t, V(5, 4));
        expect(qn_min(s, a, 0), t, V(1, 0, 2));
        expect(qn_reduce(s, QN_REDUCE_PROD, a, 1, (int[]){0}, 0), t, V(4, 0, 6));
        expect(qn_reduce(s, QN_REDUCE_SUM, a, 0, NULL, 0), t, V(15));
        expect(qn_reduce(s, QN_REDUCE_MEAN, a, 2, (int[]){0, -1}, 1), f, V(2.5));
        expect(qn_reduce(s, QN_REDUCE_ANY, a, 1, (int[]){1}, 0), QN_DTYPE_BOOL, V(1, 1));
        expect(qn_reduce(s, QN_REDUCE_ALL, a, 1, (int[]){1}, 0), QN_DTYPE_BOOL, V(1, 0));
        expect_near(qn_var(s, a, 1, 1), f, V(13.0 / 3, 13.0 / 3), 5e-3);
        expect(qn_argmax(s, a, 1, 0), QN_DTYPE_I32, V(1, 0));
        expect(qn_argmin(s, qn_transpose(s, a), 0, 0), QN_DTYPE_I32, V(0, 1));
        expect(qn_cumulate(s, QN_CUMSUM, a, 1, 0, 0), t, V(1, 6, 8, 4, 4, 7));
        expect(qn_cumulate(s, QN_CUMSUM, a, 1, 1, 1), t, V(7, 2, 0, 3, 3, 0));
        expect(qn_cumulate(s, QN_CUMPROD, a, 0, 0, 0), t, V(1, 5, 2, 4, 0, 6));
        expect(qn_cumulate(s, QN_CUMMAX, a, 1, 0, 0), t, V(1, 5, 5, 4, 4, 4));
        expect(qn_cumulate(s, QN_CUMMIN, a, 1, 1, 0), t, V(1, 2, 2, 0, 0, 3));
        expect(qn_sort(s, a, 1, 0), t, V(1, 2, 5, 0, 3, 4));
        expect(qn_sort(s, a, 0, 1), t, V(4, 5, 3, 1, 0, 2));
        expect(qn_argsort(s, a, -1, 0), QN_DTYPE_I32, V(0, 2, 1, 1, 2, 0));
        qn_array *where;
        expect(qn_topk(s, a, 2, 1, &where), t, V(5, 2, 4, 3));
        expect(where, QN_DTYPE_I32, V(1, 2, 0, 2));
    }
    qn_array *b = vec(QN_DTYPE_BOOL, V(1, 0, 1));
    expect(qn_sum(s, b, 0), QN_DTYPE_I32, V(2));
    expect(qn_cumulate(s, QN_CUMSUM, b, 0, 0, 0), QN_DTYPE_I32, V(1, 1, 2));
    expect(qn_max(s, b, 0), QN_DTYPE_BOOL, V(1));
    /* f16 is not summed in f16 */
    expect(qn_reduce(s, QN_REDUCE_MEAN, qn_full(s, QN_DTYPE_F16, D(4, 1000), 60), 0, NULL, 0), QN_DTYPE_F16,
           V(60));
    qn_array *e = qn_zeros(s, QN_DTYPE_F32, D(2, 0));
    expect(qn_sum(s, e, 1), QN_DTYPE_F32, V(0, 0));
    expect(qn_reduce(s, QN_REDUCE_PROD, e, 0, NULL, 0), QN_DTYPE_F32, V(1));
    expect(qn_reduce(s, QN_REDUCE_ALL, e, 0, NULL, 0), QN_DTYPE_BOOL, V(1));
    expect(qn_reduce(s, QN_REDUCE_ANY, e, 0, NULL, 0), QN_DTYPE_BOOL, V(0));
    refused(qn_max(s, e, 1), "has no elements");
}

static void not_a_number(void **state)
{
    for (int i = 9; i < N_PLAIN; i++) {
        const qn_dtype t = plain[i];
        qn_array *a = vec(t, V(2, NAN, -INFINITY, 2, -0.0, 0));
        expect(qn_sort(s, a, 0, 0), t, V(-INFINITY, 0, 0, 2, 2, NAN));
        expect(qn_argsort(s, a, 0, 0), QN_DTYPE_I32, V(2, 4, 5, 0, 3, 1));
        expect(qn_argsort(s, a, 0, 1), QN_DTYPE_I32, V(1, 0, 3, 4, 5, 2));
        expect(qn_max(s, a, 0), t, V(NAN));
        expect(qn_min(s, a, 0), t, V(NAN));
        expect(qn_argmax(s, a, 0, 0), QN_DTYPE_I32, V(1));
        expect(qn_argmin(s, a, 0, 0), QN_DTYPE_I32, V(1));
        expect(qn_cumulate(s, QN_CUMMAX, a, 0, 0, 0), t, V(2, NAN, NAN, NAN, NAN, NAN));
        expect(qn_reduce(s, QN_REDUCE_LOGSUMEXP, vec(t, V(-INFINITY, -INFINITY)), 0, NULL, 0), t,
               V(-INFINITY));
        expect(qn_reduce(s, QN_REDUCE_LOGSUMEXP, vec(t, V(INFINITY, 1)), 0, NULL, 0), t, V(INFINITY));
    }
}

/* ---- shapes ------------------------------------------------------------------------------------------- */

static void shapes_of_all_types(void **state)
{
    for (int i = 0; i < N_PLAIN; i++) {
        const qn_dtype t = plain[i];
        const int wide = t != QN_DTYPE_BOOL;
        const double x[6] = {0, 1, wide ? 2 : 1, wide ? 3 : 0, wide ? 4 : 0, wide ? 5 : 1};
        qn_array *a = of(t, D(2, 3), x);
        expect(qn_reshape(s, a, D(-1)), t, 6, x);
        expect(qn_slice(s, a, L(0, QN_TO_END), L(2, QN_TO_END), L(1, -2)), t, V(x[2], x[0], x[5], x[3]));
        expect(qn_slice(s, a, L(-1, 1), L(QN_TO_END, -1), NULL), t, V(x[4]));
        expect(qn_slice_update(s, a, qn_scalar(s, 1), L(0, 0), L(2, 3), L(1, 2)), t,
               V(1, x[1], 1, 1, x[4], 1));
        expect(qn_pad(s, a, L(0, 1), L(1, 0), 1), t, V(1, x[0], x[1], x[2], 1, x[3], x[4], x[5], 1, 1, 1, 1));
        expect(qn_concatenate(s, 2, (qn_array *[]){a, a}, 0), t,
               V(x[0], x[1], x[2], x[3], x[4], x[5], x[0], x[1], x[2], x[3], x[4], x[5]));
        expect(qn_concatenate(s, 2, (qn_array *[]){a, a}, 1), t,
               V(x[0], x[1], x[2], x[0], x[1], x[2], x[3], x[4], x[5], x[3], x[4], x[5]));
        qn_array *st = qn_stack(s, 2, (qn_array *[]){a, a}, -1);
        expect_dims(st, D(2, 3, 2));
        expect(st, t, V(x[0], x[0], x[1], x[1], x[2], x[2], x[3], x[3], x[4], x[4], x[5], x[5]));
        qn_array *parts[3];
        qn_split(s, a, 3, 1, parts);
        expect(parts[1], t, V(x[1], x[4]));
        expect(qn_repeat(s, a, 2, 1), t,
               V(x[0], x[0], x[1], x[1], x[2], x[2], x[3], x[3], x[4], x[4], x[5], x[5]));
        expect(qn_tile(s, a, L(1, 2)), t,
               V(x[0], x[1], x[2], x[0], x[1], x[2], x[3], x[4], x[5], x[3], x[4], x[5]));
        expect(qn_as_strided(s, a, D(3, 2), L(1, 2), 1), t, V(x[1], x[3], x[2], x[4], x[3], x[5]));
        expect(qn_as_strided(s, a, D(2, 2), L(-3, -1), 5), t, V(x[5], x[4], x[2], x[1]));
        qn_array *last = vec(QN_DTYPE_I64, V(2, -3));
        expect(qn_take_axis(s, a, last, 1), t, V(x[2], x[0], x[5], x[3]));
        expect(qn_take_along_axis(s, a, of(QN_DTYPE_U8, D(2, 1), (double[]){2, 0}), 1), t, V(x[2], x[3]));
        expect(qn_put_along_axis(s, a, of(QN_DTYPE_I8, D(2, 1), (double[]){-1, 0}), qn_scalar(s, 1), 1), t,
               V(x[0], x[1], 1, 1, x[4], x[5]));
        expect(
            qn_scatter(s, a, vec(QN_DTYPE_I32, V(1, 0, 1)), of(t, D(2, 3), (double[]){0, 1, 1, 0, 0, 0}), 1),
            t, V(1, 1, x[2], 0, 0, x[5]));
    }
    qn_array *a = qn_arange(s, QN_DTYPE_F32, 0, 24, 1);
    qn_array *b = qn_reshape(s, a, D(2, 3, 4));
    expect_dims(qn_flatten(s, b, 0, 1), D(6, 4));
    expect_dims(qn_swap_axes(s, b, 0, -1), D(4, 3, 2));
    expect_dims(qn_expand_dims(s, b, -1), D(2, 3, 4, 1));
    expect_dims(qn_squeeze(s, qn_expand_dims(s, b, 1), 1), D(2, 3, 4));
    expect_dims(qn_reduce(s, QN_REDUCE_SUM, b, 2, (int[]){0, 2}, 0), D(3));
    expect_dims(qn_take_axis(s, b, qn_zeros(s, QN_DTYPE_I32, D(5, 6)), 1), D(2, 5, 6, 4));
    expect_dims(qn_slice(s, b, L(0, 2, 0), L(2, 1, 4), NULL), D(2, 0, 4));
    /* many parts, which are joined in several steps */
    qn_array *parts[25];
    for (int i = 0; i < 25; i++) parts[i] = qn_full(s, QN_DTYPE_I16, D(1), i);
    qn_array *all = qn_concatenate(s, 25, parts, 0);
    expect(qn_reduce(s, QN_REDUCE_ALL, qn_eq(s, all, qn_arange(s, QN_DTYPE_I16, 0, 25, 1)), 0, NULL, 0),
           QN_DTYPE_BOOL, V(1));
}

/* Indices that are computed only later are taken for the nearest inside: nothing is read outside. */
static void indices_that_come_later(void **state)
{
    qn_array *a = vec(QN_DTYPE_F32, V(10, 20, 30)), *ids = vec(QN_DTYPE_I64, V(7, -9, 1, -1));
    ids = qn_add(s, ids, qn_zeros(s, QN_DTYPE_I64, D(4)));
    expect(qn_take_axis(s, a, ids, 0), QN_DTYPE_F32, V(30, 10, 20, 30));
    qn_array *far = qn_mul(s, qn_full(s, QN_DTYPE_U64, D(1), 0x1p63), qn_ones(s, QN_DTYPE_U64, D(1)));
    expect(qn_take_axis(s, a, far, 0), QN_DTYPE_F32, V(30));
    expect(qn_scatter_add(s, a, ids, qn_ones(s, QN_DTYPE_F32, D(4)), 0), QN_DTYPE_F32, V(11, 21, 32));
}

/* ---- products ----------------------------------------------------------------------------------------- */

static void products(void **state)
{
    for (int i = 1; i < N_PLAIN; i++) {
        const qn_dtype t = plain[i];
        qn_array *a = of(t, D(2, 3), (double[]){1, 2, 3, 4, 5, 6}), *v = vec(t, V(1, 0, 2));
        expect(qn_matmul(s, a, qn_transpose(s, a)), t, V(14, 32, 32, 77));
        expect(qn_matmul(s, a, v), t, V(7, 16));
        expect(qn_matmul(s, vec(t, V(1, 2)), a), t, V(9, 12, 15));
        qn_array *dot = qn_matmul(s, v, v);
        expect_dims(dot, 0, NULL);
        expect(dot, t, V(5));
        qn_array *batch = qn_matmul(s, qn_expand_dims(s, a, 0), qn_ones(s, t, D(2, 3, 1)));
        expect_dims(batch, D(2, 2, 1));
        expect(batch, t, V(6, 15, 6, 15));
    }
    qn_array *x = of(QN_DTYPE_F32, D(1, 5, 1), (double[]){1, 2, 3, 4, 5});
    qn_array *w = of(QN_DTYPE_F32, D(1, 3, 1), (double[]){1, 10, 100});
    expect(qn_conv1d(s, x, w, 1, 1, 1, 1), QN_DTYPE_F32, V(210, 321, 432, 543, 54));
    expect(qn_conv1d(s, x, w, 2, 0, 2, 1), QN_DTYPE_F32, V(531));
    /* two groups of one channel in, two channels out */
    x = of(QN_DTYPE_F32, D(1, 2, 2, 2), (double[]){1, 2, 3, 4, 5, 6, 7, 8});
    w = of(QN_DTYPE_F32, D(4, 1, 2, 1), (double[]){1, 1, 1, -1, 2, 0, 0, 3});
    qn_array *y = qn_conv2d(s, x, w, L(1, 1), L(0, 0), L(1, 1), 2);
    expect_dims(y, D(1, 2, 1, 4));
    expect(y, QN_DTYPE_F32, V(4, -2, 4, 12, 12, -2, 12, 24));
}

/* ---- quantised weights -------------------------------------------------------------------------------- */

static double largest_of(qn_array *a)
{
    double x;
    OK(qn_array_item(s, qn_reduce(s, QN_REDUCE_MAX, qn_abs(s, a), 0, NULL, 0), &x));
    return x;
}

static void quantised(void **state)
{
    static const struct {
        qn_dtype dtype;
        double error; /* of numbers up to 1: half a step, or a whole one at the far end of the range */
    } types[] = {{QN_DTYPE_Q8_0, 0.005}, {QN_DTYPE_Q4_0, 0.126},
                 {QN_DTYPE_Q4_1, 0.08},  {QN_DTYPE_Q5_0, 0.063},
                 {QN_DTYPE_Q5_1, 0.04},  {QN_DTYPE_Q4_K, 0.09},
                 {QN_DTYPE_Q5_K, 0.05},  {QN_DTYPE_Q6_K, 0.03},
                 {QN_DTYPE_MXFP4, 0.26}, {QN_DTYPE_NVFP4, 0.26},
                 {QN_DTYPE_F16, 0.0005}, {QN_DTYPE_BF16, 0.004},
                 {QN_DTYPE_F32, 0},      {QN_DTYPE_AFFINE4_G64_F16, 0.134}};
    qn_scope_precision(s, QN_PRECISION_EXACT);
    qn_array *key = qn_random_key(s, 1), *keys[3];
    qn_random_split(s, key, 3, keys);
    qn_array *a = qn_random_uniform(s, keys[0], D(20, 256), -1, 1),
             *x = qn_random_uniform(s, keys[1], D(3, 256), -1, 1);
    qn_array *many = qn_random_uniform(s, keys[2], D(4, 7, 256), -1, 1), *g[2];
    qn_array *which = qn_from_data(s, QN_DTYPE_I32, D(3, 2), (int32_t[]){0, 3, -2, 1, 3, 0});
    qn_array *targets = qn_from_data(s, QN_DTYPE_I64, D(3), L(19, -1, 0));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qn_array *w = qn_quantise(s, a, types[i].dtype), *back = qn_dequantise(s, w);
        OK(qn_scope_status(s));
        assert_int_equal(qn_array_dtype(w), types[i].dtype);
        const double error = largest_of(qn_sub(s, back, a));
        if (!(error <= types[i].error)) fail_msg("%s: %g", qn_dtype_name(types[i].dtype), error);
        assert_true(largest_of(qn_sub(s, qn_linear(s, x, w), qn_linear(s, x, back))) < 1e-4);
        assert_true(largest_of(qn_sub(s, qn_matmul(s, x, qn_transpose(s, w)), qn_linear(s, x, back))) < 1e-4);
        qn_array *both[2] = {qn_cross_entropy(s, x, w, targets, 0), qn_cross_entropy(s, x, back, targets, 0)};
        for (int k = 0; k < 2; k++)
            OK(qn_vjp(s, qn_reduce(s, QN_REDUCE_SUM, both[k], 0, NULL, 0), NULL, 1, &x, &g[k]));
        assert_true(largest_of(qn_sub(s, g[0], g[1])) < 1e-4);
        assert_true(largest_of(qn_sub(s, both[0], both[1])) < 1e-4);
        qn_array *chosen = qn_gather_mm(s, x, qn_quantise(s, many, types[i].dtype), which);
        qn_array *plainly = qn_gather_mm(s, x, many, which);
        expect_dims(chosen, D(3, 2, 7));
        assert_true(largest_of(qn_sub(s, chosen, plainly)) <= 40 * types[i].error + 1e-4);
    }
    /* by hand: the loss without its head, a masked row among them */
    qn_array *logits = qn_linear(s, x, a), *of_row = qn_log_softmax(s, logits, -1);
    qn_array *want = qn_neg(
        s, qn_take_along_axis(s, of_row, qn_from_data(s, QN_DTYPE_I32, D(3, 1), (int32_t[]){19, 0, 0}), 1));
    qn_array *loss = qn_cross_entropy(s, x, a, targets, 0);
    want = qn_where(s, qn_from_data(s, QN_DTYPE_BOOL, D(3), (uint8_t[]){1, 0, 1}), qn_squeeze(s, want, 1),
                    qn_scalar(s, 0));
    assert_true(largest_of(qn_sub(s, loss, want)) < 1e-5);
    refused(qn_quantise(s, qn_zeros(s, QN_DTYPE_F32, D(2, 31)), QN_DTYPE_Q8_0), "whole blocks");
    refused(qn_quantise(s, qn_full(s, QN_DTYPE_F32, D(2, 32), NAN), QN_DTYPE_Q8_0), "element 0 of row 0");
    refused(qn_quantise(s, a, QN_DTYPE_I32), "the type is not a weight type");
    refused(qn_gather_mm(s, x, many, qn_from_data(s, QN_DTYPE_I32, D(3, 1), (int32_t[]){0, 4, 0})),
            "index 4");
    refused(qn_cross_entropy(s, x, a, qn_zeros(s, QN_DTYPE_I32, D(2)), 0), "[2]");
}

/* ---- random numbers ----------------------------------------------------------------------------------- */

static void known_bits(void **state)
{
    /* from the authors' own answers: counter 0, key 0, and another key */
    const uint32_t zero[2] = {0, 0};
    uint32_t got[8];
    OK(qn_array_read(s, qn_random_words(s, qn_from_data(s, QN_DTYPE_U32, D(2), zero), D(4)), QN_DTYPE_U32,
                     got, 4));
    assert_memory_equal(got, ((uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), 16);
    qn_array *key = qn_random_key(s, 7), *keys[3], *u;
    qn_random_split(s, key, 3, keys);
    double sum = 0, squares = 0;
    static float x[20000];
    u = qn_random_normal(s, keys[0], D(20000), 1, 2);
    OK(qn_array_read(s, u, QN_DTYPE_F32, x, 20000));
    for (int i = 0; i < 20000; i++) {
        sum += x[i];
        squares += (x[i] - 1) * (x[i] - 1);
    }
    assert_true(fabs(sum / 20000 - 1) < 0.06 && fabs(squares / 20000 - 4) < 0.2);
    u = qn_random_uniform(s, keys[1], D(20000), -1, 3);
    expect(qn_reduce(s, QN_REDUCE_ALL,
                     qn_logical_and(s, qn_ge(s, u, qn_scalar(s, -1)), qn_lt(s, u, qn_scalar(s, 3))), 0, NULL,
                     0),
           QN_DTYPE_BOOL, V(1));
    expect_near(qn_reduce(s, QN_REDUCE_MEAN, u, 0, NULL, 0), QN_DTYPE_F32, V(1), 0.05);
    qn_array *logits = qn_broadcast_to(s, vec(QN_DTYPE_F32, V(-INFINITY, log(1), log(3))), D(8000, 3));
    qn_array *drawn = qn_random_categorical(s, keys[2], logits);
    expect_near(qn_reduce(s, QN_REDUCE_MEAN, drawn, 0, NULL, 0), QN_DTYPE_F32, V(1.75), 0.02);
    expect_near(qn_reduce(s, QN_REDUCE_MEAN, qn_random_bernoulli(s, key, D(8000), 0.25f), 0, NULL, 0),
                QN_DTYPE_F32, V(0.25), 0.08);
}

/* ---- errors, memory, threads -------------------------------------------------------------------------- */

static void wrong_arguments(void **state)
{
    qn_array *a = qn_zeros(s, QN_DTYPE_F32, D(2, 3)), *b = qn_zeros(s, QN_DTYPE_F32, D(2, 4));
    refused(qn_add(s, a, b), "[2, 3] and [2, 4]");
    refused(qn_eq(s, a, b), "[2, 3] and [2, 4]");
    refused(qn_where(s, a, a, b), "[2, 3] and [2, 4]");
    refused(qn_sum(s, a, 2), "axis 2 of an array [2, 3]");
    refused(qn_reduce(s, QN_REDUCE_SUM, a, 2, (int[]){1, -1}, 0), "twice");
    refused(qn_reshape(s, a, D(4, 2)), "[2, 3] and [4, 2] have different numbers of elements");
    refused(qn_reshape(s, a, D(4, -1)), "no whole number fits the dimension -1");
    refused(qn_squeeze(s, a, 0), "[2, 3]");
    refused(qn_broadcast_to(s, a, D(3, 3)), "[2, 3]");
    refused(qn_as_strided(s, a, D(2, 4), L(3, 1), 0), "last element");
    refused(qn_as_strided(s, a, D(2), L(INT64_MIN), 0), "STRIDED");
    refused(qn_slice(s, a, L(0, 0), L(1, 1), L(1, 0)), "step of 0");
    refused(qn_slice_update(s, a, b, L(0, 0), L(2, 3), NULL), "[2, 4]");
    refused(qn_pad(s, a, L(0, -1), L(0, 0), 0), "sizes");
    refused(qn_concatenate(s, 2, (qn_array *[]){a, b}, 0), "CONCAT");
    refused(qn_stack(s, 2, (qn_array *[]){a, b}, 0), "different shapes");
    refused(qn_repeat(s, a, INT64_MAX, 0), "sizes");
    refused(qn_take_axis(s, a, ids(V(0, 3)), 1), "index 3 of an axis of size 3");
    refused(qn_take_axis(s, a, ids(V(-4)), 1), "index -4");
    refused(qn_take_axis(s, a, vec(QN_DTYPE_F32, V(1)), 1), "integers");
    refused(qn_take_along_axis(s, a, vec(QN_DTYPE_I32, V(1)), 1), "numbers of dimensions");
    refused(qn_scatter(s, a, vec(QN_DTYPE_I32, V(0, 1)), b, 0), "[2, 4]");
    refused(qn_topk(s, a, 4, 1, NULL), "[2, 3]");
    refused(qn_matmul(s, a, b), "MATMUL");
    refused(qn_matmul(s, a, qn_scalar(s, 1)), "not scalars");
    refused(qn_matmul(s, qn_zeros(s, QN_DTYPE_F32, D(2, 1, 3)), qn_zeros(s, QN_DTYPE_F32, D(3, 3, 1))),
            "[2, 1, 3] and [3, 3, 1]");
    refused(qn_random_words(s, a, D(2)), "key");
    refused(qn_rotary(s, qn_zeros(s, QN_DTYPE_F32, D(2, 3)), NULL), "even");
    refused(qn_sdpa(s, a, a, a, NULL, NULL), "[batch, heads, length, dim]");
    qn_array *parts[2];
    qn_split(s, a, 2, 1, parts);
    refused(parts[0], "[2, 3]");
}

/* A bit of everything; the sum of its elements. */
static qn_array *everything(qn_scope *t)
{
    qn_array *key = qn_random_key(t, 3), *keys[2];
    qn_random_split(t, key, 2, keys);
    qn_array *x = qn_random_normal(t, keys[0], D(37, 19), 0, 1), *ids = qn_argsort(t, x, 0, 1);
    qn_array *y =
        qn_where(t, qn_gt(t, x, qn_scalar(t, 0)), qn_cumulate(t, QN_CUMSUM, x, 0, 1, 0), qn_sort(t, x, 1, 0));
    y = qn_add(t, y, qn_take_along_axis(t, x, ids, 0));
    y = qn_slice_update(t, y, qn_scalar(t, 2), L(30, 18), L(0, 0), L(-3, -2));
    y = qn_scatter_add(t, y, qn_from_data(t, QN_DTYPE_I32, D(2), (int32_t[]){5, 5}),
                       qn_ones(t, QN_DTYPE_F32, D(2, 19)), 0);
    qn_array *z = qn_matmul(t, qn_astype(t, y, QN_DTYPE_F64), qn_transpose(t, qn_astype(t, x, QN_DTYPE_F64)));
    z = qn_reduce(t, QN_REDUCE_LOGSUMEXP, z, 1, (int[]){1}, 0);
    qn_array *w =
        qn_conv1d(t, qn_expand_dims(t, y, 0), qn_random_uniform(t, keys[1], D(4, 3, 19), -1, 1), 2, 1, 1, 1);
    return qn_add(t, qn_reduce(t, QN_REDUCE_SUM, z, 0, NULL, 0),
                  qn_reduce(t, QN_REDUCE_SUM, qn_pad(t, w, L(0, 1, 0), L(0, 0, 2), 0.5), 0, NULL, 0));
}

static void any_number_of_threads(void **state)
{
    double first = 0;
    for (int n = 1; n <= 5; n++) {
        qn_scope *t;
        double got;
        OK(qn_scope_open(n, 0, &t));
        OK(qn_array_item(t, everything(t), &got));
        if (n == 1) first = got;
        assert_memory_equal(&got, &first, sizeof got);
        qn_scope_close(t);
    }
}

/* Steps of other types between those of f32, which go row by row: of rows [n, 5]. */
static qn_array *row_by_row(qn_scope *t, qn_array *x)
{
    qn_array *up = qn_gt(t, qn_exp(t, x), qn_scalar(t, 1));
    qn_array *y = qn_where(t, up, qn_add(t, x, qn_scalar(t, 1)), qn_neg(t, x));
    qn_array *z =
        qn_astype(t, qn_mul(t, qn_astype(t, y, QN_DTYPE_F64), qn_astype(t, x, QN_DTYPE_F64)), QN_DTYPE_F32);
    z = qn_add(t, z,
               qn_astype(t, qn_add(t, qn_astype(t, y, QN_DTYPE_I32), qn_argmax(t, x, 1, 1)), QN_DTYPE_F32));
    z = qn_add(t, z, qn_cumulate(t, QN_CUMSUM, y, 0, 0, 0));
    return qn_sub(t, z, qn_take_along(t, x, qn_argsort(t, y, 1, 0)));
}

/* Rows whose number is known when the program runs. */
static void inside_programs(void **state)
{
    static float x[40 * 5];
    for (int i = 0; i < 200; i++) x[i] = (float)sin(i * 1.7) * 2;
    for (int threads = 1; threads <= 4; threads++) {
        qn_device *d;
        qn_program *p;
        OK(qn_device_open("cpu", &(qn_device_options){.n_threads = threads}, &d));
        qn_scope *t = qn_scope_new(d);
        qn_array *out = row_by_row(t, qn_input(t, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, L(5))));
        OK(qn_program_new(t, &(qn_program_options){.name = "rows", .max = {{40}}}, 1, &out, &p));
        for (int64_t n = 1; n <= 40; n += 13) {
            memcpy(qn_program_input(p, 0), x, (size_t)n * 5 * sizeof *x);
            OK(qn_program_run(p, &(qn_sizes){{n}}));
            qn_array *want = row_by_row(t, qn_from_data(t, QN_DTYPE_F32, D(n, 5), x));
            OK(qn_eval(t, 1, &want));
            assert_memory_equal(qn_program_output(p, 0), qn_array_data(want), (size_t)n * 5 * sizeof *x);
        }
        qn_program_free(p);
        qn_scope_free(t);
        qn_device_close(d);
    }
}

/* In Python: t[0] * m[0] ^ t[1] * m[1] ^ .. in 64 bits, modulo a size, plus an offset; behind a 7 all are 7. */
static void hashes_of_tokens(void **state)
{
    const int32_t tokens[] = {5, 3, 2, 5, 7, 2, 5, 3, 7, 2147483647, 1, 0},
                  sizes[] = {10007, 97, 2147483647, 11}, offsets[] = {0, 10007, 5, 20000};
    const int64_t by[] = {INT64_C(0x7FFFFFFFFFFFFFF1), 1000003, INT64_C(0x123456789ABCDEF)};
    const qn_params p = {.hash_ids = {.end = 7}};
    int32_t want[16];
    for (int r = 0; r < 4; r++)
        for (int h = 0; h < 4; h++) {
            const int32_t *t = tokens + 3 * r, a = t[1], b = t[1] == 7 ? 7 : t[2];
            uint64_t hash = (uint64_t)t[0] * (uint64_t)by[0] ^ (uint64_t)a * (uint64_t)by[1];
            if (h >= 2) hash ^= (uint64_t)b * (uint64_t)by[2];
            want[r * 4 + h] = (int32_t)(hash % (uint64_t)sizes[h]) + offsets[h];
        }
    qn_array *in[4] = {qn_from_data(s, QN_DTYPE_I32, D(4, 3), tokens),
                       qn_from_data(s, QN_DTYPE_I64, D(3), by), qn_from_data(s, QN_DTYPE_I32, D(4), sizes),
                       qn_from_data(s, QN_DTYPE_I32, D(4), offsets)};
    qn_array *ids = qn_apply(s, QN_PRIM_HASH_IDS, &p, 4, in, NULL, QN_DTYPE_I32);
    OK(qn_eval(s, 1, &ids));
    assert_memory_equal(qn_array_data(ids), want, sizeof want);
    in[3] = in[1];
    assert_null(qn_apply(s, QN_PRIM_HASH_IDS, &p, 4, in, NULL, QN_DTYPE_I32));
    assert_non_null(strstr(qn_last_error(), "takes tokens [R, n] i32, multipliers [n] i64"));
}

static void without_memory(void **state)
{
    const int64_t before = qn_mem_live_blocks();
    int worked = 0;
    for (int n = 1; n <= 2000 && !worked; n++) {
        qn_scope *t = NULL;
        double got;
        qn_mem_fail_nth(n);
        qn_status status = qn_scope_open(1, 0, &t);
        if (status == QN_OK) status = qn_array_item(t, everything(t), &got);
        qn_mem_fail_nth(0);
        worked = status == QN_OK;
        if (!worked) assert_int_equal(status, QN_E_NOMEM);
        qn_scope_close(t);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_true(worked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(arithmetic_of_all_types, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(integers_at_their_ends, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(functions_of_doubles, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(comparison_and_logic, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(reductions, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(not_a_number, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(shapes_of_all_types, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(indices_that_come_later, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(products, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(quantised, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(known_bits, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(wrong_arguments, open_scope, close_scope),
        cmocka_unit_test_setup_teardown(hashes_of_tokens, open_scope, close_scope),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(inside_programs),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests_name("array operations", tests, NULL, NULL);
}
