/* Products with plain matrices by ids, and the sums that are their gradient: against sums in double, the same bits
 * for any number of workers and on every instruction set, and the statement in smaller primitives. */
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
#include "base/random.h"
#include "device/cpu/kernels/kernels.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { ROWS = 33, TOP = 3, MATRICES = 5, WIDE = 70, NARROW = 6, MOST = ROWS * TOP * WIDE };

/* ids of matrix 3 are missing; a row may name a matrix twice. */
static int32_t ids[ROWS * TOP];
static float x[MOST], y[MOST], w[MATRICES * WIDE * NARROW];

static int setup(void **state)
{
    for (int64_t i = 0; i < MOST; i++) x[i] = (float)qn_random_unit(1, (uint64_t)i) - 0.5f;
    for (int64_t i = 0; i < MOST; i++) y[i] = (float)qn_random_unit(2, (uint64_t)i) - 0.5f;
    for (int64_t i = 0; i < MATRICES * WIDE * NARROW; i++)
        w[i] = (float)qn_random_unit(3, (uint64_t)i) - 0.5f;
    for (int i = 0; i < ROWS * TOP; i++) {
        ids[i] = (int32_t)(qn_random_bits(4, (uint64_t)i) % MATRICES);
        if (ids[i] == 3) ids[i] = 1;
    }
    return 0;
}

typedef struct {
    int by_choice;  /* a vector for each choice, or one for all of a row's */
    int transposed; /* GATHER_MM */
    int64_t n, k;   /* of what comes out and goes in; of SCATTER_MM the two of a matrix */
} form;

static const form forms[] = {{0, 0, NARROW, WIDE}, {1, 0, NARROW, WIDE}, {0, 0, WIDE, NARROW},
                             {1, 0, WIDE, NARROW}, {0, 1, WIDE, NARROW}, {1, 1, NARROW, WIDE}};

static qn_array *vectors(qn_scope *s, const form *f, int64_t k)
{
    const int64_t dims[2] = {TOP, k};
    return qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, f->by_choice + 1, dims + !f->by_choice));
}

/* Both primitives as one program over `rows` rows: outputs one after the other in out. */
static void run(qn_device *d, const form *f, int64_t rows, float *out)
{
    const int64_t top = TOP;
    qn_program *program;
    qn_scope *s = qn_scope_new(d);
    qn_array *in[3] = {vectors(s, f, f->k), vectors(s, f, f->n),
                       qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 1, &top))};
    const int64_t dims[3] = {MATRICES, f->transposed ? f->k : f->n, f->transposed ? f->n : f->k};
    qn_params p = {.gather_mm = {.transposed = f->transposed}}, q = {.gather_mm = {.n_matrices = MATRICES}};
    qn_array *product[3] = {in[0], qn_from_data(s, QN_DTYPE_F32, 3, dims, w), in[2]};
    qn_array *sums[3] = {in[1], in[0], in[2]};
    qn_array *results[2] = {qn_apply(s, QN_PRIM_GATHER_MM, &p, 3, product, NULL, QN_DTYPE_F32),
                            qn_apply(s, QN_PRIM_SCATTER_MM, &q, 3, sums, NULL, QN_DTYPE_F32)};
    OK(qn_program_new(s, &(qn_program_options){.name = "gather", .max = {{ROWS, 0, 0}}}, 2, results,
                      &program));
    const int64_t each = f->by_choice ? TOP : 1;
    memcpy(qn_program_input(program, 0), x, (size_t)(rows * each * f->k) * sizeof *x);
    memcpy(qn_program_input(program, 1), y, (size_t)(rows * each * f->n) * sizeof *y);
    memcpy(qn_program_input(program, 2), ids, (size_t)(rows * TOP) * sizeof *ids);
    OK(qn_program_run(program, &(qn_sizes){{rows, 0, 0}}));
    memcpy(out, qn_program_output(program, 0), (size_t)(rows * TOP * f->n) * sizeof *out);
    memcpy(out + rows * TOP * f->n, qn_program_output(program, 1),
           (size_t)(MATRICES * f->n * f->k) * sizeof *out);
    qn_program_free(program);
    qn_scope_free(s);
}

static void expect(double got, double want, const char *what, int64_t at)
{
    if (!(fabs(got - want) <= 2e-5)) fail_msg("%s %d: %.8g, expected %.8g", what, (int)at, got, want);
}

