/* Packed weights of the card, computed on the host: what is packed is read back as src/quant decodes it, bit for
 * bit, for every type, every way that rows lie in files, and whatever pieces they come in. Files and packed
 * memory end at pages that cannot be touched. */
#include "device/cuda/layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "quant/mlx.h"
#include "quant/types.h"
#include "tests/kernels/kernel_help.h"

enum { PANEL = QN_CUDA_PANEL, PARTS_MAX = 3 };

/* How the rows lie in a file. */
typedef enum { AS_BLOCKS, IN_THREE, TRANSPOSED, N_LYING } lying;

typedef struct {
    qn_cuda_weight w;
    qn_cuda_raw raw[PARTS_MAX];
    float *numbers; /* [n_parts][n_out][n_in], decoded */
    size_t size_bytes;
} matrix;

static int is_of_mlx(qn_dtype dtype)
{
    return qn_affine_of(dtype).bits || dtype == QN_DTYPE_MXFP4 || dtype == QN_DTYPE_NVFP4;
}

/* ---- rows of a file ------------------------------------------------------------------------------------ */

static qn_cuda_raw in_three(qn_dtype dtype, int64_t n_out, int64_t n_in, const uint8_t *rows,
                            size_t row_bytes)
{
    const qn_mlx_row_bytes n = qn_mlx_row(dtype, n_in);
    uint8_t *data = qn_test_guarded(n.data * (size_t)n_out, 1), *biases = NULL;
    uint8_t *scales = qn_test_guarded(n.scales * (size_t)n_out, 1);
    if (n.biases) biases = qn_test_guarded(n.biases * (size_t)n_out, 1);
    for (int64_t i = 0; i < n_out; i++)
        qn_mlx_split(dtype, n_in, rows + (size_t)i * row_bytes, i, data, scales, biases);
    return (qn_cuda_raw){
        .data = data, .scales = scales, .biases = biases, .row_bytes = n.data, .scale_row_bytes = n.scales};
}

static qn_cuda_raw transposed(int64_t n_out, int64_t n_in, const uint8_t *rows, size_t each)
{
    uint8_t *columns = qn_test_guarded(each * (size_t)(n_out * n_in), 1);
    for (int64_t i = 0; i < n_out; i++)
        for (int64_t k = 0; k < n_in; k++)
            memcpy(columns + (size_t)(k * n_out + i) * each, rows + (size_t)(i * n_in + k) * each, each);
    return (qn_cuda_raw){.data = columns, .row_bytes = each * (size_t)n_out, .transposed = 1};
}

/* A random matrix in its file, and memory for it packed. */
static matrix new_matrix(qn_test_dice *d, qn_dtype dtype, qn_test_weights kind, lying how, int64_t n_parts,
                         int64_t n_out, int64_t n_in)
{
    matrix m = {0};
    const qn_type *type = qn_type_get(dtype);
    size_t row_bytes;
    assert_true(qn_type_bytes(dtype, n_in, &row_bytes));
    assert_true(qn_cuda_weight_plan(dtype, n_parts, n_out, n_in, &m.w));
    m.numbers = qn_alloc_array((size_t)(n_parts * n_out * n_in), sizeof(float));
    assert_non_null(m.numbers);
    for (int64_t p = 0; p < n_parts; p++) {
        const uint8_t *rows = qn_test_rows(d, kind, dtype, n_in, n_out);
        m.raw[p] = how == IN_THREE     ? in_three(dtype, n_out, n_in, rows, row_bytes)
                   : how == TRANSPOSED ? transposed(n_out, n_in, rows, type->block_bytes)
                                       : (qn_cuda_raw){.data = rows, .row_bytes = row_bytes};
        for (int64_t i = 0; i < n_out; i++)
            type->decode(type, rows + (size_t)i * row_bytes, n_in, m.numbers + (p * n_out + i) * n_in);
    }
    m.size_bytes = (size_t)n_parts * qn_cuda_part_bytes(&m.w);
    m.w.data = qn_test_guarded(m.size_bytes, 16);
    return m;
}

static void end_matrix(matrix *m)
{
    qn_test_guarded_end();
    qn_free(m->w.factor);
    qn_free(m->numbers);
}

