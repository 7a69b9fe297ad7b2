/* Packed weights and matmuls of every instruction set: against the fixtures, against float64, against scalar
 * bit by bit. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "kernels/pack.h"
#include "quant/mlx.h"
#include "tests/fixtures.h"

static const qn_dtype DTYPES[] = {
    QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_Q4_0, QN_DTYPE_Q4_1, QN_DTYPE_Q5_0, QN_DTYPE_Q5_1,
    QN_DTYPE_Q8_0, QN_DTYPE_Q4_K, QN_DTYPE_Q5_K, QN_DTYPE_Q6_K, QN_DTYPE_MXFP4,
    /* each number of bits, group and type of scales at least once */
    QN_DTYPE_AFFINE2_G64_BF16, QN_DTYPE_AFFINE3_G32_F16, QN_DTYPE_AFFINE4_G128_F32, QN_DTYPE_AFFINE4_G64_BF16,
    QN_DTYPE_AFFINE5_G64_F32, QN_DTYPE_AFFINE6_G128_BF16, QN_DTYPE_AFFINE8_G32_F32, QN_DTYPE_AFFINE8_G64_F16};
enum { N_DTYPES = sizeof DTYPES / sizeof DTYPES[0] };

/* ---- helpers ----------------------------------------------------------------------------------------- */

static int has_act(qn_dtype dtype, qn_act act)
{
    if (act == QN_ACT_I8 && qn_layout_scale(dtype) != QN_SCALE_NONE) return 1;
    for (int p = 0; p < 3; p++)
        if (qn_matmul_act(dtype, (qn_precision)p) == act) return 1;
    return 0;
}

/* Offsets of the f16 fields of a block, -1 ends. */
static void scale_fields(qn_dtype dtype, int at[3])
{
    qn_scale_kind kind = qn_layout_scale(dtype);
    at[0] = kind == QN_SCALE_NONE || kind == QN_SCALE_GROUP || dtype == QN_DTYPE_MXFP4 ? -1
            : kind == QN_SCALE_SUB                                                     ? 208
                                                                                       : 0;
    at[1] = kind == QN_SCALE_MIN || kind == QN_SCALE_K ? 2 : -1;
    at[2] = -1;
}

/* Scale or bias (which: 0, 1) of an affine block. */
static void set_affine(qn_dtype dtype, uint8_t *block, int which, float v)
{
    qn_dtype scale = qn_affine_of(dtype).scale;
    uint16_t h = scale == QN_DTYPE_F16 ? qn_f32_to_f16(v) : qn_f32_to_bf16(v);
    if (scale == QN_DTYPE_F32) {
        memcpy(block + 4 * which, &v, 4);
    } else {
        memcpy(block + 2 * which, &h, 2);
    }
}

/* Rows of random blocks with scales of both signs. */
static uint8_t *random_rows(qn_dtype dtype, int64_t n_in, int64_t n_out, uint64_t seed)
{
    size_t row_bytes;
    assert_true(qn_type_bytes(dtype, n_in, &row_bytes));
    uint8_t *rows = qn_alloc(row_bytes * (size_t)n_out);
    const qn_type *type = qn_type_get(dtype);
    for (size_t i = 0; i < row_bytes * (size_t)n_out; i++) rows[i] = (uint8_t)qn_random_bits(seed, i);
    if (type->block_elements == 1) {
        for (int64_t i = 0; i < n_in * n_out; i++) {
            float w = (float)(2 * qn_random_unit(seed, (uint64_t)i) - 1);
            uint16_t h = dtype == QN_DTYPE_F16 ? qn_f32_to_f16(w) : qn_f32_to_bf16(w);
            if (dtype == QN_DTYPE_F32) {
                memcpy(rows + 4 * i, &w, 4);
            } else {
                memcpy(rows + 2 * i, &h, 2);
            }
        }
        return rows;
    }
    int at[3];
    scale_fields(dtype, at);
    for (size_t b = 0; b < row_bytes * (size_t)n_out / type->block_bytes; b++) {
        uint8_t *block = rows + b * type->block_bytes;
        if (dtype == QN_DTYPE_MXFP4) block[0] = (uint8_t)(110 + block[0] % 20);
        for (int w = 0; w < 2 && qn_affine_of(dtype).bits; w++)
            set_affine(dtype, block, w, (float)(2 * qn_random_unit(seed + 1, 2 * b + (size_t)w) - 1));
        for (int f = 0; at[f] >= 0; f++) {
            uint16_t h = (uint16_t)(0x1c00 + (qn_random_bits(seed + 1, 2 * b + (size_t)f) & 0x8fff));
            memcpy(rows + b * type->block_bytes + at[f], &h, 2);
        }
    }
    return rows;
}

