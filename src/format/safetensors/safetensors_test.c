#include "format/safetensors/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

/* A file of a header and n_data bytes that count up. */
static void make(qn_buf *b, const char *header, size_t n_data)
{
    uint64_t n = strlen(header);
    qn_buf_append(b, &n, sizeof n);
    qn_buf_append(b, header, (size_t)n);
    for (size_t i = 0; i < n_data; i++) qn_buf_putc(b, (char)i);
    assert_int_equal(b->status, QN_OK);
}

/* Opens header + data; NULL when refused. */
static qn_safetensors *open_made(const char *header, size_t n_data, qn_buf *b)
{
    qn_safetensors *s = NULL;
    make(b, header, n_data);
    qn_status status = qn_safetensors_open_bytes("t.safetensors", b->data, b->length, &s);
    assert_int_equal(status == QN_OK, s != NULL);
    return s;
}

#define ONE "\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]"

static void test_read(void **state)
{
    qn_buf b = {0};
    qn_safetensors *s = open_made("{", 0, &b);
    assert_null(s);
    qn_buf_reset(&b);
    s = open_made("{\"__metadata__\": null, \"a\":{" ONE "}}", 24, &b);
    assert_non_null(s);
    assert_int_equal(qn_safetensors_count(s), 1);
    assert_null(qn_safetensors_metadata(s, "k"));
    qn_safetensors_close(s);
    qn_buf_reset(&b);
    s = open_made("{\"__metadata__\":{\"k\":\"v\",\"a\\u00e9\\ud83d\\ude00\\n\":\"\"},"
                  "\"b\":{\"shape\":[2,3],\"data_offsets\":[2,26],\"dtype\":\"F32\"},"
                  "\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]},"
                  "\"odd\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[26,29]},"
                  "\"none\":{\"dtype\":\"I64\",\"shape\":[5,0],\"data_offsets\":[29,29]}}   ",
                  29, &b);
    assert_non_null(s);
    assert_int_equal(qn_safetensors_count(s), 4);
    assert_string_equal(qn_safetensors_metadata(s, "k"), "v");
    assert_string_equal(qn_safetensors_metadata(s, "a\xc3\xa9\xf0\x9f\x98\x80\n"), "");
    assert_null(qn_safetensors_metadata(s, "x"));
    const char *key, *value;
    assert_true(qn_safetensors_metadata_at(s, 1, &key, &value));
    assert_false(qn_safetensors_metadata_at(s, 2, &key, &value));
    const qn_tensor_view *v = qn_safetensors_get(s, 0);
    char text[64];
    assert_string_equal(v->name, "b");
    assert_string_equal(v->file, "t.safetensors");
    assert_int_equal(v->dtype, QN_DTYPE_F32);
    assert_string_equal(qn_view_shape_text(v, text, sizeof text), "[2, 3]");
    assert_int_equal(v->n_elements, 6);
    assert_int_equal(v->size_bytes, 24);
    assert_int_equal(*(const uint8_t *)v->data, 2);
    assert_int_equal(qn_safetensors_tensor(s, "a", &v), QN_OK);
    assert_int_equal(v->n_elements, 1);
    assert_string_equal(qn_view_shape_text(v, text, sizeof text), "[]");
    assert_int_equal(qn_safetensors_tensor(s, "none", &v), QN_OK);
    assert_int_equal(v->n_elements, 0);
    assert_int_equal(qn_safetensors_tensor(s, "odd", &v), QN_E_UNSUPPORTED);
    assert_string_equal(qn_last_error(), "t.safetensors: tensor odd: type F8_E4M3 is not supported");
    assert_int_equal(qn_safetensors_tensor(s, "c", &v), QN_E_NOT_FOUND);
    assert_string_equal(qn_last_error(), "t.safetensors: there is no tensor c");
    qn_safetensors_close(s);
    qn_buf_free(&b);
}

