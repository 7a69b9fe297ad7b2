#include "tests/support/models/gguf_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "quant/types.h"
#include "tests/support/scratch.h"

enum { HIDDEN = 32, FFN = 32, HEADS = 2, KV_HEADS = 1, HEAD_DIM = 16, ALIGNMENT = 32, FLOATS_MAX = 4096 };

/* ---- pieces ---- */

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

static size_t aligned(const qn_test_gguf *f, size_t n)
{
    return (n + f->alignment - 1) / f->alignment * f->alignment;
}

static qn_test_gguf_value *find_value(qn_test_gguf *f, const char *key)
{
    for (size_t i = 0; i < f->n_values; i++)
        if (strcmp(f->values[i].key, key) == 0) return &f->values[i];
    return NULL;
}

/* Room for a value; an older one of that key makes it. */
static qn_buf *begin_value(qn_test_gguf *f, const char *key, uint32_t type)
{
    qn_test_gguf_value *v = find_value(f, key);
    if (!v) {
        assert_true(f->n_values < QN_TEST_GGUF_VALUES_MAX && strlen(key) < sizeof v->key);
        v = &f->values[f->n_values++];
        snprintf(v->key, sizeof v->key, "%s", key);
    }
    qn_buf_free(&v->bytes);
    v->type = type;
    return &v->bytes;
}

void qn_test_gguf_set(qn_test_gguf *f, const char *key, uint32_t type, const void *bytes, size_t n)
{
    qn_buf_append(begin_value(f, key, type), bytes, n);
}

void qn_test_gguf_set_u32(qn_test_gguf *f, const char *key, uint32_t value)
{
    qn_test_gguf_set(f, key, QN_GGUF_U32, &value, sizeof value);
}

void qn_test_gguf_set_f32(qn_test_gguf *f, const char *key, float value)
{
    qn_test_gguf_set(f, key, QN_GGUF_F32, &value, sizeof value);
}

void qn_test_gguf_set_text(qn_test_gguf *f, const char *key, const char *text)
{
    put_string(begin_value(f, key, QN_GGUF_STRING), text);
}

void qn_test_gguf_set_array(qn_test_gguf *f, const char *key, uint32_t element, uint64_t count,
                            const void *bytes, size_t n)
{
    qn_buf *b = begin_value(f, key, QN_GGUF_ARRAY);
    put_u32(b, element);
    put_u64(b, count);
    qn_buf_append(b, bytes, n);
}

void qn_test_gguf_set_texts(qn_test_gguf *f, const char *key, size_t count, const char *const *texts)
{
    qn_buf *b = begin_value(f, key, QN_GGUF_ARRAY);
    put_u32(b, QN_GGUF_STRING);
    put_u64(b, count);
    for (size_t i = 0; i < count; i++) put_string(b, texts[i]);
}

void qn_test_gguf_drop(qn_test_gguf *f, const char *key)
{
    qn_test_gguf_value *v = find_value(f, key);
    if (!v) fail_msg("there is no key %s to drop", key);
    qn_buf_free(&v->bytes);
    size_t i = (size_t)(v - f->values);
    memmove(v, v + 1, (--f->n_values - i) * sizeof *v);
}

qn_test_gguf_tensor *qn_test_gguf_tensor_get(qn_test_gguf *f, const char *name)
{
    for (size_t i = 0; i < f->n_tensors; i++)
        if (strcmp(f->tensors[i].name, name) == 0) return &f->tensors[i];
    fail_msg("there is no tensor %s", name);
    return NULL;
}

void qn_test_gguf_tensor_drop(qn_test_gguf *f, const char *name)
{
    qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(f, name);
    size_t i = (size_t)(t - f->tensors);
    memmove(t, t + 1, (--f->n_tensors - i) * sizeof *t);
    qn_test_gguf_place(f);
}

void qn_test_gguf_place(qn_test_gguf *f)
{
    size_t end = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        f->tensors[i].offset = end;
        end = aligned(f, end + f->tensors[i].size_bytes);
    }
}

