/* Every kernel of every instruction set that this machine runs against the scalar one, on odd sizes, tails,
 * extreme scales, codes and activations, in ranges of any split, with memory that ends at a page which cannot
 * be touched. A field of qn_kernels that nothing checks is a failure.
 *
 * usage: kernel_check                                 as `make test` does: a few seconds
 *        kernel_check --rounds N [--seed N]           N times as much, of other dice
 *        kernel_check --speed [--help]                how fast each kernel is, beside its limit
 *
 * What is promised: integer products, packing, conversions, sums and maxima have the bits of scalar (a NaN is
 * a NaN); float ones are as near as their chain of n additions allows, n 2^-24 sum |a b|, and the same bits
 * whatever the split. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "quant/types.h"
#include "tests/kernels/kernel_attention.h"
#include "tests/kernels/kernel_compare.h"
#include "tests/kernels/kernel_gradient.h"
#include "tests/kernels/kernel_help.h"
#include "tests/kernels/kernel_recurrent.h"
#include "tests/kernels/kernel_speed.h"

static int64_t n_rounds = 1;
static uint64_t first_seed = 1;
static const qn_kernels *scalar;

static int64_t random_length(qn_test_dice *d)
{
    static const int64_t longer[] = {64, 127, 128, 300, 576, 1000, 2053};
    int64_t i = qn_test_roll(d, 80);
    return i < 70 ? i : longer[i % 7];
}

/* ---- packed weights and matmul ----------------------------------------------------------------------- */

enum { MOST_ROWS = 40 };

/* A type's turn: problem i of a check takes type i, round and round. */
static int64_t n_types(void)
{
    int64_t n = 0;
    while (qn_test_packed_types[n] != QN_DTYPE_COUNT) n++;
    return n;
}

static qn_dtype type_of(int64_t i)
{
    return qn_test_packed_types[i % n_types()];
}

static int64_t random_outputs(qn_test_dice *d)
{
    return qn_test_roll(d, 4) ? 1 + qn_test_roll(d, 70) : 16 * (1 + qn_test_roll(d, 4));
}

/* A weight in file form and its panels as scalar packs them. */
typedef struct {
    qn_dtype dtype;
    int64_t n_in, n_out, n_panels;
    size_t row_bytes, panel_bytes;
    const uint8_t *rows, *panels;
} weight;

static weight weight_of(qn_test_dice *d, qn_dtype dtype, int64_t n_in, int64_t n_out)
{
    weight w = {.dtype = dtype, .n_in = n_in, .n_out = n_out};
    w.n_panels = (w.n_out + QN_PANEL - 1) / QN_PANEL;
    assert_true(qn_type_bytes(w.dtype, w.n_in, &w.row_bytes));
    w.panel_bytes = qn_pack_panel_bytes(w.dtype, w.n_in);
    w.rows =
        qn_test_rows(d, (qn_test_weights)qn_test_roll(d, QN_TEST_WEIGHTS_COUNT), w.dtype, w.n_in, w.n_out);
    qn_test_at("scalar pack, %s, n_in %d, n_out %d", qn_dtype_name(w.dtype), (int)w.n_in, (int)w.n_out);
    w.panels = qn_test_panels(scalar, NULL, w.dtype, w.n_in, w.n_out, w.rows);
    return w;
}

static weight random_weight(qn_test_dice *d, int64_t i)
{
    const qn_dtype dtype = type_of(i);
    const int64_t n_in = qn_test_width(d, dtype);
    return weight_of(d, dtype, n_in, random_outputs(d));
}

static void at_weight(const qn_kernels *k, const char *name, const weight *w)
{
    qn_test_at("%s %s, %s, n_in %d, n_out %d", k->name, name, qn_dtype_name(w->dtype), (int)w->n_in,
               (int)w->n_out);
}

static void check_pack(qn_test_dice *d, int64_t i)
{
    weight w = random_weight(d, i);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        at_weight(k, "pack", &w);
        qn_test_same_bytes(qn_test_panels(k, d, w.dtype, w.n_in, w.n_out, w.rows), w.panels,
                           w.panel_bytes * (size_t)w.n_panels);
    }
}

