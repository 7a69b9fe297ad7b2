/* Loading: all units of the file are read into fresh ones first, then sequences are put together of them. */
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/handle_parts.h"
#include "engine/state_binding.h"
#include "engine/state_io.h"

enum { POOLS = QN_LAYER_GROUPS_MAX + 1, NOT_LOADED = -2 /* of a key's adapter */ };

typedef struct {
    qn_engine *e;
    qn_scheduler *scheduler;
    qn_state_file *f;
    int32_t *units[POOLS]; /* [n] in the file: the unit that got it, held; -1: none yet */
    int64_t n[POOLS];
    int64_t n_pools;
    int32_t *adapters; /* [n_keys]: held */
    qn_block_table tables[QN_LAYER_GROUPS_MAX];
    /* The way from a root to a node. */
    int32_t *ids;                          /* [context] */
    int32_t *entries[QN_LAYER_GROUPS_MAX]; /* [pages of the context]: units; -1: missing */
    int64_t n_ids;
} loading;

static int64_t pages_of(int64_t n_tokens)
{
    return (n_tokens + QN_STATE_PAGE_TOKENS - 1) / QN_STATE_PAGE_TOKENS;
}

/* ---- before anything is taken ------------------------------------------------------------------------- */

static qn_status check_tokens(const loading *l)
{
    for (int64_t i = 0; i < qn_state_file_nodes(l->f); i++) {
        const qn_state_node node = qn_state_file_node(l->f, i);
        for (int64_t j = 0; j < node.n_ids; j++)
            if (node.ids[j] < 0 || node.ids[j] >= l->e->config.vocab_size)
                return qn_fail(QN_E_FORMAT, "%s: node %lld: token id %d is outside the vocabulary of %lld",
                               qn_state_file_path(l->f), (long long)i, (int)node.ids[j],
                               (long long)l->e->config.vocab_size);
    }
    return QN_OK;
}

static qn_status hold_adapter(loading *l, int64_t i)
{
    const qn_state_key key = qn_state_file_key(l->f, i);
    char name[QN_ADAPTER_NAME_LENGTH + 1] = "none", own[QN_ADAPTER_NAME_LENGTH + 1];
    uint64_t fingerprint = 0;
    if (key.adapter_length > QN_ADAPTER_NAME_LENGTH || memchr(key.adapter, 0, key.adapter_length))
        return qn_fail(QN_E_FORMAT, "%s: key %lld: not the name of an adapter", qn_state_file_path(l->f),
                       (long long)i);
    if (key.adapter_length) {
        memcpy(name, key.adapter, key.adapter_length);
        name[key.adapter_length] = 0;
    }
    qn_status status = qn_adapters_hold(l->e->adapters, name, &l->adapters[i]);
    if (status != QN_OK) return qn_fail_prefix(status, "%s", qn_state_file_path(l->f));
    if (l->adapters[i] < 0) return QN_OK;
    qn_adapters_identify(l->e->adapters, l->adapters[i], own, &fingerprint);
    if (fingerprint == key.adapter_fingerprint) return QN_OK;
    qn_adapters_release(l->e->adapters, l->adapters[i]);
    l->adapters[i] = NOT_LOADED;
    return qn_fail(QN_E_NOT_FOUND, "%s: the adapter %s is another than the one that it was computed with",
                   qn_state_file_path(l->f), name);
}

/* is_strict: an adapter that is not there is a failure. */
static qn_status hold_adapters(loading *l, int is_strict)
{
    int64_t n = qn_state_file_keys(l->f);
    l->adapters = qn_alloc_array((size_t)n, sizeof *l->adapters);
    if (!l->adapters) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) l->adapters[i] = NOT_LOADED;
    for (int64_t i = 0; i < n; i++) {
        qn_status status = hold_adapter(l, i);
        if (status == QN_E_NOT_FOUND && !is_strict) {
            qn_log(QN_LOG_WARNING, "%s; what it was used for is left out", qn_last_error());
            status = QN_OK;
        }
        QN_TRY(status);
    }
    return QN_OK;
}

