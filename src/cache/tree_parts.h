/* What a prefix tree is made of, for the files that make it up: tree.c finds, splits and inserts,
 * tree_evict.c lets go, tree_pins.c keeps, tree_look.c explains, counts and checks. Only they and
 * their tests include this header. All functions here are called with the tree's lock held. */
#ifndef QN_CACHE_TREE_PARTS_H
#define QN_CACHE_TREE_PARTS_H

#include <pthread.h>

#include "base/map.h"
#include "cache/tree.h"

typedef struct qn_tree_node qn_tree_node;

/* A filler: more than one added pages, and the node goes with any writer. */
#define QN_TREE_SEVERAL UINT64_MAX

struct qn_tree_node {
    qn_tree_node *parent;                  /* NULL: a root, which stands for a key and no tokens */
    qn_tree_node *child, *next, *before;   /* children, the one used last first; siblings */
    qn_tree_node *in_bucket;               /* the next of the same place of the table */
    qn_tree_node *older, *newer;           /* of those that may be evicted, see qn_tree_list */
    qn_tree_node *older_slot, *newer_slot; /* of those with a snapshot */
    qn_tree_key *key;                      /* of a root, with its salt behind it */
    int64_t begin, end;
    int has_content, is_behind_content;         /* one begins here, or before its begin on the way */
    unsigned char digest[QN_TREE_DIGEST_BYTES]; /* of the content that begins here */
    int32_t *ids;                               /* [end - begin] */
    int32_t *pages;                             /* [n_groups, n_pages]; -1: not there */
    int64_t first_page, n_pages;                /* indices in the sequence */
    int64_t
        missing[QN_TREE_GROUPS_MAX]; /* the first so many pages of a group are not there, all others are */
    int32_t slot;                    /* -1: none */
    int n_pins;                      /* by name */
    struct qn_tree_timed *timed;     /* NULL: none */
    int is_listed;
    uint64_t number; /* never given twice: part of its children's place in the table */
    uint64_t hash;   /* of the key and all tokens up to end */
    uint64_t writer, filler,
        slot_writer; /* of its tokens, of window pages that it lacked, of its snapshot; 0: nobody */
    uint64_t used;   /* the tree's clock when it was last */
    uint64_t passed; /* the eviction that passed it over */
    int64_t cost_ns;
    size_t own_bytes; /* in the ledger */
};

typedef struct qn_tree_held {
    struct qn_tree_held *next;
    qn_tree_node *node;
    char *name;
} qn_tree_held;

/* A pin that gives way: when its time is over, or when memory is needed. At most one a node. */
typedef struct qn_tree_timed {
    struct qn_tree_timed *older, *newer; /* by when they were set last */
    qn_tree_node *node;
    int64_t until_ns;
} qn_tree_timed;

typedef struct {
    uint64_t hash;
    int64_t begin, end, number;
} qn_tree_gone;

struct qn_tree {
    pthread_mutex_t lock;
    qn_tree_spec spec;
    size_t unit_bytes[QN_TREE_GROUPS_MAX];
    qn_tree_node *roots;    /* siblings */
    qn_tree_node **buckets; /* [n_buckets], a power of two */
    size_t n_buckets, n_in_buckets;
    uint64_t seed, clock, n_numbers, n_evictions;
    qn_tree_node *oldest, *newest; /* without children and pins: may be evicted */
    qn_tree_node *oldest_slot, *newest_slot;
    qn_tree_held *pins;
    qn_tree_timed *oldest_timed, *newest_timed;
    int64_t first_until_ns;                /* none of these ends before */
    qn_tree_gone gone[QN_TREE_REMEMBERED]; /* [number % QN_TREE_REMEMBERED] */
    int64_t n_gone;
    qn_tree_counters counters;
    size_t added_bytes; /* own bytes that were added, by the insertion that runs */
    /* of the eviction that runs */
    size_t freed_bytes, given_bytes; /* of pages that are free now; of those whose memory went back already */
    int64_t freed[QN_TREE_GROUPS_MAX], freed_slots;
};

/* How far a run of tokens is known and usable. */
typedef struct {
    qn_tree_node *root; /* NULL: the key is not known */
    qn_tree_node *last; /* the deepest node on the way; the root: no token is known */
    int64_t n_known;
    qn_tree_node *usable; /* where the usable tokens end, at or inside it; NULL: none are */
    int64_t n_usable;
    int lacks_snapshot; /* only for want of a snapshot no more is usable */
} qn_tree_way;

static inline int64_t qn_tree_pages_of(int64_t n_tokens)
{
    return (n_tokens + QN_PAGE_TOKENS - 1) / QN_PAGE_TOKENS;
}

