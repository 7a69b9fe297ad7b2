/* The store on the disk: folders, links, references, what is found and what is removed; memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "hub/store/store.h"
#include "tests/support/scratch.h"

static const char commit_a[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                  commit_b[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

typedef struct {
    const char *root;
    qn_hub_settings settings;
    qn_hub_name name;
    qn_buf folder;
} scene;

static scene open_scene(const char *name)
{
    scene s = {.root = qn_test_scratch()};
    qn_buf_printf(&s.settings.cache, "%s/hub", s.root);
    qn_buf_printf(&s.settings.own, "%s/own", s.root);
    assert_int_equal(qn_hub_name_read(name, 0, &s.name), QN_OK);
    assert_int_equal(qn_store_folder(&s.settings, &s.name, &s.folder), QN_OK);
    return s;
}

static void close_scene(scene *s)
{
    qn_buf_free(&s->folder);
    qn_hub_settings_free(&s->settings);
    qn_test_remove(s->root);
}

/* A blob of these bytes, linked as path. The sum's digits are made up of the letter. */
static void add(const scene *s, const char *commit, const char *path, char letter, const char *bytes)
{
    qn_buf blob = {0};
    qn_hub_files l = {0};
    qn_hub_file file = {.path = (char *)path, .size = (int64_t)strlen(bytes)};
    memset(file.hex, letter, 40);
    assert_int_equal(qn_store_blob(s->folder.data, file.hex, &blob), QN_OK);
    assert_int_equal(qn_store_make_parents(blob.data), QN_OK);
    FILE *f = fopen(blob.data, "wb");
    assert_non_null(f);
    fputs(bytes, f);
    fclose(f);
    assert_int_equal(qn_hub_files_add(&l, &file), QN_OK);
    assert_int_equal(qn_store_link(s->folder.data, commit, &l), QN_OK);
    assert_int_equal(qn_store_link(s->folder.data, commit, &l), QN_OK); /* again does nothing */
    qn_hub_files_free(&l);
    qn_buf_free(&blob);
}

static void add_model(const scene *s, const char *commit, char letter)
{
    add(s, commit, "config.json", 'c', "{}");
    add(s, commit, "tokenizer.json", 'd', "{}");
    add(s, commit, "model.safetensors", letter, letter == '1' ? "x" : "yy");
}

static qn_status find(scene *s, const char *name, int is_final, char *path, size_t size)
{
    qn_buf found = {0};
    char commit[QN_SUM_HEX_MAX];
    qn_hub_name n;
    assert_int_equal(qn_hub_name_read(name, 0, &n), QN_OK);
    qn_status status = qn_store_find(&s->settings, &n, (int64_t)64 << 30, is_final, &found, commit);
    snprintf(path, size, "%s", status == QN_OK ? found.data + strlen(s->root) + 1 : "");
    qn_buf_free(&found);
    return status;
}

static void expect_found(scene *s, const char *name, int is_final, const char *want)
{
    char path[512];
    const qn_status status = find(s, name, is_final, path, sizeof path);
    assert_int_equal(status, want ? QN_OK : QN_E_NOT_FOUND);
    assert_string_equal(path, want ? want : "");
}