static qn_status begin(loading *l, qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint,
                       const char *path, int is_strict)
{
    qn_engine_binding b;
    int64_t context = e->info.context_size;
    *l = (loading){.e = e, .scheduler = scheduler, .n_pools = e->groups.n + (e->slots != NULL)};
    QN_TRY(qn_state_file_open(path, &l->f));
    qn_status status = qn_engine_bind(e, fingerprint, &b);
    if (status == QN_OK) status = qn_state_file_check(l->f, &b.is, &b.sizes);
    qn_engine_binding_free(&b);
    if (status == QN_OK) status = check_tokens(l);
    if (status == QN_OK) status = hold_adapters(l, is_strict);
    QN_TRY(status);
    for (int i = 0; i < l->n_pools; i++) {
        l->n[i] = i < e->groups.n ? qn_state_file_pages(l->f, i) : qn_state_file_slots(l->f);
        if (!(l->units[i] = qn_alloc_array((size_t)l->n[i], sizeof **l->units))) return QN_E_NOMEM;
        memset(l->units[i], 0xff, (size_t)l->n[i] * sizeof **l->units);
    }
    if (!(l->ids = qn_alloc_array((size_t)context, sizeof *l->ids))) return QN_E_NOMEM;
    for (int i = 0; i < e->groups.n; i++) {
        QN_TRY(qn_block_table_init(&l->tables[i], e->table_size[i]));
        l->entries[i] = qn_alloc_array((size_t)pages_of(context), sizeof **l->entries);
        if (!l->entries[i]) return QN_E_NOMEM;
    }
    return QN_OK;
}

static void end(loading *l)
{
    for (int i = 0; i < l->e->groups.n; i++) {
        qn_block_table_end(&l->tables[i], l->e->pages[i]);
        qn_free(l->entries[i]);
    }
    for (int i = 0; i < l->n_pools; i++) {
        for (int64_t j = 0; l->units[i] && j < l->n[i]; j++)
            if (l->units[i][j] >= 0) qn_pages_release(qn_engine_pool(l->e, i), l->units[i][j]);
        qn_free(l->units[i]);
    }
    for (int64_t i = 0; l->adapters && i < qn_state_file_keys(l->f); i++)
        if (l->adapters[i] >= 0) qn_adapters_release(l->e->adapters, l->adapters[i]);
    qn_free(l->adapters);
    qn_free(l->ids);
    qn_state_file_close(l->f);
}

/* ---- units -------------------------------------------------------------------------------------------- */

static qn_status load_unit(loading *l, int pool, int64_t number)
{
    qn_pages *p = qn_engine_pool(l->e, pool);
    const void *bytes = NULL;
    int32_t unit = -1;
    QN_TRY(pool < l->e->groups.n ? qn_state_file_page(l->f, pool, number, &bytes)
                                 : qn_state_file_slot(l->f, number, &bytes));
    QN_TRY(qn_pages_reserve(p, 1, &unit));
    l->e->device->ops->state_write(qn_engine_state(l->e, pool), unit, bytes);
    qn_pages_fill(p, unit);
    l->units[pool][number] = unit;
    return QN_OK;
}

/* In the order of the file, that of its branches: what there is no room for is the last. */
static qn_status load_units(loading *l, int pool)
{
    const int64_t batch = qn_state_batch(qn_pages_unit_bytes(qn_engine_pool(l->e, pool)));
    qn_status status = QN_OK;
    for (int64_t i = 0; status == QN_OK && i < l->n[pool]; i += batch) {
        QN_TRY(qn_scheduler_enter(l->scheduler));
        for (int64_t j = i; status == QN_OK && j < l->n[pool] && j < i + batch; j++)
            status = load_unit(l, pool, j);
        qn_scheduler_leave(l->scheduler);
    }
    return status;
}

/* ---- ways --------------------------------------------------------------------------------------------- */

