#include "model/config/quantization.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "model/weights/weights.h"
#include "quant/types.h"
#include "tests/devices/mlx_model.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

#define MODULE "model.layers.1.mlp.down_proj"

/* What is accepted, and the type that the module then has. */
static void layers_have_their_own_parameters(void **state)
{
    static const struct {
        qn_dtype type;
        const char *config, *dense;
        qn_dtype want;
    } cases[] = {
        {QN_DTYPE_AFFINE4_G64_BF16, NULL, NULL, QN_DTYPE_AFFINE4_G64_BF16},
        {QN_DTYPE_AFFINE3_G32_F16, NULL, NULL, QN_DTYPE_AFFINE3_G32_F16},
        {QN_DTYPE_MXFP4, NULL, NULL, QN_DTYPE_MXFP4},
        {QN_DTYPE_NVFP4, NULL, NULL, QN_DTYPE_NVFP4},
        /* without a mode it is affine */
        {QN_DTYPE_AFFINE8_G128_F32, "{\"quantization\": {\"mode\": null}}", NULL, QN_DTYPE_AFFINE8_G128_F32},
        /* an entry of its own, here the same as for all */
        {QN_DTYPE_AFFINE6_G128_BF16,
         "{\"quantization\": {\"" MODULE "\": {\"bits\": 6, \"group_size\": 128}}}", NULL,
         QN_DTYPE_AFFINE6_G128_BF16},
        /* an entry without words: mlx's 4 bits in groups of 64, whatever holds for all */
        {QN_DTYPE_AFFINE4_G64_BF16,
         "{\"quantization\": {\"bits\": 4, \"group_size\": 64, \"" MODULE "\": {}}}", NULL,
         QN_DTYPE_AFFINE4_G64_BF16},
        {QN_DTYPE_AFFINE4_G64_BF16, "{\"quantization\": {\"" MODULE "\": true}}", NULL,
         QN_DTYPE_AFFINE4_G64_BF16},
        /* dense: no scales; said or not */
        {QN_DTYPE_AFFINE4_G64_BF16, "{\"quantization\": {\"" MODULE "\": false}}", MODULE, QN_DTYPE_BF16},
        {QN_DTYPE_AFFINE4_G64_BF16, NULL, MODULE, QN_DTYPE_BF16},
        {QN_DTYPE_AFFINE4_G64_BF16, "{\"quantization\": {\"" MODULE "\": {\"bits\": 8}}}", MODULE,
         QN_DTYPE_BF16},
        /* the older name of the whole object */
        {QN_DTYPE_AFFINE5_G64_F32,
         "{\"quantization\": null, \"quantization_config\": {\"bits\": 5, \"group_size\": 64}}", NULL,
         QN_DTYPE_AFFINE5_G64_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = qn_test_scratch();
        qn_test_weights o;
        qn_test_mlx m = {
            .name = "m", .type = cases[i].type, .config = cases[i].config, .dense = cases[i].dense};
        if (qn_test_weights_open(qn_test_mlx_model(folder, &m), &o) != QN_OK)
            fail_msg("case %zu: %s", i, qn_last_error());
        const qn_tensor_view *v = qn_weights_get(o.weights, QN_WEIGHT_DOWN, 1),
                             *q = qn_weights_get(o.weights, QN_WEIGHT_Q, 0);
        assert_int_equal(v->dtype, cases[i].want);
        assert_int_equal(q->dtype, cases[i].type);
        assert_int_equal(v->shape[0] * v->shape[1], 256 * 256);
        assert_int_equal(v->n_elements, 256 * 256);
        assert_int_equal(v->scales != NULL, cases[i].want != QN_DTYPE_BF16);
        assert_int_equal(v->biases != NULL, qn_affine_of(cases[i].want).bits != 0);
        qn_test_weights_close(&o);
        qn_test_remove(folder);
    }
}

/* What is refused, with words that name the file's field or tensor. */
static void refusals_name_field_and_tensor(void **state)
{
    static const struct {
        qn_test_mlx m;
        qn_status status;
        const char *words[3];
    } cases[] = {
        {{.left_out = MODULE ".scales"}, QN_E_FORMAT, {"model.safetensors", MODULE ".scales", "U32"}},
        {{.left_out = MODULE ".biases"}, QN_E_FORMAT, {MODULE ".weight", "no biases"}},
        {{.left_out = MODULE ".weight"}, QN_E_FORMAT, {MODULE ".weight is missing", "[256, 256]"}},
        {{.retyped = MODULE ".scales"}, QN_E_FORMAT, {MODULE ".scales", "I8", "BF16"}},
        {{.retyped = MODULE ".weight"}, QN_E_FORMAT, {MODULE ".weight", "I8", "U32"}},
        {{.retyped = MODULE ".biases"}, QN_E_FORMAT, {MODULE ".biases", "I8", "BF16"}},
        {{.narrowed = MODULE ".weight"},
         QN_E_FORMAT,
         {MODULE ".weight: shape [256, 31], expected [256, 32]"}},
        {{.narrowed = MODULE ".scales"}, QN_E_FORMAT, {MODULE ".scales: shape [256, 3], expected [256, 4]"}},
        {{.narrowed = MODULE ".biases"}, QN_E_FORMAT, {MODULE ".biases: shape [256, 3], expected [256, 4]"}},
        {{.config = "{\"quantization\": null}"},
         QN_E_FORMAT,
         {"model.embed_tokens.scales", "\"quantization\""}},
        {{.config = "{\"quantization\": {\"" MODULE "\": false}}"},
         QN_E_FORMAT,
         {"config.json", "quantization." MODULE " is false", MODULE ".scales"}},
        {{.config = "{\"quantization\": {\"" MODULE "\": {\"bits\": 8}}}"},
         QN_E_FORMAT,
         {MODULE ".weight: shape [256, 32], expected [256, 64]", "8 bits", "group_size 64"}},
        {{.config = "{\"quantization\": {\"group_size\": 32}}"},
         QN_E_FORMAT,
         {"model.embed_tokens.scales", "shape [155, 4], expected [155, 8]"}},
        {{.config = "{\"quantization\": {\"bits\": 7}}"},
         QN_E_UNSUPPORTED,
         {"config.json", "7 bits", "2, 3, 4"}},
        {{.config = "{\"quantization\": {\"group_size\": 96}}"},
         QN_E_UNSUPPORTED,
         {"groups of 96", "32, 64"}},
        {{.config = "{\"quantization\": {\"bits\": 0}}"}, QN_E_FORMAT, {"quantization.bits", "0"}},
        {{.config = "{\"quantization\": {\"bits\": \"4\"}}"}, QN_E_FORMAT, {"quantization.bits"}},
        {{.config = "{\"quantization\": {\"bits\": null}}"}, QN_E_FORMAT, {"quantization.bits"}},
        {{.config = "{\"quantization\": {\"group_size\": -64}}"}, QN_E_FORMAT, {"quantization.group_size"}},
        {{.config = "{\"quantization\": {\"group_size\": 1e30}}"}, QN_E_FORMAT, {"quantization.group_size"}},
        {{.config = "{\"quantization\": {\"mode\": \"int3\"}}"},
         QN_E_UNSUPPORTED,
         {"quantization.mode", "int3", "mxfp4"}},
        {{.config = "{\"quantization\": {\"mode\": \"nvfp4\", \"group_size\": 16}}"},
         QN_E_FORMAT,
         {"model.embed_tokens.weight", "nvfp4", "U8"}},
        {{.config = "{\"quantization\": {\"mode\": \"nvfp4\", \"group_size\": 32}}"},
         QN_E_UNSUPPORTED,
         {"model.embed_tokens.weight", "mode nvfp4", "nvfp4 with group_size 16"}},
        {{.config = "{\"quantization\": {\"mode\": \"nvfp4\", \"bits\": 8, \"group_size\": 16}}"},
         QN_E_UNSUPPORTED,
         {"model.embed_tokens.weight", "nvfp4 with 8 bits"}},
        {{.config = "{\"quantization\": {\"mode\": \"mxfp4\", \"group_size\": 32}}"},
         QN_E_FORMAT,
         {"model.embed_tokens.weight", "U8"}},
        {{.config = "{\"quantization\": {\"" MODULE "\": {\"mode\": 4}}}"},
         QN_E_FORMAT,
         {"quantization." MODULE ".mode"}},
        {{.config = "{\"quantization\": {\"quant_method\": \"gptq\"}}"}, QN_E_UNSUPPORTED, {"gptq"}},
        {{.config = "{\"quantization\": 4}"}, QN_E_FORMAT, {"quantization"}},
        {{.config = "{\"hidden_size\": 260}"},
         QN_E_FORMAT,
         {"model.embed_tokens.weight", "260 columns", "group_size 64"}},
        {{.type = QN_DTYPE_NVFP4, .narrowed = MODULE ".scales"},
         QN_E_FORMAT,
         {MODULE ".scales: shape [256, 15], expected [256, 16] for 4 bits and group_size 16"}},
        {{.type = QN_DTYPE_NVFP4, .narrowed = MODULE ".weight"},
         QN_E_FORMAT,
         {MODULE ".weight: shape [256, 31], expected [256, 32]"}},
        {{.type = QN_DTYPE_NVFP4, .retyped = MODULE ".scales"},
         QN_E_FORMAT,
         {MODULE ".weight: nvfp4 has scales of type U8"}},
        {{.type = QN_DTYPE_NVFP4, .scaled = MODULE},
         QN_E_UNSUPPORTED,
         {"model.safetensors", MODULE ".global_scale", "for the whole tensor"}},
        {{.type = QN_DTYPE_NVFP4, .left_out = MODULE ".scales"}, QN_E_FORMAT, {MODULE ".scales", "U32"}},
        {{.type = QN_DTYPE_NVFP4, .config = "{\"hidden_size\": 272}"},
         QN_E_UNSUPPORTED,
         {"model.embed_tokens.weight", "nvfp4 with 272 columns", "not a multiple of 32"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = qn_test_scratch();
        qn_test_weights o;
        qn_test_mlx m = cases[i].m;
        m.name = "m";
        if (!m.type) m.type = QN_DTYPE_AFFINE4_G64_BF16;
        size_t blocks = qn_mem_live_blocks();
        qn_status status = qn_test_weights_open(qn_test_mlx_model(folder, &m), &o);
        if (status != cases[i].status) fail_msg("case %zu: status %d: %s", i, (int)status, qn_last_error());
        for (int w = 0; w < 3 && cases[i].words[w]; w++)
            if (!strstr(qn_last_error(), cases[i].words[w]))
                fail_msg("case %zu: no \"%s\" in: %s", i, cases[i].words[w], qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), blocks);
        qn_test_remove(folder);
    }
}

static void every_failed_allocation(void **state)
{
    const char *folder = qn_test_scratch();
    qn_test_mlx m = {.name = "m",
                     .type = QN_DTYPE_AFFINE4_G64_BF16,
                     .config = "{\"quantization\": {\"" MODULE "\": {}, \"lm_head\": true}}"};
    const char *path = qn_test_mlx_model(folder, &m);
    qn_status status = QN_E_NOMEM;
    qn_test_weights o;
    int n = 0;
    while (status != QN_OK && ++n < 2000) {
        size_t blocks = qn_mem_live_blocks();
        qn_mem_fail_nth(n);
        status = qn_test_weights_open(path, &o);
        qn_mem_fail_nth(0);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), blocks);
    }
    if (n <= 20 || n >= 2000) fail_msg("opened at the %dth allocation", n);
    qn_test_weights_close(&o);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_have_their_own_parameters),
        cmocka_unit_test(refusals_name_field_and_tensor),
        cmocka_unit_test(every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
