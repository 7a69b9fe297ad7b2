#include "format/gguf/gguf.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

/* Builders of the parts of a file. */
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

static void put_header(qn_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_values)
{
    qn_buf_puts(b, "GGUF");
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_values);
}

static void put_key(qn_buf *b, const char *key, uint32_t type)
{
    put_string(b, key);
    put_u32(b, type);
}

static void put_array(qn_buf *b, const char *key, uint32_t element, uint64_t count)
{
    put_key(b, key, QN_GGUF_ARRAY);
    put_u32(b, element);
    put_u64(b, count);
}

/* dims fastest first, as in the file. */
static void put_tensor(qn_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                       uint64_t offset)
{
    put_string(b, name);
    put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) put_u64(b, dims[i]);
    put_u32(b, type);
    put_u64(b, offset);
}

static void put_padding(qn_buf *b, size_t alignment, size_t n_data)
{
    while (b->length % alignment) qn_buf_putc(b, 0);
    for (size_t i = 0; i < n_data; i++) qn_buf_putc(b, (char)i);
}

static qn_gguf *open_made(const qn_buf *b)
{
    qn_gguf *g = NULL;
    assert_int_equal(b->status, QN_OK);
    if (qn_gguf_open_bytes("t.gguf", b->data, b->length, &g) != QN_OK) fail_msg("%s", qn_last_error());
    return g;
}

/* Frees the file. */
static void expect_refusal(qn_buf *b, qn_status status, const char *says)
{
    qn_gguf *g = NULL;
    assert_int_equal(b->status, QN_OK);
    qn_status got = qn_gguf_open_bytes("t.gguf", b->data, b->length, &g);
    if (got != status || g) fail_msg("\"%s\": status %s", says, qn_status_name(got));
    if (strncmp(qn_last_error(), "t.gguf: ", 8) != 0 || !strstr(qn_last_error(), says))
        fail_msg("\"%s\" does not say \"%s\"", qn_last_error(), says);
    qn_buf_free(b);
}

static void put_all_types(qn_buf *b)
{
    put_key(b, "u8", QN_GGUF_U8), qn_buf_append(b, "\xc8", 1);
    put_key(b, "i8", QN_GGUF_I8), qn_buf_append(b, "\xc8", 1);
    put_key(b, "u16", QN_GGUF_U16), qn_buf_append(b, "\x01\x80", 2);
    put_key(b, "i16", QN_GGUF_I16), qn_buf_append(b, "\x01\x80", 2);
    put_key(b, "u32", QN_GGUF_U32), put_u32(b, 3000000000u);
    put_key(b, "i32", QN_GGUF_I32), put_u32(b, (uint32_t)-5);
    put_key(b, "f32", QN_GGUF_F32), qn_buf_append(b, &(float){1.5f}, 4);
    put_key(b, "bool", QN_GGUF_BOOL), qn_buf_putc(b, 1);
    put_key(b, "string", QN_GGUF_STRING), put_string(b, "text");
    put_key(b, "u64", QN_GGUF_U64), put_u64(b, UINT64_MAX);
    put_key(b, "i64", QN_GGUF_I64), put_u64(b, (uint64_t)INT64_MIN);
    put_key(b, "f64", QN_GGUF_F64), qn_buf_append(b, &(double){-2.25}, 8);
    put_key(b, "nan", QN_GGUF_F32), qn_buf_append(b, &(float){NAN}, 4);
    put_array(b, "strings", QN_GGUF_STRING, 3), put_string(b, "a"), put_string(b, ""),
        put_string(b, "\xff\n");
    put_array(b, "ints", QN_GGUF_I16, 3), qn_buf_append(b, (int16_t[]){-1, 2, 300}, 6);
    put_array(b, "floats", QN_GGUF_F32, 2), qn_buf_append(b, (float[]){0.5f, -1}, 8);
    put_array(b, "bools", QN_GGUF_BOOL, 2), qn_buf_append(b, "\0\1", 2);
    put_array(b, "none", QN_GGUF_STRING, 0);
}
enum { N_ALL_TYPES = 18 };

