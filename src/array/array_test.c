/* Arrays: scopes and errors, views, evaluation, differentiation, and every allocation failing once. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <string.h>

#include "array/graph.h"
#include "array/program.h"
#include "base/mem.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static qn_device *device;

static int open_device(void **state)
{
    return qn_device_open("cpu", &(qn_device_options){.n_threads = 2}, &device) != QN_OK;
}

static int close_device(void **state)
{
    qn_device_close(device);
    return 0;
}

static qn_array *vector(qn_scope *s, int64_t n, const float *x)
{
    return qn_from_data(s, QN_DTYPE_F32, 1, &n, x);
}

static qn_array *matrix(qn_scope *s, int64_t rows, int64_t columns, const float *x)
{
    return qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){rows, columns}, x);
}

static void expect(qn_scope *s, qn_array *a, int n, const float *want)
{
    OK(qn_eval(s, 1, &a));
    const float *got = qn_array_data(a);
    assert_non_null(got);
    assert_int_equal(qn_shape_elements(qn_array_shape(a), NULL), n);
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-6f)) fail_msg("element %d is %g, not %g", i, got[i], want[i]);
}

/* ---- scopes ------------------------------------------------------------------------------------------- */

static void first_error_is_kept(void **state)
{
    qn_scope *s = qn_scope_new(device);
    qn_array *a = vector(s, 2, (float[]){1, 2}), *b = vector(s, 3, (float[]){1, 2, 3});
    qn_array *c = qn_add(s, a, b);
    assert_null(c);
    assert_null(qn_matmul(s, qn_softmax(s, c), a)); /* NULL goes through, and adds no error of its own */
    assert_null(qn_matmul(s, a, a));
    qn_fail(QN_E_IO, "something else");
    assert_int_equal(qn_scope_status(s), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "[2] and [3]"));
    assert_int_equal(qn_eval(s, 1, &a), QN_E_ARG);
    qn_program *p = NULL;
    assert_int_equal(qn_program_new(s, &(qn_program_options){.name = "x"}, 1, &a, &p), QN_E_ARG);
    assert_null(p);
    qn_scope_free(s);
}

static void kept_arrays_outlive_scopes(void **state)
{
    qn_scope *s = qn_scope_new(device);
    qn_array *a = qn_keep(qn_scale(s, vector(s, 2, (float[]){1, 2}), 3));
    qn_scope_free(s);
    s = qn_scope_new(device);
    expect(s, a, 2, (float[]){3, 6});
    expect(s, qn_add(s, a, a), 2, (float[]){6, 12});
    qn_scope_free(s);
    assert_float_equal(((const float *)qn_array_data(a))[1], 6, 0);
    qn_release(a);
    qn_release(NULL);
    assert_null(qn_keep(NULL));
}

static void deep_graphs_are_freed_without_recursion(void **state)
{
    qn_scope *s = qn_scope_new(device);
    qn_array *a = vector(s, 1, (float[]){0}), *one = qn_scalar(s, 1);
    for (int i = 0; i < 30000; i++) a = qn_add(s, a, one);
    expect(s, a, 1, (float[]){30000});
    for (int i = 0; i < 300000; i++) a = qn_add(s, a, one);
    qn_keep(a);
    qn_scope_free(s);
    qn_release(a);
}

/* ---- views and evaluation ----------------------------------------------------------------------------- */

