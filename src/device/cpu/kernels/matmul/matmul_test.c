/* Packed weights and matmuls of every instruction set: against the fixtures and against float64.
 * tests/kernels/kernel_check_test.c compares every set with scalar, bit by bit. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/cpu/kernels/matmul/pack.h"
#include "quant/mlx.h"
#include "tests/kernels/kernel_help.h"
#include "tests/support/fixtures.h"

/* ---- helpers ----------------------------------------------------------------------------------------- */

static double relative_l2(const float *y, const double *expected, int64_t n)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += (y[i] - expected[i]) * (y[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    return sqrt(diff / (norm > 0 ? norm : 1));
}

/* What packed activations stand for. */
static void act_values(qn_act act, int64_t n_in, const uint8_t *packed_row, double *x)
{
    for (int64_t k = 0; k < n_in; k++) {
        const qn_act_i8 *a = (const qn_act_i8 *)(const void *)packed_row + k / QN_BLOCK;
        const qn_act_i8x2 *a2 = (const qn_act_i8x2 *)(const void *)packed_row + k / QN_BLOCK;
        if (act == QN_ACT_F32) {
            x[k] = ((const float *)(const void *)packed_row)[k];
        } else if (act == QN_ACT_BF16) {
            x[k] = qn_bf16_to_f32(((const uint16_t *)(const void *)packed_row)[k]);
        } else if (act == QN_ACT_I8) {
            x[k] = (double)a->scale * a->q[k % QN_BLOCK];
        } else {
            x[k] = (double)a2->scale * (128 * a2->hi[k % QN_BLOCK] + a2->lo[k % QN_BLOCK]);
        }
    }
}

static void reference(qn_dtype dtype, qn_act act, int64_t n_in, int64_t n_out, const uint8_t *rows,
                      const uint8_t *x, int64_t n_rows, double *y)
{
    size_t row_bytes;
    assert_true(qn_type_bytes(dtype, n_in, &row_bytes));
    float *w = qn_alloc_array((size_t)n_in, sizeof *w);
    double *xv = qn_alloc_array((size_t)n_in, sizeof *xv);
    for (int64_t r = 0; r < n_rows; r++) {
        act_values(act, n_in, x + (size_t)r * qn_act_row_bytes(act, n_in), xv);
        for (int64_t o = 0; o < n_out; o++) {
            double sum = 0;
            qn_type_get(dtype)->decode(qn_type_get(dtype), rows + (size_t)o * row_bytes, n_in, w);
            for (int64_t k = 0; k < n_in; k++) sum += w[k] * xv[k];
            y[r * n_out + o] = sum;
        }
    }
    qn_free(w);
    qn_free(xv);
}

/* fmax, without its loops that GCC 12 for Arm fails to compile ("internal compiler error"). */
static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---- tests without files ----------------------------------------------------------------------------- */

static void packing_is_small(void **state)
{
    for (const qn_dtype *t = qn_test_packed_types; *t != QN_DTYPE_COUNT; t++) {
        size_t row_bytes;
        assert_true(qn_type_bytes(*t, 2304, &row_bytes));
        size_t panel = qn_pack_panel_bytes(*t, 2304);
        assert_true(panel >= row_bytes * QN_PANEL && (double)panel <= 1.03 * (double)(row_bytes * QN_PANEL));
    }
    assert_int_equal(qn_pack_panel_bytes(QN_DTYPE_Q4_0, 33), 0);
    assert_int_equal(qn_pack_panel_bytes(QN_DTYPE_Q6_K, 32), 0);
    assert_int_equal(qn_pack_panel_bytes(QN_DTYPE_I32, 256), 0);
    assert_int_equal(qn_pack_panel_bytes(QN_DTYPE_F32, 0), 0);
}

/* Packed activations lie within half a step of what was packed. */
static void activations_are_near(void **state)
{
    enum { N = 992 };
    qn_test_dice d = {.seed = 3};
    for (int act = QN_ACT_I8; act <= QN_ACT_I8X2; act++) {
        for (int kind = 0; kind < QN_TEST_X_BAD; kind++) {
            const float *x = qn_test_activations(&d, (qn_test_x)kind, N, 1);
            double values[N];
            act_values((qn_act)act, N, qn_test_act_rows(qn_kernels_by_name("scalar"), (qn_act)act, N, 1, x),
                       values);
            for (int b = 0; b < N; b += 32) {
                double most = 0;
                for (int i = b; i < b + 32; i++) most = larger(most, fabs((double)x[i]));
                double step =
                    most < (double)QN_ACT_TINY ? 2.01 * most : most / (act == QN_ACT_I8 ? 127 : 127 * 128);
                for (int i = b; i < b + 32; i++) assert_true(fabs(values[i] - (double)x[i]) <= 0.5001 * step);
            }
            qn_test_guarded_end();
        }
    }
}

/* With ordinary weights, and with every code and activation at its end: nothing saturates or overflows. */
static void products_are_near(void **state)
{
    enum { N_ROWS = 13, N_OUT = 21 };
    qn_test_dice d = {.seed = 5};
    double expected[N_ROWS * N_OUT];
    for (int round = 0; round < 4; round++) {
        for (const qn_dtype *t = qn_test_packed_types; *t != QN_DTYPE_COUNT; t++) {
            int64_t n_in = qn_test_width(&d, *t);
            const uint8_t *rows =
                qn_test_rows(&d, round % 2 ? QN_TEST_EXTREME_CODES : QN_TEST_ORDINARY, *t, n_in, N_OUT);
            const float *x =
                qn_test_activations(&d, round % 2 ? QN_TEST_X_ENDS : QN_TEST_X_ORDINARY, n_in, N_ROWS);
            for (int act = 0; act < QN_ACT_COUNT; act++) {
                int integer = act == QN_ACT_I8 || act == QN_ACT_I8X2;
                /* Ends cancel: kernel_check has the bound of such a chain of floats. */
                if (!qn_test_has_act(*t, (qn_act)act) || (round % 2 && !integer)) continue;
                for (const char *const *set = qn_kernels_names(); *set; set++) {
                    const qn_kernels *k = qn_kernels_by_name(*set);
                    const uint8_t *panels = qn_test_panels(k, &d, *t, n_in, N_OUT, rows),
                                  *px = qn_test_act_rows(k, (qn_act)act, n_in, N_ROWS, x);
                    reference(*t, (qn_act)act, n_in, N_OUT, rows, px, N_ROWS, expected);
                    double error =
                        relative_l2(qn_test_product(k, &d, *t, (qn_act)act, n_in, N_OUT, panels, px, N_ROWS),
                                    expected, N_ROWS * N_OUT);
                    if (!(error <= 1e-5))
                        fail_msg("%s %s act %d, n_in %d: relative error %g", *set, qn_dtype_name(*t), act,
                                 (int)n_in, error);
                }
            }
            qn_test_guarded_end();
        }
    }
}

/* ---- fixtures ---------------------------------------------------------------------------------------- */

typedef struct {
    char *bytes;
    const char *data;
    json_t *header;
} fixture;

static void fixture_open(fixture *f, const char *folder, const char *name)
{
    char relative[64];
    snprintf(relative, sizeof relative, "quant/%s/%s.safetensors", folder, name);
    FILE *file = fopen(qn_test_need_fixture(relative), "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size > 8);
    rewind(file);
    f->bytes = qn_alloc((size_t)size);
    assert_int_equal(fread(f->bytes, 1, (size_t)size, file), size);
    fclose(file);
    uint64_t n;
    memcpy(&n, f->bytes, 8);
    f->header = json_loadb(f->bytes + 8, n, 0, NULL);
    assert_non_null(f->header);
    f->data = f->bytes + 8 + n;
}

static void *tensor(const fixture *f, const char *name, int64_t shape[2])
{
    json_t *t = json_object_get(f->header, name);
    if (!t) return NULL;
    for (int i = 0; i < 2; i++)
        shape[i] = json_integer_value(json_array_get(json_object_get(t, "shape"), (size_t)i));
    size_t begin = (size_t)json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
    size_t end = (size_t)json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 1));
    void *copy = qn_alloc(end - begin);
    memcpy(copy, f->data + begin, end - begin);
    return copy;
}

