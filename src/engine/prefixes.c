#include "engine/prefixes.h"

#include "engine/engine_parts.h"

int qn_engine_keeps_points(const qn_engine *e)
{
    for (int i = 0; i < e->groups.n; i++)
        if (e->groups.group[i].window) return 1;
    return e->slots != NULL;
}

int qn_engine_has_room(qn_engine *e, int64_t n_ids)
{
    qn_ledger_figures f = qn_ledger_get(e->ledger);
    size_t free_bytes = f.limit ? f.limit - (f.total - f.held[QN_LEDGER_CACHE]) : SIZE_MAX, need_bytes = 0;
    if (f.limit && f.limit < f.total - f.held[QN_LEDGER_CACHE]) free_bytes = 0;
    for (int i = 0; i < e->groups.n; i++) {
        int64_t window = e->groups.group[i].window, most = window && window < n_ids ? window : n_ids;
        int64_t n = most / QN_STATE_PAGE_TOKENS + 2;
        if (n > qn_pages_free_count(e->pages[i]) + qn_pages_kept_count(e->pages[i])) return 0;
        need_bytes += (size_t)n * qn_pages_unit_bytes(e->pages[i]);
    }
    if (e->slots && qn_pages_free_count(e->slots) + qn_pages_kept_count(e->slots) < 1) return 0;
    return need_bytes <= free_bytes;
}