/* A row is, bit for bit, what decoding the file gives. */
static void check_unpack_row(qn_test_dice *d, int64_t i)
{
    weight w = random_weight(d, i);
    float *expected = qn_test_floats((size_t)w.n_in), *got = qn_test_floats((size_t)w.n_in);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        for (int64_t o = 0; o < w.n_out; o++) {
            qn_type_get(w.dtype)->decode(qn_type_get(w.dtype), w.rows + (size_t)o * w.row_bytes, w.n_in,
                                         expected);
            at_weight(k, "unpack_row", &w);
            k->unpack_row(w.dtype, w.n_in, w.panels, o, got);
            qn_test_same_floats(got, expected, w.n_in);
        }
    }
}

static void check_unpack_panel(qn_test_dice *d, int64_t i)
{
    weight w = random_weight(d, i);
    float *expected = qn_test_floats((size_t)w.n_in), *row = qn_test_floats((size_t)w.n_in);
    float *got = qn_test_floats((size_t)w.n_in * QN_PANEL);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        for (int64_t o = 0; o < w.n_out; o++) {
            at_weight(k, "unpack_panel", &w);
            if (o % QN_PANEL == 0) k->unpack_panel(w.dtype, w.n_in, w.panels, o / QN_PANEL, got);
            scalar->unpack_row(w.dtype, w.n_in, w.panels, o, expected);
            for (int64_t j = 0; j < w.n_in; j++) row[j] = got[j * QN_PANEL + o % QN_PANEL];
            qn_test_same_floats(row, expected, w.n_in);
        }
    }
}

static void check_act_pack(qn_test_dice *d, int64_t i)
{
    qn_act act = (qn_act)(i % QN_ACT_COUNT);
    int64_t n_in = qn_test_width(d, act == QN_ACT_I8 || act == QN_ACT_I8X2 ? QN_DTYPE_Q8_0 : QN_DTYPE_F32),
            n_rows = 1 + qn_test_roll(d, 4);
    qn_test_x kind = (qn_test_x)qn_test_roll(d, QN_TEST_X_COUNT);
    const float *x = qn_test_activations(d, kind, n_in, n_rows);
    const uint8_t *expected = qn_test_act_rows(scalar, act, n_in, n_rows, x);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        qn_test_at("%s act_pack, act %d, n_in %d, kind %d", k->name, (int)act, (int)n_in, (int)kind);
        qn_test_same_bytes(qn_test_act_rows(k, act, n_in, n_rows, x), expected,
                           (size_t)n_rows * qn_act_row_bytes(act, n_in));
    }
}

/* y near the product in double of f32 activations, which for bf16 are rounded first. */
static void near_product(const weight *w, qn_act act, const float *x, int64_t n_rows, const float *y)
{
    float *row = qn_test_floats((size_t)w->n_in);
    for (int64_t o = 0; o < w->n_out; o++) {
        scalar->unpack_row(w->dtype, w->n_in, w->panels, o, row);
        for (int64_t r = 0; r < n_rows; r++) {
            double sum = 0, most = 0, flushed = 0;
            for (int64_t j = 0; j < w->n_in; j++) {
                float v = x[r * w->n_in + j];
                if (act == QN_ACT_BF16) v = qn_bf16_to_f32(qn_f32_to_bf16(v));
                double t = (double)v * row[j];
                sum += t;
                most += fabs(t);
                /* Instructions for bf16 take subnormal numbers, and make subnormal products, zero. */
                if (act == QN_ACT_BF16 && (fabsf(v) < 0x1p-126f || fabsf(row[j]) < 0x1p-126f))
                    flushed += fabs(t);
            }
            double bound = (double)(w->n_in + 2) * (0x1p-24 * most + 0x1p-125) + flushed;
            if (most < 1e38) qn_test_near_float(y[r * w->n_out + o], sum, bound, r * w->n_out + o);
        }
    }
}

/* A row of a product has the same bits with every number of rows beside it. y: all MOST_ROWS. */
static void every_count(qn_test_dice *d, const qn_kernels *k, const weight *w, qn_act act, const uint8_t *x,
                        const float *y)
{
    for (int64_t n = 1; n < MOST_ROWS; n++) {
        int64_t first = qn_test_roll(d, MOST_ROWS - n + 1);
        const float *some = qn_test_product(k, NULL, w->dtype, act, w->n_in, w->n_out, w->panels,
                                            x + (size_t)first * qn_act_row_bytes(act, w->n_in), n);
        qn_test_same_floats(some, y + first * w->n_out, n * w->n_out);
    }
}