static void fixture_values(const fixture *f, const qn_kernels *k, qn_dtype dtype, const char *raw_name,
                           const char *expected_name)
{
    int64_t shape[2] = {0}, cols[2] = {0};
    uint8_t *raw = tensor(f, raw_name, shape);
    float *expected = tensor(f, expected_name, cols);
    if (!raw) return;
    const uint8_t *panels = qn_test_panels(k, NULL, dtype, cols[1], cols[0], raw);
    float *got = qn_alloc_array((size_t)cols[1], sizeof *got);
    for (int64_t r = 0; r < cols[0]; r++) {
        k->unpack_row(dtype, cols[1], panels, r, got);
        for (int64_t i = 0; i < cols[1]; i++) {
            float e = expected[r * cols[1] + i];
            if (isnan(e) ? !isnan(got[i]) : memcmp(&e, got + i, 4) != 0)
                fail_msg("%s %s: row %lld column %lld is %a, expected %a", qn_dtype_name(dtype), raw_name,
                         (long long)r, (long long)i, (double)got[i], (double)e);
        }
    }
    qn_free(raw);
    qn_free(expected);
    qn_free(got);
    qn_test_guarded_end();
}

static const double TOLERANCE[QN_ACT_COUNT] = {1e-5, 2e-2, 2e-2, 2e-4};

