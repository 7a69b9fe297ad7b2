#include "tests/typed_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/random.h"
#include "format/gguf.h"
#include "quant/types.h"
#include "tests/mlx_model.h"
#include "tests/scratch.h"

enum { HIDDEN = 256, FFN = 256, HEADS = 4, KV_HEADS = 2, LAYERS = 2, ALIGNMENT = 32, TENSORS_MAX = 32 };

const qn_dtype qn_test_weight_types[] = {
    QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16, QN_DTYPE_Q4_0, QN_DTYPE_Q4_1, QN_DTYPE_Q5_0, QN_DTYPE_Q5_1,
    QN_DTYPE_Q8_0, QN_DTYPE_Q4_K, QN_DTYPE_Q5_K, QN_DTYPE_Q6_K, QN_DTYPE_MXFP4,
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

typedef struct {
    char name[64];
    qn_dtype dtype;
    int64_t rows, cols; /* rows 0: a vector */
    size_t offset, size_bytes;
} tensor;

typedef struct {
    tensor list[TENSORS_MAX];
    int n;
    size_t end;
} tensors;

static void add(tensors *t, const char *name, qn_dtype dtype, int64_t rows, int64_t cols)
{
    assert_true(t->n < TENSORS_MAX);
    tensor *x = &t->list[t->n++];
    snprintf(x->name, sizeof x->name, "%s", name);
    x->dtype = dtype;
    x->rows = rows;
    x->cols = cols;
    x->offset = t->end;
    assert_true(qn_type_bytes(dtype, (rows ? rows : 1) * cols, &x->size_bytes));
    t->end = (t->end + x->size_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void add_all(tensors *t, qn_dtype type)
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
    add(t, "token_embd.weight", type, QN_TEST_TYPED_VOCAB, HIDDEN);
    add(t, "output.weight", type, QN_TEST_TYPED_VOCAB, HIDDEN);
    add(t, "output_norm.weight", QN_DTYPE_F32, 0, HIDDEN);
    for (int i = 0; i < LAYERS; i++)
        for (size_t j = 0; j < sizeof layer / sizeof *layer; j++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, layer[j].name);
            add(t, name, layer[j].rows ? type : QN_DTYPE_F32, layer[j].rows, layer[j].cols);
        }
}

static void put_u32(qn_buf *b, uint32_t v)
{
    qn_buf_append(b, &v, sizeof v);
}

static void put_u64(qn_buf *b, uint64_t v)
{
    qn_buf_append(b, &v, sizeof v);
}

static void put_string(qn_buf *b, const char *s)
{
    put_u64(b, strlen(s));
    qn_buf_puts(b, s);
}

static int put_metadata(qn_buf *b)
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
    int n = 0;
    put_string(b, "general.architecture"), put_u32(b, QN_GGUF_STRING), put_string(b, "llama"), n++;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++, n++)
        put_string(b, numbers[i].key), put_u32(b, QN_GGUF_U32), put_u32(b, numbers[i].value);
    put_string(b, "llama.attention.layer_norm_rms_epsilon"), put_u32(b, QN_GGUF_F32),
        qn_buf_append(b, &(float){1e-5f}, 4), n++;
    put_string(b, "llama.rope.freq_base"), put_u32(b, QN_GGUF_F32), qn_buf_append(b, &(float){10000}, 4), n++;
    return n;
}

/* Between 0.5 and 1.5 times the value. */
static float about(float value, uint64_t seed, uint64_t at)
{
    return value * (0.5f + (float)qn_random_unit(seed, at));
}

static float weight(uint64_t seed, uint64_t at)
{
    return ((float)qn_random_unit(seed, at) - 0.5f) * 0.17f;
}

static void fill(const tensor *x, uint64_t seed, uint8_t *out)
{
    const qn_type *type = qn_type_get(x->dtype);
    size_t n = x->size_bytes / type->block_bytes;
    const block_fields *f = NULL;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].dtype == x->dtype) f = &fields[i];
    for (size_t i = 0; i < n; i++, out += type->block_bytes) {
        float v = x->rows ? weight(seed, i) : about(1, seed, i);
        uint16_t half = x->dtype == QN_DTYPE_BF16 ? qn_f32_to_bf16(v) : qn_f32_to_f16(v);
        if (!f) {
            memcpy(out, x->dtype == QN_DTYPE_F32 ? (const void *)&v : &half, type->block_bytes);
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

const char *qn_test_typed_model(const char *folder, qn_dtype type)
{
    if (type == QN_DTYPE_MXFP4 || qn_affine_of(type).bits)
        return qn_test_mlx_model(folder, &(qn_test_mlx){.name = qn_dtype_name(type), .type = type});
    tensors t = {.n = 0};
    qn_buf b = {0}, metadata = {0};
    int n_values = put_metadata(&metadata);
    add_all(&t, type);
    qn_buf_puts(&b, "GGUF");
    put_u32(&b, 3), put_u64(&b, (uint64_t)t.n), put_u64(&b, (uint64_t)n_values);
    qn_buf_append(&b, metadata.data, metadata.length);
    qn_buf_free(&metadata);
    for (int i = 0; i < t.n; i++) {
        const tensor *x = &t.list[i];
        put_string(&b, x->name), put_u32(&b, x->rows ? 2 : 1), put_u64(&b, (uint64_t)x->cols);
        if (x->rows) put_u64(&b, (uint64_t)x->rows);
        put_u32(&b, (uint32_t)qn_type_get(x->dtype)->ggml_type), put_u64(&b, x->offset);
    }
    while (b.length % ALIGNMENT) qn_buf_putc(&b, 0);
    uint8_t *data = test_calloc(t.end, 1);
    for (int i = 0; i < t.n; i++) fill(&t.list[i], 100 + 2 * (uint64_t)i, data + t.list[i].offset);
    qn_buf_append(&b, data, t.end);
    test_free(data);
    assert_int_equal(b.status, QN_OK);
    char name[32];
    snprintf(name, sizeof name, "%s.gguf", qn_dtype_name(type));
    const char *path = qn_test_write(folder, name, b.data, b.length);
    qn_buf_free(&b);
    return path;
}
