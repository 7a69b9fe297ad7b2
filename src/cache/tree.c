/* Making a tree, finding in it, splitting, inserting. */
#include "cache/tree.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cache/tree_parts.h"

enum { BUCKETS_MIN = 64 };

qn_status qn_tree_new(const qn_tree_spec *spec, qn_tree **out)
{
    qn_tree *t = qn_calloc(1, sizeof *t);
    if (!t) return QN_E_NOMEM;
    t->buckets = qn_calloc(BUCKETS_MIN, sizeof *t->buckets);
    if (!t->buckets) {
        qn_free(t);
        return QN_E_NOMEM;
    }
    pthread_mutex_init(&t->lock, NULL);
    t->spec = *spec;
    t->n_buckets = BUCKETS_MIN;
    t->seed = (uint64_t)qn_clock_ns();
    for (int g = 0; g < spec->n_groups; g++) {
        t->unit_bytes[g] = qn_pages_unit_bytes(spec->pages[g]);
        qn_pages_set_evict(spec->pages[g], qn_tree_evict_pages, t);
    }
    if (spec->slots) qn_pages_set_evict(spec->slots, qn_tree_evict_pages, t);
    *out = t;
    return QN_OK;
}

void qn_tree_free(qn_tree *t)
{
    if (!t) return;
    for (int g = 0; g < t->spec.n_groups; g++) qn_pages_set_evict(t->spec.pages[g], NULL, NULL);
    if (t->spec.slots) qn_pages_set_evict(t->spec.slots, NULL, NULL);
    while (t->roots) qn_tree_drop_branch(t, t->roots);
    pthread_mutex_destroy(&t->lock);
    qn_free(t->buckets);
    qn_free(t);
}

/* ---- finding ------------------------------------------------------------------------------------------ */

/* The content that begins with the token at `at`; NULL: none does. */
static const qn_tree_content *content_at(const qn_tree_key *key, int64_t at)
{
    const qn_tree_content *next = qn_tree_content_from(key, at);
    return next && next->first == at ? next : NULL;
}

/* Where the run of tokens from `at` on ends at the latest, which one node can stand for. */
static int64_t run_end(const qn_tree_key *key, int64_t at, int64_t n_ids)
{
    const qn_tree_content *next = qn_tree_content_from(key, at + 1);
    return next && next->first < n_ids ? next->first : n_ids;
}

/* How many tokens the node has in common with ids[0..n_max), the sequence's from the node's begin on. */
static int64_t common(const qn_tree_node *n, const qn_tree_key *key, const int32_t *ids, int64_t n_max)
{
    int64_t n_ids = run_end(key, n->begin, n->begin + n_max) - n->begin, i = 0;
    if (n_ids > n->end - n->begin) n_ids = n->end - n->begin;
    while (i < n_ids && n->ids[i] == ids[i]) i++;
    return i;
}

/* The pages of one group on the way so far: those of [first, page) are all there, and is `page`? */
typedef struct {
    int64_t page, first;
    int is_there;
} run;

static void run_on(run *r, int64_t page, int is_there)
{
    if (page != r->page && !r->is_there) r->first = page;
    r->page = page;
    r->is_there = is_there;
}

/* Are all pages there that the next row after n tokens sees, and does the table have room for them? */
static int is_usable(const qn_tree *t, const run *runs, int64_t n, const qn_block_table *tables)
{
    for (int g = 0; g < t->spec.n_groups; g++) {
        int64_t need = qn_tree_first_seen(t, g, n) / QN_PAGE_TOKENS;
        if ((runs[g].is_there ? runs[g].first : runs[g].page + 1) > need) return 0;
        if (tables &&
            qn_tree_pages_of(n) - need / QN_BLOCK_BASE_STEP * QN_BLOCK_BASE_STEP > tables[g].capacity)
            return 0;
    }
    return 1;
}

/* Goes on over the node, of which the tokens below `end` are known. Of the positions in one page the last is
 * the best to ask for: it sees the least of what is before. */
static void find_usable(const qn_tree *t, qn_tree_node *n, int64_t end, run *runs,
                        const qn_block_table *tables, qn_tree_way *way)
{
    for (int64_t page = n->first_page; page < qn_tree_pages_of(end); page++) {
        int64_t i = page - n->first_page, at = (page + 1) * QN_PAGE_TOKENS;
        for (int g = 0; g < t->spec.n_groups; g++) run_on(&runs[g], page, i >= n->missing[g]);
        if (at > end) at = end;
        if (!is_usable(t, runs, at, tables)) continue;
        if (t->spec.slots && (at < n->end || n->slot < 0)) {
            way->lacks_snapshot = 1;
            continue;
        }
        way->usable = n;
        way->n_usable = at;
        way->lacks_snapshot = 0;
    }
}

