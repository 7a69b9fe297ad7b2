/* Nodes: where they are found, the lists they are in, their parts of pages. */
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "cache/tree_parts.h"

/* ---- keys and children -------------------------------------------------------------------------------- */

uint64_t qn_tree_key_hash(const qn_tree *t, const qn_tree_key *key)
{
    uint64_t hash = qn_tree_hash_on(qn_tree_hash_on(t->seed, key->adapter), key->is_long);
    return qn_hash_bytes(key->salt, key->salt_bytes, hash);
}

static qn_tree_node **bucket(const qn_tree *t, uint64_t hash)
{
    return &t->buckets[hash & (t->n_buckets - 1)];
}

/* digest: of the content that begins there; NULL: none does. */
static uint64_t place(const qn_tree *t, const qn_tree_node *parent, int32_t id, const unsigned char *digest)
{
    const uint64_t seed = t->seed ^ parent->number;
    return qn_random_bits(digest ? qn_hash_bytes(digest, QN_TREE_DIGEST_BYTES, seed) : seed, (uint32_t)id);
}

static const unsigned char *digest_of(const qn_tree_node *n)
{
    return n->has_content ? n->digest : NULL;
}

/* Of a root by its key, of others by their parent, content and first token. */
static qn_tree_node **bucket_of(const qn_tree *t, const qn_tree_node *n)
{
    return bucket(t, n->parent ? place(t, n->parent, n->ids[0], digest_of(n)) : n->hash);
}

static int is_key(const qn_tree_key *a, const qn_tree_key *b)
{
    return a->adapter == b->adapter && a->is_long == b->is_long && a->salt_bytes == b->salt_bytes &&
           (!a->salt_bytes || !memcmp(a->salt, b->salt, a->salt_bytes));
}

qn_tree_node *qn_tree_root(const qn_tree *t, const qn_tree_key *key)
{
    qn_tree_node *n = *bucket(t, qn_tree_key_hash(t, key));
    while (n && (n->parent || !is_key(n->key, key))) n = n->in_bucket;
    return n;
}

static int has_digest(const qn_tree_node *n, const unsigned char *digest)
{
    if (!n->has_content || !digest) return !n->has_content == !digest;
    return memcmp(n->digest, digest, QN_TREE_DIGEST_BYTES) == 0;
}

qn_tree_node *qn_tree_child(const qn_tree *t, const qn_tree_node *parent, int32_t id,
                            const qn_tree_content *content)
{
    const unsigned char *digest = content ? content->digest : NULL;
    qn_tree_node *n = *bucket(t, place(t, parent, id, digest));
    while (n && (n->parent != parent || n->ids[0] != id || !has_digest(n, digest))) n = n->in_bucket;
    return n;
}

/* Twice the buckets, if memory allows: else the chains just get longer. */
static void grow(qn_tree *t)
{
    size_t n_old = t->n_buckets;
    qn_tree_node **old = t->buckets, **buckets = qn_calloc(2 * n_old, sizeof *buckets);
    if (!buckets) return;
    t->buckets = buckets;
    t->n_buckets = 2 * n_old;
    for (size_t i = 0; i < n_old; i++)
        for (qn_tree_node *n = old[i], *next; n; n = next) {
            qn_tree_node **at = bucket_of(t, n);
            next = n->in_bucket;
            n->in_bucket = *at;
            *at = n;
        }
    qn_free(old);
}

static void put_in_bucket(qn_tree *t, qn_tree_node *n)
{
    if (t->n_in_buckets++ >= t->n_buckets) grow(t);
    qn_tree_node **at = bucket_of(t, n);
    n->in_bucket = *at;
    *at = n;
}

static void take_from_bucket(qn_tree *t, qn_tree_node *n)
{
    qn_tree_node **at = bucket_of(t, n);
    while (*at != n) at = &(*at)->in_bucket;
    *at = n->in_bucket;
    t->n_in_buckets--;
}

/* ---- order among others ------------------------------------------------------------------------------- */

static qn_tree_node **siblings(qn_tree *t, const qn_tree_node *n)
{
    return n->parent ? &n->parent->child : &t->roots;
}

static void join_siblings(qn_tree *t, qn_tree_node *n)
{
    qn_tree_node **first = siblings(t, n);
    n->before = NULL;
    n->next = *first;
    if (n->next) n->next->before = n;
    *first = n;
}

static void leave_siblings(qn_tree *t, qn_tree_node *n)
{
    *(n->before ? &n->before->next : siblings(t, n)) = n->next;
    if (n->next) n->next->before = n->before;
}

qn_tree_node *qn_tree_after(const qn_tree_node *n, const qn_tree_node *top)
{
    if (n->child) return n->child;
    while (n != top && !n->next) n = n->parent;
    return n == top ? NULL : n->next;
}

