/* What stays and what goes: eviction, poison. */
#include <string.h>

#include "base/mem.h"
#include "cache/tree_parts.h"

enum {
    CANDIDATES = 128, /* of the oldest branches, that compete */
    ALL_GROUPS = -1,
    SLOTS = -2 /* snapshots alone */
};

/* How much an eviction is to free: bytes of all pools, or pages of one group. */
typedef struct {
    int group;
    size_t size_bytes;
    int64_t n;
} wish;

static int is_enough(const qn_tree *t, const wish *w)
{
    return w->group == ALL_GROUPS ? t->freed_bytes >= w->size_bytes : t->freed[w->group] >= w->n;
}

static void begin_eviction(qn_tree *t)
{
    t->n_evictions++;
    qn_tree_expire(t);
    t->freed_bytes = t->given_bytes = 0;
    memset(t->freed, 0, sizeof t->freed);
    t->freed_slots = 0;
}

static void end_eviction(qn_tree *t)
{
    t->counters.evicted_bytes += t->freed_bytes;
}

/* Tokens [begin, n->end) are about to go. */
static void remember(qn_tree *t, const qn_tree_node *n, int64_t begin)
{
    t->gone[t->n_gone % QN_TREE_REMEMBERED] = (qn_tree_gone){n->hash, begin, n->end, t->n_gone};
    t->n_gone++;
    t->counters.evicted_tokens += n->end - begin;
}

static void evict(qn_tree *t, qn_tree_node *n)
{
    remember(t, n, n->begin);
    t->counters.evicted_nodes++;
    qn_tree_drop(t, n);
}

/* ---- choosing ----------------------------------------------------------------------------------------- */

/* Can it go page by page, from the end? Where all pages are there, those before stay of use; from a snapshot
 * nobody can go back. */
static int is_divisible(const qn_tree *t, const qn_tree_node *n)
{
    int all = !t->spec.slots;
    for (int g = 0; g < t->spec.n_groups; g++) all &= !n->missing[g];
    return all;
}

/* Tokens that would have to be computed again if the branch's end went. */
static int64_t tokens_lost(const qn_tree *t, const qn_tree_node *n)
{
    const qn_tree_node *from = n->parent;
    for (int g = 0; g < t->spec.n_groups; g++)
        if (n->missing[g] == n->n_pages) return 0; /* nobody can go on from here */
    if (!t->spec.slots) return n->end - n->begin;
    if (n->slot < 0) return 0;
    while (from->parent && from->slot < 0) from = from->parent;
    return n->end - from->end;
}

/* Time to compute it again / bytes / age: the least goes first. Of a divisible end that is said of its last
 * page, which may hold a token only. */
static double worth(const qn_tree *t, const qn_tree_node *n)
{
    const int is_page = is_divisible(t, n);
    int64_t tokens = is_page ? (n->end - 1) % QN_PAGE_TOKENS + 1 : tokens_lost(t, n);
    double bytes = is_page ? 0 : (double)n->own_bytes,
           cost = (double)tokens * (double)(n->cost_ns > 0 ? n->cost_ns : 1);
    for (int g = 0; g < t->spec.n_groups; g++)
        bytes += (double)(is_page ? 1 : n->n_pages - n->missing[g]) * (double)t->unit_bytes[g];
    if (n->slot >= 0) bytes += (double)qn_pages_unit_bytes(t->spec.slots);
    return cost / bytes / (double)(t->clock - n->used + 1);
}

static int64_t count_unused(const qn_tree *t, const qn_tree_node *n, int group)
{
    int64_t count = 0;
    for (int g = 0; g < t->spec.n_groups; g++)
        if (group == ALL_GROUPS || group == g)
            count += qn_pages_count_unused(t->spec.pages[g], qn_tree_pages(n, g), n->n_pages);
    if ((group == ALL_GROUPS || group == SLOTS) && n->slot >= 0)
        count += qn_pages_count_unused(t->spec.slots, &n->slot, 1);
    return count;
}

/* Would anything become free, now or when nodes before it go that nothing else goes on from? */
static int is_worthwhile(const qn_tree *t, const qn_tree_node *n, int group)
{
    for (; n->parent && !qn_tree_is_kept(n) && (!n->child || !n->child->next); n = n->parent)
        if (count_unused(t, n, group)) return 1;
    return 0;
}

