/* Models in several files: parts of a split GGUF, overlays of an index, pointers of Git LFS in place of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "tests/support/source_files.h"

static void test_parts(void **state)
{
    const char *folder = qn_test_scratch();
    char paths[4][4096];
    qn_test_write_part(folder, "m-00001-of-00003.gguf", 0, 3, 3, "a");
    qn_test_write_part(folder, "m-00002-of-00003.gguf", 1, 3, 3, "b");
    qn_test_write_part(folder, "m-00003-of-00003.gguf", 2, 3, 3, "c");
    snprintf(paths[0], sizeof paths[0], "%s", folder);
    for (int i = 1; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "m-0000%d-of-00003.gguf", i);
        snprintf(paths[i], sizeof paths[i], "%s", qn_test_path(folder, name));
    }
    for (int i = 0; i < 4; i++) {
        qn_source *s = qn_test_open_source(paths[i], NULL);
        float value = -1;
        assert_int_equal(qn_source_file_count(s), 3);
        assert_int_equal(qn_source_count(s), 3);
        assert_string_equal(qn_source_get(s, 1)->name, "b");
        assert_string_equal(qn_source_file_path(s, 2), paths[3]);
        assert_int_equal(qn_gguf_split(qn_source_gguf(s)).part, 0);
        memcpy(&value, qn_source_find(s, "c")->data, sizeof value);
        assert_true(value == 2);
        qn_source_close(s);
    }
    qn_source *s = qn_test_open_source(folder, &(qn_source_options){.file = "m-00002-of-00003.gguf"});
    assert_int_equal(qn_source_count(s), 3);
    qn_source_close(s);
    /* Another model's parts beside them are another model. */
    qn_test_write_part(folder, "n-00001-of-00002.gguf", 0, 2, 2, "a");
    qn_test_refused_source(folder, NULL, QN_E_ARG, QN_TEST_PARTS("several GGUF files", "m-00001", "n-00001"));
    qn_test_refused_source(qn_test_path(folder, "n-00001-of-00002.gguf"), NULL, QN_E_NOT_FOUND,
                           QN_TEST_PARTS("part 1 of 2", "missing beside it: n-00002-of-00002.gguf"));
    qn_test_remove(folder);
}

