/* What is stored: by owner, bounded in bytes and age, whole after the process was killed at any moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "server/archive/archive.h"

static char folder[64];

static qn_archive *open_with(int64_t bytes_max, int64_t age_max_s)
{
    qn_archive *s = NULL;
    const qn_archive_options o = {folder, bytes_max, age_max_s, 1 << 20};
    if (qn_archive_open(&o, &s) != QN_OK) fail_msg("%s", qn_last_error());
    return s;
}

static qn_archive *open_usual(void)
{
    return open_with(16 << 20, 3600);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "build/archive-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static void remove_below(const char *path)
{
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) {
        char name[512];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (unlink(name) != 0) remove_below(name);
    }
    if (d) closedir(d);
    rmdir(path);
}

static int tear_down(void **state)
{
    (void)state;
    remove_below(folder);
    return 0;
}

static qn_stored response(const char *id, const char *owner, const char *object)
{
    return (qn_stored){.kind = QN_STORED_RESPONSE,
                       .id = id,
                       .owner = owner,
                       .created_s = (int64_t)time(NULL),
                       .object = object,
                       .object_bytes = strlen(object),
                       .more = "[1]",
                       .more_bytes = 3};
}

static void put(qn_archive *s, const char *id, const char *owner, const char *object)
{
    const qn_stored o = response(id, owner, object);
    assert_int_equal(qn_archive_put(s, &o), QN_OK);
}

static int has(qn_archive *s, const char *id, const char *owner)
{
    qn_buf b = {0};
    const qn_status status = qn_archive_get(s, QN_STORED_RESPONSE, id, owner, &b, NULL);
    assert_true(status == QN_OK || status == QN_E_NOT_FOUND);
    qn_buf_free(&b);
    return status == QN_OK;
}

static qn_status add_id(void *user, const qn_stored *o)
{
    qn_buf_printf(user, "%s ", o->id);
    return QN_OK;
}

static void check_list(qn_archive *s, qn_archive_query q, const char *ids, int more)
{
    qn_buf b = {0};
    int has_more = -1;
    qn_buf_puts(&b, "");
    assert_int_equal(qn_archive_list(s, &q, add_id, &b, &has_more), QN_OK);
    assert_string_equal(b.data ? b.data : "", ids);
    assert_int_equal(has_more, more);
    qn_buf_free(&b);
}

static void test_objects(void **state)
{
    qn_archive *s = open_usual();
    qn_buf object = {0}, more = {0};
    (void)state;
    put(s, "resp_a", "anna", "{\"a\":1}");
    put(s, "resp_b", "anna", "{\"b\":1}");
    put(s, "resp_c", "ben", "{\"c\":1}");
    put(s, "resp_a", "anna", "{\"a\":2}"); /* keeps its place */
    qn_archive_close(s);
    s = open_usual();
    assert_int_equal(qn_archive_get(s, QN_STORED_RESPONSE, "resp_a", "anna", &object, &more), QN_OK);
    assert_string_equal(object.data, "{\"a\":2}");
    assert_string_equal(more.data, "[1]");
    assert_false(has(s, "resp_a", "ben"));
    assert_false(has(s, "resp_a", ""));
    assert_true(has(s, "resp_a", NULL));
    assert_int_equal(qn_archive_get(s, QN_STORED_FILE, "resp_a", "anna", &object, NULL), QN_E_NOT_FOUND);
    check_list(s, (qn_archive_query){QN_STORED_RESPONSE, "anna", NULL, NULL, 10, 0}, "resp_b resp_a ", 0);
    check_list(s, (qn_archive_query){QN_STORED_RESPONSE, "anna", NULL, NULL, 1, 1}, "resp_a ", 1);
    check_list(s, (qn_archive_query){QN_STORED_RESPONSE, "anna", NULL, "resp_a", 10, 1}, "resp_b ", 0);
    check_list(s, (qn_archive_query){QN_STORED_RESPONSE, NULL, NULL, NULL, 10, 1}, "resp_a resp_b resp_c ",
               0);
    assert_int_equal(qn_archive_remove(s, QN_STORED_RESPONSE, "resp_a", "ben"), QN_E_NOT_FOUND);
    assert_int_equal(qn_archive_remove(s, QN_STORED_RESPONSE, "resp_a", "anna"), QN_OK);
    assert_false(has(s, "resp_a", "anna"));
    qn_archive_close(s);
    qn_buf_free(&object);
    qn_buf_free(&more);
}

