/* Public arrays: scopes, creation, element types, data of views, text, and every allocation failing once. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <quern/array.h>
#include <stdio.h>
#include <string.h>

#include "array/array.h"
#include "base/mem.h"
#include "quant/types.h"

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

static void expect(qn_array *a, int64_t n, const double *want)
{
    double got[64];
    OK(qn_array_read(s, a, QN_DTYPE_F64, got, n));
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("element %d is %g, not %g", (int)i, got[i], want[i]);
}

/* ---- scopes ------------------------------------------------------------------------------------------- */

static void errors_are_kept_until_forgotten(void **state)
{
    qn_array *a = qn_arange(s, QN_DTYPE_F32, 0, 2, 1), *b = qn_arange(s, QN_DTYPE_F32, 0, 3, 1);
    double x;
    assert_null(qn_add(s, a, b));
    assert_null(qn_astype(s, NULL, QN_DTYPE_F32));
    assert_null(qn_arange(s, QN_DTYPE_F32, 0, 1, 0)); /* another error is not the first one */
    assert_int_equal(qn_array_item(s, a, &x), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "[2] and [3]"));
    assert_string_equal(qn_array_text(s, NULL), "null");
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    OK(qn_scope_status(s));
    expect(qn_add(s, a, a), 2, (double[]){0, 2});
}

static void arrays_and_their_device_outlive_scopes(void **state)
{
    qn_scope *first, *inner;
    OK(qn_scope_open(1, 0, &first));
    inner = qn_scope_inner(first);
    qn_array *a = qn_keep(qn_arange(inner, QN_DTYPE_I64, 5, 8, 1));
    qn_array *half = qn_keep(qn_astype(first, a, QN_DTYPE_F16));
    qn_scope_close(inner);
    qn_array *lazy = qn_keep(qn_add(first, half, half));
    qn_scope_close(first);
    assert_int_equal(((const int64_t *)qn_array_data(a))[2], 7);
    assert_null(qn_array_data(half));
    qn_release(lazy);
    qn_release(half);
    qn_release(a);
}

static void a_memory_limit_is_kept(void **state)
{
    qn_scope *small;
    size_t live, peak;
    OK(qn_scope_open(1, 1 << 20, &small));
    qn_array *a = qn_zeros(small, QN_DTYPE_F32, 2, (int64_t[]){1000, 1000});
    assert_int_equal(qn_eval(small, 1, &a), QN_E_NOMEM);
    assert_null(qn_arange(small, QN_DTYPE_F64, 0, 1e6, 1));
    assert_int_equal(qn_scope_recover(small), QN_E_NOMEM);
    assert_non_null(qn_arange(small, QN_DTYPE_F64, 0, 1e5, 1));
    qn_scope_memory(small, &live, &peak);
    assert_true(live >= 800000 && peak >= live && peak <= 1 << 20);
    qn_scope_close(small);
    assert_int_equal(qn_scope_open(-1, 0, &small), QN_E_ARG);
}

static void limits_at_open(void **state)
{
    qn_scope *limited;
    size_t old, live, peak;
    OK(qn_scope_open_with(
        &(qn_scope_options){.n_threads = 1, .memory_limit_bytes = 1 << 20, .cache_limit_bytes = 12345},
        &limited));
    qn_scope_set_cache_limit(limited, 0, &old);
    assert_int_equal(old, 12345);
    qn_scope_set_memory_limit(limited, 1 << 21, &old);
    assert_int_equal(old, 1 << 20);
    qn_array *a = qn_zeros(limited, QN_DTYPE_F32, 1, (int64_t[]){1000});
    OK(qn_eval(limited, 1, &a));
    qn_scope_sweep(limited, 0, 0, NULL);
    qn_scope_clear_cache(limited);
    qn_scope_reset_peak_memory(limited);
    qn_scope_memory(limited, &live, &peak);
    assert_int_equal(live, peak);
    qn_scope_close(limited);
    OK(qn_scope_open_with(&(qn_scope_options){.cache_limit_bytes = QN_KEEP_NOTHING}, &limited));
    qn_scope_set_cache_limit(limited, 1, &old);
    assert_int_equal(old, 0);
    qn_scope_close(limited);
    OK(qn_scope_open_with(NULL, &limited));
    qn_scope_close(limited);
    assert_int_equal(qn_scope_open_with(&(qn_scope_options){.wired_limit_bytes = 4096}, &limited),
                     QN_E_UNSUPPORTED);
    assert_int_equal(qn_scope_open_with(&(qn_scope_options){.device = "abacus"}, &limited), QN_E_NOT_FOUND);
}

