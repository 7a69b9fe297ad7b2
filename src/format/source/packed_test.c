/* Files of packed weights: written and read back, every way in which one may not fit or be damaged, the
 * fingerprint, and where the file lies. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "format/source/packed.h"
#include "tests/support/scratch.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static const qn_packed_key key = {"cpu", 3, 0x0123456789abcdef};
enum { SIZE_A = 100, SIZE_B = 256, N_NORM = 5 };

static void refused(qn_status got, qn_status want, const char *words)
{
    assert_int_equal(got, want);
    if (!strstr(qn_last_error(), words)) fail_msg("'%s' is not in: %s", words, qn_last_error());
}

static qn_status write_one(const char *path)
{
    char bytes[SIZE_B];
    const float norm[N_NORM] = {1, 2, 3, 4, 5};
    qn_st_writer *w;
    for (int i = 0; i < SIZE_B; i++) bytes[i] = (char)i;
    QN_TRY(qn_packed_writer_new(path, &key, "folder/model.gguf", &w));
    qn_status status = qn_packed_add_matrix(w, "a", SIZE_A, NULL);
    if (status == QN_OK) status = qn_packed_add_matrix(w, "b", SIZE_B, NULL);
    if (status == QN_OK) status = qn_packed_add_vector(w, "norm", N_NORM, NULL);
    if (status == QN_OK) status = qn_st_writer_begin(w);
    if (status == QN_OK) status = qn_st_writer_write(w, 0, 0, bytes, 128);
    if (status == QN_OK) status = qn_st_writer_write(w, 1, 0, bytes, SIZE_B);
    if (status == QN_OK) status = qn_st_writer_write(w, 2, 0, norm, sizeof norm);
    if (status == QN_OK) status = qn_st_writer_finish(w);
    qn_st_writer_free(w);
    return status;
}

static void comes_back(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "model.gguf.qpack");
    qn_packed *p;
    const void *m;
    const float *v;
    OK(write_one(path));
    OK(qn_packed_open(path, &p));
    assert_string_equal(qn_packed_get_key(p)->device, "cpu");
    assert_int_equal(qn_packed_get_key(p)->layout, 3);
    assert_true(qn_packed_get_key(p)->fingerprint == key.fingerprint);
    assert_string_equal(qn_packed_source(p), "folder/model.gguf");
    assert_int_equal(qn_packed_bytes(p), 128 + SIZE_B + N_NORM * 4);
    OK(qn_packed_check(p, &key));
    OK(qn_packed_matrix(p, "a", SIZE_A, &m));
    assert_int_equal((uintptr_t)m % QN_PACKED_ALIGN, 0);
    assert_int_equal(((const uint8_t *)m)[99], 99);
    OK(qn_packed_matrix(p, "b", SIZE_B, &m));
    assert_int_equal(((const uint8_t *)m)[255], 255);
    OK(qn_packed_vector(p, "norm", N_NORM, &v));
    assert_true(v[4] == 5);
    refused(qn_packed_matrix(p, "c", SIZE_A, &m), QN_E_FORMAT, "tensor c: missing");
    refused(qn_packed_matrix(p, "a", SIZE_B, &m), QN_E_FORMAT, "size");
    refused(qn_packed_matrix(p, "a", SIZE_MAX, &m), QN_E_ARG, "too many");
    refused(qn_packed_matrix(p, "norm", SIZE_A, &m), QN_E_FORMAT, "size");
    refused(qn_packed_vector(p, "norm", N_NORM + 1, &v), QN_E_FORMAT, "does not match the model's vector");
    refused(qn_packed_vector(p, "a", 32, &v), QN_E_FORMAT, "does not match the model's vector");
    const qn_packed_key others[] = {{"cuda", 3, key.fingerprint}, {"cpu", 4, key.fingerprint}, {"cpu", 3, 1}};
    static const char *const words[] = {"for the device cpu", "version 3", "another model"};
    for (int i = 0; i < 3; i++) refused(qn_packed_check(p, &others[i]), QN_E_UNSUPPORTED, words[i]);
    qn_packed_close(p);
    qn_test_remove(folder);
}

/* Every byte of the header flipped, every length: refused with the path, or what is given is sound. */
static void damaged(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.qpack");
    char *text;
    size_t n;
    OK(write_one(path));
    OK(qn_file_read(path, 1 << 20, &text, &n));
    for (size_t length = 0; length < n; length++) {
        qn_packed *p;
        qn_status status = qn_packed_open_bytes("cut.qpack", text, length, &p);
        refused(status, QN_E_FORMAT, "cut.qpack");
    }
    size_t header = n - (128 + SIZE_B + N_NORM * 4);
    for (size_t i = 0; i < header; i++)
        for (int bit = 0; bit < 8; bit++) {
            qn_packed *p;
            const void *m;
            text[i] = (char)(text[i] ^ 1 << bit);
            if (qn_packed_open_bytes("bent.qpack", text, n, &p) == QN_OK) {
                if (qn_packed_matrix(p, "b", SIZE_B, &m) == QN_OK)
                    assert_true((const char *)m >= text && (const char *)m + SIZE_B <= text + n);
                qn_packed_close(p);
            }
            text[i] = (char)(text[i] ^ 1 << bit);
        }
    qn_free(text);
    qn_packed *p;
    assert_int_equal(qn_packed_open(qn_test_path(folder, "none.qpack"), &p), QN_E_IO);
    qn_test_remove(folder);
}

