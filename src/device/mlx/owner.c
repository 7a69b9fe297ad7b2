/* The owner of MLX: one thread of the process, for MLX's streams belong to the thread that made them. It
 * lives while there are devices. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cache_folder.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/mlx/mlx.h"

/* What a thread waits for. */
typedef struct {
    qn_mlx_job job;
    qn_mlx_owner *owner;
    qn_status (*fn)(void *arg);
    void *arg;
    qn_status status;
    int done;
    char message[1024];
} waited;

struct qn_mlx_owner {
    const qn_mlx_shim *shim;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t posted, finished;
    qn_mlx_job *first, **end; /* waiting, in order */
    int ends;
    int holders; /* by the_lock */
};

static pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;
static qn_mlx_owner *the_owner;

qn_status qn_mlx_check(const qn_mlx_shim *shim, qn_status status)
{
    return status == QN_OK ? QN_OK : qn_fail(status, "%s", shim->error());
}

/* ---- kernels that MLX compiles ------------------------------------------------------------------------ */

/* MLX loads code from this folder: nobody else may write there. */
static qn_status kernels_folder(qn_buf *out)
{
    QN_TRY(qn_cache_folder(out));
    mkdir(out->data, 0700);
    qn_buf_printf(out, "/mlx-kernels");
    QN_TRY(out->status);
    struct stat st;
    if (mkdir(out->data, 0700) != 0 && errno != EEXIST)
        return qn_fail(QN_E_IO, "%s: cannot be created (%s)", out->data, strerror(errno));
    if (lstat(out->data, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return qn_fail(QN_E_IO, "%s: must be a folder that only you can read and write", out->data);
    return QN_OK;
}

/* On a GPU chains are compiled in memory. On the CPU MLX runs g++ for each kind of chain, for half a second:
 * only where QUERN_MLX_COMPILE=1 asks for it. */
static qn_status begin(void *arg)
{
    const qn_mlx_shim *shim = arg;
    const char *wish = getenv("QUERN_MLX_COMPILE");
    const int on_gpu = shim->about().on_gpu;
    const int compile = wish && *wish ? strcmp(wish, "0") != 0 : on_gpu;
    qn_buf folder = {0};
    qn_status status = compile && !on_gpu ? kernels_folder(&folder) : QN_OK;
    if (status == QN_OK) status = qn_mlx_check(shim, shim->begin(compile, folder.data));
    qn_buf_free(&folder);
    return status;
}

/* ---- the thread --------------------------------------------------------------------------------------- */

static void *serve(void *arg)
{
    qn_mlx_owner *o = arg;
    pthread_mutex_lock(&o->lock);
    while (!o->ends || o->first) {
        qn_mlx_job *j = o->first;
        if (!j) {
            pthread_cond_wait(&o->posted, &o->lock);
            continue;
        }
        o->first = j->next;
        if (!o->first) o->end = &o->first;
        j->is_posted = 0;
        void (*run)(void *arg) = j->run;
        void *arg_of_job = j->arg;
        pthread_mutex_unlock(&o->lock);
        run(arg_of_job);
        pthread_mutex_lock(&o->lock);
    }
    pthread_mutex_unlock(&o->lock);
    o->shim->end();
    return NULL;
}

/* The lock is held. */
static void post(qn_mlx_owner *o, qn_mlx_job *j)
{
    j->is_posted = 1;
    j->next = NULL;
    *o->end = j;
    o->end = &j->next;
    pthread_cond_signal(&o->posted);
}

void qn_mlx_post(qn_mlx_owner *o, qn_mlx_job *j)
{
    pthread_mutex_lock(&o->lock);
    if (!j->is_posted) post(o, j);
    pthread_mutex_unlock(&o->lock);
}

static void run_waited(void *arg)
{
    waited *w = arg;
    qn_mlx_owner *o = w->owner;
    w->status = w->fn(w->arg);
    if (w->status != QN_OK) snprintf(w->message, sizeof w->message, "%s", qn_last_error());
    pthread_mutex_lock(&o->lock);
    w->done = 1;
    pthread_cond_broadcast(&o->finished);
    pthread_mutex_unlock(&o->lock);
}

qn_status qn_mlx_call(qn_mlx_owner *o, qn_status (*fn)(void *arg), void *arg)
{
    waited w = {.job.run = run_waited, .owner = o, .fn = fn, .arg = arg};
    w.job.arg = &w;
    pthread_mutex_lock(&o->lock);
    post(o, &w.job);
    while (!w.done) pthread_cond_wait(&o->finished, &o->lock);
    pthread_mutex_unlock(&o->lock);
    return w.status == QN_OK ? QN_OK : qn_fail_copy(w.status, w.message);
}

static void stop(qn_mlx_owner *o)
{
    pthread_mutex_lock(&o->lock);
    o->ends = 1;
    pthread_cond_signal(&o->posted);
    pthread_mutex_unlock(&o->lock);
    pthread_join(o->thread, NULL);
    pthread_cond_destroy(&o->posted);
    pthread_cond_destroy(&o->finished);
    pthread_mutex_destroy(&o->lock);
    qn_free(o);
}

static qn_status start(const qn_mlx_shim *shim, qn_mlx_owner **out)
{
    qn_mlx_owner *o = qn_calloc(1, sizeof *o);
    if (!o) return QN_E_NOMEM;
    o->shim = shim;
    o->end = &o->first;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->posted, NULL);
    pthread_cond_init(&o->finished, NULL);
    const int error = pthread_create(&o->thread, NULL, serve, o);
    if (error) {
        qn_free(o);
        return qn_fail(QN_E_NOMEM, "device mlx: cannot start a thread (%s)", strerror(error));
    }
    const qn_status status = qn_mlx_call(o, begin, (void *)(uintptr_t)shim);
    if (status != QN_OK) {
        stop(o);
        return status;
    }
    *out = o;
    return QN_OK;
}

qn_status qn_mlx_owner_new(const qn_mlx_shim *shim, qn_mlx_owner **out)
{
    pthread_mutex_lock(&the_lock);
    const qn_status status = the_owner ? QN_OK : start(shim, &the_owner);
    if (status == QN_OK) {
        the_owner->holders++;
        *out = the_owner;
    }
    pthread_mutex_unlock(&the_lock);
    return status;
}

void qn_mlx_owner_free(qn_mlx_owner *o)
{
    if (!o) return;
    pthread_mutex_lock(&the_lock);
    if (--o->holders == 0) {
        the_owner = NULL;
        stop(o);
    }
    pthread_mutex_unlock(&the_lock);
}