static void a_sweep_leaves_what_is_kept(void **state)
{
    qn_array *x = qn_arange(s, QN_DTYPE_F32, 0, 4, 1), *one = qn_scalar(s, 1);
    OK(qn_eval(s, 1, &x));
    int64_t mark = qn_scope_mark(s), blocks = 0;
    for (int i = 0; i < 1000; i++) {
        x = qn_add(s, x, one);
        qn_array_text(s, x);
        OK(qn_eval(s, 1, &x));
        qn_scope_sweep(s, mark, 2, (qn_array *[]){x, NULL});
        if (i == 10) blocks = qn_mem_live_blocks();
    }
    assert_int_equal(qn_mem_live_blocks(), blocks);
    assert_int_equal(qn_scope_mark(s), mark + 1);
    expect(x, 4, (double[]){1000, 1001, 1002, 1003});
}

/* ---- creation ----------------------------------------------------------------------------------------- */

static void creation_is_numpys(void **state)
{
    const int64_t two_three[2] = {2, 3};
    expect(qn_arange(s, QN_DTYPE_I32, 1, 2.5, 0.5), 3, (double[]){1, 1, 2});
    expect(qn_arange(s, QN_DTYPE_F64, 3, 0, -1), 3, (double[]){3, 2, 1});
    assert_int_equal(qn_array_size(qn_arange(s, QN_DTYPE_F64, 3, 0, 1)), 0);
    expect(qn_linspace(s, QN_DTYPE_F64, 0, 1, 5), 5, (double[]){0, 0.25, 0.5, 0.75, 1});
    expect(qn_linspace(s, QN_DTYPE_F32, 7, 9, 1), 1, (double[]){7});
    expect(qn_eye(s, QN_DTYPE_U8, 2, 3, 0), 6, (double[]){1, 0, 0, 0, 1, 0});
    expect(qn_eye(s, QN_DTYPE_BF16, 3, 2, -1), 6, (double[]){0, 0, 1, 0, 0, 1});
    expect(qn_eye(s, QN_DTYPE_BOOL, 2, 2, 5), 4, (double[]){0, 0, 0, 0});
    expect(qn_full(s, QN_DTYPE_I8, 2, two_three, 300), 6, (double[]){127, 127, 127, 127, 127, 127});
    expect(qn_ones(s, QN_DTYPE_F16, 0, NULL), 1, (double[]){1});
    expect(qn_zeros(s, QN_DTYPE_U64, 1, (int64_t[]){2}), 2, (double[]){0, 0});
    qn_array *a = qn_from_data(s, QN_DTYPE_U16, 2, two_three, (uint16_t[]){1, 2, 3, 4, 5, 65535});
    expect(a, 6, (double[]){1, 2, 3, 4, 5, 65535});
    assert_int_equal(qn_array_dtype(a), QN_DTYPE_U16);
    assert_int_equal(qn_array_n_dims(a), 2);
    assert_int_equal(qn_array_dim(a, 0), 2);
    assert_int_equal(qn_array_dim(a, -1), 3);
    assert_int_equal(qn_array_dim(a, 2), -1);
    assert_int_equal(qn_array_size(a), 6);
    assert_int_equal(qn_array_dtype(NULL), QN_DTYPE_COUNT);
    assert_true(qn_array_n_dims(NULL) == -1 && qn_array_dim(NULL, 0) == -1 && qn_array_size(NULL) == -1);
}

static void what_is_no_shape_is_refused(void **state)
{
    const int64_t dims[7] = {1, 1, 1, 1, 1, 1, 1}, huge[3] = {INT64_MAX, 3, 2}, negative[1] = {-1};
    assert_null(qn_zeros(s, QN_DTYPE_F32, 7, dims));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    assert_null(qn_from_data(s, QN_DTYPE_F32, 3, huge, NULL));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    assert_null(qn_full(s, QN_DTYPE_F32, 1, negative, 1));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    assert_null(qn_from_data(s, QN_DTYPE_Q4_K, 1, &(int64_t){256}, NULL));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    assert_null(qn_arange(s, QN_DTYPE_F32, 0, INFINITY, 1));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    assert_null(qn_linspace(s, QN_DTYPE_F32, NAN, 1, 3));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
    assert_null(qn_linspace(s, QN_DTYPE_F32, 0, 1, -3));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
}

