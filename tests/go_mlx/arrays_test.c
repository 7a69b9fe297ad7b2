/* What docs/go-mlx.md names for arrays and operations on them, each called once and looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <quern/quern.h>
#include <string.h>

#include "tests/support/engine_help.h"
#include "tests/support/expect.h"

#define NUMBERS(a, ...) QN_TEST_NUMBERS(s, a, __VA_ARGS__)

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

/* 1, 2, .. n. */
static qn_array *line(int64_t n)
{
    return qn_arange(s, QN_DTYPE_F32, 1, (double)n + 1, 1);
}

/* The same as a matrix. */
static qn_array *matrix(int64_t rows, int64_t columns)
{
    return qn_reshape(s, line(rows * columns), 2, (int64_t[]){rows, columns});
}

static qn_array *floats(int64_t n, const float *numbers)
{
    return qn_from_data(s, QN_DTYPE_F32, 1, &n, numbers);
}

static qn_array *integers(int64_t n, const int32_t *numbers)
{
    return qn_from_data(s, QN_DTYPE_I32, 1, &n, numbers);
}

/* ---- arrays ------------------------------------------------------------------------------------------- */

static void made(void **state)
{
    NUMBERS(qn_scalar(s, 2.5F), 2.5);
    NUMBERS(floats(3, (float[]){1, -2, 0.5F}), 1, -2, 0.5);
    NUMBERS(qn_zeros(s, QN_DTYPE_I16, 1, (int64_t[]){2}), 0, 0);
    NUMBERS(qn_ones(s, QN_DTYPE_F16, 1, (int64_t[]){2}), 1, 1);
    NUMBERS(qn_full(s, QN_DTYPE_F64, 1, (int64_t[]){2}, 0.1), 0.1, 0.1);
    NUMBERS(qn_arange(s, QN_DTYPE_F32, 0, 3, 0.5), 0, 0.5, 1, 1.5, 2, 2.5);
}

static void described(void **state)
{
    qn_array *m = matrix(2, 3);
    assert_int_equal(qn_array_n_dims(m), 2);
    assert_int_equal(qn_array_dim(m, -1), 3);
    assert_int_equal(qn_array_size(m), 6);
    assert_int_equal(qn_array_dtype(m), QN_DTYPE_F32);
    assert_int_equal((size_t)qn_array_size(m) * qn_dtype_size(qn_array_dtype(m)), 24);
    assert_string_equal(qn_dtype_name(qn_array_dtype(m)), "f32");
    assert_string_equal(qn_array_text(s, m),
                        "array([[1., 2., 3.],\n       [4., 5., 6.]], shape=[2, 3], dtype=f32)");
    assert_int_equal(qn_promote(QN_DTYPE_U8, QN_DTYPE_I8), QN_DTYPE_I16);
    qn_array *cut = qn_astype(s, floats(3, (float[]){1.9F, -1.9F, 300}), QN_DTYPE_I8);
    NUMBERS(cut, 1, -1, 127);
}

static void read_back(void **state)
{
    double item;
    int64_t integer;
    int32_t numbers[6];
    qn_view view;
    qn_iterator it;
    qn_array *m = matrix(2, 3), *t = qn_transpose(s, qn_detach(s, m));
    qn_test_ok(qn_array_item(s, qn_scalar(s, 0.25F), &item));
    assert_true(item == 0.25);
    qn_test_ok(qn_array_item_i64(s, qn_full(s, QN_DTYPE_I64, 0, NULL, 4294967296.0), &integer));
    assert_true(integer == (int64_t)1 << 32);
    qn_test_ok(qn_array_read(s, t, QN_DTYPE_I32, numbers, 6));
    assert_memory_equal(numbers, ((int32_t[]){1, 4, 2, 5, 3, 6}), sizeof numbers);
    qn_test_ok(qn_array_at(s, t, (int64_t[]){-1, 0}, &item));
    assert_true(item == 3);
    qn_test_ok(qn_array_view(s, t, &view)); /* nothing was copied */
    assert_true(view.strides[0] == 1 && view.strides[1] == 3 && view.data == qn_array_data(m));
    item = 0;
    qn_iterator_begin(&it, &view);
    for (const float *x; (x = qn_iterator_next(&it));) item = 10 * item + (double)*x;
    assert_true(item == 142536);
}

