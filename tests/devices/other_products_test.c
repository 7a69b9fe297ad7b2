/* Products on another device that are not with one weight after the other: between arrays of every type,
 * additions of adapters, losses by a head, which may not hold the logits. All against the CPU's. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <string.h>

#include "array/program.h"
#include "base/mem.h"
#include "base/random.h"
#include "prim/dtype.h"
#include "tests/devices/other_compare.h"
#include "tests/support/models/packed_weight.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static qn_device *devices[2]; /* cpu, the other */

/* Both, or the test ends here. */
static void open_devices(void)
{
    const char *names[2] = {"cpu", qn_test_other()->name};
    for (int i = 0; i < 2; i++)
        if (!devices[i]) OK(qn_device_open(names[i], &(qn_device_options){.n_threads = 2}, &devices[i]));
}

static void fill(float *out, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) out[i] = (float)qn_random_unit(seed, (uint64_t)i) - 0.5f;
}

static void near(const char *what, const float *got, const float *want, int64_t n, double bar)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= bar * most))
            fail_msg("%s: element %d is %.9g, not %.9g (the largest is %.3g)", what, (int)i, (double)got[i],
                     (double)want[i], most);
}

/* ---- between arrays ----------------------------------------------------------------------------------- */

enum { M = 5, K = 7, N = 6, BATCH = 3, MOST = BATCH * M * N };

/* Random bits; of floating types numbers between -1 and 1. */
static void draw(qn_dtype dtype, uint64_t seed, int64_t n, void *out)
{
    size_t each;
    assert_true(qn_dtype_bytes(dtype, 1, &each));
    for (int64_t i = 0; i < n; i++) {
        const uint64_t bits = qn_random_bits(seed, (uint64_t)i);
        const double number = (double)(bits >> 11) * 0x1p-52 - 1;
        const float small = (float)number;
        const uint16_t half = (uint16_t)((bits >> 40 & 0x807f) | 0x3f00);
        char *to = (char *)out + (size_t)i * each;
        if (dtype == QN_DTYPE_BOOL)
            *to = (char)(bits & 1);
        else if (dtype == QN_DTYPE_F64)
            memcpy(to, &number, sizeof number);
        else if (dtype == QN_DTYPE_F32)
            memcpy(to, &small, sizeof small);
        else if (dtype == QN_DTYPE_BF16)
            memcpy(to, &half, sizeof half);
        else
            memcpy(to, &bits, each);
    }
}

static void multiply(qn_scope *s, qn_dtype dtype, qn_array *out[5])
{
    static uint64_t bits[2][BATCH * K * 8];
    draw(dtype, 1, BATCH * M * K, bits[0]);
    draw(dtype, 2, BATCH * K * N, bits[1]);
    qn_array *a = qn_from_data(s, dtype, 3, (int64_t[]){BATCH, M, K}, bits[0]);
    qn_array *b = qn_from_data(s, dtype, 3, (int64_t[]){BATCH, K, N}, bits[1]);
    qn_array *flat = qn_from_data(s, dtype, 2, (int64_t[]){M, K}, bits[0]);
    qn_array *turned = qn_from_data(s, dtype, 2, (int64_t[]){N, K}, bits[1]);
    qn_array *same = qn_from_data(s, dtype, 2, (int64_t[]){M, N}, bits[1]);
    qn_array *empty = qn_from_data(s, dtype, 2, (int64_t[]){M, 0}, bits[1]);
    qn_array *nothing = qn_from_data(s, dtype, 2, (int64_t[]){0, N}, bits[1]);
    qn_array *one = qn_from_data(s, dtype, 2, (int64_t[]){K, N}, bits[1]);
    qn_array *pairs[5][2] = {
        {a, b}, {a, one}, {flat, qn_transpose(s, turned)}, {flat, same}, {empty, nothing}};
    for (int i = 0; i < 5; i++) {
        const qn_prim prim = i == 3 && dtype != QN_DTYPE_BF16 ? QN_PRIM_MATMUL_ROWS : QN_PRIM_MATMUL;
        out[i] =
            i == 3 && dtype == QN_DTYPE_BF16 ? out[2] : qn_apply(s, prim, NULL, 2, pairs[i], NULL, dtype);
    }
}

