/* Saving: nodes go to the writer at once, and the units that they name are held; then the units' bytes are
 * copied, some at a time. */
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/clients/handle_parts.h"
#include "engine/clients/state_binding.h"
#include "engine/clients/state_io.h"
#include "engine/machine/prefixes.h"

enum { POOLS = QN_LAYER_GROUPS_MAX + 1 };

/* An ancestor of the node that was written last. */
typedef struct {
    int64_t end, index;
} ancestor;

typedef struct {
    qn_engine *e;
    qn_scheduler *scheduler;
    qn_state_writer *w;
    int n_pools;            /* groups, then slots */
    int32_t *number[POOLS]; /* [total]: of a unit in the file; -1: not in it */
    int32_t *units[POOLS];  /* [total]: the units in the file, each held */
    int64_t n[POOLS];
    qn_buf numbers[QN_LAYER_GROUPS_MAX]; /* of one node */
    const qn_tree_key *key;              /* of the node that was written last */
    int64_t i_key;
    qn_buf ancestors;
    int64_t n_left_out; /* tokens of nodes that a file has no form for */
} saving;

static qn_status begin(saving *s, qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint,
                       const char *path)
{
    qn_engine_binding b;
    *s = (saving){.e = e, .scheduler = scheduler, .n_pools = e->groups.n + (e->slots != NULL)};
    qn_status status = qn_engine_bind(e, fingerprint, &b);
    if (status == QN_OK) status = qn_state_writer_new(path, &b.is, &b.sizes, &s->w);
    qn_engine_binding_free(&b);
    for (int i = 0; status == QN_OK && i < s->n_pools; i++) {
        size_t total = (size_t)qn_pages_total(qn_engine_pool(e, i));
        s->number[i] = qn_alloc_array(total, sizeof **s->number);
        s->units[i] = qn_alloc_array(total, sizeof **s->units);
        if (!s->number[i] || !s->units[i]) return QN_E_NOMEM;
        memset(s->number[i], 0xff, total * sizeof **s->number);
    }
    return status;
}

static void end(saving *s)
{
    for (int i = 0; i < s->n_pools; i++) {
        for (int64_t j = 0; j < s->n[i]; j++) qn_pages_release(qn_engine_pool(s->e, i), s->units[i][j]);
        qn_free(s->number[i]);
        qn_free(s->units[i]);
    }
    for (int i = 0; i < QN_LAYER_GROUPS_MAX; i++) qn_buf_free(&s->numbers[i]);
    qn_buf_free(&s->ancestors);
    qn_state_writer_free(s->w);
}

/* The unit's number in the file, which it gets when it has none. */
static int32_t number_of(saving *s, int pool, int32_t unit)
{
    if (unit < 0) return -1;
    if (s->number[pool][unit] < 0) {
        qn_pages_retain(qn_engine_pool(s->e, pool), unit);
        s->units[pool][s->n[pool]] = unit;
        s->number[pool][unit] = (int32_t)s->n[pool]++;
    }
    return s->number[pool][unit];
}

static qn_status put_pages(saving *s, int group, int64_t first, int64_t n, const int32_t *ids,
                           qn_state_pages *out)
{
    qn_buf *b = &s->numbers[group];
    qn_buf_reset(b);
    for (int64_t i = 0; i < n; i++) {
        int32_t number = number_of(s, group, ids[i]);
        qn_buf_append(b, &number, sizeof number);
    }
    *out = (qn_state_pages){.first = first, .n = n, .numbers = (const int32_t *)(const void *)b->data};
    return b->status;
}

static qn_status put_key(saving *s, int32_t adapter, int is_long, const void *salt, size_t salt_bytes)
{
    char name[QN_ADAPTER_NAME_LENGTH + 1] = "";
    qn_state_key key = {.is_long = is_long, .salt = salt, .salt_bytes = salt_bytes};
    if (adapter >= 0) qn_adapters_identify(s->e->adapters, adapter, name, &key.adapter_fingerprint);
    key.adapter = name;
    key.adapter_length = strlen(name);
    return qn_state_writer_key(s->w, &key, &s->i_key);
}

