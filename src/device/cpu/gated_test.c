/* Products, the chain that alone reads them and the packing behind it as one step: the bits of the steps on
 * their own, which a probe takes apart, whatever the rows, the workers and the activations are. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdlib.h>
#include <string.h>

#include "array/program.h"
#include "base/random.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/kernels.h"
#include "tests/support/models/packed_weight.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

enum { ROWS = 600, WIDTH = 256, WIDEST = 1024 };

typedef enum { SILU_TIMES_UP, SQUARE, UP_TIMES_GATE, GATE_IS_READ, CHAIN_IS_READ, SUM_IS_READ } form;

typedef struct {
    form form;
    qn_dtype gate, up, down;
    int64_t width, hidden;
    qn_precision precision;
    int is_one; /* 1: step, if its rows fit a cache */
} layer;

static const layer layers[] = {
    {SILU_TIMES_UP, QN_DTYPE_Q4_0, QN_DTYPE_Q8_0, QN_DTYPE_Q4_1, WIDTH, 352, QN_PRECISION_FAST, 1},
    {SILU_TIMES_UP, QN_DTYPE_Q4_K, QN_DTYPE_Q6_K, QN_DTYPE_Q8_0, WIDTH, 96, QN_PRECISION_HIGH, 1},
    {SILU_TIMES_UP, QN_DTYPE_BF16, QN_DTYPE_BF16, QN_DTYPE_BF16, WIDTH, 160, QN_PRECISION_FAST, 1},
    {SILU_TIMES_UP, QN_DTYPE_F16, QN_DTYPE_F16, QN_DTYPE_F16, WIDTH, 64, QN_PRECISION_EXACT, 1},
    {SILU_TIMES_UP, QN_DTYPE_Q5_0, QN_DTYPE_Q5_0, QN_DTYPE_BF16, WIDTH, 64, QN_PRECISION_FAST, 1},
    {UP_TIMES_GATE, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, WIDTH, 128, QN_PRECISION_FAST, 1},
    {SQUARE, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, WIDTH, 128, QN_PRECISION_FAST, 1},
    {SILU_TIMES_UP, QN_DTYPE_Q8_0, QN_DTYPE_Q8_0, QN_DTYPE_Q8_0, WIDEST, 64, QN_PRECISION_EXACT, 1},
    /* parts of blocks, inputs that are packed in two ways, other readers */
    {SILU_TIMES_UP, QN_DTYPE_BF16, QN_DTYPE_BF16, QN_DTYPE_BF16, WIDTH, 80, QN_PRECISION_FAST, 0},
    {SILU_TIMES_UP, QN_DTYPE_Q4_0, QN_DTYPE_BF16, QN_DTYPE_Q8_0, WIDTH, 96, QN_PRECISION_FAST, 0},
    {GATE_IS_READ, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, WIDTH, 128, QN_PRECISION_FAST, 0},
    {CHAIN_IS_READ, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, WIDTH, 128, QN_PRECISION_FAST, 0},
    {SUM_IS_READ, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, QN_DTYPE_Q4_0, WIDTH, 128, QN_PRECISION_FAST, 0},
};
enum { N_LAYERS = sizeof layers / sizeof *layers };

static float x[ROWS * WIDEST];

typedef struct {
    qn_device *device;
    qn_buffer *weights[3];
    qn_program *program;
    int64_t width;
} rig;

static qn_array *product(rig *r, qn_scope *s, int i, qn_array *a, qn_dtype dtype, int64_t n_out, int64_t n_in)
{
    r->weights[i] = qn_test_packed_weight(r->device, dtype, n_out, n_in, NULL);
    return qn_linear(s, a,
                     qn_from_buffer(s, dtype, qn_shape_make(2, (int64_t[]){n_out, n_in}), r->weights[i]));
}

