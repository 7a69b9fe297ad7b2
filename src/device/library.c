#include "device/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder of the binary (or libquern) that this code is in, with a slash behind it; "" when it is not
 * known. */
static void own_folder(char out[PATH_MAX])
{
    Dl_info here;
    char *slash = NULL;
    out[0] = 0;
    if (!dladdr((const void *)(uintptr_t)own_folder, &here) || !here.dli_fname) return;
    /* of a program that was found by PATH some systems know the name alone */
    if (realpath(strchr(here.dli_fname, '/') ? here.dli_fname : "/proc/self/exe", out))
        slash = strrchr(out, '/');
    if (slash)
        slash[1] = 0;
    else
        out[0] = 0;
}

void *qn_device_library_open(const char *name, const char *variable, int *is_there)
{
    static const char *const places[] = {"%s%s", "%s../lib/%s"};
    const char *named = getenv(variable);
    char folder[PATH_MAX], path[PATH_MAX + 64];
    int ignored;
    if (!is_there) is_there = &ignored;
    *is_there = 1;
    if (named && *named) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    own_folder(folder);
    for (size_t i = 0; *folder && i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, places[i], folder, name);
        if (access(path, F_OK) == 0) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    *is_there = library != NULL;
    return library;
}
