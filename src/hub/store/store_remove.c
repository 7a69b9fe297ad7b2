/* Removing a revision, or one file of it, and the blobs that nothing else has. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/names/choose.h"
#include "hub/store/store.h"

/* The blob that a link of a snapshot leads to, by its name in blobs/; "" for anything else. */
static void blob_of(const char *folder, const char *commit, const char *path, char *name, size_t size)
{
    char target[PATH_MAX];
    qn_buf link = {0};
    *name = 0;
    if (qn_store_snapshot(folder, commit, path, &link) == QN_OK) {
        const ssize_t n = readlink(link.data, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        const char *blobs = strstr(target, "blobs/");
        if (blobs && !strchr(blobs + 6, '/') && strlen(blobs + 6) < size && qn_hub_is_plain_path(blobs + 6))
            memcpy(name, blobs + 6, strlen(blobs + 6) + 1);
    }
    qn_buf_free(&link);
}

static int has(const qn_hub_files *l, const char *path)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->files[i].path, path) == 0) return 1;
    return 0;
}

/* Takes away from blobs what a snapshot has, but for its files in except. */
static qn_status keep_blobs(const qn_store_removal *r, const char *commit, const qn_hub_files *except,
                            qn_hub_files *kept)
{
    qn_buf snapshot = {0};
    qn_hub_files files = {0};
    qn_status status = qn_store_snapshot(r->folder.data, commit, NULL, &snapshot);
    if (status == QN_OK) status = qn_store_walk(snapshot.data, &files);
    for (size_t i = 0; i < files.n && status == QN_OK; i++) {
        char name[256];
        if (except && has(except, files.files[i].path)) continue;
        blob_of(r->folder.data, commit, files.files[i].path, name, sizeof name);
        if (*name && !has(kept, name)) status = qn_hub_files_add(kept, &(qn_hub_file){.path = name});
    }
    qn_hub_files_free(&files);
    qn_buf_free(&snapshot);
    return status;
}

/* The blobs of all that stays. *n_others: snapshots besides this one. Without a commit all of them stay. */
static qn_status find_kept(const qn_store_removal *r, qn_hub_files *kept, int *n_others)
{
    qn_buf path = {0};
    qn_status status = QN_OK;
    qn_buf_printf(&path, "%s/snapshots", r->folder.data);
    DIR *dir = path.status == QN_OK ? opendir(path.data) : NULL;
    if (!dir && errno != ENOENT) /* without snapshots nothing stays */
        status = qn_fail(QN_E_IO, "%s: %s", r->folder.data, strerror(errno));
    if (path.status != QN_OK) status = path.status;
    for (struct dirent *e; dir && status == QN_OK && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        if (strcmp(e->d_name, r->commit) == 0) {
            if (!r->is_whole) status = keep_blobs(r, r->commit, &r->links, kept);
            continue;
        }
        ++*n_others;
        status = keep_blobs(r, e->d_name, NULL, kept);
    }
    if (dir) closedir(dir);
    qn_buf_free(&path);
    return status;
}

/* What interrupted fetches left: partial files, and whole blobs that no link leads to. */
static qn_status add_leftovers(qn_store_removal *r, const qn_hub_files *kept)
{
    static const char mark[] = ".quern.incomplete";
    qn_buf path = {0};
    qn_hub_files blobs = {0};
    qn_status status = qn_store_blob(r->folder.data, "", &path);
    if (status == QN_OK) status = qn_store_walk(path.data, &blobs);
    if (status == QN_E_IO) status = QN_OK; /* there is no such folder */
    for (size_t i = 0; i < blobs.n && status == QN_OK; i++) {
        const char *name = blobs.files[i].path, *end = strstr(name, mark);
        const int is_partial = end && !end[sizeof mark - 1];
        if (!is_partial && !qn_digest_is_hex(name, 40) && !qn_digest_is_hex(name, 64)) continue;
        if (has(kept, name) || has(&r->blobs, name)) continue;
        status = qn_hub_files_add(&r->blobs, &blobs.files[i]);
        if (status == QN_OK && is_partial) {
            qn_buf blob = {0};
            qn_buf_printf(&blob, "%s%.*s", path.data, (int)(end - name), name);
            status = blob.status;
            if (status == QN_OK) r->freed_bytes += qn_store_left_bytes(blob.data);
            qn_buf_free(&blob);
        } else {
            r->freed_bytes += blobs.files[i].size;
        }
    }
    qn_hub_files_free(&blobs);
    qn_buf_free(&path);
    return status;
}