static rig open_rig(const layer *l, int n_threads, int64_t most)
{
    rig r = {.width = l->width};
    OK(qn_device_open("cpu", &(qn_device_options){.n_threads = n_threads}, &r.device));
    qn_scope *s = qn_scope_new(r.device);
    qn_array *in = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &l->width)), *out[2] = {0};
    qn_array *gate = product(&r, s, 0, in, l->gate, l->hidden, l->width), *made;
    if (l->form == SQUARE) {
        made = qn_square(s, qn_relu(s, gate));
    } else {
        qn_array *up = product(&r, s, 1, in, l->up, l->hidden, l->width);
        made = l->form == UP_TIMES_GATE ? qn_mul(s, up, qn_sub(s, up, qn_silu(s, gate)))
                                        : qn_mul(s, qn_silu(s, gate), up);
    }
    out[0] = product(&r, s, 2, made, l->down, l->width, l->hidden);
    if (l->form == GATE_IS_READ) out[1] = gate;
    if (l->form == CHAIN_IS_READ) out[1] = made;
    if (l->form == SUM_IS_READ) out[1] = qn_sum(s, made, 1);
    OK(qn_program_new(
        s, &(qn_program_options){.name = "gated", .max = {{most, 0, 0}}, .precision = l->precision},
        out[1] ? 2 : 1, out, &r.program));
    qn_scope_free(s);
    return r;
}

static void close_rig(rig *r)
{
    qn_program_free(r->program);
    for (int i = 0; i < 3; i++) qn_buffer_release(r->weights[i]);
    qn_device_close(r->device);
}

static void count(void *user, const qn_probe_view *view)
{
    ++*(int *)user;
}

static void run(rig *r, int64_t rows, float *out)
{
    memcpy(qn_program_input(r->program, 0), x, (size_t)(rows * r->width) * sizeof *x);
    OK(qn_program_run(r->program, &(qn_sizes){{rows, 0, 0}}));
    memcpy(out, qn_program_output(r->program, 0), (size_t)(rows * r->width) * sizeof *out);
}

static int setup(void **state)
{
    for (int64_t i = 0; i < ROWS * WIDEST; i++) x[i] = (float)qn_random_unit(3, (uint64_t)i) - 0.5f;
    return 0;
}

static void bits_of_single_steps(void **state)
{
    static float apart[ROWS * WIDEST], together[ROWS * WIDEST];
    static const int64_t rows[] = {1, 5, 63, 64, 65, 255, 257, 512, ROWS};
    const char *const *sets = qn_kernels_names();
    for (int i = 0; i < N_LAYERS; i++)
        for (int i_set = 0; sets[i_set]; i_set++) {
            setenv("QUERN_CPU", sets[i_set], 1);
            for (int n_threads = 1; n_threads <= 3; n_threads++) {
                const int is_short = strcmp(sets[i_set], "scalar") == 0;
                int n_shown = 0;
                rig r = open_rig(&layers[i], n_threads, ROWS);
                qn_program_set_probe(r.program, count, NULL, &n_shown);
                run(&r, is_short ? 70 : ROWS, apart);
                assert_in_range(n_shown, 3, 6);
                qn_program_set_probe(r.program, NULL, NULL, NULL);
                for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
                    if (is_short && rows[k] > 65) continue;
                    memset(together, 0xff, sizeof together);
                    run(&r, rows[k], together);
                    if (memcmp(together, apart, (size_t)(rows[k] * r.width) * sizeof *apart) != 0)
                        fail_msg("layer %d, %s, %d threads: %d rows differ", i, sets[i_set], n_threads,
                                 (int)rows[k]);
                }
                close_rig(&r);
            }
        }
    unsetenv("QUERN_CPU");
}

/* Scratch of one worker more, without what products of integers may need for rows. */
static size_t bytes_of_a_worker(const layer *l, int64_t rows)
{
    size_t held[2], rows_bytes = 0;
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        rig r = open_rig(l, n_threads, rows);
        held[n_threads - 1] = qn_ledger_held(r.device->ledger, QN_LEDGER_SCRATCH);
        rows_bytes = ((const qn_cpu *)r.device)->kernels->rows_bytes;
        close_rig(&r);
    }
    const size_t bytes = held[1] - held[0];
    return bytes < rows_bytes ? bytes : bytes - rows_bytes;
}

/* The columns that a worker computes at a time are memory of the program's. */
static void only_where_nobody_else_reads(void **state)
{
    for (int i = 0; i < N_LAYERS; i++) {
        const size_t bytes = bytes_of_a_worker(&layers[i], ROWS);
        if ((bytes >= QN_CPU_GATED_BYTES) != layers[i].is_one)
            fail_msg("layer %d: %zu bytes a worker", i, bytes);
    }
    assert_true(bytes_of_a_worker(&layers[0], 8) < QN_CPU_GATED_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_single_steps),
        cmocka_unit_test(only_where_nobody_else_reads),
    };
    return cmocka_run_group_tests_name("gated", tests, setup, NULL);
}
