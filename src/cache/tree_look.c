/* Looking at a tree: why a match is short, what it holds, whether it is sound. */
#include <string.h>

#include "base/mem.h"
#include "cache/tree_parts.h"

/* ---- explaining --------------------------------------------------------------------------------------- */

/* The longest of the branches that went whose tokens these begin with; NULL: none is longer than what is
 * known. */
static const qn_tree_gone *find_gone(const qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n,
                                     int64_t n_known)
{
    const qn_tree_gone *by_end[QN_TREE_REMEMBERED], *found = NULL;
    int count = t->n_gone < QN_TREE_REMEMBERED ? (int)t->n_gone : QN_TREE_REMEMBERED, i = 0;
    for (int k = 0; k < count; k++) {
        int at = k;
        for (; at > 0 && by_end[at - 1]->end > t->gone[k].end; at--) by_end[at] = by_end[at - 1];
        by_end[at] = &t->gone[k];
    }
    uint64_t hash = qn_tree_key_hash(t, key);
    const qn_tree_content *next = qn_tree_content_from(key, 0);
    for (int64_t end = 1; end <= n; end++) {
        if (next && next->first == end - 1) {
            hash = qn_tree_hash_content(hash, next->digest);
            next = qn_tree_content_from(key, end);
        }
        hash = qn_tree_hash_on(hash, ids[end - 1]);
        for (; i < count && by_end[i]->end <= end; i++)
            if (by_end[i]->end == end && by_end[i]->hash == hash && end > n_known) found = by_end[i];
    }
    return found;
}

/* What the tree has after the last known token, of what was used last. */
static void show_known(const qn_tree_way *way, qn_tree_miss *out)
{
    const qn_tree_node *n = way->last;
    for (int64_t at = way->n_known;
         out->n_known_ids < 2 * QN_TREE_CONTEXT && at < way->n_known + QN_TREE_CONTEXT; at++) {
        if (at == n->end) n = n->child;
        if (!n) return;
        out->known[out->n_known_ids++] = n->ids[at - n->begin];
    }
}

void qn_tree_explain(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n, qn_tree_miss *out)
{
    qn_tree_way way;
    *out = (qn_tree_miss){.reason = QN_TREE_USABLE, .evicted_begin = -1, .evicted_end = -1};
    pthread_mutex_lock(&t->lock);
    qn_tree_find(t, key, ids, n, NULL, &way);
    out->n_known = way.n_known;
    out->n_usable = way.n_usable;
    int64_t from = way.n_known > QN_TREE_CONTEXT ? way.n_known - QN_TREE_CONTEXT : 0;
    for (int64_t i = from; i < n && i < way.n_known + QN_TREE_CONTEXT; i++) {
        out->given[out->n_given++] = ids[i];
        if (i < way.n_known) out->known[out->n_known_ids++] = ids[i];
    }
    out->i_given = out->i_known = (int)(way.n_known - from);
    if (way.root) show_known(&way, out);
    const qn_tree_gone *gone = find_gone(t, key, ids, n, way.n_known);
    if (gone) {
        out->evicted_begin = gone->begin;
        out->evicted_end = gone->end;
        out->evicted_ago = t->n_gone - gone->number;
    }
    if (way.n_usable < way.n_known)
        out->reason = way.lacks_snapshot ? QN_TREE_LACKS_SNAPSHOT : QN_TREE_LACKS_WINDOW;
    else if (way.n_known < n)
        out->reason = gone                              ? QN_TREE_EVICTED
                      : !way.root                       ? QN_TREE_UNKNOWN_KEY
                      : out->i_known < out->n_known_ids ? QN_TREE_DIFFERS
                                                        : QN_TREE_ENDS;
    pthread_mutex_unlock(&t->lock);
}

/* ---- what it holds ------------------------------------------------------------------------------------ */

void qn_tree_get_counters(const qn_tree *t, qn_tree_counters *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&t->lock;
    pthread_mutex_lock(lock);
    *out = t->counters;
    pthread_mutex_unlock(lock);
}

/* The node's tokens behind those of its parents. */
static qn_status put_ids(const qn_tree_node *n, int32_t **path, int64_t *capacity)
{
    if (n->end > *capacity) {
        int64_t wanted = n->end > 2 * *capacity ? n->end : 2 * *capacity;
        int32_t *longer = qn_realloc(*path, (size_t)wanted * sizeof *longer);
        if (!longer) return QN_E_NOMEM;
        *path = longer;
        *capacity = wanted;
    }
    memcpy(*path + n->begin, n->ids, (size_t)(n->end - n->begin) * sizeof *n->ids);
    return QN_OK;
}