/* ---- sources ------------------------------------------------------------------------------------------ */

static void write_source(const char *path, float last)
{
    float *values = qn_calloc(4096, sizeof *values);
    qn_st_writer *w;
    assert_non_null(values);
    values[4095] = last;
    OK(qn_st_writer_new(path, &w));
    OK(qn_st_writer_add(w, "w", QN_DTYPE_F32, 2, (int64_t[]){64, 64}, NULL));
    OK(qn_st_writer_begin(w));
    OK(qn_st_writer_write(w, 0, 0, values, 4096 * sizeof *values));
    OK(qn_st_writer_finish(w));
    qn_st_writer_free(w);
    qn_free(values);
}

static uint64_t print_of(const char *path)
{
    qn_source *s;
    uint64_t print;
    OK(qn_source_open(path, NULL, &s));
    OK(qn_packed_fingerprint(s, &print));
    qn_source_close(s);
    return print;
}

static void fingerprints(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "model.safetensors");
    write_source(path, 0);
    uint64_t first = print_of(path);
    assert_true(print_of(path) == first && print_of(folder) == first);
    write_source(path, 1); /* the last value of a tensor */
    uint64_t second = print_of(path);
    assert_true(second != first);
    qn_test_write_text(folder, "config.json", "{}");
    assert_true(print_of(path) != second);
    qn_test_remove(folder);
}

static void places(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "model.safetensors");
    qn_source *s;
    qn_buf b = {0};
    write_source(path, 0);
    OK(qn_source_open(folder, NULL, &s));
    OK(qn_packed_find_place(s, QN_PACKED_BESIDE, &b));
    assert_string_equal(b.data, qn_test_path(folder, "model.safetensors.qpack"));
    qn_buf_reset(&b);
    setenv("QUERN_CACHE", "/cache", 1);
    OK(qn_packed_find_place(s, QN_PACKED_ELSEWHERE, &b));
    assert_true(strncmp(b.data, "/cache/packed/model.safetensors-", 32) == 0 && qn_packed_is_name(b.data));
    qn_buf_free(&b);
    unsetenv("QUERN_CACHE");
    qn_source_close(s);
    assert_true(!qn_packed_is_name(".qpack") && !qn_packed_is_name("a.gguf"));
    qn_test_remove(folder);
}

static void memory_runs_out(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.qpack");
    int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; status != QN_OK && n < 2000; n++) {
        qn_packed *p = NULL;
        qn_mem_fail_nth(n);
        status = write_one(path);
        if (status == QN_OK) status = qn_packed_open(path, &p);
        qn_mem_fail_nth(0);
        qn_packed_close(p);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    assert_int_equal(qn_test_count_files(folder), 1);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back), cmocka_unit_test(damaged),         cmocka_unit_test(fingerprints),
        cmocka_unit_test(places),     cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
