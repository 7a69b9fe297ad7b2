#include "cache/pages.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#ifdef QN_SHAKE
#include "base/random.h"
#endif

/* Units whose number does not matter. The smallest comes out first, so that pages of a sequence tend to lie in order,
 * which devices may read without a copy. */
typedef struct {
    int32_t *ids; /* [total] ids[i] <= ids[2 i + 1] and ids[2 i + 2] */
    int64_t n;
} heap;

/* One page. */
typedef struct {
    int32_t users, kept;
    uint8_t fill; /* token slots written or prepared */
    uint8_t good; /* slots from here on are poisoned */
} unit;

/* Where a part of every page lies: some layers of it, on one device. */
typedef struct {
    qn_state *state;
    qn_ledger *ledger;
    size_t unit_bytes;
} part;

struct qn_pages {
    part parts[QN_PAGES_PARTS_MAX];
    int n_parts;
    size_t unit_bytes;    /* of all parts */
    pthread_mutex_t lock; /* of what follows; the ledger's may be taken inside it, but nothing reserved */
    int64_t total, n_free;
    int64_t unused; /* units from here on were never handed out */
    heap cached;    /* free, memory kept */
    heap dropped;   /* free, memory given back */
    int64_t n_kept; /* kept and not used */
    unit *units;    /* [total] */
    qn_pages_evict_fn *evict;
    void *evict_user;
};

static void add_part(qn_pages *p, qn_state *state)
{
    part *own = &p->parts[p->n_parts++];
    *own = (part){state, state->device->ledger, state->device->ops->state_unit_bytes(state)};
    p->unit_bytes += own->unit_bytes;
    p->total = p->n_free = state->spec.n_units;
}

qn_status qn_pages_new(qn_state *state, qn_pages **out)
{
    return qn_pages_new_over(1, &state, out);
}

qn_status qn_pages_new_over(int n, qn_state *const *states, qn_pages **out)
{
    qn_pages *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < n; i++)
        if (states[i]) add_part(p, states[i]);
    p->cached.ids = qn_alloc_array((size_t)p->total, sizeof *p->cached.ids);
    p->dropped.ids = qn_alloc_array((size_t)p->total, sizeof *p->dropped.ids);
    p->units = qn_calloc((size_t)p->total, sizeof *p->units);
    if (!p->cached.ids || !p->dropped.ids || !p->units) {
        qn_pages_free(p);
        return QN_E_NOMEM;
    }
    *out = p;
    return QN_OK;
}

/* Of n pages, in the ledger of each part. */
static void release_bytes(qn_pages *p, qn_ledger_entry entry, int64_t n)
{
    for (int i = 0; i < p->n_parts; i++)
        qn_ledger_release(p->parts[i].ledger, entry, (size_t)n * p->parts[i].unit_bytes);
}

static void move_bytes(qn_pages *p, qn_ledger_entry from, qn_ledger_entry to, int64_t n)
{
    for (int i = 0; i < p->n_parts; i++)
        qn_ledger_move(p->parts[i].ledger, from, to, (size_t)n * p->parts[i].unit_bytes);
}

/* All or nothing. */
static qn_status reserve_bytes(qn_pages *p, int64_t n)
{
    for (int i = 0; i < p->n_parts; i++) {
        qn_status status =
            qn_ledger_reserve(p->parts[i].ledger, QN_LEDGER_KV, (size_t)n * p->parts[i].unit_bytes);
        if (status == QN_OK) continue;
        while (i-- > 0)
            qn_ledger_release(p->parts[i].ledger, QN_LEDGER_KV, (size_t)n * p->parts[i].unit_bytes);
        return status;
    }
    return QN_OK;
}

/* A used page becomes cache, if every ledger has room to keep its part, and 1 is returned; else it is
 * released. */
static int keep_bytes(qn_pages *p)
{
    int keep[QN_PAGES_PARTS_MAX], all = 1;
    for (int i = 0; i < p->n_parts; i++) {
        keep[i] = qn_ledger_keep(p->parts[i].ledger, QN_LEDGER_KV, p->parts[i].unit_bytes);
        all &= keep[i];
    }
    for (int i = 0; i < p->n_parts && !all; i++)
        if (keep[i]) qn_ledger_release(p->parts[i].ledger, QN_LEDGER_CACHE, p->parts[i].unit_bytes);
    return all;
}