/* ---- element types ------------------------------------------------------------------------------------ */

static void types_meet_as_in_the_table(void **state)
{
    static const qn_dtype table[][3] = {
        {QN_DTYPE_BOOL, QN_DTYPE_U8, QN_DTYPE_U8},     {QN_DTYPE_BOOL, QN_DTYPE_BF16, QN_DTYPE_BF16},
        {QN_DTYPE_BOOL, QN_DTYPE_BOOL, QN_DTYPE_BOOL}, {QN_DTYPE_U8, QN_DTYPE_U32, QN_DTYPE_U32},
        {QN_DTYPE_I8, QN_DTYPE_I64, QN_DTYPE_I64},     {QN_DTYPE_U8, QN_DTYPE_I8, QN_DTYPE_I16},
        {QN_DTYPE_U16, QN_DTYPE_I8, QN_DTYPE_I32},     {QN_DTYPE_U8, QN_DTYPE_I32, QN_DTYPE_I32},
        {QN_DTYPE_U32, QN_DTYPE_I32, QN_DTYPE_I64},    {QN_DTYPE_U64, QN_DTYPE_I64, QN_DTYPE_F32},
        {QN_DTYPE_U64, QN_DTYPE_I8, QN_DTYPE_F32},     {QN_DTYPE_I64, QN_DTYPE_F16, QN_DTYPE_F16},
        {QN_DTYPE_I32, QN_DTYPE_F32, QN_DTYPE_F32},    {QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_F32},
        {QN_DTYPE_F16, QN_DTYPE_F32, QN_DTYPE_F32},    {QN_DTYPE_BF16, QN_DTYPE_F64, QN_DTYPE_F64},
        {QN_DTYPE_U64, QN_DTYPE_F64, QN_DTYPE_F64},    {QN_DTYPE_Q4_K, QN_DTYPE_BF16, QN_DTYPE_F32}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_int_equal(qn_promote(table[i][0], table[i][1]), table[i][2]);
        assert_int_equal(qn_promote(table[i][1], table[i][0]), table[i][2]);
    }
    for (int a = QN_DTYPE_BOOL; a <= QN_DTYPE_F64; a++) assert_int_equal(qn_promote(a, a), a);
}

static void operations_promote(void **state)
{
    qn_array *i = qn_arange(s, QN_DTYPE_I32, 0, 3, 1), *f = qn_arange(s, QN_DTYPE_F32, 1, 4, 1);
    qn_array *sum = qn_add(s, i, f);
    assert_int_equal(qn_array_dtype(sum), QN_DTYPE_F32);
    expect(sum, 3, (double[]){1, 3, 5});
    expect(qn_mul(s, qn_scalar(s, 2), i), 3, (double[]){0, 2, 4});
}

