/* GGUF files made to break whoever loads them: each known case by its number, as engines met it, opened as a
 * user opens a model. The number's list says what happened elsewhere:
 *   G1  counts and sizes near 2^63 and 2^64 (CVE-2025-53630, CVE-2026-27940)
 *   G2  a string or an array longer than the file
 *   G3  zero or negative dimensions, empty names
 *   G4  tensors past the end, upon each other, at odd places (CVE-2026-7482)
 *   G5  values of another type than expected
 *   G6  hyper-parameters out of range
 *   G7  vocabularies at odds with themselves or the model (CVE-2025-49847)
 *   G8  texts of more than 2^31 bytes (CVE-2025-52566)
 *   G9  sums that wrap: paddings, lengths with one more for the NUL (CVE-2024-21802, CVE-2024-23496)
 * Safetensors, tensors left out, config.json bent and files with flipped bits have tests of their own beside
 * this one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/hostile/hostile.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/scratch.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Writes and frees f. */
static void refused(qn_test_gguf *f, qn_status status, const char *pattern)
{
    qn_test_gguf_write(f, qn_test_folder, "t.gguf");
    qn_test_gguf_free(f);
    qn_test_refused(qn_test_folder, "t.gguf", status, pattern);
}

static void accepted(qn_test_gguf *f)
{
    qn_test_gguf_write(f, qn_test_folder, "t.gguf");
    qn_test_gguf_free(f);
    qn_test_accepted(qn_test_folder, "t.gguf");
}

/* What all the following files are but for one thing. */
static void test_sound(void **state)
{
    accepted(qn_test_gguf_new());
}

static const char q_name[] = "blk.0.attn_q.weight";

static qn_test_gguf *with_dims(uint32_t n_dims, uint64_t fastest, uint64_t slowest)
{
    qn_test_gguf *f = qn_test_gguf_new();
    qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(f, q_name);
    t->n_dims = n_dims;
    t->dims[0] = fastest;
    t->dims[1] = slowest;
    return f;
}

static qn_test_gguf *with_offset(uint64_t offset)
{
    qn_test_gguf *f = qn_test_gguf_new();
    qn_test_gguf_tensor_get(f, q_name)->offset = offset;
    return f;
}

static qn_test_gguf *with_u32(const char *key, uint32_t value)
{
    qn_test_gguf *f = qn_test_gguf_new();
    qn_test_gguf_set_u32(f, key, value);
    return f;
}

/* Tensors of a type without a known size: no file is too short for them. */
static qn_test_gguf *with_two_unknown(uint64_t elements)
{
    static const char *const names[] = {"blk.0.attn_q.weight", "blk.0.attn_k.weight"};
    qn_test_gguf *f = qn_test_gguf_new();
    for (int i = 0; i < 2; i++) {
        qn_test_gguf_tensor *t = qn_test_gguf_tensor_get(f, names[i]);
        t->type = 77;
        t->n_dims = 1;
        t->dims[0] = elements;
    }
    return f;
}

/* ---- G1 ----------------------------------------------------------------------------------------------- */

