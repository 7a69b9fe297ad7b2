#include "cli/term/editor.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/term/input.h"

static qn_status write_file(int file, const char *text, size_t n)
{
    FILE *f = fdopen(file, "w");
    if (!f) {
        close(file);
        return qn_fail(QN_E_IO, "%s", strerror(errno));
    }
    int failed = fwrite(text, 1, n, f) != n;
    failed |= n && text[n - 1] != '\n' && fputc('\n', f) == EOF;
    failed |= fclose(f) != 0;
    return failed ? qn_fail(QN_E_IO, "%s", strerror(errno)) : QN_OK;
}

/* The shell takes the command apart: "code --wait" is one. */
static qn_status start(const char *editor, const char *path, pid_t *pid)
{
    qn_buf command = {0};
    posix_spawnattr_t attributes;
    sigset_t interrupt;
    qn_buf_printf(&command, "%s \"$1\"", editor);
    QN_TRY(command.status);
    char *argv[] = {"sh", "-c", command.data, "quern", (char *)path, NULL};
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &interrupt);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    int failed = posix_spawnp(pid, "sh", NULL, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    qn_buf_free(&command);
    return failed ? qn_fail(QN_E_IO, "%s: %s", editor, strerror(failed)) : QN_OK;
}

static qn_status run(const char *editor, const char *path)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    pid_t pid;
    int result = 0;
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGINT, &ignore, &before);
    qn_status status = start(editor, path, &pid);
    while (status == QN_OK && waitpid(pid, &result, 0) < 0)
        if (errno != EINTR) status = qn_fail(QN_E_IO, "%s: %s", editor, strerror(errno));
    sigaction(SIGINT, &before, NULL);
    if (status == QN_OK && (!WIFEXITED(result) || WEXITSTATUS(result) != 0))
        status = qn_fail(QN_E_IO, "%s failed: the text is unchanged", editor);
    return status;
}

qn_status qn_editor_run(const char *text, size_t n, qn_buf *out)
{
    const char *editor = getenv("VISUAL"), *folder = getenv("TMPDIR");
    if (!editor || !editor[0]) editor = getenv("EDITOR");
    if (!editor || !editor[0])
        return qn_fail(QN_E_NOT_FOUND, "no editor: set the environment variable EDITOR or VISUAL");
    qn_buf path = {0}, edited = {0};
    qn_buf_printf(&path, "%s/quern-XXXXXX.txt", folder && folder[0] ? folder : P_tmpdir);
    qn_status status = path.status;
    int file = status == QN_OK ? mkstemps(path.data, (int)strlen(".txt")) : -1;
    if (status == QN_OK && file < 0) status = qn_fail(QN_E_IO, "%s: %s", path.data, strerror(errno));
    if (status != QN_OK) goto out;
    status = write_file(file, text, n);
    if (status == QN_OK) status = run(editor, path.data);
    if (status == QN_OK) status = qn_input_read(path.data, &edited);
    unlink(path.data);
    if (status != QN_OK) goto out;
    if (edited.length && edited.data[edited.length - 1] == '\n') edited.data[--edited.length] = 0;
    qn_buf_reset(out);
    qn_buf_append(out, edited.data, edited.length);
    status = out->status;
out:
    qn_buf_free(&path);
    qn_buf_free(&edited);
    return status;
}
