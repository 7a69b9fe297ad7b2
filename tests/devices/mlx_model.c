#include "tests/devices/mlx_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/random.h"
#include "format/safetensors/safetensors.h"
#include "quant/types.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/models/typed_model.h"
#include "tests/support/scratch.h"

enum { HIDDEN = 256, FFN = 256, HEADS = 4, KV_HEADS = 2, LAYERS = 2 };

/* Between 0.5 and 1.5 times the value. */
static float about(float value, uint64_t seed, uint64_t at)
{
    return value * (0.5f + (float)qn_random_unit(seed, at));
}

typedef struct {
    qn_st_writer *writer;
    const qn_test_mlx *model;
    int filling; /* 0: tensors are declared, 1: written */
    int64_t index;
} mlx;

static void mlx_tensor(mlx *x, const char *name, qn_dtype dtype, int64_t rows, int64_t cols,
                       const void *bytes, size_t n)
{
    const qn_test_mlx *m = x->model;
    int64_t shape[2] = {rows, cols};
    if (m->left_out && strcmp(m->left_out, name) == 0) return;
    if (m->retyped && strcmp(m->retyped, name) == 0) {
        dtype = QN_DTYPE_I8;
        shape[rows ? 1 : 0] = (int64_t)n / (rows ? rows : 1);
    }
    if (m->narrowed && strcmp(m->narrowed, name) == 0) n = n / (size_t)cols * (size_t)--shape[1];
    if (x->filling)
        assert_int_equal(qn_st_writer_write(x->writer, x->index++, 0, bytes, n), QN_OK);
    else
        assert_int_equal(
            qn_st_writer_add(x->writer, name, dtype, rows ? 2 : 1, rows ? shape : shape + 1, NULL), QN_OK);
}

/* Random codes; scales and biases that give weights of about 0.05. */
static void mlx_matrix(mlx *x, const char *module, int64_t rows, int64_t cols, uint64_t seed)
{
    char name[96];
    qn_dtype type = x->model->type;
    qn_affine a = qn_affine_of(type);
    int fp4 = !a.bits, nv = type == QN_DTYPE_NVFP4,
        group = nv    ? 16
                : fp4 ? 32
                      : a.group,
        bits = fp4 ? 4 : a.bits;
    size_t n_words = (size_t)(rows * cols / 32 * bits), n_groups = (size_t)(rows * cols / group),
           scale_bytes = fp4                       ? 1
                         : a.scale == QN_DTYPE_F32 ? 4
                                                   : 2;
    snprintf(name, sizeof name, "%s.weight", module);
    if (x->model->dense && strcmp(x->model->dense, module) == 0) {
        uint16_t *w = test_calloc((size_t)(rows * cols), sizeof *w);
        for (int64_t i = 0; i < rows * cols; i++)
            w[i] = qn_f32_to_bf16(((float)qn_random_unit(seed, (uint64_t)i) - 0.5f) * 0.17f);
        mlx_tensor(x, name, QN_DTYPE_BF16, rows, cols, w, (size_t)(rows * cols) * sizeof *w);
        test_free(w);
        return;
    }
    uint32_t *words = test_calloc(n_words, sizeof *words);
    for (size_t i = 0; i < n_words; i++) words[i] = (uint32_t)qn_random_bits(seed, i);
    mlx_tensor(x, name, QN_DTYPE_U32, rows, cols * bits / 32, words, n_words * sizeof *words);
    test_free(words);
    if (x->model->scaled && strcmp(x->model->scaled, module) == 0) {
        const float one = 1;
        snprintf(name, sizeof name, "%s.global_scale", module);
        mlx_tensor(x, name, QN_DTYPE_F32, 0, 1, &one, sizeof one);
    }
    float step = 0.17f / (float)((1 << bits) - 1);
    for (int which = 0; which < (fp4 ? 1 : 2); which++) {
        uint8_t *values = test_calloc(n_groups, scale_bytes), *to = values;
        for (size_t i = 0; i < n_groups; i++, to += scale_bytes) {
            float v = about(which ? -0.085f : step, seed + 1, 2 * i + (size_t)which);
            uint16_t half = a.scale == QN_DTYPE_F16 ? qn_f32_to_f16(v) : qn_f32_to_bf16(v);
            memcpy(to, scale_bytes == 4 ? (const void *)&v : &half, scale_bytes);
            if (fp4) *to = (uint8_t)((nv ? 4 : 120) + qn_random_bits(seed, i) % 4);
        }
        snprintf(name, sizeof name, "%s.%s", module, which ? "biases" : "scales");
        mlx_tensor(x, name, fp4 ? QN_DTYPE_U8 : a.scale, rows, cols / group, values, n_groups * scale_bytes);
        test_free(values);
    }
}

