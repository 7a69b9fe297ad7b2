#include "hub/store/partial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

enum { HASH_BYTES = 256 << 10 };
#define PIECE_BYTES ((int64_t)16 << 20)

typedef struct {
    char magic[8];
    int64_t size, piece_bytes;
} head;
static const char head_magic[8] = "QNPART1";

struct qn_partial {
    qn_buf path, place;
    int file;
    int64_t size, piece_bytes, n_pieces, total, hashed;
    int64_t *done;
    int was_resumed;
    qn_digest_kind sum;
    qn_digest digest;
    unsigned char *block; /* of HASH_BYTES */
};

static qn_status fail_io(const qn_partial *p)
{
    if (errno == ENOSPC || errno == EDQUOT)
        return qn_fail(QN_E_FULL,
                       "%s: the disk is full; what came is kept, and pulling again goes on from there",
                       p->place.data);
    if (errno == EFBIG)
        return qn_fail(QN_E_IO, "%s: the file may grow no further (a limit of the system); what came is kept",
                       p->place.data);
    return qn_fail(QN_E_IO, "%s: %s; what came is kept", p->place.data, strerror(errno));
}

static qn_status write_all(qn_partial *p, int64_t offset, const void *bytes, size_t n)
{
    for (const char *from = bytes; n;) {
        ssize_t written = pwrite(p->file, from, n, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return fail_io(p);
        from += written, offset += written, n -= (size_t)written;
    }
    return QN_OK;
}

static int64_t table_at(const qn_partial *p, int64_t i)
{
    return p->size + (int64_t)sizeof(head) + i * (int64_t)sizeof(int64_t);
}

static qn_status set_pieces(qn_partial *p, int64_t piece_bytes)
{
    const int64_t n = p->size ? (p->size + piece_bytes - 1) / piece_bytes : 0;
    int64_t *done = qn_calloc((size_t)n, sizeof *done);
    if (!done) return QN_E_NOMEM;
    qn_free(p->done);
    p->done = done;
    p->n_pieces = n;
    p->piece_bytes = piece_bytes;
    p->total = p->hashed = 0;
    qn_digest_begin(&p->digest, p->sum, p->size);
    return QN_OK;
}

static qn_status start(qn_partial *p, int64_t piece_bytes)
{
    head h = {.size = p->size, .piece_bytes = piece_bytes};
    memcpy(h.magic, head_magic, sizeof h.magic);
    QN_TRY(set_pieces(p, piece_bytes));
    if (ftruncate(p->file, 0) != 0) return fail_io(p);
    QN_TRY(write_all(p, p->size, &h, sizeof h));
    return write_all(p, table_at(p, 0), p->done, (size_t)p->n_pieces * sizeof *p->done);
}

/* All bytes are there; the sum will tell whether they are the right ones. */
static qn_status start_table(qn_partial *p)
{
    QN_TRY(set_pieces(p, PIECE_BYTES));
    for (int64_t i = 0; i < p->n_pieces; i++) p->done[i] = qn_partial_end(p, i) - qn_partial_begin(p, i);
    p->total = p->size;
    p->was_resumed = 1;
    return QN_OK;
}

/* Takes the table of an earlier process over. *fits 0: there is none, or it is not of this file. */
static qn_status read_table(qn_partial *p, int *fits)
{
    head h;
    struct stat info;
    *fits = 0;
    if (fstat(p->file, &info) != 0) return QN_OK;
    if (p->size && info.st_size == (off_t)p->size &&
        p->sum != QN_SUM_NONE) { /* it ended just before its new name */
        QN_TRY(start_table(p));
        *fits = 1;
        return QN_OK;
    }
    if (pread(p->file, &h, sizeof h, (off_t)p->size) != sizeof h) return QN_OK;
    if (memcmp(h.magic, head_magic, sizeof h.magic) != 0 || h.size != p->size ||
        (h.piece_bytes != PIECE_BYTES && h.piece_bytes != p->size))
        return QN_OK;
    QN_TRY(set_pieces(p, h.piece_bytes));
    const size_t n = (size_t)p->n_pieces * sizeof *p->done;
    if (info.st_size != (off_t)table_at(p, p->n_pieces) ||
        pread(p->file, p->done, n, (off_t)table_at(p, 0)) != (ssize_t)n)
        return QN_OK;
    for (int64_t i = 0; i < p->n_pieces; i++) {
        if (p->done[i] < 0 || p->done[i] > qn_partial_end(p, i) - qn_partial_begin(p, i)) return QN_OK;
        p->total += p->done[i];
    }
    p->was_resumed = p->total > 0;
    *fits = 1;
    return QN_OK;
}

qn_status qn_partial_open(const char *path, int64_t size_bytes, qn_digest_kind sum, qn_partial **out)
{
    int fits = 0;
    qn_partial *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    p->file = -1;
    p->size = size_bytes;
    p->sum = sum;
    qn_buf_puts(&p->path, path);
    qn_buf_printf(&p->place, "%s.quern.incomplete", path);
    p->block = qn_alloc(HASH_BYTES);
    qn_status status = p->path.status != QN_OK ? p->path.status : p->place.status;
    if (status == QN_OK && !p->block) status = QN_E_NOMEM;
    if (status == QN_OK) p->file = open(p->place.data, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (status == QN_OK && p->file < 0) status = qn_fail(QN_E_IO, "%s: %s", p->place.data, strerror(errno));
    if (status == QN_OK) status = read_table(p, &fits);
    if (status == QN_OK && !fits) status = start(p, PIECE_BYTES);
    if (status == QN_OK)
        *out = p;
    else
        qn_partial_close(p);
    return status;
}

void qn_partial_close(qn_partial *p)
{
    if (!p) return;
    if (p->file >= 0) close(p->file);
    qn_buf_free(&p->path);
    qn_buf_free(&p->place);
    qn_free(p->done);
    qn_free(p->block);
    qn_free(p);
}

qn_status qn_partial_restart(qn_partial *p, int whole)
{
    p->was_resumed = 0;
    return start(p, whole && p->size ? p->size : PIECE_BYTES);
}

void qn_partial_remove(qn_partial *p)
{
    unlink(p->place.data);
}

int64_t qn_partial_pieces(const qn_partial *p)
{
    return p->n_pieces;
}

int64_t qn_partial_begin(const qn_partial *p, int64_t i)
{
    return i * p->piece_bytes;
}

int64_t qn_partial_end(const qn_partial *p, int64_t i)
{
    const int64_t end = (i + 1) * p->piece_bytes;
    return end < p->size ? end : p->size;
}

int64_t qn_partial_done(const qn_partial *p, int64_t i)
{
    return p->done[i];
}

int64_t qn_partial_total(const qn_partial *p)
{
    return p->total;
}

int qn_partial_was_resumed(const qn_partial *p)
{
    return p->was_resumed;
}

/* Bytes first, then the count of them. */
qn_status qn_partial_write(qn_partial *p, int64_t i, const void *bytes, size_t n)
{
    const int64_t done = p->done[i] + (int64_t)n;
    if (done > qn_partial_end(p, i) - qn_partial_begin(p, i))
        return qn_fail(QN_E_INTERNAL, "%s: bytes beyond the end of piece %lld", p->place.data, (long long)i);
    QN_TRY(write_all(p, qn_partial_begin(p, i) + p->done[i], bytes, n));
    QN_TRY(write_all(p, table_at(p, i), &done, sizeof done));
    p->done[i] = done;
    p->total += (int64_t)n;
    return QN_OK;
}

qn_status qn_partial_drop_piece(qn_partial *p, int64_t i)
{
    const int64_t none = 0;
    QN_TRY(write_all(p, table_at(p, i), &none, sizeof none));
    p->total -= p->done[i];
    p->done[i] = 0;
    if (p->hashed > qn_partial_begin(p, i)) { /* what was hashed of it may have other bytes next time */
        p->hashed = 0;
        qn_digest_begin(&p->digest, p->sum, p->size);
    }
    return QN_OK;
}

qn_status qn_partial_hash(qn_partial *p, int64_t budget, int *at_end)
{
    while (p->hashed < p->size && budget > 0) {
        const int64_t i = p->hashed / p->piece_bytes;
        int64_t n = qn_partial_begin(p, i) + p->done[i] - p->hashed;
        if (n <= 0) break;
        if (n > HASH_BYTES) n = HASH_BYTES;
        ssize_t got = pread(p->file, p->block, (size_t)n, (off_t)p->hashed);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_io(p);
        if (got == 0) return qn_fail(QN_E_IO, "%s: the file became shorter while it was read", p->place.data);
        qn_digest_put(&p->digest, p->block, (size_t)got);
        p->hashed += got;
        budget -= got;
    }
    *at_end = p->hashed == p->size;
    return QN_OK;
}

int64_t qn_partial_hashed(const qn_partial *p)
{
    return p->hashed;
}

void qn_partial_sum(qn_partial *p, char hex[QN_SUM_HEX_MAX])
{
    qn_digest_end(&p->digest, hex);
}

int qn_partial_has_magic(const qn_partial *p, const char magic[4])
{
    char first[4];
    return p->n_pieces && p->done[0] >= 4 && pread(p->file, first, 4, 0) == 4 && memcmp(first, magic, 4) == 0;
}

qn_status qn_partial_finish(qn_partial *p)
{
    if (fsync(p->file) != 0 || ftruncate(p->file, (off_t)p->size) != 0) return fail_io(p);
    if (rename(p->place.data, p->path.data) != 0) return fail_io(p);
    return QN_OK;
}
