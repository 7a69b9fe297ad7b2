/* Losses by a head and their gradients: against sums in double and central differences, against the fallback,
 * the same bits with any number of workers and in any company, and without holding the logits. */
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
#include "tests/support/models/packed_weight.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { K = 64, V_MAX = 700, ROWS = 37, MANY = 1100 /* more than go through a head together */ };

typedef struct {
    qn_dtype dtype; /* QN_DTYPE_COUNT: plain */
    int64_t vocab;
    float scale, softcap;
} subject;

static const subject subjects[] = {
    {QN_DTYPE_COUNT, 700, 1, 0},   {QN_DTYPE_COUNT, 257, 0.5f, 3}, {QN_DTYPE_COUNT, 5, 1, 2},
    {QN_DTYPE_F32, 300, 1, 0},     {QN_DTYPE_Q4_1, 700, 1, 0},     {QN_DTYPE_Q8_0, 513, 0.25f, 0},
    {QN_DTYPE_BF16, 130, 1, 2.5f}, {QN_DTYPE_Q4_0, 33, 2, 4},
};
enum { N_SUBJECTS = sizeof subjects / sizeof *subjects };

static float drawn[MANY * K], rows[MANY * K], shares[MANY], numbers[V_MAX * K];
static int32_t targets[MANY];
static double largest; /* of the head; rows are divided by it, so that gradients are as large as that */

typedef struct {
    float losses[MANY], by_rows[MANY * K], by_head[V_MAX * K];
} results;

static int supports_none(qn_device *d, qn_prim prim)
{
    return prim != QN_PRIM_CROSS_ENTROPY && prim != QN_PRIM_CROSS_ENTROPY_GRAD;
}

/* Losses and the gradients of their sum weighted by shares. */
static size_t run(const subject *t, qn_precision precision, int n_threads, int by_fallback, int64_t n_max,
                  int64_t n, results *out)
{
    const int64_t k = K, one = 1;
    const int plain = t->dtype == QN_DTYPE_COUNT;
    qn_device *d;
    qn_program *p;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &d));
    const qn_device_ops *ops = d->ops;
    qn_device_ops few = *ops;
    few.supports = supports_none;
    if (by_fallback) d->ops = &few;
    qn_scope *s = qn_scope_new(d);
    qn_buffer *b = qn_test_packed_weight(d, t->dtype, t->vocab, K, numbers);
    qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_L, 1, &k)),
             *ids =
                 qn_input(s, QN_DTYPE_I32,
                          t->vocab % 2 ? qn_shape_sym(QN_SYM_L, 0, NULL) : qn_shape_sym(QN_SYM_L, 1, &one)),
             *share = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_L, 1, &one)),
             *w = qn_from_buffer(s, plain ? QN_DTYPE_F32 : t->dtype,
                                 qn_shape_make(2, (int64_t[]){t->vocab, K}), b),
             *wrt[2] = {x, w}, *outputs[3] = {NULL};
    outputs[0] = qn_head_loss(s, x, w, ids, t->scale, t->softcap);
    OK(qn_vjp(s, outputs[0], share, plain ? 2 : 1, wrt, outputs + 1));
    OK(qn_program_new(s,
                      &(qn_program_options){.name = "head", .max = {{0, 0, n_max}}, .precision = precision},
                      plain ? 3 : 2, outputs, &p));
    memcpy(qn_program_input(p, 0), rows, (size_t)(n * K) * sizeof *rows);
    memcpy(qn_program_input(p, 1), targets, (size_t)n * sizeof *targets);
    memcpy(qn_program_input(p, 2), shares, (size_t)n * sizeof *shares);
    for (int i = 0; i < 2; i++) OK(qn_program_run(p, &(qn_sizes){{0, 0, n}}));
    memcpy(out->losses, qn_program_output(p, 0), (size_t)n * sizeof(float));
    memcpy(out->by_rows, qn_program_output(p, 1), (size_t)(n * K) * sizeof(float));
    if (plain) memcpy(out->by_head, qn_program_output(p, 2), (size_t)(t->vocab * K) * sizeof(float));
    const size_t bytes = qn_ledger_held(d->ledger, QN_LEDGER_SCRATCH);
    qn_program_free(p);
    qn_scope_free(s);
    qn_buffer_release(b);
    d->ops = ops;
    qn_device_close(d);
    return bytes;
}

static void set_up(const subject *t)
{
    qn_device *d;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &d));
    qn_buffer_release(qn_test_packed_weight(d, t->dtype, t->vocab, K, numbers));
    qn_device_close(d);
    largest = 0;
    for (int64_t i = 0; i < t->vocab * K; i++) largest = fmax(largest, fabs((double)numbers[i]));
    for (int64_t i = 0; i < MANY * K; i++) rows[i] = (float)(drawn[i] / largest);
    for (int64_t i = 0; i < MANY; i++)
        targets[i] = (int32_t)(qn_random_bits(5, (uint64_t)i) % (uint64_t)t->vocab);
    targets[0] = 0;
    targets[1] = (int32_t)t->vocab - 1;
}

static double loss_of(const subject *t, const double *x, int64_t target)
{
    double z[V_MAX], most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < t->vocab; v++) {
        z[v] = 0;
        for (int64_t i = 0; i < K; i++) z[v] += x[i] * numbers[v * K + i];
        z[v] *= t->scale;
        if (t->softcap > 0) z[v] = t->softcap * tanh(z[v] / t->softcap);
        most = fmax(most, z[v]);
    }
    for (int64_t v = 0; v < t->vocab; v++) sum += exp(z[v] - most);
    return most + log(sum) - z[target];
}

