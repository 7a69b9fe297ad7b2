#include "engine/clients/handles.h"

#include <string.h>

#include "base/mem.h"
#include "base/threads.h"
#include "engine/clients/handle_parts.h"
#include "engine/machine/prefixes.h"

enum { LOG_MIN = 1024 /* tokens of the smallest log */ };

qn_status qn_handles_new(qn_engine *engine, qn_scheduler *scheduler, qn_handles **out)
{
    qn_handles *h = qn_calloc(1, sizeof *h);
    if (!h) return QN_E_NOMEM;
    pthread_mutex_init(&h->lock, NULL);
    h->engine = engine;
    h->scheduler = scheduler;
    h->n_spare_cores = qn_threads_default() - engine->info.n_threads;
    h->feeds = qn_alloc_array((size_t)engine->info.max_sequences, sizeof *h->feeds);
    h->batch = qn_alloc_array((size_t)engine->info.max_sequences, sizeof *h->batch);
    if (!h->feeds || !h->batch) {
        qn_handles_free(h);
        return QN_E_NOMEM;
    }
    *out = h;
    return QN_OK;
}

static void free_object(qn_handles *h, qn_handle *handle)
{
    for (int i = 0; i < h->engine->groups.n; i++) qn_free(handle->sequence.tables[i].ids);
    qn_kept_ids_free(&handle->sequence.kept, h->engine->ledger);
    qn_free(handle);
}

void qn_handles_free(qn_handles *h)
{
    if (!h) return;
    while (h->unused) {
        qn_handle *next = h->unused->next;
        free_object(h, h->unused);
        h->unused = next;
    }
    while (h->unused_logs) {
        qn_token_log *next = h->unused_logs->next;
        qn_free(h->unused_logs);
        h->unused_logs = next;
    }
    qn_ledger_release(h->engine->ledger, QN_LEDGER_OTHER, h->held_bytes);
    pthread_mutex_destroy(&h->lock);
    qn_free(h->feeds);
    qn_free(h->batch);
    qn_free(h);
}

/* Room that stays with h until its end. */
static qn_status hold_bytes(qn_handles *h, size_t size_bytes)
{
    QN_TRY(qn_ledger_reserve(h->engine->ledger, QN_LEDGER_OTHER, size_bytes));
    pthread_mutex_lock(&h->lock);
    h->held_bytes += size_bytes;
    pthread_mutex_unlock(&h->lock);
    return QN_OK;
}

static void give_bytes(qn_handles *h, size_t size_bytes)
{
    qn_ledger_release(h->engine->ledger, QN_LEDGER_OTHER, size_bytes);
    pthread_mutex_lock(&h->lock);
    h->held_bytes -= size_bytes;
    pthread_mutex_unlock(&h->lock);
}

/* ---- logs --------------------------------------------------------------------------------------------- */

static size_t log_bytes(int64_t capacity)
{
    return sizeof(qn_token_log) + (size_t)capacity * sizeof(int32_t);
}

static qn_status make_log(qn_handles *h, int64_t capacity, qn_token_log **out)
{
    QN_TRY(hold_bytes(h, log_bytes(capacity)));
    qn_token_log *log = qn_alloc(log_bytes(capacity));
    if (!log) {
        give_bytes(h, log_bytes(capacity));
        return QN_E_NOMEM;
    }
    *log = (qn_token_log){.capacity = capacity};
    *out = log;
    return QN_OK;
}

/* An empty log for n tokens and as many more: one that is unused, or a new one. */
static qn_status take_log(qn_handles *h, int64_t n, qn_token_log **out)
{
    int64_t context = h->engine->info.context_size, capacity = LOG_MIN;
    qn_token_log *found = NULL;
    while (capacity < 2 * n) capacity *= 2;
    if (capacity > context) capacity = context > n ? context : n;
    pthread_mutex_lock(&h->lock);
    for (qn_token_log **link = &h->unused_logs; *link && !found; link = &(*link)->next) {
        if ((*link)->capacity < capacity) continue;
        found = *link;
        *link = found->next;
        break;
    }
    pthread_mutex_unlock(&h->lock);
    if (!found) QN_TRY(make_log(h, capacity, &found));
    found->references = 1;
    found->n = 0;
    found->next = NULL;
    *out = found;
    return QN_OK;
}

