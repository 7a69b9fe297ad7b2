/* What the writer writes the reader reads: every kind of value, tensors of every type, any alignment, and
 * whole files copied pair by pair; misuse is refused by name; and a full disk, a missing folder or no memory
 * leave what was there before. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include "format/gguf/gguf_writer.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "quant/types.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

static void ok(qn_status status)
{
    if (status != QN_OK) fail_msg("%s: %s", qn_status_name(status), qn_last_error());
}

static void refused(qn_status status, const char *words)
{
    if (status != QN_E_ARG || !strstr(qn_last_error(), words))
        fail_msg("%s: %s, expected \"%s\"", qn_status_name(status), qn_last_error(), words);
}

/* ---- a file of our own --------------------------------------------------------------------------------- */

static const float ones[64] = {1, 2, 3, [63] = 64};

static qn_status put_all(qn_gguf_writer *w)
{
    static const int32_t numbers[] = {-1, 0, 7};
    static const int64_t one[] = {5}, matrix[] = {3, 64};
    uint8_t block[34] = {1, 60};
    QN_TRY(qn_gguf_writer_text(w, "general.architecture", "llama", 5));
    QN_TRY(qn_gguf_writer_u32(w, "general.alignment", 64));
    QN_TRY(qn_gguf_writer_f32(w, "a.float", 0.25f));
    QN_TRY(qn_gguf_writer_bool(w, "a.bool", 4));
    QN_TRY(qn_gguf_writer_array(w, "a.numbers", QN_GGUF_I32, 3, numbers));
    QN_TRY(qn_gguf_writer_array(w, "a.nothing", QN_GGUF_F32, 0, NULL));
    QN_TRY(qn_gguf_writer_texts(w, "a.texts", 2));
    QN_TRY(qn_gguf_writer_next(w, "", 0));
    QN_TRY(qn_gguf_writer_next(w, "a\0b", 3));
    QN_TRY(qn_gguf_writer_add(w, "v", QN_DTYPE_F32, 1, one, NULL));
    QN_TRY(qn_gguf_writer_add(w, "m", QN_DTYPE_Q8_0, 2, matrix, NULL));
    QN_TRY(qn_gguf_writer_add(w, "h", QN_DTYPE_F16, 2, matrix, NULL));
    QN_TRY(qn_gguf_writer_begin(w));
    QN_TRY(qn_gguf_writer_write(w, 2, 128, ones, 256));
    for (size_t i = 0; i < 6; i++) QN_TRY(qn_gguf_writer_write(w, 1, i * sizeof block, block, sizeof block));
    QN_TRY(qn_gguf_writer_write(w, 2, 0, ones, 128));
    return qn_gguf_writer_write(w, 0, 0, ones, 20);
}

static qn_status write_all(const char *path)
{
    qn_gguf_writer *w = NULL;
    QN_TRY(qn_gguf_writer_new(path, &w));
    qn_status status = put_all(w);
    if (status == QN_OK) status = qn_gguf_writer_finish(w);
    qn_gguf_writer_free(w);
    return status;
}

static void is_read(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "o.gguf");
    qn_gguf *g;
    qn_gguf_string s;
    qn_gguf_strings it;
    double real;
    int flag;
    int64_t n, numbers[3];
    ok(write_all(path));
    ok(write_all(path)); /* over the older one */
    ok(qn_gguf_open(path, &g));
    assert_int_equal(qn_gguf_version(g), 3);
    assert_int_equal(qn_gguf_value_count(g), 7);
    ok(qn_gguf_get_f64(g, "a.float", 0, 1, &real));
    assert_true(real == 0.25);
    ok(qn_gguf_get_bool(g, "a.bool", &flag));
    assert_int_equal(flag, 1);
    ok(qn_gguf_get_i64s(g, "a.numbers", -9, 9, 3, numbers));
    assert_true(numbers[0] == -1 && numbers[2] == 7);
    ok(qn_gguf_get_array_count(g, "a.nothing", &n));
    assert_int_equal(n, 0);
    ok(qn_gguf_get_strings(g, "a.texts", &it));
    assert_true(qn_gguf_strings_next(&it, &s) && s.length == 0);
    assert_true(qn_gguf_strings_next(&it, &s) && s.length == 3 && memcmp(s.data, "a\0b", 3) == 0);
    assert_int_equal(qn_gguf_count(g), 3);
    const qn_tensor_view *m = qn_gguf_find(g, "m"), *h = qn_gguf_find(g, "h"), *v = qn_gguf_find(g, "v");
    assert_true(m->dtype == QN_DTYPE_Q8_0 && m->n_dims == 2 && m->shape[0] == 3 && m->shape[1] == 64);
    assert_int_equal(((const uint8_t *)m->data)[171], 60);
    assert_int_equal(memcmp(h->data, ones, 128), 0);
    assert_int_equal(memcmp((const char *)h->data + 128, ones, 256), 0);
    assert_int_equal(memcmp(v->data, ones, 20), 0);
    const char *begin = (const char *)v->data - 20;
    assert_true(((const char *)m->data - begin - 20) % 64 == 0 &&
                ((const char *)h->data - begin - 20) % 64 == 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size % 64, 0);
    qn_gguf_close(g);
    assert_int_equal(qn_test_count_files(folder), 1);
    qn_test_remove(folder);
}

