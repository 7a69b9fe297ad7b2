#include "backend/mock/mock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/mock/mock_file.h"
#include "backend/native/native.h"
#include "base/buf.h"

static qn_backend backend;
static pthread_once_t made = PTHREAD_ONCE_INIT;

/* ",vocab=1000" at *rest, which moves on. */
static int read_vocab(char **rest, qn_mock_spec *m)
{
    static const char word[] = ",vocab=";
    if (strncmp(*rest, word, strlen(word)) != 0) return 0;
    char *digits = *rest + strlen(word), *end = digits;
    const long n = *digits >= '0' && *digits <= '9' ? strtol(digits, &end, 10) : 0;
    if (n < QN_MOCK_VOCAB_MIN || n > QN_MOCK_VOCAB_MAX) return 0;
    m->vocab_size = (int)n;
    *rest = end;
    return 1;
}

static int read_end(char **rest, qn_mock_spec *m)
{
    static const char word[] = ",end";
    if (m->ends || strncmp(*rest, word, strlen(word)) != 0) return 0;
    m->ends = 1;
    *rest += strlen(word);
    return 1;
}

static qn_status read_path(const char *path, qn_mock_spec *out)
{
    static const char name[] = "mock";
    char *rest = (char *)path;
    qn_mock_spec m = {.seed = 1};
    errno = 0;
    if (strncmp(path, name, strlen(name)) == 0)
        rest += strlen(name);
    else if (*path >= '0' && *path <= '9')
        m.seed = strtoull(path, &rest, 10);
    const int is_seed = rest != path && errno == 0;
    read_vocab(&rest, &m);
    read_end(&rest, &m);
    if (!m.vocab_size && !read_vocab(&rest, &m)) m.vocab_size = QN_MOCK_VOCAB;
    if (!is_seed || *rest)
        return qn_fail(
            QN_E_ARG,
            "%s: the backend mock takes \"mock\" or a seed, with \",end\" and \",vocab=N\" (N from %d to "
            "%d) behind it or not",
            path, QN_MOCK_VOCAB_MIN, QN_MOCK_VOCAB_MAX);
    *out = m;
    return QN_OK;
}

static qn_status write_file(const char *path, const qn_buf *bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    size_t at = 0;
    while (fd >= 0 && at < bytes->length) {
        ssize_t n = write(fd, bytes->data + at, bytes->length - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        at += (size_t)n;
    }
    qn_status status = QN_OK;
    if (at < bytes->length)
        status = qn_fail(QN_E_IO, "%s: cannot write the made-up model: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return status;
}

/* The file lies in a folder of its own, and both are gone when this returns: the model has mapped it. */
static qn_status open_made(const char *path, const qn_buf *bytes, const qn_model_options *options,
                           void **model)
{
    const char *place = getenv("TMPDIR");
    qn_model_options o = *options;
    qn_buf folder = {0}, file = {0};
    qn_buf_printf(&folder, "%s/quern-mock-XXXXXX", place && *place ? place : "/tmp");
    if (folder.status != QN_OK) return folder.status;
    if (!mkdtemp(folder.data)) {
        qn_status status = qn_fail(QN_E_IO, "%s: cannot create a folder: %s", folder.data, strerror(errno));
        qn_buf_free(&folder);
        return status;
    }
    qn_buf_printf(&file, "%s/mock.gguf", folder.data);
    o.packed = "none";
    qn_status status = file.status;
    if (status == QN_OK) status = write_file(file.data, bytes);
    if (status == QN_OK) status = qn_native_open_as(path, file.data, backend.name, &o, model);
    if (file.data) unlink(file.data);
    rmdir(folder.data);
    qn_buf_free(&file);
    qn_buf_free(&folder);
    return status;
}

static qn_status mock_open(const char *path, const qn_model_options *options, void **model)
{
    qn_mock_spec spec;
    qn_buf bytes = {0};
    QN_TRY(read_path(path, &spec));
    qn_mock_file_write(&spec, &bytes);
    qn_status status = bytes.status;
    if (status == QN_OK) status = open_made(path, &bytes, options, model);
    qn_buf_free(&bytes);
    return status;
}

static void make(void)
{
    backend = qn_backend_native;
    backend.name = "mock";
    backend.open = mock_open;
}

const qn_backend *qn_backend_mock(void)
{
    pthread_once(&made, make);
    return &backend;
}
