/* What is in the store, and by which names. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "hub/names/choose.h"
#include "hub/store/store.h"

enum { DEPTH_MAX = 256, INDEX_BYTES_MAX = 64 << 20, URL_FILE_BYTES = QN_HUB_URL_MAX };

static qn_status walk(const char *folder, const char *below, int depth, qn_hub_files *out)
{
    qn_buf path = {0};
    qn_status status = QN_OK;
    qn_buf_printf(&path, "%s%s%s", folder, *below ? "/" : "", below);
    DIR *dir = path.status == QN_OK ? opendir(path.data) : NULL;
    if (!dir)
        status = path.status != QN_OK ? path.status : qn_fail(QN_E_IO, "%s: %s", path.data, strerror(errno));
    for (struct dirent *e; status == QN_OK && (e = readdir(dir)) != NULL;) {
        struct stat info;
        qn_buf inner = {0}, whole = {0};
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        qn_buf_printf(&inner, "%s%s%s", below, *below ? "/" : "", e->d_name);
        qn_buf_printf(&whole, "%s/%s", folder, inner.data ? inner.data : "");
        status = inner.status != QN_OK ? inner.status : whole.status;
        if (status == QN_OK && lstat(whole.data, &info) == 0) {
            if (S_ISDIR(info.st_mode)) {
                if (depth < DEPTH_MAX) status = walk(folder, inner.data, depth + 1, out);
            } else if (stat(whole.data, &info) == 0 && S_ISREG(info.st_mode)) {
                status =
                    qn_hub_files_add(out, &(qn_hub_file){.path = inner.data, .size = (int64_t)info.st_size});
            }
        }
        qn_buf_free(&inner);
        qn_buf_free(&whole);
    }
    if (dir) closedir(dir);
    qn_buf_free(&path);
    return status;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const qn_hub_file *)a)->path, ((const qn_hub_file *)b)->path);
}

qn_status qn_store_walk(const char *folder, qn_hub_files *out)
{
    qn_status status = walk(folder, "", 0, out);
    if (status == QN_OK && out->n) qsort(out->files, out->n, sizeof *out->files, by_path);
    return status;
}

static int has_file(const qn_hub_files *l, const char *path)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->files[i].path, path) == 0) return 1;
    return 0;
}

/* The text of a file; "" where it cannot be read. */
static qn_status read_text(const char *path, size_t bytes_max, qn_buf *out)
{
    char block[4096];
    FILE *f = fopen(path, "re");
    out->limit_bytes = bytes_max;
    for (size_t n; f && (n = fread(block, 1, sizeof block, f)) > 0 && out->status == QN_OK;)
        qn_buf_append(out, block, n);
    if (f) fclose(f);
    return out->status;
}

/* Are all files there that the index names? */
static int has_shards(const char *snapshot, const qn_hub_files *l)
{
    static const char index[] = "model.safetensors.index.json";
    qn_buf path = {0}, text = {0};
    json_t *root = NULL, *file;
    const char *tensor;
    int is_whole = 0;
    qn_buf_printf(&path, "%s/%s", snapshot, index);
    if (path.status == QN_OK && read_text(path.data, INDEX_BYTES_MAX, &text) == QN_OK && text.length &&
        qn_json_parse(index, text.data, text.length, &root) == QN_OK) {
        json_t *map = json_object_get(root, "weight_map");
        is_whole = json_is_object(map);
        json_object_foreach(map, tensor, file) is_whole &=
            json_is_string(file) && has_file(l, json_string_value(file));
    }
    json_decref(root);
    qn_buf_free(&path);
    qn_buf_free(&text);
    return is_whole;
}

/* "model-00001-of-00003.safetensors": are all of them there? 1 where no file is numbered. */
static int has_numbers(const qn_hub_files *l)
{
    int n_numbered = 0, n_wanted = 0;
    for (size_t i = 0; i < l->n; i++) {
        const char *of = strstr(l->files[i].path, "-of-");
        if (!of || !strstr(of, ".safetensors") || strchr(l->files[i].path, '/')) continue;
        n_numbered++;
        n_wanted = (int)strtol(of + 4, NULL, 10);
    }
    return n_numbered == n_wanted;
}