/* ---- packing, as the card does it ---------------------------------------------------------------------- */

/* Powers of two that bring each row's largest finite number into [2^13, 2^14). */
static void find_factors(matrix *m)
{
    qn_cuda_weight *w = &m->w;
    const int64_t rows = w->n_panels * PANEL;
    if (w->form != QN_CUDA_F16 || !qn_cuda_has_factors(w)) return;
    assert_int_equal(qn_cuda_factor_bytes(w), (size_t)(w->n_parts * rows) * sizeof(float));
    w->factor = qn_alloc(qn_cuda_factor_bytes(w));
    assert_non_null(w->factor);
    for (int64_t i = 0; i < w->n_parts * rows; i++) {
        float largest = 0;
        int e = 14;
        for (int64_t k = 0; k < w->n_in && i % rows < w->n_out; k++)
            largest = fmaxf(largest, fabsf(m->numbers[(i / rows * w->n_out + i % rows) * w->n_in + k]));
        if (largest > 0) frexpf(largest, &e);
        w->factor[i] = ldexpf(1, e - 14);
    }
}

/* Rows [first, first + n) of a part, of which raw has nothing else. first: a multiple of 16. */
static void pack_rows(const qn_cuda_weight *w, const qn_cuda_raw *raw, int64_t part, int64_t first, int64_t n)
{
    for (int64_t i = 0; w->form == QN_CUDA_F32 && i < n * w->n_in; i++)
        ((float *)(void *)w->data)[(part * w->n_out + first) * w->n_in + i] =
            qn_cuda_raw_plain(w, raw, i / w->n_in, i % w->n_in);
    for (int64_t row = 0; w->form != QN_CUDA_F32 && row < n; row += PANEL) {
        const int64_t panel = part * w->n_panels + (first + row) / PANEL;
        float inverse[PANEL];
        for (int r = 0; w->factor && r < PANEL; r++) inverse[r] = 1 / w->factor[panel * PANEL + r];
        for (int64_t unit = 0; unit < w->n_units; unit++) {
            char *to = w->data + (size_t)(panel * w->n_units + unit) * (size_t)w->unit_bytes;
            for (int i = 0; i < w->unit_bytes / 4; i++)
                ((uint32_t *)(void *)to)[i] =
                    qn_cuda_pack_word(w, raw, row, n, unit * w->unit_k, w->factor ? inverse : NULL, i);
        }
    }
}

static void pack(matrix *m)
{
    find_factors(m);
    for (int64_t p = 0; p < m->w.n_parts; p++) pack_rows(&m->w, &m->raw[p], p, 0, m->w.n_out);
}

/* ---- reading back -------------------------------------------------------------------------------------- */

static int are_same(float a, float b)
{
    return qn_float_bits(a) == qn_float_bits(b) || (isnan(a) && isnan(b));
}

/* What must be read: the number, but for the last place of an f16 in a row with factors. */
static float expected(const matrix *m, int64_t part, int64_t row, int64_t k)
{
    const float x = m->numbers[(part * m->w.n_out + row) * m->w.n_in + k];
    if (!m->w.factor) return x;
    const float factor = m->w.factor[part * m->w.n_panels * PANEL + row];
    const float rounded = qn_f16_to_f32(qn_f32_to_f16(x / factor)) * factor;
    /* 8 bits of a bf16 are there as long as the lowest of them is no less than 2^-24. */
    if (m->w.dtype == QN_DTYPE_BF16 && fabsf(x / factor) >= 0x1p-17f) assert_true(are_same(rounded, x));
    return rounded;
}

static void check_numbers(const matrix *m, const char *how)
{
    const qn_cuda_weight *w = &m->w;
    for (int64_t p = 0; p < w->n_parts; p++)
        for (int64_t row = 0; row < w->n_out; row++)
            for (int64_t k = 0; k < w->n_in; k++) {
                const float got = qn_cuda_value(w, p, row, k), want = expected(m, p, row, k);
                if (!are_same(got, want))
                    fail_msg("%s %s of [%lld, %lld], part %lld: row %lld, column %lld is %.9g, not %.9g",
                             qn_dtype_name(w->dtype), how, (long long)w->n_out, (long long)w->n_in,
                             (long long)p, (long long)row, (long long)k, (double)got, (double)want);
            }
}