/* ---- files of others ----------------------------------------------------------------------------------- */

static void copies(void **state)
{
    static const char *const names[] = {"llama-F32",    "llama-Q4_K_M", "llama-Q8_0",  "qwen2-Q5_K_M",
                                        "qwen3-Q4_K_M", "qwen3-F16",    "gemma3-Q4_0", "gemma3-Q8_0"};
    const char *folder = qn_test_scratch();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char file[64];
        snprintf(file, sizeof file, "quant/gguf_models/%s.gguf", names[i]);
        const char *from = i ? qn_test_fixture(file) : qn_test_need_fixture(file);
        if (!from) continue;
        const char *to = qn_test_path(folder, names[i]);
        qn_gguf *a, *b;
        qn_gguf_writer *w;
        ok(qn_gguf_open(from, &a));
        ok(qn_gguf_writer_new(to, &w));
        for (int64_t k = 0; k < qn_gguf_value_count(a); k++)
            ok(qn_gguf_writer_copy(w, qn_gguf_value_get(a, k)));
        for (int64_t k = 0; k < qn_gguf_count(a); k++) {
            const qn_tensor_view *v = qn_gguf_get(a, k);
            ok(qn_gguf_writer_add(w, v->name, v->dtype, v->n_dims, v->shape, NULL));
        }
        ok(qn_gguf_writer_begin(w));
        for (int64_t k = qn_gguf_count(a) - 1; k >= 0; k--)
            ok(qn_gguf_writer_write(w, k, 0, qn_gguf_get(a, k)->data, qn_gguf_get(a, k)->size_bytes));
        ok(qn_gguf_writer_finish(w));
        qn_gguf_writer_free(w);
        ok(qn_gguf_open(to, &b));
        assert_int_equal(qn_gguf_value_count(a), qn_gguf_value_count(b));
        assert_int_equal(qn_gguf_count(a), qn_gguf_count(b));
        for (int64_t k = 0; k < qn_gguf_value_count(a); k++) {
            const qn_gguf_value *x = qn_gguf_value_get(a, k), *y = qn_gguf_value_get(b, k);
            assert_string_equal(x->key, y->key);
            assert_true(x->type == y->type && x->element_type == y->element_type && x->count == y->count);
            assert_int_equal(x->size_bytes, y->size_bytes);
            assert_memory_equal(x->data, y->data, x->size_bytes);
        }
        for (int64_t k = 0; k < qn_gguf_count(a); k++) {
            const qn_tensor_view *x = qn_gguf_get(a, k), *y = qn_gguf_get(b, k);
            assert_string_equal(x->name, y->name);
            assert_int_equal(x->dtype, y->dtype);
            assert_memory_equal(x->shape, y->shape, sizeof x->shape);
            assert_memory_equal(x->data, y->data, x->size_bytes);
        }
        qn_gguf_close(a);
        qn_gguf_close(b);
    }
    qn_test_remove(folder);
}

/* ---- misuse -------------------------------------------------------------------------------------------- */

static void is_refused(qn_status (*put)(qn_gguf_writer *w), const char *words)
{
    qn_gguf_writer *w;
    ok(qn_gguf_writer_new("none.gguf", &w));
    refused(put(w), words);
    refused(qn_gguf_writer_begin(w), words); /* told again, and nothing is made */
    qn_gguf_writer_free(w);
}

static qn_status twice(qn_gguf_writer *w)
{
    qn_gguf_writer_u32(w, "k", 1);
    return qn_gguf_writer_bool(w, "k", 1);
}

static qn_status no_key(qn_gguf_writer *w)
{
    return qn_gguf_writer_u32(w, "", 1);
}

