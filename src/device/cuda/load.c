/* Finding and opening the library quern-cuda, and choosing a card. It stays open. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "device/library.h"

#define LIBRARY "libquern-cuda.so"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const qn_cuda_shim *opened;

static qn_status load(int *is_there)
{
    void *library = qn_device_library_open(LIBRARY, "QUERN_CUDA_LIBRARY", is_there);
    if (!library) {
        const char *why = dlerror();
        if (!*is_there)
            return qn_fail(QN_E_UNSUPPORTED,
                           "device cuda: not built (make CUDA=1 in quern's source; see docs/cuda.md)");
        return qn_fail(QN_E_UNSUPPORTED,
                       "device cuda: the library cannot be loaded (%s). To build it: make CUDA=1 in quern's "
                       "source; see docs/cuda.md",
                       why ? why : "no reason was given");
    }
    qn_cuda_shim_get_fn *get;
    void *symbol = dlsym(library, QN_CUDA_SHIM_SYMBOL);
    if (!symbol) {
        dlclose(library);
        return qn_fail(QN_E_UNSUPPORTED, "device cuda: " LIBRARY " has no " QN_CUDA_SHIM_SYMBOL);
    }
    memcpy(&get, &symbol, sizeof get);
    const qn_cuda_shim *shim = get();
    if (shim->version != QN_CUDA_SHIM_VERSION)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "device cuda: " LIBRARY
            " belongs to another version of quern (interface %d, this one has %d): run make CUDA=1",
            shim->version, QN_CUDA_SHIM_VERSION);
    opened = shim;
    return QN_OK;
}

qn_status qn_cuda_load(const qn_cuda_shim **out)
{
    int is_there;
    pthread_mutex_lock(&lock);
    const qn_status status = opened ? QN_OK : load(&is_there);
    *out = opened;
    pthread_mutex_unlock(&lock);
    return status;
}

int qn_cuda_is_installed(void)
{
    int is_there = 1;
    pthread_mutex_lock(&lock);
    if (!opened) load(&is_there);
    pthread_mutex_unlock(&lock);
    return is_there;
}

/* A driver runs programs of its own major version, newer minor ones included. */
static qn_status check_driver(const qn_cuda_about *about)
{
    if (!about->driver_version)
        return qn_fail(QN_E_UNSUPPORTED,
                       "device cuda: no NVIDIA driver is installed (libcuda.so.1 is missing)");
    if (about->driver_version / 1000 < about->runtime_version / 1000)
        return qn_fail(QN_E_UNSUPPORTED,
                       "device cuda: the NVIDIA driver is too old: it has CUDA %d.%d, %d.0 is needed%s",
                       about->driver_version / 1000, about->driver_version % 1000 / 10,
                       about->runtime_version / 1000,
                       about->runtime_version / 1000 == 13 ? " (driver 580 or newer)" : "");
    if (!about->n_cards) return qn_fail(QN_E_UNSUPPORTED, "device cuda: the driver finds no NVIDIA card");
    return QN_OK;
}

qn_status qn_cuda_choose_card(const qn_cuda_shim *shim, int *out, qn_cuda_card *card)
{
    qn_cuda_about about;
    QN_TRY(shim->about(&about) == QN_OK ? QN_OK : qn_fail(QN_E_DEVICE, "%s", shim->error()));
    QN_TRY(check_driver(&about));
    char found[256] = "";
    for (int i = 0; i < about.n_cards; i++) {
        if (shim->card(i, card) != QN_OK) return qn_fail(QN_E_DEVICE, "%s", shim->error());
        if (card->has_code) {
            *out = i;
            return QN_OK;
        }
        const size_t n = strlen(found);
        snprintf(found + n, sizeof found - n, "%s%.60s (sm_%d%d)", n ? ", " : "", card->name, card->major,
                 card->minor);
    }
    return qn_fail(QN_E_UNSUPPORTED, "device cuda: the library has code for %s, this machine has: %s",
                   about.code, found);
}