/* Rows and columns of the last panel and unit that the matrix lacks. */
static void check_padding(const matrix *m)
{
    const qn_cuda_weight *w = &m->w;
    if (w->form == QN_CUDA_F32) return;
    for (int64_t p = 0; p < w->n_parts; p++)
        for (int64_t row = 0; row < w->n_panels * PANEL; row++)
            for (int64_t k = row < w->n_out ? w->n_in : 0; k < w->n_units * w->unit_k; k++)
                if (qn_cuda_value(w, p, row, k) != 0)
                    fail_msg("%s: row %lld, column %lld of [%lld, %lld] is not 0", qn_dtype_name(w->dtype),
                             (long long)row, (long long)k, (long long)w->n_out, (long long)w->n_in);
}

static void every_number_is_read_back(void **state)
{
    static const char *const names[N_LYING] = {"as blocks", "in three tensors", "transposed"};
    static const int64_t rows[] = {1, 15, 16, 37}, columns[] = {1, 2, 3, 5};
    qn_test_dice d = {.seed = 1};
    for (int type = 0; type < QN_DTYPE_COUNT; type++) {
        const qn_dtype dtype = (qn_dtype)type;
        const int64_t block = qn_type_get(dtype)->block_elements;
        if (!qn_type_get(dtype)->decode || dtype == QN_DTYPE_F64) continue;
        for (int how = AS_BLOCKS; how < N_LYING; how++) {
            if (how == IN_THREE ? !is_of_mlx(dtype) : how == TRANSPOSED && block > 1) continue;
            for (int i = 0; i < 4 * QN_TEST_WEIGHTS_COUNT; i++) {
                const int64_t n_in = block > 1 ? columns[i % 4] * block : columns[i % 4] * 33 - 32;
                matrix m = new_matrix(&d, dtype, (qn_test_weights)(i / 4), (lying)how, 1 + i % PARTS_MAX,
                                      rows[(i + i / 4) % 4], n_in);
                pack(&m);
                check_numbers(&m, names[how]);
                check_padding(&m);
                end_matrix(&m);
            }
        }
    }
}

/* ---- pieces and parts ---------------------------------------------------------------------------------- */

/* A file is read piece by piece, and parts in any order: the bytes are the same. */
static void pieces_make_the_same_bytes(void **state)
{
    enum { ROWS = 53, PIECE = 32 };
    qn_test_dice d = {.seed = 2};
    for (int type = 0; type < QN_DTYPE_COUNT; type++) {
        const qn_dtype dtype = (qn_dtype)type;
        if (!qn_type_get(dtype)->decode || dtype == QN_DTYPE_F64) continue;
        const int64_t block = qn_type_get(dtype)->block_elements, n_in = block > 1 ? 2 * block : 70;
        matrix m = new_matrix(&d, dtype, QN_TEST_ORDINARY, is_of_mlx(dtype) ? IN_THREE : AS_BLOCKS, PARTS_MAX,
                              ROWS, n_in);
        pack(&m);
        char *whole = m.w.data;
        m.w.data = qn_test_guarded(m.size_bytes, 16);
        for (int64_t p = PARTS_MAX - 1; p >= 0; p--)
            for (int64_t first = 0; first < ROWS; first += PIECE) {
                const int64_t n = ROWS - first < PIECE ? ROWS - first : PIECE;
                qn_cuda_raw raw = m.raw[p];
                raw.data += (size_t)first * raw.row_bytes;
                if (raw.scales) raw.scales += (size_t)first * raw.scale_row_bytes;
                if (raw.biases) raw.biases += (size_t)first * raw.scale_row_bytes;
                pack_rows(&m.w, &raw, p, first, n);
            }
        assert_memory_equal(m.w.data, whole, m.size_bytes);
        end_matrix(&m);
    }
}

