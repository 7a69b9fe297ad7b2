#include "backend/mlx_lm/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

extern char **environ;

enum { WORDS_MAX = 4096, READ_BYTES = 1 << 16 };

struct qn_child {
    pid_t pid;
    int is_reaped, exit_status;
    int in, out, complaints; /* our ends; -1: closed */
    int is_gone, too_long;
    qn_buf to_write, said;
    size_t written, taken; /* of these, what is done with */
    size_t seen;           /* of said: up to here there is no further line end */
    char words[WORDS_MAX + 1];
    size_t n_words;
};

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Its environment: this process's with some variables in other values. */
static char **make_environment(const char *const *own)
{
    size_t n = 0, n_own = 0, at = 0;
    while (environ[n]) n++;
    while (own && own[n_own]) n_own++;
    char **all = qn_alloc_array(n + n_own + 1, sizeof *all);
    if (!all) return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        for (; j < n_own; j++) {
            size_t name = (size_t)(strchr(own[j], '=') - own[j]) + 1;
            if (strncmp(environ[i], own[j], name) == 0) break;
        }
        if (j == n_own) all[at++] = environ[i];
    }
    for (size_t j = 0; j < n_own; j++) all[at++] = (char *)own[j];
    all[at] = NULL;
    return all;
}

static int make_pair(int is_socket, int pair[2])
{
    if (is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, pair) : pipe(pair)) return -1;
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    fcntl(pair[1], F_SETFD, FD_CLOEXEC);
    return 0;
}

static int spawn(qn_child *c, const char *const *argv, char **environment, int in, int out, int complaints)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawn_file_actions_init(&files);
    if (error) return error;
    if ((error = posix_spawnattr_init(&how))) {
        posix_spawn_file_actions_destroy(&files);
        return error;
    }
    error = posix_spawn_file_actions_adddup2(&files, in, 0);
    if (!error) error = posix_spawn_file_actions_adddup2(&files, out, 1);
    if (!error) error = posix_spawn_file_actions_adddup2(&files, complaints, 2);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!error) error = posix_spawnp(&c->pid, argv[0], &files, &how, (char *const *)argv, environment);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

qn_status qn_child_start(const char *const *argv, const char *const *environment, qn_child **out)
{
    int in[2] = {-1, -1}, said[2] = {-1, -1}, complaints[2] = {-1, -1};
    qn_status status = QN_OK;
    qn_child *c = qn_calloc(1, sizeof *c);
    char **variables = c ? make_environment(environment) : NULL;
    if (!variables) {
        qn_free(c);
        return QN_E_NOMEM;
    }
    c->in = c->out = c->complaints = -1;
    c->said.limit_bytes = QN_CHILD_LINE_MAX;
    if (make_pair(1, in) || make_pair(0, said) || make_pair(0, complaints)) {
        status = qn_fail(QN_E_IO, "cannot create a pipe to %s: %s", argv[0], strerror(errno));
    } else {
        int error = spawn(c, argv, variables, in[1], said[1], complaints[1]);
        if (error == ENOENT)
            status = qn_fail(QN_E_NOT_FOUND, "there is no program %s", argv[0]);
        else if (error)
            status = qn_fail(QN_E_IO, "%s cannot be started: %s", argv[0], strerror(error));
    }
    qn_free(variables);
    close_fd(&in[1]);
    close_fd(&said[1]);
    close_fd(&complaints[1]);
    c->in = in[0];
    c->out = said[0];
    c->complaints = complaints[0];
    if (status != QN_OK) {
        c->is_reaped = 1; /* there is none */
        qn_child_free(c, 0);
        return status;
    }
    fcntl(c->in, F_SETFL, O_NONBLOCK);
    fcntl(c->out, F_SETFL, O_NONBLOCK);
    fcntl(c->complaints, F_SETFL, O_NONBLOCK);
    *out = c;
    return QN_OK;
}

static int reap(qn_child *c, int options)
{
    if (c->is_reaped) return 1;
    pid_t got = waitpid(c->pid, &c->exit_status, options);
    if (got == c->pid || (got < 0 && errno == ECHILD)) c->is_reaped = 1; /* or somebody else waited for all */
    if (got < 0) c->exit_status = -1;
    return c->is_reaped;
}

static int reap_within(qn_child *c, int ms)
{
    for (int64_t end = qn_clock_ns() + ms * INT64_C(1000000); !reap(c, WNOHANG);) {
        if (qn_clock_ns() >= end) return 0;
        poll(NULL, 0, 2);
    }
    return 1;
}

void qn_child_free(qn_child *c, int grace_ms)
{
    if (!c) return;
    close_fd(&c->in);
    if (!reap_within(c, grace_ms)) {
        kill(-c->pid, SIGKILL);
        while (!reap(c, 0))
            if (errno != EINTR) break;
    }
    close_fd(&c->out);
    close_fd(&c->complaints);
    qn_buf_free(&c->to_write);
    qn_buf_free(&c->said);
    qn_free(c);
}

