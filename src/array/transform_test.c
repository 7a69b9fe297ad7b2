/* Transforms: evaluation behind the caller's back, detaching, gradients by arguments, checkpoints, gradients
 * of one's own, compiled functions; arrays in files; and every allocation failing once. */
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
#include <unistd.h>

#include "array/array.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static qn_scope *s;

static int open_scope(void **state)
{
    return qn_scope_open(2, 0, &s) != QN_OK;
}

static int close_scope(void **state)
{
    qn_scope_close(s);
    s = NULL;
    return 0;
}

static qn_array *line(qn_scope *t, int64_t n)
{
    return qn_arange(t, QN_DTYPE_F32, 1, (double)n + 1, 1);
}

static void expect(qn_scope *t, qn_array *a, int64_t n, const double *want)
{
    double got[64];
    OK(qn_array_read(t, a, QN_DTYPE_F64, got, n));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-5 * (1 + fabs(want[i]))))
            fail_msg("element %d is %g, not %g", (int)i, got[i], want[i]);
}

static qn_array *total(qn_scope *t, qn_array *a)
{
    return qn_sum(t, a, 0);
}

/* ---- evaluation behind the caller --------------------------------------------------------------------- */

static qn_array *heavy(qn_scope *t, qn_array *x, int n)
{
    for (int i = 0; i < n; i++) x = qn_unary(t, QN_PRIM_TANH, qn_matmul(t, x, x));
    return x;
}

static void async_results_are_the_same(void **state)
{
    qn_array *x = qn_scale(s, qn_eye(s, QN_DTYPE_F32, 64, 64, 1), 0.5f);
    qn_array *now = heavy(s, x, 20), *later[8];
    OK(qn_eval(s, 1, &now));
    for (int i = 0; i < 8; i++) {
        later[i] = i ? qn_add(s, heavy(s, x, 20), qn_sub(s, later[i - 1], later[i - 1])) : heavy(s, x, 20);
        OK(qn_eval_async(s, 1, &later[i]));
    }
    /* what waits may be used, kept, read in part and as a view */
    qn_array *kept = qn_keep(qn_transpose(s, later[7])), *part = qn_slice_last(s, later[3], 1, 5);
    double a, b;
    OK(qn_array_at(s, part, (int64_t[]){0, 2}, &a));
    OK(qn_array_at(s, now, (int64_t[]){0, 3}, &b));
    assert_true(a == b);
    for (int i = 0; i < 8; i++) {
        const float *x8 = qn_array_data(later[i]), *x1 = qn_array_data(now);
        assert_non_null(x8);
        assert_memory_equal(x8, x1, 64 * 64 * sizeof(float));
    }
    OK(qn_eval(s, 1, &kept));
    qn_release(kept);
}

static void closing_waits(void **state)
{
    qn_scope *t, *inner;
    OK(qn_scope_open(1, 0, &t));
    inner = qn_scope_inner(t);
    qn_array *x = heavy(inner, qn_eye(inner, QN_DTYPE_F32, 64, 64, 0), 50), *kept = qn_keep(x);
    OK(qn_eval_async(inner, 1, &x));
    qn_scope_close(inner);
    qn_scope_close(t);
    assert_non_null(qn_array_data(kept));
    qn_release(kept);
}

static int trace_to_full_disk(void)
{
    return access("/dev/full", W_OK) == 0 && setenv("QUERN_TRACE", "/dev/full", 1) == 0;
}

static void async_errors_surface_later(void **state)
{
    qn_array *x = line(s, 4), *y = qn_add(s, x, x), *z = qn_mul(s, y, y), *after;
    double v;
    /* A run fails when its trace cannot be written. */
    if (!trace_to_full_disk())
        qn_test_leave_out("this system has no /dev/full, which stands for a full disk");
    qn_status begun = qn_eval_async(s, 1, &y);
    unsetenv("QUERN_TRACE");
    OK(begun);
    OK(qn_eval_async(s, 1, &z)); /* behind it: is not computed */
    after = qn_add(s, x, x);
    assert_int_equal(qn_eval(s, 1, &after), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "trace"));
    assert_int_equal(qn_scope_recover(s), QN_E_IO);
    assert_null(qn_array_data(y));
    assert_int_equal(qn_array_at(s, z, (int64_t[]){0}, &v), QN_E_IO);
    assert_int_equal(qn_eval(s, 1, &z), QN_E_IO);
    qn_array *use = qn_add(s, y, x);
    assert_int_equal(qn_eval(s, 1, &use), QN_E_IO);
    OK(qn_scope_status(s));
    OK(qn_eval(s, 1, &after)); /* what does not need it goes on */
    expect(s, after, 4, (double[]){2, 4, 6, 8});
}

