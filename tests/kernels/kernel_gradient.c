#include "tests/kernels/kernel_gradient.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "quant/types.h"
#include "tests/kernels/kernel_compare.h"

enum { APART = 3 };

/* out, a and b end where they must: strides are part of what is not there behind the last row. */
void qn_test_gemm_f32(qn_test_dice *d)
{
    int64_t m = 1 + qn_test_roll(d, qn_test_roll(d, 4) ? 24 : 200),
            n = 1 + qn_test_roll(d, qn_test_roll(d, 3) ? 150 : 15), depth = qn_test_roll(d, 200),
            stride = n + qn_test_roll(d, 9);
    int ta = (int)qn_test_roll(d, 2), tb = (int)qn_test_roll(d, 2), accumulate = (int)qn_test_roll(d, 2);
    int64_t a_row = ta ? 1 : depth, a_col = ta ? m : 1, b_row = tb ? 1 : n, b_col = tb ? depth : 1;
    const float *a = qn_test_sealed(qn_test_random_floats(d, m * depth, -1, 1)),
                *b = qn_test_sealed(qn_test_random_floats(d, n * depth, -1, 1)),
                *start = qn_test_random_floats(d, m * stride, -1, 1);
    size_t bytes = (size_t)(m * stride - (stride - n)) * sizeof *a;
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        float *whole = qn_test_guarded(bytes, sizeof *whole), *parts = qn_test_guarded(bytes, sizeof *parts);
        memcpy(whole, start, bytes);
        memcpy(parts, start, bytes);
        qn_test_at("%s gemm_f32, %d x %d x %d, forms %d %d", k->name, (int)m, (int)n, (int)depth, ta, tb);
        k->gemm_f32(whole, stride, a, a_row, a_col, b, b_row, b_col, n, depth, 0, m, accumulate);
        for (int64_t r = 0; r < m; r++) {
            for (int64_t j = 0; j < (r + 1 < m ? stride : n); j++) {
                double sum = accumulate || j >= n ? start[r * stride + j] : 0, most = fabs(sum);
                for (int64_t p = 0; p < depth && j < n; p++) {
                    double t = (double)a[r * a_row + p * a_col] * b[p * b_row + j * b_col];
                    sum += t;
                    most += fabs(t);
                }
                qn_test_near_float(whole[r * stride + j], sum, (double)(depth + 1) * 0x1p-24 * most,
                                   r * stride + j);
            }
        }
        int64_t cut = qn_test_roll(d, m + 1);
        k->gemm_f32(parts, stride, a, a_row, a_col, b, b_row, b_col, n, depth, cut, m, accumulate);
        k->gemm_f32(parts, stride, a, a_row, a_col, b, b_row, b_col, n, depth, 0, cut, accumulate);
        qn_test_same_bytes(parts, whole, bytes);
    }
}

static uint16_t random_bf16(qn_test_dice *d)
{
    return qn_f32_to_bf16((float)qn_test_between(d, -1, 1));
}

