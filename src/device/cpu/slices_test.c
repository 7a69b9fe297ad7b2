/* Products by packed weights that are not transposed: against sums in double, f32's own in an exact program,
 * and the same bits whatever rows stand beside a row and however many workers there are. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"
#include "device/cpu/kernels/kernels.h"
#include "tests/support/models/packed_weight.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { ROWS = 61, N_MAX = 300, K_MAX = 512 };

typedef struct {
    qn_dtype dtype;
    int64_t n, k;
} weight;

/* One panel, parts of panels and slices, parts of blocks and chunks of columns. */
static const weight weights[] = {
    {QN_DTYPE_Q4_1, 300, 320},  {QN_DTYPE_Q8_0, 129, 64},  {QN_DTYPE_Q4_0, 16, 32}, {QN_DTYPE_Q4_K, 150, 512},
    {QN_DTYPE_Q6_K, 200, 256},  {QN_DTYPE_BF16, 131, 75},  {QN_DTYPE_F16, 7, 301},  {QN_DTYPE_F32, 257, 33},
    {QN_DTYPE_MXFP4, 128, 288}, {QN_DTYPE_NVFP4, 130, 96}, {QN_DTYPE_Q5_0, 1, 96}};
enum { N_WEIGHTS = sizeof weights / sizeof *weights };

static float x[ROWS * N_MAX], numbers[N_MAX * K_MAX];

static void product(const weight *w, qn_precision precision, int n_threads, int64_t rows, float *out)
{
    qn_device *d;
    qn_program *p;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &d));
    qn_scope *s = qn_scope_new(d);
    qn_buffer *b = qn_test_packed_weight(d, w->dtype, w->n, w->k, numbers);
    qn_array *in = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &w->n));
    qn_array *y = qn_matmul(s, in, qn_from_buffer(s, w->dtype, qn_shape_make(2, (int64_t[]){w->n, w->k}), b));
    OK(qn_program_new(s, &(qn_program_options){.name = "back", .max = {{ROWS, 0, 0}}, .precision = precision},
                      1, &y, &p));
    memcpy(qn_program_input(p, 0), x, (size_t)(rows * w->n) * sizeof *x);
    OK(qn_program_run(p, &(qn_sizes){{rows, 0, 0}}));
    memcpy(out, qn_program_output(p, 0), (size_t)(rows * w->k) * sizeof *out);
    qn_program_free(p);
    qn_scope_free(s);
    qn_buffer_release(b);
    qn_device_close(d);
}

/* rounded: operands may be bf16, which is off by 2^-8 at most. */
static void compare(const weight *w, const float *out, int rounded)
{
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t j = 0; j < w->k; j++) {
            double sum = 0, most = 0, got = out[r * w->k + j];
            for (int64_t i = 0; i < w->n; i++) {
                double t = (double)x[r * w->n + i] * numbers[i * w->k + j];
                sum += t;
                most += fabs(t);
            }
            double bound = most * (rounded ? 0x1.02p-7 : (double)(w->n + 1) * 0x1p-24);
            if (!(fabs(got - sum) <= bound))
                fail_msg("%s [%lld, %lld]: row %lld, column %lld is %g, not %g", qn_dtype_name(w->dtype),
                         (long long)w->n, (long long)w->k, (long long)r, (long long)j, got, sum);
        }
}

static void in_every_precision(void **state)
{
    static const qn_precision precisions[] = {QN_PRECISION_EXACT, QN_PRECISION_HIGH, QN_PRECISION_FAST};
    float *out = qn_alloc(3 * ROWS * K_MAX * sizeof *out), *again = out + ROWS * K_MAX;
    assert_non_null(out);
    for (int i = 0; i < N_WEIGHTS; i++)
        for (int p = 0; p < 3; p++) {
            const weight *w = &weights[i];
            const size_t row = (size_t)w->k * sizeof *out;
            product(w, precisions[p], 1, ROWS, out);
            compare(w, out, precisions[p] != QN_PRECISION_EXACT);
            product(w, precisions[p], 3, ROWS, again);
            assert_memory_equal(out, again, ROWS * row);
            product(w, precisions[p], 2, 5, again);
            assert_memory_equal(out, again, 5 * row);
        }
    qn_free(out);
}

static int setup(void **state)
{
    for (int64_t i = 0; i < ROWS * N_MAX; i++) x[i] = (float)qn_random_unit(3, (uint64_t)i) - 0.5f;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_every_precision)};
    return cmocka_run_group_tests_name("slices", tests, setup, NULL);
}