static void planning_errors_are_told_at_once(void **state)
{
    qn_scope *t;
    OK(qn_scope_open(1, 1 << 20, &t));
    qn_array *big = qn_add(t, qn_ones(t, QN_DTYPE_F32, 2, (int64_t[]){1000, 1000}), qn_scalar(t, 1));
    assert_int_equal(qn_eval_async(t, 1, &big), QN_E_NOMEM);
    assert_int_equal(qn_eval(t, 0, NULL), QN_E_NOMEM);
    qn_scope_close(t);
}

static void a_detached_loop_is_flat(void **state)
{
    qn_array *x = line(s, 100);
    int64_t mark = qn_scope_mark(s), blocks = 0;
    size_t live = 0, now;
    for (int i = 0; i < 10000; i++) {
        x = qn_detach(s, qn_add(s, qn_scale(s, x, 0.5f), qn_unary(s, QN_PRIM_SIN, x)));
        qn_scope_sweep(s, mark, 1, &x);
        if (i == 100) {
            blocks = qn_mem_live_blocks();
            qn_scope_memory(s, &live, NULL);
        }
    }
    qn_scope_memory(s, &now, NULL);
    assert_int_equal(qn_mem_live_blocks(), blocks);
    assert_int_equal(now, live);
    assert_int_equal(qn_scope_mark(s), mark + 1);
}

/* ---- gradients ---------------------------------------------------------------------------------------- */

/* sum(a * b) + sum(c), and a * b beside it */
static qn_status product(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    qn_array *ab = qn_mul(t, in[0], in[1]);
    out[0] = qn_add(t, total(t, ab), total(t, in[2]));
    if (n_out > 1) out[1] = ab;
    return qn_scope_status(t);
}

static void gradients_by_arguments(void **state)
{
    qn_array *a = line(s, 3), *b = qn_scale(s, a, 10), *in[3] = {a, b, a}, *out[2], *grads[3];
    OK(qn_value_and_grad(s, product, NULL, 3, in, 2, (int[]){2, 0}, 2, out, grads));
    expect(s, out[0], 1, (double[]){146});
    expect(s, out[1], 3, (double[]){10, 40, 90});
    expect(s, grads[0], 3, (double[]){1, 1, 1});
    expect(s, grads[1], 3, (double[]){10, 20, 30}); /* b was made of a, but is another argument */
    qn_array *same[3] = {b, b, a};
    OK(qn_value_and_grad(s, product, NULL, 3, same, 3, (int[]){0, 1, 0}, 1, out, grads));
    expect(s, grads[0], 3, (double[]){10, 20, 30});
    expect(s, grads[1], 3, (double[]){10, 20, 30});
    expect(s, grads[2], 3, (double[]){10, 20, 30});
    assert_int_equal(qn_value_and_grad(s, product, NULL, 3, in, 1, (int[]){3}, 1, out, grads), QN_E_ARG);
}

static qn_status ignores_second(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out,
                                qn_array **out)
{
    out[0] = total(t, qn_mul(t, in[0], qn_stop_gradient(t, qn_mul(t, in[0], in[0]))));
    return qn_scope_status(t);
}

