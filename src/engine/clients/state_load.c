/* Loading: units of the file are read into fresh ones first, then sequences are put together of them. Of a
 * tree those nodes come first that are nearest the root, as far as there is room. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/clients/handle_parts.h"
#include "engine/clients/state_binding.h"
#include "engine/clients/state_io.h"

enum { POOLS = QN_LAYER_GROUPS_MAX + 1, NOT_LOADED = -2 /* of a key's adapter */ };

/* A node by where its tokens begin. */
typedef struct {
    int64_t begin, node;
} place;

typedef struct {
    int pool;
    int64_t number;
} loaded_unit;

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
    /* Of a tree. */
    place *order;     /* [n_nodes]: parents before children */
    int64_t *n_there; /* [n_nodes]: tokens from the root on for which units were loaded; 0: not this node */
    int64_t *n_children; /* [n_nodes]: of these, that are there */
    int64_t *mark;       /* [n_nodes], by order: the list's length before its units */
    loaded_unit *list;   /* [n_list] as they came */
    int64_t n_list;
    size_t held_bytes; /* that were copied since the engine was entered */
} loading;

static int64_t pages_of(int64_t n_tokens)
{
    return (n_tokens + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS;
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
    return qn_fail(QN_E_NOT_FOUND,
                   "%s: the state was computed with another adapter named %s than the loaded one",
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
            qn_log(QN_LOG_WARNING, "%s; the state computed with it is left out", qn_last_error());
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
    qn_free(l->order);
    qn_free(l->n_there);
    qn_free(l->n_children);
    qn_free(l->mark);
    qn_free(l->list);
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
    qn_pages_write(p, unit, bytes);
    qn_pages_fill(p, unit);
    l->units[pool][number] = unit;
    return QN_OK;
}

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

/* Tokens of the way to a node, with its own. */
static int64_t end_of(const loading *l, int64_t i)
{
    int64_t n = 0;
    for (; i >= 0; i = qn_state_file_node(l->f, i).parent) n += qn_state_file_node(l->f, i).n_ids;
    return n;
}

/* Puts the first n tokens of the way to a node, and their pages, together. */
static void walk_to(loading *l, int64_t i, int64_t n)
{
    int64_t at = end_of(l, i);
    l->n_ids = n;
    for (int g = 0; g < l->e->groups.n; g++)
        for (int64_t j = 0; j < pages_of(n); j++) l->entries[g][j] = NOT_LOADED;
    while (i >= 0) {
        const qn_state_node node = qn_state_file_node(l->f, i);
        at -= node.n_ids;
        if (at < n)
            memcpy(l->ids + at, node.ids,
                   (size_t)(n - at < node.n_ids ? n - at : node.n_ids) * sizeof *l->ids);
        for (int g = 0; g < l->e->groups.n; g++)
            for (int64_t k = 0; k < node.pages[g].n && node.pages[g].first + k < pages_of(n); k++) {
                /* The deepest node that has a page of this index has the one to read. */
                int32_t *entry = &l->entries[g][node.pages[g].first + k], number = node.pages[g].numbers[k];
                if (*entry == NOT_LOADED) *entry = number < 0 ? -1 : l->units[g][number];
            }
        i = node.parent;
    }
}

/* The table of a sequence of the way's tokens that keeps positions from `first` on, or as many as are there
 * and it has room for; 0: of the last pages there are none, or of full attention not all. */
static int fill_table(loading *l, int group, int64_t first, qn_block_table *t)
{
    const int32_t *entries = l->entries[group];
    int64_t window = l->e->groups.group[group].window, n_pages = pages_of(l->n_ids), p = n_pages;
    int64_t least = window ? n_pages - t->capacity + QN_BLOCK_BASE_STEP - 1 : 0;
    if (least < first / QN_PAGE_TOKENS) least = first / QN_PAGE_TOKENS;
    while (p > least && entries[p - 1] >= 0) p--;
    if (p == n_pages || (!window && p > 0)) return 0;
    if (first < p * QN_PAGE_TOKENS) first = p * QN_PAGE_TOKENS;
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
        is_there = fill_table(l, g, first, t) && (t->base + t->n_released) * QN_PAGE_TOKENS <= first;
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
    if (end_of(l, last) > l->e->info.context_size)
        return qn_fail(QN_E_ARG, "%s: it is too long for the context of %lld tokens",
                       qn_state_file_path(l->f), (long long)l->e->info.context_size);
    walk_to(l, last, end_of(l, last));
    QN_TRY(qn_handle_put_ids(h, handle, NULL, 0, l->ids, l->n_ids));
    walk_to(l, 0, end_of(l, 0));
    take_computed(l, first.slot, &handle->sequence);
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

static int is_full(qn_status status)
{
    return status == QN_E_FULL || status == QN_E_NOMEM;
}

static int by_begin(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->node < y->node ? -1 : 1;
}

static qn_status make_order(loading *l)
{
    const size_t n = (size_t)qn_state_file_nodes(l->f);
    int64_t n_units = 0;
    for (int i = 0; i < l->n_pools; i++) n_units += l->n[i];
    l->list = qn_alloc_array((size_t)n_units, sizeof *l->list);
    l->order = qn_alloc_array(n, sizeof *l->order);
    l->n_there = qn_calloc(n, sizeof *l->n_there);
    l->n_children = qn_calloc(n, sizeof *l->n_children);
    l->mark = qn_calloc(n, sizeof *l->mark);
    if (!l->list || !l->order || !l->n_there || !l->n_children || !l->mark) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const qn_state_node node = qn_state_file_node(l->f, (int64_t)i);
        int64_t begin = 0; /* parents come before children */
        if (node.parent >= 0)
            begin = l->order[node.parent].begin + qn_state_file_node(l->f, node.parent).n_ids;
        l->order[i] = (place){begin, (int64_t)i};
    }
    if (n) qsort(l->order, n, sizeof *l->order, by_begin);
    return QN_OK;
}

/* Gives back what was loaded last, down to so many. */
static void unload(loading *l, int64_t n)
{
    for (; l->n_list > n; l->n_list--) {
        const loaded_unit *last = &l->list[l->n_list - 1];
        qn_pages_release(qn_engine_pool(l->e, last->pool), l->units[last->pool][last->number]);
        l->units[last->pool][last->number] = -1;
    }
}

/* The engine is entered, and left now and then for others. */
static qn_status need_unit(loading *l, int pool, int64_t number)
{
    if (number < 0 || l->units[pool][number] >= 0) return QN_OK;
    if (l->held_bytes >= QN_STATE_BATCH_BYTES) {
        qn_scheduler_leave(l->scheduler);
        qn_scheduler_enter(l->scheduler); /* it fails for a thread that leads, and this one did not */
        l->held_bytes = 0;
    }
    QN_TRY(load_unit(l, pool, number));
    l->held_bytes += qn_pages_unit_bytes(qn_engine_pool(l->e, pool));
    l->list[l->n_list++] = (loaded_unit){pool, number};
    return QN_OK;
}

/* Page k of the way in all groups, of those that the node names. */
static qn_status need_page(loading *l, const qn_state_node *node, int64_t k)
{
    for (int g = 0; g < l->e->groups.n; g++) {
        const qn_state_pages *p = &node->pages[g];
        if (k >= p->first && k - p->first < p->n) QN_TRY(need_unit(l, g, p->numbers[k - p->first]));
    }
    return QN_OK;
}

/* The units of a node whose parent is there. Where there is no room for all, its first pages are there if
 * somebody can go on from these. */
static qn_status load_node(loading *l, const place *at)
{
    const qn_state_node node = qn_state_file_node(l->f, at->node);
    const int64_t context = l->e->info.context_size, begun = l->n_list;
    int64_t end = at->begin + node.n_ids, n = at->begin;
    qn_status status = QN_OK;
    if (end > context) end = context / QN_PAGE_TOKENS * QN_PAGE_TOKENS;
    for (int64_t k = n / QN_PAGE_TOKENS; status == QN_OK && n < end; k++) {
        const int64_t length = l->n_list;
        status = need_page(l, &node, k);
        if (status == QN_OK)
            n = (k + 1) * QN_PAGE_TOKENS < end ? (k + 1) * QN_PAGE_TOKENS : end;
        else
            unload(l, length);
    }
    const int is_whole = n == at->begin + node.n_ids;
    if (l->e->slots && is_whole) status = need_unit(l, l->e->groups.n, node.slot);
    const int is_there = l->e->slots ? is_whole && status == QN_OK : n > at->begin;
    if (!is_there) {
        unload(l, begun);
        return status;
    }
    l->n_there[at->node] = n;
    if (node.parent >= 0) l->n_children[node.parent]++;
    return status;
}

/* Nodes that go on from those that are there, until there is no more room. Returns how many were looked at.
 */
static qn_status load_nodes(loading *l, int64_t *n)
{
    qn_status status = qn_scheduler_enter(l->scheduler);
    if (status != QN_OK) return status;
    for (*n = 0; status == QN_OK && *n < qn_state_file_nodes(l->f); ++*n) {
        const place *at = &l->order[*n];
        const qn_state_node node = qn_state_file_node(l->f, at->node);
        l->mark[*n] = l->n_list;
        if (l->adapters[node.key] == NOT_LOADED) continue;
        if (node.parent < 0 || l->n_there[node.parent] == at->begin) status = load_node(l, at);
    }
    qn_scheduler_leave(l->scheduler);
    return is_full(status) ? QN_OK : status;
}

static qn_status insert(loading *l, int64_t i)
{
    const qn_state_node node = qn_state_file_node(l->f, i);
    const qn_state_key key = qn_state_file_key(l->f, node.key);
    const qn_tree_key own = {.adapter = l->adapters[node.key],
                             .is_long = key.is_long,
                             .salt = key.salt,
                             .salt_bytes = key.salt_bytes};
    int32_t slot = l->e->slots && node.slot >= 0 ? l->units[l->e->groups.n][node.slot] : -1;
    int fits = 1;
    walk_to(l, i, l->n_there[i]);
    for (int g = 0; fits && g < l->e->groups.n; g++) fits = fill_table(l, g, 0, &l->tables[g]);
    qn_status status = QN_OK;
    if (fits) {
        if (slot >= 0) qn_pages_retain(l->e->slots, slot);
        status = qn_tree_insert(l->e->tree, &own, l->ids, l->n_ids, l->tables, slot, 0, node.cost_ns);
    }
    for (int g = 0; g < l->e->groups.n; g++) qn_block_table_clear(&l->tables[g], l->e->pages[g]);
    return status;
}

/* Of the first n nodes in the order one in 16 goes, those that are farthest from the root. Returns how many
 * are left. */
static int64_t drop_last(loading *l, int64_t n)
{
    for (int64_t n_left = n - (n + 15) / 16; n > n_left; n--) {
        const int64_t i = l->order[n - 1].node, parent = qn_state_file_node(l->f, i).parent;
        unload(l, l->mark[n - 1]);
        if (l->n_there[i] && parent >= 0) l->n_children[parent]--;
        l->n_there[i] = 0;
    }
    return n;
}

/* The first n nodes of the order. Ends of branches bring all pages but those of windows along the way;
 * snapshots belong to a node. */
static qn_status insert_nodes(loading *l, int64_t n)
{
    int has_windows = 0;
    for (int g = 0; g < l->e->groups.n; g++) has_windows |= l->e->groups.group[g].window > 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t node = l->order[i].node;
        if (!l->n_there[node]) continue;
        if (l->n_children[node] && !has_windows && qn_state_file_node(l->f, node).slot < 0) continue;
        qn_status status = insert(l, node);
        if (is_full(status)) { /* no memory for the tree's own nodes; others are ends of branches then */
            n = drop_last(l, n);
            i = -1;
        } else if (status != QN_OK) {
            return status;
        }
    }
    return QN_OK;
}

/* What is pinned under this name here stays as it is. */
static qn_status pin(loading *l, const qn_state_pin *own, const char *name)
{
    const qn_state_key key = qn_state_file_key(l->f, qn_state_file_node(l->f, own->node).key);
    const qn_tree_key to = {.adapter = l->adapters[qn_state_file_node(l->f, own->node).key],
                            .is_long = key.is_long,
                            .salt = key.salt,
                            .salt_bytes = key.salt_bytes};
    if (to.adapter == NOT_LOADED || qn_tree_is_pinned(l->e->tree, name)) return QN_OK;
    if (!l->n_there[own->node] || l->n_there[own->node] < end_of(l, own->node)) return QN_E_FULL;
    walk_to(l, own->node, l->n_there[own->node]);
    return qn_tree_pin(l->e->tree, &to, l->ids, l->n_ids, name);
}

static void pin_all(loading *l)
{
    for (int64_t i = 0; i < qn_state_file_pins(l->f); i++) {
        const qn_state_pin own = qn_state_file_pin(l->f, i);
        char *name = qn_strndup(own.name, own.name_length);
        if (!name || pin(l, &own, name) != QN_OK)
            qn_log(QN_LOG_WARNING, "%s: there is no room to keep '%.*s' ready", qn_state_file_path(l->f),
                   (int)(own.name_length < 100 ? own.name_length : 100), own.name);
        qn_free(name);
    }
}

/* How much of the file the tree has now; what belongs to adapters that are not loaded does not count. */
static void report(loading *l)
{
    int64_t all = 0, taken = 0, *known = l->mark; /* of the way to a node */
    memset(known, 0, (size_t)qn_state_file_nodes(l->f) * sizeof *known);
    for (int64_t i = qn_state_file_nodes(l->f) - 1; i >= 0; i--) { /* parents come after their children */
        const qn_state_node node = qn_state_file_node(l->f, i);
        const qn_state_key key = qn_state_file_key(l->f, node.key);
        const qn_tree_key own = {.adapter = l->adapters[node.key],
                                 .is_long = key.is_long,
                                 .salt = key.salt,
                                 .salt_bytes = key.salt_bytes};
        if (own.adapter == NOT_LOADED) continue;
        all += node.n_ids;
        if (!l->n_there[i]) continue;
        if (!l->n_children[i]) {
            qn_tree_miss miss;
            walk_to(l, i, l->n_there[i]);
            qn_tree_explain(l->e->tree, &own, l->ids, l->n_ids, &miss);
            known[i] = miss.n_known;
        }
        if (node.parent >= 0 && known[i] > known[node.parent]) known[node.parent] = known[i];
        const int64_t n = known[i] - (end_of(l, i) - node.n_ids);
        if (n > 0) taken += n < node.n_ids ? n : node.n_ids;
    }
    if (taken == all) return;
    qn_log(QN_LOG_WARNING, "%s: there was room for %lld of its %lld tokens; %lld are left out",
           qn_state_file_path(l->f), (long long)taken, (long long)all, (long long)(all - taken));
}

/* Gives back what was only held for loading. */
static void let_go(loading *l)
{
    unload(l, 0);
    qn_tree_trim(l->e->tree);
}

qn_status qn_state_load_tree(qn_engine *e, qn_scheduler *scheduler, uint64_t fingerprint, const char *path)
{
    loading l;
    int64_t n = 0;
    QN_TRY(qn_engine_check_tree(e));
    qn_status status = begin(&l, e, scheduler, fingerprint, path, 0);
    if (status == QN_OK) status = make_order(&l);
    if (status == QN_OK) status = load_nodes(&l, &n);
    if (status == QN_OK) status = insert_nodes(&l, n);
    if (status == QN_OK) pin_all(&l);
    let_go(&l);
    if (status == QN_OK) report(&l);
    end(&l);
    return status;
}