/* The bytes of all units of a pool, through a buffer of some of them. */
static qn_status write_units(saving *s, int pool)
{
    const qn_pages *pages = qn_engine_pool(s->e, pool);
    const size_t bytes = qn_pages_unit_bytes(pages);
    const int64_t batch = qn_state_batch(bytes);
    char *buffer = qn_alloc((size_t)(s->n[pool] < batch ? s->n[pool] : batch) * bytes);
    qn_status status = buffer ? QN_OK : QN_E_NOMEM;
    for (int64_t i = 0; status == QN_OK && i < s->n[pool]; i += batch) {
        int64_t n = s->n[pool] - i < batch ? s->n[pool] - i : batch;
        status = qn_scheduler_enter(s->scheduler);
        if (status != QN_OK) break;
        for (int64_t j = 0; j < n; j++)
            qn_pages_read(pages, s->units[pool][i + j], buffer + (size_t)j * bytes);
        qn_scheduler_leave(s->scheduler);
        for (int64_t j = 0; status == QN_OK && j < n; j++) {
            const void *unit = buffer + (size_t)j * bytes;
            status = pool < s->e->groups.n ? qn_state_writer_page(s->w, pool, i + j, unit)
                                           : qn_state_writer_slot(s->w, i + j, unit);
        }
    }
    qn_free(buffer);
    return status;
}

/* Others computed while units were copied, and may have found some of these to be no good. */
static qn_status check_poison(const saving *s, const char *path)
{
    for (int i = 0; i < s->n_pools; i++)
        for (int64_t j = 0; j < s->n[i]; j++)
            if (qn_pages_is_poisoned(qn_engine_pool(s->e, i), s->units[i][j], QN_PAGE_TOKENS))
                return qn_fail(QN_E_DEVICE, "%s: a pass that computed some of the state failed during saving",
                               path);
    return QN_OK;
}

static qn_status write_all(saving *s, const char *path)
{
    QN_TRY(qn_state_writer_begin(s->w, s->n, s->e->slots ? s->n[s->e->groups.n] : 0));
    for (int i = 0; i < s->n_pools; i++) QN_TRY(write_units(s, i));
    QN_TRY(check_poison(s, path));
    return qn_state_writer_finish(s->w);
}

/* ---- a handle ----------------------------------------------------------------------------------------- */

/* The key, and one node of what is computed, which is ids; *index is the node's, untouched if there is none. */
static qn_status put_sequence(saving *s, const qn_sequence *q, const char *salt, const int32_t *ids,
                              int64_t *index)
{
    QN_TRY(put_key(s, q->adapter, q->is_long, salt, salt ? strlen(salt) : 0));
    if (!q->length) return QN_OK;
    qn_state_node node = {.parent = -1, .key = s->i_key, .ids = ids, .n_ids = q->length, .slot = -1};
    if (q->slot >= 0) node.slot = number_of(s, s->e->groups.n, q->slot);
    for (int g = 0; g < s->e->groups.n; g++) {
        const qn_block_table *t = &q->tables[g];
        QN_TRY(put_pages(s, g, t->base + t->n_released, t->n - t->n_released, t->ids + t->n_released,
                         &node.pages[g]));
    }
    return qn_state_writer_node(s->w, &node, index);
}

/* One node of what is computed, and one of the tokens that are not. */
static qn_status put_handle(saving *s, const qn_handle *handle)
{
    const qn_sequence *q = &handle->sequence;
    int64_t parent = -1;
    QN_TRY(put_sequence(s, q, NULL, handle->n_ids ? handle->log->ids : NULL, &parent));
    if (handle->n_ids == q->length) return QN_OK;
    qn_state_node rest = {.parent = parent,
                          .key = s->i_key,
                          .ids = handle->log->ids + q->length,
                          .n_ids = handle->n_ids - q->length,
                          .slot = -1};
    return qn_state_writer_node(s->w, &rest, NULL);
}

qn_status qn_state_save_handle(qn_handles *h, const qn_handle *handle, uint64_t fingerprint, const char *path)
{
    saving s;
    if (qn_handle_is_poisoned(handle))
        return qn_fail(QN_E_DEVICE, "%s: the handle is poisoned: a pass that computed some of it failed",
                       path);
    qn_status status = begin(&s, h->engine, h->scheduler, fingerprint, path);
    if (status == QN_OK) status = put_handle(&s, handle);
    if (status == QN_OK) status = write_all(&s, path);
    end(&s);
    return status;
}

/* ---- a tree ------------------------------------------------------------------------------------------- */

