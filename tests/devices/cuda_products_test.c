/* The device cuda's kernels of products with packed weights: a row's results are the same bits, however many rows
 * come with it and so whichever kernel computes them, for every form of weights, and whatever rows share an
 * expert. Steps are begun without the device around them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "quant/types.h"
#include "tests/kernels/kernel_help.h"
#include "tests/support/fixtures.h"

/* The kernels have tiles of 8, 64 and 128 tokens, and sizes at which one takes over from another. */
static const int64_t row_counts[] = {1, 8, 9, 40, 63, 64, 65, 100, 128, 129, 250, 300};
enum { N_ROW_COUNTS = sizeof row_counts / sizeof *row_counts, MOST_ROWS = 300 };

static const qn_cuda_shim *shim;
static qn_cuda_context *card;

#define OK(expr)                                            \
    do {                                                    \
        if ((expr) != QN_OK) fail_msg("%s", shim->error()); \
    } while (0)

/* Or the test is left out, with the device's own sentence. */
static void open_card(void)
{
    if (card) return;
    if (qn_cuda_load(&shim) != QN_OK) qn_test_leave_out(qn_last_error());
    int i;
    qn_cuda_card about;
    if (qn_cuda_choose_card(shim, &i, &about) != QN_OK) qn_test_leave_out(qn_last_error());
    OK(shim->open(i, &card));
}

static void *on_card(size_t size_bytes, const void *from)
{
    void *p;
    OK(shim->alloc(card, size_bytes, &p));
    if (from) OK(shim->copy(card, p, from, size_bytes));
    return p;
}

typedef struct {
    qn_cuda_weight w;
    void *raw;
} matrix;

static matrix matrix_of(qn_test_dice *d, qn_dtype dtype, int64_t n_parts, int64_t n_out, int64_t n_in)
{
    matrix m = {0};
    assert_true(qn_cuda_weight_plan(dtype, n_parts, n_out, n_in, &m.w));
    m.w.data = on_card((size_t)n_parts * qn_cuda_part_bytes(&m.w), NULL);
    if (qn_cuda_has_factors(&m.w)) m.w.factor = on_card(qn_cuda_factor_bytes(&m.w), NULL);
    size_t row_bytes;
    assert_true(qn_type_bytes(dtype, n_in, &row_bytes));
    const size_t part_bytes = row_bytes * (size_t)n_out;
    const uint8_t *rows = qn_test_rows(d, QN_TEST_ORDINARY, dtype, n_in, n_parts * n_out);
    m.raw = on_card(part_bytes * (size_t)n_parts, rows);
    for (int64_t i = 0; i < n_parts; i++) {
        const qn_cuda_raw raw = {.data = (const uint8_t *)m.raw + (size_t)i * part_bytes,
                                 .row_bytes = row_bytes};
        OK(shim->pack(card, &m.w, i, 0, n_out, &raw));
    }
    return m;
}

static void drop_matrix(matrix *m)
{
    shim->free(card, m->w.data);
    shim->free(card, m->w.factor);
    shim->free(card, m->raw);
}

static qn_cuda_operand operand(void *data, qn_dtype dtype, int n, const int64_t *dim)
{
    qn_cuda_operand o = {.data = data, .dtype = dtype, .n = n};
    for (int i = 0; i < n; i++) o.dim[i] = dim[i];
    for (int64_t i = n - 1, size = 1; i >= 0; i--) o.stride[i] = size, size *= dim[i];
    return o;
}

/* Runs a step and brings its output. */
static void run(qn_cuda_step *s, float *out, int64_t n)
{
    s->precision = QN_PRECISION_HIGH;
    s->out.data = on_card((size_t)n * sizeof *out, NULL);
    s->scratch = on_card(shim->scratch_bytes(s), NULL);
    OK(shim->launch(card, s));
    OK(shim->wait(card));
    OK(shim->copy(card, out, s->out.data, (size_t)n * sizeof *out));
    OK(shim->wait(card));
    shim->free(card, s->out.data);
    shim->free(card, s->scratch);
}