/* The first position that a sequence of n tokens still needs: what its next row sees. */
static inline int64_t qn_tree_first_seen(const qn_tree *t, int group, int64_t n)
{
    int64_t window = t->spec.window[group];
    return window && n - window + 1 > 0 ? n - window + 1 : 0;
}

/* Is it pinned in either way? */
static inline int qn_tree_is_kept(const qn_tree_node *n)
{
    return n->n_pins || n->timed;
}

/* The first content that begins at this token or behind it; NULL: none does. */
static inline const qn_tree_content *qn_tree_content_from(const qn_tree_key *key, int64_t at)
{
    int64_t low = 0, high = key->n_contents;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (key->contents[middle].first < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < key->n_contents ? &key->contents[low] : NULL;
}

static inline uint64_t qn_tree_hash_on(uint64_t hash, int32_t id)
{
    hash = (hash + (uint32_t)id + 1) * 0xd6e8feb86659fd93u;
    return hash ^ hash >> 32;
}

/* digest NULL: no content begins there. */
static inline uint64_t qn_tree_hash_content(uint64_t hash, const unsigned char *digest)
{
    return digest ? qn_hash_bytes(digest, QN_TREE_DIGEST_BYTES, hash) : hash;
}

/* tree.c */

/* tables NULL: they limit nothing. */
void qn_tree_find(const qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n_max,
                  const qn_block_table *tables, qn_tree_way *way);

/* tree_node.c */

uint64_t qn_tree_key_hash(const qn_tree *t, const qn_tree_key *key);
/* NULL: there is none. */
qn_tree_node *qn_tree_root(const qn_tree *t, const qn_tree_key *key);
/* content: what begins with it; NULL: nothing does. */
qn_tree_node *qn_tree_child(const qn_tree *t, const qn_tree_node *parent, int32_t id,
                            const qn_tree_content *content);
/* The node after n in an order that has parents before children, within the branch of top; NULL: n was the
 * last. */
qn_tree_node *qn_tree_after(const qn_tree_node *n, const qn_tree_node *top);
/* The node leaves the list of those that may be evicted, or joins it, as its age, children and pins have it.
 */
void qn_tree_list(qn_tree *t, qn_tree_node *n);
/* It, and all that it goes on from, was used now. */
void qn_tree_touch(qn_tree *t, qn_tree_node *n);
/* Bytes of a node, at most. */
size_t qn_tree_node_bytes(const qn_tree *t, int64_t n_tokens);
/* NULL, here and below: out of memory, nothing changed. */
qn_tree_node *qn_tree_new_root(qn_tree *t, const qn_tree_key *key);
/* For tokens [parent->end, end), without pages yet. ids: of these tokens. content: as for qn_tree_child. */
qn_tree_node *qn_tree_new_leaf(qn_tree *t, qn_tree_node *parent, int64_t end, const int32_t *ids,
                               const qn_tree_content *content);
/* A new node above n takes its tokens below position `at`; n keeps the rest, with pins, snapshot and
 * children. */
qn_tree_node *qn_tree_split(qn_tree *t, qn_tree_node *n, int64_t at);
/* [n_pages] of one group. */
int32_t *qn_tree_pages(const qn_tree_node *n, int group);
/* Entry i, the last that is missing, is this page from now on. */
void qn_tree_add_page(qn_tree *t, qn_tree_node *n, int group, int64_t i, int32_t id);
/* The first page of a group that the node still has goes. */
void qn_tree_drop_first_page(qn_tree *t, qn_tree_node *n, int group);
void qn_tree_take_slot(qn_tree *t, qn_tree_node *n, int32_t slot, uint64_t writer);
void qn_tree_drop_slot(qn_tree *t, qn_tree_node *n);
/* Drops pages [from, n_pages) of the node, which has no children and no snapshot, and the tokens on them.
 * from > 0. */
void qn_tree_cut(qn_tree *t, qn_tree_node *n, int64_t from);
/* *at: a pin, in the list of pins. */
void qn_tree_remove_pin(qn_tree *t, qn_tree_held **at);
/* Drops the node, which has no children, with its pins; its root, too, when it was the last there. */
void qn_tree_drop(qn_tree *t, qn_tree_node *n);
/* Drops it with all that goes on from it. */
void qn_tree_drop_branch(qn_tree *t, qn_tree_node *n);

/* tree_pins.c */

/* The node's pin with a time, if it has one. */
void qn_tree_remove_timed(qn_tree *t, qn_tree_node *n);
/* Those whose time is over. */
void qn_tree_expire(qn_tree *t);

/* tree_evict.c: as the pools ask. */
void qn_tree_evict_pages(void *user, qn_pages *p, int64_t n);

#endif