static void unlist(qn_tree *t, qn_tree_node *n)
{
    *(n->older ? &n->older->newer : &t->oldest) = n->newer;
    *(n->newer ? &n->newer->older : &t->newest) = n->older;
    n->is_listed = 0;
}

/* Who just lost its children is likely to be old: a few steps from that end are enough. */
void qn_tree_list(qn_tree *t, qn_tree_node *n)
{
    enum { STEPS = 64 };
    if (n->is_listed) unlist(t, n);
    if (!n->parent || n->child || qn_tree_is_kept(n)) return;
    qn_tree_node *older = t->newest;
    if (older && older->used > n->used) {
        qn_tree_node *newer = t->oldest;
        for (int i = 0; i < STEPS && newer->used <= n->used; i++) newer = newer->newer;
        older = newer->older;
    }
    n->older = older;
    n->newer = older ? older->newer : t->oldest;
    *(n->older ? &n->older->newer : &t->oldest) = n;
    *(n->newer ? &n->newer->older : &t->newest) = n;
    n->is_listed = 1;
}

static void join_slots(qn_tree *t, qn_tree_node *n)
{
    n->older_slot = t->newest_slot;
    n->newer_slot = NULL;
    *(n->older_slot ? &n->older_slot->newer_slot : &t->oldest_slot) = n;
    t->newest_slot = n;
}

static void leave_slots(qn_tree *t, qn_tree_node *n)
{
    *(n->older_slot ? &n->older_slot->newer_slot : &t->oldest_slot) = n->newer_slot;
    *(n->newer_slot ? &n->newer_slot->older_slot : &t->newest_slot) = n->older_slot;
}

void qn_tree_touch(qn_tree *t, qn_tree_node *n)
{
    t->clock++;
    if (n->slot >= 0) {
        leave_slots(t, n);
        join_slots(t, n);
    }
    for (; n; n = n->parent) {
        n->used = t->clock;
        if (n->is_listed) qn_tree_list(t, n);
        leave_siblings(t, n);
        join_siblings(t, n);
    }
}

/* ---- making and splitting ----------------------------------------------------------------------------- */

static void count_own(qn_tree *t, qn_tree_node *n, size_t size_bytes)
{
    n->own_bytes += size_bytes;
    t->counters.own_bytes += size_bytes;
    t->added_bytes += size_bytes;
}

static void uncount_own(qn_tree *t, qn_tree_node *n, size_t size_bytes)
{
    n->own_bytes -= size_bytes;
    t->counters.own_bytes -= size_bytes;
    qn_ledger_release(t->spec.ledger, QN_LEDGER_CACHE, size_bytes);
}

size_t qn_tree_node_bytes(const qn_tree *t, int64_t n_tokens)
{
    return sizeof(qn_tree_node) + (size_t)n_tokens * sizeof(int32_t) +
           (size_t)(qn_tree_pages_of(n_tokens) + 1) * (size_t)t->spec.n_groups * sizeof(int32_t);
}

static void free_node(qn_tree_node *n)
{
    qn_free(n->ids);
    qn_free(n->pages);
    qn_free(n->key);
    qn_free(n);
}

/* With room for tokens and their pages, counted, and in no list yet. */
static qn_tree_node *new_node(qn_tree *t, qn_tree_node *parent, int64_t begin, int64_t end)
{
    qn_tree_node *n = qn_calloc(1, sizeof *n);
    if (!n) return NULL;
    n->parent = parent;
    n->begin = begin;
    n->end = end;
    n->first_page = begin / QN_PAGE_TOKENS;
    n->n_pages = qn_tree_pages_of(end) - n->first_page;
    n->slot = -1;
    n->number = t->n_numbers++;
    n->used = t->clock;
    n->ids = qn_alloc_array((size_t)(end - begin), sizeof *n->ids);
    n->pages = qn_alloc_array((size_t)n->n_pages * (size_t)t->spec.n_groups, sizeof *n->pages);
    if (!n->ids || !n->pages) {
        free_node(n);
        return NULL;
    }
    return n;
}

static void join(qn_tree *t, qn_tree_node *n)
{
    size_t n_ids = (size_t)(n->end - n->begin), n_pages = (size_t)n->n_pages * (size_t)t->spec.n_groups;
    count_own(t, n, sizeof *n + (n_ids + n_pages) * sizeof(int32_t));
    put_in_bucket(t, n);
    join_siblings(t, n);
}

static void put_content(qn_tree_node *n, const unsigned char *digest)
{
    n->has_content = digest != NULL;
    n->is_behind_content = n->has_content || n->parent->is_behind_content;
    if (digest) memcpy(n->digest, digest, QN_TREE_DIGEST_BYTES);
}