static void test_what_is_found(void **state)
{
    scene s = open_scene("hf:org/tiny");
    expect_found(&s, "hf:org/tiny", 1, NULL);
    add_model(&s, commit_a, '1');
    expect_found(&s, "hf:org/tiny", 1, NULL); /* no reference yet */
    assert_int_equal(qn_store_set_ref(s.folder.data, "main", commit_a), QN_OK);
    assert_int_equal(qn_store_set_ref(s.folder.data, "pr/1", commit_a), QN_OK);
    expect_found(&s, "hf:org/tiny", 0,
                 "hub/models--org--tiny/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    expect_found(&s, "hf:org/tiny@pr/1", 0,
                 "hub/models--org--tiny/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    expect_found(&s, "hf:org/tiny:Q4_0", 1, NULL);
    add(&s, commit_a, "sub/m-Q4_0.gguf", '3', "GGUF");
    expect_found(&s, "hf:org/tiny:q4_0", 0,
                 "hub/models--org--tiny/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/sub/m-Q4_0.gguf");
    expect_found(&s, "hf:org/tiny@none", 1, NULL);
    close_scene(&s);
}

static void test_parts_are_not_found(void **state)
{
    scene s = open_scene("hf:org/tiny");
    static const char where[] = "hub/models--org--tiny/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    assert_int_equal(qn_store_set_ref(s.folder.data, "main", commit_a), QN_OK);
    add(&s, commit_a, "config.json", 'c', "{}");
    expect_found(&s, "hf:org/tiny", 1, NULL);
    add(&s, commit_a, "model-00002-of-00002.safetensors", '2', "x");
    expect_found(&s, "hf:org/tiny", 1, NULL);
    add(&s, commit_a, "model-00001-of-00002.safetensors", '1', "x");
    expect_found(&s, "hf:org/tiny", 0, NULL); /* no tokenizer: the server may have one */
    expect_found(&s, "hf:org/tiny", 1, where);
    add(&s, commit_a, "tokenizer.json", 'd', "{}");
    expect_found(&s, "hf:org/tiny", 0, where);
    add(&s, commit_a, "model.safetensors.index.json", 'e',
        "{\"weight_map\":{\"t\":\"model-00003-of-00002.safetensors\"}}");
    expect_found(&s, "hf:org/tiny", 1, NULL);
    add(&s, commit_a, "model-00003-of-00002.safetensors", '3', "x");
    expect_found(&s, "hf:org/tiny", 0, where);
    close_scene(&s);
}

static int count_blobs(const scene *s)
{
    qn_buf blobs = {0};
    qn_hub_files l = {0};
    assert_int_equal(qn_store_blob(s->folder.data, "", &blobs), QN_OK);
    const int n = qn_store_walk(blobs.data, &l) == QN_OK ? (int)l.n : 0;
    qn_hub_files_free(&l);
    qn_buf_free(&blobs);
    return n;
}

static void expect_removed(scene *s, const char *name, int64_t freed_bytes)
{
    qn_store_removal r = {.is_whole = 0};
    qn_hub_name n;
    assert_int_equal(qn_hub_name_read(name, 0, &n), QN_OK);
    assert_int_equal(qn_store_plan_removal(&s->settings, &n, &r), QN_OK);
    assert_int_equal(r.freed_bytes, freed_bytes);
    assert_int_equal(qn_store_remove(&r), QN_OK);
    qn_store_removal_free(&r);
}

static int64_t left_bytes(const scene *s, const char *blob)
{
    qn_buf path = {0};
    assert_int_equal(qn_store_blob(s->folder.data, blob, &path), QN_OK);
    const int64_t n = qn_store_left_bytes(path.data);
    qn_buf_free(&path);
    return n;
}

static void test_removal_keeps_what_others_have(void **state)
{
    scene s = open_scene("hf:org/tiny");
    add_model(&s, commit_a, '1');
    add_model(&s, commit_b, '2');
    add(&s, commit_b, "m-Q4_0.gguf", '3', "GGUF");
    assert_int_equal(qn_store_set_ref(s.folder.data, "main", commit_b), QN_OK);
    assert_int_equal(qn_store_set_ref(s.folder.data, "old", commit_a), QN_OK);
    assert_int_equal(count_blobs(&s), 5);
    expect_removed(&s, "hf:org/tiny@old", 1); /* "x"; the small files are the other's too */
    assert_int_equal(count_blobs(&s), 4);
    expect_found(&s, "hf:org/tiny@old", 1, NULL);
    expect_removed(&s, "hf:org/tiny:Q4_0", 4);
    assert_int_equal(count_blobs(&s), 3);
    expect_found(&s, "hf:org/tiny", 0,
                 "hub/models--org--tiny/snapshots/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");
    qn_test_write_text(s.folder.data, "blobs/xx.quern.incomplete", "part");
    qn_test_write_text(s.folder.data, "mine", "not the store's");
    expect_removed(&s, "hf:org/tiny", 6 + left_bytes(&s, "xx"));
    assert_int_equal(qn_test_count_files(s.folder.data), 1);
    close_scene(&s);
}

/* What an interrupted fetch left is removed by its name, and nothing that a snapshot has. */
static void test_removal_of_leftovers(void **state)
{
    static const char whole[] = "blobs/eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";
    scene s = open_scene("hf:org/tiny");
    add_model(&s, commit_a, '1');
    assert_int_equal(qn_store_set_ref(s.folder.data, "main", commit_a), QN_OK);
    qn_store_removal r = {.is_whole = 0};
    qn_hub_name n;
    assert_int_equal(qn_hub_name_read("hf:org/tiny:Q8_0", 0, &n), QN_OK);
    assert_int_equal(qn_store_plan_removal(&s.settings, &n, &r), QN_E_NOT_FOUND);
    qn_store_removal_free(&r);
    qn_test_write_text(s.folder.data, whole, "a part");
    qn_test_write_text(s.folder.data, "blobs/xx.quern.incomplete", "part");
    qn_test_write_text(s.folder.data, "blobs/mine", "not the store's");
    expect_removed(&s, "hf:org/tiny:Q8_0", 6 + left_bytes(&s, "xx"));
    assert_int_equal(count_blobs(&s), 4);
    expect_found(&s, "hf:org/tiny", 0,
                 "hub/models--org--tiny/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    qn_test_write_text(s.folder.data, whole, "a part");
    expect_removed(&s, "hf:org/tiny@other", 6);
    qn_test_write_text(s.folder.data, whole, "a part");
    expect_removed(&s, "hf:org/tiny", 11); /* with the last snapshot */
    assert_int_equal(qn_test_count_files(s.folder.data), 1);
    close_scene(&s);
}

/* The parts of a split GGUF file are one model, and without one of them none. */
static void test_split_models(void **state)
{
    static const char where[] = "hub/models--org--tiny/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/q/"
                                "m-Q4_0-00001-of-00002.gguf";
    scene s = open_scene("hf:org/tiny");
    assert_int_equal(qn_store_set_ref(s.folder.data, "main", commit_a), QN_OK);
    add(&s, commit_a, "q/m-Q4_0-00001-of-00002.gguf", '1', "GGUF");
    expect_found(&s, "hf:org/tiny", 1, NULL);
    expect_found(&s, "hf:org/tiny:Q4_0", 1, NULL);
    expect_found(&s, "hf:org/tiny:m-Q4_0-00001-of-00002.gguf", 0, NULL);
    add(&s, commit_a, "q/m-Q4_0-00002-of-00002.gguf", '2', "GGUF2");
    expect_found(&s, "hf:org/tiny", 0, where);
    expect_found(&s, "hf:org/tiny:q4_0", 0, where);
    expect_found(&s, "hf:org/tiny:m-Q4_0-00002-of-00002.gguf", 0, where);
    add(&s, commit_a, "m-Q8_0.gguf", '3', "GGUF");
    expect_removed(&s, "hf:org/tiny:m-Q4_0-00002-of-00002.gguf", 9);
    assert_int_equal(count_blobs(&s), 1);
    close_scene(&s);
}

/* A hostile snapshot: links that lead elsewhere are taken away, and what they lead to is left alone. */
static void test_links_that_lead_elsewhere(void **state)
{
    scene s = open_scene("hf:org/tiny");
    qn_buf link = {0};
    const char *precious = qn_test_write_text(s.root, "precious", "precious");
    add_model(&s, commit_a, '1');
    assert_int_equal(qn_store_set_ref(s.folder.data, "main", commit_a), QN_OK);
    assert_int_equal(qn_store_snapshot(s.folder.data, commit_a, "evil", &link), QN_OK);
    assert_int_equal(symlink("../../blobs/../../../precious", link.data), 0);
    assert_int_equal(qn_store_snapshot(s.folder.data, commit_a, "worse", &link), QN_OK);
    assert_int_equal(symlink(precious, link.data), 0);
    assert_int_equal(qn_store_snapshot(s.folder.data, commit_a, "folder", &link), QN_OK);
    assert_int_equal(symlink(s.root, link.data), 0);
    qn_store_removal r = {.is_whole = 0};
    assert_int_equal(qn_store_plan_removal(&s.settings, &s.name, &r), QN_OK);
    assert_int_equal(qn_store_remove(&r), QN_OK);
    qn_store_removal_free(&r);
    assert_int_equal(access(precious, F_OK), 0);
    assert_int_equal(access(s.folder.data, F_OK), -1);
    qn_buf_free(&link);
    close_scene(&s);
}

static void expect_name(const scene *s, const char *path, const char *want)
{
    qn_buf whole = {0}, name = {0};
    qn_buf_printf(&whole, "%s/%s", s->root, path);
    qn_store_put_name(&s->settings, whole.data, &name);
    assert_string_equal(name.data, want ? want : whole.data);
    qn_buf_free(&whole);
    qn_buf_free(&name);
}

static void test_names_of_paths(void **state)
{
    scene s = open_scene("hf:org/tiny");
    assert_int_equal(qn_store_set_ref(s.folder.data, "main", commit_a), QN_OK);
    expect_name(&s, "hub/models--org--tiny/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                "hf:org/tiny");
    expect_name(&s, "hub/models--org--tiny/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/d/m.gguf",
                "hf:org/tiny:d/m.gguf");
    expect_name(&s, "hub/models--org--tiny/snapshots/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb/m.gguf",
                "hf:org/tiny@bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb:m.gguf");
    expect_name(&s, "elsewhere/m.gguf", NULL);
    close_scene(&s);
}

static void test_locks(void **state)
{
    scene s = open_scene("ollama:mill");
    int first = -1, second = -1;
    assert_int_equal(qn_store_lock(NULL, s.folder.data, &first), QN_OK);
    assert_int_equal(qn_store_lock(NULL, s.folder.data, &second), QN_E_FULL);
    assert_int_equal(second, -1);
    qn_store_unlock(second);
    qn_store_unlock(first);
    assert_int_equal(qn_store_lock(NULL, s.folder.data, &second), QN_OK);
    qn_store_unlock(second);
    close_scene(&s);
}

static void test_room(void **state)
{
    const char *folder = qn_test_scratch();
    assert_int_equal(qn_store_check_room(folder, 0), QN_OK);
    assert_int_equal(qn_store_check_room(folder, INT64_MAX / 4), QN_E_FULL);
    qn_test_remove(folder);
}

/* One of everything. */
static qn_status use(scene *s)
{
    qn_buf path = {0}, folder = {0};
    char commit[QN_SUM_HEX_MAX];
    qn_store_removal r = {.is_whole = 0};
    qn_hub_files l = {0};
    int lock = -1;
    qn_status status = qn_store_folder(&s->settings, &s->name, &folder);
    if (status == QN_OK) status = qn_store_lock(NULL, folder.data, &lock);
    if (status == QN_OK) status = qn_store_set_ref(folder.data, "main", commit_a);
    if (status == QN_OK)
        status = qn_hub_files_add(&l, &(qn_hub_file){.path = "config.json", .size = 2, .hex = "cc"});
    if (status == QN_OK) status = qn_store_link(folder.data, commit_b, &l);
    if (status == QN_OK) status = qn_store_find(&s->settings, &s->name, (int64_t)64 << 30, 1, &path, commit);
    if (status == QN_OK) status = qn_store_plan_removal(&s->settings, &s->name, &r);
    qn_store_unlock(lock);
    qn_store_removal_free(&r);
    qn_hub_files_free(&l);
    qn_buf_free(&path);
    qn_buf_free(&folder);
    return status;
}

static void test_memory_runs_out(void **state)
{
    scene s = open_scene("hf:org/tiny");
    add_model(&s, commit_a, '1');
    for (int n = 1;; n++) {
        const int64_t live = qn_mem_live_blocks();
        qn_mem_fail_nth(n);
        qn_status status = use(&s);
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (status == QN_OK) break;
        if (status != QN_E_NOMEM) fail_msg("allocation %d: status %d, %s", n, status, qn_last_error());
        assert_true(n < 2000);
    }
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_found),
        cmocka_unit_test(test_parts_are_not_found),
        cmocka_unit_test(test_removal_keeps_what_others_have),
        cmocka_unit_test(test_removal_of_leftovers),
        cmocka_unit_test(test_split_models),
        cmocka_unit_test(test_links_that_lead_elsewhere),
        cmocka_unit_test(test_names_of_paths),
        cmocka_unit_test(test_locks),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
