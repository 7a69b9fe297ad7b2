/* Weights on the device mlx: what became of them is told, refusals, the ledger. The numbers and products:
 * tests/devices/other_weights_test.c. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>

#include "device/mlx/mlx.h"
#include "tests/devices/other_weights.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static qn_device *mlx;

static void open_device(void)
{
    if (!mlx && qn_device_open("mlx", &(qn_device_options){.n_threads = 2}, &mlx) != QN_OK)
        qn_test_leave_out(qn_last_error());
}

/* ---- what is told, refused and counted ---------------------------------------------------------------- */

static void told(void **state)
{
    open_device();
    const char *folder = qn_test_scratch();
    static const struct {
        qn_dtype dtype;
        qn_test_weights kind;
        const char *text;
    } cases[] = {
        {QN_DTYPE_Q4_0, QN_TEST_ORDINARY, "1 tensor q4_0 as affine 4-bit (exact"},
        {QN_DTYPE_Q5_K, QN_TEST_ORDINARY, "1 tensor q5_k as affine 5-bit (exact, 1.3 times"},
        {QN_DTYPE_Q6_K, QN_TEST_ORDINARY, "1 tensor q6_k as affine 6-bit (exact, 2.4 times the bytes)"},
        {QN_DTYPE_Q4_0, QN_TEST_EXTREME_SCALES, "1 tensor q4_0 as f32 (exact, 7.1 times"},
        {QN_DTYPE_BF16, QN_TEST_ORDINARY, NULL},
        {QN_DTYPE_MXFP4, QN_TEST_ORDINARY, NULL},
        {QN_DTYPE_NVFP4, QN_TEST_ORDINARY, NULL},
        {QN_DTYPE_AFFINE4_G64_BF16, QN_TEST_ORDINARY, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_test_matrix t = {.dtype = cases[i].dtype, .n_out = 40, .n_in = 256, .kind = cases[i].kind};
        qn_test_lying l = qn_test_lay_down(&t, folder);
        qn_device *d;
        qn_buffer *b;
        size_t bytes;
        OK(qn_device_open("mlx", &(qn_device_options){.n_threads = 1}, &d));
        l.w.parts = l.parts;
        OK(d->ops->weight_bytes(d, &l.w, &bytes));
        OK(d->ops->import_weights(d, 1, &l.w, &b));
        assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_WEIGHTS), b->size_bytes);
        assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_SCRATCH), 0);
        if (cases[i].kind == QN_TEST_ORDINARY) assert_int_equal(b->size_bytes, bytes);
        assert_int_equal(((qn_mlx *)d)->shim->weight_bytes(b->data), b->size_bytes);
        const char *note = d->ops->describe(d).note;
        if (cases[i].text ? !strstr(note, cases[i].text) : *note) fail_msg("\"%s\"", note);
        qn_buffer_release(b);
        assert_int_equal(qn_ledger_held(d->ledger, QN_LEDGER_WEIGHTS), 0);
        qn_device_close(d);
        qn_test_take_up(&l);
    }
    qn_test_remove(folder);
}

static void refused_by_name(void **state)
{
    open_device();
    static const float numbers[64 * 64];
    static const qn_weight_part part = {.data = numbers};
    static const struct {
        qn_weight w;
        const char *text;
    } cases[] = {
        {{.dtype = QN_DTYPE_Q4_0, .n_parts = 1, .n_out = 16, .n_in = 33, .parts = &part}, "33 columns"},
        {{.dtype = QN_DTYPE_Q4_0, .n_parts = 2, .n_out = 32, .n_in = 32, .parts = &part, .transposed = 1},
         "a transposed matrix of q4_0"},
        {{.dtype = QN_DTYPE_F32, .n_parts = 1, .n_out = INT64_MAX / 2, .n_in = 1024, .parts = &part}, "rows"},
        {{.dtype = QN_DTYPE_I32, .n_parts = 1, .n_out = 4, .n_in = 4, .parts = &part}, "i32"},
        {{.dtype = QN_DTYPE_F32, .n_parts = 1, .n_out = 4, .n_in = 4, .parts = &part, .packed = numbers},
         "packed"},
        {{.dtype = QN_DTYPE_F32, .n_parts = 1, .n_out = INT32_MAX, .n_in = INT32_MAX, .parts = &part},
         "left"},
    };
    const size_t limit = qn_ledger_get_limit(mlx->ledger); /* of a GPU, its own size; a refusal names it */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_buffer *b = NULL;
        assert_int_not_equal(mlx->ops->import_weights(mlx, 1, &cases[i].w, &b), QN_OK);
        const int is_huge = strcmp(cases[i].text, "left") == 0;
        if (!strstr(qn_last_error(), is_huge && limit ? "memory limit: weights needs" : cases[i].text))
            fail_msg("%s", qn_last_error());
    }
}

/* Uses of parts of a weight [64, 64], and of one where none is taken; NULL: no more. */
static qn_array *used(qn_scope *s, qn_array *w, int i)
{
    const qn_shape shape = qn_shape_make(2, (int64_t[]){32, 64});
    qn_params range = {.slice = {.begin = {i < 2 ? 16 : 0}}};
    qn_array *x = qn_test_random_array(s, 2, (int64_t[]){2, 64}, 1), *columns = qn_slice_last(s, w, 32, 32),
             *rows = qn_apply(s, QN_PRIM_SLICE, &range, 1, &w, &shape, QN_DTYPE_F32),
             *ids = qn_from_data(s, QN_DTYPE_I32, 1, (int64_t[]){2}, (int32_t[]){3, 0});
    switch (i) {
    case 0:
    case 2: /* the first rows */
        return qn_linear(s, x, rows);
    case 1:
    case 3:
        return qn_take(s, rows, ids);
    case 4:
        return qn_linear(s, qn_slice_last(s, x, 0, 32), columns);
    case 5:
        return qn_matmul(s, x, columns);
    case 6:
        return qn_take(s, columns, ids);
    case 7:
        return qn_head_loss(s, x, rows, ids, 1, 0);
    case 8:
        return qn_take(s, qn_transpose(s, w), ids);
    case 9:
        return qn_unary(s, QN_PRIM_EXP, w);
    default:
        return NULL;
    }
}

/* A weight is read whole: the device keeps it in a form of which rows and columns are not found by strides.
 */
static void parts_are_refused(void **state)
{
    open_device();
    const char *folder = qn_test_scratch();
    const qn_test_matrix t = {.dtype = QN_DTYPE_F32, .n_out = 64, .n_in = 64};
    qn_test_lying l = qn_test_lay_down(&t, folder);
    for (int i = 0; i < 10; i++) {
        qn_scope *s = qn_scope_new(mlx);
        qn_array *y = used(s, qn_test_import(s, &l, 2), i);
        assert_non_null(y);
        assert_int_equal(qn_eval(s, 1, &y), QN_E_UNSUPPORTED);
        if (!strstr(qn_last_error(), "of a weight")) fail_msg("%d: %s", i, qn_last_error());
        qn_scope_free(s);
    }
    qn_test_take_up(&l);
    qn_test_remove(folder);
}

static int close_device(void **state)
{
    qn_device_close(mlx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(told), cmocka_unit_test(refused_by_name),
                                       cmocka_unit_test(parts_are_refused)};
    return cmocka_run_group_tests_name("mlx_weights", tests, NULL, close_device);
}
