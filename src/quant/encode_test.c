/* Encoders: beside what real quantisers made of the same numbers, within the bounds that each form has on
 * numbers of every size, the same bytes wherever a block lies, and what cannot be held is told by its place.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include "quant/encode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "format/safetensors/safetensors.h"
#include "quant/mlx.h"
#include "tests/support/fixtures.h"

enum { N = 2048 };

static double normal(uint64_t seed, uint64_t i)
{
    const double u = qn_random_unit(seed, 2 * i), v = qn_random_unit(seed, 2 * i + 1);
    return sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
}

static double rms(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sqrt(sum / (double)n);
}

/* ---- beside real quantisers ---------------------------------------------------------------------------- */

/* least_same: part of the bytes that must be the reference quantiser's; most: the error beside its error. */
static void beside_fixture(const char *name, double least_same, double most)
{
    char file[64];
    snprintf(file, sizeof file, "quant/gguf_blocks/%s.safetensors", name);
    qn_safetensors *s;
    assert_int_equal(qn_safetensors_open(qn_test_need_fixture(file), &s), QN_OK);
    const qn_type *type =
        qn_type_from_ggml((uint32_t)strtoul(qn_safetensors_metadata(s, "ggml_type"), NULL, 10));
    const qn_tensor_view *raw = qn_safetensors_find(s, "raw"), *source = qn_safetensors_find(s, "source_f32");
    assert_non_null(source);
    const int64_t n = source->n_elements;
    float *x = qn_alloc_array((size_t)n, sizeof *x), *ours = qn_alloc_array((size_t)n, sizeof *x),
          *theirs = qn_alloc_array((size_t)n, sizeof *x);
    uint8_t *blocks = qn_alloc(raw->size_bytes + 1);
    memcpy(x, source->data, (size_t)n * sizeof *x);
    assert_int_equal(type->encode(type, x, n, blocks + 1), n);
    type->decode(type, blocks + 1, n, ours);
    type->decode(type, raw->data, n, theirs);
    size_t n_same = 0;
    for (size_t i = 0; i < raw->size_bytes; i++) n_same += blocks[1 + i] == ((const uint8_t *)raw->data)[i];
    const double same = (double)n_same / (double)raw->size_bytes, error = rms(x, ours, n),
                 reference = rms(x, theirs, n);
    printf("%s: error %.4g, the reference's %.4g; %.2f%% of the bytes are its\n", name, error, reference,
           100 * same);
    if (same < least_same || !(error <= most * reference + 1e-12)) fail_msg("%s", name);
    qn_free(x);
    qn_free(ours);
    qn_free(theirs);
    qn_free(blocks);
    qn_safetensors_close(s);
}

static void real_quantisers(void **state)
{
    beside_fixture("Q4_0", 0.999, 1.0001);
    beside_fixture("Q4_1", 0.999, 1.0001);
    beside_fixture("Q5_0", 0.999, 1.0001);
    beside_fixture("Q5_1", 0.999, 1.0001);
    beside_fixture("Q8_0", 0.999, 1.0001);
    beside_fixture("F16", 1, 1);
    beside_fixture("BF16", 1, 1);
    beside_fixture("Q4_K", 0, 1);
    beside_fixture("Q5_K", 0, 1);
    beside_fixture("Q6_K", 0, 1);
    beside_fixture("MXFP4", 0, 1);
}

/* ---- bounds -------------------------------------------------------------------------------------------- */

/* The largest error of a block as part of its range, low to high with zero. */
typedef struct {
    qn_dtype dtype;
    double bound;
} bounded;

/* A code is half a step off at most; Q4_0 and the like have one step less on one side; the K types' own
 * scales are rounded too; E2M1 has steps of a third of its range at the end. */
static const bounded types[] = {
    {QN_DTYPE_Q4_0, 0.07},  {QN_DTYPE_Q4_1, 0.035}, {QN_DTYPE_Q5_0, 0.035}, {QN_DTYPE_Q5_1, 0.018},
    {QN_DTYPE_Q8_0, 0.005}, {QN_DTYPE_Q4_K, 0.15},  {QN_DTYPE_Q5_K, 0.12},  {QN_DTYPE_Q6_K, 0.06},
    {QN_DTYPE_MXFP4, 0.26}, {QN_DTYPE_NVFP4, 0.26}, {QN_DTYPE_F16, 0.0005}, {QN_DTYPE_BF16, 0.004},
    {QN_DTYPE_F32, 0},
};

/* A bound of blocks is checked over what shares scales. */
static void check_bound(const bounded *t, const float *x, const char *what, double slack)
{
    const qn_type *type = qn_type_get(t->dtype);
    const int64_t n = type->block_elements > 1 ? type->block_elements : 32;
    static uint8_t blocks[8 * N + 1];
    static float y[N];
    /* NVFP4 ends at 6 * 448. */
    if (t->dtype == QN_DTYPE_NVFP4 && strcmp(what, "large") == 0) return;
    assert_int_equal(type->encode(type, x, N, blocks + 1), N);
    type->decode(type, blocks + 1, N, y);
    for (int64_t i = 0; i < N; i += n) {
        double low = 0, high = 0;
        for (int64_t j = i; j < i + n; j++) {
            low = fmin(low, (double)x[j]);
            high = fmax(high, (double)x[j]);
        }
        for (int64_t j = i; j < i + n; j++)
            if (!(fabs((double)x[j] - (double)y[j]) <= t->bound * (high - low) + slack))
                fail_msg("%s, %s: %g became %g in a block from %g to %g", type->name, what, (double)x[j],
                         (double)y[j], low, high);
    }
}