/* Python may have fetched some files and not others. */
static int is_folder_whole(const char *snapshot, const qn_hub_files *l, int is_final)
{
    const int has_words =
        has_file(l, "tokenizer.json") || has_file(l, "tokenizer.model") || has_file(l, "vocab.json");
    if (!has_file(l, "config.json") || (!has_words && !is_final)) return 0;
    return has_file(l, "model.safetensors.index.json") ? has_shards(snapshot, l) : has_numbers(l);
}

/* The one .safetensors file of a folder, or the index of several; "" where only the folder itself will do. */
static const char *weights_of(const qn_hub_files *l)
{
    const char *file = "", *index = "";
    int n_weights = 0, n_gguf = 0;
    for (size_t i = 0; i < l->n; i++) {
        const char *path = l->files[i].path, *end = strrchr(path, '.');
        if (strchr(path, '/') || !end) continue;
        if (strcmp(end, ".gguf") == 0) n_gguf++;
        if (strcmp(path, "model.safetensors.index.json") == 0) index = path;
        if (strcmp(end, ".safetensors") == 0) file = path, n_weights++;
    }
    return !n_gguf ? "" : *index ? index : n_weights == 1 ? file : "";
}

qn_status qn_store_model_path(const char *folder, const char *commit, const char *main, qn_buf *out)
{
    qn_hub_files files = {0};
    QN_TRY(qn_store_snapshot(folder, commit, *main ? main : NULL, out));
    if (*main) return QN_OK;
    qn_status status = qn_store_walk(out->data, &files);
    if (status == QN_OK && *weights_of(&files))
        status = qn_store_snapshot(folder, commit, weights_of(&files), out);
    qn_hub_files_free(&files);
    return status == QN_E_IO ? QN_OK : status; /* it is not there yet */
}

qn_status qn_store_find(const qn_hub_settings *s, const qn_hub_name *name, int64_t memory_bytes, int is_final,
                        qn_buf *path, char commit[QN_SUM_HEX_MAX])
{
    qn_buf folder = {0}, snapshot = {0};
    qn_hub_files files = {0};
    qn_hub_choice choice = {0};
    char found[QN_SUM_HEX_MAX] = "";
    const char *revision = name->kind == QN_HUB_URL ? "main" : name->revision;
    qn_status status = qn_store_folder(s, name, &folder);
    if (status == QN_OK) status = qn_store_get_commit(folder.data, revision, found);
    if (status == QN_OK) status = qn_store_snapshot(folder.data, found, NULL, &snapshot);
    if (status == QN_OK) status = qn_store_walk(snapshot.data, &files);
    if (status == QN_OK) status = qn_hub_choose(snapshot.data, &files, name->pick, memory_bytes, &choice);
    if (status == QN_OK && !choice.main[0] && !is_folder_whole(snapshot.data, &files, is_final))
        status = qn_fail(QN_E_NOT_FOUND, "%s: only a part of the model is there", snapshot.data);
    if (status == QN_OK) status = qn_store_model_path(folder.data, found, choice.main, path);
    if (status == QN_OK) memcpy(commit, found, sizeof found);
    if (status == QN_E_IO) status = QN_E_NOT_FOUND;
    qn_hub_choice_free(&choice);
    qn_hub_files_free(&files);
    qn_buf_free(&folder);
    qn_buf_free(&snapshot);
    return status;
}

static int is_repository(const struct dirent *e)
{
    return strncmp(e->d_name, "models--", 8) == 0 || strncmp(e->d_name, "ollama--", 8) == 0 ||
           strncmp(e->d_name, "url--", 5) == 0;
}

static qn_status each_below(const char *root, qn_status (*fn)(void *user, const char *folder), void *user)
{
    struct dirent **entries = NULL;
    const int n = scandir(root, &entries, is_repository, alphasort);
    qn_status status = QN_OK;
    for (int i = 0; i < n; i++) {
        struct stat info;
        qn_buf folder = {0}, snapshots = {0};
        qn_buf_printf(&folder, "%s/%s", root, entries[i]->d_name);
        qn_buf_printf(&snapshots, "%s/snapshots", folder.data ? folder.data : "");
        if (status == QN_OK) status = folder.status != QN_OK ? folder.status : snapshots.status;
        if (status == QN_OK && stat(snapshots.data, &info) == 0 && S_ISDIR(info.st_mode))
            status = fn(user, folder.data);
        qn_buf_free(&folder);
        qn_buf_free(&snapshots);
        free(entries[i]); /* foreign: scandir's */
    }
    free(entries); /* foreign: scandir's */
    return status;
}

