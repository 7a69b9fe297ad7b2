#include "tests/kernels/kernel_recurrent.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/kernels/kernel_compare.h"

/* Strides are so much wider than rows: what lies between must stay as it was. */
enum { APART = 3 };

static float *copy_of(const float *x, int64_t n)
{
    return memcpy(qn_test_floats(n), x, (size_t)n * sizeof *x);
}

/* Elements of n_rows rows that are `stride` apart. */
static int64_t spread(int64_t n_rows, int64_t stride, int64_t width)
{
    return (n_rows - 1) * stride + width;
}

static void compare_rows(const float *got, const float *expected, int64_t n_rows, int64_t stride,
                         int64_t width)
{
    for (int64_t r = 0; r < n_rows; r++) qn_test_same_floats(got + r * stride, expected + r * stride, width);
}

/* ---- short convolution ------------------------------------------------------------------------------- */

static void conv_in_pieces(qn_test_dice *d, const qn_kernels *k, qn_conv_args a)
{
    for (int64_t r = 0, n; r < a.n_rows; r += n) {
        qn_conv_args part = a;
        part.n_rows = n = 1 + qn_test_roll(d, a.n_rows - r);
        part.x += r * a.x_stride;
        part.out += r * a.out_stride;
        for (int64_t c = 0, m; c < a.channels; c += m) {
            m = 1 + qn_test_roll(d, a.channels - c);
            k->short_conv(&part, c, c + m);
        }
    }
}

void qn_test_short_conv(qn_test_dice *d)
{
    qn_conv_args a = {.n_rows = 1 + qn_test_roll(d, 9),
                      .channels = 1 + qn_test_roll(d, 70),
                      .kernel = 1 + qn_test_roll(d, 6)};
    int64_t kept = a.kernel - 1, n_state = kept * a.channels;
    a.x_stride = a.channels + APART;
    a.out_stride = a.channels + APART - 1;
    int64_t n_out = spread(a.n_rows, a.out_stride, a.channels);
    float *state = qn_test_sealed(qn_test_random_floats(d, n_state, -2, 2)),
          *expected = qn_test_floats(n_out);
    a.x = qn_test_sealed(qn_test_random_floats(d, spread(a.n_rows, a.x_stride, a.channels), -2, 2));
    a.w = qn_test_sealed(qn_test_random_floats(d, a.kernel * a.channels, -1, 1));
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        qn_test_at("%s short_conv, %d rows, %d channels, kernel %d", *set, (int)a.n_rows, (int)a.channels,
                   (int)a.kernel);
        float *left = a.state = copy_of(state, n_state);
        a.out = expected;
        k->short_conv(&a, 0, a.channels);
        for (int64_t r = 0; r < a.n_rows; r++)
            for (int64_t c = 0; c < a.channels; c++) {
                double sum = 0;
                for (int64_t t = 0; t < a.kernel; t++) {
                    int64_t at = r + t - kept;
                    sum += (double)a.w[t * a.channels + c] *
                           (at < 0 ? state[(at + kept) * a.channels + c] : a.x[at * a.x_stride + c]);
                }
                qn_test_near_float(a.out[r * a.out_stride + c], sum, 4e-6, r * a.channels + c);
            }
        for (int64_t t = 0; t < kept; t++) {
            int64_t at = a.n_rows + t - kept;
            qn_test_same_floats(left + t * a.channels,
                                at < 0 ? state + (at + kept) * a.channels : a.x + at * a.x_stride,
                                a.channels);
        }
        a.state = copy_of(state, n_state);
        a.out = qn_test_floats(n_out);
        conv_in_pieces(d, k, a);
        qn_test_same_floats(a.state, left, n_state);
        compare_rows(a.out, expected, a.n_rows, a.out_stride, a.channels);
    }
}

/* ---- gated delta rule -------------------------------------------------------------------------------- */

