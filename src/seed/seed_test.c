#include "seed/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "base/buf.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/source/source.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

/* Of src/seed/seed.gguf; docs/training-the-seed.md names it too. */
static const uint64_t hash_of_file = 0x5835d01becfdd599;
static const char question[] = "What is quern?";
static const char answer[] = "Quern is a program and a small C library that runs language models on your own "
                             "computer, without Python and without the network.";

static void test_names(void **state)
{
    assert_string_equal(QN_SEED, QN_SEED_PATH);
    assert_true(qn_seed_is_path("seed:") && qn_seed_is_path("seed"));
    assert_false(qn_seed_is_path("seeds") || qn_seed_is_path("seed:x") || qn_seed_is_path(""));
    char here[4096];
    const char *folder = qn_test_scratch();
    assert_non_null(getcwd(here, sizeof here));
    qn_test_write_text(folder, "seed", "");
    assert_int_equal(chdir(folder), 0);
    const int file = qn_seed_is_path("seed"), always = qn_seed_is_path("seed:");
    assert_int_equal(chdir(here), 0);
    qn_test_remove(folder);
    assert_false(file);
    assert_true(always);
}

static void test_file(void **state)
{
    size_t n, n_file;
    char *file = NULL;
    const void *bytes = qn_seed_bytes(&n);
    assert_in_range(n, 1000000, 4000000);
    assert_int_equal((uintptr_t)bytes % 64, 0);
    qn_test_ok(qn_file_read("src/seed/seed.gguf", 1 << 24, &file, &n_file));
    assert_int_equal(n, n_file);
    assert_memory_equal(bytes, file, n);
    qn_free(file);
    const uint64_t hash = qn_hash_bytes(bytes, n, 0);
    if (hash != hash_of_file) fail_msg("the file's hash is %016llx", (unsigned long long)hash);
}

static void test_source(void **state)
{
    static const char *const names[] = {"seed:", "seed"};
    for (int i = 0; i < 2; i++) {
        qn_source *s = NULL;
        size_t n;
        qn_seed_bytes(&n);
        qn_test_ok(qn_source_open(names[i], NULL, &s));
        assert_int_equal(qn_source_get_kind(s), QN_SOURCE_GGUF);
        assert_int_equal(qn_source_file_count(s), 1);
        assert_string_equal(qn_source_file_path(s, 0), "seed:");
        assert_string_equal(qn_source_path(s), names[i]);
        assert_int_equal(qn_source_file_bytes(s, 0), n);
        for (int k = 0; k < QN_SIDE_COUNT; k++) assert_null(qn_source_side_path(s, (qn_side_file)k));
        qn_source_close(s);
    }
    qn_source *none = NULL;
    assert_int_equal(qn_source_open("seed:", &(qn_source_options){.file = "x"}, &none), QN_E_IO);
    assert_null(none);
}

static qn_status take(void *user, const qn_discovery *d)
{
    assert_int_equal(d->status, QN_OK);
    assert_string_equal(d->path, "seed:");
    assert_string_equal(d->format, "gguf");
    assert_string_equal(d->model_type, "llama");
    assert_int_equal(d->n_files, 1);
    assert_in_range(d->size_bytes, 1000000, 4000000);
    ++*(int *)user;
    return QN_OK;
}

static void test_discovered(void **state)
{
    int n = 0;
    qn_test_ok(qn_discover(QN_SEED, NULL, take, &n));
    assert_int_equal(n, 1);
}

static void expect_answer(int32_t n_threads)
{
    qn_model *model = NULL;
    qn_generation *generation = NULL;
    qn_buf text = {0};
    qn_token token = {0};
    qn_test_ok(qn_model_open(QN_SEED, &(qn_model_options){.n_threads = n_threads}, &model));
    qn_test_ok(qn_chat(model, &(qn_message){"user", question}, 1, &(qn_generate_options){.max_tokens = 100},
                       &generation));
    while (token.end == QN_END_NONE) {
        qn_test_ok(qn_generation_next(generation, &token));
        qn_buf_append(&text, token.text, token.text_bytes);
    }
    assert_int_equal(token.end, QN_END_STOP);
    assert_string_equal(text.data, answer);
    qn_buf_free(&text);
    qn_generation_close(generation);
    qn_model_close(&model);
}

/* The same text on any number of threads, and it is true. */
static void test_answer(void **state)
{
    for (int32_t n = 1; n <= 3; n++) expect_answer(n);
}

static void test_no_memory(void **state)
{
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; n < 2000 && status != QN_OK; n++) {
        qn_source *s = NULL;
        qn_mem_fail_nth(n);
        status = qn_source_open("seed:", NULL, &s);
        qn_mem_fail_nth(0);
        if (status != QN_OK && status != QN_E_NOMEM) fail_msg("allocation %d: %s", n, qn_last_error());
        qn_source_close(s);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),      cmocka_unit_test(test_file),   cmocka_unit_test(test_source),
        cmocka_unit_test(test_discovered), cmocka_unit_test(test_answer), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
