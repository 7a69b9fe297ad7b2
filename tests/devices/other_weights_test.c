/* Weights on another device: what it multiplies by is exactly what the files say, for every type and every way
 * that matrices lie in files, and products agree with the CPU's; memory that runs out. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "quant/types.h"
#include "tests/devices/other_compare.h"
#include "tests/devices/other_weights.h"
#include "tests/support/scratch.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { OUTPUTS = 6 };

static qn_device *cpu, *other;

static void name(const qn_test_matrix *t, char *out, size_t size)
{
    snprintf(out, size, "%s%s%s%s, %lld of [%lld, %lld], %lld rows, kind %d", qn_dtype_name(t->dtype),
             t->in_three ? " in three" : "", t->transposed ? " transposed" : "",
             t->step ? " among others" : "", (long long)t->parts, (long long)t->n_out, (long long)t->n_in,
             (long long)t->rows, t->kind);
}

/* Both, or the test ends here. */
static void open_devices(void)
{
    const char *name = qn_test_other()->name;
    if (!cpu) OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 2}, &cpu));
    if (!other) OK(qn_device_open(name, &(qn_device_options){.n_threads = 2}, &other));
}

/* ---- the numbers themselves --------------------------------------------------------------------------- */

/* What one multiply-add may differ by where a product is rounded before the sum. */
static double slack(const qn_test_matrix *t, const float *row)
{
    double most = 0;
    const qn_affine affine = qn_affine_of(t->dtype);
    const double share = t->dtype == QN_DTYPE_BF16                     ? qn_test_other()->row_loss
                         : affine.bits && affine.scale == QN_DTYPE_F32 ? 4e-7
                                                                       : 0;
    for (int64_t k = 0; share > 0 && k < t->n_in; k++)
        if (isfinite(row[k])) most = fmax(most, fabs((double)row[k]));
    return most * share;
}

static void check_numbers(const qn_test_matrix *t, const char *folder)
{
    char text[200];
    name(t, text, sizeof text);
    qn_test_lying l = qn_test_lay_down(t, folder);
    qn_scope *s = qn_scope_new(other);
    int32_t *ids = qn_alloc_array((size_t)t->n_out, sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < t->n_out; i++) ids[i] = (int32_t)(t->n_out - 1 - i);
    qn_array *rows = qn_take(s, qn_test_import(s, &l, 2), qn_from_data(s, QN_DTYPE_I32, 1, &t->n_out, ids));
    OK(qn_eval(s, 1, &rows));
    const float *got = qn_array_data(rows);
    for (int64_t i = 0; i < t->n_out; i++) {
        const float *want = l.numbers + (t->n_out - 1 - i) * t->n_in;
        const double allowed = slack(t, want);
        for (int64_t k = 0; k < t->n_in; k++, got++)
            if (*got != want[k] && !(isnan(*got) && isnan(want[k])) &&
                !(fabs((double)*got - (double)want[k]) <= allowed))
                fail_msg("%s: row %d, column %d is %.9g, not %.9g", text, (int)(t->n_out - 1 - i), (int)k,
                         (double)*got, (double)want[k]);
    }
    qn_free(ids);
    qn_scope_free(s);
    qn_test_take_up(&l);
}

static void numbers_are_the_files(void **state)
{
    open_devices();
    const char *folder = qn_test_scratch();
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
        const qn_type *type = qn_type_get((qn_dtype)d);
        if (!type->decode || d == QN_DTYPE_F64) continue;
        const int64_t block = type->block_elements < 32 ? 35 : type->block_elements;
        const int of_mlx = qn_affine_of((qn_dtype)d).bits != 0 || d == QN_DTYPE_MXFP4 || d == QN_DTYPE_NVFP4;
        for (int kind = 0; kind < QN_TEST_WEIGHTS_COUNT; kind++)
            for (int form = 0; form < 3 + of_mlx; form++) {
                qn_test_matrix t = {.dtype = (qn_dtype)d,
                                    .n_out = 5 + 14 * form,
                                    .n_in = block * (1 + form),
                                    .kind = (qn_test_weights)kind,
                                    .step = form == 1 ? 2 : 0,
                                    .transposed = form == 2 && type->block_elements == 1,
                                    .in_three = form == 3,
                                    .cold = form == 0};
                check_numbers(&t, folder);
                t.step = 3 * (t.in_three || t.transposed);
                if (t.step) check_numbers(&t, folder);
            }
    }
    qn_test_remove(folder);
}

