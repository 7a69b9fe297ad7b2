/* Products of bf16 matrices: any strides, odd depths, batches, against sums in double, the same bits on any
 * number of threads, rounded once. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <string.h>

#include "array/array.h"
#include "base/random.h"
#include "device/cpu/kernels/kernels.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { MOST = 1 << 18, DIMS = 4 };

/* As it is, both last dimensions swapped, or every other element of rows twice as long. */
typedef struct {
    int n;
    int64_t a[DIMS], b[DIMS];
    int b_dims, a_view, b_view;
} product;

static const product products[] = {
    {2, {1, 1}, {1, 1}, 2, 0, 0},
    {2, {5, 7}, {7, 3}, 2, 0, 0},
    {2, {6, 8}, {8, 66}, 2, 0, 1},
    {2, {13, 33}, {33, 20}, 2, 1, 0},
    {2, {3, 64}, {64, 17}, 2, 1, 1},
    {3, {2, 4, 9}, {9, 5}, 2, 0, 1},
    {3, {3, 5, 6}, {3, 6, 7}, 3, 0, 0},
    {3, {3, 5, 6}, {3, 6, 7}, 3, 1, 1},
    {4, {2, 3, 4, 5}, {2, 3, 5, 6}, 4, 0, 1},
    {2, {40, 130}, {130, 16}, 2, 0, 0},
    {2, {15, 4001}, {4001, 64}, 2, 0, 0}, /* deeper than what a kernel takes at once */
};

static float number(uint64_t seed, int64_t i)
{
    float x = (float)(2 * qn_random_unit(seed, (uint64_t)i) - 1);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffff0000; /* bf16 holds it */
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* An array of these dimensions whose element i, in row-major order, is number(seed, i). */
static qn_array *matrix(qn_scope *s, uint64_t seed, int n, const int64_t *dims, int turned)
{
    static float x[MOST];
    int64_t total = 1, own[DIMS];
    for (int d = 0; d < n; d++) total *= own[d] = dims[d];
    const int64_t rows = dims[n - 2], columns = dims[n - 1];
    assert_in_range(total, 1, MOST);
    for (int64_t i = 0; i < total; i++) {
        const int64_t matrix = i / (rows * columns), r = i / columns % rows, c = i % columns;
        x[turned ? matrix * rows * columns + c * rows + r : i] = number(seed, i);
    }
    if (turned) {
        own[n - 2] = columns;
        own[n - 1] = rows;
    }
    qn_array *a = qn_astype(s, qn_from_data(s, QN_DTYPE_F32, n, own, x), QN_DTYPE_BF16);
    OK(qn_eval(s, 1, &a));
    return turned ? qn_transpose(s, a) : a;
}

static void agree_with_double(void **state)
{
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const product *p = &products[i];
        const int64_t m = p->a[p->n - 2], k = p->a[p->n - 1], n = p->b[p->b_dims - 1];
        int64_t batches = 1;
        static float first[MOST], got[MOST];
        for (int d = 0; d < p->n - 2; d++) batches *= p->a[d];
        for (int threads = 1; threads <= 3; threads++) {
            qn_scope *s;
            OK(qn_scope_open(threads, 0, &s));
            qn_array *a = matrix(s, 1, p->n, p->a, p->a_view), *b = matrix(s, 2, p->b_dims, p->b, p->b_view);
            qn_array *y = qn_matmul(s, a, b);
            assert_int_equal(qn_array_dtype(y), QN_DTYPE_BF16);
            OK(qn_array_read(s, y, QN_DTYPE_F32, got, batches * m * n));
            if (threads == 1) memcpy(first, got, sizeof got);
            assert_memory_equal(got, first, (size_t)(batches * m * n) * sizeof *got);
            qn_scope_close(s);
        }
        for (int64_t e = 0; e < batches * m * n; e++) {
            const int64_t batch = e / (m * n), r = e / n % m, c = e % n;
            double sum = 0, parts = 0;
            for (int64_t j = 0; j < k; j++) {
                const double part = (double)number(1, (batch * m + r) * k + j) *
                                    number(2, ((p->b_dims > 2 ? batch : 0) * k + j) * n + c);
                sum += part;
                parts += fabs(part);
            }
            if (!(fabs(got[e] - sum) <= fabs(sum) * 0x1p-8 + parts * 1e-5))
                fail_msg("product %d: element %d is %g, not %g", (int)i, (int)e, (double)got[e], sum);
        }
    }
}

/* Where one of them is f32 the product is, and takes the other one's numbers as they are. */
static void beside_f32(void **state)
{
    qn_scope *s;
    const int64_t dims[2] = {3, 3};
    float got[9];
    OK(qn_scope_open(1, 0, &s));
    qn_array *a = matrix(s, 1, 2, dims, 0), *one = qn_eye(s, QN_DTYPE_F32, 3, 3, 0),
             *y = qn_matmul(s, a, one);
    assert_int_equal(qn_array_dtype(y), QN_DTYPE_F32);
    OK(qn_array_read(s, y, QN_DTYPE_F32, got, 9));
    for (int i = 0; i < 9; i++) assert_true(got[i] == number(1, i));
    qn_scope_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agree_with_double), cmocka_unit_test(beside_f32)};
    return cmocka_run_group_tests_name("matmul_bf16", tests, NULL, NULL);
}