/* NULL: none that would help. Those whose own pages are in use come last: they are rather extended soon. */
static qn_tree_node *choose(qn_tree *t, int group)
{
    qn_tree_node *best = NULL, *last = NULL;
    double least = 0;
    int n = 0;
    for (qn_tree_node *x = t->oldest; x && n < CANDIDATES; x = x->newer) {
        if (x->passed == t->n_evictions) continue;
        n++;
        double score = worth(t, x);
        if (best && score >= least) continue;
        if (!count_unused(t, x, group)) {
            if (is_worthwhile(t, x, group)) {
                if (!last) last = x;
            } else {
                x->passed = t->n_evictions;
            }
            continue;
        }
        best = x;
        least = score;
    }
    return best ? best : last;
}

/* Would a branch that ends with the pin free anything, alone or with nodes before it that nothing else keeps? */
static int would_help(const qn_tree *t, const qn_tree_timed *pin, int group)
{
    const qn_tree_node *n = pin->node;
    if (n->n_pins) return 0;
    do {
        if (count_unused(t, n, group)) return 1;
        n = n->parent;
    } while (n->parent && !qn_tree_is_kept(n) && !n->child->next);
    return 0;
}

/* The oldest pin of those that have a time and would help gives way. Returns 0 if there is none. */
static int give_up_pin(qn_tree *t, int group)
{
    for (qn_tree_timed *pin = t->oldest_timed; pin; pin = pin->newer) {
        if (!would_help(t, pin, group)) continue;
        qn_tree_remove_timed(t, pin->node);
        t->counters.given_up_pins++;
        return 1;
    }
    return 0;
}

/* ---- evicting ----------------------------------------------------------------------------------------- */

/* Drops no more of the branch's end than is asked for, if it can be divided: a last page that is not full
 * first, for then others may be worth less. */
static void evict_end(qn_tree *t, qn_tree_node *n, const wish *w)
{
    size_t bytes = t->freed_bytes;
    int64_t units = w->group == ALL_GROUPS ? 0 : t->freed[w->group], from = n->n_pages;
    while (is_divisible(t, n) && --from > 0) {
        for (int g = 0; g < t->spec.n_groups; g++) {
            int64_t count = qn_pages_count_unused(t->spec.pages[g], qn_tree_pages(n, g) + from, 1);
            bytes += (size_t)count * t->unit_bytes[g];
            if (g == w->group) units += count;
        }
        if (n->end % QN_PAGE_TOKENS || (w->group == ALL_GROUPS ? bytes >= w->size_bytes : units >= w->n)) {
            remember(t, n, (n->first_page + from) * QN_PAGE_TOKENS);
            qn_tree_cut(t, n, from);
            return;
        }
    }
    evict(t, n);
}

/* Pages of windows that no end of a branch needs, nor a place where branches part, nor a pin or a snapshot,
 * go first: who goes on from those places does not see them. */
static void thin_branch(qn_tree *t, qn_tree_node *leaf, const wish *w)
{
    int64_t end = leaf->end;
    for (qn_tree_node *n = leaf; n->parent; n = n->parent) {
        if (n != leaf && (n->child->next || qn_tree_is_kept(n) || n->slot >= 0)) end = n->end;
        int is_bare = n->filler != 0;
        for (int g = 0; g < t->spec.n_groups; g++) {
            if (!t->spec.window[g]) continue;
            int64_t need = qn_tree_first_seen(t, g, end) / QN_PAGE_TOKENS - n->first_page;
            while ((w->group == ALL_GROUPS || w->group == g) && n->missing[g] < n->n_pages &&
                   n->missing[g] < need && !is_enough(t, w) &&
                   qn_pages_count_unused(t->spec.pages[g], qn_tree_pages(n, g) + n->missing[g], 1))
                qn_tree_drop_first_page(t, n, g);
            is_bare &= n->missing[g] == n->n_pages;
        }
        if (is_bare) n->filler = 0;
        if (is_enough(t, w)) return;
    }
}

static void evict_for(qn_tree *t, const wish *w)
{
    int i = 0, has_windows = 0;
    for (int g = 0; g < t->spec.n_groups; g++)
        has_windows |= t->spec.window[g] && (w->group == ALL_GROUPS || w->group == g);
    for (qn_tree_node *n = t->oldest; has_windows && n && i < CANDIDATES && !is_enough(t, w);
         n = n->newer, i++)
        thin_branch(t, n, w);
    while (!is_enough(t, w)) {
        qn_tree_node *n = choose(t, w->group);
        if (n)
            evict_end(t, n, w);
        else if (!give_up_pin(t, w->group))
            break;
    }
}

