/* The prefix tree: which tokens' keys and values are there already, so that nobody computes them again.
 *
 * A radix tree over token ids, one for each key (adapter, frequencies, salt: what else decides the contents).
 * A node stands for tokens [begin, end) of the sequences that run through it, and keeps, for each group of
 * layers, the pages that hold them:
 *
 *     key -- [0, 40) --+-- [40, 70) -- [70, 96)      pages of [0, 40):   p0 p1
 *                      +-- [40, 52)                  pages of [40, 70):  q1 q2  (q1 is p1, or a copy of
 *                                                    pages of [70, 96):  q2      p1's slots 0 to 7)
 *
 * Nothing is copied to be kept: the pages are the sequence's own, and who goes on from the middle of one
 * copies it (cache/pages.h). Of pages of the same index the deepest node's on the way is the one to read, for
 * its writer had, or had copied, what is before. In groups with a window a node may lack pages that nobody is
 * likely to need; the prefix is then usable only as far as all pages are there that the next row sees.
 * Recurrent models go on only from a snapshot of their state, which a node may own for exactly its end.
 *
 * A content (a picture) begins with a node, which has its digest. So siblings may begin with the same token: a node is
 * found by its parent, its first token and its content.
 *
 * What is kept gives way: pages that only the tree holds are the ledger's entry cache, and so is the tree's
 * own memory. First go pages of windows that no end of a branch needs, then the ends of branches, by the time
 * to compute them again / their bytes / their age; pinned ones stay. Pins with a time go when nothing else can.
 *
 * Any thread: the tree has a lock of its own, held for work in proportion to one prefix or one page of
 * candidates. Order of locks: the tree's, the pools', the ledger's; the tree reserves nothing of either under
 * its own, so the ledger and the pools may ask it to evict from any thread that does not hold it. A visitor
 * of qn_tree_walk does. */
#ifndef QN_CACHE_TREE_H
#define QN_CACHE_TREE_H

#include "cache/pages.h"

typedef struct qn_tree qn_tree;

enum {
    QN_TREE_GROUPS_MAX = 8,
    QN_TREE_CONTEXT = 8,      /* tokens that an explanation shows on either side */
    QN_TREE_TIMED_MAX = 1024, /* pins with a time */
    QN_TREE_REMEMBERED = 64   /* branches that are known of after they went */
};

typedef struct {
    qn_ledger *ledger;                   /* of the tree's own memory, and of pages */
    qn_ledger *other_ledger;             /* where parts of pages are counted, too; NULL: nowhere else */
    int n_groups;                        /* 0: recurrent layers alone */
    qn_pages *pages[QN_TREE_GROUPS_MAX]; /* borrowed, as all here; they must outlive the tree */
    int64_t window[QN_TREE_GROUPS_MAX];  /* positions that a row sees, its own among them; 0: all */
    qn_pages *slots;                     /* of snapshots; NULL: no layer is recurrent */
} qn_tree_spec;

/* The tree becomes the one whom the pools ask for pages. */
qn_status qn_tree_new(const qn_tree_spec *spec, qn_tree **out);
/* Lets go of all that it keeps. */
void qn_tree_free(qn_tree *t);

enum { QN_TREE_DIGEST_BYTES = 32 };

/* What stands in a sequence from this token on is not said by its ids alone (a picture's vectors): it is what the
 * digest is of. How far it goes is part of what the digest is of. */
typedef struct {
    int64_t first;
    unsigned char digest[QN_TREE_DIGEST_BYTES]; /* of a hash that has no known collisions */
} qn_tree_content;

/* What decides the contents beside the tokens; compared exactly. */
typedef struct {
    int32_t adapter; /* -1: none */
    int32_t is_long; /* turned by the frequencies of long sequences */
    const void *salt;
    size_t salt_bytes;
    const qn_tree_content
        *contents; /* [n_contents], by `first`; of the sequence, and not kept with the key */
    int64_t n_contents;
} qn_tree_key;

/* The longest usable prefix of ids[0..n_max), *n tokens: the empty tables become as if a sequence had just
 * computed them (pages have one user more each, windows are released below), *slot is the snapshot to copy
 * the state from, with one user more (-1: there are no recurrent layers, or *n is 0). tables: one for each
 * group; they limit what is usable. QN_E_ARG: one was not empty. */
qn_status qn_tree_match(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n_max,
                        qn_block_table *tables, int32_t *slot, int64_t *n);
/* The same without taking anything: how many tokens a match would give. Counts nothing. */
int64_t qn_tree_peek(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n_max);

/* Keeps tokens [0, n) of a sequence that tables holds (who asks for the same tokens again needs all but the
 * last: so the sequence should release no position of a window that its last token still saw); what is there
 * already stays, window pages that it lacks are added. slot: a snapshot of the state at exactly n, with one
 * user, which the tree takes, also on failure; -1: none. writer: who computed them, for qn_tree_poison (0:
 * nobody who may be found wrong); cost_ns: what a token took to compute. QN_E_NOMEM: the memory or the
 * ledger's limit; QN_E_ARG: the tables do not reach n; QN_E_DEVICE: something in them is poisoned. The tree
 * is then as it was. */
qn_status qn_tree_insert(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n,
                         const qn_block_table *tables, int32_t slot, uint64_t writer, int64_t cost_ns);
/* What writer inserted, and all that goes on from it, is gone from the tree, pins too, and its pages are
 * marked (qn_block_table_is_poisoned shows it to those who use them): they are free when the last user
 * leaves. */
void qn_tree_poison(qn_tree *t, uint64_t writer);
/* The same with all that who has these tokens (at least one) may have read, whoever wrote it: the way of them
 * from the root on, and what goes on from it. */