static void test_hostile_headers(void **state)
{
    static const struct {
        const char *header;
        size_t n_data;
        const char *says;
    } cases[] = {
        {"", 0, "not JSON"},
        {"[]", 0, "not JSON"},
        {" {}", 0, "not JSON"},
        {"{", 0, "expected a string"},
        {"{}x", 0, "more text"},
        {"{}", 1, "belong to no tensor"},
        {"{\"a\":1}", 0, "expected an object"},
        {"{\"a\":{}}", 0, "dtype is missing"},
        {"{\"\":{" ONE "}}", 24, "empty name"},
        {"{\"a\":{" ONE "},\"a\":{" ONE "}}", 24, "appears twice"},
        {"{\"a\":{" ONE "},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[24,25]}}", 25,
         "a appears twice"},
        {"{\"a\":{" ONE "},\"b\":{" ONE "}}", 24, "tensors a and b overlap"},
        {"{\"a\":{" ONE "},\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[20,28]}}", 28, "overlap"},
        {"{\"a\":{" ONE "},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[26,28]}}", 28,
         "before tensor b"},
        {"{\"a\":{" ONE "}}", 23, "truncated"},
        {"{\"a\":{" ONE "}}", 25, "last 1 bytes"},
        {"{\"a\":{" ONE ",\"dtype\":\"F32\"}}", 24, "repeated key \"dtype\""},
        {"{\"a\":{" ONE ",\"more\":1}}", 24, "unexpected or repeated key \"more\""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[24,0]}}", 24,
         "end is before the beginning"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0]}}", 24, "data_offsets is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24,24]}}", 24, "more than 2"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[-1,24]}}", 24, "expected a count"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,18446744073709551615]}}", 24,
         "too large"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,9223372036854775807]}}", 24,
         "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[0,24]}}", 24, "F32 of shape [2, 4]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,-3],\"data_offsets\":[0,24]}}", 24, "expected a count"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0,3],\"data_offsets\":[0,24]}}", 24, "expected an integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1e3],\"data_offsets\":[0,24]}}", 24, "expected an integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[02,3],\"data_offsets\":[0,24]}}", 24, "leading zero"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
         "too many elements"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2],\"data_offsets\":[0,0]}}", 0,
         "too many elements"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
         "does not fill"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
         "more than 8 dimensions"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "expected a string"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}", 1, "expected a count"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,],\"data_offsets\":[0,1]}}", 1, "expected a count"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1 1],\"data_offsets\":[0,1]}}", 1, "expected ','"},
        {"{\"a\\u0000b\":{" ONE "}}", 24, "bad escape"},
        {"{\"a\\ud800\":{" ONE "}}", 24, "bad escape"},
        {"{\"a\xff\":{" ONE "}}", 24, "invalid UTF-8"},
        {"{\"a\n\":{" ONE "}}", 24, "control character"},
        {"{\"a", 24, "does not end"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "expected a string"},
        {"{\"__metadata__\":nul}", 0, "expected an object"},
        {"{\"__metadata__\":nulls}", 0, "expected ',' or '}'"},
        {"{\"__metadata__\":null,\"__metadata__\":null}", 0, "__metadata__ appears twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ appears twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_buf b = {0};
        qn_safetensors *s = open_made(cases[i].header, cases[i].n_data, &b);
        if (s) fail_msg("case %zu was accepted: %s", i, cases[i].header);
        if (strncmp(qn_last_error(), "t.safetensors: ", 15) != 0 || !strstr(qn_last_error(), cases[i].says))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, qn_last_error(), cases[i].says);
        qn_buf_free(&b);
    }
}

static void test_hostile_lengths(void **state)
{
    static const uint64_t lengths[] = {3,          100000000,     100000001, UINT64_C(1) << 63,
                                       UINT64_MAX, UINT64_MAX - 7};
    qn_safetensors *s = NULL;
    char bytes[10] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    assert_int_equal(qn_safetensors_open_bytes("t", bytes, 10, &s), QN_OK);
    qn_safetensors_close(s);
    s = NULL;
    for (size_t n = 0; n < 10; n++)
        assert_int_equal(qn_safetensors_open_bytes("t", bytes, n, &s), QN_E_FORMAT);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(bytes, &lengths[i], sizeof lengths[i]);
        assert_int_equal(qn_safetensors_open_bytes("t", bytes, sizeof bytes, &s), QN_E_FORMAT);
    }
    assert_null(s);
}