static qn_status bad_key(qn_gguf_writer *w)
{
    return qn_gguf_writer_u32(w, "\xff", 1);
}

static qn_status odd_alignment(qn_gguf_writer *w)
{
    return qn_gguf_writer_u32(w, "general.alignment", 24);
}

static qn_status texts_missing(qn_gguf_writer *w)
{
    qn_gguf_writer_texts(w, "k", 2);
    qn_gguf_writer_next(w, "a", 1);
    return qn_gguf_writer_u32(w, "l", 1);
}

static qn_status texts_more(qn_gguf_writer *w)
{
    return qn_gguf_writer_next(w, "a", 1);
}

static qn_status of_texts(qn_gguf_writer *w)
{
    return qn_gguf_writer_array(w, "k", QN_GGUF_STRING, 1, "a");
}

static qn_status no_type(qn_gguf_writer *w)
{
    return qn_gguf_writer_add(w, "t", QN_DTYPE_U8, 1, (const int64_t[]){4}, NULL);
}

static qn_status no_dims(qn_gguf_writer *w)
{
    return qn_gguf_writer_add(w, "t", QN_DTYPE_F32, 0, NULL, NULL);
}

static qn_status empty_dim(qn_gguf_writer *w)
{
    return qn_gguf_writer_add(w, "t", QN_DTYPE_F32, 2, (const int64_t[]){4, 0}, NULL);
}

static qn_status part_of_block(qn_gguf_writer *w)
{
    return qn_gguf_writer_add(w, "t", QN_DTYPE_Q4_0, 2, (const int64_t[]){32, 40}, NULL);
}

static qn_status too_large(qn_gguf_writer *w)
{
    return qn_gguf_writer_add(w, "t", QN_DTYPE_F32, 2, (const int64_t[]){1ll << 40, 1ll << 30}, NULL);
}

static void misuse(void **state)
{
    qn_gguf_writer *w;
    const char *folder = qn_test_scratch();
    is_refused(twice, "k appears twice");
    is_refused(no_key, "empty");
    is_refused(bad_key, "UTF-8");
    is_refused(odd_alignment, "24");
    is_refused(texts_missing, "before the end");
    is_refused(texts_more, "more strings");
    is_refused(of_texts, "string");
    is_refused(no_type, "u8");
    is_refused(no_dims, "0 dimensions");
    is_refused(empty_dim, "invalid shape");
    is_refused(part_of_block, "40");
    is_refused(too_large, "tensor t");
    ok(qn_gguf_writer_new(qn_test_path(folder, "o.gguf"), &w));
    ok(qn_gguf_writer_add(w, "t", QN_DTYPE_F32, 1, (const int64_t[]){4}, NULL));
    ok(qn_gguf_writer_begin(w));
    refused(qn_gguf_writer_write(w, 1, 0, ones, 4), "number 1");
    refused(qn_gguf_writer_write(w, 0, 8, ones, 16), "tensor t");
    ok(qn_gguf_writer_write(w, 0, 4, ones, 12));
    refused(qn_gguf_writer_write(w, 0, 0, ones, 8), "tensor t");
    refused(qn_gguf_writer_finish(w), "12 of 16");
    qn_gguf_writer_free(w);
    assert_int_equal(qn_test_count_files(folder), 0);
    qn_test_remove(folder);
}

/* ---- failures ------------------------------------------------------------------------------------------ */

static void disk_full(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_write_text(folder, "o", "before");
    struct rlimit old, small;
    assert_int_equal(write_all("/dev/full"), QN_E_IO);
    assert_int_equal(write_all(folder), QN_E_IO);
    assert_int_equal(write_all(qn_test_path(folder, "absent/o")), QN_E_IO);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 1000; limit += 90) {
        small = (struct rlimit){limit, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        const qn_status status = write_all(path);
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

static void no_memory(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "o");
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; n < 2000 && status != QN_OK; n++) {
        qn_mem_fail_nth(n);
        status = write_all(path);
        qn_mem_fail_nth(0);
        if (status != QN_OK && status != QN_E_NOMEM) fail_msg("allocation %d: %s", n, qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_int_equal(qn_test_count_files(folder), status == QN_OK);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_read), cmocka_unit_test(copies),
                                       cmocka_unit_test(misuse), cmocka_unit_test(disk_full),
                                       cmocka_unit_test(no_memory)};
    return cmocka_run_group_tests_name("gguf_writer", tests, NULL, NULL);
}