static void what_does_not_matter_has_gradient_zero(void **state)
{
    qn_array *in[2] = {line(s, 3), line(s, 2)}, *out, *grads[2];
    OK(qn_value_and_grad(s, ignores_second, NULL, 2, in, 2, (int[]){0, 1}, 1, &out, grads));
    expect(s, grads[0], 3, (double[]){1, 4, 9}); /* the square is taken for a constant */
    expect(s, grads[1], 2, (double[]){0, 0});
    qn_array *whole[2] = {line(s, 3), qn_arange(s, QN_DTYPE_I32, 0, 2, 1)};
    assert_int_equal(qn_value_and_grad(s, ignores_second, NULL, 2, whole, 1, (int[]){1}, 1, &out, grads),
                     QN_E_ARG);
    /* tangents stop there too */
    qn_array *x = line(s, 3), *y = qn_mul(s, x, qn_stop_gradient(s, x)),
             *one = qn_ones(s, QN_DTYPE_F32, 1, &(int64_t){3});
    qn_array *tangent;
    OK(qn_jvp(s, y, 1, &x, &one, &tangent));
    expect(s, tangent, 3, (double[]){1, 2, 3});
}

static qn_status deep(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    qn_array *x = in[0];
    for (int i = 0; i < 4; i++) x = qn_unary(t, QN_PRIM_TANH, qn_mul(t, x, in[1]));
    out[0] = x;
    if (n_out > 1) out[1] = qn_unary(t, QN_PRIM_SIN, x);
    return qn_scope_status(t);
}

static void checkpoints_keep_the_bits(void **state)
{
    float want[2][5];
    for (int with = 0; with < 2; with++) {
        qn_array *in[2] = {line(s, 5), qn_scale(s, line(s, 5), 0.3f)}, *out[2], *grads[2];
        OK(with ? qn_checkpoint(s, deep, NULL, 2, in, 2, out) : deep(NULL, s, 2, in, 2, out));
        qn_array *loss = total(s, qn_add(s, out[0], qn_mul(s, out[1], out[1])));
        OK(qn_vjp(s, loss, NULL, 2, in, grads));
        for (int i = 0; i < 2; i++) {
            float got[5];
            OK(qn_array_read(s, grads[i], QN_DTYPE_F32, got, 5));
            if (!with) memcpy(want[i], got, sizeof got);
            for (int k = 0; k < 5; k++) assert_true(fabsf(got[k] - want[i][k]) <= 1e-6f * fabsf(want[i][k]));
        }
    }
}

/* x * y, with a gradient that says what it likes. */
static qn_status forward(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    out[0] = qn_mul(t, in[0], in[1]);
    return qn_scope_status(t);
}

static qn_status seven_times(void *user, qn_scope *t, int n_in, qn_array *const *in, qn_array *out,
                             qn_array *cotangent, qn_array **grads)
{
    ++*(int *)user;
    grads[0] = qn_add(t, qn_scale(t, cotangent, 7), qn_sub(t, out, qn_mul(t, in[0], in[1])));
    return qn_scope_status(t);
}

static qn_status with_custom(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out,
                             qn_array **out)
{
    qn_array *c = qn_custom_gradient(t, forward, seven_times, user, 2, in);
    out[0] = total(t, qn_scale(t, qn_unary(t, QN_PRIM_NEG, c), 2));
    return qn_scope_status(t);
}

static qn_status checkpointed_custom(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out,
                                     qn_array **out)
{
    qn_array *moved[2] = {qn_scale(t, in[0], 3), in[1]};
    return qn_checkpoint(t, with_custom, user, 2, moved, 1, out);
}

static void gradients_of_ones_own(void **state)
{
    int calls = 0;
    qn_array *in[2] = {line(s, 3), qn_scale(s, line(s, 3), 2)}, *out, *grads[2], *tangent;
    OK(qn_value_and_grad(s, with_custom, &calls, 2, in, 2, (int[]){0, 1}, 1, &out, grads));
    assert_int_equal(calls, 1);
    expect(s, out, 1, (double[]){-56});
    expect(s, grads[0], 3, (double[]){-14, -14, -14});
    expect(s, grads[1], 3, (double[]){0, 0, 0});
    OK(qn_value_and_grad(s, checkpointed_custom, &calls, 2, in, 1, (int[]){0}, 1, &out, grads));
    expect(s, grads[0], 3, (double[]){-42, -42, -42});
    assert_int_equal(calls, 2);
    /* tangents come from what it was made of */
    qn_array *c = qn_custom_gradient(s, forward, seven_times, &calls, 2, in);
    qn_array *ones = qn_ones(s, QN_DTYPE_F32, 1, &(int64_t){3});
    OK(qn_jvp(s, c, 1, in, &ones, &tangent));
    expect(s, tangent, 3, (double[]){2, 4, 6});
    assert_int_equal(calls, 2);
    assert_null(qn_custom_gradient(s, forward, seven_times, &calls, 33, in));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
}