/* Deep nesting is refused where a value is expected, without recursion. */
static void test_deep_and_many(void **state)
{
    qn_buf header = {0}, b = {0};
    qn_buf_puts(&header, "{\"a\":{\"shape\":");
    for (int i = 0; i < 1000000; i++) qn_buf_putc(&header, '[');
    assert_null(open_made(header.data, 0, &b));
    qn_buf_reset(&header);
    qn_buf_reset(&b);
    qn_buf_putc(&header, '{');
    for (int i = 0; i < 50000; i++)
        qn_buf_printf(&header,
                      "%s\"model.layers.%d.mlp.experts.%d.down_proj.weight\":{\"dtype\":\"U8\",\"shape\":[1],"
                      "\"data_offsets\":[%d,%d]}",
                      i ? "," : "", i / 100, i % 100, 49999 - i, 50000 - i);
    qn_buf_putc(&header, '}');
    clock_t start = clock(); /* of this process: a busy machine does not count */
    qn_safetensors *s = open_made(header.data, 50000, &b);
    assert_non_null(s);
    assert_true(clock() - start < 10 * CLOCKS_PER_SEC);
    const qn_tensor_view *v = qn_safetensors_find(s, "model.layers.499.mlp.experts.98.down_proj.weight");
    assert_non_null(v);
    assert_int_equal(*(const uint8_t *)v->data, 1);
    qn_safetensors_close(s);
    qn_buf_free(&b);
    qn_buf_free(&header);
}

static void test_fixtures(void **state)
{
    static const char *const files[] = {"models/llama/model.safetensors", "models/llama/expected.safetensors",
                                        "models/gemma4/model.safetensors", "real/smollm2.safetensors",
                                        "quant/mlx_models/qwen2-mxfp4/model.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = qn_test_fixture(files[i]);
        if (!path) continue;
        qn_safetensors *s = NULL;
        if (qn_safetensors_open(path, &s) != QN_OK) fail_msg("%s", qn_last_error());
        assert_true(qn_safetensors_count(s) > 0);
        qn_view_drop(qn_safetensors_get(s, 0), 0, SIZE_MAX);
        qn_safetensors_close(s);
    }
    qn_test_need_fixture(files[0]);
}

/* Two tensors of which blocks come interleaved. */
static qn_status write_two(const char *path, int finish)
{
    const float rows[4] = {1, 2, 3, 4};
    const uint16_t halves[3] = {5, 6, 7};
    qn_st_writer *w = NULL;
    int64_t a, c;
    qn_status status = qn_st_writer_new(path, &w);
    if (status == QN_OK) status = qn_st_writer_metadata(w, "made \"by\"", "a test\n");
    if (status == QN_OK) status = qn_st_writer_add(w, "a", QN_DTYPE_F32, 2, (const int64_t[]){2, 2}, &a);
    if (status == QN_OK) status = qn_st_writer_add(w, "b", QN_DTYPE_F32, 1, (const int64_t[]){0}, NULL);
    if (status == QN_OK)
        status = qn_st_writer_add(w, "c\xc3\xa9", QN_DTYPE_BF16, 1, (const int64_t[]){3}, &c);
    if (status == QN_OK) status = qn_st_writer_begin(w);
    if (status == QN_OK) status = qn_st_writer_write(w, a, 8, rows + 2, 8);
    if (status == QN_OK) status = qn_st_writer_write(w, c, 0, halves, 6);
    if (status == QN_OK) status = qn_st_writer_write(w, a, 0, rows, 8);
    if (status == QN_OK && finish) status = qn_st_writer_finish(w);
    qn_st_writer_free(w);
    return status;
}

static void test_write(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "out.safetensors");
    assert_int_equal(write_two(path, 0), QN_OK);
    assert_int_equal(qn_test_count_files(folder), 0);
    for (int round = 0; round < 2; round++) { /* the second replaces the first */
        assert_int_equal(write_two(path, 1), QN_OK);
        assert_int_equal(qn_test_count_files(folder), 1);
        qn_safetensors *s = NULL;
        assert_int_equal(qn_safetensors_open(path, &s), QN_OK);
        assert_int_equal(qn_safetensors_count(s), 3);
        assert_string_equal(qn_safetensors_metadata(s, "made \"by\""), "a test\n");
        const float rows[4] = {1, 2, 3, 4};
        const qn_tensor_view *v = qn_safetensors_find(s, "a");
        assert_int_equal((uintptr_t)v->data % 8, 0);
        assert_memory_equal(v->data, rows, sizeof rows);
        v = qn_safetensors_find(s, "c\xc3\xa9");
        assert_int_equal(v->dtype, QN_DTYPE_BF16);
        assert_memory_equal(v->data, ((const uint16_t[]){5, 6, 7}), 6);
        qn_safetensors_close(s);
    }
    /* A link stays a link, its target is replaced. */
    const char *link = qn_test_path(folder, "link");
    assert_int_equal(symlink("out.safetensors", link), 0);
    assert_int_equal(write_two(link, 1), QN_OK);
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    qn_test_remove(folder);
}

