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
    return qn_scope_open_on(NULL, n_threads, memory_limit_bytes, out);
}

qn_status qn_scope_open_on(const char *device, int n_threads, size_t memory_limit_bytes, qn_scope **out)
{
    qn_device *d;
    if (n_threads < 0) return qn_fail(QN_E_ARG, "qn_scope_open: %d threads", n_threads);
    QN_TRY(qn_device_open(
        device, &(qn_device_options){.n_threads = n_threads, .memory_limit_bytes = memory_limit_bytes}, &d));
    qn_scope *s = qn_scope_new(d);
    if (!s) {
        qn_device_close(d);
        return QN_E_NOMEM;
    }
    s->holds_device = 1;
    s->worker = qn_worker_new();
    if (!s->worker) {
        qn_scope_free(s);
        return QN_E_NOMEM;
    }
    *out = s;
    return QN_OK;
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

void qn_scope_memory(qn_scope *s, size_t *live_bytes, size_t *peak_bytes)
{
    qn_ledger_figures f = qn_ledger_get(s->device->ledger);
    if (live_bytes) *live_bytes = f.total;
    if (peak_bytes) *peak_bytes = f.peak;
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
