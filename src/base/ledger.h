/* The memory ledger: every large use of memory is an entry with a name and a byte count, under one hard
 * limit. What is kept for reuse though nobody needs it now is the entry `cache`, under a soft limit of its
 * own: it goes before anything is refused. Invariant: the sum of all entries never passes the limit; a
 * reservation that would is refused, naming what is held. Any thread. */
#ifndef QN_BASE_LEDGER_H
#define QN_BASE_LEDGER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum {
    QN_LEDGER_WEIGHTS, /* packed weights, also those of a mapped file; no other mapped pages */
    QN_LEDGER_KV,      /* key and value pages, recurrent state */
    QN_LEDGER_SCRATCH, /* program buffers */
    QN_LEDGER_CACHE,   /* kept for reuse: freed memory, pages of the prefix tree, the tree itself */
    QN_LEDGER_OTHER,   /* tokenizer, tables, samplers */
    QN_LEDGER_COUNT
} qn_ledger_entry;

typedef struct qn_ledger qn_ledger;

/* What is cached is given up after this many bytes unless the limit is set. */
enum { QN_LEDGER_CACHE_DEFAULT = 256 << 20 };

qn_ledger *qn_ledger_new(void);
/* What refusals call the limit, "memory limit" unless it is set. Static storage. */
void qn_ledger_set_title(qn_ledger *l, const char *title);
/* One holder more; returns l. */
qn_ledger *qn_ledger_retain(qn_ledger *l);
/* Each holder once; the last one's frees it. NULL is accepted. */
void qn_ledger_free(qn_ledger *l);

/* Gives up cached memory, size_bytes or more where there is as much, by qn_ledger_release. Called without the
 * ledger's lock, from any thread that reserves or sets a limit. */
typedef void qn_ledger_reclaim_fn(void *user, size_t size_bytes);
/* Whoever caches says how it is taken back. fn NULL: nobody does any more. Not while others use the ledger.
 */
void qn_ledger_set_reclaim(qn_ledger *l, qn_ledger_reclaim_fn *fn, void *user);

/* 0: no limit. Returns the old limit. Cached memory above a new limit is given up; a limit below what is held
 * beside it refuses all further reservations. */
size_t qn_ledger_set_limit(qn_ledger *l, size_t limit_bytes);
size_t qn_ledger_get_limit(const qn_ledger *l);
/* Most bytes of the entry cache; 0 keeps nothing. Returns the old limit and gives up what is above the new.
 */
size_t qn_ledger_set_cache_limit(qn_ledger *l, size_t limit_bytes);
/* Gives up all that is cached. */
void qn_ledger_clear_cache(qn_ledger *l);

/* Gives up cached memory when it must. QN_E_NOMEM names the entry, the bytes asked for, the bytes held by
 * each entry and the limit. */
qn_status qn_ledger_reserve(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes);
/* The same where there is room as it is: gives up nothing, calls nobody. 0: there is none. */
int qn_ledger_try(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes);
void qn_ledger_release(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes);
/* Bytes of an entry become cache: 1, and they may be kept; 0: they were released, for the limits leave no
 * room to keep them. */
int qn_ledger_keep(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes);
/* Bytes of one entry become another's: the total stays, so nothing is refused; the cache may pass its limit
 * by that. */
void qn_ledger_move(qn_ledger *l, qn_ledger_entry from, qn_ledger_entry to, size_t size_bytes);
/* All figures of one moment. */
typedef struct {
    size_t held[QN_LEDGER_COUNT];
    size_t total, peak, limit, cache_limit;
} qn_ledger_figures;
qn_ledger_figures qn_ledger_get(const qn_ledger *l);
size_t qn_ledger_held(const qn_ledger *l, qn_ledger_entry entry);
size_t qn_ledger_total(const qn_ledger *l);
size_t qn_ledger_peak(const qn_ledger *l);
void qn_ledger_reset_peak(qn_ledger *l);
const char *qn_ledger_name(qn_ledger_entry entry);

#endif