void qn_tree_poison_path(qn_tree *t, const qn_tree_key *key, const int32_t *ids);

/* ---- what stays and what goes ------------------------------------------------------------------------- */

/* Evicts until pages of size_bytes became free, or nothing is left that may go. Returns their bytes. */
size_t qn_tree_evict(qn_tree *t, size_t size_bytes);
/* Gives memory back to the ledger, size_bytes or all there is: the cached pages of all pools first, then by
 * eviction. What the ledger's reclaim should call. Returns the bytes. */
size_t qn_tree_reclaim(qn_tree *t, size_t size_bytes);
/* Gives back what the cache holds above its limit, or all entries above theirs. */
void qn_tree_trim(qn_tree *t);
/* Evicts all that is not pinned by name. */
void qn_tree_clear(qn_tree *t);
/* Drops the way of ids[0..n) and what goes on from it, but for what is pinned and what other branches begin with. Returns
 * how many of the n tokens were there and are gone. */
int64_t qn_tree_forget(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n);
/* The adapter's branches go, pinned ones too: its number may come to mean another. */
void qn_tree_forget_adapter(qn_tree *t, int32_t adapter);

/* Tokens [0, n), which must be usable, are not evicted from now on; a pin of the same name goes. name is
 * copied. QN_E_NOT_FOUND says how many of them are there; QN_E_NOMEM. */
qn_status qn_tree_pin(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n, const char *name);
/* QN_E_NOT_FOUND: no pin has this name (any more). */
qn_status qn_tree_unpin(qn_tree *t, const char *name);
/* Has a pin this name? */
int qn_tree_is_pinned(qn_tree *t, const char *name);

/* The longest usable prefix of ids[0..n) goes after all that is not pinned, for ttl_ns from now on. When nothing else is
 * left to go, such pins give way, those first that were set longest ago; so they never keep anything from fitting. Where
 * there is such a pin already, it lasts as long as the longer of both. Beyond QN_TREE_TIMED_MAX the oldest one ends.
 * Returns the prefix's length; 0: nothing is there, or there is no memory. */
int64_t qn_tree_hold(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n, int64_t ttl_ns);

/* ---- looking at it ------------------------------------------------------------------------------------ */

typedef enum {
    QN_TREE_USABLE,         /* all tokens are */
    QN_TREE_UNKNOWN_KEY,    /* nothing was computed for this adapter, length and salt */
    QN_TREE_DIFFERS,        /* after n_known tokens others follow: known[] */
    QN_TREE_ENDS,           /* nothing was computed behind n_known tokens */
    QN_TREE_EVICTED,        /* it was computed, and evicted */
    QN_TREE_LACKS_WINDOW,   /* tokens are known, but pages of a window that the next row sees are not */
    QN_TREE_LACKS_SNAPSHOT, /* tokens are known, but no state at their end is */
} qn_tree_reason;

/* Why a match is no longer than it is. Runs of tokens around position n_known: given[i_given] and
 * known[i_known] are the first that differ; i equals n where there is none. */
typedef struct {
    qn_tree_reason reason;
    int64_t n_known, n_usable;
    int32_t given[2 * QN_TREE_CONTEXT], known[2 * QN_TREE_CONTEXT];
    int n_given, i_given, n_known_ids, i_known;
    int64_t evicted_begin,
        evicted_end; /* the tokens that were evicted, by eviction number evicted_ago before now */
    int64_t evicted_ago;
} qn_tree_miss;

/* Counts nothing, and makes nothing younger. */
void qn_tree_explain(qn_tree *t, const qn_tree_key *key, const int32_t *ids, int64_t n, qn_tree_miss *out);

typedef struct {
    int64_t hits, misses, tokens_reused;      /* of matches */
    int64_t inserts, splits, tokens_inserted; /* tokens that were not there */
    int64_t evicted_nodes, evicted_tokens, evicted_snapshots, poisoned_nodes;
    int64_t timed_pins, given_up_pins;             /* with a time: now; before their time was over */
    size_t evicted_bytes;                          /* of pages that became free */
    int64_t nodes, tokens, snapshots, pins, pages; /* now; pages: references of nodes to pages, all groups */
    size_t own_bytes;                              /* of the tree itself, in the ledger's entry cache */
} qn_tree_counters;
void qn_tree_get_counters(const qn_tree *t, qn_tree_counters *out);

/* A node as a visitor sees it; all is borrowed until it returns. */
typedef struct {
    const qn_tree_key *key; /* without contents */
    int64_t begin, end;
    const int32_t *path;                      /* [end]: the ids of all tokens up to here */
    int64_t first_page, n_pages;              /* indices in the sequence */
    const int32_t *pages[QN_TREE_GROUPS_MAX]; /* [n_pages] of each group; -1 before those that are there */
    int32_t slot;                             /* -1: none */
    uint64_t writer;
    int64_t cost_ns;
    int has_content; /* some of its tokens, or of those before it, are said by a content */
    int n_pins;      /* that end with it */
    const void *pins, *node;
} qn_tree_view;
/* The name of the i-th of n_pins. Within a visit. */
const char *qn_tree_view_pin(const qn_tree_view *node, int i);
/* A status other than QN_OK ends the walk. */
typedef qn_status qn_tree_visit_fn(void *user, const qn_tree_view *node);
/* Visits all nodes, each before those that go on from it. fn is called under the tree's lock: it must not
 * call the tree, nor reserve pages or ledger. QN_E_NOMEM, or fn's status. */
qn_status qn_tree_walk(qn_tree *t, qn_tree_visit_fn *fn, void *user);

/* For tests: NULL, or the invariant that does not hold. Looks at all nodes, and compares the holds of the
 * tree on each page with those that the pools count. */
const char *qn_tree_check(qn_tree *t);

#endif