static float *random_x(int64_t n_in, int64_t n_rows, uint64_t seed)
{
    float *x = qn_alloc_array((size_t)(n_in * n_rows), sizeof *x);
    for (int64_t i = 0; i < n_in * n_rows; i++) {
        double u = 2 * qn_random_unit(seed, (uint64_t)i) - 1;
        x[i] = (float)(u * u * u * 4);
    }
    return x;
}

static uint8_t *packed(const qn_kernels *k, qn_dtype dtype, int64_t n_in, int64_t n_out, const void *rows)
{
    int64_t n_panels = (n_out + QN_PANEL - 1) / QN_PANEL;
    size_t bytes = qn_pack_panel_bytes(dtype, n_in) * (size_t)n_panels;
    uint8_t *panels = qn_alloc(bytes);
    memset(panels, 0xa5, bytes);
    for (int64_t p = 0; p < n_panels; p += 2)
        k->pack(dtype, n_in, n_out, rows, p, p + 2 < n_panels ? p + 2 : n_panels, panels);
    return panels;
}

static uint8_t *packed_x(const qn_kernels *k, qn_act act, int64_t n_in, int64_t n_rows, const float *x)
{
    size_t row_bytes = qn_act_row_bytes(act, n_in);
    uint8_t *out = qn_calloc((size_t)n_rows, row_bytes);
    for (int64_t r = 0; r < n_rows; r++) k->act_pack(act, n_in, x + r * n_in, out + (size_t)r * row_bytes);
    return out;
}

/* out [n_rows, n_out], in two ranges of panels; what lies beyond n_out in a row stays untouched. */
static float *product(const qn_kernels *k, qn_dtype dtype, qn_act act, int64_t n_in, int64_t n_out,
                      const uint8_t *panels, const uint8_t *x, int64_t n_rows)
{
    int64_t stride = n_out + 3, n_panels = (n_out + QN_PANEL - 1) / QN_PANEL;
    float *wide = qn_alloc_array((size_t)(stride * n_rows), sizeof *wide), *out;
    for (int64_t i = 0; i < stride * n_rows; i++) wide[i] = -77.0f;
    void *scratch = qn_alloc(qn_matmul_scratch_bytes(dtype, act, n_in));
    qn_matmul_args a = {dtype, act, n_in, n_out, panels, x, n_rows, wide, stride};
    k->matmul(&a, n_panels / 2, n_panels, scratch);
    k->matmul(&a, 0, n_panels / 2, scratch);
    qn_free(scratch);
    out = qn_alloc_array((size_t)(n_out * n_rows), sizeof *out);
    for (int64_t r = 0; r < n_rows; r++) {
        memcpy(out + r * n_out, wide + r * stride, (size_t)n_out * sizeof *out);
        for (int64_t i = n_out; i < stride; i++) assert_true(wide[r * stride + i] == -77.0f);
    }
    qn_free(wide);
    return out;
}

static double relative_l2(const float *y, const double *expected, int64_t n)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += (y[i] - expected[i]) * (y[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    return sqrt(diff / (norm > 0 ? norm : 1));
}

static void assert_same_bits(const float *a, const float *b, int64_t n, const char *set, qn_dtype dtype,
                             int act, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(a + i, b + i, sizeof *a) != 0) {
            fail_msg("%s %s act %d, %s: element %lld is %a, expected %a", set, qn_dtype_name(dtype), act,
                     what, (long long)i, (double)a[i], (double)b[i]);
        }
    }
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

/* ---- tests without files ----------------------------------------------------------------------------- */