static qn_status fails(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    if (user) out[0] = in[0];
    return user ? QN_E_CANCELLED : QN_OK;
}

static void failures_of_functions_are_told(void **state)
{
    qn_array *x = line(s, 3), *out, *g;
    assert_int_equal(qn_value_and_grad(s, fails, NULL, 1, &x, 1, (int[]){0}, 1, &out, &g), QN_E_ARG);
    assert_int_equal(qn_value_and_grad(s, fails, s, 1, &x, 1, (int[]){0}, 1, &out, &g), QN_E_CANCELLED);
    assert_int_equal(qn_scope_recover(s), QN_E_CANCELLED);
}

/* ---- compiled functions ------------------------------------------------------------------------------- */

static qn_status score(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    ++*(int *)user;
    out[0] = qn_unary(t, QN_PRIM_TANH, qn_matmul(t, in[0], in[1]));
    if (n_out > 1) out[1] = qn_sum(t, out[0], 0);
    return qn_scope_status(t);
}

static qn_array *rows(qn_scope *t, int64_t n, int64_t k)
{
    return qn_reshape_sym(t, qn_linspace(t, QN_DTYPE_F32, -1, 1, n * k), qn_shape_make(2, (int64_t[]){n, k}));
}

static void check_call(qn_compiled *c, int64_t n, int64_t k)
{
    int calls = 0;
    qn_array *in[2] = {rows(s, n, k), qn_transpose(s, rows(s, 5, k))}, *out[2], *want[2];
    OK(score(&calls, s, 2, in, 2, want));
    OK(qn_compiled_call(c, s, 2, in, out));
    OK(qn_eval(s, 2, want));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(qn_array_dim(out[i], 0), i ? 1 : n);
        assert_int_equal(qn_array_size(out[i]), qn_array_size(want[i]));
        assert_memory_equal(qn_array_data(out[i]), qn_array_data(want[i]),
                            (size_t)qn_array_size(want[i]) * sizeof(float));
    }
}

static void programs_are_kept_by_shape(void **state)
{
    int calls = 0;
    qn_compiled *c;
    OK(qn_compile(s, score, &calls, 2, &(qn_compile_options){.max_programs = 3}, &c));
    for (int round = 0; round < 3; round++)
        for (int n = 1; n <= 3; n++) check_call(c, n, 4);
    assert_int_equal(calls, 3);
    check_call(c, 4, 4); /* the least lately called goes: of one row */
    check_call(c, 3, 4);
    check_call(c, 2, 4);
    assert_int_equal(calls, 4);
    check_call(c, 1, 4);
    assert_int_equal(calls, 5);
    qn_compiled_figures f = qn_compiled_get_figures(c);
    assert_true(f.n_calls == 13 && f.n_traces == 5 && f.n_plans == 5 && f.n_kept == 3);
    qn_compiled_free(c);
    qn_compiled_free(NULL);
}

static void a_thousand_shapes_compile_once(void **state)
{
    int calls = 0;
    qn_compiled *c;
    const qn_compile_options o = {.shapeless = 1, .fixed_inputs = 2, .max_rows = 1000};
    OK(qn_compile(s, score, &calls, 2, &o, &c));
    int64_t mark = qn_scope_mark(s), blocks = 0;
    for (int64_t n = 1; n <= 1000; n++) {
        check_call(c, n, 4);
        qn_scope_sweep(s, mark, 0, NULL);
        if (n == 1) blocks = qn_mem_live_blocks();
    }
    assert_int_equal(qn_mem_live_blocks(), blocks);
    qn_compiled_figures f = qn_compiled_get_figures(c);
    assert_true(calls == 1 && f.n_traces == 1 && f.n_plans == 1 && f.n_kept == 1 && f.n_calls == 1000);
    qn_array *in[2] = {rows(s, 1001, 4), qn_transpose(s, rows(s, 5, 4))}, *out[2];
    assert_int_equal(qn_compiled_call(c, s, 2, in, out), QN_E_ARG);
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    qn_compiled_free(c);
}