static qn_status add_blobs(qn_store_removal *r)
{
    qn_hub_files kept = {0};
    int n_others = 0;
    qn_status status = find_kept(r, &kept, &n_others);
    for (size_t i = 0; i < r->links.n && status == QN_OK; i++) {
        char name[256];
        blob_of(r->folder.data, r->commit, r->links.files[i].path, name, sizeof name);
        if (!*name) {
            r->freed_bytes += r->links.files[i].size; /* a file without a blob, as some systems have them */
        } else if (!has(&kept, name) && !has(&r->blobs, name)) {
            r->freed_bytes += r->links.files[i].size;
            status = qn_hub_files_add(&r->blobs, &(qn_hub_file){.path = name});
        }
    }
    if (status == QN_OK && r->is_whole && (!n_others || !r->commit[0])) status = add_leftovers(r, &kept);
    qn_hub_files_free(&kept);
    return status;
}

/* Is it a file of a model that pick means, or the packed weights of one (MODEL.gguf.qpack)? */
static int is_of_pick(const qn_hub_pick *pick, const char *path)
{
    static const char packed[] = ".qpack";
    char model[QN_HUB_PICK_MAX];
    const size_t n = strlen(path), n_end = sizeof packed - 1;
    if (n <= n_end || n - n_end >= sizeof model || strcmp(path + n - n_end, packed) != 0)
        return qn_hub_pick_fits(pick, path);
    memcpy(model, path, n - n_end);
    model[n - n_end] = 0;
    return strcmp(path, pick->text) == 0 || qn_hub_pick_fits(pick, model);
}

/* Is the file meant? A vision tower goes by its own name, or with the last model beside it. */
static int is_meant(const qn_hub_files *all, const char *path, const qn_hub_pick *pick)
{
    if (!qn_hub_is_tower(path)) return is_of_pick(pick, path);
    if (strcmp(path, pick->text) == 0) return 1;
    for (size_t i = 0; i < all->n; i++)
        if (!qn_hub_is_tower(all->files[i].path) && !is_of_pick(pick, all->files[i].path)) return 0;
    return !qn_hub_is_tower(pick->text);
}

/* The links that name means. QN_E_NOT_FOUND: there are none. */
static qn_status plan_links(const qn_hub_name *name, qn_store_removal *out)
{
    qn_buf snapshot = {0};
    qn_hub_files files = {0};
    const char *revision = name->kind == QN_HUB_URL ? "main" : name->revision;
    qn_status status = qn_store_get_commit(out->folder.data, revision, out->commit);
    if (status == QN_OK) status = qn_store_snapshot(out->folder.data, out->commit, NULL, &snapshot);
    if (status == QN_OK) status = qn_store_walk(snapshot.data, &files);
    const qn_hub_pick pick = qn_hub_pick_read(&files, name->pick);
    for (size_t i = 0; i < files.n && status == QN_OK; i++)
        if (out->is_whole || is_meant(&files, files.files[i].path, &pick))
            status = qn_hub_files_add(&out->links, &files.files[i]);
    if (status == QN_OK && !out->is_whole && !out->links.n)
        status = qn_fail(QN_E_NOT_FOUND, "%s: there is no file '%s'", snapshot.data, name->pick);
    if (status == QN_OK && out->links.n == files.n) out->is_whole = 1;
    qn_hub_files_free(&files);
    qn_buf_free(&snapshot);
    return status == QN_E_IO ? QN_E_NOT_FOUND : status;
}

qn_status qn_store_plan_removal(const qn_hub_settings *s, const qn_hub_name *name, qn_store_removal *out)
{
    out->is_whole = name->kind != QN_HUB_HF || !name->pick[0];
    qn_status status = qn_store_folder(s, name, &out->folder);
    if (status == QN_OK) status = plan_links(name, out);
    if (status == QN_OK) return add_blobs(out);
    if (status != QN_E_NOT_FOUND) return status;
    out->commit[0] = 0; /* a fetch that never ended may have left something */
    out->is_whole = 1;
    status = add_blobs(out);
    return status == QN_OK && !out->blobs.n
               ? qn_fail(QN_E_NOT_FOUND, "%s: nothing of it is there", out->folder.data)
               : status;
}