static void views_give_logical_order(void **state)
{
    qn_scope *s = qn_scope_new(device);
    qn_array *a = matrix(s, 2, 3, (float[]){1, 2, 3, 4, 5, 6});
    qn_array *t = qn_transpose(s, a);
    expect(s, t, 6, (float[]){1, 4, 2, 5, 3, 6});
    qn_array *u = qn_reshape_sym(s, qn_transpose(s, a), qn_shape_make(1, (int64_t[]){6}));
    expect(s, u, 6, (float[]){1, 4, 2, 5, 3, 6});
    expect(s, qn_slice_last(s, qn_transpose(s, a), 1, 1), 3, (float[]){4, 5, 6});
    expect(s, qn_transpose(s, qn_slice_last(s, a, 1, 2)), 4, (float[]){2, 5, 3, 6});
    qn_array *row = qn_slice_last(s, a, 0, 1); /* [2, 1] */
    expect(s, qn_broadcast_sym(s, row, qn_shape_make(3, (int64_t[]){2, 2, 2})), 8,
           (float[]){1, 1, 4, 4, 1, 1, 4, 4});
    expect(s, qn_add(s, row, vector(s, 2, (float[]){10, 20})), 4, (float[]){11, 21, 14, 24});
    expect(s, qn_sum(s, qn_transpose(s, a), 0), 2, (float[]){6, 15});
    expect(s, qn_max(s, qn_transpose(s, a), 1), 3, (float[]){4, 5, 6});
    expect(s, qn_matmul(s, a, qn_transpose(s, a)), 4, (float[]){14, 32, 32, 77});
    qn_array *parts[2] = {qn_transpose(s, a), qn_slice_last(s, qn_transpose(s, a), 0, 1)};
    expect(s, qn_concat(s, 2, parts), 9, (float[]){1, 4, 1, 2, 5, 2, 3, 6, 3});
    qn_scope_free(s);
}

/* A vector may be one worker's whole, a matrix of as many rows is shared: there must be a barrier between. */
static void vectors_are_whole_before_matrices(void **state)
{
    enum { N = 1 << 20 };
    float *x = qn_alloc_array(N, sizeof *x), *want = qn_alloc_array(2 * N, sizeof *want);
    for (int i = 0; i < N; i++) want[2 * i] = want[2 * i + 1] = 2 * (x[i] = (float)i);
    for (int turn = 0; turn < 3; turn++) {
        qn_scope *s = qn_scope_new(device);
        qn_array *halves[2] = {vector(s, N / 2, x), vector(s, N / 2, x + N / 2)};
        qn_array *line = qn_reshape_sym(s, qn_concat(s, 2, halves), qn_shape_make(2, (int64_t[]){N, 1}));
        expect(s, qn_mul(s, line, vector(s, 2, (float[]){2, 2})), 2 * N, want);
        qn_scope_free(s);
    }
    qn_free(x);
    qn_free(want);
}

static void evaluation_shares_and_repeats(void **state)
{
    qn_scope *s = qn_scope_new(device);
    qn_array *a = vector(s, 2, (float[]){1, 2}), *b = qn_scale(s, a, 2), *c = qn_mul(s, b, b);
    qn_array *all[5] = {c, b, NULL, c, a}; /* twice, none, and data */
    OK(qn_eval(s, 5, all));
    expect(s, b, 2, (float[]){2, 4});
    expect(s, c, 2, (float[]){4, 16});
    assert_null(qn_array_data(qn_add(s, a, a)));
    assert_null(qn_array_data(NULL));
    assert_null(qn_from_data(s, QN_DTYPE_Q8_0, 1, (int64_t[]){32}, NULL));
    qn_scope_free(s);
}

/* ---- differentiation ---------------------------------------------------------------------------------- */

static void gradients_add_up_and_nest(void **state)
{
    qn_scope *s = qn_scope_new(device);
    qn_array *x = vector(s, 2, (float[]){2, 3}), *y = vector(s, 2, (float[]){5, 7}), *g[2], *gg, *t;
    qn_array *cube = qn_mul(s, x, qn_mul(s, x, x));
    qn_array *of = qn_sum(s, qn_mul(s, cube, y), 0);
    OK(qn_vjp(s, of, NULL, 2, (qn_array *[]){x, y}, g));
    qn_array *first = g[0];
    OK(qn_vjp(s, qn_sum(s, g[0], 0), NULL, 1, &x, &gg)); /* 6 x y */
    OK(qn_jvp(s, first, 1, &x, (qn_array *[]){vector(s, 2, (float[]){1, 10})}, &t));
    OK(qn_eval(s, 4, (qn_array *[]){g[0], g[1], gg, t}));
    expect(s, g[0], 2, (float[]){60, 189});
    expect(s, g[1], 2, (float[]){8, 27});
    expect(s, gg, 2, (float[]){60, 126});
    expect(s, t, 2, (float[]){60, 1260});
    qn_scope_free(s);
}