static int64_t test_width(qn_dtype dtype, int i)
{
    static const int64_t PLAIN[] = {1, 64, 77, 513}, SIMPLE[] = {32, 96, 288, 1376},
                         GROUPS[] = {128, 256, 384, 1408}, SUPER[] = {256, 768, 1280, 2304};
    int64_t block = qn_type_get(dtype)->block_elements;
    return block == 1 ? PLAIN[i] : block == 32 ? SIMPLE[i] : block < 256 ? GROUPS[i] : SUPER[i];
}

static void unpack_equals_decode(void **state)
{
    enum { N_OUT = 53 };
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        for (int t = 0; t < N_DTYPES; t++) {
            for (int i = 0; i < 4; i++) {
                qn_dtype dtype = DTYPES[t];
                int64_t n_in = test_width(dtype, i);
                size_t row_bytes;
                assert_true(qn_type_bytes(dtype, n_in, &row_bytes));
                uint8_t *rows = random_rows(dtype, n_in, N_OUT, 7),
                        *panels = packed(k, dtype, n_in, N_OUT, rows);
                float *expected = qn_alloc_array((size_t)n_in, 4), *got = qn_alloc_array((size_t)n_in, 4);
                float *panel = qn_alloc_array((size_t)n_in * QN_PANEL, 4);
                for (int64_t o = 0; o < N_OUT; o++) {
                    qn_type_get(dtype)->decode(qn_type_get(dtype), rows + (size_t)o * row_bytes, n_in,
                                               expected);
                    k->unpack_row(dtype, n_in, panels, o, got);
                    assert_same_bits(got, expected, n_in, *set, dtype, -1, "unpack_row");
                    if (o % QN_PANEL == 0) k->unpack_panel(dtype, n_in, panels, o / QN_PANEL, panel);
                    for (int64_t j = 0; j < n_in; j++) got[j] = panel[j * QN_PANEL + o % QN_PANEL];
                    assert_same_bits(got, expected, n_in, *set, dtype, -1, "unpack_panel");
                }
                qn_free(expected);
                qn_free(got);
                qn_free(panel);
                qn_free(rows);
                qn_free(panels);
            }
        }
    }
}

static void packing_is_small(void **state)
{
    for (int t = 0; t < N_DTYPES; t++) {
        size_t row_bytes;
        assert_true(qn_type_bytes(DTYPES[t], 2304, &row_bytes));
        size_t panel = qn_pack_panel_bytes(DTYPES[t], 2304);
        assert_true(panel >= row_bytes * QN_PANEL && (double)panel <= 1.03 * (double)(row_bytes * QN_PANEL));
    }
    assert_int_equal(qn_pack_panel_bytes(QN_DTYPE_Q4_0, 33), 0);
    assert_int_equal(qn_pack_panel_bytes(QN_DTYPE_Q6_K, 32), 0);
    assert_int_equal(qn_pack_panel_bytes(QN_DTYPE_I32, 256), 0);
    assert_int_equal(qn_pack_panel_bytes(QN_DTYPE_F32, 0), 0);
}