static void arrays_of_every_type(void **state)
{
    open_devices();
    for (int d = 0; d <= QN_DTYPE_F64; d++) {
        if (d == QN_DTYPE_F16) continue;
        qn_array *out[2][5];
        qn_scope *s[2];
        qn_status status = QN_OK;
        for (int i = 0; i < 2 && status == QN_OK; i++) {
            s[i] = qn_scope_new(devices[i]);
            multiply(s[i], (qn_dtype)d, out[i]);
            status = qn_eval(s[i], 5, out[i]);
        }
        if (d == QN_DTYPE_F64 && qn_test_refuses_f64(status)) {
            print_message("f64 is left out: %s\n", qn_last_error());
            for (int i = 0; i < 2; i++) qn_scope_free(s[i]);
            continue;
        }
        OK(status);
        for (int k = 0; k < 5; k++) {
            const qn_dtype type = (qn_dtype)d;
            const int64_t n = qn_shape_elements(qn_array_shape(out[0][k]), NULL);
            const void *want = qn_array_data(out[0][k]), *got = qn_array_data(out[1][k]);
            size_t bytes;
            assert_true(n <= MOST && qn_dtype_bytes(type, n, &bytes));
            if (type == QN_DTYPE_F32 || type == QN_DTYPE_BF16) { /* which is rounded behind the product */
                float numbers[2][MOST];
                for (int i = 0; i < 2; i++) OK(qn_array_read(s[i], out[i][k], QN_DTYPE_F32, numbers[i], n));
                near(qn_dtype_name(type), numbers[1], numbers[0], n,
                     qn_test_bound_of(type == QN_DTYPE_F32 ? QN_TEST_MATMUL_F32 : QN_TEST_MATMUL_BF16));
            } else if (type == QN_DTYPE_F64) {
                for (int64_t i = 0; i < n; i++)
                    assert_true(fabs(((const double *)got)[i] - ((const double *)want)[i]) <=
                                qn_test_bound_of(QN_TEST_MATMUL_F64));
            } else if (memcmp(got, want, bytes) != 0) {
                fail_msg("product %d of %s differs", k, qn_dtype_name(type));
            }
        }
        for (int i = 0; i < 2; i++) qn_scope_free(s[i]);
    }
}

/* Large enough that integers are multiplied a piece at a time. */
static void large_integers(void **state)
{
    enum { ROWS = 300, INNER = 90, COLUMNS = 400 };
    open_devices();
    int64_t *bits = qn_alloc_array(INNER * (ROWS + COLUMNS), sizeof *bits);
    assert_non_null(bits);
    for (int64_t i = 0; i < INNER * (ROWS + COLUMNS); i++) bits[i] = (int64_t)qn_random_bits(4, (uint64_t)i);
    const void *data[2];
    qn_scope *s[2];
    for (int i = 0; i < 2; i++) {
        s[i] = qn_scope_new(devices[i]);
        qn_array *a = qn_from_data(s[i], QN_DTYPE_I64, 2, (int64_t[]){ROWS, INNER}, bits);
        qn_array *b = qn_from_data(s[i], QN_DTYPE_I64, 2, (int64_t[]){INNER, COLUMNS}, bits + ROWS * INNER);
        qn_array *y = qn_matmul(s[i], a, b);
        OK(qn_eval(s[i], 1, &y));
        data[i] = qn_array_data(y);
    }
    assert_memory_equal(data[1], data[0], ROWS * COLUMNS * sizeof *bits);
    for (int i = 0; i < 2; i++) qn_scope_free(s[i]);
    qn_free(bits);
}