qn_status qn_tree_walk(qn_tree *t, qn_tree_visit_fn *fn, void *user)
{
    int32_t *path = NULL;
    int64_t capacity = 0;
    qn_status status = QN_OK;
    pthread_mutex_lock(&t->lock);
    for (const qn_tree_node *root = t->roots; root && status == QN_OK; root = root->next)
        for (const qn_tree_node *n = root->child; n && status == QN_OK; n = qn_tree_after(n, root)) {
            qn_tree_view view = {.key = root->key,
                                 .begin = n->begin,
                                 .end = n->end,
                                 .first_page = n->first_page,
                                 .n_pages = n->n_pages,
                                 .slot = n->slot,
                                 .writer = n->writer,
                                 .cost_ns = n->cost_ns,
                                 .has_content = n->is_behind_content,
                                 .n_pins = n->n_pins,
                                 .pins = t->pins,
                                 .node = n};
            for (int g = 0; g < t->spec.n_groups; g++) view.pages[g] = qn_tree_pages(n, g);
            status = put_ids(n, &path, &capacity);
            view.path = path;
            if (status == QN_OK) status = fn(user, &view);
        }
    pthread_mutex_unlock(&t->lock);
    qn_free(path);
    return status;
}

const char *qn_tree_view_pin(const qn_tree_view *node, int i)
{
    const qn_tree_held *pin = node->pins;
    while (pin->node != node->node || i--) pin = pin->next;
    return pin->name;
}

/* ---- is it sound? ------------------------------------------------------------------------------------- */

/* What a check counts. */
typedef struct {
    qn_tree_counters counters;
    int64_t n_listed, n_in_buckets, n_slots;
    int32_t *holds[QN_TREE_GROUPS_MAX], *slot_holds; /* [total] of each pool */
} census;

/* What begins with the node, put into *to; NULL: nothing does. */
static const qn_tree_content *content_of(const qn_tree_node *n, qn_tree_content *to)
{
    if (!n->has_content) return NULL;
    to->first = n->begin;
    memcpy(to->digest, n->digest, sizeof to->digest);
    return to;
}

static const char *check_place(const qn_tree *t, const qn_tree_node *n)
{
    const qn_tree_node *p = n->parent;
    if (n->begin != p->end || n->end <= n->begin) return "a node does not begin where its parent ends";
    const qn_tree_content *content = content_of(n, &(qn_tree_content){0});
    if (qn_tree_child(t, p, n->ids[0], content) != n) return "a child is not found by its first token";
    if (n->is_behind_content != (n->has_content || p->is_behind_content))
        return "a content is not handed down";
    if (n->used > p->used) return "a node is younger than its parent";
    if (n->is_listed != (!n->child && !qn_tree_is_kept(n))) return "the list of evictable nodes is wrong";
    if (n->next && (n->next->before != n || n->next->parent != p)) return "siblings are not linked";
    uint64_t hash = qn_tree_hash_content(p->hash, content ? content->digest : NULL);
    for (int64_t i = 0; i < n->end - n->begin; i++) hash = qn_tree_hash_on(hash, n->ids[i]);
    return hash == n->hash ? NULL : "a node's hash does not match its tokens";
}

static const char *check_pages(const qn_tree *t, const qn_tree_node *n, census *c)
{
    const int64_t end_page = n->first_page + n->n_pages;
    if (n->first_page != n->begin / QN_PAGE_TOKENS || end_page != qn_tree_pages_of(n->end))
        return "a node's pages do not match its tokens";
    for (int g = 0; g < t->spec.n_groups; g++)
        for (int64_t i = 0; i < n->n_pages; i++) {
            int32_t id = qn_tree_pages(n, g)[i];
            if ((id < 0) != (i < n->missing[g])) return "a page is missing between others";
            if (id < 0) continue;
            int64_t slots = n->end - (n->first_page + i) * QN_PAGE_TOKENS;
            if (slots > QN_PAGE_TOKENS) slots = QN_PAGE_TOKENS;
            if (qn_pages_get_info(t->spec.pages[g], id).fill < slots) return "a page is not filled";
            if (qn_pages_is_poisoned(t->spec.pages[g], id, slots)) return "a page is poisoned";
            c->holds[g][id]++;
            c->counters.pages++;
        }
    if (n->slot < 0) return n->slot_writer ? "a snapshot's writer does not have it" : NULL;
    if (qn_pages_is_poisoned(t->spec.slots, n->slot, 1)) return "a snapshot is poisoned";
    c->slot_holds[n->slot]++;
    c->counters.snapshots++;
    return NULL;
}