/* ---- products ----------------------------------------------------------------------------------------- */

typedef struct {
    int n;
    int64_t elements[OUTPUTS];
    float *data[OUTPUTS];
} results;

static void keep(qn_scope *s, int n, qn_array **out, results *r)
{
    OK(qn_eval(s, n, out));
    r->n = n;
    for (int i = 0; i < n; i++) {
        r->elements[i] = qn_shape_elements(qn_array_shape(out[i]), NULL);
        r->data[i] = qn_alloc_array((size_t)r->elements[i] + 1, sizeof(float));
        assert_non_null(r->data[i]);
        memcpy(r->data[i], qn_array_data(out[i]), (size_t)r->elements[i] * sizeof(float));
    }
}

/* A matrix: forth, in three dimensions, back, and rows of it. */
static void of_matrix(qn_scope *s, const qn_test_matrix *t, qn_test_lying *l, results *r)
{
    qn_array *w = qn_test_import(s, l, 2), *back = NULL;
    qn_array *x = qn_test_random_array(s, 2, (int64_t[]){t->rows, t->n_in}, 1);
    qn_array *apart = qn_test_random_array(s, 3, (int64_t[]){t->rows, 3, t->n_in}, 2);
    qn_array *g = qn_test_random_array(s, 2, (int64_t[]){t->rows, t->n_out}, 3), *y = qn_linear(s, x, w);
    OK(qn_vjp(s, y, g, 1, &x, &back));
    int32_t ids[4] = {0, (int32_t)t->n_out - 1, (int32_t)t->n_out / 2, 0};
    qn_array *out[] = {y,
                       qn_linear(s, apart, w),
                       back,
                       qn_matmul(s, g, w),
                       qn_take(s, w, qn_from_data(s, QN_DTYPE_I32, 1, &(int64_t){4}, ids)),
                       qn_linear_exact(s, x, w)};
    keep(s, 6, out, r);
}

static void of_experts(qn_scope *s, const qn_test_matrix *t, qn_test_lying *l, results *r)
{
    qn_array *w = qn_test_import(s, l, 3),
             *scores = qn_test_random_array(s, 2, (int64_t[]){t->rows, t->parts}, 11);
    qn_array *ids = qn_top_k_rising(s, scores, (int)t->top);
    qn_array *x = qn_test_random_array(s, 2, (int64_t[]){t->rows, t->n_in}, 1);
    qn_array *each = qn_test_random_array(s, 3, (int64_t[]){t->rows, t->top, t->n_in}, 2);
    qn_array *share = qn_test_random_array(s, 2, (int64_t[]){t->rows, t->top}, 3);
    qn_array *bias = t->bias ? qn_test_random_array(s, 2, (int64_t[]){t->parts, t->n_out}, 4) : NULL;
    qn_array *out[] = {qn_experts(s, x, w, ids, bias), qn_experts(s, each, w, ids, bias),
                       qn_experts_sum(s, each, w, ids, share, bias), NULL, NULL};
    qn_array *g = qn_test_random_array(s, 3, (int64_t[]){t->rows, t->top, t->n_out}, 5);
    OK(qn_vjp(s, out[0], g, 1, &x, &out[3]));
    OK(qn_vjp(s, out[1], g, 1, &each, &out[4]));
    keep(s, 5, out, r);
}

static void check_products(const qn_test_matrix *t, const char *folder)
{
    char text[200];
    name(t, text, sizeof text);
    const double bound = qn_test_bound_of(QN_TEST_PRODUCT);
    results r[2];
    qn_test_lying l = qn_test_lay_down(t, folder);
    for (int i = 0; i < 2; i++) {
        qn_scope *s = qn_scope_new(i ? other : cpu);
        qn_scope_precision(s, QN_PRECISION_EXACT);
        if (t->parts)
            of_experts(s, t, &l, &r[i]);
        else
            of_matrix(s, t, &l, &r[i]);
        qn_scope_free(s);
    }
    for (int k = 0; k < r[0].n; k++) {
        double most = 0;
        for (int64_t i = 0; i < r[0].elements[k]; i++) most = fmax(most, fabs((double)r[0].data[k][i]));
        for (int64_t i = 0; i < r[0].elements[k]; i++)
            if (!(fabs((double)r[0].data[k][i] - (double)r[1].data[k][i]) <= bound * most))
                fail_msg("%s: product %d, element %d is %.9g, not %.9g", text, k, (int)i,
                         (double)r[1].data[k][i], (double)r[0].data[k][i]);
        for (int i = 0; i < 2; i++) qn_free(r[i].data[k]);
    }
    qn_test_take_up(&l);
}

