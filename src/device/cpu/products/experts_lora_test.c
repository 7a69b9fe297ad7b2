/* Low-rank additions to products with chosen experts: against sums in double, and the same bits whatever rows stand
 * beside a row, however many workers there are and on every instruction set. */
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

enum { N_IN = 37, N_OUT = 53, ROWS = 23, TOP = 3, EXPERTS = 5, PAIRS = 3, RANK_MAX = 40 };
enum { FACTORS = EXPERTS * RANK_MAX * (N_IN + N_OUT) };

static const int32_t ranks[PAIRS] = {4, RANK_MAX, 0}; /* the last has nothing to add */
static float x[ROWS * TOP * N_IN], y[ROWS * TOP * N_OUT], share[ROWS * TOP], factors[PAIRS][FACTORS];
static int32_t adapters[ROWS], ids[ROWS * TOP];

static void fill(float *out, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) out[i] = (float)qn_random_unit(seed, (uint64_t)i) - 0.5f;
}

static int setup(void **state)
{
    fill(x, ROWS * TOP * N_IN, 1);
    fill(y, ROWS * TOP * N_OUT, 2);
    fill(share, ROWS * TOP, 3);
    for (int i = 0; i < PAIRS; i++) fill(factors[i], FACTORS, 4 + (uint64_t)i);
    for (int r = 0; r < ROWS; r++) {
        adapters[r] = (int32_t)(qn_random_bits(9, (uint64_t)r) % (PAIRS + 1)) - 1;
        for (int j = 0; j < TOP; j++) ids[r * TOP + j] = (r + 2 * j) % EXPERTS;
    }
    y[0] = -0.0f;
    adapters[0] = -1;
    return 0;
}

typedef struct {
    qn_device *device;
    qn_lora_pair pairs[PAIRS];
    qn_program *program;
    int by_choice, has_share;
} rig;

/* The program reads the pairs where they stand. */
static void open_rig(rig *r, int n_threads, int by_choice, int has_share)
{
    const int64_t top = TOP, in_dims[2] = {TOP, N_IN}, out_dims[2] = {TOP, N_OUT};
    *r = (rig){.by_choice = by_choice, .has_share = has_share};
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &r->device));
    for (int i = 0; i < PAIRS; i++) {
        qn_buffer *b;
        if (!ranks[i]) continue;
        OK(r->device->ops->alloc(r->device, sizeof factors[i], QN_LEDGER_WEIGHTS, &b));
        memcpy(b->data, factors[i], sizeof factors[i]);
        r->pairs[i] = (qn_lora_pair){.data = b,
                                     .b = (int64_t)EXPERTS * ranks[i] * N_IN,
                                     .gain = -1,
                                     .rank = ranks[i],
                                     .scale = 0.75f + (float)i};
    }
    qn_scope *s = qn_scope_new(r->device);
    qn_array *in = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1 + by_choice, in_dims + !by_choice));
    qn_array *product =
        qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2 - has_share, out_dims + has_share));
    qn_array *which = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 1, &top));
    qn_array *adapter = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL));
    qn_array *shares = has_share ? qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &top)) : NULL;
    qn_array *out =
        qn_experts_lora(s, &(qn_params_lora){r->pairs, PAIRS}, EXPERTS, in, product, which, adapter, shares);
    OK(qn_program_new(s, &(qn_program_options){.name = "experts", .max = {{ROWS, 0, 0}}}, 1, &out,
                      &r->program));
    qn_scope_free(s);
}

static void close_rig(rig *r)
{
    qn_program_free(r->program);
    for (int i = 0; i < PAIRS; i++) qn_buffer_release((qn_buffer *)(uintptr_t)r->pairs[i].data);
    qn_device_close(r->device);
}

static int64_t in_width(const rig *r)
{
    return (r->by_choice ? TOP : 1) * (int64_t)N_IN;
}

static int64_t out_width(const rig *r)
{
    return (r->has_share ? 1 : TOP) * (int64_t)N_OUT;
}

/* Rows [first, first + n), as the only ones. */
static void run_rows(rig *r, int64_t first, int64_t n, float *out)
{
    const int64_t wide = in_width(r), width = out_width(r);
    memcpy(qn_program_input(r->program, 0), x + first * wide, (size_t)(n * wide) * sizeof *x);
    memcpy(qn_program_input(r->program, 1), y + first * width, (size_t)(n * width) * sizeof *y);
    memcpy(qn_program_input(r->program, 2), ids + first * TOP, (size_t)(n * TOP) * sizeof *ids);
    memcpy(qn_program_input(r->program, 3), adapters + first, (size_t)n * sizeof *adapters);
    if (r->has_share)
        memcpy(qn_program_input(r->program, 4), share + first * TOP, (size_t)(n * TOP) * sizeof *share);
    OK(qn_program_run(r->program, &(qn_sizes){{n, 0, 0}}));
    memcpy(out, qn_program_output(r->program, 0), (size_t)(n * width) * sizeof *out);
}