static void affine_bounds(const float *x, const char *what, double slack)
{
    for (int d = QN_DTYPE_AFFINE2_G32_F16; d <= QN_DTYPE_AFFINE8_G128_F32; d++) {
        const qn_affine a = qn_affine_of((qn_dtype)d);
        const double scale_error = a.scale == QN_DTYPE_F32 ? 0 : a.scale == QN_DTYPE_F16 ? 0.001 : 0.008;
        const bounded t = {(qn_dtype)d, 1.05 / ((1 << a.bits) - 1) + scale_error};
        check_bound(&t, x, what, slack);
    }
}

static void bounds(void **state)
{
    static float x[N];
    for (int k = 0; k < 6; k++) {
        static const char *const names[] = {"normal",       "uniform", "one sign",
                                            "far outliers", "small",   "large"};
        for (int i = 0; i < N; i++) {
            const double z = normal((uint64_t)k, (uint64_t)i);
            const double v[] = {z,           2 * qn_random_unit(9, (uint64_t)i) - 1,
                                fabs(z) + 1, i % 37 ? z : 30 * z,
                                1e-3 * z,    1000 * z};
            x[i] = (float)v[k];
        }
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) check_bound(&types[t], x, names[k], 1e-6);
        affine_bounds(x, names[k], 1e-6);
    }
    /* Zeros, constants, and what no f16 can scale. */
    static const float constants[] = {0, -0.0f, 1, -1, 1e-30f, -1e-42f, 0.333f};
    for (size_t k = 0; k < sizeof constants / sizeof *constants; k++) {
        for (int i = 0; i < N; i++) x[i] = constants[k];
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) check_bound(&types[t], x, "constant", 1e-6);
        affine_bounds(x, "constant", 1e-6);
    }
}

/* ---- the same bytes ------------------------------------------------------------------------------------ */

static void same_bytes(void **state)
{
    static float x[N];
    static uint8_t once[8 * N], again[8 * N + 1];
    for (int i = 0; i < N; i++) x[i] = (float)normal(3, (uint64_t)i);
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
        const qn_type *type = qn_type_get((qn_dtype)d);
        const int64_t n = type->block_elements;
        size_t size;
        if (!type->encode) continue;
        assert_non_null(type->decode);
        assert_true(qn_type_bytes(type->dtype, N, &size));
        assert_int_equal(type->encode(type, x, N, once), N);
        for (int64_t i = N / n - 1; i >= 0; i--)
            assert_int_equal(type->encode(type, x + i * n, n, again + 1 + (size_t)i * type->block_bytes), n);
        assert_memory_equal(once, again + 1, size);
    }
}

/* Blocks taken apart into the tensors that MLX has, and joined again. */
static void apart_and_joined(void **state)
{
    enum { COLS = 256, ROWS = N / COLS };
    static float x[N];
    static uint8_t blocks[8 * N], again[8 * COLS], weight[4 * N], scales[N], biases[N];
    for (int i = 0; i < N; i++) x[i] = (float)normal(6, (uint64_t)i);
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
        const qn_type *type = qn_type_get((qn_dtype)d);
        size_t row;
        if (!qn_affine_of((qn_dtype)d).bits && d != QN_DTYPE_MXFP4 && d != QN_DTYPE_NVFP4) continue;
        assert_true(qn_type_bytes(type->dtype, COLS, &row));
        assert_int_equal(type->encode(type, x, N, blocks), N);
        for (int i = 0; i < ROWS; i++)
            qn_mlx_split(type->dtype, COLS, blocks + (size_t)i * row, i, weight, scales, biases);
        for (int i = 0; i < ROWS; i++) {
            qn_mlx_join(type->dtype, COLS, weight, scales, biases, i, again);
            assert_memory_equal(again, blocks + (size_t)i * row, row);
        }
    }
}

/* ---- what cannot be held ------------------------------------------------------------------------------- */

static void is_told(void **state)
{
    static float x[N];
    static uint8_t blocks[8 * N];
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
        const qn_type *type = qn_type_get((qn_dtype)d);
        if (!type->encode) continue;
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            const int64_t at = 3 * type->block_elements + 5;
            for (int i = 0; i < N; i++) x[i] = (float)normal(4, (uint64_t)i);
            x[at % N] = bad[k];
            const int64_t got = type->encode(type, x, N, blocks);
            const int is_finite = k > 2, is_block = type->block_elements > 1;
            const qn_affine affine = qn_affine_of(type->dtype);
            const int is_wide = affine.bits ? affine.scale != QN_DTYPE_F16
                                            : type->dtype == QN_DTYPE_F32 || type->dtype == QN_DTYPE_BF16 ||
                                                  type->dtype == QN_DTYPE_MXFP4;
            const int holds = is_finite ? is_wide : !is_block;
            if (got != (holds ? N : at % N))
                fail_msg("%s: %g at %d: %d", type->name, (double)bad[k], (int)(at % N), (int)got);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(real_quantisers), cmocka_unit_test(bounds),
                                       cmocka_unit_test(same_bytes), cmocka_unit_test(apart_and_joined),
                                       cmocka_unit_test(is_told)};
    return cmocka_run_group_tests_name("encode", tests, NULL, NULL);
}