static void what_is_differentiated_by_is_independent(void **state)
{
    qn_scope *s = qn_scope_new(device);
    qn_array *x = vector(s, 1, (float[]){2}), *y = qn_mul(s, x, x), *z = qn_mul(s, y, qn_scalar(s, 3)), *g[3];
    qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 1, (int64_t[]){1}, (int32_t[]){0});
    OK(qn_vjp(s, z, NULL, 3, (qn_array *[]){x, y, ids}, g));
    assert_null(g[0]); /* y stands between */
    assert_null(g[2]);
    expect(s, g[1], 1, (float[]){3});
    OK(qn_vjp(s, z, NULL, 1, &z, g));
    expect(s, g[0], 1, (float[]){1});
    qn_array *t = x;
    OK(qn_jvp(s, z, 1, &ids, (qn_array *[]){NULL}, &t));
    assert_null(t);
    qn_scope_free(s);
}

static void refuse(qn_scope *s, qn_array *of, qn_array *by, qn_status want, const char *text)
{
    qn_array *g = NULL;
    assert_int_equal(qn_vjp(s, of, NULL, 1, &by, &g), want);
    if (!strstr(qn_last_error(), text)) fail_msg("%s", qn_last_error());
    assert_null(g);
}

/* A fifth of the elements go, the others grow, and the gradient goes the same ways; bits depend on place, key
 * and stream. */
static void dropout_and_its_gradient(void **state)
{
    enum { ROWS = 37, WIDTH = 111, N = ROWS * WIDTH };
    static float ones[N], kept[N];
    int32_t keys[2][3] = {{1, 2, 1}, {1, 2, 0}};
    for (int i = 0; i < N; i++) ones[i] = 1;
    qn_scope *s = qn_scope_new(device);
    qn_array *x = matrix(s, ROWS, WIDTH, ones), *out[5], *key[2];
    for (int i = 0; i < 2; i++) key[i] = qn_from_data(s, QN_DTYPE_I32, 1, (int64_t[]){3}, keys[i]);
    out[0] = qn_dropout(s, x, key[0], 0.2f, 5);
    out[1] = qn_dropout(s, x, key[0], 0.2f, 6);
    out[2] = qn_dropout(s, x, key[1], 0.2f, 5);
    OK(qn_vjp(s, out[0], x, 1, &x, &out[3]));
    OK(qn_jvp(s, out[0], 1, &x, &x, &out[4]));
    OK(qn_eval(s, 5, out));
    const float *a = qn_array_data(out[0]);
    int n = 0, same = 0;
    for (int i = 0; i < N; i++) {
        assert_true(a[i] == 0 || fabsf(a[i] - 1.25f) < 1e-6f);
        n += a[i] == 0;
        same += a[i] == ((const float *)qn_array_data(out[1]))[i];
    }
    assert_in_range(n, N / 5 - 120, N / 5 + 120); /* deviation: 26 */
    assert_in_range(same, 0.68 * N - 140, 0.68 * N + 140);
    memcpy(kept, a, sizeof kept);
    assert_memory_equal(qn_array_data(out[3]), kept, sizeof kept);
    assert_memory_equal(qn_array_data(out[4]), kept, sizeof kept);
    assert_memory_equal(qn_array_data(out[2]), ones, sizeof ones);
    qn_scope_free(s);
}

