/* qn_model_fuse: a model with an adapter added to its weights, or as it is, as a model of its own: a folder
 * as the model's, or a GGUF file. */
#include <dirent.h>
#include <quern/adapter.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "convert/export_gguf.h"
#include "convert/fuse_adapters.h"
#include "text/tokenizer/tokenizer_source.h"
#include "text/tokenizer/tokenizer_to_gguf.h"

typedef struct {
    qn_source *source;
    qn_model_config config;
    qn_weights *weights;
    qn_fuse_adapters *adapters;
    qn_tokenizer *tokenizer; /* of a model that becomes a GGUF file; NULL: it has none */
    qn_buf notes;
} fusing;

/* ---- where it goes ------------------------------------------------------------------------------------- */

/* Nothing is overwritten. */
static qn_status check_folder(const char *path)
{
    DIR *d = opendir(path);
    int any = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        any |= strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d) closedir(d);
    return any ? qn_fail(QN_E_ARG, "%s: the folder already exists and is not empty", path) : QN_OK;
}

static qn_status check_file(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0 ? qn_fail(QN_E_ARG, "%s: it already exists", path) : QN_OK;
}

static int is_gguf_name(const char *path)
{
    static const char ending[] = ".gguf";
    const size_t n = strlen(path), m = sizeof ending - 1;
    return n > m && strcmp(path + n - m, ending) == 0;
}

/* ---- to GGUF ------------------------------------------------------------------------------------------- */

/* The model's folder gives it its name. */
static qn_status put_name(const fusing *f, qn_gguf_writer *w)
{
    const char *path = qn_source_path(f->source);
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/') end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--) {
    }
    return qn_gguf_writer_text(w, "general.name", path + begin, end - begin);
}

static qn_status put_more(void *user, const char *architecture, qn_gguf_writer *w)
{
    fusing *f = user;
    const qn_gguf_vocab vocab = {.vocab_size = f->config.vocab_size,
                                 .bos_id = f->config.bos_token_id,
                                 .stop_ids = f->config.stop_ids,
                                 .n_stop_ids = f->config.n_stop_ids,
                                 .architecture = architecture};
    QN_TRY(put_name(f, w));
    return f->tokenizer ? qn_tokenizer_write_gguf(f->source, f->tokenizer, &vocab, w, &f->notes) : QN_OK;
}

static qn_status check_more(void *user, const qn_gguf *g)
{
    fusing *f = user;
    qn_tokenizer *read = NULL;
    if (!f->tokenizer) return QN_OK;
    qn_status status = qn_tokenizer_from_gguf(g, NULL, &read);
    if (status == QN_OK)
        status = qn_tokenizer_compare(qn_source_side_path(f->source, QN_SIDE_TOKENIZER), f->tokenizer, read,
                                      &f->notes);
    qn_tokenizer_free(read);
    return status;
}

static qn_status to_gguf(fusing *f, const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                         const qn_fuse_options *options, const char *out_path, qn_fuse_result *out)
{
    const qn_export_more more = {.put = put_more, .check = check_more, .user = f};
    if (qn_tokenizer_is_there(f->source))
        QN_TRY(qn_tokenizer_open(f->source, NULL, &f->tokenizer));
    else
        qn_buf_printf(&f->notes, "%s: there is no tokenizer.json: the GGUF file has no tokenizer\n",
                      qn_source_path(f->source));
    return qn_export_gguf(model, changes, options, &more, out_path, out);
}

/* ---- the call ------------------------------------------------------------------------------------------ */

static qn_status write_model(fusing *f, const char *out_path, const qn_rewrite_changes *changes,
                             const qn_fuse_options *options, qn_fuse_result *out)
{
    const qn_rewrite_model model = {f->source, &f->config, f->weights};
    if (qn_source_get_kind(f->source) == QN_SOURCE_GGUF)
        return qn_rewrite_gguf(&model, changes, options, out_path, out);
    return is_gguf_name(out_path) ? to_gguf(f, &model, changes, options, out_path, out)
                                  : qn_rewrite_folder(&model, changes, options, out_path, out);
}

static qn_status open_adapters(fusing *f, const char *path, const qn_fuse_options *options)
{
    const qn_rewrite_model model = {f->source, &f->config, f->weights};
    const int64_t n_more = options ? options->n_more : 0, n = n_more + (path != NULL);
    if (n_more < 0 || n > QN_FUSE_ADAPTERS_MAX)
        return qn_fail(QN_E_ARG, "%lld adapters, at most %d can be fused together", (long long)n,
                       QN_FUSE_ADAPTERS_MAX);
    qn_adapter_options list[QN_FUSE_ADAPTERS_MAX] = {
        {.path = path, .scale = options ? options->adapter_scale : 0}};
    for (int64_t i = 0; i < n_more; i++) {
        list[(path != NULL) + i] = options->more[i];
        if (!options->more[i].path)
            return qn_fail(QN_E_ARG, "qn_model_fuse: an adapter of `more` has no path");
    }
    return qn_fuse_adapters_open(&model, list, n, &f->notes, &f->adapters);
}

static qn_status fuse(fusing *f, const char *path, const char *adapter_path, const char *out_path,
                      const qn_fuse_options *options, qn_fuse_result *out)
{
    QN_TRY(qn_source_open(path, NULL, &f->source));
    const int is_file = qn_source_get_kind(f->source) == QN_SOURCE_GGUF || is_gguf_name(out_path);
    QN_TRY(is_file ? check_file(out_path) : check_folder(out_path));
    QN_TRY(qn_config_read(f->source, &f->config));
    QN_TRY(qn_weights_open(f->source, &f->config, &f->weights));
    QN_TRY(open_adapters(f, adapter_path, options));
    const qn_rewrite_changes changes = qn_fuse_adapters_changes(f->adapters);
    return write_model(f, out_path, &changes, options, out);
}

qn_status qn_model_fuse(const char *path, const char *adapter_path, const char *out_path,
                        const qn_fuse_options *options, qn_fuse_result *out)
{
    fusing f = {0};
    if (!path || !out_path) return qn_fail(QN_E_ARG, "qn_model_fuse: path and out_path are needed");
    qn_status status = fuse(&f, path, adapter_path, out_path, options, out);
    if (f.notes.length) qn_log_lines(QN_LOG_WARNING, f.notes.data);
    qn_buf_free(&f.notes);
    qn_tokenizer_free(f.tokenizer);
    qn_fuse_adapters_close(f.adapters);
    qn_weights_close(f.weights);
    qn_config_free(&f.config);
    qn_source_close(f.source);
    return status;
}