/* What goes with a scope, and what does not. */
static void kept_and_released(void **state)
{
    qn_scope *inner = qn_scope_inner(s);
    qn_array *kept = qn_keep(qn_arange(inner, QN_DTYPE_F32, 0, 3, 1)), *x = qn_scalar(s, 1);
    qn_scope_close(inner);
    NUMBERS(kept, 0, 1, 2);
    qn_release(kept);
    const int64_t mark = qn_scope_mark(s);
    for (int i = 0; i < 10; i++) {
        x = qn_detach(s, qn_add(s, x, x));
        qn_scope_sweep(s, mark, 1, &x);
    }
    NUMBERS(x, 1024);
}

static void errors_wait_in_the_scope(void **state)
{
    qn_array *wrong = qn_exp(s, qn_add(s, matrix(2, 3), line(6)));
    assert_null(wrong);
    assert_int_equal(qn_scope_status(s), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "shapes [2, 3] and [6]"));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    assert_int_equal(qn_scope_status(s), QN_OK);
    /* a label stands in the message */
    qn_array *weight = qn_label(s, qn_quantise(s, matrix(2, 32), QN_DTYPE_Q8_0), "q_proj"), *g;
    qn_array *loss = qn_reduce(s, QN_REDUCE_SUM, qn_linear(s, line(32), weight), 0, NULL, 0);
    assert_int_equal(qn_vjp(s, loss, NULL, 1, &weight, &g), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "q_proj"));
}

/* ---- operations --------------------------------------------------------------------------------------- */

static void element_by_element(void **state)
{
    qn_array *a = floats(3, (float[]){1, 4, -2}), *b = floats(3, (float[]){2, 2, 2});
    NUMBERS(qn_add(s, a, b), 3, 6, 0);
    NUMBERS(qn_add(s, a, qn_scalar(s, 1)), 2, 5, -1);
    NUMBERS(qn_sub(s, a, b), -1, 2, -4);
    NUMBERS(qn_mul(s, a, b), 2, 8, -4);
    NUMBERS(qn_scale(s, a, 0.5), 0.5, 2, -1);
    NUMBERS(qn_div(s, a, b), 0.5, 2, -1);
    NUMBERS(qn_pow(s, a, b), 1, 16, 4);
    NUMBERS(qn_maximum(s, a, b), 2, 4, 2);
    NUMBERS(qn_minimum(s, a, b), 1, 2, -2);
    NUMBERS(qn_gt(s, a, b), 0, 1, 0);
    NUMBERS(qn_where(s, qn_gt(s, a, b), a, b), 2, 4, 2);
    NUMBERS(qn_neg(s, a), -1, -4, 2);
    NUMBERS(qn_square(s, a), 1, 16, 4);
    NUMBERS(qn_sqrt(s, a), 1, 2, NAN);
    NUMBERS(qn_isnan(s, qn_sqrt(s, a)), 0, 0, 1);
    NUMBERS(qn_rsqrt(s, a), 1, 0.5, NAN);
    NUMBERS(qn_reciprocal(s, a), 1, 0.25, -0.5);
    NUMBERS(qn_exp(s, a), exp(1), exp(4), exp(-2));
    NUMBERS(qn_ln(s, qn_exp(s, a)), 1, 4, -2);
    NUMBERS(qn_tanh(s, a), tanh(1), tanh(4), tanh(-2));
    NUMBERS(qn_sigmoid(s, a), 1 / (1 + exp(-1)), 1 / (1 + exp(-4)), 1 / (1 + exp(2)));
    NUMBERS(qn_silu(s, a), 1 / (1 + exp(-1)), 4 / (1 + exp(-4)), -2 / (1 + exp(2)));
}

static void along_axes(void **state)
{
    qn_array *m = matrix(2, 3), *mixed = floats(4, (float[]){3, 1, 4, 1}), *where = NULL;
    NUMBERS(qn_sum(s, m, 1), 6, 15);
    QN_TEST_SHAPE(qn_sum(s, m, 1), 2, 1);
    NUMBERS(qn_mean(s, m, 0), 2.5, 3.5, 4.5);
    NUMBERS(qn_max(s, m, -1), 3, 6);
    QN_TEST_SHAPE(qn_reduce(s, QN_REDUCE_SUM, m, 1, (int[]){1}, 0), 2);
    NUMBERS(qn_reduce(s, QN_REDUCE_MEAN, m, 0, NULL, 0), 3.5);
    NUMBERS(qn_reduce(s, QN_REDUCE_LOGSUMEXP, mixed, 0, NULL, 0), log(exp(3) + 2 * exp(1) + exp(4)));
    NUMBERS(qn_reduce(s, QN_REDUCE_ANY, qn_gt(s, m, qn_scalar(s, 5)), 1, (int[]){1}, 0), 0, 1);
    NUMBERS(qn_argmax(s, mixed, 0, 0), 2);
    NUMBERS(qn_sort(s, mixed, 0, 0), 1, 1, 3, 4);
    NUMBERS(qn_argsort(s, mixed, 0, 0), 1, 3, 0, 2);
    NUMBERS(qn_topk(s, mixed, 2, 0, &where), 4, 3);
    NUMBERS(where, 2, 0);
    NUMBERS(qn_cumulate(s, QN_CUMSUM, mixed, 0, 0, 0), 3, 4, 8, 9);
    NUMBERS(qn_cumulate(s, QN_CUMSUM, mixed, 0, 1, 1), 6, 5, 1, 0);
    NUMBERS(qn_softmax(s, floats(2, (float[]){0, (float)log(3)})), 0.25, 0.75);
}

