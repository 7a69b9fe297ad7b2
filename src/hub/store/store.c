#include "hub/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "hub/names/choose.h"
#include "hub/names/url.h"

enum { LOCK_POLL_US = 200000 };
/* What stays free on the disk. */
#define SPARE_BYTES ((int64_t)16 << 20)

/* "a/b" -> "a--b" */
static void put_dashed(qn_buf *b, const char *repo)
{
    for (const char *p = repo; *p; p++)
        if (*p == '/')
            qn_buf_puts(b, "--");
        else
            qn_buf_putc(b, *p);
}

/* The host, and a sum of the whole URL. */
static void put_url_folder(qn_buf *b, const char *text)
{
    char hex[QN_SUM_HEX_MAX];
    qn_digest d;
    qn_url url;
    if (qn_url_parse(text, &url) != QN_OK) return; /* a name's URL was parsed before */
    qn_digest_begin(&d, QN_SUM_SHA256, 0);
    qn_digest_put(&d, text, strlen(text));
    qn_digest_end(&d, hex);
    qn_buf_puts(b, "url--");
    for (size_t i = 0; i < url.n_host; i++) {
        const char c = url.host[i];
        const int plain =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.';
        qn_buf_putc(b, plain ? c : '_');
    }
    qn_buf_printf(b, "--%.16s", hex);
}

qn_status qn_store_folder(const qn_hub_settings *s, const qn_hub_name *name, qn_buf *out)
{
    qn_buf_reset(out);
    qn_buf_printf(out, "%s/", name->kind == QN_HUB_HF ? s->cache.data : s->own.data);
    if (name->kind == QN_HUB_URL) {
        put_url_folder(out, name->url);
    } else {
        qn_buf_puts(out, name->kind == QN_HUB_HF ? "models--" : "ollama--");
        put_dashed(out, name->repo);
    }
    return out->status;
}

qn_status qn_store_blob(const char *folder, const char *hex, qn_buf *out)
{
    qn_buf_reset(out);
    qn_buf_printf(out, "%s/blobs/%s", folder, hex);
    return out->status;
}

qn_status qn_store_snapshot(const char *folder, const char *commit, const char *path, qn_buf *out)
{
    qn_buf_reset(out);
    qn_buf_printf(out, "%s/snapshots/%s%s%s", folder, commit, path ? "/" : "", path ? path : "");
    return out->status;
}

qn_status qn_store_make_parents(const char *path)
{
    char *copy = qn_strdup(path);
    qn_status status = copy ? QN_OK : QN_E_NOMEM;
    for (char *slash = copy ? strchr(copy + 1, '/') : NULL; slash && status == QN_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            status = qn_fail(QN_E_IO, "%s: %s", copy, strerror(errno));
        *slash = '/';
    }
    qn_free(copy);
    return status;
}

