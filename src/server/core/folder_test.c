/* Names that clients send for folders below the server's: what is found, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/core/folder.h"

static char top[64];

static void in_top(char *out, size_t size, const char *name)
{
    snprintf(out, size, "%s/%s", top, name);
}

static void make_folder(const char *name)
{
    char path[256];
    in_top(path, sizeof path, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void make_file(const char *name)
{
    char path[256];
    in_top(path, sizeof path, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

static void make_link(const char *to, const char *name)
{
    char path[256];
    in_top(path, sizeof path, name);
    assert_int_equal(symlink(to, path), 0);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(top, sizeof top, "build/folder-XXXXXX");
    if (!mkdtemp(top)) return -1;
    make_folder("root");
    make_folder("root/a");
    make_folder("root/a/b");
    make_folder("root/blobs");
    make_folder("root/linked");
    make_folder("root/leaks");
    make_folder("root-beside");
    make_folder("outside");
    make_file("root/file");
    make_file("root/blobs/1");
    make_file("outside/secret");
    make_link("../outside", "root/out");
    make_link("../root-beside", "root/beside");
    make_link("/", "root/slash");
    make_link("a/b", "root/inner");
    make_link("../blobs/1", "root/linked/model");
    make_link("nowhere", "root/linked/dangling");
    make_link("../../outside/secret", "root/leaks/model");
    make_link("loop", "root/loop");
    return 0;
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
    remove_below(top);
    return 0;
}

static int find(const char *name, char *out, qn_api_error *error)
{
    char root[256];
    in_top(root, sizeof root, "root");
    return qn_folder_find(root, name, "path", out, error);
}

static void test_found(void **state)
{
    static const char *const names[][2] = {
        {"a", "root/a"}, {"a/b", "root/a/b"}, {"inner", "root/a/b"}, {"linked", "root/linked"}};
    char out[QN_FOLDER_PATH_MAX], real[QN_FOLDER_PATH_MAX], want[256];
    qn_api_error error;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(find(names[i][0], out, &error), 0);
        in_top(want, sizeof want, names[i][1]);
        assert_non_null(realpath(want, real));
        assert_string_equal(out, real);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *name;
        int status;
    } cases[] = {{"", 400},        {"/etc", 400},     {"/", 400},       {".", 400},     {"..", 400},
                 {"../root", 400}, {"a/../a", 400},   {"a/./b", 400},   {"a//b", 400},  {"a/", 400},
                 {"a/..", 400},    {"out", 400},      {"beside", 400},  {"slash", 400}, {"slash/etc", 400},
                 {"file", 400},    {"leaks", 400},    {"missing", 404}, {"a/b/c", 404}, {"file/x", 404},
                 {"loop", 404},    {"out/none", 404}, {"...", 404},     {"a/b/.x", 404}};
    char out[QN_FOLDER_PATH_MAX], longest[QN_FOLDER_NAME_MAX + 2];
    qn_api_error error;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(find(cases[i].name, out, &error), cases[i].status);
        assert_string_equal(error.param, "path");
        assert_null(strstr(error.message, top));
    }
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(find(longest, out, &error), 400);
    longest[QN_FOLDER_NAME_MAX] = 0;
    assert_int_equal(find(longest, out, &error), 404);
    assert_int_equal(qn_folder_find("/nowhere at all", "a", "path", out, &error), 500);
}

static void test_files(void **state)
{
    static const char *const right[] = {"file", "new", "a.state", "x-1"};
    static const char *const wrong[] = {"",   "/etc/passwd", "../root", ".",     "..",   ".hidden", "a/b",
                                        "a/", "a",           "out",     "inner", "loop", "blobs/1"};
    char root[256], out[QN_FOLDER_PATH_MAX], real[QN_FOLDER_PATH_MAX];
    qn_api_error error;
    (void)state;
    in_top(root, sizeof root, "root");
    assert_non_null(realpath(root, real));
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        assert_int_equal(qn_folder_name_file(root, right[i], "file", out, &error), 0);
        assert_memory_equal(out, real, strlen(real));
        assert_string_equal(out + strlen(real) + 1, right[i]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(qn_folder_name_file(root, wrong[i], "file", out, &error), 400);
        assert_string_equal(error.param, "file");
    }
    assert_int_equal(qn_folder_name_file("/nowhere at all", "a", "file", out, &error), 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_found), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_files)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
