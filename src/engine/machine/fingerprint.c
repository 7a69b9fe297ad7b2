#include "engine/machine/fingerprint.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "base/map.h"
#include "base/mem.h"
#include "format/source/packed.h"

enum { TENSORS_AT_START = 4096 };

struct qn_fingerprint {
    char *path, *file, *mmproj; /* of a source that is looked into later; else NULL */
    uint64_t stamp;
    pthread_mutex_t lock; /* of what follows */
    int is_known;
    uint64_t hash;
};

/* A hash of the sizes and times of all files. */
static qn_status stamp_files(const qn_source *s, uint64_t *out)
{
    uint64_t hash = 1;
    const int64_t n = qn_source_file_count(s);
    for (int64_t i = 0; i < n + (qn_source_projector(s) != NULL); i++) {
        struct stat st;
        const char *path = i < n ? qn_source_file_path(s, i) : qn_gguf_path(qn_source_projector(s));
        if (stat(path, &st) != 0) return qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
        const int64_t about[] = {(int64_t)st.st_ino, (int64_t)st.st_size, (int64_t)st.st_mtim.tv_sec,
                                 (int64_t)st.st_mtim.tv_nsec};
        hash = qn_hash_bytes(about, sizeof about, hash);
    }
    *out = hash;
    return QN_OK;
}

static qn_status begin(qn_fingerprint *f, qn_source *source, const char *file)
{
    if (qn_source_count(source) <= TENSORS_AT_START) {
        f->is_known = 1;
        return qn_packed_fingerprint(source, &f->hash);
    }
    f->path = qn_strdup(qn_source_path(source));
    f->file = file ? qn_strdup(file) : NULL;
    const qn_gguf *projector = qn_source_projector(source);
    f->mmproj = projector ? qn_strdup(qn_gguf_path(projector)) : NULL;
    if (!f->path || (file && !f->file) || (projector && !f->mmproj)) return QN_E_NOMEM;
    return stamp_files(source, &f->stamp);
}

qn_status qn_fingerprint_new(qn_source *source, const char *file, qn_fingerprint **out)
{
    qn_fingerprint *f = qn_calloc(1, sizeof *f);
    if (!f) return QN_E_NOMEM;
    pthread_mutex_init(&f->lock, NULL);
    qn_status status = begin(f, source, file);
    if (status == QN_OK)
        *out = f;
    else
        qn_fingerprint_free(f);
    return status;
}

void qn_fingerprint_free(qn_fingerprint *f)
{
    if (!f) return;
    pthread_mutex_destroy(&f->lock);
    qn_free(f->path);
    qn_free(f->file);
    qn_free(f->mmproj);
    qn_free(f);
}

static qn_status look(qn_fingerprint *f)
{
    qn_source *source = NULL;
    uint64_t stamp = 0;
    QN_TRY(qn_source_open(f->path, &(qn_source_options){.file = f->file, .mmproj = f->mmproj}, &source));
    qn_status status = stamp_files(source, &stamp);
    if (status == QN_OK && stamp != f->stamp)
        status = qn_fail(QN_E_IO, "%s: the files have changed since the model was opened", f->path);
    if (status == QN_OK) status = qn_packed_fingerprint(source, &f->hash);
    if (status == QN_OK) f->is_known = 1;
    qn_source_close(source);
    return status;
}

qn_status qn_fingerprint_get(qn_fingerprint *f, uint64_t *out)
{
    pthread_mutex_lock(&f->lock);
    qn_status status = f->is_known ? QN_OK : look(f);
    if (status == QN_OK) *out = f->hash;
    pthread_mutex_unlock(&f->lock);
    return status;
}
