#include "engine/machine/kept_ids.h"

#include <string.h>

#include "base/mem.h"

enum { FIRST = 256 };

qn_status qn_kept_ids_put(qn_kept_ids *k, qn_ledger *ledger, int64_t at, int64_t n, const int32_t *ids)
{
    if (n <= 0) return QN_OK;
    int64_t capacity = k->capacity ? k->capacity : FIRST;
    while (capacity < at + n) capacity *= 2;
    if (capacity > k->capacity) {
        size_t more = (size_t)(capacity - k->capacity) * sizeof *k->ids;
        QN_TRY(qn_ledger_reserve(ledger, QN_LEDGER_OTHER, more));
        int32_t *grown = qn_realloc(k->ids, (size_t)capacity * sizeof *k->ids);
        if (!grown) {
            qn_ledger_release(ledger, QN_LEDGER_OTHER, more);
            return QN_E_NOMEM;
        }
        k->ids = grown;
        k->capacity = capacity;
    }
    memcpy(k->ids + at, ids, (size_t)n * sizeof *ids);
    return QN_OK;
}

void qn_kept_ids_free(qn_kept_ids *k, qn_ledger *ledger)
{
    qn_ledger_release(ledger, QN_LEDGER_OTHER, (size_t)k->capacity * sizeof *k->ids);
    qn_free(k->ids);
    *k = (qn_kept_ids){0};
}
