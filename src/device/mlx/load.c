/* Finding and opening the library quern-mlx. It stays open: what MLX starts outlives its devices. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device/library.h"
#include "device/mlx/mlx.h"

#define LIBRARY "libquern-mlx.so"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const qn_mlx_shim *opened;

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
    void *library = qn_device_library_open(LIBRARY, "QUERN_MLX_LIBRARY", NULL);
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
