#include "device/host.h"

#include "base/mem.h"

/* Buffers of this size and more come straight from the system: untouched pages cost nothing, large pages
 * help, and a GPU that shares the host's memory can use pages where they are. */
enum { MAP_BYTES = 1 << 20 };

qn_status qn_host_alloc(qn_device *d, size_t size_bytes, qn_ledger_entry entry, qn_buffer **out)
{
    qn_buffer *b = qn_calloc(1, sizeof *b);
    if (!b) return QN_E_NOMEM;
    qn_status status = qn_ledger_reserve(d->ledger, entry, size_bytes);
    if (status != QN_OK) {
        qn_free(b);
        return status;
    }
    b->data = size_bytes >= MAP_BYTES ? qn_alloc_mapped(size_bytes) : qn_calloc(1, size_bytes);
    if (!b->data) {
        qn_ledger_release(d->ledger, entry, size_bytes);
        qn_free(b);
        return qn_fail_nomem(size_bytes);
    }
    atomic_init(&b->references, 1);
    b->device = qn_device_retain(d);
    b->size_bytes = size_bytes;
    b->entry = entry;
    *out = b;
    return QN_OK;
}

void qn_host_free(qn_device *d, qn_buffer *b)
{
    if (b->size_bytes >= MAP_BYTES)
        qn_free_mapped(b->data, b->size_bytes);
    else
        qn_free(b->data);
    qn_ledger_release(d->ledger, b->entry, b->size_bytes);
}