/* Under the tree's lock. Nodes come along branches: a node's parent is an ancestor of the one before, or that
 * one itself. */
static qn_status put_node(void *user, const qn_tree_view *v)
{
    saving *s = user;
    qn_buf *b = &s->ancestors;
    qn_state_node node = {.parent = -1, .ids = v->path + v->begin, .n_ids = v->end - v->begin, .slot = -1};
    if (v->has_content) { /* and so have all nodes behind it */
        s->n_left_out += node.n_ids;
        return QN_OK;
    }
    if (v->key != s->key) {
        s->key = v->key;
        QN_TRY(put_key(s, v->key->adapter, v->key->is_long, v->key->salt, v->key->salt_bytes));
        qn_buf_reset(b);
    }
    while (b->length) {
        const ancestor *last = (const ancestor *)(const void *)(b->data + b->length) - 1;
        node.parent = last->index;
        if (last->end == v->begin) break;
        node.parent = -1;
        b->length -= sizeof *last;
    }
    node.key = s->i_key;
    node.cost_ns = v->cost_ns;
    if (v->slot >= 0) node.slot = number_of(s, s->e->groups.n, v->slot);
    for (int g = 0; g < s->e->groups.n; g++)
        QN_TRY(put_pages(s, g, v->first_page, v->n_pages, v->pages[g], &node.pages[g]));
    ancestor own = {.end = v->end};
    QN_TRY(qn_state_writer_node(s->w, &node, &own.index));
    for (int i = 0; i < v->n_pins; i++) QN_TRY(qn_state_writer_pin(s->w, own.index, qn_tree_view_pin(v, i)));
    qn_buf_append(b, &own, sizeof own);
    return b->status;
}

qn_status qn_state_save_tree(qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint, const char *path)
{
    saving s;
    QN_TRY(qn_engine_check_tree(e));
    qn_status status = begin(&s, e, scheduler, fingerprint, path);
    if (status == QN_OK) status = qn_scheduler_enter(scheduler); /* adapters stay as they are */
    if (status == QN_OK) {
        status = qn_tree_walk(e->tree, put_node, &s);
        qn_scheduler_leave(scheduler);
    }
    if (status == QN_OK) status = write_all(&s, path);
    if (status == QN_OK && s.n_left_out)
        qn_log(QN_LOG_WARNING, "%s: %lld tokens are left out: pictures are among them or before them", path,
               (long long)s.n_left_out);
    end(&s);
    return status;
}

/* ---- a prefix ----------------------------------------------------------------------------------------- */

/* What the tree has of ids[0..n), as a sequence would go on from it. Within the engine. */
static qn_status put_prefix(saving *s, int32_t adapter, const char *salt, const int32_t *ids, int64_t n,
                            int64_t *n_saved)
{
    qn_sequence *q = NULL;
    int64_t index;
    QN_TRY(qn_sequence_new(s->e, &q));
    qn_sequence_set_adapter(q, adapter);
    qn_sequence_expect(q, n);
    *n_saved = qn_sequence_attach(q, salt, ids, n);
    const qn_status status = put_sequence(s, q, salt, ids, &index);
    qn_sequence_free(q);
    return status;
}

static qn_status save_prefix(saving *s, int32_t adapter, const char *salt, const int32_t *ids, int64_t n,
                             const char *path, int64_t *n_saved)
{
    QN_TRY(qn_scheduler_enter(s->scheduler));
    const qn_status status = put_prefix(s, adapter, salt, ids, n, n_saved);
    qn_scheduler_leave(s->scheduler);
    return status == QN_OK ? write_all(s, path) : status;
}

qn_status qn_state_save_prefix(qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint,
                               const qn_prefix_options *options, const int32_t *ids, int64_t n,
                               const char *path, int64_t *n_saved)
{
    saving s;
    int32_t adapter = -1;
    int64_t count = 0;
    QN_TRY(qn_engine_check_tree(e));
    QN_TRY(qn_adapters_hold(e->adapters, options->adapter, &adapter));
    qn_status status = begin(&s, e, scheduler, fingerprint, path);
    if (n > e->info.context_size) n = e->info.context_size;
    if (status == QN_OK) status = save_prefix(&s, adapter, options->cache_salt, ids, n, path, &count);
    end(&s);
    qn_adapters_release(e->adapters, adapter);
    if (status == QN_OK) *n_saved = count;
    return status;
}
