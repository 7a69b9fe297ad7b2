#include "engine/machine/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/weights/packing.h"

/* Makes the folders that a path leads through. */
static qn_status make_folders(char *path)
{
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        int failed = mkdir(path, 0777) != 0 && errno != EEXIST;
        qn_status status =
            failed ? qn_fail(QN_E_IO, "%s: cannot create the folder: %s", path, strerror(errno)) : QN_OK;
        *p = '/';
        QN_TRY(status);
    }
    return QN_OK;
}

/* *yes: the folder of the file is writable. */
static qn_status look_at_folder(const char *file, int *yes)
{
    const char *slash = strrchr(file, '/');
    char *folder = slash ? qn_strndup(file, (size_t)(slash - file) + 1) : qn_strdup(".");
    if (!folder) return QN_E_NOMEM;
    *yes = access(folder, W_OK) == 0;
    qn_free(folder);
    return QN_OK;
}

static qn_status choose_path(const qn_source *s, const char *wish, qn_buf *out)
{
    if (wish) {
        if (strcmp(wish, "none") == 0)
            return qn_fail(
                QN_E_ARG,
                "none: this name stands for \"no packed file\"; write ./none for a file of this name");
        qn_buf_puts(out, wish);
        return out->status;
    }
    int is_writable = 0;
    QN_TRY(qn_packed_find_place(s, QN_PACKED_BESIDE, out));
    QN_TRY(look_at_folder(out->data, &is_writable));
    if (is_writable) return QN_OK;
    qn_buf_reset(out);
    QN_TRY(qn_packed_find_place(s, QN_PACKED_ELSEWHERE, out));
    return make_folders(out->data);
}

static qn_status refuse_same(const struct stat *target, const char *path, const char *of_model)
{
    struct stat st;
    if (!of_model || stat(of_model, &st) != 0 || st.st_dev != target->st_dev || st.st_ino != target->st_ino)
        return QN_OK;
    return qn_fail(QN_E_ARG, "%s: is a file of the model itself", path);
}

/* A model's own files are never replaced, whatever is forced. */
static qn_status spare_model(const qn_source *s, const char *path)
{
    struct stat target;
    if (stat(path, &target) != 0) return QN_OK;
    for (int64_t i = 0; i < qn_source_file_count(s); i++)
        QN_TRY(refuse_same(&target, path, qn_source_file_path(s, i)));
    if (qn_source_projector(s)) QN_TRY(refuse_same(&target, path, qn_gguf_path(qn_source_projector(s))));
    for (int i = 0; i < QN_SIDE_COUNT; i++)
        QN_TRY(refuse_same(&target, path, qn_source_side_path(s, (qn_side_file)i)));
    return refuse_same(&target, path, qn_source_index_path(s));
}

/* What lies at the path already: was_there, a packed file that is as a new one would be, byte by byte; it is
 * as new as the model then. Where a wish names the path, a file that is no packed one is somebody's. */
static qn_status look(const qn_packed_key *key, const qn_weights *w, qn_device *d, const char *path,
                      const qn_pack_options *o, qn_pack_result *result)
{
    struct stat st;
    qn_packed *p = NULL;
    if (o->force || stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return QN_OK;
    qn_status status = qn_packed_open(path, &p);
    if (status == QN_E_NOMEM) return status;
    if (status != QN_OK) {
        if (!o->out_path) return QN_OK;
        return qn_fail(QN_E_ARG, "%s: it exists and does not hold packed weights; --force replaces it", path);
    }
    if (qn_packed_check(p, key) == QN_OK)
        status = qn_packing_compare(p, w, d, o->progress, o->user, &result->was_there);
    if (result->was_there) {
        result->size_bytes = qn_packed_bytes(p);
        utimensat(AT_FDCWD, path, NULL, 0);
    }
    qn_packed_close(p);
    return status;
}

/* A copy of weights that not everybody may read is for its owner alone. */
static int is_private(const qn_source *s)
{
    struct stat st;
    for (int64_t i = 0; i < qn_source_file_count(s); i++)
        if (stat(qn_source_file_path(s, i), &st) == 0 && (st.st_mode & 0044) != 0044) return 1;
    return 0;
}

qn_status qn_engine_pack(qn_source *source, const qn_model_config *config, const qn_pack_options *options,
                         qn_pack_result *out)
{
    qn_device *d = NULL;
    qn_weights *weights = NULL;
    qn_buf path = {0};
    qn_packed_key key;
    qn_pack_result result = {.was_there = 0};
    qn_device_options o = {.n_threads = options->n_threads};
    qn_status status = qn_device_open("cpu", &o, &d);
    if (status == QN_OK) status = qn_weights_open(source, config, &weights);
    if (status == QN_OK) status = choose_path(source, options->out_path, &path);
    if (status == QN_OK && path.length >= sizeof result.path)
        status =
            qn_fail(QN_E_ARG, "the path of the packed file is longer than %zu bytes", sizeof result.path);
    if (status == QN_OK) status = spare_model(source, path.data);
    if (status == QN_OK) status = qn_packing_key(source, d, &key);
    if (status == QN_OK) status = look(&key, weights, d, path.data, options, &result);
    if (status == QN_OK && !result.was_there)
        status = qn_packing_write(qn_source_path(source), weights, d, &key, path.data, is_private(source),
                                  options->progress, options->user, &result.size_bytes);
    if (status == QN_OK) {
        memcpy(result.path, path.data, path.length + 1);
        *out = result;
    }
    qn_buf_free(&path);
    qn_weights_close(weights);
    qn_device_close(d);
    return status;
}