static void release_log(qn_handles *h, qn_token_log *log)
{
    if (!log) return;
    pthread_mutex_lock(&h->lock);
    if (--log->references == 0) {
        log->next = h->unused_logs;
        h->unused_logs = log;
    }
    pthread_mutex_unlock(&h->lock);
}

/* 1: the log holds n_from tokens and no more, has room for n behind them, and got them. */
static int append(qn_handles *h, qn_token_log *log, int64_t n_from, const int32_t *ids, int64_t n)
{
    if (!log) return 0;
    pthread_mutex_lock(&h->lock);
    int fits = n == 0 || (log->n == n_from && n <= log->capacity - n_from);
    if (fits) {
        if (n) log->n = n_from + n;
        log->references++;
    }
    pthread_mutex_unlock(&h->lock);
    if (fits && n) memcpy(log->ids + n_from, ids, (size_t)n * sizeof *ids);
    return fits;
}

qn_status qn_handle_put_ids(qn_handles *h, qn_handle *handle, const qn_handle *from, int64_t n_from,
                            const int32_t *ids, int64_t n)
{
    qn_token_log *log = from ? from->log : NULL;
    handle->n_ids = n_from + n;
    if (handle->n_ids == 0) return QN_OK;
    if (!append(h, log, n_from, ids, n)) {
        const qn_token_log *before = log;
        QN_TRY(take_log(h, n_from + n, &log));
        if (n_from) memcpy(log->ids, before->ids, (size_t)n_from * sizeof *ids);
        if (n) memcpy(log->ids + n_from, ids, (size_t)n * sizeof *ids);
        log->n = n_from + n;
    }
    handle->log = log;
    return QN_OK;
}

/* ---- objects ------------------------------------------------------------------------------------------ */

static qn_status make_object(qn_handles *h, qn_handle **out)
{
    qn_engine *e = h->engine;
    size_t bytes = sizeof **out;
    for (int i = 0; i < e->groups.n; i++) bytes += (size_t)e->table_size[i] * sizeof(int32_t);
    QN_TRY(hold_bytes(h, bytes));
    qn_handle *handle = qn_calloc(1, sizeof *handle);
    qn_status status = handle ? QN_OK : QN_E_NOMEM;
    for (int i = 0; status == QN_OK && i < e->groups.n; i++)
        status = qn_block_table_init(&handle->sequence.tables[i], e->table_size[i]);
    if (status == QN_OK) {
        *out = handle;
        return QN_OK;
    }
    if (handle) free_object(h, handle);
    give_bytes(h, bytes);
    return status;
}

qn_status qn_handle_take(qn_handles *h, qn_handle **out)
{
    pthread_mutex_lock(&h->lock);
    qn_handle *handle = h->unused;
    if (handle) h->unused = handle->next;
    pthread_mutex_unlock(&h->lock);
    if (!handle) QN_TRY(make_object(h, &handle));
    qn_sequence *s = &handle->sequence;
    s->engine = h->engine;
    s->length = s->n_given = s->expected = s->n_tentative = 0;
    s->is_long = s->is_lost = 0;
    s->any_thread = 1;
    s->slot = s->adapter = -1;
    handle->log = NULL;
    handle->n_ids = 0;
    *out = handle;
    return QN_OK;
}

void qn_handle_free(qn_handles *h, qn_handle *handle)
{
    if (!handle) return;
    qn_engine *e = h->engine;
    for (int i = 0; i < e->groups.n; i++) qn_block_table_clear(&handle->sequence.tables[i], e->pages[i]);
    if (handle->sequence.slot >= 0) qn_pages_release(e->slots, handle->sequence.slot);
    qn_adapters_release(e->adapters, handle->sequence.adapter);
    release_log(h, handle->log);
    pthread_mutex_lock(&h->lock);
    handle->next = h->unused;
    h->unused = handle;
    pthread_mutex_unlock(&h->lock);
}

