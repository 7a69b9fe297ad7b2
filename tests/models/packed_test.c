/* Models from packed files: the same bits on every type and set, weights that are used where they are mapped,
 * and failures of memory on the way, which leave nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/cpu/kernels/kernels.h"
#include "engine/machine/pack.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/models/typed_model.h"
#include "tests/support/scratch.h"

enum { N_IDS = 9 };
static const int32_t ids[N_IDS] = {3, 14, 15, 92, 65, 35, 89, 79, 32};

/* The last call of the progress of packing. */
typedef struct {
    size_t done, total;
} progress;

static qn_status note_progress(void *user, size_t done, size_t total)
{
    *(progress *)user = (progress){done, total};
    return QN_OK;
}

static qn_status pack(const char *path, qn_pack_result *out)
{
    progress last = {0};
    qn_pack_options o = {.n_threads = 2, .progress = note_progress, .user = &last};
    qn_source *source;
    qn_model_config config = {0};
    QN_TRY(qn_source_open(path, NULL, &source));
    qn_status status = qn_config_read(source, &config);
    if (status == QN_OK) status = qn_engine_pack(source, &config, &o, out);
    if (status == QN_OK && !out->was_there) {
        assert_int_equal(last.done, out->size_bytes);
        assert_int_equal(last.total, out->size_bytes);
    }
    qn_config_free(&config);
    qn_source_close(source);
    return status;
}

static uint64_t hash(const char *path, const char *set, const char *packed, int want)
{
    qn_engine *e = qn_test_engine(path, set, (qn_engine_options){.packed = packed, .context_size = 64});
    const qn_engine_info *info = qn_engine_get_info(e);
    assert_int_equal(info->packed[0] != 0, want);
    assert_int_equal(info->mapped_bytes != 0, want);
    if (want) assert_int_equal(info->mapped_bytes, qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_WEIGHTS));
    uint64_t h = qn_test_last_hash(e, ids, N_IDS, N_IDS);
    qn_engine_close(e);
    return h;
}

static void same_bits(void **state)
{
    const char *folder = qn_test_scratch();
    for (const qn_dtype *t = qn_test_weight_types; *t != QN_DTYPE_COUNT; t++) {
        const char *path = qn_test_typed_model(folder, *t);
        qn_pack_result made;
        qn_test_ok(pack(path, &made));
        assert_int_equal(made.was_there, 0);
        for (const char *const *set = qn_kernels_names(); *set; set++)
            assert_true(hash(path, *set, NULL, 1) == hash(path, *set, "none", 0));
        size_t size_bytes = made.size_bytes;
        qn_test_ok(pack(path, &made));
        assert_int_equal(made.was_there, 1);
        assert_int_equal(made.size_bytes, size_bytes);
    }
    qn_test_remove(folder);
}

/* The experts of a layer are one weight there; without the packed file they are packed as they are used.
 * Matrices that are parts of a tensor, or transposed ones, and what is turned while it is loaded. */
static void whole_families(void **state)
{
    static const char *const kinds[] = {"models/qwen3_moe", "models/gpt_oss", "models/qwen3_next",
                                        "models/qwen3_5", "models/deepseek_v3"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char dir[QN_TEST_DIR_MAX];
        qn_pack_result made;
        qn_test_model_copy(qn_test_need_fixture(kinds[i]), NULL, NULL, dir);
        qn_test_ok(pack(dir, &made));
        for (const char *const *set = qn_kernels_names(); *set; set++)
            assert_true(hash(dir, *set, NULL, 1) == hash(dir, *set, "none", 0));
        qn_test_model_remove(dir);
    }
}

static void counted_in_the_ledger(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_typed_model(folder, QN_DTYPE_Q4_K);
    qn_pack_result made;
    qn_test_ok(pack(path, &made));
    assert_true(hash(path, NULL, NULL, 1) == hash(path, NULL, "none", 0));
    /* A limit counts mapped weights as it counts others. */
    qn_engine *e;
    qn_engine_options o = {.context_size = 64, .memory_limit_bytes = made.size_bytes / 2};
    assert_int_equal(qn_test_engine_try(path, &o, &e), QN_E_NOMEM);
    qn_test_remove(folder);
}

static void memory_runs_out(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_typed_model(folder, QN_DTYPE_Q4_0);
    int64_t before = qn_mem_live_blocks();
    qn_pack_result made;
    qn_status status = QN_E_NOMEM;
    for (int n = 1; status != QN_OK && n < 2000; n++) {
        qn_mem_fail_nth(n);
        status = pack(path, &made);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status != QN_OK) assert_int_equal(qn_test_count_files(folder), 1);
    }
    qn_test_ok(status);
    status = QN_E_NOMEM;
    for (int n = 1; status != QN_OK && n < 2000; n++) { /* what is there is compared */
        qn_mem_fail_nth(n);
        status = pack(path, &made);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), before);
        assert_int_equal(qn_test_count_files(folder), 2);
    }
    qn_test_ok(status);
    assert_int_equal(made.was_there, 1);
    qn_engine_options o = {.context_size = 64, .n_threads = 2};
    status = QN_E_NOMEM;
    for (int n = 1; status != QN_OK && n < 2000; n++) {
        qn_engine *e = NULL;
        qn_mem_fail_nth(n);
        status = qn_test_engine_try(path, &o, &e);
        qn_mem_fail_nth(0);
        if (status == QN_OK) assert_true(qn_engine_get_info(e)->packed[0] != 0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_engine_close(e);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    qn_test_ok(status);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(whole_families),
        cmocka_unit_test(counted_in_the_ledger),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
