/* Folders of safetensors made to break whoever loads them, by the numbers of hostile_gguf_test.c:
 *   G11 headers and shard indices
 *   J1  deep JSON, in each file that is JSON */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "tests/hostile/hostile.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- G11 ---------------------------------------------------------------------------------------------- */

/* The golden llama with one file replaced. */
static void in_llama(const char *name, const void *bytes, size_t n, qn_status status, const char *pattern)
{
    char dir[QN_TEST_DIR_MAX];
    qn_test_model_copy(qn_test_need_fixture("models/llama"), NULL, NULL, dir);
    unlink(qn_test_path(dir, name));
    qn_test_write(dir, name, bytes, n);
    qn_test_refused(dir, "", status, pattern);
    qn_test_model_remove(dir);
}

static void safetensors(uint64_t length, const char *header, size_t n_data, const char *pattern)
{
    qn_buf b = {0};
    qn_buf_append(&b, &length, sizeof length), qn_buf_puts(&b, header);
    for (size_t i = 0; i < n_data; i++) qn_buf_putc(&b, 0);
    qn_test_write(qn_test_folder, "model.safetensors", b.data, b.length);
    qn_test_refused(qn_test_folder, "model.safetensors", QN_E_FORMAT, pattern);
    qn_buf_free(&b);
}

static void g11_header_lengths(void **state)
{
    static const uint64_t lengths[] = {100000001, UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX - 7,
                                       UINT64_MAX};
    for (size_t i = 0; i < COUNT(lengths); i++)
        safetensors(
            lengths[i], "{}", 0,
            "model.safetensors: a header of * bytes, at most 100000000 are allowed: not a safetensors file");
    safetensors(3, "{}", 0,
                "model.safetensors: a header of 3 bytes, but the file has only 10 (is it truncated?)");
    safetensors(
        100000000, "{}", 0,
        "model.safetensors: a header of 100000000 bytes, but the file has only 10 (is it truncated?)");
    safetensors(0, "{}", 0, "model.safetensors: the header is not JSON: not a safetensors file");
    safetensors(1, "{}", 0, "model.safetensors: byte 1: *");
    qn_test_write(qn_test_folder, "model.safetensors", "\1\0\0", 3);
    qn_test_refused(qn_test_folder, "model.safetensors", QN_E_FORMAT,
                    "model.safetensors: 3 bytes are too few for a safetensors file (is it truncated?)");
}

static void g11_tensors(void **state)
{
#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
    static const struct {
        const char *header;
        size_t n_data;
        const char *says;
    } cases[] = {
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12,
         "the data of tensors a and b overlap"},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "the data of tensors * and * overlap"},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16,
         "bytes 8 to 12 of the data, before tensor b, belong to no tensor"},
        {"{" A "}", 9, "the last 1 bytes belong to no tensor"},
        {"{" A "," A "}", 8, "tensor a appears twice"},
        {"{" A "}", 7,
         "tensor a: data up to byte 8, but the file has only 7 bytes of data (is it truncated?)"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
         "tensor a: F32 of shape [3] does not fill its 8 bytes"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "tensor a: F16 of shape [2] does not fill its 8 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,8]}}", 8,
         "tensor a: F32 of shape [0] does not fill its 8 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8,
         "tensor a: shape [4294967296, 4294967296] has too many elements"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387906],\"data_offsets\":[0,8]}}", 8,
         "tensor a: F32 of shape [4611686018427387906] does not fill its 8 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8,
         "byte *: expected a count (an integer that is not negative)"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8,
         "byte *: expected an integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "byte *: expected an array"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8,
         "tensor a: more than 8 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8,
         "tensor a: data_offsets [8, 0]: the end is before the beginning"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,18446744073709551616]}}", 8,
         "byte *: the number is too large"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[9223372036854775800,9223372036854775807]}"
         "}",
         8,
         "tensor a: data up to byte 9223372036854775807, but the file has only 8 bytes of data (is it "
         "truncated?)"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "tensor a: a complete data_offsets is missing"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "tensor a: dtype is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "tensor a: unexpected or repeated key \"dtype\""},
        {"{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "a tensor has an empty name"},
        {"{\"a\\u0000\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "byte *: bad escape in a string"},
    };
#undef A
    for (size_t i = 0; i < COUNT(cases); i++) {
        char says[256];
        snprintf(says, sizeof says, "model.safetensors: %s", cases[i].says);
        safetensors(strlen(cases[i].header), cases[i].header, cases[i].n_data, says);
    }
}

