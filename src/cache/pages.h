/* KV pages: the units of one qn_state, shared by sequences and the prefix tree, counted in the ledger.
 * A page has users (sequences and handles: retain, release), holds of the tree (keep, unkeep) and a fill, the
 * number of its token slots that were written. It is used (users > 0; ledger entry kv), kept (only the tree
 * holds it: its content is there and may be evicted; entry cache), cached (free, its memory stays for the
 * next who wants a page; entry cache) or free (its memory was given back).
 *
 *     reserve          release, when kept          unkeep
 *   free ----> used ---------------------> kept ----------> cached ----> free
 *               ^ \______________________  |  ^             ^   reclaim
 *               |    release, not kept   \-|--|------------/
 *               +-------- retain ----------+
 *
 * Invariant: what was written to a page for a position stays as it is while anybody holds the page for that
 * position: it is written in place behind all that others hold, else copied first
 * (qn_block_table_prepare). Pages of the same tokens hold the same bits, whatever their ids; no result
 * depends on an id. A slot of recurrent state is such a unit too, with one position.
 *
 * Pool: any thread. A block table: one thread at a time; what copies (prepare, qn_pages_copy) is the device's
 * thread's. Order of locks: the tree's, the pool's, the ledger's; each may be taken while those before it are
 * held. Nothing is reserved of the ledger, and nobody is asked to evict, under the pool's. */
#ifndef QN_CACHE_PAGES_H
#define QN_CACHE_PAGES_H

#include "device/device.h"

typedef struct qn_pages qn_pages;

enum { QN_PAGES_PARTS_MAX = 2 };

/* Over all units of state, which must outlive the pool. */
qn_status qn_pages_new(qn_state *state, qn_pages **out);
/* The same over n <= QN_PAGES_PARTS_MAX states of as many units: page i is unit i of each, and each part is
 * counted in the ledger of its device. NULL entries are passed over; one state must be there. */
qn_status qn_pages_new_over(int n, qn_state *const *states, qn_pages **out);
void qn_pages_free(qn_pages *p);
/* Asks for n pages to be unkept, because so many are missing; called without the pool's lock. */
typedef void qn_pages_evict_fn(void *user, qn_pages *p, int64_t n);
/* Whom a pool without free pages asks. fn NULL: nobody any more. Not while others use the pool. */
void qn_pages_set_evict(qn_pages *p, qn_pages_evict_fn *fn, void *user);
/* Takes n pages into ids[0..n), each with one user, fill 0, cached ones first; kept ones are evicted when it
 * must. All or nothing. QN_E_FULL: no free pages; QN_E_NOMEM: the ledger's limit. */
qn_status qn_pages_reserve(qn_pages *p, int64_t n, int32_t *ids);
/* One more user of a page that is used or kept. */
void qn_pages_retain(qn_pages *p, int32_t id);
/* The last release leaves the page to the tree, if that keeps it (the cache may pass its limit:
 * qn_tree_trim), else frees it: cached as far as the ledger has room for that, else its memory goes back. */
void qn_pages_release(qn_pages *p, int32_t id);
/* One more hold of the tree on a page that is used or kept. */
void qn_pages_keep(qn_pages *p, int32_t id);
typedef enum { QN_PAGES_HELD, QN_PAGES_CACHED, QN_PAGES_FREED } qn_pages_rest;
/* One hold less. The last one frees the page, if nobody uses it, as a last release does: what became of it.
 */
qn_pages_rest qn_pages_unkeep(qn_pages *p, int32_t id);
/* How many of ids[0..n) are kept and not used. Entries below 0 are passed over. */
int64_t qn_pages_count_unused(const qn_pages *p, const int32_t *ids, int64_t n);
/* Copies all bytes of one page to another. Device's thread. */
void qn_pages_copy(qn_pages *p, int32_t from, int32_t to);
/* All bytes of a page (qn_pages_unit_bytes), part by part, out to memory of the host and back in: see
 * state_read of device.h. Device's thread. */
void qn_pages_read(const qn_pages *p, int32_t id, void *bytes);
void qn_pages_write(qn_pages *p, int32_t id, const void *bytes);
/* All token slots of a page were written from outside (a file): who goes on from the middle copies it. */
void qn_pages_fill(qn_pages *p, int32_t id);
/* The contents of token slots [slot, ..) are not to be used: a pass failed that wrote them, or read what was
 * wrong. Holds until the page is free or the slots are written anew. */
