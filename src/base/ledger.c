#include "base/ledger.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"

struct qn_ledger {
    pthread_mutex_t lock;
    atomic_int holders;
    const char *title;
    qn_ledger_figures now;
    qn_ledger_reclaim_fn *reclaim;
    void *reclaim_user;
};

const char *qn_ledger_name(qn_ledger_entry entry)
{
    static const char *const names[] = {"weights", "kv", "scratch", "cache", "other"};
    return names[entry];
}

qn_ledger *qn_ledger_new(void)
{
    qn_ledger *l = qn_calloc(1, sizeof *l);
    if (!l) return NULL;
    pthread_mutex_init(&l->lock, NULL);
    atomic_init(&l->holders, 1);
    l->now.cache_limit = QN_LEDGER_CACHE_DEFAULT;
    l->title = "memory limit";
    return l;
}

void qn_ledger_set_title(qn_ledger *l, const char *title)
{
    l->title = title;
}

qn_ledger *qn_ledger_retain(qn_ledger *l)
{
    atomic_fetch_add_explicit(&l->holders, 1, memory_order_relaxed);
    return l;
}

void qn_ledger_free(qn_ledger *l)
{
    if (!l || atomic_fetch_sub_explicit(&l->holders, 1, memory_order_acq_rel) > 1) return;
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

void qn_ledger_set_reclaim(qn_ledger *l, qn_ledger_reclaim_fn *fn, void *user)
{
    pthread_mutex_lock(&l->lock);
    l->reclaim = fn;
    l->reclaim_user = user;
    pthread_mutex_unlock(&l->lock);
}

static size_t less(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What of the cache has to go so that `more` bytes fit under both limits. The lock is held. */
static size_t excess(const qn_ledger *l, size_t more)
{
    size_t cache = l->now.held[QN_LEDGER_CACHE],
           over = cache > l->now.cache_limit ? cache - l->now.cache_limit : 0;
    size_t wanted = more < SIZE_MAX - l->now.total ? l->now.total + more : SIZE_MAX;
    size_t missing = l->now.limit && wanted > l->now.limit ? wanted - l->now.limit : 0;
    return less(missing > over ? missing : over, cache);
}

/* Has size_bytes of the cache given up. The lock is held, and let go of before the call. */
static void give_up(qn_ledger *l, size_t size_bytes)
{
    qn_ledger_reclaim_fn *fn = l->reclaim;
    void *user = l->reclaim_user;
    pthread_mutex_unlock(&l->lock);
    if (fn && size_bytes) fn(user, size_bytes);
}

static size_t set_field(qn_ledger *l, size_t *field, size_t value)
{
    pthread_mutex_lock(&l->lock);
    size_t old = *field;
    *field = value;
    give_up(l, excess(l, 0));
    return old;
}

size_t qn_ledger_set_limit(qn_ledger *l, size_t limit_bytes)
{
    return set_field(l, &l->now.limit, limit_bytes);
}

size_t qn_ledger_set_cache_limit(qn_ledger *l, size_t limit_bytes)
{
    return set_field(l, &l->now.cache_limit, limit_bytes);
}

void qn_ledger_clear_cache(qn_ledger *l)
{
    pthread_mutex_lock(&l->lock);
    give_up(l, l->now.held[QN_LEDGER_CACHE]);
}

/* Enters the bytes when they fit. The lock is held. */
static int enter(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes)
{
    size_t room = l->now.limit ? (l->now.limit > l->now.total ? l->now.limit - l->now.total : 0)
                               : SIZE_MAX - l->now.total;
    if (size_bytes > room) return 0;
    l->now.held[entry] += size_bytes;
    l->now.total += size_bytes;
    if (l->now.total > l->now.peak) l->now.peak = l->now.total;
    return 1;
}

qn_status qn_ledger_reserve(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes)
{
    qn_status status = QN_OK;
    pthread_mutex_lock(&l->lock);
    int entered = enter(l, entry, size_bytes);
    /* Another thread may take the room that was made here: as long as there is cached memory to give up and
     * some goes, it is tried again. */
    for (size_t cached; !entered && (cached = l->now.held[QN_LEDGER_CACHE]);) {
        give_up(l, excess(l, size_bytes));
        pthread_mutex_lock(&l->lock);
        entered = enter(l, entry, size_bytes);
        if (l->now.held[QN_LEDGER_CACHE] >= cached) break;
    }
    if (!entered)
        status = qn_fail(QN_E_NOMEM,
                         "%s: %s needs %zu bytes more; limit %zu, held: weights %zu, kv %zu, scratch %zu, "
                         "cache %zu, other %zu",
                         l->title, qn_ledger_name(entry), size_bytes, l->now.limit, l->now.held[0],
                         l->now.held[1], l->now.held[2], l->now.held[3], l->now.held[4]);
    pthread_mutex_unlock(&l->lock);
    return status;
}

int qn_ledger_try(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes)
{
    pthread_mutex_lock(&l->lock);
    const int entered = enter(l, entry, size_bytes);
    pthread_mutex_unlock(&l->lock);
    return entered;
}

int qn_ledger_keep(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes)
{
    pthread_mutex_lock(&l->lock);
    size_t cache = l->now.held[QN_LEDGER_CACHE];
    int keep = size_bytes <= l->now.cache_limit && cache <= l->now.cache_limit - size_bytes &&
               (!l->now.limit || l->now.total <= l->now.limit);
    l->now.held[entry] -= size_bytes;
    if (keep)
        l->now.held[QN_LEDGER_CACHE] += size_bytes;
    else
        l->now.total -= size_bytes;
    pthread_mutex_unlock(&l->lock);
    return keep;
}

void qn_ledger_move(qn_ledger *l, qn_ledger_entry from, qn_ledger_entry to, size_t size_bytes)
{
    pthread_mutex_lock(&l->lock);
    l->now.held[from] -= size_bytes;
    l->now.held[to] += size_bytes;
    pthread_mutex_unlock(&l->lock);
}

void qn_ledger_release(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes)
{
    pthread_mutex_lock(&l->lock);
    l->now.held[entry] -= size_bytes;
    l->now.total -= size_bytes;
    pthread_mutex_unlock(&l->lock);
}

qn_ledger_figures qn_ledger_get(const qn_ledger *l)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&l->lock;
    pthread_mutex_lock(lock);
    qn_ledger_figures now = l->now;
    pthread_mutex_unlock(lock);
    return now;
}

size_t qn_ledger_get_limit(const qn_ledger *l)
{
    return read_field(l, &l->now.limit);
}

size_t qn_ledger_held(const qn_ledger *l, qn_ledger_entry entry)
{
    return read_field(l, &l->now.held[entry]);
}

size_t qn_ledger_total(const qn_ledger *l)
{
    return read_field(l, &l->now.total);
}

size_t qn_ledger_peak(const qn_ledger *l)
{
    return read_field(l, &l->now.peak);
}

void qn_ledger_reset_peak(qn_ledger *l)
{
    pthread_mutex_lock(&l->lock);
    l->now.peak = l->now.total;
    pthread_mutex_unlock(&l->lock);
}