static void refusals_have_names(void **state)
{
    float w[64 * 32] = {0};
    const qn_weight_part parts[1] = {{.data = w}};
    qn_buffer *b;
    OK(device->ops->import_weights(
        device, 1, &(qn_weight){.dtype = QN_DTYPE_F32, .n_parts = 1, .n_out = 64, .n_in = 32, .parts = parts},
        &b));
    qn_scope *s = qn_scope_new(device);
    qn_array *weight = qn_from_buffer(s, QN_DTYPE_F32, qn_shape_make(2, (int64_t[]){64, 32}), b);
    qn_label(s, weight, "layer.3.q_proj");
    qn_array *x = matrix(s, 2, 32, w), *y = qn_linear(s, x, weight);
    refuse(s, qn_sum(s, qn_sum(s, y, 0), 1), weight, QN_E_UNSUPPORTED, "layer.3.q_proj");
    refuse(s, y, x, QN_E_ARG, "[2, 64]"); /* not one number, and no cotangent */
    qn_array *g;
    assert_int_equal(qn_vjp(s, y, x, 1, &x, &g), QN_E_ARG);
    assert_int_equal(qn_jvp(s, y, 1, &x, &y, &g), QN_E_ARG);
    OK(qn_vjp(s, qn_sum(s, qn_sum(s, y, 0), 1), NULL, 1, &x, &g)); /* through it is fine */
    OK(qn_eval(s, 1, &g));
    OK(qn_scope_status(s));

    qn_array *experts = qn_from_buffer(s, QN_DTYPE_F32, qn_shape_make(3, (int64_t[]){2, 32, 32}), b);
    qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){2, 1}, (int32_t[]){0, 1});
    qn_array *e = qn_experts(s, x, experts, ids, NULL), *back;
    OK(qn_vjp(s, e, e, 1, &x, &back));
    back = qn_label(s, qn_reshape_sym(s, back, qn_shape_make(1, (int64_t[]){64})), "twice");
    refuse(s, qn_sum(s, back, 0), x, QN_E_UNSUPPORTED, "EXPERTS_GRAD has no gradient");
    qn_scope_free(s);
    qn_buffer_release(b);
}

/* ---- norms -------------------------------------------------------------------------------------------- */

enum { LINES = 6, LINE = 5 };

static double norm_sum(const double *x, const float *w, const float *weight, double offset)
{
    double sum = 0;
    for (int l = 0; l < LINES; l++) {
        double squares = 0;
        for (int i = 0; i < LINE; i++) squares += x[l * LINE + i] * x[l * LINE + i] / LINE;
        for (int i = 0; i < LINE; i++)
            sum += weight[l * LINE + i] * x[l * LINE + i] / sqrt(squares + 1e-2) * (w ? w[i] + offset : 1);
    }
    return sum;
}

static int no_norm_gradient(qn_device *d, qn_prim prim)
{
    return prim != QN_PRIM_RMS_NORM_GRAD;
}

/* Lines inside of rows, with weight and offset or without, by the primitive and by what it is stated in. */
static void norms_have_gradients(void **state)
{
    const float w[LINE] = {1, -2, 0.5f, 3, 0.25f};
    float x[LINES * LINE], weight[LINES * LINE], want[LINES * LINE];
    double at[LINES * LINE];
    const qn_device_ops *ops = device->ops;
    qn_device_ops few = *ops;
    few.supports = no_norm_gradient;
    for (int i = 0; i < LINES * LINE; i++) {
        at[i] = x[i] = (float)((i * 7) % 11) * 0.25f - 1;
        weight[i] = (float)((i * 5) % 13) * 0.1f - 0.5f;
    }
    for (int i = 0; i < 4; i++) {
        qn_scope *s = qn_scope_new(device);
        const qn_shape shape = qn_shape_make(3, (int64_t[]){LINES / 2, 2, LINE});
        const int weighted = i % 2;
        device->ops = i < 2 ? ops : &few;
        for (int j = 0; j < LINES * LINE; j++) {
            const double kept = at[j], h = 1e-5;
            at[j] = kept + h;
            double up = norm_sum(at, weighted ? w : NULL, weight, 1);
            at[j] = kept - h;
            want[j] = (float)((up - norm_sum(at, weighted ? w : NULL, weight, 1)) / (2 * h));
            at[j] = kept;
        }
        qn_array *a = qn_from_data(s, QN_DTYPE_F32, shape.n, shape.dim, x), *g;
        qn_array *y = qn_rms_norm(s, a, weighted ? vector(s, LINE, w) : NULL, 1e-2f, 1);
        OK(qn_vjp(s, y, qn_from_data(s, QN_DTYPE_F32, shape.n, shape.dim, weight), 1, &a, &g));
        assert_int_equal(g->prim == QN_PRIM_RMS_NORM_GRAD, i < 2);
        expect(s, g, LINES * LINE, want);
        qn_scope_free(s);
    }
    device->ops = ops;
}