/* ---- adapters ----------------------------------------------------------------------------------------- */

enum { N_IN = 37, N_OUT = 53, ROWS = 41, PAIRS = 4, RANK_MAX = 40 };

static const int32_t ranks[PAIRS] = {1, 5, RANK_MAX, 0}; /* the last has nothing to add */

/* Rows with these adapters; then with what the pairs hold changed, in the same program. */
static void adapt(qn_device *d, const int32_t *adapters, const float *x, const float *y, float *out)
{
    static float weights[RANK_MAX * (N_IN + N_OUT) + N_OUT];
    qn_lora_pair pairs[PAIRS] = {{0}};
    qn_buffer *b[PAIRS] = {NULL};
    qn_program *p;
    const int64_t n_in = N_IN, n_out = N_OUT;
    for (int i = 0; i < PAIRS; i++) {
        if (!ranks[i]) continue;
        OK(d->ops->alloc(d, sizeof weights, QN_LEDGER_WEIGHTS, &b[i]));
        fill(weights, sizeof weights / sizeof *weights, 3 + (uint64_t)i);
        memcpy(qn_buffer_host(b[i], QN_HOST_WRITES), weights, sizeof weights);
        pairs[i] = (qn_lora_pair){.data = b[i],
                                  .b = (int64_t)ranks[i] * N_IN,
                                  .gain = i == 1 ? (int64_t)ranks[i] * (N_IN + N_OUT) : -1,
                                  .rank = ranks[i],
                                  .scale = 0.75f + (float)i};
    }
    qn_scope *s = qn_scope_new(d);
    qn_array *in = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &n_in)),
             *product = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &n_out)),
             *ids = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL)),
             *sum = qn_lora(s, &(qn_params_lora){pairs, PAIRS}, in, product, ids);
    OK(qn_program_new(s, &(qn_program_options){.name = "lora", .max = {{ROWS, 0, 0}}}, 1, &sum, &p));
    memcpy(qn_program_input(p, 0), x, ROWS * N_IN * sizeof *x);
    memcpy(qn_program_input(p, 1), y, ROWS * N_OUT * sizeof *y);
    memcpy(qn_program_input(p, 2), adapters, ROWS * sizeof *adapters);
    for (int i = 0; i < 2; i++, out += ROWS * N_OUT) {
        OK(qn_program_run(p, &(qn_sizes){{ROWS, 0, 0}}));
        memcpy(out, qn_program_output(p, 0), ROWS * N_OUT * sizeof *out);
        for (int k = 0; k < PAIRS - 1; k++)
            fill(qn_buffer_host(b[k], QN_HOST_WRITES), RANK_MAX * (N_IN + N_OUT), 20 + (uint64_t)k);
        pairs[0] = (qn_lora_pair){.data = NULL};
    }
    qn_program_free(p);
    qn_scope_free(s);
    for (int i = 0; i < PAIRS; i++) qn_buffer_release(b[i]);
}

static void adapters(void **state)
{
    static float x[ROWS * N_IN], y[ROWS * N_OUT], out[2][2 * ROWS * N_OUT];
    int32_t ids[ROWS];
    open_devices();
    fill(x, ROWS * N_IN, 1);
    fill(y, ROWS * N_OUT, 2);
    for (int kind = -1; kind < PAIRS + 2; kind++) {
        for (int i = 0; i < ROWS; i++) /* all of one, or mixed: one behind the last pair among them */
            ids[i] = kind <= PAIRS ? kind : (int32_t)(qn_random_bits(9, (uint64_t)i) % 6) - 1;
        y[0] = -0.0f;
        for (int i = 0; i < 2; i++) adapt(devices[i], ids, x, y, out[i]);
        near("adapters", out[1], out[0], 2 * ROWS * N_OUT, qn_test_bound_of(QN_TEST_PRODUCT));
        for (int run = 0; run < 2; run++)
            for (int i = 0; i < ROWS; i++) {
                const int none = ids[i] < 0 || ids[i] >= PAIRS || !ranks[ids[i]] || (run && ids[i] == 0);
                const float *row = out[1] + (run * ROWS + i) * N_OUT;
                if (none) assert_memory_equal(row, y + i * N_OUT, N_OUT * sizeof *y);
            }
    }
}

