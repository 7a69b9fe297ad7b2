/* Experts in every form that files have them in: the fixtures' own, rewritten by this test, against the
 * fixtures themselves. What only lies otherwise gives the same bits; what is quantised is compared with the
 * same numbers in a plain type. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "quant/types.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/models/rewritten.h"
#include "tests/support/scratch.h"

static void to_f32(qn_test_copy_of *t)
{
    float *x = qn_test_copy_floats(t);
    test_free(t->data);
    t->data = (char *)x;
    t->dtype = QN_DTYPE_F32;
    t->size_bytes = (size_t)qn_test_copy_elements(t) * sizeof *x;
}

static void same_bits(const qn_test_rewritten *m, const char *a, const char *b)
{
    for (int p = 0; p < 3; p++) {
        double d = qn_test_rewritten_difference(m, a, b, (qn_precision)p);
        if (d != 0) fail_msg("%s: differs by %g in %s", b, d, qn_test_precision_name((qn_precision)p));
    }
}

/* ---- the same numbers elsewhere ----------------------------------------------------------------------- */

/* Matrices of all experts of one kind one behind the other, as one tensor; theirs are dropped. */
static void stack(qn_test_rewritten *m, int layer, const char *fmt, const char *name)
{
    const qn_test_copy_of *first = qn_test_rewritten_find(m, fmt, layer, 0);
    qn_test_copy_of *all =
        qn_test_rewritten_add(m, name, first->dtype, 3,
                              (int64_t[]){m->config.experts.num_experts, first->shape[0], first->shape[1]});
    for (int e = 0; e < m->config.experts.num_experts; e++) {
        qn_test_copy_of *t = qn_test_rewritten_find(m, fmt, layer, e);
        memcpy(all->data + (size_t)e * t->size_bytes, t->data, t->size_bytes);
        all = &m->t[m->n - 1];
    }
    for (int e = 0; e < m->config.experts.num_experts; e++)
        qn_test_rewritten_drop(m, qn_test_rewritten_find(m, fmt, layer, e));
}

static const char *layer_name(int layer, const char *rest)
{
    static char names[4][QN_TEST_REWRITTEN_NAME];
    static int next;
    char *name = names[next++ % 4];
    snprintf(name, QN_TEST_REWRITTEN_NAME, "model.layers.%d.%s", layer, rest);
    return name;
}

static void stacked(void **state)
{
    const char *folder = qn_test_scratch();
    qn_test_rewritten *m = qn_test_rewritten_read("qwen3_moe");
    for (int l = 0; l < m->config.num_hidden_layers; l++) {
        if (!m->config.layers[l].has_experts) continue;
        stack(m, l, "model.layers.%d.mlp.experts.%d.gate_proj.weight",
              layer_name(l, "mlp.switch_mlp.gate_proj.weight"));
        stack(m, l, "model.layers.%d.mlp.experts.%d.up_proj.weight",
              layer_name(l, "mlp.switch_mlp.up_proj.weight"));
        stack(m, l, "model.layers.%d.mlp.experts.%d.down_proj.weight",
              layer_name(l, "mlp.switch_mlp.down_proj.weight"));
    }
    same_bits(m, m->fixture, qn_test_rewritten_write(m, folder, NULL));
    qn_test_remove(folder);
    qn_test_rewritten_free(m);
}

