/* Scopes: who owns temporaries, and where the first error is kept. */
#include <stdarg.h>
#include <stdio.h>

#include "array/eval.h"
#include "base/mem.h"

qn_scope *qn_scope_new(qn_device *device)
{
    qn_scope *s = qn_calloc(1, sizeof *s);
    if (s) s->device = device;
    return s;
}

qn_status qn_scope_open(int n_threads, size_t memory_limit_bytes, qn_scope **out)
{
    return qn_scope_open_on("cpu", n_threads, memory_limit_bytes, out);
}

qn_status qn_scope_open_on(const char *device, int n_threads, size_t memory_limit_bytes, qn_scope **out)
{
    return qn_scope_open_with(&(qn_scope_options){.device = device,
                                                  .n_threads = n_threads,
                                                  .memory_limit_bytes = memory_limit_bytes},
                              out);
}

static qn_status set_limits(qn_scope *s, const qn_scope_options *o)
{
    size_t wired_bytes;
    if (o->cache_limit_bytes)
        qn_scope_set_cache_limit(s, o->cache_limit_bytes == QN_KEEP_NOTHING ? 0 : o->cache_limit_bytes, NULL);
    if (!o->wired_limit_bytes) return QN_OK;
    if (!s->device->ops->wire)
        return qn_fail(QN_E_UNSUPPORTED, "a wired limit: arrays of the device %s lie in the host's memory",
                       s->device->ops->name);
    return s->device->ops->wire(s->device, o->wired_limit_bytes, &wired_bytes);
}

qn_status qn_scope_open_with(const qn_scope_options *options, qn_scope **out)
{
    static const qn_scope_options defaults;
    const qn_scope_options *o = options ? options : &defaults;
    qn_device *d;
    if (o->n_threads < 0) return qn_fail(QN_E_ARG, "qn_scope_open: %d threads", o->n_threads);
    const qn_device_options device = {.n_threads = o->n_threads,
                                      .memory_limit_bytes = o->memory_limit_bytes,
                                      .device_memory_limit_bytes = o->device_memory_limit_bytes};
    QN_TRY(qn_device_open(o->device, &device, &d));
    qn_scope *s = qn_scope_new(d);
    if (!s) {
        qn_device_close(d);
        return QN_E_NOMEM;
    }
    s->holds_device = 1;
    s->worker = qn_worker_new();
    const qn_status status = s->worker ? set_limits(s, o) : QN_E_NOMEM;
    if (status == QN_OK)
        *out = s;
    else
        qn_scope_free(s);
    return status;
}

static void put_old(size_t *to, size_t bytes)
{
    if (to) *to = bytes;
}

void qn_scope_set_memory_limit(qn_scope *s, size_t limit_bytes, size_t *old_bytes)
{
    put_old(old_bytes, qn_ledger_set_limit(s->device->host_ledger, limit_bytes));
}

void qn_scope_set_device_memory_limit(qn_scope *s, size_t limit_bytes, size_t *old_bytes)
{
    const int has_memory = qn_device_has_memory(s->device);
    put_old(old_bytes, has_memory ? qn_ledger_set_limit(s->device->ledger, limit_bytes) : 0);
}

void qn_scope_set_cache_limit(qn_scope *s, size_t limit_bytes, size_t *old_bytes)
{
    put_old(old_bytes, qn_ledger_set_cache_limit(s->device->ledger, limit_bytes));
    qn_device_set_cache_limit(s->device, limit_bytes);
}

void qn_scope_clear_cache(qn_scope *s)
{
    qn_ledger_clear_cache(s->device->ledger);
    qn_device_clear_cache(s->device);
}

void qn_scope_reset_peak_memory(qn_scope *s)
{
    qn_ledger_reset_peak(s->device->ledger);
    qn_ledger_reset_peak(s->device->host_ledger);
}

qn_scope *qn_scope_inner(qn_scope *outer)
{
    qn_scope *s = qn_scope_new(outer->device);
    if (!s) return NULL;
    qn_device_retain(s->device);
    s->holds_device = 1;
    s->precision = outer->precision;
    s->worker = qn_worker_retain(outer->worker);
    return s;
}

static void free_texts(qn_scope *s)
{
    for (int64_t i = 0; i < s->n_texts; i++) qn_free(s->texts[i]);
    s->n_texts = 0;
}

void qn_scope_free(qn_scope *s)
{
    if (!s) return;
    qn_worker_release(s->worker);
    qn_slab_leave(s);
    for (int64_t i = s->n_owned - 1; i >= 0; i--) qn_release(s->owned[i]);
    free_texts(s);
    qn_free(s->owned);
    qn_free(s->texts);
    if (s->holds_device) qn_device_close(s->device);
    qn_free(s);
}

void qn_scope_close(qn_scope *s)
{
    qn_scope_free(s);
}

qn_status qn_scope_status(qn_scope *s)
{
    return s->status == QN_OK ? QN_OK : qn_fail_copy(s->status, s->message);
}

qn_status qn_scope_recover(qn_scope *s)
{
    qn_status status = qn_scope_status(s);
    s->status = QN_OK;
    return status;
}

qn_device *qn_scope_device(qn_scope *s)
{
    return s->device;
}

void qn_scope_precision(qn_scope *s, qn_precision precision)
{
    s->precision = precision;
}

static void put_figures(qn_ledger_figures f, size_t *live_bytes, size_t *peak_bytes)
{
    if (live_bytes) *live_bytes = f.total;
    if (peak_bytes) *peak_bytes = f.peak;
}

void qn_scope_memory(qn_scope *s, size_t *live_bytes, size_t *peak_bytes)
{
    put_figures(qn_ledger_get(s->device->host_ledger), live_bytes, peak_bytes);
}

void qn_scope_device_memory(qn_scope *s, size_t *live_bytes, size_t *peak_bytes)
{
    const int has_memory = qn_device_has_memory(s->device);
    put_figures(has_memory ? qn_ledger_get(s->device->ledger) : (qn_ledger_figures){.total = 0}, live_bytes,
                peak_bytes);
}

void qn_scope_prefix(qn_scope *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->prefix, sizeof s->prefix, fmt, args);
    va_end(args);
}

qn_array *qn_scope_fail(qn_scope *s, qn_status status)
{
    if (s->status == QN_OK) {
        s->status = status;
        snprintf(s->message, sizeof s->message, "%s", qn_last_error());
    }
    return NULL;
}

int64_t qn_scope_mark(const qn_scope *s)
{
    return s->n_owned;
}

void qn_scope_sweep(qn_scope *s, int64_t mark, int n_keep, qn_array *const *keep)
{
    int64_t end = s->n_owned, kept = mark < 0 ? 0 : mark;
    qn_slab_leave(s);
    for (int64_t i = kept; i < end; i++) {
        qn_array *a = s->owned[i];
        int keeps = 0;
        for (int j = 0; j < n_keep && !keeps; j++) keeps = keep[j] == a;
        if (keeps)
            s->owned[kept++] = a;
        else
            qn_release(a);
    }
    if (kept < s->n_owned) s->n_owned = kept;
    free_texts(s);
}
