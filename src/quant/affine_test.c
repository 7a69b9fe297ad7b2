/* Blocks as affine groups: scale * code + bias in f32 is what the type's decoder gives, for ordinary and for
 * extreme blocks; what does not fit is refused. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <string.h>

#include "quant/affine.h"
#include "tests/kernels/kernel_help.h"

enum { COLUMNS = 512, ROWS = 40 };

static float number(const void *at, qn_dtype dtype, int64_t i)
{
    uint16_t half;
    float f;
    if (dtype == QN_DTYPE_F32) {
        memcpy(&f, (const char *)at + 4 * i, sizeof f);
        return f;
    }
    memcpy(&half, (const char *)at + 2 * i, sizeof half);
    return qn_f16_to_f32(half);
}

/* 1: the row has a form, and every number of it is the decoder's. */
static int check_row(qn_dtype dtype, qn_affine a, const uint8_t *row)
{
    static float want[COLUMNS];
    static uint8_t codes[COLUMNS], scales[COLUMNS], biases[COLUMNS], q[8];
    const qn_type *type = qn_type_get(dtype);
    type->decode(type, row, COLUMNS, want);
    if (!qn_affine_from_blocks(dtype, COLUMNS, row, codes, scales, biases)) return 0;
    for (int64_t k = 0; k < COLUMNS; k++) {
        if (k % 8 == 0) qn_unpack_bits(codes + k / 8 * a.bits, a.bits, q);
        const float product = number(scales, a.scale, k / a.group) * (float)q[k % 8],
                    got = product + number(biases, a.scale, k / a.group);
        if (got != want[k])
            fail_msg("%s: column %d is %.9g, not %.9g", type->name, (int)k, (double)got, (double)want[k]);
    }
    return 1;
}

static void numbers_are_the_decoders(void **state)
{
    int n_types = 0;
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
        const qn_affine a = qn_affine_of_blocks((qn_dtype)d);
        size_t row;
        if (!a.bits) continue;
        n_types++;
        assert_true(qn_type_bytes((qn_dtype)d, COLUMNS, &row));
        for (int kind = 0; kind < QN_TEST_WEIGHTS_COUNT; kind++) {
            qn_test_dice dice = {.seed = 7};
            const uint8_t *rows = qn_test_rows(&dice, (qn_test_weights)kind, (qn_dtype)d, COLUMNS, ROWS);
            for (int r = 0; r < ROWS; r++) {
                const int fits = check_row((qn_dtype)d, a, rows + (size_t)r * row);
                if (kind != QN_TEST_EXTREME_SCALES) assert_true(fits);
            }
            qn_test_guarded_end();
        }
    }
    assert_int_equal(n_types, 8);
}

/* -8 times the scale is no f16; an infinite scale is no number. */
static void what_does_not_fit(void **state)
{
    static const uint16_t scales[] = {0x7bff, 0x7c00, 0xfc00, 0x7e00};
    uint8_t block[18] = {0}, codes[16], scale[2], bias[2];
    for (int i = 0; i < 4; i++) {
        memcpy(block, &scales[i], 2);
        assert_false(qn_affine_from_blocks(QN_DTYPE_Q4_0, 32, block, codes, scale, bias));
    }
    memcpy(block, (uint16_t[]){0x6fff}, 2);
    assert_true(qn_affine_from_blocks(QN_DTYPE_Q4_0, 32, block, codes, scale, bias));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_the_decoders),
                                       cmocka_unit_test(what_does_not_fit)};
    return cmocka_run_group_tests_name("affine", tests, NULL, NULL);
}