void qn_pages_poison(qn_pages *p, int32_t id, int64_t slot);
/* Are any of the first n slots poisoned? */
int qn_pages_is_poisoned(const qn_pages *p, int32_t id, int64_t n);
/* Gives the memory of cached pages back, size_bytes or all there is. Returns the bytes. */
size_t qn_pages_reclaim(qn_pages *p, size_t size_bytes);
/* Neither used nor kept: cached or free. */
int64_t qn_pages_free_count(const qn_pages *p);
/* Kept and not used. */
int64_t qn_pages_kept_count(const qn_pages *p);
int64_t qn_pages_total(const qn_pages *p);
/* Bytes of the pool's own tables. */
size_t qn_pages_bytes(const qn_pages *p);
/* Bytes of one page, all layers of the group. */
size_t qn_pages_unit_bytes(const qn_pages *p);
/* What of them is counted in this ledger. */
size_t qn_pages_bytes_in(const qn_pages *p, const qn_ledger *ledger);

/* One page as it is now, for tests and invariants. */
typedef struct {
    int32_t users, kept;
    int32_t fill, poisoned_from; /* token slots */
} qn_page_info;
qn_page_info qn_pages_get_info(const qn_pages *p, int32_t id);

/* ---- block tables ------------------------------------------------------------------------------------- */

/* The pages of one sequence: entry i holds positions [(base + i) * 32, (base + i + 1) * 32). Entries that
 * went behind the window are released and -1 until base moves past them; base is a multiple of 8 (groups of
 * 256 positions keep their place). */
typedef struct {
    int32_t *ids;       /* [capacity] */
    int64_t capacity;   /* fixed when made: the most entries ever needed */
    int64_t base, n;    /* entries [0, n) exist */
    int64_t n_released; /* entries [0, n_released) are -1 */
    int64_t claimed;    /* positions that were prepared for this table alone end here; see prepare */
} qn_block_table;

enum { QN_BLOCK_BASE_STEP = 8 };

qn_status qn_block_table_init(qn_block_table *t, int64_t capacity);
/* Positions [begin, end) may then be written by whom the table belongs to, a sequence of length begin: adds
 * pages, and copies those of them that others hold or may come to hold behind begin. A page that others hold
 * up to begin and nobody wrote behind is not copied. The same positions may be prepared more than once, as
 * long as the sequence was not truncated between. Device's thread. QN_E_FULL: the pool or the table has no
 * room; QN_E_NOMEM: the ledger's limit; the table then holds the same positions as before. */
qn_status qn_block_table_prepare(qn_block_table *t, qn_pages *p, int64_t begin, int64_t end);
/* The sequence has only n tokens from now on: releases the pages that hold positions from n on alone. What
 * was released below comes not back. */
void qn_block_table_truncate(qn_block_table *t, qn_pages *p, int64_t n);
/* Releases pages that hold only positions below first. */
void qn_block_table_release_below(qn_block_table *t, qn_pages *p, int64_t first);
/* The empty table becomes that of a sequence of n tokens whose positions below first were released; the
 * caller puts pages into ids[n_released..n) and retains them. 0: it has no room for them, and stays
 * empty. */
int qn_block_table_begin(qn_block_table *t, int64_t n, int64_t first);
/* One more user of each page of the table. */
void qn_block_table_retain(const qn_block_table *t, qn_pages *p);
/* The empty table becomes that of a sequence with the first n tokens of another's, whose pages both then use.
 * QN_E_FULL: it has no room. */
qn_status qn_block_table_share(qn_block_table *t, qn_pages *p, const qn_block_table *of, int64_t n);
/* Is anything of the first n tokens that the table still holds poisoned? */
int qn_block_table_is_poisoned(const qn_block_table *t, const qn_pages *p, int64_t n);
/* Everything that the table still holds is poisoned, for all who use it. */
void qn_block_table_poison(const qn_block_table *t, qn_pages *p);
/* Releases all: the table is as it was made. */
void qn_block_table_clear(qn_block_table *t, qn_pages *p);
/* Releases all and frees the table. */
void qn_block_table_end(qn_block_table *t, qn_pages *p);

#endif
