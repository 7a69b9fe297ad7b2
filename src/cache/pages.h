/* KV pages: the units of one qn_state, handed out to sequences and counted in the ledger.
 * A page is held by one or more holders (count >= 1), cached (free, its memory kept for the next who wants a
 * page, in the ledger's entry cache) or free (its memory given back). Invariant: pages of the same sequence
 * and position hold the same bits, whatever their ids; no result depends on an id. Pool: any thread; a block
 * table: one at a time. */
#ifndef QN_CACHE_PAGES_H
#define QN_CACHE_PAGES_H

#include "device/device.h"

typedef struct qn_pages qn_pages;

/* Over all units of state, which must outlive the pool. */
qn_status qn_pages_new(qn_state *state, qn_pages **out);
void qn_pages_free(qn_pages *p);
/* Takes n pages into ids[0..n), each with count 1, cached ones first. All or nothing. QN_E_FULL: no free
 * pages; QN_E_NOMEM: the ledger's limit. */
qn_status qn_pages_reserve(qn_pages *p, int64_t n, int32_t *ids);
void qn_pages_retain(qn_pages *p, int32_t id);
/* The last release frees the page: cached as far as the ledger has room for that, else its memory goes back.
 */
void qn_pages_release(qn_pages *p, int32_t id);
/* Gives the memory of cached pages back, size_bytes or all there is. Returns the bytes. */
size_t qn_pages_reclaim(qn_pages *p, size_t size_bytes);
/* Not held: cached or free. */
int64_t qn_pages_free_count(const qn_pages *p);
int64_t qn_pages_total(const qn_pages *p);
/* Bytes of the pool's own tables. */
size_t qn_pages_bytes(const qn_pages *p);
/* Bytes of one page, all layers of the group. */
size_t qn_pages_unit_bytes(const qn_pages *p);

/* The pages of one sequence: entry i holds positions [(base + i) * 32, (base + i + 1) * 32). Entries that
 * went behind the window are released and -1 until base moves past them; base is a multiple of 8 (groups of
 * 256 positions keep their place). */
typedef struct {
    int32_t *ids;       /* [capacity] */
    int64_t capacity;   /* fixed when made: the most entries ever needed */
    int64_t base, n;    /* entries [0, n) exist */
    int64_t n_released; /* entries [0, n_released) are -1 */
} qn_block_table;

enum { QN_BLOCK_BASE_STEP = 8 };

qn_status qn_block_table_init(qn_block_table *t, int64_t capacity);
/* Makes room for positions [.., end). QN_E_FULL: the pool or the table has no room; QN_E_NOMEM: the ledger's
 * limit; nothing was taken. */
qn_status qn_block_table_extend(qn_block_table *t, qn_pages *p, int64_t end);
/* Releases pages that hold only positions below first. */
void qn_block_table_release_below(qn_block_table *t, qn_pages *p, int64_t first);
/* Releases all: the table is as it was made. */
void qn_block_table_clear(qn_block_table *t, qn_pages *p);
/* Releases all and frees the table. */
void qn_block_table_end(qn_block_table *t, qn_pages *p);

#endif
