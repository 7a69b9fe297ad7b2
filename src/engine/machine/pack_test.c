/* Where packed weights are written, and what is refused. What a start does with them, and the command:
 * tests/cli/test_cli_pack.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "base/mem.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

static const char *copy_model(void)
{
    const char *folder = qn_test_scratch(), *from = qn_test_need_fixture("models/llama");
    qn_test_copy(folder, "config.json", qn_test_path(from, "config.json"));
    qn_test_copy(folder, "model.safetensors", qn_test_path(from, "model.safetensors"));
    return folder;
}

static void refused(const char *path, qn_pack_options o, qn_status want, const char *words)
{
    qn_pack_result result = {.size_bytes = 7};
    assert_int_equal(qn_model_pack(path, &o, &result), want);
    if (!strstr(qn_last_error(), words)) fail_msg("%s", qn_last_error());
    assert_int_equal(result.size_bytes, 7);
}

static void refusals(void **state)
{
    const char *folder = copy_model(), *own = qn_test_path(folder, "model.safetensors");
    qn_pack_result result;
    char lengthy[5000];
    memset(lengthy, 'a', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    assert_int_equal(qn_model_pack(NULL, NULL, &result), QN_E_ARG);
    assert_int_equal(qn_model_pack(folder, NULL, NULL), QN_E_ARG);
    refused(folder, (qn_pack_options){.n_threads = -1}, QN_E_ARG, "n_threads: -1");
    refused(folder, (qn_pack_options){.n_threads = 1025}, QN_E_ARG, "n_threads: 1025");
    refused("/no/such/model", (qn_pack_options){0}, QN_E_IO, "/no/such/model");
    refused(folder, (qn_pack_options){.out_path = "none"}, QN_E_ARG, "./none");
    refused(folder, (qn_pack_options){.out_path = lengthy}, QN_E_ARG, "longer than 4096 bytes");
    refused(folder, (qn_pack_options){.out_path = own, .force = 1}, QN_E_ARG, "a file of the model itself");
    const char *other = qn_test_write_text(folder, "other", "somebody's");
    refused(folder, (qn_pack_options){.out_path = other}, QN_E_ARG, "does not hold packed weights");
    assert_int_equal(qn_test_count_files(folder), 3);
    qn_test_remove(folder);
}

/* A folder that this user cannot write: the file goes below $QUERN_CACHE, whose folders are made. The right to
 * write is asked of the real user, so the superuser becomes somebody else for the time of the call. */
static void beside_or_elsewhere(void **state)
{
    const char *folder = copy_model(), *cache = qn_test_scratch();
    char place[600];
    qn_pack_result beside, elsewhere, again;
    qn_test_ok(qn_model_pack(folder, NULL, &beside));
    assert_true(strncmp(beside.path, folder, strlen(folder)) == 0 && !beside.was_there);
    snprintf(place, sizeof place, "%s/new/place", cache);
    assert_int_equal(setenv("QUERN_CACHE", place, 1), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    const uid_t user = getuid();
    if (user == 0) assert_int_equal(setreuid(65534, 0), 0);
    qn_status status = qn_model_pack(folder, NULL, &elsewhere);
    if (status == QN_OK) status = qn_model_pack(folder, NULL, &again);
    if (user == 0) assert_int_equal(setreuid(0, 0), 0);
    qn_test_ok(status);
    assert_true(strncmp(elsewhere.path, place, strlen(place)) == 0 && !elsewhere.was_there);
    assert_string_equal(again.path, elsewhere.path);
    assert_true(again.was_there && again.size_bytes == beside.size_bytes);
    /* A file where a folder has to be. */
    snprintf(place, sizeof place, "%s/file/place", cache);
    qn_test_write_text(cache, "file", "");
    assert_int_equal(setenv("QUERN_CACHE", place, 1), 0);
    if (user == 0) assert_int_equal(setreuid(65534, 0), 0);
    status = qn_model_pack(folder, NULL, &again);
    if (user == 0) assert_int_equal(setreuid(0, 0), 0);
    assert_int_equal(status, QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "cannot create the folder"));
    unsetenv("QUERN_CACHE");
    assert_int_equal(chmod(folder, 0755), 0);
    qn_test_remove(folder);
    qn_test_remove(cache);
}

/* Memory that runs out anywhere leaves no file. */
static void memory_runs_out(void **state)
{
    const char *folder = copy_model();
    const qn_pack_options o = {.n_threads = 1};
    qn_pack_result result;
    const int64_t live = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t nth = 1; status != QN_OK; nth += nth < 300 ? 1 : 31) {
        assert_int_equal(qn_test_count_files(folder), 2);
        qn_mem_fail_nth(nth);
        status = qn_model_pack(folder, &o, &result);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_int_equal(qn_test_count_files(folder), 3);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(beside_or_elsewhere),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests_name("pack", tests, NULL, NULL);
}
