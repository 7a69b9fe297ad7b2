#include "format/files/mmap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

struct qn_mapping {
    atomic_int references;
    char *path;
    uint8_t *data;
    size_t size, page;
};

/* Opens a regular file for reading. O_NONBLOCK: a FIFO must be refused, not waited for. */
static qn_status open_regular(const char *path, int *fd, size_t *size)
{
    struct stat st;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) return qn_fail(errno == ENOENT ? QN_E_NOT_FOUND : QN_E_IO, "%s: %s", path, strerror(errno));
    qn_status status = QN_OK;
    if (fstat(f, &st) < 0)
        status = qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        status = qn_fail(QN_E_IO, "%s: is a directory, expected a file", path);
    else if (!S_ISREG(st.st_mode))
        status = qn_fail(QN_E_IO, "%s: is not a regular file", path);
    else if ((uint64_t)st.st_size > SIZE_MAX / 2)
        status = qn_fail(QN_E_IO, "%s: %lld bytes are too many to map", path, (long long)st.st_size);
    if (status != QN_OK) {
        close(f);
        return status;
    }
    *fd = f;
    *size = (size_t)st.st_size;
    return QN_OK;
}

qn_status qn_mapping_open(const char *path, qn_mapping **out)
{
    int fd = -1;
    size_t size = 0;
    qn_mapping *m = NULL;
    qn_status status = open_regular(path, &fd, &size);
    if (status != QN_OK) return status == QN_E_NOT_FOUND ? QN_E_IO : status;
    if (!size) {
        status = qn_fail(QN_E_FORMAT, "%s: the file is empty", path);
        goto out;
    }
    m = qn_calloc(1, sizeof *m);
    if (m) atomic_init(&m->references, 1);
    if (!m || !(m->path = qn_strdup(path))) {
        status = QN_E_NOMEM;
        goto out;
    }
    void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        status = qn_fail(QN_E_IO, "%s: cannot map %zu bytes: %s", path, size, strerror(errno));
        goto out;
    }
    m->data = data;
    m->size = size;
    m->page = qn_page_bytes();
    *out = m;
    m = NULL;
out:
    qn_mapping_close(m);
    close(fd);
    return status;
}

void qn_mapping_close(qn_mapping *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->references, 1, memory_order_acq_rel) > 1) return;
    if (m->data) munmap(m->data, m->size);
    qn_free(m->path);
    qn_free(m);
}

qn_mapping *qn_mapping_retain(const qn_mapping *m)
{
    qn_mapping *own = (qn_mapping *)(uintptr_t)m;
    atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
    return own;
}

const uint8_t *qn_mapping_data(const qn_mapping *m)
{
    return m->data;
}

size_t qn_mapping_size(const qn_mapping *m)
{
    return m->size;
}

const char *qn_mapping_path(const qn_mapping *m)
{
    return m->path;
}

void qn_mapping_drop(const qn_mapping *m, size_t offset, size_t n)
{
    if (offset >= m->size) return;
    size_t end = n < m->size - offset ? offset + n : m->size;
    size_t begin = offset / m->page * m->page;
    if (end != m->size) end = end / m->page * m->page;
    if (end > begin) madvise(m->data + begin, end - begin, MADV_DONTNEED);
}

void qn_mapping_expect(const qn_mapping *m, qn_mapping_use use)
{
    madvise(m->data, m->size, use == QN_MAPPING_SAMPLES ? MADV_RANDOM : MADV_NORMAL);
}

qn_status qn_file_check_pointer(const char *path, const void *bytes, size_t n)
{
    enum { POINTER_MAX = 1024 }; /* of the format's definition */
    static const char *const begins[] = {"version https://git-lfs.github.com/spec/",
                                         "version https://hawser.github.com/spec/"};
    static const char key[] = "\nsize ";
    if (n > POINTER_MAX) return QN_OK;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        const size_t m = strlen(begins[i]);
        if (n < m || memcmp(bytes, begins[i], m) != 0) continue;
        const char *at = memmem(bytes, n, key, sizeof key - 1);
        const char *digits = at ? at + sizeof key - 1 : "", *end = (const char *)bytes + n;
        int n_digits = 0;
        while (at && digits + n_digits < end && digits[n_digits] >= '0' && digits[n_digits] <= '9')
            n_digits++;
        return qn_fail(
            QN_E_FORMAT,
            "%s: this is a Git LFS pointer, not the file itself%s%.*s%s: run `git lfs pull` in the "
            "repository, or download the file",
            path, n_digits ? ", which has " : "", n_digits, digits, n_digits ? " bytes" : "");
    }
    return QN_OK;
}

qn_status qn_file_read(const char *path, size_t limit_bytes, char **text, size_t *n)
{
    int fd = -1;
    size_t size = 0, have = 0;
    char *bytes = NULL;
    QN_TRY(open_regular(path, &fd, &size));
    qn_status status = QN_OK;
    if (size > limit_bytes) {
        status = qn_fail(QN_E_FORMAT, "%s: %zu bytes, at most %zu are read", path, size, limit_bytes);
        goto out;
    }
    bytes = qn_alloc(size + 1);
    if (!bytes) {
        status = QN_E_NOMEM;
        goto out;
    }
    while (have < size) {
        ssize_t got = read(fd, bytes + have, size - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            status = qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
            goto out;
        }
        if (got == 0) break; /* it became shorter since fstat: what is there is the file */
        have += (size_t)got;
    }
    bytes[have] = 0;
    status = qn_file_check_pointer(path, bytes, have);
    if (status != QN_OK) goto out;
    *text = bytes;
    *n = have;
    bytes = NULL;
out:
    qn_free(bytes);
    close(fd);
    return status;
}