static void g1_counts_near_2_64(void **state)
{
    static const struct {
        uint64_t count;
        const char *values, *tensors;
    } cases[] = {
        {65536, "t.gguf: 65536 metadata pairs do not fit the * bytes that are left (is it truncated?)",
         "t.gguf: 65536 tensors do not fit the * bytes that are left (is it truncated?)"},
        {INT32_MAX, "t.gguf: 2147483647 metadata pairs, at most 65536 are allowed",
         "t.gguf: 2147483647 tensors, at most 262144 are allowed"},
        {UINT64_C(1) << 60, "t.gguf: 1152921504606846976 metadata pairs, at most 65536 are allowed",
         "t.gguf: 1152921504606846976 tensors, at most 262144 are allowed"},
        {UINT64_C(1) << 63, "t.gguf: 9223372036854775808 metadata pairs, at most 65536 are allowed",
         "t.gguf: 9223372036854775808 tensors, at most 262144 are allowed"},
        {UINT64_MAX, "t.gguf: 18446744073709551615 metadata pairs, at most 65536 are allowed",
         "t.gguf: 18446744073709551615 tensors, at most 262144 are allowed"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_test_gguf *f = qn_test_gguf_new();
        f->n_values_more = cases[i].count - f->n_values;
        refused(f, QN_E_FORMAT, cases[i].values);
        f = qn_test_gguf_new();
        f->n_tensors_more = cases[i].count - f->n_tensors;
        refused(f, QN_E_FORMAT, cases[i].tensors);
    }
}

static void g1_sizes_near_2_63(void **state)
{
    const uint64_t one = 1;
    refused(with_dims(2, one << 62, 2), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight has too many elements");
    refused(with_dims(2, one << 32, one << 31), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight has too many elements");
    refused(with_two_unknown(one << 62), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_k.weight: together with the tensors before it, there are too many "
            "elements");
    refused(with_two_unknown(one << 61), QN_E_UNSUPPORTED,
            "t.gguf: tensor blk.0.attn_q.weight: type number 77 is not supported for weights");
    refused(with_dims(1, INT64_MAX, 0), QN_E_FORMAT, "t.gguf: tensor blk.0.attn_q.weight is too large");
    refused(with_dims(1, one << 62, 0), QN_E_FORMAT, "t.gguf: tensor blk.0.attn_q.weight is too large");
    refused(
        with_dims(1, one << 61, 0), QN_E_FORMAT,
        "t.gguf: tensor blk.0.attn_q.weight: 9223372036854775808 bytes at *, but the file has only * bytes "
        "of data (is it truncated?)");
    /* Sizes whose sum is 2^64: each is refused for itself, nothing adds them up. */
    qn_test_gguf *f = with_dims(1, one << 61, 0);
    qn_test_gguf_tensor_get(f, "output.weight")->n_dims = 1;
    qn_test_gguf_tensor_get(f, "output.weight")->dims[0] = one << 61;
    refused(f, QN_E_FORMAT, "t.gguf: tensor output.weight: 9223372036854775808 bytes at *");
}

/* ---- G2 ----------------------------------------------------------------------------------------------- */

static void g2_longer_than_the_file(void **state)
{
    static const uint64_t lengths[] = {
        100000, UINT64_C(1) << 31, UINT64_C(1) << 61, UINT64_C(1) << 63, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        int64_t allocations = qn_mem_allocations();
        qn_test_gguf *f = qn_test_gguf_new();
        qn_test_gguf_set(f, "general.name", QN_GGUF_STRING, &lengths[i], sizeof lengths[i]);
        refused(f, QN_E_FORMAT,
                "t.gguf: general.name: a string of * bytes, but the file has only * left (is it truncated?)");
        for (uint32_t type = 0; type < QN_GGUF_TYPE_COUNT; type++) {
            if (type == QN_GGUF_ARRAY) continue;
            f = qn_test_gguf_new();
            qn_test_gguf_set_array(f, "x", type, lengths[i], "", 0);
            refused(f, QN_E_FORMAT,
                    "t.gguf: x: * values of type *, but the file has only * bytes left (is it truncated?)");
        }
        /* Nothing grows with what the file claims. */
        assert_true(qn_mem_allocations() - allocations < 4000);
    }
}

/* The 43 bytes that hung llama.cpp: a header, and an array of strings that is nearly all of 2^64 long. */
static void g2_43_bytes(void **state)
{
    qn_buf b = {0};
    const uint64_t counts[] = {0, 1, 1}; /* tensors, pairs, length of the key */
    const uint32_t types[] = {QN_GGUF_ARRAY, QN_GGUF_STRING};
    const uint64_t many = UINT64_C(1) << 60;
    qn_buf_append(&b, "GGUF\3\0\0\0", 8);
    qn_buf_append(&b, counts, sizeof counts), qn_buf_puts(&b, "k");
    qn_buf_append(&b, types, sizeof types), qn_buf_append(&b, &many, sizeof many);
    for (size_t n = 0; n <= b.length; n++) {
        qn_test_write(qn_test_folder, "t.gguf", b.data, n);
        qn_test_refused(qn_test_folder, "t.gguf", QN_E_FORMAT,
                        n == 0   ? "t.gguf: the file is empty"
                        : n < 24 ? "t.gguf: the file ends inside the header (is it truncated?)"
                                 : "t.gguf: *(is it truncated?)");
    }
    qn_buf_free(&b);
}

static void g2_every_cut(void **state)
{
    qn_test_gguf *f = qn_test_gguf_new();
    qn_buf b = {0};
    qn_test_gguf_bytes(f, &b);
    qn_test_gguf_free(f);
    for (size_t n = 4; n < b.length; n += n < 2048 ? 7 : 499) {
        qn_test_write(qn_test_folder, "t.gguf", b.data, n);
        qn_test_refused(qn_test_folder, "t.gguf", QN_E_FORMAT, "t.gguf: *(is it truncated?)");
    }
    qn_buf_free(&b);
}

/* ---- G3 ----------------------------------------------------------------------------------------------- */

static void g3_dimensions(void **state)
{
    refused(with_dims(2, 0, 32), QN_E_FORMAT, "t.gguf: tensor blk.0.attn_q.weight: invalid dimension 0");
    refused(with_dims(2, 32, 0), QN_E_FORMAT, "t.gguf: tensor blk.0.attn_q.weight: invalid dimension 0");
    refused(with_dims(2, 32, (uint64_t)-1), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight: invalid dimension 18446744073709551615");
    refused(with_dims(2, (uint64_t)INT64_MIN, 32), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight: invalid dimension 9223372036854775808");
    refused(with_dims(0, 32, 32), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight: 0 dimensions, expected 1 to 4");
    refused(with_dims(5, 32, 32), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight: 5 dimensions, expected 1 to 4");
    refused(with_dims(UINT32_MAX, 32, 32), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight: 4294967295 dimensions, expected 1 to 4");
    /* Possible, but not what the model has. */
    refused(with_dims(1, 1024, 0), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight: *shape [1024], expected [32, 32]");
    refused(with_dims(2, 16, 64), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight: shape [64, 16], expected [*, 32]");
}

static void g3_empty_names(void **state)
{
    qn_test_gguf *f = qn_test_gguf_new();
    qn_test_gguf_set_u32(f, "", 1);
    refused(f, QN_E_FORMAT, "t.gguf: a metadata key is empty");
    f = qn_test_gguf_new();
    qn_test_gguf_tensor_get(f, q_name)->name[0] = '\0';
    refused(f, QN_E_FORMAT, "t.gguf: a tensor's name is empty");
    f = qn_test_gguf_new();
    memcpy(qn_test_gguf_tensor_get(f, q_name)->name, "\xff\xfe", 2);
    refused(f, QN_E_FORMAT, "t.gguf: a tensor's name is not valid UTF-8 without NUL");
    f = qn_test_gguf_new();
    snprintf(f->values[1].key, sizeof f->values[1].key, "%s", f->values[0].key);
    refused(f, QN_E_FORMAT, "t.gguf: metadata key general.architecture appears twice");
    f = qn_test_gguf_new();
    snprintf(qn_test_gguf_tensor_get(f, q_name)->name, QN_TEST_GGUF_KEY_MAX, "output.weight");
    refused(f, QN_E_FORMAT, "t.gguf: tensor output.weight appears twice");
}

/* ---- G4 ----------------------------------------------------------------------------------------------- */

static void g4_past_the_end(void **state)
{
    static const uint64_t offsets[] = {1 << 20, INT64_MAX - 31, UINT64_C(1) << 63, UINT64_MAX - 31,
                                       UINT64_MAX - 4095};
    for (size_t i = 0; i < COUNT(offsets); i++)
        refused(with_offset(offsets[i]), QN_E_FORMAT,
                "t.gguf: tensor blk.0.attn_q.weight: 4096 bytes at *, but the file has only * bytes of data "
                "(is it "
                "truncated?)");
    qn_test_gguf *f = qn_test_gguf_new();
    f->tensors[f->n_tensors - 1].size_bytes -= 4;
    refused(
        f, QN_E_FORMAT,
        "t.gguf: tensor blk.0.ffn_down.weight: 4096 bytes at *, but the file has only * bytes of data (is it "
        "truncated?)");
    f = qn_test_gguf_new();
    for (size_t i = 0; i < f->n_tensors; i++) f->tensors[i].size_bytes = 0;
    refused(f, QN_E_FORMAT,
            "t.gguf: tensor *: * bytes at *, but the file has only 0 bytes of data (is it "
            "truncated?)");
}

static void g4_places(void **state)
{
    static const uint32_t alignments[] = {0, 3, 24, UINT32_MAX};
    qn_test_gguf *f;
    refused(with_offset(0), QN_E_FORMAT,
            "t.gguf: the data of tensors token_embd.weight and blk.0.attn_q.weight overlap");
    refused(with_offset(32), QN_E_FORMAT,
            "t.gguf: the data of tensors token_embd.weight and blk.0.attn_q.weight overlap");
    refused(with_offset(33), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight: offset 33 is not a multiple of the alignment 32");
    for (size_t i = 0; i < COUNT(alignments); i++)
        refused(with_u32("general.alignment", alignments[i]), QN_E_FORMAT,
                "t.gguf: general.alignment * is not a power of two");
    f = qn_test_gguf_new();
    f->tensors[0].size_bytes = f->tensors[0].size_bytes / 2; /* its neighbour begins inside */
    qn_test_gguf_place(f);
    refused(f, QN_E_FORMAT, "t.gguf: the data of tensors token_embd.weight and output.weight overlap");
}

/* ---- G5 ----------------------------------------------------------------------------------------------- */

static void g5_types_of_values(void **state)
{
    static const struct {
        const char *key;
        uint32_t type, element;
        const char *says;
    } cases[] = {
        {"general.architecture", QN_GGUF_U64, 0,
         "t.gguf: metadata key general.architecture is u64, expected a string"},
        {"general.alignment", QN_GGUF_U64, 0, "t.gguf: general.alignment is of type u64, expected u32"},
        {"general.alignment", QN_GGUF_I32, 0, "t.gguf: general.alignment is of type i32, expected u32"},
        {"general.alignment", QN_GGUF_STRING, 0, "t.gguf: general.alignment is of type string, expected u32"},
        {"general.alignment", QN_GGUF_ARRAY, QN_GGUF_U32,
         "t.gguf: general.alignment is of type array, expected u32"},
        {"split.count", QN_GGUF_F32, 0, "t.gguf: metadata key split.count is f32, expected integers"},
        {"llama.block_count", QN_GGUF_STRING, 0,
         "t.gguf: metadata key llama.block_count is string, expected integers"},
        {"llama.block_count", QN_GGUF_F32, 0,
         "t.gguf: metadata key llama.block_count is f32, expected integers"},
        {"llama.block_count", QN_GGUF_BOOL, 0,
         "t.gguf: metadata key llama.block_count is bool, expected an "
         "integer"},
        {"llama.attention.head_count", QN_GGUF_ARRAY, QN_GGUF_STRING,
         "t.gguf: metadata key llama.attention.head_count is an array of string, expected integers"},
        {"llama.attention.head_count", QN_GGUF_ARRAY, QN_GGUF_F32,
         "t.gguf: metadata key llama.attention.head_count is an array of f32, expected integers"},
        {"llama.rope.freq_base", QN_GGUF_STRING, 0,
         "t.gguf: metadata key llama.rope.freq_base is string, expected a number"},
        {"llama.rope.freq_base", QN_GGUF_ARRAY, QN_GGUF_F32,
         "t.gguf: metadata key llama.rope.freq_base is an array of f32, expected a number"},
        {"llama.rope.scaling.type", QN_GGUF_U32, 0,
         "t.gguf: metadata key llama.rope.scaling.type is u32, expected a string"},
        {"tokenizer.ggml.model", QN_GGUF_U32, 0,
         "t.gguf: metadata key tokenizer.ggml.model is u32, expected a string"},
        {"tokenizer.ggml.tokens", QN_GGUF_STRING, 0,
         "t.gguf: metadata key tokenizer.ggml.tokens is string, expected an array of strings"},
        {"tokenizer.ggml.tokens", QN_GGUF_ARRAY, QN_GGUF_U64,
         "t.gguf: metadata key tokenizer.ggml.tokens is an array of u64, expected an array of strings"},
        {"tokenizer.ggml.scores", QN_GGUF_ARRAY, QN_GGUF_STRING,
         "t.gguf: metadata key tokenizer.ggml.scores is an array of string, expected an array of numbers"},
        {"tokenizer.ggml.scores", QN_GGUF_ARRAY, QN_GGUF_BOOL,
         "t.gguf: metadata key tokenizer.ggml.scores is an array of bool, expected an array of numbers"},
        {"tokenizer.ggml.token_type", QN_GGUF_ARRAY, QN_GGUF_F32,
         "t.gguf: metadata key tokenizer.ggml.token_type is an array of f32, expected integers"},
        {"tokenizer.ggml.token_type", QN_GGUF_ARRAY, QN_GGUF_STRING,
         "t.gguf: metadata key tokenizer.ggml.token_type is an array of string, expected integers"},
        {"tokenizer.ggml.eos_token_id", QN_GGUF_STRING, 0,
         "t.gguf: metadata key tokenizer.ggml.eos_token_id is string, expected integers"},
        {"tokenizer.ggml.add_bos_token", QN_GGUF_U8, 0,
         "t.gguf: metadata key tokenizer.ggml.add_bos_token is u8, expected bool"},
        {"tokenizer.chat_template", QN_GGUF_U32, 0,
         "t.gguf: metadata key tokenizer.chat_template is u32, expected a string"},
        {"x", QN_GGUF_ARRAY, QN_GGUF_ARRAY, "t.gguf: x: arrays of arrays are not supported"},
        {"x", QN_GGUF_ARRAY, QN_GGUF_TYPE_COUNT, "t.gguf: x: unknown value type 13"},
        {"x", QN_GGUF_TYPE_COUNT, 0, "t.gguf: x: unknown value type 13"},
        {"x", UINT32_MAX, 0, "t.gguf: x: unknown value type 4294967295"},
    };
    static const uint64_t zeros[2 * QN_TEST_GGUF_VOCAB];
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_test_gguf *f = qn_test_gguf_new();
        size_t each = qn_gguf_type_size((qn_gguf_type)cases[i].element);
        if (cases[i].type == QN_GGUF_ARRAY)
            qn_test_gguf_set_array(f, cases[i].key, cases[i].element, QN_TEST_GGUF_VOCAB, zeros,
                                   QN_TEST_GGUF_VOCAB * (each ? each : sizeof(uint64_t)));
        else
            qn_test_gguf_set(f, cases[i].key, cases[i].type, zeros,
                             cases[i].type == QN_GGUF_STRING
                                 ? sizeof(uint64_t)
                                 : qn_gguf_type_size((qn_gguf_type)cases[i].type));
        refused(f, strstr(cases[i].says, "not supported") ? QN_E_UNSUPPORTED : QN_E_FORMAT, cases[i].says);
    }
    qn_test_gguf *f = qn_test_gguf_new();
    qn_test_gguf_set_array(f, "x", QN_GGUF_BOOL, 2, "\1\2", 2);
    refused(f, QN_E_FORMAT, "t.gguf: x: a bool with value 2");
}

/* ---- G6 ----------------------------------------------------------------------------------------------- */

static void g6_hyper_parameters(void **state)
{
    static const struct {
        const char *key;
        int64_t value;
        const char *says;
    } cases[] = {
        {"block_count", 0, "t.gguf: llama.block_count is 0, expected 1 to 4096"},
        {"block_count", -1, "t.gguf: llama.block_count is -1, expected 1 to 4096"},
        {"block_count", 2, "t.gguf: tensor blk.1.attn_norm.weight is missing, expected with shape [32]"},
        {"block_count", 4096, "t.gguf: tensor blk.1.attn_norm.weight is missing, expected with shape [32]"},
        {"block_count", 1000000000, "t.gguf: llama.block_count is 1000000000, expected 1 to 4096"},
        {"block_count", INT64_MAX, "t.gguf: llama.block_count is 9223372036854775807, expected 1 to 4096"},
        {"embedding_length", 0, "t.gguf: llama.embedding_length is 0, expected 1 to 1048576"},
        {"embedding_length", 31, "t.gguf: tensor token_embd.weight: shape [16, 32], expected [16, 31]"},
        {"embedding_length", INT64_MIN, "t.gguf: llama.embedding_length is *, expected 1 to 1048576"},
        {"feed_forward_length", 0, "t.gguf: llama.feed_forward_length is 0, expected 1 to *"},
        {"feed_forward_length", 1 << 24,
         "t.gguf: tensor blk.0.ffn_gate.weight: shape [32, 32], expected "
         "[16777216, 32]"},
        {"feed_forward_length", UINT32_MAX,
         "t.gguf: llama.feed_forward_length is 4294967295, expected 1 to *"},
        {"attention.head_count", 0, "t.gguf: llama.attention.head_count is 0, expected 1 to 65536"},
        {"attention.head_count", 3,
         "t.gguf: tensor blk.0.attn_q.weight: 32 rows do not match llama.attention.head_count 3"},
        {"attention.head_count", -2, "t.gguf: llama.attention.head_count is -2, expected 1 to 65536"},
        {"attention.head_count_kv", 0, "t.gguf: llama.attention.head_count_kv is 0, expected 1 to 65536"},
        {"attention.head_count_kv", 3,
         "t.gguf: llama.attention.head_count 2 is not a multiple of "
         "llama.attention.head_count_kv 3"},
        {"attention.head_count_kv", 65536,
         "t.gguf: llama.attention.head_count 2 is not a multiple of "
         "llama.attention.head_count_kv 65536"},
        {"attention.key_length", 0, "t.gguf: llama.attention.key_length is 0, expected 1 to 65536"},
        {"attention.key_length", 15,
         "t.gguf: llama.attention.key_length: 15 of 15 head dimensions are rotated, expected an even number"},
        {"attention.value_length", 8,
         "t.gguf: llama.attention.value_length is 8, but head_dim is 16: values of another size than keys "
         "are "
         "not supported"},
        {"context_length", 0, "t.gguf: llama.context_length is 0, expected 1 to 2147483647"},
        {"context_length", INT64_MAX,
         "t.gguf: llama.context_length is 9223372036854775807, expected 1 to "
         "2147483647"},
        {"vocab_size", 0, "t.gguf: llama.vocab_size is 0, expected 1 to 16777216"},
        {"vocab_size", 17, "t.gguf: tensor token_embd.weight: shape [16, 32], expected [17, 32]"},
        {"vocab_size", INT32_MAX, "t.gguf: llama.vocab_size is 2147483647, expected 1 to 16777216"},
        {"expert_count", 8, "t.gguf: llama.expert_used_count is missing"},
        {"expert_count", 4097, "t.gguf: llama.expert_count is 4097, expected 1 to 4096"},
        {"expert_count", -8, "t.gguf: llama.expert_count is -8, expected 0 to 65536"},
        {"rope.dimension_count", 0, "t.gguf: llama.rope.dimension_count is 0, expected 2 to 16"},
        {"rope.dimension_count", 15,
         "t.gguf: llama.rope.dimension_count: 15 of 16 head dimensions are rotated, expected an even number"},
        {"rope.dimension_count", 1 << 30,
         "t.gguf: llama.rope.dimension_count is 1073741824, expected 2 to 16"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char key[96];
        qn_test_gguf *f = qn_test_gguf_new();
        snprintf(key, sizeof key, "llama.%s", cases[i].key);
        qn_test_gguf_set(f, key, QN_GGUF_I64, &cases[i].value, sizeof cases[i].value);
        refused(f, strstr(cases[i].says, "not supported") ? QN_E_UNSUPPORTED : QN_E_FORMAT, cases[i].says);
    }
    /* A context as long as can be said costs nothing until it is used. */
    accepted(with_u32("llama.context_length", INT32_MAX));
}

static void g6_numbers(void **state)
{
    static const struct {
        const char *key;
        float value;
        const char *says;
    } cases[] = {
        {"llama.attention.layer_norm_rms_epsilon", NAN,
         "t.gguf: metadata key llama.attention.layer_norm_rms_epsilon: *nan is not in the range *"},
        {"llama.attention.layer_norm_rms_epsilon", -1e-5f,
         "t.gguf: llama.attention.layer_norm_rms_epsilon is -*, expected 0 to 1"},
        {"llama.rope.freq_base", INFINITY,
         "t.gguf: metadata key llama.rope.freq_base: inf is not in the range *"},
        {"llama.rope.freq_base", 0, "t.gguf: llama.rope.freq_base is 0, expected 0.001 to 1e+30"},
        {"llama.rope.freq_base", -10000, "t.gguf: llama.rope.freq_base is -10000, expected 0.001 to 1e+30"},
        {"llama.attention.scale", -1, "t.gguf: llama.attention.scale is -1, expected 0 to *"},
        {"llama.attention.scale", NAN,
         "t.gguf: metadata key llama.attention.scale: *nan is not in the range *"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_test_gguf *f = qn_test_gguf_new();
        qn_test_gguf_set_f32(f, cases[i].key, cases[i].value);
        refused(f, QN_E_FORMAT, cases[i].says);
    }
}

/* ---- G7 ----------------------------------------------------------------------------------------------- */

static qn_test_gguf *with_tokens(size_t n, const char *third)
{
    static const char *tokens[64];
    static char names[64][8];
    qn_test_gguf *f = qn_test_gguf_new();
    assert_true(n <= COUNT(tokens));
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "t%zu", i);
        tokens[i] = i == 3 ? third : names[i];
    }
    qn_test_gguf_set_texts(f, "tokenizer.ggml.tokens", n, tokens);
    return f;
}

static void g7_lists_of_other_lengths(void **state)
{
    static const float scores[64];
    static const int32_t types[64] = {1};
    qn_test_gguf *f = qn_test_gguf_new();
    qn_test_gguf_set_array(f, "tokenizer.ggml.scores", QN_GGUF_F32, 15, scores, 15 * sizeof *scores);
    refused(f, QN_E_FORMAT, "t.gguf: tokenizer.ggml.scores has 15 entries for 16 tokens");
    f = qn_test_gguf_new();
    qn_test_gguf_set_array(f, "tokenizer.ggml.scores", QN_GGUF_F32, 0, "", 0);
    refused(f, QN_E_FORMAT, "t.gguf: tokenizer.ggml.scores has 0 entries for 16 tokens");
    f = qn_test_gguf_new();
    qn_test_gguf_drop(f, "tokenizer.ggml.scores");
    refused(f, QN_E_NOT_FOUND, "t.gguf: there is no metadata key tokenizer.ggml.scores");
    f = qn_test_gguf_new();
    qn_test_gguf_set_array(f, "tokenizer.ggml.token_type", QN_GGUF_I32, 1, types, sizeof *types);
    refused(f, QN_E_FORMAT, "t.gguf: tokenizer.ggml.token_type has 1 entries for 16 tokens");
    refused(with_tokens(0, ""), QN_E_FORMAT, "t.gguf: tokenizer.ggml.tokens has 0 entries");
    f = qn_test_gguf_new();
    qn_test_gguf_drop(f, "tokenizer.ggml.tokens");
    refused(f, QN_E_NOT_FOUND, "t.gguf: there is no metadata key tokenizer.ggml.tokens");
}

static void g7_tokens(void **state)
{
    static const char *const not_bytes[] = {"<0x-1>", "<0x4>", "<0xGG>", "<0x100>", "0x41", ""};
    for (size_t i = 0; i < COUNT(not_bytes); i++)
        refused(with_tokens(16, not_bytes[i]), QN_E_FORMAT,
                "t.gguf: token 3 is a byte, but '*' is not of the form <0x41>");
    qn_test_gguf *f = with_tokens(16, "t5");
    qn_test_gguf_drop(f, "tokenizer.ggml.token_type");
    refused(f, QN_E_FORMAT, "t.gguf: tokens 3 and 5 are both 't5'");
    static const int32_t wrong_types[] = {0, 7, -1, INT32_MAX};
    for (size_t i = 0; i < COUNT(wrong_types); i++) {
        int32_t types[QN_TEST_GGUF_VOCAB];
        for (int j = 0; j < QN_TEST_GGUF_VOCAB; j++) types[j] = j == 9 ? wrong_types[i] : 1;
        f = qn_test_gguf_new();
        qn_test_gguf_set_array(f, "tokenizer.ggml.token_type", QN_GGUF_I32, QN_TEST_GGUF_VOCAB, types,
                               sizeof types);
        refused(f, QN_E_FORMAT,
                "t.gguf: metadata key tokenizer.ggml.token_type: * is not in the range 1 to 6");
    }
    float scores[QN_TEST_GGUF_VOCAB] = {[7] = NAN};
    f = qn_test_gguf_new();
    qn_test_gguf_set_array(f, "tokenizer.ggml.scores", QN_GGUF_F32, QN_TEST_GGUF_VOCAB, scores,
                           sizeof scores);
    refused(f, QN_E_FORMAT, "t.gguf: metadata key tokenizer.ggml.scores: value 7 is not finite");
}

static void g7_ids(void **state)
{
    static const char *const keys[] = {"bos", "eos", "unknown", "padding", "eot", "eom"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        char key[64], says[160];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", keys[i]);
        snprintf(says, sizeof says, "t.gguf: %s is 16, the vocabulary has 16 tokens", key);
        refused(with_u32(key, 16), QN_E_FORMAT, says);
        snprintf(says, sizeof says, "t.gguf: *%s*", key);
        refused(with_u32(key, 1u << 31), QN_E_FORMAT, says);
    }
}

/* ---- G8 ----------------------------------------------------------------------------------------------- */

static void g8_texts_beyond_2_31(void **state)
{
    /* Zeros that are there only as addresses. */
    size_t n = ((size_t)1 << 31) + 4096;
    char *text = mmap(NULL, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    qn_model *m = NULL;
    if (text == MAP_FAILED) qn_test_leave_out("no room for 2 GiB of addresses");
    qn_test_gguf *f = qn_test_gguf_new();
    const char *path = qn_test_gguf_write(f, qn_test_folder, "t.gguf");
    qn_test_gguf_free(f);
    assert_int_equal(qn_model_open(path, &(qn_model_options){.n_threads = 1}, &m), QN_OK);
    size_t before = qn_mem_reset_peak();
    assert_int_equal(qn_model_encode(m, text, n, NULL, &ids, &n_ids), QN_E_ARG);
    assert_string_equal(qn_last_error(), "a text of more than 1073741824 bytes cannot be tokenised at once");
    assert_true(qn_mem_peak_bytes() - before < 4096);
    qn_model_close(&m);
    munmap(text, n);
}

/* ---- G9 ----------------------------------------------------------------------------------------------- */

static void g9_sums_that_wrap(void **state)
{
    const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 7, UINT64_MAX - 63, INT64_MAX};
    qn_buf b = {0};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        /* A key's length: with its NUL it would be 0. */
        const uint64_t counts[] = {0, 1, lengths[i]};
        qn_buf_append(&b, "GGUF\3\0\0\0", 8);
        qn_buf_append(&b, counts, sizeof counts), qn_buf_puts(&b, "key and more");
        qn_test_write(qn_test_folder, "t.gguf", b.data, b.length);
        qn_test_refused(qn_test_folder, "t.gguf", QN_E_FORMAT,
                        "t.gguf: the file ends inside a metadata key (is it truncated?)");
        qn_buf_reset(&b);
        /* A tensor's name. */
        const uint64_t more[] = {1, 0, lengths[i]};
        qn_buf_append(&b, "GGUF\3\0\0\0", 8);
        qn_buf_append(&b, more, sizeof more), qn_buf_puts(&b, "name and more than enough for a tensor");
        qn_test_write(qn_test_folder, "t.gguf", b.data, b.length);
        qn_test_refused(qn_test_folder, "t.gguf", QN_E_FORMAT,
                        "t.gguf: the file ends inside a tensor's name (is it truncated?)");
        qn_buf_reset(&b);
    }
    qn_buf_free(&b);
    /* Offset and size: their sum is 0. */
    refused(with_offset(UINT64_MAX - 4095), QN_E_FORMAT,
            "t.gguf: tensor blk.0.attn_q.weight: 4096 bytes at *");
    /* The padding behind the header: as far as a u32 can say. */
    qn_test_gguf *f = with_u32("general.alignment", 1u << 31);
    for (size_t i = 0; i < f->n_tensors; i++) f->tensors[i].offset = 0;
    refused(f, QN_E_FORMAT,
            "t.gguf: tensor token_embd.weight: 2048 bytes at 0, but the file has only 0 bytes of data (is it "
            "truncated?)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        QN_TEST_IN_FOLDER(test_sound),
        QN_TEST_IN_FOLDER(g1_counts_near_2_64),
        QN_TEST_IN_FOLDER(g1_sizes_near_2_63),
        QN_TEST_IN_FOLDER(g2_longer_than_the_file),
        QN_TEST_IN_FOLDER(g2_43_bytes),
        QN_TEST_IN_FOLDER(g2_every_cut),
        QN_TEST_IN_FOLDER(g3_dimensions),
        QN_TEST_IN_FOLDER(g3_empty_names),
        QN_TEST_IN_FOLDER(g4_past_the_end),
        QN_TEST_IN_FOLDER(g4_places),
        QN_TEST_IN_FOLDER(g5_types_of_values),
        QN_TEST_IN_FOLDER(g6_hyper_parameters),
        QN_TEST_IN_FOLDER(g6_numbers),
        QN_TEST_IN_FOLDER(g7_lists_of_other_lengths),
        QN_TEST_IN_FOLDER(g7_tokens),
        QN_TEST_IN_FOLDER(g7_ids),
        QN_TEST_IN_FOLDER(g8_texts_beyond_2_31),
        QN_TEST_IN_FOLDER(g9_sums_that_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