static void drop(qn_pages *p, int32_t id)
{
    for (int i = 0; i < p->n_parts; i++) p->parts[i].state->device->ops->state_drop(p->parts[i].state, id);
}

void qn_pages_free(qn_pages *p)
{
    if (!p) return;
    release_bytes(p, QN_LEDGER_KV, p->total - p->n_free - p->n_kept);
    release_bytes(p, QN_LEDGER_CACHE, p->cached.n + p->n_kept);
    pthread_mutex_destroy(&p->lock);
    qn_free(p->cached.ids);
    qn_free(p->dropped.ids);
    qn_free(p->units);
    qn_free(p);
}

static void lock_to_read(const qn_pages *p)
{
    pthread_mutex_lock((pthread_mutex_t *)&p->lock);
}

static void unlock_read(const qn_pages *p)
{
    pthread_mutex_unlock((pthread_mutex_t *)&p->lock);
}

static void put(heap *h, int32_t id)
{
    int64_t at = h->n++;
    for (; at > 0 && h->ids[(at - 1) / 2] > id; at = (at - 1) / 2) h->ids[at] = h->ids[(at - 1) / 2];
    h->ids[at] = id;
}

#ifdef QN_SHAKE
/* Any id will do: show that nothing depends on it. */
static int32_t get(heap *h)
{
    static uint64_t draws;
    const int64_t at = (int64_t)(qn_random_bits(7, draws++) % (uint64_t)h->n), n = h->n - 1;
    const int32_t id = h->ids[at];
    h->ids[at] = h->ids[n];
    for (h->n = 0; h->n < n;) put(h, h->ids[h->n]);
    return id;
}
#else
static int32_t get(heap *h)
{
    const int32_t smallest = h->ids[0], last = h->ids[--h->n];
    int64_t at = 0;
    for (int64_t below = 1; below < h->n; at = below, below = 2 * at + 1) {
        if (below + 1 < h->n && h->ids[below + 1] < h->ids[below]) below++;
        if (h->ids[below] >= last) break;
        h->ids[at] = h->ids[below];
    }
    h->ids[at] = last;
    return smallest;
}
#endif

static int32_t take(qn_pages *p)
{
#ifdef QN_SHAKE
    /* Now and then far out among the unused. */
    static uint64_t draws;
    if (p->unused < p->total && qn_random_bits(8, draws++) % 4 == 0) put(&p->dropped, (int32_t)p->unused++);
#endif
    if (p->cached.n) return get(&p->cached);
    return p->dropped.n ? get(&p->dropped) : (int32_t)p->unused++;
}

/* A page that nobody holds: its memory is kept while there is room for that. Was it? The lock is held. */
static int put_back(qn_pages *p, int32_t id)
{
    int keep = keep_bytes(p);
#ifdef QN_SHAKE
    drop(p, id); /* it poisons */
#else
    if (!keep) drop(p, id);
#endif
    put(keep ? &p->cached : &p->dropped, id);
    p->n_free++;
    return keep;
}

void qn_pages_set_evict(qn_pages *p, qn_pages_evict_fn *fn, void *user)
{
    p->evict = fn;
    p->evict_user = user;
}

/* Takes the lock, with n units free; QN_E_FULL: without it. */
static qn_status lock_with_room(qn_pages *p, int64_t n)
{
    pthread_mutex_lock(&p->lock);
    /* Another thread may take what was evicted here: as long as some goes, it is tried again. */
    for (int64_t kept = -1; p->evict && n > p->n_free && n <= p->n_free + p->n_kept && kept != p->n_kept;) {
        int64_t missing = n - p->n_free;
        kept = p->n_kept;
        pthread_mutex_unlock(&p->lock);
        p->evict(p->evict_user, p, missing);
        pthread_mutex_lock(&p->lock);
    }
    if (n <= p->n_free) return QN_OK;
    int64_t n_free = p->n_free;
    pthread_mutex_unlock(&p->lock);
    return qn_fail(QN_E_FULL, "kv cache: %lld pages are needed, %lld of %lld are free", (long long)n,
                   (long long)n_free, (long long)p->total);
}