/* thorough: of MOST_ROWS, and with every smaller number of them (on scalar there is nothing that could
 * differ). */
static void check_matmul_act(qn_test_dice *d, const weight *w, qn_act act, int64_t n_rows, int thorough)
{
    int integer = act == QN_ACT_I8 || act == QN_ACT_I8X2;
    int64_t n = n_rows * w->n_out;
    qn_test_x kind = (qn_test_x)qn_test_roll(d, QN_TEST_X_COUNT);
    const float *x = qn_test_activations(d, kind, w->n_in, n_rows);
    const uint8_t *px = qn_test_act_rows(scalar, act, w->n_in, n_rows, x);
    const float *expected = NULL;
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        qn_test_at("%s matmul, %s, act %d, n_in %d, n_out %d, %d rows, kind %d", k->name,
                   qn_dtype_name(w->dtype), (int)act, (int)w->n_in, (int)w->n_out, (int)n_rows, (int)kind);
        const float *y = qn_test_product(k, NULL, w->dtype, act, w->n_in, w->n_out, w->panels, px, n_rows);
        if (!integer) near_product(w, act, x, n_rows, y);
        /* f32 chains are fused on every set but scalar, so these agree with each other. */
        if (integer ? !expected : set == qn_kernels_names() + 1) expected = y;
        if (expected && act != QN_ACT_BF16) qn_test_same_floats(y, expected, n);
        qn_test_same_floats(qn_test_product(k, d, w->dtype, act, w->n_in, w->n_out, w->panels, px, n_rows), y,
                            n);
        if (k->lean)
            qn_test_same_floats(
                qn_test_product(k->lean, d, w->dtype, act, w->n_in, w->n_out, w->panels, px, n_rows), y, n);
        if (thorough && k != scalar) every_count(d, k, w, act, px, y);
        for (int64_t r = MOST_ROWS; r < n_rows; r += 47)
            qn_test_same_floats(qn_test_product(k, NULL, w->dtype, act, w->n_in, w->n_out, w->panels,
                                                px + (size_t)r * qn_act_row_bytes(act, w->n_in), 1),
                                y + r * w->n_out, w->n_out);
        for (int64_t j = 0; j < w->n_out && kind == QN_TEST_X_BAD; j++)
            assert_false(isfinite(y[n_rows / 2 * w->n_out + j]));
    }
}

static void check_matmul(qn_test_dice *d, int64_t i)
{
    const int thorough = i < n_types();
    weight w = random_weight(d, i);
    for (int act = 0; act < QN_ACT_COUNT; act++) {
        if (!qn_test_has_act(w.dtype, (qn_act)act)) continue;
        int64_t n_rows = thorough ? MOST_ROWS : 1 + qn_test_roll(d, qn_test_roll(d, 2) ? 9 : MOST_ROWS);
        check_matmul_act(d, &w, (qn_act)act, n_rows, thorough);
    }
}

/* So large that each set goes over rows, and over the inputs, in several passes. */
static void large_products(void **state)
{
    static const struct {
        qn_dtype dtype;
        int64_t n_in, n_rows;
    } problems[] = {{QN_DTYPE_Q8_0, 3072, 300},
                    {QN_DTYPE_Q4_K, 3072, 300},
                    {QN_DTYPE_Q6_K, 3072, 300},
                    {QN_DTYPE_AFFINE5_G64_F16, 3072, 300},
                    {QN_DTYPE_AFFINE8_G64_F16, 1088, 130}, /* passes of unequal size */
                    {QN_DTYPE_Q4_0, 576, 70},
                    {QN_DTYPE_BF16, 1090, 521}};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        qn_test_dice d = {.seed = first_seed + i};
        const weight w = weight_of(&d, problems[i].dtype, problems[i].n_in, 53);
        for (int act = 0; act < QN_ACT_COUNT; act++)
            if (act != QN_ACT_F32 && qn_test_has_act(w.dtype, (qn_act)act))
                check_matmul_act(&d, &w, (qn_act)act, problems[i].n_rows, 0);
        qn_test_guarded_end();
    }
}

/* ---- attention --------------------------------------------------------------------------------------- */

static void check_kv_write(qn_test_dice *d, int64_t i)
{
    qn_test_kv_write(d, i);
}

static void check_attend(qn_test_dice *d, int64_t i)
{
    qn_test_attend(d, i);
}