static void test_metadata(void **state)
{
    for (uint32_t version = 2; version <= 3; version++) {
        qn_buf b = {0};
        put_header(&b, version, 0, N_ALL_TYPES);
        put_all_types(&b);
        qn_gguf *g = open_made(&b);
        int64_t i = 7, is[3];
        uint64_t u = 7;
        double d = 7;
        float fs[3];
        int flag = 7;
        qn_gguf_string s;
        assert_int_equal(qn_gguf_version(g), version);
        assert_int_equal(qn_gguf_value_count(g), N_ALL_TYPES);
        assert_string_equal(qn_gguf_value_get(g, 8)->key, "string");
        static const struct {
            const char *key;
            int64_t value;
        } integers[] = {{"u8", 200},         {"i8", -56}, {"u16", 32769},    {"i16", -32767},
                        {"u32", 3000000000}, {"i32", -5}, {"i64", INT64_MIN}};
        for (size_t k = 0; k < sizeof integers / sizeof *integers; k++) {
            assert_int_equal(qn_gguf_get_i64(g, integers[k].key, INT64_MIN, INT64_MAX, &i), QN_OK);
            assert_int_equal(i, integers[k].value);
        }
        assert_int_equal(qn_gguf_get_i64(g, "u64", INT64_MIN, INT64_MAX, &i), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_u64(g, "u64", UINT64_MAX, &u), QN_OK);
        assert_true(u == UINT64_MAX);
        assert_int_equal(qn_gguf_get_u64(g, "u64", UINT64_MAX - 1, &u), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_u64(g, "i32", UINT64_MAX, &u), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_i64(g, "u8", 0, 199, &i), QN_E_FORMAT);
        assert_string_equal(qn_last_error(), "t.gguf: metadata key u8: 200 is not in the range 0 to 199");
        assert_int_equal(qn_gguf_get_i64(g, "i8", 0, 199, &i), QN_E_FORMAT);
        assert_string_equal(qn_last_error(), "t.gguf: metadata key i8: -56 is not in the range 0 to 199");
        assert_int_equal(i, INT64_MIN);
        assert_int_equal(qn_gguf_get_i64(g, "string", 0, 9, &i), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_i64(g, "f32", 0, 9, &i), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_i64(g, "bool", 0, 9, &i), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_i64(g, "ints", 0, 9, &i), QN_E_FORMAT);
        assert_string_equal(qn_last_error(),
                            "t.gguf: metadata key ints is an array of i16, expected an integer");
        assert_int_equal(qn_gguf_get_i64(g, "absent", 0, 9, &i), QN_E_NOT_FOUND);
        assert_string_equal(qn_last_error(), "t.gguf: there is no metadata key absent");
        assert_int_equal(qn_gguf_optional(qn_gguf_get_i64(g, "absent", 0, 9, &i)), QN_OK);
        assert_int_equal(qn_gguf_get_f64(g, "f32", 0, 2, &d), QN_OK);
        assert_true(d == 1.5);
        assert_int_equal(qn_gguf_get_f64(g, "f64", -3, 2, &d), QN_OK);
        assert_true(d == -2.25);
        assert_int_equal(qn_gguf_get_f64(g, "i32", -9, 9, &d), QN_OK);
        assert_true(d == -5);
        assert_int_equal(qn_gguf_get_f64(g, "f64", 0, 2, &d), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_f64(g, "nan", -DBL_MAX, DBL_MAX, &d), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_f64(g, "bool", 0, 2, &d), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_bool(g, "bool", &flag), QN_OK);
        assert_int_equal(flag, 1);
        assert_int_equal(qn_gguf_get_bool(g, "u8", &flag), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_string(g, "string", &s), QN_OK);
        assert_int_equal(s.length, 4);
        assert_memory_equal(s.data, "text", 4);
        assert_int_equal(qn_gguf_get_string(g, "strings", &s), QN_E_FORMAT);
        qn_gguf_strings it;
        assert_int_equal(qn_gguf_get_strings(g, "strings", &it), QN_OK);
        assert_int_equal(it.left, 3);
        assert_true(qn_gguf_strings_next(&it, &s) && s.length == 1 && s.data[0] == 'a');
        assert_true(qn_gguf_strings_next(&it, &s) && s.length == 0);
        assert_true(qn_gguf_strings_next(&it, &s) && s.length == 2);
        assert_false(qn_gguf_strings_next(&it, &s));
        assert_int_equal(qn_gguf_get_strings(g, "none", &it), QN_OK);
        assert_false(qn_gguf_strings_next(&it, &s));
        assert_int_equal(qn_gguf_get_strings(g, "ints", &it), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_strings(g, "string", &it), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_array_count(g, "floats", &i), QN_OK);
        assert_int_equal(i, 2);
        assert_int_equal(qn_gguf_get_array_count(g, "u8", &i), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_i64s(g, "ints", -1, 300, 3, is), QN_OK);
        assert_true(is[0] == -1 && is[1] == 2 && is[2] == 300);
        assert_int_equal(qn_gguf_get_i64s(g, "ints", 0, 300, 3, is), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_i64s(g, "ints", -1, 300, 2, is), QN_E_FORMAT);
        assert_string_equal(qn_last_error(), "t.gguf: metadata key ints has 3 values, expected 2");
        assert_int_equal(qn_gguf_get_i64s(g, "u8", 0, 300, 3, is), QN_OK);
        assert_true(is[0] == 200 && is[2] == 200);
        assert_int_equal(qn_gguf_get_i64s(g, "bools", 0, 1, 2, is), QN_OK);
        assert_true(is[0] == 0 && is[1] == 1);
        assert_int_equal(qn_gguf_get_i64s(g, "floats", 0, 1, 2, is), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_i64s(g, "strings", 0, 1, 3, is), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_f32s(g, "floats", 2, fs), QN_OK);
        assert_true(fs[0] == 0.5f && fs[1] == -1);
        assert_int_equal(qn_gguf_get_f32s(g, "ints", 3, fs), QN_OK);
        assert_true(fs[2] == 300);
        assert_int_equal(qn_gguf_get_f32s(g, "floats", 3, fs), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_f32s(g, "f32", 1, fs), QN_E_FORMAT);
        assert_int_equal(qn_gguf_get_f32s(g, "strings", 3, fs), QN_E_FORMAT);
        qn_gguf_close(g);
        qn_buf_free(&b);
    }
}