/* Snapshots without pins; of the oldest those that are soonest computed again. What nobody can go on from
 * then goes with them. */
static void evict_slots(qn_tree *t, int64_t n_slots)
{
    while (t->freed_slots < n_slots) {
        qn_tree_node *best = NULL;
        double least = 0;
        int n = 0;
        for (qn_tree_node *x = t->oldest_slot; x && n < CANDIDATES; x = x->newer_slot) {
            if (qn_tree_is_kept(x) || !qn_pages_count_unused(t->spec.slots, &x->slot, 1)) continue;
            double score = worth(t, x);
            n++;
            if (best && score >= least) continue;
            best = x;
            least = score;
        }
        if (!best && give_up_pin(t, SLOTS)) continue;
        if (!best) return;
        qn_tree_drop_slot(t, best);
        t->counters.evicted_snapshots++;
        for (qn_tree_node *x = best, *parent; x->is_listed && x->slot < 0; x = parent) {
            int is_top = !x->parent->parent;
            parent = x->parent;
            evict(t, x);
            if (is_top) break;
        }
    }
}

void qn_tree_evict_pages(void *user, qn_pages *p, int64_t n)
{
    qn_tree *t = user;
    pthread_mutex_lock(&t->lock);
    begin_eviction(t);
    if (p == t->spec.slots) {
        evict_slots(t, n);
    } else {
        int group = 0;
        while (t->spec.pages[group] != p) group++;
        evict_for(t, &(wish){.group = group, .n = n});
    }
    end_eviction(t);
    pthread_mutex_unlock(&t->lock);
}

size_t qn_tree_evict(qn_tree *t, size_t size_bytes)
{
    pthread_mutex_lock(&t->lock);
    begin_eviction(t);
    evict_for(t, &(wish){.group = ALL_GROUPS, .size_bytes = size_bytes});
    end_eviction(t);
    size_t freed = t->freed_bytes;
    pthread_mutex_unlock(&t->lock);
    return freed;
}

static size_t reclaim_cached(qn_tree *t, size_t size_bytes)
{
    size_t given = 0;
    for (int g = 0; g < t->spec.n_groups && given < size_bytes; g++)
        given += qn_pages_reclaim(t->spec.pages[g], size_bytes - given);
    if (t->spec.slots && given < size_bytes) given += qn_pages_reclaim(t->spec.slots, size_bytes - given);
    return given;
}

size_t qn_tree_reclaim(qn_tree *t, size_t size_bytes)
{
    size_t given = reclaim_cached(t, size_bytes);
    if (given >= size_bytes) return given;
    pthread_mutex_lock(&t->lock);
    const size_t own_bytes = t->counters.own_bytes;
    begin_eviction(t);
    evict_for(t, &(wish){.group = ALL_GROUPS, .size_bytes = size_bytes - given});
    end_eviction(t);
    given += t->given_bytes + (own_bytes - t->counters.own_bytes);
    pthread_mutex_unlock(&t->lock);
    return given < size_bytes ? given + reclaim_cached(t, size_bytes - given) : given;
}

/* Bytes of the cache above the limits of a ledger. */
static size_t excess(const qn_ledger *ledger)
{
    qn_ledger_figures now = qn_ledger_get(ledger);
    size_t cache = now.held[QN_LEDGER_CACHE], over = cache > now.cache_limit ? cache - now.cache_limit : 0,
           missing = now.limit && now.total > now.limit ? now.total - now.limit : 0;
    return over > missing ? over : missing;
}

void qn_tree_trim(qn_tree *t)
{
    const qn_ledger *ledgers[] = {t->spec.ledger, t->spec.other_ledger};
    for (size_t i = 0, over; i < sizeof ledgers / sizeof *ledgers && ledgers[i]; i++)
        /* What goes may be counted in the other ledger in part: as long as something goes, it is tried again. */
        while ((over = excess(ledgers[i])) && qn_tree_reclaim(t, over) && t->spec.other_ledger) continue;
}