/* Puts the tokens and pages of the way to a node together. 0: it is longer than the context. */
static int walk_to(loading *l, int64_t i)
{
    int64_t n = 0, at;
    for (int64_t j = i; j >= 0; j = qn_state_file_node(l->f, j).parent) {
        n += qn_state_file_node(l->f, j).n_ids;
        if (n > l->e->info.context_size) return 0;
    }
    l->n_ids = at = n;
    for (int g = 0; g < l->e->groups.n; g++)
        for (int64_t j = 0; j < pages_of(n); j++) l->entries[g][j] = NOT_LOADED;
    for (int64_t j = i; j >= 0;) {
        const qn_state_node node = qn_state_file_node(l->f, j);
        at -= node.n_ids;
        memcpy(l->ids + at, node.ids, (size_t)node.n_ids * sizeof *l->ids);
        for (int g = 0; g < l->e->groups.n; g++)
            for (int64_t k = 0; k < node.pages[g].n && node.pages[g].first + k < pages_of(n); k++) {
                /* The deepest node that has a page of this index has the one to read. */
                int32_t *entry = &l->entries[g][node.pages[g].first + k], number = node.pages[g].numbers[k];
                if (*entry == NOT_LOADED) *entry = number < 0 ? -1 : l->units[g][number];
            }
        j = node.parent;
    }
    return 1;
}

/* The table of a sequence of the way's tokens that keeps positions from `first` on, or as many as are there
 * and it has room for; 0: of the last pages there are none, or of full attention not all. */
static int fill_table(loading *l, int group, int64_t first, qn_block_table *t)
{
    const int32_t *entries = l->entries[group];
    int64_t window = l->e->groups.group[group].window, n_pages = pages_of(l->n_ids), p = n_pages;
    int64_t least = window ? n_pages - t->capacity + QN_BLOCK_BASE_STEP - 1 : 0;
    if (least < first / QN_STATE_PAGE_TOKENS) least = first / QN_STATE_PAGE_TOKENS;
    while (p > least && entries[p - 1] >= 0) p--;
    if (p == n_pages || (!window && p > 0)) return 0;
    if (first < p * QN_STATE_PAGE_TOKENS) first = p * QN_STATE_PAGE_TOKENS;
    if (!qn_block_table_begin(t, l->n_ids, first)) return 0;
    memcpy(t->ids + t->n_released, entries + t->base + t->n_released,
           (size_t)(t->n - t->n_released) * sizeof *t->ids);
    qn_block_table_retain(t, l->e->pages[group]);
    return 1;
}

/* The first position that the next row of a sequence of n tokens sees. */
static int64_t first_seen(const loading *l, int group, int64_t n)
{
    int64_t window = l->e->groups.group[group].window;
    return window && n - window + 1 > 0 ? n - window + 1 : 0;
}

/* ---- a handle ----------------------------------------------------------------------------------------- */

/* The way's tokens are computed, if all is there. */
static void take_computed(loading *l, int64_t slot, qn_sequence *s)
{
    int is_there = slot >= 0 || !l->e->slots;
    for (int g = 0; is_there && g < l->e->groups.n; g++) {
        qn_block_table *t = &s->tables[g];
        int64_t first = first_seen(l, g, l->n_ids);
        is_there = fill_table(l, g, first, t) && (t->base + t->n_released) * QN_STATE_PAGE_TOKENS <= first;
    }
    if (!is_there) {
        for (int g = 0; g < l->e->groups.n; g++) qn_block_table_clear(&s->tables[g], l->e->pages[g]);
        return;
    }
    if (l->e->slots) {
        s->slot = l->units[l->e->groups.n][slot];
        qn_pages_retain(l->e->slots, s->slot);
    }
    s->length = s->n_given = l->n_ids;
}

static qn_status take_handle(loading *l, qn_handles *h, qn_handle *handle)
{
    const int64_t n = qn_state_file_nodes(l->f), last = n - 1;
    const qn_state_node first = qn_state_file_node(l->f, 0);
    const qn_state_key key = qn_state_file_key(l->f, first.key);
    handle->sequence.adapter = l->adapters[first.key];
    qn_adapters_retain(l->e->adapters, handle->sequence.adapter);
    if (!walk_to(l, last))
        return qn_fail(QN_E_ARG, "%s: the context of %lld tokens is too short for it",
                       qn_state_file_path(l->f), (long long)l->e->info.context_size);
    QN_TRY(qn_handle_put_ids(h, handle, NULL, 0, l->ids, l->n_ids));
    if (walk_to(l, 0)) take_computed(l, first.slot, &handle->sequence);
    handle->sequence.is_long = handle->sequence.length && key.is_long;
    return QN_OK;
}