void qn_tree_find(const qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n_max,
                  const qn_block_table *tables, qn_tree_way *way)
{
    run runs[QN_TREE_GROUPS_MAX];
    for (int g = 0; g < QN_TREE_GROUPS_MAX; g++) runs[g] = (run){-1, 0, 1};
    *way = (qn_tree_way){.root = qn_tree_root(t, key)};
    way->last = way->root;
    while (way->last && way->n_known == way->last->end && way->n_known < n_max) {
        qn_tree_node *n = qn_tree_child(t, way->last, ids[way->n_known], content_at(key, way->n_known));
        if (!n) break;
        way->n_known += common(n, key, ids + way->n_known, n_max - way->n_known);
        way->last = n;
        find_usable(t, n, way->n_known, runs, tables, way);
    }
}

/* Puts the pages of the way's usable tokens into the table: of those of one index the deepest node's. */
static void fill_table(const qn_tree *t, int group, const qn_tree_way *way, qn_block_table *table)
{
    qn_block_table_begin(table, way->n_usable, qn_tree_first_seen(t, group, way->n_usable));
    int64_t page = table->base + table->n - 1, first = table->base + table->n_released;
    for (const qn_tree_node *n = way->usable; page >= first; n = n->parent)
        for (; page >= first && page >= n->first_page; page--)
            table->ids[page - table->base] = qn_tree_pages(n, group)[page - n->first_page];
    qn_block_table_retain(table, t->spec.pages[group]);
}

qn_status qn_tree_match(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n_max,
                        qn_block_table *tables, int32_t *slot, int64_t *n)
{
    qn_tree_way way;
    for (int g = 0; g < t->spec.n_groups; g++)
        if (tables[g].n) return qn_fail(QN_E_ARG, "prefix tree: the sequence already has tokens");
    pthread_mutex_lock(&t->lock);
    qn_tree_find(t, key, ids, n_max, tables, &way);
    *n = way.n_usable;
    *slot = -1;
    if (way.usable) {
        for (int g = 0; g < t->spec.n_groups; g++) fill_table(t, g, &way, &tables[g]);
        if (t->spec.slots) qn_pages_retain(t->spec.slots, *slot = way.usable->slot);
        qn_tree_touch(t, way.usable);
        t->counters.hits++;
        t->counters.tokens_reused += way.n_usable;
    } else {
        t->counters.misses++;
    }
    pthread_mutex_unlock(&t->lock);
    return QN_OK;
}

int64_t qn_tree_peek(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n_max)
{
    qn_tree_way way;
    pthread_mutex_lock(&t->lock);
    qn_tree_find(t, key, ids, n_max, NULL, &way);
    pthread_mutex_unlock(&t->lock);
    return way.n_usable;
}

/* ---- inserting ---------------------------------------------------------------------------------------- */

static int32_t page_of(const qn_block_table *table, int64_t page)
{
    int64_t i = page - table->base;
    return i >= table->n_released && i < table->n ? table->ids[i] : -1;
}

/* What the node lacks of the sequence's pages, as far as the sequence has all tokens of them that the node
 * has: from its last page on downwards, for nothing is missing between two. Who wrote what a node has must be
 * known: a second one to add pages has to wait until those of the first are gone. */
static void add_pages(qn_tree *t, qn_tree_node *n, const qn_block_table *tables, int64_t n_tokens,
                      uint64_t writer)
{
    for (int g = 0; g < t->spec.n_groups; g++)
        for (int64_t i = n->missing[g] - 1; i >= 0; i--) {
            int64_t page = n->first_page + i, end = (page + 1) * QN_PAGE_TOKENS;
            int32_t id = page_of(&tables[g], page);
            if (id < 0 || (end < n->end ? end : n->end) > n_tokens) break;
            qn_tree_add_page(t, n, g, i, id);
            if (n->writer != writer) n->filler = n->filler && n->filler != writer ? QN_TREE_SEVERAL : writer;
        }
}

/* Does the node lack the page at its token n_tokens - 1, inside of it, in a group where the sequence has it?
 */
static int lacks_page(const qn_tree *t, const qn_tree_node *n, const qn_block_table *tables, int64_t n_tokens)
{
    int64_t page = (n_tokens - 1) / QN_PAGE_TOKENS;
    for (int g = 0; g < t->spec.n_groups; g++)
        if (page - n->first_page < n->missing[g] && page_of(&tables[g], page) >= 0) return 1;
    return 0;
}