static void test_owner(void **state)
{
    char a[QN_ARCHIVE_OWNER_MAX], b[QN_ARCHIVE_OWNER_MAX];
    (void)state;
    qn_archive_name_owner(NULL, a);
    assert_string_equal(a, "");
    qn_archive_name_owner("key", a);
    qn_archive_name_owner("other", b);
    assert_int_equal(strlen(a), 64);
    assert_string_not_equal(a, b);
}

/* The oldest give way; an object larger than the store is refused and nothing is lost for it. */
static void test_bytes(void **state)
{
    enum { LIMIT = 100000, EACH = 9000 };
    qn_archive *s = open_with(LIMIT, 3600);
    char *text = qn_alloc(2 * LIMIT);
    char id[32];
    struct stat st;
    char path[128];
    (void)state;
    memset(text, 'x', 2 * LIMIT);
    text[EACH] = 0;
    for (int i = 0; i < 200; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        put(s, id, "", text);
    }
    assert_true(has(s, "resp_199", ""));
    assert_true(has(s, "resp_191", ""));
    assert_false(has(s, "resp_180", ""));
    text[EACH] = 'x';
    text[2 * LIMIT - 1] = 0;
    const qn_stored large = response("resp_large", "", text);
    assert_int_equal(qn_archive_put(s, &large), QN_E_FULL);
    assert_true(has(s, "resp_199", ""));
    qn_archive_close(s);
    snprintf(path, sizeof path, "%s/store.sqlite", folder);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size < 4 * LIMIT); /* what was given up does not make the file grow */
    qn_free(text);
}

static void test_age(void **state)
{
    qn_archive *s = open_with(1 << 20, 100);
    qn_stored o = response("resp_old", "", "{}");
    (void)state;
    put(s, "resp_new", "", "{}");
    o.created_s -= 101;
    assert_int_equal(qn_archive_put(s, &o), QN_OK);
    assert_false(has(s, "resp_old", ""));
    put(s, "resp_other", "", "{}");
    check_list(s, (qn_archive_query){QN_STORED_RESPONSE, NULL, NULL, NULL, 10, 1}, "resp_new resp_other ", 0);
    qn_archive_close(s);
}

static qn_status keep_file(qn_archive *s, const char *id, const char *text, size_t n)
{
    qn_upload *u;
    qn_stored o = response(id, "anna", "{}");
    o.kind = QN_STORED_FILE;
    o.more = NULL;
    QN_TRY(qn_upload_begin(s, 0, &u));
    const qn_status status = qn_upload_take(u, text, n);
    if (status != QN_OK) {
        qn_upload_drop(u);
        return status;
    }
    assert_int_equal(qn_upload_bytes(u), n);
    return qn_upload_keep(u, &o);
}

