#include "device/device.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/registry.h"

static const qn_device_ops *const *const devices = qn_device_registry;

static qn_status open_with_ledger(const qn_device_ops *ops, qn_device_options options, qn_device **out)
{
    const int owns_ledger = !options.ledger;
    if (owns_ledger) {
        options.ledger = qn_ledger_new();
        if (!options.ledger) return QN_E_NOMEM;
        qn_ledger_set_limit(options.ledger, options.memory_limit_bytes);
    }
    const qn_status status = ops->open(&options, out);
    if (status != QN_OK) {
        if (owns_ledger) qn_ledger_free(options.ledger);
        return status;
    }
    (*out)->owns_ledger = owns_ledger;
    atomic_init(&(*out)->holders, 1);
    return QN_OK;
}

/* NULL: the default device. */
static qn_status find(const char *name, const qn_device_ops **out)
{
    char known[64] = "";
    for (int i = 0; devices[i]; i++) {
        if (!name || strcmp(devices[i]->name, name) == 0) {
            *out = devices[i];
            return QN_OK;
        }
        const size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", devices[i]->name);
    }
    return qn_fail(QN_E_NOT_FOUND, "there is no device '%.40s'; there are: %s", name, known);
}

qn_status qn_device_open(const char *name, const qn_device_options *options, qn_device **out)
{
    const qn_device_ops *ops;
    QN_TRY(find(name, &ops));
    return open_with_ledger(ops, *options, out);
}

qn_status qn_device_get_info(size_t i_device, qn_device_info *out)
{
    if (!out) return qn_fail(QN_E_ARG, "qn_device_get_info: out is NULL");
    for (size_t i = 0; devices[i]; i++)
        if (i == i_device) return devices[i]->get_info(out);
    return qn_fail(QN_E_NOT_FOUND, "there is no device %zu", i_device);
}

qn_status qn_device_find(const char *name, qn_device_info *out)
{
    const qn_device_ops *ops;
    if (!out) return qn_fail(QN_E_ARG, "qn_device_find: nowhere to put the result");
    QN_TRY(find(name, &ops));
    return ops->get_info(out);
}

qn_status qn_device_get_logits_kernels(const qn_device *d, const qn_logits_kernels **out)
{
    const int has_own = d && d->ops->get_logits_kernels;
    return (has_own ? d->ops : qn_device_host)->get_logits_kernels(out);
}

void qn_device_close(qn_device *d)
{
    if (!d || atomic_fetch_sub_explicit(&d->holders, 1, memory_order_acq_rel) != 1) return;
    qn_ledger *ledger = d->owns_ledger ? d->ledger : NULL;
    d->ops->close(d);
    qn_ledger_free(ledger);
}

qn_device *qn_device_retain(qn_device *d)
{
    atomic_fetch_add_explicit(&d->holders, 1, memory_order_relaxed);
    return d;
}

size_t qn_device_cache_bytes(qn_device *d)
{
    return d->ops->cache_bytes ? d->ops->cache_bytes(d) : 0;
}

void qn_device_set_cache_limit(qn_device *d, size_t limit_bytes)
{
    if (d->ops->set_cache_limit) d->ops->set_cache_limit(d, limit_bytes);
}

void qn_device_clear_cache(qn_device *d)
{
    if (d->ops->clear_cache) d->ops->clear_cache(d);
}

qn_buffer *qn_buffer_retain(qn_buffer *b)
{
    if (b) atomic_fetch_add_explicit(&b->references, 1, memory_order_relaxed);
    return b;
}

void *qn_buffer_host(qn_buffer *b, qn_host_access how)
{
    const qn_device_ops *ops = b->device->ops;
    return !ops->bring || ops->bring(b->device, b, how) == QN_OK ? b->data : NULL;
}

void qn_buffer_release(qn_buffer *b)
{
    if (!b || atomic_fetch_sub_explicit(&b->references, 1, memory_order_acq_rel) != 1) return;
    qn_device *d = b->device;
    if (b->let_go) {
        if (b->mirror) d->ops->free_mirror(d, b);
        b->let_go(b->owner);
        qn_free(b);
    } else {
        d->ops->free(d, b);
    }
    qn_device_close(d);
}

qn_status qn_buffer_borrow(qn_device *d, const void *data, size_t size_bytes, void (*let_go)(void *owner),
                           void *owner, qn_buffer **out)
{
    qn_buffer *b = qn_calloc(1, sizeof *b);
    if (!b) return QN_E_NOMEM;
    atomic_init(&b->references, 1);
    b->device = qn_device_retain(d);
    b->data = (void *)(uintptr_t)data;
    b->size_bytes = size_bytes;
    b->borrowed = 1;
    b->let_go = let_go;
    b->owner = owner;
    *out = b;
    return QN_OK;
}