static void without_a_limit_the_plan_grows(void **state)
{
    int calls = 0;
    qn_compiled *c;
    OK(qn_compile(s, score, &calls, 2, &(qn_compile_options){.shapeless = 1, .fixed_inputs = 2}, &c));
    for (int64_t n = 1; n <= 100; n++) check_call(c, n, 3);
    check_call(c, 2, 3);
    qn_compiled_figures f = qn_compiled_get_figures(c);
    assert_true(calls == 1 && f.n_traces == 1 && f.n_plans == 4 && f.n_kept == 1);
    qn_array *in[2] = {rows(s, 3, 3), rows(s, 4, 3)}, *out[2];
    qn_compiled_free(c);
    OK(qn_compile(s, score, &calls, 2, &(qn_compile_options){.shapeless = 1}, &c));
    assert_int_equal(qn_compiled_call(c, s, 2, in, out), QN_E_ARG); /* 3 and 4 rows */
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    qn_compiled_free(c);
}

/* Operations that might look at how many rows there are. */
enum { N_BY_ROWS = 30 };
static qn_array *by_rows(qn_scope *t, int which, qn_array *x)
{
    const int both[] = {0, 1};
    const int64_t zero[] = {0, 0}, one[] = {1, 1}, end[] = {QN_TO_END, 3}, back[] = {-2, 0}, twice[] = {2, 1};
    qn_array *out[2] = {NULL}, *ids = qn_arange(t, QN_DTYPE_I32, 0, 3, 1);
    if (which < 10) return qn_reduce(t, (qn_reduction)which, x, 1, both, 1);
    if (which < 14) return qn_cumulate(t, (qn_cumulation)(which - 10), x, 0, which % 2, 0);
    switch (which) {
    case 14:
        return qn_reduce(t, QN_REDUCE_MEAN, x, 2, both, 0);
    case 15:
        return qn_var(t, x, 0, 1);
    case 16:
        return qn_argmax(t, x, 0, 1);
    case 17:
        return qn_sort(t, x, 0, 1);
    case 18:
        return qn_argsort(t, x, 0, 0);
    case 19:
        return qn_topk(t, x, 2, 0, NULL);
    case 20:
        return qn_softmax_axis(t, x, 0);
    case 21:
        return qn_log_softmax(t, x, 0);
    case 22:
        return qn_slice(t, x, one, end, NULL);
    case 23:
        return qn_slice(t, x, back, end, NULL);
    case 24:
        return qn_pad(t, x, one, zero, 5);
    case 25:
        return qn_concatenate(t, 2, (qn_array *[]){x, x}, 0);
    case 26:
        return qn_tile(t, x, twice);
    case 27:
        return qn_take_axis(t, x, ids, 0);
    case 28:
        qn_split(t, x, 1, 0, out);
        return out[0];
    default:
        return qn_flatten(t, qn_transpose(t, x), 0, -1);
    }
}

static qn_status applied(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    out[0] = by_rows(t, *(const int *)user, in[0]);
    return qn_scope_status(t);
}

/* Shapeless, an operation does what it does with known shapes, or is refused. */
static void shapeless_is_right_or_refused(void **state)
{
    int n_right = 0;
    for (int which = 0; which < N_BY_ROWS; which++) {
        qn_compiled *c;
        OK(qn_compile(s, applied, &which, 1, &(qn_compile_options){.shapeless = 1, .max_rows = 9}, &c));
        for (int64_t n = 3; n <= 9; n += 2) {
            qn_array *x = rows(s, n, 4), *out, *want = by_rows(s, which, x);
            OK(qn_eval(s, 1, &want));
            if (qn_compiled_call(c, s, 1, &x, &out) != QN_OK) {
                qn_scope_recover(s);
                break;
            }
            float a[64], b[64];
            const int64_t size = qn_array_size(want);
            if (qn_array_size(out) != size) fail_msg("operation %d: another shape", which);
            OK(qn_array_read(s, out, QN_DTYPE_F32, a, size));
            OK(qn_array_read(s, want, QN_DTYPE_F32, b, size));
            for (int64_t i = 0; i < size; i++)
                if (!(fabsf(a[i] - b[i]) <= 1e-5f * (1 + fabsf(b[i]))))
                    fail_msg("operation %d, %d rows: element %d is %g, not %g", which, (int)n, (int)i, a[i],
                             b[i]);
            n_right += n == 9;
        }
        qn_compiled_free(c);
    }
    assert_true(n_right >= 8);
}