static void test_tensors(void **state)
{
    qn_buf b = {0};
    put_header(&b, 3, 5, 1);
    put_key(&b, "general.alignment", QN_GGUF_U32), put_u32(&b, 64);
    put_tensor(&b, "one", 1, (const uint64_t[]){3}, 0, 384);
    put_tensor(&b, "four", 4, (const uint64_t[]){4, 3, 2, 1}, 1, 0);
    put_tensor(&b, "block", 2, (const uint64_t[]){64, 2}, 2, 64);
    put_tensor(&b, "later", 2, (const uint64_t[]){256, 2}, 16, 192);
    put_tensor(&b, "strange", 1, (const uint64_t[]){1}, 77, 384);
    put_padding(&b, 64, 384 + 12);
    qn_gguf *g = open_made(&b);
    const qn_tensor_view *v;
    assert_int_equal(qn_gguf_count(g), 5);
    assert_int_equal(qn_gguf_tensor(g, "four", &v), QN_OK);
    assert_int_equal(v->n_dims, 4);
    assert_true(v->shape[0] == 1 && v->shape[1] == 2 && v->shape[2] == 3 && v->shape[3] == 4);
    assert_int_equal(v->size_bytes, 48);
    assert_int_equal(*(const uint8_t *)v->data, 0);
    assert_int_equal(qn_gguf_tensor(g, "block", &v), QN_OK);
    assert_int_equal(v->dtype, QN_DTYPE_Q4_0);
    assert_string_equal(v->type_name, "Q4_0");
    assert_int_equal(v->size_bytes, 72);
    assert_int_equal(*(const uint8_t *)v->data, 64);
    qn_view_drop(v, 0, 72);
    assert_int_equal(qn_gguf_tensor(g, "later", &v), QN_E_UNSUPPORTED);
    assert_string_equal(qn_last_error(), "t.gguf: tensor later: type IQ2_XXS is not supported");
    assert_int_equal(qn_gguf_find(g, "later")->size_bytes, 132);
    assert_int_equal(qn_gguf_tensor(g, "strange", &v), QN_E_UNSUPPORTED);
    assert_string_equal(qn_last_error(), "t.gguf: tensor strange: type number 77 is not supported");
    assert_int_equal(qn_gguf_tensor(g, "absent", &v), QN_E_NOT_FOUND);
    assert_null(qn_gguf_find(g, "absent"));
    qn_gguf_close(g);
    qn_buf_free(&b);
}