static void fixtures_agree(void **state)
{
    static const char *const NAMES[] = {"",     "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",
                                        "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"};
    for (int t = 1; t < (int)(sizeof NAMES / sizeof *NAMES); t++) {
        fixture f;
        qn_dtype dtype = qn_test_packed_types[t];
        fixture_open(&f, "gguf_blocks", NAMES[t]);
        for (const char *const *set = qn_kernels_names(); *set; set++) {
            const qn_kernels *k = qn_kernels_by_name(*set);
            fixture_values(&f, k, dtype, "raw", "expected");
            fixture_values(&f, k, dtype, "raw_random", "expected_random");
            fixture_values(&f, k, dtype, "raw_all", "expected_all");
            int64_t x_shape[2] = {0}, y_shape[2] = {0}, shape[2] = {0};
            float *x = tensor(&f, "x", x_shape), *y = tensor(&f, "y", y_shape);
            uint8_t *raw = tensor(&f, "raw", shape);
            const uint8_t *panels = qn_test_panels(k, NULL, dtype, x_shape[1], y_shape[1], raw);
            double expected[256];
            assert_true(y_shape[0] * y_shape[1] <= 256);
            for (int64_t i = 0; i < y_shape[0] * y_shape[1]; i++) expected[i] = y[i];
            for (int act = 0; act < QN_ACT_COUNT; act++) {
                if (!qn_test_has_act(dtype, (qn_act)act)) continue;
                const uint8_t *px = qn_test_act_rows(k, (qn_act)act, x_shape[1], x_shape[0], x);
                const float *got = qn_test_product(k, NULL, dtype, (qn_act)act, x_shape[1], y_shape[1],
                                                   panels, px, x_shape[0]);
                double error = relative_l2(got, expected, y_shape[0] * y_shape[1]);
                if (!(error <= TOLERANCE[act]))
                    fail_msg("%s %s act %d: relative error %g", *set, NAMES[t], act, error);
            }
            qn_free(x);
            qn_free(y);
            qn_free(raw);
            qn_test_guarded_end();
        }
        json_decref(f.header);
        qn_free(f.bytes);
    }
}