static void g11_index(void **state)
{
    static const struct {
        const char *file, *says;
    } cases[] = {
        {"../model.safetensors", "\"../model.safetensors\" is not the name of a file in the same folder"},
        {"/etc/passwd", "\"/etc/passwd\" is not the name of a file in the same folder"},
        {"sub/model.safetensors", "\"sub/model.safetensors\" is not the name of a file in the same folder"},
        {"..", "\"..\" is not the name of a file in the same folder"},
        {".", "\".\" is not the name of a file in the same folder"},
        {"", "\"\" is not the name of a file in the same folder"},
    };
    char text[256], says[256];
    static const char name[] = "model.safetensors.index.json";
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(text, sizeof text, "{\"weight_map\": {\"a\": \"%s\"}}", cases[i].file);
        snprintf(says, sizeof says, "%s: tensor a: %s", name, cases[i].says);
        in_llama(name, text, strlen(text), QN_E_FORMAT, says);
    }
    static const struct {
        const char *text;
        qn_status status;
        const char *says;
    } broken[] = {
        {"{\"weight_map\": {\"a\": \"b.safetensors\"}}", QN_E_IO,
         "b.safetensors: No such file or directory, which model.safetensors.index.json names: the model is "
         "incomplete, download the file again"},
        {"{\"weight_map\": {\"a\": \"model.safetensors\"}}", QN_E_FORMAT,
         "model.safetensors.index.json: tensor a is not in model.safetensors"},
        {"{\"weight_map\": {\"a\": 3}}", QN_E_FORMAT,
         "model.safetensors.index.json: byte *: expected a string"},
        {"{\"weight_map\": []}", QN_E_FORMAT, "model.safetensors.index.json: byte *: expected an object"},
        {"{\"weight_map\": {}}", QN_E_FORMAT, "model.safetensors.index.json: weight_map is missing or empty"},
        {"{}", QN_E_FORMAT, "model.safetensors.index.json: weight_map is missing or empty"},
        {"[]", QN_E_FORMAT, "model.safetensors.index.json: byte *: expected an object"},
        {"", QN_E_FORMAT, "model.safetensors.index.json: byte 0: expected an object"},
    };
    for (size_t i = 0; i < COUNT(broken); i++)
        in_llama(name, broken[i].text, strlen(broken[i].text), broken[i].status, broken[i].says);
}

/* ---- J1 ----------------------------------------------------------------------------------------------- */

static void j1_deep_json(void **state)
{
    enum { DEPTH = 100000 };
    static const struct {
        const char *name, *before, *says;
    } cases[] = {
        {"config.json", "{\"a\":", "config.json: JSON nested deeper than *"},
        {"generation_config.json", "{\"a\":", "generation_config.json: JSON nested deeper than *"},
        {"tokenizer.json", "{\"a\":", "tokenizer.json: *nested *"},
        {"tokenizer_config.json", "{\"a\":", "tokenizer_config.json: JSON nested deeper than *"},
        {"model.safetensors.index.json",
         "{\"a\":", "model.safetensors.index.json: byte *: JSON is nested too deeply"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int kind = 0; kind < 3; kind++) { /* brackets, braces with keys, and as many that end well */
            qn_buf b = {0};
            qn_buf_puts(&b, cases[i].before);
            for (int j = 0; j < DEPTH; j++) qn_buf_puts(&b, kind == 1 ? "{\"a\":" : "[");
            for (int j = 0; kind == 2 && j < DEPTH; j++) qn_buf_putc(&b, ']');
            if (kind == 2) qn_buf_putc(&b, '}');
            in_llama(cases[i].name, b.data, b.length, QN_E_FORMAT, cases[i].says);
            qn_buf_free(&b);
        }
    qn_buf b = {0};
    qn_buf_puts(&b, "{\"__metadata__\":{\"a\":");
    for (int j = 0; j < DEPTH; j++) qn_buf_putc(&b, '[');
    safetensors(b.length, b.data, 0, "model.safetensors: byte *: expected a string");
    qn_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        QN_TEST_IN_FOLDER(g11_header_lengths),
        QN_TEST_IN_FOLDER(g11_tensors),
        QN_TEST_IN_FOLDER(g11_index),
        QN_TEST_IN_FOLDER(j1_deep_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