static void test_hostile_headers(void **state)
{
    static const uint64_t counts[] = {
        1, 2, 1u << 20, UINT64_C(1) << 32, UINT64_C(1) << 60, UINT64_C(1) << 63, UINT64_MAX};
    static const struct {
        uint32_t version;
        qn_status status;
        const char *says;
    } versions[] = {{0, QN_E_UNSUPPORTED, "version 0"},
                    {1, QN_E_UNSUPPORTED, "version 1 is not supported (2 and 3 are)"},
                    {4, QN_E_UNSUPPORTED, "version 4"},
                    {0x03000000, QN_E_UNSUPPORTED, "big-endian"}};
    qn_buf b = {0};
    qn_gguf *g = NULL;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        put_header(&b, versions[i].version, 0, 0);
        expect_refusal(&b, versions[i].status, versions[i].says);
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int many = counts[i] > 1u << 18;
        put_header(&b, 3, counts[i], 0);
        expect_refusal(&b, QN_E_FORMAT,
                       many ? "tensors, at most 262144 are allowed"
                            : "tensors do not fit the 0 bytes that are left (is it truncated?)");
        put_header(&b, 3, 0, counts[i]);
        expect_refusal(&b, QN_E_FORMAT,
                       many ? "metadata pairs, at most 65536 are allowed"
                            : "metadata pairs do not fit the 0 bytes");
    }
    qn_buf_puts(&b, "GGML----------------------------");
    expect_refusal(&b, QN_E_FORMAT, "not a GGUF file");
    put_header(&b, 3, 0, 0);
    for (size_t n = 0; n < b.length; n++) {
        assert_int_equal(qn_gguf_open_bytes("t", b.data, n, &g), QN_E_FORMAT);
        assert_string_equal(qn_last_error(), "t: the file ends inside the header (is it truncated?)");
    }
    assert_null(g);
    qn_buf_free(&b);
}

/* A file with one pair: key, type, and what follows. */
static void put_pair(qn_buf *b, const char *key, uint32_t type)
{
    put_header(b, 3, 0, 1);
    put_key(b, key, type);
}