/* Every set packs activations into the same bytes; values lie within half a step. */
static void activations_equal(void **state)
{
    enum { N = 992 };
    const qn_kernels *scalar = qn_kernels_by_name("scalar");
    float *x = random_x(N, 1, 3);
    for (int i = 32; i < 64; i++) x[i] = 0;
    for (int i = 64; i < 96; i++) x[i] = i % 2 ? 127.0f : -127.0f;
    for (int i = 96; i < 128; i++) x[i] *= 1e-36f;
    for (int i = 128; i < 160; i++) x[i] *= 1e37f;
    for (int i = 160; i < 192; i++) x[i] = (float)(i - 176) + 0.5f; /* ties */
    x[160] = 127.0f;
    x[200] = 0x1.fffffep127f;
    x[230] = -0x1p-149f;
    for (int act = 0; act < QN_ACT_COUNT; act++) {
        for (int with_nan = 0; with_nan < 2; with_nan++) {
            float kept[3] = {x[300], x[340], x[400]};
            if (with_nan) {
                x[300] = NAN;
                x[340] = INFINITY;
                x[400] = -INFINITY;
            }
            uint8_t *expected = packed_x(scalar, (qn_act)act, N, 1, x);
            for (const char *const *set = qn_kernels_names(); *set; set++) {
                uint8_t *got = packed_x(qn_kernels_by_name(*set), (qn_act)act, N, 1, x);
                assert_memory_equal(got, expected, qn_act_row_bytes((qn_act)act, N));
                qn_free(got);
            }
            if (!with_nan && (act == QN_ACT_I8 || act == QN_ACT_I8X2)) {
                double values[N];
                act_values((qn_act)act, N, expected, values);
                for (int b = 0; b < N / 32; b++) {
                    double most = 0;
                    for (int i = 0; i < 32; i++) most = fmax(most, fabs((double)x[32 * b + i]));
                    for (int i = 0; i < 32; i++) {
                        double step = most < (double)QN_ACT_TINY
                                          ? 2.01 * most
                                          : most / (act == QN_ACT_I8 ? 127 : 127 * 128);
                        assert_true(fabs(values[32 * b + i] - (double)x[32 * b + i]) <= 0.5001 * step);
                    }
                }
            }
            qn_free(expected);
            x[300] = kept[0];
            x[340] = kept[1];
            x[400] = kept[2];
        }
    }
    qn_free(x);
}

/* A NaN or infinity in a row makes its outputs NaN and leaves the other rows alone. */
static void nan_is_seen(void **state)
{
    enum { N_IN = 512, N_OUT = 16 };
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        for (int t = 0; t < N_DTYPES; t++) {
            for (int act = 0; act < QN_ACT_COUNT; act++) {
                if (!has_act(DTYPES[t], (qn_act)act)) continue;
                uint8_t *rows = random_rows(DTYPES[t], N_IN, N_OUT, 5),
                        *panels = packed(k, DTYPES[t], N_IN, N_OUT, rows);
                float *x = random_x(N_IN, 3, 6);
                x[N_IN + 40] = NAN;
                uint8_t *px = packed_x(k, (qn_act)act, N_IN, 3, x);
                float *y = product(k, DTYPES[t], (qn_act)act, N_IN, N_OUT, panels, px, 3);
                for (int i = 0; i < 3 * N_OUT; i++) assert_int_equal(isnan(y[i]) != 0, i / N_OUT == 1);
                qn_free(rows);
                qn_free(panels);
                qn_free(x);
                qn_free(px);
                qn_free(y);
            }
        }
    }
}

/* One weight matrix and rows of x: scalar near float64; each set equal to scalar; rows independent of their
 * number. */
static void check(qn_dtype dtype, qn_act act, int64_t n_in, int64_t n_out, const uint8_t *rows,
                  const float *x, int64_t n_rows)
{
    const qn_kernels *scalar = qn_kernels_by_name("scalar");
    uint8_t *panels = packed(scalar, dtype, n_in, n_out, rows), *px = packed_x(scalar, act, n_in, n_rows, x);
    float *base = product(scalar, dtype, act, n_in, n_out, panels, px, n_rows);
    double *expected = qn_alloc_array((size_t)(n_out * n_rows), sizeof *expected);
    reference(dtype, act, n_in, n_out, rows, px, n_rows, expected);
    double error = relative_l2(base, expected, n_out * n_rows);
    if (!(error <= 1e-5))
        fail_msg("scalar %s act %d: relative error %g", qn_dtype_name(dtype), (int)act, error);

    static const int64_t COUNTS[] = {0, 1, 2, 3, 4, 5, 7, 8, 12, 13, 33};
    size_t row_bytes = qn_act_row_bytes(act, n_in);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        float *all = product(k, dtype, act, n_in, n_out, panels, px, n_rows);
        double error = relative_l2(all, expected, n_out * n_rows);
        if (!(error <= 1e-5))
            fail_msg("%s %s act %d: relative error %g", *set, qn_dtype_name(dtype), (int)act, error);
        /* bf16 products: a set may have its own instruction. f32: fused on the vector sets, not in scalar. */
        if (act == QN_ACT_F32 && set == qn_kernels_names() + 1)
            memcpy(base, all, (size_t)(n_out * n_rows) * sizeof *base);
        if (act != QN_ACT_BF16)
            assert_same_bits(all, base, n_out * n_rows, *set, dtype, (int)act, "against other sets");
        for (size_t c = 0; c < sizeof COUNTS / sizeof COUNTS[0]; c++) {
            for (int64_t first = 0; first + COUNTS[c] <= n_rows; first += COUNTS[c] + 3) {
                float *some =
                    product(k, dtype, act, n_in, n_out, panels, px + (size_t)first * row_bytes, COUNTS[c]);
                assert_same_bits(some, all + first * n_out, n_out * COUNTS[c], *set, dtype, (int)act,
                                 "fewer rows");
                qn_free(some);
            }
        }
        qn_free(all);
    }
    qn_free(panels);
    qn_free(px);
    qn_free(base);
    qn_free(expected);
}