/* ---- adapters of experts ------------------------------------------------------------------------------ */

enum { EXPERTS = 5, TOP = 2, E_RANK = 3 };

/* way: bit 0: x has a vector for each choice; bit 1: the products are summed by shares. */
static void adapt_experts(qn_device *d, int way, const int32_t *adapters, const float *x, const float *y,
                          float *out)
{
    const int by_choice = way & 1, has_share = way >> 1 & 1;
    const int64_t in_dims[2] = {TOP, N_IN}, out_dims[2] = {TOP, N_OUT}, top = TOP;
    static float share[ROWS * TOP];
    int32_t chosen[ROWS * TOP];
    qn_lora_pair pairs[2] = {{0}};
    qn_buffer *b[2];
    qn_program *p;
    const int64_t floats = (int64_t)EXPERTS * E_RANK * (N_IN + N_OUT);
    fill(share, ROWS * TOP, 31);
    for (int i = 0; i < ROWS * TOP; i++) chosen[i] = (i / TOP + 3 * (i % TOP)) % EXPERTS;
    for (int i = 0; i < 2; i++) {
        OK(d->ops->alloc(d, (size_t)floats * sizeof *x, QN_LEDGER_WEIGHTS, &b[i]));
        fill(qn_buffer_host(b[i], QN_HOST_WRITES), floats, 40 + (uint64_t)i);
        pairs[i] = (qn_lora_pair){.data = b[i],
                                  .b = (int64_t)EXPERTS * E_RANK * N_IN,
                                  .gain = -1,
                                  .rank = E_RANK,
                                  .scale = 0.5f + (float)i};
    }
    qn_scope *s = qn_scope_new(d);
    qn_array *in = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1 + by_choice, in_dims + !by_choice)),
             *product =
                 qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 2 - has_share, out_dims + has_share)),
             *ids = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 1, &top)),
             *rows = qn_input(s, QN_DTYPE_I32, qn_shape_sym(QN_SYM_R, 0, NULL)),
             *shares = has_share ? qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_R, 1, &top)) : NULL;
    qn_array *sum = qn_experts_lora(s, &(qn_params_lora){pairs, 2}, EXPERTS, in, product, ids, rows, shares);
    OK(qn_program_new(s, &(qn_program_options){.name = "experts", .max = {{ROWS, 0, 0}}}, 1, &sum, &p));
    const size_t width = (size_t)(has_share ? N_OUT : TOP * N_OUT);
    memcpy(qn_program_input(p, 0), x, (size_t)(ROWS * (by_choice ? TOP : 1) * N_IN) * sizeof *x);
    memcpy(qn_program_input(p, 1), y, ROWS * width * sizeof *y);
    memcpy(qn_program_input(p, 2), chosen, sizeof chosen);
    memcpy(qn_program_input(p, 3), adapters, ROWS * sizeof *adapters);
    if (has_share) memcpy(qn_program_input(p, 4), share, sizeof share);
    OK(qn_program_run(p, &(qn_sizes){{ROWS, 0, 0}}));
    memcpy(out, qn_program_output(p, 0), ROWS * width * sizeof *out);
    qn_program_free(p);
    qn_scope_free(s);
    for (int i = 0; i < 2; i++) qn_buffer_release(b[i]);
}

