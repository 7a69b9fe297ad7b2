/* Finding and opening the library quern-mlx. It stays open: what MLX starts outlives its devices. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/mlx/mlx.h"

#define LIBRARY "libquern-mlx.so"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const qn_mlx_shim *opened;

/* The folder of the binary (or libquern) that this code is in, with a slash behind it; "" when it is not
 * known. */
static void own_folder(char out[PATH_MAX])
{
    Dl_info here;
    char *slash = NULL;
    out[0] = 0;
    if (!dladdr((const void *)&opened, &here) || !here.dli_fname) return;
    /* of a program that was found by PATH some systems know the name alone */
    if (realpath(strchr(here.dli_fname, '/') ? here.dli_fname : "/proc/self/exe", out))
        slash = strrchr(out, '/');
    if (slash)
        slash[1] = 0;
    else
        out[0] = 0;
}

/* Beside this code, in ../lib of it, then where the loader looks. QUERN_MLX_LIBRARY names the one file that
 * is tried instead. */
static void *open_library(void)
{
    static const char *const places[] = {"%s" LIBRARY, "%s../lib/" LIBRARY};
    const char *named = getenv("QUERN_MLX_LIBRARY");
    if (named && *named) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    char folder[PATH_MAX], path[PATH_MAX + 64];
    own_folder(folder);
    for (size_t i = 0; *folder && i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, places[i], folder);
        if (access(path, F_OK) == 0) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static void version_text(int v, char *out, size_t size)
{
    snprintf(out, size, "%d.%d.%d", v / 100000, v / 1000 % 100, v % 1000);
}

/* What was compiled against one MLX does not run with another: argument lists and layouts of objects move. */
static qn_status check_versions(const qn_mlx_shim *shim)
{
    if (shim->version != QN_MLX_SHIM_VERSION)
        return qn_fail(QN_E_UNSUPPORTED,
                       "device mlx: " LIBRARY
                       " belongs to another version of quern (interface %d, this one has %d): run make MLX=1",
                       shim->version, QN_MLX_SHIM_VERSION);
    const qn_mlx_about about = shim->about();
    if (about.header_version == about.library_version) return QN_OK;
    char built[32], found[32];
    version_text(about.header_version, built, sizeof built);
    version_text(about.library_version, found, sizeof found);
    return qn_fail(QN_E_UNSUPPORTED,
                   "device mlx: " LIBRARY " was built for MLX %s, but MLX %s is installed: run make MLX=1 "
                   "again",
                   built, found);
}

static qn_status load(void)
{
    void *library = open_library();
    if (!library) {
        const char *why = dlerror();
        return qn_fail(QN_E_UNSUPPORTED,
                       "device mlx: " LIBRARY " cannot be loaded (%s). To install it: pip install mlx (on "
                       "Linux 'mlx[cpu]'), then run make MLX=1 in quern's source; see "
                       "docs/mlx.md",
                       why ? why : "no reason was given");
    }
    qn_mlx_shim_get_fn *get;
    void *symbol = dlsym(library, QN_MLX_SHIM_SYMBOL);
    if (!symbol) {
        dlclose(library);
        return qn_fail(QN_E_UNSUPPORTED, "device mlx: " LIBRARY " has no " QN_MLX_SHIM_SYMBOL);
    }
    memcpy(&get, &symbol, sizeof get);
    const qn_mlx_shim *shim = get();
    QN_TRY(check_versions(shim));
    opened = shim;
    return QN_OK;
}

qn_status qn_mlx_load(const qn_mlx_shim **out)
{
    pthread_mutex_lock(&lock);
    const qn_status status = opened ? QN_OK : load();
    *out = opened;
    pthread_mutex_unlock(&lock);
    return status;
}
