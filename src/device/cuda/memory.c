/* Plain buffers: their two faces, and which of them is newer. */
#include "base/mem.h"
#include "device/cuda/cuda.h"

#include <string.h>

typedef enum { SAME, HOST_IS_NEWER, CARD_IS_NEWER } newer;

/* What belongs to a buffer beside its bytes on the host. */
typedef struct {
    char *card;         /* NULL: not made yet */
    size_t size_bytes;  /* as reserved in the ledger for each face */
    size_t valid_bytes; /* CARD_IS_NEWER: so many from the start are */
    newer newer;
    int is_kept; /* the host writes at any time: before each run it is compared with what was sent */
    char *sent;  /* of kept ones: what the card has; sent_bytes of it */
    size_t sent_bytes;
    int is_wanted;      /* the host reads it after runs */
    int host_is_locked; /* data is from host_alloc */
    int host_is_own;    /* data is ours to free */
} mirror;

static qn_status mirror_of(qn_buffer *b, mirror **out)
{
    if (!b->mirror) {
        mirror *m = qn_calloc(1, sizeof *m);
        if (!m) return QN_E_NOMEM;
        m->size_bytes = b->size_bytes;
        m->newer = b->data ? HOST_IS_NEWER : SAME;
        b->mirror = m;
    }
    *out = b->mirror;
    return QN_OK;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/* Of a card that is lost: 0. */
size_t qn_cuda_free_bytes(qn_device *base)
{
    const qn_cuda *d = (const qn_cuda *)base;
    size_t free_bytes = 0, total_bytes;
    return d->shim->memory(d->context, &free_bytes, &total_bytes) == QN_OK ? free_bytes : 0;
}

qn_status qn_cuda_take(qn_cuda *d, size_t size_bytes, qn_ledger_entry entry, void **out)
{
    QN_TRY(qn_ledger_reserve(d->base.ledger, entry, size_bytes));
    const qn_status status = qn_cuda_said(d, d->shim->alloc(d->context, size_bytes, out));
    if (status != QN_OK) qn_ledger_release(d->base.ledger, entry, size_bytes);
    return status;
}

void qn_cuda_give(qn_cuda *d, size_t size_bytes, qn_ledger_entry entry, void *p)
{
    if (!p) return;
    d->shim->free(d->context, p);
    qn_ledger_release(d->base.ledger, entry, size_bytes);
}

qn_status qn_cuda_take_host(qn_cuda *d, size_t size_bytes, qn_ledger_entry entry, void **out)
{
    QN_TRY(qn_ledger_reserve(d->base.host_ledger, entry, size_bytes));
    const qn_status status = qn_cuda_said(d, d->shim->host_alloc(d->context, size_bytes, out));
    if (status != QN_OK) qn_ledger_release(d->base.host_ledger, entry, size_bytes);
    return status;
}

void qn_cuda_give_host(qn_cuda *d, size_t size_bytes, qn_ledger_entry entry, void *p)
{
    if (!p) return;
    d->shim->host_free(d->context, p);
    qn_ledger_release(d->base.host_ledger, entry, size_bytes);
}

qn_status qn_cuda_alloc(qn_device *d, size_t size_bytes, qn_ledger_entry entry, qn_buffer **out)
{
    qn_buffer *b = qn_calloc(1, sizeof *b);
    if (!b) return QN_E_NOMEM;
    atomic_init(&b->references, 1);
    b->size_bytes = size_bytes;
    b->entry = entry;
    mirror *m;
    if (mirror_of(b, &m) != QN_OK) {
        qn_free(b);
        return QN_E_NOMEM;
    }
    b->device = qn_device_retain(d);
    *out = b;
    return QN_OK;
}

void qn_cuda_free_mirror(qn_device *base, qn_buffer *b)
{
    qn_cuda *d = (qn_cuda *)base;
    mirror *m = b->mirror;
    qn_cuda_give(d, m->size_bytes, b->entry, m->card);
    if (m->host_is_own && b->data) {
        if (m->host_is_locked) {
            qn_cuda_give_host(d, m->size_bytes, b->entry, b->data);
        } else {
            qn_free_mapped(b->data, m->size_bytes);
            qn_ledger_release(d->base.host_ledger, b->entry, m->size_bytes);
        }
    }
    qn_free(m->sent);
    qn_free(m);
    b->mirror = NULL;
}

void qn_cuda_free(qn_device *base, qn_buffer *b)
{
    if (b->layout == QN_CUDA_LAYOUT_WEIGHT)
        qn_cuda_weight_free((qn_cuda *)base, b);
    else
        qn_cuda_free_mirror(base, b);
    qn_free(b);
}

/* ---- faces --------------------------------------------------------------------------------------------- */

/* Bytes on the host. What is read after each run is locked memory: the card writes it without a stage. What the
 * host writes is not: a copy of ordinary memory has left it when the call returns, so the host may go on. */
static qn_status make_host(qn_cuda *d, qn_buffer *b, mirror *m, int locked)
{
    if (b->data) return QN_OK;
    if (locked) {
        void *p;
        QN_TRY(qn_cuda_take_host(d, m->size_bytes, b->entry, &p));
        b->data = p;
    } else {
        QN_TRY(qn_ledger_reserve(d->base.host_ledger, b->entry, m->size_bytes));
        if (!(b->data = qn_alloc_mapped(m->size_bytes ? m->size_bytes : 1))) {
            qn_ledger_release(d->base.host_ledger, b->entry, m->size_bytes);
            return QN_E_NOMEM;
        }
    }
    m->host_is_locked = locked;
    m->host_is_own = 1;
    return QN_OK;
}

static qn_status fetch(qn_cuda *d, qn_buffer *b, mirror *m)
{
    if (m->newer != CARD_IS_NEWER) return QN_OK;
    QN_TRY(qn_cuda_said(d, d->shim->copy(d->context, b->data, m->card, m->valid_bytes)));
    QN_TRY(qn_cuda_said(d, d->shim->wait(d->context)));
    m->newer = SAME;
    return QN_OK;
}

qn_status qn_cuda_bring(qn_device *base, qn_buffer *b, qn_host_access how)
{
    qn_cuda *d = (qn_cuda *)base;
    mirror *m;
    QN_TRY(mirror_of(b, &m));
    QN_TRY(make_host(d, b, m, how == QN_HOST_READS && b->entry == QN_LEDGER_SCRATCH));
    QN_TRY(fetch(d, b, m));
    if (how == QN_HOST_READS)
        m->is_wanted = 1;
    else
        m->newer = HOST_IS_NEWER;
    m->is_kept |= how == QN_HOST_KEEPS;
    return QN_OK;
}

qn_status qn_cuda_peek(qn_cuda *d, qn_buffer *b, const void **out)
{
    mirror *m;
    QN_TRY(mirror_of(b, &m));
    QN_TRY(make_host(d, b, m, 0));
    QN_TRY(fetch(d, b, m));
    *out = b->data;
    return QN_OK;
}

/* Begins to copy to the card. A small piece goes through locked memory, so that the call does not wait for the
 * card; that memory is used again after the next qn_cuda_wait. */
static qn_status send(qn_cuda *d, char *card, const void *data, size_t n)
{
    enum { STAGE_BYTES = 1 << 20, PIECE_MAX = 64 << 10, ALIGN = 64 };
    if (n > PIECE_MAX) return qn_cuda_said(d, d->shim->copy(d->context, card, data, n));
    if (!d->stage) {
        void *p;
        QN_TRY(qn_cuda_take_host(d, STAGE_BYTES, QN_LEDGER_SCRATCH, &p));
        d->stage = p;
        d->stage_bytes = STAGE_BYTES;
    }
    if (d->stage_used + n > STAGE_BYTES) QN_TRY(qn_cuda_wait(d));
    char *piece = d->stage + d->stage_used;
    d->stage_used += (n + ALIGN - 1) / ALIGN * ALIGN;
    memcpy(piece, data, n);
    return qn_cuda_said(d, d->shim->copy(d->context, card, piece, n));
}

/* The first n bytes of what the host may have written, if they are not what the card has. */
static qn_status send_kept(qn_cuda *d, qn_buffer *b, mirror *m, size_t n)
{
    if (n <= m->sent_bytes && m->newer != CARD_IS_NEWER && memcmp(b->data, m->sent, n) == 0) return QN_OK;
    if (!m->sent && !(m->sent = qn_alloc(m->size_bytes ? m->size_bytes : 1))) return QN_E_NOMEM;
    m->sent_bytes = 0;
    QN_TRY(send(d, m->card, b->data, n));
    memcpy(m->sent, b->data, n);
    m->sent_bytes = n;
    m->newer = SAME;
    return QN_OK;
}

qn_status qn_cuda_wait(qn_cuda *d)
{
    d->stage_used = 0;
    return qn_cuda_said(d, d->shim->wait(d->context));
}

static qn_status make_card(qn_cuda *d, const qn_buffer *b, mirror *m)
{
    if (m->card) return QN_OK;
    void *p;
    QN_TRY(qn_cuda_take(d, m->size_bytes, b->entry, &p));
    m->card = p;
    return QN_OK;
}

qn_status qn_cuda_face(qn_cuda *d, qn_buffer *b, size_t size_bytes, char **out)
{
    mirror *m;
    QN_TRY(mirror_of(b, &m));
    QN_TRY(make_card(d, b, m));
    if (m->is_kept) {
        QN_TRY(send_kept(d, b, m, size_bytes < m->size_bytes ? size_bytes : m->size_bytes));
    } else if (m->newer == HOST_IS_NEWER) {
        QN_TRY(qn_cuda_said(d, d->shim->copy(d->context, m->card, b->data, m->size_bytes)));
        m->newer = SAME;
    }
    *out = m->card;
    return QN_OK;
}

qn_status qn_cuda_guessed_face(qn_cuda *d, qn_buffer *b, size_t n_bytes, char **out)
{
    mirror *m;
    QN_TRY(mirror_of(b, &m));
    if (n_bytes > m->size_bytes)
        return qn_fail(QN_E_ARG, "device cuda: %zu bytes are guessed, and their buffer has %zu", n_bytes,
                       m->size_bytes);
    QN_TRY(make_card(d, b, m));
    m->sent_bytes = 0;
    if (b->data) m->newer = HOST_IS_NEWER;
    *out = m->card;
    return QN_OK;
}

qn_status qn_cuda_written(qn_cuda *d, qn_buffer *b, size_t size_bytes, void *mark, int *is_coming)
{
    mirror *m;
    QN_TRY(mirror_of(b, &m));
    m->newer = CARD_IS_NEWER;
    m->valid_bytes = size_bytes;
    m->sent_bytes = 0;
    if (!b->data || !(m->is_wanted || m->is_kept)) return QN_OK;
    QN_TRY(qn_cuda_said(d, mark ? d->shim->copy_beside(d->context, b->data, m->card, size_bytes, mark)
                                : d->shim->copy(d->context, b->data, m->card, size_bytes)));
    m->newer = SAME;
    *is_coming = 1;
    return QN_OK;
}
