/* Every set's conversions between f32, f16 and bf16: all 65,536 halves, ties, ends of arrays. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <string.h>

#include "quant/types.h"
#include "tests/kernels/kernel_help.h"

static double f16_value(uint32_t h)
{
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

/* To nearest even by search, from magnitudes' order. */
static uint32_t f16_nearest(float f)
{
    uint32_t sign = qn_float_bits(f) >> 16 & 0x8000;
    double x = fabs((double)f);
    uint32_t lo = 0, hi = 0x7c00;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (f16_value(mid) <= x)
            lo = mid;
        else
            hi = mid;
    }
    double below = f16_value(lo), above = hi == 0x7c00 ? 65536.0 : f16_value(hi);
    if (x - below > above - x || (x - below == above - x && lo % 2)) lo = hi;
    return sign | lo;
}

static void test_conversions(void **unused)
{
    static uint16_t halves[65536], back[65536];
    static float wide[65536], first[65536];
    for (int i = 0; i < 65536; i++) halves[i] = (uint16_t)i;
    for (const char *const *name = qn_kernels_names(); *name; name++) {
        const qn_kernels *k = qn_kernels_by_name(*name);
        k->to_f32(QN_DTYPE_F16, halves, wide, 65536);
        for (int i = 0; i < 65536; i++) {
            double v = f16_value((uint32_t)i);
            assert_true(v != v ? wide[i] != wide[i] : wide[i] == (float)v && !!signbit(wide[i]) == i >> 15);
        }
        if (name == qn_kernels_names()) memcpy(first, wide, sizeof first);
        assert_memory_equal(first, wide, sizeof first);
        k->from_f32(QN_DTYPE_F16, wide, back, 65536);
        for (int i = 0; i < 65536; i++) assert_int_equal(back[i], (i & 0x7fff) > 0x7c00 ? i | 0x200 : i);
        k->to_f32(QN_DTYPE_BF16, halves, wide, 65536);
        for (int i = 0; i < 65536; i++) assert_int_equal(qn_float_bits(wide[i]), (uint32_t)i << 16);
        k->from_f32(QN_DTYPE_BF16, wide, back, 65536);
        for (int i = 0; i < 65536; i++) assert_int_equal(back[i], (i & 0x7fff) > 0x7f80 ? i | 0x40 : i);

        qn_test_dice dice = {.seed = 7};
        for (int i = 0; i < 65536; i++) {
            uint32_t u = (uint32_t)qn_test_roll(&dice, (int64_t)1 << 32);
            if (i % 2)
                u = qn_float_bits((float)qn_test_between(&dice, -70000, 70000) * (i % 4 == 1 ? 1e-9f : 1.0f));
            if (i % 8 == 0)
                u = qn_float_bits((float)f16_value(u & 0xffff)) +
                    (u >> 31 ? 0x1000 : 0x0fff + (u >> 30)); /* near ties */
            wide[i] = qn_bits_float(u);
        }
        k->from_f32(QN_DTYPE_F16, wide, back, 65536);
        for (int i = 0; i < 65536; i++) {
            if (wide[i] == wide[i]) assert_int_equal(back[i], f16_nearest(wide[i]));
        }
        k->from_f32(QN_DTYPE_BF16, wide, back, 65536);
        for (int i = 0; i < 65536; i++) {
            uint32_t u = qn_float_bits(wide[i]);
            if (wide[i] == wide[i])
                assert_int_equal(back[i], (u >> 16) + ((u & 0xffff) > 0x8000 - (u >> 16 & 1)));
        }
        for (int64_t n = 0; n < 40; n++) { /* ends */
            uint16_t few[41];
            float some[41];
            few[n] = 0x7777;
            some[n] = -77.0f;
            float *p = qn_test_guarded((size_t)n * sizeof *p, sizeof *p);
            memcpy(p, wide + 100, (size_t)n * sizeof *p);
            qn_test_sealed(p);
            k->from_f32(QN_DTYPE_BF16, p, few, n);
            assert_memory_equal(few, back + 100, (size_t)n * sizeof *few);
            k->to_f32(QN_DTYPE_BF16, few, some, n);
            assert_true(few[n] == 0x7777 && some[n] == -77.0f);
            k->to_f32(QN_DTYPE_F32, p, some, n);
            assert_memory_equal(some, p, (size_t)n * sizeof *some);
            qn_test_guarded_end();
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversions)};
    return cmocka_run_group_tests_name("kernels/conversion", tests, NULL, NULL);
}