static void check(const form *f, const float *out)
{
    const int64_t pairs = (int64_t)ROWS * TOP;
    for (int64_t p = 0; p < pairs; p++)
        for (int64_t i = 0; i < f->n; i++) {
            const float *from = x + (f->by_choice ? p : p / TOP) * f->k, *m = w + ids[p] * f->n * f->k;
            double sum = 0;
            for (int64_t k = 0; k < f->k; k++)
                sum += (double)from[k] * (double)m[f->transposed ? k * f->n + i : i * f->k + k];
            expect((double)out[p * f->n + i], sum, "product", p * f->n + i);
        }
    out += pairs * f->n;
    for (int64_t at = 0; at < MATRICES * f->n * f->k; at++) {
        double sum = 0;
        for (int64_t p = 0; p < pairs; p++)
            if (ids[p] == at / (f->n * f->k))
                sum += (double)y[(f->by_choice ? p : p / TOP) * f->n + at / f->k % f->n] *
                       (double)x[(f->by_choice ? p : p / TOP) * f->k + at % f->k];
        expect((double)out[at], sum, "sum", at);
    }
}

enum { OUT = ROWS * TOP * WIDE + MATRICES * WIDE * NARROW };

static void right_and_by_any_workers(void **state)
{
    static float first[OUT], other[OUT];
    const char *const *sets = qn_kernels_names();
    for (int i_set = 0; sets[i_set]; i_set++) {
        setenv("QUERN_CPU", sets[i_set], 1);
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
            for (int n_threads = 1; n_threads <= 3; n_threads++) {
                qn_device *d;
                OK(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &d));
                run(d, &forms[i], ROWS, other);
                check(&forms[i], other);
                if (n_threads == 1) memcpy(first, other, sizeof first);
                assert_memory_equal(first, other, (size_t)(ROWS * TOP * forms[i].n) * sizeof *first);
                run(d, &forms[i], 4, other); /* fewer rows have the same bits */
                assert_memory_equal(first, other, (size_t)(4 * TOP * forms[i].n) * sizeof *first);
                qn_device_close(d);
            }
    }
    unsetenv("QUERN_CPU");
}

static int supports_neither(qn_device *d, qn_prim prim)
{
    return prim != QN_PRIM_GATHER_MM && prim != QN_PRIM_SCATTER_MM;
}

static void in_smaller_primitives(void **state)
{
    static float out[OUT];
    qn_device *d;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 2}, &d));
    const qn_device_ops *ops = d->ops;
    qn_device_ops few = *ops;
    few.supports = supports_neither;
    d->ops = &few;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        run(d, &forms[i], ROWS, out);
        check(&forms[i], out);
    }
    d->ops = ops;
    qn_device_close(d);
}

static void what_does_not_fit_is_refused(void **state)
{
    qn_device *d;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &d));
    for (int i = 0; i < 5; i++) {
        qn_scope *s = qn_scope_new(d);
        qn_array *a = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){2, 4}, x),
                 *m = qn_from_data(s, QN_DTYPE_F32, 3, (int64_t[]){3, 5, i == 0 ? 3 : 4}, w),
                 *which = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){i == 1 ? 1 : 2, 2}, (int32_t[4]){0});
        qn_params p = {.gather_mm = {.n_matrices = i == 2 ? -1 : 3}};
        if (i == 3) a = qn_from_data(s, QN_DTYPE_F32, 3, (int64_t[]){2, 3, 4}, x); /* of three choices */
        qn_array *out =
            i == 2 ? qn_apply(s, QN_PRIM_SCATTER_MM, &p, 3, (qn_array *[]){a, a, which}, NULL, QN_DTYPE_F32)
                   : qn_gather_plain(s, a, i == 4 ? a : m, which);
        assert_null(out);
        assert_int_equal(qn_scope_status(s), QN_E_ARG);
        qn_scope_free(s);
    }
    const float rows[2 * 16] = {0};
    const qn_weight_part parts[2] = {{.data = rows}, {.data = rows + 16}};
    const qn_weight packed = {.dtype = QN_DTYPE_F32, .n_parts = 2, .n_out = 4, .n_in = 4, .parts = parts};
    qn_buffer *b;
    OK(d->ops->import_weights(d, 1, &packed, &b));
    qn_scope *s = qn_scope_new(d);
    qn_array *out =
        qn_gather_plain(s, qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){2, 4}, x),
                        qn_from_buffer(s, QN_DTYPE_F32, qn_shape_make(3, (int64_t[]){2, 4, 4}), b),
                        qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){2, 1}, (int32_t[2]){0}));
    assert_int_equal(qn_eval(s, 1, &out), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "plain matrices"));
    qn_scope_free(s);
    qn_buffer_release(b);
    qn_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(right_and_by_any_workers),
                                       cmocka_unit_test(in_smaller_primitives),
                                       cmocka_unit_test(what_does_not_fit_is_refused)};
    return cmocka_run_group_tests_name("gather_mm", tests, setup, NULL);
}
