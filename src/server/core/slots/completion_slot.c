#include "server/core/slots/completion_slot.h"

#include "server/core/slots/slots.h"

static qn_slot_owner owner_of(const qn_completion *c)
{
    const qn_prefix_options options = {c->request.o.adapter, c->request.o.cache_salt};
    return (qn_slot_owner){c->ex->key, options};
}

qn_status qn_completion_take_slot(qn_completion *c, const int32_t *ids, int64_t n_ids)
{
    const qn_slot_owner owner = owner_of(c);
    if (!c->ex->server->slots) return QN_OK;
    qn_buf_append(&c->slot_ids, ids, (size_t)n_ids * sizeof *ids);
    QN_TRY(c->slot_ids.status);
    c->slot = qn_slots_take(c->ex->server->slots, &owner, c->request.slot, ids, n_ids);
    return QN_OK;
}

/* A slot keeps no more than a context, and nothing behind a prompt that it does not have. */
void qn_completion_note_slot(qn_completion *c, int32_t id)
{
    const size_t most = (size_t)c->ex->server->info.context_size * sizeof id;
    c->has_slot_answer = 1;
    if (c->slot >= 0 && c->slot_ids.length && c->slot_ids.length < most)
        qn_buf_append(&c->slot_ids, &id, sizeof id);
}

void qn_completion_give_slot(qn_completion *c)
{
    const qn_slot_owner owner = owner_of(c);
    int64_t n = (int64_t)(c->slot_ids.length / sizeof(int32_t));
    if (c->slot < 0 || c->is_slot_given) return;
    if (c->has_slot_answer) n--; /* the state of the last token was not computed */
    if (c->slot_ids.status != QN_OK || n < 0) n = 0;
    c->is_slot_given = 1;
    qn_slots_give(c->ex->server->slots, c->slot, &owner, (const int32_t *)(const void *)c->slot_ids.data, n);
    qn_buf_free(&c->slot_ids);
}
