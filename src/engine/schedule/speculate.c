#include "engine/schedule/speculate.h"

#include <string.h>

qn_status qn_request_speculate(qn_request *r, int64_t n_draft, qn_engine *draft_engine)
{
    QN_TRY(qn_draft_new(&r->draft));
    if (draft_engine && !r->images) QN_TRY(qn_drafter_new(draft_engine, &r->drafter));
    r->n_draft = n_draft < QN_DRAFT_MAX ? n_draft : QN_DRAFT_MAX;
    for (int64_t i = 0; i < r->n_ids; i++) qn_draft_add(r->draft, r->ids[i]);
    return QN_OK;
}

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* How many of n more ids there is room for: every one may become a token, and one more is drawn. */
static int64_t find_room(const qn_request *r, const qn_engine *e, int64_t n_rows, int64_t n)
{
    const qn_engine_info *info = qn_engine_get_info(e);
    n = at_most(n, r->ids_capacity - (r->n_ids - r->ids_base));
    n = at_most(n, at_most(r->room, info->context_size) - r->n_ids - 1);
    n = at_most(n, qn_ring_room(&r->ring) - 1);
    n = at_most(n, info->max_rows - n_rows);
    return r->max_tokens ? at_most(n, r->max_tokens - r->n_generated - 1) : n;
}

int64_t qn_request_look_ahead(qn_request *r, const qn_engine *e, const qn_step_costs *costs, int64_t n_rows)
{
    int32_t ids[QN_DRAFT_MAX];
    int64_t n_forced = 0;
    if (!r->draft || !r->n_generated) return 0;
    if (r->form) qn_form_get_forced(r->form, &n_forced);
    if (n_forced) return 0; /* the next token is known */
    const int64_t most = at_most(r->n_draft, qn_sequence_get_tentative_max(r->sequence)),
                  room = find_room(r, e, n_rows, most);
    int64_t n = qn_draft_guess(r->draft, QN_DRAFT_MAX, ids);
    if (n > room) n = room;
#ifndef QN_SHAKE
    if (n > 0) n = qn_draft_worth(r->draft, costs, n_rows, n);
#endif
    if (n <= 0 && room > 0 && r->drafter)
        n = qn_drafter_guess(r->drafter, r->ids, r->n_ids, costs, n_rows, room, ids);
    if (n > 0 && r->form) n = qn_form_fit_guess(r->form, ids, n);
    if (n <= 0 || qn_sequence_reserve(r->sequence, 1 + n) != QN_OK) return 0;
    memcpy(r->ids + (r->n_ids - r->ids_base), ids, (size_t)n * sizeof *ids);
    return n;
}

int64_t qn_request_put_certain(qn_request *r, const qn_engine *e, int64_t n_rows)
{
    int64_t n;
    if (!r->form) return 0;
    const int32_t *ids = qn_form_get_forced(r->form, &n);
    n = find_room(r, e, n_rows, qn_form_count_followed(r->form));
    if (n <= 0) return 0;
    memcpy(r->ids + (r->n_ids - r->ids_base), ids, (size_t)n * sizeof *ids);
    return n;
}

int qn_request_wants_row(const qn_request *r, int64_t i)
{
    if (r->step_status != QN_OK) return 0;
    if (r->n_drawn && r->form && qn_form_is_over(r->form)) return 0;
    if (r->n_ahead == 0) return r->n_drawn == 0;
    if (i != r->n_drawn) return 0;
    if (i == 0) return 1;
    int32_t last = qn_ring_place((qn_ring *)&r->ring, i - 1)->id;
    return !qn_request_stops_at(r, last) && last == r->ids[r->n_ids + i - 1 - r->ids_base];
}

void qn_request_take_back(qn_request *r)
{
    if (r->n_ahead == 0) return;
    int64_t end = r->n_ids - 1 + r->n_drawn; /* the last token drawn was not fed yet */
    if (qn_sequence_length(r->sequence) > end) qn_sequence_truncate(r->sequence, end);
    atomic_fetch_add_explicit(&r->n_drafted, r->n_ahead, memory_order_relaxed);
    if (r->n_drawn) atomic_fetch_add_explicit(&r->n_accepted, r->n_drawn - 1, memory_order_relaxed);
    r->n_fed = r->n_drawn;
    r->n_ahead = 0;
}