static void test_parts_that_do_not_fit(void **state)
{
    const char *folder = qn_test_scratch();
    qn_test_write_part(folder, "m-00001-of-00002.gguf", 0, 2, 3, "a");
    qn_test_write_part(folder, "m-00002-of-00002.gguf", 1, 2, 3, "b");
    qn_test_refused_source(folder, NULL, QN_E_FORMAT, QN_TEST_PARTS("have 2 tensors, expected 3"));
    qn_test_write_part(folder, "m-00001-of-00002.gguf", 0, 2, 2, "b");
    qn_test_refused_source(folder, NULL, QN_E_FORMAT, QN_TEST_PARTS("tensor b is in two files"));
    qn_test_write_part(folder, "m-00001-of-00002.gguf", 0, 3, 2, "a");
    qn_test_refused_source(folder, NULL, QN_E_FORMAT, QN_TEST_PARTS("part 1 of 3", "-00001-of-00003.gguf"));
    qn_test_write_part(folder, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    qn_test_write_part(folder, "m-00002-of-00002.gguf", 0, 2, 2, "b");
    qn_test_refused_source(folder, NULL, QN_E_FORMAT,
                           QN_TEST_PARTS("m-00002-of-00002.gguf", "part 1 of 2", "another model"));
    qn_test_write_gguf(folder, "m-00002-of-00002.gguf", "b");
    qn_test_refused_source(folder, NULL, QN_E_FORMAT, QN_TEST_PARTS("m-00002-of-00002.gguf", "part 1 of 1"));
    /* A whole file may have any name. */
    qn_source *s = qn_test_open_source(qn_test_path(folder, "m-00002-of-00002.gguf"), NULL);
    assert_int_equal(qn_source_count(s), 1);
    qn_source_close(s);
    qn_test_remove(folder);
    folder = qn_test_scratch();
    qn_test_write_part(folder, "renamed.gguf", 1, 3, 3, "b");
    qn_test_refused_source(folder, NULL, QN_E_FORMAT,
                           QN_TEST_PARTS("renamed.gguf: this is part 2 of 3", "-00002-of-00003.gguf"));
    qn_test_remove(folder);
}

/* A later shard that has a tensor again counts where the index says so; transformers takes the last, too. */
static void test_overlay(void **state)
{
    const char *folder = qn_test_scratch(), *index = "model.safetensors.index.json";
    qn_test_write_shard(folder, "model-00001-of-00002.safetensors", 10, qn_test_a_b);
    qn_test_write_shard(folder, "model-00002-of-00002.safetensors", 30, qn_test_c_d);
    qn_test_write_shard(folder, "model-overlay.safetensors", 50, qn_test_b_c);
    qn_test_write_text(
        folder, index,
        "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-overlay.safetensors\","
        "\"c\":\"model-overlay.safetensors\",\"d\":\"model-00002-of-00002.safetensors\"}}");
    qn_source *s = qn_test_open_source(folder, NULL);
    assert_int_equal(qn_source_count(s), 4);
    assert_int_equal(qn_test_byte_of(s, "a"), 10);
    assert_int_equal(qn_test_byte_of(s, "b"), 50);
    assert_int_equal(qn_test_byte_of(s, "c"), 51);
    assert_int_equal(qn_test_byte_of(s, "d"), 31);
    qn_source_close(s);
    qn_test_write_text(folder, index,
                       "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00001-of-"
                       "00002.safetensors\","
                       "\"c\":\"model-overlay.safetensors\",\"d\":\"model-00002-of-00002.safetensors\"}}");
    qn_test_refused_source(folder, NULL, QN_E_FORMAT, QN_TEST_PARTS("tensor b is in two files"));
    qn_test_remove(folder);
}

static void test_lfs_pointers(void **state)
{
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 12345\n";
    static const char *const names[] = {"model.safetensors", "model.gguf"};
    for (int i = 0; i < 2; i++) {
        const char *folder = qn_test_scratch();
        qn_test_write_text(folder, names[i], pointer);
        qn_test_refused_source(
            folder, NULL, QN_E_FORMAT,
            QN_TEST_PARTS(names[i], "Git LFS pointer", "which has 12345 bytes", "git lfs pull"));
        qn_test_remove(folder);
    }
    const char *folder = qn_test_scratch(), *text;
    qn_test_write_shard(folder, "model.safetensors", 1, qn_test_a_b);
    qn_test_write_text(folder, "tokenizer.json", pointer);
    qn_test_write_text(folder, "config.json", "version https://git-lfs.github.com/spec/v1\n");
    qn_source *s = qn_test_open_source(folder, NULL);
    assert_int_equal(qn_source_side_text(s, QN_SIDE_TOKENIZER, &text, NULL), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "tokenizer.json: this is a Git LFS pointer"));
    assert_int_equal(qn_source_side_text(s, QN_SIDE_CONFIG, &text, NULL), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "Git LFS pointer, not the file itself: run"));
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_parts_out_of_memory(void **state)
{
    const char *folder = qn_test_scratch();
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    qn_test_write_part(folder, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    qn_test_write_part(folder, "m-00002-of-00002.gguf", 1, 2, 2, "b");
    for (int64_t n = 1; n < 2000 && status != QN_OK; n++) {
        qn_source *s = NULL;
        qn_mem_fail_nth(n);
        status = qn_source_open(folder, NULL, &s);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_source_close(s);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_parts_that_do_not_fit),
        cmocka_unit_test(test_overlay),
        cmocka_unit_test(test_lfs_pointers),
        cmocka_unit_test(test_parts_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
