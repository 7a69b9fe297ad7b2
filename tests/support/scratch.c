#include "tests/support/scratch.h"

#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_PATHS = 8, PATH_MAX_BYTES = 4096 };

static char *next_buffer(void)
{
    static _Thread_local char paths[N_PATHS][PATH_MAX_BYTES];
    static _Thread_local unsigned i_next;
    return paths[i_next++ % N_PATHS];
}

const char *qn_test_scratch(void)
{
    static _Thread_local char folders[N_PATHS][PATH_MAX_BYTES];
    static _Thread_local unsigned i_next;
    const char *base = getenv("TMPDIR");
    char *path = folders[i_next++ % N_PATHS];
    snprintf(path, PATH_MAX_BYTES, "%s/quern-test-XXXXXX", base && *base ? base : P_tmpdir);
    if (!mkdtemp(path)) fail_msg("%s: cannot make a folder", path);
    return path;
}

const char *qn_test_path(const char *folder, const char *name)
{
    char *path = next_buffer();
    snprintf(path, PATH_MAX_BYTES, "%s/%s", folder, name);
    return path;
}

const char *qn_test_write(const char *folder, const char *name, const void *bytes, size_t n)
{
    const char *path = qn_test_path(folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) fail_msg("%s: cannot be written", path);
    return path;
}

const char *qn_test_write_text(const char *folder, const char *name, const char *text)
{
    return qn_test_write(folder, name, text, strlen(text));
}

const char *qn_test_copy(const char *folder, const char *name, const char *from)
{
    const char *path = qn_test_path(folder, name);
    FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
    if (!in || !out) fail_msg("%s: cannot be copied to %s", from, path);
    char block[1 << 14];
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;)
        if (fwrite(block, 1, n, out) != n) fail_msg("%s: cannot be written", path);
    fclose(in);
    if (fclose(out) != 0) fail_msg("%s: cannot be written", path);
    return path;
}

int qn_test_count_files(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = 0;
    if (!dir) fail_msg("%s: cannot be listed", folder);
    for (struct dirent *e; (e = readdir(dir));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return n;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *place)
{
    (void)st;
    (void)kind;
    (void)place;
    return remove(path);
}

void qn_test_remove(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