static void test_write_misuse(void **state)
{
    const char *folder = qn_test_scratch();
    qn_st_writer *w;
    int64_t two[2] = {2, 2}, negative[2] = {2, -2}, huge[2] = {INT64_MAX, 2}, nine[9] = {0};
    assert_int_equal(qn_st_writer_new(qn_test_path(folder, "o"), &w), QN_OK);
    assert_int_equal(qn_st_writer_add(w, "a", QN_DTYPE_Q4_0, 2, two, NULL), QN_E_ARG);
    assert_int_equal(qn_st_writer_add(w, "a", QN_DTYPE_F32, 2, negative, NULL), QN_E_ARG);
    assert_int_equal(qn_st_writer_add(w, "a", QN_DTYPE_F32, 2, huge, NULL), QN_E_ARG);
    assert_int_equal(qn_st_writer_add(w, "a", QN_DTYPE_F32, 9, nine, NULL), QN_E_ARG);
    assert_int_equal(qn_st_writer_add(w, "", QN_DTYPE_F32, 2, two, NULL), QN_E_ARG);
    assert_int_equal(qn_st_writer_add(w, "\xff", QN_DTYPE_F32, 2, two, NULL), QN_E_ARG);
    assert_int_equal(qn_st_writer_add(w, "__metadata__", QN_DTYPE_F32, 2, two, NULL), QN_E_ARG);
    assert_int_equal(qn_st_writer_add(w, "a", QN_DTYPE_F32, 2, two, NULL), QN_OK);
    assert_int_equal(qn_st_writer_add(w, "a", QN_DTYPE_F32, 2, two, NULL), QN_E_ARG);
    assert_int_equal(qn_st_writer_write(w, 0, 0, two, 4), QN_E_ARG);
    assert_int_equal(qn_st_writer_finish(w), QN_E_ARG);
    assert_int_equal(qn_st_writer_begin(w), QN_OK);
    assert_int_equal(qn_st_writer_begin(w), QN_E_ARG);
    assert_int_equal(qn_st_writer_add(w, "b", QN_DTYPE_F32, 2, two, NULL), QN_E_ARG);
    assert_int_equal(qn_st_writer_write(w, 1, 0, two, 4), QN_E_ARG);
    assert_int_equal(qn_st_writer_write(w, -1, 0, two, 4), QN_E_ARG);
    assert_int_equal(qn_st_writer_write(w, 0, 8, two, 16), QN_E_ARG);
    assert_int_equal(qn_st_writer_write(w, 0, SIZE_MAX, two, 16), QN_E_ARG);
    assert_int_equal(qn_st_writer_write(w, 0, 0, two, 12), QN_OK);
    assert_int_equal(qn_st_writer_finish(w), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "tensor a: 12 of 16 bytes"));
    qn_st_writer_free(w);
    qn_st_writer_free(NULL);
    assert_int_equal(qn_test_count_files(folder), 0);
    assert_int_equal(write_two(folder, 1), QN_E_IO);
    assert_int_equal(write_two(qn_test_path(folder, "absent/o"), 1), QN_E_IO);
    qn_test_remove(folder);
}

/* A write that fails in the middle leaves nothing, and what stood there before stays. */
static void test_disk_full(void **state)
{
    assert_int_equal(write_two("/dev/full", 1), QN_E_IO);
    assert_ptr_equal(strstr(qn_last_error(), "/dev/full: "), qn_last_error());
    const char *folder = qn_test_scratch(), *path = qn_test_write_text(folder, "o", "before");
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 260; limit += 20) {
        small = (struct rlimit){limit, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        qn_status status = write_two(path, 1);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status, QN_E_IO);
        assert_ptr_equal(strstr(qn_last_error(), path), qn_last_error());
        assert_int_equal(qn_test_count_files(folder), 1);
    }
    signal(SIGXFSZ, handler);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 6);
    qn_test_remove(folder);
}

static void test_no_memory(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "o");
    int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; n < 2000 && status != QN_OK; n++) {
        qn_safetensors *s = NULL;
        qn_mem_fail_nth(n);
        status = write_two(path, 1);
        if (status == QN_OK) status = qn_safetensors_open(path, &s);
        qn_mem_fail_nth(0);
        if (status != QN_OK && status != QN_E_NOMEM) fail_msg("allocation %d: %s", n, qn_last_error());
        qn_safetensors_close(s);
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_true(qn_test_count_files(folder) <= 1);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_hostile_lengths),
        cmocka_unit_test(test_deep_and_many),
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_write_misuse),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
