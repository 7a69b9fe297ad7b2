#include "server/core/folder.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert(QN_FOLDER_PATH_MAX >= PATH_MAX, "realpath needs so much");

static int fail_name(qn_api_error *error, const char *field, const char *why)
{
    return qn_api_fail(error, 400, "invalid_value", field, "%s %s", field, why);
}

/* Parts between slashes, none of which leads upwards. */
static int check_name(const char *name, const char *field, qn_api_error *error)
{
    if (!*name || strlen(name) > QN_FOLDER_NAME_MAX)
        return fail_name(error, field, "must have 1 to 255 bytes");
    if (*name == '/') return fail_name(error, field, "must be relative to the server's folder");
    for (const char *part = name; part; part = strchr(part, '/')) {
        if (*part == '/') part++;
        const size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return fail_name(error, field, "must have no empty part, \".\" or \"..\"");
    }
    return 0;
}

static int is_below(const char *root, const char *path)
{
    const size_t n = strlen(root);
    if (strcmp(root, "/") == 0) return 1;
    return strncmp(root, path, n) == 0 && path[n] == '/';
}

static int fail_outside(qn_api_error *error, const char *field)
{
    return fail_name(error, field, "leads out of the server's folder by a symbolic link");
}

static int fail_root(qn_api_error *error)
{
    return qn_api_fail(error, 500, "internal_error", NULL, "the server's folder: %s", strerror(errno));
}

/* The files that will be opened may be links. One that leads nowhere is found out when it is opened. */
static int check_entries(const char *root, const char *path, const char *field, qn_api_error *error)
{
    char entry[QN_FOLDER_PATH_MAX + NAME_MAX + 2], real[QN_FOLDER_PATH_MAX];
    DIR *d = opendir(path);
    int refused = d ? 0 : qn_api_fail(error, 404, "not_found", field, "%s: the folder cannot be read", field);
    for (const struct dirent *e; !refused && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(entry, sizeof entry, "%s/%s", path, e->d_name);
        if (realpath(entry, real) && !is_below(root, real)) refused = fail_outside(error, field);
    }
    if (d) closedir(d);
    return refused;
}

int qn_folder_find(const char *root, const char *name, const char *field, char out[QN_FOLDER_PATH_MAX],
                   qn_api_error *error)
{
    char real_root[QN_FOLDER_PATH_MAX], path[QN_FOLDER_PATH_MAX + QN_FOLDER_NAME_MAX + 2];
    struct stat st;
    int refused = check_name(name, field, error);
    if (refused) return refused;
    if (!realpath(root, real_root)) return fail_root(error);
    snprintf(path, sizeof path, "%s/%s", real_root, name);
    if (!realpath(path, out) || stat(out, &st) != 0)
        return qn_api_fail(error, 404, "not_found", field, "%s: the server's folder has no '%s'", field,
                           name);
    if (!is_below(real_root, out)) return fail_outside(error, field);
    if (!S_ISDIR(st.st_mode)) return fail_name(error, field, "must name a folder");
    return check_entries(real_root, out, field, error);
}

int qn_folder_name_file(const char *root, const char *name, const char *field, char out[QN_FOLDER_PATH_MAX],
                        qn_api_error *error)
{
    char real_root[QN_FOLDER_PATH_MAX];
    struct stat st;
    int refused = check_name(name, field, error);
    if (refused) return refused;
    if (*name == '.' || strchr(name, '/'))
        return fail_name(error, field,
                         "must be the name of a file, without a slash, that does not begin with '.'");
    if (!realpath(root, real_root)) return fail_root(error);
    if (snprintf(out, QN_FOLDER_PATH_MAX, "%s/%s", real_root, name) >= QN_FOLDER_PATH_MAX)
        return fail_name(error, field, "is too long");
    if (lstat(out, &st) == 0 && !S_ISREG(st.st_mode)) return fail_name(error, field, "must name a file");
    return 0;
}