static void casts_follow_the_rules(void **state)
{
    const double d[] = {-1.9, 1.9, 300, -300, 1e30, -1e30, NAN, INFINITY, 65519.99, 65520, 0.5, -0.0};
    qn_array *a = qn_from_data(s, QN_DTYPE_F64, 1, (int64_t[]){12}, d);
    expect(qn_astype(s, a, QN_DTYPE_I8), 12, (double[]){-1, 1, 127, -128, 127, -128, 0, 127, 127, 127, 0, 0});
    expect(qn_astype(s, a, QN_DTYPE_U8), 12, (double[]){0, 1, 255, 0, 255, 0, 0, 255, 255, 255, 0, 0});
    expect(qn_astype(s, a, QN_DTYPE_BOOL), 12, (double[]){1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0});
    int64_t i[12];
    uint64_t u[12];
    OK(qn_array_read(s, a, QN_DTYPE_I64, i, 12));
    OK(qn_array_read(s, a, QN_DTYPE_U64, u, 12));
    assert_true(i[4] == INT64_MAX && i[5] == INT64_MIN && i[6] == 0 && u[4] == UINT64_MAX && u[5] == 0);
    uint16_t h[12];
    OK(qn_array_read(s, a, QN_DTYPE_F16, h, 12));
    assert_int_equal(h[8], 0x7bff); /* the largest: below half-way to what would come next */
    assert_int_equal(h[9], 0x7c00);
    assert_int_equal(h[11], 0x8000);
    /* integers keep their low bits */
    const int64_t big[] = {-1, 256, 511, INT64_MIN};
    qn_array *b = qn_from_data(s, QN_DTYPE_I64, 1, (int64_t[]){4}, big);
    expect(qn_astype(s, b, QN_DTYPE_U8), 4, (double[]){255, 0, 255, 0});
    expect(qn_astype(s, b, QN_DTYPE_I8), 4, (double[]){-1, 0, -1, 0});
    expect(qn_astype(s, b, QN_DTYPE_BOOL), 4, (double[]){1, 1, 1, 1});
    expect(qn_astype(s, b, QN_DTYPE_U64), 4, (double[]){0x1p64, 256, 511, 0x1p63});
    assert_null(qn_astype(s, b, QN_DTYPE_Q8_0));
    assert_int_equal(qn_scope_recover(s), QN_E_ARG);
}

/* A number just above half-way between two of f16's (or bf16's) that lies half-way after rounding to f32. */
static void numbers_are_rounded_once(void **state)
{
    const double d[] = {1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-8 + 0x1p-40, -(1 + 0x1p-11 + 0x1p-40),
                        1 + 0x1p-11 - 0x1p-40};
    const int64_t i[] = {(1 << 30) + (1 << 22) + 1, -((1 << 30) + (1 << 22) + 1)};
    uint16_t h[4];
    qn_array *a = qn_from_data(s, QN_DTYPE_F64, 1, (int64_t[]){4}, d);
    OK(qn_array_read(s, a, QN_DTYPE_F16, h, 4));
    assert_true(h[0] == 0x3c01 && h[2] == 0xbc01 && h[3] == 0x3c00);
    OK(qn_array_read(s, a, QN_DTYPE_BF16, h, 4));
    assert_int_equal(h[1], 0x3f81);
    qn_array *b = qn_from_data(s, QN_DTYPE_I64, 1, (int64_t[]){2}, i);
    OK(qn_array_read(s, b, QN_DTYPE_BF16, h, 2));
    assert_true(h[0] == 0x4e81 && h[1] == 0xce81);
}

static void every_type_becomes_every_other(void **state)
{
    for (int from = QN_DTYPE_BOOL; from <= QN_DTYPE_F64; from++)
        for (int to = QN_DTYPE_BOOL; to <= QN_DTYPE_F64; to++) {
            qn_array *a = qn_astype(s, qn_arange(s, QN_DTYPE_I32, 0, 30, 1), from);
            qn_array *b = qn_astype(s, a, to);
            assert_int_equal(qn_array_dtype(b), to);
            double got[30];
            OK(qn_array_read(s, b, QN_DTYPE_F64, got, 30));
            for (int i = 0; i < 30; i++)
                assert_true(got[i] == (from == QN_DTYPE_BOOL || to == QN_DTYPE_BOOL ? i != 0 : i));
        }
}

/* ---- data --------------------------------------------------------------------------------------------- */