static void hash_ids(qn_tree_node *n)
{
    n->hash = qn_tree_hash_content(n->parent->hash, digest_of(n));
    for (int64_t i = 0; i < n->end - n->begin; i++) n->hash = qn_tree_hash_on(n->hash, n->ids[i]);
}

qn_tree_node *qn_tree_new_root(qn_tree *t, const qn_tree_key *key)
{
    qn_tree_node *n = new_node(t, NULL, 0, 0);
    if (!n) return NULL;
    n->key = qn_alloc(sizeof *n->key + key->salt_bytes);
    if (!n->key) {
        free_node(n);
        return NULL;
    }
    *n->key = *key;
    n->key->contents = NULL;
    n->key->n_contents = 0;
    n->key->salt = n->key + 1;
    if (key->salt_bytes) memcpy(n->key + 1, key->salt, key->salt_bytes);
    n->hash = qn_tree_key_hash(t, key);
    join(t, n);
    count_own(t, n, sizeof *n->key + key->salt_bytes);
    return n;
}

qn_tree_node *qn_tree_new_leaf(qn_tree *t, qn_tree_node *parent, int64_t end, const int32_t *ids,
                               const qn_tree_content *content)
{
    qn_tree_node *n = new_node(t, parent, parent->end, end);
    if (!n) return NULL;
    put_content(n, content ? content->digest : NULL);
    memcpy(n->ids, ids, (size_t)(end - n->begin) * sizeof *ids);
    memset(n->pages, 0xff, (size_t)n->n_pages * (size_t)t->spec.n_groups * sizeof *n->pages);
    for (int g = 0; g < t->spec.n_groups; g++) n->missing[g] = n->n_pages;
    hash_ids(n);
    join(t, n);
    qn_tree_list(t, parent);
    qn_tree_list(t, n);
    t->counters.nodes++;
    t->counters.tokens += end - n->begin;
    return n;
}

int32_t *qn_tree_pages(const qn_tree_node *n, int group)
{
    return n->pages + group * n->n_pages;
}

/* The node loses all but n_tokens and n_pages that lie from these on, and the memory for the rest, which is
 * counted as gone even if the allocator should hold on to it. */
static void shrink(qn_tree *t, qn_tree_node *n, int64_t first_token, int64_t n_tokens, int64_t first_page,
                   int64_t n_pages)
{
    const int n_groups = t->spec.n_groups;
    const int64_t n_gone = n->end - n->begin - n_tokens + (n->n_pages - n_pages) * n_groups;
    memmove(n->ids, n->ids + first_token, (size_t)n_tokens * sizeof *n->ids);
    for (int g = 0; g < n_groups; g++)
        memmove(n->pages + g * n_pages, qn_tree_pages(n, g) + first_page, (size_t)n_pages * sizeof *n->pages);
    int32_t *ids = qn_realloc(n->ids, (size_t)n_tokens * sizeof *n->ids);
    int32_t *pages = qn_realloc(n->pages, (size_t)(n_pages * n_groups) * sizeof *n->pages);
    if (ids) n->ids = ids;
    if (pages) n->pages = pages;
    n->n_pages = n_pages;
    uncount_own(t, n, (size_t)n_gone * sizeof(int32_t));
}

qn_tree_node *qn_tree_split(qn_tree *t, qn_tree_node *n, int64_t at)
{
    qn_tree_node *head = new_node(t, n->parent, n->begin, at);
    if (!head) return NULL;
    const int64_t n_ids = at - n->begin, shift = at / QN_PAGE_TOKENS - n->first_page;
    memcpy(head->ids, n->ids, (size_t)n_ids * sizeof *head->ids);
    for (int g = 0; g < t->spec.n_groups; g++) {
        const int32_t *pages = qn_tree_pages(n, g);
        memcpy(qn_tree_pages(head, g), pages, (size_t)head->n_pages * sizeof *pages);
        head->missing[g] = n->missing[g] < head->n_pages ? n->missing[g] : head->n_pages;
        if (shift < head->n_pages && pages[shift] >= 0) { /* the cut is inside of a page: both keep it */
            qn_pages_keep(t->spec.pages[g], pages[shift]);
            t->counters.pages++;
        }
        n->missing[g] = n->missing[g] > shift ? n->missing[g] - shift : 0;
    }
    head->used = n->used;
    head->writer = n->writer;
    head->filler = n->filler;
    head->cost_ns = n->cost_ns;
    put_content(head, digest_of(n));
    hash_ids(head);
    take_from_bucket(t, n);
    leave_siblings(t, n);
    join(t, head);
    n->has_content = 0;
    shrink(t, n, n_ids, n->end - at, shift, n->n_pages - shift);
    n->parent = head;
    n->begin = at;
    n->first_page += shift;
    put_in_bucket(t, n);
    join_siblings(t, n);
    t->counters.nodes++;
    t->counters.splits++;
    return head;
}

