#include "hub/names/listing.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "hub/names/name.h"

void qn_hub_files_free(qn_hub_files *l)
{
    for (size_t i = 0; i < l->n; i++) {
        qn_free(l->files[i].path);
        qn_free(l->files[i].etag);
    }
    qn_free(l->files);
    *l = (qn_hub_files){0};
}

qn_status qn_hub_files_add(qn_hub_files *l, const qn_hub_file *file)
{
    if (l->n == QN_HUB_FILES_MAX) return qn_fail(QN_E_FULL, "more than %d files", (int)QN_HUB_FILES_MAX);
    if (l->n == l->capacity) {
        const size_t capacity = l->capacity ? 2 * l->capacity : 32;
        qn_hub_file *files = qn_realloc(l->files, capacity * sizeof *files);
        if (!files) return QN_E_NOMEM;
        l->files = files;
        l->capacity = capacity;
    }
    char *path = qn_strdup(file->path), *etag = file->etag ? qn_strdup(file->etag) : NULL;
    if (!path || (file->etag && !etag)) {
        qn_free(path);
        qn_free(etag);
        return QN_E_NOMEM;
    }
    l->files[l->n] = *file;
    l->files[l->n].path = path;
    l->files[l->n++].etag = etag;
    return QN_OK;
}

/* NULL where it is no text, or has a NUL. */
static const char *get_text(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) return NULL;
    return json_string_value(value);
}

static qn_status get_size(const char *what, const char *path, const json_t *object, int64_t *out)
{
    const json_t *value = json_object_get(object, "size");
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > QN_HUB_FILE_BYTES_MAX)
        return qn_fail(QN_E_FORMAT, "%s: %s: the size is not one", what, path);
    *out = json_integer_value(value);
    return QN_OK;
}

qn_status qn_hub_read_revision(const char *what, const char *text, size_t n, char sha[QN_SUM_HEX_MAX])
{
    json_t *root;
    QN_TRY(qn_json_parse(what, text, n, &root));
    const char *commit = get_text(root, "sha");
    const int is_good = commit && qn_digest_is_hex(commit, 40);
    if (is_good) memcpy(sha, commit, 41);
    json_decref(root);
    return is_good ? QN_OK : qn_fail(QN_E_FORMAT, "%s: there is no commit in it (\"sha\")", what);
}

static qn_status read_file(const char *what, const json_t *entry, qn_hub_files *files)
{
    const char *type = get_text(entry, "type"), *path = get_text(entry, "path"),
               *oid = get_text(entry, "oid");
    const json_t *lfs = json_object_get(entry, "lfs");
    qn_hub_file file = {.sum = QN_SUM_GIT_SHA1};
    if (!type || !path) return qn_fail(QN_E_FORMAT, "%s: an entry has no type or no path", what);
    if (strcmp(type, "file") != 0) return QN_OK; /* a folder: its files come by themselves */
    if (!qn_hub_is_plain_path(path))
        return qn_fail(QN_E_FORMAT, "%s: the path '%.200s' leads out of its folder or is not plain", what,
                       path);
    if (json_is_object(lfs)) {
        file.sum = QN_SUM_SHA256;
        oid = get_text(lfs, "oid");
        if (oid && strncmp(oid, "sha256:", 7) == 0) oid += 7;
    }
    if (!oid || !qn_digest_is_hex(oid, file.sum == QN_SUM_SHA256 ? 64 : 40))
        return qn_fail(QN_E_FORMAT, "%s: %.200s: the sum (\"oid\") is not one", what, path);
    QN_TRY(get_size(what, path, json_is_object(lfs) ? lfs : entry, &file.size));
    snprintf(file.hex, sizeof file.hex, "%s", oid);
    for (size_t i = 0; i < files->n; i++)
        if (strcmp(files->files[i].path, path) == 0)
            return qn_fail(QN_E_FORMAT, "%s: %.200s is there twice", what, path);
    file.path = (char *)path;
    return qn_hub_files_add(files, &file);
}

qn_status qn_hub_read_tree(const char *what, const char *text, size_t n, qn_hub_files *files)
{
    json_t *root, *entry;
    size_t i;
    QN_TRY(qn_json_parse(what, text, n, &root));
    qn_status status = json_is_array(root) ? QN_OK : qn_fail(QN_E_FORMAT, "%s: not a list of files", what);
    json_array_foreach(root, i, entry) if (status == QN_OK) status = read_file(what, entry, files);
    json_decref(root);
    return status;
}

static qn_status read_layer(const char *what, const json_t *layer, qn_hub_file *out)
{
    const char *digest = get_text(layer, "digest");
    if (!digest || strncmp(digest, "sha256:", 7) != 0 || !qn_digest_is_hex(digest + 7, 64))
        return qn_fail(QN_E_FORMAT, "%s: the model's digest is not a sha256", what);
    QN_TRY(get_size(what, "the model", layer, &out->size));
    out->sum = QN_SUM_SHA256;
    snprintf(out->hex, sizeof out->hex, "%s", digest + 7);
    return QN_OK;
}

static qn_status read_layers(const char *what, const json_t *layers, qn_hub_file *out, qn_hub_file *tower)
{
    json_t *layer;
    size_t i;
    int n_models = 0;
    json_array_foreach((json_t *)layers, i, layer)
    {
        const char *type = get_text(layer, "mediaType");
        if (!type) return qn_fail(QN_E_FORMAT, "%s: a layer has no mediaType", what);
        if (strcmp(type, "application/vnd.ollama.image.adapter") == 0)
            return qn_fail(QN_E_UNSUPPORTED,
                           "%s: the model has an adapter of its own, which is not supported", what);
        if (strncmp(type, "application/vnd.ollama.image.tensor", 35) == 0)
            return qn_fail(QN_E_UNSUPPORTED, "%s: the model's tensors are separate files, not one GGUF",
                           what);
        if (strcmp(type, "application/vnd.ollama.image.projector") == 0) {
            if (tower->size)
                return qn_fail(QN_E_UNSUPPORTED,
                               "%s: the model has several projectors, which is not supported", what);
            QN_TRY(read_layer(what, layer, tower));
        }
        if (strcmp(type, "application/vnd.ollama.image.model") != 0) continue;
        if (n_models++)
            return qn_fail(QN_E_UNSUPPORTED, "%s: the model has several files, which is not supported", what);
        QN_TRY(read_layer(what, layer, out));
    }
    return n_models ? QN_OK : qn_fail(QN_E_FORMAT, "%s: no layer is a model", what);
}

qn_status qn_hub_read_manifest(const char *what, const char *text, size_t n, const char *file_name,
                               const char *tower_name, qn_hub_file *out, qn_hub_file *tower)
{
    json_t *root;
    qn_hub_file file = {.path = (char *)file_name}, second = {.path = (char *)tower_name};
    QN_TRY(qn_json_parse(what, text, n, &root));
    qn_status status = read_layers(what, json_object_get(root, "layers"), &file, &second);
    json_decref(root);
    if (status != QN_OK) return status;
    *out = file;
    *tower = second;
    return QN_OK;
}

void qn_hub_read_refusal(const char *text, size_t n, char *out, size_t size)
{
    json_t *root = NULL;
    *out = 0;
    if (qn_json_parse("", text, n, &root) != QN_OK) return;
    const char *said = get_text(root, "error");
    const json_t *first = json_array_get(json_object_get(root, "errors"), 0);
    if (!said) said = get_text(first, "message");
    snprintf(out, size, "%s", said ? said : "");
    json_decref(root);
}