static void check_attend_part(qn_test_dice *d, int64_t i)
{
    qn_test_attend_part(d, i);
}

static void check_attend_merge(qn_test_dice *d, int64_t i)
{
    qn_test_attend_part(d, i);
}

/* ---- element-wise ------------------------------------------------------------------------------------ */

static float special(qn_test_dice *d)
{
    static const float values[] = {0,     -0.0f,     1,          -1,        INFINITY, -INFINITY,
                                   NAN,   0x1p-149f, -0x1p-149f, 0x1p-126f, 3e38f,    -3e38f,
                                   88.7f, -103.9f,   1e30f,      0.5f};
    return values[qn_test_roll(d, sizeof values / sizeof *values)];
}

/* vector_test.c holds each operation of each set to its own bound; here they are within twice the loosest of
 * them of scalar, 8 units of the last place or 5e-7. */
static void check_ew(qn_test_dice *d, int64_t i)
{
    qn_ew op = (qn_ew)(i % QN_EW_COUNT);
    int64_t n = random_length(d), a_step = qn_test_roll(d, 4) != 0, b_step = qn_test_roll(d, 4) != 0;
    float *a = qn_test_random_floats(d, a_step ? n : 1, -9, 9),
          *b = qn_test_random_floats(d, b_step ? n : 1, -9, 9);
    for (int64_t j = 0; j < (a_step ? n : 1); j += 3) a[j] = special(d);
    for (int64_t j = 0; j < (b_step ? n : 1); j += 4) b[j] = special(d);
    qn_test_sealed(a);
    qn_test_sealed(b);
    float *expected = qn_test_floats(n);
    scalar->ew[op](expected, a, a_step, b, b_step, n);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        float *out = qn_test_floats(n), *parts = qn_test_floats(n);
        qn_test_at("%s ew %d, n %d", k->name, (int)op, (int)n);
        k->ew[op](out, a, a_step, b, b_step, n);
        for (int64_t j = 0; j < n; j++) {
            double size = fabs((double)a[j * a_step]), y = expected[j];
            if (isinf(out[j]) != isinf(y) && fabs(y) > 3.39e38)
                continue; /* just below, just above the largest */
            qn_test_near_float(out[j], y, 0x1p-21 * fabs(y) + 5e-7 * (size > 1 && size < 1e3 ? size : 1), j);
        }
        int64_t m = qn_test_roll(d, n + 1);
        k->ew[op](parts + m, a + m * a_step, a_step, b + m * b_step, b_step, n - m);
        k->ew[op](parts, a, a_step, b, b_step, m);
        qn_test_same_floats(parts, out, n);
    }
}

/* A chain gives what its operations give one by one. */
static void check_ew_chain(qn_test_dice *d, int64_t i)
{
#define LINK(name) QN_EW_##name,
    static const uint8_t ops[] = {QN_EW_LINK_LIST(LINK)};
#undef LINK
    enum { LINKS_MAX = 6, N_OPS = sizeof ops / sizeof *ops };
    int64_t n = random_length(d), a_step = qn_test_roll(d, 4) != 0;
    int n_links = 1 + (int)qn_test_roll(d, LINKS_MAX), streams = (int)qn_test_roll(d, 3);
    float *a = qn_test_random_floats(d, a_step ? n : 1, -9, 9);
    for (int64_t j = 0; j < (a_step ? n : 1); j += 5) a[j] = special(d);
    qn_test_sealed(a);
    qn_ew_link links[LINKS_MAX];
    for (int l = 0; l < n_links; l++) {
        qn_ew_link *k = &links[l];
        *k = (qn_ew_link){.op = ops[qn_test_roll(d, N_OPS)], .swapped = (uint8_t)qn_test_roll(d, 2)};
        k->step = qn_test_roll(d, 3) != 0;
        if (qn_test_roll(d, 6)) k->other = qn_test_sealed(qn_test_random_floats(d, k->step ? n : 1, -9, 9));
    }
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        float *out = qn_test_guarded((size_t)n * sizeof *out, streams ? 64 : 4), *t = qn_test_floats(n);
        for (int64_t j = 0; j < n; j++) t[j] = a[j * a_step];
        for (int l = 0; l < n_links; l++) {
            const float *other = links[l].other ? links[l].other : t;
            int64_t step = links[l].other ? links[l].step : 1;
            if (links[l].swapped)
                k->ew[links[l].op](t, other, step, t, 1, n);
            else
                k->ew[links[l].op](t, t, 1, other, step, n);
        }
        qn_test_at("%s ew_chain of %d, n %d, streams %d", k->name, n_links, (int)n, streams);
        k->ew_chain(out, a, a_step, links, n_links, n, streams);
        qn_test_same_floats(out, t, n);
    }
}