static void near(const subject *t, const char *what, int64_t i, double got, double expected, double bound)
{
    if (!(fabs(got - expected) <= bound))
        fail_msg("%s, %lld: %s %lld is %.9g, not %.9g",
                 t->dtype == QN_DTYPE_COUNT ? "plain" : qn_dtype_name(t->dtype), (long long)t->vocab, what,
                 (long long)i, got, expected);
}

static void agrees_with_double(void **state)
{
    results *got = qn_alloc(sizeof *got);
    assert_non_null(got);
    for (int i = 0; i < N_SUBJECTS; i++) {
        const subject *t = &subjects[i];
        set_up(t);
        run(t, QN_PRECISION_EXACT, 2, 0, ROWS, ROWS, got);
        for (int64_t r = 0; r < ROWS; r++) {
            double x[K];
            for (int j = 0; j < K; j++) x[j] = rows[r * K + j];
            near(t, "the loss of row", r, got->losses[r], loss_of(t, x, targets[r]), 1e-5);
            for (int j = (int)r % 7; j < K; j += 7) {
                const double kept = x[j], h = 1e-5 / largest;
                x[j] = kept + h;
                double up = loss_of(t, x, targets[r]);
                x[j] = kept - h;
                double slope = shares[r] * (up - loss_of(t, x, targets[r])) / (2 * h);
                x[j] = kept;
                near(t, "the gradient by element", r * K + j, got->by_rows[r * K + j], slope, 2e-5 * largest);
            }
        }
    }
    qn_free(got);
}

/* In exact programs the two differ in rounding alone. */
static void agrees_with_the_fallback(void **state)
{
    results *got = qn_alloc(2 * sizeof *got), *expected = got + 1;
    assert_non_null(got);
    for (int i = 0; i < N_SUBJECTS; i++) {
        const subject *t = &subjects[i];
        set_up(t);
        run(t, QN_PRECISION_EXACT, 2, 0, ROWS, ROWS, got);
        run(t, QN_PRECISION_EXACT, 2, 1, ROWS, ROWS, expected);
        for (int64_t r = 0; r < ROWS; r++)
            near(t, "the loss of row", r, got->losses[r], expected->losses[r], 1e-5);
        for (int64_t j = 0; j < ROWS * K; j++)
            near(t, "the gradient by element", j, got->by_rows[j], expected->by_rows[j], 5e-6 * largest);
        for (int64_t j = 0; t->dtype == QN_DTYPE_COUNT && j < t->vocab * K; j++)
            near(t, "the gradient by the head's", j, got->by_head[j], expected->by_head[j], 5e-6);
        run(t, QN_PRECISION_HIGH, 2, 0, ROWS, ROWS, expected);
        for (int64_t r = 0; r < ROWS; r++)
            near(t, "the loss of row", r, expected->losses[r], got->losses[r], 2e-2);
        for (int64_t j = 0; j < ROWS * K; j++)
            near(t, "the gradient by element", j, expected->by_rows[j], got->by_rows[j], 2e-2 * largest);
    }
    qn_free(got);
}

static void same_bits_in_any_company(void **state)
{
    results *got = qn_alloc(2 * sizeof *got), *other = got + 1;
    assert_non_null(got);
    for (int i = 0; i < N_SUBJECTS; i++)
        for (int high = 0; high < 2; high++) {
            const subject *t = &subjects[i];
            const qn_precision precision = high ? QN_PRECISION_HIGH : QN_PRECISION_EXACT;
            set_up(t);
            run(t, precision, 1, 0, MANY, MANY, got);
            run(t, precision, 3, 0, MANY, MANY, other);
            assert_memory_equal(got->losses, other->losses, sizeof got->losses);
            assert_memory_equal(got->by_rows, other->by_rows, sizeof got->by_rows);
            if (t->dtype == QN_DTYPE_COUNT)
                assert_memory_equal(got->by_head, other->by_head, (size_t)(t->vocab * K) * sizeof(float));
            run(t, precision, 2, 0, MANY, ROWS, other);
            assert_memory_equal(got->losses, other->losses, ROWS * sizeof(float));
            assert_memory_equal(got->by_rows, other->by_rows, ROWS * K * sizeof(float));
        }
    qn_free(got);
}

/* The fallback holds several arrays as large as the logits. */
static void logits_are_not_held(void **state)
{
    const subject *t = &subjects[4];
    results *out = qn_alloc(sizeof *out);
    assert_non_null(out);
    set_up(t);
    const size_t logits = (size_t)(MANY * t->vocab) * sizeof(float),
                 fused = run(t, QN_PRECISION_EXACT, 1, 0, MANY, MANY, out),
                 whole = run(t, QN_PRECISION_EXACT, 1, 1, MANY, MANY, out);
    if (fused + 2 * logits > whole) fail_msg("%zu bytes, and %zu with all logits", fused, whole);
    qn_free(out);
}

static int setup(void **state)
{
    for (int64_t i = 0; i < MANY * K; i++) drawn[i] = 2 * (float)qn_random_unit(1, (uint64_t)i) - 1;
    for (int64_t i = 0; i < MANY; i++) shares[i] = (float)qn_random_unit(2, (uint64_t)i) - 0.3f;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_double), cmocka_unit_test(agrees_with_the_fallback),
        cmocka_unit_test(same_bits_in_any_company), cmocka_unit_test(logits_are_not_held)};
    return cmocka_run_group_tests_name("cross_entropy", tests, setup, NULL);
}