static void views_are_read_in_place(void **state)
{
    qn_array *a =
        qn_reshape_sym(s, qn_arange(s, QN_DTYPE_I16, 0, 24, 1), qn_shape_make(3, (int64_t[]){2, 3, 4}));
    int64_t blocks = qn_mem_live_blocks();
    qn_array *t = qn_slice_last(s, qn_permute(s, a, (int32_t[]){2, 0, 1}), 1, 2); /* [4, 2, 2] */
    qn_view v;
    OK(qn_array_view(s, t, &v));
    assert_true(v.n_dims == 3 && v.dims[0] == 4 && v.strides[0] == 1 && v.strides[1] == 12 &&
                v.strides[2] == 4);
    assert_true(qn_mem_live_blocks() <= blocks + 2); /* two handles at most, no data */
    assert_null(qn_array_data(t));
    qn_iterator it;
    qn_iterator_begin(&it, &v);
    double want[16];
    int n = 0;
    for (const int16_t *x; (x = qn_iterator_next(&it)); n++) want[n] = *x;
    assert_int_equal(n, 16);
    assert_true(want[0] == 4 && want[1] == 8 && want[2] == 16 && want[4] == 5);
    expect(t, 16, want);
    OK(qn_eval(s, 1, &t)); /* computed, it is row-major, and the same */
    expect(t, 16, want);
    assert_int_equal(((const int16_t *)qn_array_data(t))[4], 5);
    double x;
    OK(qn_array_at(s, t, (int64_t[]){-1, 1, 0}, &x));
    assert_true(x == 19);
    assert_int_equal(qn_array_at(s, t, (int64_t[]){4, 0, 0}, &x), QN_E_ARG);
    qn_array *wide =
        qn_broadcast_sym(s, qn_arange(s, QN_DTYPE_F32, 0, 2, 1), qn_shape_make(2, (int64_t[]){3, 2}));
    OK(qn_array_view(s, wide, &v));
    assert_true(v.strides[0] == 0 && v.strides[1] == 1);
    expect(wide, 6, (double[]){0, 1, 0, 1, 0, 1});
    int64_t item;
    OK(qn_array_item_i64(s, qn_full(s, QN_DTYPE_I64, 0, NULL, -5), &item));
    assert_int_equal(item, -5);
    assert_int_equal(qn_array_item(s, wide, &x), QN_E_ARG);
}

static void empty_arrays_have_no_elements(void **state)
{
    qn_array *a = qn_zeros(s, QN_DTYPE_F32, 3, (int64_t[]){2, 0, 3});
    qn_view v;
    qn_iterator it;
    assert_int_equal(qn_array_size(a), 0);
    OK(qn_array_view(s, a, &v));
    qn_iterator_begin(&it, &v);
    assert_null(qn_iterator_next(&it));
    OK(qn_array_read(s, a, QN_DTYPE_F32, NULL, 0));
    OK(qn_eval(s, 1, &a));
    assert_string_equal(qn_array_text(s, a), "array([], shape=[2, 0, 3], dtype=f32)");
}

static void what_waits_for_an_input_has_no_value(void **state)
{
    qn_scope *other = qn_scope_inner(s);
    qn_array *in = qn_input(other, QN_DTYPE_F32, qn_shape_make(1, (int64_t[]){2}));
    qn_array *sum = qn_add(s, in, in);
    assert_int_equal(qn_eval(other, 1, &in), QN_E_ARG);
    assert_int_equal(qn_eval(s, 1, &sum), QN_E_ARG);
    qn_scope_close(other);
}

/* ---- text --------------------------------------------------------------------------------------------- */