static void shapes(void **state)
{
    qn_array *m = matrix(2, 3), *column = qn_reshape(s, line(2), 2, (int64_t[]){2, 1});
    NUMBERS(qn_transpose(s, m), 1, 4, 2, 5, 3, 6);
    qn_array *three = qn_reshape(s, line(24), 3, (int64_t[]){2, 3, 4});
    QN_TEST_SHAPE(qn_permute(s, three, (int32_t[]){2, 1, 0}), 4, 3, 2);
    QN_TEST_SHAPE(qn_transpose(s, three), 2, 4, 3);
    QN_TEST_SHAPE(qn_expand_dims(s, m, 1), 2, 1, 3);
    QN_TEST_SHAPE(qn_squeeze(s, column, 1), 2);
    NUMBERS(qn_concatenate(s, 2, (qn_array *[]){m, column}, 1), 1, 2, 3, 1, 4, 5, 6, 2);
    NUMBERS(qn_broadcast_to(s, column, 2, (int64_t[]){2, 2}), 1, 1, 2, 2);
    /* heads out of a projection: [L, H * D] as [H, L, D] */
    qn_array *heads = qn_as_strided(s, matrix(2, 4), 3, (int64_t[]){2, 2, 2}, (int64_t[]){2, 4, 1}, 0);
    NUMBERS(heads, 1, 2, 5, 6, 3, 4, 7, 8);
    NUMBERS(qn_slice(s, m, (int64_t[]){0, 1}, (int64_t[]){QN_TO_END, 3}, NULL), 2, 3, 5, 6);
    NUMBERS(qn_slice_update(s, m, column, (int64_t[]){0, 2}, (int64_t[]){2, 3}, NULL), 1, 2, 1, 4, 5, 2);
    NUMBERS(m, 1, 2, 3, 4, 5, 6); /* which is as it was */
    NUMBERS(qn_repeat(s, column, 2, 0), 1, 1, 2, 2);
    NUMBERS(qn_take_axis(s, m, integers(2, (int32_t[]){1, -2}), 0), 4, 5, 6, 1, 2, 3);
    qn_array *one = qn_reshape(s, integers(2, (int32_t[]){2, 0}), 2, (int64_t[]){2, 1});
    NUMBERS(qn_take_along_axis(s, m, one, 1), 3, 4);
    NUMBERS(qn_put_along_axis(s, m, one, column, 1), 1, 2, 1, 2, 5, 6);
}

static void products(void **state)
{
    qn_array *m = matrix(2, 3);
    NUMBERS(qn_matmul(s, m, qn_transpose(s, m)), 14, 32, 32, 77);
    NUMBERS(qn_linear(s, m, m), 14, 32, 32, 77);
    /* a quantised matrix is one array, without scales beside it */
    qn_array *x = qn_scale(s, matrix(3, 64), 0.01), *plain = qn_scale(s, qn_cos(s, matrix(8, 64)), 0.5),
             *w = qn_quantise(s, plain, QN_DTYPE_AFFINE4_G64_F16), *back = qn_dequantise(s, w);
    assert_int_equal(qn_array_dtype(w), QN_DTYPE_AFFINE4_G64_F16);
    qn_test_alike(s, back, plain, 0.5 / 15 + 1e-3);
    qn_test_alike(s, qn_linear(s, x, w), qn_linear(s, x, back), 1e-2);
    qn_test_alike(s, qn_matmul(s, x, qn_transpose(s, w)), qn_linear(s, x, w), 0);
    qn_test_alike(s, qn_take_axis(s, w, integers(1, (int32_t[]){5}), 0),
                  qn_take_axis(s, back, integers(1, (int32_t[]){5}), 0), 0);
    /* two experts of one matrix each */
    qn_array *experts = qn_reshape(s, line(8), 3, (int64_t[]){2, 2, 2}),
             *which = qn_reshape(s, integers(2, (int32_t[]){1, 0}), 2, (int64_t[]){2, 1});
    NUMBERS(qn_gather_mm(s, qn_ones(s, QN_DTYPE_F32, 2, (int64_t[]){2, 2}), experts, which), 11, 15, 3, 7);
    qn_array *image = qn_reshape(s, line(9), 4, (int64_t[]){1, 3, 3, 1}),
             *kernel = qn_ones(s, QN_DTYPE_F32, 4, (int64_t[]){1, 2, 2, 1});
    const int64_t one[2] = {1, 1}, none[2] = {0, 0};
    NUMBERS(qn_conv2d(s, image, kernel, one, none, one, 1), 12, 16, 24, 28);
}