qn_status qn_child_write(qn_child *c, const char *bytes, size_t n)
{
    qn_buf_append(&c->to_write, bytes, n);
    return c->to_write.status;
}

static void push(qn_child *c)
{
#ifndef MSG_NOSIGNAL /* there the socket itself is told (SO_NOSIGPIPE) */
    enum { MSG_NOSIGNAL = 0 };
    setsockopt(c->in, SOL_SOCKET, SO_NOSIGPIPE, &(int){1}, sizeof(int));
#endif
    while (c->written < c->to_write.length) {
        ssize_t n = send(c->in, c->to_write.data + c->written, c->to_write.length - c->written, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            c->written = c->to_write.length; /* it is gone */
        if (n < 0) break;
        c->written += (size_t)n;
    }
    if (c->written < c->to_write.length) return;
    qn_buf_free(&c->to_write); /* a prompt may have been long */
    c->written = 0;
}

static qn_status pull(qn_child *c)
{
    if (c->taken) { /* what was handed out is done with */
        memmove(c->said.data, c->said.data + c->taken, c->said.length - c->taken);
        c->said.length -= c->taken;
        c->seen = c->said.length;
        c->taken = 0;
    }
    char bytes[READ_BYTES];
    ssize_t n = read(c->out, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return QN_OK;
    if (n <= 0) {
        c->is_gone = 1;
        return QN_OK;
    }
    qn_buf_append(&c->said, bytes, (size_t)n);
    if (c->said.status != QN_E_FULL) return c->said.status;
    c->is_gone = c->too_long = 1;
    return QN_OK;
}

static void hear(qn_child *c)
{
    char bytes[WORDS_MAX];
    ssize_t n = read(c->complaints, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) {
        close_fd(&c->complaints);
        return;
    }
    size_t more = (size_t)n, keep = WORDS_MAX - more < c->n_words ? WORDS_MAX - more : c->n_words;
    memmove(c->words, c->words + c->n_words - keep, keep);
    memcpy(c->words + keep, bytes, more);
    c->n_words = keep + more;
    c->words[c->n_words] = 0;
}

qn_status qn_child_wait(qn_child *c, int reads, int timeout_ms, int wake_fd)
{
    push(c);
    struct pollfd fds[4] = {{.fd = c->written < c->to_write.length ? c->in : -1, .events = POLLOUT},
                            {.fd = reads && !c->is_gone ? c->out : -1, .events = POLLIN},
                            {.fd = c->complaints, .events = POLLIN},
                            {.fd = wake_fd, .events = POLLIN}};
    if (poll(fds, 4, timeout_ms) <= 0) return QN_OK;
    if (fds[0].revents) push(c);
    if (fds[2].revents) hear(c);
    return fds[1].revents ? pull(c) : QN_OK;
}

char *qn_child_line(qn_child *c, size_t *n)
{
    char *from = c->said.data + c->taken;
    size_t at = c->seen > c->taken ? c->seen : c->taken;
    char *end = at < c->said.length ? memchr(c->said.data + at, '\n', c->said.length - at) : NULL;
    if (!end) {
        c->seen = c->said.length;
        return NULL;
    }
    *end = 0;
    *n = (size_t)(end - from);
    c->taken += *n + 1;
    return from;
}

int qn_child_is_gone(const qn_child *c)
{
    return c->is_gone;
}

void qn_child_describe_end(qn_child *c, char *out, size_t size)
{
    int at = 0;
    for (int i = 0; i < 50 && c->complaints >= 0 && !c->too_long; i++) /* what is on its way */
        qn_child_wait(c, 0, 10, -1);
    int is_known = reap_within(c, 200) && c->exit_status != -1;
    if (c->too_long)
        at = snprintf(out, size, "sent more than %d bytes without a line end", (int)QN_CHILD_LINE_MAX);
    else if (is_known && WIFSIGNALED(c->exit_status))
        at = snprintf(out, size, "was ended by signal %d", WTERMSIG(c->exit_status));
    else if (is_known && WIFEXITED(c->exit_status))
        at = snprintf(out, size, "ended with status %d", WEXITSTATUS(c->exit_status));
    else
        at = snprintf(out, size, "closed its output");
    while (c->n_words && (c->words[c->n_words - 1] == '\n' || c->words[c->n_words - 1] == ' '))
        c->words[--c->n_words] = 0;
    size_t most = 400, from = c->n_words > most ? c->n_words - most : 0;
    if (c->n_words && at > 0 && (size_t)at < size)
        snprintf(out + at, size - (size_t)at, "; its last output: %s%s", from ? "..." : "", c->words + from);
}