static void adapters_of_experts(void **state)
{
    static float x[ROWS * TOP * N_IN], y[ROWS * TOP * N_OUT], out[2][ROWS * TOP * N_OUT];
    int32_t ids[ROWS];
    open_devices();
    fill(x, ROWS * TOP * N_IN, 1);
    fill(y, ROWS * TOP * N_OUT, 2);
    for (int way = 0; way < 4; way++)
        for (int kind = -1; kind < 3; kind++) {
            for (int i = 0; i < ROWS; i++) ids[i] = kind < 2 ? kind : i % 3 - 1;
            const int64_t width = way >> 1 & 1 ? N_OUT : TOP * N_OUT;
            for (int i = 0; i < 2; i++) adapt_experts(devices[i], way, ids, x, y, out[i]);
            near("adapters of experts", out[1], out[0], ROWS * width, qn_test_bound_of(QN_TEST_PRODUCT));
            for (int i = 0; i < ROWS; i++)
                if (ids[i] < 0)
                    assert_memory_equal(out[1] + i * width, y + i * width, (size_t)width * sizeof *y);
        }
}

/* ---- losses by a head --------------------------------------------------------------------------------- */

enum { WIDTH = 64, V_MAX = 700, L_MAX = 9000 };

typedef struct {
    qn_dtype dtype; /* QN_DTYPE_COUNT: plain */
    int64_t vocab, rows;
    float scale, softcap;
} subject;

typedef struct {
    float losses[L_MAX], by_rows[L_MAX * WIDTH], by_head[V_MAX * WIDTH];
} results;

static void losses(qn_device *d, const subject *t, results *out)
{
    const int64_t k = WIDTH, one = 1;
    const int plain = t->dtype == QN_DTYPE_COUNT;
    qn_program *p;
    qn_scope *s = qn_scope_new(d);
    qn_buffer *b = qn_test_packed_weight(d, t->dtype, t->vocab, WIDTH, NULL);
    qn_array *x = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_L, 1, &k)),
             *ids =
                 qn_input(s, QN_DTYPE_I32,
                          t->vocab % 2 ? qn_shape_sym(QN_SYM_L, 0, NULL) : qn_shape_sym(QN_SYM_L, 1, &one)),
             *share = qn_input(s, QN_DTYPE_F32, qn_shape_sym(QN_SYM_L, 1, &one)),
             *w = qn_from_buffer(s, plain ? QN_DTYPE_F32 : t->dtype,
                                 qn_shape_make(2, (int64_t[]){t->vocab, WIDTH}), b),
             *wrt[2] = {x, w}, *outputs[3] = {NULL};
    outputs[0] = qn_head_loss(s, x, w, ids, t->scale, t->softcap);
    OK(qn_vjp(s, outputs[0], share, plain ? 2 : 1, wrt, outputs + 1));
    OK(qn_program_new(
        s, &(qn_program_options){.name = "head", .max = {{0, 0, t->rows}}, .precision = QN_PRECISION_EXACT},
        plain ? 3 : 2, outputs, &p));
    fill(qn_program_input(p, 0), t->rows * WIDTH, 1);
    fill(qn_program_input(p, 2), t->rows, 2);
    int32_t *targets = qn_program_input(p, 1);
    for (int64_t i = 0; i < t->rows; i++)
        targets[i] = (int32_t)(qn_random_bits(5, (uint64_t)i) % (uint64_t)t->vocab);
    targets[0] = (int32_t)t->vocab - 1;
    if (t->rows > 2) targets[1] = -1; /* none */
    if (t->rows > 2) targets[2] = (int32_t)t->vocab;
    OK(qn_program_run(p, &(qn_sizes){{0, 0, t->rows}}));
    memcpy(out->losses, qn_program_output(p, 0), (size_t)t->rows * sizeof(float));
    memcpy(out->by_rows, qn_program_output(p, 1), (size_t)(t->rows * WIDTH) * sizeof(float));
    if (plain) memcpy(out->by_head, qn_program_output(p, 2), (size_t)(t->vocab * WIDTH) * sizeof(float));
    qn_program_free(p);
    qn_scope_free(s);
    qn_buffer_release(b);
}