static void products_agree(void **state)
{
    static const int64_t rows[] = {1, 3, 33, 0};
    open_devices();
    const char *folder = qn_test_scratch();
    for (int i = 0; qn_test_packed_types[i] != QN_DTYPE_COUNT; i++) {
        const qn_dtype d = qn_test_packed_types[i];
        const qn_type *type = qn_type_get(d);
        const int plain = type->block_elements == 1,
                  of_mlx = qn_affine_of(d).bits || d == QN_DTYPE_MXFP4 || d == QN_DTYPE_NVFP4;
        for (int k = 0; k < 3; k++) {
            qn_test_matrix t = {.dtype = d,
                                .n_out = k == 1 ? 1 : 37,
                                .n_in = plain ? (k == 1 ? 1 : 50) : 2 * type->block_elements,
                                .transposed = plain && k == 2,
                                .in_three = of_mlx && k > 0,
                                .rows = rows[k]};
            check_products(&t, folder);
            if (plain && k == 0) t.n_out = t.n_in; /* a square one says nothing by its shape */
            if (plain && k == 0) check_products(&t, folder);
            t = (qn_test_matrix){.dtype = d,
                                 .parts = k == 1 ? 1 : 9,
                                 .n_out = 21,
                                 .n_in = plain ? 20 : type->block_elements,
                                 .in_three = 0,
                                 .step = k == 2 && !of_mlx ? 2 : 0,
                                 .cold = k == 0,
                                 .rows = rows[k],
                                 .top = k == 1 ? 1 : 4,
                                 .bias = k != 1};
            check_products(&t, folder);
        }
    }
    qn_test_remove(folder);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* What is refused or fails leaves nothing behind. */
static void memory_runs_out(void **state)
{
    open_devices();
    const char *folder = qn_test_scratch();
    const qn_test_matrix kinds[] = {
        {.dtype = QN_DTYPE_F32, .n_out = 7, .n_in = 64},
        {.dtype = QN_DTYPE_Q6_K, .parts = 3, .n_out = 5, .n_in = 256},
        {.dtype = QN_DTYPE_Q4_1, .parts = 2, .n_out = 33, .n_in = 64},
        {.dtype = QN_DTYPE_AFFINE4_G64_BF16, .n_out = 9, .n_in = 128, .in_three = 1}};
    enum { N = sizeof kinds / sizeof *kinds };
    qn_test_lying l[N];
    qn_weight w[N];
    qn_buffer *out[N];
    qn_device *d;
    for (int i = 0; i < N; i++) {
        l[i] = qn_test_lay_down(&kinds[i], folder);
        w[i] = l[i].w;
        w[i].parts = l[i].parts;
    }
    OK(qn_device_open(qn_test_other()->name, &(qn_device_options){.n_threads = 2}, &d));
    qn_ledger_set_limit(d->ledger, 8 << 10);
    assert_int_equal(d->ops->import_weights(d, N, w, out), QN_E_NOMEM);
    assert_int_equal(qn_ledger_total(d->ledger), 0);
    qn_ledger_set_limit(d->ledger, 0);
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; status != QN_OK && n < 2000; n++) {
        qn_mem_fail_nth(n);
        status = d->ops->import_weights(d, N, w, out);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        for (int i = 0; status == QN_OK && i < N; i++) qn_buffer_release(out[i]);
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_int_equal(qn_ledger_total(d->ledger), 0);
    }
    assert_int_equal(status, QN_OK);
    qn_device_close(d);
    for (int i = 0; i < N; i++) qn_test_take_up(&l[i]);
    qn_test_remove(folder);
}

static int close_devices(void **state)
{
    qn_device_close(other);
    qn_device_close(cpu);
    other = cpu = NULL;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_the_files),
                                       cmocka_unit_test(products_agree), cmocka_unit_test(memory_runs_out)};
    return qn_test_run_others("weights", tests, sizeof tests / sizeof *tests, NULL, close_devices);
}