/* ---- rows: norms, softmax, sums ---------------------------------------------------------------------- */

/* x with a NaN now and then. */
static const float *random_row(qn_test_dice *d, int64_t n)
{
    float *x = qn_test_random_floats(d, n, -3, 4);
    if (n && qn_test_roll(d, 8) == 0) x[qn_test_roll(d, n)] = NAN;
    return qn_test_sealed(x);
}

typedef void norm_fn(const qn_kernels *k, float *out, const float *x, const float *w, const float *b,
                     int64_t n);

static void by_rms(const qn_kernels *k, float *out, const float *x, const float *w, const float *b, int64_t n)
{
    k->rms_norm(out, x, w, b ? 1.0f : 0.0f, 1e-5f, n);
}

static void by_layer(const qn_kernels *k, float *out, const float *x, const float *w, const float *b,
                     int64_t n)
{
    k->layer_norm(out, x, w, b, 1e-5f, n);
}

static void by_softmax(const qn_kernels *k, float *out, const float *x, const float *w, const float *b,
                       int64_t n)
{
    k->softmax(out, x, n);
}

static void check_row(qn_test_dice *d, const char *name, norm_fn *fn, int64_t n)
{
    const float *x = random_row(d, n), *w = qn_test_sealed(qn_test_random_floats(d, n, -1, 1)),
                *b = qn_test_sealed(qn_test_random_floats(d, n, -1, 1));
    if (qn_test_roll(d, 3) == 0) w = NULL;
    if (qn_test_roll(d, 3) == 0) b = NULL;
    float *expected = qn_test_floats(n);
    fn(scalar, expected, x, w, b, n);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        float *out = qn_test_floats(n), *in_place = qn_test_floats(n);
        qn_test_at("%s %s, n %d", k->name, name, (int)n);
        fn(k, out, x, w, b, n);
        for (int64_t j = 0; j < n; j++)
            qn_test_near_float(out[j], expected[j], 4e-6 * (fabs((double)expected[j]) + 1), j);
        memcpy(in_place, x, (size_t)n * sizeof *x);
        fn(k, in_place, in_place, w, b, n);
        qn_test_same_floats(in_place, out, n);
    }
}

static void check_rms_norm(qn_test_dice *d, int64_t i)
{
    check_row(d, "rms_norm", by_rms, 1 + random_length(d));
}

static void check_layer_norm(qn_test_dice *d, int64_t i)
{
    check_row(d, "layer_norm", by_layer, 2 + random_length(d));
}

static void check_softmax(qn_test_dice *d, int64_t i)
{
    check_row(d, "softmax", by_softmax, 1 + random_length(d));
}

/* One number each: sum and maximum as scalar's bits. */
static void check_sum(qn_test_dice *d, int64_t i)
{
    int64_t n = random_length(d);
    const float *x = random_row(d, n);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        qn_test_at("%s sum, n %d", *set, (int)n);
        float got = qn_kernels_by_name(*set)->sum(x, n), expected = scalar->sum(x, n);
        qn_test_same_floats(&got, &expected, 1);
    }
}

static void check_max(qn_test_dice *d, int64_t i)
{
    int64_t n = random_length(d);
    const float *x = random_row(d, n);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        qn_test_at("%s max, n %d", *set, (int)n);
        float got = qn_kernels_by_name(*set)->max(x, n), expected = scalar->max(x, n);
        qn_test_same_floats(&got, &expected, 1);
    }
}

/* Rows in blocks: maxima and what is collected as scalar's bits, sums as near as exp is. */
static void check_max_blocks(qn_test_dice *d, int64_t i)
{
    int64_t n = 1 + 3 * random_length(d), n_blocks = (n + QN_ROW_BLOCK - 1) / QN_ROW_BLOCK;
    const float *x = random_row(d, n);
    float *expected = qn_test_floats((size_t)n_blocks);
    scalar->max_blocks(x, n, expected);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        float *out = qn_test_floats((size_t)n_blocks);
        qn_test_at("%s max_blocks, n %d", *set, (int)n);
        qn_kernels_by_name(*set)->max_blocks(x, n, out);
        qn_test_same_floats(out, expected, n_blocks);
    }
}