static void losses_by_a_head(void **state)
{
    static const subject subjects[] = {
        {QN_DTYPE_COUNT, 700, 37, 1, 0},    {QN_DTYPE_COUNT, 257, 5, 0.5f, 3},
        {QN_DTYPE_COUNT, 5, 1, 1, 2},       {QN_DTYPE_F32, 300, 37, 1, 0},
        {QN_DTYPE_Q4_1, 700, 9, 1, 0},      {QN_DTYPE_Q8_0, 513, 37, 0.25f, 0},
        {QN_DTYPE_BF16, 130, 3, 1, 2.5f},   {QN_DTYPE_Q4_0, 33, 37, 2, 4},
        {QN_DTYPE_MXFP4, 70, 4, 1, 0},      {QN_DTYPE_NVFP4, 70, 5, 1, 0},
        {QN_DTYPE_COUNT, 700, L_MAX, 1, 0}, {QN_DTYPE_Q4_0, 601, L_MAX, 1, 5}}; /* several pieces */
    open_devices();
    const double bound = qn_test_bound_of(QN_TEST_PRODUCT);
    results *r = qn_alloc_array(2, sizeof *r);
    assert_non_null(r);
    for (size_t k = 0; k < sizeof subjects / sizeof *subjects; k++) {
        const subject *t = &subjects[k];
        for (int i = 0; i < 2; i++) losses(devices[i], t, &r[i]);
        near("losses", r[1].losses, r[0].losses, t->rows, bound);
        near("gradient by rows", r[1].by_rows, r[0].by_rows, t->rows * WIDTH, bound);
        if (t->dtype == QN_DTYPE_COUNT)
            near("gradient by the head", r[1].by_head, r[0].by_head, t->vocab * WIDTH, bound);
    }
    qn_free(r);
}

/* A vocabulary of which the logits of all rows would be 200 MiB. */
static void logits_are_never_whole(void **state)
{
    enum { FEW = 8, MANY = 2048, VOCAB = 25600 };
    open_devices();
    qn_device *d = devices[1];
    qn_scope *s = qn_scope_new(d);
    float *numbers = qn_alloc_array(VOCAB * FEW, sizeof *numbers);
    int32_t *ids = qn_calloc(MANY, sizeof *ids);
    assert_true(numbers && ids);
    fill(numbers, VOCAB * FEW, 1);
    qn_array *x = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){MANY, FEW}, numbers);
    qn_array *w = qn_from_data(s, QN_DTYPE_F32, 2, (int64_t[]){VOCAB, FEW}, numbers);
    qn_array *y = qn_head_loss(s, x, w, qn_from_data(s, QN_DTYPE_I32, 1, &(int64_t){MANY}, ids), 1, 0);
    qn_array *wrt[2] = {x, w}, *out[3] = {y};
    OK(qn_vjp(s, y, y, 2, wrt, out + 1));
    qn_test_usage before, after;
    qn_test_get_usage(&before);
    OK(qn_eval(s, 3, out));
    qn_test_get_usage(&after); /* nothing, if the device does not tell */
    if (after.peak_bytes > before.peak_bytes + (80 << 20))
        fail_msg("%zu MiB", (after.peak_bytes - before.peak_bytes) >> 20);
    qn_scope_free(s);
    qn_free(numbers);
    qn_free(ids);
}

static int close_devices(void **state)
{
    for (int i = 0; i < 2; i++) {
        qn_device_close(devices[i]);
        devices[i] = NULL;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(arrays_of_every_type),
                                       cmocka_unit_test(large_integers),
                                       cmocka_unit_test(adapters),
                                       cmocka_unit_test(adapters_of_experts),
                                       cmocka_unit_test(logits_are_never_whole),
                                       cmocka_unit_test(losses_by_a_head)};
    return qn_test_run_others("products", tests, sizeof tests / sizeof *tests, NULL, close_devices);
}