/* As saved: nothing, or one node, or two of which the second is the first's child. */
static qn_status check_shape(const loading *l)
{
    int64_t n = qn_state_file_nodes(l->f);
    if (n <= 1 || (n == 2 && qn_state_file_node(l->f, 1).parent == 0)) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: it holds %lld runs of tokens, not one sequence",
                   qn_state_file_path(l->f), (long long)n);
}

qn_status qn_state_load_handle(qn_handles *h, uint64_t fingerprint, const char *path, qn_handle **out)
{
    loading l;
    qn_handle *handle = NULL;
    qn_status status = begin(&l, h->engine, h->scheduler, fingerprint, path, 1);
    if (status == QN_OK) status = check_shape(&l);
    for (int i = 0; status == QN_OK && i < l.n_pools; i++) status = load_units(&l, i);
    if (status == QN_OK) status = qn_handle_new(h, "none", &handle);
    if (status == QN_OK && qn_state_file_nodes(l.f)) status = take_handle(&l, h, handle);
    if (status == QN_OK)
        *out = handle;
    else
        qn_handle_free(h, handle);
    end(&l);
    return status;
}

/* ---- a tree ------------------------------------------------------------------------------------------- */

static qn_status insert(loading *l, const qn_state_node *node)
{
    const qn_state_key key = qn_state_file_key(l->f, node->key);
    const qn_tree_key own = {.adapter = l->adapters[node->key],
                             .is_long = key.is_long,
                             .salt = key.salt,
                             .salt_bytes = key.salt_bytes};
    int32_t slot = l->e->slots && node->slot >= 0 ? l->units[l->e->groups.n][node->slot] : -1;
    int fits = 1;
    for (int g = 0; fits && g < l->e->groups.n; g++) fits = fill_table(l, g, 0, &l->tables[g]);
    qn_status status = QN_OK;
    if (fits) {
        if (slot >= 0) qn_pages_retain(l->e->slots, slot);
        status = qn_tree_insert(l->e->tree, &own, l->ids, l->n_ids, l->tables, slot, 0, node->cost_ns);
    }
    for (int g = 0; g < l->e->groups.n; g++) qn_block_table_clear(&l->tables[g], l->e->pages[g]);
    return status;
}

/* Ends of branches bring all pages but those of windows along the way; snapshots belong to a node. */
static qn_status insert_all(loading *l)
{
    int64_t n = qn_state_file_nodes(l->f);
    int has_windows = 0;
    char *has_child = qn_calloc((size_t)n + 1, 1);
    if (!has_child) return QN_E_NOMEM;
    for (int g = 0; g < l->e->groups.n; g++) has_windows |= l->e->groups.group[g].window > 0;
    for (int64_t i = 0; i < n; i++) has_child[qn_state_file_node(l->f, i).parent + 1] = 1;
    qn_status status = QN_OK;
    for (int64_t i = 0; status == QN_OK && i < n; i++) {
        const qn_state_node node = qn_state_file_node(l->f, i);
        if (l->adapters[node.key] == NOT_LOADED) continue;
        if (has_child[i + 1] && !has_windows && node.slot < 0) continue;
        if (walk_to(l, i)) status = insert(l, &node);
    }
    qn_free(has_child);
    return status;
}

static int is_full(qn_status status)
{
    return status == QN_E_FULL || status == QN_E_NOMEM;
}

qn_status qn_state_load_tree(qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint, const char *path)
{
    loading l;
    QN_TRY(qn_engine_check_tree(e));
    qn_status status = begin(&l, e, scheduler, fingerprint, path, 0);
    for (int i = 0; status == QN_OK && i < l.n_pools; i++) {
        status = load_units(&l, i);
        if (is_full(status)) status = QN_OK;
    }
    if (status == QN_OK) status = insert_all(&l);
    end(&l);
    qn_tree_trim(e->tree);
    return status;
}
