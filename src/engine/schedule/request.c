#include "engine/schedule/request.h"

#include <string.h>

#include "base/mem.h"

qn_status qn_request_init(qn_request *r, const int32_t *ids, int64_t n_ids, int64_t ring_capacity,
                          int32_t n_top)
{
    r->ids_capacity = n_ids;
    r->ids = qn_alloc_array((size_t)r->ids_capacity, sizeof *r->ids);
    if (!r->ids) return QN_E_NOMEM;
    memcpy(r->ids, ids, (size_t)n_ids * sizeof *ids);
    r->n_ids = r->n_prompt = n_ids;
    return ring_capacity ? qn_ring_init(&r->ring, ring_capacity, n_top) : QN_OK;
}

void qn_request_end(qn_request *r)
{
    qn_ring_end(&r->ring);
    qn_free(r->ids);
    qn_free(r->message);
    qn_draft_free(r->draft);
    qn_drafter_free(r->drafter);
    r->draft = NULL;
    r->drafter = NULL;
    r->ids = NULL;
    r->message = NULL;
}

int qn_request_stops_at(const qn_request *r, int32_t id)
{
    for (int64_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return 1;
    return 0;
}
