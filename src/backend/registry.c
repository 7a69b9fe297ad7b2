#include "backend/registry.h"

#include <pthread.h>
#include <quern/quern.h>
#include <string.h>

#include "backend/mlx_lm/mlx_lm.h"
#include "backend/mock/mock.h"
#include "backend/native/native.h"
#include "base/mem.h"

enum { MAX_BACKENDS = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The first is the default until another is chosen. mock is in no list: it answers to its name alone. */
static const qn_backend *backends[MAX_BACKENDS] = {
    &qn_backend_native,
#ifndef QN_WITHOUT_MLX_LM
    &qn_backend_mlx_lm,
#endif
};
static size_t n_backends =
#ifdef QN_WITHOUT_MLX_LM
    1;
#else
    2;
#endif
static size_t i_default;

static const qn_backend *find(const char *name)
{
    if (!name) return backends[i_default];
    for (size_t i = 0; i < n_backends; i++)
        if (strcmp(backends[i]->name, name) == 0) return backends[i];
    const qn_backend *mock = qn_backend_mock();
    return strcmp(mock->name, name) == 0 ? mock : NULL;
}

qn_status qn_backend_register(const qn_backend *backend)
{
    if (!backend || !backend->name || !backend->name[0] || !backend->open || !backend->close)
        return qn_fail(QN_E_ARG, "a backend needs a name and the functions open and close");
    pthread_mutex_lock(&lock);
    qn_status status = QN_OK;
    if (find(backend->name))
        status = qn_fail(QN_E_ARG, "there already is a backend named %s", backend->name);
    else if (n_backends == MAX_BACKENDS)
        status = qn_fail(QN_E_FULL, "there are more than %d backends", MAX_BACKENDS);
    else
        backends[n_backends++] = backend;
    pthread_mutex_unlock(&lock);
    return status;
}

const qn_backend *qn_backend_get(const char *name)
{
    pthread_mutex_lock(&lock);
    const qn_backend *found = find(name);
    pthread_mutex_unlock(&lock);
    return found;
}

qn_status qn_backend_set_default(const char *name)
{
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (name && i < n_backends && strcmp(backends[i]->name, name) != 0) i++;
    int found = name && i < n_backends;
    if (found) i_default = i;
    pthread_mutex_unlock(&lock);
    if (found) return QN_OK;
    char names[256];
    qn_backend_list_names(names, sizeof names);
    return qn_fail(QN_E_NOT_FOUND, "there is no backend named %s; there are: %s", name ? name : "(null)",
                   names);
}

const char *qn_backend_name(size_t i_backend)
{
    pthread_mutex_lock(&lock);
    const char *name = i_backend < n_backends ? backends[i_backend]->name : NULL;
    pthread_mutex_unlock(&lock);
    return name;
}

void qn_backend_list_names(char *out, size_t size_bytes)
{
    size_t at = 0;
    const char *name;
    out[0] = 0;
    for (size_t i = 0; (name = qn_backend_name(i)); i++) {
        size_t n = strlen(name), gap = i ? 2 : 0;
        if (n + gap >= size_bytes - at) return;
        memcpy(out + at, ", ", gap);
        memcpy(out + at + gap, name, n + 1);
        at += gap + n;
    }
}

qn_status qn_backend_fail_missing(const qn_backend *backend, const char *what)
{
    return qn_fail(QN_E_UNSUPPORTED, "the backend %s does not offer %s%s", backend->name, what,
                   backend == &qn_backend_native ? "" : "; the backend native does");
}

void *qn_buffer_new(size_t size_bytes)
{
    return qn_alloc(size_bytes);
}

void qn_buffer_free(void *buffer)
{
    qn_free(buffer);
}

#define TO_TEXT(x) TO_TEXT_(x)
#define TO_TEXT_(x) #x
const char *qn_version(void)
{
    return TO_TEXT(QN_VERSION_MAJOR) "." TO_TEXT(QN_VERSION_MINOR) "." TO_TEXT(QN_VERSION_PATCH);
}