static void test_hostile_metadata(void **state)
{
    static const uint64_t lengths[] = {9, UINT64_C(1) << 31, UINT64_C(1) << 62, UINT64_MAX - 7, UINT64_MAX};
    qn_buf b = {0};
    put_pair(&b, "", QN_GGUF_U32), put_u64(&b, 0);
    expect_refusal(&b, QN_E_FORMAT, "a metadata key is empty");
    put_pair(&b, "\xc0\x80", QN_GGUF_U32), put_u64(&b, 0);
    expect_refusal(&b, QN_E_FORMAT, "not valid UTF-8");
    put_pair(&b, "k", 13), put_u64(&b, 0);
    expect_refusal(&b, QN_E_FORMAT, "k: unknown value type 13");
    put_pair(&b, "k", UINT32_MAX), put_u64(&b, 0);
    expect_refusal(&b, QN_E_FORMAT, "unknown value type");
    put_pair(&b, "k", QN_GGUF_BOOL), qn_buf_putc(&b, 2);
    expect_refusal(&b, QN_E_FORMAT, "a bool with value 2");
    put_pair(&b, "k", QN_GGUF_U64), put_u32(&b, 0);
    expect_refusal(&b, QN_E_FORMAT, "truncated");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        put_header(&b, 3, 0, 1), put_u64(&b, lengths[i]), qn_buf_puts(&b, "12345678");
        expect_refusal(&b, QN_E_FORMAT, "truncated");
        put_pair(&b, "k", QN_GGUF_STRING), put_u64(&b, lengths[i]), qn_buf_puts(&b, "12345678");
        expect_refusal(&b, QN_E_FORMAT, "truncated");
        for (uint32_t type = 0; type < QN_GGUF_TYPE_COUNT; type++) {
            if (type == QN_GGUF_ARRAY) continue;
            put_header(&b, 3, 0, 1), put_array(&b, "k", type, lengths[i]), qn_buf_puts(&b, "12345678");
            expect_refusal(&b, QN_E_FORMAT, "truncated");
        }
    }
    put_header(&b, 3, 0, 1), put_array(&b, "k", QN_GGUF_STRING, 2), put_string(&b, "a"), put_u64(&b, 1);
    expect_refusal(&b, QN_E_FORMAT, "a string of 1 bytes");
    put_header(&b, 3, 0, 1), put_array(&b, "k", QN_GGUF_ARRAY, 1), put_u32(&b, 0), put_u64(&b, 0);
    expect_refusal(&b, QN_E_UNSUPPORTED, "arrays of arrays");
    put_header(&b, 3, 0, 1), put_array(&b, "k", 99, 1), put_u64(&b, 0);
    expect_refusal(&b, QN_E_FORMAT, "unknown value type 99");
    put_header(&b, 3, 0, 1), put_array(&b, "k", QN_GGUF_BOOL, 2), qn_buf_append(&b, "\1\3", 2);
    expect_refusal(&b, QN_E_FORMAT, "a bool with value 3");
    put_header(&b, 3, 0, 2);
    put_key(&b, "k", QN_GGUF_U32), put_u32(&b, 1), put_key(&b, "k", QN_GGUF_U32), put_u32(&b, 1);
    expect_refusal(&b, QN_E_FORMAT, "metadata key k appears twice");
}

static void test_alignment_and_split(void **state)
{
    static const uint32_t bad[] = {0, 3, 33, 0x80000001, UINT32_MAX};
    qn_buf b = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_pair(&b, "general.alignment", QN_GGUF_U32), put_u32(&b, bad[i]);
        expect_refusal(&b, QN_E_FORMAT, "power of two");
    }
    put_pair(&b, "general.alignment", QN_GGUF_STRING), put_string(&b, "32");
    expect_refusal(&b, QN_E_FORMAT, "general.alignment is of type string");
    put_pair(&b, "general.alignment", QN_GGUF_U64), put_u64(&b, 32);
    expect_refusal(&b, QN_E_FORMAT, "general.alignment is of type u64");
    put_pair(&b, "general.alignment", QN_GGUF_U32), put_u32(&b, 0x80000000);
    qn_gguf_close(open_made(&b)); /* no tensors: nothing lies behind it */
    qn_buf_free(&b);
    put_pair(&b, "split.count", QN_GGUF_U16), qn_buf_append(&b, "\3\0", 2);
    expect_refusal(&b, QN_E_UNSUPPORTED, "one of 3 parts");
    put_pair(&b, "split.count", QN_GGUF_STRING), put_string(&b, "3");
    expect_refusal(&b, QN_E_FORMAT, "split.count is string");
    put_pair(&b, "split.count", QN_GGUF_U16), qn_buf_append(&b, "\1\0", 2);
    qn_gguf_close(open_made(&b));
    qn_buf_free(&b);
}