/* A part of a stack has the bytes that it has alone. */
static void parts_lie_one_after_the_other(void **state)
{
    qn_test_dice d = {.seed = 3};
    for (int i = 0; qn_test_packed_types[i] != QN_DTYPE_COUNT; i++) {
        const int64_t block = qn_type_get(qn_test_packed_types[i])->block_elements;
        matrix m = new_matrix(&d, qn_test_packed_types[i], QN_TEST_ORDINARY, AS_BLOCKS, PARTS_MAX, 21,
                              block > 1 ? 3 * block : 65);
        const size_t bytes = qn_cuda_part_bytes(&m.w);
        pack(&m);
        for (int64_t p = 0; p < PARTS_MAX; p++) {
            qn_cuda_weight one;
            assert_true(qn_cuda_weight_plan(m.w.dtype, 1, m.w.n_out, m.w.n_in, &one));
            assert_int_equal(qn_cuda_part_bytes(&one), bytes);
            one.data = qn_test_guarded(bytes, 16);
            one.factor = m.w.factor ? m.w.factor + p * m.w.n_panels * PANEL : NULL;
            pack_rows(&one, &m.raw[p], 0, 0, one.n_out);
            assert_memory_equal(one.data, m.w.data + (size_t)p * bytes, bytes);
        }
        end_matrix(&m);
    }
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

/* Kernels read pieces of 16 bytes. No type grows by more than a thirtieth, but for those that become f16. */
static void units_are_aligned_and_small(void **state)
{
    for (int type = 0; type < QN_DTYPE_COUNT; type++) {
        qn_cuda_weight w = {0};
        size_t row_bytes;
        const qn_dtype dtype = (qn_dtype)type;
        const int is_weight = qn_type_get(dtype)->decode != NULL && dtype != QN_DTYPE_F64;
        assert_int_equal(qn_cuda_weight_plan(dtype, 2, 48, 1024, &w), is_weight);
        if (!is_weight) continue;
        assert_true(qn_type_bytes(dtype, 1024, &row_bytes));
        const size_t file_bytes = 48 * row_bytes, bytes = qn_cuda_part_bytes(&w);
        if (bytes > file_bytes + file_bytes / 30)
            fail_msg("%s: %zu bytes, %zu in a file", qn_dtype_name(dtype), bytes, file_bytes);
        if (w.form == QN_CUDA_F32) continue;
        assert_int_equal(w.unit_bytes % 16, 0);
        assert_int_equal(w.code_bytes % 16, 0);
        assert_int_equal(w.unit_k % QN_CUDA_TILE_K, 0);
        assert_int_equal(w.unit_k % w.block, 0);
        assert_int_equal(w.n_panels, 3);
        assert_int_equal(w.n_units * w.unit_k, 1024);
        assert_int_equal(bytes, (size_t)(w.n_panels * w.n_units) * (size_t)w.unit_bytes);
    }
}

static void empty_matrices_are_refused(void **state)
{
    static const int64_t sizes[][3] = {{0, 1, 32},  {1, 0, 32},  {1, 1, 0},
                                       {-1, 1, 32}, {1, -1, 32}, {1, 1, -32}};
    qn_cuda_weight w;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_false(qn_cuda_weight_plan(QN_DTYPE_Q8_0, sizes[i][0], sizes[i][1], sizes[i][2], &w));
    assert_true(qn_cuda_weight_plan(QN_DTYPE_Q8_0, 1, 1, 32, &w));
    assert_false(qn_cuda_weight_plan(QN_DTYPE_COUNT, 1, 1, 32, &w));
}

/* ---- places -------------------------------------------------------------------------------------------- */

/* The register of operand A of mma.m16n8k16 that holds an element, and its half: PTX's table of fragments. */
static int lane_of(int row, int column)
{
    return row % 8 * 4 + column % 8 / 2;
}

static int register_of(int row, int column)
{
    return (row >= 8) + 2 * (column >= 8);
}

/* A lane's codes of a plane are its registers of 4 steps, low halves below high ones, and nobody else's. */
static void codes_lie_as_fragments(void **state)
{
    for (int width = 1; width <= 8; width *= 2) {
        uint32_t seen[32 * 8] = {0};
        for (int row = 0; row < PANEL; row++)
            for (int k = 0; k < QN_CUDA_TILE_K; k++) {
                int bit, row_back, k_back;
                const int at = qn_cuda_code_word(width, row, k, &bit), n_words = width < 4 ? width : 4;
                const uint32_t mask = ((1u << width) - 1) << bit;
                assert_in_range(at, 0, 32 * width - 1);
                assert_false(seen[at] & mask);
                seen[at] |= mask;
                assert_int_equal(at % (32 * n_words) / n_words, lane_of(row, k % 16));
                const int slot = k / 16 * 4 + register_of(row, k % 16), per_word = 16 / width;
                assert_int_equal(at / (32 * n_words) * n_words + at % n_words, slot / per_word);
                assert_int_equal(bit, width * (slot % per_word) + 16 * (k % 2));
                qn_cuda_word_element(width, at, bit % 16 / width + bit / 16 * per_word, &row_back, &k_back);
                assert_int_equal(row_back, row);
                assert_int_equal(k_back, k);
            }
        for (int i = 0; i < 32 * width; i++) assert_int_equal(seen[i], UINT32_MAX);
    }
}

static void halves_lie_as_fragments(void **state)
{
    for (int row = 0; row < PANEL; row++)
        for (int k = 0; k < QN_CUDA_TILE_K; k++) {
            int row_back, k_back;
            const int at = qn_cuda_half_word(row, k);
            assert_int_equal(at, k / 16 * 128 + lane_of(row, k % 16) * 4 + register_of(row, k % 16));
            qn_cuda_half_element(at, k & 1, &row_back, &k_back);
            assert_int_equal(row_back, row);
            assert_int_equal(k_back, k);
        }
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static void small_floats_are_exact(void **state)
{
    for (unsigned h = 0; h < 0x10000; h++) {
        const float f = qn_cuda_half_value((uint16_t)h);
        assert_true(are_same(f, qn_f16_to_f32((uint16_t)h)));
        if (!isnan(f)) assert_int_equal(qn_cuda_to_half(f), h);
    }
    for (unsigned s = 0; s < 256; s++) {
        assert_true(are_same(qn_cuda_e8m0_half((uint8_t)s), qn_e8m0_half((uint8_t)s)));
        assert_true(are_same(qn_cuda_e4m3((uint8_t)s), 2 * qn_e4m3_half((uint8_t)s)));
    }
    for (unsigned code = 0; code < 16; code++)
        assert_true(2 * qn_cuda_e2m1(code) == (float)qn_e2m1_twice[code]);
}

/* Around every f16 and every point half-way between two: both neighbours too. */
static void halves_are_rounded_to_even(void **state)
{
    for (uint32_t h = 0; h < 0x8000; h++)
        for (int i = -1; i <= 1; i++)
            for (int sign = 0; sign < 2; sign++) {
                const float a = qn_f16_to_f32((uint16_t)h),
                            b = h < 0x7bff ? qn_f16_to_f32((uint16_t)(h + 1)) : a;
                const uint32_t middle = qn_float_bits(isfinite(a) ? (a + b) / 2 : a) + (uint32_t)i;
                const float x = qn_bits_float(middle & 0x7fffffffu) * (sign ? -1.0f : 1.0f);
                const float got = qn_f16_to_f32(qn_cuda_to_half(x)), want = qn_f16_to_f32(qn_f32_to_f16(x));
                if (!are_same(got, want)) fail_msg("%a is %a, not %a", (double)x, (double)got, (double)want);
            }
    assert_int_equal(qn_cuda_to_half(65519.99f), 0x7bff);
    assert_int_equal(qn_cuda_to_half(65520.0f), 0x7c00);
    assert_int_equal(qn_cuda_to_half(-INFINITY), 0xfc00);
    assert_true(isnan(qn_cuda_half_value(qn_cuda_to_half(NAN))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_is_read_back),     cmocka_unit_test(pieces_make_the_same_bytes),
        cmocka_unit_test(parts_lie_one_after_the_other), cmocka_unit_test(units_are_aligned_and_small),
        cmocka_unit_test(empty_matrices_are_refused),    cmocka_unit_test(codes_lie_as_fragments),
        cmocka_unit_test(halves_lie_as_fragments),       cmocka_unit_test(small_floats_are_exact),
        cmocka_unit_test(halves_are_rounded_to_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