static qn_status step(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    qn_array *g;
    QN_TRY(qn_value_and_grad(t, product, NULL, 3, in, 1, (int[]){0}, 1, out, &g));
    out[1] = qn_detach(t, qn_sub(t, in[0], qn_scale(t, g, 0.1f)));
    if (user) QN_TRY(qn_compiled_call(user, t, 1, &out[1], &out[1]));
    return qn_scope_status(t);
}

static qn_status doubled(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    out[0] = qn_add(t, in[0], in[0]);
    return qn_scope_status(t);
}

static void transforms_go_into_compiled_functions(void **state)
{
    qn_compiled *c, *inner;
    OK(qn_compile(s, doubled, NULL, 1, NULL, &inner));
    OK(qn_compile(s, step, inner, 2, NULL, &c));
    qn_array *in[3] = {line(s, 3), line(s, 3), line(s, 3)}, *out[2];
    for (int i = 0; i < 3; i++) OK(qn_compiled_call(c, s, 3, in, out));
    expect(s, out[0], 1, (double[]){20});
    expect(s, out[1], 3, (double[]){1.8, 3.6, 5.4});
    assert_int_equal(qn_compiled_get_figures(inner).n_calls, 0);
    qn_compiled_free(c);
    qn_compiled_free(inner);
}

static qn_status peeks(void *user, qn_scope *t, int n_in, qn_array *const *in, int n_out, qn_array **out)
{
    double x;
    out[0] = in[0];
    return qn_array_at(t, in[0], (int64_t[]){0}, &x);
}

static void inputs_have_no_values_while_traced(void **state)
{
    qn_compiled *c;
    qn_array *x = line(s, 3), *out;
    OK(qn_compile(s, peeks, NULL, 1, NULL, &c));
    assert_int_equal(qn_compiled_call(c, s, 1, &x, &out), QN_E_ARG);
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    assert_int_equal(qn_compiled_get_figures(c).n_kept, 0);
    qn_scope *other;
    OK(qn_scope_open(1, 0, &other));
    assert_int_equal(qn_compiled_call(c, other, 1, &x, &out), QN_E_ARG);
    qn_scope_close(other);
    qn_compiled_free(c);
}

/* ---- files -------------------------------------------------------------------------------------------- */