static void check_sum_exp_blocks(qn_test_dice *d, int64_t i)
{
    int64_t n = 1 + 3 * random_length(d), n_blocks = (n + QN_ROW_BLOCK - 1) / QN_ROW_BLOCK;
    const float *x = random_row(d, n);
    float shift = (float)qn_test_between(d, 4, 9), scale = (float)qn_test_between(d, 0.1, 3);
    float *expected = qn_test_floats((size_t)n_blocks);
    scalar->sum_exp_blocks(x, n, shift, scale, expected);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        float *out = qn_test_floats((size_t)n_blocks);
        qn_test_at("%s sum_exp_blocks, n %d", *set, (int)n);
        qn_kernels_by_name(*set)->sum_exp_blocks(x, n, shift, scale, out);
        for (int64_t j = 0; j < n_blocks; j++)
            qn_test_near_float(out[j], expected[j], 1e-6 * fabs((double)expected[j]), j);
    }
}

/* Bit by bit the exp of ew. */
static void check_exp_scaled(qn_test_dice *d, int64_t i)
{
    int64_t n = random_length(d);
    const float *x = random_row(d, n);
    float shift = (float)qn_test_between(d, 4, 9), scale = (float)qn_test_between(d, 0.1, 3);
    float *scaled = qn_test_floats(n);
    for (int64_t j = 0; j < n; j++) scaled[j] = (x[j] - shift) * scale;
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        float *expected = qn_test_floats(n), *out = qn_test_floats(n);
        qn_test_at("%s exp_scaled, n %d", *set, (int)n);
        k->ew[QN_EW_EXP](expected, scaled, 1, NULL, 0, n);
        k->exp_scaled(x, n, shift, scale, out);
        qn_test_same_floats(out, expected, n);
        memcpy(out, x, (size_t)n * sizeof *out);
        k->exp_scaled(out, n, shift, scale, out);
        qn_test_same_floats(out, expected, n);
    }
}

static void check_collect(qn_test_dice *d, int64_t i)
{
    int64_t n = random_length(d);
    const float *x = random_row(d, n);
    float least = n && i % 2 ? x[qn_test_roll(d, n)] : (float)qn_test_between(d, -4, 5),
          *expected = qn_test_floats(n);
    int32_t *order = qn_test_guarded((size_t)n * sizeof *order, sizeof *order);
    int64_t count = scalar->collect(x, n, least, 7, order, expected);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        float *out = qn_test_floats(n);
        int32_t *index = qn_test_guarded((size_t)n * sizeof *index, sizeof *index);
        qn_test_at("%s collect, n %d", *set, (int)n);
        assert_int_equal(qn_kernels_by_name(*set)->collect(x, n, least, 7, index, out), count);
        qn_test_same_floats(out, expected, count);
        qn_test_same_bytes(index, order, (size_t)count * sizeof *index);
    }
}

static void check_dot(qn_test_dice *d, int64_t i)
{
    int64_t n = random_length(d);
    const float *x = random_row(d, n), *y = random_row(d, n);
    double sum = 0, most = 0;
    for (int64_t j = 0; j < n; j++) {
        sum += (double)x[j] * y[j];
        most += fabs((double)x[j] * y[j]);
    }
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        qn_test_at("%s dot, n %d", *set, (int)n);
        qn_test_near_float(qn_kernels_by_name(*set)->dot(x, y, n), sum, (double)(n + 1) * 0x1p-24 * most, 0);
    }
}

