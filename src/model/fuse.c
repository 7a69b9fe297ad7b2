/* qn_model_fuse: a model with an adapter added to its weights, as a folder of its own. */
#include <dirent.h>
#include <quern/adapter.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "model/rewrite.h"

typedef struct {
    qn_source *source;
    qn_model_config config;
    qn_weights *weights;
    qn_adapter_file adapter;
} fusing;

/* Nothing is overwritten. */
static qn_status check_folder(const char *path)
{
    DIR *d = opendir(path);
    int any = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        any |= strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d) closedir(d);
    return any ? qn_fail(QN_E_ARG, "%s: the folder is there already and not empty", path) : QN_OK;
}

static qn_status check_file(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0 ? qn_fail(QN_E_ARG, "%s: it is there already", path) : QN_OK;
}

static qn_status fuse(fusing *f, const char *path, const char *adapter_path, const char *out_path,
                      const qn_fuse_options *options, qn_fuse_result *out)
{
    qn_buf notes = {0};
    QN_TRY(qn_source_open(path, NULL, &f->source));
    const int is_gguf = qn_source_get_kind(f->source) == QN_SOURCE_GGUF;
    QN_TRY(is_gguf ? check_file(out_path) : check_folder(out_path));
    QN_TRY(qn_config_read(f->source, &f->config));
    QN_TRY(qn_weights_open(f->source, &f->config, &f->weights));
    qn_status status = qn_adapter_file_open(adapter_path, &f->config, &notes, &f->adapter);
    if (notes.length) qn_log_lines(QN_LOG_WARNING, notes.data);
    qn_buf_free(&notes);
    QN_TRY(status);
    const qn_rewrite_model model = {f->source, &f->config, f->weights};
    const qn_rewrite_changes changes = {.adapter = &f->adapter};
    return is_gguf ? qn_rewrite_gguf(&model, &changes, options, out_path, out)
                   : qn_rewrite_folder(&model, &changes, options, out_path, out);
}

qn_status qn_model_fuse(const char *path, const char *adapter_path, const char *out_path,
                        const qn_fuse_options *options, qn_fuse_result *out)
{
    fusing f = {0};
    if (!path || !adapter_path || !out_path)
        return qn_fail(QN_E_ARG, "qn_model_fuse: path, adapter_path and out_path are needed");
    qn_status status = fuse(&f, path, adapter_path, out_path, options, out);
    qn_adapter_file_close(&f.adapter);
    qn_weights_close(f.weights);
    qn_config_free(&f.config);
    qn_source_close(f.source);
    return status;
}