static int count_entries(const char *name)
{
    char path[128];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void test_files(void **state)
{
    qn_archive *s = open_usual();
    char text[8] = {0};
    char *large = qn_calloc(1, (1 << 20) + 1);
    int file;
    int64_t bytes;
    (void)state;
    assert_int_equal(keep_file(s, "file-1", "content", 7), QN_OK);
    assert_int_equal(qn_archive_open_file(s, "file-1", "anna", &file, &bytes), QN_OK);
    assert_int_equal(bytes, 7);
    assert_int_equal(read(file, text, 7), 7);
    assert_string_equal(text, "content");
    close(file);
    assert_int_equal(qn_archive_open_file(s, "file-1", "ben", &file, &bytes), QN_E_NOT_FOUND);
    assert_int_equal(keep_file(s, "file-2", large, (1 << 20) + 1), QN_E_FULL);
    assert_int_equal(keep_file(s, "../file", "x", 1), QN_E_ARG);
    assert_int_equal(count_entries("incoming"), 0);
    assert_int_equal(count_entries("files"), 1);
    assert_int_equal(qn_archive_remove(s, QN_STORED_FILE, "file-1", "anna"), QN_OK);
    assert_int_equal(count_entries("files"), 0);
    qn_archive_close(s);
    qn_free(large);
}

static void test_batches(void **state)
{
    qn_archive *s = open_with(60000, 3600);
    qn_upload *uploads[2] = {0};
    qn_batch_counts counts;
    qn_stored files[2];
    int file, is_there;
    int64_t bytes;
    char text[64] = {0};
    (void)state;
    assert_int_equal(keep_file(s, "file-in", "lines", 5), QN_OK);
    qn_stored b = response("batch_1", "anna", "{}");
    b.kind = QN_STORED_BATCH;
    b.label = QN_STORED_OPEN;
    b.refers = "file-in";
    assert_int_equal(qn_archive_put(s, &b), QN_OK);
    assert_int_equal(qn_archive_put_line(s, "batch_1", 1, 0, "one", 3), QN_OK);
    assert_int_equal(qn_archive_put_line(s, "batch_1", 0, 0, "zero", 4), QN_OK);
    assert_int_equal(qn_archive_put_line(s, "batch_1", 2, 1, "bad", 3), QN_OK);
    assert_int_equal(qn_archive_has_line(s, "batch_1", 1, &is_there), QN_OK);
    assert_true(is_there);
    assert_int_equal(qn_archive_has_line(s, "batch_1", 3, &is_there), QN_OK);
    assert_false(is_there);
    assert_int_equal(qn_archive_count_lines(s, "batch_1", &counts), QN_OK);
    assert_int_equal(counts.n_lines, 3);
    assert_int_equal(counts.n_errors, 1);
    /* Neither an open batch nor what it reads gives way or is deleted. */
    assert_int_equal(qn_archive_remove(s, QN_STORED_FILE, "file-in", "anna"), QN_E_ARG);
    assert_int_equal(qn_archive_remove(s, QN_STORED_BATCH, "batch_1", "anna"), QN_E_ARG);
    char *large = qn_calloc(1, 30000);
    memset(large, 'x', 29999);
    for (int i = 0; i < 5; i++) {
        char id[32];
        snprintf(id, sizeof id, "resp_%d", i);
        put(s, id, "", large);
    }
    assert_int_equal(qn_archive_open_file(s, "file-in", "anna", &file, &bytes), QN_OK);
    close(file);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(qn_upload_begin(s, 1, &uploads[i]), QN_OK);
        assert_int_equal(qn_archive_write_lines(s, "batch_1", i, uploads[i]), QN_OK);
        files[i] = response(i ? "file-errors" : "file-out", "anna", "{}");
        files[i].kind = QN_STORED_FILE;
    }
    b.label = "ended";
    assert_int_equal(qn_archive_end_batch(s, &b, uploads, files), QN_OK);
    assert_int_equal(qn_archive_open_file(s, "file-out", "anna", &file, &bytes), QN_OK);
    assert_int_equal(read(file, text, sizeof text), 9);
    assert_string_equal(text, "zero\none\n");
    close(file);
    assert_int_equal(qn_archive_count_lines(s, "batch_1", &counts), QN_OK);
    assert_int_equal(counts.n_lines, 0);
    assert_int_equal(qn_archive_remove(s, QN_STORED_FILE, "file-in", "anna"), QN_OK);
    qn_archive_close(s);
    qn_free(large);
}