static void text_is_as_numpys(void **state)
{
    qn_array *a =
        qn_reshape_sym(s, qn_arange(s, QN_DTYPE_I32, -1, 5, 1), qn_shape_make(2, (int64_t[]){2, 3}));
    assert_string_equal(qn_array_text(s, a), "array([[-1,  0,  1],\n"
                                             "       [ 2,  3,  4]], shape=[2, 3], dtype=i32)");
    assert_string_equal(qn_array_text(s, qn_transpose(s, a)), "array([[-1,  2],\n"
                                                              "       [ 0,  3],\n"
                                                              "       [ 1,  4]], shape=[3, 2], dtype=i32)");
    const float f[] = {0, -0.5f, 1e10f, NAN, INFINITY, 1.0f / 3};
    assert_string_equal(
        qn_array_text(s, qn_from_data(s, QN_DTYPE_F32, 1, (int64_t[]){6}, f)),
        "array([      0.,     -0.5,    1e+10,      nan,      inf, 0.333333], shape=[6], dtype=f32)");
    assert_string_equal(qn_array_text(s, qn_scalar(s, 2)), "array(2., shape=[], dtype=f32)");
    assert_string_equal(qn_array_text(s, qn_eye(s, QN_DTYPE_BOOL, 1, 2, 0)),
                        "array([[ true, false]], shape=[1, 2], dtype=bool)");
    assert_string_equal(qn_array_text(s, qn_full(s, QN_DTYPE_U64, 0, NULL, 0x1p64)),
                        "array(18446744073709551615, shape=[], dtype=u64)");
    assert_string_equal(qn_array_text(s, qn_zeros(s, QN_DTYPE_U8, 3, (int64_t[]){2, 1, 2})),
                        "array([[[0, 0]],\n\n       [[0, 0]]], shape=[2, 1, 2], dtype=u8)");
    assert_string_equal(qn_array_text(s, qn_arange(s, QN_DTYPE_I32, 0, 1001, 1)),
                        "array([   0,    1,    2, ...,  998,  999, 1000], shape=[1001], dtype=i32)");
    assert_string_equal(qn_array_text(s, qn_zeros(s, QN_DTYPE_I8, 2, (int64_t[]){7, 200})),
                        "array([[0, 0, 0, ..., 0, 0, 0],\n"
                        "       [0, 0, 0, ..., 0, 0, 0],\n"
                        "       [0, 0, 0, ..., 0, 0, 0],\n"
                        "       ...,\n"
                        "       [0, 0, 0, ..., 0, 0, 0],\n"
                        "       [0, 0, 0, ..., 0, 0, 0],\n"
                        "       [0, 0, 0, ..., 0, 0, 0]], shape=[7, 200], dtype=i8)");
    const char *lines = qn_array_text(s, qn_arange(s, QN_DTYPE_I32, 0, 100, 1));
    for (const char *at = lines; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        assert_true(strcspn(at, "\n") <= 110);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

static qn_status use_all(void)
{
    qn_scope *t;
    QN_TRY(qn_scope_open(1, 0, &t));
    qn_array *a = qn_full(t, QN_DTYPE_I32, 1, (int64_t[]){3}, 2), *b = qn_arange(t, QN_DTYPE_F32, 0, 3, 1);
    double x[3];
    qn_array *sum = qn_add(t, qn_astype(t, a, QN_DTYPE_F16), b);
    qn_status status = qn_array_read(t, sum, QN_DTYPE_F64, x, 3);
    const char *text = qn_array_text(t, sum);
    if (status == QN_OK && strcmp(text, "null") == 0) status = QN_E_NOMEM;
    if (status == QN_OK && x[2] != 4) status = QN_E_INTERNAL;
    if (status == QN_OK) {
        qn_scope *inner = qn_scope_inner(t);
        if (!inner || !qn_eye(inner, QN_DTYPE_U8, 2, 2, 0)) status = QN_E_NOMEM;
        qn_scope_close(inner);
    }
    qn_scope_close(t);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    int64_t blocks = qn_mem_live_blocks();
    for (int n = 1; n <= 2000; n++) {
        qn_mem_fail_nth(n);
        qn_status status = use_all();
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        if (status == QN_OK) return;
        assert_int_equal(status, QN_E_NOMEM);
    }
    fail_msg("more than 2000 allocations");
}

/* Which device a scope is on is said by name. */
static void named_devices(void **state)
{
    static const char *const names[] = {NULL, "cpu"};
    qn_scope *other = NULL;
    for (int i = 0; i < 2; i++) {
        OK(qn_scope_open_on(names[i], 1, 0, &other));
        qn_scope_close(other);
    }
    other = NULL;
    assert_int_equal(qn_scope_open_on("abacus", 1, 0, &other), QN_E_NOT_FOUND);
    assert_null(other);
    assert_string_equal(qn_last_error(), "there is no device 'abacus'; there are: auto, cpu, cuda, mlx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_kept_until_forgotten),
        cmocka_unit_test(arrays_and_their_device_outlive_scopes),
        cmocka_unit_test(named_devices),
        cmocka_unit_test(a_memory_limit_is_kept),
        cmocka_unit_test(limits_at_open),
        cmocka_unit_test(a_sweep_leaves_what_is_kept),
        cmocka_unit_test(creation_is_numpys),
        cmocka_unit_test(what_is_no_shape_is_refused),
        cmocka_unit_test(types_meet_as_in_the_table),
        cmocka_unit_test(operations_promote),
        cmocka_unit_test(casts_follow_the_rules),
        cmocka_unit_test(numbers_are_rounded_once),
        cmocka_unit_test(every_type_becomes_every_other),
        cmocka_unit_test(views_are_read_in_place),
        cmocka_unit_test(empty_arrays_have_no_elements),
        cmocka_unit_test(what_waits_for_an_input_has_no_value),
        cmocka_unit_test(text_is_as_numpys),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_scope, close_scope);
}
