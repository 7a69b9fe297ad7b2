/* What servers answer, as JSON: what is taken, what is refused, and memory that runs out anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "hub/names/listing.h"

#define SHA1 "0123456789012345678901234567890123456789"
#define SHA256 "0123456789012345678901234567890123456789012345678901234567890123"
#define FILE_ENTRY(path, size, oid) \
    "{\"type\":\"file\",\"path\":\"" path "\",\"size\":" size ",\"oid\":\"" oid "\"}"
#define LFS_ENTRY(path, size, oid)                                                              \
    "{\"type\":\"file\",\"path\":\"" path "\",\"size\":1,\"oid\":\"x\",\"lfs\":{\"oid\":\"" oid \
    "\",\"size\":" size "}}"

static void test_tree(void **state)
{
    static const char text[] =
        "[" FILE_ENTRY("config.json", "5", SHA1) ",{\"type\":\"directory\",\"path\":\"d\"}," LFS_ENTRY(
            "d/m.gguf", "1099511627776", SHA256) "]";
    qn_hub_files l = {0};
    assert_int_equal(qn_hub_read_tree("x", text, strlen(text), &l), QN_OK);
    assert_int_equal(l.n, 2);
    assert_string_equal(l.files[0].path, "config.json");
    assert_true(l.files[0].sum == QN_SUM_GIT_SHA1 && l.files[0].size == 5);
    assert_string_equal(l.files[0].hex, SHA1);
    assert_true(l.files[1].sum == QN_SUM_SHA256 && l.files[1].size == QN_HUB_FILE_BYTES_MAX);
    assert_string_equal(l.files[1].hex, SHA256);
    qn_hub_files_free(&l);
}

static void test_bad_trees(void **state)
{
    static const char *const texts[] = {"",
                                        "{}",
                                        "[1]",
                                        "[{}]",
                                        "[{\"type\":\"file\"}]",
                                        "[" FILE_ENTRY("../x", "5", SHA1) "]",
                                        "[" FILE_ENTRY("/x", "5", SHA1) "]",
                                        "[" FILE_ENTRY("a\\\\b", "5", SHA1) "]",
                                        "[" FILE_ENTRY("a\\u0000b", "5", SHA1) "]",
                                        "[" FILE_ENTRY("a\\nb", "5", SHA1) "]",
                                        "[" FILE_ENTRY("a", "-1", SHA1) "]",
                                        "[" FILE_ENTRY("a", "1.5", SHA1) "]",
                                        "[" FILE_ENTRY("a", "\"1\"", SHA1) "]",
                                        "[" FILE_ENTRY("a", "1099511627777", SHA1) "]",
                                        "[" FILE_ENTRY("a", "5", "../" SHA1) "]",
                                        "[" FILE_ENTRY("a", "5", SHA256) "]",
                                        "[" LFS_ENTRY("a", "5", SHA1) "]",
                                        "[" LFS_ENTRY("a", "-5", SHA256) "]",
                                        "[" FILE_ENTRY("a", "5", SHA1) "," FILE_ENTRY("a", "5", SHA1) "]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        qn_hub_files l = {0};
        if (qn_hub_read_tree("x", texts[i], strlen(texts[i]), &l) != QN_E_FORMAT)
            fail_msg("%s was taken", texts[i]);
        assert_true(qn_last_error()[0] == 'x');
        qn_hub_files_free(&l);
    }
}

static void test_revision(void **state)
{
    char sha[QN_SUM_HEX_MAX] = "before";
    static const char good[] = "{\"id\":\"a/b\",\"sha\":\"" SHA1 "\"}";
    static const char *const bad[] = {
        "", "[]", "{}", "{\"sha\":1}", "{\"sha\":\"main\"}", "{\"sha\":\"" SHA256 "\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(qn_hub_read_revision("x", bad[i], strlen(bad[i]), sha), QN_E_FORMAT);
        assert_string_equal(sha, "before");
    }
    assert_int_equal(qn_hub_read_revision("x", good, strlen(good), sha), QN_OK);
    assert_string_equal(sha, SHA1);
}

#define LAYER(kind, digest) \
    "{\"mediaType\":\"application/vnd.ollama.image." kind "\",\"digest\":\"sha256:" digest "\",\"size\":7}"
#define MANIFEST(layers) "{\"schemaVersion\":2,\"layers\":[" layers "]}"

static void test_manifest(void **state)
{
    static const char good[] = MANIFEST(LAYER("template", "x") "," LAYER("model", SHA256));
    static const char two[] = MANIFEST(LAYER("projector", SHA256) "," LAYER("model", SHA256));
    static const struct {
        const char *text;
        qn_status status;
    } bad[] = {
        {MANIFEST(""), QN_E_FORMAT},
        {"{}", QN_E_FORMAT},
        {"[]", QN_E_FORMAT},
        {MANIFEST("1"), QN_E_FORMAT},
        {MANIFEST(LAYER("model", "../x")), QN_E_FORMAT},
        {MANIFEST(LAYER("model", SHA256) "," LAYER("model", SHA256)), QN_E_UNSUPPORTED},
        {MANIFEST(LAYER("projector", "x") "," LAYER("model", SHA256)), QN_E_FORMAT},
        {MANIFEST(LAYER("projector", SHA256) "," LAYER("projector", SHA256)), QN_E_UNSUPPORTED},
        {MANIFEST(LAYER("model", SHA256) "," LAYER("adapter", SHA256)), QN_E_UNSUPPORTED},
        {MANIFEST(LAYER("tensor; name=x", SHA256)), QN_E_UNSUPPORTED},
    };
    qn_hub_file file = {.size = 99};
    qn_hub_file tower = {.size = 5};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(qn_hub_read_manifest("x", bad[i].text, strlen(bad[i].text), "f", "t", &file, &tower),
                         bad[i].status);
        assert_true(file.size == 99 && tower.size == 5);
    }
    assert_int_equal(qn_hub_read_manifest("x", good, strlen(good), "f", "t", &file, &tower), QN_OK);
    assert_true(file.size == 7 && file.sum == QN_SUM_SHA256 && !tower.size);
    assert_string_equal(file.hex, SHA256);
    assert_int_equal(qn_hub_read_manifest("x", two, strlen(two), "f", "t", &file, &tower), QN_OK);
    assert_true(tower.size == 7);
    assert_string_equal(tower.path, "t");
}

static void expect_refusal(const char *text, const char *want)
{
    char said[16];
    qn_hub_read_refusal(text, strlen(text), said, sizeof said);
    assert_string_equal(said, want);
}

static void test_refusals(void **state)
{
    expect_refusal("{\"error\":\"no\"}", "no");
    expect_refusal("{\"errors\":[{\"message\":\"none\"}]}", "none");
    expect_refusal("{\"error\":{\"a\":1}}", "");
    expect_refusal("<html>", "");
    expect_refusal("", "");
    expect_refusal("{\"error\":\"a sentence that is too long\"}", "a sentence that");
}

static void test_too_many(void **state)
{
    qn_hub_files l = {0};
    char path[16];
    const qn_hub_file file = {.path = path};
    for (int i = 0; i < QN_HUB_FILES_MAX; i++) {
        snprintf(path, sizeof path, "%d", i);
        assert_int_equal(qn_hub_files_add(&l, &file), QN_OK);
    }
    assert_int_equal(qn_hub_files_add(&l, &file), QN_E_FULL);
    qn_hub_files_free(&l);
}

static void test_memory_runs_out(void **state)
{
    static const char text[] =
        "[" FILE_ENTRY("config.json", "5", SHA1) "," LFS_ENTRY("d/m.gguf", "9", SHA256) "]";
    for (int n = 1;; n++) {
        qn_hub_files l = {0};
        const int64_t live = qn_mem_live_blocks();
        qn_mem_fail_nth(n);
        qn_status status = qn_hub_read_tree("x", text, strlen(text), &l);
        qn_mem_fail_nth(0);
        qn_hub_files_free(&l);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_true(n < 2000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_bad_trees),
        cmocka_unit_test(test_revision),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