static qn_status check_tables(const qn_tree *t, const qn_block_table *tables, int64_t n, int32_t slot)
{
    int is_poisoned = slot >= 0 && qn_pages_is_poisoned(t->spec.slots, slot, 1);
    for (int g = 0; g < t->spec.n_groups; g++) {
        if (tables[g].base + tables[g].n < qn_tree_pages_of(n))
            return qn_fail(QN_E_ARG, "prefix tree: the sequence has no pages for its token %lld",
                           (long long)(n - 1));
        is_poisoned |= qn_block_table_is_poisoned(&tables[g], t->spec.pages[g], n);
    }
    if (is_poisoned)
        return qn_fail(QN_E_DEVICE, "prefix tree: the state that the sequence computed is not valid");
    return QN_OK;
}

/* Tokens [n->end, n_ids) behind the node, one node from content to content. All or nothing. */
static qn_status add_leaves(qn_tree *t, qn_tree_node *n, const qn_tree_key *key, const int32_t *ids,
                            int64_t n_ids, const qn_block_table *tables, uint64_t writer, int64_t cost_ns,
                            qn_tree_node **out)
{
    const int64_t begin = n->end;
    qn_tree_node *first = NULL;
    for (int64_t at = begin, end; at < n_ids; at = end) {
        end = run_end(key, at, n_ids);
        qn_tree_node *leaf = qn_tree_new_leaf(t, n, end, ids + at, content_at(key, at));
        if (!leaf) {
            if (first)
                qn_tree_drop_branch(t, first); /* the root, too, when it was the first there */
            else if (!n->parent && !n->child)
                qn_tree_drop(t, n);
            return QN_E_NOMEM;
        }
        if (!first) first = leaf;
        leaf->writer = writer;
        leaf->cost_ns = cost_ns;
        add_pages(t, leaf, tables, end, writer);
        n = leaf;
    }
    t->counters.tokens_inserted += n_ids - begin;
    *out = n;
    return QN_OK;
}

/* The node where the sequence's tokens end. */
static qn_status insert(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n_ids,
                        const qn_block_table *tables, int has_slot, uint64_t writer, int64_t cost_ns,
                        qn_tree_node **out)
{
    qn_tree_node *n = qn_tree_root(t, key);
    if (!n && !(n = qn_tree_new_root(t, key))) return QN_E_NOMEM;
    int64_t at = 0;
    while (at == n->end && at < n_ids) {
        qn_tree_node *child = qn_tree_child(t, n, ids[at], content_at(key, at));
        if (!child) break;
        n = child;
        at += common(n, key, ids + at, n_ids - at);
        add_pages(t, n, tables, at, writer);
    }
    if (at < n->end && (at < n_ids || has_slot || lacks_page(t, n, tables, at))) {
        n = qn_tree_split(t, n, at);
        if (!n) return QN_E_NOMEM;
        add_pages(t, n, tables, at, writer);
    }
    if (at < n_ids) QN_TRY(add_leaves(t, n, key, ids, n_ids, tables, writer, cost_ns, &n));
    *out = n;
    return QN_OK;
}

/* What an insertion may add: a root, a node that is split, a new one and another from each content on. */
static size_t most_bytes(const qn_tree *t, const qn_tree_key *key, int64_t n)
{
    return (3 + (size_t)key->n_contents) * qn_tree_node_bytes(t, 0) + 2 * qn_tree_node_bytes(t, n) +
           sizeof *key + key->salt_bytes;
}

qn_status qn_tree_insert(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n,
                         const qn_block_table *tables, int32_t slot, uint64_t writer, int64_t cost_ns)
{
    const size_t room = most_bytes(t, key, n);
    qn_tree_node *end = NULL;
    qn_status status = n > 0 ? qn_ledger_reserve(t->spec.ledger, QN_LEDGER_CACHE, room) : QN_OK;
    if (n > 0 && status == QN_OK) {
        pthread_mutex_lock(&t->lock);
        t->added_bytes = 0;
        status = check_tables(t, tables, n, slot);
        if (status == QN_OK) status = insert(t, key, ids, n, tables, slot >= 0, writer, cost_ns, &end);
        if (status == QN_OK) {
            if (slot >= 0 && end->slot < 0) qn_tree_take_slot(t, end, slot, writer);
            qn_tree_touch(t, end);
            t->counters.inserts++;
        }
        qn_ledger_release(t->spec.ledger, QN_LEDGER_CACHE, room - t->added_bytes);
        pthread_mutex_unlock(&t->lock);
    }
    if (slot >= 0) qn_pages_release(t->spec.slots, slot);
    return status;
}