static qn_test_gguf_tensor *add_tensor(qn_test_gguf *f, const char *name)
{
    assert_true(f->n_tensors < QN_TEST_GGUF_TENSORS_MAX && strlen(name) < QN_TEST_GGUF_KEY_MAX);
    qn_test_gguf_tensor *t = &f->tensors[f->n_tensors++];
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

void qn_test_gguf_tensor_add(qn_test_gguf *f, const char *name, qn_dtype dtype, int64_t rows, int64_t cols,
                             const void *data)
{
    qn_test_gguf_tensor *t = add_tensor(f, name);
    t->n_dims = rows ? 2 : 1;
    t->dims[0] = (uint64_t)cols;
    t->dims[1] = (uint64_t)rows;
    t->type = (uint32_t)qn_type_get(dtype)->ggml_type;
    t->data = data;
    assert_true(qn_type_bytes(dtype, (rows ? rows : 1) * cols, &t->size_bytes));
}

/* ---- whole files ---- */

qn_test_gguf *qn_test_gguf_empty(void)
{
    qn_test_gguf *f = qn_calloc(1, sizeof *f);
    assert_non_null(f);
    f->version = 3;
    f->alignment = ALIGNMENT;
    return f;
}

/* Tensors up to FLOATS_MAX elements have these values; the same bytes in all of them do no harm. */
static const float *numbers(void)
{
    static float floats[FLOATS_MAX];
    for (int i = 0; i < FLOATS_MAX && !floats[0]; i++)
        floats[FLOATS_MAX - 1 - i] = 0.5f - (float)qn_random_unit(5, (uint64_t)i) * 0.3f;
    return floats;
}

static void add_floats(qn_test_gguf *f, const char *name, int64_t rows, int64_t cols)
{
    assert_true((rows ? rows : 1) * cols <= FLOATS_MAX);
    qn_test_gguf_tensor_add(f, name, QN_DTYPE_F32, rows, cols, numbers());
}

static void add_vocabulary(qn_test_gguf *f)
{
    static const char *const tokens[QN_TEST_GGUF_VOCAB] = {
        "<unk>", "<s>", "</s>", "<0x41>", "\xe2\x96\x81", "h", "e", "l",
        "o",     "he",  "ll",   "hell",   "hello",        "s", "a", "b"};
    static const int32_t types[QN_TEST_GGUF_VOCAB] = {2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    float scores[QN_TEST_GGUF_VOCAB];
    for (int i = 0; i < QN_TEST_GGUF_VOCAB; i++) scores[i] = (float)-i;
    qn_test_gguf_set_text(f, "tokenizer.ggml.model", "llama");
    qn_test_gguf_set_texts(f, "tokenizer.ggml.tokens", QN_TEST_GGUF_VOCAB, tokens);
    qn_test_gguf_set_array(f, "tokenizer.ggml.scores", QN_GGUF_F32, QN_TEST_GGUF_VOCAB, scores,
                           sizeof scores);
    qn_test_gguf_set_array(f, "tokenizer.ggml.token_type", QN_GGUF_I32, QN_TEST_GGUF_VOCAB, types,
                           sizeof types);
    qn_test_gguf_set_u32(f, "tokenizer.ggml.bos_token_id", 1);
    qn_test_gguf_set_u32(f, "tokenizer.ggml.eos_token_id", 2);
}

qn_test_gguf *qn_test_gguf_new(void)
{
    qn_test_gguf *f = qn_test_gguf_empty();
    qn_test_gguf_set_text(f, "general.architecture", "llama");
    qn_test_gguf_set_u32(f, "llama.block_count", 1);
    qn_test_gguf_set_u32(f, "llama.embedding_length", HIDDEN);
    qn_test_gguf_set_u32(f, "llama.feed_forward_length", FFN);
    qn_test_gguf_set_u32(f, "llama.attention.head_count", HEADS);
    qn_test_gguf_set_u32(f, "llama.attention.head_count_kv", KV_HEADS);
    qn_test_gguf_set_u32(f, "llama.context_length", 256);
    qn_test_gguf_set_u32(f, "llama.vocab_size", QN_TEST_GGUF_VOCAB);
    qn_test_gguf_set_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    qn_test_gguf_set_f32(f, "llama.rope.freq_base", 10000);
    add_vocabulary(f);
    add_floats(f, "token_embd.weight", QN_TEST_GGUF_VOCAB, HIDDEN);
    add_floats(f, "output.weight", QN_TEST_GGUF_VOCAB, HIDDEN);
    add_floats(f, "output_norm.weight", 0, HIDDEN);
    add_floats(f, "blk.0.attn_norm.weight", 0, HIDDEN);
    add_floats(f, "blk.0.attn_q.weight", HEADS * HEAD_DIM, HIDDEN);
    add_floats(f, "blk.0.attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN);
    add_floats(f, "blk.0.attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN);
    add_floats(f, "blk.0.attn_output.weight", HIDDEN, HEADS * HEAD_DIM);
    add_floats(f, "blk.0.ffn_norm.weight", 0, HIDDEN);
    add_floats(f, "blk.0.ffn_gate.weight", FFN, HIDDEN);
    add_floats(f, "blk.0.ffn_up.weight", FFN, HIDDEN);
    add_floats(f, "blk.0.ffn_down.weight", HIDDEN, FFN);
    qn_test_gguf_place(f);
    return f;
}

void qn_test_gguf_become(qn_test_gguf *f, const char *architecture)
{
    static const struct {
        const char *architecture, *tensor;
        int64_t size;
    } more[] = {
        {"qwen2", "attn_q.bias", HEADS * HEAD_DIM},    {"qwen2", "attn_k.bias", KV_HEADS * HEAD_DIM},
        {"qwen2", "attn_v.bias", KV_HEADS * HEAD_DIM}, {"qwen3", "attn_q_norm.weight", HEAD_DIM},
        {"qwen3", "attn_k_norm.weight", HEAD_DIM},     {"gemma2", "post_attention_norm.weight", HIDDEN},
        {"gemma2", "post_ffw_norm.weight", HIDDEN},    {"gemma3", "post_attention_norm.weight", HIDDEN},
        {"gemma3", "post_ffw_norm.weight", HIDDEN},    {"gemma3", "attn_q_norm.weight", HEAD_DIM},
        {"gemma3", "attn_k_norm.weight", HEAD_DIM}};
    char text[QN_TEST_GGUF_KEY_MAX];
    for (size_t i = 0; i < f->n_values; i++) {
        char *key = f->values[i].key, *dot = strchr(key, '.');
        if (strncmp(key, "llama.", 6) != 0) continue;
        snprintf(text, sizeof text, "%s%.60s", architecture, dot);
        memcpy(key, text, sizeof text);
    }
    qn_test_gguf_set_text(f, "general.architecture", architecture);
    snprintf(text, sizeof text, "%s.attention.sliding_window", architecture);
    if (strncmp(architecture, "gemma", 5) == 0) qn_test_gguf_set_u32(f, text, 8);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        if (strcmp(more[i].architecture, architecture) != 0) continue;
        snprintf(text, sizeof text, "blk.0.%s", more[i].tensor);
        add_floats(f, text, 0, more[i].size);
    }
    qn_test_gguf_place(f);
}

qn_test_gguf *qn_test_gguf_read(const char *path)
{
    qn_test_gguf *f = qn_test_gguf_empty();
    if (qn_gguf_open(path, &f->from) != QN_OK) fail_msg("%s", qn_last_error());
    for (int64_t i = 0; i < qn_gguf_value_count(f->from); i++) {
        const qn_gguf_value *v = qn_gguf_value_get(f->from, i);
        qn_buf *b = begin_value(f, v->key, v->type);
        if (v->type == QN_GGUF_ARRAY) put_u32(b, v->element_type), put_u64(b, (uint64_t)v->count);
        qn_buf_append(b, v->data, v->size_bytes);
    }
    for (int64_t i = 0; i < qn_gguf_count(f->from); i++) {
        const qn_tensor_view *v = qn_gguf_get(f->from, i);
        qn_test_gguf_tensor *t = add_tensor(f, v->name);
        assert_true(v->supported);
        t->n_dims = (uint32_t)v->n_dims;
        for (int d = 0; d < v->n_dims; d++) t->dims[d] = (uint64_t)v->shape[v->n_dims - 1 - d];
        t->type = (uint32_t)qn_type_get(v->dtype)->ggml_type;
        t->data = v->data;
        t->size_bytes = v->size_bytes;
    }
    qn_test_gguf_place(f);
    return f;
}

void qn_test_gguf_free(qn_test_gguf *f)
{
    if (!f) return;
    for (size_t i = 0; i < f->n_values; i++) qn_buf_free(&f->values[i].bytes);
    qn_gguf_close(f->from);
    qn_free(f);
}

void qn_test_gguf_bytes(const qn_test_gguf *f, qn_buf *b)
{
    size_t begin = b->length;
    qn_buf_puts(b, "GGUF");
    put_u32(b, f->version);
    put_u64(b, f->n_tensors + f->n_tensors_more);
    put_u64(b, f->n_values + f->n_values_more);
    for (size_t i = 0; i < f->n_values; i++) {
        const qn_test_gguf_value *v = &f->values[i];
        put_string(b, v->key), put_u32(b, v->type), qn_buf_append(b, v->bytes.data, v->bytes.length);
    }
    for (size_t i = 0; i < f->n_tensors; i++) {
        const qn_test_gguf_tensor *t = &f->tensors[i];
        put_string(b, t->name), put_u32(b, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims && d < 5; d++) put_u64(b, t->dims[d]);
        put_u32(b, t->type), put_u64(b, t->offset);
    }
    for (size_t i = 0; i < f->n_tensors; i++) {
        const qn_test_gguf_tensor *t = &f->tensors[i];
        while ((b->length - begin) % f->alignment) qn_buf_putc(b, 0);
        if (t->data) qn_buf_append(b, t->data, t->size_bytes);
        for (size_t j = 0; !t->data && j < t->size_bytes; j++) qn_buf_putc(b, 0);
    }
    assert_int_equal(b->status, QN_OK);
}

const char *qn_test_gguf_write(const qn_test_gguf *f, const char *folder, const char *name)
{
    qn_buf b = {0};
    qn_test_gguf_bytes(f, &b);
    const char *path = qn_test_write(folder, name, b.data, b.length);
    qn_buf_free(&b);
    return path;
}
