#include "tests/support/models/typed_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "quant/types.h"
#include "tests/devices/mlx_model.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/scratch.h"

enum { HIDDEN = 256, FFN = 256, HEADS = 4, KV_HEADS = 2, LAYERS = 2 };

const qn_dtype qn_test_weight_types[] = {
    QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_Q4_0, QN_DTYPE_Q4_1, QN_DTYPE_Q5_0, QN_DTYPE_Q5_1,
    QN_DTYPE_Q8_0, QN_DTYPE_Q4_K, QN_DTYPE_Q5_K, QN_DTYPE_Q6_K, QN_DTYPE_MXFP4, QN_DTYPE_NVFP4,
    /* every number of bits, group and type of scales */
    QN_DTYPE_AFFINE2_G64_BF16, QN_DTYPE_AFFINE3_G32_F16, QN_DTYPE_AFFINE4_G64_BF16, QN_DTYPE_AFFINE4_G128_F32,
    QN_DTYPE_AFFINE5_G64_F32, QN_DTYPE_AFFINE6_G128_BF16, QN_DTYPE_AFFINE8_G32_F16, QN_DTYPE_COUNT};

/* The f16 fields of a block and about which values give weights of about 0.05; codes are any bits. */
typedef struct {
    qn_dtype dtype;
    struct {
        size_t at;
        float value;
    } field[2];
    int n_fields;
} block_fields;

static const block_fields fields[] = {
    {QN_DTYPE_Q4_0, {{0, 0.01f}}, 1},
    {QN_DTYPE_Q4_1, {{0, 0.01f}, {2, -0.075f}}, 2},
    {QN_DTYPE_Q5_0, {{0, 0.005f}}, 1},
    {QN_DTYPE_Q5_1, {{0, 0.005f}, {2, -0.078f}}, 2},
    {QN_DTYPE_Q8_0, {{0, 0.0007f}}, 1},
    {QN_DTYPE_Q4_K, {{0, 0.0003f}, {2, 0.0023f}}, 2},
    {QN_DTYPE_Q5_K, {{0, 0.00015f}, {2, 0.0023f}}, 2},
    {QN_DTYPE_Q6_K, {{208, 0.00004f}}, 1},
};

/* Between 0.5 and 1.5 times the value. */
static float about(float value, uint64_t seed, uint64_t at)
{
    return value * (0.5f + (float)qn_random_unit(seed, at));
}

static float weight(uint64_t seed, uint64_t at)
{
    return ((float)qn_random_unit(seed, at) - 0.5f) * 0.17f;
}

/* size_bytes of random weights; of a vector they are about 1. */
static void fill(qn_dtype dtype, int is_vector, uint64_t seed, size_t size_bytes, uint8_t *out)
{
    const qn_type *type = qn_type_get(dtype);
    size_t n = size_bytes / type->block_bytes;
    const block_fields *f = NULL;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].dtype == dtype) f = &fields[i];
    for (size_t i = 0; i < n; i++, out += type->block_bytes) {
        float v = is_vector ? about(1, seed, i) : weight(seed, i);
        uint16_t half = dtype == QN_DTYPE_BF16 ? qn_f32_to_bf16(v) : qn_f32_to_f16(v);
        if (!f) {
            memcpy(out, dtype == QN_DTYPE_F32 ? (const void *)&v : &half, type->block_bytes);
            continue;
        }
        for (size_t j = 0; j < type->block_bytes; j++)
            out[j] = (uint8_t)qn_random_bits(seed, i * type->block_bytes + j);
        for (int j = 0; j < f->n_fields; j++) {
            half = qn_f32_to_f16(about(f->field[j].value, seed + 1, i * 2 + (size_t)j));
            memcpy(out + f->field[j].at, &half, sizeof half);
        }
    }
}

/* A tensor, the data of which its owner frees (free_data). */
static void add(qn_test_gguf *f, const char *name, qn_dtype dtype, int64_t rows, int64_t cols)
{
    size_t size_bytes;
    if (!rows) dtype = QN_DTYPE_F32;
    assert_true(qn_type_bytes(dtype, (rows ? rows : 1) * cols, &size_bytes));
    uint8_t *data = test_calloc(size_bytes, 1);
    fill(dtype, !rows, 100 + 2 * (uint64_t)f->n_tensors, size_bytes, data);
    qn_test_gguf_tensor_add(f, name, dtype, rows, cols, data);
}

static void add_all(qn_test_gguf *f, qn_dtype type)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
    } layer[] = {{"attn_q", HIDDEN, HIDDEN},
                 {"attn_k", HIDDEN / HEADS * KV_HEADS, HIDDEN},
                 {"attn_v", HIDDEN / HEADS * KV_HEADS, HIDDEN},
                 {"attn_output", HIDDEN, HIDDEN},
                 {"ffn_gate", FFN, HIDDEN},
                 {"ffn_up", FFN, HIDDEN},
                 {"ffn_down", HIDDEN, FFN},
                 {"attn_norm", 0, HIDDEN},
                 {"ffn_norm", 0, HIDDEN}};
    char name[64];
    add(f, "token_embd.weight", type, QN_TEST_TYPED_VOCAB, HIDDEN);
    add(f, "output.weight", type, QN_TEST_TYPED_VOCAB, HIDDEN);
    add(f, "output_norm.weight", type, 0, HIDDEN);
    for (int i = 0; i < LAYERS; i++)
        for (size_t j = 0; j < sizeof layer / sizeof *layer; j++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, layer[j].name);
            add(f, name, type, layer[j].rows, layer[j].cols);
        }
    qn_test_gguf_place(f);
}

static void free_data(qn_test_gguf *f)
{
    for (size_t i = 0; i < f->n_tensors; i++) test_free((void *)(uintptr_t)f->tensors[i].data);
}

const char *qn_test_typed_model(const char *folder, qn_dtype type)
{
    static const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"llama.block_count", LAYERS},
                   {"llama.embedding_length", HIDDEN},
                   {"llama.feed_forward_length", FFN},
                   {"llama.attention.head_count", HEADS},
                   {"llama.attention.head_count_kv", KV_HEADS},
                   {"llama.context_length", 4096},
                   {"llama.vocab_size", QN_TEST_TYPED_VOCAB}};
    if (type == QN_DTYPE_MXFP4 || type == QN_DTYPE_NVFP4 || qn_affine_of(type).bits)
        return qn_test_mlx_model(folder, &(qn_test_mlx){.name = qn_dtype_name(type), .type = type});
    qn_test_gguf *f = qn_test_gguf_empty();
    qn_test_gguf_set_text(f, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        qn_test_gguf_set_u32(f, numbers[i].key, numbers[i].value);
    qn_test_gguf_set_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    qn_test_gguf_set_f32(f, "llama.rope.freq_base", 10000);
    add_all(f, type);
    char name[32];
    snprintf(name, sizeof name, "%s.gguf", qn_dtype_name(type));
    const char *path = qn_test_gguf_write(f, folder, name);
    free_data(f);
    qn_test_gguf_free(f);
    return path;
}
