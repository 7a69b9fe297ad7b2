/* The first tokens of a sequence, kept for computing them again: where RoPE depends on how long a sequence
 * gets (rope_config.short_positions), its keys and values are made anew when it gets longer than that.
 * Counted in the ledger. One thread at a time. */
#ifndef QN_ENGINE_MACHINE_KEPT_IDS_H
#define QN_ENGINE_MACHINE_KEPT_IDS_H

#include <stdint.h>

#include "base/ledger.h"
#include "base/status.h"

/* Zeroed: none. */
typedef struct {
    int32_t *ids;
    int64_t capacity;
} qn_kept_ids;

/* Writes ids[0..n) to positions [at, at + n); room is made by doubling. QN_E_NOMEM: also the ledger's limit.
 */
qn_status qn_kept_ids_put(qn_kept_ids *k, qn_ledger *ledger, int64_t at, int64_t n, const int32_t *ids);
void qn_kept_ids_free(qn_kept_ids *k, qn_ledger *ledger);

#endif
