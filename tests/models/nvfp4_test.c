/* MLX's nvfp4 (tools/make_mlx_nvfp4.py): every code under every scale as mlx.core.dequantize has it
 * but for the sign of 0; a tiny model against mlx_lm's logits, on every instruction set
 * (tests/devices/other_quant_test.c: on another device). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "device/cpu/kernels/kernels.h"
#include "quant/mlx.h"
#include "tests/devices/other_golden.h"
#include "tests/kernels/kernel_help.h"
#include "tests/support/engine_help.h"

#define MODEL "tests/golden/mlx/qwen3-nvfp4"

enum { ROWS = 256, COLS = 32, BLOCK = 18 };

static void check(const char *who, const float *got, const float *want)
{
    for (int i = 0; i < ROWS * COLS; i++)
        if (isnan(want[i]) ? !isnan(got[i]) : got[i] != want[i])
            fail_msg("%s: scale %d, code %d: %a, not %a", who, i % COLS < 16 ? i / COLS : 255 - i / COLS,
                     i % 16, (double)got[i], (double)want[i]);
}

static void test_values(void **state)
{
    static uint8_t rows[ROWS * BLOCK];
    static float got[ROWS * COLS], want[ROWS * COLS];
    qn_safetensors *st;
    qn_test_ok(qn_safetensors_open(MODEL "/expected.safetensors", &st));
    memcpy(want, qn_test_tensor(st, "all.values", 0)->data, sizeof want);
    for (int i = 0; i < ROWS; i++)
        qn_mlx_join(QN_DTYPE_NVFP4, COLS, qn_test_tensor(st, "all.weight", 0)->data,
                    qn_test_tensor(st, "all.scales", 0)->data, NULL, i, rows + BLOCK * i);
    const qn_type *type = qn_type_get(QN_DTYPE_NVFP4);
    type->decode(type, rows, ROWS * COLS, got);
    check("decoder", got, want);
    for (const char *const *set = qn_kernels_names(); *set; set++) {
        const qn_kernels *k = qn_kernels_by_name(*set);
        const uint8_t *panels = qn_test_panels(k, NULL, QN_DTYPE_NVFP4, COLS, ROWS, rows);
        static float panel[QN_PANEL * COLS];
        for (int i = 0; i < ROWS; i++) k->unpack_row(QN_DTYPE_NVFP4, COLS, panels, i, got + COLS * i);
        check(*set, got, want);
        for (int p = 0; p < ROWS / QN_PANEL; p++) {
            k->unpack_panel(QN_DTYPE_NVFP4, COLS, panels, p, panel);
            for (int i = 0; i < QN_PANEL * COLS; i++)
                got[(QN_PANEL * p + i % QN_PANEL) * COLS + i / QN_PANEL] = panel[i];
        }
        check(*set, got, want);
        qn_test_guarded_end();
    }
    qn_safetensors_close(st);
}

static void test_logits(void **state)
{
    qn_test_other_golden(MODEL);
}

static void test_same_bits(void **state)
{
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++)
            qn_test_same_bits(&(qn_test_bits){"qwen3-nvfp4", MODEL, *set, (qn_precision)p, set[1] ? 54 : 70,
                                              500, set[1] != NULL, QN_KV_AUTO});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