static const char *check_nodes(const qn_tree *t, census *c)
{
    for (const qn_tree_node *root = t->roots; root; root = root->next) {
        if (!root->child) return "a key has no tokens";
        if (qn_tree_root(t, root->key) != root) return "a key is not found";
        c->n_in_buckets++;
        c->counters.own_bytes += root->own_bytes;
        for (const qn_tree_node *n = root->child; n; n = qn_tree_after(n, root)) {
            const char *wrong = check_place(t, n);
            if (!wrong) wrong = check_pages(t, n, c);
            if (wrong) return wrong;
            c->n_in_buckets++;
            c->n_listed += n->is_listed;
            c->counters.nodes++;
            c->counters.tokens += n->end - n->begin;
            c->counters.pins += n->n_pins;
            c->counters.timed_pins += n->timed != NULL;
            c->counters.own_bytes += n->own_bytes;
        }
    }
    return NULL;
}

static const char *check_lists(const qn_tree *t, const census *c)
{
    int64_t n = 0;
    for (const qn_tree_node *x = t->oldest; x; x = x->newer, n++)
        if ((x->newer ? x->newer->older : t->newest) != x) return "the list of evictable nodes is not linked";
    if (n != c->n_listed) return "the list of evictable nodes has other members";
    n = 0;
    for (const qn_tree_node *x = t->oldest_slot; x; x = x->newer_slot, n++)
        if ((x->newer_slot ? x->newer_slot->older_slot : t->newest_slot) != x || x->slot < 0)
            return "the list of snapshots is not linked";
    if (n != c->counters.snapshots) return "the list of snapshots has other members";
    n = 0;
    for (const qn_tree_held *pin = t->pins; pin; pin = pin->next) n++;
    if (n != c->counters.pins || n != t->counters.pins) return "pins are not counted";
    n = 0;
    for (const qn_tree_timed *pin = t->oldest_timed; pin; pin = pin->newer, n++)
        if ((pin->newer ? pin->newer->older : t->newest_timed) != pin || pin->node->timed != pin ||
            pin->until_ns < t->first_until_ns)
            return "the list of pins with a time is not linked";
    if (n != c->counters.timed_pins || n != t->counters.timed_pins) return "pins with a time are not counted";
    if (c->n_in_buckets != (int64_t)t->n_in_buckets) return "the table has other nodes";
    if (c->counters.nodes != t->counters.nodes || c->counters.tokens != t->counters.tokens ||
        c->counters.pages != t->counters.pages || c->counters.snapshots != t->counters.snapshots ||
        c->counters.own_bytes != t->counters.own_bytes)
        return "held memory is not counted";
    return NULL;
}

static const char *check_holds(const qn_pages *p, const int32_t *holds)
{
    for (int32_t id = 0; id < qn_pages_total(p); id++)
        if (qn_pages_get_info(p, id).kept != holds[id]) return "a pool counts other holds on a page";
    return NULL;
}

static const char *check(const qn_tree *t, census *c)
{
    const char *wrong = check_nodes(t, c);
    if (!wrong) wrong = check_lists(t, c);
    for (int g = 0; g < t->spec.n_groups && !wrong; g++) wrong = check_holds(t->spec.pages[g], c->holds[g]);
    if (t->spec.slots && !wrong) wrong = check_holds(t->spec.slots, c->slot_holds);
    return wrong;
}

const char *qn_tree_check(qn_tree *t)
{
    census c = {0};
    int is_counted = 1;
    for (int g = 0; g < t->spec.n_groups; g++)
        is_counted &=
            (c.holds[g] = qn_calloc((size_t)qn_pages_total(t->spec.pages[g]), sizeof(int32_t))) != NULL;
    if (t->spec.slots)
        is_counted &=
            (c.slot_holds = qn_calloc((size_t)qn_pages_total(t->spec.slots), sizeof(int32_t))) != NULL;
    pthread_mutex_lock(&t->lock);
    const char *wrong = is_counted ? check(t, &c) : "there is no memory for the check";
    pthread_mutex_unlock(&t->lock);
    for (int g = 0; g < t->spec.n_groups; g++) qn_free(c.holds[g]);
    qn_free(c.slot_holds);
    return wrong;
}