/* ---- pages and snapshots ------------------------------------------------------------------------------ */

void qn_tree_add_page(qn_tree *t, qn_tree_node *n, int group, int64_t i, int32_t id)
{
    qn_pages_keep(t->spec.pages[group], id);
    qn_tree_pages(n, group)[i] = id;
    n->missing[group] = i;
    t->counters.pages++;
}

static size_t unkeep(qn_tree *t, qn_pages *p, int32_t id)
{
    size_t unit_bytes = qn_pages_unit_bytes(p);
    qn_pages_rest rest = qn_pages_unkeep(p, id);
    if (rest == QN_PAGES_HELD) return 0;
    t->freed_bytes += unit_bytes;
    if (rest == QN_PAGES_FREED) t->given_bytes += unit_bytes;
    return unit_bytes;
}

static void drop_page(qn_tree *t, qn_tree_node *n, int group, int64_t i)
{
    t->counters.pages--;
    if (unkeep(t, t->spec.pages[group], qn_tree_pages(n, group)[i])) t->freed[group]++;
    qn_tree_pages(n, group)[i] = -1;
}

void qn_tree_drop_first_page(qn_tree *t, qn_tree_node *n, int group)
{
    drop_page(t, n, group, n->missing[group]++);
}

void qn_tree_take_slot(qn_tree *t, qn_tree_node *n, int32_t slot, uint64_t writer)
{
    qn_pages_keep(t->spec.slots, slot);
    n->slot = slot;
    n->slot_writer = writer;
    join_slots(t, n);
    t->counters.snapshots++;
}

void qn_tree_drop_slot(qn_tree *t, qn_tree_node *n)
{
    if (unkeep(t, t->spec.slots, n->slot)) t->freed_slots++;
    n->slot = -1;
    n->slot_writer = 0;
    leave_slots(t, n);
    t->counters.snapshots--;
}

void qn_tree_cut(qn_tree *t, qn_tree_node *n, int64_t from)
{
    const int64_t end = (n->first_page + from) * QN_PAGE_TOKENS;
    for (int g = 0; g < t->spec.n_groups; g++) {
        for (int64_t i = from > n->missing[g] ? from : n->missing[g]; i < n->n_pages; i++)
            drop_page(t, n, g, i);
        if (n->missing[g] > from) n->missing[g] = from;
    }
    t->counters.tokens -= n->end - end;
    shrink(t, n, 0, end - n->begin, 0, from);
    n->end = end;
    hash_ids(n);
}

/* ---- going -------------------------------------------------------------------------------------------- */

void qn_tree_remove_pin(qn_tree *t, qn_tree_held **at)
{
    qn_tree_held *pin = *at;
    *at = pin->next;
    pin->node->n_pins--;
    t->counters.pins--;
    qn_free(pin->name);
    qn_free(pin);
}

static void remove_pins(qn_tree *t, const qn_tree_node *n)
{
    for (qn_tree_held **at = &t->pins; *at;) {
        qn_tree_held *pin = *at;
        if (pin->node == n)
            qn_tree_remove_pin(t, at);
        else
            at = &pin->next;
    }
}

void qn_tree_drop(qn_tree *t, qn_tree_node *n)
{
    while (n && !n->child) {
        qn_tree_node *parent = n->parent;
        if (n->n_pins) remove_pins(t, n);
        qn_tree_remove_timed(t, n);
        for (int g = 0; parent && g < t->spec.n_groups; g++)
            for (int64_t i = n->missing[g]; i < n->n_pages; i++) drop_page(t, n, g, i);
        if (n->slot >= 0) qn_tree_drop_slot(t, n);
        if (n->is_listed) unlist(t, n);
        take_from_bucket(t, n);
        leave_siblings(t, n);
        if (parent) {
            t->counters.nodes--;
            t->counters.tokens -= n->end - n->begin;
            qn_tree_list(t, parent);
        }
        uncount_own(t, n, n->own_bytes);
        free_node(n);
        if (!parent || parent->parent) break;
        n = parent; /* a root, which goes if it has no other children */
    }
}

void qn_tree_drop_branch(qn_tree *t, qn_tree_node *n)
{
    for (;;) {
        qn_tree_node *leaf = n;
        while (leaf->child) leaf = leaf->child;
        int is_last =
            leaf == n || (!n->parent && leaf->parent == n && !leaf->next); /* roots follow the last */
        qn_tree_drop(t, leaf);
        if (is_last) return;
    }
}