static void random_numbers(void **state)
{
    double mean, share;
    qn_array *key = qn_random_key(s, 7), *keys[2];
    qn_random_split(s, key, 2, keys);
    qn_array *n = qn_random_normal(s, keys[0], 1, (int64_t[]){4000}, 3, 0.5F);
    qn_test_alike(s, n, qn_random_normal(s, keys[0], 1, (int64_t[]){4000}, 3, 0.5F),
                  0); /* a key, one result */
    qn_test_ok(qn_array_item(s, qn_mean(s, n, 0), &mean));
    assert_true(fabs(mean - 3) < 0.05);
    qn_array *u = qn_random_uniform(s, keys[1], 1, (int64_t[]){4000}, -1, 1);
    qn_test_ok(qn_array_item(s, qn_reduce(s, QN_REDUCE_MIN, u, 0, NULL, 0), &mean));
    assert_true(mean >= -1 && mean < -0.99);
    qn_array *odds = qn_broadcast_to(s, qn_ln(s, floats(2, (float[]){1, 3})), 2, (int64_t[]){4000, 2}),
             *drawn = qn_random_categorical(s, keys[1], odds);
    QN_TEST_SHAPE(drawn, 4000);
    qn_test_ok(qn_array_item(s, qn_reduce(s, QN_REDUCE_MEAN, drawn, 0, NULL, 0), &share));
    assert_true(fabs(share - 0.75) < 0.03);
}

static void fused(void **state)
{
    qn_array *x = floats(2, (float[]){3, 4}), *w = floats(2, (float[]){1, 2});
    const double rms = sqrt(12.5);
    NUMBERS(qn_rms_norm(s, x, w, 0, 0), 3 / rms, 8 / rms);
    NUMBERS(qn_rms_norm(s, x, w, 0, 1), 6 / rms, 12 / rms); /* Gemma's weights lack the 1 */
    NUMBERS(qn_layer_norm(s, x, w, w, 0), 0, 4);
    /* the element at position p turns by p; the offset is where the first one stands */
    qn_array *flat = qn_reshape(s, floats(4, (float[]){1, 0, 1, 0}), 2, (int64_t[]){2, 2});
    NUMBERS(qn_rotary(s, flat, NULL), 1, 0, cos(1), sin(1));
    NUMBERS(qn_rotary(s, flat, &(qn_rotary_options){.offset = 5, .interleaved = 1}), cos(5), sin(5), cos(6),
            sin(6));
    /* two heads of queries read one of keys */
    qn_array *q = qn_zeros(s, QN_DTYPE_F32, 4, (int64_t[]){1, 2, 3, 2}),
             *v = qn_reshape(s, line(6), 4, (int64_t[]){1, 1, 3, 2});
    NUMBERS(qn_sdpa(s, q, v, v, NULL, &(qn_sdpa_options){.causal = 1}), 1, 2, 2, 3, 3, 4, 1, 2, 2, 3, 3, 4);
    qn_array *mask = floats(3, (float[]){0, -INFINITY, 0});
    NUMBERS(qn_sdpa(s, q, v, v, mask, NULL), 3, 4, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made),
        cmocka_unit_test(described),
        cmocka_unit_test(read_back),
        cmocka_unit_test(kept_and_released),
        cmocka_unit_test(errors_wait_in_the_scope),
        cmocka_unit_test(element_by_element),
        cmocka_unit_test(along_axes),
        cmocka_unit_test(shapes),
        cmocka_unit_test(products),
        cmocka_unit_test(random_numbers),
        cmocka_unit_test(fused),
    };
    return cmocka_run_group_tests(tests, open_scope, close_scope);
}