static void halves(void **state)
{
    const char *folder = qn_test_scratch();
    qn_test_rewritten *m = qn_test_rewritten_read("qwen3_moe");
    for (int l = 0; l < m->config.num_hidden_layers; l++) {
        if (!m->config.layers[l].has_experts) continue;
        qn_test_copy_of *both = qn_test_rewritten_add(
            m, layer_name(l, "mlp.experts.gate_up_proj"), QN_DTYPE_BF16, 3,
            (int64_t[]){m->config.experts.num_experts, 2 * m->config.experts.moe_intermediate_size,
                        m->config.hidden_size});
        char *to = both->data;
        for (int e = 0; e < m->config.experts.num_experts; e++)
            for (int up = 0; up < 2; up++) {
                const qn_test_copy_of *t =
                    qn_test_rewritten_find(m,
                                           up ? "model.layers.%d.mlp.experts.%d.up_proj.weight"
                                              : "model.layers.%d.mlp.experts.%d.gate_proj.weight",
                                           l, e);
                memcpy(to, t->data, t->size_bytes);
                to += t->size_bytes;
            }
        for (int e = 0; e < m->config.experts.num_experts; e++) {
            qn_test_rewritten_drop(
                m, qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.%d.up_proj.weight", l, e));
            qn_test_rewritten_drop(
                m, qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.%d.gate_proj.weight", l, e));
        }
        stack(m, l, "model.layers.%d.mlp.experts.%d.down_proj.weight",
              layer_name(l, "mlp.experts.down_proj"));
    }
    char patch[96];
    snprintf(patch, sizeof patch, "{\"num_experts\": null, \"num_local_experts\": %d}",
             (int)m->config.experts.num_experts);
    same_bits(m, m->fixture, qn_test_rewritten_write(m, folder, patch));
    qn_test_remove(folder);
    qn_test_rewritten_free(m);
}

/* gpt_oss's tensors [E, in, out] turned, and gate and up apart, each into `n_out` rows (the further ones are
 * 0) of `n_in` columns. which: 0 gate, 1 up, 2 down. */
static float *turned(qn_test_rewritten *m, int layer, int which, int64_t n_out, int64_t n_in)
{
    const qn_test_copy_of *t = qn_test_rewritten_find(
        m, which == 2 ? "model.layers.%d.mlp.experts.down_proj" : "model.layers.%d.mlp.experts.gate_up_proj",
        layer, 0);
    int64_t rows = t->shape[2] / (which == 2 ? 1 : 2), columns = t->shape[1], step = which == 2 ? 1 : 2;
    float *x = qn_test_copy_floats(t),
          *out = test_calloc((size_t)(m->config.experts.num_experts * n_out * n_in), sizeof *out);
    for (int64_t e = 0; e < m->config.experts.num_experts; e++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < columns; k++)
                out[(e * n_out + r) * n_in + k] =
                    x[(e * columns + k) * t->shape[2] + r * step + (which == 1)];
    test_free(x);
    return out;
}

static void put_bf16(qn_test_copy_of *t, const float *x)
{
    for (int64_t i = 0; i < qn_test_copy_elements(t); i++) {
        uint16_t h = qn_f32_to_bf16(x[i]);
        memcpy(t->data + 2 * i, &h, 2);
    }
}

/* A bias of gate (0) or up (1), taken out of their common one. */
static void bias_apart(qn_test_rewritten *m, int layer, int which, int64_t width)
{
    const qn_test_copy_of *both =
        qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.gate_up_proj_bias", layer, 0);
    float *x = qn_test_copy_floats(both),
          *y = test_calloc((size_t)(m->config.experts.num_experts * width), sizeof *y);
    for (int64_t e = 0; e < m->config.experts.num_experts; e++)
        for (int64_t r = 0; r < m->config.experts.moe_intermediate_size; r++)
            y[e * width + r] = x[(e * m->config.experts.moe_intermediate_size + r) * 2 + which];
    const char *name = layer_name(layer, which ? "mlp.experts.up_proj.bias" : "mlp.experts.gate_proj.bias");
    put_bf16(
        qn_test_rewritten_add(m, name, QN_DTYPE_BF16, 2, (int64_t[]){m->config.experts.num_experts, width}),
        y);
    test_free(x);
    test_free(y);
}

static const char *const parts[] = {"mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight",
                                    "mlp.experts.down_proj.weight"};

static void apart(void **state)
{
    const char *folder = qn_test_scratch();
    qn_test_rewritten *m = qn_test_rewritten_read("gpt_oss");
    for (int l = 0; l < m->config.num_hidden_layers; l++) {
        for (int which = 0; which < 3; which++) {
            int64_t n_out = which == 2 ? m->config.hidden_size : m->config.experts.moe_intermediate_size,
                    n_in = which == 2 ? m->config.experts.moe_intermediate_size : m->config.hidden_size;
            float *x = turned(m, l, which, n_out, n_in);
            put_bf16(qn_test_rewritten_add(m, layer_name(l, parts[which]), QN_DTYPE_BF16, 3,
                                           (int64_t[]){m->config.experts.num_experts, n_out, n_in}),
                     x);
            test_free(x);
            if (which < 2) bias_apart(m, l, which, m->config.experts.moe_intermediate_size);
        }
        qn_test_copy_of *down = qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.down_proj_bias", l, 0);
        snprintf(down->name, sizeof down->name, "%s", layer_name(l, "mlp.experts.down_proj.bias"));
        qn_test_rewritten_drop(
            m, qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.gate_up_proj_bias", l, 0));
        qn_test_rewritten_drop(m,
                               qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.gate_up_proj", l, 0));
        qn_test_rewritten_drop(m, qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.down_proj", l, 0));
    }
    same_bits(m, m->fixture, qn_test_rewritten_write(m, folder, NULL));
    qn_test_remove(folder);
    qn_test_rewritten_free(m);
}

/* ---- MXFP4 -------------------------------------------------------------------------------------------- */

/* The code whose value is next to x / scale. */
static int nearest_code(float x, float half_scale)
{
    int best = 0;
    for (int c = 1; c < 16; c++)
        if (fabsf((float)qn_e2m1_twice[c] * half_scale - x) <
            fabsf((float)qn_e2m1_twice[best] * half_scale - x))
            best = c;
    return best;
}

/* Rows of 32 k elements as scales and, element by element from the low bits on, codes; x becomes what they
 * mean. */
static void to_mxfp4(float *x, int64_t n, uint8_t *codes, uint8_t *scales)
{
    for (int64_t b = 0; b < n / 32; b++) {
        float most = 0;
        for (int i = 0; i < 32; i++) most = fmaxf(most, fabsf(x[32 * b + i]));
        int exponent = most > 0 ? (int)floorf(log2f(most)) - 2 + 127 : 0;
        scales[b] = (uint8_t)(exponent < 0 ? 0 : exponent);
        for (int i = 0; i < 32; i++) {
            int c = nearest_code(x[32 * b + i], qn_e8m0_half(scales[b]));
            codes[16 * b + i / 2] |= (uint8_t)(c << i % 2 * 4);
            x[32 * b + i] = (float)qn_e2m1_twice[c] * qn_e8m0_half(scales[b]);
        }
    }
}

/* Leaves the running test out, when all is freed, where rows of n elements are no whole blocks. */
static void need_blocks(int64_t n, qn_test_rewritten **models, int n_models)
{
    char why[96];
    if (n % 32 == 0) return;
    for (int i = 0; i < n_models; i++) qn_test_rewritten_free(models[i]);
    snprintf(why, sizeof why, "the fixture has rows of %lld elements, which are no blocks of 32",
             (long long)n);
    qn_test_leave_out(why);
}

/* The fixture with experts of whole blocks (the further rows are 0, and so is what they give): plain, as
 * published, and as MLX's converter writes it. */
static void mxfp4(void **state)
{
    const char *folders[3];
    qn_test_rewritten *all[3];
    char patch[3][192];
    for (int i = 0; i < 3; i++) all[i] = qn_test_rewritten_read("gpt_oss");
    need_blocks(all[0]->config.hidden_size, all, 3);
    for (int i = 0; i < 3; i++) folders[i] = qn_test_scratch();
    int64_t width = (all[0]->config.experts.moe_intermediate_size + 31) / 32 * 32,
            hidden = all[0]->config.hidden_size, experts = all[0]->config.experts.num_experts;
    for (int i = 0; i < 3; i++)
        snprintf(patch[i], sizeof patch[i], "{\"intermediate_size\": %d%s}", (int)width,
                 i == 0   ? ""
                 : i == 1 ? ", \"quantization_config\": {\"quant_method\": \"mxfp4\"}"
                          : ", \"quantization\": {\"mode\": \"mxfp4\", \"bits\": 4, \"group_size\": 32}");
    for (int l = 0; l < all[0]->config.num_hidden_layers; l++) {
        float *x[3];
        for (int which = 0; which < 3; which++) {
            int64_t n_out = which == 2 ? hidden : width, n_in = which == 2 ? width : hidden, n = n_out * n_in;
            x[which] = turned(all[0], l, which, n_out, n_in);
            char name[QN_TEST_REWRITTEN_NAME];
            snprintf(name, sizeof name, "%s", layer_name(l, parts[which]));
            qn_test_copy_of *words =
                qn_test_rewritten_add(all[2], name, QN_DTYPE_U32, 3, (int64_t[]){experts, n_out, n_in / 8});
            snprintf(name + strlen(name) - strlen("weight"), 8, "scales");
            qn_test_copy_of *scales =
                qn_test_rewritten_add(all[2], name, QN_DTYPE_U8, 3, (int64_t[]){experts, n_out, n_in / 32});
            to_mxfp4(x[which], experts * n, (uint8_t *)words->data, (uint8_t *)scales->data);
            bias_apart(all[2], l, which < 2 ? which : 0, width);
            if (which == 2)
                qn_test_rewritten_drop(
                    all[2],
                    qn_test_rewritten_find(all[2], "model.layers.%d.mlp.experts.gate_proj.bias", l, 0));
            put_bf16(qn_test_rewritten_add(all[0], layer_name(l, parts[which]), QN_DTYPE_BF16, 3,
                                           (int64_t[]){experts, n_out, n_in}),
                     x[which]);
            if (which < 2) bias_apart(all[0], l, which, width);
        }
        /* gate and up turn by turn */
        for (int down = 0; down < 2; down++) {
            int64_t n_out = down ? hidden : 2 * width, n_in = down ? width : hidden;
            const qn_test_copy_of *from[2];
            for (int up = 0; up < 2; up++) {
                const char *const *name = down ? &parts[2] : &parts[up];
                from[up] = qn_test_rewritten_find(all[2], layer_name(l, *name), 0, 0);
            }
            qn_test_copy_of *blocks = qn_test_rewritten_add(
                all[1],
                layer_name(l, down ? "mlp.experts.down_proj_blocks" : "mlp.experts.gate_up_proj_blocks"),
                QN_DTYPE_U8, 4, (int64_t[]){experts, n_out, n_in / 32, 16});
            qn_test_copy_of *scales = qn_test_rewritten_add(
                all[1],
                layer_name(l, down ? "mlp.experts.down_proj_scales" : "mlp.experts.gate_up_proj_scales"),
                QN_DTYPE_U8, 3, (int64_t[]){experts, n_out, n_in / 32});
            for (int64_t r = 0; r < experts * n_out; r++) {
                int64_t row = down ? r : r / 2;
                const qn_test_copy_of *w = from[down ? 0 : r % 2];
                char name[QN_TEST_REWRITTEN_NAME];
                snprintf(name, sizeof name, "%.*sscales", (int)(strlen(w->name) - strlen("weight")), w->name);
                const qn_test_copy_of *s = qn_test_rewritten_find(all[2], name, 0, 0);
                memcpy(blocks->data + r * n_in / 2, w->data + row * n_in / 2, (size_t)n_in / 2);
                memcpy(scales->data + r * n_in / 32, s->data + row * n_in / 32, (size_t)n_in / 32);
            }
        }
        qn_test_copy_of *bias =
            qn_test_rewritten_find(all[1], "model.layers.%d.mlp.experts.gate_up_proj_bias", l, 0);
        float *old = qn_test_copy_floats(bias),
              *wide = test_calloc((size_t)(experts * 2 * width), sizeof *wide);
        for (int64_t e = 0; e < experts; e++)
            memcpy(wide + e * 2 * width, old + e * 2 * all[0]->config.experts.moe_intermediate_size,
                   (size_t)all[0]->config.experts.moe_intermediate_size * 2 * sizeof *wide);
        qn_test_rewritten_drop(all[1], bias);
        put_bf16(qn_test_rewritten_add(all[1], layer_name(l, "mlp.experts.gate_up_proj_bias"), QN_DTYPE_BF16,
                                       2, (int64_t[]){experts, 2 * width}),
                 wide);
        test_free(old);
        test_free(wide);
        for (int which = 0; which < 3; which++) test_free(x[which]);
        for (int i = 0; i < 3; i++) {
            qn_test_rewritten_drop(
                all[i], qn_test_rewritten_find(all[i], "model.layers.%d.mlp.experts.gate_up_proj", l, 0));
            qn_test_rewritten_drop(
                all[i], qn_test_rewritten_find(all[i], "model.layers.%d.mlp.experts.down_proj", l, 0));
            if (i == 1) continue;
            qn_test_rewritten_drop(
                all[i],
                qn_test_rewritten_find(all[i], "model.layers.%d.mlp.experts.gate_up_proj_bias", l, 0));
            qn_test_copy_of *down =
                qn_test_rewritten_find(all[i], "model.layers.%d.mlp.experts.down_proj_bias", l, 0);
            snprintf(down->name, sizeof down->name, "%s", layer_name(l, "mlp.experts.down_proj.bias"));
        }
    }
    for (int i = 0; i < 3; i++) qn_test_rewritten_write(all[i], folders[i], patch[i]);
    double d = qn_test_rewritten_difference(all[0], folders[0], folders[1], QN_PRECISION_EXACT);
    print_message("mxfp4 as published, and the same numbers in bf16: logits differ by %.1e\n", d);
    assert_true(d <= 2e-4);
    assert_true(qn_test_rewritten_difference(all[0], folders[0], folders[1], QN_PRECISION_HIGH) <= 1e-2);
    same_bits(all[0], folders[1], folders[2]);
    for (int i = 0; i < 3; i++) {
        qn_test_remove(folders[i]);
        qn_test_rewritten_free(all[i]);
    }
}

/* ---- MLX's affine types ------------------------------------------------------------------------------- */

/* Codes of `bits` bits in groups of 32, as mlx.core.quantize has them; x becomes what they mean. */
static void to_affine(float *x, int64_t n, int bits, uint32_t *words, float *scales, float *biases)
{
    int64_t per_word = 32 / bits, most = (1 << bits) - 1;
    for (int64_t g = 0; g < n / 32; g++) {
        float low = x[32 * g], high = low;
        for (int i = 1; i < 32; i++) {
            low = fminf(low, x[32 * g + i]);
            high = fmaxf(high, x[32 * g + i]);
        }
        scales[g] = (high - low) / (float)most;
        biases[g] = low;
        for (int64_t i = 32 * g; i < 32 * g + 32; i++) {
            uint32_t q = scales[g] > 0 ? (uint32_t)lrintf((x[i] - low) / scales[g]) : 0;
            words[i / per_word] |= q << i % per_word * bits;
            float product = (float)q * scales[g];
            x[i] = product + low;
        }
    }
}

/* A router of 8 bits and experts of 4, each against the same numbers in f32. */
static void affine(void **state)
{
    static const char *const single[] = {"model.layers.%d.mlp.experts.%d.gate_proj.weight",
                                         "model.layers.%d.mlp.experts.%d.up_proj.weight",
                                         "model.layers.%d.mlp.experts.%d.down_proj.weight"};
    static const char *const joint[] = {"mlp.switch_mlp.gate_proj.weight", "mlp.switch_mlp.up_proj.weight",
                                        "mlp.switch_mlp.down_proj.weight", "mlp.gate.weight"};
    qn_test_rewritten *plain = qn_test_rewritten_read("qwen3_moe"),
                      *packed = qn_test_rewritten_read("qwen3_moe");
    qn_test_rewritten *both[] = {plain, packed};
    need_blocks(plain->config.hidden_size, both, 2);
    need_blocks(plain->config.experts.moe_intermediate_size, both, 2);
    const char *folders[2] = {qn_test_scratch(), qn_test_scratch()};
    char patch[4096];
    int used = snprintf(patch, sizeof patch, "{\"quantization\": {\"bits\": 4, \"group_size\": 32");
    for (int l = 0; l < plain->config.num_hidden_layers; l++) {
        if (!plain->config.layers[l].has_experts) continue;
        assert_true((size_t)used < sizeof patch);
        used += snprintf(patch + used, sizeof patch - (size_t)used,
                         ", \"model.layers.%d.mlp.gate\": {\"bits\": 8, \"group_size\": 32}", l);
        for (int which = 0; which < 4; which++) {
            const char *name = layer_name(l, joint[which]);
            if (which < 3) {
                stack(plain, l, single[which], name);
                stack(packed, l, single[which], name);
            }
            qn_test_copy_of *t = qn_test_rewritten_find(plain, name, 0, 0),
                            *old = qn_test_rewritten_find(packed, name, 0, 0);
            int bits = which < 3 ? 4 : 8, last = t->n_dims - 1;
            to_f32(t);
            int64_t n = qn_test_copy_elements(t), shape[3];
            memcpy(shape, t->shape, sizeof shape);
            shape[last] = t->shape[last] * bits / 32;
            qn_test_rewritten_drop(packed, old);
            qn_test_copy_of *words = qn_test_rewritten_add(packed, name, QN_DTYPE_U32, t->n_dims, shape),
                            *scale[2];
            shape[last] = t->shape[last] / 32;
            char other[QN_TEST_REWRITTEN_NAME];
            for (int i = 0; i < 2; i++) {
                snprintf(other, sizeof other, "%.*s%s", (int)(strlen(name) - strlen("weight")), name,
                         i ? "biases" : "scales");
                scale[i] = qn_test_rewritten_add(packed, other, QN_DTYPE_F32, t->n_dims, shape);
            }
            to_affine((float *)(void *)t->data, n, bits, (uint32_t *)(void *)words->data,
                      (float *)(void *)scale[0]->data, (float *)(void *)scale[1]->data);
        }
    }
    assert_true((size_t)used + 2 < sizeof patch);
    snprintf(patch + used, sizeof patch - (size_t)used, "}}");
    qn_test_rewritten_write(plain, folders[0], NULL);
    qn_test_rewritten_write(packed, folders[1], patch);
    double d = qn_test_rewritten_difference(plain, folders[0], folders[1], QN_PRECISION_EXACT);
    print_message("affine experts, and the same numbers in f32: logits differ by %.1e\n", d);
    assert_true(d <= 2e-4);
    assert_true(qn_test_rewritten_difference(plain, folders[0], folders[1], QN_PRECISION_HIGH) <= 1e-2);
    for (int i = 0; i < 2; i++) qn_test_remove(folders[i]);
    qn_test_rewritten_free(plain);
    qn_test_rewritten_free(packed);
}

/* ---- refusals ----------------------------------------------------------------------------------------- */

static void refused(const qn_test_rewritten *m, const char *patch, const char *words)
{
    const char *folder = qn_test_scratch();
    qn_test_weights w;
    qn_status status = qn_test_weights_open(qn_test_rewritten_write(m, folder, patch), &w);
    if (status == QN_OK || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected: %s", qn_status_name(status), qn_last_error(), words);
    qn_test_remove(folder);
}

static void refusals(void **state)
{
    qn_test_rewritten *m = qn_test_rewritten_read("qwen3_moe");
    to_f32(qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.%d.up_proj.weight", 1, 3));
    refused(m, NULL, "experts.3.up_proj.weight: type F32, but expert 0 has type BF16");
    qn_test_rewritten_drop(m,
                           qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.%d.up_proj.weight", 1, 3));
    refused(m, NULL,
            "tensor model.layers.1.mlp.experts.3.up_proj.weight is missing, expected with shape [32, 64]");
    qn_test_rewritten_free(m);

    m = qn_test_rewritten_read("qwen3_moe");
    refused(m, "{\"num_experts\": 8, \"num_experts_per_tok\": 2, \"n_group\": 2, \"topk_group\": 3}",
            "topk_group");
    stack(m, 0, "model.layers.%d.mlp.experts.%d.up_proj.weight",
          layer_name(0, "mlp.switch_mlp.up_proj.weight"));
    qn_test_copy_of *t = qn_test_rewritten_find(m, "model.layers.%d.mlp.switch_mlp.up_proj.weight", 0, 0);
    t->shape[0] /= 2;
    t->shape[1] *= 2;
    refused(m, NULL, "mlp.switch_mlp.up_proj.weight: shape [4, 64, 64], expected [8, 32, 64]");
    t->dtype = QN_DTYPE_I16;
    refused(m, NULL, "mlp.switch_mlp.up_proj.weight: type I16 is not supported for weights");
    qn_test_rewritten_free(m);

    m = qn_test_rewritten_read("gpt_oss");
    t = qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.down_proj", 2, 0);
    snprintf(t->name, sizeof t->name, "%s", layer_name(2, "mlp.experts.down_proj_blocks"));
    refused(m, NULL, "tensor model.layers.2.mlp.experts.down_proj_scales, which belongs to");
    qn_test_rewritten_add(m, layer_name(2, "mlp.experts.down_proj_scales"), QN_DTYPE_U8, 3,
                          (int64_t[]){4, 64, 1});
    refused(m, NULL, "have types BF16 and U8, expected U8");
    t = qn_test_rewritten_find(m, "model.layers.%d.mlp.experts.down_proj_blocks", 2, 0);
    t->dtype = QN_DTYPE_U8;
    t->size_bytes /= 2;
    refused(m, NULL, "48 columns are not a multiple of 32");
    qn_test_rewritten_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stacked), cmocka_unit_test(halves),
                                       cmocka_unit_test(apart),   cmocka_unit_test(mxfp4),
                                       cmocka_unit_test(affine),  cmocka_unit_test(refusals)};
    return cmocka_run_group_tests_name("expert files", tests, NULL, NULL);
}
