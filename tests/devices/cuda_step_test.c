/* A run is launched step by step the first time on the device cuda. From the second time on one of up to 8 rows is one
 * kernel that stays on the card (device/cuda/step/step.cu), and one of more rows a graph. All give the same bits: for every
 * form of weights, with what is joined to products (norms, sums, gates) and without. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>

#include "array/array.h"
#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"
#include "device/device.h"
#include "tests/devices/other_compare.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/packed_weight.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static const int64_t row_counts[] = {1, 2, 5, 8, 9};
enum { N_ROW_COUNTS = sizeof row_counts / sizeof *row_counts, MOST_ROWS = 9, RUNS = 3 };

/* What a model's layer is made of, cut down: rows are normed and go through two or three matrices of one shape, a
 * gate, a matrix back, and a sum. */
typedef struct {
    qn_dtype dtype, other; /* of the weights; of one of them */
    int64_t width, hidden;
    int has_norm, is_gated;
} layer;

static qn_array *times(qn_scope *s, qn_dtype dtype, qn_array *x, int64_t n_out, int64_t n_in)
{
    qn_buffer *b = qn_test_packed_weight(qn_scope_device(s), dtype, n_out, n_in, NULL);
    qn_array *w = qn_from_buffer(s, dtype, qn_shape_make(2, (int64_t[]){n_out, n_in}), b);
    qn_buffer_release(b);
    return qn_matmul(s, x, qn_transpose(s, w));
}

static qn_array *build(qn_scope *s, const layer *l, qn_array *x, const float *factors)
{
    qn_array *y = x, *w = qn_from_data(s, QN_DTYPE_F32, 1, &l->width, factors);
    if (l->has_norm) y = qn_rms_norm(s, x, w, 1e-5f, 0);
    qn_array *gate = times(s, l->dtype, y, l->hidden, l->width),
             *up = times(s, l->other, y, l->hidden, l->width);
    qn_array *both = l->is_gated ? qn_mul(s, qn_silu(s, gate), up) : qn_add(s, gate, up);
    return qn_add(s, times(s, l->dtype, both, l->width, l->hidden), x);
}

static void fill(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)qn_random_unit(seed, (uint64_t)i) - 0.5f;
}

static void compare(qn_device *d, const layer *l)
{
    const int64_t n = MOST_ROWS * l->width;
    float *x = qn_alloc_array((size_t)n, sizeof *x), *first = qn_alloc_array((size_t)n, sizeof *first),
          *factors = qn_alloc_array((size_t)l->width, sizeof *factors);
    assert_true(x && first && factors);
    fill(x, n, 5);
    fill(factors, l->width, 6);
    qn_scope *s = qn_scope_new(d);
    qn_array *in = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &l->width)),
             *out = build(s, l, in, factors);
    qn_program *p;
    OK(qn_program_new(
        s, &(qn_program_options){.name = "layer", .max = {{MOST_ROWS, 0, 0}}, .precision = QN_PRECISION_HIGH},
        1, &out, &p));
    for (int i = 0; i < N_ROW_COUNTS; i++)
        for (int run = 0; run < RUNS; run++) {
            const int64_t rows = row_counts[i];
            const size_t bytes = (size_t)(rows * l->width) * sizeof *x;
            memcpy(qn_program_input(p, 0), x, bytes);
            OK(qn_program_run(p, &(qn_sizes){{rows, 0, 0}}));
            const float *got = qn_program_output(p, 0);
            assert_non_null(got);
            if (rows == 1 && !run) memcpy(first, got, bytes);
            if (memcmp(first, got, (size_t)l->width * sizeof *x) != 0)
                fail_msg("%s, %s: %lld of %lld columns, norm %d, gate %d, %d rows, run %d: other bits",
                         qn_dtype_name(l->dtype), qn_dtype_name(l->other), (long long)l->hidden,
                         (long long)l->width, l->has_norm, l->is_gated, (int)rows, run);
        }
    qn_program_free(p);
    qn_scope_free(s);
    qn_free(x);
    qn_free(first);
    qn_free(factors);
}

static void launched_or_played(void **state)
{
    static const qn_dtype types[] = {QN_DTYPE_BF16, QN_DTYPE_F16,  QN_DTYPE_Q4_0,  QN_DTYPE_Q4_1,
                                     QN_DTYPE_Q5_0, QN_DTYPE_Q5_1, QN_DTYPE_Q8_0,  QN_DTYPE_Q4_K,
                                     QN_DTYPE_Q5_K, QN_DTYPE_Q6_K, QN_DTYPE_MXFP4, QN_DTYPE_NVFP4};
    const char *name = qn_test_other()->name;
    if (strcmp(name, "cuda") != 0) qn_test_leave_out("the device that opens here is not cuda");
    qn_device *d = NULL;
    OK(qn_device_open(name, &(qn_device_options){.n_threads = 1}, &d));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        layer l = {types[i], types[i], 768, 512, 1, 1};
        compare(d, &l);
        l = (layer){types[i], QN_DTYPE_Q8_0, 1280, 256, 1, 0};
        compare(d, &l);
        l = (layer){QN_DTYPE_Q4_0, types[i], 256, 2304, 0, 1};
        compare(d, &l);
    }
    for (int i = 0; i < 4; i++) { /* matrices that end inside a panel */
        const layer l = {i & 1 ? QN_DTYPE_Q8_0 : QN_DTYPE_BF16, QN_DTYPE_Q4_1, 1056, 608, i & 1, i / 2};
        compare(d, &l);
    }
    qn_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(launched_or_played)};
    return qn_test_run_others("steps", tests, 1, NULL, NULL);
}