/* ---- allocation failures ------------------------------------------------------------------------------ */

/* A device, a graph with its gradient and tangent, a program with symbols that runs twice, an evaluation. */
static qn_status everything(void)
{
    qn_device *d = NULL;
    qn_scope *s = NULL;
    qn_program *p = NULL;
    qn_array *outputs[3] = {NULL};
    qn_status status = qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &d);
    if (status != QN_OK) return status;
    if (!(s = qn_scope_new(d))) {
        status = QN_E_NOMEM;
        goto out;
    }
    qn_array *w = qn_label(s, matrix(s, 3, 4, (float[12]){1, 2, 3}), "w"),
             *v = vector(s, 4, (float[4]){1, 1});
    qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, (int64_t[]){4}));
    qn_array *y = qn_linear(s, qn_rms_norm(s, x, v, 1e-5f, 1), w);
    outputs[0] = qn_sum(s, qn_sum(s, qn_mul(s, y, qn_unary(s, QN_PRIM_SILU, y)), 1), 0);
    if (!outputs[0]) {
        status = qn_scope_status(s);
        goto out;
    }
    if ((status = qn_vjp(s, outputs[0], NULL, 1, &w, &outputs[1])) != QN_OK) goto out;
    if ((status = qn_jvp(s, outputs[0], 1, &v, &v, &outputs[2])) != QN_OK) goto out;
    qn_program_options o = {.name = "everything", .max = {{8, 0, 0}}};
    if ((status = qn_program_new(s, &o, 3, outputs, &p)) != QN_OK) goto out;
    for (int rows = 8; rows >= 2 && status == QN_OK; rows -= 6) {
        float *in = qn_program_input(p, 0);
        for (int i = 0; i < 4 * rows; i++) in[i] = (float)i;
        status = qn_program_run(p, &(qn_sizes){{rows, 0, 0}});
    }
    if (status != QN_OK) goto out;
    qn_array *sum = qn_sum(s, qn_softmax(s, qn_transpose(s, w)), 0);
    status = qn_eval(s, 1, &sum);
out:
    qn_program_free(p);
    qn_scope_free(s);
    qn_device_close(d);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    OK(everything());
    int64_t before = qn_mem_live_blocks();
    for (int64_t n = 1; n <= 2000; n++) {
        qn_mem_fail_nth(n);
        qn_status status = everything();
        qn_mem_fail_nth(0);
        if (qn_mem_live_blocks() != before) fail_msg("allocation %ld: blocks are left", (long)n);
        if (status == QN_OK) return;
        if (status != QN_E_NOMEM)
            fail_msg("allocation %ld: %s: %s", (long)n, qn_status_name(status), qn_last_error());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_error_is_kept),
        cmocka_unit_test(kept_arrays_outlive_scopes),
        cmocka_unit_test(deep_graphs_are_freed_without_recursion),
        cmocka_unit_test(views_give_logical_order),
        cmocka_unit_test(vectors_are_whole_before_matrices),
        cmocka_unit_test(evaluation_shares_and_repeats),
        cmocka_unit_test(gradients_add_up_and_nest),
        cmocka_unit_test(what_is_differentiated_by_is_independent),
        cmocka_unit_test(dropout_and_its_gradient),
        cmocka_unit_test(refusals_have_names),
        cmocka_unit_test(norms_have_gradients),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("array", tests, open_device, close_device);
}