/* ---- a matrix ------------------------------------------------------------------------------------------ */

static void multiply(const qn_cuda_weight *w, float *x, int64_t rows, float *out)
{
    const qn_params params = {0};
    qn_cuda_step s = {.prim = QN_PRIM_MATMUL, .params = &params, .n_in = 2, .transposed = 1};
    s.in[0] = operand(x, QN_DTYPE_F32, 2, (int64_t[]){rows, w->n_in});
    s.in[1] = operand(NULL, w->dtype, 2, (int64_t[]){w->n_in, w->n_out});
    s.in[1].weight = w;
    s.out = operand(NULL, QN_DTYPE_F32, 2, (int64_t[]){rows, w->n_out});
    run(&s, out, rows * w->n_out);
}

static void check_rows(const char *what, const qn_cuda_weight *w, const float *got, const float *want,
                       int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s: type %d, [%d, %d]: element %d of row %d is %a, not %a", what, (int)w->dtype,
                     (int)w->n_out, (int)w->n_in, (int)(i % w->n_out), (int)(i / w->n_out), (double)got[i],
                     (double)want[i]);
}

static int64_t width_of(qn_dtype dtype, int64_t n_tiles)
{
    qn_cuda_weight w = {0};
    assert_true(qn_cuda_weight_plan(dtype, 1, 1, 65536, &w));
    const int64_t k = n_tiles * QN_CUDA_TILE_K;
    return (k + w.unit_k - 1) / w.unit_k * w.unit_k;
}

static void kernels_agree(qn_test_dice *d, qn_dtype dtype, int64_t n_out, int64_t n_in)
{
    matrix m = matrix_of(d, dtype, 1, n_out, n_in);
    float *x = qn_test_random_floats(d, MOST_ROWS * n_in, -1, 1);
    float *want = qn_test_floats(MOST_ROWS * n_out), *got = qn_test_floats(MOST_ROWS * n_out);
    float *on = on_card((size_t)(MOST_ROWS * n_in) * sizeof *x, x);
    for (int64_t r = 0; r < MOST_ROWS; r += 8)
        multiply(&m.w, on + r * n_in, r + 8 < MOST_ROWS ? 8 : MOST_ROWS - r, want + r * n_out);
    for (int i = 0; i < N_ROW_COUNTS; i++) {
        char what[64];
        snprintf(what, sizeof what, "%d rows beside 8", (int)row_counts[i]);
        const int64_t first = MOST_ROWS - row_counts[i];
        multiply(&m.w, on + first * n_in, row_counts[i], got);
        check_rows(what, &m.w, got, want + first * n_out, row_counts[i] * n_out);
    }
    shim->free(card, on);
    drop_matrix(&m);
    qn_test_guarded_end();
}

static void any_number_of_rows_gives_the_same_bits(void **state)
{
    open_card();
    qn_test_dice d = {1, 0};
    for (const qn_dtype *dtype = qn_test_packed_types; *dtype != QN_DTYPE_COUNT; dtype++) {
        qn_cuda_weight w;
        if (!qn_cuda_weight_plan(*dtype, 1, 16, 256, &w) || w.form == QN_CUDA_F32) continue;
        kernels_agree(&d, *dtype, 40, width_of(*dtype, 1));
        kernels_agree(&d, *dtype, 150, width_of(*dtype, 11)); /* more than a chunk */
    }
    kernels_agree(&d, QN_DTYPE_Q4_0, 1, width_of(QN_DTYPE_Q4_0, 16));
    kernels_agree(&d, QN_DTYPE_F16, 129, width_of(QN_DTYPE_F16, 24));
}

