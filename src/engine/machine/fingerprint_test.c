/* What files of state are bound to: computed at the start for few tensors, when it is asked for with many, and
 * then only of the files that were opened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/machine/fingerprint.h"
#include "format/safetensors/safetensors.h"
#include "format/source/packed.h"
#include "tests/support/engine_help.h"
#include "tests/support/scratch.h"

enum { FEW = 3, MANY = 5000 };

static void write_source(const char *path, int n, float first)
{
    qn_st_writer *w;
    char name[32];
    qn_test_ok(qn_st_writer_new(path, &w));
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "tensor.%d", i);
        qn_test_ok(qn_st_writer_add(w, name, QN_DTYPE_F32, 1, (int64_t[]){1}, NULL));
    }
    qn_test_ok(qn_st_writer_begin(w));
    for (int i = 0; i < n; i++)
        qn_test_ok(qn_st_writer_write(w, i, 0, &(float){i ? (float)i : first}, sizeof(float)));
    qn_test_ok(qn_st_writer_finish(w));
    qn_st_writer_free(w);
}

/* The fingerprint of a path; the source is closed again before it is asked for. */
static qn_fingerprint *open_print(const char *path, const char *file, uint64_t *want)
{
    qn_source *s;
    qn_fingerprint *f = NULL;
    qn_test_ok(qn_source_open(path, &(qn_source_options){.file = file}, &s));
    qn_test_ok(qn_packed_fingerprint(s, want));
    qn_test_ok(qn_fingerprint_new(s, file, &f));
    qn_source_close(s);
    return f;
}

static void same(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "model.safetensors");
    uint64_t want = 0, got = 1;
    for (int n = FEW; n <= MANY; n += MANY - FEW) {
        for (int named = 0; named < 2; named++) {
            write_source(path, n, 0);
            qn_fingerprint *f =
                named ? open_print(folder, "model.safetensors", &want) : open_print(path, NULL, &want);
            for (int again = 0; again < 2; again++) {
                qn_test_ok(qn_fingerprint_get(f, &got));
                assert_true(got == want);
            }
            qn_fingerprint_free(f);
        }
    }
    qn_test_remove(folder);
}

/* Files that were changed or removed since then: the early fingerprint stands, the late one is refused. */
static void changed(void **state)
{
    for (int n = FEW; n <= MANY; n += MANY - FEW) {
        for (int is_gone = 0; is_gone < 2; is_gone++) {
            const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "model.safetensors");
            uint64_t want = 0, got = 1;
            write_source(path, n, 0);
            qn_fingerprint *f = open_print(path, NULL, &want);
            assert_int_equal(unlink(path), 0);
            if (!is_gone) write_source(path, n + 1, 7);
            qn_status status = qn_fingerprint_get(f, &got);
            if (n == FEW) {
                qn_test_ok(status);
                assert_true(got == want);
            } else {
                assert_int_equal(status, QN_E_IO);
                if (!strstr(qn_last_error(), is_gone ? path : "have changed"))
                    fail_msg("%s", qn_last_error());
                assert_true(got == 1);
            }
            qn_fingerprint_free(f);
            qn_test_remove(folder);
        }
    }
}

/* A file that goes while its source is open. */
static void gone_at_once(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "model.safetensors");
    qn_source *s;
    qn_fingerprint *f = NULL;
    write_source(path, MANY, 0);
    qn_test_ok(qn_source_open(path, NULL, &s));
    qn_test_remove(folder);
    assert_int_equal(qn_fingerprint_new(s, NULL, &f), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "model.safetensors"));
    assert_null(f);
    qn_source_close(s);
}

static void memory_runs_out(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "model.safetensors");
    write_source(path, MANY, 0);
    qn_source *s;
    qn_test_ok(qn_source_open(folder, &(qn_source_options){.file = "model.safetensors"}, &s));
    const int64_t live = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t nth = 1; status != QN_OK; nth += nth < 50 ? 1 : 97) {
        qn_fingerprint *f = NULL;
        uint64_t got = 0;
        qn_mem_fail_nth(nth);
        status = qn_fingerprint_new(s, "model.safetensors", &f);
        if (status == QN_OK) status = qn_fingerprint_get(f, &got);
        qn_mem_fail_nth(0);
        qn_fingerprint_free(f);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    qn_source_close(s);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same),
        cmocka_unit_test(changed),
        cmocka_unit_test(gone_at_once),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests_name("fingerprint", tests, NULL, NULL);
}
