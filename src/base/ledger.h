/* The memory ledger: every large use of memory is an entry with a name and a byte count, under one hard
 * limit. Invariant: the sum of all entries never passes the limit; a reservation that would is refused,
 * naming what is held. Any thread. */
#ifndef QN_BASE_LEDGER_H
#define QN_BASE_LEDGER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum {
    QN_LEDGER_WEIGHTS, /* packed or copied weights (clean mapped pages are not counted) */
    QN_LEDGER_KV,      /* key and value pages, recurrent state */
    QN_LEDGER_SCRATCH, /* program buffers */
    QN_LEDGER_CACHE,   /* what can be dropped and made again */
    QN_LEDGER_OTHER,
    QN_LEDGER_COUNT
} qn_ledger_entry;

typedef struct qn_ledger qn_ledger;

qn_ledger *qn_ledger_new(void);
void qn_ledger_free(qn_ledger *l);
/* 0: no limit. Returns the old limit. A limit below what is held refuses all further reservations. */
size_t qn_ledger_set_limit(qn_ledger *l, size_t limit_bytes);
size_t qn_ledger_get_limit(const qn_ledger *l);
/* QN_E_FULL names the entry, the bytes asked for, the bytes held by each entry and the limit. */
qn_status qn_ledger_reserve(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes);
void qn_ledger_release(qn_ledger *l, qn_ledger_entry entry, size_t size_bytes);
size_t qn_ledger_held(const qn_ledger *l, qn_ledger_entry entry);
size_t qn_ledger_total(const qn_ledger *l);
size_t qn_ledger_peak(const qn_ledger *l);
void qn_ledger_reset_peak(qn_ledger *l);
const char *qn_ledger_name(qn_ledger_entry entry);

#endif