static void check_rope(qn_test_dice *d, int64_t i)
{
    int64_t n_heads = 1 + qn_test_roll(d, 4), half = 1 + qn_test_roll(d, 70),
            head_dim = 2 * half + qn_test_roll(d, 2) * qn_test_roll(d, 40), n = n_heads * head_dim;
    int interleaved = (int)qn_test_roll(d, 2);
    const float *x = qn_test_sealed(qn_test_random_floats(d, n, -2, 2)),
                *c = qn_test_sealed(qn_test_random_floats(d, half, -1, 1)),
                *s = qn_test_sealed(qn_test_random_floats(d, half, -1, 1));
    float *expected = qn_test_floats(n);
    memcpy(expected, x, (size_t)n * sizeof *x);
    scalar->rope(expected, n_heads, head_dim, 2 * half, c, s, interleaved);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        float *whole = qn_test_floats(n), *parts = qn_test_floats(n);
        memcpy(whole, x, (size_t)n * sizeof *x);
        memcpy(parts, x, (size_t)n * sizeof *x);
        qn_test_at("%s rope, head_dim %d, rotary_dim %d", k->name, (int)head_dim, (int)(2 * half));
        k->rope(whole, n_heads, head_dim, 2 * half, c, s, interleaved);
        for (int64_t j = 0; j < n; j++) qn_test_near_float(whole[j], expected[j], 1e-6, j);
        for (int64_t h = 0; h < n_heads; h++)
            k->rope(parts + h * head_dim, 1, head_dim, 2 * half, c, s, interleaved);
        qn_test_same_floats(parts, whole, n);
    }
}

static void check_gemm_f32(qn_test_dice *d, int64_t i)
{
    qn_test_gemm_f32(d);
}

/* ---- conversions ------------------------------------------------------------------------------------- */

static const qn_dtype plain_types[] = {QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_F32};

static void check_to_f32(qn_test_dice *d, int64_t i)
{
    qn_dtype type = plain_types[i % 3];
    int64_t n = random_length(d);
    size_t bytes = (size_t)n * (type == QN_DTYPE_F32 ? 4 : 2);
    uint8_t *x = qn_test_guarded(bytes, type == QN_DTYPE_F32 ? 4 : 2);
    for (size_t j = 0; j < bytes; j++) x[j] = (uint8_t)qn_test_roll(d, 256);
    qn_test_sealed(x);
    float *expected = qn_test_floats(n);
    scalar->to_f32(type, x, expected, n);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        float *out = qn_test_floats(n);
        qn_test_at("%s to_f32, %s, n %d", *set, qn_dtype_name(type), (int)n);
        qn_kernels_by_name(*set)->to_f32(type, x, out, n);
        qn_test_same_bytes(out, expected, (size_t)n * sizeof *out);
    }
}

static void check_from_f32(qn_test_dice *d, int64_t i)
{
    qn_dtype type = plain_types[i % 3];
    size_t element = type == QN_DTYPE_F32 ? 4 : 2;
    int64_t n = random_length(d);
    float *x = qn_test_random_floats(d, n, -70000, 70000);
    for (int64_t j = 0; j < n; j += 2) x[j] = j % 4 ? special(d) : x[j] * 1e-9f;
    qn_test_sealed(x);
    void *expected = qn_test_guarded((size_t)n * element, element);
    scalar->from_f32(type, x, expected, n);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        void *out = qn_test_guarded((size_t)n * element, element);
        qn_test_at("%s from_f32, %s, n %d", *set, qn_dtype_name(type), (int)n);
        qn_kernels_by_name(*set)->from_f32(type, x, out, n);
        qn_test_same_bytes(out, expected, (size_t)n * element);
    }
}

/* ---- recurrent layers --------------------------------------------------------------------------------- */

static void check_short_conv(qn_test_dice *d, int64_t i)
{
    qn_test_short_conv(d);
}

static void check_gated_delta(qn_test_dice *d, int64_t i)
{
    qn_test_gated_delta(d);
}

static void check_gemm_bf16(qn_test_dice *d, int64_t i)
{
    qn_test_gemm_bf16(d);
}

static void check_panel_rows(qn_test_dice *d, int64_t i)
{
    qn_test_panel_rows(d);
}

static void check_panel_pairs(qn_test_dice *d, int64_t i)
{
    qn_test_panel_pairs(d);
}

/* ---- the table --------------------------------------------------------------------------------------- */

typedef struct {
    size_t offset, n_fields; /* of qn_kernels; more than one for an array */
    const char *name;
    void (*check)(qn_test_dice *d, int64_t i); /* problem i */
    int64_t n_problems;                        /* of a round */
} field;

#define FIELD(name, n)                                                                             \
    {                                                                                              \
        offsetof(qn_kernels, name), sizeof((qn_kernels *)0)->name / sizeof(void (*)(void)), #name, \
            check_##name, n                                                                        \
    }