/* out, a and b end where they must, and what lies between rows stays as it was. */
void qn_test_gemm_bf16(qn_test_dice *d)
{
    const int64_t m = 1 + qn_test_roll(d, 24), n = 1 + qn_test_roll(d, 150), depth = qn_test_roll(d, 300),
                  pairs = (depth + 1) / 2, stride = n + qn_test_roll(d, APART + 1),
                  a_row = 2 * pairs + 2 * qn_test_roll(d, APART + 1),
                  b_row = qn_test_roll(d, 3) ? n + qn_test_roll(d, APART + 1)
                          : n < 64           ? 64
                                             : n;
    const int accumulate = (int)qn_test_roll(d, 2);
    const size_t n_a = pairs ? (size_t)((m - 1) * a_row + 2 * pairs) : 0,
                 n_b = pairs ? (size_t)((pairs - 1) * b_row + n) : 0,
                 bytes = (size_t)((m - 1) * stride + n) * 4;
    uint16_t *a = qn_test_guarded(n_a * sizeof *a, sizeof(float));
    uint32_t *b = qn_test_guarded(n_b * sizeof *b, sizeof(float));
    for (size_t i = 0; i < n_a; i++) a[i] = (int64_t)i % a_row < depth ? random_bf16(d) : 0;
    for (size_t i = 0; i < n_b; i++) {
        b[i] = random_bf16(d);
        if (2 * ((int64_t)i / b_row) + 1 < depth) b[i] |= (uint32_t)random_bf16(d) << 16;
    }
    qn_test_sealed(a);
    qn_test_sealed(b);
    float *start = qn_test_guarded(bytes, sizeof *start);
    for (size_t i = 0; i < bytes / 4; i++) start[i] = (float)qn_test_between(d, -1, 1);
    const int64_t cut = qn_test_roll(d, m + 1);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        if (!k->gemm_bf16) continue;
        float *whole = memcpy(qn_test_guarded(bytes, sizeof *whole), start, bytes),
              *parts = memcpy(qn_test_guarded(bytes, sizeof *parts), start, bytes);
        qn_test_at("%s gemm_bf16, %d x %d x %d", k->name, (int)m, (int)n, (int)depth);
        k->gemm_bf16(whole, stride, a, a_row, b, b_row, n, depth, 0, m, accumulate);
        for (int64_t i = 0; i < m * stride - (stride - n); i++) {
            const int64_t r = i / stride, j = i % stride;
            double sum = accumulate || j >= n ? start[i] : 0, most = fabs(sum);
            for (int64_t p = 0; p < depth && j < n; p++) {
                const uint32_t pair = b[p / 2 * b_row + j];
                double t = (double)qn_bf16_to_f32(a[r * a_row + p]) *
                           (double)qn_bf16_to_f32((uint16_t)(p % 2 ? pair >> 16 : pair));
                sum += t;
                most += fabs(t);
            }
            qn_test_near_float(whole[i], sum, (double)(depth + 1) * 0x1p-23 * most, i);
        }
        k->gemm_bf16(parts, stride, a, a_row, b, b_row, n, depth, cut, m, accumulate);
        k->gemm_bf16(parts, stride, a, a_row, b, b_row, n, depth, 0, cut, accumulate);
        qn_test_same_bytes(parts, whole, bytes);
    }
}

static const float *random_panel(qn_test_dice *d, int64_t n)
{
    float *x = qn_test_guarded((size_t)(n * QN_PANEL) * sizeof *x, sizeof *x);
    for (int64_t i = 0; i < n * QN_PANEL; i++) x[i] = (float)qn_test_between(d, -1, 1);
    return qn_test_sealed(x);
}

void qn_test_panel_rows(qn_test_dice *d)
{
    const int64_t n = 1 + qn_test_roll(d, 80), stride = n + qn_test_roll(d, APART + 1);
    const size_t size = (size_t)((QN_PANEL - 1) * stride + n);
    const float *x = random_panel(d, n);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        float *got = qn_test_guarded(size * sizeof *got, sizeof *got),
              *expected = qn_test_guarded(size * sizeof *got, sizeof *got);
        qn_test_at("%s panel_rows, %d", k->name, (int)n);
        for (int64_t j = 0; j < n; j++)
            for (int i = 0; i < QN_PANEL; i++) expected[i * stride + j] = x[j * QN_PANEL + i];
        k->panel_rows(x, n, got, stride);
        qn_test_same_bytes(got, expected, size * sizeof *got);
    }
}

void qn_test_panel_pairs(qn_test_dice *d)
{
    const int64_t n = 1 + qn_test_roll(d, 80), stride = n + qn_test_roll(d, APART + 1);
    const size_t size = (size_t)((QN_PANEL / 2 - 1) * stride + n);
    const float *x = random_panel(d, n);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        if (!k->panel_pairs) continue;
        uint32_t *got = qn_test_guarded(size * sizeof *got, sizeof *got),
                 *expected = qn_test_guarded(size * sizeof *got, sizeof *got);
        qn_test_at("%s panel_pairs, %d", k->name, (int)n);
        for (int64_t j = 0; j < n; j++)
            for (int i = 0; i < QN_PANEL; i += 2)
                expected[i / 2 * stride + j] = qn_f32_to_bf16(x[j * QN_PANEL + i]) |
                                               (uint32_t)qn_f32_to_bf16(x[j * QN_PANEL + i + 1]) << 16;
        k->panel_pairs(x, n, got, stride);
        qn_test_same_bytes(got, expected, size * sizeof *got);
    }
}
