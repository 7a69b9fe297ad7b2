#include "convert/fused_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json/json.h"
#include "base/mem.h"

static const char config_name[] = "config.json", index_ending[] = ".safetensors.index.json";

/* What holds weights, in whatever form, is not taken over. */
static const char *const weights[] = {".safetensors", ".gguf", ".bin", ".pt",    ".pth", ".h5",
                                      ".msgpack",     ".onnx", ".npz", ".qpack", NULL};

const char *qn_fused_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int has_ending(const char *name, const char *ending)
{
    const size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcmp(name + n - m, ending) == 0;
}

static int is_taken(const char *name)
{
    if (name[0] == '.' || strcmp(name, config_name) == 0 || has_ending(name, index_ending)) return 0;
    for (const char *const *w = weights; *w; w++)
        if (has_ending(name, *w)) return 0;
    return 1;
}

static qn_status write_to(qn_folder_writer *to, const char *name, const void *bytes, size_t n)
{
    const char *path = qn_folder_writer_path(to, name);
    return path ? qn_file_write(path, bytes, n) : QN_E_NOMEM;
}

static qn_status copy_file(const char *folder, const char *name, qn_folder_writer *to)
{
    struct stat about;
    qn_mapping *m = NULL;
    qn_buf path = {0};
    qn_buf_printf(&path, "%s/%s", folder, name);
    qn_status status = path.status;
    if (status == QN_OK && (stat(path.data, &about) != 0 || !S_ISREG(about.st_mode))) {
        qn_buf_free(&path);
        return QN_OK; /* a folder, or a link that leads nowhere */
    }
    if (status == QN_OK && about.st_size == 0)
        status = write_to(to, name, "", 0);
    else if (status == QN_OK && (status = qn_mapping_open(path.data, &m)) == QN_OK)
        status = write_to(to, name, qn_mapping_data(m), qn_mapping_size(m));
    if (m) qn_mapping_close(m);
    qn_buf_free(&path);
    return status;
}

/* The chat templates that lie in a folder. */
static qn_status write_templates(const qn_source *source, qn_folder_writer *to)
{
    static const char folder[] = "additional_chat_templates";
    const size_t n_templates = qn_source_template_count(source);
    qn_status status = n_templates ? qn_folder_writer_make(to, folder) : QN_OK;
    for (size_t i = 0; i < n_templates && status == QN_OK; i++) {
        char *text = NULL;
        size_t n;
        qn_buf name = {0};
        qn_buf_printf(&name, "%s/%s.jinja", folder, qn_source_template_name(source, i));
        status = name.status;
        if (status == QN_OK) status = qn_source_template_read(source, i, &text, &n);
        if (status == QN_OK) status = write_to(to, name.data, text, n);
        qn_free(text);
        qn_buf_free(&name);
    }
    return status;
}

qn_status qn_fused_copy(const qn_source *source, qn_folder_writer *to)
{
    const char *first = qn_source_file_path(source, 0), *name = qn_fused_name(first);
    char *folder = name == first ? qn_strdup(".") : qn_strndup(first, (size_t)(name - first - 1));
    if (!folder) return QN_E_NOMEM;
    DIR *d = opendir(*folder ? folder : "/");
    qn_status status = d ? QN_OK : qn_fail(QN_E_IO, "%s: %s", folder, strerror(errno));
    for (struct dirent *e; status == QN_OK && (e = readdir(d));)
        if (is_taken(e->d_name)) status = copy_file(folder, e->d_name, to);
    if (d) closedir(d);
    qn_free(folder);
    return status == QN_OK ? write_templates(source, to) : status;
}

/* The type where it is said, in the decoder's own part too. */
static int change_config(json_t *config, const char *dtype)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    json_t *text = json_object_get(config, "text_config");
    int said = 0;
    for (int i = 0; i < 2; i++) {
        if (json_is_string(json_object_get(config, keys[i]))) {
            said = 1;
            if (json_object_set_new(config, keys[i], json_string(dtype)) != 0) return 0;
        }
        if (json_is_string(json_object_get(text, keys[i])) &&
            json_object_set_new(text, keys[i], json_string(dtype)) != 0)
            return 0;
    }
    json_object_del(config, "quantization");
    json_object_del(config, "quantization_config");
    return said || json_object_set_new(config, keys[0], json_string(dtype)) == 0;
}

qn_status qn_fused_config(qn_source *source, qn_folder_writer *to, const char *dtype)
{
    const char *text;
    size_t n;
    json_t *config = NULL;
    QN_TRY(qn_source_side_text(source, QN_SIDE_CONFIG, &text, &n));
    if (!dtype) return write_to(to, config_name, text, n);
    QN_TRY(qn_json_parse_python(qn_source_side_path(source, QN_SIDE_CONFIG), text, n, &config));
    qn_buf changed = {0};
    qn_status status =
        change_config(config, dtype) ? qn_json_write(&changed, config, JSON_INDENT(2)) : qn_fail_nomem(n);
    if (status == QN_OK && (memmem(text, n, "Infinity", 8) || memmem(text, n, "NaN", 3)))
        qn_json_unquote_python(changed.data);
    if (status == QN_OK) status = write_to(to, config_name, changed.data, strlen(changed.data));
    qn_buf_free(&changed);
    json_decref(config);
    return status;
}