static void mlx_norm(mlx *x, const char *name, uint64_t seed)
{
    uint16_t w[HIDDEN];
    for (int i = 0; i < HIDDEN; i++) w[i] = qn_f32_to_bf16(about(1, seed, (uint64_t)i));
    mlx_tensor(x, name, QN_DTYPE_BF16, 0, HIDDEN, w, sizeof w);
}

static void mlx_all(mlx *x)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
    } layer[] = {{"self_attn.q_proj", HIDDEN, HIDDEN},
                 {"self_attn.k_proj", HIDDEN / HEADS * KV_HEADS, HIDDEN},
                 {"self_attn.v_proj", HIDDEN / HEADS * KV_HEADS, HIDDEN},
                 {"self_attn.o_proj", HIDDEN, HIDDEN},
                 {"mlp.gate_proj", FFN, HIDDEN},
                 {"mlp.up_proj", FFN, HIDDEN},
                 {"mlp.down_proj", HIDDEN, FFN}};
    char name[96];
    mlx_matrix(x, "model.embed_tokens", QN_TEST_TYPED_VOCAB, HIDDEN, 1);
    mlx_matrix(x, "lm_head", QN_TEST_TYPED_VOCAB, HIDDEN, 3);
    mlx_norm(x, "model.norm.weight", 5);
    for (int i = 0; i < LAYERS; i++) {
        for (int j = 0; j < 7; j++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", i, layer[j].name);
            mlx_matrix(x, name, layer[j].rows, layer[j].cols, 100 + 20 * (uint64_t)i + 2 * (uint64_t)j);
        }
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", i);
        mlx_norm(x, name, 200 + (uint64_t)i);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", i);
        mlx_norm(x, name, 300 + (uint64_t)i);
    }
}

static void mlx_config(const char *folder, const qn_test_mlx *m)
{
    qn_affine a = qn_affine_of(m->type);
    json_t *config = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:{s:i, s:i, s:s}}",
                               "model_type", "llama", "num_hidden_layers", LAYERS, "hidden_size", HIDDEN,
                               "intermediate_size", FFN, "num_attention_heads", HEADS, "num_key_value_heads",
                               KV_HEADS, "vocab_size", QN_TEST_TYPED_VOCAB, "max_position_embeddings", 4096,
                               "rms_norm_eps", 1e-5, "rope_theta", 10000.0, "tie_word_embeddings", 0,
                               "quantization", "bits", a.bits ? a.bits : 4, "group_size",
                               a.bits                      ? a.group
                               : m->type == QN_DTYPE_NVFP4 ? 16
                                                           : 32,
                               "mode", a.bits ? "affine" : qn_dtype_name(m->type));
    assert_non_null(config);
    if (m->config) qn_test_merge_patch(config, m->config);
    assert_int_equal(json_dump_file(config, qn_test_path(folder, "config.json"), 0), 0);
    json_decref(config);
}

const char *qn_test_mlx_model(const char *folder, const qn_test_mlx *m)
{
    mlx x = {.model = m};
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, m->name));
    assert_int_equal(mkdir(path, 0700), 0);
    mlx_config(path, m);
    assert_int_equal(qn_st_writer_new(qn_test_path(path, "model.safetensors"), &x.writer), QN_OK);
    mlx_all(&x);
    assert_int_equal(qn_st_writer_begin(x.writer), QN_OK);
    x.filling = 1;
    mlx_all(&x);
    assert_int_equal(qn_st_writer_finish(x.writer), QN_OK);
    qn_st_writer_free(x.writer);
    return qn_test_path(folder, m->name);
}