qn_status qn_pages_reserve(qn_pages *p, int64_t n, int32_t *ids)
{
    QN_TRY(lock_with_room(p, n));
    int64_t n_cached = n < p->cached.n ? n : p->cached.n;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = take(p);
        p->units[ids[i]] = (unit){.users = 1, .good = QN_PAGE_TOKENS};
    }
    p->n_free -= n;
    move_bytes(p, QN_LEDGER_CACHE, QN_LEDGER_KV, n_cached);
    pthread_mutex_unlock(&p->lock);
    qn_status status = reserve_bytes(p, n - n_cached);
    if (status == QN_OK) return QN_OK;
    pthread_mutex_lock(&p->lock);
    for (int64_t i = 0; i < n; i++) {
        p->units[ids[i]].users = 0;
        if (i < n_cached) {
            put_back(p, ids[i]);
        } else {
            put(&p->dropped, ids[i]);
            p->n_free++;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* The lock is held. */
static void retain(qn_pages *p, int32_t id)
{
    if (p->units[id].users++) return;
    p->n_kept--;
    move_bytes(p, QN_LEDGER_CACHE, QN_LEDGER_KV, 1);
}

/* The lock is held. */
static void release(qn_pages *p, int32_t id)
{
    unit *u = &p->units[id];
    if (--u->users) return;
    if (!u->kept) {
        put_back(p, id);
        return;
    }
    p->n_kept++;
    move_bytes(p, QN_LEDGER_KV, QN_LEDGER_CACHE, 1);
}

void qn_pages_retain(qn_pages *p, int32_t id)
{
    pthread_mutex_lock(&p->lock);
    retain(p, id);
    pthread_mutex_unlock(&p->lock);
}

void qn_pages_release(qn_pages *p, int32_t id)
{
    pthread_mutex_lock(&p->lock);
    release(p, id);
    pthread_mutex_unlock(&p->lock);
}

void qn_pages_keep(qn_pages *p, int32_t id)
{
    pthread_mutex_lock(&p->lock);
    p->units[id].kept++;
    pthread_mutex_unlock(&p->lock);
}

qn_pages_rest qn_pages_unkeep(qn_pages *p, int32_t id)
{
    qn_pages_rest rest = QN_PAGES_HELD;
    pthread_mutex_lock(&p->lock);
    if (--p->units[id].kept == 0 && p->units[id].users == 0) {
        p->n_kept--;
        move_bytes(p, QN_LEDGER_CACHE, QN_LEDGER_KV, 1);
        rest = put_back(p, id) ? QN_PAGES_CACHED : QN_PAGES_FREED;
    }
    pthread_mutex_unlock(&p->lock);
    return rest;
}

int64_t qn_pages_count_unused(const qn_pages *p, const int32_t *ids, int64_t n)
{
    int64_t count = 0;
    lock_to_read(p);
    for (int64_t i = 0; i < n; i++)
        count += ids[i] >= 0 && p->units[ids[i]].users == 0 && p->units[ids[i]].kept;
    unlock_read(p);
    return count;
}

void qn_pages_copy(qn_pages *p, int32_t from, int32_t to)
{
    for (int i = 0; i < p->n_parts; i++)
        p->parts[i].state->device->ops->state_copy(p->parts[i].state, from, to);
}

void qn_pages_read(const qn_pages *p, int32_t id, void *bytes)
{
    for (int i = 0; i < p->n_parts; bytes = (char *)bytes + p->parts[i++].unit_bytes)
        p->parts[i].state->device->ops->state_read(p->parts[i].state, id, bytes);
}

void qn_pages_write(qn_pages *p, int32_t id, const void *bytes)
{
    for (int i = 0; i < p->n_parts; bytes = (const char *)bytes + p->parts[i++].unit_bytes)
        p->parts[i].state->device->ops->state_write(p->parts[i].state, id, bytes);
}

void qn_pages_fill(qn_pages *p, int32_t id)
{
    pthread_mutex_lock(&p->lock);
    p->units[id].fill = QN_PAGE_TOKENS;
    pthread_mutex_unlock(&p->lock);
}

void qn_pages_poison(qn_pages *p, int32_t id, int64_t slot)
{
    pthread_mutex_lock(&p->lock);
    if (slot < p->units[id].good) p->units[id].good = (uint8_t)slot;
    pthread_mutex_unlock(&p->lock);
}

int qn_pages_is_poisoned(const qn_pages *p, int32_t id, int64_t n)
{
    lock_to_read(p);
    int is_poisoned = p->units[id].good < n;
    unlock_read(p);
    return is_poisoned;
}

size_t qn_pages_reclaim(qn_pages *p, size_t size_bytes)
{
    int64_t n = 0;
    pthread_mutex_lock(&p->lock);
    for (; (size_t)n * p->unit_bytes < size_bytes && p->cached.n; n++) {
        int32_t id = get(&p->cached);
        drop(p, id);
        put(&p->dropped, id);
    }
    release_bytes(p, QN_LEDGER_CACHE, n);
    pthread_mutex_unlock(&p->lock);
    return (size_t)n * p->unit_bytes;
}

static int64_t read_count(const qn_pages *p, const int64_t *count)
{
    lock_to_read(p);
    int64_t n = *count;
    unlock_read(p);
    return n;
}

int64_t qn_pages_free_count(const qn_pages *p)
{
    return read_count(p, &p->n_free);
}

int64_t qn_pages_kept_count(const qn_pages *p)
{
    return read_count(p, &p->n_kept);
}

qn_page_info qn_pages_get_info(const qn_pages *p, int32_t id)
{
    lock_to_read(p);
    unit u = p->units[id];
    unlock_read(p);
    return (qn_page_info){u.users, u.kept, u.fill, u.good};
}

int64_t qn_pages_total(const qn_pages *p)
{
    return p->total;
}

size_t qn_pages_bytes(const qn_pages *p)
{
    return sizeof *p + (size_t)p->total * (2 * sizeof(int32_t) + sizeof(unit));
}

size_t qn_pages_unit_bytes(const qn_pages *p)
{
    return p->unit_bytes;
}

size_t qn_pages_bytes_in(const qn_pages *p, const qn_ledger *ledger)
{
    size_t bytes = 0;
    for (int i = 0; i < p->n_parts; i++)
        if (p->parts[i].ledger == ledger) bytes += p->parts[i].unit_bytes;
    return bytes;
}

/* ---- block tables ------------------------------------------------------------------------------------- */

qn_status qn_block_table_init(qn_block_table *t, int64_t capacity)
{
    *t = (qn_block_table){.capacity = capacity};
    t->ids = qn_alloc_array((size_t)capacity, sizeof *t->ids);
    return t->ids ? QN_OK : QN_E_NOMEM;
}

static int64_t pages_of(int64_t n_tokens)
{
    return (n_tokens + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS;
}

/* Token slots of a page, an index in the sequence, that lie below a position. */
static int64_t slots_below(int64_t page, int64_t position)
{
    int64_t n = position - page * QN_PAGE_TOKENS;
    return n < 0 ? 0 : n < QN_PAGE_TOKENS ? n : QN_PAGE_TOKENS;
}

/* May entry i be written from begin on? Nobody else holds it; or those who do know nothing behind begin, for
 * it is filled so far, or as far as the table itself claimed it: had somebody else written there, or been
 * able to, the fill would be another. */
static int is_writable(const qn_block_table *t, const qn_pages *p, int64_t i, int64_t begin)
{
    const unit *u = &p->units[t->ids[i]];
    return u->users + u->kept == 1 || u->fill == slots_below(t->base + i, begin) ||
           (t->claimed > begin && u->fill == slots_below(t->base + i, t->claimed));
}

/* A page of its own instead of entry i. */
static qn_status copy_entry(qn_block_table *t, qn_pages *p, int64_t i, int64_t begin)
{
    int32_t from = t->ids[i], to;
    QN_TRY(qn_pages_reserve(p, 1, &to));
    if (slots_below(t->base + i, begin)) qn_pages_copy(p, from, to);
    pthread_mutex_lock(&p->lock);
    p->units[to].good = p->units[from].good;
    p->units[to].fill = (uint8_t)slots_below(t->base + i, begin);
    release(p, from);
    pthread_mutex_unlock(&p->lock);
    t->ids[i] = to;
    return QN_OK;
}

qn_status qn_block_table_prepare(qn_block_table *t, qn_pages *p, int64_t begin, int64_t end)
{
    int64_t first = begin / QN_PAGE_TOKENS - t->base, need = pages_of(end) - t->base;
    if (end <= begin) return QN_OK;
    if (need > t->capacity)
        return qn_fail(QN_E_FULL, "kv cache: the sequence needs %lld pages, but its table holds %lld",
                       (long long)need, (long long)t->capacity);
    for (int64_t i = first; i < t->n && i < need; i++) {
        lock_to_read(p);
        int writable = is_writable(t, p, i, begin);
        unlock_read(p);
        if (!writable) QN_TRY(copy_entry(t, p, i, begin));
    }
    if (need > t->n) {
        QN_TRY(qn_pages_reserve(p, need - t->n, t->ids + t->n));
        t->n = need;
    }
    if (t->claimed <= begin || t->claimed < end) t->claimed = end;
    pthread_mutex_lock(&p->lock);
    for (int64_t i = first; i < need; i++) {
        unit *u = &p->units[t->ids[i]];
        u->fill = (uint8_t)slots_below(t->base + i, t->claimed);
        if (u->good >= slots_below(t->base + i, begin)) u->good = QN_PAGE_TOKENS;
    }
    pthread_mutex_unlock(&p->lock);
    return QN_OK;
}

void qn_block_table_truncate(qn_block_table *t, qn_pages *p, int64_t n)
{
    int64_t end = pages_of(n) - t->base;
    if (end < t->n_released) end = t->n_released;
    while (t->n > end) qn_pages_release(p, t->ids[--t->n]);
    if (t->claimed > n) t->claimed = n;
}

void qn_block_table_release_below(qn_block_table *t, qn_pages *p, int64_t first)
{
    int64_t end = first / QN_PAGE_TOKENS - t->base;
    if (end > t->n) end = t->n;
    for (; t->n_released < end; t->n_released++) {
        qn_pages_release(p, t->ids[t->n_released]);
        t->ids[t->n_released] = -1;
    }
    int64_t move = t->n_released / QN_BLOCK_BASE_STEP * QN_BLOCK_BASE_STEP;
    if (move <= 0) return;
    memmove(t->ids, t->ids + move, (size_t)(t->n - move) * sizeof *t->ids);
    t->base += move;
    t->n -= move;
    t->n_released -= move;
}

int qn_block_table_begin(qn_block_table *t, int64_t n, int64_t first)
{
    int64_t released = first / QN_PAGE_TOKENS, base = released / QN_BLOCK_BASE_STEP * QN_BLOCK_BASE_STEP,
            n_entries = pages_of(n) - base;
    if (n_entries > t->capacity) return 0;
    t->base = base;
    t->n = n_entries;
    t->n_released = released - base;
    for (int64_t i = 0; i < t->n_released; i++) t->ids[i] = -1;
    return 1;
}

void qn_block_table_retain(const qn_block_table *t, qn_pages *p)
{
    pthread_mutex_lock(&p->lock);
    for (int64_t i = t->n_released; i < t->n; i++) retain(p, t->ids[i]);
    pthread_mutex_unlock(&p->lock);
}

qn_status qn_block_table_share(qn_block_table *t, qn_pages *p, const qn_block_table *of, int64_t n)
{
    int64_t n_entries = pages_of(n) - of->base;
    if (n_entries > of->n) n_entries = of->n;
    if (n_entries < of->n_released) n_entries = of->n_released;
    if (n_entries > t->capacity)
        return qn_fail(QN_E_FULL, "kv cache: the sequence needs %lld pages, but its table holds %lld",
                       (long long)n_entries, (long long)t->capacity);
    t->base = of->base;
    t->n = n_entries;
    t->n_released = of->n_released;
    memcpy(t->ids, of->ids, (size_t)n_entries * sizeof *t->ids);
    qn_block_table_retain(t, p);
    return QN_OK;
}

int qn_block_table_is_poisoned(const qn_block_table *t, const qn_pages *p, int64_t n)
{
    int is_poisoned = 0;
    lock_to_read(p);
    for (int64_t i = t->n_released; i < t->n && !is_poisoned; i++)
        is_poisoned = p->units[t->ids[i]].good < slots_below(t->base + i, n);
    unlock_read(p);
    return is_poisoned;
}

void qn_block_table_poison(const qn_block_table *t, qn_pages *p)
{
    for (int64_t i = t->n_released; i < t->n; i++) qn_pages_poison(p, t->ids[i], 0);
}

void qn_block_table_clear(qn_block_table *t, qn_pages *p)
{
    for (int64_t i = t->n_released; i < t->n; i++) qn_pages_release(p, t->ids[i]);
    t->base = t->n = t->n_released = t->claimed = 0;
}

void qn_block_table_end(qn_block_table *t, qn_pages *p)
{
    qn_block_table_clear(t, p);
    qn_free(t->ids);
    *t = (qn_block_table){0};
}
