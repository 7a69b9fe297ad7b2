#include "quant/types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "tests/support/fixtures.h"

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Decodes the tensor `raw` and compares every bit with `expected`, NaN with NaN. */
static void check_pair(const qn_safetensors *s, const qn_type *type, const char *raw_name,
                       const char *expected_name)
{
    const qn_tensor_view *raw = qn_safetensors_find(s, raw_name),
                         *expected = qn_safetensors_find(s, expected_name);
    if (!raw && !expected) return;
    assert_non_null(raw);
    assert_non_null(expected);
    size_t n_bytes;
    int64_t n = expected->n_elements;
    assert_true(qn_type_bytes(type->dtype, n, &n_bytes));
    assert_int_equal(n_bytes, raw->size_bytes);
    /* One byte off, since files promise no alignment. */
    uint8_t *blocks = qn_alloc(n_bytes + 1);
    float *out = qn_alloc_array((size_t)n, sizeof *out);
    memcpy(blocks + 1, raw->data, n_bytes);
    type->decode(type, blocks + 1, n, out);
    for (int64_t i = 0; i < n; i++) {
        float want;
        memcpy(&want, (const char *)expected->data + (size_t)i * sizeof want, sizeof want);
        if (bits(out[i]) == bits(want) || (isnan(out[i]) && isnan(want))) continue;
        fail_msg("%s %s[%lld]: %.9g, expected %.9g", type->name, raw_name, (long long)i, out[i], want);
    }
    qn_free(out);
    qn_free(blocks);
}

static void test_decode_fixtures(void **state)
{
    static const char *const files[] = {"F16",  "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                        "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[64];
        snprintf(name, sizeof name, "quant/gguf_blocks/%s.safetensors", files[i]);
        const char *path = qn_test_need_fixture(name);
        qn_safetensors *s;
        assert_int_equal(qn_safetensors_open(path, &s), QN_OK);
        uint32_t number = (uint32_t)strtoul(qn_safetensors_metadata(s, "ggml_type"), NULL, 10);
        const qn_type *type = qn_type_from_ggml(number);
        assert_non_null(type);
        assert_string_equal(qn_ggml_type_name(number), files[i]);
        assert_int_equal(type->block_elements,
                         strtoll(qn_safetensors_metadata(s, "block_elements"), NULL, 10));
        assert_int_equal(type->block_bytes, strtoll(qn_safetensors_metadata(s, "block_bytes"), NULL, 10));
        assert_non_null(qn_safetensors_find(s, "raw_random"));
        check_pair(s, type, "raw", "expected");
        check_pair(s, type, "raw_random", "expected_random");
        check_pair(s, type, "raw_all", "expected_all");
        qn_safetensors_close(s);
    }
}

/* A half to double by its definition. */
static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 31  ? (mantissa ? NAN : INFINITY)
               : exponent == 0 ? ldexp(mantissa, -24)
                               : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -v : v;
}

static void test_halves_there_and_back(void **state)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = qn_f16_to_f32((uint16_t)h), b = qn_bf16_to_f32((uint16_t)h);
        double want = half_value((uint16_t)h);
        if (isnan(want)) {
            assert_true(isnan(f));
            assert_true(isnan(half_value(qn_f32_to_f16(f))));
        } else {
            assert_int_equal(bits(f), bits((float)want));
            assert_int_equal(qn_f32_to_f16(f), h);
        }
        if (isnan(b))
            assert_true(isnan(qn_bf16_to_f32(qn_f32_to_bf16(b))));
        else
            assert_int_equal(qn_f32_to_bf16(b), h);
    }
}

/* Around every half, the middle to the next one and its neighbours must go to the nearest, a tie to the even
 * one. */
static void test_halves_round_to_nearest_even(void **state)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float low = qn_f16_to_f32((uint16_t)h);
        float high = h == 0x7bff ? 65536 : qn_f16_to_f32((uint16_t)(h + 1));
        float middle = (low + high) / 2;
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        assert_int_equal(qn_f32_to_f16(middle), even);
        assert_int_equal(qn_f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(qn_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(qn_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
    }
    for (uint32_t h = 0; h < 0x7f80; h++) {
        union {
            uint32_t u;
            float f;
        } middle = {h << 16 | 0x8000};
        assert_int_equal(qn_f32_to_bf16(middle.f), h & 1 ? h + 1 : h);
        assert_int_equal(qn_f32_to_bf16(nextafterf(middle.f, 0)), h);
        assert_int_equal(qn_f32_to_bf16(nextafterf(middle.f, INFINITY)), h + 1);
    }
    assert_int_equal(qn_f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(qn_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(qn_f32_to_f16(1e-30f), 0);
    assert_int_equal(qn_f32_to_bf16(3.4e38f), 0x7f80);
}

static void test_table(void **state)
{
    for (int i = 0; i < QN_DTYPE_COUNT; i++) {
        const qn_type *t = qn_type_get((qn_dtype)i);
        assert_non_null(t);
        assert_int_equal(t->dtype, i);
        assert_string_equal(t->name, qn_dtype_name((qn_dtype)i));
        assert_int_equal(qn_type_is_quantised((qn_dtype)i), t->block_elements > 1);
        if (t->st_name) assert_ptr_equal(qn_type_from_safetensors(t->st_name, strlen(t->st_name)), t);
        if (t->ggml_type < 0) continue;
        int64_t elements;
        size_t block_bytes;
        assert_ptr_equal(qn_type_from_ggml((uint32_t)t->ggml_type), t);
        assert_true(qn_ggml_type_layout((uint32_t)t->ggml_type, &elements, &block_bytes));
        assert_int_equal(elements, t->block_elements);
        assert_int_equal(block_bytes, t->block_bytes);
    }
#define SAME_NAME(name, text) assert_string_equal(qn_dtype_name(QN_DTYPE_##name), text);
    QN_DTYPE_LIST(SAME_NAME)
#undef SAME_NAME
}

static void test_unknown_numbers(void **state)
{
    int64_t elements;
    size_t n = 7;
    assert_null(qn_type_from_ggml(16));
    assert_string_equal(qn_ggml_type_name(16), "IQ2_XXS");
    assert_true(qn_ggml_type_layout(16, &elements, &n) && elements == 256 && n == 66);
    assert_null(qn_type_from_ggml(UINT32_MAX));
    assert_null(qn_ggml_type_name(4));
    assert_null(qn_ggml_type_name(UINT32_MAX));
    assert_false(qn_ggml_type_layout(5, &elements, &n));
    assert_null(qn_type_from_safetensors("F8_E4M3", 7));
    assert_null(qn_type_from_safetensors("F", 1));
    assert_false(qn_type_bytes(QN_DTYPE_Q4_K, -256, &n));
    assert_false(qn_type_bytes(QN_DTYPE_Q4_K, 255, &n));
    assert_false(qn_type_bytes(QN_DTYPE_F32, INT64_MAX, &n));
    assert_true(qn_type_bytes(QN_DTYPE_Q4_K, 512, &n) && n == 288);
    assert_true(qn_type_bytes(QN_DTYPE_F64, 0, &n) && n == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_fixtures),
        cmocka_unit_test(test_halves_there_and_back),
        cmocka_unit_test(test_halves_round_to_nearest_even),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_unknown_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