static const field fields[] = {
    FIELD(pack, 100),        FIELD(unpack_row, 60),       FIELD(unpack_panel, 60), FIELD(act_pack, 200),
    FIELD(matmul, 160),      FIELD(kv_write, 20),         FIELD(attend, 60),       FIELD(attend_part, 30),
    FIELD(attend_merge, 10), FIELD(ew, 40 * QN_EW_COUNT), FIELD(rms_norm, 100),    FIELD(layer_norm, 100),
    FIELD(rope, 100),        FIELD(softmax, 100),         FIELD(sum, 100),         FIELD(max, 100),
    FIELD(dot, 100),         FIELD(gemm_f32, 60),         FIELD(to_f32, 100),      FIELD(from_f32, 100),
    FIELD(max_blocks, 100),  FIELD(sum_exp_blocks, 100),  FIELD(collect, 100),     FIELD(short_conv, 60),
    FIELD(ew_chain, 200),    FIELD(gated_delta, 60),      FIELD(gemm_bf16, 60),    FIELD(panel_rows, 40),
    FIELD(panel_pairs, 40),  FIELD(exp_scaled, 100)};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static void check_field(void **state)
{
    const field *f = *state;
    struct sigaction action = {.sa_handler = qn_test_crashed}, kept[2];
    sigaction(SIGSEGV, &action, &kept[0]);
    sigaction(SIGBUS, &action, &kept[1]);
    for (int64_t i = 0; i < f->n_problems * n_rounds; i++) {
        qn_test_dice d = {.seed = first_seed + (uint64_t)i};
        f->check(&d, i);
        qn_test_at("%s, problem %lld", f->name, (long long)i);
        qn_test_guarded_end();
    }
    sigaction(SIGSEGV, &kept[0], NULL);
    sigaction(SIGBUS, &kept[1], NULL);
}

/* What only sets have that multiply bf16 numbers. */
static int may_be_missing(int i)
{
    return i == offsetof(qn_kernels, gemm_bf16) / sizeof(void (*)(void)) ||
           i == offsetof(qn_kernels, panel_pairs) / sizeof(void (*)(void));
}

/* Behind the first five fields there are function pointers alone, and each is some field's above. */
static void every_field_is_checked(void **state)
{
    enum { N_POINTERS = sizeof(qn_kernels) / sizeof(void (*)(void)) };
    int covered[N_POINTERS] = {1, 1, 1, 1, 1};
    assert_int_equal(offsetof(qn_kernels, pack), 5 * sizeof(void (*)(void)));
    for (int i = 0; i < N_FIELDS; i++)
        for (size_t j = 0; j < fields[i].n_fields; j++)
            covered[fields[i].offset / sizeof(void (*)(void)) + j]++;
    for (int i = 0; i < N_POINTERS; i++)
        if (covered[i] != 1)
            fail_msg("pointer %d of qn_kernels is checked %d times: kernels.h has a field that fields[] of "
                     "tests/kernels/kernel_check_test.c has not, or twice",
                     i, covered[i]);
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int i = 5; i < N_POINTERS; i++) {
            void (*p)(void);
            memcpy(&p, (const char *)qn_kernels_by_name(*set) + (size_t)i * sizeof p, sizeof p);
            if (!p && !may_be_missing(i)) fail_msg("%s: pointer %d is NULL", *set, i);
        }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *end = "";
        if (strcmp(argv[i], "--speed") == 0) return qn_test_kernel_speed(argc - i - 1, argv + i + 1);
        if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            n_rounds = strtoll(argv[++i], &end, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
            first_seed = strtoull(argv[++i], &end, 10);
        } else {
            end = "?";
        }
        if (*end || n_rounds < 1) {
            fprintf(stderr, "usage: kernel_check [--rounds N] [--seed N] | --speed [--help]\n");
            return 2;
        }
    }
    scalar = qn_kernels_by_name("scalar");
    enum { OTHERS = 2 };
    struct CMUnitTest tests[OTHERS + N_FIELDS] = {cmocka_unit_test(every_field_is_checked),
                                                  cmocka_unit_test(large_products)};
    for (int i = 0; i < N_FIELDS; i++)
        tests[OTHERS + i] =
            (struct CMUnitTest){fields[i].name, check_field, NULL, NULL, (void *)(uintptr_t)&fields[i]};
    return _cmocka_run_group_tests("kernel_check", tests, OTHERS + N_FIELDS, NULL, NULL);
}