qn_status qn_handle_new(qn_handles *h, const char *adapter, qn_handle **out)
{
    qn_handle *handle = NULL;
    QN_TRY(qn_handle_take(h, &handle));
    qn_status status = qn_adapters_hold(h->engine->adapters, adapter, &handle->sequence.adapter);
    if (status == QN_OK)
        *out = handle;
    else
        qn_handle_free(h, handle);
    return status;
}

int64_t qn_handle_length(const qn_handle *handle)
{
    return handle->n_ids;
}

int qn_handle_is_poisoned(const qn_handle *handle)
{
    return qn_sequence_is_poisoned(&handle->sequence);
}

qn_status qn_handle_check_poison(const qn_handle *handle)
{
    if (!handle || !qn_handle_is_poisoned(handle)) return QN_OK;
    return qn_fail(QN_E_DEVICE,
                   "the handle of %lld tokens is poisoned: a pass that computed some of them failed; start "
                   "again without it",
                   (long long)handle->n_ids);
}

/* ---- sharing ------------------------------------------------------------------------------------------ */

/* Are all positions there that tokens from n on can see, and is n on the same side of LongRoPE's limit? */
static int is_usable(const qn_handle *from, int64_t n)
{
    const qn_sequence *s = &from->sequence;
    const qn_engine *e = s->engine;
    if (n == s->length) return 1;
    if (n > s->length || s->slot >= 0 || (s->is_long && n <= e->config.rope_short_positions)) return 0;
    for (int i = 0; i < e->groups.n; i++) {
        int64_t window = e->groups.group[i].window;
        if (!window || window > e->info.context_size) window = e->info.context_size;
        int64_t first = n - window + 1 > 0 ? n - window + 1 : 0;
        if ((s->tables[i].base + s->tables[i].n_released) * QN_PAGE_TOKENS > first) return 0;
    }
    return 1;
}

/* The empty handle gets what is computed of from's first n tokens, as far as it is of use; but for the slot.
 */
qn_status qn_handle_share(qn_handle *handle, const qn_handle *from, int64_t n)
{
    qn_sequence *s = &handle->sequence;
    const qn_sequence *of = &from->sequence;
    if (n > of->length) n = of->length;
    if (!is_usable(from, n)) return QN_OK;
    for (int i = 0; i < s->engine->groups.n; i++)
        QN_TRY(qn_block_table_share(&s->tables[i], s->engine->pages[i], &of->tables[i], n));
    s->length = s->n_given = n;
    s->is_long = of->is_long;
    return QN_OK;
}

static qn_status make_slice(qn_handles *h, qn_handle *handle, const qn_handle *from, int64_t keep)
{
    qn_sequence *s = &handle->sequence;
    s->adapter = from->sequence.adapter;
    qn_adapters_retain(h->engine->adapters, s->adapter);
    QN_TRY(qn_handle_put_ids(h, handle, from, keep, NULL, 0));
    QN_TRY(qn_handle_share(handle, from, keep));
    if (s->length && from->sequence.slot >= 0) {
        s->slot = from->sequence.slot;
        qn_pages_retain(h->engine->slots, s->slot);
    }
    return QN_OK;
}

qn_status qn_handle_slice(qn_handles *h, const qn_handle *from, int64_t keep, qn_handle **out)
{
    qn_handle *handle = NULL;
    if (keep < 0 || keep > from->n_ids)
        return qn_fail(QN_E_ARG, "a handle of %lld tokens cannot be cut from one of %lld", (long long)keep,
                       (long long)from->n_ids);
    QN_TRY(qn_handle_check_poison(from));
    QN_TRY(qn_handle_take(h, &handle));
    qn_status status = make_slice(h, handle, from, keep);
    if (status == QN_OK)
        *out = handle;
    else
        qn_handle_free(h, handle);
    return status;
}