/* Removes a folder and all in it without following links. */
static qn_status remove_tree(const char *path, int depth)
{
    DIR *dir = opendir(path);
    qn_status status = QN_OK;
    if (!dir) return errno == ENOENT ? QN_OK : qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    for (struct dirent *e; status == QN_OK && (e = readdir(dir)) != NULL;) {
        struct stat info;
        qn_buf inner = {0};
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        qn_buf_printf(&inner, "%s/%s", path, e->d_name);
        status = inner.status;
        if (status == QN_OK && lstat(inner.data, &info) == 0) {
            if (S_ISDIR(info.st_mode) && depth < 16)
                status = remove_tree(inner.data, depth + 1);
            else if (unlink(inner.data) != 0 && errno != ENOENT)
                status = qn_fail(QN_E_IO, "%s: %s", inner.data, strerror(errno));
        }
        qn_buf_free(&inner);
    }
    closedir(dir);
    if (status == QN_OK && rmdir(path) != 0 && errno != ENOENT)
        status = qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    return status;
}

static qn_status remove_below(const qn_store_removal *r, const char *folder, const char *name)
{
    qn_buf path = {0};
    qn_buf_printf(&path, "%s/%s/%s", r->folder.data, folder, name);
    qn_status status = path.status;
    if (status == QN_OK && unlink(path.data) != 0 && errno != ENOENT)
        status = qn_fail(QN_E_IO, "%s: %s", path.data, strerror(errno));
    qn_buf_free(&path);
    return status;
}

/* References that lead to the commit. */
static qn_status remove_refs(const qn_store_removal *r)
{
    qn_buf path = {0};
    qn_hub_files refs = {0};
    qn_buf_printf(&path, "%s/refs", r->folder.data);
    qn_status status = path.status == QN_OK ? qn_store_walk(path.data, &refs) : path.status;
    if (status == QN_E_IO) status = QN_OK;
    for (size_t i = 0; i < refs.n && status == QN_OK; i++) {
        char commit[QN_SUM_HEX_MAX];
        if (qn_store_get_commit(r->folder.data, refs.files[i].path, commit) == QN_OK &&
            strcmp(commit, r->commit) == 0)
            status = remove_below(r, "refs", refs.files[i].path);
    }
    qn_hub_files_free(&refs);
    qn_buf_free(&path);
    return status;
}

/* What only says something of this commit, and folders that are empty now: what is left there stays. */
static void clear_up(const qn_store_removal *r)
{
    static const char *const folders[] = {"/snapshots", "/blobs", "/refs", "/.no_exist", "/trees", ""};
    qn_buf path = {0};
    qn_buf_printf(&path, "%s/.no_exist/%s", r->folder.data, r->commit);
    if (path.status == QN_OK && r->commit[0]) remove_tree(path.data, 0);
    qn_buf_reset(&path);
    qn_buf_printf(&path, "%s/trees/%s.json", r->folder.data, r->commit);
    if (path.status == QN_OK) unlink(path.data);
    qn_buf_reset(&path);
    qn_buf_printf(&path, "%s/snapshots", r->folder.data);
    if (path.status == QN_OK && rmdir(path.data) == 0) { /* it was the last: the note of its URL goes too */
        qn_buf_reset(&path);
        qn_buf_printf(&path, "%s/url", r->folder.data);
        if (path.status == QN_OK) unlink(path.data);
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        qn_buf_reset(&path);
        qn_buf_printf(&path, "%s%s", r->folder.data, folders[i]);
        if (path.status == QN_OK) rmdir(path.data);
    }
    qn_buf_free(&path);
}

/* References first and blobs last: whatever ends this, no name leads to half a model. */
qn_status qn_store_remove(const qn_store_removal *r)
{
    qn_buf snapshot = {0};
    qn_status status = qn_store_snapshot(r->folder.data, r->commit, NULL, &snapshot);
    if (status == QN_OK && r->is_whole && r->commit[0]) status = remove_refs(r);
    if (status == QN_OK && r->is_whole) {
        if (r->commit[0]) status = remove_tree(snapshot.data, 0);
    } else {
        for (size_t i = 0; i < r->links.n && status == QN_OK; i++) {
            qn_buf_reset(&snapshot);
            qn_buf_printf(&snapshot, "snapshots/%s", r->commit);
            status = snapshot.status == QN_OK ? remove_below(r, snapshot.data, r->links.files[i].path)
                                              : snapshot.status;
        }
    }
    for (size_t i = 0; i < r->blobs.n && status == QN_OK; i++)
        status = remove_below(r, "blobs", r->blobs.files[i].path);
    if (status == QN_OK && r->is_whole) clear_up(r);
    qn_buf_free(&snapshot);
    return status;
}

void qn_store_removal_free(qn_store_removal *r)
{
    qn_hub_files_free(&r->links);
    qn_hub_files_free(&r->blobs);
    qn_buf_free(&r->folder);
}