/* What choice j of a row adds to output o. */
static double addition(const rig *r, int64_t row, int64_t j, int64_t o)
{
    const int32_t id = adapters[row], rank = id < 0 ? 0 : ranks[id];
    const int64_t e = ids[row * TOP + j];
    const float *from = x + row * in_width(r) + (r->by_choice ? j * N_IN : 0);
    double sum = 0;
    for (int64_t k = 0; k < rank; k++) {
        const float *a = factors[id] + (e * rank + k) * N_IN,
                    *b = factors[id] + ((int64_t)EXPERTS * rank * N_IN) + (e * rank + k) * N_OUT;
        double h = 0;
        for (int64_t i = 0; i < N_IN; i++) h += (double)a[i] * (double)from[i];
        sum += (double)r->pairs[id].scale * h * (double)b[o];
    }
    return r->has_share ? sum * (double)share[row * TOP + j] : sum;
}

static void close_to_double(const rig *r, const float *out)
{
    const int64_t width = out_width(r);
    for (int64_t i = 0; i < ROWS * width; i++) {
        const int64_t row = i / width, o = i % N_OUT, j = i % width / N_OUT;
        double want = (double)y[i];
        for (int64_t k = 0; r->has_share && k < TOP; k++) want += addition(r, row, k, o);
        if (!r->has_share) want += addition(r, row, j, o);
        if (!(fabs(want - (double)out[i]) <= 3e-5))
            fail_msg("row %d, number %d: %g, expected %g", (int)row, (int)(i % width), (double)out[i], want);
        if (adapters[row] < 0 || !ranks[adapters[row]]) /* bit for bit, a negative zero included */
            assert_memory_equal(&out[i], &y[i], sizeof *y);
    }
}

static void rows_in_any_company(void **state)
{
    static float whole[ROWS * TOP * N_OUT], piece[ROWS * TOP * N_OUT];
    const char *const *sets = qn_kernels_names();
    for (int i_set = 0; sets[i_set]; i_set++) {
        setenv("QUERN_CPU", sets[i_set], 1);
        for (int way = 0; way < 4 * 3; way++) {
            rig r;
            open_rig(&r, 1 + way / 4, way & 1, way >> 1 & 1);
            run_rows(&r, 0, ROWS, whole);
            close_to_double(&r, whole);
            for (int64_t n = 1; n < ROWS; n += 3)
                for (int64_t first = 0; first + n <= ROWS; first += n) {
                    run_rows(&r, first, n, piece);
                    assert_memory_equal(piece, whole + first * out_width(&r),
                                        (size_t)(n * out_width(&r)) * sizeof *piece);
                }
            close_rig(&r);
        }
    }
    unsetenv("QUERN_CPU");
}

static void what_does_not_fit_is_refused(void **state)
{
    qn_device *d;
    static const qn_lora_pair pair;
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = 1}, &d));
    for (int i = 0; i < 7; i++) {
        qn_scope *s = qn_scope_new(d);
        qn_array *in = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){2, 4}, x),
                 *product = qn_from_data(s, QN_DTYPE_F32, 3, (int64_t[]){2, i == 0 ? 2 : 3, 5}, y),
                 *which = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){i == 1 ? 1 : 2, 3}, ids),
                 *rows = qn_from_data(s, QN_DTYPE_I32, 1, &(int64_t){i == 2 ? 1 : 2}, adapters),
                 *shares = i == 3 ? qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){2, 3}, share) : NULL;
        if (i == 4) in = qn_from_data(s, QN_DTYPE_F32, 3, (int64_t[]){2, 2, 4}, x);
        assert_null(qn_experts_lora(s, &(qn_params_lora){i == 5 ? NULL : &pair, 1}, i == 6 ? 0 : 4, in,
                                    product, which, rows, shares));
        assert_int_equal(qn_scope_status(s), QN_E_ARG);
        qn_scope_free(s);
    }
    qn_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_in_any_company),
                                       cmocka_unit_test(what_does_not_fit_is_refused)};
    return cmocka_run_group_tests_name("experts_lora", tests, setup, NULL);
}