static void files_hold_arrays(void **state)
{
    char path[] = P_tmpdir "/quern-arrays-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    qn_array *m = rows(s, 3, 4);
    qn_array *arrays[] = {qn_transpose(s, m),
                          qn_arange(s, QN_DTYPE_I64, -2, 3, 1),
                          qn_eye(s, QN_DTYPE_BOOL, 2, 2, 0),
                          qn_full(s, QN_DTYPE_BF16, 0, NULL, 1.5),
                          qn_zeros(s, QN_DTYPE_U8, 1, &(int64_t){0}),
                          qn_add(s, m, m)};
    const char *names[] = {"a.weight", "b", "c", "d", "e", "f"}, *metadata[] = {"format", "pt"};
    OK(qn_save_safetensors(s, path, 6, names, arrays, 1, metadata));
    qn_array_file *f;
    OK(qn_array_file_open(path, &f));
    assert_int_equal(qn_array_file_count(f), 6);
    assert_string_equal(qn_array_file_name(f, 1), "b");
    assert_null(qn_array_file_name(f, 6));
    assert_string_equal(qn_array_file_metadata(f, "format"), "pt");
    qn_array *back[6];
    for (int i = 0; i < 6; i++) {
        double want[12], got[12];
        back[i] = qn_array_file_get(s, f, names[i]);
        assert_non_null(back[i]);
        assert_int_equal(qn_array_dtype(back[i]), qn_array_dtype(arrays[i]));
        assert_int_equal(qn_array_n_dims(back[i]), qn_array_n_dims(arrays[i]));
        OK(qn_array_read(s, arrays[i], QN_DTYPE_F64, want, qn_array_size(arrays[i])));
        OK(qn_array_read(s, back[i], QN_DTYPE_F64, got, qn_array_size(arrays[i])));
        assert_memory_equal(got, want, (size_t)qn_array_size(arrays[i]) * sizeof *got);
    }
    assert_null(qn_array_file_get(s, f, "g"));
    assert_int_equal(qn_scope_recover(s), QN_E_NOT_FOUND);
    qn_array_file_close(f);
    qn_array_file_close(NULL);
    unlink(path); /* what was mapped stays */
    double x;
    qn_array *sum = qn_add(s, back[5], back[5]);
    OK(qn_array_at(s, sum, (int64_t[]){2, 3}, &x));
    assert_true(x == 4);
    assert_int_equal(qn_array_file_open(path, &f), QN_E_IO);
    assert_int_equal(qn_save_safetensors(s, path, 1, names, (qn_array *[]){NULL}, 0, NULL), QN_E_ARG);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

static char stored[] = P_tmpdir "/quern-arrays-XXXXXX";

static qn_status save_and_load(qn_scope *t, qn_array *x)
{
    const char *name = "x";
    qn_array_file *f = NULL;
    qn_array *view = qn_transpose(t, qn_expand_dims(t, x, 0));
    QN_TRY(qn_save_safetensors(t, stored, 1, &name, &view, 0, NULL));
    QN_TRY(qn_array_file_open(stored, &f));
    qn_array *back = qn_array_file_get(t, f, name);
    qn_status status = back ? qn_array_read(t, back, QN_DTYPE_F64, (double[3]){0}, 3) : qn_scope_status(t);
    qn_array_file_close(f);
    return status;
}

static qn_status use_all(void)
{
    qn_scope *t;
    qn_compiled *c = NULL;
    int calls = 0;
    QN_TRY(qn_scope_open(1, 0, &t));
    qn_array *in[3] = {line(t, 3), line(t, 3), line(t, 3)}, *out[2], *grads[2], *x = NULL;
    qn_status status =
        qn_value_and_grad(t, checkpointed_custom, &calls, 2, in, 2, (int[]){0, 1}, 1, out, grads);
    if (status == QN_OK) status = qn_eval_async(t, 2, grads);
    if (status == QN_OK) status = qn_array_read(t, grads[0], QN_DTYPE_F32, (float[3]){0}, 3);
    if (status == QN_OK) status = qn_compile(t, step, NULL, 2, &(qn_compile_options){.shapeless = 1}, &c);
    if (status == QN_OK) status = qn_compiled_call(c, t, 3, in, out);
    if (status == QN_OK && !(x = qn_detach(t, qn_add(t, out[1], out[1])))) status = qn_scope_status(t);
    if (status == QN_OK) status = save_and_load(t, x);
    qn_compiled_free(c);
    qn_scope_close(t);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    int fd = mkstemp(stored);
    assert_true(fd >= 0);
    close(fd);
    int64_t blocks = qn_mem_live_blocks();
    for (int n = 1; n <= 2000; n++) {
        qn_mem_fail_nth(n);
        qn_status status = use_all();
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_true(n < 2000);
    }
    unlink(stored);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(async_results_are_the_same),
        cmocka_unit_test(closing_waits),
        cmocka_unit_test(async_errors_surface_later),
        cmocka_unit_test(planning_errors_are_told_at_once),
        cmocka_unit_test(a_detached_loop_is_flat),
        cmocka_unit_test(gradients_by_arguments),
        cmocka_unit_test(what_does_not_matter_has_gradient_zero),
        cmocka_unit_test(checkpoints_keep_the_bits),
        cmocka_unit_test(gradients_of_ones_own),
        cmocka_unit_test(failures_of_functions_are_told),
        cmocka_unit_test(programs_are_kept_by_shape),
        cmocka_unit_test(a_thousand_shapes_compile_once),
        cmocka_unit_test(without_a_limit_the_plan_grows),
        cmocka_unit_test(shapeless_is_right_or_refused),
        cmocka_unit_test(transforms_go_into_compiled_functions),
        cmocka_unit_test(inputs_have_no_values_while_traced),
        cmocka_unit_test(files_hold_arrays),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_scope, close_scope);
}