/* One file of mlx_blocks: joined, packed, unpacked and multiplied on every set. */
static void mlx_file(qn_dtype dtype, const char *name)
{
    fixture f;
    fixture_open(&f, "mlx_blocks", name);
    int64_t shape[2] = {0}, x_shape[2] = {0}, y_shape[2] = {0};
    void *weight = tensor(&f, "weight", shape), *scales = tensor(&f, "scales", shape),
         *biases = tensor(&f, "biases", shape);
    float *want = tensor(&f, "dequant_f32", shape), *x = tensor(&f, "x", x_shape),
          *y = tensor(&f, "y", y_shape);
    assert_non_null(want);
    int64_t n_out = shape[0], n_in = shape[1];
    size_t row_bytes;
    assert_true(qn_type_bytes(dtype, n_in, &row_bytes));
    uint8_t *rows = qn_alloc(row_bytes * (size_t)n_out);
    for (int64_t o = 0; o < n_out; o++)
        qn_mlx_join(dtype, n_in, weight, scales, biases, o, rows + (size_t)o * row_bytes);
    double *expected = qn_alloc_array((size_t)(y_shape[0] * y_shape[1]), sizeof *expected);
    for (int64_t i = 0; i < y_shape[0] * y_shape[1]; i++) expected[i] = y[i];
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        const uint8_t *panels = qn_test_panels(k, NULL, dtype, n_in, n_out, rows);
        float *got = qn_alloc_array((size_t)n_in, sizeof *got);
        for (int64_t o = 0; o < n_out; o++) {
            k->unpack_row(dtype, n_in, panels, o, got);
            /* Scale times code and bias may cancel, and the reference rounds once. */
            double most = 0;
            for (int64_t i = 0; i < n_in; i++) most = larger(most, fabs((double)want[o * n_in + i]));
            for (int64_t i = 0; i < n_in; i++) {
                double w = want[o * n_in + i];
                if (!(fabs(got[i] - w) <= 1e-6 * most))
                    fail_msg("%s %s: row %lld column %lld is %.9g, expected %.9g", *set, name, (long long)o,
                             (long long)i, (double)got[i], w);
            }
        }
        qn_free(got);
        for (int act = 0; act < QN_ACT_COUNT; act++) {
            if (!qn_test_has_act(dtype, (qn_act)act)) continue;
            const uint8_t *px = qn_test_act_rows(k, (qn_act)act, n_in, x_shape[0], x);
            double error =
                relative_l2(qn_test_product(k, NULL, dtype, (qn_act)act, n_in, n_out, panels, px, x_shape[0]),
                            expected, y_shape[0] * y_shape[1]);
            if (!(error <= TOLERANCE[act]))
                fail_msg("%s %s act %d: relative error %g", *set, name, act, error);
        }
        qn_test_guarded_end();
    }
    qn_free(weight);
    qn_free(scales);
    qn_free(biases);
    qn_free(want);
    qn_free(x);
    qn_free(y);
    qn_free(rows);
    qn_free(expected);
    json_decref(f.header);
    qn_free(f.bytes);
}

static void mlx_fixtures_agree(void **state)
{
    static const char *const SCALES[] = {"float16", "bfloat16", "float32"};
    for (int d = QN_DTYPE_AFFINE2_G32_F16; d <= QN_DTYPE_AFFINE8_G128_F32; d++) {
        char name[64];
        qn_affine a = qn_affine_of((qn_dtype)d);
        const char *scale = SCALES[(d - QN_DTYPE_AFFINE2_G32_F16) % 3];
        snprintf(name, sizeof name, "affine-b%d-g%d-%s", a.bits, a.group, scale);
        mlx_file((qn_dtype)d, name);
    }
    mlx_file(QN_DTYPE_MXFP4, "mxfp4-b4-g32-bfloat16");
    mlx_file(QN_DTYPE_MXFP4, "mxfp4-b4-g32-float32");
    mlx_file(QN_DTYPE_NVFP4, "nvfp4-b4-g16-bfloat16");
    mlx_file(QN_DTYPE_NVFP4, "nvfp4-b4-g16-float32");
}

/* ---- dispatch ---------------------------------------------------------------------------------------- */

static void the_environment_picks_a_set(void **state)
{
    char *kept = getenv("QUERN_CPU") ? qn_strdup(getenv("QUERN_CPU")) : NULL;
    const qn_kernels *k = NULL;
    setenv("QUERN_CPU", "scalar", 1);
    assert_int_equal(qn_kernels_get(&k), QN_OK);
    assert_string_equal(k->name, "scalar");
    setenv("QUERN_CPU", "mmx", 1);
    assert_int_equal(qn_kernels_get(&k), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "mmx"));
    assert_non_null(strstr(qn_last_error(), "scalar"));
    assert_string_equal(k->name, "scalar");
    assert_null(qn_kernels_by_name("mmx"));
    unsetenv("QUERN_CPU");
    assert_int_equal(qn_kernels_get(&k), QN_OK);
    const char *const *names = qn_kernels_names(), *best = NULL;
    for (; *names; names++) best = *names;
    assert_string_equal(k->name, best);
    if (kept) setenv("QUERN_CPU", kept, 1);
    qn_free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_is_small),   cmocka_unit_test(activations_are_near),
        cmocka_unit_test(products_are_near),  cmocka_unit_test(fixtures_agree),
        cmocka_unit_test(mlx_fixtures_agree), cmocka_unit_test(the_environment_picks_a_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
