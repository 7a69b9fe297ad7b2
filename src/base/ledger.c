#include "base/ledger.h"

#include <pthread.h>

#include "base/mem.h"

struct qn_ledger {
    pthread_mutex_t lock;
    size_t held[QN_LEDGER_COUNT];
    size_t total, peak, limit;
};

const char *qn_ledger_name(qn_ledger_entry entry)
{
    static const char *const names[] = {"weights", "kv", "scratch", "cache", "other"};
    return names[entry];
}

qn_ledger *qn_ledger_new(void)
{
    qn_ledger *l = qn_calloc(1, sizeof *l);
    if (l) pthread_mutex_init(&l->lock, NULL);
    return l;
}

void qn_ledger_free(qn_ledger *l)
{
    if (!l) return;
    pthread_mutex_destroy(&l->lock);
    qn_free(l);
}

static size_t read_field(const qn_ledger *l, const size_t *field)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&l->lock;
    pthread_mutex_lock(lock);
    size_t v = *field;
    pthread_mutex_unlock(lock);
    return v;
}

size_t qn_ledger_set_limit(qn_ledger *l, size_t limit_bytes)
{
    pthread_mutex_lock(&l->lock);
    size_t old = l->limit;
    l->limit = limit_bytes;
    pthread_mutex_unlock(&l->lock);
    return old;
}

qn_status qn_ledger_reserve(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes)
{
    qn_status status = QN_OK;
    pthread_mutex_lock(&l->lock);
    size_t room = l->limit ? (l->limit > l->total ? l->limit - l->total : 0) : SIZE_MAX - l->total;
    if (size_bytes > room) {
        status = qn_fail(
            QN_E_FULL,
            "memory limit: %s needs %zu bytes more; limit %zu, held: weights %zu, kv %zu, scratch %zu, "
            "cache %zu, other %zu",
            qn_ledger_name(entry), size_bytes, l->limit, l->held[0], l->held[1], l->held[2], l->held[3],
            l->held[4]);
    } else {
        l->held[entry] += size_bytes;
        l->total += size_bytes;
        if (l->total > l->peak) l->peak = l->total;
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

void qn_ledger_release(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes)
{
    pthread_mutex_lock(&l->lock);
    l->held[entry] -= size_bytes;
    l->total -= size_bytes;
    pthread_mutex_unlock(&l->lock);
}

size_t qn_ledger_get_limit(const qn_ledger *l)
{
    return read_field(l, &l->limit);
}

size_t qn_ledger_held(const qn_ledger *l, qn_ledger_entry entry)
{
    return read_field(l, &l->held[entry]);
}

size_t qn_ledger_total(const qn_ledger *l)
{
    return read_field(l, &l->total);
}

size_t qn_ledger_peak(const qn_ledger *l)
{
    return read_field(l, &l->peak);
}

void qn_ledger_reset_peak(qn_ledger *l)
{
    pthread_mutex_lock(&l->lock);
    l->peak = l->total;
    pthread_mutex_unlock(&l->lock);
}
