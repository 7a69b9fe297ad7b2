#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/registry.h"

static const qn_device_ops *const *const devices = qn_device_registry;

static qn_ledger *new_ledger(size_t limit_bytes)
{
    qn_ledger *l = qn_ledger_new();
    if (l) qn_ledger_set_limit(l, limit_bytes);
    return l;
}

static qn_status open_with_ledger(const qn_device_ops *ops, qn_device_options options, qn_device **out)
{
    qn_ledger *given = options.ledger, *host = given, *own = NULL;
    if (!given && !(host = new_ledger(options.memory_limit_bytes))) return QN_E_NOMEM;
    if (ops->free_bytes && (own = new_ledger(options.device_memory_limit_bytes)))
        qn_ledger_set_title(own, "device memory limit");
    options.ledger = ops->free_bytes ? own : host;
    const qn_status status = options.ledger ? ops->open(&options, out) : QN_E_NOMEM;
    if (status != QN_OK) {
        qn_ledger_free(own);
        if (!given) qn_ledger_free(host);
        return status;
    }
    (*out)->host_ledger = host;
    (*out)->owns_host_ledger = !given;
    atomic_init(&(*out)->holders, 1);
    return QN_OK;
}

static const char auto_name[] = "auto", variable[] = "QUERN_DEVICE";

static int is_auto(const char *name)
{
    return !name || strcmp(name, auto_name) == 0;
}

static qn_status find_named(const char *name, const qn_device_ops **out)
{
    char known[64];
    snprintf(known, sizeof known, "%s", auto_name);
    for (int i = 0; devices[i]; i++) {
        if (strcmp(devices[i]->name, name) == 0) {
            *out = devices[i];
            return QN_OK;
        }
        const size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, ", %s", devices[i]->name);
    }
    return qn_fail(QN_E_NOT_FOUND, "there is no device '%.40s'; there are: %s", name, known);
}

/* *out NULL: the choice is ours. */
static qn_status find(const char *name, const qn_device_ops **out)
{
    *out = NULL;
    if (!is_auto(name)) return find_named(name, out);
    const char *set = getenv(variable);
    if (!set || !*set || is_auto(set)) return QN_OK;
    const qn_status status = find_named(set, out);
    return status == QN_OK ? QN_OK : qn_fail_prefix(status, "%s", variable);
}

static int is_candidate(const qn_device_ops *ops)
{
    return ops->is_candidate && ops->is_candidate();
}

/* The first candidate that opens, else the host. */
static qn_status open_auto(const qn_device_options *options, qn_device **out)
{
    char note[sizeof(*out)->note] = "";
    qn_device *d = NULL;
    for (int i = 0; devices[i] && !d; i++)
        if (is_candidate(devices[i]) && open_with_ledger(devices[i], *options, &d) != QN_OK && !*note)
            qn_device_give_way_text(note, sizeof note);
    if (!d) {
        QN_TRY(open_with_ledger(qn_device_host, *options, &d));
        memcpy(d->note, note, sizeof note);
    }
    d->is_auto = 1;
    *out = d;
    return QN_OK;
}

qn_status qn_device_open(const char *name, const qn_device_options *options, qn_device **out)
{
    const qn_device_ops *ops;
    QN_TRY(find(name, &ops));
    return ops ? open_with_ledger(ops, *options, out) : open_auto(options, out);
}

int qn_device_gives_way(const qn_device *d, qn_status status)
{
    return d && d->is_auto && d->ops != qn_device_host &&
           (status == QN_E_NOMEM || status == QN_E_UNSUPPORTED || status == QN_E_DEVICE);
}

void qn_device_give_way_text(char *out, size_t size)
{
    static const char end[] = ". The CPU computes instead";
    snprintf(out, size - sizeof end, "%s", qn_last_error());
    memcpy(out + strlen(out), end, sizeof end);
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
    for (int i = 0; !ops && devices[i]; i++)
        if (is_candidate(devices[i]) && devices[i]->get_info(out) == QN_OK) return QN_OK;
    return (ops ? ops : qn_device_host)->get_info(out);
}

qn_status qn_device_get_logits_kernels(const qn_device *d, const qn_logits_kernels **out)
{
    const int has_own = d && d->ops->get_logits_kernels;
    return (has_own ? d->ops : qn_device_host)->get_logits_kernels(out);
}

void qn_device_close(qn_device *d)
{
    if (!d || atomic_fetch_sub_explicit(&d->holders, 1, memory_order_acq_rel) != 1) return;
    qn_ledger *own = qn_device_has_memory(d) ? d->ledger : NULL,
              *host = d->owns_host_ledger ? d->host_ledger : NULL;
    d->ops->close(d);
    qn_ledger_free(own);
    qn_ledger_free(host);
}

int qn_device_has_memory(const qn_device *d)
{
    return d->ops->free_bytes != NULL;
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