/* A card without wgmma, where MANY takes what WIDE has elsewhere. A real card stays what it is. */
static void older_cards_too(void **state)
{
    open_card();
    shim->close(card);
    card = NULL;
    setenv("QUERN_CUDA_HOST_ARCH", "80", 1);
    open_card();
    qn_test_dice d = {3, 0};
    for (const qn_dtype *dtype = qn_test_packed_types; *dtype != QN_DTYPE_COUNT; dtype++) {
        qn_cuda_weight w;
        if (!qn_cuda_weight_plan(*dtype, 1, 16, 256, &w) || w.form == QN_CUDA_F32) continue;
        kernels_agree(&d, *dtype, 150, width_of(*dtype, 11));
    }
    shim->close(card);
    card = NULL;
    unsetenv("QUERN_CUDA_HOST_ARCH");
}

/* ---- experts ------------------------------------------------------------------------------------------- */

enum { N_PARTS = 3, TOP = 2 };

static void choose(const matrix *m, float *x, int32_t *ids, int64_t rows, float *out)
{
    const qn_params params = {0};
    qn_cuda_step s = {.prim = QN_PRIM_EXPERTS, .params = &params, .n_in = 3, .transposed = 1};
    s.in[0] = operand(x, QN_DTYPE_F32, 2, (int64_t[]){rows, m->w.n_in});
    s.in[1] = operand(NULL, m->w.dtype, 3, (int64_t[]){N_PARTS, m->w.n_out, m->w.n_in});
    s.in[1].weight = &m->w;
    s.in[2] = operand(ids, QN_DTYPE_I32, 2, (int64_t[]){rows, TOP});
    s.out = operand(NULL, QN_DTYPE_F32, 3, (int64_t[]){rows, TOP, m->w.n_out});
    run(&s, out, rows * TOP * m->w.n_out);
}

static void experts_agree(qn_test_dice *d, qn_dtype dtype, int64_t n_out, int64_t n_in)
{
    matrix m = matrix_of(d, dtype, N_PARTS, n_out, n_in);
    float *x = qn_test_random_floats(d, MOST_ROWS * n_in, -1, 1);
    const int64_t row = TOP * n_out;
    float *want = qn_test_floats(MOST_ROWS * row), *got = qn_test_floats(MOST_ROWS * row);
    int32_t ids[MOST_ROWS][TOP];
    for (int r = 0; r < MOST_ROWS; r++) {
        ids[r][0] = (int32_t)qn_test_roll(d, N_PARTS); /* the last expert is chosen by few */
        if (ids[r][0] == N_PARTS - 1 && r % 8) ids[r][0] = 0;
        ids[r][1] = ids[r][0] ? 0 : 1;
    }
    float *on = on_card((size_t)(MOST_ROWS * n_in) * sizeof *x, x);
    int32_t *ids_on = on_card(sizeof ids, ids);
    for (int64_t r = 0; r < MOST_ROWS; r += 5) choose(&m, on + r * n_in, ids_on + r * TOP, 5, want + r * row);
    for (int i = 0; i < N_ROW_COUNTS; i++) {
        char what[64];
        snprintf(what, sizeof what, "%d rows of experts beside 5", (int)row_counts[i]);
        const int64_t first = MOST_ROWS - row_counts[i];
        choose(&m, on + first * n_in, ids_on + first * TOP, row_counts[i], got);
        check_rows(what, &m.w, got, want + first * row, row_counts[i] * row);
    }
    shim->free(card, on);
    shim->free(card, ids_on);
    drop_matrix(&m);
    qn_test_guarded_end();
}

static void any_company_of_experts_gives_the_same_bits(void **state)
{
    open_card();
    qn_test_dice d = {2, 0};
    static const qn_dtype types[] = {QN_DTYPE_F16, QN_DTYPE_Q4_0, QN_DTYPE_Q4_K, QN_DTYPE_MXFP4,
                                     QN_DTYPE_AFFINE4_G64_BF16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        experts_agree(&d, types[i], 72, width_of(types[i], 11));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_number_of_rows_gives_the_same_bits),
                                       cmocka_unit_test(older_cards_too),
                                       cmocka_unit_test(any_company_of_experts_gives_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