/* In double, over its own state [dk][dv], which it changes. */
static void delta_row(const qn_delta_args *a, int64_t r, double *state, double *out)
{
    const float *q = a->q + r * a->q_stride, *k = a->k + r * a->k_stride, *v = a->v + r * a->v_stride;
    const float *g = a->g + r * a->g_stride;
    for (int64_t c = 0; c < a->dv; c++) {
        double sum = 0, delta;
        for (int64_t i = 0; i < a->dk; i++)
            sum += k[i] * (state[i * a->dv + c] *= a->by_channel ? (double)g[i] : exp((double)*g));
        delta = a->beta[r * a->beta_stride] * (v[c] - (a->additive ? 0 : sum));
        out[c] = 0;
        for (int64_t i = 0; i < a->dk; i++) out[c] += q[i] * (state[i * a->dv + c] += k[i] * delta);
    }
}

static void delta_in_pieces(qn_test_dice *d, const qn_kernels *k, qn_delta_args a)
{
    for (int64_t r = 0, n; r < a.n_rows; r += n) {
        qn_delta_args part = a;
        part.n_rows = n = 1 + qn_test_roll(d, a.n_rows - r);
        part.q += r * a.q_stride;
        part.k += r * a.k_stride;
        part.v += r * a.v_stride;
        part.g += r * a.g_stride;
        part.beta += r * a.beta_stride;
        part.out += r * a.out_stride;
        for (int64_t c = 0, m; c < a.dv; c += m) {
            m = 1 + qn_test_roll(d, a.dv - c);
            k->gated_delta(&part, c, c + m);
        }
    }
}

void qn_test_gated_delta(qn_test_dice *d)
{
    enum { DV_MAX = 150, STATE_MAX = 40 * DV_MAX };
    static double state64[STATE_MAX], out64[DV_MAX];
    qn_delta_args a = {.n_rows = 1 + qn_test_roll(d, 7),
                       .dk = 1 + qn_test_roll(d, 40),
                       .dv = 1 + qn_test_roll(d, DV_MAX),
                       .by_channel = (int)qn_test_roll(d, 2),
                       .additive = (int)qn_test_roll(d, 2),
                       .beta_stride = 1 + qn_test_roll(d, 4)};
    const int64_t decays = a.by_channel ? a.dk : 1;
    a.g_stride = decays + qn_test_roll(d, 4);
    a.q_stride = a.k_stride = a.dk + APART;
    a.v_stride = a.dv + APART;
    a.out_stride = a.dv + 1;
    int64_t n_state = a.dk * a.dv, n_out = spread(a.n_rows, a.out_stride, a.dv);
    double unit = 1.7 / sqrt((double)a.dk); /* rows of q and k about as long as 1 */
    float *state = qn_test_sealed(qn_test_random_floats(d, n_state, -1, 1)),
          *expected = qn_test_floats(n_out);
    a.q = qn_test_sealed(qn_test_random_floats(d, spread(a.n_rows, a.q_stride, a.dk), -unit, unit));
    a.k = qn_test_sealed(qn_test_random_floats(d, spread(a.n_rows, a.k_stride, a.dk), -unit, unit));
    a.v = qn_test_sealed(qn_test_random_floats(d, spread(a.n_rows, a.v_stride, a.dv), -1, 1));
    a.g = qn_test_sealed(qn_test_random_floats(d, spread(a.n_rows, a.g_stride, decays), a.by_channel ? 0 : -3,
                                               a.by_channel ? 1 : 0));
    a.beta = qn_test_sealed(qn_test_random_floats(d, spread(a.n_rows, a.beta_stride, 1), 0, 1));
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        qn_test_at("%s gated_delta, %d rows, dk %d, dv %d", *set, (int)a.n_rows, (int)a.dk, (int)a.dv);
        float *left = a.state = copy_of(state, n_state);
        a.out = expected;
        k->gated_delta(&a, 0, a.dv);
        for (int64_t i = 0; i < n_state; i++) state64[i] = state[i];
        for (int64_t r = 0; r < a.n_rows; r++) {
            delta_row(&a, r, state64, out64);
            for (int64_t c = 0; c < a.dv; c++)
                qn_test_near_float(a.out[r * a.out_stride + c], out64[c], 2e-5, r * a.dv + c);
        }
        for (int64_t i = 0; i < n_state; i++) qn_test_near_float(left[i], state64[i], 2e-5, i);
        a.state = copy_of(state, n_state);
        a.out = qn_test_floats(n_out);
        delta_in_pieces(d, k, a);
        qn_test_same_floats(a.state, left, n_state);
        compare_rows(a.out, expected, a.n_rows, a.out_stride, a.dv);
    }
}
