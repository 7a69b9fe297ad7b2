/* The script that runs in Python, kept in this binary, as a file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/mlx_lm/mlx_lm_parts.h"
#include "base/cache_folder.h"
#include "base/embed.h"
#include "base/mem.h"

QN_EMBED(qn_mlx_bridge, "src/backend/mlx_lm/bridge.py");

static size_t bridge_bytes(void)
{
    return (size_t)(qn_mlx_bridge_end - qn_mlx_bridge);
}

/* Makes the folders of a path that are missing. */
static qn_status make_folders(char *path)
{
    for (char *at = path + 1;; at++) {
        if (*at && *at != '/') continue;
        char was = *at;
        *at = 0;
        int failed = mkdir(path, 0700) != 0 && errno != EEXIST;
        int error = errno;
        *at = was;
        if (failed && error != EISDIR && error != EROFS)
            return qn_fail(QN_E_IO, "%s: cannot create this folder: %s", path, strerror(error));
        if (!was) return QN_OK;
    }
}

/* What lies in it is executed: it must be ours alone. */
static qn_status check_private(const char *path)
{
    struct stat s;
    if (lstat(path, &s) != 0 || !S_ISDIR(s.st_mode))
        return qn_fail(QN_E_IO, "%s: not a folder: %s", path, strerror(errno));
    if (s.st_uid != geteuid() || (s.st_mode & (S_IWGRP | S_IWOTH)))
        return qn_fail(QN_E_IO, "%s: other users can write to this folder, and its files are executed", path);
    return QN_OK;
}

static int is_same(const char *path)
{
    char bytes[4096];
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC), same = 1;
    if (fd < 0) return 0;
    size_t n = 0;
    for (ssize_t got; same && (got = read(fd, bytes, sizeof bytes)) > 0; n += (size_t)got)
        same = (size_t)got <= bridge_bytes() - n && memcmp(bytes, qn_mlx_bridge + n, (size_t)got) == 0;
    close(fd);
    return same && n == bridge_bytes();
}

static qn_status write_script(const char *path)
{
    qn_buf own = {0};
    qn_buf_printf(&own, "%s.%ld", path, (long)getpid());
    if (own.status != QN_OK) return own.status;
    unlink(own.data);
    int fd = open(own.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    size_t at = 0;
    for (ssize_t n = 0; fd >= 0 && at < bridge_bytes() && n >= 0; at += n > 0 ? (size_t)n : 0)
        n = write(fd, qn_mlx_bridge + at, bridge_bytes() - at);
    int failed = fd < 0 || close(fd) != 0 || at < bridge_bytes() || rename(own.data, path) != 0;
    qn_status status = failed ? qn_fail(QN_E_IO, "%s: cannot be written: %s", path, strerror(errno)) : QN_OK;
    if (failed && fd >= 0) unlink(own.data);
    qn_buf_free(&own);
    return status;
}

qn_status qn_mlx_place(qn_buf *bridge, qn_buf *scratch)
{
    QN_TRY(qn_cache_folder(scratch));
    qn_buf_puts(scratch, "/mlx_lm");
    if (scratch->status != QN_OK) return scratch->status;
    QN_TRY(make_folders(scratch->data));
    QN_TRY(check_private(scratch->data));
    qn_buf_printf(bridge, "%s/bridge.py", scratch->data);
    if (bridge->status != QN_OK) return bridge->status;
    if (!is_same(bridge->data)) QN_TRY(write_script(bridge->data));
    qn_buf_puts(scratch, "/tmp"); /* MLX keeps the kernels there that it makes as it runs, and loads them */
    if (scratch->status != QN_OK) return scratch->status;
    QN_TRY(make_folders(scratch->data));
    return check_private(scratch->data);
}