static void matmul_agrees(void **state)
{
    enum { N_ROWS = 33, N_OUT = 53 };
    for (int t = 0; t < N_DTYPES; t++) {
        for (int act = 0; act < QN_ACT_COUNT; act++) {
            if (!has_act(DTYPES[t], (qn_act)act)) continue;
            for (int i = 0; i < 4; i++) {
                int64_t n_in = test_width(DTYPES[t], i);
                uint8_t *rows = random_rows(DTYPES[t], n_in, N_OUT, 11 + (uint64_t)i);
                float *x = random_x(n_in, N_ROWS, 13);
                check(DTYPES[t], (qn_act)act, n_in, N_OUT, rows, x, N_ROWS);
                qn_free(rows);
                qn_free(x);
            }
        }
    }
}

/* All codes and scales at their ends, activations at their ends: nothing saturates or overflows. */
static void extremes_are_exact(void **state)
{
    enum { N_IN = 512, N_OUT = 16, N_ROWS = 5 };
    static const uint8_t FILL[] = {0x00, 0xff, 0x80, 0x7f, 0x81, 0xf0, 0x0f};
    for (int t = 3; t < N_DTYPES; t++) {
        for (size_t f = 0; f < sizeof FILL; f++) {
            size_t row_bytes;
            assert_true(qn_type_bytes(DTYPES[t], N_IN, &row_bytes));
            uint8_t *rows = qn_alloc(row_bytes * N_OUT);
            memset(rows, FILL[f], row_bytes * N_OUT);
            int at[3];
            scale_fields(DTYPES[t], at);
            for (size_t b = 0; b < row_bytes * N_OUT; b += qn_type_get(DTYPES[t])->block_bytes) {
                if (DTYPES[t] == QN_DTYPE_MXFP4) rows[b] = 127;
                for (int w = 0; w < 2 && qn_affine_of(DTYPES[t]).bits; w++)
                    set_affine(DTYPES[t], rows + b, w, w ? 0.5f : 1.0f);
                for (int i = 0; at[i] >= 0; i++) {
                    uint16_t one = i ? 0x3800 : 0x3c00;
                    memcpy(rows + b + at[i], &one, 2);
                }
                /* The scales of Q6_K at -128 with every code at -32 or 31. */
                if (DTYPES[t] == QN_DTYPE_Q6_K && f < 2) memset(rows + b + 192, 0x80, 16);
            }
            float x[N_ROWS * N_IN];
            for (int i = 0; i < N_IN; i++) {
                x[i] = 127;
                x[N_IN + i] = -127;
                x[2 * N_IN + i] = i % 2 ? 127.0f : -127.0f;
                x[3 * N_IN + i] = i % 64 < 32 ? 126.51f : -127.0f;
                x[4 * N_IN + i] = i % 32 == 0 ? 127.0f : -126.505f;
            }
            check(DTYPES[t], QN_ACT_I8, N_IN, N_OUT, rows, x, N_ROWS);
            check(DTYPES[t], QN_ACT_I8X2, N_IN, N_OUT, rows, x, N_ROWS);
            qn_free(rows);
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
    uint8_t *panels = packed(k, dtype, cols[1], cols[0], raw);
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
    qn_free(panels);
    qn_free(got);
}

static const double TOLERANCE[QN_ACT_COUNT] = {1e-5, 2e-2, 2e-2, 2e-4};

static void fixtures_agree(void **state)
{
    static const char *const NAMES[] = {"",     "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",
                                        "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"};
    for (int t = 1; t < (int)(sizeof NAMES / sizeof *NAMES); t++) {
        fixture f;
        fixture_open(&f, "gguf_blocks", NAMES[t]);
        for (const char *const *set = qn_kernels_names(); *set; set++) {
            const qn_kernels *k = qn_kernels_by_name(*set);
            fixture_values(&f, k, DTYPES[t], "raw", "expected");
            fixture_values(&f, k, DTYPES[t], "raw_random", "expected_random");
            fixture_values(&f, k, DTYPES[t], "raw_all", "expected_all");
            int64_t x_shape[2] = {0}, y_shape[2] = {0}, shape[2] = {0};
            float *x = tensor(&f, "x", x_shape), *y = tensor(&f, "y", y_shape);
            uint8_t *raw = tensor(&f, "raw", shape),
                    *panels = packed(k, DTYPES[t], x_shape[1], y_shape[1], raw);
            double expected[256];
            assert_true(y_shape[0] * y_shape[1] <= 256);
            for (int64_t i = 0; i < y_shape[0] * y_shape[1]; i++) expected[i] = y[i];
            for (int act = 0; act < QN_ACT_COUNT; act++) {
                if (!has_act(DTYPES[t], (qn_act)act)) continue;
                uint8_t *px = packed_x(k, (qn_act)act, x_shape[1], x_shape[0], x);
                float *got =
                    product(k, DTYPES[t], (qn_act)act, x_shape[1], y_shape[1], panels, px, x_shape[0]);
                double error = relative_l2(got, expected, y_shape[0] * y_shape[1]);
                if (!(error <= TOLERANCE[act]))
                    fail_msg("%s %s act %d: relative error %g", *set, NAMES[t], act, error);
                qn_free(px);
                qn_free(got);
            }
            qn_free(x);
            qn_free(y);
            qn_free(raw);
            qn_free(panels);
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
        uint8_t *panels = packed(k, dtype, n_in, n_out, rows);
        float *got = qn_alloc_array((size_t)n_in, sizeof *got);
        for (int64_t o = 0; o < n_out; o++) {
            k->unpack_row(dtype, n_in, panels, o, got);
            /* Scale times code and bias may cancel, and the reference rounds once. */
            double most = 0;
            for (int64_t i = 0; i < n_in; i++) most = fmax(most, fabs((double)want[o * n_in + i]));
            for (int64_t i = 0; i < n_in; i++) {
                double w = want[o * n_in + i];
                if (!(fabs(got[i] - w) <= 1e-6 * most))
                    fail_msg("%s %s: row %lld column %lld is %.9g, expected %.9g", *set, name, (long long)o,
                             (long long)i, (double)got[i], w);
            }
        }
        qn_free(got);
        for (int act = 0; act < QN_ACT_COUNT; act++) {
            if (!has_act(dtype, (qn_act)act)) continue;
            uint8_t *px = packed_x(k, (qn_act)act, n_in, x_shape[0], x);
            got = product(k, dtype, (qn_act)act, n_in, n_out, panels, px, x_shape[0]);
            double error = relative_l2(got, expected, y_shape[0] * y_shape[1]);
            if (!(error <= TOLERANCE[act]))
                fail_msg("%s %s act %d: relative error %g", *set, name, act, error);
            qn_free(px);
            qn_free(got);
        }
        qn_free(panels);
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
        cmocka_unit_test(packing_is_small),
        cmocka_unit_test(unpack_equals_decode),
        cmocka_unit_test(activations_equal),
        cmocka_unit_test(nan_is_seen),
        cmocka_unit_test(matmul_agrees),
        cmocka_unit_test(extremes_are_exact),
        cmocka_unit_test(fixtures_agree),
        cmocka_unit_test(mlx_fixtures_agree),
        cmocka_unit_test(the_environment_picks_a_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