/* A process that adds objects and files until it is killed. */
static void add_for_ever(void)
{
    qn_archive *s = open_usual();
    char text[20000], id[64];
    memset(text, 'x', sizeof text);
    for (int i = 0;; i++) {
        qn_buf b = {0};
        snprintf(id, sizeof id, "resp_%d_%d", (int)getpid(), i);
        qn_buf_puts(&b, "{\"text\":");
        qn_buf_json_string(&b, text, (size_t)(i * 37 % 15000));
        qn_buf_puts(&b, "}");
        put(s, id, "anna", b.data);
        qn_buf_free(&b);
        snprintf(id, sizeof id, "file-%d-%d", (int)getpid(), i);
        keep_file(s, id, text, (size_t)(i * 101 % 15000));
    }
}

static qn_status check_object(void *user, const qn_stored *o)
{
    json_t *value = NULL;
    ++*(int *)user;
    assert_int_equal(qn_json_parse("object", o->object, o->object_bytes, &value), QN_OK);
    json_decref(value);
    return QN_OK;
}

static void test_killed(void **state)
{
    int n = 0, n_files = 0, more;
    (void)state;
    for (int round = 0; round < 12; round++) {
        const pid_t child = fork();
        if (!child) {
            add_for_ever();
            _exit(1);
        }
        usleep((useconds_t)(20000 + 7919 * round));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        qn_archive *s = open_usual();
        n = n_files = 0;
        const qn_archive_query all = {QN_STORED_RESPONSE, "anna", NULL, NULL, 100000, 1};
        const qn_archive_query files = {QN_STORED_FILE, "anna", NULL, NULL, 100000, 1};
        assert_int_equal(qn_archive_list(s, &all, check_object, &n, &more), QN_OK);
        assert_int_equal(qn_archive_list(s, &files, check_object, &n_files, &more), QN_OK);
        assert_int_equal(count_entries("files"), n_files);
        assert_int_equal(count_entries("incoming"), 0);
        qn_archive_close(s);
    }
    assert_true(n > 0);
}

static void test_refusals(void **state)
{
    qn_archive *s = open_usual(), *other = NULL;
    const qn_archive_options same = {folder, 1 << 20, 100, 100};
    const qn_archive_options nowhere = {"build/no/such/folder", 1 << 20, 100, 100};
    char path[128];
    (void)state;
    assert_int_equal(qn_archive_open(&same, &other), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "another process"));
    assert_int_equal(qn_archive_open(&nowhere, &other), QN_E_IO);
    qn_archive_close(s);
    snprintf(path, sizeof path, "%s/store.sqlite", folder);
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < 1000; i++) fputs("this is something else", f);
    fclose(f);
    assert_int_equal(qn_archive_open(&same, &other), QN_E_FORMAT);
    assert_null(other);
}

/* Each call fails as a whole if memory runs out, and the store goes on. */
static void test_no_memory(void **state)
{
    qn_archive *s = open_usual();
    (void)state;
    for (int64_t n = 1, ended = 0; !ended && n < 200; n++) {
        qn_buf b = {0};
        qn_mem_fail_nth(n);
        qn_status status = keep_file(s, "file-1", "content", 7);
        if (status == QN_OK) status = qn_archive_get(s, QN_STORED_FILE, "file-1", "anna", &b, NULL);
        ended = status == QN_OK && qn_mem_fails() == 0;
        qn_mem_fail_nth(0);
        assert_true(status == QN_OK || status == QN_E_NOMEM);
        qn_buf_free(&b);
    }
    put(s, "resp_1", "", "{}");
    assert_int_equal(count_entries("incoming"), 0);
    qn_archive_close(s);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_objects), TEST(test_owner),  TEST(test_bytes),    TEST(test_age),       TEST(test_files),
        TEST(test_batches), TEST(test_killed), TEST(test_refusals), TEST(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
