/* Low-rank additions: against sums in double, and the same bits whatever rows stand beside a row, however
 * many workers there are and on every instruction set. */
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

enum { N_IN = 37, N_OUT = 53, ROWS = 41, PAIRS = 4, RANK_MAX = 300 };

static const int32_t ranks[PAIRS] = {1, 5, RANK_MAX, 0}; /* the last has nothing to add */
static float x[ROWS * N_IN], y[ROWS * N_OUT], weights[PAIRS][RANK_MAX * (N_IN + N_OUT) + N_OUT];
static int32_t adapters[ROWS];

static void fill(float *out, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) out[i] = (float)qn_random_unit(seed, (uint64_t)i) - 0.5f;
}

static int setup(void **state)
{
    fill(x, ROWS * N_IN, 1);
    fill(y, ROWS * N_OUT, 2);
    for (int i = 0; i < PAIRS; i++) fill(weights[i], RANK_MAX * (N_IN + N_OUT) + N_OUT, 3 + (uint64_t)i);
    for (int i = 0; i < ROWS; i++) adapters[i] = (int32_t)(qn_random_bits(9, (uint64_t)i) % 5) - 1;
    for (int i = 20; i < 33; i++) adapters[i] = 2; /* a run that is longer than a tile */
    y[0] = -0.0f;
    adapters[0] = -1;
    return 0;
}

typedef struct {
    qn_device *device;
    qn_lora_pair pairs[PAIRS];
    qn_program *program;
} rig;

static rig open_rig(int n_threads)
{
    rig r = {0};
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &r.device));
    for (int i = 0; i < PAIRS; i++) {
        qn_buffer *b;
        if (!ranks[i]) continue;
        OK(r.device->ops->alloc(r.device, sizeof weights[i], QN_LEDGER_WEIGHTS, &b));
        memcpy(b->data, weights[i], sizeof weights[i]);
        r.pairs[i] = (qn_lora_pair){.data = b,
                                    .b = (int64_t)ranks[i] * N_IN,
                                    .gain = i == 1 ? (int64_t)ranks[i] * (N_IN + N_OUT) : -1,
                                    .rank = ranks[i],
                                    .scale = 0.75f + (float)i};
    }
    return r;
}

/* The program reads the pairs where they stand: r must not move any more. */
static void compile(rig *r)
{
    qn_scope *s = qn_scope_new(r->device);
    int64_t n_in = N_IN, n_out = N_OUT;
    qn_array *in = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &n_in));
    qn_array *product = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &n_out));
    qn_array *ids = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL));
    qn_array *out = qn_lora(s, &(qn_params_lora){r->pairs, PAIRS}, in, product, ids);
    OK(qn_program_new(s, &(qn_program_options){.name = "lora", .max = {{ROWS, 0, 0}}}, 1, &out, &r->program));
    qn_scope_free(s);
}

static void close_rig(rig *r)
{
    qn_program_free(r->program);
    for (int i = 0; i < PAIRS; i++) qn_buffer_release((qn_buffer *)(uintptr_t)r->pairs[i].data);
    qn_device_close(r->device);
}

/* Rows [first, first + n), as the only ones. */
static void run_rows(rig *r, int64_t first, int64_t n, float *out)
{
    memcpy(qn_program_input(r->program, 0), x + first * N_IN, (size_t)n * N_IN * sizeof *x);
    memcpy(qn_program_input(r->program, 1), y + first * N_OUT, (size_t)n * N_OUT * sizeof *y);
    memcpy(qn_program_input(r->program, 2), adapters + first, (size_t)n * sizeof *adapters);
    OK(qn_program_run(r->program, &(qn_sizes){{n, 0, 0}}));
    memcpy(out, qn_program_output(r->program, 0), (size_t)n * N_OUT * sizeof *out);
}

static void close_to_double(const rig *r, const float *out)
{
    for (int64_t i = 0; i < ROWS; i++) {
        int32_t id = adapters[i];
        for (int64_t o = 0; o < N_OUT; o++) {
            double sum = y[i * N_OUT + o];
            for (int32_t k = 0; id >= 0 && k < ranks[id]; k++) {
                double h = 0;
                for (int64_t j = 0; j < N_IN; j++)
                    h += (double)weights[id][k * N_IN + j] * (double)x[i * N_IN + j];
                sum += (double)r->pairs[id].scale * h * (double)weights[id][ranks[id] * N_IN + k * N_OUT + o];
            }
            if (id == 1) sum *= (double)weights[1][ranks[1] * (N_IN + N_OUT) + o];
            if (fabs(sum - (double)out[i * N_OUT + o]) > 3e-5)
                fail_msg("row %d, column %d: %g, expected %g", (int)i, (int)o, (double)out[i * N_OUT + o],
                         sum);
        }
        if (id < 0 || !ranks[id]) /* bit for bit, a negative zero included */
            assert_memory_equal(out + i * N_OUT, y + i * N_OUT, N_OUT * sizeof *y);
    }
}

static void rows_in_any_company(void **state)
{
    static float whole[ROWS * N_OUT], piece[ROWS * N_OUT];
    const char *const *sets = qn_kernels_names();
    for (int i_set = 0; sets[i_set]; i_set++) {
        setenv("QUERN_CPU", sets[i_set], 1);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            rig r = open_rig(n_threads);
            compile(&r);
            run_rows(&r, 0, ROWS, whole);
            close_to_double(&r, whole);
            for (int64_t n = 1; n < ROWS; n += 3)
                for (int64_t first = 0; first + n <= ROWS; first += n) {
                    run_rows(&r, first, n, piece);
                    assert_memory_equal(piece, whole + first * N_OUT, (size_t)n * N_OUT * sizeof *piece);
                }
            close_rig(&r);
        }
    }
    unsetenv("QUERN_CPU");
}

/* What an adapter adds may be taken away and given between two runs. */
static void pairs_change_between_runs(void **state)
{
    static float with[ROWS * N_OUT], without[ROWS * N_OUT], again[ROWS * N_OUT];
    rig r = open_rig(2);
    compile(&r);
    run_rows(&r, 0, ROWS, with);
    qn_lora_pair kept[PAIRS];
    memcpy(kept, r.pairs, sizeof kept);
    memset(r.pairs, 0, sizeof r.pairs);
    run_rows(&r, 0, ROWS, without);
    assert_memory_equal(without, y, sizeof y);
    memcpy(r.pairs, kept, sizeof kept);
    run_rows(&r, 0, ROWS, again);
    assert_memory_equal(again, with, sizeof with);
    close_rig(&r);
}

static void what_does_not_fit_is_refused(void **state)
{
    rig r = open_rig(1);
    int64_t n_in = N_IN, two = 2;
    qn_params_lora p = {r.pairs, PAIRS}, none = {0};
    for (int i = 0; i < 4; i++) {
        qn_scope *s = qn_scope_new(r.device);
        qn_array *in = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &n_in));
        qn_array *other = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_S, 1, &two));
        qn_array *ids = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL));
        assert_null(
            qn_lora(s, i == 3 ? &none : &p, i == 0 ? ids : in, i == 1 ? other : in, i == 2 ? in : ids));
        assert_int_equal(qn_scope_status(s), QN_E_ARG);
        qn_scope_free(s);
    }
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_in_any_company),
        cmocka_unit_test(pairs_change_between_runs),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests_name("lora", tests, setup, NULL);
}
