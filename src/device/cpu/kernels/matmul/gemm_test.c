/* Every set's product of f32 matrices: against double in all forms of storage, rows together and one by one.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "tests/kernels/kernel_help.h"

static void test_gemm(void **unused)
{
    static const int64_t shapes[][3] = {{1, 1, 1},     {2, 17, 3},   {8, 64, 64},  {9, 65, 130},
                                        {1, 100, 257}, {5, 16, 128}, {13, 31, 40}, {33, 48, 129},
                                        {16, 128, 20}, {3, 200, 0},  {40, 33, 300}};
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
            int64_t m = shapes[shape][0], n = shapes[shape][1], depth = shapes[shape][2], stride = n + 3;
            float *a = qn_alloc_array((size_t)(m * depth + 1), sizeof *a),
                  *b = qn_alloc_array((size_t)(n * depth + 1), sizeof *b);
            float *start = qn_alloc_array((size_t)(m * stride), sizeof *a),
                  *out = qn_alloc_array((size_t)(m * stride), sizeof *a);
            float *first = qn_alloc_array((size_t)(m * stride), sizeof *a);
            assert_true(a && b && start && out && first);
            for (int form = 0; form < 8; form++) {
                int ta = form & 1, tb = form & 2, accumulate = form & 4;
                qn_test_dice dice = {.seed = 9};
                /* The same matrices in every form, stored by rows or by columns. */
                for (int64_t i = 0; i < m; i++) {
                    for (int64_t p = 0; p < depth; p++)
                        a[ta ? p * m + i : i * depth + p] = (float)qn_test_between(&dice, -1, 1);
                }
                for (int64_t p = 0; p < depth; p++) {
                    for (int64_t j = 0; j < n; j++)
                        b[tb ? j * depth + p : p * n + j] = (float)qn_test_between(&dice, -1, 1);
                }
                for (int64_t i = 0; i < m * stride; i++)
                    out[i] = start[i] = (float)qn_test_between(&dice, -1, 1);
                int64_t a_row = ta ? 1 : depth, a_col = ta ? m : 1, b_row = tb ? 1 : n,
                        b_col = tb ? depth : 1;
                k->gemm_f32(out, stride, a, a_row, a_col, b, b_row, b_col, n, depth, 0, m, accumulate);
                for (int64_t i = 0; i < m; i++) {
                    for (int64_t j = 0; j < stride; j++) {
                        double truth = accumulate || j >= n ? start[i * stride + j] : 0;
                        for (int64_t p = 0; p < depth && j < n; p++) {
                            truth += (double)a[i * a_row + p * a_col] * b[p * b_row + j * b_col];
                        }
                        assert_true(fabs(out[i * stride + j] - truth) <= 1e-6 * (double)(depth + 1));
                    }
                }
                if (form == 0 || form == 4) memcpy(first, out, (size_t)(m * stride) * sizeof *out);
                assert_memory_equal(first, out, (size_t)(m * stride) * sizeof *out);
                /* Rows one by one. */
                memcpy(out, start, (size_t)(m * stride) * sizeof *out);
                for (int64_t i = 0; i < m; i++) {
                    k->gemm_f32(out, stride, a, a_row, a_col, b, b_row, b_col, n, depth, i, i + 1,
                                accumulate);
                }
                assert_memory_equal(first, out, (size_t)(m * stride) * sizeof *out);
            }
            qn_free(a);
            qn_free(b);
            qn_free(start);
            qn_free(out);
            qn_free(first);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gemm)};
    return cmocka_run_group_tests_name("kernels/gemm", tests, NULL, NULL);
}