qn_status qn_store_each(const qn_hub_settings *s, qn_status (*fn)(void *user, const char *folder), void *user)
{
    QN_TRY(each_below(s->cache.data, fn, user));
    return strcmp(s->cache.data, s->own.data) == 0 ? QN_OK : each_below(s->own.data, fn, user);
}

/* "models--org--name" -> "org/name" */
static void put_repo(qn_buf *b, const char *dashed, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i + 1 < n && dashed[i] == '-' && dashed[i + 1] == '-') {
            qn_buf_putc(b, '/');
            i++;
        } else {
            qn_buf_putc(b, dashed[i]);
        }
    }
}

/* Appends "@COMMIT", or ":TAG" of Ollama, unless the usual reference leads to it. */
static void put_revision(const char *folder, const char *commit, int is_ollama, qn_buf *out)
{
    char usual[QN_SUM_HEX_MAX];
    qn_buf refs = {0};
    qn_hub_files tags = {0};
    if (qn_store_get_commit(folder, is_ollama ? "latest" : "main", usual) == QN_OK &&
        strcmp(usual, commit) == 0)
        return;
    if (!is_ollama) {
        qn_buf_printf(out, "@%s", commit);
        return;
    }
    qn_buf_printf(&refs, "%s/refs", folder);
    if (refs.status == QN_OK && qn_store_walk(refs.data, &tags) == QN_OK)
        for (size_t i = 0; i < tags.n; i++)
            if (qn_store_get_commit(folder, tags.files[i].path, usual) == QN_OK &&
                strcmp(usual, commit) == 0) {
                qn_buf_printf(out, ":%s", tags.files[i].path);
                break;
            }
    qn_hub_files_free(&tags);
    qn_buf_free(&refs);
}

/* folder is REPOSITORY, commit and path follow it in a snapshot. */
static void put_parts(const char *folder, const char *commit, const char *path, qn_buf *out)
{
    const char *last = strrchr(folder, '/') + 1;
    qn_buf place = {0};
    if (strncmp(last, "url--", 5) == 0) {
        qn_buf_printf(&place, "%s/url", folder);
        if (place.status == QN_OK) read_text(place.data, URL_FILE_BYTES, out);
    } else if (strncmp(last, "ollama--", 8) == 0) {
        const char *repo = strncmp(last + 8, "library--", 9) == 0 ? last + 17 : last + 8;
        qn_buf_puts(out, "ollama:");
        put_repo(out, repo, strlen(repo));
        put_revision(folder, commit, 1, out);
    } else {
        qn_buf_puts(out, "hf:");
        put_repo(out, last + 8, strlen(last + 8));
        put_revision(folder, commit, 0, out);
        if (path && *path) qn_buf_printf(out, ":%s", path);
    }
    qn_buf_free(&place);
}

void qn_store_put_name(const qn_hub_settings *s, const char *path, qn_buf *out)
{
    const char *const roots[] = {s->cache.data, s->own.data};
    for (size_t i = 0; i < 2; i++) {
        const size_t n = strlen(roots[i]);
        const char *snapshots =
            strncmp(path, roots[i], n) == 0 && path[n] == '/' ? strstr(path + n, "/snapshots/") : NULL;
        char commit[QN_SUM_HEX_MAX] = "";
        if (!snapshots) continue;
        const char *from = snapshots + strlen("/snapshots/");
        const size_t n_commit = strcspn(from, "/");
        char *folder = qn_strndup(path, (size_t)(snapshots - path));
        if (folder && n_commit < sizeof commit) {
            memcpy(commit, from, n_commit);
            put_parts(folder, commit, from[n_commit] ? from + n_commit + 1 : NULL, out);
        }
        qn_free(folder);
        return;
    }
    qn_buf_puts(out, path);
}