static void test_hostile_tensors(void **state)
{
    static const struct {
        uint32_t n_dims;
        uint64_t dims[5];
        uint32_t type;
        uint64_t offset;
        const char *says;
    } cases[] = {
        {0, {1}, 0, 0, "0 dimensions"},
        {5, {1, 1, 1, 1, 1}, 0, 0, "5 dimensions"},
        {UINT32_MAX, {0}, 0, 0, "4294967295 dimensions"},
        {1, {0}, 0, 0, "invalid dimension 0"},
        {2, {4, 0}, 0, 0, "invalid dimension 0"},
        {1, {UINT64_MAX}, 0, 0, "invalid dimension"},
        {1, {UINT64_C(1) << 63}, 0, 0, "invalid dimension"},
        {2, {UINT64_C(1) << 32, UINT64_C(1) << 31}, 0, 0, "tensor t has too many elements"},
        {4,
         {UINT64_C(1) << 16, UINT64_C(1) << 16, UINT64_C(1) << 16, UINT64_C(1) << 16},
         0,
         0,
         "tensor t has too many elements"},
        {1, {INT64_MAX}, 0, 0, "too large"},
        {1, {INT64_MAX}, 77, UINT64_MAX - 31, "truncated"},
        {1, {UINT64_C(1) << 61}, 0, 0, "truncated"},
        {2, {33, 32}, 2, 0, "rows of 33 elements"},
        {1, {128}, 12, 0, "rows of 128 elements are not a multiple of the 256 of a Q4_K block"},
        {1, {64}, 0, 32, "256 bytes at 32, but the file has only 256"},
        {1, {65}, 0, 0, "truncated"},
        {1, {1}, 0, 256, "truncated"},
        {1, {1}, 0, UINT64_MAX - 31, "truncated"},
        {1, {1}, 0, 1, "not a multiple of the alignment"},
        {1, {1}, 0, 252, "not a multiple of the alignment"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_buf b = {0};
        put_header(&b, 3, 1, 0);
        if (cases[i].n_dims <= 5) {
            put_tensor(&b, "t", cases[i].n_dims, cases[i].dims, cases[i].type, cases[i].offset);
        } else {
            put_string(&b, "t"), put_u32(&b, cases[i].n_dims);
            put_u64(&b, 1), put_u64(&b, 1), put_u64(&b, 1);
        }
        put_padding(&b, 32, 256);
        expect_refusal(&b, QN_E_FORMAT, cases[i].says);
    }
    static const uint64_t eight[] = {8};
    qn_buf b = {0};
    put_header(&b, 3, 2, 0), put_tensor(&b, "a", 1, eight, 0, 0), put_tensor(&b, "a", 1, eight, 0, 32);
    put_padding(&b, 32, 64);
    expect_refusal(&b, QN_E_FORMAT, "tensor a appears twice");
    put_header(&b, 3, 2, 0), put_tensor(&b, "a", 1, (const uint64_t[]){9}, 0, 0),
        put_tensor(&b, "b", 1, eight, 0, 32);
    put_padding(&b, 32, 64);
    expect_refusal(&b, QN_E_FORMAT, "tensors a and b overlap");
    put_header(&b, 3, 2, 0), put_tensor(&b, "a", 1, eight, 0, 0), put_tensor(&b, "b", 1, eight, 0, 0);
    put_padding(&b, 32, 64);
    expect_refusal(&b, QN_E_FORMAT, "overlap");
    put_header(&b, 3, 1, 0), put_tensor(&b, "", 1, eight, 0, 0), put_padding(&b, 32, 64);
    expect_refusal(&b, QN_E_FORMAT, "a tensor's name is empty");
    put_header(&b, 3, 1, 0), put_tensor(&b, "a", 1, eight, 0, 0);
    expect_refusal(&b, QN_E_FORMAT, "32 bytes at 0, but the file has only 0");
}

/* Every cut of a small file is refused. */
static void test_every_cut(void **state)
{
    qn_buf b = {0};
    put_header(&b, 3, 2, N_ALL_TYPES);
    put_all_types(&b);
    put_tensor(&b, "a", 2, (const uint64_t[]){32, 2}, 8, 0);
    put_tensor(&b, "b", 1, (const uint64_t[]){8}, 0, 96);
    put_padding(&b, 32, 128);
    qn_gguf_close(open_made(&b));
    for (size_t n = 0; n < b.length; n++) {
        qn_gguf *g = NULL;
        char *exact = qn_alloc(n); /* so that reading past the end is seen */
        memcpy(exact, b.data, n);
        assert_int_equal(qn_gguf_open_bytes("t", exact, n, &g), QN_E_FORMAT);
        assert_non_null(strstr(qn_last_error(), "is it truncated?"));
        assert_null(g);
        qn_free(exact);
    }
    qn_buf_free(&b);
}

/* A vocabulary of Gemma's size is walked at open and once more by its reader. */
static void test_many_strings(void **state)
{
    enum { N = 262144 };
    qn_buf b = {0};
    put_header(&b, 3, 0, 1);
    put_array(&b, "tokens", QN_GGUF_STRING, N);
    for (int i = 0; i < N; i++) {
        char text[32];
        snprintf(text, sizeof text, "token %d", i);
        put_string(&b, text);
    }
    int64_t n = 0, allocations = qn_mem_allocations();
    qn_gguf *g = open_made(&b);
    qn_gguf_strings it;
    assert_int_equal(qn_gguf_get_strings(g, "tokens", &it), QN_OK);
    size_t length = 0;
    for (qn_gguf_string s; qn_gguf_strings_next(&it, &s); n++) length += s.length;
    assert_true(qn_mem_allocations() - allocations < 32);
    assert_int_equal(n, N);
    assert_true(length > N * 7);
    qn_gguf_close(g);
    qn_buf_free(&b);
}

static void test_fixtures(void **state)
{
    static const char *const names[] = {"gemma3-Q4_0", "gemma3-Q8_0",  "llama-F32", "llama-Q4_K_M",
                                        "llama-Q8_0",  "qwen2-Q5_K_M", "qwen3-F16", "qwen3-Q4_K_M"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char relative[64];
        snprintf(relative, sizeof relative, "quant/gguf_models/%s.gguf", names[i]);
        const char *path = qn_test_need_fixture(relative);
        qn_gguf *g = NULL;
        if (qn_gguf_open(path, &g) != QN_OK) fail_msg("%s", qn_last_error());
        qn_gguf_string architecture;
        qn_gguf_strings tokens;
        assert_int_equal(qn_gguf_get_string(g, "general.architecture", &architecture), QN_OK);
        assert_memory_equal(architecture.data, names[i], architecture.length);
        assert_int_equal(qn_gguf_get_strings(g, "tokenizer.ggml.tokens", &tokens), QN_OK);
        const qn_tensor_view *v;
        assert_int_equal(qn_gguf_tensor(g, "token_embd.weight", &v), QN_OK);
        assert_int_equal(v->n_dims, 2);
        assert_int_equal(v->shape[0], tokens.left); /* slowest first: a row is a token */
        for (int64_t t = 0; t < qn_gguf_count(g); t++) assert_true(qn_gguf_get(g, t)->supported);
        qn_view_drop(v, 0, v->size_bytes);
        qn_gguf_close(g);
    }
}

static void test_no_memory(void **state)
{
    qn_buf b = {0};
    put_header(&b, 3, 2, N_ALL_TYPES);
    put_all_types(&b);
    put_tensor(&b, "a", 2, (const uint64_t[]){32, 2}, 8, 0);
    put_tensor(&b, "b", 1, (const uint64_t[]){8}, 77, 96);
    put_padding(&b, 32, 128);
    const char *folder = qn_test_scratch(), *path = qn_test_write(folder, "t.gguf", b.data, b.length);
    int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; n < 2000 && status != QN_OK; n++) {
        qn_gguf *g = NULL;
        qn_mem_fail_nth(n);
        status = qn_gguf_open(path, &g);
        qn_mem_fail_nth(0);
        if (status != QN_OK && status != QN_E_NOMEM) fail_msg("allocation %d: %s", n, qn_last_error());
        qn_gguf_close(g);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    qn_gguf_close(NULL);
    qn_test_remove(folder);
    qn_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_hostile_metadata),
        cmocka_unit_test(test_alignment_and_split),
        cmocka_unit_test(test_hostile_tensors),
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_many_strings),
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