void qn_tree_clear(qn_tree *t)
{
    pthread_mutex_lock(&t->lock);
    begin_eviction(t);
    while (t->oldest_timed) qn_tree_remove_timed(t, t->oldest_timed->node);
    while (t->oldest) evict(t, t->oldest);
    end_eviction(t);
    pthread_mutex_unlock(&t->lock);
}

/* ---- what is not wanted any more ----------------------------------------------------------------------- */

/* Drops the branch from its ends on, but for what is pinned. Returns 1 if nothing of it is left. */
static int drop_unkept(qn_tree *t, qn_tree_node *top)
{
    for (qn_tree_node *x = top, *next; x; x = next) {
        next = qn_tree_after(x, top);
        while (!x->child && !qn_tree_is_kept(x)) {
            qn_tree_node *parent = x->parent;
            const int is_top = x == top;
            evict(t, x);
            if (is_top) return 1;
            x = parent;
        }
    }
    return 0;
}

/* The last node of the way, if no sequence that parts from the n tokens runs through it; else NULL. */
static qn_tree_node *find_own(const qn_tree_way *way, int64_t n)
{
    qn_tree_node *last = way->last;
    if (!last || !last->parent || way->n_known == n) return last;
    return way->n_known == last->end && !last->child ? last : NULL;
}

int64_t qn_tree_forget(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n)
{
    qn_tree_way way;
    pthread_mutex_lock(&t->lock);
    begin_eviction(t);
    qn_tree_find(t, key, ids, n, NULL, &way);
    int64_t left = way.n_known;
    for (qn_tree_node *x = find_own(&way, n), *parent; x && x->parent; x = parent) {
        const int64_t begin = x->begin;
        parent = begin ? x->parent : NULL; /* a root may go with its last child */
        if (!drop_unkept(t, x)) break;
        left = begin;
        if (parent && parent->child) break;
    }
    end_eviction(t);
    pthread_mutex_unlock(&t->lock);
    return way.n_known - left;
}

/* ---- what is not valid any more ----------------------------------------------------------------------- */

void qn_tree_forget_adapter(qn_tree *t, int32_t adapter)
{
    pthread_mutex_lock(&t->lock);
    for (qn_tree_node *n = t->roots, *next; n; n = next) {
        next = n->next;
        if (n->key->adapter == adapter) qn_tree_drop_branch(t, n);
    }
    pthread_mutex_unlock(&t->lock);
}

/* Marks what the branch keeps: of a page that begins before the node only the slots that are its own. */
static void mark_branch(qn_tree *t, qn_tree_node *top)
{
    for (qn_tree_node *n = top; n; n = qn_tree_after(n, top)) {
        for (int g = 0; g < t->spec.n_groups; g++)
            for (int64_t i = n->missing[g]; i < n->n_pages; i++)
                qn_pages_poison(t->spec.pages[g], qn_tree_pages(n, g)[i], i ? 0 : n->begin % QN_PAGE_TOKENS);
        if (n->slot >= 0) qn_pages_poison(t->spec.slots, n->slot, 0);
        t->counters.poisoned_nodes++;
    }
}

static qn_tree_node *find_written(const qn_tree *t, uint64_t writer)
{
    for (qn_tree_node *root = t->roots; root; root = root->next)
        for (qn_tree_node *n = root; n; n = qn_tree_after(n, root))
            if (n->parent && (n->writer == writer || n->filler == writer || n->filler == QN_TREE_SEVERAL ||
                              n->slot_writer == writer))
                return n;
    return NULL;
}

static void poison_branch(qn_tree *t, qn_tree_node *top)
{
    mark_branch(t, top);
    qn_tree_drop_branch(t, top);
}

void qn_tree_poison(qn_tree *t, uint64_t writer)
{
    pthread_mutex_lock(&t->lock);
    for (qn_tree_node *n; writer && (n = find_written(t, writer));) poison_branch(t, n);
    pthread_mutex_unlock(&t->lock);
}

/* What goes on from any node of the way goes on from its first one. */
void qn_tree_poison_path(qn_tree *t, const qn_tree_key *key, const int32_t *ids)
{
    pthread_mutex_lock(&t->lock);
    const qn_tree_content *next = qn_tree_content_from(key, 0);
    qn_tree_node *root = qn_tree_root(t, key), *top = NULL;
    if (root) top = qn_tree_child(t, root, ids[0], next && !next->first ? next : NULL);
    if (top) poison_branch(t, top);
    pthread_mutex_unlock(&t->lock);
}