static qn_status wait_for_lock(const qn_hub_session *s, const char *folder, int file)
{
    int was_told = 0;
    while (flock(file, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return qn_fail(QN_E_IO, "%s: no lock: %s", folder, strerror(errno));
        if (!s) return qn_fail(QN_E_FULL, "%s: another quern is fetching or removing this model", folder);
        if (!was_told++) qn_hub_note(s, "another quern is fetching this model: waiting for it");
        usleep(LOCK_POLL_US);
        QN_TRY(qn_hub_check_cancel(s));
    }
    return QN_OK;
}

qn_status qn_store_lock(const qn_hub_session *s, const char *folder, int *file)
{
    const char *last = strrchr(folder, '/');
    qn_buf path = {0};
    int opened = -1;
    qn_buf_append(&path, folder, (size_t)(last - folder));
    qn_buf_printf(&path, "/.locks%s/quern.lock", last);
    qn_status status = path.status;
    if (status == QN_OK) status = qn_store_make_parents(path.data);
    if (status == QN_OK) opened = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (status == QN_OK && opened < 0) status = qn_fail(QN_E_IO, "%s: %s", path.data, strerror(errno));
    if (status == QN_OK) status = wait_for_lock(s, folder, opened);
    if (status == QN_OK)
        *file = opened;
    else if (opened >= 0)
        close(opened);
    qn_buf_free(&path);
    return status;
}

void qn_store_unlock(int file)
{
    if (file >= 0) close(file);
}

qn_status qn_store_check_room(const char *folder, int64_t n_bytes)
{
    struct statvfs disk;
    char needed[32], has[32];
    if (n_bytes <= 0 || statvfs(folder, &disk) != 0) return QN_OK; /* some file systems cannot say */
    const int64_t room = (int64_t)disk.f_bavail * (int64_t)disk.f_frsize;
    if (room >= n_bytes + SPARE_BYTES) return QN_OK;
    return qn_fail(QN_E_FULL,
                   "%s: too little room on the disk: %s are needed, %s are free (HF_HUB_CACHE or QUERN_CACHE "
                   "picks another place)",
                   folder, qn_hub_size_text(n_bytes, needed, sizeof needed),
                   qn_hub_size_text(room, has, sizeof has));
}

int64_t qn_store_left_bytes(const char *blob)
{
    struct stat info;
    qn_buf path = {0};
    int64_t left = 0;
    qn_buf_printf(&path, "%s.quern.incomplete", blob);
    if (path.status == QN_OK && lstat(path.data, &info) == 0) left = (int64_t)info.st_blocks * 512;
    qn_buf_free(&path);
    return left;
}

/* snapshots/COMMIT/a/b -> ../../../blobs/HEX */
static qn_status link_one(const char *folder, const char *commit, const qn_hub_file *file)
{
    qn_buf path = {0}, target = {0}, fresh = {0};
    struct stat info;
    qn_status status = qn_store_snapshot(folder, commit, file->path, &path);
    if (status == QN_OK && stat(path.data, &info) == 0 && info.st_size == (off_t)file->size) goto out;
    qn_buf_puts(&target, "../../");
    for (const char *p = file->path; *p; p++)
        if (*p == '/') qn_buf_puts(&target, "../");
    qn_buf_printf(&target, "blobs/%s", file->hex);
    qn_buf_printf(&fresh, "%s.quern-link", path.data);
    if (status == QN_OK) status = target.status != QN_OK ? target.status : fresh.status;
    if (status == QN_OK) status = qn_store_make_parents(path.data);
    if (status != QN_OK) goto out;
    unlink(fresh.data); /* of a process that ended between the next two lines */
    if (symlink(target.data, fresh.data) != 0 || rename(fresh.data, path.data) != 0)
        status = qn_fail(QN_E_IO, "%s: %s", path.data, strerror(errno));
out:
    qn_buf_free(&path);
    qn_buf_free(&target);
    qn_buf_free(&fresh);
    return status;
}

qn_status qn_store_link(const char *folder, const char *commit, const qn_hub_files *files)
{
    for (size_t i = 0; i < files->n; i++) QN_TRY(link_one(folder, commit, &files->files[i]));
    return QN_OK;
}

static qn_status write_text(const char *path, const char *text)
{
    qn_buf fresh = {0};
    qn_buf_printf(&fresh, "%s.quern-new", path);
    QN_TRY(fresh.status);
    qn_status status = qn_store_make_parents(path);
    const size_t n = strlen(text);
    int file =
        status == QN_OK ? open(fresh.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666) : -1;
    if (status == QN_OK && (file < 0 || write(file, text, n) != (ssize_t)n || fsync(file) != 0 ||
                            rename(fresh.data, path) != 0)) {
        status = qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
        unlink(fresh.data);
    }
    if (file >= 0) close(file);
    qn_buf_free(&fresh);
    return status;
}

qn_status qn_store_set_ref(const char *folder, const char *revision, const char *commit)
{
    qn_buf path = {0};
    if (strcmp(revision, commit) == 0) return QN_OK;
    qn_buf_printf(&path, "%s/refs/%s", folder, revision);
    qn_status status = path.status == QN_OK ? write_text(path.data, commit) : path.status;
    qn_buf_free(&path);
    return status;
}

qn_status qn_store_get_commit(const char *folder, const char *revision, char commit[QN_SUM_HEX_MAX])
{
    char text[QN_SUM_HEX_MAX] = "";
    qn_buf path = {0};
    if (qn_digest_is_hex(revision, 40)) {
        memcpy(commit, revision, 41);
        return QN_OK;
    }
    qn_buf_printf(&path, "%s/refs/%s", folder, revision);
    QN_TRY(path.status);
    FILE *f = fopen(path.data, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    while (n && strchr(" \r\n\t", text[n - 1])) text[--n] = 0;
    qn_status status = qn_digest_is_hex(text, 40)
                           ? QN_OK
                           : qn_fail(QN_E_NOT_FOUND, "%s: there is no revision %s", folder, revision);
    if (status == QN_OK) memcpy(commit, text, 41);
    qn_buf_free(&path);
    return status;
}
